//! What a switch is set up with.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

/// The set-up of a switch: one virtual address and port, and its bounds.
#[derive(Clone, Debug)]
pub struct Config {
    /// What peers connect to.
    pub address: SocketAddr,
    /// The most payload of a segment on the links: the smallest MTU less the headers
    /// of IP and TCP.
    pub segment_size: u16,
    /// The size of a frame ring, w of the paper: frames a connection and direction
    /// that are not acknowledged. From 1 to 32,767.
    pub ring: u16,
    /// Connections that are kept at once; those that have ended and linger give way.
    pub connections_max: usize,
    /// Connections of them whose handshake is not complete; beyond, SYNs are answered
    /// with cookies.
    pub half_open_max: usize,
    /// Ports that connections to members are made from. The driver lets none of them
    /// be used by others, and gives their segments to the switch.
    pub ports: RangeInclusive<u16>,
    /// Take ends that do not say in their SYN that they speak ACP: kernel TCP with a
    /// framing library cannot.
    pub kernel_ends: bool,
    /// The scale of windows that are announced, where the other end scales (RFC 7323);
    /// at most 14.
    pub window_scale: u8,
    /// SYNs and FINs of the switch's own that are repeated before a member counts as
    /// dead on that connection. The first is repeated after a second, each later one
    /// after twice as long.
    pub retries: u8,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a connection may be silent (RFC 5382 REQ-5: no less than two hours and
    /// four minutes).
    pub idle_timeout: Duration,
    /// How long a connection that one side has closed may be silent (ibidem: four
    /// minutes); four times as long while something is not acknowledged, as two
    /// retransmissions of it may be two minutes apart and be lost.
    pub closing_timeout: Duration,
    /// How long a connection is remembered that both sides have closed, so that
    /// repeated FINs are answered.
    pub linger: Duration,
    /// How long a removed member may take to finish, and how long the peer may take to
    /// acknowledge what a dead member sent.
    pub drain_timeout: Duration,
}

impl Config {
    /// For a virtual address, with the paper's ring of 384 frames and Ethernet's
    /// segments.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            segment_size: if address.is_ipv4() { 1460 } else { 1440 },
            ring: 384,
            connections_max: 65_536,
            half_open_max: 1024,
            ports: 32_768..=60_999,
            kernel_ends: false,
            window_scale: 7,
            retries: 5,
            handshake_timeout: Duration::from_secs(75),
            idle_timeout: Duration::from_secs(2 * 3600 + 4 * 60),
            closing_timeout: Duration::from_secs(4 * 60),
            linger: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(60),
        }
    }

    /// [`Config::connections_max`], or what the ports are enough for. A member is connected
    /// to from a port per connection, and one that is free has to be found among few.
    #[must_use]
    pub fn connections(&self) -> usize {
        let ports = self.ports.len();
        self.connections_max.min(ports - ports / 8)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=i16::MAX as u16).contains(&self.ring) {
            return Err(ConfigError::Ring(self.ring));
        }
        if self.segment_size < SEGMENT_MIN {
            return Err(ConfigError::SegmentSize(self.segment_size));
        }
        if self.window_scale > 14 {
            return Err(ConfigError::WindowScale(self.window_scale));
        }
        if self.ports.is_empty() || *self.ports.start() == 0 {
            return Err(ConfigError::Ports);
        }
        Ok(())
    }
}

/// The smallest segment size that an end may have: cookies keep none below.
pub(crate) const SEGMENT_MIN: u16 = 536;

/// Why a [`Config`] cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The ring's size.
    #[error("a frame ring holds from 1 to 32767 frames, not {0}")]
    Ring(u16),
    /// The segment size.
    #[error("a segment size of {0} is below 536 bytes")]
    SegmentSize(u16),
    /// The window scale.
    #[error("a window scale of {0} is over 14 (RFC 7323)")]
    WindowScale(u8),
    /// The ports.
    #[error("the range of ports is empty or has port 0")]
    Ports,
}

/// A member of the ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it listens.
    pub address: SocketAddr,
    /// The switch's own address on the member's side, of the same family.
    pub local: IpAddr,
}

/// Which member: a number that stays the same while the member or a connection to it
/// is there, and may be another member's after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u8);

/// The most members of a switch.
pub const MEMBERS_MAX: usize = 64;

/// Why a member cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// There are [`MEMBERS_MAX`], or earlier ones still have connections.
    #[error("a switch has at most {MEMBERS_MAX} members, those that finish included")]
    TooMany,
    /// There is one of this address.
    #[error("{0} is a member already")]
    Exists(SocketAddr),
    /// The address and the switch's own are of two families.
    #[error("{0} and {1} are not of one family")]
    Family(SocketAddr, IpAddr),
}
