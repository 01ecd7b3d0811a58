//! Tests of what a round reads, which sockets it serves, and when it is due.

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

use super::*;
use crate::StackHandle;
use crate::stack::MemoryConfig;

fn config() -> MemoryConfig {
    MemoryConfig {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        peer: MacAddress([2, 0, 0, 0, 0, 2]),
    }
}

#[test]
fn a_round_reads_the_clock_once() {
    let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let counts = reads.clone();
    let clock = move || Duration::from_nanos(counts.fetch_add(1, Ordering::Relaxed) + 1);
    let stack = StackHandle::in_memory_on_clock(end, config(), clock, |_| Ok(Vec::new())).unwrap();
    let core = stack.core();
    let before = core.now();
    let progress = core.receiver.rounds(core, Caller::Poller, before).unwrap();
    assert_eq!(progress.ended, before + Duration::from_nanos(1));
    assert_eq!(core.now(), before + Duration::from_nanos(2));
}

/// A thread that asks its sockets one after the other polls once for all of them. A
/// thread that asks a single socket polls each time, and so does one that asks later.
#[test]
fn one_round_serves_all_sockets_that_are_asked_in_turn() {
    let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
    let clock = Arc::new(AtomicU64::new(0));
    let reads = clock.clone();
    let now = move || Duration::from_nanos(reads.load(Ordering::Relaxed));
    let stack = StackHandle::in_memory_on_clock(end, config(), now, |_| Ok(Vec::new())).unwrap();
    let core = stack.core();
    let receiver = &core.receiver;
    let counters = receiver.queues[0].shared.counters();
    let mut sockets = [0u64; 3];
    let ask = |asked: &mut u64| {
        let made = receiver.rounds_made();
        let before = std::mem::replace(asked, made);
        if receiver.round_after_asking(core, before, made).unwrap() {
            *asked = receiver.rounds_made();
        }
        counters.rounds.load(Ordering::Relaxed)
    };
    for turn in 1..4 {
        sockets
            .iter_mut()
            .for_each(|socket| assert_eq!(ask(socket), turn));
    }
    for round in 4..7 {
        assert_eq!(ask(&mut sockets[0]), round);
    }
    let pause = receiver.wake_up_time() + Duration::from_micros(1);
    clock.fetch_add(pause.as_nanos() as u64, Ordering::Relaxed);
    assert_eq!(ask(&mut sockets[1]), 7);
}

/// Reading the clock costs as much as a datagram. A thread with time left reads it less
/// often, and polls when that is due all the same.
#[test]
fn a_delivery_looks_less_often_while_a_poll_is_far() {
    let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
    let clock = Arc::new(AtomicU64::new(0));
    let reads = clock.clone();
    let now = move || Duration::from_nanos(reads.load(Ordering::Relaxed));
    let stack = StackHandle::in_memory_on_clock(end, config(), now, |_| Ok(Vec::new())).unwrap();
    let core = stack.core();
    let receiver = &core.receiver;
    let queue = &receiver.queues[0];
    let rounds = || queue.shared.counters().rounds.load(Ordering::Relaxed);
    let look_at = |time| {
        clock.store(time, Ordering::Relaxed);
        receiver.poll_between(core, 4).unwrap()
    };
    queue.due.store(NEVER, Ordering::Relaxed);
    assert_eq!(look_at(1_000), 4);
    queue.due.store(100_000, Ordering::Relaxed);
    assert_eq!(look_at(2_000), 8);
    assert_eq!(look_at(50_000), 4);
    assert_eq!(rounds(), 0);
    assert_eq!(look_at(100_000), 4);
    assert_eq!(rounds(), 1);
}

/// One that polls for a time must see it pass while another thread polls.
#[test]
fn a_round_that_finds_every_queue_taken_ends_later() {
    let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
    let stack = StackHandle::in_memory(end, config(), |_| Ok(Vec::new())).unwrap();
    let core = stack.core();
    let began = core.now();
    let taken = core.receiver.queues[0].poller.lock();
    let progress = core.receiver.rounds(core, Caller::Poller, began).unwrap();
    drop(taken);
    assert!(progress.ended > began, "{progress:?}");
}

#[test]
fn a_thread_that_may_not_sleep_polls() {
    let (_link, end, _other) = pair(LinkConfig::default()).unwrap();
    let stack = StackHandle::in_memory(end, config(), |_| Ok(Vec::new())).unwrap();
    let core = stack.core();
    // The device's timer brings batches of bearable size ...
    core.receiver.queues[0]
        .interrupt_interval
        .store(200_000, Ordering::Relaxed);
    core.receiver.timer_batches.store(1, Ordering::Relaxed);
    assert!(core.receiver.device_polls());
    core.receiver
        .timer_batches
        .store(TIMER_BATCHES, Ordering::Relaxed);
    assert!(
        !core.receiver.device_polls(),
        "now and then we look ourselves"
    );
    // ... until a thread waits for answers: nothing may depend on it then.
    core.receiver.timer_batches.store(1, Ordering::Relaxed);
    for waiting in [DO_NOT_SLEEP, 0] {
        core.receiver.queues[0]
            .interrupt_interval
            .store(waiting, Ordering::Relaxed);
        assert!(!core.receiver.device_polls(), "{waiting}");
    }
}
