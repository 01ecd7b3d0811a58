//! Descriptors: small numbers for open files.
//!
//! ```text
//!  number ──► Table: chunk ──► slot ──► Arc<OpenFile> ◄── a call in progress
//!                │
//!                └── numbers in use: Bitmap (64-way tree), or Linear beside it
//! ```
//!
//! A number is always the lowest that is free, as POSIX has it, which rules out a
//! free list. [`Bitmap`] finds it by one word a level; [`Linear`] is the walk of
//! the kernels that the paper measured, kept to compare with. [`Table`] ties
//! numbers to entries: looking one up takes no lock that another descriptor's
//! calls take. [`Descriptors`] is the table of one application, with the calls.
//!
//! These are the numbers of the native API, not the kernel's: 5 here and 5 there
//! are two things.

mod bitmap;
mod calls;
mod file;
mod linear;
mod table;

pub use bitmap::Bitmap;
pub(crate) use calls::Identity;
pub use calls::{Descriptors, Flags};
pub use file::{
    MSG_DONTWAIT, MSG_EOR, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_ZEROCOPY,
    OpenFile,
};
pub use linear::Linear;
pub use table::{CLOSE_RANGE_CLOEXEC, Closing, Reservation, Table, weak};

/// No memory for a number, or it is past the end of what is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumbersError;

impl std::fmt::Display for NumbersError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no memory for this number")
    }
}

impl std::error::Error for NumbersError {}

/// How a table finds the lowest free number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// A tree of bitmaps: one word a level.
    #[default]
    Bitmap,
    /// One look for each number in use. A comparator, slow on purpose.
    Linear,
}
