//! Sleeping until something comes.

use super::rounds::Progress;
use super::*;
use crate::lock::lock;
use crate::wait_queue::{Waitable, Waker};

/// How busy the device is, which decides how a thread with nothing to do waits.
///
/// A sleeping receiver leaves the device to its interrupt, which after each
/// poll with work stays masked for T. When frames of others (the kernel's, or
/// a flood at a port nobody owns) keep it busy, our own frames would wait for T
/// with them, or be lost with the overflow of the device's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoadLevel {
    /// Sleep until the interrupt.
    Quiet,
    /// Sleep no longer than [`BUSY_SLEEP`].
    Busy,
    /// Do not sleep: every poll finds frames.
    Flooded,
}

/// What the device had done when somebody last looked.
#[derive(Debug)]
pub(super) struct LoadSample {
    pub(super) at: Duration,
    pub(super) frames: u64,
    pub(super) level: LoadLevel,
}

/// Rounds without sleep after which the kernel is asked all the same: its descriptors
/// and the signals are not the device's to hold up.
const ASK_KERNEL_EVERY: u32 = 64;

/// When to try again what a device did not take.
const SEND_AGAIN: Duration = Duration::from_millis(1);

/// What falling asleep and being woken adds to a wait, on a halted virtual
/// processor (docs/results.md: 14 µs).
const WAKE_UP: Duration = Duration::from_micros(20);

/// A thread that sleeps in the stack.
struct Sleeper<'a> {
    waker: &'a Arc<Waker>,
    /// It is the one that sleeps on the device, too.
    leads: bool,
}

impl Receiver {
    /// Sleeps until one of `sockets` has input, or the deadline. True when one
    /// has.
    pub(crate) fn sleep(
        &self,
        core: &Core,
        sockets: &[&dyn Waitable],
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        self.sleep_masked(core, sockets, deadline, None)
    }

    /// As [`Receiver::sleep`], with `signals` blocked in place of those that are.
    pub(crate) fn sleep_masked(
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
        core.netdev.check()?;
        let polls = !self.spin.most.is_zero() && !self.architecture.has_threads();
        let answered = polls && self.answered();
        let began = core.instant_now();
        if self.spin.again.load(Ordering::Relaxed) && core.tcp.sending.len() == 0 {
            // Enabled, so that the device's own interrupt delivers, while we look
            // at memory only: a poll that keeps the device masked sets a timer
            // each time, which costs a virtual machine more than it saves here.
            let end = began + self.spin.most;
            let mut armed = false;
            while core.instant_now() < end {
                if armed {
                    self.collect(core);
                } else {
                    armed = self.round(core, true)?.armed;
                }
                if has_input() {
                    return Ok(true);
                }
            }
            self.spin.again.store(false, Ordering::Relaxed);
        }
        let waker = thread_waker()?;
        waker.clear_if_signalled();
        let mut sleeper = Sleeper {
            waker: &waker,
            leads: self.leadership.enter(&waker),
        };
        for socket in sockets {
            socket.wait_queue().enter(&waker, socket.is_exclusive());
        }
        let armed_sleep = self.waiting() == Waiting::Sleep(Duration::ZERO);
        if !sleeper.leads
            && armed_sleep
            && self.queues.iter().any(|q| q.masked.load(Ordering::Relaxed))
        {
            // We polled and leave: the leader must arm it.
            self.leadership.wake_leader();
        }
        let result = self.sleep_entered(core, sockets, deadline, signals, &mut sleeper, has_input);
        for socket in sockets {
            socket.leave(&waker);
        }
        self.leadership.leave(&waker, sleeper.leads);
        // From now on nobody may be here who sees to connections.
        core.tcp.helper.wake();
        // Who woke us for it wakes nobody else.
        let result = match result {
            Ok(true) => Ok(true),
            _ if has_input() => Ok(true),
            other => other,
        };
        let short = began.elapsed() <= self.spin.most + WAKE_UP;
        if answered && short && matches!(result, Ok(true)) {
            self.spin.again.store(true, Ordering::Relaxed);
        }
        result
    }

    /// True when something was sent since the last sleep: an answer to it may be
    /// what is waited for.
    fn answered(&self) -> bool {
        let sent = self.queues.iter().map(|q| q.sent.load(Ordering::Relaxed));
        let sent = sent.fold(0, u64::wrapping_add);
        self.spin.sent_before_sleep.swap(sent, Ordering::Relaxed) != sent
    }

