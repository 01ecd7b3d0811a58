//! Requests of applications.

use std::time::Duration;

use tidewall_atm::calls::{CallError, ListenError, Sap, Taken};
use tidewall_wire::atm::q2931::Cause;
use tidewall_wire::atm::{Circuit, Nsap};

use super::{Circuits, Control, Line, Way, listener_id};
use crate::daemon::manager::{Refusal, refused};
use crate::daemon::{Device, ForeignFd};
use crate::protocol::{
    Answer, AtmAccept, AtmAttached, AtmCall, AtmCarried, AtmListen, AtmPresent, AtmReference,
    AtmRelease, AtmSap, CallNumber, Empty, Request, number,
};

/// Calls, and listeners, of one application.
const CALLS: usize = 4096;
/// Calls that may wait for a listener (Linux's `net.core.somaxconn`).
const BACKLOG: u32 = 4096;

type Answered = Result<Answer, Refusal>;

const DONE: Answered = Ok(Answer::Done(Empty {}));

impl Circuits {
    /// Permits an application to use circuits from now on; it is notified about its
    /// calls.
    pub(in crate::daemon) fn attach(&mut self, application: u16) -> Result<AtmAttached, Refusal> {
        let control = self.controlled()?;
        control.applications.entry(application).or_default();
        Ok(control.attached())
    }

    /// Acts on a request of an application, of this user.
    pub(in crate::daemon) fn request<D: Device>(
        &mut self,
        application: u16,
        user: u32,
        request: &Request,
        now: Duration,
        device: &mut D,
    ) -> Answered {
        let control = self.controlled()?;
        if !control.applications.contains_key(&application) {
            return refused(libc::ENOTCONN, "attach first");
        }
        match request {
            Request::OpenCircuit(of) => self.open(application, user, of.circuit(), device),
            Request::CloseCircuit(of) => {
                if self.close(application, of.circuit())? {
                    self.disown(of.circuit(), application, device);
                }
                DONE
            }
            Request::AtmListen(of) => control.listen(application, of),
            Request::AtmUnlisten(of) => {
                control.unlisten(application, of.listener, now);
                DONE
            }
            Request::AtmPresent(of) => self.present(application, of),
            Request::AtmPresented(_) => {
                control.awaited.remove(&application);
                DONE
            }
            _ => refused(libc::EOPNOTSUPP, "said by the wrong connection"),
        }
    }

    /// Acts on an application's message by its notice connection. `room`: its domain may
    /// have one more call.
    ///
    /// # Errors
    /// The reason why a call is not placed or accepted, which the application receives as
    /// the call's end.
    pub(in crate::daemon) fn said<D: Device>(
        &mut self,
        application: u16,
        room: bool,
        request: &Request,
        circuit: Option<ForeignFd>,
        now: Duration,
        device: &mut D,
    ) -> Result<(), Refusal> {
        let (call, done) = match request {
            Request::AtmCall(of) => (of.call, self.call(application, of, room, now)),
            Request::AtmAccept(of) => {
                let done = self.accept(application, of, room, circuit, now, device);
                (of.call, done)
            }
            Request::AtmRelease(of) => return self.release(application, of, now, device),
            Request::AtmAcknowledge(of) => return self.acknowledge(application, of, now),
            _ => return refused(libc::EOPNOTSUPP, "said by the wrong connection"),
        };
        if let (Err(refusal), Some(control)) = (&done, &mut self.control) {
            let cause = Cause::RESOURCES_UNAVAILABLE;
            control.tell_ended(application, call, refusal.errno(), cause);
        }
        done
    }

    fn controlled(&mut self) -> Result<&mut Control, Refusal> {
        match &mut self.control {
            Some(control) => Ok(control),
            None => refused(
                libc::EUNATCH,
                "the interface is none of ATM: tidewalld --atm-next-hop ADDRESS",
            ),
        }
    }

    fn open<D: Device>(
        &mut self,
        application: u16,
        user: u32,
        circuit: Circuit,
        device: &mut D,
    ) -> Answered {
        let control = self.controlled()?;
        let granted = control.config.permanent.iter().any(|it| {
            it.vpi == circuit.vpi
                && it.vcis.contains(&circuit.vci)
                && it.user.is_none_or(|of| of == user)
        });
        if !granted {
            let text = format!(
                "user {user} may not open circuit {circuit}: tidewalld --atm-permanent {circuit}"
            );
            return refused(libc::EACCES, text);
        }
        if circuit == Circuit::SIGNALLING || control.link.is_held(circuit) {
            return refused(libc::EADDRINUSE, "the circuit is signalling's, or a call's");
        }
        let attached = control.applications.entry(application).or_default();
        if !attached.permanent.insert(circuit) {
            return refused(libc::EADDRINUSE, "the application has the circuit");
        }
        if let Err(error) = self.own(circuit, application, device) {
            self.close(application, circuit)?;
            return Err(error.into());
        }
        DONE
    }

