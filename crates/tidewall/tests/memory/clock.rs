//! Virtual time, and one thread that sleeps on it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidewall::{MemoryConfig, Sleep, Stack, VirtualTime};
use tidewall_device::memory::LinkPort;
use tidewall_wire::ethernet::MacAddress;

use super::support::{FAR4, NEAR4};
use super::tcp::TIMEOUT;

/// A clock that stands still until a test moves it.
#[derive(Default)]
pub struct Clock {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    now: Duration,
    /// The thread has found nothing to do since the clock was moved last.
    asleep: bool,
    /// The thread has ended.
    done: bool,
    /// Sleeps that have ended.
    woken: usize,
}

impl VirtualTime for Clock {
    fn now(&self) -> Duration {
        self.state.lock().unwrap().now
    }

    fn sleep(&self, sleep: &Sleep<'_>) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let deadline = sleep.timeout().map(|timeout| state.now + timeout);
        while !sleep.is_ready() && deadline.is_none_or(|deadline| state.now < deadline) {
            state.asleep = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        state.woken += 1;
        Ok(())
    }
}

impl Clock {
    /// Moves the clock, and lets the thread do what there is to do. How often it was
    /// woken.
    pub fn advance(&self, by: Duration) -> usize {
        let mut state = self.state.lock().unwrap();
        let woken = state.woken;
        state.now += by;
        state.asleep = false;
        self.changed.notify_all();
        while !state.asleep && !state.done {
            let (after, waited) = self.changed.wait_timeout(state, TIMEOUT).unwrap();
            assert!(!waited.timed_out());
            state = after;
        }
        state.woken - woken
    }

    /// The thread says that it has ended.
    pub fn end(&self) {
        self.state.lock().unwrap().done = true;
        self.changed.notify_all();
    }

    /// True once the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.state.lock().unwrap().done
    }
}

/// A stack at either end of a link, [`NEAR4`] and [`FAR4`], on this clock.
pub fn stacks(clock: &Arc<Clock>, near: LinkPort, far: LinkPort) -> (Stack, Stack) {
    let stack = |end, address: Ipv4Addr, mac, peer| {
        let config = MemoryConfig {
            addresses: vec![address.into()],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        Stack::on_virtual_time(end, config, clock.clone()).unwrap()
    };
    (stack(near, NEAR4, 1, 2), stack(far, FAR4, 2, 1))
}
