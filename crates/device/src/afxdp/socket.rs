//! One AF_XDP socket: the two halves of its queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tidewall_sys::interface;

use super::Owner;
use super::bind::{Frames, Halves, Place, bind, frame_shift, joins, mtu, pieces_of};
use super::checksums::Checksums;
use super::made::{Made, make};
use super::napi::Napi;
use super::segments::{PAYLOAD_MAX, Segmentation, Segments};
use super::sent_pieces::SentPieces;
use super::umem::SharedUmem;
use crate::demux::DriverCounters;
use crate::demux::layout::{METADATA_LENGTH, Metadata};
use crate::forked::Unshared;
use crate::frame::{Frame, FrameMemory};
use crate::queue::{
    BURST, Flushed, Interrupt, InterruptModeration, KernelDelivered, LongSegment, NapiState,
    Offload, Pieces, Queue, Receive, Received, Transmit, passes,
};
use crate::raw::ring::Ring;

/// Entries of the transmit and completion rings.
pub const TRANSMIT_RING: u32 = 2048;
/// Entries of the ring for frames that may wait: as many as a hundred connections may
/// receive between two rounds. When it is full, frames do not wait.
pub(super) const WAITING_RING: u32 = 512;
/// `struct xsk_tx_metadata` as of Linux 6.8: flags and the checksum request.
pub(super) const TX_METADATA_LENGTH: u32 = 16;
const XDP_TX_METADATA: u32 = 1 << 1;
/// In a descriptor's options: the next descriptor continues the packet (Linux 6.6).
const XDP_PKT_CONTD: u32 = 1 << 0;
const XDP_TXMD_FLAGS_TIMESTAMP: u64 = 1 << 0;
const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;

/// How to open a queue.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Interface name, in the caller's network namespace.
    pub interface: &'a str,
    /// Frames of memory, if the queue has its own; a power of two.
    pub frames: u32,
    /// Frames that fit into the receive ring; a power of two.
    pub receive_ring: u32,
    /// Copy frames, as required where the driver program runs in generic mode. Otherwise
    /// the kernel uses the driver's zero-copy path if there is one.
    pub copy: bool,
    /// Wait for a queue that another socket holds, whose owner may have just exited.
    pub wait: bool,
    /// The queue's user is trusted. Frames may then have transmit metadata, by which
    /// their sender can make the kernel or the device write into them. There are also
    /// sockets through which the device can be polled.
    pub trusted: bool,
}

/// A bound socket and everything mapped for it.
pub struct Opened {
    fd: Arc<Unshared<OwnedFd>>,
    /// The socket for frames that may wait; `None` where the kernel refuses it.
    waiting: Option<Arc<Unshared<OwnedFd>>>,
    zero_copy: bool,
    checksums: Checksums,
    segmentation: Segmentation,
    queue: Queue,
}

impl Opened {
    /// The socket, for the owner's map of sockets.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The socket for frames that may wait, for the same map; `None`: nothing waits.
    pub fn waiting_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waiting.as_ref().map(|waiting| waiting.as_fd())
    }

    /// True when the driver moves frames without copying.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns who computes the checksums of sent frames.
    pub fn checksums(&self) -> Checksums {
        self.checksums
    }

    /// Returns the party that splits long TCP segments.
    pub fn segmentation(&self) -> Segmentation {
        self.segmentation
    }

    /// The queue, which keeps the socket open.
    pub fn into_queue(self) -> Queue {
        self.queue
    }
}

