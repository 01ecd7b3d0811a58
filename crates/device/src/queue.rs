//! What the layers above know of a device: a queue that receives and a queue
//! that transmits, over one frame memory.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use tidewall_wire::ethernet::MacAddress;

use crate::demux::DriverCounters;
use crate::demux::layout::{Metadata, Protocol};
use crate::frame::{Frame, FrameMemory};

/// A frame that the demux gave to the owner of this queue.
#[derive(Debug)]
pub struct Received {
    /// The frame; its extent is the whole Ethernet frame.
    pub frame: Frame,
    /// What the driver program found out about it.
    pub metadata: Metadata,
}

/// See [`Receive::pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Most of one received frame, at least 1.
    pub most: u32,
    /// Beside the first of each received frame, of all that have not come back.
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
    /// Keep it masked: the caller will poll again soon. Under load the driver
    /// then never runs on its own account.
    Masked,
    /// Let it fire at the next frame: the caller is about to sleep.
    Armed,
}

/// The receiving half of a queue. One caller at a time; the rings behind it
/// have a single producer and a single consumer.
pub trait Receive: Send {
    /// Runs the driver's own poll in the caller's context (NAPI; LRP's "down
    /// to the driver"). Where the device cannot be polled this way, does
    /// nothing: frames then arrive by interrupt.
    ///
    /// # Errors
    /// What the device reports: ENETDOWN when it went away.
    fn poll(&mut self, interrupt: Interrupt) -> io::Result<()>;

    /// Appends up to `limit` received frames to `batch`, oldest first.
    /// Returns how many.
    fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize;

    /// Hands empty frames to the device, from the end of `frames`, as many as
    /// it has room for.
    fn fill(&mut self, frames: &mut Vec<Frame>);

    /// True where the device receives into empty frames while nobody polls it: in
    /// zero-copy mode, and as long as its poll is not known. The more it has, the longer a
    /// burst may be. Elsewhere a poll puts what it brings into frames that were given to
    /// the device before it.
    fn receives_ahead(&self) -> bool {
        true
    }

    /// Most frames that may wait, without waking anybody, for the next
    /// [`Receive::receive`], which gives them first; 0: the device cannot keep them
    /// apart.
    fn waiting_limit(&self) -> u32 {
        0
    }

    /// Frames that fit into the receive ring: what comes beyond is lost, whatever empty
    /// frames the device has.
    fn ring_limit(&self) -> u32 {
        u32::MAX
    }

    /// Empty frames that a received one may use, and that hang on received ones now. They
    /// come back with those.
    fn pieces(&self) -> Pieces {
        Pieces::default()
    }

    /// True where a packet that is longer than an empty frame comes in several.
    fn joins(&self) -> bool {
        false
    }

    /// The longest IP datagram that arrives has so many bytes from now on.
    fn set_mtu(&mut self, _mtu: usize) {}

    /// Descriptors that become readable when frames may have arrived, for
    /// `poll(2)`.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Most frames that one [`Receive::poll`] takes from the device, 1 to
    /// [`POLL_MAX`]. Receive control's Bp is one or several polls. AF_XDP
    /// rounds up to an even number: the kernel polls twice.
    ///
    /// # Errors
    /// EINVAL out of range; EPERM where the kernel wants a privilege for it.
    fn set_budget(&mut self, frames: u32) -> io::Result<()>;

    /// True when the device delivers into the ring by itself while its interrupt is
    /// enabled; one that does not is polled for what it has.
    fn delivers(&self) -> bool {
        false
    }

    /// How long the device may leave frames waiting while nobody polls it and
    /// its interrupt is masked; receive control's T. Of the whole device, not
    /// of one queue. Where it cannot be set, nothing happens. True when it was
    /// another before: a time that is running already keeps its old length
    /// until the next poll.
    fn set_moderation(&mut self, _moderation: InterruptModeration) -> bool {
        false
    }

