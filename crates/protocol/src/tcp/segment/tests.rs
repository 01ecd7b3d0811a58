use super::*;
use tidewall_wire::pieces::Behind;
use tidewall_wire::tcp::{Options, Timestamps};

const WIRE: InputOptions = InputOptions {
    checksum_offload_possible: false,
    verified: false,
};
const LINK: Link = Link {
    source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
    destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
    hop_limit: 64,
    checksum: Checksum::Software,
};

fn flow(v6: bool) -> FourTuple {
    let ends = if v6 {
        ("[2001:db8::1]:5000", "[2001:db8::2]:80")
    } else {
        ("192.0.2.1:5000", "192.0.2.2:80")
    };
    FourTuple {
        local: ends.0.parse().unwrap(),
        remote: ends.1.parse().unwrap(),
    }
}

fn header(flags: Flags) -> Header {
    Header {
        source_port: 5000,
        destination_port: 80,
        sequence: 1000,
        acknowledgment: 2000,
        flags,
        window: 3000,
        urgent: 0,
        options: Options {
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        },
    }
}

/// The datagram from the IP header on, and the offset of the TCP header.
fn sent(v6: bool, flags: Flags, payload: [&[u8]; 2], checksum: Checksum) -> (Vec<u8>, usize) {
    let outgoing = Outgoing {
        header: header(flags),
        payload,
        segment_size: 1000,
        traffic_class: 0x48,
    };
    let mut frame = vec![0xaa; 2000];
    let link = Link { checksum, ..LINK };
    let length = output(&mut frame, &link, &flow(v6), &outgoing).unwrap();
    frame.truncate(length);
    let transport = if v6 { 40 } else { 20 };
    (frame.split_off(ethernet::HEADER_LEN), transport)
}

#[test]
fn what_is_sent_is_accepted_at_the_other_end() {
    for v6 in [false, true] {
        let (bytes, transport) = sent(v6, Flags::ACK, [b"two ", b"pieces"], Checksum::Software);
        // The link pads short frames.
        let padded = [&bytes[..], &[0; 10]].concat();
        let segment = input(&padded, transport, &WIRE).unwrap();
        assert_eq!(segment.flow.local, flow(v6).remote);
        assert_eq!(segment.flow.remote, flow(v6).local);
        assert_eq!(segment.header, header(Flags::ACK));
        assert_eq!(segment.payload, b"two pieces");
        assert_eq!(segment.traffic_class, 0x48);
        assert_eq!(segment.sequence_len(), 10);
    }
}

#[test]
fn damage_has_a_name() {
    for v6 in [false, true] {
        let (bytes, at) = sent(v6, Flags::ACK, [b"payload", b""], Checksum::Software);
        let change = |place: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[place] = to;
            input(&bytes, at, &WIRE).unwrap_err()
        };
        assert_eq!(change(bytes.len() - 1, 0), DropReason::TcpChecksum);
        assert_eq!(change(at + 12, 4 << 4), DropReason::TcpDataOffset);
        assert_eq!(change(at + 12, 15 << 4), DropReason::TcpDataOffset);
        assert_eq!(
            input(&bytes, at + 4, &WIRE).unwrap_err(),
            DropReason::TransportOffset
        );
        let (bytes, at) = sent(v6, Flags::ACK, [b"payload", b""], Checksum::Offload);
        assert_eq!(
            input(&bytes, at, &WIRE).unwrap_err(),
            DropReason::TcpChecksum
        );
        let virtual_link = InputOptions {
            checksum_offload_possible: true,
            ..WIRE
        };
        assert!(input(&bytes, at, &virtual_link).is_ok());
    }
}

/// All but the first bytes of a datagram, in pieces of the given size.
struct Cut<'a>(&'a [u8], usize);

impl Behind for Cut<'_> {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        self.0.chunks(self.1).nth(number)
    }
}

#[test]
fn a_segment_in_pieces_is_what_the_whole_one_is() {
    let payload: Vec<u8> = (0..400u32).map(|at| (at ^ at >> 3) as u8).collect();
    for (v6, checksum) in [
        (false, Checksum::Software),
        (true, Checksum::Software),
        (true, Checksum::Offload),
    ] {
        let (bytes, at) = sent(v6, Flags::ACK, [&payload, b""], checksum);
        let left = checksum == Checksum::Offload;
        let options = InputOptions {
            checksum_offload_possible: left,
            ..WIRE
        };
        let headers = bytes.len() - payload.len();
        for first in headers - 1..bytes.len() {
            for piece in [1, 7, 64, 4096] {
                let cut = |bytes: &[u8], length: usize| -> Result<_, DropReason> {
                    let behind = Cut(&bytes[first..], piece);
                    let pieces = Pieces::new(&bytes[..first], &behind, length).unwrap();
                    let read = input_in_pieces(pieces, at, &options)?;
                    let mut payload = Vec::new();
                    read.payload.append_to(&mut payload);
                    Ok((read.flow, read.header, payload, read.sequence_len()))
                };
                if first < headers {
                    let refused = cut(&bytes, bytes.len()).unwrap_err();
                    assert_eq!(refused, DropReason::TcpDataOffset);
                    continue;
                }
                let (flow, header, cut_payload, length) = cut(&bytes, bytes.len()).unwrap();
                let whole = input(&bytes, at, &options).unwrap();
                assert_eq!((flow, header), (whole.flow, whole.header));
                assert_eq!(length, whole.sequence_len());
                assert!(cut_payload == payload, "cut at {first}, pieces of {piece}");
                // Padding does not belong to the segment, and missing bytes are detected.
                let padded = [&bytes[..], &[9; 3]].concat();
                assert!(cut(&padded, padded.len()).unwrap().2 == payload);
                if first + 1 < bytes.len() {
                    let shorter = cut(&bytes, bytes.len() - 1).unwrap_err();
                    assert_eq!(shorter, DropReason::Truncated);
                }
                if !left {
                    let mut damaged = bytes.clone();
                    *damaged.last_mut().unwrap() ^= 1;
                    let refused = cut(&damaged, bytes.len()).unwrap_err();
                    assert_eq!(refused, DropReason::TcpChecksum);
                }
            }
        }
    }
}

