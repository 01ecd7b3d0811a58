//! Attacks on TCP over a real link: segments written by hand beside a connection
//! that must not notice.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall::{ListenOptions, Stack, TcpListener, TcpStream};
use tidewall_protocol::tcp::{self, Checksum, FourTuple, Link, Outgoing, State};
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::{Flags, Header, Options, Packet};

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(5);

pub fn link_address(interface: &str) -> MacAddress {
    let script = format!("cat /sys/class/net/{interface}/address");
    let text = if interface == PEER {
        let peer = peer_namespace();
        shell(&format!("ip netns exec {peer} sh -c '{script}'"))
    } else {
        shell(&script)
    };
    text.trim().parse().unwrap()
}

/// An attacker that forges segments of the peer.
struct Forger {
    packets: Packets,
    link: Link,
    flow: FourTuple,
}

impl Forger {
    /// For a connection from `client` to `server`.
    fn new(client: SocketAddr, server: SocketAddr) -> Forger {
        let index = peer_index();
        Forger {
            packets: in_peer(move || Packets::open(index).unwrap()),
            link: Link {
                source_mac: link_address(PEER),
                destination_mac: link_address(HERE),
                hop_limit: 64,
                checksum: Checksum::Software,
            },
            flow: FourTuple {
                local: client,
                remote: server,
            },
        }
    }

    fn send(&self, header: Header, payload: &[u8]) {
        let header = Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            window: 1000,
            ..header
        };
        let outgoing = Outgoing {
            header,
            payload: [payload, &[]],
            segment_size: 1460,
            traffic_class: 0,
        };
        let mut frame = vec![0; 2048];
        let length = tcp::output(&mut frame, &self.link, &self.flow, &outgoing).unwrap();
        self.transmit(&frame[..length]);
    }

    /// Sends a frame, when the link has room for it.
    fn transmit(&self, frame: &[u8]) {
        let end = Instant::now() + TIMEOUT;
        while let Err(error) = self.packets.send(frame) {
            let full = [Some(libc::ENOBUFS), Some(libc::EAGAIN)];
            assert!(full.contains(&error.raw_os_error()), "{error}");
            assert!(Instant::now() < end, "the link takes nothing any more");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Headers of our connection's segments that were captured since the last
    /// call.
    fn captured(&self) -> Vec<Header> {
        let mut found = Vec::new();
        while let Some(frame) = self.packets.receive() {
            let ours = frame.get(6..12) == Some(&self.link.destination_mac.0)
                && frame.get(12..14) == Some(&[8, 0])
                && frame.get(23) == Some(&6);
            if let Some(segment) = frame.get(34..).filter(|_| ours) {
                found.push(Packet::new(segment).unwrap().header());
            }
        }
        found
    }
}

/// Answers that a time has room for, where two a second may leave: one at once, and
/// one for each half second that has begun.
fn answers_allowed(since: Instant) -> usize {
    2 + since.elapsed().as_millis() as usize / 500
}

/// The sequence numbers that the connection expects and sends next.
struct Numbers {
    expected: u32,
    next: u32,
}

/// An echo service on a connection, in a thread that ends with the client.
fn echo(listener: &TcpListener) -> (std::thread::JoinHandle<TcpStream>, Arc<AtomicBool>) {
    let (stream, _) = listener.accept().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match (&stream).read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => (&stream).write_all(&buffer[..length]).unwrap(),
                Err(error) => panic!("the connection broke: {error}"),
            }
        }
        ended.store(true, Ordering::Release);
        stream
    });
    (thread, over)
}

fn exchange(client: &KernelStream, text: &[u8]) {
    let mut stream = client;
    stream.write_all(text).unwrap();
    let mut got = vec![0; text.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, text);
}

struct Bed {
    stack: Stack,
    listener: TcpListener,
    client: KernelStream,
    forger: Forger,
}

