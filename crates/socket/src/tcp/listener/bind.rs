//! Options of listening, and the holder of the port.

use std::io;
use std::net::{SocketAddr, TcpListener as KernelListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::ipv6_v6only;
use rustix::net::{SocketFlags, SocketType, bind, listen};

use tidewall_protocol::tcp::{self, FastOpenKeys, StreamOptions};
use tidewall_stack::StackHandle;
use tidewall_stack::address::specified;
use tidewall_stack::core::Core;
use tidewall_stack::helper::Helper;
use tidewall_stack::kernel_calls;
use tidewall_stack::lock::lock;
use tidewall_sys::{option, set_option};

use super::{BACKLOG_MAX, ListenerInner, TcpListener};
use crate::tcp::connection::error;
use crate::tcp::{Tcp, kernel_stream};

/// Options of listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted, 1 to 65,535; as `listen(2)`. When that
    /// many wait, the driver drops further SYNs.
    pub backlog: u32,
    /// TCP_FASTOPEN: most connections opened by a SYN with data whose handshake is not
    /// complete. 0, the default: none. Data in a SYN may reach the application twice (RFC
    /// 7413 §2.1), which it must be prepared for.
    pub fast_open: u32,
    /// TCP_FASTOPEN_KEY: keys of the cookies of this listener; they replace those of the
    /// stack.
    pub fast_open_keys: Option<FastOpenKeys>,
    /// TCP_FASTOPEN_NO_COOKIE: data in a SYN is accepted without a cookie.
    pub fast_open_without_cookie: bool,
    /// TCP_DEFER_ACCEPT: a connection is accepted once it has received data, or the SYN-ACK
    /// has timed out this many times ([`tidewall_protocol::tcp::defer_accept`]). 0, the
    /// default: at once.
    pub defer_accept: u8,
    /// SO_REUSEADDR. True by default, as in the standard library.
    pub reuse_address: bool,
    /// SO_REUSEPORT: several listeners of one user may have the address, if each sets
    /// this. A hash of addresses and ports assigns each connection to one of them. A
    /// closed listener loses its share, and half-open connections may have to start again.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: an IPv6 wildcard listener does not accept IPv4.
    pub only_v6: bool,
    /// Initial options of accepted connections.
    pub stream: StreamOptions,
}

impl ListenOptions {
    pub(super) fn check(&self) -> io::Result<()> {
        if !(1..=BACKLOG_MAX).contains(&self.backlog) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.stream.check().map_err(error)
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            backlog: 4096,
            fast_open: 0,
            fast_open_keys: None,
            fast_open_without_cookie: false,
            defer_accept: 0,
            reuse_address: true,
            reuse_port: false,
            only_v6: false,
            stream: StreamOptions::default(),
        }
    }
}

