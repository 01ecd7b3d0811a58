//! A network on a virtual clock, for judging TCP on paths that are bad.
//!
//! What lives here: what a link does to packets ([`link`]), hosts with the real
//! engines of `tidewall-protocol` on such links ([`network`]), and tables of what
//! comes of it (`tables/`). What may not: clocks, sockets, threads, and any
//! randomness but [`random`]'s, so that a seed gives the same outcome on every
//! machine.
//!
//! ```text
//! Application ─► engine ─► packets ─► Link ─► … ─► engine ─► Application
//!                            (rate, delay, queue, loss, reordering, ECN, …)
//! ```
//!
//! Read first: RFC 5166 (metrics for congestion control), RFC 8867 §4 and RFC
//! 5033 §3 (what to test it with), Gilbert 1960 and Elliott 1963 (bursts of
//! losses), Mathis et al. 1997 (what NewReno can get).
//!
//! # The tables
//!
//! `cargo test -p tidewall-simulator` computes every table anew and compares it
//! with the kept one; it fails with the lines that differ. When the change is
//! meant, `TIDEWALL_UPDATE_TABLES=1 cargo test -p tidewall-simulator` writes
//! them, and the difference is part of the review: a better number somewhere is
//! the reason for a change of congestion control, a worse one elsewhere its price.
//!
//! Each row is a path, each group of columns an engine with its congestion
//! control, each number a median over seeds, the same for every engine. Beyond
//! its own notes, look for this:
//!
//! - `throughput`: goodput near 100 without loss; with loss no less than the law
//!   says; no more segments retransmitted than were lost.
//! - `reordering`, `pauses`: nothing is lost here, so whatever is retransmitted
//!   beyond what the queue dropped is a mistake.
//! - `bursts`, `tail_loss`, `acknowledgments`: timeouts where a fast
//!   retransmission or a probe would have done.
//! - `completion`, `mixed`: the 99th percentile, which is made of timeouts.
//! - `fairness`, `rivals`: shares near `100 / flows`.
//! - `queue`, `ecn`, `pacing`: how long packets wait for how much goodput.
//! - `windows`: flows that stand although the window would allow more.
//! - `black_hole`: whether a path that swallows long packets is found out.
//! - `device`: that bursts and refusals change next to nothing.
//!
//! To see why, run one scenario: `cargo run -p tidewall-simulator --example
//! trace`.
#![forbid(unsafe_code)]

pub mod link;
pub mod network;
pub mod random;
