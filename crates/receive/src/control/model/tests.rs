//! The propositions as properties, and the formulas against the simulation.

use std::time::Duration;

use proptest::prelude::*;

use super::simulation::{self, Outcome};
use super::{Load, Machine, Mode, Prediction, Room};
use crate::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, Limits, Setting};

const ROOM: Room = Room {
    buffer: 1_000_000,
    ring: 4096,
};

fn nanoseconds(time: u64) -> Duration {
    Duration::from_nanos(time)
}

fn setting(budget: u32, microseconds: u64) -> Setting {
    Setting {
        budget,
        interrupt_interval: Duration::from_micros(microseconds),
    }
}

fn machine(protocol: u64, application: u64) -> Machine {
    Machine {
        protocol: nanoseconds(protocol),
        application: nanoseconds(application),
        switch_application: nanoseconds(970),
        switch_poller: nanoseconds(1_510),
        interrupt: nanoseconds(3_130),
        application_quantum: Duration::from_millis(3),
    }
}

prop_compose! {
    fn machines()(
        protocol in 0_u64..5_000,
        application in 0_u64..20_000,
        switch_application in 0_u64..5_000,
        switch_poller in 0_u64..5_000,
        interrupt in 0_u64..20_000,
        quantum in 0_u64..10_000_000,
    ) -> Machine {
        Machine {
            protocol: nanoseconds(protocol),
            application: nanoseconds(application),
            switch_application: nanoseconds(switch_application),
            switch_poller: nanoseconds(switch_poller),
            interrupt: nanoseconds(interrupt),
            application_quantum: nanoseconds(quantum),
        }
    }
}

prop_compose! {
    fn loads()(rate in 1.0_f64..5e6, burst in 1_u32..64) -> Load {
        Load { rate, burst }
    }
}

prop_compose! {
    fn settings()(budget in 0..=BUDGET_MAX, microseconds in 0_u64..=1000) -> Setting {
        setting(budget, microseconds)
    }
}

prop_compose! {
    fn rooms()(buffer in 0_u32..10_000, ring in 0_u32..5_000) -> Room {
        Room { buffer, ring }
    }
}

fn sane(prediction: &Prediction, rate: f64) {
    assert!(prediction.goodput.is_finite() && prediction.goodput >= 0.0);
    assert!(prediction.goodput <= rate, "{prediction:?} at {rate}");
    assert!((0.0..=1.0).contains(&prediction.idle), "{prediction:?}");
    assert!(prediction.interrupts.is_finite() && prediction.interrupts >= 0.0);
    if !prediction.buffer_overflows && !prediction.ring_overflows {
        assert!(
            prediction.goodput >= rate * (1.0 - 1e-9),
            "{prediction:?} at {rate}: nothing is lost, nor is it delivered"
        );
    }
}

