//! Classes of kernel-bound frames and their token buckets.

use std::sync::atomic::AtomicU64;

/// Classes of kernel-bound frames, each a token bucket a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// IPv6 neighbour and router discovery from this link (RFC 4861).
    Neighbour = 0,
    /// ARP.
    Arp = 1,
    /// Other ICMP and ICMPv6, MLD, IGMP.
    Icmp = 2,
    /// TCP segments with ACK or RST set.
    Established = 3,
    /// TCP segments with neither: SYNs, and what no connection sends.
    Syn = 4,
    /// UDP.
    Udp = 5,
    /// Of the last three beyond their rates, what the kernel has a socket for.
    Open = 6,
    /// Other IP datagrams in frames to a group or to all.
    Multicast = 7,
    /// Other IP protocols, later fragments.
    Other = 8,
    /// To other hosts, tagged, of unknown type: unlimited unless asked for.
    Forwarded = 9,
    /// TCP segments to a strict listener's port that belong to no connection.
    NoConnection = 10,
}

/// Number of classes.
pub const CLASSES: usize = 11;

impl Class {
    /// All, in table order.
    pub const ALL: [Class; CLASSES] = [
        Class::Neighbour,
        Class::Arp,
        Class::Icmp,
        Class::Established,
        Class::Syn,
        Class::Udp,
        Class::Open,
        Class::Multicast,
        Class::Other,
        Class::Forwarded,
        Class::NoConnection,
    ];

    /// The class at a place in the table.
    pub fn from_index(index: u32) -> Option<Class> {
        Class::ALL.get(index as usize).copied()
    }

    /// Name for people: lower case, one word.
    pub fn name(self) -> &'static str {
        match self {
            Class::Neighbour => "neighbour",
            Class::Arp => "arp",
            Class::Icmp => "icmp",
            Class::Established => "established",
            Class::Syn => "syn",
            Class::Udp => "udp",
            Class::Open => "open",
            Class::Multicast => "multicast",
            Class::Other => "other",
            Class::Forwarded => "forwarded",
            Class::NoConnection => "no-connection",
        }
    }
}

/// A token bucket for one class of kernel-bound frames. Rate and burst are drawn
/// anew, 0.5 to 1.5 of what is set, in each epoch (1.07 s).
#[derive(Debug)]
#[repr(C)]
pub struct ClassBucket {
    /// Frames a second; 0 = unlimited. Writer: manager.
    pub rate: AtomicU64,
    /// Most tokens held; 0 = shares alone. Writer: manager.
    pub burst: AtomicU64,
    /// In billionths of a frame. Writer: driver.
    pub tokens: AtomicU64,
    /// Time of the last refill, ns. Writer: driver.
    pub updated: AtomicU64,
    /// Frames let through. Writer: driver.
    pub passed: AtomicU64,
    /// Frames over the rate, and over the shares. Writer: driver.
    pub dropped: AtomicU64,
    /// ns between the frames of one place; 0: no shares. Writer: manager.
    pub share_interval: AtomicU64,
    /// ns that they may be early: burst - 1 intervals. Writer: manager.
    pub share_tolerance: AtomicU64,
    /// 256ths of rate and burst in this epoch. Writer: driver.
    pub drawn: AtomicU64,
}
