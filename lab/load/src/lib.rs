//! Load generators: the loads that the experiments, `tidewall load` and `tidewall blast`
//! put on a host.
//!
//! Lives here:
//! - the open-loop blast of UDP datagrams, TCP SYN segments or AAL5 PDUs ([`BlastSpec`])
//!   with its three kinds of sender
//! - calls over UDP and circuits ([`PingSpec`])
//! - requests at a rate that the server cannot slow down ([`SClientSpec`])
//! - connections that do next to nothing ([`IdleSpec`])
//! - the other loads over TCP ([`HttpSpec`], [`ProbeSpec`], [`StreamSpec`])
//! - the loop that paces them all on one thread ([`run()`])
//! - the look-up of the destination's Ethernet address ([`neighbour`])
//!
//! Does not live here: receivers, test beds (that is `tidewall-lab`), and anything that a
//! server needs. The crate keeps no threads: a run uses the caller's thread, its network
//! namespace and nothing else.
//!
//! Read first:
//! - LRP (Druschel & Banga, OSDI 1996) §4 for the purpose of the loads
//! - Banga & Druschel, "Measuring the Capacity of a Web Server" (USITS 1997) on S-clients
//! - RFC 2544 §21 on bursts
//! - RFC 4987 on SYN floods
//! - RFC 9112 §6 on where a response ends
//! - Documentation/networking/af_xdp.rst and Documentation/bpf/bpf_prog_run.rst in the
//!   Linux tree for the two senders
//!
//! ```text
//!  LoadSpec ─► run ─┬─ pacer ─► sender (skb │ frame │ socket) ─► interface
//!                   ├─ s_clients: accounts (no I/O) ◄──► kernel TCP sockets
//!                   ├─ idle ◄──► kernel TCP sockets
//!                   ├─ exchange ◄──► kernel UDP socket, or circuit ─► histogram
//!                   └─ http, stream ◄──► kernel TCP sockets ─► histogram
//! ```
#![deny(unsafe_code)]

mod circuit;
mod dns;
mod exchange;
mod http;
mod idle;
pub mod neighbour;
pub mod pacer;
mod prefix;
#[allow(unsafe_code)]
mod raw_namespace;
mod report;
mod run;
mod s_clients;
mod sender;
mod spec;
mod stream;
mod tcp;
pub mod template;
mod thread;
mod xdp;

pub use prefix::{InvalidPrefix, Prefix};
pub use report::{
    BlastCounts, BlastReport, Distribution, HttpCounts, HttpReport, IdleCounts, IdleReport,
    InterfaceCounters, Latency, LoadReport, Percentile, Phase, PingCounts, PingReport, ProbeReport,
    Progress, SClientCounts, SClientReport, StreamReport, Times,
};
pub use run::{PROGRESS_INTERVAL, run, run_until, run_with_interval};
pub use spec::{
    BlastSpec, Content, DURATION_MAX, FixedExchange, HTTP_CONNECTIONS_MAX, Habit, HttpSpec,
    IDLE_CONNECTIONS_MAX, IdleSpec, LoadSpec, OUTSTANDING_MAX, PAYLOAD_MAX, PingSpec, ProbeSpec,
    RATE_MAX, RateStep, Reuse, S_CLIENT_OPEN_MAX, S_CLIENT_RATE_MAX, SClientSpec, STEPS_MAX,
    SenderKind, SourceOrder, StreamKind, StreamSpec, Wait,
};
pub use xdp::XdpSink;
