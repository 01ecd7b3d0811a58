//! Open files, the objects that descriptors name.

use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::socket_error;
use rustix::net::{SocketFlags, acceptfrom_with, getpeername, getsockname};

#[cfg(feature = "atm")]
use tidewall_circuits::{AtmListener, AtmSocket};
use tidewall_readiness::descriptor::TableFile;
use tidewall_readiness::registration::{File, Pollable};
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_readiness::{EpollSet, Events, KernelFile};
use tidewall_socket::pieces::{
    MSG_DONTWAIT, MSG_EOR, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_ZEROCOPY,
    scatter,
};
use tidewall_socket::{AcpListener, AcpStream, Received, TcpListener, TcpStream, UdpSocket};
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::kernel_calls::{self, internet};

/// Most buffers of one call (Linux's UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// The object that a descriptor names: Linux's open file description. Duplicated
/// descriptors share it, O_NONBLOCK included, and so do a parent and its child. It is
/// closed when the last of them is closed and no call uses it.
///
/// An `Arc` of it is its identity. While any `Arc` or `Weak` of it exists, no other open
/// file is at its address, whatever becomes of the descriptor.
///
/// Each call fails as Linux's does on a file of the kind. None raises SIGPIPE. It is an
/// enum because options and the like differ by kind.
#[non_exhaustive]
pub enum OpenFile {
    /// A TCP connection, also one of frames ([`TcpStream::is_framed`]).
    Stream(TcpStream),
    /// A TCP listener.
    Listener(TcpListener),
    /// A UDP socket.
    Datagram(UdpSocket),
    /// A virtual circuit, permanent or by a call.
    #[cfg(feature = "atm")]
    Circuit(AtmSocket),
    /// A listener for calls.
    #[cfg(feature = "atm")]
    CircuitListener(AtmListener),
    /// A kernel descriptor of any kind.
    Kernel(KernelFile),
    /// An epoll set.
    Epoll(EpollSet),
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            OpenFile::Stream(_) => "Stream",
            OpenFile::Listener(_) => "Listener",
            OpenFile::Datagram(_) => "Datagram",
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) => "Circuit",
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(_) => "CircuitListener",
            OpenFile::Kernel(_) => "Kernel",
            OpenFile::Epoll(_) => "Epoll",
        };
        f.debug_struct(kind).finish_non_exhaustive()
    }
}

impl From<TcpStream> for OpenFile {
    fn from(stream: TcpStream) -> Self {
        OpenFile::Stream(stream)
    }
}

impl From<AcpStream> for OpenFile {
    fn from(stream: AcpStream) -> Self {
        stream.into_stream().into()
    }
}

impl From<AcpListener> for OpenFile {
    fn from(listener: AcpListener) -> Self {
        listener.into_listener().into()
    }
}

impl From<TcpListener> for OpenFile {
    fn from(listener: TcpListener) -> Self {
        OpenFile::Listener(listener)
    }
}

impl From<UdpSocket> for OpenFile {
    fn from(socket: UdpSocket) -> Self {
        OpenFile::Datagram(socket)
    }
}

#[cfg(feature = "atm")]
impl From<AtmSocket> for OpenFile {
    fn from(socket: AtmSocket) -> Self {
        #[cfg(feature = "atm")]
        OpenFile::Circuit(socket)
    }
}

#[cfg(feature = "atm")]
impl From<AtmListener> for OpenFile {
    fn from(listener: AtmListener) -> Self {
        #[cfg(feature = "atm")]
        OpenFile::CircuitListener(listener)
    }
}

impl From<OwnedFd> for OpenFile {
    fn from(descriptor: OwnedFd) -> Self {
        OpenFile::Kernel(descriptor.into())
    }
}

impl From<EpollSet> for OpenFile {
    fn from(set: EpollSet) -> Self {
        OpenFile::Epoll(set)
    }
}

fn error<V>(errno: i32) -> io::Result<V> {
    Err(io::Error::from_raw_os_error(errno))
}

/// Returns EINVAL for more buffers than Linux accepts.
fn check_pieces<T>(pieces: &[T]) -> io::Result<()> {
    if pieces.len() > PIECES_MAX {
        return error(libc::EINVAL);
    }
    Ok(())
}

