//! Handlers of signals: one that finds its thread inside the stack, whose locks it may
//! hold, waits until the thread is out.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{sigaction as Action, sighandler_t, siginfo_t};
use tidewall_posix::{Errno, Posix, Result};
use tidewall_socket::readiness::{SignalSet, interrupt_sleep, take_interruption};

use super::{fail, originals};
use crate::process;
use crate::promote;

/// Numbers of signals are below this.
const SIGNALS: usize = 65;
/// Signals that may wait in a thread; of what comes beyond, one with the same number is
/// enough, as of signals that are blocked.
const WAITING_MAX: usize = 8;

/// A program's handler.
struct Handler {
    function: AtomicUsize,
    /// `sa_flags`.
    flags: AtomicI32,
}

static HANDLERS: [Handler; SIGNALS] = [const {
    Handler {
        function: AtomicUsize::new(0),
        flags: AtomicI32::new(0),
    }
}; SIGNALS];

/// Signals that a thread has put off.
struct Waiting {
    count: Cell<usize>,
    signals: UnsafeCell<[MaybeUninit<(c_int, siginfo_t)>; WAITING_MAX]>,
    /// All of those that have run since a call began may have it begin again (SA_RESTART).
    restarts: Cell<bool>,
}

thread_local! {
    static WAITING: Waiting = const {
        Waiting {
            count: Cell::new(0),
            signals: UnsafeCell::new([const { MaybeUninit::uninit() }; WAITING_MAX]),
            restarts: Cell::new(true),
        }
    };
}

fn handler(signal: c_int) -> Option<&'static Handler> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// What the kernel calls.
unsafe extern "C" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // What the instruction at hand has caused cannot wait.
    let caused = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    );
    // SAFETY: null, or the kernel's.
    if !caused && process::is_in_stack() && put_off(signal, unsafe { info.as_ref() }) {
        interrupt_sleep();
        return;
    }
    // SAFETY: as the kernel calls it.
    unsafe { run(signal, info, context) };
}

/// False where it cannot wait.
fn put_off(signal: c_int, info: Option<&siginfo_t>) -> bool {
    let Some(info) = info else { return false };
    let put = WAITING.try_with(|waiting| {
        let count = waiting.count.get();
        // SAFETY: of this thread alone; a handler that interrupts this one here has
        // another signal and puts its own behind, before this goes on.
        let signals = unsafe { &mut *waiting.signals.get() };
        let (full, free) = signals.split_at_mut(count.min(WAITING_MAX));
        let waits = |place: &MaybeUninit<(c_int, siginfo_t)>| {
            // SAFETY: the first `count` are written.
            unsafe { place.assume_init_ref() }.0 == signal
        };
        if full.iter().any(waits) {
            return true;
        }
        match free.first_mut() {
            Some(place) => {
                place.write((signal, *info));
                waiting.count.set(count + 1);
                true
            }
            None => false,
        }
    });
    put.unwrap_or(false)
}

/// Calls the program's handler.
///
/// # Safety
/// As the kernel calls it.
unsafe fn run(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(handler) = handler(signal) else {
        return;
    };
    let function = handler.function.load(Ordering::Acquire);
    let flags = handler.flags.load(Ordering::Acquire);
    if function == libc::SIG_DFL || function == libc::SIG_IGN {
        return;
    }
    if flags & libc::SA_RESTART == 0 {
        let _ = WAITING.try_with(|waiting| waiting.restarts.set(false));
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Long = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the program has said that it is one.
        unsafe { core::mem::transmute::<usize, Long>(function)(signal, info, context) };
    } else {
        type Short = unsafe extern "C" fn(c_int);
        // SAFETY: as above.
        unsafe { core::mem::transmute::<usize, Short>(function)(signal) };
    }
}

/// In a forked child: what waits is its parent's. Async-signal-safe.
pub(super) fn forget_waiting() {
    let _ = WAITING.try_with(|waiting| waiting.count.set(0));
}

/// The thread is out of the stack: what has waited runs, each with its own signal blocked.
#[inline]
pub(crate) fn run_waiting() {
    if WAITING.try_with(|waiting| waiting.count.get()).unwrap_or(0) > 0 {
        run_each();
    }
}

