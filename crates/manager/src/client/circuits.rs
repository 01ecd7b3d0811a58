//! Circuits of an application: its requests, and what it presents to a restarted manager.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tidewall_atm::calls::{CircuitOptions, Sap};
use tidewall_wire::atm::q2931::Cause;
use tidewall_wire::atm::{Circuit, Nsap};

use super::link::{State, is_gone, unexpected};
use super::session::Session;
use super::{Client, deadline};
use crate::connection::Connection;
use crate::protocol::{
    Answer, AtmAccept, AtmAttached, AtmCall, AtmCarried, AtmListen, AtmPresent, AtmReference,
    AtmRelease, AtmSap, CallNumber, CircuitNumber, Empty, ListenerNumber, MESSAGE_BYTES, Request,
};

/// Callback that receives the notice connection of each run of the manager, to read
/// reports of calls from. The number grows with each.
pub type Deliver = dyn Fn(u32, Arc<Connection>) + Send + Sync;

/// The state that a later run of the manager must know.
#[derive(Default)]
pub(super) struct Presentable {
    deliver: Option<Arc<Deliver>>,
    /// Number of notice connections so far, and the last; `None` until the manager has
    /// been presented with the rest.
    runs: u32,
    notices: Option<Arc<Connection>>,
    /// Messages that it had no room for, in order.
    unsaid: VecDeque<([u8; MESSAGE_BYTES], Option<OwnedFd>)>,
    permanent: Vec<CircuitNumber>,
    listeners: Vec<AtmListen>,
    /// Active calls, by the application's number.
    calls: BTreeMap<u32, AtmReference>,
}

impl fmt::Debug for Presentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presentable").finish_non_exhaustive()
    }
}

/// The notice connection of a run of the manager; `None` for one without circuits.
pub(super) type Notices = Option<(u32, Arc<Connection>)>;

/// The state to present to the next manager.
pub(super) struct ToPresent {
    deliver: Arc<Deliver>,
    run: u32,
    requests: Vec<Request>,
    calls: BTreeMap<u32, AtmReference>,
}

impl Presentable {
    /// Sends a message by the notice connection, without waiting. Returns which run of
    /// the manager receives it.
    ///
    /// # Errors
    /// EUNATCH without one; what the kernel reports.
    pub(super) fn say(&mut self, request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let Some(notices) = &self.notices else {
            return Err(io::Error::from_raw_os_error(libc::EUNATCH));
        };
        let message = request.emit(0);
        if self.unsaid.is_empty() {
            match notices.send_now(&message, beside) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                said => return said.map(|()| self.runs),
            }
        }
        let copy = beside.first().map(BorrowedFd::try_clone_to_owned);
        self.unsaid.push_back((message, copy.transpose()?));
        Ok(self.runs)
    }

    /// Sends the messages that there is room for.
    pub(super) fn flush(&mut self) {
        let Some(notices) = &self.notices else { return };
        while let Some((message, beside)) = self.unsaid.front() {
            let beside = beside.as_ref().map(AsFd::as_fd);
            let said = notices.send_now(message, beside.as_slice());
            if said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            self.unsaid.pop_front();
        }
    }

    pub(super) fn has_unsaid(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// The notice connection, while a message waits for room.
    pub(super) fn waits_to_say(&self) -> Option<Arc<Connection>> {
        self.notices.clone().filter(|_| self.has_unsaid())
    }

    /// Records that the manager is gone and receives nothing more.
    pub(super) fn lose(&mut self) {
        self.notices = None;
        self.unsaid.clear();
    }

    /// Takes the notice connection of a manager that was asked for it.
    ///
    /// # Errors
    /// InvalidData without one.
    pub(super) fn attached(&mut self, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let notices = notices_of(descriptors)?;
        self.runs += 1;
        self.notices = Some(notices.clone());
        if let Some(deliver) = &self.deliver {
            deliver(self.runs, notices);
        }
        Ok(())
    }

    /// The state to present to the next manager; `None` without circuits.
    pub(super) fn to_present(&self) -> Option<ToPresent> {
        let deliver = self.deliver.clone()?;
        let permanent = self.permanent.iter();
        let permanent = permanent.map(|of| Request::OpenCircuit(of.clone()));
        let listeners = self.listeners.iter();
        let listeners = listeners.map(|of| Request::AtmListen(of.clone()));
        Some(ToPresent {
            deliver,
            run: self.runs + 1,
            requests: permanent.chain(listeners).collect(),
            calls: self.calls.clone(),
        })
    }

    /// Records that the manager knows these calls, and receives messages by `notices`
    /// from now on.
    pub(super) fn presented(&mut self, notices: Notices, calls: &[u32]) {
        let Some((run, notices)) = notices else {
            return;
        };
        (self.runs, self.notices) = (run, Some(notices));
        for &call in calls {
            if !self.calls.contains_key(&call) {
                // Released while the manager was being presented with it.
                let _ = self.say(&release(call, Cause::NORMAL), &[]);
            }
        }
    }

    /// Forgets a call, which has ended or was released.
    pub(super) fn forget_call(&mut self, call: u32) {
        self.calls.remove(&call);
    }
}

