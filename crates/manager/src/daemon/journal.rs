//! What a manager writes down for its successor: an entry for each application, in a map
//! of the kernel's that outlives the process and not the machine.
//!
//! Which ports an application owns is not in here: the driver program's own tables say so.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::protocol::Blocks;

/// Bytes of an [`Entry`].
pub const ENTRY_BYTES: usize = 256;

/// No application.
pub const FREE: u32 = 0;
/// One that is being made or taken away.
pub const INCOMPLETE: u32 = 1;
/// One that its process may use.
pub const ACTIVE: u32 = 2;

/// One application.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Entry {
    /// [`Entry::VERSION`]; 0 where nothing was ever written.
    pub version: u32,
    /// [`FREE`], [`INCOMPLETE`] or [`ACTIVE`].
    pub state: u32,
    /// User id.
    pub uid: u32,
    /// Process id, for people.
    pub pid: u32,
    /// By which it presents itself.
    pub token: [u8; 16],
    /// Blocks leased, of UDP and of TCP.
    pub leases: [Blocks; 2],
    /// Queues that it has.
    pub queues: u32,
    /// Of the manager's own: 1, while the two that follow are what the device's settings
    /// are to be again.
    pub deferral_noted: u32,
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: u64,
    /// `gro_flush_timeout`, ns.
    pub flush_timeout: u64,
    /// Of the manager's own: 1, or 2 where threads polled the device, while that is noted
    /// to be so again.
    pub threaded_before: u32,
    /// 1: in private mode.
    pub private: u32,
    /// Of the manager's own: the interface's index; 0 where that was not noted.
    pub interface: u32,
    /// KiB that were handed out, which count among its user's.
    pub handed: u32,
    /// Zero.
    pub reserved: [u8; 120],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

impl Entry {
    /// Of this layout.
    pub const VERSION: u32 = 1;

    /// As the map has it.
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

    /// An application that is to be made.
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
