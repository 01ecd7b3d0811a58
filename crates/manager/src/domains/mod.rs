//! Private domains: applications that need not be trusted with a queue of the device.
//!
//! Each of their queues is a virtual pair. The demultiplexer redirects their frames to
//! the near end. On the far end is the AF_XDP socket that the application has. Its frames
//! come out of the near end. A program there passes only what a user without privileges
//! could send, and counts the rest by cause ([`Sent`]).
//!
//! Lives here:
//!
//! - [`programs`]: the programs on pairs
//! - [`pair`]: making and deleting pairs
//! - [`stock`]: a stock of finished pairs, so that no request waits for the kernel to
//!   make or delete one
//! - [`threaded`]: the kernel thread that polls a device which several share
//!
//! Does not live here: who gets one ([`crate::daemon::Manager`]).
//!
//! Read first: veth(4), tc-bpf(8); docs/manager.md, "Private mode".
//!
//! [`Sent`]: tidewall_device::demux::layout::Sent

pub mod pair;
pub mod programs;
pub mod stock;
pub mod threaded;
