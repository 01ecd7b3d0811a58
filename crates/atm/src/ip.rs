//! A logical IP subnetwork over circuits (RFC 2225): the circuit of each packet, and the
//! neighbour at the other end of each circuit.
//!
//! A permanent circuit has a configured neighbour, or one that InATMARP finds. A request
//! is sent when the circuit is added, then every three seconds until it is answered, and
//! every 15 minutes from then on. After 20 minutes without an answer the neighbour is
//! forgotten (the ages that RFC 2225 gives the tables of clients and servers). Packets to
//! a neighbour use its circuit. Others use that of the neighbour named by the longest
//! matching route.
//!
//! With an ATMARP server circuits are set up by calls (`calls`). The client calls the
//! server and registers there. It asks the server for a neighbour's number, calls that,
//! and releases idle circuits.
//!
//! InATMARP finds only hosts of the interface's own subnetwork, so that no host at the
//! end of a circuit takes packets that a route sends by another. ATMARP requests for the
//! interface's own address are answered. A server also answers for every neighbour that
//! has reported its own ATM address by its own circuit.

mod calls;
pub mod segments;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use tidewall_wire::atm::arp::{self, Number, Operation, Packet, Party};
use tidewall_wire::atm::llc::{self, Payload};
use tidewall_wire::atm::{Circuit, Nsap};
use tidewall_wire::ethernet::EtherType;
use tidewall_wire::ipv4;

pub use calls::{Action, IDLE_DEFAULT};
use calls::{Server, Wanted};

/// Time since any fixed moment.
pub type Time = Duration;

/// The MTU of IP over ATM unless both ends agree otherwise (RFC 2225 §7), bytes.
pub const MTU_DEFAULT: u16 = 9180;
/// Bytes of the LLC header before each packet.
pub const HEADER_LEN: usize = llc::HEADER_LEN;

const RETRY: Duration = Duration::from_secs(3);
const REFRESH: Duration = Duration::from_secs(15 * 60);
const LIFETIME: Duration = Duration::from_secs(20 * 60);
/// Maximum number of answers and requests that wait to be sent.
const WAITING_MAX: usize = 256;

/// Configuration of the interface.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its address.
    pub address: Ipv4Addr,
    /// Bits of the subnetwork's prefix, 0 to 32: InATMARP finds only neighbours in it.
    pub prefix_len: u8,
    /// Its ATM address; [`Number::None`] if it has only permanent circuits.
    pub number: Number,
    /// It answers ATMARP requests for others.
    pub server: bool,
    /// The server to ask for neighbours; `None` if no calls are made.
    pub asks: Option<Nsap>,
    /// How long a call's circuit is kept without a packet.
    pub idle: Duration,
}

/// Counters, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// IPv4 packets received.
    pub received: u64,
    /// Valid ATMARP and InATMARP packets received.
    pub arp: u64,
    /// Dropped: neither a complete IPv4 packet nor a valid ATMARP packet behind a header
    /// of RFC 2684.
    pub malformed: u64,
    /// Rejected addresses: our own, another circuit's, of no host of the subnetwork, or
    /// not the one configured for the circuit.
    pub conflicts: u64,
    /// Dropped: no circuit leads to the destination.
    pub no_circuit: u64,
    /// Answers not sent, as too many waited.
    pub unanswered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    address: Option<Ipv4Addr>,
    /// Its ATM address, as reported by itself.
    number: Number,
    /// It is configured, and stays.
    fixed: bool,
    /// When InATMARP asks next, and when its result is forgotten.
    asks: Time,
    expires: Time,
    /// Set if a call set it up: the other end's number, if known, and the time of its
    /// last packet.
    call: Option<(Option<Nsap>, Time)>,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The circuit to it.
    pub circuit: Circuit,
    /// Its address; `None` while it is not known.
    pub address: Option<Ipv4Addr>,
    /// Configured, not found by InATMARP.
    pub fixed: bool,
}

/// The reason why a circuit or a route is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// It already exists.
    #[error("the circuit is there already")]
    Circuit,
    /// Another circuit leads to that neighbour, or it is the interface's own address.
    #[error("{0} is at the end of another circuit, or this interface's own address")]
    Address(Ipv4Addr),
    /// The prefix has more than 32 bits, or some beyond its length.
    #[error("not a prefix: {0}/{1}")]
    Prefix(Ipv4Addr, u8),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Subnetwork {
    config: Config,
    circuits: BTreeMap<Circuit, Peer>,
    /// Circuits by their neighbours.
    neighbours: BTreeMap<Ipv4Addr, Circuit>,
    /// Prefix, its length and the neighbour that it leads to, the longest first.
    routes: Vec<(Ipv4Addr, u8, Ipv4Addr)>,
    waiting: VecDeque<(Circuit, Packet)>,
    server: Option<Server>,
    /// Neighbours being resolved or called.
    wanted: BTreeMap<Ipv4Addr, Wanted>,
    actions: VecDeque<Action>,
    counters: Counters,
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By this circuit.
    By(Circuit),
    /// By one being set up.
    Soon,
    /// None; this is counted.
    None,
}