/// Calls `recv` without blocking and discards the bytes. That drives a busy-polling
/// socket's NAPI, or wakes a driver. Nothing to read is success.
pub(super) fn poke_receive(fd: BorrowedFd<'_>) -> io::Result<()> {
    match recv(fd, &mut [0u8; 0], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a queue for receiving and transmitting, on a part of `umem` or on memory of its
/// own. `counters` are those that the driver program keeps for this queue.
///
/// # Errors
/// As [`make`] and [`adopt`].
pub fn open(
    settings: &Settings<'_>,
    queue: u32,
    counters: DriverCounters,
    owner: Arc<dyn Owner>,
    umem: Option<&mut SharedUmem>,
) -> io::Result<Opened> {
    let made = make(settings, queue, umem)?;
    adopt(made, settings.interface, counters, owner, true)
}

/// Takes over what [`make`] made, in the process that is to receive and send with it.
/// Needs no privilege. `counters` are those that the driver program keeps for this queue.
/// `is_trusted`: its frames may leave by a packet socket of the interface, where the
/// process may have one.
///
/// # Errors
/// ENODEV; what the kernel reports.
pub fn adopt(
    made: Made,
    interface: &str,
    counters: DriverCounters,
    owner: Arc<dyn Owner>,
    is_trusted: bool,
) -> io::Result<Opened> {
    let index = interface::index(interface)?;
    let (fd, zero_copy) = (made.bound.fd.clone(), made.bound.zero_copy);
    let Halves {
        memory,
        fill,
        receive,
        mut transmit,
        frames,
    } = made.bound.into_halves((interface, index, made.queue));
    let receive = receive.ok_or(io::ErrorKind::InvalidInput)?;
    let napi = Napi::new(
        owner.clone(),
        counters.clone(),
        made.queue,
        fd.clone(),
        made.helpers,
    )?;
    let checksums = transmit.checksums;
    let segmentation = if is_trusted {
        let (segments, segmentation) = Segments::open(interface, index, fd.as_fd());
        transmit.segments = segments;
        segmentation
    } else {
        Segmentation::Untrusted
    };
    let waiting = made.waiting.as_ref().map(|half| half.fd.clone());
    let queue = Queue {
        receive: Box::new(ReceiveHalf {
            fd: fd.clone(),
            zero_copy,
            frame_shift: frame_shift(&memory),
            counters: counters.clone(),
            pieces: Pieces {
                most: pieces_of(mtu(interface).unwrap_or(0), memory.frame_size()),
                hanging: 0,
            },
            joins: joins(interface, zero_copy),
            begun: [None, None],
            memory: memory.clone(),
            fill,
            receive,
            waiting: made.waiting,
            napi,
            owner,
        }),
        transmit: Box::new(transmit),
        frames,
        memory,
        counters,
    };
    Ok(Opened {
        fd,
        waiting,
        zero_copy,
        checksums,
        segmentation,
        queue,
    })
}

/// Opens a queue for transmitting only, for load generators. It has no program, receives
/// nothing and needs no privilege beyond CAP_NET_RAW.
///
/// # Errors
/// ENODEV; as error kinds EPERM, and EBUSY when another socket holds the queue; what the
/// kernel reports otherwise.
pub fn open_transmitter(
    interface: &str,
    queue: u32,
    frames: u32,
) -> io::Result<(Box<dyn Transmit>, FrameMemory, Vec<Frame>)> {
    let index = interface::index(interface)?;
    let place = Place {
        interface,
        index,
        queue,
        wait: true,
        trusted: true,
    };
    let bound = bind(place, Frames::Own(frames), None, 0)?;
    let halves = bound.into_halves((interface, index, queue));
    Ok((Box::new(halves.transmit), halves.memory, halves.frames))
}

/// The socket for frames that may wait.
pub(super) struct WaitingHalf {
    pub(super) fd: Arc<Unshared<OwnedFd>>,
    pub(super) ring: Ring<libc::xdp_desc>,
}

struct ReceiveHalf {
    fd: Arc<Unshared<OwnedFd>>,
    zero_copy: bool,
    frame_shift: u32,
    counters: DriverCounters,
    memory: FrameMemory,
    fill: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    waiting: Option<WaitingHalf>,
    pieces: Pieces,
    joins: bool,
    /// Packets whose last piece has not arrived, one per ring.
    begun: [Option<Begun>; 2],
    napi: Napi,
    owner: Arc<dyn Owner>,
}

/// A packet in several pieces, as far as it has arrived.
struct Begun {
    first: Received,
    /// The latest piece, to which the next is linked.
    last: Frame,
    count: u32,
}

/// The rings that frames come from.
#[derive(Clone, Copy)]
enum Source {
    Receive,
    Waiting,
}

impl ReceiveHalf {
    /// Returns the index of a descriptor's frame, and the offset in it.
    #[inline]
    fn place(&self, descriptor: libc::xdp_desc) -> (u32, u16) {
        let index = (descriptor.addr >> self.frame_shift) as u32;
        let start = u64::from(index) << self.frame_shift;
        (index, (descriptor.addr - start) as u16)
    }

    /// Takes a descriptor's frame; `in_frame`: bytes of metadata at its start.
    #[inline]
    fn take(&self, descriptor: libc::xdp_desc, in_frame: u16) -> Received {
        let (index, offset) = self.place(descriptor);
        let length = descriptor.len.min(u32::from(u16::MAX)) as u16;
        let mut frame = Frame::new(index, 0, 0);
        frame.set_extent(offset + in_frame, length.saturating_sub(in_frame));
        let metadata = Metadata::from_bytes(self.memory.below(&frame, METADATA_LENGTH));
        Received { metadata, frame }
    }

    /// Takes a descriptor that may be a piece of a packet. Returns the packet once it is
    /// whole.
    #[cold]
    fn join(
        &mut self,
        descriptor: libc::xdp_desc,
        in_frame: u16,
        from: Source,
    ) -> Option<Received> {
        let goes_on = descriptor.options & XDP_PKT_CONTD != 0;
        let Some(mut begun) = self.begun.get_mut(from as usize)?.take() else {
            let first = self.take(descriptor, in_frame);
            let begun = Begun {
                last: Frame::new(first.frame.index(), 0, 0),
                first,
                count: 1,
            };
            *self.begun.get_mut(from as usize)? = Some(begun);
            return None;
        };
        let (index, offset) = self.place(descriptor);
        let piece = Frame::new(index, offset, descriptor.len as u16);
        if self.memory.hang(&begun.last, &piece) {
            self.pieces.hanging += 1;
            begun.count += 1;
            begun.last = piece;
        }
        if goes_on {
            *self.begun.get_mut(from as usize)? = Some(begun);
            return None;
        }
        self.pieces.most = self.pieces.most.max(begun.count);
        Some(begun.first)
    }

    /// Whether a descriptor is a piece of a packet in several.
    #[inline]
    fn is_piece(&self, descriptor: &libc::xdp_desc, from: Source) -> bool {
        let begun = self.begun.get(from as usize);
        descriptor.options & XDP_PKT_CONTD != 0 || begun.is_some_and(Option::is_some)
    }

    fn receive_waiting(&mut self, batch: &mut Vec<Received>, limit: u32) -> u32 {
        let available = |half: &mut WaitingHalf| half.ring.available(limit).min(limit);
        let count = self.waiting.as_mut().map_or(0, available);
        if count == 0 {
            return 0;
        }
        let in_frame = self.metadata_in_frame();
        let mut frames = 0;
        for _ in 0..count {
            let Some(descriptor) = self.waiting.as_mut().map(|half| half.ring.pop()) else {
                break;
            };
            let received = match self.is_piece(&descriptor, Source::Waiting) {
                false => Some(self.take(descriptor, in_frame)),
                true => self.join(descriptor, in_frame, Source::Waiting),
            };
            frames += u32::from(received.is_some());
            batch.extend(received);
        }
        if let Some(half) = &mut self.waiting {
            half.ring.release();
        }
        frames
    }

    /// Takes up to `limit` descriptors from the receive ring. Returns how many, and how
    /// many packets they make.
    fn receive_some(&mut self, batch: &mut Vec<Received>, limit: u32) -> (u32, u32) {
        let count = self.receive.available(limit).min(limit);
        if count == 0 {
            return (0, 0);
        }
        let in_frame = self.metadata_in_frame();
        let mut tests_input = self.napi.wants_frame();
        let mut frames = 0;
        for _ in 0..count {
            let descriptor = self.receive.pop();
            let received = if self.is_piece(&descriptor, Source::Receive) {
                let Some(received) = self.join(descriptor, in_frame, Source::Receive) else {
                    continue;
                };
                received
            } else {
                let received = self.take(descriptor, in_frame);
                if std::mem::take(&mut tests_input) {
                    self.napi.test_input(self.memory.packet(&received.frame));
                }
                received
            };
            batch.push(received);
            frames += 1;
        }
        self.receive.release();
        (count, frames)
    }

    fn metadata_in_frame(&self) -> u16 {
        if self.counters.metadata_in_frame() {
            METADATA_LENGTH as u16
        } else {
            0
        }
    }
}

impl Receive for ReceiveHalf {
    fn delivers(&self) -> bool {
        true
    }

    fn poll(&mut self, interrupt: Interrupt) -> io::Result<()> {
        if self.fill.needs_wakeup() {
            poke_receive(self.fd.as_fd())?;
        }
        self.napi.poll(interrupt)
    }

    fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize {
        self.napi.follow_owner();
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let waiting = self.receive_waiting(batch, limit);
        let mut received = waiting;
        loop {
            let (count, frames) = self.receive_some(batch, limit - received);
            received += frames;
            // With packets in pieces, there are fewer frames than descriptors.
            if count == frames {
                return received as usize;
            }
        }
    }

    fn pieces(&self) -> Pieces {
        self.pieces
    }

    fn joins(&self) -> bool {
        self.joins
    }

    fn set_mtu(&mut self, mtu: usize) {
        self.pieces.most = pieces_of(mtu, self.memory.frame_size());
    }

    fn receives_ahead(&self) -> bool {
        self.zero_copy || self.napi.state().ids[0] == 0
    }

    fn waiting_limit(&self) -> u32 {
        self.waiting.as_ref().map_or(0, |_| WAITING_RING)
    }

    fn ring_limit(&self) -> u32 {
        self.receive.size()
    }

    fn fill(&mut self, frames: &mut Vec<Frame>) {
        // There is room for all pieces: the ring has as many entries as there are frames.
        let wanted = frames.len() as u32 + self.pieces.hanging;
        let count = self.fill.room(wanted).min(frames.len() as u32);
        for frame in frames.drain(frames.len() - count as usize..) {
            self.fill.push(u64::from(frame.index()) << self.frame_shift);
            if self.pieces.hanging > 0 {
                let mut last = frame;
                while let Some(piece) = self.memory.take_piece(&last) {
                    self.fill.push(u64::from(piece.index()) << self.frame_shift);
                    self.pieces.hanging = self.pieces.hanging.saturating_sub(1);
                    last = piece;
                }
            }
        }
        if count > 0 {
            self.fill.submit();
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        std::iter::once(self.fd.as_raw_fd())
            .chain(self.napi.descriptors())
            .collect()
    }

    fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        self.napi.set_budget(frames)
    }

    fn set_moderation(&mut self, moderation: InterruptModeration) -> bool {
        self.owner.set_moderation(moderation)
    }

    fn set_deferral(&mut self, deferred: bool) -> bool {
        self.owner.set_deferral(deferred)
    }

    fn moderation_lags(&mut self) -> bool {
        self.owner.moderation_lags()
    }

    fn take_kernel_delivered(&mut self, payload: &mut Vec<u8>) -> Option<KernelDelivered> {
        self.napi.take_probe(payload)
    }

    fn napi(&self) -> NapiState {
        self.napi.state()
    }

    fn take_doubt(&mut self) -> bool {
        self.napi.take_doubt()
    }

    fn rediscover(&mut self) -> io::Result<()> {
        self.napi.rediscover()
    }
}

pub(super) struct TransmitHalf {
    pub(super) fd: Arc<Unshared<OwnedFd>>,
    pub(super) frame_shift: u32,
    pub(super) memory: FrameMemory,
    pub(super) transmit: Ring<libc::xdp_desc>,
    pub(super) completions: Ring<u64>,
    pub(super) checksums: Checksums,
    /// The packet socket for long segments.
    pub(super) segments: Option<Segments>,
    pub(super) pieces: SentPieces,
}

/// `struct xsk_tx_metadata`: a request. The kernel overwrites it with the time of
/// transmission if that was requested.
type Request = [u8; TX_METADATA_LENGTH as usize];

/// Offset in a [`Request`] at which that time is written, after the flags.
const TIME_AT: usize = 8;

fn request(flags: u64, checksum_start: u16, checksum_offset: u16) -> Request {
    let mut request = [0; TX_METADATA_LENGTH as usize];
    request[..8].copy_from_slice(&flags.to_ne_bytes());
    request[8..10].copy_from_slice(&checksum_start.to_ne_bytes());
    request[10..12].copy_from_slice(&checksum_offset.to_ne_bytes());
    request
}

impl TransmitHalf {
    fn push(&mut self, mut frame: Frame, request: Option<Request>) -> Result<(), Frame> {
        let is_in_pieces = self.memory.has_pieces(&frame);
        let wanted = match is_in_pieces {
            false => 1,
            true => 1 + self.memory.hanging(&frame).count() as u32,
        };
        if self.transmit.room(wanted) < wanted {
            return Err(frame);
        }
        let mut options = 0;
        if let Some(request) = request
            && self.memory.write_below(&mut frame, &request)
        {
            options = XDP_TX_METADATA;
        }
        if is_in_pieces {
            self.push_pieces(&frame, options);
        } else {
            let descriptor = self.descriptor(&frame, options);
            self.transmit.push(descriptor);
        }
        Ok(())
    }

    /// Queues a packet of several frames, for which there is room.
    #[cold]
    fn push_pieces(&mut self, frame: &Frame, options: u32) {
        let numbers = self.memory.hanging(frame).map(|piece| piece.index());
        let frames = self.memory.frames();
        self.pieces.add(frames, frame.index(), numbers);
        let mut descriptor = self.descriptor(frame, options);
        for piece in self.memory.hanging(frame) {
            descriptor.options |= XDP_PKT_CONTD;
            self.transmit.push(descriptor);
            descriptor = self.descriptor(&piece, 0);
        }
        self.transmit.push(descriptor);
    }

    fn descriptor(&self, frame: &Frame, options: u32) -> libc::xdp_desc {
        libc::xdp_desc {
            addr: (u64::from(frame.index()) << self.frame_shift) + u64::from(frame.offset()),
            len: u32::from(frame.length()),
            options,
        }
    }

    /// Queues a frame of these bytes and requests the time of its transmission.
    pub(super) fn transmit_timed(&mut self, mut frame: Frame, content: &[u8]) -> Result<(), Frame> {
        frame.set_extent(self.headroom(), content.len() as u16);
        self.memory.packet_mut(&mut frame).copy_from_slice(content);
        self.push(frame, Some(request(XDP_TXMD_FLAGS_TIMESTAMP, 0, 0)))
    }

    /// Whether the kernel wrote that time for a frame that has come back.
    pub(super) fn was_timed(&self, frame: &mut Frame) -> bool {
        frame.set_extent(self.headroom(), 0);
        let metadata = self.memory.below(frame, TX_METADATA_LENGTH as usize);
        let time = metadata.get(TIME_AT..).unwrap_or_default();
        time.iter().any(|&byte| byte != 0)
    }
}

impl Transmit for TransmitHalf {
    fn transmit(&mut self, frame: Frame, offload: Option<Offload>) -> Result<(), Frame> {
        let request = offload
            .filter(|_| self.checksums.by_device())
            .map(|offload| {
                request(
                    XDP_TXMD_FLAGS_CHECKSUM,
                    offload.checksum_start,
                    offload.checksum_offset,
                )
            });
        self.push(frame, request)
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        self.transmit.submit();
        let mut flushed = Flushed {
            left: self.transmit.pending(),
            ..Flushed::default()
        };
        let enough = flushed.left.saturating_sub(BURST);
        while flushed.left > enough && !flushed.full {
            // With no bytes: the socket transmits its ring.
            match send(self.fd.as_fd(), &[], SendFlags::DONTWAIT) {
                // Copy mode sends a bounded number of frames per call, and returns EAGAIN
                // while some are left.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                // This was the last frame that it accepted.
                Err(Errno::BUSY) => {
                    flushed.dropped += 1;
                    flushed.full = true;
                }
                Err(Errno::NOBUFS) => flushed.full = true,
                Err(error) => return Err(error.into()),
            }
            let left = self.transmit.pending();
            flushed.full |= left >= flushed.left;
            flushed.left = left;
        }
        Ok(flushed)
    }

    fn reclaim(&mut self, frames: &mut Vec<Frame>) {
        let count = self.completions.available(TRANSMIT_RING);
        for _ in 0..count {
            let index = (self.completions.pop() >> self.frame_shift) as u32;
            let whole = self.pieces.whole(index);
            frames.extend(whole.map(|index| Frame::new(index, 0, 0)));
        }
        if count > 0 {
            self.completions.release();
        }
    }

    fn checksum_offload(&self) -> bool {
        self.checksums.by_device()
    }

    fn segmentation(&self) -> u32 {
        self.segments.as_ref().map_or(0, |_| PAYLOAD_MAX)
    }

    fn send_segments(&mut self, segment: &LongSegment<'_>) -> io::Result<()> {
        self.send_beside(|segments| segments.send(segment))
    }

    fn send_frame(&mut self, parts: [&[u8]; 2]) -> io::Result<()> {
        self.send_beside(|segments| segments.send_frame(parts))
    }

    fn headroom(&self) -> u16 {
        TX_METADATA_LENGTH as u16
    }
}

impl TransmitHalf {
    /// Sends by the packet socket.
    fn send_beside(&mut self, send: impl FnOnce(&Segments) -> io::Result<()>) -> io::Result<()> {
        // Frames queued earlier leave earlier.
        while self.transmit.pending() > 0 {
            if self.flush()?.full {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let segments = self.segments.as_ref().ok_or_else(unsupported)?;
        let sent = send(segments);
        // After the MTU became smaller, only a single packet is too long.
        let is_too_long = |error: &io::Error| error.raw_os_error() == Some(libc::EMSGSIZE);
        if sent
            .as_ref()
            .is_err_and(|error| !passes(error) && !is_too_long(error))
        {
            self.segments = None;
        }
        sent
    }
}
