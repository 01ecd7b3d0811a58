//! The driver program for devices without a driver, and its channel lookup for hosts that
//! demultiplex in software.

use super::layout::{Class, Counter, Metadata};
use super::{ApplicationTables, ChannelId, Tables, raw_native};

/// A frame that the driver sends back instead of the received one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub(super) bytes: [u8; raw_native::ANSWER_MAX],
    pub(super) length: usize,
}

impl Answer {
    /// The frame, from its Ethernet header on.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Answer").field(&self.as_bytes()).finish()
    }
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the kernel; its class had a token.
    Kernel {
        /// The class whose token was used.
        class: Class,
    },
    /// Nowhere.
    Drop {
        /// The counter that was incremented: the reason for the drop. For a kernel-bound
        /// frame over its class's rate, the reason it was kernel-bound
        /// ([`Counter::Frames`] when no other counter covers it, as for ARP).
        counter: Counter,
    },
    /// To the channel that the metadata names, within its limit.
    Channel(Metadata),
    /// To the application, which demultiplexes it itself.
    Raw(Metadata),
    /// To the kernel's helper socket, with the ports rewritten.
    NapiProbe,
    /// Back to the sender: a SYN cookie.
    Answered(Answer),
}

/// Decides a frame's destination, as the driver program does at the time `now_ns` on this
/// queue. It counts, updates the channel's account and the buckets, and rewrites a NAPI
/// probe's port in `frame`. Each queue has one caller at a time. A queue that is not in
/// the tables belongs to the kernel. A frame whose offsets the metadata cannot hold,
/// which no device makes, is malformed.
pub fn drive(tables: &Tables, queue: u32, frame: &mut [u8], now_ns: u64) -> Verdict {
    let Some(counts) = tables.trusted.queue(queue) else {
        let class = Class::Other;
        return Verdict::Kernel { class };
    };
    if frame.len() > usize::from(u16::MAX) {
        for counter in [Counter::Frames, Counter::Malformed] {
            counts.count(counter);
        }
        let counter = Counter::Malformed;
        return Verdict::Drop { counter };
    }
    raw_native::drive(tables, queue, frame, now_ns)
}

/// Finds the channel of a frame that arrived as [`super::layout::Kind::Raw`]. The lookup
/// is the driver program's, without its account of the channel. Returns the channel and
/// the metadata that the driver would have written, with a credit of 0. `None` if no
/// channel matches, or the frame contradicts the metadata.
pub fn classify_host(
    tables: &ApplicationTables,
    frame: &[u8],
    metadata: &Metadata,
) -> Option<(ChannelId, Metadata)> {
    let mut found = *metadata;
    let channel = ChannelId::from_value(raw_native::classify(tables, frame, &mut found));
    (!channel.is_none()).then_some((channel, found))
}
