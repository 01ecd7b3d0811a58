//! The calls of a switch. A call that arrives on one port is routed to another by its
//! called number. The two calls, one on each link, are one ([`Signalling`] is a link).
//!
//! ```text
//! SETUP ──► route, circuits ──► SETUP                       (the caller's port, the called's)
//!  ◄── CALL PROCEEDING                  CALL PROCEEDING ◄──  (where CONNECT takes longer)
//!  ◄── CONNECT ◄── the table has both directions ◄── CONNECT
//! ```
//!
//! A VCI of a port is reassigned when both ends of that port's link have released it; the
//! most recently released comes last. The table loses a call when either end releases it.

mod prefix;

use std::collections::{BTreeMap, BTreeSet};

use tidewall_wire::atm::q2931::{Cause, ConnectionIdentifier, Elements, Number, Party};
use tidewall_wire::atm::{Circuit, Nsap};

use crate::reassembly::Time;
use crate::signalling::{CallId, Config, Event, Side, Signalling};
use crate::switch::End;

pub use prefix::{InvalidPrefix, NumberPrefix};

/// Maximum number of unanswered calls of a port. Further calls are refused, so that a
/// frequent caller does not fill the links on which others are called.
pub const UNANSWERED_MAX: usize = 64;

/// A request to the table of circuits; the answer is true if it was done, or is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Whether this end is unused by circuits of the table.
    IsFree(End),
    /// Route each of these to the other.
    Enter([End; 2]),
    /// Remove the route of both; always succeeds.
    Remove([End; 2]),
}

/// Carries out a request to the table.
pub type Table<'a> = dyn FnMut(Request) -> bool + 'a;

/// Event counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Incoming calls.
    pub calls: u64,
    /// Calls among those that were answered.
    pub connected: u64,
    /// Refused: their number leads nowhere (cause 3).
    pub no_route: u64,
    /// Refused: no circuit was free, or the named one is not (causes 35, 45).
    pub no_circuit: u64,
    /// Refused: too many calls, of a port or waiting for an answer, or the table is full
    /// (cause 47).
    pub no_resources: u64,
    /// Refused for unsupported requests (cause 73).
    pub unsupported: u64,
    /// Circuits that a called end uses for something else (cause 35); another is tried.
    pub circuits_refused: u64,
    /// Calling numbers that do not lead to their callers, which were not passed on.
    pub withheld: u64,
}

impl Counters {
    /// All counters with their names.
    #[must_use]
    pub const fn each(&self) -> [(&'static str, u64); 8] {
        [
            ("calls", self.calls),
            ("calls-connected", self.connected),
            ("calls-no-route", self.no_route),
            ("calls-no-circuit", self.no_circuit),
            ("calls-no-resources", self.no_resources),
            ("calls-unsupported", self.unsupported),
            ("circuits-refused", self.circuits_refused),
            ("calls-number-withheld", self.withheld),
        ]
    }
}

/// One of the two ends of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The port.
    pub port: usize,
    /// Its call on the link; `None` once both ends of the link have released it.
    pub id: Option<CallId>,
    /// Its circuit there, once known and until both ends of the link have released it.
    pub circuit: Option<Circuit>,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The caller's leg and the called one's.
    pub legs: [Leg; 2],
    /// The caller's number, if it is known to be true.
    pub calling: Option<Nsap>,
    /// The called number.
    pub called: Nsap,
    /// The table has it.
    pub entered: bool,
    answered: bool,
}

#[derive(Debug)]
struct Port {
    signalling: Signalling,
    side: Side,
    /// Circuits of calls.
    held: BTreeSet<Circuit>,
    /// Start of the next search for a free VCI.
    next_vci: u16,
    /// Unanswered calls that arrived on it.
    unanswered: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Exchange {
    ports: Vec<Option<Port>>,
    /// The longest first.
    prefixes: Vec<(NumberPrefix, usize)>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// The call and the leg that a link's call belongs to.
    places: BTreeMap<(usize, CallId), (u64, usize)>,
    counters: Counters,
}

impl Exchange {
    /// One entry per port, `None` for one that does not signal. Starts without numbers:
    /// every call is refused.
    #[must_use]
    pub fn new(ports: &[Option<Config>]) -> Self {
        let port = |config: Config| Port {
            signalling: Signalling::new(config),
            side: config.side,
            held: BTreeSet::new(),
            next_vci: Circuit::FIRST_USER_VCI,
            unanswered: 0,
        };
        Self {
            ports: ports.iter().map(|config| config.map(port)).collect(),
            prefixes: Vec::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            places: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Sets which numbers lead to which port. The longest prefix counts, and of two equal
    /// ones the first. Existing calls stay.
    pub fn set_prefixes(&mut self, mut prefixes: Vec<(NumberPrefix, usize)>) {
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.digits()));
        self.prefixes = prefixes;
    }

