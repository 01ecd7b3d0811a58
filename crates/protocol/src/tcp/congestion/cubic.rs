//! CUBIC (RFC 9438): the window is a cubic function of the time since the last reduction,
//! and flat where it was reduced. So it hardly depends on the round trip; on short paths
//! it equals NewReno's window.
//!
//! In integers, so that every machine computes the same: bytes, microseconds, and
//! the multiplications of the curve in 128 bits.

use super::WINDOW_MAX;

/// The RFC's C, 0.4 segments per cubed second, converted to cubed microseconds: `C ·
/// 10⁻¹⁸ ≈ CURVE · 2^-CURVE_SHIFT`, to eight digits.
const CURVE: u128 = 15_474_250;
const CURVE_SHIFT: u32 = 85;

/// Cubed microseconds per segment: `10¹⁸ / C`.
const CUBED_MICROSECONDS: u128 = 2_500_000_000_000_000_000;

/// From here on the curve is beyond [`WINDOW_MAX`] with segments of 76 bytes, the
/// smallest. In microseconds, and below 2²⁹, so that nothing overflows.
const DISTANCE_MAX: u64 = (1 << 29) - 1;

/// A longer time counts as this; in milliseconds.
const ELAPSED_MAX: u32 = 1 << 20;

/// An acknowledgment that arrives while the window is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    pub(super) bytes: u32,
    pub(super) mss: u32,
    /// The smoothed round trip, in microseconds.
    pub(super) srtt: u32,
    /// The current time, in milliseconds that wrap.
    pub(super) now: u32,
}

/// CUBIC's state from one reduction to the next. The default is that of a connection
/// without a loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// `W_max`: the plateau of the curve, in bytes.
    pub(super) maximum: u32,
    /// `W_est`: the window that NewReno would have.
    pub(super) estimate: u32,
    /// `K`: from the beginning of the epoch to the plateau of the curve, in microseconds.
    pub(super) until_flat: u32,
    /// `t`: how long the epoch has lasted, without pauses, in milliseconds.
    pub(super) elapsed: u32,
    /// When the last acknowledgment came, in milliseconds that wrap.
    pub(super) last: u32,
    /// Bytes acknowledged since `estimate` last grew.
    pub(super) counted: u32,
    /// `maximum` before the last reduction.
    pub(super) before: u32,
    /// An epoch has begun since the last reduction.
    pub(super) running: bool,
    /// No loss has shown yet where the path is full: `maximum` is only a starting value.
    pub(super) blind: bool,
    /// `running` and `blind` before the last reduction.
    pub(super) before_flags: (bool, bool),
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            maximum: 0,
            estimate: 0,
            until_flat: 0,
            elapsed: 0,
            last: 0,
            counted: 0,
            before: 0,
            running: false,
            blind: true,
            before_flags: (false, true),
        }
    }
}

impl Cubic {
    /// Returns the window after `bytes` were acknowledged in congestion avoidance while
    /// the window was full (RFC 9438 §4.2 to §4.5). `prior` is `cwnd_prior`, the window
    /// before the last reduction.
    #[inline]
    pub(super) fn avoid(&mut self, window: u32, prior: u32, acknowledged: &Full) -> u32 {
        let &Full {
            bytes,
            mss,
            srtt,
            now,
        } = acknowledged;
        if !self.running {
            self.begin(window, mss, now);
        }
        // A gap longer than a round trip is a pause: nothing was in flight, or too
        // little. Data sent after it takes a round trip to be answered.
        let gap = now.wrapping_sub(self.last).min(srtt / 1000 + 1);
        self.last = now;
        self.elapsed = (self.elapsed + gap).min(ELAPSED_MAX);
        self.estimate(window, prior, bytes, mss);
        let elapsed = u64::from(self.elapsed) * 1000;
        let friendly = self.curve(elapsed, mss) < self.estimate;
        if friendly && !self.blind {
            return window.max(self.estimate);
        }
        let limit = (window + window / 2).min(WINDOW_MAX);
        let mut target = self.curve(elapsed + u64::from(srtt), mss);
        if self.blind {
            // The curve has no maximum to start from and would be flat for many round
            // trips of a short path. So it grows by a twentieth per round trip, as Linux
            // has it (its `cnt` of 20).
            target = target.max(window + window / 20);
        }
        let growth = target.min(limit).saturating_sub(window);
        // Round to the nearest: rounded down, many small increments would add up to
        // nothing.
        let window = window.max(1);
        let growth = u64::from(growth) * u64::from(bytes) + u64::from(window / 2);
        let growth = growth / u64::from(window);
        let grown = (u64::from(window) + growth).min(limit.max(window).into()) as u32;
        if friendly {
            grown.max(self.estimate)
        } else {
            grown
        }
    }

