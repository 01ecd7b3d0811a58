//! Calls: two stacks that control their circuits, linked directly.

mod lost;
mod rates;

use std::io;
use std::thread;
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{Events, PollFd};
use tidewall::{
    AtmControl, AtmListener, AtmOptions, AtmSocket, CallOptions, Circuit, Nsap, Opaque, Sap, Side,
    Stack,
};
use tidewall_atm::signalling::{Config, Event, Signalling};
use tidewall_device::memory::Side as End;
use tidewall_wire::atm::q2931::{Aal, Bearer, Cause, Elements, QosClasses, TrafficDescriptor};

use super::support::*;
use super::tcp::stacks;

fn number(system: u8, selector: u8) -> Nsap {
    let mut number = [0; 20];
    number[0] = 0x47;
    number[18] = system;
    number[19] = selector;
    Nsap(number)
}

const NEAR: u8 = 1;
const FAR: u8 = 2;

fn control(stack: &Stack, system: u8, side: Side) {
    let number = number(system, 0);
    stack.control_atm(AtmControl { number, side }).unwrap();
}

/// The near end is the network's side, or the user's.
fn controlled(near: Side) -> Bed {
    let bed = Bed::new();
    bed.near.attach_atm(FAR4.into()).unwrap();
    bed.far.attach_atm(NEAR4.into()).unwrap();
    let far = match near {
        Side::User => Side::Network,
        Side::Network => Side::User,
    };
    control(&bed.near, NEAR, near);
    control(&bed.far, FAR, far);
    bed
}

/// Runs until neither stack has work at this time.
fn run(bed: &Bed) {
    let mut quiet = 0;
    while quiet < 3 {
        quiet += 1;
        if bed.near.attend() | bed.far.attend() {
            quiet = 0;
        }
    }
}

/// Moves time on to the next timer of either stack, and so on to the end of `time`.
fn pass(bed: &Bed, time: Duration) {
    let end = bed.near.age() + time;
    loop {
        run(bed);
        let next = [&bed.near, &bed.far].map(|it| it.next_timeout());
        let now = bed.near.age();
        let next = next.into_iter().flatten().min().unwrap_or(end);
        if now >= end {
            return;
        }
        let by = next.min(end).saturating_sub(now);
        bed.advance(by.max(Duration::from_millis(1)));
    }
}

