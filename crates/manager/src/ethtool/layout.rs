//! The contents of SIOCETHTOOL requests: the parts of linux/ethtool.h used here, in Rust.
//! All fields are in native order except addresses and ports.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use tidewall_sys::ethtool::{
    CHANNELS_BYTES, COALESCE_BYTES, LOCATIONS_AT, RULE_COUNT_AT, RULES_BYTES, VALUE_BYTES,
};

/// RX_CLS_LOC_SPECIAL, in a rule count's `data`: the driver itself chooses locations.
pub(super) const LOCATION_SPECIAL: u32 = 0x8000_0000;
/// RX_CLS_LOC_ANY: the driver chooses.
pub(super) const LOCATION_ANY: u32 = 0xffff_ffff;
/// ETH_FLAG_NTUPLE: the feature that permits inserting rules.
pub(super) const FLAG_NTUPLE: u32 = 1 << 27;

/// TCP_V4_FLOW.
pub(super) const FLOW_TCP4: u32 = 1;
/// UDP_V4_FLOW.
pub(super) const FLOW_UDP4: u32 = 2;
/// TCP_V6_FLOW.
pub(super) const FLOW_TCP6: u32 = 5;
/// UDP_V6_FLOW.
pub(super) const FLOW_UDP6: u32 = 6;

/// `struct ethtool_coalesce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Coalesce {
    pub(super) command: u32,
    /// Microseconds.
    pub(super) rx_usecs: u32,
    pub(super) rx_frames: u32,
    /// For the interrupt thread and transmission: returned unchanged.
    pub(super) before_adaptive: [u32; 7],
    pub(super) adaptive_rx: u32,
    /// For transmission and adaptive moderation: returned unchanged.
    pub(super) after_adaptive: [u32; 12],
}

/// `struct ethtool_value`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Value {
    pub(super) command: u32,
    pub(super) data: u32,
}

/// `struct ethtool_channels`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ChannelCounts {
    pub(super) command: u32,
    pub(super) max_rx: u32,
    pub(super) max_tx: u32,
    pub(super) max_other: u32,
    pub(super) max_combined: u32,
    pub(super) rx: u32,
    pub(super) tx: u32,
    pub(super) other: u32,
    pub(super) combined: u32,
}

/// `union ethtool_flow_union`: bytes, since its meaning depends on the flow type.
pub(super) type FlowUnion = [u8; 52];

/// `struct ethtool_rx_flow_spec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FlowSpec {
    pub(super) flow_type: u32,
    pub(super) header: FlowUnion,
    pub(super) extension: [u8; 20],
    /// Bits of `header` that must agree.
    pub(super) header_mask: FlowUnion,
    pub(super) extension_mask: [u8; 20],
    pub(super) padding: [u8; 4],
    /// The receive queue.
    pub(super) ring_cookie: u64,
    pub(super) location: u32,
    pub(super) padding_end: [u8; 4],
}

/// `struct ethtool_rxnfc` up to `rule_locs`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Rules {
    pub(super) command: u32,
    pub(super) flow_type: u32,
    /// Size of the rule table, perhaps with [`LOCATION_SPECIAL`].
    pub(super) data: u64,
    pub(super) spec: FlowSpec,
    pub(super) rule_count: u32,
    /// `rule_locs` begins here.
    pub(super) first_location: u32,
}

const _: () = {
    assert!(size_of::<Coalesce>() == COALESCE_BYTES);
    assert!(std::mem::offset_of!(Coalesce, rx_frames) == 8);
    assert!(std::mem::offset_of!(Coalesce, adaptive_rx) == 40);
    assert!(size_of::<Value>() == VALUE_BYTES);
    assert!(size_of::<ChannelCounts>() == CHANNELS_BYTES);
    assert!(std::mem::offset_of!(ChannelCounts, rx) == 20);
    assert!(size_of::<FlowSpec>() == 168);
    assert!(std::mem::offset_of!(FlowSpec, header_mask) == 76);
    assert!(std::mem::offset_of!(FlowSpec, ring_cookie) == 152);
    assert!(std::mem::offset_of!(FlowSpec, location) == 160);
    assert!(size_of::<Rules>() == RULES_BYTES);
    assert!(std::mem::offset_of!(Rules, spec) == 16);
    assert!(std::mem::offset_of!(Rules, rule_count) == RULE_COUNT_AT);
    assert!(std::mem::offset_of!(Rules, first_location) == LOCATIONS_AT);
};
