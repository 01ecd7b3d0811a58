//! Sequences that are worth naming, the same in both columns.

use std::net::Shutdown;

use super::column::{Answer, Column, Event};
use super::linux::Linux;
use super::tidewall::Tidewall;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const ADD: i32 = libc::EPOLL_CTL_ADD;
const MOD: i32 = libc::EPOLL_CTL_MOD;
const DEL: i32 = libc::EPOLL_CTL_DEL;

const SET: i32 = 20;
const OUTER: i32 = 21;

/// Runs a script in Linux's column, to know that it is right, and in ours, twice.
fn both(script: impl Fn(&mut Script<'_>)) {
    let mut linux = Linux::new();
    script(&mut Script(&mut linux));
    drop(linux);
    for lazy in [false, true] {
        script(&mut Script(&mut Tidewall::new(lazy)));
    }
}

/// A column, in the words of a script.
struct Script<'a>(&'a mut dyn Column);

impl Script<'_> {
    /// A set with a connected pair in it.
    fn with_pair(&mut self, events: u32) {
        self.0.epoll_create(SET);
        self.0.pair(0, 0);
        self.0.quiesce();
        assert_eq!(self.control(ADD, 0, events, 7), Ok(()));
    }

    fn control(&mut self, operation: i32, fd: i32, events: u32, data: u64) -> Answer<()> {
        self.0.epoll_ctl(SET, operation, fd, Some((events, data)))
    }

    fn of(&mut self, set: i32) -> Vec<Event> {
        self.0.quiesce();
        let mut events = self.0.epoll_wait(set, 64).unwrap();
        events.sort_unstable();
        events
    }

    /// Returns the set's reports once everything has arrived.
    fn events(&mut self) -> Vec<Event> {
        self.of(SET)
    }

    fn comes(&mut self, length: usize) {
        self.0.peer_write(0, length);
        self.0.quiesce();
    }

    /// Writes until there is no space, for good.
    fn fill(&mut self, fd: i32) {
        let mut quiet = 0;
        while quiet < 3 {
            match self.0.write(fd, 30_000) {
                Ok(_) => quiet = 0,
                Err(errno) => {
                    assert_eq!(errno, libc::EAGAIN);
                    quiet += 1;
                    std::thread::sleep(std::time::Duration::from_millis(60));
                    self.0.quiesce();
                }
            }
        }
    }

    /// The peer reads everything that was written.
    fn empty(&mut self) {
        for _ in 0..60 {
            self.0.peer_read(0);
            self.0.quiesce();
        }
    }
}

#[test]
fn a_level_is_reported_until_it_is_gone() {
    both(|it| {
        it.with_pair(IN);
        assert_eq!(it.events(), []);
        it.comes(2);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.read(0, 1), Ok(1));
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.read(0, 1), Ok(1));
        assert_eq!(it.events(), []);
        assert_eq!(it.control(MOD, 0, IN | OUT, 8), Ok(()));
        assert_eq!(it.events(), [(OUT, 8)]);
        assert_eq!(it.events(), [(OUT, 8)]);
    });
}

#[test]
fn an_edge_is_reported_once_and_new_data_is_another() {
    both(|it| {
        it.with_pair(IN | EDGE);
        it.comes(2);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.read(0, 1), Ok(1));
        assert_eq!(it.events(), []);
        it.comes(1);
        assert_eq!(it.events(), [(IN, 7)], "old data is unread still");
        assert_eq!(it.control(MOD, 0, IN | EDGE, 9), Ok(()));
        assert_eq!(it.events(), [(IN, 9)], "a change looks again");
        assert_eq!(it.events(), []);
        it.0.peer_shutdown(0, Shutdown::Write);
        assert_eq!(it.events(), [(IN, 9)]);
        assert_eq!(it.events(), []);
    });
}

