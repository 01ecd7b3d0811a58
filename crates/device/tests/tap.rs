//! The tap against the kernel at its other end, in a network namespace that ends with the
//! test. The parts that run inside it are ignored unless named.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::{Kind, Protocol};
use tidewall_device::frame::Frame;
use tidewall_device::queue::{Interrupt, LongSegment, Offload, Received};
use tidewall_device::tap::{Config, Tap};
use tidewall_wire::ethernet::{self, EtherType};
use tidewall_wire::ipv4::{self, FragmentOffset};
use tidewall_wire::tcp::{self, Flags};
use tidewall_wire::udp::{Addresses, Checksum, ChecksumState};
use tidewall_wire::{ipv6, udp};

const NAME: &str = "tw-tap";
const KERNEL4: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const HERE4: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1);
const HERE6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 2);
/// Our port.
const PORT: u16 = 7000;
const CHANNEL: ChannelId = ChannelId::new(5, 1);
/// Longest wait for a frame.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a part of this file in its own namespace.
fn in_namespace(part: &str) {
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-ec"])
        .arg("mount -t sysfs tw-sys /sys; ip link set lo up; exec \"$SELF\" --exact --ignored --nocapture \"$PART\"")
        .env("SELF", std::env::current_exe().unwrap())
        .env("PART", part)
        .output()
        .expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    if failed.contains("unshare failed: Operation not permitted") {
        tidewall_skip::missing(part, "root");
        return;
    }
    assert!(output.status.success(), "{said}\n{failed}");
}

macro_rules! parts {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                in_namespace(concat!("inside::", stringify!($name)));
            }
        )*
        mod inside {
            $(
                #[test]
                #[ignore = "run by the test of the same name, in its namespace"]
                fn $name() {
                    super::body::$name();
                }
            )*
        }
    };
}

parts! {
    datagrams_pass_both_ways_with_unfinished_checksums,
    long_segments_pass_uncut_both_ways,
    the_interface_goes_with_its_owner,
    frames_that_find_no_room_do_not_stay,
    an_interface_that_is_down_says_so,
}

fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A tap with addresses at the kernel's end, and our port open for both
/// protocols.
struct Bed {
    tap: Tap,
    waiting: Vec<Received>,
}

impl Bed {
    fn new() -> Bed {
        Bed::with(Config::new(NAME))
    }

