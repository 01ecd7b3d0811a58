//! Calls on one link: Q.2931's point-to-point procedures (§5), of the user's or of the
//! network's side, over [`Sscop`].
//!
//! ```text
//! pdu_received ─► Sscop ─► messages ─► calls ─► poll_event
//! setup, accept, release … ─► calls ─► messages ─► Sscop ─► poll_transmit
//! ```
//!
//! A call that this end set up and one that the other end did have the same course on
//! either side, with two exceptions. The numbers of their states differ
//! ([`Phase::number`]). The network is active with its CONNECT, and asks for the caller's
//! state if that is not acknowledged.

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
    /// The network's, which assigns the circuit of a call.
    Network,
}

/// Timers (UNI 3.1 §5.7) and limits.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub side: Side,
    /// T303: an answer to SETUP; repeated once.
    pub t303: Duration,
    /// T308: an answer to RELEASE; repeated once.
    pub t308: Duration,
    /// T309: the link is down, and active calls continue.
    pub t309: Duration,
    /// T310: CONNECT after CALL PROCEEDING.
    pub t310: Duration,
    /// T313: an answer to CONNECT. Without it the user's side releases the call and the
    /// network's asks for its state.
    pub t313: Duration,
    /// T316: an answer to RESTART; repeated once.
    pub t316: Duration,
    /// T322: an answer to STATUS ENQUIRY; repeated once.
    pub t322: Duration,
    /// Maximum number of calls at a time; further SETUPs are refused.
    pub calls: usize,
    /// SETUPs that the other end may send per second, and a tenth of that at once;
    /// further ones are refused. `None`: any number.
    pub setups: Option<u32>,
    /// The call reference before the first. It should differ at each start, as the other
    /// end may still have calls of an earlier life of this one.
    pub first_reference: u32,
    /// Configuration of the signalling link.
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

/// How long a SETUP waits for CONNECT before it is answered by CALL PROCEEDING, far below
/// T303. A call that is accepted at once thus takes one message less.
pub const PROCEEDING_AFTER: Duration = Duration::from_millis(200);

/// Circuits that the network's side tries for a call, until the other end accepts one.
const CIRCUITS_TRIED: u8 = 8;

/// The period whose SETUPs may arrive at once.
const SETUPS_AT_ONCE: Duration = Duration::from_millis(100);

/// Names a call of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// This end set it up.
    pub ours: bool,
    /// The call reference's value.
    pub value: u32,
}

/// The phase of a call. A call without a phase is in state 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// SETUP is sent: U1, N6.
    SetupSent,
    /// CALL PROCEEDING was received: U3, N9.
    ProceedingReceived,
    /// SETUP was received: U6, N1.
    SetupReceived,
    /// CALL PROCEEDING is sent: U9, N3.
    ProceedingSent,
    /// CONNECT is sent: U8.
    ConnectSent,
    /// U10, N10.
    Active,
    /// RELEASE is sent: U11, N12.
    ReleaseSent,
    /// RELEASE was received, and the user must release its circuit: U12, N11.
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

/// An event for the owner of the link.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The link is up; signalling continues.
    LinkUp,
    /// The link is down. Calls that were not active are released; the others run on T309.
    LinkDown,
    /// An incoming call: answer with [`Signalling::proceed`], `accept` or `release`.
    Setup(CallId, Box<Elements>),
    /// The call is in progress; the message's elements, above all the circuit.
    Proceeding(CallId, Box<Elements>),
    /// The call is active at both ends. For one that this end set up, open its circuit,
    /// then call [`Signalling::acknowledge`]. One that the network's side has accepted is
    /// active there at once. There this event comes with the caller's acknowledgment, or
    /// when the caller reports that it is active.
    Connected(CallId, Box<Elements>),
    /// The other end releases the call: free the circuit, then call `release`.
    Releasing(CallId, Cause),
    /// The other end uses the circuit named in the network side's SETUP for something
    /// else (cause 35): call [`Signalling::setup_again`], or `release`.
    CircuitRefused(CallId),
    /// The call has ended at both ends.
    Released(CallId, Cause),
    /// The other end has released the calls and circuits that this names; each of the
    /// calls has been reported as released.
    Restarted(Restart, Option<ConnectionIdentifier>),
    /// Our RESTART is answered (true), or given up (false).
    RestartDone(bool),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No such call (ENOTCONN).
    #[error("no such call")]
    NoCall,
    /// The call is not in a suitable state (EINVAL).
    #[error("the call is not in a state for this")]
    State,
    /// The maximum number of calls is reached (ENOBUFS).
    #[error("as many calls as may be")]
    TooMany,
    /// The link accepts no more now (EAGAIN).
    #[error("the signalling link takes no more now")]
    Busy,
}

