//! How `tidewall stat` and `tidewall trace` reach a live stack: a Unix socket
//! in [`DIRECTORY`], named after the process, answered by a thread that
//! otherwise sleeps. One request line a connection, one JSON answer. The same
//! thread follows the interface's changes (`link.rs`).
//!
//! | request | answer |
//! |---|---|
//! | `stat` | a [`crate::snapshot::StackSnapshot`] |
//! | `trace N` | a [`Trace`] of the next N frames, after they came or two seconds passed |

mod listener;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidewall_device::demux::layout::Counter;
use tidewall_manager::restore::Undo;

use crate::link::{LinkState, LinkWatch};
use crate::snapshot::StackSnapshot;
use crate::stack::Core;
use crate::trace::Line;
use listener::Listener;

/// Where the sockets are.
pub const DIRECTORY: &str = "/run/tidewall";
/// Frames one trace may follow.
pub const TRACE_LIMIT: u32 = 1_000;
/// How long a trace waits for its frames.
const TRACE_TIME: Duration = Duration::from_secs(2);
/// How long a client may take to say what it wants.
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

/// An answer to `trace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trace {
    /// Frames in the driver.
    pub frames: Vec<TracedFrame>,
    /// What happened to them afterwards.
    pub lines: Vec<Line>,
}

/// The thread; dropping it ends it and removes the socket.
pub(crate) struct Control {
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
    pub(crate) fn start(core: &Arc<Core>, listens: bool, watch: LinkWatch) -> io::Result<Self> {
        let listener = listens.then(listen).transpose()?;
        let path = listener.as_ref().map(|listener| listener.path().to_owned());
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
    fs::create_dir_all(DIRECTORY)?;
    // A process may have several stacks.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(DIRECTORY).join(format!("{}.{number}.sock", std::process::id()));
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
    while !stop.load(Ordering::Acquire) {
        let descriptors = [
            link.wake.descriptor(),
            watch.descriptor(),
            listener.as_ref().map_or(-1, Listener::descriptor),
        ];
        let paused = listener.as_ref().and_then(Listener::timeout);
        let timeout = watch.timeout().into_iter().chain(paused).min();
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
        core.tcp.resolve_routes(&core);
        if fired.contains(&2)
            && let Some(stream) = listener.as_mut().and_then(Listener::accept)
        {
            // A client that goes away in the middle is its own loss.
            let _ = answer(&stream, &core, stop);
        }
    }
}

fn answer(mut stream: &UnixStream, core: &Core, stop: &AtomicBool) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut request = String::new();
    BufReader::new(io::Read::take(stream, 64)).read_line(&mut request)?;
    let mut words = request.split_whitespace();
    let reply = match (words.next(), words.next()) {
        (Some("stat"), None) => serde_json::to_vec(&StackSnapshot::take(core)),
        (Some("trace"), Some(frames)) => {
            let frames = frames.parse().unwrap_or(1).clamp(1, TRACE_LIMIT);
            serde_json::to_vec(&trace(core, frames, stop))
        }
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
        found.extend(core.netdev.owner.traced().map(|record| {
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
        }));
    }
    core.netdev.owner.start_trace(0);
    // Let the last frame reach its socket.
    std::thread::sleep(Duration::from_millis(20));
    Trace {
        frames: found,
        lines: core.trace.take(),
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

/// Sockets of live stacks, oldest process first. Removes those of processes
/// that are gone.
///
/// # Errors
/// EACCES; a directory that is not there is no stacks.
pub fn live() -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    let paths_there = entries.flatten().map(|entry| entry.path());
    for path in paths_there.filter(|path| is_socket(path)) {
        match UnixStream::connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            _ => paths.push(path),
        }
    }
    paths.sort();
    Ok(paths)
}

/// Asks a stack; the answer is JSON.
///
/// # Errors
/// EACCES, ECONNREFUSED when it is gone, a timeout of ten seconds.
pub fn ask(path: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    writeln!(stream, "{request}")?;
    let mut answer = String::new();
    io::Read::read_to_string(&mut stream, &mut answer)?;
    Ok(answer)
}
