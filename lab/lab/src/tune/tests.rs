use super::*;
use crate::testbed::RealTime;

/// Returns a sample that the costs would give.
fn sample(budget: u32, machine: &Machine, for_interrupts: bool) -> Sample {
    let [protocol, application, to_application, to_poller, interrupt] = [
        machine.protocol,
        machine.application,
        machine.switch_application,
        machine.switch_poller,
        machine.interrupt,
    ]
    .map(|time| time.as_nanos() as f64);
    let rounds = 1_000.0;
    let taken = if for_interrupts {
        1.0
    } else {
        f64::from(budget)
    };
    let each = if for_interrupts { interrupt } else { to_poller };
    Sample {
        budget,
        interval_us: 0,
        offered: if for_interrupts { 500_000.0 } else { 1.4e6 },
        burst: 32,
        goodput: 4e5 + f64::from(budget),
        idle: Some(0.0),
        frames: taken * rounds,
        delivered: taken * rounds,
        overflowed: 0.0,
        rounds,
        interrupts: if for_interrupts { rounds } else { 0.0 },
        for_interrupts,
        switches: 2.0 * rounds,
        poller_ns: rounds * (each + taken * protocol),
        application_ns: rounds * (to_application + taken * application),
    }
}

fn machine() -> Machine {
    Machine {
        protocol: Duration::from_nanos(450),
        application: Duration::from_nanos(700),
        switch_application: Duration::from_nanos(1_200),
        switch_poller: Duration::from_nanos(2_300),
        interrupt: Duration::from_nanos(5_100),
        application_quantum: SLICE,
    }
}

#[test]
fn costs_are_found_in_the_samples_they_explain() {
    let machine = machine();
    let mut samples: Vec<Sample> = CALIBRATION
        .iter()
        .map(|&budget| sample(budget, &machine, false))
        .collect();
    samples.push(sample(128, &machine, true));
    let found = costs(&samples, SLICE).unwrap();
    for (found, made) in [
        (found.protocol, machine.protocol),
        (found.application, machine.application),
        (found.switch_application, machine.switch_application),
        (found.switch_poller, machine.switch_poller),
        (found.interrupt, machine.interrupt),
    ] {
        assert!(found.abs_diff(made) <= Duration::from_nanos(1), "{found:?}");
    }
}

#[test]
fn samples_without_packets_are_no_costs() {
    let machine = machine();
    let empty = Sample {
        rounds: 0.0,
        ..sample(8, &machine, false)
    };
    assert!(costs(&[empty], SLICE).is_err());
    let flood = [sample(8, &machine, false), sample(64, &machine, false)];
    let error = costs(&flood, SLICE).unwrap_err().to_string();
    assert!(error.contains("interrupt"), "{error}");
}

#[test]
fn the_best_of_equals_is_the_most_idle() {
    let machine = machine();
    let [mut a, mut b, c] = [64, 128, 512].map(|budget| sample(budget, &machine, false));
    (a.goodput, a.idle) = (1_000.0, Some(0.3));
    (b.goodput, b.idle) = (1_005.0, Some(0.2));
    let c = Sample {
        goodput: 500.0,
        ..c
    };
    assert_eq!(best(&[a, b, c]).unwrap().budget, 64);
    assert_eq!(best(&[]), None);
}

#[test]
fn only_samples_at_the_rate_asked_for_are_compared() {
    let machine = machine();
    let (flood, sparse) = (sample(64, &machine, false), sample(64, &machine, true));
    assert!(is_wanted(&flood, None) && !is_wanted(&sparse, None));
    assert!(!is_wanted(&flood, Some(500_000)) && is_wanted(&flood, Some(1_350_000)));
}

#[test]
fn options_are_checked() {
    let good = Options::default();
    assert_eq!(good.check(), Ok(()));
    for (bad, says) in [
        (
            Options {
                work: WORK_MAX + 1,
                ..good
            },
            "multiplications",
        ),
        (
            Options {
                payload: 1473,
                ..good
            },
            "payload",
        ),
        (
            Options {
                rate: Some(0),
                ..good
            },
            "rate",
        ),
        (
            Options {
                rate: Some(u64::MAX),
                ..good
            },
            "rate",
        ),
        (Options { seconds: 2, ..good }, "3 to 60"),
        (
            Options {
                seconds: 61,
                ..good
            },
            "3 to 60",
        ),
    ] {
        let text = bad.check().unwrap_err().to_string();
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn every_point_is_within_the_stack_s_ranges() {
    for rate in [None, Some(300_000)] {
        for point in points(rate) {
            assert!((2..=BUDGET_MAX).contains(&point.setting.budget));
            assert!(point.setting.interrupt_interval <= INTERVAL_MAX);
        }
    }
}

#[test]
fn more_seconds_are_more_effort() {
    let total = |seconds| {
        let effort = Effort::of(seconds, true);
        assert!(effort.window + WARM_UP <= RealTime::LOAD_MAX, "{effort:?}");
        assert!(effort.runs % 2 == 1);
        effort.window * effort.runs
    };
    assert!(total(60) > total(30) && total(30) > total(10) && total(10) > total(3));
}
