//! Reads, without privileges, what Linux reports about an interface.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use tidewall_sys::ethtool::{
    DRIVER_BYTES, GET_DRIVER, GET_SEGMENTATION, NAME_BYTES, VALUE_BYTES, call,
};
use tidewall_sys::interface::{self, any_socket};
use tidewall_sys::netlink::{Change, Rtnetlink};

use crate::demux::KernelUses;
use crate::demux::layout::LOCALS;

/// Receive queues of an interface, `None` where sysfs does not show it.
pub fn queue_count(interface: &str) -> Option<u32> {
    let [receive, _] = queue_counts(interface)?;
    Some(receive).filter(|&count| count > 0)
}

/// Transmit queues of an interface, `None` where sysfs does not show it.
pub fn transmit_queue_count(interface: &str) -> Option<u32> {
    let [_, transmit] = queue_counts(interface)?;
    Some(transmit).filter(|&count| count > 0)
}

/// Receive and transmit queues of an interface, `None` where sysfs does not show it.
pub fn queue_counts(interface: &str) -> Option<[u32; 2]> {
    let entries = std::fs::read_dir(format!("/sys/class/net/{interface}/queues")).ok()?;
    let mut counts = [0; 2];
    for entry in entries.flatten() {
        let name = entry.file_name();
        for (count, prefix) in counts.iter_mut().zip(["rx-", "tx-"]) {
            *count += u32::from(name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        }
    }
    Some(counts)
}

/// True for hardware, including that of a virtual machine.
pub fn is_physical(interface: &str) -> bool {
    Path::new(&format!("/sys/class/net/{interface}/device")).exists()
}

/// True where the host forwards IPv4 or IPv6 packets that arrive on an interface.
fn forwards(interface: &str) -> bool {
    has_set(interface, "ipv4", "forwarding") || has_set(interface, "ipv6", "forwarding")
}

/// Whether a setting of an interface is nonzero; false without the protocol, or without
/// /proc.
fn has_set(interface: &str, protocol: &str, setting: &str) -> bool {
    let path = format!("/proc/sys/net/{protocol}/conf/{interface}/{setting}");
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
}

/// Routes that are searched for those that this host terminates. A host with more is a
/// router, in any namespace.
const MOST_ROUTES: usize = 16_384;

/// Reads the kernel's uses of an interface's frames that are not for this host.
#[derive(Debug)]
pub struct UsesReader {
    index: u32,
    /// Interfaces stacked on this one when last notified.
    above: BTreeSet<u32>,
    /// One of those moved to another network namespace, where it is still stacked on this
    /// one.
    has_moved: bool,
    /// [`UsesReader::note`] was called.
    is_followed: bool,
}

impl UsesReader {
    /// Creates a reader for the interface with this index, in the caller's network
    /// namespace.
    pub fn new(index: u32) -> Self {
        UsesReader {
            index,
            above: BTreeSet::new(),
            has_moved: false,
            is_followed: false,
        }
    }

    /// Notes what has changed in the namespace. Returns true where the uses must be read
    /// again, as on the first call: they may have changed before changes were followed.
    pub fn note(&mut self, changes: &[Change]) -> bool {
        for change in changes {
            match change {
                Change::Link(link) if link.is_above(self.index) => {
                    self.above.insert(link.index);
                }
                Change::Moved(index) => self.has_moved |= self.above.remove(index),
                Change::Gone(index) => {
                    self.above.remove(index);
                }
                _ => {}
            }
        }
        let counts = |change: &Change| !matches!(change, Change::NeighbourGone(..));
        let is_first = !std::mem::replace(&mut self.is_followed, true);
        is_first || changes.iter().any(counts)
    }

    /// Reads the kernel's current uses of such frames. If the kernel does not report
    /// them, all uses are assumed.
    pub fn read(&mut self) -> KernelUses {
        let Ok(name) = interface::name(self.index) else {
            return KernelUses::default();
        };
        let is_forwarding = forwards(&name);
        // A router has many routes, and interfaces come and go: they are not read.
        let is_open = is_forwarding || self.has_others(&name).unwrap_or(true);
        KernelUses {
            is_forwarding,
            is_open,
        }
    }

    fn has_others(&mut self, name: &str) -> io::Result<bool> {
        let mut netlink = Rtnetlink::open()?;
        let links = netlink.links()?;
        let above = links.iter().filter(|link| link.is_above(self.index));
        let above: Vec<u32> = above.map(|link| link.index).collect();
        // An interface that is missing may have moved, which is reported later.
        self.above.extend(&above);
        let own = links.iter().find(|link| link.index == self.index);
        Ok(self.has_moved
            || !above.is_empty()
            || own.is_none_or(|link| link.controller != 0 || link.promiscuity > 0)
            || has_set(name, "mpls", "input")
            // The driver program takes addresses that it does not know for those of
            // others.
            || netlink.addresses_at(self.index)?.len() > LOCALS
            || netlink.has_local_routes(MOST_ROUTES)?)
    }
}

/// Position and length of the driver's name in `struct ethtool_drvinfo`.
const DRIVER_NAME: std::ops::Range<usize> = 4..36;

/// The name of an interface's driver (`ethtool -i`), such as `virtio_net`.
///
/// # Errors
/// EOPNOTSUPP where there is no driver (the loopback device); ENODEV for no such
/// interface; `InvalidInput` for what cannot be an interface name.
pub fn driver(interface: &str) -> io::Result<String> {
    let mut request = [0; DRIVER_BYTES];
    request[..4].copy_from_slice(&GET_DRIVER.to_ne_bytes());
    ask(interface, &mut request)?;
    let name = request[DRIVER_NAME].split(|&byte| byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Whether an interface's device splits long TCP segments (`ethtool -k`, TSO).
///
/// # Errors
/// As [`driver`].
pub fn cuts_segments(interface: &str) -> io::Result<bool> {
    let mut request = [0; VALUE_BYTES];
    request[..4].copy_from_slice(&GET_SEGMENTATION.to_ne_bytes());
    ask(interface, &mut request)?;
    Ok(request[4..] != [0; VALUE_BYTES - 4])
}

/// Carries out an ethtool request, in the caller's network namespace.
fn ask(interface: &str, request: &mut [u8]) -> io::Result<()> {
    let socket = any_socket()?;
    call(socket.as_fd(), &name_bytes(interface)?, request)
}

/// An interface name in the kernel's format.
///
/// # Errors
/// `InvalidInput` for what cannot be one.
pub fn name_bytes(interface: &str) -> io::Result<[u8; NAME_BYTES]> {
    let bytes = interface.as_bytes();
    // Same check as the kernel's dev_valid_name(); names also become parts of paths.
    let allowed = |&byte: &u8| byte != 0 && byte != b'/' && !byte.is_ascii_whitespace();
    let fits = !bytes.is_empty() && bytes.len() < NAME_BYTES && bytes.iter().all(allowed);
    if !fits || matches!(interface, "." | "..") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{interface:?} is not an interface name"),
        ));
    }
    let mut name = [0; NAME_BYTES];
    for (to, from) in name.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_checked_before_they_go_anywhere() {
        assert_eq!(
            &name_bytes("eth0").unwrap(),
            b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
        assert!(name_bytes("fifteen-letters").is_ok());
        for name in ["", "sixteen-letters!", "a/b", "a b", "a\0", ".", ".."] {
            let error = name_bytes(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    fn a_device_without_a_driver_says_so() {
        let refused = |interface: &str| driver(interface).unwrap_err();
        assert_eq!(refused("lo").raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(refused("tw-none-such").raw_os_error(), Some(libc::ENODEV));
        assert_eq!(refused("a/b").kind(), io::ErrorKind::InvalidInput);
    }
}
