//! No user obtains a port or a connection of another user through the manager. Tests real
//! sockets of two users in all combinations of family, address, IPV6_V6ONLY, SO_REUSEADDR
//! and SO_REUSEPORT, device and state, as far as the kernel allows both.
//!
//! Each pair is tried with real frames from a peer, first while the thief's application
//! owns the ports that the manager allows, then with the kernel only. A frame is stolen
//! if the kernel delivers it to the victim, and the driver program prevents that. Nothing
//! waits for a timer: a datagram of the test that follows on the same ring shows that
//! frames have arrived.

mod support;

use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Gid, Uid, fchown};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_linger, set_socket_reuseaddr, set_socket_reuseport, socket_cookie,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind,
    connect, getsockname, listen, recv, send, sendto, shutdown, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use support::*;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ANY, ApplicationTables, ChannelId, TrustedTables};
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::*;
use tidewall_sys::{interface, set_option};

/// Two users, neither of them trusted.
const THIEF: u32 = 65_001;
const VICTIM: u32 = 65_002;
const LOCALS: [&str; 3] = ["10.77.0.1", "10.77.0.3", "fd77::1"];
/// The peer, by family.
const PEERS: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// Ports of the peer that victims and thieves connect to, so that both may.
const PORT_OF_VICTIM: u16 = 9;
const PORT_OF_THIEF: u16 = 10;
/// Port of the datagrams that follow frames.
const MARKER: u16 = 9_999;
/// Key of an application's table, under which it receives frames.
const CHANNEL: u16 = 1;
/// asm-generic/socket.h.
const SO_BINDTOIFINDEX: i32 = 62;

#[test]
fn no_user_takes_a_port_of_another() {
    run_with_peer("no_user_takes_a_port_of_another", 180);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Bound,
    Listens,
    Accepted,
    Connected,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reuse {
    None,
    Address,
    Port,
}

/// The properties of a socket.
#[derive(Clone, Copy, Debug)]
struct Spec {
    protocol: Protocol,
    /// Address, and IPV6_V6ONLY.
    address: (&'static str, bool),
    reuse: Reuse,
    /// SO_BINDTODEVICE.
    device: Option<&'static str>,
    state: State,
}

fn specs(protocol: Protocol) -> Vec<Spec> {
    let mut specs = Vec::new();
    for address in [
        ("0.0.0.0", false),
        ("::", false),
        ("::", true),
        ("10.77.0.1", false),
        ("::ffff:10.77.0.1", false),
        ("fd77::1", false),
    ] {
        for reuse in [Reuse::None, Reuse::Address, Reuse::Port] {
            for device in [None, Some(INTERFACE), Some("lo")] {
                for state in [
                    State::Bound,
                    State::Listens,
                    State::Accepted,
                    State::Connected,
                ] {
                    let exists = match state {
                        State::Bound => true,
                        State::Listens => protocol == Protocol::Tcp,
                        // The peer is not behind lo.
                        State::Accepted => protocol == Protocol::Tcp && device != Some("lo"),
                        State::Connected => device != Some("lo"),
                    };
                    specs.extend(exists.then_some(Spec {
                        protocol,
                        address,
                        reuse,
                        device,
                        state,
                    }));
                }
            }
        }
    }
    specs
}

/// A user's socket.
struct Made {
    socket: OwnedFd,
    /// The peer's end of its connection, once that is there.
    peer: Option<OwnedFd>,
}

impl Drop for Made {
    fn drop(&mut self) {
        // TIME-WAIT does not keep the port from the next one.
        for socket in [Some(&self.socket), self.peer.as_ref()]
            .into_iter()
            .flatten()
        {
            reset_at_close(socket);
        }
    }
}

fn reset_at_close(socket: &OwnedFd) {
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}

fn bind_to(socket: &impl AsFd, device: &str) {
    let index = interface::index(device).unwrap() as i32;
    set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, index).unwrap();
}

fn open(ip: IpAddr, protocol: Protocol) -> rustix::io::Result<OwnedFd> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, kind, flags, None)
}

