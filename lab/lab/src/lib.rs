//! The lab: the papers' experiments, run for real and judged.
//!
//! Lives here:
//! - test beds in network namespaces ([`testbed`])
//! - the worker processes inside them ([`worker`])
//! - the experiments, one file each ([`experiments`])
//! - their results, claims, plots and report ([`result`], [`plot`], [`report()`])
//!
//! Does not live here: anything under test. Both stacks run the same service code of
//! `tidewall-service` under the same load of `tidewall-load`.
//!
//! Read first: LRP (Druschel & Banga, OSDI 1996) §4; docs/decisions/index.md on what a
//! veth pair can and cannot show.
//!
//! ```text
//!  run ─► experiment ─► sweep ─► bench ─┬─ service worker (server's namespace, CPU 1) ─► counters
//!                         │             └─ load worker (client's namespace, CPU 0) ◄───────┘
//!                         └─► medians ─► series ─► claims ─► JSON, SVG, HTML
//! ```
#![deny(unsafe_code)]

mod bench;
mod bound;
pub mod bridge;
mod capacity;
mod command;
mod demo;
pub mod environment;
pub mod experiments;
mod governor;
mod interrupt;
pub mod plot;
mod profile;
pub mod progress;
mod report;
pub mod result;
mod runner;
mod sweep;
mod system;
mod tcp;
pub mod testbed;
pub mod tune;
mod verdict;
pub mod worker;

pub use bound::{Bound, InvalidBound};
pub use capacity::Capacity;
pub use demo::demo;
pub use interrupt::Interrupted;
pub use report::{Comparison, against, html, markdown, report};
pub use runner::{Options, Outcome, exit_code, list, no_experiment, run};
pub use system::System;
pub use testbed::privilege::Missing;
pub use worker::worker_main;
