//! The socket calls of one host over the TCP engines, on a virtual clock.
//!
//! A [`Host`] does nothing by itself: time moves by [`Host::advance`], packets
//! come by [`Host::packet_in`] and leave by [`Host::packet_out`]. No call waits;
//! one that would returns [`Failure::Blocked`] (or EAGAIN, where the descriptor
//! or a flag asks for that) and is called again after the clock or packets have
//! moved. Calls, flags, options and error numbers are Linux's.
//!
//! One concern a file: `config`, `socket` (from `socket` to `close`), `transfer`
//! (reading and writing), `notification` (the error queue), `option`, `info`
//! (`TCP_INFO`), `poll`, `fast_open`, `control` (`fcntl`, `ioctl`), `wire` (packets
//! in and out).
//!
//! The host adds nothing to the engine and takes nothing away, or a script that
//! passes would say nothing of what ships. What `Connection::output` gives leaves
//! byte for byte and at once (or stays, where the device has no room), one packet for each `Outgoing`; a call takes what
//! `Connection::write` takes; who may write is `Connection::writable`; `TCP_INFO`
//! is `Connection::info` in Linux's layout. Options that no Tidewall socket has
//! are refused.

mod address;
mod config;
mod control;
mod fast_open;
mod info;
mod notification;
mod option;
mod poll;
mod socket;
mod transfer;
mod wire;

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use tidewall_protocol::tcp::{
    Connection, Errno, FastOpenPeer, FourTuple, Listener, Secrets, TimeWaitTable,
};

pub use config::HostConfig;
pub use info::TcpInfo;
pub use notification::{ExtendedError, time_control};
pub use poll::{EpollEvent, PollFd};
use socket::Socket;
pub use tidewall_protocol::tcp::Sysctl;
pub use transfer::Received;

/// A descriptor of a [`Host`]. They begin at [`Host::FIRST_FD`], above what a
/// process uses, so that a caller can tell them from its own.
pub type Fd = i32;

/// Why a call has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It would wait: call it again after the clock or packets have moved.
    Blocked,
    /// A Linux error number.
    Errno(i32),
}

impl Failure {
    /// The error number; EAGAIN for [`Failure::Blocked`].
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Blocked => libc::EAGAIN,
            Self::Errno(number) => number,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked => f.write_str("would wait"),
            Self::Errno(number) => write!(f, "{:?}", Errno(*number)),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Errno(error.0)
    }
}

/// What a call returns.
pub type Result<T> = core::result::Result<T, Failure>;

/// Of a connection, as long as the host knows it.
type ConnectionId = u32;

/// A connection and whose it is.
struct Entry {
    connection: Connection,
    /// The descriptor, once accepted or if connected from here.
    fd: Option<Fd>,
    /// The listener that it waits at.
    listener: Option<Fd>,
    /// Times that something happened which wakes readers.
    readings: u64,
    /// Times that something happened which wakes writers.
    writings: u64,
    /// A writer found no room and is to be told when there is (`SOCK_NOSPACE`).
    no_space: bool,
    /// Its SYN waits for the first write (`TCP_FASTOPEN_CONNECT`).
    deferred: bool,
    /// The listener that counts it among those opened by a SYN.
    opened_at: Option<Fd>,
    /// The device had no room at the last output.
    refused: bool,
    /// [`Connection::notified`] when those who wait were last woken for it.
    notified: u32,
}

/// A listening socket's half of the protocol.
struct Listening {
    protocol: Listener,
    /// Complete handshakes, in the order of completion.
    queue: VecDeque<ConnectionId>,
    backlog: usize,
    wakeups: u64,
}

/// One host; see the module.
pub struct Host {
    config: HostConfig,
    secrets: Secrets,
    now: Duration,
    sockets: BTreeMap<Fd, Socket>,
    listeners: BTreeMap<Fd, Listening>,
    connections: BTreeMap<ConnectionId, Entry>,
    flows: HashMap<FourTuple, ConnectionId>,
    /// What is known of servers, by both addresses.
    fast_open_peers: HashMap<(IpAddr, IpAddr), FastOpenPeer>,
    next_connection: ConnectionId,
    next_port: u16,
    time_wait: TimeWaitTable,
    out: VecDeque<(Duration, Vec<u8>)>,
    /// Moves whenever something happened that a waiting call may wait for.
    changes: u64,
    room: Box<dyn FnMut() -> bool + Send>,
}

