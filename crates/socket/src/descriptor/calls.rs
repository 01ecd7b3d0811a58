//! The calls, by number.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::ops::BitOr;
use std::sync::{Arc, Weak};

use super::Allocator;
use super::file::OpenFile;
use super::table::{Closing, Table};
use crate::stack::Stack;
use crate::tcp::ListenOptions;
use crate::udp::BindOptions;
use crate::{TcpListener, TcpStream, UdpSocket};

/// What a new descriptor, or a new open file, starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Calls wait; the descriptor survives [`Descriptors::exec`].
    pub const NONE: Flags = Flags(0);
    /// O_NONBLOCK, SOCK_NONBLOCK: of the open file.
    pub const NONBLOCK: Flags = Flags(1);
    /// FD_CLOEXEC, SOCK_CLOEXEC: of the descriptor.
    pub const CLOEXEC: Flags = Flags(2);

    fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The descriptors of one application on one [`Stack`], and the calls on them.
///
/// Clones share the table, as threads do; [`Descriptors::fork`] copies it. Numbers
/// are the lowest that are free, and their own: the kernel's are others. A
/// descriptor of the kernel's becomes one of these with [`Descriptors::open`].
///
/// A call holds the open file that it works on: closing its descriptor in another
/// thread neither ends the call nor hands it another file, and the file is closed
/// when the call returns. All errors are Linux's; EBADF is every call's.
#[derive(Clone)]
pub struct Descriptors {
    inner: Arc<Inner>,
}

struct Inner {
    // Before the stack: what it holds is closed while that runs.
    table: Table<Arc<OpenFile>>,
    stack: Stack,
}

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors")
            .field("table", &self.inner.table)
            .finish_non_exhaustive()
    }
}

/// Which table of descriptors: no other is taken for it, even after it is gone.
pub(crate) struct Identity(Weak<Inner>);

