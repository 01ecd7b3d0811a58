//! A thread with a share of a processor, and applications that receive frames, on a
//! virtual clock.

use super::*;

const LOOK: Duration = Duration::from_millis(50);
/// Cost of a dropped frame, s; one that passes costs [`PASSED`] times that.
const COST: f64 = 300e-9;

/// Frames per second that arrive for an application of a domain with a weight.
#[derive(Clone, Copy)]
struct Sent {
    domain: u64,
    weight: u32,
    rate: f64,
}

struct Bed {
    budget: Budget,
    sent: Vec<Sent>,
    /// The thread's share of a processor.
    share: f64,
    rates: Vec<Option<f64>>,
    charged: Vec<Duration>,
    /// Frames per second of the last look that passed, and that the ring lost.
    passed: Vec<f64>,
    lost: Vec<f64>,
}

impl Bed {
    fn new(share: f64, sent: &[(u64, u32, f64)]) -> Self {
        let sent: Vec<Sent> = (sent.iter())
            .map(|&(domain, weight, rate)| Sent {
                domain,
                weight,
                rate,
            })
            .collect();
        let count = sent.len();
        Bed {
            budget: Budget::default(),
            sent,
            share,
            rates: vec![None; count],
            charged: vec![Duration::ZERO; count],
            passed: vec![0.0; count],
            lost: vec![0.0; count],
        }
    }

    /// Makes the thread poll arriving frames, in order, until its share is used up. The
    /// ring loses the same part of each application's frames.
    fn looks(&mut self, count: u32) {
        for _ in 0..count {
            let wanted = |sent: &Sent, rate: &Option<f64>| {
                let passed = rate.map_or(sent.rate, |rate| rate.min(sent.rate));
                (sent.rate + (PASSED - 1) as f64 * passed) * COST
            };
            let both = || self.sent.iter().zip(&self.rates);
            let work: f64 = both().map(|(sent, rate)| wanted(sent, rate)).sum();
            let polled = (self.share / work).min(1.0);
            let seconds = LOOK.as_secs_f64();
            let loads: Vec<Load> = both()
                .zip(0..)
                .map(|((sent, rate), application)| {
                    let frames = sent.rate * polled;
                    let passed = rate.map_or(frames, |rate| rate.min(frames));
                    Load {
                        application,
                        domain: sent.domain,
                        weight: sent.weight,
                        frames: (frames * seconds) as u64,
                        passed: (passed * seconds) as u64,
                        own: Duration::ZERO,
                    }
                })
                .collect();
            let ran = work.min(self.share);
            // Beyond its share it waits for the processor.
            let busy = if work >= self.share { 1.0 } else { ran };
            let shares = self.budget.look(&Look {
                elapsed: LOOK,
                ran: LOOK.mul_f64(ran),
                waited: Duration::ZERO,
                busy: LOOK.mul_f64(busy),
                others: 0,
                loads: &loads,
            });
            let total: Duration = shares.iter().map(|share| share.charged).sum();
            assert!(total.abs_diff(LOOK.mul_f64(ran)) < Duration::from_micros(10));
            for (place, (share, load)) in shares.iter().zip(&loads).enumerate() {
                self.rates[place] = share.rate;
                self.charged[place] += share.charged;
                self.passed[place] = load.passed as f64 / seconds;
                self.lost[place] = self.sent[place].rate * (1.0 - polled);
            }
        }
    }
}

#[test]
fn a_flood_is_bounded_until_the_ring_loses_nothing() {
    // All of it would take 1.8 times the thread's share.
    let mut bed = Bed::new(0.25, &[(1, 1, 500_000.0), (2, 1, 5_000.0)]);
    bed.looks(1);
    assert!(bed.lost[1] > 1_000.0);
    bed.looks(40);
    let mut lost = 0.0;
    for _ in 0..40 {
        bed.looks(1);
        assert_eq!(bed.rates[1], None);
        lost += bed.lost[1] / 40.0;
    }
    assert!(lost < 500.0, "{lost}");
    // 0.25 s/s minus the drops leaves 0.1 for frames that pass.
    assert!(
        (80_000.0..190_000.0).contains(&bed.passed[0]),
        "{:?}",
        bed.passed
    );
    assert!(bed.charged[0] > bed.charged[1] * 20);
}

#[test]
fn two_floods_have_parts_by_their_weights() {
    let mut bed = Bed::new(0.5, &[(1, 1, 400_000.0), (2, 3, 400_000.0)]);
    bed.looks(40);
    let (mut first, mut second) = (0.0, 0.0);
    for _ in 0..80 {
        bed.looks(1);
        let time = |place: usize, bed: &Bed| {
            (bed.sent[place].rate - bed.lost[place] + 2.0 * bed.passed[place]) * COST
        };
        first += time(0, &bed);
        second += time(1, &bed);
    }
    let ratio = second / first;
    assert!((1.8..3.2).contains(&ratio), "{ratio}");
    let mut bed = Bed::new(
        0.5,
        &[(1, 1, 400_000.0), (2, 1, 800_000.0), (3, 1, 1_000.0)],
    );
    bed.looks(60);
    assert!(bed.passed[0] > bed.passed[1], "{:?}", bed.passed);
}

#[test]
fn applications_of_a_domain_share_its_part() {
    let floods = [(1, 1, 300_000.0); 6];
    let mut bed = Bed::new(0.5, &floods);
    bed.sent[5].domain = 2;
    bed.looks(80);
    let [first, second, .., other] = bed.passed[..] else {
        panic!()
    };
    assert!((first / second - 1.0).abs() < 0.05);
    assert!(other > 1.4 * first, "{:?}", bed.passed);
    // A sibling that asks for little gets it.
    let asked = [(1, 1, 600_000.0), (1, 1, 1_000.0), (2, 1, 1_000.0)];
    let mut bed = Bed::new(0.25, &asked);
    bed.looks(80);
    assert_eq!(bed.rates[1], None);
    assert!(bed.rates[0].is_some());
}

