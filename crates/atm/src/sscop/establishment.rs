//! Bringing a link up, up again and down: BGN, END, RS and ER with their answers (Q.2110
//! §7.1).

use tidewall_wire::atm::sscop::{Pdu, Sequence};

use super::{Event, Sscop, State, Timers};
use crate::reassembly::Time;

impl Sscop {
    /// Handles an answer to a request not in progress: without a connection the other end
    /// is informed.
    pub(super) fn unexpected(&mut self, letter: u8) {
        self.error(letter);
        if self.state == State::Idle {
            self.send_end(true);
        }
    }

    pub(super) fn unexpected_in_idle(&mut self, letter: u8) {
        if self.state == State::Idle {
            self.unexpected(letter);
        }
    }

    /// True for a request that is not a repetition (Q.2110 §7.3: VR(SQ)).
    fn is_new(&mut self, sequence: u8) -> bool {
        let new = sequence != self.vr_sq;
        self.vr_sq = sequence;
        new
    }

    pub(super) fn begin(&mut self, now: Time, sequence: u8, credit: Sequence) {
        let acknowledge = Pdu::BeginAcknowledge {
            credit: self.receiver.first_credit(),
            data: &[],
        };
        if self.is_new(sequence) {
            if !matches!(self.state, State::Idle | State::OutgoingConnection) {
                self.clear();
                self.events.push_back(Event::Released);
            }
            self.put(&acknowledge);
            self.ready(now, credit);
            return;
        }
        match self.state {
            State::Idle => self.put(&Pdu::BeginReject { data: &[] }),
            State::OutgoingConnection => {}
            State::Ready => {
                self.timers.no_response = Some(now + self.config.no_response);
                self.put(&acknowledge);
            }
            _ => {
                // The acknowledgment was lost, and the request is already in effect.
                self.put(&acknowledge);
                self.send_request();
            }
        }
    }

    pub(super) fn resynchronize(&mut self, now: Time, sequence: u8, credit: Sequence) {
        let acknowledge = Pdu::ResynchronizeAcknowledge {
            credit: self.receiver.first_credit(),
        };
        self.renew(now, sequence, credit, &acknowledge, b'J');
    }

    pub(super) fn recover(&mut self, now: Time, sequence: u8, credit: Sequence) {
        if self.state == State::OutgoingResynchronization {
            return self.error(b'L');
        }
        let acknowledge = Pdu::RecoverAcknowledge {
            credit: self.receiver.first_credit(),
        };
        self.renew(now, sequence, credit, &acknowledge, b'L');
    }

    /// RS and ER: restarts an established connection.
    fn renew(
        &mut self,
        now: Time,
        sequence: u8,
        credit: Sequence,
        acknowledge: &Pdu<'_>,
        letter: u8,
    ) {
        match self.state {
            State::Idle => self.unexpected(letter),
            State::OutgoingConnection => self.error(letter),
            State::OutgoingDisconnection => {}
            State::Ready if sequence == self.vr_sq => {
                self.timers.no_response = Some(now + self.config.no_response);
                self.put(acknowledge);
            }
            _ if sequence == self.vr_sq => self.error(letter),
            state => {
                self.vr_sq = sequence;
                if state == State::Ready {
                    self.clear();
                }
                self.put(acknowledge);
                self.ready(now, credit);
            }
        }
    }

    pub(super) fn cc_expired(&mut self, now: Time) {
        if self.vt_cc < self.config.max_cc {
            self.vt_cc += 1;
            self.timers.cc = Some(now + self.config.cc);
            self.send_request();
        } else {
            self.error(b'O');
            self.give_up();
        }
    }

    pub(super) fn start_recovery(&mut self, now: Time, letter: u8) {
        self.error(letter);
        self.clear();
        self.ask(now, State::OutgoingRecovery);
    }

    /// Sends the request that leads to a state, and waits in it for the answer.
    pub(super) fn ask(&mut self, now: Time, state: State) {
        self.state = state;
        self.timers = Timers {
            cc: Some(now + self.config.cc),
            ..Timers::default()
        };
        self.vt_cc = 1;
        if state != State::OutgoingDisconnection {
            self.vt_sq = self.vt_sq.wrapping_add(1);
        }
        self.send_request();
    }

    /// Sends the state's request, first or repeated.
    fn send_request(&mut self) {
        let (sequence, credit, data) = (self.vt_sq, self.receiver.first_credit(), &[][..]);
        match self.state {
            State::OutgoingConnection => self.put(&Pdu::Begin {
                sequence,
                credit,
                data,
            }),
            State::OutgoingDisconnection => self.send_end(false),
            State::OutgoingResynchronization => self.put(&Pdu::Resynchronize {
                sequence,
                credit,
                data,
            }),
            State::OutgoingRecovery => self.put(&Pdu::Recover { sequence, credit }),
            State::Idle | State::Ready => {}
        }
    }

    pub(super) fn send_end(&mut self, by_protocol: bool) {
        let data = &[];
        self.put(&Pdu::End { by_protocol, data });
    }

    /// Records that the link is up, from number 0 on.
    pub(super) fn ready(&mut self, now: Time, credit: Sequence) {
        self.state = State::Ready;
        self.timers = Timers {
            poll: Some(now + self.config.poll),
            no_response: Some(now + self.config.no_response),
            ..Timers::default()
        };
        self.transmitter.begin(credit);
        self.receiver.begin();
        self.events.push_back(Event::Established);
    }

    /// Discards data in transit and waiting (Clear-Buffers is "yes" at the UNI).
    pub(super) fn clear(&mut self) {
        self.transmitter.clear();
        self.receiver.clear();
    }

    pub(super) fn down(&mut self) {
        self.clear();
        self.state = State::Idle;
        self.timers = Timers::default();
        self.events.push_back(Event::Released);
    }

    pub(super) fn give_up(&mut self) {
        self.send_end(true);
        self.down();
    }
}
