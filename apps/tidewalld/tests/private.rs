//! Applications in private mode: without privileges, without trust, several on one device.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::application::{Application, drop_privileges};
use support::*;
use tidewall::{EmbeddedConfig, Stack};
use tidewall_device::afxdp::HELPER_PORTS;
use tidewall_device::demux::layout::{Counter, Protocol};
use tidewall_device::queue::InterruptModeration;
use tidewall_manager::client::Client;
use tidewall_manager::domains::threaded;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join};

const ADDRESS: &str = "10.77.0.1";
const NOBODY: u32 = 65_534;
/// Port of the first application; the second has the next.
const PORT: u16 = 7007;
const LIMIT: Duration = Duration::from_secs(20);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";

#[test]
fn private_applications_serve_side_by_side() {
    run_with_peer("private_applications_serve_side_by_side", 60);
}

#[test]
fn who_is_alone_polls_the_device() {
    run_with_peer("who_is_alone_polls_the_device", 60);
}

#[test]
fn who_stops_or_dies_while_it_polls_harms_nobody() {
    run_with_peer("who_stops_or_dies_while_it_polls_harms_nobody", 60);
}

#[test]
fn who_polls_is_trusted_with_nothing_else() {
    run_with_peer("who_polls_is_trusted_with_nothing_else", 60);
}

#[test]
fn private_domains_come_and_go() {
    run_with_peer("private_domains_come_and_go", 60);
}

#[test]
fn a_join_that_fails_half_way_leaves_nothing() {
    run("a_join_that_fails_half_way_leaves_nothing");
}

#[test]
fn private_applications_own_granted_ports_alone() {
    run("private_applications_own_granted_ports_alone");
}

#[test]
#[ignore = "a measurement"]
fn time_of_private_domains() {
    run_within("time_of_private_domains", 300);
}

/// Starts a process that echoes datagrams and answers requests.
fn start(port: u16) -> Application {
    Application::start(&[("TW_PORT", port.to_string())])
}

/// Sends a datagram, again each second, until it is echoed: packets beside a blast may be
/// lost.
fn echo(port: u16, text: &[u8]) -> std::io::Result<Vec<u8>> {
    let end = Instant::now() + LIMIT;
    let socket = UdpSocket::bind("10.77.0.2:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect((ADDRESS, port))?;
    let mut buffer = [0; 2048];
    loop {
        socket.send(text)?;
        match socket.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {}
            result => return Ok(buffer[..result?].to_vec()),
        }
    }
}

fn get(port: u16) -> std::io::Result<Vec<u8>> {
    let server: SocketAddr = format!("{ADDRESS}:{port}").parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&server, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = vec![0; ANSWER.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn start_private() -> Daemon {
    start_with(command().args(["--private", &NOBODY.to_string()])).0
}

/// Returns the number of interfaces that are not the test's own: those with a peer in
/// another namespace.
fn pairs(own: usize) -> usize {
    interfaces() - own
}

/// Returns whether a thread polls the interface.
fn is_threaded() -> bool {
    let index = tidewall_sys::interface::index(INTERFACE).unwrap();
    threaded::read(INTERFACE, index).unwrap().threaded
}

/// Returns `napi_defer_hard_irqs` and `gro_flush_timeout`.
fn deferral() -> [u64; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|name| {
        let path = format!("/sys/class/net/{INTERFACE}/{name}");
        std::fs::read_to_string(path)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    })
}

/// Waits until the only private application, which echoes, may poll the device: while
/// frames arrive, interrupts are deferred.
fn wait_until_lent(port: u16) {
    wait_until("the device is lent", || {
        at_peer(|| assert_eq!(echo(port, b"again").unwrap(), b"again"));
        deferral()[0] == 1 && !is_threaded()
    });
}

/// Echoes datagrams, until an empty one.
fn serve_datagrams(socket: &tidewall::UdpSocket) {
    let mut buffer = [0; 2048];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..length], from).unwrap();
        if length == 0 {
            return;
        }
    }
}

