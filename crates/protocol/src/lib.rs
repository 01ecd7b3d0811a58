//! Protocol engines without I/O, clocks, threads or randomness. Bytes and a time go in;
//! values come out.
//!
//! Does not live here: sockets, channels, devices, anything that waits. No packet, peer
//! or mistake of a caller may reach a panic. Nothing is allocated on the path of a whole
//! datagram (reassembly allocates, within its limits).
//!
//! ```text
//! first and later fragments ─► ip::reassembly ─┐
//! whole datagrams ─────────────────────────────┴─► udp::input ─► source, payload
//! ICMP errors ──────────────────────────────────► icmp::error ─► flow, errno, MTU
//! payload, addresses ───────────────────────────► udp::output ─► an Ethernet frame
//! TCP segments ─► tcp::input ─► tcp::Connection ─► tcp::output ─► Ethernet frames
//! ```
//!
//! Each packet that is dropped here has a cause in [`DropReason`]. Read first: RFC 1122
//! §3 and §4.1, RFC 8200 §4.5, RFC 5722, RFC 6946, RFC 8900 (why fragments are
//! dangerous), RFC 768, RFC 5927 (attacks by ICMP), RFC 9293 (`tcp` names more).
#![forbid(unsafe_code)]
// Frames and peers reach this code: they could cause any panic in it.
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

mod dropped;
pub mod errno;
pub mod icmp;
pub mod ip;
mod options;
pub mod tcp;
pub mod timer;
pub mod udp;

pub use dropped::DropReason;
pub use options::InputOptions;
