//! NewReno (RFC 5681, with the byte counting of RFC 3465).

use super::WINDOW_MAX;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew, in congestion avoidance.
    pub(super) counted: u32,
}

impl NewReno {
    /// The window after `bytes` were acknowledged in congestion avoidance: one segment
    /// more per acknowledged window.
    #[inline]
    pub(super) fn avoid(&mut self, window: u32, bytes: u32, mss: u32) -> u32 {
        self.counted = self.counted.saturating_add(bytes);
        if self.counted < window {
            return window;
        }
        self.counted -= window;
        window.saturating_add(mss).min(WINDOW_MAX)
    }

    /// The threshold after a loss: half of the window. RFC 5681's equation 4 halves the
    /// bytes in flight, which are next to nothing near the end of a response. A window
    /// that is not used does not grow, so it is as good a measure (as Linux, and as RFC
    /// 9438 §4.6 allows).
    pub(super) fn reduced(&mut self, window: u32) -> u32 {
        self.counted = 0;
        window / 2
    }
}
