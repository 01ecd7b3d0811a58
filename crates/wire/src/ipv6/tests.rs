use super::*;
use proptest::prelude::*;

const HEADER: Header = Header {
    traffic_class: 0xb8,
    flow_label: 0x12345,
    next_header: Protocol::UDP,
    hop_limit: 64,
    source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
};

/// An extension header of `units` × 8 bytes beyond the first eight.
fn extension(next: Protocol, units: u8) -> Vec<u8> {
    let mut bytes = vec![0; (usize::from(units) + 1) * 8];
    bytes[..2].copy_from_slice(&[next.0, units]);
    bytes
}

fn fragment(next: Protocol, offset: u16, more: bool) -> Vec<u8> {
    let header = Fragment {
        at: 0,
        announced_at: 0,
        next_header: next,
        offset: FragmentOffset::from_bytes(offset).unwrap(),
        more,
        identification: 0xdead_beef,
    };
    let mut bytes = vec![0; 8];
    assert!(header.emit(&mut bytes).unwrap().is_empty());
    bytes
}

#[test]
fn the_chain_of_every_extension_is_walked() {
    let chain = [
        extension(Protocol::ROUTING, 0),
        extension(Protocol::FRAGMENT, 2),
        fragment(Protocol::AUTHENTICATION, 0, true),
        // 4 in units of four bytes minus two: 24 bytes.
        [&[Protocol::DESTINATION_OPTIONS.0, 4][..], &[0; 22]].concat(),
        extension(Protocol::UDP, 1),
        vec![0; 8],
    ]
    .concat();
    let found = Extensions::walk(Protocol::HOP_BY_HOP, &chain).unwrap();
    assert_eq!(found.protocol, Protocol::UDP);
    assert_eq!(found.transport, 40 + 8 + 24 + 8 + 24 + 16);
    assert_eq!(
        found.fragment,
        Some(Fragment {
            at: 72,
            announced_at: 48,
            next_header: Protocol::AUTHENTICATION,
            offset: FragmentOffset::ZERO,
            more: true,
            identification: 0xdead_beef,
        })
    );
}

#[test]
fn a_later_fragment_ends_the_walk() {
    let bytes = fragment(Protocol::DESTINATION_OPTIONS, 1440, false);
    let found = Extensions::walk(Protocol::FRAGMENT, &bytes).unwrap();
    assert_eq!(
        (found.protocol, found.transport),
        (Protocol::DESTINATION_OPTIONS, 48)
    );
    let header = found.fragment.unwrap();
    assert_eq!(
        (header.offset.bytes(), header.more, header.announced_at),
        (1440, false, 6)
    );
    assert!(!header.is_atomic());
}

#[test]
fn an_atomic_fragment_is_walked_through() {
    let bytes = [fragment(Protocol::UDP, 0, false), vec![0; 8]].concat();
    let found = Extensions::walk(Protocol::FRAGMENT, &bytes).unwrap();
    assert_eq!((found.protocol, found.transport), (Protocol::UDP, 48));
    assert!(found.fragment.unwrap().is_atomic());
}

#[test]
fn eight_extensions_are_walked_and_nine_refused() {
    let options = |count: usize| {
        let mut chain = vec![extension(Protocol::DESTINATION_OPTIONS, 0); count - 1].concat();
        chain.extend(extension(Protocol::UDP, 0));
        Extensions::walk(Protocol::DESTINATION_OPTIONS, &chain)
    };
    assert_eq!(options(8).unwrap().transport, 40 + 64);
    assert_eq!(options(9), Err(ExtensionError::TooMany));
    // Even a fragment header, which ends the walk, must not be the ninth.
    let mut chain = vec![extension(Protocol::DESTINATION_OPTIONS, 0); 7].concat();
    chain.extend(extension(Protocol::FRAGMENT, 0));
    chain.extend(fragment(Protocol::UDP, 1440, false));
    assert_eq!(
        Extensions::walk(Protocol::DESTINATION_OPTIONS, &chain),
        Err(ExtensionError::TooMany)
    );
}

#[test]
fn each_bad_chain_has_its_own_error() {
    let walk = |first, bytes: &[u8]| Extensions::walk(first, bytes).unwrap_err();
    assert_eq!(walk(Protocol::ROUTING, &[17]), ExtensionError::Truncated);
    assert_eq!(
        walk(Protocol::ROUTING, &extension(Protocol::UDP, 1)[..15]),
        ExtensionError::Truncated
    );
    assert_eq!(
        walk(Protocol::FRAGMENT, &[17, 0, 0, 1, 0, 0, 0]),
        ExtensionError::Truncated
    );
    let chain = [
        extension(Protocol::HOP_BY_HOP, 0),
        extension(Protocol::UDP, 0),
    ]
    .concat();
    assert_eq!(
        walk(Protocol::ROUTING, &chain),
        ExtensionError::HopByHopNotFirst
    );
    let chain = [
        fragment(Protocol::FRAGMENT, 0, true),
        fragment(Protocol::UDP, 0, true),
    ]
    .concat();
    assert_eq!(
        walk(Protocol::FRAGMENT, &chain),
        ExtensionError::SecondFragment
    );
}

#[test]
fn each_bad_header_has_its_own_error() {
    let mut bytes = vec![0; 48];
    HEADER.emit(8, &mut bytes).unwrap();
    assert_eq!(Packet::new(&bytes[..39]).unwrap_err(), Error::Truncated);
    assert_eq!(Packet::new(&bytes[..47]).unwrap_err(), Error::Truncated);
    assert_eq!(Packet::new_quoted(&bytes[..47]).unwrap().payload().len(), 7);
    bytes[0] = 0x45;
    assert_eq!(Packet::new(&bytes).unwrap_err(), Error::Version);
    assert!(HEADER.emit(65_536, &mut bytes).is_err());
    assert!(HEADER.emit(0, &mut bytes[..39]).is_err());
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        (traffic_class, next_header, hop_limit) in any::<(u8, u8, u8)>(),
        flow_label in 0u32..1 << 20,
        (source, destination) in any::<([u8; 16], [u8; 16])>(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
        padding in 0usize..20,
    ) {
        let header = Header {
            traffic_class,
            flow_label,
            next_header: Protocol(next_header),
            hop_limit,
            source: source.into(),
            destination: destination.into(),
        };
        let mut bytes = vec![0; HEADER_LEN];
        header.emit(payload.len(), &mut bytes).unwrap();
        bytes.extend(&payload);
        bytes.resize(bytes.len() + padding, 0);
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(Header::of(&packet), header);
        prop_assert_eq!(packet.payload(), &payload[..]);
    }

    #[test]
    fn a_walk_ends_inside_the_datagram(
        first in prop::sample::select(vec![0u8, 43, 44, 51, 60, 17]),
        payload in prop::collection::vec(
            prop_oneof![Just(0u8), Just(43), Just(44), Just(51), Just(60), any::<u8>()], 0..200),
    ) {
        if let Ok(found) = Extensions::walk(Protocol(first), &payload) {
            prop_assert!(found.transport <= HEADER_LEN + payload.len());
            if let Some(fragment) = found.fragment {
                prop_assert!(fragment.announced_at < fragment.at);
                prop_assert!(fragment.at + FRAGMENT_HEADER_LEN <= found.transport);
            }
        }
    }
}
