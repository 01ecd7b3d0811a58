//! Signal handlers. A handler that finds its thread inside the stack, whose locks the
//! thread may hold, waits until the thread has left.
//!
//! Meanwhile its signal is blocked, if the thread has not blocked it itself. More signals of
//! that number wait in the kernel, which keeps their count and order. Only signals that an
//! instruction causes interrupt [`deliver`]: the mask that it changes is the one with which the
//! thread continues.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{sigaction as Action, sighandler_t, siginfo_t, ucontext_t};
use tidewall::readiness::{SignalSet, interrupt_sleep, take_interruption};
use tidewall_posix::{Errno, Posix, Result};

use super::{cancellation, fail, originals, stacks};
use crate::process;
use crate::promote;

/// Signal numbers are below this.
const SIGNALS: usize = 65;
/// Signals that may wait in a thread, each of another number.
const WAITING_MAX: usize = 8;

/// A handler of the program.
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
    /// Incremented by handlers, which may interrupt each other.
    count: AtomicUsize,
    signals: UnsafeCell<[MaybeUninit<(c_int, siginfo_t)>; WAITING_MAX]>,
    /// Signals that are blocked because one of them waits.
    blocked: Cell<u64>,
    /// Signals that are blocked by late handlers that still run. A signal that is not blocked
    /// any more is held by none: its handler has left by a jump, or has unblocked it.
    held: Cell<u64>,
    /// All handlers that have run since a call began permit a restart (SA_RESTART).
    restarts: Cell<bool>,
}

thread_local! {
    static WAITING: Waiting = const {
        Waiting {
            count: AtomicUsize::new(0),
            signals: UnsafeCell::new([const { MaybeUninit::uninit() }; WAITING_MAX]),
            blocked: Cell::new(0),
            held: Cell::new(0),
            restarts: Cell::new(true),
        }
    };
}

fn handler(signal: c_int) -> Option<&'static Handler> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// Signals that the current instruction has caused: they cannot wait.
const CAUSED: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Returns the mask of a C library set, which begins with the kernel's.
fn bits_of(set: &mut libc::sigset_t) -> &mut u64 {
    // SAFETY: the kernel's set has this length, and is at the beginning of the C
    // library's.
    unsafe { &mut *(&raw mut *set).cast::<u64>() }
}

/// Called by the kernel.
unsafe extern "C" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: null, or the kernel's.
    let (about, interrupted) = unsafe { (info.as_ref(), context.cast::<ucontext_t>().as_mut()) };
    if !CAUSED.contains(&signal)
        && let (Some(about), Some(interrupted)) = (about, interrupted)
    {
        if process::is_in_stack() && put_off(signal, about, interrupted) {
            interrupt_sleep();
            return;
        }
        let before = *bits_of(&mut interrupted.uc_sigmask);
        SignalSet::from_bits(before | blocked_by(signal)).set();
    }
    // SAFETY: called as the kernel calls it.
    unsafe { run(signal, info, context) };
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the signals that are blocked while the handler of a signal runs.
fn blocked_by(signal: c_int) -> u64 {
    let Some(handler) = handler(signal) else {
        return 0;
    };
    let mask = handler.mask.load(Ordering::Acquire);
    match handler.flags.load(Ordering::Acquire) & libc::SA_NODEFER {
        0 => mask | bit(signal),
        _ => mask,
    }
}

