//! Socket options.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tidewall_protocol::tcp::{Congestion, FastOpenKeys, Framing, Keepalive, StreamOptions, Sysctl};
use tidewall_socket::{ListenOptions, OpenFile, TcpStream};

use crate::atm::circuit_of;
use crate::message;
use crate::socket::{State, stream_of};
use crate::{Errno, Posix, Result, TcpInfo, errno, lock};

/// `linux/tcp.h`, where the libc crate lacks them.
mod name {
    pub(super) const TCP_NOTSENT_LOWAT: i32 = 25;
    pub(super) const TCP_FASTOPEN_KEY: i32 = 33;
    pub(super) const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
    pub(super) const TCP_INQ: i32 = 36;
    pub(super) const TCP_CC_INFO: i32 = 26;
    pub(super) const SO_MEMINFO: i32 = 55;
}
use name::{
    SO_MEMINFO, TCP_CC_INFO, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_NOTSENT_LOWAT,
};

/// Flags of `tcp_fastopen` (`Documentation/networking/ip-sysctl.rst`).
pub(crate) const SYSCTL_FAST_OPEN_CLIENT: u32 = 1;
const SYSCTL_FAST_OPEN_SERVER: u32 = 2;
pub(crate) const SYSCTL_FAST_OPEN_NO_COOKIE: u32 = 4;
const SYSCTL_FAST_OPEN_SERVER_NO_COOKIE: u32 = 0x200;
/// Every listener has it, with its backlog for a queue.
const SYSCTL_FAST_OPEN_EVERY_LISTENER: u32 = 0x400;

/// The least send and receive buffers that Linux sets (`SOCK_MIN_SNDBUF`,
/// `SOCK_MIN_RCVBUF`).
const SEND_BUFFER_MIN: u32 = 4608;
const RECEIVE_BUFFER_MIN: u32 = 2304;
/// `net.core.wmem_max`, above Linux's default: a program gets what it asks for.
const BUFFER_MAX: u32 = 1 << 26;
/// The length of a congestion control's name (`TCP_CA_NAME_MAX`).
const CONGESTION_NAME: usize = 16;

/// The options of a socket: what its connections begin with, and what is read back.
///
/// In place are those that receiving looks at, those that programs set on each connection, and
/// those that no connection has of its listener. The others are one memory for a listener and all
/// that it has accepted, until one of them is set.
#[derive(Clone, Default)]
pub(crate) struct Options {
    rare: Arc<Rare>,
    keepalive: KeepaliveSeconds,
    keepalive_on: bool,
    nodelay: bool,
    cork: bool,
    /// Without `TCP_QUICKACK`, which sockets begin with.
    delayed_ack: bool,
    /// `TCP_INQ`.
    pub(crate) inquires: bool,
    /// `SOF_TIMESTAMPING_…`
    pub(crate) timestamping: u32,
    pub(crate) backlog: u32,
    /// `TCP_FASTOPEN`.
    fast_open_queue: Option<u32>,
}

/// See [`Options`].
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Rare {
    /// Without those that are in [`Options`].
    stream: StreamOptions,
    pub(crate) reuse_address: bool,
    pub(crate) only_v6: bool,
    linger: Option<Duration>,
    pub(crate) read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    zero_copy: bool,
    fast_open_keys: Option<FastOpenKeys>,
    fast_open_no_cookie: bool,
    pub(crate) fast_open_connect: bool,
}

/// [`Keepalive`] as it is set and read.
#[derive(Clone, Copy, Default)]
struct KeepaliveSeconds {
    idle: u32,
    interval: u32,
    count: u8,
}

impl Deref for Options {
    type Target = Rare;

    fn deref(&self) -> &Rare {
        &self.rare
    }
}

impl Options {
    pub(crate) fn new(sysctl: &Sysctl) -> Self {
        let Keepalive {
            idle,
            interval,
            count,
        } = sysctl.keepalive;
        Self {
            keepalive: KeepaliveSeconds {
                idle: idle.as_secs() as u32,
                interval: interval.as_secs() as u32,
                count,
            },
            ..Self::default()
        }
    }

