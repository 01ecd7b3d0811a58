//! The manager's state machine against a model:
//!
//! - random processes that bind, ask, close, die and lie
//! - others that do not know a manager
//! - a kernel that binds by Linux's rules
//! - a device whose steps fail
//! - a daemon that is killed between any two steps and restarted

mod action;
mod check;
mod device;
mod kernel;
mod shares;
mod world;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use action::{Action, action};
use world::{ASKED, OWNED, UIDS, World};

/// How soon the manager retries what failed.
const RETRY: Duration = Duration::from_millis(100);

/// How often the manager examines what others could change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// `joined`: every process has joined, to begin with.
fn run(joined: bool, actions: Vec<Action>) -> World {
    let mut world = World::new();
    for process in (0..UIDS.len()).filter(|_| joined) {
        world.act(Action::Connect(process));
        world.act(Action::Join(process, false));
    }
    for action in actions {
        world.act(action);
        world.retry();
        if world.device.killed {
            world.restart();
            world.retry();
        }
        world.look();
        if !world.device.killed {
            world.check();
        }
    }
    if world.device.killed {
        world.restart();
    }
    world
}

/// The same cases every time; `TIDEWALL_SEED` selects others.
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
    let tested = runner.run(
        &(any::<bool>(), vec(action(), 1..80)),
        |(joined, actions)| {
            run(joined, actions).end();
            Ok(())
        },
    );
    tested.unwrap_or_else(|error| panic!("{error}"));
    // The test must not pass by refusing everything.
    let [asked, owned] = [&ASKED, &OWNED].map(|count| count.load(Relaxed));
    println!("{owned} of {asked} sockets owned their ports, 0 of another user's");
    assert!(owned > asked / 10, "{owned} of {asked}");
}
