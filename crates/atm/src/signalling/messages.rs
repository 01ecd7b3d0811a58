//! The effects of messages on calls (Q.2931 §5.2 to §5.6).

use tidewall_wire::atm::q2931::{
    CallReference, Cause, ElementAction, Elements, Fault, FaultKind, Faults, Message,
    MessageAction, MessageType,
};

use super::{CIRCUITS_TRIED, Call, CallId, Event, Phase, Side, Signalling, because};
use crate::reassembly::Time;

impl Signalling {
    pub(super) fn message(&mut self, now: Time, bytes: &[u8]) {
        let Ok(message) = Message::new(bytes) else {
            self.ignored += 1;
            return;
        };
        let reference = message.reference();
        let (elements, faults) = message.elements();
        let kind = MessageType::from_number(message.kind());
        if reference.is_global() {
            self.global(now, reference, kind, &elements, message.kind());
            return;
        }
        let id = CallId {
            ours: reference.to_origin,
            value: reference.value(),
        };
        let Some(call) = self.calls.get(&id) else {
            self.without_call(now, id, kind, &elements, &faults);
            return;
        };
        let Some(kind) = kind else {
            let unknown = Cause::new(Cause::MESSAGE_TYPE_UNKNOWN).with(&[message.kind()]);
            match message.action() {
                Some(MessageAction::Clear) => self.send_release(now, id, unknown),
                Some(MessageAction::Ignore) => self.ignored += 1,
                _ => self.status(now, id, unknown),
            }
            return;
        };
        let phase = call.phase;
        if !self.is_sound(now, id, phase, kind, &elements, &faults) {
            return;
        }
        self.on_message(now, id, phase, kind, &elements);
    }

    pub(super) fn on_message(
        &mut self,
        now: Time,
        id: CallId,
        phase: Phase,
        kind: MessageType,
        elements: &Elements,
    ) {
        match (kind, phase) {
            (MessageType::CallProceeding, Phase::SetupSent) => {
                self.enter(id, Phase::ProceedingReceived);
                self.learn(id, elements);
                self.arm(id, now + self.config.t310);
                let event = Event::Proceeding(id, Box::new(*elements));
                self.events.push_back(event);
            }
            (MessageType::Connect, Phase::SetupSent | Phase::ProceedingReceived) => {
                self.enter(id, Phase::Active);
                self.learn(id, elements);
                if let Some(call) = self.calls.get_mut(&id) {
                    call.unacknowledged = true;
                }
                let event = Event::Connected(id, Box::new(*elements));
                self.events.push_back(event);
            }
            (MessageType::ConnectAcknowledge, Phase::ConnectSent) => {
                self.enter(id, Phase::Active);
                let event = Event::Connected(id, Box::new(*elements));
                self.events.push_back(event);
            }
            // The network's side is already active at CONNECT (§5.2.6). Its owner may
            // want to know that the caller is, too.
            (MessageType::ConnectAcknowledge, Phase::Active) if !id.ours => {
                self.acknowledged(id, elements);
            }
            // A repeated SETUP, of a known call (§5.6.3.2).
            (MessageType::Setup, _) => self.ignored += 1,
            (MessageType::Release, Phase::ReleaseSent) => {
                // Both ends release: no further message is needed (§5.4.5).
                let cause = elements.cause.unwrap_or(Cause::new(Cause::NORMAL));
                self.end(id, cause);
            }
            (MessageType::Release, Phase::ReleaseReceived) => self.ignored += 1,
            (MessageType::Release, _) => {
                let missing = Cause::new(Cause::NORMAL_UNSPECIFIED);
                let cause = elements.cause.unwrap_or(missing);
                self.enter(id, Phase::ReleaseReceived);
                if let Some(call) = self.calls.get_mut(&id) {
                    call.cause = cause;
                }
                self.events.push_back(Event::Releasing(id, cause));
            }
            (MessageType::ReleaseComplete, Phase::SetupSent) if self.may_rename(id, elements) => {
                self.events.push_back(Event::CircuitRefused(id));
            }
            (MessageType::ReleaseComplete, _) => {
                let own = self.calls.get(&id).map(|call| call.cause);
                let fallback = own.unwrap_or(Cause::new(Cause::NORMAL));
                self.end(id, elements.cause.unwrap_or(fallback));
            }
            (MessageType::StatusEnquiry, _) => {
                self.status(now, id, Cause::new(Cause::RESPONSE_TO_STATUS_ENQUIRY));
            }
            (MessageType::Status, _) => self.status_received(now, id, phase, elements),
            (kind, _) => {
                let cause = Cause::new(Cause::MESSAGE_NOT_COMPATIBLE).with(&[kind as u8]);
                self.status(now, id, cause);
            }
        }
    }

