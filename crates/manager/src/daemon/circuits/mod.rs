//! Circuits of applications: the owner of each label, and the calls that assign labels.
//!
//! A part of [`super::Manager`], without I/O, as that is. Requests, PDUs of the
//! signalling link and a time go in; answers, notices and PDUs come out. Two more engines
//! are the two ends of calls between applications of this manager, whose PDUs do not
//! leave it.

mod link;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidewall_atm::calls::{Calls, ListenerId, Notice};
use tidewall_atm::signalling::{CallId, Config};
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::atm::q2931::Cause;
use tidewall_wire::atm::{Circuit, Nsap};

use super::{Device, ForeignFd, PRESENT_WITHIN};
use crate::protocol::{
    Answer, AtmAttached, AtmCarried, AtmCircuit, AtmConnected, AtmEnded, AtmIncoming, AtmReference,
    AtmWithdrawn, CircuitNumber, address_bytes,
};

pub use link::SignallingLink;
pub use tidewall_atm::signalling::Side;

/// SETUPs that the neighbour may send per second: some times as many as calls that are
/// answered.
const SETUPS: u32 = 20_000;

/// An interface of ATM.
#[derive(Clone, Debug)]
pub struct AtmConfig {
    /// The neighbour that circuits lead to.
    pub next_hop: IpAddr,
    /// The system's number. Each listener has its own last byte, the selector.
    pub number: Nsap,
    /// Which end of the link this is.
    pub side: Side,
    /// Permanent circuits that applications may open.
    pub permanent: Vec<Permanent>,
}

/// Permanent circuits, and their permitted user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permanent {
    /// Their path.
    pub vpi: u16,
    /// Their channels.
    pub vcis: RangeInclusive<u16>,
    /// User id; `None`: every user that may join.
    pub user: Option<u32>,
}

/// An unsolicited notice to an application.
#[derive(Debug)]
pub struct CallNotice {
    /// The application that is notified.
    pub application: u16,
    /// The notice.
    pub answer: Answer,
    /// The descriptor that goes beside it.
    pub beside: Option<ForeignFd>,
}

/// The group of calls that an application's call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Way {
    /// A call over the link.
    Link,
    /// Local, on the calling side.
    Caller,
    /// Local, on the called side.
    Called,
}

/// A call of an application.
#[derive(Clone, Copy, Debug)]
struct Line {
    way: Way,
    id: CallId,
    /// The circuit whose label it has; `None` for a local one.
    circuit: Option<Circuit>,
}

/// State of an attached application.
#[derive(Debug, Default)]
struct Attached {
    /// Calls by the application's own numbers.
    calls: HashMap<u32, Line>,
    listeners: BTreeSet<u32>,
    permanent: BTreeSet<Circuit>,
}

/// The circuits of a device.
#[derive(Debug, Default)]
pub(super) struct Circuits {
    /// The application that owns each label in the trusted table.
    owners: BTreeMap<Circuit, u16>,
    control: Option<Box<Control>>,
}

#[derive(Debug)]
struct Control {
    config: AtmConfig,
    link: Calls,
    caller: Calls,
    called: Calls,
    applications: BTreeMap<u16, Attached>,
    lines: HashMap<(Way, CallId), (u16, u32)>,
    /// The caller's end of the circuit of a local call, until the caller learns that it
    /// is answered, in the same step.
    ends: HashMap<u32, ForeignFd>,
    notices: VecDeque<CallNotice>,
    /// Applications of an earlier run that may still present calls, and the time until
    /// which the link waits for them.
    awaited: BTreeSet<u16>,
    begins_at: Option<Duration>,
}

impl Circuits {
    /// Starts with the labels that an earlier run assigned to applications.
    pub(super) fn new(owners: impl Iterator<Item = (Circuit, u16)>) -> Self {
        Circuits {
            owners: owners.collect(),
            control: None,
        }
    }

    /// Enables calls by and to applications. `seed`: another at each start. `awaited`:
    /// applications of an earlier run, whose calls may continue.
    pub(super) fn control(
        &mut self,
        config: AtmConfig,
        seed: u32,
        awaited: BTreeSet<u16>,
        now: Duration,
    ) {
        let mut of_link = Config::new(config.side);
        of_link.first_reference = seed >> 8;
        of_link.setups = Some(SETUPS);
        of_link.link.first_sequence = (seed % 255) as u8;
        let [mut of_caller, of_called] = [Side::User, Side::Network].map(Config::new);
        of_caller.first_reference = seed >> 8;
        // The first BGN must not have it.
        of_caller.link.first_sequence = 1;
        let number = config.number;
        self.control = Some(Box::new(Control {
            config,
            link: Calls::new(number, of_link),
            caller: Calls::new(number, of_caller),
            called: Calls::new(number, of_called),
            applications: BTreeMap::new(),
            lines: HashMap::new(),
            ends: HashMap::new(),
            notices: VecDeque::new(),
            begins_at: (!awaited.is_empty()).then_some(now + PRESENT_WITHIN),
            awaited,
        }));
    }

