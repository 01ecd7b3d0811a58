//! The header before each frame of a tap, and of a packet socket with PACKET_VNET_HDR
//! (`tidewall_wire::virtio_net`): its request to the kernel.

use tidewall_wire::tcp;
use tidewall_wire::virtio_net::{HEADER_LEN, Header, Kind, Segments, Unfinished};

use crate::queue::{LongSegment, Offload};

/// Bytes of the header.
pub(crate) const LENGTH: usize = HEADER_LEN;

/// Bytes of an Ethernet header, and where in it the type stands.
const ETHERNET: usize = 14;
const ETHERTYPE: usize = 12;

/// The header of a frame to be sent without a request to the kernel.
pub(crate) const PLAIN: [u8; LENGTH] = [0; LENGTH];

/// The header of a frame whose checksum the kernel must finish, or the host that finally
/// receives the frame.
pub(crate) fn with_checksum(offload: Offload) -> [u8; LENGTH] {
    asking(offload, None).bytes()
}

fn asking(offload: Offload, segments: Option<Segments>) -> Header {
    let checksum = Unfinished {
        start: offload.checksum_start,
        offset: offload.checksum_offset,
    };
    Header {
        checksum: Some(checksum),
        segments,
    }
}

/// The header of a TCP segment. The kernel or the device splits it where its payload is
/// longer than [`LongSegment::segment_size`]. `None` when the headers are not those of a
/// TCP segment over IP, or the request does not fit them: the kernel would refuse it.
pub(crate) fn with_segments(segment: &LongSegment<'_>) -> Option<[u8; LENGTH]> {
    let LongSegment {
        headers,
        offload,
        segment_size,
        ..
    } = *segment;
    let kind = match headers.get(ETHERTYPE..ETHERNET)? {
        [0x08, 0x00] => Kind::TCP_V4,
        [0x86, 0xdd] => Kind::TCP_V6,
        _ => return None,
    };
    let start = usize::from(offload.checksum_start);
    let data_offset = headers.get(start.checked_add(12)?)? >> 4;
    let sane = offload.checksum_offset == tcp::CHECKSUM_OFFSET
        && segment_size > 0
        && start >= ETHERNET + 20
        && data_offset >= 5
        && headers.len() == start + usize::from(data_offset) * 4;
    if !sane {
        return None;
    }
    let segments = Segments {
        kind,
        headers: u16::try_from(headers.len()).ok()?,
        payload: segment_size,
    };
    let cut = segment.payload_len() > usize::from(segment_size);
    Some(asking(offload, cut.then_some(segments)).bytes())
}

/// True when the kernel reports that the frame stands for several segments. An unfinished
/// checksum shows in the checksum itself, as on a veth pair.
pub(crate) fn is_long(header: &[u8; LENGTH]) -> bool {
    Header::parse(header).segments.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a TCP segment with `words` words of TCP header.
    fn headers(v6: bool, words: u8) -> (Vec<u8>, Offload) {
        let ip = if v6 { 40 } else { 20 };
        let mut headers = vec![0; 14 + ip + usize::from(words) * 4];
        let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
        headers[12..14].copy_from_slice(&ethertype);
        headers[14 + ip + 12] = words << 4;
        let offload = Offload {
            checksum_start: 14 + ip as u16,
            checksum_offset: 16,
        };
        (headers, offload)
    }

    fn header(
        headers: &[u8],
        payload: usize,
        offload: Offload,
        segment_size: u16,
    ) -> Option<[u8; LENGTH]> {
        let payload = vec![0; payload];
        let (first, second) = payload.split_at(payload.len() / 3);
        with_segments(&LongSegment {
            headers,
            payload: [first, second],
            offload,
            segment_size,
        })
    }

    fn words(header: &[u8; LENGTH]) -> Vec<u16> {
        let word = |word: &[u8]| u16::from_ne_bytes([word[0], word[1]]);
        header[2..].chunks(2).map(word).collect()
    }

    #[test]
    fn long_segments_are_described_as_virtio_wants_it() {
        let (bytes, offload) = headers(false, 8);
        let long = header(&bytes, 5000, offload, 1448).unwrap();
        assert_eq!(long[..2], [1, 1]);
        assert_eq!(words(&long), [66, 1448, 34, 16]);
        let (bytes, offload) = headers(true, 5);
        let long = header(&bytes, 3000, offload, 1440).unwrap();
        assert_eq!(long[..2], [1, 4]);
        assert_eq!(words(&long)[0], 74);
        assert!(is_long(&long));
    }

    #[test]
    fn a_full_segment_is_not_cut() {
        let (bytes, offload) = headers(false, 8);
        let full = header(&bytes, 1448, offload, 1448).unwrap();
        assert!(!is_long(&full));
        assert_eq!(words(&full), [0, 0, 34, 16]);
        assert_eq!(header(&bytes, 0, offload, 1448), Some(full));
    }

    #[test]
    fn the_kernel_is_asked_nothing_that_it_would_refuse() {
        let (bytes, offload) = headers(false, 5);
        assert!(header(&bytes, 3000, offload, 0).is_none());
        let udp = Offload {
            checksum_offset: 6,
            ..offload
        };
        assert!(header(&bytes, 3000, udp, 1000).is_none());
        for checksum_start in [14, u16::MAX] {
            let elsewhere = Offload {
                checksum_start,
                ..offload
            };
            assert!(header(&bytes, 3000, elsewhere, 1000).is_none());
        }
        assert!(header(&[], 3000, offload, 1000).is_none());
        let longer = [&bytes[..], &[0; 4]].concat();
        assert!(header(&longer, 3000, offload, 1000).is_none());
        let mut arp = bytes;
        arp[13] = 6;
        assert!(header(&arp, 3000, offload, 1000).is_none());
    }

    #[test]
    fn a_packet_is_not_long() {
        assert!(!is_long(&PLAIN));
        let offload = Offload {
            checksum_start: 34,
            checksum_offset: 6,
        };
        let header = with_checksum(offload);
        assert!(!is_long(&header));
        assert_eq!(header[..6], [1, 0, 0, 0, 0, 0]);
    }
}
