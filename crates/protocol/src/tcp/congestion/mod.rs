//! How much may be in flight. Recovery decides *what* is sent again; this
//! decides how much.

mod newreno;

use core::time::Duration;

use super::Time;
pub(super) use newreno::NewReno;

/// What an acknowledgment of new data says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    /// SND.UNA after it. Nothing here takes notice yet.
    #[allow(dead_code, reason = "for the algorithms that follow NewReno")]
    pub(super) first: u32,
    /// SND.NXT.
    #[allow(dead_code, reason = "for the algorithms that follow NewReno")]
    pub(super) next: u32,
    /// Bytes newly acknowledged.
    pub(super) bytes: u32,
    /// The most bytes that were in flight lately.
    pub(super) in_flight: u32,
    /// A round trip measured with it. NewReno takes no notice.
    #[allow(dead_code, reason = "for the algorithms that follow NewReno")]
    pub(super) round_trip: Option<Duration>,
    /// The time. NewReno takes no notice.
    #[allow(dead_code, reason = "for the algorithms that follow NewReno")]
    pub(super) now: Time,
    /// Payload of a full segment.
    pub(super) mss: u32,
}

/// No window grows beyond what a scaled window field can say.
const WINDOW_MAX: u32 = 1 << 30;

/// The congestion window and threshold of a connection, in bytes, and the
/// algorithm that moves them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Controller {
    pub(super) window: u32,
    /// The slow start threshold; `u32::MAX` before the first loss.
    pub(super) threshold: u32,
    /// The window that a restart after idleness may begin with.
    pub(super) initial: u32,
    /// Window and threshold before the last reduction, which may turn out to
    /// have been for nothing.
    pub(super) before: (u32, u32),
    pub(super) algorithm: NewReno,
}

impl Controller {
    /// With an initial window of so many segments.
    pub(super) fn new(segments: u32, mss: u32) -> Self {
        let initial = segments.max(1) * mss;
        Self {
            window: initial,
            threshold: u32::MAX,
            initial,
            before: (initial, u32::MAX),
            algorithm: NewReno::default(),
        }
    }

    /// The congestion window.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The slow start threshold; `u32::MAX` before the first loss.
    #[inline]
    pub(super) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// New data was acknowledged, outside fast recovery.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
        let &Acknowledged {
            mut bytes,
            in_flight,
            mss,
            ..
        } = acknowledged;
        if self.window < self.threshold {
            // A window that was not even half used says nothing of the path
            // (RFC 7661); Linux has the same test.
            if in_flight.saturating_mul(2) < self.window {
                return;
            }
            // L = 2 (RFC 3465 §2.2) is for acknowledgments of two segments; ours
            // and Linux's receivers coalesce a batch into one, so all counts, up
            // to the threshold. What one covers beyond is avoidance's.
            let growth = bytes.min(self.threshold - self.window);
            self.window = self.window.saturating_add(growth).min(WINDOW_MAX);
            bytes -= growth;
        }
        if bytes == 0 || in_flight.saturating_add(mss) <= self.window {
            return;
        }
        self.window = self.algorithm.avoid(self.window, bytes, mss);
    }

    /// A loss was detected; fast recovery begins. The window is the threshold
    /// then, unless recovery sets another.
    pub(super) fn on_loss(&mut self, in_flight: u32, mss: u32, _now: Time) {
        self.before = (self.window, self.threshold);
        self.threshold = self.algorithm.reduced(in_flight, mss);
        self.window = self.threshold;
    }

    /// The retransmission timer has expired; `first` unless it is for data that
    /// it expired for before.
    pub(super) fn on_timeout(&mut self, in_flight: u32, mss: u32, first: bool, _now: Time) {
        if first {
            self.before = (self.window, self.threshold);
            self.threshold = self.algorithm.reduced(in_flight, mss);
        }
        self.window = mss;
    }

    /// Nothing was sent for longer than a retransmission timeout.
    pub(super) fn on_idle(&mut self, _mss: u32) {
        // RFC 5681 §4.1.
        self.window = self.window.min(self.initial);
    }

    /// What recovery allows while it lasts.
    #[allow(dead_code, reason = "for proportional rate reduction")]
    pub(super) fn set_window(&mut self, bytes: u32) {
        self.window = bytes.min(WINDOW_MAX);
    }

    /// The last reduction was for a loss that was none.
    #[allow(dead_code, reason = "for recoveries that turn out to be spurious")]
    pub(super) fn undo(&mut self) {
        let (window, threshold) = self.before;
        self.window = self.window.max(window);
        self.threshold = self.threshold.max(threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn acknowledge(reno: &mut Controller, bytes: u32, in_flight: u32) {
        reno.on_acknowledged(&Acknowledged {
            first: 0,
            next: 0,
            bytes,
            in_flight,
            round_trip: None,
            now: Duration::ZERO,
            mss: MSS,
        });
    }

    #[test]
    fn the_window_doubles_then_grows_by_a_segment_a_round_trip() {
        let mut reno = Controller::new(10, MSS);
        for _ in 0..10 {
            acknowledge(&mut reno, MSS, 10 * MSS);
        }
        assert_eq!(reno.window(), 20 * MSS);
        reno.on_loss(20 * MSS, MSS, Duration::ZERO);
        assert_eq!((reno.window(), reno.threshold()), (10 * MSS, 10 * MSS));
        for _ in 0..10 {
            acknowledge(&mut reno, MSS, 10 * MSS);
        }
        assert_eq!(reno.window(), 11 * MSS);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = Controller::new(10, MSS);
        for _ in 0..100 {
            acknowledge(&mut reno, MSS, MSS);
        }
        assert_eq!(reno.window(), 10 * MSS);
    }

    #[test]
    fn a_timeout_begins_with_one_segment_and_halves_once() {
        let mut reno = Controller::new(10, MSS);
        reno.on_timeout(10 * MSS, MSS, true, Duration::ZERO);
        assert_eq!((reno.window(), reno.threshold()), (MSS, 5 * MSS));
        reno.on_timeout(MSS, MSS, false, Duration::ZERO);
        assert_eq!((reno.window(), reno.threshold()), (MSS, 5 * MSS));
    }
}
