//! The shape of the tables: `bpf/tables.h` in Rust.
//!
//! Fields that two parties touch at once are atomics, so that views of the
//! shared memory need no further care. The C side asserts the same sizes and
//! offsets as the tests below.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ChannelId;

mod class;

pub use class::{CLASSES, Class, ClassBucket};

/// Receive queues of one device.
pub const QUEUES: usize = 8;
/// Trust domains on one device.
pub const APPLICATIONS: usize = 16;
/// Channels of one application; index 0 names none.
pub const CHANNELS: usize = 4096;
/// Bits of a channel's index, which no channel has, where [`FlowEntry::channel`] has the
/// flow's share of it.
pub const SHARE: u32 = 0x7000;
/// Where they begin.
pub const SHARE_SHIFT: u32 = 12;
/// Bit of a channel's index, which no channel has: the flow has had its share.
pub const OVER_SHARE: u32 = 0x8000;
/// Kinds of flows that share channels ([`super::ApplicationTables::set_share`]).
pub const SHARES: usize = 4;
/// Buckets of an application's flow table; a power of two.
pub const FLOW_BUCKETS: usize = 32768;
/// Flows in one bucket; a flow is in one of two buckets.
pub const FLOW_WAYS: usize = 8;
/// Places in the set of local addresses; a power of two.
pub const LOCALS: usize = 256;
/// Places in which one local address may stand.
pub const LOCAL_PROBES: usize = 8;
/// Places for shares of kernel-bound frames; a power of two.
pub const KERNEL_SHARES: usize = 512;
/// Datagrams under fragmentation that are remembered.
pub const FRAGMENTS: usize = 4096;
/// Entries of the `owners` table.
pub const OWNERS: usize = 4096;
/// Bytes of a frame that a [`TraceRecord`] holds at most.
pub const TRACE_BYTES: usize = 256;
/// Bytes of [`Metadata`].
pub const METADATA_LENGTH: usize = size_of::<Metadata>();

/// The application owns the port on every local address.
pub const OWNER_ANY: u32 = 0x10000;
/// Look in `owners` for (protocol, address, port) first.
pub const OWNER_BY_ADDRESS: u32 = 0x20000;
/// 1 + application, valid with [`OWNER_ANY`].
pub const OWNER_APPLICATION: u32 = 0xffff;
/// Flows hold entries for (local address, port, no remote end).
pub const LISTEN_LOCAL: u32 = 1;
/// Flows hold entries with a remote end.
pub const LISTEN_CONNECTED: u32 = 2;
/// A TCP port of which every connection is in `flows`: a channel gets only SYNs,
/// valid cookies and its own flows' segments.
pub const LISTEN_TCP_STRICT: u32 = 4;
/// SYNs are answered by the driver, with cookies.
pub const LISTEN_COOKIES: u32 = 8;
/// Cookies are taken: some were sent lately.
pub const LISTEN_COOKIES_VALID: u32 = 16;
/// Cookie answers may have timestamps.
pub const LISTEN_TIMESTAMPS: u32 = 32;
/// Cookie answers that have timestamps may permit SACK.
pub const LISTEN_SACK: u32 = 64;
/// Cookie answers that have timestamps may agree to ECN.
pub const LISTEN_ECN: u32 = 128;
/// Where the four bits of our window scale in cookie answers begin; 15 is none.
pub const LISTEN_SCALE_SHIFT: u32 = 8;
/// Where the sixteen bits of our window in cookie answers begin.
pub const LISTEN_WINDOW_SHIFT: u32 = 16;

/// Transport protocols that can be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// RFC 9293; protocol number 6.
    Tcp = 6,
    /// RFC 768; protocol number 17.
    Udp = 17,
}

/// What kind of frame a channel got: decides which protocol code reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A whole IP datagram with its transport header.
    Datagram = 1,
    /// A first fragment: it has the transport header.
    FirstFragment = 2,
    /// A later fragment, in the fragment channel.
    Fragment = 3,
    /// An ICMP error that quotes a flow of the channel's owner.
    IcmpError = 4,
    /// Owned, but not demultiplexed (host demux architectures).
    Raw = 5,
}