#[test]
fn a_bound_ends_with_the_flood() {
    let mut bed = Bed::new(0.25, &[(1, 1, 500_000.0), (2, 1, 5_000.0)]);
    bed.looks(40);
    assert!(bed.rates[0].is_some());
    bed.sent[0].rate = 20_000.0;
    bed.looks(2);
    assert_eq!(bed.rates[0], None);
    bed.sent[0].rate = 0.0;
    bed.sent[1].rate = 0.0;
    bed.looks(1);
    assert_eq!(bed.budget.level, None);
}

#[test]
fn drops_that_keep_the_thread_busy_alone_bind_no_neighbour() {
    let mut bed = Bed::new(0.25, &[(1, 1, 3_000_000.0), (2, 1, 20_000.0)]);
    bed.looks(200);
    assert_eq!(bed.rates[1], None);
    assert!(bed.passed[0] > 5_000.0, "{:?}", bed.passed);
}

#[test]
fn nothing_is_bound_while_the_thread_sleeps() {
    let mut bed = Bed::new(0.9, &[(1, 1, 500_000.0), (2, 1, 100_000.0)]);
    bed.looks(50);
    assert_eq!(bed.rates, [None, None]);
}

/// The scheduler's division of a processor: the share of each of these tasks, given its
/// demand.
fn divided(wanted: &[f64]) -> Vec<f64> {
    let mut got = vec![0.0; wanted.len()];
    for _ in 0..64 {
        let left = 1.0 - got.iter().sum::<f64>();
        let hungry: Vec<usize> = (0..wanted.len())
            .filter(|&it| got[it] < wanted[it])
            .collect();
        for &task in &hungry {
            got[task] = (got[task] + left / hungry.len() as f64).min(wanted[task]);
        }
    }
    got
}

/// Three domains on the thread's processor: one receives a flood, the others have closed
/// loops that take all that they can get. Another program computes beside them, if
/// `beside`. Returns each loop's share, and the first domain's use.
fn loops_beside_flood(rate: f64, beside: bool, bounded: bool) -> [f64; 2] {
    /// Time of the process per frame, and per round trip.
    const OWN: [f64; 2] = [600e-9, 8e-6];
    let mut budget = Budget::default();
    let (mut bound, mut trips) = (None, 10_000.0);
    let mut last = [0.0; 2];
    for look in 0..200 {
        let passed = bound.map_or(rate, |bound: f64| bound.min(rate));
        let thread = (rate + 2.0 * passed) * COST + 6.0 * trips * COST;
        let beside = f64::from(u8::from(beside));
        let wanted = [thread, passed * OWN[0], 1.0, 1.0, beside];
        let got = divided(&wanted);
        let polled = got[0] / thread;
        trips = (got[2] / OWN[1]).min(trips * 2.0) * polled;
        let seconds = LOOK.as_secs_f64();
        let load = |domain, frames: f64, passed: f64, own: f64| Load {
            application: domain as u16,
            domain,
            weight: 1,
            frames: (frames * seconds) as u64,
            passed: (passed * seconds) as u64,
            own: LOOK.mul_f64(own),
        };
        let loads = [
            load(0, rate * polled, passed.min(rate * polled), got[1]),
            load(1, trips, trips, got[2]),
            load(2, trips, trips, got[3]),
        ];
        let shares = budget.look(&Look {
            elapsed: LOOK,
            ran: LOOK.mul_f64(got[0]),
            // All want the processor: the thread waits for its turn.
            waited: LOOK.mul_f64((1.0 - got[0]) / 2.0),
            busy: LOOK.mul_f64(if polled < 1.0 { 1.0 } else { 0.9 }),
            others: 0,
            loads: &loads,
        });
        if bounded {
            assert_eq!((shares[1].rate, shares[2].rate), (None, None));
            bound = shares[0].rate;
        }
        if look >= 100 {
            last[0] += got[2] / 100.0;
            last[1] += (shares[0].charged.as_secs_f64() / seconds + got[1]) / 100.0;
        }
    }
    last
}

#[test]
fn the_threads_work_for_a_flood_comes_off_the_flooded_domains_part() {
    let [before, flooded] = loops_beside_flood(500_000.0, false, false);
    assert!(before < 0.26 && flooded > 0.45, "{before} {flooded}");
    let [after, flooded] = loops_beside_flood(500_000.0, false, true);
    assert!(after > 0.28, "{after}");
    assert!((0.25..0.42).contains(&flooded), "{flooded}");
}

#[test]
fn a_domain_with_less_than_its_part_is_not_bound_for_another_programs_sake() {
    let [_, free] = loops_beside_flood(100_000.0, true, false);
    let [_, bounded] = loops_beside_flood(100_000.0, true, true);
    assert!((free - bounded).abs() < 0.01, "{free} {bounded}");
}

#[test]
fn a_flooded_domain_without_a_neighbour_has_all() {
    let mut bed = Bed::new(0.25, &[(1, 1, 500_000.0), (2, 1, 0.0)]);
    bed.looks(50);
    assert_eq!(bed.rates, [None, None]);
    bed.sent[1].rate = 1_000.0;
    bed.looks(50);
    assert!(bed.rates[0].is_some());
    bed.sent[1].rate = 0.0;
    bed.looks(1);
    assert_eq!(bed.rates, [None, None]);
}
