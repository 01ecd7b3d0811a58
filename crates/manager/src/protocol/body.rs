//! The bodies of messages: integers and bytes, of which every pattern is one. What they
//! mean is checked by who acts on them.

use std::io;

use tidewall_device::afxdp::{Shape, TRANSMIT_RING};
use tidewall_device::demux::layout::COUNTERS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a name of an interface or of a driver, closed by a zero where it is shorter.
pub const NAME_BYTES: usize = 32;
/// Bytes of an [`Input`].
pub const INPUT_BYTES: usize = 240;
/// Bytes of a [`Failure`]'s text.
pub const TEXT_BYTES: usize = 240;
/// Ports of a block: what a lease is of, from a multiple of this on.
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
    /// Nothing.
    Empty {}

    /// How to join.
    Join {
        /// Queues wanted; 0: all.
        queues: u32,
        /// Frames of memory a queue; 0: as the manager likes.
        frames: u32,
        /// Places of each receive ring; 0: as the manager likes.
        receive_ring: u32,
        /// [`JOIN_WITHOUT_QUEUES`] and [`JOIN_PRIVATE`].
        flags: u32,
    }

    /// Who joined before.
    Present {
        /// Of [`Joined`].
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

    /// A socket of the kernel's that holds a port.
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
        /// How many.
        count: u16,
        /// 6 or 17.
        protocol: u8,
        /// Zero.
        pad: [u8; 3],
    }

    /// When a queue may interrupt.
    Moderation {
        /// Of the device.
        queue: u32,
        /// One of [`MODERATION_ENABLED`] and those after it.
        mode: u32,
        /// Nanoseconds, of [`MODERATION_DEFER`].
        interval: u64,
    }

    /// A NAPI probe (docs/architecture.md).
    Probe {
        /// Of the device.
        queue: u32,
        /// Of the helper socket; 0: no probe.
        port: u16,
        /// By which the helper knows it.
        source: u16,
    }

    /// A queue.
    QueueNumber {
        /// Of the device.
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

    /// Why something is not done.
    Failure {
        /// As the system call of a socket would set it.
        errno: i32,
        /// What to do about it: UTF-8, closed by a zero where it is shorter.
        text: [u8; TEXT_BYTES],
    }

    /// An application and its device.
    Joined {
        /// By which it can present itself to a later run of the manager.
        token: [u8; 16],
        /// Key of the application's flow table, and of no other; zero where it presents itself.
        hash_key: [u64; 2],
        /// Blocks leased so far, of UDP and of TCP.
        leases: [Blocks; 2],
        /// Of the interface.
        name: [u8; NAME_BYTES],
        /// Of its driver.
        driver: [u8; NAME_BYTES],
        /// In the driver program's tables.
        application: u32,
        /// User id: who shares quotas.
        domain: u32,
        /// As many [`Queue`] messages follow.
        queues: u32,
        /// Of the interface.
        index: u32,
        /// Bytes.
        mtu: u32,
        /// Of the interface, all of them; 0: not known.
        transmit_queues: u32,
        /// Link address.
        mac: [u8; 6],
        /// 1: the driver program runs in the driver; 2: generically.
        mode: u8,
        /// 1: frames may come with checksums that their sender left to its device.
        checksum_offload_possible: u8,
        /// 1: private mode: the queues are on virtual pairs, and only what the application
        /// may send leaves; who polls the device [`Polling`] says. 0: direct mode.
        private: u8,
        /// Zero.
        pad: [u8; 7],
    }

    /// A queue of an application.
    Queue {
        /// Of the device.
        number: u32,
        /// In its memory.
        frames: u32,
        /// Bytes of a frame's place.
        frame_size: u32,
        /// Places of the receive ring.
        receive_ring: u32,
        /// Places of the transmit ring, and of the completion ring.
        transmit_ring: u32,
        /// Places of the fill ring.
        fill_ring: u32,
        /// 1: the driver moves frames without copying.
        zero_copy: u8,
        /// 1: frames may have transmit metadata.
        transmit_metadata: u8,
        /// 1: behind socket and memory there is a second socket, for frames that may wait.
        waiting: u8,
        /// Helper sockets behind those.
        helpers: u8,
    }

    /// What a NAPI probe was.
    Probed {
        /// 1: the driver has made it.
        found: u8,
        /// 1: it was a TCP segment.
        segment: u8,
        /// Its sender's link address.
        neighbour: [u8; 6],
        /// That it was sent to.
        port: u16,
        /// That it came from.
        source: u16,
        /// Of a segment.
        sequence: u32,
    }

    /// Who polls the device of a private application.
    Polling {
        /// 1: the application; 0: a thread of the kernel's.
        lent: u32,
    }

    /// An application's number.
    ApplicationNumber {
        /// In the driver program's tables.
        application: u32,
    }

    /// An application, as its user and user 0 may know it.
    Status {
        /// In the driver program's tables.
        application: u32,
        /// User id.
        domain: u32,
        /// Process id, as it was when it joined; 0 in another PID namespace.
        process: u32,
        /// One of [`STATUS_LIVE`] and those after it.
        state: u32,
        /// Queues that it has.
        queues: u32,
        /// Ports that it owns, those of leases aside.
        ports: u32,
        /// Sockets that hold them.
        holders: u32,
        /// Blocks that it has leased.
        blocks: u32,
        /// Its domain's weight.
        weight: u32,
        /// Zero.
        reserved: u32,
        /// Time of the kernel thread that polls the device for several applications, ns: the
        /// part that its frames took.
        charged: u64,
    }

    /// What the driver program counts on a queue, since it was loaded.
    QueueCounters {
        /// Of the device.
        queue: u32,
        /// How many queues the device has.
        queues: u32,
        /// By [`tidewall_device::demux::layout::Counter`].
        counters: [u64; COUNTERS],
    }

    /// What a manager counts, since it began.
    Counters {
        /// Applications that live.
        applications: u64,
        /// Connections of clients that live.
        clients: u64,
        /// Ports owned now, those of leases aside.
        ports: u64,
        /// Blocks leased now.
        blocks: u64,
        /// Applications that joined.
        joined: u64,
        /// That presented themselves after a restart.
        presented: u64,
        /// That were cleared away.
        cleared: u64,
        /// Requests refused.
        refused: u64,
        /// Messages that were none.
        malformed: u64,
        /// Changes of the device that failed and were tried again.
        retried: u64,
        /// Circuits that applications have now.
        circuits: u64,
        /// Calls now, those that are being released included; a local one counts once.
        calls: u64,
    }
}

