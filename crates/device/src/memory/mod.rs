//! A link inside one process: two ends that look like AF_XDP devices, a wire
//! between them that can misbehave, and a clock that moves on request.
//!
//! No privileges, no threads, no sleeping, and with the same seed the same
//! run: every protocol test happens on it.
//!
//! ```text
//!  Transmit ─► wire (lose, duplicate, reorder, delay) ─► device ring
//!                                                                          │ driver poll: demux::drive
//!        Receive ◄── receive ring ◄── frame from the fill ring ◄───────────┴──► kernel list
//! ```
//!
//! The driver runs where AF_XDP's would: in [`Receive::poll`] of the receiver,
//! or, when the receiver left its interrupt armed, in the thread that
//! made the frame arrive, as on a veth pair. A frame that the driver program
//! admitted can still be lost on its way to the owner, when the fill ring is
//! empty or the receive ring full; its channel's head then has counted it.
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

/// What each side has one of.
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

/// One end, as the layer above gets it: like an opened AF_XDP device.
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
    /// When it was sent.
    pub time: Duration,
    /// Who sent it.
    pub from: Side,
    /// True when the wire lost it ([`Impairments::loss`] or a filter).
    pub lost: bool,
    /// The whole Ethernet frame as sent, checksums complete.
    pub bytes: Vec<u8>,
}

/// A capture of everything sent on a link from its making until it is dropped.
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

/// Makes a link with a virtual clock, which stands at zero.
///
/// # Errors
/// InvalidInput, with words, for a configuration out of range; otherwise what
/// making the frame memory or the descriptors reports.
pub fn pair(config: LinkConfig) -> io::Result<(Link, LinkPort, LinkPort)> {
    make(config, Clock::Virtual(Duration::ZERO), Vec::new())
}

/// As [`pair`]; the first end's queues are on `parts`, one each, of a memory that
/// queues of other links may have parts of. Queues for which there is no part have a
/// memory of their own.
///
/// # Errors
/// As [`pair`].
pub fn pair_on_parts(
    config: LinkConfig,
    parts: Vec<Part>,
) -> io::Result<(Link, LinkPort, LinkPort)> {
    make(config, Clock::Virtual(Duration::ZERO), parts)
}

/// Makes a link on a clock of the caller's, for programs that run in real
/// time. Such a link carries every frame at once: nobody would run it when a
/// delayed frame falls due, so a delay is refused.
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

/// Handle to a link: its clock, its misbehaviour, and what a test wants to see
/// of it. Clones share the link, and the ends keep it alive.
///
/// One lock guards the whole link; none of its methods waits for anything
/// else.
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
        // A panic elsewhere left at worst one frame half handled.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link's time.
    pub fn now(&self) -> Duration {
        self.state().now()
    }

    /// Moves the virtual clock forward to `time`, delivering every frame that
    /// falls due at its own time. A time in the past changes nothing; with a
    /// clock of the caller's only what is due already is delivered.
    pub fn advance_to(&self, time: Duration) {
        self.state().advance_to(time);
    }

    /// When the next frame on the wire falls due, if there is one: the time to
    /// advance to for a simulation that goes from event to event.
    pub fn next_due(&self) -> Option<Duration> {
        self.state().next_due()
    }

    /// Delivers a frame to an end as if it came from the wire now, past all
    /// impairments.
    pub fn inject(&self, to: Side, bytes: &[u8]) {
        self.state().inject(to, vec![bytes.to_vec()]);
    }

    /// As [`Link::inject`], several frames before the device interrupts.
    pub fn inject_burst(&self, to: Side, frames: Vec<Vec<u8>>) {
        self.state().inject(to, frames);
    }

    /// Puts a frame on the wire as if `from`'s kernel had sent it: it meets
    /// the impairments of that direction. Ignored while `from` is down.
    pub fn send(&self, from: Side, bytes: &[u8]) {
        self.state().kernel_send(from, bytes.to_vec());
    }

    /// Captures every frame sent or injected from now on.
    pub fn tap(&self) -> Tap {
        let captured = Arc::new(Mutex::new(Vec::new()));
        self.state().taps.push(Arc::downgrade(&captured));
        Tap { captured }
    }

    /// Decides by itself which frames from `from` get through: called with
    /// each frame sent and its number, from 0, since the filter was set; false
    /// loses it. `None` removes the filter. It runs while the link is locked
    /// and so must not call the link.
    pub fn set_filter(&self, from: Side, filter: Option<Box<Filter>>) {
        self.state().wires.of_mut(from).set_filter(filter);
    }

    /// Changes the impairments of what `from` sends from now on.
    ///
    /// # Errors
    /// InvalidInput for values out of range, or that take time on a link that
    /// runs on the caller's clock.
    pub fn set_impairments(&self, from: Side, impairments: Impairments) -> io::Result<()> {
        self.state().set_impairments(from, impairments)
    }

    /// Takes an end down or up. Down, its polls and flushes fail with
    /// ENETDOWN, frames in its device rings and frames that arrive are lost
    /// ([`PortCounters::down`]); what waits to be transmitted waits on.
    pub fn set_down(&self, side: Side, down: bool) {
        self.state().ends.of_mut(side).set_down(down);
    }

    /// Has an end's device take no more frames for transmission, as a full one, or
    /// take them again.
    pub fn refuse_frames(&self, side: Side, refuses: bool) {
        self.state().ends.of_mut(side).refuses = refuses;
    }

    /// Takes the frames that `side`'s driver passed to the kernel, oldest
    /// first.
    pub fn take_kernel(&self, side: Side) -> Vec<KernelFrame> {
        self.state().ends.of_mut(side).take_kernel()
    }

    /// What became of the frames that `from` sent, on the wire.
    pub fn wire_counters(&self, from: Side) -> WireCounters {
        self.state().wires.of(from).counters
    }

    /// What became of the frames that reached `side`, outside the driver
    /// program (the demux tables count what happened inside).
    pub fn port_counters(&self, side: Side) -> PortCounters {
        self.state().ends.of(side).counters
    }
}

/// See [`Link::set_filter`].
pub type Filter = dyn FnMut(u64, &[u8]) -> bool + Send;
