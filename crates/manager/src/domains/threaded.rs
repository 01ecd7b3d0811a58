//! The kernel thread that polls a device which several applications share.
//!
//! A device that its applications poll stays masked for a time after each poll. If a
//! frame that arrived then was for an application that does not poll, all others wait for
//! that time. A kernel thread waits for no application, and uses no other application's
//! time (docs/decisions/index.md, 116).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use tidewall_sys::netlink::{Napi, Netdev};

/// Nice value of the thread: below the applications, which must process what it delivers.
const NICE: i32 = 5;

/// Index of the processor in /proc/PID/stat, counted from the state.
const PROCESSOR: usize = 36;

/// How an interface was polled, to be restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Whether threads polled it.
    pub threaded: bool,
}

fn attribute(interface: &str) -> String {
    format!("/sys/class/net/{interface}/threaded")
}

/// The NAPIs of an interface, where the kernel can give each its thread by netlink (Linux
/// 6.17). That needs a capability and no file of user 0's, and works in any namespace.
fn napis(index: u32) -> Option<(Netdev, Vec<Napi>)> {
    let mut netdev = Netdev::open().ok()?;
    let napis = netdev.napi_states(index).ok()?;
    let known = !napis.is_empty() && napis.iter().all(|napi| napi.threaded.is_some());
    known.then_some((netdev, napis))
}

/// How an interface is polled.
///
/// # Errors
/// NotFound before Linux 5.12; what the file system reports.
pub fn read(interface: &str, index: u32) -> io::Result<Before> {
    if let Some((_, napis)) = napis(index) {
        let threaded = napis.iter().any(|napi| napi.threaded == Some(true));
        return Ok(Before { threaded });
    }
    let text = std::fs::read_to_string(attribute(interface))?;
    Ok(Before {
        threaded: text.trim() != "0",
    })
}

/// Makes threads poll an interface, at low priority if CAP_SYS_NICE permits. May be
/// repeated: the kernel recreates the threads when the interface goes down and up, and
/// they lose their priority. A priority that an operator has set stays.
///
/// # Errors
/// EOPNOTSUPP for an interface without NAPI, as a veth without a program. EPERM or EACCES
/// without CAP_NET_ADMIN and, before Linux 6.17, user 0. What the kernel reports.
pub fn set(interface: &str, index: u32) -> io::Result<()> {
    switch(interface, index, true)?;
    let fresh = |thread: &Pid| getpriority_process(Some(*thread)) == Ok(0);
    for thread in threads(interface, index).into_iter().filter(fresh) {
        match setpriority_process(Some(thread), NICE) {
            // It works without, and takes more from the applications.
            Ok(()) | Err(Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Restores how an interface was polled.
///
/// # Errors
/// As [`set`].
pub fn put_back(interface: &str, index: u32, before: Before) -> io::Result<()> {
    switch(interface, index, before.threaded)
}

fn switch(interface: &str, index: u32, threaded: bool) -> io::Result<()> {
    match napis(index) {
        Some((mut netdev, napis)) => {
            // If it is already so, the thread stays as it is.
            let other = |napi: &&Napi| napi.threaded != Some(threaded);
            for napi in napis.iter().filter(other) {
                netdev.set_threaded(napi.id, threaded)?;
            }
            Ok(())
        }
        None if read(interface, index)? == (Before { threaded }) => Ok(()),
        None => std::fs::write(attribute(interface), if threaded { "1" } else { "0" }),
    }
}

/// A thread's processor time, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTime {
    /// How long it has run.
    pub ran: Duration,
    /// How long it was runnable and waited.
    pub waited: Duration,
    /// The processor that it last ran on.
    pub processor: u32,
}

impl TaskTime {
    /// Reads the time of the thread with this directory in /proc.
    ///
    /// # Errors
    /// NotFound and ESRCH once it has ended; InvalidData for what is not a number.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let times = std::fs::read_to_string(directory.join("schedstat"))?;
        let mut times = times.split_whitespace().map(|it| it.parse().ok());
        let mut next = || Some(Duration::from_nanos(times.next()??));
        let [ran, waited] = [next(), next()];
        let stat = std::fs::read_to_string(directory.join("stat"))?;
        // After the name, which may contain anything (proc(5)).
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let processor = fields.and_then(|it| it.split_whitespace().nth(PROCESSOR)?.parse().ok());
        let known = (ran, waited, processor);
        let (Some(ran), Some(waited), Some(processor)) = known else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(TaskTime {
            ran,
            waited,
            processor,
        })
    }
}

/// Directories in /proc of the threads that poll an interface; empty where this process's
/// /proc is of another PID namespace.
pub fn directories(interface: &str, index: u32) -> Vec<PathBuf> {
    let directories = threads(interface, index)
        .into_iter()
        .map(|pid| PathBuf::from(format!("/proc/{}", pid.as_raw_pid())));
    let is_one = |directory: &PathBuf| {
        let name = std::fs::read_to_string(directory.join("comm"));
        name.is_ok_and(|name| name.starts_with("napi/"))
    };
    directories.filter(is_one).collect()
}

/// The threads, as netlink reports them (Linux 6.8), or by their names.
fn threads(interface: &str, index: u32) -> Vec<Pid> {
    let states = Netdev::open().and_then(|mut netdev| netdev.napi_states(index));
    let threads: Vec<Pid> = states
        .unwrap_or_default()
        .iter()
        .filter_map(|napi| Pid::from_raw(napi.thread? as i32))
        .collect();
    if threads.is_empty() {
        named(interface)
    } else {
        threads
    }
}

/// Processes whose names the kernel gives such threads: `napi/IF-ID`.
fn named(interface: &str) -> Vec<Pid> {
    let prefix = format!("napi/{interface}-");
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let named = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with(&prefix).then_some(())?;
        Pid::from_raw(pid)
    };
    processes.flatten().filter_map(named).collect()
}
