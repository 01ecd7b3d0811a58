//! When the helper is woken.

use std::time::Instant;

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

use super::*;
use crate::StackHandle;
use crate::stack::MemoryConfig;

fn stack() -> StackHandle {
    let (_, end, _) = pair(LinkConfig::default()).unwrap();
    let config = MemoryConfig {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        peer: MacAddress([2, 0, 0, 0, 0, 2]),
    };
    StackHandle::in_memory(end, config, |_| Ok(Vec::new())).unwrap()
}

/// A thread that sleeps for a millisecond at a time, like a server between requests.
#[test]
fn a_thread_that_comes_and_goes_does_not_wake_it_each_time() {
    const SLEEPS: u32 = 300;
    let stack = stack();
    let core = stack.core();
    Helper::start(core).unwrap();
    let helper = &core.helper;
    // After a longer absence it may sleep.
    let mut absences = 1;
    for _ in 0..SLEEPS {
        let began = Instant::now();
        let deadline = began + Duration::from_millis(1);
        core.receiver.sleep(core, &[], Some(deadline)).unwrap();
        if began.elapsed() > TICK / BUSY_LEAVES / 2 {
            absences += 1;
        }
    }
    let woken = helper.woken.load(Ordering::Relaxed);
    assert!(woken <= absences, "{woken} times, {absences} absences");
}

/// A thread that leaves rarely wakes it, and it sleeps again.
#[test]
fn a_thread_that_leaves_after_a_pause_wakes_it() {
    let stack = stack();
    let core = stack.core();
    Helper::start(core).unwrap();
    let helper = &core.helper;
    let end = Instant::now() + Duration::from_secs(30);
    while helper.woken.load(Ordering::Relaxed) < 3 {
        assert!(Instant::now() < end, "it was not asleep");
        let deadline = Instant::now() + TICK * 3;
        core.receiver.sleep(core, &[], Some(deadline)).unwrap();
    }
}
