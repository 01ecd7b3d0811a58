//! Virtual circuits without I/O, clocks, threads or randomness: cells and a time go in,
//! payloads come out; requests and messages go in, calls and messages come out.
//!
//! What may not live here: sockets, devices, anything that waits; a panic that a cell, a
//! peer or a caller's mistake can reach; memory without a limit.
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
//! Read first: ITU-T I.363.5 (AAL5), Q.2110 and Q.2130 (the link), Q.2931 and UNI 3.1 (calls),
//! and the map of `tidewall_wire::atm`.
#![forbid(unsafe_code)]
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

pub mod calls;
pub mod exchange;
pub mod ip;
pub mod rate;
pub mod reassembly;
pub mod signalling;
pub mod sscop;
pub mod switch;
