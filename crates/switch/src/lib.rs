//! The transport switch: one connection of a peer, split frame by frame over many
//! members, and the members' frames merged into one sequence (Yocum, Anderson, Chase and
//! Vahdat, "Anypoint: Extensible Transport Switching on the Edge", USITS 2003).
//!
//! Lives here: the machine, which receives segments and a time and returns segments to be
//! sent. It has no I/O, clock, thread or randomness, and keeps no payload bytes. Does not
//! live here: sockets, devices, link addresses, and the format of frames, which is
//! `tidewall_wire::acp`. An open connection allocates nothing for a segment while nothing
//! is missing.
//!
//! ```text
//!              split ─► module ─► frame ring, chains, gaps ─► LSN of a member
//! peer (CSN) ─┤                                                           ├─ members
//!              merge ◄─ runs of one member each ◄─────────── LSN of a member
//! ```
//!
//! The switch terminates nothing. The peer receives acknowledgments of what members have
//! acknowledged, members of what the peer has, and each sender repeats its own data.
//! There is one file for each concern:
//!
//! - `switch`: the table, and incoming segments
//! - `handshake`
//! - `split` and `merge`: data
//! - `acknowledge`, `sack`, `window`, `close`
//! - `ends`: members that join and leave
//! - `send`
//! - `ring`, `gaps`, `ranges` and `blocks`: remembered state
//! - `flow`: a connection
//! - `emission` and `gather`: segments to be sent
//! - [`modules`]: the choice of a frame's member
//!
//! Read first: the paper's design (§3 and §4: sequencing, acknowledgments, rate control),
//! RFC 9293, RFC 5681, RFC 2018, RFC 5961, RFC 5382 (timeouts of middleboxes).
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

mod acknowledge;
mod blocks;
mod close;
mod config;
mod counters;
mod emission;
mod ends;
mod flow;
mod gaps;
mod gather;
mod handshake;
mod info;
mod merge;
pub mod modules;
mod ranges;
mod ring;
mod sack;
mod send;
mod sequence;
mod split;
mod switch;
mod window;

pub use config::{Config, ConfigError, MEMBERS_MAX, Member, MemberError, MemberId};
pub use counters::{Counters, MemberCounters};
pub use emission::{Emission, Payload, segments};
pub use flow::Phase;
pub use gather::{Gather, Gathered, append};
pub use info::{EndInfo, FlowInfo};
pub use switch::Switch;
