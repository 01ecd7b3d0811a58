//! Load generators: what the experiments and `tidewall blast` throw at a host.
//!
//! Lives here: the open-loop UDP blast ([`BlastSpec`]) with its three kinds of
//! sender, the closed-loop request/response client ([`PingSpec`]), their pacing
//! on one thread ([`run()`]), and the look-up of the destination's Ethernet
//! address ([`neighbour`]).
//! Does not live here: receivers, test beds (that is `tidewall-lab`), and
//! anything that a server needs. No threads are kept: a run uses the caller's
//! thread, its network namespace and nothing else.
//!
//! Read first: LRP (Druschel & Banga, OSDI 1996) §4 for what the loads are for;
//! RFC 2544 §21 on bursts; Documentation/networking/af_xdp.rst and
//! Documentation/bpf/bpf_prog_run.rst in the Linux tree for the two senders.
//!
//! ```text
//!  LoadSpec ─► run ─┬─ pacer ─► sender (skb │ frame │ socket) ─► interface
//!                   └─ exchange ◄──► kernel UDP socket ─► histogram
//! ```
#![deny(unsafe_code)]

mod exchange;
pub mod neighbour;
mod netlink;
pub mod pacer;
mod prefix;
#[allow(unsafe_code)]
mod raw_bpf;
#[allow(unsafe_code)]
mod raw_socket;
#[allow(unsafe_code)]
mod raw_thread;
mod report;
mod run;
mod sender;
mod spec;
pub mod template;

pub use prefix::{InvalidPrefix, Prefix};
pub use report::{
    BlastCounts, BlastReport, InterfaceCounters, Latency, LoadReport, Phase, PingCounts,
    PingReport, Progress,
};
pub use run::{PROGRESS_INTERVAL, run, run_until, run_with_interval};
pub use spec::{
    BlastSpec, DURATION_MAX, LoadSpec, OUTSTANDING_MAX, PAYLOAD_MAX, PingSpec, RATE_MAX, RateStep,
    STEPS_MAX, SenderKind, Wait,
};
