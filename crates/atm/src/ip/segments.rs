//! Long TCP segments between a kernel and circuits. A kernel's unsplit segments are split
//! into packets where they lie (its segmentation offload). Consecutive packets are joined
//! to one before a kernel gets them (its receive offload, GRO). A packet of 64 KiB costs
//! a kernel's stack about as much as one of 1,500 bytes.

use tidewall_wire::ipv4::{self, Header as IpHeader};
use tidewall_wire::tcp::{self, Flags};
use tidewall_wire::udp::{Addresses, ChecksumState};
use tidewall_wire::virtio_net::{Header, Kind, Segments, Unfinished};
use tidewall_wire::{Protocol, checksum::Sum};

use super::HEADER_LEN;

/// Bytes of the longest headers, including LLC's.
const HEADERS_MAX: usize = HEADER_LEN + ipv4::HEADER_MAX + tcp::HEADER_MAX;

/// A packet contradicts the header that the kernel put before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet is not what its virtio-net header says")]
pub struct Malformed;

/// Completes in place what a kernel left undone, its checksum or its segmentation.
/// `payload` is an IPv4 packet behind [`HEADER_LEN`] bytes of LLC. `each` receives each
/// payload to be sent, including LLC, in order.
///
/// # Errors
/// [`Malformed`], before any payload was passed.
pub fn cut(
    header: &Header,
    payload: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> Result<(), Malformed> {
    match header.segments {
        None => {
            if let Some(unfinished) = header.checksum {
                let packet = payload.get_mut(HEADER_LEN..).ok_or(Malformed)?;
                finish(packet, unfinished).ok_or(Malformed)?;
            }
            each(payload);
            Ok(())
        }
        Some(segments) => cut_segment(segments, payload, &mut each).ok_or(Malformed),
    }
}

/// The field has the sum of the pseudo-header.
fn finish(packet: &mut [u8], unfinished: Unfinished) -> Option<()> {
    let covered = packet.get_mut(usize::from(unfinished.start)..)?;
    let sum = Sum::ZERO.bytes(covered).checksum();
    // Zero would mean no checksum in UDP; the other zero is equivalent everywhere.
    let sum = if sum == 0 { u16::MAX } else { sum };
    let at = usize::from(unfinished.offset);
    let field = covered.get_mut(at..at.checked_add(2)?)?;
    field.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

fn cut_segment(segments: Segments, payload: &mut [u8], each: &mut impl FnMut(&[u8])) -> Option<()> {
    let step = usize::from(segments.payload);
    let (ip, first, ip_len, len) = {
        let packet = ipv4::Packet::new(payload.get(HEADER_LEN..)?).ok()?;
        let is_tcp = packet.protocol() == Protocol::TCP && !packet.is_fragment();
        let tcp = tcp::Packet::new(packet.payload()).ok()?;
        // A step of fewer bytes would overwrite the LLC header that the next packet uses.
        let is_cut = is_tcp && segments.kind == Kind::TCP_V4 && step >= HEADER_LEN;
        if !is_cut || tcp.payload().is_empty() {
            return None;
        }
        let len = packet.header_len() + tcp.header_len();
        let header = tcp.header();
        let end = HEADER_LEN + len + tcp.payload().len();
        // Nothing follows the packet.
        if end != payload.len() {
            return None;
        }
        (IpHeader::of(&packet), header, packet.header_len(), len)
    };
    let mut kept = [0; HEADERS_MAX];
    let headers_len = HEADER_LEN + len;
    let headers = kept.get_mut(..headers_len)?;
    headers.copy_from_slice(payload.get(..headers_len)?);
    let mut number = 0u16;
    let addresses = Addresses::V4(ip.source, ip.destination);
    let mut at = 0;
    while at + headers_len < payload.len() {
        let end = payload.len().min(at + headers_len + step);
        let is_last = end == payload.len();
        // All headers but the first lie where the end of the previous payload was.
        let piece = payload.get_mut(at..end)?;
        piece.get_mut(..headers_len)?.copy_from_slice(headers);
        let ip = IpHeader {
            identification: ip.identification.wrapping_add(number),
            ..ip
        };
        let packet = piece.get_mut(HEADER_LEN..)?;
        ip.emit(packet.len() - ip_len, packet).ok()?;
        let segment = packet.get_mut(ip_len..)?;
        let sequence = first.sequence.wrapping_add(at as u32);
        segment
            .get_mut(4..8)?
            .copy_from_slice(&sequence.to_be_bytes());
        let mut flags = first.flags.0;
        if !is_last {
            flags &= !(Flags::FIN | Flags::PSH).0;
        }
        if at > 0 {
            flags &= !Flags::CWR.0;
        }
        *segment.get_mut(13)? = flags;
        put_checksum(segment, 0)?;
        let sum = addresses.pseudo_header(Protocol::TCP, segment.len());
        let sum = sum.bytes(segment).checksum();
        put_checksum(segment, sum)?;
        each(piece);
        number = number.wrapping_add(1);
        at += step;
    }
    Some(())
}

fn put_checksum(segment: &mut [u8], value: u16) -> Option<()> {
    let at = usize::from(tcp::CHECKSUM_OFFSET);
    let field = segment.get_mut(at..at + 2)?;
    field.copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// Joins consecutive IPv4 packets of one connection.
#[derive(Debug, Default)]
pub struct Joiner {
    /// The joined bytes.
    bytes: Vec<u8>,
    run: Option<Run>,
}

/// The joiner's contents.
#[derive(Clone, Copy, Debug)]
struct Run {
    headers: usize,
    /// Payload of each packet except the last.
    step: usize,
    /// Sequence number after it.
    next: u32,
    packets: u32,
}

/// A packet that may be joined with others.
struct Joinable<'a> {
    ip: ipv4::Packet<'a>,
    tcp: tcp::Packet<'a>,
    sequence: u32,
    pushes: bool,
}

impl<'a> Joinable<'a> {
    /// The criteria of GRO in Linux: data without any flag but ACK and PSH, not to be
    /// fragmented, undamaged.
    fn new(packet: &'a [u8]) -> Option<Self> {
        let ip = ipv4::Packet::new(packet).ok()?;
        let plain = ip.header_len() == ipv4::HEADER_LEN
            && ip.dont_fragment()
            && !ip.is_fragment()
            && ip.protocol() == Protocol::TCP;
        if !plain {
            return None;
        }
        let segment = ip.payload();
        let tcp = tcp::Packet::new(segment).ok()?;
        let flags = Flags(*segment.get(13)?);
        let only_data = flags.0 & !Flags::PSH.0 == Flags::ACK.0 && !tcp.payload().is_empty();
        let addresses = Addresses::V4(ip.source(), ip.destination());
        let whole = only_data
            && ip.has_valid_checksum()
            && tcp.checksum_state(addresses) == ChecksumState::Valid;
        whole.then_some(Joinable {
            ip,
            tcp,
            sequence: u32::from_be_bytes(*segment.get(4..)?.first_chunk()?),
            pushes: flags.contains(Flags::PSH),
        })
    }
}

/// The parts that must be equal in joined packets: all of the headers except IP's length,
/// identification and checksum, and TCP's sequence number, PSH and checksum.
fn continues(joined: &[u8], packet: &[u8], headers: usize) -> bool {
    let same = |range: core::ops::Range<usize>| joined.get(range.clone()) == packet.get(range);
    same(0..2) && same(6..10) && same(12..24) && same(28..33) && same(34..36) && same(38..headers)
}

impl Joiner {
    /// Adds a packet. `write` receives what cannot be extended, with its header and its
    /// number of packets.
    pub fn add(&mut self, packet: &[u8], write: &mut impl FnMut(&Header, &[u8], u32)) {
        let Some(joinable) = Joinable::new(packet) else {
            self.flush(write);
            return write(&Header::default(), packet, 1);
        };
        let Joinable {
            ip,
            tcp,
            sequence,
            pushes,
        } = joinable;
        let (headers, payload) = (ip.header_len() + tcp.header_len(), tcp.payload());
        let next = sequence.wrapping_add(payload.len() as u32);
        let joins = self.run.as_ref().is_some_and(|run| {
            run.headers == headers
                && run.next == sequence
                && payload.len() <= run.step
                && self.bytes.len() + payload.len() <= ipv4::DATAGRAM_MAX
                && continues(&self.bytes, packet, headers)
        });
        match &mut self.run {
            Some(run) if joins => {
                run.next = next;
                run.packets += 1;
                self.bytes.extend_from_slice(payload);
            }
            _ => {
                self.flush(write);
                let packet = packet.get(..headers + payload.len()).unwrap_or_default();
                self.bytes.extend_from_slice(packet);
                self.run = Some(Run {
                    headers,
                    step: payload.len(),
                    next,
                    packets: 1,
                });
            }
        }
        let ends = (self.run.as_ref()).is_some_and(|run| pushes || payload.len() < run.step);
        if pushes && let Some(flags) = self.bytes.get_mut(ipv4::HEADER_LEN + 13) {
            *flags |= Flags::PSH.0;
        }
        if ends {
            self.flush(write);
        }
    }

    /// Passes the contents to `write`.
    pub fn flush(&mut self, write: &mut impl FnMut(&Header, &[u8], u32)) {
        if let Some(run) = self.run.take() {
            let header = match run.packets {
                1 => Some(Header::default()),
                _ => self.finish(&run),
            };
            if let Some(header) = header {
                write(&header, &self.bytes, run.packets);
            }
        }
        self.bytes.clear();
    }

    /// Writes length and checksums of several packets; TCP's checksum is left to the
    /// kernel. There is always a header: it was read.
    fn finish(&mut self, run: &Run) -> Option<Header> {
        let ip = IpHeader::of(&ipv4::Packet::new(&self.bytes).ok()?);
        let length = self.bytes.len() - ipv4::HEADER_LEN;
        let segment = ip.emit(length, &mut self.bytes).ok()?;
        let sum = Addresses::V4(ip.source, ip.destination).pseudo_header(Protocol::TCP, length);
        put_checksum(segment, sum.folded())?;
        Some(Header {
            checksum: Some(Unfinished {
                start: ipv4::HEADER_LEN as u16,
                offset: tcp::CHECKSUM_OFFSET,
            }),
            segments: Some(Segments {
                kind: Kind::TCP_V4,
                headers: run.headers as u16,
                payload: run.step as u16,
            }),
        })
    }
}

#[cfg(test)]
mod tests;
