//! Circuits set up by calls: the client of an ATMARP server (RFC 2225 §8.4), and incoming
//! calls.
//!
//! ```text
//! packet ─► no circuit ─► ask the server ─► its number ─► call ─► circuit ─► idle ─► released
//! ```
//!
//! A caller's report about itself is not trusted alone. A client asks the server for the
//! number of the address, and uses the circuit for it if that is the caller's. A server
//! trusts an address of the calling number, which the network has checked.

use std::net::Ipv4Addr;
use std::time::Duration;

use tidewall_wire::atm::arp::{Number, Operation, Party};
use tidewall_wire::atm::{Circuit, Nsap};

use super::{LIFETIME, Peer, REFRESH, RETRY, Subnetwork, Time};

/// Default for how long a call's circuit is kept without a packet (RFC 1755 §3.3).
pub const IDLE_DEFAULT: Duration = Duration::from_secs(20 * 60);
/// Attempts at asking the server for a neighbour.
const TRIES: u8 = 3;
/// How long a neighbour that was not found or not reached is not asked for again.
const FAILED: Duration = Duration::from_secs(10);
/// Maximum number of neighbours resolved or called at a time: a scan of the subnetwork
/// must cost no more.
const WANTED_MAX: usize = 256;

/// An action on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call this number; then [`Subnetwork::connected`] or [`Subnetwork::failed`].
    Call(Nsap),
    /// Release this circuit; then [`Subnetwork::ended`].
    Release(Circuit),
}

/// The server that a client asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    number: Nsap,
    link: Link,
}

#[derive(Clone, Copy, Debug)]
enum Link {
    /// The server is called at that time.
    Down(Time),
    Calling,
    Up(Circuit),
}

impl Server {
    pub(super) fn new(number: Nsap) -> Self {
        Server {
            number,
            link: Link::Down(Time::ZERO),
        }
    }
}

/// Progress of the way to a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// The server is being asked: remaining attempts, and the time of the next.
    Asked(u8, Time),
    Calling(Nsap),
    /// It is unreachable until then.
    Failed(Time),
}

impl Subnetwork {
    /// The next action on calls.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Records an incoming call, which is accepted.
    pub fn called(&mut self, now: Time, circuit: Circuit, caller: Option<Nsap>) {
        self.enter(now, circuit, caller);
        // Asks for the caller's address.
        self.handle_timeout(now);
    }

    /// Records that an outgoing call is answered.
    pub fn connected(&mut self, now: Time, number: Nsap, circuit: Circuit) {
        self.enter(now, circuit, Some(number));
        if let Some(server) = self.server.as_mut().filter(|it| it.number == number) {
            server.link = Link::Up(circuit);
            // Resolves waiting neighbours now.
            for wanted in self.wanted.values_mut() {
                if let Wanted::Asked(_, at) = wanted {
                    *at = now;
                }
            }
        }
        let calling = self.wanted.iter();
        let calling = calling.filter(|(_, it)| matches!(it, Wanted::Calling(to) if *to == number));
        let calling: Vec<Ipv4Addr> = calling.map(|(address, _)| *address).collect();
        // A circuit belongs to one neighbour; another address of that number is resolved
        // again.
        for (place, address) in calling.into_iter().enumerate() {
            match place {
                0 => self.bind(now, circuit, address, number),
                _ => drop(self.wanted.remove(&address)),
            }
        }
        self.handle_timeout(now);
    }

    /// Records that an outgoing call was not answered.
    pub fn failed(&mut self, now: Time, number: Nsap) {
        if let Some(server) = self.server.as_mut().filter(|it| it.number == number) {
            server.link = Link::Down(now + RETRY);
        }
        for wanted in self.wanted.values_mut() {
            if matches!(wanted, Wanted::Calling(to) if *to == number) {
                *wanted = Wanted::Failed(now + FAILED);
            }
        }
    }

