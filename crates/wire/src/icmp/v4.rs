//! Types and codes of ICMP for IPv4 (RFC 792).

/// Message types (RFC 792).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod kind {
    pub const ECHO_REPLY: u8 = 0;
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    /// Deprecated by RFC 6633.
    pub const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of destination unreachable (RFC 792, RFC 1122 §3.2.2.1, RFC 1812 §5.2.7.1).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod unreachable {
    pub const NET: u8 = 0;
    pub const HOST: u8 = 1;
    pub const PROTOCOL: u8 = 2;
    pub const PORT: u8 = 3;
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}
