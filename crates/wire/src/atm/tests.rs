use proptest::prelude::*;

use super::*;
use crate::ethernet::EtherType;

/// The examples of I.432.1: the header of an idle cell, and of an unassigned one.
#[test]
fn published_headers() {
    assert_eq!(header_error_control([0, 0, 0, 1]), 0x52);
    assert_eq!(header_error_control([0, 0, 0, 0]), 0x55);
}

#[test]
fn fields_are_where_the_recommendation_has_them() {
    let circuit = Circuit {
        vpi: 0xab,
        vci: 0x1234,
    };
    let mut header = CellHeader::new(circuit, PayloadType::USER_LAST).unwrap();
    header.low_priority = true;
    let bytes = header.bytes();
    assert_eq!(bytes[..4], [0x0a, 0xb1, 0x23, 0x43]);
    assert_eq!(CellHeader::parse(bytes), Ok(header));
    let over = Circuit { vpi: 256, vci: 32 };
    assert_eq!(CellHeader::new(over, PayloadType::USER), None);
}

#[test]
fn a_flipped_bit_of_a_header_is_found() {
    let header = CellHeader::new(Circuit::SIGNALLING, PayloadType::USER).unwrap();
    let good = header.bytes();
    for bit in 0..40 {
        let mut bytes = good;
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        assert!(CellHeader::parse(bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn a_cell_has_53_bytes() {
    let header = CellHeader::new(Circuit { vpi: 1, vci: 32 }, PayloadType::USER).unwrap();
    let mut bytes = [7; CELL_LEN];
    bytes[..5].copy_from_slice(&header.bytes());
    let cell = Cell::new(&bytes).unwrap();
    assert_eq!(cell.header(), header);
    assert_eq!(cell.payload(), &[7; 48]);
    assert_eq!(Cell::new(&bytes[..52]).unwrap_err(), CellError::Length(52));
    assert_eq!(Cell::new(&[0; 54]).unwrap_err(), CellError::Length(54));
}

#[test]
fn payload_types() {
    let last: Vec<u8> = (0..8)
        .filter(|bits| PayloadType::from_bits(*bits).is_last())
        .collect();
    assert_eq!(last, [1, 3]);
    let congested = (0..8).filter(|bits| PayloadType::from_bits(*bits).is_congested());
    assert_eq!(congested.collect::<Vec<u8>>(), [2, 3]);
    assert!(!PayloadType::OAM_SEGMENT.is_user() && !PayloadType::OAM_END_TO_END.is_user());
}

#[test]
fn addresses_are_read_with_dots_and_written_without() {
    let text = "47.0005.80.ffe100.0000.f21a.20ac.002048080000.00";
    let address: Nsap = text.parse().unwrap();
    assert_eq!(address.to_string(), text.replace('.', ""));
    for wrong in ["", "47", "zz", &text[1..], &format!("{text}00")] {
        assert_eq!(wrong.parse::<Nsap>(), Err(InvalidNsap), "{wrong}");
    }
}

#[test]
fn llc_headers_of_rfc_2684() {
    let mut buffer = [0; 12];
    let rest = llc::emit_routed(EtherType::IPV4, &mut buffer).unwrap();
    rest.copy_from_slice(b"ipv4");
    assert_eq!(buffer[..8], [0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    assert_eq!(
        llc::Payload::parse(&buffer),
        Ok(llc::Payload::Routed(EtherType::IPV4, b"ipv4"))
    );
    let bridged = [0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7, 9];
    assert_eq!(
        llc::Payload::parse(&bridged),
        Ok(llc::Payload::Bridged(7, &[9]))
    );
    assert_eq!(
        llc::Payload::parse(&[0xfe, 0xfe, 3, 0x81]),
        Ok(llc::Payload::Iso(&[0x81]))
    );
    let other = [0xaa, 0xaa, 3, 1, 2, 3, 0, 7];
    let error = llc::Payload::parse(&other).unwrap_err();
    assert_eq!(error, llc::Error::Organisation([1, 2, 3]));
    assert_eq!(llc::Payload::parse(&other[..7]), Err(llc::Error::Truncated));
    let unknown = llc::Payload::parse(&[0xaa, 0xaa, 0xf3]);
    assert_eq!(unknown, Err(llc::Error::Llc([0xaa, 0xaa, 0xf3])));
    assert!(llc::emit_routed(EtherType::ARP, &mut [0; 7]).is_err());
}

proptest! {
    /// The code detects every error burst of up to eight bits (its degree is 8).
    #[test]
    fn a_burst_in_a_header_is_found(header: [u8; 4], at in 0_u32..32, burst in 1_u64..256) {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&header);
        bytes[4] = header_error_control(header);
        let damaged = u64::from_be_bytes(bytes) ^ burst << (56 - at);
        let [a, b, c, d, e, ..] = damaged.to_be_bytes();
        prop_assert!(CellHeader::parse([a, b, c, d, e]).is_err());
    }
}
