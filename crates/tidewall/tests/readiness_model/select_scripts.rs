//! Sequences of `select` and `poll` that are worth naming, the same in both columns.

use std::net::Shutdown;

use super::column::{Column, Selected};
use super::linux::Linux;
use super::tidewall::Tidewall;

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;
const HUP: i16 = libc::POLLHUP;
const RDHUP: i16 = libc::POLLRDHUP;
const NVAL: i16 = libc::POLLNVAL;

const NOBODY: [i32; 0] = [];

/// Runs a script in the Linux column, to know that it is right, and in Tidewall's. There it
/// runs with both ways to select, and with the protocol running early and late.
fn both(script: impl Fn(&mut Script<'_>)) {
    let mut linux = Linux::new();
    script(&mut Script(&mut linux));
    drop(linux);
    for (lazy, classical) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut tidewall = Tidewall::new(lazy);
        tidewall.classical = classical;
        script(&mut Script(&mut tidewall));
    }
}

/// A column, in the words of a script.
struct Script<'a>(&'a mut dyn Column);

impl Script<'_> {
    fn select(&mut self, read: &[i32], write: &[i32]) -> Result<(usize, Selected), i32> {
        self.0.quiesce();
        let sets = [read.to_vec(), write.to_vec(), Vec::new()];
        self.0.select(&sets, 24)
    }

    /// Those of some numbers that can be read.
    fn readable(&mut self, of: &[i32]) -> Vec<i32> {
        let (count, [read, ..]) = self.select(of, &[]).unwrap();
        assert_eq!(count, read.len());
        read
    }

    fn writable(&mut self, of: &[i32]) -> Vec<i32> {
        let (_, [_, write, _]) = self.select(&[], of).unwrap();
        write
    }

    fn poll(&mut self, list: &[(i32, i16)]) -> Vec<i16> {
        self.0.quiesce();
        let (count, returned) = self.0.poll(list).unwrap();
        assert_eq!(count, returned.iter().filter(|&&bits| bits != 0).count());
        returned
    }

    fn comes(&mut self, connection: usize) {
        self.0.peer_write(connection, 1);
        self.0.quiesce();
    }
}

#[test]
fn what_was_not_read_is_ready_again() {
    both(|it| {
        it.0.pair(0, 0);
        it.0.pair(1, 1);
        assert_eq!(it.readable(&[0, 1]), NOBODY);
        it.comes(1);
        for _ in 0..3 {
            assert_eq!(it.readable(&[0, 1]), [1]);
        }
        assert_eq!(it.0.read(1, 10), Ok(1));
        assert_eq!(it.readable(&[0, 1]), NOBODY);
        assert_eq!(it.writable(&[0, 1]), [0, 1]);
        it.comes(0);
        assert_eq!(
            it.select(&[0, 1], &[1]),
            Ok((2, [vec![0], vec![1], vec![]]))
        );
    });
}

#[test]
fn what_came_while_it_was_not_selected_is_found_when_it_is() {
    both(|it| {
        for fd in 0..4 {
            it.0.pair(fd, fd as usize);
        }
        assert_eq!(it.readable(&[0, 1, 2, 3]), NOBODY);
        it.comes(2);
        assert_eq!(it.readable(&[0, 1]), NOBODY);
        it.comes(2);
        assert_eq!(it.readable(&[0, 1, 3]), NOBODY);
        assert_eq!(it.poll(&[(3, IN), (2, IN), (0, IN)]), [0, IN, 0]);
        assert_eq!(it.readable(&[2, 3]), [2]);
    });
}

#[test]
fn a_number_that_is_used_again_is_another_file() {
    both(|it| {
        it.0.pair(3, 0);
        it.comes(0);
        assert_eq!(it.readable(&[3]), [3]);
        assert_eq!(it.0.close(3), Ok(()));
        it.0.pair(3, 1);
        assert_eq!(it.readable(&[3]), NOBODY);
        assert_eq!(it.poll(&[(3, IN)]), [0]);
        it.comes(1);
        assert_eq!(it.readable(&[3]), [3]);
        // Its other number is the same file still.
        assert_eq!(it.0.dup(3, 4), Ok(()));
        assert_eq!(it.readable(&[3, 4]), [3, 4]);
        assert_eq!(it.0.close(3), Ok(()));
        it.0.pair(3, 2);
        assert_eq!(it.readable(&[3, 4]), [4]);
        it.comes(2);
        assert_eq!(it.readable(&[3, 4]), [3, 4]);
    });
}