impl ToPresent {
    /// Presents circuits and calls. For calls that are refused the manager reports that
    /// they have ended. Returns its notice connection, and the calls that it knows.
    ///
    /// # Errors
    /// TimedOut, ConnectionReset.
    pub(super) fn present(
        self,
        session: &Session,
        forget: impl Fn(u32),
    ) -> io::Result<(Notices, Vec<u32>)> {
        let descriptors = match session.ask(&Request::AttachAtm(Empty {}), &[]) {
            Err(error) if is_gone(&error) => return Err(error),
            // It no longer has ATM.
            Err(_) => return Ok((None, Vec::new())),
            Ok((_, received)) => received.descriptors,
        };
        let notices = notices_of(descriptors)?;
        (self.deliver)(self.run, notices.clone());
        for request in &self.requests {
            session.ask_again(request, &[])?;
        }
        let mut known = Vec::new();
        for (call, reference) in self.calls {
            let request = Request::AtmPresent(AtmPresent { call, reference });
            match session.ask(&request, &[]) {
                Err(error) if is_gone(&error) => return Err(error),
                // The manager reports that it has ended.
                Err(_) => forget(call),
                Ok(_) => known.push(call),
            }
        }
        session.ask_again(&Request::AtmPresented(Empty {}), &[])?;
        Ok((Some((self.run, notices)), known))
    }
}

fn notices_of(descriptors: Vec<OwnedFd>) -> io::Result<Arc<Connection>> {
    let [notices]: [OwnedFd; 1] = descriptors.try_into().map_err(|_| unexpected())?;
    Ok(Arc::new(Connection::of_descriptor(notices)?))
}

/// Removes one element of a list, the last of several that are equal.
fn take_one<T: PartialEq>(list: &mut Vec<T>, one: &T) {
    if let Some(place) = list.iter().rposition(|other| other == one) {
        list.remove(place);
    }
}

/// Circuits. The application chooses the numbers of calls and listeners.
impl Client {
    /// Starts the use of circuits. `deliver` receives the notice connection of this and
    /// of each later run of the manager.
    ///
    /// # Errors
    /// EUNATCH where the manager's interface is not an ATM one; what the connection
    /// reports.
    pub fn attach_atm(&self, deliver: Arc<Deliver>) -> io::Result<AtmAttached> {
        self.link.state().circuits.deliver = Some(deliver);
        let attached = match self.ask(&Request::AttachAtm(Empty {}), None) {
            Ok(Answer::AtmAttached(attached)) => Ok(attached),
            Ok(_) => Err(unexpected()),
            Err(error) => Err(error),
        };
        if attached.is_err() {
            self.link.state().circuits.deliver = None;
        }
        attached
    }

    /// Makes the driver deliver a permanent circuit's frames to the application.
    ///
    /// # Errors
    /// EACCES where it may not; EADDRINUSE where another application, or a call, has it;
    /// what the connection reports.
    pub fn open_circuit(&self, circuit: Circuit) -> io::Result<()> {
        let of = CircuitNumber::of(circuit);
        // Recorded before the request, so that a manager restarted meanwhile knows of it.
        self.link.state().circuits.permanent.push(of.clone());
        let asked = self.ask(&Request::OpenCircuit(of.clone()), None);
        asked.map(drop).inspect_err(|_| {
            take_one(&mut self.link.state().circuits.permanent, &of);
        })
    }

