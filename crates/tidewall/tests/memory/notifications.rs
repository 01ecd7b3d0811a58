//! Out-of-band reports of streams, in real time.

use std::io::{Read, Write};
use std::time::Instant;

use tidewall::tcp::{Event, Interest, Notification, TimestampEvent, TimestampKeys, Timestamping};
use tidewall::{Selector, TcpStream};

use super::tcp::{TIMEOUT, stacks, streams};

fn taken(stream: &TcpStream) -> Vec<Notification> {
    let mut all = Vec::new();
    let count = stream.take_notifications(&mut all).unwrap();
    assert_eq!(count, all.len());
    all
}

/// Waits for the selector to say that something was reported.
fn wait(selector: &Selector) {
    let begin = Instant::now();
    let mut events: Vec<Event> = Vec::new();
    loop {
        selector.wait(&mut events, Some(TIMEOUT)).unwrap();
        if events.iter().any(|event| event.error) {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT);
    }
}

#[test]
fn a_write_has_times_and_a_selector_tells_of_them() {
    let (near, far) = stacks();
    let (mut client, mut server) = streams(&near, &far);
    let timestamping = Timestamping {
        sent: true,
        acknowledged: true,
        keys: TimestampKeys::FromWritten,
        ..Timestamping::default()
    };
    client.set_timestamping(timestamping).unwrap();
    assert_eq!(client.timestamping().unwrap(), timestamping);
    let selector = Selector::new(&near).unwrap();
    selector.add(&client, 1, Interest::NONE).unwrap();
    let begin = Instant::now();
    // Several send buffers: the call waits, and is one write.
    let length = 4 << 20;
    let reading = std::thread::spawn(move || {
        let mut rest = length;
        let mut buffer = vec![0; 1 << 16];
        while rest > 0 {
            rest -= server.read(&mut buffer).unwrap();
        }
        server
    });
    assert_eq!(client.write(&vec![7; length]).unwrap(), length);
    let mut reported = Vec::new();
    while reported.len() < 2 {
        wait(&selector);
        client.take_notifications(&mut reported).unwrap();
    }
    let end = Instant::now();
    let [
        Notification::Time {
            event: TimestampEvent::Sent,
            key: sent,
            at: left,
        },
        Notification::Time {
            event: TimestampEvent::Acknowledged,
            key: acknowledged,
            at: arrived,
        },
    ] = reported[..]
    else {
        panic!("{reported:?}");
    };
    let last = u32::try_from(length).unwrap() - 1;
    assert_eq!((sent, acknowledged), (last, last));
    assert!(begin <= left && left <= arrived && arrived <= end);
    assert_eq!(client.notifications_lost().unwrap(), 0);
    // Taken is taken.
    let mut events = Vec::new();
    let soon = std::time::Duration::from_millis(5);
    selector.wait(&mut events, Some(soon)).unwrap();
    assert_eq!(events, []);
    drop(reading.join().unwrap());
}

#[test]
fn copied_memory_is_reported_free_at_once() {
    let (near, far) = stacks();
    let (client, mut server) = streams(&near, &far);
    let selector = Selector::new(&near).unwrap();
    selector.add(&client, 1, Interest::NONE).unwrap();
    assert_eq!(client.write_zero_copy(b"nobody asked").unwrap(), 12);
    assert_eq!(taken(&client), []);
    client.set_zero_copy(true).unwrap();
    assert_eq!(client.write_zero_copy(b"first").unwrap(), 5);
    wait(&selector);
    assert_eq!(client.write_zero_copy(b"second").unwrap(), 6);
    let free = Notification::Free {
        first: 0,
        last: 1,
        copied: true,
    };
    assert_eq!(taken(&client), [free]);
    drop(selector);
    let mut buffer = [0; 23];
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"nobody askedfirstsecond");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let error = client.write_zero_copy(b"too late").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
    assert_eq!(taken(&client), []);
}

#[test]
fn what_is_read_has_a_time() {
    let (near, far) = stacks();
    let (mut client, mut server) = streams(&near, &far);
    assert_eq!(server.read_timestamp().unwrap(), None);
    server
        .set_timestamping(Timestamping {
            received: true,
            ..Timestamping::default()
        })
        .unwrap();
    let begin = Instant::now();
    client.write_all(b"request").unwrap();
    assert_eq!(server.read(&mut [0; 100]).unwrap(), 7);
    let at = server.read_timestamp().unwrap().unwrap();
    assert!(begin <= at && at <= Instant::now());
}
