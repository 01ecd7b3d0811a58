//! Message sockets (ACP) between two stacks that run in real time.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use tidewall::descriptor::{Descriptors, Flags, MSG_PEEK, MSG_TRUNC};
use tidewall::readiness::{Events, PollFd};
use tidewall::tcp::{Framing, Interest, ReceivedFrame, StreamOptions};
use tidewall::{
    AcpListener, AcpStream, ConnectOptions, ListenOptions, Selector, Stack, TcpListener, TcpStream,
};
use tidewall_device::memory::{Impairments, LinkConfig};

use super::support::{FAR4, at, errno};
use super::tcp::{TIMEOUT, stacks, stacks_with};

const PORT: u16 = 83;

/// A near connection of frames, and the far one that was accepted.
fn connected(near: &Stack, far: &Stack) -> (AcpStream, AcpStream) {
    let listener = AcpListener::bind(far, at(FAR4, PORT)).unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let client = AcpStream::connect(near, at(FAR4, PORT)).unwrap();
    let server = accepting.join().unwrap();
    for end in [&client, &server] {
        end.stream().set_read_timeout(Some(TIMEOUT)).unwrap();
        end.stream().set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    (client, server)
}

fn whole(length: usize) -> Option<ReceivedFrame> {
    Some(ReceivedFrame {
        length,
        copied: length,
    })
}

/// A byte stream's end that is to be taken for one of ACP, or the other way round.
fn unconfirmed() -> StreamOptions {
    StreamOptions {
        framing: Framing::AcpUnconfirmed,
        ..StreamOptions::default()
    }
}

#[test]
fn a_call_takes_a_frame() {
    let (near, far) = stacks();
    let (client, server) = connected(&near, &far);
    assert!(client.stream().is_framed());
    let most = client.stream().frame_max().unwrap();
    assert_eq!(most, 1500 - 40 - 4);
    client.send(b"first").unwrap();
    client.send(b"").unwrap();
    client.send_more(b"sec").unwrap();
    client
        .send_vectored(&[IoSlice::new(b"thi"), IoSlice::new(b"rd")])
        .unwrap();
    client.send(&vec![7; most]).unwrap();
    assert_eq!(
        errno(client.send(&vec![7; most + 1]).unwrap_err()),
        libc::EMSGSIZE
    );
    let mut buffer = [0; 2000];
    assert_eq!(server.peek(&mut buffer).unwrap(), whole(5));
    assert_eq!(server.receive(&mut buffer).unwrap(), whole(5));
    assert_eq!(&buffer[..5], b"first");
    // An empty frame is none of the end,
    assert_eq!(server.receive(&mut buffer).unwrap(), whole(0));
    // and what does not fit is lost, not left.
    let cut = server.receive(&mut buffer[..2]).unwrap().unwrap();
    assert_eq!((cut.length, cut.copied, &buffer[..2]), (3, 2, &b"se"[..]));
    let mut pieces = [0; 5];
    let (one, two) = pieces.split_at_mut(1);
    let mut buffers = [IoSliceMut::new(one), IoSliceMut::new(two)];
    let frame = server.stream().receive_frame(&mut buffers, 0).unwrap();
    assert_eq!((frame, &pieces), (whole(5), b"third"));
    assert_eq!(server.receive(&mut buffer).unwrap(), whole(most));
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.receive(&mut buffer).unwrap(), None);
    // The other way it is still open.
    server.send(b"back").unwrap();
    assert_eq!((&mut client.stream()).read(&mut buffer).unwrap(), 4);
    drop(server);
    assert_eq!(client.receive(&mut buffer).unwrap(), None);
}

#[test]
fn many_frames_go_both_ways_on_a_link_that_loses_some() {
    let bad = Impairments {
        loss: 0.005,
        duplicate: 0.01,
        ..Impairments::default()
    };
    let (near, far) = stacks_with(LinkConfig {
        a_to_b: bad,
        b_to_a: bad,
        ..LinkConfig::default()
    });
    let (client, server) = connected(&near, &far);
    const COUNT: usize = 1000;
    let frame = |at: usize| vec![at as u8; at * 37 % 1457];
    thread::scope(|scope| {
        for end in [&client, &server] {
            scope.spawn(move || {
                for at in 0..COUNT {
                    end.send(&frame(at)).unwrap();
                }
            });
            scope.spawn(move || {
                let mut buffer = [0; 1500];
                for at in 0..COUNT {
                    let received = end.receive(&mut buffer).unwrap().unwrap();
                    assert_eq!(buffer[..received.length], frame(at)[..], "{at}");
                }
            });
        }
    });
}

