//! Sockets by number: what the numbers are, what calls on them give, and what
//! becomes of a file whose number is closed.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidewall::descriptor::{
    Allocator, Descriptors, Flags, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL,
    OpenFile,
};
use tidewall::{BindOptions, ListenOptions, Stack, TcpListener, TcpStream, UdpSocket};

use super::support::{FAR4, NEAR4, anywhere, at, errno};
use super::tcp::stacks;

const PORT: u16 = 81;
/// Nothing here takes so long.
const TIMEOUT: Duration = Duration::from_secs(10);

fn fails<V: std::fmt::Debug>(result: io::Result<V>) -> i32 {
    errno(result.unwrap_err())
}

/// A connected pair: descriptors at the far end (0 listens, 1 is the
/// connection), and the near stream.
fn connected(near: &Stack, far: &Stack) -> (Descriptors, TcpStream) {
    let descriptors = Descriptors::new(far, 1024);
    let listener = descriptors
        .listen(at(FAR4, PORT), ListenOptions::default(), Flags::NONE)
        .unwrap();
    assert_eq!(listener, 0);
    let theirs = descriptors.clone();
    let accepting = thread::spawn(move || theirs.accept4(listener, Flags::NONE).unwrap());
    let client = TcpStream::connect_timeout(near, &at(FAR4, PORT), TIMEOUT).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (fd, peer) = accepting.join().unwrap();
    assert_eq!(fd, 1);
    assert_eq!(peer, Some(client.local_addr().unwrap()));
    (descriptors, client)
}

/// Waits until a call is inside an open file that has so many descriptors.
fn until_used(file: &Arc<OpenFile>, descriptors: usize) {
    let begin = Instant::now();
    while Arc::strong_count(file) < descriptors + 2 {
        assert!(begin.elapsed() < TIMEOUT, "nobody calls");
        thread::yield_now();
    }
}

fn udp(descriptors: &Descriptors, port: u16) -> i32 {
    descriptors
        .bind(anywhere(port), BindOptions::default(), Flags::NONE)
        .unwrap()
}

#[test]
fn an_echo_by_number() {
    let (near, far) = stacks();
    let (descriptors, mut client) = connected(&near, &far);
    client.write_all(b"hello, world").unwrap();
    let mut begin = [0; 5];
    assert_eq!(descriptors.recv(1, &mut begin, MSG_PEEK).unwrap(), 5);
    assert_eq!(&begin, b"hello");
    let (mut first, mut second) = ([0; 7], [0; 5]);
    let mut pieces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(descriptors.readv(1, &mut pieces).unwrap(), 12);
    assert_eq!((&first, &second), (b"hello, ", b"world"));
    let pieces = [IoSlice::new(b"good"), IoSlice::new(b"bye")];
    assert_eq!(descriptors.writev(1, &pieces).unwrap(), 7);
    let mut back = [0; 7];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"goodbye");
    assert_eq!(descriptors.local_address(1).unwrap(), Some(at(FAR4, PORT)));
    assert_eq!(
        descriptors.peer_address(1).unwrap(),
        Some(client.local_addr().unwrap())
    );
    descriptors.shutdown(1, Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut back).unwrap(), 0);
    assert_eq!(fails(descriptors.write(1, b"x")), libc::EPIPE);
    assert!(descriptors.take_error(1).unwrap().is_none());
    drop(client);
    assert_eq!(descriptors.read(1, &mut back).unwrap(), 0);
}

#[test]
fn flags_of_one_call() {
    let (near, far) = stacks();
    let (descriptors, mut client) = connected(&near, &far);
    let mut buffer = [0; 8];
    let recv = |buffer: &mut [u8], flags| descriptors.recv(1, buffer, flags);
    assert_eq!(fails(recv(&mut buffer, MSG_DONTWAIT)), libc::EAGAIN);
    assert_eq!(
        fails(recv(&mut buffer, MSG_DONTWAIT | MSG_PEEK)),
        libc::EAGAIN
    );
    assert_eq!(
        fails(recv(&mut buffer, MSG_DONTWAIT | MSG_WAITALL)),
        libc::EAGAIN
    );
    assert_eq!(fails(recv(&mut buffer, libc::MSG_OOB)), libc::EOPNOTSUPP);
    assert!(!descriptors.is_nonblocking(1).unwrap());
    let writer = thread::spawn(move || {
        for piece in [b"ab", b"cd", b"ef", b"gh"] {
            client.write_all(piece).unwrap();
        }
        client
    });
    assert_eq!(recv(&mut buffer, MSG_WAITALL).unwrap(), 8);
    assert_eq!(&buffer, b"abcdefgh");
    let mut client = writer.join().unwrap();
    client.write_all(b"end").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv(&mut buffer, MSG_WAITALL).unwrap(), 3);
    // More than the peer's window and our buffer take is not waited for.
    let much = vec![0; 64 << 20];
    let sent = descriptors
        .send(1, &much, MSG_DONTWAIT | MSG_NOSIGNAL)
        .unwrap();
    assert!(sent < much.len());
    assert_eq!(
        fails(descriptors.send(1, b"x", libc::MSG_OOB)),
        libc::EOPNOTSUPP
    );
}

