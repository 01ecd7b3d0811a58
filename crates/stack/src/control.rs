//! Answers `tidewall stat`, `tidewall trace` and `tidewall tune` for a live stack.
//!
//! The control socket is a Unix socket in [`DIRECTORY`], named after the process. A
//! process that may not write there uses an abstract socket. A thread that otherwise
//! sleeps answers: one request line per connection, one JSON answer. The same thread
//! follows the interface's changes (`link.rs`).
//!
//! | request | answer |
//! |---|---|
//! | `stat` | a [`crate::snapshot::StackSnapshot`] |
//! | `trace N` | a [`Trace`] of the next N frames, after they came or two seconds passed |
//! | `pvc …` | [`Operated`]: what the program did with its circuits (`Stack::answer_operator`), or an error |
//! | `tune POLICY BUDGET NANOSECONDS`, `-` for the usual value | [`Tuned`]: the result of [`crate::StackHandle::set_receive_control`] |

mod listener;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use tidewall_device::demux::layout::{Counter, TraceRecord};
use tidewall_manager::connection::Credentials;
use tidewall_manager::restore::Undo;
use tidewall_sys::wait_readable;

use crate::core::Core;
use crate::link::{LinkState, LinkWatch};
use crate::receiver::QueueHandle;
use crate::snapshot::ControlSnapshot;
use crate::stack::ReceiveControl;
use crate::trace::Line;
use listener::Listener;

/// The directory of the control sockets.
pub const DIRECTORY: &str = "/run/tidewall";
/// Prefix of the abstract sockets of processes that may not write to [`DIRECTORY`], as
/// /proc/net/unix shows them (unix(7)).
const ABSTRACT: &str = "@tidewall/";
/// Frames one trace may follow.
pub const TRACE_LIMIT: u32 = 1_000;
/// The time for which a trace waits for its frames.
const TRACE_TIME: Duration = Duration::from_secs(2);
/// Bytes of the longest request.
const REQUEST_MAX: u64 = 256;
/// The time within which a client must send its request.
const IO_TIMEOUT: Duration = Duration::from_secs(1);

/// A frame as the driver saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TracedFrame {
    /// Number that the driver gave it.
    pub frame: u32,
    /// Nanoseconds on the monotonic clock.
    pub nanoseconds: u64,
    /// Device queue.
    pub queue: u32,
    /// Length on the wire.
    pub length: u32,
    /// `redirect`, `pass` or `drop`.
    pub verdict: String,
    /// The driver's counter for it.
    pub cause: String,
    /// Channel number, 0 when none.
    pub channel: u16,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

impl TracedFrame {
    /// Converts the driver program's record.
    pub fn of(record: &TraceRecord) -> Self {
        TracedFrame {
            frame: record.trace,
            nanoseconds: record.time,
            queue: record.queue,
            length: record.length,
            verdict: verdict_name(record.verdict).to_owned(),
            cause: Counter::from_index(record.cause)
                .map_or("unknown", Counter::name)
                .to_owned(),
            channel: record.channel as u16,
            bytes: record
                .bytes
                .get(..record.captured as usize)
                .unwrap_or_default()
                .to_vec(),
        }
    }
}

/// An answer to `trace`. The frames of a manager's device are shown by its driver program
/// ([`tidewall_manager::pinned::PinnedTraces`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trace {
    /// Frames in the driver.
    pub frames: Vec<TracedFrame>,
    /// The stages that they passed afterwards.
    pub lines: Vec<Line>,
}

/// An answer to `tune`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tuned {
    /// The reason, if nothing has changed.
    pub error: Option<String>,
    /// Receive control of each queue as it starts again.
    #[serde(default)]
    pub queues: Vec<ControlSnapshot>,
}

/// An answer to `pvc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Operated {
    /// The change that was made, in words.
    pub done: Option<String>,
    /// The reason, if nothing was done.
    pub error: Option<String>,
}

