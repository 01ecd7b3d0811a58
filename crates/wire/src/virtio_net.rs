//! The header before each frame of a tun or tap interface: `struct virtio_net_hdr` (OASIS
//! Virtio 1.2 §5.1.6). It has the legacy form of ten bytes in the host's byte order,
//! which is TUN's default.

/// Bytes of the header.
pub const HEADER_LEN: usize = 10;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;

/// The header's description of the frame after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The frame's checksum is not finished.
    pub checksum: Option<Unfinished>,
    /// The frame stands for several segments.
    pub segments: Option<Segments>,
}

/// A checksum whose field holds only the sum of the pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Start of the summed bytes, from the frame's first byte.
    pub start: u16,
    /// Offset of the checksum from `start`.
    pub offset: u16,
}

/// A segment that is longer than a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// The kind of segment.
    pub kind: Kind,
    /// Bytes of all headers; only a hint.
    pub headers: u16,
    /// Bytes of payload in each segment but the last.
    pub payload: u16,
}

/// A kind of long segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(pub u8);

impl Kind {
    /// TCP over IPv4 (VIRTIO_NET_HDR_GSO_TCPV4).
    pub const TCP_V4: Self = Self(1);
    /// TCP over IPv6 (VIRTIO_NET_HDR_GSO_TCPV6).
    pub const TCP_V6: Self = Self(4);
}

impl Header {
    /// Parses a header; every value is valid.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let [flags, kind, a, b, c, d, e, f, g, h] = *bytes;
        let unfinished = Unfinished {
            start: u16::from_ne_bytes([e, f]),
            offset: u16::from_ne_bytes([g, h]),
        };
        let segments = Segments {
            kind: Kind(kind),
            headers: u16::from_ne_bytes([a, b]),
            payload: u16::from_ne_bytes([c, d]),
        };
        Header {
            checksum: (flags & NEEDS_CHECKSUM != 0).then_some(unfinished),
            segments: (kind != 0).then_some(segments),
        }
    }

    /// The bytes of the header before its frame.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut write = |at: usize, value: u16| {
            if let Some(place) = bytes.get_mut(at..at + 2) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
        };
        if let Some(segments) = self.segments {
            write(2, segments.headers);
            write(4, segments.payload);
        }
        if let Some(checksum) = self.checksum {
            write(6, checksum.start);
            write(8, checksum.offset);
            bytes[0] = NEEDS_CHECKSUM;
        }
        bytes[1] = self.segments.map_or(0, |segments| segments.kind.0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let checksum = Unfinished {
            start: 20,
            offset: 16,
        };
        let segments = Segments {
            kind: Kind::TCP_V4,
            headers: 52,
            payload: 9128,
        };
        for header in [
            Header::default(),
            Header {
                checksum: Some(checksum),
                segments: None,
            },
            Header {
                checksum: Some(checksum),
                segments: Some(segments),
            },
        ] {
            assert_eq!(Header::parse(&header.bytes()), header);
        }
    }
}
