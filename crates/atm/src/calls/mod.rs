//! The calls of applications over one [`Signalling`]: listeners, callers, and the circuit
//! of each call.
//!
//! ```text
//! listen, call, take, answer, release ─► Calls ─► Signalling ─► poll_transmit
//! pdu_received ─► Signalling ─► Calls ─► poll_notice
//! ```
//!
//! The controller of circuits has one for each link: a stack that controls its own, or a
//! manager for its applications. Its owner opens the circuits. It acts on each notice
//! before it asks for the next, and before the resulting signalling messages leave.

mod elements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidewall_wire::atm::aal5::PAYLOAD_MAX;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::atm::q2931::{Cause, ConnectionIdentifier, Elements};
use tidewall_wire::atm::{Circuit, Nsap};

use crate::rate::RATE_MAX;
use crate::reassembly::Time;
use crate::signalling::{self, CallId, Event, Phase, RequestError, Side, Signalling};

pub use elements::Sap;

/// Bytes of a number before its selector, which identify the end system.
const SYSTEM_LEN: usize = 19;

/// The traffic of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitOptions {
    /// Bytes of the longest payload sent, 0 to 65,535 (`max_sdu` in Linux's
    /// `atm_trafprm`). By default 9,180, the MTU of IP over ATM (RFC 2225 §7).
    pub send_max: usize,
    /// Bytes of the longest payload received, 1 to 65,535; by default the same. Payloads
    /// with more cells than that are refused.
    pub receive_max: usize,
    /// Constant rates (CBR) in cells of 48 bytes per second, 1 to 16,777,215. By default
    /// none: sending is unlimited (UBR). With rates, sending waits for the time that
    /// earlier cells take at the sending rate. A call is set up with both. A listener's
    /// rates are the maximum of such a call; a listener without rates accepts none.
    pub rates: Option<Rates>,
}

/// The rates of a constant-rate circuit, in cells per second, 1 to 16,777,215.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Sending rate.
    pub send: u32,
    /// Receiving rate.
    pub receive: u32,
}

impl Default for CircuitOptions {
    fn default() -> Self {
        CircuitOptions {
            send_max: 9180,
            receive_max: 9180,
            rates: None,
        }
    }
}

impl CircuitOptions {
    /// True for values that a circuit can carry.
    #[must_use]
    pub fn is_in_range(&self) -> bool {
        let rated = |rates: Rates| {
            [rates.send, rates.receive]
                .iter()
                .all(|rate| (1..=RATE_MAX).contains(rate))
        };
        self.send_max <= PAYLOAD_MAX
            && (1..=PAYLOAD_MAX).contains(&self.receive_max)
            && self.rates.is_none_or(rated)
    }
}

/// Names a listener; chosen by its owner.
pub type ListenerId = u64;

/// A notice to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A call waits for this listener: [`Calls::waiting`], [`Calls::take`].
    Incoming(ListenerId, CallId),
    /// A call that waited for it was withdrawn.
    Withdrawn(ListenerId, CallId),
    /// An outgoing call is answered, and this circuit of it must be opened.
    Circuit(CallId, Circuit),
    /// Payloads flow both ways; for an outgoing call, with the longest that the called
    /// end accepts.
    Connected(CallId, usize),
    /// The call is released, and its circuit must be closed.
    Ended(CallId, Cause),
}

/// The reason why a listener is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// The number belongs to another system (EADDRNOTAVAIL).
    NotOwn,
    /// Another listens there for the same (EADDRINUSE).
    InUse,
}

/// The reason why a call is not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No circuit is free (EHOSTUNREACH).
    NoCircuit,
    /// The maximum number of calls is reached, or the signalling link accepts no more now
    /// (ENOBUFS).
    Busy,
}

/// A call that waits for a listener, or is about to be accepted.
#[derive(Debug)]
pub struct Taken {
    /// The call.
    pub id: CallId,
    /// Its circuit.
    pub circuit: Circuit,
    /// The circuit's traffic, as agreed by both ends.
    pub agreed: CircuitOptions,
    /// The called number.
    pub local: Nsap,
    /// The caller's number, if present.
    pub peer: Option<Nsap>,
    connect: Box<Elements>,
}

