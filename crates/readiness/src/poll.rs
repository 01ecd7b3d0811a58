//! `poll` and `ppoll`.

use std::io;
use std::time::Duration;

use super::classes::Classes;
use super::interest::Interest;
use super::thread_state::{Call, OpenFiles, ThreadState, with_thread_state};
use super::{Events, SignalSet};
use crate::descriptor::{Descriptors, TableFile};

/// POLLNVAL: the descriptor is not open.
const NVAL: i16 = libc::POLLNVAL;

/// An entry of [`Descriptors::poll`]'s list, laid out as C's `pollfd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PollFd {
    /// The descriptor; a negative one is skipped.
    pub fd: i32,
    /// The requested events: POLL* bits, as in [`Events`]. Errors and hang-ups are always
    /// requested.
    pub events: i16,
    /// The result, set by the call; POLLNVAL (0x20) for a descriptor that is not open.
    pub revents: i16,
}

impl PollFd {
    /// Creates an entry that requests events of a descriptor.
    pub const fn new(fd: i32, events: Events) -> Self {
        PollFd {
            fd,
            events: events.bits() as u16 as i16,
            revents: 0,
        }
    }

    /// Returns the result without POLLNVAL.
    pub fn returned(&self) -> Events {
        bits(self.revents & !NVAL)
    }

    /// Returns true if the result was that the descriptor is not open.
    pub fn is_invalid(&self) -> bool {
        self.revents & NVAL != 0
    }

    /// Returns the requested events, with those that are always reported.
    fn asked(&self) -> Events {
        bits(self.events).with(Events::ERR).with(Events::HUP)
    }
}

fn bits(bits: i16) -> Events {
    Events::from_bits(u32::from(bits as u16))
}

impl<F: TableFile> Descriptors<F> {
    /// Waits until one of the descriptors is ready for its requested events, and sets
    /// each entry's `revents`. Returns the number of entries with something in `revents`;
    /// 0 at the timeout. `None` waits forever, zero does not wait.
    ///
    /// It examines the descriptors that [`Descriptors::select`] would: both use the
    /// thread's state of its descriptors. A descriptor that another thread closes
    /// meanwhile gets POLLNVAL.
    ///
    /// # Errors
    /// EINVAL for a list longer than the descriptor limit; EINTR when a signal arrives;
    /// the device's errors as [`Selector::wait`](crate::Selector::wait) reports them.
    pub fn poll(&self, list: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
        self.ppoll(list, timeout, None)
    }

    /// As [`Descriptors::poll`], with `signals` as the signal mask while it waits.
    ///
    /// # Errors
    /// Those of [`Descriptors::poll`]; EINTR also for a signal that was pending.
    pub fn ppoll(
        &self,
        list: &mut [PollFd],
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
    ) -> io::Result<usize> {
        if list.len() > self.limit() as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        with_thread_state(self, |thread| {
            let mut call = Poll {
                list,
                ready: 0,
                order: Order::Unknown,
            };
            thread.wait(self, timeout, signals, &mut call)
        })
    }
}

/// How to find a descriptor's entries in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Unknown,
    /// `places` states the position of a descriptor.
    Unique,
    /// A descriptor occurs twice: all entries must be searched.
    Repeats,
}

/// A call of `poll`.
struct Poll<'a> {
    list: &'a mut [PollFd],
    /// Entries with something in `revents`.
    ready: usize,
    order: Order,
}

