//! What a bridge is to do, and what it reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewall_simulator::link::{Counters, Impairment, Loss, Queue, Reorder};

/// A bridge to be built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Interface of the left side.
    pub left: String,
    /// Interfaces of the right side. What the left sends goes to the one behind
    /// which the destination was seen; they do not reach each other.
    pub right: Vec<String>,
    /// What becomes of packets from the left.
    pub from_left: Impair,
    /// What becomes of packets from the right.
    pub from_right: Impair,
    /// Who shares a rate and a queue.
    #[serde(default)]
    pub sharing: Sharing,
    /// The same seed gives the same luck.
    pub seed: u64,
}

/// A side of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one interface.
    Left,
    /// The other, or others.
    Right,
}

/// Who shares a rate, a queue, and the luck of the draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All packets: a bottleneck.
    #[default]
    All,
    /// The packets of a flow (both addresses and ports): each has a path of its
    /// own, whose luck depends on the seed and the port of its left end.
    Flow,
}

/// What one direction does to packets. The default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Impair {
    /// Bits a second, of IP packets; `None`: no limit.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Propagation, µs.
    #[serde(default)]
    pub delay_us: u64,
    /// By how much more it varies at most, µs; the order is kept.
    #[serde(default)]
    pub jitter_us: u64,
    /// Probability of being lost, 0 to 1.
    #[serde(default)]
    pub loss: f64,
    /// Probability of being held back, so that later packets overtake.
    #[serde(default)]
    pub reorder: f64,
    /// For how long at most, µs.
    #[serde(default)]
    pub reorder_us: u64,
    /// Probability of arriving twice.
    #[serde(default)]
    pub duplicate: f64,
    /// Bytes that may wait for the rate; `None`: no limit.
    #[serde(default)]
    pub queue: Option<u32>,
    /// Bytes waiting from which on packets of ECN-capable senders are marked.
    #[serde(default)]
    pub mark: Option<u32>,
}

impl Impair {
    pub(super) fn impairment(&self) -> Impairment {
        Impairment {
            rate: self.rate,
            delay: Duration::from_micros(self.delay_us),
            jitter: Duration::from_micros(self.jitter_us),
            loss: if self.loss > 0.0 {
                Loss::Random {
                    probability: self.loss,
                }
            } else {
                Loss::None
            },
            reorder: Reorder {
                probability: self.reorder,
                delay: Duration::from_micros(self.reorder_us),
            },
            duplicate: self.duplicate,
            queue: Queue {
                limit: self.queue,
                mark: self.mark,
            },
            ..Impairment::default()
        }
    }
}

/// What happened to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets that came.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// Packets that were delivered, copies included.
    pub delivered: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Held back.
    pub reordered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Marked congestion experienced.
    pub marked: u64,
}

impl DirectionReport {
    pub(super) fn of(counters: &Counters) -> Self {
        DirectionReport {
            packets: counters.sent,
            bytes: counters.sent_bytes,
            delivered: counters.delivered,
            lost: counters.lost,
            dropped: counters.dropped,
            reordered: counters.reordered,
            duplicated: counters.duplicated,
            marked: counters.marked,
        }
    }
}

/// What a bridge did, and how well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How long it ran.
    pub seconds: f64,
    /// Packets from the left.
    pub from_left: DirectionReport,
    /// Packets from the right.
    pub from_right: DirectionReport,
    /// Flows that had a path of their own; 1 where all share one.
    pub flows: u64,
    /// Frames that passed at once: ARP, neighbour discovery, what is not IP.
    pub passed: u64,
    /// Frames that were not forwarded because an offload made them no packets
    /// of a wire: longer than the MTU, without a checksum, with a VLAN tag taken
    /// off.
    pub refused: u64,
    /// Frames that the bridge lost itself: its socket was full.
    pub not_taken: u64,
    /// Frames that the bridge lost itself: the other side had no room.
    pub not_sent: u64,
    /// How late packets were delivered, ns: the median.
    pub lag_p50_ns: u64,
    /// The 99th percentile.
    pub lag_p99_ns: u64,
    /// The latest.
    pub lag_max_ns: u64,
    /// Share of a processor that it took.
    pub processor: f64,
    /// It ran ahead of all ordinary threads (SCHED_FIFO).
    pub real_time: bool,
}

impl Report {
    /// Frames that were lost and should not have been.
    pub fn lost_itself(&self) -> u64 {
        self.refused + self.not_taken + self.not_sent
    }
}
