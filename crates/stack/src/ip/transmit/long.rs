//! Long TCP segments: the device or the kernel cuts them into packets.

use std::io;
use std::sync::atomic::Ordering;

use tidewall_device::queue::{LongSegment, Offload};
use tidewall_protocol::tcp::{FourTuple, Link, Outgoing, output_before};
use tidewall_protocol::udp::Checksum;
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::ipv6;
use tidewall_wire::tcp::{CHECKSUM_OFFSET, PayloadChecksum};

use super::{Transmitter, segment_errno};

/// Ethernet, IPv6 and the longest TCP header.
const HEADERS_MAX: usize = HEADER_LEN + ipv6::HEADER_LEN + 60;

/// Packets that left by a packet socket: [`Transmitter::send_long`] and
/// `Transmitter::send_beyond_frame`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LongCounts {
    /// Packets sent.
    pub sent: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Rejected, since the kernel dropped them: its queueing discipline, or a rule of
    /// nftables or tc.
    pub dropped: u64,
    /// Refused for want of room.
    pub no_room: u64,
}

impl Transmitter {
    /// Sends a segment at once, after all that was queued before. The segment is a long
    /// one, or one that follows a long one and must not overtake it.
    ///
    /// # Errors
    /// As [`tidewall_device::queue::Transmit::send_segments`]; EMSGSIZE for packets that
    /// would be longer than the MTU; EAFNOSUPPORT.
    pub fn send_long(
        &mut self,
        neighbour: MacAddress,
        hop_limit: u8,
        flow: &FourTuple,
        outgoing: &Outgoing<'_>,
    ) -> io::Result<()> {
        let mut room = [0; HEADERS_MAX];
        let link = Link {
            source_mac: self.mac,
            destination_mac: neighbour,
            hop_limit,
            checksum: Checksum::Offload,
        };
        let payload_len = outgoing.payload_len();
        let payload = (payload_len, PayloadChecksum::Offload);
        let class = outgoing.traffic_class;
        let written = output_before(&mut room, &link, flow, &outgoing.header, class, payload)
            .map_err(|error| io::Error::from_raw_os_error(segment_errno(&error)))?;
        // The kernel does not compare what it has cut with the MTU.
        let packet = written - HEADER_LEN + payload_len.min(outgoing.segment_size.into());
        if packet > self.link_mtu {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let headers = room.get(HEADERS_MAX - written..).unwrap_or_default();
        let segment = LongSegment {
            headers,
            payload: outgoing.payload,
            offload: Offload {
                checksum_start: (written - outgoing.header.header_len()) as u16,
                checksum_offset: CHECKSUM_OFFSET,
            },
            segment_size: outgoing.segment_size,
        };
        if let Err(error) = self.device.send_segments(&segment) {
            match error.raw_os_error() {
                Some(libc::ENOBUFS) => self.long.dropped += 1,
                _ => self.long.no_room += u64::from(error.kind() == io::ErrorKind::WouldBlock),
            }
            return Err(error);
        }
        let packets = packets(outgoing);
        // They have left, but what answers them must fit into the receive ring.
        self.waiting = self.waiting.saturating_add(packets);
        self.long.sent += 1;
        self.long.bytes += payload_len as u64;
        self.sent.fetch_add(u64::from(packets), Ordering::Relaxed);
        self.offloaded += u64::from(packets);
        Ok(())
    }

    /// Sends an Ethernet frame that is longer than a frame of memory, at once, after all that was
    /// queued before.
    ///
    /// # Errors
    /// As [`tidewall_device::queue::Transmit::send_frame`], but ENOBUFS for want of room.
    pub(super) fn send_beyond_frame(&mut self, parts: [&[u8]; 2]) -> io::Result<()> {
        let sent = self.device.send_frame(parts);
        if let Err(error) = sent {
            if error.kind() == io::ErrorKind::WouldBlock {
                self.long.no_room += 1;
                return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
            }
            self.long.dropped += u64::from(error.raw_os_error() == Some(libc::ENOBUFS));
            return Err(error);
        }
        self.waiting = self.waiting.saturating_add(1);
        self.long.sent += 1;
        self.long.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Longest TCP payload of one [`Transmitter::send_long`]; 0: no long segments leave here.
    pub fn segmentation(&self) -> u32 {
        self.device.segmentation()
    }

    /// Returns the longest IP datagram that a segment may be in, in bytes. One longer
    /// than a frame leaves by [`Transmitter::send_long`], if long segments leave here.
    pub fn packet_max(&self) -> usize {
        match self.segmentation() {
            0 => self.mtu,
            _ => self.link_mtu,
        }
    }

    /// Returns true for a segment that may be longer than a frame, on a link with such
    /// packets.
    pub fn is_beyond_frame(&self, outgoing: &Outgoing<'_>) -> bool {
        self.link_mtu > self.mtu
            && outgoing.payload_len() + HEADERS_MAX > self.mtu
            && self.segmentation() > 0
    }
}

/// Returns the number of packets that a segment is split into.
pub fn packets(outgoing: &Outgoing<'_>) -> u32 {
    let size = usize::from(outgoing.segment_size).max(1);
    outgoing.payload_len().div_ceil(size).max(1) as u32
}
