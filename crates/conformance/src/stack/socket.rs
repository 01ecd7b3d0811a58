//! From `socket` to `close`.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tidewall_protocol::tcp::{
    Connection, FastOpenKeys, FourTuple, Keepalive, Listener, Shutdown, State, StreamOptions, isn,
};

use super::address::{canonical, check_family, shown, wildcard};
use super::poll::Epoll;
use super::{ConnectionId, Entry, Failure, Fd, Host, Listening, Result};

/// What a descriptor is.
pub(super) enum Kind {
    /// Neither connected nor listening.
    Fresh,
    Listener,
    Stream(ConnectionId),
    Epoll(Epoll),
}

/// The options of a socket that its connection does not keep itself.
#[derive(Clone)]
pub(super) struct Options {
    /// What its connections begin with.
    pub(super) stream: StreamOptions,
    pub(super) reuse_address: bool,
    pub(super) keepalive_on: bool,
    pub(super) keepalive: Keepalive,
    pub(super) linger: Option<Duration>,
    pub(super) only_v6: bool,
    pub(super) cork: bool,
    pub(super) inquiry: bool,
    pub(super) quickack: bool,
    /// `TCP_FASTOPEN`.
    pub(super) fast_open_queue: Option<u32>,
    pub(super) fast_open_keys: Option<FastOpenKeys>,
    pub(super) fast_open_connect: bool,
    /// `SOF_TIMESTAMPING_…`
    pub(super) timestamping: u32,
    pub(super) zero_copy: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stream: StreamOptions::default(),
            reuse_address: false,
            keepalive_on: false,
            keepalive: Keepalive::default(),
            linger: None,
            only_v6: false,
            cork: false,
            inquiry: false,
            quickack: true,
            fast_open_queue: None,
            fast_open_keys: None,
            fast_open_connect: false,
            timestamping: 0,
            zero_copy: false,
        }
    }
}

/// A descriptor.
pub(super) struct Socket {
    pub(super) domain: i32,
    pub(super) nonblocking: bool,
    pub(super) kind: Kind,
    /// As the caller gave it, port chosen.
    pub(super) bound: Option<SocketAddr>,
    /// A `connect` is under way that has not been told its end
    /// (`SS_CONNECTING`).
    pub(super) connecting: bool,
    /// A blocking write began the connection; what its SYN has taken.
    pub(super) sent_with_syn: Option<usize>,
    pub(super) options: Options,
    /// An error that belongs to no connection any more.
    pub(super) error: Option<i32>,
}

impl Socket {
    pub(super) fn new(domain: i32, kind: Kind) -> Self {
        Self {
            domain,
            nonblocking: false,
            kind,
            bound: None,
            connecting: false,
            sent_with_syn: None,
            options: Options::default(),
            error: None,
        }
    }
}

