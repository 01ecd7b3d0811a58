//! Reports that a test, or a part of it, does not run. This is the only way to do so in
//! this workspace, so that `scripts/test.sh` can count and name what was left out.
//!
//! A line `SKIPPED name: why` goes to standard output, which the harness hides if a test
//! passes, and into the file that the variable `TIDEWALL_SKIPPED` names. If
//! `TIDEWALL_MUST` is set, the machine has every privilege and program, and [`missing`]
//! fails the test.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Reports a missing privilege or program.
///
/// # Panics
/// Panics if `TIDEWALL_MUST` is set.
pub fn missing(test: &str, what: impl Display) {
    let line = record(test, &what);
    assert!(
        std::env::var_os("TIDEWALL_MUST").is_none(),
        "{line} (and TIDEWALL_MUST is set)"
    );
}

/// Reports that the kernel or the machine is of another kind than the test needs, and
/// that no privilege would help.
pub fn inapplicable(test: &str, why: impl Display) {
    record(test, &why);
}

/// Returns true if all these programs are installed; otherwise reports which is
/// [`missing`].
///
/// # Panics
/// Those of [`missing`].
pub fn has_programs(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in programs {
        if !std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            missing(
                test,
                format_args!("the program {program} (scripts/setup.sh)"),
            );
            return false;
        }
    }
    true
}

/// Returns true for user 0; otherwise reports that root is [`missing`].
///
/// # Panics
/// Those of [`missing`].
pub fn is_root(test: &str) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective != Some("0") {
        missing(test, "root");
    }
    effective == Some("0")
}

/// Runs a shell script in a temporary network and mount namespace; `$SELF` is this
/// program. `needs` is what is [`missing`] if the script exits with 3.
///
/// # Panics
/// Panics if the script fails otherwise, and like [`missing`].
pub fn in_namespaces(test: &str, script: &str, needs: &str) {
    if !is_root(test) || !has_programs(test, &["unshare", "ip"]) {
        return;
    }
    let itself = std::env::current_exe().expect("this program has a name");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script])
        .env("SELF", itself)
        .output()
        .expect("unshare is installed");
    if output.status.code() == Some(3) {
        return missing(test, needs);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}\n{errors}");
    print!("{said}");
}

fn record(test: &str, why: &dyn Display) -> String {
    // One line each, whatever an error's text contains.
    let why = why.to_string().replace('\n', " ");
    let line = format!("SKIPPED {test}: {why}");
    println!("{line}");
    if let Some(file) = std::env::var_os("TIDEWALL_SKIPPED") {
        append(Path::new(&file), &line);
    }
    line
}

fn append(file: &Path, line: &str) {
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        // One write, as several processes may report at the same time.
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        println!("cannot write {}: {error}", file.display());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Runs the ignored test below with these variables; returns whether it passed and
    /// the contents of the file then.
    fn skip(must: bool) -> (bool, String) {
        let file = std::env::temp_dir().join(format!("tw-skip-{}-{must}", std::process::id()));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tests::skips", "--ignored"])
            .env("TIDEWALL_SKIPPED", &file)
            .env_remove("TIDEWALL_MUST");
        if must {
            command.env("TIDEWALL_MUST", "1");
        }
        let passed = command.output().unwrap().status.success();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        (passed, text)
    }

    #[test]
    #[ignore = "a part of the tests below"]
    fn skips() {
        super::inapplicable("one", "another kernel");
        assert!(super::has_programs("none", &["sh"]));
        super::has_programs("two", &["sh", "tw-no-such-program"]);
    }

    #[test]
    fn what_is_skipped_is_recorded() {
        let (passed, text) = skip(false);
        assert!(passed);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "SKIPPED one: another kernel");
        assert!(lines[1].starts_with("SKIPPED two: the program tw-no-such"));
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn where_nothing_may_be_missing_a_skipped_test_fails() {
        let (passed, text) = skip(true);
        assert!(!passed);
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
