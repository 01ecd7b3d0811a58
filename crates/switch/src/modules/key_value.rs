//! Steering of RESP commands of a key-value store, by their key.

use tidewall_wire::resp::key;

use super::{Frame, Lost, Members, Module, Verdict, hash_of};
use crate::MemberId;

/// Sends each command to the member that has its key: one RESP command (an array of bulk
/// strings) per frame. A command without a key (`PING`, `INFO`) goes to the member of the
/// empty key.
///
/// A command of several keys goes to the member of the first. A switch that holds no
/// bytes cannot split a command into two, or join two replies into one. The end that
/// frames the commands first splits `MGET`, `MSET`, `DEL` and their like by key
/// (`tidewall acp-bridge` does). It also restores the order of replies, since members
/// reply in their own order.
#[derive(Clone, Debug)]
pub struct KeyValue {
    skip: usize,
}

impl KeyValue {
    /// `skip` bytes of a frame's payload precede the command.
    #[must_use]
    pub const fn new(skip: usize) -> Self {
        Self { skip }
    }
}

impl Module for KeyValue {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let key = frame.get(self.skip..).and_then(key);
        match key.and_then(|key| members.for_key(hash_of(key))) {
            Some(member) => Verdict::Send(member.id, 0),
            None => Verdict::Reset,
        }
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        // INCR and APPEND are not idempotent, and the module does not distinguish them;
        // and each command has a reply.
        Lost::ResetIfUsed
    }
}
