//! Streams between two stacks that run in real time, helper threads and all.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::time::{Duration, Instant};

use tidewall::tcp::{Event, Interest, State};
use tidewall::{MemoryConfig, Selector, Stack, TcpListener, TcpStream, UdpSocket};
use tidewall_device::memory::{Impairments, LinkConfig, pair_on_clock};
use tidewall_wire::ethernet::MacAddress;

use super::support::{FAR4, FAR6, NEAR4, NEAR6, at};

const PORT: u16 = 80;
/// Nothing here takes so long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

pub fn stacks_with(config: LinkConfig) -> (Stack, Stack) {
    let start = Instant::now();
    let (_, a, b) = pair_on_clock(config, move || start.elapsed()).unwrap();
    let stack = |end, addresses: [IpAddr; 2], mac, peer| {
        let config = MemoryConfig {
            addresses: addresses.into(),
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        Stack::in_memory(end, config).unwrap()
    };
    (
        stack(a, [NEAR4.into(), NEAR6.into()], 1, 2),
        stack(b, [FAR4.into(), FAR6.into()], 2, 1),
    )
}

pub fn stacks() -> (Stack, Stack) {
    stacks_with(LinkConfig::default())
}

/// Two connected streams: the near one connected, the far one was accepted.
pub fn streams(near: &Stack, far: &Stack) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(far, at(FAR4, PORT)).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap().0);
    let client = TcpStream::connect_timeout(near, &at(FAR4, PORT), TIMEOUT).unwrap();
    let server = accepting.join().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    (client, server)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn a_blocking_echo_over_both_families() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(std::net::Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, peer) = listener.accept().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer);
            assert!(peer.is_ipv6(), "{peer}");
            let mut buffer = [0; 4096];
            loop {
                match stream.read(&mut buffer).unwrap() {
                    0 => break,
                    length => stream.write_all(&buffer[..length]).unwrap(),
                }
            }
        }
    });
    for address in [IpAddr::from(FAR4), IpAddr::from(FAR6)] {
        let mut client = TcpStream::connect(&near, at(address, PORT)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), at(address, PORT));
        assert!(!client.is_kernels());
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let sent = pattern(3000);
        client.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == sent);
        assert_eq!(client.info().unwrap().state, State::Established);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut back).unwrap(), 0);
    }
    server.join().unwrap();
}

#[test]
fn megabytes_arrive_intact_each_way() {
    let (near, far) = stacks();
    let (client, server) = streams(&near, &far);
    let sent = pattern(4 << 20);
    std::thread::scope(|scope| {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let sent = &sent;
            scope.spawn(move || {
                let mut from = from;
                from.write_all(sent).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut to = to;
                let mut got = Vec::new();
                to.read_to_end(&mut got).unwrap();
                assert!(got == *sent, "{} bytes", got.len());
            });
        }
    });
}

#[test]
fn a_low_water_mark_bounds_what_waits() {
    const MARK: u32 = 16_384;
    let (near, far) = stacks();
    let (mut client, mut server) = streams(&near, &far);
    assert_eq!(client.not_sent_low_water().unwrap(), None);
    client.set_not_sent_low_water(Some(MARK)).unwrap();
    assert_eq!(client.not_sent_low_water().unwrap(), Some(MARK));
    let sent = pattern(1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Waits again and again, and writes everything.
            assert_eq!(client.write(&sent).unwrap(), sent.len());
            // Another thread may be about to send what the window allows.
            let waits = || client.info().unwrap().not_sent;
            assert!(wait_until(|| waits() < 2 * MARK), "{} wait", waits());
            let times = client.sending_times().unwrap();
            assert!(times.busy >= times.window_limited + times.buffer_limited);
            assert!(times.busy < TIMEOUT, "{times:?}");
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes", got.len());
    });
}

/// Waits for `done` by looking again and again, without a call that would make
/// a stack do anything.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_stack_whose_application_is_away_acknowledges_all_the_same() {
    let (near, far) = stacks();
    let (mut client, server) = streams(&near, &far);
    let sent = pattern(20_000);
    client.write_all(&sent).unwrap();
    // No thread calls either stack; `info` does not count.
    assert!(
        wait_until(|| client.info().unwrap().unacknowledged == 0),
        "{:?}",
        client.info()
    );
    assert_eq!(client.info().unwrap().timeouts, 0);
    let mut got = vec![0; sent.len()];
    (&server).read_exact(&mut got).unwrap();
    assert!(got == sent);
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    let (near, far) = stacks();
    let (client, server) = streams(&near, &far);
    let sent = pattern(300_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut server = server;
            server.write_all(&sent).unwrap();
        });
        let mut got = Vec::new();
        (&client).read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} bytes", got.len());
    });
    drop(client);
    // The end that closed first waits, without channel or connection.
    assert!(wait_until(|| {
        let states = far.snapshot().tcp.states;
        states.get("time-wait") == Some(&1) && states.len() == 1
    }));
    let snapshot = far.snapshot().tcp;
    assert_eq!(
        (snapshot.with_channel, snapshot.orphans),
        (0, 0),
        "{snapshot:?}"
    );
    assert!(wait_until(|| near.snapshot().tcp.states.is_empty()));
}