    /// Records the end of a circuit, of a call or a permanent one. False if there was
    /// none.
    pub fn ended(&mut self, now: Time, circuit: Circuit) -> bool {
        let Some(peer) = self.circuits.remove(&circuit) else {
            return false;
        };
        if let Some(address) = peer.address {
            self.neighbours.remove(&address);
        }
        self.waiting.retain(|it| it.0 != circuit);
        if self.is_server(circuit)
            && let Some(server) = &mut self.server
        {
            server.link = Link::Down(now + RETRY);
        }
        true
    }

    fn enter(&mut self, now: Time, circuit: Circuit, other: Option<Nsap>) {
        let peer = Peer {
            address: None,
            number: Number::None,
            fixed: false,
            asks: now,
            expires: now,
            call: Some((other, now)),
        };
        self.circuits.insert(circuit, peer);
    }

    /// Binds the circuit to this neighbour, whose number the server or a call has
    /// reported.
    fn bind(&mut self, now: Time, circuit: Circuit, address: Ipv4Addr, number: Nsap) {
        self.wanted.remove(&address);
        let Some(peer) = self.circuits.get_mut(&circuit) else {
            return;
        };
        peer.address = Some(address);
        peer.number = Number::Nsap(number);
        (peer.asks, peer.expires) = (now + REFRESH, now + LIFETIME);
        self.neighbours.insert(address, circuit);
    }

    /// Records a packet on a circuit.
    pub(super) fn used(&mut self, now: Time, circuit: Circuit) {
        let peer = self.circuits.get_mut(&circuit);
        if let Some((_, used)) = peer.and_then(|peer| peer.call.as_mut()) {
            *used = now;
        }
    }

    pub(super) fn is_server(&self, circuit: Circuit) -> bool {
        let link = self.server.as_ref().map(|server| server.link);
        matches!(link, Some(Link::Up(it)) if it == circuit)
    }

    /// Registers this host at the server.
    pub(super) fn register(&mut self, circuit: Circuit) {
        let own = Party {
            number: self.config.number,
            address: Some(self.config.address),
        };
        let target = Party {
            number: Number::None,
            address: own.address,
        };
        self.put(circuit, Operation::Request, own, target);
    }

    /// Starts setting up a way to a neighbour; false if none can be set up now.
    pub(super) fn want(&mut self, now: Time, address: Ipv4Addr) -> bool {
        if self.server.is_none() || !self.config.is_neighbour(address) {
            return false;
        }
        match self.wanted.get(&address) {
            Some(Wanted::Failed(until)) if *until > now => return false,
            Some(Wanted::Failed(_)) => {}
            Some(_) => return true,
            None if self.wanted.len() >= WANTED_MAX => return false,
            None => {}
        }
        self.wanted.insert(address, Wanted::Asked(TRIES, now));
        self.handle_calls(now);
        true
    }

    /// Whether to trust what the other end of a call reports about itself; `None` if it
    /// is treated as on any circuit.
    pub(super) fn check_caller(
        &mut self,
        now: Time,
        circuit: Circuit,
        address: Ipv4Addr,
        source: &Party,
    ) -> Option<bool> {
        let peer = self.circuits.get_mut(&circuit)?;
        let (other, _) = peer.call?;
        let is_same = other.is_some_and(|number| source.number == Number::Nsap(number));
        if !is_same {
            return Some(false);
        }
        if self.config.server || self.is_server(circuit) {
            return None;
        }
        let peer = self.circuits.get_mut(&circuit)?;
        if peer.address == Some(address) {
            return None;
        }
        // The server knows it; a second circuit to a neighbour is as good as the first.
        peer.asks = now + REFRESH;
        if !self.neighbours.contains_key(&address) {
            self.want(now, address);
        }
        Some(true)
    }

