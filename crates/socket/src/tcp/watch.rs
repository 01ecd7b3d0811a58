//! What ties a socket to the selector that watches it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::connection::ConnectionInner;
use super::listener::ListenerInner;
use super::selector::SelectorInner;
use crate::stack::lock;
use crate::udp::inner::SocketInner;

/// What a socket is ready for, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness(pub(crate) u8);

impl Readiness {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const READABLE: Self = Self(1);
    pub(crate) const WRITABLE: Self = Self(2);
    /// Both halves are closed. Reported whether asked for or not, as by epoll.
    pub(crate) const HANGUP: Self = Self(4);
    /// An error is pending, or something was notified. Reported whether asked for or not.
    pub(crate) const ERROR: Self = Self(8);

    pub(crate) fn with(self, other: Self, when: bool) -> Self {
        if when { Self(self.0 | other.0) } else { self }
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What of it somebody with an interest is told.
    pub(crate) fn of_interest(self, interest: u8) -> Self {
        Self(self.0 & (interest | Self::HANGUP.0 | Self::ERROR.0))
    }
}

/// What is watched.
pub(crate) enum Source {
    Udp(Weak<SocketInner>),
    Listener(Weak<ListenerInner>),
    Connection(Weak<ConnectionInner>),
    /// A stream of the kernel's: only the selector's epoll descriptor knows.
    Kernel,
}

/// One socket in one selector.
pub(crate) struct Registration {
    pub(crate) selector: Arc<SelectorInner>,
    pub(crate) source: Source,
    /// Descriptor of the kernel that is watched too; -1: none.
    pub(crate) descriptor: i32,
    /// Its place among those with a descriptor; `usize::MAX`: none.
    pub(crate) key: AtomicUsize,
    pub(crate) token: AtomicU64,
    pub(crate) interest: AtomicU8,
    /// It is in the selector's list of ready ones.
    pub(crate) ready: AtomicBool,
    /// It is in the selector's list of those with frames.
    pub(crate) framed: AtomicBool,
    /// False once removed.
    pub(crate) active: AtomicBool,
}

impl Registration {
    /// False once its selector is gone.
    fn lives(&self) -> bool {
        !self.selector.is_gone()
    }

    /// Tells the selector, if it is interested.
    pub(crate) fn notify(self: &Arc<Self>, readiness: Readiness) {
        let interest = self.interest.load(Ordering::Relaxed);
        if readiness.of_interest(interest) != Readiness::NONE
            && !self.ready.swap(true, Ordering::AcqRel)
        {
            self.selector.push_ready(self.clone());
        }
    }
}

/// A socket's place for its registration.
#[derive(Default)]
pub(crate) struct Watch {
    registration: Mutex<Option<Arc<Registration>>>,
}

impl Watch {
    pub(crate) fn get(&self) -> Option<Arc<Registration>> {
        lock(&self.registration).clone().filter(|it| it.lives())
    }

    /// Enters a registration; false when there is one already.
    pub(crate) fn set(&self, registration: Arc<Registration>) -> bool {
        let mut place = lock(&self.registration);
        if place.as_ref().is_some_and(|it| it.lives()) {
            return false;
        }
        *place = Some(registration);
        true
    }

    pub(crate) fn clear(&self) -> Option<Arc<Registration>> {
        lock(&self.registration).take()
    }

    pub(crate) fn is_watched(&self) -> bool {
        lock(&self.registration)
            .as_ref()
            .is_some_and(|it| it.lives())
    }

    /// True while the application has been told of something, or is about to
    /// be, that it has not dealt with.
    pub(crate) fn is_ready(&self) -> bool {
        let place = lock(&self.registration);
        place
            .as_ref()
            .is_some_and(|registration| registration.ready.load(Ordering::Relaxed))
    }

    /// The socket became ready.
    pub(crate) fn notify(&self, readiness: Readiness) {
        if let Some(registration) = &*lock(&self.registration)
            && registration.lives()
        {
            registration.notify(readiness);
        }
    }

    /// Frames wait for the socket; false when nobody watches it.
    pub(crate) fn has_frames(&self) -> bool {
        let place = lock(&self.registration);
        let Some(registration) = place.as_ref().filter(|it| it.lives()) else {
            return false;
        };
        if !registration.framed.swap(true, Ordering::AcqRel) {
            registration.selector.push_framed(registration.clone());
        }
        true
    }
}
