//! From `socket` to `close`.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tidewall::descriptor::Flags;
use tidewall::readiness::{Events, PollFd};
use tidewall::tcp::State as Phase;
use tidewall::{BindOptions, ConnectOptions, OpenFile, TcpListener, TcpStream, UdpSocket};

use crate::address::{canonical, check_datagram_family, check_family, check_peer, shown, wildcard};
use crate::atm::AtmState;
use crate::option::{Options, SYSCTL_FAST_OPEN_CLIENT, SYSCTL_FAST_OPEN_NO_COOKIE};
use crate::{Errno, Posix, Result, errno, lock};

/// Linux's `net.core.somaxconn`.
const BACKLOG_MAX: u32 = 4096;

/// Socket state beyond that of the open file.
pub(crate) struct Socket {
    pub(crate) domain: i32,
    /// SOCK_STREAM, SOCK_SEQPACKET or SOCK_DGRAM.
    pub(crate) kind: i32,
    pub(crate) state: Mutex<State>,
    /// Control messages that accompany datagrams, one bit each
    /// ([`message_bit`](crate::datagram::message_bit)).
    pub(crate) messages: AtomicU8,
}

impl Socket {
    /// Returns true for TCP, whether it carries a stream or frames.
    pub(crate) fn is_stream(&self) -> bool {
        self.kind != libc::SOCK_DGRAM
    }

    /// Returns the error of a stream without a connection, once: how its last connection
    /// ended.
    pub(crate) fn take_reset(&self) -> Errno {
        match std::mem::take(&mut lock(&self.state).reset) {
            true => Errno(libc::ECONNRESET),
            false => Errno(libc::ENOTCONN),
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        self.kind == libc::SOCK_DGRAM && !self.is_atm()
    }

    /// Returns true for circuits.
    pub(crate) fn is_atm(&self) -> bool {
        [libc::AF_ATMPVC, libc::AF_ATMSVC].contains(&self.domain)
    }
}

/// Sockets by descriptor. Descriptors are the lowest that are free, so there are few
/// gaps.
#[derive(Default)]
pub(crate) struct Sockets(Vec<Option<Arc<Socket>>>);

impl Sockets {
    pub(crate) fn get(&self, fd: i32) -> Option<Arc<Socket>> {
        self.0.get(usize::try_from(fd).ok()?)?.clone()
    }

    /// Sets or clears the socket of a descriptor.
    pub(crate) fn set(&mut self, fd: i32, socket: Option<Arc<Socket>>) {
        let Ok(number) = usize::try_from(fd) else {
            return;
        };
        if number >= self.0.len() && socket.is_some() {
            self.0.resize(number + 1, None);
        }
        if let Some(place) = self.0.get_mut(number) {
            *place = socket;
        }
    }

    fn all(&self) -> impl Iterator<Item = (i32, Arc<Socket>)> {
        let numbered = (0..).zip(&self.0);
        numbered.filter_map(|(fd, socket)| Some((fd, socket.clone()?)))
    }
}

/// The mutable state of a socket.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// The address that it was bound to.
    pub(crate) bound: Option<SocketAddr>,
    /// A `connect` whose result was not reported (`SS_CONNECTING`).
    pub(crate) connecting: bool,
    /// `connect` with AF_UNSPEC has reset the connection, and no call has reported that yet.
    pub(crate) reset: bool,
    pub(crate) options: Options,
    /// Set for circuits alone.
    pub(crate) atm: Option<Box<AtmState>>,
}

impl State {
    /// Returns the state of a connection that the listener with this state has accepted.
    pub(crate) fn accepted(&self) -> Self {
        State {
            bound: self.bound,
            connecting: false,
            reset: false,
            options: self.options.inherited(),
            atm: self.atm.clone(),
        }
    }

    /// Returns the configuration of a circuit socket.
    pub(crate) fn atm(&self) -> AtmState {
        self.atm.as_deref().cloned().unwrap_or_default()
    }

    /// As [`State::atm`], mutable.
    pub(crate) fn atm_mut(&mut self) -> &mut AtmState {
        self.atm.get_or_insert_default()
    }
}

/// Returns the connection of an open file, if it is one.
pub(crate) fn stream_of(file: &OpenFile) -> Option<&TcpStream> {
    match file {
        OpenFile::Stream(stream) => Some(stream),
        _ => None,
    }
}

/// Creates an unconnected kernel socket.
pub(crate) fn kernel_socket(domain: i32, kind: i32) -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(domain as u16);
    let kind = match kind {
        libc::SOCK_DGRAM => SocketType::DGRAM,
        _ => SocketType::STREAM,
    };
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

