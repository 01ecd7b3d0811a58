//! Steering by a key at a fixed position of the frame.

use core::hash::Hasher;
use core::ops::Range;

use siphasher::sip::SipHasher13;

use super::{Frame, Lost, Members, Module, Verdict};
use crate::MemberId;

/// Sends all frames of one key to one member, as long as it is present. Frames too short
/// to have a key count as having the empty one.
#[derive(Clone, Debug)]
pub struct HashOfKey {
    key: Range<usize>,
    lost: Lost,
}

impl HashOfKey {
    /// The key is these bytes of a frame's payload; `lost` decides the fate of a dead
    /// member's frames.
    #[must_use]
    pub const fn new(key: Range<usize>, lost: Lost) -> Self {
        Self { key, lost }
    }
}

/// The hash of a key by which [`HashOfKey`] and [`KeyValue`](super::KeyValue) choose,
/// with [`weight_of`](super::weight_of). It is the same everywhere, so that a loader of
/// the members' data can compute it.
#[must_use]
pub fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(key);
    hasher.finish()
}

impl Module for HashOfKey {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let key = frame.get(self.key.clone()).unwrap_or_default();
        match members.for_key(hash_of(key)) {
            Some(member) => Verdict::Send(member.id, 0),
            None => Verdict::Reset,
        }
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        self.lost
    }
}
