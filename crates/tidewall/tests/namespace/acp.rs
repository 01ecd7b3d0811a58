//! Connections of frames between a stack and ends over the kernel's TCP.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener as KernelListener, TcpStream as KernelTcp};
use std::thread;
use std::time::Duration;

use tidewall::tcp::{Framing, StreamOptions};
use tidewall::{AcpListener, AcpStream, ConnectOptions, ListenOptions};
use tidewall_acp::FrameStream;
use tidewall_wire::acp::Frames;
use tidewall_wire::{ipv4, tcp};

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const COUNT: usize = 2000;

fn unconfirmed() -> StreamOptions {
    StreamOptions {
        framing: Framing::AcpUnconfirmed,
        // All that is sent, however late it is read: Linux probes a window that is too
        // small for a frame with a part of it.
        receive_buffer: Some(4 << 20),
        ..StreamOptions::default()
    }
}

/// Returns a frame; lengths cover all that fit both ends' segments, and zero.
fn frame(at: usize) -> Vec<u8> {
    vec![at as u8; at * 397 % 1400]
}

fn exchange_with_stack(end: &AcpStream) {
    end.stream().set_read_timeout(Some(TIMEOUT)).unwrap();
    end.stream().set_write_timeout(Some(TIMEOUT)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..COUNT {
                end.send(&frame(at)).unwrap();
            }
            end.stream().shutdown(Shutdown::Write).unwrap();
        });
        let mut buffer = [0; 1500];
        for at in 0..COUNT {
            let received = end.receive(&mut buffer).unwrap().unwrap();
            assert_eq!(buffer[..received.length], frame(at)[..], "{at}");
        }
        assert_eq!(end.receive(&mut buffer).unwrap(), None);
    });
}

fn exchange_with_kernel(end: FrameStream) {
    end.socket().set_read_timeout(Some(TIMEOUT)).unwrap();
    end.socket().set_write_timeout(Some(TIMEOUT)).unwrap();
    assert!(end.frame_max().unwrap() >= 1400, "{:?}", end.frame_max());
    let (mut reader, mut writer) = end.split();
    let sending = thread::spawn(move || {
        for at in 0..COUNT {
            writer.send(&frame(at)).unwrap();
        }
        writer.get_ref().shutdown(Shutdown::Write).unwrap();
    });
    for at in 0..COUNT {
        let received = reader.receive().unwrap().unwrap();
        assert_eq!(received, frame(at), "{at}");
    }
    assert_eq!(reader.receive().unwrap(), None);
    sending.join().unwrap();
}

/// Every segment in a capture holds whole frames. Returns how many held any.
fn segments_of_whole_frames(packets: &Packets) -> usize {
    let mut segments = 0;
    while let Some(frame) = packets.receive() {
        let Some(packet) = frame.get(14..).and_then(|it| ipv4::Packet::new(it).ok()) else {
            continue;
        };
        let Ok(segment) = tcp::Packet::new(packet.payload()) else {
            continue;
        };
        let fault = Frames::new(segment.payload()).find_map(Result::err);
        assert_eq!(fault, None, "{:?}", segment.header());
        segments += usize::from(!segment.payload().is_empty());
    }
    segments
}

pub fn kernel_ends_exchange_frames_with_a_stack() {
    // As an operator would where a switch lies on the way.
    let peer = peer_namespace();
    shell(&format!(
        "ip netns exec {peer} ethtool -K {PEER} tso off gso off gro off >/dev/null"
    ));
    let stack = stack();
    let index = peer_index();
    let packets = in_peer(move || Packets::open(index).unwrap());
    let packets = packets.hold(64 << 20).unwrap();
    let options = ListenOptions {
        stream: unconfirmed(),
        ..ListenOptions::default()
    };
    let listener = AcpListener::bind_with(&stack, at(HERE4, SERVICE), options).unwrap();
    let client = spawn_in_peer(|| {
        exchange_with_kernel(FrameStream::connect(at(HERE4, SERVICE), None).unwrap());
    });
    let (accepted, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), IpAddr::from(PEER4));
    exchange_with_stack(&accepted);
    client.join().unwrap();
    // The other way round.
    let kernel = in_peer(|| KernelListener::bind(at(PEER4, SERVICE + 1)).unwrap());
    let server = thread::spawn(move || {
        exchange_with_kernel(FrameStream::new(kernel.accept().unwrap().0).unwrap());
    });
    let options = ConnectOptions {
        stream: unconfirmed(),
        ..ConnectOptions::default()
    };
    let connected = AcpStream::connect_with(&stack, at(PEER4, SERVICE + 1), &options).unwrap();
    exchange_with_stack(&connected);
    server.join().unwrap();
    let segments = segments_of_whole_frames(&packets);
    assert!(segments >= 2 * COUNT, "{segments} segments were seen");
}

pub fn who_must_confirm_refuses_kernel_ends() {
    let stack = stack();
    let listener = AcpListener::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    listener.listener().set_nonblocking(true).unwrap();
    let refused = spawn_in_peer(|| KernelTcp::connect(at(HERE4, SERVICE)).err());
    // The listener's protocol runs in the thread that accepts.
    assert!(wait_until(|| {
        let nobody = listener.accept().err().map(|error| error.kind());
        assert_eq!(nobody, Some(ErrorKind::WouldBlock));
        refused.is_finished()
    }));
    let refused = refused.join().unwrap().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    // A peer on this host is the kernel's, which accepts it before any listener is asked.
    let mut local = KernelTcp::connect((Ipv4Addr::LOCALHOST, SERVICE)).unwrap();
    local.set_read_timeout(Some(TIMEOUT)).unwrap();
    let reading = thread::spawn(move || local.read(&mut [0]).map_err(|error| error.kind()));
    assert!(wait_until(|| {
        let nobody = listener.accept().err().map(|error| error.kind());
        assert_eq!(nobody, Some(ErrorKind::WouldBlock));
        reading.is_finished()
    }));
    assert_eq!(reading.join().unwrap(), Err(ErrorKind::ConnectionReset));
    // Nor does one that is reached by the kernel only become one of frames.
    let local = AcpStream::connect(&stack, at(Ipv4Addr::LOCALHOST, SERVICE)).err();
    let errno = local.and_then(|error| error.raw_os_error());
    assert_eq!(errno, Some(libc::EPROTONOSUPPORT));
}
