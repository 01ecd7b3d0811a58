//! The unsafe edge of these tests, a forked child. Also here: visiting a namespace, packet
//! sockets, Fast Open of kernel sockets, and the CPU time used so far.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};

use tidewall_sys::{Message, MessageBatch, interface, set_option};

/// Moves the calling thread into a network namespace.
pub fn enter(namespace: &File) -> io::Result<()> {
    let network = Some(LinkNameSpaceType::Network);
    Ok(move_into_link_name_space(namespace.as_fd(), network)?)
}

/// Has the kernel cut what a socket sends into datagrams of so many bytes (UDP_SEGMENT).
/// It may send while what it has sent fills a veth's ring.
pub fn segment(socket: &std::net::UdpSocket, bytes: i32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 1 << 24)?;
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

/// Lets a listener of the kernel's take data in SYNs (TCP_FASTOPEN).
pub fn take_fast_open(listener: &TcpListener, queue: i32) -> io::Result<()> {
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, queue)
}

/// Connects a socket of the kernel's to an IPv4 address; where it has a cookie,
/// what is written first goes with the SYN (TCP_FASTOPEN_CONNECT).
pub fn connect_fast_open(address: SocketAddr) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

/// Processor time of this process, in user and in kernel mode.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

/// Runs `child` in a forked child, which ends with it; its process id. The
/// child alone drops the closure's captures.
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
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// A packet socket: whole frames of one interface, in and out.
pub struct Packets {
    socket: OwnedFd,
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
        set_option(
            &packets.socket,
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            1,
        )?;
        Ok(packets)
    }

    fn with_protocol(interface: u32, protocol: u16) -> io::Result<Packets> {
        // Nothing comes before it is bound.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        interface::bind_packet(&socket, interface, protocol)?;
        Ok(Packets { socket })
    }

    /// Lets so many bytes of frames wait, whatever the system's limit.
    pub fn hold(self, bytes: i32) -> io::Result<Packets> {
        set_socket_recv_buffer_size_force(&self.socket, bytes as usize)?;
        Ok(self)
    }

    /// Sends frames with one call; how many were taken.
    pub fn send_all(&self, frames: &[Vec<u8>]) -> usize {
        let messages = frames.iter().map(|payload| Message {
            payload,
            destination: None,
            source: Ipv4Addr::UNSPECIFIED.into(),
            interface: 0,
        });
        let sent = MessageBatch::new(frames.len()).send(&self.socket, messages, 0);
        sent.unwrap_or(0)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(&self.socket, frame, SendFlags::empty())?;
        Ok(())
    }

    /// The next frame that was received or sent, if there is one.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        let (length, _) = recv(&self.socket, &mut frame[..], RecvFlags::empty()).ok()?;
        frame.truncate(length);
        Some(frame)
    }
}
