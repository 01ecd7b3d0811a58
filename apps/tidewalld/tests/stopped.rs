//! A daemon that is stopped, as by a debugger or on a swapped-out host, and applications
//! that continue beside it.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::application::{Application, drop_privileges};
use support::*;
use tidewall::{EmbeddedConfig, Stack, TcpListener};

const ADDRESS: &str = "10.77.0.1";
/// A datagram here makes the application listen on one more port from [`TCP`] on.
const UDP: u16 = 7007;
const TCP: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(20);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";
/// How long the daemon is stopped, in seconds. If set, figures are judged.
const SECONDS: &str = "TIDEWALL_STOPPED_SECONDS";
/// Number of times that a daemon is resumed and stopped, to compare both.
const PAIRS: usize = 20;
/// Indices of the 95 % interval of the median among this many, in order.
const INTERVAL: [usize; 2] = [5, 14];
/// Required ratio of requests/s beside a stopped daemon and a live one, the slower over
/// the faster.
const ALIKE: f64 = 0.98;

/// `TIDEWALL_STOPPED_SECONDS=60 cargo test --release -p tidewalld --test stopped -- --nocapture
/// requests_go_on_beside_a_stopped_daemon`, on a quiet machine, prints and judges requests/s.
#[test]
fn requests_go_on_beside_a_stopped_daemon() {
    let limit = 90 + 4 * seconds().as_secs() as u32;
    run_with_peer("requests_go_on_beside_a_stopped_daemon", limit);
}

#[test]
fn a_new_listener_without_a_daemon_holds_up_no_other() {
    run_with_peer("a_new_listener_without_a_daemon_holds_up_no_other", 60);
}

#[test]
fn a_client_without_a_daemon_connects_less_and_less_often() {
    run("a_client_without_a_daemon_connects_less_and_less_often");
}

fn seconds() -> Duration {
    let seconds = std::env::var(SECONDS).ok();
    Duration::from_secs(seconds.map_or(4, |text| text.parse().expect(SECONDS)))
}

fn signal(daemon: &Daemon, signal: Signal) {
    kill_process(Pid::from_child(&daemon.0), signal).unwrap();
}

fn connect(port: u16) -> TcpStream {
    let server: SocketAddr = format!("{ADDRESS}:{port}").parse().unwrap();
    let stream = TcpStream::connect_timeout(&server, LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn get(mut stream: &TcpStream) {
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, ANSWER);
}

/// The clients' observations.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Requests per second.
    rate: f64,
    longest: Duration,
}

