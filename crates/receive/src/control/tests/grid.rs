//! Steady loads: goodput and overflow over a grid of (λ, Tp, Ta).

use std::fmt;

use super::machine::*;
use crate::control::PolicyKind;

/// (Tp, Ta), nanoseconds: equal ones, a heavier protocol, heavier and heavier
/// applications.
const WORK: [(u64, u64); 5] = [
    (500, 500),
    (1_000, 3_000),
    (2_000, 1_000),
    (1_000, 10_000),
    (500, 30_000),
];
/// Load, percent of a machine's capacity without overhead.
const LOADS: [u64; 4] = [50, 90, 120, 400];

/// The parameters other than the work and the load.
#[derive(Clone, Copy)]
struct Variant {
    taker: Taker,
    channel: u32,
    quantum: u64,
    answered: u64,
    burst: u64,
}

const SOFTIRQ: Variant = Variant {
    taker: Taker::Softirq,
    channel: 512,
    quantum: u64::MAX,
    answered: 0,
    burst: 1,
};
const RECEIVER: Variant = Variant {
    taker: Taker::Receiver,
    ..SOFTIRQ
};

/// One point of the grid.
struct Point {
    variant: Variant,
    work: (u64, u64),
    load: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Variant {
            taker,
            channel,
            answered,
            burst,
            ..
        } = self.variant;
        write!(
            f,
            "{taker:?}, channel {channel}, {answered} % answered, bursts of {burst}, \
             (Tp, Ta) {:?} ns, load {} %",
            self.work, self.load
        )
    }
}

impl Point {
    fn run(&self, kind: PolicyKind, ms: u64) -> Outcome {
        let costs = Costs::of(self.work.0, self.work.1);
        Setup {
            kind,
            taker: self.variant.taker,
            costs,
            channel: self.variant.channel,
            budget: 3_000,
            quantum: self.variant.quantum,
            answered: self.variant.answered,
            load: Load {
                burst: self.variant.burst,
                ..Load::steady(costs.capacity() * self.load / 100)
            },
        }
        .run(ms)
    }
}

fn points(variant: Variant) -> impl Iterator<Item = Point> {
    WORK.into_iter().flat_map(move |work| {
        LOADS.into_iter().map(move |load| Point {
            variant,
            work,
            load,
        })
    })
}

/// The bounds: rhip ≥ 0.97 of the best of the paper's others, adaptive ≥ 0.98 of the best
/// of all; no overflow in steady state.
fn check(variant: Variant) {
    for point in points(variant) {
        let mut best = 0.0f64;
        let mut of = |kind| {
            let outcome = point.run(kind, 1_000);
            let goodput = outcome.goodput(500, 1_000);
            let overflowed = outcome.overflowed(500);
            let share = goodput / best;
            if kind == PolicyKind::Rhip || kind == PolicyKind::Adaptive {
                assert_eq!(overflowed, 0, "{kind} overflows at {point}");
            }
            best = best.max(goodput);
            share
        };
        for kind in [
            PolicyKind::Napi,
            PolicyKind::OnOff,
            PolicyKind::Aic,
            PolicyKind::QaPolling,
        ] {
            of(kind);
        }
        let rhip = of(PolicyKind::Rhip);
        assert!(rhip >= 0.97, "rhip has {rhip:.3} of the best at {point}");
        of(PolicyKind::Interrupt);
        let adaptive = of(PolicyKind::Adaptive);
        assert!(
            adaptive >= 0.98,
            "adaptive has {adaptive:.3} of the best at {point}"
        );
    }
}

#[test]
fn softirq() {
    check(SOFTIRQ);
}

#[test]
fn softirq_that_shares_with_the_application() {
    check(Variant {
        channel: 1_024,
        quantum: 3 * MS,
        ..SOFTIRQ
    });
}

#[test]
fn softirq_that_answers_every_frame() {
    check(Variant {
        answered: 100,
        ..SOFTIRQ
    });
}

#[test]
fn softirq_that_answers_some_frames() {
    check(Variant {
        answered: 10,
        ..SOFTIRQ
    });
}

#[test]
fn softirq_with_bursts() {
    check(Variant {
        burst: 256,
        ..SOFTIRQ
    });
}

#[test]
fn receiver_that_polls_for_itself() {
    check(RECEIVER);
    check(Variant {
        answered: 100,
        burst: 32,
        ..RECEIVER
    });
}

/// The largest budget overflows: the bounds above can fail.
#[test]
fn napi_overflows_under_overload() {
    for point in points(SOFTIRQ).filter(|point| point.load > 100) {
        let overflowed = point.run(PolicyKind::Napi, 1_000).overflowed(500);
        assert!(overflowed > 0, "at {point}");
    }
    let receiver = points(RECEIVER)
        .filter(|point| point.run(PolicyKind::Napi, 1_000).overflowed(500) > 0)
        .count();
    assert!(receiver > 0);
}

/// Livelock, and the paper's statement on each. A light application starves under
/// interrupts. Coalescing alone does not cure load beyond capacity (proposition 8), and a
/// budget alone does not help a system that never leaves mode 3 (proposition 7).
#[test]
fn each_of_the_others_fails_somewhere() {
    let worst = |kind: PolicyKind| {
        points(SOFTIRQ)
            .map(|point| {
                let rhip = point.run(PolicyKind::Rhip, 1_000).goodput(500, 1_000);
                point.run(kind, 1_000).goodput(500, 1_000) / rhip
            })
            .fold(f64::INFINITY, f64::min)
    };
    assert!(worst(PolicyKind::Interrupt) < 0.1);
    assert!(worst(PolicyKind::Napi) < 0.1);
    assert!(worst(PolicyKind::Aic) < 0.5);
    assert!(worst(PolicyKind::QaPolling) < 0.5);
}

/// At half the capacity nothing is lost whatever the policy; the difference is in the CPU
/// time left over.
#[test]
fn adaptive_leaves_most_of_the_cpu_at_half_the_load() {
    for variant in [SOFTIRQ, RECEIVER] {
        for point in points(variant).filter(|point| point.load == 50) {
            let idle = PolicyKind::ALL.map(|kind| point.run(kind, 1_000).idle(500, 1_000));
            let adaptive = idle[PolicyKind::ALL.len() - 1];
            for (kind, idle) in PolicyKind::ALL.into_iter().zip(idle) {
                assert!(
                    adaptive >= idle - 0.001,
                    "{kind} leaves {idle:.3}, adaptive {adaptive:.3} at {point}"
                );
            }
        }
    }
}

/// The machine itself: with nothing lost and nothing coalesced, the account of
/// a CPU second must come to one.
#[test]
fn machine_accounts_for_every_nanosecond() {
    let point = Point {
        variant: SOFTIRQ,
        work: (1_000, 3_000),
        load: 50,
    };
    let outcome = point.run(PolicyKind::Napi, 1_000);
    let costs = Costs::of(1_000, 3_000);
    let windows = outcome.between(500, 1_000);
    let frames: u64 = windows.iter().map(|window| window.goodput).sum();
    let interrupts: u64 = windows.iter().map(|window| window.interrupts).sum();
    let missed: u64 = windows.iter().map(|window| window.missed).sum();
    assert_eq!((frames, missed), (62_500, 0));
    assert_eq!(
        interrupts, frames,
        "one a frame: 8 µs apart, 5.8 µs of work"
    );
    let busy = frames * (costs.protocol + costs.application)
        + interrupts * (costs.interrupt + costs.round);
    let accounted = busy as f64 / (500 * MS) as f64 + outcome.idle(500, 1_000);
    assert!((accounted - 1.0).abs() < 0.001, "{accounted}");
}
