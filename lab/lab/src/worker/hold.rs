//! The worker that keeps connections open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidewall_load::{IdleCounts, IdleSpec, LoadSpec, PROGRESS_INTERVAL, Phase, run_until};

use super::service::until_input_ends;

/// Opens the connections, prints `ready`, answers each line `open` with their number, and
/// keeps them until the standard input ends.
pub(super) fn run(spec: &IdleSpec) -> anyhow::Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let open = Arc::new(AtomicU64::new(0));
    let (seen, known) = (over.clone(), open.clone());
    std::thread::spawn(move || {
        let _ = until_input_ends(|line| {
            if line == "open" {
                println!("{}", known.load(Ordering::Relaxed));
            }
            Ok(())
        });
        seen.store(true, Ordering::Relaxed);
    });
    let mut load = LoadSpec::new(HOLD_MAX);
    load.idle = Some(spec.clone());
    let mut said = false;
    let mut counts = IdleCounts::default();
    run_until(&load, &over, |progress| {
        if let Some(more) = progress.idle {
            counts.opened += more.opened;
            counts.closed += more.closed;
            counts.reset += more.reset;
            open.store(counts.open(), Ordering::Relaxed);
        }
        if !said && progress.phase != Phase::Opening {
            said = true;
            println!("ready");
        }
    })?;
    Ok(())
}

/// Longest time that connections are kept, so that a forgotten worker ends. The number of
/// opened ones is known a [`PROGRESS_INTERVAL`] later.
const HOLD_MAX: Duration = Duration::from_secs(600).saturating_sub(PROGRESS_INTERVAL);
