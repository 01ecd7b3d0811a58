//! How long there was data to send, and what it waited for: the network, the peer or the
//! application (`tcpi_busy_time` and its parts; Linux `tcp_chrono`).

use core::time::Duration;

use super::connection::Connection;
use super::send::milliseconds;
use super::{State, Time};

/// How long a connection has had data to send, and how much of that it did not wait for
/// the network. To the millisecond, 49 days at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendingTimes {
    /// `tcpi_busy_time`: written data was not acknowledged. The other two are parts of
    /// it.
    pub busy: Duration,
    /// `tcpi_rwnd_limited`: the peer's window had no room for the next segment.
    pub window_limited: Duration,
    /// `tcpi_sndbuf_limited`: all data was sent, and the send buffer had refused more
    /// from a writer.
    pub buffer_limited: Duration,
}

/// The cause for which sending waits (Linux `enum tcp_chrono`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Default)]
#[repr(u8)]
pub(super) enum ChronoKind {
    /// There is nothing to send.
    #[default]
    Idle,
    /// The network.
    Busy,
    /// The peer's window.
    RwndLimited,
    /// Our send buffer.
    SndbufLimited,
}

impl ChronoKind {
    pub(super) const ALL: [Self; 4] = [
        Self::Idle,
        Self::Busy,
        Self::RwndLimited,
        Self::SndbufLimited,
    ];
}

/// Milliseconds spent in each [`ChronoKind`], by its number. The present one's entry is
/// reduced by the time at which it began. Idle time is not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChronoStats(pub(super) [u32; 4]);

impl ChronoStats {
    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn begin(&mut self, chrono: ChronoKind, now: u32) {
        let total = &mut self.0[chrono as usize];
        *total = total.wrapping_sub(now);
    }

    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn end(&mut self, chrono: ChronoKind, now: u32) {
        let total = &mut self.0[chrono as usize];
        *total = total.wrapping_add(now);
    }
}

impl Connection {
    /// Returns how long there was data to send, and what it waited for.
    pub fn sending_times(&self, now: Time) -> SendingTimes {
        let mut stats = self.chrono_stats;
        if self.chrono != ChronoKind::Idle {
            stats.end(self.chrono, milliseconds(now));
        }
        let [_, network, window_limited, buffer_limited] =
            stats.0.map(|time| Duration::from_millis(time.into()));
        SendingTimes {
            busy: network + window_limited + buffer_limited,
            window_limited,
            buffer_limited,
        }
    }

    /// Records that a segment leaves: only the network limits sending.
    #[inline(always)]
    pub(super) fn start_busy(&mut self, now: Time) {
        if self.chrono != ChronoKind::Busy {
            self.end_busy(now);
            self.chrono = ChronoKind::Busy;
            self.chrono_stats.begin(ChronoKind::Busy, milliseconds(now));
        }
    }

    /// Records that nothing is in flight, and nothing waits.
    #[inline(always)]
    pub(super) fn end_busy(&mut self, now: Time) {
        if self.chrono != ChronoKind::Idle {
            self.chrono_stats.end(self.chrono, milliseconds(now));
            self.chrono = ChronoKind::Idle;
        }
    }

    /// Updates the state after all permitted data has left.
    #[inline(always)]
    pub(super) fn update_chrono(&mut self, now: Time) {
        if self.send.write_seq != self.send.nxt || self.no_space {
            self.classify_chrono(now);
        }
    }

    fn classify_chrono(&mut self, now: Time) {
        let in_flight = self.send.outstanding();
        let unsent = self.unsent();
        let chrono = if unsent > 0 {
            let room = self.send.wnd.saturating_sub(in_flight);
            if room < unsent.min(self.send.mss.into()) {
                ChronoKind::RwndLimited
            } else {
                ChronoKind::Busy
            }
        } else if in_flight == 0 {
            ChronoKind::Idle
        } else if self.no_space {
            self.buffer_chrono()
        } else {
            ChronoKind::Busy
        };
        if chrono != self.chrono {
            self.set_chrono(chrono, now);
        }
    }

    #[cold]
    fn set_chrono(&mut self, chrono: ChronoKind, now: Time) {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        if opening && !self.is_fast_opening() {
            // A SYN is not data of the application.
            return;
        }
        self.end_busy(now);
        if chrono != ChronoKind::Idle {
            self.chrono_stats.begin(chrono, milliseconds(now));
            self.chrono = chrono;
        }
    }

    #[cold]
    fn buffer_chrono(&mut self) -> ChronoKind {
        self.no_space = !self.writable();
        if self.no_space {
            ChronoKind::SndbufLimited
        } else {
            ChronoKind::Busy
        }
    }
}
