//! Rounds of receiving over all queues, and what follows them.

use super::classes::nanoseconds;
use super::*;
use crate::lock::{MutexGuard, rank};

/// What a round over all queues did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) frames: usize,
    pub(crate) missing: bool,
    pub(crate) armed: bool,
    /// Receive control forbade a queue to take anything.
    pub(crate) stopped: bool,
    /// A class was not polled because one above is active.
    pub(crate) held: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            frames: 0,
            missing: false,
            armed: true,
            stopped: false,
            held: false,
        }
    }
}

#[derive(Default)]
struct Ready {
    channels: Vec<u16>,
}

impl Receiver {
    /// True while rounds find frames: then polling pays, and sleeping does not.
    pub(crate) fn is_busy(&self) -> bool {
        self.queues
            .iter()
            .any(|queue| queue.last_round.load(Ordering::Relaxed) >= 8)
    }

    /// True while so much comes that a device left alone loses some of it soon.
    pub(crate) fn is_flooded(&self) -> bool {
        self.queues
            .iter()
            .any(|queue| queue.last_round.load(Ordering::Relaxed) >= FLOODED_ROUND)
    }

    /// One round on every queue, in order: queue 0 is polled first. A queue
    /// that another thread is polling is left to it, unless the caller `leads`:
    /// who is about to sleep on the devices must be the last to poll them.
    pub(crate) fn round(&self, core: &Core, leads: bool) -> io::Result<Progress> {
        self.rounds(core, leads, false)
    }

    /// As [`Receiver::round`], by a thread that will be back when it has dealt with
    /// what comes, and sleeps first if it will not: the device's timer is put out
    /// of the way *before* the poll that starts it. One that expired while these
    /// frames are dealt with would have the device polled in softirq, ahead of
    /// everybody and without a budget.
    pub(crate) fn round_and_return(&self, core: &Core) -> io::Result<Progress> {
        self.rounds(core, false, true)
    }

    fn rounds(&self, core: &Core, leads: bool, returns: bool) -> io::Result<Progress> {
        if self.architecture.has_threads() || core.netdev.check().is_err() {
            return Ok(Progress::default());
        }
        // A leader that sleeps while we poll needs the interrupt too. Where
        // receive control coalesces, the device's timer takes its place, and who
        // does not sleep needs neither: a full armed poll goes on in softirq.
        let arm = self.waiting() == Waiting::Sleep(Duration::ZERO)
            && (leads || self.leadership.is_taken());
        let mut progress = Progress::default();
        let mut failed = Ok(());
        let now = nanoseconds(core.now());
        if self.classed {
            self.queues
                .iter()
                .for_each(|queue| queue.class_share.end_round(now));
        }
        let mut active = false;
        for queue in &self.queues {
            queue.note_poll();
            if active && queue.class_share.is_held(now) {
                progress.held = true;
                continue;
            }
            let mut poller = match queue.poller.try_lock() {
                Some(poller) => poller,
                None if leads => queue.poller.lock(),
                None => continue,
            };
            // Arming is for a device that has nothing for us: under load its
            // poll would go on in softirq, ahead of everybody.
            let busy = queue.last_round.load(Ordering::Relaxed) >= FLOODED_ROUND;
            let interrupt = if arm && !busy {
                Interrupt::Armed
            } else {
                Interrupt::Masked
            };
            if returns {
                poller.set_moderation(InterruptModeration::BusyPoll);
            }
            let mut ready = Ready::default();
            let round = match poller.round(interrupt, &mut ready.channels) {
                Ok(round) => round,
                Err(error) => {
                    // What the device had delivered before is sorted already.
                    self.deliver(core, poller, ready);
                    failed = Err(error);
                    continue;
                }
            };
            // A poll that found work defers the interrupt again, no matter
            // for whom.
            let armed = interrupt == Interrupt::Armed && round.driven == 0;
            queue.masked.store(!armed, Ordering::Relaxed);
            progress.armed &= armed;
            queue.last_round.store(round.driven, Ordering::Relaxed);
            if round.exhausted {
                self.timer_batches.store(0, Ordering::Relaxed);
            }
            let full = round.exhausted || round.frames >= MANY;
            let steady = self.polls_steadily(core);
            let restarts = (steady || full) && poller.set_moderation(InterruptModeration::BusyPoll);
            if restarts && full {
                // The timer that runs is the short one, and what has come takes
                // longer than that: another poll starts it anew.
                if let Ok(second) = poller.round(Interrupt::Masked, &mut ready.channels) {
                    self.control(core, queue, &mut poller, &second.seen(), false);
                    progress.frames += second.frames;
                    queue.masked.store(true, Ordering::Relaxed);
                    progress.armed = false;
                }
            }
            if self.deferral.came(round.frames, &mut poller) {
                core.netdev.link.wake.signal();
            }
            let stopped = self.control(core, queue, &mut poller, &round.seen(), false);
            progress.stopped |= stopped;
            progress.frames += round.frames;
            if self.classed {
                if round.frames > 0 {
                    queue.class_share.note_frames(now);
                }
                if active {
                    queue.class_share.begin_round(now);
                }
                active |= queue.class_share.is_active(now);
            }
            progress.missing |= round.missing > 0;
            self.deliver(core, poller, ready);
        }
        if !leads && !progress.armed && !core.netdev.has_kernel && self.leadership.is_taken() {
            // The in-memory device has no timer that ends a deferral.
            self.leadership.wake_leader();
        }
        failed.map(|()| progress)
    }