proptest! {
    #[test]
    fn predictions_are_in_range(
        machine in machines(), load in loads(), setting in settings(), room in rooms(),
    ) {
        sane(&machine.predict(load, setting, room), load.rate);
        sane(&machine.predict_self_polling(load, setting, room), load.rate);
    }

    #[test]
    fn tp_of_a_period_is_mode_1_and_less_is_not(
        machine in machines(), load in loads(), setting in settings(),
    ) {
        let prediction = machine.predict(load, setting, ROOM);
        let slow = load.rate * machine.protocol.as_secs_f64() >= 1.0;
        prop_assert_eq!(prediction.mode == Mode::One, slow);
        if slow {
            prop_assert!(prediction.interrupts == 0.0, "proposition 2: no interrupt");
        }
    }

    #[test]
    fn a_larger_budget_leads_to_mode_3_and_never_out_of_it(
        machine in machines(), load in loads(), one in settings(), more in 0_u32..1000,
    ) {
        // Proposition 1.
        let larger = Setting { budget: one.budget + more, ..one };
        if machine.predict(load, one, ROOM).mode == Mode::Three {
            prop_assert_eq!(machine.predict(load, larger, ROOM).mode, Mode::Three);
        }
    }

    #[test]
    fn an_overflow_while_polling_can_be_bettered(
        machine in machines(), load in loads(), one in settings(),
    ) {
        // Proposition 3, whose buffer is very large, and 4.
        let found = machine.predict(load, one, ROOM);
        if found.mode != Mode::Three && found.buffer_overflows {
            let least = machine.predict(load, Setting { budget: 1, ..one }, ROOM);
            prop_assert!(least.mode != Mode::Three);
            prop_assert!(!least.buffer_overflows, "proposition 4: Bp = 1 loses nothing");
            let best = (1..one.budget)
                .map(|budget| machine.predict(load, Setting { budget, ..one }, ROOM).goodput)
                .fold(0.0, f64::max);
            if machine.protocol > Duration::ZERO && found.ring_overflows {
                prop_assert!(best > found.goodput * 0.999_999, "{} {}", best, found.goodput);
            }
        }
    }

    #[test]
    fn without_overflow_goodput_rises_with_the_budget(
        machine in machines(), load in loads(), one in settings(), more in 0_u32..1000,
    ) {
        // Formula (3).
        let larger = Setting { budget: one.budget + more, ..one };
        let (a, b) = (machine.predict(load, one, ROOM), machine.predict(load, larger, ROOM));
        let polled = |p: &Prediction| p.mode != Mode::Three && !p.buffer_overflows;
        if polled(&a) && polled(&b) {
            prop_assert!(b.goodput >= a.goodput * (1.0 - 1e-9));
        }
    }

    #[test]
    fn mode_3_without_overflow_cannot_be_bettered(
        machine in machines(), load in loads(), one in settings(), other in settings(),
    ) {
        // Proposition 6; 5: the ring, larger than Bp, loses nothing.
        let found = machine.predict(load, one, ROOM);
        if found.mode == Mode::Three && one.budget <= ROOM.ring {
            prop_assert!(!found.ring_overflows, "proposition 5");
            if !found.buffer_overflows {
                let other = machine.predict(load, other, ROOM);
                prop_assert!(other.goodput <= found.goodput * (1.0 + 1e-9));
            }
        }
    }

    #[test]
    fn a_smaller_budget_helps_mode_3_only_by_leaving_it(
        machine in machines(), load in loads(), one in settings(), less in 1_u32..1000,
    ) {
        // Proposition 7.
        let smaller = Setting { budget: one.budget.saturating_sub(less), ..one };
        let (from, to) = (machine.predict(load, one, ROOM), machine.predict(load, smaller, ROOM));
        if from.mode == Mode::Three && to.goodput > from.goodput * (1.0 + 1e-9) {
            prop_assert_eq!(to.mode, Mode::Two);
        }
    }

    #[test]
    fn no_interval_cures_mode_3_of_more_than_a_processor_can_do(
        machine in machines(), load in loads(), budget in 1..=BUDGET_MAX,
    ) {
        // Proposition 8.
        let work = (machine.protocol + machine.application).as_secs_f64();
        if load.rate * work > 1.0 + 1e-9 {
            for microseconds in [0, 20, 125, 1_000, 100_000] {
                let one = machine.predict(load, setting(budget, microseconds), ROOM);
                if one.mode == Mode::Three {
                    prop_assert!(one.buffer_overflows || one.ring_overflows);
                }
            }
        }
    }

    #[test]
    fn the_best_setting_is_as_good_as_any(
        machine in machines(), load in loads(), room in rooms(),
        tried in prop::collection::vec(settings(), 1..8), preempts: bool,
    ) {
        let limits = Limits { budget: BUDGET_MAX, interrupt_interval: INTERVAL_MAX, ring: room.ring, preempts, ..Limits::default() };
        let best = machine.best(&[load], limits, room);
        prop_assert!((BUDGET_MIN..=BUDGET_MAX).contains(&best.budget));
        prop_assert!(best.interrupt_interval <= INTERVAL_MAX);
        let goodput = |setting| machine.predict_for(load, setting, room, preempts).goodput;
        for mut other in tried {
            // One of the settings that it tries itself.
            other.budget = other.budget.clamp(BUDGET_MIN, 128);
            other.interrupt_interval = Duration::from_micros(other.interrupt_interval.as_micros() as u64 / 8 * 8);
            prop_assert!(goodput(best) >= goodput(other) * 0.99 - 1e-9, "{:?}", other);
        }
    }
}

