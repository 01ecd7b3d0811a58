//! The kernel's sockets, as far as binding goes (inet_csk_get_port() and
//! udp_lib_get_port() of Linux): family, address, IPV6_V6ONLY, SO_REUSEADDR, device and
//! state. Processes that do not know a manager also have some.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tidewall_device::demux::layout::Protocol;
use tidewall_manager::daemon::ports::{HolderFacts, PortKey, Proof};

/// The device that a socket is bound to by SO_BINDTODEVICE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Nowhere,
    Here,
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Listens,
    Connected,
}

#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub facts: HolderFacts,
    /// Its process, until that closes it.
    pub process: Option<usize>,
    pub user: u32,
    pub shares: bool,
    pub device: Bound,
    pub state: State,
    /// The manager has a copy of it.
    pub kept: bool,
    /// Its process has changed it since it was shown to the manager.
    pub changed: bool,
}

#[derive(Default)]
pub struct Kernel {
    pub sockets: Vec<Socket>,
    /// TCP ports of which all sockets had SO_REUSEADDR and none listened.
    fast: BTreeMap<u16, bool>,
    /// The manager's own sockets, on all addresses.
    pub held: BTreeSet<(Protocol, u16)>,
}

/// Addresses of the host.
pub const LOCALS: [&str; 3] = ["10.0.0.1", "10.0.0.2", "fd00::1"];

fn covers(facts: &HolderFacts, address: IpAddr) -> bool {
    let local = facts.local.ip().to_canonical();
    if !local.is_unspecified() {
        return local == address;
    }
    facts.dual || local.is_ipv4() == address.is_ipv4()
}

fn overlap(one: &HolderFacts, other: &HolderFacts) -> bool {
    let mut locals = LOCALS.iter().map(|local| local.parse().unwrap());
    locals.any(|local| covers(one, local) && covers(other, local))
}

impl Socket {
    fn conflicts(&self, other: &Socket) -> bool {
        (self.facts.protocol, self.facts.local.port())
            == (other.facts.protocol, other.facts.local.port())
            && (self.device == Bound::Nowhere
                || other.device == Bound::Nowhere
                || self.device == other.device)
            && overlap(&self.facts, &other.facts)
            && !(self.shares && other.shares && other.state != State::Listens)
    }

    /// Whether it receives a frame that arrives for an address of the host on the
    /// interface.
    fn receives(&self, address: IpAddr) -> bool {
        self.process.is_some()
            && self.device != Bound::Elsewhere
            && (self.facts.protocol == Protocol::Udp || self.state != State::Idle)
            && covers(&self.facts, address)
    }
}

impl Kernel {
    pub fn get(&mut self, cookie: u64) -> Option<&mut Socket> {
        let mut sockets = self.sockets.iter_mut();
        sockets.find(|socket| socket.facts.cookie == cookie)
    }

    fn may_bind(&self, socket: &Socket) -> bool {
        let facts = &socket.facts;
        let port = facts.local.port();
        if self.held.contains(&(facts.protocol, port)) {
            return false;
        }
        let fast = facts.protocol == Protocol::Tcp && self.fast.get(&port) == Some(&true);
        (fast && socket.shares) || !self.sockets.iter().any(|other| socket.conflicts(other))
    }

    pub fn bind(&mut self, socket: Socket) -> bool {
        if !self.may_bind(&socket) {
            return false;
        }
        if socket.facts.protocol == Protocol::Tcp {
            let fast = self.fast.entry(socket.facts.local.port());
            let fast = fast.or_insert(socket.shares);
            *fast &= socket.shares;
        }
        self.sockets.push(socket);
        true
    }

    pub fn listen(&mut self, cookie: u64) {
        let Some(&mut socket) = self.get(cookie) else {
            return;
        };
        let mut others = self.sockets.iter();
        let conflict = others.any(|other| other.facts.cookie != cookie && socket.conflicts(other));
        if conflict || socket.state != State::Idle || socket.facts.protocol == Protocol::Udp {
            return;
        }
        self.fast.insert(socket.facts.local.port(), false);
        self.get(cookie).unwrap().state = State::Listens;
    }

    /// The local address is fixed from then on.
    pub fn connect(&mut self, cookie: u64) {
        let Some(socket) = self.get(cookie).filter(|it| it.state == State::Idle) else {
            return;
        };
        socket.state = State::Connected;
        let local = socket.facts.local;
        if local.ip().is_unspecified() {
            let address = LOCALS[if local.is_ipv4() { 0 } else { 2 }];
            socket.facts.local = SocketAddr::new(address.parse().unwrap(), local.port());
        }
    }

