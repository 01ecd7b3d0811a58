//! Two managers over a link that may lose and delay, and applications of them that do
//! anything in any order. Each manager's answers fit the requests, labels belong to
//! calls, and at the end nothing is left.

#[path = "daemon_model/device.rs"]
#[allow(dead_code, reason = "its ports are another test's")]
mod device;
#[path = "daemon_model/kernel.rs"]
#[allow(dead_code, reason = "of sockets nothing is asked here")]
mod kernel;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use device::FakeDevice;
use proptest::prelude::*;
use tidewall_manager::connection::Credentials;
use tidewall_manager::daemon::circuits::{AtmConfig, CallNotice, Side};
use tidewall_manager::daemon::{ClientId, ForeignFd, Limits, Manager, Recovered, Reply};
use tidewall_manager::protocol::*;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::atm::{Circuit, Nsap};

/// Applications of each manager.
const CLIENTS: u64 = 2;
/// Longer than any timer of a call and its repetition, and than T309.
const LONG: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A listener, by the end and the client; for whose calls, and for which selector.
    Listen(usize, u64, u8),
    Unlisten(usize, u64, u8),
    Call(usize, u64, usize, u8),
    Accept(usize, u64, u8),
    /// A call to the other end, if a listener there accepts it.
    Connect(usize, u64, u8),
    /// Release one of its calls.
    Release(usize, u64, usize),
    /// The application dies, and another replaces it.
    Kill(usize, u64),
    /// Lose the next PDU of this end.
    Lose(usize),
    /// The manager dies, and applications present themselves to the next.
    Restart(usize),
    Wait(u8),
}

fn actions() -> impl Strategy<Value = Action> {
    let (end, client, selector) = (0..2usize, 0..CLIENTS, 0..2u8);
    prop_oneof![
        3 => (end.clone(), client.clone(), selector.clone())
            .prop_map(|(e, c, s)| Action::Listen(e, c, s)),
        1 => (end.clone(), client.clone(), selector.clone())
            .prop_map(|(e, c, s)| Action::Unlisten(e, c, s)),
        6 => (end.clone(), client.clone(), end.clone(), selector.clone())
            .prop_map(|(e, c, o, s)| Action::Call(e, c, o, s)),
        6 => (end.clone(), client.clone(), selector)
            .prop_map(|(e, c, s)| Action::Accept(e, c, s)),
        3 => (end.clone(), client.clone(), 0..2u8)
            .prop_map(|(e, c, s)| Action::Connect(e, c, s)),
        3 => (end.clone(), client.clone(), 0..4usize)
            .prop_map(|(e, c, n)| Action::Release(e, c, n)),
        1 => (end.clone(), client).prop_map(|(e, c)| Action::Kill(e, c)),
        1 => end.clone().prop_map(Action::Lose),
        1 => end.prop_map(Action::Restart),
        4 => (0..100u8).prop_map(Action::Wait),
    ]
}

/// The state of a call, as its application knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Calling,
    Accepted,
    Connected,
}

/// An application's state of a call.
#[derive(Clone, Debug)]
struct Call {
    known: Known,
    circuit: Option<Circuit>,
    /// Since it was accepted or connected.
    reference: Option<AtmReference>,
    /// Presented to a manager that has not yet reported that it is connected.
    presented: bool,
}

impl Call {
    fn new(known: Known, reference: Option<AtmReference>) -> Self {
        Call {
            known,
            circuit: reference.as_ref().and_then(AtmReference::circuit),
            reference,
            presented: false,
        }
    }
}

#[derive(Default)]
struct Application {
    client: ClientId,
    number: u16,
    token: [u8; 16],
    listeners: BTreeSet<u8>,
    calls: BTreeMap<u32, Call>,
    /// Calls that wait, by their listeners.
    waiting: VecDeque<AtmIncoming>,
}

struct End {
    which: usize,
    /// Number of managers so far.
    runs: u32,
    calls_max: usize,
    manager: Manager,
    device: FakeDevice,
    applications: Vec<Application>,
    next_client: ClientId,
    next_call: u32,
    /// PDUs on their way to the other end.
    sent: VecDeque<Vec<u8>>,
    lose: usize,
}

/// Limits with this many calls per user.
fn limits(calls: usize) -> Limits {
    let mut limits = Limits::default();
    limits.trusted = vec![1000];
    limits.calls_of_domain = calls;
    limits
}