#[test]
fn a_nonblocking_end_says_when_it_takes_and_has_a_frame() {
    let (near, far) = stacks();
    let (client, server) = connected(&near, &far);
    client.stream().set_nonblocking(true).unwrap();
    server.stream().set_nonblocking(true).unwrap();
    let mut buffer = [0; 1500];
    let nothing = server.receive(&mut buffer).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    // Written until there is no room, then one by one as there is.
    let frame = [7; 1000];
    let mut sent = 0;
    while client.send(&frame).is_ok() {
        sent += 1;
    }
    let selector = Selector::new(&near).unwrap();
    selector
        .add(client.stream(), 1, Interest::WRITABLE)
        .unwrap();
    let begin = Instant::now();
    let mut received = 0;
    let mut events = Vec::new();
    while received < 3000 {
        match server.receive(&mut buffer) {
            Ok(frame) => {
                assert_eq!(frame, whole(1000));
                received += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
        if events.iter().any(|event| event.writable) && sent < 3000 {
            // Writable is: the longest frame fits.
            client.send(&[7; 1000]).unwrap();
            sent += 1;
        }
        assert!(
            begin.elapsed() < TIMEOUT,
            "{sent} sent, {received} received"
        );
    }
}

#[test]
fn descriptors_name_message_sockets() {
    let (near, far) = stacks();
    let (client, server) = connected(&near, &far);
    let descriptors = Descriptors::new(&far, 16);
    let fd = descriptors.open(server, Flags::NONE).unwrap();
    let readable = |wait| {
        let mut polled = [PollFd::new(fd, Events::IN)];
        let count = descriptors.poll(&mut polled, Some(wait)).unwrap();
        (count, polled[0].returned())
    };
    assert_eq!(readable(Duration::ZERO).0, 0);
    client.send(b"a frame").unwrap();
    client.send(b"another").unwrap();
    assert_eq!(readable(TIMEOUT), (1, Events::IN));
    let mut buffer = [0; 3];
    assert_eq!(descriptors.recv(fd, &mut buffer, MSG_PEEK).unwrap(), 3);
    let length = descriptors.recv(fd, &mut buffer, MSG_TRUNC).unwrap();
    assert_eq!((length, &buffer), (7, b"a f"));
    assert_eq!(descriptors.read(fd, &mut buffer).unwrap(), 3);
    assert_eq!(readable(Duration::ZERO).0, 0);
    assert_eq!(descriptors.write(fd, b"answer").unwrap(), 6);
    let mut answer = [0; 10];
    assert_eq!(client.receive(&mut answer).unwrap(), whole(6));
}

#[test]
fn who_does_not_speak_it_is_refused() {
    let (near, far) = stacks();
    let _frames = AcpListener::bind(&far, at(FAR4, PORT)).unwrap();
    let refused = TcpStream::connect(&near, at(FAR4, PORT)).err().unwrap();
    assert_eq!(errno(refused), libc::ECONNREFUSED);
    // The SYN may have been sent again.
    let dropped = far.snapshot().counters.protocol.get("tcp-not-acp").copied();
    assert!(dropped.is_some_and(|count| count > 0), "{dropped:?}");
    let _stream = TcpListener::bind(&far, at(FAR4, PORT + 1)).unwrap();
    let refused = AcpStream::connect(&near, at(FAR4, PORT + 1)).err().unwrap();
    assert_eq!(errno(refused), libc::EPROTONOSUPPORT);
}

#[test]
fn what_is_no_frame_ends_the_connection_and_is_counted() {
    let (near, far) = stacks();
    let options = ListenOptions {
        stream: unconfirmed(),
        ..ListenOptions::default()
    };
    let listener = AcpListener::bind_with(&far, at(FAR4, PORT), options).unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let mut client = TcpStream::connect(&near, at(FAR4, PORT)).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let server = accepting.join().unwrap();
    server.stream().set_read_timeout(Some(TIMEOUT)).unwrap();
    // A stream that looks like frames is taken for some, however it is cut.
    client.write_all(&[0xac, 0, 0, 2, 1]).unwrap();
    client.write_all(&[2, 0xac, 1, 0, 0]).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(server.receive(&mut buffer).unwrap(), whole(2));
    client.write_all(b"GET / HTTP/1.1").unwrap();
    let broken = server.receive(&mut buffer).unwrap_err();
    assert_eq!(errno(broken), libc::EPROTO);
    let reset = client.read(&mut buffer).unwrap_err();
    assert_eq!(errno(reset), libc::ECONNRESET);
    let counters = far.snapshot().counters.protocol;
    assert_eq!(counters.get("acp-framing"), Some(&1));
}

#[test]
fn options_choose_frames_of_a_plain_socket_too() {
    let (near, far) = stacks();
    let frames = StreamOptions {
        framing: Framing::Acp,
        receive_buffer: Some(1),
        ..StreamOptions::default()
    };
    let options = ListenOptions {
        stream: frames,
        ..ListenOptions::default()
    };
    let listener = TcpListener::bind_with(&far, at(FAR4, PORT), options).unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let connect = ConnectOptions {
        stream: frames,
        ..ConnectOptions::default()
    };
    let client = TcpStream::connect_with(&near, at(FAR4, PORT), &connect).unwrap();
    let server = accepting.join().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(TIMEOUT)).unwrap();
        end.set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    // However small the buffers, the longest frame passes.
    let most = client.frame_max().unwrap();
    let sending = thread::spawn(move || {
        for _ in 0..100 {
            assert_eq!((&client).write(&vec![7; most]).unwrap(), most);
        }
        client
    });
    let mut buffer = [0; 2000];
    for _ in 0..100 {
        assert_eq!((&server).read(&mut buffer).unwrap(), most);
    }
    drop(sending.join().unwrap());
    assert_eq!(server.receive_frame(&mut [], 0).unwrap(), None);
    let wrong = server.receive_with(|_| 0).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Unsupported);
}
