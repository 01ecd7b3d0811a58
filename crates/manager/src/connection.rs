//! A connection between a manager and an application: messages with descriptors.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, getsockname, listen, recvmsg, sendmsg, socket_with, socketpair,
    sockopt, sockopt::Timeout,
};
use tidewall_device::forked::Unshared;
use tidewall_sys::{option_bytes, set_option};

use crate::protocol::{Answer, DESCRIPTORS, MESSAGE_BYTES, Request};

/// How long to wait for a manager's answer: longer than a restarted manager waits for its
/// applications.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(6);

/// One end of a SOCK_SEQPACKET connection, which a forked child does not keep.
#[derive(Debug)]
pub struct Connection {
    socket: Unshared<OwnedFd>,
}

/// Credentials of the other end, as the kernel recorded them at connect (SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Process id; 0 in another PID namespace.
    pub pid: u32,
}

/// A received message.
#[derive(Debug, Default)]
pub struct Received {
    /// Its bytes; for one longer than a message may be, one byte more than that.
    pub bytes: Vec<u8>,
    /// All descriptors passed beside it. Closing a descriptor of a hostile sender may
    /// block.
    pub descriptors: Vec<OwnedFd>,
}

/// Most descriptors that the kernel passes beside a message (`SCM_MAX_FD`). With less
/// room it closes the excess within recvmsg(2).
const PASSED_MOST: usize = 253;
/// Whether senders may pass descriptors (linux/socket.h, since Linux 6.16); accepted
/// sockets inherit it from the listener.
const SO_PASSRIGHTS: i32 = 83;

impl Credentials {
    /// Returns the credentials of the other end of a Unix socket.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        // `struct ucred`. rustix cannot be used: its process ids are never 0.
        let mut bytes = [0; 12];
        option_bytes(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut bytes)?;
        let [pid, uid, _]: [u32; 3] = zerocopy::transmute!(bytes);
        Ok(Credentials { uid, pid })
    }
}

impl Connection {
    /// Connects to a manager's path. Connecting, sending and receiving wait no longer than
    /// [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// NotFound and ConnectionRefused where no manager listens; PermissionDenied; WouldBlock
    /// after that time; what the kernel reports.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&socket, timeout, Some(ANSWER_WITHIN))?;
        }
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    /// Both ends of a connection.
    ///
    /// # Errors
    /// EMFILE, ENFILE; ENOMEM.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// Wraps an end that was handed over.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn of_descriptor(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket)
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = Unshared::new(socket)?;
        Ok(Connection { socket })
    }

    /// Sends a message with at most [`DESCRIPTORS`] descriptors.
    ///
    /// # Errors
    /// - WouldBlock: the other end does not read, and this end does not block or its time
    ///   is over
    /// - BrokenPipe, ConnectionReset: after a hang-up
    /// - EINVAL: too many descriptors
    pub fn send(
        &self,
        message: &[u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_with(message, descriptors, SendFlags::NOSIGNAL)
    }

    /// As [`Connection::send`], without waiting.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn send_now(
        &self,
        message: &[u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        self.send_with(message, descriptors, flags)
    }

    fn send_with(
        &self,
        message: &[u8; MESSAGE_BYTES],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // Alignment may leave room for one more.
        if descriptors.len() > DESCRIPTORS
            || (!descriptors.is_empty()
                && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(message)];
        loop {
            match sendmsg(&*self.socket, &bytes, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                result => return Ok(result.map(|_| ())?),
            }
        }
    }

    /// Sends a manager a request with its descriptors.
    ///
    /// # Errors
    /// As [`Connection::send`]; the manager's message when it refused the connection.
    pub fn request(
        &self,
        request: &Request,
        id: u32,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let sent = self.send(&request.emit(id), descriptors);
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        if sent.as_ref().is_err_and(is_closed)
            && let Ok(Some(received)) = self.receive()
            && let Ok((_, Answer::Error(failure))) = Answer::parse(&received.bytes)
        {
            return Err((&failure).into());
        }
        sent
    }

    /// Receives the next message; `None` after the other end's hang-up. An empty message
    /// counts as one.
    ///
    /// # Errors
    /// WouldBlock if there is none, and the end does not block or its time is over; what
    /// the kernel reports.
    pub fn receive(&self) -> io::Result<Option<Received>> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC)
    }

    /// As [`Connection::receive`], without waiting.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_now(&self) -> io::Result<Option<Received>> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MOST))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let Some((bytes, _)) = self.take(&mut ancillary, flags)? else {
            return Ok(None);
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(Some(Received { bytes, descriptors }))
    }

    /// As [`Connection::receive`], from a peer that may not pass descriptors: none that
    /// it passes is installed, or closed, here.
    ///
    /// # Errors
    /// PermissionDenied if descriptors are beside the message, which stays where it is;
    /// else as [`Connection::receive`].
    pub fn receive_bytes(&self) -> io::Result<Option<Received>> {
        let none = &mut RecvAncillaryBuffer::new(&mut []);
        // Peeking at descriptors closes copies of them, never the last.
        let Some((_, flags)) = self.take(none, RecvFlags::PEEK)? else {
            return Ok(None);
        };
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let received = self.take(none, RecvFlags::empty())?;
        Ok(received.map(|(bytes, _)| Received {
            bytes,
            descriptors: Vec::new(),
        }))
    }

    /// Bytes of the next message; for one longer than a message may be, one byte more
    /// than that.
    fn take(
        &self,
        ancillary: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> io::Result<Option<(Vec<u8>, ReturnFlags)>> {
        let mut bytes = vec![0; MESSAGE_BYTES + 1];
        let mut is_reset = false;
        let received = loop {
            let mut slice = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&*self.socket, &mut slice, ancillary, flags) {
                Err(Errno::INTR) => {}
                // The peer closed without reading everything. Data that it sent before
                // follows.
                Err(Errno::CONNRESET) if !is_reset => is_reset = true,
                Err(Errno::CONNRESET) => return Ok(None),
                result => break result?,
            }
        };
        bytes.truncate(received.bytes);
        Ok((received.bytes > 0).then_some((bytes, received.flags)))
    }

    /// Makes the kernel permit or refuse (EPERM at the peer) that the peer passes
    /// descriptors. Before Linux 6.16 the kernel cannot refuse it;
    /// [`Connection::receive_bytes`] must handle them.
    pub fn set_descriptors_allowed(&self, allowed: bool) {
        allow_descriptors(&*self.socket, allowed);
    }

    /// The credentials of the other end.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn peer(&self) -> io::Result<Credentials> {
        Credentials::of_peer(&*self.socket)
    }
}

