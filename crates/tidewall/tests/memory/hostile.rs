//! Damaged, contradictory and oversized frames: counted by cause, and not
//! delivered.

use proptest::prelude::*;

use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::Side;
use tidewall_protocol::udp::Checksum;

use super::support::*;

fn good() -> Vec<u8> {
    datagram(at(NEAR4, 5000), service(), b"payload!")
}

fn good_v6() -> Vec<u8> {
    datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"payload!")
}

/// Returns how many datagrams the far stack delivers of one frame, beside a good one of
/// each family.
fn delivered(bed: &Bed, frame: &[u8]) -> usize {
    let socket = nonblocking(&bed.far, at(std::net::Ipv6Addr::UNSPECIFIED, SERVICE));
    bed.inject(frame);
    bed.inject(&good());
    bed.inject(&good_v6());
    let got = drain(&socket).len();
    drop(socket);
    assert_eq!(bed.outstanding(), 0);
    assert!(got >= 2, "a bad frame stopped good ones");
    got - 2
}

#[test]
fn frames_cut_anywhere_are_counted_as_truncated() {
    for whole in [good(), good_v6()] {
        let bed = Bed::new();
        for length in 0..whole.len() {
            assert_eq!(delivered(&bed, &whole[..length]), 0, "{length} bytes");
        }
        assert_eq!(bed.driver(Counter::Truncated), whole.len() as u64);
    }
}

#[test]
fn contradictory_headers_are_counted_as_malformed() {
    let change = |frame: Vec<u8>, place: usize, value: u8| {
        let mut frame = frame;
        frame[place] = value;
        if frame[12] == 8 {
            mend_v4(&mut frame);
        }
        frame
    };
    let bed = Bed::new();
    let bad = [
        ("version 5 in an IPv4 frame", change(good(), 14, 0x55)),
        ("a header of 16 bytes", change(good(), 14, 0x44)),
        ("total length below the header", change(good(), 17, 19)),
        ("UDP length 7", change(good(), 39, 7)),
        ("UDP length over the datagram", change(good(), 39, 17)),
        ("version 4 in an IPv6 frame", change(good_v6(), 14, 0x40)),
        ("IPv6 UDP length 3", change(good_v6(), 59, 3)),
    ];
    for (what, frame) in &bad {
        assert_eq!(delivered(&bed, frame), 0, "{what}");
    }
    assert_eq!(bed.driver(Counter::Malformed), bad.len() as u64);
}

#[test]
fn damage_is_dropped_by_the_protocol_and_counted_by_cause() {
    let bed = Bed::new();
    let mut flipped = good();
    flipped[45] ^= 0x10;
    assert_eq!(delivered(&bed, &flipped), 0);
    assert_eq!(bed.protocol("udp-checksum"), 1);

    let mut flipped = good_v6();
    flipped[64] ^= 0x01;
    assert_eq!(delivered(&bed, &flipped), 0);
    assert_eq!(bed.protocol("udp-checksum"), 2);

    let mut header = good();
    header[22] ^= 0x01;
    assert_eq!(delivered(&bed, &header), 0);
    assert_eq!(bed.protocol("header-checksum"), 1);

    let mut absent = good_v6();
    absent[60..62].fill(0);
    assert_eq!(delivered(&bed, &absent), 0);
    assert_eq!(bed.protocol("udp-no-checksum"), 1);

    let martian = datagram(at([255, 255, 255, 255], 5000), service(), b"from everybody");
    assert_eq!(delivered(&bed, &martian), 0);
    assert_eq!(bed.protocol("martian-source"), 1);
}

#[test]
fn padding_is_not_payload() {
    let bed = Bed::new();
    let socket = bed.service();
    let mut short = datagram(at(NEAR4, 5000), service(), b"x");
    short.resize(60, 0xff);
    bed.inject(&short);
    assert_eq!(payloads(&socket), [b"x"]);
}

