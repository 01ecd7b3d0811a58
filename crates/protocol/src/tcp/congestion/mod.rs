//! How much may be in flight. Recovery decides *what* is retransmitted; this module
//! decides how much. It keeps the window and the slow start threshold, whatever algorithm
//! moves them.

mod cubic;
mod frozen;
mod hystart;
mod newreno;

use core::time::Duration;

use super::Time;
use super::send::milliseconds;
use cubic::{Cubic, Full};
use hystart::{HyStart, Verdict};
use newreno::NewReno;

/// How the congestion window moves (`TCP_CONGESTION`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// NewReno (RFC 5681, 6582).
    NewReno,
}

impl Congestion {
    /// All algorithms.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::NewReno];

    /// The name that Linux uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
        }
    }

    /// The algorithm of a name, as `TCP_CONGESTION` has it; `None` for an unknown name
    /// (Linux: `ENOENT`).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// An acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    /// SND.UNA after it.
    pub(super) first: u32,
    /// SND.NXT.
    pub(super) next: u32,
    /// Bytes newly acknowledged.
    pub(super) bytes: u32,
    /// The most bytes in flight recently.
    pub(super) in_flight: u32,
    /// That was the whole window then.
    pub(super) limited: bool,
    /// A round trip measured by it, in microseconds.
    pub(super) round_trip: Option<u32>,
    /// The smoothed round trip, in microseconds.
    pub(super) srtt: u32,
    pub(super) now: Time,
    pub(super) mss: u32,
}

/// No window grows beyond what a scaled window field can express.
const WINDOW_MAX: u32 = 1 << 30;

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    /// CUBIC until it leaves slow start for the first time.
    HyStart(HyStart),
    Cubic(Cubic),
    NewReno(NewReno),
}

impl Algorithm {
    fn new(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Cubic => Self::HyStart(HyStart::default()),
            Congestion::NewReno => Self::NewReno(NewReno::default()),
        }
    }
}

/// The congestion window and threshold of a connection, in bytes, and the
/// algorithm that moves them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controller {
    window: u32,
    /// The slow start threshold; `u32::MAX` before the first loss.
    threshold: u32,
    /// Window and threshold before the last reduction, which may turn out to be
    /// spurious.
    before: (u32, u32),
    algorithm: Algorithm,
}

impl Controller {
    /// Starts with an initial window of `initial` bytes.
    pub(super) fn new(initial: u32, congestion: Congestion) -> Self {
        Self {
            window: initial,
            threshold: u32::MAX,
            before: (initial, u32::MAX),
            algorithm: Algorithm::new(congestion),
        }
    }

    pub(super) fn congestion(&self) -> Congestion {
        match self.algorithm {
            Algorithm::HyStart(_) | Algorithm::Cubic(_) => Congestion::Cubic,
            Algorithm::NewReno(_) => Congestion::NewReno,
        }
    }

    /// Switches the algorithm; the new one continues from the window and the threshold.
    pub(super) fn set_congestion(&mut self, congestion: Congestion) {
        if congestion != self.congestion() {
            self.algorithm = Algorithm::new(congestion);
            self.leave_first_slow_start();
        }
    }