/// What the driver program found out about a frame; it writes these 24 bytes
/// just below the frame's first byte. Offsets count from that first byte.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Metadata {
    /// Channel id; 0 for [`Kind::Raw`].
    pub channel: u32,
    /// The channel's head on this queue after this frame.
    pub credit: u32,
    /// Trace id; 0 when not traced.
    pub trace: u32,
    /// A [`Kind`]; see [`Metadata::kind`].
    pub kind: u8,
    /// IP version, 4 or 6.
    pub version: u8,
    /// Transport protocol number, after extension headers.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
    /// Offset of the IP header.
    pub network: u16,
    /// Offset of the transport header, or of a later fragment's payload.
    pub transport: u16,
    /// Offset one past the IP datagram: link padding is excluded.
    pub end: u16,
    /// Offset of the IPv6 fragment header of a fragment, else 0.
    pub fragment: u16,
}

impl Metadata {
    /// Reads metadata from its bytes; all zero (no kind, channel 0) when there
    /// are too few.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::read_from_prefix(bytes)
            .map(|(metadata, _)| metadata)
            .unwrap_or_default()
    }

    /// The bytes as the driver program writes them.
    pub fn to_bytes(&self) -> [u8; METADATA_LENGTH] {
        zerocopy::transmute!(*self)
    }

    /// The channel; none for [`Kind::Raw`].
    pub fn channel_id(&self) -> ChannelId {
        ChannelId::from_value(self.channel)
    }

    /// What kind of frame this is; `None` for bytes that no driver wrote.
    pub fn kind(&self) -> Option<Kind> {
        Some(match self.kind {
            1 => Kind::Datagram,
            2 => Kind::FirstFragment,
            3 => Kind::Fragment,
            4 => Kind::IcmpError,
            5 => Kind::Raw,
            _ => return None,
        })
    }
}

/// Counters of one queue: one for each way a frame can go in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Counter {
    /// Every frame seen.
    Frames = 0,
    /// Redirected to a channel.
    Channel = 1,
    /// Redirected without demultiplexing.
    Raw = 2,
    /// Dropped: shorter than its headers or lengths say.
    Truncated = 3,
    /// Dropped: contradictory header fields.
    Malformed = 4,
    /// Dropped: channel at its limit (early discard).
    ChannelFull = 5,
    /// Dropped: a table entry names a closed channel.
    ChannelClosed = 6,
    /// Owned, but no AF_XDP socket on this queue: datagrams and SYNs are
    /// kernel-bound, the rest is dropped.
    NoSocket = 7,
    /// Passed to the kernel: no room for metadata before the frame or in it.
    NoMetadata = 8,
    /// VLAN-tagged, kernel-bound.
    Tagged = 9,
    /// Unknown ethertype, kernel-bound.
    Unknown = 10,
    /// Group or broadcast destination, kernel-bound.
    Multicast = 11,
    /// Destination not an address of this host, kernel-bound.
    NotLocal = 12,
    /// Local unicast with no owner, kernel-bound.
    Unowned = 13,
    /// Later fragment whose first was not seen.
    FragmentOrphan = 14,
    /// Passed to a helper socket, which has the NAPI id from it.
    NapiProbe = 15,
    /// SYN answered with a cookie (Linux: SyncookiesSent).
    CookieSent = 16,
    /// ACK with a valid cookie, counted beside where it went (SyncookiesRecv).
    CookieValid = 17,
    /// ACK without one while cookies were taken, counted beside where it went
    /// (SyncookiesFailed).
    CookieFailed = 18,
    /// TCP of no flow at a strict port: ACKs are kernel-bound within the rate
    /// of [`Class::NoConnection`], so that they are reset; the rest is dropped.
    NoConnection = 19,
    /// Dropped: the flow has had its part of a channel that many share.
    OverShare = 20,
}

/// Number of counters that are in use.
pub const COUNTER_NUMBER: usize = 21;
/// Places for counters in the table.
pub const COUNTERS: usize = 24;

/// Names of the counters for people, in table order.
pub const COUNTER_NAMES: [&str; COUNTER_NUMBER] = [
    "frames",
    "channel",
    "raw",
    "truncated",
    "malformed",
    "channel-full",
    "channel-closed",
    "no-socket",
    "no-metadata",
    "tagged",
    "unknown",
    "multicast",
    "not-local",
    "unowned",
    "fragment-orphan",
    "napi-probe",
    "cookie-sent",
    "cookie-valid",
    "cookie-failed",
    "no-connection",
    "over-share",
];

