//! The bodies of messages: integers and bytes, for which every pattern is valid. The code
//! that acts on them checks their meaning.

use std::io;

use tidewall_device::afxdp::{Shape, TRANSMIT_RING};
use tidewall_device::demux::layout::COUNTERS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an interface's or a driver's name, terminated by a zero if it is shorter.
pub const NAME_BYTES: usize = 32;
/// Bytes of an [`Input`].
pub const INPUT_BYTES: usize = 240;
/// Bytes of a [`Failure`]'s text.
pub const TEXT_BYTES: usize = 240;
/// Ports of a block, the unit of a lease, which begins at a multiple of this.
pub const BLOCK_PORTS: u16 = 256;

/// One bit for each block of ports; block 0 is the lowest bit of the first word.
pub type Blocks = [u64; 4];

macro_rules! bodies {
    ($($(#[$documentation:meta])* $name:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        }
    )*};
}
pub(super) use bodies;

bodies! {
    /// No events.
    Empty {}

    /// How to join.
    Join {
        /// Queues wanted; 0: all.
        queues: u32,
        /// Frames of memory per queue; 0: the manager chooses.
        frames: u32,
        /// Entries of each receive ring; 0: the manager chooses.
        receive_ring: u32,
        /// [`JOIN_WITHOUT_QUEUES`] and [`JOIN_PRIVATE`].
        flags: u32,
    }

    /// An application that joined before.
    Present {
        /// The token in [`Joined`].
        token: [u8; 16],
    }

    /// A port on one local address or on all.
    Port {
        /// IPv4 mapped; `::` or `::ffff:0.0.0.0` for all, as the socket is bound.
        address: [u8; 16],
        /// Not 0.
        port: u16,
        /// 6 or 17.
        protocol: u8,
        /// Zero.
        pad: u8,
    }

    /// A kernel socket that holds a port.
    Holder {
        /// Its SO_COOKIE.
        cookie: u64,
    }

    /// A transport protocol.
    Transport {
        /// 6 or 17.
        protocol: u8,
        /// Zero.
        pad: [u8; 7],
    }

    /// [`BLOCK_PORTS`] ports, or the part of them that may be used.
    Block {
        /// The first.
        first: u16,
        /// The number of ports.
        count: u16,
        /// 6 or 17.
        protocol: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// When a queue may interrupt.
    Moderation {
        /// Number on the device.
        queue: u32,
        /// One of [`MODERATION_ENABLED`] and those after it.
        mode: u32,
        /// Nanoseconds, for [`MODERATION_DEFER`].
        interval: u64,
    }

    /// A NAPI probe (docs/architecture.md).
    Probe {
        /// Number on the device.
        queue: u32,
        /// Port of the helper socket; 0: no probe.
        port: u16,
        /// Source port, by which the helper recognises it.
        source: u16,
    }

    /// A queue.
    QueueNumber {
        /// Number on the device.
        queue: u32,
    }

    /// An IP datagram behind an Ethernet header.
    Input {
        /// Bytes of the frame.
        length: u32,
        /// Its bytes, and zeros.
        bytes: [u8; INPUT_BYTES],
    }

    /// An address.
    Address {
        /// IPv4 mapped.
        address: [u8; 16],
    }

    /// The reason why a request was not carried out.
    Failure {
        /// The errno of the corresponding socket call.
        errno: i32,
        /// The remedy: UTF-8, terminated by a zero if it is shorter.
        text: [u8; TEXT_BYTES],
    }

    /// An application and its device.
    Joined {
        /// The token by which it can present itself to a later run of the manager.
        token: [u8; 16],
        /// Key of the application's flow table, and of no other; zero if it presents
        /// itself.
        hash_key: [u64; 2],
        /// Blocks leased so far, of UDP and of TCP.
        leases: [Blocks; 2],
        /// Name of the interface.
        name: [u8; NAME_BYTES],
        /// Name of its driver.
        driver: [u8; NAME_BYTES],
        /// Its number in the driver program's tables.
        application: u32,
        /// User id: applications of one share quotas.
        domain: u32,
        /// This many [`Queue`] messages follow.
        queues: u32,
        /// Index of the interface.
        index: u32,
        /// Bytes.
        mtu: u32,
        /// Transmit queues of the interface, all of them; 0: not known.
        transmit_queues: u32,
        /// Link address.
        mac: [u8; 6],
        /// 1: the driver program runs in the driver; 2: generically.
        mode: u8,
        /// 1: frames may arrive with checksums that their sender left to its device.
        checksum_offload_possible: u8,
        /// 1: private mode. The queues are on virtual pairs, and only frames that the
        /// application may send leave; [`Polling`] reports who polls the device. 0:
        /// direct mode.
        private: u8,
        /// Zero.
        pad: [u8; 7],
    }

    /// A queue of an application.
    Queue {
        /// Number on the device.
        number: u32,
        /// In its memory.
        frames: u32,
        /// Bytes reserved for a frame.
        frame_size: u32,
        /// Entries of the receive ring.
        receive_ring: u32,
        /// Entries of the transmit ring, and of the completion ring.
        transmit_ring: u32,
        /// Entries of the fill ring.
        fill_ring: u32,
        /// 1: the driver moves frames without copying.
        zero_copy: u8,
        /// 1: frames may have transmit metadata.
        transmit_metadata: u8,
        /// 1: after socket and memory there is a second socket, for frames that may wait.
        waiting: u8,
        /// Number of helper sockets after those.
        helpers: u8,
    }

    /// The original fields of a NAPI probe.
    Probed {
        /// 1: the driver has made it.
        found: u8,
        /// 1: it was a TCP segment.
        segment: u8,
        /// Its sender's link address.
        neighbour: [u8; 6],
        /// The port that it was sent to.
        port: u16,
        /// The port that it came from.
        source: u16,
        /// Sequence number of a segment.
        sequence: u32,
    }

    /// The party that polls a private application's device.
    Polling {
        /// 1: the application; 0: a kernel thread.
        lent: u32,
    }

    /// An application's number.
    ApplicationNumber {
        /// Its number in the driver program's tables.
        application: u32,
    }

    /// An application, as its user and user 0 may see it.
    Status {
        /// Its number in the driver program's tables.
        application: u32,
        /// User id.
        domain: u32,
        /// Process id when it joined; 0 in another PID namespace.
        process: u32,
        /// One of [`STATUS_LIVE`] and those after it.
        state: u32,
        /// Queues that it has.
        queues: u32,
        /// Ports that it owns, not counting leased ones.
        ports: u32,
        /// Sockets that hold them.
        holders: u32,
        /// Blocks that it has leased.
        blocks: u32,
        /// Its domain's weight.
        weight: u32,
        /// Zero.
        reserved: u32,
        /// Time of the kernel thread that polls the device for several applications, ns:
        /// the share that its frames took.
        charged: u64,
    }

    /// The driver program's counters of a queue, since it was loaded.
    QueueCounters {
        /// Number on the device.
        queue: u32,
        /// Number of queues of the device.
        queues: u32,
        /// Indexed by [`tidewall_device::demux::layout::Counter`].
        counters: [u64; COUNTERS],
    }

    /// A manager's counters, since it started.
    Counters {
        /// Live applications.
        applications: u64,
        /// Live client connections.
        clients: u64,
        /// Ports owned now, not counting leased ones.
        ports: u64,
        /// Blocks leased now.
        blocks: u64,
        /// Applications that joined.
        joined: u64,
        /// Applications that presented themselves after a restart.
        presented: u64,
        /// Applications that were cleared.
        cleared: u64,
        /// Requests refused.
        refused: u64,
        /// Malformed messages.
        malformed: u64,
        /// Changes of the device that failed and were retried.
        retried: u64,
        /// Circuits that applications have now.
        circuits: u64,
        /// Calls now, including those being released; a local one counts once.
        calls: u64,
    }
}

/// In [`Status`]: its client is connected.
pub const STATUS_LIVE: u32 = 1;
/// From an earlier run, and not presented yet.
pub const STATUS_AWAITED: u32 = 2;
/// It is being cleared.
pub const STATUS_CLEARING: u32 = 3;

/// In [`Join`]: request ports without queues. Frames of these ports go to the kernel.
pub const JOIN_WITHOUT_QUEUES: u32 = 1;
/// In [`Join`]: request private mode, even as a trusted user.
pub const JOIN_PRIVATE: u32 = 2;

/// The device interrupts with each frame.
pub const MODERATION_ENABLED: u32 = 0;
/// Its interrupts wait for an interval after a poll.
pub const MODERATION_DEFER: u32 = 1;
/// The application polls.
pub const MODERATION_BUSY_POLL: u32 = 2;
/// The device's original setting.
pub const MODERATION_NONE: u32 = 3;

/// Text in an array, truncated if it does not fit.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in bytes.iter_mut().zip(text.as_bytes().iter().take(end)) {
        *to = *from;
    }
    bytes
}

