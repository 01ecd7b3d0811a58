//! What earlier runs may have left: settings, namespaces and control sockets.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidewall_manager::restore::record::{self, Left};
use tidewall_socket::control;

use super::{Finding, tool};
use crate::end::{Failure, Outcome, say_line};

/// Looks for leftovers.
pub fn check() -> Vec<Finding> {
    vec![
        settings(record::left()),
        namespaces(Path::new("/run/netns"), in_use),
        sockets(Path::new(control::DIRECTORY)),
    ]
}

/// Settings that a process could not put back, killed as it was with its
/// restorer.
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

/// Puts back what is left, of one interface if it is named, and says what.
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

/// True when a process lives in a namespace; on doubt too.
fn in_use(name: &str) -> bool {
    tool("ip", &["netns", "pids", name]).map_or(true, |processes| !processes.trim().is_empty())
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

fn namespaces(directory: &Path, in_use: impl Fn(&str) -> bool) -> Finding {
    const CHECK: &str = "leftover namespaces";
    let all: Vec<String> = names(directory)
        .into_iter()
        .filter(|name| name.starts_with("tw-"))
        .collect();
    let idle: Vec<&String> = all.iter().filter(|name| !in_use(name)).collect();
    if idle.is_empty() {
        return Finding::ok(
            CHECK,
            match all.len() {
                0 => "none".to_owned(),
                used => format!("none; {used} named tw-… are in use"),
            },
        );
    }
    let list: Vec<&str> = idle.iter().map(|name| name.as_str()).collect();
    Finding::warning(
        CHECK,
        format!(
            "no process lives in {} (a test may be about to use it)",
            list.join(", ")
        ),
        list.iter()
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
    fn only_idle_namespaces_of_ours_are_leftovers() {
        let path = directory("netns");
        for name in ["tw-old", "tw-used", "other"] {
            std::fs::write(path.join(name), "").unwrap();
        }
        let finding = namespaces(&path, |name| name == "tw-used");
        assert_eq!(finding.mend.as_deref(), Some("ip netns del tw-old"));
        assert_eq!(
            namespaces(&path, |_| true).text,
            "none; 2 named tw-… are in use"
        );
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(namespaces(&path, |_| false).severity, Severity::Ok);
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
