//! A network on a virtual clock, for judging TCP on bad paths.
//!
//! Lives here:
//! - the impairments of a link ([`link`]);
//! - hosts with the real engines of `tidewall-protocol` on such links ([`network`]);
//! - tables of the results (`tables/`).
//!
//! Does not live here: clocks, sockets, threads, and any randomness but [`random`]'s, so
//! that a seed gives the same result on every machine.
//!
//! ```text
//! Application ─► engine ─► packets ─► Link ─► … ─► engine ─► Application
//!                            (rate, delay, queue, loss, reordering, ECN, …)
//! ```
//!
//! Read first: RFC 5166 (metrics for congestion control), RFC 8867 §4 and RFC 5033 §3
//! (what to test it with), Gilbert 1960 and Elliott 1963 (bursts of losses), Mathis et
//! al. 1997 (what NewReno can achieve).
//!
//! # The tables
//!
//! `cargo test -p tidewall-simulator` computes every table again and compares it with the
//! stored one; it fails with the lines that differ. If the change is intended,
//! `TIDEWALL_UPDATE_TABLES=1 cargo test -p tidewall-simulator` writes the tables, and the
//! difference is part of the review. A better number somewhere is the reason for a change
//! of congestion control; a worse one elsewhere is its price.
//!
//! Each row is a path. Each group of columns is an engine with its congestion control.
//! Each number is a median over seeds, the same for every engine. Beyond the notes of
//! each table, look for this:
//!
//! - `throughput`: goodput near 100 without loss; with loss at least what the law
//!   predicts; no more segments retransmitted than were lost.
//! - `reordering`, `pauses`: nothing is lost here, so any retransmission beyond what the
//!   queue dropped is a mistake.
//! - `bursts`, `tail_loss`, `acknowledgments`: timeouts where a fast retransmission or a
//!   probe would have sufficed.
//! - `completion`, `mixed`: the 99th percentile, which consists of timeouts.
//! - `fairness`, `rivals`: shares near `100 / flows`.
//! - `queue`, `ecn`, `pacing`: how long packets wait, and for how much goodput.
//! - `windows`: flows that stall although the window would permit more.
//! - `black_hole`: whether a path that silently drops long packets is detected.
//! - `device`: bursts and refusals should change almost nothing.
//!
//! To find the cause, run one scenario: `cargo run -p tidewall-simulator --example
//! trace`.
#![forbid(unsafe_code)]

pub mod link;
pub mod network;
pub mod random;
