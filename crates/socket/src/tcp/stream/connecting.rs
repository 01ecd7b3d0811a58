//! Beginning connections on behalf of the application.

use std::io;
use std::net::{SocketAddr, TcpStream as KernelTcp};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, bind};

use tidewall_device::forked::Unshared;
use tidewall_manager::client::Patience;
use tidewall_protocol::tcp::{
    self, Config, Connection, FourTuple, State as Phase, StreamOptions, isn,
};
use tidewall_readiness::Events;
use tidewall_readiness::poll_context::in_turn;
use tidewall_stack::StackHandle;
use tidewall_stack::address::{canonical, specified, stays_with_kernel};
use tidewall_stack::core::Core;
use tidewall_stack::helper::Helper;
use tidewall_stack::ip::routes::Neighbour;
use tidewall_stack::kernel_calls;
use tidewall_stack::lock::lock;
use tidewall_sys::set_option;

use super::TcpStream;
use crate::tcp::HOP_LIMIT;
use crate::tcp::Tcp;
use crate::tcp::connection::{Waiting, error};
use crate::tcp::frames::Deferred;
use crate::tcp::kernel_stream::{self, KernelStream};
use crate::tcp::listener::left;

/// Ephemeral ports that are tried before a connection to one peer fails.
const PORTS_TRIED: usize = 16;

/// Options of connecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// TCP_FASTOPEN_CONNECT; see [`TcpStream::connect_fast_open`].
    pub fast_open: bool,
    /// TCP_FASTOPEN_NO_COOKIE: with Fast Open, data leaves with the SYN although no
    /// cookie of the server is known.
    pub fast_open_without_cookie: bool,
    /// Local address and port, as by `bind` before `connect`; an unspecified address or
    /// port 0 is chosen by the stack.
    pub local: Option<SocketAddr>,
    /// Initial options of the connection.
    pub stream: StreamOptions,
}

impl TcpStream {
    /// Connects, and waits until the peer has answered.
    ///
    /// # Errors
    /// ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH; EADDRNOTAVAIL when
    /// no port is free; EADDRINUSE; EINTR when a signal arrives.
    pub fn connect(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::connect_until(stack, address, None)
    }

