//! Steering to the member with the fewest outstanding frames.

use super::{Frame, Lost, Members, Module, Verdict};
use crate::MemberId;

/// Sends a frame to the member that has the fewest unacknowledged ones; among equals,
/// in turn.
#[derive(Clone, Debug)]
pub struct LeastOutstanding {
    next: u8,
    lost: Lost,
}

impl LeastOutstanding {
    /// `lost` decides the fate of a dead member's frames.
    #[must_use]
    pub const fn new(lost: Lost) -> Self {
        Self { next: 0, lost }
    }
}

impl Module for LeastOutstanding {
    fn frame(&mut self, _frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let turn = |id: MemberId| id.0.wrapping_sub(self.next);
        let least = members
            .iter()
            .min_by_key(|member| (member.outstanding, turn(member.id)));
        let Some(member) = least else {
            return Verdict::Reset;
        };
        self.next = member.id.0.wrapping_add(1);
        Verdict::Send(member.id, 0)
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        self.lost
    }
}
