//! Threads that sleep in a call, and what wakes them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tidewall::readiness::{DescriptorSet, Events, PollFd, SignalSet};

use super::raw_signals as signals;
use super::support::*;

/// Long enough for a thread to fall asleep, mostly; nothing fails if it did not.
const FALL_ASLEEP: Duration = Duration::from_millis(20);

#[test]
fn wakes_for_what_comes_and_for_nothing_else() {
    let bed = Bed::new();
    let fds: Vec<i32> = (0..4).map(|n| bed.datagram(7000 + n)).collect();
    let counter = bed.counter();
    let mut all = fds.clone();
    all.push(counter);
    let (send, receive) = channel();
    thread::scope(|scope| {
        let (bed, all) = (&bed, &all);
        scope.spawn(move || {
            for _ in 0..50 {
                let ready = bed.select(all, LONG).unwrap();
                for &fd in &ready {
                    bed.table.read(fd, &mut [0; 8]).unwrap();
                }
                send.send(ready).unwrap();
            }
        });
        for round in 0..50u16 {
            let wanted = if round % 5 == 4 {
                bed.add(counter);
                counter
            } else {
                bed.comes(7000 + round % 5);
                fds[usize::from(round % 5)]
            };
            let ready = receive.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(ready, [wanted]);
        }
    });
}

#[test]
fn timeouts() {
    let bed = Bed::new();
    let fd = bed.datagram(7000);
    let counter = bed.counter();
    let begin = Instant::now();
    let short = Some(Duration::from_millis(30));
    assert_eq!(bed.select(&[fd, counter], short).unwrap(), NOBODY);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let mut list = [
        PollFd::new(fd, Events::IN),
        PollFd::new(counter, Events::IN),
    ];
    assert_eq!(bed.table.poll(&mut list, short).unwrap(), 0);
    assert!(begin.elapsed() >= Duration::from_millis(60));
    // Nothing to wait for is a way to sleep.
    assert_eq!(bed.table.select(0, None, None, None, short).unwrap(), 0);
    assert_eq!(bed.table.poll(&mut [], short).unwrap(), 0);
    assert!(begin.elapsed() >= Duration::from_millis(120));
    assert_eq!(bed.select(&[fd, counter], NOW).unwrap(), NOBODY);
}

#[test]
fn a_signal_interrupts_and_leaves_the_sets_alone() {
    signals::handle(libc::SIGUSR1, libc::SA_RESTART);
    let bed = Bed::new();
    let fd = bed.datagram(7000);
    let (done, over) = (AtomicBool::new(false), Barrier::new(2));
    let (send, receive) = channel();
    thread::scope(|scope| {
        let (bed, done, over) = (&bed, &done, &over);
        scope.spawn(move || {
            send.send(signals::Thread::current()).unwrap();
            let mut read: DescriptorSet = [fd].into_iter().collect();
            let before = read.clone();
            let nfds = read.nfds();
            let interrupted = bed.table.select(nfds, Some(&mut read), None, None, None);
            assert_eq!(errno(interrupted), libc::EINTR);
            assert_eq!(read, before);
            let mut list = [PollFd::new(fd, Events::IN)];
            assert_eq!(errno(bed.table.poll(&mut list, None)), libc::EINTR);
            let classical = bed
                .table
                .classical_select(nfds, Some(&mut read), None, None, None);
            assert_eq!(errno(classical), libc::EINTR);
            bed.table.declare_interest(fd, Events::IN, None).unwrap();
            let mut events = [Default::default()];
            let queue = bed.table.get_next_event(&mut events, None);
            assert_eq!(errno(queue), libc::EINTR);
            done.store(true, Ordering::SeqCst);
            // It must live while it is interrupted.
            over.wait();
        });
        let sleeper = receive.recv().unwrap();
        while !done.load(Ordering::SeqCst) {
            // A signal between two calls interrupts none of them.
            thread::sleep(Duration::from_millis(2));
            sleeper.interrupt(libc::SIGUSR1);
        }
        over.wait();
    });
}

#[test]
fn a_mask_holds_for_the_time_of_the_call() {
    signals::handle(libc::SIGUSR2, libc::SA_RESTART);
    let bed = Bed::new();
    let fd = bed.datagram(7000);
    let mut list = [PollFd::new(fd, Events::IN)];
    // In a thread of its own: the mask is left as it is.
    thread::scope(|scope| {
        scope.spawn(|| {
            signals::block(libc::SIGUSR2);
            let pending = || signals::Thread::current().interrupt(libc::SIGUSR2);
            let (none, mut other) = (SignalSet::empty(), SignalSet::empty());
            other.insert(libc::SIGUSR2).unwrap();
            let before = signals::handled();
            pending();
            let now = |mask| bed.table.pselect(0, None, None, None, NOW, mask);
            let short = Some(Duration::from_millis(5));
            // It stays blocked.
            assert_eq!(now(None).unwrap(), 0);
            assert_eq!(now(Some(&other)).unwrap(), 0);
            assert_eq!(bed.select(&[fd], short).unwrap(), NOBODY);
            let waited = bed.table.ppoll(&mut list, short, Some(&other));
            assert_eq!(waited.unwrap(), 0);
            // It was pending, and ends even a call that does not wait.
            assert_eq!(errno(now(Some(&none))), libc::EINTR);
            assert_eq!(now(Some(&none)).unwrap(), 0);
            pending();
            let mut read: DescriptorSet = [fd].into_iter().collect();
            let nfds = read.nfds();
            let waited = bed
                .table
                .pselect(nfds, Some(&mut read), None, None, None, Some(&none));
            assert_eq!(errno(waited), libc::EINTR);
            pending();
            assert_eq!(
                errno(bed.table.ppoll(&mut list, None, Some(&none))),
                libc::EINTR
            );
            // Ready descriptors take precedence.
            pending();
            bed.comes(7000);
            assert_eq!(bed.table.ppoll(&mut list, LONG, Some(&other)).unwrap(), 1);
            assert_eq!(bed.table.ppoll(&mut list, None, Some(&none)).unwrap(), 1);
            assert_eq!(errno(now(Some(&none))), libc::EINTR);
            assert!(signals::handled() >= before + 4);
        });
    });
}

