//! Circuits of applications without privileges: permanent ones, calls through one manager and
//! over a link between two, and what is left when somebody is killed.

mod support;

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use support::application::{Application, drop_privileges};
use support::*;
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::{Answer, Counters};
use tidewall_manager::view::View;
use tidewall_socket::{AtmListener, AtmSocket, Circuit, EmbeddedConfig, Nsap, Stack};

/// Of the host here and of the peer's, but for the selector.
const HERE: [u8; 20] = [
    0x47, 0, 5, 0x80, 0xff, 0xe1, 0, 0, 0, 0xf2, 0x1a, 0, 0, 0, 1, 0, 0, 0, 1, 0,
];
const THERE: [u8; 20] = [
    0x47, 0, 5, 0x80, 0xff, 0xe1, 0, 0, 0, 0xf2, 0x1a, 0, 0, 0, 1, 0, 0, 0, 2, 0,
];
/// Listener of [`serve`].
const SELECTOR: u8 = 7;
/// How often an exchange is repeated.
const ROUNDS: u32 = 50;

#[test]
fn permanent_circuits_are_those_that_are_granted() {
    run_with_peer("permanent_circuits_are_those_that_are_granted", 60);
}

#[test]
fn private_applications_of_one_manager_call_each_other() {
    run("private_applications_of_one_manager_call_each_other");
}

#[test]
fn a_manager_of_threads_does_the_same() {
    run("a_manager_of_threads_does_the_same");
}

#[test]
fn applications_call_each_other_over_a_link() {
    run_with_peer("applications_call_each_other_over_a_link", 120);
}

#[test]
fn calls_outlive_their_manager() {
    run_with_peer("calls_outlive_their_manager", 120);
}

#[test]
fn callers_killed_at_any_point_leave_nothing() {
    let limit = 60 + killed_callers() / 10;
    run_with_peer("callers_killed_at_any_point_leave_nothing", limit);
}

/// How many callers are killed: 10,000 take some minutes.
fn killed_callers() -> u32 {
    let text = std::env::var("TIDEWALL_KILLED_CALLERS").ok();
    text.map_or(60, |text| text.parse().expect("a number"))
}

fn number(of: [u8; 20], selector: u8) -> Nsap {
    let mut number = Nsap(of);
    number.0[19] = selector;
    number
}

/// The end of a link that a daemon has.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Here,
    There,
}

impl End {
    fn socket(self) -> PathBuf {
        match self {
            End::Here => socket(),
            End::There => {
                let mut path = directory().into_os_string();
                path.push(".peer");
                path.into()
            }
        }
    }

    fn number(self) -> [u8; 20] {
        match self {
            End::Here => HERE,
            End::There => THERE,
        }
    }

