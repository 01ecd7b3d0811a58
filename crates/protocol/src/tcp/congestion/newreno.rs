//! NewReno (RFC 5681, with RFC 3465's counting of bytes).

use super::WINDOW_MAX;

/// What NewReno remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct NewReno {
    /// Bytes acknowledged since the window last grew, in congestion avoidance.
    pub(in super::super) counted: u32,
}

impl NewReno {
    /// The window after `bytes` were acknowledged in congestion avoidance: a
    /// segment more for every window acknowledged.
    #[inline]
    pub(super) fn avoid(&mut self, window: u32, bytes: u32, mss: u32) -> u32 {
        self.counted = self.counted.saturating_add(bytes);
        if self.counted < window {
            return window;
        }
        self.counted -= window;
        window.saturating_add(mss).min(WINDOW_MAX)
    }

    /// The threshold after a loss: half of what is in flight, two segments at
    /// least (RFC 5681, equation 4).
    pub(super) fn reduced(&mut self, in_flight: u32, mss: u32) -> u32 {
        self.counted = 0;
        (in_flight / 2).max(2 * mss)
    }
}
