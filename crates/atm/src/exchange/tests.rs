use std::time::Duration;

use tidewall_wire::atm::q2931::{
    Bearer, CallReference, MESSAGE_MAX, Message, MessageType, QosClasses, Restart,
    TrafficDescriptor,
};

use super::*;
use crate::signalling::PROCEEDING_AFTER;
use crate::sscop::{self, Sscop};

mod anything;

/// The number of a user of a port.
fn number(port: u8) -> Nsap {
    let mut number = [0x47; 20];
    number[1] = port;
    Nsap(number)
}

fn setup(to: Nsap) -> Elements {
    Elements {
        traffic: Some(TrafficDescriptor::best_effort()),
        bearer: Some(Bearer::data()),
        qos: Some(QosClasses::default()),
        called: Some(Party::from(to)),
        ..Elements::default()
    }
}

/// The table that the exchange writes.
#[derive(Default)]
struct Written {
    circuits: Vec<[End; 2]>,
    permanent: BTreeSet<(usize, Circuit)>,
    room: usize,
}

impl Written {
    fn request(&mut self, request: Request) -> bool {
        let is_free = |end: End| {
            !self.permanent.contains(&(end.port, end.circuit))
                && !self.circuits.iter().flatten().any(|it| *it == end)
        };
        match request {
            Request::IsFree(end) => is_free(end),
            Request::Enter(ends) => {
                assert!(ends.iter().all(|end| is_free(*end)), "{ends:?}");
                let taken = self.circuits.len() < self.room;
                if taken {
                    self.circuits.push(ends);
                }
                taken
            }
            Request::Remove(ends) => {
                let place = self.circuits.iter().position(|it| *it == ends);
                self.circuits.remove(place.expect("it was entered"));
                true
            }
        }
    }
}

/// The users' ends of three ports, and the kind of a user's end.
struct Bed<P> {
    exchange: Exchange,
    users: Vec<P>,
    table: Written,
    now: Time,
}

/// One end of a link.
trait Peer {
    fn take(&mut self, now: Time, pdu: &[u8]);
    fn give(&mut self, now: Time) -> Option<Vec<u8>>;
    fn due(&mut self, now: Time);
}

impl Peer for Sscop {
    fn take(&mut self, now: Time, pdu: &[u8]) {
        self.pdu_received(now, pdu);
    }
    fn give(&mut self, now: Time) -> Option<Vec<u8>> {
        self.poll_transmit(now)
    }
    fn due(&mut self, now: Time) {
        self.handle_timeout(now);
    }
}

impl Peer for Signalling {
    fn take(&mut self, now: Time, pdu: &[u8]) {
        self.pdu_received(now, pdu);
    }
    fn give(&mut self, now: Time) -> Option<Vec<u8>> {
        self.poll_transmit(now)
    }
    fn due(&mut self, now: Time) {
        self.handle_timeout(now);
    }
}

impl<P: Peer> Bed<P> {
    fn new(sides: [Side; 3], user: impl Fn(Side) -> P) -> Self {
        let mut exchange = Exchange::new(&sides.map(|side| Some(Config::new(side))));
        let prefix = |port: usize| format!("47{port:02x}").parse().unwrap();
        exchange.set_prefixes((0..3).map(|port| (prefix(port), port)).collect());
        let other = |side| match side {
            Side::User => Side::Network,
            Side::Network => Side::User,
        };
        Bed {
            exchange,
            users: sides.map(|side| user(other(side))).into(),
            table: Written {
                room: 100,
                ..Written::default()
            },
            now: Time::ZERO,
        }
    }

    /// Carries PDUs both ways until there are none, except those for which `lost` is
    /// true.
    fn carry(&mut self, mut lost: impl FnMut(usize) -> bool) {
        let Bed {
            exchange,
            users,
            table,
            now,
        } = self;
        loop {
            let mut quiet = true;
            for (port, user) in users.iter_mut().enumerate() {
                while let Some(pdu) = user.give(*now) {
                    quiet = false;
                    if !lost(port) {
                        exchange.pdu_received(*now, port, &pdu, &mut |it| table.request(it));
                    }
                }
                while let Some(pdu) = exchange.poll_transmit(*now, port) {
                    quiet = false;
                    if !lost(port) {
                        user.take(*now, &pdu);
                    }
                }
            }
            if quiet {
                return self.check();
            }
        }
    }

