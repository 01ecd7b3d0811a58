//! AF_ATMPVC through the C interface, between two stacks in memory.

mod processes;

use std::io::IoSlice;
use std::net::SocketAddr;

use libc::{AF_ATMPVC, AF_INET, MSG_DONTWAIT, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, SOL_ATM};
use processes::{CLIENT, SERVER, processes};
use tidewall::readiness::Events;
use tidewall_posix::{Errno, PollFd, Posix, PvcAddress, SO_ATMPVC, SO_ATMQOS, SO_SETCLP};

const ADDRESS: PvcAddress = PvcAddress {
    interface: 0,
    vpi: 0,
    vci: 100,
};

/// `struct atm_qos` of UBR over AAL5, with `longest` as the longest payload.
fn qos(longest: i32) -> Vec<u8> {
    let mut qos = vec![0; 84];
    for direction in [0, 40] {
        qos[direction] = 1;
        qos[direction + 20..direction + 24].copy_from_slice(&longest.to_ne_bytes());
    }
    qos[80] = 5;
    qos
}

fn with(at: usize, value: u8) -> Vec<u8> {
    let mut qos = qos(1500);
    qos[at] = value;
    qos
}

/// A socket whose SO_ATMQOS is set.
fn socket(posix: &Posix, kind: i32) -> i32 {
    let fd = posix.socket(AF_ATMPVC, kind, 5).unwrap();
    posix
        .setsockopt(fd, SOL_ATM, SO_ATMQOS, &qos(1500))
        .unwrap();
    fd
}

#[test]
fn an_address_has_the_layout_of_linux() {
    let bytes = ADDRESS.to_bytes();
    assert_eq!(bytes, [8, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0]);
    assert_eq!(PvcAddress::from_bytes(&bytes), Ok(ADDRESS));
    let short = PvcAddress::from_bytes(&bytes[..11]);
    assert_eq!(short, Err(Errno(libc::EINVAL)));
    let mut other = bytes;
    other[0] = AF_INET as u8;
    let other = PvcAddress::from_bytes(&other);
    assert_eq!(other, Err(Errno(libc::EAFNOSUPPORT)));
}

#[test]
fn payloads_between_two_processes() {
    let (client, server) = processes();
    client.stack().attach_atm(SERVER.into()).unwrap();
    server.stack().attach_atm(CLIENT.into()).unwrap();
    let asks = socket(&client, SOCK_DGRAM);
    let answers = socket(&server, SOCK_DGRAM | SOCK_NONBLOCK);
    client.bind_circuit(asks, ADDRESS).unwrap();
    // Any interface, and `connect` is `bind`.
    let any = PvcAddress {
        interface: -1,
        ..ADDRESS
    };
    server.bind_circuit(answers, any).unwrap();
    assert_eq!(server.circuit_address(answers), Ok(ADDRESS));
    let named = server.getsockopt(answers, SOL_ATM, SO_ATMPVC);
    assert_eq!(named, Ok(ADDRESS.to_bytes().to_vec()));
    let readable = |wait| {
        let mut polled = [PollFd::new(answers, Events::IN)];
        server.poll(&mut polled, wait).unwrap() == 1
    };
    assert!(!readable(0));
    let mut buffer = [0; 2000];
    let nothing = server.recv(answers, &mut buffer, 0);
    assert_eq!(nothing, Err(Errno(libc::EAGAIN)));
    let pieces = [IoSlice::new(b"in "), IoSlice::new(b"pieces")];
    assert_eq!(client.sendmsg(asks, &pieces, 0, None), Ok(9));
    assert!(readable(10_000));
    assert_eq!(server.recv(answers, &mut buffer, 0), Ok(9));
    assert_eq!(&buffer[..9], b"in pieces");
    assert_eq!(server.send(answers, &[7; 1500], 0), Ok(1500));
    assert_eq!(client.recv(asks, &mut buffer, 0), Ok(1500));
    assert_eq!(buffer[..1500], [7; 1500]);
    let long = client.send(asks, &[7; 1501], 0);
    assert_eq!(long, Err(Errno(libc::EMSGSIZE)));
    let to = SocketAddr::from((SERVER, 7));
    let named = client.sendmsg(asks, &pieces, 0, Some(to));
    assert_eq!(named, Err(Errno(libc::EISCONN)));
    let flags = MSG_DONTWAIT | libc::MSG_OOB;
    assert!(client.recv(asks, &mut buffer, flags).is_err());
    client.close(asks).unwrap();
    let again = socket(&client, SOCK_DGRAM);
    client.bind_circuit(again, ADDRESS).unwrap();
}

