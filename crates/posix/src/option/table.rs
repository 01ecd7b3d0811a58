//! The options of TCP sockets, each once: what a program sets of a kernel socket is carried into
//! the stack by this table, and no option is set here that is not in it.

/// What becomes of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// It changes what the stack does (`set`, `apply` and `getsockopt`).
    Applied,
    /// As [`Treatment::Applied`], of a connection that is there: none begins with it.
    Momentary,
    /// It changes nothing here, and is read back.
    Kept(Values),
}

/// The values that Linux takes for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Any int.
    Any,
    /// Zero or not.
    Flag,
    /// From the first to the last (EINVAL).
    Between(i32, i32),
    /// One, which Linux makes of zero, too. A socket that asks for more is no stack's.
    One,
}

/// An option: its level and name, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) which: (i32, i32),
    pub(crate) treatment: Treatment,
}

const fn applied(level: i32, name: i32) -> Row {
    Row {
        which: (level, name),
        treatment: Treatment::Applied,
    }
}

const fn kept(level: i32, name: i32, values: Values) -> Row {
    Row {
        which: (level, name),
        treatment: Treatment::Kept(values),
    }
}

use super::name::*;
use Values::{Any, Between, Flag, One};
use libc::{IPPROTO_IP as IP, IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};

/// All of them; those that programs set of each connection come first.
pub(crate) const TABLE: [Row; 60] = [
    applied(TCP, libc::TCP_NODELAY),
    applied(TCP, libc::TCP_CORK),
    Row {
        which: (TCP, libc::TCP_QUICKACK),
        treatment: Treatment::Momentary,
    },
    applied(SOCKET, libc::SO_KEEPALIVE),
    applied(TCP, libc::TCP_KEEPIDLE),
    applied(TCP, libc::TCP_KEEPINTVL),
    applied(TCP, libc::TCP_KEEPCNT),
    applied(SOCKET, libc::SO_REUSEADDR),
    applied(SOCKET, libc::SO_LINGER),
    applied(SOCKET, libc::SO_RCVTIMEO),
    applied(SOCKET, libc::SO_SNDTIMEO),
    applied(SOCKET, libc::SO_SNDBUF),
    applied(SOCKET, libc::SO_RCVBUF),
    applied(SOCKET, libc::SO_SNDBUFFORCE),
    applied(SOCKET, libc::SO_RCVBUFFORCE),
    applied(SOCKET, libc::SO_ZEROCOPY),
    applied(SOCKET, libc::SO_TIMESTAMPING),
    applied(SOCKET, libc::SO_MAX_PACING_RATE),
    applied(TCP, libc::TCP_MAXSEG),
    applied(TCP, libc::TCP_SYNCNT),
    applied(TCP, libc::TCP_USER_TIMEOUT),
    applied(TCP, libc::TCP_LINGER2),
    applied(TCP, libc::TCP_CONGESTION),
    applied(TCP, TCP_NOTSENT_LOWAT),
    applied(TCP, TCP_INQ),
    applied(TCP, libc::TCP_FASTOPEN),
    applied(TCP, libc::TCP_FASTOPEN_CONNECT),
    applied(TCP, TCP_FASTOPEN_KEY),
    applied(TCP, TCP_FASTOPEN_NO_COOKIE),
    applied(IP, libc::IP_TOS),
    applied(IP, libc::IP_TTL),
    applied(IPV6, libc::IPV6_TCLASS),
    applied(IPV6, libc::IPV6_UNICAST_HOPS),
    applied(IPV6, libc::IPV6_V6ONLY),
    // Of queueing disciplines, which the stack's frames do not pass. After IP_TOS, which sets it.
    kept(SOCKET, libc::SO_PRIORITY, Any),
    // Urgent data is in line whatever is asked for (RFC 6093).
    kept(SOCKET, libc::SO_OOBINLINE, Flag),
    kept(SOCKET, libc::SO_RCVLOWAT, One),
    // Of datagrams, and of sockets that are bound.
    kept(SOCKET, libc::SO_BROADCAST, Flag),
    kept(SOCKET, libc::SO_REUSEPORT, Flag),
    kept(IP, libc::IP_BIND_ADDRESS_NO_PORT, Flag),
    kept(IP, libc::IP_FREEBIND, Flag),
    // The stack's routes and its polling are its own.
    kept(SOCKET, libc::SO_DONTROUTE, Flag),
    kept(SOCKET, libc::SO_BUSY_POLL, Between(0, i32::MAX)),
    kept(SOCKET, SO_PREFER_BUSY_POLL, Flag),
    kept(SOCKET, libc::SO_INCOMING_CPU, Any),
    // It sends no segment that is too large, and does not fragment.
    kept(IP, libc::IP_MTU_DISCOVER, Between(0, 5)),
    kept(IPV6, libc::IPV6_MTU_DISCOVER, Between(0, 5)),
    kept(IPV6, libc::IPV6_DONTFRAG, Flag),
    // What has failed, and how, the connection's own error says.
    kept(IP, libc::IP_RECVERR, Flag),
    kept(IPV6, libc::IPV6_RECVERR, Flag),
    kept(SOCKET, libc::SO_SELECT_ERR_QUEUE, Flag),
    // Of control messages, which no stream has (but by IP_PKTOPTIONS).
    kept(IP, libc::IP_PKTINFO, Flag),
    kept(IP, libc::IP_RECVTTL, Flag),
    kept(IP, libc::IP_RECVTOS, Flag),
    kept(IPV6, libc::IPV6_RECVPKTINFO, Flag),
    kept(IPV6, libc::IPV6_RECVHOPLIMIT, Flag),
    kept(IPV6, libc::IPV6_RECVTCLASS, Flag),
    // Its recovery is RACK's (RFC 8985), with or without.
    kept(TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, Between(0, 1)),
    kept(TCP, libc::TCP_THIN_DUPACK, Between(0, 1)),
    // The window is bounded by the receive buffer.
    kept(TCP, libc::TCP_WINDOW_CLAMP, Any),
];

/// The place of an option in the table.
pub(crate) fn place_of(which: (i32, i32)) -> Option<usize> {
    TABLE.iter().position(|row| row.which == which)
}
