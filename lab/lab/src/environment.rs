//! The environment of an experiment: everything a reader needs to judge its numbers.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The machine and its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Kernel release.
    pub kernel: String,
    /// When the run began, in HTTP's format (RFC 9110 §5.6.7).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub date: String,
    /// Processors online.
    pub cpus: usize,
    /// The receiver's processor.
    pub receiver_cpu: usize,
    /// Load averages over 1, 5 and 15 minutes, when the run began.
    pub load_average: Vec<f64>,
    /// Queueing discipline of the sending interface.
    pub qdisc: String,
    /// Offloads by side and name.
    pub offloads: BTreeMap<String, String>,
    /// Commit of the sources; `-dirty` if changed since.
    pub commit: String,
    /// The sender's and client's processor.
    #[serde(default)]
    pub sender_cpu: usize,
    /// Model of the processors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub processor: String,
    /// Kinds of senders used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub senders: Vec<String>,
    /// How each system was run, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub systems: BTreeMap<String, String>,
    /// Conditions that were unavailable, and the consequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortcomings: Vec<String>,
}

impl Environment {
    /// Returns the machine's own data; the test bed's fields are left empty.
    pub fn of_machine() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, model)| model.trim().to_owned())
            .unwrap_or_default();
        Environment {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: httpdate::fmt_http_date(SystemTime::now()),
            // Not those that this process may use: it keeps off the receiver's.
            cpus: read("/proc/cpuinfo")
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            load_average: read("/proc/loadavg")
                .split_whitespace()
                .take(3)
                .filter_map(|text| text.parse().ok())
                .collect(),
            commit: commit(),
            processor,
            ..Environment::default()
        }
    }
}

/// Returns the commit of the repository in which the program was built, if it is still
/// there.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(arguments)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => {
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
            if changed.is_some_and(|changed| !changed.is_empty()) {
                commit + "-dirty"
            } else {
                commit
            }
        }
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_about_itself() {
        let environment = Environment::of_machine();
        assert!(!environment.kernel.is_empty());
        assert!(environment.cpus >= 1);
        assert_eq!(environment.load_average.len(), 3);
        assert!(!environment.commit.is_empty());
    }
}