    /// Number of circuits whose labels applications own.
    pub(super) fn owned(&self) -> usize {
        self.owners.len()
    }

    /// Number of calls, including those being released.
    pub(super) fn calls(&self) -> usize {
        self.control.as_ref().map_or(0, |control| {
            control.link.views().count() + control.caller.views().count()
        })
    }

    /// Attached applications, each with its number of calls.
    pub(super) fn calls_by_application(&self) -> impl Iterator<Item = (u16, usize)> {
        let applications = self
            .control
            .iter()
            .flat_map(|control| &control.applications);
        applications.map(|(number, of)| (*number, of.calls.len()))
    }

    pub(super) fn has_call(&self, application: u16, call: u32) -> bool {
        let control = self.control.as_ref();
        let attached = control.and_then(|control| control.applications.get(&application));
        attached.is_some_and(|of| of.calls.contains_key(&call))
    }

    fn own<D: Device>(
        &mut self,
        circuit: Circuit,
        application: u16,
        device: &mut D,
    ) -> io::Result<()> {
        let label = label(circuit)?;
        match self.owners.get(&circuit) {
            Some(owner) if *owner == application => return Ok(()),
            Some(_) => return Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            None => {}
        }
        device.own_circuit(label, application)?;
        self.owners.insert(circuit, application);
        Ok(())
    }

    fn disown<D: Device>(&mut self, circuit: Circuit, application: u16, device: &mut D) {
        if self.owners.get(&circuit) == Some(&application) {
            self.owners.remove(&circuit);
            if let Ok(label) = label(circuit) {
                device.disown_circuit(label);
            }
        }
    }

    /// Clears an application that has ended: releases its calls and disowns its labels.
    pub(super) fn clear<D: Device>(&mut self, application: u16, now: Duration, device: &mut D) {
        if let Some(control) = &mut self.control {
            control.forget(application, now);
        }
        let owners = self.owners.iter();
        let owned = owners.filter_map(|(circuit, of)| (*of == application).then_some(*circuit));
        let owned: Vec<Circuit> = owned.collect();
        for circuit in owned {
            self.disown(circuit, application, device);
        }
    }

