//! The error queue as calls show it.

use super::tests::{Pair, exchange, pair};
use super::*;

const SOFTWARE: u32 = libc::SOF_TIMESTAMPING_SOFTWARE;
const SENT: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE;
const ID: u32 = libc::SOF_TIMESTAMPING_OPT_ID;
const EMPTY: Result<Received> = Err(Failure::Errno(libc::EAGAIN));
const INVALID: Result<()> = Err(Failure::Errno(libc::EINVAL));

fn set(host: &mut Host, fd: Fd, option: i32, value: u32) -> Result<()> {
    host.setsockopt(fd, libc::SOL_SOCKET, option, &value.to_ne_bytes())
}

fn told(host: &mut Host, fd: Fd) -> Result<Received> {
    host.receive(fd, &mut [], libc::MSG_ERRQUEUE)
}

fn connected() -> Pair {
    pair(libc::AF_INET, "192.0.2.2:8080")
}

#[test]
fn flags_are_refused_as_linux_does() {
    let Pair {
        mut client,
        to_server: fd,
        ..
    } = connected();
    let option = libc::SO_TIMESTAMPING;
    for flags in [
        1 << 19,
        libc::SOF_TIMESTAMPING_OPT_ID_TCP,
        // Not offered.
        libc::SOF_TIMESTAMPING_OPT_STATS | libc::SOF_TIMESTAMPING_OPT_TSONLY,
        libc::SOF_TIMESTAMPING_BIND_PHC,
    ] {
        assert_eq!(set(&mut client, fd, option, flags), INVALID, "{flags:#x}");
    }
    // A byte of no stream has no number.
    let fresh = client.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    assert_eq!(set(&mut client, fresh, option, ID), INVALID);
    assert_eq!(set(&mut client, fresh, option, SENT), Ok(()));
    assert_eq!(set(&mut client, fd, option, SENT | ID), Ok(()));
    let flags = client.getsockopt(fd, libc::SOL_SOCKET, option).unwrap();
    assert_eq!(flags[..4], (SENT | ID).to_ne_bytes());
    assert_eq!(set(&mut client, fd, libc::SO_ZEROCOPY, 2), INVALID);
    assert_eq!(told(&mut client, fresh), EMPTY);
    assert_eq!(told(&mut client, fd), EMPTY);
}

#[test]
fn a_time_is_told_with_its_byte() {
    let mut pair = connected();
    let (client, fd) = (&mut pair.client, pair.to_server);
    set(client, fd, libc::SO_TIMESTAMPING, SENT | SOFTWARE | ID).unwrap();
    client.advance(Duration::from_millis(5));
    assert_eq!(client.write(fd, &[1; 300]), Ok(300));
    let expected = Received {
        flags: libc::MSG_ERRQUEUE | libc::MSG_TRUNC,
        arrived: Some(Duration::from_millis(5)),
        error: Some(ExtendedError {
            errno: libc::ENOMSG as u32,
            origin: libc::SO_EE_ORIGIN_TIMESTAMPING,
            code: 0,
            info: 0,
            data: 299,
            v6: false,
        }),
        ..Received::default()
    };
    assert_eq!(told(client, fd), Ok(expected));
    assert_eq!(told(client, fd), EMPTY);
    // Without SOFTWARE nobody reports a time; with OPT_TSONLY nothing is cut off.
    let flags = SENT | ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    set(client, fd, libc::SO_TIMESTAMPING, flags).unwrap();
    client.set_nodelay(fd);
    assert_eq!(client.write(fd, &[1; 300]), Ok(300));
    let received = told(client, fd).unwrap();
    assert_eq!(
        (received.flags, received.arrived),
        (libc::MSG_ERRQUEUE, None)
    );
    assert_eq!(received.error.unwrap().data, 599);
}

impl Host {
    fn set_nodelay(&mut self, fd: Fd) {
        let on = 1i32.to_ne_bytes();
        self.setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on)
            .unwrap();
    }
}