    /// Records that the window was not full when an acknowledgment came: the time since
    /// the last one does not count (§4.2, "MUST NOT").
    #[inline]
    pub(super) fn pause(&mut self, now: u32) {
        self.last = now;
    }

    /// Starts congestion avoidance with this window (§4.2).
    #[cold]
    fn begin(&mut self, window: u32, mss: u32, now: u32) {
        self.running = true;
        self.elapsed = 0;
        self.last = now;
        self.counted = 0;
        self.estimate = window;
        if self.maximum <= window {
            self.until_flat = 0;
            self.maximum = window;
        } else {
            let distance = u128::from(self.maximum - window) * CUBED_MICROSECONDS;
            self.until_flat = cube_root(distance / u128::from(mss.max(1)));
        }
    }

    /// `W_cubic(t)` for a time in microseconds (§4.2, figure 1).
    #[inline]
    fn curve(&self, time: u64, mss: u32) -> u32 {
        let flat = u64::from(self.until_flat);
        let distance = time.abs_diff(flat).min(DISTANCE_MAX);
        // 58 bits, 45 and 24: 127.
        let segments = u128::from(distance * u64::from(mss & 0xffff));
        let bytes = u128::from(distance * distance) * segments * CURVE;
        let bytes = (bytes >> CURVE_SHIFT).min(WINDOW_MAX.into()) as u32;
        if time < flat {
            self.maximum.saturating_sub(bytes)
        } else {
            (self.maximum + bytes).min(WINDOW_MAX)
        }
    }

    /// Advances `W_est` (§4.3) in whole segments: α segments for every acknowledged
    /// window, and a whole segment once `W_est` has reached the window of the reduction.
    #[inline]
    fn estimate(&mut self, window: u32, prior: u32, bytes: u32, mss: u32) {
        let needed = if self.estimate < prior {
            // α = 3 · (1 − β) / (1 + β) = 9 / 17.
            (u64::from(window) * 17 / 9) as u32
        } else {
            window
        };
        self.counted += bytes.min(WINDOW_MAX);
        if self.counted >= needed {
            self.counted = (self.counted - needed).min(needed);
            self.estimate = (self.estimate + mss).min(WINDOW_MAX);
        }
    }

    /// The threshold after a loss or a mark: β of the window (§4.6). The window itself
    /// becomes `W_max`, or less of it if it had not regained its earlier value (§4.7,
    /// fast convergence: room for a newcomer).
    pub(super) fn reduced(&mut self, window: u32) -> u32 {
        self.before = self.maximum;
        self.before_flags = (self.running, self.blind);
        self.maximum = if window < self.maximum && !self.blind {
            // (1 + β) / 2 = 17 / 20.
            (u64::from(window) * 17 / 20) as u32
        } else {
            window
        };
        self.blind = false;
        self.running = false;
        (u64::from(window) * 7 / 10) as u32
    }

    /// Clears the state: after a timeout the next epoch begins where slow start ends,
    /// whatever was known (§4.8; Linux `bictcp_reset`).
    pub(super) fn forget(&mut self) {
        self.maximum = 0;
        self.blind = true;
        self.running = false;
    }

    /// Whether the invariants of the arithmetic hold.
    pub(super) fn is_sound(&self) -> bool {
        self.maximum <= WINDOW_MAX
            && self.before <= WINDOW_MAX
            && self.estimate <= WINDOW_MAX
            && self.elapsed <= ELAPSED_MAX
            && self.counted <= 2 * WINDOW_MAX
    }

    /// Undoes the last reduction, whose loss was spurious (§4.9). The epoch that it ended
    /// continues, unless another has begun.
    pub(super) fn undo(&mut self) {
        self.maximum = self.before;
        let (was_running, was_blind) = self.before_flags;
        // The marks of the epoch are still there if no other epoch has begun. Otherwise a
        // new one begins on the same curve.
        self.running = was_running && !self.running;
        self.blind = was_blind;
    }
}

/// The largest integer whose cube is not greater. The argument is at most 2⁸⁴, for a
/// window of the smallest segments.
fn cube_root(cube: u128) -> u32 {
    let mut root = 0u128;
    for bit in (0..29).rev() {
        let next = root | 1 << bit;
        if next * next * next <= cube {
            root = next;
        }
    }
    root as u32
}

#[cfg(test)]
#[path = "cubic_tests.rs"]
mod tests;
