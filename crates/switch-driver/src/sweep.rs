//! When ended connections return their entries in the driver program's table.

use std::time::Duration;

use tidewall_protocol::tcp::Time;

/// Interval between sweeps.
const EVERY: Duration = Duration::from_secs(10);
/// Number of ended connections that triggers an earlier sweep.
const ENDED: usize = 4096;

/// Remembers the last sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    last: Time,
}

impl Sweep {
    /// Returns true when a sweep is due: `admitted` connections have entries, and the
    /// switch knows `known`.
    pub(super) fn is_due(&mut self, now: Time, admitted: usize, known: usize) -> bool {
        let is_due = now >= self.last + EVERY || admitted.saturating_sub(known) > ENDED;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that end one per second, checked ten times per second.
    #[test]
    fn ended_connections_are_swept_every_ten_seconds() {
        let (mut sweep, mut admitted, mut swept) = (Sweep::default(), 0, Vec::new());
        for tenth in 1..=350 {
            let now = Duration::from_millis(100 * tenth);
            admitted += usize::from(tenth % 10 == 0);
            if sweep.is_due(now, admitted, 0) {
                swept.push((now.as_secs(), admitted));
                admitted = 0;
            }
        }
        assert_eq!(swept, [(10, 10), (20, 10), (30, 10)]);
    }

    #[test]
    fn many_at_once_are_swept_before() {
        let mut sweep = Sweep::default();
        let at = |millis| Duration::from_millis(millis);
        assert!(!sweep.is_due(at(1), 100 + ENDED, 100));
        assert!(sweep.is_due(at(2), 101 + ENDED, 100));
        assert!(!sweep.is_due(at(10_001), 100, 100), "10 s from then on");
        assert!(sweep.is_due(at(10_002), 100, 100));
        // The switch knows connections that have not been admitted yet.
        assert!(!sweep.is_due(at(10_003), 0, ENDED + 1));
    }
}
