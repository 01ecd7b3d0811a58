//! Range requests (RFC 9110 §14).
//!
//! Several ranges are answered as multipart/byteranges. Those that overlap or
//! nearly touch are joined first (§15.3.7.2 allows it), and a request for more
//! than [`RANGES_MAX`] of them is answered whole (§14.2 allows that too): the
//! work of an answer stays in proportion to that of asking.

use std::ops::Range;

/// Most parts of an answer.
pub const RANGES_MAX: usize = 16;
/// Ranges closer than this are joined: about the overhead of a part.
const JOIN_WITHIN: u64 = 80;

/// What a Range field asks for of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// All of it: the field has another unit, is malformed or excessive.
    Whole,
    /// These bytes, joined, in the order first asked for; never empty ranges.
    Parts(Vec<Range<u64>>),
    /// Nothing that exists: 416.
    Unsatisfiable,
}

/// Reads a Range field for a representation of `size` bytes.
pub fn parse(field: &[u8], size: u64) -> Ranges {
    let Ok(text) = std::str::from_utf8(field) else {
        return Ranges::Whole;
    };
    let Some((unit, set)) = text.trim().split_once('=') else {
        return Ranges::Whole;
    };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Ranges::Whole;
    }
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut specs = 0;
    for spec in set.split(',').map(|spec| spec.trim_matches([' ', '\t'])) {
        // Empty elements are to be ignored in a reasonable number (§5.6.1.2).
        specs += 1;
        if specs > 4 * RANGES_MAX {
            return Ranges::Whole;
        }
        if spec.is_empty() {
            continue;
        }
        match one(spec, size) {
            Some(range) if range.is_empty() => {}
            Some(range) => join(&mut parts, range),
            None => return Ranges::Whole,
        }
    }
    match parts.len() {
        // `bytes=` alone is malformed.
        0 if set.trim().is_empty() => Ranges::Whole,
        0 => Ranges::Unsatisfiable,
        1..=RANGES_MAX => Ranges::Parts(parts),
        _ => Ranges::Whole,
    }
}

/// `first-last`, `first-` or `-length`; an empty range when it is out of the
/// representation, `None` when it is malformed.
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

/// Digits only; beyond 64 bits is the largest.
fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// Adds a range, in the place of the first that it reaches.
fn join(parts: &mut Vec<Range<u64>>, new: Range<u64>) {
    let near = |a: &Range<u64>, b: &Range<u64>| {
        a.start <= b.end.saturating_add(JOIN_WITHIN) && b.start <= a.end.saturating_add(JOIN_WITHIN)
    };
    let mut new = new;
    let mut place = parts.len();
    // Joined, it may reach others that it did not before.
    while let Some(at) = parts.iter().position(|part| near(part, &new)) {
        let part = parts.remove(at);
        new = new.start.min(part.start)..new.end.max(part.end);
        place = place.min(at);
    }
    parts.insert(place.min(parts.len()), new);
}

#[cfg(test)]
// One part is a range, not a list of numbers.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(ranges: &[Range<u64>]) -> Ranges {
        Ranges::Parts(ranges.to_vec())
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one part of several")]
    fn ranges_of_rfc_9110() {
        for (field, expected) in [
            ("bytes=0-499", parts(&[0..500])),
            ("bytes=500-999", parts(&[500..1000])),
            ("bytes=-500", parts(&[9500..10000])),
            ("bytes=9500-", parts(&[9500..10000])),
            ("bytes=0-0,-1", parts(&[0..1, 9999..10000])),
            (
                "bytes= 0-0, 4500-5499, -1000",
                parts(&[0..1, 4500..5500, 9000..10000]),
            ),
            ("bytes=500-600,601-999", parts(&[500..1000])),
            ("bytes=500-700,601-999", parts(&[500..1000])),
            ("Bytes=0-99999999999999999999999", parts(&[0..10000])),
            ("bytes=-20000", parts(&[0..10000])),
            (
                "bytes=9000-9999,0-9,8990-9000",
                parts(&[8990..10000, 0..10]),
            ),
            ("bytes=10000-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=20000-30000, -0", Ranges::Unsatisfiable),
            ("bytes=20000-,5-5", parts(&[5..6])),
            ("bytes=5-4", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("bytes=--1", Ranges::Whole),
            ("bytes", Ranges::Whole),
            ("seconds=0-1", Ranges::Whole),
            ("bytes=0-1,x", Ranges::Whole),
        ] {
            assert_eq!(parse(field.as_bytes(), 10_000), expected, "{field}");
        }
        assert_eq!(parse(b"bytes=0-\xff", 10), Ranges::Whole);
        assert_eq!(parse(b"bytes=0-", 0), Ranges::Unsatisfiable);
    }

    #[test]
    fn an_excess_of_ranges_is_answered_whole() {
        let many = |count: u64| {
            let specs: Vec<String> = (0..count).map(|n| format!("{0}-{0}", n * 1000)).collect();
            parse(format!("bytes={}", specs.join(",")).as_bytes(), 1_000_000)
        };
        assert!(matches!(many(16), Ranges::Parts(parts) if parts.len() == 16));
        assert_eq!(many(17), Ranges::Whole);
        assert_eq!(many(10_000), Ranges::Whole);
        assert_eq!(
            parse(&[b"bytes=".as_slice(), &[b','; 65_536]].concat(), 10),
            Ranges::Whole
        );
    }

    proptest! {
        /// Parts exist, are apart, and hold exactly what was asked for and
        /// small gaps.
        #[test]
        fn parts_cover_what_was_asked(
            size in 1u64..2000,
            asked in prop::collection::vec((0u64..2500, 0u64..300), 1..12),
        ) {
            let specs: Vec<String> = asked.iter().map(|(at, more)| format!("{at}-{}", at + more)).collect();
            let wanted = |byte: u64| asked.iter().any(|(at, more)| (*at..=at + more).contains(&byte));
            match parse(format!("bytes={}", specs.join(",")).as_bytes(), size) {
                Ranges::Parts(parts) => {
                    for part in &parts {
                        prop_assert!(part.start < part.end && part.end <= size);
                        prop_assert!(wanted(part.start) && wanted(part.end - 1));
                    }
                    for byte in 0..size {
                        let holders = parts.iter().filter(|part| part.contains(&byte)).count();
                        prop_assert!(holders <= 1);
                        prop_assert!(holders == 1 || !wanted(byte));
                    }
                }
                Ranges::Unsatisfiable => prop_assert!((0..size).all(|byte| !wanted(byte))),
                Ranges::Whole => prop_assert!(false, "nothing malformed was asked"),
            }
        }

        #[test]
        fn any_field_is_answered(field in prop::collection::vec(any::<u8>(), 0..64), size: u64) {
            if let Ranges::Parts(parts) = parse(&field, size) {
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= size));
            }
        }
    }
}
