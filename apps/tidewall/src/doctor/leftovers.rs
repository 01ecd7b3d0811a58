//! Leftovers of earlier runs: settings, namespaces and control sockets.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidewall::control;
use tidewall_manager::restore::record::{self, Left};

use super::{Finding, tool};
use crate::end::{Failure, Outcome, say_line};

/// Looks for leftovers.
pub fn check() -> Vec<Finding> {
    vec![
        settings(record::left()),
        namespaces(Path::new("/run/netns"), is_left),
        sockets(Path::new(control::DIRECTORY)),
    ]
}

/// Reports settings that a process could not restore because it was killed together with
/// its restorer.
fn settings(left: io::Result<Vec<Left>>) -> Finding {
    const CHECK: &str = "leftover settings";
    let left = match left {
        Ok(left) => left,
        Err(error) => {
            let text = format!("reading {}: {error}", record::DIRECTORY);
            return Finding::unknown(CHECK, text);
        }
    };
    if left.is_empty() {
        return Finding::ok(CHECK, "none");
    }
    let one = |left: &Left| format!("{}: {}", left.interface, left.steps.join("; "));
    let all: Vec<String> = left.iter().map(one).collect();
    Finding::warning(
        CHECK,
        format!(
            "a process that was killed with its tw-restorer has left to be done for {}; until then \
             interrupts may come late; the next stack on the interface does it, too",
            all.join(", and for ")
        ),
        "tidewall doctor --mend",
    )
}

/// Restores leftover settings, of one interface if it is named, and prints them.
pub fn mend(interface: Option<&str>) -> Outcome {
    let failed =
        |error: io::Error| Failure::io(&format!("putting back by {}", record::DIRECTORY), &error);
    for left in record::left().map_err(failed)? {
        if interface.is_some_and(|interface| interface != left.interface) {
            continue;
        }
        for step in record::undo(&left).map_err(failed)? {
            say_line(&format!("{}: {step}", left.interface))?;
        }
    }
    Ok(())
}

/// Returns whether a namespace demonstrably belongs to a killed `tidewall lab`, `demo` or
/// `tune`:
/// - its name has the number of that process, which no longer exists
/// - no process lives in it
/// - all its interfaces have the laboratory's names
fn is_left(name: &str) -> bool {
    let process = name
        .strip_prefix("tw-")
        .and_then(|rest| rest.split_once('-'));
    let process = process.and_then(|(process, _)| process.parse::<u32>().ok());
    let is_gone = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
    let is_empty = || tool("ip", &["netns", "pids", name]).is_ok_and(|it| it.trim().is_empty());
    let of_laboratory = || {
        let links = tool("ip", &["-n", name, "-brief", "link"]);
        let is_named = |line: &str| line.starts_with("tw-") || line.starts_with("lo ");
        links.is_ok_and(|links| links.lines().all(is_named))
    };
    process.is_some_and(is_gone) && is_empty() && of_laboratory()
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn namespaces(directory: &Path, is_left: impl Fn(&str) -> bool) -> Finding {
    const CHECK: &str = "leftover namespaces";
    let mut left = names(directory);
    left.retain(|name| is_left(name));
    if left.is_empty() {
        return Finding::ok(CHECK, "none");
    }
    Finding::warning(
        CHECK,
        format!(
            "a `tidewall lab`, `demo` or `tune` that was killed has left {}",
            left.join(", ")
        ),
        left.iter()
            .map(|name| format!("ip netns del {name}"))
            .collect::<Vec<_>>()
            .join("\n"),
    )
}

fn sockets(directory: &Path) -> Finding {
    const CHECK: &str = "stale sockets";
    let dead: Vec<String> = names(directory)
        .into_iter()
        .filter(|name| control::is_socket(Path::new(name)))
        .filter(|name| {
            let refused = UnixStream::connect(directory.join(name))
                .err()
                .map(|error| error.kind());
            refused == Some(std::io::ErrorKind::ConnectionRefused)
        })
        .map(|name| directory.join(name).display().to_string())
        .collect();
    if dead.is_empty() {
        return Finding::ok(CHECK, format!("none in {}", directory.display()));
    }
    Finding::warning(
        CHECK,
        format!(
            "{} of processes that are gone; those leave them that were killed with their tw-restorer, and \
             `tidewall stat` removes them",
            dead.len()
        ),
        format!("rm -f {}", dead.join(" ")),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::Severity;
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("tw-doctor-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_was_left_comes_with_what_mends_it() {
        assert_eq!(settings(Ok(Vec::new())).severity, Severity::Ok);
        let denied = settings(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(denied.severity, Severity::Warning);
    }

    #[test]
    fn only_what_the_laboratory_left_is_offered_for_removal() {
        let path = directory("netns");
        for name in ["tw-1-s", "other"] {
            std::fs::write(path.join(name), "").unwrap();
        }
        let finding = namespaces(&path, |name| name == "tw-1-s");
        assert_eq!(finding.mend.as_deref(), Some("ip netns del tw-1-s"));
        assert_eq!(namespaces(&path, |_| false).severity, Severity::Ok);
        std::fs::remove_dir_all(&path).unwrap();
        // Names that are not the laboratory's, or that belong to a live process.
        let own = format!("tw-{}-s", std::process::id());
        for name in ["tw-old", "tw-cli-1-s", "other", &own] {
            assert!(!is_left(name), "{name}");
        }
    }

    #[test]
    fn a_namespace_is_the_laboratory_s_by_its_interfaces() {
        let test = "a_namespace_is_the_laboratory_s_by_its_interfaces";
        if !rustix::process::geteuid().is_root() {
            return tidewall_skip::missing(test, "root");
        }
        // Greater than any process's number (PID_MAX_LIMIT).
        let name = format!("tw-4{:07}-s", std::process::id());
        let ip = |words: &str| tool("ip", &words.split(' ').collect::<Vec<_>>());
        if let Err(error) = ip(&format!("netns add {name}")) {
            return tidewall_skip::missing(test, error);
        }
        let link = |name: &str, to: &str| {
            ip(&format!(
                "-n {name} link add {to} type veth peer name tw-{to}"
            ))
        };
        let before = is_left(&name);
        let ours = link(&name, "tw-a").map(|_| is_left(&name));
        let others = link(&name, "eth0").map(|_| is_left(&name));
        let removed = ip(&format!("netns del {name}"));
        assert_eq!((before, ours, others), (true, Ok(true), Ok(false)));
        removed.unwrap();
    }

    #[test]
    fn a_socket_without_a_listener_is_stale() {
        let path = directory("sockets");
        let live = UnixListener::bind(path.join("1.0.sock")).unwrap();
        drop(UnixListener::bind(path.join("2.0.sock")).unwrap());
        std::fs::write(path.join("record"), "").unwrap();
        let finding = sockets(&path);
        assert_eq!(
            finding.mend,
            Some(format!("rm -f {}/2.0.sock", path.display()))
        );
        std::fs::remove_file(path.join("2.0.sock")).unwrap();
        assert_eq!(sockets(&path).severity, Severity::Ok);
        drop(live);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