/// Returns EOPNOTSUPP for flags that have no meaning here.
fn check_flags(flags: i32, known: i32) -> io::Result<()> {
    if flags & !(known | MSG_DONTWAIT | MSG_NOSIGNAL) != 0 {
        return error(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// Returns the bytes of all pieces; those of a single piece without a copy.
fn joined<'a>(buffers: &'a [IoSlice<'_>]) -> Cow<'a, [u8]> {
    match buffers {
        [one] => Cow::Borrowed(one),
        many => many
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .collect(),
    }
}

impl OpenFile {
    // ---- Reading ------------------------------------------------------------

    /// Reads into several buffers, in turn: `read` and `readv`.
    ///
    /// # Errors
    /// EAGAIN, EINTR; ENOTCONN for a listener; EINVAL for over 1,024 buffers;
    /// what the connection, ICMP or the kernel reports.
    pub fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            OpenFile::Kernel(fd) => {
                check_pieces(buffers)?;
                Ok(rustix::io::readv(fd, buffers)?)
            }
            OpenFile::Epoll(_) => error(libc::EINVAL),
            _ => self.receive(buffers, 0).map(|(length, _)| length),
        }
    }

    /// `recvmsg`: as [`OpenFile::read`], and returns the sender of a datagram. `flags`:
    ///
    /// - any file: MSG_DONTWAIT, MSG_NOSIGNAL;
    /// - a stream: MSG_PEEK (the first buffer alone), MSG_WAITALL, MSG_TRUNC;
    /// - a datagram: MSG_PEEK, MSG_TRUNC;
    /// - a kernel file: any that the kernel accepts.
    ///
    /// # Errors
    /// As [`OpenFile::read`]; ENOTSOCK; EOPNOTSUPP for other flags.
    pub fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        check_pieces(buffers)?;
        match self {
            OpenFile::Stream(stream) => {
                check_flags(flags, MSG_PEEK | MSG_WAITALL | MSG_TRUNC)?;
                receive_stream(stream, buffers, flags).map(|length| (length, None))
            }
            OpenFile::Listener(_) => error(libc::ENOTCONN),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(_) => error(libc::ENOTCONN),
            OpenFile::Datagram(socket) => {
                check_flags(flags, MSG_PEEK | MSG_TRUNC | MSG_WAITALL)?;
                let mut result = (0, None);
                let each = |received: Received<'_>| {
                    let copied = scatter(&[received.payload], buffers);
                    let whole = flags & MSG_TRUNC != 0;
                    let length = if whole {
                        received.payload.len()
                    } else {
                        copied
                    };
                    result = (length, Some(received.source));
                };
                let at_once = flags & MSG_DONTWAIT != 0;
                match flags & MSG_PEEK {
                    0 => socket.receive_batch(1, at_once, each)?,
                    _ => socket.peek(at_once, each)?,
                };
                Ok(result)
            }
            #[cfg(feature = "atm")]
            OpenFile::Circuit(socket) => {
                check_flags(flags, 0)?;
                let mut copied = 0;
                socket.receive_batch(1, flags & MSG_DONTWAIT != 0, &mut |received| {
                    copied = scatter(&[received.payload], buffers);
                })?;
                Ok((copied, None))
            }
            OpenFile::Kernel(fd) => kernel_calls::receive(fd, buffers, flags),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    // ---- Writing ------------------------------------------------------------

    /// Writes several buffers, in turn: `write` and `writev`.
    ///
    /// # Errors
    /// EAGAIN, EINTR. EPIPE, also for a listener. EDESTADDRREQ for a datagram
    /// without a peer. EINVAL for over 1,024 buffers. Errors that the connection, ICMP
    /// or the kernel reports.
    pub fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            OpenFile::Kernel(fd) => {
                check_pieces(buffers)?;
                Ok(rustix::io::writev(fd, buffers)?)
            }
            OpenFile::Epoll(_) => error(libc::EINVAL),
            _ => self.send(buffers, None, 0),
        }
    }

    /// `sendmsg`: as [`OpenFile::write`]. A datagram goes to the address if there is one;
    /// a stream ignores it, as on Linux. `flags`:
    ///
    /// - any file: MSG_NOSIGNAL;
    /// - a stream or a circuit: MSG_DONTWAIT;
    /// - a stream: MSG_MORE, MSG_EOR, MSG_ZEROCOPY;
    /// - a kernel file: any that the kernel accepts.
    ///
    /// # Errors
    /// As [`OpenFile::write`]; ENOTSOCK; EOPNOTSUPP for other flags; what
    /// [`UdpSocket::send_to`] reports.
    pub fn send(
        &self,
        buffers: &[IoSlice<'_>],
        destination: Option<SocketAddr>,
        flags: i32,
    ) -> io::Result<usize> {
        check_pieces(buffers)?;
        match self {
            OpenFile::Stream(stream) => {
                check_flags(flags, MSG_MORE | MSG_EOR | MSG_ZEROCOPY)?;
                stream.send_pieces(buffers, flags)
            }
            OpenFile::Listener(_) => error(libc::EPIPE),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(_) => error(libc::ENOTCONN),
            OpenFile::Datagram(socket) => {
                check_flags(flags, 0)?;
                let payload = joined(buffers);
                match destination {
                    Some(destination) => socket.send_to(&payload, destination),
                    None => socket.send(&payload),
                }
            }
            #[cfg(feature = "atm")]
            OpenFile::Circuit(socket) => {
                if destination.is_some() {
                    return error(libc::EISCONN);
                }
                check_flags(flags, 0)?;
                socket.send_at(&joined(buffers), flags & MSG_DONTWAIT != 0)
            }
            OpenFile::Kernel(fd) => kernel_calls::send(fd, buffers, destination, flags),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    // ---- Connections --------------------------------------------------------

    /// Accepts a connection; returns the peer's address if it is an internet one.
    ///
    /// # Errors
    /// EINVAL for a stream, EOPNOTSUPP for a datagram socket, ENOTSOCK; what
    /// [`TcpListener::accept`] and [`AtmListener::accept`] report.
    pub fn accept(&self) -> io::Result<(OpenFile, Option<SocketAddr>)> {
        match self {
            OpenFile::Listener(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((stream.into(), Some(peer)))
            }
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(listener) => {
                let (socket, _) = listener.accept()?;
                Ok((socket.into(), None))
            }
            OpenFile::Stream(_) => error(libc::EINVAL),
            OpenFile::Datagram(_) => error(libc::EOPNOTSUPP),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) => error(libc::EOPNOTSUPP),
            OpenFile::Kernel(fd) => {
                let (accepted, peer) = acceptfrom_with(fd, SocketFlags::CLOEXEC)?;
                Ok((accepted.into(), internet(peer)))
            }
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    /// Connects an open socket: sets a datagram socket's peer, or connects a kernel
    /// socket.
    ///
    /// # Errors
    /// EISCONN for a stream or a listener; ENOTSOCK; what
    /// [`UdpSocket::connect`] or the kernel reports.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        match self {
            OpenFile::Stream(_) | OpenFile::Listener(_) => error(libc::EISCONN),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) | OpenFile::CircuitListener(_) => error(libc::EISCONN),
            OpenFile::Datagram(socket) => socket.connect(peer),
            OpenFile::Kernel(fd) => Ok(rustix::net::connect(fd, &peer)?),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    /// Closes one half of a connection, or both.
    ///
    /// # Errors
    /// ENOTSOCK. ENOTCONN, also for a listener that was shut down before
    /// ([`TcpListener::shutdown`]). A datagram socket without a peer reports ENOTCONN too,
    /// but is shut down all the same, as by Linux.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            OpenFile::Stream(stream) => stream.shutdown(how),
            OpenFile::Listener(listener) => listener.shutdown(how),
            OpenFile::Datagram(socket) => socket.shutdown(how),
            // Nothing of it closes by halves, and Linux reports no error.
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) | OpenFile::CircuitListener(_) => Ok(()),
            OpenFile::Kernel(fd) => {
                let how = match how {
                    Shutdown::Read => rustix::net::Shutdown::Read,
                    Shutdown::Write => rustix::net::Shutdown::Write,
                    Shutdown::Both => rustix::net::Shutdown::Both,
                };
                Ok(rustix::net::shutdown(fd, how)?)
            }
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// ENOTSOCK; what the kernel reports.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            OpenFile::Stream(stream) => stream.take_error(),
            OpenFile::Listener(listener) => listener.take_error(),
            OpenFile::Datagram(socket) => socket.take_error(),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(socket) => socket.take_error(),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(listener) => listener.take_error(),
            OpenFile::Kernel(fd) => Ok(socket_error(fd)?.err().map(io::Error::from)),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    /// Returns the local address (`getsockname`), if it is an internet one.
    ///
    /// # Errors
    /// ENOTSOCK; what the kernel reports.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            OpenFile::Stream(stream) => stream.local_addr().map(Some),
            OpenFile::Listener(listener) => listener.local_addr().map(Some),
            OpenFile::Datagram(socket) => socket.local_addr().map(Some),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) | OpenFile::CircuitListener(_) => Ok(None),
            OpenFile::Kernel(fd) => Ok(internet(Some(getsockname(fd)?))),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    /// Returns the peer's address (`getpeername`), if it is an internet one.
    ///
    /// # Errors
    /// ENOTCONN, ENOTSOCK.
    pub fn peer_address(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            OpenFile::Stream(stream) => stream.peer_addr().map(Some),
            OpenFile::Listener(_) => error(libc::ENOTCONN),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(_) => error(libc::ENOTCONN),
            OpenFile::Datagram(socket) => socket.peer_addr().map(Some),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(_) => Ok(None),
            OpenFile::Kernel(fd) => Ok(internet(getpeername(fd)?)),
            OpenFile::Epoll(_) => error(libc::ENOTSOCK),
        }
    }

    // ---- Status -------------------------------------------------------------

    /// Reports whether calls return EAGAIN when they would block (O_NONBLOCK).
    ///
    /// # Errors
    /// The kernel's own errors.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        match self {
            OpenFile::Stream(stream) => Ok(stream.is_nonblocking()),
            OpenFile::Listener(listener) => Ok(listener.is_nonblocking()),
            OpenFile::Datagram(socket) => Ok(socket.is_nonblocking()),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(socket) => Ok(socket.is_nonblocking()),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(listener) => Ok(listener.is_nonblocking()),
            OpenFile::Kernel(fd) => Ok(fcntl_getfl(fd)?.contains(OFlags::NONBLOCK)),
            // The flag has no meaning for an epoll set.
            OpenFile::Epoll(_) => Ok(false),
        }
    }

    /// Makes calls return EAGAIN when they would block, or block again, for every
    /// descriptor that names this open file.
    ///
    /// # Errors
    /// The kernel's own errors.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            OpenFile::Stream(stream) => stream.set_nonblocking(nonblocking),
            OpenFile::Listener(listener) => listener.set_nonblocking(nonblocking),
            OpenFile::Datagram(socket) => socket.set_nonblocking(nonblocking),
            #[cfg(feature = "atm")]
            OpenFile::Circuit(socket) => socket.set_nonblocking(nonblocking),
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener(listener) => listener.set_nonblocking(nonblocking),
            OpenFile::Kernel(fd) => Ok(ioctl_fionbio(fd, nonblocking)?),
            OpenFile::Epoll(_) => Ok(()),
        }
    }
}

