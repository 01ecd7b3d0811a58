//! Types and codes of ICMP for IPv6 (RFC 4443).

/// Message types (RFC 4443). Errors are below 128.
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod kind {
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
}

/// Codes of destination unreachable (RFC 4443 §3.1).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod unreachable {
    pub const NO_ROUTE: u8 = 0;
    pub const PROHIBITED: u8 = 1;
    pub const ADDRESS: u8 = 3;
    pub const PORT: u8 = 4;
    pub const REJECT: u8 = 6;
}
