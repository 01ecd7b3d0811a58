//! What became of the program's sockets, for whoever started it (`tidewall run --report`).
//!
//! The form of a record: docs/preload.md.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::protected::out_of_the_way;

/// Names the file that records are appended to; it is there already.
const VARIABLE: &str = "TIDEWALL_REPORT";
/// When set, records go to standard error too.
const DEBUG: &str = "TIDEWALL_DEBUG";
/// Most records of a process; a program that connects all day does not fill the disk.
const RECORDS_MAX: usize = 256;

struct Report {
    file: Option<File>,
    debug: bool,
    program: String,
    said: Mutex<Vec<String>>,
}

static REPORT: OnceLock<Report> = OnceLock::new();

/// What became of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A stack was made.
    Stack,
    /// None could be made.
    NoStack,
    /// The socket is the stack's.
    Promoted,
    /// It stayed the kernel's.
    Kernel,
    /// A filter of system calls was refused.
    NoFilter,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Stack => "stack",
            Verdict::NoStack => "no-stack",
            Verdict::Promoted => "promoted",
            Verdict::Kernel => "kernel",
            Verdict::NoFilter => "no-filter",
        }
    }
}

/// Opens the report while the program's root directory and user are still what they were.
pub(crate) fn begin() {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let debug = std::env::var_os(DEBUG).is_some_and(|value| !value.is_empty());
    if path.is_none() && !debug {
        return;
    }
    let file = path.and_then(|path| OpenOptions::new().append(true).open(path).ok());
    // Some programs close first whatever they do not know.
    let file = file.map(|file| File::from(out_of_the_way(file.into())));
    let program = crate::process::beginning_of("/proc/self/comm");
    let _ = REPORT.set(Report {
        file,
        debug,
        program: program.trim_end().to_owned(),
        said: Mutex::default(),
    });
}

impl Report {
    fn said(&self) -> MutexGuard<'_, Vec<String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nobody says anything meanwhile.
pub(crate) fn hold() -> Option<MutexGuard<'static, Vec<String>>> {
    REPORT.get().map(Report::said)
}

/// Says once what became of a socket: what it was, its address, and why.
pub(crate) fn record(verdict: Verdict, what: &str, address: impl Display, why: impl Display) {
    let Some(report) = REPORT.get() else { return };
    let words = format!("{}\t{what}\t{address}\t{why}", verdict.name());
    let line = format!("{}\t{}\t{words}\n", std::process::id(), report.program);
    let mut said = report.said();
    if said.len() >= RECORDS_MAX || said.contains(&words) {
        return;
    }
    said.push(words);
    if let Some(mut file) = report.file.as_ref() {
        // Who reads it is not the program's concern.
        let _ = file.write_all(line.as_bytes());
    }
    if report.debug {
        let _ = std::io::stderr().write_all(format!("tidewall: {line}").as_bytes());
    }
}
