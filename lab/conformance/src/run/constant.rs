//! Names of constants, with their C values on Linux.

/// `TCP_CM_INQ` has the option's number.
const TCP_INQ: i32 = 36;
const TCP_NOTSENT_LOWAT: i32 = 25;
const TCP_INFINITE_SSTHRESH: i64 = 0x7fff_ffff;

macro_rules! constants {
    ($name:expr; $($word:ident)*) => {
        match $name {
            $(stringify!($word) => Some(i64::from(libc::$word as i64)),)*
            _ => None,
        }
    };
}

/// The value of a constant of a system call's arguments or results.
#[allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    reason = "constants have the types that C gives them"
)]
pub(super) fn value(name: &str) -> Option<i64> {
    constants!(name;
        AF_UNSPEC AF_INET AF_INET6 SOCK_STREAM SOCK_DGRAM SOCK_NONBLOCK SOCK_CLOEXEC
        IPPROTO_TCP IPPROTO_UDP IPPROTO_IP IPPROTO_IPV6
        SOL_SOCKET SOL_TCP SOL_IP SOL_IPV6
        SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_LINGER SO_RCVBUF SO_SNDBUF SO_ERROR
        SO_RCVLOWAT SO_SNDLOWAT SO_ACCEPTCONN SO_TYPE SO_DOMAIN SO_PROTOCOL SO_OOBINLINE
        SO_PRIORITY SO_MARK SO_RCVTIMEO SO_SNDTIMEO SO_TIMESTAMPING SO_ZEROCOPY
        SO_MAX_PACING_RATE
        TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT
        TCP_LINGER2 TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK TCP_CONGESTION
        TCP_USER_TIMEOUT TCP_FASTOPEN TCP_FASTOPEN_CONNECT TCP_TIMESTAMP
        IP_TOS IP_TTL IP_MTU IP_MTU_DISCOVER IP_FREEBIND IP_RECVERR
        IP_PMTUDISC_DONT IP_PMTUDISC_WANT IP_PMTUDISC_DO IP_PMTUDISC_PROBE
        IPV6_TCLASS IPV6_UNICAST_HOPS IPV6_V6ONLY IPV6_MTU IPV6_MTU_DISCOVER
        MSG_DONTWAIT MSG_PEEK MSG_TRUNC MSG_CTRUNC MSG_WAITALL MSG_MORE MSG_EOR MSG_NOSIGNAL
        MSG_OOB MSG_ERRQUEUE MSG_FASTOPEN MSG_ZEROCOPY
        SOF_TIMESTAMPING_TX_SOFTWARE SOF_TIMESTAMPING_RX_SOFTWARE SOF_TIMESTAMPING_SOFTWARE
        SOF_TIMESTAMPING_TX_SCHED SOF_TIMESTAMPING_TX_ACK SOF_TIMESTAMPING_OPT_ID
        SOF_TIMESTAMPING_OPT_ID_TCP SOF_TIMESTAMPING_OPT_TSONLY SOF_TIMESTAMPING_OPT_STATS
        SHUT_RD SHUT_WR SHUT_RDWR
        F_GETFL F_SETFL F_GETFD F_SETFD FD_CLOEXEC O_RDONLY O_WRONLY O_RDWR O_NONBLOCK
        FIONREAD FIONBIO TIOCOUTQ
        POLLIN POLLOUT POLLPRI POLLERR POLLHUP POLLNVAL POLLRDHUP POLLRDNORM POLLWRNORM
        POLLRDBAND POLLWRBAND
        EPOLLIN EPOLLOUT EPOLLPRI EPOLLERR EPOLLHUP EPOLLRDHUP EPOLLET EPOLLONESHOT
        EPOLLEXCLUSIVE EPOLLRDNORM EPOLLWRNORM EPOLL_CTL_ADD EPOLL_CTL_MOD EPOLL_CTL_DEL
        EPOLL_CLOEXEC
    )
    .or_else(|| {
        Some(match name {
            "SIOCINQ" => libc::FIONREAD as i64,
            "SIOCOUTQ" => libc::TIOCOUTQ as i64,
            "SIOCOUTQNSD" => 0x894b,
            "TCP_INQ" | "TCP_CM_INQ" => TCP_INQ.into(),
            "TCP_NOTSENT_LOWAT" => TCP_NOTSENT_LOWAT.into(),
            _ => return error(name).map(i64::from),
        })
    })
}

/// The number of an error.
pub(super) fn error(name: &str) -> Option<i32> {
    ERRORS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

/// The name of an error.
pub(super) fn error_name(number: i32) -> String {
    ERRORS
        .iter()
        .find(|(_, known)| *known == number)
        .map_or_else(|| format!("errno {number}"), |(name, _)| (*name).to_owned())
}

macro_rules! errors {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name),)*] };
}

const ERRORS: [(&str, i32); 47] = errors!(
    EPERM ENOENT EINTR EIO EBADF EAGAIN EWOULDBLOCK ENOMEM EACCES EFAULT EBUSY EEXIST EINVAL
    ENFILE EMFILE ENOTTY ENOSPC EPIPE ERANGE ENOSYS EPROTO EBADFD ENOTSOCK EDESTADDRREQ
    EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EAFNOSUPPORT
    EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS
    EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS
);

/// Constants of assertions about `TCP_INFO`.
pub(super) fn of_info(name: &str) -> Option<i64> {
    Some(match name {
        "TCP_CA_Open" => 0,
        "TCP_CA_Disorder" => 1,
        "TCP_CA_CWR" => 2,
        "TCP_CA_Recovery" => 3,
        "TCP_CA_Loss" => 4,
        "TCP_ESTABLISHED" => 1,
        "TCP_SYN_SENT" => 2,
        "TCP_SYN_RECV" => 3,
        "TCP_FIN_WAIT1" => 4,
        "TCP_FIN_WAIT2" => 5,
        "TCP_TIME_WAIT" => 6,
        "TCP_CLOSE" => 7,
        "TCP_CLOSE_WAIT" => 8,
        "TCP_LAST_ACK" => 9,
        "TCP_LISTEN" => 10,
        "TCP_CLOSING" => 11,
        "TCPI_OPT_TIMESTAMPS" => 1,
        "TCPI_OPT_SACK" => 2,
        "TCPI_OPT_WSCALE" => 4,
        "TCPI_OPT_ECN" => 8,
        "TCPI_OPT_ECN_SEEN" => 16,
        "TCP_INFINITE_SSTHRESH" => TCP_INFINITE_SSTHRESH,
        _ => return None,
    })
}
