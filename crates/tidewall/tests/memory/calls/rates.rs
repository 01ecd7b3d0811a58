//! Constant rates.

use std::thread;
use std::time::Duration;

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{Events, PollFd};
use tidewall::{AtmListener, AtmOptions, AtmSocket, CallOptions, Circuit, Rates, Side};

use super::{
    FAR, NEAR, accept, assert_idle, control, controlled, failed, listen, number, pass, run,
};
use crate::support::*;
use crate::tcp::stacks;

#[test]
fn a_constant_rate_is_kept_by_who_sends() {
    let bed = controlled(Side::User);
    let rates = |send, receive| AtmOptions {
        rates: Some(Rates { send, receive }),
        ..AtmOptions::default()
    };
    let most = rates(1000, 2000);
    let listener = AtmListener::bind(&bed.far, number(FAR, 7), 8, most).unwrap();
    listener.set_nonblocking(true).unwrap();
    let call = |circuit| {
        let options = CallOptions {
            circuit,
            ..CallOptions::default()
        };
        let socket = AtmSocket::connect_nonblocking(&bed.near, number(FAR, 7), &options);
        run(&bed);
        socket
    };
    assert_eq!(failed(call(rates(0, 1))), libc::EINVAL);
    assert_eq!(failed(call(rates(1, 1 << 24))), libc::EINVAL);
    let refused = call(rates(2001, 1000)).unwrap();
    assert_eq!(failed(refused.finish_connect(None)), libc::EHOSTUNREACH);
    // A caller does not choose the rate of a listener that has none.
    let free = listen(&bed.far, number(FAR, 8), 8);
    let options = CallOptions {
        circuit: rates(1, 1),
        ..CallOptions::default()
    };
    let refused = AtmSocket::connect_nonblocking(&bed.near, free.sap(), &options).unwrap();
    run(&bed);
    let outcome = refused.finish_connect(Some(Duration::ZERO));
    assert_eq!(failed(outcome), libc::EHOSTUNREACH);
    let caller = call(rates(2000, 500)).unwrap();
    caller.set_nonblocking(true).unwrap();
    let called = accept(&listener);
    run(&bed);
    caller.finish_connect(None).unwrap();
    assert_eq!(called.options().rates, rates(500, 2000).rates);
    // Ten cells: 5 ms from the caller, 20 ms to it.
    let payload = [7; 10 * 48 - 8];
    let pass_until_sent = |socket: &AtmSocket| {
        let began = bed.near.age();
        while let Err(error) = socket.send(&payload) {
            assert_eq!(errno(error), libc::EAGAIN);
            bed.advance(Duration::from_millis(1));
        }
        bed.near.age() - began
    };
    for (socket, milliseconds) in [(&caller, 5), (&called, 20)] {
        assert_eq!(pass_until_sent(socket), Duration::ZERO);
        for _ in 0..3 {
            let waited = pass_until_sent(socket);
            assert_eq!(waited, Duration::from_millis(milliseconds));
        }
    }
    // Best effort is not bounded, and a listener with rates takes it.
    let caller = call(AtmOptions::default()).unwrap();
    let called = accept(&listener);
    run(&bed);
    caller.finish_connect(None).unwrap();
    assert_eq!(called.options().rates, None);
    for _ in 0..20 {
        called.send(&payload).unwrap();
    }
}

#[test]
fn a_send_that_waits_for_its_rate_ends_with_the_call() {
    let (near, far) = stacks();
    near.attach_atm(FAR4.into()).unwrap();
    far.attach_atm(NEAR4.into()).unwrap();
    control(&near, NEAR, Side::User);
    control(&far, FAR, Side::Network);
    let slow = AtmOptions {
        rates: Some(Rates {
            send: 1,
            receive: 1,
        }),
        ..AtmOptions::default()
    };
    let listener = AtmListener::bind(&far, number(FAR, 7), 8, slow).unwrap();
    let taking = thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let mut buffer = [0; 9180];
        assert_eq!(socket.recv(&mut buffer).unwrap(), buffer.len());
    });
    let options = CallOptions {
        circuit: slow,
        ..CallOptions::default()
    };
    let caller = AtmSocket::connect_with(&near, number(FAR, 7), &options).unwrap();
    caller.send(&[7; 9180]).unwrap();
    // For 192 s, were it not for the release.
    assert_eq!(failed(caller.send(b"too late")), libc::EPIPE);
    taking.join().unwrap();
}

#[test]
fn a_circuit_is_writable_when_its_rate_allows_it() {
    let bed = controlled(Side::Network);
    let rated = AtmOptions {
        rates: Some(Rates {
            send: 1000,
            receive: 1000,
        }),
        ..AtmOptions::default()
    };
    let circuit = Circuit { vpi: 0, vci: 100 };
    let bound = AtmSocket::bind_with(&bed.near, circuit, rated).unwrap();
    let near = Descriptors::new(&bed.near, 16);
    let fd = near.open(bound, Flags::NONBLOCK).unwrap();
    let ready = || {
        run(&bed);
        let mut set = [PollFd::new(fd, Events::OUT)];
        near.poll(&mut set, Some(Duration::ZERO)).unwrap();
        Events::from_bits(u32::from(set[0].revents as u16))
    };
    // Ten cells, 10 ms.
    let send = || near.send(fd, &[7; 10 * 48 - 8], 0);
    for _ in 0..3 {
        assert_eq!(ready(), Events::OUT);
        send().unwrap();
        assert_eq!(ready(), Events::NONE);
        assert_eq!(failed(send()), libc::EAGAIN);
        pass(&bed, Duration::from_millis(9));
        assert_eq!(ready(), Events::NONE);
        pass(&bed, Duration::from_millis(2));
    }
    near.close(fd).unwrap();
    assert_idle(&bed);
}
