//! What a host is told at its start.

use core::time::Duration;
use std::net::IpAddr;

use tidewall_protocol::tcp::{Config, Ecn, FastOpenKeys, MtuProbing};

/// The kernel parameters (`net.ipv4.*`) that change what sockets do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sysctl {
    /// `tcp_rmem`: least, first and largest receive buffer, in bytes of memory.
    pub receive_memory: [u32; 3],
    /// `tcp_wmem`: least, first and largest send buffer, in bytes of memory.
    pub send_memory: [u32; 3],
    /// `tcp_timestamps`: offer and take timestamps.
    pub timestamps: bool,
    /// `tcp_sack`.
    pub sack: bool,
    /// `tcp_window_scaling`.
    pub window_scaling: bool,
    /// `tcp_ecn`: 0 never, 1 asked for and granted, 2 granted.
    pub ecn: u8,
    /// `tcp_mtu_probing`: 0 never, 1 when a black hole is suspected, 2 always.
    pub mtu_probing: u8,
    /// `tcp_syn_retries`.
    pub syn_retries: u8,
    /// `tcp_synack_retries`.
    pub synack_retries: u8,
    /// `tcp_retries2`.
    pub retries: u8,
    /// `tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
    /// `tcp_notsent_lowat`: bytes not sent above which a socket is not writable.
    pub notsent_lowat: u32,
    /// `tcp_fin_timeout`.
    pub fin_timeout: Duration,
    /// `tcp_min_tso_segs`: the least that a burst is cut down to, in segments.
    pub burst_min: u8,
    /// `tcp_fastopen`: flags, see `Documentation/networking/ip-sysctl`.
    pub fastopen: u32,
    /// `tcp_fastopen_key`; without, it is drawn.
    pub fastopen_keys: Option<FastOpenKeys>,
}

impl Default for Sysctl {
    /// Linux's defaults.
    fn default() -> Self {
        Self {
            receive_memory: [4096, 131_072, 6 << 20],
            send_memory: [4096, 16_384, 4 << 20],
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: 2,
            mtu_probing: 0,
            syn_retries: 6,
            synack_retries: 5,
            retries: 15,
            slow_start_after_idle: true,
            notsent_lowat: u32::MAX,
            fin_timeout: Duration::from_secs(60),
            burst_min: 2,
            fastopen: 1,
            fastopen_keys: None,
        }
    }
}

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
        let sysctl = &self.sysctl;
        // Linux takes half of the memory for overhead (`tcp_win_from_space`).
        let window = |memory: u32| memory / 2;
        Config {
            mss: self.mtu.saturating_sub(40),
            receive_buffer: window(sysctl.receive_memory[1]),
            // The window scale follows from all of it.
            receive_buffer_max: sysctl.receive_memory[2],
            send_buffer_max: sysctl.send_memory[2],
            // More than a packet holds: the engine's own bound.
            offload: if self.segmentation_offload {
                u16::MAX.into()
            } else {
                0
            },
            timestamps: sysctl.timestamps,
            sack: sysctl.sack,
            window_scaling: sysctl.window_scaling,
            ecn: match sysctl.ecn {
                0 => Ecn::Off,
                1 => Ecn::Active,
                _ => Ecn::Passive,
            },
            mtu_probing: match sysctl.mtu_probing {
                0 => MtuProbing::Off,
                1 => MtuProbing::BlackHole,
                _ => MtuProbing::Always,
            },
            syn_retries: sysctl.syn_retries,
            syn_ack_retries: sysctl.synack_retries,
            retries: sysctl.retries,
            fin_timeout: sysctl.fin_timeout,
            burst_min: sysctl.burst_min,
            ..Config::default()
        }
    }
}
