//! Descriptors that the kernel allocates, and kernel sockets that a program has created.
//!
//! The kernel's descriptor table alone allocates numbers. A descriptor that is open here
//! is open there, too, and is closed here first.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use tidewall::descriptor::Flags;
use tidewall::readiness::EpollSet;
use tidewall::{OpenFile, TcpListener, TcpStream, UdpSocket};
use tidewall_sys::option_bytes;

use crate::address::{canonical, check_peer, shown};
use crate::datagram::message_options;
use crate::option::{
    self, Carry, Options, SYSCTL_FAST_OPEN_CLIENT, SYSCTL_FAST_OPEN_NO_COOKIE, TABLE, place_of,
};
use crate::socket::{State, kernel_socket, stream_of};
use crate::{Errno, Posix, Result, as_error, errno, lock};

/// The owner of an accepted connection.
#[derive(Debug)]
pub enum Accepted {
    /// The stack, under the descriptor that was passed.
    Here,
    /// The kernel, whose socket this is; the descriptor stays unused here.
    Kernel(OwnedFd),
}

/// The options that a program may have set on a kernel socket, of those that are read
/// when the stack adopts the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionsSet(u64);

impl OptionsSet {
    /// No option: the socket was just created.
    pub const NONE: Self = OptionsSet(0);
    /// Every option: the calls on this socket were not observed.
    pub const ALL: Self = OptionsSet((1 << TABLE.len()) - 1);
    /// The number of bits in [`OptionsSet::bits`].
    pub const BITS: u32 = TABLE.len() as u32;

    /// The table row that an option changes; every row if the option is not one of the table.
    pub fn of(level: i32, name: i32) -> Self {
        let place = place_of((level, name));
        place.map_or(Self::ALL, |place| OptionsSet(1 << place))
    }

    /// Reports whether an option may have been set.
    pub fn includes(self, level: i32, name: i32) -> bool {
        match place_of((level, name)) {
            Some(place) => self.has(place),
            None => self == Self::ALL,
        }
    }

    /// Returns the set as a number, for [`OptionsSet::from_bits`].
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Restores a set from [`OptionsSet::bits`].
    pub fn from_bits(bits: u64) -> Self {
        OptionsSet(bits & Self::ALL.0)
    }

    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 != 0
    }
}

/// The options' values on a new socket; `None` for an option that it lacks.
pub(crate) type Defaults = [Option<Vec<u8>>; TABLE.len()];

/// From socket(7), Linux 5.14; the libc crate lacks it.
const SO_BUF_LOCK: i32 = 72;

/// The longest of the options' values, in bytes.
const VALUE_BYTES: usize = 32;

fn value_of(socket: impl AsFd, (level, name): (i32, i32)) -> Option<Vec<u8>> {
    let mut value = [0; VALUE_BYTES];
    let length = option_bytes(socket, level, name, &mut value).ok()?;
    value.get(..length).map(<[u8]>::to_vec)
}

fn domain_of(socket: &OwnedFd) -> Result<i32> {
    tidewall_sys::option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN).map_err(errno)
}

impl Posix {
    /// Makes a kernel descriptor name a listener. Its socket, of which the caller passes a
    /// duplicate, is already listening ([`TcpListener::adopt`]). The listener inherits the
    /// options that the program has set.
    ///
    /// # Errors
    /// Those of [`TcpListener::adopt`], with its messages; EBADF for a descriptor above the
    /// limit. Nothing has changed then.
    pub fn adopt_listener(&self, fd: i32, socket: OwnedFd) -> io::Result<()> {
        if u32::try_from(fd).is_ok_and(|number| number >= self.config.limit) {
            // Dropping an adopted listener would also close the program's socket.
            return Err(as_error(Errno(libc::EBADF)));
        }
        let domain = domain_of(&socket).map_err(as_error)?;
        let state = self.carried(&socket, domain, OptionsSet::ALL);
        let mut state = state.map_err(as_error)?;
        state.options.backlog = backlog_of(&socket).unwrap_or_default().max(1) + 1;
        let options = state.options.listen(&self.stack().sysctl());
        let listener = TcpListener::adopt(self.stack(), socket, options)?;
        state.bound = Some(listener.local_addr()?);
        self.install(fd, listener.into()).map_err(as_error)?;
        self.enter(fd, domain, libc::SOCK_STREAM, state);
        Ok(())
    }