/// Connects without blocking.
fn begin_to_connect(socket: &OwnedFd, to: SocketAddr) -> rustix::io::Result<()> {
    match connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error),
    }
}

fn accept_now(listener: &OwnedFd) -> Option<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
}

fn local(socket: &OwnedFd) -> SocketAddr {
    getsockname(socket).unwrap().try_into().unwrap()
}

/// The peer, in another network namespace, and the exchanges with it.
struct Peer {
    namespaces: [File; 2],
    /// Listeners for victims and thieves, of each family.
    listeners: Vec<(u16, OwnedFd)>,
    /// Sockets for sending datagrams, of each family.
    datagrams: [OwnedFd; 2],
    /// Here and at the peer.
    markers: [UdpSocket; 2],
    said: u64,
}

impl Peer {
    fn new() -> Self {
        let theirs = std::env::var("TW_PEER").unwrap();
        let namespaces = ["thread-self", &theirs]
            .map(|process| File::open(format!("/proc/{process}/ns/net")).unwrap());
        let mut peer = Peer {
            markers: [
                UdpSocket::bind(("10.77.0.1", MARKER)).unwrap(),
                at_peer(|| UdpSocket::bind(("10.77.0.2", MARKER)).unwrap()),
            ],
            datagrams: PEERS.map(|ip| {
                let ip: IpAddr = ip.parse().unwrap();
                at_peer(|| {
                    let socket = open(ip, Protocol::Udp).unwrap();
                    bind(&socket, &SocketAddr::new(ip, PORT_OF_VICTIM)).unwrap();
                    socket
                })
            }),
            namespaces,
            listeners: Vec::new(),
            said: 0,
        };
        for ip in PEERS {
            for port in [PORT_OF_VICTIM, PORT_OF_THIEF] {
                let at = SocketAddr::new(ip.parse().unwrap(), port);
                let listener = peer.socket(at.ip());
                bind(&listener, &at).unwrap();
                listen(&listener, 64).unwrap();
                peer.listeners.push((port, listener));
            }
        }
        for marker in &peer.markers {
            let limit = Some(Duration::from_secs(5));
            marker.set_read_timeout(limit).unwrap();
        }
        peer
    }

    /// Returns a TCP socket of the peer.
    fn socket(&self, like: IpAddr) -> OwnedFd {
        let [here, there] = &self.namespaces;
        let enter = |namespace: &File| {
            let kind = LinkNameSpaceType::Network;
            move_into_link_name_space(namespace.as_fd(), Some(kind)).unwrap();
        };
        enter(there);
        let socket = open(like, Protocol::Tcp);
        enter(here);
        socket.unwrap()
    }

    /// Returns once the sent frames have arrived, and their answers.
    fn settle(&mut self) {
        self.said += 1;
        let text = self.said.to_ne_bytes();
        let [here, there] = &self.markers;
        let mut buffer = [0; 8];
        there.send_to(&text, ("10.77.0.1", MARKER)).unwrap();
        while buffer != text {
            here.recv(&mut buffer).unwrap();
        }
        here.send_to(&text, ("10.77.0.2", MARKER)).unwrap();
        buffer = [0; 8];
        while buffer != text {
            there.recv(&mut buffer).unwrap();
        }
    }