#[test]
fn calls_fail_as_linux_does() {
    let (client, server) = processes();
    let fails = |result: Result<(), Errno>| result.unwrap_err().0;
    let stream = client.socket(AF_ATMPVC, SOCK_STREAM, 0);
    assert_eq!(stream, Err(Errno(libc::EINVAL)));
    let fresh = client.socket(AF_ATMPVC, SOCK_DGRAM, 5).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(
        client.recv(fresh, &mut buffer, 0),
        Err(Errno(libc::ENOTCONN))
    );
    assert_eq!(client.send(fresh, b"x", 0), Err(Errno(libc::ENOTCONN)));
    let unbound = client.circuit_address(fresh);
    assert_eq!(unbound, Err(Errno(libc::ENOTCONN)));
    assert_eq!(fails(client.bind_circuit(fresh, ADDRESS)), libc::EBADFD);
    assert_eq!(fails(client.listen(fresh, 1)), libc::EOPNOTSUPP);
    let internet = SocketAddr::from((CLIENT, 7));
    assert_eq!(fails(client.bind(fresh, internet)), libc::EAFNOSUPPORT);
    let set = |qos: &[u8]| fails(client.setsockopt(fresh, SOL_ATM, SO_ATMQOS, qos));
    assert_eq!(set(&qos(1500)[..83]), libc::EINVAL);
    // No class; one each way; CBR without a rate, and with one.
    let none = {
        let mut none = with(0, 0);
        none[40] = 0;
        none
    };
    assert_eq!(set(&none), libc::EINVAL);
    assert_eq!(set(&with(0, 2)), libc::EINVAL);
    let mut constant = with(0, 2);
    constant[40] = 2;
    assert_eq!(set(&constant), libc::EINVAL);
    for rate in [4, 44] {
        constant[rate] = 100;
    }
    client
        .setsockopt(fresh, SOL_ATM, SO_ATMQOS, &constant)
        .unwrap();
    // A rate over 24 bits; and variable rates.
    let mut over = constant.clone();
    over[7] = 1;
    assert_eq!(set(&over), libc::EINVAL);
    (constant[0], constant[40]) = (3, 3);
    assert_eq!(set(&constant), libc::EOPNOTSUPP);
    let other = client.socket(AF_ATMPVC, SOCK_DGRAM, 5).unwrap();
    let unset = client.getsockopt(other, SOL_ATM, SO_ATMQOS);
    assert_eq!(unset, Err(Errno(libc::EINVAL)));
    // A longest payload of 0 means the longest possible.
    client
        .setsockopt(fresh, SOL_ATM, SO_ATMQOS, &qos(0))
        .unwrap();
    let read = client.getsockopt(fresh, SOL_ATM, SO_ATMQOS).unwrap();
    assert_eq!(read[20..24], 65_535_i32.to_ne_bytes());
    assert_eq!(read[16..20], 9999_i32.to_ne_bytes());
    assert_eq!(fails(client.bind_circuit(fresh, ADDRESS)), libc::ENODEV);
    client.stack().attach_atm(SERVER.into()).unwrap();
    let at = |interface, vpi, vci| {
        let address = PvcAddress {
            interface,
            vpi,
            vci,
        };
        fails(client.bind_circuit(fresh, address))
    };
    assert_eq!(at(1, 0, 100), libc::ENODEV);
    assert_eq!(at(0, 0, 0), libc::EINVAL);
    assert_eq!(at(0, 15, 100), libc::EINVAL);
    assert_eq!(at(0, -2, 100), libc::EINVAL);
    assert_eq!(at(0, 0, 65_536), libc::EINVAL);
    let no_aal5 = client.socket(AF_ATMPVC, SOCK_DGRAM, 13).unwrap();
    let set = client.setsockopt(no_aal5, SOL_ATM, SO_ATMQOS, &with(80, 13));
    set.unwrap();
    assert_eq!(
        fails(client.bind_circuit(no_aal5, ADDRESS)),
        libc::EPROTOTYPE
    );
    client.bind_circuit(fresh, ADDRESS).unwrap();
    assert_eq!(at(0, 0, 101), libc::EISCONN);
    let second = socket(&client, SOCK_DGRAM);
    assert_eq!(
        fails(client.bind_circuit(second, ADDRESS)),
        libc::EADDRINUSE
    );
    // Any channel selects the first free one.
    for vci in [32, 33] {
        let third = socket(&client, SOCK_DGRAM);
        let any = PvcAddress {
            vpi: -1,
            vci: -1,
            ..ADDRESS
        };
        client.bind_circuit(third, any).unwrap();
        assert_eq!(
            client.circuit_address(third),
            Ok(PvcAddress { vci, ..ADDRESS })
        );
    }
    // Any path selects the first on which the channel is free.
    for vpi in [1, 2] {
        let third = socket(&client, SOCK_DGRAM);
        let any = PvcAddress { vpi: -1, ..ADDRESS };
        client.bind_circuit(third, any).unwrap();
        assert_eq!(
            client.circuit_address(third),
            Ok(PvcAddress { vpi, ..ADDRESS })
        );
    }
    // Any class would be chosen by signalling.
    let any_class = client.socket(AF_ATMPVC, SOCK_DGRAM, 5).unwrap();
    let mut either = with(0, 5);
    either[40] = 5;
    let set = client.setsockopt(any_class, SOL_ATM, SO_ATMQOS, &either);
    set.unwrap();
    let bound = client.bind_circuit(any_class, ADDRESS);
    assert_eq!(bound, Err(Errno(libc::EINVAL)));
    // Options that do not apply to circuits, and circuit options on other sockets.
    let clp = client.setsockopt(fresh, SOL_ATM, SO_SETCLP, &1_i32.to_ne_bytes());
    clp.unwrap();
    let clp = client.getsockopt(fresh, SOL_ATM, SO_SETCLP);
    assert_eq!(clp, Ok(1_i32.to_ne_bytes().to_vec()));
    let fails = |result: Result<Vec<u8>, Errno>| result.unwrap_err().0;
    assert_eq!(fails(client.getsockopt(fresh, SOL_ATM, 99)), libc::EINVAL);
    let udp = server.socket(AF_INET, SOCK_DGRAM, 0).unwrap();
    let bound = server.bind_circuit(udp, ADDRESS);
    assert_eq!(bound, Err(Errno(libc::EAFNOSUPPORT)));
    assert!(server.setsockopt(udp, SOL_ATM, SO_ATMQOS, &qos(0)).is_err());
}

#[test]
fn a_receive_timeout_holds_whenever_it_is_set() {
    let (client, _server) = processes();
    client.stack().attach_atm(SERVER.into()).unwrap();
    let fd = socket(&client, SOCK_DGRAM);
    let timeout = |microseconds: i64| [0_i64.to_ne_bytes(), microseconds.to_ne_bytes()].concat();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    let early = client.setsockopt(fd, level, option, &timeout(20_000));
    early.unwrap();
    client.bind_circuit(fd, ADDRESS).unwrap();
    let received = client.recv(fd, &mut [0; 8], 0);
    assert_eq!(received, Err(Errno(libc::EAGAIN)));
    let late = client.setsockopt(fd, level, option, &timeout(40_000));
    late.unwrap();
    assert_eq!(client.getsockopt(fd, level, option), Ok(timeout(40_000)));
    let received = client.recv(fd, &mut [0; 8], 0);
    assert_eq!(received, Err(Errno(libc::EAGAIN)));
}
