//! The sockets that are polled: helpers, and the AF_XDP socket itself.

use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tidewall_sys::{
    Received, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_INCOMING_NAPI_ID, SO_PREFER_BUSY_POLL,
    attach_filter, option, receive_message, set_option,
};

use crate::forked::Unshared;
use crate::queue::POLL_MAX;

/// UDP ports of helper sockets, which a firewall's input rules must accept. Enough for
/// four stacks of eight queues in one network namespace.
pub const HELPER_PORTS: RangeInclusive<u16> = 61_000..=61_063;

/// A probe that was a segment has no UDP checksum, which IPv6 requires.
const UDP_NO_CHECK6_RX: i32 = 102;

/// Microseconds; any nonzero value makes a nonblocking `recv` poll once.
pub(super) const BUSY_POLL_TIME: i32 = 50;
fn instruction(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    }
}

/// Opens the sockets through which a receiver polls a device: one that prefers busy
/// polling and one that does not.
///
/// # Errors
/// EPERM: preferring busy polling needs CAP_NET_ADMIN.
pub fn helpers() -> io::Result<[UdpSocket; 2]> {
    Ok([helper(true)?, helper(false)?])
}

/// Opens as many sockets that poll nothing, where the receiver may not poll the device.
pub(in super::super) fn no_helpers() -> io::Result<[UdpSocket; 2]> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    Ok([socket()?.into(), socket()?.into()])
}

fn helper(prefer: bool) -> io::Result<UdpSocket> {
    // Dual-stack, so that the probe may be of either family.
    let (socket, v6) = match bind(Ipv6Addr::UNSPECIFIED.into()) {
        Ok(socket) => (socket, true),
        Err(_) => (bind([0, 0, 0, 0].into())?, false),
    };
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    if v6 {
        set_option(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL, BUSY_POLL_TIME)?;
    set_budget(fd, HALF_MAX as i32)?;
    set_prefer(fd, prefer)?;
    // A v4-only host has no IPV6_RECVPKTINFO; a v6 socket takes both.
    let by_v6 = set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1);
    let by_v4 = set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
    by_v6.or(by_v4)?;
    Ok(socket)
}

/// Initial number of frames of each of the two polls that the kernel makes of one.
pub(super) const HALF_MAX: u32 = POLL_MAX / 2;

/// A kernel UDP socket that has, or is to get, the NAPI id of one queue.
pub(super) struct Helper {
    pub(super) socket: UdpSocket,
    pub(super) port: u16,
    /// Zero until the probe has arrived.
    pub(super) id: u32,
    pub(super) prefer: bool,
}

impl Helper {
    pub(super) fn new(socket: UdpSocket, prefer: bool) -> io::Result<Self> {
        let port = socket.local_addr()?.port();
        let helper = Helper {
            socket,
            port,
            id: 0,
            prefer,
        };
        helper.take_nothing()?;
        Ok(helper)
    }

    pub(super) fn prefer(&mut self, prefer: bool) -> io::Result<()> {
        change_prefer(self.socket.as_fd(), &mut self.prefer, prefer)
    }

    /// True where the preference that [`Helper::prefer`] clears can be set again. That
    /// needs CAP_NET_ADMIN, which a process using another's sockets may lack.
    pub(super) fn may_prefer(&self) -> bool {
        set_prefer(self.socket.as_fd(), true).is_ok()
    }

    /// Drops every frame, so that each `recv` polls.
    pub(super) fn take_nothing(&self) -> io::Result<()> {
        let nothing = [instruction(libc::BPF_RET | libc::BPF_K, 0, 0)];
        attach_filter(&self.socket, &nothing)
    }

    /// Drops everything received so far and from now on.
    pub(super) fn drain(&self) -> io::Result<()> {
        self.take_nothing()?;
        let fd = self.socket.as_fd();
        while receive(fd, &mut []).is_ok() {}
        Ok(())
    }

    /// Drops everything received so far, and everything that is not from port `source`.
    pub(super) fn take_from(&self, source: u16) -> io::Result<()> {
        let only = [
            // The UDP header's first field.
            instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                source.into(),
            ),
            instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        ];
        self.drain()?;
        attach_filter(&self.socket, &only)
    }
}

/// Binds a socket to the first free one of [`HELPER_PORTS`], or to any port.
fn bind(address: IpAddr) -> io::Result<UdpSocket> {
    for port in HELPER_PORTS {
        match UdpSocket::bind((address, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    UdpSocket::bind((address, 0))
}

/// The AF_XDP socket, polled itself.
pub(super) struct OwnPoll {
    pub(super) socket: Arc<Unshared<OwnedFd>>,
    /// Zero if it is not polled.
    pub(super) id: u32,
    pub(super) prefer: bool,
    /// Its id belongs to a NAPI that no longer exists; it gets no other.
    pub(super) outdated: bool,
}

impl OwnPoll {
    pub(super) fn begin(&mut self, budget: i32) -> io::Result<()> {
        let id = napi_id(self.socket.as_fd());
        if self.outdated || self.id != 0 || id == 0 {
            return Ok(());
        }
        set_budget(self.socket.as_fd(), budget)?;
        self.set_time(BUSY_POLL_TIME)?;
        self.id = id;
        Ok(())
    }

    pub(super) fn end(&mut self) {
        if self.id != 0 {
            // At worst, sending polls it.
            let _ = self.prefer(false);
            let _ = self.set_time(0);
            self.id = 0;
        }
    }

    pub(super) fn set_time(&self, microseconds: i32) -> io::Result<()> {
        let fd = self.socket.as_fd();
        set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL, microseconds)
    }

    pub(super) fn prefer(&mut self, prefer: bool) -> io::Result<()> {
        change_prefer(self.socket.as_fd(), &mut self.prefer, prefer)
    }
}

fn change_prefer(fd: BorrowedFd<'_>, is: &mut bool, prefer: bool) -> io::Result<()> {
    if *is != prefer {
        set_prefer(fd, prefer)?;
        *is = prefer;
    }
    Ok(())
}

fn set_prefer(fd: BorrowedFd<'_>, prefer: bool) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, prefer.into())
}

pub(super) fn set_budget(fd: BorrowedFd<'_>, frames: i32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, frames)
}

/// Receives one datagram without blocking.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_message(fd, buffer, libc::MSG_DONTWAIT)
}

/// Returns a socket's NAPI id; zero if it has none.
pub(super) fn napi_id(fd: BorrowedFd<'_>) -> u32 {
    option(fd, libc::SOL_SOCKET, SO_INCOMING_NAPI_ID).map_or(0, i32::cast_unsigned)
}
