//! The means to wake one thread.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tidewall_device::forked::Unshared;
use tidewall_sys::WakeFd;
use tidewall_sys::priority::{Priority, Scheduling, yield_processor};

/// Least interval between a thread's queries of its own priority.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Wakes a sleeping thread, which polls its descriptor.
#[derive(Debug)]
pub struct Waker {
    pub(super) event: Unshared<WakeFd>,
    /// Whether `event` is signalled, so that no thread pays for a system call that would
    /// change nothing.
    pub(super) signalled: AtomicBool,
    /// Its next sleep ends with EINTR: [`Interrupter`].
    interrupted: AtomicBool,
    /// It sleeps and is not to be woken to lead: [`super::Leadership::resign`].
    pub(super) has_resigned: AtomicBool,
    /// The thread's [`Priority`], as it was when it last went to sleep.
    priority: AtomicU8,
}

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Waker {
            event: Unshared::new(WakeFd::new()?)?,
            signalled: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            has_resigned: AtomicBool::new(false),
            priority: AtomicU8::new(Priority::NORMAL.to_u8()),
        })
    }

    /// Notes the priority of the calling thread, which owns the waker. Returns true if it
    /// has changed.
    pub fn note_priority(&self) -> bool {
        self.set_priority(own_priority())
    }

    /// Sets the thread's priority. Returns true if it has changed.
    pub fn set_priority(&self, priority: Priority) -> bool {
        self.priority.swap(priority.to_u8(), Ordering::Relaxed) != priority.to_u8()
    }

    pub(super) fn priority(&self) -> Priority {
        Priority::from_u8(self.priority.load(Ordering::Relaxed))
    }

    /// Wakes it. Returns false when it has been woken and has not looked yet.
    pub fn wake(&self) -> bool {
        let first = !self.signalled.swap(true, Ordering::SeqCst);
        if first {
            self.event.signal();
            if self.priority() > own_priority() {
                let _ = WOKEN_HIGHER.try_with(|woken| woken.set(woken.get().wrapping_add(1)));
            }
        }
        first
    }

    /// Returns the descriptor that is readable once the thread is woken.
    pub fn descriptor(&self) -> i32 {
        self.event.descriptor()
    }

    /// Clears the signal. Look for the event afterwards, since a signal that comes
    /// meanwhile is cleared too.
    pub fn clear(&self) {
        self.event.clear();
        // A full barrier: what is looked at next is read after this is seen.
        self.signalled.swap(false, Ordering::SeqCst);
    }

    /// As [`Waker::clear`], without a system call when there is no signal. A signal that
    /// is just being sent may survive it.
    pub fn clear_if_signalled(&self) {
        if self.signalled.load(Ordering::Acquire) {
            self.clear();
        }
    }
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
    /// There is one; without a destructor, so that a handler of a signal may look.
    static HAS_WAKER: Cell<bool> = const { Cell::new(false) };
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
    static WOKEN_HIGHER: Cell<u32> = const { Cell::new(0) };
    /// The thread's priority, and when it was asked for.
    static PRIORITY: Cell<(Priority, Option<Instant>)> =
        const { Cell::new((Priority::NORMAL, None)) };
}

/// The calling thread's priority, as it was 100 ms ago or later.
fn own_priority() -> Priority {
    let (known, asked) = PRIORITY.get();
    // Not rustix's clock: its first call crashes under valgrind.
    let now = Instant::now();
    if asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASK_EVERY) {
        return known;
    }
    let scheduling = Scheduling::of(None);
    let priority = scheduling.map_or(Priority::NORMAL, |it| it.priority());
    PRIORITY.set((priority, Some(now)));
    priority
}

/// Returns how many threads of a higher priority than its own the calling thread has
/// woken, modulo 2^32.
pub fn woken_higher() -> u32 {
    WOKEN_HIGHER.get()
}

/// Yields to higher threads that were woken since [`woken_higher`] was `before`, and
/// returns true if there are any. The scheduler may leave the rest of its slice to the
/// thread that wakes them.
pub fn yield_to_higher(before: u32) -> bool {
    let has_woken = woken_higher() != before;
    if has_woken {
        yield_processor();
    }
    has_woken
}

/// Ends the calling thread's sleep in a stack, or its next one, with EINTR, as a signal
/// does that arrives while it sleeps. It serves a handler that found its thread inside the
/// stack, about to sleep, and has left work until the thread is out. Async-signal-safe.
pub fn interrupt_sleep() {
    let _ = INTERRUPTED.try_with(|interrupted| interrupted.set(true));
    if HAS_WAKER.try_with(Cell::get).unwrap_or(false) {
        let _ = WAKER.try_with(|slot| {
            if let Ok(waker) = slot.try_borrow()
                && let Some(waker) = &*waker
            {
                waker.event.signal();
            }
        });
    }
}

/// Whether [`interrupt_sleep`] was called since this was, or [`Interrupter::interrupt`] for
/// this thread.
pub fn take_interruption() -> bool {
    let by_another = |slot: &RefCell<Option<Arc<Waker>>>| {
        let own = slot.try_borrow().ok()?;
        let interrupted = &own.as_ref()?.interrupted;
        Some(interrupted.load(Ordering::Acquire) && interrupted.swap(false, Ordering::AcqRel))
    };
    let another = WAKER.try_with(by_another).ok().flatten();
    INTERRUPTED.try_with(Cell::take).unwrap_or(false) || another == Some(true)
}

/// Ends the sleeps of one thread on behalf of others.
#[derive(Debug)]
pub struct Interrupter(Arc<Waker>);

impl Interrupter {
    /// Returns the interrupter of the calling thread.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM: the thread cannot sleep in a stack either.
    pub fn of_this_thread() -> io::Result<Self> {
        thread_waker().map(Interrupter)
    }

    /// Ends its sleep in a stack, or its next one, with EINTR.
    pub fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        self.0.event.signal();
    }
}

/// Returns the calling thread's waker: one descriptor per thread, created at first use. A
/// thread that is ending has lost it, and gets one for the call.
pub fn thread_waker() -> io::Result<Arc<Waker>> {
    let known = WAKER.try_with(|slot| slot.borrow().clone());
    if let Ok(Some(waker)) = known {
        return Ok(waker);
    }
    let waker = Arc::new(Waker::new()?);
    let kept = WAKER.try_with(|slot| slot.replace(Some(waker.clone())));
    let _ = HAS_WAKER.try_with(|has| has.set(kept.is_ok()));
    Ok(waker)
}

/// Returns true for the calling thread's own waker, which need not wake. A sleeper that
/// sorts frames itself looks for data before it goes on sleeping, and a signal would cost
/// it two system calls.
pub(super) fn is_own(waker: &Arc<Waker>) -> bool {
    let own = WAKER.try_with(|slot| {
        let own = slot.try_borrow().ok();
        let own = own.as_ref().and_then(|own| own.as_ref());
        own.is_some_and(|own| Arc::ptr_eq(own, waker))
    });
    // A thread that is ending waits for nothing.
    own.unwrap_or(false)
}
