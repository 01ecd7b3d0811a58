//! Decides which application a frame belongs to: the demultiplexer in the driver and its
//! tables.
//!
//! There are two levels. *Trusted*: (protocol, local address, port) → application,
//! written by the device's owner alone ([`TrustedTables`]). *Application*: exact flow or
//! listener → channel, in the application's own mapping, so that a socket costs no system
//! call ([`ApplicationTables`]). The driver program is `bpf/demux.bpf.c`; [`drive()`]
//! runs it, compiled for the processor, over [`Tables`] on the heap, for devices without
//! a driver. [`classify_host`] is the application level alone, for architectures that
//! demultiplex on the host.
//!
//! ```text
//! frame ─► valid headers? ─► ours? ─► owned (trusted)? ─► channel (app) ─► room? ─► metadata
//!             │ drop           │ kernel    │ kernel            │ kernel         │ drop
//! ```
//!
//! Not here: rings, sockets, protocol processing, what a channel does.

mod accounts;
mod application;
mod counters;
mod drive;
mod ends;
mod flows;
mod kernel;
pub mod layout;
mod listen;
mod maps;
pub mod programs;
#[allow(unsafe_code)]
mod raw_native;
#[allow(unsafe_code)]
mod raw_tables;
mod tables;
#[cfg(test)]
mod tests;
mod trusted;
mod waits;

pub use accounts::{Bound, Polled};
pub use application::ApplicationTables;
pub use counters::DriverCounters;
pub use drive::{Answer, Verdict, classify_host, drive};
pub use kernel::{ClassCounts, ClassLimit, KernelUses};
pub use listen::{CookieMode, CookieOffer, CookieParameters};
pub use maps::KernelMaps;
pub use tables::{EMBEDDED_APPLICATION, Tables};
pub use trusted::{ANY, NapiProbe, OwnedPort, TrustedTables};
pub use waits::Waits;

/// Names a channel of an application: an index in its table, and a generation that
/// distinguishes successive users of one index. [`ChannelId::NONE`] names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(u32);

impl ChannelId {
    /// No channel.
    pub const NONE: ChannelId = ChannelId(0);

    /// Channel `index` (1..[`layout::CHANNELS`]) in its `generation`-th use.
    pub const fn new(index: u16, generation: u16) -> Self {
        ChannelId((generation as u32) << 16 | index as u32)
    }

    /// From the number that tables and metadata hold.
    pub const fn from_value(value: u32) -> Self {
        ChannelId(value)
    }

    /// The number that tables and metadata hold.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Index in the table.
    pub const fn index(self) -> u16 {
        self.0 as u16
    }

    /// Which use of the index.
    pub const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// True for [`ChannelId::NONE`].
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}