/// Sets the flag when dropped, also if an assertion fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams to a port, at most 20,000 per second, until the flag is set.
fn blast(port: u16, ended: &AtomicBool) {
    let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..20 {
            let _ = socket.send_to(b"blast", (ADDRESS, port));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_is_alone_polls_the_device() {
        let before = deferral();
        let daemon = start_private();
        let stack = as_user(NOBODY, || {
            Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap()
        });
        // By both sockets: it asks the daemon about the second's probe.
        let polls = || !stack.snapshot().queues[0].napi.contains(&0);
        let echoes = |port| {
            at_peer(|| assert_eq!(echo(port, b"one more").unwrap(), b"one more"));
        };
        std::thread::scope(|scope| {
            let at = ([0, 0, 0, 0], PORT).into();
            let served = tidewall::UdpSocket::bind(&stack, at).unwrap();
            let server = scope.spawn(move || as_user(NOBODY, || serve_datagrams(&served)));
            wait_until_lent(PORT);
            wait_until("it polls", || {
                echoes(PORT);
                polls()
            });

            // It continues without the daemon, and with the next one.
            drop(daemon);
            echoes(PORT);
            let daemon = start_private();
            wait_until("it has presented itself", || counters().presented == 1);
            for _ in 0..10 {
                echoes(PORT);
            }
            assert!(polls() && !is_threaded());

            // A second one: no poll masks the device any more.
            let second = start(PORT + 1);
            assert_eq!(deferral(), [0, 0]);
            assert!(is_threaded());
            echoes(PORT + 1);
            wait_until("it knows", || {
                echoes(PORT);
                stack.snapshot().queues[0].napi == [0; 2]
            });
            drop(second);
            wait_until_lent(PORT);
            wait_until("it polls again", || {
                echoes(PORT);
                polls()
            });

            // An application with ports only; its frames are the kernel's.
            let other = client();
            assert_eq!(deferral(), [0, 0]);
            drop(other);
            wait_until_lent(PORT);
            at_peer(|| assert_eq!(echo(PORT, b"").unwrap(), b""));
            server.join().unwrap();
            drop(daemon);
        });
        // With a daemon that finds what it has not lent itself.
        let daemon = start_private();
        drop(stack);
        wait_until("all is as before", || deferral() == before);
        assert!(!is_threaded());
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert_eq!(pairs(2), 0);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_stops_or_dies_while_it_polls_harms_nobody() {
        let before = deferral();
        let daemon = start_private();
        let mut first = start(PORT);
        wait_until_lent(PORT);
        let ended = AtomicBool::new(false);
        let under_blast = |body: &mut (dyn FnMut() + Send)| {
            ended.store(false, Ordering::Relaxed);
            at_peer(|| {
                std::thread::scope(|scope| {
                    let _ends = Ends(&ended);
                    scope.spawn(|| blast(PORT, &ended));
                    body();
                });
            });
        };
        let kernel_answers = || {
            let error = echo(PORT + 2, b"anybody?").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        };
        let polls = || deferral() == [1, 5_000_000];
        // Stopped while it polls, until another application joins.
        under_blast(&mut || {
            wait_until("it polls", polls);
            first.stop();
            kernel_answers();
        });
        let second = start(PORT + 1);
        assert_eq!(deferral(), [0, 0]);
        under_blast(&mut || {
            for number in 0..100u32 {
                let text = number.to_ne_bytes();
                assert_eq!(echo(PORT + 1, &text).unwrap(), text);
            }
        });
        first.proceed();
        at_peer(|| assert_eq!(echo(PORT, b"there again").unwrap(), b"there again"));

        // Killed while it polls.
        drop(second);
        wait_until_lent(PORT);
        under_blast(&mut || {
            wait_until("it polls", polls);
            first.kill();
            wait_until("it is cleared away", || counters().applications == 0);
            assert_eq!(deferral(), before);
        });
        // The blast used up the kernel's rate of such errors.
        at_peer(kernel_answers);
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_polls_is_trusted_with_nothing_else() {
        let _daemon = start_private();
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        // Retries while another thread writes or reads.
        fn told<T>(tell: impl Fn() -> std::io::Result<T>) -> T {
            let mut told = None;
            wait_until("it is told", || {
                told = tell().ok();
                told.is_some()
            });
            told.unwrap()
        }
        let refused = |client: &Client, tell: &dyn Fn() -> std::io::Result<()>| {
            let before = client.counters().unwrap().refused;
            told(tell);
            // Its answer comes after that to the message.
            assert_eq!(client.counters().unwrap().refused, before + 1);
        };
        let helpers = |client: &Client| {
            let (question, mut helpers) = (told(|| client.ask_helpers()), None);
            wait_until("it answers", || {
                helpers = client.helpers(question);
                helpers.is_some()
            });
            helpers.unwrap()
        };
        let (client, handed) = as_user(NOBODY, || Client::join(&socket(), &private).unwrap());
        wait_until("it knows", || client.lent() == 1);
        assert_eq!(deferral(), [1, 0]);
        let busy_poll = || client.moderate(Some(InterruptModeration::BusyPoll));
        told(busy_poll);
        wait_until("it is set", || deferral() == [1, 5_000_000]);
        helpers(&client).unwrap();
        // It may not forge any datagram, or send it elsewhere.
        refused(&client, &|| client.receive_in_kernel(&[0; 60]));
        refused(&client, &|| client.probe_napi(0, 22, 4711));
        let helper = *HELPER_PORTS.start();
        told(|| client.probe_napi(0, helper, 4711));

        // The requested probe contains no frame of this application.
        let second = start(PORT);
        wait_until("it knows", || client.lent() == 2);
        refused(&client, &|| busy_poll().map(drop));
        refused(&client, &|| client.probe_napi(0, helper, 4711));
        let kind = helpers(&client).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidInput);
        assert_eq!(deferral(), [0, 0]);
        let count = |counter| trusted().counters(0).counter(counter);
        at_peer(|| assert_eq!(echo(PORT, b"not yours").unwrap(), b"not yours"));
        assert_eq!(count(Counter::NapiProbe), 0);
        drop((client, handed, second));
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn private_applications_serve_side_by_side() {
        let daemon = start_private();
        let mut first = start(PORT);
        let second = start(PORT + 1);
        assert!(is_threaded());
        at_peer(|| {
            for port in [PORT, PORT + 1] {
                for number in 0..100u32 {
                    let text = number.to_ne_bytes();
                    assert_eq!(echo(port, &text).unwrap(), text);
                }
                for _ in 0..5 {
                    assert_eq!(get(port).unwrap(), ANSWER);
                }
            }
        });
        // No application can take the device's queues from those that share them.
        let direct = Join { flags: 0, ..join() };
        let refused = Client::join(&socket(), &direct).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");

        // One ends silently: the kernel answers, and the other continues.
        first.kill();
        wait_until("it is cleared away", || counters().cleared > 0);
        at_peer(|| {
            assert_eq!(
                echo(PORT, b"anybody?").unwrap_err().kind(),
                ErrorKind::ConnectionRefused
            );
            assert_eq!(echo(PORT + 1, b"still").unwrap(), b"still");
        });
        let third = start(PORT);
        at_peer(|| assert_eq!(echo(PORT, b"again").unwrap(), b"again"));

        // Existing traffic continues without the daemon, and with the next one.
        drop(daemon);
        at_peer(|| assert_eq!(echo(PORT, b"nobody there").unwrap(), b"nobody there"));
        let daemon = start_private();
        wait_until("they have presented themselves", || {
            counters().presented == 2
        });
        at_peer(|| {
            assert_eq!(echo(PORT, b"back").unwrap(), b"back");
            assert_eq!(get(PORT + 1).unwrap(), ANSWER);
        });
        drop((second, third));
        wait_until("no thread polls it", || !is_threaded());
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert_eq!(pairs(2), 0);
        assert!(!pins().exists());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_join_that_fails_half_way_leaves_nothing() {
        let _daemon = start_private();
        let ready = 2 * (1 + 4);
        wait_until("pairs are ready", || pairs(3) == ready);
        // A pair in the daemon's stock is deleted: its socket cannot be registered.
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        let index = tidewall_sys::interface::index(INTERFACE).unwrap();
        for entry in std::fs::read_dir("/sys/class/net").unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let number = name.strip_prefix(&format!("tw{index:x}b"));
            // Number 0 has the programs.
            if number.is_some_and(|number| number != "0") {
                ip(&format!("link del {name}"));
            }
        }
        let mut refusals = 0;
        let (client, handed) = loop {
            match Client::join(&socket(), &private) {
                Ok(joined) => break joined,
                Err(error) => refusals += u32::from(error.kind() != ErrorKind::ResourceBusy),
            }
        };
        assert!((1..=4).contains(&refusals), "{refusals}");
        assert_eq!(handed.queues.len(), 1);
        assert_eq!(applications(), [client.joined().application as u16]);
        drop((client, handed));
        wait_until("all is as before", || {
            applications().is_empty() && pairs(3) == ready && counters().clients == 1
        });
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn private_applications_own_granted_ports_alone() {
        let text = refused(command().args(["--private", "any"]));
        assert!(text.contains("needs --ports"), "{text}");
        let granted = format!("{PORT},8000-8100");
        let _daemon = start_with(command().args(["--private", "any", "--ports", &granted])).0;
        let owns = |user, port: u16| {
            as_user(user, || {
                let client = Client::join(&socket(), &join()).unwrap().0;
                let socket = UdpSocket::bind((ADDRESS, port)).unwrap();
                client.own_port(Protocol::Udp, socket).map(drop)
            })
        };
        // The last one is a client's ephemeral port.
        for port in [PORT, 8050, 40_000] {
            owns(NOBODY, port).unwrap();
        }
        let error = owns(NOBODY, 7999).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("--ports"), "{error}");
        // An application that can send any frame is not restricted.
        owns(TRUSTED, 7999).unwrap();
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn private_domains_come_and_go() {
        let daemon = start_private();
        let private = Join {
            queues: 0,
            frames: 256,
            receive_ring: 256,
            flags: JOIN_PRIVATE,
        };
        for _ in 0..20 {
            let (client, handed) = Client::join(&socket(), &private).unwrap();
            assert_eq!((client.joined().private, handed.queues.len()), (1, 1));
        }
        // The most concurrent ones of one user.
        let several: Vec<_> = (0..8)
            .map(|_| Client::join(&socket(), &private).unwrap())
            .collect();
        let error = Client::join(&socket(), &private).map(drop).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
        drop(several);
        // An unlisted user receives nothing.
        let error = as_user(TRUSTED + 1, || {
            Client::join(&socket(), &private).map(drop).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("--private"), "{error}");
        // The keeper and four in stock.
        wait_until("the rest is taken away", || pairs(2) == 10);
        wait_until("no thread polls it", || !is_threaded());
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert_eq!(pairs(2), 0);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn time_of_private_domains() {
        let daemon = start_with(command().args(["--private", "any", "--ports", "1-65535"])).0;
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        let is_ready = || pairs(3) == 10 && tables().len() == 4;
        let quantiles = |mut times: Vec<Duration>| {
            times.sort();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            format!("p50 {:?}, p99 {:?}, most {:?}", at(50), at(99), at(100))
        };
        // Each domain is a user.
        let joined = |user: u32| {
            as_user(TRUSTED + 1 + user, || {
                let begin = Instant::now();
                let joined = Client::join(&socket(), &private).unwrap();
                (begin.elapsed(), joined)
            })
        };
        // From the stock.
        let mut joins = Vec::new();
        for user in 0..100 {
            wait_until("the stock is full", is_ready);
            joins.push(joined(user).0);
        }
        wait_until("all are gone", || counters().applications == 0);
        println!("joined: {}", quantiles(joins));
        // One after the other, so that each waits until its needs are made.
        let begin = Instant::now();
        let made: Vec<Duration> = (0..1_000).map(|user| joined(user).0).collect();
        wait_until("all are gone", || counters().applications == 0);
        wait_until("the surplus is taken away", is_ready);
        assert_eq!(counters().joined, 1_100);
        let whole = begin.elapsed();
        println!(
            "1,000 made one after the other: {}; made and killed in {:?} each",
            quantiles(made),
            whole / 1_000,
        );
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert_eq!(pairs(3), 0);
    }

    #[test]
    #[ignore = "a process of the other tests"]
    fn serve() {
        let port: u16 = std::env::var("TW_PORT").unwrap().parse().unwrap();
        drop_privileges(NOBODY);
        let stack = Stack::managed(&socket(), EmbeddedConfig::new("")).unwrap();
        let at = ([0, 0, 0, 0], port).into();
        let datagrams = tidewall::UdpSocket::bind(&stack, at).unwrap();
        let listener = tidewall::TcpListener::bind(&stack, at).unwrap();
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