#[test]
fn datagrams_by_number() {
    let (near, far) = stacks();
    let descriptors = Descriptors::new(&far, 16);
    let fd = udp(&descriptors, PORT);
    let client = UdpSocket::bind(&near, at(NEAR4, 0)).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(
        fails(descriptors.recv(fd, &mut buffer, MSG_DONTWAIT)),
        libc::EAGAIN
    );
    for _ in 0..3 {
        client.send_to(b"datagram", at(FAR4, PORT)).unwrap();
    }
    let from = client.local_addr().unwrap();
    for (flags, length) in [(MSG_PEEK, 4), (MSG_PEEK | MSG_TRUNC, 8), (MSG_PEEK, 4)] {
        let peeked = descriptors.recvfrom(fd, &mut buffer, flags).unwrap();
        assert_eq!((peeked, &buffer), ((length, Some(from)), b"data"));
    }
    // Cut to the buffer; its whole length for who asks; over several buffers.
    assert_eq!(
        descriptors.recvfrom(fd, &mut buffer, 0).unwrap(),
        (4, Some(from))
    );
    assert_eq!(&buffer, b"data");
    assert_eq!(descriptors.recv(fd, &mut buffer, MSG_TRUNC).unwrap(), 8);
    let mut rest = [0; 9];
    let mut pieces = [IoSliceMut::new(&mut buffer), IoSliceMut::new(&mut rest)];
    assert_eq!(descriptors.readv(fd, &mut pieces).unwrap(), 8);
    assert_eq!(&rest, b"gram\0\0\0\0\0");
    assert_eq!(descriptors.sendto(fd, b"back", 0, from).unwrap(), 4);
    assert_eq!(client.recv(&mut buffer).unwrap(), 4);
    assert_eq!(fails(descriptors.write(fd, b"x")), libc::EDESTADDRREQ);
    descriptors.connect_to(fd, from).unwrap();
    let pieces = [IoSlice::new(b"pie"), IoSlice::new(b"ce")];
    assert_eq!(descriptors.writev(fd, &pieces).unwrap(), 5);
    assert_eq!(client.recv(&mut rest).unwrap(), 5);
    assert_eq!(&rest[..5], b"piece");
}

/// Every call that does not wait, with its error if it fails.
fn errors(descriptors: &Descriptors, fd: i32) -> Vec<(&'static str, Option<i32>)> {
    fn failure<V>(result: io::Result<V>) -> Option<i32> {
        result.err().map(errno)
    }
    let mut buffer = [0; 4];
    vec![
        ("read", failure(descriptors.read(fd, &mut buffer))),
        ("recv", failure(descriptors.recv(fd, &mut buffer, 0))),
        ("write", failure(descriptors.send(fd, b"x", MSG_NOSIGNAL))),
        ("accept", failure(descriptors.accept4(fd, Flags::NONE))),
        ("local", failure(descriptors.local_address(fd))),
        ("peer", failure(descriptors.peer_address(fd))),
        ("error", failure(descriptors.take_error(fd))),
        (
            "many pieces",
            failure(descriptors.writev(fd, &[IoSlice::new(b"x"); 1025])),
        ),
        ("status", failure(descriptors.is_nonblocking(fd))),
        ("flag", failure(descriptors.close_on_exec(fd))),
    ]
}

