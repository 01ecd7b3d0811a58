//! The host's interface and addresses, as the stack reads them.

use std::io;
use std::net::IpAddr;

use tidewall_protocol::tcp::Sysctl;
use tidewall_sys::interface;
use tidewall_wire::ethernet::MacAddress;

use crate::kernel_calls::local_addresses;

/// An interface as it was read once.
#[derive(Clone, Debug)]
pub struct Interface {
    pub index: u32,
    pub mac: MacAddress,
    pub mtu: usize,
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// Reads sysfs and the address list (see [`local_addresses`]).
    ///
    /// # Errors
    /// ENODEV when there is no such interface in this network namespace.
    pub fn read(name: &str) -> io::Result<Self> {
        let attribute = |what: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{name}/{what}"))
                .map(|text| text.trim().to_owned())
                .map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => io::Error::new(
                        io::ErrorKind::NotFound,
                        match interface::index(name) {
                            Ok(_) => format!(
                                "/sys is of another network namespace, so that nothing can be read of {name}: \
                                 mount -t sysfs sysfs /sys (`ip netns exec` does that)"
                            ),
                            Err(_) => format!(
                                "no interface {name} in this network namespace (see: ip link)"
                            ),
                        },
                    ),
                    _ => error,
                })
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(Interface {
            index: attribute("ifindex")?.parse().map_err(|_| invalid())?,
            mac: attribute("address")?.parse().map_err(|_| invalid())?,
            mtu: attribute("mtu")?.parse().map_err(|_| invalid())?,
            addresses: local_addresses(name)?,
        })
    }
}

/// The parameters of TCP in the caller's network namespace; Linux's default for one
/// that cannot be read.
pub fn sysctl() -> Sysctl {
    Sysctl::read(|name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok())
}
