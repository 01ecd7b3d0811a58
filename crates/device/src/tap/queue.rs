//! The queue interface over the tap's descriptor.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use crate::demux::{self, Tables, Verdict};
use crate::frame::{Frame, FrameMemory};
use crate::queue::{
    BURST, Flushed, Interrupt, LongSegment, Offload, POLL_MAX, Receive, Received, Transmit, passes,
};
use crate::virtio_header::{self as header, LENGTH};

use super::{Counts, HEADROOM, SEGMENT_MAX, count};

/// Maximum number of frames that wait for a flush.
const TRANSMIT_RING: usize = 512;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of a frame that are read when no frame is free. The kernel discards the rest.
const NO_ROOM: usize = LENGTH + ETHERNET;

/// Maps the descriptor's error for an interface that is down or gone to AF_XDP's.
fn device_error(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EIO | libc::EBADFD) => io::Error::from_raw_os_error(libc::ENETDOWN),
        _ => error,
    }
}

/// True when the kernel has nothing for us, or no room, at this moment.
fn is_not_now(error: &io::Error) -> bool {
    let not_now = [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|errno| not_now.contains(&errno))
}

pub(super) struct ReceiveHalf {
    file: Arc<File>,
    memory: FrameMemory,
    tables: Tables,
    counts: Arc<Counts>,
    /// Empty frames. The last used is used next: its bytes are in the cache.
    fill: Vec<Frame>,
    received: VecDeque<Received>,
    budget: u32,
    start: Instant,
}

impl ReceiveHalf {
    pub(super) fn new(
        file: Arc<File>,
        memory: FrameMemory,
        tables: Tables,
        counts: Arc<Counts>,
    ) -> Self {
        ReceiveHalf {
            file,
            memory,
            tables,
            counts,
            fill: Vec::new(),
            received: VecDeque::new(),
            budget: POLL_MAX,
            start: Instant::now(),
        }
    }

    /// Reads one frame. False when there is none.
    fn read(&mut self, now: u64) -> io::Result<bool> {
        let Some(mut frame) = self.fill.pop() else {
            // If left unread it would keep the descriptor readable, and wake every thread
            // that sleeps on it.
            let mut seen = [0; NO_ROOM];
            return match (&*self.file).read(&mut seen) {
                Ok(_) => {
                    count(&self.counts.no_frame);
                    Ok(true)
                }
                Err(error) if is_not_now(&error) => Ok(false),
                Err(error) => Err(device_error(error)),
            };
        };
        // Linux passes at most 65,535 bytes to an interface unsplit, with the Ethernet
        // header, unless an operator enables BIG TCP. The demux drops frames truncated
        // here.
        frame.set_extent(HEADROOM, u16::MAX);
        let mut header = header::PLAIN;
        let mut parts = [
            IoSliceMut::new(&mut header),
            IoSliceMut::new(self.memory.packet_mut(&mut frame)),
        ];
        let length = match (&*self.file).read_vectored(&mut parts) {
            Ok(length) => length,
            Err(error) => {
                self.fill.push(frame);
                return if is_not_now(&error) {
                    Ok(false)
                } else {
                    Err(device_error(error))
                };
            }
        };
        let length = length
            .checked_sub(LENGTH)
            .filter(|&bytes| bytes >= ETHERNET);
        let length = length.and_then(|bytes| u16::try_from(bytes).ok());
        let Some(length) = length else {
            count(&self.counts.bad_length);
            self.fill.push(frame);
            return Ok(true);
        };
        count(&self.counts.read);
        if header::is_long(&header) {
            count(&self.counts.long);
        }
        frame.set_extent(HEADROOM, length);
        let bytes = self.memory.packet_mut(&mut frame);
        match demux::drive(&self.tables, 0, bytes, now) {
            Verdict::Channel(metadata) | Verdict::Raw(metadata) => {
                self.memory.write_below(&mut frame, &metadata.to_bytes());
                self.received.push_back(Received { frame, metadata });
            }
            verdict => {
                if !matches!(verdict, Verdict::Drop { .. }) {
                    count(&self.counts.nobodys);
                }
                self.fill.push(frame);
            }
        }
        Ok(true)
    }
}

