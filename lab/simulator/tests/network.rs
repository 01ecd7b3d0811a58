//! The network itself: it delivers, and does so repeatably.

use std::time::Duration;

use tidewall_protocol::tcp::Config;
use tidewall_simulator::link::{Impairment, Loss, Queue, Reorder};
use tidewall_simulator::network::{Application, FlowId, LinkId, Network, Reading, Setup};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// 10 Mbit/s, 10 ms in each direction.
fn wire() -> Impairment {
    Impairment {
        rate: Some(10_000_000),
        delay: 10 * MS,
        queue: Queue {
            limit: Some(60_000),
            mark: None,
        },
        ..Impairment::default()
    }
}

fn rough() -> Impairment {
    Impairment {
        loss: Loss::Random { probability: 0.02 },
        reorder: Reorder {
            probability: 0.05,
            delay: 5 * MS,
        },
        duplicate: 0.02,
        jitter: MS / 10,
        ..wire()
    }
}

fn setup(forward: LinkId, back: LinkId, application: Application) -> Setup {
    Setup::new(Config::default(), forward, back, application)
}

/// One flow over one link per direction.
fn one(link: &Impairment, application: Application, seed: u64) -> (Network, FlowId) {
    let mut network = Network::new(seed);
    let (forward, back) = (network.link(link.clone()), network.link(link.clone()));
    let flow = network.flow(setup(forward, back, application));
    (network, flow)
}

const MEGABYTE: Application = Application::Bulk {
    bytes: Some(1_000_000),
};

#[test]
fn a_bulk_arrives_whole_as_fast_as_the_link_allows() {
    let (mut network, flow) = one(&wire(), MEGABYTE, 1);
    network.run(60 * SECOND).unwrap();
    let report = network.report(flow).unwrap();
    assert!(report.done);
    assert_eq!((report.uploaded, report.downloaded), (1_000_000, 0));
    // 829 ms at 10 Mbit/s with headers, and slow start.
    let took = report.completions[0];
    assert!((830 * MS..1100 * MS).contains(&took), "{took:?}");
}

#[test]
fn a_bulk_arrives_whole_over_a_rough_link() {
    for seed in 0..20 {
        let (mut network, flow) = one(&rough(), MEGABYTE, seed);
        network.run(200 * SECOND).unwrap();
        let report = network.report(flow).unwrap();
        assert!(report.done && report.uploaded == 1_000_000, "{report:?}");
        assert!(report.retransmissions > 0);
    }
}

#[test]
fn exchanges_complete_on_one_connection_and_on_many() {
    for link in [wire(), rough()] {
        for keep in [false, true] {
            let application = Application::Exchange {
                request: 100,
                response: 20_000,
                count: 30,
                pause: 5 * MS,
                keep,
            };
            let (mut network, flow) = one(&link, application, 3);
            network.run(200 * SECOND).unwrap();
            let report = network.report(flow).unwrap();
            assert!(report.done, "{report:?}");
            assert_eq!(report.completions.len(), 30);
            assert_eq!((report.uploaded, report.downloaded), (3_000, 600_000));
            let least = if keep { 20 * MS } else { 40 * MS };
            assert!(report.completions.iter().all(|&took| took > least));
        }
    }
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    let outcome = |seed| {
        let mut network = Network::new(seed);
        let (forward, back) = (network.link(rough()), network.link(rough()));
        let objects = Application::Exchange {
            request: 100,
            response: 5000,
            count: 20,
            pause: MS,
            keep: false,
        };
        let flows = [MEGABYTE, objects, MEGABYTE]
            .map(|application| network.flow(setup(forward, back, application)));
        network.watch(forward);
        network.run(5 * SECOND).unwrap();
        let reports = flows.map(|flow| format!("{:?}", network.report(flow)));
        (
            reports,
            network.counters(forward),
            network.counters(back),
            network.waits(forward).to_vec(),
        )
    };
    assert_eq!(outcome(9), outcome(9));
    assert_ne!(outcome(9), outcome(10));
}

#[test]
fn a_device_that_refuses_delays_and_loses_nothing() {
    for offload in [0, 65_536] {
        let mut network = Network::new(4);
        let unlimited = Impairment {
            queue: Queue::default(),
            ..wire()
        };
        let (forward, back) = (network.link(unlimited.clone()), network.link(unlimited));
        let config = Config {
            offload,
            ..Config::default()
        };
        let flow = network.flow(Setup {
            client: config,
            device_queue: Some(10_000),
            ..setup(forward, back, MEGABYTE)
        });
        network.watch(forward);
        network.run(60 * SECOND).unwrap();
        let report = network.report(flow).unwrap();
        assert!(report.done && report.refusals > 0, "{report:?}");
        assert_eq!(report.retransmissions, 0);
        assert!(report.completions[0] < 1100 * MS);
        if offload == 0 {
            let most = network.waits(forward).iter().max();
            assert!(most < Some(&10_000), "a queue of 8 ms: {most:?}");
        }
    }
}

#[test]
fn slow_reading_slows_the_sender() {
    let mut network = Network::new(5);
    let (forward, back) = (network.link(wire()), network.link(wire()));
    let flow = network.flow(Setup {
        reading: Reading {
            at_once: 10_000,
            pause: 100 * MS,
        },
        ..setup(forward, back, MEGABYTE)
    });
    network.run(60 * SECOND).unwrap();
    let report = network.report(flow).unwrap();
    assert!(report.done);
    let took = report.completions[0];
    assert!((99 * 100 * MS..11 * SECOND).contains(&took), "{took:?}");
}

#[test]
fn flows_can_be_followed_step_by_step() {
    let (mut network, flow) = one(&wire(), Application::Bulk { bytes: None }, 6);
    network.run(4 * SECOND).unwrap();
    let first = network.report(flow).unwrap().uploaded;
    network.run(5 * SECOND).unwrap();
    let second = network.report(flow).unwrap().uploaded - first;
    assert_eq!(network.now(), 5 * SECOND);
    // All of the link except the headers.
    let share = second * 8 * 1500 / 1448 / 100_000;
    assert!((98..=100).contains(&share), "{share} %");
    assert!(!network.report(flow).unwrap().done);
}
