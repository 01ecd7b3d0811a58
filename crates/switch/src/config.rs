//! Configuration of a switch.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::net::{IpAddr, SocketAddr};

/// The configuration of a switch: one virtual address and port, and its limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that peers connect to.
    pub address: SocketAddr,
    /// Maximum payload of a segment on the links: the smallest MTU less the headers of IP
    /// and TCP.
    pub segment_size: u16,
    /// The size of a frame ring, w of the paper: unacknowledged frames per connection and
    /// direction. From 1 to 32,767.
    pub ring: u16,
    /// Maximum number of connections; those that have ended and linger are evicted first.
    pub connections_max: usize,
    /// Maximum number of connections among them with an incomplete handshake; beyond it
    /// SYNs are answered with cookies.
    pub half_open_max: usize,
    /// Ports for connections to members. The driver keeps others from using them, and
    /// delivers their segments to the switch.
    pub ports: RangeInclusive<u16>,
    /// Accept ends whose SYN does not announce ACP: kernel TCP with a framing library
    /// cannot announce it.
    pub kernel_ends: bool,
    /// The scale of announced windows, if the other end scales (RFC 7323); at most 14.
    pub window_scale: u8,
    /// Repetitions of the switch's own SYNs and FINs before a member counts as dead on
    /// that connection. The first is repeated after a second, each later one after twice
    /// as long.
    pub retries: u8,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a connection may be silent (RFC 5382 REQ-5: no less than two hours and
    /// four minutes).
    pub idle_timeout: Duration,
    /// How long a half-closed connection may be silent (ibidem: four minutes). It is four
    /// times as long while data is unacknowledged, as two retransmissions may be two
    /// minutes apart and be lost.
    pub closing_timeout: Duration,
    /// How long a connection closed by both sides is remembered, so that repeated FINs
    /// are answered.
    pub linger: Duration,
    /// How long a removed member may take to finish, and how long the peer may take to
    /// acknowledge a dead member's bytes.
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

    /// [`Config::connections_max`], or as many as the ports suffice for. Each connection
    /// to a member needs a port, and a free one must be found among few.
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

/// The smallest segment size that an end may have: cookies support none below.
pub(crate) const SEGMENT_MIN: u16 = 536;

/// The reason why a [`Config`] cannot be used.
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
    /// Its listening address.
    pub address: SocketAddr,
    /// The switch's own address on the member's side, of the same family.
    pub local: IpAddr,
}

/// Identifies a member. The number stays the same while the member or a connection to it
/// exists, and may be another member's after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u8);

/// The most members of a switch.
pub const MEMBERS_MAX: usize = 64;

/// The reason why a member cannot be added.
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
