//! `getsockopt(2)` and `setsockopt(2)`.

use std::time::Duration;

use tidewall_protocol::tcp::StreamOptions;
use tidewall_socket::{OpenFile, TcpStream};

use super::name::{
    SO_MEMINFO, TCP_CC_INFO, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_NOTSENT_LOWAT,
};
use super::set::{apply, set, timeval, timeval_bytes};
use super::{Options, SYSCTL_FAST_OPEN_CLIENT};
use crate::atm::circuit_of;
use crate::datagram::HOPS;
use crate::socket::stream_of;
use crate::{Errno, Posix, Result, TcpInfo, errno, lock};

/// The length of a congestion control's name (`TCP_CA_NAME_MAX`).
const CONGESTION_NAME: usize = 16;

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
        if level == libc::IPPROTO_IPV6 && socket.domain == libc::AF_INET {
            return Err(Errno(libc::ENOPROTOOPT));
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
        if level == libc::IPPROTO_IPV6 && socket.domain == libc::AF_INET {
            return Err(Errno(libc::EOPNOTSUPP));
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
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                return Ok(options
                    .pacing_rate
                    .unwrap_or(u64::MAX)
                    .to_ne_bytes()
                    .to_vec());
            }
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
                if options.fast_open_keys.is_none() && stream.is_some() {
                    // No connection needs one.
                    return Ok(Vec::new());
                }
                let keys = options.fast_open_keys.or(sysctl.fast_open_keys);
                let keys = keys.unwrap_or_else(|| self.stack().fast_open_keys());
                let backup = keys.backup.as_ref().map_or(&[][..], |backup| backup);
                return Ok([&keys.primary, backup].concat());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                own.traffic_class.into()
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                options.hops.unwrap_or(HOPS).into()
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_v6.into(),
            which @ (
                libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6,
                _,
            ) => {
                let kept = match &*file {
                    OpenFile::Listener(_) => None,
                    _ => options.kept.get(which),
                };
                kept.ok_or(Errno(libc::ENOPROTOOPT))?
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
