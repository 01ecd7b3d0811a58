//! TCP Fast Open (RFC 7413) as sockets have it: `TCP_FASTOPEN`,
//! `TCP_FASTOPEN_CONNECT`, `TCP_FASTOPEN_KEY`, MSG_FASTOPEN, `tcp_fastopen`.

use std::net::{IpAddr, SocketAddr};

use tidewall_protocol::tcp::{Connection, FastOpenKeys, FastOpenServer, FourTuple, State};

use super::address::check_family;
use super::socket::Kind;
use super::{ConnectionId, Failure, Fd, Host, Result};

/// Flags of `tcp_fastopen` (`Documentation/networking/ip-sysctl.rst`).
mod enable {
    pub(super) const CLIENT: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const CLIENT_NO_COOKIE: u32 = 4;
    pub(super) const SERVER_NO_COOKIE: u32 = 0x200;
    /// Every listener has it, with its backlog for a queue.
    pub(super) const EVERY_LISTENER: u32 = 0x400;
}

/// `TCP_FASTOPEN_KEY`: one key, or two.
pub(super) fn keys_of(value: &[u8]) -> Result<FastOpenKeys> {
    match value.as_chunks::<16>() {
        ([primary], []) => Ok(FastOpenKeys {
            primary: *primary,
            backup: None,
        }),
        ([primary, backup], []) => Ok(FastOpenKeys {
            primary: *primary,
            backup: Some(*backup),
        }),
        _ => Err(Failure::Errno(libc::EINVAL)),
    }
}

impl Host {
    /// The keys of a socket's cookies.
    pub(super) fn fast_open_keys(&self, fd: Fd) -> Result<FastOpenKeys> {
        let own = self.get(fd)?.options.fast_open_keys;
        let drawn = FastOpenKeys {
            primary: self.secrets.cookie.map(|byte| byte ^ 0x5a),
            backup: None,
        };
        Ok(own.or(self.config.sysctl.fast_open_keys).unwrap_or(drawn))
    }

    /// What a listener is told.
    pub(super) fn fast_open_server(&self, fd: Fd) -> Result<Option<FastOpenServer>> {
        let flags = self.config.sysctl.fast_open;
        let backlog = self
            .listeners
            .get(&fd)
            .map_or(0, |listening| listening.backlog);
        let queue = match self.get(fd)?.options.fast_open_queue {
            None if flags & enable::EVERY_LISTENER != 0 => backlog as u32,
            own => own.unwrap_or(0),
        };
        if flags & enable::SERVER == 0 || queue == 0 {
            return Ok(None);
        }
        Ok(Some(FastOpenServer {
            queue,
            keys: self.fast_open_keys(fd)?,
            without_cookie: flags & enable::SERVER_NO_COOKIE != 0,
        }))
    }

    fn without_cookie(&self) -> bool {
        self.config.sysctl.fast_open & enable::CLIENT_NO_COOKIE != 0
    }

    /// A connection that is opened by its SYN's data, or asks for a cookie.
    pub(super) fn open_fast(
        &self,
        flow: FourTuple,
        isn: u32,
        timestamp_offset: u32,
        config: &tidewall_protocol::tcp::Config,
    ) -> Connection {
        let ends = (flow.local.ip(), flow.remote.ip());
        let peer = self.fast_open_peers.get(&ends).copied().unwrap_or_default();
        let without = self.without_cookie();
        Connection::connect_fast(
            flow,
            isn,
            timestamp_offset,
            config,
            &peer,
            without,
            self.now,
        )
    }

    /// Whether a SYN to an address could carry data.
    pub(super) fn has_cookie(&self, local: IpAddr, remote: IpAddr) -> bool {
        let peer = self.fast_open_peers.get(&(local, remote));
        self.without_cookie() || peer.is_some_and(|peer| peer.cookie.is_some())
    }

    /// Whether clients may use Fast Open.
    pub(super) fn fast_client(&self) -> bool {
        self.config.sysctl.fast_open & enable::CLIENT != 0
    }

    /// A socket's `connect` is to be a fast one (`TCP_FASTOPEN_CONNECT`).
    pub(super) fn connects_fast(&self, fd: Fd) -> bool {
        let wanted = self
            .get(fd)
            .is_ok_and(|socket| socket.options.fast_open_connect);
        wanted && self.fast_client()
    }

