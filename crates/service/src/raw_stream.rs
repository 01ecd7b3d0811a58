//! The system calls of the Linux host of connections: epoll and its busy
//! polling, `accept4`, `send` with MSG_MORE, `sendfile`, TCP options.

use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::raw_linux::{from_kernel, to_kernel};

/// `linux/eventpoll.h`, Linux 6.9: `struct epoll_params`.
#[repr(C)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

/// `_IOW(0x8A, 0x01, struct epoll_params)`.
const EPIOCSPARAMS: libc::c_ulong = 0x4008_8a01;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An epoll instance and room for its events.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Box<[libc::epoll_event]>,
}

impl Epoll {
    /// One that reports up to `room` events at a time.
    pub(crate) fn new(room: usize) -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the call has just returned this descriptor; nobody else has
        // it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let none = libc::epoll_event { events: 0, u64: 0 };
        Ok(Epoll {
            fd,
            events: vec![none; room.max(1)].into(),
        })
    }

    /// Has `wait` run the driver's poll before it sleeps, in preference to
    /// softirq. ENOTTY before Linux 6.9; EPERM for budgets over 64 without
    /// CAP_NET_ADMIN.
    pub(crate) fn busy_poll(&self, microseconds: u32, budget: u16) -> io::Result<()> {
        let params = EpollParams {
            busy_poll_usecs: microseconds,
            busy_poll_budget: budget,
            prefer_busy_poll: 1,
            pad: 0,
        };
        // SAFETY: the request reads a struct epoll_params, which outlives the
        // call.
        checked(unsafe { libc::ioctl(self.fd.as_raw_fd(), EPIOCSPARAMS, &raw const params) })
            .map(drop)
    }

    /// One `epoll_ctl`.
    pub(crate) fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        events: libc::c_int,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: token,
        };
        // SAFETY: `event` is a valid epoll_event that outlives the call.
        checked(unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                operation,
                fd.as_raw_fd(),
                &raw mut event,
            )
        })
        .map(drop)
    }

    /// Waits for up to `timeout`, rounded down to milliseconds; calls `each`
    /// with the token and the mask of every event.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(u64, libc::c_int),
    ) -> io::Result<()> {
        let milliseconds = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        let room = libc::c_int::try_from(self.events.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the pointer and the count describe `events`, of which the
        // kernel writes at most so many.
        let count = checked(unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                room,
                milliseconds,
            )
        })?;
        for event in self.events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let (token, mask) = (event.u64, event.events);
            each(token, mask.cast_signed());
        }
        Ok(())
    }
}

/// Accepts a connection, nonblocking from the start.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(TcpStream, Option<SocketAddr>)> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the address comes with the length of what it points to.
    let fd = checked(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            address.as_mut_ptr().cast(),
            &raw mut length,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    })?;
    // SAFETY: the call has just returned this descriptor; nobody else has it.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: zeroes are a valid sockaddr_storage, and the kernel writes one.
    let address = unsafe { address.assume_init() };
    Ok((stream, from_kernel(&address)))
}

/// Begins to connect a nonblocking socket; returns whether it is connected
/// already.
pub(crate) fn connect(to: SocketAddr) -> io::Result<(TcpStream, bool)> {
    let family = match to {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the call has just returned this descriptor; nobody else has it.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    // SAFETY: zeroes are a valid sockaddr_storage.
    let address = unsafe { address.assume_init_mut() };
    let length = to_kernel(to, address);
    // SAFETY: the pointer and the length describe an address that outlives the
    // call.
    let result = checked(unsafe { libc::connect(fd, (&raw const *address).cast(), length) });
    match result {
        Ok(_) => Ok((stream, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok((stream, false)),
        Err(error) => Err(error),
    }
}

/// Makes the backlog of a listening socket `backlog` (listen(2) may be called
/// again).
pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: u32) -> io::Result<()> {
    let backlog = libc::c_int::try_from(backlog).unwrap_or(libc::c_int::MAX);
    // SAFETY: no pointers are passed.
    checked(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Sets an option of level IPPROTO_TCP.
pub(crate) fn set_tcp_option(
    fd: BorrowedFd<'_>,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the
    // call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// One `send`.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `bytes`.
    let count = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// One `sendfile`.
pub(crate) fn send_file(
    fd: BorrowedFd<'_>,
    file: &File,
    offset: u64,
    length: usize,
) -> io::Result<usize> {
    let mut offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `offset` is a valid off_t for the call to read and write.
    let count =
        unsafe { libc::sendfile(fd.as_raw_fd(), file.as_raw_fd(), &raw mut offset, length) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Raises the soft limit of open files to the hard one; returns it.
pub(crate) fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit for the call to fill.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is a valid rlimit for the call to read.
        checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}