fn listen(stack: &Stack, sap: impl Into<Sap>, backlog: usize) -> AtmListener {
    let listener = AtmListener::bind(stack, sap, backlog, AtmOptions::default()).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn call(stack: &Stack, to: impl Into<Sap>) -> AtmSocket {
    let options = CallOptions::default();
    let socket = AtmSocket::connect_nonblocking(stack, to, &options).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn accept(listener: &AtmListener) -> AtmSocket {
    let (socket, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Both ends of a call.
fn connected(bed: &Bed, listener: &AtmListener) -> [AtmSocket; 2] {
    let caller = call(&bed.near, listener.sap());
    run(bed);
    let called = accept(listener);
    run(bed);
    caller.finish_connect(None).unwrap();
    [caller, called]
}

/// Nothing is left of any call.
fn assert_idle(bed: &Bed) {
    for stack in [&bed.near, &bed.far] {
        let snapshot = stack.snapshot();
        assert_eq!(snapshot.calls, [], "{snapshot:?}");
        let circuits = snapshot.sockets.iter().filter(|it| it.protocol == "aal5");
        let circuits: Vec<_> = circuits.map(|it| it.local.as_str()).collect();
        assert_eq!(circuits, ["0.5"]);
    }
}

fn failed<V>(result: io::Result<V>) -> i32 {
    errno(result.map(drop).unwrap_err())
}

fn received(socket: &AtmSocket) -> Vec<u8> {
    let mut buffer = [0; 100];
    let length = socket.recv(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

#[test]
fn a_call_is_set_up_carries_payloads_and_is_released() {
    for side in [Side::Network, Side::User] {
        let bed = controlled(side);
        let listener = listen(&bed.far, number(FAR, 7), 8);
        let caller = call(&bed.near, number(FAR, 7));
        assert!(caller.is_connecting());
        assert_eq!(failed(caller.send(b"early")), libc::ENOTCONN);
        assert_eq!(failed(caller.recv(&mut [0])), libc::ENOTCONN);
        assert_eq!(failed(caller.ping(Duration::ZERO)), libc::ENOTCONN);
        run(&bed);
        // Only an accepted call is answered.
        assert!(caller.is_connecting());
        let (called, who) = listener.accept().unwrap();
        called.set_nonblocking(true).unwrap();
        assert_eq!(who, Some(number(NEAR, 0)));
        assert_eq!(failed(called.send(b"early")), libc::EAGAIN);
        run(&bed);
        caller.finish_connect(None).unwrap();
        assert_eq!(caller.circuit(), called.circuit());
        let circuit = caller.circuit().unwrap();
        assert!(circuit.vpi == 0 && circuit.vci >= Circuit::FIRST_USER_VCI);
        let ends = |socket: &AtmSocket| (socket.local_number(), socket.peer_number());
        let (near, far) = (Some(number(NEAR, 0)), Some(number(FAR, 7)));
        assert_eq!((ends(&caller), ends(&called)), ((near, far), (far, near)));
        for (from, to) in [(&caller, &called), (&called, &caller)] {
            from.send(b"there").unwrap();
            assert_eq!(received(to), b"there");
        }
        assert!(caller.ping(Duration::ZERO).is_err());
        // Payloads from before the release are received first.
        let long = [7; 3000];
        caller.send(&long).unwrap();
        caller.send(b"last").unwrap();
        drop(caller);
        run(&bed);
        assert!(called.is_released());
        let mut buffer = [0; 9180];
        assert_eq!(called.recv(&mut buffer).unwrap(), long.len());
        assert!(buffer.starts_with(&long));
        assert_eq!(received(&called), b"last");
        assert_eq!(called.recv(&mut buffer).unwrap(), 0);
        assert_eq!(failed(called.send(b"late")), libc::EPIPE);
        assert_eq!(failed(called.ping(Duration::ZERO)), libc::EPIPE);
        // The circuit is free although the application has not closed yet.
        assert_idle(&bed);
        assert_eq!(bed.outstanding(), 0);
    }
}

#[test]
fn calls_fail_by_their_cause() {
    let bed = Bed::new();
    let to = number(FAR, 7);
    let fails = |to: Nsap| failed(AtmSocket::connect(&bed.near, to));
    assert_eq!(fails(to), libc::ENODEV);
    bed.near.attach_atm(FAR4.into()).unwrap();
    bed.far.attach_atm(NEAR4.into()).unwrap();
    assert_eq!(fails(to), libc::EUNATCH);
    let bind = |stack, to: Sap| failed(AtmListener::bind(stack, to, 1, AtmOptions::default()));
    assert_eq!(bind(&bed.far, to.into()), libc::EUNATCH);
    control(&bed.near, NEAR, Side::User);
    control(&bed.far, FAR, Side::Network);
    let again = AtmControl {
        number: number(NEAR, 0),
        side: Side::User,
    };
    assert_eq!(failed(bed.near.control_atm(again)), libc::EADDRINUSE);
    let own = failed(AtmSocket::bind(&bed.near, Circuit::SIGNALLING));
    assert_eq!(own, libc::EADDRINUSE);
    let outcome = |to: Sap| {
        let caller = call(&bed.near, to);
        run(&bed);
        failed(caller.finish_connect(Some(Duration::ZERO)))
    };
    assert_eq!(outcome(number(9, 7).into()), libc::EADDRNOTAVAIL);
    assert_eq!(outcome(to.into()), libc::ECONNREFUSED);
    assert_eq!(bind(&bed.near, to.into()), libc::EADDRNOTAVAIL);
    let listener = listen(&bed.far, to, 1);
    assert_eq!(bind(&bed.far, to.into()), libc::EADDRINUSE);
    // Another service at the number has its own listener, and its calls.
    let service = Sap {
        high_layer: Opaque::new(&[0x81, 1, 2, 3]),
        ..to.into()
    };
    let special = listen(&bed.far, service, 1);
    let caller = call(&bed.near, service);
    run(&bed);
    assert_eq!(failed(listener.accept()), libc::EAGAIN);
    let _taken = accept(&special);
    run(&bed);
    caller.finish_connect(None).unwrap();
    // One waits, and the next finds the queue full.
    let waiting = call(&bed.near, to);
    run(&bed);
    assert_eq!(outcome(to.into()), libc::ECONNREFUSED);
    drop(listener);
    run(&bed);
    assert_eq!(failed(waiting.finish_connect(None)), libc::ECONNREFUSED);
    let out_of_range = CallOptions {
        circuit: AtmOptions {
            send_max: 65_536,
            ..AtmOptions::default()
        },
        ..CallOptions::default()
    };
    let refused = AtmSocket::connect_with(&bed.near, to, &out_of_range);
    assert_eq!(failed(refused), libc::EINVAL);
}

#[test]
fn a_call_may_be_closed_in_every_state() {
    for side in [Side::Network, Side::User] {
        let bed = controlled(side);
        let listener = listen(&bed.far, number(FAR, 7), 8);
        // Before either end knows of it.
        drop(call(&bed.near, number(FAR, 7)));
        run(&bed);
        assert_idle(&bed);
        // While it waits to be accepted; then there is no call to accept.
        let caller = call(&bed.near, number(FAR, 7));
        run(&bed);
        drop(caller);
        run(&bed);
        assert_eq!(failed(listener.accept()), libc::EAGAIN);
        assert_idle(&bed);
        // Accepted, and closed before the caller has heard of it; by either end.
        let caller = call(&bed.near, number(FAR, 7));
        run(&bed);
        drop(accept(&listener));
        run(&bed);
        caller.finish_connect(None).unwrap_or(());
        assert!(caller.is_released());
        assert_eq!(caller.recv(&mut [0]).unwrap(), 0);
        assert_idle(&bed);
        let caller = call(&bed.near, number(FAR, 7));
        run(&bed);
        let called = accept(&listener);
        drop(caller);
        run(&bed);
        assert_eq!(called.recv(&mut [0]).unwrap(), 0);
        assert_idle(&bed);
        // Both at once.
        drop(connected(&bed, &listener));
        run(&bed);
        assert_idle(&bed);
        // The listener goes, calls stay.
        let [caller, called] = connected(&bed, &listener);
        drop(listener);
        run(&bed);
        caller.send(b"still").unwrap();
        assert_eq!(received(&called), b"still");
    }
}

#[test]
fn a_circuit_is_used_again_when_both_ends_have_released_it() {
    let bed = controlled(Side::Network);
    let listener = listen(&bed.far, number(FAR, 7), 8);
    let [caller, called] = connected(&bed, &listener);
    let circuit = caller.circuit().unwrap();
    assert_eq!(failed(AtmSocket::bind(&bed.far, circuit)), libc::EADDRINUSE);
    // The far end does not hear of it.
    bed.link.set_filter(End::A, Some(Box::new(|_, _| false)));
    drop(caller);
    run(&bed);
    assert_eq!(
        failed(AtmSocket::bind(&bed.near, circuit)),
        libc::EADDRINUSE
    );
    let calls = bed.near.snapshot().calls;
    let [releasing] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    let shown = (releasing.held.as_str(), releasing.state.as_str());
    assert_eq!(shown, ("releasing", "N12"));
    bed.link.set_filter(End::A, None);
    pass(&bed, Duration::from_secs(2));
    assert_eq!(called.recv(&mut [0]).unwrap(), 0);
    assert_idle(&bed);
    let permanent = AtmSocket::bind(&bed.near, circuit).unwrap();
    // The network does not allot what is permanent; and what was released comes last.
    let [caller, _called] = connected(&bed, &listener);
    let after = |count| Circuit {
        vci: circuit.vci + count,
        ..circuit
    };
    assert_eq!(caller.circuit(), Some(after(1)));
    drop(permanent);
    // A circuit in use at the called end is refused there, and another named; not for ever.
    let taken = (2..9).chain(10..18);
    let taken = taken.map(|count| AtmSocket::bind(&bed.far, after(count)).unwrap());
    let _taken: Vec<AtmSocket> = taken.collect();
    let [caller, _called] = connected(&bed, &listener);
    assert_eq!(caller.circuit(), Some(after(9)));
    let caller = call(&bed.near, number(FAR, 7));
    run(&bed);
    assert_eq!(failed(caller.finish_connect(None)), libc::ECONNREFUSED);
}

#[test]
fn who_is_not_answered_gives_up_in_time() {
    let bed = Bed::new();
    bed.near.attach_atm(FAR4.into()).unwrap();
    bed.far.attach_atm(NEAR4.into()).unwrap();
    control(&bed.near, NEAR, Side::User);
    // The other end does not signal.
    let caller = call(&bed.near, number(FAR, 7));
    pass(&bed, Duration::from_secs(3));
    assert!(caller.is_connecting());
    pass(&bed, Duration::from_secs(3));
    assert_eq!(failed(caller.finish_connect(None)), libc::EHOSTDOWN);
    assert_eq!(bed.near.snapshot().calls, []);
    control(&bed.far, FAR, Side::Network);
    let listener = listen(&bed.far, number(FAR, 7), 8);
    // No listener accepts: T310.
    let caller = call(&bed.near, number(FAR, 7));
    pass(&bed, Duration::from_secs(9));
    assert!(caller.is_connecting());
    pass(&bed, Duration::from_secs(2));
    assert_eq!(failed(caller.finish_connect(None)), libc::ETIMEDOUT);
    assert_eq!(failed(listener.accept()), libc::EAGAIN);
    assert_idle(&bed);
    // The link is lost: T309 after SSCOP's no response.
    let [caller, called] = connected(&bed, &listener);
    for end in [End::A, End::B] {
        bed.link.set_filter(end, Some(Box::new(|_, _| false)));
    }
    pass(&bed, Duration::from_secs(60));
    for socket in [&caller, &called] {
        assert_eq!(failed(socket.recv(&mut [0])), libc::ECONNRESET);
        assert_eq!(socket.recv(&mut [0]).unwrap(), 0);
    }
    assert_idle(&bed);
    for end in [End::A, End::B] {
        bed.link.set_filter(end, None);
    }
    let [caller, called] = connected(&bed, &listener);
    called.send(b"again").unwrap();
    assert_eq!(received(&caller), b"again");
}

/// An end that signals without being a stack that does.
struct Peer {
    signalling: Signalling,
    link: AtmSocket,
}

impl Peer {
    /// One that has just begun, whose first call has value 1.
    fn begin(&mut self, life: u8) {
        let mut config = Config::new(Side::User);
        config.link.first_sequence = life;
        self.signalling = Signalling::new(config);
    }

    /// Runs until neither end has a message; returns the events.
    fn run(&mut self, bed: &Bed) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..20 {
            let now = bed.near.age();
            while let Some(pdu) = self.signalling.poll_transmit(now) {
                self.link.send(&pdu).unwrap();
            }
            run(bed);
            let signalling = &mut self.signalling;
            let _ = self.link.recv_batch(64, |received| {
                signalling.pdu_received(now, received.payload);
            });
            while let Some(event) = self.signalling.poll_event() {
                if let Event::Connected(id, _) = &event {
                    self.signalling.acknowledge(now, *id);
                }
                events.push(event);
            }
        }
        events
    }
}

/// The other end may still answer a call of a process that has ended.
#[test]
fn each_life_of_a_stack_calls_by_other_references() {
    let [first, second] = [1, 2].map(|life| {
        let bed = Bed::new();
        bed.near.attach_atm(FAR4.into()).unwrap();
        bed.far.attach_atm(NEAR4.into()).unwrap();
        control(&bed.far, FAR, Side::User);
        let link = AtmSocket::bind(&bed.near, Circuit::SIGNALLING).unwrap();
        link.set_nonblocking(true).unwrap();
        let mut config = Config::new(Side::Network);
        config.link.first_sequence = life;
        let mut peer = Peer {
            signalling: Signalling::new(config),
            link,
        };
        let _caller = call(&bed.far, number(NEAR, 0));
        let events = peer.run(&bed);
        let setup = events.into_iter().find_map(|event| match event {
            Event::Setup(id, _) => Some(id.value),
            _ => None,
        });
        setup.unwrap()
    });
    assert_ne!(first, second);
}

#[test]
fn an_old_socket_does_not_end_a_call_with_its_reference() {
    let bed = Bed::new();
    bed.near.attach_atm(FAR4.into()).unwrap();
    bed.far.attach_atm(NEAR4.into()).unwrap();
    control(&bed.far, FAR, Side::Network);
    let listener = listen(&bed.far, number(FAR, 7), 8);
    let link = AtmSocket::bind(&bed.near, Circuit::SIGNALLING).unwrap();
    link.set_nonblocking(true).unwrap();
    let mut peer = Peer {
        signalling: Signalling::new(Config::new(Side::User)),
        link,
    };
    let setup = Elements {
        aal: Some(Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(9180),
        }),
        traffic: Some(TrafficDescriptor::best_effort()),
        qos: Some(QosClasses::default()),
        bearer: Some(Bearer::data()),
        called: Some(number(FAR, 7).into()),
        ..Elements::default()
    };
    let called = [1, 2].map(|life| {
        // A process that is started again.
        peer.begin(life);
        let now = bed.near.age();
        let id = peer.signalling.setup(now, setup).unwrap();
        assert_eq!(id.value, 1);
        peer.run(&bed);
        let called = accept(&listener);
        let events = peer.run(&bed);
        assert!(
            matches!(events[..], [.., Event::Connected(of, _)] if of == id),
            "{events:?}"
        );
        if life == 1 {
            let normal = Cause::new(Cause::NORMAL);
            peer.signalling.release(bed.near.age(), id, normal).unwrap();
            peer.run(&bed);
            assert!(called.is_released());
        }
        called
    });
    let [old, new] = called;
    drop(old);
    let events = peer.run(&bed);
    assert!(events.is_empty(), "{events:?}");
    assert!(!new.is_released());
    new.send(b"goes on").unwrap();
    drop(new);
    let events = peer.run(&bed);
    assert!(matches!(events[..], [Event::Releasing(..)]), "{events:?}");
}

#[test]
fn the_longest_payloads_are_agreed_on() {
    let bed = controlled(Side::User);
    let takes = AtmOptions {
        send_max: 500,
        receive_max: 2000,
        ..AtmOptions::default()
    };
    let listener = AtmListener::bind(&bed.far, number(FAR, 7), 8, takes).unwrap();
    listener.set_nonblocking(true).unwrap();
    let [caller, called] = connected(&bed, &listener);
    assert_eq!(called.options(), takes);
    assert_eq!(caller.options().send_max, 2000);
    assert_eq!(failed(caller.send(&[0; 2001])), libc::EMSGSIZE);
    assert_eq!(failed(called.send(&[0; 501])), libc::EMSGSIZE);
    assert_eq!(caller.send(&[0; 2000]).unwrap(), 2000);
}

#[test]
fn calls_wait_in_threads() {
    let (near, far) = stacks();
    near.attach_atm(FAR4.into()).unwrap();
    far.attach_atm(NEAR4.into()).unwrap();
    control(&near, NEAR, Side::User);
    control(&far, FAR, Side::Network);
    let listener = AtmListener::bind(&far, number(FAR, 7), 8, AtmOptions::default()).unwrap();
    let echoing = thread::spawn(move || {
        for _ in 0..100 {
            let (socket, _) = listener.accept().unwrap();
            let mut buffer = [0; 100];
            let length = socket.recv(&mut buffer).unwrap();
            socket.send(&buffer[..length]).unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), 0);
        }
    });
    for n in 0..100u8 {
        let socket = AtmSocket::connect(&near, number(FAR, 7)).unwrap();
        socket.send(&[n; 50]).unwrap();
        assert_eq!(received(&socket), [n; 50]);
    }
    echoing.join().unwrap();
    let options = CallOptions {
        timeout: Some(Duration::from_secs(10)),
        ..CallOptions::default()
    };
    let refused = AtmSocket::connect_with(&near, number(FAR, 7), &options);
    assert_eq!(failed(refused), libc::ECONNREFUSED);
}

#[test]
fn calls_are_descriptors_as_other_sockets_are() {
    let bed = controlled(Side::Network);
    let near = Descriptors::new(&bed.near, 16);
    let far = Descriptors::new(&bed.far, 16);
    let listener = listen(&bed.far, number(FAR, 7), 8);
    let listening = far.open(listener, Flags::NONBLOCK).unwrap();
    let ready = |descriptors: &Descriptors, fd| {
        run(&bed);
        let mut set = [PollFd::new(fd, Events::IN | Events::OUT)];
        descriptors.poll(&mut set, Some(Duration::ZERO)).unwrap();
        Events::from_bits(u32::from(set[0].revents as u16))
    };
    assert_eq!(ready(&far, listening), Events::NONE);
    let caller = call(&bed.near, number(FAR, 7));
    let calling = near.open(caller, Flags::NONBLOCK).unwrap();
    assert_eq!(ready(&near, calling), Events::NONE);
    assert_eq!(ready(&far, listening), Events::IN);
    let (called, _) = far.accept4(listening, Flags::NONBLOCK).unwrap();
    assert_eq!(ready(&near, calling), Events::OUT);
    assert_eq!(ready(&far, called), Events::OUT);
    assert_eq!(ready(&far, listening), Events::NONE);
    near.close(calling).unwrap();
    let ended = Events::IN | Events::OUT | Events::HUP;
    assert_eq!(ready(&far, called), ended);
    assert_eq!(far.read(called, &mut [0; 8]).unwrap(), 0);
    let refused = call(&bed.near, number(FAR, 8));
    let refused = near.open(refused, Flags::NONBLOCK).unwrap();
    assert_eq!(ready(&near, refused), ended | Events::ERR);
}