/// Between two modes the simulation alternates, which no single mode describes. When the
/// frames of a cycle go from n to n + 1 it does both.
fn at_a_step(machine: &Machine, load: Load, one: Setting) -> bool {
    let predict = |budget: f64, rate: f64, interrupt: f64| {
        let one = Setting {
            budget: (f64::from(one.budget) * budget).round() as u32,
            ..one
        };
        let load = Load {
            rate: load.rate * rate,
            ..load
        };
        let machine = Machine {
            interrupt: machine.interrupt.mul_f64(interrupt),
            ..*machine
        };
        machine.predict(load, one, ROOM)
    };
    let here = predict(1.0, 1.0, 1.0);
    [0.85, 1.15].iter().any(|&by| {
        predict(by, 1.0, 1.0).mode != here.mode || predict(1.0, by, 1.0).mode != here.mode
    }) || [0.6, 1.4].iter().any(|&by| {
        (predict(1.0, 1.0, by).goodput - here.goodput).abs() > 0.3 * here.goodput + 100.0
    })
}

fn close(prediction: &Prediction, outcome: &Outcome, rate: f64) -> bool {
    // For a livelocked application both predict next to nothing.
    let near = |a: f64, b: f64, least: f64| (a - b).abs() <= (0.05 * a.max(b)).max(least);
    near(prediction.goodput, outcome.goodput, 100.0)
        && near(prediction.idle, outcome.idle, 0.05)
        && (prediction.mode != Mode::Three
            || near(prediction.interrupts, outcome.interrupts, 0.05 * rate))
        && (prediction.buffer_overflows || outcome.buffer_lost < 0.01 * rate)
        && (prediction.ring_overflows || outcome.ring_lost < 0.01 * rate)
}

#[test]
fn a_receiver_that_polls_itself_loses_nothing_it_paid_for() {
    let machine = machine(500, 1_500);
    let room = Room {
        buffer: 512,
        ring: 256,
    };
    let predict = |rate, one| machine.predict_self_polling(Load::even(rate), one, room);
    let flood = predict(3e6, setting(64, 0));
    // 500 + 1,500 ns and a 64th of 1,510 ns.
    assert!(
        (flood.goodput - 1e9 / 2_023.593_75).abs() < 1.0,
        "{flood:?}"
    );
    assert!(flood.mode == Mode::One && flood.ring_overflows && !flood.buffer_overflows);
    let more = predict(6e6, setting(64, 0));
    assert_eq!(more.goodput, flood.goodput, "no livelock");
    let half = predict(200_000.0, setting(64, 0));
    let all = |prediction: &Prediction| (prediction.goodput - 200_000.0).abs() < 1e-3;
    assert!(half.mode == Mode::Three && all(&half), "{half:?}");
    let coalesced = predict(200_000.0, setting(64, 200));
    assert!(
        all(&coalesced) && coalesced.idle > half.idle && coalesced.interrupts < half.interrupts
    );
}

#[test]
fn the_simulation_agrees_in_all_three_modes() {
    let mut compared = [0_u32; 3];
    let mut wrong = Vec::new();
    for (protocol, application) in [(500, 1_010), (1_030, 500), (410, 8_000), (2_050, 2_000)] {
        let machine = machine(protocol, application);
        for rate in [5e3, 5e4, 2e5, 4e5, 8e5, 1.5e6, 3e6] {
            for burst in [1, 16] {
                for budget in [4, 16, 64, 256, 1024, 3000] {
                    for microseconds in [0, 50, 250] {
                        let load = Load { rate, burst };
                        let one = setting(budget, microseconds);
                        if at_a_step(&machine, load, one) {
                            continue;
                        }
                        let prediction = machine.predict(load, one, ROOM);
                        // A full buffer of the simulation must fill in time.
                        let room = Room {
                            buffer: 4096,
                            ..ROOM
                        };
                        let outcome = simulation::run(&machine, load, one, room, 0.2);
                        compared[usize::from(prediction.mode.number()) - 1] += 1;
                        if !close(&prediction, &outcome, rate) {
                            wrong.push(format!(
                                "Tp {protocol} Ta {application} {load:?} {one:?}: {prediction:?} {outcome:?}"
                            ));
                        }
                    }
                }
            }
        }
    }
    let all: u32 = compared.iter().sum();
    assert!(
        wrong.is_empty(),
        "{} of {all} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared.iter().all(|&count| count >= 50), "{compared:?}");
}
