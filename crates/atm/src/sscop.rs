//! The link that signalling runs on: SSCOP (ITU-T Q.2110) as SSCF at the UNI (Q.2130) uses
//! it: messages in order, none lost, none twice, between an event that says that the link
//! is up and the next that says so, or that it is down.
//!
//! The names of variables are the recommendation's: `vt_s` is VT(S). SSCF answers each
//! indication at once, so the four states in which SSCOP waits for its user (3, 6, 8 and 9)
//! are passed through within a call and not kept.

use std::collections::VecDeque;
use std::time::Duration;

use tidewall_wire::atm::sscop::{DATA_MAX, LIST_MAX, List, PDU_MAX, Pdu, Sequence};

use crate::reassembly::Time;

/// Half of all numbers: what is further on counts as behind.
const HALF: u32 = 1 << 23;

/// The most answers that wait to be sent; SSCOP repeats what is missing.
const OUT_MAX: usize = 64;

/// Timers and limits; the defaults are UNI 3.1's (§5.2, Q.2130 §7).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Between repetitions of BGN, END, ER and RS.
    pub cc: Duration,
    /// How often they are sent.
    pub max_cc: u32,
    /// Between POLLs while data is under way.
    pub poll: Duration,
    /// SD after which a POLL is sent, too.
    pub max_pd: u32,
    /// Between POLLs when none is, until one is answered.
    pub keep_alive: Duration,
    /// Time without an answer after which the link is down.
    pub no_response: Duration,
    /// Time without data from an answer to the next POLL.
    pub idle: Duration,
    /// Messages that the other end may send ahead of those taken from here, 1 to 8,388,607.
    pub window: u32,
    /// Messages that wait to be sent or acknowledged.
    pub queue: usize,
    /// N(SQ) before the first BGN: best another at each start, or the other end takes the
    /// first BGN of a new life for a repetition of the old one's.
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

/// The states that last (Q.2110 §6.2).
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

/// What the user of the link learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// AAL-ESTABLISH: up, or up anew; of what was under way some may be lost.
    Established,
    /// AAL-RELEASE: down.
    Released,
    /// AAL-DATA: a message.
    Data(Vec<u8>),
}

/// Why a message is not taken.
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

#[derive(Debug)]
struct Sent {
    data: Vec<u8>,
    /// VT(PS) when it was sent last.
    poll: Sequence,
    /// It waits to be sent again.
    again: bool,
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
    vt_s: Sequence,
    vt_a: Sequence,
    vt_ms: Sequence,
    vt_ps: Sequence,
    vt_pa: Sequence,
    vt_pd: u32,
    vr_r: Sequence,
    vr_h: Sequence,
    vr_mr: Sequence,
    /// From VT(A) on.
    sent: VecDeque<Sent>,
    again: VecDeque<Sequence>,
    queue: VecDeque<Vec<u8>>,
    /// From VR(R) on; the first is missing.
    received: VecDeque<Option<Vec<u8>>>,
    out: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// [`Event::Data`] in `events`.
    untaken: u32,
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
        let zero = Sequence::default();
        Self {
            config,
            state: State::Idle,
            timers: Timers::default(),
            vt_sq: config.first_sequence,
            vr_sq: 0,
            vt_cc: 0,
            vt_s: zero,
            vt_a: zero,
            vt_ms: zero,
            vt_ps: zero,
            vt_pa: zero,
            vt_pd: 0,
            vr_r: zero,
            vr_h: zero,
            vr_mr: zero,
            sent: VecDeque::new(),
            again: VecDeque::new(),
            queue: VecDeque::new(),
            received: VecDeque::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            untaken: 0,
            errors: [0; 26],
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// How often the management was told of an error, by its letter, `b'A'` to `b'X'`
    /// (Q.2110 §A.1); 0 for what is no letter.
    #[must_use]
    pub fn errors(&self, letter: u8) -> u64 {
        let index = usize::from(letter.wrapping_sub(b'A'));
        self.errors.get(index).copied().unwrap_or(0)
    }

    /// AAL-ESTABLISH.request: brings the link up, or up anew.
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
        if self.sent.len() + self.queue.len() >= self.config.queue {
            return Err(SendError::Full);
        }
        self.queue.push_back(message.to_vec());
        Ok(())
    }