impl Counter {
    /// All, in table order.
    pub const ALL: [Counter; COUNTER_NUMBER] = [
        Counter::Frames,
        Counter::Channel,
        Counter::Raw,
        Counter::Truncated,
        Counter::Malformed,
        Counter::ChannelFull,
        Counter::ChannelClosed,
        Counter::NoSocket,
        Counter::NoMetadata,
        Counter::Tagged,
        Counter::Unknown,
        Counter::Multicast,
        Counter::NotLocal,
        Counter::Unowned,
        Counter::FragmentOrphan,
        Counter::NapiProbe,
        Counter::CookieSent,
        Counter::CookieValid,
        Counter::CookieFailed,
        Counter::NoConnection,
        Counter::OverShare,
    ];

    /// The counter at a place in the table.
    pub fn from_index(index: u32) -> Option<Counter> {
        Counter::ALL.get(index as usize).copied()
    }

    /// Name for people: lower case, words joined by hyphens.
    pub fn name(self) -> &'static str {
        COUNTER_NAMES.get(self as usize).copied().unwrap_or("?")
    }
}

/// Device-wide state. Writer: manager, unless a field says otherwise.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// SipHash key of flows and of places for shares.
    pub hash_key: [AtomicU64; 2],
    /// 1: redirect owned frames without demultiplexing.
    pub raw: AtomicU32,
    /// 1 + application that gets orphan fragments; 0: none.
    pub fragment_application: AtomicU32,
    /// Frames still to sample. Set by the manager, counted down by the driver.
    pub trace_remaining: AtomicU32,
    /// Last trace id given. Writer: driver.
    pub trace_next: AtomicU32,
    /// Host order; nonzero: send a NAPI probe there. Cleared by the driver.
    pub probe_port: [AtomicU16; QUEUES],
    /// Host order: original port of the probe. Writer: driver.
    pub probed_port: [AtomicU16; QUEUES],
    /// Open-addressed set of local addresses; all zero = free.
    pub locals: [[AtomicU64; 2]; LOCALS],
    /// Host order: sequence number of a probe that was a segment. Writer: driver.
    pub probed_sequence: [AtomicU32; QUEUES],
    /// Of the probe: UDP or TCP. Writer: driver.
    pub probed_protocol: [AtomicU8; QUEUES],
    /// Of the probe: its source link address. Writer: driver.
    pub probed_link: [[AtomicU8; 6]; QUEUES],
    /// Host order: the source port that a probe is given, by which its helper
    /// knows it. The driver leaves the original one in its place.
    pub probe_source: [AtomicU16; QUEUES],
}

/// What one receive queue counts. Writer: the driver program on that queue.
#[derive(Debug)]
#[repr(C)]
pub struct Queue {
    /// By [`Counter`].
    pub counters: [AtomicU64; COUNTERS],
    /// By [`Class`].
    pub classes: [ClassBucket; CLASSES],
    /// 1: the metadata are the first bytes of each redirected frame, since the
    /// driver has no place for them before it.
    pub metadata_in_frame: AtomicU32,
    /// Zero.
    pub pad: u32,
}

