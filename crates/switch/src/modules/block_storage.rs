//! Requests for blocks: small ones and metadata to a coordinator, blocks to the nodes
//! that hold them (the paper's storage service).

use super::{Frame, Lost, Members, Module, Verdict};
use crate::MemberId;

/// Bytes of a request that are looked at: one of operation, seven of anything, eight of
/// the block's number, big endian.
const HEADER: usize = 16;

/// Operations that go to the node of the block: reading and writing one.
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Stripes blocks over all members but the coordinator; every other operation goes to
/// that. A request begins with one byte of operation (1 reads a block, 2 writes one),
/// seven bytes that are the application's, and the number of the block in eight bytes,
/// big endian.
#[derive(Clone, Debug)]
pub struct BlockStorage {
    coordinator: MemberId,
}

impl BlockStorage {
    /// All other members are storage nodes.
    #[must_use]
    pub const fn new(coordinator: MemberId) -> Self {
        Self { coordinator }
    }
}

/// The block that a request reads or writes, by which [`BlockStorage`] chooses: the node is
/// the remainder of its division by their number. `None`: a request of the coordinator's.
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
                let nodes = || {
                    members
                        .iter()
                        .filter(|member| member.id != self.coordinator)
                };
                let count = nodes().count() as u64;
                let place = block.checked_rem(count).unwrap_or(0) as usize;
                nodes().nth(place).map(|member| member.id)
            }
        };
        chosen.map_or(Verdict::Reset, |member| Verdict::Send(member, 0))
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        // A block's bytes are on its node and nowhere else.
        Lost::Reset
    }
}
