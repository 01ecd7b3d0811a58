//! Sleeps until frames or other events come.

use super::rounds::{Caller, Progress};
use super::*;
use crate::core::Core;
use crate::lock::lock;
use crate::threads::{Waitable, Waker, take_interruption};

/// The frames that are not for the stack, at the last look.
///
/// Interrupts for them come ahead of every thread. If they are many, a sleeper is not
/// woken for its own frames.
#[derive(Debug, Default)]
pub(super) struct OthersFrames {
    at: Duration,
    frames: u64,
    flood: bool,
}

/// Rounds without sleep after which the kernel is asked all the same: the device must not
/// hold up the kernel's descriptors or signals.
const ASK_KERNEL_EVERY: u32 = 64;

/// Rounds after which a leader resigns. Counted are rounds that woke another thread and
/// found nothing for the leader itself, and rounds after which a higher thread took the
/// lead over.
const ROUNDS_FOR_OTHERS: u32 = 16;

/// The pause before frames that a device did not accept are sent again.
const SEND_AGAIN: Duration = Duration::from_millis(1);

impl Receiver {
    /// Sleeps until one of `sockets` has input, or the deadline. Returns true when one
    /// has.
    pub fn sleep(
        &self,
        core: &Core,
        sockets: &[&dyn Waitable],
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        self.sleep_masked(core, sockets, deadline, None)
    }

    /// As [`Receiver::sleep`], with `signals` blocked in place of those that are.
    pub fn sleep_masked(
        &self,
        core: &Core,
        sockets: &[&dyn Waitable],
        deadline: Option<Instant>,
        signals: Option<&tidewall_sys::SignalSet>,
    ) -> io::Result<bool> {
        let has_input = || sockets.iter().any(|socket| socket.has_input());
        if has_input() {
            return Ok(true);
        }
        if !self.has_no_device(core) && core.output.sockets() == 0 {
            let by_others = |queue: &QueueHandle| queue.polled_by_others.load(Ordering::Relaxed);
            let sent = self.sent();
            let most = self.spin_trial.as_ref().map_or(self.spin.most, |trial| {
                trial.time(sent, || core.now(), tidewall_sys::process_time, &self.spin)
            });
            let answers = self.spin.begins(sent) && !self.queues.iter().any(by_others);
            // If receive control forbids sleeping, the thread would poll in any case.
            if answers || self.waiting() == Waiting::Poll {
                let (found, polled) = self.poll_before_sleep(core, most, has_input)?;
                if answers {
                    self.spin.ended(found);
                    if let Some(trial) = &self.spin_trial {
                        trial.ended(found, polled);
                    }
                }
                if found {
                    return Ok(true);
                }
            }
        }
        let waker = thread_waker()?;
        waker.clear_if_signalled();
        waker.note_priority();
        let leads = self.leadership.enter(&waker);
        for socket in sockets {
            socket.enter(&waker);
        }
        let armed_sleep = self.waiting() == Waiting::Sleep(Duration::ZERO);
        if !leads && armed_sleep && self.queues.iter().any(|q| q.masked.load(Ordering::Relaxed)) {
            // We polled and leave: the leader must arm it.
            self.leadership.wake_leader();
        }
        let result = self.sleep_entered(core, sockets, deadline, signals, &waker, has_input);
        for socket in sockets {
            socket.leave(&waker);
        }
        self.leadership.leave(&waker);
        core.helper.thread_leaves();
        // The thread that woke us for it wakes no other thread.
        match result {
            Ok(true) => Ok(true),
            _ if has_input() => Ok(true),
            other => other,
        }
    }

    /// Polls before a sleep for `most`, no longer than may pay ([`Spin`]). Returns
    /// whether and after how long a frame came. The caller has entered no wait queue for
    /// it.
    fn poll_before_sleep(
        &self,
        core: &Core,
        most: Duration,
        has_input: impl Fn() -> bool,
    ) -> io::Result<(bool, Duration)> {
        let began = core.now();
        let mut now = began;
        while now < began + most {
            now = self.rounds(core, Caller::Poller, now)?.ended;
            if has_input() {
                return Ok((true, now - began));
            }
        }
        Ok((false, now - began))
    }

    /// Frames sent so far.
    fn sent(&self) -> u64 {
        self.queues
            .iter()
            .map(QueueHandle::sent)
            .fold(0, u64::wrapping_add)
    }

