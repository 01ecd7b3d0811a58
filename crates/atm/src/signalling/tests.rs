use tidewall_wire::atm::q2931::{
    Aal, Bearer, MESSAGE_MAX, Opaque, Party, QosClasses, TrafficDescriptor,
};
use tidewall_wire::atm::{Circuit, Nsap};

use super::*;

const NOW: Time = Time::ZERO;

fn circuit(vci: u16) -> ConnectionIdentifier {
    ConnectionIdentifier::exclusive(Circuit { vpi: 0, vci })
}

fn setup() -> Elements {
    Elements {
        aal: Some(Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(9180),
        }),
        traffic: Some(TrafficDescriptor::best_effort()),
        bearer: Some(Bearer::data()),
        qos: Some(QosClasses::default()),
        low_layer: Opaque::new(&[0xcc]),
        called: Some(Party::from(Nsap([0x47; 20]))),
        ..Elements::default()
    }
}

fn at(connection: ConnectionIdentifier) -> Elements {
    Elements {
        connection: Some(connection),
        ..Elements::default()
    }
}

fn end(side: Side) -> Signalling {
    Signalling::new(Config::new(side))
}

/// Exchanges both ends' messages until there are no more.
fn exchange(now: Time, a: &mut Signalling, b: &mut Signalling) {
    loop {
        let mut quiet = true;
        while let Some(pdu) = a.poll_transmit(now) {
            b.pdu_received(now, &pdu);
            quiet = false;
        }
        while let Some(pdu) = b.poll_transmit(now) {
            a.pdu_received(now, &pdu);
            quiet = false;
        }
        // Both owners open their circuits at once.
        for end in [&mut *a, &mut *b] {
            let connected: Vec<CallId> = end.calls.keys().copied().collect();
            for id in connected {
                end.acknowledge(now, id);
            }
        }
        if quiet {
            return;
        }
    }
}

fn events(end: &mut Signalling) -> Vec<Event> {
    std::iter::from_fn(|| end.poll_event()).collect()
}

/// A user and the network, the link up.
fn pair() -> (Signalling, Signalling) {
    let (mut user, mut network) = (end(Side::User), end(Side::Network));
    user.establish(NOW);
    exchange(NOW, &mut user, &mut network);
    assert_eq!(events(&mut user), [Event::LinkUp]);
    assert_eq!(events(&mut network), [Event::LinkUp]);
    (user, network)
}

