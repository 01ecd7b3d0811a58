//! Facts about the process at the other end of a Unix socket that its id alone does not
//! prove: by the time of the lookup the id may be another process's.

use std::fs;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tidewall_device::capabilities::{Capability, NET_RAW};
use tidewall_sys::peer_process;

/// Returns the result of `look` for the process that connected, if that still lives
/// afterwards and so had its id until then. Before Linux 6.5 its id is trusted.
pub(super) fn looked_up<T>(connection: impl AsFd, look: impl FnOnce() -> Option<T>) -> Option<T> {
    let held = match peer_process(connection) {
        Ok(held) => Some(held),
        Err(error) if error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => None,
        // It is gone.
        Err(_) => return None,
    };
    let found = look()?;
    held.is_none_or(lives).then_some(found)
}

/// True if the process at the other end of a Unix socket has CAP_NET_RAW in this
/// process's user namespace. `process`: its id, as SO_PEERCRED reports it.
///
/// A process may execute another program between connecting and this check. So a caller
/// trusts the result only for user 0, who gains by it no more than what it may execute.
pub(super) fn has_net_raw(connection: impl AsFd, process: u32) -> bool {
    let looked = looked_up(connection, || {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        // A namespace of its own, in which it has every capability, maps other users.
        let users = |of: &str| fs::read_to_string(format!("/proc/{of}/uid_map")).ok();
        let is_here = users(&process.to_string())? == users("self")?;
        Some(is_here && has_effective(&status, NET_RAW))
    });
    looked == Some(true)
}

/// By /proc/PID/status.
fn has_effective(status: &str, capability: Capability) -> bool {
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & 1 << capability.number() != 0)
}

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Checks a pidfd, which becomes readable when its process has ended.
fn lives(process: impl AsFd) -> bool {
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut ended, Some(&AT_ONCE)) == Ok(0)
}