/// Sends requests in turn, each fiftieth on its own connection, with a rest after a
/// hundred, so that receive control changes how the device interrupts.
fn ask(time: Duration) -> Seen {
    let stream = connect(TCP);
    let (begin, mut longest, mut requests) = (Instant::now(), Duration::ZERO, 0);
    while begin.elapsed() < time {
        let start = Instant::now();
        match requests % 50 {
            0 => get(&connect(TCP)),
            _ => get(&stream),
        }
        longest = longest.max(start.elapsed());
        requests += 1;
        if requests % 100 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Seen {
        rate: f64::from(requests) / begin.elapsed().as_secs_f64(),
        longest,
    }
}

mod inside {
    use tidewall_manager::connection::Listener;

    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_client_without_a_daemon_connects_less_and_less_often() {
        let daemon = start().0;
        let client = client();
        drop(daemon);
        // Every new connection is rejected.
        let listener = Listener::bind(&socket()).unwrap();
        let mut came = Vec::new();
        let begin = Instant::now();
        while came.len() < 11 {
            assert!(begin.elapsed() < LIMIT, "{came:?}");
            match listener.accept().unwrap() {
                Some(connection) => {
                    drop(connection);
                    came.push(Instant::now());
                }
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        let between = |pair: &[Instant]| pair[1] - pair[0];
        let pauses: Vec<_> = came.windows(2).map(between).collect();
        println!("pauses between connections: {pauses:.0?}");
        // However slow the machine is, a pause is no shorter than requested.
        assert!(pauses.iter().sum::<Duration>() > Duration::from_millis(500));
        assert!(pauses[9] > Duration::from_millis(200));
        assert_eq!(client.ended(), None);
        drop(listener);
        let _daemon = start().0;
        wait_until("it is there again", || counters().presented == 1);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn requests_go_on_beside_a_stopped_daemon() {
        let (mut daemon, _) = start();
        let _application = Application::start(&[]);
        let figures = std::env::var_os(SECONDS).is_some();
        let slice = seconds().min(Duration::from_secs(4)) / 4;
        let ask = |time| at_peer(move || ask(time));
        let (mut ratios, mut before) = (Vec::new(), Vec::new());
        for pair in 0..if figures { PAIRS } else { 2 } {
            let asked_stopped = || {
                signal(&daemon, Signal::STOP);
                let seen = ask(slice);
                signal(&daemon, Signal::CONT);
                seen
            };
            let (live, stopped) = match pair % 2 {
                0 => (ask(slice), asked_stopped()),
                _ => {
                    let stopped = asked_stopped();
                    (ask(slice), stopped)
                }
            };
            ratios.push(stopped.rate / live.rate);
            before.push(live);
        }
        println!("{ratios:.2?}");
        ratios.sort_by(f64::total_cmp);
        if figures {
            let [low, high] = INTERVAL.map(|place| ratios[place]);
            println!(
                "requests/s beside a stopped daemon over those beside a live one, {PAIRS} pairs: \
                 {:.3} ({low:.3} to {high:.3})",
                ratios[PAIRS / 2]
            );
            assert!(low <= 1.0 / ALIKE && high >= ALIKE, "{ratios:?}");
        }
        let before = Seen {
            rate: before.iter().map(|seen| seen.rate).sum::<f64>() / before.len() as f64,
            longest: before.iter().map(|seen| seen.longest).max().unwrap(),
        };
        signal(&daemon, Signal::STOP);
        let stopped = ask(seconds());
        signal(&daemon, Signal::CONT);
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        let dead = ask(slice * 4);
        let (_daemon, said) = start();
        assert!(said.contains("taken over"), "{said}");
        wait_until("it has presented itself", || counters().presented == 1);
        let after = ask(slice * 4);
        for (what, seen) in [
            ("beside a daemon", before),
            ("beside a stopped one", stopped),
            ("beside none", dead),
            ("beside the next", after),
        ] {
            println!(
                "{what}: {:.0} requests/s ({:.2} of before), longest {:.1} ms",
                seen.rate,
                seen.rate / before.rate,
                seen.longest.as_secs_f64() * 1e3
            );
            // For a machine beside compilers, not a bound for users.
            let bound = (before.longest * 2).max(Duration::from_secs(2));
            assert!(seen.longest < bound, "{what}: {seen:?}");
        }
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_new_listener_without_a_daemon_holds_up_no_other() {
        let (mut daemon, _) = start();
        let mut application = Application::start(&[]);
        at_peer(|| get(&connect(TCP)));
        for stopped in [true, false] {
            match stopped {
                true => signal(&daemon, Signal::STOP),
                false => {
                    daemon.0.kill().unwrap();
                    daemon.0.wait().unwrap();
                }
            }
            at_peer(|| {
                let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
                socket.send_to(b"listen", (ADDRESS, UDP)).unwrap();
                let (begin, mut longest) = (Instant::now(), Duration::ZERO);
                while begin.elapsed() < Duration::from_secs(4) {
                    let start = Instant::now();
                    get(&connect(TCP));
                    longest = longest.max(start.elapsed());
                    std::thread::sleep(Duration::from_millis(10));
                }
                assert!(longest < Duration::from_secs(2), "{longest:?}");
            });
            if stopped {
                signal(&daemon, Signal::CONT);
                at_peer(|| get(&connect(TCP + 1)));
            }
        }
        // Requests that waited for a daemon reach the next one.
        let (_daemon, _) = start();
        let server: SocketAddr = format!("{ADDRESS}:{}", TCP + 2).parse().unwrap();
        wait_until("the third listens", || {
            at_peer(|| TcpStream::connect_timeout(&server, LIMIT).is_ok())
        });
        application.kill();
    }

    /// Serves a little HTTP, for any number of connections, and opens listeners on
    /// demand.
    #[test]
    #[ignore = "a process of the other test"]
    fn serve() {
        drop_privileges(TRUSTED);
        let stack = Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap();
        let commands = tidewall::UdpSocket::bind(&stack, ([0, 0, 0, 0], UDP).into()).unwrap();
        let next = AtomicU16::new(TCP);
        let bind = || {
            let port = next.fetch_add(1, Ordering::Relaxed);
            TcpListener::bind(&stack, ([0, 0, 0, 0], port).into()).unwrap()
        };
        let first = bind();
        println!("serves");
        std::thread::scope(|scope| {
            let listen = |listener: Option<TcpListener>| {
                let listener = listener.unwrap_or_else(bind);
                loop {
                    let (mut stream, _) = listener.accept().unwrap();
                    scope.spawn(move || {
                        let mut buffer = [0; 2048];
                        while let Ok(1..) = stream.read(&mut buffer) {
                            stream.write_all(ANSWER).unwrap();
                        }
                    });
                }
            };
            scope.spawn(move || listen(Some(first)));
            loop {
                let _ = commands.recv_from(&mut [0; 64]).unwrap();
                scope.spawn(move || listen(None));
            }
        });
    }
}
