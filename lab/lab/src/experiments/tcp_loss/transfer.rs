//! One run: a bridge in the middle, servers behind it, a client in front.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

use crate::bridge::{Impair, Report, Sharing, Spec};
use crate::testbed::{
    MIDDLE_CLIENT, MIDDLE_RIVAL, MIDDLE_SERVER, RIVAL, SERVER, SERVER_INTERFACE, Testbed,
};
use crate::worker::flows::{
    Figures, FlowClient, FlowHost, FlowJob, FlowOutcome, FlowServer, FlowSpec, ObjectClient,
    ObjectOutcome, Transfer, Way,
};
use crate::worker::{Child, Job, Place};

use super::path::{AT_ONCE, Case, OBJECT, RATE, Work};

/// Linux's congestion control.
pub(super) const CONGESTION: &str = "cubic";
const PORT: u16 = 5001;
/// How much longer than its time a run may take.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long a bridge or a server may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// The system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Tidewall,
    Linux,
}

impl Peer {
    pub(super) const BOTH: [Peer; 2] = [Peer::Tidewall, Peer::Linux];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Peer::Tidewall => "tidewall",
            Peer::Linux => "linux-cubic",
        }
    }

    fn address(self) -> SocketAddrV4 {
        let address: Ipv4Addr = match self {
            Peer::Tidewall => SERVER.0,
            Peer::Linux => RIVAL.0,
        };
        SocketAddrV4::new(address, PORT)
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Mbit/s; the 99th percentile of completion, ms; or the share of the bytes that the
    /// first of a pair received.
    pub(super) result: f64,
    /// Figures of both ends and of the bridge, by name.
    pub(super) values: BTreeMap<String, f64>,
}

/// How late the bridge may be at the 99th percentile, µs: a fifth of the
/// shortest round trip.
pub(super) const LATE: f64 = 200.0;

impl Outcome {
    /// Returns how far the bridge spoilt the run: frames that it lost itself, and µs
    /// beyond [`LATE`]. Smaller is better.
    pub(super) fn fault(&self) -> (u64, u64) {
        let value = |name| self.values.get(name).copied().unwrap_or(0.0);
        let late = value(LAG_P99);
        let beyond = if late > LATE { late as u64 } else { 0 };
        (value(LOST_ITSELF) as u64, beyond)
    }
}

/// Returns true if the bridge lost nothing itself and was not late.
pub(super) fn is_sound(values: &BTreeMap<String, f64>) -> bool {
    let value = |name| values.get(name).copied().unwrap_or(0.0);
    value(LOST_ITSELF) == 0.0 && value(LAG_P99) <= LATE
}

/// Local ports for the connections of a run. No two runs of a session share a port, so
/// one run's remains never affect another.
#[derive(Debug)]
pub(super) struct Ports {
    next: u16,
}

impl Ports {
    const FIRST: u16 = 10_000;
    const LAST: u16 = 65_000;

    pub(super) fn new() -> Self {
        Ports { next: Self::FIRST }
    }

    /// Returns the first of `count` ports.
    pub(super) fn take(&mut self, count: u16) -> u16 {
        if Self::LAST - self.next < count {
            self.next = Self::FIRST;
        }
        let first = self.next;
        self.next += count;
        first
    }
}

/// A bridge and the servers behind it.
struct Session<'a> {
    // Dropped first: the client's side is quiet then.
    servers: Vec<Child>,
    bridge: Child,
    testbed: &'a Testbed,
}

