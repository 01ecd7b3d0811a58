//! What a link does to packets, one direction: the impairment model, without
//! I/O. The simulated network and a real bridge between two devices use the
//! same.
//!
//! ```text
//!        longer than mtu?  queue full?      rate        lost?   delay, jitter, reordering,
//! send ──────► gone ──────► dropped ──► transmitter ──► gone ──► duplicates, thinning, pauses ──► receive
//!                           or marked
//! ```
//!
//! A packet is lost on the wire, after the queue: it has used its share of the
//! rate. A copy is made on the wire, too, and uses none.

use std::collections::VecDeque;
use std::time::Duration;

use crate::random::Random;

/// What a link does to packets, one direction. The default does nothing: no
/// delay, no limit.
#[derive(Clone, Debug, Default)]
pub struct Impairment {
    /// Bits a second; none: a packet takes no time to be sent.
    pub rate: Option<u64>,
    /// Propagation.
    pub delay: Duration,
    /// How much longer a packet may take; how much is drawn evenly. None
    /// overtakes another for that.
    pub jitter: Duration,
    /// Which packets vanish on the wire.
    pub loss: Loss,
    /// Which packets are overtaken.
    pub reorder: Reorder,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// What waits for the transmitter.
    pub queue: Queue,
    /// Only the last of packets close together arrives.
    pub thin: Option<Thin>,
    /// Nothing arrives for a while, now and then.
    pub pause: Option<Pause>,
    /// Packets of more bytes vanish, and nobody reports it: a path-MTU black hole.
    pub mtu: Option<u32>,
}

/// Which packets vanish on the wire.
#[derive(Clone, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each by itself.
    Random {
        /// From 0 to 1.
        probability: f64,
    },
    /// In bursts: a Markov chain of two states (Gilbert 1960, Elliott 1963). It
    /// begins in the good state and takes a step before each packet, and others
    /// for the time that went by without one.
    GilbertElliott {
        /// The probability of going from good to bad.
        to_bad: f64,
        /// From bad to good: bursts last `1 / to_good` packets on average.
        to_good: f64,
        /// Of a loss in the good state.
        loss_good: f64,
        /// Of a loss in the bad state.
        loss_bad: f64,
        /// How long without a packet makes a step more; zero: none does, and a
        /// burst waits for the silent side.
        slot: Duration,
    },
    /// These, counted from zero as they enter the link.
    Script(Vec<u64>),
}

/// Which packets are overtaken by those behind them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reorder {
    /// The probability of being held back.
    pub probability: f64,
    /// For how long at most; how long is drawn evenly.
    pub delay: Duration,
}

/// What waits for the transmitter, first in, first out. It matters only on a
/// link that has a rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    /// Bytes that may wait, the packet that is being sent included; what comes
    /// then is dropped (drop-tail). An empty queue takes any packet. None: no
    /// limit.
    pub limit: Option<u32>,
    /// Bytes waiting from which on packets that can be marked are (a step, RFC
    /// 8257 §3.1). Those that cannot wait like the others until the queue is
    /// full.
    pub mark: Option<u32>,
}

/// A box that thins acknowledgments out, or a link that aggregates them: it holds
/// a packet back, and forgets it for the next if that comes in time. It knows no
/// flows; give each its own.
#[derive(Clone, Copy, Debug)]
pub struct Thin {
    /// Of how many one is left at least; one and zero do nothing.
    pub keep_one_of: u32,
    /// How long a packet waits for others at most.
    pub within: Duration,
}

/// A path on which nothing arrives for a while, again and again, and then
/// everything at once: a radio link that is handed over. The order is kept.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// From the beginning of a pause to that of the next; the first begins so
    /// long after zero.
    pub every: Duration,
    /// How long one lasts; less than `every`.
    pub length: Duration,
}

/// What the ECN field of an IP header says (RFC 3168 §5).
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
    /// Of a type of service or traffic class.
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

/// What happened on a link so far. At any time
/// `sent + duplicated = delivered + lost + oversized + dropped + in flight`.
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

/// One direction of a link. Times are of the caller's clock and should not go
/// backwards; one that does is taken for the last.
#[derive(Clone, Debug)]
pub struct Link<P> {
    impairment: Impairment,
    /// One generator a subject: turning one impairment on leaves the others'
    /// luck as it was.
    losses: Random,
    delays: Random,
    copies: Random,
    jitters: Random,
    /// The state of [`Loss::GilbertElliott`].
    bad: bool,
    /// When it last took a step.
    stepped: Duration,
    now: Duration,
    /// When the transmitter has sent everything that waits.
    free: Duration,
    /// What waits or is being sent: when its last bit leaves, and its bytes.
    waiting: VecDeque<(Duration, u32)>,
    waiting_bytes: u64,
    /// When the last packet arrives that was not held back to be overtaken.
    last: Duration,
    /// Packets in a row of which [`Thin`] has left the one that arrives last, and
    /// how long it may hold that.
    merged: u32,
    held_until: Duration,
    /// By arrival; of those that arrive together, in the order they entered.
    flying: VecDeque<Flying<P>>,
    counters: Counters,
}

impl<P: Clone> Link<P> {
    /// An idle link. Two of the same seed do the same to the same packets.
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

    /// A packet enters, of so many `bytes` as on the wire, from the IP header
    /// on. `ecn_capable`: it may be marked to tell of congestion.
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

    /// When the next packet arrives, if one is under way.
    pub fn next_arrival(&self) -> Option<Duration> {
        self.flying.front().map(|flying| flying.at)
    }

    /// The next packet that has arrived by `now`, and whether it was marked
    /// congestion experienced here.
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

    /// What happened so far.
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

    /// Queues a packet; when its last bit leaves.
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
                // After so many the chain has forgotten where it began.
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

/// Any length up to `most`, both included.
fn up_to(random: &mut Random, most: Duration) -> Duration {
    let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.below(most.saturating_add(1)))
}

impl Pause {
    /// When something arrives that would arrive at `at` without pauses.
    fn after(self, at: Duration) -> Duration {
        let every = self.every.as_nanos();
        if every == 0 || at < self.every {
            return at;
        }
        let since = Duration::from_nanos(u64::try_from(at.as_nanos() % every).unwrap_or(0));
        at.saturating_add(self.length.saturating_sub(since))
    }
}