impl AsFd for Connection {
    /// Becomes readable, for `poll(2)`, when there is a message or the other end has hung
    /// up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket that a manager's applications connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Listens at a path that every user may connect to; credentials decide what each may
    /// do. Replaces what an earlier process left there.
    ///
    /// # Errors
    /// Those the file system and the kernel report.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        chmod(path, Mode::from_bits_retain(0o666))?;
        allow_descriptors(&socket, false);
        listen(&socket, BACKLOG)?;
        Ok(Listener { socket })
    }

    /// Wraps a socket that already listens, as systemd passes it.
    ///
    /// # Errors
    /// EINVAL for one that is not a SOCK_SEQPACKET socket of AF_UNIX; what the kernel
    /// reports.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_domain(&socket)? != AddressFamily::UNIX
            || sockopt::socket_type(&socket)? != SocketType::SEQPACKET
            || !sockopt::socket_acceptconn(&socket)?
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        allow_descriptors(&socket, false);
        Ok(Listener { socket })
    }

    /// Its path; `None` for a name that is not a path.
    pub fn path(&self) -> Option<PathBuf> {
        let name = SocketAddrUnix::try_from(getsockname(&self.socket).ok()?).ok()?;
        let path = name.path_bytes()?;
        Some(OsStr::from_bytes(path).into())
    }

    /// Accepts the next connection, whose end here does not block; `None` when there is
    /// none.
    ///
    /// # Errors
    /// EMFILE, ENFILE; ENOMEM.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Connection::new(socket).map(Some),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    /// Becomes readable, for `poll(2)`, when there is a connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

fn allow_descriptors(socket: impl AsFd, allowed: bool) {
    // Older kernels do not have this option.
    let _ = set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, allowed.into());
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let (one, other) = Connection::pair().unwrap();
        let file = memfd_create("tw-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, b"content").unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        one.send(&[1; MESSAGE_BYTES], &[file.as_fd()]).unwrap();
        one.send(&[2; MESSAGE_BYTES], &[]).unwrap();
        let first = other.receive().unwrap().unwrap();
        assert_eq!(first.bytes, [1; MESSAGE_BYTES]);
        let [received]: [OwnedFd; 1] = first.descriptors.try_into().unwrap();
        let mut text = String::new();
        File::from(received).read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        let second = other.receive().unwrap().unwrap();
        assert_eq!(second.bytes, [2; MESSAGE_BYTES]);
        assert!(second.descriptors.is_empty());
        assert_eq!(one.peer().unwrap().pid, std::process::id());
        drop(one);
        assert!(other.receive().unwrap().is_none());
    }

    #[test]
    fn surplus_descriptors_and_bytes_do_not_pass() {
        let (one, other) = Connection::pair().unwrap();
        let file = memfd_create("tw-test", MemfdFlags::CLOEXEC).unwrap();
        let many = vec![file.as_fd(); DESCRIPTORS + 1];
        let error = one.send(&[0; MESSAGE_BYTES], &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        // From a sender that follows no rule.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let many = vec![file.as_fd(); 64];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = [IoSlice::new(&[7; 1000])];
        sendmsg(&one, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
        let received = other.receive().unwrap().unwrap();
        assert_eq!(received.bytes.len(), MESSAGE_BYTES + 1);
        assert_eq!(received.descriptors.len(), 64);
    }

    #[test]
    fn descriptors_of_a_peer_that_may_pass_none_stay_where_they_are() {
        let (one, other) = Connection::pair().unwrap();
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        one.send(&[1; MESSAGE_BYTES], &[]).unwrap();
        one.send(&[2; MESSAGE_BYTES], &[writes.as_fd()]).unwrap();
        drop(writes);
        let first = other.receive_bytes().unwrap().unwrap();
        assert_eq!(first.bytes, [1; MESSAGE_BYTES]);
        let refused = other.receive_bytes().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // It was not closed.
        rustix::io::ioctl_fionbio(&reads, true).unwrap();
        assert_eq!(rustix::io::read(&reads, &mut [0; 1]), Err(Errno::AGAIN));
        drop(other);
        assert_eq!(rustix::io::read(&reads, &mut [0; 1]), Ok(0));

        let (one, other) = Connection::pair().unwrap();
        other.set_descriptors_allowed(false);
        match one.send(&[1; MESSAGE_BYTES], &[reads.as_fd()]) {
            // Before Linux 6.16.
            Ok(()) => assert!(other.receive_bytes().is_err()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        other.set_descriptors_allowed(true);
        one.send(&[1; MESSAGE_BYTES], &[reads.as_fd()]).unwrap();
    }
}
