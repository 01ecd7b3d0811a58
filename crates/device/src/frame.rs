//! Frame memory and the ownership of frames.
//!
//! A queue has one [`FrameMemory`]: a memfd divided into equal frames, mapped here and,
//! with AF_XDP, registered with the kernel. The device determines the frame length: 2 KiB
//! for packets, 64 KiB and more where segments arrive unsplit
//! ([`FrameMemory::frame_size`]). At any time a frame has exactly one owner: the device's
//! fill ring, a channel, an application that borrows its bytes, or the transmit ring. A
//! [`Frame`] is the proof of ownership: it cannot be copied, only moved, and only devices
//! create them.
//!
//! Several queues, even of several interfaces, may share one memory. Each starts with its
//! [`Part`] of the frames, and may send frames that another has received. A frame's index
//! tells whose part it belongs to.
//!
//! A packet longer than a frame lies in several: pieces. Its token is that of the first.
//! The token's owner also owns the other pieces, which stay linked to the first until the
//! device gets it back.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tidewall_sys::Mapping;

use crate::raw::mapping::{slice, slice_mut};

/// Bytes in one frame of most devices: room for the kernel's headroom, our metadata and
/// any Ethernet frame up to an MTU of 1500.
pub const FRAME_SIZE: usize = 2048;

/// Proof that its holder owns one frame of a [`FrameMemory`], and the position of its
/// bytes. Moves by value. Dropping one leaks a frame until the device closes, so owners
/// return them (see `receive::FrameStack`).
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

    /// Index of the frame in its memory.
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

    /// Sets where the packet lies. The memory never exposes a byte outside the frame,
    /// whatever is set.
    pub fn set_extent(&mut self, offset: u16, length: u16) {
        self.offset = offset;
        self.length = length;
    }

    /// Splits the token into plain integers, so that it can be kept in shared memory. The
    /// frame is leaked unless [`Frame::from_parts`] remakes it.
    pub fn into_parts(self) -> (u32, u16, u16) {
        (self.index, self.offset, self.length)
    }

    /// Remakes a token that [`Frame::into_parts`] split.
    ///
    /// # Safety
    /// The numbers must come from exactly one `into_parts` of a frame of the same memory,
    /// and must be used once: two tokens for one frame alias.
    #[allow(unsafe_code)]
    pub unsafe fn from_parts(index: u32, offset: u16, length: u16) -> Self {
        Frame {
            index,
            offset,
            length,
        }
    }
}

/// The frames of a queue, or of several. Cheap to clone; the mapping lives as
/// long as any clone.
#[derive(Clone, Debug)]
pub struct FrameMemory {
    mapping: Arc<Mapping>,
    frames: u32,
    frame_size: usize,
    /// The piece linked behind each frame: 1 + its index, offset and length; 0 if there
    /// is none. Written by the code that receives and returns frames; read by the frame's
    /// owner, to whom it has passed since.
    behind: Arc<OnceLock<Box<[AtomicU64]>>>,
}

impl FrameMemory {
    /// Maps memory for `frames` frames of [`FRAME_SIZE`] bytes.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate` or `mmap`, such as ENOMEM.
    pub fn new(frames: u32) -> io::Result<Self> {
        Self::with_frame_size(frames, FRAME_SIZE)
    }

    /// Maps memory for `frames` frames of `frame_size` bytes. The bytes of a frame beyond
    /// 128 KiB are never used: offsets and lengths have 16 bits.
    ///
    /// # Errors
    /// As [`FrameMemory::new`].
    pub fn with_frame_size(frames: u32, frame_size: usize) -> io::Result<Self> {
        Ok(Self::with_file(frames, frame_size)?.0)
    }

    /// As [`FrameMemory::with_frame_size`], and returns the memfd, through which another
    /// process maps the same memory ([`FrameMemory::of_file`]).
    ///
    /// # Errors
    /// As [`FrameMemory::new`].
    pub fn with_file(frames: u32, frame_size: usize) -> io::Result<(Self, OwnedFd)> {
        let length = length(frames, frame_size)?;
        let (mapping, file) = Mapping::memfd("tidewall-frames", length)?;
        Ok((Self::mapped(mapping, frames, frame_size), file))
    }

    /// Maps memory that another process created. The caller is the only one that makes
    /// frames of it.
    ///
    /// # Errors
    /// EINVAL where it is shorter; what mapping it reports.
    pub fn of_file(file: BorrowedFd<'_>, frames: u32, frame_size: usize) -> io::Result<Self> {
        let length = length(frames, frame_size)?;
        if rustix::fs::fstat(file)?.st_size < length as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapping = Mapping::new(file, length, 0)?;
        Ok(Self::mapped(mapping, frames, frame_size))
    }

