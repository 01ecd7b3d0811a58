//! `fcntl(2)` and `ioctl(2)`.

use tidewall::OpenFile;
use tidewall::descriptor::Flags;

use crate::socket::stream_of;
use crate::{Errno, Posix, Result, errno, lock};

/// `linux/sockios.h`: bytes written but not sent.
const SIOCOUTQNSD: u64 = 0x894b;

impl Posix {
    /// `fcntl(2)`: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, F_DUPFD and
    /// F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// EINVAL for any other command; EMFILE.
    pub fn fcntl(&self, fd: i32, command: i32, argument: i64) -> Result<i32> {
        let file = self.file(fd)?;
        match command {
            libc::F_GETFL => {
                let nonblocking = file.is_nonblocking().map_err(errno)?;
                let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
                Ok(libc::O_RDWR | flags)
            }
            libc::F_SETFL => {
                let nonblocking = argument & i64::from(libc::O_NONBLOCK) != 0;
                file.set_nonblocking(nonblocking).map_err(errno)?;
                Ok(0)
            }
            libc::F_GETFD => {
                let closes = self.descriptors.close_on_exec(fd).map_err(errno)?;
                Ok(if closes { libc::FD_CLOEXEC } else { 0 })
            }
            libc::F_SETFD => {
                let closes = argument & i64::from(libc::FD_CLOEXEC) != 0;
                let set = self.descriptors.set_close_on_exec(fd, closes);
                set.map_err(errno).map(|()| 0)
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let flags = if command == libc::F_DUPFD {
                    Flags::NONE
                } else {
                    Flags::CLOEXEC
                };
                let lowest = i32::try_from(argument).map_err(|_| Errno(libc::EINVAL))?;
                let lowest = lowest.max(self.config.first);
                let new = self.descriptors.dup_from(fd, lowest, flags);
                let new = new.map_err(errno)?;
                let mut sockets = lock(&self.sockets);
                let socket = sockets.get(fd);
                sockets.set(new, socket);
                Ok(new)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// `ioctl(2)`: SIOCINQ (FIONREAD), SIOCOUTQ (TIOCOUTQ) and SIOCOUTQNSD, which return
    /// a value, and FIONBIO with its argument.
    ///
    /// # Errors
    /// EINVAL on a listener, ENOTTY for any other request.
    pub fn ioctl(&self, fd: i32, request: u64, argument: i32) -> Result<i32> {
        let file = self.file(fd)?;
        if request == libc::FIONBIO {
            return file
                .set_nonblocking(argument != 0)
                .map_err(errno)
                .map(|()| 0);
        }
        if matches!(&*file, OpenFile::Listener(_)) {
            return Err(Errno(libc::EINVAL));
        }
        let stream = stream_of(&file);
        let info = stream.and_then(tidewall::TcpStream::info);
        let value = match (request, &info) {
            (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD, None) => 0,
            (libc::FIONREAD, _) => {
                let unread = stream.and_then(tidewall::TcpStream::unread);
                unread.map_or(0, |(bytes, _)| bytes)
            }
            // A FIN that was sent counts, as in Linux.
            (libc::TIOCOUTQ, Some(info)) => info.unacknowledged + info.not_sent,
            (SIOCOUTQNSD, Some(info)) => info.not_sent,
            _ => return Err(Errno(libc::ENOTTY)),
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }
}
