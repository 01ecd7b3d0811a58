//! AF_ATMSVC and AF_ATMPVC through the C interface, in applications of a manager.

use libc::{AF_ATMPVC, AF_ATMSVC, SOCK_DGRAM, SOCK_NONBLOCK, SOL_ATM};
use tidewall::readiness::Events;
use tidewall_posix::{
    Errno, PollFd, Posix, PosixConfig, PvcAddress, SO_ATMPVC, SO_ATMQOS, SvcAddress,
};

use crate::ends::*;
use crate::support::*;

/// Opens a process of a user.
fn process(user: u32) -> Posix {
    Posix::new(&stack_of(user), PosixConfig::default())
}

fn address(of: [u8; 20], selector: u8) -> SvcAddress {
    SvcAddress {
        number: number(of, selector),
    }
}

/// `struct atm_qos` of UBR over AAL5, with payloads of 1,400 bytes.
fn qos() -> Vec<u8> {
    let mut qos = vec![0; 84];
    for direction in [0, 40] {
        qos[direction] = 1;
        qos[direction + 20..direction + 24].copy_from_slice(&1400_i32.to_ne_bytes());
    }
    qos[80] = 5;
    qos
}

fn socket(posix: &Posix, family: i32, flags: i32) -> i32 {
    let fd = posix.socket(family, SOCK_DGRAM | flags, 5).unwrap();
    posix.setsockopt(fd, SOL_ATM, SO_ATMQOS, &qos()).unwrap();
    fd
}

fn ready(posix: &Posix, fd: i32, events: Events) {
    let mut polled = [PollFd::new(fd, events)];
    assert_eq!(posix.poll(&mut polled, 10_000), Ok(1));
}

fn fails<V: std::fmt::Debug>(result: Result<V, Errno>) -> i32 {
    result.unwrap_err().0
}

fn exchange(posix: &Posix, fd: i32) {
    let mut buffer = [0; 2000];
    assert_eq!(posix.send(fd, b"question", 0), Ok(8));
    ready(posix, fd, Events::IN);
    assert_eq!(posix.recv(fd, &mut buffer, 0), Ok(8));
    assert_eq!(&buffer[..8], b"question");
}

#[test]
#[ignore = "started by the test of this name"]
fn sockets_of_c_call_through_one_manager() {
    let _daemon = End::Here.daemon();
    let (client, server) = (process(4713), process(4712));
    let service = address(HERE, 9);
    let listener = socket(&server, AF_ATMSVC, SOCK_NONBLOCK);
    server.bind_service(listener, service).unwrap();
    server.listen(listener, 5).unwrap();
    assert_eq!(fails(server.accept4(listener, 0)), libc::EAGAIN);
    // The number is taken, whichever process asks.
    for process in [&server, &client] {
        let again = socket(process, AF_ATMSVC, 0);
        process.bind_service(again, service).unwrap();
        assert_eq!(fails(process.listen(again, 5)), libc::EADDRINUSE);
        process.bind_service(again, address(THERE, 9)).unwrap();
        assert_eq!(fails(process.listen(again, 5)), libc::EADDRNOTAVAIL);
    }
    let caller = socket(&client, AF_ATMSVC, SOCK_NONBLOCK);
    client.bind_service(caller, address(HERE, 3)).unwrap();
    let connect = || client.connect_service(caller, service);
    assert_eq!(fails(connect()), libc::EINPROGRESS);
    assert_eq!(fails(connect()), libc::EALREADY);
    ready(&server, listener, Events::IN);
    let (called, _) = server.accept4(listener, 0).unwrap();
    ready(&client, caller, Events::OUT);
    assert_eq!(connect(), Ok(()));
    assert_eq!(fails(connect()), libc::EISCONN);
    let names = |posix: &Posix, fd| [false, true].map(|peer| posix.service_address(fd, peer));
    let ends = [Ok(address(HERE, 3)), Ok(service)];
    assert_eq!(names(&client, caller), ends);
    let [local, peer] = names(&server, called);
    assert_eq!([peer, local], ends);
    let mut buffer = [0; 2000];
    assert_eq!(client.send(caller, b"question", 0), Ok(8));
    assert_eq!(server.recv(called, &mut buffer, 0), Ok(8));
    assert_eq!(server.send(called, &[7; 1400], 0), Ok(1400));
    assert_eq!(fails(server.send(called, &[7; 1401], 0)), libc::EMSGSIZE);
    ready(&client, caller, Events::IN);
    assert_eq!(client.recv(caller, &mut buffer, 0), Ok(1400));
    client.close(caller).unwrap();
    assert_eq!(server.recv(called, &mut buffer, 0), Ok(0));
    assert_eq!(fails(server.send(called, b"x", 0)), libc::EPIPE);
    server.close(called).unwrap();
    server.close(listener).unwrap();
    let caller = socket(&client, AF_ATMSVC, 0);
    assert_eq!(
        fails(client.connect_service(caller, service)),
        libc::ECONNREFUSED
    );
    wait_until("nothing is left", || End::Here.is_idle());
}