    fn sleep_entered(
        &self,
        core: &Core,
        sockets: &[&dyn Waitable],
        deadline: Option<Instant>,
        signals: Option<&tidewall_sys::SignalSet>,
        waker: &Arc<Waker>,
        has_input: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut descriptors = Vec::with_capacity(8);
        let mut fired = Vec::with_capacity(8);
        let mut rounds = 0u32;
        let mut sends = false;
        let mut for_others = 0;
        let mut leads = false;
        loop {
            let led = std::mem::replace(&mut leads, self.leadership.is_led_by(waker));
            let mut progress = Progress::none(core.now());
            let no_device = self.has_no_device(core);
            if leads && (sends || !self.device_polls()) {
                progress = self.rounds(core, Caller::Sleeper, progress.ended)?;
            } else if sends {
                progress.ended = self.round(core, false)?.ended;
            }
            // Acknowledgments and data of the application's last turn.
            sends = core.before_sleep(progress.ended) && !core.netdev.is_gone();
            if has_input() {
                return Ok(true);
            }
            let has_led_for_others = match leads {
                true => self.leadership.has_woken_another(waker),
                // A higher thread has taken the lead over.
                false => led,
            };
            if has_led_for_others {
                for_others += 1;
                // If no thread would look while all threads are away, it goes on.
                if for_others >= ROUNDS_FOR_OTHERS && core.helper.is_running() {
                    self.leadership.resign(waker);
                    leads = false;
                    core.helper.wake();
                }
            }
            if take_interruption() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let waiting = if leads && !no_device {
                self.waiting()
            } else {
                Waiting::Sleep(Duration::ZERO)
            };
            let interval = match waiting {
                Waiting::Sleep(interval) => interval,
                Waiting::Poll => Duration::ZERO,
            };
            let again = match waiting {
                _ if progress.held => true,
                _ if progress.stopped => false,
                Waiting::Poll => true,
                // Others' frames, or a device still busy: look again before
                // sleeping, so that it is armed when we do.
                Waiting::Sleep(Duration::ZERO) => progress.frames > 0 || (leads && !progress.armed),
                // Its timer runs: it will interrupt.
                Waiting::Sleep(_) => false,
            };
            let spins = sends || again;
            if spins {
                if deadline.is_some_and(|deadline| core.clock.instant_now() >= deadline) {
                    return Ok(false);
                }
                rounds = rounds.wrapping_add(1);
                if !rounds.is_multiple_of(ASK_KERNEL_EVERY) {
                    continue;
                }
            }
            let now = progress.ended;
            let mut timeout = match deadline {
                Some(deadline) => match deadline.checked_duration_since(core.clock.instant_at(now))
                {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return Ok(false),
                },
                None => None,
            };
            if progress.stopped {
                timeout = Some(timeout.map_or(STOPPED_SLEEP, |t| t.min(STOPPED_SLEEP)));
            }
            if core.output.is_held_up() && !core.netdev.is_gone() {
                timeout = Some(timeout.map_or(SEND_AGAIN, |t| t.min(SEND_AGAIN)));
            }
            if progress.missing {
                timeout = Some(timeout.map_or(RECONCILE_AFTER, |t| t.min(RECONCILE_AFTER)));
            }
            if let Some(expiry) = lock(&core.ip.fragments).next_expiry(now) {
                timeout = Some(timeout.map_or(expiry, |t| t.min(expiry)));
            }
            if let Some(next) = core.next_timer(now).filter(|_| leads) {
                if next.is_zero() && !spins {
                    continue;
                }
                timeout = Some(timeout.map_or(next, |t| t.min(next)));
            }
            if spins {
                timeout = Some(Duration::ZERO);
            } else if leads {
                if self.set_interrupt_interval(interval) {
                    self.timer_batches.store(0, Ordering::Relaxed);
                    continue;
                }
                self.looks.begin();
            }
            descriptors.clear();
            descriptors.push(waker.descriptor());
            let kernel = descriptors.len();
            descriptors.extend(sockets.iter().map(|socket| socket.descriptor_for(waker)));
            if leads && !spins && !no_device {
                for queue in &self.queues {
                    let mut poller = queue.poller.lock();
                    poller.refill_to_sleep();
                    descriptors.extend(poller.descriptors());
                }
            }
            if !spins {
                for host in self.host.get().into_iter().flatten() {
                    host.application_sleeps();
                }
            }
            core.clock
                .sleep_on(&descriptors, timeout, signals, &mut fired)?;
            for &place in &fired {
                if place == 0 {
                    waker.clear();
                } else if let Some(socket) = sockets.get(place - kernel) {
                    socket.kernel_has_input();
                }
            }
            for ((place, descriptor), socket) in
                descriptors.iter().enumerate().skip(kernel).zip(sockets)
            {
                if *descriptor >= 0 && !fired.contains(&place) {
                    socket.kernel_has_none();
                }
            }
            if leads {
                self.collect(core);
            }
            lock(&core.ip.fragments).expire(|| core.now());
            if has_input() {
                return Ok(true);
            }
            let gives_way = waker.note_priority()
                && self.leadership.is_led_by(waker)
                && self.leadership.give_way(waker);
            if !gives_way {
                self.leadership.lead(waker);
            }
        }
    }

    /// Returns true if a waiting thread has nothing to poll: threads receive, or the
    /// interface is gone.
    fn has_no_device(&self, core: &Core) -> bool {
        self.architecture.has_threads() || core.netdev.is_gone()
    }

    /// Returns true while frames that are not for the stack flood it: a sleeping thread
    /// would find a number of them when it is woken. Receive control handles our own
    /// frames.
    pub(super) fn is_flooded(&self, now: Duration) -> bool {
        if !self.deferral.is_on() {
            // The interrupts are the kernel's.
            return false;
        }
        let mut others = lock(&self.others);
        let elapsed = now.saturating_sub(others.at);
        let wake_up = self.wake_up.time();
        if elapsed >= wake_up {
            let count = |queue: &QueueHandle| {
                let driver = queue.shared.driver();
                driver
                    .counter(Counter::Frames)
                    .wrapping_sub(driver.counter(Counter::Channel))
                    .wrapping_sub(driver.overflowed())
            };
            let frames = self.queues.iter().map(count).fold(0, u64::wrapping_add);
            // Read one after the other, the counters may disagree by a few.
            let came = (frames.wrapping_sub(others.frames) as i64).max(0) as f64;
            let flood = came * wake_up.as_secs_f64() >= FLOOD * elapsed.as_secs_f64();
            if flood || !others.flood || elapsed >= wake_up * FLOOD_HYSTERESIS {
                *others = OthersFrames {
                    at: now,
                    frames,
                    flood,
                };
            }
        }
        others.flood
    }
}
