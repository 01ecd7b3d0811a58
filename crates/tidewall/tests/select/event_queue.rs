//! `declare_interest` and `get_next_event`.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidewall::readiness::{DescriptorEvent, Events};

use super::support::*;

impl Bed {
    fn declare(&self, fd: i32, interest: Events) -> Events {
        let mut state = Events::HUP;
        self.table
            .declare_interest(fd, interest, Some(&mut state))
            .unwrap();
        state
    }

    fn next(&self, most: usize, timeout: Option<Duration>) -> Vec<(i32, Events)> {
        let mut events = vec![DescriptorEvent::default(); most];
        let count = self.table.get_next_event(&mut events, timeout).unwrap();
        events.truncate(count);
        events
            .iter()
            .map(|event| (event.fd, event.events))
            .collect()
    }
}

#[test]
fn the_state_at_the_declaration_is_no_event() {
    let bed = Bed::new();
    let (fd, counter) = (bed.datagram(7000), bed.counter());
    assert_eq!(bed.declare(fd, Events::IN), Events::NONE);
    assert_eq!(bed.declare(counter, Events::IN), Events::NONE);
    assert_eq!(bed.next(9, NOW), []);
    bed.comes(7000);
    bed.add(counter);
    // Both have happened; declared again they are states.
    assert_eq!(bed.select(&[fd], LONG).unwrap(), [fd]);
    assert_eq!(
        bed.declare(fd, Events::IN | Events::OUT),
        Events::IN | Events::OUT
    );
    assert_eq!(bed.declare(counter, Events::IN), Events::IN);
    assert_eq!(bed.next(9, NOW), []);
    // The state is reported also without a request.
    bed.table.declare_interest(fd, Events::IN, None).unwrap();
    bed.table
        .declare_interest(counter, Events::IN, None)
        .unwrap();
    let mut reported = bed.next(9, LONG);
    reported.sort_unstable_by_key(|reported| reported.0);
    assert_eq!(reported, [(fd, Events::IN), (counter, Events::IN)]);
    assert_eq!(bed.next(9, NOW), []);
}

#[test]
fn events_are_coalesced_and_come_in_bulk() {
    let bed = Bed::new();
    let fds: Vec<i32> = (0..10).map(|n| bed.datagram(7000 + n)).collect();
    for &fd in &fds {
        assert_eq!(bed.declare(fd, Events::IN), Events::NONE);
    }
    for _ in 0..3 {
        for port in [7003, 7001, 7009] {
            bed.comes(port);
        }
    }
    assert_eq!(
        bed.next(2, LONG),
        [(fds[3], Events::IN), (fds[1], Events::IN)]
    );
    bed.comes(7003);
    assert_eq!(
        bed.next(9, LONG),
        [(fds[9], Events::IN), (fds[3], Events::IN)]
    );
    // Nothing has been read, and nothing new has happened.
    assert_eq!(bed.next(9, NOW), []);
    // An event that was undone before its report is not reported.
    bed.comes(7005);
    bed.comes(7006);
    assert_eq!(bed.select(&[fds[5]], LONG).unwrap(), [fds[5]]);
    bed.table.read(fds[5], &mut [0; 8]).unwrap();
    assert_eq!(bed.next(9, LONG), [(fds[6], Events::IN)]);
}

#[test]
fn interest_ends() {
    let bed = Bed::new();
    let (one, two) = (bed.datagram(7000), bed.datagram(7001));
    assert_eq!(bed.declare(one, Events::IN), Events::NONE);
    assert_eq!(bed.declare(two, Events::IN), Events::NONE);
    assert_eq!(bed.declare(one, Events::NONE), Events::NONE);
    bed.comes(7000);
    bed.comes(7001);
    assert_eq!(bed.next(9, LONG), [(two, Events::IN)]);
    // Interest ends with the descriptor: its next file has none.
    bed.comes(7001);
    bed.table.close(two).unwrap();
    assert_eq!(bed.next(9, NOW), []);
    assert_eq!(bed.datagram(7002), two);
    bed.comes(7002);
    assert_eq!(bed.next(9, Some(Duration::from_millis(10))), []);
    assert_eq!(bed.declare(two, Events::IN), Events::IN);
    let closed = bed.table.declare_interest(99, Events::IN, None);
    assert_eq!(errno(closed), libc::EBADF);
    assert_eq!(
        errno(bed.table.declare_interest(-1, Events::IN, None)),
        libc::EBADF
    );
}

/// How many of several threads that wait hear of a datagram.
fn reported(bed: &Bed, fd: i32, interest: Events, timeout: Option<Duration>) -> usize {
    const SLEEPERS: usize = 3;
    let declared = Barrier::new(SLEEPERS + 1);
    let reported = thread::scope(|scope| {
        let sleepers = [0; SLEEPERS].map(|_| {
            scope.spawn(|| {
                assert_eq!(bed.declare(fd, interest), Events::NONE);
                declared.wait();
                bed.next(1, timeout).len()
            })
        });
        declared.wait();
        // Time to fall asleep.
        thread::sleep(Duration::from_millis(50));
        bed.comes(7000);
        let reported = sleepers.map(|sleeper| sleeper.join().unwrap());
        reported.iter().sum()
    });
    bed.table.read(fd, &mut [0; 8]).unwrap();
    reported
}

#[test]
fn threads_declare_for_themselves_or_to_be_one_of_many() {
    let bed = Bed::new();
    let fd = bed.datagram(7000);
    assert_eq!(reported(&bed, fd, Events::IN, LONG), 3);
    // A thread that is not asleep yet is woken, too: a busy machine gets several tries.
    let short = Some(Duration::from_millis(300));
    let exclusive = Events::IN | Events::EXCLUSIVE;
    let mut tries = (0..10).map(|_| reported(&bed, fd, exclusive, short));
    assert!(tries.any(|reported| reported == 1));
}