    /// HyStart++ is for the first slow start alone (RFC 9406 §4.3): later ones have a
    /// threshold.
    fn leave_first_slow_start(&mut self) {
        if let Algorithm::HyStart(_) = self.algorithm
            && self.threshold != u32::MAX
        {
            self.algorithm = Algorithm::Cubic(Cubic::default());
        }
    }

    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The slow start threshold; `u32::MAX` before the first loss.
    #[inline]
    pub(super) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Processes an acknowledgment of new data, outside fast recovery.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        let &Acknowledged {
            mut bytes,
            in_flight,
            limited,
            mss,
            now,
            ..
        } = acknowledged;
        if self.window < self.threshold {
            let divisor = self.slow_start_divisor(acknowledged);
            // A window that was not even half used carries no information about the path
            // (RFC 7661); Linux has the same test.
            if !limited && in_flight.saturating_mul(2) <= self.window {
                return;
            }
            // L = 2 (RFC 3465 §2.2), or 8 (RFC 9406 §4.2), assumes acknowledgments of a
            // few segments. Our receivers and Linux's coalesce a batch into one, so all
            // bytes count, up to the threshold. Bytes beyond it count for congestion
            // avoidance.
            let growth = (bytes / divisor).min(self.threshold.saturating_sub(self.window));
            self.window = self.window.saturating_add(growth).min(WINDOW_MAX);
            if self.window < self.threshold {
                return;
            }
            bytes -= growth;
        } else if !limited {
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.pause(milliseconds(now));
            }
            return;
        }
        if bytes == 0 {
            return;
        }
        self.window = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => {
                let full = Full {
                    bytes,
                    mss,
                    srtt: acknowledged.srtt,
                    now: milliseconds(now),
                };
                cubic.avoid(self.window, self.before.0, &full)
            }
            Algorithm::NewReno(reno) => reno.avoid(self.window, bytes, mss),
            Algorithm::HyStart(_) => self.window,
        };
    }

    /// The divisor of slow start's growth; the threshold falls when HyStart++ ends slow
    /// start.
    #[inline]
    fn slow_start_divisor(&mut self, acknowledged: &Acknowledged) -> u32 {
        let Algorithm::HyStart(hystart) = &mut self.algorithm else {
            return 1;
        };
        let &Acknowledged { first, next, .. } = acknowledged;
        let sample = acknowledged.round_trip;
        match hystart.acknowledged(first, next, sample) {
            Verdict::Grow(divisor) => divisor,
            Verdict::Leave => {
                self.threshold = self.window;
                self.leave_first_slow_start();
                1
            }
        }
    }

    /// Reduces the window for a loss, a timeout or a mark (RFC 5681 §3.1, RFC 9438 §4.6).
    fn reduce(&mut self, mss: u32) {
        self.before = (self.window, self.threshold);
        let window = self.window;
        let reduced = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reduced(window),
            Algorithm::NewReno(reno) => reno.reduced(window),
            Algorithm::HyStart(_) => {
                let mut cubic = Cubic::default();
                let reduced = cubic.reduced(window);
                self.algorithm = Algorithm::Cubic(cubic);
                reduced
            }
        };
        // Whole segments, as Linux counts: less than a segment is never sent.
        let reduced = reduced - reduced % mss.max(1);
        self.threshold = reduced.max(2 * mss);
    }

    /// A loss was detected, or a congestion mark has come; fast recovery begins. The
    /// window becomes the threshold, unless recovery sets another.
    pub(super) fn on_loss(&mut self, mss: u32) {
        self.reduce(mss);
        self.window = self.threshold;
    }

    /// The retransmission timer has expired. `first` is false for data whose timer
    /// expired before, or for which the window was reduced already.
    pub(super) fn on_timeout(&mut self, mss: u32, first: bool) {
        if first {
            self.reduce(mss);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.forget();
        }
        self.window = mss;
    }

    /// Nothing was in flight for `idle`, longer than the retransmission timeout. The
    /// window is halved once per timeout (RFC 2861 §3, Linux `tcp_cwnd_restart`), down to
    /// the initial window `initial` (RFC 5681 §4.1). The threshold remembers three
    /// quarters of it.
    pub(super) fn on_idle(&mut self, idle: Duration, timeout: Duration, initial: u32) {
        self.threshold = self.remembered();
        let least = initial.min(self.window);
        let mut left = idle.saturating_sub(timeout);
        while !left.is_zero() && self.window > least {
            self.window /= 2;
            left = left.saturating_sub(timeout);
        }
        self.window = self.window.max(least);
    }

    /// For a retransmission timeout at most `used` bytes were in flight, though more were
    /// allowed. Half of the unused part is dropped, since it is no longer validated (RFC
    /// 2861 §3, Linux `tcp_cwnd_application_limited`).
    pub(super) fn on_application_limited(&mut self, used: u32, initial: u32) {
        let used = used.max(initial);
        if used < self.window {
            self.threshold = self.remembered();
            self.window = u32::midpoint(self.window, used);
        }
    }

    /// The threshold to keep if the window is given up (Linux `tcp_current_ssthresh`).
    fn remembered(&self) -> u32 {
        self.threshold.max(self.window / 4 * 3)
    }

    /// Whether the invariants of the arithmetic hold; checked for a thawed state.
    pub(super) fn is_sound(&self) -> bool {
        let algorithm = match &self.algorithm {
            Algorithm::HyStart(_) => self.threshold == u32::MAX,
            Algorithm::Cubic(cubic) => cubic.is_sound(),
            Algorithm::NewReno(_) => true,
        };
        self.window <= WINDOW_MAX && self.before.0 <= WINDOW_MAX && algorithm
    }

    /// Sets the window that recovery allows while it lasts.
    pub(super) fn set_window(&mut self, bytes: u32) {
        self.window = bytes.min(WINDOW_MAX);
    }

    /// Undoes the last reduction, whose loss was spurious (RFC 9438 §4.9).
    pub(super) fn undo(&mut self) {
        let (window, threshold) = self.before;
        self.window = self.window.max(window);
        self.threshold = self.threshold.max(threshold);
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.undo();
            if self.threshold == u32::MAX {
                self.algorithm = Algorithm::new(Congestion::Cubic);
            }
        }
    }
}

#[cfg(test)]
mod tests;
