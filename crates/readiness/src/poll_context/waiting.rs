//! How threads wait in a context, and what they do for all before they look.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::PollContext;
use crate::SignalSet;
use crate::wait_queue::CURRENT_CONTEXT;
use tidewall_stack::core::Core;
use tidewall_stack::protocol::Hold;

/// Waits after which the device is looked after in any case.
const LOOK_EVERY: u32 = 16;

/// How long what an event loop writes may wait for the end of the turn. A segment costs a
/// tenth of it or less, so that a loop whose events cost more gains little by batches.
const HOLD: u64 = 100_000;

/// Most of what a single turn adds to [`EventCost::held`], ns a event: a thread that is
/// preempted once does not look slow for long.
const HELD_MOST: u64 = 2 * HOLD;

/// The turn of an event loop: the time between a wait that returned events, and the next.
#[derive(Clone, Copy)]
struct Turn {
    /// The stack, as an address; 0: the thread is in no turn.
    core: usize,
    /// Writes that may wait for its end.
    most: u32,
    /// Writes since it began, or last sent something.
    held: u32,
    /// Writes since it began.
    writes: u32,
    /// When it began, or last sent something, ns since the stack started.
    since: u64,
    /// It has sent something early.
    has_sent: bool,
    /// The wait has returned events, and the helper sends where the thread stays away.
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

/// True when the calling thread was given events by an event loop's wait and has not waited since: its next
/// wait sends what it leaves to be sent. Where it stays away, the helper does.
pub fn in_turn(core: &Core) -> bool {
    let turn = TURN.get();
    turn.has_events && turn.core == std::ptr::from_ref(core).addr()
}

/// Notes that the calling thread has written to a connection, and says whether what its turn has
/// left to be sent has waited long enough. The number of writes bounds the time, as the cost
/// of one is known; the clock is read each time that the number has doubled. True for a thread
/// that is in no turn, as it does not know when another thread's turn ends.
pub fn turn_is_long(core: &Core) -> bool {
    let mut turn = TURN.get();
    if turn.core != std::ptr::from_ref(core).addr() {
        // Without a helper each thread turns the stack itself.
        return core.helper.is_allowed();
    }
    turn.writes += 1;
    turn.held += 1;
    let mut is_long = turn.held >= turn.most;
    if !is_long && turn.held >= 2 && turn.held.is_power_of_two() {
        let now = nanoseconds(core.now());
        is_long = now.saturating_sub(turn.since) >= HOLD;
        if is_long && turn.has_sent {
            // So many writes have cost that much: this turn is not as those before.
            turn.most = turn.held / 2;
        }
    }
    TURN.set(turn);
    is_long
}

/// Notes that all has been sent that the calling thread's turn had left.
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

/// A thread is in a context; it leaves when this is dropped.
pub struct Inside<'a> {
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
            self.context.wait_queue.threads().wake_one();
        }
    }
}

/// What an event costs the application: it bounds how many it is given at once while the
/// device is polled, and how many answers wait for the end of a turn.
#[derive(Default)]
pub(super) struct EventCost {
    /// A moving average, ns.
    average: AtomicU64,
    /// The same of an event or of a write, whichever were more, no turn of which counts for
    /// more than [`HELD_MOST`].
    held: AtomicU64,
    /// When the last wait returned, ns since the stack started, and with how many
    /// events; 0: not noted.
    returned_at: AtomicU64,
    returned: AtomicUsize,
}

impl EventCost {
    /// Notes what the application was given, and when: at about `seen`, which will do
    /// where no poll will be due. The clock is not read then.
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

    /// Measures what an event cost, if the last wait noted it, and one of so many writes. A
    /// turn without events may write, too: one that goes on with what it had left.
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

    /// How many writes may wait for the end of a turn: as many as there are within [`HOLD`].
    fn most_held(&self) -> u32 {
        (HOLD / self.held.load(Ordering::Relaxed).max(1)) as u32
    }
}

impl PollContext {
    /// How many waits have begun here.
    pub fn wait_number(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The calling thread enters.
    pub fn enter(&self) -> Inside<'_> {
        self.threads_inside.fetch_add(1, Ordering::SeqCst);
        Inside {
            context: self,
            before: CURRENT_CONTEXT.replace(std::ptr::from_ref(self).addr()),
        }
    }

    /// The beginning of a wait, `now`: sends the application's last output, runs timers,
    /// polls the device if that is due, and runs the protocol on the frames that wait.
    ///
    /// # Errors
    /// ENETDOWN and what else the device reports.
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

    /// `seen`: when the wait begins, and when it was last known to go on.
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
            // A thread that is woken for nothing, again and again, does not stay.
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

    /// How many events the application may have at once, of `most`: as many as it will
    /// have dealt with when the device is due to be polled again, by what one cost
    /// lately. What is lost when the ring is full are segments of connections, too.
    pub fn most_events(&self, core: &Core, most: usize) -> usize {
        let Some(away) = core.receiver.until_due(core) else {
            return most;
        };
        let cost = self.cost.average.load(Ordering::Relaxed).max(1);
        (away.as_nanos() as u64 / cost).clamp(1, most.max(1) as u64) as usize
    }
}
