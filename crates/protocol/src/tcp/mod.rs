//! TCP: segments and a time go in; segments and bytes come out.
//!
//! Lives here: the engine of one connection ([`Connection`]), without clock, socket,
//! thread or randomness, and the bytes of its segments ([`input`], [`output`]). Does not
//! live here: channels, devices, ports, waiting. An established connection allocates
//! nothing per segment. Its buffers are allocated when data arrives and freed when they
//! are empty.
//!
//! ```text
//! bytes ─► input ─► Segment ─► Connection::input ─► received(), read()
//!                                   │ marks what is to be sent
//! write() ─► Connection::output ────┴─► Outgoing ─► output ─► bytes
//!            next_timeout(), timeout()
//! ```
//!
//! One concern per file:
//!
//! - `segment`: bytes of segments;
//! - `connection`: the state and its beginning;
//! - `application` and `options`: what the owner does with a connection;
//! - `receive`, `delayed_ack` and `acknowledgment`: RFC 9293 §3.10.7;
//! - `plan`: what may be sent; `send`; `burst`: how much is sent together, and what cuts
//!   it; `sent`: what is then remembered;
//! - `push_marks`: pushes and records;
//! - `assembler` and `out_of_order`: received data, in order and beyond holes; like the
//!   send buffer each is a `byte_queue`, which is a `ring`;
//! - `receive_buffer`: its growth;
//! - `memory`: what all of that takes, and what is done when it is short;
//! - `scoreboard`: what became of the data in flight;
//! - `recovery`: from a loss to its repair; `rack`, `tail_probe`, `reduction` and `undo`
//!   are its parts;
//! - `congestion`: how much may be in flight;
//! - `pacing`; `round_trip` (RFC 6298); `ecn` (RFC 3168); `path_mtu` (RFC 4821);
//!   `timers`;
//! - `close`: how a connection ends, timers and ICMP errors included;
//! - `fast_open`: RFC 7413;
//! - `notifications`: when bytes left, were acknowledged and arrived;
//! - `freeze`: to bytes and back;
//! - `info`; `acp` (frames in whole segments); `sending_times` (what sending waited for);
//! - `sysctl` and `stream_options`: what makes a [`Config`];
//! - `listen`, `half_open`, `isn`, `cookie`, `time_wait`: before a connection is
//!   established, and after.
//!
//! Read first: RFC 9293 (TCP), 7323 (window scale, timestamps), 2018 and 6675
//! (SACK), 2883 (D-SACK), 8985 (RACK-TLP), 6298 (retransmission timer), 5682
//! (F-RTO), 5681, 6582, 6937, 9937, 9438 and 9406 (congestion control, recovery,
//! PRR, CUBIC, HyStart++), 5961 (blind attacks), 5927 (ICMP attacks), 6429
//! (persist), 5482 (user timeout), 1122 §4.2.

mod acknowledgment;
mod acp;
mod application;
mod assembler;
mod burst;
mod byte_queue;
mod close;
mod config;
mod congestion;
mod connection;
pub mod cookie;
pub mod defer_accept;
mod delayed_ack;
mod ecn;
mod fast_open;
mod freeze;
mod half_open;
mod info;
pub mod isn;
mod keyed;
mod listen;
mod memory;
mod notifications;
mod options;
mod out_of_order;
mod pacing;
mod path_mtu;
mod plan;
mod push_marks;
mod rack;
mod receive;
mod receive_buffer;
mod receive_room;
mod recovery;
mod reduction;
mod ring;
mod round_trip;
mod scoreboard;
mod segment;
mod send;
mod sending_times;
mod sent;
mod stream_options;
mod sysctl;
mod tail_probe;
mod time_wait;
mod timers;
mod undo;

use core::fmt;
use core::time::Duration;
use std::net::SocketAddr;

use crate::errno;

pub use acp::Framing;
pub use application::SendFlags;
pub use config::{Config, Ecn, Keepalive, MtuProbing};
pub use congestion::Congestion;
pub use connection::{Connection, MSS_MIN};
pub use cookie::Cookies;
pub use fast_open::{
    FastOpenAnswer, FastOpenFailure, FastOpenForm, FastOpenKeys, FastOpenOutcome, FastOpenPeer,
    FastOpenServer,
};
pub use freeze::ThawError;
pub use info::Info;
pub use keyed::Keyed;
pub use listen::{Listener, Reaction, Secrets};
pub use memory::MemoryPressure;
pub use notifications::{Notification, TimestampEvent, TimestampKeys, Timestamping};
pub use segment::{
    Link, Outgoing, OutputError, Segment, SegmentInPieces, input, input_bare, input_in_pieces,
    output, output_before, reset_for, reset_to,
};
pub use sending_times::SendingTimes;
pub use stream_options::StreamOptions;
pub use sysctl::{Sysctl, SysctlError};
pub use tidewall_wire::tcp::{FastOpen, Timestamps};
pub use tidewall_wire::udp::Checksum;
pub use time_wait::{TIME_WAIT, TimeWaitReaction, TimeWaitTable};

/// Time since any fixed moment; it must never go backwards.
pub type Time = Duration;

