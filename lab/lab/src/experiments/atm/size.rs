//! Code and memory of the parts that make up circuits.

use std::path::Path;

use anyhow::Context;

use super::super::{Experiment, Run, USUAL};
use super::{Case, setup};
use crate::command::run as run_command;
use crate::result::{Claim, Series, find};
use crate::sweep::Sample;
use crate::worker::{CallsOver, CallsRole, Child, Job, Place};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-size",
    paper: "ATM sockets, Code Size",
    about: "code of each part of the circuits, and memory of a call",
    x: "nothing",
    y: "KiB",
    senders: &["calls that are kept"],
    measure,
    claims,
    ..USUAL
};

const CODE: &str = "code";
const MEMORY: &str = "memory of both ends of a call";
/// Calls that are kept: the first ones use memory that the program already has.
const KEPT: [u32; 2] = [1500, 3000];
/// Parts by the prefixes of their functions' paths, and the paper's KiB if it states
/// them.
const PARTS: [(&str, &[&str]); 4] = [
    ("formats", &["tidewall_wire::atm"]),
    ("protocols", &["tidewall_atm"]),
    (
        "sockets",
        &[
            "tidewall_circuits::Atm",
            "tidewall_circuits::call",
            "tidewall_circuits::circuit",
            "tidewall_circuits::control",
            "tidewall_circuits::listener",
            "tidewall_circuits::managed",
            "tidewall_circuits::options",
            "tidewall_circuits::receive",
            "tidewall_circuits::sending",
        ],
    ),
    (
        "programs",
        &[
            "tidewall_service::ip_over_atm",
            "tidewall_circuits::cell_switch",
            "tidewall::atm",
        ],
    ),
];
const WHOLE: &str = "program";

enum What {
    /// Code of this program, in these paths; `None`: all of it.
    Code(Option<&'static [&'static str]>),
    Calls,
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    setup::pair(run)?;
    let case = |system, setting, what| Case {
        system,
        setting,
        x: 0.0,
        what,
    };
    let parts = PARTS.map(|(name, paths)| case(name, CODE, What::Code(Some(paths))));
    let mut cases: Vec<_> = parts.into();
    cases.push(case(WHOLE, CODE, What::Code(None)));
    cases.push(case(super::IN_PROCESS, MEMORY, What::Calls));
    let program = std::env::current_exe().context("cannot find my own program")?;
    let functions = functions(&program)?;
    let plan = run.options.rounds_of(6);
    super::rounds(run, &cases, plan, |bench, case| {
        let bytes = match &case.what {
            What::Code(paths) => code(&functions, *paths) as f64,
            What::Calls => {
                let place = Place {
                    namespace: bench.testbed.server(),
                    cpu: bench.testbed.config().server_cpu,
                };
                let [few, many] = KEPT;
                let resident = |kept| -> anyhow::Result<u64> {
                    let role = CallsRole::Keeper(kept);
                    let job = super::calls(role, CallsOver::InProcess, Default::default());
                    let mut child =
                        Child::start_ready(place, &Job::Calls(job), "the keeper of calls")?;
                    child.question("memory")
                };
                let more = resident(many)?.saturating_sub(resident(few)?);
                more as f64 / f64::from(many - few)
            }
        };
        Ok(Sample {
            x: case.x,
            y: bytes / 1024.0,
            ..Sample::default()
        })
    })?;
    run.note(
        "Code by the symbols of this program (nm), after its optimization as a whole; the driver \
         program is not in it. Memory: anonymous, resident, with 3,000 calls over that with 1,500, \
         both ends in one process.",
    );
    Ok(())
}

/// Returns names and bytes of a program's functions.
fn functions(program: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let text = run_command("nm", &["-S", "-C", &program.to_string_lossy()])
        .context("nm is of the package binutils")?;
    let functions: Vec<_> = text.lines().filter_map(function).collect();
    anyhow::ensure!(
        !functions.is_empty(),
        "{} has no symbols",
        program.display()
    );
    Ok(functions)
}

/// Parses a line of `nm -S`: address, size, kind and name; functions only.
fn function(line: &str) -> Option<(String, u64)> {
    let (_, rest) = line.split_once(' ')?;
    let (size, rest) = rest.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let size = u64::from_str_radix(size, 16).ok()?;
    matches!(kind, "t" | "T" | "w" | "W").then(|| (name.to_owned(), size))
}

/// Returns the bytes of functions whose path, or whose implemented type's, begins so.
fn code(functions: &[(String, u64)], paths: Option<&[&str]>) -> u64 {
    let own = |name: &str| {
        let name = name.trim_start_matches(['<', '&']);
        let begins = |path: &&str| {
            let rest = name.strip_prefix(*path);
            rest.is_some_and(|rest| rest.starts_with("::"))
        };
        paths.is_none_or(|paths| paths.iter().any(begins))
    };
    functions
        .iter()
        .filter(|(name, _)| own(name))
        .map(|(_, size)| size)
        .sum()
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let of = |system: &str, setting| Some(find(series, system, Some(setting))?.last()?.y);
    let parts: Vec<Option<f64>> = PARTS.iter().map(|(name, _)| of(name, CODE)).collect();
    let all: Option<f64> = parts.iter().copied().sum();
    let mut claims = vec![
        Claim::new(
            "code",
            "KiB of code for circuits, all parts; the paper: some 512 KiB of a manager and 27 KiB of a kernel",
            all,
        )
        .paper(539.0),
        Claim::new(
            "call",
            "KiB of memory of a call, both ends",
            of(super::IN_PROCESS, MEMORY),
        ),
        Claim::new("program", "KiB of code of the whole program", of(WHOLE, CODE)),
    ];
    for ((name, _), size) in PARTS.into_iter().zip(parts) {
        claims.push(Claim::new(name, format!("KiB of code: {name}"), size));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_by_their_paths() {
        let lines = [
            "0000000000001000 0000000000000010 t tidewall_atm::sscop::Sscop::send",
            "0000000000002000 0000000000000020 T <tidewall_atm::rate::Bucket as core::fmt::Debug>::fmt",
            "0000000000003000 0000000000000040 t tidewall_atmosphere::nothing",
            "0000000000004000 0000000000000080 d tidewall_atm::TABLE",
            "                 U malloc",
        ];
        let functions: Vec<_> = lines.iter().filter_map(|line| function(line)).collect();
        assert_eq!(code(&functions, Some(&["tidewall_atm"])), 0x30);
        assert_eq!(code(&functions, None), 0x70);
    }
}
