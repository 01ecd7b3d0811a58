//! Circuits of an application: what it asks for, and presents to a manager that was started
//! anew.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use tidewall_atm::calls::{CircuitOptions, Sap};
use tidewall_wire::atm::{Circuit, Nsap};

use super::Client;
use super::link::{State, is_gone, unexpected};
use crate::connection::Connection;
use crate::protocol::{
    Answer, AtmAccept, AtmAttached, AtmCall, AtmCarried, AtmListen, AtmPresent, AtmReference,
    AtmRelease, AtmSap, CallNumber, CircuitNumber, Empty, ListenerNumber, Request,
};

/// Who is given the connection of each run of the manager, by which that says what becomes of
/// calls, to read from. The number grows with each.
pub type Deliver = dyn Fn(u32, Arc<Connection>) + Send + Sync;

/// What a later run of the manager is to know.
#[derive(Default)]
pub(super) struct Presentable {
    deliver: Option<Arc<Deliver>>,
    /// How many connections of notices there were, and the last.
    runs: u32,
    notices: Option<Arc<Connection>>,
    permanent: Vec<CircuitNumber>,
    listeners: Vec<AtmListen>,
    /// Calls that are active, by the application's number.
    calls: BTreeMap<u32, AtmReference>,
}

impl fmt::Debug for Presentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presentable").finish_non_exhaustive()
    }
}

impl Presentable {
    pub(super) fn say(&self, request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<u32> {
        let Some(notices) = &self.notices else {
            return Err(io::Error::from_raw_os_error(libc::EUNATCH));
        };
        notices.send(&request.emit(0), beside).map(|()| self.runs)
    }
}

impl State {
    /// Has the manager say what becomes of calls.
    fn attach(&mut self) -> io::Result<AtmAttached> {
        self.circuits.notices = None;
        let (answer, received) = self.ask(&Request::AttachAtm(Empty {}), &[])?;
        let Answer::AtmAttached(attached) = answer else {
            return Err(unexpected());
        };
        let [notices]: [OwnedFd; 1] =
            (received.descriptors.try_into()).map_err(|_| unexpected())?;
        let notices = Arc::new(Connection::of_descriptor(notices)?);
        self.circuits.runs += 1;
        self.circuits.notices = Some(notices.clone());
        if let Some(deliver) = &self.circuits.deliver {
            deliver(self.circuits.runs, notices);
        }
        Ok(attached)
    }

    /// Presents circuits and calls. Of calls that are refused the manager says that they have
    /// ended.
    pub(super) fn present_circuits(&mut self) -> io::Result<()> {
        if self.circuits.deliver.is_none() {
            return Ok(());
        }
        match self.attach() {
            Err(error) if is_gone(&error) => return Err(error),
            // It has no ATM any more.
            Err(_) => return Ok(()),
            Ok(_) => {}
        }
        let permanent = self.circuits.permanent.iter();
        let permanent = permanent.map(|of| Request::OpenCircuit(of.clone()));
        let listeners = self.circuits.listeners.iter();
        let listeners = listeners.map(|of| Request::AtmListen(of.clone()));
        let requests: Vec<Request> = permanent.chain(listeners).collect();
        for request in requests {
            self.ask_again(&request, &[])?;
        }
        for (call, reference) in self.circuits.calls.clone() {
            let request = Request::AtmPresent(AtmPresent { call, reference });
            match self.ask(&request, &[]) {
                Err(error) if is_gone(&error) => return Err(error),
                // The manager says that it has ended.
                Err(_) => drop(self.circuits.calls.remove(&call)),
                Ok(_) => {}
            }
        }
        self.ask_again(&Request::AtmPresented(Empty {}), &[])
    }

