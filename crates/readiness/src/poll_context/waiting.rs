//! Waiting in a context, and the work for all sockets that a thread does before it
//! examines its own.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidewall_stack::core::Core;
use tidewall_stack::protocol::Hold;

use super::PollContext;
use crate::SignalSet;
use crate::wait_queue::CURRENT_CONTEXT;

/// Waits after which the device is served in any case.
const LOOK_EVERY: u32 = 16;

/// How long an event loop's output may wait for the end of the turn, in ns. A segment
/// costs a tenth of it or less, so batches gain little for a loop whose events cost more.
const HOLD: u64 = 100_000;

/// The most that a single turn adds to [`EventCost::held`], in ns per event. A thread
/// that is preempted once does not look slow for long.
const HELD_MOST: u64 = 2 * HOLD;

/// The turn of an event loop: the time between a wait that returned events, and the next
/// wait.
#[derive(Clone, Copy)]
struct Turn {
    /// The stack, as an address; 0 if the thread is in no turn.
    core: usize,
    /// Number of writes that may wait for its end.
    most: u32,
    /// Number of writes since it began, or last sent something.
    held: u32,
    /// Number of writes since it began.
    writes: u32,
    /// The time at which it began, or last sent something, in ns since the stack started.
    since: u64,
    /// It has sent something early.
    has_sent: bool,
    /// The wait has returned events, and the helper sends if the thread does not return.
    has_events: bool,
}

impl Turn {
    const NONE: Turn = Turn {
        core: 0,
        most: 0,
        held: 0,
        writes: 0,
        since: 0,
        has_sent: false,
        has_events: false,
    };
}

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn::NONE) };
}

/// Returns true if an event loop's wait has returned events to the calling thread, which has not
/// waited since. Its next wait sends the output that it holds. If the thread does not return,
/// the helper sends it.
pub fn in_turn(core: &Core) -> bool {
    let turn = TURN.get();
    turn.has_events && turn.core == std::ptr::from_ref(core).addr()
}

/// Records a write of the calling thread to a connection, and reports whether the held output of
/// its turn has waited long enough. The number of writes bounds the time, as the cost of one is
/// known. The clock is read each time that the number has doubled. Returns true for a thread in
/// no turn: it does not know when another thread's turn ends.
pub fn turn_is_long(core: &Core) -> bool {
    let mut turn = TURN.get();
    if turn.core != std::ptr::from_ref(core).addr() {
        // Without a helper, each thread drives the stack itself.
        return core.helper.is_allowed();
    }
    turn.writes += 1;
    turn.held += 1;
    let mut is_long = turn.held >= turn.most;
    if !is_long && turn.held >= 2 && turn.held.is_power_of_two() {
        let now = nanoseconds(core.now());
        is_long = now.saturating_sub(turn.since) >= HOLD;
        if is_long && turn.has_sent {
            // The writes have cost that much: this turn differs from those before.
            turn.most = turn.held / 2;
        }
    }
    TURN.set(turn);
    is_long
}

/// Records that all held output of the calling thread's turn has been sent.
pub fn note_sent_in_turn(core: &Core) {
    let turn = TURN.get();
    if turn.core == std::ptr::from_ref(core).addr() {
        TURN.set(Turn {
            held: 0,
            since: nanoseconds(core.now()),
            has_sent: true,
            ..turn
        });
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Marks a thread as inside a context until it is dropped.
pub struct Inside<'a> {
    context: &'a PollContext,
    /// The context that the thread was in before.
    before: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        CURRENT_CONTEXT.set(self.before);
        self.context.threads_inside.fetch_sub(1, Ordering::SeqCst);
        // The remaining work is for another thread, which was not woken for it.
        if self.context.has_ready() || self.context.has_unprocessed_frames() {
            self.context.wait_queue.threads().wake_one();
        }
    }
}

/// The application's cost per event. It bounds the events returned at once while the
/// device is polled, and the answers that wait for the end of a turn.
#[derive(Default)]
pub(super) struct EventCost {
    /// A moving average, ns.
    average: AtomicU64,
    /// The average per event or per write, whichever were more. No turn counts for more
    /// than [`HELD_MOST`].
    held: AtomicU64,
    /// The time at which the last wait returned, in ns since the stack started, and its
    /// number of events; 0 if not recorded.
    returned_at: AtomicU64,
    returned: AtomicUsize,
}

impl EventCost {
    /// Records what the application received, and when. The time is about `seen`, which
    /// is close enough if no poll will be due; then the clock is not read.
    fn note_return(&self, core: &Core, events: usize, seen: Duration) -> u64 {
        let now = if events > 0 && core.receiver.will_be_due() {
            nanoseconds(core.now())
        } else {
            nanoseconds(seen)
        };
        self.returned_at.store(now, Ordering::Relaxed);
        self.returned.store(events, Ordering::Relaxed);
        now
    }

