//! The worker that starts a program and measures the time until its output, and until its
//! end.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::program::{SAYS, private_places, promoted};
use crate::testbed::SERVER_INTERFACE;

/// A program that prints something and ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartJob {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// By `tidewall run`, on the server's interface.
    pub by_run: bool,
}

/// Durations, ms.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    /// From the start until its first output.
    pub(crate) said: f64,
    /// Until it had ended, and everything that was started with it.
    pub(crate) ended: f64,
}

/// Runs it, and prints the durations.
pub(super) fn run(job: &StartJob) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("my own path is no text")?;
    let mut words = Vec::new();
    if job.by_run {
        private_places()?;
        words.extend([own, "run", "--interface", SERVER_INTERFACE, "--"]);
    }
    words.extend(job.command.iter().map(String::as_str));
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    // The program accepts nothing.
    command.env(SAYS, "1").env("TIDEWALL_PROMOTE", "at-once");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let mut output = child.stdout.take().context("no pipe")?;
    let first = output.read_exact(&mut [0]);
    let said = ms(begun);
    output.read_to_end(&mut Vec::new())?;
    let ended = child.wait_with_output()?;
    let started = Started {
        said,
        ended: ms(begun),
    };
    let errors = String::from_utf8_lossy(&ended.stderr);
    let what = job.command.join(" ");
    ensure!(
        first.is_ok() && ended.status.success(),
        "{what}: {}: {errors}",
        ended.status
    );
    ensure!(
        promoted(&errors).is_some() == job.by_run,
        "{what}: whose its socket was: {errors}"
    );
    println!("{}", serde_json::to_string(&started)?);
    Ok(())
}