    /// Creates a user's socket, as far as the kernel allows it.
    fn make(&mut self, spec: &Spec, user: u32, port: u16) -> rustix::io::Result<Made> {
        let ip: IpAddr = spec.address.0.parse().unwrap();
        let socket = open(ip, spec.protocol)?;
        // The kernel takes a socket's user from its file.
        let own = |socket: &OwnedFd| {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            fchown(socket, Some(user), Some(group))
        };
        own(&socket)?;
        match spec.reuse {
            Reuse::None => {}
            Reuse::Address => set_socket_reuseaddr(&socket, true)?,
            Reuse::Port => set_socket_reuseport(&socket, true)?,
        }
        if ip.is_ipv6() {
            set_ipv6_v6only(&socket, spec.address.1)?;
        }
        if let Some(device) = spec.device {
            bind_to(&socket, device);
        }
        bind(&socket, &SocketAddr::new(ip, port))?;
        let mut made = Made { socket, peer: None };
        let v6 = match ip.to_canonical() {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => !ip.is_unspecified() || spec.address.1,
        };
        match spec.state {
            State::Bound => {}
            State::Listens => listen(&made.socket, 8)?,
            State::Connected => {
                let to: IpAddr = PEERS[usize::from(v6)].parse().unwrap();
                let to = match (ip, to) {
                    (IpAddr::V6(_), IpAddr::V4(to)) => to.to_ipv6_mapped().into(),
                    (_, to) => to,
                };
                let port = match user {
                    VICTIM => PORT_OF_VICTIM,
                    _ => PORT_OF_THIEF,
                };
                begin_to_connect(&made.socket, SocketAddr::new(to, port))?;
                if spec.protocol == Protocol::Tcp {
                    self.settle();
                    self.settle();
                    let mut listeners = self.listeners.iter();
                    let accepted = listeners
                        .find_map(|(of, listener)| (*of == port).then(|| accept_now(listener))?);
                    made.peer = accepted;
                }
            }
            State::Accepted => {
                listen(&made.socket, 8)?;
                let to: IpAddr = if v6 { "fd77::1" } else { "10.77.0.1" }.parse().unwrap();
                let peer = self.socket(to);
                begin_to_connect(&peer, SocketAddr::new(to, port))?;
                self.settle();
                self.settle();
                // Otherwise the frames went elsewhere, and there is no such socket.
                let accepted = accept_now(&made.socket).ok_or(Errno::TIMEDOUT)?;
                own(&accepted)?;
                made = Made {
                    socket: accepted,
                    peer: Some(peer),
                };
            }
        }
        Ok(made)
    }

    /// Returns at which of a host's addresses a socket receives frames that the peer
    /// sends to the port; its connection is one more.
    fn reaches(&mut self, spec: &Spec, made: &Made, beside: Option<&Made>) -> [bool; 4] {
        let mut reached = [false; 4];
        let port = local(&made.socket).port();
        let locals: [IpAddr; 3] = LOCALS.map(|ip| ip.parse().unwrap());
        let place = |ip: IpAddr| locals.iter().position(|local| *local == ip.to_canonical());
        match (spec.protocol, spec.state) {
            (Protocol::Udp, _) => {
                for socket in [Some(made), beside].into_iter().flatten() {
                    while recv(&socket.socket, &mut [0; 16], RecvFlags::empty()).is_ok() {}
                }
                for (place, ip) in (0u8..).zip(locals) {
                    let sends = &self.datagrams[usize::from(ip.is_ipv6())];
                    let to = SocketAddr::new(ip, port);
                    let _ = sendto(sends, &[place], SendFlags::empty(), &to);
                }
                self.settle();
                let mut buffer = [0; 16];
                loop {
                    match recv(&made.socket, &mut buffer[..], RecvFlags::empty()) {
                        Ok(_) => reached[usize::from(buffer[0])] = true,
                        // Answers from a port without an owner.
                        Err(Errno::CONNREFUSED) => {}
                        Err(_) => break,
                    }
                }
            }
            (Protocol::Tcp, State::Bound) => {}
            (Protocol::Tcp, State::Listens) => {
                let tries = locals.map(|ip| {
                    let socket = self.socket(ip);
                    let _ = begin_to_connect(&socket, SocketAddr::new(ip, port));
                    socket
                });
                self.settle();
                self.settle();
                tries.iter().for_each(reset_at_close);
                while let Some(accepted) = accept_now(&made.socket) {
                    reset_at_close(&accepted);
                    if let Some(place) = place(local(&accepted).ip()) {
                        reached[place] = true;
                    }
                }
                while let Some(accepted) = beside.and_then(|it| accept_now(&it.socket)) {
                    reset_at_close(&accepted);
                }
            }
            (Protocol::Tcp, State::Accepted | State::Connected) => {
                if let Some(peer) = &made.peer {
                    let _ = send(peer, b"?", SendFlags::NOSIGNAL);
                    self.settle();
                    let received = recv(&made.socket, &mut [0; 16], RecvFlags::empty());
                    reached[3] = received.is_ok_and(|(_, length)| length == 1);
                }
            }
        }
        reached
    }
}

