//! Steering to the member that keeps up (the paper's speed-sensitive steering).

use super::{Frame, Lost, Members, Module, Verdict, Windows};
use crate::MemberId;

/// Steers to members with open windows: to the one whose window has most room. So a slow
/// member receives only what it can take and delays no other, and the peer may be offered
/// the sum of the windows.
#[derive(Clone, Debug)]
pub struct Speed {
    lost: Lost,
}

impl Speed {
    /// `lost` decides the fate of a dead member's frames.
    #[must_use]
    pub const fn new(lost: Lost) -> Self {
        Self { lost }
    }
}

impl Module for Speed {
    fn frame(&mut self, _frame: Frame<'_>, members: Members<'_>) -> Verdict {
        match members.iter().max_by_key(|member| member.room) {
            Some(member) => Verdict::Send(member.id, 0),
            None => Verdict::Reset,
        }
    }

    fn member_down(&mut self, _member: MemberId) -> Lost {
        self.lost
    }

    fn windows(&self) -> Windows {
        Windows::Sum
    }
}