    /// Whether a poll that finds work defers the interrupt, which it does at first.
    /// Where it does not, the device interrupts as if there were no stack, and
    /// [`Receive::set_moderation`] does nothing. Of the whole device. False where whose the
    /// settings are has not said that it is done: it is for the caller to ask again.
    fn set_deferral(&mut self, _deferred: bool) -> bool {
        true
    }

    /// True while the device may be set otherwise than [`Receive::set_moderation`] and
    /// [`Receive::set_deferral`] said last, as whose the settings are has not answered. An
    /// interrupt may then be followed by a time without any: a caller that sleeps polls before.
    fn moderation_lags(&mut self) -> bool {
        false
    }

    /// Datagrams that reached the kernel instead of the queue because the device's
    /// poll was found by them (NAPI id discovery): moves one into `payload`.
    /// `None` when there are none, which is so while the poll is known.
    fn take_kernel_delivered(&mut self, _payload: &mut Vec<u8>) -> Option<KernelDelivered> {
        None
    }

    /// How NAPI id discovery stands.
    fn napi(&self) -> NapiState {
        NapiState::default()
    }

    /// True, once, when polls have found nothing for some time although the
    /// device received: the poll may not be this device's any more.
    fn take_doubt(&mut self) -> bool {
        false
    }

    /// Forgets what is known of the device's poll and looks for it anew. Until
    /// it is found frames arrive by interrupt.
    ///
    /// # Errors
    /// What the kernel reports; the old state is then kept.
    fn rediscover(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How discovery of a queue's NAPI id stands; nothing on a device without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiState {
    /// The ids that polls use, 0 for one that is not known yet.
    pub ids: [u32; 2],
    /// Probe after probe was lost, so that nothing is polled: a firewall or the
    /// kernel's source validation drops them.
    pub blocked: bool,
    /// Somebody else polls the device: nothing here does, nor may wait awake for it.
    pub polled_by_others: bool,
}

/// A UDP datagram or a TCP segment that came through the kernel (see
/// [`Receive::take_kernel_delivered`]). What was taken of it is UDP's payload, or the whole
/// segment, header included and its checksum not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDelivered {
    /// Which of both.
    pub protocol: Protocol,
    /// Sender.
    pub source: std::net::SocketAddr,
    /// The address and port it was sent to.
    pub destination: std::net::SocketAddr,
    /// Link address of the sender.
    pub neighbour: MacAddress,
}

/// Most frames of one poll: twice the weight that drivers know.
pub const POLL_MAX: u32 = 128;
/// How long a device that is to defer for no time waits all the same
/// ([`InterruptModeration::DeferFor`]): the 256 slots of a veth ring at 1.28 million
/// frames/s.
pub const FLUSH_TIMEOUT: Duration = Duration::from_micros(200);
/// Longest time that a sleeper may ask for.
pub const FLUSH_TIMEOUT_MAX: Duration = Duration::from_millis(1);

/// See [`Receive::set_moderation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptModeration {
    /// The receiver may sleep: this long, and no longer than [`FLUSH_TIMEOUT_MAX`].
    /// Zero: a poll with [`Interrupt::Armed`] that finds nothing will enable the
    /// interrupt; until then [`FLUSH_TIMEOUT`], since a device without a timer does
    /// not let go of a poll of its own.
    DeferFor(Duration),
    /// The receiver sleeps or looks at the ring only: the device interrupts with each
    /// frame that finds it idle, as without a stack. Each poll that does not use up
    /// its budget ends by enabling the interrupt, the device's own too.
    Enabled,
    /// The receiver polls all the time: 5 ms. Each poll that keeps the device
    /// masked starts a timer of this length. One that is longer than a
    /// scheduler tick is never the next to expire, so starting it does not
    /// touch the clock hardware; in a virtual machine that is the larger part
    /// of a poll's cost (docs/decisions.md).
    BusyPoll,
}

/// What a transmitted frame asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Where the checksum begins, from the frame's first byte.
    pub checksum_start: u16,
    /// Where it is stored, from `checksum_start`.
    pub checksum_offset: u16,
}