impl<'a> Session<'a> {
    fn start(
        testbed: &'a Testbed,
        peers: &[Peer],
        impair: Impair,
        sharing: Sharing,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let config = testbed.config();
        let spec = Spec {
            left: MIDDLE_CLIENT.to_owned(),
            right: vec![MIDDLE_SERVER.to_owned(), MIDDLE_RIVAL.to_owned()],
            from_left: impair,
            from_right: impair,
            sharing,
            seed,
        };
        let place = Place {
            namespace: testbed.middle()?,
            cpu: config.client_cpu,
        };
        let bridge = Child::start_ready(place, &Job::Bridge(spec), "the bridge")?;
        let servers = peers
            .iter()
            .map(|peer| {
                let (namespace, host) = match peer {
                    Peer::Tidewall => (
                        testbed.server(),
                        FlowHost::Tidewall {
                            interface: SERVER_INTERFACE.to_owned(),
                            cpu: config.server_cpu,
                        },
                    ),
                    Peer::Linux => (
                        testbed.rival()?,
                        FlowHost::Linux {
                            congestion: CONGESTION.to_owned(),
                        },
                    ),
                };
                let place = Place {
                    namespace,
                    cpu: config.server_cpu,
                };
                let job = FlowServer {
                    address: peer.address(),
                    host,
                    write: None,
                };
                Child::start_ready(place, &Job::Flow(FlowJob::Server(job), true), peer.name())
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Session {
            servers,
            bridge,
            testbed,
        })
    }

    /// Runs a client to its end.
    fn client<T: DeserializeOwned>(&self, job: FlowJob, time: Duration) -> anyhow::Result<T> {
        let place = Place {
            namespace: self.testbed.client(),
            cpu: self.testbed.config().client_cpu,
        };
        Child::run(place, &Job::Flow(job, true), "the client", time + TIMEOUT)
    }

    /// Ends the session; returns the servers' figures of their connections, and the
    /// bridge's report.
    fn end(mut self) -> anyhow::Result<(Vec<Vec<Transfer>>, Report)> {
        let transfers = self
            .servers
            .iter_mut()
            .map(|server| server.ask_for("transfers", ANSWER))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let report = self.bridge.ask_for("report", ANSWER)?;
        Ok((transfers, report))
    }
}

/// Runs a case once for a system.
pub(super) fn run(
    testbed: &Testbed,
    case: &Case,
    peer: Peer,
    seed: u64,
    first_port: u16,
    quick: bool,
) -> anyhow::Result<Outcome> {
    let impair = case.path.impair(RATE);
    let session = Session::start(testbed, &[peer], impair, Sharing::Flow, seed)?;
    let mut outcome = match case.work {
        Work::Objects(count) => {
            let job = ObjectClient {
                server: peer.address(),
                first_port,
                count,
                at_once: AT_ONCE,
                bytes: OBJECT,
                congestion: CONGESTION.to_owned(),
            };
            let objects: ObjectOutcome =
                session.client(FlowJob::Objects(job), Duration::from_secs(u64::from(count)))?;
            of_objects(&objects, count)?
        }
        Work::Sends | Work::Receives => {
            let time = case.path.time(quick);
            let way = match case.work {
                Work::Receives => Way::Give,
                _ => Way::Fetch,
            };
            let flows = (0..case.path.flows()).map(|number| FlowSpec {
                server: peer.address(),
                port: first_port + number,
                way,
                after_ms: 0,
                duration_ms: time,
            });
            let job = FlowClient {
                flows: flows.collect(),
                congestion: CONGESTION.to_owned(),
            };
            let flows: Vec<FlowOutcome> =
                session.client(FlowJob::Flows(job), Duration::from_millis(time))?;
            if let Some(why) = flows.iter().find_map(|flow| flow.failed.as_ref()) {
                bail!("{} to {}: {why}", case.setting(), peer.name());
            }
            Outcome {
                result: megabits(flows.iter().map(|flow| (flow.bytes, flow.nanoseconds))),
                // The sender's figures.
                values: match case.work {
                    Work::Receives => means(flows.iter().map(|flow| &flow.figures)),
                    _ => BTreeMap::new(),
                },
            }
        }
    };
    let (transfers, report) = session.end()?;
    let transfers: Vec<Transfer> = transfers.into_iter().flatten().collect();
    let of_server = means(transfers.iter().map(|transfer| &transfer.figures));
    match case.work {
        Work::Receives => {
            let counted = transfers
                .iter()
                .map(|transfer| (transfer.bytes, transfer.nanoseconds));
            if transfers.len() < usize::from(case.path.flows()) {
                bail!("{}: {} lacks transfers", case.setting(), peer.name());
            }
            outcome.result = megabits(counted);
            let out_of_order = of_server.get("out of order");
            outcome
                .values
                .extend(out_of_order.map(|&count| ("out of order".to_owned(), count)));
        }
        _ => outcome.values.extend(of_server),
    }
    complete(&mut outcome.values, &report);
    Ok(outcome)
}

/// Bits per second of the bottleneck, and its round-trip time, ms.
pub(super) const BOTTLENECK: (u64, u32) = (50_000_000, 20);
/// Variation of the delays there. Without it, the flows' packets arrive at the full queue
/// in a fixed order, and one flow may lose all of them (Floyd and Jacobson, "On traffic
/// phase effects", 1992).
const JITTER_US: u64 = 1_000;
/// Delay of the second flow's beginning, ms.
const LATER: u64 = 1_000;
/// Time from then until bytes are counted, ms: both are out of slow start.
const SLOW_START: u64 = 2_000;

/// Runs `pair`, of which the one at `first` begins, and counts bytes for `seconds` while
/// both run.
pub(super) fn share(
    testbed: &Testbed,
    pair: [Peer; 2],
    first: usize,
    seconds: u64,
    seed: u64,
    first_port: u16,
) -> anyhow::Result<Outcome> {
    let path = super::path::Path::lossy(BOTTLENECK.1, 0.0);
    let mut peers = pair.to_vec();
    peers.dedup();
    let impair = Impair {
        jitter_us: JITTER_US,
        ..path.impair(BOTTLENECK.0)
    };
    let session = Session::start(testbed, &peers, impair, Sharing::All, seed)?;
    let end = LATER + SLOW_START + seconds * 1000;
    let flows = pair.iter().enumerate().map(|(number, peer)| {
        let after_ms = if number == first { 0 } else { LATER };
        FlowSpec {
            server: peer.address(),
            port: first_port + number as u16,
            way: Way::Fetch,
            after_ms,
            duration_ms: end - after_ms,
        }
    });
    let job = FlowClient {
        flows: flows.collect(),
        congestion: CONGESTION.to_owned(),
    };
    let flows: Vec<FlowOutcome> =
        session.client(FlowJob::Flows(job), Duration::from_millis(end))?;
    if let Some(why) = flows.iter().find_map(|flow| flow.failed.as_ref()) {
        bail!("sharing: {why}");
    }
    let (transfers, report) = session.end()?;
    let counted: Vec<f64> = flows
        .iter()
        .map(|flow| between(&flow.timeline, LATER + SLOW_START, end))
        .collect();
    let [one, other] = counted[..] else {
        bail!("sharing: {} flows answered", counted.len());
    };
    let mut values = BTreeMap::new();
    for (number, peer) in pair.iter().enumerate() {
        let figures = transfers
            .iter()
            .flatten()
            .find(|transfer| transfer.port == first_port + number as u16);
        for (name, value) in figures.iter().flat_map(|transfer| &transfer.figures) {
            values.insert(format!("{}{}: {name}", peer.name(), number + 1), *value);
        }
    }
    values.insert(
        "both, Mbit/s".to_owned(),
        (one + other) * 8.0 / 1e6 / seconds as f64,
    );
    complete(&mut values, &report);
    Ok(Outcome {
        result: one / (one + other),
        values,
    })
}

/// Returns the bytes between two times, ms, of a timeline.
fn between(timeline: &[u64], from: u64, to: u64) -> f64 {
    let at = |time: u64| {
        let place = (time / crate::worker::flows::TICK_MS).saturating_sub(1) as usize;
        timeline
            .get(place)
            .or(timeline.last())
            .copied()
            .unwrap_or(0)
    };
    at(to).saturating_sub(at(from)) as f64
}

/// Returns the mean Mbit/s of flows.
fn megabits(flows: impl Iterator<Item = (u64, u64)>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for (bytes, nanoseconds) in flows {
        sum += bytes as f64 * 8e3 / nanoseconds.max(1) as f64;
        count += 1;
    }
    sum / f64::from(count.max(1))
}

/// Returns the mean of each figure over connections.
fn means<'a>(figures: impl Iterator<Item = &'a Figures>) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    let mut count = 0.0;
    for figures in figures {
        count += 1.0;
        for (name, value) in figures {
            *sums.entry(name.clone()).or_insert(0.0) += value;
        }
    }
    for value in sums.values_mut() {
        *value /= f64::max(count, 1.0);
    }
    sums
}