#[cold]
fn run_each() {
    let errno = std::io::Error::last_os_error().raw_os_error();
    loop {
        let blocked = SignalSet::full().block();
        let next = WAITING.try_with(|waiting| {
            let count = waiting.count.get().checked_sub(1)?;
            // SAFETY: of this thread alone, whose handlers are blocked.
            let signals = unsafe { &mut *waiting.signals.get() };
            // SAFETY: the first of them is written, as there is one.
            let first = signals.first().map(|it| unsafe { it.assume_init_read() });
            signals.rotate_left(1);
            waiting.count.set(count);
            first
        });
        let Some((signal, mut info)) = next.ok().flatten() else {
            blocked.set();
            break;
        };
        let mut during = blocked;
        let _ = during.insert(signal);
        during.set();
        // SAFETY: as the kernel would have called it; where it was is not known any more.
        unsafe { run(signal, &raw mut info, std::ptr::null_mut()) };
        blocked.set();
    }
    let _ = take_interruption();
    fail(errno.unwrap_or(0));
}

/// Makes a call in the stack, and again after EINTR if all handlers that ran have
/// SA_RESTART and the socket has no `timeout` of such calls ([`Posix::read_timeout`] or
/// [`Posix::write_timeout`]): what Linux does of calls that may begin again (signal(7)).
pub(super) fn restarting<T>(
    posix: &Posix,
    fd: c_int,
    timeout: fn(&Posix, c_int) -> Option<Duration>,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        let _ = WAITING.try_with(|waiting| waiting.restarts.set(true));
        let result = process::inside(&mut call);
        if !matches!(result, Err(Errno(libc::EINTR)))
            || !WAITING.try_with(|it| it.restarts.get()).unwrap_or(false)
            || process::inside(|| timeout(posix, fd)).is_some()
        {
            return result;
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const Action,
    old: *mut Action,
) -> c_int {
    // What a child of vfork has called is not what its parent, whose table it has, is to call.
    let passes = !promote::may_promote() || process::is_in_child();
    // SAFETY: the caller's.
    let mut wanted = unsafe { action.as_ref() }.copied();
    let kept = handler(signal).map(|it| {
        let function = it.function.load(Ordering::Acquire);
        (function, it.flags.load(Ordering::Acquire))
    });
    if let (Some(wanted), Some(handler)) = (&mut wanted, handler(signal))
        && !passes
        && wanted.sa_sigaction != libc::SIG_DFL
        && wanted.sa_sigaction != libc::SIG_IGN
    {
        handler.flags.store(wanted.sa_flags, Ordering::Release);
        handler
            .function
            .store(wanted.sa_sigaction, Ordering::Release);
        wanted.sa_sigaction = deliver as *const () as sighandler_t;
        wanted.sa_flags |= libc::SA_SIGINFO;
    }
    let wanted = wanted
        .as_ref()
        .map_or(std::ptr::null(), |it| &raw const *it);
    // SAFETY: an action that is here, and the caller's place.
    let result = unsafe { originals::sigaction(signal, wanted, old) };
    // SAFETY: the caller's.
    if let (0, Some(old), Some((function, flags))) = (result, unsafe { old.as_mut() }, kept)
        && old.sa_sigaction == deliver as *const () as sighandler_t
    {
        old.sa_sigaction = function;
        old.sa_flags = old.sa_flags & !libc::SA_SIGINFO | flags & libc::SA_SIGINFO;
    }
    result
}

/// signal(2) with what the C library's has: it restarts calls, or not.
fn simple(signal: c_int, function: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: all zero is an action: SIG_DFL.
    let (mut action, mut old): (Action, Action) = unsafe { core::mem::zeroed() };
    action.sa_sigaction = function;
    action.sa_flags = flags;
    // SAFETY: two actions that are here.
    match unsafe { sigaction(signal, &raw const action, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

#[unsafe(no_mangle)]
extern "C" fn signal(number: c_int, function: sighandler_t) -> sighandler_t {
    simple(number, function, libc::SA_RESTART)
}

/// The C library's changes its own action, of which we would not hear.
#[unsafe(no_mangle)]
extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: all zero is an action: SIG_DFL.
    let mut action: Action = unsafe { core::mem::zeroed() };
    // SAFETY: a place for an action.
    if unsafe { sigaction(signal, std::ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    match interrupts {
        0 => action.sa_flags |= libc::SA_RESTART,
        _ => action.sa_flags &= !libc::SA_RESTART,
    }
    // SAFETY: the action that it has, but for a flag.
    unsafe { sigaction(signal, &raw const action, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
extern "C" fn ssignal(number: c_int, function: sighandler_t) -> sighandler_t {
    simple(number, function, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
extern "C" fn bsd_signal(number: c_int, function: sighandler_t) -> sighandler_t {
    simple(number, function, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
extern "C" fn sysv_signal(number: c_int, function: sighandler_t) -> sighandler_t {
    simple(number, function, libc::SA_RESETHAND | libc::SA_NODEFER)
}

#[unsafe(no_mangle)]
extern "C" fn __sysv_signal(number: c_int, function: sighandler_t) -> sighandler_t {
    simple(number, function, libc::SA_RESETHAND | libc::SA_NODEFER)
}
