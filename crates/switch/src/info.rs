//! A connection's state, for observers.

use tidewall_protocol::tcp::FourTuple;

use crate::MemberId;
use crate::flow::{End, Flow, Phase, Stage};

/// A snapshot of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowInfo {
    /// The peer's connection, seen from the switch.
    pub peer: FourTuple,
    /// Its phase.
    pub phase: Phase,
    /// Frames in the inbound ring.
    pub ring_in: usize,
    /// Stretches of one member each that the peer has not acknowledged.
    pub ring_out: usize,
    /// Holes in what the peer sent.
    pub holes: usize,
    /// Bytes received from the peer that are not acknowledged to it.
    pub unacknowledged_in: u64,
    /// Bytes sent to the peer that it has not acknowledged.
    pub unacknowledged_out: u64,
    /// Bytes that the peer may still send.
    pub window_in: u64,
    /// Bytes that the peer still accepts.
    pub window_out: u64,
    /// Bytes of memory that the connection uses: rings, chains, holes, gaps and the state
    /// of each member, but not its module's own memory.
    pub memory: usize,
    /// The members' connections.
    pub members: Vec<EndInfo>,
}

/// A snapshot of a member's part in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndInfo {
    /// The member's id.
    pub id: MemberId,
    /// Frames flow, or may.
    pub open: bool,
    /// It was removed and is finishing.
    pub draining: bool,
    /// Frames sent to it that it has not acknowledged.
    pub outstanding: u16,
    /// Gaps in its sequence that were not acknowledged.
    pub gaps: usize,
    /// Bytes of its window that are open.
    pub room: u64,
    /// Bytes that it may still send.
    pub granted: u64,
}

impl FlowInfo {
    pub(crate) fn of(flow: &Flow) -> Self {
        let (inbound, outbound) = (&flow.inbound, &flow.outbound);
        let there = |(_, end): &(usize, &End)| end.stage != Stage::Absent;
        let ends = flow.ends.iter().enumerate().filter(there);
        Self {
            peer: flow.peer,
            phase: flow.phase,
            ring_in: inbound.ring.len(),
            ring_out: outbound.runs.len(),
            holes: inbound.holes.len(),
            unacknowledged_in: inbound.next - inbound.left,
            unacknowledged_out: outbound.next - outbound.acked,
            window_in: inbound.offered.saturating_sub(inbound.next),
            window_out: outbound.edge.saturating_sub(outbound.next),
            memory: flow.memory(),
            members: ends
                .map(|(slot, end)| EndInfo {
                    id: MemberId(slot as u8),
                    open: end.stage == Stage::Open,
                    draining: end.draining,
                    outstanding: end.sink.chain.len(),
                    gaps: end.sink.gaps.len(),
                    room: end.sink.edge.saturating_sub(end.sink.next),
                    granted: end.source.edge.saturating_sub(end.source.next),
                })
                .collect(),
        }
    }
}
