//! The client side of the Domain Name System, as far as a load needs it (RFC 1035 §4):
//! one query, sent repeatedly with a different ID.

/// Bytes of an ID, which comes first.
pub(crate) const ID: usize = 2;
/// Bytes of a header.
const HEADER: usize = 12;
/// Longest label and name, bytes (RFC 1035 §2.3.4; a name without its dot at the end).
const LABEL_MAX: usize = 63;
const NAME_MAX: usize = 253;

/// Returns a query for the address (A) of `name`, without the ID in front, recursion
/// desired. `None`: not a valid name.
pub(crate) fn query(name: &str) -> Option<Vec<u8>> {
    // Flags: RD. One question, and no records.
    let mut bytes = vec![1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    if name.len() > NAME_MAX {
        return None;
    }
    for label in name.split('.') {
        if !(1..=LABEL_MAX).contains(&label.len()) {
            return None;
        }
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    // The root; type A, class IN.
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    Some(bytes)
}

/// Returns whether this is an answer without error (QR, RCODE 0) that has at least one
/// record.
pub(crate) fn is_answer(message: &[u8]) -> bool {
    let Some(&[_, _, flags, more_flags, _, _, answers_high, answers_low, ..]) =
        message.first_chunk::<HEADER>()
    else {
        return false;
    };
    flags & 0x80 != 0 && more_flags & 0x0f == 0 && (answers_high, answers_low) != (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_as_the_standard_has_it() {
        assert_eq!(
            query("a.test").unwrap(),
            b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01"
        );
        for bad in ["", ".", "a..b", "a.", &"x".repeat(64), &"x.".repeat(127)] {
            assert!(query(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn only_a_good_answer_is_one() {
        let message = |flags: [u8; 2], answers: u8| {
            let mut message = vec![7, 0, flags[0], flags[1], 0, 1, 0, answers, 0, 0, 0, 0];
            message.extend_from_slice(b"\x01a\x00\x00\x01\x00\x01");
            message
        };
        assert!(is_answer(&message([0x81, 0x80], 1)));
        assert!(!is_answer(&message([0x01, 0x80], 1)), "a query");
        assert!(!is_answer(&message([0x81, 0x83], 1)), "NXDOMAIN");
        assert!(!is_answer(&message([0x81, 0x80], 0)), "no record");
        assert!(!is_answer(&message([0x81, 0x80], 1)[..11]));
    }
}