    fn sleep_entered(
        &self,
        core: &Core,
        sockets: &[&dyn Waitable],
        deadline: Option<Instant>,
        signals: Option<&tidewall_sys::SignalSet>,
        sleeper: &mut Sleeper<'_>,
        has_input: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut descriptors = Vec::with_capacity(8);
        let mut fired = Vec::with_capacity(8);
        let mut rounds = 0u32;
        let mut sends = false;
        loop {
            core.netdev.check()?;
            let mut progress = Progress::default();
            if sleeper.leads && (sends || !self.device_polls()) {
                progress = self.round(core, true)?;
            } else if sends {
                self.round(core, false)?;
            }
            // Acknowledgments and data of the application's last turn.
            sends = core.tcp.before_sleep(core);
            if has_input() {
                return Ok(true);
            }
            // Where threads receive, there is nothing to poll.
            let (level, waiting) = if sleeper.leads && !self.architecture.has_threads() {
                (self.load_level(core), self.waiting())
            } else {
                (LoadLevel::Quiet, Waiting::Sleep(Duration::ZERO))
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
                Waiting::Sleep(Duration::ZERO) => {
                    progress.frames > 0 || (sleeper.leads && !progress.armed)
                }
                // Its timer runs: it will interrupt.
                Waiting::Sleep(_) => false,
            };
            let spins = sends || again || level == LoadLevel::Flooded;
            if spins {
                if deadline.is_some_and(|deadline| core.instant_now() >= deadline) {
                    return Ok(false);
                }
                rounds = rounds.wrapping_add(1);
                if !rounds.is_multiple_of(ASK_KERNEL_EVERY) {
                    continue;
                }
            }
            let mut timeout = match deadline {
                Some(deadline) => match deadline.checked_duration_since(core.instant_now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return Ok(false),
                },
                None => None,
            };
            if level == LoadLevel::Busy {
                timeout = Some(timeout.map_or(BUSY_SLEEP, |t| t.min(BUSY_SLEEP)));
            }
            if progress.stopped {
                timeout = Some(timeout.map_or(STOPPED_SLEEP, |t| t.min(STOPPED_SLEEP)));
            }
            if core.tcp.sending.is_held_up() {
                timeout = Some(timeout.map_or(SEND_AGAIN, |t| t.min(SEND_AGAIN)));
            }
            if progress.missing {
                timeout = Some(timeout.map_or(RECONCILE_AFTER, |t| t.min(RECONCILE_AFTER)));
            }
            if let Some(expiry) = lock(&core.ip.fragments).next_expiry(core.now()) {
                timeout = Some(timeout.map_or(expiry, |t| t.min(expiry)));
            }
            if let Some(next) = core.tcp.next_timer(core.now()).filter(|_| sleeper.leads) {
                if next.is_zero() && !spins {
                    continue;
                }
                timeout = Some(timeout.map_or(next, |t| t.min(next)));
            }
            if spins {
                timeout = Some(Duration::ZERO);
            } else if sleeper.leads
                && level == LoadLevel::Quiet
                && self.set_interrupt_interval(interval)
            {
                self.timer_batches.store(0, Ordering::Relaxed);
                continue;
            }
            descriptors.clear();
            descriptors.push(sleeper.waker.descriptor());
            let kernel = descriptors.len();
            descriptors.extend(
                sockets
                    .iter()
                    .map(|socket| socket.descriptor_for(sleeper.waker)),
            );
            if sleeper.leads && !spins && !self.architecture.has_threads() {
                for queue in &self.queues {
                    descriptors.extend(queue.poller.lock().descriptors());
                }
            }
            if !spins {
                for host in self.host.get().into_iter().flatten() {
                    host.application_sleeps();
                }
            }
            core.sleep_on(&descriptors, timeout, signals, &mut fired)?;
            for &place in &fired {
                if place == 0 {
                    sleeper.waker.clear();
                } else if let Some(socket) = sockets.get(place - kernel) {
                    socket.kernel_has_input();
                }
            }
            if sleeper.leads {
                self.collect(core);
            } else {
                sleeper.leads = self.leadership.lead(sleeper.waker);
            }
            lock(&core.ip.fragments).expire(core.now(), &core.causes);
            if has_input() {
                return Ok(true);
            }
        }
    }

    /// How busy the device has been with frames that are not ours since the last
    /// time somebody was about to sleep. Receive control sees to our own.
    fn load_level(&self, core: &Core) -> LoadLevel {
        if !self.deferral.is_on() {
            // Every frame interrupts.
            return LoadLevel::Quiet;
        }
        let mut load = lock(&self.load);
        let now = core.now();
        let elapsed = now.saturating_sub(load.at);
        if elapsed >= LOAD_WINDOW {
            let frames: u64 = self
                .queues
                .iter()
                .map(|queue| {
                    let count = |counter| queue.shared.driver().counter(counter);
                    count(Counter::Frames)
                        .wrapping_sub(count(Counter::Channel))
                        .wrapping_sub(count(Counter::ChannelFull))
                })
                .fold(0, u64::wrapping_add);
            // Read one after the other, the counters may disagree by a few.
            let rate =
                (frames.wrapping_sub(load.frames) as i64).max(0) as f64 / elapsed.as_secs_f64();
            let level = match rate {
                rate if rate >= FLOODED_FROM => LoadLevel::Flooded,
                rate if rate >= BUSY_FROM => LoadLevel::Busy,
                _ => LoadLevel::Quiet,
            };
            if level >= load.level || elapsed >= LOAD_HYSTERESIS {
                *load = LoadSample {
                    at: now,
                    frames,
                    level,
                };
            }
        }
        load.level
    }
}