/// The one event, of a SETUP that came.
fn called(end: &mut Signalling) -> CallId {
    match &events(end)[..] {
        [Event::Setup(id, _)] => *id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_calls_and_releases() {
    let (mut user, mut network) = pair();
    let id = user.setup(NOW, setup()).unwrap();
    exchange(NOW, &mut user, &mut network);
    let there = called(&mut network);
    assert_eq!((there.ours, there.value), (false, id.value));
    network.proceeding(NOW, there, Some(circuit(40))).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!(
        events(&mut user),
        [Event::Proceeding(id, Box::new(at(circuit(40))))]
    );
    network.accept(NOW, there, &Elements::default()).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!(events(&mut user), [Event::Connected(id, Box::default())]);
    assert_eq!(user.phase(id), Some(Phase::Active));
    assert_eq!(network.phase(there), Some(Phase::Active));
    assert_eq!(
        events(&mut network),
        [Event::Connected(there, Box::default())]
    );
    let cause = Cause::new(Cause::NORMAL);
    user.release(NOW, id, cause).unwrap();
    exchange(NOW, &mut user, &mut network);
    // The circuit may be reused when both have released it.
    assert_eq!(events(&mut network), [Event::Releasing(there, cause)]);
    assert_eq!(user.phase(id), Some(Phase::ReleaseSent));
    network.release(NOW, there, cause).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!(events(&mut network), [Event::Released(there, cause)]);
    assert_eq!(events(&mut user), [Event::Released(id, cause)]);
    assert_eq!((user.calls(), network.calls()), (0, 0));
    assert!(user.timers.is_empty() && network.timers.is_empty());
}

/// A call that is accepted at once needs no CALL PROCEEDING; any other gets it in time.
#[test]
fn a_setup_is_answered_by_connect_or_in_time() {
    for waits in [false, true] {
        let (mut user, mut network) = pair();
        let id = user.setup(NOW, setup()).unwrap();
        exchange(NOW, &mut user, &mut network);
        let there = called(&mut network);
        network.proceed(NOW, there, Some(circuit(40))).unwrap();
        let mut now = NOW;
        if waits {
            now += PROCEEDING_AFTER;
            network.handle_timeout(now);
            exchange(now, &mut user, &mut network);
            assert_eq!(
                events(&mut user),
                [Event::Proceeding(id, Box::new(at(circuit(40))))]
            );
            assert_eq!(network.phase(there), Some(Phase::ProceedingSent));
        }
        network.accept(now, there, &Elements::default()).unwrap();
        exchange(now, &mut user, &mut network);
        // The first answer names the circuit.
        let said = if waits {
            Elements::default()
        } else {
            at(circuit(40))
        };
        assert_eq!(events(&mut user), [Event::Connected(id, Box::new(said))]);
        assert_eq!(user.phase(id), Some(Phase::Active));
        assert!(network.timers.is_empty());
    }
    // A refused call leaves no timer.
    let (mut user, mut network) = pair();
    user.setup(NOW, setup()).unwrap();
    exchange(NOW, &mut user, &mut network);
    let there = called(&mut network);
    network.proceed(NOW, there, Some(circuit(40))).unwrap();
    let busy = Cause::new(Cause::USER_BUSY);
    network.release(NOW, there, busy).unwrap();
    assert!(network.timers.is_empty());
}

#[test]
fn the_network_calls_a_user() {
    let (mut user, mut network) = pair();
    let elements = Elements {
        connection: Some(circuit(41)),
        ..setup()
    };
    let id = network.setup(NOW, elements).unwrap();
    exchange(NOW, &mut user, &mut network);
    let there = called(&mut user);
    user.accept(NOW, there, &Elements::default()).unwrap();
    assert_eq!(user.phase(there), Some(Phase::ConnectSent));
    exchange(NOW, &mut user, &mut network);
    assert_eq!(network.phase(id), Some(Phase::Active));
    assert_eq!(user.phase(there), Some(Phase::Active));
}

#[test]
fn a_refused_call() {
    let (mut user, mut network) = pair();
    let id = user.setup(NOW, setup()).unwrap();
    exchange(NOW, &mut user, &mut network);
    let there = called(&mut network);
    let busy = Cause::new(Cause::USER_BUSY);
    network.release(NOW, there, busy).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!(events(&mut user), [Event::Released(id, busy)]);
    assert_eq!((user.calls(), network.calls()), (0, 0));
}

#[test]
fn releases_that_cross() {
    let (mut user, mut network, id, there) = active();
    user.release(NOW, id, Cause::new(Cause::NORMAL)).unwrap();
    network
        .release(NOW, there, Cause::new(Cause::NORMAL))
        .unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!((user.calls(), network.calls()), (0, 0));
    assert!(matches!(events(&mut user)[..], [Event::Released(..)]));
    assert!(matches!(events(&mut network)[..], [Event::Released(..)]));
}

/// A user, the network, and the ids of an active call that the user made.
fn active() -> (Signalling, Signalling, CallId, CallId) {
    let (mut user, mut network) = pair();
    let id = user.setup(NOW, setup()).unwrap();
    exchange(NOW, &mut user, &mut network);
    let there = called(&mut network);
    network.accept(NOW, there, &at(circuit(40))).unwrap();
    exchange(NOW, &mut user, &mut network);
    events(&mut user);
    events(&mut network);
    (user, network, id, there)
}

#[test]
fn the_first_call_brings_the_link_up() {
    let (mut user, mut network) = (end(Side::User), end(Side::Network));
    user.setup(NOW, setup()).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert!(matches!(
        events(&mut network)[..],
        [Event::LinkUp, Event::Setup(..)]
    ));
}

/// An end that receives nothing: the effect of each phase's timer.
#[test]
fn timers() {
    for (phase, config_timer, sent, then) in [
        (Phase::SetupSent, 4, MessageType::Setup, None),
        (
            Phase::ProceedingReceived,
            10,
            MessageType::Release,
            Some(Phase::ReleaseSent),
        ),
        (
            Phase::ConnectSent,
            4,
            MessageType::Release,
            Some(Phase::ReleaseSent),
        ),
        (Phase::ReleaseSent, 30, MessageType::Release, None),
    ] {
        let (mut user, id) = in_phase(Side::User, phase);
        let (due, first) = *user.timers.first().unwrap();
        assert_eq!(
            (due, first),
            (Duration::from_secs(config_timer), id),
            "{phase:?}"
        );
        user.call_expired_at(due);
        assert_eq!(messages(&mut user), [sent as u8], "{phase:?}");
        if then.is_none() {
            let (due, _) = *user.timers.first().unwrap();
            user.call_expired_at(due);
        }
        assert_eq!(user.phase(id), then, "{phase:?}");
    }
}

impl Signalling {
    /// Advances time for calls only, whatever the link's timers are.
    fn call_expired_at(&mut self, now: Time) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.call_expired(now, id);
        }
    }
}

