//! Properties that hold for every policy and every input.

use std::time::Duration;

use proptest::prelude::*;

use crate::control::*;

#[derive(Clone, Debug)]
enum Event {
    Round(Round),
    Interval(Interval),
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..600, 1 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn many() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..100_000, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn share() -> impl Strategy<Value = f32> {
    prop_oneof![4 => 0.0f32..=1.0, 1 => Just(0.0), 1 => Just(1.0), 1 => 0.0f32..=0.06]
}

fn round() -> impl Strategy<Value = Round> {
    (count(), any::<bool>(), share(), count()).prop_map(
        |(frames, exhausted, buffer_use, overflowed)| Round {
            frames,
            exhausted,
            buffer_use,
            overflowed,
        },
    )
}

fn length() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => (10_000u64..40_000).prop_map(Duration::from_micros),
        1 => Just(Duration::ZERO),
        1 => Just(Duration::MAX),
        1 => any::<u64>().prop_map(Duration::from_nanos),
    ]
}

fn interval() -> impl Strategy<Value = Interval> {
    (
        length(),
        (count(), count(), count()),
        (many(), many(), many()),
        share(),
    )
        .prop_map(
            |(length, (rounds, exhausted, interrupts), (frames, sent, overflowed), buffer_use)| {
                Interval {
                    length,
                    rounds,
                    exhausted,
                    interrupts,
                    frames,
                    sent,
                    buffer_use,
                    overflowed,
                }
            },
        )
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => round().prop_map(Event::Round),
        1 => interval().prop_map(Event::Interval),
    ];
    prop::collection::vec(event, 0..120)
}

fn limits() -> impl Strategy<Value = Limits> {
    let budget = prop_oneof![3 => 2u32..=3_000, 1 => Just(BUDGET_MAX), 1 => any::<u32>()];
    let interval = prop_oneof![
        3 => (0u64..=1_000).prop_map(Duration::from_micros),
        1 => Just(INTERVAL_MAX),
        1 => any::<u64>().prop_map(Duration::from_nanos),
    ];
    let ring = prop_oneof![3 => Just(256u32), 1 => any::<u32>()];
    (budget, interval, ring, any::<bool>()).prop_map(|(budget, interval, ring, preempts)| Limits {
        budget,
        interrupt_interval: interval,
        ring,
        preempts,
        ..Limits::default()
    })
}

fn kind() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(PolicyKind::ALL.to_vec())
}

fn tell(policy: &mut dyn Policy, event: &Event) {
    match event {
        Event::Round(round) => policy.round(round),
        Event::Interval(interval) => policy.interval(interval),
    }
}

/// The policy after everything in `events`.
fn reached(kind: PolicyKind, limits: Limits, events: &[Event]) -> Box<dyn Policy> {
    let mut policy = kind.start(limits);
    for event in events {
        tell(policy.as_mut(), event);
    }
    policy
}

fn in_range(kind: PolicyKind, limits: Limits, setting: Setting) -> bool {
    let largest = limits.budget.clamp(BUDGET_MIN, BUDGET_MAX);
    let stopped = kind == PolicyKind::OnOff && setting.budget == 0;
    (stopped || (BUDGET_MIN..=largest).contains(&setting.budget))
        && setting.interrupt_interval <= limits.interrupt_interval.min(INTERVAL_MAX)
}

/// Above every policy's threshold, with something put into the buffer.
fn overfull() -> impl Strategy<Value = Round> {
    (1..=u32::MAX, any::<bool>(), 0.76f32..=1.0, count()).prop_map(
        |(frames, exhausted, buffer_use, overflowed)| Round {
            frames,
            exhausted,
            buffer_use,
            overflowed,
        },
    )
}

/// The longest interval that RHIP sets.
fn rhip_ceiling(limits: Limits) -> Duration {
    Duration::from_micros(125).min(limits.interrupt_interval)
}