    /// Advances time at all ends.
    fn pass(&mut self, time: Duration, mut lost: impl FnMut(usize) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + Duration::from_millis(250));
            let (table, now) = (&mut self.table, self.now);
            (self.exchange).handle_timeout(now, &mut |it| table.request(it));
            for user in &mut self.users {
                user.due(now);
            }
            self.carry(&mut lost);
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        let entered = self.exchange.calls().filter(|call| call.entered).count();
        assert_eq!(entered, self.table.circuits.len());
        let mut held = BTreeSet::new();
        for call in self.exchange.calls() {
            assert!(call.legs.iter().any(|leg| leg.id.is_some()), "{call:?}");
            for leg in call.legs {
                if let Some(circuit) = leg.circuit {
                    assert!(leg.id.is_some(), "{call:?}");
                    assert!(held.insert((leg.port, circuit)), "{call:?}");
                }
            }
        }
        for (number, port) in self.exchange.ports.iter().enumerate() {
            let port = port.as_ref().unwrap();
            let of =
                |held: &BTreeSet<(usize, Circuit)>| held.iter().filter(|it| it.0 == number).count();
            assert_eq!(port.held.len(), of(&held));
            let waiting = |call: &&Call| call.legs[0].port == number && !call.answered;
            assert_eq!(
                port.unanswered,
                self.exchange.calls().filter(waiting).count()
            );
        }
    }

    fn check_empty(&self) {
        self.check();
        assert_eq!(self.exchange.calls().count(), 0);
        assert!(self.exchange.places.is_empty() && self.table.circuits.is_empty());
        let ports = self.exchange.ports.iter().flatten();
        assert!(ports.map(|port| port.signalling.calls()).all(|it| it == 0));
    }
}

const USERS: [Side; 3] = [Side::Network; 3];

/// Users whose messages the test writes.
fn by_hand() -> Bed<Sscop> {
    let mut bed = Bed::new(USERS, |_| Sscop::new(sscop::Config::default()));
    for user in &mut bed.users {
        user.establish(Time::ZERO);
    }
    bed.carry(|_| false);
    bed
}

impl Bed<Sscop> {
    fn say(&mut self, port: usize, reference: CallReference, kind: MessageType, said: &Elements) {
        let mut bytes = [0; MESSAGE_MAX];
        let length = said.emit(reference, kind, &mut bytes).unwrap();
        self.users[port].send(&bytes[..length]).unwrap();
        self.carry(|_| false);
    }

    /// The messages that a user has received.
    fn heard(&mut self, port: usize) -> Vec<(CallReference, MessageType, Elements)> {
        let mut heard = Vec::new();
        while let Some(event) = self.users[port].poll_event() {
            if let sscop::Event::Data(bytes) = event {
                let message = Message::new(&bytes).unwrap();
                let kind = MessageType::from_number(message.kind()).unwrap();
                heard.push((message.reference(), kind, message.elements().0));
            }
        }
        heard
    }
}

/// How far a call from port 0 to port 1 has progressed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Called,
    Proceeding,
    Connected,
    CallerReleases,
    CalledReleases,
    Refused,
    Over,
}

const STATES: [State; 7] = [
    State::Called,
    State::Proceeding,
    State::Connected,
    State::CallerReleases,
    State::CalledReleases,
    State::Refused,
    State::Over,
];

/// A call in a state, and its references for the users of ports 0 and 1.
fn call_in(state: State) -> (Bed<Sscop>, [CallReference; 2]) {
    let mut bed = by_hand();
    let mine = CallReference::new(7, false).unwrap();
    let none = Elements::default();
    bed.say(0, mine, MessageType::Setup, &setup(number(1)));
    let (there, kind, elements) = bed.heard(1).pop().unwrap();
    assert_eq!(kind, MessageType::Setup);
    assert!(elements.connection.unwrap().circuit().unwrap().vci >= 32);
    let theirs = there.reversed();
    let connect = |bed: &mut Bed<Sscop>| {
        bed.say(1, theirs, MessageType::Connect, &none);
        bed.say(0, mine, MessageType::ConnectAcknowledge, &none);
    };
    match state {
        State::Called => {}
        State::Proceeding => bed.say(1, theirs, MessageType::CallProceeding, &none),
        State::Connected => connect(&mut bed),
        State::CallerReleases => {
            connect(&mut bed);
            bed.say(0, mine, MessageType::Release, &none);
        }
        State::CalledReleases => {
            connect(&mut bed);
            bed.say(1, theirs, MessageType::Release, &none);
        }
        State::Refused => bed.say(1, theirs, MessageType::ReleaseComplete, &none),
        State::Over => {
            bed.say(0, mine, MessageType::Release, &none);
            bed.say(1, theirs, MessageType::ReleaseComplete, &none);
        }
    }
    (bed, [mine, theirs])
}

