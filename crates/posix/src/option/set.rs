//! Options as they are set, and given to streams.

use std::time::Duration;

use tidewall_protocol::tcp::{Congestion, FastOpenKeys, StreamOptions, Sysctl};
use tidewall_socket::{OpenFile, TcpStream};

use super::name::{TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_NOTSENT_LOWAT};
use super::{Options, Rare, place_of};
use crate::datagram::{HOPS, hops_of};
use crate::socket::State;
use crate::{Errno, Result, message};

/// The least send and receive buffers that Linux sets (`SOCK_MIN_SNDBUF`,
/// `SOCK_MIN_RCVBUF`).
const SEND_BUFFER_MIN: u32 = 4608;
const RECEIVE_BUFFER_MIN: u32 = 2304;
/// `net.core.wmem_max`, above Linux's default: a program gets what it asks for.
const BUFFER_MAX: u32 = 1 << 26;

/// An option's value as an int. One byte is enough for the IP options.
pub(crate) fn int(value: &[u8]) -> Result<i32> {
    match value {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([*a, *b, *c, *d])),
        [byte, ..] => Ok((*byte).into()),
        [] => Err(Errno::INVAL),
    }
}

pub(crate) fn between(value: i32, least: i32, most: i32) -> Result<u32> {
    if (least..=most).contains(&value) {
        Ok(value as u32)
    } else {
        Err(Errno::INVAL)
    }
}

/// `SO_SNDBUF` and `SO_RCVBUF` as the engine takes them: Linux doubles what is asked
/// and takes half of that for data.
fn buffer(value: i32, least: u32) -> u32 {
    let bytes = u32::try_from(value).unwrap_or(u32::MAX).min(BUFFER_MAX);
    bytes.max(least / 2)
}

fn milliseconds(value: i32) -> Result<Option<Duration>> {
    match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(Duration::from_millis(value))),
        Err(_) => Err(Errno::INVAL),
    }
}

/// `struct timeval` of SO_RCVTIMEO and SO_SNDTIMEO; zero is no timeout.
pub(crate) fn timeval(value: &[u8]) -> Result<Option<Duration>> {
    let (seconds, micros) = value.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let micros = micros.first_chunk::<8>().ok_or(Errno::INVAL)?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).unwrap_or(0);
    let micros = i64::from_ne_bytes(*micros);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros as u64);
    Ok((!time.is_zero()).then_some(time))
}

pub(super) fn timeval_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let micros = i64::from(time.subsec_micros());
    [(time.as_secs() as i64).to_ne_bytes(), micros.to_ne_bytes()].concat()
}

/// `TCP_FASTOPEN_KEY`: one key, or two.
fn keys_of(value: &[u8]) -> Result<FastOpenKeys> {
    let (primary, backup) = match value.as_chunks::<16>() {
        ([primary], []) => (*primary, None),
        ([primary, backup], []) => (*primary, Some(*backup)),
        _ => return Err(Errno::INVAL),
    };
    Ok(FastOpenKeys { primary, backup })
}

/// Changes an option.
pub(crate) fn set(
    state: &mut State,
    file: &OpenFile,
    fast_client: bool,
    which: (i32, i32),
    value: &[u8],
) -> Result<()> {
    let (level, name) = which;
    if place_of(which).is_none() {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    let is_text = level == libc::IPPROTO_TCP && name == libc::TCP_CONGESTION;
    if level != libc::IPPROTO_IP && !is_text && value.len() < size_of::<i32>() {
        return Err(Errno::INVAL);
    }
    let options = &mut state.options;
    match which {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive_on = int(value)? != 0,
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
            let flags = int(value)? as u32;
            let connected = matches!(file, OpenFile::Stream(_));
            message::timestamping(flags, connected).ok_or(Errno::INVAL)?;
            options.timestamping = flags;
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.nodelay = int(value)? != 0,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork = int(value)? != 0,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            options.keepalive.idle = between(int(value)?, 1, 32_767)?;
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
            options.keepalive.interval = between(int(value)?, 1, 32_767)?;
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
            options.keepalive.count = between(int(value)?, 1, 127)? as u8;
        }
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => options.delayed_ack = int(value)? & 1 == 0,
        (libc::IPPROTO_TCP, TCP_INQ) => options.inquires = between(int(value)?, 0, 1)? != 0,
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => {
            if matches!(file, OpenFile::Stream(_)) {
                return Err(Errno::INVAL);
            }
            options.fast_open_queue = Some(between(int(value)?, 0, i32::MAX)?.min(4096));
        }
        _ => return options.change(|rare| set_rare(rare, file, fast_client, which, value)),
    }
    Ok(())
}

