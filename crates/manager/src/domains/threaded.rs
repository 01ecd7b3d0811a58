//! The kernel thread that polls a device which several applications share.
//!
//! A device that its applications poll stays masked for a time after each poll. If what
//! came then was for one that does not poll, all others wait for that time. A thread of
//! the kernel's waits for nobody, and costs nobody else's time (docs/decisions.md, 116).

use std::io;

use rustix::process::{Pid, setpriority_process};
use tidewall_sys::netlink::Netdev;

/// Of the thread: below the applications, which have work to do with what it gives them.
const NICE: i32 = 5;

/// How an interface was polled, to be put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Whether threads polled it.
    pub threaded: bool,
}

fn attribute(interface: &str) -> String {
    format!("/sys/class/net/{interface}/threaded")
}

/// How an interface is polled.
///
/// # Errors
/// NotFound before Linux 5.12; what the file system reports.
pub fn read(interface: &str) -> io::Result<Before> {
    let text = std::fs::read_to_string(attribute(interface))?;
    Ok(Before {
        threaded: text.trim() != "0",
    })
}

/// Has threads poll an interface, of low priority. May be repeated: the kernel makes
/// threads anew when the interface goes down and up, and they forget their priority.
///
/// # Errors
/// EOPNOTSUPP for an interface without NAPI, as a veth without a program; EPERM or EACCES
/// without CAP_NET_ADMIN, CAP_SYS_NICE, and by sysfs user 0; what the kernel reports.
pub fn set(interface: &str, index: u32) -> io::Result<()> {
    switch(interface, index, true)?;
    for thread in threads(interface, index) {
        setpriority_process(Some(thread), NICE)?;
    }
    Ok(())
}

/// Has an interface polled as before.
///
/// # Errors
/// As [`set`].
pub fn put_back(interface: &str, index: u32, before: Before) -> io::Result<()> {
    switch(interface, index, before.threaded)
}

fn switch(interface: &str, index: u32, threaded: bool) -> io::Result<()> {
    if read(interface).is_ok_and(|before| before.threaded == threaded) {
        // Which makes no thread anew.
        return Ok(());
    }
    let written = std::fs::write(attribute(interface), if threaded { "1" } else { "0" });
    match written {
        // sysfs is user 0's; by netlink (Linux 6.17) the capability is enough.
        Err(error) => by_netlink(index, threaded).map_err(|_| error),
        Ok(()) => Ok(()),
    }
}

fn by_netlink(index: u32, threaded: bool) -> io::Result<()> {
    let mut netdev = Netdev::open()?;
    for napi in netdev.napi_states(index)? {
        netdev.set_threaded(napi.id, threaded)?;
    }
    Ok(())
}

/// The threads, as netlink tells (Linux 6.8), or by their names.
fn threads(interface: &str, index: u32) -> Vec<Pid> {
    let told = Netdev::open().and_then(|mut netdev| netdev.napi_states(index));
    let told: Vec<Pid> = told
        .unwrap_or_default()
        .iter()
        .filter_map(|napi| Pid::from_raw(napi.thread? as i32))
        .collect();
    if told.is_empty() {
        named(interface)
    } else {
        told
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