/// Every message at either end in every state. The table has the call while both ends
/// have it and it is answered. Nothing is left once both have released it.
#[test]
fn every_message_of_either_end_in_every_state() {
    let said = Elements {
        cause: Some(Cause::new(Cause::NORMAL)),
        call_state: Some(10),
        ..setup(number(1))
    };
    for state in STATES {
        for port in 0..2 {
            for kind in MessageType::ALL {
                let (mut bed, references) = call_in(state);
                bed.say(port, references[port], kind, &said);
                let clears = [MessageType::Release, MessageType::ReleaseComplete].contains(&kind);
                let enters = [State::Called, State::Proceeding].contains(&state)
                    && (port, kind) == (1, MessageType::Connect)
                    || state == State::Connected && !clears;
                let has = bed.table.circuits.len() == 1;
                assert_eq!(has, enters, "{state:?}, {kind:?} of port {port}");
                // A SETUP of an ended call is another call.
                let again = kind == MessageType::Setup
                    && [State::Over, State::Refused].contains(&state)
                    && port == 0;
                let another = again
                    || state == State::CallerReleases && port == 0 && kind == MessageType::Setup;
                for (port, reference) in references.into_iter().enumerate() {
                    bed.say(port, reference, MessageType::ReleaseComplete, &said);
                }
                // The called end of that one was not asked.
                if another {
                    bed.pass(Duration::from_secs(70), |_| false);
                }
                bed.check_empty();
            }
        }
    }
}

#[test]
fn the_table_has_the_call_before_either_end_knows() {
    let (mut bed, [mine, theirs]) = call_in(State::Called);
    assert_eq!(bed.heard(0), []);
    bed.pass(PROCEEDING_AFTER, |_| false);
    let heard: Vec<_> = bed.heard(0);
    let [(_, MessageType::CallProceeding, named)] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(named.connection.unwrap().circuit().unwrap().vci, 32);
    // Its message is processed, and nothing has left.
    let mut bytes = [0; MESSAGE_MAX];
    let none = Elements::default();
    let length = none.emit(theirs, MessageType::Connect, &mut bytes).unwrap();
    bed.users[1].send(&bytes[..length]).unwrap();
    let pdu = bed.users[1].poll_transmit(bed.now).unwrap();
    let Bed {
        exchange,
        table,
        now,
        ..
    } = &mut bed;
    exchange.pdu_received(*now, 1, &pdu, &mut |it| table.request(it));
    assert_eq!(table.circuits.len(), 1);
    bed.carry(|_| false);
    assert_eq!(bed.heard(0)[0].1, MessageType::Connect);
    assert_eq!(bed.heard(1)[0].1, MessageType::ConnectAcknowledge);
    // The caller learns the called end's cause of release.
    let busy = Elements {
        cause: Some(Cause::new(Cause::USER_BUSY)),
        ..none
    };
    bed.say(1, theirs, MessageType::Release, &busy);
    let heard = bed.heard(0);
    let [(_, MessageType::Release, said)] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(said.cause.unwrap().value(), Cause::USER_BUSY);
    // Its circuit stays the caller's until the caller has also released it.
    let held = |bed: &Bed<Sscop>, port| bed.exchange.port(port).unwrap().held.len();
    assert_eq!((held(&bed, 0), held(&bed, 1)), (1, 0));
    bed.say(0, mine, MessageType::ReleaseComplete, &none);
    bed.check_empty();
}