    /// A program, in the end's namespace.
    fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self {
            End::Here => Command::new(program),
            End::There => {
                let mut command = Command::new("nsenter");
                command.args([
                    "-t",
                    &std::env::var("TW_PEER").unwrap(),
                    "-n",
                    "unshare",
                    "-m",
                ]);
                // That of this namespace.
                let script = "mount -t sysfs tw-sys /sys; exec \"$0\" \"$@\"";
                command.args(["sh", "-c", script]).arg(program);
                command
            }
        }
    }

    fn daemon(self) -> Daemon {
        self.daemon_with(&[])
    }

    fn daemon_with(self, more: &[&str]) -> Daemon {
        let (interface, next_hop, side, pins) = match self {
            End::Here => (INTERFACE, "10.77.0.2", "network", pins()),
            End::There => ("tw-peer", "10.77.0.1", "user", directory().join("peer")),
        };
        let mut command = self.command(DAEMON);
        command
            .args(["--interface", interface, "--trust", &TRUSTED.to_string()])
            .args(["--private", "any", "--atm-next-hop", next_hop])
            .args(["--atm-number", &Nsap(self.number()).to_string()])
            .args(["--atm-side", side, "--atm-permanent", "0.100-101"])
            .args(more)
            .arg("--pins")
            .arg(pins)
            .arg("--socket")
            .arg(self.socket());
        let daemon = Daemon(command.spawn().unwrap());
        wait_until("it listens", || Connection::connect(&self.socket()).is_ok());
        daemon
    }

    /// A process that listens, or has a permanent circuit, and sends back what it receives.
    fn serve(self, user: u32) -> Application {
        self.serve_on(user, "")
    }

    /// A process that calls who serves at the other end, and waits.
    fn call(self, user: u32) -> Application {
        self.serve_on(user, "call")
    }

    fn serve_on(self, user: u32, circuit: &str) -> Application {
        let mut command = self.command(std::env::current_exe().unwrap());
        command
            .args(["--exact", "inside::serve", "--ignored", "--nocapture"])
            .env("TW_USER", user.to_string())
            .env("TW_CIRCUIT", circuit)
            .env("TW_END", if self == End::Here { "here" } else { "there" })
            .stdout(Stdio::piped());
        let child: Child = command.spawn().unwrap();
        Application::of(child)
    }

    fn counters(self) -> Counters {
        View::connect(&self.socket()).unwrap().counters().unwrap()
    }

    /// That nothing is left of calls.
    fn is_idle(self) -> bool {
        let counters = self.counters();
        counters.calls == 0 && counters.circuits == 0
    }
}

/// An application at an end.
fn stack(end: End) -> Stack {
    Stack::managed(&end.socket(), EmbeddedConfig::new("")).unwrap()
}

/// An application here, of a user without privileges.
fn stack_of(user: u32) -> Stack {
    as_user(user, || stack(End::Here))
}

fn echo(socket: &AtmSocket, text: &[u8]) -> io::Result<()> {
    socket.send(text)?;
    let mut buffer = [0; 2000];
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = socket.recv(&mut buffer)?;
    assert_eq!(&buffer[..length], text);
    Ok(())
}

