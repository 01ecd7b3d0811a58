//! Counting instructions with valgrind: a shared machine changes times, not
//! counts. For the benches beside this folder.
//!
//! Counts are kept in a file and judged against it: one that is above what is
//! kept by more than a twentieth fails. Another compiler makes another program:
//! counts are only judged against those of the same one.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};

/// What is counted: its name, and the run of so many rounds.
pub type Scenario = (&'static str, fn(u32));

/// Rounds of the two runs whose difference is counted: how it begins is the
/// same in both.
const ROUNDS: [u32; 2] = [2000, 4000];

/// Beyond what is kept, in hundredths.
const TOLERANCE: u64 = 5;

/// What `main` does with its arguments: `--run`, by which it calls itself under
/// valgrind, and `--instructions`, with `--keep` to write the file. `None`:
/// neither was asked for.
pub fn main(file: &str, scenarios: &[Scenario]) -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [run, scenario, rounds] = arguments.as_slice()
        && run == "--run"
        && let (Ok(scenario), Ok(rounds)) = (scenario.parse::<usize>(), rounds.parse())
        && let Some((_, scenario)) = scenarios.get(scenario)
    {
        scenario(rounds);
        return Some(ExitCode::SUCCESS);
    }
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    if !asked("--instructions") {
        return None;
    }
    Some(match measure(file, scenarios, asked("--keep")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

/// Instructions of one run.
fn count(scenario: usize, rounds: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("tidewall-instructions-{}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .arg(format!("--cachegrind-out-file={}", file.display()))
        .arg(program)
        .args(["--run", &scenario.to_string(), &rounds.to_string()])
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); `make setup` installs it"))?;
    let profile = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind has failed:\n{said}"));
    }
    let profile = profile.map_err(|error| format!("{}: {error}", file.display()))?;
    profile
        .lines()
        .find_map(|line| line.strip_prefix("summary:")?.trim().parse().ok())
        .ok_or_else(|| "valgrind's profile has no summary".to_owned())
}

/// What `rustc --version` says.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn measure(file: &str, scenarios: &[Scenario], keep: bool) -> Result<bool, String> {
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let compiler = compiler();
    let same = kept.lines().next() == Some(compiler.as_str());
    if !keep && !same {
        println!("not judged: what is kept was counted with another compiler than {compiler}");
    }
    let (mut text, mut good) = (format!("{compiler}\n"), true);
    for (scenario, (name, _)) in scenarios.iter().enumerate() {
        let [less, more] = ROUNDS.map(|rounds| count(scenario, rounds));
        let each = more?.saturating_sub(less?) / u64::from(ROUNDS[1] - ROUNDS[0]);
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
