//! Parts that the experiments on waiting for connections share (Banga and Mogul, USENIX
//! 1998, §5): the servers, their documents, the clients, and how a load becomes numbers.
//!
//! As in the paper, each request has its own connection, S-clients set the rates, and
//! connections that never send a request stand beside them. A curve's last point is the
//! saturation throughput: a closed loop keeps the server busy there, which avoids a
//! search for the saturating rate.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tidewall_load::{HttpSpec, IdleSpec, Latency, LoadSpec, Reuse, SClientSpec, Wait};
use tidewall_service::http::proxy::Spec;
use tidewall_service::http::{self, Limits};

use super::Run;
use super::tcp::{self, HTTP_PORT, Site};
use crate::bench::{Bench, Measured, load, open_files, server};
use crate::result::{Series, find};
use crate::sweep::{Better, Curve, Plan, Sample};
use crate::system::System;
use crate::testbed::{CLIENT, Config, more_clients};
use crate::worker::{Child, Program, TcpKind, TcpSpec, Waiting};

/// A document: path, bytes, and the bytes in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) path: &'static str,
    bytes: usize,
}

/// The paper's smaller document.
pub(super) const SMALL: Document = Document {
    path: "/1259",
    bytes: 1_259,
};
/// Its larger one.
pub(super) const LARGE: Document = Document {
    path: "/8192",
    bytes: 8_192,
};
/// Connections without requests in the paper's realistic load.
pub(super) const COLD: u32 = 750;
/// Outstanding requests at saturation: as few as keep the server busy. With more it
/// serves no more, and a call finds more connections ready at once, which hides the cost
/// of the call itself.
pub(super) const CONNECTIONS: u32 = 4;
/// Port of the proxy's origin.
const ORIGIN_PORT: u16 = 8080;
/// Load before measuring begins.
const WARM_UP: Duration = Duration::from_millis(400);
/// Time measured.
const WINDOW: Duration = Duration::from_millis(1_400);
/// No client of an experiment counts as stalled within this time.
const FOR_LONG: Duration = Duration::from_secs(900);
/// Other files that a client has open.
const OTHER_FILES: u64 = 1_000;
/// Client addresses of the busy connections. Idle ones have others: Linux finds a free
/// port the faster the fewer are taken.
const HOT: usize = 2;

/// A server under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    /// This project's server, on Tidewall.
    Tidewall(Waiting),
    /// The same server on Linux.
    Linux(Waiting),
    /// Debian's, on Linux: Squid if the server is a proxy, otherwise nginx.
    Program,
}

/// The paper's unmodified kernel.
pub(super) const CLASSICAL: Contestant = Contestant::Tidewall(Waiting::ClassicalLinear);
/// Its kernel with the new select.
pub(super) const LINEAR: Contestant = Contestant::Tidewall(Waiting::SelectLinear);
/// Its kernel with the new select and the new allocator.
pub(super) const SELECT: Contestant = Contestant::Tidewall(Waiting::Select);
/// Numbered descriptors with epoll.
pub(super) const EPOLL: Contestant = Contestant::Tidewall(Waiting::Epoll);
/// The servers' default, unless an experiment sets another.
pub(super) const SELECTOR: Contestant = Contestant::Tidewall(Waiting::Named);
pub(super) const LINUX_SELECT: Contestant = Contestant::Linux(Waiting::Select);
pub(super) const LINUX_EPOLL: Contestant = Contestant::Linux(Waiting::Named);

impl Contestant {
    /// Returns how its host receives: Linux by packet steering, the mode that is best at
    /// one connection per request.
    fn system(self) -> System {
        match self {
            Contestant::Tidewall(_) => System::Tidewall,
            Contestant::Linux(_) | Contestant::Program => System::LinuxRps,
        }
    }

    fn is_linux(self) -> bool {
        self.system().is_linux()
    }
}

