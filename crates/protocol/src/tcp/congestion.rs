//! How much may be in flight. Recovery decides *what* is sent again; this
//! decides how much.

use core::time::Duration;

use super::Time;

/// What an acknowledgment of new data says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
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

/// A congestion control algorithm. Sizes in bytes.
pub(super) trait Algorithm {
    /// The congestion window.
    fn window(&self) -> u32;
    /// The slow start threshold; `u32::MAX` before the first loss.
    fn threshold(&self) -> u32;
    /// New data was acknowledged, outside fast recovery.
    fn on_acknowledged(&mut self, acknowledged: &Acknowledged);
    /// A loss was detected; fast recovery begins.
    fn on_loss(&mut self, in_flight: u32, mss: u32);
    /// The retransmission timer has expired; `first` unless it is for data that
    /// it expired for before.
    fn on_timeout(&mut self, in_flight: u32, mss: u32, first: bool);
    /// Nothing was sent for longer than a retransmission timeout.
    fn on_idle(&mut self, mss: u32);
}

/// NewReno (RFC 5681, with RFC 3465's counting of bytes).
#[derive(Clone, Copy, Debug)]
pub(super) struct NewReno {
    pub(super) window: u32,
    pub(super) threshold: u32,
    /// Bytes acknowledged since the window last grew, in congestion avoidance.
    pub(super) counted: u32,
    /// The window that a restart after idleness may begin with.
    pub(super) initial: u32,
}

/// No window grows beyond what a scaled window field can say.
const WINDOW_MAX: u32 = 1 << 30;

impl NewReno {
    /// With an initial window of so many segments.
    pub(super) fn new(segments: u32, mss: u32) -> Self {
        let initial = segments.max(1) * mss;
        Self {
            window: initial,
            threshold: u32::MAX,
            counted: 0,
            initial,
        }
    }

    /// Half of what is in flight, two segments at least (RFC 5681, equation 4).
    fn halved(in_flight: u32, mss: u32) -> u32 {
        (in_flight / 2).max(2 * mss)
    }
}

impl Algorithm for NewReno {
    fn window(&self) -> u32 {
        self.window
    }

    fn threshold(&self) -> u32 {
        self.threshold
    }

    #[inline]
    fn on_acknowledged(&mut self, acknowledged: &Acknowledged) {
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
        self.counted = self.counted.saturating_add(bytes);
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window = self.window.saturating_add(mss).min(WINDOW_MAX);
        }
    }

    fn on_loss(&mut self, in_flight: u32, mss: u32) {
        self.threshold = Self::halved(in_flight, mss);
        self.window = self.threshold;
        self.counted = 0;
    }

    fn on_timeout(&mut self, in_flight: u32, mss: u32, first: bool) {
        if first {
            self.threshold = Self::halved(in_flight, mss);
        }
        self.window = mss;
        self.counted = 0;
    }

    fn on_idle(&mut self, _mss: u32) {
        // RFC 5681 §4.1.
        self.window = self.window.min(self.initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn acknowledge(reno: &mut NewReno, bytes: u32, in_flight: u32) {
        reno.on_acknowledged(&Acknowledged {
            bytes,
            in_flight,
            round_trip: None,
            now: Duration::ZERO,
            mss: MSS,
        });
    }

    #[test]
    fn the_window_doubles_then_grows_by_a_segment_a_round_trip() {
        let mut reno = NewReno::new(10, MSS);
        for _ in 0..10 {
            acknowledge(&mut reno, MSS, 10 * MSS);
        }
        assert_eq!(reno.window(), 20 * MSS);
        reno.on_loss(20 * MSS, MSS);
        assert_eq!((reno.window(), reno.threshold()), (10 * MSS, 10 * MSS));
        for _ in 0..10 {
            acknowledge(&mut reno, MSS, 10 * MSS);
        }
        assert_eq!(reno.window(), 11 * MSS);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(10, MSS);
        for _ in 0..100 {
            acknowledge(&mut reno, MSS, MSS);
        }
        assert_eq!(reno.window(), 10 * MSS);
    }

    #[test]
    fn a_timeout_begins_with_one_segment_and_halves_once() {
        let mut reno = NewReno::new(10, MSS);
        reno.on_timeout(10 * MSS, MSS, true);
        assert_eq!((reno.window(), reno.threshold()), (MSS, 5 * MSS));
        reno.on_timeout(MSS, MSS, false);
        assert_eq!((reno.window(), reno.threshold()), (MSS, 5 * MSS));
    }
}