/// The control thread; dropping it ends the thread and removes the socket.
pub struct Control {
    path: Option<PathBuf>,
    /// Removes the socket, also when the process is killed.
    removal: Option<Undo>,
    stop: Arc<AtomicBool>,
    link: Arc<LinkState>,
    thread: Option<JoinHandle<()>>,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Control {
    /// Follows the interface, and answers if it `listens`.
    pub fn start(core: &Arc<Core>, listens: bool, watch: LinkWatch) -> io::Result<Self> {
        let listener = listens.then(listen).transpose()?;
        let path = listener.as_ref().and_then(|listener| listener.path());
        let path = path.map(Path::to_owned);
        // A socket that is left behind is no reason not to start.
        let removal = path
            .as_deref()
            .and_then(|path| core.netdev.owner.remove_on_exit(path));
        let stop = Arc::new(AtomicBool::new(false));
        let link = core.netdev.link.clone();
        let (weak, ended, wake) = (Arc::downgrade(core), stop.clone(), link.clone());
        let thread = std::thread::Builder::new()
            .name("tw-control".to_owned())
            .spawn(move || serve(listener, watch, &wake, &weak, &ended))?;
        Ok(Control {
            path,
            removal,
            stop,
            link,
            thread: Some(thread),
        })
    }
}

fn listen() -> io::Result<Listener> {
    // A process may have several stacks.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}.{number}.sock", std::process::id());
    match listen_in(Path::new(DIRECTORY), &name) {
        // An application of a manager, mostly.
        Err(error)
            if [
                io::ErrorKind::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem,
            ]
            .contains(&error.kind()) =>
        {
            let name = format!("{ABSTRACT}{name}");
            Listener::open_abstract(name.get(1..).unwrap_or_default())
        }
        result => result,
    }
}

fn listen_in(directory: &Path, name: &str) -> io::Result<Listener> {
    fs::create_dir_all(directory)?;
    let path = directory.join(name);
    let _ = fs::remove_file(&path);
    Listener::open(path)
}

/// Whether a file of [`DIRECTORY`] is named as a stack's socket.
pub fn is_socket(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("sock"))
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.link.wake.signal();
        match (self.removal.take(), &self.path) {
            (Some(removal), _) => drop(removal),
            (None, Some(path)) => drop(fs::remove_file(path)),
            (None, None) => {}
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut listener: Option<Listener>,
    mut watch: LinkWatch,
    link: &LinkState,
    core: &Weak<Core>,
    stop: &AtomicBool,
) {
    let mut fired = Vec::new();
    let mut next_look = None;
    while !stop.load(Ordering::Acquire) {
        let descriptors = [
            link.wake.descriptor(),
            watch.descriptor(),
            listener.as_ref().map_or(-1, Listener::descriptor),
        ];
        let paused = listener.as_ref().and_then(Listener::timeout);
        let timeout = watch.timeout().into_iter().chain(paused).chain(next_look);
        let timeout = timeout.min();
        if tidewall_sys::poll_readable(&descriptors, timeout, None, &mut fired).is_err() {
            // A signal's handler ran.
            fired.clear();
        }
        link.wake.clear();
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        watch.poll(&core);
        next_look = None;
        for protocol in &core.protocols {
            let next = protocol.ask_kernel(&core, watch.sockets());
            next_look = next_look.into_iter().chain(next).min();
        }
        if fired.contains(&2)
            && let Some(stream) = listener.as_mut().and_then(Listener::accept)
        {
            // A client that disconnects early loses only its own answer.
            let _ = answer(&stream, &core, stop);
        }
    }
}

fn answer(mut stream: &UnixStream, core: &Core, stop: &AtomicBool) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut request = String::new();
    BufReader::new(io::Read::take(stream, REQUEST_MAX)).read_line(&mut request)?;
    let mut words = request.split_whitespace();
    let reply = match (words.next(), words.next()) {
        (Some("stat"), None) => serde_json::to_vec(&core.snapshot()),
        (Some("trace"), Some(frames)) => {
            let frames = frames.parse().unwrap_or(1).clamp(1, TRACE_LIMIT);
            serde_json::to_vec(&trace(core, frames, stop))
        }
        (Some("pvc"), Some(_)) => serde_json::to_vec(&operate(core, request.trim())),
        (Some("tune"), Some(policy)) => serde_json::to_vec(&tune(core, policy, words)),
        _ => return stream.write_all(b"{\"error\":\"unknown request\"}"),
    };
    stream.write_all(&reply?)
}

