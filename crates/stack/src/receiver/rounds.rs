//! Rounds of receiving over all queues, and the work that follows them.

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use tidewall_receive::poller::{Round, WAITED};

use super::classes::nanoseconds;
use super::*;
use crate::core::Core;
use crate::lock::{MutexGuard, rank};

/// The result of a round over all queues.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub frames: usize,
    pub missing: bool,
    pub armed: bool,
    /// Receive control forbade a queue to take anything.
    pub stopped: bool,
    /// A class was not polled because one above is active, or the reserved queue because
    /// the flood continues.
    pub held: bool,
    /// The stack's time when it ended.
    pub ended: Duration,
}

impl Progress {
    /// No round, at `now`.
    pub(super) fn none(now: Duration) -> Self {
        Progress {
            frames: 0,
            missing: false,
            armed: true,
            stopped: false,
            held: false,
            ended: now,
        }
    }
}

/// Channels that received frames; kept so that a round allocates nothing. A thread that
/// is ending has lost it, and allocates.
struct Ready {
    channels: Vec<u16>,
}

thread_local! {
    static READY: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
}

impl Ready {
    /// Returns an empty list. The caller takes the list, since the work after a round may
    /// make another round.
    fn none() -> Self {
        let channels = READY.try_with(RefCell::take).unwrap_or_default();
        Ready { channels }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let mut channels = std::mem::take(&mut self.channels);
        channels.clear();
        let _ = READY.try_with(|place| place.replace(channels));
    }
}

/// The reason for which a thread polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// It will sleep on the devices if there is nothing.
    Sleeper,
    /// It does not wait.
    Visitor,
    /// The device is polled, and it will be back when it has dealt with what comes.
    Poller,
    /// The same, and as long as it polls the device need not interrupt.
    Spinner,
}

/// The way in which a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The device interrupts: what it delivered is sorted.
    Look,
    /// It is polled, and stays masked.
    Poll,
    /// It is polled once more, and interrupts from then on.
    Arm,
}

impl Receiver {
    /// Returns true while a device has to be polled for what it has, or had something.
    #[inline]
    pub fn is_polling(&self) -> bool {
        self.queues.iter().any(|queue| {
            if queue.delivers {
                queue.masked.load(Ordering::Relaxed)
            } else {
                queue.last_round.load(Ordering::Relaxed) > 0
            }
        })
    }

    /// Returns the time at which the first queue is due to be polled, ns since the start;
    /// [`DELIVER_FIRST`] or [`NEVER`] if none.
    fn due(&self) -> u64 {
        let due = |queue: &QueueHandle| queue.due.load(Ordering::Relaxed);
        self.queues.iter().map(due).min().unwrap_or(NEVER)
    }

    /// Returns true when a poll will be due.
    #[inline]
    pub fn will_be_due(&self) -> bool {
        self.due() < DELIVER_FIRST
    }

    /// Returns true if waiting frames must be delivered before the next poll.
    #[inline]
    pub fn delivers_first(&self) -> bool {
        self.due() == DELIVER_FIRST
    }

    /// Returns the time for which the application may be away before a poll is due;
    /// `None`: no limit.
    pub fn until_due(&self, core: &Core) -> Option<Duration> {
        match self.due() {
            DELIVER_FIRST | NEVER => None,
            due => Some(Duration::from_nanos(
                due.saturating_sub(nanoseconds(core.now())),
            )),
        }
    }

    /// Polls if a poll is due ([`tidewall_receive::schedule`]): what a call does before
    /// it delivers.
    ///
    /// # Errors
    /// The device's errors.
    #[inline]
    pub fn poll_if_due(&self, core: &Core) -> io::Result<()> {
        self.poll_between(core, 0).map(drop)
    }

