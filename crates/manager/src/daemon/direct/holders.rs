//! The kernel's information on sockets: holders of ports, of which copies are kept, and
//! ports without a holder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use tidewall_device::demux::layout::Protocol;
use tidewall_sys::netlink::{InetSocket, SocketDiag};
use tidewall_sys::{option, option_bytes, set_option};

use crate::daemon::foreign::ForeignFd;
use crate::daemon::ports::{HolderFacts, PortKey, Proof};

/// States of linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// asm-generic/socket.h.
const SO_BINDTOIFINDEX: i32 = 62;
/// Changes of holders that are examined before the next client has its turn.
const CHANGES: usize = 16;

/// Sockets of leased ports closed before the next client has its turn.
const CLOSED_AT_ONCE: usize = 512;

/// The host in which holders must be.
#[derive(Clone, Copy, Debug)]
pub struct Holders {
    /// The manager's network namespace.
    namespace: u64,
    /// Its interface there.
    interface: u32,
}

impl Holders {
    /// Creates one for this process's network namespace.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub(super) fn here(interface: u32) -> io::Result<Self> {
        let namespace = namespace(&tidewall_sys::interface::any_socket()?)?;
        Ok(Holders {
            namespace,
            interface,
        })
    }

    /// The kernel's facts about a socket that a user has passed; `None` for one that is
    /// not a bound TCP or UDP socket. May block for as long as the socket's owner likes.
    pub fn facts(self, socket: BorrowedFd<'_>, user: u32) -> Option<HolderFacts> {
        let facts = facts(socket, self.namespace)?;
        let proof = self
            .proof(socket, &facts, user)
            .unwrap_or_else(|error| Proof::Unknown(error.raw_os_error().unwrap_or(libc::EIO)));
        // If it was bound otherwise meanwhile, the proof is worthless.
        let after = self::facts(socket, self.namespace);
        (after == Some(facts)).then_some(HolderFacts { proof, ..facts })
    }

    fn proof(self, socket: BorrowedFd<'_>, holder: &HolderFacts, user: u32) -> io::Result<Proof> {
        let bound_to = option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)?;
        if ![0, self.interface].contains(&(bound_to as u32)) {
            return Ok(Proof::OtherDevice);
        }
        let state = match holder.protocol {
            Protocol::Tcp => state(socket)?,
            Protocol::Udp => CLOSE,
        };
        if ![CLOSE, LISTEN].contains(&state) {
            return Ok(Proof::Connected);
        }
        let users = [user, fstat(socket)?.st_uid];
        let mut connections = None;
        for key in holder.keys() {
            match self.others(&key, &users, holder.cookie)? {
                Some(other) if is_connection(holder.protocol, &other) => {
                    connections = Some(other.uid)
                }
                Some(other) => return Ok(Proof::Beside(other.uid)),
                None => {}
            }
        }
        let proof = match state {
            LISTEN => Proof::Alone,
            _ => trial(holder, sockopt::socket_reuseaddr(socket)?, self.interface)?,
        };
        Ok(match (proof, connections) {
            (Proof::Alone, Some(user)) => Proof::BesideConnections(user),
            (Proof::Shareable, Some(user)) => Proof::Beside(user),
            (proof, _) => proof,
        })
    }

    /// Whether a user other than this has a socket at a port.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn is_anothers(self, key: &PortKey, user: u32) -> io::Result<bool> {
        Ok(self.others(key, &[user], 0)?.is_some())
    }

    /// A socket that receives a port's frames, other than those of these users and the
    /// socket with the cookie. A connection only if there is no other.
    fn others(self, key: &PortKey, users: &[u32], own: u64) -> io::Result<Option<InetSocket>> {
        let mut sockets = SocketDiag::open()?.at_port(key.protocol as u8, key.port)?;
        sockets.retain(|socket| {
            socket.cookie != own
                && !users.contains(&socket.uid)
                && [0, self.interface].contains(&socket.interface)
                && !is_waiting(socket)
                && overlaps(socket, key.address)
        });
        let first = sockets
            .iter()
            .position(|socket| !is_connection(key.protocol, socket));
        Ok(sockets.into_iter().nth(first.unwrap_or(0)))
    }
}

