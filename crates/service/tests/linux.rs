//! The services on Linux sockets over loopback, against plain clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tidewall_service::linux::{Linux, Options, Receive};
use tidewall_service::{BATCH, Counters, Kind, Reader, ServiceSpec, serve};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn page(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tw-service-{}-{name}", std::process::id()))
}

/// Free ports of the moment.
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

/// Sets it at the end, a panic's included: a server that is not told to stop
/// keeps the test from failing.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `services` while `during` does.
fn serving(name: &str, receive: Receive, services: &[ServiceSpec], during: impl FnOnce(&Reader)) {
    let path = page(name);
    let counters = Counters::create(&path, services.len()).unwrap();
    let reader = Reader::open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let host = Linux::new(Options {
                receive,
                ..Options::default()
            });
            serve(&host, LOCAL, services, BATCH, &counters, &stop, |_| {
                ready.send(()).unwrap()
            })
        });
        let stopping = StopAtEnd(&stop);
        is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
        during(&reader);
        let asked = Instant::now();
        drop(stopping);
        server.join().unwrap().unwrap();
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "it must stop promptly"
        );
    });
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
        serving(&format!("echo-{receive}"), receive, &services, |reader| {
            let client = client(port);
            let mut buffer = [0; 2048];
            for length in [0, 1, 14, 1472, 2048] {
                let payload = vec![length as u8; length];
                client.send(&payload).unwrap();
                let got = client.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..got], payload, "{receive}, {length} bytes");
            }
            // They are written once a turn, which a reply may overtake.
            let deadline = Instant::now() + Duration::from_secs(5);
            while reader.read()[0].replies < 5 && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let counts = reader.read()[0];
            assert_eq!((counts.received, counts.replies, counts.errors), (5, 5, 0));
            assert_eq!(counts.bytes, 1 + 14 + 1472 + 2048);
        });
    }
}

#[test]
fn several_services_share_a_loop() {
    for receive in [Receive::Recv, Receive::Recvmmsg] {
        let [echo, acknowledge, discard] = ports();
        let services = [
            ServiceSpec {
                kind: Kind::Echo,
                port: echo,
                work: 0,
            },
            ServiceSpec {
                kind: Kind::Acknowledge,
                port: acknowledge,
                work: 0,
            },
            ServiceSpec {
                kind: Kind::Discard,
                port: discard,
                work: 0,
            },
        ];
        serving(
            &format!("several-{receive}"),
            receive,
            &services,
            |reader| {
                let discarded = client(discard);
                for number in 0..100u32 {
                    discarded.send(&number.to_le_bytes()).unwrap();
                }
                let acknowledged = client(acknowledge);
                acknowledged.send(b"12345678 and much more").unwrap();
                let mut buffer = [0; 64];
                let got = acknowledged.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..got], b"12345678");
                // Loopback delivers within the send call, so by the time of an
                // answer to something sent later, the discards have been seen once;
                // a few turns take them all.
                let echoed = client(echo);
                let deadline = Instant::now() + Duration::from_secs(5);
                while reader.read()[2].received < 100 && Instant::now() < deadline {
                    echoed.send(b"?").unwrap();
                    assert_eq!(echoed.recv(&mut buffer).unwrap(), 1);
                }
                let counts = reader.read();
                assert_eq!(
                    (counts[2].received, counts[2].bytes, counts[2].replies),
                    (100, 400, 0)
                );
                assert_eq!((counts[1].received, counts[1].replies), (1, 1));
                discarded.set_nonblocking(true).unwrap();
                assert!(
                    discarded.recv(&mut buffer).is_err(),
                    "discard answers nobody"
                );
            },
        );
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
    serving("burst", Receive::Recvmmsg, &services, |_| {
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
    let counters = Counters::create(page("taken"), 1).unwrap();
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