    /// As [`Receiver::poll_if_due`], by a call that has delivered `step` frames since it
    /// looked. Returns how many more it delivers before it looks again. That is twice as
    /// many, if four times the time is left.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn poll_between(&self, core: &Core, step: usize) -> io::Result<usize> {
        let due = self.due();
        if due >= DELIVER_FIRST {
            return Ok(step);
        }
        let now = core.now();
        let time = nanoseconds(now);
        if time >= due {
            self.rounds(core, Caller::Poller, now)?;
            return Ok(step);
        }
        // Since the last round, which is not less than since the last look.
        let took = time.saturating_sub(self.round_ended.load(Ordering::Relaxed));
        Ok(if took.saturating_mul(4) <= due - time {
            step * 2
        } else {
            step
        })
    }

    /// Makes one round on every queue, in order: queue 0 is polled first. A queue that
    /// another thread is polling is left to it, unless the caller `leads`. A thread about
    /// to sleep on the devices must be the last to poll them.
    pub fn round(&self, core: &Core, leads: bool) -> io::Result<Progress> {
        let caller = if leads {
            Caller::Sleeper
        } else {
            Caller::Visitor
        };
        self.rounds(core, caller, core.now())
    }

    /// Returns the number of rounds over all queues so far.
    #[inline]
    pub fn rounds_made(&self) -> u64 {
        self.rounds_made.load(Ordering::Relaxed)
    }

    /// Makes a round for a receive call that does not wait and found nothing. `asked`:
    /// the rounds made when its socket was asked before; `made`: when it was asked now.
    /// Returns true if a round was made, which may have brought something.
    ///
    /// A round serves all sockets. If one was made in between, no longer ago than a
    /// wake-up takes, this call has just seen its frames. So a thread that asks its
    /// sockets one after the other polls once for all of them.
    pub fn round_after_asking(&self, core: &Core, asked: u64, made: u64) -> io::Result<bool> {
        let now = core.now();
        if asked != made {
            let ended = Duration::from_nanos(self.round_ended.load(Ordering::Relaxed));
            if now.saturating_sub(ended) < self.wake_up.time() {
                return Ok(false);
            }
        }
        self.rounds(core, Caller::Visitor, now)?;
        Ok(true)
    }

    /// As [`Receiver::round`], by a thread that will be back when it has dealt with
    /// what comes, and sleeps first if it will not.
    pub fn round_and_return(&self, core: &Core) -> io::Result<Progress> {
        self.rounds(core, Caller::Poller, core.now())
    }

    /// As [`Receiver::round_and_return`], by a thread that polls until something comes: the
    /// device then does not interrupt the sender's processor.
    pub fn poll_and_return(&self, core: &Core) -> io::Result<Progress> {
        self.rounds(core, Caller::Spinner, core.now())
    }

    /// Decides how a queue is served at `now`. `polls`: the driver's poll is known.
    fn way(&self, now: Duration, queue: &QueueHandle, polls: bool, caller: Caller) -> Way {
        if queue.polled_by_others.load(Ordering::Relaxed) {
            return Way::Look;
        }
        if self.waiting() != Waiting::Sleep(Duration::ZERO) {
            // Receive control has set a timer, or forbids to sleep.
            return Way::Poll;
        }
        let masked = queue.masked.load(Ordering::Relaxed);
        // Under load an armed poll would go on in softirq, ahead of every thread.
        let many = queue.last_round.load(Ordering::Relaxed) >= MANY as u64;
        let sleeps = caller == Caller::Sleeper;
        // A thread that sleeps on the device while we work needs its interrupt, too.
        let interrupts = sleeps || self.leadership.is_taken();
        if !queue.delivers {
            return if interrupts && !many {
                Way::Arm
            } else {
                Way::Poll
            };
        }
        let found = queue.last_round.load(Ordering::Relaxed) > 0;
        match masked {
            // A timer of polls would hold frames back that come by interrupt alone.
            true if !polls => Way::Arm,
            false if !polls => Way::Look,
            _ if caller == Caller::Spinner || self.holds_flood(now) => Way::Poll,
            true if many || !interrupts => Way::Poll,
            // A sleeper has looked once more by then.
            true if sleeps && found => Way::Poll,
            _ if sleeps && self.is_flooded(now) => Way::Poll,
            true => Way::Arm,
            false if caller == Caller::Poller || many || self.looks.are_busy() => Way::Poll,
            false => Way::Look,
        }
    }

    /// A round over all queues that begins at `now`. The clock is read once for each
    /// queue, when it was polled, which is when the next one's turn begins.
    pub(super) fn rounds(
        &self,
        core: &Core,
        caller: Caller,
        now: Duration,
    ) -> io::Result<Progress> {
        if self.architecture.has_threads() || core.netdev.is_gone() {
            return Ok(Progress::none(core.now()));
        }
        let mut progress = Progress::none(now);
        let woken_before = woken_higher();
        let leads = caller == Caller::Sleeper;
        let mut failed = Ok(());
        let started = nanoseconds(now);
        if self.classed {
            self.queues
                .iter()
                .for_each(|queue| queue.class_share.end_round(started));
        }
        let mut active = false;
        let reserved = self.reserved.get();
        for (number, queue) in self.queues.iter().enumerate() {
            queue.note_poll();
            let began = progress.ended;
            let reserved = reserved.filter(|&(place, _)| place == number);
            let mut budget = None;
            if let Some((_, channel)) = reserved {
                budget = self.wants_reserved(core, queue, channel, leads, began);
                if budget.is_none() {
                    progress.held = true;
                    continue;
                }
            }
            if active && queue.class_share.is_held(started) {
                progress.held = true;
                continue;
            }
            let mut poller = match queue.poller.try_lock() {
                Some(poller) => poller,
                None if leads => queue.poller.lock(),
                None => continue,
            };
            // The port may have been put back, and the limit been lifted, in between.
            if budget.is_some() && self.reserved.get().is_some() {
                poller.limit_budget(budget);
            }
            let mut ready = Ready::none();
            let napi = poller.napi();
            queue.note_napi(napi);
            let way = match self.way(began, queue, napi.ids[0] != 0, caller) {
                // A manager that lags has left a timer on, which would keep frames back.
                Way::Look
                    if leads
                        && (queue.armed_early.load(Ordering::Relaxed)
                            || poller.moderation_lags()) =>
                {
                    Way::Arm
                }
                way => way,
            };
            let round = match way {
                Way::Look => {
                    let round = poller.collect(&mut ready.channels);
                    progress.ended = core.now();
                    let looked = nanoseconds(progress.ended);
                    self.looks.note(looked, round.frames, self.wake_up);
                    Ok(round)
                }
                Way::Poll => {
                    let round = self.poll(core, queue, &mut poller, &mut ready, caller, began);
                    round.map(|(round, ended)| {
                        progress.ended = ended;
                        round
                    })
                }
                Way::Arm => {
                    poller.set_moderation(InterruptModeration::Enabled);
                    let early = poller.moderation_lags();
                    queue.armed_early.store(early, Ordering::Relaxed);
                    queue.load.end();
                    let round = poller.round(Interrupt::Armed, &mut ready.channels);
                    progress.ended = core.now();
                    // A poll that used up its budget continues in softirq.
                    let full = !matches!(&round, Ok(round) if round.driven < POLL_MAX.into());
                    queue.masked.store(full, Ordering::Relaxed);
                    queue.due.store(NEVER, Ordering::Relaxed);
                    self.looks.begin();
                    round
                }
            };
            let round = match round {
                Ok(round) => round,
                Err(error) => {
                    // Frames that the device had delivered before are sorted already.
                    self.deliver(core, poller, ready);
                    failed = Err(error);
                    continue;
                }
            };
            progress.armed &= !queue.masked.load(Ordering::Relaxed);
            let found = round.driven.max(round.frames as u64);
            queue.last_round.store(found, Ordering::Relaxed);
            if round.exhausted {
                self.timer_batches.store(0, Ordering::Relaxed);
            }
            if self.deferral.came(round.frames, &mut poller) {
                core.netdev.link.wake.signal();
            }
            let ended = progress.ended;
            let stopped = self.control(ended, queue, &mut poller, &round.seen(), false);
            progress.stopped |= stopped;
            if let Some((_, channel)) = reserved {
                self.note_reserved(core, queue, channel, round.exhausted, ended);
                progress.held |= self.holds_flood(ended);
            }
            progress.frames += round.frames;
            if self.classed {
                if round.frames > 0 {
                    queue.class_share.note_frames(started);
                }
                if active {
                    queue.class_share.begin_round(started);
                }
                active |= queue.class_share.is_active(started);
            }
            progress.missing |= round.missing > 0;
            self.deliver(core, poller, ready);
        }
        if !leads && !progress.armed && !core.netdev.has_kernel && self.leadership.is_taken() {
            // The in-memory device has no timer that ends a deferral.
            self.leadership.wake_leader();
        }
        if progress.ended == now {
            // Other threads have all the queues. A thread that polls for a time needs to
            // see it pass.
            progress.ended = core.now();
        }
        self.round_ended
            .store(nanoseconds(progress.ended), Ordering::Relaxed);
        self.rounds_made.fetch_add(1, Ordering::Relaxed);
        if yield_to_higher(woken_before) {
            progress.ended = core.now();
        }
        failed.map(|()| progress)
    }

    /// Polls for a thread that polls again. Returns also the time at which the poll
    /// ended. Under a load that persists ([`Load`]) it leaves the device masked; before
    /// that the device interrupts between two polls.
    ///
    /// The timer is put out of the way *before* the poll that starts it. If it expired
    /// while these frames are processed, the device would be polled in softirq, ahead of
    /// every thread and without a budget.
    fn poll(
        &self,
        core: &Core,
        queue: &QueueHandle,
        poller: &mut Poller,
        ready: &mut Ready,
        caller: Caller,
        began: Duration,
    ) -> io::Result<(Round, Duration)> {
        let coalesces = self.coalesces();
        // Until the driver's poll is known frames come by interrupt.
        let polls = !queue.delivers || poller.napi().ids[0] != 0;
        let reserved = self.reserved.get();
        let moderation = match caller {
            Caller::Spinner => Some(InterruptModeration::BusyPoll),
            _ if reserved.is_some() => Some(InterruptModeration::BusyPoll),
            Caller::Poller if coalesces => Some(InterruptModeration::BusyPoll),
            _ if coalesces => None,
            _ if queue.load.persists() => Some(InterruptModeration::BusyPoll),
            _ => Some(InterruptModeration::Enabled),
        };
        if let Some(moderation) = moderation.filter(|_| polls) {
            poller.set_moderation(moderation);
        }
        queue.masked.store(true, Ordering::Relaxed);
        let mut round = poller.round(Interrupt::Masked, &mut ready.channels)?;
        let full = round.exhausted || round.frames >= MANY;
        if polls && coalesces && full && poller.set_moderation(InterruptModeration::BusyPoll) {
            // The running timer is the short one, and processing these frames takes
            // longer than that: another poll restarts it.
            if let Ok(second) = poller.round(Interrupt::Masked, &mut ready.channels) {
                self.control(core.now(), queue, poller, &round.seen(), false);
                round = Round {
                    frames: round.frames + second.frames,
                    ..second
                };
            }
        }
        queue.load.note(round.driven.max(round.frames as u64));
        let ended = core.now();
        let (from, to) = (nanoseconds(began), nanoseconds(ended));
        let due = poller.polled(from, to, &round);
        let due = match reserved {
            None => due,
            Some((number, _)) if number as u32 == queue.shared.queue() => NEVER,
            Some(_) => due.min(self.reserved.looked(queue, &round, from, to)),
        };
        queue.due.store(due, Ordering::Relaxed);
        Ok((round, ended))
    }

    /// Reports a round that ended at `now` to receive control. Returns true when it
    /// forbids the queue to accept anything.
    fn control(
        &self,
        now: Duration,
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
        if let Some(waiting) = poller.control(now, round, activity) {
            let value = match waiting {
                Waiting::Poll => DO_NOT_SLEEP,
                Waiting::Sleep(interval) => interval.as_nanos() as u64,
            };
            queue.interrupt_interval.store(value, Ordering::Relaxed);
        }
        poller.is_stopped()
    }

    /// Returns how a poller that found nothing waits: as the most impatient queue
    /// requires.
    #[inline]
    pub fn waiting(&self) -> Waiting {
        let waits = |queue: &QueueHandle| match queue.polled_by_others.load(Ordering::Relaxed) {
            true => 0,
            false => queue.interrupt_interval.load(Ordering::Relaxed),
        };
        if self.queues.iter().any(|queue| waits(queue) == DO_NOT_SLEEP) {
            return Waiting::Poll;
        }
        Waiting::Sleep(Duration::from_nanos(
            self.queues.iter().map(waits).min().unwrap_or(0),
        ))
    }

    /// Prepares a sleep that only the device ends: it may interrupt after `interval`.
    /// Returns true when a timer of another length runs: only another poll changes it.
    pub(super) fn set_interrupt_interval(&self, interval: Duration) -> bool {
        if self.architecture.has_threads() || interval.is_zero() {
            // The threads set it, or the last poll did.
            return false;
        }
        let mut changed = false;
        for queue in &self.queues {
            changed |= queue
                .poller
                .lock()
                .set_moderation(InterruptModeration::DeferFor(interval));
        }
        changed
    }

    /// Returns true when the device's timer brings frames in batches of bearable size. An
    /// extra poll between two of them would only cost.
    #[inline]
    pub fn device_polls(&self) -> bool {
        if self.reserved.get().is_some() {
            return false;
        }
        let batches = self.timer_batches.load(Ordering::Relaxed);
        // Receive control may have decided otherwise since the last batch: a thread that
        // waits without a timer, or without sleeping, must poll.
        self.coalesces() && !batches.is_multiple_of(TIMER_BATCHES)
    }

    /// Returns true while the device may interrupt only when its timer expires.
    fn coalesces(&self) -> bool {
        matches!(self.waiting(), Waiting::Sleep(interval) if !interval.is_zero())
    }

    /// Sorts what devices delivered by interrupt while we slept.
    pub fn collect(&self, core: &Core) {
        if self.architecture.has_threads() {
            // Their frames have not been demultiplexed.
            return;
        }
        let woken_before = woken_higher();
        for queue in &self.queues {
            let mut poller = queue.poller.lock();
            let mut ready = Ready::none();
            let round = poller.collect(&mut ready.channels);
            if round.frames > 0 {
                if self.deferral.came(round.frames, &mut poller) {
                    core.netdev.link.wake.signal();
                }
                self.control(core.now(), queue, &mut poller, &round.seen(), true);
                queue.load.note(round.frames as u64);
                let loaded = self.coalesces() || queue.load.persists();
                // A thread that cannot poll could not arm it either, and would wait awake
                // for ever.
                if loaded && round.frames >= POLL_MAX as usize && poller.napi().ids[0] != 0 {
                    // The timer's polls have no budget: from now on we poll.
                    poller.set_moderation(InterruptModeration::BusyPoll);
                    queue.masked.store(true, Ordering::Relaxed);
                }
                if self.coalesces() && round.frames < TIMER_BATCH {
                    self.timer_batches.fetch_add(1, Ordering::Relaxed);
                } else {
                    self.timer_batches.store(0, Ordering::Relaxed);
                }
            }
            self.deliver(core, poller, ready);
        }
        yield_to_higher(woken_before);
    }

    /// Does the work after sorting: frames that the kernel delivered, wake-ups, memory
    /// pressure.
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
            let number = channel & !WAITED;
            if number != channel && ready.channels.contains(&number) {
                // The thread woken for the rest processes it, too.
                continue;
            }
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
