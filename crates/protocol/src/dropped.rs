//! The names of every cause for which an engine drops a packet.

use core::fmt;

/// Defines [`DropReason`] with its names, explanations and advice, so that no variant can
/// lack one.
macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $advice:expr;)+) => {
        /// Why an engine dropped a packet. Callers keep one counter per variant:
        /// [`DropReason::index`] is its position in [`DropReason::ALL`].
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

            /// What happened, in one sentence.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+
                }
            }

            /// What to do about it; empty when nothing needs to be done.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self {
                    $(Self::$variant => $advice,)+
                }
            }
        }
    };
}

const DAMAGED: &str = "A few are a bad cable or a broken sender; many are an attack or a bug: look at them with `tidewall trace`.";
const DISAGREE: &str = "Report it: the driver program and the engine disagree.";
const FRAGMENTS: &str = "Harmless when rare. Many are an attack (it stays within reassembly's bounds): keep datagrams below the path's MTU and drop fragments upstream.";
const FORGED: &str = "Nothing: it is refused as RFC 5927 advises. Many are somebody trying to break connections by forged ICMP.";

causes! {
    /// The packet is shorter than its headers or lengths state.
    Truncated = "truncated", DAMAGED;
    /// The IP version is neither 4 nor 6.
    Version = "version", DAMAGED;
    /// The IPv4 header length is out of range.
    HeaderLength = "header-length", DAMAGED;
    /// The IPv4 header checksum is wrong.
    HeaderChecksum = "header-checksum", DAMAGED;
    /// The IPv6 extension headers are too many or in an impossible order.
    ExtensionHeaders = "extension-headers", DAMAGED;
    /// The transport header is not at the offset in the frame's metadata.
    TransportOffset = "transport-offset", DISAGREE;
    /// The transport protocol is not the one that the channel's engine reads.
    Protocol = "protocol", DISAGREE;
    /// A fragment where a whole datagram is needed.
    Fragment = "fragment", DISAGREE;
    /// The source address is one that no host may send from.
    MartianSource = "martian-source", "Spoofed or misconfigured: find the sender by its Ethernet address with `tidewall trace`.";
    /// The UDP length is below eight or beyond the datagram's end.
    UdpLength = "udp-length", DAMAGED;
    /// The UDP checksum is wrong.
    UdpChecksum = "udp-checksum", "Damaged on its way. On a real device with every datagram wrong, its checksum offload is at fault: ethtool -K IF rx off tx off.";
    /// A UDP datagram over IPv6 without a checksum, which RFC 8200 §8.1 forbids.
    UdpNoChecksum = "udp-no-checksum", "Make the sender compute checksums; tunnels that send none (RFC 6935) are not supported.";
    /// The TCP data offset is below five words or beyond the segment's end.
    TcpDataOffset = "tcp-data-offset", DAMAGED;
    /// The TCP checksum is wrong.
    TcpChecksum = "tcp-checksum", "Damaged on its way. On a real device with every segment wrong, its checksum offload is at fault: ethtool -K IF rx off tx off.";
    /// A TCP segment from or to port zero.
    TcpPort = "tcp-port", "No honest peer sends one; somebody scans.";
    /// A TCP segment that belongs to no connection; its sender was reset if that is
    /// permitted.
    TcpNoConnection = "tcp-no-connection", "A few are peers that outlived their connection. Many are an attack; it changes nothing here.";
    /// A segment that a half-open TCP connection cannot accept: a wrong acknowledgment,
    /// an old duplicate, a blind reset.
    TcpHalfOpen = "tcp-half-open", "Many are somebody guessing sequence numbers (RFC 5961).";
    /// A SYN beyond its listener's limit of half-open connections that no SYN cookie
    /// could answer: its maximum segment size is below 536.
    TcpSynQueueFull = "tcp-syn-queue-full", "A SYN flood. Clients with such a segment size are hardly honest.";
    /// A SYN without the ACP option, at a listener that requires it.
    TcpNotAcp = "tcp-not-acp", "Have the peer speak ACP, or let the listener take peers that cannot say so (kernel TCP).";
    /// Bytes in an ACP connection that are not a frame: a wrong magic or type, a frame
    /// longer than a segment, an end within a frame. The connection was reset.
    AcpFraming = "acp-framing", "The peer does not speak ACP, or its segments are merged or cut on the way.";
    /// A connection found the accept queue full (Linux: ListenOverflows).
    TcpListenOverflow = "tcp-listen-overflow", "Accept faster, or listen with a longer backlog.";
    /// An answer to a TCP segment of no connection could not be written.
    TcpUnsendable = "tcp-unsendable", "Nothing, if it is rare: the device was going down. Otherwise report it.";
    /// The ICMP checksum is wrong.
    IcmpChecksum = "icmp-checksum", DAMAGED;
    /// An ICMP message that concerns no socket.
    IcmpIgnored = "icmp-ignored", "";
    /// An ICMP error that quotes too little, or nothing that parses.
    IcmpQuote = "icmp-quote", FORGED;
    /// An ICMP error that quotes a later fragment, which has no ports.
    IcmpQuotedFragment = "icmp-quoted-fragment", "";
    /// An ICMP error about a datagram that was not sent from here.
    IcmpQuotedSource = "icmp-quoted-source", FORGED;
    /// An ICMP error about a transport protocol without an engine.
    IcmpQuotedProtocol = "icmp-quoted-protocol", FORGED;
    /// A whole datagram where a fragment is needed.
    NotFragment = "not-fragment", DISAGREE;
    /// A fragment other than the last whose length is not a multiple of eight.
    FragmentLength = "fragment-length", FRAGMENTS;
    /// A fragment without a payload.
    FragmentEmpty = "fragment-empty", FRAGMENTS;
    /// A first fragment without the whole transport header (RFC 7112).
    FragmentHeaders = "fragment-headers", FRAGMENTS;
    /// A fragment that ends beyond the longest datagram ("ping of death").
    FragmentTooLarge = "fragment-too-large", FRAGMENTS;
    /// A fragment received before, byte for byte.
    FragmentDuplicate = "fragment-duplicate", "Harmless: something on the way duplicates packets.";
    /// A fragment that overlaps another; its whole datagram is refused (RFC 5722).
    FragmentOverlap = "fragment-overlap", FRAGMENTS;
    /// A fragment that contradicts the end of its datagram; the datagram is refused.
    FragmentEnd = "fragment-end", FRAGMENTS;
    /// A fragment of a datagram that has been refused.
    FragmentRefused = "fragment-refused", FRAGMENTS;
    /// More fragments than one datagram may have; the datagram is refused.
    FragmentCount = "fragment-count", FRAGMENTS;
    /// A fragment for which reassembly's bounded memory had no room.
    FragmentMemory = "fragment-memory", FRAGMENTS;
    /// Fragments whose ECN marks contradict each other (RFC 3168 §5.3).
    FragmentEcn = "fragment-ecn", FRAGMENTS;
}

impl DropReason {
    /// The cause's position in [`DropReason::ALL`], below [`DropReason::COUNT`].
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
            let advice = cause.advice();
            assert!(advice.is_empty() || advice.ends_with('.'), "{cause}");
        }
        assert_eq!(names.len(), DropReason::COUNT);
    }
}
