//! The worker that keeps connections open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewall_load::{IdleSpec, LoadSpec, PROGRESS_INTERVAL, Phase, run_until};

use super::service::until_input_ends;

/// Opens the connections, says how many there are, and keeps them until the
/// standard input ends.
pub(super) fn run(spec: &IdleSpec) -> anyhow::Result<()> {
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    std::thread::spawn(move || {
        let _ = until_input_ends(|_| Ok(()));
        seen.store(true, Ordering::Relaxed);
    });
    let mut load = LoadSpec::new(HOLD_MAX);
    load.idle = Some(spec.clone());
    let mut told = false;
    run_until(&load, &over, |progress| {
        if !told && progress.phase != Phase::Opening {
            told = true;
            println!("ready");
        }
    })?;
    Ok(())
}

/// Longest that connections are kept: a forgotten worker ends. Those that were
/// opened are known a [`PROGRESS_INTERVAL`] later.
const HOLD_MAX: Duration = Duration::from_secs(600).saturating_sub(PROGRESS_INTERVAL);
