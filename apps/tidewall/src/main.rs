//! `tidewall`: the command line.
//!
//! Lives here: one file or folder per subcommand, shared code for reading and printing
//! quantities ([`units`], [`table`]), and the end of a command ([`end`]). Does not live
//! here: anything that a program could want as a library. Services are in
//! `tidewall-service`, generators in `tidewall-load`, experiments in `tidewall-lab`; live
//! stacks answer through `tidewall::control`.
//!
//! Exit codes:
//! - 0: done
//! - 1: it ran and the answer is no
//! - 2: it could not begin (wrong arguments, missing privileges, no such interface)
//!
//! Read first: docs of `tidewall::snapshot` for what `stat` shows.
#![deny(unsafe_code)]

mod atm;
mod blast;
mod bridge;
mod doctor;
mod end;
mod impair;
mod lab;
mod load;
mod run;
mod serve;
mod stat;
mod switch;
mod table;
mod toml_file;
mod top;
mod trace;
mod tune;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A user-space UDP and TCP stack for Linux that keeps serving at full speed whatever arrives.
#[derive(Parser)]
#[command(
    name = "tidewall",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 it ran, and the answer is no (a claim failed, a problem was \
                  found, no stack is live, the device went away); 2 it could not begin (wrong \
                  arguments, missing privileges, no such interface). `run` ends with its program's.\n\n\
                  First steps: `tidewall demo` shows what it is for. `tidewall doctor --interface IF` \
                  says whether this machine suits. `tidewall serve echo --interface IF` is a service \
                  to try by hand."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Switch(switch::Arguments),
    AcpBridge(bridge::Arguments),
    Atm(atm::Arguments),
    Run(run::Arguments),
    Load(load::Arguments),
    Blast(blast::Arguments),
    Lab(lab::Arguments),
    Demo(lab::DemoArguments),
    Tune(tune::Arguments),
    Impair(impair::Arguments),
    Stat(stat::Arguments),
    Top(top::Arguments),
    Trace(trace::Arguments),
    Doctor(doctor::Arguments),
    #[command(hide = true)]
    LabWorker(lab::WorkerArguments),
}

fn main() -> ExitCode {
    // A backtrace is of no use to a user; the location is enough for a maintainer.
    std::panic::set_hook(Box::new(|info| {
        eprintln!("tidewall: internal error, please report it: {info}");
    }));
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Switch(arguments) => switch::run(&arguments),
        Command::AcpBridge(arguments) => bridge::run(&arguments),
        Command::Atm(arguments) => atm::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Blast(arguments) => blast::run(&arguments),
        Command::Lab(arguments) => lab::run(arguments),
        Command::Demo(arguments) => lab::demo(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Impair(arguments) => impair::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::LabWorker(arguments) => lab::worker(&arguments),
    };
    end::report(result)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        super::Arguments::command().debug_assert();
    }
}