/// An application in private mode, with its queue, that receives all frames of its ports.
struct Application {
    connection: Connection,
    number: u16,
    tables: ApplicationTables,
    asked: std::cell::Cell<u32>,
    no_socket: OwnedFd,
    _handed: Vec<OwnedFd>,
}

impl Application {
    fn join(user: u32) -> Self {
        let connection = as_user(user, || Connection::connect(&socket()).unwrap());
        let join = Request::Join(Join {
            flags: JOIN_PRIVATE,
            ..join()
        });
        loop {
            connection.send(&join.emit(1), &[]).unwrap();
            let received = connection.receive().unwrap().unwrap();
            let joined = match Answer::parse(&received.bytes).unwrap().1 {
                Answer::Joined(joined) => joined,
                Answer::Error(failure) if failure.errno == libc::EBUSY => continue,
                answer => panic!("{answer:?}"),
            };
            let mut handed = received.descriptors;
            for _ in 0..joined.queues {
                handed.extend(connection.receive().unwrap().unwrap().descriptors);
            }
            assert!(joined.queues > 0);
            let number = joined.application as u16;
            let map = handed[0].as_fd();
            let tables = ApplicationTables::of_map(map, number, joined.hash_key).unwrap();
            tables.set_limit(0, CHANNEL, u32::MAX);
            return Application {
                connection,
                number,
                tables,
                asked: 1.into(),
                no_socket: File::open("/dev/null").unwrap().into(),
                _handed: handed,
            };
        }
    }

    fn ask(&self, request: &Request, beside: Option<&OwnedFd>) -> Answer {
        self.asked.set(self.asked.get() + 1);
        let beside: Vec<_> = beside.into_iter().map(AsFd::as_fd).collect();
        let message = request.emit(self.asked.get());
        self.connection.send(&message, &beside).unwrap();
        loop {
            let received = self.connection.receive().unwrap().unwrap();
            let (id, answer) = Answer::parse(&received.bytes).unwrap();
            if id == self.asked.get() {
                return answer;
            }
        }
    }

    /// Shows the manager a socket; returns whether it owns the port now. If it is
    /// rejected, the manager's copy is closed when this returns.
    fn own(&self, protocol: Protocol, holder: &OwnedFd) -> bool {
        let at = local(holder);
        let port = Port {
            address: address_bytes(at.ip()),
            port: at.port(),
            protocol: protocol as u8,
            pad: 0,
        };
        let port = Request::OwnPort(port);
        let owns = matches!(self.ask(&port, Some(holder)), Answer::Owned(_));
        if !owns {
            // The thread that closes the manager's copy handles this one next.
            self.ask(&port, Some(&self.no_socket));
            return false;
        }
        let channel = ChannelId::new(CHANNEL, 1);
        let listens = self.tables.listen(protocol, None, at.port(), channel);
        listens.unwrap();
        true
    }

    /// Returns once the manager's copy is closed, too.
    fn disown(&self, holder: &OwnedFd) {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            self.tables.unlisten(protocol, None, local(holder).port());
        }
        let cookie = socket_cookie(holder).unwrap();
        let answer = self.ask(&Request::DisownPort(Holder { cookie }), None);
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    }
}

/// Results of the pairs.
#[derive(Debug, Default)]
struct Count {
    pairs: u32,
    /// Pairs that the kernel allowed.
    made: u32,
    owned: u32,
    /// Frames that the kernel delivered to the victim, beside a thief's ports.
    delivered: u32,
    stolen: Vec<String>,
    /// Pairs whose thieves received their victims' frames until the manager's next look.
    for_a_second: u32,
}