#[test]
fn an_edge_of_space_comes_after_a_write_that_found_none() {
    both(|it| {
        it.with_pair(OUT | EDGE);
        assert_eq!(it.events(), [(OUT, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.write(0, 100), Ok(100));
        it.0.peer_read(0);
        assert_eq!(it.events(), [], "there was space all the time");
        it.fill(0);
        assert_eq!(it.events(), []);
        it.empty();
        assert_eq!(it.events(), [(OUT, 7)]);
        assert_eq!(it.events(), []);
    });
}

#[test]
fn space_comes_back_for_a_level_too() {
    both(|it| {
        it.with_pair(OUT);
        it.fill(0);
        assert_eq!(it.events(), []);
        it.empty();
        assert_eq!(it.events(), [(OUT, 7)]);
        assert_eq!(it.events(), [(OUT, 7)]);
    });
}

#[test]
fn one_shot_is_disabled_until_changed() {
    both(|it| {
        it.with_pair(IN | OUT | ONESHOT);
        assert_eq!(it.events(), [(OUT, 7)]);
        it.comes(1);
        assert_eq!(it.events(), []);
        assert_eq!(it.control(MOD, 0, IN | ONESHOT, 8), Ok(()));
        assert_eq!(it.events(), [(IN, 8)]);
        it.0.peer_close(0, true);
        assert_eq!(it.events(), [], "nor an error");
        assert_eq!(it.control(MOD, 0, 0, 9), Ok(()));
        assert_eq!(it.events(), [(ERR | HUP, 9)]);
    });
}

#[test]
fn ends_of_a_connection() {
    both(|it| {
        it.with_pair(IN | OUT | RDHUP | EDGE);
        assert_eq!(it.events(), [(OUT, 7)]);
        it.0.peer_shutdown(0, Shutdown::Write);
        assert_eq!(it.events(), [(IN | OUT | RDHUP, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.shutdown(0, Shutdown::Write), Ok(()));
        assert_eq!(it.events(), [(IN | OUT | RDHUP | HUP, 7)]);
        assert_eq!(it.events(), []);
    });
}

#[test]
fn a_reset() {
    both(|it| {
        it.with_pair(IN | RDHUP | EDGE);
        it.comes(3);
        assert_eq!(it.events(), [(IN, 7)]);
        it.0.peer_close(0, true);
        assert_eq!(it.events(), [(IN | RDHUP | ERR | HUP, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.take_error(0), Ok(libc::ECONNRESET));
        assert_eq!(it.control(MOD, 0, IN | OUT, 8), Ok(()));
        assert_eq!(it.events(), [(IN | OUT | HUP, 8)]);
    });
}

#[test]
fn a_connection_that_is_made() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.connect(0, 0);
        assert_eq!(it.control(ADD, 0, IN | OUT | EDGE, 7), Ok(()));
        assert_eq!(it.events(), [(OUT, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.take_error(0), Ok(0));
    });
}

#[test]
fn each_connection_to_accept_is_an_edge() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.listener(0);
        assert_eq!(it.control(ADD, 0, IN | EDGE, 7), Ok(()));
        assert_eq!(it.events(), []);
        it.0.peer_connect(0, 0);
        it.0.peer_connect(0, 1);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.accept(0, 1), Ok(()));
        assert_eq!(it.events(), []);
        it.0.peer_connect(0, 2);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.accept(0, 2), Ok(()));
        assert_eq!(it.0.accept(0, 3), Ok(()));
        assert_eq!(it.0.accept(0, 4), Err(libc::EAGAIN));
    });
}

#[test]
fn an_item_is_a_number_and_an_open_file() {
    both(|it| {
        it.with_pair(IN);
        it.comes(1);
        assert_eq!(it.0.dup(0, 1), Ok(()));
        assert_eq!(it.control(ADD, 1, IN, 8), Ok(()), "another number");
        assert_eq!(it.events(), [(IN, 7), (IN, 8)]);
        assert_eq!(it.0.close(0), Ok(()));
        assert_eq!(it.events(), [(IN, 7), (IN, 8)], "the file is open");
        assert_eq!(it.control(DEL, 0, 0, 0), Err(libc::EBADF));
        it.0.pair(0, 1);
        assert_eq!(it.control(MOD, 0, IN, 9), Err(libc::ENOENT));
        assert_eq!(
            it.control(ADD, 0, OUT, 9),
            Ok(()),
            "the number is another's"
        );
        assert_eq!(it.events(), [(IN, 7), (IN, 8), (OUT, 9)]);
        assert_eq!(it.control(DEL, 1, 0, 0), Ok(()));
        assert_eq!(it.events(), [(IN, 7), (OUT, 9)]);
        assert_eq!(it.0.close(1), Ok(()));
        assert_eq!(it.events(), [(OUT, 9)], "now it is closed");
    });
}

