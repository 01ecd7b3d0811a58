//! The device itself: who makes checksums, which queues send, and what a start
//! that fails leaves behind.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, Shutdown, TcpStream as KernelStream, UdpSocket as KernelSocket};

use tidewall::{Stack, TcpListener};
use tidewall_device::afxdp::open_transmitter;
use tidewall_wire::{ethernet, ipv4, udp};

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;
use super::tcp_bulk::{receive_all, send_all};

const PROVEN: &str = "by the device (proven at start)";

fn link_address() -> Vec<u8> {
    let text = shell(&format!("cat /sys/class/net/{HERE}/address"));
    let address: ethernet::MacAddress = text.trim().parse().unwrap();
    address.0.to_vec()
}

pub fn checksums_are_proven_by_a_frame_that_no_peer_sees() {
    // Before it leaves veth, every frame must carry its own checksum.
    shell(&format!("ethtool -K {HERE} tx off >/dev/null"));
    let index = peer_index();
    let packets = in_peer(move || Packets::open(index).unwrap());
    let stack = stack();
    let device = stack.snapshot().device.unwrap();
    assert_eq!((&*device.driver, &*device.xdp), ("veth", "native"));
    assert_eq!(device.checksums, PROVEN);
    assert_eq!((device.receive_queues, device.transmit_queues), (1, 1));
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    // Once both polls are learned, answers no longer go through the kernel.
    for _ in 0..8 {
        ask(&peer, at(HERE4, SERVICE), b"short");
    }
    let long = [7; 1400];
    for _ in 0..8 {
        ask(&peer, at(HERE4, SERVICE), &long);
    }
    let queue = &stack.snapshot().queues[0];
    assert!(queue.checksums_by_device >= 8, "{queue:?}");
    assert!(queue.transmitted > queue.checksums_by_device, "{queue:?}");
    echo.finish();
    let own = link_address();
    let mut checked = 0;
    while let Some(frame) = packets.receive() {
        assert!(
            frame.get(..6) != Some(&own) || frame.get(6..12) != Some(&own),
            "the test frame came out: {frame:x?}"
        );
        let Some(packet) = frame
            .get(ethernet::HEADER_LEN..)
            .and_then(|bytes| ipv4::Packet::new(bytes).ok())
        else {
            continue;
        };
        if packet.source() != HERE4 || packet.payload().len() < long.len() {
            continue;
        }
        let datagram = udp::Packet::new(packet.payload()).unwrap();
        let state = datagram.checksum_state(udp::Addresses::V4(HERE4, PEER4));
        assert_eq!(state, udp::ChecksumState::Valid, "{frame:x?}");
        checked += 1;
    }
    assert!(checked >= 8, "{checked} long answers");
}

pub fn an_interface_that_is_down_gets_no_proof_and_loses_no_frame() {
    shell(&format!("ip link set {HERE} down"));
    let stack = Stack::embedded(config()).unwrap();
    let warnings = stack.snapshot().warnings;
    assert!(
        matches!(&*warnings, [warning] if warning.contains("is down")),
        "{warnings:?}"
    );
    let device = stack.snapshot().device.unwrap();
    assert!(device.checksums.starts_with("in software ("), "{device}");
    shell(&format!("ip link set {HERE} up"));
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    for n in 0..64u8 {
        ask(&peer, at(HERE4, SERVICE), &[n; 1400]);
    }
    let queue = &stack.snapshot().queues[0];
    assert!(queue.transmitted > 0);
    assert_eq!((queue.checksums_by_device, queue.no_transmit_frame), (0, 0));
    echo.finish();
}

pub fn answers_leave_where_fewer_queues_transmit_than_receive() {
    shell(&format!("ethtool -L {HERE} rx 2 tx 1"));
    let stack = stack();
    let device = stack.snapshot().device.unwrap();
    assert_eq!((device.receive_queues, device.transmit_queues), (2, 1));
    assert_eq!(device.checksums, PROVEN);
    let echo = Echo::start(&stack, SERVICE);
    // The kernel's hash spreads flows over the peer's two queues.
    let sockets: Vec<KernelSocket> = (0..16).map(|_| peer_socket(PEER4)).collect();
    for _ in 0..8 {
        for socket in &sockets {
            ask(socket, at(HERE4, SERVICE), &[1; 1000]);
        }
    }
    let queues = stack.snapshot().queues;
    assert!(
        queues.iter().all(|queue| queue.delivered > 0),
        "one queue got everything: {queues:?}"
    );
    assert_eq!(queues[1].transmitted, 0, "{queues:?}");
    echo.finish();
}

pub fn a_start_that_fails_half_way_leaves_nothing_behind() {
    let knobs = || {
        shell(&format!(
            "cat /sys/class/net/{HERE}/napi_defer_hard_irqs /sys/class/net/{HERE}/gro_flush_timeout"
        ))
    };
    let before = knobs();
    // The second queue is another's: attaching, the knobs and the first succeed.
    let holder = open_transmitter(HERE, 1, 256).unwrap();
    let error = Stack::embedded(config()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("queue 1 of {HERE}")), "{text}");
    assert!(text.contains("ss --xdp"), "{text}");
    assert!(!shell(&format!("ip -details link show {HERE}")).contains("xdp"));
    assert_eq!(knobs(), before);
    drop(holder);
    let stack = stack();
    assert_eq!(stack.snapshot().queues.len(), 2);
}

pub fn set_mtu(mtu: usize) {
    shell(&format!("ip link set {HERE} mtu {mtu}"));
    in_peer(move || shell(&format!("ip link set {PEER} mtu {mtu}")));
}

pub fn full_sized_datagrams_pass_at_every_mtu() {
    // The peer's interface has the same MTU: a veth with a program takes no frame
    // that is longer than its own.
    for mtu in [1500, 1700, 1800, 1900, 3000, 3506] {
        set_mtu(mtu);
        let stack = stack();
        let echo = Echo::start(&stack, SERVICE);
        let peer = peer_socket(PEER4);
        for n in 0..8u8 {
            ask(&peer, at(HERE4, SERVICE), &vec![n; mtu - 28]);
        }
        let queue = &stack.snapshot().queues[0];
        assert!(queue.delivered >= 4, "MTU {mtu}: {queue:?}");
        assert!(queue.transmitted >= 4, "MTU {mtu}: {queue:?}");
        echo.finish();
    }
}

pub fn full_sized_segments_pass_at_every_mtu() {
    const TOTAL: usize = 1 << 20;
    for mtu in [1500, 1800, 3506] {
        set_mtu(mtu);
        let stack = stack();
        let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
        for (address, headers) in [(at(HERE4, SERVICE), 40), (at(HERE6, SERVICE), 60)] {
            let client = spawn_in_peer(move || {
                let stream = KernelStream::connect(address).unwrap();
                send_all(&stream, TOTAL);
                stream.shutdown(Shutdown::Write).unwrap();
                receive_all(&stream, TOTAL);
            });
            let (stream, _) = listener.accept().unwrap();
            receive_all(&stream, TOTAL);
            send_all(&stream, TOTAL);
            let info = stream.info().unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            client.join().unwrap();
            // With timestamps.
            let payload = mtu - headers - 12;
            assert_eq!(info.send_mss as usize, payload, "MTU {mtu}");
            let whole = TOTAL / payload;
            let came = info.segments_received as usize;
            assert!(came < whole * 2, "MTU {mtu}: {came} segments for {whole}");
        }
        drop(listener);
        assert_eq!(stack.warnings(), [] as [String; 0]);
    }
}
