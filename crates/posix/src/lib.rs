//! The C interface to sockets: descriptors, levels, flags and bytes.
//!
//! Lives here: [`Posix`], the calls of sockets(7) over the sockets of `tidewall_socket`,
//! with Linux's constants, layouts and error numbers; and [`raw`], the accesses of those
//! calls to a C caller's memory. Does not live here: protocol rules, readiness, waiting.
//! A blocking call waits in the underlying socket.
//!
//! Read first: socket(7), tcp(7), epoll(7), recvmsg(2); docs/deviations.md.
//!
//! ```text
//!  number ─► Descriptors ─► OpenFile ─► TcpStream, TcpListener, UdpSocket, AtmSocket
//!     └────► Socket: family, options, address bound to, until one of those is there
//! ```
//!
//! Until it connects or listens, a socket is an unconnected kernel socket under its
//! descriptor. `connect` or `listen` replace that socket, so an epoll set that holds the
//! descriptor must be updated.
#![deny(unsafe_code)]

mod address;
mod adopt;
mod atm;
mod control;
mod datagram;
mod info;
mod message;
mod option;
#[allow(unsafe_code)]
pub mod raw;
mod readiness;
mod socket;
mod svc;
mod transfer;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidewall::{Descriptors, OpenFile, Stack};

pub use adopt::{Accepted, OptionsSet};
pub use atm::{PvcAddress, SO_ATMPVC, SO_ATMQOS, SO_SETCLP};
pub use info::TcpInfo;
pub use message::{ControlMessage, ExtendedError, Received, TCP_CM_INQ};
pub use svc::{SO_ATMSAP, SvcAddress};
pub use tidewall::readiness::PollFd;
pub use tidewall_protocol::tcp::Errno;

use socket::{Socket, Sockets};

/// The options of a TCP socket, as level and name. Values that a program sets before the stack
/// adopts its socket are carried over.
pub fn stream_options() -> impl Iterator<Item = (i32, i32)> {
    option::TABLE.into_iter().map(|row| row.which)
}

/// The result of a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Configuration of a [`Posix`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PosixConfig {
    /// The lowest descriptor to allocate.
    pub first: i32,
    /// Descriptors are below this (RLIMIT_NOFILE).
    pub limit: u32,
    /// Time between 1970 and the zero of the stack's clock; it is added to timestamps.
    pub epoch: Duration,
}

impl Default for PosixConfig {
    fn default() -> Self {
        Self {
            first: 0,
            limit: 1 << 20,
            epoch: Duration::ZERO,
        }
    }
}

impl PosixConfig {
    /// Sets the lowest descriptor.
    #[must_use]
    pub fn first(self, first: i32) -> Self {
        Self { first, ..self }
    }

    /// Sets the offset of timestamps from the stack's clock.
    #[must_use]
    pub fn epoch(self, epoch: Duration) -> Self {
        Self { epoch, ..self }
    }
}

/// The descriptors of one process on one stack. See the crate documentation.
///
/// Every call reports EBADF for a descriptor that is not open; this is not repeated
/// below.
pub struct Posix {
    descriptors: Descriptors,
    config: PosixConfig,
    sockets: Mutex<Sockets>,
    /// The defaults of kernel streams, of IPv4 and of IPv6.
    defaults: [OnceLock<adopt::Defaults>; 2],
}

impl core::fmt::Debug for Posix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Posix")
            .field("descriptors", &self.descriptors)
            .finish_non_exhaustive()
    }
}

fn as_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

/// Returns the error number of an error.
pub fn errno(error: io::Error) -> Errno {
    let number = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::Interrupted => libc::EINTR,
        _ => libc::EIO,
    });
    Errno(number)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Posix {
    /// Creates an empty descriptor table for sockets of a stack.
    #[must_use]
    pub fn new(stack: &Stack, config: PosixConfig) -> Self {
        Self {
            descriptors: Descriptors::new(stack, config.limit),
            config,
            sockets: Mutex::default(),
            defaults: Default::default(),
        }
    }

    /// Returns the stack of the sockets.
    pub fn stack(&self) -> &Stack {
        self.descriptors.stack()
    }

    /// Returns the descriptor table.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Returns true for a descriptor that is open here. Takes no lock and allocates
    /// nothing.
    pub fn owns(&self, fd: i32) -> bool {
        self.descriptors.is_open(fd)
    }

    pub(crate) fn file(&self, fd: i32) -> Result<Arc<OpenFile>> {
        self.descriptors.file(fd).map_err(errno)
    }

    /// Returns the socket of a descriptor.
    ///
    /// # Errors
    /// ENOTSOCK for another file.
    pub(crate) fn socket_of(&self, fd: i32) -> Result<Arc<Socket>> {
        let socket = lock(&self.sockets).get(fd);
        match socket {
            Some(socket) => Ok(socket),
            None => {
                self.file(fd)?;
                Err(Errno(libc::ENOTSOCK))
            }
        }
    }

    /// Moves a file whose descriptor is below the first one to the lowest free descriptor
    /// from there on.
    pub(crate) fn renumber(&self, fd: i32) -> Result<i32> {
        let first = self.config.first;
        if fd >= first {
            return Ok(fd);
        }
        let closes = self.descriptors.close_on_exec(fd).map_err(errno)?;
        let flags = if closes {
            tidewall::descriptor::Flags::CLOEXEC
        } else {
            tidewall::descriptor::Flags::NONE
        };
        let moved = self.descriptors.dup_from(fd, first, flags).map_err(errno);
        self.descriptors.close(fd).map_err(errno)?;
        moved
    }
}
