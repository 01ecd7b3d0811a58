//! Range requests (RFC 9110 §14).
//!
//! A single range is answered, which clients that resume or seek request. A request for
//! several ranges receives the whole representation, which §14.2 allows.

use std::ops::Range;

/// The part of a representation that a Range field requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// All of it: the field has another unit, several ranges, or is malformed.
    Whole,
    /// These bytes, at least one.
    Part(Range<u64>),
    /// Nothing that exists: 416.
    Unsatisfiable,
}

/// Parses a Range field for a representation of `size` bytes.
pub fn parse(field: &[u8], size: u64) -> Ranges {
    let text = std::str::from_utf8(field).unwrap_or_default();
    let Some((unit, spec)) = text.trim().split_once('=') else {
        return Ranges::Whole;
    };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Ranges::Whole;
    }
    match one(spec.trim_matches([' ', '\t']), size) {
        None => Ranges::Whole,
        Some(range) if range.is_empty() => Ranges::Unsatisfiable,
        Some(range) => Ranges::Part(range),
    }
}

/// Parses `first-last`, `first-` or `-length`; an empty range if it is out of the
/// representation, `None` if it is malformed.
fn one(spec: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = spec.split_once('-')?;
    if first.is_empty() {
        let length = number(last)?;
        return Some(size.saturating_sub(length)..size);
    }
    let first = number(first)?;
    let last = match last {
        "" => u64::MAX,
        last => number(last)?,
    };
    if last < first {
        return None;
    }
    let end = last.saturating_add(1).min(size);
    Some(first.min(end)..end)
}

/// Parses a number of digits only; beyond 64 bits it is the largest.
fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_rfc_9110() {
        for (field, expected) in [
            ("bytes=0-499", Ranges::Part(0..500)),
            ("bytes=500-999", Ranges::Part(500..1000)),
            ("bytes=-500", Ranges::Part(9500..10000)),
            ("bytes=9500-", Ranges::Part(9500..10000)),
            ("Bytes= 0-99999999999999999999999", Ranges::Part(0..10000)),
            ("bytes=-20000", Ranges::Part(0..10000)),
            ("bytes=10000-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=0-0,-1", Ranges::Whole),
            ("bytes=5-4", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("bytes=--1", Ranges::Whole),
            ("bytes", Ranges::Whole),
            ("seconds=0-1", Ranges::Whole),
        ] {
            assert_eq!(parse(field.as_bytes(), 10_000), expected, "{field}");
        }
        assert_eq!(parse(b"bytes=0-\xff", 10), Ranges::Whole);
        assert_eq!(parse(b"bytes=0-", 0), Ranges::Unsatisfiable);
    }

    proptest! {
        #[test]
        fn any_field_is_answered(field in prop::collection::vec(any::<u8>(), 0..64), size: u64) {
            if let Ranges::Part(part) = parse(&field, size) {
                prop_assert!(part.start < part.end && part.end <= size);
            }
        }
    }
}
