//! A link of this network namespace, asked whether it takes packets.

use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;

/// See the module. The socket is kept: what a question costs is a system call or
/// three.
pub(super) struct Device {
    netlink: Rtnetlink,
    link: u32,
}

impl Device {
    /// The link of this name; nothing when there is none.
    pub(super) fn open(name: &str) -> Option<Self> {
        Some(Self {
            link: interface::index(name).ok()?,
            netlink: Rtnetlink::open().ok()?,
        })
    }

    /// False when the root queueing discipline, as it is now, is a FIFO that
    /// takes nothing; true also when the kernel does not say.
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