/// A TCP segment over IPv4 or IPv6, mostly longer than a packet. The kernel or the device cuts
/// it, or the receiver takes it whole.
#[derive(Clone, Copy, Debug)]
pub struct LongSegment<'a> {
    /// Ethernet, IP and TCP headers. IP's length field tells the whole length. The field of
    /// TCP's checksum has the sum of the pseudo-header with that length, as Linux's own
    /// `CHECKSUM_PARTIAL`.
    pub headers: &'a [u8],
    /// The payload, in up to two pieces.
    pub payload: [&'a [u8]; 2],
    /// Place of TCP's checksum.
    pub offload: Offload,
    /// Bytes of payload in each segment but the last; not 0. A payload that is no longer is
    /// sent as one packet.
    pub segment_size: u16,
}

impl LongSegment<'_> {
    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|piece| piece.len()).sum()
    }
}

/// Whether an error of [`Transmit::send_segments`] passes: another segment may leave later.
pub(crate) fn passes(error: &io::Error) -> bool {
    let passing = [libc::ENOBUFS, libc::ENOMEM, libc::ENETDOWN, libc::ENXIO];
    error.kind() == io::ErrorKind::WouldBlock
        || error
            .raw_os_error()
            .is_some_and(|errno| passing.contains(&errno))
}

/// Most frames of one [`Transmit::flush`]: a quarter of the smallest receive rings
/// (veth's and e1000's 256), which a frame sent may each bring one frame into.
pub const BURST: u32 = 64;

/// What a [`Transmit::flush`] has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Frames queued that the device has not taken: for the next call.
    pub left: u32,
    /// The device takes no more now: a call at once would be in vain.
    pub full: bool,
    /// Frames that the device took and dropped.
    pub dropped: u32,
}

/// The transmitting half of a queue. One caller at a time.
pub trait Transmit: Send {
    /// Queues a frame. Given back when the ring is full.
    ///
    /// # Errors
    /// The frame itself, when there is no room: flush and reclaim, then retry.
    fn transmit(&mut self, frame: Frame, offload: Option<Offload>) -> Result<(), Frame>;

    /// Makes the device take what was queued, [`BURST`] frames at most: a caller
    /// that has more receives before the next call, for what answers a burst must fit
    /// into the device's receive ring.
    ///
    /// # Errors
    /// What the device reports: ENETDOWN.
    fn flush(&mut self) -> io::Result<Flushed>;

    /// Appends frames whose transmission is complete to `frames`.
    fn reclaim(&mut self, frames: &mut Vec<Frame>);

    /// True when [`Offload`] is honoured.
    fn checksum_offload(&self) -> bool;

    /// Longest payload, in bytes, that [`Transmit::send_segments`] takes; 0: it takes none.
    fn segmentation(&self) -> u32 {
        0
    }

    /// Sends a TCP segment from where its bytes lie, after all that was queued before, in
    /// this call.
    ///
    /// # Errors
    /// Nothing counts as sent then. EAGAIN: no room now. ENOBUFS: the kernel dropped it, and
    /// may have sent a part of what it had cut before. ENETDOWN. EMSGSIZE: one packet that
    /// is longer than the MTU. Any other: the device takes no long segments, and
    /// [`Transmit::segmentation`] is 0 from now on.
    fn send_segments(&mut self, _segment: &LongSegment<'_>) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Sends an Ethernet frame that is longer than a frame of memory from where its bytes lie,
    /// uncut, after all that was queued before, in this call. A device that takes long segments
    /// takes such frames, too.
    ///
    /// # Errors
    /// As [`Transmit::send_segments`]; EMSGSIZE for one that is longer than the MTU.
    fn send_frame(&mut self, _parts: [&[u8]; 2]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// First offset in a frame at which a packet may be written, so that the
    /// device's own header fits below.
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
    /// What the driver program counts on it.
    pub counters: DriverCounters,
    /// Frames that are with nobody yet: the layer above shares them out
    /// between the fill ring and transmission.
    pub frames: Vec<Frame>,
}
