//! Control in the stack itself: signalling on the interface's circuit 0.5, and the calls
//! whose circuits are sockets.
//!
//! Everything happens with the calls locked: what signalling says is done (circuits opened
//! and closed, sockets woken) before its answers leave. Frames are dealt with by the
//! thread that makes a round, timers with those of TCP; where no thread is in the stack the helper
//! thread does both.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use tidewall_atm::signalling::{CallId, Config, Event, RequestError, Signalling};
use tidewall_wire::atm::pseudowire::FrameHeader;
use tidewall_wire::atm::q2931::{Cause, ConnectionIdentifier, Elements};
use tidewall_wire::atm::{Circuit, Nsap};

pub use tidewall_atm::signalling::Side;

use super::call::{Call, CallOptions, Progress};
use super::circuit::{CircuitInner, Place};
use super::elements::{self, Sap};
use super::listener::{Incoming, ListenerInner};
use super::sending::{NEIGHBOUR_LOOK, NEIGHBOUR_TIMEOUT};
use super::{Atm, AtmOptions, errno};
use crate::endpoint::Endpoint;
use crate::lock::lock;
use crate::readiness::Events;
use crate::snapshot::CallSnapshot;
use crate::stack::{Core, Stack};
use crate::tcp::helper::Helper;

/// Bytes of a number before its selector, which name the end system.
const SYSTEM_LEN: usize = 19;

/// How a stack controls the circuits of its interface.
#[derive(Clone, Copy, Debug)]
pub struct AtmControl {
    /// The stack's number. The last byte, the selector, is each listener's own.
    pub number: Nsap,
    /// Which end of the link this is. Of two ends that are linked directly one is the
    /// network's side: only that names circuits, VCIs of VPI 0 from 32 on.
    pub side: Side,
}

/// Signalling of an interface, and its calls.
pub(super) struct Control {
    config: AtmControl,
    signalling: Signalling,
    link: Arc<CircuitInner>,
    timer: u32,
    calls: BTreeMap<CallId, Held>,
    /// Circuits of calls: each until both ends have released it.
    held: BTreeSet<Circuit>,
    /// By the number's bytes.
    listeners: BTreeMap<Nsap, Vec<Arc<ListenerInner>>>,
    /// Where the search for a free VCI goes on: one that was released comes last.
    next_vci: u16,
    /// A PDU that waits for the next hop's link address, since when.
    unsent: Option<(Vec<u8>, Duration)>,
}

/// A call, and who has it.
struct Held {
    circuit: Option<Circuit>,
    holder: Holder,
}

enum Holder {
    Socket(Arc<CircuitInner>),
    /// Nobody has accepted it.
    Listener(Arc<ListenerInner>),
    /// It is closed here, and being released.
    Nobody,
}

/// What frames of circuit 0.5 and the timer come to.
struct ControlEndpoint(u32);

impl Endpoint for ControlEndpoint {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        core.atm.with_control(core, |control| {
            let now = core.now();
            let Control {
                link, signalling, ..
            } = control;
            link.drain_waiting(core, &mut |received| {
                signalling.pdu_received(now, received.payload);
            });
        });
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        core.atm.with_control(core, |control| {
            let now = core.now();
            if control
                .signalling
                .poll_timeout()
                .is_some_and(|at| at <= now)
            {
                control.signalling.handle_timeout(now);
            }
        });
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        self.on_frames(core, 0);
    }
}

impl Stack {
    /// Controls the circuits of the interface in this stack: sockets call and are called
    /// by [`AtmSocket::connect`] and [`AtmListener`]. Signalling runs on circuit 0.5 (UNI
    /// 3.1), which the other end of the link, a stack or a switch, must do as well. The
    /// link is brought up by the first call, of either end.
    ///
    /// # Errors
    /// EADDRINUSE when the interface is controlled already, or circuit 0.5 is open; ENODEV
    /// where it is none of ATM ([`Stack::attach_atm`]); what binding a circuit reports.
    ///
    /// [`AtmSocket::connect`]: super::AtmSocket::connect
    /// [`AtmListener`]: super::AtmListener
    pub fn control_atm(&self, config: AtmControl) -> io::Result<()> {
        let core = self.here()?;
        core.netdev.check()?;
        Helper::start(core)?;
        let mut place = lock(&core.atm.control);
        if place.is_some() {
            return Err(errno(libc::EADDRINUSE));
        }
        let link = core
            .atm
            .open(core, Circuit::SIGNALLING, AtmOptions::default())?;
        let mut timer = 0;
        let endpoint = core.tcp.timers.add(|number| {
            timer = number;
            Arc::new(ControlEndpoint(number))
        });
        debug_assert_eq!(endpoint.0, timer);
        core.channels
            .set_endpoint(link.id().index(), Some(endpoint));
        let mut signalling = Config::new(config.side);
        // Of an earlier life of this end the other may still know; of none it knows 0, which
        // the first BGN must not have.
        signalling.link.first_sequence = (RandomState::new().hash_one(timer) % 255) as u8;
        *place = Some(Control {
            config,
            signalling: Signalling::new(signalling),
            link,
            timer,
            calls: BTreeMap::new(),
            held: BTreeSet::new(),
            listeners: BTreeMap::new(),
            next_vci: Circuit::FIRST_USER_VCI,
            unsent: None,
        });
        Ok(())
    }
}

