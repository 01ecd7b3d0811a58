//! The memory that the program may access, and its addresses.

use std::collections::BTreeMap;
use std::ops::Range;

use super::raw_memory::Shared;
use super::{CONTEXT, FRAME, HEADROOM, LONGEST, VALUES};

/// Between two values: an access beyond one reaches nothing.
const GAP: u64 = 4096;
/// The kernel keeps its struct xdp_frame at the start of the headroom.
const RESERVED: usize = 40;
/// Maximum metadata, of which some kernels permit more.
const METADATA: usize = 32;
const ETHERNET: usize = 14;

enum Bytes<'a> {
    Owned(Vec<u8>),
    Shared(Shared<'a>),
}

struct Region<'a> {
    bytes: Bytes<'a>,
    /// The part of it that the program may access.
    window: Range<usize>,
    writable: bool,
}

/// All memory, by address.
#[derive(Default)]
pub(super) struct Memory<'a> {
    regions: BTreeMap<u64, Region<'a>>,
    next: u64,
    /// Addresses of ring buffer records.
    open: Vec<u64>,
    /// Offsets in the frame's buffer.
    metadata: usize,
    data: usize,
    end: usize,
    queue: u32,
}

impl<'a> Memory<'a> {
    fn allocate(&mut self, length: usize) -> u64 {
        let at = self.next.max(VALUES);
        self.next = (at + length as u64 + GAP).next_multiple_of(GAP);
        at
    }

    /// Adds memory at a free address.
    pub(super) fn add_at(&mut self, at: u64, bytes: Vec<u8>) {
        let region = Region {
            window: 0..bytes.len(),
            bytes: Bytes::Owned(bytes),
            writable: true,
        };
        self.regions.insert(at, region);
    }

    /// Adds memory; returns its address.
    pub(super) fn add(&mut self, bytes: Vec<u8>) -> u64 {
        let at = self.allocate(bytes.len());
        self.add_at(at, bytes);
        at
    }

    /// Replaces the memory at an address with shared memory.
    pub(super) fn share(&mut self, at: u64, shared: Shared<'a>) {
        if let Some(region) = self.regions.get_mut(&at) {
            assert_eq!(shared.len(), region.window.end, "the size of the value");
            region.bytes = Bytes::Shared(shared);
        }
    }

    pub(super) fn forbid_writing(&mut self, at: u64) {
        if let Some(region) = self.regions.get_mut(&at) {
            region.writable = false;
        }
    }

    /// Removes memory.
    pub(super) fn remove(&mut self, at: u64) {
        self.regions.remove(&at);
    }

    fn locate(&self, address: u64, length: usize, what: &str) -> Result<(u64, usize), String> {
        let found = self.regions.range(..=address).next_back();
        found
            .and_then(|(&base, region)| {
                let offset = usize::try_from(address - base).ok()?;
                let end = offset.checked_add(length)?;
                let inside = region.window.start <= offset && end <= region.window.end;
                (inside && (region.writable || what == "reads")).then_some((base, offset))
            })
            .ok_or_else(|| format!("{what} {length} bytes at {address:#x}, which it may not"))
    }