    /// True if a call that the other end refuses for its circuit may use another: the
    /// other end no longer has the call, and its reference is free.
    fn may_rename(&mut self, id: CallId, elements: &Elements) -> bool {
        let unavailable =
            (elements.cause).is_some_and(|it| it.value() == Cause::CIRCUIT_NOT_AVAILABLE);
        let call = self.calls.get_mut(&id).filter(|_| unavailable);
        let Some(call) = call.filter(|call| call.connection.is_some()) else {
            return false;
        };
        call.refused += 1;
        self.config.side == Side::Network && call.refused < CIRCUITS_TRIED
    }

    /// Records that the caller is active, too. For a call that the network's side has
    /// accepted this is reported once.
    fn acknowledged(&mut self, id: CallId, elements: &Elements) {
        let call = self.calls.get_mut(&id).filter(|_| !id.ours);
        if call.is_some_and(|call| std::mem::take(&mut call.unacknowledged)) {
            self.disarm(id);
            let event = Event::Connected(id, Box::new(*elements));
            self.events.push_back(event);
        }
    }

    /// Records the circuit, once the other end names it.
    pub(super) fn learn(&mut self, id: CallId, elements: &Elements) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.connection = elements.connection.or(call.connection);
        }
    }

    /// Handles a message's missing and wrong elements (§5.6.6 to §5.6.8); true if the
    /// message still counts.
    pub(super) fn is_sound(
        &mut self,
        now: Time,
        id: CallId,
        phase: Phase,
        kind: MessageType,
        elements: &Elements,
        faults: &Faults,
    ) -> bool {
        let wrong = faults
            .iter()
            .find(|fault| fault.kind == FaultKind::Contents);
        let missing = match kind {
            MessageType::Status if elements.cause.is_none() => Some(0x08),
            MessageType::Status if elements.call_state.is_none() => Some(0x14),
            // The network names the circuit in its first answer.
            MessageType::CallProceeding | MessageType::Connect
                if self.config.side == Side::User
                    && phase == Phase::SetupSent
                    && elements.connection.is_none() =>
            {
                Some(0x5a)
            }
            _ => None,
        };
        if let Some(element) = missing {
            let cause = match wrong.filter(|fault| fault.id == element) {
                Some(_) => Cause::INVALID_CONTENTS,
                None => Cause::MANDATORY_ELEMENT_MISSING,
            };
            self.status(now, id, Cause::new(cause).with(&[element]));
            return false;
        }
        // Unknown elements do not delay clearing.
        if matches!(kind, MessageType::Release | MessageType::ReleaseComplete) {
            return true;
        }
        for fault in faults.iter() {
            let cause = match fault.kind {
                FaultKind::Unknown => Cause::ELEMENT_UNKNOWN,
                FaultKind::Contents => Cause::INVALID_CONTENTS,
            };
            let cause = Cause::new(cause).with(&[fault.id]);
            match fault.action {
                Some(ElementAction::Clear) => {
                    self.send_release(now, id, cause);
                    return false;
                }
                Some(ElementAction::IgnoreMessage) => {
                    self.ignored += 1;
                    return false;
                }
                Some(ElementAction::ReportMessage) => {
                    self.status(now, id, cause);
                    return false;
                }
                Some(ElementAction::Ignore) => {}
                // Answering a STATUS with a STATUS would never end.
                Some(ElementAction::Report) | None if kind != MessageType::Status => {
                    self.status(now, id, cause);
                }
                Some(ElementAction::Report) | None => {}
            }
        }
        true
    }

    pub(super) fn status(&mut self, now: Time, id: CallId, cause: Cause) {
        let phase = self.phase(id);
        let elements = Elements {
            cause: Some(cause),
            call_state: Some(phase.map_or(0, |phase| phase.number(self.config.side))),
            ..Elements::default()
        };
        self.put(now, id, MessageType::Status, &elements);
    }

    /// Processes the other end's state (§5.6.11, §5.6.12).
    pub(super) fn status_received(
        &mut self,
        now: Time,
        id: CallId,
        phase: Phase,
        elements: &Elements,
    ) {
        let state = elements.call_state.unwrap_or(0);
        if phase == Phase::Active {
            if state == Phase::Active.number(self.config.side) {
                self.acknowledged(id, &Elements::default());
            }
            // A caller without a CONNECT gets no more time by reporting so: the CONNECT
            // is lost.
            let waits = self.calls.get(&id).is_some_and(|call| call.unacknowledged);
            if !waits {
                self.disarm(id);
            }
        }
        if state == 0 {
            self.end(
                id,
                elements
                    .cause
                    .unwrap_or(Cause::new(Cause::TEMPORARY_FAILURE)),
            );
        } else if phase == Phase::Active && matches!(state, 11 | 12) {
            // It is releasing the call, and its RELEASE was lost.
            let cause = Cause::new(Cause::MESSAGE_NOT_COMPATIBLE);
            self.send_release(now, id, cause);
        }
    }

    /// Handles a message of no call (§5.6.3.2).
    pub(super) fn without_call(
        &mut self,
        now: Time,
        id: CallId,
        kind: Option<MessageType>,
        elements: &Elements,
        faults: &Faults,
    ) {
        let refuse = |cause: u8| because(Cause::new(cause));
        match kind {
            Some(MessageType::Setup) if !id.ours => {
                self.new_call(now, id, elements, faults);
            }
            Some(MessageType::Setup | MessageType::ReleaseComplete) => self.ignored += 1,
            Some(MessageType::StatusEnquiry) => {
                self.status(now, id, Cause::new(Cause::RESPONSE_TO_STATUS_ENQUIRY));
            }
            Some(MessageType::Status) if elements.call_state == Some(0) => self.ignored += 1,
            Some(MessageType::Status) => {
                let answer = refuse(Cause::MESSAGE_NOT_COMPATIBLE);
                self.put(now, id, MessageType::ReleaseComplete, &answer);
            }
            _ => {
                let answer = refuse(Cause::INVALID_CALL_REFERENCE);
                self.put(now, id, MessageType::ReleaseComplete, &answer);
            }
        }
    }

    /// Counts a SETUP of the other end; false for one too many.
    fn takes_setup(&mut self, now: Time) -> bool {
        let Some(setups) = &mut self.setups else {
            return true;
        };
        let takes = setups.next() <= now;
        if takes {
            setups.take(now, 1);
        }
        takes
    }

    pub(super) fn new_call(&mut self, now: Time, id: CallId, elements: &Elements, faults: &Faults) {
        // From the network, the circuit must also be named.
        let needs_circuit = self.config.side == Side::User && elements.connection.is_none();
        let missing = [
            (elements.traffic.is_none(), 0x59),
            (elements.bearer.is_none(), 0x5e),
            (elements.called.is_none(), 0x70),
            (elements.qos.is_none(), 0x5c),
            (needs_circuit, 0x5a),
        ];
        let missing = missing
            .iter()
            .find(|(is, _)| *is)
            .map(|(_, element)| *element);
        let refused = if let Some(element) = missing {
            let wrong = faults.iter().any(|fault| fault.id == element);
            let cause = if wrong {
                Cause::INVALID_CONTENTS
            } else {
                Cause::MANDATORY_ELEMENT_MISSING
            };
            Some(Cause::new(cause).with(&[element]))
        } else if self.calls.len() >= self.config.calls || !self.takes_setup(now) {
            self.refused += 1;
            Some(Cause::new(Cause::RESOURCES_UNAVAILABLE))
        } else {
            let clear = |fault: &&Fault| fault.action == Some(ElementAction::Clear);
            let cleared = faults.iter().find(clear);
            cleared.map(|fault| Cause::new(Cause::ELEMENT_UNKNOWN).with(&[fault.id]))
        };
        if let Some(cause) = refused {
            self.put(now, id, MessageType::ReleaseComplete, &because(cause));
            return;
        }
        self.calls.insert(
            id,
            Call {
                phase: Phase::SetupReceived,
                timer: None,
                again: false,
                connection: elements.connection,
                refused: 0,
                unacknowledged: false,
                setup: None,
                cause: Cause::new(Cause::NORMAL),
            },
        );
        self.events.push_back(Event::Setup(id, Box::new(*elements)));
    }

    /// Handles a message for all calls.
    pub(super) fn global(
        &mut self,
        now: Time,
        reference: CallReference,
        kind: Option<MessageType>,
        elements: &Elements,
        number: u8,
    ) {
        match (kind, elements.restart) {
            (Some(MessageType::Restart), Some(restart)) if !reference.to_origin => {
                let connection = elements.connection;
                self.release_of(restart, connection);
                self.events.push_back(Event::Restarted(restart, connection));
                let answer = MessageType::RestartAcknowledge;
                self.put_restart(now, answer, true, restart, connection);
            }
            (Some(MessageType::RestartAcknowledge), Some(restart)) if reference.to_origin => {
                let ours = (self.restarting.as_ref()).is_some_and(|ours| {
                    ours.kind == restart && ours.connection == elements.connection
                });
                if ours {
                    self.restarting = None;
                    self.events.push_back(Event::RestartDone(true));
                } else {
                    self.ignored += 1;
                }
            }
            (Some(MessageType::Status), _) => self.ignored += 1,
            (Some(MessageType::Restart | MessageType::RestartAcknowledge), None) => {
                let cause = Cause::new(Cause::MANDATORY_ELEMENT_MISSING).with(&[0x79]);
                self.global_status(now, reference, cause);
            }
            _ => {
                let cause = Cause::new(Cause::INVALID_CALL_REFERENCE).with(&[number]);
                self.global_status(now, reference, cause);
            }
        }
    }

    pub(super) fn global_status(&mut self, now: Time, reference: CallReference, cause: Cause) {
        let elements = Elements {
            cause: Some(cause),
            call_state: Some(0),
            ..Elements::default()
        };
        self.put_message(now, reference.reversed(), MessageType::Status, &elements);
    }
}