    /// Tells receive control of a round. True when it forbids the queue to take
    /// anything.
    fn control(
        &self,
        core: &Core,
        queue: &QueueHandle,
        poller: &mut Poller,
        round: &control::Round,
        interrupted: bool,
    ) -> bool {
        let sent = queue.sent.load(Ordering::Relaxed);
        let reported = queue.sent_reported.swap(sent, Ordering::Relaxed);
        let activity = Activity {
            interrupted,
            sent: sent.wrapping_sub(reported),
        };
        if let Some(waiting) = poller.control(core.now(), round, activity) {
            let value = match waiting {
                Waiting::Poll => DO_NOT_SLEEP,
                Waiting::Sleep(interval) => interval.as_nanos() as u64,
            };
            queue.interrupt_interval.store(value, Ordering::Relaxed);
        }
        poller.is_stopped()
    }

    /// How a poller that found nothing is to wait: as the most impatient queue
    /// wants.
    pub(crate) fn waiting(&self) -> Waiting {
        let waits = |queue: &QueueHandle| queue.interrupt_interval.load(Ordering::Relaxed);
        if self.queues.iter().any(|queue| waits(queue) == DO_NOT_SLEEP) {
            return Waiting::Poll;
        }
        Waiting::Sleep(Duration::from_nanos(
            self.queues.iter().map(waits).min().unwrap_or(0),
        ))
    }

    /// Counts a round; true when rounds follow each other so closely that the
    /// device's own timer has nothing to do.
    fn polls_steadily(&self, core: &Core) -> bool {
        let steady = &self.steady;
        if steady.rounds_since_sleep.fetch_add(1, Ordering::Relaxed) % STEADY_ROUNDS
            != STEADY_ROUNDS - 1
        {
            return false;
        }
        let now = core.now().as_nanos() as u64;
        let before = steady.since.swap(now, Ordering::Relaxed);
        now.saturating_sub(before) <= STEADY_TIME.as_nanos() as u64
    }

    /// Before a sleep that only the device ends: it may interrupt after
    /// `interval`, and may not be left alone for long where that is zero, since
    /// it is the kernel's too. True when a timer runs that is not that long:
    /// only another poll makes it so.
    pub(super) fn set_interrupt_interval(&self, interval: Duration) -> bool {
        if self.architecture.has_threads() {
            // Theirs to say.
            return false;
        }
        self.steady.rounds_since_sleep.store(0, Ordering::Relaxed);
        let mut changed = false;
        for queue in &self.queues {
            changed |= queue
                .poller
                .lock()
                .set_moderation(InterruptModeration::DeferFor(interval));
        }
        changed && !interval.is_zero()
    }

