//! Undo steps on file, for what a [`Restorer`](super::Restorer) cannot survive: a process
//! that is killed together with it, as by a kill of its whole cgroup.
//!
//! An interface has one record in [`DIRECTORY`], with the messages sent to its restorer.
//! It is locked (flock(2)) from before the first change until the restorer has undone the
//! last. The process that takes the interface next waits for the restorer of a process
//! that has just died. It finds in the record the steps that no restorer has undone, and
//! undoes them. Only then does it read the values that it must itself restore: those that
//! the first process found. [`undo`] does the same without taking the interface.
//!
//! Records live in memory (/run) and do not survive a reboot, as the changes do not.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Step;
use tidewall_sys::interface::{any_socket, index as interface_index};
use tidewall_sys::{ethtool, option_bytes};

use crate::raw::fork;

/// Directory of the records.
pub const DIRECTORY: &str = "/run/tidewall/restore";
/// How long the restorer of a process that has died may take.
const WAIT: Duration = Duration::from_secs(20);
/// How often to check whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// An additional message besides those of a restorer: the number is the id of the process
/// that owns the record.
const OWNER: u32 = 100;

/// A record that this process has locked.
#[derive(Debug)]
pub struct Record {
    file: File,
    path: PathBuf,
}

impl Record {
    /// Locks the record at `path`, creating it if necessary, and undoes its steps. Also
    /// returns a description of them.
    ///
    /// # Errors
    /// `ResourceBusy` when a live process has it; `TimedOut` when a restorer does not
    /// finish; what the file system reports.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<String>)> {
        let file = locked(path)?;
        let mut record = Record {
            file,
            path: path.to_owned(),
        };
        let undone = record.undo()?;
        record.file.set_len(0)?;
        record.append(&fork::message(OWNER, u64::from(std::process::id()), &[]))?;
        Ok((record, undone))
    }

    /// The record of an interface of the caller's network namespace.
    ///
    /// # Errors
    /// As [`Record::open`]; ENODEV for no such interface.
    pub fn of(interface: &str) -> io::Result<(Self, Vec<String>)> {
        make_directory(Path::new(DIRECTORY))?;
        let index = interface_index(interface)?;
        let name = format!("{interface}.{index}.{:x}", namespace()?);
        Record::open(&Path::new(DIRECTORY).join(name))
    }

    /// Adds a message.
    pub(super) fn append(&mut self, message: &[u8]) -> io::Result<()> {
        self.file.write_all(message)
    }

    /// The descriptor for the restorer, which keeps it locked.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The payload of the message that removes it.
    pub(super) fn path_text(&self) -> io::Result<Vec<u8>> {
        super::text(self.path.as_os_str())
    }

    /// Removes it, if it still exists.
    pub(super) fn remove(&self) {
        if is_at(&self.file, &self.path) {
            // A record that stays will be empty.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Undoes its steps, newest first. The result includes steps that cannot be undone,
    /// with the reason.
    fn undo(&mut self) -> io::Result<Vec<String>> {
        let mut steps = steps(&mut self.file)?;
        steps.reverse();
        let gone = is_of_the_past(&self.path);
        let undone = |step: Step| {
            // The interface's successor is not affected by it.
            if gone && !matches!(step, Step::Remove(_)) {
                return None;
            }
            match step.perform() {
                Ok(()) => Some(step.to_string()),
                Err(error) if is_gone(&error) => None,
                Err(error) => Some(format!("{step}: {error}")),
            }
        };
        Ok(steps.into_iter().filter_map(undone).collect())
    }
}

/// Creates a directory that only its owner can open, and so lock: [`DIRECTORY`].
///
/// # Errors
/// Those the file system reports; none if it exists.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The remains of a process that was killed with its restorer.
#[derive(Debug)]
pub struct Left {
    /// The interface.
    pub interface: String,
    /// The undo steps, newest first, described in words.
    pub steps: Vec<String>,
    path: PathBuf,
}

/// Records of the caller's network namespace that hold something and are not locked.
///
/// # Errors
/// Those of reading [`DIRECTORY`], such as EACCES; none when it does not exist.
pub fn left() -> io::Result<Vec<Left>> {
    let namespace = namespace()?;
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some((interface, _, of)) = parts(&path) else {
            continue;
        };
        let Ok(mut file) = File::open(&path) else {
            continue;
        };
        if of != namespace || file.try_lock_shared().is_err() {
            continue;
        }
        let mut steps: Vec<String> = steps(&mut file)?.iter().map(Step::to_string).collect();
        steps.reverse();
        if !steps.is_empty() {
            let interface = interface.to_owned();
            all.push(Left {
                interface,
                steps,
                path,
            });
        }
    }
    Ok(all)
}

