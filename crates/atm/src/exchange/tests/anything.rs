//! Users that do anything, over lossy links.

use proptest::prelude::*;

use super::*;

/// A step of a user.
#[derive(Clone, Copy, Debug)]
enum Step {
    Call {
        by: usize,
        to: usize,
    },
    /// Answers or rejects the oldest waiting call.
    Answer {
        by: usize,
        takes: bool,
    },
    Release {
        by: usize,
        which: usize,
    },
    Restart {
        by: usize,
    },
    /// The user's end restarts, with no state.
    Begin {
        by: usize,
    },
    Pass {
        quarters: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0..3_usize;
    prop_oneof![
        8 => (port.clone(), port.clone()).prop_map(|(by, to)| Step::Call { by, to }),
        6 => (port.clone(), any::<bool>()).prop_map(|(by, takes)| Step::Answer { by, takes }),
        4 => (port.clone(), 0..8_usize).prop_map(|(by, which)| Step::Release { by, which }),
        1 => port.clone().prop_map(|by| Step::Restart { by }),
        1 => port.prop_map(|by| Step::Begin { by }),
        2 => (1..12_u64).prop_map(|quarters| Step::Pass { quarters }),
    ]
}

/// A user's state: circuits of its calls, and calls that wait for its answer.
#[derive(Default)]
struct Known {
    circuits: BTreeMap<CallId, Circuit>,
    waiting: Vec<CallId>,
    calls: Vec<CallId>,
}

impl Known {
    fn learn(&mut self, id: CallId, elements: &Elements) {
        let circuit = elements.connection.and_then(|it| it.circuit());
        if let Some(circuit) = circuit {
            let other = self.circuits.iter().find(|(_, it)| **it == circuit);
            assert!(
                other.is_none_or(|it| *it.0 == id),
                "{circuit} is {other:?}'s"
            );
            self.circuits.insert(id, circuit);
        }
    }

    fn forget(&mut self, id: CallId) {
        self.circuits.remove(&id);
        self.waiting.retain(|it| *it != id);
        self.calls.retain(|it| *it != id);
    }
}

/// Users act at random and PDUs are lost. No circuit is named that a user has for another
/// call, the table is always consistent, and in the end nothing is left.
fn anything_happens(steps: &[Step], mut seed: u64) {
    let mut bed = Bed::new(USERS, |side| Signalling::new(Config::new(side)));
    let mut known: Vec<Known> = (0..3).map(|_| Known::default()).collect();
    let mut lost = move |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 60 == 0
    };
    for (count, step) in steps.iter().enumerate() {
        let now = bed.now;
        match *step {
            Step::Call { by, to } => {
                if let Ok(id) = bed.users[by].setup(now, setup(number(to as u8))) {
                    known[by].calls.push(id);
                }
            }
            Step::Answer { by, takes } => {
                if !known[by].waiting.is_empty() {
                    let id = known[by].waiting.remove(0);
                    let causes = [Cause::CALL_REJECTED, Cause::CIRCUIT_NOT_AVAILABLE];
                    let cause = Cause::new(causes[count % 2]);
                    let user = &mut bed.users[by];
                    let _ = match takes {
                        true => user.accept(now, id, &Elements::default()),
                        false => user.release(now, id, cause),
                    };
                }
            }
            Step::Release { by, which } => {
                if let Some(id) = known[by].calls.get(which) {
                    let _ = bed.users[by].release(now, *id, Cause::new(Cause::NORMAL));
                }
            }
            Step::Restart { by } => {
                let _ = bed.users[by].restart(now, Restart::Link, None);
            }
            Step::Begin { by } => {
                let mut config = Config::new(Side::User);
                config.link.first_sequence = 1 + (count % 250) as u8;
                bed.users[by] = Signalling::new(config);
                bed.users[by].establish(now);
                known[by] = Known::default();
            }
            Step::Pass { quarters } => {
                bed.pass(Duration::from_millis(250 * quarters), &mut lost);
            }
        }
        bed.carry(&mut lost);
        for (user, known) in bed.users.iter_mut().zip(&mut known) {
            while let Some(event) = user.poll_event() {
                match event {
                    Event::Setup(id, elements) => {
                        known.learn(id, &elements);
                        known.waiting.push(id);
                        known.calls.push(id);
                    }
                    Event::Proceeding(id, elements) => known.learn(id, &elements),
                    Event::Connected(id, elements) => {
                        known.learn(id, &elements);
                        user.acknowledge(bed.now, id);
                    }
                    Event::Releasing(id, cause) => {
                        let _ = user.release(bed.now, id, cause);
                    }
                    Event::Released(id, _) => known.forget(id),
                    _ => {}
                }
            }
        }
    }
    // All users hang up.
    for user in &mut bed.users {
        let _ = user.restart(bed.now, Restart::Link, None);
    }
    for _ in 0..3 {
        bed.pass(Duration::from_secs(45), |_| false);
        for user in &mut bed.users {
            while let Some(event) = user.poll_event() {
                if let Event::Setup(id, _) | Event::Releasing(id, _) = event {
                    let _ = user.release(bed.now, id, Cause::new(Cause::NORMAL));
                }
            }
        }
        bed.carry(|_| false);
    }
    bed.check_empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn circuits_are_used_again_once_both_ends_released_them(
        steps in prop::collection::vec(step(), 1..80),
        seed in any::<u64>(),
    ) {
        anything_happens(&steps, seed);
    }
}