impl Identity {
    /// True for that table's.
    pub(crate) fn is_of(&self, table: &Descriptors) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&table.inner))
    }

    /// True when the table is dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Descriptors {
    /// An empty table of descriptors below `limit` (RLIMIT_NOFILE, at most
    /// 2^31 − 1). Its memory grows with what is used, not with the limit.
    pub fn new(stack: &Stack, limit: u32) -> Self {
        Self::with_allocator(stack, limit, Allocator::Bitmap)
    }

    /// As [`Descriptors::new`], with a choice of how free numbers are found.
    pub fn with_allocator(stack: &Stack, limit: u32, allocator: Allocator) -> Self {
        Self::of(Table::new(limit, allocator), stack.clone())
    }

    fn of(table: Table<Arc<OpenFile>>, stack: Stack) -> Self {
        Descriptors {
            inner: Arc::new(Inner { table, stack }),
        }
    }

    /// Which table this is.
    pub(crate) fn identity(&self) -> Identity {
        Identity(Arc::downgrade(&self.inner))
    }

    /// The stack that the sockets are of.
    pub fn stack(&self) -> &Stack {
        &self.inner.stack
    }

    // ---- Numbers ------------------------------------------------------------

    /// Gives a number to an open file: a socket made elsewhere, or a descriptor of
    /// the kernel's. [`Flags::NONBLOCK`] makes the file nonblocking; without, it
    /// stays what it is.
    ///
    /// # Errors
    /// EMFILE at the limit, ENOMEM; the file is closed then.
    pub fn open(&self, file: impl Into<OpenFile>, flags: Flags) -> io::Result<i32> {
        let file = file.into();
        if flags.has(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        let close_on_exec = flags.has(Flags::CLOEXEC);
        self.inner.table.open(Arc::new(file), close_on_exec)
    }

    /// Reserves a number before `make` makes what it is for, so that nothing is
    /// made, or taken from a queue, that no number is left for.
    fn open_made<V>(
        &self,
        flags: Flags,
        make: impl FnOnce() -> io::Result<(OpenFile, V)>,
    ) -> io::Result<(i32, V)> {
        let reserved = self.inner.table.reserve(flags.has(Flags::CLOEXEC))?;
        let (file, value) = make()?;
        if flags.has(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        Ok((reserved.install(Arc::new(file)), value))
    }

    /// The open file that a number names now.
    ///
    /// # Errors
    /// EBADF.
    pub fn file(&self, fd: i32) -> io::Result<Arc<OpenFile>> {
        self.inner.table.get(fd)
    }

    /// True for a number that names something. Takes no lock and allocates nothing: a
    /// handler of a signal may ask.
    #[inline]
    pub fn is_open(&self, fd: i32) -> bool {
        self.inner.table.is_open(fd)
    }

    /// Has a number that somebody else has given out (the kernel) name an open file.
    /// What it named before is closed in the same step. Its number is to be closed here
    /// before it is given out again there.
    ///
    /// # Errors
    /// EBADF for a number out of range, ENOMEM; EBUSY while another thread is about to open
    /// it. The file is closed then.
    pub fn install(&self, fd: i32, file: impl Into<OpenFile>, flags: Flags) -> io::Result<()> {
        let file = file.into();
        if flags.has(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        let close_on_exec = flags.has(Flags::CLOEXEC);
        self.inner.table.install(fd, Arc::new(file), close_on_exec)
    }

    /// Closes a number; the open file too if this was its last and no call is
    /// inside it.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> io::Result<()> {
        self.inner.table.close(fd).map(drop)
    }

    /// Closes all numbers from `first` to `last`, or, with the flag
    /// [`CLOSE_RANGE_CLOEXEC`](super::CLOSE_RANGE_CLOEXEC), sets their FD_CLOEXEC.
    ///
    /// # Errors
    /// EINVAL for `first` above `last`, or other flags.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> io::Result<()> {
        self.inner.table.close_range(first, last, flags)
    }

    /// Another number for the same open file.
    ///
    /// # Errors
    /// EBADF, EMFILE, ENOMEM.
    pub fn dup(&self, fd: i32) -> io::Result<i32> {
        self.inner.table.dup(fd)
    }

    /// As [`Descriptors::dup`], the lowest free from `lowest` on: F_DUPFD, and with
    /// [`Flags::CLOEXEC`] F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// EBADF, EMFILE, ENOMEM; EINVAL when `lowest` is negative or not below the
    /// limit.
    pub fn dup_from(&self, fd: i32, lowest: i32, flags: Flags) -> io::Result<i32> {
        let close_on_exec = flags.has(Flags::CLOEXEC);
        self.inner.table.dup_from(fd, lowest, close_on_exec)
    }

    /// Makes `new` name the open file of `old`; what it named is closed in the
    /// same step.
    ///
    /// # Errors
    /// EBADF, also for `new` out of range; EBUSY while another thread is about to
    /// open `new`; ENOMEM.
    pub fn dup2(&self, old: i32, new: i32) -> io::Result<i32> {
        self.inner.table.dup2(old, new)
    }

    /// As [`Descriptors::dup2`], with [`Flags::CLOEXEC`] or without.
    ///
    /// # Errors
    /// As [`Descriptors::dup2`]; EINVAL when both are the same.
    pub fn dup3(&self, old: i32, new: i32, flags: Flags) -> io::Result<i32> {
        let close_on_exec = flags.has(Flags::CLOEXEC);
        self.inner.table.dup3(old, new, close_on_exec)
    }

    /// Whether [`Descriptors::exec`] closes a number (F_GETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn close_on_exec(&self, fd: i32) -> io::Result<bool> {
        self.inner.table.close_on_exec(fd)
    }

    /// Says whether [`Descriptors::exec`] closes a number (F_SETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> io::Result<()> {
        self.inner.table.set_close_on_exec(fd, closes)
    }

    /// What a child gets of `fork`: a table of its own with the same numbers, for
    /// the same open files.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn fork(&self) -> io::Result<Self> {
        Ok(Self::of(self.inner.table.fork()?, self.inner.stack.clone()))
    }

    /// What `execve` does: closes the numbers with FD_CLOEXEC.
    pub fn exec(&self) {
        self.inner.table.exec();
    }

    /// The limit (RLIMIT_NOFILE).
    pub fn limit(&self) -> u32 {
        self.inner.table.limit()
    }

    /// Sets the limit, at most 2^31 − 1; numbers above a lowered one stay open.
    pub fn set_limit(&self, limit: u32) {
        self.inner.table.set_limit(limit);
    }

    /// Numbers in use.
    pub fn len(&self) -> usize {
        self.inner.table.len()
    }

    /// True when no number is in use.
    pub fn is_empty(&self) -> bool {
        self.inner.table.is_empty()
    }

    /// Calls `observer` for each number that no longer names what it named, before it
    /// can name something else; see [`Closing`].
    pub(crate) fn observe<O: Closing + 'static>(&self, observer: &Arc<O>) {
        self.inner.table.observe(observer);
    }

    // ---- Sockets ------------------------------------------------------------

    /// Opens a TCP listener.
    ///
    /// # Errors
    /// EMFILE before anything is bound; what [`TcpListener::bind_with`] reports.
    pub fn listen(
        &self,
        address: SocketAddr,
        options: ListenOptions,
        flags: Flags,
    ) -> io::Result<i32> {
        let listen = || {
            let listener = TcpListener::bind_with(&self.inner.stack, address, options)?;
            Ok((listener.into(), ()))
        };
        self.open_made(flags, listen).map(|(fd, ())| fd)
    }

    /// Opens a UDP socket bound to an address.
    ///
    /// # Errors
    /// EMFILE before anything is bound; what [`UdpSocket::bind_with`] reports.
    pub fn bind(&self, address: SocketAddr, how: BindOptions, flags: Flags) -> io::Result<i32> {
        let bind = || {
            let socket = UdpSocket::bind_with(&self.inner.stack, address, how)?;
            Ok((socket.into(), ()))
        };
        self.open_made(flags, bind).map(|(fd, ())| fd)
    }

    /// Opens a TCP connection. With [`Flags::NONBLOCK`] it returns at once; the
    /// descriptor becomes writable when the connection is there or has failed, and
    /// [`Descriptors::take_error`] says which.
    ///
    /// # Errors
    /// EMFILE before anything is sent; what [`TcpStream::connect`] and
    /// [`TcpStream::connect_nonblocking`] report.
    pub fn connect(&self, address: SocketAddr, flags: Flags) -> io::Result<i32> {
        let connect = || {
            let stack = &self.inner.stack;
            let stream = if flags.has(Flags::NONBLOCK) {
                TcpStream::connect_nonblocking(stack, address)?
            } else {
                TcpStream::connect(stack, address)?
            };
            Ok((stream.into(), ()))
        };
        self.open_made(flags, connect).map(|(fd, ())| fd)
    }

    /// Accepts a connection: its descriptor, and the peer's address if it is an
    /// internet one. The flags are the new descriptor's; nothing is inherited.
    ///
    /// # Errors
    /// EMFILE before a connection is taken; EAGAIN, EINTR; EINVAL for a stream,
    /// EOPNOTSUPP for a datagram socket, ENOTSOCK; what the kernel reports.
    pub fn accept4(&self, fd: i32, flags: Flags) -> io::Result<(i32, Option<SocketAddr>)> {
        let listener = self.file(fd)?;
        self.open_made(flags, || listener.accept())
    }

    /// Connects an open socket: a datagram socket's peer, or a socket of the
    /// kernel's.
    ///
    /// # Errors
    /// As [`OpenFile::connect`].
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

    /// Receives with flags; of a datagram also who sent it.
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

    /// The local address, if it is an internet one.
    ///
    /// # Errors
    /// As [`OpenFile::local_address`].
    pub fn local_address(&self, fd: i32) -> io::Result<Option<SocketAddr>> {
        self.file(fd)?.local_address()
    }

    /// The peer's address, if it is an internet one.
    ///
    /// # Errors
    /// As [`OpenFile::peer_address`].
    pub fn peer_address(&self, fd: i32) -> io::Result<Option<SocketAddr>> {
        self.file(fd)?.peer_address()
    }

    /// Whether calls on the open file return EAGAIN instead of waiting.
    ///
    /// # Errors
    /// EBADF.
    pub fn is_nonblocking(&self, fd: i32) -> io::Result<bool> {
        self.file(fd)?.is_nonblocking()
    }

    /// Makes calls on the open file return EAGAIN instead of waiting, whichever
    /// descriptor they use.
    ///
    /// # Errors
    /// EBADF.
    pub fn set_nonblocking(&self, fd: i32, nonblocking: bool) -> io::Result<()> {
        self.file(fd)?.set_nonblocking(nonblocking)
    }
}
