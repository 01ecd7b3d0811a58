//! One datagram in progress: the list of its fragments and the known end. This is RFC
//! 815's list of holes inverted. Since overlaps are not allowed, a datagram is complete
//! once as many bytes have arrived as its end requires.

use tidewall_wire::Protocol;

use super::fragment::{Family, Fragment, finish_v4, finish_v6};
use super::{DATAGRAM_COST, FRAGMENT_COST, Reassembled};
use crate::DropReason;

/// ECN codepoint "congestion experienced" (RFC 3168 §5).
const CONGESTION_EXPERIENCED: u8 = 3;

#[derive(Debug)]
pub(super) struct Datagram {
    /// Order of arrival among all datagrams.
    pub sequence: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Collecting(Parts),
    /// Condemned: later fragments are refused.
    Refused,
}

#[derive(Debug, Default)]
struct Parts {
    /// By offset, without overlaps.
    pieces: Vec<Piece>,
    /// Bytes of payload in `pieces`.
    received: usize,
    /// Bytes of payload of the whole datagram, once the last fragment has arrived.
    end: Option<usize>,
    first: Option<First>,
    /// Bit n: a fragment had the ECN codepoint n.
    ecn: u8,
}

#[derive(Debug)]
struct Piece {
    offset: usize,
    payload: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> usize {
        self.offset + self.payload.len()
    }
}

/// Facts that only the first fragment states.
#[derive(Debug)]
struct First {
    header: Box<[u8]>,
    announced: Option<(usize, Protocol)>,
    transport: usize,
    tag: Option<u64>,
}

impl Datagram {
    pub(super) fn new(sequence: u64) -> Self {
        Self {
            sequence,
            state: State::Collecting(Parts::default()),
        }
    }

    /// Bytes it counts against the limit.
    pub(super) fn cost(&self) -> usize {
        DATAGRAM_COST
            + match &self.state {
                State::Refused => 0,
                State::Collecting(parts) => {
                    let header = parts.first.as_ref().map_or(0, |first| first.header.len());
                    parts.received + parts.pieces.len() * FRAGMENT_COST + header
                }
            }
    }

    /// Decides whether a fragment may be added. If it condemns the datagram, all its
    /// fragments are freed.
    pub(super) fn judge(
        &mut self,
        fragment: &Fragment<'_>,
        limit: usize,
    ) -> Result<(), DropReason> {
        let State::Collecting(parts) = &self.state else {
            return Err(DropReason::FragmentRefused);
        };
        let verdict = parts.judge(fragment, limit);
        if let Err(
            DropReason::FragmentOverlap | DropReason::FragmentEnd | DropReason::FragmentCount,
        ) = verdict
        {
            self.state = State::Refused;
        }
        verdict
    }

    /// Adds a fragment that [`Datagram::judge`] accepted.
    pub(super) fn add(&mut self, fragment: &Fragment<'_>, tag: Option<u64>) {
        let State::Collecting(parts) = &mut self.state else {
            return;
        };
        if fragment.offset == 0 {
            parts.first = Some(First {
                header: fragment.header.into(),
                announced: fragment.announced,
                transport: fragment.transport,
                tag,
            });
        }
        if !fragment.more {
            parts.end = Some(fragment.end());
        }
        parts.ecn |= 1 << (fragment.ecn & 3);
        parts.received += fragment.payload.len();
        let at = parts
            .pieces
            .partition_point(|piece| piece.offset < fragment.offset);
        let piece = Piece {
            offset: fragment.offset,
            payload: fragment.payload.into(),
        };
        parts.pieces.insert(at, piece);
    }

    pub(super) fn is_complete(&self) -> bool {
        match &self.state {
            State::Collecting(parts) => parts.end == Some(parts.received),
            State::Refused => false,
        }
    }

    /// Assembles a complete datagram.
    pub(super) fn assemble(self, family: Family) -> Result<Reassembled, DropReason> {
        let State::Collecting(Parts {
            pieces,
            received,
            first,
            ecn,
            ..
        }) = self.state
        else {
            return Err(DropReason::FragmentRefused);
        };
        // Complete and without overlaps, it has a piece at offset zero.
        let First {
            header,
            announced,
            transport,
            tag,
        } = first.ok_or(DropReason::Truncated)?;
        let ecn = combined_ecn(ecn)?;
        let mut bytes = Vec::with_capacity(header.len() + received);
        bytes.extend_from_slice(&header);
        for piece in &pieces {
            bytes.extend_from_slice(&piece.payload);
        }
        match family {
            Family::V4 => finish_v4(&header, received, ecn, &mut bytes)?,
            Family::V6 => finish_v6(&mut bytes, announced, ecn)?,
        }
        let transport = header.len() + transport;
        Ok(Reassembled {
            bytes,
            transport,
            tag,
        })
    }
}

impl Parts {
    fn judge(&self, fragment: &Fragment<'_>, limit: usize) -> Result<(), DropReason> {
        let end = fragment.end();
        let last = self.pieces.last().map_or(0, Piece::end);
        let contradicts = match self.end {
            // The end is known: a last fragment must end there, others before it.
            Some(known) if fragment.more => end >= known,
            Some(known) => end != known,
            // The end is not known: no earlier fragment may reach beyond it.
            None => !fragment.more && last >= end,
        };
        if contradicts {
            return Err(DropReason::FragmentEnd);
        }
        let at = self
            .pieces
            .partition_point(|piece| piece.offset < fragment.offset);
        if let Some(next) = self.pieces.get(at) {
            // RFC 8200 §4.5 permits exact duplicates to be ignored; networks make them.
            if next.offset == fragment.offset && *next.payload == *fragment.payload {
                return Err(DropReason::FragmentDuplicate);
            }
            if next.offset < end {
                return Err(DropReason::FragmentOverlap);
            }
        }
        let before = at.checked_sub(1).and_then(|before| self.pieces.get(before));
        if before.is_some_and(|before| before.end() > fragment.offset) {
            return Err(DropReason::FragmentOverlap);
        }
        if self.pieces.len() >= limit {
            return Err(DropReason::FragmentCount);
        }
        Ok(())
    }
}

/// Computes the bits to add to the first fragment's ECN field, from the set of all
/// fragments' codepoints (RFC 3168 §5.3; combinations as Linux's `ip_frag_ecn_table`).
fn combined_ecn(seen: u8) -> Result<Option<u8>, DropReason> {
    const NOT_CAPABLE: u8 = 1;
    const CONGESTED: u8 = 1 << CONGESTION_EXPERIENCED;
    if seen & NOT_CAPABLE != 0 && seen != NOT_CAPABLE {
        return Err(DropReason::FragmentEcn);
    }
    Ok((seen & CONGESTED != 0).then_some(CONGESTION_EXPERIENCED))
}