#[test]
fn errors_are_those_of_the_kernels_sockets() {
    let (near, far) = stacks();
    let (descriptors, _client) = connected(&near, &far);
    let kernel_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kernel_listener.local_addr().unwrap();
    let kernel_client = std::net::TcpStream::connect(address).unwrap();
    let (kernel_server, _) = kernel_listener.accept().unwrap();
    let kernel_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let ours = [0, 1, udp(&descriptors, PORT)];
    let theirs = [
        OwnedFd::from(kernel_listener),
        OwnedFd::from(kernel_server),
        OwnedFd::from(kernel_udp),
    ]
    .map(|fd| descriptors.open(fd, Flags::NONE).unwrap());
    for (ours, theirs) in ours.into_iter().zip(theirs) {
        for fd in [ours, theirs] {
            descriptors.set_nonblocking(fd, true).unwrap();
        }
        let (here, there) = (errors(&descriptors, ours), errors(&descriptors, theirs));
        assert_eq!(here, there, "descriptors {ours} and {theirs}");
    }
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    for fd in [ours[0], theirs[0], ours[1], theirs[1]] {
        assert_eq!(fails(descriptors.connect_to(fd, nowhere)), libc::EISCONN);
    }
    // Halves of what is not connected.
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        let [here, there] = [ours[2], theirs[2]].map(|fd| fails(descriptors.shutdown(fd, how)));
        assert_eq!(here, there);
        assert_eq!(here, libc::ENOTCONN);
    }
    // Descriptors that are not open.
    for fd in [-1, 100, i32::MAX] {
        for (call, error) in errors(&descriptors, fd) {
            assert_eq!(error, Some(libc::EBADF), "{call} of {fd}");
        }
    }
    drop(kernel_client);
}

#[test]
fn the_kernels_descriptors_are_read_and_written_too() {
    let (_, far) = stacks();
    let descriptors = Descriptors::new(&far, 16);
    let (here, there) = UnixStream::pair().unwrap();
    let [here, there] = [here, there].map(|end| {
        descriptors
            .open(OwnedFd::from(end), Flags::NONBLOCK | Flags::CLOEXEC)
            .unwrap()
    });
    assert!(descriptors.is_nonblocking(here).unwrap());
    let mut buffer = [0; 8];
    assert_eq!(fails(descriptors.read(here, &mut buffer)), libc::EAGAIN);
    assert_eq!(descriptors.write(there, b"abc").unwrap(), 3);
    assert_eq!(descriptors.recv(here, &mut buffer, MSG_PEEK).unwrap(), 3);
    assert_eq!(descriptors.read(here, &mut buffer).unwrap(), 3);
    assert_eq!(descriptors.peer_address(here).unwrap(), None);
    descriptors.shutdown(there, Shutdown::Write).unwrap();
    assert_eq!(descriptors.read(here, &mut buffer).unwrap(), 0);
    // A kernel listener accepts kernel connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = descriptors
        .open(OwnedFd::from(listener), Flags::NONE)
        .unwrap();
    let client = std::net::TcpStream::connect(address).unwrap();
    let (accepted, peer) = descriptors.accept4(listener, Flags::NONBLOCK).unwrap();
    assert_eq!(peer, Some(client.local_addr().unwrap()));
    assert_eq!(fails(descriptors.read(accepted, &mut buffer)), libc::EAGAIN);
    // A file that is not a socket.
    let file = std::fs::File::open("/dev/null").unwrap();
    let file = descriptors.open(OwnedFd::from(file), Flags::NONE).unwrap();
    assert_eq!(descriptors.read(file, &mut buffer).unwrap(), 0);
    assert_eq!(
        fails(descriptors.accept4(file, Flags::NONE)),
        libc::ENOTSOCK
    );
    assert_eq!(
        fails(descriptors.recv(file, &mut buffer, 0)),
        libc::ENOTSOCK
    );
    assert_eq!(
        fails(descriptors.shutdown(file, Shutdown::Both)),
        libc::ENOTSOCK
    );
    assert_eq!(fails(descriptors.take_error(file)), libc::ENOTSOCK);
    descriptors.exec();
    assert_eq!(fails(descriptors.read(here, &mut buffer)), libc::EBADF);
    assert!(descriptors.file(file).is_ok());
}

#[test]
fn status_is_the_files_and_close_on_exec_the_numbers() {
    let (near, far) = stacks();
    let (descriptors, _client) = connected(&near, &far);
    let other = descriptors.dup(1).unwrap();
    assert_eq!(other, 2);
    descriptors.set_close_on_exec(other, true).unwrap();
    assert!(!descriptors.close_on_exec(1).unwrap());
    let child = descriptors.fork().unwrap();
    descriptors.set_nonblocking(1, true).unwrap();
    let mut buffer = [0; 4];
    for (table, fd) in [(&descriptors, 1), (&descriptors, other), (&child, other)] {
        assert!(table.is_nonblocking(fd).unwrap());
        assert_eq!(fails(table.read(fd, &mut buffer)), libc::EAGAIN);
    }
    child.exec();
    assert_eq!(fails(child.read(other, &mut buffer)), libc::EBADF);
    assert_eq!(fails(child.read(1, &mut buffer)), libc::EAGAIN);
    // An accepted connection inherits neither.
    assert_eq!(descriptors.dup_from(1, 100, Flags::CLOEXEC).unwrap(), 100);
    assert!(descriptors.close_on_exec(100).unwrap());
    assert_eq!(descriptors.dup3(1, 7, Flags::CLOEXEC).unwrap(), 7);
    descriptors.exec();
    assert_eq!(descriptors.len(), 2);
}

