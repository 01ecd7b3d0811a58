//! A served file: its content and its header fields.

use std::fmt::Write;
use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

/// The location of the content.
#[derive(Debug)]
pub enum Bytes {
    /// In memory.
    Memory(Box<[u8]>),
    /// In the file, to be read while it is sent.
    File(File),
}

/// A served file.
#[derive(Debug)]
pub struct Entry {
    /// Its content.
    pub bytes: Bytes,
    /// Length of the content.
    pub size: u64,
    /// Strong entity tag, quoted (RFC 9110 §8.8.3).
    pub etag: String,
    /// Time of last modification, in seconds since 1970.
    pub modified: u64,
    /// Its media type.
    pub content_type: String,
    /// The fields Last-Modified, ETag and Accept-Ranges, with line ends.
    pub fields: String,
    /// All fields of a response with the full content, with line ends.
    pub full: String,
}

impl Entry {
    /// Describes `bytes`, `size` long, last modified `modified` after 1970, as of `now`
    /// (seconds after 1970): Last-Modified is no later than that (RFC 9110 §8.8.2.1). The
    /// entity tag consists of `inode`, size and time of modification to the nanosecond.
    /// It is as strong as the file system's clock is fine, which is the usual price for
    /// not hashing files.
    pub fn new(
        bytes: Bytes,
        size: u64,
        inode: u64,
        modified: Duration,
        now: u64,
        content_type: String,
    ) -> Self {
        let seconds = modified.as_secs().min(now);
        let etag = format!("\"{inode:x}-{size:x}-{:x}\"", modified.as_nanos());
        let fields = format!(
            "Last-Modified: {}\r\nETag: {etag}\r\nAccept-Ranges: bytes\r\n",
            date(seconds)
        );
        let full = format!("Content-Type: {content_type}\r\nContent-Length: {size}\r\n{fields}");
        Entry {
            bytes,
            size,
            etag,
            modified: seconds,
            content_type,
            fields,
            full,
        }
    }
}

/// Latest time for which a date is written: the end of year 9999, beyond which RFC 9110's
/// form has no room.
const DATE_MAX: u64 = 253_402_300_799;

/// Formats a time, in seconds since 1970, as in RFC 9110 §5.6.7.
pub fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(DATE_MAX));
    let mut text = String::with_capacity(29);
    // Writing to a string cannot fail.
    let _ = write!(text, "{}", HttpDate::from(time));
    text
}

/// Parses a date in any of the forms of RFC 9110 §5.6.7; returns seconds since 1970.
pub fn seconds(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim();
    let time: SystemTime = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH)
        .ok()
        .map(|time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_and_read() {
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(seconds(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(seconds(b"yesterday"), None);
        assert_eq!(seconds(b"\xff"), None);
    }

    #[test]
    fn tags_tell_versions_apart() {
        let tag = |inode, size, nanoseconds| {
            let modified = Duration::from_nanos(nanoseconds);
            Entry::new(
                Bytes::Memory([].into()),
                size,
                inode,
                modified,
                0,
                String::new(),
            )
            .etag
        };
        assert_eq!(tag(1, 2, 3), "\"1-2-3\"");
        assert_ne!(tag(1, 2, 3), tag(1, 2, 4));
        assert_ne!(tag(1, 2, 3), tag(2, 2, 3));
    }
}
