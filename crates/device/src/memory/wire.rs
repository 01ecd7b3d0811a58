//! One direction of the wire: what happens to a frame between two devices.

use std::time::Duration;

use super::Filter;
use super::config::Impairments;
use super::steering::scatter;

/// Counts of the frames sent in one direction. Each frame sent is counted once in `sent`;
/// it arrives, or `filtered` or `lost` counts it. Each copy in `duplicated` is one more
/// that arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames put on the wire.
    pub sent: u64,
    /// Not put on the wire: shorter than an Ethernet header, longer than the
    /// MTU allows, or an offload request that does not fit the frame.
    pub invalid: u64,
    /// Lost by the filter.
    pub filtered: u64,
    /// Lost at random.
    pub lost: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Frames that later ones may overtake.
    pub reordered: u64,
}

/// A frame and its arrival time at the other end.
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
}

impl Wire {
    pub(super) fn new(impairments: Impairments, seed: u64) -> Self {
        Wire {
            impairments,
            counters: WireCounters::default(),
            filter: None,
            random: seed,
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

    /// Sends a frame at `now`. Pushes the resulting arrivals; returns false when it was
    /// lost.
    pub(super) fn send(
        &mut self,
        now: Duration,
        bytes: Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) -> bool {
        self.counters.sent += 1;
        // All are drawn before any is used, so that changing one probability does not
        // affect later frames otherwise.
        let loss = self.chance(self.impairments.loss);
        let duplicate = self.chance(self.impairments.duplicate);
        let reorder = self.chance(self.impairments.reorder);
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
        let mut time = now.saturating_add(self.impairments.delay);
        if duplicate {
            self.counters.duplicated += 1;
            let bytes = bytes.clone();
            arrivals.push(Arrival { time, bytes });
        }
        if reorder {
            self.counters.reordered += 1;
            time = time.saturating_add(self.impairments.delay);
        }
        arrivals.push(Arrival { time, bytes });
        true
    }
}
