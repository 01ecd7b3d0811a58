//! Calls on one link: Q.2931's point-to-point procedures (§5), of the user's or of the
//! network's side, over [`Sscop`].
//!
//! ```text
//! pdu_received ─► Sscop ─► messages ─► calls ─► poll_event
//! setup, accept, release … ─► calls ─► messages ─► Sscop ─► poll_transmit
//! ```
//!
//! A call that this end set up and one that the other end did have the same course on
//! either side; only the numbers of their states differ ([`Phase::number`]), and that the
//! network is active with its CONNECT, and asks for the caller's state if that is not
//! acknowledged.

mod course;
mod messages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tidewall_wire::atm::q2931::{
    CallReference, Cause, ConnectionIdentifier, Elements, MessageType, Restart,
};

use crate::rate::Bucket;
use crate::reassembly::Time;
use crate::sscop::{self, Sscop};

/// Which end of the interface this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The user's.
    User,
    /// The network's, which says which circuit a call has.
    Network,
}

/// Timers (UNI 3.1 §5.7) and limits.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub side: Side,
    /// T303: an answer to SETUP; once repeated.
    pub t303: Duration,
    /// T308: an answer to RELEASE; once repeated.
    pub t308: Duration,
    /// T309: the link is down, and active calls go on.
    pub t309: Duration,
    /// T310: CONNECT after CALL PROCEEDING.
    pub t310: Duration,
    /// T313: an answer to CONNECT, without which the user's side releases the call and the
    /// network's asks for its state.
    pub t313: Duration,
    /// T316: an answer to RESTART; once repeated.
    pub t316: Duration,
    /// T322: an answer to STATUS ENQUIRY; once repeated.
    pub t322: Duration,
    /// Calls at a time; a SETUP beyond is refused.
    pub calls: usize,
    /// SETUPs of the other end in a second, and a tenth of that at once; one beyond is
    /// refused. `None`: any number.
    pub setups: Option<u32>,
    /// The call reference before the first: best another at each start, as the other end may
    /// still have calls of an earlier life of this one.
    pub first_reference: u32,
    /// The signalling link's.
    pub link: sscop::Config,
}

impl Config {
    /// With UNI 3.1's timers, and 10,000 calls.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self {
            side,
            t303: Duration::from_secs(4),
            t308: Duration::from_secs(30),
            t309: Duration::from_secs(10),
            t310: Duration::from_secs(10),
            t313: Duration::from_secs(4),
            t316: Duration::from_secs(120),
            t322: Duration::from_secs(4),
            calls: 10_000,
            setups: None,
            first_reference: 0,
            link: sscop::Config::default(),
        }
    }
}

/// How long a SETUP waits for CONNECT before it is answered by CALL PROCEEDING, so that a call
/// that is accepted at once takes one message less: far below T303.
pub const PROCEEDING_AFTER: Duration = Duration::from_millis(200);

/// Circuits that the network's side names for a call, until the other end takes one.
const CIRCUITS_TRIED: u8 = 8;

/// Of how long a time the SETUPs may come at once.
const SETUPS_AT_ONCE: Duration = Duration::from_millis(100);

/// Names a call of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// This end set it up.
    pub ours: bool,
    /// The call reference's value.
    pub value: u32,
}

/// Where a call is. What is no phase is state 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// SETUP is sent: U1, N6.
    SetupSent,
    /// CALL PROCEEDING has come: U3, N9.
    ProceedingReceived,
    /// SETUP has come: U6, N1.
    SetupReceived,
    /// CALL PROCEEDING is sent: U9, N3.
    ProceedingSent,
    /// CONNECT is sent: U8.
    ConnectSent,
    /// U10, N10.
    Active,
    /// RELEASE is sent: U11, N12.
    ReleaseSent,
    /// RELEASE has come, and the user is to release its circuit: U12, N11.
    ReleaseReceived,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 8] = [
        Self::SetupSent,
        Self::ProceedingReceived,
        Self::SetupReceived,
        Self::ProceedingSent,
        Self::ConnectSent,
        Self::Active,
        Self::ReleaseSent,
        Self::ReleaseReceived,
    ];

    /// The state's number on a side (§2.1.1, §2.1.2).
    #[must_use]
    pub const fn number(self, side: Side) -> u8 {
        let (user, network) = match self {
            Self::SetupSent => (1, 6),
            Self::ProceedingReceived => (3, 9),
            Self::SetupReceived => (6, 1),
            Self::ProceedingSent => (9, 3),
            Self::ConnectSent => (8, 8),
            Self::Active => (10, 10),
            Self::ReleaseSent => (11, 12),
            Self::ReleaseReceived => (12, 11),
        };
        match side {
            Side::User => user,
            Side::Network => network,
        }
    }
}

