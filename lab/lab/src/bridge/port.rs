//! A packet socket (packet(7)) on one interface: sends and receives whole Ethernet
//! frames, many per call, each with its time of arrival.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tidewall_sys::{
    Message, MessageBatch, interface, option_bytes, set_option, set_option_bytes, wait_readable,
};

/// Most frames of one receive or send call.
pub(crate) const BATCH: usize = 64;
/// Bytes that may wait in a socket, in each direction: a second of a gigabit. Frames that
/// find it full are counted in [`Port::dropped`].
const BUFFER: usize = 128 << 20;
/// Bytes of an Ethernet header with one VLAN tag.
const HEADER: usize = 18;
/// Options of packet sockets that are missing from libc (`linux/if_packet.h`).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Status bits of `struct tpacket_auxdata`.
const TP_STATUS_CSUMNOTREADY: u32 = 1 << 3;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;

/// The metadata of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Bytes of the frame, as many as the buffer holds.
    pub(crate) length: usize,
    /// Time since it arrived.
    pub(crate) age: Duration,
    /// It cannot be forwarded as it was sent: it is longer than the interface's MTU
    /// (segmentation offload), has no checksum (checksum offload), or had a VLAN tag,
    /// which the kernel has removed.
    pub(crate) offloaded: bool,
}

/// A packet socket on one interface, in promiscuous mode.
#[derive(Debug)]
pub(crate) struct Port {
    socket: OwnedFd,
    messages: MessageBatch,
    frame_max: usize,
    dropped: u64,
}

impl Port {
    /// Opens the interface `name`, of the caller's network namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW and CAP_NET_ADMIN; ENODEV.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let index = interface::index(name)?;
        // No protocol yet: no frame arrives before the options are set.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        set_socket_recv_buffer_size_force(&socket, BUFFER)?;
        set_socket_send_buffer_size_force(&socket, BUFFER)?;
        for (level, option) in [
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA),
            (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING),
            (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS),
        ] {
            set_option(&socket, level, option, 1)?;
        }
        // struct packet_mreq: the interface, the kind (u16), a length and an address.
        let mut member = [0; size_of::<libc::packet_mreq>()];
        member[..4].copy_from_slice(&index.to_ne_bytes());
        member[4..6].copy_from_slice(&(libc::PACKET_MR_PROMISC as u16).to_ne_bytes());
        set_option_bytes(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &member,
        )?;
        interface::bind_packet(&socket, index, libc::ETH_P_ALL as u16)?;
        Ok(Port {
            socket,
            messages: MessageBatch::new(BATCH),
            frame_max: interface::mtu(name)? + HEADER,
            dropped: 0,
        })
    }

    /// Returns the bytes of the longest frame that the interface carries.
    pub(crate) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Receives waiting frames into `buffers`, the first of which is filled first, and
    /// their metadata into `arrivals`.
    ///
    /// # Errors
    /// ENETDOWN and the like; the absence of frames is not an error.
    pub(crate) fn receive(
        &mut self,
        buffers: &mut [Vec<u8>],
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<()> {
        arrivals.clear();
        let places = buffers.iter_mut().map(Vec::as_mut_slice);
        let received = match self
            .messages
            .receive(&self.socket, places, libc::MSG_DONTWAIT)
        {
            Ok(count) => count,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(error),
                };
            }
        };
        let now = SystemTime::now();
        let received = (0..received).filter_map(|number| self.messages.received(number));
        arrivals.extend(received.map(|received| {
            let stamp = received.ancillary.timestamp;
            let status = received.ancillary.packet_status;
            Arrival {
                length: received.length,
                // Zero for a clock that was set back meanwhile.
                age: stamp.map_or(Duration::ZERO, |stamp| {
                    now.duration_since(stamp).unwrap_or_default()
                }),
                offloaded: received.truncated
                    || status & (TP_STATUS_CSUMNOTREADY | TP_STATUS_VLAN_VALID) != 0,
            }
        }));
        Ok(())
    }

    /// Sends frames in their order; returns how many were sent before one failed.
    ///
    /// # Errors
    /// The error of the first frame: ENOBUFS if the other side has no room.
    pub(crate) fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        let messages = frames.map(|payload| Message {
            payload,
            destination: None,
            source: Ipv4Addr::UNSPECIFIED.into(),
            interface: 0,
        });
        self.messages
            .send(&self.socket, messages, libc::MSG_DONTWAIT)
    }

    /// Returns the frames so far that found the socket full.
    pub(crate) fn dropped(&mut self) -> u64 {
        // struct tpacket_stats: packets and drops since the last call.
        let mut counts = [0; size_of::<libc::tpacket_stats>()];
        let statistics = libc::PACKET_STATISTICS;
        if option_bytes(&self.socket, libc::SOL_PACKET, statistics, &mut counts).is_ok() {
            let [_, _, _, _, drops @ ..] = counts;
            self.dropped += u64::from(u32::from_ne_bytes(drops));
        }
        self.dropped
    }
}

/// Sleeps until a frame has arrived on one of the ports, or `timeout` is over. A signal
/// ends the sleep, too.
///
/// # Errors
/// The error of `ppoll`.
pub(crate) fn wait(ports: &[Port], timeout: Duration) -> io::Result<()> {
    let descriptors: Vec<_> = ports.iter().map(|port| port.socket.as_fd()).collect();
    wait_readable(&descriptors, timeout)
}
