//! How long a wait polls before it sleeps, where nobody has said so.
//!
//! To poll for the processor time of a sleep costs next to nothing, but seldom sees the
//! next question of a client that waits for its answers: that comes later than a sleep
//! costs, once the client itself is awake. To poll for as long as two wake-ups are late,
//! the client's and ours, sees it, and each sleep that it saves makes the next question
//! come sooner. Where questions
//! come at a pace of their own it saves a sleep, too, and costs the processor more than
//! that. The two differ in what is answered in the same time. So both are tried, one after
//! the other, for some waits each, and the longer one is kept only where it brings a good
//! deal more; that is tried again after some time.

use std::time::Duration;

use super::{Spin, WakeUp};
use crate::lock::{Mutex, lock, rank};

/// Waits for which each is tried.
const TRIED: u32 = 64;
/// Waits until both are tried again, at first and at most: twice as many each time that
/// the outcome is the same.
const KEPT: u32 = 1024;
const KEPT_MOST: u32 = 16 * KEPT;
/// The longer one is kept where it brings this much more; a sleep costs about a third of
/// what a wake-up is late.
const BETTER: f64 = 4.0 / 3.0;
/// A pause of so many late wake-ups says nothing of either.
const PAUSE: u32 = 16;

/// The two times, and what is known of them.
pub(super) struct SpinTrial {
    times: [Duration; 2],
    /// Waits that are further apart are not counted.
    pause: Duration,
    state: Mutex<State, rank::Leaf>,
}

#[derive(Debug, Default)]
struct State {
    /// Frames sent before the last wait, and when that was.
    sent: u64,
    at: Duration,
    /// Which of the two is in use.
    long: bool,
    /// Both are being tried.
    trying: bool,
    /// Waits left of that.
    left: u32,
    /// Waits for which the outcome of the last trial is kept.
    kept: u32,
    /// Which that was.
    chosen: bool,
    /// What each brought: frames sent, and the time that it took.
    frames: [u64; 2],
    time: [Duration; 2],
}

impl State {
    /// How many times what the shorter one brought in the same time the longer one did.
    fn gain(&self) -> f64 {
        let [short, long] = [0, 1].map(|place| match self.time[place] {
            Duration::ZERO => 0.0,
            time => self.frames[place] as f64 / time.as_secs_f64(),
        });
        if short > 0.0 { long / short } else { 0.0 }
    }

    /// The end of a trial's half, or of the time for which its outcome was kept. True where
    /// the other of the two is in use from now on.
    fn go_on(&mut self) -> bool {
        let before = self.long;
        if !self.trying {
            (self.trying, self.long, self.left) = (true, false, TRIED);
            (self.frames, self.time) = ([0; 2], [Duration::ZERO; 2]);
        } else if !self.long {
            (self.long, self.left) = (true, TRIED);
        } else {
            let long = self.gain() >= BETTER;
            self.kept = if long == self.chosen {
                (self.kept * 2).clamp(KEPT, KEPT_MOST)
            } else {
                KEPT
            };
            (self.trying, self.long, self.chosen) = (false, long, long);
            self.left = self.kept;
        }
        self.long != before
    }
}

impl SpinTrial {
    pub(super) fn new(wake_up: WakeUp) -> Self {
        SpinTrial {
            times: [wake_up.work(), wake_up.time() * 2],
            pause: wake_up.time() * PAUSE,
            state: Mutex::default(),
        }
    }

    /// A wait begins, `sent` frames having been sent so far: how long it may poll, if it is
    /// to begin with that.
    pub(super) fn time(&self, sent: u64, now: impl FnOnce() -> Duration, spin: &Spin) -> Duration {
        let mut state = lock(&self.state);
        // Another thread may have begun a wait since the frames were counted.
        let frames = sent.wrapping_sub(state.sent);
        if frames != 0 && frames <= u64::MAX / 2 {
            let now = now();
            let since = now.saturating_sub(state.at);
            (state.sent, state.at) = (sent, now);
            let place = usize::from(state.long);
            if since < self.pause {
                state.time[place] += since;
                state.frames[place] += frames;
            }
            state.left = state.left.saturating_sub(1);
            if state.left == 0 && state.go_on() {
                spin.forget();
            }
        }
        self.times[usize::from(state.long)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_micros(4);
    const LATE: Duration = Duration::from_micros(16);
    const SERVICE: Duration = Duration::from_micros(5);

    #[test]
    fn a_thread_that_counted_before_another_adds_nothing() {
        let trial = trial();
        let spin = Spin::new(WORK);
        for (sent, at) in [(5, 1), (7, 2), (6, 3), (8, 4)] {
            trial.time(sent, || Duration::from_micros(at), &spin);
        }
        // The first wait begins the trial.
        let counted: u64 = lock(&trial.state).frames.iter().sum();
        assert_eq!(counted, 8 - 5);
    }

    /// Runs a server on virtual time; `next`: when the next question comes, by when the last
    /// one was answered. Returns questions that were answered, and the part of the time for
    /// which it polled.
    fn serve(
        time: Duration,
        trial: Option<&SpinTrial>,
        next: impl Fn(Duration) -> Duration,
    ) -> (u64, f64) {
        let spin = Spin::new(WORK);
        let (mut now, mut sent, mut polled) = (Duration::ZERO, 0, Duration::ZERO);
        while now < time {
            let comes = next(now);
            let most = trial.map_or(WORK, |trial| trial.time(sent, || now, &spin));
            if comes > now && spin.begins(sent) {
                let found = comes - now <= most;
                let polls = most.min(comes - now);
                polled += polls;
                now += polls;
                spin.ended(found);
            }
            if comes > now {
                now = comes.max(now + WORK) + LATE;
            }
            now += SERVICE;
            sent += 1;
        }
        (sent, polled.as_secs_f64() / now.as_secs_f64())
    }

    fn trial() -> SpinTrial {
        SpinTrial {
            times: [WORK, LATE * 2],
            pause: LATE * PAUSE,
            state: Mutex::default(),
        }
    }

    #[test]
    fn a_client_that_waits_for_answers_is_polled_for() {
        let next = |answered: Duration| answered + Duration::from_micros(11);
        let time = Duration::from_secs(2);
        let (before, _) = serve(time, None, next);
        let (after, _) = serve(time, Some(&trial()), next);
        assert!(after as f64 > 1.7 * before as f64, "{after}, {before}");
    }

    /// Each 25 µs, whatever is answered when.
    #[test]
    fn questions_at_a_pace_of_their_own_are_slept_for() {
        let pace = Duration::from_micros(25);
        let next = |answered: Duration| {
            let number = answered.as_nanos() / pace.as_nanos();
            pace * (number as u32 + 1)
        };
        let time = Duration::from_secs(2);
        let (_, before) = serve(time, None, next);
        let (_, polled) = serve(time, Some(&trial()), next);
        assert!(polled < before + 0.06, "{polled}, {before}");
    }

    #[test]
    fn a_client_that_comes_later_is_found() {
        let after = Duration::from_secs(1);
        let next = |answered: Duration| match answered < after {
            true => answered + Duration::from_micros(200),
            false => answered + Duration::from_micros(11),
        };
        let trial = trial();
        serve(after * 2, Some(&trial), next);
        assert!(lock(&trial.state).chosen);
    }
}