fn trace(core: &Core, frames: u32, stop: &AtomicBool) -> Trace {
    if !core.netdev.owner.has_driver() {
        return Trace::default();
    }
    core.trace.take();
    let mut found = Vec::new();
    core.netdev.owner.start_trace(frames);
    let end = Instant::now() + TRACE_TIME;
    while found.len() < frames as usize && Instant::now() < end && !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(5));
        let traced = core.netdev.owner.traced();
        found.extend(traced.map(|record| TracedFrame::of(&record)));
    }
    core.netdev.owner.start_trace(0);
    // Let the last frame reach its socket.
    std::thread::sleep(Duration::from_millis(20));
    Trace {
        frames: found,
        lines: core.trace.take(),
    }
}

fn operate(core: &Core, request: &str) -> Operated {
    let words = request.strip_prefix("pvc").unwrap_or(request).trim();
    match core.operator.ask(words) {
        Ok(done) => Operated {
            done: Some(done),
            error: None,
        },
        Err(error) => Operated {
            done: None,
            error: Some(error),
        },
    }
}

/// Returns the request line of `tune` for these settings.
pub fn tune_request(control: &ReceiveControl) -> String {
    fn word(value: Option<u64>) -> String {
        value.map_or("-".to_owned(), |value| value.to_string())
    }
    // A longer T saturates, so that the answer reports it out of range.
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (budget, interval) = (control.budget, control.interrupt_interval);
    format!(
        "tune {} {} {}",
        control.policy,
        word(budget.map(u64::from)),
        word(interval.map(nanoseconds))
    )
}

fn parse_tune<'a>(
    policy: &str,
    mut words: impl Iterator<Item = &'a str>,
) -> Result<ReceiveControl, String> {
    let mut number = |name: &str| match words.next() {
        Some("-") => Ok(None),
        word => word
            .and_then(|word| word.parse::<u64>().ok())
            .map(Some)
            .ok_or_else(|| format!("{name} is a number, or - for what is usual")),
    };
    let policy = policy.parse().map_err(|error| format!("{error}"))?;
    let budget = number("budget")?.map(|budget| u32::try_from(budget).unwrap_or(u32::MAX));
    let interrupt_interval = number("interval")?.map(Duration::from_nanos);
    match words.next() {
        Some(word) => Err(format!("{word:?} is one word too many")),
        None => Ok(ReceiveControl {
            policy,
            budget,
            interrupt_interval,
        }),
    }
}

fn tune<'a>(core: &Core, policy: &str, words: impl Iterator<Item = &'a str>) -> Tuned {
    let changed = parse_tune(policy, words).and_then(|control| {
        let changed = core.set_receive_control(&control);
        changed.map_err(|error| error.to_string())
    });
    let queues = &core.receiver.queues;
    let of = |queue: &QueueHandle| ControlSnapshot::of(&queue.shared);
    Tuned {
        error: changed.err(),
        queues: queues.iter().map(of).collect(),
    }
}

/// Names of `enum xdp_action` (linux/bpf.h).
fn verdict_name(verdict: u32) -> &'static str {
    match verdict {
        0 => "aborted",
        1 => "drop",
        2 => "pass",
        3 => "transmit",
        4 => "redirect",
        _ => "unknown",
    }
}

/// Sockets of live stacks, those that may be other users' last. Removes those of processes
/// that are gone.
///
/// # Errors
/// EACCES; without the directory there are no stacks.
pub fn live() -> io::Result<Vec<PathBuf>> {
    let mut paths = abstract_names(&fs::read_to_string("/proc/net/unix").unwrap_or_default());
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let paths_there = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for path in paths_there.filter(|path| is_socket(path)) {
        match connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            _ => paths.push(path),
        }
    }
    let paths = paths.into_iter().map(|path| (is_anothers(&path), path));
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    let own = paths.iter().filter(|(is_anothers, _)| !is_anothers).count();
    paths.truncate(own + OTHERS_MOST);
    Ok(paths.into_iter().map(|(_, path)| path).collect())
}

/// Names of stacks in /proc/net/unix that listen.
fn abstract_names(text: &str) -> Vec<PathBuf> {
    let listens =
        |flags: &str| u32::from_str_radix(flags, 16).is_ok_and(|bits| bits & SO_ACCEPTCON != 0);
    let name = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_whitespace().skip(3);
        let flags = fields.next()?;
        let name = fields.nth(3)?;
        let path = PathBuf::from(name);
        (listens(flags) && name.starts_with(ABSTRACT) && is_socket(&path)).then_some(path)
    };
    text.lines().filter_map(name).collect()
}

/// A flag in /proc/net/unix (`__SO_ACCEPTCON`).
const SO_ACCEPTCON: u32 = 0x1_0000;

