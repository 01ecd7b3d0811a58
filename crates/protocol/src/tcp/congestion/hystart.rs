//! HyStart++ (RFC 9406): leaves the first slow start when the round trip rises, before
//! the growing queue overflows.

use tidewall_wire::tcp::before;

/// Samples that a round needs to be judged (`N_RTT_SAMPLE`).
const SAMPLES: u8 = 8;

/// The least and the largest rise that counts, in microseconds
/// (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`), and its share of the round trip
/// (`MIN_RTT_DIVISOR`).
const RISE_MIN: u32 = 4_000;
const RISE_MAX: u32 = 16_000;
const RISE_DIVISOR: u32 = 8;

/// Divisor of growth in conservative slow start (`CSS_GROWTH_DIVISOR`), and its number of
/// rounds (`CSS_ROUNDS`). The RFC recommends 4; five rounds of a quarter triple the
/// window, which overflows most queues after all.
const CONSERVATIVE_DIVISOR: u32 = 8;
const CONSERVATIVE_ROUNDS: u8 = 5;

/// No round trip was measured.
const NONE: u32 = u32::MAX;

/// State of the first slow start. Round trips in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round ends when this is acknowledged (`windowEnd`).
    pub(super) end: u32,
    /// The least round trip of the previous round (`lastRoundMinRTT`).
    pub(super) last: u32,
    /// The least round trip of this round (`currentRoundMinRTT`).
    pub(super) current: u32,
    /// The least round trip when conservative slow start began (`cssBaselineMinRtt`).
    pub(super) baseline: u32,
    /// Samples of this round (`rttSampleCount`).
    pub(super) samples: u8,
    /// Rounds of conservative slow start that have begun; zero in slow start.
    pub(super) rounds: u8,
    /// False before the first acknowledgment.
    pub(super) begun: bool,
}

/// Slow start's action on an acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Grow by the acknowledged bytes, divided by this.
    Grow(u32),
    /// The path is full: congestion avoidance begins.
    Leave,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            end: 0,
            last: NONE,
            current: NONE,
            baseline: NONE,
            samples: 0,
            rounds: 0,
            begun: false,
        }
    }
}

impl HyStart {
    /// Processes an acknowledgment. `first` is now the first unacknowledged byte, `next`
    /// the next to be sent (RFC 9406 §4.2).
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        first: u32,
        next: u32,
        round_trip: Option<u32>,
    ) -> Verdict {
        if let Some(sample) = round_trip {
            self.sample(sample);
        }
        let verdict = Verdict::Grow(if self.rounds == 0 {
            1
        } else {
            CONSERVATIVE_DIVISOR
        });
        if before(first, self.end) && self.begun {
            return verdict;
        }
        // The round ends.
        self.begun = true;
        self.end = next;
        self.last = self.current;
        self.current = NONE;
        self.samples = 0;
        if self.rounds == 0 {
            return verdict;
        }
        // A thawed state may exceed the limit.
        if self.rounds >= CONSERVATIVE_ROUNDS {
            return Verdict::Leave;
        }
        self.rounds += 1;
        verdict
    }

    fn sample(&mut self, sample: u32) {
        self.current = self.current.min(sample);
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES {
            return;
        }
        if self.rounds == 0 {
            let rise = (self.last / RISE_DIVISOR).clamp(RISE_MIN, RISE_MAX);
            if self.last != NONE && self.current >= self.last.saturating_add(rise) {
                self.baseline = self.current;
                // The round in which it begins counts, although it is partial.
                self.rounds = 1;
            }
        } else if self.rounds > 1 && self.current < self.baseline {
            // It was jitter. Only whole rounds are tested: within the first one, the
            // bursts of slow start make round trips rise and fall.
            self.baseline = NONE;
            self.rounds = 0;
        }
    }
}

#[cfg(test)]
mod tests;
