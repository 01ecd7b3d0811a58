//! Sets beside a kernel set, in which a program has put kernel descriptors itself.

use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use tidewall::descriptor::Flags;
use tidewall::readiness::{EpollEvent, EpollSet, Events, Operation};

use super::support::*;

/// Data of a program that stores pointers or -1: every value is the program's.
const THEIRS: u64 = u64::MAX;

struct Beside {
    bed: Bed,
    kernel: OwnedFd,
    set: i32,
}

impl Beside {
    fn new() -> Self {
        let bed = Bed::new();
        let kernel = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let set = EpollSet::beside(&bed.near, kernel.try_clone().unwrap()).unwrap();
        let set = bed.table.open(set, Flags::NONE).unwrap();
        Beside { bed, kernel, set }
    }

    fn counter(&self, data: u64, flags: EventFlags) -> OwnedFd {
        let counter = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        epoll::add(&self.kernel, &counter, EventData::new_u64(data), flags).unwrap();
        counter
    }

    fn datagram(&self, port: u16, events: Events) -> i32 {
        let socket = self.bed.datagram(port);
        let event = EpollEvent {
            events,
            data: port.into(),
        };
        let table = &self.bed.table;
        let added = table.epoll_ctl(self.set, Operation::Add, socket, Some(event));
        added.unwrap();
        socket
    }

    /// The data of what is ready, sorted.
    fn wait(&self, most: usize, timeout: Option<Duration>) -> Vec<u64> {
        let mut events = vec![EpollEvent::default(); most];
        let table = &self.bed.table;
        let count = table.epoll_wait(self.set, &mut events, timeout).unwrap();
        events.truncate(count);
        let mut data: Vec<u64> = events.iter().map(|event| event.data).collect();
        data.sort_unstable();
        data
    }

    /// Waits until one call reports all of these, and nothing else.
    fn wait_for(&self, expected: &[u64]) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let found = self.wait(64, LONG);
            if found == expected {
                return;
            }
            assert!(
                found.iter().all(|data| expected.contains(data)),
                "{found:?}"
            );
            assert!(Instant::now() < end, "{found:?}");
        }
    }
}

fn add(counter: &OwnedFd) {
    rustix::io::write(counter, &1u64.to_ne_bytes()).unwrap();
}

fn take(counter: &OwnedFd) {
    rustix::io::read(counter, &mut [0; 8]).unwrap();
}

const NOTHING: [u64; 0] = [];

#[test]
fn both_sets_are_reported_with_their_data() {
    let beside = Beside::new();
    let counter = beside.counter(THEIRS, EventFlags::IN);
    beside.datagram(7, Events::IN);
    assert_eq!(beside.wait(8, NOW), NOTHING);
    add(&counter);
    // Level-triggered in the kernel's set: as often as it is asked.
    assert_eq!(beside.wait(8, NOW), [THEIRS]);
    assert_eq!(beside.wait(8, LONG), [THEIRS]);
    beside.bed.comes(7);
    beside.wait_for(&[7, THEIRS]);
    take(&counter);
    assert_eq!(beside.wait(8, LONG), [7]);
    // A descriptor that comes into the kernel's set later.
    let later = beside.counter(9, EventFlags::IN);
    add(&later);
    beside.wait_for(&[7, 9]);
    // Closed, it leaves by the kernel's own rule.
    drop(later);
    assert_eq!(beside.wait(8, LONG), [7]);
}

#[test]
fn the_kernels_rules_hold_for_the_kernels_part() {
    let beside = Beside::new();
    let edge = beside.counter(1, EventFlags::IN | EventFlags::ET);
    let once = beside.counter(2, EventFlags::IN | EventFlags::ONESHOT);
    for turn in 0..2 {
        add(&edge);
        assert_eq!(beside.wait(8, NOW), [1], "{turn}");
        assert_eq!(beside.wait(8, NOW), NOTHING, "{turn}");
    }
    add(&once);
    assert_eq!(beside.wait(8, NOW), [2]);
    assert_eq!(beside.wait(8, NOW), NOTHING);
    let armed = EventFlags::IN | EventFlags::ONESHOT;
    epoll::modify(&beside.kernel, &once, EventData::new_u64(3), armed).unwrap();
    assert_eq!(beside.wait(8, NOW), [3]);
    // A thread that waits in the kernel set alone sees its events.
    add(&edge);
    let mut events = Vec::<Event>::with_capacity(8);
    let room = rustix::buffer::spare_capacity(&mut events);
    assert_eq!(epoll::wait(&beside.kernel, room, Some(&NONE)).unwrap(), 1);
    assert_eq!(beside.wait(8, NOW), NOTHING);
}

const NONE: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[test]
fn neither_part_keeps_the_other_out_of_a_small_list() {
    let beside = Beside::new();
    let counters: Vec<_> = (100..110)
        .map(|data| beside.counter(data, EventFlags::IN))
        .collect();
    counters.iter().for_each(add);
    for port in 1..=10 {
        beside.datagram(port, Events::IN);
        beside.bed.comes(port);
    }
    let all: Vec<u64> = (1..=10).chain(100..110).collect();
    beside.wait_for(&all);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let found = beside.wait(2, LONG);
        assert!((1..=2).contains(&found.len()), "{found:?}");
        seen.extend(found);
    }
    assert_eq!(seen.len(), 20, "{seen:?}");
}

#[test]
fn a_thread_that_sleeps_is_woken_by_either() {
    let beside = Beside::new();
    let counter = beside.counter(1, EventFlags::IN | EventFlags::ET);
    let socket = beside.datagram(7, Events::IN | Events::EDGE);
    for _ in 0..20 {
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| beside.wait(8, LONG));
            thread::sleep(Duration::from_millis(2));
            add(&counter);
            assert_eq!(sleeper.join().unwrap(), [1]);
            let sleeper = scope.spawn(|| beside.wait(8, LONG));
            thread::sleep(Duration::from_millis(2));
            beside.bed.comes(7);
            assert_eq!(sleeper.join().unwrap(), [7]);
        });
    }
    let mut buffer = [0; 4];
    for _ in 0..20 {
        assert_eq!(beside.bed.table.read(socket, &mut buffer).unwrap(), 1);
    }
}

#[test]
fn only_an_epoll_set_has_one_beside_it() {
    let bed = Bed::new();
    let counter = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let refused = EpollSet::beside(&bed.near, counter).map(drop).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    // It goes without a trace, and the kernel's set stays.
    let kernel = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let number = kernel.as_raw_fd();
    for _ in 0..3 {
        drop(EpollSet::beside(&bed.near, kernel.try_clone().unwrap()).unwrap());
    }
    let counter = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
    epoll::add(&kernel, &counter, EventData::new_u64(5), EventFlags::IN).unwrap();
    assert_eq!(kernel.as_raw_fd(), number);
    let mut events = Vec::<Event>::with_capacity(8);
    let room = rustix::buffer::spare_capacity(&mut events);
    assert_eq!(epoll::wait(&kernel, room, Some(&NONE)).unwrap(), 1);
}