    /// Makes a kernel descriptor name a datagram socket. Its kernel socket, of which the
    /// caller passes a duplicate, is bound ([`UdpSocket::adopt`]).
    ///
    /// # Errors
    /// Those of [`UdpSocket::adopt`], with its messages; EBADF for a descriptor above the
    /// limit. Nothing has changed then.
    pub fn adopt_datagrams(&self, fd: i32, socket: OwnedFd) -> io::Result<()> {
        let domain = domain_of(&socket).map_err(as_error)?;
        // Read before adoption: afterwards the socket also has the message options that
        // the stack sets for itself.
        let own = message_options().chain([(libc::SOL_SOCKET, libc::SO_RCVTIMEO)]);
        let own: Vec<_> = own
            .filter_map(|which| Some((which, value_of(&socket, which)?)))
            .collect();
        let datagrams = UdpSocket::adopt(self.stack(), socket)?;
        let state = State {
            bound: Some(datagrams.local_addr()?),
            ..State::default()
        };
        self.install(fd, datagrams.into()).map_err(as_error)?;
        self.enter(fd, domain, libc::SOCK_DGRAM, state);
        for ((level, option), value) in own {
            // The kernel reported this value, so it is well-formed.
            let _ = self.setsockopt(fd, level, option, &value);
        }
        Ok(())
    }

    /// Begins a connection on a kernel descriptor whose socket is not connected; the caller
    /// passes a duplicate. Behaves as [`Posix::connect`] does for a nonblocking or a blocking
    /// stream.
    ///
    /// Returns false if the route to the address does not use the stack's interface; then
    /// nothing was done, and the descriptor is unused here. `set` holds the options that the
    /// program may have set; their values are read from the socket.
    ///
    /// # Errors
    /// Those of [`Posix::connect`]. With EINPROGRESS, or if the handshake failed, the
    /// descriptor names the connection. With any other error it names nothing here, and
    /// its socket is as before.
    pub fn adopt_connecting(
        &self,
        fd: i32,
        socket: OwnedFd,
        address: SocketAddr,
        nonblocking: bool,
        set: OptionsSet,
    ) -> io::Result<bool> {
        let domain = domain_of(&socket).map_err(as_error)?;
        let state = self.carried(&socket, domain, set);
        let mut state = state.map_err(as_error)?;
        check_peer(address, domain, state.options.only_v6).map_err(as_error)?;
        let flags = self.stack().sysctl().fast_open;
        let options = tidewall::ConnectOptions {
            fast_open: state.options.fast_open_connect && flags & SYSCTL_FAST_OPEN_CLIENT != 0,
            fast_open_without_cookie: flags & SYSCTL_FAST_OPEN_NO_COOKIE != 0,
            stream: state.options.stream_options(),
            ..tidewall::ConnectOptions::default()
        };
        let remote = canonical(address);
        let stream = TcpStream::connect_adopting(self.stack(), remote, socket, &options);
        let Some(stream) = stream? else {
            return Ok(false);
        };
        state.options.begin(&stream, self);
        state.connecting = true;
        let local = stream.local_addr()?;
        state.bound = Some(shown(local, domain));
        stream.set_nonblocking(nonblocking)?;
        let waits = !stream.awaits_first_write();
        self.install(fd, stream.into()).map_err(as_error)?;
        self.enter(fd, domain, libc::SOCK_STREAM, state);
        if !waits {
            return Ok(true);
        }
        if nonblocking {
            return Err(as_error(Errno(libc::EINPROGRESS)));
        }
        let socket = self.socket_of(fd).map_err(as_error)?;
        self.wait_connected(fd, &socket).map_err(as_error)?;
        Ok(true)
    }

    /// `accept4(2)` on to a kernel descriptor that names nothing yet.
    ///
    /// # Errors
    /// Those of [`Posix::accept4`] but EMFILE; the descriptor then names nothing.
    pub fn accept_as(
        &self,
        fd: i32,
        number: i32,
        nonblocking: bool,
    ) -> Result<(Accepted, Option<SocketAddr>)> {
        let listener = self.file(fd)?;
        let socket = self.socket_of(fd)?;
        let (file, peer) = listener.accept().map_err(errno)?;
        let peer = peer.map(|peer| shown(peer, socket.domain));
        if let Some(kernel) = stream_of(&file).and_then(TcpStream::kernel_socket) {
            let kernel = kernel.try_clone_to_owned().map_err(errno)?;
            return Ok((Accepted::Kernel(kernel), peer));
        }
        let state = lock(&socket.state).accepted();
        if let Some(stream) = stream_of(&file) {
            state.options.begin(stream, self);
        }
        if nonblocking {
            file.set_nonblocking(true).map_err(errno)?;
        }
        self.install(number, file)?;
        self.enter(number, socket.domain, socket.kind, state);
        Ok((Accepted::Here, peer))
    }