/// The sockets that reserve ports.
#[derive(Debug)]
pub(super) struct Kept {
    /// The descriptor beside the message being processed.
    shown: Option<(u64, ForeignFd)>,
    holders: HashMap<u64, ForeignFd>,
    /// Those of them that no longer hold anything.
    pub(super) released: Vec<ForeignFd>,
    /// The manager's own sockets, of leased ports.
    leased: HashMap<(Protocol, u16), OwnedFd>,
    /// Sockets of returned blocks.
    closing: HashMap<(Protocol, u16), OwnedFd>,
    /// Becomes readable when a listener among the holders stops listening.
    changes: OwnedFd,
}

impl Kept {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Kept {
            shown: None,
            holders: HashMap::new(),
            released: Vec::new(),
            leased: HashMap::new(),
            closing: HashMap::new(),
            changes: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    pub(super) fn show(&mut self, cookie: u64, socket: ForeignFd) {
        self.shown = Some((cookie, socket));
    }

    pub(super) fn hide(&mut self) {
        self.shown = None;
    }

    pub(super) fn keep(&mut self, cookie: u64) -> io::Result<()> {
        let shown = self.shown.take_if(|(shown, _)| *shown == cookie);
        let (_, socket) = shown.ok_or(Errno::BADF)?;
        // A hang-up is always reported, received data never.
        let data = epoll::EventData::new_u64(cookie);
        epoll::add(&self.changes, &socket, data, epoll::EventFlags::ET)?;
        self.holders.insert(cookie, socket);
        Ok(())
    }

    pub(super) fn release(&mut self, cookie: u64) {
        if let Some(socket) = self.holders.remove(&cookie) {
            // If it were closed while its process has it, it would stay in the set.
            let _ = epoll::delete(&self.changes, &socket);
            self.released.push(socket);
        }
    }

    /// A second descriptor of a holder.
    pub(super) fn holder(&self, cookie: u64) -> io::Result<OwnedFd> {
        let socket = self.holders.get(&cookie).ok_or(Errno::BADF)?;
        Ok(rustix::io::fcntl_dupfd_cloexec(socket, 0)?)
    }

    /// Binds a socket to a port at all addresses, unless there is one; false if another
    /// socket has it at some address.
    pub(super) fn hold_port(&mut self, protocol: Protocol, port: u16) -> io::Result<bool> {
        if let Entry::Vacant(place) = self.leased.entry((protocol, port)) {
            let socket = match self.closing.remove(&(protocol, port)) {
                Some(socket) => Some(socket),
                None => bind_everywhere(protocol, port)?,
            };
            let Some(socket) = socket else {
                return Ok(false);
            };
            place.insert(socket);
        }
        Ok(true)
    }

    pub(super) fn release_port(&mut self, protocol: Protocol, port: u16) {
        let key = (protocol, port);
        self.closing
            .extend(self.leased.remove(&key).map(|it| (key, it)));
    }

    /// Closes some sockets of returned blocks.
    pub(super) fn close_some(&mut self) {
        let closed = self.closing.extract_if(|_, _| true);
        closed.take(CLOSED_AT_ONCE).for_each(drop);
    }

