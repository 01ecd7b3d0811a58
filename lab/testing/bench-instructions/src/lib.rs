//! Counts the instructions of a hot call with valgrind and keeps them in a file: a shared
//! machine affects times, not counts.
//!
//! Lives here: how a bench runs itself under callgrind ([`main`]), what part of a run is
//! counted ([`Counter`]), and the judgement against the kept file. Does not live here:
//! the counted code, which is in the benches (`crates/*/benches`).
//!
//! ```text
//! bench --instructions ─► valgrind bench --run N ─► scenario N, counted in part
//!        └── judged against NAME_instructions.txt, or with --keep written to it
//! ```
//!
//! Read first: the manual of valgrind, chapter 6 (callgrind), `--toggle-collect`.
//!
//! # What is counted
//!
//! Every scenario first runs [`WARM_UP`] uncounted rounds, in which tables grow to their
//! size and connections leave slow start, then [`COUNTED`] counted ones. In each of those
//! the scenario marks the part to count; its preparations are not counted. Copying,
//! clearing and comparing memory in libc (`memcpy` and its like) is printed, but not
//! judged: the processor decides which of libc's versions runs.
//!
//! # The judgement
//!
//! A count that exceeds the kept one by more than [`TOLERANCE`] hundredths fails, and so
//! does one without a kept count. Another compiler makes another program: counts are only
//! judged against those of the same compiler, which the file names. [`judge`] does the
//! same with counts that a bench makes in another way.

mod kept;
mod profile;

use std::hint::black_box;
use std::process::{Command, ExitCode};

use kept::Kept;
use profile::Cost;

/// Rounds of a scenario before those that are counted.
pub const WARM_UP: u32 = 250;

/// Rounds of a scenario that are counted.
pub const COUNTED: u32 = 500;

/// How far a count may exceed the kept one, in hundredths of that.
pub const TOLERANCE: u64 = 5;

/// A counted scenario: its name, and the function that runs the counter's rounds.
pub type Scenario = (&'static str, fn(&mut Counter));

/// The rounds of a scenario, and their counted part.
///
/// ```
/// # use tidewall_bench_instructions::Counter;
/// fn push_ten(counter: &mut Counter) {
///     while counter.next_round() {
///         let mut list = Vec::with_capacity(10);
///         counter.count(10, || (0..10).for_each(|number| list.push(number)));
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Counter {
    round: u32,
    calls: u64,
}

impl Counter {
    /// Returns whether there is another round, which then begins.
    pub fn next_round(&mut self) -> bool {
        self.round += 1;
        self.round <= WARM_UP + COUNTED
    }

    /// Runs the counted part of this round: `calls` calls of the scenario's subject. The
    /// scenario is judged by the instructions of one call.
    ///
    /// `run` must not count itself.
    pub fn count<R>(&mut self, calls: usize, run: impl FnOnce() -> R) -> R {
        if self.round <= WARM_UP {
            return run();
        }
        self.calls += calls as u64;
        counted_part(run)
    }
}

/// Runs the counted code. Callgrind counts while this function runs, which it finds by
/// its name.
#[inline(never)]
fn counted_part<R>(run: impl FnOnce() -> R) -> R {
    // The function ends here, not with a jump to the last call of `run`.
    black_box(run())
}

/// The callgrind option that selects [`counted_part`].
const COUNTED_PART: &str = "--toggle-collect=*tidewall_bench_instructions*counted_part*";

/// Counts if the bench's arguments request it: `--instructions`, with `--keep` to write
/// the file instead of judging. Returns `None` if not: the bench then does its other
/// work.
///
/// `kept` is the path of the file.
pub fn main(kept: &str, scenarios: &[Scenario]) -> Option<ExitCode> {
    let asked = std::env::args().any(|argument| argument == "--instructions");
    (asked || is_run()).then(|| count(kept, scenarios))
}

/// Acts as [`main`], for a bench with no other work: counts without being asked.
///
/// The exit status is a failure if a count exceeds the kept one or is not kept, and if
/// valgrind fails; the reason has been printed then.
pub fn count(kept: &str, scenarios: &[Scenario]) -> ExitCode {
    let outcome = if is_run() {
        run(scenarios).map(|()| true)
    } else {
        let keep = std::env::args().any(|argument| argument == "--keep");
        judge_all(kept, scenarios, keep)
    };
    exit_code(outcome)
}

/// Returns the exit code of a bench; prints the error.
fn exit_code(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The argument with which the bench calls itself under valgrind, followed by a
/// scenario's index.
const RUN: &str = "--run";

fn is_run() -> bool {
    std::env::args().nth(1).is_some_and(|first| first == RUN)
}

/// Runs the scenario that the arguments name; prints the number of counted calls.
fn run(scenarios: &[Scenario]) -> Result<(), String> {
    let place: Option<usize> = std::env::args().nth(2).and_then(|place| place.parse().ok());
    let Some((_, run)) = place.and_then(|place| scenarios.get(place)) else {
        return Err(format!("{RUN} needs the place of a scenario"));
    };
    let mut counter = Counter { round: 0, calls: 0 };
    run(&mut counter);
    println!("{}", counter.calls);
    Ok(())
}

/// Measures the cost of one call of a scenario.
fn measure(place: usize) -> Result<Cost, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("tidewall-instructions-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", COUNTED_PART])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([RUN, &place.to_string()])
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); `make setup` installs it"))?;
    let text = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind has failed:\n{said}"));
    }
    let calls: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| "the scenario has not said how many calls were counted".to_owned())?;
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    let cost = profile::sum(&text);
    if cost.instructions == 0 {
        return Err("valgrind has not found what is counted".to_owned());
    }
    cost.each(calls)
        .ok_or_else(|| "the scenario has counted no calls".to_owned())
}

