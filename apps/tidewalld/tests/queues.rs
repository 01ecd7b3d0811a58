//! Queues that the daemon makes and an unprivileged process uses, with peers in another
//! network namespace on Linux's sockets.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use support::application::{Application, drop_privileges};
use support::*;
use tidewall::{EmbeddedConfig, Stack};
use tidewall_device::demux::DriverCounters;
use tidewall_device::demux::layout::Counter;
use tidewall_manager::client::Client;
use tidewall_manager::protocol::Join;
use tidewall_sys::Mapping;

const ADDRESS: &str = "10.77.0.1";
/// Port of the echo; lower ones need privileges.
const UDP: u16 = 7007;
const TCP: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_application_without_privileges_serves() {
    run_with_peer("an_application_without_privileges_serves", 60);
}

#[test]
fn what_is_handed_over_is_not_the_managers() {
    run("what_is_handed_over_is_not_the_managers");
}

/// `cargo test --release -p tidewalld --test queues -- --ignored --nocapture --exact
/// a_successor_takes_over`, as root and without other work on the machine.
#[test]
#[ignore = "prints figures, and judges nothing"]
fn a_successor_takes_over() {
    run_with_peer("a_successor_takes_over", 100);
}

/// Returns the answer to a datagram to the echo.
fn echo(text: &[u8]) -> std::io::Result<Vec<u8>> {
    echo_within(text, LIMIT)
}

/// Sends it again each second: packets during a change may be lost.
fn echo_within(text: &[u8], limit: Duration) -> std::io::Result<Vec<u8>> {
    let end = Instant::now() + limit;
    let socket = UdpSocket::bind("10.77.0.2:0")?;
    socket.set_read_timeout(Some(limit.min(Duration::from_secs(1))))?;
    socket.connect((ADDRESS, UDP))?;
    let mut buffer = [0; 2048];
    loop {
        socket.send(text)?;
        match socket.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {}
            result => return Ok(buffer[..result?].to_vec()),
        }
    }
}

