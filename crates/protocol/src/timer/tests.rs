//! The wheel compared with a sorted map.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn expire(wheel: &mut Wheel, now: Duration) -> Vec<u32> {
    let mut expired = Vec::new();
    wheel.advance(now, |timer| expired.push(timer));
    expired
}

#[test]
fn a_timer_is_sixteen_bytes() {
    assert_eq!(size_of::<Entry>(), 16);
}

#[test]
fn a_timer_expires_once_and_not_early() {
    let mut wheel = Wheel::default();
    wheel.arm(3, 10 * MILLISECOND);
    assert_eq!(expire(&mut wheel, 10 * MILLISECOND - TICK), []);
    assert_eq!(expire(&mut wheel, 10 * MILLISECOND + TICK), [3]);
    assert!(wheel.is_empty());
    assert_eq!(expire(&mut wheel, Duration::from_secs(1)), []);
    assert_eq!(wheel.next(), None);
}

#[test]
fn a_deadline_in_the_past_expires_at_once() {
    let mut wheel = Wheel::default();
    let now = Duration::from_secs(5);
    assert_eq!(expire(&mut wheel, now), []);
    wheel.arm(0, Duration::from_secs(1));
    assert!(wheel.next().is_some_and(|next| next <= now));
    assert_eq!(expire(&mut wheel, now), [0]);
}

#[test]
fn arming_again_moves_and_cancelling_stops() {
    let mut wheel = Wheel::default();
    wheel.arm(1, MILLISECOND);
    wheel.arm(1, 100 * MILLISECOND);
    wheel.arm(2, MILLISECOND);
    assert_eq!(wheel.len(), 2);
    assert!(wheel.cancel(2));
    assert!(!wheel.cancel(2));
    assert!(!wheel.cancel(77));
    assert_eq!(expire(&mut wheel, 50 * MILLISECOND), []);
    assert_eq!(expire(&mut wheel, 101 * MILLISECOND), [1]);
}

#[test]
fn the_farthest_deadline_and_a_wild_number_do_no_harm() {
    let mut wheel = Wheel::default();
    wheel.arm(0, Duration::MAX);
    wheel.arm(TIMERS_MAX + 1, MILLISECOND);
    assert_eq!(wheel.len(), 1);
    assert_eq!(expire(&mut wheel, Duration::from_secs(1 << 30)), []);
    assert_eq!(expire(&mut wheel, Duration::MAX), [0]);
}

/// Keepalive timers of many idle connections cost few wake-ups. A thread that sleeps
/// until [`Wheel::next`] wakes only a few times per tick that has timers.
#[test]
fn a_sleeper_wakes_seldom_for_far_timers() {
    let mut wheel = Wheel::default();
    for timer in 0..100_000 {
        let second = 7_200 + u64::from(timer % 60);
        wheel.arm(timer, Duration::from_secs(second));
    }
    let (mut wakes, mut expired) = (0, 0);
    while let Some(next) = wheel.next() {
        wakes += 1;
        wheel.advance(next, |_| expired += 1);
    }
    assert_eq!(expired, 100_000);
    assert!(wakes <= 5 * 60, "{wakes} wake-ups for 60 deadlines");
}

#[derive(Clone, Debug)]
enum Step {
    Arm(u32, u64),
    Cancel(u32),
    Advance(u64),
    /// To the time that the wheel itself reports.
    Next,
}

fn step() -> impl Strategy<Value = Step> {
    // Distances of every magnitude, so that all levels are used.
    let distance = || (0u32..50, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1));
    prop_oneof![
        4 => (0u32..40, distance()).prop_map(|(timer, after)| Step::Arm(timer, after)),
        1 => (0u32..40).prop_map(Step::Cancel),
        2 => distance().prop_map(Step::Advance),
        1 => Just(Step::Next),
    ]
}

proptest! {
    #[test]
    fn the_wheel_agrees_with_a_sorted_map(steps in prop::collection::vec(step(), 1..200)) {
        let mut wheel = Wheel::default();
        let mut model = BTreeMap::<u32, u64>::new();
        let mut now = 0u64;
        for step in steps {
            match step {
                Step::Arm(timer, after) => {
                    let deadline = now.saturating_add(after);
                    wheel.arm(timer, Duration::from_nanos(deadline));
                    model.insert(timer, tick_after(Duration::from_nanos(deadline)));
                }
                Step::Cancel(timer) => {
                    prop_assert_eq!(wheel.cancel(timer), model.remove(&timer).is_some());
                }
                Step::Advance(_) | Step::Next => {
                    now = match (step, wheel.next()) {
                        (Step::Advance(by), _) => now.saturating_add(by),
                        (_, Some(next)) => now.max(next.as_nanos() as u64),
                        _ => now,
                    };
                    let end = tick_before(Duration::from_nanos(now));
                    let expired = expire(&mut wheel, Duration::from_nanos(now));
                    let due: BTreeSet<u32> = model
                        .iter()
                        .filter(|(_, tick)| **tick <= end)
                        .map(|(timer, _)| *timer)
                        .collect();
                    prop_assert_eq!(expired.len(), due.len());
                    prop_assert!(expired.iter().all(|timer| due.contains(timer)));
                    for timer in due {
                        model.remove(&timer);
                    }
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            match (wheel.next(), model.values().min()) {
                (None, None) => {}
                (Some(next), Some(first)) => {
                    // Never later than the first deadline.
                    prop_assert!(next <= time_of((*first).max(tick_before(Duration::from_nanos(now)))));
                }
                (wheel, model) => prop_assert!(false, "{wheel:?} against {model:?}"),
            }
        }
        let rest = expire(&mut wheel, Duration::MAX);
        prop_assert_eq!(rest.len(), model.len());
    }
}
