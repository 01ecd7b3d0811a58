//! One end of the link: device rings, the driver, and the frames that it passes on.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::demux::layout::{Class, Metadata};
use crate::demux::{self, Tables, Verdict};
use crate::frame::{FRAME_SIZE, Frame, FrameMemory};
use crate::queue::{Offload, Pieces, Received};

use super::config::Rings;
use super::steering::flow_queue;

/// Offset at which a received packet begins in its frame, as with AF_XDP
/// (`XDP_PACKET_HEADROOM`); its metadata ends just below.
pub const HEADROOM: u16 = 256;

const METADATA: usize = size_of::<Metadata>();

/// Counts of frames that reached an end, by their fate outside the driver program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Put into a device ring.
    pub arrived: u64,
    /// Dropped unseen: the device ring was full.
    pub device_full: u64,
    /// Lost because the end was down.
    pub down: u64,
    /// Put into a receive ring.
    pub received: u64,
    /// Admitted by the driver program, then lost: the fill ring was empty.
    pub fill_empty: u64,
    /// Admitted by the driver program, then lost: the receive ring was full.
    pub receive_full: u64,
    /// Admitted by the driver program, then lost: longer than a frame of the
    /// memory holds.
    pub too_long: u64,
    /// Passed to the kernel.
    pub kernel: u64,
    /// Dropped on their way to the kernel: its list was full.
    pub kernel_full: u64,
    /// Times a driver poll ran because of an armed interrupt.
    pub interrupts: u64,
}

/// A frame that the driver passed to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFrame {
    /// Queue it arrived on.
    pub queue: u32,
    /// The class whose token it used; `None` for one that the driver passed to a helper
    /// socket ([`crate::demux::TrustedTables::probe_napi`]).
    pub class: Option<Class>,
    /// Time at which the driver passed it.
    pub time: Duration,
    /// The whole Ethernet frame.
    pub bytes: Vec<u8>,
}

/// A descriptor that is readable while raised.
struct Signal {
    read: UnixStream,
    write: UnixStream,
    raised: bool,
}

impl Signal {
    fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // At most one byte is in flight, so neither end ever has to wait. If another
        // process read it, that must not block us.
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Signal {
            read,
            write,
            raised: false,
        })
    }

    fn set(&mut self, raised: bool) {
        if raised == self.raised {
            return;
        }
        self.raised = raised;
        // Neither can fail in a way that matters: see `new`.
        let _ = if raised {
            self.write.write(&[1])
        } else {
            self.read.read(&mut [0])
        };
    }
}

/// The state of one queue of an end.
pub(super) struct QueueState {
    memory: FrameMemory,
    rings: Rings,
    device: VecDeque<Vec<u8>>,
    fill: VecDeque<Frame>,
    received: VecDeque<Received>,
    /// Frames that wake no thread.
    waiting: VecDeque<Received>,
    transmit: VecDeque<(Frame, Option<Offload>)>,
    completed: VecDeque<Frame>,
    budget: usize,
    armed: bool,
    signal: Signal,
    /// Longest packet in one frame, and number of frames of the longest packet.
    most: (usize, u32),
    /// See [`crate::queue::Pieces`].
    hanging: u32,
}

impl QueueState {
    /// `mtu`: bytes of the longest datagram that arrives in several frames; 0 if none
    /// does.
    pub(super) fn new(
        memory: FrameMemory,
        rings: Rings,
        budget: u32,
        mtu: usize,
    ) -> io::Result<Self> {
        let in_frame = FRAME_SIZE - usize::from(HEADROOM);
        Ok(QueueState {
            most: (in_frame, (mtu + METADATA).div_ceil(in_frame).max(1) as u32),
            hanging: 0,
            memory,
            rings,
            device: VecDeque::new(),
            fill: VecDeque::new(),
            received: VecDeque::new(),
            waiting: VecDeque::new(),
            transmit: VecDeque::new(),
            completed: VecDeque::new(),
            budget: budget as usize,
            armed: false,
            signal: Signal::new()?,
        })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.signal.read.as_raw_fd()
    }

    pub(super) fn set_budget(&mut self, frames: u32) {
        self.budget = frames as usize;
    }

    pub(super) fn fill(&mut self, frames: &mut Vec<Frame>) {
        while self.fill.len() < self.rings.fill {
            let Some(frame) = frames.pop() else { return };
            let mut next = Some(frame);
            while let Some(frame) = next {
                next = match self.hanging {
                    0 => None,
                    _ => self.memory.take_piece(&frame),
                };
                self.hanging -= u32::from(next.is_some());
                self.fill.push_back(frame);
            }
        }
    }

