//! The interface of a device for the layers above: a queue that receives and a queue that
//! transmits, over one frame memory.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use tidewall_wire::ethernet::MacAddress;

use crate::demux::DriverCounters;
use crate::demux::layout::{Metadata, Protocol};
use crate::frame::{Frame, FrameMemory};

/// A frame that the demux delivered to the owner of this queue.
#[derive(Debug)]
pub struct Received {
    /// The frame; its extent is the whole Ethernet frame.
    pub frame: Frame,
    /// The driver program's findings about it.
    pub metadata: Metadata,
}

/// See [`Receive::pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Maximum number of one received frame, at least 1.
    pub most: u32,
    /// Pieces beyond the first, of all received frames that have not come back.
    pub hanging: u32,
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces {
            most: 1,
            hanging: 0,
        }
    }
}

/// How a poll leaves the device's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Keep it masked: the caller will poll again soon. Under load the driver then never
    /// runs of its own accord.
    Masked,
    /// Fire at the next frame: the caller is about to sleep.
    Armed,
}

/// The receiving half of a queue. One caller at a time; the rings behind it
/// have a single producer and a single consumer.
pub trait Receive: Send {
    /// Runs the driver's own poll in the caller's context (NAPI; LRP's "down to the
    /// driver"). Does nothing where the device cannot be polled this way: frames then
    /// arrive by interrupt.
    ///
    /// # Errors
    /// Those the device reports: ENETDOWN when it went away.
    fn poll(&mut self, interrupt: Interrupt) -> io::Result<()>;

    /// Appends up to `limit` received frames to `batch`, oldest first.
    /// Returns how many.
    fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize;

    /// Passes empty frames to the device, from the end of `frames`, as many as it has
    /// room for.
    fn fill(&mut self, frames: &mut Vec<Frame>);

    /// True where the device fills empty frames between polls: in zero-copy mode, and as
    /// long as its poll is not known. The more it has, the longer a burst may be.
    /// Elsewhere a poll fills only frames that were given to the device before it.
    fn receives_ahead(&self) -> bool {
        true
    }

    /// Maximum number of frames that may wait, without waking a thread, for the next
    /// [`Receive::receive`], which returns them first. 0: the device cannot keep them
    /// separate.
    fn waiting_limit(&self) -> u32 {
        0
    }

    /// Frames that fit into the receive ring. Frames beyond that are lost, whatever empty
    /// frames the device has.
    fn ring_limit(&self) -> u32 {
        u32::MAX
    }

    /// Empty frames that a received one may use, and those that are now linked to
    /// received ones. They come back with those.
    fn pieces(&self) -> Pieces {
        Pieces::default()
    }

    /// True where a packet longer than an empty frame arrives in several.
    fn joins(&self) -> bool {
        false
    }

    /// Sets the length in bytes of the longest IP datagram that arrives from now on.
    fn set_mtu(&mut self, _mtu: usize) {}

    /// Descriptors that become readable when frames may have arrived, for
    /// `poll(2)`.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Sets how many frames one [`Receive::poll`] takes from the device at most, 1 to
    /// [`POLL_MAX`]. Receive control's Bp is one or several polls. AF_XDP rounds up to an
    /// even number: the kernel polls twice.
    ///
    /// # Errors
    /// EINVAL out of range; EPERM where the kernel requires a privilege for it.
    fn set_budget(&mut self, frames: u32) -> io::Result<()>;

    /// True when the device delivers into the ring by itself while its interrupt is
    /// enabled. Otherwise it must be polled for its frames.
    fn delivers(&self) -> bool {
        false
    }

    /// Sets how long the device may leave frames waiting between polls while its
    /// interrupt is masked: receive control's T. It applies to the whole device, not to
    /// one queue. If it cannot be set, nothing happens. Returns true when the value
    /// changed: a timer already running keeps its old length until the next poll.
    fn set_moderation(&mut self, _moderation: InterruptModeration) -> bool {
        false
    }