#[test]
#[ignore = "started by the test of this name"]
fn sockets_of_c_call_over_a_link() {
    handle_signals();
    let daemons = [End::Here.daemon(), End::There.daemon()];
    let server = End::There.serve(4711);
    let client = process(TRUSTED);
    let service = address(THERE, SELECTOR);
    let caller = socket(&client, AF_ATMSVC, 0);
    let connect = || client.connect_service(caller, service);
    connect().unwrap();
    exchange(&client, caller);
    let circuit = client.getsockopt(caller, SOL_ATM, SO_ATMPVC).unwrap();
    assert!(PvcAddress::from_bytes(&circuit).is_ok_and(|it| it.vci >= 32));
    assert_eq!(client.service_address(caller, true), Ok(service));
    client.close(caller).unwrap();
    // After a failed call, a socket may call again (Linux's svc_connect).
    let caller = socket(&client, AF_ATMSVC, 0);
    let connect = |to| client.connect_service(caller, to);
    assert_eq!(fails(connect(address(THERE, 1))), libc::ECONNREFUSED);
    let mut nobody = address(THERE, 1);
    nobody.number.0[18] = 3;
    assert_eq!(fails(connect(nobody)), libc::EADDRNOTAVAIL);
    server.stop();
    let waits = || End::There.counters().calls == 1;
    assert_eq!(fails(interrupted(|| connect(service), waits)), libc::EINTR);
    wait_until("it is released", || End::Here.is_idle());
    // T310: 10 s.
    assert_eq!(fails(connect(service)), libc::ETIMEDOUT);
    server.proceed();
    connect(service).unwrap();
    exchange(&client, caller);
    let permanent = PvcAddress {
        interface: 0,
        vpi: 0,
        vci: 100,
    };
    let _other = End::There.serve_on(4713, "0.100");
    let fixed = socket(&client, AF_ATMPVC, 0);
    let not_granted = PvcAddress {
        vci: 200,
        ..permanent
    };
    assert_eq!(fails(client.bind_circuit(fixed, not_granted)), libc::EACCES);
    client.bind_circuit(fixed, permanent).unwrap();
    exchange(&client, fixed);
    let second = socket(&client, AF_ATMPVC, 0);
    assert_eq!(
        fails(client.bind_circuit(second, permanent)),
        libc::EADDRINUSE
    );
    drop(daemons);
    exchange(&client, caller);
    exchange(&client, fixed);
    let late = socket(&client, AF_ATMSVC, 0);
    assert_eq!(fails(client.connect_service(late, service)), libc::EUNATCH);
}

#[test]
#[ignore = "started by the test of this name"]
fn sockets_of_c_know_where_there_is_no_way() {
    let daemon = End::Here.daemon_to("10.99.0.2", &[]);
    let client = process(TRUSTED);
    let caller = socket(&client, AF_ATMSVC, 0);
    let called = client.connect_service(caller, address(THERE, SELECTOR));
    assert_eq!(fails(called), libc::ENETUNREACH);
    drop(client);
    wait_until("it has left", || End::Here.counters().applications == 0);
    drop(daemon);
    // A manager without circuits.
    let _daemon = start();
    let client = process(TRUSTED);
    let caller = socket(&client, AF_ATMSVC, 0);
    let service = address(HERE, SELECTOR);
    assert_eq!(fails(client.bind_service(caller, service)), libc::EUNATCH);
    assert_eq!(
        fails(client.connect_service(caller, service)),
        libc::EUNATCH
    );
}