proptest! {
    #[test]
    fn settings_stay_in_range(kind in kind(), limits in limits(), events in events()) {
        let mut policy = kind.start(limits);
        prop_assert!(in_range(kind, limits, policy.setting()));
        for event in &events {
            tell(policy.as_mut(), event);
            let setting = policy.setting();
            prop_assert!(in_range(kind, limits, setting), "{setting:?} after {event:?}");
        }
    }

    #[test]
    fn overfull_round_only_cuts(
        kind in kind(),
        limits in limits(),
        events in events(),
        round in overfull(),
    ) {
        let mut policy = reached(kind, limits, &events);
        let before = policy.setting();
        policy.round(&round);
        let after = policy.setting();
        prop_assert!(after.budget <= before.budget);
        prop_assert!(after.interrupt_interval >= before.interrupt_interval);
    }

    /// One step a round, and of one of the two.
    #[test]
    fn round_takes_one_step(
        kind in kind(),
        limits in limits(),
        events in events(),
        round in round(),
    ) {
        let mut policy = reached(kind, limits, &events);
        let before = policy.setting();
        policy.round(&round);
        let after = policy.setting();
        prop_assert!(before.budget == after.budget || before.interrupt_interval == after.interrupt_interval);
        if kind != PolicyKind::OnOff {
            prop_assert!(after.budget <= before.budget, "a round alone raises nothing");
            prop_assert!(after.budget >= before.budget / 2);
        }
        // Doubled, or one interrupt rate's step of 500/s near the ceiling.
        let step = (before.interrupt_interval * 2).max(Duration::from_micros(8));
        prop_assert!(after.interrupt_interval <= step);
    }

    #[test]
    fn nothing_cuts_while_idle(
        kind in kind(),
        limits in limits(),
        events in events(),
        length in length(),
        found in share(),
        asleep in any::<bool>(),
    ) {
        let mut policy = reached(kind, limits, &events);
        let before = policy.setting();
        // An idle system's channels are empty. A slow receiver's full channel is no
        // reason to take less of nothing, but on-off stops at it.
        let buffer_use = if kind == PolicyKind::OnOff { 0.0 } else { found };
        if asleep {
            policy.interval(&Interval { length, buffer_use, ..Interval::default() });
        } else {
            policy.round(&Round { buffer_use, ..Round::default() });
        }
        let after = policy.setting();
        prop_assert!(after.budget >= before.budget);
        prop_assert!(after.interrupt_interval <= before.interrupt_interval);
    }

    /// As many idle intervals as the controller reports after a long sleep reset every
    /// policy.
    #[test]
    fn idleness_undoes_everything(kind in kind(), limits in limits(), events in events()) {
        let mut policy = reached(kind, limits, &events);
        for _ in 0..64 {
            policy.interval(&Interval { length: SAMPLING_INTERVAL, ..Interval::default() });
        }
        prop_assert_eq!(policy.setting(), kind.start(limits).setting());
    }

    #[test]
    fn rhip_keeps_its_order(limits in limits(), events in events()) {
        let mut policy = PolicyKind::Rhip.start(limits);
        let largest = limits.budget.clamp(BUDGET_MIN, BUDGET_MAX);
        for event in &events {
            let before = policy.setting();
            tell(policy.as_mut(), event);
            let after = policy.setting();
            if after.budget < before.budget {
                prop_assert!(matches!(event, Event::Round(_)));
                prop_assert_eq!(before.interrupt_interval, rhip_ceiling(limits), "T first");
            }
            if after.interrupt_interval < before.interrupt_interval {
                prop_assert!(matches!(event, Event::Interval(_)));
                prop_assert_eq!(before.budget, largest, "Bp first");
            }
        }
    }

    /// An interval that overflowed while ksoftirqd was active changes nothing
    /// in RHIP; one that did not never makes things worse.
    #[test]
    fn rhip_intervals_recover_or_keep(
        limits in limits(),
        events in events(),
        interval in interval(),
    ) {
        let mut policy = reached(PolicyKind::Rhip, limits, &events);
        let before = policy.setting();
        policy.interval(&interval);
        let after = policy.setting();
        let idle = interval.frames == 0 && interval.overflowed == 0;
        if !idle && interval.buffer_use > 0.5 && interval.exhausted > 0 {
            prop_assert_eq!(before, after);
        } else {
            prop_assert!(after.budget >= before.budget);
            prop_assert!(after.interrupt_interval <= before.interrupt_interval);
            prop_assert!(after.budget == before.budget || after.interrupt_interval == before.interrupt_interval);
        }
    }

    #[test]
    fn controller_reports_changes_and_bears_any_time(
        kind in kind(),
        limits in limits(),
        rounds in prop::collection::vec((any::<bool>(), length(), round(), any::<bool>(), many()), 1..80),
    ) {
        let mut controller = Controller::new(kind, limits);
        let mut known = controller.setting();
        let mut now = Duration::ZERO;
        for (forward, time, round, interrupted, sent) in rounds {
            now = if forward { now.saturating_add(time) } else { now.saturating_sub(time) };
            let changed = controller.round(now, &round, Activity { interrupted, sent });
            let setting = controller.setting();
            prop_assert!(changed.is_some() || setting == known, "a change that nobody hears of");
            if let Some(state) = changed {
                prop_assert_eq!(state, controller.state());
                prop_assert_eq!(state.setting, setting);
            }
            if let Waiting::Sleep(interval) = controller.waiting() {
                prop_assert_eq!(interval, setting.interrupt_interval);
            }
            known = setting;
            prop_assert!(in_range(kind, limits, known));
        }
    }

    #[test]
    fn only_its_own_name_parses(name in "[a-z-]{0,12}") {
        let known = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
        prop_assert_eq!(name.parse::<PolicyKind>().ok(), known);
    }
}

