//! The signalling link on the wire: frames of circuit 0.5, which the driver program leaves to
//! the kernel as those of any label that no application has.

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
/// Frames taken at once, so that everybody has his turn.
const FRAMES: usize = 64;
/// How often the next hop's link address is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long one that was found is used before it is looked for again.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Of a neighbour whose link address can be used: NUD_REACHABLE, STALE, DELAY, PROBE,
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
    /// The next hop's link address, and when it was looked for.
    neighbour: Option<[u8; 6]>,
    looked: Option<Duration>,
}

impl SignallingLink {
    /// Opens it.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; what the kernel reports.
    pub fn open(interface: u32, next_hop: IpAddr) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        // What applications send passes there, too.
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

    /// Gives PDUs that have come to `each`. What is of other labels, or no whole PDU, is
    /// passed over.
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

    /// Sends a PDU. False while the next hop's link address is looked for; one that the
    /// device does not take is as good as lost on the way.
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

    /// When what could not be sent is tried again.
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
                // It is asked for on the link.
                let _ = self.netlink.use_neighbour(self.interface, self.next_hop);
            }
        }
        self.neighbour
    }
}

impl AsFd for SignallingLink {
    /// Readable when frames have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