#[test]
fn who_is_ready_takes_turns() {
    both(|it| {
        it.0.epoll_create(SET);
        for fd in 0..4 {
            it.0.pair(fd, fd as usize);
            it.0.quiesce();
            assert_eq!(it.control(ADD, fd, OUT, fd as u64), Ok(()));
        }
        let mut turns = Vec::new();
        for most in [1, 2, 2, 3, 1, 64] {
            let events = it.0.epoll_wait(SET, most).unwrap();
            turns.extend(events.into_iter().map(|(_, data)| data));
        }
        assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]);
    });
}

#[test]
fn sets_in_sets() {
    both(|it| {
        it.with_pair(IN | EDGE);
        it.0.epoll_create(OUTER);
        assert_eq!(it.0.epoll_ctl(OUTER, ADD, SET, Some((IN, 1))), Ok(()));
        assert_eq!(it.of(OUTER), []);
        it.comes(1);
        assert_eq!(it.of(OUTER), [(IN, 1)]);
        assert_eq!(it.of(OUTER), [(IN, 1)], "nobody has taken it");
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.of(OUTER), []);
        it.comes(1);
        assert_eq!(it.of(OUTER), [(IN, 1)]);
        // An edge of the outer set for each of the inner.
        assert_eq!(
            it.0.epoll_ctl(OUTER, MOD, SET, Some((IN | EDGE, 2))),
            Ok(())
        );
        assert_eq!(it.of(OUTER), [(IN, 2)]);
        assert_eq!(it.of(OUTER), []);
        it.comes(1);
        assert_eq!(it.of(OUTER), [(IN, 2)]);
        assert_eq!(it.0.close(SET), Ok(()));
        it.comes(1);
        assert_eq!(it.of(OUTER), []);
    });
}

#[test]
fn how_deep_sets_may_be_and_no_circles() {
    both(|it| {
        for set in 0..7 {
            it.0.epoll_create(set);
        }
        let mut add = |outer, inner| it.0.epoll_ctl(outer, ADD, inner, Some((IN, 0)));
        assert_eq!(add(0, 0), Err(libc::EINVAL));
        for outer in 0..4 {
            assert_eq!(add(outer, outer + 1), Ok(()));
        }
        assert_eq!(add(4, 5), Err(libc::ELOOP));
        assert_eq!(add(5, 0), Err(libc::ELOOP));
        assert_eq!(add(4, 0), Err(libc::ELOOP), "a circle");
        assert_eq!(add(1, 0), Err(libc::ELOOP), "a circle");
        assert_eq!(add(3, 5), Ok(()));
        assert_eq!(add(0, 2), Ok(()));
    });
}

#[test]
fn what_control_refuses() {
    both(|it| {
        it.with_pair(IN);
        assert_eq!(it.control(ADD, 0, IN, 0), Err(libc::EEXIST));
        assert_eq!(it.control(MOD, 5, IN, 0), Err(libc::EBADF));
        assert_eq!(it.0.epoll_ctl(5, ADD, 0, Some((IN, 0))), Err(libc::EBADF));
        assert_eq!(it.0.epoll_ctl(0, ADD, 0, Some((IN, 0))), Err(libc::EINVAL));
        assert_eq!(it.0.epoll_ctl(SET, ADD, 0, None), Err(libc::EFAULT));
        it.0.file(1);
        for operation in [ADD, MOD, DEL] {
            assert_eq!(it.control(operation, 1, IN, 0), Err(libc::EPERM));
        }
        it.0.pair(2, 2);
        for operation in [MOD, DEL] {
            assert_eq!(it.control(operation, 2, IN, 0), Err(libc::ENOENT));
        }
        // EXCLUSIVE goes with little, and never into a change.
        assert_eq!(it.control(MOD, 0, IN | EXCLUSIVE, 0), Err(libc::EINVAL));
        assert_eq!(
            it.control(ADD, 2, IN | EXCLUSIVE | ONESHOT, 0),
            Err(libc::EINVAL)
        );
        assert_eq!(
            it.control(ADD, 2, IN | EXCLUSIVE | RDHUP, 0),
            Err(libc::EINVAL)
        );
        it.0.epoll_create(OUTER);
        assert_eq!(it.control(ADD, OUTER, IN | EXCLUSIVE, 0), Err(libc::EINVAL));
        assert_eq!(it.control(ADD, 2, IN | OUT | EXCLUSIVE | EDGE, 3), Ok(()));
        assert_eq!(it.control(MOD, 2, IN, 0), Err(libc::EINVAL));
        assert_eq!(it.events(), [(OUT, 3)]);
        assert_eq!(it.control(DEL, 2, 0, 0), Ok(()));
        assert_eq!(it.0.epoll_wait(SET, 0), Err(libc::EINVAL));
        assert_eq!(it.0.epoll_wait(0, 1), Err(libc::EINVAL));
        assert_eq!(it.0.epoll_wait(9, 1), Err(libc::EBADF));
    });
}

