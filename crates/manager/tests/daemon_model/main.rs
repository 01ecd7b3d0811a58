//! The manager's state machine against a model: random processes that bind, ask, close,
//! die and lie, a device whose steps fail, and a daemon that is killed between any two
//! steps and started again.

mod action;
mod check;
mod device;
mod world;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use action::{Action, action};
use world::World;

/// How soon the manager tries again what failed.
const RETRY: Duration = Duration::from_millis(100);

fn run(actions: Vec<Action>) -> World {
    let mut world = World::new();
    for action in actions {
        world.act(action);
        world.retry();
        if world.device.killed {
            world.restart();
            world.retry();
        }
        if !world.device.killed {
            world.check();
        }
    }
    if world.device.killed {
        world.restart();
    }
    world
}

/// The same cases every time; `TIDEWALL_SEED` has others drawn.
#[test]
fn nothing_is_lost_nothing_is_left() {
    let seed = std::env::var("TIDEWALL_SEED").ok();
    let seed: u64 = seed.map_or(1, |seed| seed.parse().unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, random);
    let tested = runner.run(&vec(action(), 1..80), |actions| {
        run(actions).end();
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}
