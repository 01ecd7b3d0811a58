//! The content of a script.

use core::time::Duration;

use super::{Assertion, Command, Expression, Position};

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// The option lines, in order.
    pub options: Vec<OptionLine>,
    /// Settings before the first event.
    pub init: Option<Command>,
    /// The events, in order.
    pub events: Vec<Event>,
    /// Settings after the last event.
    pub cleanup: Option<Command>,
}

/// `--name=value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionLine {
    /// Its position.
    pub position: Position,
    /// Without the dashes.
    pub name: String,
    /// After the equals sign, without quotes.
    pub value: Option<String>,
}

/// One line: a time and an action.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Its start.
    pub position: Position,
    /// The time.
    pub when: When,
    /// The action.
    pub action: Action,
}

/// The time of an event. Absolute times count from the script's start, relative ones from
/// the end of the previous event. A blocking call counts as ended when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// `0.5`
    Absolute(Duration),
    /// `+0.5`
    Relative(Duration),
    /// `0.5~0.6`: at any time in this range, both ends included. Outbound packets only.
    AbsoluteRange(Duration, Duration),
    /// `+0.5~+0.6`. Outbound packets only.
    RelativeRange(Duration, Duration),
    /// `*`: at any time. Outbound packets only.
    Any,
}

/// The action of an event.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// A packet arrives or must leave.
    Packet(Packet),
    /// A system call.
    Call(Call),
    /// Settings change.
    Command(Command),
    /// `%{ }%`: conditions that must be true.
    Assertions(Vec<Assertion>),
}

/// A system call and its expected result.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Its name: `socket`, `write` …
    pub name: String,
    /// Its arguments, and its results through pointers.
    pub arguments: Vec<Expression>,
    /// Its return value.
    pub result: Expression,
    /// The errno that goes with -1, by name.
    pub errno: Option<String>,
    /// If it blocks: when it returns, with the same origin as its event's time.
    pub until: Option<Duration>,
}

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `<`: to the stack.
    Inbound,
    /// `>`: from it.
    Outbound,
}

/// A packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The direction.
    pub direction: Direction,
    /// The fields of the IP header.
    pub ip: IpFields,
    /// The content.
    pub transport: Transport,
}

/// Fields of the IP header that a script names, in brackets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpFields {
    /// `ect0`, `ect1`, `ce`, `noecn`, `ect01`.
    pub ecn: Option<EcnCheck>,
    /// `tos 0x…`: the whole byte.
    pub traffic_class: Option<u8>,
    /// `ttl N`: TTL or hop limit.
    pub hop_limit: Option<u8>,
    /// `flowlabel 0x…`: IPv6 only, 20 bits.
    pub flow_label: Option<u32>,
}

/// The two ECN bits (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnCheck {
    /// `noecn`: 00.
    NotCapable,
    /// `ect0`: 10.
    Capable0,
    /// `ect1`: 01.
    Capable1,
    /// `ce`: 11.
    Experienced,
    /// `ect01`: either ECT codepoint; outbound packets only.
    CapableAny,
}

/// The content of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// ICMP or ICMPv6.
    Icmp(Icmp),
}

/// The control bits, with ECN's and the AE bit of RFC 9768.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpFlags {
    /// As [`tidewall_wire::tcp::Flags`]: FIN 1, SYN 2, RST 4, PSH 8, ACK 16,
    /// URG 32, ECE 64, CWR 128.
    pub bits: u8,
    /// `A`: accurate ECN, the lowest reserved bit.
    pub accurate_ecn: bool,
}

/// A TCP segment. Sequence numbers are the script's: each direction's begin at its SYN's
/// number, usually zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tcp {
    /// Source and destination port, if a script has more than one flow.
    pub ports: Option<(u16, u16)>,
    /// The control bits.
    pub flags: TcpFlags,
    /// The sequence number.
    pub sequence: u32,
    /// Bytes of payload.
    pub length: u16,
    /// The acknowledgment number, with ACK.
    pub acknowledgment: Option<u32>,
    /// The window field as on the wire, unscaled. `None`: any (outbound), or none given.
    pub window: Option<u16>,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: TcpOptions,
}

/// The options of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOptions {
    /// `<...>`: any. Outbound packets only.
    Any,
    /// Exactly these, in this order.
    List(Vec<TcpOption>),
}

/// One TCP option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// `nop`
    Nop,
    /// `eol`
    End,
    /// `mss 1460`
    Mss(u16),
    /// `wscale 7`
    WindowScale(u8),
    /// `sackOK`
    SackPermitted,
    /// `sack 1:2 3:4`: first and one past the last sequence number.
    Sack(Vec<(u32, u32)>),
    /// `TS val 1 ecr 2`
    Timestamps {
        /// TSval.
        value: u32,
        /// TSecr.
        echo: u32,
    },
    /// `FO`, `FO 0a1b2c3d` (RFC 7413).
    FastOpen(Vec<u8>),
    /// `FOEXP`: the same with the experimental option 254 with 0xf989.
    FastOpenExperimental(Vec<u8>),
    /// `md5 …` (RFC 2385).
    Md5(Vec<u8>),
    /// `generic 0x99 0a0b` (our extension): any kind, with any data.
    Other {
        /// The kind.
        kind: u8,
        /// The bytes after the length.
        data: Vec<u8>,
    },
}

impl TcpOption {
    /// Bytes on the wire.
    pub fn wire_length(&self) -> usize {
        match self {
            Self::Nop | Self::End => 1,
            Self::Mss(_) => 4,
            Self::WindowScale(_) => 3,
            Self::SackPermitted => 2,
            Self::Sack(blocks) => 2 + 8 * blocks.len(),
            Self::Timestamps { .. } => 10,
            Self::FastOpen(data) | Self::Md5(data) | Self::Other { data, .. } => 2 + data.len(),
            Self::FastOpenExperimental(data) => 4 + data.len(),
        }
    }
}

/// A UDP datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// Bytes of payload.
    pub length: u16,
}

/// An ICMP or ICMPv6 message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Icmp {
    /// Its type by name: `unreachable`, `packet_too_big` …
    pub kind: String,
    /// Its code by name: `frag_needed` …
    pub code: Option<String>,
    /// `mtu N`
    pub mtu: Option<u32>,
    /// `id N` of an echo.
    pub id: Option<u16>,
    /// The quoted part of the packet that caused it.
    pub quoted: Option<Quoted>,
}

/// The quotation in an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quoted {
    /// `[1:1001(1000)]`: our segment with this sequence number and payload.
    Tcp {
        /// The script's sequence number.
        sequence: u32,
        /// Bytes of payload.
        length: u16,
    },
    /// `[udp (100)]`
    Udp {
        /// Bytes of payload.
        length: u16,
    },
}
