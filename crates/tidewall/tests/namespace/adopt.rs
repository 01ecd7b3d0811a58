//! Sockets that a program has made with the kernel, as those of a stack.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream,
    UdpSocket as KernelSocket,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, bind as bind_in_kernel, socket};

use tidewall::readiness::{Events, PollFd};
use tidewall::{ConnectOptions, Descriptors, ListenOptions, TcpListener, TcpStream, UdpSocket};

use super::support::*;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Duplicates a socket that a program gives away, and keeps.
fn copy(socket: impl AsFd) -> OwnedFd {
    socket.as_fd().try_clone_to_owned().unwrap()
}

fn errno<T>(result: io::Result<T>) -> i32 {
    let error = result.err().expect("refused");
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        _ => error.raw_os_error().unwrap(),
    }
}

fn waits(socket: impl AsFd) -> bool {
    !fcntl_getfl(socket).unwrap().contains(OFlags::NONBLOCK)
}

/// A client in the peer's namespace.
fn client(address: SocketAddr) -> KernelStream {
    let stream = in_peer(move || KernelStream::connect(address).unwrap());
    stream.set_read_timeout(TIMEOUT).unwrap();
    stream
}

/// A question and its answer, both ways.
fn exchange(client: &mut KernelStream, server: &mut (impl Read + Write), text: &[u8]) {
    let mut buffer = vec![0; text.len()];
    client.write_all(text).unwrap();
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(buffer, text);
    server.write_all(text).unwrap();
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(buffer, text);
}

fn a_listener_at(address: SocketAddr, reached_at: SocketAddr) {
    let stack = stack();
    let program = KernelListener::bind(address).unwrap();
    // The kernel's, accepted after.
    let mut before = client(reached_at);
    before.write_all(b"first").unwrap();
    let listener = TcpListener::adopt(&stack, copy(&program), ListenOptions::default()).unwrap();
    assert_eq!(
        listener.local_addr().unwrap(),
        program.local_addr().unwrap()
    );
    // For others that share it, it waits as before.
    assert!(!listener.is_nonblocking() && waits(&program));

    let (mut old, peer) = listener.accept().unwrap();
    assert!(old.kernel_socket().is_some());
    assert_eq!(peer.port(), before.local_addr().unwrap().port());
    old.set_read_timeout(TIMEOUT).unwrap();
    let mut first = [0; 5];
    old.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"first");

    let mut after = client(reached_at);
    let (mut own, _) = listener.accept().unwrap();
    assert!(own.kernel_socket().is_none(), "it came by the stack");
    own.set_read_timeout(TIMEOUT).unwrap();
    // Kernel connections continue beside those of the stack.
    for turn in 0..20u8 {
        exchange(&mut before, &mut old, &[turn; 700]);
        exchange(&mut after, &mut own, &[turn; 700]);
    }
    let port = reached_at.port();
    let loopback = match reached_at {
        SocketAddr::V4(_) => at(Ipv4Addr::LOCALHOST, port),
        SocketAddr::V6(_) => at(Ipv6Addr::LOCALHOST, port),
    };
    if address.ip().is_unspecified() {
        let mut local = KernelStream::connect(loopback).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        exchange(&mut local, &mut accepted, b"by the kernel");
    }

    // Given up, the port is the kernel's again, and the socket as it was.
    // Accepted connections stay.
    drop(listener);
    assert!(waits(&program));
    exchange(&mut after, &mut own, b"still there");
    let mut last = client(reached_at);
    let (mut accepted, _) = program.accept().unwrap();
    exchange(&mut last, &mut accepted, b"the program's own");
}

pub fn a_listener_of_the_kernels_goes_on_by_the_stack() {
    a_listener_at(at(HERE4, SERVICE), at(HERE4, SERVICE));
    a_listener_at(
        at(Ipv4Addr::UNSPECIFIED, SERVICE + 1),
        at(HERE4, SERVICE + 1),
    );
    a_listener_at(
        at(Ipv6Addr::UNSPECIFIED, SERVICE + 2),
        at(HERE6, SERVICE + 2),
    );
    a_listener_at(
        at(Ipv6Addr::UNSPECIFIED, SERVICE + 3),
        at(HERE4, SERVICE + 3),
    );
}

