//! When the packets of an open-loop stream are due. There is no clock inside: times are
//! passed in, as nanoseconds since any fixed moment.
//!
//! Packet *k* is due at start + *k* / rate, computed from the start each time, so that
//! neither rounding nor a late wake-up accumulates. Packets leave in bursts at the due
//! time of their first one.

/// How far the stream may fall behind before packets are skipped, ns: a little over two
/// scheduler ticks at 250 Hz. Catching up more would turn a stolen time slice into one
/// huge burst that the receiver never asked for.
const BEHIND_MAX: u64 = 10_000_000;

/// Converts a time for the schedules; one beyond their range becomes the latest.
pub(crate) fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this many packets, then call again.
    Send(u32),
    /// Nothing is due before this time, ns.
    Wait(u64),
    /// The stream is over.
    Finished,
}

/// The schedule of one stream.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Packets/s; `None` for as fast as possible.
    rate: Option<u64>,
    /// Most packets of one burst, at least 1.
    burst: u32,
    start: u64,
    end: u64,
    /// How far the stream may fall behind, ns.
    behind_max: u64,
    /// Packets of the whole schedule.
    total: u64,
    /// True if a number of packets, not the time, bounds the schedule.
    counted: bool,
    /// Packets handed out or skipped so far.
    position: u64,
    skipped: u64,
}

impl Pacer {
    /// Creates a stream of `rate` packets/s (`None`: as fast as possible) from `start`
    /// until before `end`, ns. It has at most `packets` packets, in bursts of at most
    /// `burst`. A rate or a burst of zero counts as one.
    pub fn new(rate: Option<u64>, burst: u32, start: u64, end: u64, packets: Option<u64>) -> Self {
        let rate = rate.map(|rate| rate.max(1));
        let end = end.max(start);
        let fitting = match rate {
            // Packet k is sent when k / rate < duration, hence the rounding up.
            Some(rate) => (u128::from(end - start) * u128::from(rate))
                .div_ceil(NANOSECONDS)
                .try_into()
                .unwrap_or(u64::MAX),
            None => u64::MAX,
        };
        Pacer {
            counted: packets.is_some_and(|packets| packets < fitting),
            rate,
            burst: burst.max(1),
            start,
            end,
            behind_max: BEHIND_MAX,
            total: packets.unwrap_or(u64::MAX).min(fitting),
            position: 0,
            skipped: 0,
        }
    }

    /// Sets how many nanoseconds the stream may fall behind, instead of 10 ms, before
    /// packets are skipped.
    pub fn behind_at_most(mut self, nanoseconds: u64) -> Self {
        self.behind_max = nanoseconds;
        self
    }

    /// Returns the action at time `now`, ns. A [`Step::Send`] counts as done.
    pub fn step(&mut self, now: u64) -> Step {
        if self.position >= self.total {
            // The gap after the last packet belongs to the stream like every other: 4
            // packets at 10/s are sent in 0.4 s, not in 0.3.
            return match self.counted || now >= self.end {
                true => Step::Finished,
                false => Step::Wait(self.end),
            };
        }
        let Some(rate) = self.rate else {
            if now >= self.end {
                return Step::Finished;
            }
            if now < self.start {
                return Step::Wait(self.start);
            }
            return self.send(u64::MAX);
        };
        let due = self.due_time(self.position, rate);
        if now < due {
            return Step::Wait(due);
        }
        // Packets due just before the end may leave a little after it.
        if now >= self.end.saturating_add(self.behind_max) {
            self.skipped += self.total - self.position;
            self.position = self.total;
            return Step::Finished;
        }
        let due_now = u128::from(now - self.start) * u128::from(rate) / NANOSECONDS + 1;
        let due_now = u64::try_from(due_now).unwrap_or(u64::MAX).min(self.total);
        let behind = due_now.saturating_sub(self.position);
        let allowed = (u128::from(rate) * u128::from(self.behind_max) / NANOSECONDS) as u64;
        let allowed = allowed.max(u64::from(self.burst));
        if behind > allowed {
            self.skipped += behind - allowed;
            self.position += behind - allowed;
        }
        self.send(self.total - self.position)
    }

