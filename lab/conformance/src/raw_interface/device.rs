//! A link of this network namespace, queried for whether it accepts packets.

use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;

/// See the module documentation. The socket is kept, so a query costs one to three system
/// calls.
pub(super) struct Device {
    netlink: Rtnetlink,
    link: u32,
}

impl Device {
    /// The link of this name; `None` if there is none.
    pub(super) fn open(name: &str) -> Option<Self> {
        Some(Self {
            link: interface::index(name).ok()?,
            netlink: Rtnetlink::open().ok()?,
        })
    }

    /// False if the root queueing discipline currently is a FIFO that accepts nothing;
    /// true also if the kernel reports none.
    pub(super) fn has_room(&mut self) -> bool {
        !self.netlink.refuses_packets(self.link).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_room() {
        // Built in (`noqueue`): the kernel only acknowledges.
        let mut device = Device::open("lo").unwrap();
        for _ in 0..3 {
            assert!(device.has_room());
        }
    }

    #[test]
    fn no_link_is_no_device() {
        assert!(Device::open("none").is_none());
        assert!(Device::open("a\0b").is_none());
    }
}