impl Host {
    /// `socket(2)`: AF_INET or AF_INET6, SOCK_STREAM with or without
    /// SOCK_NONBLOCK and SOCK_CLOEXEC, TCP.
    ///
    /// # Errors
    /// EAFNOSUPPORT, ESOCKTNOSUPPORT and EPROTONOSUPPORT for any other.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd> {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Failure::Errno(libc::EAFNOSUPPORT));
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if kind & !flags != libc::SOCK_STREAM {
            return Err(Failure::Errno(libc::ESOCKTNOSUPPORT));
        }
        if protocol != 0 && protocol != libc::IPPROTO_TCP {
            return Err(Failure::Errno(libc::EPROTONOSUPPORT));
        }
        let mut socket = Socket::new(domain, Kind::Fresh);
        socket.options.keepalive = self.config.sysctl.keepalive;
        socket.nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let fd = self.allocate();
        self.sockets.insert(fd, socket);
        Ok(fd)
    }

    pub(super) fn get(&self, fd: Fd) -> Result<&Socket> {
        self.sockets.get(&fd).ok_or(Failure::Errno(libc::EBADF))
    }

    pub(super) fn get_mut(&mut self, fd: Fd) -> Result<&mut Socket> {
        self.sockets.get_mut(&fd).ok_or(Failure::Errno(libc::EBADF))
    }

    /// The connection of a descriptor, if it has one.
    pub(super) fn stream(&self, fd: Fd) -> Result<Option<ConnectionId>> {
        match self.get(fd)?.kind {
            Kind::Stream(id) => Ok(Some(id)),
            Kind::Epoll(_) => Err(Failure::Errno(libc::ENOTSOCK)),
            _ => Ok(None),
        }
    }

    /// `bind(2)`; port 0 lets the host choose.
    ///
    /// # Errors
    /// EINVAL when already bound or connected, EADDRINUSE when a listener has the
    /// port, or another socket and one of the two without SO_REUSEADDR.
    pub fn bind(&mut self, fd: Fd, address: SocketAddr) -> Result<()> {
        let socket = self.get(fd)?;
        check_family(address, socket.domain)?;
        if socket.bound.is_some() || !matches!(socket.kind, Kind::Fresh) {
            return Err(Failure::Errno(libc::EINVAL));
        }
        let (reuse, wanted) = (socket.options.reuse_address, canonical(address));
        let overlaps = |other: SocketAddr| {
            let (a, b) = (canonical(other).ip(), wanted.ip());
            other.port() == address.port() && (a == b || a.is_unspecified() || b.is_unspecified())
        };
        let taken = address.port() != 0
            && self.sockets.values().any(|other| {
                other.bound.is_some_and(overlaps)
                    && !(reuse
                        && other.options.reuse_address
                        && !matches!(other.kind, Kind::Listener))
            });
        if taken {
            return Err(Failure::Errno(libc::EADDRINUSE));
        }
        let port = match address.port() {
            0 => self.choose_port()?,
            port => port,
        };
        self.get_mut(fd)?.bound = Some(SocketAddr::new(address.ip(), port));
        Ok(())
    }

    /// A port above 49151 that no socket is bound to.
    fn choose_port(&mut self) -> Result<u16> {
        for _ in 49_152..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(49_152);
            let used = self
                .sockets
                .values()
                .any(|socket| socket.bound.is_some_and(|bound| bound.port() == port));
            if !used {
                return Ok(port);
            }
        }
        Err(Failure::Errno(libc::EADDRNOTAVAIL))
    }

    /// `listen(2)`. A negative backlog is a very long one, as in Linux; again on
    /// a listener it changes nothing.
    ///
    /// # Errors
    /// EINVAL when connected.
    pub fn listen(&mut self, fd: Fd, backlog: i32) -> Result<()> {
        match self.get(fd)?.kind {
            Kind::Fresh => {}
            Kind::Listener => return Ok(()),
            Kind::Stream(_) => return Err(Failure::Errno(libc::EINVAL)),
            Kind::Epoll(_) => return Err(Failure::Errno(libc::ENOTSOCK)),
        }
        if self.get(fd)?.bound.is_none() {
            let port = self.choose_port()?;
            let socket = self.get_mut(fd)?;
            socket.bound = Some(SocketAddr::new(wildcard(socket.domain), port));
        }
        let config = self.engine_config(fd, true)?;
        // A queue is full when it holds more than its backlog.
        let backlog = u32::try_from(backlog).unwrap_or(4096).min(4096) + 1;
        let protocol = Listener::new(&config, backlog, self.secrets);
        self.listeners.insert(
            fd,
            Listening {
                protocol,
                queue: VecDeque::new(),
                backlog: backlog as usize - 1,
                wakeups: 0,
            },
        );
        self.get_mut(fd)?.kind = Kind::Listener;
        self.refresh_listener(fd)
    }

    /// `accept(2)`: a descriptor and the peer's address.
    ///
    /// # Errors
    /// EINVAL when not listening; EAGAIN or [`Failure::Blocked`] when nobody
    /// waits.
    pub fn accept(&mut self, fd: Fd) -> Result<(Fd, SocketAddr)> {
        let socket = self.get(fd)?;
        let (domain, nonblocking) = (socket.domain, socket.nonblocking);
        let (options, bound) = (socket.options.clone(), socket.bound);
        let Some(listening) = self.listeners.get_mut(&fd) else {
            return Err(Failure::Errno(libc::EINVAL));
        };
        let Some(id) = listening.queue.pop_front() else {
            return Err(would_wait(nonblocking));
        };
        listening.protocol.set_accept_queue(listening.queue.len());
        let accepted = self.allocate();
        let Some(entry) = self.connections.get_mut(&id) else {
            return Err(Failure::Errno(libc::ECONNABORTED));
        };
        entry.listener = None;
        entry.fd = Some(accepted);
        let remote = entry.connection.flow().remote;
        let mut socket = Socket::new(domain, Kind::Stream(id));
        socket.options = options;
        socket.bound = bound;
        self.sockets.insert(accepted, socket);
        Ok((accepted, shown(remote, domain)))
    }

    /// `connect(2)`: the first call sends a SYN; later ones tell how it ended.
    ///
    /// # Errors
    /// EINPROGRESS, then EALREADY (nonblocking), or [`Failure::Blocked`]; why it
    /// failed, once; EISCONN when it had succeeded before.
    pub fn connect(&mut self, fd: Fd, address: SocketAddr) -> Result<()> {
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking;
        match socket.kind {
            Kind::Fresh => {
                check_family(address, socket.domain)?;
                let fast = self.connects_fast(fd);
                let id = self.begin_connect(fd, address, fast)?;
                if fast {
                    let flow = self
                        .connections
                        .get(&id)
                        .map(|entry| *entry.connection.flow());
                    if flow.is_some_and(|flow| self.has_cookie(flow.local.ip(), flow.remote.ip())) {
                        // The SYN waits for data to carry.
                        return Ok(());
                    }
                    if let Some(entry) = self.connections.get_mut(&id) {
                        entry.deferred = false;
                    }
                    self.settle(id);
                }
                Err(if nonblocking {
                    Failure::Errno(libc::EINPROGRESS)
                } else {
                    Failure::Blocked
                })
            }
            Kind::Stream(id) if self.is_deferred(id) => Err(Failure::Errno(libc::EISCONN)),
            Kind::Stream(id) if socket.connecting => self.continue_connect(fd, id, nonblocking),
            Kind::Stream(_) | Kind::Listener => Err(Failure::Errno(libc::EISCONN)),
            Kind::Epoll(_) => Err(Failure::Errno(libc::ENOTSOCK)),
        }
    }

    pub(super) fn continue_connect(
        &mut self,
        fd: Fd,
        id: ConnectionId,
        nonblocking: bool,
    ) -> Result<()> {
        let Some(entry) = self.connections.get_mut(&id) else {
            return Err(Failure::Errno(libc::ECONNABORTED));
        };
        match entry.connection.state() {
            State::SynSent | State::SynReceived if nonblocking => {
                Err(Failure::Errno(libc::EALREADY))
            }
            State::SynSent | State::SynReceived => Err(Failure::Blocked),
            State::Closed => {
                let error = entry.connection.take_error();
                self.disconnect(fd, id);
                Err(Failure::Errno(
                    error.map_or(libc::ECONNABORTED, |error| error.0),
                ))
            }
            _ => {
                self.get_mut(fd)?.connecting = false;
                Ok(())
            }
        }
    }

    /// After a failed attempt the socket may be connected again.
    fn disconnect(&mut self, fd: Fd, id: ConnectionId) {
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.fd = None;
        }
        if let Some(socket) = self.sockets.get_mut(&fd) {
            socket.kind = Kind::Fresh;
            socket.connecting = false;
            socket.sent_with_syn = None;
        }
        self.settle(id);
    }

    /// Begins a connection; the SYN of a `fast` one is held back.
    pub(super) fn begin_connect(
        &mut self,
        fd: Fd,
        address: SocketAddr,
        fast: bool,
    ) -> Result<ConnectionId> {
        let mut remote = canonical(address);
        if remote.ip().is_unspecified() {
            let loopback = match remote.ip() {
                IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
                IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            };
            remote.set_ip(loopback);
        }
        let bound = self.get(fd)?.bound.map(canonical);
        let source = match bound {
            Some(bound) if !bound.ip().is_unspecified() => bound.ip(),
            _ => *self
                .config
                .addresses
                .iter()
                .find(|own| own.is_ipv4() == remote.is_ipv4())
                .ok_or(Failure::Errno(libc::ENETUNREACH))?,
        };
        if source.is_ipv4() != remote.is_ipv4() {
            return Err(Failure::Errno(libc::EINVAL));
        }
        let port = match bound {
            Some(bound) => bound.port(),
            None => self.choose_port()?,
        };
        let flow = FourTuple {
            local: SocketAddr::new(source, port),
            remote,
        };
        if self.flows.contains_key(&flow) {
            return Err(Failure::Errno(libc::EADDRNOTAVAIL));
        }
        let config = self.engine_config(fd, remote.is_ipv4())?;
        let isn = isn::initial(&self.secrets.sequence, &flow, self.now);
        let offset = isn::timestamp_offset(&self.secrets.cookie, &flow);
        let connection = if fast {
            self.open_fast(flow, isn, offset, &config)
        } else {
            Connection::connect(flow, isn, offset, &config, self.now)
        };
        let id = self.add_connection(connection);
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.fd = Some(fd);
            entry.deferred = fast;
        }
        let socket = self.get_mut(fd)?;
        socket.kind = Kind::Stream(id);
        socket.connecting = true;
        socket.bound = Some(shown(flow.local, socket.domain));
        self.adopt_options(fd, id)?;
        self.settle(id);
        Ok(id)
    }

    pub(super) fn add_connection(&mut self, connection: Connection) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection = id.wrapping_add(1);
        self.flows.insert(*connection.flow(), id);
        self.connections.insert(
            id,
            Entry {
                connection,
                fd: None,
                listener: None,
                readings: 0,
                writings: 0,
                no_space: false,
                deferred: false,
                opened_at: None,
                refused: false,
                notified: 0,
            },
        );
        id
    }

    /// The address a socket is bound to (`getsockname(2)`).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub fn local_address(&self, fd: Fd) -> Result<SocketAddr> {
        let socket = self.get(fd)?;
        if let Some(entry) = self.stream(fd)?.and_then(|id| self.connections.get(&id)) {
            return Ok(shown(entry.connection.flow().local, socket.domain));
        }
        let none = SocketAddr::new(wildcard(socket.domain), 0);
        Ok(socket.bound.unwrap_or(none))
    }

    /// The peer's address (`getpeername(2)`).
    ///
    /// # Errors
    /// ENOTCONN, EBADF, ENOTSOCK.
    pub fn peer_address(&self, fd: Fd) -> Result<SocketAddr> {
        let domain = self.get(fd)?.domain;
        match self.stream(fd)?.and_then(|id| self.connections.get(&id)) {
            Some(entry) if !matches!(entry.connection.state(), State::Closed | State::SynSent) => {
                Ok(shown(entry.connection.flow().remote, domain))
            }
            _ => Err(Failure::Errno(libc::ENOTCONN)),
        }
    }

    /// `shutdown(2)`; `how` is SHUT_RD, SHUT_WR or SHUT_RDWR.
    ///
    /// # Errors
    /// ENOTCONN without a connection, EINVAL for any other `how`.
    pub fn shutdown(&mut self, fd: Fd, how: i32) -> Result<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::Errno(libc::EINVAL)),
        };
        let id = self.stream(fd)?.ok_or(Failure::Errno(libc::ENOTCONN))?;
        let now = self.now;
        let entry = self
            .connections
            .get_mut(&id)
            .ok_or(Failure::Errno(libc::ENOTCONN))?;
        if entry.connection.state() == State::SynSent {
            // Linux ends the attempt, but says so only to readers.
            self.on_connection(id, |connection| connection.close(None, now));
            return Err(Failure::Errno(libc::ENOTCONN));
        }
        let result = entry.connection.shutdown(how, now);
        entry.readings += 1;
        entry.writings += 1;
        self.settle(id);
        Ok(result?)
    }

    /// `close(2)`. What was written is still sent; a connection with unread data,
    /// or with a zero SO_LINGER, is reset. No call waits here: SO_LINGER with a
    /// time returns at once.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&mut self, fd: Fd) -> Result<()> {
        let socket = self
            .sockets
            .remove(&fd)
            .ok_or(Failure::Errno(libc::EBADF))?;
        self.changes += 1;
        self.forget_interest(fd);
        let now = self.now;
        match socket.kind {
            Kind::Stream(id) => {
                if let Some(entry) = self.connections.get_mut(&id) {
                    entry.fd = None;
                }
                let linger = socket.options.linger;
                self.on_connection(id, |connection| connection.close(linger, now));
            }
            Kind::Listener => self.close_listener(fd),
            Kind::Fresh | Kind::Epoll(_) => {}
        }
        Ok(())
    }

    /// Half-open connections are forgotten, complete ones that nobody accepted
    /// are reset.
    fn close_listener(&mut self, fd: Fd) {
        let Some(mut listening) = self.listeners.remove(&fd) else {
            return;
        };
        listening.protocol.close(&mut |_| {});
        for id in listening.queue {
            if let Some(entry) = self.connections.get_mut(&id) {
                entry.listener = None;
            }
            let now = self.now;
            self.on_connection(id, |connection| {
                connection.close(Some(Duration::ZERO), now);
            });
        }
    }
}

/// For a call that cannot go on now.
pub(super) fn would_wait(nonblocking: bool) -> Failure {
    if nonblocking {
        Failure::Errno(libc::EAGAIN)
    } else {
        Failure::Blocked
    }
}
