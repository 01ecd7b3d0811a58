//! The worker that is a bridge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;

use super::service::until_input_ends;
use crate::bridge::{Bridge, Spec};

/// Longest that a bridge runs: a forgotten one ends.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Forwards until the line `report`, which is answered with the report, or the
/// end of the input.
pub(super) fn run(spec: Spec) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let bridge = Bridge::open(spec)?;
    let seen = stop.clone();
    let mut thread = Some(thread::spawn(move || bridge.run(Some(TIME_MAX), &seen)));
    println!("ready");
    let answered = until_input_ends(|line| {
        if line != "report" {
            return Ok(());
        }
        stop.store(true, Ordering::Relaxed);
        if let Some(thread) = thread.take() {
            let report = thread
                .join()
                .map_err(|_| anyhow!("the bridge's thread died"))??;
            println!("{}", serde_json::to_string(&report)?);
        }
        Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    answered
}
