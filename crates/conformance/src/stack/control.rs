//! `fcntl(2)` and `ioctl(2)`.

use super::socket::Kind;
use super::{Failure, Fd, Host, Result};

impl Host {
    /// True for a descriptor whose calls never wait (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self, fd: Fd) -> bool {
        self.sockets
            .get(&fd)
            .is_some_and(|socket| socket.nonblocking)
    }

    /// `fcntl(2)`: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD.
    ///
    /// # Errors
    /// EBADF; EINVAL for any other command.
    pub fn fcntl(&mut self, fd: Fd, command: i32, argument: i64) -> Result<i32> {
        let socket = self.get_mut(fd)?;
        match command {
            libc::F_GETFL => {
                let nonblocking = if socket.nonblocking {
                    libc::O_NONBLOCK
                } else {
                    0
                };
                Ok(libc::O_RDWR | nonblocking)
            }
            libc::F_SETFL => {
                socket.nonblocking = argument & i64::from(libc::O_NONBLOCK) != 0;
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => Ok(0),
            _ => Err(Failure::Errno(libc::EINVAL)),
        }
    }

    /// `ioctl(2)`: SIOCINQ (FIONREAD), SIOCOUTQ (TIOCOUTQ), SIOCOUTQNSD, and
    /// FIONBIO with its argument. What the request tells.
    ///
    /// # Errors
    /// EINVAL on a listener, ENOTTY for any other request.
    pub fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Result<i32> {
        /// `linux/sockios.h`: bytes written and not sent.
        const SIOCOUTQNSD: u64 = 0x894b;
        let socket = self.get_mut(fd)?;
        if request == libc::FIONBIO {
            socket.nonblocking = argument != 0;
            return Ok(0);
        }
        if matches!(socket.kind, Kind::Listener) {
            return Err(Failure::Errno(libc::EINVAL));
        }
        let info = self
            .stream(fd)?
            .and_then(|id| self.connections.get(&id))
            .map(|entry| (entry.connection.info(), entry.connection.receive_closed()));
        let value = match request {
            libc::FIONREAD => info.map_or(0, |(info, _)| info.unread),
            // A FIN that was sent counts, as in Linux.
            libc::TIOCOUTQ => info.map_or(0, |(info, _)| info.unacknowledged + info.not_sent),
            SIOCOUTQNSD => info.map_or(0, |(info, _)| info.not_sent),
            _ => return Err(Failure::Errno(libc::ENOTTY)),
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }
}
