//! Sockets in event loops of `mio`'s.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use tidewall::{TcpListener, TcpStream, UdpSocket};

use super::support::{FAR4, NEAR4, at, errno};
use super::tcp::stacks;

#[path = "../../examples/mio_echo.rs"]
mod mio_echo;
use mio_echo::Echo;

const PORT: u16 = 82;
/// Nothing here takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);

fn pattern(length: usize, of: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 13 + n / 241 + of) as u8).collect()
}

/// Events until one has the token.
fn wait_for(poll: &mut Poll, token: Token) -> mio::event::Event {
    let mut events = Events::with_capacity(16);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < TIMEOUT, "no event");
        poll.poll(&mut events, Some(TIMEOUT)).unwrap();
        if let Some(event) = events.iter().find(|event| event.token() == token) {
            return event.clone();
        }
    }
}

/// How many events come within a time that is enough for any.
fn events_now(poll: &mut Poll) -> usize {
    let mut events = Events::with_capacity(16);
    poll.poll(&mut events, Some(Duration::from_millis(30)))
        .unwrap();
    events.iter().count()
}

#[test]
fn an_echo_service_on_an_event_loop_loses_nothing() {
    let (near, far) = stacks();
    let mut echo = Echo::new(&far, at(FAR4, PORT)).unwrap();
    let stop = echo.stopper();
    let server = thread::spawn(move || echo.run().unwrap());
    thread::scope(|scope| {
        for client in 0..3 {
            let near = &near;
            scope.spawn(move || {
                let stream = TcpStream::connect_timeout(near, &at(FAR4, PORT), TIMEOUT).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                stream.set_write_timeout(Some(TIMEOUT)).unwrap();
                // More than all buffers hold: both sides run into their ends.
                let sent = pattern(3 << 20, client);
                thread::scope(|scope| {
                    scope.spawn(|| (&stream).write_all(&sent).unwrap());
                    if client == 0 {
                        // Nothing is read for a while.
                        thread::sleep(Duration::from_millis(50));
                    }
                    let mut back = vec![0; sent.len()];
                    (&stream).read_exact(&mut back).unwrap();
                    assert!(back == sent, "client {client}");
                });
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
            });
        }
    });
    stop();
    assert_eq!(server.join().unwrap(), 3);
}

#[test]
fn answers_do_not_wait_for_the_helpers_tick() {
    let (near, far) = stacks();
    let mut echo = Echo::new(&far, at(FAR4, PORT)).unwrap();
    let stop = echo.stopper();
    let server = thread::spawn(move || echo.run().unwrap());
    let mut client = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut times: Vec<Duration> = (0..200)
        .map(|turn| {
            let begin = Instant::now();
            client.write_all(&[turn; 20]).unwrap();
            let mut back = [0; 20];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, [turn; 20]);
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    // A tick is 8 ms; other tests run beside this one.
    assert!(times[20] < Duration::from_millis(3), "{:?}", times[20]);
    drop(client);
    stop();
    server.join().unwrap();
}

#[test]
fn every_datagram_is_an_edge() {
    let (near, far) = stacks();
    let mut echo = Echo::new(&far, at(FAR4, PORT)).unwrap();
    let stop = echo.stopper();
    let server = thread::spawn(move || echo.run().unwrap());
    let socket = UdpSocket::bind(&near, at(NEAR4, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Nothing is lost here: no ring overflows.
    for turn in 0..300u32 {
        let burst = 1 + turn % 3;
        for number in 0..burst {
            let question = [turn, number].map(u32::to_be_bytes).concat();
            socket.send_to(&question, at(FAR4, PORT)).unwrap();
        }
        for number in 0..burst {
            let mut answer = [0; 9];
            assert_eq!(socket.recv(&mut answer).unwrap(), 8);
            assert_eq!(answer[..8], [turn, number].map(u32::to_be_bytes).concat());
        }
    }
    stop();
    server.join().unwrap();
}

#[test]
fn a_connection_that_begins_in_the_loop() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let mut poll = Poll::new().unwrap();
    let mut stream = TcpStream::connect_nonblocking(&near, at(FAR4, PORT)).unwrap();
    poll.registry()
        .register(&mut stream, Token(7), Interest::WRITABLE)
        .unwrap();
    // As mio's documentation has it: writable, without an error, with a peer.
    while wait_for(&mut poll, Token(7)).is_writable() {
        assert!(stream.take_error().unwrap().is_none());
        match stream.peer_addr() {
            Ok(peer) => {
                assert_eq!(peer, at(FAR4, PORT));
                break;
            }
            Err(error) => assert_eq!(errno(error), libc::ENOTCONN),
        }
    }
    let (accepted, _) = listener.accept().unwrap();
    // From writing to reading, and both.
    poll.registry()
        .reregister(&mut stream, Token(8), Interest::READABLE)
        .unwrap();
    assert_eq!(events_now(&mut poll), 0, "nothing to read yet");
    (&accepted).write_all(b"x").unwrap();
    assert!(wait_for(&mut poll, Token(8)).is_readable());
    assert_eq!(events_now(&mut poll), 0, "an edge is reported once");
    // More is an edge, although the first byte was not read.
    (&accepted).write_all(b"y").unwrap();
    assert!(wait_for(&mut poll, Token(8)).is_readable());
    // A readable socket is reported again after a new registration.
    let both = Interest::READABLE | Interest::WRITABLE;
    poll.registry()
        .reregister(&mut stream, Token(9), both)
        .unwrap();
    let event = wait_for(&mut poll, Token(9));
    assert!(event.is_readable() && event.is_writable());
    let mut buffer = [0; 8];
    assert_eq!(stream.read(&mut buffer).unwrap(), 2);
    let error = stream.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The end, too.
    drop(accepted);
    while stream.read(&mut buffer).is_err() {
        assert!(wait_for(&mut poll, Token(9)).is_readable());
    }
}

#[test]
fn a_full_connection_is_writable_when_there_is_room() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let client = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut server = accepting.join().unwrap();
    server.set_nonblocking(true).unwrap();
    let mut poll = Poll::new().unwrap();
    poll.registry()
        .register(&mut server, Token(1), Interest::WRITABLE)
        .unwrap();
    let much = vec![7; 1 << 20];
    for _ in 0..3 {
        let mut written = 0;
        // Data that the peer accepts makes room, once or more.
        while {
            loop {
                match server.write(&much) {
                    Ok(length) => written += length,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            events_now(&mut poll) > 0
        } {}
        assert!(written > 0);
        let reader = thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut all = vec![0; written];
                (&client).read_exact(&mut all).unwrap();
            });
            let event = wait_for(&mut poll, Token(1));
            assert!(event.is_writable());
            read.join()
        });
        reader.unwrap();
    }
}

