//! Requests for blocks: small ones and metadata go to a coordinator, blocks to the nodes
//! that hold them (the paper's storage service).

use std::net::SocketAddr;
use std::sync::Arc;

use super::{Frame, Lost, Members, Module, Verdict};
use crate::MemberId;

/// Bytes of a request that are read: one of operation, seven of anything, eight of the
/// block's number, big endian.
const HEADER: usize = 16;

/// Operations that go to the block's node: reading and writing a block.
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Stripes blocks over storage nodes; every other operation goes to the coordinator. A
/// request begins with one byte of operation (1 reads a block, 2 writes one), seven bytes
/// of the application's own, and the number of the block in eight bytes, big endian.
/// While a block's node is away a request for it resets the connection: no other node has
/// the block.
#[derive(Clone, Debug)]
pub struct BlockStorage {
    coordinator: SocketAddr,
    nodes: Arc<[SocketAddr]>,
}

impl BlockStorage {
    /// `nodes` are those that blocks were striped over, in that order, whether or not
    /// they are present now.
    #[must_use]
    pub const fn new(coordinator: SocketAddr, nodes: Arc<[SocketAddr]>) -> Self {
        Self { coordinator, nodes }
    }
}

/// The block that a request reads or writes, by which [`BlockStorage`] chooses: the
/// node's index is the remainder of its division by the number of nodes. `None` for a
/// request to the coordinator.
#[must_use]
pub fn block_of(payload: &[u8]) -> Option<u64> {
    payload
        .first_chunk::<HEADER>()
        .filter(|header| matches!(header[0], READ | WRITE))
        .and_then(|header| header.last_chunk::<8>())
        .map(|number| u64::from_be_bytes(*number))
}

impl Module for BlockStorage {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let chosen = match block_of(frame.get(..frame.len().min(HEADER)).unwrap_or_default()) {
            None => Some(self.coordinator),
            Some(block) => {
                let place = block.checked_rem(self.nodes.len() as u64).unwrap_or(0);
                self.nodes.get(place as usize).copied()
            }
        };
        match chosen.and_then(|address| members.at(address)) {
            Some(member) => Verdict::Send(member.id, 0),
            None => Verdict::Reset,
        }
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        // A block's bytes are only on its node, and each request has a reply.
        Lost::ResetIfUsed
    }
}
