//! The Unix socket that receives requests.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use tidewall_manager::connection::Credentials;

/// The pause in accepting after descriptors or memory have run out.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Creates a nonblocking stream socket that listens at `address`. The permissions of a
/// path are `mode` from the first moment on. The file takes those of the socket, and of
/// the umask, which can only be stricter.
///
/// # Errors
/// EADDRINUSE; the errors of `bind`.
fn listen(address: &SocketAddrUnix, mode: u32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// A listener to which only the owner may connect.
pub(super) struct Listener {
    socket: UnixListener,
    /// None of a name that is in no directory.
    path: Option<PathBuf>,
    /// No peer is accepted until then. A peer that cannot be accepted keeps the socket
    /// readable, so a wait on it would return at once.
    paused_until: Option<Instant>,
}

impl Listener {
    /// # Errors
    /// EINVAL for a path too long or with a zero byte; what `bind` reports.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let address = SocketAddrUnix::new(&path).map_err(invalid)?;
        Self::at(&address, Some(path))
    }

    /// Opens a listener at a name in the abstract namespace (unix(7)). It answers user 0
    /// and this process's user.
    ///
    /// # Errors
    /// As [`Listener::open`].
    pub(super) fn open_abstract(name: &str) -> io::Result<Self> {
        Self::at(&SocketAddrUnix::new_abstract_name(name.as_bytes())?, None)
    }

    fn at(address: &SocketAddrUnix, path: Option<PathBuf>) -> io::Result<Self> {
        Ok(Listener {
            socket: listen(address, 0o600)?,
            path,
            paused_until: None,
        })
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether a peer may ask: for a path the file's permissions have decided that.
    fn may_ask(&self, stream: &UnixStream) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.path.is_some()
            || Credentials::of_peer(stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own)
    }

    /// Returns a descriptor that is readable when a peer waits. While accepting is paused
    /// it is -1, which poll(2) ignores.
    pub(super) fn descriptor(&self) -> i32 {
        match self.timeout() {
            Some(left) if !left.is_zero() => -1,
            _ => self.socket.as_raw_fd(),
        }
    }

    /// Returns the time until accepting resumes.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let until = self.paused_until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Accepts a waiting peer, if there is one.
    pub(super) fn accept(&mut self) -> Option<UnixStream> {
        self.paused_until = None;
        let error = match self.socket.accept() {
            Ok((stream, _)) => return Some(stream).filter(|stream| self.may_ask(stream)),
            Err(error) => error,
        };
        let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
        if error
            .raw_os_error()
            .is_some_and(|code| short.contains(&code))
        {
            self.paused_until = Some(Instant::now() + BACK_OFF);
        }
        // Otherwise the peer has gone again.
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::SocketAddr;
    use std::process::Command;

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tw-listener-{}-{name}", std::process::id()))
    }

    /// From the first moment on: nothing sets it afterwards.
    #[test]
    fn only_the_owner_may_connect() {
        let listener = Listener::open(path("mode")).unwrap();
        let mode = fs::metadata(listener.path().unwrap())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(listener.path().unwrap()).unwrap();
    }

    #[test]
    fn an_abstract_name_answers_its_user() {
        let name = format!("tidewall-test/{}", std::process::id());
        let mut listener = Listener::open_abstract(&name).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _client = UnixStream::connect_addr(&address).unwrap();
        assert!(listener.accept().is_some());
        assert_eq!(listener.path(), None);
    }

    #[test]
    fn a_path_too_long_is_an_error() {
        let error = Listener::open(path(&"x".repeat(200)))
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// Runs in a separate process, which has few descriptors.
    #[test]
    fn without_descriptors_it_waits() {
        let program = std::env::current_exe().unwrap();
        let body = "control::listener::tests::inside_without_descriptors";
        let status = Command::new("/bin/sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" \"$@\""])
            .arg(program)
            .args([body, "--exact", "--ignored", "--nocapture"])
            .status()
            .unwrap();
        assert!(status.success());
    }

    #[test]
    #[ignore = "run by the test before it"]
    fn inside_without_descriptors() {
        let mut listener = Listener::open(path("short")).unwrap();
        let _client = UnixStream::connect(listener.path().unwrap()).unwrap();
        fs::remove_file(listener.path().unwrap()).unwrap();
        let mut all = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            all.push(file);
        }
        // As the control thread does, for as long as three back-offs.
        let (mut fired, mut looks) = (Vec::new(), 0);
        let end = Instant::now() + 3 * BACK_OFF;
        while Instant::now() < end {
            let timeout = listener.timeout();
            tidewall_sys::poll_readable(&[listener.descriptor()], timeout, None, &mut fired)
                .unwrap();
            if !fired.is_empty() {
                assert!(listener.accept().is_none());
            }
            looks += 1;
        }
        assert!(looks <= 8, "{looks} looks");
        // No waiting peer is lost in the pause.
        all.clear();
        let accepted = (0..8).find_map(|_| {
            tidewall_sys::poll_readable(
                &[listener.descriptor()],
                listener.timeout(),
                None,
                &mut fired,
            )
            .unwrap();
            listener.accept()
        });
        assert!(accepted.is_some());
    }
}