#[test]
fn registering_is_what_it_is_for_mios_own_sockets() {
    let (_, far) = stacks();
    let mut poll = Poll::new().unwrap();
    let other = Poll::new().unwrap();
    let registry = poll.registry();
    let mut listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let mut socket = UdpSocket::bind(&far, at(FAR4, PORT)).unwrap();
    let reads = Interest::READABLE;
    let fails = |result: std::io::Result<()>| errno(result.unwrap_err());
    let nobody = fails(registry.reregister(&mut listener, Token(1), reads));
    assert_eq!(nobody, libc::ENOENT);
    assert_eq!(fails(registry.deregister(&mut socket)), libc::ENOENT);
    registry.register(&mut listener, Token(1), reads).unwrap();
    registry
        .register(&mut socket, Token(2), Interest::WRITABLE)
        .unwrap();
    let again = fails(other.registry().register(&mut listener, Token(1), reads));
    assert_eq!(again, libc::EEXIST);
    registry.deregister(&mut listener).unwrap();
    assert!(wait_for(&mut poll, Token(2)).is_writable());
    poll.registry().deregister(&mut socket).unwrap();
    assert_eq!(events_now(&mut poll), 0);
    // In another loop afterwards, or gone with the socket.
    let registry = other.registry();
    registry.register(&mut listener, Token(1), reads).unwrap();
    registry.register(&mut socket, Token(2), reads).unwrap();
    drop((listener, socket));
    let mut listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    registry.register(&mut listener, Token(1), reads).unwrap();
}

/// Sockets come and go, and their loops with them. The stack's notifier comes and goes,
/// other threads wait beside it, and the stack can end.
#[test]
fn loops_come_and_go() {
    let (near, far) = stacks();
    for turn in 0..20u16 {
        let mut echo = Echo::new(&far, at(FAR4, PORT + turn)).unwrap();
        let stop = echo.stopper();
        let server = thread::spawn(move || echo.run().unwrap());
        let mut client =
            TcpStream::connect_timeout(&near, &at(FAR4, PORT + turn), TIMEOUT).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.write_all(b"question").unwrap();
        client.read_exact(&mut [0; 8]).unwrap();
        stop();
        server.join().unwrap();
        // No thread is in a loop: an application thread waits by itself.
        let socket = UdpSocket::bind(&far, at(FAR4, PORT)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let other = UdpSocket::bind(&near, at(NEAR4, PORT)).unwrap();
        let waiting = thread::spawn(move || socket.recv(&mut [0; 8]).unwrap());
        other.send_to(b"x", at(FAR4, PORT)).unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    }
}
