//! Servers from Debian, unmodified: on the kernel's sockets and by `tidewall run`.

pub(super) mod bulk;
pub(super) mod cost;
pub(super) mod floods;
pub(super) mod requests;
pub(super) mod squid;
pub(super) mod start;

use std::net::{IpAddr, SocketAddr};

use tidewall_load::{FixedExchange, HttpSpec, LoadReport, LoadSpec, PingSpec, Reuse, Wait};

use super::Run;
use super::tcp::{self, DOCUMENT, HTTP_PORT, Site, http_load};
use crate::bench::{Measured, server};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::{CLIENT, Config};
use crate::worker::{Child, KEY, NAME, Program, TcpKind, TcpSpec, VALUE};

/// Connections, or outstanding queries to a name server.
const CONNECTIONS: u16 = 50;
/// Port of a proxy's origin, in the client's namespace.
const ORIGIN_PORT: u16 = 8080;
const OURS: &str = "tidewall-run";
/// The kernel's modes that receive on the program's processor.
const LINUX: [System; 3] = System::LINUX;
/// The same and `tidewall run`.
const SYSTEMS: [System; 4] = [System::Run, LINUX[0], LINUX[1], LINUX[2]];

/// The program, and its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    RedisGet,
    RedisSet,
    Memcached,
    Unbound,
    Nginx,
    Haproxy,
}

impl Asked {
    const ALL: [Asked; 6] = [
        Asked::RedisGet,
        Asked::RedisSet,
        Asked::Memcached,
        Asked::Unbound,
        Asked::Nginx,
        Asked::Haproxy,
    ];

    /// Returns the prefix of its claims' names.
    fn id(self) -> &'static str {
        match self {
            Asked::RedisGet => "redis-get",
            Asked::RedisSet => "redis-set",
            Asked::Memcached => "memcached",
            Asked::Unbound => "unbound",
            Asked::Nginx => "nginx",
            Asked::Haproxy => "haproxy",
        }
    }

    /// Returns the setting of a curve.
    fn setting(self) -> &'static str {
        match self {
            Asked::RedisGet => "redis GET",
            Asked::RedisSet => "redis SET",
            Asked::Memcached => "memcached get",
            Asked::Unbound => "unbound, a cached name",
            Asked::Nginx => "nginx, 1 KB kept alive",
            Asked::Haproxy => "haproxy, HTTP",
        }
    }

    fn program(self, site: &Site) -> (Program, u16) {
        match self {
            Asked::RedisGet | Asked::RedisSet => (Program::Redis, 6379),
            Asked::Memcached => (Program::Memcached, 11211),
            Asked::Unbound => (Program::Unbound, 53),
            Asked::Nginx => {
                let root = site.root().to_owned();
                let sendfile = false;
                (Program::Nginx { root, sendfile }, HTTP_PORT)
            }
            Asked::Haproxy => {
                let servers = vec![SocketAddr::new(IpAddr::V4(CLIENT.0), ORIGIN_PORT)];
                (Program::HaproxyHttp { servers }, HTTP_PORT)
            }
        }
    }

    /// Returns a closed loop, or with a `rate` an open one, of requests/s.
    fn load(self, config: Config, rate: Option<u64>) -> LoadSpec {
        let to = |port| HttpSpec {
            connections: CONNECTIONS.into(),
            reuse: Reuse::KeepAlive,
            rate,
            ..HttpSpec::new(server(port), DOCUMENT)
        };
        let exchange = |port, request: String, response: String| HttpSpec {
            exchange: Some(FixedExchange { request, response }),
            ..to(port)
        };
        let http = match self {
            Asked::RedisGet => exchange(
                6379,
                format!("*2\r\n$3\r\nGET\r\n${}\r\n{KEY}\r\n", KEY.len()),
                format!("${}\r\n{VALUE}\r\n", VALUE.len()),
            ),
            Asked::RedisSet => exchange(
                6379,
                format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{KEY}\r\n${}\r\n{VALUE}\r\n",
                    KEY.len(),
                    VALUE.len()
                ),
                "+OK\r\n".to_owned(),
            ),
            Asked::Memcached => exchange(
                11211,
                format!("get {KEY}\r\n"),
                format!("VALUE {KEY} 0 {}\r\n{VALUE}\r\nEND\r\n", VALUE.len()),
            ),
            Asked::Unbound => {
                let ping = PingSpec {
                    outstanding: CONNECTIONS,
                    payload: 2,
                    name: Some(NAME.to_owned()),
                    rate,
                    ..PingSpec::new(server(53))
                };
                let mut load = http_load(config, to(53));
                (load.http, load.ping) = (None, Some(ping));
                return load;
            }
            Asked::Nginx => to(HTTP_PORT),
            // Beside an origin on its processor the client sleeps.
            Asked::Haproxy => HttpSpec {
                wait: Wait::Block,
                ..to(HTTP_PORT)
            },
        };
        http_load(config, http)
    }

    /// Returns loads against it on a system.
    fn curve(
        self,
        system: System,
        site: &Site,
        setting: &'static str,
        loads: Vec<LoadSpec>,
    ) -> Curve {
        let (program, port) = self.program(site);
        Curve {
            setting: Some(setting),
            ..Curve::over_tcp(system, TcpSpec::new(TcpKind::Program(program), port), loads)
        }
    }
}