/// Opens the kernel socket that holds the port.
pub(super) fn hold(address: SocketAddr, options: &ListenOptions) -> io::Result<KernelListener> {
    let flags = SocketFlags::NONBLOCK;
    let socket = kernel_calls::socket(address.is_ipv6(), SocketType::STREAM, flags, None)?;
    let fd = socket.as_fd();
    if options.reuse_address {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    if options.reuse_port {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if address.is_ipv6() {
        let only = i32::from(options.only_v6);
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
    }
    // Connections that it accepts inherit them.
    kernel_stream::set_options(fd, address.is_ipv6(), &options.stream)?;
    bind(fd, &address)?;
    if options.fast_open > 0 {
        let queue = i32::try_from(options.fast_open).unwrap_or(i32::MAX);
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, queue)?;
    }
    if options.defer_accept > 0 {
        defer_accept(fd, options.defer_accept)?;
    }
    listen(fd, options.backlog as i32)?;
    Ok(KernelListener::from(socket))
}

/// Sets TCP_DEFER_ACCEPT of a kernel socket.
pub(super) fn defer_accept(socket: BorrowedFd<'_>, timeouts: u8) -> io::Result<()> {
    let seconds = tcp::defer_accept::seconds_of(timeouts);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Checks a kernel socket of another origin as the holder of the port.
///
/// # Errors
/// EINVAL for one that is not listening, EPROTONOSUPPORT for a protocol other than TCP.
fn listening(socket: OwnedFd) -> io::Result<KernelListener> {
    let of_socket = |name| option(&socket, libc::SOL_SOCKET, name);
    if of_socket(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
    }
    if of_socket(libc::SO_ACCEPTCONN)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(KernelListener::from(socket))
}

impl TcpListener {
    /// Listens with a kernel socket that an application has created and that is already
    /// listening. It holds the port from now on, and the connections that it has, or still
    /// gets, are accepted as before. Its binding stays; the rest of `options` applies to
    /// connections by the stack's interface. Segments of existing kernel connections stay
    /// with the kernel: the driver asks the kernel about those that match no flow.
    ///
    /// The listener blocks as the socket does, whose O_NONBLOCK is unchanged. New
    /// connections are the kernel's while another process accepts by the socket, or has
    /// inherited it to do so ([`crate::listener_holders`]).
    ///
    /// # Errors
    /// EINVAL for a socket that is not listening, and for a backlog or an option out of
    /// range. EPROTONOSUPPORT for another protocol. EOPNOTSUPP for a stack without a kernel
    /// (in memory). Those of [`TcpListener::bind`]. The socket is unchanged then.
    pub fn adopt(stack: &StackHandle, socket: OwnedFd, options: ListenOptions) -> io::Result<Self> {
        options.check()?;
        let core = stack.here()?;
        core.check_protocol::<Tcp>()?;
        if !core.netdev.has_kernel {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Helper::start(core)?;
        let kernel = listening(socket)?;
        let local = kernel.local_addr()?;
        let nonblocking = fcntl_getfl(&kernel)?.contains(OFlags::NONBLOCK);
        let options = ListenOptions {
            reuse_port: option(&kernel, libc::SOL_SOCKET, libc::SO_REUSEPORT)? != 0,
            only_v6: local.is_ipv6() && ipv6_v6only(&kernel)?,
            ..options
        };
        let listener = Self::begin(stack, options, Some(kernel), local, true)?;
        listener.nonblocking.store(nonblocking, Ordering::Relaxed);
        listener.inner.adopted.store(true, Ordering::Release);
        listener.inner.say_what_it_does();
        // The control thread watches for processes that share the socket.
        listener.stack.core().netdev.link.wake.signal();
        // Its queued connections arrived before anything watched it.
        listener.inner.kernel_input.note();
        Ok(listener)
    }
}

impl Tcp {
    pub(super) fn add_listener(&self, listener: &Arc<ListenerInner>) {
        let mut listeners = lock(&self.listeners);
        listeners
            .entry(listener.local.port())
            .or_default()
            .push(listener.clone());
    }

    pub(super) fn remove_listener(&self, listener: &Arc<ListenerInner>) {
        let mut listeners = lock(&self.listeners);
        let port = listener.local.port();
        if let Some(of_port) = listeners.get_mut(&port) {
            of_port.retain(|other| !Arc::ptr_eq(other, listener));
            if of_port.is_empty() {
                listeners.remove(&port);
            }
        }
    }

    /// Returns every listener, for statistics.
    pub(crate) fn all_listeners(&self) -> Vec<Arc<ListenerInner>> {
        lock(&self.listeners).values().flatten().cloned().collect()
    }
}

impl Tcp {
    /// Chooses among the in-memory device's ports.
    pub(super) fn bind_without_kernel(
        &self,
        core: &Core,
        address: SocketAddr,
        shares: bool,
    ) -> io::Result<SocketAddr> {
        if specified(address).is_some_and(|address| !lock(&core.ip.routes).is_own(address)) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let taken = |port: u16| {
            let listeners = lock(&self.listeners);
            listeners.get(&port).is_some_and(|of_port| {
                of_port
                    .iter()
                    .filter(|other| !(shares && other.shares))
                    .any(|other| match (specified(other.local), specified(address)) {
                        (Some(theirs), Some(ours)) => theirs == ours,
                        (Some(theirs), None) => address.is_ipv6() || theirs.is_ipv4(),
                        (None, Some(ours)) => other.takes(ours),
                        (None, None) => other.both || other.local.is_ipv4() == address.is_ipv4(),
                    })
            })
        };
        match address.port() {
            0 => self
                .free_port()
                .map(|port| SocketAddr::new(address.ip(), port)),
            port if taken(port) => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            _ => Ok(address),
        }
    }

    /// Returns an unused port on the in-memory device.
    pub(crate) fn free_port(&self) -> io::Result<u16> {
        let port = self.ports.ephemeral();
        port.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE))
    }
}
