//! The program of a run: its signals, its processes, its end.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpid, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use crate::end::warn;

/// Signals that are passed on: those that end a program or ask something of it, but not
/// those by which a terminal stops and continues jobs.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Added to a signal's number for the exit code, as in shells.
const BY_SIGNAL: i32 = 128;

/// A program that has not started yet, whose signals are kept for it.
pub struct Program {
    signals: SignalsInfo<WithRawSiginfo>,
}

/// A program that runs.
pub struct Running {
    thread: JoinHandle<u8>,
    end: UnixStream,
}

impl Program {
    /// From now on, signals that are passed on do not end this process. An ignored signal
    /// stays ignored, for the program, too: it was set by nohup(1), or by a shell that
    /// starts a job in the background.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let passed_on = PASSED_ON
            .into_iter()
            .filter(|of| ignored >> (of - 1) & 1 == 0);
        let signals = SignalsInfo::new(passed_on.chain([SIGCHLD]))?;
        Ok(Program { signals })
    }

    /// Starts the program. A process that outlives its parent becomes this process's
    /// child, and is followed like the program itself.
    ///
    /// # Errors
    /// NotFound, PermissionDenied; otherwise the kernel's error.
    pub fn start(self, command: &mut Command) -> io::Result<Running> {
        set_child_subreaper(Some(getpid()))?;
        let (end, held) = UnixStream::pair()?;
        let child = Pid::from_child(&command.spawn()?);
        let name = command.get_program().display().to_string();
        let thread = std::thread::Builder::new().name("tw-program".to_owned());
        let spawned = thread.spawn(move || {
            let code = Processes::new(child, name).follow(self.signals);
            drop(held);
            code
        });
        // The program is not left without a manager.
        let thread = spawned.inspect_err(|_| {
            let _ = kill_process(child, Signal::KILL);
        })?;
        Ok(Running { thread, end })
    }
}

impl Running {
    /// Returns a stream that is readable once the last process has ended.
    pub fn end(&self) -> &UnixStream {
        &self.end
    }

    /// Waits for that end. Returns the exit code of the program, or that of the signal
    /// that ended it. For a program that went to the background (ended with 0 and left
    /// processes), it is the exit code of the last of these.
    pub fn wait(self) -> u8 {
        // The thread does not panic.
        self.thread.join().unwrap_or(u8::MAX)
    }
}

/// Returns the signals that a process ignores, the first in the lowest bit
/// (proc_pid_status(5)).
fn ignored(status: &str) -> u64 {
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

/// The processes of the program. This process is their subreaper: if their parent ends,
/// they become its children. So none is left once it has no child.
struct Processes {
    /// The process that was started, until it ends.
    program: Option<Pid>,
    /// Its name, for messages.
    name: String,
    /// The exit code so far.
    code: u8,
    /// SIGTERM was passed on: every remaining process receives it once.
    is_ending: bool,
    /// The children that received it.
    asked: HashSet<Pid>,
}

impl Processes {
    fn new(program: Pid, name: String) -> Self {
        Processes {
            program: Some(program),
            name,
            code: u8::MAX,
            is_ending: false,
            asked: HashSet::new(),
        }
    }

    /// Passes signals on until the last process has ended; returns the exit code.
    fn follow(mut self, mut signals: SignalsInfo<WithRawSiginfo>) -> u8 {
        for signal in signals.forever() {
            if signal.si_signo == SIGCHLD {
                if self.reap() {
                    return self.code;
                }
            } else if let Some(named) = Signal::from_named_raw(signal.si_signo) {
                self.is_ending |= named == Signal::TERM;
                let targets = self.program.map_or_else(children, |program| vec![program]);
                self.pass_on(named, &targets, signal.si_code == libc::SI_KERNEL);
            }
        }
        self.code
    }

    /// Passes a signal on. `by_terminal`: all processes of the foreground process group
    /// have received it already.
    fn pass_on(&mut self, signal: Signal, targets: &[Pid], by_terminal: bool) {
        for &target in targets {
            let same_group = || getpgid(Some(target)).ok() == getpgid(None).ok();
            if by_terminal && same_group() {
                continue;
            }
            if signal == Signal::TERM {
                self.asked.insert(target);
            }
            // A process that has just ended is reaped next.
            let _ = kill_process(target, signal);
        }
    }

    /// Reaps the children that have ended; returns true once none is left.
    fn reap(&mut self) -> bool {
        let before = self.program;
        let is_over = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, status))) => {
                    self.ended(process, code_of(ExitStatus::from_raw(status.as_raw())));
                }
                Ok(None) => break false,
                Err(Errno::INTR) => {}
                Err(_) => break true,
            }
        };
        if is_over || self.program.is_some() {
            return is_over;
        }
        let mut left = children();
        if self.is_ending {
            left.retain(|child| !self.asked.contains(child));
            self.pass_on(Signal::TERM, &left, false);
        } else if before.is_some() && self.code == 0 {
            self.say_that_it_went_on(&left);
        }
        false
    }

    fn ended(&mut self, process: Pid, code: u8) {
        self.asked.remove(&process);
        if self.program == Some(process) {
            self.program = None;
            self.code = code;
        } else if self.program.is_none() && self.code == 0 {
            self.code = code;
        }
    }

    fn say_that_it_went_on(&self, left: &[Pid]) {
        let numbers: Vec<String> = left.iter().map(Pid::to_string).collect();
        warn(&format!(
            "{} went to the background (process {}); this command stays until its last process \
             ends, and passes signals on",
            self.name,
            numbers.join(", ")
        ));
    }
}

/// Returns the children of this process.
fn children() -> Vec<Pid> {
    let numbers = children_of(std::process::id()).into_iter();
    numbers
        .filter_map(|number| Pid::from_raw(number.try_into().ok()?))
        .collect()
}

/// Returns the children of a process, of all its threads (proc_tid_children(5)).
pub fn children_of(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let text = lists.collect::<Vec<_>>().join(" ");
    let numbers = text.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

fn code_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| BY_SIGNAL + signal);
    let code = status.code().or(signal);
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_status() {
        let status =
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000440\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored(""), 0);
    }
}
