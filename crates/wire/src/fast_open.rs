//! The Fast Open option (RFC 7413 §4.1.1): a cookie, or a request for one.

use core::fmt;

/// Kind of the option (IANA).
pub(crate) const KIND: u8 = 34;
/// Kind of experimental options (RFC 6994), of which Fast Open was one.
pub(crate) const KIND_EXPERIMENTAL: u8 = 254;
/// Distinguishes Fast Open from other experiments (RFC 6994, RFC 7413 §8).
pub(crate) const MAGIC: [u8; 2] = [0xf9, 0x89];

/// The Fast Open option of a SYN or SYN-ACK. Other segments have no such option, and a
/// receiver ignores one there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastOpen {
    /// Zero beyond the cookie's length.
    bytes: [u8; Self::MAX],
    length: u8,
    experimental: bool,
}

impl FastOpen {
    /// The shortest cookie, in bytes.
    pub const MIN: usize = 4;
    /// The longest cookie, in bytes.
    pub const MAX: usize = 16;
    /// A request for a cookie.
    pub const REQUEST: Self = Self {
        bytes: [0; Self::MAX],
        length: 0,
        experimental: false,
    };

    /// A cookie; `None` unless it has 4 to 16 bytes, an even number of them.
    #[must_use]
    pub fn cookie_of(bytes: &[u8]) -> Option<Self> {
        if !(Self::MIN..=Self::MAX).contains(&bytes.len()) || !bytes.len().is_multiple_of(2) {
            return None;
        }
        let mut option = Self::REQUEST;
        option.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        option.length = bytes.len() as u8;
        Some(option)
    }

    /// The same in the experimental form of the option (kind 254), for peers from before
    /// RFC 7413, or in the standard form.
    #[must_use]
    pub const fn with_experimental(mut self, experimental: bool) -> Self {
        self.experimental = experimental;
        self
    }

    /// True in the experimental form.
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// The cookie's bytes; none for a request.
    pub fn cookie(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }

    /// True for a request for a cookie.
    pub const fn is_request(&self) -> bool {
        self.length == 0
    }

    /// Reads the bytes after the option's kind and length. Like Linux, it ignores a
    /// cookie of an invalid length.
    pub(crate) fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        let experimental = kind == KIND_EXPERIMENTAL;
        let cookie = if experimental {
            body.strip_prefix(&MAGIC)?
        } else {
            body
        };
        let option = if cookie.is_empty() {
            Self::REQUEST
        } else {
            Self::cookie_of(cookie)?
        };
        Some(option.with_experimental(experimental))
    }

    /// Bytes of the option, without padding.
    const fn unpadded(&self) -> usize {
        let base = if self.experimental { 4 } else { 2 };
        base + self.length as usize
    }

    /// Bytes that it takes in a header, a multiple of four.
    pub(crate) const fn len(&self) -> usize {
        self.unpadded().next_multiple_of(4)
    }

    /// Writes the option, followed by no-operations as padding, as Linux does.
    pub(crate) fn write(&self, put: &mut dyn FnMut(&[u8])) {
        let length = self.unpadded() as u8;
        if self.experimental {
            put(&[KIND_EXPERIMENTAL, length]);
            put(&MAGIC);
        } else {
            put(&[KIND, length]);
        }
        put(self.cookie());
        put([1; 3]
            .get(..self.len() - self.unpadded())
            .unwrap_or_default());
    }
}

impl fmt::Debug for FastOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.experimental { "FOEXP " } else { "FO " })?;
        for byte in self.cookie() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
