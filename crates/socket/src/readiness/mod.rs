//! Readiness: which of many sockets are ready, at a cost that does not grow with
//! those that are not.
//!
//! Every socket has a wait queue, in which are the *registrations* of the contexts
//! that poll it. A context (`PollContext`) is what one call waits on: a selector's,
//! an epoll set's, that of a thread's `select` or of its event queue. Where the
//! protocol changes a socket it notifies the wait queue, and each registration that is
//! interested in such a change goes on its context's *ready list*: once (a flag of the
//! registration), before a thread is woken, and not once the registration is retired.
//! A context looks at what is on its ready list and at nothing else.
//!
//! A change is reported as by Linux, so that edge-triggered users see the same
//! edges: data that comes is `IN` even if older data was not read; `OUT` comes
//! when a write has found no space and there is some again; a change of state
//! (connected, FIN, RST, shutdown) is reported to everyone.
//!
//! Frames that the protocol has not processed wait in channels. Their socket is
//! entered with every context that polls it, and one thread is woken to run the
//! protocol: that of whichever context looks first does it for all.
//!
//! ```text
//!  frames ──► WaitQueue::frames_arrived ──► PollContext::process ──► protocol
//!              (one thread woken)                                       │ notify
//!  select, poll, epoll_wait, Selector::wait ◄── ready list ◄────────────┤
//!           kernel's descriptors ──► KernelDescriptors::poll ───────────┘
//! ```
//!
//! The way of an event, and where each step is:
//!
//! 1. A frame is sorted into its socket's channel, whose wait queue hears of it
//!    (`wait_queue`). Each `Registration` there (`registration`) is entered with its
//!    context as one with frames, and one thread that sleeps in one of the contexts
//!    is woken.
//! 2. That thread, in `PollContext::wait` (`poll_context`), runs the protocol on what
//!    was entered. The socket finds out what has changed and notifies its wait queue:
//!    registrations that are interested go on their contexts' ready lists.
//! 3. The call that waits takes them off, looks what they are ready for, and reports
//!    it: `epoll` and `Selector` each in their way, `select` and `poll` through what
//!    the thread knows of its descriptors (`interest`, in `thread_state`),
//!    `event_queue` by the ready list alone, `event_loop` by an eventfd.
//!
//! Kernel descriptors of a context sit in one epoll descriptor of the kernel's, so
//! idle ones cost nothing (`kernel_descriptors`); the thread that sleeps on it puts
//! those that are ready on the ready list.
//!
//! Of the ways to wait, [`Selector`](crate::Selector) is for programs written for this
//! stack; `select`, `poll` and `epoll_wait` of [`Descriptors`](crate::Descriptors) for
//! those written for Linux; `get_next_event` for threads that share a table and want
//! events alone; mio (a feature) for loops that sleep in the kernel;
//! [`Stack::wait`](crate::Stack::wait) for a few UDP sockets by priority.
//!
//! Read first: Banga & Mogul, USENIX 1998 and (with Druschel) USENIX 1999; epoll(7).

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

pub(crate) mod classes;
pub(crate) mod descriptor_set;
mod epoll;
mod epoll_calls;
mod epoll_control;
#[cfg(feature = "mio")]
pub(crate) mod event_loop;
mod event_queue;
mod exchange;
mod files;
pub(crate) mod interest;
mod kernel_descriptors;
mod poll;
pub(crate) mod poll_context;
pub(crate) mod registration;
mod select;
pub(crate) mod thread_state;

pub use crate::wait_queue::{Interrupter, interrupt_sleep, take_interruption};
pub use descriptor_set::{DescriptorSet, Iter};
pub use epoll::{EpollEvent, EpollSet};
pub use epoll_control::Operation;
pub use event_queue::DescriptorEvent;
pub use files::KernelFile;
pub use poll::PollFd;
pub use tidewall_sys::SignalSet;

/// What a descriptor is ready for, or what it is asked about: the values of
/// Linux's `EPOLL*` (epoll_ctl(2)), which are those of `POLL*` too.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Events(u32);

