//! A constant cell rate kept by its sender: the leaky bucket of I.371 and UNI 3.1 §3.6.2.4.1,
//! the generic cell rate algorithm, in its form of virtual scheduling, of whole PDUs.

use std::time::Duration;

use crate::reassembly::Time;

/// The highest rate that a traffic descriptor has a place for (Q.2931 §4.5.6): 24 bits.
pub const RATE_MAX: u32 = 0xff_ffff;

/// Says when each PDU may go, so that its cells keep to a peak rate.
///
/// The cells of one PDU go together; the next PDU goes when they would have ended at the
/// rate. Time in which nothing was sent is not made up for, but for what the tolerance
/// allows.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Cells a second, 1 to [`RATE_MAX`].
    rate: u32,
    tolerance: Duration,
    /// The theoretical arrival time: when the cells so far have ended at the rate.
    end: Time,
}

impl Bucket {
    /// An empty bucket of a rate in cells a second, brought into 1 to [`RATE_MAX`]. A PDU may
    /// be early by `tolerance` (the cell delay variation tolerance).
    #[must_use]
    pub fn new(rate: u32, tolerance: Duration) -> Self {
        Self {
            rate: rate.clamp(1, RATE_MAX),
            tolerance,
            end: Time::ZERO,
        }
    }

    /// When the next PDU may go; it may now if that is not later.
    #[must_use]
    pub fn next(&self) -> Time {
        self.end.saturating_sub(self.tolerance)
    }

    /// A PDU of so many cells goes now, which [`Bucket::next`] allows.
    pub fn take(&mut self, now: Time, cells: usize) {
        let cells = u64::try_from(cells).unwrap_or(u64::MAX);
        // Rounded up, so that the rate is kept in the long run.
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
        /// Whoever sends as soon as may be, at whatever times it looks: from any PDU on, the
        /// cells before another are no more than the rate has in the time between, and the
        /// tolerance and that PDU's own.
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