impl Receive for ReceiveHalf {
    fn poll(&mut self, _interrupt: Interrupt) -> io::Result<()> {
        // The descriptor is readable while there are frames, whatever was requested.
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..self.budget {
            if !self.read(now)? {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize {
        let count = self.received.len().min(limit);
        batch.extend(self.received.drain(..count));
        count
    }

    fn fill(&mut self, frames: &mut Vec<Frame>) {
        self.fill.append(frames);
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.file.as_raw_fd()]
    }

    fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        if !(1..=POLL_MAX).contains(&frames) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.budget = frames;
        Ok(())
    }
}

pub(super) struct TransmitHalf {
    file: Arc<File>,
    memory: FrameMemory,
    counts: Arc<Counts>,
    /// Their extents begin at the header.
    waiting: VecDeque<Frame>,
    sent: Vec<Frame>,
    /// The kernel accepts long segments.
    cuts: bool,
}

impl TransmitHalf {
    pub(super) fn new(file: Arc<File>, memory: FrameMemory, counts: Arc<Counts>) -> Self {
        TransmitHalf {
            file,
            memory,
            counts,
            waiting: VecDeque::new(),
            sent: Vec::new(),
            cuts: true,
        }
    }

    fn queue(&mut self, mut frame: Frame, header: [u8; LENGTH]) {
        let (offset, length) = (frame.offset(), frame.length());
        let written = self.memory.write_below(&mut frame, &header);
        let whole = self.memory.packet(&frame).len() == usize::from(length);
        match (
            offset.checked_sub(LENGTH as u16),
            length.checked_add(LENGTH as u16),
        ) {
            (Some(offset), Some(length)) if written && whole => {
                frame.set_extent(offset, length);
                self.waiting.push_back(frame);
            }
            _ => {
                count(&self.counts.refused);
                self.sent.push(frame);
            }
        }
    }
}

impl Transmit for TransmitHalf {
    fn transmit(&mut self, frame: Frame, offload: Option<Offload>) -> Result<(), Frame> {
        if self.waiting.len() >= TRANSMIT_RING {
            return Err(frame);
        }
        let header = offload.map_or(header::PLAIN, header::with_checksum);
        self.queue(frame, header);
        Ok(())
    }

    fn send_segments(&mut self, segment: &LongSegment<'_>) -> io::Result<()> {
        let header = header::with_segments(segment);
        let header = header.ok_or(io::ErrorKind::InvalidInput)?;
        while !self.waiting.is_empty() {
            if self.flush()?.full {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let [first, second] = segment.payload;
        let parts = [&header, segment.headers, first, second].map(IoSlice::new);
        match (&*self.file).write_vectored(&parts) {
            Ok(_) => {
                count(&self.counts.written);
                Ok(())
            }
            Err(error) if is_not_now(&error) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => {
                let error = device_error(error);
                self.cuts &= passes(&error);
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        let mut flushed = Flushed::default();
        for _ in 0..BURST {
            let Some(frame) = self.waiting.pop_front() else {
                break;
            };
            match (&*self.file).write(self.memory.packet(&frame)) {
                Ok(_) => count(&self.counts.written),
                Err(error) if is_not_now(&error) => {
                    self.waiting.push_front(frame);
                    flushed.full = true;
                    break;
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EBADFD)) => {
                    self.waiting.push_front(frame);
                    return Err(device_error(error));
                }
                Err(_) => {
                    count(&self.counts.refused);
                    flushed.dropped += 1;
                }
            }
            self.sent.push(frame);
        }
        flushed.left = self.waiting.len() as u32;
        Ok(flushed)
    }

    fn reclaim(&mut self, frames: &mut Vec<Frame>) {
        frames.append(&mut self.sent);
    }

    fn checksum_offload(&self) -> bool {
        true
    }

    fn segmentation(&self) -> u32 {
        if self.cuts { SEGMENT_MAX } else { 0 }
    }

    fn headroom(&self) -> u16 {
        LENGTH as u16
    }
}
