//! What it costs to fall asleep and to be woken, on this machine.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use tidewall_receive::control::WAKE_UP_USUAL;

/// How often it is measured, for a median.
const TIMES: usize = 9;
/// How long each of these sleeps is: long enough for the processor to halt.
const SLEEP: Duration = Duration::from_micros(100);
/// What a sleep that is disturbed each time is taken for at most.
const MOST: Duration = Duration::from_micros(200);

/// How much longer than asked for a sleep is. The measure for what waits: who would be
/// answered sooner had better not sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUp(Duration);

impl Default for WakeUp {
    /// What it may be, where there is no machine to measure.
    fn default() -> Self {
        WakeUp(WAKE_UP_USUAL)
    }
}

impl WakeUp {
    /// Measures it, in about a millisecond.
    pub(crate) fn measure() -> Self {
        // A thread of its own, since a thread's timer slack stays with it.
        let measured = std::thread::spawn(|| {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut late = [Duration::ZERO; TIMES];
            for late in &mut late {
                let began = Instant::now();
                std::thread::sleep(SLEEP);
                *late = began.elapsed().saturating_sub(SLEEP);
            }
            late.sort_unstable();
            late[TIMES / 2]
        });
        WakeUp(measured.join().unwrap_or(MOST).min(MOST))
    }

    /// How long it takes.
    pub(crate) fn time(self) -> Duration {
        self.0
    }
}
