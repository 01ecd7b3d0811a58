//! Steps in load: ten times up, ten times down, on the simulated machine.

use super::machine::*;
use crate::control::PolicyKind;

/// Time within which a step must be over, and the remainder that is tolerated.
const SETTLED: u64 = 200;
const SWING: f64 = 0.10;
/// T moves within its two smallest steps where it has no resting point. Below, interrupts
/// starve the application; above, they do not; a policy occasionally tries which it is.
const STEPS: f64 = 16_000.0;

/// `percent` of the capacity, ten times that from 500 ms to 1 s, and back.
fn setup(kind: PolicyKind, taker: Taker, work: (u64, u64), percent: u64, answered: u64) -> Setup {
    let costs = Costs::of(work.0, work.1);
    let low = costs.capacity() * percent / 100;
    Setup {
        kind,
        taker,
        costs,
        channel: 512,
        budget: 3_000,
        quantum: u64::MAX,
        answered,
        load: Load {
            rates: vec![(0, low), (500 * MS, low * 10), (1_000 * MS, low)],
            burst: 1,
        },
    }
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// Peak to peak.
fn spread(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().fold(f64::MIN, f64::max) - values.fold(f64::MAX, f64::min)
}

fn check(setup: &Setup) {
    let outcome = setup.run(1_500);
    let Setup {
        kind,
        taker,
        costs,
        answered,
        ref load,
        ..
    } = *setup;
    let what = format!(
        "{kind}, {taker:?}, {costs:?}, {:?}, {answered} %",
        load.rates
    );
    for (step, &(_, rate)) in (0..).zip(&load.rates) {
        let from = 500 * step;
        let windows = outcome.between(from + SETTLED, from + 500);
        let goodput = windows.iter().map(|window| window.goodput as f64);
        let swing = spread(goodput.clone()) / mean(goodput.clone());
        assert!(swing <= SWING, "goodput swings by {swing:.3}: {what}");
        // Settled where it should: at the load, or at capacity.
        let expected = rate.min(costs.capacity()) as f64;
        let reached = outcome.goodput(from + SETTLED, from + 500) / expected;
        assert!(
            (0.95..1.05).contains(&reached),
            "{reached:.3} at {rate}: {what}"
        );
        let overflowed: u64 = windows.iter().map(|window| window.overflowed).sum();
        assert_eq!(overflowed, 0, "{what}");

        let interval = windows
            .iter()
            .flat_map(|window| [window.intervals.0 as f64, window.intervals.1 as f64]);
        let swing = spread(interval.clone());
        let allowed = (mean(interval) * SWING).max(STEPS);
        assert!(swing <= allowed, "T swings by {swing} ns at {rate}: {what}");
        // RHIP restores the budget by β = 1 per interval, which is the ten of a second's
        // tenth here.
        let budget = windows
            .iter()
            .flat_map(|window| [f64::from(window.budgets.0), f64::from(window.budgets.1)]);
        let swing = spread(budget.clone());
        let allowed = (mean(budget) * SWING).max((500 - SETTLED) as f64 / 10.0);
        assert!(swing <= allowed, "Bp swings by {swing} at {rate}: {what}");
    }
}

const WORK: [(u64, u64); 4] = [(500, 500), (1_000, 3_000), (1_000, 10_000), (500, 30_000)];

fn check_all(taker: Taker) {
    for kind in [PolicyKind::Rhip, PolicyKind::Adaptive] {
        for work in WORK {
            // To half, three quarters, twice and five times the capacity.
            for percent in [5, 7, 20, 50] {
                for answered in [0, 100] {
                    check(&setup(kind, taker, work, percent, answered));
                }
            }
        }
    }
}

#[test]
fn softirq_settles_within_200_ms() {
    check_all(Taker::Softirq);
}

#[test]
fn receiver_settles_within_200_ms() {
    check_all(Taker::Receiver);
}

/// A policy without state settles too, but at next to nothing: the check of the goodput
/// can fail.
#[test]
#[should_panic(expected = "napi")]
fn napi_does_not_reach_the_load() {
    check(&setup(
        PolicyKind::Napi,
        Taker::Softirq,
        (1_000, 3_000),
        20,
        0,
    ));
}
