//! Waits for sockets of the stack and kernel descriptors at once, by `poll` and `select`.
//!
//! The kernel's own poll(2) polls the kernel descriptors. To sleep on both, each thread puts
//! them into a kernel epoll set of its own. That set is the only kernel descriptor on which
//! the stack's poll sleeps.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tidewall::descriptor::Flags;
use tidewall::readiness::{Events, SignalSet};
use tidewall_posix::{PollFd, Posix, Result, errno};

use crate::process::{self, inside};
use crate::protected::{out_of_the_way, release};
use crate::raw;

/// The kernel descriptors on which a thread sleeps.
struct Side {
    /// The descriptor of the epoll set, which is open in the stack's table too.
    number: i32,
    entered: Vec<i32>,
}

thread_local! {
    static SIDE: RefCell<Option<Side>> = const { RefCell::new(None) };
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(posix) = process::posix() {
            release(self.number);
            inside(|| drop(posix.descriptors().close(self.number)));
        }
    }
}

impl Side {
    fn new(posix: &Posix) -> Result<Self> {
        let set =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| errno(error.into()))?;
        let set = out_of_the_way(set);
        let number = set.as_raw_fd();
        let table = posix.descriptors();
        table.install(number, set, Flags::NONE).map_err(errno)?;
        Ok(Side {
            number,
            entered: Vec::new(),
        })
    }

    /// Makes the set hold these descriptors and no others.
    fn enter(&mut self, list: &[PollFd]) {
        let Some(set) = raw::borrow(self.number) else {
            return;
        };
        let stays = |fd: i32| list.iter().any(|entry| entry.fd == fd);
        for fd in self.entered.extract_if(.., |fd| !stays(*fd)) {
            // A closed descriptor has already left the set.
            let _ = raw::borrow(fd).map(|file| epoll::delete(set, file));
        }
        for (fd, events) in asked_of_each(list) {
            // A file that never waits, for example on a disk, was ready when it was
            // polled.
            if let Some(file) = raw::borrow(fd)
                && enter(set, file, events).is_ok()
                && !self.entered.contains(&fd)
            {
                self.entered.push(fd);
            }
        }
    }
}

/// Returns each descriptor once, with all events that its entries request.
fn asked_of_each(list: &[PollFd]) -> Vec<(i32, i16)> {
    let mut asked: Vec<_> = list.iter().map(|entry| (entry.fd, entry.events)).collect();
    asked.sort_unstable();
    asked.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        kept.1 |= if is_same { next.1 } else { 0 };
        is_same
    });
    asked
}

fn enter(set: BorrowedFd<'_>, file: BorrowedFd<'_>, events: i16) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    let events = epoll::EventFlags::from_bits_retain(u32::from(events as u16));
    match epoll::add(set, file, data, events) {
        Err(rustix::io::Errno::EXIST) => epoll::modify(set, file, data, events),
        other => other,
    }
}

/// `ppoll(2)` over a list that holds sockets of the stack.
pub(crate) fn poll(
    posix: &Posix,
    list: &mut [PollFd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> Result<usize> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let is_own: Vec<bool> = list.iter().map(|entry| posix.owns(entry.fd)).collect();
    let those = |wanted: bool| {
        let kinds = is_own.iter().zip(list.iter());
        kinds.filter_map(move |(&is, &entry)| (is == wanted).then_some(entry))
    };
    let (mut own, mut others): (Vec<PollFd>, Vec<PollFd>) =
        (those(true).collect(), those(false).collect());
    let table = posix.descriptors();
    let mut slept = false;
    loop {
        let ready = raw::poll_now(&mut others)?;
        if !slept || ready > 0 {
            inside(|| table.poll(&mut own, Some(Duration::ZERO))).map_err(errno)?;
        }
        let found = ready + own.iter().filter(|entry| entry.revents != 0).count();
        let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
        let over = timeout == Some(Duration::ZERO) || left == Some(Duration::ZERO);
        if found == 0 && timeout == Some(Duration::ZERO) && signals.is_some() {
            // A signal that is pending, and not blocked for the call, still ends it.
            inside(|| tidewall_sys::ppoll(&mut [], timeout, signals).map_err(errno))?;
        }
        if found > 0 || over {
            let (mut own, mut others) = (own.iter(), others.iter());
            for (entry, is_own) in list.iter_mut().zip(is_own) {
                let found = if is_own { own.next() } else { others.next() };
                entry.revents = found.map_or(0, |found| found.revents);
            }
            return Ok(found);
        }
        let beside = inside(|| sleep(posix, &mut own, &others, left, signals))?;
        if beside && raw::poll_now(&mut others)? == 0 {
            // The set holds an entry unknown to this thread: a file that was closed under
            // its descriptor, and is open under another.
            inside(|| SIDE.with(|side| side.replace(None)));
        }
        slept = true;
    }
}

/// Sleeps; returns true when a kernel descriptor is ready.
fn sleep(
    posix: &Posix,
    own: &mut Vec<PollFd>,
    others: &[PollFd],
    timeout: Option<Duration>,
    signals: Option<&SignalSet>,
) -> Result<bool> {
    let table = posix.descriptors();
    if others.is_empty() {
        table.ppoll(own, timeout, signals).map_err(errno)?;
        return Ok(false);
    }
    let number = SIDE.with(|side| {
        let mut side = side.borrow_mut();
        let known = side.take().filter(|side| posix.owns(side.number));
        let mut known = match known {
            Some(known) => known,
            None => Side::new(posix)?,
        };
        known.enter(others);
        Ok(side.insert(known).number)
    })?;
    own.push(PollFd::new(number, Events::IN));
    let slept = table.ppoll(own, timeout, signals).map_err(errno);
    let beside = own.pop().is_some_and(|entry| entry.revents != 0);
    slept?;
    Ok(beside)
}
