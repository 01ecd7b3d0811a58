//! Waiting for several at once.

use std::ffi::c_int;
use std::io;
use std::slice;
use std::time::Duration;

use libc::{epoll_event, sigset_t};
use tidewall_posix::{Errno, Posix, Result, errno};
use tidewall_socket::readiness::{EpollEvent, SignalSet};

use super::{answer, borrow, done, originals};
use crate::process::{inside, ours};
use crate::promote::attended;

/// Events that one call reports at most; the caller comes again.
const EVENTS_MAX: usize = 256;

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let found = match operation {
        libc::EPOLL_CTL_ADD => attended(fd),
        _ => ours(fd),
    };
    let Some(posix) = found else {
        // SAFETY: the caller's.
        return unsafe { originals::epoll_ctl(set, operation, fd, event) };
    };
    // SAFETY: the caller's.
    let event = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    done(inside(|| {
        if !posix.owns(set) {
            adopt_set(posix, set)?;
        }
        posix.epoll_ctl(set, operation, fd, event)
    }))
}

/// A set of the kernel's has something of ours from now on.
fn adopt_set(posix: &Posix, set: c_int) -> Result<()> {
    let kernel = borrow(set).ok_or(Errno(libc::EBADF))?;
    let copy = kernel.try_clone_to_owned().map_err(errno)?;
    posix.adopt_epoll(set, copy)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
) -> c_int {
    match ours(set) {
        // SAFETY: the caller's.
        Some(posix) => unsafe { wait(posix, set, events, count, timeout(milliseconds), None) },
        // SAFETY: the caller's.
        None => unsafe { originals::epoll_wait(set, events, count, milliseconds) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
    signals: *const sigset_t,
) -> c_int {
    let Some(posix) = ours(set) else {
        // SAFETY: the caller's.
        return unsafe { originals::epoll_pwait(set, events, count, milliseconds, signals) };
    };
    // SAFETY: the caller's.
    let signals = unsafe { signal_set(signals) };
    // SAFETY: the caller's.
    unsafe {
        wait(
            posix,
            set,
            events,
            count,
            timeout(milliseconds),
            signals.as_ref(),
        )
    }
}

/// Negative waits for ever.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// # Safety
/// As sigprocmask(2) has it.
unsafe fn signal_set(signals: *const sigset_t) -> Option<SignalSet> {
    if signals.is_null() {
        return None;
    }
    let mut set = SignalSet::empty();
    for signal in 1..=64 {
        // SAFETY: the caller's set.
        if unsafe { libc::sigismember(signals, signal) } == 1 {
            let _ = set.insert(signal);
        }
    }
    Some(set)
}

/// # Safety
/// As epoll_wait(2) has it.
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
    if events.is_null() {
        return done(Err(Errno(libc::EFAULT)));
    }
    let mut found = [EpollEvent::default(); EVENTS_MAX];
    let room = found.get_mut(..count).unwrap_or_default();
    let waited: io::Result<usize> = inside(|| {
        posix
            .descriptors()
            .epoll_pwait2(set, room, timeout, signals)
    });
    let result = waited.map_err(errno).inspect(|&ready| {
        // SAFETY: the caller's: room for so many.
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