impl Count {
    /// Counts pairs in which a port was stolen.
    fn compare(&mut self, pair: &str, owned: [bool; 4], alone: [bool; 4]) -> Vec<String> {
        let mut stolen = Vec::new();
        for (place, (owned, alone)) in owned.into_iter().zip(alone).enumerate() {
            self.delivered += u32::from(alone);
            if alone && !owned {
                let at = LOCALS.get(place).unwrap_or(&"its connection");
                stolen.push(format!("{pair} at {at}"));
            }
        }
        stolen
    }
}

mod inside {
    use super::*;

    struct Bed {
        peer: Peer,
        tables: TrustedTables,
        thief: Application,
        victim: Application,
        port: u16,
        count: Count,
    }

    impl Bed {
        fn next_port(&mut self) -> u16 {
            self.port += 1;
            self.port
        }

        /// Resolves the neighbours' addresses, so that no frame waits for them.
        fn meet(&mut self) {
            let spec = Spec {
                protocol: Protocol::Tcp,
                address: ("::", false),
                reuse: Reuse::None,
                device: None,
                state: State::Listens,
            };
            let port = self.next_port();
            let server = self.peer.make(&spec, VICTIM, port).unwrap();
            wait_until("neighbours are known", || {
                self.peer.reaches(&spec, &server, None) == expected(&spec)
            });
        }

        /// Returns the application that receives a port's frames, for each of the host's
        /// addresses.
        fn owners(&self, protocol: Protocol, port: u16) -> [Option<u16>; 3] {
            let owned = self.tables.owned_ports().unwrap();
            let of = |at: IpAddr| {
                let mut owned = owned.iter();
                let found = owned.find(|of| (of.0, of.1, of.2) == (protocol, at, port));
                found.map(|of| of.3)
            };
            LOCALS.map(|ip| {
                let ip: IpAddr = ip.parse().unwrap();
                of(ip).or_else(|| of(ANY[usize::from(ip.is_ipv6())]))
            })
        }

        /// Creates a thief's socket that coexists with the victim's and owns the port.
        fn owning_thief(&mut self, spec: &Spec, port: u16) -> Option<Made> {
            self.count.pairs += 1;
            let thief = self.peer.make(spec, THIEF, port).ok()?;
            self.count.made += 1;
            let owns = self.thief.own(spec.protocol, &thief.socket);
            self.count.owned += u32::from(owns);
            owns.then_some(thief)
        }

        /// Tries a victim on kernel sockets, then thieves; and the same with a victim on
        /// Tidewall.
        fn try_thieves_second(&mut self, protocol: Protocol) {
            let specs = specs(protocol);
            for spec in &specs {
                let port = self.next_port();
                let victim = self.peer.make(spec, VICTIM, port).unwrap();
                let reached = self.peer.reaches(spec, &victim, None);
                assert_eq!(reached, expected(spec), "{spec:?} alone");
                for other in &specs {
                    let Some(thief) = self.owning_thief(other, port) else {
                        continue;
                    };
                    let owned = self.peer.reaches(spec, &victim, Some(&thief));
                    self.thief.disown(&thief.socket);
                    let mut alone = self.peer.reaches(spec, &victim, Some(&thief));
                    // A stolen byte holds up the next.
                    alone[3] = reached[3];
                    let pair = format!("{other:?} beside {spec:?}");
                    let stolen = self.count.compare(&pair, owned, alone);
                    self.count.stolen.extend(stolen);
                }
                if !self.victim.own(protocol, &victim.socket) {
                    continue;
                }
                let before = self.owners(protocol, port);
                for other in &specs {
                    let Some(thief) = self.owning_thief(other, port) else {
                        continue;
                    };
                    let after = self.owners(protocol, port);
                    for (place, of) in before.into_iter().enumerate() {
                        // Without an owner the kernel decides: at the manager's look
                        // another user could bind there, too.
                        let now = after[place];
                        if of.is_some() && now.is_some() && now != of {
                            let at = LOCALS[place];
                            let text = format!("{other:?} beside application's {spec:?} at {at}");
                            self.count.stolen.push(text);
                        }
                    }
                    self.thief.disown(&thief.socket);
                }
                self.victim.disown(&victim.socket);
            }
        }

