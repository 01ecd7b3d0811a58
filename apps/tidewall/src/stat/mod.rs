//! `tidewall stat`: the activity of live stacks, and the places where frames died.

mod causes;
mod cells;
mod circuits;
pub mod control;
pub mod explain;
pub mod processor;
pub mod screen;
mod switch;
mod tcp;
pub mod view;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tidewall::control as sockets;
use tidewall::snapshot::{QueueSnapshot, StackSnapshot};
use tidewall_manager::record::Record;

use crate::end::{Failure, Outcome, say, say_json, stop_flag};
use crate::run::report;
use crate::units;
use processor::Shares;

/// Default time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Stacks that have ended and that a terminal still shows.
const GONE: usize = 3;

/// Show what live Tidewall stacks do: receive control, queues, sockets, and drops by
/// cause and place.
///
/// Queries every stack of this host (or that of one process) twice, a second apart.
/// Prints counts since the stack began, and rates per second in between. Needs root, as
/// the stacks do.
///
/// Receive control of a queue is shown as its policy, Bp (most frames per round) and T
/// (least time between two interrupts). How frames arrive (idle, interrupt, mixed,
/// polling) and the use of its fullest buffer follow.
///
/// --watch shows these first, with the idle time of the processors on which the stack's
/// threads may run.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall stat                 all live stacks, once\n  \
    tidewall stat --watch         live, every second until Ctrl-C\n  \
    tidewall stat 4711 --watch=0.5\n                                one process, twice a second\n  \
    tidewall stat --json          the same numbers for a program\n  \
    tidewall stat --explain       what each counter means and what to do about it\n  \
    tidewall stat --explain udp   the same for counters with `udp` in their names\n\n\
    Counts are frames, except for sockets (datagrams). Exit code 1: no stack is live, or the \
    watched one has ended; 2: wrong arguments, or not root."
)]
pub struct Arguments {
    /// Process whose stacks to show [default: all live stacks]
    #[arg(value_name = "PID")]
    process: Option<u32>,
    /// Print JSON, one line per look: {"seconds": …, "ended": […], "unprotected": […],
    /// "stacks": [{"now": …, "before": …, "rates": [per second, of each queue],
    /// "processors": {"idle": 0 to 1, …}}]}
    #[arg(long)]
    json: bool,
    /// Look again every SECONDS, 0.1 to 60 [1 when left out], until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = period)]
    watch: Option<Duration>,
    /// Explain the counters whose names contain WORD [default: all], and what to do about each
    #[arg(long, value_name = "WORD", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["watch", "json", "process"])]
    explain: Option<String>,
}

/// Parses the time between two looks.
pub fn period(text: &str) -> Result<Duration, String> {
    let period = units::duration(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&period) {
        Ok(period)
    } else {
        Err("a period is 0.1 to 60 seconds".to_owned())
    }
}

/// Two looks at a stack.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The later one.
    pub now: StackSnapshot,
    /// The earlier one; none for a stack that has just begun.
    pub before: Option<StackSnapshot>,
    /// Packets that the interface received from the earlier look until shortly before the
    /// later one, so that the driver program has had time to see them. None if unknown.
    pub received: Option<u64>,
}

impl Pair {
    /// Creates the pair of a stack's two looks; `before` is missing for a stack that has
    /// just begun.
    pub fn new(now: StackSnapshot, before: Option<StackSnapshot>) -> Self {
        Pair {
            now,
            before,
            received: None,
        }
    }

    /// Returns the interface's packets if the driver program saw not one of them; none if
    /// it saw some, or none arrived.
    pub fn unseen(&self) -> Option<u64> {
        let before = self.before.as_ref()?;
        let silent = self.now.frames() == before.frames();
        self.received.filter(|&packets| silent && packets > 0)
    }

    /// Returns the seconds between the two by the stack's own clock.
    pub fn seconds(&self) -> f64 {
        let before = self.before.as_ref().map_or(0, |before| before.microseconds);
        self.now.microseconds.saturating_sub(before) as f64 / 1e6
    }