/// What the owner of the link learns.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The link is up; signalling goes on.
    LinkUp,
    /// The link is down. Calls that were not active are released; the others are, T309 on.
    LinkDown,
    /// Somebody calls: answer by [`Signalling::proceed`], `accept` or `release`.
    Setup(CallId, Box<Elements>),
    /// The call is on its way; what the message says, the circuit above all.
    Proceeding(CallId, Box<Elements>),
    /// The call is active at both ends. Of one that this end set up: open its circuit, then
    /// [`Signalling::acknowledge`]. Of one that the network's side has accepted, which is
    /// active there at once, this comes with the caller's acknowledgment, or when the caller
    /// says that it is active.
    Connected(CallId, Box<Elements>),
    /// The other end releases the call: free the circuit, then `release`.
    Releasing(CallId, Cause),
    /// The other end has the circuit that the SETUP of the network's side named for something
    /// else (cause 35): [`Signalling::setup_again`], or `release`.
    CircuitRefused(CallId),
    /// The call is no more, at both ends.
    Released(CallId, Cause),
    /// The other end has released what this names, calls and circuits; calls of it have
    /// been reported, each as released.
    Restarted(Restart, Option<ConnectionIdentifier>),
    /// A RESTART of ours is answered (true), or given up (false).
    RestartDone(bool),
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No such call (ENOTCONN).
    #[error("no such call")]
    NoCall,
    /// The call is not in a state for this (EINVAL).
    #[error("the call is not in a state for this")]
    State,
    /// As many calls as may be (ENOBUFS).
    #[error("as many calls as may be")]
    TooMany,
    /// The link cannot take more now (EAGAIN).
    #[error("the signalling link takes no more now")]
    Busy,
}

#[derive(Debug)]
struct Call {
    phase: Phase,
    /// When the phase's timer expires, and whether it has once. An active call's is T322.
    timer: Option<Time>,
    again: bool,
    connection: Option<ConnectionIdentifier>,
    /// Circuits that the other end has refused.
    refused: u8,
    /// CONNECT has come, or is sent by the network's side, and the caller has not said that it
    /// has it.
    unacknowledged: bool,
    /// What SETUP said, to say it again; why a release is under way.
    setup: Option<Box<Elements>>,
    cause: Cause,
}

/// A RESTART of ours that waits for its answer.
#[derive(Debug)]
struct Restarting {
    kind: Restart,
    connection: Option<ConnectionIdentifier>,
    timer: Time,
    again: bool,
}

/// The calls of a link.
#[derive(Debug)]
pub struct Signalling {
    config: Config,
    link: Sscop,
    up: bool,
    calls: BTreeMap<CallId, Call>,
    /// Those of the calls, the next first.
    timers: BTreeSet<(Time, CallId)>,
    next_value: u32,
    /// Of SETUPs of the other end, where they are limited.
    setups: Option<Bucket>,
    restarting: Option<Restarting>,
    /// T309.
    down_until: Option<Time>,
    /// The link came up anew: when the states of some more active calls are asked for, and
    /// behind which call.
    asking: Option<(Time, Option<CallId>)>,
    /// Messages until the link is up.
    waiting: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    ignored: u64,
    refused: u64,
}

