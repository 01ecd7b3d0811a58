use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use proptest::prelude::*;

const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HEADER: Header = Header {
    source_port: 5000,
    destination_port: 53,
};

fn emitted(payload: &[u8], checksum: Checksum) -> Vec<u8> {
    let mut bytes = vec![0xaa; HEADER_LEN + payload.len()];
    let addresses = Addresses::V4(SOURCE, DESTINATION);
    let length = HEADER
        .emit(addresses, payload, checksum, &mut bytes)
        .unwrap();
    assert_eq!(length, bytes.len());
    bytes
}

fn state(bytes: &[u8]) -> ChecksumState {
    Packet::new(bytes)
        .unwrap()
        .checksum_state(Addresses::V4(SOURCE, DESTINATION))
}

#[test]
fn each_way_of_sending_a_checksum_is_distinguished() {
    assert_eq!(
        state(&emitted(b"hello", Checksum::Software)),
        ChecksumState::Valid
    );
    assert_eq!(
        state(&emitted(b"hello", Checksum::Offload)),
        ChecksumState::LeftToOffload
    );
    assert_eq!(
        state(&emitted(b"hello", Checksum::None)),
        ChecksumState::Absent
    );
    let mut damaged = emitted(b"hello", Checksum::Software);
    damaged[9] ^= 1;
    assert_eq!(state(&damaged), ChecksumState::Invalid);
}

#[test]
fn a_computed_zero_is_sent_as_all_ones() {
    // The payload with which the rest sums to 0xffff.
    let without = emitted(&[0, 0], Checksum::Software);
    let rest = Packet::new(&without).unwrap().checksum();
    let bytes = emitted(&rest.to_be_bytes(), Checksum::Software);
    assert_eq!(Packet::new(&bytes).unwrap().checksum(), 0xffff);
    assert_eq!(state(&bytes), ChecksumState::Valid);
}

#[test]
fn lengths_that_contradict_are_refused_and_trailing_bytes_left_out() {
    assert_eq!(Packet::new(&[0; 7]).unwrap_err(), Error::Truncated);
    let mut bytes = emitted(b"hello", Checksum::Software);
    for (length, expected) in [
        (0, Err(Error::Length)),
        (7, Err(Error::Length)),
        (8, Ok(0)),
        (12, Ok(4)),
        (13, Ok(5)),
        (14, Err(Error::Length)),
    ] {
        bytes[5] = length;
        assert_eq!(
            Packet::new(&bytes).map(|packet| packet.payload().len()),
            expected
        );
    }
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let addresses = Addresses::V4(SOURCE, DESTINATION);
    let payload = vec![0; PAYLOAD_MAX + 1];
    let mut buffer = vec![0; 70_000];
    assert_eq!(
        HEADER.emit(addresses, &payload, Checksum::None, &mut buffer),
        Err(EmitError::PayloadTooLong {
            limit: PAYLOAD_MAX,
            length: PAYLOAD_MAX + 1
        })
    );
    assert_eq!(
        HEADER.emit(addresses, b"hello", Checksum::None, &mut [0; 12]),
        Err(EmitError::BufferTooSmall {
            needed: 13,
            available: 12
        })
    );
    assert_eq!(
        Addresses::new(SOURCE.into(), Ipv6Addr::LOCALHOST.into()),
        None
    );
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        source: [u8; 16], destination: [u8; 16], source_port: u16, destination_port: u16,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let header = Header { source_port, destination_port };
        let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
        let mut bytes = vec![0; HEADER_LEN + payload.len()];
        header
            .emit(Addresses::V6(source, destination), &payload, Checksum::Software, &mut bytes)
            .unwrap();
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(Header::of(&packet), header);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.checksum_state(Addresses::V6(source, destination)), ChecksumState::Valid);
    }
}
