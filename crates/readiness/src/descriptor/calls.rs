//! The calls, by descriptor.

use std::any::Any;
use std::io;
use std::ops::BitOr;
use std::sync::{Arc, Weak};

use tidewall_stack::StackHandle;

use super::Allocator;
use super::table::{Closing, Table};
use crate::epoll::EpollSet;
use crate::registration::File;

/// Initial flags of a new descriptor, or of a new open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Calls block; the descriptor survives [`Descriptors::exec`].
    pub const NONE: Flags = Flags(0);
    /// O_NONBLOCK, SOCK_NONBLOCK: a flag of the open file.
    pub const NONBLOCK: Flags = Flags(1);
    /// FD_CLOEXEC, SOCK_CLOEXEC: a flag of the descriptor.
    pub const CLOEXEC: Flags = Flags(2);

    /// Returns true when it has any of `other`.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The descriptors of one application on one [`StackHandle`], and the calls on them.
///
/// Clones share the table, as threads do; [`Descriptors::fork`] copies it. Each new
/// descriptor is the lowest free one. They are independent of kernel descriptors;
/// [`Descriptors::open`] adds a kernel descriptor to the table.
///
/// A call holds the open file that it works on. Closing its descriptor in another thread
/// neither ends the call nor gives it another file; the file is closed when the call
/// returns. All errors are Linux's; every call may report EBADF.
pub struct Descriptors<F> {
    inner: Arc<Inner<F>>,
}

impl<F> Clone for Descriptors<F> {
    fn clone(&self) -> Self {
        Descriptors {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<F> {
    // Before the stack: files that it holds are closed while the stack runs.
    table: Table<Arc<F>>,
    stack: StackHandle,
}

impl<F> std::fmt::Debug for Descriptors<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors")
            .field("table", &self.inner.table)
            .finish_non_exhaustive()
    }
}

/// A file that descriptors name.
pub trait TableFile: File + From<EpollSet> + 'static {
    /// Sets O_NONBLOCK.
    ///
    /// # Errors
    /// The kernel's errors, for a kernel descriptor.
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;
}

/// A table of descriptors, as calls that wait for many of them see it.
pub trait FileTable {
    /// Returns the stack of the sockets.
    fn stack(&self) -> &StackHandle;

    /// The open file that a descriptor names now.
    ///
    /// # Errors
    /// EBADF.
    fn open_file(&self, fd: i32) -> io::Result<Arc<dyn File>>;

    /// Which table this is, for as long as it lives.
    fn address(&self) -> usize;

    /// The same, for one that may outlive it.
    fn identity(&self) -> Identity;

    /// Notifies `observer` of each descriptor that is closed.
    fn observe(&self, observer: Weak<dyn Closing>);
}

/// Identifies a descriptor table. No other table matches it, even after the table is
/// dropped.
pub struct Identity(Weak<dyn Any + Send + Sync>);

impl Identity {
    /// Returns true for the table at an address ([`FileTable::address`]).
    pub fn is_at(&self, address: usize) -> bool {
        self.0.as_ptr().addr() == address
    }

    /// Returns true when the table is dropped.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl<F: TableFile> FileTable for Descriptors<F> {
    fn stack(&self) -> &StackHandle {
        &self.inner.stack
    }

    fn open_file(&self, fd: i32) -> io::Result<Arc<dyn File>> {
        Ok(self.inner.table.get(fd)?)
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    fn identity(&self) -> Identity {
        let inner: Arc<dyn Any + Send + Sync> = self.inner.clone();
        Identity(Arc::downgrade(&inner))
    }

    fn observe(&self, observer: Weak<dyn Closing>) {
        self.inner.table.observe(observer);
    }
}

impl<F: TableFile> Descriptors<F> {
    /// Creates an empty table of descriptors below `limit` (RLIMIT_NOFILE, at most 2^31 −
    /// 1). Its memory grows with use, not with the limit.
    pub fn new(stack: &StackHandle, limit: u32) -> Self {
        Self::with_allocator(stack, limit, Allocator::Bitmap)
    }

    /// As [`Descriptors::new`], with a choice of allocator.
    pub fn with_allocator(stack: &StackHandle, limit: u32, allocator: Allocator) -> Self {
        Self::of(Table::new(limit, allocator), stack.clone())
    }

    fn of(table: Table<Arc<F>>, stack: StackHandle) -> Self {
        Descriptors {
            inner: Arc::new(Inner { table, stack }),
        }
    }

    /// The stack that the sockets are of.
    pub fn stack(&self) -> &StackHandle {
        &self.inner.stack
    }

    // ---- Numbers ------------------------------------------------------------

