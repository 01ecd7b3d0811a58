//! `libtidewall.so`: the socket calls of the C library, for programs that know nothing of
//! Tidewall (LD_PRELOAD).
//!
//! Lives here: which sockets become a stack's, and when ([`promote`]); what a C caller's
//! call becomes ([`raw`]); and what of it is told to whoever started the program
//! ([`report`]). Does not live here: what the calls do, which is `tidewall_posix`'s.
//!
//! Read first: docs/preload.md; ld.so(8), signal-safety(7).
//!
//! ```text
//!  a call ─► is its number ours? ──no──► the C library's function
//!              │                  └─ a socket that is paid attention to ─► promote
//!              └─yes─► inside: Posix ─► answer (errno)
//! ```
//!
//! The kernel gives out all numbers. A call that is not ours takes no lock and allocates
//! nothing: the standard library in here calls these functions, too, and so do handlers
//! of signals and children of vfork(2).
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
