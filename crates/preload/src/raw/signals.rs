//! Handlers of signals: one that finds its thread inside the stack, whose locks it may
//! hold, waits until the thread is out.
//!
//! Meanwhile its signal is blocked, as far as the thread has not blocked it itself: more of
//! the same wait in the kernel, which knows how many there are, and in which order. No signal
//! but those that an instruction causes interrupts [`deliver`]: the mask that it changes is the
//! one that the thread goes on with.

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
    /// What handlers that have waited, and run, block. One that is not blocked any more is held
    /// by none: its handler has left by a jump, or has unblocked it.
    held: Cell<u64>,
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
            restarts: Cell::new(true),
        }
    };
}

fn handler(signal: c_int) -> Option<&'static Handler> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

/// Signals that the instruction at hand has caused: they cannot wait.
const CAUSED: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// The mask of a set of the C library's, which begins with the kernel's.
fn bits_of(set: &mut libc::sigset_t) -> &mut u64 {
    // SAFETY: the kernel's set is as long, and at the beginning of the C library's.
    unsafe { &mut *(&raw mut *set).cast::<u64>() }
}

/// What the kernel calls.
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
    // SAFETY: as the kernel calls it.
    unsafe { run(signal, info, context) };
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// What is blocked while the handler of a signal runs.
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
        // It has come: it is blocked by no handler.
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
    // The kernel, too, gives all three to a handler that asks for one.
    type Long = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    // SAFETY: the program has said that it is one.
    let function = unsafe { core::mem::transmute::<usize, Long>(function) };
    // SAFETY: as above.
    unsafe { function(signal, info, context) };
}

/// As [`run`], of a signal that has waited: the place that the handler finds interrupted is this
/// call, as that of a signal which comes while a system call returns. Where it says another mask
/// (`uc_sigmask`) that is the result; other changes are lost.
///
/// # Safety
/// As [`run`], with all signals blocked, which it changes to what the handler asks for.
unsafe fn run_late(signal: c_int, info: &mut siginfo_t, before: u64) -> u64 {
    let mut context = MaybeUninit::<ucontext_t>::zeroed();
    // SAFETY: fills it, but for what is zero.
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
            // SAFETY: a stack of the program's, which this thread does not use, as the kernel
            // would have called it there.
            unsafe { stacks::call_on(top, || run(signal, &raw mut *info, place)) };
        }
        // SAFETY: the caller's.
        _ => unsafe { run(signal, &raw mut *info, place) },
    }
    *bits_of(&mut context.uc_sigmask)
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
    let _ = take_interruption();
    let _ = WAITING.try_with(|waiting| {
        loop {
            let before = SignalSet::full().block().bits();
            let held = waiting.held.get() & before;
            waiting.held.set(held);
            // SAFETY: they are.
            let Some((signal, mut info)) = (unsafe { waiting.next() }) else {
                let over = waiting.blocked.get() & !held;
                waiting.blocked.set(waiting.blocked.get() & held);
                SignalSet::from_bits(before & !over).set();
                break;
            };
            // It is blocked since it waits.
            let before = before & !(waiting.blocked.get() & bit(signal));
            waiting.blocked.set(waiting.blocked.get() & !bit(signal));
            waiting.held.set(held | blocked_by(signal));
            // SAFETY: as the kernel would have called it.
            let after = unsafe { run_late(signal, &mut info, before) };
            waiting.held.set(held);
            SignalSet::from_bits(after).set();
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
    // SAFETY: an action that is here, and the caller's place.
    let result = unsafe { originals::sigaction(signal, wanted, old) };
    // SAFETY: the caller's.
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

/// The kernel's action, which the C library has in another order.
#[repr(C)]
pub(super) struct KernelAction {
    handler: sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2). Where a handler returns to is the C library's to say.
///
/// # Safety
/// As the system call has it.
pub(super) unsafe fn rt_sigaction(
    signal: c_int,
    action: *const KernelAction,
    old: *mut KernelAction,
    length: usize,
) -> c_int {
    // SAFETY: all zero is an action: SIG_DFL.
    let (mut wanted, mut found): (Action, Action) = unsafe { core::mem::zeroed() };
    // SAFETY: the caller's.
    let given = unsafe { action.as_ref() }.filter(|_| length == size_of::<u64>());
    if let Some(given) = given {
        wanted.sa_sigaction = given.handler;
        wanted.sa_flags = given.flags as c_int;
        *bits_of(&mut wanted.sa_mask) = given.mask;
    }
    // The C library has two signals for itself.
    if length != size_of::<u64>() || (32..=33).contains(&signal) {
        let (action, old) = (action.expose_provenance(), old.expose_provenance());
        // SAFETY: the caller's.
        return unsafe {
            let number = libc::SYS_rt_sigaction;
            originals::syscall(number, signal as usize, action, old, length, 0, 0) as c_int
        };
    }
    let wanted = given.map_or(std::ptr::null(), |_| &raw const wanted);
    // SAFETY: actions that are here.
    let result = unsafe { sigaction(signal, wanted, &raw mut found) };
    // SAFETY: the caller's.
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