    /// Skips what was due before `until`, ns, and has not been handed out: another
    /// schedule begins then.
    pub fn give_up_until(&mut self, until: u64) {
        let Some(rate) = self.rate else {
            return;
        };
        let time = u128::from(until.saturating_sub(self.start));
        let due = (time * u128::from(rate)).div_ceil(NANOSECONDS);
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.total);
        self.skipped += due.saturating_sub(self.position);
        self.position = self.position.max(due);
    }

    /// Returns the packets that the schedule has reached: handed out and skipped.
    pub fn offered(&self) -> u64 {
        self.position
    }

    /// Returns the packets skipped because the sender was too far behind.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the packets of the whole schedule; `u64::MAX` if neither a rate nor a
    /// number bounds it.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn send(&mut self, left: u64) -> Step {
        let count = left
            .min(self.total - self.position)
            .min(u64::from(self.burst));
        self.position += count;
        // At most `burst`, a u32.
        Step::Send(count as u32)
    }

    /// Returns when a packet is due, ns, counted from 0; the start without a rate.
    pub fn due(&self, packet: u64) -> u64 {
        self.rate
            .map_or(self.start, |rate| self.due_time(packet, rate))
    }

    fn due_time(&self, packet: u64, rate: u64) -> u64 {
        // Rounded up, so that `due_now` above includes the packet.
        let after = (u128::from(packet) * NANOSECONDS).div_ceil(u128::from(rate));
        self.start
            .saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }
}

const NANOSECONDS: u128 = 1_000_000_000;