fn flags_of(kind: i32) -> Flags {
    let mut flags = Flags::NONE;
    if kind & libc::SOCK_NONBLOCK != 0 {
        flags = flags | Flags::NONBLOCK;
    }
    if kind & libc::SOCK_CLOEXEC != 0 {
        flags = flags | Flags::CLOEXEC;
    }
    flags
}

impl Posix {
    /// `socket(2)`. Domains and types:
    ///
    /// - AF_INET or AF_INET6: SOCK_STREAM for TCP, SOCK_DGRAM for UDP, or SOCK_SEQPACKET
    ///   for frames over TCP (ACP, which Linux lacks);
    /// - AF_ATMPVC for permanent virtual circuits over AAL5 ([`Posix::bind_circuit`]);
    /// - AF_ATMSVC for calls ([`Posix::connect_service`]).
    ///
    /// SOCK_NONBLOCK and SOCK_CLOEXEC are supported.
    ///
    /// # Errors
    /// EAFNOSUPPORT, ESOCKTNOSUPPORT and EPROTONOSUPPORT for any other; EMFILE, ENOMEM.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<i32> {
        let flags = flags_of(kind);
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        match domain {
            libc::AF_INET | libc::AF_INET6 => {}
            libc::AF_ATMPVC | libc::AF_ATMSVC => return self.atm_socket_with(domain, flags, kind),
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        }
        let own = match kind {
            libc::SOCK_STREAM | libc::SOCK_SEQPACKET => libc::IPPROTO_TCP,
            libc::SOCK_DGRAM => libc::IPPROTO_UDP,
            _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
        };
        if protocol != 0 && protocol != own {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let unconnected = kernel_socket(domain, kind).map_err(errno)?;
        let fd = self.descriptors.open(unconnected, flags).map_err(errno)?;
        let fd = self.renumber(fd)?;
        let mut options = Options::new(&self.stack().sysctl());
        if kind == libc::SOCK_SEQPACKET {
            options.carry_frames();
        }
        let state = State {
            options,
            ..State::default()
        };
        self.enter(fd, domain, kind, state);
        Ok(fd)
    }

    /// Linux accepts any type but SOCK_STREAM for AF_ATMPVC and AF_ATMSVC. It takes the
    /// adaptation layer from SO_ATMQOS, whatever the protocol.
    fn atm_socket_with(&self, domain: i32, flags: Flags, kind: i32) -> Result<i32> {
        if kind == libc::SOCK_STREAM {
            return Err(Errno(libc::EINVAL));
        }
        // Holds the descriptor until a circuit is bound; it receives nothing.
        let unbound = kernel_socket(libc::AF_INET, libc::SOCK_DGRAM).map_err(errno)?;
        let fd = self.descriptors.open(unbound, flags).map_err(errno)?;
        let fd = self.renumber(fd)?;
        self.enter(fd, domain, libc::SOCK_DGRAM, State::default());
        Ok(fd)
    }

    pub(crate) fn enter(&self, fd: i32, domain: i32, kind: i32, state: State) {
        let socket = Socket {
            domain,
            kind,
            state: Mutex::new(state),
            messages: AtomicU8::new(0),
        };
        lock(&self.sockets).set(fd, Some(Arc::new(socket)));
    }

    /// Makes a descriptor name another file, and keeps its flags.
    pub(crate) fn replace(&self, fd: i32, file: OpenFile) -> Result<()> {
        let nonblocking = self.file(fd)?.is_nonblocking().map_err(errno)?;
        file.set_nonblocking(nonblocking).map_err(errno)?;
        let closes = self.descriptors.close_on_exec(fd).map_err(errno)?;
        let flags = if closes { Flags::CLOEXEC } else { Flags::NONE };
        self.descriptors.install(fd, file, flags).map_err(errno)
    }

    /// `bind(2)`. For a stream, `listen` or `connect` claims the port, and chooses one
    /// for port 0.
    ///
    /// # Errors
    /// EINVAL when already bound or connected. EADDRINUSE when another socket here has
    /// the port and either lacks SO_REUSEADDR or is listening. For a datagram socket, the
    /// errors that [`UdpSocket::bind_with`] reports.
    pub fn bind(&self, fd: i32, address: SocketAddr) -> Result<()> {
        let socket = self.socket_of(fd)?;
        check_family(address, socket.domain)?;
        let fresh = matches!(&*self.file(fd)?, OpenFile::Kernel(_));
        let options = {
            let state = lock(&socket.state);
            if state.bound.is_some() || !fresh {
                return Err(Errno(libc::EINVAL));
            }
            state.options.clone()
        };
        if socket.kind == libc::SOCK_DGRAM {
            let how = BindOptions {
                reuse_address: options.reuse_address,
                reuse_port: false,
                only_v6: options.only_v6,
            };
            let bound = UdpSocket::bind_with(self.stack(), address, how).map_err(errno)?;
            let local = bound.local_addr().map_err(errno)?;
            self.replace(fd, bound.into())?;
            lock(&socket.state).bound = Some(local);
            return Ok(());
        }
        if address.port() != 0 && self.is_taken(address, options.reuse_address) {
            return Err(Errno(libc::EADDRINUSE));
        }
        lock(&socket.state).bound = Some(address);
        Ok(())
    }

