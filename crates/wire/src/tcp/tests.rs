use std::net::Ipv4Addr;

use super::*;
use proptest::prelude::*;

fn options() -> impl Strategy<Value = Options> {
    let sack = prop::collection::vec(any::<(u32, u32)>(), 0..4);
    let timestamps = prop::option::of(any::<(u32, u32)>());
    let cookie = (0usize..=7, any::<[u8; 16]>(), any::<bool>());
    let fast_open = cookie.prop_map(|(words, bytes, experimental)| {
        // 4 to 16 bytes, or none.
        let length = if words == 0 { 0 } else { 2 + 2 * words };
        let option = FastOpen::cookie_of(&bytes[..length]).unwrap_or(FastOpen::REQUEST);
        option.with_experimental(experimental)
    });
    (
        any::<Option<u16>>(),
        any::<Option<u8>>(),
        any::<bool>(),
        timestamps,
        sack,
        prop::option::of(fast_open),
        prop::option::of(any::<u8>()),
    )
        .prop_map(
            |(size, scale, permitted, timestamps, blocks, fast_open, acp)| {
                let mut options = Options {
                    maximum_segment_size: size,
                    window_scale: scale,
                    sack_permitted: permitted,
                    timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                    sack: SackBlocks::default(),
                };
                // As many as fit: in practice, SYN segments carry none.
                for (first, end) in blocks {
                    let before = options;
                    options.sack.push(first, end);
                    if options.sack_count() < options.sack.as_slice().len() {
                        options = before;
                    }
                }
                options.with_fast_open(fast_open).with_acp(acp)
            },
        )
}

/// The fast path for timestamps alone parses and writes the same bytes as the general
/// one.
#[test]
fn timestamps_alone_are_no_exception() {
    let options = Options {
        timestamps: Some(Timestamps {
            value: 0x0102_0304,
            echo: u32::MAX,
        }),
        ..Options::default()
    };
    let no_operations = [1; HEADER_MAX - HEADER_LEN];
    let (bytes, length) = options.bytes();
    assert_eq!((bytes, length), options.any_bytes(no_operations));
    assert_eq!(Options::parse(&bytes[..length]), options);
    assert_eq!(Options::parse_any(&bytes[..length]), options);
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        options in options(),
        ports: (u16, u16), numbers: (u32, u32), flags: u8, window: u16, urgent: u16,
        source: [u8; 4], destination: [u8; 4],
        payload in prop::collection::vec(any::<u8>(), 0..100),
        offload: bool,
    ) {
        let header = Header {
            source_port: ports.0,
            destination_port: ports.1,
            sequence: numbers.0,
            acknowledgment: numbers.1,
            flags: Flags(flags),
            window,
            urgent,
            options,
        };
        let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
        let checksum = if offload { Checksum::Offload } else { Checksum::Software };
        let mut bytes = vec![0xaa; header.header_len() + payload.len()];
        let length = header
            .emit(Addresses::V4(source, destination), &payload, checksum, &mut bytes)
            .unwrap();
        prop_assert_eq!(length, bytes.len());
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(packet.header(), header);
        prop_assert_eq!(packet.payload(), &payload[..]);
        let state = packet.checksum_state(Addresses::V4(source, destination));
        prop_assert!(state == ChecksumState::Valid || offload && state == ChecksumState::LeftToOffload);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(packet) = Packet::new(&bytes) {
            prop_assert!(packet.header_len() + packet.payload().len() == bytes.len());
            let header = packet.header();
            prop_assert!(header.options.sack.as_slice().len() <= SackBlocks::MAX);
        } else {
            prop_assert!(bytes.len() < 20 || bytes[12] >> 4 < 5 || usize::from(bytes[12] >> 4) * 4 > bytes.len());
        }
    }

    #[test]
    fn sequence_numbers_are_ordered_round_the_circle(a: u32, distance in 1u32..0x8000_0000) {
        prop_assert!(before(a, a.wrapping_add(distance)));
        prop_assert!(!before(a.wrapping_add(distance), a) || distance == 0x8000_0000);
        prop_assert!(!before(a, a));
    }
}

