//! How threads wait in a context, and what they do for all before they look.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::PollContext;
use crate::readiness::SignalSet;
use crate::stack::Core;
use crate::tcp::sending::Hold;
use crate::wait_queue::CURRENT_CONTEXT;

/// Waits after which the device is looked after in any case.
const LOOK_EVERY: u32 = 16;

thread_local! {
    /// The stack, as an address, whose events the calling thread deals with; 0: none.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// True when the calling thread was given events by an event loop's wait and has not waited since: its next
/// wait sends what it leaves to be sent. Where it stays away, the helper does.
pub(crate) fn in_turn(core: &Core) -> bool {
    TURN.get() == std::ptr::from_ref(core).addr()
}

/// A thread is in a context; it leaves when this is dropped.
pub(crate) struct Inside<'a> {
    context: &'a PollContext,
    /// The context that it was in before.
    before: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        CURRENT_CONTEXT.set(self.before);
        self.context.threads_inside.fetch_sub(1, Ordering::SeqCst);
        // What was left is for another thread, which was not woken for it.
        if self.context.has_ready() || self.context.has_unprocessed_frames() {
            self.context.wait_queue.wake_one();
        }
    }
}

/// What an event costs the application, which bounds how many it is given at once
/// while the device is polled.
#[derive(Default)]
pub(super) struct EventCost {
    /// A moving average, ns.
    average: AtomicU64,
    /// When the last wait returned, ns since the stack started, and with how many
    /// events; 0: not noted.
    returned_at: AtomicU64,
    returned: AtomicUsize,
}

impl EventCost {
    /// Notes what the application was given, and when. Its cost matters only where a
    /// poll will be due: otherwise the clock is not read.
    fn note_return(&self, core: &Core, events: usize) {
        if events > 0 && core.receiver.will_be_due() {
            let now = core.now().as_nanos() as u64;
            self.returned_at.store(now, Ordering::Relaxed);
            self.returned.store(events, Ordering::Relaxed);
        }
    }

    /// Measures what an event cost, if the last wait noted it.
    fn measure(&self, core: &Core) {
        if self.returned.load(Ordering::Relaxed) == 0 {
            return;
        }
        let events = self.returned.swap(0, Ordering::Relaxed) as u64;
        let now = core.now();
        let since = self.returned_at.load(Ordering::Relaxed);
        let away = (now.as_nanos() as u64).saturating_sub(since);
        if let Some(cost) = away.checked_div(events) {
            let known = self.average.load(Ordering::Relaxed);
            let average = known - known / 8 + cost / 8;
            self.average.store(average, Ordering::Relaxed);
        }
    }
}

impl PollContext {
    /// How many waits have begun here.
    pub(crate) fn wait_number(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The calling thread enters.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.threads_inside.fetch_add(1, Ordering::SeqCst);
        Inside {
            context: self,
            before: CURRENT_CONTEXT.replace(std::ptr::from_ref(self).addr()),
        }
    }

    /// The beginning of a wait: sends the application's last output, runs timers,
    /// polls the device if that is due, and runs the protocol on the frames that wait.
    ///
    /// # Errors
    /// ENETDOWN and what else the device reports.
    fn begin_wait(&self, core: &Core) -> io::Result<()> {
        core.tcp.helper.application_is_here();
        self.kernel.begin_wait();
        let more = core.tcp.send(core, Hold::Acknowledgments);
        core.tcp.run_timers(core, core.now());
        let wait = self.waits.fetch_add(1, Ordering::Relaxed);
        let busy = more || core.receiver.is_polling() && !core.receiver.device_polls();
        if busy {
            core.receiver.round_and_return(core)?;
        } else if wait.is_multiple_of(LOOK_EVERY) {
            // An application that leaves what is ready may not keep the device from
            // being polled. One that interrupts and is not busy is not masked for
            // that: to arm it again costs two writes of T and another poll.
            core.receiver.round(core, false)?;
        } else {
            core.receiver.collect(core);
        }
        self.process(core);
        Ok(())
    }

    /// Waits until `collect` finds something: it is called once what came is
    /// processed, is given whether the kernel's descriptors must be polled, and
    /// returns how many events there are. Returns that; 0 at the timeout. `None` waits
    /// for ever. `signals` are blocked instead of those that are while it sleeps.
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
        TURN.set(0);
        self.cost.measure(core);
        let result = self.wait_inside(core, timeout, signals, collect);
        drop(inside);
        let events = *result.as_ref().unwrap_or(&0);
        self.cost.note_return(core, events);
        if events > 0 && self.loops() && core.tcp.helper.is_allowed() {
            TURN.set(std::ptr::from_ref(core).addr());
        }
        result
    }

    fn wait_inside(
        &self,
        core: &Core,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        collect: &mut dyn FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.begin_wait(core)?;
        let deadline = timeout.and_then(|timeout| core.instant_now().checked_add(timeout));
        let mut polled = false;
        let mut woken = false;
        loop {
            self.process(core);
            let found = collect(polled)?;
            let hold = if found > 0 || self.has_ready() {
                Hold::Reported
            } else {
                Hold::Nothing
            };
            core.tcp.send(core, hold);
            if found > 0 {
                return Ok(found);
            }
            // A thread that is woken for nothing, again and again, does not stay.
            if woken && deadline.is_some_and(|deadline| core.instant_now() >= deadline) {
                return Ok(0);
            }
            if timeout == Some(Duration::ZERO) {
                if polled {
                    return Ok(0);
                }
                polled = true;
                core.receiver.round(core, false)?;
                continue;
            }
            woken = core
                .receiver
                .sleep_masked(core, &[self], deadline, signals)?;
            if !woken {
                return Ok(0);
            }
        }
    }

    /// How many events the application may have at once, of `most`: as many as it will
    /// have dealt with when the device is due to be polled again, by what one cost
    /// lately. What is lost when the ring is full are segments of connections, too.
    pub(crate) fn most_events(&self, core: &Core, most: usize) -> usize {
        let Some(away) = core.receiver.until_due(core) else {
            return most;
        };
        let cost = self.cost.average.load(Ordering::Relaxed).max(1);
        (away.as_nanos() as u64 / cost).clamp(1, most.max(1) as u64) as usize
    }
}
