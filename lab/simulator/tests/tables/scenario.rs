//! The common parts of the tables: the engines compared, and a bottleneck.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Congestion};
use tidewall_simulator::link::{Counters, Impairment, Queue};
use tidewall_simulator::network::{Application, FlowId, LinkId, Network, Report, Setup};

use crate::table::{median, percentile};

pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Payload of a full segment with timestamps, and the size of its packet.
pub const PAYLOAD: u64 = 1448;
pub const PACKET: u64 = 1500;

/// Longer than any run.
pub const FOREVER: Duration = Duration::from_secs(3600);

/// The engines of the columns: names and configurations. Buffers are larger than any path
/// here needs, so that congestion control decides.
pub fn engines() -> Vec<(&'static str, Config)> {
    let base = Config {
        receive_buffer: 1 << 20,
        receive_buffer_max: 64 << 20,
        send_buffer_max: 64 << 20,
        offload: 65_536,
        ..Config::default()
    };
    let with = |congestion| Config { congestion, ..base };
    vec![
        ("newreno", with(Congestion::NewReno)),
        ("cubic", with(Congestion::Cubic)),
    ]
}

/// The one of [`engines`] with the default congestion control.
pub fn default_engine() -> Config {
    let usual = |config: &Config| config.congestion == Congestion::default();
    let mut engines = engines().into_iter().map(|(_, config)| config);
    engines.find(usual).expect("it is among them")
}

/// The names of [`engines`].
pub fn names() -> Vec<&'static str> {
    engines().into_iter().map(|(name, _)| name).collect()
}

/// A bottleneck and a return path.
#[derive(Clone, Debug)]
pub struct Path {
    pub rate: u64,
    /// Round trip without queueing; half of it in each direction.
    pub round_trip: Duration,
    /// Bytes of the queue; `None`: those of a round trip, at least 20 packets.
    pub queue: Option<u32>,
    /// Other impairments of data.
    pub forward: Impairment,
    /// The link between a bulk's sender and the bottleneck, if there is one.
    pub access: Option<Impairment>,
    /// Other impairments of acknowledgments, whose path has the same rate unless this
    /// sets another.
    pub back: Impairment,
}

impl Path {
    pub fn new(rate: u64, round_trip: Duration) -> Self {
        Self {
            rate,
            round_trip,
            queue: None,
            access: None,
            forward: Impairment::default(),
            back: Impairment::default(),
        }
    }

    /// Bytes that fill the path.
    pub fn product(&self) -> u64 {
        self.rate * self.round_trip.as_micros() as u64 / 8_000_000
    }

    /// Bytes of the queue.
    pub fn limit(&self) -> u32 {
        let usual = self.product().max(20 * PACKET) as u32;
        self.queue.unwrap_or(usual)
    }

    /// Builds both directions.
    pub fn build(&self, network: &mut Network) -> (LinkId, LinkId) {
        let forward = Impairment {
            rate: Some(self.rate),
            delay: self.round_trip / 2,
            queue: Queue {
                limit: Some(self.limit()),
                ..self.forward.queue
            },
            ..self.forward.clone()
        };
        let back = Impairment {
            rate: self.back.rate.or(Some(self.rate)),
            delay: self.round_trip / 2,
            ..self.back.clone()
        };
        (network.link(forward), network.link(back))
    }

    /// Payload bytes that the bottleneck carries in a given time.
    pub fn capacity(&self, time: Duration) -> f64 {
        let bytes = self.rate as f64 / 8.0 * time.as_secs_f64();
        bytes * PAYLOAD as f64 / PACKET as f64
    }
}

pub const BULK: Application = Application::Bulk { bytes: None };

/// Objects, each on its own connection: a request of 100 bytes, and an answer.
pub fn objects(bytes: u64, count: u32) -> Application {
    Application::Exchange {
        request: 100,
        response: bytes,
        count,
        pause: MS,
        keep: false,
    }
}

/// The results of one run.
pub struct Outcome {
    pub report: Report,
    /// Counters of the bottleneck.
    pub forward: Counters,
    /// How long each packet waited for the bottleneck.
    pub waits: Vec<u32>,
    /// Goodput as a share of the bottleneck's capacity.
    pub share: f64,
}

/// Runs the network; a failure of the simulated world fails the test.
pub fn run(network: &mut Network, until: Duration, what: &str) {
    if let Err(failure) = network.run(until) {
        panic!("{what}: {failure}");
    }
}