    /// Removes an application's permanent circuit; true if it had it.
    fn close(&mut self, application: u16, circuit: Circuit) -> Result<bool, Refusal> {
        let attached = self.controlled()?.applications.get_mut(&application);
        Ok(attached.is_some_and(|of| of.permanent.remove(&circuit)))
    }

    fn call(
        &mut self,
        application: u16,
        of: &AtmCall,
        room: bool,
        now: Duration,
    ) -> Result<(), Refusal> {
        let owners = std::mem::take(&mut self.owners);
        let begun = self.controlled().and_then(|control| {
            control.call(application, of, room, now, &|circuit| {
                owners.contains_key(&circuit)
            })
        });
        self.owners = owners;
        begun
    }

    fn accept<D: Device>(
        &mut self,
        application: u16,
        of: &AtmAccept,
        room: bool,
        circuit: Option<ForeignFd>,
        now: Duration,
        device: &mut D,
    ) -> Result<(), Refusal> {
        let control = self.controlled()?;
        let way = match of.reference.local {
            0 => Way::Link,
            _ => Way::Called,
        };
        let id = listener_id(application, of.listener);
        let Some(taken) = control.of(way).take(id, of.reference.id()) else {
            return refused(libc::ECONNABORTED, "the call is no more");
        };
        if of.cause != 0 {
            control.of(way).release(now, taken.id, of.cause);
            return Ok(());
        }
        let accepted = self.take_over(application, of, (way, &taken), room, circuit, device);
        let control = self.controlled()?;
        match accepted {
            Ok(()) => drop(control.of(way).answer(now, &taken)),
            Err(_) => {
                let cause = Cause::RESOURCES_UNAVAILABLE;
                control.of(way).release(now, taken.id, cause);
            }
        }
        accepted
    }

    /// Makes an accepted call, and its label, the application's.
    fn take_over<D: Device>(
        &mut self,
        application: u16,
        of: &AtmAccept,
        (way, taken): (Way, &Taken),
        room: bool,
        circuit: Option<ForeignFd>,
        device: &mut D,
    ) -> Result<(), Refusal> {
        let control = self.controlled()?;
        control.check_new(application, of.call, room)?;
        let mut line = Line {
            way,
            id: taken.id,
            circuit: None,
        };
        match (way, circuit) {
            (Way::Link, _) => {
                line.circuit = Some(taken.circuit);
                self.own(taken.circuit, application, device)?;
            }
            (_, Some(circuit)) => drop(control.ends.insert(taken.id.value, circuit)),
            (_, None) => return refused(libc::EINVAL, "a local call without its circuit"),
        }
        self.controlled()?.enter(application, of.call, line);
        Ok(())
    }

    fn acknowledge(
        &mut self,
        application: u16,
        of: &CallNumber,
        now: Duration,
    ) -> Result<(), Refusal> {
        let control = self.controlled()?;
        let attached = control.applications.get(&application);
        if let Some(line) = attached.and_then(|it| it.calls.get(&of.call)) {
            let (way, id) = (line.way, line.id);
            control.of(way).acknowledge(now, id);
        }
        Ok(())
    }

    fn release<D: Device>(
        &mut self,
        application: u16,
        of: &AtmRelease,
        now: Duration,
        device: &mut D,
    ) -> Result<(), Refusal> {
        let control = self.controlled()?;
        if let Some(line) = control.end(application, of.call, of.cause, false) {
            control.of(line.way).release(now, line.id, of.cause);
            if let Some(circuit) = line.circuit {
                self.disown(circuit, application, device);
            }
        }
        Ok(())
    }