#[test]
fn unread_data_resets_the_peer() {
    let (near, far) = stacks();
    let (mut client, server) = streams(&near, &far);
    client.write_all(b"never read").unwrap();
    assert!(wait_until(|| server.info().unwrap().unread == 10));
    drop(server);
    let error = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = client.write(b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
}

#[test]
fn a_read_that_gets_nothing_ends_at_its_timeout() {
    let (near, far) = stacks();
    let (mut client, server) = streams(&near, &far);
    let timeout = Duration::from_millis(30);
    client.set_read_timeout(Some(timeout)).unwrap();
    let start = Instant::now();
    let error = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() >= timeout);
    client.set_nonblocking(true).unwrap();
    let error = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(server);
}

#[test]
fn a_blocking_write_waits_for_the_reader() {
    let (near, far) = stacks();
    let (client, server) = streams(&near, &far);
    let timeout = Duration::from_millis(50);
    client.set_write_timeout(Some(timeout)).unwrap();
    let chunk = pattern(1 << 20);
    let mut written = 0;
    // More than both buffers may grow to.
    let error = loop {
        match (&client).write(&chunk) {
            Ok(length) => written += length,
            Err(error) => break error,
        }
        assert!(written < 64 << 20, "nobody reads");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 1 << 16];
        let mut total = 0;
        loop {
            match (&server).read(&mut got).unwrap() {
                0 => return total,
                length => total += length,
            }
        }
    });
    drop(client);
    assert_eq!(reading.join().unwrap(), written);
}

#[test]
fn peeking_and_borrowing_take_what_they_say() {
    let (near, far) = stacks();
    let (mut client, server) = streams(&near, &far);
    client.write_all(b"one two").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(server.peek(&mut buffer).unwrap(), 7);
    assert_eq!(server.peek(&mut buffer).unwrap(), 7);
    let taken = server
        .receive_with(|[first, second]| {
            assert_eq!([first, second].concat(), b"one two");
            4
        })
        .unwrap();
    assert_eq!(taken, 4);
    assert_eq!((&server).read(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"two");
    drop(client);
    assert_eq!(server.peek(&mut buffer).unwrap(), 0);
    assert_eq!(server.receive_with(|_| unreachable!()).unwrap(), 0);
}

#[test]
fn a_selector_waits_for_all_kinds_of_sockets() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let datagrams = UdpSocket::bind(&far, at(FAR4, PORT)).unwrap();
    let selector = Selector::new(&far).unwrap();
    selector.add(&listener, 1, Interest::READABLE).unwrap();
    selector.add(&datagrams, 2, Interest::READABLE).unwrap();
    let again = selector.add(&listener, 9, Interest::READABLE).unwrap_err();
    assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
    let of_near = UdpSocket::bind(&near, at(NEAR4, 0)).unwrap();
    assert_eq!(
        selector
            .add(&of_near, 3, Interest::READABLE)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
    let mut events: Vec<Event> = Vec::new();
    let mut wait = |selector: &Selector| {
        selector.wait(&mut events, Some(TIMEOUT)).unwrap();
        events.iter().map(|event| event.token).collect::<Vec<_>>()
    };
    of_near.send_to(b"hello", at(FAR4, PORT)).unwrap();
    assert_eq!(wait(&selector), [2]);
    // Level-triggered: until it was dealt with.
    assert_eq!(wait(&selector), [2]);
    datagrams.set_nonblocking(true).unwrap();
    datagrams.recv_from(&mut [0; 8]).unwrap();
    let connecting = std::thread::spawn(move || TcpStream::connect(&near, at(FAR4, PORT)).unwrap());
    assert_eq!(wait(&selector), [1]);
    let (server, _) = listener.accept().unwrap();
    let mut client = connecting.join().unwrap();
    selector.add(&server, 4, Interest::READABLE).unwrap();
    client.write_all(b"question").unwrap();
    assert_eq!(wait(&selector), [4]);
    assert_eq!((&server).read(&mut [0; 16]).unwrap(), 8);
    selector
        .modify(&server, 5, Interest::READABLE | Interest::WRITABLE)
        .unwrap();
    assert_eq!(wait(&selector), [5]);
    selector.modify(&server, 6, Interest::NONE).unwrap();
    let mut none = Vec::new();
    let short = Some(Duration::from_millis(5));
    assert_eq!(selector.wait(&mut none, short).unwrap(), 0);
    selector.remove(&server).unwrap();
    assert_eq!(
        selector.remove(&server).unwrap_err().raw_os_error(),
        Some(libc::ENOENT)
    );
}

#[test]
fn threads_of_one_stack_do_not_wait_for_each_other() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let (near, far_snapshot) = (&near, &far);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for stream in listener.incoming().take(8) {
                let stream = stream.unwrap();
                scope.spawn(move || {
                    let mut buffer = [0; 512];
                    while let Ok(length) = (&stream).read(&mut buffer) {
                        if length == 0 {
                            return;
                        }
                        (&stream).write_all(&buffer[..length]).unwrap();
                    }
                });
            }
        });
        for number in 0..8u8 {
            scope.spawn(move || {
                let stream = TcpStream::connect(near, at(FAR4, PORT)).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                for turn in 0..100u8 {
                    let sent = [number ^ turn; 200];
                    (&stream).write_all(&sent).unwrap();
                    let mut back = [0; 200];
                    (&stream).read_exact(&mut back).unwrap();
                    assert_eq!(back, sent);
                }
            });
        }
    });
    let counters = far_snapshot.snapshot().tcp.counters;
    assert_eq!(counters["accepted"], 8);
}