/// The causes of UNI 3.1, each with a counter.
#[test]
fn refusals_have_their_causes() {
    let refused = |bed: &mut Bed<Sscop>, said: &Elements| {
        let reference = CallReference::new(9, false).unwrap();
        bed.say(0, reference, MessageType::Setup, said);
        let heard = bed.heard(0);
        let [(_, MessageType::ReleaseComplete, why)] = &heard[..] else {
            panic!("{heard:?}");
        };
        bed.check_empty();
        why.cause.unwrap().value()
    };
    let mut bed = by_hand();
    assert_eq!(refused(&mut bed, &setup(number(3))), Cause::NO_ROUTE);
    let mut pair = setup(number(1));
    pair.bearer = None;
    assert_eq!(refused(&mut bed, &pair), Cause::MANDATORY_ELEMENT_MISSING);
    // All VCIs belong to permanent circuits.
    let all = (32..=u16::MAX).map(|vci| (1, Circuit { vpi: 0, vci }));
    bed.table.permanent.extend(all);
    let cause = refused(&mut bed, &setup(number(1)));
    assert_eq!(cause, Cause::NO_CIRCUIT_AVAILABLE);
    let counters = bed.exchange.counters();
    assert_eq!((counters.no_route, counters.no_circuit), (1, 1));
    // The table is full.
    let (mut bed, [_, theirs]) = call_in(State::Called);
    bed.table.room = 0;
    bed.say(1, theirs, MessageType::Connect, &Elements::default());
    let heard = bed.heard(0);
    let [(_, MessageType::ReleaseComplete, why)] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(why.cause.unwrap().value(), Cause::RESOURCES_UNAVAILABLE);
}

/// A flooding caller has a bounded number of waiting calls, and others' calls proceed.
#[test]
fn a_flood_of_setups_is_bounded_and_others_call() {
    let mut bed = by_hand();
    for value in 1..=500 {
        let reference = CallReference::new(value, false).unwrap();
        bed.say(0, reference, MessageType::Setup, &setup(number(1)));
    }
    assert_eq!(bed.exchange.calls().count(), UNANSWERED_MAX);
    assert_eq!(bed.heard(1).len(), UNANSWERED_MAX);
    let refused = 500 - UNANSWERED_MAX as u64;
    assert_eq!(bed.exchange.counters().no_resources, refused);
    let reference = CallReference::new(1, false).unwrap();
    bed.say(2, reference, MessageType::Setup, &setup(number(1)));
    assert_eq!(bed.heard(1)[0].1, MessageType::Setup);
    // The called user does not answer: T303 twice, and all calls end.
    bed.pass(Duration::from_secs(70), |_| false);
    bed.check_empty();
}

#[test]
fn a_restart_ends_the_calls_of_its_link() {
    let (mut bed, _) = call_in(State::Connected);
    bed.heard(0);
    let said = Elements {
        restart: Some(Restart::Link),
        ..Elements::default()
    };
    let all = CallReference::global(false);
    bed.say(1, all, MessageType::Restart, &said);
    assert!(bed.table.circuits.is_empty());
    assert_eq!(bed.heard(0)[0].1, MessageType::Release);
    assert_eq!(
        bed.heard(1).last().unwrap().1,
        MessageType::RestartAcknowledge
    );
}

#[test]
fn a_caller_s_number_is_passed_on_where_it_leads_to_it() {
    for (claimed, passed) in [(number(0), true), (number(2), false)] {
        let mut bed = by_hand();
        let said = Elements {
            calling: Some(Party::from(claimed)),
            ..setup(number(1))
        };
        let reference = CallReference::new(1, false).unwrap();
        bed.say(0, reference, MessageType::Setup, &said);
        let (_, _, heard) = bed.heard(1).pop().unwrap();
        assert_eq!(heard.calling.is_some(), passed);
        let counted = bed.exchange.counters().withheld;
        assert_eq!(counted, u64::from(!passed));
    }
}

#[test]
fn the_longest_prefix_leads() {
    let mut exchange = Exchange::new(&USERS.map(|side| Some(Config::new(side))));
    let prefix = |text: &str| text.parse().unwrap();
    exchange.set_prefixes(vec![
        (prefix(""), 2),
        (prefix("470"), 0),
        (prefix("4701"), 1),
    ]);
    assert_eq!(exchange.port_of(&number(1)), Some(1));
    assert_eq!(exchange.port_of(&number(2)), Some(0));
    assert_eq!(exchange.port_of(&number(0x10)), Some(2));
}

