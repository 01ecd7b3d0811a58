//! Frame memory under the queues of several interfaces (XDP_SHARED_UMEM). A frame
//! received on one can be sent by another from where it lies.
//!
//! Read first: Documentation/networking/af_xdp.rst, "XDP_SHARED_UMEM bind flag": each
//! queue of each device has its own fill and completion rings. The kernel copies frames
//! into the memory: in zero-copy mode a driver dictates the frame length, and all sharing
//! drivers would have to agree. A packet longer than a frame lies in several, and leaves
//! in these.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::bind::{LARGE_FRAME, can_join, frame_size, mtu, receivable};
use crate::forked::Unshared;
use crate::frame::{FRAME_SIZE, FrameMemory, Part};
use crate::interface::queue_count;

/// See the module's documentation.
pub struct SharedUmem {
    parts: std::vec::IntoIter<Part>,
    /// The socket that registered the memory, which was bound first, and whether it has
    /// room for transmit metadata.
    pub(super) first: Option<(Arc<Unshared<OwnedFd>>, bool)>,
}

impl SharedUmem {
    /// Allocates `frames` frames, a power of two, for each queue of these interfaces.
    /// They are long enough for the largest MTU.
    ///
    /// # Errors
    /// As [`FrameMemory::new`]. Unsupported, with an explanation, for an MTU over that of
    /// the largest frame where the kernel does not support packets in several frames
    /// (before Linux 6.6).
    pub fn new(interfaces: &[&str], frames: u32) -> io::Result<Self> {
        let most = receivable(LARGE_FRAME);
        let longer = |it: &&&str| !can_join() && mtu(it).is_some_and(|mtu| mtu > most);
        if let Some(interface) = interfaces.iter().find(longer) {
            let text = format!(
                "the MTU of {interface} is too large for this kernel, which gives an AF_XDP socket \
                 no packet in several frames (Linux 6.6 does); here: ip link set dev {interface} \
                 mtu {most}"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let queues = interfaces.iter().map(|it| queue_count(it).unwrap_or(1));
        let sizes = interfaces.iter().map(|it| frame_size(it));
        let frame_size = sizes.max().unwrap_or(FRAME_SIZE);
        Ok(SharedUmem {
            parts: FrameMemory::in_parts(queues.sum(), frames, frame_size)?.into_iter(),
            first: None,
        })
    }

    /// The part for the next queue; `None` when each queue has its part.
    pub(super) fn take_part(&mut self) -> Option<Part> {
        self.parts.next()
    }
}