    /// Sets whether a poll that finds work defers the interrupt, as it does initially. If
    /// not, the device interrupts as if there were no stack, and
    /// [`Receive::set_moderation`] does nothing. Applies to the whole device. Returns
    /// false where the owner of the settings has not confirmed the change: the caller
    /// must ask again.
    fn set_deferral(&mut self, _deferred: bool) -> bool {
        true
    }

    /// True while the device's settings may differ from the last
    /// [`Receive::set_moderation`] and [`Receive::set_deferral`], because the owner of
    /// the settings has not answered. An interrupt may then be followed by a period
    /// without any: a caller that sleeps polls first.
    fn moderation_lags(&mut self) -> bool {
        false
    }

    /// Moves one datagram into `payload` that reached the kernel instead of the queue,
    /// because it served to discover the device's poll (NAPI id discovery). `None` when
    /// there are none, as always while the poll is known.
    fn take_kernel_delivered(&mut self, _payload: &mut Vec<u8>) -> Option<KernelDelivered> {
        None
    }

    /// The state of NAPI id discovery.
    fn napi(&self) -> NapiState {
        NapiState::default()
    }

    /// Returns true, once, when polls have found nothing for some time although the
    /// device received: the poll may no longer be this device's.
    fn take_doubt(&mut self) -> bool {
        false
    }

    /// Forgets the device's poll and discovers it again. Until then frames arrive by
    /// interrupt.
    ///
    /// # Errors
    /// Those the kernel reports; the old state is then kept.
    fn rediscover(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// State of the discovery of a queue's NAPI id; all zero on a device without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiState {
    /// The ids that polls use, 0 for one that is not known yet.
    pub ids: [u32; 2],
    /// Consecutive probes were lost, so that nothing is polled: a firewall or the
    /// kernel's source validation drops them.
    pub blocked: bool,
    /// Another process polls the device: nothing here does, nor may wait awake for it.
    pub polled_by_others: bool,
}

/// A UDP datagram or a TCP segment that arrived through the kernel (see
/// [`Receive::take_kernel_delivered`]). Its content is UDP's payload, or the whole
/// segment, header included and its checksum not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDelivered {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Sender.
    pub source: std::net::SocketAddr,
    /// The address and port it was sent to.
    pub destination: std::net::SocketAddr,
    /// Link address of the sender.
    pub neighbour: MacAddress,
}

/// Maximum number of frames of one poll: twice the usual driver weight.
pub const POLL_MAX: u32 = 128;
/// How long a device waits that is to defer for zero time
/// ([`InterruptModeration::DeferFor`]): the 256 slots of a veth ring at 1.28 million
/// frames/s.
pub const FLUSH_TIMEOUT: Duration = Duration::from_micros(200);
/// Longest time that a sleeper may request.
pub const FLUSH_TIMEOUT_MAX: Duration = Duration::from_millis(1);

/// See [`Receive::set_moderation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptModeration {
    /// The receiver may sleep: this long, and no longer than [`FLUSH_TIMEOUT_MAX`]. With
    /// zero, a poll with [`Interrupt::Armed`] that finds nothing will enable the
    /// interrupt. Until then the time is [`FLUSH_TIMEOUT`], since a device without a
    /// timer keeps control of its own poll.
    DeferFor(Duration),
    /// The receiver sleeps or only examines the ring. The device interrupts with each
    /// frame that finds it idle, as without a stack. Each poll that does not use up its
    /// budget ends by enabling the interrupt, the device's own too.
    Enabled,
    /// The receiver polls all the time: 5 ms. Each poll that keeps the device masked
    /// starts a timer of this length. A timer longer than a scheduler tick is never the
    /// next to expire, so starting it does not touch the clock hardware. In a virtual
    /// machine that is the larger part of a poll's cost (docs/decisions/index.md).
    BusyPoll,
}

/// A transmitted frame's request to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Offset at which the checksum begins, from the frame's first byte.
    pub checksum_start: u16,
    /// Offset at which it is stored, from `checksum_start`.
    pub checksum_offset: u16,
}