    /// Forgets a call, which has ended or was released.
    fn forget_call(&mut self, call: u32) {
        self.circuits.calls.remove(&call);
    }
}

/// Circuits. Numbers of calls and listeners are the application's to choose.
impl Client {
    /// Begins to have circuits. `deliver` gets the connection of notices of this and of each
    /// later run of the manager.
    ///
    /// # Errors
    /// EUNATCH where the manager's interface is none of ATM; what the connection reports.
    pub fn attach_atm(&self, deliver: Arc<Deliver>) -> io::Result<AtmAttached> {
        self.link.request(|state| {
            state.circuits.deliver = Some(deliver.clone());
            let attached = state.attach();
            if attached.as_ref().is_err_and(|error| !is_gone(error)) {
                state.circuits.deliver = None;
            }
            attached
        })
    }

    /// Has the driver give the application the frames of a permanent circuit.
    ///
    /// # Errors
    /// EACCES where it may not; EADDRINUSE where another application, or a call, has it;
    /// what the connection reports.
    pub fn open_circuit(&self, circuit: Circuit) -> io::Result<()> {
        let of = CircuitNumber::of(circuit);
        let request = Request::OpenCircuit(of.clone());
        self.link.request(|state| {
            state.ask(&request, &[])?;
            state.circuits.permanent.push(of.clone());
            Ok(())
        })
    }

    /// Leaves them to the kernel again.
    ///
    /// # Errors
    /// What the manager answers.
    pub fn close_circuit(&self, circuit: Circuit) -> io::Result<()> {
        let of = CircuitNumber::of(circuit);
        let request = Request::CloseCircuit(of.clone());
        let forget = |state: &mut State| state.circuits.permanent.retain(|other| *other != of);
        self.link.give_back(&request, forget)
    }

    /// Has a listener called.
    ///
    /// # Errors
    /// EADDRNOTAVAIL for a number that is another system's, EADDRINUSE where another listens
    /// there for the same; what the connection reports.
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
        let request = Request::AtmListen(of.clone());
        self.link.request(|state| {
            state.ask(&request, &[])?;
            state.circuits.listeners.push(of.clone());
            Ok(())
        })
    }

    /// Has it called no more.
    ///
    /// # Errors
    /// What the manager answers.
    pub fn atm_unlisten(&self, listener: u32) -> io::Result<()> {
        let request = Request::AtmUnlisten(ListenerNumber { listener });
        let forget = |state: &mut State| {
            state
                .circuits
                .listeners
                .retain(|of| of.listener != listener);
        };
        self.link.give_back(&request, forget)
    }

    /// Calls somebody; what becomes of it the connection of notices of this run says.
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
        self.link.request(|state| state.say(&request, &[]))
    }

    /// Takes a call that waits for a listener, and whose circuit is open; `circuit`: the
    /// caller's end of that of a local one. One that is no more by now is said to have ended.
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
        let mut state = self.link.state();
        state.say(&request, circuit.as_slice())?;
        state.circuits.calls.insert(call, reference.clone());
        Ok(())
    }

    /// Refuses a call that waits for a listener.
    pub fn atm_refuse(&self, listener: u32, reference: &AtmReference, cause: u8) {
        let request = accept(listener, 0, reference, cause);
        self.link.let_know(&request, |_| {});
    }

    /// A call of the application is active, and its circuit open: a later run of the manager
    /// is to know it, and the other end, where that is not with this manager.
    pub fn atm_is_active(&self, call: u32, reference: AtmReference) {
        let acknowledges = reference.ours == 1 && reference.local == 0;
        let remember = |state: &mut State| {
            state.circuits.calls.insert(call, reference);
        };
        if acknowledges {
            // Where the manager is gone, the other end asks in time.
            let request = Request::AtmAcknowledge(CallNumber { call });
            self.link.let_know(&request, remember);
        } else {
            remember(&mut self.link.state());
        }
    }

    /// The manager has said that a call has ended.
    pub fn atm_has_ended(&self, call: u32) {
        self.link.state().forget_call(call);
    }

    /// Releases a call.
    pub fn atm_release(&self, call: u32, cause: u8) {
        let pad = [0; 3];
        let request = Request::AtmRelease(AtmRelease { call, cause, pad });
        (self.link).let_know(&request, |state| state.forget_call(call));
    }
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
