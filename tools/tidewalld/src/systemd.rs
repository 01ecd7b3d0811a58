//! What systemd passes to a service in its environment, and what the service sends it
//! (sd_notify(3), sd_listen_fds(3)). Without systemd nothing of it is there.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::raw;

/// The socket that was opened for this process, if one was. To be asked first of all.
///
/// # Errors
/// InvalidInput for more than one; EBADF where the environment is wrong.
pub fn listener() -> io::Result<Option<OwnedFd>> {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u32>().ok())
    };
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        Some(1) => raw::passed().map(Some),
        None | Some(0) => Ok(None),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "one socket is wanted of systemd: a unit with one ListenSequentialPacket=",
        )),
    }
}

/// How often the service is to say that it lives.
pub fn watchdog() -> Option<Duration> {
    let period: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    // Twice a period, as sd_watchdog_enabled(3) advises.
    Some(Duration::from_micros(period / 2))
}

/// Sends systemd a change of state, if it listens.
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // There is nobody else to report a failure to.
    let _ = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
}
