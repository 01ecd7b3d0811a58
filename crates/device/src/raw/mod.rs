//! The unsafe edge of this crate: mappings, AF_XDP rings and system calls.
//! Nothing outside `raw` (here and beside the demux tables) contains an unsafe
//! block.

pub(crate) mod forked;
pub(crate) mod mapping;
pub(crate) mod ring;
pub(crate) mod umem;