    /// Returns a counter's rate per second; `count` finds it in a snapshot.
    pub fn rate(&self, count: impl Fn(&StackSnapshot) -> u64) -> f64 {
        let before = self.before.as_ref().map_or(0, &count);
        let seconds = self.seconds();
        if seconds > 0.0 {
            count(&self.now).saturating_sub(before) as f64 / seconds
        } else {
            0.0
        }
    }

    /// Acts as [`Pair::rate`], for a counter of one queue.
    pub fn queue_rate(&self, queue: usize, count: impl Fn(&QueueSnapshot) -> u64) -> f64 {
        self.rate(|stack| stack.queues.get(queue).map_or(0, &count))
    }
}

/// Returns the process of a control socket.
fn owner(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

/// Returns the control sockets of this host.
fn all() -> Result<Vec<PathBuf>, Failure> {
    sockets::live().map_err(|error| Failure::io(&format!("reading {}", sockets::DIRECTORY), &error))
}

fn of(process: Option<u32>, all: &[PathBuf]) -> Vec<PathBuf> {
    all.iter()
        .filter(|path| process.is_none_or(|process| owner(path) == Some(process)))
        .cloned()
        .collect()
}

/// Returns the live stacks of one process, or of all.
///
/// # Errors
/// Exit code 1 if there are none.
pub fn stacks(process: Option<u32>) -> Result<Vec<PathBuf>, Failure> {
    let all = all()?;
    let found = of(process, &all);
    match (found.is_empty(), process) {
        (false, _) => Ok(found),
        (true, Some(process)) if !all.is_empty() => {
            let mut others: Vec<String> = all
                .iter()
                .filter_map(|path| owner(path))
                .map(|p| p.to_string())
                .collect();
            others.dedup();
            Err(Failure::answer(format!(
                "process {process} has no Tidewall stack; these have: {}",
                others.join(", ")
            )))
        }
        (true, _) => Err(none_live()),
    }
}

fn none_live() -> Failure {
    Failure::answer(
        "no Tidewall stack is live on this host; start one with: tidewall serve echo --interface IF",
    )
}

/// Returns a snapshot of the stack behind a control socket; none if it has ended.
fn ask(path: &Path) -> Result<Option<StackSnapshot>, Failure> {
    read(path, sockets::ask(path, "stat"))
}

fn read(path: &Path, answer: io::Result<String>) -> Result<Option<StackSnapshot>, Failure> {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    let answer = match answer {
        Ok(answer) => answer,
        Err(error)
            if matches!(
                error.kind(),
                NotFound | ConnectionRefused | ConnectionReset | BrokenPipe
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Failure::io(&format!("asking {}", path.display()), &error)),
    };
    match serde_json::from_str(&answer) {
        Ok(snapshot) => Ok(Some(snapshot)),
        // The stack ended in the middle of its answer.
        Err(error) if error.is_eof() => Ok(None),
        Err(error) => Err(Failure::answer(format!(
            "{} answers in another form ({error}); use the tidewall command of the same version",
            path.display()
        ))),
    }
}

/// Returns a snapshot of the stack behind a control socket.
///
/// # Errors
/// An error of the query, a stack that has ended, or an answer that is not a snapshot.
pub fn snapshot(path: &Path) -> Result<StackSnapshot, Failure> {
    ask(path)?.ok_or_else(|| Failure::answer(format!("the stack of {} has ended", path.display())))
}

/// One look at some stacks; leaves out those that have ended.
struct Look {
    found: Vec<(PathBuf, StackSnapshot)>,
    /// Stacks that do not answer, and why.
    silent: Vec<(PathBuf, Failure)>,
}

/// Looks at these stacks.
///
/// # Errors
/// The reason why one of them does not answer, if none does.
fn look(paths: Vec<PathBuf>) -> Result<Look, Failure> {
    let mut found = Vec::new();
    let mut silent = Vec::new();
    let answers = sockets::ask_all(&paths, "stat");
    for (path, answer) in paths.into_iter().zip(answers) {
        match read(&path, answer) {
            Ok(Some(snapshot)) => found.push((path, snapshot)),
            Ok(None) => {}
            Err(error) => silent.push((path, error)),
        }
    }
    match silent.pop() {
        Some((_, failure)) if found.is_empty() => Err(failure),
        last => {
            silent.extend(last);
            Ok(Look { found, silent })
        }
    }
}

/// Waits `period` between two looks. Near its end, reads how many packets the interfaces
/// have received.
fn between(period: Duration, stop: &AtomicBool, paths: &[PathBuf]) -> Vec<(PathBuf, u64)> {
    // Longer than any deferral of interrupts.
    let margin = period / 10;
    pause(period.saturating_sub(margin), stop);
    let answers = paths.iter().zip(sockets::ask_all(paths, "stat"));
    let received = answers.filter_map(|(path, answer)| {
        let received = read(path, answer).ok()??.received?;
        Some((path.clone(), received))
    });
    let received = received.collect();
    pause(margin, stop);
    received
}

/// Pairs the later look at a stack with its earlier one, if any, and with the counts read
/// [`between`] them.
fn paired(
    path: &Path,
    now: &StackSnapshot,
    before: &[(PathBuf, StackSnapshot)],
    received: &[(PathBuf, u64)],
) -> Pair {
    let before = before.iter().find(|(earlier, _)| earlier == path);
    let mut pair = Pair::new(now.clone(), before.map(|(_, before)| before.clone()));
    let earlier = pair.before.as_ref().and_then(|before| before.received);
    let later = received.iter().find(|(read, _)| read == path);
    pair.received = earlier
        .zip(later)
        .map(|(earlier, (_, later))| later.saturating_sub(earlier));
    pair
}

/// Looks at all live stacks that answer.
pub fn live() -> Vec<(PathBuf, StackSnapshot)> {
    let paths = stacks(None).unwrap_or_default();
    look(paths).map(|look| look.found).unwrap_or_default()
}

/// Looks twice at all live stacks, a second apart; returns none if there are none.
pub fn pairs() -> Vec<Pair> {
    let stop = AtomicBool::new(false);
    let before = live();
    if before.is_empty() {
        return Vec::new();
    }
    let paths: Vec<PathBuf> = before.iter().map(|(path, _)| path.clone()).collect();
    let received = between(PERIOD, &stop, &paths);
    let now = look(paths).map(|look| look.found).unwrap_or_default();
    now.iter()
        .map(|(path, now)| paired(path, now, &before, &received))
        .collect()
}

/// Returns the kernel sockets of programs under `tidewall run` and of those with these
/// stacks, or of one process.
fn unprotected(process: Option<u32>, stacks: &[(PathBuf, StackSnapshot)]) -> Vec<Record> {
    let mut records = report::of_all(stacks.iter().map(|(_, stack)| stack));
    records.retain(|record| process.is_none_or(|process| process == record.process));
    records
}

/// The output of `--json` at each look.
#[derive(Serialize)]
struct Line<'a> {
    /// Between two looks.
    seconds: f64,
    /// Stacks that have ended since the last look.
    ended: &'a [String],
    stacks: Vec<LineStack<'a>>,
    /// Kernel sockets of unmodified programs, in words.
    unprotected: Vec<String>,
}