#[test]
fn the_kernels_descriptors_are_in_the_same_set() {
    both(|it| {
        it.with_pair(IN);
        it.0.counter(1);
        it.0.counter(2);
        assert_eq!(it.control(ADD, 1, IN | EDGE, 1), Ok(()));
        assert_eq!(it.control(ADD, 2, IN | ONESHOT, 2), Ok(()));
        assert_eq!(it.events(), []);
        it.comes(1);
        assert_eq!(it.0.count(1, 1), Ok(()));
        assert_eq!(it.0.count(2, 1), Ok(()));
        assert_eq!(it.events(), [(IN, 1), (IN, 2), (IN, 7)]);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.count(1, 1), Ok(()));
        assert_eq!(it.0.count(2, 1), Ok(()));
        assert_eq!(it.events(), [(IN, 1), (IN, 7)]);
        assert_eq!(it.0.dup(2, 3), Ok(()));
        assert_eq!(it.control(ADD, 3, IN, 3), Ok(()));
        assert_eq!(it.0.read(0, 9), Ok(1));
        assert_eq!(it.events(), [(IN, 3)]);
        assert_eq!(it.0.close(2), Ok(()));
        assert_eq!(it.events(), [(IN, 3)]);
        assert_eq!(it.0.close(3), Ok(()));
        assert_eq!(it.events(), []);
        // Through a set in a set, too.
        it.0.epoll_create(OUTER);
        assert_eq!(it.0.epoll_ctl(OUTER, ADD, SET, Some((IN, 5))), Ok(()));
        assert_eq!(it.of(OUTER), []);
        assert_eq!(it.0.count(1, 1), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 5)]);
        assert_eq!(it.events(), [(IN, 1)]);
        assert_eq!(it.of(OUTER), []);
    });
}

#[test]
fn datagrams() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.datagram(0, 0);
        assert_eq!(it.control(ADD, 0, IN | EDGE, 7), Ok(()));
        it.comes(1);
        it.comes(1);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.read(0, 9), Ok(1));
        assert_eq!(it.events(), []);
        it.comes(1);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.control(MOD, 0, OUT | EDGE, 8), Ok(()));
        assert_eq!(it.events(), [(OUT, 8)]);
        assert_eq!(it.0.write(0, 1), Ok(1));
        assert_eq!(it.events(), [(OUT, 8)], "a frame that was sent is space");
        assert_eq!(it.events(), []);
    });
}

#[test]
fn a_pipe_whose_ends_are_closed() {
    both(|it| {
        it.with_pair(IN);
        it.0.pipe(1, 2);
        it.0.pipe(3, 4);
        assert_eq!(it.control(ADD, 1, IN | RDHUP, 1), Ok(()));
        assert_eq!(it.control(ADD, 4, OUT | EDGE, 4), Ok(()));
        assert_eq!(it.events(), [(OUT, 4)]);
        assert_eq!(it.0.close(2), Ok(()));
        assert_eq!(it.events(), [(HUP, 1)]);
        assert_eq!(it.0.close(3), Ok(()));
        assert_eq!(it.events(), [(OUT | ERR, 4), (HUP, 1)]);
        assert_eq!(it.events(), [(HUP, 1)]);
        assert_eq!(it.0.close(1), Ok(()));
        assert_eq!(it.events(), []);
    });
}