#[test]
fn a_listener_that_nobody_accepts_from_completes_handshakes() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let mut client = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
    client.write_all(b"early").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut buffer = [0; 8];
    assert_eq!(server.read(&mut buffer).unwrap(), 5);
}

#[test]
fn streams_outlive_their_selector() {
    let (near, far) = stacks();
    let (mut client, mut server) = streams(&near, &far);
    let selector = Selector::new(&far).unwrap();
    selector.add(&server, 1, Interest::READABLE).unwrap();
    drop(selector);
    client.write_all(b"one").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(server.read(&mut buffer).unwrap(), 3);
    let selector = Selector::new(&far).unwrap();
    selector.add(&server, 2, Interest::READABLE).unwrap();
    client.write_all(b"two").unwrap();
    let mut events = Vec::new();
    selector.wait(&mut events, Some(TIMEOUT)).unwrap();
    assert_eq!(events[0].token, 2);
}

/// A thread that sleeps on the device does not know of the timers that others arm
/// meanwhile.
#[test]
fn what_is_lost_is_sent_again_while_another_thread_leads() {
    let (near, far) = stacks_with(LinkConfig {
        seed: 3,
        a_to_b: Impairments {
            loss: 0.25,
            ..Impairments::default()
        },
        ..LinkConfig::default()
    });
    let (client, mut server) = streams(&near, &far);
    client.set_nodelay(true).unwrap();
    let leading = UdpSocket::bind(&near, at(NEAR4, PORT)).unwrap();
    let leader = std::thread::spawn(move || leading.recv(&mut [0; 8]).unwrap());
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 8];
        while server.read(&mut buffer).unwrap() > 0 {
            server.write_all(&buffer[..1]).unwrap();
        }
    });
    for turn in 0..15 {
        (&client).write_all(&[turn]).unwrap();
        let mut back = [0];
        (&client).read_exact(&mut back).unwrap();
        assert_eq!(back, [turn]);
    }
    assert!(client.info().unwrap().retransmissions > 0);
    drop(client);
    echo.join().unwrap();
    let socket = UdpSocket::bind(&far, at(FAR4, PORT)).unwrap();
    socket.send_to(b"end", at(NEAR4, PORT)).unwrap();
    assert_eq!(leader.join().unwrap(), 3);
}

#[test]
fn a_file_is_sent_from_the_page_cache() {
    let (near, far) = stacks();
    let (client, mut server) = streams(&near, &far);
    let bytes = pattern(3 << 20);
    let path = std::env::temp_dir().join(format!("tidewall-file-{}", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        received
    });
    let start = 17;
    let (mut sent, mut full) = (0, 0);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // Beyond the end, too.
        let at = (start + sent) as u64;
        match client.send_file(&file, at, 100_000, true) {
            Ok(0) => break,
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                assert!(Instant::now() < deadline, "{sent} bytes taken");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(sent, bytes.len() - start);
    assert!(full > 0, "the send buffer held all of it");
    // A pipe has no offset, so the caller reads it.
    let (pipe, _write) = std::io::pipe().unwrap();
    let refused = client.send_file(&pipe, 0, 10, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(reader.join().unwrap(), bytes[start..]);
    assert_eq!(
        client.send_file(&file, 0, 10, false).unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
}
