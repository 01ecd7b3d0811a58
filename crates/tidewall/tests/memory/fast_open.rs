//! Data in the SYN (RFC 7413), between two stacks that run in real time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr};
use std::time::Instant;

use tidewall::tcp::{FastOpenFailure, FastOpenKeys, Interest, State};
use tidewall::{ListenOptions, Selector, Stack, TcpListener, TcpStream};

use super::support::{FAR4, FAR6, at};
use super::tcp::{TIMEOUT, stacks};

const PORT: u16 = 81;

fn listener(far: &Stack, queue: u32) -> TcpListener {
    let options = ListenOptions {
        fast_open: queue,
        ..ListenOptions::default()
    };
    TcpListener::bind_with(far, at(Ipv6Addr::UNSPECIFIED, PORT), options).unwrap()
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// One exchange; both streams are established after it.
fn exchange(near: &Stack, listener: &TcpListener, address: SocketAddr) -> [TcpStream; 2] {
    let mut client = patient(TcpStream::connect_fast_open(near, address).unwrap());
    assert!(!client.is_kernels());
    client.write_all(b"request").unwrap();
    let mut server = patient(listener.accept().unwrap().0);
    let mut buffer = [0; 100];
    let length = server.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"request");
    server.write_all(b"the answer").unwrap();
    client.read_exact(&mut buffer[..10]).unwrap();
    assert_eq!(&buffer[..10], b"the answer");
    [client, server]
}

fn syn_data(streams: &[TcpStream; 2]) -> [bool; 2] {
    streams
        .each_ref()
        .map(|stream| stream.info().unwrap().syn_data)
}

#[test]
fn the_second_connection_carries_its_request_in_the_syn() {
    let (near, far) = stacks();
    let listener = listener(&far, 16);
    for address in [at(FAR4, PORT), at(FAR6, PORT)] {
        let first = exchange(&near, &listener, address);
        assert_eq!(syn_data(&first), [false; 2]);
        let failure = first[0].info().unwrap().fast_open_failure;
        assert_eq!(failure, FastOpenFailure::CookieUnavailable);
        for _ in 0..3 {
            assert_eq!(syn_data(&exchange(&near, &listener, address)), [true; 2]);
        }
    }
    // An ordinary connection goes on as ever.
    let client = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
    assert_eq!(
        listener.accept().unwrap().1.port(),
        client.local_addr().unwrap().port()
    );
}

#[test]
fn a_listener_has_it_when_it_is_set() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    for _ in 0..3 {
        let streams = exchange(&near, &listener, at(FAR4, PORT));
        assert_eq!(syn_data(&streams), [false; 2]);
    }
}

#[test]
fn nothing_is_sent_before_something_is_written_or_read() {
    let (near, far) = stacks();
    let listener = listener(&far, 16);
    drop(exchange(&near, &listener, at(FAR4, PORT)));
    listener.set_nonblocking(true).unwrap();
    let connect = || TcpStream::connect_fast_open(&near, at(FAR4, PORT)).unwrap();
    let client = connect();
    client.set_nodelay(true).unwrap();
    assert_eq!(client.info().unwrap().state, State::SynSent);
    let error = listener.accept().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(client.info().unwrap().segments_sent, 0);
    drop(client);
    listener.set_nonblocking(false).unwrap();
    // If the server speaks first, reading begins the connection.
    let client = patient(connect());
    let greeting = std::thread::spawn(move || {
        let mut buffer = [0; 5];
        (&client).read_exact(&mut buffer).unwrap();
        buffer
    });
    let mut server = patient(listener.accept().unwrap().0);
    server.write_all(b"hello").unwrap();
    assert_eq!(&greeting.join().unwrap(), b"hello");
    let error = connect().shutdown(Shutdown::Write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}

#[test]
fn more_than_a_syn_takes_follows_it() {
    let (near, far) = stacks();
    let listener = listener(&far, 16);
    drop(exchange(&near, &listener, at(FAR4, PORT)));
    let sent: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    let client = patient(TcpStream::connect_fast_open(&near, at(FAR4, PORT)).unwrap());
    let bytes = sent.clone();
    let writing = std::thread::spawn(move || {
        (&client).write_all(&bytes).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    let mut server = patient(listener.accept().unwrap().0);
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(received == sent);
    assert!(writing.join().unwrap().info().unwrap().syn_data);
}

#[test]
fn a_nonblocking_stream_is_writable_at_once() {
    let (near, far) = stacks();
    let listener = listener(&far, 16);
    let selector = Selector::new(&near).unwrap();
    let mut events = Vec::new();
    for expected in [false, true] {
        let stream = TcpStream::connect_fast_open_nonblocking(&near, at(FAR4, PORT)).unwrap();
        selector.add(&stream, 1, Interest::WRITABLE).unwrap();
        assert_eq!(selector.wait(&mut events, Some(TIMEOUT)).unwrap(), 1);
        let sent = stream.info().unwrap().segments_sent;
        assert_eq!(sent == 0, expected, "with a cookie the SYN waits");
        (&stream).write_all(b"request").unwrap();
        selector.modify(&stream, 1, Interest::READABLE).unwrap();
        let accepting = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let mut server = patient(listener.accept().unwrap().0);
                let mut buffer = [0; 7];
                server.read_exact(&mut buffer).unwrap();
                server.write_all(b"done").unwrap();
                server.info().unwrap().syn_data
            });
            assert_eq!(selector.wait(&mut events, Some(TIMEOUT)).unwrap(), 1);
            accepted.join().unwrap()
        });
        assert_eq!(accepting, expected);
        assert_eq!((&stream).read(&mut [0; 10]).unwrap(), 4);
    }
}

#[test]
fn cookies_of_the_last_key_are_taken_and_replaced() {
    let (near, far) = stacks();
    let listener = listener(&far, 16);
    let run = || syn_data(&exchange(&near, &listener, at(FAR4, PORT)));
    assert_eq!(run(), [false; 2]);
    for _ in 0..3 {
        far.rotate_fast_open_key().unwrap();
        assert_eq!(run(), [true; 2]);
    }
    // An unknown key costs one connection its speed.
    far.set_fast_open_keys(FastOpenKeys {
        primary: *b"of all machines!",
        backup: None,
    });
    assert_eq!(run(), [false; 2]);
    assert_eq!(run(), [true; 2]);
}

#[test]
fn places_are_free_again_after_the_handshake() {
    let (near, far) = stacks();
    let listener = listener(&far, 1);
    assert_eq!(
        syn_data(&exchange(&near, &listener, at(FAR4, PORT))),
        [false; 2]
    );
    let mut open = Vec::new();
    for _ in 0..5 {
        let streams = exchange(&near, &listener, at(FAR4, PORT));
        assert_eq!(syn_data(&streams), [true; 2]);
        // The client's acknowledgment may still wait in the channel.
        let end = Instant::now() + TIMEOUT;
        while streams[1].info().unwrap().state != State::Established {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        open.push(streams);
    }
}
