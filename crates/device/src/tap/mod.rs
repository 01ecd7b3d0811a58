//! A tap: an interface that Linux sees as an Ethernet card, with us as the machine at the
//! other end of its cable.
//!
//! It is for bulk transfer. With the virtio-net header before each frame, TCP segments of
//! up to 64 KiB pass unsplit in both directions. Checksums between the two are not
//! computed at all. Each frame costs one `read` or `write`, so AF_XDP is the device for
//! packet rate.
//!
//! ```text
//!  kernel's TCP ─► tap interface ─► read ─► demux::drive ─► channels
//!  kernel's TCP ◄─ tap interface ◄─ write ◄───────────────── transmit
//! ```
//!
//! The stack behind it is a separate host with its own addresses. There is no kernel
//! behind it to take the frames that the demux would leave to one. Those frames end here,
//! counted by the demux and in [`Counters::nobodys`]. The interface is ours alone,
//! created when the device is opened. It disappears when the device is dropped or its
//! process dies, however that happens. It needs no neighbour resolution (IFF_NOARP). The
//! process that opens it assigns the kernel's end an address
//! (`ip address add … dev NAME`).

mod queue;

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewall_wire::ethernet::MacAddress;

use tidewall_sys::interface;

use crate::demux::Tables;
use crate::frame::{Frame, FrameMemory};
use crate::queue::Queue;

use queue::{ReceiveHalf, TransmitHalf};

/// Bytes in a frame: the longest that [`Frame`] can describe, and room below it
/// for the metadata.
pub const FRAME_SIZE: usize = 66 * 1024;
/// Offset at which a received packet begins in its frame, as with AF_XDP.
pub const HEADROOM: u16 = 256;
/// Longest payload of a TCP segment sent unsplit: with its headers, at their longest, it
/// fits IP's 16-bit length.
pub const SEGMENT_MAX: u32 = 65_160;
/// Longest IP packet that is not split.
pub const MTU_MAX: u16 = 65_000;
/// Fewest frames of memory.
pub const FRAMES_MIN: u32 = 16;
/// Most frames of memory: 4 GiB of it.
pub const FRAMES_MAX: u32 = 65_536;

/// How to make a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the interface, 1 to 15 characters; it must not exist in the caller's
    /// network namespace.
    pub name: String,
    /// Longest IP packet that either side sends unsplit, 1280 to [`MTU_MAX`].
    pub mtu: u16,
    /// Frames of memory, 66 KiB each, [`FRAMES_MIN`] to [`FRAMES_MAX`].
    pub frames: u32,
}

impl Config {
    /// Defaults for an interface called `name`.
    pub fn new(name: &str) -> Self {
        Config {
            name: name.to_owned(),
            mtu: 1500,
            frames: 512,
        }
    }
}

/// Counts of frames by their fate outside the demux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read from the interface.
    pub read: u64,
    /// TCP segments longer than a packet, among those read.
    pub long: u64,
    /// Dropped unseen: no frame was free.
    pub no_frame: u64,
    /// Dropped: not a valid frame length.
    pub bad_length: u64,
    /// For no application here, and there is no kernel behind us.
    pub nobodys: u64,
    /// Written to the interface.
    pub written: u64,
    /// Queued for transmission, but refused by the kernel as impossible.
    pub refused: u64,
}

/// The counters as the two halves write them.
#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    long: AtomicU64,
    no_frame: AtomicU64,
    bad_length: AtomicU64,
    nobodys: AtomicU64,
    written: AtomicU64,
    refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reads the counters of a tap; outlives its queue.
#[derive(Clone, Debug)]
pub struct CounterReader(Arc<Counts>);

impl CounterReader {
    /// The counts so far.
    pub fn read(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            read: read(&self.0.read),
            long: read(&self.0.long),
            no_frame: read(&self.0.no_frame),
            bad_length: read(&self.0.bad_length),
            nobodys: read(&self.0.nobodys),
            written: read(&self.0.written),
            refused: read(&self.0.refused),
        }
    }
}

/// An open tap.
pub struct Tap {
    /// Its one queue, which keeps the interface alive.
    pub queue: Queue,
    /// The tables it demultiplexes by.
    pub tables: Tables,
    /// Link address of the kernel's end, to which our frames are sent.
    pub kernel: MacAddress,
    /// A link address for our end: the kernel's with one bit changed.
    pub own: MacAddress,
    /// Its counters.
    pub counters: CounterReader,
}

impl Tap {
    /// Creates the interface and brings it up.
    ///
    /// # Errors
    /// Nothing is left behind.
    ///
    /// - InvalidInput, with an explanation: a configuration out of range
    /// - EBUSY: there is an interface of this name
    /// - EPERM: without CAP_NET_ADMIN
    /// - ENOENT: the kernel has no /dev/net/tun
    /// - otherwise what the kernel reports
    pub fn open(config: &Config) -> io::Result<Self> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1280..=MTU_MAX).contains(&config.mtu) {
            return invalid(format!(
                "mtu is {}; it must be 1280 to {MTU_MAX}",
                config.mtu
            ));
        }
        if !(FRAMES_MIN..=FRAMES_MAX).contains(&config.frames) {
            return invalid(format!(
                "frames is {}; it must be {FRAMES_MIN} to {FRAMES_MAX}",
                config.frames
            ));
        }
        let file = interface::open_tap(&config.name)?;
        interface::take_offloads(&file)?;
        let kernel = interface::link_address(&file)?;
        let mut own = kernel;
        own[5] ^= 1;
        let mut key = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        let key = u128::from_ne_bytes(key);
        let tables = Tables::in_memory_with_key([key as u64, (key >> 64) as u64])?;
        let memory = FrameMemory::with_frame_size(config.frames, FRAME_SIZE)?;
        let file = Arc::new(file);
        let counts = Arc::new(Counts::default());
        let queue = Queue {
            receive: Box::new(ReceiveHalf::new(
                file.clone(),
                memory.clone(),
                tables.clone(),
                counts.clone(),
            )),
            transmit: Box::new(TransmitHalf::new(file, memory.clone(), counts.clone())),
            // The only tokens ever made for this memory.
            frames: (0..config.frames)
                .map(|index| Frame::new(index, 0, 0))
                .collect(),
            memory,
            counters: tables.trusted.counters(0),
        };
        // Last: frames that the kernel sends from now on are read.
        interface::set_up(&config.name, config.mtu)?;
        Ok(Tap {
            queue,
            tables,
            kernel: MacAddress(kernel),
            own: MacAddress(own),
            counters: CounterReader(counts),
        })
    }
}
