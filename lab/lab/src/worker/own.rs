//! The worker that is another command of this program.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::service::until_input_ends;

/// Runs the command until the standard input ends; it is ready with its first line.
pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find my own program")?;
    // The worker ends with its input, so that the command can restore settings.
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, asked.clone())?;
    }
    // The command dies with this worker, however that ends.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().context("no pipe")?;
    let mut lines = BufReader::new(output).lines();
    let first = lines.next().transpose()?;
    ensure!(
        first.is_some(),
        "{} ended: {}",
        arguments.join(" "),
        child.wait()?
    );
    // The output at its end must be read.
    let rest = thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    println!("ready");
    let ended = until_input_ends(|_| Ok(()));
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    child.wait()?;
    let _ = rest.join();
    ended
}
