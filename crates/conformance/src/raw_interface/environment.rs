//! What the network namespace says: the scripts of the public suite set kernel
//! parameters by shell commands, for a kernel under test. Their values are read
//! where Linux has them, so that they mean the same here.

use core::time::Duration;
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
        let named = || number(&fs::read_to_string(path).ok()?);
        self.mtu
            .or_else(|| u16::try_from(named()?).ok())
            .unwrap_or(1500)
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

/// A number, decimal or hexadecimal.
fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The parameters as they are now in this network namespace; Linux's default
/// for one that cannot be read.
pub(super) fn sysctl() -> Sysctl {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    let value = |name: &str| number(&read(name)?);
    let three = |name: &str, default: [u32; 3]| {
        let text = read(name).unwrap_or_default();
        let mut numbers = text
            .split_whitespace()
            .filter_map(|word| word.parse::<u32>().ok());
        default.map(|default| numbers.next().unwrap_or(default))
    };
    let flag = |name: &str, default: bool| value(name).map_or(default, |value| value != 0);
    let small =
        |name: &str, default: u8| value(name).map_or(default, |value| value.clamp(0, 255) as u8);
    let large = |name: &str, default: u32| value(name).map_or(default, |value| value as u32);
    let default = Sysctl::default();
    let fin = value("tcp_fin_timeout").and_then(|seconds| u64::try_from(seconds).ok());
    Sysctl {
        receive_memory: three("tcp_rmem", default.receive_memory),
        send_memory: three("tcp_wmem", default.send_memory),
        timestamps: flag("tcp_timestamps", default.timestamps),
        sack: flag("tcp_sack", default.sack),
        window_scaling: flag("tcp_window_scaling", default.window_scaling),
        ecn: small("tcp_ecn", default.ecn),
        mtu_probing: small("tcp_mtu_probing", default.mtu_probing),
        syn_retries: small("tcp_syn_retries", default.syn_retries),
        synack_retries: small("tcp_synack_retries", default.synack_retries),
        retries: small("tcp_retries2", default.retries),
        slow_start_after_idle: flag("tcp_slow_start_after_idle", default.slow_start_after_idle),
        notsent_lowat: large("tcp_notsent_lowat", default.notsent_lowat),
        fin_timeout: fin.map_or(default.fin_timeout, Duration::from_secs),
        burst_min: small("tcp_min_tso_segs", default.burst_min),
        fastopen: large("tcp_fastopen", default.fastopen),
        fastopen_keys: read("tcp_fastopen_key")
            .and_then(|text| Sysctl::parse_fast_open_keys(&text))
            .filter(|keys| keys.primary != [0; 16]),
    }
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
