use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use proptest::prelude::*;

const V4: Addresses = Addresses::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST);
const V6: Addresses = Addresses::V6(
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
);

#[test]
fn short_messages_and_short_buffers_are_refused() {
    assert_eq!(Message::parse(&[3; 7]).unwrap_err(), Error::Truncated);
    let message = Message {
        kind: v6::kind::PACKET_TOO_BIG,
        code: 0,
        rest: 1280u32.to_be_bytes(),
        body: &[1, 2, 3],
    };
    for addresses in [V4, V6] {
        assert_eq!(
            message.emit(addresses, &mut [0; 10]),
            Err(EmitError::BufferTooSmall {
                needed: 11,
                available: 10
            })
        );
    }
}

#[test]
fn the_second_word_is_read() {
    let mut message = Message::parse(&[5, 6, 0, 0, 1, 2, 3, 4]).unwrap();
    assert_eq!((message.kind, message.code), (5, 6));
    assert_eq!((message.mtu_v4(), message.sequence()), (0x0304, 0x0304));
    assert_eq!(message.mtu_v6(), 0x0102_0304);
    message.rest = [0, 0, 5, 220];
    assert_eq!((message.mtu_v4(), message.mtu_v6()), (1500, 1500));
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        kind: u8, code: u8, rest: [u8; 4], body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let message = Message { kind, code, rest, body: &body };
        for addresses in [V4, V6] {
            let mut bytes = [0xaa; 300];
            let length = message.emit(addresses, &mut bytes).unwrap();
            let bytes = &mut bytes[..length];
            assert!(has_valid_checksum(addresses, bytes));
            assert_eq!(Message::parse(bytes), Ok(message));
            bytes[length - 1] ^= 0x40;
            assert!(!has_valid_checksum(addresses, bytes));
            bytes[length - 1] ^= 0x40;
            if let Addresses::V6(source, _) = addresses {
                let others = Addresses::V6(source, Ipv6Addr::LOCALHOST);
                assert!(!has_valid_checksum(others, bytes));
            }
        }
    }
}