/// Names of the series in the claims.
pub(super) const CLASSICAL_NAME: &str = "classical-select+linear-allocator";
pub(super) const SELECT_NAME: &str = "select";
pub(super) const SELECTOR_NAME: &str = "selector";

/// The kind of measured server, and its needs.
pub(super) struct Servers {
    site: Site,
    /// Multiplications per request.
    work: u32,
    proxy: bool,
}

impl Servers {
    /// Returns servers of files that make `work` multiplications for each request.
    pub(super) fn of_files(work: u32) -> anyhow::Result<Self> {
        let documents = [SMALL, LARGE].map(|document| (document.path, document.bytes));
        Ok(Servers {
            site: Site::with(&documents)?,
            work,
            proxy: false,
        })
    }

    /// Returns proxies that do.
    pub(super) fn proxies(work: u32) -> anyhow::Result<Self> {
        Ok(Servers {
            proxy: true,
            ..Self::of_files(work)?
        })
    }

    /// Starts the origin of the proxies, if they are proxies; the caller must keep it.
    pub(super) fn origin(&self, bench: &Bench) -> anyhow::Result<Option<Child>> {
        if !self.proxy {
            return Ok(None);
        }
        // It closes its connections first and would remember them for a minute. Its
        // memory of a stack that is gone would make the next stack, which starts its
        // numbers afresh, retry after a second.
        bench.testbed.in_client(&[
            "sh",
            "-ec",
            "echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets",
        ])?;
        let tcp = TcpSpec::new(self.files(0), ORIGIN_PORT);
        bench.serve_beside(tcp).map(Some)
    }

    fn files(&self, work: u32) -> TcpKind {
        TcpKind::Http {
            root: self.site.root().to_owned(),
            work,
            limits: patient(Limits::default()),
        }
    }

    fn kind(&self, contestant: Contestant) -> TcpKind {
        let origin = SocketAddr::new(IpAddr::V4(CLIENT.0), ORIGIN_PORT);
        match (contestant, self.proxy) {
            (Contestant::Program, true) => TcpKind::Program(Program::Squid { origin }),
            (Contestant::Program, false) => TcpKind::Program(Program::Nginx {
                root: self.site.root().to_owned(),
                sendfile: false,
            }),
            (_, false) => self.files(self.work),
            (_, true) => {
                let spec = Spec::new(HTTP_PORT, Some(origin));
                TcpKind::Proxy(Spec {
                    work: self.work,
                    limits: patient(spec.limits),
                    ..spec
                })
            }
        }
    }

    /// Returns whether it can be measured here.
    pub(super) fn has(&self, contestant: Contestant) -> bool {
        match self.kind(contestant) {
            TcpKind::Program(program) => program.is_there(),
            _ => true,
        }
    }

    /// Returns a curve of `loads` against one of them.
    pub(super) fn curve(
        &self,
        contestant: Contestant,
        setting: &'static str,
        loads: Vec<LoadSpec>,
    ) -> Curve {
        let waiting = match contestant {
            Contestant::Tidewall(waiting) | Contestant::Linux(waiting) => waiting,
            Contestant::Program => Waiting::Named,
        };
        let tcp = TcpSpec {
            waiting,
            ..TcpSpec::new(self.kind(contestant), HTTP_PORT)
        };
        Curve {
            setting: Some(setting),
            better: Better::Lower,
            ..Curve::over_tcp(contestant.system(), tcp, loads)
        }
    }

    /// Returns how a busy client waits. Beside an origin on its processor it sleeps.
    fn wait(&self) -> Wait {
        if self.proxy { Wait::Block } else { Wait::Spin }
    }

    /// Returns a closed loop beside `cold` connections: the server is saturated.
    pub(super) fn saturating(&self, config: Config, document: Document, cold: u32) -> LoadSpec {
        self.loop_of(CONNECTIONS, config, document, cold)
    }

