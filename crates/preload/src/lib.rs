//! `libtidewall.so`: the socket calls of the C library, for programs unaware of Tidewall
//! (LD_PRELOAD).
//!
//! Lives here: which sockets become the stack's, and when ([`promote`]); the handling of
//! a C caller's calls ([`raw`]); and the reports to the starter of the program
//! ([`report`]). Does not live here: the implementation of the calls, which is in
//! `tidewall_posix`.
//!
//! Read first: docs/preload.md; ld.so(8), signal-safety(7).
//!
//! ```text
//!  a call ─► is its number ours? ──no──► the C library's function
//!              │                  └─ a socket that is paid attention to ─► promote
//!              └─yes─► inside: Posix ─► answer (errno)
//! ```
//!
//! The kernel allocates all descriptors. A call on a kernel descriptor takes no lock and
//! allocates nothing. The standard library in here calls these functions, too, and so do
//! signal handlers and children of vfork(2).
#![deny(unsafe_code)]

mod candidates;
mod confinement;
mod mixed;
mod needed;
mod process;
mod promote;
mod protected;
#[allow(unsafe_code)]
mod raw;
mod registered;
mod report;
mod sleepers;
mod watch;
