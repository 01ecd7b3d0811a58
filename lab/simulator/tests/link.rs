//! The impairment model, by example and by property.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_simulator::link::{
    Counters, Ecn, Impairment, Link, Loss, Pause, Queue, Reorder, Thin,
};

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// Sends packets (time, length) numbered from zero. Returns those that arrive, and when.
fn outcome(
    impairment: Impairment,
    seed: u64,
    packets: &[(Duration, u32)],
) -> (Vec<(Duration, usize, bool)>, Counters) {
    let mut link = Link::new(impairment, seed);
    let mut arrived = Vec::new();
    let mut drain = |link: &mut Link<usize>, until: Duration| {
        while let Some(at) = link.next_arrival().filter(|&at| at <= until) {
            let (packet, marked) = link.receive(at).expect("it was announced");
            arrived.push((at, packet, marked));
        }
        assert_eq!(link.receive(until), None);
    };
    for (index, &(at, bytes)) in packets.iter().enumerate() {
        drain(&mut link, at);
        link.send(at, bytes, true, index);
        let counters = link.counters();
        assert_eq!(
            counters.sent + counters.duplicated,
            counters.delivered
                + counters.lost
                + counters.oversized
                + counters.dropped
                + link.in_flight() as u64
        );
    }
    drain(&mut link, Duration::MAX);
    assert_eq!(link.in_flight(), 0);
    (arrived, link.counters())
}

/// A burst of `count` packets at once.
fn burst(count: usize, bytes: u32) -> Vec<(Duration, u32)> {
    vec![(Duration::ZERO, bytes); count]
}

fn numbers(arrived: &[(Duration, usize, bool)]) -> Vec<usize> {
    arrived.iter().map(|arrival| arrival.1).collect()
}

#[test]
fn rate_and_delay_add_up() {
    let impairment = Impairment {
        rate: Some(12_000_000),
        delay: 10 * MS,
        ..Impairment::default()
    };
    let (arrived, _) = outcome(impairment, 1, &burst(3, 1500));
    let expected = [
        (11 * MS, 0, false),
        (12 * MS, 1, false),
        (13 * MS, 2, false),
    ];
    assert_eq!(arrived, expected);
}

#[test]
fn a_full_queue_drops_what_comes_last_and_an_empty_one_takes_anything() {
    let impairment = Impairment {
        rate: Some(12_000_000),
        queue: Queue {
            limit: Some(3000),
            mark: None,
        },
        ..Impairment::default()
    };
    let (arrived, counters) = outcome(impairment.clone(), 1, &burst(5, 1500));
    assert_eq!(numbers(&arrived), [0, 1]);
    assert_eq!(counters.dropped, 3);
    let (arrived, _) = outcome(impairment.clone(), 1, &burst(1, 9000));
    assert_eq!(numbers(&arrived), [0]);
    // There is room again once the first has left.
    let (arrived, _) = outcome(
        impairment,
        1,
        &[(Duration::ZERO, 1500), (Duration::ZERO, 1500), (MS, 1500)],
    );
    assert_eq!(numbers(&arrived), [0, 1, 2]);
}

#[test]
fn packets_that_find_a_long_queue_are_marked_if_they_can_be() {
    let impairment = Impairment {
        rate: Some(12_000_000),
        queue: Queue {
            limit: None,
            mark: Some(3000),
        },
        ..Impairment::default()
    };
    let (arrived, counters) = outcome(impairment.clone(), 1, &burst(4, 1500));
    let marked: Vec<bool> = arrived.iter().map(|arrival| arrival.2).collect();
    assert_eq!(marked, [false, false, true, true]);
    assert_eq!(counters.marked, 2);
    let mut link = Link::new(impairment, 1);
    for _ in 0..4 {
        link.send(Duration::ZERO, 1500, false, ());
    }
    assert_eq!(link.counters().marked, 0);
    assert_eq!(link.queued(Duration::ZERO), 6000);
    assert_eq!(link.queueing_delay(MS), 3 * MS);
}

#[test]
fn a_script_loses_what_it_says() {
    let script = Impairment {
        loss: Loss::Script(vec![3, 0]),
        ..Impairment::default()
    };
    assert_eq!(numbers(&outcome(script, 1, &burst(5, 100)).0), [1, 2, 4]);
}

