//! Kernel connections: those with peers on this host, and those whose route does not use
//! the stack's interface.

use std::io;
use std::net::TcpStream as KernelTcp;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use tidewall_protocol::tcp::{Congestion, Keepalive, StreamOptions};
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_sys::{option, set_option, set_option_bytes};

/// `linux/tcp.h`
pub(crate) const TCP_NOTSENT_LOWAT: i32 = 25;

/// A kernel stream.
pub(crate) struct KernelStream {
    pub(crate) stream: KernelTcp,
    pub(crate) wait_queue: WaitQueue,
}

/// Whole seconds for an option without a finer unit; at least one.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs().max(1)).unwrap_or(i32::MAX)
}

/// Sets the initial options of connections on a kernel socket; the connections that it
/// accepts inherit them.
///
/// # Errors
/// The kernel's errors (ENOENT for an algorithm that it lacks, EPERM for one that the
/// namespace may not choose).
pub(crate) fn set_options(fd: BorrowedFd<'_>, v6: bool, wanted: &StreamOptions) -> io::Result<()> {
    let tcp = |name, value: u32| set_option(fd, libc::IPPROTO_TCP, name, number(value));
    let socket = |name, value: u32| set_option(fd, libc::SOL_SOCKET, name, number(value));
    if wanted.nodelay {
        tcp(libc::TCP_NODELAY, 1)?;
    }
    if wanted.keepalive.is_some() {
        set_keepalive(fd, wanted.keepalive)?;
    }
    if let Some(bytes) = wanted.receive_buffer {
        socket(libc::SO_RCVBUF, bytes)?;
    }
    if let Some(bytes) = wanted.send_buffer {
        socket(libc::SO_SNDBUF, bytes)?;
    }
    if let Some(bytes) = wanted.maximum_segment {
        tcp(libc::TCP_MAXSEG, bytes.into())?;
    }
    if let Some(count) = wanted.syn_retries {
        tcp(libc::TCP_SYNCNT, count.into())?;
    }
    if let Some(time) = wanted.user_timeout {
        tcp(libc::TCP_USER_TIMEOUT, milliseconds(time))?;
    }
    if let Some(time) = wanted.fin_timeout {
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_LINGER2, linger2(time))?;
    }
    if let Some(bytes) = wanted.not_sent_low_water {
        set_option(
            fd,
            libc::IPPROTO_TCP,
            TCP_NOTSENT_LOWAT,
            bytes.max(1).cast_signed(),
        )?;
    }
    if let Some(congestion) = wanted.congestion {
        set_congestion(fd, congestion)?;
    }
    if wanted.traffic_class != 0 {
        set_traffic_class(fd, v6, wanted.traffic_class)?;
    }
    Ok(())
}

/// Converts to an int, at most the largest.
fn number(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// TCP_USER_TIMEOUT.
pub(crate) fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// TCP_LINGER2: zero means the namespace's time, -1 means none.
pub(crate) fn linger2(time: Duration) -> i32 {
    if time.is_zero() { -1 } else { seconds(time) }
}

/// TCP_CONGESTION.
pub(crate) fn set_congestion(fd: BorrowedFd<'_>, congestion: Congestion) -> io::Result<()> {
    let name = congestion.name().as_bytes();
    set_option_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
}

/// IP_TOS or IPV6_TCLASS; both for a socket that may have connections of either family.
pub(crate) fn set_traffic_class(fd: BorrowedFd<'_>, v6: bool, class: u8) -> io::Result<()> {
    let set_v4 = set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, class.into());
    if v6 {
        // An IPv6 socket may not support IPv4's option (IPV6_V6ONLY).
        return set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class.into());
    }
    set_v4
}

fn set_keepalive(fd: BorrowedFd<'_>, keepalive: Option<Keepalive>) -> io::Result<()> {
    let tcp = |name, value| set_option(fd, libc::IPPROTO_TCP, name, value);
    if let Some(keepalive) = keepalive {
        tcp(libc::TCP_KEEPIDLE, seconds(keepalive.idle))?;
        tcp(libc::TCP_KEEPINTVL, seconds(keepalive.interval))?;
        tcp(libc::TCP_KEEPCNT, keepalive.count.into())?;
    }
    let on = i32::from(keepalive.is_some());
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, on)
}

impl KernelStream {
    pub(crate) fn new(stream: KernelTcp) -> Self {
        KernelStream {
            stream,
            wait_queue: WaitQueue::default(),
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.stream.as_raw_fd()
    }

    pub(crate) fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        set_option(self.stream.as_fd(), level, name, value)
    }

    pub(crate) fn get(&self, level: i32, name: i32) -> io::Result<i32> {
        option(self.stream.as_fd(), level, name)
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        set_keepalive(self.stream.as_fd(), keepalive)
    }

    pub(crate) fn keepalive(&self) -> io::Result<Option<Keepalive>> {
        if self.get(libc::SOL_SOCKET, libc::SO_KEEPALIVE)? == 0 {
            return Ok(None);
        }
        let tcp = libc::IPPROTO_TCP;
        let time = |name| {
            self.get(tcp, name)
                .map(|seconds| Duration::from_secs(seconds.max(0) as u64))
        };
        Ok(Some(Keepalive {
            idle: time(libc::TCP_KEEPIDLE)?,
            interval: time(libc::TCP_KEEPINTVL)?,
            count: u8::try_from(self.get(tcp, libc::TCP_KEEPCNT)?).unwrap_or(u8::MAX),
        }))
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        // Whole seconds, at most as many as an int can hold.
        let most = i32::MAX.unsigned_abs().into();
        let seconds = linger.map(|time| Duration::from_secs(time.as_secs().min(most)));
        Ok(set_socket_linger(&self.stream, seconds)?)
    }
}