    /// As [`TcpStream::connect`], with a timeout.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; ETIMEDOUT at the timeout; EINVAL for a zero
    /// one.
    pub fn connect_timeout(
        stack: &StackHandle,
        address: &SocketAddr,
        timeout: Duration,
    ) -> io::Result<Self> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let now = stack.here()?.clock.instant_now();
        Self::connect_until(stack, *address, now.checked_add(timeout))
    }

    /// Begins to connect and returns a nonblocking stream at once. It becomes writable
    /// when the connection is established or has failed; [`TcpStream::take_error`]
    /// reports which.
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`] that are known at once.
    pub fn connect_nonblocking(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::connect_nonblocking_with(stack, address, &ConnectOptions::default())
    }

    /// As [`TcpStream::connect`], with options.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; EINVAL for an option out of range.
    pub fn connect_with(
        stack: &StackHandle,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        Self::begin(stack, address, Some(None), options)?.connected(None)
    }

    /// As [`TcpStream::connect_nonblocking_with`], for an unconnected kernel socket that an
    /// application has created. If that is bound, the connection uses its address, and it
    /// holds the port as long as the connection needs it. [`ConnectOptions::local`] is
    /// ignored.
    ///
    /// `None`: the route to the address does not use the stack's interface, so the kernel
    /// makes the connection, with this socket; nothing was done.
    ///
    /// # Errors
    /// As [`TcpStream::connect_nonblocking_with`].
    pub fn connect_adopting(
        stack: &StackHandle,
        address: SocketAddr,
        socket: OwnedFd,
        options: &ConnectOptions,
    ) -> io::Result<Option<Self>> {
        let holder = std::net::TcpListener::from(socket);
        let bound = holder.local_addr()?;
        let options = ConnectOptions {
            local: Some(bound),
            ..*options
        };
        let holder = (bound.port() != 0).then(|| OwnedFd::from(holder));
        let stream = Self::begin_here(stack, address, &options, holder, Patience::Prompt)?;
        if let Some(stream) = &stream {
            stream.set_nonblocking(true)?;
        }
        Ok(stream)
    }

    /// As [`TcpStream::connect_nonblocking`], with options.
    ///
    /// # Errors
    /// Those of [`TcpStream::connect_with`] that are known at once.
    pub fn connect_nonblocking_with(
        stack: &StackHandle,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let stream = Self::begin(stack, address, None, options)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Connects with Fast Open (RFC 7413), as `connect` does with TCP_FASTOPEN_CONNECT.
    /// If a cookie of the server is known, this returns at once, and the first write
    /// leaves with the SYN. Reading or writing then reports a failure to connect. Without
    /// a cookie it waits as [`TcpStream::connect`] does, and requests one. Cookies of
    /// 4096 servers are remembered. After timeouts that suggest that the network drops
    /// such SYNs, ordinary ones are sent for an hour or more.
    ///
    /// The first bytes may reach the server's application twice (RFC 7413 §2.1), so they must be
    /// harmless if repeated. [`Info::syn_data`](crate::tcp::Info::syn_data) reports whether the
    /// SYN's data was accepted.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub fn connect_fast_open(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(stack, address, &ConnectOptions::fast())
    }

    /// As [`TcpStream::connect_fast_open`], for a nonblocking stream. It becomes writable
    /// at once if a cookie is known, and otherwise as with
    /// [`TcpStream::connect_nonblocking`].
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`] that are known at once.
    pub fn connect_fast_open_nonblocking(
        stack: &StackHandle,
        address: SocketAddr,
    ) -> io::Result<Self> {
        Self::connect_nonblocking_with(stack, address, &ConnectOptions::fast())
    }

    fn connect_until(
        stack: &StackHandle,
        address: SocketAddr,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        let options = ConnectOptions::default();
        Self::begin(stack, address, Some(deadline), &options)?.connected(deadline)
    }

    /// Returns true while its SYN waits for the first write
    /// ([`TcpStream::connect_fast_open`]).
    pub fn awaits_first_write(&self) -> bool {
        self.own_connection()
            .is_some_and(|connection| connection.look().awaits_syn_data())
    }

    /// Waits until the peer has answered.
    fn connected(self, deadline: Option<Instant>) -> io::Result<Self> {
        let stream = self;
        let Some(connection) = stream.own_connection() else {
            return Ok(stream);
        };
        let core = stream.stack.core();
        if connection.lock().awaits_syn_data() {
            return Ok(stream);
        }
        loop {
            connection.process(core);
            let (phase, failed) = {
                let mut state = connection.lock();
                (state.connection.state(), state.connection.take_error())
            };
            if let Some(errno) = failed {
                return Err(error(errno));
            }
            match phase {
                Phase::SynSent | Phase::SynReceived => {}
                Phase::Closed => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
                _ => return Ok(stream),
            }
            let waiting = Waiting {
                connection,
                want: Events::OUT,
            };
            if !core.receiver.sleep(core, &[&waiting], deadline)? {
                connection.lock().connection.abort();
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
        }
    }

    /// Sends the SYN. `wait`: waits for a kernel connection, until the deadline in it,
    /// which excludes options.
    fn begin(
        stack: &StackHandle,
        address: SocketAddr,
        wait: Option<Option<Instant>>,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        match Self::begin_here(stack, address, options, None, Patience::Restart)? {
            Some(stream) => Ok(stream),
            // The kernel would not put frames into segments of their own.
            None if options.stream.framing.is_acp() => Err(error(tcp::Errno::PROTONOSUPPORT)),
            None => Self::begin_in_kernel(stack, canonical(address), wait, options),
        }
    }

    /// As [`TcpStream::begin`], by the stack's interface. `None`: the route is another,
    /// which the kernel knows. `holder`: a kernel socket that is bound to `options.local`.
    fn begin_here(
        stack: &StackHandle,
        address: SocketAddr,
        options: &ConnectOptions,
        mut holder: Option<OwnedFd>,
        patience: Patience,
    ) -> io::Result<Option<Self>> {
        options.stream.check().map_err(error)?;
        let core = stack.here()?;
        core.check_protocol::<Tcp>()?;
        let remote = canonical(address);
        if remote.port() == 0 {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let local = options.local.map(canonical);
        let named = local.and_then(specified);
        if named.is_some_and(|own| own.is_ipv4() != remote.is_ipv4()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let way = if stays_with_kernel(remote.ip()) {
            Neighbour::Kernel
        } else {
            lock(&core.ip.routes).neighbour(remote.ip(), named, None, Instant::now())
        };
        let (source, neighbour) = match way {
            Neighbour::Known { source, neighbour } if source.is_ipv4() == remote.is_ipv4() => {
                (source, Some(neighbour))
            }
            Neighbour::Resolving { source } if source.is_ipv4() == remote.is_ipv4() => {
                (source, None)
            }
            _ if core.netdev.has_kernel => return Ok(None),
            _ => return Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
        };
        Helper::start(core)?;
        let wanted = local.map_or(0, |local| local.port());
        let tries = if wanted == 0 { PORTS_TRIED } else { 1 };
        for _ in 0..tries {
            let (port, held) = match holder.take() {
                Some(holder) => (wanted, Some(Unshared::new(holder)?)),
                None => {
                    let source = SocketAddr::new(source, wanted);
                    Tcp::of(core).take_port(core, source, patience)?
                }
            };
            let flow = FourTuple {
                local: SocketAddr::new(source, port),
                remote,
            };
            // On any address: the table of ports by address is not made for thousands,
            // and segments without a flow go to the kernel.
            let ports = &Tcp::of(core).ports;
            ports.enter(&core.netdev.owner, None, port, held, None, patience)?;
            let config = options.stream.apply(Tcp::of(core).config(remote.is_ipv4()));
            let connection = Tcp::of(core).new_connection(core, flow, &config, options);
            let opened = Deferred::collect(core, |deferred| {
                let tcp = &Tcp::of(core);
                tcp.open(core, connection, neighbour, 0, HOP_LIMIT, deferred)
            });
            // Either the connection uses the port now, or nothing does.
            Tcp::of(core).ports.leave(&core.netdev.owner, port);
            if let Some(connection) = opened {
                let stream = Self::own(connection, stack.clone(), false);
                // A blocking connect sends it before it sleeps.
                stream.send_unless(in_turn(core), false);
                return Ok(Some(stream));
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
    }

    fn begin_in_kernel(
        stack: &StackHandle,
        remote: SocketAddr,
        wait: Option<Option<Instant>>,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let plain = *options == ConnectOptions::default();
        let stream = match wait {
            Some(None) if plain => KernelTcp::connect(remote)?,
            Some(Some(deadline)) => {
                let left =
                    left(deadline).ok_or_else(|| io::Error::from_raw_os_error(libc::ETIMEDOUT))?;
                KernelTcp::connect_timeout(&remote, left)?
            }
            _ => {
                let mut flags = SocketFlags::empty();
                flags.set(SocketFlags::NONBLOCK, wait.is_none());
                let v6 = remote.is_ipv6();
                let socket = kernel_calls::socket(v6, SocketType::STREAM, flags, None)?;
                if let Some(local) = options.local {
                    bind(&socket, &local)?;
                }
                kernel_stream::set_options(socket.as_fd(), remote.is_ipv6(), &options.stream)?;
                if options.fast_open {
                    let tcp = libc::IPPROTO_TCP;
                    set_option(&socket, tcp, libc::TCP_FASTOPEN_CONNECT, 1)?;
                }
                match rustix::net::connect(&socket, &remote) {
                    Ok(()) | Err(Errno::INPROGRESS) => KernelTcp::from(socket),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Self::kernel(KernelStream::new(stream), stack.clone()))
    }
}

impl ConnectOptions {
    /// Options with Fast Open and nothing else.
    fn fast() -> Self {
        Self {
            fast_open: true,
            ..Self::default()
        }
    }
}

impl Tcp {
    /// Returns a port for a connection from `source`, its own unless that is 0, and the kernel
    /// socket that reserves it.
    fn take_port(
        &self,
        core: &Core,
        source: SocketAddr,
        patience: Patience,
    ) -> io::Result<(u16, Option<Unshared<OwnedFd>>)> {
        if !core.netdev.has_kernel {
            let port = match source.port() {
                0 => self.free_port()?,
                port => port,
            };
            return Ok((port, None));
        }
        if source.port() == 0
            && let Some(port) = core.netdev.owner.outgoing_port(patience)?
        {
            return Ok((port, None));
        }
        let (v6, flags) = (source.is_ipv6(), SocketFlags::NONBLOCK);
        let socket = kernel_calls::socket(v6, SocketType::STREAM, flags, None)?;
        bind(&socket, &source)?;
        // The standard library can return its address.
        let socket = std::net::TcpListener::from(socket);
        let port = socket.local_addr()?.port();
        Ok((port, Some(Unshared::new(OwnedFd::from(socket))?)))
    }

    fn new_connection(
        &self,
        core: &Core,
        flow: FourTuple,
        config: &Config,
        options: &ConnectOptions,
    ) -> Connection {
        let now = core.now();
        let isn = isn::initial(&self.secrets.sequence, &flow, now);
        let offset = isn::timestamp_offset(&self.secrets.cookie, &flow);
        let known = self.fast_open.server(&flow, now);
        match known.filter(|_| options.fast_open) {
            Some(known) => {
                let without = options.fast_open_without_cookie;
                Connection::connect_fast(flow, isn, offset, config, &known, without, now)
            }
            None => Connection::connect(flow, isn, offset, config, now),
        }
    }
}