#[test]
fn options_are_laid_out_as_linux_does() {
    let options = Options {
        maximum_segment_size: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        ..Options::default()
    };
    let (bytes, length) = options.bytes();
    assert_eq!(
        bytes[..length],
        [
            2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7
        ]
    );
}

#[test]
fn fast_open_is_laid_out_as_linux_does() {
    let written = |option: FastOpen| {
        let options = Options::default().with_fast_open(Some(option));
        let (bytes, length) = options.bytes();
        assert_eq!(Options::parse(&bytes[..length]), options);
        bytes[..length].to_vec()
    };
    assert_eq!(written(FastOpen::REQUEST), [34, 2, 1, 1]);
    let experimental = FastOpen::REQUEST.with_experimental(true);
    assert_eq!(written(experimental), [254, 4, 0xf9, 0x89]);
    let cookie = FastOpen::cookie_of(&[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(written(cookie), [34, 8, 1, 2, 3, 4, 5, 6]);
    assert_eq!(
        written(cookie.with_experimental(true)),
        [254, 10, 0xf9, 0x89, 1, 2, 3, 4, 5, 6, 1, 1]
    );
    // With all options of a SYN, the longest cookie just fits.
    let options = Options {
        maximum_segment_size: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        ..Options::default()
    }
    .with_fast_open(FastOpen::cookie_of(&[9; 16]).map(|option| option.with_experimental(true)));
    let (bytes, length) = options.bytes();
    assert_eq!((length, options.len()), (40, 40));
    assert_eq!(Options::parse(&bytes), options);
}

#[test]
fn acp_is_an_experiment_by_its_number() {
    let options = Options {
        maximum_segment_size: Some(1460),
        ..Options::default()
    }
    .with_acp(Some(1));
    let (bytes, length) = options.bytes();
    assert_eq!(
        bytes[..length],
        [2, 4, 5, 180, 253, 5, 0xac, 0x90, 1, 1, 1, 1]
    );
    assert_eq!(length, options.len());
    assert_eq!(Options::parse(&bytes[..length]), options);
    assert_eq!(options.fast_open(), None);
    assert!(options.sack.is_empty() && !options.is_empty());
    // Another experiment, and another length.
    assert_eq!(Options::parse(&[253, 5, 0xac, 0x91, 1]).acp(), None);
    assert_eq!(Options::parse(&[253, 4, 0xac, 0x90]).acp(), None);
    // Beside a Fast Open option, on either side of it, the ACP option counts.
    for both in [
        [34, 2, 253, 5, 0xac, 0x90, 7],
        [253, 5, 0xac, 0x90, 7, 34, 2],
    ] {
        let options = Options::parse(&both);
        assert_eq!((options.acp(), options.fast_open()), (Some(7), None));
    }
}

#[test]
fn cookies_of_a_wrong_length_are_no_option() {
    for length in [1, 2, 3, 5, 7, 15, 17, 18, 20] {
        let mut bytes = vec![34, 2 + length as u8];
        bytes.extend(core::iter::repeat_n(7, length));
        assert_eq!(Options::parse(&bytes).fast_open(), None, "{length}");
        assert_eq!(FastOpen::cookie_of(&bytes[2..]), None, "{length}");
    }
    // Another experiment.
    assert_eq!(Options::parse(&[254, 4, 0xf9, 0x88]).fast_open(), None);
    assert_eq!(Options::parse(&[254, 2]).fast_open(), None);
    // An invalid option does not undo an earlier one.
    let options = Options::parse(&[34, 2, 1, 1, 34, 3, 9]);
    assert_eq!(options.fast_open(), Some(FastOpen::REQUEST));
}

#[test]
fn options_of_a_wrong_length_are_skipped() {
    // A length of zero would loop forever; one beyond the end would read other bytes.
    for bad in [&[2, 0, 5, 180][..], &[2, 1], &[3, 9, 1], &[8]] {
        assert_eq!(Options::parse(bad), Options::default(), "{bad:?}");
    }
    let options = Options::parse(&[2, 3, 9, 254, 4, 1, 2, 1, 3, 3, 20, 0, 2, 4, 5, 180]);
    assert_eq!(options.window_scale, Some(20));
    assert_eq!(options.maximum_segment_size, None);
}

fn addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| Addresses::V4(a.into(), b.into())),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| Addresses::V6(a.into(), b.into())),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let fields = any::<(u16, u16, u32, u32, u8, u16, u16)>();
    (fields, options()).prop_map(|(fields, options)| Header {
        source_port: fields.0,
        destination_port: fields.1,
        sequence: fields.2,
        acknowledgment: fields.3,
        flags: Flags(fields.4),
        window: fields.5,
        urgent: fields.6,
        options,
    })
}

