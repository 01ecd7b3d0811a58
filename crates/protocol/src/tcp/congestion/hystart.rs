//! HyStart++ (RFC 9406): leaves the first slow start when the round trip rises,
//! before the queue that makes it rise overflows.

use tidewall_wire::tcp::before;

/// Samples a round must have to be judged by (`N_RTT_SAMPLE`).
const SAMPLES: u8 = 8;

/// The least and the largest rise that counts, in microseconds
/// (`MIN_RTT_THRESH`, `MAX_RTT_THRESH`), and its share of the round trip
/// (`MIN_RTT_DIVISOR`).
const RISE_MIN: u32 = 4_000;
const RISE_MAX: u32 = 16_000;
const RISE_DIVISOR: u32 = 8;

/// What growth is divided by in conservative slow start (`CSS_GROWTH_DIVISOR`),
/// and the rounds that it lasts (`CSS_ROUNDS`). The RFC recommends 4; five rounds
/// of a quarter triple the window, which overflows most queues after all.
const CONSERVATIVE_DIVISOR: u32 = 8;
const CONSERVATIVE_ROUNDS: u8 = 5;

/// No round trip was measured.
const NONE: u32 = u32::MAX;

/// What is remembered of the first slow start. Round trips in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round ends when this is acknowledged (`windowEnd`).
    pub(super) end: u32,
    /// The least of the round before (`lastRoundMinRTT`).
    pub(super) last: u32,
    /// The least of this round (`currentRoundMinRTT`).
    pub(super) current: u32,
    /// The least when conservative slow start began (`cssBaselineMinRtt`).
    pub(super) baseline: u32,
    /// Samples of this round (`rttSampleCount`).
    pub(super) samples: u8,
    /// Rounds of conservative slow start that have begun; zero in slow start.
    pub(super) rounds: u8,
    /// False before the first acknowledgment.
    pub(super) begun: bool,
}

/// What slow start is to do with an acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Grow by what is acknowledged, divided by so much.
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
    /// `first` is now the first unacknowledged byte, `next` the next to be sent
    /// (RFC 9406 §4.2).
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
        // The round is over.
        self.begun = true;
        self.end = next;
        self.last = self.current;
        self.current = NONE;
        self.samples = 0;
        if self.rounds == 0 {
            return verdict;
        }
        // A thawed state may say more.
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
                // The round in which it begins counts, partial as it is.
                self.rounds = 1;
            }
        } else if self.rounds > 1 && self.current < self.baseline {
            // It was jitter. Asked of whole rounds only: within the one in which
            // it began, the bursts of slow start let round trips rise and fall.
            self.baseline = NONE;
            self.rounds = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROW: Verdict = Verdict::Grow(1);
    const SLOWLY: Verdict = Verdict::Grow(CONSERVATIVE_DIVISOR);

    /// A round of ten acknowledgments with the same round trip, and what the
    /// last of them says, or the one that says to leave. Sequence numbers wrap on
    /// the way.
    fn round(hystart: &mut HyStart, number: u32, milliseconds: u32) -> Verdict {
        let start = (u32::MAX - 2).wrapping_add(number * 10);
        let mut verdict = GROW;
        for at in 1..=10 {
            let next = start.wrapping_add(10 + at);
            let sample = Some(milliseconds * 1000);
            let said = hystart.acknowledged(start.wrapping_add(at), next, sample);
            if verdict != Verdict::Leave {
                verdict = said;
            }
        }
        verdict
    }

    fn after(rounds: &[u32]) -> (HyStart, Verdict) {
        let mut hystart = HyStart::default();
        let mut verdict = GROW;
        for (number, &milliseconds) in rounds.iter().enumerate() {
            verdict = round(&mut hystart, number as u32, milliseconds);
        }
        (hystart, verdict)
    }

    #[test]
    fn a_steady_round_trip_goes_on() {
        assert_eq!(after(&[50; 30]).1, GROW);
    }

    #[test]
    fn the_rise_that_counts_is_an_eighth_between_4_and_16_milliseconds() {
        for (before, after_, leaves) in [
            (10, 13, false),
            (10, 14, true),
            (80, 89, false),
            (80, 90, true),
            (400, 415, false),
            (400, 416, true),
        ] {
            let (hystart, _) = after(&[before, before, before, after_]);
            assert_eq!(hystart.rounds > 0, leaves, "{before} to {after_}");
        }
    }

    #[test]
    fn conservative_slow_start_lasts_five_rounds() {
        let mut hystart = after(&[50, 50, 50]).0;
        let mut verdicts = Vec::new();
        for number in 3..9 {
            verdicts.push(round(&mut hystart, number, 60));
        }
        // The partial one counts; the first acknowledgment after the fifth leaves.
        assert_eq!(verdicts[..5], [SLOWLY; 5]);
        assert_eq!(verdicts[5], Verdict::Leave);
    }

    #[test]
    fn a_thawed_state_of_too_many_rounds_leaves() {
        let mut hystart = after(&[50, 50, 50, 60]).0;
        hystart.rounds = u8::MAX;
        assert_eq!(round(&mut hystart, 4, 60), Verdict::Leave);
    }

    #[test]
    fn a_rise_that_goes_again_was_jitter() {
        let (mut hystart, verdict) = after(&[50, 50, 50, 60, 60]);
        assert_eq!(verdict, SLOWLY);
        assert_eq!(round(&mut hystart, 5, 55), GROW);
        assert_eq!(hystart.rounds, 0);
        // And the next rise counts again, against the latest round.
        round(&mut hystart, 6, 62);
        assert_eq!(hystart.rounds, 1);
    }

    #[test]
    fn a_round_of_few_samples_says_nothing() {
        let mut hystart = HyStart::default();
        for number in 0..20 {
            let (start, next) = (number * 10, number * 10 + 20);
            for at in 1..=7 {
                let sample = Some(if number < 10 { 50_000 } else { 90_000 });
                assert_eq!(hystart.acknowledged(start + at, next, sample), GROW);
            }
            assert_eq!(hystart.acknowledged(start + 10, next, None), GROW);
        }
    }
}
