//! Virtual circuits without I/O, clocks, threads or randomness. Cells and a time go in,
//! payloads come out. Requests and messages go in, calls and messages come out.
//!
//! Must not live here: sockets, devices, anything that waits, memory without a limit. A
//! cell, a peer or a caller's mistake must not be able to cause a panic.
//!
//! ```text
//! cells, frames ─► reassembly ─► payloads
//! VPI 0, VCI 5 ─► sscop ─► signalling ─► calls ─► exchange ─► calls of another port
//!                                signalling ─► calls ─► who has them
//! payloads ─► ip ─► IPv4 packets
//! packets of a port ─► switch ─► packets of another
//! payloads ─► rate ─► when each may go
//! ```
//!
//! Read first: ITU-T I.363.5 (AAL5), Q.2110 and Q.2130 (the link), Q.2931 and UNI 3.1
//! (calls), and the map of `tidewall_wire::atm`.
#![forbid(unsafe_code)]
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

pub mod calls;
pub mod exchange;
pub mod ip;
pub mod rate;
pub mod reassembly;
pub mod signalling;
pub mod sscop;
pub mod switch;