    /// True when the device's timer brings frames in batches of bearable size, so
    /// that a poll of ours between two of them would only cost.
    pub(crate) fn device_polls(&self) -> bool {
        let batches = self.timer_batches.load(Ordering::Relaxed);
        // Receive control may have decided otherwise since the last batch: a thread that
        // waits without a timer, or without sleeping, must poll.
        self.coalesces() && !batches.is_multiple_of(TIMER_BATCHES)
    }

    /// True while the device may interrupt only when its timer expires.
    fn coalesces(&self) -> bool {
        matches!(self.waiting(), Waiting::Sleep(interval) if !interval.is_zero())
    }

    /// Sorts what devices delivered by interrupt while we slept.
    pub(crate) fn collect(&self, core: &Core) {
        if self.architecture.has_threads() {
            // Their frames have not been demultiplexed.
            return;
        }
        for queue in &self.queues {
            let mut poller = queue.poller.lock();
            let mut ready = Ready::default();
            let round = poller.collect(&mut ready.channels);
            if round.frames > 0 {
                if self.deferral.came(round.frames, &mut poller) {
                    core.netdev.link.wake.signal();
                }
                self.control(core, queue, &mut poller, &round.seen(), true);
                if round.frames >= POLL_MAX as usize {
                    poller.set_moderation(InterruptModeration::BusyPoll);
                }
                if self.coalesces() && round.frames < TIMER_BATCH {
                    self.timer_batches.fetch_add(1, Ordering::Relaxed);
                } else {
                    self.timer_batches.store(0, Ordering::Relaxed);
                }
            }
            self.deliver(core, poller, ready);
        }
    }

    /// What follows sorting: what the kernel delivered, wake-ups, memory pressure.
    fn deliver(&self, core: &Core, mut poller: MutexGuard<'_, Poller, rank::Poller>, ready: Ready) {
        let kernel_delivered = poller.take_kernel_delivered();
        let short = poller.short_of_frames();
        let doubts = poller.take_doubt();
        drop(poller);
        if doubts {
            core.netdev.link.doubt();
        }
        for (kernel_delivered, payload) in kernel_delivered {
            core.deliver_from_kernel(kernel_delivered, &payload);
        }
        let mut last = 0;
        for &channel in &ready.channels {
            if channel != last {
                last = channel;
                core.channels.on_frames(core, channel);
            }
        }
        if short {
            core.channels.copy_out(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewall_wire::ethernet::MacAddress;

    use super::*;
    use crate::{MemoryConfig, Stack};
    use tidewall_device::memory::{LinkConfig, pair};

    #[test]
    fn whoever_may_not_sleep_polls() {
        let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
        let config = MemoryConfig {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            peer: MacAddress([2, 0, 0, 0, 0, 2]),
        };
        let stack = Stack::in_memory(end, config).unwrap();
        let core = stack.core();
        // The device's timer brings batches of bearable size ...
        core.receiver.queues[0]
            .interrupt_interval
            .store(200_000, Ordering::Relaxed);
        core.receiver.timer_batches.store(1, Ordering::Relaxed);
        assert!(core.receiver.device_polls());
        core.receiver
            .timer_batches
            .store(TIMER_BATCHES, Ordering::Relaxed);
        assert!(
            !core.receiver.device_polls(),
            "now and then we look ourselves"
        );
        // ... until somebody waits for answers: nothing may depend on it then.
        core.receiver.timer_batches.store(1, Ordering::Relaxed);
        for waiting in [DO_NOT_SLEEP, 0] {
            core.receiver.queues[0]
                .interrupt_interval
                .store(waiting, Ordering::Relaxed);
            assert!(!core.receiver.device_polls(), "{waiting}");
        }
    }
}