    /// Leaves the circuit's frames to the kernel again.
    pub fn close_circuit(&self, circuit: Circuit) {
        let of = CircuitNumber::of(circuit);
        let request = Request::CloseCircuit(of.clone());
        let forget = |state: &mut State| state.circuits.permanent.retain(|other| *other != of);
        self.link.give_back(&request, forget);
    }

    /// Registers a listener for calls.
    ///
    /// # Errors
    /// EADDRNOTAVAIL for a number of another system, EADDRINUSE where another application
    /// listens there for the same; what the connection reports.
    pub fn atm_listen(
        &self,
        listener: u32,
        sap: &Sap,
        options: &CircuitOptions,
        backlog: usize,
    ) -> io::Result<()> {
        let of = AtmListen {
            listener,
            backlog: u32::try_from(backlog).unwrap_or(u32::MAX),
            carried: AtmCarried::of(options),
            sap: AtmSap::of(sap),
        };
        self.link.state().circuits.listeners.push(of.clone());
        let asked = self.ask(&Request::AtmListen(of.clone()), None);
        asked.map(drop).inspect_err(|_| {
            take_one(&mut self.link.state().circuits.listeners, &of);
        })
    }

    /// Removes a listener.
    pub fn atm_unlisten(&self, listener: u32) {
        let request = Request::AtmUnlisten(ListenerNumber { listener });
        let forget = |state: &mut State| {
            state
                .circuits
                .listeners
                .retain(|of| of.listener != listener);
        };
        self.link.give_back(&request, forget);
    }

    /// Places a call. This run's notice connection reports the outcome.
    ///
    /// # Errors
    /// EUNATCH; what the connection reports.
    pub fn atm_call(
        &self,
        call: u32,
        to: &Sap,
        from: Option<Nsap>,
        options: &CircuitOptions,
    ) -> io::Result<u32> {
        let request = Request::AtmCall(AtmCall {
            call,
            carried: AtmCarried::of(options),
            to: AtmSap::of(to),
            from: from.map_or([0; 20], |from| from.0),
        });
        self.link.say(&request, deadline())
    }

    /// Accepts a call that waits for a listener, and whose circuit is open. `circuit`:
    /// for a local call, the caller's end of its circuit. A call that no longer exists is
    /// reported as ended.
    ///
    /// # Errors
    /// ConnectionReset where the manager is gone, and the call with it.
    pub fn atm_accept(
        &self,
        listener: u32,
        call: u32,
        reference: &AtmReference,
        circuit: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let request = accept(listener, call, reference, 0);
        self.link.say_now(&request, circuit.as_slice(), |state| {
            state.circuits.calls.insert(call, reference.clone());
        })
    }

    /// Rejects a call that waits for a listener.
    pub fn atm_refuse(&self, listener: u32, reference: &AtmReference, cause: u8) {
        let request = accept(listener, 0, reference, cause);
        self.link.let_know(&request, |_| {});
    }

    /// Records that a call of the application is active, and its circuit open. A later
    /// run of the manager must know it, and so must the other end, if that is not with
    /// this manager.
    pub fn atm_is_active(&self, call: u32, reference: AtmReference) {
        let acknowledges = reference.ours == 1 && reference.local == 0;
        let remember = |state: &mut State| {
            state.circuits.calls.insert(call, reference);
        };
        if acknowledges {
            // If the manager is gone, the other end asks in time.
            let request = Request::AtmAcknowledge(CallNumber { call });
            self.link.let_know(&request, remember);
        } else {
            remember(&mut self.link.state());
        }
    }

    /// Records the manager's report that a call has ended.
    pub fn atm_has_ended(&self, call: u32) {
        self.link.state().circuits.forget_call(call);
    }

    /// Releases a call.
    pub fn atm_release(&self, call: u32, cause: u8) {
        let forget = |state: &mut State| state.circuits.forget_call(call);
        self.link.let_know(&release(call, cause), forget);
    }
}

fn release(call: u32, cause: u8) -> Request {
    let pad = [0; 3];
    Request::AtmRelease(AtmRelease { call, cause, pad })
}

fn accept(listener: u32, call: u32, reference: &AtmReference, cause: u8) -> Request {
    Request::AtmAccept(AtmAccept {
        listener,
        call,
        reference: reference.clone(),
        cause,
        pad: [0; 3],
    })
}
