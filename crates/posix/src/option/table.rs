//! The options of TCP sockets, each in one row. This table drives `setsockopt` and `getsockopt`,
//! the options that a connection inherits or sets at its start, and those that are carried into
//! the stack.

use std::io;
use std::time::Duration;

use tidewall::{OpenFile, TcpStream};
use tidewall_protocol::tcp::{Config, StreamOptions, defer_accept};

use super::name::*;
use super::set::{
    RECEIVE_BUFFER_MIN, SEND_BUFFER_MIN, between, buffer, congestion_of, int, keys_of,
    milliseconds, timeval, timeval_bytes,
};
use super::{Options, Rare, Stamps};
use crate::datagram::{HOPS, hops_of};
use crate::{Errno, Posix, Result, errno, message};

/// Arguments of `setsockopt`.
pub(crate) struct Given<'a> {
    pub(crate) file: &'a OpenFile,
    /// `tcp_fastopen` allows clients to use Fast Open.
    pub(crate) fast_client: bool,
    pub(crate) value: &'a [u8],
}

/// The socket that `getsockopt` queries.
pub(crate) struct Asked<'a> {
    pub(crate) options: &'a Options,
    pub(crate) stream: Option<&'a TcpStream>,
    pub(crate) posix: &'a Posix,
}

type Set = fn(&mut Options, &Given<'_>) -> Result<()>;
type Get = fn(&Asked<'_>) -> Result<Value>;
type Apply = fn(&TcpStream, &Options, &Posix) -> io::Result<()>;

/// The value of an option.
pub(crate) enum Value {
    Int(i32),
    Bytes(Vec<u8>),
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(value) => value.to_ne_bytes().to_vec(),
            Value::Bytes(bytes) => bytes,
        }
    }
}

/// How the stack treats an option's value.
#[derive(Clone, Copy)]
pub(crate) enum Treatment {
    /// Changes how the stack behaves.
    Applied { set: Set, get: Get },
    /// Changes nothing here; the value is read back.
    Kept(Values),
}

/// The values that Linux accepts for an option.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    /// Any int.
    Any,
    /// Zero or nonzero.
    Flag,
    /// From the first to the last; others are EINVAL.
    Between(i32, i32),
    /// One, to which Linux also rounds zero up. A socket that requests more stays with
    /// the kernel.
    One,
}

/// When the stack carries over a socket's own value as it adopts the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// If it differs from the default.
    Changed,
    /// Half of it, if the kernel reports that it was set: a bit of SO_BUF_LOCK.
    Locked(i32),
    /// Never: it describes an existing connection, and no connection begins with it.
    Never,
}

/// An option: its level and name, and how its value is treated.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) which: (i32, i32),
    pub(crate) treatment: Treatment,
    pub(crate) carry: Carry,
    /// Applies it to an existing stream.
    pub(crate) apply: Option<Apply>,
    /// Reports whether it is applied to a new stream, for options that [`StreamOptions`]
    /// lacks.
    pub(crate) begins: Option<fn(&Options) -> bool>,
}

impl Row {
    const fn new(which: (i32, i32), treatment: Treatment) -> Self {
        Row {
            which,
            treatment,
            carry: Carry::Changed,
            apply: None,
            begins: None,
        }
    }

    const fn apply(self, apply: Apply) -> Self {
        Row {
            apply: Some(apply),
            ..self
        }
    }

    const fn begins(self, begins: fn(&Options) -> bool) -> Self {
        Row {
            begins: Some(begins),
            ..self
        }
    }

    const fn carry(self, carry: Carry) -> Self {
        Row { carry, ..self }
    }
}

const fn applied(level: i32, name: i32, set: Set, get: Get) -> Row {
    Row::new((level, name), Treatment::Applied { set, get })
}

const fn kept(level: i32, name: i32, values: Values) -> Row {
    Row::new((level, name), Treatment::Kept(values))
}

use Value::{Bytes, Int};
use Values::{Any, Between, Flag, One};
use libc::{IPPROTO_IP as IP, IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};

fn is_on(given: &Given<'_>) -> Result<bool> {
    Ok(int(given.value)? != 0)
}

/// Parses zero or one.
fn bit(given: &Given<'_>) -> Result<bool> {
    Ok(between(int(given.value)?, 0, 1)? != 0)
}

fn flag(on: bool) -> Result<Value> {
    Ok(Int(on.into()))
}

