//! One direction of the wire: what happens to a frame between two devices.

use std::collections::VecDeque;
use std::time::Duration;

use super::Filter;
use super::config::Impairments;
use super::steering::scatter;

/// What became of the frames sent in one direction. Each frame sent is counted
/// once in `sent`; it arrives, or one of `filtered`, `lost` and `buffer_full`
/// counts it. Each copy in `duplicated` is one more that arrives or is counted
/// in `buffer_full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames put on the wire.
    pub sent: u64,
    /// Not put on the wire: shorter than an Ethernet header, longer than the
    /// MTU allows, or an offload request that does not fit the frame.
    pub invalid: u64,
    /// Lost by the filter.
    pub filtered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames held back so that others overtake them.
    pub reordered: u64,
    /// Dropped because too many were waiting for the wire.
    pub buffer_full: u64,
}

/// A frame held back.
struct Held {
    /// Frames that have yet to overtake it.
    overtakers: u32,
    /// When it goes on anyway.
    deadline: Duration,
    bytes: Vec<u8>,
}

/// A frame and when it reaches the other end.
pub(super) struct Arrival {
    pub time: Duration,
    pub bytes: Vec<u8>,
}

/// One direction of the wire.
pub(super) struct Wire {
    pub impairments: Impairments,
    pub counters: WireCounters,
    filter: Option<(u64, Box<Filter>)>,
    random: u64,
    held: VecDeque<Held>,
    /// When the frames that wait for the wire will have left it, ascending.
    departures: VecDeque<Duration>,
}

impl Wire {
    pub(super) fn new(impairments: Impairments, seed: u64) -> Self {
        Wire {
            impairments,
            counters: WireCounters::default(),
            filter: None,
            random: seed,
            held: VecDeque::new(),
            departures: VecDeque::new(),
        }
    }

    pub(super) fn set_filter(&mut self, filter: Option<Box<Filter>>) {
        self.filter = filter.map(|filter| (0, filter));
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn draw(&mut self) -> u64 {
        let drawn = scatter(self.random);
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        drawn
    }

    fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: every value exact in an f64, and always below 1.
        ((self.draw() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Sends a frame at `now`. Pushes what will arrive because of it; returns
    /// false when it was lost.
    pub(super) fn send(
        &mut self,
        now: Duration,
        mut bytes: Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) -> bool {
        self.counters.sent += 1;
        // Drawn before any is looked at, so that changing one probability does
        // not change what else happens to later frames.
        let loss = self.chance(self.impairments.loss);
        let duplicate = self.chance(self.impairments.duplicate);
        let corrupt = self.chance(self.impairments.corrupt);
        let reorder = self.chance(self.impairments.reorder);
        let bit = self.draw();
        if let Some((number, filter)) = &mut self.filter {
            let passes = filter(*number, &bytes);
            *number += 1;
            if !passes {
                self.counters.filtered += 1;
                return false;
            }
        }
        if loss {
            self.counters.lost += 1;
            return false;
        }
        let copy = duplicate.then(|| bytes.clone());
        if corrupt {
            let bit = bit % (bytes.len().max(1) as u64 * 8);
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
                self.counters.corrupted += 1;
            }
        }
        let before = self.held.len();
        if reorder {
            self.counters.reordered += 1;
            self.held.push_back(Held {
                overtakers: self.impairments.reorder_by,
                deadline: now.saturating_add(self.impairments.reorder_hold),
                bytes,
            });
        } else {
            self.carry(now, bytes, arrivals);
            self.overtake(now, before, arrivals);
        }
        if let Some(copy) = copy {
            self.counters.duplicated += 1;
            self.carry(now, copy, arrivals);
        }
        true
    }

    /// A frame passed the first `count` held ones: lets those go that enough
    /// have overtaken.
    fn overtake(&mut self, now: Duration, count: usize, arrivals: &mut Vec<Arrival>) {
        for held in self.held.iter_mut().take(count) {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        self.release(now, |held| held.overtakers == 0, arrivals);
    }

    fn release(&mut self, now: Duration, due: impl Fn(&Held) -> bool, arrivals: &mut Vec<Arrival>) {
        let mut index = 0;
        while let Some(held) = self.held.get(index) {
            if !due(held) {
                index += 1;
            } else if let Some(held) = self.held.remove(index) {
                self.carry(now, held.bytes, arrivals);
            }
        }
    }

    /// When the next held frame goes on at the latest.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.held.iter().map(|held| held.deadline).min()
    }

    /// Lets go what is held no longer at `now`.
    pub(super) fn release_due(&mut self, now: Duration, arrivals: &mut Vec<Arrival>) {
        self.release(now, |held| held.deadline <= now, arrivals);
    }

    /// The wire itself: rate, buffer and delay.
    fn carry(&mut self, now: Duration, bytes: Vec<u8>, arrivals: &mut Vec<Arrival>) {
        let mut departure = now;
        // After a rate was lifted, earlier frames still leave at theirs.
        while self
            .departures
            .front()
            .is_some_and(|&departure| departure <= now)
        {
            self.departures.pop_front();
        }
        if let Some(last) = self.departures.back() {
            departure = *last;
        }
        if let Some(rate) = self.impairments.rate {
            if self.departures.len() >= self.impairments.buffer {
                self.counters.buffer_full += 1;
                return;
            }
            let nanoseconds = bytes.len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
            let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
            departure = departure.saturating_add(Duration::from_nanos(nanoseconds));
            self.departures.push_back(departure);
        }
        arrivals.push(Arrival {
            time: departure.saturating_add(self.impairments.delay),
            bytes,
        });
    }
}
