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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Default)]
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

/// The time in each [`Holdup`] by its number, in milliseconds; of the present one,
/// less the time at which it began. That of idleness is not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopwatch(pub(super) [u32; 4]);

impl Stopwatch {
    #[inline(always)]
    pub(super) fn begin(&mut self, holdup: Holdup, now: u32) {
        let total = &mut self.0[holdup as usize];
        *total = total.wrapping_sub(now);
    }

    #[inline(always)]
    pub(super) fn end(&mut self, holdup: Holdup, now: u32) {
        let total = &mut self.0[holdup as usize];
        *total = total.wrapping_add(now);
    }
}

impl Connection {
    /// How long there was something to send, and what held it up.
    #[must_use]
    pub fn sending_times(&self, now: Time) -> SendingTimes {
        let mut watch = self.stopwatch;
        if self.holdup != Holdup::Idle {
            watch.end(self.holdup, milliseconds(now));
        }
        let [_, network, window_limited, buffer_limited] =
            watch.0.map(|time| Duration::from_millis(time.into()));
        SendingTimes {
            busy: network + window_limited + buffer_limited,
            window_limited,
            buffer_limited,
        }
    }

    /// Something leaves: no more than the network holds it up.
    #[inline(always)]
    pub(super) fn goes_on(&mut self, now: Time) {
        if self.holdup != Holdup::Network {
            self.end_busy(now);
            self.holdup = Holdup::Network;
            self.stopwatch.begin(Holdup::Network, milliseconds(now));
        }
    }

    /// Nothing is in flight, and nothing waits.
    #[inline(always)]
    pub(super) fn end_busy(&mut self, now: Time) {
        if self.holdup != Holdup::Idle {
            self.stopwatch.end(self.holdup, milliseconds(now));
            self.holdup = Holdup::Idle;
        }
    }

    /// After all has left that may.
    #[inline(always)]
    pub(super) fn look_at_holdup(&mut self, now: Time) {
        if self.send.written != self.send.next || self.starved {
            self.judge_holdup(now);
        }
    }

    fn judge_holdup(&mut self, now: Time) {
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
        if holdup != self.holdup {
            self.turn_holdup(holdup, now);
        }
    }

    #[cold]
    fn turn_holdup(&mut self, holdup: Holdup, now: Time) {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        if opening && !self.is_fast_opening() {
            // A SYN is not what an application has to send.
            return;
        }
        self.end_busy(now);
        if holdup != Holdup::Idle {
            self.stopwatch.begin(holdup, milliseconds(now));
            self.holdup = holdup;
        }
    }

    /// The connection is over: nothing is held up any more.
    #[cold]
    pub(super) fn end_holdup(&mut self, now: Time) {
        self.end_busy(now);
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
}
