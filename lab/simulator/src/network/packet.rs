//! Packets as they travel, and how bursts become packets.

use tidewall_protocol::tcp::Outgoing;
use tidewall_wire::ipv4;
use tidewall_wire::tcp::{Flags, Header};

use super::FlowId;

/// The two ends of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Client = 0,
    Server = 1,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A TCP segment in an IPv4 datagram.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) flow: FlowId,
    pub(super) from: Side,
    /// Links of its route that it has entered.
    pub(super) hops: usize,
    pub(super) traffic_class: u8,
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

impl Packet {
    /// Length on the wire, from the IP header on.
    pub(super) fn bytes(&self) -> u32 {
        (ipv4::HEADER_LEN + self.header.header_len() + self.payload.len()) as u32
    }
}

/// Cuts a burst that offloading left whole, as a device does. The last segment carries
/// PSH and FIN, the first carries CWR (RFC 3168 §6.1.2 counts segments).
pub(super) fn cut(flow: FlowId, from: Side, outgoing: &Outgoing<'_>, emit: &mut dyn FnMut(Packet)) {
    let size = usize::from(outgoing.segment_size).max(1);
    let [first, second] = outgoing.payload;
    let total = first.len() + second.len();
    let mut offset = 0;
    loop {
        let end = total.min(offset + size);
        let mut payload = Vec::with_capacity(end - offset);
        payload.extend_from_slice(slice(first, offset, end));
        let before = first.len();
        payload.extend_from_slice(slice(
            second,
            offset.saturating_sub(before),
            end.saturating_sub(before),
        ));
        let mut header = outgoing.header;
        header.sequence = header.sequence.wrapping_add(offset as u32);
        let mut flags = header.flags.0;
        if end < total {
            flags &= !(Flags::PSH.0 | Flags::FIN.0);
        }
        if offset > 0 {
            flags &= !Flags::CWR.0;
        }
        header.flags = Flags(flags);
        emit(Packet {
            flow,
            from,
            hops: 0,
            traffic_class: outgoing.traffic_class,
            header,
            payload,
        });
        offset = end;
        if offset >= total {
            return;
        }
    }
}

/// The part of `bytes` between two positions, which may lie beyond its end.
fn slice(bytes: &[u8], from: usize, to: usize) -> &[u8] {
    let to = to.min(bytes.len());
    bytes.get(from.min(to)..to).unwrap_or_default()
}

#[cfg(test)]
mod tests;
