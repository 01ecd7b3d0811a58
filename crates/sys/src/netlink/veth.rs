//! rtnetlink(7): creates, groups and deletes virtual pairs, and attaches programs to
//! them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::route::{
    IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU, IFLA_XDP, RTM_DELLINK, RTM_GETLINK,
    RTM_NEWLINK, Rtnetlink,
};
use super::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, attribute, find, word};
use crate::address::chunk;

const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
/// linux/if_link.h: do not replace a program, and run it in the driver.
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// Bytes of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// Bytes of `struct tcmsg`.
const TC_HEADER: usize = 20;
/// linux/rtnetlink.h: replaces the interface for a filter of a shared block.
const TCM_IFINDEX_MAGIC_BLOCK: u32 = u32::MAX;
/// linux/pkt_sched.h.
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const TCA_INGRESS_BLOCK: u16 = 13;
/// linux/pkt_cls.h.
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u16 = 3;

/// A virtual pair to create, with one queue in each direction.
#[derive(Clone, Copy, Debug)]
pub struct VethPair<'a> {
    /// Names of both ends.
    pub names: [&'a str; 2],
    /// Group of both ends (ip-link(8)), for deleting many at once.
    pub group: u32,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
}

/// An interface of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLink {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// `struct ifinfomsg`: family and type, index, flags, mask of changed flags.
fn link_body(index: u32, flags: u32, change: u32) -> Vec<u8> {
    [0, index, flags, change].map(u32::to_ne_bytes).concat()
}

