//! Settings from the network namespace. The scripts of the public suite set kernel
//! parameters by shell commands, for a kernel under test. Their values are read from
//! where Linux has them, so they have the same meaning here.

use core::time::Duration;
use std::fs;
use std::net::IpAddr;

use super::device::Device;
use tidewall_protocol::tcp::Sysctl;

use super::machine::EPOCH;
use crate::host::HostConfig;

/// The content of `--so_flags`: `name=value`, separated by commas. `local` is an address
/// of this host (repeatable), and `mtu` its link's MTU. `interface` is a link whose MTU
/// is used instead (`tun0` by default).
#[derive(Clone, Debug)]
pub(super) struct Flags {
    addresses: Vec<IpAddr>,
    mtu: Option<u16>,
    interface: String,
}

impl Flags {
    /// Ignores unknown names and values.
    pub(super) fn parse(text: &str) -> Self {
        let mut flags = Self {
            addresses: Vec::new(),
            mtu: None,
            interface: "tun0".to_owned(),
        };
        for flag in text.split(',').map(str::trim) {
            match flag.split_once('=') {
                Some(("local", value)) => flags.addresses.extend(value.parse::<IpAddr>()),
                Some(("mtu", value)) => flags.mtu = value.parse().ok(),
                Some(("interface", value)) => flags.interface = value.to_owned(),
                _ => {}
            }
        }
        flags
    }

    /// The current MTU.
    pub(super) fn mtu(&self) -> u16 {
        let path = format!("/sys/class/net/{}/mtu", self.interface);
        let named = || fs::read_to_string(path).ok()?.trim().parse().ok();
        self.mtu.or_else(named).unwrap_or(1500)
    }

    /// The device, if it exists in the namespace.
    pub(super) fn device(&self) -> Option<Device> {
        Device::open(&self.interface)
    }

    /// A host's configuration.
    pub(super) fn config(&self) -> HostConfig {
        HostConfig {
            addresses: [&self.addresses[..], &HostConfig::default().addresses].concat(),
            mtu: self.mtu(),
            sysctl: sysctl(),
            epoch: EPOCH,
        }
    }
}

/// The current parameters of this network namespace.
pub(super) fn sysctl() -> Sysctl {
    Sysctl::read(|name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok())
}

/// The current `tcp_fastopen_blackhole_timeout_sec` of this network namespace.
pub(super) fn fast_open_black_hole() -> Duration {
    let path = "/proc/sys/net/ipv4/tcp_fastopen_blackhole_timeout_sec";
    let text = fs::read_to_string(path).unwrap_or_default();
    Duration::from_secs(text.trim().parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_there_is() {
        let flags = Flags::parse("local=203.0.113.9, mtu=1280,segments,what=ever");
        let config = flags.config();
        assert_eq!(config.addresses[0], IpAddr::from([203, 0, 113, 9]));
        assert_eq!(config.mtu, 1280);
    }

    #[test]
    fn this_kernel_has_parameters() {
        // Whatever they are, they are read, not assumed.
        let sysctl = sysctl();
        assert!(sysctl.receive_memory[0] <= sysctl.receive_memory[2]);
        assert!(sysctl.send_memory[0] <= sysctl.send_memory[2]);
    }
}
