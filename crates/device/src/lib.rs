//! Devices: where frames come from and go to.
//!
//! Lives here: frame memory and frame ownership ([`frame`]), the queue
//! interface that the stack sees ([`queue`]), the demultiplexer in the driver
//! and its tables ([`demux`]), and the devices: [`afxdp`] (an AF_XDP queue of
//! a Linux interface), [`tap`] (the far end of a Linux interface, for 64 KiB
//! segments) and [`memory`] (a link inside one process). What Linux says of an
//! interface: [`interface`]; what the kernel wants of a process: [`capabilities`];
//! what a forked child has of all this: [`forked`].
//! Does not live here: channels, protocols, sockets, policy; what only the owner of a
//! device does (crates/manager): programs, settings, and putting them back.
//!
//! Read first: Documentation/networking/af_xdp.rst and napi.rst in the Linux
//! tree, for the tap tuntap.rst and Virtio 1.2 §5.1.6; LRP (Druschel & Banga,
//! OSDI 1996) §3.2 on the demultiplexing function.
//!
//! ```text
//!  wire ──► device queue ──► demux ──► (channel id + credit as metadata) ──► receive
//! ```
#![deny(unsafe_code)]
// Frames and peers reach this code: a panic here would be theirs to cause.
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
