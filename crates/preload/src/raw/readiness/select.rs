//! `select(2)` and its variants.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, slice};

use libc::{fd_set, sigset_t, timespec, timeval};
use tidewall::readiness::SignalSet;
use tidewall_posix::{Errno, PollFd, Posix, Result};

use super::super::{answer, done, originals};
use super::{asleep_in, limit, poll_here, sets_among, signal_set};
use crate::process::is_inside;
use crate::promote::{attended_to, may_promote};
use crate::watch::Attention;

/// Events of poll(2) that each set of select(2) requests, and those that count as ready.
const ASKED: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Descriptors for which the process's table has room, at least: it grows.
static TABLE: AtomicI32 = AtomicI32::new(LEAST);
/// The number of descriptors in an `fd_set`.
const LEAST: c_int = libc::FD_SETSIZE as c_int;

/// Called in a forked child: its table may be smaller.
pub(in crate::raw) fn forget_table() {
    TABLE.store(LEAST, Ordering::Relaxed);
}

/// Returns how many descriptors select(2) reads if a program passes `count`: as many as
/// the table has room for, whatever lies behind sets that are too short.
fn looked_at(count: c_int) -> c_int {
    let known = TABLE.load(Ordering::Relaxed);
    if count <= known || !has_room(known) {
        return count.min(known);
    }
    let (mut low, mut high) = (known, count.saturating_add(63) & !63);
    while low < high {
        let middle = (low + (high - low) / 2) & !63;
        match has_room(middle) {
            true => low = middle + 64,
            false => high = middle,
        }
    }
    TABLE.fetch_max(low, Ordering::Relaxed);
    count.min(low)
}

/// Reports whether the table has room for a descriptor. Beyond its end select(2) leaves
/// the bit unchanged.
fn has_room(number: c_int) -> bool {
    let (at, bit) = (number as usize / 64, 1 << (number % 64));
    let mut set = vec![0u64; at + 1];
    if let Some(word) = set.get_mut(at) {
        *word = bit;
    }
    let place = set.as_mut_ptr().cast();
    let (none, mut now) = (
        ptr::null_mut(),
        timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
    );
    // SAFETY: the set is long enough, and the call does not wait.
    let found = unsafe { originals::select(number + 1, place, none, none, &raw mut now) };
    found != 0 || set.get(at) != Some(&bit)
}

/// The sets of select(2), as words.
type Sets<'a> = [&'a mut [u64]; 3];

/// # Safety
/// The arguments are as select(2) requires.
unsafe fn sets<'a>(count: c_int, given: [*mut fd_set; 3]) -> Sets<'a> {
    let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
    given.map(|set| match set.is_null() {
        true => &mut [][..],
        // SAFETY: guaranteed by the caller: that many bits, in whole words.
        false => unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), words) },
    })
}

/// Returns the requests in the form of poll(2).
fn list_of(count: c_int, sets: &Sets<'_>) -> Vec<PollFd> {
    let has = |set: &[u64], fd: usize| set.get(fd / 64).is_some_and(|it| it & 1 << (fd % 64) != 0);
    let mut list = Vec::new();
    for fd in 0..usize::try_from(count).unwrap_or(0) {
        let asked = sets.iter().zip(ASKED).filter(|(set, _)| has(set, fd));
        let events = asked.fold(0, |events, (_, (ask, _))| events | ask);
        if events != 0 {
            list.push(PollFd {
                fd: fd as i32,
                events,
                revents: 0,
            });
        }
    }
    list
}

