//! The table of one application's descriptors, with the calls on sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;

use tidewall_readiness::descriptor::{self, Allocator, Flags};
use tidewall_socket::{BindOptions, ListenOptions, TcpListener, TcpStream, UdpSocket};

use crate::{OpenFile, Stack};

/// Descriptors of one application, with the calls of POSIX.
///
/// Opening, closing, duplicating, `select`, `poll`, epoll and event queues are those of
/// [`tidewall_readiness::Descriptors`].
///
/// ```no_run
/// use tidewall::descriptor::Flags;
/// use tidewall::{Descriptors, EmbeddedConfig, ListenOptions, Stack};
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let table = Descriptors::new(&stack, 1024);
/// let address = ([0, 0, 0, 0], 80).into();
/// let listener = table.listen(address, ListenOptions::default(), Flags::default())?;
/// let (connection, peer) = table.accept4(listener, Flags::NONBLOCK)?;
/// println!("descriptor {connection}: {peer:?}");
/// table.close(connection)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Descriptors {
    table: descriptor::Descriptors<OpenFile>,
    stack: Stack,
}

impl Deref for Descriptors {
    type Target = descriptor::Descriptors<OpenFile>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl Descriptors {
    /// Creates an empty table of descriptors below `limit` (RLIMIT_NOFILE, at most
    /// 2^31 − 1). Its memory grows with the descriptors in use, not with the limit.
    pub fn new(stack: &Stack, limit: u32) -> Self {
        Self::with_allocator(stack, limit, Allocator::Bitmap)
    }

    /// As [`Descriptors::new`], with a choice of how free descriptors are found.
    pub fn with_allocator(stack: &Stack, limit: u32, allocator: Allocator) -> Self {
        let table = descriptor::Descriptors::with_allocator(stack, limit, allocator);
        let stack = stack.clone();
        Descriptors { table, stack }
    }

    /// Returns the stack of the sockets.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the table of a child process, with the same open files (fork(2)).
    ///
    /// # Errors
    /// ENOMEM.
    pub fn fork(&self) -> io::Result<Self> {
        let table = self.table.fork()?;
        let stack = self.stack.clone();
        Ok(Descriptors { table, stack })
    }

    // ---- Sockets ------------------------------------------------------------

    /// Opens a TCP listener.
    ///
    /// # Errors
    /// EMFILE before anything is bound; those of [`TcpListener::bind_with`].
    pub fn listen(
        &self,
        address: SocketAddr,
        options: ListenOptions,
        flags: Flags,
    ) -> io::Result<i32> {
        let listen = || {
            let listener = TcpListener::bind_with(&self.stack, address, options)?;
            Ok((listener.into(), ()))
        };
        self.table.open_made(flags, listen).map(|(fd, ())| fd)
    }

    /// Opens a UDP socket bound to an address.
    ///
    /// # Errors
    /// EMFILE before anything is bound; those of [`UdpSocket::bind_with`].
    pub fn bind(&self, address: SocketAddr, how: BindOptions, flags: Flags) -> io::Result<i32> {
        let bind = || {
            let socket = UdpSocket::bind_with(&self.stack, address, how)?;
            Ok((socket.into(), ()))
        };
        self.table.open_made(flags, bind).map(|(fd, ())| fd)
    }

    /// Opens a TCP connection. With [`Flags::NONBLOCK`] it returns at once. The
    /// descriptor becomes writable when the connection is established or has failed, and
    /// [`Descriptors::take_error`] reports which.
    ///
    /// # Errors
    /// EMFILE before anything is sent; those of [`TcpStream::connect`] and
    /// [`TcpStream::connect_nonblocking`].
    pub fn connect(&self, address: SocketAddr, flags: Flags) -> io::Result<i32> {
        let connect = || {
            let stack = &self.stack;
            let stream = if flags.contains(Flags::NONBLOCK) {
                TcpStream::connect_nonblocking(stack, address)?
            } else {
                TcpStream::connect(stack, address)?
            };
            Ok((stream.into(), ()))
        };
        self.table.open_made(flags, connect).map(|(fd, ())| fd)
    }

    /// Accepts a connection. Returns its descriptor, and the peer's address if it is an
    /// internet one. The flags are the new descriptor's; nothing is inherited.
    ///
    /// # Errors
    /// EMFILE before a connection is accepted; EAGAIN, EINTR; EINVAL for a stream,
    /// EOPNOTSUPP for a datagram socket, ENOTSOCK; the kernel's errors.
    pub fn accept4(&self, fd: i32, flags: Flags) -> io::Result<(i32, Option<SocketAddr>)> {
        let listener = self.file(fd)?;
        self.table.open_made(flags, || listener.accept())
    }

    /// Connects an open socket: sets a datagram socket's peer, or connects a kernel
    /// socket.
    ///
    /// # Errors
    /// Those of [`OpenFile::connect`].
    pub fn connect_to(&self, fd: i32, peer: SocketAddr) -> io::Result<()> {
        self.file(fd)?.connect(peer)
    }

    // ---- Data ---------------------------------------------------------------

    /// Reads; 0 at the end.
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    pub fn read(&self, fd: i32, buffer: &mut [u8]) -> io::Result<usize> {
        self.file(fd)?.read(&mut [IoSliceMut::new(buffer)])
    }

    /// Reads into several buffers.
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    pub fn readv(&self, fd: i32, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.file(fd)?.read(buffers)
    }

    /// Writes.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn write(&self, fd: i32, buffer: &[u8]) -> io::Result<usize> {
        self.file(fd)?.write(&[IoSlice::new(buffer)])
    }