    /// Time at which [`Circuits::step`] is due without other input.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let control = self.control.as_ref()?;
        if let Some(at) = control.begins_at {
            return Some(at);
        }
        let all = [&control.link, &control.caller, &control.called];
        all.into_iter().filter_map(Calls::poll_timeout).min()
    }

    /// Processes a PDU received on the signalling link.
    pub(super) fn pdu_received(&mut self, pdu: &[u8], now: Duration) {
        if let Some(control) = self.control.as_mut().filter(|it| it.begins_at.is_none()) {
            control.link.signalling().pdu_received(now, pdu);
        }
    }

    /// True while the link waits for applications to present themselves.
    pub(super) fn link_waits(&self) -> bool {
        (self.control.as_ref()).is_none_or(|control| control.begins_at.is_some())
    }

    /// The next PDU for the signalling link.
    pub(super) fn poll_transmit(&mut self, now: Duration) -> Option<Vec<u8>> {
        let control = self.control.as_mut().filter(|it| it.begins_at.is_none())?;
        control.link.signalling().poll_transmit(now)
    }

    /// The next notice to an application.
    pub(super) fn poll_notice(&mut self) -> Option<CallNotice> {
        self.control.as_mut()?.notices.pop_front()
    }

    /// Carries out the consequences of requests, PDUs and the time: labels first, then
    /// notices.
    pub(super) fn step<D: Device>(&mut self, now: Duration, device: &mut D) {
        let Some(mut control) = self.control.take() else {
            return;
        };
        if let Some(at) = control.begins_at
            && (at <= now || control.awaited.is_empty())
        {
            control.begin(now);
            self.disown_unclaimed(&control, device);
        }
        loop {
            control.due(now);
            let happened = self.notices(&mut control, now, device);
            let went = control.exchange(now);
            if !happened && !went {
                break;
            }
        }
        self.control = Some(control);
    }

    /// Disowns labels of circuits that living applications have not presented.
    fn disown_unclaimed<D: Device>(&mut self, control: &Control, device: &mut D) {
        let lines = control
            .applications
            .values()
            .flat_map(|of| of.calls.values());
        let mut claimed: BTreeSet<Circuit> = lines.filter_map(|line| line.circuit).collect();
        claimed.extend(control.applications.values().flat_map(|of| &of.permanent));
        let unclaimed: Vec<(Circuit, u16)> = (self.owners.iter())
            .filter(|(circuit, owner)| {
                !claimed.contains(circuit) && control.applications.contains_key(owner)
            })
            .map(|(circuit, owner)| (*circuit, *owner))
            .collect();
        for (circuit, owner) in unclaimed {
            self.disown(circuit, owner, device);
        }
    }

    fn notices<D: Device>(&mut self, control: &mut Control, now: Duration, device: &mut D) -> bool {
        let mut happened = false;
        for way in [Way::Link, Way::Caller, Way::Called] {
            loop {
                let owners = &self.owners;
                let is_open = |circuit: Circuit| way == Way::Link && owners.contains_key(&circuit);
                let Some(notice) = control.of(way).poll_notice(now, &is_open) else {
                    break;
                };
                happened = true;
                self.noticed(control, way, notice, now, device);
            }
        }
        happened
    }

    fn noticed<D: Device>(
        &mut self,
        control: &mut Control,
        way: Way,
        notice: Notice,
        now: Duration,
        device: &mut D,
    ) {
        match notice {
            Notice::Incoming(of, id) => {
                let (application, listener) = listener_of(of);
                let Some(waits) = control.of(way).waiting(of, id) else {
                    return;
                };
                let circuit = (way == Way::Link).then_some(waits.circuit);
                let incoming = AtmIncoming {
                    listener,
                    reference: AtmReference::of(id, circuit, way != Way::Link),
                    carried: AtmCarried::of(&waits.agreed),
                    local: waits.local.0,
                    peer: waits.peer.map_or([0; 20], |peer| peer.0),
                };
                control.tell(application, Answer::AtmIncoming(incoming), None);
            }
            Notice::Withdrawn(of, id) => {
                let (application, listener) = listener_of(of);
                let reference = AtmReference::of(id, None, way != Way::Link);
                let withdrawn = AtmWithdrawn {
                    listener,
                    reference,
                };
                control.tell(application, Answer::AtmWithdrawn(withdrawn), None);
            }
            Notice::Circuit(id, circuit) => {
                let Some(&(application, call)) = control.lines.get(&(way, id)) else {
                    return;
                };
                if way != Way::Link {
                    return;
                }
                if self.own(circuit, application, device).is_err() {
                    control.end(application, call, Cause::RESOURCES_UNAVAILABLE, true);
                    control.link.release(now, id, Cause::RESOURCES_UNAVAILABLE);
                    return;
                }
                control.set_circuit(application, call, circuit);
                control.tell_circuit(application, call, circuit);
            }
            // The process that accepts a local call has created its circuit.
            Notice::Connected(..) if way == Way::Called => {}
            Notice::Connected(id, longest) => {
                let beside = match way {
                    Way::Caller => control.ends.remove(&id.value),
                    _ => None,
                };
                let Some(&(application, call)) = control.lines.get(&(way, id)) else {
                    return;
                };
                let longest = u32::try_from(longest).unwrap_or(u32::MAX);
                control.tell_connected(application, call, longest, beside);
                // A local call's circuit needs no opening.
                if way == Way::Caller {
                    control.caller.acknowledge(now, id);
                }
            }
            Notice::Ended(id, cause) => {
                let Some(&(application, call)) = control.lines.get(&(way, id)) else {
                    return;
                };
                let line = control.end(application, call, cause.value(), true);
                if let Some(circuit) = line.and_then(|line| line.circuit) {
                    self.disown(circuit, application, device);
                }
            }
        }
    }
}

impl Control {
    fn of(&mut self, way: Way) -> &mut Calls {
        match way {
            Way::Link => &mut self.link,
            Way::Caller => &mut self.caller,
            Way::Called => &mut self.called,
        }
    }

    fn tell(&mut self, application: u16, answer: Answer, beside: Option<ForeignFd>) {
        self.notices.push_back(CallNotice {
            application,
            answer,
            beside,
        });
    }

    fn attached(&self) -> AtmAttached {
        AtmAttached {
            number: self.config.number.0,
            next_hop: address_bytes(self.config.next_hop),
        }
    }

