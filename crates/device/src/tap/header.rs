//! What the header before each frame of the tap (`tidewall_wire::virtio_net`) asks of the kernel.

use tidewall_wire::tcp;
use tidewall_wire::virtio_net::{HEADER_LEN, Header, Kind, Segments, Unfinished};

use crate::queue::Offload;

/// Bytes of the header.
pub(super) const LENGTH: usize = HEADER_LEN;

/// Bytes of an Ethernet header, and where in it the type stands.
const ETHERNET: usize = 14;
const ETHERTYPE: usize = 12;

/// The header of a frame to be sent: nothing asked of the kernel.
pub(super) const PLAIN: [u8; LENGTH] = [0; LENGTH];

/// The header of a frame whose checksum the kernel, or the host that the frame goes
/// to in the end, shall finish.
pub(super) fn with_checksum(offload: Offload) -> [u8; LENGTH] {
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

/// The header of a frame with a long TCP segment, for segments of
/// `segment_size` bytes of payload. `None` when the frame is no TCP segment
/// over IP, or the request does not fit it: the kernel would refuse it.
pub(super) fn with_segments(
    frame: &[u8],
    offload: Offload,
    segment_size: u16,
) -> Option<[u8; LENGTH]> {
    let kind = match frame.get(ETHERTYPE..ETHERNET)? {
        [0x08, 0x00] => Kind::TCP_V4,
        [0x86, 0xdd] => Kind::TCP_V6,
        _ => return None,
    };
    let start = usize::from(offload.checksum_start);
    let data_offset = frame.get(start.checked_add(12)?)? >> 4;
    let headers = start + usize::from(data_offset) * 4;
    let sane = offload.checksum_offset == tcp::CHECKSUM_OFFSET
        && segment_size > 0
        && start >= ETHERNET + 20
        && data_offset >= 5
        && headers < frame.len();
    if !sane {
        return None;
    }
    let segments = Segments {
        kind,
        headers: u16::try_from(headers).ok()?,
        payload: segment_size,
    };
    Some(asking(offload, Some(segments)).bytes())
}

/// True when the kernel says that the frame stands for several segments. That
/// its checksum is unfinished shows in the checksum itself, as on a veth pair.
pub(super) fn is_long(header: &[u8; LENGTH]) -> bool {
    Header::parse(header).segments.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a TCP segment with `payload` bytes behind `options` words.
    fn segment(v6: bool, words: u8, payload: usize) -> (Vec<u8>, Offload) {
        let ip = if v6 { 40 } else { 20 };
        let mut frame = vec![0; 14 + ip + usize::from(words) * 4 + payload];
        let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
        frame[12..14].copy_from_slice(&ethertype);
        frame[14 + ip + 12] = words << 4;
        let offload = Offload {
            checksum_start: 14 + ip as u16,
            checksum_offset: 16,
        };
        (frame, offload)
    }

    #[test]
    fn long_segments_are_described_as_virtio_wants_it() {
        let (frame, offload) = segment(false, 8, 5000);
        let header = with_segments(&frame, offload, 1448).unwrap();
        assert_eq!(header[..2], [1, 1]);
        let words: Vec<u16> = header[2..]
            .chunks(2)
            .map(|word| u16::from_ne_bytes([word[0], word[1]]))
            .collect();
        assert_eq!(words, [66, 1448, 34, 16]);
        let (frame, offload) = segment(true, 5, 3000);
        let header = with_segments(&frame, offload, 1440).unwrap();
        assert_eq!(header[..2], [1, 4]);
        assert_eq!(u16::from_ne_bytes([header[2], header[3]]), 74);
        assert!(is_long(&header));
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_here() {
        let (frame, offload) = segment(false, 5, 3000);
        assert!(with_segments(&frame, offload, 0).is_none());
        let udp = Offload {
            checksum_offset: 6,
            ..offload
        };
        assert!(with_segments(&frame, udp, 1000).is_none());
        let far = Offload {
            checksum_start: u16::MAX,
            ..offload
        };
        assert!(with_segments(&frame, far, 1000).is_none());
        let near = Offload {
            checksum_start: 14,
            ..offload
        };
        assert!(with_segments(&frame, near, 1000).is_none());
        let (mut arp, offload) = segment(false, 5, 3000);
        arp[13] = 6;
        assert!(with_segments(&arp, offload, 1000).is_none());
        let (empty, offload) = segment(false, 5, 0);
        assert!(with_segments(&empty, offload, 1000).is_none());
        assert!(with_segments(&[], offload, 1000).is_none());
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
