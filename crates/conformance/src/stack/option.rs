//! Socket options.

use core::time::Duration;

use tidewall_protocol::tcp::{Config, Congestion, Connection, StreamOptions};

use super::fast_open::keys_of;
use super::socket::{Kind, Options};
use super::{ConnectionId, Failure, Fd, Host, Result, TcpInfo, notification};

/// `linux/tcp.h`, where the libc crate lacks them.
mod name {
    pub(super) const TCP_NOTSENT_LOWAT: i32 = 25;
    pub(super) const TCP_FASTOPEN_KEY: i32 = 33;
    pub(super) const TCP_INQ: i32 = 36;
    pub(super) const TCP_CC_INFO: i32 = 26;
    pub(super) const SO_MEMINFO: i32 = 55;
}
use name::{SO_MEMINFO, TCP_CC_INFO, TCP_FASTOPEN_KEY, TCP_INQ, TCP_NOTSENT_LOWAT};

/// The least send and receive buffers that Linux sets (`SOCK_MIN_SNDBUF`,
/// `SOCK_MIN_RCVBUF`).
const SEND_BUFFER_MIN: u32 = 4608;
const RECEIVE_BUFFER_MIN: u32 = 2304;
/// `net.core.wmem_max`, above Linux's default so that scripts get what they ask.
const BUFFER_MAX: u32 = 1 << 26;

/// The length of a congestion control's name (`TCP_CA_NAME_MAX`).
const CONGESTION_NAME: usize = 16;

/// An option's value as an int. One byte is enough for the IP options.
fn int(value: &[u8]) -> Result<i32> {
    match value {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([*a, *b, *c, *d])),
        [byte, ..] => Ok((*byte).into()),
        [] => Err(Failure::Errno(libc::EINVAL)),
    }
}

fn between(value: i32, least: i32, most: i32) -> Result<u32> {
    if (least..=most).contains(&value) {
        Ok(value as u32)
    } else {
        Err(Failure::Errno(libc::EINVAL))
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
        Err(_) => Err(Failure::Errno(libc::EINVAL)),
    }
}

impl Host {
    /// What the engine is told for a socket's connections.
    pub(super) fn engine_config(&self, fd: Fd, v4: bool) -> Result<Config> {
        let options = &self.get(fd)?.options;
        let mut config = self.config.engine();
        if !v4 {
            config.mss = config.mss.saturating_sub(20);
        }
        let stream = StreamOptions {
            keepalive: options.keepalive_on.then_some(options.keepalive),
            // Applied to connections: the first is what Linux begins with, too.
            send_buffer: None,
            ..options.stream
        };
        Ok(stream.apply(config))
    }

    /// Tells a new connection the options that its configuration does not carry.
    pub(super) fn adopt_options(&mut self, fd: Fd, id: ConnectionId) -> Result<()> {
        let options = self.get(fd)?.options.clone();
        if let Some(entry) = self.connections.get_mut(&id) {
            if let Some(bytes) = options.stream.send_buffer {
                entry.connection.set_send_buffer(bytes);
            }
            entry.connection.set_cork(options.cork);
            entry.connection.set_zero_copy(options.zero_copy);
            let timestamping = notification::timestamping(options.timestamping);
            entry.connection.set_timestamping(timestamping);
        }
        Ok(())
    }