    fn set_circuit(&mut self, application: u16, call: u32, circuit: Circuit) {
        let attached = self.applications.get_mut(&application);
        if let Some(line) = attached.and_then(|of| of.calls.get_mut(&call)) {
            line.circuit = Some(circuit);
        }
    }

    fn enter(&mut self, application: u16, call: u32, line: Line) {
        self.lines.insert((line.way, line.id), (application, call));
        let attached = self.applications.entry(application).or_default();
        attached.calls.insert(call, line);
    }

    /// Removes an application's call.
    fn end(&mut self, application: u16, call: u32, cause: u8, tell: bool) -> Option<Line> {
        let attached = self.applications.get_mut(&application)?;
        let line = attached.calls.remove(&call)?;
        self.lines.remove(&(line.way, line.id));
        if line.way != Way::Link {
            self.ends.remove(&line.id.value);
        }
        if tell {
            self.tell_ended(application, call, 0, cause);
        }
        Some(line)
    }

    fn tell_circuit(&mut self, application: u16, call: u32, circuit: Circuit) {
        let circuit = CircuitNumber::of(circuit);
        let notice = Answer::AtmCircuit(AtmCircuit { call, circuit });
        self.tell(application, notice, None);
    }

    fn tell_connected(
        &mut self,
        application: u16,
        call: u32,
        longest: u32,
        beside: Option<ForeignFd>,
    ) {
        let attached = self.applications.get(&application);
        if let Some(line) = attached.and_then(|of| of.calls.get(&call)) {
            let connected = AtmConnected {
                call,
                longest,
                reference: line.reference(),
            };
            self.tell(application, Answer::AtmConnected(connected), beside);
        }
    }

    fn tell_ended(&mut self, application: u16, call: u32, errno: i32, cause: u8) {
        let ended = AtmEnded {
            call,
            errno,
            cause,
            pad: [0; 3],
        };
        self.tell(application, Answer::AtmEnded(ended), None);
    }

    fn forget(&mut self, application: u16, now: Duration) {
        self.awaited.remove(&application);
        self.notices
            .retain(|notice| notice.application != application);
        let Some(attached) = self.applications.remove(&application) else {
            return;
        };
        for listener in attached.listeners {
            let id = listener_id(application, listener);
            self.link.unlisten(now, id);
            self.called.unlisten(now, id);
        }
        for line in attached.calls.into_values() {
            self.lines.remove(&(line.way, line.id));
            if line.way != Way::Link {
                self.ends.remove(&line.id.value);
            }
            // Its process is gone, for whatever reason.
            self.of(line.way)
                .release(now, line.id, Cause::DESTINATION_OUT_OF_ORDER);
        }
    }

    /// Ends the time for presenting calls: the other end learns which calls continue, and
    /// is asked.
    fn begin(&mut self, now: Duration) {
        self.begins_at = None;
        self.awaited.clear();
        for calls in [&mut self.link, &mut self.caller] {
            if calls.views().next().is_some() {
                calls.signalling().establish(now);
            }
        }
    }

    fn due(&mut self, now: Duration) {
        if self.begins_at.is_some() {
            return;
        }
        for calls in [&mut self.link, &mut self.caller, &mut self.called] {
            if calls.poll_timeout().is_some_and(|at| at <= now) {
                calls.signalling().handle_timeout(now);
            }
        }
    }

    /// Exchanges PDUs between the ends of local calls. True if there were any.
    fn exchange(&mut self, now: Duration) -> bool {
        if self.begins_at.is_some() {
            return false;
        }
        let (caller, called) = (self.caller.signalling(), self.called.signalling());
        let mut went = false;
        loop {
            while let Some(pdu) = caller.poll_transmit(now) {
                called.pdu_received(now, &pdu);
                went = true;
            }
            let mut back = false;
            while let Some(pdu) = called.poll_transmit(now) {
                caller.pdu_received(now, &pdu);
                back = true;
            }
            went |= back;
            if !back {
                return went;
            }
        }
    }
}

fn label(circuit: Circuit) -> io::Result<Label> {
    let label = Label::of_circuit(circuit).filter(|_| circuit != Circuit { vpi: 0, vci: 0 });
    label.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// A listener by its application's number for it.
fn listener_id(application: u16, listener: u32) -> ListenerId {
    u64::from(application) << 32 | u64::from(listener)
}

fn listener_of(id: ListenerId) -> (u16, u32) {
    ((id >> 32) as u16, id as u32)
}