impl Subnetwork {
    /// Starts without a circuit.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            circuits: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            routes: Vec::new(),
            waiting: VecDeque::new(),
            server: config.asks.map(Server::new),
            wanted: BTreeMap::new(),
            actions: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Adds a circuit, to this neighbour or to the one that InATMARP finds.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(
        &mut self,
        now: Time,
        circuit: Circuit,
        neighbour: Option<Ipv4Addr>,
    ) -> Result<(), AddError> {
        if self.circuits.contains_key(&circuit) {
            return Err(AddError::Circuit);
        }
        if let Some(address) = neighbour {
            if address == self.config.address || self.neighbours.contains_key(&address) {
                return Err(AddError::Address(address));
            }
            self.neighbours.insert(address, circuit);
        }
        let peer = Peer {
            address: neighbour,
            number: Number::None,
            fixed: neighbour.is_some(),
            asks: now,
            expires: now,
            call: None,
        };
        self.circuits.insert(circuit, peer);
        self.handle_timeout(now);
        Ok(())
    }

    /// Routes packets for a prefix to a neighbour.
    ///
    /// # Errors
    /// [`AddError::Prefix`].
    pub fn add_route(
        &mut self,
        prefix: Ipv4Addr,
        length: u8,
        by: Ipv4Addr,
    ) -> Result<(), AddError> {
        if length > 32 || masked(prefix, length) != prefix {
            return Err(AddError::Prefix(prefix, length));
        }
        let at = self.routes.partition_point(|route| route.1 >= length);
        self.routes.insert(at, (prefix, length, by));
        Ok(())
    }

    /// The way of a packet to this address; an unknown neighbour is resolved, and called.
    pub fn way(&mut self, now: Time, destination: Ipv4Addr) -> Way {
        let known = self.neighbours.get(&destination).copied();
        let known = known.map(|circuit| (destination, Some(circuit)));
        let (by, circuit) = known.unwrap_or_else(|| {
            let leads = |route: &&(Ipv4Addr, u8, Ipv4Addr)| masked(destination, route.1) == route.0;
            let by = self
                .routes
                .iter()
                .find(leads)
                .map_or(destination, |it| it.2);
            (by, self.neighbours.get(&by).copied())
        });
        if let Some(circuit) = circuit {
            self.used(now, circuit);
            return Way::By(circuit);
        }
        if self.want(now, by) {
            return Way::Soon;
        }
        self.counters.no_circuit += 1;
        Way::None
    }

