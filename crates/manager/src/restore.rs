//! Restores the machine's settings, even after SIGKILL.
//!
//! A process that changes something outside itself (a sysfs knob, a network namespace, a
//! link) first registers how to undo it with a [`Restorer`]. The restorer is a child
//! process, started by fork. It waits until its parent is gone, however it died, and then
//! undoes what is still registered, newest first. In the normal case the parent undoes
//! things itself, as each [`Undo`] is dropped, and the restorer forgets them.
//!
//! Start it **first**, before devices are opened and before the process grows. The child
//! keeps a copy-on-write image of the parent's memory. Shared mappings made before the
//! fork (frame memory, AF_XDP rings) stay alive in it until it ends.
//!
//! The child inherits the **mount and network namespaces** of the thread that forked it.
//! sysfs shows the network namespace in which it was mounted. So to undo something inside
//! another namespace either start the restorer there or register a command such as
//! `/usr/sbin/ip -n NAME …`. The restorer repeats a step if the parent dies between
//! undoing it and reporting that. Steps must tolerate this (writing a value and deleting
//! a thing do).
//!
//! It cannot survive SIGKILL sent to itself, a kill of the whole cgroup, or the machine
//! going down. For the second there is a [`record`] of what must be undone.

pub mod record;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use tidewall_sys::{ethtool, interface};

use crate::raw::fork;
use record::Record;

/// Maximum number of undo steps registered at one time.
pub const STEPS: usize = fork::STEPS;
/// Maximum bytes of one step: the path and the contents, or all arguments, plus one byte
/// for each text.
pub const STEP_BYTES: usize = fork::STEP_BYTES;

/// Handle to the restorer. Clones share it. It ends, after undoing what is left, when the
/// last clone and the last [`Undo`] are gone or when the process that called
/// [`Restorer::start`] has died.
#[derive(Clone, Debug)]
pub struct Restorer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `None` only while dropping.
    socket: Option<UnixStream>,
    pid: rustix::process::Pid,
    /// The process that started it. A forked copy of this handle must neither wait for
    /// the restorer nor undo anything.
    owner: u32,
    /// Held while a message is sent, so that messages do not mix.
    registered: Mutex<Registered>,
}

#[derive(Debug)]
struct Registered {
    next: u64,
    live: usize,
    record: Option<Record>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // A restorer that is gone has nothing to do.
            let _ = self.send(fork::END, 0, &[]);
            // Closing is not enough: a forked copy of it may live on elsewhere.
            if let Some(socket) = self.socket.take() {
                let _ = socket.shutdown(Shutdown::Both);
            }
            fork::reap(self.pid);
            let registered = self.registered.get_mut();
            let registered = registered.unwrap_or_else(PoisonError::into_inner);
            // The restorer has removed it, unless it was killed before.
            if let Some(record) = registered.record.take_if(|_| registered.live == 0) {
                record.remove();
            }
        }
    }
}

impl Shared {
    fn register(&self, operation: u32, payload: &[u8]) -> io::Result<u64> {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if registered.live >= STEPS || payload.len() > STEP_BYTES {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let number = registered.next;
        self.note(&mut registered, operation, number, payload)?;
        registered.next += 1;
        registered.live += 1;
        Ok(number)
    }

    fn forget(&self, number: u64) -> io::Result<()> {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        registered.live = registered.live.saturating_sub(1);
        self.note(&mut registered, fork::FORGET, number, &[])
    }

    /// Sends it to the restorer, after recording it.
    fn note(
        &self,
        registered: &mut Registered,
        operation: u32,
        number: u64,
        payload: &[u8],
    ) -> io::Result<()> {
        if self.owner == std::process::id()
            && let Some(record) = &mut registered.record
        {
            record.append(&fork::message(operation, number, payload))?;
        }
        self.send(operation, number, payload)
    }

    fn send(&self, operation: u32, number: u64, payload: &[u8]) -> io::Result<()> {
        if self.owner != std::process::id() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        fork::send_all(socket.as_fd(), &fork::message(operation, number, payload))
    }
}

impl Restorer {
    /// Starts the restorer. When this returns, the child is in its own session, works in
    /// `/` and is called `tw-restorer`. It ignores every signal that it can, and holds
    /// none of the parent's descriptors.
    ///
    /// # Errors
    /// What `socketpair`, `pidfd_open` (Linux 5.3) or `fork` report.
    pub fn start() -> io::Result<Restorer> {
        Self::start_with(None)
    }