    fn is_taken(&self, address: SocketAddr, reuse: bool) -> bool {
        let wanted = canonical(address);
        let sockets: Vec<_> = {
            let sockets = lock(&self.sockets);
            sockets.all().collect()
        };
        sockets.into_iter().any(|(fd, other)| {
            let state = lock(&other.state);
            let Some(bound) = state.bound.filter(|_| other.is_stream()) else {
                return false;
            };
            let (a, b) = (canonical(bound).ip(), wanted.ip());
            let overlaps = bound.port() == address.port()
                && (a == b || a.is_unspecified() || b.is_unspecified());
            let listens = || {
                let file = self.file(fd);
                file.is_ok_and(|file| matches!(&*file, OpenFile::Listener(_)))
            };
            overlaps && !(reuse && state.options.reuse_address && !listens())
        })
    }

    /// `listen(2)`. A negative backlog means a very long one, as in Linux. For a
    /// listener, see [`TcpListener::listen_again`].
    ///
    /// # Errors
    /// EINVAL when connected, EOPNOTSUPP for a datagram socket; the errors that
    /// [`TcpListener::bind_with`] and [`TcpListener::listen_again`] report.
    pub fn listen(&self, fd: i32, backlog: i32) -> Result<()> {
        let socket = self.socket_of(fd)?;
        if socket.domain == libc::AF_ATMSVC {
            return self.listen_service(fd, &socket, backlog);
        }
        if !socket.is_stream() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        match &*self.file(fd)? {
            OpenFile::Kernel(_) => {}
            OpenFile::Listener(listener) => return listener.listen_again(backlog).map_err(errno),
            _ => return Err(Errno(libc::EINVAL)),
        }
        let (address, options) = {
            let mut state = lock(&socket.state);
            // A queue is full when it holds more than its backlog.
            let backlog = u32::try_from(backlog).unwrap_or(BACKLOG_MAX);
            state.options.backlog = backlog.min(BACKLOG_MAX) + 1;
            let any = SocketAddr::new(wildcard(socket.domain), 0);
            let options = state.options.listen(&self.stack().sysctl());
            (state.bound.unwrap_or(any), options)
        };
        let listener = TcpListener::bind_with(self.stack(), address, options).map_err(errno)?;
        let local = listener.local_addr().map_err(errno)?;
        self.replace(fd, listener.into())?;
        lock(&socket.state).bound = Some(local);
        Ok(())
    }

    /// `accept4(2)`: returns a descriptor and the peer's address.
    ///
    /// # Errors
    /// EINVAL when not listening or for a flag other than SOCK_NONBLOCK and SOCK_CLOEXEC;
    /// EAGAIN when nonblocking and no connection waits; EMFILE, EINTR.
    pub fn accept4(&self, fd: i32, flags: i32) -> Result<(i32, Option<SocketAddr>)> {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let socket = self.socket_of(fd)?;
        if matches!(&*self.file(fd)?, OpenFile::Kernel(_)) {
            return Err(Errno(libc::EINVAL));
        }
        let accepted = self.descriptors.accept4(fd, flags_of(flags));
        let (accepted, peer) = accepted.map_err(errno)?;
        let accepted = self.renumber(accepted)?;
        let state = lock(&socket.state).accepted();
        if let Some(stream) = stream_of(&*self.file(accepted)?) {
            state.options.begin(stream, self);
        }
        self.begin_circuit(accepted, &socket)?;
        self.enter(accepted, socket.domain, socket.kind, state);
        Ok((accepted, peer.map(|peer| shown(peer, socket.domain))))
    }