fn seconds(time: Duration) -> i32 {
    time.as_secs() as i32
}

fn fresh(posix: &Posix) -> Config {
    posix.stack().sysctl().config()
}

/// Fields that several options set together.
const KEEPALIVE: Apply =
    |stream, options, _| stream.set_keepalive(options.stream_options().keepalive);
const RECEIVE_BUFFER: Apply = |stream, options, _| {
    stream.set_receive_buffer(options.stream_options().receive_buffer.unwrap_or(0))
};
const TIMESTAMPS: Apply =
    |stream, options, _| match message::timestamping(options.timestamping_flags(), true) {
        Some(flags) => stream.set_timestamping(flags),
        None => Ok(()),
    };
const HAS_TIMESTAMPS: fn(&Options) -> bool = |options| options.timestamping_flags() != 0;
const TRAFFIC_CLASS: Apply = |stream, options, _| stream.set_tos(options.stream.traffic_class);
const TIME_TO_LIVE: Apply = |stream, options, _| stream.set_ttl(options.hops.unwrap_or(HOPS));

fn set_stamps(options: &mut Options, given: &Given<'_>, stamps: Stamps) -> Result<()> {
    options.stamps = match is_on(given)? {
        true => stamps,
        false => Stamps::None,
    };
    Ok(())
}

fn set_traffic_class(options: &mut Options, given: &Given<'_>) -> Result<()> {
    let class = int(given.value)? as u8 & !3;
    options.change(|rare| {
        rare.stream.traffic_class = class;
        Ok(())
    })
}

fn set_hops(options: &mut Options, given: &Given<'_>) -> Result<()> {
    let hops = hops_of(given.value)?;
    options.change(|rare| {
        rare.hops = hops;
        Ok(())
    })
}

/// Changes one of the options that connections share.
fn rare(options: &mut Options, change: impl FnOnce(&mut Rare)) -> Result<()> {
    options.change(|rare| {
        change(rare);
        Ok(())
    })
}

/// Other names by which a privileged program sets options of the table; no program reads
/// them. Everything else that needs the capability is allowed.
const FORCED: [((i32, i32), (i32, i32)); 2] = [
    ((SOCKET, libc::SO_SNDBUFFORCE), (SOCKET, libc::SO_SNDBUF)),
    ((SOCKET, libc::SO_RCVBUFFORCE), (SOCKET, libc::SO_RCVBUF)),
];

