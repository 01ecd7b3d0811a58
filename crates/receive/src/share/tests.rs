//! Waits and delivered frames on virtual time.

use super::*;

/// Cost of a poll, and of each frame that is taken or delivered, ns.
const POLL: u64 = 1_000;
const FRAME: u64 = 400;
/// Frames that the flooded channel holds.
const HOLDS: u32 = 512;

/// A stack under a flood, and a neighbour that asks after pauses.
#[derive(Default)]
struct Bed {
    share: Share,
    now: u64,
    due: u64,
    /// Frames that wait in the flooded channel, and those delivered.
    waits: u32,
    delivered: u64,
    /// Time of the neighbour's next frame.
    asks: u64,
    longest: u64,
}

impl Bed {
    /// Checks the other queues, and polls the reserved one if there is room.
    fn round(&mut self, pause: u64) {
        let began = self.now;
        self.now += POLL;
        let found = self.asks <= began;
        if found {
            self.longest = self.longest.max(began - self.asks);
            self.asks = self.now + pause;
        }
        self.share = self.share.looked(found);
        self.due = self.share.due(began, began + POLL);
        let budget = self.share.budget(HOLDS);
        if self.waits < budget {
            self.now += POLL + FRAME * u64::from(budget);
            self.waits += budget;
        }
    }

    fn run(&mut self, pause: u64, time: u64) {
        let end = self.now + time;
        while self.now < end {
            if self.now >= self.due || self.waits == 0 {
                self.round(pause);
            }
            let some = self.waits.min(4);
            self.waits -= some;
            self.delivered += u64::from(some);
            self.now += FRAME * u64::from(some);
        }
    }
}

/// The longest wait with a factor: a poll of the reserved queue, and until the others are
/// due, or one more delivery has ended.
fn wait(factor: u64) -> u64 {
    let budget = u64::from(POLL_MAX / MOST) * factor;
    POLL + FRAME * budget + POLL * DELIVERS * factor + 4 * FRAME
}

#[test]
fn a_silent_neighbour_costs_the_flooded_little() {
    let (mut silent, mut asking) = (Bed::default(), Bed::default());
    silent.asks = u64::MAX;
    silent.run(0, 100_000_000);
    asking.run(20_000, 100_000_000);
    // Polls aside, each frame is taken and delivered.
    let most = 100_000_000 / (2 * FRAME);
    assert!(
        silent.delivered >= most * 95 / 100,
        "{} of {most}",
        silent.delivered
    );
    assert!(asking.delivered < silent.delivered);
}

#[test]
fn a_neighbour_that_asks_often_waits_for_small_polls_only() {
    let mut bed = Bed::default();
    bed.run(20_000, 100_000_000);
    assert!(bed.longest <= wait(1), "{}", bed.longest);
}

#[test]
fn no_pause_makes_a_neighbour_wait_longer_than_the_bound() {
    for pause in (0..40).map(|step| step * 100_000) {
        let mut bed = Bed::default();
        bed.run(pause, 200_000_000);
        assert!(bed.longest <= wait(MOST.into()), "{pause}: {}", bed.longest);
        // Nor longer than a part of the pause.
        let grown = bed.longest.saturating_sub(wait(1));
        assert!(grown <= pause / 4, "{pause}: {}", bed.longest);
    }
}

#[test]
fn one_frame_takes_all_growth_back() {
    let grown = (0..1_000).fold(Share::default(), |share, _| share.looked(false));
    assert_eq!(grown.budget(HOLDS), POLL_MAX);
    assert_eq!(grown.due(0, 10), 10 + 10 * DELIVERS * u64::from(MOST));
    let back = grown.looked(true);
    assert_eq!(
        (back.budget(HOLDS), back.due(0, 10)),
        (POLL_MAX / MOST, 10 + 10 * DELIVERS)
    );
    assert_eq!(Share(u32::MAX).looked(false).budget(HOLDS), POLL_MAX);
}

#[test]
fn a_poll_takes_half_of_a_small_channel() {
    assert_eq!(Share(u32::MAX).budget(100), 50);
    assert_eq!(Share(u32::MAX).budget(1), 1);
}
