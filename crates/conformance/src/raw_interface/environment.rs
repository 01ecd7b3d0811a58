//! What the network namespace says: the scripts of the public suite set kernel
//! parameters by shell commands, for a kernel under test. Their values are read
//! where Linux has them, so that they mean the same here.

use std::fs;
use std::net::IpAddr;

use super::raw_device::Device;
use super::raw_memory;
use crate::stack::{HostConfig, Sysctl};

/// What `--so_flags` says: `name=value`, separated by commas. `local` is an
/// address of this host (again for more), `mtu` its link's, `interface` a link
/// whose MTU counts instead (`tun0` unless said), `segments` switches
/// segmentation offload off.
#[derive(Clone, Debug)]
pub(super) struct Flags {
    addresses: Vec<IpAddr>,
    mtu: Option<u16>,
    interface: String,
    offload: bool,
}

impl Flags {
    /// Unknown names and values are skipped.
    pub(super) fn parse(text: &str) -> Self {
        let mut flags = Self {
            addresses: Vec::new(),
            mtu: None,
            interface: "tun0".to_owned(),
            offload: true,
        };
        for flag in text.split(',').map(str::trim) {
            match flag.split_once('=') {
                Some(("local", value)) => flags.addresses.extend(value.parse::<IpAddr>()),
                Some(("mtu", value)) => flags.mtu = value.parse().ok(),
                Some(("interface", value)) => flags.interface = value.to_owned(),
                None if flag == "segments" => flags.offload = false,
                _ => {}
            }
        }
        flags
    }

    /// The MTU as it is now.
    pub(super) fn mtu(&self) -> u16 {
        let path = format!("/sys/class/net/{}/mtu", self.interface);
        let named = || fs::read_to_string(path).ok()?.trim().parse().ok();
        self.mtu.or_else(named).unwrap_or(1500)
    }

    /// Whether the device cuts long packets, as it is now.
    pub(super) fn segmentation_offload(&self) -> bool {
        self.offload && raw_memory::segmentation_offload(&self.interface) != Some(false)
    }

    /// The device, if the namespace has it.
    pub(super) fn device(&self) -> Option<Device> {
        Device::open(&self.interface)
    }

    /// A host's configuration.
    pub(super) fn config(&self) -> HostConfig {
        let default = HostConfig::default();
        HostConfig {
            addresses: [&self.addresses[..], &default.addresses].concat(),
            mtu: self.mtu(),
            sysctl: sysctl(),
            segmentation_offload: self.segmentation_offload(),
            ..default
        }
    }
}

/// The parameters as they are now in this network namespace.
pub(super) fn sysctl() -> Sysctl {
    Sysctl::read(|name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok())
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
        assert!(!config.segmentation_offload);
        assert!(Flags::parse("").config().segmentation_offload);
    }

    #[test]
    fn this_kernel_has_parameters() {
        // Whatever they are: read, not assumed.
        let sysctl = sysctl();
        assert!(sysctl.receive_memory[0] <= sysctl.receive_memory[2]);
        assert!(sysctl.send_memory[0] <= sysctl.send_memory[2]);
    }
}
