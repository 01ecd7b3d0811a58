//! Follows changes of the interface in the host: the host's addresses, its own addresses,
//! its name and its removal.

use std::io;

use tidewall_device::interface::{driver, is_physical, transmit_queue_count};
use tidewall_sys::interface;
use tidewall_sys::netlink::Change;
use tidewall_wire::ethernet::MacAddress;
use zerocopy::FromZeros;

use super::{DirectDevice, Private, removal};
use crate::protocol::{Joined, text};

impl DirectDevice {
    /// Link address and MTU, as far as they are known.
    pub(super) fn link(&self) -> (Option<MacAddress>, u32) {
        let attribute = |name: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{}/{name}", self.interface))
                .unwrap_or_default()
        };
        let mac = attribute("address").trim().parse().ok();
        (mac, attribute("mtu").trim().parse().unwrap_or(0))
    }

    /// Rewrites the interface's link address and MTU in the driver program's map, which
    /// are used to check frames of private applications.
    pub(super) fn refresh_link(&mut self) {
        // An MTU of 0 lets nothing pass.
        let (mac, mtu) = self.link();
        let mac = mac.unwrap_or(MacAddress([0; 6]));
        self.program.trusted().set_device(self.index, mac, mtu);
        self.described = Joined {
            name: text(&self.interface),
            driver: text(&driver(&self.interface).unwrap_or_default()),
            index: self.index,
            mtu,
            transmit_queues: transmit_queue_count(&self.interface).unwrap_or(0),
            mac: mac.0,
            mode: self.own.queues as u8,
            checksum_offload_possible: (!is_physical(&self.interface)).into(),
            ..Joined::new_zeroed()
        };
    }

    /// Rewrites the addresses of this host in the driver program's map.
    ///
    /// # Errors
    /// ENOBUFS if there are too many; what the kernel reports.
    pub fn refresh_addresses(&mut self) -> io::Result<()> {
        let addresses = self.netlink.addresses_at(self.index)?;
        self.program.trusted().set_locals(&addresses)
    }

    /// Rewrites in the driver program's map which frames the kernel can use although they
    /// are not for this host.
    pub(in crate::daemon) fn refresh_uses(&mut self) {
        self.program.trusted().set_kernel_uses(self.uses.read());
    }

    /// Follows changes in the host: its addresses, the interface's own, and neighbours
    /// that must be kept resolved.
    ///
    /// # Errors
    /// As [`DirectDevice::refresh_addresses`].
    pub fn host_changed(&mut self, changes: &[Change]) -> io::Result<()> {
        self.neighbours
            .changed(&mut self.netlink, self.index, changes);
        if self.uses.note(changes) {
            self.refresh_uses();
        }
        let index = self.index;
        let of_link = |change: &Change| match change {
            Change::Link(link) => link.index == index,
            change => matches!(change, Change::Missed),
        };
        if changes.iter().any(of_link) {
            self.follow_name();
            self.refresh_link();
            // An interface that was down has new threads, which lose their priority.
            self.polled = false;
            if self.private.as_ref().is_some_and(Private::is_used) {
                self.switch_at = None;
            }
        }
        let of_addresses = |change: &Change| matches!(change, Change::Address | Change::Missed);
        match changes.iter().any(of_addresses) {
            true => self.refresh_addresses(),
            false => Ok(()),
        }
    }

    /// Follows a renaming of the interface, which may happen up or down. Socket and pins
    /// keep the earlier name.
    fn follow_name(&mut self) {
        if let Ok(name) = interface::name(self.index)
            && name != self.interface
        {
            self.queues.rename(&name);
            if let Some(private) = &mut self.private {
                private.rename(&name);
            }
            self.interface = name;
        }
    }

    /// Checks that none of these changes removed the interface.
    ///
    /// # Errors
    /// `NotFound`, with the remedy.
    pub fn is_there(&self, changes: &[Change]) -> io::Result<()> {
        if changes.contains(&Change::Moved(self.index)) {
            return Err(removal::moved(&self.interface, &self.own));
        }
        let gone = Change::Gone(self.index);
        let missed = || changes.contains(&Change::Missed) && interface::name(self.index).is_err();
        match changes.contains(&gone) || missed() {
            true => Err(removal::no_interface(&self.interface)),
            false => Ok(()),
        }
    }
}