/// Connects to a stack's socket, and returns whether that belongs to another user. It
/// does not wait for a socket whose queue is full.
///
/// # Errors
/// WouldBlock for such a socket; PermissionDenied for a name that belongs to another
/// process.
fn connect(path: &Path) -> io::Result<(UnixStream, bool)> {
    let name = path.to_str().and_then(|path| path.strip_prefix('@'));
    let address = match name {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        None => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    if name.is_none() {
        return Ok((stream, false));
    }
    let peer = Credentials::of_peer(&stream)?;
    // Every user can have such a name, but not another's process id.
    if process(path) != Some(peer.pid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((stream, peer.uid != rustix::process::geteuid().as_raw()))
}

/// The process that a socket is named after.
fn process(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.split('.').next()?.parse().ok()
}

/// Whether a socket may belong to a user other than this process's. Its name states no
/// user, but the process that it is named after has one.
fn is_anothers(path: &Path) -> bool {
    let is_named = path.to_str().is_some_and(|path| path.starts_with('@'));
    let own = rustix::process::geteuid().as_raw();
    let user = process(path).and_then(|process| fs::metadata(format!("/proc/{process}")).ok());
    is_named && user.is_none_or(|of| of.uid() != own)
}

/// Text that does nothing to a terminal.
fn harmless(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(harmless),
        serde_json::Value::Object(values) => {
            *values = std::mem::take(values)
                .into_iter()
                .map(|(name, mut value)| {
                    harmless(&mut value);
                    (name.replace(char::is_control, "\u{fffd}"), value)
                })
                .collect();
        }
        _ => {}
    }
}

/// Asks a stack; the answer is JSON.
///
/// # Errors
/// EACCES, ECONNREFUSED when it is gone; TimedOut after ten seconds.
pub fn ask(path: &Path, request: &str) -> io::Result<String> {
    let limits = Limits::default();
    limits.ask(path, request)
}

/// Asks several stacks at once, the first before the last; the answers are in the order of
/// the paths. All together have ten seconds, so that one that does not answer, or answers a
/// byte at a time, holds up no other for longer.
///
/// # Errors
/// As [`ask`], for each.
pub fn ask_all(paths: &[PathBuf], request: &str) -> Vec<io::Result<String>> {
    ask_by(&Limits::default(), paths, request)
}

fn ask_by(limits: &Limits, paths: &[PathBuf], request: &str) -> Vec<io::Result<String>> {
    let next = AtomicUsize::new(0);
    let ask = || {
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(at) else {
                return answers;
            };
            answers.push((at, limits.ask(path, request)));
        }
    };
    let mut answers: Vec<_> = std::thread::scope(|scope| {
        let threads = paths.len().min(ASKED_AT_ONCE);
        let threads: Vec<_> = (1..threads).map(|_| scope.spawn(ask)).collect();
        let own = ask();
        let others = threads.into_iter().flat_map(|thread| thread.join().ok());
        others.flatten().chain(own).collect()
    });
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Limits on the answers to one question.
struct Limits {
    until: Instant,
    /// Bytes that are left of [`ANSWER_MOST`].
    bytes: AtomicU64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            until: Instant::now() + ANSWER_WITHIN,
            bytes: AtomicU64::new(ANSWER_MOST),
        }
    }
}

impl Limits {
    fn ask(&self, path: &Path, request: &str) -> io::Result<String> {
        let (mut stream, is_anothers) = connect(path)?;
        writeln!(stream, "{request}")?;
        let mut answer = self.read(&mut stream)?;
        if is_anothers && let Ok(mut value) = serde_json::from_str(&answer) {
            harmless(&mut value);
            answer = value.to_string();
        }
        Ok(answer)
    }

