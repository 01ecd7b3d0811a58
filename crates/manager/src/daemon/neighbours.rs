//! Neighbours that the kernel keeps resolved for applications (`NTF_EXT_MANAGED`), as
//! long as one of those who asked lives.
//!
//! The kernel forgets them when somebody flushes its neighbours and when the interface
//! goes down; they are asked for again then. They outlive the manager: who takes over
//! finds them by `NDA_PROTOCOL`.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use tidewall_device::demux::layout::APPLICATIONS;
use tidewall_sys::netlink::{Change, Rtnetlink};

/// By whom they are kept: a number that rtnetlink(7) leaves to user space and nobody has
/// registered (linux/rtnetlink.h, `RTPROT_`).
const PROTOCOL: u8 = 0x54;
/// Most that are kept for the applications of one user: the kernel probes each every few
/// seconds.
const MOST_OF_USER: usize = 64;
/// Most that are kept altogether: the kernel has room for 1,024 of all interfaces as a rule
/// (`gc_thresh3`).
const MOST: usize = 256;

const _: () = assert!(APPLICATIONS <= Users::BITS as usize);

/// A bit for each application.
type Users = u128;

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    of: BTreeMap<IpAddr, Users>,
}

impl Neighbours {
    /// What an earlier run kept, for these applications of it; nobody knows for which of
    /// them.
    pub(super) fn recover(
        netlink: &mut Rtnetlink,
        interface: u32,
        applications: impl Iterator<Item = u16>,
    ) -> io::Result<Self> {
        let users = applications.fold(0, |users, number| users | bit(number));
        let mut neighbours = Neighbours::default();
        for address in netlink.kept_neighbours(interface, PROTOCOL)? {
            if users == 0 {
                release(netlink, interface, address);
            } else {
                neighbours.of.insert(address, users);
            }
        }
        Ok(neighbours)
    }

    /// Keeps a neighbour for an application. `of_user` are all those of its user. A neighbour
    /// that the administrator has entered is left as it is.
    ///
    /// # Errors
    /// EINVAL for an address that no route of the interface leads to as a unicast neighbour's;
    /// ENOBUFS where the user has too many, or all have; what the kernel reports.
    pub(super) fn keep(
        &mut self,
        netlink: &mut Rtnetlink,
        interface: u32,
        address: IpAddr,
        application: u16,
        of_user: impl Iterator<Item = u16>,
    ) -> io::Result<()> {
        if address.is_multicast() || !netlink.reaches(interface, address)? {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if is_static(netlink, interface, address) {
            return Ok(());
        }
        let of_user = of_user.fold(bit(application), |users, number| users | bit(number));
        let is_theirs = |users: &Users| users & of_user != 0;
        let has = self.of.get(&address).is_some_and(is_theirs);
        let theirs = self.of.values().filter(|users| is_theirs(users)).count();
        if !has && (theirs >= MOST_OF_USER || self.of.len() >= MOST) {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        match netlink.keep_neighbour(interface, address, PROTOCOL) {
            // The kernel knows of no such thing (before Linux 5.16): once, then.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return netlink.use_neighbour(interface, address);
            }
            result => result?,
        }
        *self.of.entry(address).or_default() |= bit(application);
        Ok(())
    }

    /// Lets go of those that only this application had asked for.
    pub(super) fn clear(&mut self, netlink: &mut Rtnetlink, interface: u32, application: u16) {
        self.of.retain(|&address, users| {
            *users &= !bit(application);
            if *users == 0 {
                release(netlink, interface, address);
            }
            *users != 0
        });
    }

    /// Lets go of all.
    pub(super) fn clear_all(&mut self, netlink: &mut Rtnetlink, interface: u32) {
        for address in std::mem::take(&mut self.of).into_keys() {
            release(netlink, interface, address);
        }
    }

    /// Asks again for what the kernel has forgotten.
    pub(super) fn changed(&self, netlink: &mut Rtnetlink, interface: u32, changes: &[Change]) {
        for change in changes {
            match change {
                Change::NeighbourGone(index, address)
                    if *index == interface && self.of.contains_key(address) =>
                {
                    again(netlink, interface, *address);
                }
                Change::Link(link) if link.index == interface => self.all_again(netlink, interface),
                Change::Missed => self.all_again(netlink, interface),
                _ => {}
            }
        }
    }

    fn all_again(&self, netlink: &mut Rtnetlink, interface: u32) {
        for &address in self.of.keys() {
            again(netlink, interface, address);
        }
    }
}

fn bit(application: u16) -> Users {
    1u128.checked_shl(application.into()).unwrap_or(0)
}

/// To keep a permanent neighbour resolved would make the kernel forget its link address, and
/// so would letting go of it.
fn is_static(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) -> bool {
    let neighbour = netlink.neighbour(interface, address);
    neighbour.is_ok_and(|neighbour| neighbour.is_static())
}

/// Of an interface that is down it fails; when it comes up it is asked for again.
fn again(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    if !is_static(netlink, interface, address) {
        let _ = netlink.keep_neighbour(interface, address, PROTOCOL);
    }
}

/// What fails here the kernel has forgotten, with the interface.
fn release(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    if !is_static(netlink, interface, address) {
        let _ = netlink.use_neighbour(interface, address);
    }
}
