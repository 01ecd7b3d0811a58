//! The link under signalling: SSCOP (ITU-T Q.2110), as used by SSCF at the UNI (Q.2130).
//! It delivers messages in order, none lost and none twice. This holds between an event
//! that the link is up and the next event that it is up, or down.
//!
//! The names of variables are the recommendation's: `vt_s` is VT(S). SSCF answers each
//! indication at once. So the four states in which SSCOP waits for its user (3, 6, 8 and
//! 9) are passed through within a call and not kept.

mod establishment;
mod receiver;
mod transmitter;

use std::collections::VecDeque;
use std::time::Duration;

use tidewall_wire::atm::sscop::{DATA_MAX, LIST_MAX, List, PDU_MAX, Pdu, Sequence};

use crate::reassembly::Time;

use receiver::Receiver;
use transmitter::{Next, Transmitter};

/// Half of all numbers: numbers further ahead count as behind.
const HALF: u32 = 1 << 23;

/// Maximum number of answers that wait to be sent; SSCOP repeats what is missing.
const OUT_MAX: usize = 64;

/// Timers and limits; the defaults are UNI 3.1's (§5.2, Q.2130 §7).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Time between repetitions of BGN, END, ER and RS.
    pub cc: Duration,
    /// How often they are sent.
    pub max_cc: u32,
    /// Time between POLLs while data is in transit.
    pub poll: Duration,
    /// Number of SDs after which a POLL is also sent.
    pub max_pd: u32,
    /// Time between POLLs when no data is, until one is answered.
    pub keep_alive: Duration,
    /// Time without an answer after which the link is down.
    pub no_response: Duration,
    /// Time without data from an answer to the next POLL.
    pub idle: Duration,
    /// Messages that the other end may send ahead of those taken from here, 1 to
    /// 8,388,607.
    pub window: u32,
    /// Messages that wait to be sent or acknowledged.
    pub queue: usize,
    /// N(SQ) before the first BGN. It should differ at each start, or the other end takes
    /// the first BGN of a new life for a repetition of the old one's.
    pub first_sequence: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cc: Duration::from_secs(1),
            max_cc: 4,
            poll: Duration::from_millis(750),
            max_pd: 25,
            keep_alive: Duration::from_secs(2),
            no_response: Duration::from_secs(7),
            idle: Duration::from_secs(15),
            window: 128,
            queue: 1024,
            first_sequence: 0,
        }
    }
}

/// The lasting states (Q.2110 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// 1: down.
    Idle,
    /// 2: BGN is sent.
    OutgoingConnection,
    /// 4: END is sent.
    OutgoingDisconnection,
    /// 5: RS is sent.
    OutgoingResynchronization,
    /// 7: ER is sent.
    OutgoingRecovery,
    /// 10: up.
    Ready,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::OutgoingConnection,
        Self::OutgoingDisconnection,
        Self::OutgoingResynchronization,
        Self::OutgoingRecovery,
        Self::Ready,
    ];
}

/// An event for the user of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// AAL-ESTABLISH: up, or up again; data in transit may be lost.
    Established,
    /// AAL-RELEASE: down.
    Released,
    /// AAL-DATA: a message.
    Data(Vec<u8>),
}

/// The reason why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The link is down (ENETDOWN).
    #[error("the signalling link is down")]
    Down,
    /// Too many messages wait (EAGAIN).
    #[error("too many messages wait to be sent")]
    Full,
    /// More than 4,096 bytes (EMSGSIZE).
    #[error("the message is over 4,096 bytes")]
    TooLong,
}

#[derive(Debug, Default)]
struct Timers {
    cc: Option<Time>,
    poll: Option<Time>,
    keep_alive: Option<Time>,
    no_response: Option<Time>,
    idle: Option<Time>,
}

/// One end of a link.
#[derive(Debug)]
pub struct Sscop {
    config: Config,
    state: State,
    timers: Timers,
    vt_sq: u8,
    vr_sq: u8,
    vt_cc: u32,
    transmitter: Transmitter,
    receiver: Receiver,
    out: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    errors: [u64; 26],
}