#[derive(Debug)]
struct Call {
    phase: Phase,
    /// When the phase's timer expires, and whether it has expired once. An active call's
    /// timer is T322.
    timer: Option<Time>,
    again: bool,
    connection: Option<ConnectionIdentifier>,
    /// Circuits that the other end has refused.
    refused: u8,
    /// CONNECT was received, or sent by the network's side, and the caller has not
    /// confirmed it.
    unacknowledged: bool,
    /// SETUP's elements, for repeating it; the cause of a release in progress.
    setup: Option<Box<Elements>>,
    cause: Cause,
}

/// Our RESTART that waits for its answer.
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
    /// Timers of the calls, earliest first.
    timers: BTreeSet<(Time, CallId)>,
    next_value: u32,
    /// Limit of the other end's SETUPs, if they are limited.
    setups: Option<Bucket>,
    restarting: Option<Restarting>,
    /// T309.
    down_until: Option<Time>,
    /// Set if the link came up again: when the states of some more active calls are asked
    /// for, and after which call.
    asking: Option<(Time, Option<CallId>)>,
    /// Messages held until the link is up.
    waiting: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    ignored: u64,
    refused: u64,
}

impl Signalling {
    /// Starts without calls, on a link that is down; the first request, or the other end,
    /// brings it up.
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

    /// The phase of a call; `None` for one that has ended.
    #[must_use]
    pub fn phase(&self, id: CallId) -> Option<Phase> {
        self.calls.get(&id).map(|call| call.phase)
    }

    /// Number of calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Messages that were ignored: invalid, or of no call.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// SETUPs that were refused because the maximum number of calls, or of SETUPs, was
    /// reached.
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

    /// Places a call.
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

    /// Calls again with another circuit, after the other end has refused the first.
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

    /// Takes over a call that was active in an earlier life of this end. When the link
    /// comes up its state is asked for, as for any active call.
    ///
    /// # Errors
    /// [`RequestError::TooMany`]; [`RequestError::State`] if such a call exists.
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

    /// Announces an answer to a SETUP: [`Signalling::accept`], or CALL PROCEEDING if that
    /// takes longer than [`PROCEEDING_AFTER`]. The network's side names the circuit in
    /// whichever is first.
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

    /// A call whose SETUP was not answered yet.
    fn unanswered(&mut self, id: CallId) -> Result<&mut Call, RequestError> {
        let call = self.calls.get_mut(&id).ok_or(RequestError::NoCall)?;
        match call.phase {
            Phase::SetupReceived => Ok(call),
            _ => Err(RequestError::State),
        }
    }

    /// Answers a SETUP with CALL PROCEEDING, including the circuit if it was not named
    /// before.
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

    /// Accepts a call: CONNECT.
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
                // If nothing arrives, the call's state is asked for.
                call.again = false;
                self.arm(id, now + self.config.t313);
            }
        }
        self.put(now, id, MessageType::Connect, &elements);
        Ok(())
    }

    /// Reports once that a call of this end is active here: CONNECT ACKNOWLEDGE. Its
    /// circuit must be open, as the other end then sends on it.
    pub fn acknowledge(&mut self, now: Time, id: CallId) {
        let call = self.calls.get_mut(&id).filter(|_| id.ours);
        if call.is_some_and(|call| {
            call.phase == Phase::Active && std::mem::take(&mut call.unacknowledged)
        }) {
            let none = Elements::default();
            self.put(now, id, MessageType::ConnectAcknowledge, &none);
        }
    }

    /// Ends a call or rejects one, or reports that the circuit of one that the other end
    /// releases is free.
    ///
    /// # Errors
    /// [`RequestError`]; [`RequestError::State`] if a release is in progress.
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
            // It was not answered yet, so nothing has to be released.
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
    /// [`RequestError::Busy`] while another is in progress.
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

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU for the link's circuit, if there is one.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        self.link.poll_transmit(now)
    }

    /// Time at which [`Signalling::handle_timeout`] has something to do.
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

/// The elements of a message that contains only the cause.
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