        fn try_thieves_first(&mut self, protocol: Protocol) {
            let specs = specs(protocol);
            for spec in &specs {
                let port = self.next_port();
                let thief = self.peer.make(spec, THIEF, port).unwrap();
                self.count.pairs += specs.len() as u32;
                let proves = spec.device != Some("lo")
                    && match spec.state {
                        State::Bound => spec.reuse != Reuse::Address,
                        State::Listens => true,
                        State::Accepted => false,
                        State::Connected => {
                            protocol == Protocol::Udp && spec.reuse != Reuse::Address
                        }
                    };
                let is_owner = self.thief.own(protocol, &thief.socket);
                assert_eq!(is_owner, proves, "{spec:?}");
                if !is_owner {
                    continue;
                }
                for other in &specs {
                    let Ok(victim) = self.peer.make(other, VICTIM, port) else {
                        continue;
                    };
                    self.count.made += 1;
                    self.count.owned += 1;
                    let owned = self.peer.reaches(other, &victim, Some(&thief));
                    drop(victim);
                    self.thief.disown(&thief.socket);
                    let mut alone = [false; 4];
                    if let Ok(victim) = self.peer.make(other, VICTIM, port) {
                        alone = self.peer.reaches(other, &victim, Some(&thief));
                    }
                    let pair = format!("{spec:?} before {other:?}");
                    let stolen = self.count.compare(&pair, owned, alone);
                    assert!(self.thief.own(protocol, &thief.socket), "{spec:?}");
                    // The kernel allows a socket with SO_REUSEPORT where a thief is
                    // alone, after one of the same user that overlapped no thief. The
                    // manager looks once per second.
                    if !stolen.is_empty() {
                        let victim = self.peer.make(other, VICTIM, port).unwrap();
                        wait_until(&stolen.join(", "), || {
                            self.peer.reaches(other, &victim, Some(&thief)) == alone
                        });
                        self.count.for_a_second += 1;
                        drop(victim);
                        assert!(self.thief.own(protocol, &thief.socket), "{spec:?}");
                    }
                }
                self.thief.disown(&thief.socket);
            }
        }

        /// Tries changes of a holder, after the manager has seen it, that allow others to
        /// bind.
        fn try_changes(&mut self) {
            let spec = |protocol, state, reuse| Spec {
                protocol,
                address: ("0.0.0.0", false),
                reuse,
                device: None,
                state,
            };
            let listens = spec(Protocol::Tcp, State::Listens, Reuse::Address);
            let only_bound = spec(Protocol::Tcp, State::Bound, Reuse::None);
            let datagrams = spec(Protocol::Udp, State::Bound, Reuse::None);
            let shares = spec(Protocol::Udp, State::Bound, Reuse::Address);
            let on_device = |spec: Spec| Spec {
                device: Some(INTERFACE),
                ..spec
            };
            // A connected one keeps the address from which it sends, and leaves the
            // others.
            let on_other = |spec: Spec| Spec {
                address: ("10.77.0.3", false),
                ..spec
            };
            type Change = fn(&OwnedFd);
            let shut: Change = |holder| shutdown(holder, Shutdown::Both).unwrap();
            let share: Change = |holder| set_socket_reuseaddr(holder, true).unwrap();
            let move_away: Change = |holder| bind_to(holder, "lo");
            let attach: Change = |holder| {
                let to = SocketAddr::new(PEERS[0].parse().unwrap(), PORT_OF_THIEF);
                begin_to_connect(holder, to).unwrap();
            };
            let changes = [
                ("shut down", listens, shut, listens),
                ("bound to lo", listens, move_away, on_device(listens)),
                ("given SO_REUSEADDR", only_bound, share, listens),
                ("connected", only_bound, attach, on_other(listens)),
                ("given SO_REUSEADDR", datagrams, share, shares),
                ("connected", datagrams, attach, on_other(datagrams)),
                ("bound to lo", datagrams, move_away, on_device(datagrams)),
            ];
            let mut made = Vec::new();
            for (how, spec, change, other) in changes {
                let port = self.next_port();
                let thief = self.peer.make(&spec, THIEF, port).unwrap();
                assert!(self.thief.own(spec.protocol, &thief.socket));
                change(&thief.socket);
                let victim = self.peer.make(&other, VICTIM, port).unwrap();
                let what = format!("{how}: {spec:?} gives way to {other:?}");
                made.push((what, thief, other, victim));
            }
            // The manager looks once per second.
            for (what, thief, other, victim) in &made {
                let port = local(&victim.socket).port();
                wait_until(what, || {
                    self.owners(other.protocol, port)
                        .iter()
                        .all(Option::is_none)
                });
                let reached = self.peer.reaches(other, victim, Some(thief));
                assert_eq!(reached, expected(other), "{what}");
            }
        }
    }