/// The types of the messages that an end has sent.
fn messages(end: &mut Signalling) -> Vec<u8> {
    use tidewall_wire::atm::sscop::Pdu;
    std::iter::from_fn(|| end.poll_transmit(NOW))
        .filter_map(|pdu| match Pdu::parse(&pdu) {
            Ok(Pdu::Data { data, .. }) => Some(data[5]),
            _ => None,
        })
        .collect()
}

/// An end with one call in a phase, and nothing to send.
fn in_phase(side: Side, phase: Phase) -> (Signalling, CallId) {
    let (user, network) = pair();
    let mut this = if side == Side::User { user } else { network };
    let ours = matches!(
        phase,
        Phase::SetupSent | Phase::ProceedingReceived | Phase::ReleaseSent
    );
    let id = if ours {
        this.setup(NOW, setup()).unwrap()
    } else {
        let id = CallId {
            ours: false,
            value: 1,
        };
        let elements = Elements {
            connection: Some(circuit(50)),
            ..setup()
        };
        receive(&mut this, id, MessageType::Setup, &elements);
        id
    };
    match phase {
        Phase::SetupSent | Phase::SetupReceived => {}
        Phase::ProceedingReceived => {
            receive(&mut this, id, MessageType::CallProceeding, &at(circuit(50)));
        }
        Phase::ProceedingSent => this.proceeding(NOW, id, None).unwrap(),
        Phase::ConnectSent => {
            this.accept(NOW, id, &Elements::default()).unwrap();
            this.enter(id, Phase::ConnectSent);
            let due = NOW + this.config.t313;
            this.arm(id, due);
        }
        Phase::Active => this.enter(id, Phase::Active),
        Phase::ReleaseSent => this.send_release(NOW, id, Cause::new(Cause::NORMAL)),
        Phase::ReleaseReceived => {
            receive(
                &mut this,
                id,
                MessageType::Release,
                &because(Cause::new(Cause::NORMAL)),
            );
        }
    }
    assert_eq!(this.phase(id), Some(phase));
    messages(&mut this);
    events(&mut this);
    (this, id)
}

fn receive(end: &mut Signalling, id: CallId, kind: MessageType, elements: &Elements) {
    let mut bytes = [0; MESSAGE_MAX];
    let reference = CallReference::new(id.value, id.ours).unwrap();
    let length = elements.emit(reference, kind, &mut bytes).unwrap();
    end.message(NOW, &bytes[..length]);
}