/// Puts a signal off; returns false if it cannot wait.
fn put_off(signal: c_int, info: &siginfo_t, interrupted: &mut ucontext_t) -> bool {
    let put = WAITING.try_with(|waiting| {
        let place = waiting.count.fetch_add(1, Ordering::Relaxed);
        if place >= WAITING_MAX {
            waiting.count.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        // SAFETY: accessed by this thread alone. A handler that interrupts this one uses
        // another entry, and the code that removes entries blocks all signals.
        unsafe {
            let places = waiting
                .signals
                .get()
                .cast::<MaybeUninit<(c_int, siginfo_t)>>();
            (*places.add(place)).write((signal, *info));
        }
        // The signal was delivered, so no handler blocks it.
        waiting.held.set(waiting.held.get() & !bit(signal));
        let mask = bits_of(&mut interrupted.uc_sigmask);
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
/// The arguments are those of the kernel's call.
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
    // The kernel, too, passes all three to a handler that takes one.
    type Long = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    // SAFETY: the program has registered it as a handler.
    let function = unsafe { core::mem::transmute::<usize, Long>(function) };
    // SAFETY: as above.
    unsafe { function(signal, info, context) };
}

/// As [`run`], for a signal that has waited. The handler sees this call as the interrupted
/// place, like a signal that arrives as a system call returns. If it sets another mask
/// (`uc_sigmask`), that is the result; other changes are lost.
///
/// # Safety
/// As [`run`], with all signals blocked; the function changes that to what the handler
/// requests.
unsafe fn run_late(signal: c_int, info: &mut siginfo_t, before: u64) -> u64 {
    let mut context = MaybeUninit::<ucontext_t>::zeroed();
    // SAFETY: fills it, except for fields that are zero.
    let context = unsafe {
        libc::getcontext(context.as_mut_ptr());
        context.assume_init_mut()
    };
    // SAFETY: a place for the answer; no stack is set.
    unsafe { libc::sigaltstack(std::ptr::null(), &raw mut context.uc_stack) };
    *bits_of(&mut context.uc_sigmask) = before;
    let (stack, place) = (context.uc_stack, (&raw mut *context).cast());
    let wants = |flag| {
        let flags = handler(signal).map(|it| it.flags.load(Ordering::Acquire));
        flags.is_some_and(|flags| flags & flag != 0)
    };
    SignalSet::from_bits(before | blocked_by(signal)).set();
    match stack.ss_flags & (libc::SS_ONSTACK | libc::SS_DISABLE) {
        0 if wants(libc::SA_ONSTACK) => {
            let top = stack.ss_sp.wrapping_byte_add(stack.ss_size);
            // SAFETY: a stack of the program that this thread does not use; the kernel would
            // have called the handler there.
            unsafe { stacks::call_on(top, || run(signal, &raw mut *info, place)) };
        }
        // SAFETY: guaranteed by the caller.
        _ => unsafe { run(signal, &raw mut *info, place) },
    }
    *bits_of(&mut context.uc_sigmask)
}

/// Called in a forked child: the signals that wait are its parent's. Async-signal-safe.
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

/// Called as the thread leaves the stack: runs the handlers that have waited, as the kernel
/// would have run them.
#[inline]
pub(crate) fn run_waiting() {
    let count = |waiting: &Waiting| waiting.count.load(Ordering::Relaxed);
    if WAITING.try_with(count).unwrap_or(0) > 0 {
        run_each();
    }
}

impl Waiting {
    /// Removes and returns the first signal that no running handler blocks.
    ///
    /// # Safety
    /// Handlers are blocked in this thread.
    unsafe fn next(&self) -> Option<(c_int, siginfo_t)> {
        let count = self.count.load(Ordering::Relaxed);
        // SAFETY: accessed by this thread alone.
        let signals = unsafe { &mut *self.signals.get() }.get_mut(..count)?;
        // SAFETY: the first `count` are written.
        let signal = |it: &MaybeUninit<(c_int, siginfo_t)>| unsafe { it.assume_init_ref() }.0;
        let held = self.held.get();
        let place = signals.iter().position(|it| bit(signal(it)) & held == 0)?;
        let rest = signals.get_mut(place..)?;
        // SAFETY: as above; it is not read again.
        let next = rest.first().map(|it| unsafe { it.assume_init_read() });
        rest.rotate_left(1);
        self.count.store(count - 1, Ordering::Relaxed);
        next
    }
}

#[cold]
fn run_each() {
    let errno = std::io::Error::last_os_error().raw_os_error();
    let _ = take_interruption();
    let _ = WAITING.try_with(|waiting| {
        loop {
            let before = SignalSet::full().block().bits();
            let held = waiting.held.get() & before;
            waiting.held.set(held);
            // SAFETY: handlers are blocked.
            let Some((signal, mut info)) = (unsafe { waiting.next() }) else {
                let over = waiting.blocked.get() & !held;
                waiting.blocked.set(waiting.blocked.get() & held);
                SignalSet::from_bits(before & !over).set();
                break;
            };
            // The signal has been blocked since it began to wait.
            let before = before & !(waiting.blocked.get() & bit(signal));
            waiting.blocked.set(waiting.blocked.get() & !bit(signal));
            waiting.held.set(held | blocked_by(signal));
            // SAFETY: called as the kernel would have called it.
            let after = unsafe { run_late(signal, &mut info, before) };
            waiting.held.set(held);
            SignalSet::from_bits(after).set();
        }
    });
    fail(errno.unwrap_or(0));
}

/// Makes a call in the stack, and repeats it after EINTR if it [`begins_again`].
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

/// Makes a call that may be restarted.
pub(super) fn first_of_many<T>(call: impl FnOnce() -> T) -> T {
    let _ = WAITING.try_with(|waiting| waiting.restarts.set(true));
    call()
}

/// Reports whether a call that ended with EINTR is restarted. As on Linux (signal(7)), all
/// handlers that ran must have SA_RESTART, and the socket no `timeout` for such calls
/// ([`Posix::read_timeout`] or [`Posix::write_timeout`]).
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
    // A child of vfork shares its parent's table, so its handlers must not be recorded there.
    let passes = !promote::may_promote() || process::is_in_child();
    // SAFETY: guaranteed by the caller.
    let mut wanted = unsafe { action.as_ref() }.copied();
    let kept = handler(signal).map(|it| {
        let function = it.function.load(Ordering::Acquire);
        let flags = it.flags.load(Ordering::Acquire);
        (function, flags, it.mask.load(Ordering::Acquire))
    });
    if let (Some(wanted), Some(handler)) = (&mut wanted, handler(signal))
        && !passes
        && wanted.sa_sigaction != libc::SIG_DFL
        && wanted.sa_sigaction != libc::SIG_IGN
    {
        handler.flags.store(wanted.sa_flags, Ordering::Release);
        let mask = bits_of(&mut wanted.sa_mask);
        handler.mask.store(*mask, Ordering::Release);
        handler
            .function
            .store(wanted.sa_sigaction, Ordering::Release);
        wanted.sa_sigaction = deliver as *const () as sighandler_t;
        wanted.sa_flags |= libc::SA_SIGINFO;
        if !CAUSED.contains(&signal) {
            *mask = CAUSED.iter().fold(!0, |all, &caused| all & !bit(caused));
            wanted.sa_flags &= !libc::SA_NODEFER;
        }
    }
    let wanted = wanted
        .as_ref()
        .map_or(std::ptr::null(), |it| &raw const *it);
    // SAFETY: an action on this stack, and the caller's place.
    let result = unsafe { originals::sigaction(signal, wanted, old) };
    // SAFETY: guaranteed by the caller.
    if let (0, Some(old), Some((function, flags, mask))) = (result, unsafe { old.as_mut() }, kept)
        && old.sa_sigaction == deliver as *const () as sighandler_t
    {
        const OURS: c_int = libc::SA_SIGINFO | libc::SA_NODEFER;
        old.sa_sigaction = function;
        old.sa_flags = old.sa_flags & !OURS | flags & OURS;
        *bits_of(&mut old.sa_mask) = mask;
    }
    result
}

/// The kernel's action, whose fields the C library orders differently.
#[repr(C)]
pub(super) struct KernelAction {
    handler: sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2). The C library determines where a handler returns to.
///
/// # Safety
/// The arguments are as the system call requires.
pub(super) unsafe fn rt_sigaction(
    signal: c_int,
    action: *const KernelAction,
    old: *mut KernelAction,
    length: usize,
) -> c_int {
    // SAFETY: an all-zero action is valid: SIG_DFL.
    let (mut wanted, mut found): (Action, Action) = unsafe { core::mem::zeroed() };
    // SAFETY: guaranteed by the caller.
    let given = unsafe { action.as_ref() }.filter(|_| length == size_of::<u64>());
    if let Some(given) = given {
        wanted.sa_sigaction = given.handler;
        wanted.sa_flags = given.flags as c_int;
        *bits_of(&mut wanted.sa_mask) = given.mask;
    }
    // The C library reserves two signals for itself.
    if length != size_of::<u64>() || (32..=33).contains(&signal) {
        let (action, old) = (action.expose_provenance(), old.expose_provenance());
        // SAFETY: guaranteed by the caller.
        return unsafe {
            let number = libc::SYS_rt_sigaction;
            originals::syscall(number, signal as usize, action, old, length, 0, 0) as c_int
        };
    }
    let wanted = given.map_or(std::ptr::null(), |_| &raw const wanted);
    // SAFETY: actions that are here.
    let result = unsafe { sigaction(signal, wanted, &raw mut found) };
    // SAFETY: guaranteed by the caller.
    if let (0, Some(old)) = (result, unsafe { old.as_mut() }) {
        *old = KernelAction {
            handler: found.sa_sigaction,
            flags: found.sa_flags as libc::c_ulong,
            restorer: found.sa_restorer.map_or(0, |it| it as *const () as usize),
            mask: *bits_of(&mut found.sa_mask),
        };
    }
    result
}

/// signal(2) with the C library's semantics: it restarts calls, or does not.
fn simple(signal: c_int, function: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: an all-zero action is valid: SIG_DFL.
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

/// The C library's version changes its own action, unseen by this library.
#[unsafe(no_mangle)]
extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: an all-zero action is valid: SIG_DFL.
    let mut action: Action = unsafe { core::mem::zeroed() };
    // SAFETY: a place for an action.
    if unsafe { sigaction(signal, std::ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    match interrupts {
        0 => action.sa_flags |= libc::SA_RESTART,
        _ => action.sa_flags &= !libc::SA_RESTART,
    }
    // SAFETY: the current action, except for a flag.
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

/// SIG_HOLD of signal.h: for `sigset` it means "block the signal", and as a result that the
/// signal was blocked.
const SIG_HOLD: sighandler_t = 2;

/// The C library's version sets a handler unseen by this library.
#[unsafe(no_mangle)]
extern "C" fn sigset(number: c_int, function: sighandler_t) -> sighandler_t {
    let mut change = SignalSet::empty();
    if change.insert(number).is_err() {
        fail(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: an all-zero action is valid: SIG_DFL.
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