proptest! {
    /// A header is written before a payload that stays where it is, with another length
    /// and other addresses, even of the other family. The result equals a whole new
    /// segment. The sum is not that of a damaged payload.
    #[test]
    fn a_new_header_before_the_old_payload_is_that_of_a_new_segment(
        (old, old_addresses) in (header(), addresses()),
        (new, new_addresses) in (header(), addresses()),
        payload in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(prop_oneof![Just(0u8), Just(0xff)], 0..40),
        ],
        damage in any::<(prop::sample::Index, u8)>(),
    ) {
        let mut received = vec![0; old.header_len() + payload.len()];
        old.emit(old_addresses, &payload, Checksum::Software, &mut received).unwrap();
        // One checksum in 65,536 looks as if it was left to a device.
        let sum = Packet::new(&received).unwrap().payload_sum(old_addresses);
        let sum = sum.unwrap_or(Sum::ZERO.bytes(&payload));
        let mut wanted = vec![0xaa; new.header_len() + payload.len()];
        new.emit(new_addresses, &payload, Checksum::Software, &mut wanted).unwrap();
        let mut sent = vec![0x55; new.header_len()];
        let written =
            new.emit_before(new_addresses, payload.len(), PayloadChecksum::Sum(sum), &mut sent);
        prop_assert_eq!(written, Ok(new.header_len()));
        sent.extend(&payload);
        let packet = Packet::new(&sent).unwrap();
        prop_assert_eq!(packet.checksum_state(new_addresses), ChecksumState::Valid);
        // Both zeros of one's complement are the same number.
        let field = |bytes: &[u8]| u16::from_be_bytes([bytes[16], bytes[17]]) % 0xffff;
        prop_assert_eq!(field(&sent), field(&wanted));
        wanted[16..18].copy_from_slice(&sent[16..18]);
        prop_assert_eq!(&sent, &wanted);

        let mut offloaded = sent.clone();
        let offload = PayloadChecksum::Offload;
        new.emit_before(new_addresses, payload.len(), offload, &mut offloaded).unwrap();
        let state = Packet::new(&offloaded).unwrap().checksum_state(new_addresses);
        prop_assert!(matches!(state, ChecksumState::LeftToOffload | ChecksumState::Valid));
        let left = Packet::new(&offloaded).unwrap().payload_sum(new_addresses);
        prop_assert!(left.is_none());

        // A payload that was damaged in transit stays wrong.
        let (place, by) = damage;
        if !payload.is_empty() && by != 0 {
            let start = new.header_len();
            let place = start + place.index(payload.len());
            sent[place] ^= by;
            let state = Packet::new(&sent).unwrap().checksum_state(new_addresses);
            prop_assert_ne!(state, ChecksumState::Valid);
        }
    }

    #[test]
    fn a_header_before_a_payload_needs_its_room(header in header(), missing in 1usize..20) {
        let mut room = vec![0; header.header_len() - missing];
        let addresses = Addresses::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        prop_assert!(header.emit_before(addresses, 0, PayloadChecksum::Offload, &mut room).is_err());
        let long = usize::from(u16::MAX);
        let mut room = vec![0; 60];
        prop_assert!(header.emit_before(addresses, long, PayloadChecksum::Offload, &mut room).is_err());
    }
}
