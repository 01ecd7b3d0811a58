//! Runs the programs that set up a test bed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// The command and its standard error, if it cannot be run or fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let line = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| match package(program) {
            Some(package) => format!("cannot run {program}: install the package {package}"),
            None => format!("cannot run {program}"),
        })?;
    if !output.status.success() {
        bail!(
            "`{}` failed: {}",
            line(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command given as a line, whose words contain no blanks.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn run_line(line: &str) -> anyhow::Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    run(program, &words.collect::<Vec<_>>())
}

/// Returns the absolute path of a program, from the directories that a restorer searches.
pub(crate) fn absolute(program: &str) -> anyhow::Result<String> {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|directory| format!("{directory}/{program}"))
        .find(|path| Path::new(path).exists())
        .with_context(|| match package(program) {
            Some(package) => format!("the program {program} is missing: install {package}"),
            None => format!("the program {program} is missing"),
        })
}

/// Returns the Debian package of a program.
pub(crate) fn package(program: &str) -> Option<&'static str> {
    match program {
        "ip" | "tc" => Some("iproute2"),
        "ethtool" => Some("ethtool"),
        "nft" => Some("nftables"),
        "taskset" => Some("util-linux"),
        "mount" | "umount" => Some("mount"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_failed_and_why() {
        assert_eq!(run("echo", &["a", "b"]).unwrap(), "a b\n");
        assert_eq!(run_line("echo a  b").unwrap(), "a b\n");
        let error = run("ls", &["/nonexistent-tidewall"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("ls /nonexistent-tidewall"), "{error}");
        assert!(run("nonexistent-tidewall", &[]).is_err());
        assert!(absolute("nonexistent-tidewall").is_err());
    }
}
