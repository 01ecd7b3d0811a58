//! The effects of time, the link and requests on calls.

use std::ops::Bound;
use std::time::Duration;

use tidewall_wire::atm::q2931::{
    CallReference, Cause, ConnectionIdentifier, Elements, MESSAGE_MAX, MessageType, Restart,
};

use super::{Call, CallId, Event, Phase, Side, Signalling, because, expired};
use crate::reassembly::Time;
use crate::sscop;

/// How many calls' states are asked for at once when the link comes up again, and the
/// pause before those of more. Each message is kept until the other end has it, and the
/// link's queue is for others, too.
const ASKED_AT_ONCE: usize = 256;
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Signalling {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.link.handle_timeout(now);
        self.take_link_events(now);
        if self.down_until.take_if(|at| *at <= now).is_some() {
            let cause = Cause::new(Cause::DESTINATION_OUT_OF_ORDER);
            self.drop_calls(|_| true, cause);
        }
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.call_expired(now, id);
        }
        if let Some((_, behind)) = self.asking.take_if(|(at, _)| *at <= now) {
            self.enquire_behind(now, behind);
        }
        if let Some(restarting) = &mut self.restarting
            && restarting.timer <= now
        {
            if restarting.again {
                self.restarting = None;
                self.events.push_back(Event::RestartDone(false));
            } else {
                restarting.again = true;
                restarting.timer = now + self.config.t316;
                let (kind, connection) = (restarting.kind, restarting.connection);
                self.put_restart(now, MessageType::Restart, false, kind, connection);
            }
        }
    }

    pub(super) fn call_expired(&mut self, now: Time, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.timer = None;
        let again = std::mem::replace(&mut call.again, true);
        match call.phase {
            Phase::SetupSent if !again => {
                let elements = call.setup.as_deref().copied().unwrap_or_default();
                self.arm(id, now + self.config.t303);
                self.put(now, id, MessageType::Setup, &elements);
            }
            Phase::SetupSent => self.end(id, Cause::new(Cause::NO_USER_RESPONDING)),
            Phase::ProceedingReceived => self.send_release(now, id, expired(b"310")),
            Phase::ConnectSent => self.send_release(now, id, expired(b"313")),
            Phase::ReleaseSent if !again => {
                self.arm(id, now + self.config.t308);
                self.put(now, id, MessageType::Release, &because(expired(b"308")));
            }
            Phase::ReleaseSent => {
                let cause = call.cause;
                self.end(id, cause);
            }
            // T322: the other end does not report on an active call. Or T313, for one
            // that the network's side has accepted.
            Phase::Active if !again => {
                self.arm(id, now + self.config.t322);
                self.put(now, id, MessageType::StatusEnquiry, &Elements::default());
            }
            Phase::Active => self.send_release(now, id, Cause::new(Cause::TEMPORARY_FAILURE)),
            Phase::SetupReceived => {
                let named = match self.config.side {
                    Side::Network => call.connection,
                    Side::User => None,
                };
                let _ = self.proceeding(now, id, named);
            }
            Phase::ProceedingSent | Phase::ReleaseReceived => {}
        }
    }

    /// Processes a PDU received on the link's circuit.
    pub fn pdu_received(&mut self, now: Time, bytes: &[u8]) {
        self.link.pdu_received(now, bytes);
        self.take_link_events(now);
    }

    pub(super) fn take_link_events(&mut self, now: Time) {
        while let Some(event) = self.link.poll_event() {
            match event {
                sscop::Event::Established => self.link_up(now),
                sscop::Event::Released => self.link_down(now),
                sscop::Event::Data(bytes) => self.message(now, &bytes),
            }
        }
    }

    /// Handles a link that came up, or up again. Messages in transit may be lost, so each
    /// active call's state is asked for (§5.6.8, §5.6.9), soon. A neighbour that restarts
    /// repeatedly does not cause work for all calls each time.
    pub(super) fn link_up(&mut self, now: Time) {
        self.up = true;
        self.down_until = None;
        self.events.push_back(Event::LinkUp);
        while let Some(message) = self.waiting.pop_front() {
            let _ = self.link.send(&message);
        }
        let next = self.asking.map_or(now + ASK_AGAIN, |(at, _)| at);
        self.asking = Some((next, None));
    }

    /// Asks for the states of some active calls, those after this one. A call that waits
    /// for its acknowledgment has its timer, which a restarting link must not set back.
    fn enquire_behind(&mut self, now: Time, mut behind: Option<CallId>) {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let active = self.calls.range((from, Bound::Unbounded));
        let active = active.filter(|(_, call)| call.phase == Phase::Active && !call.unacknowledged);
        let active: Vec<CallId> = active.map(|(id, _)| *id).take(ASKED_AT_ONCE).collect();
        let mut rest = active.len() == ASKED_AT_ONCE;
        for id in active {
            if !self.enquire(now, id) {
                rest = true;
                break;
            }
            behind = Some(id);
        }
        self.asking = rest.then_some((now + ASK_AGAIN, behind));
    }

    pub(super) fn link_down(&mut self, now: Time) {
        let was_up = std::mem::replace(&mut self.up, false);
        self.waiting.clear();
        self.asking = None;
        let cause = Cause::new(Cause::DESTINATION_OUT_OF_ORDER);
        self.drop_calls(|call| call.phase != Phase::Active, cause);
        if was_up {
            self.events.push_back(Event::LinkDown);
        }
        if !self.calls.is_empty() {
            self.down_until.get_or_insert(now + self.config.t309);
            self.link.establish(now);
        }
    }

    /// Asks for a call's state (§5.6.10). False if the link does not accept the message.
    fn enquire(&mut self, now: Time, id: CallId) -> bool {
        if !self.put(now, id, MessageType::StatusEnquiry, &Elements::default()) {
            return false;
        }
        if let Some(call) = self.calls.get_mut(&id) {
            call.again = false;
        }
        self.arm(id, now + self.config.t322);
        true
    }

    /// Sets a call's timer.
    pub(super) fn arm(&mut self, id: CallId, at: Time) {
        self.disarm(id);
        if let Some(call) = self.calls.get_mut(&id) {
            call.timer = Some(at);
            self.timers.insert((at, id));
        }
    }

    pub(super) fn disarm(&mut self, id: CallId) {
        let call = self.calls.get_mut(&id);
        if let Some(at) = call.and_then(|call| call.timer.take()) {
            self.timers.remove(&(at, id));
        }
    }

    /// Puts a call into a phase, without a timer.
    pub(super) fn enter(&mut self, id: CallId, phase: Phase) {
        self.disarm(id);
        if let Some(call) = self.calls.get_mut(&id) {
            call.phase = phase;
            call.again = false;
            call.setup = None;
        }
    }

    /// Removes a call that has ended.
    pub(super) fn end(&mut self, id: CallId, cause: Cause) {
        self.disarm(id);
        if self.calls.remove(&id).is_some() {
            self.events.push_back(Event::Released(id, cause));
        }
    }

    pub(super) fn drop_calls(&mut self, which: impl Fn(&Call) -> bool, cause: Cause) {
        let gone = self.calls.iter().filter(|(_, call)| which(call));
        let gone: Vec<CallId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.end(id, cause);
        }
    }

    pub(super) fn send_release(&mut self, now: Time, id: CallId, cause: Cause) {
        self.enter(id, Phase::ReleaseSent);
        if let Some(call) = self.calls.get_mut(&id) {
            call.cause = cause;
        }
        self.arm(id, now + self.config.t308);
        self.put(now, id, MessageType::Release, &because(cause));
    }

    /// Sends a message to the call's other end. True if the link accepts it.
    pub(super) fn put(
        &mut self,
        now: Time,
        id: CallId,
        kind: MessageType,
        elements: &Elements,
    ) -> bool {
        let Some(reference) = CallReference::new(id.value, !id.ours) else {
            return false;
        };
        self.put_message(now, reference, kind, elements)
    }

    pub(super) fn put_message(
        &mut self,
        now: Time,
        reference: CallReference,
        kind: MessageType,
        elements: &Elements,
    ) -> bool {
        let mut bytes = [0; MESSAGE_MAX];
        let Ok(length) = elements.emit(reference, kind, &mut bytes) else {
            return false;
        };
        let message = bytes.get(..length).unwrap_or_default();
        if self.up {
            return self.link.send(message).is_ok();
        }
        if self.waiting.len() >= self.config.link.queue {
            return false;
        }
        self.waiting.push_back(message.to_vec());
        self.link.establish(now);
        true
    }

    pub(super) fn put_restart(
        &mut self,
        now: Time,
        message: MessageType,
        to_origin: bool,
        kind: Restart,
        connection: Option<ConnectionIdentifier>,
    ) {
        let elements = Elements {
            connection,
            restart: Some(kind),
            ..Elements::default()
        };
        self.put_message(now, CallReference::global(to_origin), message, &elements);
    }

    /// Ends the calls that a RESTART names.
    pub(super) fn release_of(&mut self, kind: Restart, connection: Option<ConnectionIdentifier>) {
        let cause = Cause::new(Cause::TEMPORARY_FAILURE);
        self.drop_calls(
            |call| match (kind, call.connection, connection) {
                (Restart::Link, ..) => true,
                (Restart::Path, Some(has), Some(named)) => has.vpi == named.vpi,
                (Restart::Circuit, Some(has), Some(named)) => has == named,
                _ => false,
            },
            cause,
        );
    }
}
