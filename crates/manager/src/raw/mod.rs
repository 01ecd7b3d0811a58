//! The unsafe edge of this crate: the restorer's fork, and fsmount(2). Nothing outside `raw` contains an
//! unsafe block.

pub(crate) mod fork;
pub(crate) mod mount;
