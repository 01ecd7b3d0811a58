//! For how long there was something to send, and what held it up: which of the
//! network, the peer and the application a slow connection is slow by
//! (`tcpi_busy_time` and its parts; Linux `tcp_chrono`).

use core::time::Duration;

use super::connection::Connection;
use super::send::milliseconds;
use super::{State, Time};

/// How long a connection has had data to send, and for what part of that it waited
/// for something else than the network. To the millisecond, 49 days at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendingTimes {
    /// `tcpi_busy_time`: something that was written was not acknowledged. The other
    /// two are parts of it.
    pub busy: Duration,
    /// `tcpi_rwnd_limited`: the peer's window had no room for the next segment.
    pub window_limited: Duration,
    /// `tcpi_sndbuf_limited`: all was sent, and a writer had more that the send
    /// buffer did not take.
    pub buffer_limited: Duration,
}

/// What holds up sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(super) enum Holdup {
    /// Nothing is to be sent.
    #[default]
    Idle,
    /// The network.
    Network,
    /// The peer's window.
    Window,
    /// Our send buffer.
    Buffer,
}

impl Holdup {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 4] = [Self::Idle, Self::Network, Self::Window, Self::Buffer];
}

/// The time in each [`Holdup`] but the first, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopwatch {
    /// Since when the [`Holdup`] is what it is, in milliseconds that wrap.
    pub(super) since: u32,
    pub(super) network: u32,
    pub(super) window: u32,
    pub(super) buffer: u32,
}

impl Stopwatch {
    #[cold]
    fn stop(&mut self, holdup: Holdup, now: u32) {
        let elapsed = now.wrapping_sub(self.since);
        let total = match holdup {
            Holdup::Idle => None,
            Holdup::Network => Some(&mut self.network),
            Holdup::Window => Some(&mut self.window),
            Holdup::Buffer => Some(&mut self.buffer),
        };
        if let Some(total) = total {
            *total = total.saturating_add(elapsed);
        }
        self.since = now;
    }
}

impl Connection {
    /// How long there was something to send, and what held it up.
    #[must_use]
    pub fn sending_times(&self, now: Time) -> SendingTimes {
        let mut watch = self.stopwatch;
        if self.state != State::Closed {
            watch.stop(self.holdup, milliseconds(now));
        }
        let [network, window_limited, buffer_limited] = [watch.network, watch.window, watch.buffer]
            .map(|time| Duration::from_millis(time.into()));
        SendingTimes {
            busy: network + window_limited + buffer_limited,
            window_limited,
            buffer_limited,
        }
    }

    /// Looks at what holds up sending, after something was sent or acknowledged.
    #[inline]
    pub(super) fn judge_holdup(&mut self, now: Time) {
        let in_flight = self.send.next.wrapping_sub(self.send.first);
        let unsent = self.unsent();
        let holdup = if unsent > 0 {
            let room = self.send.window.saturating_sub(in_flight);
            if room < unsent.min(self.send.mss.into()) {
                Holdup::Window
            } else {
                Holdup::Network
            }
        } else if in_flight == 0 {
            Holdup::Idle
        } else if self.starved {
            self.starved_holdup()
        } else {
            Holdup::Network
        };
        if holdup != self.holdup && !self.is_opening() {
            self.stopwatch.stop(self.holdup, milliseconds(now));
            self.holdup = holdup;
        }
    }

    #[cold]
    fn starved_holdup(&mut self) -> Holdup {
        self.starved = !self.writable();
        if self.starved {
            Holdup::Buffer
        } else {
            Holdup::Network
        }
    }

    /// A SYN is not what an application has to send.
    fn is_opening(&self) -> bool {
        matches!(self.state, State::SynSent | State::SynReceived) && !self.is_fast_opening()
    }
}
