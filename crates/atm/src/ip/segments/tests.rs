use std::net::Ipv4Addr;

use proptest::prelude::*;
use tidewall_wire::ipv4;
use tidewall_wire::ipv4::{FragmentOffset, Options as IpOptions};
use tidewall_wire::tcp::{Options, Timestamps};
use tidewall_wire::udp::Checksum;

use super::*;

const LLC: [u8; HEADER_LEN] = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];

/// A TCP packet that a kernel would send.
fn packet(sequence: u32, flags: Flags, payload: &[u8], checksum: Checksum) -> Vec<u8> {
    let [source, destination] = [1, 2].map(|host| Ipv4Addr::new(10, 9, 0, host));
    let tcp = tcp::Header {
        source_port: 40_000,
        destination_port: 80,
        sequence,
        acknowledgment: 7,
        flags,
        window: 512,
        options: Options {
            timestamps: Some(Timestamps { value: 3, echo: 4 }),
            ..Options::default()
        },
        ..tcp::Header::default()
    };
    let ip = IpHeader {
        tos: 0,
        identification: 0xfffe,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: FragmentOffset::ZERO,
        ttl: 64,
        protocol: Protocol::TCP,
        source,
        destination,
        options: IpOptions::NONE,
    };
    let length = tcp.header_len() + payload.len();
    let mut bytes = vec![0; ipv4::HEADER_LEN + length];
    let rest = ip.emit(length, &mut bytes).unwrap();
    let addresses = Addresses::V4(source, destination);
    tcp.emit(addresses, payload, checksum, rest).unwrap();
    bytes
}

fn long(payload: u16) -> Header {
    Header {
        checksum: Some(Unfinished {
            start: 20,
            offset: 16,
        }),
        segments: Some(Segments {
            kind: Kind::TCP_V4,
            headers: 52,
            payload,
        }),
    }
}

/// The packets into which a kernel's packet is split.
fn packets(header: &Header, packet: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut payload = [&LLC, packet].concat();
    let mut packets = Vec::new();
    cut(header, &mut payload, |piece| {
        assert_eq!(piece[..HEADER_LEN], LLC);
        packets.push(piece[HEADER_LEN..].to_vec());
    })?;
    Ok(packets)
}

/// The segments that a kernel receives for packets, and the number of packets in each.
fn joined(packets: &[Vec<u8>]) -> Vec<(Header, Vec<u8>, u32)> {
    let mut given = Vec::new();
    let mut write = |header: &Header, packet: &[u8], of| given.push((*header, packet.to_vec(), of));
    let mut joiner = Joiner::default();
    for packet in packets {
        joiner.add(packet, &mut write);
    }
    joiner.flush(&mut write);
    given
}

proptest! {
    /// After the split, every packet is complete and no longer than asked; joined again,
    /// it equals the original.
    #[test]
    fn what_is_cut_and_joined_is_what_it_was(
        sequence: u32,
        payload in prop::collection::vec(any::<u8>(), 1..20_000),
        step in 8u16..9140,
        pushes: bool,
    ) {
        let step = step.max(payload.len() as u16 / 40 + 1);
        let flags = if pushes { Flags::ACK | Flags::PSH } else { Flags::ACK };
        let whole = packet(sequence, flags, &payload, Checksum::Offload);
        let pieces = packets(&long(step), &whole).unwrap();
        prop_assert_eq!(pieces.len(), payload.len().div_ceil(step.into()));
        let mut bytes = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let ip = ipv4::Packet::new(piece).unwrap();
            prop_assert!(ip.has_valid_checksum());
            prop_assert_eq!(ip.identification(), 0xfffe_u16.wrapping_add(number as u16));
            let tcp = tcp::Packet::new(ip.payload()).unwrap();
            let addresses = Addresses::V4(ip.source(), ip.destination());
            prop_assert_eq!(tcp.checksum_state(addresses), ChecksumState::Valid);
            prop_assert_eq!(tcp.header().sequence, sequence.wrapping_add(bytes.len() as u32));
            let last = number + 1 == pieces.len();
            prop_assert_eq!(tcp.header().flags.contains(Flags::PSH), pushes && last);
            prop_assert!(tcp.payload().len() <= step.into());
            bytes.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(bytes, payload);
        let again = joined(&pieces);
        prop_assert_eq!(again.len(), 1);
        let (header, again, of) = &again[0];
        prop_assert_eq!(*of as usize, pieces.len());
        if pieces.len() > 1 {
            prop_assert_eq!(*header, long(step));
            prop_assert_eq!(again, &whole);
        } else {
            prop_assert_eq!(again, &pieces[0]);
        }
    }

    /// Any input passes through completely, in order, and without a panic.
    #[test]
    fn what_is_no_packet_goes_on_as_it_came(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8),
        header: [u8; 10],
    ) {
        let given = joined(&packets);
        let given: Vec<_> = given.into_iter().map(|(_, packet, _)| packet).collect();
        prop_assert_eq!(&given, &packets);
        for mut packet in packets {
            let _ = cut(&Header::parse(&header), &mut packet, |_| ());
        }
    }

    /// A kernel's packet with any header and any byte changed is refused or split into
    /// packets.
    #[test]
    fn headers_that_lie_are_refused(
        header: [u8; 10],
        payload in prop::collection::vec(any::<u8>(), 0..3000),
        at: prop::sample::Index,
        value: u8,
    ) {
        let mut packet = packet(5, Flags::ACK, &payload, Checksum::Offload);
        let at = at.index(packet.len());
        packet[at] = value;
        let mut header = Header::parse(&header);
        if let Some(segments) = &mut header.segments {
            segments.kind = Kind::TCP_V4;
        }
        let _ = packets(&header, &packet);
    }
}

