//! Calls that wait, on virtual time: nothing here waits for the machine's clock.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use tidewall::{TcpListener, TcpStream};
use tidewall_device::memory::{LinkConfig, pair};

use super::clock::{Clock, stacks};
use super::support::{FAR4, at};

#[test]
fn a_read_waits_on_the_stacks_clock() {
    let clock = Arc::new(Clock::default());
    let (_link, a, b) = pair(LinkConfig::default()).unwrap();
    let (near, far) = stacks(&clock, a, b);
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
        begun.end();
        (first, second)
    });
    clock.advance(Duration::ZERO);
    assert_eq!(client.write(b"hello").unwrap(), 5);
    // It sleeps on the device, which has a frame for it.
    assert!(clock.advance(Duration::ZERO) > 0);
    while !clock.has_ended() {
        clock.advance(Duration::from_secs(60));
        assert!(far.age() < 2 * timeout);
    }
    assert_eq!(reading.join().unwrap(), (Ok(5), Err(ErrorKind::WouldBlock)));
    assert!(far.age() >= timeout);
}