    /// Whether [`Kept::close_some`] has something to close.
    pub(super) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Becomes readable when [`Kept::take_changed`] has something.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Some of the holders that have hung up; not necessarily all at once.
    pub(super) fn take_changed(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(CHANGES);
        let at_once = Timespec::default();
        // Changes not reported now are reported after the others were examined.
        let _ = epoll::wait(&self.changes, spare_capacity(&mut events), Some(&at_once));
        events.iter().map(|event| event.data.u64()).collect()
    }
}

/// True for a TCP socket that has, or had, a peer. A UDP socket may be bound to any.
fn is_connection(protocol: Protocol, socket: &InetSocket) -> bool {
    protocol == Protocol::Tcp && ![CLOSE, LISTEN].contains(&socket.state)
}

/// True of a connection that is over.
fn is_waiting(socket: &InetSocket) -> bool {
    socket.inode == 0 && [TIME_WAIT, FIN_WAIT2].contains(&socket.state)
}

/// Whether a socket may receive frames to an address, or to any address if it is
/// unspecified.
fn overlaps(socket: &InetSocket, address: IpAddr) -> bool {
    let local = socket.local.to_canonical();
    let dual = local == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !socket.only_v6;
    let same_family = local.is_ipv4() == address.is_ipv4();
    (dual || same_family)
        && (local == address || local.is_unspecified() || address.is_unspecified())
}

/// Facts about a socket, without a proof; `here` is the manager's network namespace.
/// `None` for one that is not a bound TCP or UDP socket.
fn facts(socket: BorrowedFd<'_>, here: u64) -> Option<HolderFacts> {
    let number = option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()?;
    let protocol = crate::protocol::transport(u8::try_from(number).ok()?)?;
    let v6 = match sockopt::socket_domain(socket).ok()? {
        AddressFamily::INET => false,
        AddressFamily::INET6 => true,
        _ => return None,
    };
    Some(HolderFacts {
        proof: Proof::Connected,
        protocol,
        local: getsockname(socket).ok()?.try_into().ok()?,
        dual: v6 && !sockopt::ipv6_v6only(socket).ok()?,
        cookie: sockopt::socket_cookie(socket).ok()?,
        here: namespace(&socket).ok()? == here,
    })
}

/// State of a TCP socket.
fn state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    // The first byte of `struct tcp_info`.
    let mut info = [ESTABLISHED];
    option_bytes(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(info[0])
}

/// The network namespace of a socket.
fn namespace(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = [0; 8];
    option_bytes(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

fn kind_of(protocol: Protocol) -> SocketType {
    match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    }
}

/// Tests, by binding, whether another user's socket could be bound where a holder is.
/// That the holder has no SO_REUSEADDR now does not prove that it was bound without it.
/// `shares`: its SO_REUSEADDR.
fn trial(holder: &HolderFacts, shares: bool, interface: u32) -> io::Result<Proof> {
    let family = match holder.local {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = kind_of(holder.protocol);
    let other = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&other, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&other, !holder.dual)?;
    }
    // A socket bound to the interface has the fewest conflicts.
    set_option(&other, libc::SOL_SOCKET, SO_BINDTOIFINDEX, interface as i32)?;
    match bind(&other, &holder.local) {
        Ok(()) => Ok(Proof::Shareable),
        Err(Errno::ADDRINUSE) => Ok(Proof::Alone),
        // A port that only some may bind; they do not take it from each other.
        Err(Errno::ACCESS) if shares => Ok(Proof::Shareable),
        Err(Errno::ACCESS) => Ok(Proof::Alone),
        Err(Errno::ADDRNOTAVAIL) => Ok(Proof::NotLocal),
        Err(error) => Err(error.into()),
    }
}

/// Binds a socket to a port at all addresses; `None` if another has it at some address.
fn bind_everywhere(protocol: Protocol, port: u16) -> io::Result<Option<OwnedFd>> {
    let kind = kind_of(protocol);
    let flags = SocketFlags::CLOEXEC;
    // Both families, if the host has both.
    let (socket, address) = match socket_with(AddressFamily::INET6, kind, flags, None) {
        Ok(socket) => (socket, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        Err(_) => {
            let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
            (socket, Ipv4Addr::UNSPECIFIED.into())
        }
    };
    match bind(&socket, &SocketAddr::new(address, port)) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