    fn mapped(mapping: Mapping, frames: u32, frame_size: usize) -> Self {
        FrameMemory {
            mapping: Arc::new(mapping),
            frames,
            frame_size,
            behind: Arc::default(),
        }
    }

    /// Maps memory for `parts` parts of `frames` frames each.
    ///
    /// # Errors
    /// As [`FrameMemory::new`].
    pub fn in_parts(parts: u32, frames: u32, frame_size: usize) -> io::Result<Vec<Part>> {
        let all = parts
            .checked_mul(frames)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self::with_frame_size(all, frame_size)?;
        let part = |number: u32| Part {
            memory: memory.clone(),
            numbers: number * frames..(number + 1) * frames,
        };
        Ok((0..parts).map(part).collect())
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Bytes in one frame.
    pub fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// Position of a frame's packet in the mapping, and its length. Clipped to the frame,
    /// so that no token reaches another frame's bytes.
    fn extent(&self, frame: &Frame) -> (usize, usize) {
        let offset = usize::from(frame.offset).min(self.frame_size);
        let length = usize::from(frame.length).min(self.frame_size - offset);
        (frame.index as usize * self.frame_size + offset, length)
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
        let (start, length) = self.extent(frame);
        slice(&self.mapping, start, length)
    }

    /// The packet in a frame that the caller owns, for writing.
    pub fn packet_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let (start, length) = self.extent(frame);
        slice_mut(&self.mapping, start, length, frame)
    }

    fn behind(&self, frame: &Frame) -> Option<&AtomicU64> {
        self.behind.get()?.get(frame.index as usize)
    }

    /// Links a piece behind the frame before it. False if either index is outside this
    /// memory.
    pub(crate) fn hang(&self, last: &Frame, piece: &Frame) -> bool {
        if piece.index >= self.frames {
            return false;
        }
        let none = || (0..self.frames).map(|_| AtomicU64::new(0)).collect();
        let Some(place) = self.behind.get_or_init(none).get(last.index as usize) else {
            return false;
        };
        let extent = u64::from(piece.offset) << 16 | u64::from(piece.length);
        place.store(
            (u64::from(piece.index) + 1) << 32 | extent,
            Ordering::Relaxed,
        );
        true
    }

    /// The token of the piece linked behind a frame.
    fn piece(&self, frame: &Frame) -> Option<Frame> {
        let behind = self.behind(frame)?.load(Ordering::Relaxed);
        let index = (behind >> 32).checked_sub(1)? as u32;
        Some(Frame::new(index, (behind >> 16) as u16, behind as u16))
    }

    /// Unlinks the piece behind a frame, with the pieces linked to it.
    pub(crate) fn take_piece(&self, frame: &Frame) -> Option<Frame> {
        let piece = self.piece(frame)?;
        self.behind(frame)?.store(0, Ordering::Relaxed);
        Some(piece)
    }

    /// True where the packet continues in other frames.
    pub fn has_pieces(&self, frame: &Frame) -> bool {
        self.piece(frame).is_some()
    }

    /// The bytes in a piece of a packet of several frames. 0 is the first piece after the
    /// packet's own frame. `None` after the last.
    pub fn piece_behind<'a>(&'a self, frame: &'a Frame, number: usize) -> Option<&'a [u8]> {
        let mut piece = self.piece(frame)?;
        for _ in 0..number {
            piece = self.piece(&piece)?;
        }
        let (start, length) = self.extent(&piece);
        Some(slice(&self.mapping, start, length))
    }

    /// Bytes of the whole packet.
    pub fn whole_len(&self, frame: &Frame) -> usize {
        let pieces = self.hanging(frame).map(|piece| self.extent(&piece).1);
        self.extent(frame).1 + pieces.sum::<usize>()
    }

    /// The pieces linked behind a frame, which remain linked.
    pub(crate) fn hanging<'a>(&'a self, frame: &'a Frame) -> impl Iterator<Item = Frame> + 'a {
        let mut next = self.piece(frame);
        std::iter::from_fn(move || {
            let piece = next.take()?;
            next = self.piece(&piece);
            Some(piece)
        })
    }

