//! Control in the stack itself: signalling on the interface's circuit 0.5, and the calls
//! whose circuits are sockets.
//!
//! Everything happens with the calls locked: signalling's orders are carried out (circuits
//! opened and closed, sockets woken) before its answers leave. The thread that makes a round
//! processes frames; timers run with those of TCP. If no thread is in the stack, the helper
//! thread does both.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_atm::calls::{CallError, Calls, ListenError, ListenerId, Notice, View};
use tidewall_atm::signalling::{CallId, Config};
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::helper::Helper;
use tidewall_stack::lock::lock;
use tidewall_stack::snapshot::CallSnapshot;
use tidewall_wire::atm::pseudowire::FrameHeader;
use tidewall_wire::atm::q2931::Cause;
use tidewall_wire::atm::{Circuit, Nsap};

use super::call::{self, Call, CallOptions, Progress};
use super::circuit::{CircuitInner, Place};
use super::listener::ListenerInner;
use super::managed::Managed;
use super::sending::{NEIGHBOUR_LOOK, NEIGHBOUR_TIMEOUT};
use super::{Atm, AtmOptions, Sap, errno};

pub use tidewall_atm::signalling::Side;

/// How long it takes, about, to ask a manager for circuits.
const ATTACHES: Duration = Duration::from_millis(1);

/// How a stack controls the circuits of its interface.
#[derive(Clone, Copy, Debug)]
pub struct AtmControl {
    /// The stack's number. The last byte, the selector, is each listener's own.
    pub number: Nsap,
    /// Which end of the link this is. If two ends are linked directly, one is the
    /// network side. Only that side names circuits, VCIs of VPI 0 from 32 on.
    pub side: Side,
}

/// Signalling of an interface, and its calls.
pub(super) struct Control {
    config: AtmControl,
    calls: Calls,
    link: Arc<CircuitInner>,
    timer: u32,
    /// Sockets of outgoing and accepted calls.
    sockets: BTreeMap<CallId, Arc<CircuitInner>>,
    listeners: BTreeMap<ListenerId, Arc<ListenerInner>>,
    next_listener: ListenerId,
    /// A PDU that waits for the next hop's link address, since when.
    unsent: Option<(Vec<u8>, Duration)>,
}

/// The endpoint of circuit 0.5's frames and of the timer.
struct ControlEndpoint(u32);

impl Endpoint for ControlEndpoint {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        Atm::of(core).with_control(core, |control| {
            let now = core.now();
            let Control { link, calls, .. } = control;
            link.drain_waiting(core, &mut |received| {
                calls.signalling().pdu_received(now, received.payload);
            });
        });
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        Atm::of(core).with_control(core, |control| {
            let now = core.now();
            if control.calls.poll_timeout().is_some_and(|at| at <= now) {
                control.calls.signalling().handle_timeout(now);
            }
        });
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        self.on_frames(core, 0);
    }
}

impl Atm {
    /// Controls the circuits of the interface in this stack: sockets call and are called
    /// by [`AtmSocket::connect`] and [`AtmListener`]. Signalling runs on circuit 0.5 (UNI
    /// 3.1), which the other end of the link, a stack or a switch, must do as well. The
    /// link is brought up by the first call, of either end.
    ///
    /// # Errors
    /// EADDRINUSE when the interface is controlled already, or circuit 0.5 is open; ENODEV
    /// where it is none of ATM (`Stack::attach_atm`); what binding a circuit reports.
    ///
    /// [`AtmSocket::connect`]: super::AtmSocket::connect
    /// [`AtmListener`]: super::AtmListener
    pub fn control_atm(stack: &StackHandle, config: AtmControl) -> io::Result<()> {
        let core = stack.here()?;
        core.check_protocol::<Atm>()?;
        core.netdev.check()?;
        Helper::start(core)?;
        let mut place = lock(&Atm::of(core).control);
        if place.is_some() {
            return Err(errno(libc::EADDRINUSE));
        }
        let link = Atm::of(core).open(core, Circuit::SIGNALLING, AtmOptions::default())?;
        let mut timer = 0;
        let endpoint = core.timers.add(|number| {
            timer = number;
            Arc::new(ControlEndpoint(number))
        });
        debug_assert_eq!(endpoint.0, timer);
        core.channels
            .set_endpoint(link.id().index(), Some(endpoint));
        let mut signalling = Config::new(config.side);
        // The peer may remember an earlier run of this end, and would end a call because of
        // one with the same reference. Without an earlier run it knows sequence number 0,
        // which the first BGN must not have.
        let drawn = RandomState::new().hash_one(timer);
        signalling.first_reference = (drawn >> 8) as u32;
        signalling.link.first_sequence = (drawn % 255) as u8;
        *place = Some(Control {
            config,
            calls: Calls::new(config.number, signalling),
            link,
            timer,
            sockets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_listener: 0,
            unsent: None,
        });
        Ok(())
    }
}

