//! How much a module may do for one frame.

use core::cell::Cell;
use std::panic::resume_unwind;

/// Looks that are free beside those at bytes and members.
const FREE: usize = 1024;
/// How often each byte of the frame may be looked at.
const A_BYTE: usize = 8;
/// How often each member may be looked at: what compares each with each does so once for
/// each of as many members as there can be.
const A_MEMBER: usize = crate::config::MEMBERS_MAX;

/// What is left of the looks at bytes and members that one event of a module may take.
#[derive(Debug)]
pub(crate) struct Work(Cell<usize>);

/// With this a module's event is unwound that has taken more.
#[derive(Debug)]
pub(crate) struct TooMuch;

impl Work {
    /// For a frame of so many bytes and so many members.
    pub(crate) const fn new(bytes: usize, members: usize) -> Self {
        Self(Cell::new(FREE + A_BYTE * bytes + A_MEMBER * members))
    }

    /// Takes looks off. Where there are none left it unwinds with [`TooMuch`], past a
    /// loop that nothing else ends; no panic hook hears of it, and the switch
    /// catches it.
    pub(crate) fn spend(&self, looks: usize) {
        match self.0.get().checked_sub(looks) {
            Some(left) => self.0.set(left),
            None => resume_unwind(Box::new(TooMuch)),
        }
    }
}
