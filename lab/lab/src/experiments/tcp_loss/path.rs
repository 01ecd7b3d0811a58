//! The paths of the experiment, and the work on each.

use crate::bridge::Impair;

/// Bits per second of every path: this machine's bridge forwards this rate without being
/// noticed, and many an uplink has it.
pub(super) const RATE: u64 = 100_000_000;
/// The shallowest queue, bytes: 50 packets, an access switch's share of a port.
const QUEUE_MIN: u32 = 75_000;
/// Bytes of an object.
pub(super) const OBJECT: u64 = 100_000;
/// Objects fetched concurrently: fewer than a path carries.
pub(super) const AT_ONCE: u16 = 8;
/// Most concurrent bulk flows, each on its own path.
const FLOWS_MAX: u16 = 8;
/// Payload of a full segment with timestamps, bits.
const SEGMENT_BITS: f64 = 1448.0 * 8.0;

/// The impairment of a path, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Path {
    /// Round-trip time of an empty path, ms.
    pub(super) round_trip: u32,
    /// Packets lost, %.
    pub(super) loss: f64,
    /// Packets held back by up to a fifth of a round trip, %.
    pub(super) reorder: f64,
}

impl Path {
    pub(super) const fn lossy(round_trip: u32, loss: f64) -> Self {
        Path {
            round_trip,
            loss,
            reorder: 0.0,
        }
    }

    pub(super) const fn reordering(round_trip: u32, reorder: f64) -> Self {
        Path {
            round_trip,
            loss: 0.0,
            reorder,
        }
    }

    /// Returns one direction of it, at `rate`.
    pub(super) fn impair(&self, rate: u64) -> Impair {
        let product = rate / 8 * u64::from(self.round_trip) / 1000;
        Impair {
            rate: Some(rate),
            delay_us: u64::from(self.round_trip) * 1000 / 2,
            loss: self.loss / 100.0,
            reorder: self.reorder / 100.0,
            reorder_us: if self.reorder > 0.0 {
                u64::from(self.round_trip) * 1000 / 5
            } else {
                0
            },
            queue: Some(u32::try_from(product).unwrap_or(u32::MAX).max(QUEUE_MIN)),
            ..Impair::default()
        }
    }

    /// Returns the number of concurrent bulk flows: if loss keeps a flow far below the
    /// rate, many flows yield more data in the same time. Mathis et al. (CCR 1997), eq.
    /// 3, bounds the rate of one.
    pub(super) fn flows(&self) -> u16 {
        if self.loss <= 0.0 {
            return 1;
        }
        let round_trip = f64::from(self.round_trip) / 1e3;
        let reach = SEGMENT_BITS / round_trip * (1.5 / (self.loss / 100.0)).sqrt();
        ((RATE as f64 / reach) as u16).clamp(1, FLOWS_MAX)
    }

    /// Returns how long bulk is counted, ms: many round trips, of which a slow start is a
    /// part.
    pub(super) fn time(&self, quick: bool) -> u64 {
        match (self.round_trip, quick) {
            (0..5, true) => 2_000,
            (0..5, false) => 3_000,
            (5..50, true) => 3_000,
            (5..50, false) => 5_000,
            (_, true) => 5_000,
            (_, false) => 10_000,
        }
    }
}

/// The work on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    /// Bulk from the server under test to a Linux client.
    Sends,
    /// Bulk from a Linux client to the server under test.
    Receives,
    /// This many objects from the server under test, each on a new connection.
    Objects(u16),
}

/// One point of the experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) path: Path,
    pub(super) work: Work,
}

const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 3.0];
const REORDERINGS: [f64; 2] = [1.0, 5.0];

/// Returns all points but those of fairness.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let round_trips: &[u32] = if quick {
        &[1, 10, 100]
    } else {
        &[1, 10, 30, 100]
    };
    let mut cases = Vec::new();
    let mut add = |work, path| cases.push(Case { path, work });
    for &round_trip in round_trips {
        for loss in LOSSES {
            add(Work::Sends, Path::lossy(round_trip, loss));
        }
    }
    for &round_trip in &round_trips[1..] {
        for reorder in REORDERINGS {
            // The longer paths only in the full run.
            if !quick || round_trip == 10 {
                add(Work::Sends, Path::reordering(round_trip, reorder));
            }
        }
    }
    for (round_trip, loss) in [(10, 0.0), (10, 1.0), (100, 1.0)] {
        add(Work::Receives, Path::lossy(round_trip, loss));
    }
    add(Work::Receives, Path::reordering(10, 1.0));
    let objects = |count: u16| Work::Objects(if quick { count } else { count * 2 });
    add(objects(200), Path::lossy(10, 0.0));
    add(objects(600), Path::lossy(10, 1.0));
    add(objects(200), Path::lossy(10, 3.0));
    cases
}

impl Case {
    /// Returns the setting of its curve, without the figure measured of objects.
    pub(super) fn setting(&self) -> String {
        let round_trip = self.path.round_trip;
        let reordering = if self.path.reorder > 0.0 {
            ", packets held back"
        } else {
            ""
        };
        match self.work {
            Work::Sends => format!("sends{reordering}, round trip {round_trip} ms"),
            Work::Receives => format!("receives{reordering}, round trip {round_trip} ms"),
            Work::Objects(_) => format!("objects of 100 KB, round trip {round_trip} ms"),
        }
    }

    /// Returns its position on the horizontal axis.
    pub(super) fn x(&self) -> f64 {
        if self.path.reorder > 0.0 {
            self.path.reorder
        } else {
            self.path.loss
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_every_kind_of_point() {
        let (quick, full) = (cases(true), cases(false));
        assert!(quick.len() < full.len());
        for path in [Path::lossy(1, 3.0), Path::lossy(100, 0.1)] {
            let case = Case {
                path,
                work: Work::Sends,
            };
            assert!(quick.contains(&case) && full.contains(&case));
        }
        assert!(quick.iter().any(|case| case.path.reorder > 0.0));
        assert!(quick.iter().any(|case| case.work == Work::Receives));
    }

    #[test]
    fn lossy_paths_have_more_flows() {
        assert_eq!(Path::lossy(100, 0.0).flows(), 1);
        assert_eq!(Path::lossy(1, 1.0).flows(), 1);
        assert_eq!(Path::lossy(10, 0.1).flows(), 2);
        assert_eq!(Path::lossy(100, 3.0).flows(), 8);
    }

    #[test]
    fn a_round_trip_is_half_a_delay_each_way_and_a_queue_is_one() {
        let impair = Path::lossy(100, 1.0).impair(RATE);
        assert_eq!(impair.delay_us, 50_000);
        assert_eq!(impair.queue, Some(1_250_000));
        assert_eq!((impair.loss, impair.reorder_us), (0.01, 0));
        let impair = Path::reordering(1, 5.0).impair(RATE);
        assert_eq!(impair.queue, Some(QUEUE_MIN));
        assert_eq!((impair.reorder, impair.reorder_us), (0.05, 200));
    }
}