impl Atm {
    /// Returns true where the stack or its manager controls circuits; in a forked child
    /// never.
    pub fn controls_atm(stack: &StackHandle) -> bool {
        stack.here().is_ok_and(|core| {
            let managed =
                Atm::of(core).attached(core).is_ok() && Atm::of(core).managed.get().is_some();
            managed || lock(&Atm::of(core).control).is_some()
        })
    }
}

impl Atm {
    /// Attaches to the circuits of the device's manager, if there is one.
    ///
    /// # Errors
    /// EUNATCH if that has none, or is gone.
    pub(super) fn attached(&self, core: &Arc<Core>) -> io::Result<()> {
        let Some(client) = core.netdev.owner.client() else {
            return Ok(());
        };
        // One thread at a time, without a lock: the manager is waited for.
        while self.attaching.swap(true, Ordering::SeqCst) {
            std::thread::sleep(ATTACHES);
        }
        let attached = match self.managed.get() {
            Some(_) => Ok(()),
            None => Managed::attach(core, client).map(|managed| drop(self.managed.set(managed))),
        };
        self.attaching.store(false, Ordering::SeqCst);
        attached
    }

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

    /// Makes a call.
    pub(super) fn call(
        &self,
        core: &Core,
        to: &Sap,
        options: &CallOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        match self.managed.get() {
            Some(managed) => managed.call(core, to, options),
            None => self.controlled(core, |control| control.call(core, to, options)),
        }
    }

    /// Registers a listener for calls.
    pub(super) fn listen(&self, core: &Arc<Core>, listener: &Arc<ListenerInner>) -> io::Result<()> {
        self.attached(core)?;
        if let Some(managed) = self.managed.get() {
            return managed.listen(listener);
        }
        let mut control = lock(&self.control);
        let control = control.as_mut().ok_or_else(|| errno(libc::EUNATCH))?;
        let id = control.next_listener;
        let ListenerInner {
            sap,
            options,
            backlog,
            ..
        } = **listener;
        (control.calls.listen(id, sap, options, backlog)).map_err(|error| match error {
            ListenError::NotOwn => errno(libc::EADDRNOTAVAIL),
            ListenError::InUse => errno(libc::EADDRINUSE),
        })?;
        control.next_listener += 1;
        let _ = listener.id.set(id);
        control.listeners.insert(id, listener.clone());
        Ok(())
    }

    /// Removes a listener: calls that wait to be accepted are refused.
    pub(super) fn unlisten(&self, core: &Core, listener: &ListenerInner) {
        if let Some(managed) = self.managed.get() {
            return managed.unlisten(listener);
        }
        self.with_control(core, |control| {
            if let Some(id) = listener.id.get() {
                control.listeners.remove(id);
                control.calls.unlisten(core.now(), *id);
            }
        });
    }

    /// Accepts the call that has waited longest, if one waits.
    pub(super) fn accept(
        &self,
        core: &Core,
        listener: &ListenerInner,
    ) -> io::Result<Option<Arc<CircuitInner>>> {
        match self.managed.get() {
            Some(managed) => managed.accept(core, listener),
            None => self.controlled(core, |control| control.accept(core, listener)),
        }
    }

    /// Called when the socket of a call is closed.
    pub(super) fn hang_up(&self, core: &Core, inner: &CircuitInner) {
        if let Some(managed) = self.managed.get() {
            return managed.hang_up(core, inner);
        }
        let Some(&id) = inner.call.as_ref().and_then(|call| call.id.get()) else {
            return;
        };
        self.with_control(core, |control| {
            // The reference of an ended call may belong to another call.
            let own = (control.sockets.get(&id)).is_some_and(|it| ptr::eq(&**it, inner));
            if own {
                control.let_go(core, id, Cause::NORMAL);
            }
        });
    }