impl Stack {
    /// True where the stack controls its circuits; in a forked child never.
    pub fn controls_atm(&self) -> bool {
        self.here()
            .is_ok_and(|core| lock(&core.atm.control).is_some())
    }
}

impl Atm {
    /// Does something with the calls, and then what follows from it; nothing without
    /// control.
    fn with_control<V>(&self, core: &Core, what: impl FnOnce(&mut Control) -> V) -> Option<V> {
        let mut control = lock(&self.control);
        let control = control.as_mut()?;
        let value = what(control);
        control.follow(core);
        Some(value)
    }

    fn controlled<V>(
        &self,
        core: &Core,
        what: impl FnOnce(&mut Control) -> io::Result<V>,
    ) -> io::Result<V> {
        let done = self.with_control(core, what);
        done.unwrap_or_else(|| Err(errno(libc::EUNATCH)))
    }

    /// Calls somebody.
    pub(super) fn call(
        &self,
        core: &Core,
        to: &Sap,
        options: &CallOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        self.controlled(core, |control| control.call(core, to, options))
    }

    /// Has a listener called.
    pub(super) fn listen(&self, listener: &Arc<ListenerInner>) -> io::Result<()> {
        let mut control = lock(&self.control);
        let control = control.as_mut().ok_or_else(|| errno(libc::EUNATCH))?;
        let number = listener.sap.number;
        if !control.is_own(&number) {
            return Err(errno(libc::EADDRNOTAVAIL));
        }
        let others = control.listeners.entry(number).or_default();
        if others.iter().any(|other| other.sap == listener.sap) {
            return Err(errno(libc::EADDRINUSE));
        }
        others.push(listener.clone());
        Ok(())
    }

    /// Has a listener called no more: who waits to be accepted is refused.
    pub(super) fn unlisten(&self, core: &Core, listener: &Arc<ListenerInner>) {
        self.with_control(core, |control| {
            let number = listener.sap.number;
            if let Some(others) = control.listeners.get_mut(&number) {
                others.retain(|other| !Arc::ptr_eq(other, listener));
                if others.is_empty() {
                    control.listeners.remove(&number);
                }
            }
            let waiting = std::mem::take(&mut *lock(&listener.waiting));
            for incoming in waiting {
                control.let_go(core, incoming.id, Cause::CALL_REJECTED);
            }
        });
    }

    /// Takes the call that has waited longest, if one does.
    pub(super) fn accept(
        &self,
        core: &Core,
        listener: &Arc<ListenerInner>,
    ) -> io::Result<Option<Arc<CircuitInner>>> {
        self.controlled(core, |control| {
            let incoming = lock(&listener.waiting).pop_front();
            let Some(incoming) = incoming else {
                return Ok(None);
            };
            let id = incoming.id;
            let accepted = control.accept(core, listener, incoming);
            if accepted.is_err() {
                control.let_go(core, id, Cause::RESOURCES_UNAVAILABLE);
            }
            accepted.map(Some)
        })
    }

    /// The socket of a call is closed.
    pub(super) fn hang_up(&self, core: &Core, inner: &CircuitInner) {
        let Some(&id) = inner.call.as_ref().and_then(|call| call.id.get()) else {
            return;
        };
        self.with_control(core, |control| {
            // Of a call that has ended the reference may be another's.
            let own = control.calls.get(&id).is_some_and(
                |held| matches!(&held.holder, Holder::Socket(it) if ptr::eq(&**it, inner)),
            );
            if own {
                control.let_go(core, id, Cause::NORMAL);
            }
        });
    }

