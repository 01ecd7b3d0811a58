//! The segments that the switch wants sent.

use core::ops::Range;

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::tcp::Header;

/// A segment to be sent.
///
/// It refers to bytes of the segment passed to [`Switch::input`](crate::Switch::input)
/// and holds none. A driver collects the emissions of one call and then acts. If a single
/// emission has the whole received payload, the driver rewrites the received frame in
/// place: addresses, ports and header. A segment with payload has no options, so the
/// header may shrink. Otherwise it copies each payload into a separate frame.
/// [`segments`] determines which may share a segment, and [`Gather`](crate::Gather) holds
/// small ones for those that follow in the same batch. Checksums, hop limits and next
/// hops are left to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// From `local` to `remote`.
    pub flow: FourTuple,
    /// The whole TCP header.
    pub header: Header,
    /// Its payload.
    pub payload: Payload,
    /// Maximum payload of a segment to that destination, so that several may become one
    /// ([`Gather`](crate::Gather)). 0 if it must leave by itself: its receiver counts it
    /// as a duplicate acknowledgment, or it opens or ends a connection.
    pub room: u16,
}

impl Emission {
    /// Continues where `before`, the emission just before it, ends.
    fn follows(&self, before: &Self) -> bool {
        let (Payload::Received(bytes), Payload::Received(_)) = (&before.payload, &self.payload)
        else {
            return false;
        };
        let end = before.header.sequence.wrapping_add(bytes.len() as u32);
        self.flow == before.flow && self.header.sequence == end
    }
}

/// The segments that suffice for one call's emissions: for each the header, and the
/// emissions whose payloads it carries, concatenated. None is longer than the received
/// segment.
pub fn segments(emissions: &[Emission]) -> impl Iterator<Item = (Header, &[Emission])> {
    let segments = emissions.chunk_by(|before, next| next.follows(before));
    segments.filter_map(|parts| {
        let (first, last) = (parts.first()?, parts.last()?);
        let header = Header {
            sequence: first.header.sequence,
            ..last.header
        };
        Some((header, parts))
    })
}

/// The payload of an emission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// These bytes of the received segment's payload.
    Received(Range<usize>),
    /// A null frame of this many bytes, including its header:
    /// [`acp::Header::null`](tidewall_wire::acp::Header::null) and zeros.
    Null(usize),
}

impl Payload {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Received(range) => range.len(),
            Self::Null(size) => *size,
        }
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
