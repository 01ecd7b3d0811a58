//! The impairment model of one direction of a link, without I/O. The simulated network
//! and a real bridge between two devices use the same model.
//!
//! ```text
//!     longer than mtu?  queue full?   rate        lost?   delay, jitter, reordering,
//! send ───► gone ─────► dropped ─► transmitter ─► gone ─► duplicates, thinning, pauses ─► receive
//!                       or marked
//! ```
//!
//! A packet is lost on the wire, after the queue, so it has used its share of the rate. A
//! copy is made on the wire, too, and uses none.

use std::collections::VecDeque;
use std::time::Duration;

use crate::random::Random;

/// Impairments of one direction of a link. The default has none: no delay, no limit.
#[derive(Clone, Debug, Default)]
pub struct Impairment {
    /// Bits per second; `None`: a packet takes no time to be sent.
    pub rate: Option<u64>,
    /// Propagation delay.
    pub delay: Duration,
    /// Maximum extra delay of a packet, drawn uniformly. It never causes overtaking.
    pub jitter: Duration,
    /// The packets that are lost on the wire.
    pub loss: Loss,
    /// The packets that are overtaken.
    pub reorder: Reorder,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The queue in front of the transmitter.
    pub queue: Queue,
    /// If packets are close together, only the last one arrives.
    pub thin: Option<Thin>,
    /// At times nothing arrives for a while.
    pub pause: Option<Pause>,
    /// Longer packets, in bytes, are dropped without any report: a path-MTU black hole.
    pub mtu: Option<u32>,
}

/// The packets that are lost on the wire.
#[derive(Clone, Debug, Default)]
pub enum Loss {
    /// No packets.
    #[default]
    None,
    /// Each packet independently.
    Random {
        /// From 0 to 1.
        probability: f64,
    },
    /// In bursts: a Markov chain of two states (Gilbert 1960, Elliott 1963). It begins in
    /// the good state and takes a step before each packet, and additional steps for time
    /// without packets.
    GilbertElliott {
        /// The probability of changing from good to bad.
        to_bad: f64,
        /// The probability of changing from bad to good: bursts last `1 / to_good`
        /// packets on average.
        to_good: f64,
        /// The probability of a loss in the good state.
        loss_good: f64,
        /// The probability of a loss in the bad state.
        loss_bad: f64,
        /// Time without a packet per additional step. With zero there are none, and a
        /// burst outlasts the silence.
        slot: Duration,
    },
    /// These packets, counted from zero as they enter the link.
    Script(Vec<u64>),
}

/// The packets that are overtaken by later ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reorder {
    /// The probability of being held back.
    pub probability: f64,
    /// The maximum time of being held back, drawn uniformly.
    pub delay: Duration,
}

/// The queue in front of the transmitter, first in, first out. It matters only on a link
/// that has a rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    /// Limit of waiting bytes, including the packet being sent; packets beyond it are
    /// dropped (drop-tail). An empty queue accepts any packet. `None`: no limit.
    pub limit: Option<u32>,
    /// Waiting bytes from which on markable packets are marked (a step, RFC 8257 §3.1).
    /// Others wait as before until the queue is full.
    pub mark: Option<u32>,
}

/// A box that thins out acknowledgments, or a link that aggregates them. It holds a
/// packet back, and replaces it with the next one if that arrives in time. It does not
/// know flows; each needs its own.
#[derive(Clone, Copy, Debug)]
pub struct Thin {
    /// At least one of this many packets is kept; one and zero do nothing.
    pub keep_one_of: u32,
    /// The longest time for which a packet waits for others.
    pub within: Duration,
}

/// A path on which, again and again, nothing arrives for a while and then everything at
/// once, like a radio link in a handover. The order is kept.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// Time from the beginning of a pause to that of the next; the first pause begins
    /// this long after zero.
    pub every: Duration,
    /// Length of a pause; less than `every`.
    pub length: Duration,
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ecn {
    /// Not-ECT: congestion can be signalled by dropping only.
    NotCapable,
    /// ECT(0) or ECT(1).
    Capable,
    /// CE.
    Experienced,
}

impl Ecn {
    /// The ECN field of a type of service or traffic class.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            3 => Self::Experienced,
            _ => Self::Capable,
        }
    }

    /// Whether [`Link::send`] may mark it.
    #[must_use]
    pub const fn is_capable(self) -> bool {
        !matches!(self, Self::NotCapable)
    }

    /// A traffic class with CE set.
    #[must_use]
    pub const fn mark(traffic_class: u8) -> u8 {
        traffic_class | 3
    }
}