    /// A write with MSG_FASTOPEN. The connection begins with it.
    pub(super) fn send_fast(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        (flags, nonblocking): (i32, bool),
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        if !self.fast_client() {
            return Err(Failure::Errno(libc::EOPNOTSUPP));
        }
        let socket = self.get(fd)?;
        match socket.kind {
            Kind::Fresh => {
                let to = to.ok_or(Failure::Errno(libc::EOPNOTSUPP))?;
                check_family(to, socket.domain)?;
                let id = self.begin_connect(fd, to, true)?;
                self.send_with_syn(id, fd, bytes, (flags, nonblocking))
            }
            Kind::Stream(id) if self.is_deferred(id) => {
                self.send_with_syn(id, fd, bytes, (flags, nonblocking))
            }
            // Once the handshake is complete, a write like any other.
            Kind::Stream(id) if socket.connecting => {
                self.continue_with_syn(id, fd, bytes, (flags, nonblocking))
            }
            Kind::Stream(_) | Kind::Listener => Err(Failure::Errno(libc::EISCONN)),
            Kind::Epoll(_) => Err(Failure::Errno(libc::ENOTSOCK)),
        }
    }

    /// True while a connection's SYN waits for a write.
    pub(super) fn is_deferred(&self, id: ConnectionId) -> bool {
        self.connections
            .get(&id)
            .is_some_and(|entry| entry.deferred)
    }

    /// The SYN of a deferred connection leaves, with as much of the bytes as fits.
    pub(super) fn send_with_syn(
        &mut self,
        id: ConnectionId,
        fd: Fd,
        bytes: &[u8],
        (flags, nonblocking): (i32, bool),
    ) -> Result<usize> {
        let mut taken = 0;
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.deferred = false;
            taken = entry.connection.write(bytes).unwrap_or(0);
            if taken == bytes.len() || nonblocking {
                let zero_copy = flags & libc::MSG_ZEROCOPY != 0;
                entry.connection.end_write(taken, zero_copy);
            }
        }
        self.changes += 1;
        self.settle(id);
        if nonblocking {
            return match taken {
                0 => Err(Failure::Errno(libc::EINPROGRESS)),
                taken => Ok(taken),
            };
        }
        if let Some(entry) = self.connections.get_mut(&id)
            && taken < bytes.len()
        {
            entry.connection.set_writer_waiting();
        }
        self.get_mut(fd)?.sent_with_syn = Some(taken);
        Err(Failure::Blocked)
    }

    /// A blocking write that began the connection waits for its end.
    pub(super) fn continue_with_syn(
        &mut self,
        id: ConnectionId,
        fd: Fd,
        bytes: &[u8],
        (flags, nonblocking): (i32, bool),
    ) -> Result<usize> {
        self.continue_connect(fd, id, nonblocking)?;
        let taken = self.get_mut(fd)?.sent_with_syn.take().unwrap_or(0);
        let rest = bytes.get(taken..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(taken);
        }
        match self.send(fd, rest, flags & libc::MSG_ZEROCOPY) {
            Ok(more) => Ok(taken + more),
            Err(_) if taken > 0 => Ok(taken),
            Err(failure) => Err(failure),
        }
    }

    /// Learns what a connection has found out, and frees the place of one whose
    /// handshake is over.
    pub(super) fn settle_fast_open(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(entry) = self.connections.get_mut(&id) else {
            return;
        };
        let flow = *entry.connection.flow();
        if let Some(outcome) = entry.connection.take_fast_open_outcome() {
            let ends = (flow.local.ip(), flow.remote.ip());
            self.fast_open_peers
                .entry(ends)
                .or_default()
                .learn(&outcome);
        }
        // Linux's `tcp_fastopen_blackhole_timeout_sec` is 0: nothing is done.
        entry.connection.take_fast_open_black_hole();
        if entry.opened_at.is_some() && !entry.connection.is_fast_opening() {
            let reset = entry.connection.state() == State::Closed && entry.fd.is_some();
            let listening = entry.opened_at.take();
            if let Some(listening) = listening.and_then(|fd| self.listeners.get_mut(&fd)) {
                listening.protocol.fast_open_done(reset, now);
            }
        }
    }
}
