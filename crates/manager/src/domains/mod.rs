//! Private domains: applications that nobody need trust with a queue of the device.
//!
//! Each queue of theirs is a virtual pair. The demultiplexer redirects their frames to the
//! near end; on the far one is the AF_XDP socket that the application has. What it sends
//! comes out of the near end, where a program lets pass only what a user without
//! privileges could send, and counts the rest by cause ([`Sent`]).
//!
//! Lives here: the programs ([`programs`]), making and deleting pairs ([`pair`]), and a
//! stock of finished ones ([`stock`]), so that neither waits for the kernel on the path of
//! a request; and the kernel thread that polls a device which several share ([`threaded`]).
//! Does not live here: who gets one ([`crate::daemon::Manager`]).
//!
//! Read first: veth(4), tc-bpf(8); docs/manager.md, "Private mode".
//!
//! [`Sent`]: tidewall_device::demux::layout::Sent

pub mod pair;
pub mod programs;
pub mod stock;
pub mod threaded;
