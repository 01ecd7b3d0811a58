use proptest::prelude::*;

use super::*;

fn emitted(pdu: Pdu<'_>) -> Vec<u8> {
    let mut buffer = vec![0xee; PDU_MAX];
    let length = pdu.emit(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

fn number(value: u32) -> Sequence {
    Sequence::new(value)
}

/// The figures of Q.2110 §7.2, byte by byte.
#[test]
fn fields_are_where_the_recommendation_has_them() {
    let begin = Pdu::Begin {
        sequence: 7,
        credit: number(0x12_3456),
        data: b"abcde",
    };
    let bytes = *b"abcde\0\0\0\0\0\0\x07\xc1\x12\x34\x56";
    assert_eq!(emitted(begin), bytes);
    let data = Pdu::Data {
        number: number(3),
        data: b"abcd",
    };
    assert_eq!(emitted(data), *b"abcd\x08\0\0\x03");
    let poll = Pdu::Poll {
        poll: number(1),
        next: number(2),
    };
    assert_eq!(emitted(poll), [0, 0, 0, 1, 10, 0, 0, 2]);
    let status = Pdu::Status {
        missing: List::new(&[[0, 0, 0, 2], [0, 0, 0, 3]]),
        poll: number(9),
        credit: number(8),
        expected: number(2),
    };
    let bytes = [0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 8, 11, 0, 0, 2];
    assert_eq!(emitted(status), bytes);
    let unsolicited = Pdu::UnsolicitedStatus {
        first: number(2),
        end: number(3),
        credit: number(8),
        expected: number(2),
    };
    let bytes = [0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 8, 12, 0, 0, 2];
    assert_eq!(emitted(unsolicited), bytes);
    let end = Pdu::End {
        by_protocol: true,
        data: &[],
    };
    assert_eq!(emitted(end), [0, 0, 0, 0, 0x13, 0, 0, 0]);
}

#[test]
fn lengths_that_a_type_cannot_have() {
    for (bytes, error) in [
        (&[][..], Error::Length(0)),
        (&[8, 0, 0], Error::Length(3)),
        (&[1, 0, 0, 0], Error::Length(4)),
        (&[10, 0, 0, 0], Error::Length(4)),
        (&[0, 0, 0, 0, 11, 0, 0, 0], Error::Length(8)),
        (&[0, 0, 0, 0, 12, 0, 0, 0], Error::Length(8)),
        // A pad of three bytes, and no data.
        (&[0xc8, 0, 0, 0], Error::Length(4)),
        (&[0, 0, 0, 0], Error::Type(0)),
    ] {
        assert_eq!(Pdu::parse(bytes), Err(error), "{bytes:?}");
    }
    let mut long = vec![0; DATA_MAX + 4];
    long.extend([8, 0, 0, 0]);
    assert_eq!(Pdu::parse(&long), Err(Error::TooLong(DATA_MAX + 4)));
    let list = vec![[0; 4]; LIST_MAX + 1];
    let status = Pdu::Status {
        missing: List::new(&list),
        poll: number(0),
        credit: number(0),
        expected: number(0),
    };
    assert!(status.emit(&mut [0; 400]).is_err());
}

#[test]
fn numbers_go_round() {
    let last = number(u32::MAX);
    assert_eq!(last.value(), 0xff_ffff);
    assert_eq!(last.plus(1), number(0));
    assert_eq!(number(1).since(last), 2);
}

proptest! {
    #[test]
    fn what_is_emitted_is_read(
        kind in 0..15,
        data in prop::collection::vec(any::<u8>(), 0..=64),
        list in prop::collection::vec(0_u32..1 << 24, 0..=LIST_MAX),
        sequence: u8,
        numbers: [u32; 4],
        flag: bool,
    ) {
        let [a, b, c, d] = numbers.map(number);
        let list: Vec<[u8; 4]> = list.into_iter().map(u32::to_be_bytes).collect();
        let data = &data[..];
        let pdu = match kind {
            0 => Pdu::Begin { sequence, credit: a, data },
            1 => Pdu::BeginAcknowledge { credit: a, data },
            2 => Pdu::BeginReject { data },
            3 => Pdu::End { by_protocol: flag, data },
            4 => Pdu::EndAcknowledge,
            5 => Pdu::Resynchronize { sequence, credit: a, data },
            6 => Pdu::ResynchronizeAcknowledge { credit: a },
            7 => Pdu::Recover { sequence, credit: a },
            8 => Pdu::RecoverAcknowledge { credit: a },
            9 => Pdu::Data { number: a, data },
            10 => Pdu::Poll { poll: a, next: b },
            11 => Pdu::Status { missing: List::new(&list), poll: a, credit: b, expected: c },
            12 => Pdu::UnsolicitedStatus { first: a, end: b, credit: c, expected: d },
            13 => Pdu::UnnumberedData { data },
            _ => Pdu::ManagementData { data },
        };
        let bytes = emitted(pdu);
        prop_assert_eq!(Pdu::parse(&bytes), Ok(pdu));
    }
}
