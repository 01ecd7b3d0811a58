//! The shape of the tables: `bpf/tables.h` in Rust, made by `build/tables.rs`.
//!
//! Fields that two parties touch at once are atomics, so that views of the
//! shared memory need no further care.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use std::time::Duration;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::ChannelId;

/// An enum of the header with what stands beside its values: name, whether it counts a
/// loss, what happened, what to do.
macro_rules! list {
    (
        $(#[doc = $doc:literal])* pub enum $list:ident {
            $($(#[doc = $item_doc:literal])* $item:ident = $value:literal,
                $name:literal, $lost:literal, $meaning:literal, $advice:literal;)+
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $list {
            $($(#[doc = $item_doc])* $item = $value,)+
        }

        impl $list {
            /// All, by their numbers.
            pub const ALL: [Self; [$($value),+].len()] = [$(Self::$item),+];

            /// By its number in tables and metadata.
            pub fn from_index(index: u32) -> Option<Self> {
                Self::ALL.into_iter().find(|&item| item as u32 == index)
            }

            /// Name for people: lower case, words joined by hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$item => $name,)+ }
            }

            /// What happened, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$item => $meaning,)+ }
            }

            /// What to do about it; empty when nothing is to be done.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$item => $advice,)+ }
            }

            /// True if it counts frames that died.
            pub const fn is_loss(self) -> bool {
                match self { $(Self::$item => $lost,)+ }
            }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// Bytes of [`Metadata`].
pub const METADATA_LENGTH: usize = size_of::<Metadata>();

/// Transport protocols that can be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// RFC 9293; protocol number 6.
    Tcp = 6,
    /// RFC 768; protocol number 17.
    Udp = 17,
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

    /// When a frame came that may wait for the next round, on the application's clock,
    /// as [`Metadata::arrived`] counts it; 0: it may not.
    pub fn waited_since(&self) -> u32 {
        if self.kind == Kind::Datagram as u8 {
            u32::from(self.arrival) << 16 | u32::from(self.fragment)
        } else {
            0
        }
    }

    /// When this frame came, by an application that takes it at `now`: earlier than that
    /// by 8.5 s at most, and only if it has waited for the round.
    pub fn arrived(&self, now: Duration) -> Duration {
        let since = self.waited_since();
        if since == 0 {
            return now;
        }
        // 24 bits of 1,024 ns; one that seems to come later came now.
        let units = (now.as_nanos() >> 10) as u32;
        let waited = units.wrapping_sub(since) & 0xff_ffff;
        if waited >= 1 << 23 {
            return now;
        }
        now.saturating_sub(Duration::from_nanos(u64::from(waited) << 10))
    }

    /// What kind of frame this is; `None` for bytes that no driver wrote.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_index(self.kind.into())
    }
}

impl Queue {
    /// Counts one more; for its only writer.
    pub(super) fn count(&self, counter: Counter) {
        if let Some(place) = self.counters.get(counter as usize) {
            place.store(place.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }
}

/// Key of the `owners` table: address, port in network order, protocol, zero.
pub(crate) type OwnerKey = [u8; 20];
/// Key of the `fragments` table: source, destination, identification in memory
/// order, protocol (0 for IPv6), zeros.
pub(crate) type FragmentKey = [u8; 40];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_and_class_stands_at_its_own_place() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
            assert_eq!(Counter::from_index(index as u32), Some(counter));
        }
        assert!(Counter::ALL.len() <= COUNTERS);
        assert_eq!(Counter::from_index(COUNTERS as u32), None);
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
        }
        assert_eq!(Class::ALL.len(), CLASSES);
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
        assert_eq!(metadata.waited_since(), 0);
        let short = Metadata::from_bytes(&metadata.to_bytes()[..23]);
        assert_eq!(short, Metadata::default());
        assert_eq!(short.kind(), None);
    }

    #[test]
    fn a_frame_that_has_waited_came_earlier_but_never_later() {
        let at = |nanoseconds: u64| {
            let since = (nanoseconds >> 10 | 1) as u32;
            Metadata {
                kind: Kind::Datagram as u8,
                arrival: (since >> 16) as u8,
                fragment: since as u16,
                ..Metadata::default()
            }
        };
        let day = 86_400_000_000_000;
        for came in [0, 1 << 34, day] {
            for waited in [0, 5_000_000, 8_000_000_000] {
                let now = Duration::from_nanos(came + waited);
                let arrived = at(came).arrived(now).as_nanos() as u64;
                assert!(arrived.abs_diff(came) <= 2048, "{came} {waited} {arrived}");
                assert!(arrived <= came + waited);
            }
            // Taken by a clock that was read before it came.
            let now = Duration::from_nanos(came.saturating_sub(1_000_000));
            assert_eq!(at(came + 4096).arrived(now), now);
        }
        let now = Duration::from_secs(3);
        assert_eq!(Metadata::default().arrived(now), now);
        let later_fragment = Metadata {
            kind: Kind::Fragment as u8,
            ..at(1 << 30)
        };
        assert_eq!(later_fragment.arrived(now), now);
    }
}