#[test]
fn of_packets_close_together_thinning_leaves_the_last() {
    let thin = Impairment {
        thin: Some(Thin {
            keep_one_of: 4,
            within: 5 * MS,
        }),
        ..Impairment::default()
    };
    let times = [0, 1, 2, 3, 4, 5, 20, 40, 44].map(|at| (at * MS, 100));
    let (arrived, counters) = outcome(thin, 1, &times);
    let arrived: Vec<(u128, usize)> = arrived
        .iter()
        .map(|arrival| (arrival.0.as_millis(), arrival.1))
        .collect();
    assert_eq!(arrived, [(3, 3), (9, 5), (25, 6), (45, 8)]);
    assert_eq!(counters.lost, 5);
}

#[test]
fn long_packets_vanish_in_a_black_hole() {
    let impairment = Impairment {
        mtu: Some(1400),
        ..Impairment::default()
    };
    let (arrived, counters) = outcome(impairment, 1, &[(MS, 1400), (MS, 1401), (MS, 40)]);
    assert_eq!(numbers(&arrived), [0, 2]);
    assert_eq!(counters.oversized, 1);
}

#[test]
fn nothing_arrives_in_a_pause() {
    let impairment = Impairment {
        delay: MS,
        pause: Some(Pause {
            every: 100 * MS,
            length: 20 * MS,
        }),
        ..Impairment::default()
    };
    let times = [0, 98, 99, 110, 119, 130, 200].map(|at| (at * MS, 100));
    let (arrived, _) = outcome(impairment, 1, &times);
    let at: Vec<u128> = arrived
        .iter()
        .map(|arrival| arrival.0.as_millis())
        .collect();
    assert_eq!(at, [1, 99, 120, 120, 120, 131, 220]);
    assert_eq!(numbers(&arrived), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn losses_come_as_often_and_as_long_as_their_model_says() {
    let count = 200_000;
    let random = Impairment {
        loss: Loss::Random { probability: 0.03 },
        ..Impairment::default()
    };
    let lost = outcome(random, 7, &burst(count, 100)).1.lost;
    assert!((5700..6300).contains(&lost), "{lost}");

    // A fiftieth of the time in the bad state, for five packets per stay on average.
    let bursts = Impairment {
        loss: Loss::GilbertElliott {
            to_bad: 0.2 / 49.0,
            to_good: 0.2,
            loss_good: 0.0,
            loss_bad: 1.0,
            slot: Duration::ZERO,
        },
        ..Impairment::default()
    };
    let (arrived, counters) = outcome(bursts.clone(), 7, &burst(count, 100));
    assert!((3600..4400).contains(&counters.lost), "{}", counters.lost);
    let gaps = arrived.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1);
    let mean = counters.lost as f64 / gaps.count() as f64;
    assert!((4.5..5.5).contains(&mean), "{mean}");

    // With silence between packets each packet's fate is independent, and the same on
    // average.
    let Loss::GilbertElliott {
        to_bad,
        to_good,
        loss_good,
        loss_bad,
        ..
    } = bursts.loss
    else {
        unreachable!("as set above")
    };
    let sparse = Impairment {
        loss: Loss::GilbertElliott {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
            slot: MS,
        },
        ..Impairment::default()
    };
    let packets: Vec<(Duration, u32)> = (0..20_000).map(|index| (index * 50 * MS, 100)).collect();
    let (arrived, counters) = outcome(sparse, 7, &packets);
    assert!((320..480).contains(&counters.lost), "{}", counters.lost);
    let gaps = arrived.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1);
    let mean = counters.lost as f64 / gaps.count() as f64;
    assert!(mean < 1.1, "{mean}");
}

#[test]
fn the_ecn_field_is_that_of_rfc_3168() {
    let fields = [0, 1, 2, 3].map(|bits| Ecn::of(0xb8 | bits));
    let expected = [
        Ecn::NotCapable,
        Ecn::Capable,
        Ecn::Capable,
        Ecn::Experienced,
    ];
    assert_eq!(fields, expected);
    assert_eq!(fields.map(Ecn::is_capable), [false, true, true, true]);
    assert_eq!(Ecn::of(Ecn::mark(0xba)), Ecn::Experienced);
}