    fn present(&mut self, application: u16, of: &AtmPresent) -> Answered {
        let reference = &of.reference;
        let (id, circuit, local) = (reference.id(), reference.circuit(), reference.local != 0);
        let owned = circuit.is_some_and(|it| self.owners.get(&it) == Some(&application));
        let control = self.controlled()?;
        control.check_new(application, of.call, true)?;
        let way = match (local, id.ours) {
            (false, _) => Way::Link,
            (true, true) => Way::Caller,
            (true, false) => Way::Called,
        };
        let circuit = circuit.filter(|_| way == Way::Link);
        let is_late = control.begins_at.is_none();
        if is_late || owned == local || !control.of(way).restore(id, circuit) {
            control.tell_ended(application, of.call, 0, Cause::TEMPORARY_FAILURE);
            return refused(libc::ENOENT, "no such call is left");
        }
        control.enter(application, of.call, Line { way, id, circuit });
        if !id.ours {
            // The earlier run may not have reported it. If the caller knows that the call
            // has ended, that is reported next.
            control.tell_connected(application, of.call, u32::MAX, None);
        }
        DONE
    }
}

impl Control {
    /// Checks that an application may have a call of this number. `room`: its domain may
    /// have one more.
    fn check_new(&self, application: u16, call: u32, room: bool) -> Result<(), Refusal> {
        let attached = self.applications.get(&application);
        match attached.map(|of| (of.calls.len(), of.calls.contains_key(&call))) {
            Some((_, true)) => refused(libc::EINVAL, "there is a call of this number"),
            Some((CALLS.., _)) => refused(libc::ENOBUFS, "too many calls of this application"),
            _ if !room => refused(libc::ENOBUFS, "too many calls of this user or unit"),
            _ => Ok(()),
        }
    }

    fn listen(&mut self, application: u16, of: &AtmListen) -> Answered {
        let (sap, options) = meant(&of.sap, &of.carried)?;
        if !(1..=BACKLOG).contains(&of.backlog) {
            return refused(libc::EINVAL, "backlog out of range");
        }
        let attached = self.applications.entry(application).or_default();
        if attached.listeners.len() >= CALLS {
            return refused(libc::ENOBUFS, "too many listeners of this application");
        }
        let id = listener_id(application, of.listener);
        let backlog = of.backlog as usize;
        match self.link.listen(id, sap, options, backlog) {
            Ok(()) => {}
            Err(ListenError::NotOwn) => {
                let text = format!("the number is none of {}", self.link.number());
                return refused(libc::EADDRNOTAVAIL, text);
            }
            Err(ListenError::InUse) => {
                return refused(libc::EADDRINUSE, "another listens there for the same");
            }
        }
        // Every listener on the link also listens here.
        let _ = self.called.listen(id, sap, options, backlog);
        attached.listeners.insert(of.listener);
        DONE
    }

    fn unlisten(&mut self, application: u16, listener: u32, now: Duration) {
        let attached = self.applications.get_mut(&application);
        if attached.is_some_and(|of| of.listeners.remove(&listener)) {
            let id = listener_id(application, listener);
            self.link.unlisten(now, id);
            self.called.unlisten(now, id);
        }
    }

    fn call(
        &mut self,
        application: u16,
        of: &AtmCall,
        room: bool,
        now: Duration,
        is_open: &dyn Fn(Circuit) -> bool,
    ) -> Result<(), Refusal> {
        let (to, options) = meant(&of.to, &of.carried)?;
        self.check_new(application, of.call, room)?;
        let from = number(of.from).unwrap_or(self.config.number);
        if !self.link.is_own(&from) {
            return refused(libc::EADDRNOTAVAIL, "who calls is another system");
        }
        let way = match self.link.is_own(&to.number) {
            true => Way::Caller,
            false => Way::Link,
        };
        match self.of(way).call(now, &to, from, &options, is_open) {
            Ok(id) => {
                let circuit = None;
                self.enter(application, of.call, Line { way, id, circuit });
                Ok(())
            }
            Err(CallError::NoCircuit) => refused(libc::EHOSTUNREACH, "no circuit is free"),
            Err(CallError::Busy) => refused(libc::ENOBUFS, "too many calls"),
        }
    }
}

impl Line {
    pub(super) fn reference(&self) -> AtmReference {
        AtmReference::of(self.id, self.circuit, self.way != Way::Link)
    }
}

fn meant(
    sap: &AtmSap,
    carried: &AtmCarried,
) -> Result<(Sap, tidewall_atm::calls::CircuitOptions), Refusal> {
    match (sap.sap(), carried.options()) {
        (Some(sap), Some(options)) if sap.number != Nsap([0; 20]) => Ok((sap, options)),
        _ => refused(libc::EINVAL, "number or options out of range"),
    }
}