    /// Measures the cost of an event, if the last wait recorded it, and of one of the
    /// writes. A turn without events may write, too: it continues with earlier work.
    fn measure(&self, now: Duration, writes: u32) {
        let events = self.returned.load(Ordering::Relaxed) as u64;
        if events == 0 && writes == 0 {
            return;
        }
        self.returned.store(0, Ordering::Relaxed);
        let since = self.returned_at.load(Ordering::Relaxed);
        let away = nanoseconds(now).saturating_sub(since);
        let cost = |count: u64| away.checked_div(count).unwrap_or(0);
        let add = |average: &AtomicU64, cost: u64| {
            let known = average.load(Ordering::Relaxed);
            average.store(known - known / 8 + cost / 8, Ordering::Relaxed);
        };
        if events > 0 {
            add(&self.average, cost(events));
        }
        let writes = events.max(writes.into());
        add(&self.held, cost(writes).min(HELD_MOST));
    }

    /// Returns how many writes may wait for the end of a turn: as many as fit within
    /// [`HOLD`].
    fn most_held(&self) -> u32 {
        (HOLD / self.held.load(Ordering::Relaxed).max(1)) as u32
    }
}

impl PollContext {
    /// Returns the number of waits begun here.
    pub fn wait_number(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Marks the calling thread as inside.
    pub fn enter(&self) -> Inside<'_> {
        self.threads_inside.fetch_add(1, Ordering::SeqCst);
        Inside {
            context: self,
            before: CURRENT_CONTEXT.replace(std::ptr::from_ref(self).addr()),
        }
    }

    /// Begins a wait at `now`: sends the application's last output, runs timers, polls
    /// the device if due, and runs the protocol on the waiting frames.
    ///
    /// # Errors
    /// ENETDOWN and other device errors.
    fn begin_wait(&self, core: &Core, now: Duration) -> io::Result<()> {
        core.helper.application_is_here();
        self.kernel.begin_wait();
        let more = core.send(Hold::Acknowledgments);
        core.run_due(now);
        let wait = self.waits.fetch_add(1, Ordering::Relaxed);
        let delivers = core.receiver.delivers_first() && self.has_ready();
        let polls = core.receiver.is_polling() && !core.receiver.device_polls();
        let busy = more || polls && !delivers;
        if busy {
            core.receiver.round_and_return(core)?;
        } else if wait.is_multiple_of(LOOK_EVERY) {
            // An application that leaves ready files unread must not keep the device from
            // being polled. A device that interrupts and is not busy is not masked for
            // that: arming it again costs two writes of T and another poll.
            core.receiver.round(core, false)?;
        } else {
            core.receiver.collect(core);
        }
        self.process(core);
        Ok(())
    }

    /// Waits until `collect` finds something. `collect` is called once arrived frames are
    /// processed; its argument states whether the kernel descriptors must be polled, and
    /// it returns the number of events. Returns that number; 0 at the timeout. `None`
    /// waits forever. While it sleeps, `signals` replaces the thread's signal mask.
    ///
    /// # Errors
    /// EINTR when a signal arrives; ENETDOWN and other device errors; the errors of
    /// `collect`.
    pub fn wait(
        &self,
        core: &Core,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        collect: &mut dyn FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let inside = self.enter();
        let Turn { writes, .. } = TURN.replace(Turn::NONE);
        let mut seen = core.now();
        self.cost.measure(seen, writes);
        let result = self.wait_inside(core, timeout, signals, &mut seen, collect);
        drop(inside);
        if let Ok(events) = result {
            let since = self.cost.note_return(core, events, seen);
            if self.loops() {
                TURN.set(Turn {
                    core: std::ptr::from_ref(core).addr(),
                    most: self.cost.most_held(),
                    held: 0,
                    writes: 0,
                    since,
                    has_sent: false,
                    has_events: events > 0 && core.helper.is_allowed(),
                });
            }
        }
        result
    }

    /// `seen`: the time at which the wait begins, and at which it was last known to go
    /// on.
    fn wait_inside(
        &self,
        core: &Core,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        seen: &mut Duration,
        collect: &mut dyn FnMut(bool) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.begin_wait(core, *seen)?;
        let deadline = timeout.and_then(|timeout| core.clock.instant_now().checked_add(timeout));
        let mut polled = false;
        let mut woken = false;
        loop {
            self.process(core);
            let found = collect(polled)?;
            let hold = if found == 0 && !self.has_ready() {
                Hold::Nothing
            } else if self.cost.most_held() > 1 {
                Hold::Reported
            } else {
                Hold::Acknowledgments
            };
            core.send(hold);
            if found > 0 {
                return Ok(found);
            }
            // A thread that is woken repeatedly without events does not stay past its
            // deadline.
            if woken && deadline.is_some_and(|deadline| core.clock.instant_now() >= deadline) {
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
            *seen = core.now();
            if !woken {
                return Ok(0);
            }
        }
    }

    /// Returns how many events the application may receive at once, at most `most`. It is
    /// the number that it will have handled when the next poll of the device is due, by
    /// the recent cost of one. A full ring also loses segments of connections.
    pub fn most_events(&self, core: &Core, most: usize) -> usize {
        let Some(away) = core.receiver.until_due(core) else {
            return most;
        };
        let cost = self.cost.average.load(Ordering::Relaxed).max(1);
        (away.as_nanos() as u64 / cost).clamp(1, most.max(1) as u64) as usize
    }
}