pub fn report(network: &Network, flow: FlowId) -> Report {
    network.report(flow).expect("a flow of this network")
}

/// One bulk flow for a time; `change` may alter its setup.
pub fn bulk(
    path: &Path,
    config: Config,
    time: Duration,
    seed: u64,
    change: impl FnOnce(&mut Setup),
) -> Outcome {
    let mut network = Network::new(seed);
    let (forward, back) = path.build(&mut network);
    let mut setup = Setup::new(config, forward, back, BULK);
    if let Some(access) = &path.access {
        setup.forward.insert(0, network.link(access.clone()));
    }
    change(&mut setup);
    let flow = network.flow(setup);
    network.watch(forward);
    run(&mut network, time, &format!("{path:?}, seed {seed}"));
    let report = report(&network, flow);
    Outcome {
        share: report.uploaded as f64 / path.capacity(time),
        report,
        forward: network.counters(forward),
        waits: network.waits(forward).to_vec(),
    }
}

/// Medians of several runs of [`bulk`].
pub struct Summary {
    /// Goodput, percent of the payload that the bottleneck can carry.
    pub goodput: String,
    /// Segments retransmitted, percent of the packets that entered the bottleneck.
    pub resent: String,
    pub recoveries: String,
    pub timeouts: String,
    /// Packets that the bottleneck dropped, percent.
    pub dropped: String,
    /// Packets that it marked, percent.
    pub marked: String,
    /// How long packets waited for it, milliseconds: mean and 99th percentile.
    pub wait: String,
    pub wait_most: String,
}

/// Runs [`bulk`] with several seeds.
pub fn bulks(
    path: &Path,
    config: Config,
    time: Duration,
    seeds: u64,
    change: impl Fn(&mut Setup),
) -> Summary {
    let runs: Vec<[f64; 8]> = (0..seeds)
        .map(|seed| {
            let Outcome {
                report,
                forward,
                waits,
                share,
            } = bulk(path, config, time, seed, &change);
            let sent = forward.sent as f64;
            let total: u64 = waits.iter().copied().map(u64::from).sum();
            [
                share * 100.0,
                report.retransmissions as f64 / sent * 100.0,
                report.fast_recoveries as f64,
                report.timeouts as f64,
                forward.dropped as f64 / sent * 100.0,
                forward.marked as f64 / sent * 100.0,
                total as f64 / waits.len() as f64 / 1000.0,
                f64::from(percentile(&waits, 99)) / 1000.0,
            ]
        })
        .collect();
    let middle = |index: usize| median(&runs.iter().map(|run| run[index]).collect::<Vec<_>>());
    let one = |index| format!("{:.1}", middle(index));
    Summary {
        goodput: one(0),
        resent: format!("{:.2}", middle(1)),
        recoveries: middle(2).to_string(),
        timeouts: middle(3).to_string(),
        dropped: format!("{:.2}", middle(4)),
        marked: format!("{:.2}", middle(5)),
        wait: one(6),
        wait_most: one(7),
    }
}

/// How long each of `count` objects took, over several seeds. Data goes from server to
/// client, so the path is reversed.
pub fn completions(
    path: &Path,
    config: Config,
    bytes: u64,
    count: u32,
    seeds: u64,
) -> (Vec<Duration>, u64) {
    let (mut all, mut timeouts) = (Vec::new(), 0);
    for seed in 0..seeds {
        let mut network = Network::new(seed);
        let (data, requests) = path.build(&mut network);
        let flow = network.flow(Setup::new(config, requests, data, objects(bytes, count)));
        run(&mut network, FOREVER, &format!("{path:?}, seed {seed}"));
        let report = report(&network, flow);
        assert!(report.done, "{path:?}, seed {seed}: {report:?}");
        assert_eq!(report.downloaded, bytes * u64::from(count));
        all.extend(report.completions);
        timeouts += report.timeouts;
    }
    (all, timeouts)
}

/// The throughput of a flow at a given loss probability per packet, by the inverse square
/// root law (Mathis, Semke, Mahdavi and Ott 1997), in bytes per second.
pub fn mathis(loss: f64, round_trip: Duration) -> f64 {
    1.22 * PAYLOAD as f64 / (round_trip.as_secs_f64() * loss.sqrt())
}