impl Events {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// There is something to read: data, the end, a connection to accept.
    pub const IN: Self = Self(libc::EPOLLIN as u32);
    /// Urgent data. Tidewall's sockets have none; the kernel's may.
    pub const PRI: Self = Self(libc::EPOLLPRI as u32);
    /// There is room to write.
    pub const OUT: Self = Self(libc::EPOLLOUT as u32);
    /// An error is pending. Reported whether asked for or not.
    pub const ERR: Self = Self(libc::EPOLLERR as u32);
    /// Both halves are closed. Reported whether asked for or not.
    pub const HUP: Self = Self(libc::EPOLLHUP as u32);
    /// As [`Events::IN`].
    pub const RDNORM: Self = Self(libc::EPOLLRDNORM as u32);
    /// Priority data. Tidewall's sockets have none; the kernel's may.
    pub const RDBAND: Self = Self(libc::EPOLLRDBAND as u32);
    /// As [`Events::OUT`].
    pub const WRNORM: Self = Self(libc::EPOLLWRNORM as u32);
    /// There is room for priority data.
    pub const WRBAND: Self = Self(libc::EPOLLWRBAND as u32);
    /// Never reported, as by Linux.
    pub const MSG: Self = Self(libc::EPOLLMSG as u32);
    /// The peer has closed its half.
    pub const RDHUP: Self = Self(libc::EPOLLRDHUP as u32);

    /// A flag for `epoll_ctl`: of several sets that a file is in, one is woken.
    pub const EXCLUSIVE: Self = Self(libc::EPOLLEXCLUSIVE as u32);
    /// A flag for `epoll_ctl`: the system may not be suspended. Ignored.
    pub const WAKEUP: Self = Self(libc::EPOLLWAKEUP as u32);
    /// A flag for `epoll_ctl`: reported once, then disabled until changed.
    pub const ONESHOT: Self = Self(libc::EPOLLONESHOT as u32);
    /// A flag for `epoll_ctl` (EPOLLET): reported once a change.
    pub const EDGE: Self = Self(libc::EPOLLET as u32);

    /// Data came.
    pub(crate) const DATA_CAME: Self =
        Self(Self::IN.0 | Self::PRI.0 | Self::RDNORM.0 | Self::RDBAND.0);
    /// Space came back.
    pub(crate) const SPACE_CAME: Self = Self(Self::OUT.0 | Self::WRNORM.0 | Self::WRBAND.0);
    /// The state changed: reported to everybody, whatever they asked for.
    pub(crate) const STATE_CHANGED: Self = Self(0x0fff_ffff);
    /// What is reported whether asked for or not.
    pub(crate) const ALWAYS: Self = Self(Self::ERR.0 | Self::HUP.0);
    /// [`Events::IN`] and its synonym.
    pub(crate) const READABLE: Self = Self(Self::IN.0 | Self::RDNORM.0);
    /// [`Events::OUT`] and its synonym.
    pub(crate) const WRITABLE: Self = Self(Self::OUT.0 | Self::WRNORM.0);
    /// The flags of `epoll_ctl`.
    pub(crate) const FLAGS: Self =
        Self(Self::EXCLUSIVE.0 | Self::WAKEUP.0 | Self::ONESHOT.0 | Self::EDGE.0);

    /// Linux's value.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From Linux's value; unknown bits are kept.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// True when it is nothing.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True when it has all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when it has any of `other`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// It and `other`, in constants.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// It without `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// It, and `other` if so.
    pub(crate) fn with_if(self, other: Self, when: bool) -> Self {
        if when { self.with(other) } else { self }
    }
}

impl BitOr for Events {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Events {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Events {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Events, &str); 15] = [
            (Events::IN, "IN"),
            (Events::PRI, "PRI"),
            (Events::OUT, "OUT"),
            (Events::ERR, "ERR"),
            (Events::HUP, "HUP"),
            (Events::RDNORM, "RDNORM"),
            (Events::RDBAND, "RDBAND"),
            (Events::WRNORM, "WRNORM"),
            (Events::WRBAND, "WRBAND"),
            (Events::MSG, "MSG"),
            (Events::RDHUP, "RDHUP"),
            (Events::EXCLUSIVE, "EXCLUSIVE"),
            (Events::WAKEUP, "WAKEUP"),
            (Events::ONESHOT, "ONESHOT"),
            (Events::EDGE, "EDGE"),
        ];
        let mut rest = *self;
        let mut first = true;
        for (event, name) in NAMES {
            if rest.contains(event) {
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                rest = rest.without(event);
                first = false;
            }
        }
        if first || !rest.is_empty() {
            write!(f, "{}{:#x}", if first { "" } else { "|" }, rest.0)?;
        }
        Ok(())
    }
}
