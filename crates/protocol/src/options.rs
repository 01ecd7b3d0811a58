//! What engines know about the link.

/// What the caller knows about the link a packet came over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputOptions {
    /// The sender may be on this host with no wire in between (veth, tap,
    /// memory), so that a checksum left to offload is no damage. Must be false
    /// for a device with a wire: there anyone could send the pseudo-header's
    /// sum and have a damaged payload accepted.
    pub checksum_offload_possible: bool,
    /// The same packet was accepted before (by the softirq of an eager
    /// architecture): only its fields are wanted, its checksum is not looked at
    /// again.
    pub verified: bool,
}