#[test]
fn a_port_of_zero_is_nobodys() {
    let outgoing = Outgoing {
        header: Header {
            source_port: 0,
            ..header(Flags::ACK)
        },
        payload: [&[]; 2],
        segment_size: 0,
        traffic_class: 0,
    };
    let mut frame = [0; 100];
    let length = output(&mut frame, &LINK, &flow(false), &outgoing).unwrap();
    assert_eq!(
        input(&frame[14..length], 20, &WIRE).unwrap_err(),
        DropReason::TcpPort
    );
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let outgoing = Outgoing {
        header: header(Flags::ACK),
        payload: [&[1; 100], &[2; 100]],
        segment_size: 1000,
        traffic_class: 0,
    };
    let mut frame = [0; 265];
    let too_small = OutputError::FrameTooSmall {
        needed: 266,
        available: 265,
    };
    let flow = flow(false);
    assert_eq!(output(&mut frame, &LINK, &flow, &outgoing), Err(too_small));
    let mixed = FourTuple {
        remote: "[2001:db8::2]:80".parse().unwrap(),
        ..flow
    };
    assert_eq!(
        output(&mut frame, &LINK, &mixed, &outgoing),
        Err(OutputError::AddressFamily)
    );
    let long = vec![0; 65_536];
    let outgoing = Outgoing {
        payload: [&long, &[]],
        ..outgoing
    };
    let mut frame = vec![0; 70_000];
    assert_eq!(
        output(&mut frame, &LINK, &flow, &outgoing),
        Err(OutputError::TooLong)
    );
}

#[test]
fn the_answer_to_a_stranger_is_the_reset_of_rfc_9293() {
    let reset = |flags, payload: &[u8]| {
        let (bytes, at) = sent(false, flags, [payload, b""], Checksum::Software);
        let segment = input(&bytes, at, &WIRE).unwrap();
        reset_for(&segment).map(|outgoing| {
            let header = outgoing.header;
            assert_eq!((header.source_port, header.destination_port), (80, 5000));
            (header.flags, header.sequence, header.acknowledgment)
        })
    };
    assert_eq!(reset(Flags::ACK, b"abc"), Some((Flags::RST, 2000, 0)));
    assert_eq!(
        reset(Flags::SYN | Flags::FIN, b"abc"),
        Some((Flags::RST | Flags::ACK, 0, 1005))
    );
    assert_eq!(reset(Flags::RST, b""), None);
    assert_eq!(reset(Flags::RST | Flags::ACK, b""), None);
}

/// A payload moves from one connection to another without being copied, from IPv4 to IPv6
/// and back. The headers before it become shorter and longer.
#[test]
fn headers_are_written_before_a_payload_that_stays() {
    for (from, to) in [(false, false), (false, true), (true, false)] {
        let (bytes, transport) = sent(from, Flags::ACK, [b"whole ", b"frames"], Checksum::Software);
        let received = input(&bytes, transport, &WIRE).unwrap();
        let addresses = Addresses::new(flow(from).local.ip(), flow(from).remote.ip()).unwrap();
        let segment = tcp::Packet::new(&bytes[transport..]).unwrap();
        let sum = PayloadChecksum::Sum(segment.payload_sum(addresses).unwrap());
        let header = Header {
            sequence: 77,
            options: Options::default(),
            ..header(Flags::ACK | Flags::PSH)
        };
        let payload_len = received.payload.len();
        let mut room = vec![0xaa; 100];
        let headers = output_before(
            &mut room,
            &LINK,
            &flow(to),
            &header,
            0x48,
            (payload_len, sum),
        );
        let mut frame = room.split_off(100 - headers.unwrap());
        assert!(room.iter().all(|&byte| byte == 0xaa));
        frame.extend(received.payload);
        let whole = Outgoing {
            header,
            payload: [received.payload, b""],
            segment_size: 1000,
            traffic_class: 0x48,
        };
        let mut wanted = vec![0; 200];
        let length = output(&mut wanted, &LINK, &flow(to), &whole).unwrap();
        assert_eq!(frame, wanted[..length]);
        let mut short = [0; 50];
        let refused = output_before(&mut short, &LINK, &flow(to), &header, 0, (12, sum));
        assert!(matches!(refused, Err(OutputError::FrameTooSmall { .. })));
    }
}
