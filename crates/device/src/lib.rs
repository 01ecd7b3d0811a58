//! Devices: the sources and destinations of frames.
//!
//! Lives here:
//!
//! - [`frame`]: frame memory and frame ownership
//! - [`queue`]: the queue interface that the stack sees
//! - [`demux`]: the demultiplexer in the driver and its tables
//! - [`afxdp`]: an AF_XDP queue of a Linux interface
//! - [`tap`]: the far end of a Linux interface, for 64 KiB segments
//! - [`memory`]: a link inside one process
//! - [`interface`]: what Linux reports about an interface
//! - [`capabilities`]: what the kernel requires of a process
//! - [`forked`]: what a forked child has of all this
//!
//! Does not live here: channels, protocols, sockets, policy. Loading programs, changing
//! settings and restoring them is left to the owner of a device (crates/manager).
//!
//! Read first: Documentation/networking/af_xdp.rst and napi.rst in the Linux tree, for
//! the tap tuntap.rst and Virtio 1.2 §5.1.6; LRP (Druschel & Banga, OSDI 1996) §3.2 on
//! the demultiplexing function.
//!
//! ```text
//!  wire ──► device queue ──► demux ──► (channel id + credit as metadata) ──► receive
//! ```
#![deny(unsafe_code)]
// Frames and peers reach this code: they could trigger any panic here.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

pub mod afxdp;
pub mod capabilities;
pub mod demux;
pub mod forked;
pub mod frame;
pub mod interface;
pub mod memory;
pub mod queue;
#[allow(unsafe_code)]
pub(crate) mod raw;
pub mod tap;
mod virtio_header;