    /// Appends the whole packet to `bytes`, including all its pieces.
    pub fn append_whole(&self, frame: &Frame, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.packet(frame));
        let mut next = self.piece(frame);
        while let Some(piece) = next {
            bytes.extend_from_slice(self.packet(&piece));
            next = self.piece(&piece);
        }
    }

    /// The `length` bytes just below the packet: the driver's metadata.
    /// Shorter when the packet begins too near the frame's start.
    pub fn below<'a>(&'a self, frame: &'a Frame, length: usize) -> &'a [u8] {
        let length = length.min(usize::from(frame.offset).min(self.frame_size));
        let (start, _) = self.extent(frame);
        slice(&self.mapping, start - length, length)
    }

    /// The `length` bytes just below the packet, for writing a request to the device.
    /// Empty when the packet begins too near the frame's start.
    pub(crate) fn below_mut<'a>(&'a self, frame: &'a mut Frame, length: usize) -> &'a mut [u8] {
        if length > usize::from(frame.offset).min(self.frame_size) {
            return &mut [];
        }
        let (start, _) = self.extent(frame);
        slice_mut(&self.mapping, start - length, length, frame)
    }

    /// Writes `bytes` just below the packet. Returns false, having written nothing, when
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

/// Bytes of `frames` frames.
fn length(frames: u32, frame_size: usize) -> io::Result<usize> {
    let length = (frames as usize).checked_mul(frame_size);
    length.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// The frames of a memory that belong to one queue. The queue's opener creates the tokens
/// of its part, once.
#[derive(Debug)]
pub struct Part {
    memory: FrameMemory,
    numbers: Range<u32>,
}

impl Part {
    /// All of a memory that was just created; it must have no other part.
    pub(crate) fn whole(memory: FrameMemory) -> Self {
        let numbers = 0..memory.frames();
        Part { memory, numbers }
    }

    /// The memory that it is a part of.
    pub fn memory(&self) -> &FrameMemory {
        &self.memory
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.numbers.end - self.numbers.start
    }

    /// The memory and the tokens of the part's frames, the only ones ever made.
    pub(crate) fn into_frames(self) -> (FrameMemory, Vec<Frame>) {
        let frames = self.numbers.map(|index| Frame::new(index, 0, 0));
        (self.memory, frames.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_packet_until_they_are_taken_off() {
        let memory = FrameMemory::new(4).unwrap();
        let mut frames: Vec<Frame> = (0..4).map(|index| Frame::new(index, 100, 7)).collect();
        for (frame, mark) in frames.iter_mut().zip([1, 2, 3, 4]) {
            memory.packet_mut(frame).fill(mark);
        }
        let [first, second, third, other] = &frames[..] else {
            unreachable!()
        };
        assert!(!memory.has_pieces(first));
        assert!(memory.hang(first, third));
        assert!(memory.hang(third, second));
        // These are outside the memory.
        assert!(!memory.hang(&Frame::new(4, 0, 0), other));
        assert!(!memory.hang(second, &Frame::new(4, 0, 0)));
        assert!(!memory.has_pieces(second));
        let whole = |frame| {
            let mut bytes = Vec::new();
            memory.append_whole(frame, &mut bytes);
            bytes
        };
        assert_eq!(whole(first), [[1; 7], [3; 7], [2; 7]].concat());
        let behind = [0, 1, 2].map(|number| memory.piece_behind(first, number));
        assert_eq!(behind, [Some(&[3; 7][..]), Some(&[2; 7]), None]);
        let hanging: Vec<u32> = memory.hanging(first).map(|it| it.index()).collect();
        assert_eq!(hanging, [third.index(), second.index()]);
        assert_eq!(whole(other), [4; 7]);
        assert_eq!(memory.take_piece(first).as_ref(), Some(third));
        assert_eq!(whole(first), [1; 7]);
        assert_eq!(memory.take_piece(third).as_ref(), Some(second));
        assert_eq!(memory.take_piece(second), None);
    }

    #[test]
    fn a_frame_shows_no_byte_of_its_neighbours() {
        for size in [FRAME_SIZE, 66 * 1024] {
            let memory = FrameMemory::with_frame_size(3, size).unwrap();
            let mut frames: Vec<Frame> = (0..3).map(|index| Frame::new(index, 0, 0)).collect();
            for frame in &mut frames {
                let mark = frame.index() as u8 + 1;
                for offset in [0, 1000, u16::MAX] {
                    frame.set_extent(offset, u16::MAX);
                    let length = memory.packet(frame).len();
                    let room = size.saturating_sub(usize::from(offset));
                    assert_eq!(length, room.min(usize::from(u16::MAX)));
                    memory.packet_mut(frame).fill(mark);
                    assert!(memory.below(frame, 70_000).len() <= size);
                    memory.below_mut(frame, 24).fill(mark);
                }
            }
            for frame in &mut frames {
                frame.set_extent(0, u16::MAX);
                let mark = frame.index() as u8 + 1;
                assert!(memory.packet(frame).iter().all(|&byte| byte == mark));
            }
        }
    }
}
