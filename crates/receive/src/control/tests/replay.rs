//! Recorded rounds, replayed through every policy and compared with the settings when the
//! snapshot was made.
//!
//! `tests/traces/NAME.csv` has one round per line (the columns: [`COLUMNS`]);
//! `NAME.settings` beside it holds every change of setting. Settings do not act back on a
//! recorded trace, so a snapshot shows a policy's response to these rounds and nothing
//! else. After an intended change,
//! `TIDEWALL_BLESS=1 cargo test -p tidewall-receive replay` rewrites the snapshots, and
//! the traces of the simulated machine; the difference is for the review.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::machine::*;
use crate::control::{Activity, COLUMNS, Controller, Limits, PolicyKind, Round};

/// Files are in the repository: none may be longer, in bytes.
const LARGEST: usize = 100_000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

fn blessing() -> bool {
    std::env::var_os("TIDEWALL_BLESS").is_some_and(|value| value == "1")
}

/// Compares a file with what it should hold, or writes it.
fn expect(path: &Path, text: &str) {
    assert!(text.len() < LARGEST, "{} is too long", path.display());
    if blessing() {
        fs::write(path, text).unwrap();
        return;
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    let line = stored
        .lines()
        .zip(text.lines())
        .position(|(old, new)| old != new)
        .unwrap_or(stored.lines().count().min(text.lines().count()));
    assert!(
        stored == text,
        "{}, line {}: {:?} is stored, {:?} came out (TIDEWALL_BLESS=1 accepts it)",
        path.display(),
        line + 1,
        stored.lines().nth(line),
        text.lines().nth(line),
    );
}

fn parse(line: &str) -> Option<(Duration, Round, Activity)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [
        time,
        frames,
        exhausted,
        buffer_use,
        overflowed,
        interrupted,
        sent,
    ] = <[&str; 7]>::try_from(fields).ok()?;
    let flag = |field: &str| match field {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    let round = Round {
        frames: frames.parse().ok()?,
        exhausted: flag(exhausted)?,
        buffer_use: buffer_use
            .parse()
            .ok()
            .filter(|used| (0.0..=1.0).contains(used))?,
        overflowed: overflowed.parse().ok()?,
    };
    let activity = Activity {
        interrupted: flag(interrupted)?,
        sent: sent.parse().ok()?,
    };
    Some((Duration::from_micros(time.parse().ok()?), round, activity))
}

fn read(path: &Path) -> Vec<(Duration, Round, Activity)> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.len() < LARGEST, "{} is too long", path.display());
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(COLUMNS), "{}", path.display());
    let rounds: Vec<_> = lines
        .zip(2..)
        .map(|(line, number)| {
            parse(line).unwrap_or_else(|| panic!("{}, line {number}: {line}", path.display()))
        })
        .collect();
    assert!(
        rounds.is_sorted_by_key(|&(time, ..)| time),
        "{} goes back in time",
        path.display()
    );
    rounds
}

/// A policy's settings, one change per line.
fn settings(kind: PolicyKind, preempts: bool, trace: &[(Duration, Round, Activity)]) -> String {
    let mut controller = Controller::new(
        kind,
        Limits {
            preempts,
            ..kind.limits()
        },
    );
    let who = if preempts { "softirq" } else { "receiver" };
    let mut text = String::new();
    let mut write = |time: Duration, setting: crate::control::Setting| {
        writeln!(
            text,
            "{kind},{who},{},{},{}",
            time.as_micros(),
            setting.budget,
            setting.interrupt_interval.as_nanos()
        )
        .unwrap();
    };
    let mut known = controller.setting();
    write(Duration::ZERO, known);
    for (time, round, activity) in trace {
        controller.round(*time, round, *activity);
        if controller.setting() != known {
            known = controller.setting();
            write(*time, known);
        }
    }
    text
}

#[test]
fn replay_gives_the_stored_settings() {
    check_simulated_traces();
    let mut traces: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "csv"))
        .collect();
    traces.sort();
    assert!(traces.len() >= 2, "the traces are gone");
    for path in traces {
        let trace = read(&path);
        let mut text = String::from("policy,where,time_us,budget,interval_ns\n");
        for kind in PolicyKind::ALL {
            text += &settings(kind, true, &trace);
        }
        // The one policy that depends on whom its rounds preempt.
        text += &settings(PolicyKind::Adaptive, false, &trace);
        expect(&path.with_extension("settings"), &text);
    }
}

fn render(outcome: &Outcome) -> String {
    let mut text = format!("{COLUMNS}\n");
    for Seen {
        time,
        round,
        activity,
    } in &outcome.seen
    {
        writeln!(
            text,
            "{},{},{},{:.3},{},{},{}",
            time / 1_000,
            round.frames,
            u8::from(round.exhausted),
            round.buffer_use,
            round.overflowed,
            u8::from(activity.interrupted),
            activity.sent
        )
        .unwrap();
    }
    text
}

/// The simulated traces are the machine's response to fixed budgets: they do not change
/// with a policy.
fn check_simulated_traces() {
    let setup = Setup {
        kind: PolicyKind::Napi,
        taker: Taker::Softirq,
        costs: Costs::of(2_000, 18_000),
        channel: 512,
        budget: 3_000,
        quantum: u64::MAX,
        answered: 0,
        // A fifth of the capacity, four times it, silence, a tenth.
        load: Load {
            rates: vec![
                (0, 10_000),
                (40 * MS, 200_000),
                (100 * MS, 0),
                (150 * MS, 5_000),
            ],
            burst: 8,
        },
    };
    // The budget is never used up: an interrupt per burst, ahead of everything.
    let livelock = setup.trace(400);
    expect(&folder().join("sim-livelock.csv"), &render(&livelock));
    // It is: ksoftirqd and the application take turns, and some is answered.
    let shared = Setup {
        budget: 300,
        quantum: MS,
        answered: 30,
        costs: Costs::of(6_000, 14_000),
        ..setup
    };
    expect(
        &folder().join("sim-ksoftirqd.csv"),
        &render(&shared.trace(400)),
    );
}