    /// The event counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let ports = self.ports.iter().flatten();
        let refused: u64 = ports.map(|port| port.signalling.refused()).sum();
        Counters {
            calls: self.counters.calls + refused,
            no_resources: self.counters.no_resources + refused,
            ..self.counters
        }
    }

    /// All calls, including those of which an end is still being released.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.values()
    }

    /// A port's link; `None` where it does not signal.
    #[must_use]
    pub fn link(&self, port: usize) -> Option<&Signalling> {
        Some(&self.port(port)?.signalling)
    }

    /// The number of the state of a call's leg; 0 once it is released.
    #[must_use]
    pub fn state(&self, leg: &Leg) -> u8 {
        let phase = |port: &Port| {
            let phase = port.signalling.phase(leg.id?)?;
            Some(phase.number(port.side))
        };
        self.port(leg.port).and_then(phase).unwrap_or(0)
    }

    /// True for a circuit that a call has, or that both ends have not released yet.
    #[must_use]
    pub fn holds(&self, end: End) -> bool {
        let port = self.port(end.port);
        port.is_some_and(|port| port.held.contains(&end.circuit))
    }

    /// Processes a PDU received on a port's circuit 0.5.
    pub fn pdu_received(&mut self, now: Time, port: usize, bytes: &[u8], table: &mut Table<'_>) {
        if let Some(port) = self.port_mut(port) {
            port.signalling.pdu_received(now, bytes);
        }
        self.follow(now, table);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time, table: &mut Table<'_>) {
        for port in self.ports.iter_mut().flatten() {
            port.signalling.handle_timeout(now);
        }
        self.follow(now, table);
    }

    /// Time at which [`Exchange::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let ports = self.ports.iter().flatten();
        ports.filter_map(|it| it.signalling.poll_timeout()).min()
    }

    /// The next PDU for a port's circuit 0.5, if there is one.
    pub fn poll_transmit(&mut self, now: Time, port: usize) -> Option<Vec<u8>> {
        self.port_mut(port)?.signalling.poll_transmit(now)
    }

    fn port(&self, port: usize) -> Option<&Port> {
        self.ports.get(port)?.as_ref()
    }

    fn port_mut(&mut self, port: usize) -> Option<&mut Port> {
        self.ports.get_mut(port)?.as_mut()
    }

    fn follow(&mut self, now: Time, table: &mut Table<'_>) {
        let mut port = 0;
        while port < self.ports.len() {
            match self
                .port_mut(port)
                .and_then(|it| it.signalling.poll_event())
            {
                // It may cause an event of any port.
                Some(event) => {
                    self.happened(now, port, event, table);
                    port = 0;
                }
                None => port += 1,
            }
        }
    }

    fn happened(&mut self, now: Time, port: usize, event: Event, table: &mut Table<'_>) {
        match event {
            Event::Setup(id, elements) => {
                self.counters.calls += 1;
                if let Err(cause) = self.called(now, port, id, &elements, table) {
                    self.count(cause);
                    self.release(now, port, id, Cause::new(cause));
                }
            }
            Event::Proceeding(id, elements) => self.learn(now, port, id, &elements, table),
            Event::Connected(id, elements) => self.connected(now, port, id, &elements, table),
            Event::Releasing(id, cause) => {
                let place = self.places.get(&(port, id)).copied();
                if let Some((call, _)) = place {
                    self.disconnect(call, table);
                }
                self.release(now, port, id, cause);
                if let Some((call, leg)) = place {
                    self.release_leg(now, call, 1 - leg, cause);
                }
            }
            Event::CircuitRefused(id) => {
                if !self.renamed(now, port, id, table) {
                    self.release(now, port, id, Cause::new(Cause::NO_CIRCUIT_AVAILABLE));
                }
            }
            Event::Released(id, cause) => self.released(now, port, id, cause, table),
            // Events of their calls report the rest.
            Event::LinkUp | Event::LinkDown | Event::Restarted(..) | Event::RestartDone(_) => {}
        }
    }

    fn count(&mut self, cause: u8) {
        let counters = &mut self.counters;
        let counter = match cause {
            Cause::NO_ROUTE => &mut counters.no_route,
            Cause::NO_CIRCUIT_AVAILABLE | Cause::CIRCUIT_NOT_AVAILABLE => &mut counters.no_circuit,
            Cause::UNSUPPORTED_TRAFFIC => &mut counters.unsupported,
            _ => &mut counters.no_resources,
        };
        *counter += 1;
    }

    /// Handles an incoming call on a port.
    ///
    /// # Errors
    /// The cause of the rejection.
    fn called(
        &mut self,
        now: Time,
        port: usize,
        id: CallId,
        elements: &Elements,
        table: &mut Table<'_>,
    ) -> Result<(), u8> {
        let called = nsap(elements.called.as_ref()).ok_or(Cause::NO_ROUTE)?;
        let to = self.port_of(&called).ok_or(Cause::NO_ROUTE)?;
        let from = self.port(port).ok_or(Cause::NO_ROUTE)?;
        // A call that another switch routes here and this one back would loop for ever.
        if to == port && from.side == Side::User {
            return Err(Cause::NO_ROUTE);
        }
        if elements.traffic.is_some_and(|traffic| !traffic.is_simple()) {
            return Err(Cause::UNSUPPORTED_TRAFFIC);
        }
        if from.unanswered >= UNANSWERED_MAX {
            return Err(Cause::RESOURCES_UNAVAILABLE);
        }
        let near = match from.side {
            Side::Network => self.allot(port, table).ok_or(Cause::NO_CIRCUIT_AVAILABLE)?,
            Side::User => {
                let named = elements.connection.and_then(|it| it.circuit());
                named
                    .filter(|&it| self.is_free(port, it, table))
                    .ok_or(Cause::CIRCUIT_NOT_AVAILABLE)?
            }
        };
        self.hold(port, near);
        let outgoing = self.call_on(now, port, to, &called, elements, table);
        let (there, far, calling) = outgoing.inspect_err(|_| self.free(port, near))?;
        self.next_call += 1;
        let call = self.next_call;
        let leg = |port, id, circuit| Leg {
            port,
            id: Some(id),
            circuit,
        };
        self.calls.insert(
            call,
            Call {
                legs: [leg(port, id, Some(near)), leg(to, there, far)],
                calling,
                called,
                entered: false,
                answered: false,
            },
        );
        self.places.insert((port, id), (call, 0));
        self.places.insert((to, there), (call, 1));
        if let Some(port) = self.port_mut(port) {
            port.unanswered += 1;
            let named = match port.side {
                Side::Network => Some(ConnectionIdentifier::exclusive(near)),
                Side::User => None,
            };
            // Its link may already be down again: then its end is among the events.
            let _ = port.signalling.proceed(now, id, named);
        }
        Ok(())
    }

    /// Calls on the second port, with the caller's elements. A calling number that does
    /// not lead to the caller's port belongs to another.
    fn call_on(
        &mut self,
        now: Time,
        port: usize,
        to: usize,
        called: &Nsap,
        elements: &Elements,
        table: &mut Table<'_>,
    ) -> Result<(CallId, Option<Circuit>, Option<Nsap>), u8> {
        let claimed = elements.calling.as_ref();
        let calling = nsap(claimed).filter(|it| self.port_of(it) == Some(port));
        let side = self.port(to).ok_or(Cause::NO_ROUTE)?.side;
        let circuit = match side {
            Side::Network => Some(self.allot(to, table).ok_or(Cause::NO_CIRCUIT_AVAILABLE)?),
            Side::User => None,
        };
        let setup = Elements {
            connection: circuit.map(ConnectionIdentifier::exclusive),
            called: Some(Party::from(*called)),
            calling: elements.calling.filter(|_| calling.is_some()),
            calling_subaddress: elements.calling_subaddress.filter(|_| calling.is_some()),
            cause: None,
            call_state: None,
            restart: None,
            ..*elements
        };
        let withheld = u64::from(claimed.is_some() && calling.is_none());
        let far = self.port_mut(to).ok_or(Cause::NO_ROUTE)?;
        let id = (far.signalling.setup(now, setup)).map_err(|_| Cause::RESOURCES_UNAVAILABLE)?;
        far.held.extend(circuit);
        self.counters.withheld += withheld;
        Ok((id, circuit, calling))
    }

    /// Calls the called end with another circuit, after it has refused the first.
    #[expect(clippy::indexing_slicing, reason = "a leg is 0 or 1")]
    fn renamed(&mut self, now: Time, port: usize, id: CallId, table: &mut Table<'_>) -> bool {
        self.counters.circuits_refused += 1;
        let Some(&(number, leg)) = self.places.get(&(port, id)) else {
            return false;
        };
        let next = self.allot(port, table);
        let (Some(next), Some(call)) = (next, self.calls.get_mut(&number)) else {
            return false;
        };
        let before = call.legs[leg].circuit.replace(next);
        let Some(port) = self.port_mut(port) else {
            return false;
        };
        if let Some(before) = before {
            port.held.remove(&before);
        }
        port.held.insert(next);
        let named = ConnectionIdentifier::exclusive(next);
        port.signalling.setup_again(now, id, named).is_ok()
    }

    /// The port that a number leads to.
    fn port_of(&self, number: &Nsap) -> Option<usize> {
        let mut prefixes = self.prefixes.iter();
        let found =
            prefixes.find(|(prefix, port)| prefix.has(number) && self.port(*port).is_some());
        found.map(|(_, port)| *port)
    }

    fn is_free(&self, port: usize, circuit: Circuit, table: &mut Table<'_>) -> bool {
        let end = End { port, circuit };
        circuit.vci >= Circuit::FIRST_USER_VCI && !self.holds(end) && table(Request::IsFree(end))
    }

    /// A free circuit.
    fn allot(&mut self, number: usize, table: &mut Table<'_>) -> Option<Circuit> {
        let first = Circuit::FIRST_USER_VCI;
        for _ in first..=u16::MAX {
            let port = self.port_mut(number)?;
            let vci = port.next_vci;
            port.next_vci = vci.checked_add(1).unwrap_or(first);
            let circuit = Circuit { vpi: 0, vci };
            if self.is_free(number, circuit, table) {
                return Some(circuit);
            }
        }
        None
    }

    fn hold(&mut self, port: usize, circuit: Circuit) {
        if let Some(port) = self.port_mut(port) {
            port.held.insert(circuit);
        }
    }

    fn free(&mut self, port: usize, circuit: Circuit) {
        if let Some(port) = self.port_mut(port) {
            port.held.remove(&circuit);
        }
    }

    /// Records the circuit of an outgoing call that the other end names.
    #[expect(clippy::indexing_slicing, reason = "a leg is 0 or 1")]
    fn learn(
        &mut self,
        now: Time,
        port: usize,
        id: CallId,
        elements: &Elements,
        table: &mut Table<'_>,
    ) {
        let Some(&(number, leg)) = self.places.get(&(port, id)) else {
            return;
        };
        let known = self
            .calls
            .get(&number)
            .and_then(|call| call.legs[leg].circuit);
        let Some(named) = elements.connection.filter(|_| known.is_none()) else {
            return;
        };
        let circuit = named.circuit().filter(|&it| self.is_free(port, it, table));
        let Some(circuit) = circuit else {
            self.counters.no_circuit += 1;
            self.clear(now, number, Cause::CIRCUIT_NOT_AVAILABLE, table);
            return;
        };
        self.hold(port, circuit);
        if let Some(call) = self.calls.get_mut(&number) {
            call.legs[leg].circuit = Some(circuit);
        }
    }

    /// Handles the called end's answer: the table first, then CONNECT.
    fn connected(
        &mut self,
        now: Time,
        port: usize,
        id: CallId,
        elements: &Elements,
        table: &mut Table<'_>,
    ) {
        // Leg 0: the caller knows now.
        let Some(&(number, 1)) = self.places.get(&(port, id)) else {
            return;
        };
        self.learn(now, port, id, elements, table);
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        let [caller, _] = call.legs;
        let end = |leg: Leg| {
            let Leg { port, circuit, .. } = leg;
            circuit.map(|circuit| End { port, circuit })
        };
        let [Some(near), Some(far)] = call.legs.map(end) else {
            self.clear(now, number, Cause::CIRCUIT_ASSIGNMENT_FAILURE, table);
            return;
        };
        // Released meanwhile, by either end.
        let Some(waiting) = caller.id.filter(|_| !call.entered) else {
            return;
        };
        if !table(Request::Enter([near, far])) {
            self.counters.no_resources += 1;
            self.clear(now, number, Cause::RESOURCES_UNAVAILABLE, table);
            return;
        }
        call.entered = true;
        let connect = Elements {
            connection: None,
            cause: None,
            call_state: None,
            restart: None,
            ..*elements
        };
        let link = self.port_mut(caller.port).map(|it| &mut it.signalling);
        let accepted = link.map(|link| link.accept(now, waiting, &connect));
        if accepted != Some(Ok(())) {
            // It is being released; its events report the rest.
            self.clear(now, number, Cause::NORMAL, table);
            return;
        }
        self.counters.connected += 1;
        self.answered(number);
        if let Some(port) = self.port_mut(port) {
            port.signalling.acknowledge(now, id);
        }
    }

    /// Records that the call no longer waits for an answer.
    fn answered(&mut self, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        let caller = call.legs[0].port;
        if !std::mem::replace(&mut call.answered, true)
            && let Some(port) = self.port_mut(caller)
        {
            port.unanswered = port.unanswered.saturating_sub(1);
        }
    }

    /// Ends both ends of a call.
    fn clear(&mut self, now: Time, number: u64, cause: u8, table: &mut Table<'_>) {
        self.disconnect(number, table);
        for leg in 0..2 {
            self.release_leg(now, number, leg, Cause::new(cause));
        }
    }

    fn disconnect(&mut self, number: u64, table: &mut Table<'_>) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        let end = |leg: Leg| Some(leg.port).zip(leg.circuit);
        if let [Some(near), Some(far)] = call.legs.map(end)
            && std::mem::take(&mut call.entered)
        {
            table(Request::Remove(
                [near, far].map(|(port, circuit)| End { port, circuit }),
            ));
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a leg is 0 or 1")]
    fn release_leg(&mut self, now: Time, number: u64, leg: usize, cause: Cause) {
        let leg = self.calls.get(&number).map(|call| call.legs[leg]);
        if let Some((port, id)) = leg.and_then(|leg| Some((leg.port, leg.id?))) {
            self.release(now, port, id, cause);
        }
    }

    fn release(&mut self, now: Time, port: usize, id: CallId, cause: Cause) {
        if let Some(port) = self.port_mut(port) {
            // An error means that it is being released, or has been.
            let _ = port.signalling.release(now, id, cause);
        }
    }

    /// Records that both ends of a link have released its call.
    #[expect(clippy::indexing_slicing, reason = "a leg is 0 or 1")]
    fn released(
        &mut self,
        now: Time,
        port: usize,
        id: CallId,
        cause: Cause,
        table: &mut Table<'_>,
    ) {
        let Some((number, leg)) = self.places.remove(&(port, id)) else {
            return;
        };
        self.disconnect(number, table);
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        call.legs[leg].id = None;
        let circuit = call.legs[leg].circuit.take();
        let other = call.legs[1 - leg].id;
        if let Some(circuit) = circuit {
            self.free(port, circuit);
        }
        match other {
            Some(_) => self.release_leg(now, number, 1 - leg, cause),
            None => {
                self.answered(number);
                self.calls.remove(&number);
            }
        }
    }
}

/// A party's number, if it is an NSAP.
fn nsap(party: Option<&Party>) -> Option<Nsap> {
    match party?.number {
        Number::Nsap(number) => Some(number),
        Number::E164(_) => None,
    }
}

#[cfg(test)]
mod tests;
