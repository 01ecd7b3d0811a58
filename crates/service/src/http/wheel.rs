//! Deadlines of very many connections, coarse and nearly free.
//!
//! A connection's deadline moves with every request, nearly always further
//! away. So it is written down in the wheel once, and compared only when its
//! place comes round: a request costs no timer operation.

use std::time::Duration;

/// Resolution: nothing expires early, and at most this much late.
pub const TICK: Duration = Duration::from_millis(500);
/// Ticks until the wheel comes round; a later deadline is looked at once a
/// round.
const SLOTS: u64 = 512;

/// Keys by the tick at which to look at them.
#[derive(Debug)]
pub struct Wheel {
    slots: Vec<Vec<(u64, u64)>>,
    /// First tick that has not been looked at.
    next: u64,
}

impl Wheel {
    /// A wheel that begins at `now`.
    pub fn new(now: Duration) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(SLOTS as usize, Vec::new);
        Wheel {
            slots,
            next: tick(now),
        }
    }

    /// Enters `key` to be looked at from `deadline` on, or earlier if that is
    /// far away. Returns the tick; entries are not taken out, so whoever enters
    /// a key again remembers the last one and ignores the others.
    pub fn enter(&mut self, key: u64, deadline: Duration) -> u64 {
        let due = Self::due(deadline).clamp(self.next, self.next + SLOTS - 1);
        if let Some(slot) = self.slots.get_mut((due % SLOTS) as usize) {
            slot.push((key, due));
        }
        due
    }

    /// The tick at which a deadline will be looked at.
    pub fn due(deadline: Duration) -> u64 {
        tick(deadline) + 1
    }

    /// Takes the keys that are to be looked at by `now`, with their ticks.
    pub fn take(&mut self, now: Duration, taken: &mut Vec<(u64, u64)>) {
        let now = tick(now);
        // A wheel that stood still need not turn more than once.
        let end = now.min(self.next + SLOTS - 1);
        while self.next <= end {
            if let Some(slot) = self.slots.get_mut((self.next % SLOTS) as usize) {
                taken.append(slot);
            }
            self.next += 1;
        }
        self.next = self.next.max(now + 1);
    }
}

fn tick(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(wheel: &mut Wheel, now: Duration) -> Vec<u64> {
        let mut taken = Vec::new();
        wheel.take(now, &mut taken);
        taken.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn nothing_is_early_and_nothing_is_lost() {
        let start = Duration::from_millis(1234);
        let mut wheel = Wheel::new(start);
        let mut waiting = Vec::new();
        for key in 0..1000 {
            let deadline = start + Duration::from_millis(key * 97);
            wheel.enter(key, deadline);
            waiting.push(deadline);
        }
        let mut seen = vec![false; 1000];
        for step in 0..400 {
            let now = start + Duration::from_millis(step * 250);
            for key in taken(&mut wheel, now) {
                let deadline = waiting[key as usize];
                assert!(now >= deadline, "{key} is early");
                assert!(now < deadline + 2 * TICK, "{key} is late");
                assert!(!std::mem::replace(&mut seen[key as usize], true));
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn the_far_future_is_looked_at_once_a_round() {
        let mut wheel = Wheel::new(Duration::ZERO);
        let due = wheel.enter(7, Duration::from_secs(100_000));
        assert_eq!(due, SLOTS - 1);
        assert!(taken(&mut wheel, TICK * 510).is_empty());
        assert_eq!(taken(&mut wheel, TICK * 511), [7]);
    }

    #[test]
    fn a_wheel_that_stood_still_catches_up() {
        let mut wheel = Wheel::new(Duration::ZERO);
        wheel.enter(1, Duration::from_secs(1));
        wheel.enter(2, Duration::from_secs(200));
        let mut both = taken(&mut wheel, Duration::from_secs(1_000_000));
        both.sort_unstable();
        assert_eq!(both, [1, 2]);
        wheel.enter(3, Duration::ZERO);
        assert!(taken(&mut wheel, Duration::from_secs(1_000_000)).is_empty());
        assert_eq!(taken(&mut wheel, Duration::from_secs(1_000_001)), [3]);
    }
}
