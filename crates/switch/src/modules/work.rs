//! Limits a module's work per frame.

use core::cell::Cell;
use std::panic::resume_unwind;

/// Free looks in addition to those at bytes and members.
const FREE: usize = 1024;
/// How often each byte of the frame may be looked at.
const A_BYTE: usize = 8;
/// How often each member may be looked at. A module that compares each pair does so once
/// for each of as many members as there can be.
const A_MEMBER: usize = crate::config::MEMBERS_MAX;

/// The remaining looks at bytes and members during one event of a module.
#[derive(Debug)]
pub(crate) struct Work(Cell<usize>);

/// The payload with which a module's event is unwound that has exceeded them.
#[derive(Debug)]
pub(crate) struct TooMuch;

impl Work {
    /// The limit for a frame of this many bytes and this many members.
    pub(crate) const fn new(bytes: usize, members: usize) -> Self {
        Self(Cell::new(FREE + A_BYTE * bytes + A_MEMBER * members))
    }

    /// Deducts looks. If none are left it unwinds with [`TooMuch`], out of a loop that
    /// nothing else ends; no panic hook runs, and the switch catches it.
    pub(crate) fn spend(&self, looks: usize) {
        match self.0.get().checked_sub(looks) {
            Some(left) => self.0.set(left),
            None => resume_unwind(Box::new(TooMuch)),
        }
    }
}
