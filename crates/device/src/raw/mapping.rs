//! Frames in the memory shared with the kernel.

use tidewall_sys::Mapping;

use crate::frame::Frame;

/// Bytes of a frame whose owner holds a borrow for the result's lifetime.
/// A range outside the mapping gives an empty slice.
pub(crate) fn slice(mapping: &Mapping, start: usize, length: usize) -> &[u8] {
    if start
        .checked_add(length)
        .is_none_or(|end| end > mapping.length())
    {
        return &[];
    }
    // SAFETY: inside the mapping (checked above). The bytes belong to the frame whose
    // token the caller borrows, and a frame has one token, so no other code writes them
    // meanwhile. The kernel writes only frames whose tokens were given to the fill ring.
    unsafe { std::slice::from_raw_parts(mapping.address().add(start), length) }
}

/// Bytes of a frame, for writing; `_owner` is the token, borrowed mutably so that no
/// other view of the frame exists.
pub(crate) fn slice_mut<'a>(
    mapping: &'a Mapping,
    start: usize,
    length: usize,
    _owner: &'a mut Frame,
) -> &'a mut [u8] {
    if start
        .checked_add(length)
        .is_none_or(|end| end > mapping.length())
    {
        return &mut [];
    }
    // SAFETY: inside the mapping (checked above); `_owner` is the only
    // token of this frame and is borrowed mutably for 'a.
    unsafe { std::slice::from_raw_parts_mut(mapping.address().add(start), length) }
}
