//! Long TCP segments beside AF_XDP: a packet socket with a virtio-net header before each
//! frame (packet(7), PACKET_VNET_HDR). The device or the kernel splits them by that
//! header.
//!
//! One segment of 64 KiB costs a fifth of its 45 packets sent by AF_XDP, and half of it
//! where the kernel has to split (docs/decisions/index.md). The socket receives nothing. Its
//! frames go through the queueing discipline: if they bypassed it, a device that does not
//! split would lose each of them. So tc and nftables see these frames, and not those sent
//! by AF_XDP.
//!
//! In copy mode both paths are synchronous, and frames keep their order as long as the
//! transmit ring is empty before. A real discipline or a zero-copy driver queues, and
//! order is lost. Segments that follow a long one therefore take this path, too.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmsg, socket_with,
};
use tidewall_sys::{interface, option_bytes, set_option};

use crate::forked::Unshared;
use crate::interface::cuts_segments;
use crate::queue::LongSegment;
use crate::virtio_header;

/// Longest payload: with headers at their longest it still fits IP's length field.
pub(super) const PAYLOAD_MAX: u32 = 65_535 - 60 - 60;
/// Bytes in flight until a card has sent them: a millisecond at 40 Gbit/s.
const SEND_BUFFER: i32 = 4 << 20;
/// From linux/if_packet.h.
const PACKET_VNET_HDR: i32 = 15;
/// From asm-generic/socket.h, Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

/// The party that splits long TCP segments into packets, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// The device, or the receiver, which takes segments whole.
    ByDevice,
    /// The kernel: the device does not split.
    ByKernel,
    /// The stack: the kernel refuses a packet socket, with this errno.
    Refused(i32),
    /// The stack: a system-call filter refuses a packet socket
    /// ([`leave_packet_sockets`]).
    Filtered,
    /// The stack: the application is not trusted with a packet socket.
    Untrusted,
}

impl Segmentation {
    /// True when the stack sends long segments.
    pub fn is_offloaded(self) -> bool {
        matches!(self, Segmentation::ByDevice | Segmentation::ByKernel)
    }
}

impl fmt::Display for Segmentation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Segmentation::ByDevice => formatter.write_str("by the device"),
            Segmentation::ByKernel => {
                formatter.write_str("by the kernel (the device does not: ethtool -K IF tso on)")
            }
            Segmentation::Refused(libc::EPERM) => {
                formatter.write_str("in software (a packet socket needs CAP_NET_RAW)")
            }
            Segmentation::Refused(libc::EXDEV) => {
                formatter.write_str("in software (the device is in another network namespace)")
            }
            Segmentation::Refused(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(formatter, "in software (no packet socket: {error})")
            }
            Segmentation::Filtered => formatter.write_str(
                "in software (the program's filter of system calls refuses a packet socket)",
            ),
            Segmentation::Untrusted => formatter.write_str(
                "in software (a packet socket would show the application others' frames)",
            ),
        }
    }
}

static LEFT: AtomicBool = AtomicBool::new(false);

/// Sets whether this process opens no packet socket from here on; a system-call filter
/// may kill it for opening one. Returns the setting before.
pub fn leave_packet_sockets(left: bool) -> bool {
    LEFT.swap(left, Ordering::SeqCst)
}

/// The packet socket of a queue.
pub(super) struct Segments {
    fd: Unshared<OwnedFd>,
}

impl Segments {
    /// Opens a packet socket on the interface of the queue that `beside` is bound to.
    /// Reports which party splits.
    pub(super) fn open(
        interface: &str,
        index: u32,
        beside: BorrowedFd<'_>,
    ) -> (Option<Self>, Segmentation) {
        if LEFT.load(Ordering::SeqCst) {
            return (None, Segmentation::Filtered);
        }
        match socket(index, beside) {
            Ok(fd) if cuts_segments(interface).unwrap_or(false) => {
                (Some(Segments { fd }), Segmentation::ByDevice)
            }
            Ok(fd) => (Some(Segments { fd }), Segmentation::ByKernel),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                (None, Segmentation::Refused(errno))
            }
        }
    }

    /// Sends a segment. In copy mode the device has it when this returns.
    ///
    /// # Errors
    /// As [`crate::queue::Transmit::send_segments`].
    pub(super) fn send(&self, segment: &LongSegment<'_>) -> io::Result<()> {
        let header = virtio_header::with_segments(segment);
        let header = header.ok_or(io::ErrorKind::InvalidInput)?;
        let [first, second] = segment.payload;
        self.send_parts([&header, segment.headers, first, second])
    }

    /// Sends an Ethernet frame given in two parts, unchanged.
    ///
    /// # Errors
    /// As [`crate::queue::Transmit::send_frame`].
    pub(super) fn send_frame(&self, [first, second]: [&[u8]; 2]) -> io::Result<()> {
        self.send_parts([&virtio_header::PLAIN, first, second, &[]])
    }

    fn send_parts(&self, parts: [&[u8]; 4]) -> io::Result<()> {
        let parts = parts.map(IoSlice::new);
        let (flags, mut control) = (SendFlags::DONTWAIT, SendAncillaryBuffer::default());
        match sendmsg(self.fd.as_fd(), &parts, &mut control, flags) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }
}

fn socket(index: u32, beside: BorrowedFd<'_>) -> io::Result<Unshared<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 receives nothing.
    let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    if namespace(&fd)? != namespace(beside)? {
        // The interface is in the manager's namespace. One of the same name exists here,
        // too.
        return Err(io::Error::from_raw_os_error(libc::EXDEV));
    }
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    // Needs CAP_NET_ADMIN. The default holds three long segments that a card has not sent.
    let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER);
    interface::bind_packet(&fd, index, 0)?;
    Unshared::new(fd)
}

/// The network namespace of a socket.
fn namespace(socket: impl AsFd) -> io::Result<[u8; 8]> {
    let mut cookie = [0; 8];
    option_bytes(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_packet_socket_spares_the_stack_the_cutting() {
        use Segmentation::*;
        for found in [
            ByDevice,
            ByKernel,
            Refused(libc::EPERM),
            Refused(libc::EAFNOSUPPORT),
            Filtered,
            Untrusted,
        ] {
            let software = found.to_string().starts_with("in software (");
            assert_eq!(software, !found.is_offloaded(), "{found}");
        }
    }
}
