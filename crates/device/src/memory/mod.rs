//! A link inside one process. It has two ends that look like AF_XDP devices, a wire
//! between them that can misbehave, and a clock that moves on request.
//!
//! It needs no privileges, no threads and no sleeping, and the same seed gives the same
//! run. Every protocol test uses it.
//!
//! ```text
//!  Transmit ─► wire (lose, duplicate, reorder, delay) ─► device ring
//!                                                                          │ poll: demux::drive
//!        Receive ◄── receive ring ◄── frame from the fill ring ◄───────────┴──► kernel list
//! ```
//!
//! The driver runs where AF_XDP's would: in the receiver's [`Receive::poll`]. If the
//! receiver left its interrupt armed, it runs in the thread that made the frame arrive,
//! as on a veth pair. A frame that the driver program admitted can still be lost on its
//! way to the owner, when the fill ring is empty or the receive ring full. Its channel's
//! head has then counted it.
//!
//! [`Receive::poll`]: crate::queue::Receive::poll

mod config;
mod port;
mod queue;
mod state;
mod steering;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::demux::Tables;
use crate::frame::Part;
use crate::queue::Queue;

pub use config::{Impairments, LinkConfig, MAXIMUM_QUEUES, Rings};
pub use port::{HEADROOM, KernelFrame, PortCounters};
pub use steering::flow_queue;
pub use wire::WireCounters;

use state::{Clock, State};

/// One of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first end.
    A,
    /// The second end.
    B,
}

