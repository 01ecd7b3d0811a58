//! Driving a driver's NAPI poll from the receiver's own context.
//!
//! On drivers that register their NAPI with the queue, an AF_XDP socket can be
//! busy-polled itself. veth registers none, so an XSK there has NAPI id 0 and
//! `SO_BUSY_POLL` on it silently does nothing. What does work on both: a
//! kernel UDP socket that has once received a frame of this queue knows the
//! queue's NAPI id, and each nonblocking `recv` on it runs the driver's poll,
//! the XDP program and XSK delivery in the caller's context. The driver
//! program teaches such a *helper* by sending one owned datagram to it (see
//! "Teaching" in bpf/demux.bpf.c); that datagram, or TCP segment in the guise of
//! one, is read back here, not lost.
//!
//! There are two helpers a queue. One prefers busy polling: after its poll the
//! device stays masked and only a timer may wake it, which is what keeps a
//! receiver alive under overload. The other does not: its poll ends by
//! unmasking the interrupt, which is what a receiver wants that is about to
//! sleep. With `napi_defer_hard_irqs` at 1 the switch costs no extra call.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use crate::demux::Tables;
use crate::demux::layout::Protocol;
use crate::queue::{Interrupt, POLL_MAX, Stray};
use crate::raw::syscall;

/// Not yet in the libc crate for every target.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL: i32 = 46;
const SO_BUSY_POLL_BUDGET: i32 = 70;
const SO_INCOMING_NAPI_ID: i32 = 56;
/// A segment in a datagram's guise has no UDP checksum, which IPv6 wants.
const UDP_NO_CHECK6_RX: i32 = 102;

/// Microseconds; any nonzero value makes a nonblocking `recv` poll once.
const BUSY_POLL_TIME: i32 = 50;

/// A kernel UDP socket that learns the NAPI id of one queue.
struct Helper {
    socket: UdpSocket,
    port: u16,
}

impl Helper {
    fn new(prefer: bool, budget: i32) -> io::Result<Self> {
        // Dual-stack, so that the first owned datagram may be of either family.
        let (socket, v6) = match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
            Ok(socket) => (socket, true),
            Err(_) => (UdpSocket::bind(("0.0.0.0", 0))?, false),
        };
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        if v6 {
            syscall::set_option(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, &1i32)?;
        }
        syscall::set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL, &BUSY_POLL_TIME)?;
        syscall::set_option(fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget)?;
        syscall::set_option(
            fd,
            libc::SOL_SOCKET,
            SO_PREFER_BUSY_POLL,
            &i32::from(prefer),
        )?;
        syscall::want_destination(fd)?;
        let port = socket.local_addr()?.port();
        Ok(Helper { socket, port })
    }

    fn napi_id(&self) -> u32 {
        syscall::get_option(self.socket.as_fd(), libc::SOL_SOCKET, SO_INCOMING_NAPI_ID).unwrap_or(0)
    }
}

/// Which helper the driver program is asked to teach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lesson {
    Masked,
    Armed,
    Done,
}

/// The poll of one queue.
pub(crate) struct Napi {
    tables: Arc<Tables>,
    queue: u32,
    masked: Helper,
    armed: Helper,
    lesson: Lesson,
    /// Frames of each of the two polls that the kernel makes of one.
    half: u32,
}

impl Napi {
    /// Makes the helpers and asks the driver program to teach the first.
    ///
    /// # Errors
    /// EPERM: preferring busy polling needs CAP_NET_ADMIN.
    pub(crate) fn new(tables: Arc<Tables>, queue: u32) -> io::Result<Self> {
        let half = POLL_MAX / 2;
        let masked = Helper::new(true, half as i32)?;
        let armed = Helper::new(false, half as i32)?;
        tables.teach(queue, masked.port);
        Ok(Napi {
            tables,
            queue,
            masked,
            armed,
            lesson: Lesson::Masked,
            half,
        })
    }

    /// One poll. The kernel makes two of it, the second when it leaves busy
    /// polling.
    pub(crate) fn poll(&self, interrupt: Interrupt) -> io::Result<()> {
        let helper = match (interrupt, self.lesson) {
            // Frames come by interrupt until the first lesson is learned.
            (_, Lesson::Masked) => return Ok(()),
            // The timer unmasks the device when nobody polls.
            (Interrupt::Armed, Lesson::Armed) => return Ok(()),
            (Interrupt::Masked, _) => &self.masked,
            (Interrupt::Armed, Lesson::Done) => &self.armed,
        };
        syscall::poke_receive(helper.socket.as_fd()).map(drop)
    }

    /// Frames one poll may take from the device.
    pub(crate) fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        if !(1..=POLL_MAX).contains(&frames) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let half = frames.div_ceil(2);
        if half != self.half {
            for helper in [&self.masked, &self.armed] {
                let value = half as i32;
                syscall::set_option(
                    helper.socket.as_fd(),
                    libc::SOL_SOCKET,
                    SO_BUSY_POLL_BUDGET,
                    &value,
                )?;
            }
            self.half = half;
        }
        Ok(())
    }

    /// Descriptors that become readable when a teaching datagram arrives.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let fd = match self.lesson {
            Lesson::Masked => Some(self.masked.socket.as_raw_fd()),
            Lesson::Armed => Some(self.armed.socket.as_raw_fd()),
            Lesson::Done => None,
        };
        fd.into_iter()
    }

    /// Reads the datagram that taught a helper and asks for the next lesson.
    pub(crate) fn take_stray(&mut self, payload: &mut Vec<u8>) -> Option<Stray> {
        let helper = match self.lesson {
            Lesson::Masked => &self.masked,
            Lesson::Armed => &self.armed,
            Lesson::Done => return None,
        };
        let taught = self.tables.taught(self.queue)?;
        payload.resize(u16::MAX as usize, 0);
        let (length, source, destination) =
            syscall::receive_with_destination(helper.socket.as_fd(), payload).ok()?;
        payload.truncate(length);
        let learned = helper.napi_id() != 0;
        let next = match (self.lesson, learned) {
            (Lesson::Masked, true) => Lesson::Armed,
            (Lesson::Armed, true) => Lesson::Done,
            (lesson, _) => lesson,
        };
        self.lesson = next;
        match next {
            Lesson::Masked => self.tables.teach(self.queue, self.masked.port),
            Lesson::Armed => self.tables.teach(self.queue, self.armed.port),
            Lesson::Done => {}
        }
        let destination = destination.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let stray = Stray {
            protocol: if taught.sequence.is_some() {
                Protocol::Tcp
            } else {
                Protocol::Udp
            },
            source: canonical(source),
            destination: SocketAddr::new(destination.to_canonical(), taught.port),
            neighbour: taught.neighbour,
        };
        if let Some(sequence) = taught.sequence {
            // The eight bytes that were UDP's header.
            let mut header = [0; 8];
            header[..2].copy_from_slice(&stray.source.port().to_be_bytes());
            header[2..4].copy_from_slice(&taught.port.to_be_bytes());
            header[4..].copy_from_slice(&sequence.to_be_bytes());
            payload.splice(0..0, header);
        }
        Some(stray)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