/// Calls until it is accepted: whoever is called may just have begun.
fn call(stack: &Stack, to: Nsap) -> AtmSocket {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match AtmSocket::connect(stack, to) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

/// What the error of a call is.
fn errno<V>(result: io::Result<V>) -> Option<Errno> {
    Errno::from_io_error(&result.map(drop).unwrap_err())
}

/// Waits for the end of a call that somebody else ends; why.
fn ending(socket: &AtmSocket) -> Option<Errno> {
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    match socket.recv(&mut [0; 100]) {
        Ok(length) => {
            assert_eq!(length, 0);
            None
        }
        Err(error) => Errno::from_io_error(&error),
    }
}

fn exchange(stack: &Stack, to: Nsap, what: &str) {
    let began = Instant::now();
    for round in 0..ROUNDS {
        let socket = AtmSocket::connect(stack, to).unwrap();
        assert_eq!(socket.peer_number(), Some(to));
        echo(&socket, format!("call {round}").as_bytes()).unwrap();
    }
    println!(
        "{what}: {:?} a call with an exchange",
        began.elapsed() / ROUNDS
    );
    let began = Instant::now();
    for _ in 0..ROUNDS {
        drop(AtmSocket::connect(stack, to).unwrap());
    }
    println!("{what}: {:?} set-up and teardown", began.elapsed() / ROUNDS);
}

/// Sends back what comes, until the end.
fn send_back(socket: &AtmSocket) {
    let mut buffer = [0; 2000];
    while let Ok(length @ 1..) = socket.recv(&mut buffer) {
        if socket.send(&buffer[..length]).is_err() {
            return;
        }
    }
}

mod inside {
    use super::*;

    /// What [`End::serve`] starts.
    #[test]
    #[ignore = "started by the tests"]
    fn serve() {
        let end = match std::env::var("TW_END").as_deref() {
            Ok("here") => End::Here,
            _ => End::There,
        };
        drop_privileges(std::env::var("TW_USER").unwrap().parse().unwrap());
        let stack = stack(end);
        if std::env::var("TW_CIRCUIT").unwrap() == "call" {
            let of = if end == End::Here { THERE } else { HERE };
            let _socket = call(&stack, number(of, SELECTOR));
            println!("serves");
            std::thread::sleep(Duration::from_secs(600));
        }
        if let Ok(circuit) = std::env::var("TW_CIRCUIT").unwrap().parse::<Circuit>() {
            let socket = AtmSocket::bind(&stack, circuit).unwrap();
            println!("serves");
            send_back(&socket);
        }
        let own = number(end.number(), SELECTOR);
        let listener = AtmListener::bind(&stack, own, 64, Default::default()).unwrap();
        println!("serves");
        loop {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                // Its caller is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => panic!("{error}"),
            };
            std::thread::spawn(move || send_back(&socket));
        }
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn permanent_circuits_are_those_that_are_granted() {
        let (_here, _there) = (End::Here.daemon(), End::There.daemon());
        let circuit = Circuit { vpi: 0, vci: 100 };
        let other = Circuit { vpi: 0, vci: 200 };
        let mut server = End::There.serve_on(4711, "0.100");
        let stack = stack_of(TRUSTED);
        assert_eq!(errno(AtmSocket::bind(&stack, other)), Some(Errno::ACCESS));
        let socket = AtmSocket::bind(&stack, circuit).unwrap();
        assert_eq!(
            errno(AtmSocket::bind(&stack, circuit)),
            Some(Errno::ADDRINUSE)
        );
        for _ in 0..3 {
            echo(&socket, b"a payload").unwrap();
        }
        drop(socket);
        wait_until("it is nobody's here", || End::Here.is_idle());
        assert!(!End::There.is_idle());
        drop(AtmSocket::bind(&stack, circuit).unwrap());
        server.kill();
        wait_until("it is nobody's there", || End::There.is_idle());
        assert_eq!(trusted().owned_circuits().unwrap(), []);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn private_applications_of_one_manager_call_each_other() {
        call_each_other(End::Here.daemon(), "through one manager");
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_manager_of_threads_does_the_same() {
        let daemon = End::Here.daemon_with(&["--atm-threads"]);
        call_each_other(daemon, "through one of threads");
    }

    fn call_each_other(daemon: Daemon, what: &str) {
        let mut server = End::Here.serve(4711);
        let stack = stack_of(4712);
        let to = number(HERE, SELECTOR);
        drop(call(&stack, to));
        exchange(&stack, to, what);
        let refused = errno(AtmSocket::connect(&stack, number(HERE, 1)));
        assert_eq!(refused, Some(Errno::CONNREFUSED));
        let socket = call(&stack, to);
        echo(&socket, b"before").unwrap();
        server.kill();
        assert_eq!(ending(&socket), Some(Errno::CONNRESET));
        drop(socket);
        wait_until("nothing is left", || End::Here.is_idle());
        drop(stack);
        // It ends, with all of its threads.
        let mut daemon = daemon;
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&daemon.0),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        assert!(daemon.0.wait().unwrap().success());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn applications_call_each_other_over_a_link() {
        let (_here, _there) = (End::Here.daemon(), End::There.daemon());
        let mut server = End::There.serve(4711);
        let stack = stack_of(TRUSTED);
        let to = number(THERE, SELECTOR);
        drop(call(&stack, to));
        exchange(&stack, to, "over a link");
        let refused = errno(AtmSocket::connect(&stack, number(THERE, 1)));
        assert_eq!(refused, Some(Errno::CONNREFUSED));
        let socket = call(&stack, to);
        echo(&socket, b"before").unwrap();
        server.kill();
        assert_eq!(ending(&socket), Some(Errno::CONNRESET));
        // The other way round.
        drop((socket, stack));
        let mut server = End::Here.serve(4712);
        let mut caller = End::There.call(4711);
        wait_until("it has called", || End::Here.counters().calls == 1);
        caller.kill();
        wait_until("nothing is left", || {
            End::Here.is_idle() && End::There.is_idle()
        });
        server.kill();
    }

    /// Calls, again and again, each way in turn, as long as it lives.
    #[test]
    #[ignore = "started by the tests"]
    fn calls_until_it_is_killed() {
        drop_privileges(4713);
        let client = client();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let kept = notices.clone();
        let deliver = move |_, connection| kept.lock().unwrap().push(connection);
        client.attach_atm(Arc::new(deliver)).unwrap();
        let notices = notices.lock().unwrap().pop().unwrap();
        println!("calls");
        for round in 1.. {
            let of = if round % 2 == 0 { HERE } else { THERE };
            let (to, options) = (number(of, SELECTOR).into(), Default::default());
            client.atm_call(round, &to, None, &options).unwrap();
            // Until it is connected, or refused; released at once each third time.
            let is_over = |bytes: &[u8]| match Answer::parse(bytes).unwrap().1 {
                Answer::AtmConnected(of) => of.call == round,
                Answer::AtmEnded(of) => of.call == round,
                _ => false,
            };
            if round % 3 != 0 {
                while !is_over(&notices.receive().unwrap().unwrap().bytes) {}
            }
            client.atm_release(round, 16);
        }
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn callers_killed_at_any_point_leave_nothing() {
        let (here, there) = (End::Here.daemon(), End::There.daemon());
        let _servers = [End::Here.serve(4711), End::There.serve(4711)];
        let descriptors = |of: &Daemon| {
            let files = format!("/proc/{}/fd", of.0.id());
            std::fs::read_dir(files).unwrap().count()
        };
        let left = || {
            wait_until("nothing is left", || {
                End::Here.is_idle() && End::There.is_idle()
            });
            wait_until("it has cleared them away", || {
                End::Here.counters().applications == 1
            });
            let of = |daemon| (descriptors(daemon), memory(daemon.0.id(), "VmRSS"));
            [of(&here), of(&there)]
        };
        let (mut random, mut before) = (0x5eed_0018_u64, None);
        for caller in 0..killed_callers() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "inside::calls_until_it_is_killed", "--ignored"]);
            command.args(["--nocapture"]).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            while !lines.next().unwrap().unwrap().contains("calls") {}
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros(random % 8_000));
            child.kill().unwrap();
            child.wait().unwrap();
            if caller == 9 {
                before = Some(left());
            }
        }
        let (before, after) = (before.unwrap(), left());
        for ((descriptors, kib), (after, kib_after)) in before.into_iter().zip(after) {
            println!(
                "{} KiB more than after the first ten",
                kib_after as i64 - kib as i64
            );
            // What lies ready for applications comes and goes.
            assert!(
                after < descriptors + 8,
                "{after} descriptors, {descriptors} before"
            );
        }
        assert_eq!(trusted().owned_circuits().unwrap(), []);
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn calls_outlive_their_manager() {
        let (mut here, mut there) = (End::Here.daemon(), End::There.daemon());
        let _server = End::There.serve(4711);
        let stack = stack_of(TRUSTED);
        let to = number(THERE, SELECTOR);
        // Whoever asks a manager that was started anew is who presents the application.
        let of_user = || as_user(TRUSTED, || call(&stack, to));
        let socket = of_user();
        echo(&socket, b"before").unwrap();
        drop(here);
        echo(&socket, b"without a manager here").unwrap();
        here = End::Here.daemon();
        echo(&socket, b"with the next one").unwrap();
        let second = of_user();
        assert_ne!(socket.circuit(), second.circuit());
        drop(there);
        there = End::There.daemon();
        let third = of_user();
        for socket in [&socket, &second, &third] {
            echo(socket, b"with two next ones").unwrap();
        }
        assert_eq!(End::Here.counters().calls, 3);
        as_user(TRUSTED, || drop((socket, second, third)));
        wait_until("nothing is left", || {
            End::Here.is_idle() && End::There.is_idle()
        });
        drop((here, there));
        let nobody = as_user(TRUSTED, || errno(AtmSocket::connect(&stack, to)));
        assert_eq!(nobody, Some(Errno::UNATCH));
    }
}