/// Returns curves of all requests on each of the systems, at one load, if there is one.
fn curves(
    systems: &[System],
    asked: &[Asked],
    site: &Site,
    load: impl Fn(Asked) -> Option<LoadSpec>,
) -> Vec<Curve> {
    let of = |system: System| {
        let load = &load;
        (asked.iter()).map(move |asked| {
            let loads = load(*asked).into_iter().collect();
            asked.curve(system, site, asked.setting(), loads)
        })
    };
    systems.iter().copied().flat_map(of).collect()
}

/// The document's bytes: with its head in one segment.
const DOCUMENT_BYTES: usize = 1024;

fn site() -> anyhow::Result<Site> {
    Site::with(&[(DOCUMENT, DOCUMENT_BYTES)])
}

/// Returns the programs that are installed here; notes the missing ones.
fn installed(run: &mut Run<'_>, site: &Site) -> Vec<Asked> {
    let mut there = Vec::new();
    for asked in Asked::ALL {
        let (program, _) = asked.program(site);
        match program.is_there() {
            true => there.push(asked),
            false => run.note(format!(
                "{}: not installed (scripts/setup.sh), so not measured.",
                asked.setting()
            )),
        }
    }
    there
}

/// Starts the proxy's origin; the caller must keep it.
fn origin(run: &Run<'_>, site: &Site) -> anyhow::Result<Child> {
    let files = TcpSpec {
        port: ORIGIN_PORT,
        dummies: Vec::new(),
        unread: Vec::new(),
        ..site.server(0)
    };
    run.bench.serve_beside(files)
}

/// Responses/s.
fn rate(report: &LoadReport) -> Option<f64> {
    match (&report.http, &report.ping) {
        (Some(http), _) => Some(http.rate),
        (None, Some(ping)) => Some(ping.rate),
        _ => None,
    }
}

/// Reduces a load to responses/s against the blast's rate.
fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let Some(ping) = &report.ping else {
        return tcp::reduce(curve, load, measured);
    };
    let offered = report.blast.as_ref().map_or(0.0, |blast| blast.rate);
    // As for TCP: no answer without a blast is a failed set-up.
    if ping.measured.echoed == 0 && offered < 2.0 {
        return None;
    }
    let mut sample = Sample {
        x: offered,
        y: ping.rate,
        drops: measured.drops.clone(),
        ..Sample::default()
    };
    if let Some(latency) = ping.latency {
        for (name, value) in [("p50 µs", latency.p50), ("p99 µs", latency.p99)] {
            sample.values.insert(name.to_owned(), value as f64 / 1e3);
        }
    }
    for (name, count) in [
        ("lost", ping.measured.lost),
        ("errors", ping.measured.errors),
    ] {
        if count > 0 {
            sample.values.insert(name.to_owned(), count as f64);
        }
    }
    if let Some(usage) = &measured.outcome.usage {
        let idle = 100.0 * usage.idle;
        sample.values.insert(tcp::SERVER_IDLE.to_owned(), idle);
    }
    Some(sample)
}

/// Adds the note that belongs to all results.
fn note_programs(run: &mut Run<'_>) {
    run.note(format!(
        "One process of one thread each; {CONNECTIONS} connections, one request at a time on each, \
         or as many queries under way; a value of {} bytes, a document of 1,024. The client polls \
         its device itself; haproxy's, which shares its processor with the origin, sleeps. Every \
         answer is looked at. Where the server is idle (its share is with each point), the client \
         was the limit.",
        VALUE.len()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_valid() {
        for asked in Asked::ALL {
            for rate in [None, Some(10_000)] {
                asked.load(Config::default(), rate).check().unwrap();
            }
        }
    }

    #[test]
    fn both_of_redis_are_asked_of_one_server() {
        let site = site().unwrap();
        let setup = |asked: Asked| asked.curve(System::Run, &site, "x", Vec::new()).setup(None);
        assert_eq!(setup(Asked::RedisGet), setup(Asked::RedisSet));
        let curve = Asked::RedisGet.curve(System::Run, &site, "x", Vec::new());
        assert_eq!(curve.name(), OURS);
    }
}