/// The state that each message leads to from each state, and the answer: Q.2931 §5.2 to
/// §5.6. `x` is the null state, `=` the same state.
#[test]
fn every_message_in_every_state() {
    let table = "
        CallProceeding      ProceedingReceived:-  =:Status  =:Status  =:Status  =:Status  =:Status  =:Status  =:Status
        Setup               =:-  =:-  =:-  =:-  =:-  =:-  =:-  =:-
        Connect             Active:-  Active:-  =:Status  =:Status  =:Status  =:Status  =:Status  =:Status
        ConnectAcknowledge  =:Status  =:Status  =:Status  =:Status  Active:-  =:-  =:Status  =:Status
        Release             ReleaseReceived:-  ReleaseReceived:-  ReleaseReceived:-  ReleaseReceived:-  ReleaseReceived:-  ReleaseReceived:-  x:-  =:-
        ReleaseComplete     x:-  x:-  x:-  x:-  x:-  x:-  x:-  x:-
        StatusEnquiry       =:Status  =:Status  =:Status  =:Status  =:Status  =:Status  =:Status  =:Status
        Status              =:-  =:-  =:-  =:-  =:-  =:-  =:-  =:-
        StatusNull          x:-  x:-  x:-  x:-  x:-  x:-  x:-  x:-";
    for side in [Side::User, Side::Network] {
        for row in table.trim().lines() {
            let mut cells = row.split_whitespace();
            let name = cells.next().unwrap();
            for (phase, cell) in Phase::ALL.into_iter().zip(cells) {
                let (mut this, id) = in_phase(side, phase);
                let status = |state| Elements {
                    call_state: Some(state),
                    ..because(Cause::new(Cause::RESPONSE_TO_STATUS_ENQUIRY))
                };
                let (kind, elements) = match name {
                    "Setup" => (MessageType::Setup, setup()),
                    "Release" => (MessageType::Release, because(Cause::new(Cause::NORMAL))),
                    "ReleaseComplete" => (MessageType::ReleaseComplete, Elements::default()),
                    "StatusEnquiry" => (MessageType::StatusEnquiry, Elements::default()),
                    "Status" => (MessageType::Status, status(10)),
                    "StatusNull" => (MessageType::Status, status(0)),
                    "Connect" => (MessageType::Connect, at(circuit(50))),
                    "ConnectAcknowledge" => (MessageType::ConnectAcknowledge, Elements::default()),
                    _ => (MessageType::CallProceeding, at(circuit(50))),
                };
                receive(&mut this, id, kind, &elements);
                let state = match this.phase(id) {
                    None => "x".into(),
                    Some(next) if next == phase => "=".into(),
                    Some(next) => format!("{next:?}"),
                };
                let sent: Vec<String> = messages(&mut this)
                    .into_iter()
                    .map(|number| format!("{:?}", MessageType::from_number(number).unwrap()))
                    .collect();
                let sent = if sent.is_empty() {
                    "-".into()
                } else {
                    sent.join(",")
                };
                assert_eq!(
                    format!("{state}:{sent}"),
                    cell,
                    "{side:?}: {name} in {phase:?}"
                );
                if this.phase(id).is_none() {
                    assert!(this.timers.is_empty());
                }
            }
        }
    }
}

/// A message of no call, and the answer (§5.6.3.2).
#[test]
fn messages_of_no_call() {
    let none = CallId {
        ours: true,
        value: 99,
    };
    let state = |number| Elements {
        call_state: Some(number),
        ..because(Cause::new(Cause::NORMAL))
    };
    let complete = &[MessageType::ReleaseComplete as u8][..];
    for (kind, elements, answer) in [
        (MessageType::CallProceeding, Elements::default(), complete),
        (MessageType::Connect, Elements::default(), complete),
        (
            MessageType::ConnectAcknowledge,
            Elements::default(),
            complete,
        ),
        (MessageType::Release, Elements::default(), complete),
        (MessageType::ReleaseComplete, Elements::default(), &[]),
        (MessageType::Setup, setup(), &[]),
        (
            MessageType::StatusEnquiry,
            Elements::default(),
            &[MessageType::Status as u8],
        ),
        (MessageType::Status, state(0), &[]),
        (MessageType::Status, state(10), complete),
    ] {
        let (mut user, _) = pair();
        receive(&mut user, none, kind, &elements);
        assert_eq!(messages(&mut user), answer, "{kind:?}");
        assert_eq!(user.calls(), 0);
    }
}