fn listen(end: usize, selector: u8) -> Request {
    Request::AtmListen(AtmListen {
        listener: selector.into(),
        backlog: 2,
        carried: AtmCarried::of(&Default::default()),
        sap: sap(end, selector),
    })
}

fn number(end: usize, selector: u8) -> Nsap {
    let mut number = [0x47; 20];
    (number[18], number[19]) = (end as u8, selector);
    Nsap(number)
}

fn sap(end: usize, selector: u8) -> AtmSap {
    AtmSap::of(&number(end, selector).into())
}

impl End {
    fn new(end: usize) -> Self {
        Self::limited(end, Limits::default().calls_of_domain)
    }

    /// With this many calls per user.
    fn limited(end: usize, calls: usize) -> Self {
        let mut device = FakeDevice::new();
        let now = Duration::ZERO;
        let manager = Manager::new(limits(calls), Recovered::default(), now, &mut device);
        let mut it = End {
            which: end,
            runs: 0,
            calls_max: calls,
            manager,
            device,
            applications: Vec::new(),
            next_client: 1,
            next_call: 1,
            sent: VecDeque::new(),
            lose: 0,
        };
        it.control(now);
        for _ in 0..CLIENTS {
            let application = it.join(now);
            it.applications.push(application);
        }
        it
    }

    fn control(&mut self, now: Duration) {
        self.runs += 1;
        let config = AtmConfig {
            next_hop: [10, 0, 0, 1].into(),
            number: number(self.which, 0),
            side: [Side::User, Side::Network][self.which],
            permanent: Vec::new(),
        };
        let seed = 0x1234 + self.which as u32 + 0x10_0000 * self.runs;
        self.manager.control_circuits(config, seed, now);
    }

    fn connect(&mut self) -> ClientId {
        let client = self.next_client;
        self.next_client += 1;
        let credentials = Credentials { uid: 1000, pid: 1 };
        self.manager.connected(client, credentials).unwrap();
        client
    }

    /// Starts another manager, to which every client presents its listeners and its
    /// accepted or connected calls. It does not know calls that were in progress, and
    /// none of them belongs to it.
    fn restart(&mut self, now: Duration) {
        self.hear(now);
        let circuits = self.device.circuits.iter();
        let circuits = circuits.filter_map(|(label, of)| Some((label.circuit()?, *of)));
        let recovered = Recovered {
            entries: self.device.journal.clone(),
            ports: Vec::new(),
            circuits: circuits.collect(),
        };
        self.manager = Manager::new(limits(self.calls_max), recovered, now, &mut self.device);
        self.sent.clear();
        self.control(now);
        for place in 0..self.applications.len() {
            let client = self.connect();
            let application = &mut self.applications[place];
            application.client = client;
            application.waiting.clear();
            (application.calls).retain(|_, call| call.known != Known::Calling);
            let token = application.token;
            let listeners = application.listeners.clone();
            let mut calls = Vec::new();
            for (number, call) in &mut application.calls {
                call.presented = true;
                calls.push((*number, call.reference.clone().unwrap()));
            }
            let again = self.ask(client, &Request::Present(Present { token }), now);
            assert!(matches!(again, Answer::Joined(_)), "{again:?}");
            let attached = self.ask(client, &Request::AttachAtm(Empty {}), now);
            assert!(matches!(attached, Answer::AtmAttached(_)));
            for selector in listeners {
                let answer = self.ask(client, &listen(self.which, selector), now);
                assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
            }
            for (call, reference) in calls {
                let request = Request::AtmPresent(AtmPresent { call, reference });
                let answer = self.ask(client, &request, now);
                assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
            }
            let presented = Request::AtmPresented(Empty {});
            let answer = self.ask(client, &presented, now);
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        }
    }

    fn join(&mut self, now: Duration) -> Application {
        let client = self.connect();
        let join = Request::Join(Join {
            queues: 0,
            frames: 0,
            receive_ring: 0,
            flags: JOIN_WITHOUT_QUEUES,
        });
        let Answer::Joined(joined) = self.ask(client, &join, now) else {
            panic!("it joins");
        };
        let attached = self.ask(client, &Request::AttachAtm(Empty {}), now);
        assert!(matches!(attached, Answer::AtmAttached(_)));
        Application {
            client,
            number: joined.application as u16,
            token: joined.token,
            ..Application::default()
        }
    }