/// Calls a method of whatever a file is, without a second virtual call.
macro_rules! of_kind {
    ($file:expr, $it:ident => $call:expr) => {
        match $file {
            OpenFile::Stream($it) => $call,
            OpenFile::Listener($it) => $call,
            OpenFile::Datagram($it) => $call,
            #[cfg(feature = "atm")]
            OpenFile::Circuit($it) => $call,
            #[cfg(feature = "atm")]
            OpenFile::CircuitListener($it) => $call,
            OpenFile::Kernel($it) => $call,
            OpenFile::Epoll($it) => $call,
        }
    };
}

impl File for OpenFile {
    fn pollable(&self) -> Option<Arc<dyn Pollable>> {
        of_kind!(self, it => File::pollable(it))
    }

    fn wait_queue(&self) -> &WaitQueue {
        of_kind!(self, it => File::wait_queue(it))
    }

    fn descriptor(&self) -> i32 {
        of_kind!(self, it => File::descriptor(it))
    }

    fn is_of(&self, stack: &StackHandle) -> bool {
        of_kind!(self, it => File::is_of(it, stack))
    }

    fn can_poll(&self) -> bool {
        of_kind!(self, it => File::can_poll(it))
    }

    fn epoll_set(&self) -> Option<&EpollSet> {
        of_kind!(self, it => File::epoll_set(it))
    }

    fn ready_now(&self, core: &Core) -> Option<Events> {
        of_kind!(self, it => File::ready_now(it, core))
    }
}

impl TableFile for OpenFile {
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        OpenFile::set_nonblocking(self, nonblocking)
    }
}

/// MSG_WAITALL, beside the flags that [`TcpStream::receive_pieces`] supports.
fn receive_stream(
    stream: &TcpStream,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> io::Result<usize> {
    if flags & MSG_WAITALL == 0 || flags & MSG_PEEK != 0 || stream.is_framed() {
        return stream.receive_pieces(buffers, flags);
    }
    let mut received = 0;
    for buffer in buffers.iter_mut() {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match stream.receive_pieces(&mut [IoSliceMut::new(rest)], flags & MSG_DONTWAIT) {
                Ok(0) => return Ok(received),
                Ok(length) => {
                    filled += length;
                    received += length;
                }
                // Received data is not lost to an error: the next call reports it.
                Err(_) if received > 0 => return Ok(received),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(received)
}