/// A call, for display.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its reference.
    pub id: CallId,
    /// Its circuit, once it has one.
    pub circuit: Option<Circuit>,
    /// Its phase; `None` for one that has ended.
    pub phase: Option<Phase>,
    /// The number of the listener that it waits for.
    pub waits_for: Option<Nsap>,
    /// False once it has no owner here, and is being released.
    pub held: bool,
}

/// A call, and its owner.
#[derive(Debug)]
struct Held {
    circuit: Option<Circuit>,
    holder: Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// The caller, or the process that accepted it.
    Owner,
    /// Not accepted yet.
    Listener(ListenerId),
    /// It is closed here, and being released.
    Nobody,
}

#[derive(Debug)]
struct Listener {
    sap: Sap,
    options: CircuitOptions,
    backlog: usize,
    waiting: VecDeque<(CallId, Box<Elements>)>,
}

/// The calls of a link.
#[derive(Debug)]
pub struct Calls {
    number: Nsap,
    side: Side,
    signalling: Signalling,
    calls: BTreeMap<CallId, Held>,
    /// Circuits of calls, each until both ends have released it.
    held: BTreeSet<Circuit>,
    listeners: BTreeMap<ListenerId, Listener>,
    by_number: BTreeMap<Nsap, Vec<ListenerId>>,
    /// Start of the next search for a free VCI: the most recently released comes last.
    next_vci: u16,
    /// Further notices caused by the last event.
    notices: VecDeque<Notice>,
}

/// True if a circuit is open, as a permanent one.
pub type IsOpen<'a> = &'a dyn Fn(Circuit) -> bool;

impl Calls {
    /// Starts without calls and listeners. `number`: the system's; each listener chooses
    /// its last byte. If two ends are linked directly, one is the network's side. That
    /// side assigns circuits, VCIs of VPI 0 from 32 on.
    #[must_use]
    pub fn new(number: Nsap, config: signalling::Config) -> Self {
        Calls {
            number,
            side: config.side,
            // The other end may still have circuits of an earlier life of this end.
            next_vci: Circuit::FIRST_USER_VCI + (config.first_reference % 0x8000) as u16,
            signalling: Signalling::new(config),
            calls: BTreeMap::new(),
            held: BTreeSet::new(),
            listeners: BTreeMap::new(),
            by_number: BTreeMap::new(),
            notices: VecDeque::new(),
        }
    }

    /// The system's number.
    #[must_use]
    pub const fn number(&self) -> Nsap {
        self.number
    }

    /// Which end of the link this is.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// The link's signalling, which takes received PDUs and timeouts, and returns PDUs to
    /// send.
    pub fn signalling(&mut self) -> &mut Signalling {
        &mut self.signalling
    }