#[derive(Serialize)]
struct LineStack<'a> {
    #[serde(flatten)]
    pair: &'a Pair,
    rates: Vec<control::Rates>,
    processors: &'a Shares,
}

fn line<'a>(
    period: Duration,
    looks: &'a [(Pair, Shares)],
    ended: &'a [String],
    unprotected: &[Record],
) -> Line<'a> {
    Line {
        unprotected: unprotected.iter().map(Record::to_string).collect(),
        seconds: period.as_secs_f64(),
        ended,
        stacks: looks
            .iter()
            .map(|(pair, shares)| LineStack {
                pair,
                rates: control::Rates::all(pair),
                processors: shares,
            })
            .collect(),
    }
}

/// Returns the names of the stacks that were there before and have ended.
fn ended(before: &[(PathBuf, StackSnapshot)], now: &Look) -> Vec<String> {
    let found = now.found.iter().map(|(path, _)| path);
    let known: Vec<&PathBuf> = found
        .chain(now.silent.iter().map(|(path, _)| path))
        .collect();
    before
        .iter()
        .filter(|(path, _)| !known.contains(&path))
        .map(|(_, stack)| view::name(stack))
        .collect()
}

/// Explains why a look finds no stack any more.
fn all_ended(names: &[String]) -> Failure {
    let (plural, have) = if names.len() == 1 {
        ("", "has")
    } else {
        ("s", "have")
    };
    Failure::answer(format!(
        "the stack{plural} of {} {have} ended",
        names.join(", ")
    ))
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
    let period = arguments.watch.unwrap_or(PERIOD);
    let screen = arguments.watch.is_some() && !arguments.json && io::stdout().is_terminal();
    let mut processors = processor::Watch::default();
    let found = stacks(arguments.process).and_then(look);
    let mut before = match found {
        Ok(look) if !look.found.is_empty() => look.found,
        found => {
            // All sockets of a program may be the kernel's.
            say(&report::listed(&unprotected(arguments.process, &[])))?;
            return Err(found.err().unwrap_or_else(none_live));
        }
    };
    processors.read(before.iter().map(|(_, stack)| stack.process));
    // On a terminal, ended stacks stay visible.
    let mut gone: Vec<String> = Vec::new();
    let mut first = true;
    loop {
        let paths: Vec<PathBuf> = before.iter().map(|(path, _)| path.clone()).collect();
        let received = between(period, &stop, &paths);
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = look(of(arguments.process, &all()?))?;
        let ended = ended(&before, &now);
        if now.found.is_empty() {
            return Err(all_ended(&ended));
        }
        processors.read(now.found.iter().map(|(_, stack)| stack.process));
        let looks: Vec<(Pair, Shares)> = now
            .found
            .iter()
            .map(|(path, now)| {
                let pair = paired(path, now, &before, &received);
                (pair, processors.shares(now.process))
            })
            .collect();
        let silent = now.silent.iter().map(|(_, failure)| failure.to_string());
        let unprotected = unprotected(arguments.process, &now.found);
        if arguments.json {
            say_json(&line(period, &looks, &ended, &unprotected))?;
        } else if arguments.watch.is_some() {
            gone.extend(
                ended
                    .iter()
                    .map(|name| format!("the stack of {name} has ended")),
            );
            gone.drain(..gone.len().saturating_sub(GONE));
            let notes: Vec<String> = gone.iter().cloned().chain(silent).collect();
            let text = view::watch(&looks, &notes) + &report::listed(&unprotected);
            if screen {
                let clear = if first { screen::CLEAR } else { "" };
                say(&format!("{clear}{}", screen::over(&text)))?;
            } else {
                say(&text)?;
                gone.clear();
            }
        } else {
            let texts: Vec<String> = looks
                .iter()
                .map(|(pair, shares)| view::text(pair, shares))
                .collect();
            say(&texts.join("\n"))?;
            say(&report::listed(&unprotected))?;
        }
        if arguments.watch.is_none() {
            return Ok(());
        }
        first = false;
        // A stack that answers again later is compared with its last answer.
        before.retain(|(path, _)| now.silent.iter().any(|(silent, _)| silent == path));
        before.extend(now.found);
    }
}

