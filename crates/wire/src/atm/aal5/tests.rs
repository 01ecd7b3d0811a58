use proptest::prelude::*;

use super::*;

/// The three examples of I.363.5's appendix: 40 bytes of zero, of ones, and 1 to 40.
#[test]
fn published_pdus() {
    let counting: Vec<u8> = (1..=40).collect();
    let examples: [(&[u8], u32); 3] = [
        (&[0; 40], 0x864d_7f99),
        (&[0xff; 40], 0xc55e_457a),
        (&counting, 0xbf67_1ed0),
    ];
    for (payload, crc) in examples {
        let mut pdu = [0xee; 48];
        assert_eq!(emit(payload, 0, &mut pdu), Ok(48));
        assert_eq!(pdu[44..], crc.to_be_bytes(), "{payload:?}");
        assert_eq!(pdu[40..44], [0, 0, 0, 40]);
        assert_eq!(Pdu::new(&pdu).unwrap().payload(), payload);
    }
}

#[test]
fn sizes_at_the_limits() {
    assert_eq!(pdu_len(40), 48);
    assert_eq!(pdu_len(41), 96);
    assert_eq!(PDU_MAX, 1_366 * 48);
    let mut buffer = vec![0; PDU_MAX];
    let most = vec![1; PAYLOAD_MAX];
    assert_eq!(emit(&most, 9, &mut buffer), Ok(PDU_MAX));
    let pdu = Pdu::new(&buffer).unwrap();
    assert_eq!((pdu.payload(), pdu.user_to_user()), (&most[..], 9));
    for length in [0, PAYLOAD_MAX + 1] {
        let error = emit(&vec![0; length], 0, &mut buffer).unwrap_err();
        let limit = PAYLOAD_MAX;
        assert_eq!(error, EmitError::PayloadTooLong { limit, length });
    }
    let error = emit(&[0; 41], 0, &mut [0; 95]).unwrap_err();
    let (needed, available) = (96, 95);
    assert_eq!(error, EmitError::BufferTooSmall { needed, available });
}

/// A PDU of one cell with the given trailer and a valid CRC-32.
fn with_trailer(trailer: [u8; 4]) -> [u8; 48] {
    let mut pdu = [0; 48];
    pdu[40..44].copy_from_slice(&trailer);
    let crc = Crc32::new().update(&pdu[..44]).value();
    pdu[44..].copy_from_slice(&crc.to_be_bytes());
    pdu
}

#[test]
fn each_error_has_its_cause() {
    let wrong = |trailer| Pdu::new(&with_trailer(trailer)).unwrap_err();
    assert_eq!(wrong([0, 0, 0, 0]), Error::Aborted);
    assert_eq!(wrong([0, 1, 0, 40]), Error::CommonPart(1));
    let (length, pdu) = (41, 48);
    assert_eq!(wrong([0, 0, 0, 41]), Error::Length { length, pdu });
    assert_eq!(Pdu::new(&[]).unwrap_err(), Error::Size(0));
    assert_eq!(Pdu::new(&[0; 47]).unwrap_err(), Error::Size(47));
    let long = vec![0; PDU_MAX + 48];
    assert_eq!(Pdu::new(&long).unwrap_err(), Error::Size(long.len()));
    // One cell too many for its length.
    let mut two = vec![0; 96];
    two[88..92].copy_from_slice(&[0, 0, 0, 40]);
    let crc = Crc32::new().update(&two[..92]).value();
    two[92..].copy_from_slice(&crc.to_be_bytes());
    let (length, pdu) = (40, 96);
    assert_eq!(Pdu::new(&two).unwrap_err(), Error::Length { length, pdu });
}

proptest! {
    #[test]
    fn what_is_emitted_is_read(payload in prop::collection::vec(any::<u8>(), 1..3000), uu: u8) {
        let mut buffer = vec![0xaa; pdu_len(payload.len())];
        let length = emit(&payload, uu, &mut buffer).unwrap();
        prop_assert_eq!(length, buffer.len());
        let pdu = Pdu::new(&buffer).unwrap();
        prop_assert_eq!((pdu.payload(), pdu.user_to_user()), (&payload[..], uu));
        let crc = Crc32::new().update(&buffer[..length - 48]);
        let continued = Pdu::continued(&buffer, crc).unwrap();
        prop_assert_eq!(continued.payload(), &payload[..]);
    }

    /// A PDU written in parts equals the PDU written at once.
    #[test]
    fn parts_make_the_pdu(
        payload in prop::collection::vec(any::<u8>(), 1..3000),
        uu: u8,
        cells in 1_usize..40,
    ) {
        let mut whole = vec![0xaa; pdu_len(payload.len())];
        emit(&payload, uu, &mut whole).unwrap();
        let (mut so_far, mut parts) = (PartialPdu::default(), Vec::<u8>::new());
        while parts.len() < whole.len() {
            let mut part = vec![0xaa; cells * 48];
            let next = emit_part(&payload, uu, so_far, &mut part).unwrap();
            parts.extend(&part[..next.written() - so_far.written()]);
            so_far = next;
        }
        prop_assert_eq!(parts, whole);
    }

    /// Eight bytes at a time give the same CRC as one at a time.
    #[test]
    fn the_crc_is_the_same_however_it_is_cut(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in 0_usize..600,
    ) {
        let whole = Crc32::new().update(&bytes);
        let (first, rest) = bytes.split_at(cut.min(bytes.len()));
        prop_assert_eq!(Crc32::new().update(first).update(rest), whole);
        let single = bytes.iter().fold(Crc32::new(), |crc, byte| crc.update(&[*byte]));
        prop_assert_eq!(single, whole);
    }

    #[test]
    fn a_lost_or_exchanged_cell_is_found(
        payload in prop::collection::vec(any::<u8>(), 100..500),
        at: prop::sample::Index,
    ) {
        let mut buffer = vec![0; pdu_len(payload.len())];
        let length = emit(&payload, 0, &mut buffer).unwrap();
        let cell = at.index(length / 48 - 1) * 48;
        let mut short = buffer.clone();
        short.drain(cell..cell + 48);
        prop_assert!(Pdu::new(&short).is_err());
        let mut exchanged = buffer.clone();
        let (first, second) = exchanged[cell..].split_at_mut(48);
        first.swap_with_slice(&mut second[..48]);
        prop_assert!(exchanged == buffer || Pdu::new(&exchanged).is_err());
    }
}
