//! Interrupt deferral and moderation: when a device may interrupt.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewall_device::interface::is_physical;
use tidewall_device::queue::{FLUSH_TIMEOUT, FLUSH_TIMEOUT_MAX, InterruptModeration};

use crate::ethtool::Coalescing;
use crate::restore::{Knob, Restorer};

/// Makes the device wait for the receiver's poll: the interrupt is deferred once, until
/// the timer after the last poll, unless [`FlushTimer::set_deferral`] changes that. Both
/// knobs are restored at the end.
pub(crate) fn defer_interrupts(
    interface: &str,
    restorer: &Restorer,
    warnings: &mut Vec<String>,
) -> (Vec<Knob>, Option<FlushTimer>) {
    let mut knobs: Vec<Knob> = Vec::new();
    for (name, value) in KNOBS.into_iter().zip([DEFERRED, ENABLED]) {
        let path = format!("/sys/class/net/{interface}/{name}");
        match Knob::set(restorer, &path, &value.to_string()) {
            Ok(knob) => knobs.push(knob),
            Err(error) => {
                warnings.push(format!("{path} not set: {error}"));
                return (knobs, None);
            }
        }
    }
    let mut timer = match knobs.as_slice() {
        [defer, timeout] => {
            FlushTimer::open(interface, [defer, timeout].map(|it| it.old().to_owned()))
        }
        _ => None,
    };
    if is_physical(interface) {
        // Hardware moderates its interrupts itself, ahead of the deferral.
        let taken = Coalescing::take(restorer, interface)
            .and_then(|coalescing| coalescing.set(Duration::ZERO).map(|_| coalescing));
        match taken {
            Ok(coalescing) => {
                if let Some(timer) = &mut timer {
                    timer.coalescing = Some(Arc::new(coalescing));
                }
            }
            Err(error) => warnings.push(error.to_string()),
        }
    }
    (knobs, timer)
}

/// Files of an interface that control whether interrupts are deferred, and for how long.
pub(crate) const KNOBS: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];

/// Nanoseconds of [`InterruptModeration::BusyPoll`]: more than the longest scheduler tick
/// in use but one (HZ=250).
const LONG: u64 = 5_000_000;

/// Nanoseconds of [`InterruptModeration::Enabled`], a device's initial state.
const ENABLED: u64 = 0;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `napi_defer_hard_irqs` while interrupts are deferred: after a poll that found
/// work, until the timer has expired.
const DEFERRED: u64 = 1;

/// The device's `gro_flush_timeout` and `napi_defer_hard_irqs`, for changes while it
/// runs. The knobs that restore them are held elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct FlushTimer {
    shared: Arc<FlushTimerShared>,
    /// A card's own interrupt moderation, which follows.
    coalescing: Option<Arc<Coalescing>>,
}

#[derive(Debug)]
struct FlushTimerShared {
    defer: File,
    timeout: File,
    /// Both original values, for while nothing is deferred.
    before: [String; 2],
    /// The present timeout, ns, or [`NOT_DEFERRED`]. Changes under `lock`.
    value: AtomicU64,
    lock: Mutex<()>,
}

/// See [`FlushTimerShared::value`].
const NOT_DEFERRED: u64 = u64::MAX;

impl FlushTimer {
    /// Starts from the present settings; `before`: the original values of [`KNOBS`].
    pub(crate) fn open(interface: &str, before: [String; 2]) -> Option<Self> {
        let path = |name| format!("/sys/class/net/{interface}/{name}");
        let open = |name| File::options().write(true).open(path(name)).ok();
        let read = |name| -> Option<u64> {
            let text = std::fs::read_to_string(path(name)).ok()?;
            text.trim().parse().ok()
        };
        let [defer, timeout] = KNOBS;
        let value = match read(defer)? {
            DEFERRED => read(timeout)?,
            _ => NOT_DEFERRED,
        };
        Some(FlushTimer {
            shared: Arc::new(FlushTimerShared {
                defer: open(defer)?,
                timeout: open(timeout)?,
                before,
                value: value.into(),
                lock: Mutex::new(()),
            }),
            coalescing: None,
        })
    }

    pub(crate) fn set(&self, moderation: InterruptModeration) -> bool {
        let value = match moderation {
            InterruptModeration::BusyPoll => LONG,
            InterruptModeration::DeferFor(Duration::ZERO) => nanoseconds(FLUSH_TIMEOUT),
            InterruptModeration::DeferFor(time) => nanoseconds(time.min(FLUSH_TIMEOUT_MAX)),
            InterruptModeration::Enabled => ENABLED,
        };
        let shared = &*self.shared;
        let is_to_change =
            || ![value, NOT_DEFERRED].contains(&shared.value.load(Ordering::Relaxed));
        if !is_to_change() {
            return false;
        }
        let lock = shared.lock();
        if !is_to_change() {
            return false;
        }
        shared.value.store(value, Ordering::Relaxed);
        // A device that is gone needs no timer.
        let _ = shared.timeout.write_at(value.to_string().as_bytes(), 0);
        drop(lock);
        // A card that polls all the time does not interrupt, whatever its setting, and
        // changing that is slow.
        let interval = match moderation {
            InterruptModeration::DeferFor(time) => time.min(FLUSH_TIMEOUT_MAX),
            InterruptModeration::Enabled => Duration::ZERO,
            InterruptModeration::BusyPoll => return true,
        };
        if let Some(card) = &self.coalescing {
            let _ = card.set(interval);
        }
        true
    }

    /// A card's own moderation, which is off, is not replaced by another.
    pub(crate) fn set_deferral(&self, deferred: bool) {
        let shared = &*self.shared;
        let lock = shared.lock();
        let is_deferred = shared.value.load(Ordering::Relaxed) != NOT_DEFERRED;
        if deferred == is_deferred || self.coalescing.is_some() {
            return;
        }
        let (value, defer, timeout) = if deferred {
            (ENABLED, DEFERRED.to_string(), ENABLED.to_string())
        } else {
            let [defer, timeout] = shared.before.clone();
            (NOT_DEFERRED, defer, timeout)
        };
        shared.value.store(value, Ordering::Relaxed);
        // As above.
        let _ = shared.timeout.write_at(timeout.as_bytes(), 0);
        let _ = shared.defer.write_at(defer.as_bytes(), 0);
        drop(lock);
    }
}

impl FlushTimerShared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