    /// `connect(2)`. On a nonblocking stream the first call sends a SYN, and later calls
    /// report the result.
    ///
    /// # Errors
    /// EINPROGRESS, then EALREADY; the cause of a failure, once; EISCONN when an earlier
    /// call had succeeded; the errors that [`TcpStream::connect_with`] and
    /// [`UdpSocket::connect`] report.
    pub fn connect(&self, fd: i32, address: SocketAddr) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let file = self.file(fd)?;
        if socket.kind == libc::SOCK_DGRAM {
            check_datagram_family(address, socket.domain)?;
            if matches!(&*file, OpenFile::Kernel(_)) {
                self.bind(fd, SocketAddr::new(wildcard(socket.domain), 0))?;
            }
            let peer = canonical(address);
            return self.file(fd)?.connect(peer).map_err(errno);
        }
        let began = matches!(&*file, OpenFile::Kernel(_));
        match &*file {
            OpenFile::Kernel(_) => {
                let (fast, only_v6) = {
                    let state = lock(&socket.state);
                    (state.options.fast_open_connect, state.options.only_v6)
                };
                check_peer(address, socket.domain, only_v6)?;
                drop(file);
                let waits = self.begin_connect(fd, &socket, address, fast)?;
                if !waits {
                    return Ok(());
                }
            }
            OpenFile::Stream(_) if lock(&socket.state).connecting => {
                let nonblocking = file.is_nonblocking().map_err(errno)?;
                if nonblocking {
                    return self.finish_connect(fd, &socket, 0);
                }
            }
            _ => return Err(Errno(libc::EISCONN)),
        }
        match self.file(fd)?.is_nonblocking().map_err(errno)? {
            true => Err(Errno(libc::EINPROGRESS)),
            false if began => self.wait_connected(fd, &socket),
            false => self.finish_connect(fd, &socket, self.connect_limit(fd)),
        }
    }

    /// Waits for a connection attempt that has just begun. After SO_SNDTIMEO the attempt
    /// continues, as in a nonblocking call.
    pub(crate) fn wait_connected(&self, fd: i32, socket: &Socket) -> Result<()> {
        let connected = self.finish_connect(fd, socket, self.connect_limit(fd));
        connected.map_err(|error| match error {
            Errno(libc::EALREADY) => Errno(libc::EINPROGRESS),
            error => error,
        })
    }

    /// `connect(2)` with AF_UNSPEC: removes a datagram socket's peer, or resets a
    /// connection, whose socket may then connect again.
    ///
    /// # Errors
    /// EINVAL for a listener.
    pub fn disconnect(&self, fd: i32) -> Result<()> {
        let socket = self.socket_of(fd)?;
        match &*self.file(fd)? {
            OpenFile::Kernel(_) => return Ok(()),
            OpenFile::Datagram(datagrams) => return datagrams.disconnect().map_err(errno),
            OpenFile::Stream(stream) => {
                let phase = stream.info().map_or(Phase::Closed, |info| info.state);
                lock(&socket.state).reset = !matches!(
                    phase,
                    Phase::Closed | Phase::Closing | Phase::LastAck | Phase::TimeWait
                );
                stream.set_linger(Some(Duration::ZERO)).map_err(errno)?;
            }
            _ => return Err(Errno(libc::EINVAL)),
        }
        {
            let mut state = lock(&socket.state);
            state.connecting = false;
            state.bound = None;
        }
        let unconnected = kernel_socket(socket.domain, socket.kind).map_err(errno)?;
        self.replace(fd, unconnected.into())
    }

    /// Returns how long `connect` waits, in milliseconds (SO_SNDTIMEO).
    fn connect_limit(&self, fd: i32) -> i32 {
        self.write_timeout(fd).map_or(-1, |it| {
            i32::try_from(it.as_millis()).unwrap_or(i32::MAX).max(1)
        })
    }

    /// Sends the SYN of a connection, with Fast Open if enabled. Returns false when the
    /// SYN waits for the first write; the socket then counts as connected.
    pub(crate) fn begin_connect(
        &self,
        fd: i32,
        socket: &Socket,
        address: SocketAddr,
        fast: bool,
    ) -> Result<bool> {
        let mut remote = canonical(address);
        if remote.ip().is_unspecified() {
            remote.set_ip(match remote.is_ipv4() {
                true => std::net::Ipv4Addr::LOCALHOST.into(),
                false => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let flags = self.stack().sysctl().fast_open;
        let options = {
            let state = lock(&socket.state);
            ConnectOptions {
                fast_open: fast && flags & SYSCTL_FAST_OPEN_CLIENT != 0,
                fast_open_without_cookie: flags & SYSCTL_FAST_OPEN_NO_COOKIE != 0,
                local: state.bound,
                stream: state.options.stream_options(),
            }
        };
        let stream = TcpStream::connect_nonblocking_with(self.stack(), remote, &options);
        let stream = stream.map_err(errno)?;
        let waits = !stream.awaits_first_write();
        let local = stream.local_addr().map_err(errno)?;
        {
            let mut state = lock(&socket.state);
            state.options.begin(&stream, self);
            state.connecting = true;
            state.reset = false;
            state.bound = Some(shown(local, socket.domain));
        }
        self.replace(fd, stream.into())?;
        Ok(waits)
    }

    /// Returns the result of a connection attempt; waits up to that many milliseconds for
    /// it.
    pub(crate) fn finish_connect(&self, fd: i32, socket: &Socket, wait: i32) -> Result<()> {
        self.poll(&mut [PollFd::new(fd, Events::OUT)], wait)?;
        let file = self.file(fd)?;
        let stream = stream_of(&file).ok_or(Errno(libc::EISCONN))?;
        if stream.awaits_first_write() {
            return Err(Errno(libc::EISCONN));
        }
        let failed = stream.take_error().map_err(errno)?.map(errno);
        let phase = stream.info().map(|info| info.state);
        match phase {
            _ if failed.is_some() => {}
            Some(Phase::SynSent | Phase::SynReceived) => return Err(Errno(libc::EALREADY)),
            Some(Phase::Closed) => {}
            Some(_) => {
                lock(&socket.state).connecting = false;
                return Ok(());
            }
            None if stream.peer_addr().is_ok() => {
                lock(&socket.state).connecting = false;
                return Ok(());
            }
            None => return Err(Errno(libc::EALREADY)),
        }
        // After a failed attempt the socket may be connected again.
        drop(file);
        lock(&socket.state).connecting = false;
        let unconnected = kernel_socket(socket.domain, socket.kind).map_err(errno)?;
        self.replace(fd, unconnected.into())?;
        Err(failed.unwrap_or(Errno(libc::ECONNABORTED)))
    }

    /// `getsockname(2)`. For circuits, see [`Posix::circuit_address`] and
    /// [`Posix::service_address`].
    ///
    /// # Errors
    /// ENOTSOCK; EAFNOSUPPORT for circuits.
    pub fn getsockname(&self, fd: i32) -> Result<SocketAddr> {
        let socket = self.socket_of(fd)?;
        if socket.is_atm() {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let file = self.file(fd)?;
        let bound = lock(&socket.state).bound;
        let own = match &*file {
            OpenFile::Kernel(_) => None,
            file => file.local_address().map_err(errno)?,
        };
        let any = SocketAddr::new(wildcard(socket.domain), 0);
        Ok(shown(own.or(bound).unwrap_or(any), socket.domain))
    }

    /// `getpeername(2)`. For circuits, see [`Posix::circuit_address`] and
    /// [`Posix::service_address`].
    ///
    /// # Errors
    /// ENOTCONN, ENOTSOCK; EAFNOSUPPORT for circuits.
    pub fn getpeername(&self, fd: i32) -> Result<SocketAddr> {
        let socket = self.socket_of(fd)?;
        if socket.is_atm() {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let over = |stream: &TcpStream| {
            let info = stream.info();
            info.is_some_and(|info| matches!(info.state, Phase::Closed | Phase::TimeWait))
        };
        let peer = match &*self.file(fd)? {
            OpenFile::Kernel(_) => None,
            // As Linux, which has released the connection by then.
            OpenFile::Stream(stream) if over(stream) => None,
            file => file.peer_address().map_err(errno)?,
        };
        let peer = peer.ok_or(Errno(libc::ENOTCONN))?;
        Ok(shown(peer, socket.domain))
    }

    /// `shutdown(2)`; `how` is SHUT_RD, SHUT_WR or SHUT_RDWR.
    ///
    /// # Errors
    /// ENOTCONN without a connection, EINVAL for any other `how`.
    pub fn shutdown(&self, fd: i32, how: i32) -> Result<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let socket = self.socket_of(fd)?;
        match &*self.file(fd)? {
            OpenFile::Kernel(_) if socket.is_atm() => Ok(()),
            OpenFile::Kernel(_) => Err(Errno(libc::ENOTCONN)),
            file => file.shutdown(how).map_err(errno),
        }
    }

    /// `close(2)`. Written data is still sent. A connection with unread data, or with a
    /// zero SO_LINGER, is reset.
    ///
    /// # Errors
    /// None but EBADF.
    pub fn close(&self, fd: i32) -> Result<()> {
        // Before the descriptor can be reused.
        lock(&self.sockets).set(fd, None);
        self.descriptors.close(fd).map_err(errno)
    }
}