impl Host {
    /// The first descriptor.
    pub const FIRST_FD: Fd = 10_000;

    /// A host at time zero.
    #[must_use]
    pub fn new(config: HostConfig) -> Self {
        let half = config.seed.to_le_bytes();
        let mut key = [0; 16];
        for (place, byte) in key.iter_mut().zip(half.iter().chain(&half)) {
            *place = *byte;
        }
        let secrets = Secrets {
            sequence: key,
            cookie: key.map(|byte| byte ^ 0xa5),
        };
        Self {
            config,
            secrets,
            now: Duration::ZERO,
            sockets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            flows: HashMap::new(),
            fast_open_peers: HashMap::new(),
            next_connection: 0,
            next_port: 49_152,
            time_wait: TimeWaitTable::new(65_536, key),
            out: VecDeque::new(),
            changes: 0,
            room: Box::new(|| true),
        }
    }

    /// What it was told at its start, kernel parameters as they are now.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Changes kernel parameters: for connections that begin from now on.
    pub fn set_sysctl(&mut self, sysctl: Sysctl) {
        if self.config.sysctl != sysctl {
            self.config.sysctl = sysctl;
            self.refresh_listeners();
        }
    }

    /// Changes the link's MTU, for connections that begin from now on.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.config.mtu = mtu;
    }

    /// Changes whether the device cuts long packets, for connections that begin
    /// from now on.
    pub fn set_segmentation_offload(&mut self, on: bool) {
        self.config.segmentation_offload = on;
    }

    /// Has each output of a connection ask, before its first packet, whether the
    /// device has room. While `room` says false, the packets of connections stay
    /// in their engines (`Connection::output`), and are asked for again when the
    /// clock has moved or a packet is looked for. Without it there always is room.
    pub fn set_room(&mut self, room: impl FnMut() -> bool + Send + 'static) {
        self.room = Box::new(room);
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Changes when something happened that a call may have waited for: while it
    /// stays the same, calling again returns [`Failure::Blocked`] again.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When the next timer expires.
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        let connections = self
            .connections
            .values()
            .filter_map(|entry| entry.connection.next_timeout());
        let listeners = self
            .listeners
            .values()
            .filter_map(|listening| listening.protocol.next_timeout());
        let waiting = self.time_wait.next_timeout(self.now);
        connections.chain(listeners).chain(waiting).min()
    }

    /// Moves the clock, never back; timers expire on the way, each at its time.
    pub fn advance(&mut self, to: Duration) {
        while let Some(event) = self.next_event() {
            if event > to {
                break;
            }
            self.now = self.now.max(event);
            self.expire();
        }
        self.now = self.now.max(to);
        self.output_refused();
    }

    /// Does what is due now.
    fn expire(&mut self) {
        self.changes += 1;
        let now = self.now;
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let connections: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, entry)| due(entry.connection.next_timeout()))
            .map(|(&id, _)| id)
            .collect();
        for id in connections {
            self.on_timer(id);
        }
        let mut sent = Vec::new();
        for listening in self.listeners.values_mut() {
            if due(listening.protocol.next_timeout()) {
                let mut send = wire::collector(&mut sent);
                listening
                    .protocol
                    .timeout(now, &mut |flow, out, _| send(flow, out), &mut |_| {});
            }
        }
        self.emit(sent);
        self.time_wait.expire(now, &mut |_| {});
    }

    /// The next packet that has left, from its IP header on, and when it did.
    pub fn packet_out(&mut self) -> Option<(Duration, Vec<u8>)> {
        if self.out.is_empty() {
            self.output_refused();
        }
        self.out.pop_front()
    }

    /// True while [`Host::packet_out`] has one.
    #[must_use]
    pub fn has_packet_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// True when a descriptor is one of this host's.
    #[must_use]
    pub fn owns(&self, fd: Fd) -> bool {
        self.sockets.contains_key(&fd)
    }

    /// The lowest free descriptor.
    fn allocate(&self) -> Fd {
        let mut fd = Self::FIRST_FD;
        while self.sockets.contains_key(&fd) {
            fd += 1;
        }
        fd
    }
}

#[cfg(test)]
mod notification_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;