impl Sscop {
    /// A link that is down.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Config {
            window: config.window.clamp(1, HALF - 1),
            ..config
        };
        Self {
            config,
            state: State::Idle,
            timers: Timers::default(),
            vt_sq: config.first_sequence,
            vr_sq: 0,
            vt_cc: 0,
            transmitter: Transmitter::default(),
            receiver: Receiver::new(config.window),
            out: VecDeque::new(),
            events: VecDeque::new(),
            errors: [0; 26],
        }
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Number of errors reported to management under a letter, `b'A'` to `b'X'` (Q.2110
    /// §A.1); 0 for anything else.
    #[must_use]
    pub fn errors(&self, letter: u8) -> u64 {
        let index = usize::from(letter.wrapping_sub(b'A'));
        self.errors.get(index).copied().unwrap_or(0)
    }

    /// AAL-ESTABLISH.request: brings the link up, or up again.
    pub fn establish(&mut self, now: Time) {
        match self.state {
            State::Idle | State::OutgoingDisconnection => {
                self.clear();
                self.ask(now, State::OutgoingConnection);
            }
            State::Ready => {
                self.clear();
                self.ask(now, State::OutgoingResynchronization);
            }
            _ => {}
        }
    }

    /// AAL-RELEASE.request: takes the link down.
    pub fn release(&mut self, now: Time) {
        match self.state {
            State::Idle => self.events.push_back(Event::Released),
            State::OutgoingDisconnection => {}
            _ => {
                self.clear();
                self.ask(now, State::OutgoingDisconnection);
            }
        }
    }

    /// AAL-DATA.request: a message for the other end.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, message: &[u8]) -> Result<(), SendError> {
        match self.state {
            State::Ready | State::OutgoingRecovery | State::OutgoingResynchronization => {}
            _ => return Err(SendError::Down),
        }
        if message.len() > DATA_MAX {
            return Err(SendError::TooLong);
        }
        if self.transmitter.len() >= self.config.queue {
            return Err(SendError::Full);
        }
        self.transmitter.push(message);
        Ok(())
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Data(_) = event {
            self.receiver.taken();
        }
        Some(event)
    }

    /// Time at which [`Sscop::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timers = &self.timers;
        let data = [
            timers.poll,
            timers.keep_alive,
            timers.no_response,
            timers.idle,
        ];
        data.into_iter().chain([timers.cc]).flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        let due = |timer: &mut Option<Time>| timer.take_if(|at| *at <= now).is_some();
        if due(&mut self.timers.cc) {
            self.cc_expired(now);
        }
        if due(&mut self.timers.no_response) {
            self.error(b'P');
            self.give_up();
        }
        if due(&mut self.timers.idle) {
            self.timers.no_response = Some(now + self.config.no_response);
            self.poll_again(now);
        }
        // One POLL, if both are due.
        if due(&mut self.timers.poll) | due(&mut self.timers.keep_alive) {
            self.poll_again(now);
        }
    }

    fn poll_again(&mut self, now: Time) {
        self.send_poll();
        if self.transmitter.len() == 0 {
            self.timers.poll = None;
            self.timers.keep_alive = Some(now + self.config.keep_alive);
        } else {
            self.timers.keep_alive = None;
            self.timers.poll = Some(now + self.config.poll);
        }
    }

    /// The next PDU to send, if there is one.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        if self.out.is_empty() && self.state == State::Ready {
            self.transmit_data(now);
        }
        self.out.pop_front()
    }

    fn transmit_data(&mut self, now: Time) {
        match self.transmitter.next() {
            Next::Data(pdu) => {
                self.out.push_back(pdu);
                self.data_sent(now);
            }
            Next::NoCredit if self.timers.poll.is_none() => {
                // A POLL asks for more.
                self.timers.idle = None;
                self.timers.keep_alive = None;
                self.timers.no_response = Some(now + self.config.no_response);
                self.send_poll();
                self.timers.poll = Some(now + self.config.poll);
            }
            Next::NoCredit | Next::Nothing => {}
        }
    }

    /// Records a sent SD, and schedules a POLL if it is due (Q.2110, figure 20, sheets 46
    /// and 47).
    fn data_sent(&mut self, now: Time) {
        if self.timers.poll.is_none() {
            if self.timers.idle.take().is_some() {
                self.timers.no_response = Some(now + self.config.no_response);
            } else {
                self.timers.keep_alive = None;
            }
            self.timers.poll = Some(now + self.config.poll);
        }
        if self.transmitter.since_poll() >= self.config.max_pd {
            self.send_poll();
            self.timers.poll = Some(now + self.config.poll);
        }
    }

    fn send_poll(&mut self) {
        let poll = self.transmitter.poll();
        self.put(&poll);
    }

    /// Processes a received PDU.
    pub fn pdu_received(&mut self, now: Time, bytes: &[u8]) {
        let Ok(pdu) = Pdu::parse(bytes) else {
            self.error(b'U');
            return;
        };
        match pdu {
            Pdu::Begin {
                sequence, credit, ..
            } => self.begin(now, sequence, credit),
            Pdu::BeginAcknowledge { credit, .. } => match self.state {
                State::OutgoingConnection => self.ready(now, credit),
                State::OutgoingDisconnection => {}
                _ => self.unexpected(b'C'),
            },
            Pdu::BeginReject { .. } => match self.state {
                State::OutgoingConnection => self.down(),
                State::Idle => self.error(b'D'),
                _ => {
                    self.error(b'D');
                    self.down();
                }
            },
            Pdu::End { .. } => match self.state {
                State::OutgoingConnection => {}
                State::Idle => self.put(&Pdu::EndAcknowledge),
                _ => {
                    self.put(&Pdu::EndAcknowledge);
                    self.down();
                }
            },
            Pdu::EndAcknowledge => match self.state {
                State::Idle | State::OutgoingConnection => {}
                State::OutgoingDisconnection => self.down(),
                _ => {
                    self.error(b'F');
                    self.down();
                }
            },
            Pdu::Resynchronize {
                sequence, credit, ..
            } => self.resynchronize(now, sequence, credit),
            Pdu::ResynchronizeAcknowledge { credit } => match self.state {
                State::OutgoingResynchronization => self.ready(now, credit),
                State::OutgoingDisconnection => {}
                _ => self.unexpected(b'K'),
            },
            Pdu::Recover { sequence, credit } => self.recover(now, sequence, credit),
            Pdu::RecoverAcknowledge { credit } => match self.state {
                State::OutgoingRecovery => self.ready(now, credit),
                State::OutgoingDisconnection => {}
                _ => self.unexpected(b'M'),
            },
            Pdu::Data { number, data } => match self.state {
                State::Ready => self.data(now, number, data),
                _ => self.unexpected_in_idle(b'A'),
            },
            Pdu::Poll { poll, next } => match self.state {
                State::Ready => self.polled(now, poll, next),
                _ => self.unexpected_in_idle(b'G'),
            },
            Pdu::Status {
                missing,
                poll,
                credit,
                expected,
            } => match self.state {
                State::Ready => {
                    let taken = self.transmitter.status(missing, poll, credit, expected);
                    match taken {
                        Ok(()) => self.answered(now),
                        Err(letter) => self.start_recovery(now, letter),
                    }
                }
                _ => self.unexpected_in_idle(b'H'),
            },
            Pdu::UnsolicitedStatus {
                first,
                end,
                credit,
                expected,
            } => match self.state {
                State::Ready => {
                    let taken = (self.transmitter).unsolicited(first, end, credit, expected);
                    if let Err(letter) = taken {
                        self.start_recovery(now, letter);
                    }
                }
                _ => self.unexpected_in_idle(b'I'),
            },
            // Signalling sends neither.
            Pdu::UnnumberedData { .. } | Pdu::ManagementData { .. } => {}
        }
    }

    fn data(&mut self, now: Time, number: Sequence, data: &[u8]) {
        match self.receiver.data(number, data, &mut self.events) {
            Ok(Some(missing)) => self.put(&missing),
            Ok(None) => {}
            Err(letter) => self.start_recovery(now, letter),
        }
    }

    fn polled(&mut self, now: Time, poll: Sequence, next: Sequence) {
        let list = match self.receiver.polled(next) {
            Ok(list) => list,
            Err(letter) => return self.start_recovery(now, letter),
        };
        let (expected, credit) = self.receiver.expected();
        // A further STAT begins with the last element of the one before (§7.7).
        let mut from = 0;
        loop {
            let to = list.len().min(from + LIST_MAX);
            self.put(&Pdu::Status {
                missing: List::new(list.get(from..to).unwrap_or_default()),
                poll,
                credit,
                expected,
            });
            if to == list.len() {
                break;
            }
            from = to - 1;
        }
    }

    /// Records a processed STAT: the other end is alive.
    fn answered(&mut self, now: Time) {
        if self.timers.poll.is_some() {
            self.timers.no_response = Some(now + self.config.no_response);
        } else if self.timers.idle.is_none() {
            self.timers.keep_alive = None;
            self.timers.no_response = None;
            self.timers.idle = Some(now + self.config.idle);
        }
    }

    fn put(&mut self, pdu: &Pdu<'_>) {
        if self.out.len() < OUT_MAX {
            self.out.push_back(emitted(pdu));
        }
    }

    fn error(&mut self, letter: u8) {
        let index = usize::from(letter.wrapping_sub(b'A'));
        if let Some(count) = self.errors.get_mut(index) {
            *count += 1;
        }
    }
}

fn emitted(pdu: &Pdu<'_>) -> Vec<u8> {
    let mut bytes = vec![0; PDU_MAX];
    // No PDU made here is longer, so nothing is truncated.
    let length = pdu.emit(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests;
