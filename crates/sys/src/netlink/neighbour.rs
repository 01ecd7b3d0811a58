//! Neighbours (`struct ndmsg`, linux/neighbour.h).

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use super::route::{Rtnetlink, address as ip, family, octets};
use super::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, attribute, find, word};
use crate::address::chunk;

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PROTOCOL: u16 = 12;
const NDA_FLAGS_EXT: u16 = 15;
/// Treat the neighbour as used: resolve it, or check it if stale.
const NTF_USE: u8 = 1;
/// In NDA_FLAGS_EXT: the kernel keeps it resolved, used or not.
const NTF_EXT_MANAGED: u32 = 1;

/// NUD_NOARP and NUD_PERMANENT: an entry of an administrator, or one that needs no
/// resolution.
const STATIC: u16 = 0x40 | 0x80;

/// A neighbour's link address and its NUD state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its Ethernet address.
    pub address: [u8; 6],
    /// NUD_* bits.
    pub state: u16,
}

impl Neighbour {
    /// True for a neighbour that the kernel neither resolves nor removes: it is
    /// permanent, or needs no resolution.
    pub fn is_static(&self) -> bool {
        self.state & STATIC != 0
    }
}

impl Rtnetlink {
    /// The neighbour entry of `address` on `interface`.
    ///
    /// # Errors
    /// ENOENT when there is none.
    pub fn neighbour(&mut self, interface: u32, address: IpAddr) -> io::Result<Neighbour> {
        let body = body_of(interface, address, 0);
        let reply = self.0.first(RTM_GETNEIGH, 0, &body)?;
        let state = chunk(&reply, 8).ok_or(io::ErrorKind::InvalidData)?;
        find(reply.get(12..).unwrap_or_default(), NDA_LLADDR)
            .and_then(|value| value.try_into().ok())
            .map(|address| Neighbour {
                address,
                state: u16::from_ne_bytes(state),
            })
            .ok_or_else(|| Errno::NOENT.into())
    }

    /// Makes the kernel resolve the link address of `address`, or check the known one, as
    /// a datagram through it would.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN.
    pub fn use_neighbour(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        let body = body_of(interface, address, NTF_USE);
        let flags = NLM_F_CREATE | NLM_F_ACK;
        self.0.exchange(RTM_NEWNEIGH, flags, &body).map(drop)
    }

    /// Makes the kernel resolve `address` now and keep it resolved, used or not, until
    /// [`Rtnetlink::use_neighbour`] is called for it. `protocol` identifies the owner of
    /// the entry (`NDA_PROTOCOL`).
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; EINVAL before Linux 5.16; ENETDOWN.
    pub fn keep_neighbour(
        &mut self,
        interface: u32,
        address: IpAddr,
        protocol: u8,
    ) -> io::Result<()> {
        let mut body = body_of(interface, address, 0);
        attribute(&mut body, NDA_FLAGS_EXT, &NTF_EXT_MANAGED.to_ne_bytes());
        attribute(&mut body, NDA_PROTOCOL, &[protocol]);
        let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        self.0.exchange(RTM_NEWNEIGH, flags, &body).map(drop)
    }

    /// Neighbours of an interface that the kernel keeps resolved for this `protocol`.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn kept_neighbours(&mut self, interface: u32, protocol: u8) -> io::Result<Vec<IpAddr>> {
        // struct ndmsg
        let answers = self.0.exchange(RTM_GETNEIGH, NLM_F_DUMP, &[0; 12])?;
        let of_interface = answers.iter().filter_map(|(_, body)| {
            let (index, address, values) = fields(body)?;
            let flags = find(values, NDA_FLAGS_EXT).map_or(0, word);
            let ours = find(values, NDA_PROTOCOL) == Some(&[protocol][..]);
            (index == interface && ours && flags & NTF_EXT_MANAGED != 0).then_some(address)
        });
        Ok(of_interface.collect())
    }
}

/// Interface, address and attributes of a neighbour.
pub(super) fn fields(body: &[u8]) -> Option<(u32, IpAddr, &[u8])> {
    // struct ndmsg: family and pad, index, state, flags, type
    let index = u32::from_ne_bytes(chunk(body, 4)?);
    let values = body.get(12..)?;
    Some((index, ip(find(values, NDA_DST)?)?, values))
}

fn body_of(interface: u32, address: IpAddr, flags: u8) -> Vec<u8> {
    let mut body = vec![family(address), 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend([0, 0, flags, 0]);
    attribute(&mut body, NDA_DST, &octets(address));
    body
}