    /// True for a circuit that a call has, or has not been released by both ends.
    pub(super) fn is_held(&self, circuit: Circuit) -> bool {
        let control = lock(&self.control);
        (control.as_ref()).is_some_and(|control| control.held.contains(&circuit))
    }

    /// The interface is no more.
    pub(crate) fn fail_calls(&self, error: i32) {
        let control = lock(&self.control);
        let Some(control) = control.as_ref() else {
            return;
        };
        for held in control.calls.values() {
            if let Holder::Socket(inner) = &held.holder {
                inner.fail(error);
            }
        }
        for listener in control.listeners.values().flatten() {
            listener.fail(error);
        }
    }

    /// All calls.
    pub(crate) fn calls(&self) -> Vec<CallSnapshot> {
        let control = lock(&self.control);
        let Some(control) = control.as_ref() else {
            return Vec::new();
        };
        let calls = control.calls.iter();
        calls.map(|(&id, held)| control.view(id, held)).collect()
    }
}

impl Control {
    fn view(&self, id: CallId, held: &Held) -> CallSnapshot {
        let phase = self.signalling.phase(id);
        let side = match self.config.side {
            Side::User => 'U',
            Side::Network => 'N',
        };
        let (holder, local, peer) = match &held.holder {
            Holder::Socket(inner) => {
                let call = inner.call.as_ref();
                ("socket", call.map(|it| it.local), inner.peer())
            }
            Holder::Listener(listener) => ("waiting", Some(listener.sap.number), None),
            Holder::Nobody => ("releasing", None, None),
        };
        CallSnapshot {
            ours: id.ours,
            reference: id.value,
            circuit: held.circuit.map(|it| it.to_string()),
            state: format!(
                "{side}{}",
                phase.map_or(0, |it| it.number(self.config.side))
            ),
            held: holder.to_owned(),
            local: local.map(|it| it.to_string()),
            peer: peer.map(|it| it.to_string()),
        }
    }

    fn is_own(&self, number: &Nsap) -> bool {
        number.0.get(..SYSTEM_LEN) == self.config.number.0.get(..SYSTEM_LEN)
    }

    /// A place that no circuit has, the longest unused first.
    fn allot(&mut self, core: &Core) -> Option<Place> {
        let first = Circuit::FIRST_USER_VCI;
        let open = lock(&core.atm.circuits);
        for _ in first..=u16::MAX {
            let vci = self.next_vci;
            self.next_vci = vci.checked_add(1).unwrap_or(first);
            let circuit = Circuit { vpi: 0, vci };
            if !self.held.contains(&circuit) && !open.contains_key(&circuit) {
                return Place::new(circuit);
            }
        }
        None
    }

    /// The place that the other side names, where nothing here has it.
    fn named(&self, core: &Core, elements: &Elements) -> Option<Place> {
        let circuit = elements.connection?.circuit()?;
        let free = circuit.vci >= Circuit::FIRST_USER_VCI
            && !self.held.contains(&circuit)
            && !lock(&core.atm.circuits).contains_key(&circuit);
        Place::new(circuit).filter(|_| free)
    }

    fn call(
        &mut self,
        core: &Core,
        to: &Sap,
        options: &CallOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        let from = options.from.unwrap_or(self.config.number);
        let call = Call::new(from, Some(to.number), Progress::Connecting);
        let place = match self.config.side {
            Side::Network => Some(self.allot(core).ok_or_else(|| errno(libc::EHOSTUNREACH))?),
            Side::User => None,
        };
        let inner = core.atm.open_call(core, place, options.circuit, call)?;
        let connection = place.map(|it| ConnectionIdentifier::exclusive(it.circuit));
        let setup = elements::setup(to, from, &options.circuit, connection);
        match self.signalling.setup(core.now(), setup) {
            Ok(id) => {
                self.enter(id, place, Holder::Socket(inner.clone()));
                if let Some(call) = &inner.call {
                    let _ = call.id.set(id);
                }
                Ok(inner)
            }
            Err(RequestError::Busy | RequestError::TooMany | RequestError::State) => {
                core.atm.close(core, &inner);
                Err(errno(libc::ENOBUFS))
            }
            Err(RequestError::NoCall) => {
                core.atm.close(core, &inner);
                Err(errno(libc::EINVAL))
            }
        }
    }

