//! How a link behaves.

use std::io;
use std::time::Duration;

use crate::demux::layout;

/// Maximum number of queues of an end: what the tables have room for.
pub const MAXIMUM_QUEUES: u32 = layout::QUEUES as u32;

/// Configuration of a link. The default is a perfect wire between ends of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Queues of each end, 1..=[`MAXIMUM_QUEUES`]. A frame's queue is chosen by
    /// [`flow_queue`](super::flow_queue).
    pub queues: u32,
    /// Frames of memory of each queue, at least 1.
    pub frames: u32,
    /// Longest IP packet carried, in bytes. Ends do not send longer ones.
    pub mtu: u16,
    /// Ring sizes of each queue.
    pub rings: Rings,
    /// Whether the ends finish checksums for the sender.
    pub checksum_offload: bool,
    /// A packet longer than an empty frame arrives in several, as with AF_XDP. Otherwise
    /// it is lost.
    pub joins: bool,
    /// Seed of all random decisions. Each direction draws from its own sequence, the same
    /// number of times per frame whatever the impairments are.
    pub seed: u64,
    /// Impairments of frames that [`Side::A`](super::Side::A) sends.
    pub a_to_b: Impairments,
    /// Impairments of frames that [`Side::B`](super::Side::B) sends.
    pub b_to_a: Impairments,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            queues: 1,
            frames: 1024,
            mtu: 1500,
            rings: Rings::default(),
            checksum_offload: true,
            joins: false,
            seed: 1,
            a_to_b: Impairments::default(),
            b_to_a: Impairments::default(),
        }
    }
}

/// Sizes of a queue's rings, in frames. A ring of size 0 is always full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// The device's own ring: frames that arrived and that the driver has not examined.
    /// Frames that arrive when it is full are dropped unseen.
    pub device: usize,
    /// Empty frames for the driver to copy into.
    pub fill: usize,
    /// Received frames that the owner has not taken.
    pub receive: usize,
    /// Frames that may wait for the owner without waking it.
    pub waiting: usize,
    /// Frames queued for transmission that no flush has sent.
    pub transmit: usize,
    /// Sent frames that were not reclaimed. When it is full a flush sends
    /// nothing.
    pub completion: usize,
    /// Frames for the kernel that were not taken ([`Link::take_kernel`]).
    ///
    /// [`Link::take_kernel`]: super::Link::take_kernel
    pub kernel: usize,
}

impl Default for Rings {
    /// The sizes of veth's ring (256) and of common AF_XDP rings.
    fn default() -> Self {
        Rings {
            device: 256,
            fill: 2048,
            receive: 2048,
            waiting: 512,
            transmit: 2048,
            completion: 2048,
            kernel: 1024,
        }
    }
}

/// Impairments of frames in one direction of the wire. The default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairments {
    /// Probability that a frame is lost, 0..=1.
    pub loss: f64,
    /// Probability that a frame is carried twice, 0..=1.
    pub duplicate: f64,
    /// Probability that a frame travels twice as long, so that later ones overtake it,
    /// 0..=1. It applies to only one copy of a duplicated frame.
    pub reorder: f64,
    /// A frame's travel time.
    pub delay: Duration,
}

impl Impairments {
    /// True when a frame may arrive later than it was sent.
    pub(super) fn takes_time(&self) -> bool {
        self.delay > Duration::ZERO
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let chances = [self.loss, self.duplicate, self.reorder];
        if !chances.iter().all(|chance| (0.0..=1.0).contains(chance)) {
            return invalid("a probability lies outside 0..=1");
        }
        Ok(())
    }
}

impl LinkConfig {
    pub(super) fn check(&self) -> io::Result<()> {
        if !(1..=MAXIMUM_QUEUES).contains(&self.queues) {
            return invalid("queues must be 1 to 8");
        }
        if self.frames == 0 {
            return invalid("frames must be at least 1");
        }
        self.a_to_b.check()?;
        self.b_to_a.check()
    }
}

fn invalid(what: &str) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