    pub(super) fn pieces(&self) -> Pieces {
        Pieces {
            most: self.most.1,
            hanging: self.hanging,
        }
    }

    pub(super) fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize {
        let waiting = self.waiting.len().min(limit);
        let count = self.received.len().min(limit - waiting);
        // An empty drain is most of the cost of looking in vain.
        if waiting > 0 {
            batch.extend(self.waiting.drain(..waiting));
        }
        if count > 0 {
            batch.extend(self.received.drain(..count));
        }
        if self.received.is_empty() {
            self.signal.set(false);
        }
        waiting + count
    }

    pub(super) fn waiting_limit(&self) -> u32 {
        self.rings.waiting as u32
    }

    pub(super) fn queue_transmit(
        &mut self,
        frame: Frame,
        offload: Option<Offload>,
    ) -> Result<(), Frame> {
        if self.transmit.len() >= self.rings.transmit {
            return Err(frame);
        }
        self.transmit.push_back((frame, offload));
        Ok(())
    }

    /// Copies the next frame out for the wire and completes it; `None` when there is none
    /// or its completion would find no room.
    pub(super) fn next_transmit(&mut self) -> Option<(Vec<u8>, Option<Offload>)> {
        if self.completed.len() >= self.rings.completion {
            return None;
        }
        let (frame, offload) = self.transmit.pop_front()?;
        let mut bytes = Vec::new();
        self.memory.append_whole(&frame, &mut bytes);
        self.completed.push_back(frame);
        Some((bytes, offload))
    }

    /// Frames queued for transmission that were not sent.
    pub(super) fn left(&self) -> u32 {
        self.transmit.len() as u32
    }

    pub(super) fn reclaim(&mut self, frames: &mut Vec<Frame>) {
        frames.extend(self.completed.drain(..));
    }

    /// `XDP_REDIRECT` into an AF_XDP socket in copy mode: the same checks in
    /// the same order as the kernel's.
    fn redirect(&mut self, metadata: Metadata, bytes: &[u8], counters: &mut PortCounters) {
        let (in_frame, most) = self.most;
        let behind = bytes.len().div_ceil(in_frame).saturating_sub(1);
        if behind as u32 >= most {
            counters.too_long += 1;
            return;
        }
        if self.fill.len() <= behind {
            counters.fill_empty += 1;
            return;
        }
        let (ring, limit) = if metadata.waited_since() != 0 {
            (&mut self.waiting, self.rings.waiting)
        } else {
            (&mut self.received, self.rings.receive)
        };
        if ring.len() >= limit {
            counters.receive_full += 1;
            return;
        }
        let Some(mut frame) = self.fill.pop_front() else {
            return;
        };
        let mut pieces = bytes.chunks(in_frame);
        let first = pieces.next().unwrap_or_default();
        let length = first.len() as u16;
        frame.set_extent(HEADROOM - METADATA as u16, METADATA as u16 + length);
        let room = self.memory.packet_mut(&mut frame);
        if let Some((below, packet)) = room.split_at_mut_checked(METADATA) {
            below.copy_from_slice(metadata.as_bytes());
            packet.copy_from_slice(first);
        }
        frame.set_extent(HEADROOM, length);
        let mut last = Frame::new(frame.index(), 0, 0);
        for bytes in pieces {
            let Some(mut piece) = self.fill.pop_front() else {
                break;
            };
            piece.set_extent(HEADROOM, bytes.len() as u16);
            self.memory.packet_mut(&mut piece).copy_from_slice(bytes);
            self.hanging += u32::from(self.memory.hang(&last, &piece));
            last = piece;
        }
        counters.received += 1;
        ring.push_back(Received { frame, metadata });
    }
}

/// One end of the link.
pub(super) struct PortState {
    tables: Tables,
    queues: Vec<QueueState>,
    kernel: VecDeque<KernelFrame>,
    kernel_limit: usize,
    pub down: bool,
    /// Its device accepts no frame for transmission.
    pub refuses: bool,
    pub counters: PortCounters,
    /// Frames that the driver sends back (XDP_TX), to be put on the wire.
    answers: Vec<Vec<u8>>,
}