impl Signalling {
    /// Without calls, on a link that is down; the first request, or the other end, brings
    /// it up.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            link: Sscop::new(config.link),
            config,
            up: false,
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_value: config.first_reference % CallReference::MAX,
            setups: config.setups.map(|rate| Bucket::new(rate, SETUPS_AT_ONCE)),
            restarting: None,
            down_until: None,
            asking: None,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            ignored: 0,
            refused: 0,
        }
    }

    /// Where a call is; `None` for one that is no more.
    #[must_use]
    pub fn phase(&self, id: CallId) -> Option<Phase> {
        self.calls.get(&id).map(|call| call.phase)
    }

    /// Calls that there are.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Messages that were passed over: no message, or of no call and to be ignored.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// SETUPs that were refused, as there were as many calls as may be, or SETUPs.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The signalling link, for its state and errors.
    #[must_use]
    pub const fn link(&self) -> &Sscop {
        &self.link
    }

    /// Brings the link up.
    pub fn establish(&mut self, now: Time) {
        if !self.up {
            self.link.establish(now);
        }
    }

    /// Calls somebody.
    ///
    /// # Errors
    /// [`RequestError::TooMany`], [`RequestError::Busy`].
    pub fn setup(&mut self, now: Time, elements: Elements) -> Result<CallId, RequestError> {
        if self.calls.len() >= self.config.calls {
            return Err(RequestError::TooMany);
        }
        let id = self.free_id();
        self.calls.insert(
            id,
            Call {
                phase: Phase::SetupSent,
                timer: None,
                again: false,
                connection: elements.connection,
                refused: 0,
                unacknowledged: false,
                setup: Some(Box::new(elements)),
                cause: Cause::new(Cause::NO_USER_RESPONDING),
            },
        );
        if !self.put(now, id, MessageType::Setup, &elements) {
            self.calls.remove(&id);
            return Err(RequestError::Busy);
        }
        self.arm(id, now + self.config.t303);
        Ok(id)
    }

    /// Calls again by another circuit, where the other end has refused the one before.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn setup_again(
        &mut self,
        now: Time,
        id: CallId,
        connection: ConnectionIdentifier,
    ) -> Result<(), RequestError> {
        let call = self.calls.get_mut(&id).ok_or(RequestError::NoCall)?;
        let Some(elements) = call.setup.as_mut().filter(|_| call.refused > 0) else {
            return Err(RequestError::State);
        };
        elements.connection = Some(connection);
        call.connection = Some(connection);
        call.again = false;
        let elements = **elements;
        if !self.put(now, id, MessageType::Setup, &elements) {
            return Err(RequestError::Busy);
        }
        self.arm(id, now + self.config.t303);
        Ok(())
    }

    /// Takes over a call that was active in an earlier life of this end. When the link comes
    /// up its state is asked for, as that of any active call.
    ///
    /// # Errors
    /// [`RequestError::TooMany`]; [`RequestError::State`] where there is such a call.
    pub fn restore(
        &mut self,
        id: CallId,
        connection: Option<ConnectionIdentifier>,
    ) -> Result<(), RequestError> {
        if self.calls.len() >= self.config.calls {
            return Err(RequestError::TooMany);
        }
        if !(1..=CallReference::MAX).contains(&id.value) || self.calls.contains_key(&id) {
            return Err(RequestError::State);
        }
        let call = Call {
            phase: Phase::Active,
            timer: None,
            again: false,
            connection,
            refused: 0,
            unacknowledged: false,
            setup: None,
            cause: Cause::new(Cause::NORMAL),
        };
        self.calls.insert(id, call);
        Ok(())
    }

    fn free_id(&mut self) -> CallId {
        // There are fewer calls than values, so this ends.
        loop {
            self.next_value = self.next_value % CallReference::MAX + 1;
            let id = CallId {
                ours: true,
                value: self.next_value,
            };
            if !self.calls.contains_key(&id) {
                return id;
            }
        }
    }

    /// A SETUP will be answered: by [`Signalling::accept`], or CALL PROCEEDING if that takes
    /// longer than [`PROCEEDING_AFTER`]. The network's side names the circuit in whichever is
    /// first.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn proceed(
        &mut self,
        now: Time,
        id: CallId,
        connection: Option<ConnectionIdentifier>,
    ) -> Result<(), RequestError> {
        let call = self.unanswered(id)?;
        call.connection = connection.or(call.connection);
        self.arm(id, now + PROCEEDING_AFTER);
        Ok(())
    }

    /// A call whose SETUP nothing was said to yet.
    fn unanswered(&mut self, id: CallId) -> Result<&mut Call, RequestError> {
        let call = self.calls.get_mut(&id).ok_or(RequestError::NoCall)?;
        match call.phase {
            Phase::SetupReceived => Ok(call),
            _ => Err(RequestError::State),
        }
    }

    /// Answers a SETUP by CALL PROCEEDING, with the circuit if it was not said before.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn proceeding(
        &mut self,
        now: Time,
        id: CallId,
        connection: Option<ConnectionIdentifier>,
    ) -> Result<(), RequestError> {
        let call = self.unanswered(id)?;
        call.phase = Phase::ProceedingSent;
        call.connection = connection.or(call.connection);
        let elements = Elements {
            connection,
            ..Elements::default()
        };
        self.put(now, id, MessageType::CallProceeding, &elements);
        Ok(())
    }

    /// Takes a call: CONNECT.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn accept(
        &mut self,
        now: Time,
        id: CallId,
        elements: &Elements,
    ) -> Result<(), RequestError> {
        let call = self.calls.get_mut(&id).ok_or(RequestError::NoCall)?;
        if !matches!(call.phase, Phase::SetupReceived | Phase::ProceedingSent) {
            return Err(RequestError::State);
        }
        call.connection = elements.connection.or(call.connection);
        let mut elements = *elements;
        if call.phase == Phase::SetupReceived && self.config.side == Side::Network {
            elements.connection = call.connection;
        }
        match self.config.side {
            Side::User => {
                call.phase = Phase::ConnectSent;
                self.arm(id, now + self.config.t313);
            }
            Side::Network => {
                call.phase = Phase::Active;
                call.unacknowledged = true;
                // Where nothing comes, the call's state is asked for.
                call.again = false;
                self.arm(id, now + self.config.t313);
            }
        }
        self.put(now, id, MessageType::Connect, &elements);
        Ok(())
    }

    /// Says that a call of this end's is active here, once: CONNECT ACKNOWLEDGE. Its circuit
    /// is to be open, as the other end sends on it then.
    pub fn acknowledge(&mut self, now: Time, id: CallId) {
        let call = self.calls.get_mut(&id).filter(|_| id.ours);
        if call.is_some_and(|call| {
            call.phase == Phase::Active && std::mem::take(&mut call.unacknowledged)
        }) {
            let none = Elements::default();
            self.put(now, id, MessageType::ConnectAcknowledge, &none);
        }
    }

    /// Ends a call, refuses one, or says that the circuit of one that the other end
    /// releases is free.
    ///
    /// # Errors
    /// [`RequestError`]; [`RequestError::State`] where a release is under way.
    pub fn release(&mut self, now: Time, id: CallId, cause: Cause) -> Result<(), RequestError> {
        let phase = self.phase(id).ok_or(RequestError::NoCall)?;
        match phase {
            Phase::ReleaseSent => return Err(RequestError::State),
            Phase::ReleaseReceived => {
                let call = self.calls.remove(&id);
                let heard = call.map_or(cause, |call| call.cause);
                self.put(now, id, MessageType::ReleaseComplete, &Elements::default());
                self.events.push_back(Event::Released(id, heard));
            }
            // Nothing was said yet, so nothing has to be released.
            Phase::SetupReceived => {
                self.disarm(id);
                self.calls.remove(&id);
                self.put(now, id, MessageType::ReleaseComplete, &because(cause));
                self.events.push_back(Event::Released(id, cause));
            }
            _ => self.send_release(now, id, cause),
        }
        Ok(())
    }

    /// Releases circuits, whatever calls they have: RESTART. One at a time.
    ///
    /// # Errors
    /// [`RequestError::Busy`] while another is under way.
    pub fn restart(
        &mut self,
        now: Time,
        kind: Restart,
        connection: Option<ConnectionIdentifier>,
    ) -> Result<(), RequestError> {
        if self.restarting.is_some() {
            return Err(RequestError::Busy);
        }
        self.release_of(kind, connection);
        self.restarting = Some(Restarting {
            kind,
            connection,
            timer: now + self.config.t316,
            again: false,
        });
        self.put_restart(now, MessageType::Restart, false, kind, connection);
        Ok(())
    }

    /// What happened, the oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU for the link's circuit, if there is one.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        self.link.poll_transmit(now)
    }

    /// When [`Signalling::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let call = self.timers.first().map(|(at, _)| *at);
        let restart = self.restarting.as_ref().map(|restarting| restarting.timer);
        let asking = self.asking.map(|(at, _)| at);
        let link = self.link.poll_timeout();
        [call, restart, asking, self.down_until, link]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The elements of a message that says nothing but why.
fn because(cause: Cause) -> Elements {
    Elements {
        cause: Some(cause),
        ..Elements::default()
    }
}

/// A timer's expiry, named by its three digits (Q.2610 §2.2.6).
fn expired(timer: &[u8; 3]) -> Cause {
    Cause::new(Cause::RECOVERY_ON_TIMER_EXPIRY).with(timer)
}

#[cfg(test)]
mod tests;