impl Call for Poll<'_> {
    // An entry that the rule skips costs a check of two bitmaps.
    fn examine_all(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()> {
        self.ready = 0;
        for entry in self.list.iter_mut() {
            entry.revents = look(entry, &mut thread.interest, files)?;
            self.ready += usize::from(entry.revents != 0);
        }
        Ok(())
    }

    fn examine_changed(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()> {
        let ThreadState {
            interest,
            changed,
            places,
            ..
        } = thread;
        if changed.is_empty() {
            return Ok(());
        }
        if self.order == Order::Unknown {
            self.order = index(self.list, places);
        }
        for number in changed.drain(..) {
            let mut asked = false;
            let mut again = |entry: &mut PollFd| -> io::Result<()> {
                if usize::try_from(entry.fd) == Ok(number) {
                    asked = true;
                    let before = entry.revents != 0;
                    entry.revents = look(entry, interest, files)?;
                    self.ready += usize::from(entry.revents != 0);
                    self.ready -= usize::from(before);
                }
                Ok(())
            };
            if self.order == Order::Unique {
                let place = places.get(number).map(|&place| place as usize);
                if let Some(entry) = place.and_then(|place| self.list.get_mut(place)) {
                    again(entry)?;
                }
            } else {
                for entry in self.list.iter_mut() {
                    again(entry)?;
                }
            }
            if !asked {
                files.park(number);
            }
        }
        Ok(())
    }

    fn found(&self, _thread: &ThreadState) -> usize {
        self.ready
    }

    fn all_asked(&self, each: &mut dyn FnMut(usize) -> bool) -> bool {
        let mut numbers = self.list.iter().flat_map(|it| usize::try_from(it.fd));
        numbers.all(each)
    }
}

/// Records each descriptor's position in a list. Old contents of `places` are always
/// verified against the list, so they are not cleared.
fn index(list: &[PollFd], places: &mut Vec<u32>) -> Order {
    let highest = list.iter().map(|entry| entry.fd).max().unwrap_or(-1);
    let width = usize::try_from(highest).map_or(0, |highest| highest + 1);
    if places.len() < width {
        places.resize(width, 0);
    }
    let mut order = Order::Unique;
    for (place, entry) in list.iter().enumerate() {
        let slot = usize::try_from(entry.fd)
            .ok()
            .and_then(|number| places.get_mut(number));
        let Some(slot) = slot else { continue };
        let before = *slot as usize;
        if before < place && list.get(before).is_some_and(|other| other.fd == entry.fd) {
            order = Order::Repeats;
        }
        *slot = u32::try_from(place).unwrap_or(u32::MAX);
    }
    order
}

/// Computes an entry's `revents`.
#[inline]
fn look(entry: &PollFd, interest: &mut Interest, files: &mut OpenFiles<'_>) -> io::Result<i16> {
    let Ok(number) = usize::try_from(entry.fd) else {
        return Ok(0);
    };
    let asked = entry.asked();
    match interest.look(number, Classes::polled(asked), files) {
        Ok(None) => Ok(0),
        Ok(Some(state)) => Ok((state & asked).bits() as u16 as i16),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(NVAL),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_pollfd() {
        let entry = PollFd::new(7, Events::IN | Events::RDHUP);
        let theirs = libc::pollfd {
            fd: 7,
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        };
        assert_eq!(size_of::<PollFd>(), size_of::<libc::pollfd>());
        assert_eq!(std::mem::offset_of!(PollFd, events), 4);
        assert_eq!(std::mem::offset_of!(PollFd, revents), 6);
        assert_eq!((entry.fd, entry.events), (theirs.fd, theirs.events));
    }

    #[test]
    fn a_list_is_searched_by_number_whatever_was_there_before() {
        let list = |fds: &[i32]| -> Vec<PollFd> {
            fds.iter().map(|&fd| PollFd::new(fd, Events::IN)).collect()
        };
        let mut places = vec![0, 1, 2, 900];
        let unique = list(&[3, -1, 0, -1, 7]);
        assert!(index(&unique, &mut places) == Order::Unique);
        assert_eq!([places[3], places[0], places[7]], [0, 2, 4]);
        assert!(index(&list(&[5, 5]), &mut places) == Order::Repeats);
        assert!(index(&list(&[0, 3, 7]), &mut places) == Order::Unique);
        assert!(index(&list(&[7, 0, 3, 7]), &mut places) == Order::Repeats);
        assert!(index(&list(&[-1, -1]), &mut places) == Order::Unique);
    }
}