    fn ask(&mut self, client: ClientId, request: &Request, now: Duration) -> Answer {
        let bytes = request.emit(1);
        let (_, reply) = self
            .manager
            .handle(client, &bytes, None, now, &mut self.device);
        match reply {
            Reply::Answer(answer, _) => answer,
            Reply::Joined(joined, ()) => Answer::Joined(joined),
            Reply::Attached(attached) => Answer::AtmAttached(attached),
            Reply::Left => Answer::Done(Empty {}),
        }
    }

    /// Sends a message about calls; true if it is accepted.
    fn say(&mut self, client: ClientId, request: &Request, now: Duration) -> bool {
        let circuit = (request.descriptors() > 0).then(|| {
            let (theirs, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
            ForeignFd::from(OwnedFd::from(theirs))
        });
        let bytes = request.emit(0);
        (self.manager)
            .said(client, &bytes, circuit, now, &mut self.device)
            .is_ok()
    }

    /// Processes the manager's notices; true if messages were sent to it in response.
    fn hear(&mut self, now: Duration) -> bool {
        let mut acknowledged = Vec::new();
        let notices = std::iter::from_fn(|| self.manager.poll_call_notice());
        let notices: Vec<CallNotice> = notices.collect();
        for (place, notice) in notices.iter().enumerate() {
            let of = |it: &&mut Application| it.number == notice.application;
            let Some(application) = self.applications.iter_mut().find(of) else {
                panic!("{notice:?} for nobody");
            };
            match &notice.answer {
                Answer::AtmIncoming(of) => {
                    assert!(application.listeners.contains(&(of.listener as u8)));
                    application.waiting.push_back(of.clone());
                }
                Answer::AtmWithdrawn(of) => {
                    assert!(application.listeners.contains(&(of.listener as u8)));
                    let id = |it: &AtmReference| (it.id(), it.local);
                    let waited = application.waiting.len();
                    (application.waiting).retain(|it| id(&it.reference) != id(&of.reference));
                    assert_eq!(application.waiting.len() + 1, waited);
                }
                Answer::AtmCircuit(of) => {
                    let circuit = of.circuit.circuit();
                    let label = Label::of_circuit(circuit).unwrap();
                    // Before the application learns it, and until it learns that it has
                    // ended.
                    let ended = notices[place..].iter().any(|later| {
                        later.application == notice.application
                            && matches!(&later.answer, Answer::AtmEnded(it) if it.call == of.call)
                    });
                    let owner = self.device.circuits.get(&label);
                    assert!(ended || owner == Some(&notice.application), "{notice:?}");
                    let call = application.calls.get_mut(&of.call).unwrap();
                    assert_eq!(call.circuit.replace(circuit), None);
                }
                Answer::AtmConnected(of) => {
                    let call = application.calls.get_mut(&of.call).unwrap();
                    // The previous manager may have reported it.
                    assert!(call.known != Known::Connected || call.presented, "{of:?}");
                    call.presented = false;
                    // The calling end receives the circuit that the called one has made.
                    let is_callers = of.reference.local != 0 && call.known == Known::Calling;
                    assert_eq!(notice.beside.is_some(), is_callers);
                    assert_eq!(of.reference.circuit(), call.circuit);
                    // A local call has a circuit that is a socket.
                    let has_one = call.circuit.is_some() || notice.beside.is_some();
                    assert!(has_one || call.known != Known::Calling);
                    call.known = Known::Connected;
                    call.reference = Some(of.reference.clone());
                    if of.reference.ours == 1 {
                        let request = Request::AtmAcknowledge(CallNumber { call: of.call });
                        acknowledged.push((application.client, request));
                    }
                }
                Answer::AtmEnded(of) => {
                    assert!(application.calls.remove(&of.call).is_some(), "{of:?}");
                }
                other => panic!("no notice: {other:?}"),
            }
        }
        let said = !acknowledged.is_empty();
        for (client, request) in acknowledged {
            assert!(self.say(client, &request, now));
        }
        said
    }

    fn check(&self) {
        let held = self.applications.iter().flat_map(|of| {
            let circuits = of.calls.values().filter_map(|call| call.circuit);
            circuits.map(|circuit| (Label::of_circuit(circuit).unwrap(), of.number))
        });
        let held: Vec<_> = held.collect();
        let labels: BTreeMap<Label, u16> = held.iter().copied().collect();
        // No label belongs to two calls, and each belongs to its application.
        assert_eq!(labels.len(), held.len());
        assert_eq!(labels, self.device.circuits);
    }
}

struct World {
    ends: [End; 2],
    now: Duration,
}

impl World {
    /// Circuits over the link that are connected at both ends. Each circuit at both ends
    /// belongs to the same call: no circuit is reused while the other end still has it.
    fn connected(&self) -> BTreeSet<(Circuit, u32)> {
        let of = |end: &End| -> BTreeMap<Circuit, AtmReference> {
            let calls = end.applications.iter().flat_map(|of| of.calls.values());
            let connected = calls.filter(|call| call.known == Known::Connected);
            let references = connected.filter_map(|call| call.reference.clone());
            references
                .filter_map(|reference| Some((reference.circuit()?, reference)))
                .collect()
        };
        let [near, far] = self.ends.each_ref().map(of);
        let mut both = BTreeSet::new();
        for (circuit, reference) in near {
            let Some(other) = far.get(&circuit) else {
                continue;
            };
            let (this, other) = (reference.id(), other.id());
            assert_eq!((this.value, this.ours), (other.value, !other.ours));
            both.insert((circuit, this.value));
        }
        both
    }

