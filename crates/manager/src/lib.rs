//! The owner of a device, which may load programs into it, change its settings and write
//! the trusted tables.
//!
//! Lives here:
//!
//! - the driver program's life ([`Program`])
//! - opening a device with all its queues ([`AfXdp`])
//! - interrupt deferral and moderation
//! - the test of the kernel's input path
//! - a real card's settings under the host's control ([`ethtool`])
//! - restoring all of it, even after SIGKILL ([`restore`])
//!
//! Does not live here: sockets, protocols, the fate of frames. An application needs from
//! this crate only what is handed over to it: queues and its own tables
//! ([`tidewall_device::demux::ApplicationTables`]). An embedded stack is owner and
//! application in one process: [`AfXdp::open`] is the owner then.
//!
//! Two things stay with the queues, in crates/device. An AF_XDP socket is made and bound
//! there, since its rings and frames are mapped in the process that receives. NAPI
//! discovery continues while frames arrive and asks the owner for each step
//! ([`tidewall_device::afxdp::Owner`]).
//!
//! ```text
//!  Program (demux.bpf.c) ─ attach ─► interface      Restorer ─► settings, as they were
//!     ├─ TrustedTables: ours alone
//!     └─ map of one application + AF_XDP sockets ──► the process that receives
//! ```
//!
//! Read first: bpf(2), Documentation/networking/af_xdp.rst and napi.rst in the Linux
//! tree.
#![deny(unsafe_code)]

pub mod adaptor;
pub mod client;
pub mod connection;
pub mod daemon;
mod device;
pub mod domains;
pub mod ethtool;
mod input;
mod moderation;
pub mod pinned;
pub mod places;
mod program;
pub mod protocol;
#[allow(unsafe_code)]
mod raw;
pub mod record;
mod refusal;
pub mod restore;
mod syn_limit;
pub mod view;

pub use device::{AfXdp, Config, XdpMode};
pub use program::{Program, TestResult, Traces};
pub use refusal::{KERNEL_MINIMUM, Refused, check_generic, lower_interfaces, version};
pub use syn_limit::SynLimit;