fn connect() -> std::io::Result<TcpStream> {
    let server: SocketAddr = format!("{ADDRESS}:{TCP}").parse().unwrap();
    let stream = TcpStream::connect_timeout(&server, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends one request; returns its answer's first line.
fn get(mut stream: &TcpStream) -> String {
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.lines().next().unwrap().to_owned()
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";

/// Returns how the interface defers interrupts.
fn settings() -> [String; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|name| {
        let path = format!("/sys/class/net/{INTERFACE}/{name}");
        std::fs::read_to_string(path).unwrap()
    })
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn an_application_without_privileges_serves() {
        let before = settings();
        let (mut daemon, _) = start();
        let mut application = Application::start(&[]);
        let tables = trusted();
        let channel = || tables.counter(0, Counter::Channel);
        let owned = channel();
        at_peer(|| {
            for number in 0..100u32 {
                let text = number.to_ne_bytes();
                assert_eq!(echo(&text).unwrap(), text);
            }
            assert_eq!(get(&connect().unwrap()), "HTTP/1.1 200 OK");
        });
        // Through its own queue, except for the datagrams that found the NAPI ids.
        assert!(channel() - owned >= 90, "{}", channel() - owned);
        // While its frames arrive.
        wait_until("interrupts are deferred", || {
            at_peer(|| echo(b"another").unwrap());
            settings()[0].trim() == "1"
        });

        // Existing traffic continues without the daemon, and with the next one.
        let stream = at_peer(|| connect().unwrap());
        assert_eq!(get(&stream), "HTTP/1.1 200 OK");
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        assert_eq!(get(&stream), "HTTP/1.1 200 OK");
        at_peer(|| assert_eq!(echo(b"nobody there").unwrap(), b"nobody there"));
        let (daemon, said) = start();
        assert!(said.contains("taken over"), "{said}");
        wait_until("it has presented itself", || counters().presented == 1);
        assert_eq!(get(&stream), "HTTP/1.1 200 OK");
        at_peer(|| assert_eq!(get(&connect().unwrap()), "HTTP/1.1 200 OK"));

        // It ends silently: the kernel answers that the port is unreachable.
        application.kill();
        wait_until("it is cleared away", || counters().cleared > 0);
        at_peer(|| {
            let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
            assert!(connect().is_err_and(refused));
            assert!(echo(b"anybody?").is_err_and(refused));
        });
        assert_eq!(settings(), before);
        // And the connection's peer learns of it.
        let mut rest = [0; 1];
        let ended = (&stream)
            .write_all(b"GET")
            .and_then(|()| (&stream).read(&mut rest));
        assert!(ended.is_err() || ended.is_ok_and(|length| length == 0));

        let successor = Application::start(&[]);
        at_peer(|| {
            assert_eq!(echo(b"again").unwrap(), b"again");
            assert_eq!(get(&connect().unwrap()), "HTTP/1.1 200 OK");
        });
        drop(successor);
        wait_until("all is cleared away", || settings() == before);
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!pins().exists());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn what_is_handed_over_is_not_the_managers() {
        let (_daemon, _) = start();
        let join = Join { flags: 0, ..join() };
        let (client, handed) = as_user(TRUSTED, || Client::join(&socket(), &join).unwrap());
        assert_eq!(handed.queues.len() as u32, client.joined().queues);
        let before = trusted().counter(0, Counter::Frames);
        let counters = DriverCounters::of_map(handed.counters.as_fd()).unwrap();
        assert!(counters.counter(Counter::Frames) >= before);
        // Not even with all privileges.
        assert!(Mapping::new(&handed.counters, 4096, 0).is_err());
        // All queues or none, for one application, and sizes within bounds.
        let refused = |join: &Join| Client::join(&socket(), join).unwrap_err().kind();
        let more = Join {
            queues: 2,
            ..join.clone()
        };
        assert_eq!(refused(&more), ErrorKind::InvalidInput);
        let longer = Join {
            frames: 1 << 20,
            ..join.clone()
        };
        assert_eq!(refused(&longer), ErrorKind::InvalidInput);
        assert_eq!(refused(&join), ErrorKind::ResourceBusy);
        drop((client, handed));
        // As soon as it has left.
        Client::join(&socket(), &join).unwrap();
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_successor_takes_over() {
        let (_daemon, _) = start();
        let mut application = Application::start(&[]);
        let (mut gaps, mut joins) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let before = counters().refused;
            let successor = Application::begin(&[]);
            wait_until("it waits for the queue", || counters().refused > before + 2);
            let killed = Instant::now();
            application.kill();
            at_peer(|| {
                // Retried each millisecond; the kernel rounds a socket's timeout up to
                // its ticks, some 8 ms.
                let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                socket.connect((ADDRESS, UDP)).unwrap();
                while socket.recv(&mut [0; 8]).is_err() {
                    let _ = socket.send(b"who?");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            gaps.push(killed.elapsed());
            application = Application::of(successor);
        }
        application.kill();
        wait_until("it is gone", || counters().applications == 0);
        for _ in 0..20 {
            let join = Join { flags: 0, ..join() };
            let start = Instant::now();
            let joined = Client::join(&socket(), &join).unwrap();
            joins.push(start.elapsed());
            // While the manager closes its copies.
            std::thread::sleep(Duration::from_millis(50));
            drop(joined);
            wait_until("it is gone", || counters().applications == 0);
        }
        for (what, mut times) in [
            ("killed, to its successor's first answer", gaps),
            ("join, on a queue just released", joins),
        ] {
            times.sort();
            println!(
                "{what}: p50 {:?}, most {:?}, {} times",
                times[10],
                times[19],
                times.len()
            );
        }
    }

    /// Serves echo and a little HTTP, for any number of connections in sequence.
    #[test]
    #[ignore = "a process of the other test"]
    fn serve() {
        drop_privileges(TRUSTED);
        let stack = Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap();
        let datagrams = tidewall::UdpSocket::bind(&stack, ([0, 0, 0, 0], UDP).into()).unwrap();
        let listener = tidewall::TcpListener::bind(&stack, ([0, 0, 0, 0], TCP).into()).unwrap();
        println!("serves");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 2048];
                loop {
                    let (length, from) = datagrams.recv_from(&mut buffer).unwrap();
                    datagrams.send_to(&buffer[..length], from).unwrap();
                }
            });
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                scope.spawn(move || {
                    let mut buffer = [0; 2048];
                    while let Ok(1..) = stream.read(&mut buffer) {
                        stream.write_all(ANSWER).unwrap();
                    }
                });
            }
        });
    }
}