    /// Copies bytes out.
    pub(super) fn load(&self, address: u64, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length];
        self.copy_out(address, &mut bytes)?;
        Ok(bytes)
    }

    fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        let (base, offset) = self.locate(address, bytes.len(), "reads")?;
        match &self.regions[&base].bytes {
            Bytes::Owned(owned) => bytes.copy_from_slice(&owned[offset..][..bytes.len()]),
            Bytes::Shared(shared) => shared.read(offset, bytes),
        }
        Ok(())
    }

    /// Copies bytes in.
    pub(super) fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        let (base, offset) = self.locate(address, bytes.len(), "writes")?;
        match self.regions.get_mut(&base).map(|region| &mut region.bytes) {
            Some(Bytes::Owned(owned)) => owned[offset..][..bytes.len()].copy_from_slice(bytes),
            Some(Bytes::Shared(shared)) => shared.write(offset, bytes),
            None => {}
        }
        Ok(())
    }

    /// Reads a word of 1, 2, 4 or 8 bytes.
    pub(super) fn read(&self, address: u64, size: usize) -> Result<u64, String> {
        let mut bytes = [0; 8];
        self.copy_out(address, &mut bytes[..size])?;
        Ok(match size {
            1 => bytes[0].into(),
            2 => u16::from_ne_bytes([bytes[0], bytes[1]]).into(),
            4 => u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
            _ => u64::from_ne_bytes(bytes),
        })
    }

    /// Writes a word of 1, 2, 4 or 8 bytes.
    pub(super) fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), String> {
        match size {
            1 => self.store(address, &(value as u8).to_ne_bytes()),
            2 => self.store(address, &(value as u16).to_ne_bytes()),
            4 => self.store(address, &(value as u32).to_ne_bytes()),
            _ => self.store(address, &value.to_ne_bytes()),
        }
    }

    /// Puts a frame in its buffer, and struct xdp_md beside it.
    pub(super) fn enter(&mut self, frame: &[u8], queue: u32) {
        let mut buffer = vec![0; HEADROOM + LONGEST];
        buffer[HEADROOM..][..frame.len()].copy_from_slice(frame);
        self.add_at(FRAME, buffer);
        self.queue = queue;
        self.set_bounds(HEADROOM, HEADROOM, HEADROOM + frame.len());
    }

    /// Metadata and frame.
    pub(super) fn leave(&self) -> (Vec<u8>, Vec<u8>) {
        let load = |from, to| self.load(FRAME + from as u64, to - from);
        let (metadata, frame) = (load(self.metadata, self.data), load(self.data, self.end));
        (metadata.unwrap_or_default(), frame.unwrap_or_default())
    }

    fn set_bounds(&mut self, metadata: usize, data: usize, end: usize) {
        (self.metadata, self.data, self.end) = (metadata, data, end);
        if let Some(region) = self.regions.get_mut(&FRAME) {
            region.window = metadata..end;
        }
        let place = |offset: usize| FRAME as u32 + offset as u32;
        // data, data_end, data_meta, ingress_ifindex, rx_queue_index,
        // egress_ifindex.
        let fields = [place(data), place(end), place(metadata), 1, self.queue, 0];
        self.add_at(
            CONTEXT,
            fields.into_iter().flat_map(u32::to_ne_bytes).collect(),
        );
        self.forbid_writing(CONTEXT);
    }

    pub(super) fn frame_length(&self) -> usize {
        self.end - self.data
    }

    /// Address of this many bytes of the frame, if it has them.
    pub(super) fn in_frame(&self, offset: u64, length: u64) -> Option<u64> {
        let inside = offset.checked_add(length)? <= self.frame_length() as u64;
        inside.then_some(FRAME + self.data as u64 + offset)
    }

    /// bpf_xdp_adjust_meta, _head and _tail; false where the kernel refuses.
    pub(super) fn adjust_metadata(&mut self, delta: i32) -> bool {
        let metadata = self.metadata.wrapping_add_signed(delta as isize);
        let length = self.data.wrapping_sub(metadata);
        let good = metadata >= RESERVED && length <= METADATA && length.is_multiple_of(4);
        if good {
            self.set_bounds(metadata, self.data, self.end);
        }
        good
    }

    /// See [`Memory::adjust_metadata`].
    pub(super) fn adjust_head(&mut self, delta: i32) -> bool {
        let length = self.data - self.metadata;
        let data = self.data.wrapping_add_signed(delta as isize);
        let good = data >= RESERVED + length && data.saturating_add(ETHERNET) <= self.end;
        if good {
            let metadata = self.load(FRAME + self.metadata as u64, length);
            self.set_bounds(data - length, data, self.end);
            let moved =
                metadata.and_then(|bytes| self.store(FRAME + (data - length) as u64, &bytes));
            return moved.is_ok();
        }
        good
    }

    /// See [`Memory::adjust_metadata`].
    pub(super) fn adjust_tail(&mut self, delta: i32) -> bool {
        let (old, end) = (self.end, self.end.wrapping_add_signed(delta as isize));
        let good = end >= self.data + ETHERNET && end <= HEADROOM + LONGEST;
        if good {
            self.set_bounds(self.metadata, self.data, end);
            let grown = vec![0; end.saturating_sub(old)];
            return grown.is_empty() || self.store(FRAME + old as u64, &grown).is_ok();
        }
        good
    }

    /// Opens a ring buffer record of this many bytes; 0: no room.
    pub(super) fn open_record(&mut self, length: usize, ring: usize) -> u64 {
        if length + 8 > ring {
            return 0;
        }
        let at = self.add(vec![0xa5; length]);
        self.open.push(at);
        at
    }

    pub(super) fn has_open_record(&self) -> bool {
        !self.open.is_empty()
    }

    /// Closes a record; returns its bytes, if it was one.
    pub(super) fn close_record(&mut self, at: u64) -> Option<Vec<u8>> {
        let place = self.open.iter().position(|&open| open == at)?;
        self.open.swap_remove(place);
        match self.regions.remove(&at)?.bytes {
            Bytes::Owned(bytes) => Some(bytes),
            Bytes::Shared(_) => None,
        }
    }
}