pub fn what_cannot_be_adopted_is_as_before() {
    let stack = stack();
    let adopt = |socket| TcpListener::adopt(&stack, socket, ListenOptions::default()).map(drop);
    let unbound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    assert_eq!(errno(adopt(copy(&unbound))), libc::EINVAL);
    let datagrams = KernelSocket::bind(at(HERE4, SERVICE)).unwrap();
    assert_eq!(errno(adopt(copy(&datagrams))), libc::EPROTONOSUPPORT);
    let listener = KernelListener::bind(at(HERE4, SERVICE)).unwrap();
    let none = ListenOptions {
        backlog: 0,
        ..ListenOptions::default()
    };
    let refused = TcpListener::adopt(&stack, copy(&listener), none);
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::InvalidInput);
    assert!(waits(&listener));

    let adopt = |socket| UdpSocket::adopt(&stack, socket).map(drop);
    let unbound = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    assert_eq!(errno(adopt(unbound)), libc::EINVAL);
    assert_eq!(errno(adopt(copy(&listener))), libc::EPROTONOSUPPORT);
    assert_eq!(stack.snapshot().sockets.len(), 0);
}

pub fn a_datagram_socket_of_the_kernels_goes_on_by_the_stack() {
    let stack = stack();
    for (bound, asked, from) in [
        (at(HERE4, SERVICE), at(HERE4, SERVICE), at(PEER4, 0)),
        (
            at(Ipv6Addr::UNSPECIFIED, SERVICE),
            at(HERE6, SERVICE),
            at(PEER6, 0),
        ),
    ] {
        let program = KernelSocket::bind(bound).unwrap();
        program.set_ttl(33).unwrap();
        let peer = peer_socket(from.ip());
        peer.send_to(b"before", asked).unwrap();
        let mut buffer = [0; 100];
        let (length, _) = program.peek_from(&mut buffer).unwrap();
        assert_eq!(length, 6);

        let adopted = UdpSocket::adopt(&stack, copy(&program)).unwrap();
        adopted.set_read_timeout(TIMEOUT).unwrap();
        assert!(!adopted.is_nonblocking());
        let (length, source) = adopted.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..length], source.port()),
            (&b"before"[..], peer.local_addr().unwrap().port())
        );
        until_it_transmits(&stack, || {
            peer.send_to(b"after", asked).unwrap();
            let (length, source) = adopted.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"after");
            adopted.send_to(b"answer", source).unwrap();
            let (length, source) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], source), (&b"answer"[..], asked));
        });
        let seen = stack.snapshot().sockets[0].clone();
        assert!(seen.received > seen.through_kernel, "{seen:?}");

        drop(adopted);
        peer.send_to(b"last", asked).unwrap();
        let (length, _) = program.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"last");
    }
}

pub fn a_peer_that_the_kernel_knows_is_the_adopted_sockets() {
    let stack = stack();
    let (peer, other) = (peer_socket(PEER4), peer_socket(PEER4));
    let program = KernelSocket::bind(at(HERE4, SERVICE)).unwrap();
    program.connect(peer.local_addr().unwrap()).unwrap();
    program.set_nonblocking(true).unwrap();
    let adopted = UdpSocket::adopt(&stack, copy(&program)).unwrap();
    assert_eq!(adopted.peer_addr().unwrap(), peer.local_addr().unwrap());
    assert!(adopted.is_nonblocking());
    let mut buffer = [0; 100];
    assert_eq!(errno(adopted.recv(&mut buffer)), libc::EAGAIN);
    other.send_to(b"not for it", at(HERE4, SERVICE)).unwrap();
    peer.send_to(b"for it", at(HERE4, SERVICE)).unwrap();
    assert!(wait_until(|| matches!(adopted.recv(&mut buffer), Ok(6))));
    assert_eq!(&buffer[..6], b"for it");
    adopted.send(b"answer").unwrap();
    assert_eq!(peer.recv(&mut buffer).unwrap(), 6);
}

pub fn a_connection_is_from_where_the_kernels_socket_is_bound() {
    let stack = stack();
    let service = in_peer(|| KernelListener::bind(at(PEER4, SERVICE)).unwrap());
    let options = ConnectOptions::default();
    let fresh = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    for bound in [
        Some(at(HERE4, 4567)),
        Some(at(Ipv4Addr::UNSPECIFIED, 4568)),
        None,
    ] {
        let program = fresh();
        if let Some(bound) = bound {
            bind_in_kernel(&program, &bound).unwrap();
        }
        let to = at(PEER4, SERVICE);
        let stream = TcpStream::connect_adopting(&stack, to, copy(&program), &options);
        let stream = stream.unwrap().expect("by the interface");
        let (mut accepted, from) = service.accept().unwrap();
        assert_eq!(from.ip(), HERE4);
        assert!(bound.is_none_or(|bound| bound.port() == from.port()));
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(TIMEOUT).unwrap();
        let mut stream = stream;
        let mut buffer = [0; 5];
        stream.write_all(b"hello").unwrap();
        accepted.read_exact(&mut buffer).unwrap();
        accepted.write_all(b"again").unwrap();
        stream.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"again");
    }
    // Not by the interface: the kernel's, and untouched.
    let program = fresh();
    let local = KernelListener::bind(at(Ipv4Addr::LOCALHOST, SERVICE)).unwrap();
    let to = local.local_addr().unwrap();
    let none = TcpStream::connect_adopting(&stack, to, copy(&program), &options).unwrap();
    assert!(none.is_none());
    rustix::net::connect(&program, &to).unwrap();
}

