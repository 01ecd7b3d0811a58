use super::*;
use proptest::prelude::*;

const HEADER: Header = Header {
    tos: 0,
    identification: 0x1c46,
    dont_fragment: true,
    more_fragments: false,
    fragment_offset: FragmentOffset::ZERO,
    ttl: 64,
    protocol: Protocol::TCP,
    source: Ipv4Addr::new(172, 16, 10, 99),
    destination: Ipv4Addr::new(172, 16, 10, 12),
    options: Options::NONE,
};

fn emitted(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xaa; header.header_len()];
    assert!(header.emit(payload.len(), &mut bytes).unwrap().is_empty());
    bytes.extend(payload);
    bytes
}

#[test]
fn a_known_header_comes_out_byte_for_byte() {
    let bytes = emitted(&HEADER, &[0; 40]);
    let expected = [
        0x45, 0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0xb1, 0xe6, 0xac, 0x10, 0x0a,
        0x63, 0xac, 0x10, 0x0a, 0x0c,
    ];
    assert_eq!(bytes[..20], expected);
}

#[test]
fn each_wrong_length_has_its_own_error() {
    let good = emitted(&HEADER, b"payload!");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(Packet::new(&good[..19]).unwrap_err(), Error::Truncated);
    assert_eq!(Packet::new(&good[..27]).unwrap_err(), Error::Truncated);
    assert_eq!(Packet::new(&with(0, 0x65)).unwrap_err(), Error::Version);
    assert_eq!(
        Packet::new(&with(0, 0x44)).unwrap_err(),
        Error::HeaderLength
    );
    assert_eq!(
        Packet::new(&with(0, 0x48)).unwrap_err(),
        Error::HeaderLength
    );
    assert_eq!(Packet::new(&with(3, 19)).unwrap_err(), Error::HeaderLength);
    assert_eq!(Packet::new(&with(3, 29)).unwrap_err(), Error::Truncated);
}

#[test]
fn link_padding_is_left_out_and_a_quote_may_be_cut() {
    let mut bytes = emitted(&HEADER, b"payload!");
    bytes.extend([0; 18]);
    assert_eq!(Packet::new(&bytes).unwrap().payload(), b"payload!");
    assert_eq!(Packet::new_quoted(&bytes).unwrap().payload(), b"payload!");
    assert_eq!(Packet::new_quoted(&bytes[..24]).unwrap().payload(), b"payl");
    let options = Header {
        options: Options::new(&[1; 8]).unwrap(),
        ..HEADER
    };
    let bytes = emitted(&options, &[]);
    assert_eq!(
        Packet::new_quoted(&bytes[..24]).unwrap_err(),
        Error::Truncated
    );
}

#[test]
fn damage_to_any_header_byte_is_noticed() {
    let good = emitted(&HEADER, &[]);
    for at in 8..20 {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert!(
            !Packet::new(&bytes).unwrap().has_valid_checksum(),
            "byte {at}"
        );
    }
}

#[test]
fn what_cannot_be_sent_is_refused() {
    assert_eq!(
        HEADER.emit(65_516, &mut [0; 20]).unwrap_err(),
        EmitError::PayloadTooLong {
            limit: 65_515,
            length: 65_516
        }
    );
    assert!(HEADER.emit(usize::MAX, &mut [0; 20]).is_err());
    assert_eq!(
        HEADER.emit(0, &mut [0; 19]).unwrap_err(),
        EmitError::BufferTooSmall {
            needed: 20,
            available: 19
        }
    );
    assert!(Options::new(&[1; 41]).is_none());
    assert_eq!(FragmentOffset::from_bytes(12), None);
    let last = FragmentOffset::from_bytes(65_528);
    assert_eq!(last.map(FragmentOffset::bytes), Some(65_528));
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        (tos, identification, dont_fragment, more_fragments) in any::<(u8, u16, bool, bool)>(),
        units in 0u16..8192,
        (ttl, protocol, source, destination) in any::<(u8, u8, [u8; 4], [u8; 4])>(),
        options in prop::collection::vec(any::<u8>(), 0..=40),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let header = Header {
            tos,
            identification,
            dont_fragment,
            more_fragments,
            fragment_offset: FragmentOffset::from_bytes(units * 8).unwrap(),
            ttl,
            protocol: Protocol(protocol),
            source: source.into(),
            destination: destination.into(),
            options: Options::new(&options).unwrap(),
        };
        let bytes = emitted(&header, &payload);
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(Header::of(&packet), header);
        prop_assert!(packet.has_valid_checksum());
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.is_fragment(), more_fragments || units != 0);
        prop_assert_eq!(packet.option_bytes().len(), options.len().next_multiple_of(4));
    }
}
