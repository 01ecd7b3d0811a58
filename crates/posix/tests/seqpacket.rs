//! SOCK_SEQPACKET over TCP (ACP) between two stacks in memory, through the C interface.

mod processes;

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::thread;

use libc::{AF_INET, MSG_EOR, MSG_PEEK, MSG_TRUNC, SOCK_NONBLOCK, SOCK_SEQPACKET, SOCK_STREAM};
use processes::{SERVER, processes};
use tidewall::readiness::Events;
use tidewall_posix::{Errno, PollFd, Posix, Received};

const PORT: u16 = 84;

/// Milliseconds after which a poll here has failed.
const TIMEOUT: i32 = 10_000;

fn receive(posix: &Posix, fd: i32, room: usize, flags: i32) -> (usize, i32, Vec<u8>) {
    let mut buffer = vec![0; room];
    let Received { bytes, flags, .. } = posix
        .recvmsg(fd, &mut [IoSliceMut::new(&mut buffer)], flags)
        .unwrap();
    buffer.truncate(bytes);
    (bytes, flags, buffer)
}

#[test]
fn a_call_is_a_frame_and_its_end_is_marked() {
    let (client, server) = processes();
    let listener = server.socket(AF_INET, SOCK_SEQPACKET, 0).unwrap();
    server
        .bind(listener, SocketAddr::from((SERVER, PORT)))
        .unwrap();
    server.listen(listener, 1).unwrap();
    let fd = client
        .socket(AF_INET, SOCK_SEQPACKET, libc::IPPROTO_TCP)
        .unwrap();
    let accepted = thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept4(listener, SOCK_NONBLOCK).unwrap().0);
        client
            .connect(fd, SocketAddr::from((SERVER, PORT)))
            .unwrap();
        accepting.join().unwrap()
    });
    let readable = |wait| {
        let mut polled = [PollFd::new(accepted, Events::IN)];
        server.poll(&mut polled, wait).unwrap() == 1
    };
    assert!(!readable(0));
    let nothing = server.recv(accepted, &mut [0; 10], 0);
    assert_eq!(nothing, Err(Errno(libc::EAGAIN)));
    client.send(fd, b"a frame", 0).unwrap();
    client.send(fd, b"", 0).unwrap();
    client.send(fd, b"cut", 0).unwrap();
    let pieces = [IoSlice::new(b"in "), IoSlice::new(b"pieces")];
    assert_eq!(client.sendmsg(fd, &pieces, 0, None), Ok(9));
    let long = vec![7; 1457];
    assert_eq!(client.send(fd, &long, 0), Err(Errno(libc::EMSGSIZE)));
    client.shutdown(fd, libc::SHUT_WR).unwrap();
    assert!(readable(TIMEOUT));
    let of = |text: &[u8], flags| (text.len(), flags, text.to_vec());
    assert_eq!(
        receive(&server, accepted, 10, MSG_PEEK),
        of(b"a frame", MSG_EOR)
    );
    assert_eq!(receive(&server, accepted, 10, 0), of(b"a frame", MSG_EOR));
    // Waits for each: they arrive one by one.
    let next = |room, flags| {
        assert!(readable(TIMEOUT));
        receive(&server, accepted, room, flags)
    };
    assert_eq!(next(10, 0), of(b"", MSG_EOR));
    let (bytes, flags, buffer) = next(1, MSG_TRUNC);
    assert_eq!(
        (bytes, flags, &buffer[..]),
        (3, MSG_EOR | MSG_TRUNC, &b"c"[..])
    );
    assert_eq!(next(10, 0), of(b"in pieces", MSG_EOR));
    // The end of the stream is not a frame.
    assert_eq!(next(10, 0), of(b"", 0));
    assert_eq!(server.send(accepted, b"still open", 0), Ok(10));
    assert_eq!(receive(&client, fd, 20, 0), of(b"still open", MSG_EOR));
}

#[test]
fn a_stream_does_not_meet_frames() {
    let (client, server) = processes();
    let listener = server.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    server
        .bind(listener, SocketAddr::from((SERVER, PORT)))
        .unwrap();
    server.listen(listener, 1).unwrap();
    let fd = client.socket(AF_INET, SOCK_SEQPACKET, 0).unwrap();
    let refused = client.connect(fd, SocketAddr::from((SERVER, PORT)));
    assert_eq!(refused, Err(Errno(libc::EPROTONOSUPPORT)));
    // Such sockets support no other protocol.
    let other = client.socket(AF_INET, SOCK_SEQPACKET, libc::IPPROTO_UDP);
    assert_eq!(other, Err(Errno(libc::EPROTONOSUPPORT)));
}