    /// `setsockopt(2)`, with Linux's constants and layouts: those options that a
    /// stack's listeners and streams have.
    ///
    /// # Errors
    /// EINVAL for a value out of range or too short, ENOPROTOOPT for any other
    /// option, ENOENT for an algorithm that the engine has not.
    pub fn setsockopt(&mut self, fd: Fd, level: i32, option: i32, value: &[u8]) -> Result<()> {
        self.stream(fd)?;
        if (level, option) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
            self.check_timestamping(fd, int(value)? as u32)?;
        }
        let now = self.now;
        let fast_client = self.fast_client();
        let socket = self.get_mut(fd)?;
        let options = &mut socket.options;
        let stream = &mut options.stream;
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address = int(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive_on = int(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = int(value.get(4..).unwrap_or_default())?;
                let on = int(value)? != 0;
                let seconds = u64::try_from(seconds).unwrap_or(0);
                options.linger = on.then(|| Duration::from_secs(seconds));
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                stream.send_buffer = Some(buffer(int(value)?, SEND_BUFFER_MIN));
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                stream.receive_buffer = Some(buffer(int(value)?, RECEIVE_BUFFER_MIN));
            }
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
                options.timestamping = int(value)? as u32;
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {
                options.zero_copy = between(int(value)?, 0, 1)? != 0;
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => stream.nodelay = int(value)? != 0,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork = int(value)? != 0,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let size = u16::try_from(int(value)?).map_err(|_| Failure::Errno(libc::EINVAL))?;
                let asked = StreamOptions {
                    maximum_segment: (size != 0).then_some(size),
                    ..*stream
                };
                asked.check()?;
                *stream = asked;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let seconds = between(int(value)?, 1, 32_767)?;
                options.keepalive.idle = Duration::from_secs(seconds.into());
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                let seconds = between(int(value)?, 1, 32_767)?;
                options.keepalive.interval = Duration::from_secs(seconds.into());
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                options.keepalive.count = between(int(value)?, 1, 127)? as u8;
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
                let known = core::str::from_utf8(name)
                    .ok()
                    .and_then(Congestion::from_name);
                stream.congestion = Some(known.ok_or(Failure::Errno(libc::ENOENT))?);
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => options.quickack = int(value)? & 1 != 0,
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
                let bytes = int(value)? as u32;
                stream.not_sent_low_water = (bytes != 0).then_some(bytes);
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => {
                if matches!(socket.kind, Kind::Stream(_)) {
                    return Err(Failure::Errno(libc::EINVAL));
                }
                options.fast_open_queue = Some(between(int(value)?, 0, i32::MAX)?.min(4096));
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => {
                let on = between(int(value)?, 0, 1)? != 0;
                if !fast_client {
                    return Err(Failure::Errno(libc::EOPNOTSUPP));
                }
                if !matches!(socket.kind, Kind::Fresh) {
                    return Err(Failure::Errno(libc::EINVAL));
                }
                options.fast_open_connect = on;
            }
            (libc::IPPROTO_TCP, TCP_FASTOPEN_KEY) => {
                options.fast_open_keys = Some(keys_of(value)?);
            }
            (libc::IPPROTO_TCP, TCP_INQ) => {
                options.inquiry = between(int(value)?, 0, 1)? != 0;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                stream.traffic_class = int(value)? as u8 & !3;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6 = int(value)? != 0,
            _ => return Err(Failure::Errno(libc::ENOPROTOOPT)),
        }
        if matches!(socket.kind, Kind::Listener) {
            return self.refresh_listener(fd);
        }
        let (options, kind) = (options.clone(), &socket.kind);
        if let Kind::Stream(id) = *kind {
            self.apply(id, (level, option), &options, now);
        }
        Ok(())
    }

    /// A listener answers with the options as they are now.
    pub(super) fn refresh_listener(&mut self, fd: Fd) -> Result<()> {
        let config = self.engine_config(fd, true)?;
        let fast_open = self.fast_open_server(fd)?;
        if let Some(listening) = self.listeners.get_mut(&fd) {
            listening.protocol.set_config(&config);
            listening.protocol.set_fast_open(fast_open);
        }
        Ok(())
    }

    /// All listeners answer by the kernel parameters as they are now.
    pub(super) fn refresh_listeners(&mut self) {
        let listeners: Vec<_> = self.listeners.keys().copied().collect();
        for fd in listeners {
            let _ = self.refresh_listener(fd);
        }
    }

    /// Tells a connection of an option that was set.
    fn apply(&mut self, id: ConnectionId, which: (i32, i32), options: &Options, now: Duration) {
        let stack = self.config.engine();
        let stream = options.stream;
        self.on_connection(id, |connection| match which {
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => connection
                .set_not_sent_low_water(stream.not_sent_low_water.or(stack.not_sent_low_water)),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
            | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
                let keepalive = options.keepalive_on.then_some(options.keepalive);
                connection.set_keepalive(keepalive, now);
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                connection.set_receive_buffer(stream.receive_buffer.unwrap_or(0));
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                connection.set_send_buffer(stream.send_buffer.unwrap_or(0));
            }
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
                connection.set_timestamping(notification::timestamping(options.timestamping));
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => connection.set_zero_copy(options.zero_copy),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => connection.set_nodelay(stream.nodelay),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => connection.set_cork(options.cork),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                connection.set_user_timeout(stream.user_timeout);
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
                connection.set_syn_retries(stream.syn_retries.unwrap_or(stack.syn_retries));
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                connection.set_fin_timeout(stream.fin_timeout.unwrap_or(stack.fin_timeout));
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                connection.set_congestion(stream.congestion.unwrap_or(stack.congestion));
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => connection.set_quick_ack(options.quickack),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                if let Some(bytes) = stream.maximum_segment {
                    connection.set_maximum_segment(bytes);
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                connection.set_traffic_class(stream.traffic_class);
            }
            _ => {}
        });
    }

    /// `getsockopt(2)`: the value in Linux's layout, all of it.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown option.
    pub fn getsockopt(&mut self, fd: Fd, level: i32, option: i32) -> Result<Vec<u8>> {
        let stream = self.stream(fd)?;
        let socket = self.get(fd)?;
        let options = &socket.options;
        let own = &options.stream;
        let stack = self.config.engine();
        let connection = stream
            .and_then(|id| self.connections.get(&id))
            .map(|entry| &entry.connection);
        let seconds = |time: Duration| time.as_secs() as i32;
        let value = match (level, option) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return Ok(self.tcp_info(fd)?.to_bytes()),
            (libc::IPPROTO_TCP, TCP_CC_INFO) => return Ok(Vec::new()),
            (libc::SOL_SOCKET, SO_MEMINFO) => return self.memory_info(fd),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let own = own.congestion.unwrap_or(stack.congestion);
                let name = connection.map_or(own, Connection::congestion).name();
                let mut value = name.as_bytes().to_vec();
                value.resize(CONGESTION_NAME, 0);
                return Ok(value);
            }
            (libc::SOL_SOCKET, libc::SO_ERROR) => return self.take_error(fd),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keepalive_on.into(),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => socket.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(socket.kind, Kind::Listener).into(),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let on = i32::from(options.linger.is_some());
                let time = seconds(options.linger.unwrap_or_default());
                return Ok([on.to_ne_bytes(), time.to_ne_bytes()].concat());
            }
            // Bytes of memory, of which half holds data.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => own
                .send_buffer
                .map_or(self.config.sysctl.send_memory[1], |bytes| bytes * 2)
                as i32,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => own
                .receive_buffer
                .map_or(self.config.sysctl.receive_memory[1], |bytes| bytes * 2)
                as i32,
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => options.zero_copy.into(),
            // struct so_timestamping: the flags, and no clock of hardware.
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => {
                return Ok([options.timestamping.to_ne_bytes(), [0; 4]].concat());
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => own.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match connection {
                Some(connection) => connection.maximum_segment().into(),
                // TCP_MSS_DEFAULT
                None => own.maximum_segment.unwrap_or(536).into(),
            },
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => seconds(options.keepalive.idle),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => seconds(options.keepalive.interval),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keepalive.count.into(),
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
                own.syn_retries.unwrap_or(stack.syn_retries).into()
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => match own.fin_timeout {
                Some(Duration::ZERO) => -1,
                own => seconds(
                    own.unwrap_or(stack.fin_timeout)
                        .min(StreamOptions::FIN_TIMEOUT_MAX),
                ),
            },
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                own.user_timeout.unwrap_or_default().as_millis() as i32
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => match connection {
                Some(connection) => connection.quick_ack().into(),
                None => options.quickack.into(),
            },
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => own.not_sent_low_water.unwrap_or(0) as i32,
            (libc::IPPROTO_TCP, TCP_INQ) => options.inquiry.into(),
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => options.fast_open_queue.unwrap_or(0) as i32,
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => options.fast_open_connect.into(),
            (libc::IPPROTO_TCP, TCP_FASTOPEN_KEY) => {
                let keys = self.fast_open_keys(fd)?;
                let backup = keys.backup.as_ref().map_or(&[][..], |backup| backup);
                return Ok([&keys.primary, backup].concat());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                own.traffic_class.into()
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6.into(),
            _ => return Err(Failure::Errno(libc::ENOPROTOOPT)),
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    fn take_error(&mut self, fd: Fd) -> Result<Vec<u8>> {
        let own = self.get_mut(fd)?.error.take();
        let error = match (own, self.stream(fd)?) {
            (None, Some(id)) => self
                .connections
                .get_mut(&id)
                .and_then(|entry| entry.connection.take_error())
                .map(|error| error.0),
            (own, _) => own,
        };
        Ok(error.unwrap_or(0).to_ne_bytes().to_vec())
    }

    /// `TCP_INFO`.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub fn tcp_info(&self, fd: Fd) -> Result<TcpInfo> {
        if let Some(listening) = self.listeners.get(&fd) {
            let waiting = listening.queue.len();
            return Ok(TcpInfo::of_listener(waiting, listening.backlog));
        }
        let stream = self.stream(fd)?;
        Ok(match stream.and_then(|id| self.connections.get(&id)) {
            Some(entry) => {
                let v4 = entry.connection.flow().remote.is_ipv4();
                let config = self.engine_config(fd, v4)?;
                let announced = config.mss.min(config.mss_max);
                TcpInfo::of(&entry.connection, self.config.mtu, announced, self.now)
            }
            None => TcpInfo {
                state: 7,
                ..TcpInfo::default()
            },
        })
    }

    /// `SO_MEMINFO`: memory in use and its limits, as far as the engine counts.
    fn memory_info(&self, fd: Fd) -> Result<Vec<u8>> {
        let stream = self.stream(fd)?;
        let mut fields = [0u32; 9];
        if let Some(entry) = stream.and_then(|id| self.connections.get(&id)) {
            let info = entry.connection.info();
            fields[0] = info.unread;
            fields[1] = info.receive_buffer.saturating_mul(2);
            fields[3] = info.send_buffer;
            fields[5] = info.unacknowledged.saturating_add(info.not_sent);
        }
        Ok(fields
            .iter()
            .flat_map(|field| field.to_ne_bytes())
            .collect())
    }
}