#[test]
fn names_parse_and_print() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert!(UnknownPolicy.to_string().contains(kind.name()));
    }
    assert_eq!("RHIP".parse::<PolicyKind>(), Err(UnknownPolicy));
    assert_eq!(PolicyKind::default(), PolicyKind::Adaptive);
}

const OVERFULL: Round = Round {
    frames: 100,
    exhausted: true,
    buffer_use: 0.8,
    overflowed: 0,
};

fn settings(policy: &mut dyn Policy, rounds: usize) -> Vec<(u32, u128)> {
    let mut settings = Vec::new();
    for _ in 0..rounds {
        policy.round(&OVERFULL);
        let Setting {
            budget,
            interrupt_interval: interval,
        } = policy.setting();
        settings.push((budget, interval.as_micros()));
    }
    settings
}

#[test]
fn rhip_lengthens_then_cuts_then_restores_then_shortens() {
    let mut rhip = PolicyKind::Rhip.start(Limits::default());
    assert_eq!(
        settings(rhip.as_mut(), 8),
        [
            (3000, 8),
            (3000, 16),
            (3000, 32),
            (3000, 64),
            (3000, 125),
            (1500, 125),
            (750, 125),
            (375, 125)
        ]
    );
    let quiet = Interval {
        length: SAMPLING_INTERVAL,
        rounds: 100,
        exhausted: 1,
        frames: 1_000,
        buffer_use: 0.02,
        ..Interval::default()
    };
    let mut recovery = Vec::new();
    for _ in 0..5 {
        rhip.interval(&quiet);
        let Setting {
            budget,
            interrupt_interval: interval,
        } = rhip.setting();
        recovery.push((budget, interval.as_nanos()));
    }
    assert_eq!(
        recovery,
        [
            (750, 125_000),
            (1500, 125_000),
            (3000, 125_000),
            (3000, 112_500),
            (3000, 100_000)
        ]
    );
    // In the band, with ksoftirqd active: β.
    settings(rhip.as_mut(), 3);
    let budget = rhip.setting().budget;
    for use_of_buffer in [0.3, 0.4, 0.2] {
        rhip.interval(&Interval {
            buffer_use: use_of_buffer,
            ..quiet
        });
    }
    assert_eq!(rhip.setting().budget, budget + 3);
    // Figure 6, line 1, and what the text adds to line 9.
    let overflowed = Interval {
        exhausted: 0,
        buffer_use: 1.0,
        overflowed: 1,
        ..quiet
    };
    rhip.interval(&overflowed);
    assert_eq!(rhip.setting().budget, budget + 4);
    rhip.interval(&Interval::default());
    let restored = rhip.setting();
    assert_eq!(restored.budget, 3000);
    rhip.interval(&overflowed);
    assert_eq!(rhip.setting(), restored);
}

/// The driver drops frames for a full channel, so the poller may receive nothing in a
/// round that overflowed.
#[test]
fn full_channel_counts_without_a_frame() {
    let limits = Limits {
        preempts: true,
        ..Limits::default()
    };
    let dropped = Round {
        frames: 0,
        exhausted: false,
        buffer_use: 1.0,
        overflowed: 5,
    };
    for kind in [
        PolicyKind::OnOff,
        PolicyKind::Aic,
        PolicyKind::QaPolling,
        PolicyKind::Rhip,
        PolicyKind::Adaptive,
    ] {
        let mut policy = kind.start(limits);
        let before = policy.setting();
        policy.round(&dropped);
        let after = policy.setting();
        assert!(
            after.budget < before.budget || after.interrupt_interval > before.interrupt_interval,
            "{kind} stays at {after:?}"
        );
    }
}

