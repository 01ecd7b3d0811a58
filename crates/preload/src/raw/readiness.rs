//! Waiting for several descriptors at once.

mod select;

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{ptr, slice};

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use tidewall::readiness::{EpollEvent, SignalSet};
use tidewall_posix::{Errno, PollFd, Posix, Result, errno};

pub(super) use select::{forget_table, pselect6, select};

use super::cancellation::point;
use super::{answer, borrow, done, originals};
use crate::candidates;
use crate::mixed;
use crate::process::{inside, is_inside, ours};
use crate::promote::{attended_to, may_promote};
use crate::registered;
use crate::sleepers::{self, Sleeper};
use crate::watch::{self, Attention};

/// Most events that one call reports; the caller calls again for more.
const EVENTS_MAX: usize = 256;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let found = match operation {
        libc::EPOLL_CTL_ADD => attended_to(fd, Attention::Enters),
        _ => ours(fd),
    };
    let Some(posix) = found else {
        // SAFETY: guaranteed by the caller.
        let result = unsafe { originals::epoll_ctl(set, operation, fd, event) };
        if result == 0 && candidates::is_any(fd) && !watch::is_accepted(fd) {
            // SAFETY: guaranteed by the caller.
            let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
            registered::note(set, operation, fd, event);
        }
        return result;
    };
    // SAFETY: guaranteed by the caller.
    let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    done(inside(|| control(posix, set, operation, fd, event)))
}

/// `epoll_ctl` on a descriptor of the stack.
pub(crate) fn control(
    posix: &Posix,
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<(u32, u64)>,
) -> Result<()> {
    if !posix.owns(set) {
        adopt_set(posix, set)?;
    }
    posix.epoll_ctl(set, operation, fd, event)
}