    fn with(config: Config) -> Bed {
        let mut tap = Tap::open(&config).unwrap();
        shell(&format!(
            "ip address add {KERNEL4}/24 dev {NAME}; ip address add {KERNEL6}/64 dev {NAME} nodad"
        ));
        // The kernel adds the route to its own address later, in work that waits for
        // other namespaces; earlier frames are not for it.
        let route = format!("ip -6 route show table local {KERNEL6}");
        let end = Instant::now() + TIMEOUT;
        while shell(&route).is_empty() {
            assert!(Instant::now() < end, "no route to {KERNEL6}");
        }
        tap.tables
            .trusted
            .set_locals(&[HERE4.into(), HERE6.into()])
            .unwrap();
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            tap.tables
                .trusted
                .own_port(protocol, None, PORT, 0)
                .unwrap();
            tap.tables
                .embedded
                .listen(protocol, None, PORT, CHANNEL)
                .unwrap();
        }
        tap.tables.embedded.set_limit(0, CHANNEL.index(), 512);
        let half = tap.queue.frames.len() / 2;
        let mut fill = tap.queue.frames.split_off(half);
        tap.queue.receive.fill(&mut fill);
        assert!(fill.is_empty());
        Bed {
            tap,
            waiting: Vec::new(),
        }
    }

    /// The next frame for our port.
    fn receive(&mut self) -> Received {
        let end = Instant::now() + TIMEOUT;
        while self.waiting.is_empty() {
            assert!(
                Instant::now() < end,
                "nothing came: {:?}",
                self.tap.counters.read()
            );
            let queue = &mut self.tap.queue;
            queue.receive.poll(Interrupt::Armed).unwrap();
            queue.receive.receive(&mut self.waiting, 64);
        }
        let received = self.waiting.remove(0);
        assert_eq!(received.metadata.channel_id(), CHANNEL);
        assert_eq!(received.metadata.kind(), Some(Kind::Datagram));
        received
    }

    fn bytes<'a>(&'a self, received: &'a Received) -> &'a [u8] {
        let network = usize::from(received.metadata.network);
        let end = usize::from(received.metadata.end);
        &self.tap.queue.memory.packet(&received.frame)[network..end]
    }

    fn done(&mut self, received: Received) {
        self.tap.tables.embedded.tail_add(0, CHANNEL.index(), 1);
        self.tap.queue.receive.fill(&mut vec![received.frame]);
    }

    /// A frame to fill in and send.
    fn frame(&mut self) -> Frame {
        let queue = &mut self.tap.queue;
        queue.transmit.reclaim(&mut queue.frames);
        let mut frame = queue.frames.pop().expect("frames come back");
        frame.set_extent(queue.transmit.headroom(), u16::MAX);
        frame
    }

    /// Writes Ethernet and IP before what `transport` writes, and sets the
    /// frame's extent. Returns where the transport header is.
    fn write(
        &mut self,
        frame: &mut Frame,
        v6: bool,
        protocol: tidewall_wire::Protocol,
        transport: impl FnOnce(Addresses, &mut [u8]) -> usize,
    ) -> u16 {
        let (here, kernel) = (self.tap.own, self.tap.kernel);
        let bytes = self.tap.queue.memory.packet_mut(frame);
        let link = ethernet::Header {
            destination: kernel,
            source: here,
            ethertype: if v6 { EtherType::IPV6 } else { EtherType::IPV4 },
        };
        let start = 14 + if v6 { 40 } else { 20 };
        let addresses = if v6 {
            Addresses::V6(HERE6, KERNEL6)
        } else {
            Addresses::V4(HERE4, KERNEL4)
        };
        let length = transport(addresses, &mut bytes[start..]);
        let rest = link.emit(bytes).unwrap();
        if v6 {
            ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                next_header: protocol,
                hop_limit: 64,
                source: HERE6,
                destination: KERNEL6,
            }
            .emit(length, rest)
            .unwrap();
        } else {
            ipv4::Header {
                tos: 0,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: FragmentOffset::ZERO,
                ttl: 64,
                protocol,
                source: HERE4,
                destination: KERNEL4,
                options: ipv4::Options::NONE,
            }
            .emit(length, rest)
            .unwrap();
        }
        frame.set_extent(self.tap.queue.transmit.headroom(), (start + length) as u16);
        start as u16
    }

    fn send_datagram(&mut self, to: SocketAddr, payload: &[u8], checksum: Checksum) {
        let mut frame = self.frame();
        let header = udp::Header {
            source_port: PORT,
            destination_port: to.port(),
        };
        let protocol = tidewall_wire::Protocol::UDP;
        let start = self.write(&mut frame, to.is_ipv6(), protocol, |addresses, bytes| {
            bytes[8..8 + payload.len()].copy_from_slice(payload);
            header
                .emit_around(addresses, payload.len(), checksum, bytes)
                .unwrap();
            8 + payload.len()
        });
        let offload = (checksum == Checksum::Offload).then_some(Offload {
            checksum_start: start,
            checksum_offset: 6,
        });
        let transmit = &mut self.tap.queue.transmit;
        transmit.transmit(frame, offload).unwrap();
        transmit.flush().unwrap();
    }

    fn send_segment(&mut self, v6: bool, header: tcp::Header, payload: &[u8]) {
        let mut frame = self.frame();
        let protocol = tidewall_wire::Protocol::TCP;
        let start = self.write(&mut frame, v6, protocol, |addresses, bytes| {
            header
                .emit(addresses, payload, Checksum::Offload, bytes)
                .unwrap()
        });
        let offload = Offload {
            checksum_start: start,
            checksum_offset: tcp::CHECKSUM_OFFSET,
        };
        let queue = &mut self.tap.queue;
        if payload.len() > 1000 {
            let headers = usize::from(start) + header.header_len();
            let headers = &queue.memory.packet(&frame)[..headers];
            let (first, second) = payload.split_at(payload.len() / 3);
            let segment = LongSegment {
                headers,
                payload: [first, second],
                offload,
                segment_size: 1000,
            };
            queue.transmit.send_segments(&segment).unwrap();
            queue.frames.push(frame);
        } else {
            queue.transmit.transmit(frame, Some(offload)).unwrap();
            queue.transmit.flush().unwrap();
        }
    }

    /// The next TCP segment and how the checksum of it stands.
    fn segment(&mut self) -> (tcp::Header, Vec<u8>, ChecksumState) {
        let received = self.receive();
        let transport = received.metadata.transport - received.metadata.network;
        let bytes = self.bytes(&received);
        let packet = tcp::Packet::new(&bytes[usize::from(transport)..]).unwrap();
        let state = if received.metadata.version == 4 {
            packet.checksum_state(Addresses::V4(KERNEL4, HERE4))
        } else {
            packet.checksum_state(Addresses::V6(KERNEL6, HERE6))
        };
        let found = (packet.header(), packet.payload().to_vec(), state);
        self.done(received);
        found
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

mod body {
    use super::*;

    pub fn datagrams_pass_both_ways_with_unfinished_checksums() {
        let mut bed = Bed::new();
        for (kernel, here) in [
            (
                SocketAddr::from((KERNEL4, 0)),
                SocketAddr::from((HERE4, PORT)),
            ),
            (
                SocketAddr::from((KERNEL6, 0)),
                SocketAddr::from((HERE6, PORT)),
            ),
        ] {
            let socket = UdpSocket::bind(kernel).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            for length in [0, 1, 100, 1400] {
                let payload = pattern(length);
                socket.send_to(&payload, here).unwrap();
                let received = bed.receive();
                let transport = received.metadata.transport - received.metadata.network;
                let bytes = bed.bytes(&received);
                let packet = udp::Packet::new(&bytes[usize::from(transport)..]).unwrap();
                assert_eq!(packet.payload(), payload);
                let state = if kernel.is_ipv4() {
                    packet.checksum_state(Addresses::V4(KERNEL4, HERE4))
                } else {
                    packet.checksum_state(Addresses::V6(KERNEL6, HERE6))
                };
                assert_eq!(state, ChecksumState::LeftToOffload);
                bed.done(received);

                for checksum in [Checksum::Offload, Checksum::Software] {
                    bed.send_datagram(socket.local_addr().unwrap(), &payload, checksum);
                    let mut buffer = [0; 2000];
                    let (got, from) = socket.recv_from(&mut buffer).unwrap();
                    assert_eq!(from, here);
                    assert_eq!(&buffer[..got], payload);
                }
            }
        }
        let counters = bed.tap.counters.read();
        assert_eq!(
            (counters.refused, counters.no_frame, counters.bad_length),
            (0, 0, 0)
        );
        assert_eq!((counters.long, counters.written), (0, 16));
        // The kernel's own traffic on a new interface is for no application.
        assert!(counters.read >= 8 + counters.nobodys, "{counters:?}");
    }

    /// A connection made by hand: data written at once by one end arrives at the other as
    /// one segment.
    pub fn long_segments_pass_uncut_both_ways() {
        let mut bed = Bed::new();
        for v6 in [false, true] {
            let here: SocketAddr = if v6 {
                (HERE6, PORT).into()
            } else {
                (HERE4, PORT).into()
            };
            let before = bed.tap.counters.read();
            let kernel = std::thread::spawn(move || {
                let mut stream = TcpStream::connect_timeout(&here, TIMEOUT).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                stream.write_all(&pattern(60_000)).unwrap();
                let mut got = vec![0; 60_000];
                stream.read_exact(&mut got).unwrap();
                got
            });
            // The previous connection may still be closing.
            let syn = loop {
                let (header, _, _) = bed.segment();
                if header.flags == Flags::SYN {
                    break header;
                }
            };
            let mut answer = tcp::Header {
                source_port: PORT,
                destination_port: syn.source_port,
                sequence: 1_000_000,
                acknowledgment: syn.sequence.wrapping_add(1),
                flags: Flags::SYN | Flags::ACK,
                window: 65_535,
                options: tcp::Options {
                    maximum_segment_size: Some(1400),
                    ..tcp::Options::default()
                },
                ..tcp::Header::default()
            };
            bed.send_segment(v6, answer, &[]);
            answer.options = tcp::Options::default();
            answer.flags = Flags::ACK;
            answer.sequence += 1;
            let (mut bytes, mut longest) = (Vec::new(), 0);
            while bytes.len() < 60_000 {
                let (header, payload, state) = bed.segment();
                if payload.is_empty() {
                    continue;
                }
                assert_eq!(state, ChecksumState::LeftToOffload);
                assert_eq!(header.sequence, answer.acknowledgment);
                longest = longest.max(payload.len());
                answer.acknowledgment = header.sequence.wrapping_add(payload.len() as u32);
                bytes.extend(payload);
                bed.send_segment(v6, answer, &[]);
            }
            assert!(bytes == pattern(60_000), "bytes came changed");
            assert!(longest > 10_000, "cut to {longest}");
            assert!(bed.tap.counters.read().long > before.long);
            // In two parts: the kernel's window is 64 KiB less its estimated overhead.
            for half in pattern(60_000).chunks(30_000) {
                bed.send_segment(v6, answer, half);
                answer.sequence += half.len() as u32;
                loop {
                    let (header, _, _) = bed.segment();
                    if header.acknowledgment == answer.sequence {
                        break;
                    }
                }
            }
            assert!(
                kernel.join().unwrap() == pattern(60_000),
                "bytes arrived changed"
            );
            let counters = bed.tap.counters.read();
            assert_eq!(counters.refused, 0);
        }
    }

    pub fn the_interface_goes_with_its_owner() {
        let list = || shell("ip -o link");
        assert!(!list().contains(NAME));
        let bed = Bed::new();
        assert!(list().contains(NAME));
        let again = Tap::open(&Config::new(NAME)).map(drop).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EBUSY), "{again}");
        drop(bed);
        assert!(!list().contains(NAME));

        let long = "a-name-of-16-let";
        for config in [
            Config::new(""),
            Config::new(long),
            Config::new("a/b"),
            Config::new("a b"),
            Config {
                mtu: 1279,
                ..Config::new(NAME)
            },
            Config {
                mtu: 65_001,
                ..Config::new(NAME)
            },
            Config {
                frames: 15,
                ..Config::new(NAME)
            },
        ] {
            let error = Tap::open(&config).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{config:?}");
        }
        assert!(!list().contains(NAME));
    }

    pub fn frames_that_find_no_room_do_not_stay() {
        let mut bed = Bed::with(Config {
            frames: 16,
            ..Config::new(NAME)
        });
        let socket = UdpSocket::bind((KERNEL4, 0)).unwrap();
        for _ in 0..40 {
            socket.send_to(&pattern(1000), (HERE4, PORT)).unwrap();
        }
        let mut batch = Vec::new();
        let end = Instant::now() + TIMEOUT;
        while bed.tap.counters.read().no_frame < 32 && Instant::now() < end {
            bed.tap.queue.receive.poll(Interrupt::Masked).unwrap();
            bed.tap.queue.receive.receive(&mut batch, 64);
        }
        assert_eq!(batch.len(), 8);
        assert_eq!(bed.tap.counters.read().no_frame, 32);
        // They come back, and so does service.
        for received in batch {
            bed.done(received);
        }
        socket.send_to(b"again", (HERE4, PORT)).unwrap();
        let received = bed.receive();
        assert!(bed.bytes(&received).ends_with(b"again"));
    }

    pub fn an_interface_that_is_down_says_so() {
        let mut bed = Bed::new();
        let socket = UdpSocket::bind((KERNEL4, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let to = socket.local_addr().unwrap();
        shell(&format!("ip link set {NAME} down"));
        let mut frame = bed.frame();
        frame.set_extent(10, 60);
        let transmit = &mut bed.tap.queue.transmit;
        transmit.transmit(frame, None).unwrap();
        let error = transmit.flush().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN), "{error}");
        shell(&format!("ip link set {NAME} up"));
        bed.send_datagram(to, b"back", Checksum::Offload);
        let mut buffer = [0; 16];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        // The kernel would refuse this segment, so it never gets it.
        let offload = Offload {
            checksum_start: 34,
            checksum_offset: 16,
        };
        let segment = LongSegment {
            headers: &[0; 54],
            payload: [&[0; 2000], &[]],
            offload,
            segment_size: 1000,
        };
        let transmit = &mut bed.tap.queue.transmit;
        let error = transmit.send_segments(&segment).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(transmit.segmentation() > 0);
    }
}
