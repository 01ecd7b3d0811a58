//! A manager's record for its successor: one entry per application, in a kernel map that
//! outlives the process but not a reboot.
//!
//! The ports that an application owns are not recorded here: they are in the driver
//! program's own tables.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::protocol::Blocks;

/// Bytes of an [`Entry`].
pub const ENTRY_BYTES: usize = 256;

/// No application.
pub const FREE: u32 = 0;
/// Being created or removed.
pub const INCOMPLETE: u32 = 1;
/// In use by its process.
pub const ACTIVE: u32 = 2;

/// One application.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Entry {
    /// [`Entry::VERSION`]; 0 if it was never written.
    pub version: u32,
    /// [`FREE`], [`INCOMPLETE`] or [`ACTIVE`].
    pub state: u32,
    /// User id.
    pub uid: u32,
    /// Process id, for operators.
    pub pid: u32,
    /// Token by which it presents itself.
    pub token: [u8; 16],
    /// Blocks leased, of UDP and of TCP.
    pub leases: [Blocks; 2],
    /// Number of queues that it has.
    pub queues: u32,
    /// In the manager's own entry: 1 while the next two fields hold the device's settings
    /// to restore.
    pub deferral_noted: u32,
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: u64,
    /// `gro_flush_timeout`, ns.
    pub flush_timeout: u64,
    /// In the manager's own entry: 1, or 2 if threads polled the device, while that is
    /// recorded to be restored.
    pub threaded_before: u32,
    /// 1: in private mode.
    pub private: u32,
    /// In the manager's own entry: the interface's index; 0 if that was not recorded.
    pub interface: u32,
    /// KiB that were handed over, which count toward its user's quota.
    pub handed: u32,
    /// Zero.
    pub reserved: [u8; 120],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

impl Entry {
    /// Version of this layout.
    pub const VERSION: u32 = 1;

    /// Reads the map's bytes.
    pub fn of_bytes(bytes: [u8; ENTRY_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// No application.
    pub fn free() -> Self {
        Entry {
            version: Self::VERSION,
            ..Entry::new_zeroed()
        }
    }

    /// An application being created.
    pub fn incomplete(uid: u32, pid: u32, token: [u8; 16]) -> Self {
        Entry {
            state: INCOMPLETE,
            uid,
            pid,
            token,
            ..Entry::free()
        }
    }
}