impl PortState {
    pub(super) fn new(tables: Tables, queues: Vec<QueueState>, kernel_limit: usize) -> Self {
        PortState {
            tables,
            queues,
            kernel: VecDeque::new(),
            kernel_limit,
            down: false,
            refuses: false,
            counters: PortCounters::default(),
            answers: Vec::new(),
        }
    }

    /// Takes the frames that the driver sends back.
    pub(super) fn take_answers(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.answers)
    }

    pub(super) fn queue_mut(&mut self, queue: u32) -> io::Result<&mut QueueState> {
        self.queues
            .get_mut(queue as usize)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn take_kernel(&mut self) -> Vec<KernelFrame> {
        self.kernel.drain(..).collect()
    }

    pub(super) fn set_down(&mut self, down: bool) {
        self.down = down;
        if !down {
            return;
        }
        for queue in &mut self.queues {
            self.counters.down += queue.device.len() as u64;
            queue.device.clear();
            // A sleeper must find out at its next poll.
            if queue.armed {
                queue.armed = false;
                queue.signal.set(true);
            }
        }
    }

    /// Delivers a frame to the device.
    pub(super) fn arrive(&mut self, bytes: Vec<u8>, now: Duration) {
        self.arrive_together(vec![bytes], now);
    }

    /// Delivers frames to the device before it interrupts.
    pub(super) fn arrive_together(&mut self, frames: Vec<Vec<u8>>, now: Duration) {
        for bytes in frames {
            if self.down {
                self.counters.down += 1;
                continue;
            }
            let index = flow_queue(&bytes, self.queues.len() as u32);
            let Some(queue) = self.queues.get_mut(index as usize) else {
                continue;
            };
            if queue.device.len() >= queue.rings.device {
                self.counters.device_full += 1;
                continue;
            }
            self.counters.arrived += 1;
            queue.device.push_back(bytes);
        }
        for index in 0..self.queues.len() as u32 {
            self.interrupt(index, now);
        }
    }

    /// Interrupts for a queue that has frames, if the interrupt is armed.
    fn interrupt(&mut self, index: u32, now: Duration) {
        let Some(queue) = self.queues.get_mut(index as usize) else {
            return;
        };
        if queue.armed && !queue.device.is_empty() {
            self.counters.interrupts += 1;
            self.drive(index, now);
            // Frames for the kernel wake no thread; the interrupt stays armed.
            if let Some(queue) = self.queues.get_mut(index as usize)
                && !queue.received.is_empty()
            {
                queue.armed = false;
                queue.signal.set(true);
            }
        }
    }

    /// The owner's poll: one driver poll, then the interrupt as requested.
    pub(super) fn poll(&mut self, index: u32, armed: bool, now: Duration) -> io::Result<()> {
        if self.down {
            self.queue_mut(index)?.signal.set(false);
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        self.drive(index, now);
        let queue = self.queue_mut(index)?;
        // With work left the caller must not sleep: an interrupt that is armed
        // fires at once.
        let work = !queue.received.is_empty() || !queue.device.is_empty();
        queue.armed = armed && !work;
        queue.signal.set(armed && work);
        Ok(())
    }

    /// One driver poll: at most a budget of frames through the demux.
    fn drive(&mut self, index: u32, now: Duration) {
        let PortState {
            tables,
            queues,
            kernel,
            kernel_limit,
            counters,
            answers,
            down: _,
            refuses: _,
        } = self;
        let Some(queue) = queues.get_mut(index as usize) else {
            return;
        };
        let nanoseconds = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..queue.budget {
            let Some(mut bytes) = queue.device.pop_front() else {
                return;
            };
            let class = match demux::drive(tables, index, &mut bytes, nanoseconds) {
                Verdict::Channel(metadata) | Verdict::Raw(metadata) => {
                    queue.redirect(metadata, &bytes, counters);
                    continue;
                }
                // Counted by cause in the tables.
                Verdict::Drop { .. } => continue,
                Verdict::Kernel { class } => Some(class),
                // The helper socket is in the kernel.
                Verdict::NapiProbe => None,
                Verdict::Answered(answer) => {
                    answers.push(answer.as_bytes().to_vec());
                    continue;
                }
            };
            if kernel.len() >= *kernel_limit {
                counters.kernel_full += 1;
                continue;
            }
            counters.kernel += 1;
            kernel.push_back(KernelFrame {
                queue: index,
                class,
                time: now,
                bytes,
            });
        }
    }
}