/// Returns the default burst for a rate: 100 µs worth, 1…`most`.
pub fn default_burst(rate: Option<u64>, most: u32) -> u32 {
    match rate {
        Some(rate) => u32::try_from(rate / 10_000)
            .unwrap_or(u32::MAX)
            .clamp(1, most.max(1)),
        None => most.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_schedule_takes_over_is_given_up() {
        let mut pacer = Pacer::new(Some(1000), 1, 0, 1_000_000_000, None);
        assert_eq!(pacer.step(0), Step::Send(1));
        // 0.1 s in which the thread did not run.
        pacer.give_up_until(100_000_000);
        assert_eq!((pacer.offered(), pacer.skipped()), (100, 99));
        pacer.give_up_until(50_000_000);
        assert_eq!((pacer.offered(), pacer.skipped()), (100, 99));
    }

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    /// Runs a stream on a virtual clock: each packet costs `cost` ns to send,
    /// each sleep ends `late` ns late. Returns (sent, time of the end).
    fn simulate(pacer: &mut Pacer, start: u64, cost: u64, late: u64) -> (u64, u64) {
        let (mut now, mut sent) = (start, 0);
        loop {
            match pacer.step(now) {
                Step::Send(count) => {
                    sent += u64::from(count);
                    now += u64::from(count) * cost;
                }
                Step::Wait(until) => {
                    assert!(until > now, "a wait must end in the future");
                    now = until + late;
                }
                Step::Finished => return (sent, now),
            }
        }
    }

    #[test]
    fn the_whole_schedule_is_sent_when_the_sender_keeps_up() {
        for rate in [1, 3, 10, 999, 100_000, 700_001, 1_000_000] {
            for burst in [1, 8, 32] {
                let mut pacer = Pacer::new(Some(rate), burst, 7, 7 + 2 * S, None);
                let (sent, end) = simulate(&mut pacer, 7, 500, 60_000);
                assert_eq!(sent, 2 * rate, "{rate}/s in bursts of {burst}");
                assert_eq!(pacer.skipped(), 0);
                assert_eq!(pacer.offered(), pacer.total());
                assert!((2 * S..2 * S + BEHIND_MAX).contains(&end), "{end}");
            }
        }
    }

    #[test]
    fn late_wake_ups_do_not_accumulate() {
        // Every sleep 55 µs late would be 5.5 % at 1,000 bursts/s if each were
        // counted from the end of the last.
        let mut pacer = Pacer::new(Some(1000), 1, 0, S, None);
        let (sent, end) = simulate(&mut pacer, 0, 0, 55_000);
        assert_eq!(sent, 1000);
        assert_eq!(end, S + 55_000);
    }

    #[test]
    fn the_first_packet_of_a_burst_is_never_early() {
        let mut pacer = Pacer::new(Some(300_000), 32, 0, S, None);
        assert_eq!(pacer.step(0), Step::Send(32));
        // Packet 32 is due at 32 / 300,000 s = 106,666.6… ns.
        assert_eq!(pacer.step(0), Step::Wait(106_667));
        assert_eq!(pacer.step(106_666), Step::Wait(106_667));
        assert_eq!(pacer.step(106_667), Step::Send(32));
    }

    #[test]
    fn a_short_delay_is_caught_up_and_a_long_one_given_up() {
        let mut pacer = Pacer::new(Some(1_000_000), 32, 0, 10 * S, None);
        assert_eq!(pacer.step(0), Step::Send(32));
        // 4 ms stolen: all 4,000 packets are still sent.
        assert_eq!(pacer.step(4 * MS), Step::Send(32));
        assert_eq!(pacer.skipped(), 0);
        // 100 ms stolen: all but the last 10 ms are skipped.
        assert_eq!(pacer.step(100 * MS), Step::Send(32));
        assert_eq!(pacer.skipped(), 100_001 - 10_000 - 64);
        assert_eq!(pacer.offered(), 90_001 + 32);
    }

    #[test]
    fn a_sender_that_is_too_slow_sends_what_it_can_and_says_so() {
        // 1 µs per packet against 2 million/s.
        let mut pacer = Pacer::new(Some(2_000_000), 32, 0, S, None);
        let (sent, end) = simulate(&mut pacer, 0, 1000, 0);
        assert_eq!(sent + pacer.skipped(), 2_000_000);
        assert!((1_000_000..=1_020_000).contains(&sent), "{sent}");
        assert!((S..=S + BEHIND_MAX + 32_000).contains(&end), "{end}");
    }

    #[test]
    fn a_number_of_packets_ends_the_stream() {
        let mut pacer = Pacer::new(Some(1000), 4, 0, S, Some(10));
        assert_eq!(simulate(&mut pacer, 0, 0, 0).0, 10);
        let mut pacer = Pacer::new(None, 4, 0, S, Some(10));
        assert_eq!(simulate(&mut pacer, 0, 0, 0), (10, 0));
    }

    #[test]
    fn a_slow_stream_lasts_its_whole_time() {
        let mut pacer = Pacer::new(Some(10), 1, 0, 400 * MS, None);
        assert_eq!(simulate(&mut pacer, 0, 0, 0), (4, 400 * MS));
        let mut pacer = Pacer::new(Some(10), 1, 0, 400 * MS, Some(4));
        assert_eq!(
            simulate(&mut pacer, 0, 0, 0),
            (4, 400 * MS),
            "the same by number"
        );
        let mut pacer = Pacer::new(Some(10), 1, 0, 400 * MS, Some(3));
        assert_eq!(simulate(&mut pacer, 0, 0, 0), (3, 200 * MS));
    }

    #[test]
    fn without_a_rate_the_end_bounds_the_stream() {
        let mut pacer = Pacer::new(None, 32, 5, 5 + MS, None);
        assert_eq!(pacer.step(0), Step::Wait(5));
        let (sent, end) = simulate(&mut pacer, 5, 1000, 0);
        assert_eq!((sent, end), (1024, 5 + 1024 * 1000));
        assert_eq!(pacer.skipped(), 0);
    }

    #[test]
    fn nothing_overflows_at_the_limits() {
        let hour = 3600 * S;
        let mut pacer = Pacer::new(Some(100_000_000), 256, u64::MAX - hour, u64::MAX, None);
        assert_eq!(pacer.total(), 360_000_000_000);
        assert_eq!(pacer.step(u64::MAX - hour), Step::Send(256));
        assert_eq!(pacer.step(u64::MAX - 1), Step::Send(256));
        let mut empty = Pacer::new(Some(0), 0, 10, 5, None);
        assert_eq!(empty.step(10), Step::Finished);
    }

    #[test]
    fn the_default_burst_is_a_tenth_of_a_millisecond() {
        assert_eq!(default_burst(Some(10), 32), 1);
        assert_eq!(default_burst(Some(100_000), 32), 10);
        assert_eq!(default_burst(Some(1_000_000), 32), 32);
        assert_eq!(default_burst(None, 8), 8);
    }
}