prop_compose! {
    fn losses()(kind in 0..4, a in 0.0..0.5, b in 0.01..1.0, lost in prop::collection::vec(0u64..200, 0..50)) -> Loss {
        match kind {
            0 => Loss::None,
            1 => Loss::Random { probability: a },
            2 => Loss::GilbertElliott { to_bad: a, to_good: b, loss_good: 0.01, loss_bad: 0.9, slot: MS },
            _ => Loss::Script(lost),
        }
    }
}

prop_compose! {
    fn impairments()(
        rate in prop::option::of(100_000u64..1_000_000_000),
        delay in 0u32..50_000,
        jitter in 0u32..50_000,
        loss in losses(),
        reorder in 0.0..0.5,
        extra in 0u32..20_000,
        duplicate in 0.0..0.3,
        limit in prop::option::of(0u32..50_000),
        mark in prop::option::of(0u32..50_000),
        pause in prop::option::of((0u32..50_000, 0u32..20_000)),
        thin in prop::option::of((0u32..5, 0u32..20_000)),
        mtu in prop::option::of(100u32..2000),
    ) -> Impairment {
        Impairment {
            rate,
            delay: delay * US,
            jitter: jitter * US,
            loss,
            reorder: Reorder { probability: reorder, delay: extra * US },
            duplicate,
            queue: Queue { limit, mark },
            pause: pause.map(|(every, length)| Pause { every: every * US, length: length * US }),
            thin: thin.map(|(keep_one_of, within)| Thin { keep_one_of, within: within * US }),
            mtu,
        }
    }
}

prop_compose! {
    fn traffic()(steps in prop::collection::vec((0u32..3000, 20u32..2000), 1..200)) -> Vec<(Duration, u32)> {
        let mut now = Duration::ZERO;
        steps.into_iter().map(|(gap, bytes)| {
            now += gap * US;
            (now, bytes)
        }).collect()
    }
}

proptest! {
    /// `outcome` asserts that packets are conserved after every step.
    #[test]
    fn the_same_seed_has_the_same_outcome(impairment in impairments(), seed: u64, packets in traffic()) {
        let first = outcome(impairment.clone(), seed, &packets);
        let second = outcome(impairment, seed, &packets);
        prop_assert_eq!(&first, &second);
        let mut copies = vec![0; packets.len()];
        for (at, index, _) in first.0 {
            copies[index] += 1;
            prop_assert!(at >= packets[index].0);
        }
        prop_assert!(copies.into_iter().all(|copies| copies <= 2));
    }

    #[test]
    fn order_is_kept_unless_reordered(impairment in impairments(), seed: u64, packets in traffic()) {
        let impairment = Impairment { reorder: Reorder::default(), ..impairment };
        let (arrived, _) = outcome(impairment, seed, &packets);
        prop_assert!(arrived.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }

    /// In any interval no more arrives than the rate permits, plus one packet that was
    /// nearly there.
    #[test]
    fn the_rate_is_never_exceeded(impairment in impairments(), rate in 100_000u64..100_000_000, packets in traffic()) {
        let impairment = Impairment {
            rate: Some(rate),
            reorder: Reorder::default(),
            jitter: Duration::ZERO,
            duplicate: 0.0,
            pause: None,
            thin: None,
            ..impairment
        };
        let (arrived, _) = outcome(impairment, 1, &packets);
        for start in 0..arrived.len().min(20) {
            let mut bits = 0;
            for &(at, index, _) in &arrived[start + 1..] {
                bits += u128::from(packets[index].1) * 8;
                let interval = (at - arrived[start].0).as_nanos();
                prop_assert!(bits * 1_000_000_000 <= u128::from(rate) * interval);
            }
        }
    }

    /// The draws of one impairment do not depend on whether another is on.
    #[test]
    fn losses_are_the_same_with_and_without_reordering(seed: u64, packets in traffic()) {
        let calm = Impairment {
            loss: Loss::Random { probability: 0.1 },
            ..Impairment::default()
        };
        let rough = Impairment {
            reorder: Reorder { probability: 0.3, delay: 10 * MS },
            duplicate: 0.2,
            ..calm.clone()
        };
        let mut calm = numbers(&outcome(calm, seed, &packets).0);
        let mut rough = numbers(&outcome(rough, seed, &packets).0);
        rough.sort_unstable();
        rough.dedup();
        calm.sort_unstable();
        prop_assert_eq!(calm, rough);
    }
}