impl Side {
    /// The other end.
    pub fn peer(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// A value for each side.
#[derive(Clone, Copy, Debug, Default)]
struct Sides<T> {
    a: T,
    b: T,
}

impl<T> Sides<T> {
    fn of(&self, side: Side) -> &T {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }
}

/// One end, as the layer above sees it: like an opened AF_XDP device.
pub struct LinkPort {
    /// Which end it is.
    pub side: Side,
    /// Its queues, in order.
    pub queues: Vec<Queue>,
    /// The tables its driver demultiplexes by.
    pub tables: Tables,
    /// Longest IP packet of the link, in bytes.
    pub mtu: u16,
}

impl fmt::Debug for LinkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkPort")
            .field("side", &self.side)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

/// A frame seen on the wire (see [`Link::tap`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time at which it was sent.
    pub time: Duration,
    /// The sending side.
    pub from: Side,
    /// True when the wire lost it ([`Impairments::loss`] or a filter).
    pub lost: bool,
    /// The whole Ethernet frame as sent, checksums complete.
    pub bytes: Vec<u8>,
}

/// A capture of everything sent on a link, from its creation until it is dropped.
#[derive(Clone, Debug)]
pub struct Tap {
    captured: Arc<Mutex<Vec<Captured>>>,
}

impl Tap {
    /// Takes the frames captured since the last call, in the order sent.
    pub fn take(&self) -> Vec<Captured> {
        std::mem::take(&mut self.captured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Creates a link with a virtual clock, which stands at zero.
///
/// # Errors
/// InvalidInput, with an explanation, for a configuration out of range; otherwise what
/// creating the frame memory or the descriptors reports.
pub fn pair(config: LinkConfig) -> io::Result<(Link, LinkPort, LinkPort)> {
    make(config, Clock::Virtual(Duration::ZERO), Vec::new())
}

/// As [`pair`]; the first end's queues use one of `parts` each, of a memory that queues
/// of other links may share. Queues without a part have a memory of their own.
///
/// # Errors
/// As [`pair`].
pub fn pair_on_parts(
    config: LinkConfig,
    parts: Vec<Part>,
) -> io::Result<(Link, LinkPort, LinkPort)> {
    make(config, Clock::Virtual(Duration::ZERO), parts)
}

/// Creates a link on the caller's clock, for programs that run in real time. Such a link
/// carries every frame at once. Nothing would run it when a delayed frame falls due, so a
/// delay is refused.
///
/// # Errors
/// As [`pair`]; InvalidInput also for a delay.
pub fn pair_on_clock(
    config: LinkConfig,
    clock: impl Fn() -> Duration + Send + 'static,
) -> io::Result<(Link, LinkPort, LinkPort)> {
    if config.a_to_b.takes_time() || config.b_to_a.takes_time() {
        let what = "a delay needs a link with a virtual clock";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    make(config, Clock::Given(Box::new(clock)), Vec::new())
}

fn make(
    config: LinkConfig,
    clock: Clock,
    parts: Vec<Part>,
) -> io::Result<(Link, LinkPort, LinkPort)> {
    config.check()?;
    let (state, queues, tables) = State::new(&config, clock, parts)?;
    let link = Link {
        state: Arc::new(Mutex::new(state)),
    };
    let port = |side, queues: Vec<queue::Parts>, tables| LinkPort {
        side,
        queues: queues
            .into_iter()
            .zip(0..)
            .map(|(parts, queue)| parts.into_queue(link.clone(), side, queue))
            .collect(),
        tables,
        mtu: config.mtu,
    };
    let a = port(Side::A, queues.a, tables.a);
    let b = port(Side::B, queues.b, tables.b);
    Ok((link, a, b))
}

/// Handle to a link: its clock, its impairments, and what a test wants to observe of it.
/// Clones share the link, and the ends keep it alive.
///
/// One lock guards the whole link; none of its methods waits for anything else.
#[derive(Clone)]
pub struct Link {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere left at worst one half-processed frame.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link's time.
    pub fn now(&self) -> Duration {
        self.state().now()
    }

    /// Advances the virtual clock to `time`, delivering every frame at the time it falls
    /// due. A time in the past changes nothing. With the caller's clock, only frames
    /// already due are delivered.
    pub fn advance_to(&self, time: Duration) {
        self.state().advance_to(time);
    }

    /// Time at which the next frame on the wire falls due, if there is one. An
    /// event-driven simulation advances to it.
    pub fn next_due(&self) -> Option<Duration> {
        self.state().next_due()
    }

    /// Delivers a frame to an end as if it arrived from the wire now, past all
    /// impairments.
    pub fn inject(&self, to: Side, bytes: &[u8]) {
        self.state().inject(to, vec![bytes.to_vec()]);
    }

    /// As [`Link::inject`], for several frames before the device interrupts.
    pub fn inject_burst(&self, to: Side, frames: Vec<Vec<u8>>) {
        self.state().inject(to, frames);
    }

    /// Puts a frame on the wire as if `from`'s kernel had sent it. The impairments of
    /// that direction apply. Ignored while `from` is down.
    pub fn send(&self, from: Side, bytes: &[u8]) {
        self.state().kernel_send(from, bytes.to_vec());
    }

    /// Captures every frame sent or injected from now on.
    pub fn tap(&self) -> Tap {
        let captured = Arc::new(Mutex::new(Vec::new()));
        self.state().taps.push(Arc::downgrade(&captured));
        Tap { captured }
    }

    /// Sets a filter that decides which frames from `from` pass. It is called with each
    /// frame sent and its number since the filter was set, from 0; false loses the frame.
    /// `None` removes the filter. It runs while the link is locked and so must not call
    /// the link.
    pub fn set_filter(&self, from: Side, filter: Option<Box<Filter>>) {
        self.state().wires.of_mut(from).set_filter(filter);
    }

    /// Changes the impairments of frames that `from` sends from now on.
    ///
    /// # Errors
    /// InvalidInput for values out of range, or for a delay on a link that runs on the
    /// caller's clock.
    pub fn set_impairments(&self, from: Side, impairments: Impairments) -> io::Result<()> {
        self.state().set_impairments(from, impairments)
    }

    /// Takes an end down or up. While it is down, its polls and flushes fail with
    /// ENETDOWN. Frames in its device rings and arriving frames are lost
    /// ([`PortCounters::down`]). Frames queued for transmission stay queued.
    pub fn set_down(&self, side: Side, down: bool) {
        self.state().ends.of_mut(side).set_down(down);
    }

    /// Makes an end's device refuse frames for transmission, as a full one does, or
    /// accept them again.
    pub fn refuse_frames(&self, side: Side, refuses: bool) {
        self.state().ends.of_mut(side).refuses = refuses;
    }

    /// Takes the frames that `side`'s driver passed to the kernel, oldest
    /// first.
    pub fn take_kernel(&self, side: Side) -> Vec<KernelFrame> {
        self.state().ends.of_mut(side).take_kernel()
    }

    /// Counts of frames that `from` sent, by their fate on the wire.
    pub fn wire_counters(&self, from: Side) -> WireCounters {
        self.state().wires.of(from).counters
    }

    /// Counts of frames that reached `side`, by their fate outside the driver program.
    /// The demux tables count what happened inside.
    pub fn port_counters(&self, side: Side) -> PortCounters {
        self.state().ends.of(side).counters
    }
}

/// See [`Link::set_filter`].
pub type Filter = dyn FnMut(u64, &[u8]) -> bool + Send;