impl Queue {
    /// Counts one more; for its only writer.
    pub(super) fn count(&self, counter: Counter) {
        if let Some(place) = self.counters.get(counter as usize) {
            place.store(place.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }
}

/// Trusted level.
#[derive(Debug)]
#[repr(C)]
pub struct Device {
    /// Device-wide state.
    pub control: Control,
    /// By receive queue.
    pub queues: [Queue; QUEUES],
    /// Owners by port: UDP, then TCP. Writer: manager.
    pub ports: [AtomicU32; 2 * 65536],
    /// By queue, of senders and of purposes: when the next frame of a place is
    /// due, ns. Writer: driver.
    pub kernel_shares: [[[AtomicU64; KERNEL_SHARES]; 2]; QUEUES],
}

/// Who listens on a port. Writer: application.
#[derive(Debug)]
#[repr(C)]
pub struct Listener {
    /// Channel id for any address of IPv4, and of IPv6; 0 none.
    pub channel: [AtomicU32; 2],
    /// `LISTEN_…`.
    pub flags: AtomicU32,
}

/// What SYN cookies are made of. Writer: application.
#[derive(Debug)]
#[repr(C)]
pub struct Cookies {
    /// SipHash key.
    pub key: [AtomicU64; 2],
    /// CLOCK_MONOTONIC in ns when the application's clock was 0.
    pub epoch: AtomicU64,
    /// Maximum segment size announced to IPv4, to IPv6 peers; host order.
    pub mss: [AtomicU16; 2],
    /// Hop limit (time to live) of answers.
    pub hop_limit: AtomicU8,
    /// 1: answers leave by XDP_REDIRECT to their own interface, not by XDP_TX.
    pub redirect: AtomicU8,
    /// Zero.
    pub pad: [u8; 2],
}

/// One exact flow, or a listener on one address. Writer: application.
#[derive(Debug)]
#[repr(C)]
pub struct FlowEntry {
    /// Local address, in memory order.
    pub local: [AtomicU64; 2],
    /// Remote address; zero for a listener on one address.
    pub remote: [AtomicU64; 2],
    /// Network order.
    pub local_port: AtomicU16,
    /// Network order, 0 for a listener.
    pub remote_port: AtomicU16,
    /// Transport protocol number.
    pub protocol: AtomicU8,
    /// Zero.
    pub pad: [u8; 3],
    /// 0 = slot free; written last, cleared first. With the flow's share
    /// ([`SHARE`]): 1 + index in [`Application::shares`], or 0 for all of it.
    pub channel: AtomicU32,
    /// With a share: when frames came last. Writer: driver.
    pub epoch: AtomicU16,
    /// And how many. Writer: driver.
    pub came: AtomicU16,
}

/// What each of many flows may have of the channel that they share. Writer:
/// application.
#[derive(Debug)]
#[repr(C)]
pub struct Share {
    /// Changes when the channel was emptied.
    pub epoch: AtomicU16,
    /// Frames of a flow in one epoch; 0: any number.
    pub most: AtomicU16,
}

/// The application's side of a channel's account.
#[derive(Debug)]
#[repr(C)]
pub struct ChannelApplication {
    /// Frames no longer outstanding.
    pub tail: AtomicU32,
    /// Most frames outstanding; 0 = closed.
    pub limit: AtomicU32,
}

/// The driver's side of a channel's account on one queue.
#[derive(Debug)]
#[repr(C)]
pub struct ChannelDriver {
    /// Frames ever admitted.
    pub head: AtomicU32,
    /// Zero.
    pub pad: u32,
    /// Frames dropped at the limit.
    pub dropped: AtomicU64,
}

/// Application level, one per application.
#[derive(Debug)]
#[repr(C)]
pub struct Application {
    /// By port: UDP, then TCP.
    pub listeners: [Listener; 2 * 65536],
    /// A byte of each flow's hash; 0 = free.
    pub tags: [[AtomicU8; FLOW_WAYS]; FLOW_BUCKETS],
    /// Hash table of exact flows.
    pub flows: [[FlowEntry; FLOW_WAYS]; FLOW_BUCKETS],
    /// By queue and channel.
    pub channels: [[ChannelApplication; CHANNELS]; QUEUES],
    /// By queue and channel.
    pub heads: [[ChannelDriver; CHANNELS]; QUEUES],
    /// What SYN cookies are made of.
    pub cookies: Cookies,
    /// Channel id that gets later fragments.
    pub fragment_channel: AtomicU32,
    /// By the share that a flow has.
    pub shares: [Share; SHARES],
    /// Zero.
    pub pad: u32,
}

/// One record of the `traces` ring buffer: a frame as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceRecord {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// Trace id, from 1; the frame's metadata carries it on.
    pub trace: u32,
    /// Channel id, 0 none.
    pub channel: u32,
    /// `enum xdp_action`: 1 drop, 2 pass, 4 redirect.
    pub verdict: u32,
    /// The [`Counter`] that tells why; [`Counter::Frames`] when no other does.
    pub cause: u32,
    /// Receive queue.
    pub queue: u32,
    /// Bytes in the frame.
    pub length: u32,
    /// Bytes of it in `bytes`.
    pub captured: u32,
    /// The frame's first bytes.
    pub bytes: [u8; TRACE_BYTES],
    /// Zero.
    pub pad: u32,
}

/// Key of the `owners` table: address, port in network order, protocol, zero.
pub(crate) type OwnerKey = [u8; 20];
/// Key of the `fragments` table: source, destination, identification in memory
/// order, protocol (0 for IPv6), zeros.
pub(crate) type FragmentKey = [u8; 40];

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// bpf/demux.bpf.c asserts the same numbers on its side, so the build fails
    /// there, or this test here, when the two drift apart.
    #[test]
    fn sizes_and_offsets_are_those_of_the_c_side() {
        assert_eq!(size_of::<Metadata>(), 24);
        assert_eq!(offset_of!(Metadata, kind), 12);
        assert_eq!(offset_of!(Metadata, network), 16);
        assert_eq!(offset_of!(Metadata, fragment), 22);
        assert_eq!(size_of::<ClassBucket>(), 72);
        assert_eq!(offset_of!(ClassBucket, passed), 32);
        assert_eq!(offset_of!(ClassBucket, drawn), 64);
        assert_eq!(size_of::<Control>(), 4264);
        assert_eq!(offset_of!(Control, raw), 16);
        assert_eq!(offset_of!(Control, trace_remaining), 24);
        assert_eq!(offset_of!(Control, probe_port), 32);
        assert_eq!(offset_of!(Control, probed_port), 48);
        assert_eq!(offset_of!(Control, locals), 64);
        assert_eq!(offset_of!(Control, probed_sequence), 4160);
        assert_eq!(offset_of!(Control, probed_protocol), 4192);
        assert_eq!(offset_of!(Control, probed_link), 4200);
        assert_eq!(offset_of!(Control, probe_source), 4248);
        assert_eq!(size_of::<Queue>(), 992);
        assert_eq!(offset_of!(Queue, metadata_in_frame), 984);
        assert_eq!(offset_of!(Queue, classes), 192);
        assert_eq!(size_of::<Device>(), 602_024);
        assert_eq!(offset_of!(Device, queues), 4264);
        assert_eq!(offset_of!(Device, ports), 12_200);
        assert_eq!(offset_of!(Device, kernel_shares), 536_488);
        assert_eq!(size_of::<Listener>(), 12);
        assert_eq!(size_of::<FlowEntry>(), 48);
        assert_eq!(offset_of!(FlowEntry, local_port), 32);
        assert_eq!(offset_of!(FlowEntry, protocol), 36);
        assert_eq!(offset_of!(FlowEntry, channel), 40);
        assert_eq!(offset_of!(FlowEntry, epoch), 44);
        assert_eq!(size_of::<ChannelApplication>(), 8);
        assert_eq!(offset_of!(ChannelApplication, limit), 4);
        assert_eq!(size_of::<ChannelDriver>(), 16);
        assert_eq!(offset_of!(ChannelDriver, dropped), 8);
        assert_eq!(size_of::<Cookies>(), 32);
        assert_eq!(offset_of!(Cookies, epoch), 16);
        assert_eq!(offset_of!(Cookies, mss), 24);
        assert_eq!(offset_of!(Cookies, hop_limit), 28);
        assert_eq!(offset_of!(Cookies, redirect), 29);
        assert_eq!(offset_of!(Application, tags), 1_572_864);
        assert_eq!(offset_of!(Application, flows), 1_835_008);
        assert_eq!(offset_of!(Application, channels), 14_417_920);
        assert_eq!(offset_of!(Application, heads), 14_680_064);
        assert_eq!(offset_of!(Application, cookies), 15_204_352);
        assert_eq!(offset_of!(Application, fragment_channel), 15_204_384);
        assert_eq!(offset_of!(Application, shares), 15_204_388);
        assert_eq!(size_of::<Application>(), 15_204_408);
        assert_eq!(size_of::<OwnerKey>(), 20);
        assert_eq!(size_of::<FragmentKey>(), 40);
        assert_eq!(size_of::<TraceRecord>(), 296);
        assert_eq!(offset_of!(TraceRecord, captured), 32);
        assert_eq!(offset_of!(TraceRecord, bytes), 36);
    }

    #[test]
    fn every_counter_and_class_stands_at_its_own_place() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
            assert_eq!(Counter::from_index(index as u32), Some(counter));
            assert_eq!(counter.name(), COUNTER_NAMES[index]);
        }
        assert_eq!(Counter::from_index(COUNTER_NUMBER as u32), None);
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
        }
    }

    #[test]
    fn metadata_survives_its_bytes_and_refuses_short_ones() {
        let metadata = Metadata {
            channel: ChannelId::new(7, 9).value(),
            credit: 3,
            kind: Kind::IcmpError as u8,
            end: 99,
            ..Metadata::default()
        };
        assert_eq!(Metadata::from_bytes(&metadata.to_bytes()), metadata);
        assert_eq!(metadata.kind(), Some(Kind::IcmpError));
        assert_eq!(
            (
                metadata.channel_id().index(),
                metadata.channel_id().generation()
            ),
            (7, 9)
        );
        let short = Metadata::from_bytes(&metadata.to_bytes()[..23]);
        assert_eq!(short, Metadata::default());
        assert_eq!(short.kind(), None);
    }
}