    fn enter(&mut self, id: CallId, place: Option<Place>, holder: Holder) {
        let circuit = place.map(|place| place.circuit);
        self.held.extend(circuit);
        self.calls.insert(id, Held { circuit, holder });
    }

    fn accept(
        &mut self,
        core: &Core,
        listener: &ListenerInner,
        incoming: Incoming,
    ) -> io::Result<Arc<CircuitInner>> {
        let Incoming {
            id,
            place,
            elements,
        } = incoming;
        let (agreed, connect) = elements::answer(&elements, &listener.options);
        let peer = elements::nsap(elements.calling.as_ref());
        let call = Call::new(listener.sap.number, peer, Progress::Accepted);
        let inner = core.atm.open_call(core, Some(place), agreed, call)?;
        if self.signalling.accept(core.now(), id, &connect).is_err() {
            core.atm.close(core, &inner);
            return Err(errno(libc::ECONNABORTED));
        }
        if let Some(call) = &inner.call {
            let _ = call.id.set(id);
        }
        if let Some(held) = self.calls.get_mut(&id) {
            held.holder = Holder::Socket(inner.clone());
        }
        Ok(inner)
    }

    /// Nobody here has the call any more: it is released, unless that is under way.
    fn let_go(&mut self, core: &Core, id: CallId, cause: u8) {
        let Some(held) = self.calls.get_mut(&id) else {
            return;
        };
        if let Holder::Socket(inner) = std::mem::replace(&mut held.holder, Holder::Nobody) {
            let _binding = lock(&core.binding);
            inner.close_place(core);
        }
        // An error says that it is being released.
        let _ = self.signalling.release(core.now(), id, Cause::new(cause));
    }

    /// What follows from what signalling was given: events for sockets, PDUs, the next time.
    fn follow(&mut self, core: &Core) {
        while let Some(event) = self.signalling.poll_event() {
            self.happened(core, event);
        }
        let now = core.now();
        self.transmit(core, now);
        let look = self.unsent.as_ref().map(|_| now + NEIGHBOUR_LOOK);
        let due = self.signalling.poll_timeout().into_iter().chain(look).min();
        match due {
            Some(due) => core.tcp.arm(self.timer, due),
            None => core.tcp.timers.disarm(self.timer),
        }
    }

    fn happened(&mut self, core: &Core, event: Event) {
        match event {
            Event::Setup(id, elements) => {
                if let Err(cause) = self.called(core, id, elements) {
                    let _ = (self.signalling).release(core.now(), id, Cause::new(cause));
                }
            }
            Event::Proceeding(id, elements) => {
                self.learn(core, id, &elements);
            }
            Event::Connected(id, elements) => self.connected(core, id, &elements),
            Event::Releasing(id, cause) => {
                self.ended(core, id, cause);
                let _ = self.signalling.release(core.now(), id, cause);
            }
            Event::Released(id, cause) => {
                self.ended(core, id, cause);
                if let Some(held) = self.calls.remove(&id) {
                    held.circuit.map(|circuit| self.held.remove(&circuit));
                }
            }
            // Their calls' events say the rest.
            Event::LinkUp | Event::LinkDown | Event::Restarted(..) | Event::RestartDone(_) => {}
        }
    }

    /// Somebody calls.
    ///
    /// # Errors
    /// The cause to refuse it with.
    fn called(&mut self, core: &Core, id: CallId, elements: Box<Elements>) -> Result<(), u8> {
        let called = Sap::called(&elements).filter(|called| self.is_own(&called.number));
        let called = called.ok_or(Cause::UNALLOCATED_NUMBER)?;
        let listeners = self.listeners.get(&called.number).into_iter().flatten();
        let listener = listeners
            .filter(|listener| listener.sap.takes(&called))
            .max_by_key(|listener| listener.sap.said())
            .cloned()
            .ok_or(Cause::INCOMPATIBLE_DESTINATION)?;
        elements::unsupported(&elements, &listener.options).map_or(Ok(()), Err)?;
        if lock(&listener.waiting).len() >= listener.backlog {
            return Err(Cause::USER_BUSY);
        }
        let (place, named) = match self.config.side {
            Side::Network => {
                let place = self.allot(core).ok_or(Cause::NO_CIRCUIT_AVAILABLE)?;
                let named = ConnectionIdentifier::exclusive(place.circuit);
                (place, Some(named))
            }
            Side::User => {
                let place = self.named(core, &elements);
                (place.ok_or(Cause::CIRCUIT_NOT_AVAILABLE)?, None)
            }
        };
        self.enter(id, Some(place), Holder::Listener(listener.clone()));
        // Or the caller would ask once more after T303, when a listener accepts late.
        let _ = self.signalling.proceeding(core.now(), id, named);
        lock(&listener.waiting).push_back(Incoming {
            id,
            place,
            elements,
        });
        listener.wait_queue.notify_one(Events::DATA_CAME);
        Ok(())
    }