    /// Assigns a descriptor to an open file: a socket created elsewhere, or a kernel
    /// descriptor. [`Flags::NONBLOCK`] makes the file nonblocking; without it, the file
    /// is unchanged.
    ///
    /// # Errors
    /// EMFILE at the limit, ENOMEM; the file is closed then.
    pub fn open(&self, file: impl Into<F>, flags: Flags) -> io::Result<i32> {
        let file = file.into();
        if flags.contains(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        let close_on_exec = flags.contains(Flags::CLOEXEC);
        self.inner.table.open(Arc::new(file), close_on_exec)
    }

    /// Reserves a descriptor before `make` creates its file. Without a free descriptor
    /// nothing is created, or taken from a queue.
    pub fn open_made<V>(
        &self,
        flags: Flags,
        make: impl FnOnce() -> io::Result<(F, V)>,
    ) -> io::Result<(i32, V)> {
        let reserved = self.inner.table.reserve(flags.contains(Flags::CLOEXEC))?;
        let (file, value) = make()?;
        if flags.contains(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        Ok((reserved.install(Arc::new(file)), value))
    }

    /// Returns the open file that a descriptor names now.
    ///
    /// # Errors
    /// EBADF.
    pub fn file(&self, fd: i32) -> io::Result<Arc<F>> {
        self.inner.table.get(fd)
    }

    /// Returns true for an open descriptor. Takes no lock and allocates nothing, so a
    /// signal handler may call it.
    #[inline]
    pub fn is_open(&self, fd: i32) -> bool {
        self.inner.table.is_open(fd)
    }

    /// Makes a descriptor that another allocator (the kernel) has assigned name an open
    /// file. The file that it named before is closed in the same step. The descriptor
    /// must be closed here before it is assigned again there.
    ///
    /// # Errors
    /// EBADF for a descriptor out of range, ENOMEM; EBUSY while another thread is about to
    /// open it. The file is closed then.
    pub fn install(&self, fd: i32, file: impl Into<F>, flags: Flags) -> io::Result<()> {
        let file = file.into();
        if flags.contains(Flags::NONBLOCK) {
            file.set_nonblocking(true)?;
        }
        let close_on_exec = flags.contains(Flags::CLOEXEC);
        self.inner.table.install(fd, Arc::new(file), close_on_exec)
    }

    /// Closes a descriptor; also the open file if this was its last descriptor and no
    /// call uses it.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> io::Result<()> {
        self.inner.table.close(fd).map(drop)
    }

    /// Closes all descriptors from `first` to `last`. With the flag
    /// [`CLOSE_RANGE_CLOEXEC`](super::CLOSE_RANGE_CLOEXEC) it sets their FD_CLOEXEC in
    /// place of that.
    ///
    /// # Errors
    /// EINVAL for `first` above `last`, or other flags.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> io::Result<()> {
        self.inner.table.close_range(first, last, flags)
    }

    /// Returns another descriptor for the same open file.
    ///
    /// # Errors
    /// EBADF, EMFILE, ENOMEM.
    pub fn dup(&self, fd: i32) -> io::Result<i32> {
        self.inner.table.dup(fd)
    }

    /// As [`Descriptors::dup`], with the lowest free descriptor from `lowest` on:
    /// F_DUPFD, and with [`Flags::CLOEXEC`] F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// EBADF, EMFILE, ENOMEM; EINVAL when `lowest` is negative or not below the
    /// limit.
    pub fn dup_from(&self, fd: i32, lowest: i32, flags: Flags) -> io::Result<i32> {
        let close_on_exec = flags.contains(Flags::CLOEXEC);
        self.inner.table.dup_from(fd, lowest, close_on_exec)
    }

    /// Makes `new` name the open file of `old`; the file that it named is closed in the
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
    /// Those of [`Descriptors::dup2`]; EINVAL when both are the same.
    pub fn dup3(&self, old: i32, new: i32, flags: Flags) -> io::Result<i32> {
        let close_on_exec = flags.contains(Flags::CLOEXEC);
        self.inner.table.dup3(old, new, close_on_exec)
    }

    /// Reports whether [`Descriptors::exec`] closes a descriptor (F_GETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn close_on_exec(&self, fd: i32) -> io::Result<bool> {
        self.inner.table.close_on_exec(fd)
    }

    /// Sets whether [`Descriptors::exec`] closes a descriptor (F_SETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> io::Result<()> {
        self.inner.table.set_close_on_exec(fd, closes)
    }

    /// Returns the table that a child of `fork` receives: the same descriptors for the
    /// same open files, in a table of its own.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn fork(&self) -> io::Result<Self> {
        Ok(Self::of(self.inner.table.fork()?, self.inner.stack.clone()))
    }

    /// Closes the descriptors with FD_CLOEXEC, as `execve` does.
    pub fn exec(&self) {
        self.inner.table.exec();
    }

    /// Returns the limit (RLIMIT_NOFILE).
    pub fn limit(&self) -> u32 {
        self.inner.table.limit()
    }

    /// Sets the limit, at most 2^31 − 1; descriptors above a lowered limit stay open.
    pub fn set_limit(&self, limit: u32) {
        self.inner.table.set_limit(limit);
    }

    /// Returns the number of open descriptors.
    pub fn len(&self) -> usize {
        self.inner.table.len()
    }

    /// Returns true when no descriptor is open.
    pub fn is_empty(&self) -> bool {
        self.inner.table.is_empty()
    }
}