#[test]
fn options_and_extension_headers_are_stepped_over() {
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, at(std::net::Ipv6Addr::UNSPECIFIED, SERVICE));
    let plain = good();
    let mut options = plain[..34].to_vec();
    options[14] = 0x4a;
    options[16..18].copy_from_slice(&(36u16 + 24).to_be_bytes());
    // Record route with room for five addresses (RFC 791), then end of options.
    options.extend([7, 23, 4]);
    options.extend([0; 21]);
    options[16..18].copy_from_slice(&(20u16 + 24 + 16).to_be_bytes());
    options[14] = 0x4b;
    options[24..26].fill(0);
    let sum = tidewall_wire::checksum::checksum(&options[14..58]);
    options[24..26].copy_from_slice(&sum.to_be_bytes());
    options.extend(&plain[34..]);
    bed.inject(&options);

    let plain = good_v6();
    let mut extended = plain[..54].to_vec();
    extended[18..20].copy_from_slice(&(16u16 + 16).to_be_bytes());
    // Hop-by-hop and destination options, both only padding.
    extended[20] = 0;
    extended.extend([60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
    extended.extend(&plain[54..]);
    bed.inject(&extended);
    assert_eq!(payloads(&socket), [b"payload!", b"payload!"]);
    assert!(bed.far.snapshot().counters.protocol.is_empty());
}

#[test]
fn a_frame_longer_than_a_frame_of_memory_is_lost_without_a_trace_in_the_account() {
    let bed = Bed::new();
    let socket = bed.service();
    for _ in 0..3 {
        bed.inject(&datagram(at(NEAR4, 5000), service(), &[0; 1900]));
    }
    bed.inject(&good());
    assert_eq!(payloads(&socket), [b"payload!"]);
    assert_eq!(bed.link.port_counters(Side::B).too_long, 3);
    assert_eq!(bed.far.snapshot().queues[0].lost_in_ring, 3);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn tagged_unknown_and_group_frames_are_the_kernels_and_counted() {
    let bed = Bed::new();
    let mut tagged = good();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut unknown = good();
    unknown[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut group = good();
    group[0] |= 1;
    let mut multicast = datagram(at(NEAR4, 5000), at([224, 0, 0, 251], SERVICE), b"x");
    multicast[0] = 1;
    for frame in [&tagged, &unknown, &group, &multicast] {
        assert_eq!(delivered(&bed, frame), 0);
    }
    assert_eq!(bed.link.take_kernel(Side::B).len(), 4);
    for (counter, count) in [
        (Counter::Tagged, 1),
        (Counter::Unknown, 1),
        (Counter::Multicast, 2),
    ] {
        assert_eq!(bed.driver(counter), count, "{}", counter.name());
    }
}

#[test]
fn a_zero_source_port_is_a_datagram_that_wants_no_answer() {
    let bed = Bed::new();
    let socket = bed.service();
    bed.inject(&datagram_with(
        at(NEAR4, 0),
        service(),
        b"no answer",
        |how| {
            how.checksum = Checksum::Software;
        },
    ));
    let got = drain(&socket);
    assert_eq!(got, [(b"no answer".to_vec(), at(NEAR4, 0))]);
    assert_eq!(
        errno(socket.send_to(b"but", got[0].1).unwrap_err()),
        libc::EINVAL
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever bytes are changed in frames of every kind: no panic, every
    /// frame counted once, and all credit back.
    #[test]
    fn no_change_of_bytes_leaks_or_stalls(
        changes in prop::collection::vec((0usize..6, 0usize..80, any::<u8>()), 1..200),
    ) {
        let bed = Bed::new();
        let socket = nonblocking(&bed.far, at(std::net::Ipv6Addr::UNSPECIFIED, SERVICE));
        let connected = nonblocking(&bed.far, anywhere(SERVICE + 1));
        connected.connect(at(NEAR4, 5000)).unwrap();
        let tap = bed.far_tap();
        connected.send(b"question").unwrap();
        let sent = tap.take().remove(0).bytes;
        let long = datagram(at(NEAR4, 5000), service(), &[7; 2000]);
        let long_v6 = datagram(at(NEAR6, 5000), at(FAR6, SERVICE), &[7; 2000]);
        let kinds = [
            good(),
            good_v6(),
            fragment(&long, 1, 1000).remove(0).frame,
            fragment(&long, 1, 1000).remove(1).frame,
            fragment(&long_v6, 1, 1000).remove(0).frame,
            unreachable(NEAR4, 3, &sent),
        ];
        for (n, (kind, place, value)) in changes.iter().enumerate() {
            let mut frame = kinds[*kind].clone();
            let place = place % frame.len();
            frame[place] = *value;
            bed.inject(&frame);
            if n % 50 == 0 {
                while socket.recv(&mut [0; 64]).is_ok() {}
            }
        }
        for socket in [&socket, &connected] {
            let mut quiet = 0;
            while quiet < 12 {
                match socket.recv(&mut [0; 64]) {
                    Ok(_) => quiet = 0,
                    Err(_) => quiet += 1,
                }
            }
        }
        prop_assert_eq!(bed.outstanding(), 0);
        bed.inject(&good());
        prop_assert_eq!(payloads(&socket), [b"payload!"]);
    }
}
