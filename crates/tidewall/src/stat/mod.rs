//! `tidewall stat`: what live stacks do, and where frames died.

mod causes;
pub mod explain;
mod view;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tidewall_socket::control;
use tidewall_socket::snapshot::StackSnapshot;

use crate::end::{Failure, Outcome, say, say_json, stop_flag};
use crate::units;

/// Show what live Tidewall stacks do: queues, sockets, and drops by cause and place.
///
/// Asks every stack of this host (or that of one process) twice, a second
/// apart, and prints counts since the stack began and rates a second in
/// between. Needs to be root, as the stacks are.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall stat                 all live stacks, once\n  \
    tidewall stat 4711 --watch    one process, every second until Ctrl-C\n  \
    tidewall stat --json          the same numbers for a program\n  \
    tidewall stat --explain       what each counter means and what to do about it\n  \
    tidewall stat --explain udp   the same for counters with `udp` in their names\n\n\
    Counts are frames, except for sockets (datagrams). Exit code 1: no stack is live."
)]
pub struct Arguments {
    /// Process whose stacks to show [default: all live stacks]
    #[arg(value_name = "PID")]
    process: Option<u32>,
    /// Print JSON, one line a look: {"seconds": …, "stacks": [{"now": …, "before": …}]}
    #[arg(long)]
    json: bool,
    /// Look again every SECONDS until interrupted; put PID before it
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = period)]
    watch: Option<Duration>,
    /// Explain the counters whose names contain WORD [default: all], and what to do about each
    #[arg(long, value_name = "WORD", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["watch", "json", "process"])]
    explain: Option<String>,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = units::duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(600)).contains(&period) {
        Ok(period)
    } else {
        Err("a period is 100ms to 600 s (a process id stands before --watch)".to_owned())
    }
}

/// Two looks at a stack.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The later one.
    pub now: StackSnapshot,
    /// The earlier one; none for a stack that has just begun.
    pub before: Option<StackSnapshot>,
}

impl Pair {
    /// Seconds between the two by the stack's own clock.
    pub fn seconds(&self) -> f64 {
        let before = self.before.as_ref().map_or(0, |before| before.microseconds);
        self.now.microseconds.saturating_sub(before) as f64 / 1e6
    }

    /// A counter's rate a second, `count` finding it in a snapshot.
    pub fn rate(&self, count: impl Fn(&StackSnapshot) -> u64) -> f64 {
        let before = self.before.as_ref().map_or(0, &count);
        let seconds = self.seconds();
        if seconds > 0.0 {
            count(&self.now).saturating_sub(before) as f64 / seconds
        } else {
            0.0
        }
    }
}

/// Live stacks of one process, or of all.
///
/// # Errors
/// Exit code 1 when there are none.
pub fn stacks(process: Option<u32>) -> Result<Vec<PathBuf>, Failure> {
    let all = control::live()
        .map_err(|error| Failure::io(&format!("reading {}", control::DIRECTORY), &error))?;
    let of = |path: &Path| -> Option<u32> {
        path.file_name()?.to_str()?.split('.').next()?.parse().ok()
    };
    let found: Vec<PathBuf> = all
        .iter()
        .filter(|path| process.is_none_or(|process| of(path) == Some(process)))
        .cloned()
        .collect();
    match (found.is_empty(), process) {
        (false, _) => Ok(found),
        (true, Some(process)) if !all.is_empty() => {
            let mut others: Vec<String> = all
                .iter()
                .filter_map(|path| of(path))
                .map(|p| p.to_string())
                .collect();
            others.dedup();
            Err(Failure::answer(format!(
                "process {process} has no Tidewall stack; these have: {}",
                others.join(", ")
            )))
        }
        (true, _) => Err(Failure::answer(
            "no Tidewall stack is live on this host; start one with: tidewall serve echo --interface IF",
        )),
    }
}

/// A snapshot of the stack behind a control socket.
///
/// # Errors
/// What asking reports, and an answer that is not a snapshot.
pub fn snapshot(path: &Path) -> Result<StackSnapshot, Failure> {
    let answer = control::ask(path, "stat")
        .map_err(|error| Failure::io(&format!("asking {}", path.display()), &error))?;
    serde_json::from_str(&answer).map_err(|error| {
        Failure::answer(format!(
            "{} answers in another form ({error}); use the tidewall command of the same version",
            path.display()
        ))
    })
}

/// One look at every stack; those that end meanwhile are left out.
fn look(process: Option<u32>) -> Result<Vec<(PathBuf, StackSnapshot)>, Failure> {
    let paths = stacks(process)?;
    let mut found = Vec::new();
    let mut failure = None;
    for path in paths {
        match snapshot(&path) {
            Ok(snapshot) => found.push((path, snapshot)),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(word) = &arguments.explain {
        let text = explain::text(word, 96);
        if text.is_empty() {
            return Err(Failure::answer(format!(
                "no counter has {word:?} in its name; see: tidewall stat --explain"
            )));
        }
        return say(&text);
    }
    let stop = stop_flag()?;
    let period = arguments.watch.unwrap_or(Duration::from_secs(1));
    let screen = arguments.watch.is_some() && !arguments.json && std::io::stdout().is_terminal();
    let mut before = look(arguments.process)?;
    loop {
        pause(period, &stop);
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = look(arguments.process)?;
        let pairs: Vec<Pair> = now
            .iter()
            .map(|(path, now)| Pair {
                now: now.clone(),
                before: before
                    .iter()
                    .find(|(earlier, _)| earlier == path)
                    .map(|(_, before)| before.clone()),
            })
            .collect();
        if arguments.json {
            #[derive(Serialize)]
            struct Look<'a> {
                seconds: f64,
                stacks: &'a [Pair],
            }
            say_json(&Look {
                seconds: period.as_secs_f64(),
                stacks: &pairs,
            })?;
        } else {
            let text: String = pairs.iter().map(view::text).collect::<Vec<_>>().join("\n");
            // Home and clear: the table stands still while its numbers change.
            say(&if screen {
                format!("\x1b[H\x1b[2J{text}")
            } else {
                text
            })?;
        }
        if arguments.watch.is_none() {
            return Ok(());
        }
        before = now;
    }
}

/// Sleeps, ending early when `stop` is set.
fn pause(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
