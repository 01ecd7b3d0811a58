//! The services on Linux sockets over loopback, against plain clients.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::{LOCAL, Running, Start, path, running};
use tidewall_service::linux::{Linux, Options, Receive};
use tidewall_service::{BATCH, Counters, Kind, ServiceSpec, serve};

/// Returns currently free ports.
fn ports<const N: usize>() -> [u16; N] {
    let sockets: [UdpSocket; N] = std::array::from_fn(|_| UdpSocket::bind((LOCAL, 0)).unwrap());
    std::array::from_fn(|n| sockets[n].local_addr().unwrap().port())
}

fn client(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((LOCAL, 0)).unwrap();
    socket.connect(SocketAddr::new(LOCAL, port)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    socket
}

/// Runs `services` while `during` does.
fn serving(receive: Receive, services: &[ServiceSpec], during: impl FnOnce(&Running<'_>)) {
    serving_at(LOCAL, receive, services, during);
}

/// Acts as [`serving`], on another address.
fn serving_at(
    address: IpAddr,
    receive: Receive,
    services: &[ServiceSpec],
    during: impl FnOnce(&Running<'_>),
) {
    let serve = |start: &Start<'_>| {
        let host = Linux::new(Options {
            receive,
            ..Options::default()
        });
        let (counters, stop) = (start.counters, start.stop);
        let ready = start.ready();
        serve(
            &host,
            address,
            services,
            BATCH,
            counters,
            stop,
            |addresses| ready(addresses[0]),
        )
    };
    running(services.len(), Duration::from_secs(2), serve, during);
}

#[test]
fn echo_alone_sends_back_every_datagram() {
    for receive in [Receive::Recv, Receive::Recvmmsg] {
        let [port] = ports();
        let services = [ServiceSpec {
            kind: Kind::Echo,
            port,
            work: 10,
        }];
        serving(receive, &services, |server| {
            let client = client(port);
            let mut buffer = [0; 65_536];
            let lengths = [0, 1, 14, 1472, 2048, 2049, 8000, 65_507];
            for length in lengths {
                let payload = vec![length as u8; length];
                client.send(&payload).unwrap();
                let got = client.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..got], payload, "{receive}, {length} bytes");
            }
            server.until("counted", |_, reader| reader.read()[0].replies >= 8);
            let counts = server.service();
            assert_eq!((counts.received, counts.replies, counts.errors), (8, 8, 0));
            assert_eq!(counts.bytes, lengths.iter().sum::<usize>() as u64);
        });
    }
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let asked = |last| IpAddr::from([127, 0, 0, last]);
    for receive in [Receive::Recv, Receive::Recvmmsg] {
        for any in ["0.0.0.0", "::"] {
            let [port] = ports();
            let services = [ServiceSpec {
                kind: Kind::Echo,
                port,
                work: 0,
            }];
            let any = any.parse().unwrap();
            serving_at(any, receive, &services, |_| {
                let clients = [asked(1), asked(9), asked(1), "::1".parse().unwrap()];
                for address in clients {
                    if address.is_ipv6() && any.is_ipv4() {
                        continue;
                    }
                    let local = if address.is_ipv4() { LOCAL } else { address };
                    let client = UdpSocket::bind((local, 0)).unwrap();
                    // Connected, it accepts answers from no other address.
                    client.connect((address, port)).unwrap();
                    let timeout = Some(Duration::from_secs(5));
                    client.set_read_timeout(timeout).unwrap();
                    for length in [1, 1472, 2048, 8000] {
                        client.send(&vec![7; length]).unwrap();
                        let got = client.recv(&mut [0; 8192]);
                        assert_eq!(got.unwrap(), length, "{receive}, {any}, {address}");
                    }
                }
            });
        }
    }
}

#[test]
fn several_services_share_a_loop() {
    for receive in [Receive::Recv, Receive::Recvmmsg] {
        let [echo, acknowledge, discard] = ports();
        let services = [
            (Kind::Echo, echo),
            (Kind::Acknowledge, acknowledge),
            (Kind::Discard, discard),
        ];
        let services = services.map(|(kind, port)| ServiceSpec {
            kind,
            port,
            work: 0,
        });
        serving(receive, &services, |server| {
            let discarded = client(discard);
            for number in 0..100u32 {
                discarded.send(&number.to_le_bytes()).unwrap();
            }
            let acknowledged = client(acknowledge);
            acknowledged.send(b"12345678 and much more").unwrap();
            let mut buffer = [0; 64];
            let got = acknowledged.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..got], b"12345678");
            let echoed = client(echo);
            echoed.send(b"?").unwrap();
            assert_eq!(echoed.recv(&mut buffer).unwrap(), 1);
            server.until("all have come", |_, reader| {
                let counts = reader.read();
                counts[0].replies == 1 && counts[1].replies == 1 && counts[2].received == 100
            });
            let counts = server.counts.read();
            assert_eq!((counts[2].bytes, counts[2].replies), (400, 0));
            assert_eq!(counts[1].received, 1);
            discarded.set_nonblocking(true).unwrap();
            assert!(
                discarded.recv(&mut buffer).is_err(),
                "discard answers nobody"
            );
        });
    }
}

#[test]
fn a_batch_larger_than_its_room_is_answered_whole() {
    let [port] = ports();
    let services = [ServiceSpec {
        kind: Kind::Echo,
        port,
        work: 0,
    }];
    serving(Receive::Recvmmsg, &services, |_| {
        let client = client(port);
        let mut buffer = [0; 16];
        for _ in 0..200u32 {
            client.send(b"burst").unwrap();
        }
        for _ in 0..200u32 {
            assert_eq!(client.recv(&mut buffer).unwrap(), 5);
        }
    });
}

#[test]
fn a_port_in_use_is_named() {
    let taken = UdpSocket::bind((LOCAL, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let counters = Counters::create(path("taken"), 1).unwrap();
    let error = serve(
        &Linux::default(),
        LOCAL,
        &[ServiceSpec {
            kind: Kind::Echo,
            port,
            work: 0,
        }],
        BATCH,
        &counters,
        &AtomicBool::new(false),
        |_| panic!("it cannot be ready"),
    )
    .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}