fn select_here(
    posix: &Posix,
    mut list: Vec<PollFd>,
    mut sets: Sets<'_>,
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> Result<usize> {
    poll_here(posix, &mut list, timeout, signals)?;
    if list.iter().any(PollFd::is_invalid) {
        return Err(Errno(libc::EBADF));
    }
    let mut found = 0;
    for (set, (ask, ready)) in sets.iter_mut().zip(ASKED) {
        if set.is_empty() {
            continue;
        }
        set.fill(0);
        for entry in list.iter().filter(|entry| entry.events & ask != 0) {
            let fd = entry.fd as usize;
            if entry.revents & ready != 0
                && let Some(word) = set.get_mut(fd / 64)
            {
                *word |= 1 << (fd % 64);
                found += 1;
            }
        }
    }
    Ok(found)
}

/// # Safety
/// The arguments are as select(2) requires.
unsafe fn selected<'a>(
    count: c_int,
    given: [*mut fd_set; 3],
) -> core::result::Result<(&'static Posix, Vec<PollFd>, Sets<'a>), Vec<PollFd>> {
    if is_inside() || crate::process::posix().is_none() && !may_promote() {
        return Err(Vec::new());
    }
    let count = looked_at(count);
    // SAFETY: guaranteed by the caller.
    let sets = unsafe { sets(count, given) };
    let list = list_of(count, &sets);
    let mut found = None;
    for entry in &list {
        found = attended_to(entry.fd, Attention::Waits).or(found);
    }
    match found {
        Some(posix) => Ok((posix, list, sets)),
        None => Err(list),
    }
}

/// As `kernel`, a select of kernel descriptors alone. An epoll set that the stack adopts
/// meanwhile is reported as readable: a caller that checks finds the events there.
fn select_in_kernel(
    list: &[PollFd],
    timeout: Option<Duration>,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let sets = sets_among(list.iter().map(|entry| entry.fd), timeout);
    match sets.is_empty() {
        true => kernel(),
        false => asleep_in(&sets, kernel).unwrap_or_else(|| done(Err(Errno(libc::EINTR)))),
    }
}

#[unsafe(no_mangle)]
pub(in crate::raw) unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let given = unsafe { time.as_ref() };
    let limit = given.map(|time| {
        let parts = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
        let (Ok(seconds), Ok(micros)) = parts else {
            return Err(Errno(libc::EINVAL));
        };
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    });
    let limit = match limit.transpose() {
        Ok(limit) => limit,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: guaranteed by the caller.
    let (posix, list, sets) = match unsafe { selected(count, [read, write, except]) } {
        Ok(found) => found,
        Err(list) => {
            return select_in_kernel(&list, limit, || {
                // SAFETY: guaranteed by the caller.
                unsafe { originals::select(count, read, write, except, time) }
            });
        }
    };
    // SAFETY: guaranteed by the caller.
    let time = unsafe { time.as_mut() };
    let begun = Instant::now();
    let result = select_here(posix, list, sets, limit, None);
    if let (Some(time), Some(limit)) = (time, limit) {
        // As Linux: the time that is left.
        let left = limit.saturating_sub(begun.elapsed());
        time.tv_sec = left.as_secs() as libc::time_t;
        time.tv_usec = left.subsec_micros().into();
    }
    answer(result) as c_int
}

/// pselect6(2), whose last argument is a mask and its length.
///
/// # Safety
/// The arguments are as the system call requires.
pub(in crate::raw) unsafe fn pselect6(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    signals: *const *const sigset_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let signals = unsafe { signals.as_ref() }.map_or(ptr::null(), |it| *it);
    // SAFETY: guaranteed by the caller.
    unsafe { pselect(count, read, write, except, time, signals) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let limit = match unsafe { limit(time) } {
        Ok(limit) => limit,
        Err(error) => return done(Err(error)),
    };
    // SAFETY: guaranteed by the caller.
    match unsafe { selected(count, [read, write, except]) } {
        Ok((posix, list, sets)) => {
            // SAFETY: guaranteed by the caller.
            let signals = unsafe { signal_set(signals) };
            answer(select_here(posix, list, sets, limit, signals.as_ref())) as c_int
        }
        Err(list) => select_in_kernel(&list, limit, || {
            // SAFETY: guaranteed by the caller.
            unsafe { originals::pselect(count, read, write, except, time, signals) }
        }),
    }
}