    /// Makes a kernel descriptor name an epoll set beside the kernel's own
    /// ([`EpollSet::beside`]), of which the caller passes a duplicate.
    ///
    /// # Errors
    /// Those of [`EpollSet::beside`]; EBADF for a descriptor above the limit.
    pub fn adopt_epoll(&self, fd: i32, set: OwnedFd) -> Result<()> {
        let set = EpollSet::beside(self.stack(), set).map_err(errno)?;
        self.install(fd, set.into())
    }

    /// Makes another kernel descriptor name the same open file, as `dup2(2)`. The file
    /// that it named here is closed.
    ///
    /// # Errors
    /// EBADF, ENOMEM.
    pub fn duplicate_as(&self, fd: i32, number: i32) -> Result<()> {
        let socket = lock(&self.sockets).get(fd);
        self.descriptors.dup2(fd, number).map_err(errno)?;
        lock(&self.sockets).set(number, socket);
        Ok(())
    }

    fn install(&self, fd: i32, file: OpenFile) -> Result<()> {
        let installed = self.descriptors.install(fd, file, Flags::NONE);
        installed.map_err(errno)
    }

    /// Returns the options whose values differ from those of a new TCP socket, among those
    /// that the program may have `set`.
    fn carried(&self, socket: &OwnedFd, domain: i32, set: OptionsSet) -> Result<State> {
        let mut state = State {
            options: Options::new(&self.stack().sysctl()),
            ..State::default()
        };
        if set == OptionsSet::NONE {
            return Ok(state);
        }
        let defaults = self.defaults(domain)?;
        let fast_client = self.stack().sysctl().fast_open & SYSCTL_FAST_OPEN_CLIENT != 0;
        // A socket of an older kernel, without SO_BUF_LOCK, may have had both buffers
        // set.
        let buffers = || tidewall_sys::option(socket, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(!0);
        let file = OpenFile::from(socket.try_clone().map_err(errno)?);
        for (place, (row, default)) in TABLE.iter().zip(defaults).enumerate() {
            let is_carried = match row.carry {
                _ if !set.has(place) => false,
                Carry::Changed => true,
                Carry::Locked(bit) => buffers() & bit != 0,
                Carry::Never => false,
            };
            if !is_carried {
                continue;
            }
            let value = value_of(socket, row.which).filter(|it| Some(it) != default.as_ref());
            let Some(mut value) = value else {
                continue;
            };
            if let Carry::Locked(_) = row.carry
                && let Some(bytes) = value.first_chunk_mut::<4>()
            {
                // The kernel reports twice the value that was set.
                *bytes = (i32::from_ne_bytes(*bytes) / 2).to_ne_bytes();
            }
            // A value that the engine rejects applies to the kernel socket, not to the
            // connection.
            let _ = option::set(&mut state, &file, fast_client, row.which, &value);
        }
        Ok(state)
    }

    /// Returns the options of a new socket, read once. A change that an administrator makes
    /// later is carried over as if the program had made it.
    fn defaults(&self, domain: i32) -> Result<&Defaults> {
        let known = match domain {
            libc::AF_INET6 => &self.defaults[1],
            _ => &self.defaults[0],
        };
        match known.get() {
            Some(known) => Ok(known),
            None => {
                let fresh = kernel_socket(domain, libc::SOCK_STREAM).map_err(errno)?;
                Ok(known.get_or_init(|| TABLE.map(|row| value_of(&fresh, row.which))))
            }
        }
    }
}

/// Returns a listener's backlog, which Linux reports in `tcpi_sacked`.
fn backlog_of(socket: &OwnedFd) -> Option<u32> {
    const SACKED: usize = 28;
    let mut info = [0; 256];
    let length = option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let sacked = info.get(..length)?.get(SACKED..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*sacked))
}