    /// True for a circuit that a call has, or has not been released by both ends.
    pub(super) fn is_held(&self, circuit: Circuit) -> bool {
        let control = lock(&self.control);
        (control.as_ref()).is_some_and(|control| control.calls.is_held(circuit))
    }

    /// Called when the interface is gone.
    pub(crate) fn fail_calls(&self, error: i32) {
        if let Some(managed) = self.managed.get() {
            managed.fail(error);
        }
        let control = lock(&self.control);
        let Some(control) = control.as_ref() else {
            return;
        };
        for inner in control.sockets.values() {
            inner.fail(error);
        }
        for listener in control.listeners.values() {
            listener.fail(error);
        }
    }

    /// Returns all calls.
    pub(crate) fn calls(&self) -> Vec<CallSnapshot> {
        let control = lock(&self.control);
        let Some(control) = control.as_ref() else {
            return Vec::new();
        };
        let views = control.calls.views();
        views.map(|view| control.snapshot(&view)).collect()
    }
}

/// True where a circuit of this stack is open.
fn is_open(core: &Core) -> impl Fn(Circuit) -> bool {
    |circuit| lock(&Atm::of(core).circuits).contains_key(&circuit)
}

impl Control {
    fn snapshot(&self, view: &View) -> CallSnapshot {
        let side = match self.config.side {
            Side::User => 'U',
            Side::Network => 'N',
        };
        let number = view.phase.map_or(0, |it| it.number(self.config.side));
        let socket = self.sockets.get(&view.id);
        let call = socket.and_then(|it| it.call.as_ref());
        let local = call.map(|it| it.local).or(view.waits_for);
        {
            let mut call = CallSnapshot::default();
            call.ours = view.id.ours;
            call.reference = view.id.value;
            call.circuit = view.circuit.map(|it| it.to_string());
            call.state = format!("{side}{number}");
            call.held = match (socket, view.waits_for) {
                (Some(_), _) => "socket",
                (None, Some(_)) => "waiting",
                (None, None) => "releasing",
            }
            .to_owned();
            call.local = local.map(|it| it.to_string());
            call.peer = (socket.and_then(|it| it.peer())).map(|it| it.to_string());
            call
        }
    }

    fn call(
        &mut self,
        core: &Core,
        to: &Sap,
        options: &CallOptions,
    ) -> io::Result<Arc<CircuitInner>> {
        let from = options.from.unwrap_or(self.config.number);
        let call = Call::new(from, Some(to.number), Progress::Connecting);
        let inner = Atm::of(core).open_call(core, None, options.circuit, call)?;
        let (now, circuit) = (core.now(), &options.circuit);
        let begun = self.calls.call(now, to, from, circuit, &is_open(core));
        match begun {
            Ok(id) => {
                self.enter(id, &inner);
                Ok(inner)
            }
            Err(error) => {
                Atm::of(core).close(core, &inner);
                Err(errno(match error {
                    CallError::NoCircuit => libc::EHOSTUNREACH,
                    CallError::Busy => libc::ENOBUFS,
                }))
            }
        }
    }

    fn enter(&mut self, id: CallId, inner: &Arc<CircuitInner>) {
        if let Some(call) = &inner.call {
            let _ = call.id.set(id);
        }
        self.sockets.insert(id, inner.clone());
    }

    fn accept(
        &mut self,
        core: &Core,
        listener: &ListenerInner,
    ) -> io::Result<Option<Arc<CircuitInner>>> {
        let id = listener.id.get();
        let Some(taken) = id.and_then(|id| self.calls.take_next(*id)) else {
            return Ok(None);
        };
        listener.taken();
        let call = Call::new(taken.local, taken.peer, Progress::Accepted);
        let place = Place::new(taken.circuit);
        let opened = Atm::of(core).open_call(core, place, taken.agreed, call);
        let inner =
            opened.inspect_err(|_| self.let_go(core, taken.id, Cause::RESOURCES_UNAVAILABLE))?;
        if !self.calls.answer(core.now(), &taken) {
            Atm::of(core).close(core, &inner);
            return Err(errno(libc::ECONNABORTED));
        }
        self.enter(taken.id, &inner);
        Ok(Some(inner))
    }