/// The two ends of a connection, as seen from here. Addresses are canonical: an
/// IPv4-mapped IPv6 address never occurs; scope ids and flow labels are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FourTuple {
    /// This end.
    pub local: SocketAddr,
    /// Returns the peer.
    pub remote: SocketAddr,
}

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// No data or no room now: try again.
    pub const AGAIN: Self = Self(errno::EAGAIN);
    /// Invalid argument.
    pub const INVAL: Self = Self(errno::EINVAL);
    /// The connection cannot accept data any more.
    pub const PIPE: Self = Self(errno::EPIPE);
    /// Message too long: the path MTU is below what is possible, or a frame is longer
    /// than a segment.
    pub const MSGSIZE: Self = Self(errno::EMSGSIZE);
    /// The received bytes do not follow the agreed protocol.
    pub const PROTO: Self = Self(errno::EPROTO);
    /// The peer does not speak the requested protocol.
    pub const PROTONOSUPPORT: Self = Self(errno::EPROTONOSUPPORT);
    /// The connection was aborted here.
    pub const CONNABORTED: Self = Self(errno::ECONNABORTED);
    /// The peer has reset the connection.
    pub const CONNRESET: Self = Self(errno::ECONNRESET);
    /// Not connected.
    pub const NOTCONN: Self = Self(errno::ENOTCONN);
    /// The peer did not answer.
    pub const TIMEDOUT: Self = Self(errno::ETIMEDOUT);
    /// The peer refuses the connection.
    pub const CONNREFUSED: Self = Self(errno::ECONNREFUSED);
    /// Upper bound of every errno that a connection can report, for checks.
    pub(crate) const LAST: i32 = 133;
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::AGAIN => "EAGAIN",
            Self::INVAL => "EINVAL",
            Self::PIPE => "EPIPE",
            Self::MSGSIZE => "EMSGSIZE",
            Self::PROTO => "EPROTO",
            Self::PROTONOSUPPORT => "EPROTONOSUPPORT",
            Self::CONNABORTED => "ECONNABORTED",
            Self::CONNRESET => "ECONNRESET",
            Self::NOTCONN => "ENOTCONN",
            Self::TIMEDOUT => "ETIMEDOUT",
            Self::CONNREFUSED => "ECONNREFUSED",
            Self(number) => return write!(f, "errno {number}"),
        };
        f.write_str(name)
    }
}

/// The states of RFC 9293 §3.3.2. LISTEN is a listener's, not a connection's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// A connection in this state may be dropped once [`Connection::wants_output`] is
    /// false.
    Closed = 0,
    /// A SYN was sent.
    SynSent = 1,
    /// SYNs have crossed (simultaneous open); our SYN is not acknowledged.
    SynReceived = 2,
    /// Data flow.
    Established = 3,
    /// Closed here; our FIN is not acknowledged.
    FinWait1 = 4,
    /// Closed here and acknowledged; the peer may send.
    FinWait2 = 5,
    /// Closed by the peer.
    CloseWait = 6,
    /// Both ends have closed at once; our FIN is not acknowledged.
    Closing = 7,
    /// Closed by the peer, then here; our FIN is not acknowledged.
    LastAck = 8,
    /// Waiting until old segments have died.
    TimeWait = 9,
}

impl State {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Closed,
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::TimeWait,
    ];

    /// Whether data, or the rest of it before our FIN, may be sent.
    #[inline]
    pub(crate) fn may_send_data(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }
}

/// Which half to close, as in `shutdown(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Stop reading (`SHUT_RD`). As on Linux, the peer does not notice.
    Read,
    /// Stop writing (`SHUT_WR`): a FIN follows the written data.
    Write,
    /// Both (`SHUT_RDWR`).
    Both,
}

/// The result of a passive handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// The two ends.
    pub flow: FourTuple,
    /// Our initial sequence number, from our SYN-ACK.
    pub local_isn: u32,
    /// The peer's initial sequence number, from its SYN.
    pub remote_isn: u32,
    /// The peer's maximum segment size; 536 or 1220 if it named none (RFC 9293
    /// §3.7.1).
    pub mss: u16,
    /// The peer's window scale, if both ends sent one.
    pub window_scale: Option<u8>,
    /// Our window scale, used if the peer sent one too.
    pub local_window_scale: u8,
    /// Both ends accept SACK options.
    pub sack: bool,
    /// Both ends use explicit congestion notification.
    pub ecn: bool,
    /// The peer's last timestamp as sent, if both ends use timestamps.
    pub timestamps: Option<Timestamps>,
    /// How far our timestamps are ahead of the caller's clock, in milliseconds.
    pub timestamp_offset: u32,
    /// The peer's window from the ACK that completed the handshake, or from the SYN if
    /// `fast_open`; unscaled.
    pub window: u16,
    /// Time from our SYN-ACK to its ACK, unless the SYN-ACK was sent more than once.
    pub round_trip: Option<Duration>,
    /// The handshake is not complete: a SYN with a valid cookie opens the connection (RFC
    /// 7413). The connection then sends its SYN-ACK itself.
    pub fast_open: Option<FastOpenAnswer>,
}

/// State of a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeWaitEntry {
    /// The two ends.
    pub flow: FourTuple,
    /// SND.NXT, one after our FIN.
    pub send_next: u32,
    /// RCV.NXT, one after the peer's FIN.
    pub receive_next: u32,
    /// The window field of our last acknowledgment, as sent.
    pub window: u16,
    /// TS.Recent, if timestamps are in use.
    pub timestamp_recent: Option<u32>,
    /// How far our timestamps are ahead of the caller's clock, in milliseconds.
    pub timestamp_offset: u32,
}

/// A time in microseconds, only for comparisons within half an hour.
#[inline]
const fn microseconds(time: Time) -> u32 {
    (time.as_secs() as u32)
        .wrapping_mul(1_000_000)
        .wrapping_add(time.subsec_micros())
}

/// The value of our timestamps at a time: milliseconds, as Linux's, ahead by the flow's
/// secret offset (RFC 7323 §5.4).
#[must_use]
pub const fn timestamp(now: Time, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}
