//! Thread cancellation (pthreads(7)). Calls of the stack are cancellation points as those of
//! the C library are: before they begin and while they wait. Inside the stack no thread is
//! cancelled: the locks that it holds would be held for ever.

use std::cell::OnceCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::pthread_t;
use tidewall::readiness::Interrupter;
use tidewall_posix::{Errno, Result};

use super::originals;
use crate::process::{self, inside};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DISABLE.
const DISABLE: c_int = 1;

/// A thread that has called the stack.
struct Thread {
    id: pthread_t,
    sleep: Interrupter,
    /// A cancellation is pending, and the thread has not checked yet.
    is_asked: AtomicBool,
}

/// Some thread has been cancelled. Only from then on do checks for cancellation cost
/// anything.
static CANCELS: AtomicBool = AtomicBool::new(false);

static THREADS: Mutex<Vec<Arc<Thread>>> = Mutex::new(Vec::new());

fn threads() -> MutexGuard<'static, Vec<Arc<Thread>>> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This thread's entry in the list.
struct Place(OnceCell<Option<Arc<Thread>>>);

thread_local! {
    static PLACE: Place = const { Place(OnceCell::new()) };
}

impl Drop for Place {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may hold the lock for ever.
        if let Some(Some(own)) = self.0.get()
            && process::posix().is_some()
        {
            inside(|| threads().retain(|it| !Arc::ptr_eq(it, own)));
        }
    }
}

fn enter() -> Option<Arc<Thread>> {
    inside(|| {
        let thread = Arc::new(Thread {
            // SAFETY: names the calling thread.
            id: unsafe { libc::pthread_self() },
            // A thread for which no descriptor is left cannot wait either.
            sleep: Interrupter::of_this_thread().ok()?,
            is_asked: AtomicBool::new(false),
        });
        threads().push(thread.clone());
        Some(thread)
    })
}

/// Reports whether this thread is to be cancelled.
pub(super) fn is_asked() -> bool {
    let own = |place: &Place| {
        let own = place.0.get().and_then(Option::as_ref);
        own.is_some_and(|own| own.is_asked.load(Ordering::Acquire))
    };
    PLACE.try_with(own).unwrap_or(false)
}

/// Does not return if the thread is to be cancelled. Otherwise, from now on a cancellation ends
/// its sleeps in the stack, if the call `sleeps`.
pub(crate) fn test(sleeps: impl FnOnce() -> bool) {
    let _ = PLACE.try_with(|place| {
        if place.0.get().is_none() && sleeps() {
            place.0.get_or_init(enter);
        }
    });
    if CANCELS.load(Ordering::Acquire) {
        // SAFETY: unwinds through frames that permit it.
        unsafe { pthread_testcancel() };
    }
}

/// Makes a call of the stack, and does not return if the thread is cancelled before or
/// meanwhile. A call that may not be cancelled continues. `sleeps`: whether the call may sleep.
pub(super) fn point<T>(
    sleeps: impl Fn() -> bool,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        test(&sleeps);
        let result = call();
        super::ends::stay_at_end();
        let interrupted = matches!(result, Err(Errno(libc::EINTR)));
        let forget = |place: &Place| {
            let own = place.0.get().and_then(Option::as_ref);
            own.is_some_and(|own| own.is_asked.swap(false, Ordering::AcqRel))
        };
        if !interrupted || !PLACE.try_with(forget).unwrap_or(false) {
            return result;
        }
    }
}

/// Disables cancellation of this thread; returns the previous state, for [`allow`].
pub(crate) fn forbid() -> Option<c_int> {
    if !CANCELS.load(Ordering::Relaxed) {
        return None;
    }
    let mut before = 0;
    // SAFETY: concerns the calling thread, with a place for an int.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    Some(before)
}

/// Restores the state before [`forbid`].
pub(crate) fn allow(before: Option<c_int>) {
    if let Some(before) = before {
        let mut old = 0;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(before, &raw mut old) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // A thread already inside the stack may repeat such calls; for it they are no
    // cancellation points.
    CANCELS.store(true, Ordering::Release);
    // SAFETY: guaranteed by the caller.
    let result = unsafe { originals::pthread_cancel(thread) };
    if result == 0 && process::posix().is_some() {
        inside(|| {
            for it in threads().iter().filter(|it| it.id == thread) {
                it.is_asked.store(true, Ordering::Release);
                it.sleep.interrupt();
            }
        });
    }
    result
}