/// Removes a descriptor from a kernel epoll set.
pub(crate) fn leave_set(set: c_int, fd: c_int) {
    // SAFETY: two numbers.
    unsafe { originals::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

/// Makes a kernel epoll set hold descriptors of the stack from now on, and so the sets
/// that contain it.
fn adopt_set(posix: &Posix, set: c_int) -> Result<()> {
    static ADOPTING: Mutex<()> = Mutex::new(());
    {
        let _adopting = ADOPTING.lock().unwrap_or_else(PoisonError::into_inner);
        if posix.owns(set) {
            return Ok(());
        }
        let kernel = borrow(set).ok_or(Errno(libc::EBADF))?;
        let copy = kernel.try_clone_to_owned().map_err(errno)?;
        posix.adopt_epoll(set, copy)?;
    }
    registered::move_over(posix, set);
    sleepers::wake(set);
    Ok(())
}

/// Records the result of a call that creates an epoll set.
fn made(set: c_int) -> c_int {
    if super::given::given(set) >= 0 && !is_inside() {
        candidates::note_set(set);
    }
    set
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    made(unsafe { originals::epoll_create(size) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    made(unsafe { originals::epoll_create1(flags) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
) -> c_int {
    let timeout = timeout(milliseconds);
    // SAFETY: guaranteed by the caller.
    unsafe {
        wait_anywhere(set, events, count, timeout, ptr::null(), || {
            originals::epoll_wait(set, events, count, milliseconds)
        })
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
    signals: *const sigset_t,
) -> c_int {
    let timeout = timeout(milliseconds);
    // SAFETY: guaranteed by the caller.
    unsafe {
        wait_anywhere(set, events, count, timeout, signals, || {
            originals::epoll_pwait(set, events, count, milliseconds, signals)
        })
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let timeout = match limit(time) {
            Ok(timeout) => timeout,
            Err(error) => return done(Err(error)),
        };
        wait_anywhere(set, events, count, timeout, signals, || {
            originals::epoll_pwait2(set, events, count, time, signals)
        })
    }
}

/// Waits in a set: a kernel set by `kernel`, until the stack adopts it.
///
/// # Safety
/// The arguments are as epoll_pwait(2) requires.
unsafe fn wait_anywhere(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    signals: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    watch::judge();
    let mut left = timeout;
    if ours(set).is_none() {
        let begun = timeout.filter(|it| !it.is_zero()).map(|_| Instant::now());
        // SAFETY: guaranteed by the caller.
        if let Some(found) = unsafe { wait_in_kernel(set, events, timeout, kernel) } {
            return found;
        }
        left = left_of(timeout, begun);
    }
    let Some(posix) = ours(set) else {
        // The eventfd of another process's set, which this one has inherited.
        return done(Err(Errno(libc::EINTR)));
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let signals = signal_set(signals);
        wait(posix, set, events, count, left, signals.as_ref())
    }
}

fn left_of(timeout: Option<Duration>, begun: Option<Instant>) -> Option<Duration> {
    let spent = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    timeout.map(|timeout| timeout.saturating_sub(spent))
}

/// Returns what the kernel's wait has found. `None` if the stack has adopted the set, or
/// if the only event was the eventfd that reports this.
///
/// # Safety
/// `kernel` fills as many events as it returns.
unsafe fn wait_in_kernel(
    set: c_int,
    events: *mut epoll_event,
    timeout: Option<Duration>,
    kernel: impl FnOnce() -> c_int,
) -> Option<c_int> {
    watch::waits();
    let sleeps = timeout.is_none_or(|it| !it.is_zero()) && may_promote() && !is_inside();
    let sleeper = sleeps.then(|| Sleeper::enter(set));
    if sleeps && ours(set).is_some() {
        return None;
    }
    let found = kernel();
    drop(sleeper);
    let Some(ready @ 1..) = usize::try_from(found).ok() else {
        return Some(found);
    };
    // SAFETY: guaranteed by the caller.
    let places = unsafe { slice::from_raw_parts_mut(events, ready) };
    match without_bell(set, places, |event| event.u64) {
        0 if sleeps => None,
        kept => Some(kept as c_int),
    }
}

/// Removes the wake-up eventfd from the events found; returns how many events are left.
fn without_bell<E: Copy>(set: c_int, events: &mut [E], data: impl Fn(&E) -> u64) -> usize {
    let Some(at) = events
        .iter()
        .position(|event| sleepers::is_wake_up(data(event)))
    else {
        return events.len();
    };
    sleepers::heard(set);
    events.copy_within(at + 1.., at);
    events.len() - 1
}

/// Converts a timeout; negative waits forever.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// # Safety
/// The arguments are as sigprocmask(2) requires.
unsafe fn signal_set(signals: *const sigset_t) -> Option<SignalSet> {
    if signals.is_null() {
        return None;
    }
    let mut set = SignalSet::empty();
    for signal in 1..=64 {
        // SAFETY: the set is the caller's.
        if unsafe { libc::sigismember(signals, signal) } == 1 {
            let _ = set.insert(signal);
        }
    }
    Some(set)
}

/// # Safety
/// The arguments are as epoll_wait(2) requires.
unsafe fn wait(
    posix: &Posix,
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0).min(EVENTS_MAX);
    if count == 0 {
        return done(Err(Errno(libc::EINVAL)));
    }
    let mut found = [EpollEvent::default(); EVENTS_MAX];
    let room = found.get_mut(..count).unwrap_or_default();
    let begun = timeout.map(|_| Instant::now());
    let waited: Result<usize> = loop {
        let left = left_of(timeout, begun);
        let waited = point(
            || left != Some(Duration::ZERO),
            || {
                inside(|| {
                    let table = posix.descriptors();
                    table.epoll_pwait2(set, room, left, signals).map_err(errno)
                })
            },
        );
        let Ok(ready @ 1..) = waited else {
            break waited;
        };
        let places = room.get_mut(..ready).unwrap_or_default();
        match without_bell(set, places, |event| event.data) {
            // The eventfd wakes other threads, which have to run to clear it.
            0 => std::thread::yield_now(),
            _ if events.is_null() => break Err(Errno(libc::EFAULT)),
            kept => break Ok(kept),
        }
    };
    let result = waited.inspect(|&ready| {
        if ready == 0 {
            return;
        }
        // SAFETY: guaranteed by the caller: room for that many.
        let places = unsafe { slice::from_raw_parts_mut(events, count) };
        for (place, event) in places.iter_mut().zip(found.iter().take(ready)) {
            *place = epoll_event {
                events: event.events.bits(),
                u64: event.data,
            };
        }
    });
    answer(result) as c_int
}

/// Converts how long a call waits; `None` means forever.
///
/// # Errors
/// EINVAL for a negative time, and for an invalid fraction of a second.
///
/// # Safety
/// Null, or a pointer to a time.
pub(super) unsafe fn limit(time: *const timespec) -> Result<Option<Duration>> {
    // SAFETY: guaranteed by the caller.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Ok(None);
    };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos @ 0..1_000_000_000)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Errno(libc::EINVAL)),
    }
}

// ---- poll ----------------------------------------------------------------------

/// Calls the kernel's poll(2) without waiting.
pub(crate) fn poll_now(list: &mut [PollFd]) -> Result<usize> {
    if list.is_empty() {
        return Ok(0);
    }
    // SAFETY: a PollFd is a pollfd.
    let found = unsafe { originals::poll(list.as_mut_ptr().cast(), list.len() as nfds_t, 0) };
    super::checked(found).map(|found| found as usize)
}

/// Reports a list that the kernel rejects unread (EINVAL), so it may be shorter than its
/// count states.
fn is_too_long(count: nfds_t) -> bool {
    /// Lists up to this length are valid as long as no limit is lower.
    const ANY: nfds_t = 1024;
    let most = || rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    count > ANY && most().is_some_and(|most| count > most)
}

/// Returns the stack, if it owns a descriptor in a list.
///
/// # Safety
/// The arguments are as poll(2) requires.
unsafe fn listed<'a>(
    list: *mut pollfd,
    count: nfds_t,
) -> Option<(&'static Posix, &'a mut [PollFd])> {
    if list.is_null() || count == 0 || is_too_long(count) {
        return None;
    }
    // SAFETY: guaranteed by the caller; a PollFd is a pollfd.
    let list = unsafe { slice::from_raw_parts_mut(list.cast::<PollFd>(), count as usize) };
    let mut found = None;
    for entry in list.iter() {
        found = attended_to(entry.fd, Attention::Waits).or(found);
    }
    found.map(|posix| (posix, list))
}

/// `ppoll(2)` of a list that holds descriptors of the stack.
fn poll_here(
    posix: &Posix,
    list: &mut [PollFd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> Result<usize> {
    let sleeps = || timeout != Some(Duration::ZERO);
    point(sleeps, || mixed::poll(posix, list, timeout, signals))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(
    list: *mut pollfd,
    count: nfds_t,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { listed(list, count) } {
        Some((posix, list)) => answer(poll_here(posix, list, timeout(milliseconds), None)) as c_int,
        // SAFETY: guaranteed by the caller.
        None => unsafe {
            let timeout = timeout(milliseconds);
            poll_in_kernel(list, count, timeout, ptr::null(), || {
                originals::poll(list, count, milliseconds)
            })
        },
    }
}

/// Runs `kernel`, a poll of kernel descriptors alone, until the stack adopts an epoll set
/// in the list.
///
/// # Safety
/// The arguments are as ppoll(2) requires.
unsafe fn poll_in_kernel(
    list: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    signals: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let given = match list.is_null() || is_too_long(count) {
        true => &[],
        // SAFETY: guaranteed by the caller.
        false => unsafe { slice::from_raw_parts(list, count as usize) },
    };
    let sets = sets_among(given.iter().map(|entry| entry.fd), timeout);
    if sets.is_empty() {
        return kernel();
    }
    let begun = timeout.map(|_| Instant::now());
    let found = asleep_in(&sets, kernel);
    // SAFETY: guaranteed by the caller.
    match unsafe { listed(list, count) } {
        // SAFETY: guaranteed by the caller.
        Some((posix, list)) if found != Some(-1) => unsafe {
            let signals = signal_set(signals);
            let left = left_of(timeout, begun);
            answer(poll_here(posix, list, left, signals.as_ref())) as c_int
        },
        _ => found.unwrap_or(0),
    }
}

/// Returns the epoll sets among the descriptors on which a call is about to sleep.
fn sets_among(numbers: impl Iterator<Item = c_int>, timeout: Option<Duration>) -> Vec<c_int> {
    watch::waits();
    let mut sets = numbers.filter(|&fd| candidates::is_set(fd)).peekable();
    if timeout == Some(Duration::ZERO) || sets.peek().is_none() || !may_promote() || is_inside() {
        return Vec::new();
    }
    sets.collect()
}

/// Returns the result of `kernel`, with this thread counted as asleep in kernel sets.
/// Returns `None` without the call if one of the sets is the stack's.
fn asleep_in(sets: &[c_int], kernel: impl FnOnce() -> c_int) -> Option<c_int> {
    let sleepers: Vec<Sleeper> = sets.iter().map(|&set| Sleeper::enter(set)).collect();
    let is_ours = |set: &c_int| ours(*set).is_some();
    if sets.iter().any(is_ours) {
        return None;
    }
    let found = kernel();
    let errno = crate::process::last_error::<()>();
    drop(sleepers);
    sets.iter()
        .copied()
        .filter(|set| is_ours(set))
        .for_each(sleepers::heard);
    if let (-1, Err(Errno(errno))) = (found, errno) {
        super::fail(errno);
    }
    Some(found)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { listed(list, count) } {
        // SAFETY: guaranteed by the caller.
        Some((posix, list)) => unsafe {
            let signals = signal_set(signals);
            let found =
                limit(time).and_then(|limit| poll_here(posix, list, limit, signals.as_ref()));
            answer(found) as c_int
        },
        // SAFETY: guaranteed by the caller.
        None => unsafe {
            let timeout = limit(time).unwrap_or(Some(Duration::ZERO));
            poll_in_kernel(list, count, timeout, signals, || {
                originals::ppoll(list, count, time, signals)
            })
        },
    }
}

/// Ends a program whose list is shorter than its count, as the C library does.
fn check(count: nfds_t, room: usize) {
    if count as usize > room / size_of::<pollfd>() {
        // SAFETY: does not return.
        unsafe { originals::__chk_fail() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    milliseconds: c_int,
    room: usize,
) -> c_int {
    check(count, room);
    // SAFETY: guaranteed by the caller.
    unsafe { poll(list, count, milliseconds) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    signals: *const sigset_t,
    room: usize,
) -> c_int {
    check(count, room);
    // SAFETY: guaranteed by the caller.
    unsafe { ppoll(list, count, time, signals) }
}