/// Undoes what is left, and removes the record. Returns descriptions of what was undone,
/// and of what could not be.
///
/// # Errors
/// As [`Record::open`].
pub fn undo(left: &Left) -> io::Result<Vec<String>> {
    let (record, undone) = Record::open(&left.path)?;
    record.remove();
    Ok(undone)
}

/// Distinguishes this network namespace from all others that ever existed.
fn namespace() -> io::Result<u64> {
    let socket = any_socket()?;
    let mut cookie = [0; 8];
    option_bytes(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Interface, its index and the namespace, from the record's name.
fn parts(path: &Path) -> Option<(&str, u32, u64)> {
    let mut parts = path.file_name()?.to_str()?.rsplitn(3, '.');
    let namespace = u64::from_str_radix(parts.next()?, 16).ok()?;
    let index = parts.next()?.parse().ok()?;
    Some((parts.next()?, index, namespace))
}

/// Whether the record's interface no longer exists, even if another has its name.
fn is_of_the_past(path: &Path) -> bool {
    parts(path).is_some_and(|(interface, index, _)| interface_index(interface).ok() != Some(index))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Opens and locks a record.
fn locked(path: &Path) -> io::Result<File> {
    let end = Instant::now() + WAIT;
    loop {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        match file.try_lock() {
            // Its last owner may have removed it meanwhile.
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {
                if let Some(owner) = owner(&mut file)?.filter(|&owner| lives(owner)) {
                    let text = format!("process {owner} has it ({})", path.display());
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
                }
                if Instant::now() > end {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// True unless a process is gone, or only waits for its parent to notice.
fn lives(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    // The name before the state is in brackets and may contain anything.
    stat.is_ok_and(|stat| {
        let state = stat.rsplit(") ").next();
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    })
}

/// The whole messages of a record: operation, number, payload.
fn messages(file: &mut File) -> io::Result<Vec<(u32, u64, Vec<u8>)>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let mut all = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((operation, length, number)) = fork::header(rest)
        && let Some(payload) = rest.get(fork::HEADER..fork::HEADER + length as usize)
    {
        all.push((operation, number, payload.to_vec()));
        rest = rest.get(fork::HEADER + payload.len()..).unwrap_or_default();
    }
    Ok(all)
}

fn owner(file: &mut File) -> io::Result<Option<u64>> {
    let mut owners = messages(file)?.into_iter();
    Ok(owners
        .find(|&(operation, ..)| operation == OWNER)
        .map(|(_, pid, _)| pid))
}

/// The steps of a record that were not undone, oldest first.
fn steps(file: &mut File) -> io::Result<Vec<Step>> {
    let mut live: Vec<(u64, Step)> = Vec::new();
    for (operation, number, payload) in messages(file)? {
        if operation == fork::FORGET {
            live.retain(|&(other, _)| other != number);
        } else if let Some(step) = step(operation, &payload) {
            live.push((number, step));
        }
    }
    Ok(live.into_iter().map(|(_, step)| step).collect())
}

fn step(operation: u32, payload: &[u8]) -> Option<Step> {
    let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
    let end = payload.iter().position(|&byte| byte == 0);
    match operation {
        fork::WRITE => {
            let (file, contents) = payload.split_at_checked(end?)?;
            Some(Step::Write(path(file), contents.get(1..)?.to_vec()))
        }
        fork::REMOVE => Some(Step::Remove(path(payload.get(..end?)?))),
        fork::RUN => {
            let texts = payload.strip_suffix(&[0])?.split(|&byte| byte == 0);
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            Some(Step::Run(texts.map(text).collect()))
        }
        fork::REQUEST => {
            let (name, request) = payload.split_first_chunk::<{ ethtool::NAME_BYTES }>()?;
            Some(Step::Request(*name, request.to_vec()))
        }
        _ => None,
    }
}