#[test]
fn a_listener_that_is_shut() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.listener(0);
        assert_eq!(it.control(ADD, 0, IN | OUT | RDHUP | EDGE, 7), Ok(()));
        it.0.peer_connect(0, 0);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.shutdown(0, Shutdown::Write), Ok(()), "no effect");
        assert_eq!(it.0.accept(0, 1), Ok(()));
        it.0.peer_connect(0, 1);
        assert_eq!(it.events(), [(IN, 7)]);
        assert_eq!(it.0.shutdown(0, Shutdown::Read), Ok(()));
        assert_eq!(it.events(), [(OUT | HUP, 7)]);
        assert_eq!(it.events(), []);
        assert_eq!(it.0.accept(0, 2), Err(libc::EINVAL));
        for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
            assert_eq!(it.0.shutdown(0, how), Err(libc::ENOTCONN));
        }
        assert_eq!(
            it.0.poll(&[(0, libc::POLLIN | libc::POLLOUT)])
                .map(|it| it.0),
            Ok(1)
        );
        // Accepted connections continue.
        it.comes(1);
        assert_eq!(it.0.read(1, 9), Ok(1));
        assert_eq!(it.0.close(0), Ok(()));
        assert_eq!(it.events(), []);
    });
}

#[test]
fn a_datagram_socket_that_is_shut() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.datagram(0, 0);
        assert_eq!(it.control(ADD, 0, IN | RDHUP | EDGE, 7), Ok(()));
        assert_eq!(it.events(), []);
        assert_eq!(it.0.shutdown(0, Shutdown::Read), Ok(()));
        assert_eq!(it.events(), [(IN | RDHUP, 7)]);
        assert_eq!(it.0.read(0, 9), Err(libc::EAGAIN));
        it.comes(3);
        assert_eq!(it.events(), [(IN | RDHUP, 7)]);
        assert_eq!(it.0.read(0, 9), Ok(3), "it is received still");
        assert_eq!(it.0.write(0, 1), Ok(1));
        assert_eq!(it.0.shutdown(0, Shutdown::Write), Ok(()));
        assert_eq!(it.events(), [(IN | RDHUP | HUP, 7)]);
        assert_eq!(it.0.write(0, 1), Err(libc::EPIPE));
        assert_eq!(it.0.shutdown(0, Shutdown::Both), Ok(()), "again");
    });
}

#[test]
fn a_set_that_the_kernel_keeps_ready() {
    both(|it| {
        it.0.epoll_create(SET);
        it.0.epoll_create(OUTER);
        it.0.counter(0);
        it.0.counter(1);
        for fd in 0..2 {
            assert_eq!(it.control(ADD, fd, IN, fd as u64), Ok(()));
        }
        let nested = Some((IN | ONESHOT, 5));
        assert_eq!(it.0.epoll_ctl(OUTER, ADD, SET, nested), Ok(()));
        assert_eq!(it.0.count(0, 1), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 5)]);
        assert_eq!(it.of(OUTER), []);
        assert_eq!(it.0.epoll_ctl(OUTER, MOD, SET, nested), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 5)]);
        assert_eq!(it.0.epoll_ctl(OUTER, MOD, SET, Some((IN, 6))), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 6)]);
        assert_eq!(it.events(), [(IN, 0)]);
        assert_eq!(it.of(OUTER), [(IN, 6)]);
        assert_eq!(it.0.count(0, 0), Ok(()));
        assert_eq!(it.of(OUTER), []);
        assert_eq!(it.0.count(1, 1), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 6)]);
        let edge = Some((IN | EDGE, 8));
        assert_eq!(it.0.epoll_ctl(OUTER, MOD, SET, edge), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 8)]);
        assert_eq!(it.of(OUTER), []);
        assert_eq!(it.0.count(1, 1), Ok(()));
        assert_eq!(it.of(OUTER), [(IN, 8)]);
    });
}