    /// Returns the same with this many outstanding requests.
    pub(super) fn loop_of(
        &self,
        connections: u32,
        config: Config,
        document: Document,
        cold: u32,
    ) -> LoadSpec {
        let http = HttpSpec {
            connections,
            reuse: Reuse::OneRequest,
            sources: hot_sources(),
            wait: self.wait(),
            ..HttpSpec::new(server(HTTP_PORT), document.path)
        };
        LoadSpec {
            http: Some(http),
            ..beside(config, cold)
        }
    }
}

/// Returns `rate` connections/s from S-clients beside `cold` connections.
pub(super) fn at_rate(config: Config, document: Document, rate: u64, cold: u32) -> LoadSpec {
    LoadSpec {
        s_clients: Some(s_clients(document, rate)),
        ..beside(config, cold)
    }
}

pub(super) fn s_clients(document: Document, rate: u64) -> SClientSpec {
    let files = open_files().saturating_sub(OTHER_FILES).clamp(64, 100_000);
    SClientSpec {
        sources: hot_sources(),
        timeout: Duration::from_secs(2),
        open_max: Some(u32::try_from(files).unwrap_or(u32::MAX)),
        ..SClientSpec::new(server(HTTP_PORT), document.path, rate.max(1))
    }
}

fn beside(config: Config, cold: u32) -> LoadSpec {
    LoadSpec {
        idle: (cold > 0).then(|| IdleSpec {
            sources: more_clients().split_off(HOT),
            ..IdleSpec::new(server(HTTP_PORT), cold)
        }),
        warm_up: WARM_UP,
        duration: WINDOW,
        ..load(config)
    }
}

fn hot_sources() -> Vec<IpAddr> {
    let mut sources = more_clients();
    sources.truncate(HOT);
    sources
}

fn patient(limits: Limits) -> http::Limits {
    Limits {
        request: FOR_LONG,
        idle: FOR_LONG,
        stall: FOR_LONG,
        ..limits
    }
}

/// Returns the connections that one process on Linux may have beside others.
pub(super) fn cold_on_linux(cold: u32) -> u32 {
    let files = open_files().saturating_sub(2 * OTHER_FILES);
    cold.min(u32::try_from(files).unwrap_or(u32::MAX))
}

/// Names of a point's values.
pub(super) const IDLE: &str = "idle";
pub(super) const RATE: &str = "requests/s";
pub(super) const LOOP: &str = "clients in a closed loop";
pub(super) const STANDING: &str = "cold connections";
/// Names of the vertical axes.
pub(super) const TIME_AXIS: &str = "mean response time, µs";
pub(super) const IDLE_AXIS: &str = "% of the server's processor idle";

/// Reduces a load to response time against the rate of connections begun; for a closed
/// loop, against the rate of responses. Without responses, each took at least the
/// measured time. That is a result beside cold connections, which show that the server is
/// there; without them it is a missing server.
pub(super) fn reduce(_: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let there = measured.held.is_some();
    let mean = |latency: Option<&Latency>| {
        latency.map_or(load.duration.as_secs_f64() * 1e6, |latency| {
            latency.mean / 1e3
        })
    };
    let mut sample = match (&report.http, &report.s_clients) {
        (Some(http), _) if there || http.measured.responses > 0 => Sample {
            x: http.rate,
            y: mean(http.latency.as_ref()),
            drops: measured.drops.clone(),
            values: tcp::values(report),
            ..Sample::default()
        },
        (None, Some(s_clients)) if there || s_clients.measured.responses > 0 => {
            let corrected = s_clients.response.corrected.as_ref();
            let time = corrected.map(|corrected| corrected.summary);
            let counts = s_clients.measured;
            let mut sample = Sample {
                x: s_clients.offered_rate,
                y: mean(time.as_ref()),
                drops: measured.drops.clone(),
                ..Sample::default()
            };
            if let Some(time) = time {
                for (name, value) in [("p50 µs", time.p50), ("p99 µs", time.p99)] {
                    let microseconds = value as f64 / 1e3;
                    sample.values.insert(name.to_owned(), microseconds);
                }
            }
            sample.values.insert(RATE.to_owned(), s_clients.rate);
            for (name, count) in [
                ("not connected in time", counts.gave_up),
                ("late", counts.skipped),
                ("no file", counts.no_room),
                ("refused", counts.refused),
                ("no port", counts.local_errors),
                ("failed", counts.failed + counts.malformed),
                ("timed out", counts.timeouts),
                ("other status", counts.other_status),
            ] {
                if count > 0 {
                    sample.values.insert(name.to_owned(), count as f64);
                }
            }
            sample
        }
        _ => return None,
    };
    let values = &mut sample.values;
    if let Some(http) = &report.http {
        values.insert(RATE.to_owned(), http.rate);
        let clients = load.http.as_ref().map_or(0, |spec| spec.connections);
        values.insert(LOOP.to_owned(), clients.into());
    }
    if let Some(usage) = &measured.outcome.usage {
        values.insert(IDLE.to_owned(), 100.0 * usage.left());
    }
    if let Some(held) = measured.held {
        // They would not be cold connections if they had gone.
        values.insert(STANDING.to_owned(), held.open as f64);
        if held.open * 100 < u64::from(held.connections) * 99 {
            return None;
        }
    }
    Some(sample)
}

