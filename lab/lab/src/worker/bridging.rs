//! The worker that is a bridge.

use std::time::Duration;

use super::service::run_until_report;
use crate::bridge::{Bridge, Spec};

/// Longest run of a bridge, so that a forgotten one ends.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Forwards until the line `report`, which is answered with the report, or the
/// end of the input.
pub(super) fn run(spec: Spec) -> anyhow::Result<()> {
    let bridge = Bridge::open(spec)?;
    run_until_report(move |stop| Ok(bridge.run(Some(TIME_MAX), stop)?))
}
