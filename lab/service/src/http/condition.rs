//! Conditional requests (RFC 9110 §13).

use super::entry::{Entry, seconds};
use super::request::Head;

/// The result of the preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They hold: the request is carried out.
    Proceed,
    /// The client has it already: 304.
    NotModified,
    /// They do not hold: 412.
    Failed,
}

/// Evaluates the preconditions of a GET or HEAD in the order of §13.2.2.
pub fn evaluate(head: &Head<'_, '_>, entry: &Entry) -> Verdict {
    let dated = |name| head.fields.one(name).and_then(seconds);
    let mut matches = head.fields.all("If-Match").peekable();
    if matches.peek().is_some() {
        if !matches.any(|field| any_tag(field, |tag| tag == entry.etag.as_bytes())) {
            return Verdict::Failed;
        }
    } else if dated("If-Unmodified-Since").is_some_and(|since| entry.modified > since) {
        return Verdict::Failed;
    }
    let mut matches = head.fields.all("If-None-Match").peekable();
    let known = if matches.peek().is_some() {
        let weak = |tag: &[u8]| opaque(tag) == entry.etag.as_bytes();
        matches.any(|field| any_tag(field, weak))
    } else {
        dated("If-Modified-Since").is_some_and(|since| entry.modified <= since)
    };
    if known {
        Verdict::NotModified
    } else {
        Verdict::Proceed
    }
}

/// Returns whether to honour a Range: If-Range (§13.1.5) names this very version. A date
/// counts only if the file had been unchanged for a second by `now` (seconds since 1970);
/// otherwise it would be no strong validator (§8.8.2.2).
pub fn range_applies(head: &Head<'_, '_>, entry: &Entry, now: u64) -> bool {
    let mut fields = head.fields.all("If-Range");
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return head.fields.all("If-Range").next().is_none();
    };
    let field = field.trim_ascii();
    if field.starts_with(b"\"") || field.starts_with(b"W/") {
        return field == entry.etag.as_bytes();
    }
    seconds(field).is_some_and(|date| date == entry.modified && date < now)
}

/// Returns the part of an entity tag that weak comparison compares (§8.8.3.2).
pub(super) fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns whether a list of entity tags is `*` or has one that `suits`.
pub(super) fn any_tag(field: &[u8], suits: impl Fn(&[u8]) -> bool) -> bool {
    let mut rest = field.trim_ascii();
    if rest == b"*" {
        return true;
    }
    loop {
        // Commas may be within a tag, so its quotes delimit it.
        let Some(open) = rest.iter().position(|&byte| byte == b'"') else {
            return false;
        };
        let inside = rest.get(open + 1..).unwrap_or_default();
        let Some(length) = inside.iter().position(|&byte| byte == b'"') else {
            return false;
        };
        let end = open + length + 2;
        let start = match rest.get(open.saturating_sub(2)..open) {
            Some(b"W/") => open - 2,
            _ => open,
        };
        if rest.get(start..end).is_some_and(&suits) {
            return true;
        }
        rest = rest.get(end..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::time::Duration;

    use super::super::Limits;
    use super::super::entry::{Bytes, date};
    use super::super::request::{FIELDS_MAX, Parsed, parse};
    use super::*;

    const MODIFIED: u64 = 784_111_777;
    const TAG: &str = "\"7-5-ae1c3b4a2e0ba00\"";

    fn entry() -> Entry {
        let modified = Duration::from_secs(MODIFIED);
        Entry::new(
            Bytes::Memory((*b"hello").into()),
            5,
            7,
            modified,
            MODIFIED,
            String::new(),
        )
    }

    fn with<T>(fields: &str, look: impl FnOnce(&Head<'_, '_>) -> T) -> T {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        match parse(text.as_bytes(), &mut 0, &mut room, &Limits::default()) {
            Parsed::Whole(head, _) => look(&head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn preconditions_in_their_order() {
        let (at, before, after) = (date(MODIFIED), date(MODIFIED - 1), date(MODIFIED + 1));
        assert_eq!(
            entry().etag,
            format!("\"7-5-{:x}\"", MODIFIED * 1_000_000_000)
        );
        let tag = entry().etag;
        use Verdict::{Failed, NotModified, Proceed};
        for (fields, verdict) in [
            ("Accept: x".to_owned(), Proceed),
            (format!("If-None-Match: {tag}"), NotModified),
            (format!("If-None-Match: W/{tag}"), NotModified),
            (
                format!("If-None-Match: \"a,b\", W/\"c\" ,{tag}"),
                NotModified,
            ),
            (
                format!("If-None-Match: \"a\"\r\nIf-None-Match: {tag}"),
                NotModified,
            ),
            ("If-None-Match: *".to_owned(), NotModified),
            ("If-None-Match: \"other\"".to_owned(), Proceed),
            (format!("If-None-Match: {}", tag.trim_matches('"')), Proceed),
            (format!("If-Modified-Since: {at}"), NotModified),
            (format!("If-Modified-Since: {after}"), NotModified),
            (format!("If-Modified-Since: {before}"), Proceed),
            ("If-Modified-Since: soon".to_owned(), Proceed),
            // A tag outweighs a date.
            (
                format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {after}"),
                Proceed,
            ),
            (format!("If-Match: {tag}"), Proceed),
            ("If-Match: *".to_owned(), Proceed),
            (format!("If-Match: W/{tag}"), Failed),
            ("If-Match: \"x\"".to_owned(), Failed),
            (
                format!("If-Match: {tag}\r\nIf-None-Match: {tag}"),
                NotModified,
            ),
            (format!("If-Unmodified-Since: {before}"), Failed),
            (format!("If-Unmodified-Since: {at}"), Proceed),
            (
                format!("If-Match: {tag}\r\nIf-Unmodified-Since: {before}"),
                Proceed,
            ),
        ] {
            assert_eq!(
                with(&fields, |head| evaluate(head, &entry())),
                verdict,
                "{fields}"
            );
        }
    }

    #[test]
    fn a_range_is_of_the_version_it_names() {
        let now = MODIFIED + 100;
        let tag = entry().etag;
        for (fields, applies) in [
            ("Accept: x".to_owned(), true),
            (format!("If-Range: {tag}"), true),
            (format!("If-Range: W/{tag}"), false),
            ("If-Range: \"x\"".to_owned(), false),
            (format!("If-Range: {}", date(MODIFIED)), true),
            (format!("If-Range: {}", date(MODIFIED + 1)), false),
            ("If-Range: whatever".to_owned(), false),
            (format!("If-Range: {tag}\r\nIf-Range: {tag}"), false),
        ] {
            let got = with(&fields, |head| range_applies(head, &entry(), now));
            assert_eq!(got, applies, "{fields}");
        }
        let fields = format!("If-Range: {}", date(MODIFIED));
        assert!(
            !with(&fields, |head| range_applies(head, &entry(), MODIFIED)),
            "modified this second: it may be again"
        );
        assert!(any_tag(b"W/\"\",\"x\"", |tag| tag == b"W/\"\""));
        assert!(!any_tag(TAG.as_bytes(), |tag| tag == b"\"\""));
        assert!(!any_tag(b"\"unclosed", |_| true));
    }
}