    /// Time at which signalling has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.signalling.poll_timeout()
    }

    /// True for a number of this system.
    #[must_use]
    pub fn is_own(&self, number: &Nsap) -> bool {
        number.0.get(..SYSTEM_LEN) == self.number.0.get(..SYSTEM_LEN)
    }

    /// True for a circuit that a call has, or that both ends have not released yet.
    #[must_use]
    pub fn is_held(&self, circuit: Circuit) -> bool {
        self.held.contains(&circuit)
    }

    /// Number of circuits of calls.
    #[must_use]
    pub fn circuits(&self) -> usize {
        self.held.len()
    }

    /// All calls.
    pub fn views(&self) -> impl Iterator<Item = View> {
        self.calls.iter().map(|(&id, held)| View {
            id,
            circuit: held.circuit,
            phase: self.signalling.phase(id),
            waits_for: match held.holder {
                Holder::Listener(listener) => self.listeners.get(&listener).map(|it| it.sap.number),
                _ => None,
            },
            held: held.holder != Holder::Nobody,
        })
    }

    /// Registers a listener; up to `backlog` calls wait for it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(
        &mut self,
        id: ListenerId,
        sap: Sap,
        options: CircuitOptions,
        backlog: usize,
    ) -> Result<(), ListenError> {
        if !self.is_own(&sap.number) {
            return Err(ListenError::NotOwn);
        }
        let others = self.by_number.entry(sap.number).or_default();
        let same = |other| self.listeners.get(other).is_some_and(|it| it.sap == sap);
        if others.iter().any(same) || self.listeners.contains_key(&id) {
            return Err(ListenError::InUse);
        }
        others.push(id);
        let waiting = VecDeque::new();
        let listener = Listener {
            sap,
            options,
            backlog,
            waiting,
        };
        self.listeners.insert(id, listener);
        Ok(())
    }

    /// Removes a listener; rejects the calls that wait for it.
    pub fn unlisten(&mut self, now: Time, id: ListenerId) {
        let Some(listener) = self.listeners.remove(&id) else {
            return;
        };
        if let Some(others) = self.by_number.get_mut(&listener.sap.number) {
            others.retain(|other| *other != id);
            if others.is_empty() {
                self.by_number.remove(&listener.sap.number);
            }
        }
        for (call, _) in listener.waiting {
            self.release(now, call, Cause::CALL_REJECTED);
        }
    }

    /// Places a call; [`Notice::Circuit`] reports its circuit.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(
        &mut self,
        now: Time,
        to: &Sap,
        from: Nsap,
        options: &CircuitOptions,
        is_open: IsOpen<'_>,
    ) -> Result<CallId, CallError> {
        let circuit = match self.side {
            Side::Network => Some(self.allot(is_open).ok_or(CallError::NoCircuit)?),
            Side::User => None,
        };
        let connection = circuit.map(ConnectionIdentifier::exclusive);
        let setup = elements::setup(to, from, options, connection);
        // The only possible error of a SETUP is that there is no room.
        let id = (self.signalling.setup(now, setup)).map_err(|_: RequestError| CallError::Busy)?;
        self.enter(id, circuit, Holder::Owner);
        Ok(id)
    }

    /// A call that waits for a listener, as [`Calls::take`] would return it.
    #[must_use]
    pub fn waiting(&self, listener: ListenerId, id: CallId) -> Option<Taken> {
        let listener = self.listeners.get(&listener)?;
        let (_, elements) = listener.waiting.iter().find(|(waits, _)| *waits == id)?;
        let (agreed, connect) = elements::answer(elements, &listener.options);
        Some(Taken {
            id,
            circuit: self.calls.get(&id)?.circuit?,
            agreed,
            local: listener.sap.number,
            peer: elements::nsap(elements.calling.as_ref()),
            connect: Box::new(connect),
        })
    }

    /// Takes a call that waits for a listener. Its circuit must then be opened, and the
    /// call answered, or released.
    pub fn take(&mut self, listener: ListenerId, id: CallId) -> Option<Taken> {
        let taken = self.waiting(listener, id)?;
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.waiting.retain(|(waits, _)| *waits != id);
        }
        if let Some(held) = self.calls.get_mut(&id) {
            held.holder = Holder::Owner;
        }
        Some(taken)
    }

    /// As [`Calls::take`], for the call that has waited longest, if there is one.
    pub fn take_next(&mut self, listener: ListenerId) -> Option<Taken> {
        let (id, _) = self.listeners.get(&listener)?.waiting.front()?;
        self.take(listener, *id)
    }

    /// Reports that the circuit of a connected call is open: the other end may send on
    /// it.
    pub fn acknowledge(&mut self, now: Time, id: CallId) {
        self.signalling.acknowledge(now, id);
    }

    /// Answers a call that was taken. False if it has ended.
    pub fn answer(&mut self, now: Time, taken: &Taken) -> bool {
        (self.signalling.accept(now, taken.id, &taken.connect)).is_ok()
    }

    /// Releases a call that has no owner here any more, unless that is already in
    /// progress.
    pub fn release(&mut self, now: Time, id: CallId, cause: u8) {
        let Some(held) = self.calls.get_mut(&id) else {
            return;
        };
        held.holder = Holder::Nobody;
        self.notices.retain(|notice| {
            !matches!(notice, Notice::Circuit(of, _) | Notice::Connected(of, _) if *of == id)
        });
        // An error means that it is already being released.
        let _ = self.signalling.release(now, id, Cause::new(cause));
    }

    /// Takes over a call that was active in an earlier life of this end. Once the link is
    /// up, the other end is asked whether it still has the call. False if the call, or
    /// its circuit, is another's.
    pub fn restore(&mut self, id: CallId, circuit: Option<Circuit>) -> bool {
        if circuit.is_some_and(|circuit| self.held.contains(&circuit)) {
            return false;
        }
        let connection = circuit.map(ConnectionIdentifier::exclusive);
        let restored = self.signalling.restore(id, connection).is_ok();
        if restored {
            self.enter(id, circuit, Holder::Owner);
        }
        restored
    }

    /// The next notice. The owner acts on it before it calls this again.
    pub fn poll_notice(&mut self, now: Time, is_open: IsOpen<'_>) -> Option<Notice> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Some(notice);
            }
            let event = self.signalling.poll_event()?;
            self.happened(now, event, is_open);
        }
    }

    fn enter(&mut self, id: CallId, circuit: Option<Circuit>, holder: Holder) {
        self.held.extend(circuit);
        self.calls.insert(id, Held { circuit, holder });
    }

    /// A free circuit, longest unused first.
    fn allot(&mut self, is_open: IsOpen<'_>) -> Option<Circuit> {
        let first = Circuit::FIRST_USER_VCI;
        for _ in first..=u16::MAX {
            let vci = self.next_vci;
            self.next_vci = vci.checked_add(1).unwrap_or(first);
            let circuit = Circuit { vpi: 0, vci };
            if !self.held.contains(&circuit) && !is_open(circuit) {
                return Some(circuit);
            }
        }
        None
    }

    /// The circuit that the other side names, if it is free here.
    fn named(&self, elements: &Elements, is_open: IsOpen<'_>) -> Option<Circuit> {
        let circuit = elements.connection?.circuit()?;
        let free = circuit.vci >= Circuit::FIRST_USER_VCI
            && Label::of_circuit(circuit).is_some()
            && !self.held.contains(&circuit)
            && !is_open(circuit);
        free.then_some(circuit)
    }

    fn happened(&mut self, now: Time, event: Event, is_open: IsOpen<'_>) {
        match event {
            Event::Setup(id, elements) => {
                if let Err(cause) = self.called(now, id, elements, is_open) {
                    let _ = self.signalling.release(now, id, Cause::new(cause));
                }
            }
            Event::Proceeding(id, elements) => {
                self.learn(now, id, &elements, is_open);
            }
            Event::Connected(id, elements) => self.connected(now, id, &elements, is_open),
            Event::Releasing(id, cause) => {
                self.ended(id, cause);
                // Sent once the owner has acted on that.
                let _ = self.signalling.release(now, id, cause);
            }
            Event::CircuitRefused(id) => {
                if !self.renamed(now, id, is_open) {
                    self.fail(now, id, Cause::NO_CIRCUIT_AVAILABLE);
                }
            }
            Event::Released(id, cause) => {
                self.ended(id, cause);
                if let Some(circuit) = self.calls.remove(&id).and_then(|held| held.circuit) {
                    self.held.remove(&circuit);
                }
            }
            // Events of their calls report the rest.
            Event::LinkUp | Event::LinkDown | Event::Restarted(..) | Event::RestartDone(_) => {}
        }
    }

    /// Handles an incoming call.
    ///
    /// # Errors
    /// The cause of the rejection.
    fn called(
        &mut self,
        now: Time,
        id: CallId,
        elements: Box<Elements>,
        is_open: IsOpen<'_>,
    ) -> Result<(), u8> {
        let called = Sap::called(&elements).filter(|called| self.is_own(&called.number));
        let called = called.ok_or(Cause::UNALLOCATED_NUMBER)?;
        let by_number = self.by_number.get(&called.number).into_iter().flatten();
        let (listener, found) = by_number
            .filter_map(|id| Some((*id, self.listeners.get(id)?)))
            .filter(|(_, it)| it.sap.takes(&called))
            .max_by_key(|(_, it)| it.sap.said())
            .ok_or(Cause::INCOMPATIBLE_DESTINATION)?;
        elements::unsupported(&elements, &found.options).map_or(Ok(()), Err)?;
        if found.waiting.len() >= found.backlog {
            return Err(Cause::USER_BUSY);
        }
        let (circuit, named) = match self.side {
            Side::Network => {
                let circuit = self.allot(is_open).ok_or(Cause::NO_CIRCUIT_AVAILABLE)?;
                (circuit, Some(ConnectionIdentifier::exclusive(circuit)))
            }
            Side::User => {
                let circuit = self.named(&elements, is_open);
                (circuit.ok_or(Cause::CIRCUIT_NOT_AVAILABLE)?, None)
            }
        };
        self.enter(id, Some(circuit), Holder::Listener(listener));
        // Otherwise the caller would repeat the SETUP after T303, when a listener accepts
        // late.
        let _ = self.signalling.proceed(now, id, named);
        if let Some(found) = self.listeners.get_mut(&listener) {
            found.waiting.push_back((id, elements));
        }
        self.notices.push_back(Notice::Incoming(listener, id));
        Ok(())
    }

    /// Calls with another circuit, after the other end has refused the first.
    fn renamed(&mut self, now: Time, id: CallId, is_open: IsOpen<'_>) -> bool {
        let next = self.allot(is_open);
        let (Some(next), Some(held)) = (next, self.calls.get_mut(&id)) else {
            return false;
        };
        if let Some(before) = held.circuit.replace(next) {
            self.held.remove(&before);
        }
        self.held.insert(next);
        let named = ConnectionIdentifier::exclusive(next);
        self.signalling.setup_again(now, id, named).is_ok()
    }

    /// Records the circuit that the network names. False if that is impossible: the call
    /// is released.
    fn learn(&mut self, now: Time, id: CallId, elements: &Elements, is_open: IsOpen<'_>) -> bool {
        let wants = |held: &Held| held.circuit.is_none() && held.holder == Holder::Owner;
        if !self.calls.get(&id).is_some_and(wants) || elements.connection.is_none() {
            return true;
        }
        match self.named(elements, is_open) {
            Some(circuit) => {
                if let Some(held) = self.calls.get_mut(&id) {
                    held.circuit = Some(circuit);
                }
                self.held.insert(circuit);
                true
            }
            None => {
                self.fail(now, id, Cause::CIRCUIT_NOT_AVAILABLE);
                false
            }
        }
    }

    fn connected(&mut self, now: Time, id: CallId, elements: &Elements, is_open: IsOpen<'_>) {
        if !self.learn(now, id, elements, is_open) {
            return;
        }
        match self.calls.get(&id) {
            Some(held) if held.holder == Holder::Owner => {
                let Some(circuit) = held.circuit else {
                    return self.fail(now, id, Cause::CIRCUIT_ASSIGNMENT_FAILURE);
                };
                if id.ours {
                    self.notices.push_back(Notice::Circuit(id, circuit));
                }
                let [forward, _] = elements::longest(elements);
                self.notices.push_back(Notice::Connected(id, forward));
            }
            _ => {}
        }
    }

    /// Ends a call from here.
    fn fail(&mut self, now: Time, id: CallId, cause: u8) {
        let cause = Cause::new(cause);
        self.ended(id, cause);
        let _ = self.signalling.release(now, id, cause);
    }

    /// Records that a call has ended, and notifies its owner of the cause.
    fn ended(&mut self, id: CallId, cause: Cause) {
        let Some(held) = self.calls.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut held.holder, Holder::Nobody) {
            Holder::Owner => self.notices.push_back(Notice::Ended(id, cause)),
            Holder::Listener(listener) => {
                if let Some(found) = self.listeners.get_mut(&listener) {
                    found.waiting.retain(|(waits, _)| *waits != id);
                    self.notices.push_back(Notice::Withdrawn(listener, id));
                }
            }
            Holder::Nobody => {}
        }
    }
}
