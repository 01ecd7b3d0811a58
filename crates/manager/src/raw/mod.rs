//! The unsafe edge of this crate: the restorer's fork. Nothing outside `raw` contains an
//! unsafe block.

pub(crate) mod fork;