/// Reduces a load to requests/s against the number of cold connections.
pub(super) fn reduce_by_cold(
    curve: &Curve,
    load: &LoadSpec,
    measured: &Measured,
) -> Option<Sample> {
    let mut sample = reduce(curve, load, measured)?;
    sample.values.insert("mean µs".to_owned(), sample.y);
    sample.y = sample.values.remove(RATE)?;
    sample.x = sample.values.remove(STANDING).unwrap_or(0.0);
    Some(sample)
}

/// Returns the same points with another of their values on the vertical axis; those of a
/// closed loop stay marked as such.
pub(super) fn redrawn(series: &Series, value: &str, setting: &str, axis: &str) -> Series {
    series.redrawn(value, setting, axis, LOOP)
}

/// Returns the saturation throughput of a curve against the rate: that of its last point,
/// if that is the closed loop's.
pub(super) fn saturation(series: &[Series], system: &str, setting: &str) -> Option<f64> {
    let values = &find(series, system, Some(setting))?.last()?.values;
    values.get(LOOP)?;
    values.get(RATE).copied()
}

/// Returns a value of a curve's first point, that of the lowest rate, if it is one of
/// S-clients.
pub(super) fn at_lowest(
    series: &[Series],
    system: &str,
    setting: &str,
    value: &str,
) -> Option<f64> {
    let values = &find(series, system, Some(setting))?.points.first()?.values;
    match values.contains_key(LOOP) {
        true => None,
        false => values.get(value).copied(),
    }
}

/// Measures groups of curves into one result. Each has its own number of rounds, unless a
/// number was requested.
pub(super) fn sweeps(
    run: &mut Run<'_>,
    groups: &[(Vec<Curve>, u32)],
    point: impl Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::new();
    for (curves, rounds) in groups {
        all.extend(run.sweep(curves, run.options.rounds_of(*rounds), &point)?);
    }
    Ok(all)
}

/// Returns the undisturbed capacity of the selector with the smaller document, the median
/// of three; the rates of an experiment are shares of it.
pub(super) fn capacity(run: &mut Run<'_>, servers: &Servers) -> anyhow::Result<f64> {
    let load = servers.saturating(run.config(), SMALL, 0);
    let curve = servers.curve(SELECTOR, "capacity", vec![load]);
    let noted = run.notes.len();
    let series = run.sweep(&[curve], Plan::exactly(3), reduce)?;
    // Notes of this auxiliary measurement are not reported.
    let notes = run.notes.split_off(noted).join("; ");
    saturation(&series, SELECTOR_NAME, "capacity")
        .with_context(|| format!("what the server can do could not be measured: {notes}"))
}

