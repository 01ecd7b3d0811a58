//! What a host is told at its start.

use std::net::IpAddr;

use tidewall_protocol::tcp::{Config, Sysctl};

/// What a [`Host`](super::Host) is told at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// Its addresses: the first of a family is the source of a connection whose
    /// socket is not bound. Packets to other addresses are taken too, as if
    /// those were assigned.
    pub addresses: Vec<IpAddr>,
    /// Bytes of an IP datagram on its link.
    pub mtu: u16,
    /// Kernel parameters.
    pub sysctl: Sysctl,
    /// The device cuts long segments (TSO): a burst of the engine, of up to 64 KB,
    /// is one packet. Without it every packet is one segment.
    pub segmentation_offload: bool,
    /// Of everything that must not be guessed: initial sequence numbers,
    /// timestamp offsets. The same seed and calls give the same packets.
    pub seed: u64,
}

impl Default for HostConfig {
    /// The addresses that the public suite uses, Ethernet's MTU, one segment a
    /// packet.
    fn default() -> Self {
        Self {
            addresses: vec![
                IpAddr::from([192, 168, 0, 1]),
                IpAddr::from([0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1]),
            ],
            mtu: 1500,
            sysctl: Sysctl::default(),
            segmentation_offload: false,
            seed: 1,
        }
    }
}

impl HostConfig {
    /// What the engine is told of these parameters, before a socket's options.
    /// The maximum segment size is that over IPv4.
    pub(super) fn engine(&self) -> Config {
        Config {
            mss: self.mtu.saturating_sub(40),
            // More than a packet holds: the engine's own bound.
            offload: if self.segmentation_offload {
                u16::MAX.into()
            } else {
                0
            },
            ..self.sysctl.config()
        }
    }
}