    /// What happened, the oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Data(_) = event {
            self.untaken -= 1;
            self.extend_credit();
        }
        Some(event)
    }

    /// When [`Sscop::handle_timeout`] has something to do.
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
        if self.sent.is_empty() && self.queue.is_empty() {
            self.timers.poll = None;
            self.timers.keep_alive = Some(now + self.config.keep_alive);
        } else {
            self.timers.keep_alive = None;
            self.timers.poll = Some(now + self.config.poll);
        }
    }

    fn cc_expired(&mut self, now: Time) {
        if self.vt_cc < self.config.max_cc {
            self.vt_cc += 1;
            self.timers.cc = Some(now + self.config.cc);
            self.send_request();
        } else {
            self.error(b'O');
            self.give_up();
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
        while let Some(number) = self.again.pop_front() {
            let index = number.since(self.vt_a) as usize;
            if let Some(sent) = self.sent.get_mut(index)
                && sent.again
            {
                sent.again = false;
                sent.poll = self.vt_ps;
                let pdu = emitted(&Pdu::Data {
                    number,
                    data: &sent.data,
                });
                self.out.push_back(pdu);
                self.data_sent(now);
                return;
            }
        }
        if self.queue.is_empty() {
            return;
        }
        let credit = self.vt_ms.since(self.vt_a);
        if credit < HALF && self.vt_s.since(self.vt_a) < credit {
            if let Some(data) = self.queue.pop_front() {
                let number = self.vt_s;
                let pdu = emitted(&Pdu::Data {
                    number,
                    data: &data,
                });
                self.out.push_back(pdu);
                let poll = self.vt_ps;
                let again = false;
                self.sent.push_back(Sent { data, poll, again });
                self.vt_s = self.vt_s.plus(1);
                self.data_sent(now);
            }
        } else if self.timers.poll.is_none() {
            // Without credit: a POLL asks for more.
            self.timers.idle = None;
            self.timers.keep_alive = None;
            self.timers.no_response = Some(now + self.config.no_response);
            self.send_poll();
            self.timers.poll = Some(now + self.config.poll);
        }
    }

    /// An SD went out: a POLL at times (Q.2110, figure 20, sheets 46 and 47).
    fn data_sent(&mut self, now: Time) {
        self.vt_pd += 1;
        if self.timers.poll.is_none() {
            if self.timers.idle.take().is_some() {
                self.timers.no_response = Some(now + self.config.no_response);
            } else {
                self.timers.keep_alive = None;
            }
            self.timers.poll = Some(now + self.config.poll);
        }
        if self.vt_pd >= self.config.max_pd {
            self.send_poll();
            self.timers.poll = Some(now + self.config.poll);
        }
    }

    fn send_poll(&mut self) {
        self.vt_ps = self.vt_ps.plus(1);
        self.vt_pd = 0;
        let (poll, next) = (self.vt_ps, self.vt_s);
        self.put(&Pdu::Poll { poll, next });
    }

    /// A PDU has come.
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
                State::Ready => self.status(now, missing, poll, credit, expected),
                _ => self.unexpected_in_idle(b'H'),
            },
            Pdu::UnsolicitedStatus {
                first,
                end,
                credit,
                expected,
            } => match self.state {
                State::Ready => self.unsolicited(now, first, end, credit, expected),
                _ => self.unexpected_in_idle(b'I'),
            },
            // Signalling sends neither.
            Pdu::UnnumberedData { .. } | Pdu::ManagementData { .. } => {}
        }
    }

    /// An answer to what is not under way: without a connection the other end learns that.
    fn unexpected(&mut self, letter: u8) {
        self.error(letter);
        if self.state == State::Idle {
            self.send_end(true);
        }
    }

    fn unexpected_in_idle(&mut self, letter: u8) {
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

    fn begin(&mut self, now: Time, sequence: u8, credit: Sequence) {
        let acknowledge = Pdu::BeginAcknowledge {
            credit: self.window(),
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
                // The acknowledgment was lost, and what is asked for now stands.
                self.put(&acknowledge);
                self.send_request();
            }
        }
    }

    fn resynchronize(&mut self, now: Time, sequence: u8, credit: Sequence) {
        let acknowledge = Pdu::ResynchronizeAcknowledge {
            credit: self.window(),
        };
        match self.state {
            State::Idle => self.unexpected(b'J'),
            State::OutgoingConnection => self.error(b'J'),
            State::OutgoingDisconnection => {}
            State::Ready if sequence == self.vr_sq => {
                self.timers.no_response = Some(now + self.config.no_response);
                self.put(&acknowledge);
            }
            _ if sequence == self.vr_sq => self.error(b'J'),
            state => {
                self.vr_sq = sequence;
                if state == State::Ready {
                    self.clear();
                }
                self.put(&acknowledge);
                self.ready(now, credit);
            }
        }
    }

    fn recover(&mut self, now: Time, sequence: u8, credit: Sequence) {
        let acknowledge = Pdu::RecoverAcknowledge {
            credit: self.window(),
        };
        match self.state {
            State::Idle => self.unexpected(b'L'),
            State::OutgoingConnection | State::OutgoingResynchronization => self.error(b'L'),
            State::OutgoingDisconnection => {}
            State::Ready if sequence == self.vr_sq => {
                self.timers.no_response = Some(now + self.config.no_response);
                self.put(&acknowledge);
            }
            State::OutgoingRecovery if sequence == self.vr_sq => self.error(b'L'),
            state => {
                self.vr_sq = sequence;
                if state == State::Ready {
                    self.clear();
                }
                self.put(&acknowledge);
                self.ready(now, credit);
            }
        }
    }

    fn data(&mut self, now: Time, number: Sequence, data: &[u8]) {
        let offset = number.since(self.vr_r);
        let high = self.vr_h.since(self.vr_r);
        let window = self.vr_mr.since(self.vr_r);
        if offset >= HALF {
            // It has been delivered before.
            return;
        }
        if offset >= window {
            // Beyond the credit; what is missing below it is asked for.
            if high < window {
                self.send_unsolicited(self.vr_mr);
                self.vr_h = self.vr_mr;
            }
            return;
        }
        if offset == 0 {
            self.received.pop_front();
            self.deliver(data.to_vec());
            while let Some(Some(next)) = self.received.front_mut().map(Option::take) {
                self.received.pop_front();
                self.deliver(next);
            }
            if high == 0 {
                self.vr_h = self.vr_r;
            }
            self.extend_credit();
            return;
        }
        if offset > high {
            self.send_unsolicited(number);
        }
        let index = offset as usize;
        if self.received.get(index).is_some_and(Option::is_some) {
            self.error(b'Q');
            self.start_recovery(now);
            return;
        }
        if offset >= high {
            self.vr_h = number.plus(1);
        }
        if self.received.len() <= index {
            self.received.resize_with(index + 1, || None);
        }
        if let Some(place) = self.received.get_mut(index) {
            *place = Some(data.to_vec());
        }
    }

    fn deliver(&mut self, data: Vec<u8>) {
        self.vr_r = self.vr_r.plus(1);
        self.untaken += 1;
        self.events.push_back(Event::Data(data));
    }

    /// VR(MR) follows what the user has taken, and never goes back.
    fn extend_credit(&mut self) {
        let room = self.config.window.saturating_sub(self.untaken);
        if room > self.vr_mr.since(self.vr_r) || self.vr_mr.since(self.vr_r) >= HALF {
            self.vr_mr = self.vr_r.plus(room);
        }
    }

    fn polled(&mut self, now: Time, poll: Sequence, next: Sequence) {
        let offset = next.since(self.vr_r);
        let high = self.vr_h.since(self.vr_r);
        let window = self.vr_mr.since(self.vr_r);
        if offset < high || offset >= HALF {
            self.error(b'Q');
            self.start_recovery(now);
            return;
        }
        let high = offset.min(window);
        self.vr_h = self.vr_r.plus(high);
        let here = |index: u32| {
            let entry = self.received.get(index as usize);
            entry.is_some_and(Option::is_some)
        };
        // Where missing and present change, and where what was polled for ends.
        let mut list = vec![];
        if high > 0 {
            let changes = (1..high).filter(|index| here(*index) != here(index - 1));
            list.push(0);
            list.extend(changes);
            list.push(high);
        }
        let elements: Vec<[u8; 4]> = (list.iter())
            .map(|index| self.vr_r.plus(*index).value().to_be_bytes())
            .collect();
        // A further STAT begins with the last element of the one before (§7.7).
        let mut from = 0;
        loop {
            let to = elements.len().min(from + LIST_MAX);
            self.put(&Pdu::Status {
                missing: List::new(elements.get(from..to).unwrap_or_default()),
                poll,
                credit: self.vr_mr,
                expected: self.vr_r,
            });
            if to == elements.len() {
                break;
            }
            from = to - 1;
        }
    }

    /// Takes what N(R) acknowledges and N(MR) allows; false where they cannot be.
    fn acknowledged(&mut self, expected: Sequence, credit: Sequence) -> bool {
        let count = expected.since(self.vt_a);
        if count > self.vt_s.since(self.vt_a) || credit.since(expected) >= HALF {
            return false;
        }
        self.sent.drain(..self.sent.len().min(count as usize));
        self.vt_a = expected;
        self.vt_ms = credit;
        true
    }

    fn status(
        &mut self,
        now: Time,
        missing: List<'_>,
        poll: Sequence,
        credit: Sequence,
        expected: Sequence,
    ) {
        if poll.since(self.vt_pa) > self.vt_ps.since(self.vt_pa) {
            self.error(b'R');
            self.start_recovery(now);
            return;
        }
        let under_way = self.vt_s.since(expected);
        let rising = missing
            .iter()
            .map(|element| i64::from(element.since(expected)))
            .try_fold(-1, |before, element| (element > before).then_some(element))
            .is_some_and(|last| last <= i64::from(under_way));
        if !rising || !self.acknowledged(expected, credit) {
            self.error(b'S');
            self.start_recovery(now);
            return;
        }
        self.vt_pa = poll;
        let ends = missing.iter().skip(1);
        for (index, (first, end)) in missing.iter().zip(ends).enumerate() {
            if index % 2 == 0 {
                // What was sent after the POLL may still be on its way.
                self.repeat(first, end, |sent| {
                    let since = poll.since(sent);
                    since > 0 && since < HALF
                });
            }
        }
        if self.timers.poll.is_some() {
            self.timers.no_response = Some(now + self.config.no_response);
        } else if self.timers.idle.is_none() {
            self.timers.keep_alive = None;
            self.timers.no_response = None;
            self.timers.idle = Some(now + self.config.idle);
        }
    }

    fn unsolicited(
        &mut self,
        now: Time,
        first: Sequence,
        end: Sequence,
        credit: Sequence,
        expected: Sequence,
    ) {
        let under_way = self.vt_s.since(expected);
        let fits = first.since(expected) < end.since(expected) && end.since(expected) <= under_way;
        if !fits || !self.acknowledged(expected, credit) {
            self.error(b'T');
            self.start_recovery(now);
            return;
        }
        self.repeat(first, end, |_| true);
    }

    /// Sends again what lies from `first` to before `end`, where `due` of the POLL before it.
    fn repeat(&mut self, first: Sequence, end: Sequence, due: impl Fn(Sequence) -> bool) {
        let from = first.since(self.vt_a) as usize;
        let to = end.since(self.vt_a) as usize;
        let to = to.min(self.sent.len());
        for (index, sent) in self.sent.range_mut(from.min(to)..to).enumerate() {
            if !sent.again && due(sent.poll) {
                sent.again = true;
                self.again.push_back(first.plus(index as u32));
            }
        }
    }

    fn send_unsolicited(&mut self, end: Sequence) {
        self.put(&Pdu::UnsolicitedStatus {
            first: self.vr_h,
            end,
            credit: self.vr_mr,
            expected: self.vr_r,
        });
    }

    fn start_recovery(&mut self, now: Time) {
        self.clear();
        self.ask(now, State::OutgoingRecovery);
    }

    /// Sends the request that leads to a state, and waits in it for the answer.
    fn ask(&mut self, now: Time, state: State) {
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

    /// The request of the state, first or again.
    fn send_request(&mut self) {
        let (sequence, credit, data) = (self.vt_sq, self.window(), &[][..]);
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

    fn send_end(&mut self, by_protocol: bool) {
        let data = &[];
        self.put(&Pdu::End { by_protocol, data });
    }

    /// N(MR) of a connection that begins. Messages of the one before that the user has not
    /// taken count, or a peer that begins again and again could have any number kept.
    const fn window(&self) -> Sequence {
        Sequence::new(self.config.window.saturating_sub(self.untaken))
    }

    /// The link is up, from number 0 on.
    fn ready(&mut self, now: Time, credit: Sequence) {
        let zero = Sequence::default();
        self.state = State::Ready;
        self.timers = Timers {
            poll: Some(now + self.config.poll),
            no_response: Some(now + self.config.no_response),
            ..Timers::default()
        };
        self.vt_ms = credit;
        (self.vt_s, self.vt_a, self.vt_ps, self.vt_pa) = (zero, zero, zero, zero);
        self.vt_pd = 0;
        (self.vr_r, self.vr_h, self.vr_mr) = (zero, zero, self.window());
        self.sent.clear();
        self.again.clear();
        self.received.clear();
        self.events.push_back(Event::Established);
    }

    /// Forgets what was under way and what waits (Clear-Buffers is "yes" at the UNI).
    fn clear(&mut self) {
        self.sent.clear();
        self.again.clear();
        self.queue.clear();
        self.received.clear();
    }

    fn down(&mut self) {
        self.clear();
        self.state = State::Idle;
        self.timers = Timers::default();
        self.events.push_back(Event::Released);
    }

    fn give_up(&mut self) {
        self.send_end(true);
        self.down();
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
    // No PDU made here is longer, so nothing is left out by this.
    let length = pdu.emit(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests;
