//! Handlers of signals: one that finds its thread inside the stack, whose locks it may
//! hold, waits until the thread is out.
//!
//! Meanwhile its signal is blocked, as far as the thread has not blocked it itself: more of
//! the same wait in the kernel, which knows how many there are, and in which order.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{sigaction as Action, sighandler_t, siginfo_t, ucontext_t};
use tidewall_posix::{Errno, Posix, Result};
use tidewall_socket::readiness::{SignalSet, interrupt_sleep, take_interruption};

use super::{cancellation, fail, originals};
use crate::process;
use crate::promote;

/// Numbers of signals are below this.
const SIGNALS: usize = 65;
/// Signals that may wait in a thread, each of another number.
const WAITING_MAX: usize = 8;

/// A program's handler.
struct Handler {
    function: AtomicUsize,
    /// `sa_flags`.
    flags: AtomicI32,
    /// `sa_mask`.
    mask: AtomicU64,
}

static HANDLERS: [Handler; SIGNALS] = [const {
    Handler {
        function: AtomicUsize::new(0),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

/// Signals that a thread has put off.
struct Waiting {
    /// Handlers that interrupt each other count it.
    count: AtomicUsize,
    signals: UnsafeCell<[MaybeUninit<(c_int, siginfo_t)>; WAITING_MAX]>,
    /// Signals that are blocked because one waits.
    blocked: Cell<u64>,
    /// What handlers that have waited, and run, block; a place of the stack that they are
    /// called from, above whatever they call.
    held: Cell<u64>,
    held_above: Cell<usize>,
    /// All of those that have run since a call began may have it begin again (SA_RESTART).
    restarts: Cell<bool>,
}

thread_local! {
    static WAITING: Waiting = const {
        Waiting {
            count: AtomicUsize::new(0),
            signals: UnsafeCell::new([const { MaybeUninit::uninit() }; WAITING_MAX]),
            blocked: Cell::new(0),
            held: Cell::new(0),
            held_above: Cell::new(0),
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
    let (about, interrupted) = unsafe { (info.as_ref(), context.cast::<ucontext_t>().as_mut()) };
    if !caused
        && process::is_in_stack()
        && let (Some(about), Some(interrupted)) = (about, interrupted)
        && put_off(signal, about, interrupted)
    {
        interrupt_sleep();
        return;
    }
    // SAFETY: as the kernel calls it.
    unsafe { run(signal, info, context) };
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// False where it cannot wait.
fn put_off(signal: c_int, info: &siginfo_t, interrupted: &mut ucontext_t) -> bool {
    let put = WAITING.try_with(|waiting| {
        let place = waiting.count.fetch_add(1, Ordering::Relaxed);
        if place >= WAITING_MAX {
            waiting.count.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        // SAFETY: of this thread alone, of which a handler that interrupts this one here has
        // another place, and who takes them out has blocked all.
        unsafe {
            let places = waiting
                .signals
                .get()
                .cast::<MaybeUninit<(c_int, siginfo_t)>>();
            (*places.add(place)).write((signal, *info));
        }
        // SAFETY: the kernel's set is as long, and at the beginning of the C library's.
        let mask = unsafe { &mut *(&raw mut interrupted.uc_sigmask).cast::<u64>() };
        if *mask & bit(signal) == 0 {
            *mask |= bit(signal);
            waiting.blocked.set(waiting.blocked.get() | bit(signal));
        }
        true
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
    let _ = WAITING.try_with(|waiting| {
        waiting.count.store(0, Ordering::Relaxed);
        let was_blocked = waiting.blocked.take();
        if was_blocked != 0 {
            let before = SignalSet::empty().block();
            SignalSet::from_bits(before.bits() & !was_blocked).set();
        }
    });
}

/// The thread is out of the stack: what has waited runs, as the kernel would have had it run.
#[inline]
pub(crate) fn run_waiting() {
    let count = |waiting: &Waiting| waiting.count.load(Ordering::Relaxed);
    if WAITING.try_with(count).unwrap_or(0) > 0 {
        run_each();
    }
}

impl Waiting {
    /// The first that no handler which runs has blocked, taken out.
    ///
    /// # Safety
    /// Handlers are blocked in this thread.
    unsafe fn next(&self) -> Option<(c_int, siginfo_t)> {
        let count = self.count.load(Ordering::Relaxed);
        // SAFETY: of this thread alone.
        let signals = unsafe { &mut *self.signals.get() }.get_mut(..count)?;
        // SAFETY: the first `count` are written.
        let signal = |it: &MaybeUninit<(c_int, siginfo_t)>| unsafe { it.assume_init_ref() }.0;
        let held = self.held.get();
        let place = signals.iter().position(|it| bit(signal(it)) & held == 0)?;
        let rest = signals.get_mut(place..)?;
        // SAFETY: as above; it is not looked at again.
        let next = rest.first().map(|it| unsafe { it.assume_init_read() });
        rest.rotate_left(1);
        self.count.store(count - 1, Ordering::Relaxed);
        next
    }
}

#[cold]
fn run_each() {
    let errno = std::io::Error::last_os_error().raw_os_error();
    let here = (&raw const errno).addr();
    let _ = take_interruption();
    let _ = WAITING.try_with(|waiting| {
        let outer = waiting.held_above.get();
        if outer <= here {
            // Who held them has left by a jump.
            waiting.held.set(0);
        }
        loop {
            let before = SignalSet::full().block().bits();
            let held = waiting.held.get();
            // SAFETY: they are.
            let Some((signal, mut info)) = (unsafe { waiting.next() }) else {
                let over = waiting.blocked.get() & !held;
                waiting.blocked.set(waiting.blocked.get() & held);
                SignalSet::from_bits(before & !over).set();
                break;
            };
            let (flags, mask) = handler(signal).map_or((0, 0), |it| {
                let flags = it.flags.load(Ordering::Acquire);
                (flags, it.mask.load(Ordering::Acquire))
            });
            let held_by_it = match flags & libc::SA_NODEFER {
                0 => mask | bit(signal),
                _ => mask,
            };
            // It is blocked since it waits.
            let before = before & !(waiting.blocked.get() & bit(signal));
            waiting.blocked.set(waiting.blocked.get() & !bit(signal));
            waiting.held.set(held | held_by_it);
            waiting.held_above.set(here);
            SignalSet::from_bits(before | held_by_it).set();
            // SAFETY: as the kernel would have called it; where it was is not known any more.
            unsafe { run(signal, &raw mut info, std::ptr::null_mut()) };
            waiting.held.set(held);
            waiting.held_above.set(outer);
            SignalSet::from_bits(before).set();
        }
    });
    fail(errno.unwrap_or(0));
}

/// Makes a call in the stack, and again after EINTR where it [`begins_again`].
pub(super) fn restarting<T>(
    posix: &Posix,
    fd: c_int,
    timeout: fn(&Posix, c_int) -> Option<Duration>,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    let sleeps = || {
        let nonblocking = process::inside(|| posix.descriptors().is_nonblocking(fd));
        !nonblocking.unwrap_or(true)
    };
    cancellation::point(sleeps, || {
        loop {
            let result = first_of_many(|| process::inside(&mut call));
            let interrupted = matches!(result, Err(Errno(libc::EINTR)));
            if !interrupted || cancellation::is_asked() || !begins_again(posix, fd, timeout) {
                return result;
            }
        }
    })
}

/// Makes a call that may begin again.
pub(super) fn first_of_many<T>(call: impl FnOnce() -> T) -> T {
    let _ = WAITING.try_with(|waiting| waiting.restarts.set(true));
    call()
}

/// Whether a call that ended with EINTR begins again: if all handlers that ran have SA_RESTART
/// and the socket has no `timeout` of such calls ([`Posix::read_timeout`] or
/// [`Posix::write_timeout`]), as on Linux (signal(7)).
pub(super) fn begins_again(
    posix: &Posix,
    fd: c_int,
    timeout: fn(&Posix, c_int) -> Option<Duration>,
) -> bool {
    WAITING.try_with(|it| it.restarts.get()).unwrap_or(false)
        && process::inside(|| timeout(posix, fd)).is_none()
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
        // SAFETY: the kernel's set is as long, and at the beginning of the C library's.
        let mask = unsafe { *(&raw const wanted.sa_mask).cast::<u64>() };
        handler.mask.store(mask, Ordering::Release);
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

/// SIG_HOLD of signal.h: what `sigset` takes for "block it", and returns of what was blocked.
const SIG_HOLD: sighandler_t = 2;

/// The C library's sets a handler of which we would not hear.
#[unsafe(no_mangle)]
extern "C" fn sigset(number: c_int, function: sighandler_t) -> sighandler_t {
    let mut change = SignalSet::empty();
    if change.insert(number).is_err() {
        fail(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all zero is an action: SIG_DFL.
    let mut old: Action = unsafe { core::mem::zeroed() };
    // SAFETY: a place for an action.
    if unsafe { sigaction(number, std::ptr::null(), &raw mut old) } != 0 {
        return libc::SIG_ERR;
    }
    let before = match function {
        SIG_HOLD => change.block(),
        function => {
            if simple(number, function, 0) == libc::SIG_ERR {
                return libc::SIG_ERR;
            }
            let before = SignalSet::empty().block();
            SignalSet::from_bits(before.bits() & !change.bits()).set();
            before
        }
    };
    match before.contains(number) {
        true => SIG_HOLD,
        false => old.sa_sigaction,
    }
}