fn set_rare(
    options: &mut Rare,
    file: &OpenFile,
    fast_client: bool,
    which: (i32, i32),
    value: &[u8],
) -> Result<()> {
    let stream = &mut options.stream;
    match which {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address = int(value)? != 0,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = int(value.get(4..).unwrap_or_default())?;
            let on = int(value)? != 0;
            let seconds = u64::try_from(seconds).unwrap_or(0);
            options.linger = on.then(|| Duration::from_secs(seconds));
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => options.read_timeout = timeval(value)?,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => options.write_timeout = timeval(value)?,
        // What a capability allows beside is allowed anyhow.
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            stream.send_buffer = Some(buffer(int(value)?, SEND_BUFFER_MIN));
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            stream.receive_buffer = Some(buffer(int(value)?, RECEIVE_BUFFER_MIN));
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {
            options.zero_copy = between(int(value)?, 0, 1)? != 0;
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            options.pacing_rate = match value.first_chunk() {
                Some(rate) => Some(u64::from_ne_bytes(*rate)).filter(|&rate| rate != u64::MAX),
                None => u64::try_from(int(value)?).ok(),
            };
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            let size = u16::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
            let asked = StreamOptions {
                maximum_segment: (size != 0).then_some(size),
                ..*stream
            };
            asked.check()?;
            *stream = asked;
        }
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
            stream.syn_retries = Some(between(int(value)?, 1, 127)? as u8);
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            stream.user_timeout = milliseconds(int(value)?)?;
        }
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
            // Zero is the kernel parameter's; below, FIN-WAIT-2 does not last.
            let seconds = int(value)?;
            let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            stream.fin_timeout = (seconds != 0).then_some(time);
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
            let known = core::str::from_utf8(name).ok();
            let known = known.and_then(Congestion::from_name);
            stream.congestion = Some(known.ok_or(Errno(libc::ENOENT))?);
        }
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
            let bytes = int(value)? as u32;
            stream.not_sent_low_water = (bytes != 0).then_some(bytes);
        }
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => {
            let on = between(int(value)?, 0, 1)? != 0;
            if !fast_client {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if !matches!(file, OpenFile::Kernel(_)) {
                return Err(Errno::INVAL);
            }
            options.fast_open_connect = on;
        }
        (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => {
            options.fast_open_no_cookie = between(int(value)?, 0, 1)? != 0;
        }
        (libc::IPPROTO_TCP, TCP_FASTOPEN_KEY) => options.fast_open_keys = Some(keys_of(value)?),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            stream.traffic_class = int(value)? as u8 & !3;
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            options.hops = hops_of(value)?;
        }
        // A socket that is bound has its family.
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if !matches!(file, OpenFile::Kernel(_)) => {
            return Err(Errno::INVAL);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6 = int(value)? != 0,
        // Of a listener the socket that holds its port has them.
        _ if matches!(file, OpenFile::Listener(_)) => return Err(Errno(libc::ENOPROTOOPT)),
        which => options.kept.set(which, value)?,
    }
    Ok(())
}

/// Gives a stream an option that was set.
pub(super) fn apply(
    stream: &TcpStream,
    which: (i32, i32),
    options: &Options,
    sysctl: &Sysctl,
) -> std::io::Result<()> {
    let own = options.stream;
    let fresh = sysctl.config();
    match which {
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
            stream.set_not_sent_low_water(own.not_sent_low_water.or(fresh.not_sent_low_water))
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
        | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            stream.set_keepalive(options.stream_options().keepalive)
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => stream.set_linger(options.linger),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => stream.set_read_timeout(options.read_timeout),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => stream.set_write_timeout(options.write_timeout),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            stream.set_receive_buffer(own.receive_buffer.unwrap_or(0))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            stream.set_send_buffer(own.send_buffer.unwrap_or(0))
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
            match message::timestamping(options.timestamping, true) {
                Some(flags) => stream.set_timestamping(flags),
                None => Ok(()),
            }
        }
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
            stream.set_pacing_rate_max(options.pacing_rate)
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => stream.set_zero_copy(options.zero_copy),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => stream.set_nodelay(options.nodelay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => stream.set_cork(options.cork),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => stream.set_user_timeout(own.user_timeout),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
            stream.set_syn_retries(own.syn_retries.unwrap_or(fresh.syn_retries))
        }
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
            stream.set_fin_timeout(own.fin_timeout.unwrap_or(fresh.fin_timeout))
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            stream.set_congestion(own.congestion.unwrap_or(fresh.congestion))
        }
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => stream.set_quick_ack(!options.delayed_ack),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match own.maximum_segment {
            Some(bytes) => stream.set_maximum_segment(bytes),
            None => Ok(()),
        },
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            stream.set_tos(own.traffic_class)
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            stream.set_ttl(options.hops.unwrap_or(HOPS))
        }
        _ => Ok(()),
    }
}