    fn read(&self, stream: &mut UnixStream) -> io::Result<String> {
        let mut answer = Vec::new();
        let mut buffer = [0; 1 << 14];
        loop {
            match io::Read::read(stream, &mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let take = |left: u64| left.checked_sub(length as u64);
                    let relaxed = Ordering::Relaxed;
                    if self.bytes.fetch_update(relaxed, relaxed, take).is_err() {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                    answer.extend(buffer.iter().take(length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    wait_readable(&[stream.as_fd()], left)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if Instant::now() > self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        String::from_utf8(answer).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// The time that the answers to a question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Limit on the bytes of all answers to a question, so that no process fills the asking
/// process's memory.
const ANSWER_MOST: u64 = 256 << 20;
/// Stacks that are asked at once.
const ASKED_AT_ONCE: usize = 64;
/// Stacks of other users that are asked at all.
const OTHERS_MOST: usize = 1024;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_request_to_tune_is_what_was_asked_for() {
        let control = |budget, interval: Option<u64>| ReceiveControl {
            policy: "napi".parse().unwrap(),
            budget,
            interrupt_interval: interval.map(Duration::from_nanos),
        };
        let parse = |request: &str| {
            let mut words = request.split_whitespace();
            assert_eq!(words.next(), Some("tune"));
            parse_tune(words.next().unwrap(), words)
        };
        for control in [control(None, None), control(Some(u32::MAX), Some(u64::MAX))] {
            let request = tune_request(&control);
            assert!(request.len() < 64, "{request}");
            assert_eq!(parse(&request), Ok(control));
        }
        for wrong in [
            "tune",
            "tune fastest - -",
            "tune napi",
            "tune napi 8",
            "tune napi 8 x",
            "tune napi -1 -",
            "tune napi 8 - -",
        ] {
            let mut words = wrong.split_whitespace().skip(1);
            let policy = words.next().unwrap_or_default();
            assert!(parse_tune(policy, words).is_err(), "{wrong}");
        }
    }

    /// A listener at a name of this process's in the abstract namespace.
    fn listener(number: u32, backlog: i32) -> (PathBuf, OwnedFd) {
        let name = format!("tidewall/{}.{number}.sock", std::process::id());
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, backlog).unwrap();
        (format!("@{name}").into(), socket)
    }

    #[test]
    fn a_stack_that_does_not_answer_holds_up_no_other() {
        let limits = |time| Limits {
            until: Instant::now() + time,
            bytes: AtomicU64::new(1000),
        };
        // Its queue is full.
        let (full, _listener) = listener(4_000_000, 0);
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&full).ok()).collect();
        // It accepts, and sends nothing, or one byte at a time, without end.
        let (silent, _silent) = listener(4_000_001, 5);
        let (slow, accepts) = listener(4_000_002, 5);
        let (good, answers) = listener(4_000_003, 5);
        let long = Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut stream = UnixListener::from(accepts).accept().unwrap().0;
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            scope.spawn(move || {
                let mut stream = UnixListener::from(answers).accept().unwrap().0;
                let mut request = [0; 5];
                io::Read::read_exact(&mut stream, &mut request).unwrap();
                stream.write_all(b"[]").unwrap();
            });
            let paths = [full.clone(), silent, slow, good];
            let answers = ask_by(&limits(Duration::from_secs(2)), &paths, "stat");
            let kinds = answers
                .iter()
                .map(|answer| answer.as_ref().map_err(|it| it.kind()));
            let kinds: Vec<_> = kinds.collect();
            let timed_out = Err(io::ErrorKind::TimedOut);
            let expected = [Err(io::ErrorKind::WouldBlock), timed_out, timed_out];
            assert_eq!(kinds[..3], expected);
            assert_eq!(answers[3].as_ref().unwrap(), "[]");
        });
        // One that answers without end.
        let (endless, accepts) = listener(4_000_004, 5);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut stream = UnixListener::from(accepts).accept().unwrap().0;
                while stream.write_all(&[b' '; 100]).is_ok() {}
            });
            let answers = ask_by(&limits(long), &[endless], "stat");
            let kind = answers[0].as_ref().map_err(io::Error::kind);
            assert_eq!(kind, Err(io::ErrorKind::FileTooLarge));
        });
        drop(waiting);
    }

    #[test]
    fn names_of_stacks_are_found_among_others() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21 @tidewall/7.0.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 22 @tidewall/8.0.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 23 @tidewall/x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 24 /run/tidewall/9.0.sock\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 25\n";
        assert_eq!(abstract_names(text), [Path::new("@tidewall/7.0.sock")]);
    }

    #[test]
    fn what_another_user_says_does_nothing_to_a_terminal() {
        let mut value = serde_json::json!({"a\u{1b}": ["x\u{1b}[2J", 1], "b": {"c": "fine"}});
        harmless(&mut value);
        let clean = serde_json::json!({"a\u{fffd}": ["x\u{fffd}[2J", 1], "b": {"c": "fine"}});
        assert_eq!(value, clean);
    }
}