    /// Carries PDUs over the link, and does what is due.
    fn settle(&mut self) {
        loop {
            let mut went = false;
            for from in 0..2 {
                let end = &mut self.ends[from];
                end.manager.tick(self.now, &mut end.device);
                while let Some(pdu) = end.manager.poll_signalling(self.now) {
                    went = true;
                    if end.lose == 0 {
                        end.sent.push_back(pdu);
                    }
                    end.lose = end.lose.saturating_sub(1);
                }
                let sent = std::mem::take(&mut end.sent);
                let to = &mut self.ends[1 - from];
                for pdu in sent {
                    to.manager
                        .signalling_received(&pdu, self.now, &mut to.device);
                }
            }
            for end in &mut self.ends {
                went |= end.hear(self.now);
            }
            if !went {
                break;
            }
        }
        self.ends.iter().for_each(End::check);
        self.connected();
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.settle();
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Listen(end, client, selector) => {
                let it = &mut self.ends[end];
                let client = client as usize;
                let request = listen(end, selector);
                let taken = |of: &Application| of.listeners.contains(&selector);
                let taken = it.applications.iter().any(taken);
                let answer = it.ask(it.applications[client].client, &request, now);
                assert_eq!(matches!(answer, Answer::Done(_)), !taken, "{answer:?}");
                if !taken {
                    it.applications[client].listeners.insert(selector);
                }
            }
            Action::Unlisten(end, client, selector) => {
                let it = &mut self.ends[end];
                let listener = selector.into();
                let request = Request::AtmUnlisten(ListenerNumber { listener });
                // Earlier notices about it.
                it.hear(now);
                let client = client as usize;
                it.ask(it.applications[client].client, &request, now);
                it.applications[client].listeners.remove(&selector);
                let of = |waits: &AtmIncoming| waits.listener == u32::from(selector);
                it.applications[client].waiting.retain(|waits| !of(waits));
            }
            Action::Call(end, client, other, selector) => {
                let it = &mut self.ends[end];
                let call = it.next_call;
                it.next_call += 1;
                let request = Request::AtmCall(AtmCall {
                    call,
                    carried: AtmCarried::of(&Default::default()),
                    to: sap(other, selector),
                    from: [0; 20],
                });
                let client = client as usize;
                let known = Call::new(Known::Calling, None);
                it.applications[client].calls.insert(call, known);
                // If it is not begun, the client is notified of its end.
                it.say(it.applications[client].client, &request, now);
            }
            Action::Accept(end, client, selector) => {
                let it = &mut self.ends[end];
                let call = it.next_call;
                it.next_call += 1;
                // Earlier notices about it.
                it.hear(now);
                let application = &mut it.applications[client as usize];
                let of = |waits: &AtmIncoming| waits.listener == u32::from(selector);
                let Some(place) = application.waiting.iter().position(of) else {
                    return;
                };
                let incoming = application.waiting.remove(place).unwrap();
                let refused = call.is_multiple_of(8);
                let request = Request::AtmAccept(AtmAccept {
                    listener: incoming.listener,
                    call,
                    reference: incoming.reference.clone(),
                    cause: if refused { 21 } else { 0 },
                    pad: [0; 3],
                });
                if !refused {
                    let known = Call::new(Known::Accepted, Some(incoming.reference));
                    application.calls.insert(call, known);
                }
                let client = application.client;
                assert!(it.say(client, &request, now));
            }
            Action::Connect(end, client, selector) => {
                let other = 1 - end;
                self.act(Action::Listen(other, client, selector));
                self.act(Action::Call(end, client, other, selector));
                for accepts in 0..CLIENTS {
                    self.act(Action::Accept(other, accepts, selector));
                }
            }
            Action::Release(end, client, which) => {
                let it = &mut self.ends[end];
                let application = &mut it.applications[client as usize];
                let Some(&call) = application.calls.keys().nth(which) else {
                    return;
                };
                let client = application.client;
                let (cause, pad) = (16, [0; 3]);
                let request = Request::AtmRelease(AtmRelease { call, cause, pad });
                // Earlier notices are processed first.
                it.hear(now);
                assert!(it.say(client, &request, now));
                let of = |it: &&mut Application| it.client == client;
                let application = it.applications.iter_mut().find(of).unwrap();
                application.calls.remove(&call);
            }
            Action::Kill(end, client) => {
                let it = &mut self.ends[end];
                it.hear(now);
                let killed = it.applications[client as usize].client;
                it.manager.gone(killed, now, &mut it.device);
                it.applications[client as usize] = it.join(now);
            }
            Action::Lose(end) => self.ends[end].lose += 1,
            Action::Restart(end) => {
                let before = self.connected();
                self.ends[end].restart(now);
                self.settle();
                let after = self.connected();
                assert!(before.is_subset(&after), "{before:?} {after:?}");
            }
            Action::Wait(steps) => self.wait(STEP * steps.into()),
        }
        self.settle();
    }