/// All options. Those that programs set on each connection come first.
pub(crate) const TABLE: [Row; 61] = [
    applied(
        TCP,
        libc::TCP_NODELAY,
        |options, given| {
            options.nodelay = is_on(given)?;
            Ok(())
        },
        |asked| flag(asked.options.nodelay),
    )
    .apply(|stream, options, _| stream.set_nodelay(options.nodelay)),
    applied(
        TCP,
        libc::TCP_CORK,
        |options, given| {
            options.cork = is_on(given)?;
            Ok(())
        },
        |asked| flag(asked.options.cork),
    )
    .apply(|stream, options, _| stream.set_cork(options.cork))
    .begins(|options| options.cork),
    applied(
        TCP,
        libc::TCP_QUICKACK,
        |options, given| {
            options.delayed_ack = int(given.value)? & 1 == 0;
            Ok(())
        },
        |asked| match asked.stream {
            Some(stream) => flag(stream.quick_ack().map_err(errno)?),
            None => flag(!asked.options.delayed_ack),
        },
    )
    .apply(|stream, options, _| stream.set_quick_ack(!options.delayed_ack))
    .begins(|options| options.delayed_ack)
    .carry(Carry::Never),
    applied(
        SOCKET,
        libc::SO_KEEPALIVE,
        |options, given| {
            options.keepalive_on = is_on(given)?;
            Ok(())
        },
        |asked| flag(asked.options.keepalive_on),
    )
    .apply(KEEPALIVE),
    applied(
        TCP,
        libc::TCP_KEEPIDLE,
        |options, given| {
            options.keepalive.idle = between(int(given.value)?, 1, 32_767)?;
            Ok(())
        },
        |asked| Ok(Int(asked.options.keepalive.idle as i32)),
    )
    .apply(KEEPALIVE),
    applied(
        TCP,
        libc::TCP_KEEPINTVL,
        |options, given| {
            options.keepalive.interval = between(int(given.value)?, 1, 32_767)?;
            Ok(())
        },
        |asked| Ok(Int(asked.options.keepalive.interval as i32)),
    )
    .apply(KEEPALIVE),
    applied(
        TCP,
        libc::TCP_KEEPCNT,
        |options, given| {
            options.keepalive.count = between(int(given.value)?, 1, 127)? as u8;
            Ok(())
        },
        |asked| Ok(Int(asked.options.keepalive.count.into())),
    )
    .apply(KEEPALIVE),
    applied(
        SOCKET,
        libc::SO_REUSEADDR,
        |options, given| {
            let on = is_on(given)?;
            rare(options, |rare| rare.reuse_address = on)
        },
        |asked| flag(asked.options.reuse_address),
    ),
    applied(
        SOCKET,
        libc::SO_LINGER,
        |options, given| {
            let time = int(given.value.get(4..).unwrap_or_default())?;
            let time = Duration::from_secs(u64::try_from(time).unwrap_or(0));
            let on = is_on(given)?;
            rare(options, |rare| rare.linger = on.then_some(time))
        },
        |asked| {
            let linger = asked.options.linger;
            let time = seconds(linger.unwrap_or_default());
            let on = i32::from(linger.is_some());
            Ok(Bytes([on.to_ne_bytes(), time.to_ne_bytes()].concat()))
        },
    )
    .apply(|stream, options, _| stream.set_linger(options.linger))
    .begins(|options| options.linger.is_some()),
    applied(
        SOCKET,
        libc::SO_RCVTIMEO,
        |options, given| {
            let time = timeval(given.value)?;
            rare(options, |rare| rare.read_timeout = time)
        },
        |asked| Ok(Bytes(timeval_bytes(asked.options.read_timeout))),
    )
    .apply(|stream, options, _| stream.set_read_timeout(options.read_timeout))
    .begins(|options| options.read_timeout.is_some()),
    applied(
        SOCKET,
        libc::SO_SNDTIMEO,
        |options, given| {
            let time = timeval(given.value)?;
            rare(options, |rare| rare.write_timeout = time)
        },
        |asked| Ok(Bytes(timeval_bytes(asked.options.write_timeout))),
    )
    .apply(|stream, options, _| stream.set_write_timeout(options.write_timeout))
    .begins(|options| options.write_timeout.is_some()),
    applied(
        SOCKET,
        libc::SO_SNDBUF,
        |options, given| {
            let bytes = buffer(int(given.value)?, SEND_BUFFER_MIN);
            rare(options, |rare| rare.stream.send_buffer = Some(bytes))
        },
        |asked| {
            // In bytes of memory, of which half holds data. A size that grows automatically is
            // reported as it is.
            let growing = || {
                asked
                    .stream
                    .and_then(TcpStream::info)
                    .map(|it| it.send_buffer)
            };
            Ok(Int(match asked.options.stream.send_buffer {
                Some(bytes) => bytes * 2,
                None => growing().unwrap_or_else(|| asked.posix.stack().sysctl().send_memory[1]),
            } as i32))
        },
    )
    .apply(|stream, options, _| stream.set_send_buffer(options.stream.send_buffer.unwrap_or(0)))
    .carry(Carry::Locked(SOCK_SNDBUF_LOCK)),
    applied(
        SOCKET,
        libc::SO_RCVBUF,
        |options, given| {
            let bytes = buffer(int(given.value)?, RECEIVE_BUFFER_MIN);
            rare(options, |rare| rare.stream.receive_buffer = Some(bytes))
        },
        |asked| {
            let own = asked.options.stream.receive_buffer.map(|bytes| bytes * 2);
            Ok(Int(
                own.unwrap_or_else(|| asked.posix.stack().sysctl().receive_memory[1]) as i32,
            ))
        },
    )
    .apply(RECEIVE_BUFFER)
    .carry(Carry::Locked(SOCK_RCVBUF_LOCK)),
    applied(
        SOCKET,
        libc::SO_ZEROCOPY,
        |options, given| {
            let on = bit(given)?;
            rare(options, |rare| rare.zero_copy = on)
        },
        |asked| flag(asked.options.zero_copy),
    )
    .apply(|stream, options, _| stream.set_zero_copy(options.zero_copy))
    .begins(|options| options.zero_copy),
    applied(
        SOCKET,
        libc::SO_TIMESTAMPING,
        |options, given| {
            let flags = int(given.value)? as u32;
            let connected = matches!(given.file, OpenFile::Stream(_));
            message::timestamping(flags, connected).ok_or(Errno::INVAL)?;
            options.timestamping = flags;
            Ok(())
        },
        // struct so_timestamping: the flags, and no hardware clock.
        |asked| {
            let flags = asked.options.timestamping.to_ne_bytes();
            Ok(Bytes([flags, [0; 4]].concat()))
        },
    )
    .apply(TIMESTAMPS)
    .begins(HAS_TIMESTAMPS),
    applied(
        SOCKET,
        libc::SO_TIMESTAMP,
        |options, given| set_stamps(options, given, Stamps::Micros),
        |asked| flag(asked.options.stamps == Stamps::Micros),
    )
    .apply(TIMESTAMPS),
    applied(
        SOCKET,
        libc::SO_TIMESTAMPNS,
        |options, given| set_stamps(options, given, Stamps::Nanos),
        |asked| flag(asked.options.stamps == Stamps::Nanos),
    )
    .apply(TIMESTAMPS),
    applied(
        SOCKET,
        libc::SO_MAX_PACING_RATE,
        |options, given| {
            let rate = match given.value.first_chunk() {
                Some(rate) => Some(u64::from_ne_bytes(*rate)).filter(|&rate| rate != u64::MAX),
                None => u64::try_from(int(given.value)?).ok(),
            };
            rare(options, |rare| rare.pacing_rate = rate)
        },
        |asked| {
            let rate = asked.options.pacing_rate.unwrap_or(u64::MAX);
            Ok(Bytes(rate.to_ne_bytes().to_vec()))
        },
    )
    .apply(|stream, options, _| stream.set_pacing_rate_max(options.pacing_rate))
    .begins(|options| options.pacing_rate.is_some()),
    applied(
        TCP,
        libc::TCP_MAXSEG,
        |options, given| {
            let size = u16::try_from(int(given.value)?).map_err(|_| Errno::INVAL)?;
            options.change(|rare| {
                let asked = StreamOptions {
                    maximum_segment: (size != 0).then_some(size),
                    ..rare.stream
                };
                asked.check()?;
                rare.stream = asked;
                Ok(())
            })
        },
        |asked| {
            Ok(Int(match asked.stream {
                Some(stream) => stream.maximum_segment().map_err(errno)?.into(),
                // TCP_MSS_DEFAULT
                None => asked.options.stream.maximum_segment.unwrap_or(536).into(),
            }))
        },
    )
    .apply(|stream, options, _| match options.stream.maximum_segment {
        Some(bytes) => stream.set_maximum_segment(bytes),
        None => Ok(()),
    }),
    applied(
        TCP,
        libc::TCP_SYNCNT,
        |options, given| {
            let count = between(int(given.value)?, 1, 127)? as u8;
            rare(options, |rare| rare.stream.syn_retries = Some(count))
        },
        |asked| {
            let own = asked.options.stream.syn_retries;
            Ok(Int(own
                .unwrap_or_else(|| fresh(asked.posix).syn_retries)
                .into()))
        },
    )
    .apply(|stream, options, posix| {
        let own = options.stream.syn_retries;
        stream.set_syn_retries(own.unwrap_or_else(|| fresh(posix).syn_retries))
    }),
    applied(
        TCP,
        libc::TCP_USER_TIMEOUT,
        |options, given| {
            let time = milliseconds(int(given.value)?)?;
            rare(options, |rare| rare.stream.user_timeout = time)
        },
        |asked| {
            let time = asked.options.stream.user_timeout.unwrap_or_default();
            Ok(Int(time.as_millis() as i32))
        },
    )
    .apply(|stream, options, _| stream.set_user_timeout(options.stream.user_timeout)),
    applied(
        TCP,
        libc::TCP_LINGER2,
        |options, given| {
            // Zero selects the kernel parameter's value; below zero, FIN-WAIT-2 does not
            // last.
            let seconds = int(given.value)?;
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            rare(options, |rare| {
                rare.stream.fin_timeout = (seconds != 0).then_some(time);
            })
        },
        |asked| {
            Ok(Int(match asked.options.stream.fin_timeout {
                Some(Duration::ZERO) => -1,
                own => {
                    let time = own.unwrap_or_else(|| fresh(asked.posix).fin_timeout);
                    seconds(time.min(StreamOptions::FIN_TIMEOUT_MAX))
                }
            }))
        },
    )
    .apply(|stream, options, posix| {
        let own = options.stream.fin_timeout;
        stream.set_fin_timeout(own.unwrap_or_else(|| fresh(posix).fin_timeout))
    }),
    applied(
        TCP,
        libc::TCP_CONGESTION,
        |options, given| {
            let congestion = congestion_of(given.value)?;
            rare(options, |rare| rare.stream.congestion = Some(congestion))
        },
        |asked| {
            let live = asked.stream.and_then(|it| it.congestion().ok().flatten());
            let own = live.or(asked.options.stream.congestion);
            let own = own.unwrap_or_else(|| fresh(asked.posix).congestion);
            let mut value = own.name().as_bytes().to_vec();
            value.resize(CONGESTION_NAME, 0);
            Ok(Bytes(value))
        },
    )
    .apply(|stream, options, posix| {
        let own = options.stream.congestion;
        stream.set_congestion(own.unwrap_or_else(|| fresh(posix).congestion))
    }),
    applied(
        TCP,
        TCP_NOTSENT_LOWAT,
        |options, given| {
            let bytes = int(given.value)? as u32;
            rare(options, |rare| {
                rare.stream.not_sent_low_water = (bytes != 0).then_some(bytes);
            })
        },
        |asked| {
            let own = asked.options.stream.not_sent_low_water;
            Ok(Int(own.unwrap_or(0) as i32))
        },
    )
    .apply(|stream, options, posix| {
        let own = options.stream.not_sent_low_water;
        stream.set_not_sent_low_water(own.or_else(|| fresh(posix).not_sent_low_water))
    }),
    applied(
        TCP,
        TCP_INQ,
        |options, given| {
            options.inquires = bit(given)?;
            Ok(())
        },
        |asked| flag(asked.options.inquires),
    ),
    applied(
        TCP,
        libc::TCP_FASTOPEN,
        |options, given| {
            if matches!(given.file, OpenFile::Stream(_)) {
                return Err(Errno::INVAL);
            }
            options.fast_open_queue = Some(between(int(given.value)?, 0, i32::MAX)?.min(4096));
            Ok(())
        },
        |asked| Ok(Int(asked.options.fast_open_queue.unwrap_or(0) as i32)),
    ),
    applied(
        TCP,
        libc::TCP_FASTOPEN_CONNECT,
        |options, given| {
            let on = bit(given)?;
            if !given.fast_client {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if !matches!(given.file, OpenFile::Kernel(_)) {
                return Err(Errno::INVAL);
            }
            rare(options, |rare| rare.fast_open_connect = on)
        },
        |asked| flag(asked.options.fast_open_connect),
    ),
    applied(
        TCP,
        TCP_FASTOPEN_KEY,
        |options, given| {
            let keys = keys_of(given.value)?;
            rare(options, |rare| rare.fast_open_keys = Some(keys))
        },
        |asked| {
            let own = asked.options.fast_open_keys;
            if own.is_none() && asked.stream.is_some() {
                // No connection needs one.
                return Ok(Bytes(Vec::new()));
            }
            let keys = own.or(asked.posix.stack().sysctl().fast_open_keys);
            let keys = keys.unwrap_or_else(|| asked.posix.stack().fast_open_keys());
            let backup = keys.backup.as_ref().map_or(&[][..], |backup| backup);
            Ok(Bytes([&keys.primary, backup].concat()))
        },
    ),
    applied(
        TCP,
        TCP_FASTOPEN_NO_COOKIE,
        |options, given| {
            let on = bit(given)?;
            rare(options, |rare| rare.fast_open_no_cookie = on)
        },
        |asked| flag(asked.options.fast_open_no_cookie),
    ),
    applied(
        TCP,
        libc::TCP_DEFER_ACCEPT,
        |options, given| {
            options.defer_accept = defer_accept::timeouts_of(int(given.value)?);
            Ok(())
        },
        |asked| Ok(Int(defer_accept::seconds_of(asked.options.defer_accept))),
    ),
    // The receive buffer bounds the window, so this bounds both.
    applied(
        TCP,
        libc::TCP_WINDOW_CLAMP,
        |options, given| {
            let clamp = match int(given.value)? {
                0 if matches!(given.file, OpenFile::Kernel(_)) => None,
                0 => return Err(Errno::INVAL),
                bytes => Some(bytes.max(RECEIVE_BUFFER_MIN as i32 / 2) as u32),
            };
            rare(options, |rare| rare.window_clamp = clamp)
        },
        |asked| Ok(Int(asked.options.window_clamp.unwrap_or(0) as i32)),
    )
    .apply(RECEIVE_BUFFER),
    applied(IP, libc::IP_TOS, set_traffic_class, |asked| {
        Ok(Int(asked.options.stream.traffic_class.into()))
    })
    .apply(TRAFFIC_CLASS),
    applied(IP, libc::IP_TTL, set_hops, |asked| {
        Ok(Int(asked.options.hops.unwrap_or(HOPS).into()))
    })
    .apply(TIME_TO_LIVE)
    .begins(|options| options.hops.is_some()),
    applied(IPV6, libc::IPV6_TCLASS, set_traffic_class, |asked| {
        Ok(Int(asked.options.stream.traffic_class.into()))
    })
    .apply(TRAFFIC_CLASS),
    applied(IPV6, libc::IPV6_UNICAST_HOPS, set_hops, |asked| {
        Ok(Int(asked.options.hops.unwrap_or(HOPS).into()))
    })
    .apply(TIME_TO_LIVE),
    applied(
        IPV6,
        libc::IPV6_V6ONLY,
        |options, given| {
            // A bound socket's family is fixed.
            if !matches!(given.file, OpenFile::Kernel(_)) {
                return Err(Errno::INVAL);
            }
            let on = is_on(given)?;
            rare(options, |rare| rare.only_v6 = on)
        },
        |asked| flag(asked.options.only_v6),
    ),
    // For queueing disciplines, which the stack's frames bypass. After IP_TOS, which sets it.
    kept(SOCKET, libc::SO_PRIORITY, Any),
    // Urgent data is always delivered in line (RFC 6093).
    kept(SOCKET, libc::SO_OOBINLINE, Flag),
    kept(SOCKET, libc::SO_RCVLOWAT, One),
    // For datagrams, and for bound sockets.
    kept(SOCKET, libc::SO_BROADCAST, Flag),
    kept(SOCKET, libc::SO_REUSEPORT, Flag),
    kept(IP, libc::IP_BIND_ADDRESS_NO_PORT, Flag),
    kept(IP, libc::IP_FREEBIND, Flag),
    // The stack routes and polls by its own rules.
    kept(SOCKET, libc::SO_DONTROUTE, Flag),
    kept(SOCKET, libc::SO_BUSY_POLL, Between(0, i32::MAX)),
    kept(SOCKET, SO_PREFER_BUSY_POLL, Flag),
    kept(SOCKET, libc::SO_INCOMING_CPU, Any),
    // The stack sends no segment that is too large, and does not fragment.
    kept(IP, libc::IP_MTU_DISCOVER, Between(0, 5)),
    kept(IPV6, libc::IPV6_MTU_DISCOVER, Between(0, 5)),
    kept(IPV6, libc::IPV6_DONTFRAG, Flag),
    // The connection's own error reports the failure and its cause.
    kept(IP, libc::IP_RECVERR, Flag),
    kept(IPV6, libc::IPV6_RECVERR, Flag),
    kept(SOCKET, libc::SO_SELECT_ERR_QUEUE, Flag),
    // For control messages, which no stream has (except by IP_PKTOPTIONS).
    kept(IP, libc::IP_PKTINFO, Flag),
    kept(IP, libc::IP_RECVTTL, Flag),
    kept(IP, libc::IP_RECVTOS, Flag),
    kept(IPV6, libc::IPV6_RECVPKTINFO, Flag),
    kept(IPV6, libc::IPV6_RECVHOPLIMIT, Flag),
    kept(IPV6, libc::IPV6_RECVTCLASS, Flag),
    // Recovery is RACK's (RFC 8985), with or without it.
    kept(TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, Between(0, 1)),
    kept(TCP, libc::TCP_THIN_DUPACK, Between(0, 1)),
];

/// Returns the table row of the option that `setsockopt` sets.
pub(crate) fn place_of(which: (i32, i32)) -> Option<usize> {
    let forced = FORCED.iter().find(|it| it.0 == which);
    let which = forced.map_or(which, |it| it.1);
    TABLE.iter().position(|row| row.which == which)
}

/// Returns the row of the option that `getsockopt` queries.
pub(crate) fn row_of(which: (i32, i32)) -> Option<&'static Row> {
    const ROWS: &[Row] = &TABLE;
    ROWS.iter().find(|row| row.which == which)
}
