//! The unsafe edge of these tests: visiting a namespace, packet sockets, Fast Open
//! of the kernel's sockets, and the processor time used so far.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Moves the calling thread into a network namespace.
pub fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: no pointers; the descriptor is open.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn set_tcp(fd: &impl AsRawFd, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: four valid bytes for the call's duration.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Lets a listener of the kernel's take data in SYNs (TCP_FASTOPEN).
pub fn take_fast_open(listener: &TcpListener, queue: i32) -> io::Result<()> {
    set_tcp(listener, libc::TCP_FASTOPEN, queue)
}

/// Connects a socket of the kernel's to an IPv4 address; where it has a cookie,
/// what is written first goes with the SYN (TCP_FASTOPEN_CONNECT).
pub fn connect_fast_open(address: SocketAddr) -> io::Result<TcpStream> {
    let SocketAddr::V4(to) = address else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    // SAFETY: no pointers; the descriptor returned is nobody else's.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    set_tcp(&fd, libc::TCP_FASTOPEN_CONNECT, 1)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*to.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length during the call.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpStream::from(fd))
}

/// Processor time of this process, in user and in kernel mode.
pub fn processor_time() -> Duration {
    // SAFETY: all-zero is a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let time = |value: libc::timeval| {
        Duration::from_secs(value.tv_sec as u64) + Duration::from_micros(value.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Runs `child` in a forked child, which ends with it; its process id. What the
/// closure has is dropped by the child alone.
pub fn fork(child: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: the C library's own locks are whole in the child, and the test's
    // other threads are in calls of the stack's or wait.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
    std::mem::forget(child);
    if pid < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(pid)
    }
}

/// Ends this process after so many seconds, whatever it does.
pub fn end_after(seconds: u32) {
    // SAFETY: no pointers.
    unsafe { libc::alarm(seconds) };
}

/// Kills a process, which need not be a child.
pub fn kill(pid: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::kill(pid, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A packet socket: whole frames of one interface, in and out.
pub struct Packets {
    fd: OwnedFd,
}

impl Packets {
    /// Opens one in the calling thread's namespace.
    pub fn open(interface: u32) -> io::Result<Packets> {
        Self::with_protocol(interface, libc::ETH_P_ALL as u16)
    }

    /// As [`Packets::open`], but it receives nothing and no queueing discipline
    /// holds what it sends.
    pub fn sender(interface: u32) -> io::Result<Packets> {
        let packets = Self::with_protocol(interface, 0)?;
        packets.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        Ok(packets)
    }

    fn with_protocol(interface: u32, protocol: u16) -> io::Result<Packets> {
        let protocol = protocol.to_be();
        // SAFETY: no pointers; the descriptor returned is nobody else's; the
        // address is valid for its length during the call.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(protocol));
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = interface as i32;
            let length = size_of_val(&address) as libc::socklen_t;
            if libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Packets { fd })
        }
    }

    /// Lets so many bytes of frames wait, whatever the system's limit.
    pub fn hold(self, bytes: i32) -> io::Result<Packets> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)?;
        Ok(self)
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: four valid bytes for the call's duration.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Sends frames with one call; how many were taken.
    pub fn send_all(&self, frames: &[Vec<u8>]) -> usize {
        let mut vectors: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            })
            .collect();
        // SAFETY: a msghdr of zeros is one without any part.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let mut messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                let mut message = empty;
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let count = messages.len() as u32;
        // SAFETY: every message names one vector of a frame that outlives the
        // call, which only reads them.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        usize::try_from(sent).unwrap_or(0)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: `frame` is valid for its length.
        let sent =
            unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// The next frame that was received or sent, if there is one.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        // SAFETY: `frame` is writable for its length.
        let got = unsafe {
            libc::recv(
                self.fd.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
            )
        };
        frame.truncate(usize::try_from(got).ok()?);
        Some(frame)
    }
}