#[test]
fn a_setup_without_what_it_must_have_is_refused() {
    let id = CallId {
        ours: false,
        value: 5,
    };
    let (_, mut network) = pair();
    for elements in [
        Elements {
            traffic: None,
            ..setup()
        },
        Elements {
            bearer: None,
            ..setup()
        },
        Elements {
            called: None,
            ..setup()
        },
        Elements {
            qos: None,
            ..setup()
        },
    ] {
        receive(&mut network, id, MessageType::Setup, &elements);
        assert_eq!(messages(&mut network), [MessageType::ReleaseComplete as u8]);
    }
    let (mut user, _) = pair();
    receive(&mut user, id, MessageType::Setup, &setup());
    assert_eq!(messages(&mut user), [MessageType::ReleaseComplete as u8]);
    assert_eq!(user.calls(), 0);
}

#[test]
fn calls_have_a_limit() {
    let mut config = Config::new(Side::Network);
    config.calls = 2;
    let mut network = Signalling::new(config);
    for value in 1..=3 {
        receive(
            &mut network,
            CallId { ours: false, value },
            MessageType::Setup,
            &setup(),
        );
    }
    assert_eq!(network.calls(), 2);
    assert_eq!(network.setup(NOW, setup()), Err(RequestError::TooMany));
}

#[test]
fn a_restart_releases_what_it_names() {
    let (mut user, mut network, id, there) = active();
    network
        .restart(NOW, Restart::Circuit, Some(circuit(99)))
        .unwrap();
    exchange(NOW, &mut user, &mut network);
    assert_eq!(events(&mut network), [Event::RestartDone(true)]);
    assert_eq!(user.phase(id), Some(Phase::Active));
    network.restart(NOW, Restart::Link, None).unwrap();
    exchange(NOW, &mut user, &mut network);
    assert!(matches!(
        events(&mut network)[..],
        [Event::Released(gone, _), Event::RestartDone(true)] if gone == there
    ));
    assert_eq!((user.calls(), network.calls()), (0, 0));
}

/// A link that goes down and comes up in time: the active call continues, and others end.
#[test]
fn active_calls_outlive_the_link() {
    let (mut user, mut network, id, _) = active();
    let early = user.setup(NOW, setup()).unwrap();
    user.link_down(NOW);
    assert_eq!(user.phase(id), Some(Phase::Active));
    assert_eq!(user.phase(early), None);
    user.link_up(NOW);
    let due = user.poll_timeout().unwrap();
    user.handle_timeout(due);
    assert_eq!(user.timers.len(), 1);
    exchange(due, &mut user, &mut network);
    assert_eq!(user.phase(id), Some(Phase::Active));
    assert_eq!(user.timers.len(), 0);
    // Down for good.
    user.link_down(NOW);
    user.down_until = Some(NOW);
    user.handle_timeout(NOW);
    assert_eq!(user.calls(), 0);
}

/// Advances time for both ends, up to `end`.
fn pass(from: Time, end: Time, a: &mut Signalling, b: &mut Signalling) {
    let mut now = from;
    while now < end {
        exchange(now, a, b);
        let next = [a.poll_timeout(), b.poll_timeout()];
        let next = next.into_iter().flatten().min().unwrap_or(end);
        now = next.min(end).max(now);
        a.handle_timeout(now);
        b.handle_timeout(now);
    }
    exchange(now, a, b);
}

