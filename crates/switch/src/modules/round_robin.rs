//! Steering to each member in turn.

use super::{Frame, Lost, Members, Module, Verdict};
use crate::MemberId;

/// Gives each member a frame in turn.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    next: u8,
    lost: Lost,
}

impl RoundRobin {
    /// `lost` decides the fate of a dead member's frames.
    #[must_use]
    pub const fn new(lost: Lost) -> Self {
        Self { next: 0, lost }
    }
}

impl Module for RoundRobin {
    fn frame(&mut self, _frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let Some(member) = members.at_or_after(self.next) else {
            return Verdict::Reset;
        };
        self.next = member.id.0.wrapping_add(1);
        Verdict::Send(member.id, 0)
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        self.lost
    }
}
