//! `getsockopt(2)` and `setsockopt(2)`.

use std::time::Duration;

use tidewall::{OpenFile, TcpStream};

use super::name::{SO_MEMINFO, TCP_CC_INFO};
use super::set::{set, timeval};
use super::table::{Asked, TABLE, Treatment, place_of, row_of};
use super::{Options, SYSCTL_FAST_OPEN_CLIENT};
use crate::atm::circuit_of;
use crate::socket::{Socket, stream_of};
use crate::{Errno, Posix, Result, TcpInfo, errno, lock};

impl Posix {
    /// `setsockopt(2)`, with Linux's constants and layouts. Supports the options of
    /// listeners and streams; for a kernel connection, all of the kernel's.
    ///
    /// # Errors
    /// EINVAL for a value out of range or too short, ENOPROTOOPT for any other option,
    /// ENOENT for an algorithm that the engine lacks.
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
                let row = place_of((level, option)).and_then(|place| TABLE.get(place));
                match row.and_then(|row| row.apply) {
                    Some(apply) => apply(stream, &options, self).map_err(errno),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// `getsockopt(2)`: returns the full value in Linux's layout.
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
        if let Some(value) = self.fact(fd, &file, &socket, (level, option)) {
            return value;
        }
        let is_level = matches!(
            level,
            libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6
        );
        // An unknown level; setting an option there is ENOPROTOOPT.
        let unknown = match is_level {
            true => Errno(libc::ENOPROTOOPT),
            false => Errno(libc::EOPNOTSUPP),
        };
        let row = row_of((level, option)).ok_or(unknown)?;
        let options = lock(&socket.state).options.clone();
        match row.treatment {
            Treatment::Applied { get, .. } => get(&Asked {
                options: &options,
                stream,
                posix: self,
            })
            .map(Vec::from),
            Treatment::Kept(_) if matches!(&*file, OpenFile::Listener(_)) => Err(unknown),
            Treatment::Kept(_) => Ok(options.kept.get(row.which).to_ne_bytes().to_vec()),
        }
    }

    /// Returns an option that is read and never set.
    fn fact(
        &self,
        fd: i32,
        file: &OpenFile,
        socket: &Socket,
        which: (i32, i32),
    ) -> Option<Result<Vec<u8>>> {
        let value = match which {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                return Some(self.tcp_info(fd).map(|info| info.to_bytes()));
            }
            (libc::IPPROTO_TCP, TCP_CC_INFO) => return Some(Ok(Vec::new())),
            (libc::SOL_SOCKET, SO_MEMINFO) => return Some(Ok(memory_info(stream_of(file)))),
            (libc::SOL_SOCKET, libc::SO_ERROR) => match file {
                OpenFile::Kernel(_) if lock(&socket.state).reset => socket.take_reset().0,
                OpenFile::Kernel(_) => 0,
                file => match file.take_error() {
                    Ok(error) => error.map_or(0, |error| errno(error).0),
                    Err(error) => return Some(Err(errno(error))),
                },
            },
            (libc::SOL_SOCKET, libc::SO_TYPE) => socket.kind,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => socket.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => match socket.kind {
                _ if socket.is_atm() => 0,
                libc::SOCK_DGRAM => libc::IPPROTO_UDP,
                _ => libc::IPPROTO_TCP,
            },
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(file, OpenFile::Listener(_)).into(),
            _ => return None,
        };
        Some(Ok(value.to_ne_bytes().to_vec()))
    }

    /// Returns how long a call that receives or accepts waits (SO_RCVTIMEO); `None` means
    /// forever.
    pub fn read_timeout(&self, fd: i32) -> Option<Duration> {
        self.timeout(fd, libc::SO_RCVTIMEO, |options| options.read_timeout)
    }

    /// Returns how long a call that sends or connects waits (SO_SNDTIMEO); `None` means
    /// forever.
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
    /// ENOTSOCK; ENOPROTOOPT for a kernel connection, for which [`Posix::getsockopt`]
    /// returns the bytes.
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

/// Returns `SO_MEMINFO`: memory in use and its limits, as far as the engine counts them.
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