/// Sleeps, ending early when `stop` is set.
pub fn pause(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

#[cfg(test)]
mod tests {
    use super::control::tests::control;
    use super::view::tests::stack;
    use super::*;

    #[test]
    fn periods_are_checked() {
        assert_eq!(period("1"), Ok(Duration::from_secs(1)));
        assert_eq!(period("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(period("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(period("60"), Ok(Duration::from_secs(60)));
        for text in ["0", "0.09", "61", "4711", "-1", "soon"] {
            assert!(period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_look_is_one_line_of_json() {
        let mut before = stack(1, 100, 0);
        before.queues[0].control = control();
        let mut now = stack(3, 300, 0);
        now.queues[0].control = control();
        now.queues[0].control.interrupts += 50;
        let looks = [(Pair::new(now, Some(before)), Shares::default())];
        let ended = ["process 9 on tw-z".to_owned()];
        let text =
            serde_json::to_string(&line(Duration::from_secs(2), &looks, &ended, &[])).unwrap();
        assert!(!text.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["seconds"], 2.0);
        assert_eq!(value["ended"][0], "process 9 on tw-z");
        let stack = &value["stacks"][0];
        assert_eq!(stack["rates"][0]["interrupts"], 25.0);
        assert_eq!(stack["rates"][0]["frames"], 100.0);
        assert!(stack["processors"]["idle"].is_null());
        let control = &stack["now"]["queues"][0]["control"];
        assert_eq!(control["policy"], "adaptive");
        assert_eq!(control["interval"], 50_000);
        assert_eq!(stack["before"]["queues"][0]["control"]["interrupts"], 1_000);
    }

    #[test]
    fn packets_are_unseen_only_where_the_program_saw_none() {
        let look = |frames: u64, received| {
            let mut look = stack(1, frames, 0);
            look.received = received;
            look
        };
        let path = PathBuf::from("/run/1.0.sock");
        let unseen = |before: StackSnapshot, now: StackSnapshot, read: Option<u64>| {
            let received: Vec<_> = read.map(|read| (path.clone(), read)).into_iter().collect();
            paired(&path, &now, &[(path.clone(), before)], &received).unseen()
        };
        // 40 arrived and none was seen; packets after the reading do not count.
        let all = unseen(look(5, Some(100)), look(5, Some(170)), Some(140));
        assert_eq!(all, Some(40));
        // One seen packet is enough.
        let some = unseen(look(5, Some(100)), look(6, Some(170)), Some(140));
        assert_eq!(some, None);
        // None arrived: local clients do not use the interface.
        let none = unseen(look(5, Some(100)), look(5, Some(101)), Some(100));
        assert_eq!(none, None);
        // Unknown: no procfs, a stack that has just begun, or a silent one.
        assert_eq!(unseen(look(5, None), look(5, None), None), None);
        assert_eq!(unseen(look(5, Some(1)), look(5, Some(2)), None), None);
        assert_eq!(unseen(look(5, None), look(5, Some(2)), Some(2)), None);
        assert_eq!(Pair::new(look(5, Some(1)), None).unseen(), None);
    }

    #[test]
    fn stacks_that_have_ended_are_named() {
        let one = (PathBuf::from("/run/1.0.sock"), stack(1, 0, 0));
        let mut two = (PathBuf::from("/run/2.0.sock"), stack(1, 0, 0));
        two.1.process = 2;
        let before = [one.clone(), two];
        let mut now = Look {
            found: vec![one],
            silent: Vec::new(),
        };
        assert_eq!(ended(&before, &now), ["process 2 on tw-x"]);
        // A stack that does not answer has not ended.
        let silent = (PathBuf::from("/run/2.0.sock"), Failure::answer("busy"));
        now.silent.push(silent);
        assert!(ended(&before, &now).is_empty());
        now = look(Vec::new()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            all_ended(&ended(&before[..1], &now)).to_string(),
            "the stack of process 0 on tw-x has ended"
        );
        assert_eq!(
            all_ended(&ended(&before, &now)).to_string(),
            "the stacks of process 0 on tw-x, process 2 on tw-x have ended"
        );
    }

    #[test]
    fn a_stack_that_is_gone_is_no_error() {
        let path = std::env::temp_dir().join(format!("tw-stat-{}.sock", std::process::id()));
        assert!(ask(&path).is_ok_and(|found| found.is_none()));
        // The stack accepts, and ends before it answers.
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let ending = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 5];
            io::Read::read_exact(&mut stream, &mut request).unwrap();
        });
        assert!(ask(&path).is_ok_and(|found| found.is_none()));
        ending.join().unwrap();
        // No stack listens any more.
        assert!(snapshot(&path).is_err_and(|error| error.code() == 1));
        std::fs::remove_file(&path).unwrap();
    }
}