    /// All clients leave; exchanges still in progress end by timers.
    fn end(mut self) {
        let now = self.now;
        for it in &mut self.ends {
            it.hear(now);
            for application in std::mem::take(&mut it.applications) {
                it.manager.gone(application.client, now, &mut it.device);
            }
        }
        self.wait(LONG);
        for it in &self.ends {
            let counters = it.manager.counters();
            assert_eq!((counters.calls, counters.circuits), (0, 0));
            assert!(it.device.circuits.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn calls_of_two_managers_are_what_their_applications_think(
        actions in proptest::collection::vec(actions(), 1..80),
    ) {
        let mut world = World {
            ends: [End::new(0), End::new(1)],
            now: Duration::from_secs(1),
        };
        world.settle();
        for action in actions {
            world.act(action);
        }
        world.end();
    }
}

#[test]
fn a_user_has_so_many_calls_in_all_of_its_applications() {
    let now = Duration::from_secs(1);
    let mut end = End::limited(0, 2);
    let calls = [0, 1, 0].map(|client| {
        end.next_call += 1;
        let call = end.next_call;
        let request = Request::AtmCall(AtmCall {
            call,
            carried: AtmCarried::of(&Default::default()),
            to: sap(1, 0),
            from: [0; 20],
        });
        let client = end.applications[client].client;
        (call, client, end.say(client, &request, now))
    });
    let notices: Vec<_> = std::iter::from_fn(|| end.manager.poll_call_notice()).collect();
    let [
        CallNotice {
            answer: Answer::AtmEnded(ended),
            ..
        },
    ] = &notices[..]
    else {
        panic!("{notices:?}");
    };
    assert_eq!(ended.errno, libc::ENOBUFS);
    assert_eq!(ended.call, calls[2].0);
    assert_eq!(calls.map(|(.., begun)| begun), [true, true, false]);
    // A released call makes room.
    let (cause, pad) = (16, [0; 3]);
    let (call, client, _) = calls[1];
    assert!(end.say(
        client,
        &Request::AtmRelease(AtmRelease { call, cause, pad }),
        now
    ));
    let request = Request::AtmCall(AtmCall {
        call: 99,
        carried: AtmCarried::of(&Default::default()),
        to: sap(1, 0),
        from: [0; 20],
    });
    assert!(end.say(client, &request, now));
}