/// The network's side does not wait for ever for an acknowledgment of its CONNECT.
#[test]
fn a_caller_that_does_not_acknowledge_is_asked_and_released() {
    let id = CallId {
        ours: false,
        value: 1,
    };
    let state = |number| Elements {
        call_state: Some(number),
        ..because(Cause::new(Cause::RESPONSE_TO_STATUS_ENQUIRY))
    };
    let accepted = || {
        let (mut network, id) = in_phase(Side::Network, Phase::SetupReceived);
        network.accept(NOW, id, &at(circuit(50))).unwrap();
        assert_eq!(messages(&mut network), [MessageType::Connect as u8]);
        network
    };
    let expire = |network: &mut Signalling| {
        let (due, _) = *network.timers.first().unwrap();
        network.call_expired_at(due);
        messages(network)
    };
    // It reports nothing, or always that it has not received the CONNECT.
    for answer in [None, Some(3)] {
        let mut network = accepted();
        assert_eq!(network.timers.first().unwrap().0, Duration::from_secs(4));
        let asked = expire(&mut network);
        assert_eq!(asked, [MessageType::StatusEnquiry as u8]);
        if let Some(number) = answer {
            receive(&mut network, id, MessageType::Status, &state(number));
        }
        assert_eq!(expire(&mut network), [MessageType::Release as u8]);
        assert_eq!(network.phase(id), Some(Phase::ReleaseSent));
        assert_eq!(events(&mut network), []);
    }
    // It acknowledges, or reports that it is active; that is reported once.
    for first in [MessageType::ConnectAcknowledge, MessageType::Status] {
        let mut network = accepted();
        for kind in [first, MessageType::ConnectAcknowledge, MessageType::Status] {
            let elements = match kind {
                MessageType::Status => state(10),
                _ => Elements::default(),
            };
            receive(&mut network, id, kind, &elements);
        }
        assert!(network.timers.is_empty());
        let connected = Event::Connected(id, Box::default());
        assert_eq!(events(&mut network), [connected]);
    }
}

/// More calls than the link's queue holds messages, and a link that comes up again.
#[test]
fn many_active_calls_outlive_a_link_that_comes_up_anew() {
    const CALLS: usize = 3000;
    let (mut user, mut network) = pair();
    for _ in 0..CALLS {
        user.setup(NOW, setup()).unwrap();
        exchange(NOW, &mut user, &mut network);
        let there = called(&mut network);
        network.accept(NOW, there, &at(circuit(40))).unwrap();
        exchange(NOW, &mut user, &mut network);
        events(&mut network);
    }
    events(&mut user);
    user.link.establish(NOW);
    while let Some(pdu) = user.poll_transmit(NOW) {
        network.pdu_received(NOW, &pdu);
    }
    // A restarting neighbour does not cause work for each call at once. The messages sent
    // here are lost, so it restarts once more.
    assert_eq!(messages(&mut network), [0; 0]);
    assert!(network.timers.is_empty());
    let end = Duration::from_secs(20);
    pass(NOW, end, &mut user, &mut network);
    for this in [&mut user, &mut network] {
        assert_eq!(this.calls(), CALLS);
        assert!(events(this).iter().all(|event| *event == Event::LinkUp));
        assert!(this.timers.is_empty() && this.asking.is_none());
    }
}

#[test]
fn setups_beyond_the_rate_are_refused() {
    let mut user = end(Side::User);
    let config = Config {
        setups: Some(100),
        ..Config::new(Side::Network)
    };
    let mut network = Signalling::new(config);
    let mut now = NOW;
    user.establish(now);
    exchange(now, &mut user, &mut network);
    let mut taken = |now| {
        for _ in 0..20 {
            user.setup(now, setup()).unwrap();
        }
        exchange(now, &mut user, &mut network);
        let of_one = |event: &&Event| matches!(event, Event::Setup(..));
        let taken = events(&mut network).iter().filter(of_one).count();
        let refused = |event: &&Event| match event {
            Event::Released(_, cause) => cause.value() == Cause::RESOURCES_UNAVAILABLE,
            _ => false,
        };
        assert_eq!(events(&mut user).iter().filter(refused).count(), 20 - taken);
        taken
    };
    // Those of a tenth of a second at once, and one more.
    assert_eq!(taken(now), 11);
    assert_eq!(taken(now), 0);
    now += Duration::from_millis(50);
    assert_eq!(taken(now), 5);
    now += Duration::from_secs(10);
    assert_eq!(taken(now), 11);
}
