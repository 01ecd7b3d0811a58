//! `tidewall load`: the load generators as standalone tools.

pub mod packets;
mod requests;
mod rpc;
mod slow;
mod target;
pub mod text;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tidewall_load::{LoadReport, LoadSpec, Progress, run_with_interval};

use crate::blast;
use crate::end::{Failure, Outcome, say, say_json, stop_flag};
use crate::units;

/// Put a load on a server: requests at a rate that the server cannot slow down, closed
/// loops, packets.
///
/// All kinds are bounded in rate and time, paced, run over kernel sockets from one
/// thread, and drive any server, on Tidewall or on Linux. Response times are printed
/// twice. *Corrected* times account for coordinated omission: they are those of users who
/// came when they meant to. *Raw* times are those that the generator measured. Ctrl-C
/// ends a run and prints its results so far.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tidewall load s-clients --rate 5k http://10.77.0.2/doc     5,000/s, whatever comes back\n  \
    tidewall load http -c 64 -d 30s http://10.77.0.2/doc       a closed loop, as wrk\n  \
    tidewall load http -c 64 -R 20k http://10.77.0.2/doc       an open one, as wrk2\n  \
    tidewall load slow -c 20k http://10.77.0.2/                20,000 that do nothing\n  \
    tidewall load rpc --to 10.77.0.2:7 --to 10.77.0.2:8 -n 64  two UDP services always busy\n  \
    tidewall load udp --interface tw-a --to 10.77.0.2:9 --rate 300k\n  \
    tidewall load syn-flood --interface tw-a --to 10.77.0.2:81 --rate 100k --spoof 10.78.0.0/16\n\n\
    `tidewall load KIND --help` has the rest. --json FILE writes what was asked for, what came of it and \
    every interval, with percentiles; `-` is standard output.\n\
    Exit codes: 0 done, Ctrl-C included; 1 it ran, and nothing was answered or sending failed; 2 it could \
    not begin.")]
pub struct Arguments {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    SClients(requests::SClients),
    Http(requests::Http),
    Slow(slow::Slow),
    Rpc(rpc::Rpc),
    Udp(packets::Udp),
    SynFlood(packets::SynFlood),
    /// The same as `tidewall blast`: both kinds of packets, with pings beside them
    Blast(blast::Arguments),
}

/// Run options of a load.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Run")]
struct Run {
    /// How long to measure, at most 1h with the warm-up
    #[arg(short = 'd', long = "for", visible_alias = "duration", value_name = "TIME",
          default_value = "10s", value_parser = units::duration)]
    time: Duration,
    /// Apply the load for this long before measuring begins
    #[arg(short = 'w', long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    warm_up: Duration,
    /// Run on this processor
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Time between two lines of progress, and between two intervals of the JSON; 10ms to
    /// 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Write the specification, the report and every interval as JSON; `-`: to standard
    /// output, and nothing else
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show progress even if standard error is no terminal, one line each time
    #[arg(long)]
    progress: bool,
}

/// A load: its run options and its specification.
trait Load {
    /// Returns the run options.
    fn run(&self) -> &Run;
    /// Fills in the specification.
    fn fill(&self, spec: &mut LoadSpec) -> Outcome;
    /// Returns its name for error messages.
    fn name(&self) -> String;
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    match (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&time) {
        true => Ok(time),
        false => Err("an interval is 10ms to 1h".to_owned()),
    }
}

/// Parses a rate that must be a number.
fn rate(text: &str) -> Result<u64, String> {
    units::rate(text)?
        .0
        .ok_or_else(|| "this load needs a number, such as 5000 or 5k".to_owned())
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.kind {
        Kind::SClients(load) => put(load),
        Kind::Http(load) => put(load),
        Kind::Slow(load) => put(load),
        Kind::Rpc(load) => put(load),
        Kind::Udp(load) => put(load),
        Kind::SynFlood(load) => put(load),
        Kind::Blast(arguments) => blast::run(arguments),
    }
}

/// The contents of `--json`.
#[derive(Serialize)]
struct RunRecord<'a> {
    load: &'a LoadSpec,
    report: &'a LoadReport,
    intervals: &'a [Progress],
}

/// Destination of the JSON.
enum Sink {
    Nowhere,
    Output,
    File(File, PathBuf),
}

impl Sink {
    /// Opens the destination before the run, so that no run is wasted.
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(Sink::Nowhere),
            Some(path) if path.as_os_str() == "-" => Ok(Sink::Output),
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Sink::File(file, path.to_owned())),
                Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
            },
        }
    }

    fn write(self, record: &RunRecord<'_>) -> Outcome {
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Output => say_json(record),
            Sink::File(mut file, path) => serde_json::to_writer(&mut file, record)
                .map_err(io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
                .map_err(|error| Failure::answer(format!("{}: {error}", path.display()))),
        }
    }
}

fn put(load: &impl Load) -> Outcome {
    let options = load.run();
    let mut spec = LoadSpec::new(options.time);
    (spec.warm_up, spec.cpu) = (options.warm_up, options.cpu);
    load.fill(&mut spec)?;
    spec.check()
        .map_err(|error| Failure::usage(error.to_string()))?;
    let sink = Sink::open(options.json.as_deref())?;
    let stop = stop_flag()?;
    let terminal = io::stderr().is_terminal();
    let mut intervals = Vec::new();
    let mut open = 0;
    let report = run_with_interval(&spec, &stop, options.interval, |progress| {
        let line = text::line(&progress, &mut open);
        if terminal {
            eprint!("\r\x1b[K{line}");
            let _ = io::stderr().flush();
        } else if options.progress {
            eprintln!("{line}");
        }
        intervals.push(progress);
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    let report = report.map_err(|error| blast::failure(&load.name(), &error, &spec))?;
    if !matches!(sink, Sink::Output) {
        say(&text::report(&spec, &report))?;
    }
    sink.write(&RunRecord {
        load: &spec,
        report: &report,
        intervals: &intervals,
    })?;
    match text::unanswered(&report) {
        Some(reason) if !report.stopped => {
            Err(Failure::answer(format!("{}: {reason}", load.name())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
