//! Measures how long a wait polls before it sleeps, if the configuration does not set it.
//!
//! Polling for the processor time of a sleep costs at most twice that. It seldom sees the
//! next question of a client that waits for its answers. Polling for as long as two
//! wake-ups are late, the client's and ours, sees it. For such a client each sleep that
//! is saved makes the next question come sooner. The processor pays for one poll instead
//! of a sleep. If questions come at their own pace, the processor pays for the whole time
//! until the next one. The arrival times of frames do not tell the two cases apart, as
//! they depend on when the last answer went.
//!
//! So both times are tried, for some waits each, and the processor time of the process
//! per frame sent is compared. While the longer one is tried, a histogram notes when the
//! polls found what was waited for. It shows what any shorter time would have cost. A
//! wait then polls for the time that finds most, of those that cost at most a tenth more
//! than the short time. A client's latency is worth so much, and the processor time that
//! Linux takes per request is no less than that with a sleep.
//!
//! When waits come at another pace, both are tried again. Threads that compute meanwhile
//! cost the same in both halves, so that longer polls pass more easily. Latency is then a
//! smaller part of what the process costs.

use std::time::Duration;

use super::{Spin, WakeUp};
use crate::lock::{Mutex, lock, rank};

/// Waits for which each is tried.
const TRIED: u32 = 128;
/// Waits until both are tried again, at first and at most: twice as many each time that
/// the outcome is the same.
const KEPT: u32 = 1024;
const KEPT_MOST: u32 = 16 * KEPT;
/// If waits come twice or half as often as at the last trial, its outcome is kept for
/// this part of the usual number.
const CHANGED: u32 = 8;
/// Waits whose frequency is compared.
const PACE: u32 = 64;
/// The processor time per frame that its latency may cost, as a multiple of its cost when
/// waits poll for the shorter time.
const DEARER: f64 = 1.1;
/// Steps of the longer time in which it is counted when frames came.
const STEPS: usize = 16;

/// The two times, and what is known of them.
pub(super) struct SpinTrial {
    /// The processor time of a sleep, and the lateness of two.
    times: [Duration; 2],
    state: Mutex<State, rank::Leaf>,
}

/// The work that the process had done when a half of a trial began.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    sent: u64,
    processor: Duration,
}

#[derive(Debug)]
enum Phase {
    Short,
    Long,
    Kept,
}

#[derive(Debug)]
struct State {
    /// Frames sent before the last wait.
    sent: u64,
    phase: Phase,
    /// Waits left of it.
    left: u32,
    /// How long a wait polls.
    time: Duration,
    /// The beginning of this half of a trial, and the cost per frame in the first half,
    /// in s.
    mark: Mark,
    short: f64,
    gaps: Gaps,
    /// Waits for which the outcome of the last trial is kept, and which it was.
    kept: u32,
    chosen: Duration,
    pace: Pace,
}

/// The times at which polls of waits found what they waited for.
#[derive(Debug, Default)]
struct Gaps {
    found: [u32; STEPS],
    polls: u32,
}

impl Gaps {
    fn note(&mut self, gap: Option<Duration>, long: Duration) {
        self.polls += 1;
        let step = gap.map(|gap| gap.as_nanos() * STEPS as u128 / long.as_nanos().max(1));
        if let Some(found) = step.and_then(|step| self.found.get_mut(step as usize)) {
            *found += 1;
        }
    }

    /// Returns, for polls of so many steps, how many would have found it, and the
    /// processor time of all of them in s. Each of the others includes a sleep of `work`
    /// after it.
    fn of(&self, steps: usize, long: Duration, work: Duration) -> (u32, f64) {
        let step = long.as_secs_f64() / STEPS as f64;
        let (mut found, mut time) = (0, 0.0);
        for (number, &count) in (1..).zip(self.found.iter().take(steps)) {
            found += count;
            time += f64::from(count) * f64::from(number) * step;
        }
        let others = f64::from(self.polls - found);
        (
            found,
            time + others * (steps as f64 * step + work.as_secs_f64()),
        )
    }
}

/// The pace at which waits come.
#[derive(Debug, Default)]
struct Pace {
    began: Duration,
    waits: u32,
    /// The time of so many waits when the outcome was found; zero: not known yet.
    usual: Duration,
}

