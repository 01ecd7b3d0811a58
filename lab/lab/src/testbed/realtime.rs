//! Room for real-time threads. The host architectures' interrupt and softirq threads must
//! be able to starve the application, as interrupts do. So the kernel's two safeguards
//! are off while such a run is measured.

use std::path::Path;
use std::time::{Duration, Instant};

use tidewall_manager::restore::{Knob, Restorer};

use crate::command::run;

/// Longest time that the safeguards may be off.
pub(crate) const OFF_MAX: Duration = Duration::from_secs(2);

const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const DEBUG: &str = "/sys/kernel/debug";

/// Keeps the safeguards off until dropped.
pub(crate) struct RealTime {
    _knobs: Vec<Knob>,
    since: Instant,
}

impl RealTime {
    /// Longest load, warm-up included, for which they may be off.
    pub(crate) const LOAD_MAX: Duration = Duration::from_millis(1600);

    /// Turns real-time throttling and the fair server of `cpu` off. Notes in
    /// `shortcomings` if that fails.
    pub(crate) fn take(restorer: &Restorer, cpu: usize, shortcomings: &mut Vec<String>) -> Self {
        if !Path::new(&format!("{DEBUG}/sched")).exists() {
            // The usual mount point; the mount may stay, as every distribution has it
            // there.
            let _ = run("mount", &["-t", "debugfs", "none", DEBUG]);
        }
        let fair = format!("{DEBUG}/sched/fair_server/cpu{cpu}/runtime");
        let mut knobs = Vec::new();
        for (path, value, floor) in [
            (
                THROTTLE,
                "-1",
                "real-time throttling leaves ordinary tasks 5 %",
            ),
            (
                fair.as_str(),
                "0",
                "the fair server leaves ordinary tasks about 5 %",
            ),
        ] {
            match Knob::set(restorer, path, value) {
                Ok(knob) => knobs.push(knob),
                Err(error) => {
                    let text = format!(
                        "bsd, early-demux, soft-lrp and softirq have a floor: {floor} ({path}: {error})"
                    );
                    if !shortcomings.contains(&text) {
                        shortcomings.push(text);
                    }
                }
            }
        }
        RealTime {
            _knobs: knobs,
            since: Instant::now(),
        }
    }

    /// Returns true once they have been off for as long as they may be.
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() > OFF_MAX
    }
}
