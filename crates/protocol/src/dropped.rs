//! The names of every way in which a packet can die in an engine.

use core::fmt;

/// Defines [`DropReason`] together with its names and explanations, so that no
/// variant can lack one.
macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why an engine did not take a packet. One counter a variant is meant:
        /// [`DropReason::index`] is its place among [`DropReason::ALL`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every cause, in order of [`DropReason::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number of causes.
            pub const COUNT: usize = Self::ALL.len();

            /// The cause's name in counters and traces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What happened, in a sentence.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+
                }
            }
        }
    };
}

causes! {
    /// The packet ends before its headers or lengths say.
    Truncated = "truncated",
    /// The IP version is neither 4 nor 6.
    Version = "version",
    /// The IPv4 header length is out of range.
    HeaderLength = "header-length",
    /// The IPv4 header checksum is wrong.
    HeaderChecksum = "header-checksum",
    /// The IPv6 extension headers are too many or in an impossible order.
    ExtensionHeaders = "extension-headers",
    /// The transport header is not where the frame's metadata says.
    TransportOffset = "transport-offset",
    /// The transport protocol is not the one this engine reads.
    Protocol = "protocol",
    /// A fragment where a whole datagram is needed.
    Fragment = "fragment",
    /// The source address is one that no host may send from.
    MartianSource = "martian-source",
    /// The UDP length is below eight or beyond the datagram's end.
    UdpLength = "udp-length",
    /// The UDP checksum is wrong.
    UdpChecksum = "udp-checksum",
    /// A UDP datagram over IPv6 without a checksum (RFC 8200 §8.1).
    UdpNoChecksum = "udp-no-checksum",
    /// The TCP data offset is below five words or beyond the segment's end.
    TcpDataOffset = "tcp-data-offset",
    /// The TCP checksum is wrong.
    TcpChecksum = "tcp-checksum",
    /// A TCP segment whose source or destination port is zero.
    TcpPort = "tcp-port",
    /// A TCP segment that belongs to no connection.
    TcpNoConnection = "tcp-no-connection",
    /// A segment that a half-open TCP connection cannot take.
    TcpHalfOpen = "tcp-half-open",
    /// A SYN that found no place among the half-open connections and that no SYN
    /// cookie could answer.
    TcpSynQueueFull = "tcp-syn-queue-full",
    /// The application does not accept TCP connections as fast as they come
    /// (Linux: ListenOverflows).
    TcpListenOverflow = "tcp-listen-overflow",
    /// An answer to a TCP segment of no connection that could not be written.
    TcpUnsendable = "tcp-unsendable",
    /// The ICMP checksum is wrong.
    IcmpChecksum = "icmp-checksum",
    /// An ICMP message that means nothing to a socket.
    IcmpIgnored = "icmp-ignored",
    /// An ICMP error that quotes too little, or nothing that parses.
    IcmpQuote = "icmp-quote",
    /// An ICMP error that quotes a later fragment, which has no ports.
    IcmpQuotedFragment = "icmp-quoted-fragment",
    /// An ICMP error about a datagram that was not sent from here (RFC 5927 §4).
    IcmpQuotedSource = "icmp-quoted-source",
    /// An ICMP error about a transport protocol without an engine.
    IcmpQuotedProtocol = "icmp-quoted-protocol",
    /// A whole datagram where a fragment is needed.
    NotFragment = "not-fragment",
    /// A fragment other than the last whose length is not a multiple of eight.
    FragmentLength = "fragment-length",
    /// A fragment without a payload.
    FragmentEmpty = "fragment-empty",
    /// A first fragment without the whole transport header (RFC 7112).
    FragmentHeaders = "fragment-headers",
    /// A fragment that ends beyond the longest datagram ("ping of death").
    FragmentTooLarge = "fragment-too-large",
    /// A fragment received before, byte for byte.
    FragmentDuplicate = "fragment-duplicate",
    /// A fragment that overlaps another; its datagram is refused (RFC 5722).
    FragmentOverlap = "fragment-overlap",
    /// A fragment that contradicts where its datagram ends; that is refused.
    FragmentEnd = "fragment-end",
    /// A fragment of a datagram that has been refused.
    FragmentRefused = "fragment-refused",
    /// A fragment over the limit of its datagram, which is refused.
    FragmentCount = "fragment-count",
    /// A fragment that no memory could be found for.
    FragmentMemory = "fragment-memory",
    /// Fragments whose ECN marks contradict each other (RFC 3168 §5.3).
    FragmentEcn = "fragment-ecn",
}

impl DropReason {
    /// The cause's place in [`DropReason::ALL`], below [`DropReason::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for DropReason {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_cause_has_its_own_place_name_and_explanation() {
        let mut names = HashSet::new();
        for (index, cause) in DropReason::ALL.iter().enumerate() {
            assert_eq!(cause.index(), index);
            assert!(names.insert(cause.name()), "{cause} twice");
            assert!(cause.explanation().ends_with('.'), "{cause}");
        }
        assert_eq!(names.len(), DropReason::COUNT);
    }
}
