//! What the switch wants sent.

use core::ops::Range;

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::tcp::Header;

/// A segment to be sent.
///
/// It refers to bytes of the segment that was being put into
/// [`Switch::input`](crate::Switch::input) and holds none. A driver collects what one
/// call emits and then acts: where a single emission has the whole received payload it
/// rewrites the received frame in place (addresses, ports and header; a segment that
/// carries something has no options, so the header may shrink); otherwise it copies each
/// payload into a frame of its own. [`segments`] says which may share a segment,
/// and [`Gather`](crate::Gather) keeps what is small for what follows in the same batch.
/// Checksums, hop limits and next hops are the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// From `local` to `remote`.
    pub flow: FourTuple,
    /// The whole TCP header.
    pub header: Header,
    /// What it carries.
    pub payload: Payload,
    /// The most payload of a segment to there, so that several may become one
    /// ([`Gather`](crate::Gather)); 0 where one has to leave by itself: its receiver counts it
    /// as a duplicate acknowledgment, or it opens or ends a connection.
    pub room: u16,
}

impl Emission {
    /// Goes on where `before`, the emission just before it, ends.
    fn follows(&self, before: &Self) -> bool {
        let (Payload::Received(bytes), Payload::Received(_)) = (&before.payload, &self.payload)
        else {
            return false;
        };
        let end = before.header.sequence.wrapping_add(bytes.len() as u32);
        self.flow == before.flow && self.header.sequence == end
    }
}

/// The segments that suffice for what one call has emitted: of each the header, and the
/// emissions whose payloads it carries, one behind the other. None is longer than what was
/// received.
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

/// What an emission carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// These bytes of the received segment's payload.
    Received(Range<usize>),
    /// A null frame of so many bytes, header included:
    /// [`acp::Header::null`](tidewall_wire::acp::Header::null) and zeros.
    Null(usize),
}

impl Payload {
    /// Bytes.
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