fn of_objects(objects: &ObjectOutcome, count: u16) -> anyhow::Result<Outcome> {
    // Failures up to one in a hundred are a result, like late objects.
    if objects.failed.len() * 100 > usize::from(count) {
        let why = objects.failed.first().map_or("", String::as_str);
        bail!("{} of {count} objects failed: {why}", objects.failed.len());
    }
    let sorted = |of: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<u64> = objects.times.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    let all = sorted(|times| times.1);
    // After the handshake: the time for which the server's recovery is responsible.
    let transfer = sorted(|times| times.1.saturating_sub(times.0));
    let mut values = BTreeMap::new();
    for (name, times, quantile) in [
        (P50, &all, 0.5),
        ("p90, ms", &all, 0.9),
        (P99, &all, 0.99),
        ("p50 of the transfer, ms", &transfer, 0.5),
        ("p90 of the transfer, ms", &transfer, 0.9),
        (TRANSFER_P99, &transfer, 0.99),
    ] {
        values.insert(name.to_owned(), percentile(times, quantile)?);
    }
    values.insert("failed".to_owned(), objects.failed.len() as f64);
    Ok(Outcome {
        result: percentile(&all, 0.99)?,
        values,
    })
}

/// Names of percentiles of completion times.
pub(super) const P50: &str = "p50, ms";
pub(super) const P99: &str = "p99, ms";
pub(super) const TRANSFER_P99: &str = "p99 of the transfer, ms";