impl Bed {
    fn new() -> Bed {
        let stack = stack();
        let listener = TcpListener::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
        let server = at(HERE4, SERVICE);
        let client = in_peer(move || KernelStream::connect_timeout(&server, TIMEOUT).unwrap());
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let forger = Forger::new(client.local_addr().unwrap(), server);
        Bed {
            stack,
            listener,
            client,
            forger,
        }
    }
}

/// Returns the stack's answers to all segments sent so far, and the connection's numbers
/// afterwards. The genuine client's bytes follow on the same path, so that their echo leaves
/// after every answer.
fn answers(bed: &Bed) -> (Vec<Header>, Numbers) {
    const SENTINEL: &[u8] = b"where are we?";
    exchange(&bed.client, SENTINEL);
    let mut found = bed.forger.captured();
    let data = found
        .iter()
        .rposition(|header| header.flags.contains(Flags::PSH));
    let echo = found[data.expect("an echo was seen")];
    // Neither an echo, which may have been repeated, nor an acknowledgment of the
    // sentinel is an answer.
    found.retain(|header| {
        !header.flags.contains(Flags::PSH) && header.acknowledgment != echo.acknowledgment
    });
    let numbers = Numbers {
        expected: echo.acknowledgment,
        next: echo.sequence.wrapping_add(SENTINEL.len() as u32),
    };
    (found, numbers)
}

pub fn blind_segments_do_not_reach_a_connection() {
    let bed = Bed::new();
    let (server, over) = echo(&bed.listener);
    exchange(&bed.client, b"before");
    let mut numbers = answers(&bed).1;
    for (what, flags, payload) in [
        ("RST", Flags::RST, &b""[..]),
        ("RST|ACK", Flags::RST | Flags::ACK, b""),
        ("SYN", Flags::SYN, b""),
        ("SYN|ACK", Flags::SYN | Flags::ACK, b""),
        ("data", Flags::ACK | Flags::PSH, b"evil bytes"),
        ("FIN", Flags::ACK | Flags::FIN, b""),
    ] {
        let Numbers { expected, next } = numbers;
        let start = Instant::now();
        for guess in 0..400u32 {
            // Some within the window, some anywhere; never the exact number.
            let offset = match guess % 2 {
                0 => 1 + guess * 100,
                _ => guess.wrapping_mul(10_737_418) | 1,
            };
            let blind = flags.contains(Flags::ACK) && !flags.intersects(Flags::RST | Flags::SYN);
            bed.forger.send(
                Header {
                    sequence: expected.wrapping_add(offset),
                    // A blind attacker does not know what the connection sent.
                    acknowledgment: if blind {
                        next.wrapping_add(0x4000_0000 + guess)
                    } else {
                        next
                    },
                    flags,
                    options: Options::default(),
                    ..Header::default()
                },
                payload,
            );
        }
        let (found, then) = answers(&bed);
        numbers = then;
        let most = answers_allowed(start);
        assert!(found.len() <= most, "{} answers to {what}", found.len());
        assert!(
            found.iter().all(|header| header.flags == Flags::ACK),
            "{what}: {found:?}"
        );
    }
    // The challenges above may have left with the sentinel's acknowledgment, which
    // answers a batch. Nothing of the client's is under way now.
    let syn = Header {
        sequence: numbers.expected.wrapping_add(1),
        flags: Flags::SYN,
        ..Header::default()
    };
    let challenged = wait_until(|| {
        bed.forger.send(syn, b"");
        let found = bed.forger.captured();
        found.iter().any(|header| header.flags == Flags::ACK)
    });
    assert!(challenged, "no SYN was challenged");
    assert!(!over.load(Ordering::Acquire));
    drop(bed.client);
    let stream = server.join().unwrap();
    let info = stream.info().unwrap();
    assert_eq!(info.state, State::CloseWait, "{info:?}");
    assert!(info.segments_refused > 0, "{info:?}");
    drop(bed.stack);
}

