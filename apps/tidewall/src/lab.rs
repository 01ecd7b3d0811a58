//! `tidewall lab` and `tidewall demo`: the experiments of the papers, run for
//! real.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidewall_lab::Options;
use tidewall_lab::experiments::EXPERIMENTS;

use crate::end::{Failure, Outcome, say, say_json, say_line};

/// Run the papers' experiments on this machine, plot them and judge their claims.
///
/// A run builds its own test bed in network namespaces named tw-…, touches no other
/// interface, and removes the test bed however it ends, Ctrl-C included. It prints only
/// numbers that it measured.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tidewall lab list\n  \
    tidewall lab run lrp-overload --quick               at most a minute, the same claims\n  \
    tidewall lab run lrp-overload lrp-latency --out out  JSON, SVG and report.html in out/\n  \
    tidewall lab report out                             report.html again, from the JSON files\n  \
    tidewall lab report out --against earlier           claims on which two runs disagree\n\n\
    A claim is judged by the 95 % interval of its median over rounds; one whose interval holds the bound is undecided.\n\n\
    Exit codes: 0 every claim held; 1 a claim failed; 2 privileges are missing, or no such experiment; 3 none failed, one is undecided; 130 interrupted.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the experiments: name, paper, what is compared
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments and judge their claims
    Run(RunArguments),
    /// Write the HTML report again from a directory of results, or compare it with
    /// another
    Report {
        /// Directory that a run wrote (--out)
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Write only the claims, as one page of Markdown, to FILE instead
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        /// Print the claims that hold in one of two runs and fail in the other instead;
        /// exit code 1 if there are any
        #[arg(long, value_name = "DIR", conflicts_with = "markdown")]
        against: Option<PathBuf>,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// Experiments to run; see: tidewall lab list
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Fewer points, at most 60 s per experiment (lrp-latency, rhip-size, rhip-workload,
    /// tcp-loss, unmodified: 4 min; unmodified-floods: 6); the shape and the claims stay
    #[arg(long)]
    quick: bool,
    /// Exactly N rounds instead of as many as the claims need; the duration is unbounded
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: Option<u8>,
    /// Keep both processors busy with processes of lowest priority, as the paper did for
    /// latency
    #[arg(long)]
    spinners: bool,
    /// Write the result of the experiment to FILE (an array when there are several)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write results, plots and a report into DIR
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Show a UDP service on Tidewall and the same code on Linux sockets, side by side.
///
/// Sweeps the offered rate from 10,000 packets/s to all the link carries, in its own
/// network namespaces. Then wrk queries a web server while a SYN flood comes and goes.
/// Prints tables and plots. Without root it runs on the in-memory device, and states what
/// that shows and what it does not.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tidewall demo --out out/demo    then open out/demo/demo.html\n\n\
    Takes less than four minutes. Exit codes: 0 it ran, whatever it showed; 1 it broke off; 2 it could not begin; 130 interrupted."
)]
pub struct DemoArguments {
    /// Directory for table, plot (SVG), page (HTML) and results (JSON)
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    out: PathBuf,
}

/// A process of an experiment; started by `tidewall lab run`.
#[derive(clap::Args)]
pub struct WorkerArguments {
    /// The job to run
    #[arg(value_name = "JSON")]
    job: String,
}

/// Runs the subcommand.
pub fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::List { json: false } => say(&tidewall_lab::list()),
        Command::List { json: true } => list_json(),
        Command::Run(arguments) => experiments(arguments),
        Command::Report {
            directory,
            against: Some(other),
            ..
        } => compare(&directory, &other),
        Command::Report {
            directory,
            markdown,
            against: None,
        } => {
            let written = match markdown {
                None => tidewall_lab::report(&directory),
                Some(path) => tidewall_lab::markdown(&directory)
                    .and_then(|text| Ok(std::fs::write(&path, text)?))
                    .map(|()| path),
            };
            let path = written.map_err(|error| failure(&error, 2))?;
            say_line(&format!("written: {}", path.display()))
        }
    }
}

fn compare(directory: &Path, other: &Path) -> Outcome {
    let found = tidewall_lab::against(directory, other).map_err(|error| failure(&error, 2))?;
    say(&found.text())?;
    match found.contradictions.len() {
        0 => Ok(()),
        count => Err(Failure::with_code(
            1,
            format!("the runs disagree on {count} claims"),
        )),
    }
}

fn list_json() -> Outcome {
    #[derive(Serialize)]
    struct Entry {
        name: &'static str,
        paper: &'static str,
        about: &'static str,
    }
    let list: Vec<Entry> = EXPERIMENTS
        .iter()
        .map(|experiment| Entry {
            name: experiment.name,
            paper: experiment.paper,
            about: experiment.about,
        })
        .collect();
    say_json(&list)
}

fn experiments(arguments: RunArguments) -> Outcome {
    for name in &arguments.names {
        if !EXPERIMENTS.iter().any(|experiment| experiment.name == name) {
            return Err(Failure::usage(tidewall_lab::no_experiment(name)));
        }
    }
    let options = Options {
        quick: arguments.quick,
        rounds: arguments.rounds.map(u32::from),
        spinners: arguments.spinners,
        json: arguments.json,
        out: arguments.out,
    };
    let mut progress = tidewall_lab::progress::automatic();
    let result = tidewall_lab::run(&arguments.names, &options, progress.as_mut());
    judge(&result)
}

/// Runs `tidewall demo`.
pub fn demo(arguments: &DemoArguments) -> Outcome {
    let mut progress = tidewall_lab::progress::automatic();
    match tidewall_lab::demo(&arguments.out, progress.as_mut()) {
        // The demo shows what this machine does; judging claims is the lab's task.
        Ok(_) => Ok(()),
        failed => judge(&failed),
    }
}

/// Runs a worker process of an experiment.
pub fn worker(arguments: &WorkerArguments) -> Outcome {
    tidewall_lab::worker_main(&arguments.job).map_err(|error| failure(&error, 1))
}

/// Turns a lab's result into an outcome. The exit code is the lab's own; a run that ended
/// in order has printed which claims failed.
fn judge(result: &anyhow::Result<tidewall_lab::Outcome>) -> Outcome {
    match (tidewall_lab::exit_code(result), result) {
        (0, _) => Ok(()),
        (code, Err(error)) => Err(failure(error, code)),
        (code, Ok(outcome)) => Err(Failure::with_code(
            code,
            format!(
                "{} claims failed, {} are undecided",
                outcome.failed(),
                outcome.undecided()
            ),
        )),
    }
}

/// Joins an error and its causes on one line.
fn failure(error: &anyhow::Error, code: u8) -> Failure {
    Failure::with_code(code, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_experiment_is_answered_with_the_nearest() {
        let arguments = RunArguments {
            names: vec!["lrp-overlaod".to_owned()],
            quick: true,
            rounds: None,
            spinners: false,
            json: None,
            out: None,
        };
        let failure = experiments(arguments).expect_err("there is no such experiment");
        let text = failure.to_string();
        assert!(
            text.contains("lrp-overlaod") && text.contains("lrp-overload"),
            "{text}"
        );
    }

    #[test]
    fn the_exit_code_is_the_lab_s() {
        assert!(judge(&Ok(tidewall_lab::Outcome::default())).is_ok());
        let missing = tidewall_lab::Missing {
            what: vec!["root privileges".to_owned()],
        };
        let failure = judge(&Err(missing.into())).expect_err("privileges are missing");
        assert_eq!(failure.code(), 2);
        assert!(failure.to_string().contains("root privileges"), "{failure}");
    }
}