/// Returns the nearest-rank percentile of sorted ns, in ms.
fn percentile(sorted: &[u64], quantile: f64) -> anyhow::Result<f64> {
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    let value = sorted
        .get(rank.saturating_sub(1))
        .context("no object came")?;
    Ok(*value as f64 / 1e6)
}

/// Results of the bridge: names of values for which the largest run counts.
pub(super) const LOST_ITSELF: &str = "lost by the bridge itself";
pub(super) const LAG_P99: &str = "bridge late, p99, µs";
pub(super) const LAG_MAX: &str = "bridge late, at most, µs";

fn complete(values: &mut BTreeMap<String, f64>, report: &Report) {
    let (sent, again) = (values.get("segments sent"), values.get("retransmitted"));
    if let (Some(&sent), Some(&again)) = (sent, again) {
        values.insert("retransmitted, %".to_owned(), again / sent.max(1.0) * 100.0);
    }
    let ways = [&report.from_left, &report.from_right];
    for (name, count) in [
        ("lost on the path", ways.map(|way| way.lost)),
        ("dropped by the queue", ways.map(|way| way.dropped)),
    ] {
        values.insert(name.to_owned(), count.iter().sum::<u64>() as f64);
    }
    values.insert(LOST_ITSELF.to_owned(), report.lost_itself() as f64);
    values.insert(LAG_P99.to_owned(), report.lag_p99_ns as f64 / 1e3);
    values.insert(LAG_MAX.to_owned(), report.lag_max_ns as f64 / 1e3);
    values.insert("bridge's share of a CPU".to_owned(), report.processor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_become_percentiles() {
        let objects = ObjectOutcome {
            times: (1..=100).map(|n| (1_000_000, n * 2_000_000)).collect(),
            failed: vec!["one".to_owned()],
        };
        let outcome = of_objects(&objects, 101).unwrap();
        assert_eq!(outcome.result, 198.0);
        assert_eq!(outcome.values[P50], 100.0);
        assert_eq!(outcome.values[TRANSFER_P99], 197.0);
        assert!(of_objects(&objects, 50).is_err(), "too many failed");
        assert!(of_objects(&ObjectOutcome::default(), 1).is_err());
    }

    #[test]
    fn bytes_are_counted_between_two_times() {
        // Cumulative at 100, 200, 300 and 400 ms.
        let timeline = [10, 30, 60, 100];
        assert_eq!(between(&timeline, 100, 300), 50.0);
        assert_eq!(between(&timeline, 200, 900), 70.0);
        assert_eq!(between(&[], 100, 200), 0.0);
    }

    #[test]
    fn figures_are_means_over_connections() {
        let figures = |value| Figures::from([("timeouts".to_owned(), value)]);
        let all = [figures(1.0), figures(4.0)];
        assert_eq!(means(all.iter())["timeouts"], 2.5);
        assert_eq!(megabits([(125_000, 1_000_000_000)].into_iter()), 1.0);
        assert_eq!(megabits(std::iter::empty()), 0.0);
    }

    #[test]
    fn ports_are_not_used_twice_before_they_run_out() {
        let mut ports = Ports::new();
        assert_eq!((ports.take(8), ports.take(1000)), (10_000, 10_008));
        for _ in 0..100 {
            let first = ports.take(1000);
            assert!((10_000..=64_000).contains(&first));
        }
    }
}