impl Pace {
    /// Notes one more wait at `now`. Returns true if they come twice or half as often as
    /// usual.
    fn has_changed(&mut self, now: Duration) -> bool {
        if self.waits == 0 {
            self.began = now;
        }
        self.waits += 1;
        if self.waits <= PACE {
            return false;
        }
        let took = now.saturating_sub(self.began);
        (self.began, self.waits) = (now, 1);
        if self.usual.is_zero() {
            self.usual = took;
        }
        took > self.usual * 2 || took * 2 < self.usual
    }
}

impl SpinTrial {
    pub(super) fn new(wake_up: WakeUp) -> Self {
        Self::of(wake_up.work(), wake_up.time())
    }

    fn of(work: Duration, late: Duration) -> Self {
        SpinTrial {
            times: [work, work.max(late * 2)],
            state: Mutex::new(State {
                sent: 0,
                phase: Phase::Kept,
                left: 1,
                time: work,
                mark: Mark::default(),
                short: 0.0,
                gaps: Gaps::default(),
                kept: 0,
                chosen: work,
                pace: Pace::default(),
            }),
        }
    }

    /// A wait begins, `sent` frames having been sent so far: how long it may poll, if it is
    /// to begin with that. `processor` says what processor time the process has used.
    pub(super) fn time(
        &self,
        sent: u64,
        now: impl FnOnce() -> Duration,
        processor: impl FnOnce() -> Duration,
        spin: &Spin,
    ) -> Duration {
        let mut state = lock(&self.state);
        // Another thread may have begun a wait since the frames were counted.
        let frames = sent.wrapping_sub(state.sent);
        if frames == 0 || frames > u64::MAX / 2 {
            return state.time;
        }
        state.sent = sent;
        if matches!(state.phase, Phase::Kept) && state.pace.has_changed(now()) {
            state.left = state.left.min(state.kept / CHANGED);
        }
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            let processor = processor();
            state.go_on(Mark { sent, processor }, self.times);
            spin.forget();
        }
        state.time
    }

    /// Notes that a wait has polled for `polled`, and whether it found what it waited
    /// for.
    pub(super) fn ended(&self, found: bool, polled: Duration) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Long) {
            state.gaps.note(found.then_some(polled), self.times[1]);
        }
    }
}