/// A TCP segment over IPv4 or IPv6, mostly longer than a packet. The kernel or the device
/// splits it, or the receiver accepts it whole.
#[derive(Clone, Copy, Debug)]
pub struct LongSegment<'a> {
    /// Ethernet, IP and TCP headers. IP's length field has the whole length. TCP's
    /// checksum field has the sum of the pseudo-header with that length, as with Linux's
    /// own `CHECKSUM_PARTIAL`.
    pub headers: &'a [u8],
    /// The payload, in up to two pieces.
    pub payload: [&'a [u8]; 2],
    /// Position of the TCP checksum.
    pub offload: Offload,
    /// Bytes of payload in each segment but the last; not 0. A payload that is no longer
    /// is sent as one packet.
    pub segment_size: u16,
}

impl LongSegment<'_> {
    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|piece| piece.len()).sum()
    }
}

/// Whether an error of [`Transmit::send_segments`] is transient: another segment may
/// leave later.
pub(crate) fn passes(error: &io::Error) -> bool {
    let passing = [libc::ENOBUFS, libc::ENOMEM, libc::ENETDOWN, libc::ENXIO];
    error.kind() == io::ErrorKind::WouldBlock
        || error
            .raw_os_error()
            .is_some_and(|errno| passing.contains(&errno))
}

/// Maximum number of frames of one [`Transmit::flush`]: a quarter of the smallest receive
/// rings (veth's and e1000's 256). Each frame sent may bring one frame into them.
pub const BURST: u32 = 64;

/// The result of a [`Transmit::flush`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Queued frames that the device has not taken, left for the next call.
    pub left: u32,
    /// The device accepts no more now: an immediate call would be in vain.
    pub full: bool,
    /// Frames that the device accepted and dropped.
    pub dropped: u32,
}

/// The transmitting half of a queue. One caller at a time.
pub trait Transmit: Send {
    /// Queues a frame.
    ///
    /// # Errors
    /// The frame itself, when there is no room: flush and reclaim, then retry.
    fn transmit(&mut self, frame: Frame, offload: Option<Offload>) -> Result<(), Frame>;

    /// Makes the device take queued frames, [`BURST`] at most. A caller with more
    /// receives before the next call, since the answers to a burst must fit into the
    /// device's receive ring.
    ///
    /// # Errors
    /// Those the device reports: ENETDOWN.
    fn flush(&mut self) -> io::Result<Flushed>;

    /// Appends frames whose transmission is complete to `frames`.
    fn reclaim(&mut self, frames: &mut Vec<Frame>);

    /// True when [`Offload`] is honoured.
    fn checksum_offload(&self) -> bool;

    /// Longest payload, in bytes, that [`Transmit::send_segments`] accepts; 0 if it
    /// accepts none.
    fn segmentation(&self) -> u32 {
        0
    }

    /// Sends a TCP segment from where its bytes lie, within this call, after all frames
    /// queued before.
    ///
    /// # Errors
    /// On an error nothing counts as sent.
    ///
    /// - EAGAIN: no room now.
    /// - ENOBUFS: the kernel dropped it, and may have sent a part of what it had split
    ///   before.
    /// - ENETDOWN.
    /// - EMSGSIZE: one packet that is longer than the MTU.
    /// - Any other: the device takes no long segments, and [`Transmit::segmentation`] is
    ///   0 from now on.
    fn send_segments(&mut self, _segment: &LongSegment<'_>) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Sends an Ethernet frame longer than a frame of memory, unsplit, from where its
    /// bytes lie, within this call. All frames queued before leave first. A device that
    /// accepts long segments accepts such frames, too.
    ///
    /// # Errors
    /// As [`Transmit::send_segments`]; EMSGSIZE for one that is longer than the MTU.
    fn send_frame(&mut self, _parts: [&[u8]; 2]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// First offset in a frame at which a packet may be written, so that the device's own
    /// header fits below.
    fn headroom(&self) -> u16;
}

/// One queue of a device.
pub struct Queue {
    /// Receiving half.
    pub receive: Box<dyn Receive>,
    /// Transmitting half.
    pub transmit: Box<dyn Transmit>,
    /// Frames of both halves.
    pub memory: FrameMemory,
    /// The driver program's counters for it.
    pub counters: DriverCounters,
    /// Free frames: the layer above divides them between the fill ring and transmission.
    pub frames: Vec<Frame>,
}
