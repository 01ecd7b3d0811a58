//! AF_ATMSVC through the C interface, between two stacks in memory.

mod processes;

use libc::{AF_ATMPVC, AF_ATMSVC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, SOL_ATM};
use processes::{CLIENT, SERVER, processes};
use tidewall::readiness::Events;
use tidewall::{AtmControl, AtmSocket, CallOptions, Nsap, Side};
use tidewall_posix::{
    Errno, PollFd, Posix, PvcAddress, SO_ATMPVC, SO_ATMQOS, SO_ATMSAP, SO_SETCLP, SvcAddress,
};

fn address(system: u8, selector: u8) -> SvcAddress {
    let mut number = Nsap([0x47; 20]);
    number.0[18] = system;
    number.0[19] = selector;
    SvcAddress { number }
}

/// Two processes whose stacks control their circuits.
fn controlled() -> (Posix, Posix) {
    let (client, server) = processes();
    client.stack().attach_atm(SERVER.into()).unwrap();
    server.stack().attach_atm(CLIENT.into()).unwrap();
    let ends = [(&client, 1, Side::User), (&server, 2, Side::Network)];
    for (process, system, side) in ends {
        let number = address(system, 0).number;
        let control = AtmControl { number, side };
        process.stack().control_atm(control).unwrap();
    }
    (client, server)
}

/// `struct atm_qos` of UBR over AAL5.
fn qos() -> Vec<u8> {
    let mut qos = vec![0; 84];
    for direction in [0, 40] {
        qos[direction] = 1;
        qos[direction + 20..direction + 24].copy_from_slice(&1500_i32.to_ne_bytes());
    }
    qos[80] = 5;
    qos
}

fn socket(posix: &Posix, flags: i32) -> i32 {
    let fd = posix.socket(AF_ATMSVC, SOCK_DGRAM | flags, 5).unwrap();
    posix.setsockopt(fd, SOL_ATM, SO_ATMQOS, &qos()).unwrap();
    fd
}

fn listening(posix: &Posix, at: SvcAddress) -> i32 {
    let fd = socket(posix, SOCK_NONBLOCK);
    posix.bind_service(fd, at).unwrap();
    posix.listen(fd, 5).unwrap();
    fd
}

/// Waits until the descriptor is ready.
fn ready(posix: &Posix, fd: i32, events: Events) -> Events {
    let mut polled = [PollFd::new(fd, events)];
    assert_eq!(posix.poll(&mut polled, 10_000), Ok(1));
    Events::from_bits(u32::from(polled[0].revents as u16))
}

#[test]
fn an_address_has_the_layout_of_linux() {
    let bytes = address(1, 9).to_bytes();
    assert_eq!(bytes[..4], [20, 0, 0, 0]);
    assert_eq!(bytes[4..24], address(1, 9).number.0);
    assert_eq!(bytes[24..], [0; 20]);
    assert_eq!(SvcAddress::from_bytes(&bytes), Ok(address(1, 9)));
    let fails = |bytes: &[u8]| SvcAddress::from_bytes(bytes).unwrap_err().0;
    assert_eq!(fails(&bytes[..43]), libc::EINVAL);
    let mut other = bytes;
    other[0] = AF_ATMPVC as u8;
    assert_eq!(fails(&other), libc::EAFNOSUPPORT);
    let mut public = [0; 44];
    public[0] = AF_ATMSVC as u8;
    public[24..27].copy_from_slice(b"123");
    assert_eq!(fails(&public), libc::EOPNOTSUPP);
}

#[test]
fn a_call_between_two_processes() {
    let (client, server) = controlled();
    let service = address(2, 7);
    let listener = listening(&server, service);
    assert_eq!(server.accept4(listener, 0), Err(Errno(libc::EAGAIN)));
    let again = socket(&server, 0);
    server.bind_service(again, service).unwrap();
    assert_eq!(server.listen(again, 5), Err(Errno(libc::EADDRINUSE)));
    assert_eq!(server.listen(listener, 5), Err(Errno(libc::EADDRINUSE)));
    let caller = socket(&client, SOCK_NONBLOCK);
    client.bind_service(caller, address(1, 3)).unwrap();
    let connect = || client.connect_service(caller, service);
    assert_eq!(connect(), Err(Errno(libc::EINPROGRESS)));
    assert_eq!(connect(), Err(Errno(libc::EALREADY)));
    let mut buffer = [0; 2000];
    let early = client.recv(caller, &mut buffer, 0);
    assert_eq!(early, Err(Errno(libc::ENOTCONN)));
    assert_eq!(ready(&server, listener, Events::IN), Events::IN);
    let (called, _) = server.accept4(listener, 0).unwrap();
    assert_eq!(ready(&client, caller, Events::OUT), Events::OUT);
    assert_eq!(connect(), Ok(()));
    assert_eq!(connect(), Err(Errno(libc::EISCONN)));
    let names = |posix: &Posix, fd| [false, true].map(|peer| posix.service_address(fd, peer));
    let ends = [Ok(address(1, 3)), Ok(service)];
    assert_eq!(names(&client, caller), ends);
    let [local, peer] = names(&server, called);
    assert_eq!([peer, local], ends);
    let circuit = |posix: &Posix, fd| posix.getsockopt(fd, SOL_ATM, SO_ATMPVC).unwrap();
    let named = circuit(&client, caller);
    assert_eq!(named, circuit(&server, called));
    assert!(PvcAddress::from_bytes(&named).is_ok_and(|it| it.vci >= 32));
    let late = client.setsockopt(caller, SOL_ATM, SO_ATMQOS, &qos());
    assert_eq!(late, Err(Errno(libc::EOPNOTSUPP)));
    assert_eq!(client.send(caller, b"question", 0), Ok(8));
    assert_eq!(server.recv(called, &mut buffer, 0), Ok(8));
    assert_eq!(server.send(called, &[7; 1500], 0), Ok(1500));
    let long = server.send(called, &[7; 1501], 0);
    assert_eq!(long, Err(Errno(libc::EMSGSIZE)));
    ready(&client, caller, Events::IN);
    assert_eq!(client.recv(caller, &mut buffer, 0), Ok(1500));
    client.close(caller).unwrap();
    assert_eq!(server.recv(called, &mut buffer, 0), Ok(0));
    assert_eq!(server.send(called, b"x", 0), Err(Errno(libc::EPIPE)));
    server.close(called).unwrap();
    // After a failed call the socket may call again.
    let caller = socket(&client, 0);
    let nobody = client.connect_service(caller, address(2, 8));
    assert_eq!(nobody, Err(Errno(libc::ECONNREFUSED)));
    let nobody = client.connect_service(caller, address(3, 7));
    assert_eq!(nobody, Err(Errno(libc::EADDRNOTAVAIL)));
}

