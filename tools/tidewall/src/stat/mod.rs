//! `tidewall stat`: what live stacks do, and where frames died.

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

/// Time between two looks, unless another is asked for.
const PERIOD: Duration = Duration::from_secs(1);

/// Stacks that have ended that a terminal still shows.
const GONE: usize = 3;

/// Show what live Tidewall stacks do: receive control, queues, sockets, and drops by cause and place.
///
/// Asks every stack of this host (or that of one process) twice, a second
/// apart, and prints counts since the stack began and rates a second in
/// between. Needs to be root, as the stacks are.
///
/// Receive control of a queue: its policy; Bp, most frames a round; T, least
/// time between two interrupts; how frames came (idle, interrupt, mixed,
/// polling); use of its fullest buffer. --watch shows them first, with the
/// idle time of the processors that the stack's threads may run on.
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
    /// Print JSON, one line a look: {"seconds": …, "ended": […], "unprotected": […],
    /// "stacks": [{"now": …, "before": …,
    /// "rates": [a queue's, a second], "processors": {"idle": 0 to 1, …}}]}
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

/// Reads the time between two looks.
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
    /// Packets that the interface received from the earlier one on, up to
    /// somewhat before the later one, so that the driver program has had time to
    /// see them; none where that is not known.
    pub received: Option<u64>,
}

impl Pair {
    /// Of a stack `now` and, unless it has just begun, `before`.
    pub fn new(now: StackSnapshot, before: Option<StackSnapshot>) -> Self {
        Pair {
            now,
            before,
            received: None,
        }
    }

    /// Packets of the interface of which the driver program saw not one; none
    /// where it saw some, or none came.
    pub fn unseen(&self) -> Option<u64> {
        let before = self.before.as_ref()?;
        let silent = self.now.frames() == before.frames();
        self.received.filter(|&packets| silent && packets > 0)
    }

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

    /// As [`Pair::rate`], of a counter of one queue.
    pub fn queue_rate(&self, queue: usize, count: impl Fn(&QueueSnapshot) -> u64) -> f64 {
        self.rate(|stack| stack.queues.get(queue).map_or(0, &count))
    }
}

/// Process that a control socket belongs to.
fn owner(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

/// Control sockets of this host.
fn all() -> Result<Vec<PathBuf>, Failure> {
    sockets::live().map_err(|error| Failure::io(&format!("reading {}", sockets::DIRECTORY), &error))
}

fn of(process: Option<u32>, all: &[PathBuf]) -> Vec<PathBuf> {
    all.iter()
        .filter(|path| process.is_none_or(|process| owner(path) == Some(process)))
        .cloned()
        .collect()
}

/// Live stacks of one process, or of all.
///
/// # Errors
/// Exit code 1 when there are none.
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

/// A snapshot of the stack behind a control socket; none when it has ended.
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
        // It ended in the middle of its answer.
        Err(error) if error.is_eof() => Ok(None),
        Err(error) => Err(Failure::answer(format!(
            "{} answers in another form ({error}); use the tidewall command of the same version",
            path.display()
        ))),
    }
}

/// A snapshot of the stack behind a control socket.
///
/// # Errors
/// What asking reports, a stack that has ended, and an answer that is not a
/// snapshot.
pub fn snapshot(path: &Path) -> Result<StackSnapshot, Failure> {
    ask(path)?.ok_or_else(|| Failure::answer(format!("the stack of {} has ended", path.display())))
}

/// One look at some stacks; those that have ended are left out.
struct Look {
    found: Vec<(PathBuf, StackSnapshot)>,
    /// Those that do not answer, and why.
    silent: Vec<(PathBuf, Failure)>,
}

/// Looks at these stacks.
///
/// # Errors
/// Why one of them does not answer, when none does.
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

/// Looks at what is between two looks: waits `period`, and near its end reads how
/// many packets the interfaces have received.
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

/// The later look at a stack, its earlier one if it was there, and what was read
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

/// A look at all live stacks that answer.
pub fn live() -> Vec<(PathBuf, StackSnapshot)> {
    let paths = stacks(None).unwrap_or_default();
    look(paths).map(|look| look.found).unwrap_or_default()
}

/// Two looks at all live stacks, a second apart; none where there are none.
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

/// Sockets of the kernel, of programs under `tidewall run` and of those with these stacks, or of one
/// process.
fn unprotected(process: Option<u32>, stacks: &[(PathBuf, StackSnapshot)]) -> Vec<Record> {
    let mut records = report::of_all(stacks.iter().map(|(_, stack)| stack));
    records.retain(|record| process.is_none_or(|process| process == record.process));
    records
}

/// What `--json` prints at each look.
#[derive(Serialize)]
struct Line<'a> {
    /// Between two looks.
    seconds: f64,
    /// Stacks that have ended since the last one.
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

/// Names of the stacks that were there before and have ended.
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

/// Why a look finds nothing more to look at.
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
            // All of a program may be on the kernel's sockets.
            say(&report::listed(&unprotected(arguments.process, &[])))?;
            return Err(found.err().unwrap_or_else(none_live));
        }
    };
    processors.read(before.iter().map(|(_, stack)| stack.process));
    // On a terminal what has ended stays to be read.
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
        // 40 came and none was seen; what came after the reading does not count.
        let all = unseen(look(5, Some(100)), look(5, Some(170)), Some(140));
        assert_eq!(all, Some(40));
        // One that was seen is enough.
        let some = unseen(look(5, Some(100)), look(6, Some(170)), Some(140));
        assert_eq!(some, None);
        // None came: local clients do not come by the interface.
        let none = unseen(look(5, Some(100)), look(5, Some(101)), Some(100));
        assert_eq!(none, None);
        // Not known: no procfs, a stack that has just begun, one that is silent.
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
        // One that does not answer has not ended.
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
        // It accepts, and ends before it answers.
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let ending = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 5];
            io::Read::read_exact(&mut stream, &mut request).unwrap();
        });
        assert!(ask(&path).is_ok_and(|found| found.is_none()));
        ending.join().unwrap();
        // Nobody listens any more.
        assert!(snapshot(&path).is_err_and(|error| error.code() == 1));
        std::fs::remove_file(&path).unwrap();
    }
}