#[test]
fn what_is_read_has_come_at_a_time() {
    let mut pair = connected();
    let (server, fd) = (&mut pair.server, pair.to_client);
    let flags = libc::SOF_TIMESTAMPING_RX_SOFTWARE | SOFTWARE;
    set(server, fd, libc::SO_TIMESTAMPING, flags).unwrap();
    server.advance(Duration::from_millis(7));
    pair.client.write(pair.to_server, b"request").unwrap();
    exchange(&mut pair.client, &mut pair.server);
    pair.server.advance(Duration::from_millis(9));
    let mut buffer = [0; 10];
    let mut read = |flags| pair.server.receive(fd, &mut buffer, flags).unwrap();
    assert_eq!(read(libc::MSG_PEEK).arrived, None);
    let received = read(0);
    assert_eq!((received.bytes, received.flags), (7, 0));
    assert_eq!(received.arrived, Some(Duration::from_millis(7)));
}

#[test]
fn a_listener_hands_on_that_memory_is_told_of_and_its_family_names_it() {
    for (domain, to) in [
        (libc::AF_INET, "192.0.2.2:8080"),
        (libc::AF_INET6, "[2001:db8::2]:8080"),
    ] {
        let mut pair = pair(domain, to);
        let listener = Host::FIRST_FD;
        set(&mut pair.server, listener, libc::SO_ZEROCOPY, 1).unwrap();
        let fd = pair.client.socket(domain, libc::SOCK_STREAM, 0).unwrap();
        set(&mut pair.client, fd, libc::SO_ZEROCOPY, 1).unwrap();
        let _ = pair.client.connect(fd, to.parse().unwrap());
        exchange(&mut pair.client, &mut pair.server);
        let (accepted, _) = pair.server.accept(listener).unwrap();
        let option = (libc::SOL_SOCKET, libc::SO_ZEROCOPY);
        let on = pair.server.getsockopt(accepted, option.0, option.1);
        assert_eq!(on, Ok(1i32.to_ne_bytes().to_vec()));
        for (host, fd, v6) in [
            (&mut pair.server, accepted, true),
            (&mut pair.client, fd, domain == libc::AF_INET6),
        ] {
            assert_eq!(host.send(fd, b"", libc::MSG_ZEROCOPY), Ok(0));
            assert_eq!(host.send(fd, b"not this", 0), Ok(8));
            assert_eq!(told(host, fd), EMPTY);
            assert_eq!(host.send(fd, b"but this", libc::MSG_ZEROCOPY), Ok(8));
            let error = told(host, fd).unwrap().error.unwrap();
            let (level, kind, data) = error.control();
            let expected = if v6 {
                (libc::SOL_IPV6, libc::IPV6_RECVERR, 44)
            } else {
                (libc::SOL_IP, libc::IP_RECVERR, 32)
            };
            assert_eq!((level, kind, data.len()), expected);
            // ee_errno, then SO_EE_ORIGIN_ZEROCOPY and its code, then 0 to 0.
            assert_eq!(data[..16], [0, 0, 0, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
    }
}

#[test]
fn a_call_that_waits_is_one_write() {
    let mut pair = connected();
    let (client, fd) = (&mut pair.client, pair.to_server);
    set(client, fd, libc::SO_ZEROCOPY, 1).unwrap();
    let size = 20_000i32.to_ne_bytes();
    client
        .setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &size)
        .unwrap();
    let data = vec![1; 30_000];
    let taken = client.send(fd, &data, libc::MSG_ZEROCOPY).unwrap();
    assert!(taken < data.len());
    assert_eq!(told(client, fd), EMPTY);
    let mut done = taken;
    while done < data.len() {
        exchange(&mut pair.client, &mut pair.server);
        let later = pair.server.now() + Duration::from_millis(50);
        pair.server.advance(later);
        exchange(&mut pair.client, &mut pair.server);
        match pair.client.send(fd, &data[done..], libc::MSG_ZEROCOPY) {
            Ok(taken) => done += taken,
            Err(failure) => assert_eq!(failure, Failure::Blocked),
        }
    }
    let error = told(&mut pair.client, fd).unwrap().error.unwrap();
    assert_eq!((error.info, error.data), (0, 0));
    assert_eq!(told(&mut pair.client, fd), EMPTY);
}

#[test]
fn the_time_of_a_control_message_is_the_first_of_three() {
    let (level, kind, data) = time_control(Duration::new(1, 2));
    let expected = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 48);
    assert_eq!((level, kind, data.len()), expected);
    assert_eq!(data[..8], 1i64.to_ne_bytes());
    assert_eq!(data[8..16], 2i64.to_ne_bytes());
    assert_eq!(data[16..], [0; 32]);
}
