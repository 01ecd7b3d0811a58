//! The events that a descriptor is ready for.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// Events that a descriptor is ready for, or that a caller requests. The values are
/// Linux's `EPOLL*` (epoll_ctl(2)), which equal `POLL*`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Events(u32);

impl Events {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Something to read: data, the end, or a connection to accept.
    pub const IN: Self = Self(libc::EPOLLIN as u32);
    /// Urgent data. Tidewall's sockets never have any; kernel sockets may.
    pub const PRI: Self = Self(libc::EPOLLPRI as u32);
    /// There is room to write.
    pub const OUT: Self = Self(libc::EPOLLOUT as u32);
    /// An error is pending. Always reported.
    pub const ERR: Self = Self(libc::EPOLLERR as u32);
    /// Both halves are closed. Always reported.
    pub const HUP: Self = Self(libc::EPOLLHUP as u32);
    /// As [`Events::IN`].
    pub const RDNORM: Self = Self(libc::EPOLLRDNORM as u32);
    /// Priority data. Tidewall's sockets never have any; kernel sockets may.
    pub const RDBAND: Self = Self(libc::EPOLLRDBAND as u32);
    /// As [`Events::OUT`].
    pub const WRNORM: Self = Self(libc::EPOLLWRNORM as u32);
    /// There is room for priority data.
    pub const WRBAND: Self = Self(libc::EPOLLWRBAND as u32);
    /// Never reported, as in Linux.
    pub const MSG: Self = Self(libc::EPOLLMSG as u32);
    /// The peer has closed its half.
    pub const RDHUP: Self = Self(libc::EPOLLRDHUP as u32);

    /// A flag for `epoll_ctl`: only one of several sets that hold a file is woken.
    pub const EXCLUSIVE: Self = Self(libc::EPOLLEXCLUSIVE as u32);
    /// A flag for `epoll_ctl`: the system may not be suspended. Ignored.
    pub const WAKEUP: Self = Self(libc::EPOLLWAKEUP as u32);
    /// A flag for `epoll_ctl`: reported once, then disabled until changed.
    pub const ONESHOT: Self = Self(libc::EPOLLONESHOT as u32);
    /// A flag for `epoll_ctl` (EPOLLET): reported once per change.
    pub const EDGE: Self = Self(libc::EPOLLET as u32);

    /// Data arrived.
    pub const DATA_CAME: Self = Self(Self::IN.0 | Self::PRI.0 | Self::RDNORM.0 | Self::RDBAND.0);
    /// Space became free.
    pub const SPACE_CAME: Self = Self(Self::OUT.0 | Self::WRNORM.0 | Self::WRBAND.0);
    /// The state changed: reported to all, whatever they requested.
    pub const STATE_CHANGED: Self = Self(0x0fff_ffff);
    /// Events that are always reported.
    pub const ALWAYS: Self = Self(Self::ERR.0 | Self::HUP.0);
    /// [`Events::IN`] and its synonym.
    pub const READABLE: Self = Self(Self::IN.0 | Self::RDNORM.0);
    /// [`Events::OUT`] and its synonym.
    pub const WRITABLE: Self = Self(Self::OUT.0 | Self::WRNORM.0);
    /// The flags of `epoll_ctl`.
    pub const FLAGS: Self =
        Self(Self::EXCLUSIVE.0 | Self::WAKEUP.0 | Self::ONESHOT.0 | Self::EDGE.0);

    /// Returns Linux's value.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Converts Linux's value; unknown bits are kept.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns true if there are no events.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if it has all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if it has any of `other`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union, in constants.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the events without `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the events, with `other` if `when`.
    pub fn with_if(self, other: Self, when: bool) -> Self {
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