impl State {
    /// The end of a trial's half, or of the time for which its outcome was kept.
    fn go_on(&mut self, mark: Mark, times: [Duration; 2]) {
        let [short, long] = times;
        let frames = mark.sent.wrapping_sub(self.mark.sent) as f64;
        let used = mark
            .processor
            .saturating_sub(self.mark.processor)
            .as_secs_f64();
        (self.phase, self.time, self.left) = match self.phase {
            Phase::Kept => (Phase::Short, short, TRIED),
            Phase::Short => {
                self.short = used / frames;
                self.gaps = Gaps::default();
                (Phase::Long, long, TRIED)
            }
            Phase::Long => {
                let (_, polled) = self.gaps.of(STEPS, long, short);
                let mut best = (0, short);
                for steps in 1..=STEPS {
                    let (found, time) = self.gaps.of(steps, long, short);
                    let cost = (used - polled + time) / frames;
                    if found > best.0 && cost <= self.short * DEARER {
                        best = (found, long * steps as u32 / STEPS as u32);
                    }
                }
                let time = best.1.max(short);
                let is_same = (time > short) == (self.chosen > short);
                self.kept = if is_same { self.kept * 2 } else { 0 }.clamp(KEPT, KEPT_MOST);
                self.chosen = time;
                self.pace = Pace::default();
                (Phase::Kept, time, self.kept)
            }
        };
        self.mark = mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_micros(4);
    const LATE: Duration = Duration::from_micros(16);
    const SERVICE: Duration = Duration::from_micros(5);
    /// Further processor time of a sleep, which the measure at the start misses.
    const SETTING_UP: Duration = Duration::from_micros(3);
    const SECOND: Duration = Duration::from_secs(1);

    /// The outcome of a server on virtual time.
    #[derive(Debug)]
    struct Served {
        answered: u64,
        /// Processor time of a question.
        cost: f64,
        /// For how long a wait polled at most, each 10 ms.
        polled: Vec<Duration>,
    }

    /// Runs one for `time`; `next`: when the next question comes, by when the last one was
    /// answered and by its number.
    fn serve(
        time: Duration,
        trial: Option<&SpinTrial>,
        next: impl Fn(Duration, u64) -> Duration,
    ) -> Served {
        let spin = Spin::new(WORK);
        let (mut now, mut used, mut sent) = (Duration::ZERO, Duration::ZERO, 0);
        let mut polled = Vec::new();
        while now < time {
            let comes = next(now, sent);
            let most = trial.map_or(WORK, |trial| trial.time(sent, || now, || used, &spin));
            polled.resize((now.as_millis() / 10) as usize + 1, most);
            if comes > now && spin.begins(sent) {
                let found = comes - now <= most;
                let polls = most.min(comes - now);
                used += polls;
                now += polls;
                spin.ended(found);
                if let Some(trial) = trial {
                    trial.ended(found, polls);
                }
            }
            if comes > now {
                used += WORK + SETTING_UP;
                now = comes.max(now + WORK) + LATE;
            }
            now += SERVICE;
            used += SERVICE;
            sent += 1;
        }
        Served {
            answered: sent,
            cost: used.as_secs_f64() / sent as f64,
            polled,
        }
    }

    fn trial() -> SpinTrial {
        SpinTrial::of(WORK, LATE)
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Each `pace`, whatever is answered when.
    fn paced(answered: Duration, pace: Duration) -> Duration {
        pace * ((answered.as_nanos() / pace.as_nanos()) as u32 + 1)
    }

    #[test]
    fn a_thread_that_counted_before_another_adds_nothing() {
        let trial = trial();
        let spin = Spin::new(WORK);
        for sent in [5, 7, 6, 8] {
            trial.time(sent, || Duration::ZERO, || Duration::ZERO, &spin);
        }
        // The first wait begins the trial.
        let state = lock(&trial.state);
        assert_eq!((state.left, state.mark.sent, state.sent), (TRIED - 2, 5, 8));
    }

    #[test]
    fn a_client_that_waits_for_answers_is_polled_for() {
        for gap in [3, 6, 7] {
            let next = |answered, _| answered + micros(gap);
            let polled = serve(SECOND, Some(&trial()), next);
            let slept = serve(SECOND, None, next);
            assert!(
                polled.cost <= 1.1 * slept.cost,
                "{gap}: {polled:?}, {slept:?}"
            );
            // As a receiver that always polls.
            let most = SECOND.as_secs_f64() / (SERVICE + micros(gap)).as_secs_f64();
            assert!(polled.answered as f64 > 0.95 * most, "{gap}: {polled:?}");
        }
    }

    /// The processor has to do something else meanwhile.
    #[test]
    fn a_client_that_takes_longer_than_a_sleep_costs_is_slept_for() {
        for gap in [11, 20, 40] {
            let next = |answered, _| answered + micros(gap);
            let polled = serve(SECOND, Some(&trial()), next);
            let slept = serve(SECOND, None, next);
            assert!(
                polled.cost <= 1.1 * slept.cost,
                "{gap}: {polled:?}, {slept:?}"
            );
        }
    }

    #[test]
    fn questions_at_a_pace_of_their_own_are_slept_for() {
        for pace in [20, 25, 33, 100, 700] {
            let next = |answered, _| paced(answered, micros(pace));
            let tried = serve(SECOND * 2, Some(&trial()), next);
            let slept = serve(SECOND * 2, None, next);
            assert!(
                tried.cost <= 1.1 * slept.cost,
                "{pace}: {tried:?}, {slept:?}"
            );
        }
    }

    /// Three questions soon after each other, and then a pause.
    #[test]
    fn no_wait_polls_through_the_pauses_between_bursts() {
        let next = |answered, number| match number % 4 {
            0 => answered + micros(400),
            _ => answered + micros(6),
        };
        let trial = trial();
        let tried = serve(SECOND * 2, Some(&trial), next);
        let slept = serve(SECOND * 2, None, next);
        assert!(tried.cost <= 1.1 * slept.cost, "{tried:?}, {slept:?}");
        assert!(lock(&trial.state).chosen <= micros(8), "{:?}", trial.state);
    }

    #[test]
    fn a_client_that_comes_later_is_found_and_forgotten_when_it_goes() {
        let next = |answered: Duration, _| match answered.as_secs() {
            1 => answered + micros(7),
            second => paced(answered, micros(if second == 0 { 200 } else { 40 })),
        };
        let polled = serve(SECOND * 3, Some(&trial()), next).polled;
        let long = |from: usize| {
            let times = &polled[from..from + 80];
            times.iter().filter(|&&time| time > WORK).count()
        };
        // From 0.2 s after each change on; the trials themselves are part of it.
        let [before, during, after] = [long(20), long(120), long(220)];
        assert!(
            before < 16 && during > 64 && after < 16,
            "{before}, {during}, {after}"
        );
    }
}