    /// Processes a payload received on a circuit. Returns the IPv4 packet in it.
    pub fn received<'a>(
        &mut self,
        now: Time,
        circuit: Circuit,
        payload: &'a [u8],
    ) -> Option<&'a [u8]> {
        self.used(now, circuit);
        match Payload::parse(payload) {
            // A kernel that looks at the first bits would take anything but IPv4 for
            // IPv6.
            Ok(Payload::Routed(EtherType::IPV4, bytes)) => match ipv4::Packet::new(bytes) {
                Ok(packet) => {
                    self.counters.received += 1;
                    return bytes.get(..usize::from(packet.total_length()));
                }
                Err(_) => self.counters.malformed += 1,
            },
            Ok(Payload::Routed(EtherType::ARP, packet)) => match Packet::parse(packet) {
                Ok(packet) => {
                    self.counters.arp += 1;
                    self.arp(now, circuit, &packet);
                }
                Err(_) => self.counters.malformed += 1,
            },
            _ => self.counters.malformed += 1,
        }
        None
    }

    fn arp(&mut self, now: Time, circuit: Circuit, packet: &Packet) {
        let own = Party {
            number: self.config.number,
            address: Some(self.config.address),
        };
        match packet.operation {
            Operation::InverseRequest => {
                if self.learn(now, circuit, &packet.source) {
                    self.put(circuit, Operation::InverseReply, own, packet.source);
                }
            }
            Operation::InverseReply => {
                self.learn(now, circuit, &packet.source);
            }
            Operation::Request => {
                self.hear(circuit, &packet.source);
                let asked = packet.target.address;
                let known = asked.filter(|_| self.config.server);
                let known = known.and_then(|address| self.number(address));
                match (asked, known) {
                    // A client registers (RFC 2225 §8.4.1).
                    (Some(address), _)
                        if self.config.server && packet.source.address == Some(address) =>
                    {
                        let believed = self.learn(now, circuit, &packet.source);
                        let (operation, source, target) = match believed {
                            true => (Operation::Reply, packet.source, packet.source),
                            false => (Operation::Unknown, packet.source, packet.target),
                        };
                        self.put(circuit, operation, source, target);
                    }
                    (Some(address), _) if address == self.config.address => {
                        self.put(circuit, Operation::Reply, own, packet.source);
                    }
                    (Some(_), Some(number)) => {
                        let source = Party {
                            number,
                            address: asked,
                        };
                        self.put(circuit, Operation::Reply, source, packet.source);
                    }
                    // As it arrived, except for the operation (RFC 2225: ARP_NAK).
                    (Some(_), None) if self.config.server => {
                        self.put(circuit, Operation::Unknown, packet.source, packet.target);
                    }
                    _ => {}
                }
            }
            Operation::Reply => self.resolved(now, circuit, &packet.source),
            Operation::Unknown => self.unresolved(now, circuit, packet.target.address),
        }
    }

    /// Accepts the reported other end of a circuit; false if it is impossible.
    fn learn(&mut self, now: Time, circuit: Circuit, source: &Party) -> bool {
        let Some(peer) = self.circuits.get_mut(&circuit) else {
            return false;
        };
        let (config, fixed) = (self.config, peer.fixed);
        let possible = |it: &Ipv4Addr| fixed || config.is_neighbour(*it);
        let Some(address) = source.address.filter(possible) else {
            self.counters.conflicts += 1;
            return false;
        };
        if let Some(believed) = self.check_caller(now, circuit, address, source) {
            self.counters.conflicts += u64::from(!believed);
            return believed;
        }
        let Some(peer) = self.circuits.get_mut(&circuit) else {
            return false;
        };
        let other = self
            .neighbours
            .get(&address)
            .is_some_and(|it| *it != circuit);
        let differs = peer.fixed && peer.address != Some(address);
        if address == self.config.address || other || differs {
            self.counters.conflicts += 1;
            return false;
        }
        if !peer.fixed {
            if let Some(before) = peer.address.replace(address)
                && before != address
            {
                self.neighbours.remove(&before);
                peer.number = Number::None;
            }
            self.neighbours.insert(address, circuit);
            peer.asks = now + REFRESH;
            peer.expires = now + LIFETIME;
        }
        self.hear(circuit, source);
        true
    }

    /// Keeps a neighbour's ATM address, if the other end of the circuit reports it about
    /// itself.
    fn hear(&mut self, circuit: Circuit, source: &Party) {
        if let Some(peer) = self.circuits.get_mut(&circuit)
            && peer.address.is_some()
            && peer.address == source.address
            && source.number != Number::None
        {
            peer.number = source.number;
        }
    }

    /// A neighbour's ATM address, if it is known.
    fn number(&self, address: Ipv4Addr) -> Option<Number> {
        let peer = self.circuits.get(self.neighbours.get(&address)?)?;
        (peer.number != Number::None).then_some(peer.number)
    }

    fn put(&mut self, circuit: Circuit, operation: Operation, source: Party, target: Party) {
        if self.waiting.len() >= WAITING_MAX {
            self.counters.unanswered += 1;
            return;
        }
        let packet = Packet {
            operation,
            source,
            target,
        };
        self.waiting.push_back((circuit, packet));
    }

    /// The next payload to be sent, and its circuit.
    pub fn poll_transmit(&mut self) -> Option<(Circuit, Vec<u8>)> {
        let (circuit, packet) = self.waiting.pop_front()?;
        let mut bytes = vec![0; HEADER_LEN + arp::MAX_LEN];
        let rest = llc::emit_routed(EtherType::ARP, &mut bytes).ok()?;
        let length = packet.emit(rest).ok()?;
        bytes.truncate(HEADER_LEN + length);
        Some((circuit, bytes))
    }

    /// Time at which [`Subnetwork::handle_timeout`] must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let found = self.circuits.values().filter(|peer| !peer.fixed);
        let asks = found.map(|peer| peer.asks).min();
        asks.into_iter().chain(self.calls_due()).min()
    }

    /// Asks for neighbours, and forgets those that have not answered for long.
    pub fn handle_timeout(&mut self, now: Time) {
        let own = Party {
            number: self.config.number,
            address: Some(self.config.address),
        };
        let mut asked = Vec::new();
        for (circuit, peer) in self.circuits.iter_mut().filter(|it| !it.1.fixed) {
            if let Some(address) = peer.address.filter(|_| peer.expires <= now) {
                peer.address = None;
                peer.number = Number::None;
                self.neighbours.remove(&address);
                if peer.call.is_some() {
                    self.actions.push_back(Action::Release(*circuit));
                }
            }
            if peer.asks <= now {
                peer.asks = now + RETRY;
                asked.push(*circuit);
            }
        }
        for circuit in asked {
            if self.is_server(circuit) {
                self.register(circuit);
            }
            self.put(circuit, Operation::InverseRequest, own, Party::default());
        }
        self.handle_calls(now);
    }

    /// All circuits and their neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = Neighbour> {
        self.circuits.iter().map(|(circuit, peer)| Neighbour {
            circuit: *circuit,
            address: peer.address,
            fixed: peer.fixed,
        })
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }
}

/// The first bits of an address.
fn masked(address: Ipv4Addr, length: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32)));
    Ipv4Addr::from_bits(address.to_bits() & mask.unwrap_or(0))
}

impl Config {
    /// True for an address that another host of the subnetwork can have: not that of the
    /// subnetwork, nor its broadcast address if there are such (RFC 3021).
    fn is_neighbour(&self, address: Ipv4Addr) -> bool {
        let length = self.prefix_len.min(32);
        let host_bits = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
        let host = address.to_bits() & host_bits;
        masked(address, length) == masked(self.address, length)
            && (length >= 31 || (host != 0 && host != host_bits))
            && !(address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_loopback())
    }
}

#[cfg(test)]
mod tests;