#[test]
fn an_accepted_call_has_what_was_set_of_its_listener() {
    let (client, server) = controlled();
    let service = address(2, 7);
    let listener = listening(&server, service);
    let low = 1_i32.to_ne_bytes();
    server
        .setsockopt(listener, SOL_ATM, SO_SETCLP, &low)
        .unwrap();
    // 1 ms, as a C `struct timeval`.
    let timeout = [0_i64, 1000].map(i64::to_ne_bytes).concat();
    let set = server.setsockopt(listener, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout);
    set.unwrap();
    let options = CallOptions::default();
    let caller = AtmSocket::connect_nonblocking(client.stack(), service.number, &options).unwrap();
    assert_eq!(ready(&server, listener, Events::IN), Events::IN);
    let (called, _) = server.accept4(listener, 0).unwrap();
    caller.finish_connect(None).unwrap();
    assert_eq!(server.send(called, b"x", 0), Ok(1));
    let mut low_priority = Vec::new();
    let received = caller.recv_batch(1, |it| low_priority.push(it.low_priority));
    assert_eq!(received.unwrap(), 1);
    assert_eq!(low_priority, [true]);
    let waited = server.recv(called, &mut [0; 8], 0);
    assert_eq!(waited, Err(Errno(libc::EAGAIN)));
}

#[test]
fn a_service_is_known_by_what_it_speaks() {
    let (client, server) = controlled();
    let speaks = |posix: &Posix, fd, sap: &[u8]| posix.setsockopt(fd, SOL_ATM, SO_ATMSAP, sap);
    // LLC over ISO 8802/2, and a user-defined application.
    let mut llc = [0; 40];
    llc[..6].copy_from_slice(&[2, 4, 1, 2, 3, 4]);
    llc[10] = 12;
    let plain = listening(&server, address(2, 7));
    let special = socket(&server, SOCK_NONBLOCK);
    speaks(&server, special, &llc).unwrap();
    assert_eq!(server.getsockopt(special, SOL_ATM, SO_ATMSAP).unwrap(), llc);
    server.bind_service(special, address(2, 7)).unwrap();
    server.listen(special, 5).unwrap();
    let call = socket(&client, SOCK_NONBLOCK);
    speaks(&client, call, &llc).unwrap();
    let begun = client.connect_service(call, address(2, 7));
    assert_eq!(begun, Err(Errno(libc::EINPROGRESS)));
    assert_eq!(ready(&server, special, Events::IN), Events::IN);
    assert_eq!(server.accept4(plain, 0), Err(Errno(libc::EAGAIN)));
    let wrong = |sap: &[u8]| speaks(&client, call, sap).unwrap_err().0;
    assert_eq!(wrong(&llc[1..]), libc::EINVAL);
    let with = |at: usize, value: u8| {
        let mut sap = llc;
        sap[at] = value;
        sap
    };
    assert_eq!(wrong(&with(0, 5)), libc::EINVAL);
    assert_eq!(wrong(&with(1, 9)), libc::EOPNOTSUPP);
    assert_eq!(wrong(&with(11, 1)), libc::EOPNOTSUPP);
    assert_eq!(wrong(&with(20, 12)), libc::EOPNOTSUPP);
}

#[test]
fn calls_fail_as_linux_does() {
    let (client, _server) = processes();
    let stream = client.socket(AF_ATMSVC, SOCK_STREAM, 0);
    assert_eq!(stream, Err(Errno(libc::EINVAL)));
    let fresh = client.socket(AF_ATMSVC, SOCK_DGRAM, 5).unwrap();
    let fails = |result: Result<(), Errno>| result.unwrap_err().0;
    let to = address(2, 7);
    assert_eq!(fails(client.bind_service(fresh, to)), libc::EBADFD);
    assert_eq!(fails(client.connect_service(fresh, to)), libc::EBADFD);
    assert_eq!(fails(client.listen(fresh, 1)), libc::EINVAL);
    client
        .setsockopt(fresh, SOL_ATM, SO_ATMQOS, &qos())
        .unwrap();
    // A stack that does not control its circuits.
    assert_eq!(fails(client.bind_service(fresh, to)), libc::EUNATCH);
    client.stack().attach_atm(SERVER.into()).unwrap();
    assert_eq!(fails(client.connect_service(fresh, to)), libc::EUNATCH);
    let circuit = PvcAddress {
        interface: 0,
        vpi: 0,
        vci: 100,
    };
    assert_eq!(
        fails(client.bind_circuit(fresh, circuit)),
        libc::EAFNOSUPPORT
    );
    assert_eq!(
        client.service_address(fresh, false),
        Ok(SvcAddress::default())
    );
}
