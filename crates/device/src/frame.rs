//! Frame memory and the ownership of frames.
//!
//! One queue has one [`FrameMemory`]: a memfd cut into equal frames, mapped
//! here and, with AF_XDP, registered with the kernel. At any time a frame has
//! exactly one owner: the device's fill ring, a channel, an application that
//! borrows its bytes, or the transmit ring. A [`Frame`] is the proof of
//! ownership: it cannot be copied, only moved, and only devices make them.

use std::io;
use std::sync::Arc;

use crate::raw::mapping::Mapping;

/// Bytes in one frame: room for the kernel's headroom, our metadata and any
/// Ethernet frame up to an MTU of 1500.
pub const FRAME_SIZE: usize = 2048;

/// Proof that its holder owns one frame of a [`FrameMemory`], and where in it
/// the bytes lie. Moves by value; losing one leaks a frame until the device
/// closes, so owners hand them back (see `receive::FrameStack`).
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    index: u32,
    offset: u16,
    length: u16,
}

impl Frame {
    /// Makes the token for frame `index`. Only the code that takes the frame
    /// from a ring, or creates the memory, may call this: two tokens for one
    /// frame would alias its bytes.
    pub(crate) fn new(index: u32, offset: u16, length: u16) -> Self {
        Frame {
            index,
            offset,
            length,
        }
    }

    /// Number of the frame in its memory.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Offset of the first byte of the packet from the frame's first byte.
    pub fn offset(&self) -> u16 {
        self.offset
    }

    /// Bytes of packet in the frame.
    pub fn length(&self) -> u16 {
        self.length
    }

    /// Declares where the packet lies; clamped to the frame.
    pub fn set_extent(&mut self, offset: u16, length: u16) {
        self.offset = offset.min(FRAME_SIZE as u16);
        self.length = length.min(FRAME_SIZE as u16 - self.offset);
    }

    /// Splits the token into plain numbers, so that it can be kept in shared
    /// memory. The frame is leaked unless [`Frame::from_parts`] remakes it.
    pub fn into_parts(self) -> (u32, u16, u16) {
        (self.index, self.offset, self.length)
    }

    /// Remakes a token that [`Frame::into_parts`] took apart.
    ///
    /// # Safety
    /// The numbers must come from exactly one `into_parts` of a frame of the
    /// same memory, and must be used once: two tokens for one frame alias.
    #[allow(unsafe_code)]
    pub unsafe fn from_parts(index: u32, offset: u16, length: u16) -> Self {
        Frame {
            index,
            offset,
            length,
        }
    }
}

/// The frames of one queue. Cheap to clone; the mapping lives as long as any
/// clone.
#[derive(Clone, Debug)]
pub struct FrameMemory {
    mapping: Arc<Mapping>,
    frames: u32,
}

impl FrameMemory {
    /// Maps memory for `frames` frames of [`FRAME_SIZE`] bytes.
    ///
    /// # Errors
    /// What `memfd_create`, `ftruncate` or `mmap` report, ENOMEM say.
    pub fn new(frames: u32) -> io::Result<Self> {
        let mapping = Mapping::anonymous_file("tidewall-frames", frames as usize * FRAME_SIZE)?;
        Ok(FrameMemory {
            mapping: Arc::new(mapping),
            frames,
        })
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Address of the first byte, for registering with the kernel.
    pub(crate) fn address(&self) -> *mut u8 {
        self.mapping.address()
    }

    /// Length in bytes.
    pub(crate) fn bytes_mapped(&self) -> usize {
        self.mapping.length()
    }

    /// The packet in a frame that the caller owns.
    pub fn packet<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.mapping.slice(
            frame.index as usize * FRAME_SIZE + frame.offset as usize,
            frame.length as usize,
        )
    }

    /// The packet in a frame that the caller owns, to change.
    pub fn packet_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.mapping.slice_mut(
            frame.index as usize * FRAME_SIZE + frame.offset as usize,
            frame.length as usize,
            frame,
        )
    }

    /// The `length` bytes just below the packet: the driver's metadata.
    /// Shorter when the packet begins too near the frame's start.
    pub fn below<'a>(&'a self, frame: &'a Frame, length: usize) -> &'a [u8] {
        let length = length.min(frame.offset as usize);
        self.mapping.slice(
            frame.index as usize * FRAME_SIZE + frame.offset as usize - length,
            length,
        )
    }

    /// The `length` bytes just below the packet, to change: a request to the
    /// device. Empty when the packet begins too near the frame's start.
    pub(crate) fn below_mut<'a>(&'a self, frame: &'a mut Frame, length: usize) -> &'a mut [u8] {
        let Some(below) = (frame.offset as usize).checked_sub(length) else {
            return &mut [];
        };
        self.mapping
            .slice_mut(frame.index as usize * FRAME_SIZE + below, length, frame)
    }

    /// Writes `bytes` just below the packet. False, and nothing written, when
    /// the packet begins too near the frame's start.
    pub fn write_below(&self, frame: &mut Frame, bytes: &[u8]) -> bool {
        let room = self.below_mut(frame, bytes.len());
        if room.len() != bytes.len() {
            return false;
        }
        room.copy_from_slice(bytes);
        true
    }
}
