//! Descriptors of the kernel's beside Tidewall's: many at once, one of many
//! threads, and what is ready and not asked about.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidewall::descriptor::Flags;
use tidewall::readiness::{DescriptorEvent, EpollEvent, Events, Operation, PollFd};

use super::support::*;

impl Bed {
    fn set(&self) -> i32 {
        self.table.epoll_create1(Flags::NONE).unwrap()
    }

    fn control(&self, set: i32, operation: Operation, fd: i32, events: Events) {
        let event = EpollEvent {
            events,
            data: fd as u64,
        };
        self.table
            .epoll_ctl(set, operation, fd, Some(event))
            .unwrap();
    }

    fn wait(&self, set: i32, most: usize, timeout: Option<Duration>) -> Vec<i32> {
        let mut events = vec![EpollEvent::default(); most];
        let count = self.table.epoll_wait(set, &mut events, timeout).unwrap();
        events.truncate(count);
        events.iter().map(|event| event.data as i32).collect()
    }
}

#[test]
fn many_that_are_ready_are_all_reported_in_one_call() {
    const MANY: usize = 200;
    let bed = Bed::new();
    let counters: Vec<i32> = (0..MANY).map(|_| bed.counter()).collect();
    assert_eq!(bed.select(&counters, NOW).unwrap(), NOBODY);
    let set = bed.set();
    for &counter in &counters {
        bed.control(set, Operation::Add, counter, Events::IN);
        bed.table
            .declare_interest(counter, Events::IN, Some(&mut Events::NONE.clone()))
            .unwrap();
    }
    assert_eq!(bed.wait(set, MANY, NOW), NOBODY);
    for &counter in &counters {
        bed.add(counter);
    }
    assert_eq!(bed.select(&counters, NOW).unwrap(), counters);
    let reported = bed.wait(set, MANY + 9, NOW);
    assert_eq!(reported.len(), MANY);
    assert_eq!(reported.into_iter().collect::<BTreeSet<_>>().len(), MANY);
    let mut list: Vec<PollFd> = counters
        .iter()
        .map(|&fd| PollFd::new(fd, Events::IN))
        .collect();
    assert_eq!(bed.table.poll(&mut list, NOW).unwrap(), MANY);
    let mut events = [DescriptorEvent::default(); MANY + 9];
    assert_eq!(bed.table.get_next_event(&mut events, NOW).unwrap(), MANY);
    // A state that was asked for is no event, however many others are ready.
    for &counter in &counters {
        bed.add(counter);
    }
    for &counter in &counters {
        let mut state = Events::NONE;
        bed.table
            .declare_interest(counter, Events::IN, Some(&mut state))
            .unwrap();
        assert_eq!(state, Events::IN);
    }
    assert_eq!(bed.table.get_next_event(&mut events, NOW).unwrap(), 0);
}

#[test]
fn exclusive_interest_in_one_of_the_kernels() {
    let bed = Bed::new();
    let counter = bed.counter();
    let mut state = Events::HUP;
    for interest in [Events::IN, Events::IN | Events::RDHUP] {
        bed.table
            .declare_interest(counter, interest | Events::EXCLUSIVE, Some(&mut state))
            .unwrap();
        assert_eq!(state, Events::NONE);
        bed.add(counter);
        let mut events = [DescriptorEvent::default(); 2];
        assert_eq!(bed.table.get_next_event(&mut events, LONG).unwrap(), 1);
        assert_eq!(events[0].events, Events::IN);
        bed.table.read(counter, &mut [0; 8]).unwrap();
    }
}

/// How often the calling thread has gone to sleep.
fn switches() -> usize {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// The processor time that a call takes of the calling thread.
fn processor_time(call: impl FnOnce()) -> Duration {
    let before = tidewall_sys::thread_time();
    call();
    tidewall_sys::thread_time() - before
}

#[test]
fn what_is_ready_and_not_asked_about_does_not_keep_a_thread_awake() {
    let bed = Bed::new();
    let (inner, outer) = (bed.set(), bed.set());
    let counter = bed.counter();
    bed.control(inner, Operation::Add, counter, Events::IN);
    bed.add(counter);
    let asleep = |set| {
        let time = processor_time(|| {
            assert_eq!(bed.wait(set, 4, Some(Duration::from_millis(200))), NOBODY);
        });
        assert!(time < Duration::from_millis(60), "{time:?} of 200 ms");
    };
    bed.control(outer, Operation::Add, inner, Events::IN | Events::ONESHOT);
    assert_eq!(bed.wait(outer, 4, LONG), [inner]);
    asleep(outer);
    bed.control(outer, Operation::Modify, inner, Events::NONE);
    asleep(outer);
    // It is ready still, for who asks.
    bed.control(outer, Operation::Modify, inner, Events::IN);
    assert_eq!(bed.wait(outer, 4, LONG), [inner]);
    assert_eq!(bed.wait(outer, 4, LONG), [inner]);
    assert_eq!(bed.wait(inner, 4, LONG), [counter]);
    bed.table.read(counter, &mut [0; 8]).unwrap();
    assert_eq!(bed.wait(outer, 4, NOW), NOBODY);
    bed.add(counter);
    assert_eq!(bed.wait(outer, 4, LONG), [inner]);
}

#[test]
fn one_thread_is_woken_for_one_of_the_kernels() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 40;
    let bed = Bed::new();
    let (set, counter) = (bed.set(), bed.counter());
    bed.control(set, Operation::Add, counter, Events::IN | Events::EDGE);
    let (ready, done) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    let returned = AtomicUsize::new(0);
    let switches: usize = thread::scope(|scope| {
        let sleepers = [0; THREADS].map(|_| {
            scope.spawn(|| {
                ready.wait();
                let before = switches();
                while !done.load(Ordering::SeqCst) {
                    bed.wait(set, 1, LONG);
                    returned.fetch_add(1, Ordering::SeqCst);
                }
                switches() - before
            })
        });
        ready.wait();
        thread::sleep(Duration::from_millis(50));
        for round in 0..ROUNDS {
            bed.add(counter);
            let end = Instant::now() + LONG.unwrap();
            while returned.load(Ordering::SeqCst) <= round {
                assert!(Instant::now() < end, "nobody was woken in round {round}");
                thread::yield_now();
            }
        }
        done.store(true, Ordering::SeqCst);
        // A thread that returns for this wakes no other: each is called.
        let end = Instant::now() + LONG.unwrap();
        while sleepers.iter().any(|sleeper| !sleeper.is_finished()) {
            assert!(Instant::now() < end);
            bed.add(counter);
            thread::yield_now();
        }
        sleepers.map(|it| it.join().unwrap()).iter().sum()
    });
    // The woken thread, and the one that sleeps on the descriptors in its place: not
    // all of them each time.
    assert!(switches < ROUNDS * 5, "{switches}");
}

#[test]
fn devices_that_never_wait() {
    let bed = Bed::new();
    let null = std::fs::File::open("/dev/null").unwrap();
    let null = bed.table.open(OwnedFd::from(null), Flags::NONE).unwrap();
    let set = bed.set();
    for operation in [Operation::Add, Operation::Modify, Operation::Delete] {
        let event = Some(EpollEvent::default());
        let refused = bed.table.epoll_ctl(set, operation, null, event);
        assert_eq!(errno(refused), libc::EPERM, "{operation:?}");
    }
    assert_eq!(bed.select(&[null], LONG).unwrap(), [null]);
}
