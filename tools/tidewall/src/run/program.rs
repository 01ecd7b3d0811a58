//! The program of a run: its signals, its children, its end.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread::JoinHandle;

use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpid, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

/// What is passed on: signals that end a program or ask something of it, but not those by
/// which a terminal stops and continues jobs.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// What a signal's number is added to for an exit code, as shells do.
const BY_SIGNAL: i32 = 128;

/// A program that has not been started yet, whose signals are kept for it.
pub struct Program {
    signals: SignalsInfo<WithRawSiginfo>,
}

/// A program that runs.
pub struct Running {
    thread: JoinHandle<u8>,
    end: UnixStream,
}

impl Program {
    /// From now on this process does not end by the signals that are passed on. One that is
    /// ignored stays so, for the program, too: nohup(1) has set that, or a shell that starts
    /// a job in the background.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let passed_on = PASSED_ON
            .into_iter()
            .filter(|of| ignored >> (of - 1) & 1 == 0);
        let signals = SignalsInfo::new(passed_on.chain([SIGCHLD]))?;
        Ok(Program { signals })
    }

    /// Starts it. What it starts and does not wait for becomes this process's child.
    ///
    /// # Errors
    /// NotFound, PermissionDenied; what the kernel reports.
    pub fn start(self, command: &mut Command) -> io::Result<Running> {
        set_child_subreaper(Some(getpid()))?;
        let (end, held) = UnixStream::pair()?;
        let child = Pid::from_child(&command.spawn()?);
        let thread = std::thread::Builder::new().name("tw-program".to_owned());
        let spawned = thread.spawn(move || {
            let code = follow(self.signals, child);
            drop(held);
            code
        });
        // It is not left without a manager.
        let thread = spawned.inspect_err(|_| {
            let _ = kill_process(child, Signal::KILL);
        })?;
        Ok(Running { thread, end })
    }
}

impl Running {
    /// Readable once it has ended.
    pub fn end(&self) -> &UnixStream {
        &self.end
    }

    /// Waits for its end; its exit code, or that of the signal that ended it.
    pub fn wait(self) -> u8 {
        // The thread does not panic.
        self.thread.join().unwrap_or(u8::MAX)
    }
}

/// The signals that a process ignores, the first in the lowest bit (proc_pid_status(5)).
fn ignored(status: &str) -> u64 {
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

fn follow(mut signals: SignalsInfo<WithRawSiginfo>, child: Pid) -> u8 {
    for signal in signals.forever() {
        if signal.si_signo == SIGCHLD {
            if let Some(code) = reap(child) {
                return code;
            }
            continue;
        }
        // A terminal's signals go to all processes of its group.
        let by_kernel = signal.si_code == libc::SI_KERNEL;
        let same_group = || getpgid(Some(child)).ok() == getpgid(None).ok();
        if by_kernel && same_group() {
            continue;
        }
        if let Some(signal) = Signal::from_named_raw(signal.si_signo) {
            // One that has just ended is reaped next.
            let _ = kill_process(child, signal);
        }
    }
    u8::MAX
}

/// Reaps what has ended; the exit code of the program, if it has.
fn reap(child: Pid) -> Option<u8> {
    let mut code = None;
    while let Ok(Some((process, status))) = wait(WaitOptions::NOHANG) {
        if process == child {
            code = Some(code_of(ExitStatus::from_raw(status.as_raw())));
        }
    }
    code
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
