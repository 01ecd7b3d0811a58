//! Calls that wait, on virtual time: nothing here waits for the machine's clock.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_socket::{MemoryConfig, Sleep, Stack, TcpListener, TcpStream, VirtualTime};
use tidewall_wire::ethernet::MacAddress;

use super::support::{FAR4, NEAR4, at};
use super::tcp::TIMEOUT;

/// A clock that stands still, and who sleeps on it.
#[derive(Default)]
struct Clock {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    now: Duration,
    /// A thread has looked and sleeps.
    asleep: bool,
    /// The thread that sleeps is done.
    done: bool,
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
            self.moved.notify_all();
            state = self.moved.wait(state).unwrap();
        }
        Ok(())
    }
}

impl Clock {
    /// Waits until a thread sleeps, and moves the clock on then. False when it is done
    /// instead.
    fn advance(&self, by: Duration) -> bool {
        let mut state = self.state.lock().unwrap();
        while !state.asleep && !state.done {
            let (after, waited) = self.moved.wait_timeout(state, TIMEOUT).unwrap();
            assert!(!waited.timed_out());
            state = after;
        }
        state.now += by;
        state.asleep = false;
        self.moved.notify_all();
        !state.done
    }

    fn done(&self) {
        self.state.lock().unwrap().done = true;
        self.moved.notify_all();
    }
}

#[test]
fn a_read_waits_on_the_stacks_clock() {
    let clock = Arc::new(Clock::default());
    let (_link, a, b) = pair(LinkConfig::default()).unwrap();
    let stack = |end, address: std::net::Ipv4Addr, mac, peer| {
        let config = MemoryConfig {
            addresses: vec![address.into()],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        Stack::on_virtual_time(end, config, clock.clone()).unwrap()
    };
    let (near, far) = (stack(a, NEAR4, 1, 2), stack(b, FAR4, 2, 1));
    let listener = TcpListener::bind(&far, at(FAR4, 80)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut client = TcpStream::connect_nonblocking(&near, at(FAR4, 80)).unwrap();
    while far.attend() || near.attend() {}
    let (mut server, _) = listener.accept().unwrap();
    let timeout = Duration::from_secs(3600);
    server.set_read_timeout(Some(timeout)).unwrap();
    let begun = clock.clone();
    let reading = std::thread::spawn(move || {
        let first = server.read(&mut [0; 8]).map_err(|error| error.kind());
        let second = server.read(&mut [0; 8]).map_err(|error| error.kind());
        begun.done();
        (first, second)
    });
    assert!(clock.advance(Duration::ZERO));
    assert_eq!(client.write(b"hello").unwrap(), 5);
    // It sleeps on the device, which has a frame for it.
    assert!(clock.advance(Duration::ZERO));
    let step = Duration::from_secs(60);
    while clock.advance(step) {
        assert!(far.age() < 2 * timeout);
    }
    assert_eq!(reading.join().unwrap(), (Ok(5), Err(ErrorKind::WouldBlock)));
    assert!(far.age() >= timeout);
}
