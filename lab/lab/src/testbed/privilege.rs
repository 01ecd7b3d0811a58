//! The requirements of an experiment on the machine.

use std::fmt;

use crate::command::{absolute, package};

/// The machine or the user lacks what an experiment needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Each missing thing, with its remedy.
    pub what: Vec<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the experiments cannot run here:")?;
        for what in &self.what {
            write!(f, "\n  - {what}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Missing {}

/// Checks privileges, programs and processors.
///
/// # Errors
/// Everything that is missing.
pub fn check() -> Result<(), Missing> {
    let mut what = Vec::new();
    if !rustix::process::geteuid().is_root() {
        what.push(
            "root privileges (network namespaces, XDP, real-time threads): run it with sudo"
                .to_owned(),
        );
    }
    for program in ["ip", "ethtool", "taskset", "bash"] {
        if absolute(program).is_err() {
            let package = package(program).unwrap_or(program);
            what.push(format!("the program {program}: apt-get install {package}"));
        }
    }
    let cpus = std::fs::read_to_string("/proc/cpuinfo").map_or(0, |text| {
        text.lines()
            .filter(|line| line.starts_with("processor"))
            .count()
    });
    if cpus == 1 {
        what.push("a second processor: sender and receiver cannot share one".to_owned());
    }
    if what.is_empty() {
        Ok(())
    } else {
        Err(Missing { what })
    }
}