#[test]
fn the_last_close_closes() {
    let (near, far) = stacks();
    let (descriptors, mut client) = connected(&near, &far);
    let other = descriptors.dup(1).unwrap();
    let child = descriptors.fork().unwrap();
    descriptors.close(1).unwrap();
    assert_eq!(fails(descriptors.close(1)), libc::EBADF);
    assert_eq!(descriptors.write(other, b"a").unwrap(), 1);
    descriptors.close_range(0, u32::MAX, 0).unwrap();
    assert!(descriptors.is_empty());
    // The child still listens, and has the connection.
    assert_eq!(child.write(1, b"b").unwrap(), 1);
    let mut buffer = [0; 2];
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"ab");
    child.close(1).unwrap();
    assert_eq!(child.write(other, b"c").unwrap(), 1);
    drop(child);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"c");
    TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
}

#[test]
fn a_call_keeps_its_file_when_the_number_is_closed_and_reused() {
    let (near, far) = stacks();
    let (descriptors, mut client) = connected(&near, &far);
    let file = descriptors.file(1).unwrap();
    let theirs = descriptors.clone();
    let reader = thread::spawn(move || {
        let mut buffer = [0; 16];
        let length = theirs.read(1, &mut buffer).unwrap();
        buffer[..length].to_vec()
    });
    until_used(&file, 1);
    drop(file);
    descriptors.close(1).unwrap();
    // The number is another file's now; what is written there is not read.
    let (here, mut there) = UnixStream::pair().unwrap();
    assert_eq!(
        descriptors.open(OwnedFd::from(here), Flags::NONE).unwrap(),
        1
    );
    there.write_all(b"new").unwrap();
    client.write_all(b"old").unwrap();
    assert_eq!(reader.join().unwrap(), b"old");
    // The call has returned, and the connection ended with it.
    let mut buffer = [0; 16];
    assert_eq!(client.read(&mut buffer).unwrap(), 0);
    assert_eq!(descriptors.read(1, &mut buffer).unwrap(), 3);
}

#[test]
fn a_replaced_file_ends_and_a_blocked_accept_goes_on() {
    let (near, far) = stacks();
    let (descriptors, mut client) = connected(&near, &far);
    let listener = descriptors.file(0).unwrap();
    let theirs = descriptors.clone();
    let accepting = thread::spawn(move || theirs.accept4(0, Flags::NONE));
    // Once it has the listener and a number to give.
    until_used(&listener, 1);
    let begin = Instant::now();
    while descriptors.len() < 3 {
        assert!(begin.elapsed() < TIMEOUT, "nobody accepts");
        thread::yield_now();
    }
    // While it waits its number is taken, as on Linux.
    assert_eq!(fails(descriptors.dup2(1, 2)), libc::EBUSY);
    assert_eq!(fails(descriptors.close(2)), libc::EBADF);
    assert_eq!(descriptors.dup(1).unwrap(), 3);
    assert_eq!(descriptors.dup2(3, 0).unwrap(), 0);
    drop(listener);
    let second = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
    let (fd, peer) = accepting.join().unwrap().unwrap();
    assert_eq!((fd, peer), (2, Some(second.local_addr().unwrap())));
    // The port is free: the call that listened has returned.
    TcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    // Three numbers, one connection.
    for fd in [0, 1] {
        descriptors.close(fd).unwrap();
    }
    descriptors.write(3, b"x").unwrap();
    assert_eq!(descriptors.dup2(2, 3).unwrap(), 3);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"x");
}

#[test]
fn emfile_loses_no_connection() {
    for allocator in [Allocator::Bitmap, Allocator::Linear] {
        let (near, far) = stacks();
        let descriptors = Descriptors::with_allocator(&far, 1, allocator);
        let listen = || descriptors.listen(at(FAR4, PORT), ListenOptions::default(), Flags::NONE);
        assert_eq!(listen().unwrap(), 0);
        let client = TcpStream::connect_timeout(&near, &at(FAR4, PORT), TIMEOUT).unwrap();
        assert_eq!(fails(descriptors.accept4(0, Flags::NONE)), libc::EMFILE);
        assert_eq!(
            fails(descriptors.connect(at(NEAR4, PORT), Flags::NONE)),
            libc::EMFILE
        );
        descriptors.set_limit(2);
        assert_eq!(fails(listen()), libc::EADDRINUSE);
        let (fd, peer) = descriptors.accept4(0, Flags::CLOEXEC).unwrap();
        assert_eq!((fd, peer), (1, Some(client.local_addr().unwrap())));
        assert!(descriptors.close_on_exec(1).unwrap());
        assert_eq!(fails(descriptors.dup(1)), libc::EMFILE);
    }
}

