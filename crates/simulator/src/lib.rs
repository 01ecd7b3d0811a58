//! A network on a virtual clock, for judging TCP on paths that are bad.
//!
//! What lives here: what a link does to packets ([`link`]). What may not:
//! clocks, sockets, threads, and any randomness but [`random`]'s, so that a seed
//! gives the same outcome on every machine.
//!
//! Read first: RFC 5166 (metrics for congestion control), RFC 8867 §4 and RFC
//! 5033 §3 (what to test it with), Gilbert 1960 and Elliott 1963 (bursts of
//! losses).
#![forbid(unsafe_code)]

pub mod link;
pub mod network;
pub mod random;