/// A port as the user's side of a switch above, which assigns circuits. A call that it
/// routes here is not routed back.
#[test]
fn a_port_of_the_user_s_side_has_circuits_named() {
    let sides = [Side::Network, Side::User, Side::Network];
    let mut bed = Bed::new(sides, |side| Signalling::new(Config::new(side)));
    let mine = bed.users[0].setup(bed.now, setup(number(1))).unwrap();
    bed.carry(|_| false);
    let events = std::iter::from_fn(|| bed.users[1].poll_event());
    let called = events.filter_map(|event| match event {
        Event::Setup(id, _) => Some(id),
        _ => None,
    });
    let there = called.last().unwrap();
    let circuit = Circuit { vpi: 2, vci: 77 };
    let named = ConnectionIdentifier::exclusive(circuit);
    let user = &mut bed.users[1];
    user.proceeding(bed.now, there, Some(named)).unwrap();
    user.accept(bed.now, there, &Elements::default()).unwrap();
    bed.carry(|_| false);
    assert_eq!(bed.table.circuits[0][1], End { port: 1, circuit });
    assert_eq!(
        bed.users[0].phase(mine),
        Some(crate::signalling::Phase::Active)
    );
    // From above: the same circuit is not free, another is.
    for (circuit, to, cause) in [
        (circuit, 0, Some(Cause::CIRCUIT_NOT_AVAILABLE)),
        (Circuit { vpi: 2, vci: 78 }, 1, Some(Cause::NO_ROUTE)),
        (Circuit { vpi: 2, vci: 78 }, 0, None),
    ] {
        let mut said = setup(number(to));
        said.connection = Some(ConnectionIdentifier::exclusive(circuit));
        let id = bed.users[1].setup(bed.now, said).unwrap();
        bed.carry(|_| false);
        let events = std::iter::from_fn(|| bed.users[1].poll_event());
        let ended = events.filter_map(|event| match event {
            Event::CircuitRefused(it) if it == id => Some(Cause::CIRCUIT_NOT_AVAILABLE),
            Event::Released(it, cause) if it == id => Some(cause.value()),
            _ => None,
        });
        assert_eq!(ended.last(), cause);
    }
}

/// A user has a permanent circuit that the switch does not know.
#[test]
fn a_circuit_that_the_called_end_refuses_is_not_the_end_of_the_call() {
    let mut bed = Bed::new(USERS, |side| Signalling::new(Config::new(side)));
    let mine = bed.users[0].setup(bed.now, setup(number(1))).unwrap();
    let refused = Cause::new(Cause::CIRCUIT_NOT_AVAILABLE);
    let named = |bed: &mut Bed<Signalling>| {
        bed.carry(|_| false);
        let events = std::iter::from_fn(|| bed.users[1].poll_event());
        let setup = events.filter_map(|event| match event {
            Event::Setup(id, elements) => Some((id, elements.connection?.circuit()?)),
            _ => None,
        });
        setup.last()
    };
    let mut before: Option<(CallId, Circuit)> = None;
    for _ in 0..3 {
        let (there, circuit) = named(&mut bed).unwrap();
        if let Some((id, other)) = before.replace((there, circuit)) {
            assert_eq!(id, there);
            assert_ne!(other, circuit);
            let end = |circuit| End { port: 1, circuit };
            assert!(bed.exchange.holds(end(circuit)) && !bed.exchange.holds(end(other)));
        }
        bed.users[1].release(bed.now, there, refused).unwrap();
    }
    let (there, circuit) = named(&mut bed).unwrap();
    let user = &mut bed.users[1];
    user.accept(bed.now, there, &Elements::default()).unwrap();
    bed.carry(|_| false);
    assert_eq!(bed.table.circuits[0][1], End { port: 1, circuit });
    let phase = bed.users[0].phase(mine);
    assert_eq!(phase, Some(crate::signalling::Phase::Active));
    assert_eq!(bed.exchange.counters().circuits_refused, 3);
    // A user that refuses every circuit refuses the call.
    let mine = bed.users[0].setup(bed.now, setup(number(1))).unwrap();
    let mut tries = 0;
    while let Some((there, _)) = named(&mut bed) {
        tries += 1;
        bed.users[1].release(bed.now, there, refused).unwrap();
    }
    assert_eq!((tries, bed.users[0].phase(mine)), (8, None));
}