/// Of [`Status`]: its client is connected.
pub const STATUS_LIVE: u32 = 1;
/// An earlier run's, which has not presented itself yet.
pub const STATUS_AWAITED: u32 = 2;
/// It is being cleared away.
pub const STATUS_CLEARING: u32 = 3;

/// Of [`Join`]: to have ports and no queues. Frames of these ports go to the kernel.
pub const JOIN_WITHOUT_QUEUES: u32 = 1;
/// Of [`Join`]: to be in private mode, also as a user that is trusted.
pub const JOIN_PRIVATE: u32 = 2;

/// The device interrupts with each frame.
pub const MODERATION_ENABLED: u32 = 0;
/// Its interrupts wait for an interval after a poll.
pub const MODERATION_DEFER: u32 = 1;
/// The application polls.
pub const MODERATION_BUSY_POLL: u32 = 2;
/// As the device was before.
pub const MODERATION_NONE: u32 = 3;

/// Text in an array, cut where it does not fit.
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
    /// From an errno and what to do about it.
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

/// What a manager has refused, within an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// As the system call of a socket would set it.
    pub errno: i32,
    text: String,
}

impl Refused {
    /// The errno of an error, where it is a manager's refusal.
    pub fn errno(error: &io::Error) -> Option<i32> {
        let refused: &Refused = error.get_ref()?.downcast_ref()?;
        Some(refused.errno)
    }
}