    /// Opens the circuit that the network names. False where that cannot be: the call is
    /// released.
    fn learn(&mut self, core: &Core, id: CallId, elements: &Elements) -> bool {
        let Some(Held {
            circuit,
            holder: Holder::Socket(inner),
        }) = self.calls.get(&id)
        else {
            return true;
        };
        if circuit.is_some() || elements.connection.is_none() {
            return true;
        }
        let inner = inner.clone();
        let place = self.named(core, elements);
        let opened = place.filter(|&place| {
            let _binding = lock(&core.binding);
            inner.open_place(core, place).is_ok()
        });
        if let (Some(Place { circuit, .. }), Some(held)) = (opened, self.calls.get_mut(&id)) {
            held.circuit = Some(circuit);
            self.held.insert(circuit);
            return true;
        }
        let cause = Cause::new(Cause::CIRCUIT_NOT_AVAILABLE);
        self.ended(core, id, cause);
        let _ = self.signalling.release(core.now(), id, cause);
        false
    }

    fn connected(&mut self, core: &Core, id: CallId, elements: &Elements) {
        if !self.learn(core, id, elements) {
            return;
        }
        let Some(held) = self.calls.get(&id) else {
            return;
        };
        let Holder::Socket(inner) = &held.holder else {
            return;
        };
        if held.circuit.is_none() {
            let cause = Cause::new(Cause::CIRCUIT_ASSIGNMENT_FAILURE);
            self.ended(core, id, cause);
            let _ = self.signalling.release(core.now(), id, cause);
            return;
        }
        if id.ours {
            let agreed = elements::agreed_send(elements, inner.options.send_max);
            inner.set_send_max(agreed);
        }
        inner.advance(Progress::Connected, 0);
    }

    /// A call has ended: its socket learns why, and its circuit is closed here. What came
    /// on it can be received still.
    fn ended(&mut self, core: &Core, id: CallId, cause: Cause) {
        let Some(held) = self.calls.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut held.holder, Holder::Nobody) {
            Holder::Socket(inner) => {
                // Parts of PDUs are put together while the circuit is known.
                inner.keep_waiting(core);
                let binding = lock(&core.binding);
                inner.close_place(core);
                drop(binding);
                let error = match inner.progress() {
                    Progress::Connecting => elements::refusal(cause),
                    _ => elements::ending(cause),
                };
                inner.advance(Progress::Ended, error);
            }
            Holder::Listener(listener) => lock(&listener.waiting).retain(|it| it.id != id),
            Holder::Nobody => {}
        }
    }

    /// Sends what signalling has to say. While the next hop's link address is looked for,
    /// it waits; what has waited for longer than that takes is repeated by SSCOP.
    fn transmit(&mut self, core: &Core, now: Duration) {
        let mut sent = false;
        loop {
            let next = self.unsent.take();
            let next = next.or_else(|| Some((self.signalling.poll_transmit(now)?, now)));
            let Some((pdu, since)) = next else { break };
            match self.link.send_pdu(core, &pdu) {
                Ok(()) => sent = true,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if now.saturating_sub(since) < NEIGHBOUR_TIMEOUT {
                        self.unsent = Some((pdu, since));
                        break;
                    }
                }
                // As good as lost on the way.
                Err(_) => {}
            }
        }
        if sent {
            let _ = self.link.flush(core);
        }
    }
}

impl CircuitInner {
    fn send_pdu(&self, core: &Core, pdu: &[u8]) -> io::Result<()> {
        let neighbour = core.atm.neighbour(core)?;
        self.transmit(core, |transmitter, label| {
            transmitter.queue_pdu(neighbour, &FrameHeader::whole(label), pdu)
        })
    }

    fn set_send_max(&self, bytes: usize) {
        self.send_max
            .store(bytes, std::sync::atomic::Ordering::Relaxed);
    }
}
