//! Measures the cost of falling asleep and being woken, on this machine.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use tidewall_receive::control::WAKE_UP_USUAL;

/// Number of measurements, for a median.
const TIMES: usize = 9;
/// Length of each of these sleeps: long enough for the processor to halt.
const SLEEP: Duration = Duration::from_micros(100);
/// The upper limit on the measured sleep, if each sleep is disturbed.
const MOST: Duration = Duration::from_micros(200);

/// Number of times that two threads wake each other, to measure the processor time.
const TURNS: u32 = 32;

/// The cost of a sleep.
#[derive(Clone, Copy, Debug)]
pub struct WakeUp {
    late: Duration,
    work: Duration,
}

impl Default for WakeUp {
    /// The usual values, for a stack without a machine to measure.
    fn default() -> Self {
        WakeUp {
            late: WAKE_UP_USUAL,
            work: WAKE_UP_USUAL / 4,
        }
    }
}

impl WakeUp {
    /// Measures it, in about a millisecond.
    pub fn measure() -> Self {
        // A separate thread, since a thread's timer slack stays with it.
        let measured = std::thread::spawn(|| {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut late = [Duration::ZERO; TIMES];
            for late in &mut late {
                let began = Instant::now();
                std::thread::sleep(SLEEP);
                *late = began.elapsed().saturating_sub(SLEEP);
            }
            late.sort_unstable();
            (late[TIMES / 2], work())
        });
        let (late, work) = measured.join().unwrap_or((MOST, None));
        let late = late.min(MOST);
        let work = work.unwrap_or(late).min(late);
        WakeUp { late, work }
    }

    /// Returns by how much a sleep is longer than requested. It is the measure for
    /// waiting: a thread that would be answered sooner should not sleep.
    pub fn time(self) -> Duration {
        self.late
    }

    /// Returns the processor time that a sleep takes. It is the measure for polling
    /// instead: a longer poll costs what the sleep would have given to other threads.
    pub fn work(self) -> Duration {
        self.work
    }
}

/// Measures the processor time in which two threads wake each other, once each. A sleep,
/// too, ends with an interrupt and a wake-up, and begins and ends with a change of
/// threads. `None` if no thread can be started.
fn work() -> Option<Duration> {
    let turn = Arc::new(AtomicU32::new(0));
    let (first, its) = (std::thread::current(), turn.clone());
    let second = std::thread::Builder::new()
        .spawn(move || take_turns(&its, 1, &first))
        .ok()?;
    let own = take_turns(&turn, 0, second.thread());
    let total = own + second.join().ok()?;
    Some(total / TURNS)
}

/// The processor time of the calling thread's turns: every other one of all, from `first`.
fn take_turns(turn: &AtomicU32, first: u32, other: &Thread) -> Duration {
    let used = || {
        let used = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(used).unwrap_or_default()
    };
    let before = used();
    for own in (first..).step_by(2).take(TURNS as usize) {
        while turn.load(Ordering::Acquire) != own {
            std::thread::park();
        }
        turn.store(own + 1, Ordering::Release);
        other.unpark();
    }
    used().saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_takes_no_more_work_than_time() {
        let wake_up = WakeUp::measure();
        println!("{wake_up:?}");
        assert!(!wake_up.work().is_zero() && wake_up.work() <= wake_up.time());
    }
}