fn closed(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// Attributes with which either end of a pair is created.
fn end(name: &str, pair: &VethPair<'_>) -> Vec<u8> {
    let mut end = Vec::new();
    attribute(&mut end, IFLA_IFNAME, &closed(name));
    attribute(&mut end, IFLA_MTU, &pair.mtu.to_ne_bytes());
    attribute(&mut end, IFLA_GROUP, &pair.group.to_ne_bytes());
    for queues in [IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES] {
        attribute(&mut end, queues, &1u32.to_ne_bytes());
    }
    end
}

impl Rtnetlink {
    /// Creates a virtual pair, with both ends down.
    ///
    /// # Errors
    /// EEXIST if a name is taken; EPERM without CAP_NET_ADMIN; EOPNOTSUPP if the kernel
    /// has no veth; the kernel's errors.
    pub fn make_veth(&mut self, pair: &VethPair<'_>) -> io::Result<()> {
        let [name, peer] = pair.names;
        let mut peer_end = link_body(0, 0, 0);
        peer_end.extend(end(peer, pair));
        let (mut data, mut info) = (Vec::new(), Vec::new());
        attribute(&mut data, VETH_INFO_PEER, &peer_end);
        attribute(&mut info, IFLA_INFO_KIND, b"veth");
        attribute(&mut info, IFLA_INFO_DATA, &data);
        let mut body = link_body(0, 0, 0);
        body.extend(end(name, pair));
        attribute(&mut body, IFLA_LINKINFO, &info);
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        self.0.exchange(RTM_NEWLINK, flags, &body).map(drop)
    }

    fn set_link(&mut self, body: &[u8]) -> io::Result<()> {
        self.0.exchange(RTM_NEWLINK, NLM_F_ACK, body).map(drop)
    }

    /// Sets an interface up or down. Without ARP, it resolves no neighbours.
    ///
    /// # Errors
    /// ENODEV; EPERM without CAP_NET_ADMIN; the kernel's errors.
    pub fn set_up(&mut self, index: u32, up: bool, arp: bool) -> io::Result<()> {
        let bit = |set: bool, flag: i32| if set { flag as u32 } else { 0 };
        let flags = bit(up, libc::IFF_UP) | bit(!arp, libc::IFF_NOARP);
        let change = (libc::IFF_UP | libc::IFF_NOARP) as u32;
        self.set_link(&link_body(index, flags, change))
    }

    /// Makes IPv6 assign an interface no address when it is set up.
    ///
    /// # Errors
    /// ENODEV; EAFNOSUPPORT in a kernel without IPv6; the kernel's errors.
    pub fn set_no_address_generation(&mut self, index: u32) -> io::Result<()> {
        let (mut mode, mut families) = (Vec::new(), Vec::new());
        attribute(
            &mut mode,
            IFLA_INET6_ADDR_GEN_MODE,
            &[IN6_ADDR_GEN_MODE_NONE],
        );
        attribute(&mut families, libc::AF_INET6 as u16, &mode);
        let mut body = link_body(index, 0, 0);
        attribute(&mut body, IFLA_AF_SPEC, &families);
        self.set_link(&body)
    }

    /// Sets the MTU of an interface, in bytes.
    ///
    /// # Errors
    /// ENODEV; EINVAL if the device does not support it; the kernel's errors.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let mut body = link_body(index, 0, 0);
        attribute(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        self.set_link(&body)
    }

    /// Moves an interface into a group.
    ///
    /// # Errors
    /// ENODEV; the kernel's errors.
    pub fn set_group(&mut self, index: u32, group: u32) -> io::Result<()> {
        let mut body = link_body(index, 0, 0);
        attribute(&mut body, IFLA_GROUP, &group.to_ne_bytes());
        self.set_link(&body)
    }

    /// Attaches an XDP program in the driver for as long as the interface exists, even
    /// after the caller ends.
    ///
    /// # Errors
    /// EBUSY if there is a program; the kernel's errors.
    pub fn attach_xdp(&mut self, index: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        let flags = XDP_FLAGS_UPDATE_IF_NOEXIST | XDP_FLAGS_DRV_MODE;
        let mut xdp = Vec::new();
        attribute(&mut xdp, IFLA_XDP_FD, &program.as_raw_fd().to_ne_bytes());
        attribute(&mut xdp, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
        let mut body = link_body(index, 0, 0);
        attribute(&mut body, IFLA_XDP, &xdp);
        self.set_link(&body)
    }

    /// Deletes an interface; for a pair, both ends.
    ///
    /// # Errors
    /// ENODEV; the kernel's errors.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        let body = link_body(index, 0, 0);
        self.0.exchange(RTM_DELLINK, NLM_F_ACK, &body).map(drop)
    }

    /// Deletes all interfaces of a group; for a pair, both ends if either is in it. Does
    /// nothing if there are none.
    ///
    /// # Errors
    /// EPERM for group 0; the kernel's errors.
    pub fn delete_group(&mut self, group: u32) -> io::Result<()> {
        let mut body = link_body(0, 0, 0);
        attribute(&mut body, IFLA_GROUP, &group.to_ne_bytes());
        match self.0.exchange(RTM_DELLINK, NLM_F_ACK, &body) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(error),
            _ => Ok(()),
        }
    }

    /// The interfaces of a group.
    ///
    /// # Errors
    /// ENOBUFS, ENOMEM.
    pub fn links_of_group(&mut self, group: u32) -> io::Result<Vec<GroupLink>> {
        let answers = self
            .0
            .exchange(RTM_GETLINK, NLM_F_DUMP, &link_body(0, 0, 0))?;
        let link = |(_, body): &(u16, Vec<u8>)| {
            let values = body.get(LINK_HEADER..)?;
            (find(values, IFLA_GROUP).map(word) == Some(group)).then_some(())?;
            let name = find(values, IFLA_IFNAME)?;
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            Some(GroupLink {
                index: u32::from_ne_bytes(chunk(body, 4)?),
                name: String::from_utf8_lossy(name).into_owned(),
            })
        };
        Ok(answers.iter().filter_map(link).collect())
    }

    /// Makes the filters of a block (tc(8), "shared blocks") see the packets that an
    /// interface receives. The block is created with its first interface.
    ///
    /// # Errors
    /// EEXIST if the interface has a clsact; ENODEV; the kernel's errors.
    pub fn add_clsact(&mut self, index: u32, block: u32) -> io::Result<()> {
        let mut body = tc_body(index, CLSACT_HANDLE, TC_H_CLSACT, 0);
        attribute(&mut body, libc::TCA_KIND, b"clsact\0");
        attribute(&mut body, TCA_INGRESS_BLOCK, &block.to_ne_bytes());
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        self.0.exchange(libc::RTM_NEWQDISC, flags, &body).map(drop)
    }

    /// Adds a program that decides the fate of each frame (direct action) to a block.
    ///
    /// # Errors
    /// EEXIST if the block has a filter; EINVAL if there is no such block; the kernel's
    /// errors.
    pub fn add_block_filter(&mut self, block: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        // Preference 1, all protocols.
        let info = 1 << 16 | u32::from(ETH_P_ALL.to_be());
        let mut body = tc_body(TCM_IFINDEX_MAGIC_BLOCK, 1, block, info);
        attribute(&mut body, libc::TCA_KIND, b"bpf\0");
        let mut options = Vec::new();
        attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
        attribute(&mut options, TCA_BPF_NAME, b"tidewall\0");
        let direct = TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes();
        attribute(&mut options, TCA_BPF_FLAGS, &direct);
        attribute(&mut body, libc::TCA_OPTIONS, &options);
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
        self.0
            .exchange(libc::RTM_NEWTFILTER, flags, &body)
            .map(drop)
    }
}

/// `struct tcmsg`: family, interface, handle, parent, info.
fn tc_body(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let body = [0, index, handle, parent, info]
        .map(u32::to_ne_bytes)
        .concat();
    debug_assert_eq!(body.len(), TC_HEADER);
    body
}