    /// Changes what it may share with others.
    fn change<R>(&mut self, change: impl FnOnce(&mut Rare) -> Result<R>) -> Result<R> {
        let mut rare = Rare::clone(&self.rare);
        let changed = change(&mut rare)?;
        if rare != *self.rare {
            self.rare = Arc::new(rare);
        }
        Ok(changed)
    }

    /// SO_RCVTIMEO of what is no stream.
    pub(crate) fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.change(|rare| {
            rare.read_timeout = timeout;
            Ok(())
        })
    }

    /// What connections begin with.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        let KeepaliveSeconds {
            idle,
            interval,
            count,
        } = self.keepalive;
        StreamOptions {
            nodelay: self.nodelay,
            keepalive: self.keepalive_on.then_some(Keepalive {
                idle: Duration::from_secs(idle.into()),
                interval: Duration::from_secs(interval.into()),
                count,
            }),
            ..self.stream
        }
    }

    /// SOCK_SEQPACKET.
    pub(crate) fn carry_frames(&mut self) {
        Arc::make_mut(&mut self.rare).stream.framing = Framing::Acp;
    }

    /// What a listener is given.
    pub(crate) fn listen(&self, sysctl: &Sysctl) -> ListenOptions {
        let has = |flag| sysctl.fast_open & flag != 0;
        let queue = match self.fast_open_queue {
            None if has(SYSCTL_FAST_OPEN_EVERY_LISTENER) => self.backlog.saturating_sub(1),
            own => own.unwrap_or(0),
        };
        ListenOptions {
            backlog: self.backlog.max(1),
            fast_open: if has(SYSCTL_FAST_OPEN_SERVER) {
                queue
            } else {
                0
            },
            fast_open_keys: self.fast_open_keys.or(sysctl.fast_open_keys),
            fast_open_without_cookie: self.fast_open_no_cookie
                || has(SYSCTL_FAST_OPEN_SERVER_NO_COOKIE),
            reuse_address: self.reuse_address,
            reuse_port: false,
            only_v6: self.only_v6,
            stream: self.stream_options(),
        }
    }

    /// Those of an accepted connection.
    pub(crate) fn inherited(&self) -> Self {
        Self {
            backlog: 0,
            fast_open_queue: None,
            ..self.clone()
        }
    }

    /// Gives a new stream what it does not begin with. What a stream refuses it has not,
    /// as one of the kernel's zero copy.
    pub(crate) fn begin(&self, stream: &TcpStream) {
        if self.cork {
            let _ = stream.set_cork(true);
        }
        if self.zero_copy {
            let _ = stream.set_zero_copy(true);
        }
        if let Some(flags) = message::timestamping(self.timestamping, true)
            && self.timestamping != 0
        {
            let _ = stream.set_timestamping(flags);
        }
        if self.linger.is_some() {
            let _ = stream.set_linger(self.linger);
        }
        if self.delayed_ack {
            let _ = stream.set_quick_ack(false);
        }
        let _ = stream.set_read_timeout(self.read_timeout);
        let _ = stream.set_write_timeout(self.write_timeout);
    }
}

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

