//! The systemd interface: descriptors and settings in the environment, and the messages
//! back (sd_notify(3), sd_listen_fds(3)). Without systemd all of it is absent.

use std::env;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};

use crate::raw;

/// The name under which systemd stores this service's listening socket.
const STORED: &str = "tidewalld";

/// A listening socket that systemd has passed.
#[derive(Debug)]
pub struct Passed {
    /// The socket.
    pub socket: OwnedFd,
    /// Whether an earlier run stored it ([`store`]); otherwise a socket unit opened it.
    pub stored: bool,
}

/// Returns the socket that systemd opened for this process, if any. Must be called first.
///
/// # Errors
/// InvalidInput for more than one socket; EBADF if the environment is wrong.
pub fn listener() -> io::Result<Option<Passed>> {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
    };
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        Some(1) => {
            let stored = env::var("LISTEN_FDNAMES").is_ok_and(|name| name == STORED);
            let socket = raw::passed()?;
            Ok(Some(Passed { socket, stored }))
        }
        None | Some(0) => Ok(None),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "one socket is wanted of systemd: a unit with one ListenSequentialPacket=",
        )),
    }
}

/// Returns how often the service must report that it is alive.
pub fn watchdog() -> Option<Duration> {
    let period: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    // Twice per period, as sd_watchdog_enabled(3) advises.
    Some(Duration::from_micros(period / 2))
}

/// Reports a change of state to systemd, if it listens.
pub fn notify(state: &str) {
    send(state, None);
}

/// Stores a listening socket with systemd for the next run (FileDescriptorStoreMax=).
/// Returns false without systemd.
pub fn store(socket: &impl AsFd) -> bool {
    send(&format!("FDSTORE=1\nFDNAME={STORED}"), Some(socket.as_fd()));
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// Removes the stored socket.
pub fn forget() {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={STORED}"));
}

/// There is no other channel to report a failure on.
fn send(state: &str, descriptor: Option<BorrowedFd<'_>>) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name),
        None => SocketAddrUnix::new(&*path),
    };
    let socket = UnixDatagram::unbound();
    let (Ok(address), Ok(socket)) = (address, socket) else {
        return;
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = [IoSlice::new(state.as_bytes())];
    let flags = SendFlags::NOSIGNAL;
    let _ = sendmsg_addr(&socket, &address, &bytes, &mut ancillary, flags);
}
