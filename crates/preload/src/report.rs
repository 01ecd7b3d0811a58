//! Reports what became of the program's sockets to the starter of the program (`tidewall
//! run`).
//!
//! The form of a record: [`tidewall_manager::record`].

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{Write, stderr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
pub(crate) use tidewall_manager::record::Verdict;
use tidewall_manager::record::{KEY_VARIABLE, Record, VARIABLE};

use crate::protected::out_of_the_way;

/// When set, records go to standard error too.
const DEBUG: &str = "TIDEWALL_DEBUG";
/// Most records of a process; a program that connects all day does not fill the disk.
const RECORDS_MAX: usize = 256;
/// Records that are shown to a command that queries the stack.
const SHOWN_MAX: usize = 32;

struct Report {
    to: Channel,
    debug: bool,
    program: String,
    said: Mutex<Said>,
}

/// The records so far.
#[derive(Default)]
pub(crate) struct Said {
    records: Vec<Record>,
    /// Number of unprotected sockets beyond [`RECORDS_MAX`].
    more: u64,
}

/// The destination of a record.
enum Channel {
    /// Appended to an existing file.
    File(File),
    /// Sent to a `tidewall run`.
    Run(OwnedFd),
    /// Written to standard error, if the record concerns an unprotected socket: nothing else
    /// reports it. Holds the file that standard error was at first: a program may close it,
    /// and open its own under that descriptor. `None`: not checked, since a seccomp filter
    /// might refuse the call.
    StandardError(Option<FileId>),
}

/// Device and inode.
type FileId = (u64, u64);

static REPORT: OnceLock<Report> = OnceLock::new();
/// The length of files is limited, so nothing is written to one.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Records that the program limits the length of its files. Async-signal-safe.
pub(crate) fn note_limit() {
    LIMITED.store(true, Ordering::Relaxed);
}

/// Opens the report while the program's root directory and user are unchanged. `confined`: a
/// seccomp filter may refuse all but opening, reading and writing a file.
pub(crate) fn begin(confined: bool) {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let debug = std::env::var_os(DEBUG).is_some_and(|value| !value.is_empty());
    let to = match &path {
        Some(path) => channel(path.as_ref(), confined),
        None => None,
    };
    let standard_error = match confined {
        true => None,
        false => id(stderr()),
    };
    // A file longer than that would end the program (SIGXFSZ).
    let limit = || rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    LIMITED.store(!confined && limit().is_some(), Ordering::Relaxed);
    let program = crate::process::beginning_of("/proc/self/comm");
    let _ = REPORT.set(Report {
        to: to.unwrap_or(Channel::StandardError(standard_error)),
        debug,
        program: program.trim_end().to_owned(),
        said: Mutex::default(),
    });
}

/// Some programs begin by closing every descriptor that they do not know, so it is
/// protected.
fn channel(path: &Path, confined: bool) -> Option<Channel> {
    match OpenOptions::new().append(true).open(path) {
        Ok(file) => Some(Channel::File(File::from(out_of_the_way(file.into())))),
        // A socket.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) && !confined => {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
            connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
            let key = std::env::var_os(KEY_VARIABLE)?;
            send(&socket, key.as_bytes(), SendFlags::NOSIGNAL).ok()?;
            Some(Channel::Run(out_of_the_way(socket)))
        }
        Err(_) => None,
    }
}

fn id(file: impl AsFd) -> Option<FileId> {
    let file = fstat(file).ok()?;
    Some((file.st_dev, file.st_ino))
}

impl Report {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits for the reader, who is not the program's concern. `again`: standard error
    /// already has this record for another socket.
    fn send(&self, record: &Record, again: bool) {
        let line = record.line();
        match &self.to {
            Channel::File(_) if LIMITED.load(Ordering::Relaxed) => {}
            Channel::File(file) => {
                let mut file = file;
                let _ = file.write_all(format!("{line}\n").as_bytes());
            }
            Channel::Run(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = send(socket, line.as_bytes(), flags);
            }
            Channel::StandardError(at_first) if record.is_unprotected() && !again => {
                if at_first.is_none_or(is_writable) {
                    say(&record.to_string());
                }
            }
            Channel::StandardError(_) => {}
        }
        if self.debug {
            say(&line);
        }
    }
}

/// Reports whether standard error is still that file, and accepts a line at once.
fn is_writable(at_first: FileId) -> bool {
    let file = stderr();
    let mut waits = [PollFd::new(&file, PollFlags::OUT)];
    let at_once = Timespec::default();
    id(&file) == Some(at_first)
        && poll(&mut waits, Some(&at_once)).is_ok()
        // A pipe without a reader reports an error, too, and would end the program
        // (SIGPIPE).
        && waits.iter().all(|it| it.revents() == PollFlags::OUT)
}

fn say(text: &str) {
    let line = format!("tidewall: {text}\n");
    let _ = rustix::io::write(stderr(), line.as_bytes());
}

/// Keeps other threads from reporting.
pub(crate) fn hold() -> Option<MutexGuard<'static, Said>> {
    REPORT.get().map(Report::said)
}

/// Records what has become of a socket since the last report: its kind, its address, and why.
pub(crate) fn record(verdict: Verdict, what: &str, address: impl Display, why: impl Display) {
    let Some(report) = REPORT.get() else { return };
    let mut said = report.said();
    let record = Record {
        process: std::process::id(),
        program: report.program.clone(),
        verdict,
        what: what.to_owned(),
        address: address.to_string(),
        why: why.to_string(),
    };
    let before = said.records.iter().rfind(|it| it.is_of_same(&record));
    if before.is_some_and(|it| (it.verdict, &it.why) == (verdict, &record.why)) {
        return;
    }
    if said.records.len() >= RECORDS_MAX {
        said.more += u64::from(record.is_unprotected());
        return;
    }
    let cause = |it: &Record| (it.verdict, it.what.clone(), it.why.clone());
    let is_same = |it: &Record| cause(it) == cause(&record);
    let again = record.repeated_address().is_empty() && said.records.iter().any(is_same);
    report.send(&record, again);
    said.records.push(record);
}

/// Returns sockets that stay with the kernel, as each was last reported, for a command that
/// queries the stack. Returns none if a `tidewall run` receives and shows them.
pub(crate) fn unprotected() -> Vec<Record> {
    let report = REPORT.get();
    let Some(report) = report.filter(|it| !matches!(it.to, Channel::Run(_))) else {
        return Vec::new();
    };
    let said = report.said();
    let mut last: Vec<&Record> = Vec::new();
    for record in said.records.iter().rev() {
        if !last.iter().any(|it| it.is_of_same(record)) {
            last.push(record);
        }
    }
    let last = last.into_iter().rev().filter(|it| it.is_unprotected());
    let more = said.more + last.clone().skip(SHOWN_MAX).count() as u64;
    // A child has its parent's records.
    let process = std::process::id();
    let of_this = |record: &Record| Record {
        process,
        ..record.clone()
    };
    let more = (more > 0).then(|| Record {
        process,
        program: report.program.clone(),
        verdict: Verdict::Kernel,
        what: format!("{more} more sockets"),
        address: String::new(),
        why: String::new(),
    });
    last.take(SHOWN_MAX).map(of_this).chain(more).collect()
}