#[test]
fn connecting_without_waiting() {
    let (near, far) = stacks();
    let (server, _client) = connected(&near, &far);
    let descriptors = Descriptors::new(&near, 16);
    let fd = descriptors
        .connect(at(FAR4, PORT), Flags::NONBLOCK)
        .unwrap();
    assert!(descriptors.is_nonblocking(fd).unwrap());
    let (accepted, _) = server.accept4(0, Flags::NONE).unwrap();
    let begin = Instant::now();
    while let Err(error) = descriptors.write(fd, b"x") {
        assert_eq!(errno(error), libc::EAGAIN);
        assert!(begin.elapsed() < TIMEOUT);
        thread::yield_now();
    }
    assert!(descriptors.take_error(fd).unwrap().is_none());
    assert_eq!(server.read(accepted, &mut [0; 4]).unwrap(), 1);
    assert_eq!(
        fails(descriptors.connect_to(fd, at(FAR4, PORT))),
        libc::EISCONN
    );
    // One that the peer resets.
    match &*server.file(accepted).unwrap() {
        OpenFile::Stream(stream) => stream.set_linger(Some(Duration::ZERO)).unwrap(),
        other => panic!("{other:?}"),
    }
    server.close(accepted).unwrap();
    let error = loop {
        match descriptors.read(fd, &mut [0; 4]) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break error,
            _ => assert!(begin.elapsed() < TIMEOUT),
        }
    };
    assert_eq!(errno(error), libc::ECONNRESET);
    assert_eq!(
        fails(descriptors.connect(at(FAR4, 0), Flags::NONE)),
        libc::EADDRNOTAVAIL
    );
    assert_eq!(descriptors.len(), 1, "a failed one leaves no number");
}

#[test]
fn a_million_descriptors() {
    let (near, far) = stacks();
    let descriptors = Descriptors::new(&far, 1 << 20);
    let fd = udp(&descriptors, PORT);
    for expected in 1..1 << 20 {
        assert_eq!(descriptors.dup(fd).unwrap(), expected);
    }
    assert_eq!(fails(descriptors.dup(fd)), libc::EMFILE);
    let client = UdpSocket::bind(&near, at(NEAR4, 0)).unwrap();
    for fd in [0, 4095, 262_143, (1 << 20) - 1] {
        client.send_to(b"x", at(FAR4, PORT)).unwrap();
        assert_eq!(descriptors.read(fd, &mut [0; 4]).unwrap(), 1);
    }
    for fd in [1_000_000, 70_000, 5] {
        descriptors.close(fd).unwrap();
    }
    for expected in [5, 70_000, 1_000_000] {
        assert_eq!(descriptors.dup(0).unwrap(), expected);
    }
    let child = descriptors.fork().unwrap();
    drop(descriptors);
    child.close_range(1, u32::MAX, 0).unwrap();
    client.send_to(b"x", at(FAR4, PORT)).unwrap();
    assert_eq!(child.read(0, &mut [0; 4]).unwrap(), 1);
    assert_eq!(child.len(), 1);
}

/// Threads that open, use and close connections by number at once: each gets
/// back what it wrote into its own, never another's.
#[test]
fn numbers_that_are_reused_at_once_never_mix() {
    let (_, far) = stacks();
    let descriptors = Descriptors::new(&far, 256);
    thread::scope(|scope| {
        for thread in 0..3u8 {
            let descriptors = &descriptors;
            scope.spawn(move || {
                for turn in 0..400u32 {
                    let (here, there) = UnixStream::pair().unwrap();
                    let [here, there] = [here, there]
                        .map(|end| descriptors.open(OwnedFd::from(end), Flags::NONE).unwrap());
                    let other = descriptors.dup(here).unwrap();
                    descriptors.close(here).unwrap();
                    let mut sent = [thread; 5];
                    sent[1..].copy_from_slice(&turn.to_be_bytes());
                    assert_eq!(descriptors.write(other, &sent).unwrap(), 5);
                    let mut got = [0; 8];
                    assert_eq!(descriptors.read(there, &mut got).unwrap(), 5);
                    assert_eq!(got[..5], sent);
                    descriptors.close(other).unwrap();
                    assert_eq!(descriptors.read(there, &mut got).unwrap(), 0);
                    descriptors.close(there).unwrap();
                }
            });
        }
    });
    assert!(descriptors.is_empty());
}