/// Returns the output of `rustc --version`.
pub fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Judges all scenarios; prints the cost of each beside the kept one. Returns whether all
/// is well.
fn judge_all(file: &str, scenarios: &[Scenario], keep: bool) -> Result<bool, String> {
    let mut judgement = Judgement::new(file, compiler(), TOLERANCE, keep)?;
    for (place, &(name, _)) in scenarios.iter().enumerate() {
        let cost = measure(place).map_err(|error| format!("{name}: {error}"))?;
        let copying = match cost.copying {
            0 => String::new(),
            copying => format!(" (and {copying} in libc's memcpy and its like)"),
        };
        judgement.add(name, cost.instructions, &copying);
    }
    judgement.end()
}

/// Judges counts that are made without valgrind, as [`count`] does its own: each has a
/// name, the count and a remark to print.
///
/// `kept` is the path of the file, `compiler` the compiler of the counted code,
/// `tolerance` replaces [`TOLERANCE`].
pub fn judge(
    kept: &str,
    compiler: String,
    tolerance: u64,
    counts: impl IntoIterator<Item = (String, u64, String)>,
) -> ExitCode {
    let keep = std::env::args().any(|argument| argument == "--keep");
    let outcome = Judgement::new(kept, compiler, tolerance, keep).and_then(|mut judgement| {
        for (name, count, remark) in counts {
            judgement.add(&name, count, &remark);
        }
        judgement.end()
    });
    exit_code(outcome)
}

/// Counts compared with those of a file.
struct Judgement<'a> {
    file: &'a str,
    kept: Kept,
    now: Kept,
    tolerance: u64,
    keep: bool,
}

impl<'a> Judgement<'a> {
    fn new(file: &'a str, compiler: String, tolerance: u64, keep: bool) -> Result<Self, String> {
        let kept = match std::fs::read_to_string(file) {
            // Whatever it contains, it is about to be rewritten.
            Ok(text) if keep => Kept::parse(&text).unwrap_or_default(),
            Ok(text) => Kept::parse(&text).map_err(|error| format!("{file}: {error}"))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kept::default(),
            Err(error) => return Err(format!("{file}: {error}")),
        };
        println!("instructions of a call, {compiler}");
        Ok(Self {
            file,
            kept,
            now: Kept {
                compiler,
                counts: Vec::new(),
            },
            tolerance,
            keep,
        })
    }

    /// Adds a count and prints it, with a remark, beside the kept one.
    fn add(&mut self, name: &str, count: u64, remark: &str) {
        let beside = match self.kept.count(name) {
            Some(before) => format!(
                "{:.3} of {before} that are kept",
                count as f64 / before as f64
            ),
            None => "not kept".to_owned(),
        };
        println!("{name}: {count}{remark}, {beside}");
        self.now.counts.push((name.to_owned(), count));
    }

    /// Returns whether all is well; or writes the file.
    fn end(self) -> Result<bool, String> {
        let Self {
            file,
            kept,
            now,
            tolerance,
            keep,
        } = self;
        if keep {
            std::fs::write(file, now.to_string()).map_err(|error| format!("{file}: {error}"))?;
            println!("kept in {file}");
            return Ok(true);
        }
        if !kept.compiler.is_empty() && kept.compiler != now.compiler {
            println!(
                "not judged: {file} was counted with another compiler, {}; \
                 `-- --instructions --keep` counts it anew",
                kept.compiler
            );
            return Ok(true);
        }
        let complaints = now.complaints(&kept, tolerance);
        for complaint in &complaints {
            eprintln!("FAILED: {complaint}");
        }
        if !complaints.is_empty() {
            eprintln!(
                "{file} is what these are judged against; `-- --instructions --keep` writes it \
                 anew, if what a call costs now is meant"
            );
        }
        Ok(complaints.is_empty())
    }
}