    /// Records a neighbour's number from the server; no other host is trusted for it.
    pub(super) fn resolved(&mut self, now: Time, circuit: Circuit, said: &Party) {
        let (Some(address), Number::Nsap(number)) = (said.address, said.number) else {
            return;
        };
        let asked = matches!(self.wanted.get(&address), Some(Wanted::Asked(..)));
        if !self.is_server(circuit) || !asked {
            return;
        }
        let called = self.circuits.iter().find(|(_, peer)| {
            let other = peer.call.and_then(|(other, _)| other);
            other == Some(number) && peer.address.is_none()
        });
        if let Some((&circuit, _)) = called {
            return self.bind(now, circuit, address, number);
        }
        let mut calling = self.wanted.values();
        let calling = calling.any(|it| matches!(it, Wanted::Calling(to) if *to == number));
        self.wanted.insert(address, Wanted::Calling(number));
        if !calling {
            self.actions.push_back(Action::Call(number));
        }
    }

    /// Records that the server does not know a neighbour, or does not accept this host's
    /// registration.
    pub(super) fn unresolved(&mut self, now: Time, circuit: Circuit, asked: Option<Ipv4Addr>) {
        let Some(address) = asked.filter(|_| self.is_server(circuit)) else {
            return;
        };
        if address == self.config.address {
            self.counters.conflicts += 1;
        } else if let Some(wanted @ Wanted::Asked(..)) = self.wanted.get_mut(&address) {
            *wanted = Wanted::Failed(now + FAILED);
        }
    }

    /// Time at which [`Subnetwork::handle_calls`] has something to do.
    pub(super) fn calls_due(&self) -> Option<Time> {
        let server = match self.server.map(|server| server.link) {
            Some(Link::Down(at)) => Some(at),
            _ => None,
        };
        let wanted = self.wanted.values().filter_map(|wanted| match wanted {
            Wanted::Asked(_, at) | Wanted::Failed(at) => Some(*at),
            Wanted::Calling(_) => None,
        });
        let idle = self.circuits.iter().filter_map(|(circuit, peer)| {
            let (_, used) = peer.call?;
            self.may_idle(*circuit).then_some(used + self.config.idle)
        });
        server.into_iter().chain(wanted).chain(idle).min()
    }

    /// A client's circuit to its server is kept, and a server's to its clients.
    fn may_idle(&self, circuit: Circuit) -> bool {
        !self.config.server && !self.is_server(circuit)
    }

    /// Calls the server, asks it, gives up, and releases idle circuits.
    pub(super) fn handle_calls(&mut self, now: Time) {
        let up = match &mut self.server {
            Some(server) => match server.link {
                Link::Down(at) if at <= now => {
                    server.link = Link::Calling;
                    self.actions.push_back(Action::Call(server.number));
                    None
                }
                Link::Up(circuit) => Some(circuit),
                _ => None,
            },
            None => None,
        };
        let mut asked = Vec::new();
        self.wanted.retain(|address, wanted| match wanted {
            Wanted::Asked(0, at) if *at <= now => {
                *wanted = Wanted::Failed(now + FAILED);
                true
            }
            Wanted::Asked(tries, at) if *at <= now => {
                *tries -= 1;
                *at = now + RETRY;
                asked.push(*address);
                true
            }
            Wanted::Failed(until) => *until > now,
            _ => true,
        });
        let own = Party {
            number: self.config.number,
            address: Some(self.config.address),
        };
        for address in asked {
            let target = Party {
                number: Number::None,
                address: Some(address),
            };
            if let Some(circuit) = up {
                self.put(circuit, Operation::Request, own, target);
            }
        }
        let idle: Vec<Circuit> = (self.circuits.iter())
            .filter(|(circuit, peer)| {
                let used = peer.call.map(|(_, used)| used);
                used.is_some_and(|used| used + self.config.idle <= now) && self.may_idle(**circuit)
            })
            .map(|(circuit, _)| *circuit)
            .collect();
        for circuit in idle {
            // Not again before it has ended.
            self.used(now, circuit);
            self.actions.push_back(Action::Release(circuit));
        }
    }
}

#[cfg(test)]
mod tests;
