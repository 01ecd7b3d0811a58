//! `poll(2)` and `epoll(7)`.

use std::collections::BTreeMap;

use tidewall_protocol::tcp::State;

use super::socket::{Kind, Socket};
use super::{Failure, Fd, Host, Result};

/// `struct pollfd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollFd {
    /// A descriptor; a negative one is skipped.
    pub fd: Fd,
    /// What is asked for (`POLLIN` and others).
    pub events: i16,
    /// What there is.
    pub revents: i16,
}

/// `struct epoll_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpollEvent {
    /// `EPOLLIN` and others.
    pub events: u32,
    /// The caller's.
    pub data: u64,
}

/// One descriptor in an epoll set.
struct Interest {
    event: EpollEvent,
    /// False after `EPOLLONESHOT` has reported.
    armed: bool,
    /// Wakeups of the descriptor when it was last reported (`EPOLLET`): another
    /// report needs a later one.
    reported: Option<(u64, u64)>,
    /// Its place in the order of reports.
    turn: u64,
}

/// An epoll set.
#[derive(Default)]
pub(super) struct Epoll {
    interests: BTreeMap<Fd, Interest>,
    turns: u64,
}

/// Told whether it was asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl Host {
    /// What a descriptor is ready for, in epoll's bits, as `tcp_poll` has it; a
    /// socket that is not writable is told when it is.
    fn readiness(&mut self, fd: Fd) -> u32 {
        let Some(socket) = self.sockets.get(&fd) else {
            return libc::EPOLLERR as u32;
        };
        match socket.kind {
            Kind::Fresh => OUT | libc::EPOLLHUP as u32,
            Kind::Listener => match self.listeners.get(&fd) {
                Some(listening) if !listening.queue.is_empty() => IN,
                _ => 0,
            },
            Kind::Epoll(_) => 0,
            Kind::Stream(id) => {
                let Some(entry) = self.connections.get_mut(&id) else {
                    return libc::EPOLLHUP as u32;
                };
                let connection = &entry.connection;
                let mut ready = 0;
                let (read_closed, write_closed) =
                    (connection.receive_closed(), connection.send_closed());
                if read_closed && write_closed {
                    ready |= libc::EPOLLHUP as u32;
                }
                if read_closed {
                    ready |= IN | libc::EPOLLRDHUP as u32;
                }
                if connection.has_error() || connection.has_notifications() {
                    ready |= libc::EPOLLERR as u32;
                }
                let opening = matches!(connection.state(), State::SynSent | State::SynReceived);
                if entry.deferred {
                    // For the write that the SYN waits for.
                    return ready | OUT;
                }
                if opening && !connection.is_fast_opening() {
                    return ready;
                }
                if connection.readable() {
                    ready |= IN;
                }
                if write_closed || connection.writable() {
                    ready |= OUT;
                } else {
                    entry.no_space = true;
                }
                ready
            }
        }
    }

    /// Times that a descriptor's readers and writers were woken.
    fn wakeups(&self, fd: Fd) -> (u64, u64) {
        match self.sockets.get(&fd).map(|socket| &socket.kind) {
            Some(Kind::Stream(id)) => self
                .connections
                .get(id)
                .map_or((0, 0), |entry| (entry.readings, entry.writings)),
            Some(Kind::Listener) => {
                let woken = |listening: &super::Listening| (listening.wakeups, 0);
                self.listeners.get(&fd).map_or((0, 0), woken)
            }
            _ => (0, 0),
        }
    }

    /// `poll(2)`: how many descriptors have something to tell. Without waiting:
    /// zero is for the caller to wait, or to give up when its time is over.
    ///
    /// # Errors
    /// None; an unknown descriptor gets POLLNVAL.
    pub fn poll(&mut self, descriptors: &mut [PollFd]) -> Result<usize> {
        let mut count = 0;
        for descriptor in descriptors {
            descriptor.revents = 0;
            if descriptor.fd < 0 {
                continue;
            }
            descriptor.revents = if self.owns(descriptor.fd) {
                // The bits of poll and epoll are the same.
                let ready = self.readiness(descriptor.fd);
                (ready & (u32::from(descriptor.events as u16) | ALWAYS)) as i16
            } else {
                libc::POLLNVAL
            };
            count += usize::from(descriptor.revents != 0);
        }
        Ok(count)
    }

    /// `epoll_create(2)`.
    ///
    /// # Errors
    /// EINVAL for a size that is not positive.
    pub fn epoll_create(&mut self, size: i32) -> Result<Fd> {
        if size <= 0 {
            return Err(Failure::Errno(libc::EINVAL));
        }
        let fd = self.allocate();
        let kind = Kind::Epoll(Epoll::default());
        self.sockets.insert(fd, Socket::new(0, kind));
        Ok(fd)
    }

    fn set_of(&mut self, set: Fd) -> Result<&mut Epoll> {
        match &mut self.get_mut(set)?.kind {
            Kind::Epoll(epoll) => Ok(epoll),
            _ => Err(Failure::Errno(libc::EINVAL)),
        }
    }

    /// `epoll_ctl(2)`.
    ///
    /// # Errors
    /// EBADF, EEXIST, ENOENT; EINVAL for a set in itself or any other operation.
    pub fn epoll_ctl(&mut self, set: Fd, operation: i32, fd: Fd, event: EpollEvent) -> Result<()> {
        self.get(fd)?;
        if set == fd {
            return Err(Failure::Errno(libc::EINVAL));
        }
        self.changes += 1;
        let epoll = self.set_of(set)?;
        epoll.turns += 1;
        let interest = Interest {
            event,
            armed: true,
            reported: None,
            turn: epoll.turns,
        };
        match operation {
            libc::EPOLL_CTL_ADD if epoll.interests.contains_key(&fd) => {
                Err(Failure::Errno(libc::EEXIST))
            }
            libc::EPOLL_CTL_ADD => {
                epoll.interests.insert(fd, interest);
                Ok(())
            }
            libc::EPOLL_CTL_MOD => match epoll.interests.get_mut(&fd) {
                Some(place) => {
                    *place = interest;
                    Ok(())
                }
                None => Err(Failure::Errno(libc::ENOENT)),
            },
            libc::EPOLL_CTL_DEL => match epoll.interests.remove(&fd) {
                Some(_) => Ok(()),
                None => Err(Failure::Errno(libc::ENOENT)),
            },
            _ => Err(Failure::Errno(libc::EINVAL)),
        }
    }

    /// `epoll_wait(2)`, without waiting: what there is, at most `limit`. Nothing
    /// is for the caller to wait, or to give up when its time is over.
    ///
    /// # Errors
    /// EBADF; EINVAL for a descriptor that is no epoll set, or a limit of zero.
    pub fn epoll_wait(&mut self, set: Fd, limit: usize) -> Result<Vec<EpollEvent>> {
        if limit == 0 {
            return Err(Failure::Errno(libc::EINVAL));
        }
        let epoll = self.set_of(set)?;
        let mut order: Vec<_> = epoll
            .interests
            .iter()
            .filter(|(_, interest)| interest.armed)
            .map(|(&fd, interest)| (interest.turn, fd, interest.event, interest.reported))
            .collect();
        order.sort_unstable_by_key(|&(turn, ..)| turn);
        let mut events = Vec::new();
        for (_, fd, event, reported) in order {
            if events.len() == limit {
                break;
            }
            let wakeups = self.wakeups(fd);
            if event.events & EDGE != 0 && reported == Some(wakeups) {
                continue;
            }
            let ready = self.readiness(fd) & (event.events | ALWAYS);
            let epoll = self.set_of(set)?;
            epoll.turns += 1;
            let turn = epoll.turns;
            let Some(interest) = epoll.interests.get_mut(&fd) else {
                continue;
            };
            // Looked at is as good as reported: what was ready and not asked for
            // needs another wakeup.
            interest.reported = Some(wakeups);
            if ready == 0 {
                continue;
            }
            interest.turn = turn;
            interest.armed = event.events & ONESHOT == 0;
            events.push(EpollEvent {
                events: ready,
                data: event.data,
            });
        }
        Ok(events)
    }

    /// A descriptor closes: it is in no set any more.
    pub(super) fn forget_interest(&mut self, fd: Fd) {
        for socket in self.sockets.values_mut() {
            if let Kind::Epoll(epoll) = &mut socket.kind {
                epoll.interests.remove(&fd);
            }
        }
    }
}
