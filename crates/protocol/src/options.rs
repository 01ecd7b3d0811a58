//! Facts about the link that engines need.

/// The caller's knowledge of the link on which a packet arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputOptions {
    /// The sender may be on this host with no wire in between (veth, tap, memory), so
    /// that a checksum left to offload is no damage. Must be false for a device with a
    /// wire. There, anyone could send the pseudo-header's sum and get a damaged payload
    /// accepted.
    pub checksum_offload_possible: bool,
    /// The same packet was accepted before (by the softirq of an eager architecture).
    /// Only its fields are needed; its checksum is not checked again.
    pub verified: bool,
}