    /// Returns where the peer's frames reach a socket that is alone on its port.
    fn expected(spec: &Spec) -> [bool; 4] {
        let (address, v6only) = spec.address;
        let connected = [State::Accepted, State::Connected].contains(&spec.state);
        // A socket of both families connects to an IPv4 peer.
        let address = if (address, v6only, connected) == ("::", false, true) {
            "0.0.0.0"
        } else {
            address
        };
        let address = address.parse::<IpAddr>().unwrap().to_canonical();
        let mut expected = [false; 4];
        if spec.device == Some("lo") || (spec.protocol, spec.state) == (Protocol::Tcp, State::Bound)
        {
            return expected;
        }
        if spec.protocol == Protocol::Tcp && connected {
            return [false, false, false, true];
        }
        for (place, ip) in LOCALS.iter().enumerate() {
            let ip: IpAddr = ip.parse().unwrap();
            let of_family = ip.is_ipv4() == address.is_ipv4()
                || (address.is_unspecified() && address.is_ipv6() && !v6only);
            // A connected one keeps the address from which it sends.
            let any = address.is_unspecified() && (!connected || place != 1);
            expected[place] = (address == ip || any) && of_family;
        }
        expected
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn no_user_takes_a_port_of_another() {
        ip(&format!("addr add 10.77.0.3/24 dev {INTERFACE}"));
        ip(&format!("addr add fd77::1/64 dev {INTERFACE} nodad"));
        at_peer(|| ip("addr add fd77::2/64 dev tw-peer nodad"));
        // A later frame on the same ring has arrived later.
        for interface in [INTERFACE, "tw-peer"] {
            let on = || {
                let mut ethtool = std::process::Command::new("ethtool");
                let status = ethtool.args(["-K", interface, "gro", "on"]).status();
                assert!(status.unwrap().success());
            };
            match interface {
                INTERFACE => on(),
                _ => at_peer(on),
            }
        }
        let private = [THIEF, VICTIM].map(|user| user.to_string());
        let mut daemon = command();
        for user in &private {
            daemon.args(["--private", user]);
        }
        let _daemon = start_with(&mut daemon).0;
        let mut bed = Bed {
            peer: Peer::new(),
            tables: trusted(),
            thief: Application::join(THIEF),
            victim: Application::join(VICTIM),
            port: 10_000,
            count: Count::default(),
        };
        assert_ne!(bed.thief.number, bed.victim.number);
        bed.meet();
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            bed.try_thieves_second(protocol);
            bed.try_thieves_first(protocol);
        }
        let Count {
            pairs,
            made,
            owned,
            delivered,
            stolen,
            for_a_second,
        } = &bed.count;
        println!(
            "theft of a port or a connection: {} of {pairs} pairs; the kernel let {made} exist, \
             {owned} thieves owned a port, {delivered} frames were their victims', and {for_a_second} \
             thieves had frames until the manager looked",
            stolen.len(),
        );
        assert!(stolen.is_empty(), "{stolen:#?}");
        bed.try_changes();
    }
}
