//! Does the rate that S-clients offer depend on the server's capacity?
//!
//! A server that accepts 5,000 connections per second from a short queue is offered ten
//! times as many. As many processes as the limit of open files requires offer them (each
//! has D connection attempts in progress). Prints the offered rate, second by second, and
//! its deviation from the requested rate; exits with 1 if that exceeds 2 %. Beginning,
//! abandoning and closing 50,000 connections per second takes about one 2 GHz processor,
//! most of it the kernel's TCP. On a shared machine, give the program priority over
//! others (its own session, -20 in its /proc/self/autogroup), or the result includes
//! their load.
//!
//! ```text
//! cargo run --release -p tidewall-load --example s_client_rate [RATE [SECONDS [PROCESSES]]]
//! ```

#[path = "../tests/server/mod.rs"]
mod server;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use server::{Accepting, Behaviour, Server};
use tidewall_load::{LoadSpec, Phase, SClientReport, SClientSpec, run};

/// Connections/s that the server accepts.
const CAPACITY: u64 = 5_000;
/// Permitted deviation of the rate.
const WITHIN: f64 = 0.02;
/// Source addresses per process; all of 127.0.0.0/8 belong to this host.
const SOURCES: u8 = 16;
/// Precedes the specification of a process.
const PART: &str = "--part";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, json] = &arguments[..]
        && first == PART
    {
        return part(json);
    }
    let number = |place: usize, usual| {
        arguments
            .get(place)
            .map_or(Ok(usual), |text| text.parse::<u64>())
            .expect("arguments are numbers: RATE SECONDS PROCESSES")
    };
    let (rate, seconds, processes) = (number(0, 10 * CAPACITY), number(1, 5), number(2, 2).max(1));
    let server = Server::start(
        Behaviour::Answer(1259),
        Accepting {
            rate: CAPACITY,
            backlog: 128,
        },
    );
    let program = std::env::current_exe().expect("this program has a path");
    let children: Vec<_> = (0..processes)
        .map(|number| {
            let spec = spec(server.address, rate / processes, seconds, number);
            Command::new(&program)
                .args([PART, &serde_json::to_string(&spec).expect("a spec is JSON")])
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program can be run")
        })
        .collect();
    let mut reports = Vec::new();
    for (number, mut child) in children.into_iter().enumerate() {
        let lines = BufReader::new(child.stdout.take().expect("it was asked for"));
        for line in lines.lines().map_while(Result::ok) {
            match serde_json::from_str::<SClientReport>(&line) {
                Ok(report) => reports.push(report),
                Err(_) => println!("  process {number}: {line}"),
            }
        }
        let _ = child.wait();
    }
    if reports.len() as u64 != processes {
        return ExitCode::from(2);
    }
    let sum = |of: fn(&SClientReport) -> f64| reports.iter().map(of).sum::<f64>();
    let offered = sum(|report| report.offered_rate);
    let off = offered / rate as f64 - 1.0;
    println!(
        "asked for {rate}/s of a server that accepts {CAPACITY}/s: offered {offered:.0}/s \
         ({:+.2} %), answered {:.0}/s; server accepted {}",
        100.0 * off,
        sum(|report| report.rate),
        server.accepted(),
    );
    for report in &reports {
        println!("{:?}, {} unfinished", report.measured, report.unfinished);
        for (name, times) in [
            ("corrected", &report.response.corrected),
            ("raw", &report.response.raw),
        ] {
            if let Some(times) = times {
                println!("  response, {name}: {:?}", times.summary);
            }
        }
    }
    ExitCode::from(u8::from(off.abs() > WITHIN))
}

fn spec(server: SocketAddr, rate: u64, seconds: u64, number: u64) -> LoadSpec {
    let mut s_clients = SClientSpec::new(server, "/doc", rate);
    s_clients.sources = (1..=SOURCES)
        .map(|host| IpAddr::from(Ipv4Addr::new(127, 0, 1 + number as u8, host)))
        .collect();
    s_clients.timeout = Duration::from_secs(1);
    let mut spec = LoadSpec::new(Duration::from_secs(seconds));
    spec.warm_up = Duration::from_secs(1);
    spec.s_clients = Some(s_clients);
    spec
}

/// One of the processes.
fn part(json: &str) -> ExitCode {
    let spec: LoadSpec = serde_json::from_str(json).expect("the other process wrote it");
    let mut second = (0.0, 0);
    let report = run(&spec, |progress| {
        let (Phase::Measuring, Some(counts)) = (progress.phase, progress.s_clients) else {
            return;
        };
        second = (
            second.0 + progress.interval.as_secs_f64(),
            second.1 + counts.begun,
        );
        if second.0 >= 1.0 {
            println!("{:6.0} offered/s", second.1 as f64 / second.0);
            second = (0.0, 0);
        }
    });
    match report {
        Ok(report) => {
            let json = serde_json::to_string(&report.s_clients);
            println!("{}", json.expect("a report is JSON"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