#[test]
fn a_number_that_is_closed_wakes_who_waits_for_it() {
    let bed = Bed::new();
    for classical in [false, true] {
        let (fd, other) = (bed.datagram(7000), bed.counter());
        thread::scope(|scope| {
            let bed = &bed;
            let sleeper = scope.spawn(move || {
                let mut read: DescriptorSet = [fd, other].into_iter().collect();
                let nfds = read.nfds();
                let table = &bed.table;
                let count = if classical {
                    table.classical_select(nfds, Some(&mut read), None, None, LONG)
                } else {
                    table.select(nfds, Some(&mut read), None, None, LONG)
                };
                (count.unwrap(), read)
            });
            thread::sleep(FALL_ASLEEP);
            bed.table.close(fd).unwrap();
            if classical {
                // As on Linux: seen when something else wakes it.
                bed.add(other);
            }
            let (count, read) = sleeper.join().unwrap();
            assert!(read.contains(fd) && count >= 1, "{read:?}");
        });
        assert_eq!(errno(bed.select(&[fd], NOW)), libc::EBADF);
        let _ = bed.table.close(other);
    }
    let fd = bed.datagram(7000);
    thread::scope(|scope| {
        let bed = &bed;
        let sleeper = scope.spawn(move || {
            let mut list = [PollFd::new(-1, Events::IN), PollFd::new(fd, Events::IN)];
            assert_eq!(bed.table.poll(&mut list, LONG).unwrap(), 1);
            list
        });
        thread::sleep(FALL_ASLEEP);
        bed.table.close(fd).unwrap();
        let [none, closed] = sleeper.join().unwrap();
        assert_eq!(none.revents, 0);
        assert!(closed.is_invalid() && closed.returned().is_empty());
    });
}

#[test]
fn threads_have_states_of_their_own() {
    let bed = Bed::new();
    let (one, two) = (bed.datagram(7000), bed.datagram(7001));
    assert_eq!(bed.select(&[one, two], NOW).unwrap(), NOBODY);
    bed.comes(7000);
    assert_eq!(bed.select(&[two], NOW).unwrap(), NOBODY);
    let asked = || thread::scope(|scope| scope.spawn(|| bed.select(&[one, two], LONG)).join());
    assert_eq!(asked().unwrap().unwrap(), [one]);
    assert_eq!(bed.select(&[one, two], LONG).unwrap(), [one]);
    bed.table.read(one, &mut [0; 8]).unwrap();
    assert_eq!(bed.select(&[one, two], NOW).unwrap(), NOBODY);
    // All who wait for a datagram are woken: one of them takes it.
    thread::scope(|scope| {
        let sleepers = [0; 3].map(|_| scope.spawn(|| bed.select(&[one, two], LONG)));
        thread::sleep(FALL_ASLEEP);
        bed.comes(7001);
        for sleeper in sleepers {
            assert_eq!(sleeper.join().unwrap().unwrap(), [two]);
        }
    });
}

#[test]
fn nothing_is_lost_in_a_storm() {
    const SOCKETS: u16 = 40;
    const ROUNDS: usize = 60;
    let bed = Bed::new();
    let fds: Vec<i32> = (0..SOCKETS).map(|n| bed.datagram(7000 + n)).collect();
    let counters: Vec<i32> = (0..8).map(|_| bed.counter()).collect();
    let all: Vec<i32> = fds.iter().chain(&counters).copied().collect();
    let (send, receive) = channel();
    thread::scope(|scope| {
        let (bed, all) = (&bed, &all);
        scope.spawn(move || {
            let mut list: Vec<PollFd> = all.iter().map(|&fd| PollFd::new(fd, Events::IN)).collect();
            let mut taken = 0;
            while taken < ROUNDS * all.len() {
                // In turn, on the same state.
                let ready: Vec<i32> = if taken % 2 == 0 {
                    bed.select(all, LONG).unwrap()
                } else {
                    assert!(bed.table.poll(&mut list, LONG).unwrap() > 0);
                    list.iter()
                        .filter(|entry| entry.revents != 0)
                        .map(|entry| entry.fd)
                        .collect()
                };
                assert!(!ready.is_empty());
                for fd in ready {
                    bed.table.read(fd, &mut [0; 8]).unwrap();
                    taken += 1;
                }
                send.send(taken).unwrap();
            }
        });
        for round in 0..ROUNDS {
            for port in 0..SOCKETS {
                bed.comes(7000 + port);
            }
            for &counter in &counters {
                bed.add(counter);
            }
            // An eventfd coalesces: each round is taken before the next.
            while receive.recv_timeout(Duration::from_secs(20)).unwrap() < (round + 1) * all.len() {
            }
        }
    });
}
