//! The unsafe edge of this crate: it splits and remakes frame tokens, the only place
//! where two tokens for one frame could arise.

use tidewall_device::frame::Frame;

use crate::slots::Slots;

/// Stores a token's extent in the slots and returns its index. Every index stored in a
/// list came from here, and leaves through [`retrieve`] once: a list returns each node to
/// one consumer.
pub(crate) fn store(slots: &Slots, frame: Frame) -> u32 {
    let (index, offset, length) = frame.into_parts();
    slots.set_extent(index, offset, length);
    index
}

/// Remakes the token of a node just taken from a list.
pub(crate) fn retrieve(slots: &Slots, index: u32) -> Frame {
    let (offset, length) = slots.extent(index);
    // SAFETY: `index` was put into the list by `store`, which consumed the
    // token, and the list gave it to us alone.
    unsafe { Frame::from_parts(index, offset, length) }
}

/// Shows `look` the token of a node that is still in a list. Only the list's consumer may
/// call this.
pub(crate) fn glance<T>(slots: &Slots, index: u32, look: impl FnOnce(&Frame) -> T) -> T {
    let (offset, length) = slots.extent(index);
    // SAFETY: `store` consumed the token of `index`. The caller alone may take the node out
    // of the list, and does so after this token is gone.
    let frame = unsafe { Frame::from_parts(index, offset, length) };
    look(&frame)
}

/// Makes a token without frame memory, for tests.
#[cfg(test)]
pub(crate) fn test_frame(index: u32) -> Frame {
    // SAFETY: there is no memory behind it, so there is nothing to alias.
    unsafe { Frame::from_parts(index, 0, 0) }
}
