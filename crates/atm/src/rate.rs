//! A constant cell rate enforced by its sender, for whole PDUs. It is the leaky bucket of
//! I.371 and UNI 3.1 §3.6.2.4.1, the generic cell rate algorithm, in its virtual
//! scheduling form.

use std::time::Duration;

use crate::reassembly::Time;

/// The highest rate that fits into a traffic descriptor (Q.2931 §4.5.6): 24 bits.
pub const RATE_MAX: u32 = 0xff_ffff;

/// Decides when each PDU may go, so that its cells keep to a peak rate.
///
/// The cells of one PDU go together; the next PDU goes when they would have ended at the
/// rate. Unused time is not made up for, except within the tolerance.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Cells per second, 1 to [`RATE_MAX`].
    rate: u32,
    tolerance: Duration,
    /// The theoretical arrival time: when the cells so far end at the rate.
    end: Time,
}

impl Bucket {
    /// An empty bucket of a rate in cells per second, clamped to 1 to [`RATE_MAX`]. A PDU
    /// may be early by `tolerance` (the cell delay variation tolerance).
    #[must_use]
    pub fn new(rate: u32, tolerance: Duration) -> Self {
        Self {
            rate: rate.clamp(1, RATE_MAX),
            tolerance,
            end: Time::ZERO,
        }
    }

    /// When the next PDU may go; now, if that is not later.
    #[must_use]
    pub fn next(&self) -> Time {
        self.end.saturating_sub(self.tolerance)
    }

    /// Records that a PDU of `cells` cells goes now, as [`Bucket::next`] permits.
    pub fn take(&mut self, now: Time, cells: usize) {
        let cells = u64::try_from(cells).unwrap_or(u64::MAX);
        // Rounded up, so that the rate holds in the long run.
        let nanoseconds = cells
            .saturating_mul(1_000_000_000)
            .div_ceil(self.rate.into());
        let time = Duration::from_nanos(nanoseconds);
        self.end = self.end.max(now).saturating_add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pdu_waits_for_the_cells_before_it() {
        let mut bucket = Bucket::new(1000, Duration::ZERO);
        let at = Duration::from_millis;
        assert_eq!(bucket.next(), Time::ZERO);
        bucket.take(at(5), 32);
        assert_eq!(bucket.next(), at(37));
        bucket.take(at(37), 1);
        assert_eq!(bucket.next(), at(38));
        // A pause is not made up for.
        bucket.take(at(1000), 10);
        assert_eq!(bucket.next(), at(1010));
        let mut early = Bucket::new(1000, at(4));
        early.take(at(0), 10);
        assert_eq!(early.next(), at(6));
        early.take(at(6), 10);
        assert_eq!(early.next(), at(16));
    }

    #[test]
    fn rates_out_of_range_are_brought_into_it() {
        let mut slowest = Bucket::new(0, Duration::ZERO);
        slowest.take(Time::ZERO, 3);
        assert_eq!(slowest.next(), Duration::from_secs(3));
        let mut fastest = Bucket::new(u32::MAX, Duration::ZERO);
        fastest.take(Time::ZERO, 0xff_ffff);
        assert_eq!(fastest.next(), Duration::from_secs(1));
        fastest.take(Time::MAX, usize::MAX);
        assert_eq!(fastest.next(), Time::MAX);
    }

    proptest! {
        /// A sender sends as soon as it may, whenever it looks. From any PDU on, the
        /// cells before another are bounded by the rate in the time between, plus the
        /// tolerance and that PDU's own cells.
        #[test]
        fn no_time_has_more_cells_than_the_rate(
            rate in 1u32..1_000_000,
            tolerance in 0u64..10_000_000,
            pdus in prop::collection::vec((1usize..1367, 0u64..5_000_000), 1..60),
        ) {
            let tolerance = Duration::from_nanos(tolerance);
            let mut bucket = Bucket::new(rate, tolerance);
            let mut now = Time::ZERO;
            let mut sent: Vec<(Time, usize)> = Vec::new();
            for (cells, late) in pdus {
                now = bucket.next().max(now) + Duration::from_nanos(late);
                bucket.take(now, cells);
                sent.push((now, cells));
            }
            for first in 0..sent.len() {
                let mut before = 0;
                for &(at, cells) in &sent[first..] {
                    let time = (at - sent[first].0 + tolerance).as_secs_f64();
                    prop_assert!(before as f64 <= time * f64::from(rate) + 1e-3);
                    before += cells;
                }
            }
        }
    }
}