pub fn the_kernels_numbers_name_adopted_sockets() {
    use std::os::fd::AsRawFd;
    use tidewall::descriptor::Flags;

    let stack = stack();
    let descriptors = Descriptors::new(&stack, i32::MAX as u32);
    let program = KernelListener::bind(at(HERE4, SERVICE)).unwrap();
    let number = program.as_raw_fd();
    assert!(!descriptors.is_open(number));
    let listener = TcpListener::adopt(&stack, copy(&program), ListenOptions::default()).unwrap();
    descriptors.install(number, listener, Flags::NONE).unwrap();
    assert!(descriptors.is_open(number));
    let mut client = client(at(HERE4, SERVICE));
    let mut asked = [PollFd::new(number, Events::IN)];
    assert_eq!(descriptors.poll(&mut asked, TIMEOUT).unwrap(), 1);

    // An accepted connection's number is one that the kernel gives for it.
    let place = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let connection = place.as_raw_fd();
    let (accepted, _) = descriptors.file(number).unwrap().accept().unwrap();
    descriptors
        .install(connection, accepted, Flags::NONE)
        .unwrap();
    client.write_all(b"hello").unwrap();
    let mut buffer = [0; 5];
    assert_eq!(descriptors.read(connection, &mut buffer).unwrap(), 5);
    // A process that uses it as a kernel socket gets an error.
    assert_eq!(
        rustix::io::read(&place, &mut buffer),
        Err(rustix::io::Errno::INVAL)
    );
    descriptors.close(connection).unwrap();
    drop(place);
    assert_eq!(client.read(&mut buffer).unwrap(), 0);
    descriptors.close(number).unwrap();
    assert!(descriptors.is_empty());
}

/// Requests/s of a client that asks for one answer after the other.
fn requests_per_second(client: &mut KernelStream, server: &mut TcpStream, requests: u32) -> f64 {
    client.set_nodelay(true).unwrap();
    let mut text = [7; 100];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 100];
            for _ in 0..requests {
                server.read_exact(&mut buffer).unwrap();
                server.write_all(&buffer).unwrap();
            }
        });
        let began = std::time::Instant::now();
        for _ in 0..requests {
            client.write_all(&text).unwrap();
            client.read_exact(&mut text).unwrap();
        }
        f64::from(requests) / began.elapsed().as_secs_f64()
    })
}

pub fn connections_that_the_kernel_had_lose_no_segment() {
    const REQUESTS: u32 = 3_000;
    let stack = stack();
    let program = KernelListener::bind(at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let mut before = client(at(HERE4, SERVICE));
    let mut reset = client(at(HERE6, SERVICE));
    let listener = TcpListener::adopt(&stack, copy(&program), ListenOptions::default()).unwrap();
    let (mut old, _) = listener.accept().unwrap();
    let (mut to_reset, _) = listener.accept().unwrap();
    let mut after = client(at(HERE4, SERVICE));
    let (mut own, _) = listener.accept().unwrap();
    assert!(old.kernel_socket().is_some() && own.kernel_socket().is_none());

    let rates = [
        requests_per_second(&mut before, &mut old, REQUESTS),
        requests_per_second(&mut after, &mut own, REQUESTS),
    ];
    println!(
        "requests/s of connections made before the first accept {:.0}, after it {:.0}",
        rates[0], rates[1]
    );
    // Both ways at once, more than any bucket holds.
    let bytes: Vec<u8> = (0..8 << 20).map(|n| (n * 11 + n / 239) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| (&before).write_all(&bytes).unwrap());
        scope.spawn(|| (&old).write_all(&bytes).unwrap());
        let mut back = vec![0; bytes.len()];
        (&old).read_exact(&mut back).unwrap();
        assert!(back == bytes);
        (&before).read_exact(&mut back).unwrap();
        assert!(back == bytes);
    });
    let dropped: u64 = stack
        .snapshot()
        .queues
        .iter()
        .flat_map(|queue| queue.kernel.values())
        .map(|(_, dropped)| dropped)
        .sum();
    assert_eq!(dropped, 0, "segments of the kernel's connections");

    // Its resets reach the kernel, too.
    set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    reset.write_all(b"x").unwrap();
    to_reset.set_read_timeout(TIMEOUT).unwrap();
    to_reset.read_exact(&mut [0]).unwrap();
    drop(reset);
    assert_eq!(errno(to_reset.read(&mut [0])), libc::ECONNRESET);
}
