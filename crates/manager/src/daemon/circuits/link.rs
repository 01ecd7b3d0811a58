//! The signalling link on the wire: frames of circuit 0.5, which the driver program
//! leaves to the kernel like those of any unowned label.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use tidewall_sys::interface::{bind_packet, ignore_outgoing, send_packet};
use tidewall_sys::netlink::Rtnetlink;
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::aal5::{self, Pdu};
use tidewall_wire::atm::pseudowire::{FrameHeader, HEADER_LEN, Label, Packet};

/// ETH_P_MPLS_UC.
const MPLS: u16 = 0x8847;
/// Frames taken at once, so that every client gets its turn.
const FRAMES: usize = 64;
/// How often to look up the next hop's link address.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a link address is used before it is looked up again.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// States of a neighbour with a usable link address: NUD_REACHABLE, STALE, DELAY, PROBE,
/// NOARP and PERMANENT.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

const SIGNALLING: Label = match Label::of_circuit(Circuit::SIGNALLING) {
    Some(label) => label,
    None => panic!("0.5 has a label"),
};

/// A packet socket for circuit 0.5 of an interface.
#[derive(Debug)]
pub struct SignallingLink {
    socket: OwnedFd,
    interface: u32,
    next_hop: IpAddr,
    netlink: Rtnetlink,
    /// The next hop's link address, and the time of its lookup.
    neighbour: Option<[u8; 6]>,
    looked: Option<Duration>,
}

impl SignallingLink {
    /// Opens the socket.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; what the kernel reports.
    pub fn open(interface: u32, next_hop: IpAddr) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        // Frames that applications send also pass there.
        ignore_outgoing(&socket)?;
        bind_packet(&socket, interface, MPLS)?;
        Ok(SignallingLink {
            socket,
            interface,
            next_hop,
            netlink: Rtnetlink::open()?,
            neighbour: None,
            looked: None,
        })
    }

    /// Passes received PDUs to `each`. Skips other labels, and anything that is not a
    /// whole PDU.
    pub fn receive(&self, mut each: impl FnMut(&[u8])) {
        let mut buffer = [0; 9216];
        for _ in 0..FRAMES {
            let Ok((length, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()) else {
                return;
            };
            let frame = buffer.get(..length).unwrap_or_default();
            let Ok(packet) = Packet::new(frame) else {
                continue;
            };
            if packet.label() != SIGNALLING {
                continue;
            }
            if let Ok(part) = packet.frame()
                && part.header.last
                && let Ok(pdu) = Pdu::new(part.bytes)
            {
                each(pdu.payload());
            }
        }
    }

    /// Sends a PDU. False while the next hop's link address is being resolved. One that
    /// the device does not accept counts as lost on the way.
    pub fn send(&mut self, pdu: &[u8], now: Duration) -> bool {
        let Some(neighbour) = self.neighbour(now) else {
            return false;
        };
        let mut frame = vec![0; HEADER_LEN + aal5::pdu_len(pdu.len())];
        if let Ok(rest) = FrameHeader::whole(SIGNALLING).emit(&mut frame)
            && aal5::emit(pdu, 0, rest).is_ok()
        {
            let _ = send_packet(&self.socket, self.interface, MPLS, neighbour, &frame);
        }
        true
    }

    /// Time at which to retry what could not be sent.
    pub fn look_at(&self) -> Option<Duration> {
        self.looked.map(|at| at + LOOK_EVERY)
    }

    fn neighbour(&mut self, now: Duration) -> Option<[u8; 6]> {
        let every = match self.neighbour {
            Some(_) => KNOWN_FOR,
            None => LOOK_EVERY,
        };
        if self.looked.is_some_and(|at| now < at + every) {
            return self.neighbour;
        }
        self.looked = Some(now);
        let found = self.netlink.neighbour(self.interface, self.next_hop);
        match found.ok().filter(|it| it.state & USABLE != 0) {
            Some(it) => self.neighbour = Some(it.address),
            None => {
                self.neighbour = None;
                // This triggers resolution on the link.
                let _ = self.netlink.use_neighbour(self.interface, self.next_hop);
            }
        }
        self.neighbour
    }
}

impl AsFd for SignallingLink {
    /// Becomes readable when frames have arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