#[test]
fn a_checksum_is_finished() {
    let unfinished = Header {
        segments: None,
        ..long(8)
    };
    let left = packet(1, Flags::ACK, b"some", Checksum::Offload);
    let whole = packet(1, Flags::ACK, b"some", Checksum::Software);
    assert_eq!(packets(&unfinished, &left), Ok(vec![whole.clone()]));
    assert_eq!(packets(&Header::default(), &whole), Ok(vec![whole]));
}

#[test]
fn what_does_not_follow_is_not_joined() {
    let of = |sequence, payload: &[u8]| packet(sequence, Flags::ACK, payload, Checksum::Software);
    let counts = |packets: &[Vec<u8>]| {
        let given = joined(packets);
        given.iter().map(|(.., of)| *of).collect::<Vec<_>>()
    };
    let (first, second) = (of(0, &[1; 100]), of(100, &[2; 100]));
    assert_eq!(counts(&[first.clone(), second.clone()]), [2]);
    // A gap, a repetition, and a longer one behind a shorter.
    assert_eq!(counts(&[first.clone(), of(101, &[2; 100])]), [1, 1]);
    assert_eq!(counts(&[second.clone(), second.clone()]), [1, 1]);
    assert_eq!(counts(&[first.clone(), of(100, &[2; 101])]), [1, 1]);
    // Nothing follows a shorter one.
    let shorter = of(100, &[2; 50]);
    let after = of(150, &[3; 50]);
    assert_eq!(counts(&[first.clone(), shorter, after]), [2, 1]);
    // Flags, and a pure acknowledgment between.
    let end = packet(100, Flags::ACK | Flags::FIN, &[2; 100], Checksum::Software);
    assert_eq!(counts(&[first.clone(), end]), [1, 1]);
    assert_eq!(
        counts(&[first.clone(), of(100, &[]), second.clone()]),
        [1, 1, 1]
    );
    // From another connection, or with another acknowledgment, window or time: each byte
    // counts.
    for at in [1, 8, 15, 20, 23, 31, 35, 45] {
        let mut other = second.clone();
        other[at] ^= 1;
        assert_eq!(counts(&[first.clone(), other]), [1, 1], "{at}");
    }
}

#[test]
fn a_damaged_packet_is_not_hidden_by_joining() {
    let of = |sequence| packet(sequence, Flags::ACK, &[1; 100], Checksum::Software);
    let mut damaged = of(100);
    damaged[80] ^= 4;
    let given = joined(&[of(0), damaged.clone(), of(200)]);
    assert_eq!(given.len(), 3);
    assert_eq!(given[1], (Header::default(), damaged, 1));
}

#[test]
fn no_more_is_joined_than_a_packet_holds() {
    let payload = [0; 9000];
    let packets: Vec<_> = (0..20)
        .map(|number| packet(number * 9000, Flags::ACK, &payload, Checksum::Software))
        .collect();
    let given = joined(&packets);
    let counts: Vec<_> = given.iter().map(|(.., of)| *of).collect();
    assert_eq!(counts, [7, 7, 6]);
}
