//! The specification of a bridge, and its report.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewall_simulator::link::{Counters, Impairment, Loss, Queue, Reorder};

/// A bridge to be built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Interface of the left side.
    pub left: String,
    /// Interfaces of the right side. Frames from the left go to the one behind which the
    /// destination was seen; they do not reach each other.
    pub right: Vec<String>,
    /// Impairment of packets from the left.
    pub from_left: Impair,
    /// Impairment of packets from the right.
    pub from_right: Impair,
    /// Which packets share a rate and a queue.
    #[serde(default)]
    pub sharing: Sharing,
    /// Seed of the random numbers: the same seed treats packets alike.
    pub seed: u64,
}

/// A side of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The single interface.
    Left,
    /// The other interface, or several.
    Right,
}

/// Which packets share a rate, a queue, and random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All packets: a bottleneck.
    #[default]
    All,
    /// The packets of a flow (both addresses and ports). Each flow has its own path,
    /// whose random numbers depend on the seed and the port of its left end.
    Flow,
}

/// The impairment of one direction. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Impair {
    /// Bits per second, of IP packets; `None`: no limit.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Propagation delay, µs.
    #[serde(default)]
    pub delay_us: u64,
    /// Largest variation of the delay, µs; the order is kept.
    #[serde(default)]
    pub jitter_us: u64,
    /// Probability of being lost, 0 to 1.
    #[serde(default)]
    pub loss: f64,
    /// Probability of being held back, so that later packets overtake.
    #[serde(default)]
    pub reorder: f64,
    /// Longest time held back, µs.
    #[serde(default)]
    pub reorder_us: u64,
    /// Probability of arriving twice.
    #[serde(default)]
    pub duplicate: f64,
    /// Bytes that may queue for the rate; `None`: no limit.
    #[serde(default)]
    pub queue: Option<u32>,
    /// Queued bytes above which packets of ECN-capable senders are marked.
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

/// The counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets that arrived.
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

/// The results of a bridge, and its quality.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How long it ran.
    pub seconds: f64,
    /// Packets from the left.
    pub from_left: DirectionReport,
    /// Packets from the right.
    pub from_right: DirectionReport,
    /// Flows with their own path; 1 if all share one.
    pub flows: u64,
    /// Frames that passed at once: ARP, neighbour discovery, anything but IP.
    pub passed: u64,
    /// Frames that were not forwarded because of an offload, which a wire could not
    /// carry: longer than the MTU, without a checksum, with a VLAN tag removed.
    pub refused: u64,
    /// Frames that the bridge lost itself: its socket was full.
    pub not_taken: u64,
    /// Frames that the bridge lost itself: the other side had no room.
    pub not_sent: u64,
    /// Delay of deliveries beyond their due time, ns: the median.
    pub lag_p50_ns: u64,
    /// The 99th percentile.
    pub lag_p99_ns: u64,
    /// The latest.
    pub lag_max_ns: u64,
    /// Share of a processor that it used.
    pub processor: f64,
    /// It ran ahead of all ordinary threads (SCHED_FIFO).
    pub real_time: bool,
}

impl Report {
    /// Returns the frames that were lost and should not have been.
    pub fn lost_itself(&self) -> u64 {
        self.refused + self.not_taken + self.not_sent
    }
}