    /// shutdown(2) of a listener, which stays bound.
    pub fn shut(&mut self, cookie: u64) {
        if let Some(socket) = self.get(cookie).filter(|it| it.state == State::Listens) {
            socket.state = State::Idle;
        }
    }

    fn forget_closed(&mut self) {
        self.sockets
            .retain(|socket| socket.process.is_some() || socket.kept);
        let ports: BTreeSet<u16> = self
            .sockets
            .iter()
            .map(|it| it.facts.local.port())
            .collect();
        self.fast.retain(|port, _| ports.contains(port));
    }

    pub fn close(&mut self, which: impl Fn(&Socket) -> bool) {
        for socket in self.sockets.iter_mut().filter(|socket| which(socket)) {
            socket.process = None;
        }
        self.forget_closed();
    }

    pub fn release(&mut self, which: impl Fn(&Socket) -> bool) {
        for socket in self.sockets.iter_mut().filter(|socket| which(socket)) {
            socket.kept = false;
        }
        self.forget_closed();
    }

    /// The facts about a user's socket, as a manager reads them that queries the kernel
    /// as this crate's does.
    pub fn shown(&mut self, cookie: u64, user: u32) -> Option<HolderFacts> {
        let socket = *self.get(cookie)?;
        let proof = self.proof(&socket, user);
        Some(HolderFacts {
            proof,
            ..socket.facts
        })
    }

    fn proof(&self, socket: &Socket, user: u32) -> Proof {
        let holder = &socket.facts;
        if socket.facts.protocol == Protocol::Tcp && socket.state == State::Connected {
            return Proof::Connected;
        }
        if socket.device == Bound::Elsewhere {
            return Proof::OtherDevice;
        }
        let users = [user, socket.user];
        if let Some(other) = self.beside(holder, &users) {
            return Proof::Beside(other);
        }
        let anothers = Socket {
            shares: true,
            device: Bound::Here,
            state: State::Idle,
            ..*socket
        };
        match self.may_bind(&anothers) {
            true => Proof::Shareable,
            false => Proof::Alone,
        }
    }

    /// The user of a socket that overlaps another one, other than these.
    fn beside(&self, holder: &HolderFacts, users: &[u32]) -> Option<u32> {
        let is_other = |socket: &&Socket| {
            socket.facts.cookie != holder.cookie
                && (socket.facts.protocol, socket.facts.local.port())
                    == (holder.protocol, holder.local.port())
                && !users.contains(&socket.user)
                && socket.device != Bound::Elsewhere
                && overlap(&socket.facts, holder)
        };
        self.sockets.iter().find(is_other).map(|it| it.user)
    }

    pub fn is_anothers(&self, key: &PortKey, user: u32) -> bool {
        let facts = HolderFacts {
            protocol: key.protocol,
            local: SocketAddr::new(key.address, key.port),
            dual: false,
            cookie: 0,
            here: true,
            proof: Proof::Alone,
        };
        self.beside(&facts, &[user]).is_some()
    }

    /// A socket whose frames go to another user's application, by the table of ports.
    /// `user`: the user of an application that may not read every frame.
    pub fn robbed(
        &self,
        table: &BTreeMap<PortKey, u16>,
        user: impl Fn(u16) -> Option<u32>,
    ) -> Option<Socket> {
        let locals = LOCALS.map(|local| local.parse::<IpAddr>().unwrap());
        let is_robbed = |socket: &&Socket| {
            let (protocol, port) = (socket.facts.protocol, socket.facts.local.port());
            let mut received = locals.iter().filter(|local| socket.receives(**local));
            received.any(|&address| {
                let key = |address| PortKey {
                    protocol,
                    address,
                    port,
                };
                let [four, six] = PortKey::on_all(protocol, port);
                let all = if address.is_ipv4() { four } else { six };
                let owner = table.get(&key(address)).or(table.get(&all));
                let thief = owner.and_then(|&owner| user(owner));
                thief.is_some_and(|thief| thief != socket.user)
            })
        };
        // A user who gives away a socket gives away its port.
        let given = |socket: &Socket| {
            let mut kept = self.sockets.iter().filter(|other| other.kept);
            kept.any(|other| other.user == socket.user && overlap(&other.facts, &socket.facts))
        };
        let mut sockets = self.sockets.iter().filter(|socket| !given(socket));
        sockets.find(is_robbed).copied()
    }
}
