//! Workers, from the lab's side.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use super::load::MEASURING;
use super::{Account, Cpu, Job, LoadJob, LoadOutcome};
use crate::interrupt;

/// How often a wait checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);
/// How long a service may take to start: the driver program is loaded and a
/// queue of a device that was just closed may be busy for some 50 ms.
const START: Duration = Duration::from_secs(15);
/// How long a service may take to answer or to stop.
const ANSWER: Duration = Duration::from_secs(5);

/// The place where a worker runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Network namespace.
    pub(crate) namespace: &'a str,
    /// Processor.
    pub(crate) cpu: usize,
}

/// A running worker; dropping it ends it.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    /// Its standard error, in a file without a name.
    errors: File,
    what: String,
    /// It did not answer in time, so it will not end in order either.
    silent: bool,
}

impl Child {
    /// Starts the lab's own program again as a worker.
    pub(crate) fn start(place: Place<'_>, job: &Job, what: &str) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find my own program")?;
        let errors = nameless_file()?;
        let mut process = Command::new("ip")
            .args([
                "netns",
                "exec",
                place.namespace,
                "taskset",
                "-c",
                &place.cpu.to_string(),
            ])
            .arg(&program)
            .args(["lab-worker", &serde_json::to_string(job)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone()?)
            .spawn()
            .context("cannot run ip netns exec")?;
        let output = process.stdout.take().context("no pipe from the worker")?;
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Child {
            process,
            lines,
            errors,
            what: what.to_owned(),
            silent: false,
        })
    }

    /// Starts a worker and waits until it reports that it is ready.
    pub(crate) fn start_ready(place: Place<'_>, job: &Job, what: &str) -> anyhow::Result<Self> {
        let mut child = Child::start(place, job, what)?;
        let line = child.line(START)?;
        if line != "ready" {
            bail!("{what}: expected `ready`, got `{line}`");
        }
        Ok(child)
    }

    /// Runs a worker to its end and reads its answer, a line of JSON.
    pub(crate) fn run<T: DeserializeOwned>(
        place: Place<'_>,
        job: &Job,
        what: &str,
        within: Duration,
    ) -> anyhow::Result<T> {
        let line = Child::start(place, job, what)?.line(within)?;
        serde_json::from_str(&line).with_context(|| format!("{what} answered {line}"))
    }

    /// Returns the next line that it prints.
    pub(crate) fn line(&mut self, timeout: Duration) -> anyhow::Result<String> {
        self.line_unless(timeout, || false)
    }

    /// Acts as `line`, but gives up when `over` returns true.
    fn line_unless(
        &mut self,
        timeout: Duration,
        over: impl Fn() -> bool,
    ) -> anyhow::Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline && !over() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.silent = true;
                    bail!("{}: no answer within {timeout:?}{}", self.what, self.said())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    bail!("{} ended ({status}){}", self.what, self.said());
                }
            }
        }
    }

    /// Returns its process id.
    pub(crate) fn process(&self) -> u32 {
        // `ip netns exec` and `taskset` become the program they start.
        self.process.id()
    }

    /// Asks a service worker for its account of packets so far, and the state of receive
    /// control.
    pub(crate) fn account(&mut self) -> anyhow::Result<Account> {
        self.question("account")
    }

    /// Asks a service worker for the CPU cost of its threads so far.
    pub(crate) fn cpu(&mut self) -> anyhow::Result<Cpu> {
        self.question("cpu")
    }

    /// Asks a service worker which process serves: itself, or the program that it
    /// has started.
    pub(crate) fn serving(&mut self) -> anyhow::Result<u32> {
        self.question("process")
    }

    /// Asks a worker that holds connections how many are open.
    pub(crate) fn open(&mut self) -> anyhow::Result<u64> {
        self.question("open")
    }

    /// Asks a service worker how many steps it has computed so far.
    pub(crate) fn steps(&mut self) -> anyhow::Result<u64> {
        self.question("steps")
    }

    /// Asks a worker a question that it answers at once with a line of JSON.
    pub(crate) fn question<T: DeserializeOwned>(&mut self, question: &str) -> anyhow::Result<T> {
        self.ask_for(question, ANSWER)
    }

    /// Asks a worker a question that it answers with a line of JSON.
    pub(crate) fn ask_for<T: DeserializeOwned>(
        &mut self,
        question: &str,
        timeout: Duration,
    ) -> anyhow::Result<T> {
        let input = self
            .process
            .stdin
            .as_mut()
            .context("no pipe to the worker")?;
        writeln!(input, "{question}")?;
        let line = self.line(timeout)?;
        serde_json::from_str(&line).with_context(|| format!("{} answered {line}", self.what))
    }

    /// Returns its error output, if any.
    pub(crate) fn said(&self) -> String {
        let mut text = String::new();
        // The worker's own position in the file is the same: it only appends.
        let mut errors = &self.errors;
        if errors.rewind().is_ok() && errors.read_to_string(&mut text).is_ok() {
            let text = text.trim();
            if !text.is_empty() {
                return format!(": {text}");
            }
        }
        String::new()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its input is the request to stop.
        drop(self.process.stdin.take());
        // Its process id is not reused until it has been waited for.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let deadline = Instant::now() + ANSWER;
        while !self.silent && Instant::now() < deadline {
            match self.process.try_wait() {
                Ok(Some(_)) | Err(_) => return,
                Ok(None) => thread::sleep(Duration::from_millis(5)),
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a load to its end; `over` may end it early. Calls `measuring` when it begins to
/// measure.
pub(crate) fn run_load(
    place: Place<'_>,
    job: LoadJob,
    over: impl Fn() -> bool,
    measuring: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<LoadOutcome> {
    let timeout = job.spec.warm_up + job.spec.duration + START;
    let mut child = Child::start(place, &Job::Load(Box::new(job)), "the load")?;
    let mut line = child.line_unless(timeout, &over)?;
    if line == MEASURING {
        measuring()?;
        line = child.line_unless(timeout, &over)?;
    }
    serde_json::from_str(&line).with_context(|| format!("the load answered {line}"))
}

/// Opens a file that disappears when it is closed.
fn nameless_file() -> anyhow::Result<File> {
    let path = scratch("errors");
    let file = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Returns a unique path in [`scratch_directory`].
pub(crate) fn scratch(what: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    scratch_directory().join(format!("tw-{}-{number}-{what}", std::process::id()))
}

/// Returns shared memory, or otherwise the directory for temporary files.
pub(crate) fn scratch_directory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        shared.to_owned()
    } else {
        std::env::temp_dir()
    }
}
