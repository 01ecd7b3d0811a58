//! Every script of `scripts/`, with each of its address families, in one line each.
//! Arguments that are not options select scripts by a part of their name, as with other
//! tests.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidewall_conformance::run::{self, Family};
use tidewall_conformance::script::{self, Script};

fn main() -> ExitCode {
    let wanted = wanted(std::env::args().skip(1));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no script in {}", root.display());
    let mut failures = Vec::new();
    let (mut passed, mut skipped) = (0, 0);
    for path in paths {
        let shown = path
            .strip_prefix(&root)
            .unwrap_or(&path)
            .display()
            .to_string();
        if !wanted.is_empty() && !wanted.iter().any(|part| shown.contains(part.as_str())) {
            skipped += 1;
            continue;
        }
        let script = match read(&path) {
            Ok(script) => script,
            Err(message) => {
                println!("script {shown} ... FAILED");
                failures.push(message);
                continue;
            }
        };
        let families = match run::families(&script) {
            Ok(families) => families,
            Err(error) => {
                println!("script {shown} ... FAILED");
                failures.push(format!("{}:{error}", path.display()));
                continue;
            }
        };
        for family in families {
            let result = outcome(&script, family);
            let word = if result.is_ok() { "ok" } else { "FAILED" };
            println!("script {shown} ({}) ... {word}", family.name());
            match result {
                Ok(()) => passed += 1,
                Err(message) => failures.push(format!("{}:{message}", path.display())),
            }
        }
    }
    for failure in &failures {
        println!("\n{failure}");
    }
    let word = if failures.is_empty() { "ok" } else { "FAILED" };
    let failed = failures.len();
    println!("\nscripts: {word}. {passed} passed; {failed} failed; {skipped} filtered out\n");
    ExitCode::from(u8::from(failed > 0))
}

/// The arguments that are neither options of the usual test harness nor their values.
fn wanted(mut arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--test-threads" | "--format" | "--color" | "--logfile" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            _ => wanted.push(argument),
        }
    }
    wanted
}

fn outcome(script: &Script, family: Family) -> Result<(), String> {
    catch_unwind(|| run::run_with(script, family))
        .unwrap_or_else(|_| panic_message())
        .map_err(|failure| failure.to_string())
}

/// A panic of the engine fails the script; its message is printed above.
fn panic_message() -> Result<(), run::Failure> {
    Err(run::Failure {
        position: script::Position { line: 1, column: 1 },
        family: Family::V4,
        message: "panicked".into(),
        trace: Vec::new(),
    })
}

/// Reads a script; its first line must name the rule that it tests.
fn read(path: &Path) -> Result<Script, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    if !text.starts_with("// ") {
        return Err(format!(
            "{shown}:1:1: expected a comment that says which rule the script pins"
        ));
    }
    script::parse(&text).map_err(|error| format!("{shown}:{error}"))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            paths.push(path);
        }
    }
}
