//! Instructions that waiting and reading cost, counted by valgrind: a shared
//! machine changes times, not counts.
//!
//! `cargo bench -p tidewall-socket --bench readiness_instructions` prints each count
//! beside the one that is kept in `benches/readiness_instructions.txt` and fails if
//! one is above it by more than a twentieth. `-- --keep` writes the file. Another
//! compiler makes another program: counts are only judged against those of the same
//! one.

#[path = "readiness/bed.rs"]
mod bed;

use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use bed::Bed;
use tidewall_socket::readiness::{EpollEvent, Events, Operation};

/// What is counted: its name, and the run of so many rounds.
type Scenario = (&'static str, fn(u32));

const SCENARIOS: [Scenario; 5] = [
    ("epoll_wait and read, nothing idle", |rounds| {
        serve(rounds, 0, true)
    }),
    ("epoll_wait and read, 4000 idle", |rounds| {
        serve(rounds, 4000, true)
    }),
    ("epoll_wait and read, with the protocol", |rounds| {
        serve(rounds, 0, false)
    }),
    ("epoll_wait, nothing ready, 4000 idle", look),
    ("epoll_ctl, a change", change),
];

/// Connections that are written to: what is counted is this part of a round.
const ACTIVE: usize = 16;

/// Rounds of the two runs whose difference is counted.
const ROUNDS: [u32; 2] = [50, 150];

/// Beyond what is kept, in hundredths.
const TOLERANCE: u64 = 5;

fn serve(rounds: u32, idle: usize, process: bool) {
    let mut bed = Bed::new(ACTIVE, idle);
    for _ in 0..rounds {
        bed.send_all(process);
        counted_serve(&bed);
    }
}

fn look(rounds: u32) {
    let bed = Bed::new(ACTIVE, 4000);
    for _ in 0..rounds {
        counted_look(&bed);
    }
}

fn change(rounds: u32) {
    let bed = Bed::new(ACTIVE, 0);
    for round in 0..rounds {
        counted_change(&bed, round);
    }
}

// What is counted is what happens in functions of these names.

#[inline(never)]
fn counted_serve(bed: &Bed) {
    bed.serve_all();
}

#[inline(never)]
fn counted_look(bed: &Bed) {
    let mut events = [EpollEvent::default(); 4];
    for _ in 0..ACTIVE {
        let told = bed
            .near
            .epoll_wait(bed.set, &mut events, Some(Duration::ZERO));
        assert_eq!(told.ok(), Some(0));
    }
}

#[inline(never)]
fn counted_change(bed: &Bed, data: u32) {
    for &fd in &bed.fds {
        let event = EpollEvent {
            events: Events::IN | Events::EDGE,
            data: data.into(),
        };
        let changed = bed
            .near
            .epoll_ctl(bed.set, Operation::Modify, fd, Some(event));
        assert!(changed.is_ok());
    }
}

/// Instructions of one run, in what is counted.
fn count(scenario: usize, rounds: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_*")
        .arg(program)
        .args(["--run", &scenario.to_string(), &rounds.to_string()])
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); `make setup` installs it"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind has failed:\n{said}"));
    }
    // "==PID== Collected : COUNT".
    said.lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
        .ok_or_else(|| format!("no count in:\n{said}"))
}

/// What `rustc --version` says.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn measure(keep: bool) -> Result<bool, String> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/readiness_instructions.txt"
    );
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let compiler = compiler();
    let same = kept.lines().next() == Some(compiler.as_str());
    if !keep && !same {
        println!("not judged: what is kept was counted with another compiler than {compiler}");
    }
    let (mut text, mut good) = (format!("{compiler}\n"), true);
    for (scenario, (name, _)) in SCENARIOS.iter().enumerate() {
        let [less, more] = ROUNDS.map(|rounds| count(scenario, rounds));
        let calls = u64::from(ROUNDS[1] - ROUNDS[0]) * ACTIVE as u64;
        let each = more?.saturating_sub(less?) / calls;
        let before = kept
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
            .unwrap_or(u64::MAX);
        let within = each.saturating_mul(100) <= before.saturating_mul(100 + TOLERANCE);
        good &= keep || !same || within;
        let word = if within { "" } else { " ABOVE" };
        println!(
            "{name}: {each} instructions, {:.3} of {before}{word}",
            each as f64 / before as f64
        );
        let _ = writeln!(text, "{name}: {each}");
    }
    if keep {
        std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(good)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [run, scenario, rounds] = arguments.as_slice()
        && run == "--run"
        && let (Ok(scenario), Ok(rounds)) = (scenario.parse::<usize>(), rounds.parse())
        && let Some((_, scenario)) = SCENARIOS.get(scenario)
    {
        scenario(rounds);
        return ExitCode::SUCCESS;
    }
    match measure(arguments.iter().any(|argument| argument == "--keep")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