/// The counters of a link so far. At any time `sent + duplicated = delivered + lost +
/// oversized + dropped + in flight`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets that entered.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were received.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Lost on the wire, or thinned out.
    pub lost: u64,
    /// Longer than the path MTU.
    pub oversized: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Held back so that others could overtake them.
    pub reordered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Marked congestion experienced.
    pub marked: u64,
}

/// One packet on the wire.
#[derive(Clone, Debug)]
struct Flying<P> {
    at: Duration,
    bytes: u32,
    marked: bool,
    packet: P,
}

/// Steps of [`Loss::GilbertElliott`] before one packet at most.
const STEPS_MAX: u128 = 10_000;

/// One direction of a link. Times are of the caller's clock and should not go backwards;
/// an earlier time counts as the last one.
#[derive(Clone, Debug)]
pub struct Link<P> {
    impairment: Impairment,
    /// One generator per impairment: turning one on does not change the draws of the
    /// others.
    losses: Random,
    delays: Random,
    copies: Random,
    jitters: Random,
    /// The state of [`Loss::GilbertElliott`].
    bad: bool,
    /// When it last took a step.
    stepped: Duration,
    now: Duration,
    /// When the transmitter will have sent everything that waits.
    free: Duration,
    /// Packets that wait or are being sent: when the last bit leaves, and the bytes.
    waiting: VecDeque<(Duration, u32)>,
    waiting_bytes: u64,
    /// Arrival of the last packet that was not held back to be overtaken.
    last: Duration,
    /// Consecutive packets of which [`Thin`] has kept the last one, and how long it may
    /// hold that.
    merged: u32,
    held_until: Duration,
    /// By arrival; those that arrive together are in the order of entry.
    flying: VecDeque<Flying<P>>,
    counters: Counters,
}

impl<P: Clone> Link<P> {
    /// Creates an idle link. Two links with the same seed do the same to the same
    /// packets.
    #[must_use]
    pub fn new(mut impairment: Impairment, seed: u64) -> Self {
        if let Loss::Script(indexes) = &mut impairment.loss {
            indexes.sort_unstable();
        }
        let mut random = Random::new(seed);
        Self {
            impairment,
            losses: random.fork(),
            delays: random.fork(),
            copies: random.fork(),
            jitters: random.fork(),
            bad: false,
            stepped: Duration::ZERO,
            now: Duration::ZERO,
            free: Duration::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last: Duration::ZERO,
            merged: 0,
            held_until: Duration::ZERO,
            flying: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Sends a packet of `bytes` as on the wire, from the IP header on. With
    /// `ecn_capable` it may be marked to signal congestion.
    pub fn send(&mut self, now: Duration, bytes: u32, ecn_capable: bool, packet: P) {
        self.advance(now);
        let index = self.counters.sent;
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(bytes);
        if self.impairment.mtu.is_some_and(|mtu| bytes > mtu) {
            self.counters.oversized += 1;
            return;
        }
        let waiting = self.waiting_bytes;
        let over = |limit: Option<u32>, held: u64| limit.is_some_and(|limit| held > limit.into());
        if waiting > 0 && over(self.impairment.queue.limit, waiting + u64::from(bytes)) {
            self.counters.dropped += 1;
            return;
        }
        let marked = ecn_capable
            && self
                .impairment
                .queue
                .mark
                .is_some_and(|mark| waiting >= mark.into());
        self.counters.marked += u64::from(marked);
        let sent = self.transmit(bytes);
        if self.is_lost(index) {
            self.counters.lost += 1;
            return;
        }
        if self.copies.chance(self.impairment.duplicate) {
            self.counters.duplicated += 1;
            self.fly(sent, bytes, marked, packet.clone());
        }
        self.fly(sent, bytes, marked, packet);
    }

    /// When the next packet arrives, if one is in transit.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.flying.front().map(|flying| flying.at)
    }

    /// The next packet that has arrived by `now`, and whether it was marked congestion
    /// experienced on this link.
    pub fn receive(&mut self, now: Duration) -> Option<(P, bool)> {
        self.advance(now);
        if self.flying.front()?.at > self.now {
            return None;
        }
        let flying = self.flying.pop_front()?;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += u64::from(flying.bytes);
        Some((flying.packet, flying.marked))
    }

    /// The counters so far.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Packets that were sent and neither received nor lost yet.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// How long a packet that entered now would wait for the transmitter.
    pub fn queueing_delay(&self, now: Duration) -> Duration {
        self.free.saturating_sub(now.max(self.now))
    }

    /// Bytes that wait for the transmitter or are being sent.
    #[must_use]
    pub fn queued(&mut self, now: Duration) -> u64 {
        self.advance(now);
        self.waiting_bytes
    }

    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(&(leaves, bytes)) = self.waiting.front()
            && leaves <= self.now
        {
            self.waiting.pop_front();
            self.waiting_bytes -= u64::from(bytes);
        }
    }

