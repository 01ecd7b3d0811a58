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
/// Most that are kept for one application: the kernel probes each every few seconds.
const MOST: usize = 64;

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

    /// Keeps a neighbour for an application.
    ///
    /// # Errors
    /// ENOBUFS where the application has too many; what the kernel reports.
    pub(super) fn keep(
        &mut self,
        netlink: &mut Rtnetlink,
        interface: u32,
        address: IpAddr,
        application: u16,
    ) -> io::Result<()> {
        let own = |users: &Users| users & bit(application) != 0;
        let has = self.of.get(&address).is_some_and(own);
        if !has && self.of.values().filter(|users| own(users)).count() >= MOST {
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

/// Of an interface that is down it fails; when it comes up it is asked for again.
fn again(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    let _ = netlink.keep_neighbour(interface, address, PROTOCOL);
}

/// What fails here the kernel has forgotten, with the interface.
fn release(netlink: &mut Rtnetlink, interface: u32, address: IpAddr) {
    let _ = netlink.use_neighbour(interface, address);
}
