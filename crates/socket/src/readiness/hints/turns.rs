//! Threads in a context: how they wait, and what they do for all before they look.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Hints;
use crate::readiness::SignalSet;
use crate::readiness::watch::TURNING;
use crate::stack::Core;

/// How long the application may be away while the device is flooded: the ring of
/// a veth, 256 frames, fills in 128 µs at two million frames/s.
const FLOODED_TURN: Duration = Duration::from_micros(128);
/// Waits after which the device is polled in any case.
const POLL_EVERY: u32 = 16;

/// A thread is in a context; it leaves when this is dropped.
pub(crate) struct Inside<'a> {
    hints: &'a Hints,
    /// What it turned before.
    before: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        TURNING.set(self.before);
        self.hints.inside.fetch_sub(1, Ordering::SeqCst);
        // What was left is another's, who was not woken for it.
        if self.hints.has_hints() || self.hints.has_frames() {
            self.hints.waiters.wake_next();
        }
    }
}

impl Hints {
    /// How often somebody has waited here.
    pub(crate) fn turn_number(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// The calling thread enters.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        Inside {
            hints: self,
            before: TURNING.replace(std::ptr::from_ref(self).addr()),
        }
    }

    /// The beginning of a wait: sends the application's last output, sees to timers,
    /// polls the device if that is due, and runs the protocol on the frames of the
    /// sockets watched.
    ///
    /// # Errors
    /// ENETDOWN and what else the device reports.
    pub(crate) fn turn(&self, core: &Core) -> io::Result<()> {
        core.tcp.helper.application_is_here();
        // The last turn's output.
        let more = core.tcp_send(false);
        core.tcp_run_timers();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let busy = more || core.is_busy() && !core.device_polls();
        // An application that leaves what is ready may not keep the device from
        // being looked at.
        if busy || turn.is_multiple_of(POLL_EVERY) {
            core.round_and_return()?;
        } else {
            core.collect();
        }
        self.process(core);
        Ok(())
    }

    /// Waits until `collect` finds something: it is asked once what came is
    /// processed, is told whether the kernel's descriptors must be looked at, and
    /// returns how much there is. Returns that; 0 at the timeout. `None` waits for
    /// ever. `signals` are blocked instead of those that are while it sleeps.
    ///
    /// # Errors
    /// EINTR when a signal arrives; ENETDOWN and what else the device reports; what
    /// `collect` reports.
    pub(crate) fn wait(
        &self,
        core: &Core,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        collect: &mut dyn FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let inside = self.enter();
        self.learn_cost(core);
        let result = self.wait_inside(core, timeout, signals, collect);
        drop(inside);
        self.note_return(core, *result.as_ref().unwrap_or(&0));
        result
    }

    fn wait_inside(
        &self,
        core: &Core,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        collect: &mut dyn FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.turn(core)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut polled = false;
        let mut woken = false;
        loop {
            self.process(core);
            let found = collect(polled)?;
            core.tcp_send(true);
            if found > 0 {
                return Ok(found);
            }
            // Who is woken for nothing, again and again, does not stay for ever.
            if woken && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(0);
            }
            if timeout == Some(Duration::ZERO) {
                if polled {
                    return Ok(0);
                }
                polled = true;
                core.round(false)?;
                continue;
            }
            woken = core.sleep_masked(&[self], deadline, signals)?;
            if !woken {
                return Ok(0);
            }
        }
    }

    /// Notes what the application was given, and when. Its cost matters under a
    /// flood only: without one the clock is not read.
    fn note_return(&self, core: &Core, events: usize) {
        if core.is_flooded() && events > 0 {
            let now = core.now().as_nanos() as u64;
            self.returned_at.store(now, Ordering::Relaxed);
            self.returned.store(events, Ordering::Relaxed);
        }
    }

    /// What an event cost the application, if the last wait noted it.
    fn learn_cost(&self, core: &Core) {
        if self.returned.load(Ordering::Relaxed) == 0 {
            return;
        }
        let events = self.returned.swap(0, Ordering::Relaxed) as u64;
        let now = core.now();
        let since = self.returned_at.load(Ordering::Relaxed);
        let away = (now.as_nanos() as u64).saturating_sub(since);
        if let Some(cost) = away.checked_div(events) {
            let known = self.event_cost.load(Ordering::Relaxed);
            let learned = known - known / 8 + cost / 8;
            self.event_cost.store(learned, Ordering::Relaxed);
        }
    }

    /// How many events the application may have at once, of `most`. While the
    /// device is flooded it must be looked at again before its ring is full: 32
    /// requests of 20 µs each are as long as 256 frames at 400,000/s, and what is
    /// lost then are segments of connections, too.
    pub(crate) fn most_events(&self, core: &Core, most: usize) -> usize {
        if !core.is_flooded() {
            return most;
        }
        let cost = self.event_cost.load(Ordering::Relaxed).max(1);
        (FLOODED_TURN.as_nanos() as u64 / cost).clamp(1, most as u64) as usize
    }
}