pub fn acknowledgments_of_the_unsent_start_no_storm() {
    let bed = Bed::new();
    let (server, _) = echo(&bed.listener);
    exchange(&bed.client, b"before");
    let Numbers { expected, next } = answers(&bed).1;
    let start = Instant::now();
    for guess in 0..3000u32 {
        bed.forger.send(
            Header {
                sequence: expected,
                acknowledgment: next.wrapping_add(1_000_000 + guess),
                flags: Flags::ACK,
                ..Header::default()
            },
            b"",
        );
    }
    let (found, _) = answers(&bed);
    let most = answers_allowed(start);
    assert!(found.len() <= most, "{} answers", found.len());
    drop(bed.client);
    server.join().unwrap();
}

/// Segments that look established but match nothing are dropped in the driver,
/// and new clients get in beside them.
pub fn spoofed_established_segments_die_in_the_driver() {
    let bed = Bed::new();
    let (server, _) = echo(&bed.listener);
    exchange(&bed.client, b"before");
    let driver = |stack: &Stack| stack.snapshot().queues[0].driver.clone();
    let before = driver(&bed.stack);
    let spoof = |n: u32| {
        let source = Ipv4Addr::from(0x0a4d_0000 + 100 + n % 100);
        let mut forger_flow = bed.forger.flow;
        forger_flow.local = SocketAddr::from((source, 1024 + (n % 60_000) as u16));
        forger_flow
    };
    let link = bed.forger.link;
    for n in 0..6000u32 {
        let flow = spoof(n);
        let outgoing = Outgoing {
            header: Header {
                source_port: flow.local.port(),
                destination_port: flow.remote.port(),
                sequence: n.wrapping_mul(7919),
                acknowledgment: n.wrapping_mul(104_729),
                flags: Flags::ACK,
                window: 1000,
                ..Header::default()
            },
            payload: [b"not for anybody", &[]],
            segment_size: 1460,
            traffic_class: 0,
        };
        let mut frame = vec![0; 2048];
        let length = tcp::output(&mut frame, &link, &flow, &outgoing).unwrap();
        bed.forger.transmit(&frame[..length]);
    }
    exchange(&bed.client, b"after");
    let after = driver(&bed.stack);
    let grown =
        |name: &str| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
    assert!(grown("no-connection") > 3000, "{before:?} {after:?}");
    // A new client is served.
    let to = at(HERE4, SERVICE);
    let second = in_peer(move || KernelStream::connect_timeout(&to, TIMEOUT).unwrap());
    second.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (other, _) = echo(&bed.listener);
    exchange(&second, b"and me?");
    drop(second);
    other.join().unwrap();
    drop(bed.client);
    server.join().unwrap();
}

/// An apparent flood may be many clients. The driver's answers would be lost on the way
/// to a peer that has neither GRO nor a program of its own.
pub fn clients_get_in_after_a_burst_where_the_driver_cannot_answer() {
    let peer = peer_namespace();
    shell(&format!("ip netns exec {peer} ethtool -K {PEER} gro off"));
    let stack = stack();
    let options = ListenOptions {
        backlog: 8,
        ..ListenOptions::default()
    };
    let service = at(HERE4, SERVICE);
    let listener = Arc::new(TcpListener::bind_with(&stack, service, options).unwrap());
    let accepting = listener.clone();
    let server = std::thread::spawn(move || while accepting.accept().is_ok() {});
    let mut forger = Forger::new(at(PEER4, 2000), service);
    for port in 2000..3000 {
        forger.flow.local.set_port(port);
        let syn = Header {
            sequence: 1,
            flags: Flags::SYN,
            ..Header::default()
        };
        forger.send(syn, &[]);
    }
    let client = in_peer(move || KernelStream::connect_timeout(&service, TIMEOUT));
    client.unwrap();
    listener.shutdown(Shutdown::Both).unwrap();
    server.join().unwrap();
}
