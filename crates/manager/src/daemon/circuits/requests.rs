//! What applications ask for.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tidewall_atm::calls::{CallError, ListenError, Sap};
use tidewall_wire::atm::q2931::Cause;
use tidewall_wire::atm::{Circuit, Nsap};

use super::{Circuits, Control, Line, Way, listener_id};
use crate::daemon::Device;
use crate::daemon::manager::{Refusal, refused};
use crate::protocol::{
    Answer, AtmAccept, AtmAccepted, AtmAttached, AtmCall, AtmCarried, AtmConnected, AtmListen,
    AtmPresent, AtmReference, AtmRelease, AtmSap, Empty, Request, number,
};

/// Calls, and listeners, of one application.
const CALLS: usize = 4096;
/// Calls that may wait for a listener (Linux's `net.core.somaxconn`).
const BACKLOG: u32 = 4096;

type Answered = Result<(Answer, Option<OwnedFd>), Refusal>;

const DONE: Answered = Ok((Answer::Done(Empty {}), None));

impl Circuits {
    /// An application may have circuits from now on, and is told what becomes of its calls.
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
                    self.disown(of.circuit(), application, device)?;
                }
                DONE
            }
            Request::AtmListen(of) => control.listen(application, of),
            Request::AtmUnlisten(of) => {
                control.unlisten(application, of.listener, now);
                DONE
            }
            Request::AtmCall(of) => self.call(application, of, now, device),
            Request::AtmAccept(of) => self.accept(application, of, now, device),
            Request::AtmAnswer(of) => {
                let attached = control.applications.get_mut(&application);
                match attached.and_then(|attached| attached.taken.remove(&of.call)) {
                    Some(taken) => {
                        let line = control.applications.get(&application);
                        let line = line.and_then(|attached| attached.calls.get(&of.call));
                        let way = line.map_or(Way::Link, |line| line.way);
                        // One that has ended is said to have.
                        control.of(way).answer(now, &taken);
                        DONE
                    }
                    None => refused(libc::ECONNABORTED, "the call is no more"),
                }
            }
            Request::AtmRelease(of) => {
                if let Some(line) = control.end(application, of.call, of.cause, false) {
                    control.of(line.way).release(now, line.id, of.cause);
                    if let Some(circuit) = line.circuit {
                        self.disown(circuit, application, device)?;
                    }
                }
                DONE
            }
            Request::AtmPresent(of) => self.present(application, of),
            Request::AtmPresented(_) => {
                control.awaited.remove(&application);
                DONE
            }
            _ => refused(libc::EOPNOTSUPP, "no request for circuits"),
        }
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

    /// Forgets that a permanent circuit is an application's; true where it was.
    fn close(&mut self, application: u16, circuit: Circuit) -> Result<bool, Refusal> {
        let attached = self.controlled()?.applications.get_mut(&application);
        Ok(attached.is_some_and(|of| of.permanent.remove(&circuit)))
    }

    fn call<D: Device>(
        &mut self,
        application: u16,
        of: &AtmCall,
        now: Duration,
        device: &mut D,
    ) -> Answered {
        let owners = std::mem::take(&mut self.owners);
        let begun = self.controlled().and_then(|control| {
            control.call(application, of, now, &|circuit| {
                owners.contains_key(&circuit)
            })
        });
        self.owners = owners;
        let line = begun?;
        if let Some(circuit) = line.circuit
            && let Err(error) = self.own(circuit, application, device)
        {
            let control = self.controlled()?;
            control.end(application, of.call, Cause::RESOURCES_UNAVAILABLE, false);
            let cause = Cause::RESOURCES_UNAVAILABLE;
            control.of(line.way).release(now, line.id, cause);
            return Err(error.into());
        }
        Ok((Answer::AtmBegun(line.reference()), None))
    }

    fn accept<D: Device>(
        &mut self,
        application: u16,
        of: &AtmAccept,
        now: Duration,
        device: &mut D,
    ) -> Answered {
        let control = self.controlled()?;
        control.check_new(application, of.call)?;
        let id = listener_id(application, of.listener);
        let (way, taken) = match (control.link.take(id), Way::Link) {
            (Some(taken), way) => (way, taken),
            (None, _) => match control.called.take(id) {
                Some(taken) => (Way::Called, taken),
                None => return DONE,
            },
        };
        let mut line = Line {
            way,
            id: taken.id,
            circuit: None,
        };
        let mut beside = None;
        let made = match way {
            Way::Link => {
                line.circuit = Some(taken.circuit);
                self.own(taken.circuit, application, device)
            }
            _ => device.local_circuit().map(|[of_caller, of_called]| {
                beside = Some(of_called);
                if let Some(control) = &mut self.control {
                    control.ends.insert(taken.id.value, of_caller);
                }
            }),
        };
        let control = self.controlled()?;
        if let Err(error) = made {
            let cause = Cause::RESOURCES_UNAVAILABLE;
            control.of(way).release(now, taken.id, cause);
            return Err(error.into());
        }
        control.enter(application, of.call, line);
        let accepted = AtmAccepted {
            reference: line.reference(),
            carried: AtmCarried::of(&taken.agreed),
            local: taken.local.0,
            peer: taken.peer.map_or([0; 20], |peer| peer.0),
        };
        let attached = control.applications.entry(application).or_default();
        attached.taken.insert(of.call, taken);
        Ok((Answer::AtmAccepted(accepted), beside))
    }

    fn present(&mut self, application: u16, of: &AtmPresent) -> Answered {
        let reference = &of.reference;
        let (id, circuit, local) = (reference.id(), reference.circuit(), reference.local != 0);
        let owned = circuit.is_some_and(|it| self.owners.get(&it) == Some(&application));
        let control = self.controlled()?;
        control.check_new(application, of.call)?;
        let way = match (local, id.ours) {
            (false, _) => Way::Link,
            (true, true) => Way::Caller,
            (true, false) => Way::Called,
        };
        let circuit = circuit.filter(|_| way == Way::Link);
        let is_late = control.begins_at.is_none();
        if is_late || owned == local || !control.of(way).restore(id, circuit) {
            let (call, cause, pad) = (of.call, Cause::TEMPORARY_FAILURE, [0; 3]);
            let ended = Answer::AtmEnded(AtmRelease { call, cause, pad });
            control.tell(application, ended, None);
            return refused(libc::ENOENT, "no such call is left");
        }
        control.enter(application, of.call, Line { way, id, circuit });
        if !id.ours {
            // The earlier run may not have said so; if the caller knows better, that it has ended
            // is said next.
            let (call, longest) = (of.call, u32::MAX);
            let connected = Answer::AtmConnected(AtmConnected { call, longest });
            control.tell(application, connected, None);
        }
        DONE
    }
}