    /// Releases a call that no socket here has any more, unless that is under way.
    fn let_go(&mut self, core: &Core, id: CallId, cause: u8) {
        if let Some(inner) = self.sockets.remove(&id) {
            let _binding = lock(&core.binding);
            inner.close_place(core);
        }
        self.calls.release(core.now(), id, cause);
    }

    /// Carries out the consequences of a signalling input: socket states, PDUs, the next
    /// timer.
    fn follow(&mut self, core: &Core) {
        let now = core.now();
        while let Some(notice) = self.calls.poll_notice(now, &is_open(core)) {
            self.noticed(core, notice);
        }
        self.transmit(core, now);
        let look = self.unsent.as_ref().map(|_| now + NEIGHBOUR_LOOK);
        let due = self.calls.poll_timeout().into_iter().chain(look).min();
        match due {
            Some(due) => core.arm(self.timer, due),
            None => core.timers.disarm(self.timer),
        }
    }

    fn noticed(&mut self, core: &Core, notice: Notice) {
        match notice {
            Notice::Incoming(id, _) => {
                if let Some(listener) = self.listeners.get(&id) {
                    listener.called();
                }
            }
            Notice::Withdrawn(id, _) => {
                if let Some(listener) = self.listeners.get(&id) {
                    listener.taken();
                }
            }
            Notice::Circuit(id, circuit) => {
                let Some(inner) = self.sockets.get(&id) else {
                    return;
                };
                if open_circuit(core, inner, circuit).is_err() {
                    let cause = Cause::new(Cause::CIRCUIT_NOT_AVAILABLE);
                    self.ended(core, id, cause);
                    self.calls.release(core.now(), id, cause.value());
                }
            }
            Notice::Connected(id, longest) => {
                if let Some(inner) = self.sockets.get(&id) {
                    inner.connected(longest);
                }
                self.calls.acknowledge(core.now(), id);
            }
            Notice::Ended(id, cause) => self.ended(core, id, cause),
        }
    }

    fn ended(&mut self, core: &Core, id: CallId, cause: Cause) {
        if let Some(inner) = self.sockets.remove(&id) {
            inner.ended(core, call::error(inner.progress(), cause));
        }
    }

    /// Sends what signalling has to say. While the next hop's link address is looked for,
    /// it waits; what has waited for longer than that takes is repeated by SSCOP.
    fn transmit(&mut self, core: &Core, now: Duration) {
        let mut sent = false;
        loop {
            let next = self.unsent.take();
            let next = next.or_else(|| Some((self.calls.signalling().poll_transmit(now)?, now)));
            let Some((pdu, since)) = next else { break };
            match self.link.send_pdu(core, &pdu) {
                Ok(()) => sent = true,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if now.saturating_sub(since) < NEIGHBOUR_TIMEOUT {
                        self.unsent = Some((pdu, since));
                        break;
                    }
                }
                // Equivalent to a loss on the way.
                Err(_) => {}
            }
        }
        if sent {
            let _ = self.link.flush(core);
        }
    }
}

/// Opens the circuit of an outgoing call.
pub(super) fn open_circuit(
    core: &Core,
    inner: &Arc<CircuitInner>,
    circuit: Circuit,
) -> io::Result<()> {
    let place = Place::new(circuit).ok_or_else(|| errno(libc::EINVAL))?;
    let _binding = lock(&core.binding);
    inner.open_place(core, place)
}

impl CircuitInner {
    fn send_pdu(&self, core: &Core, pdu: &[u8]) -> io::Result<()> {
        let neighbour = Atm::of(core).neighbour(core)?;
        self.transmit(core, |transmitter, label| {
            transmitter.queue_pdu(neighbour, &FrameHeader::whole(label), pdu)
        })
    }

    /// Payloads flow both ways from now on. `longest`: for a call made here, the longest
    /// payload that the called end accepts.
    pub(super) fn connected(&self, longest: usize) {
        if self.progress() == Progress::Connecting {
            let agreed = self.options.send_max.min(longest);
            self.send_max.store(agreed, Ordering::Relaxed);
        }
        self.advance(Progress::Connected, 0);
    }

    /// Ends the call: its circuit is closed here. Payloads that arrived can still be
    /// received.
    pub(super) fn ended(&self, core: &Core, error: i32) {
        // Parts of PDUs are put together while the circuit is known.
        self.keep_waiting(core);
        let binding = lock(&core.binding);
        self.close_place(core);
        drop(binding);
        self.advance(Progress::Ended, error);
    }
}