    /// Queues a packet; returns when its last bit leaves.
    fn transmit(&mut self, bytes: u32) -> Duration {
        let Some(rate) = self.impairment.rate.filter(|&rate| rate > 0) else {
            return self.now;
        };
        // Rounded up: the rate is never exceeded.
        let nanoseconds = (u128::from(bytes) * 8_000_000_000).div_ceil(rate.into());
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        self.free = self
            .free
            .max(self.now)
            .saturating_add(Duration::from_nanos(nanoseconds));
        self.waiting.push_back((self.free, bytes));
        self.waiting_bytes += u64::from(bytes);
        self.free
    }

    fn is_lost(&mut self, index: u64) -> bool {
        match &self.impairment.loss {
            Loss::None => false,
            Loss::Random { probability } => self.losses.chance(*probability),
            &Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
                slot,
            } => {
                let silence = self.now.saturating_sub(self.stepped).as_nanos();
                self.stepped = self.now;
                let slots = silence.checked_div(slot.as_nanos()).unwrap_or(0);
                // After that many steps the chain does not depend on its start any more.
                for _ in 0..slots.clamp(1, STEPS_MAX) {
                    let changes = if self.bad { to_good } else { to_bad };
                    self.bad ^= self.losses.chance(changes);
                }
                let loss = if self.bad { loss_bad } else { loss_good };
                self.losses.chance(loss)
            }
            Loss::Script(indexes) => indexes.binary_search(&index).is_ok(),
        }
    }

    fn fly(&mut self, sent: Duration, bytes: u32, marked: bool, packet: P) {
        let mut at = sent.saturating_add(self.impairment.delay);
        let jitter = self.impairment.jitter;
        if jitter > Duration::ZERO {
            at = at.saturating_add(up_to(&mut self.jitters, jitter));
        }
        at = at.max(self.last);
        self.last = at;
        let Reorder { probability, delay } = self.impairment.reorder;
        if self.delays.chance(probability) {
            self.counters.reordered += 1;
            at = at.saturating_add(up_to(&mut self.delays, delay));
        }
        if let Some(thin) = self.impairment.thin.filter(|thin| thin.keep_one_of > 1) {
            let waits = self.flying.back().is_some_and(|last| last.at > at);
            if waits && self.merged < thin.keep_one_of {
                self.flying.pop_back();
                self.counters.lost += 1;
                self.merged += 1;
            } else {
                self.merged = 1;
            }
            if self.merged == 1 {
                self.held_until = at.saturating_add(thin.within);
            }
            if self.merged < thin.keep_one_of {
                at = at.max(self.held_until);
            }
        }
        if let Some(pause) = self.impairment.pause {
            at = pause.after(at);
        }
        let flying = Flying {
            at,
            bytes,
            marked,
            packet,
        };
        if self.flying.back().is_none_or(|last| last.at <= at) {
            self.flying.push_back(flying);
        } else {
            let place = self.flying.partition_point(|other| other.at <= at);
            self.flying.insert(place, flying);
        }
    }
}

/// A random duration up to `most`, both ends included.
fn up_to(random: &mut Random, most: Duration) -> Duration {
    let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.below(most.saturating_add(1)))
}

impl Pause {
    /// Actual arrival of a packet that would arrive at `at` without pauses.
    fn after(self, at: Duration) -> Duration {
        let every = self.every.as_nanos();
        if every == 0 || at < self.every {
            return at;
        }
        let since = Duration::from_nanos(u64::try_from(at.as_nanos() % every).unwrap_or(0));
        at.saturating_add(self.length.saturating_sub(since))
    }
}
