//! A processor's activity, sampled with `perf`.
//!
//! The kernel's clock interrupts the processor some thousand times per second and records
//! what it was doing. That works without hardware counters, which virtual machines lack,
//! and includes the kernel's own work and the idle loop.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use crate::command::{absolute, run};
use crate::worker::scratch;

/// Samples per second; not in step with the scheduler's tick.
const RATE: u32 = 1999;
/// Functions that the kernel runs when there is nothing to do.
const IDLE: [&str; 9] = [
    "default_idle",
    "safe_halt",
    "acpi_idle",
    "acpi_processor_ffh",
    "acpi_safe_halt",
    "intel_idle",
    "cpuidle",
    "cpu_idle_poll",
    "do_idle",
];

/// Samples of one processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// While it was idle.
    pub(crate) idle: u64,
    /// While it ran the watched process, or kernel work without a process, by function.
    pub(crate) functions: BTreeMap<String, u64>,
    /// While it ran another process, outside the experiment.
    pub(crate) others: u64,
}

impl Profile {
    /// Returns the samples without those of other processes.
    pub(crate) fn total(&self) -> u64 {
        self.idle + self.functions.values().sum::<u64>()
    }

    /// Returns the samples of the functions that `which` selects.
    pub(crate) fn of(&self, which: impl Fn(&str) -> bool) -> u64 {
        self.functions
            .iter()
            .filter(|(name, _)| which(name))
            .map(|(_, samples)| samples)
            .sum()
    }
}

/// Checks whether `perf` can sample here; otherwise returns why. It tries more than once:
/// the output before `perf` has been scheduled is empty.
pub(crate) fn is_there(cpu: usize) -> Result<(), String> {
    const TRIES: u32 = 5;
    let mut why = String::new();
    for attempt in 1..=TRIES {
        let time = Duration::from_millis(50) * attempt;
        let recorder = Recorder::start(cpu, time).map_err(|e| format!("{e:#}"))?;
        match recorder.finish(0) {
            Ok(profile) if profile.total() + profile.others > 0 => return Ok(()),
            Ok(_) => why = "perf recorded nothing".to_owned(),
            Err(error) => why = format!("{error:#}"),
        }
    }
    Err(why)
}

/// A running `perf record`.
pub(crate) struct Recorder {
    child: Child,
    file: PathBuf,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

impl Recorder {
    /// Begins to sample a processor, for this long.
    ///
    /// # Errors
    /// An error if there is no `perf`.
    pub(crate) fn start(cpu: usize, time: Duration) -> anyhow::Result<Self> {
        let file = scratch("perf");
        let child = Command::new(absolute("perf").context("install linux-perf")?)
            .args([
                "record",
                "-q",
                "-B",
                "-N",
                "-e",
                "cpu-clock",
                "-F",
                &RATE.to_string(),
            ])
            .args(["-C", &cpu.to_string(), "-o"])
            .arg(&file)
            .args(["--", "sleep", &format!("{:.3}", time.as_secs_f64())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run perf")?;
        Ok(Recorder { child, file })
    }

    /// Waits for the end and reads the samples; `process` is the watched one.
    ///
    /// # Errors
    /// The error of `perf`.
    pub(crate) fn finish(mut self, process: u32) -> anyhow::Result<Profile> {
        let status = self.child.wait()?;
        if !status.success() {
            anyhow::bail!("perf record ended ({status}): it needs root, or perf_event_paranoid 0");
        }
        Ok(read(&text(&self.file)?, process))
    }
}

fn text(file: &Path) -> anyhow::Result<String> {
    let file = file.to_string_lossy();
    run(
        "perf",
        &["script", "-G", "-i", &file, "-F", "comm,pid,ip,sym"],
    )
}

/// Parses the output of `perf script`, one sample per line: the command's name, its
/// process, an address and the function.
fn read(text: &str, process: u32) -> Profile {
    let mut profile = Profile::default();
    for line in text.lines() {
        let Some((pid, function)) = sample(line) else {
            continue;
        };
        let kernel = pid == 0 || line.trim_start().starts_with("ksoftirqd");
        if pid == 0 && IDLE.iter().any(|idle| function.contains(idle)) {
            profile.idle += 1;
        } else if pid == process || kernel {
            *profile.functions.entry(function.to_owned()).or_default() += 1;
        } else {
            profile.others += 1;
        }
    }
    profile
}

/// Parses the process and the function. A command's name may contain spaces; the address,
/// which is long and hexadecimal, marks its end.
fn sample(line: &str) -> Option<(u32, &str)> {
    let is_address = |word: &str| word.len() >= 6 && u64::from_str_radix(word, 16).is_ok();
    let mut process = None;
    for word in line.split_whitespace() {
        if let Some(process) = process
            && is_address(word)
        {
            let at = word.as_ptr() as usize - line.as_ptr() as usize + word.len();
            return Some((process, line.get(at..)?.trim()));
        }
        process = word.parse().ok();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
        tidewall  4711      55d0c0ffee00 tidewall::readiness::select::look\n\
        tidewall  4711  ffffffff816b727a tcp_v4_rcv\n\
         swapper     0  ffffffff816b0000 pv_native_safe_halt\n\
         swapper     0  ffffffff816b1111 net_rx_action\n\
     ksoftirqd/1    17  ffffffff816b1111 net_rx_action\n\
   Web Content 1234  9999      7f514f0715ae [unknown]\n\
        odd line\n";

    #[test]
    fn samples_are_distinguished() {
        let profile = read(TEXT, 4711);
        assert_eq!((profile.idle, profile.others), (1, 1));
        assert_eq!(profile.functions["net_rx_action"], 2);
        assert_eq!(profile.total(), 5);
        assert_eq!(profile.of(|name| name.contains("readiness")), 1);
    }

    #[test]
    fn names_with_spaces_and_numbers_are_read() {
        let line = "  Web Content 1234  9999      7f514f0715ae <T as Trait>::call a";
        assert_eq!(sample(line), Some((9999, "<T as Trait>::call a")));
        assert_eq!(sample("x"), None);
    }
}
