//! Does the rate that S-clients offer depend on what the server can do?
//!
//! A server that accepts 5,000 connections a second from a short queue is
//! offered ten times as many. Prints what it was offered, second by second, and
//! how far from the rate asked for; ends with 1 where that is over 2 %.
//!
//! ```text
//! cargo run --release -p tidewall-load --example s_client_rate [RATE [SECONDS]]
//! ```

#[path = "../tests/server/mod.rs"]
mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

use server::{Accepting, Behaviour, Server};
use tidewall_load::{LoadSpec, Phase, SClientSpec, run};

/// What the server accepts, connections/s.
const CAPACITY: u64 = 5_000;
/// How far off the rate may be.
const WITHIN: f64 = 0.02;
/// Source addresses, all of 127.0.0.0/8 being this host's.
const SOURCES: u8 = 32;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual| {
        arguments
            .next()
            .map_or(Ok(usual), |text| text.parse::<u64>())
            .expect("arguments are numbers: RATE SECONDS")
    };
    let (rate, seconds) = (number(10 * CAPACITY), number(5));
    let server = Server::start(
        Behaviour::Answer(1259),
        Accepting {
            rate: CAPACITY,
            backlog: 128,
        },
    );
    let mut s_clients = SClientSpec::new(server.address, "/doc", rate);
    s_clients.sources = (1..=SOURCES)
        .map(|host| IpAddr::from(Ipv4Addr::new(127, 0, 1, host)))
        .collect();
    s_clients.timeout = Duration::from_secs(2);
    let mut spec = LoadSpec::new(Duration::from_secs(seconds));
    spec.warm_up = Duration::from_secs(1);
    spec.s_clients = Some(s_clients);

    let mut second = (0.0, 0);
    let accepted = server.accepted();
    let report = run(&spec, |progress| {
        let (true, Some(counts)) = (progress.phase == Phase::Measuring, progress.s_clients) else {
            return;
        };
        second = (
            second.0 + progress.interval.as_secs_f64(),
            second.1 + counts.begun,
        );
        if second.0 >= 1.0 {
            println!("  {:6.0} offered/s", second.1 as f64 / second.0);
            second = (0.0, 0);
        }
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let accepted = server.accepted() - accepted;
    let Some(report) = report.s_clients else {
        return ExitCode::from(2);
    };
    let counts = report.measured;
    let off = report.offered_rate / rate as f64 - 1.0;
    println!(
        "asked for {rate}/s, offered {:.0}/s ({:+.2} %); connected {:.0}/s, answered {:.0}/s\n\
         server accepted {:.0}/s of at most {CAPACITY}/s",
        report.offered_rate,
        100.0 * off,
        counts.connected as f64 / report.duration.as_secs_f64(),
        report.rate,
        accepted as f64 / (spec.warm_up + spec.duration).as_secs_f64(),
    );
    println!("{counts:?}, {} unfinished", report.unfinished);
    for (name, times) in [
        ("corrected", &report.response.corrected),
        ("raw", &report.response.raw),
    ] {
        if let Some(times) = times {
            println!("response, {name}: {:?}", times.summary);
        }
    }
    ExitCode::from(u8::from(off.abs() > WITHIN))
}
