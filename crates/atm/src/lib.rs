//! Virtual circuits without I/O, clocks, threads or randomness: cells and a time go in,
//! payloads come out.
//!
//! What may not live here: sockets, devices, anything that waits; a panic that a cell, a
//! peer or a caller's mistake can reach; memory without a limit.
//!
//! Read first: ITU-T I.363.5 (AAL5), and the map of `tidewall_wire::atm`.
#![forbid(unsafe_code)]

pub mod reassembly;
pub mod sscop;