fn timeval_bytes(time: Option<Duration>) -> Vec<u8> {
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

impl Posix {
    /// `setsockopt(2)`, with Linux's constants and layouts: those options that
    /// listeners and streams have; of a connection of the kernel's, all of the kernel's.
    ///
    /// # Errors
    /// EINVAL for a value out of range or too short, ENOPROTOOPT for any other
    /// option, ENOENT for an algorithm that the engine has not.
    pub fn setsockopt(&self, fd: i32, level: i32, option: i32, value: &[u8]) -> Result<()> {
        let file = self.file(fd)?;
        let socket = self.socket_of(fd)?;
        if let Some(kernel) = stream_of(&file).and_then(TcpStream::kernel_socket) {
            return tidewall_sys::set_option_bytes(kernel, level, option, value).map_err(errno);
        }
        if socket.is_udp()
            && let Some(set) = self.set_of_datagrams(&file, &socket, (level, option), value)
        {
            return set;
        }
        if level == libc::SOL_ATM && socket.is_atm() {
            return self.set_atm(&file, &socket, option, value);
        }
        if let Some(circuit) = circuit_of(&file) {
            return match (level, option) {
                (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                    let timeout = timeval(value)?;
                    circuit.set_read_timeout(timeout).map_err(errno)?;
                    lock(&socket.state).options.set_read_timeout(timeout)
                }
                _ => Err(Errno(libc::ENOPROTOOPT)),
            };
        }
        let fast_client = self.stack().sysctl().fast_open & SYSCTL_FAST_OPEN_CLIENT != 0;
        let options = {
            let mut state = lock(&socket.state);
            set(&mut state, &file, fast_client, (level, option), value)?;
            state.options.clone()
        };
        match &*file {
            OpenFile::Listener(listener) => {
                let options = options.listen(&self.stack().sysctl());
                listener.set_options(&options).map_err(errno)
            }
            OpenFile::Stream(stream) => {
                let sysctl = self.stack().sysctl();
                apply(stream, (level, option), &options, &sysctl).map_err(errno)
            }
            _ => Ok(()),
        }
    }

    /// `getsockopt(2)`: the value in Linux's layout, all of it.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option, EOPNOTSUPP for an unknown level.
    pub fn getsockopt(&self, fd: i32, level: i32, option: i32) -> Result<Vec<u8>> {
        let file = self.file(fd)?;
        let socket = self.socket_of(fd)?;
        if level == libc::SOL_ATM && socket.is_atm() {
            return self.atm_option(fd, &socket, option);
        }
        let stream = stream_of(&file);
        if let Some(kernel) = stream.and_then(TcpStream::kernel_socket) {
            let mut value = vec![0; 1024];
            let length = tidewall_sys::option_bytes(kernel, level, option, &mut value);
            value.truncate(length.map_err(errno)?);
            return Ok(value);
        }
        if socket.is_udp()
            && let Some(value) = self.of_datagrams(&file, &socket, (level, option))
        {
            return value.map(|value| value.to_ne_bytes().to_vec());
        }
        let sysctl = self.stack().sysctl();
        let options = lock(&socket.state).options.clone();
        let own = &options.stream;
        let seconds = |time: Duration| time.as_secs() as i32;
        let fresh = || sysctl.config();
        let value = match (level, option) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return Ok(self.tcp_info(fd)?.to_bytes()),
            (libc::IPPROTO_TCP, TCP_CC_INFO) => return Ok(Vec::new()),
            (libc::SOL_SOCKET, SO_MEMINFO) => return Ok(memory_info(stream)),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let live = stream.and_then(|stream| stream.congestion().ok().flatten());
                let own = live.or(own.congestion).unwrap_or(fresh().congestion);
                let mut value = own.name().as_bytes().to_vec();
                value.resize(CONGESTION_NAME, 0);
                return Ok(value);
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => match &*file {
                OpenFile::Kernel(_) => 0,
                file => {
                    let error = file.take_error().map_err(errno)?;
                    error.map_or(0, |error| errno(error).0)
                }
            },
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive_on.into(),
            (libc::SOL_SOCKET, libc::SO_TYPE) => socket.kind,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => socket.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => match socket.kind {
                _ if socket.is_atm() => 0,
                libc::SOCK_DGRAM => libc::IPPROTO_UDP,
                _ => libc::IPPROTO_TCP,
            },
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                matches!(&*file, OpenFile::Listener(_)).into()
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let on = i32::from(options.linger.is_some());
                let time = seconds(options.linger.unwrap_or_default());
                return Ok([on.to_ne_bytes(), time.to_ne_bytes()].concat());
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                return Ok(timeval_bytes(options.read_timeout));
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                return Ok(timeval_bytes(options.write_timeout));
            }
            // Bytes of memory, of which half holds data.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                own.send_buffer
                    .map_or(sysctl.send_memory[1], |bytes| bytes * 2) as i32
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                own.receive_buffer
                    .map_or(sysctl.receive_memory[1], |bytes| bytes * 2) as i32
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => options.zero_copy.into(),
            // struct so_timestamping: the flags, and no clock of hardware.
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
                return Ok([options.timestamping.to_ne_bytes(), [0; 4]].concat());
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match stream {
                Some(stream) => stream.maximum_segment().map_err(errno)?.into(),
                // TCP_MSS_DEFAULT
                None => own.maximum_segment.unwrap_or(536).into(),
            },
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keepalive.idle as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => options.keepalive.interval as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keepalive.count.into(),
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
                own.syn_retries.unwrap_or(fresh().syn_retries).into()
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => match own.fin_timeout {
                Some(Duration::ZERO) => -1,
                own => {
                    let time = own.unwrap_or(fresh().fin_timeout);
                    seconds(time.min(StreamOptions::FIN_TIMEOUT_MAX))
                }
            },
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                own.user_timeout.unwrap_or_default().as_millis() as i32
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => match stream {
                Some(stream) => stream.quick_ack().map_err(errno)?.into(),
                None => (!options.delayed_ack).into(),
            },
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => own.not_sent_low_water.unwrap_or(0) as i32,
            (libc::IPPROTO_TCP, TCP_INQ) => options.inquires.into(),
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => options.fast_open_queue.unwrap_or(0) as i32,
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => options.fast_open_connect.into(),
            (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => options.fast_open_no_cookie.into(),
            (libc::IPPROTO_TCP, TCP_FASTOPEN_KEY) => {
                let keys = options.fast_open_keys.or(sysctl.fast_open_keys);
                let keys = keys.unwrap_or_else(|| self.stack().fast_open_keys());
                let backup = keys.backup.as_ref().map_or(&[][..], |backup| backup);
                return Ok([&keys.primary, backup].concat());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                own.traffic_class.into()
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6.into(),
            (libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => {
                return Err(Errno(libc::ENOPROTOOPT));
            }
            // A level that nobody has; setting there is ENOPROTOOPT.
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    /// How long a call that receives or accepts waits (SO_RCVTIMEO); `None` for ever.
    pub fn read_timeout(&self, fd: i32) -> Option<Duration> {
        self.timeout(fd, libc::SO_RCVTIMEO, |options| options.read_timeout)
    }

    /// How long a call that sends or connects waits (SO_SNDTIMEO); `None` for ever.
    pub fn write_timeout(&self, fd: i32) -> Option<Duration> {
        self.timeout(fd, libc::SO_SNDTIMEO, |options| options.write_timeout)
    }

    fn timeout(
        &self,
        fd: i32,
        option: i32,
        own: fn(&Options) -> Option<Duration>,
    ) -> Option<Duration> {
        let file = self.file(fd).ok()?;
        if let Some(kernel) = stream_of(&file).and_then(TcpStream::kernel_socket) {
            let mut value = [0; 16];
            tidewall_sys::option_bytes(kernel, libc::SOL_SOCKET, option, &mut value).ok()?;
            return timeval(&value).ok()?;
        }
        own(&lock(&self.socket_of(fd).ok()?.state).options)
    }

    /// `TCP_INFO`.
    ///
    /// # Errors
    /// ENOTSOCK; ENOPROTOOPT for a connection of the kernel's, whose bytes
    /// [`Posix::getsockopt`] has.
    pub fn tcp_info(&self, fd: i32) -> Result<TcpInfo> {
        let socket = self.socket_of(fd)?;
        let options = lock(&socket.state).options.clone();
        match &*self.file(fd)? {
            OpenFile::Listener(listener) => {
                let backlog = options.backlog.saturating_sub(1);
                Ok(TcpInfo::of_listener(listener.waiting() as u32, backlog))
            }
            OpenFile::Stream(stream) => {
                let v6 = stream
                    .local_addr()
                    .is_ok_and(|it| it.ip().to_canonical().is_ipv6());
                let mtu = self.stack().mtu() as u32;
                let announced = mtu.saturating_sub(if v6 { 60 } else { 40 });
                let most = options.stream.maximum_segment.unwrap_or(u16::MAX);
                TcpInfo::of(stream, mtu, announced.min(most.into())).ok_or(Errno(libc::ENOPROTOOPT))
            }
            _ => Ok(TcpInfo::unconnected()),
        }
    }
}

/// Changes an option.
pub(crate) fn set(
    state: &mut State,
    file: &OpenFile,
    fast_client: bool,
    which: (i32, i32),
    value: &[u8],
) -> Result<()> {
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
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            stream.send_buffer = Some(buffer(int(value)?, SEND_BUFFER_MIN));
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            stream.receive_buffer = Some(buffer(int(value)?, RECEIVE_BUFFER_MIN));
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {
            options.zero_copy = between(int(value)?, 0, 1)? != 0;
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
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6 = int(value)? != 0,
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

/// Gives a stream an option that was set.
fn apply(
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
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            stream.set_receive_buffer(own.receive_buffer.unwrap_or(0))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => stream.set_send_buffer(own.send_buffer.unwrap_or(0)),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
            match message::timestamping(options.timestamping, true) {
                Some(flags) => stream.set_timestamping(flags),
                None => Ok(()),
            }
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
        _ => Ok(()),
    }
}

/// `SO_MEMINFO`: memory in use and its limits, as far as the engine counts.
fn memory_info(stream: Option<&TcpStream>) -> Vec<u8> {
    let mut fields = [0u32; 9];
    if let Some(info) = stream.and_then(TcpStream::info) {
        fields[0] = info.unread;
        fields[1] = info.receive_buffer.saturating_mul(2);
        fields[3] = info.send_buffer;
        fields[5] = info.unacknowledged.saturating_add(info.not_sent);
    }
    let bytes = fields.iter().flat_map(|field| field.to_ne_bytes());
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Socket, kernel_socket};

    fn shares(one: &State, other: &State) -> bool {
        Arc::ptr_eq(&one.options.rare, &other.options.rare)
    }

    /// Bytes of an idle connection beside the stack's.
    #[test]
    fn connections_share_what_their_program_does_not_set_of_each() {
        let file = kernel_socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let file = OpenFile::from(file);
        let set = |state: &mut State, which, value: &[i32]| {
            let bytes: Vec<u8> = value.iter().flat_map(|it| it.to_ne_bytes()).collect();
            set(state, &file, false, which, &bytes)
        };
        let lingers = (libc::SOL_SOCKET, libc::SO_LINGER);
        let mut listener = State::default();
        set(&mut listener, lingers, &[1, 5]).unwrap();
        let mut connection = listener.accepted();
        // What redis, nginx and haproxy set.
        for which in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
            (libc::IPPROTO_TCP, libc::TCP_CORK),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        ] {
            set(&mut connection, which, &[100]).unwrap();
        }
        set(&mut connection, lingers, &[1, 5]).unwrap();
        let refused = set(&mut connection, (libc::IPPROTO_TCP, libc::TCP_MAXSEG), &[1]);
        assert_eq!(refused, Err(Errno::INVAL));
        assert!(shares(&connection, &listener));
        let stream = connection.options.stream_options();
        assert!(stream.nodelay);
        assert_eq!(stream.keepalive.unwrap().idle, Duration::from_secs(100));
        assert!(!listener.options.stream_options().nodelay);
        set(&mut connection, lingers, &[1, 7]).unwrap();
        assert!(!shares(&connection, &listener));
        assert_eq!(connection.options.linger, Some(Duration::from_secs(7)));
        assert_eq!(listener.options.linger, Some(Duration::from_secs(5)));
        assert!(size_of::<Socket>() <= 120, "{}", size_of::<Socket>());
    }
}