    /// As [`Restorer::start`], with registered steps kept in a `record`, which the
    /// restorer removes at its end.
    ///
    /// # Errors
    /// As [`Restorer::start`].
    pub fn start_recorded(record: Record) -> io::Result<Restorer> {
        let path = record.path_text()?;
        let restorer = Self::start_with(Some(record))?;
        // As the oldest step: the last to be undone.
        restorer.shared.send(fork::REMOVE, 0, &path)?;
        Ok(restorer)
    }

    fn start_with(record: Option<Record>) -> io::Result<Restorer> {
        let (socket, pid) = fork::start(record.as_ref().map(Record::descriptor))?;
        let registered = Mutex::new(Registered {
            next: 1,
            live: 0,
            record,
        });
        let owner = std::process::id();
        Ok(Restorer {
            shared: Arc::new(Shared {
                socket: Some(socket),
                pid,
                owner,
                registered,
            }),
        })
    }

    /// Process id of the restorer.
    pub fn process_id(&self) -> i32 {
        self.shared.pid.as_raw_nonzero().get()
    }

    /// Registers writing `bytes` over the existing file at `path`, in one write, as
    /// procfs and sysfs require. Nothing is changed yet. Make the change after this
    /// returns, never before.
    ///
    /// # Errors
    /// - ENOSPC: [`STEPS`] are registered or the step exceeds [`STEP_BYTES`]
    /// - InvalidInput: the path is relative (the restorer works in `/`) or contains a
    ///   zero byte
    /// - EPIPE: the restorer is gone
    /// - PermissionDenied: this is a forked copy of the process that started it
    pub fn on_exit_write(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<Undo> {
        let path = path.as_ref();
        let mut payload = text(path.as_os_str())?;
        payload.extend_from_slice(bytes);
        self.undo(
            fork::WRITE,
            &payload,
            Step::Write(path.to_owned(), bytes.to_vec()),
        )
    }

    /// Registers removing the file at `path`, which need not exist yet.
    ///
    /// # Errors
    /// As [`Restorer::on_exit_write`].
    pub fn on_exit_remove(&self, path: impl AsRef<Path>) -> io::Result<Undo> {
        let path = path.as_ref();
        let payload = text(path.as_os_str())?;
        self.undo(fork::REMOVE, &payload, Step::Remove(path.to_owned()))
    }

    /// Registers running a command: the program's absolute path, then its arguments. It
    /// runs without input, with a `PATH` of the system's four program directories as its
    /// whole environment. A command run by the restorer is killed after ten seconds, and
    /// its output is lost.
    ///
    /// # Errors
    /// As [`Restorer::on_exit_write`]; also InvalidInput for no argument and ENOSPC for
    /// more than 64.
    pub fn on_exit_run(&self, arguments: &[&str]) -> io::Result<Undo> {
        let program = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut payload = text(OsStr::new(program))?;
        if arguments.len() > fork::ARGUMENTS {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        for argument in arguments.iter().skip(1) {
            if argument.contains('\0') {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            payload.extend_from_slice(argument.as_bytes());
            payload.push(0);
        }
        let step = Step::Run(
            arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect(),
        );
        self.undo(fork::RUN, &payload, step)
    }

    /// Registers an ethtool request on an interface: its zero-padded name and the
    /// argument of [`ethtool::call`].
    pub(crate) fn on_exit_request(
        &self,
        interface: &[u8; ethtool::NAME_BYTES],
        request: &[u8],
    ) -> io::Result<Undo> {
        let payload = [interface, request].concat();
        let step = Step::Request(*interface, request.to_vec());
        self.undo(fork::REQUEST, &payload, step)
    }

    fn undo(&self, operation: u32, payload: &[u8], step: Step) -> io::Result<Undo> {
        let number = self.shared.register(operation, payload)?;
        Ok(Undo {
            shared: Arc::clone(&self.shared),
            number,
            step: Some(step),
        })
    }
}

/// An absolute path with its terminating zero.
fn text(path: &OsStr) -> io::Result<Vec<u8>> {
    let bytes = path.as_bytes();
    if !bytes.starts_with(b"/") || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = bytes.to_vec();
    text.push(0);
    Ok(text)
}

#[derive(Debug)]
enum Step {
    Write(PathBuf, Vec<u8>),
    Run(Vec<String>),
    Request([u8; ethtool::NAME_BYTES], Vec<u8>),
    Remove(PathBuf),
}

/// Describes what it does.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write(path, bytes) => {
                let value = String::from_utf8_lossy(bytes);
                write!(f, "{} set to {}", path.display(), value.trim_end())
            }
            Step::Run(arguments) => f.write_str(&arguments.join(" ")),
            Step::Request(interface, _) => {
                let name = interface
                    .split(|&byte| byte == 0)
                    .next()
                    .unwrap_or_default();
                write!(f, "settings of {}", String::from_utf8_lossy(name))
            }
            Step::Remove(path) => write!(f, "{} removed", path.display()),
        }
    }
}

