//! Neighbours that the kernel keeps resolved for applications (`NTF_EXT_MANAGED`), as
//! long as one of the requesting applications lives.
//!
//! The kernel forgets them when its neighbours are flushed and when the interface goes
//! down; they are then requested again. They outlive the manager: its successor finds
//! them by `NDA_PROTOCOL`.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use tidewall_device::demux::layout::APPLICATIONS;
use tidewall_sys::netlink::{Change, Rtnetlink};

/// Their protocol number: one that rtnetlink(7) leaves to user space and that is not
/// registered (linux/rtnetlink.h, `RTPROT_`).
const PROTOCOL: u8 = 0x54;
/// Maximum number for the applications of one user: the kernel probes each every few
/// seconds.
const MOST_OF_USER: usize = 64;
/// Maximum total number: the kernel usually has room for 1,024 of all interfaces
/// (`gc_thresh3`).
const MOST: usize = 256;

const _: () = assert!(APPLICATIONS <= Users::BITS as usize);

/// One bit per application.
type Users = u128;

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    of: BTreeMap<IpAddr, Users>,
}

impl Neighbours {
    /// Recovers the neighbours of an earlier run, for these applications of it. It is
    /// unknown which application requested which.
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

    /// Keeps a neighbour for an application. `of_user` are all applications of its user.
    /// A neighbour that an administrator has entered is left as it is.
    ///
    /// # Errors
    /// EINVAL for an address that is not a unicast neighbour by any route of the
    /// interface; ENOBUFS where the user, or all users together, have too many; what the
    /// kernel reports.
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
            // The kernel does not support it (before Linux 5.16): resolve once instead.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return netlink.use_neighbour(interface, address);
            }
            result => result?,
        }
        *self.of.entry(address).or_default() |= bit(application);
        Ok(())
    }

    /// Releases those that only this application had requested.
    pub(super) fn clear(&mut self, netlink: &mut Rtnetlink, interface: u32, application: u16) {
        self.of.retain(|&address, users| {
            *users &= !bit(application);
            if *users == 0 {
                release(netlink, interface, address);
            }
            *users != 0
        });
    }

    /// Releases all.
    pub(super) fn clear_all(&mut self, netlink: &mut Rtnetlink, interface: u32) {
        for address in std::mem::take(&mut self.of).into_keys() {
            release(netlink, interface, address);
        }
    }

    /// Requests again those that the kernel has forgotten.
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

/// Keeping a permanent neighbour resolved, or releasing it, would make the kernel forget
/// its link address.
fn is_static(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) -> bool {
    let neighbour = netlink.neighbour(interface, address);
    neighbour.is_ok_and(|neighbour| neighbour.is_static())
}

/// Fails for an interface that is down; when it comes up the neighbour is requested
/// again.
fn again(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    if !is_static(netlink, interface, address) {
        let _ = netlink.keep_neighbour(interface, address, PROTOCOL);
    }
}

/// If this fails the kernel has forgotten it, with the interface.
fn release(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    if !is_static(netlink, interface, address) {
        let _ = netlink.use_neighbour(interface, address);
    }
}