    /// Writes several buffers.
    ///
    /// # Errors
    /// As [`OpenFile::write`].
    pub fn writev(&self, fd: i32, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.file(fd)?.write(buffers)
    }

    /// Receives with flags (`recv`).
    ///
    /// # Errors
    /// As [`OpenFile::receive`].
    pub fn recv(&self, fd: i32, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
        self.recvfrom(fd, buffer, flags).map(|(length, _)| length)
    }

    /// Receives with flags; for a datagram, also returns the sender.
    ///
    /// # Errors
    /// As [`OpenFile::receive`].
    pub fn recvfrom(
        &self,
        fd: i32,
        buffer: &mut [u8],
        flags: i32,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        self.file(fd)?
            .receive(&mut [IoSliceMut::new(buffer)], flags)
    }

    /// Sends with flags (`send`).
    ///
    /// # Errors
    /// As [`OpenFile::send`].
    pub fn send(&self, fd: i32, buffer: &[u8], flags: i32) -> io::Result<usize> {
        self.file(fd)?.send(&[IoSlice::new(buffer)], None, flags)
    }

    /// Sends a datagram to an address.
    ///
    /// # Errors
    /// As [`OpenFile::send`].
    pub fn sendto(
        &self,
        fd: i32,
        buffer: &[u8],
        flags: i32,
        destination: SocketAddr,
    ) -> io::Result<usize> {
        self.file(fd)?
            .send(&[IoSlice::new(buffer)], Some(destination), flags)
    }

    /// Closes one half of a connection, or both.
    ///
    /// # Errors
    /// As [`OpenFile::shutdown`].
    pub fn shutdown(&self, fd: i32, how: Shutdown) -> io::Result<()> {
        self.file(fd)?.shutdown(how)
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// As [`OpenFile::take_error`].
    pub fn take_error(&self, fd: i32) -> io::Result<Option<io::Error>> {
        self.file(fd)?.take_error()
    }

    /// Returns the local address, if it is an internet one.
    ///
    /// # Errors
    /// As [`OpenFile::local_address`].
    pub fn local_address(&self, fd: i32) -> io::Result<Option<SocketAddr>> {
        self.file(fd)?.local_address()
    }

    /// Returns the peer's address, if it is an internet one.
    ///
    /// # Errors
    /// As [`OpenFile::peer_address`].
    pub fn peer_address(&self, fd: i32) -> io::Result<Option<SocketAddr>> {
        self.file(fd)?.peer_address()
    }

    /// Reports whether calls on the open file return EAGAIN when they would block.
    ///
    /// # Errors
    /// EBADF.
    pub fn is_nonblocking(&self, fd: i32) -> io::Result<bool> {
        self.file(fd)?.is_nonblocking()
    }

    /// Makes calls on the open file return EAGAIN when they would block, whichever
    /// descriptor they use.
    ///
    /// # Errors
    /// EBADF.
    pub fn set_nonblocking(&self, fd: i32, nonblocking: bool) -> io::Result<()> {
        self.file(fd)?.set_nonblocking(nonblocking)
    }
}
