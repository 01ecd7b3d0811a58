//! In which order connections send, and how much of it at a time.

use std::io::{Read, Write};
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{DescriptorSet, Events, PollFd};
use tidewall::tcp::{Event, Interest};
use tidewall::{Selector, TcpListener, TcpStream};
use tidewall_device::memory::{Side, Tap};
use tidewall_device::queue::BURST;

use super::support::*;

const PORT: u16 = 80;
/// Connections that send much.
const MANY: usize = 24;
/// Most frames of a connection before it is another's turn.
const QUANTUM: usize = 10;
/// Bytes that each sends at a time: 14 frames, fewer than a full burst.
const BYTES: usize = 20_000;

struct Meeting {
    near: Selector,
    far: Selector,
    clients: Vec<TcpStream>,
    servers: Vec<TcpStream>,
}

impl Meeting {
    fn new(bed: &Bed, count: usize) -> Meeting {
        let listener = TcpListener::bind(&bed.far, at(FAR4, PORT)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut meeting = Meeting {
            near: Selector::new(&bed.near).unwrap(),
            far: Selector::new(&bed.far).unwrap(),
            clients: Vec::new(),
            servers: Vec::new(),
        };
        let Meeting { near, far, .. } = &meeting;
        far.add(&listener, 0, Interest::READABLE).unwrap();
        let clients = (0..count).map(|token| {
            let stream = TcpStream::connect_nonblocking(&bed.near, at(FAR4, PORT)).unwrap();
            near.add(&stream, token as u64, Interest::NONE).unwrap();
            stream
        });
        meeting.clients = clients.collect();
        while meeting.servers.len() < count {
            meeting.send();
            wait(&meeting.far);
            let accepted = listener.accept().map(|(stream, _)| stream);
            meeting.servers.extend(accepted);
        }
        for server in &meeting.servers {
            server.set_nonblocking(true).unwrap();
        }
        meeting
    }

    /// The near end's turn.
    fn send(&self) {
        wait(&self.near);
    }

    /// Lets all of so many bytes arrive.
    fn arrive(&mut self, bed: &Bed, mut left: usize) {
        let mut buffer = vec![0; BYTES];
        for _ in 0..10_000 {
            bed.advance(Duration::from_millis(1));
            self.send();
            wait(&self.far);
            for server in &mut self.servers {
                while let Ok(length) = server.read(&mut buffer) {
                    left -= length;
                }
            }
            if left == 0 {
                return;
            }
        }
        panic!("{left} bytes did not arrive");
    }

    /// Writes much on all but the last; returns the number of bytes. Unacknowledged data
    /// takes room.
    fn write(&mut self) -> usize {
        let many = self.clients.iter_mut().take(MANY);
        many.map(|client| client.write(&[1; BYTES]).unwrap()).sum()
    }
}

fn wait(selector: &Selector) {
    let mut events: Vec<Event> = Vec::new();
    selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
}

/// Source ports of the data that the near end has sent, in order.
fn senders(tap: &Tap) -> Vec<u16> {
    let sent = tap.take().into_iter().filter(|frame| frame.from == Side::A);
    // More than Ethernet, IPv4 and TCP with timestamps.
    sent.filter(|frame| frame.bytes.len() > 14 + 20 + 32)
        .map(|frame| u16::from_be_bytes([frame.bytes[34], frame.bytes[35]]))
        .collect()
}

#[test]
fn connections_take_turns_and_a_burst_is_answered_before_the_next() {
    let bed = Bed::new();
    let mut meeting = Meeting::new(&bed, MANY + 1);
    // Until their windows are large.
    for _ in 0..4 {
        let bytes = meeting.write();
        meeting.arrive(&bed, bytes);
    }
    let tap = bed.far_tap();
    let bytes = meeting.write();
    // A burst each time that the device is polled: at the beginning, and before
    // it is known that nothing has come.
    meeting.send();
    let sent = senders(&tap);
    let count = sent.len();
    assert!(
        (BURST as usize..=4 * BURST as usize).contains(&count),
        "{count}"
    );
    for of_one in sent.chunk_by(|one, other| one == other) {
        assert!(of_one.len() <= QUANTUM, "{sent:?}");
    }
    // One that begins does not wait for those that go on.
    let port = meeting.clients[MANY].local_addr().unwrap().port();
    meeting.clients[MANY].write_all(b"short").unwrap();
    meeting.send();
    let sent = senders(&tap);
    assert_eq!(sent[0], port, "{sent:?}");
    meeting.arrive(&bed, bytes + 5);
}

/// A thread that waits by `poll` or `select` for one connection alone may do something else
/// after its answer; who waits for several comes back.
#[test]
fn an_answer_leaves_at_once_but_for_an_event_loop() {
    const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
    let bed = Bed::new();
    let mut meeting = Meeting::new(&bed, 2);
    let table = Descriptors::new(&bed.far, 16);
    let servers = meeting.servers.drain(..);
    let numbers: Vec<i32> = servers
        .map(|server| table.open(server, Flags::NONBLOCK).unwrap())
        .collect();
    let tap = bed.far_tap();
    let mut answers_before_the_next_wait = |count: usize, selects: bool| {
        for client in meeting.clients.iter_mut().take(count) {
            client.write_all(b"question").unwrap();
        }
        wait(&meeting.near);
        let numbers = &numbers[..count];
        let ready = if selects {
            let mut read: DescriptorSet = numbers.iter().copied().collect();
            table.select(read.nfds(), Some(&mut read), None, None, AT_ONCE)
        } else {
            let list = numbers.iter().map(|&fd| PollFd::new(fd, Events::IN));
            table.poll(&mut list.collect::<Vec<_>>(), AT_ONCE)
        };
        assert_eq!(ready.unwrap(), count);
        tap.take();
        for &fd in numbers {
            table.read(fd, &mut [0; 64]).unwrap();
            table.write(fd, b"answer").unwrap();
        }
        let sent = tap.take();
        // The rest leaves, after which the clients ask again.
        table.poll(&mut [], AT_ONCE).unwrap();
        wait(&meeting.near);
        sent.iter().filter(|frame| frame.from == Side::B).count()
    };
    for selects in [false, true] {
        assert_eq!(answers_before_the_next_wait(1, selects), 1);
        assert_eq!(answers_before_the_next_wait(2, selects), 0);
    }
}
