//! The two ends of a link: a daemon at each, and applications of them.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tidewall::{AtmListener, AtmSocket, Circuit, EmbeddedConfig, Nsap, Stack};
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::Counters;
use tidewall_manager::view::View;

use tidewall_wire::atm::pseudowire::Label;

use crate::raw_signals::{Thread, handle};
use crate::support::application::{Application, drop_privileges};
use crate::support::*;

/// The number of the host here and that of the peer, without the selector.
pub const HERE: [u8; 20] = [
    0x47, 0, 5, 0x80, 0xff, 0xe1, 0, 0, 0, 0xf2, 0x1a, 0, 0, 0, 1, 0, 0, 0, 1, 0,
];
pub const THERE: [u8; 20] = [
    0x47, 0, 5, 0x80, 0xff, 0xe1, 0, 0, 0, 0xf2, 0x1a, 0, 0, 0, 1, 0, 0, 0, 2, 0,
];
/// Listener of [`serve`].
pub const SELECTOR: u8 = 7;
/// How often an exchange is repeated.
pub const ROUNDS: u32 = 50;

pub fn number(of: [u8; 20], selector: u8) -> Nsap {
    let mut number = Nsap(of);
    number.0[19] = selector;
    number
}

/// The end of a link that a daemon has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Here,
    There,
}

impl End {
    pub fn socket(self) -> PathBuf {
        match self {
            End::Here => socket(),
            End::There => {
                let mut path = directory().into_os_string();
                path.push(".peer");
                path.into()
            }
        }
    }

    fn pins(self) -> PathBuf {
        match self {
            End::Here => pins(),
            End::There => directory().join("peer"),
        }
    }

    pub fn number(self) -> [u8; 20] {
        match self {
            End::Here => HERE,
            End::There => THERE,
        }
    }

    /// Returns a program, in the end's namespace.
    pub fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
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
                // The sysfs of this namespace.
                let script = "mount -t sysfs tw-sys /sys; exec \"$0\" \"$@\"";
                command.args(["sh", "-c", script]).arg(program);
                command
            }
        }
    }

    pub fn daemon(self) -> Daemon {
        self.daemon_with(&[])
    }

    pub fn daemon_with(self, more: &[&str]) -> Daemon {
        let next_hop = match self {
            End::Here => "10.77.0.2",
            End::There => "10.77.0.1",
        };
        self.daemon_to(next_hop, more)
    }

    /// Starts a daemon whose circuits lead there.
    pub fn daemon_to(self, next_hop: &str, more: &[&str]) -> Daemon {
        let (interface, side) = match self {
            End::Here => (INTERFACE, "network"),
            End::There => ("tw-peer", "user"),
        };
        let mut command = self.command(DAEMON);
        command
            .args(["--interface", interface, "--trust", &TRUSTED.to_string()])
            .args([
                "--private",
                "any",
                "--ports",
                "1-65535",
                "--atm-next-hop",
                next_hop,
            ])
            .args(["--atm-number", &Nsap(self.number()).to_string()])
            .args(["--atm-side", side, "--atm-permanent", "0.100-101"])
            .args(more)
            .arg("--pins")
            .arg(self.pins())
            .arg("--socket")
            .arg(self.socket());
        let daemon = Daemon(command.spawn().unwrap());
        wait_until("it listens", || Connection::connect(&self.socket()).is_ok());
        daemon
    }

    /// Starts a process that listens, or has a permanent circuit, and sends back what it
    /// receives.
    pub fn serve(self, user: u32) -> Application {
        self.serve_on(user, "")
    }

    /// Starts a process that calls the server at the other end, and waits.
    pub fn call(self, user: u32) -> Application {
        self.serve_on(user, "call")
    }

    pub fn serve_on(self, user: u32, circuit: &str) -> Application {
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

    pub fn counters(self) -> Counters {
        View::connect(&self.socket()).unwrap().counters().unwrap()
    }

    /// Returns whether nothing is left of calls.
    pub fn is_idle(self) -> bool {
        let counters = self.counters();
        counters.calls == 0 && counters.circuits == 0
    }

    /// Returns the circuits of applications, from the driver program's table.
    pub fn owned_circuits(self) -> Vec<(Label, u16)> {
        trusted_of(&self.pins()).owned_circuits()
    }
}

/// Opens an application at an end.
pub fn stack(end: End) -> Stack {
    Stack::managed(&end.socket(), EmbeddedConfig::new("")).unwrap()
}

/// Opens an application here, of an unprivileged user.
pub fn stack_of(user: u32) -> Stack {
    as_user(user, || stack(End::Here))
}

pub fn echo(socket: &AtmSocket, text: &[u8]) -> io::Result<()> {
    socket.send(text)?;
    let mut buffer = [0; 2000];
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = socket.recv(&mut buffer)?;
    assert_eq!(&buffer[..length], text);
    Ok(())
}

/// Calls until the call is accepted: the called end may just have begun.
pub fn call(stack: &Stack, to: Nsap) -> AtmSocket {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match AtmSocket::connect(stack, to) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

/// Returns the errno of a call's error.
pub fn errno<V>(result: io::Result<V>) -> Option<Errno> {
    Errno::from_io_error(&result.map(drop).unwrap_err())
}

/// Waits until the other end ends the call; returns the reason.
pub fn ending(socket: &AtmSocket) -> Option<Errno> {
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

pub fn exchange(stack: &Stack, to: Nsap, what: &str) {
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

/// Ends [`send_back`].
pub const CLOSE: &[u8] = b"close";

/// Sends received payloads back, until the end.
pub fn send_back(socket: &AtmSocket) {
    let mut buffer = [0; 2000];
    while let Ok(length @ 1..) = socket.recv(&mut buffer) {
        if buffer[..length] == *CLOSE || socket.send(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// The process that [`End::serve`] starts.
pub fn serve() {
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

/// Returns the result of a waiting call when signals arrive once it `waits`.
pub fn interrupted<V: Send>(call: impl FnOnce() -> V + Send, waits: impl FnMut() -> bool) -> V {
    let (send, receive) = channel();
    let (done, over) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let (done, over) = (&done, &over);
        let thread = scope.spawn(move || {
            send.send(Thread::current()).unwrap();
            let result = call();
            done.store(true, Ordering::SeqCst);
            // It must live while it is interrupted.
            over.wait();
            result
        });
        let sleeper = receive.recv().unwrap();
        wait_until("it waits", waits);
        while !done.load(Ordering::SeqCst) {
            // A signal between two calls interrupts none of them.
            std::thread::sleep(Duration::from_millis(2));
            sleeper.interrupt(INTERRUPTS);
        }
        over.wait();
        thread.join().unwrap()
    })
}

/// The signal of [`interrupted`]. System calls that are restarted after other signals are
/// restarted after this one.
pub const INTERRUPTS: i32 = libc::SIGUSR1;

/// Installs a handler for it.
pub fn handle_signals() {
    handle(INTERRUPTS, libc::SA_RESTART);
}
