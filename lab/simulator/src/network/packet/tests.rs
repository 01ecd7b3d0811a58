use super::*;

#[test]
fn a_burst_is_cut_into_segments() {
    let outgoing = Outgoing {
        header: Header {
            sequence: u32::MAX - 1,
            flags: Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR,
            ..Header::default()
        },
        payload: [b"abcd", b"efghij"],
        segment_size: 3,
        traffic_class: 2,
    };
    let mut packets = Vec::new();
    cut(FlowId(0), Side::Client, &outgoing, &mut |packet| {
        packets.push(packet);
    });
    let payloads: Vec<&[u8]> = packets.iter().map(|packet| &packet.payload[..]).collect();
    assert_eq!(payloads, [&b"abc"[..], b"def", b"ghi", b"j"]);
    assert_eq!(packets[1].header.sequence, 1);
    let flags: Vec<Flags> = packets.iter().map(|packet| packet.header.flags).collect();
    assert_eq!(
        flags,
        [
            Flags::ACK | Flags::CWR,
            Flags::ACK,
            Flags::ACK,
            Flags::ACK | Flags::PSH | Flags::FIN
        ]
    );
    assert_eq!(packets[3].bytes(), 20 + 20 + 1);
}

#[test]
fn a_segment_without_payload_is_a_packet() {
    let outgoing = Outgoing {
        header: Header {
            flags: Flags::SYN,
            ..Header::default()
        },
        payload: [&[]; 2],
        segment_size: 1460,
        traffic_class: 0,
    };
    let mut flags = Vec::new();
    cut(FlowId(0), Side::Client, &outgoing, &mut |packet| {
        flags.push(packet.header.flags);
    });
    assert_eq!(flags, [Flags::SYN]);
}