#[test]
fn on_off_stops_at_three_quarters_and_goes_at_one() {
    let mut on_off = PolicyKind::OnOff.start(Limits::default());
    let mut budget_at = |buffer_use| {
        on_off.round(&Round {
            buffer_use,
            ..OVERFULL
        });
        on_off.setting().budget
    };
    assert_eq!(
        [0.74, 0.75, 0.5, 0.26, 0.25, 0.7].map(&mut budget_at),
        [20, 0, 0, 0, 20, 20]
    );
    assert_eq!(budget_at(0.9), 0);
    on_off.interval(&Interval {
        buffer_use: 0.9,
        ..Interval::default()
    });
    assert_eq!(on_off.setting().budget, 20, "the timeout of one tick");
}

#[test]
fn aic_and_qapolling_follow_the_same_rule() {
    let start = |kind: PolicyKind| kind.start(Limits::default());
    let (mut aic, mut qapolling) = (start(PolicyKind::Aic), start(PolicyKind::QaPolling));
    settings(aic.as_mut(), 4);
    settings(qapolling.as_mut(), 4);
    assert_eq!(aic.setting().interrupt_interval, Duration::from_micros(64));
    assert_eq!(qapolling.setting().budget, 187);
    let of = |buffer_use| Interval {
        length: SAMPLING_INTERVAL,
        rounds: 10,
        exhausted: 10,
        frames: 100,
        buffer_use,
        ..Interval::default()
    };
    // Above the band, rising in it, falling, steady, below it.
    let uses = [0.6, 0.1, 0.3, 0.2, 0.2, 0.03];
    let got = uses.map(|used| {
        aic.interval(&of(used));
        qapolling.interval(&of(used));
        (
            aic.setting().interrupt_interval.as_micros(),
            qapolling.setting().budget,
        )
    });
    assert_eq!(
        got,
        [
            (64, 187),
            (56, 188),
            (64, 187),
            (56, 188),
            (56, 188),
            (28, 376)
        ]
    );
}

#[test]
fn controller_sums_an_interval_and_names_its_mode() {
    let mut controller = Controller::new(PolicyKind::Napi, Limits::default());
    assert_eq!(controller.state().mode, Mode::Idle);
    let activity = Activity {
        interrupted: true,
        sent: 2,
    };
    for millisecond in 0..=10 {
        let round = Round {
            frames: 5,
            exhausted: false,
            buffer_use: millisecond as f32 / 100.0,
            overflowed: 1,
        };
        controller.round(Duration::from_millis(millisecond), &round, activity);
    }
    let state = controller.state();
    assert_eq!(state.mode, Mode::Interrupt);
    assert_eq!(
        state.last,
        Interval {
            length: Duration::from_millis(10),
            rounds: 11,
            exhausted: 0,
            interrupts: 11,
            frames: 55,
            sent: 22,
            buffer_use: 0.1,
            overflowed: 11,
        }
    );
    for (exhausted, mode) in [(11, Mode::Polling), (4, Mode::Mixed)] {
        let start = if mode == Mode::Polling { 11 } else { 22 };
        for millisecond in 0..11 {
            let round = Round {
                frames: 5,
                exhausted: millisecond < exhausted,
                ..Round::default()
            };
            let now = Duration::from_millis(start + millisecond);
            controller.round(now, &round, Activity::default());
        }
        assert_eq!(controller.state().mode, mode);
    }
}

#[test]
fn sleep_counts_as_idle_intervals() {
    let mut controller = Controller::new(PolicyKind::Rhip, Limits::default());
    for round in 0..9 {
        let now = Duration::from_micros(100 * round);
        controller.round(now, &OVERFULL, Activity::default());
    }
    let cut = controller.setting();
    assert!(cut.budget < BUDGET_MAX && !cut.interrupt_interval.is_zero());
    let quiet = Round {
        frames: 1,
        ..Round::default()
    };
    // Kept from polling, not asleep: nothing is known about that time.
    let mut kept = Controller::new(PolicyKind::Rhip, Limits::default());
    for round in 0..9 {
        let now = Duration::from_micros(100 * round);
        kept.round(now, &OVERFULL, Activity::default());
    }
    let second = Duration::from_secs(1);
    kept.round(second, &quiet, Activity::default());
    assert_eq!(kept.state().last.length, second);
    assert!(kept.setting().budget < BUDGET_MAX);
    let woken = Activity {
        interrupted: true,
        sent: 0,
    };
    let setting = controller.round(second, &quiet, woken);
    let first = PolicyKind::Rhip.start(Limits::default()).setting();
    assert_eq!(setting.map(|state| state.setting), Some(first));
    assert_eq!(controller.state().mode, Mode::Idle);
}