impl Step {
    fn perform(&self) -> io::Result<()> {
        match self {
            Step::Write(path, bytes) => fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(path)?
                .write_all(bytes),
            Step::Run(arguments) => {
                let (program, rest) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
                let output = Command::new(program)
                    .args(rest)
                    .env_clear()
                    .env("PATH", fork::PATH)
                    .stdin(Stdio::null())
                    .current_dir("/")
                    .output()?;
                if output.status.success() {
                    return Ok(());
                }
                let said = String::from_utf8_lossy(&output.stderr);
                let command = arguments.join(" ");
                let message = format!("{command}: {}: {}", output.status, said.trim());
                Err(io::Error::other(message))
            }
            Step::Remove(path) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            Step::Request(interface, request) => ethtool::call(
                interface::any_socket()?.as_fd(),
                interface,
                &mut request.clone(),
            ),
        }
    }
}

/// One registered undo step. Dropping it undoes the change at once, in this process. An
/// undo that fails stays with the restorer, which retries at the end.
#[derive(Debug)]
#[must_use = "dropping it undoes the change at once"]
pub struct Undo {
    shared: Arc<Shared>,
    number: u64,
    /// `None` once it has been dealt with.
    step: Option<Step>,
}

impl Undo {
    /// Undoes the change now and makes the restorer forget it.
    ///
    /// # Errors
    /// Those the write reports, or the command's standard error; the step then
    /// stays with the restorer.
    pub fn now(mut self) -> io::Result<()> {
        self.perform()
    }

    /// Makes the change permanent: neither this process nor the restorer will undo it.
    ///
    /// # Errors
    /// EPIPE when the restorer is gone; then nothing will undo it either.
    pub fn keep(mut self) -> io::Result<()> {
        self.step = None;
        self.shared.forget(self.number)
    }

    fn perform(&mut self) -> io::Result<()> {
        // A forked copy of the process must not undo its parent's changes.
        let Some(step) = self
            .step
            .take_if(|_| self.shared.owner == std::process::id())
        else {
            return Ok(());
        };
        step.perform()?;
        // A restorer that is gone has nothing to forget.
        let _ = self.shared.forget(self.number);
        Ok(())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // The restorer keeps the step when this fails.
        let _ = self.perform();
    }
}

/// A procfs or sysfs file, set to a value temporarily.
#[derive(Debug)]
#[must_use = "dropping it restores the old value at once"]
pub struct Knob {
    undo: Undo,
    old: String,
}

impl Knob {
    /// Reads the value of the file at `path`, registers restoring it, and writes `value`.
    /// For files that can be written as they read (numbers and words, not `[a] b c`
    /// choices). The old value is restored when the knob is dropped or the process dies.
    ///
    /// # Errors
    /// What reading, registering ([`Restorer::on_exit_write`]) or writing reports. When
    /// registering fails, nothing was written.
    pub fn set(restorer: &Restorer, path: impl AsRef<Path>, value: &str) -> io::Result<Knob> {
        let path = path.as_ref();
        let old = fs::read_to_string(path)?;
        let undo = restorer.on_exit_write(path, old.as_bytes())?;
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)?
            .write_all(value.as_bytes())?;
        Ok(Knob {
            undo,
            old: old.trim_end().to_owned(),
        })
    }

    /// The value before, without the trailing line end.
    pub fn old(&self) -> &str {
        &self.old
    }

    /// Restores the old value now.
    ///
    /// # Errors
    /// Those the write reports; the restorer then retries at the end.
    pub fn restore(self) -> io::Result<()> {
        self.undo.now()
    }
}