#[test]
fn a_closed_number_is_an_error_of_select_and_an_answer_of_poll() {
    both(|it| {
        it.0.pair(0, 0);
        it.0.pair(5, 5);
        assert_eq!(it.readable(&[0, 5]), NOBODY);
        it.comes(0);
        assert_eq!(it.0.close(5), Ok(()));
        for _ in 0..2 {
            assert_eq!(it.select(&[0, 5], &[]), Err(libc::EBADF));
            assert_eq!(it.select(&[], &[5]), Err(libc::EBADF));
        }
        assert_eq!(
            it.poll(&[(0, IN), (5, IN), (-1, IN), (5, 0)]),
            [IN, NVAL, 0, NVAL]
        );
        assert_eq!(it.readable(&[0]), [0]);
        // Numbers from `nfds` on are not looked at.
        let sets = [vec![0], vec![], vec![]];
        assert_eq!(it.0.select(&sets, 5), Ok((1, sets.clone())));
    });
}

#[test]
fn ends_and_errors() {
    both(|it| {
        for fd in 0..3 {
            it.0.pair(fd, fd as usize);
        }
        let list = [(0, IN | OUT | RDHUP), (1, OUT), (2, 0)];
        assert_eq!(it.poll(&list), [OUT, OUT, 0]);
        it.0.peer_shutdown(0, Shutdown::Write);
        it.0.peer_close(1, false);
        it.0.peer_close(2, true);
        let ended = it.poll(&list);
        assert_eq!(ended[..2], [IN | OUT | RDHUP, OUT]);
        assert_eq!(ended[2] & HUP, HUP);
        assert_eq!(it.poll(&list), ended);
        assert_eq!(it.readable(&[0, 1, 2]), [0, 1, 2]);
        assert_eq!(it.writable(&[0, 1, 2]), [0, 1, 2]);
        assert_eq!(it.0.take_error(2), Ok(libc::ECONNRESET));
        assert_eq!(it.0.shutdown(0, Shutdown::Write), Ok(()));
        assert_eq!(it.poll(&[(0, 0)]), [HUP]);
    });
}

#[test]
fn the_kernels_descriptors_beside_ours() {
    both(|it| {
        it.0.pair(0, 0);
        it.0.counter(1);
        it.0.file(2);
        it.0.counter(3);
        let all = [0, 1, 2, 3];
        assert_eq!(it.readable(&all), [2]);
        assert_eq!(it.0.count(1, 1), Ok(()));
        for _ in 0..3 {
            assert_eq!(it.readable(&all), [1, 2]);
            // Ready and not selected.
            assert_eq!(it.readable(&[0, 3]), NOBODY);
        }
        it.comes(0);
        assert_eq!(it.readable(&all), [0, 1, 2]);
        assert_eq!(it.0.count(1, 0), Ok(()));
        assert_eq!(it.0.count(3, 1), Ok(()));
        assert_eq!(it.readable(&all), [0, 2, 3]);
        assert_eq!(
            it.poll(&[(3, OUT), (1, IN), (2, IN | OUT)]),
            [OUT, 0, IN | OUT]
        );
        assert_eq!(it.0.dup(3, 4), Ok(()));
        assert_eq!(it.0.close(3), Ok(()));
        assert_eq!(it.readable(&[0, 1, 2, 4]), [0, 2, 4]);
    });
}

#[test]
fn listeners_sets_and_datagrams() {
    both(|it| {
        it.0.listener(0);
        it.0.datagram(1, 1);
        it.0.epoll_create(2);
        it.0.pair(3, 3);
        let event = Some((libc::EPOLLIN as u32, 9));
        assert_eq!(it.0.epoll_ctl(2, libc::EPOLL_CTL_ADD, 3, event), Ok(()));
        let all = [0, 1, 2, 3];
        assert_eq!(it.readable(&all), NOBODY);
        it.0.peer_connect(0, 7);
        it.comes(1);
        assert_eq!(it.readable(&all), [0, 1]);
        it.comes(3);
        assert_eq!(it.readable(&all), [0, 1, 2, 3]);
        assert_eq!(it.0.accept(0, 4), Ok(()));
        assert_eq!(it.0.read(1, 10), Ok(1));
        assert_eq!(it.0.read(3, 10), Ok(1));
        assert_eq!(it.readable(&all), NOBODY);
        assert_eq!(it.writable(&[0, 1, 2, 3, 4]), [1, 3, 4]);
    });
}
