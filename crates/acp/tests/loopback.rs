//! Two ends over the kernel's TCP on loopback.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use tidewall_acp::{FrameStream, limit_segments};
use tidewall_wire::acp::Header;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(10);

fn connected(maximum_segment: Option<u16>) -> (FrameStream, FrameStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    if let Some(bytes) = maximum_segment {
        limit_segments(&listener, bytes).unwrap();
    }
    let address = listener.local_addr().unwrap();
    let client = FrameStream::connect(address, maximum_segment).unwrap();
    let (server, _) = listener.accept().unwrap();
    let server = FrameStream::new(server).unwrap();
    for end in [&client, &server] {
        end.socket().set_read_timeout(Some(TIMEOUT)).unwrap();
        end.socket().set_write_timeout(Some(TIMEOUT)).unwrap();
    }
    (client, server)
}

fn frame(at: usize, most: usize) -> Vec<u8> {
    vec![at as u8; at * 397 % (most + 1)]
}

#[test]
fn frames_go_both_ways_between_threads() {
    const COUNT: usize = 2000;
    let (client, server) = connected(Some(1400));
    let most = client.frame_max().unwrap();
    assert!(most < 1400 && most > 1000, "{most}");
    thread::scope(|scope| {
        for end in [client, server] {
            let (mut reader, mut writer) = end.split();
            scope.spawn(move || {
                for at in 0..COUNT {
                    writer.send(&frame(at, most)).unwrap();
                }
                writer.get_ref().shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                for at in 0..COUNT {
                    let received = reader.receive().unwrap().unwrap();
                    assert_eq!(received, frame(at, most), "{at}");
                }
                assert_eq!(reader.receive().unwrap(), None);
            });
        }
    });
}

#[test]
fn a_frame_is_no_longer_than_a_segment() {
    let (mut client, mut server) = connected(Some(1000));
    let most = client.frame_max().unwrap();
    let error = client.send(&vec![7; most + 1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    client.send(&vec![7; most]).unwrap();
    client.send(b"").unwrap();
    assert_eq!(server.receive().unwrap().unwrap().len(), most);
    assert_eq!(server.receive().unwrap(), Some(&b""[..]));
}

#[test]
fn frames_that_have_their_headers_go_in_one_call() {
    let (client, mut server) = connected(Some(1000));
    let (_reader, mut writer) = client.split();
    let most = writer.frame_max().unwrap();
    let mut frames = Vec::new();
    for at in 0..50 {
        let payload = frame(at, most);
        frames.extend(Header::data(payload.len()).unwrap().bytes());
        frames.extend(payload);
    }
    assert_eq!(writer.send_frames(&frames).unwrap(), frames.len());
    for at in 0..50 {
        assert_eq!(server.receive().unwrap().unwrap(), frame(at, most), "{at}");
    }
    for no_frame in [&b""[..], b"\xac\x00", b"\xac\x00\x00\x09x", b"HTTP"] {
        let error = writer.send_frames(no_frame).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }
}

#[test]
fn a_nonblocking_end_keeps_frames_whole_when_there_is_no_room() {
    let (mut client, mut server) = connected(None);
    client.socket().set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match client.send(&frame(sent, 20_000)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    client.socket().set_nonblocking(false).unwrap();
    let reading = thread::spawn(move || {
        for at in 0..sent {
            assert_eq!(
                server.receive().unwrap().unwrap(),
                frame(at, 20_000),
                "{at}"
            );
        }
        assert_eq!(server.receive().unwrap(), Some(&b"the end"[..]));
        assert_eq!(server.receive().unwrap(), None);
    });
    // The rest of the last frame leaves first.
    client.send(b"the end").unwrap();
    drop(client);
    reading.join().unwrap();
}

#[test]
fn a_peer_that_sends_no_frames_is_found_out() {
    let (client, mut server) = connected(None);
    client.socket().write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let error = server.receive().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(
        error.to_string(),
        "a frame begins with 0x47 and not with 0xac"
    );
}