impl Control {
    /// That an application may have a call of this number.
    fn check_new(&self, application: u16, call: u32) -> Result<(), Refusal> {
        let attached = self.applications.get(&application);
        match attached.map(|of| (of.calls.len(), of.calls.contains_key(&call))) {
            Some((_, true)) => refused(libc::EINVAL, "there is a call of this number"),
            Some((CALLS.., _)) => refused(libc::ENOBUFS, "too many calls of this application"),
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
        // Whoever listens on the link does so here.
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
        now: Duration,
        is_open: &dyn Fn(Circuit) -> bool,
    ) -> Result<Line, Refusal> {
        let (to, options) = meant(&of.to, &of.carried)?;
        self.check_new(application, of.call)?;
        let from = number(of.from).unwrap_or(self.config.number);
        if !self.link.is_own(&from) {
            return refused(libc::EADDRNOTAVAIL, "who calls is another system");
        }
        let way = match self.link.is_own(&to.number) {
            true => Way::Caller,
            false => Way::Link,
        };
        match self.of(way).call(now, &to, from, &options, is_open) {
            Ok((id, circuit)) => {
                let line = Line { way, id, circuit };
                self.enter(application, of.call, line);
                Ok(line)
            }
            Err(CallError::NoCircuit) => refused(libc::EHOSTUNREACH, "no circuit is free"),
            Err(CallError::Busy) => refused(libc::ENOBUFS, "too many calls"),
        }
    }
}

impl Line {
    fn reference(&self) -> AtmReference {
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