/// The text of an array, up to its first zero.
pub fn as_text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

impl Queue {
    /// A queue of this shape.
    pub fn new(shape: &Shape, helpers: u8) -> Self {
        Queue {
            number: shape.queue,
            frames: shape.frames,
            frame_size: shape.frame_size,
            receive_ring: shape.receive_ring,
            transmit_ring: TRANSMIT_RING,
            fill_ring: shape.frames,
            zero_copy: shape.zero_copy.into(),
            transmit_metadata: shape.transmit_metadata.into(),
            waiting: shape.waiting.into(),
            helpers,
        }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        Shape {
            queue: self.number,
            frames: self.frames,
            frame_size: self.frame_size,
            receive_ring: self.receive_ring,
            zero_copy: self.zero_copy != 0,
            transmit_metadata: self.transmit_metadata != 0,
            waiting: self.waiting != 0,
        }
    }
}

impl Failure {
    /// A failure from an errno and its remedy.
    pub fn new(errno: i32, cure: &str) -> Self {
        Failure {
            errno,
            text: text(cure),
        }
    }
}

impl From<&Failure> for io::Error {
    fn from(failure: &Failure) -> Self {
        let kind = io::Error::from_raw_os_error(failure.errno).kind();
        let text = as_text(&failure.text);
        let errno = failure.errno;
        io::Error::new(kind, Refused { errno, text })
    }
}

/// A manager's refusal, within an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// The errno of the corresponding socket call.
    pub errno: i32,
    text: String,
}

impl Refused {
    /// The errno of an error, if it is a manager's refusal.
    pub fn errno(error: &io::Error) -> Option<i32> {
        let refused: &Refused = error.get_ref()?.downcast_ref()?;
        Some(refused.errno)
    }
}