/// All contestants, on Tidewall and on Linux.
pub(super) const CONTESTANTS: [Contestant; 7] = [
    CLASSICAL,
    LINEAR,
    SELECT,
    EPOLL,
    SELECTOR,
    LINUX_EPOLL,
    LINUX_SELECT,
];

/// Returns all contestants by their names in results, and how each is run.
pub(super) fn describe(servers: &Servers) -> BTreeMap<String, String> {
    CONTESTANTS
        .into_iter()
        .map(|contestant| {
            let linux = contestant.is_linux();
            let curve = servers.curve(contestant, "", Vec::new());
            let how = match contestant {
                Contestant::Tidewall(waiting) | Contestant::Linux(waiting) => {
                    waiting.describe(linux)
                }
                Contestant::Program => "Debian's, one process, no logs",
            };
            let mode = match contestant.system() {
                System::LinuxRps => "; receive packet steering to the server's processor",
                _ => "; the server polls the driver",
            };
            (curve.name().to_owned(), format!("{how}{mode}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_and_cold_connections_have_sources_of_their_own() {
        let servers = Servers::of_files(0).unwrap();
        let load = servers.saturating(Config::default(), LARGE, 100_000);
        load.check().unwrap();
        let (idle, http) = (load.idle.unwrap(), load.http.unwrap());
        assert!(idle.path.is_empty(), "they ask for nothing");
        assert!(http.sources.iter().all(|hot| !idle.sources.contains(hot)));
        assert_eq!(
            (http.connections, http.reuse),
            (CONNECTIONS, Reuse::OneRequest)
        );
        assert!(beside(Config::default(), 0).idle.is_none());
        at_rate(Config::default(), SMALL, 50_000, COLD)
            .check()
            .unwrap();
    }

    #[test]
    fn a_proxy_forwards_to_the_origin() {
        let servers = Servers::proxies(7).unwrap();
        let curve = servers.curve(LINUX_SELECT, "x", Vec::new());
        assert_eq!(curve.name(), "linux-select");
        let TcpKind::Proxy(spec) = &curve.tcp.as_ref().unwrap().kind else {
            panic!("a proxy");
        };
        assert_eq!(spec.work, 7);
        assert_eq!(spec.origin.unwrap().to_string(), "10.77.0.1:8080");
        assert!(spec.limits.request >= FOR_LONG);
        let squid = servers.curve(Contestant::Program, "x", Vec::new());
        assert_eq!(squid.name(), "squid");
        let nginx = Servers::of_files(0).unwrap();
        assert_eq!(
            nginx.curve(Contestant::Program, "x", Vec::new()).name(),
            "nginx"
        );
    }

    #[test]
    fn every_contestant_is_described() {
        let servers = Servers::of_files(0).unwrap();
        let systems = describe(&servers);
        assert_eq!(systems.len(), CONTESTANTS.len());
        for name in [CLASSICAL_NAME, SELECT_NAME, SELECTOR_NAME, "linux-epoll"] {
            assert!(systems.contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_value_can_be_drawn_by_itself() {
        let mut series =
            crate::result::tests::curve("select", Some("a"), &[(1e3, 90.0), (2e3, 95.0)]);
        series.points[0].values.insert(IDLE.into(), 88.0);
        let idle = redrawn(&series, IDLE, "b", IDLE_AXIS);
        assert_eq!((idle.points.len(), idle.points[0].y), (1, 88.0));
        assert_eq!(idle.setting.as_deref(), Some("b"));
        series.points[1].values.insert(RATE.into(), 1_990.0);
        let mut all = [series];
        assert_eq!(at_lowest(&all, "select", "a", IDLE), Some(88.0));
        assert_eq!(saturation(&all, "select", "a"), None, "not a closed loop");
        for point in &mut all[0].points {
            point.values.insert(LOOP.into(), 8.0);
        }
        assert_eq!(saturation(&all, "select", "a"), Some(1_990.0));
        assert_eq!(at_lowest(&all, "select", "a", IDLE), None);
    }
}
