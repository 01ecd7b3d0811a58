//! Streams against the kernel's own TCP at the other end, both ways.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener as KernelListener,
    TcpStream as KernelStream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::tcp::{Event, Interest};
use tidewall::tuning::Architecture;
use tidewall::{Selector, Stack, TcpListener, TcpStream};

use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(5);

/// An echo service on one selector, in a thread of its own.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
    address: SocketAddr,
}

impl Server {
    fn start(stack: &Stack, address: SocketAddr) -> Server {
        let listener = TcpListener::bind(stack, address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, stack) = (stop.clone(), stack.clone());
        let thread = std::thread::Builder::new()
            .name("tw-server".to_owned())
            .spawn(move || serve(&stack, &listener, &ended))
            .unwrap();
        Server {
            stop,
            thread,
            address,
        }
    }

    /// Ends the service; how many connections it served.
    fn finish(self) -> usize {
        self.stop.store(true, Ordering::Release);
        // It waits for as long as nothing happens. If something happened just
        // now it has ended, and refuses.
        let _wake = KernelStream::connect(self.address);
        self.thread.join().unwrap()
    }
}

struct Client {
    stream: TcpStream,
    /// Bytes still to be sent back.
    rest: Vec<u8>,
    ended: bool,
}

fn serve(stack: &Stack, listener: &TcpListener, stop: &AtomicBool) -> usize {
    let selector = Selector::new(stack).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let mut served = 0;
    let mut events: Vec<Event> = Vec::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Acquire) {
        selector.wait(&mut events, None).unwrap();
        for event in &events {
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    served += 1;
                    selector
                        .add(&stream, served as u64, Interest::READABLE)
                        .unwrap();
                    let client = Client {
                        stream,
                        rest: Vec::new(),
                        ended: false,
                    };
                    clients.insert(served as u64, client);
                }
                continue;
            }
            let Some(client) = clients.get_mut(&event.token) else {
                continue;
            };
            if answer(client, &mut buffer).unwrap_or(true) {
                clients.remove(&event.token);
                continue;
            }
            let interest = if client.rest.is_empty() {
                Interest::READABLE
            } else {
                Interest::WRITABLE
            };
            selector
                .modify(&client.stream, event.token, interest)
                .unwrap();
        }
    }
    served
}

/// Sends back what came. True when the connection is over.
fn answer(client: &mut Client, buffer: &mut [u8]) -> io::Result<bool> {
    loop {
        while !client.rest.is_empty() {
            match (&client.stream).write(&client.rest) {
                Ok(length) => drop(client.rest.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if client.ended {
            return Ok(true);
        }
        match (&client.stream).read(buffer) {
            Ok(0) => client.ended = true,
            Ok(length) => client.rest.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn patient(stream: &KernelStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

/// Sends `bytes` and expects them back.
fn exchange(stream: &KernelStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(bytes).unwrap();
        });
        let mut back = vec![0; bytes.len()];
        let mut stream = stream;
        stream.read_exact(&mut back).unwrap();
        assert!(back == bytes, "{} bytes came back changed", bytes.len());
    });
}

pub fn kernel_clients_are_served_by_a_selector() {
    let stack = stack();
    let server = Server::start(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    in_peer(|| {
        for address in [IpAddr::from(HERE4), IpAddr::from(HERE6)] {
            let stream = KernelStream::connect_timeout(&at(address, SERVICE), TIMEOUT).unwrap();
            patient(&stream);
            for length in [1, 100, 1448, 1449, 20_000] {
                exchange(&stream, &pattern(length));
            }
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
        }
    });
    assert_eq!(server.finish(), 2);
}

/// An echo service of the kernel's in the peer; one connection, or several.
fn kernel_echo(address: SocketAddr, connections: usize) -> JoinHandle<()> {
    let listener = in_peer(move || KernelListener::bind(address).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let stream = stream.unwrap();
            patient(&stream);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(length) = (&stream).read(&mut buffer) {
                    if length == 0 || (&stream).write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    })
}

/// As [`exchange`], from a stream of the stack.
fn ask_for(stream: &TcpStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(bytes).unwrap();
        });
        let mut back = vec![0; bytes.len()];
        let mut stream = stream;
        stream.read_exact(&mut back).unwrap();
        assert!(back == bytes, "{} bytes came back changed", bytes.len());
    });
}

pub fn streams_reach_services_of_the_kernel() {
    let stack = stack();
    let echoes = [IpAddr::from(PEER4), IpAddr::from(PEER6)].map(|address| {
        let echo = kernel_echo(at(address, SERVICE), 1);
        let stream = TcpStream::connect_timeout(&stack, &at(address, SERVICE), TIMEOUT).unwrap();
        assert!(!stream.is_kernels());
        assert_eq!(stream.peer_addr().unwrap(), at(address, SERVICE));
        for length in [1, 1448, 1449, 20_000] {
            ask_for(&stream, &pattern(length));
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&stream).read(&mut [0]).unwrap(), 0);
        echo
    });
    for echo in echoes {
        echo.join().unwrap();
    }
    // A port without a listener.
    let refused = TcpStream::connect_timeout(&stack, &at(PEER4, SERVICE + 1), TIMEOUT);
    let error = refused.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    // A host that is not there.
    let start = Instant::now();
    let nobody = at(Ipv4Addr::new(10, 77, 0, 99), SERVICE);
    let silent = TcpStream::connect_timeout(&stack, &nobody, Duration::from_millis(200));
    let error = silent.map(drop).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(wait_until(|| stack.snapshot().tcp.states.is_empty() || {
        let states = stack.snapshot().tcp.states;
        states.keys().all(|state| state == "time-wait")
    }));
}

pub fn ten_megabytes_each_way_arrive_intact() {
    let stack = stack();
    let bytes = Arc::new(pattern(10 << 20));
    let server = Server::start(&stack, at(HERE4, SERVICE));
    let client = {
        let bytes = bytes.clone();
        spawn_in_peer(move || {
            let stream = KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
            patient(&stream);
            exchange(&stream, &bytes);
        })
    };
    client.join().unwrap();
    server.finish();
    let echo = kernel_echo(at(PEER4, SERVICE), 1);
    let stream = TcpStream::connect_timeout(&stack, &at(PEER4, SERVICE), TIMEOUT).unwrap();
    ask_for(&stream, &bytes);
    drop(stream);
    echo.join().unwrap();
}

pub fn localhost_and_the_network_meet_in_one_listener() {
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let from_here =
        std::thread::spawn(|| KernelStream::connect(at(Ipv4Addr::LOCALHOST, SERVICE)).unwrap());
    let (first, _) = listener.accept().unwrap();
    assert!(first.is_kernels());
    let from_peer =
        spawn_in_peer(|| KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap());
    let (second, address) = listener.accept().unwrap();
    assert!(!second.is_kernels());
    let clients = [from_here.join().unwrap(), from_peer.join().unwrap()];
    // As a dual-stack socket says it.
    let mapped = SocketAddr::new(PEER4.to_ipv6_mapped().into(), address.port());
    assert_eq!(address, mapped);
    let selector = Selector::new(&stack).unwrap();
    selector.add(&first, 1, Interest::READABLE).unwrap();
    selector.add(&second, 2, Interest::READABLE).unwrap();
    let mut events = Vec::new();
    for (client, token) in clients.iter().zip(1..) {
        (&mut &*client).write_all(b"hello").unwrap();
        selector.wait(&mut events, Some(TIMEOUT)).unwrap();
        let tokens: Vec<u64> = events.iter().map(|event| event.token).collect();
        assert_eq!(tokens, [token]);
        let stream = [&first, &second][token as usize - 1];
        let mut buffer = [0; 8];
        let mut reader = stream;
        assert_eq!(reader.read(&mut buffer).unwrap(), 5);
        assert_eq!(selector.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    }
    // A stream to a service of this host is a kernel connection.
    let own = TcpStream::connect(&stack, at(Ipv4Addr::LOCALHOST, SERVICE)).unwrap();
    assert!(own.is_kernels());
    let counters = stack.snapshot().tcp.counters;
    assert_eq!(
        (counters["accepted"], counters["accepted-by-kernel"]),
        (1, 1)
    );
}

pub fn a_tcp_port_has_one_owner_on_the_host() {
    let stack = stack();
    let in_use = |error: io::Error| error.raw_os_error() == Some(libc::EADDRINUSE);
    let theirs = KernelListener::bind(at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    let bind = |address| TcpListener::bind(&stack, address).map(drop);
    assert!(in_use(
        bind(at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap_err()
    ));
    assert!(in_use(bind(at(HERE4, SERVICE)).unwrap_err()));
    drop(theirs);
    let ours = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    assert!(in_use(bind(at(HERE4, SERVICE)).unwrap_err()));
    let kernel = |address| KernelListener::bind(address).map(drop);
    assert!(in_use(kernel(at(HERE4, SERVICE)).unwrap_err()));
    let error = bind(at(PEER4, SERVICE)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    drop(ours);
    kernel(at(HERE4, SERVICE)).unwrap();
    // Without a listener the kernel refuses.
    let refused = in_peer(|| KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

pub fn resets_are_heard_both_ways() {
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let connect = || {
        let client = spawn_in_peer(|| {
            let stream = KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
            patient(&stream);
            stream
        });
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        (client.join().unwrap(), server)
    };
    // Closed with data unread, the kernel resets.
    let (client, server) = connect();
    (&server).write_all(b"unread").unwrap();
    client.peek(&mut [0; 8]).unwrap();
    drop(client);
    let error = (&server).read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // And so do we, with a linger time of zero.
    let (client, server) = connect();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    let error = (&client).read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(wait_until(|| stack.snapshot().tcp.states.is_empty()));
}

pub fn a_nonblocking_connect_ends_in_the_selector() {
    let stack = stack();
    let echo = kernel_echo(at(PEER4, SERVICE), 1);
    let selector = Selector::new(&stack).unwrap();
    let mut events = Vec::new();
    let mut outcome = |port: u16| {
        let stream = TcpStream::connect_nonblocking(&stack, at(PEER4, port)).unwrap();
        selector
            .add(&stream, port.into(), Interest::WRITABLE)
            .unwrap();
        assert_eq!(selector.wait(&mut events, Some(TIMEOUT)).unwrap(), 1);
        assert!(events[0].writable && events[0].token == u64::from(port));
        let error = stream.take_error().unwrap();
        error.map(|error| error.kind())
    };
    assert_eq!(outcome(SERVICE), None);
    assert_eq!(outcome(SERVICE + 1), Some(ErrorKind::ConnectionRefused));
    echo.join().unwrap();
}

/// Times that a thread of this process gave its processor up, by name.
pub(super) fn switches(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| task.unwrap().path())
        .filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .map(|task| {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"));
            let count = line.and_then(|line| line.split_whitespace().nth(1));
            count.unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

pub fn idle_connections_wake_nobody() {
    let stack = stack();
    let server = Server::start(&stack, at(HERE4, SERVICE));
    let clients = in_peer(|| {
        (0..50)
            .map(|_| {
                let stream = KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
                patient(&stream);
                exchange(&stream, b"hello");
                stream
            })
            .collect::<Vec<_>>()
    });
    std::thread::sleep(Duration::from_millis(500));
    // The helper and the server.
    let names = ["tidewall-helper", "tw-server"];
    let before = names.map(switches);
    std::thread::sleep(Duration::from_secs(1));
    let wakes: Vec<u64> = names
        .into_iter()
        .zip(before)
        .map(|(name, before)| switches(name) - before)
        .collect();
    assert!(
        wakes.iter().sum::<u64>() <= 5,
        "{wakes:?} wake-ups in a second"
    );
    drop(clients);
    assert_eq!(server.finish(), 50);
}

/// The process that is killed in `a_killed_server_leaves_nothing_behind`.
pub fn serve_until_killed() {
    let stack = stack();
    let server = Server::start(&stack, at(HERE4, SERVICE));
    println!("\nready");
    let _ = io::stdin().read(&mut [0]);
    server.finish();
}

pub fn a_killed_server_leaves_nothing_behind() {
    use std::io::{BufRead, BufReader};
    for _ in 0..2 {
        let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server", "--ignored", "--nocapture"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "the owner did not start"
        );
        let connect = || KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
        let client = in_peer(connect);
        patient(&client);
        exchange(&client, &pattern(5000));
        owner.kill().unwrap();
        owner.wait().unwrap();
        // The kernel knows nothing of the connection and says so.
        (&client).write_all(b"still there?").unwrap();
        let error = (&client).read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let next = stack();
        let server = Server::start(&next, at(HERE4, SERVICE));
        let client = in_peer(connect);
        patient(&client);
        exchange(&client, &pattern(5000));
        drop(client);
        assert_eq!(server.finish(), 1);
        drop(next);
        assert!(
            wait_until(|| !shell(&format!("ip link show {HERE}")).contains("xdp")),
            "the program is still attached"
        );
    }
}

pub fn all_architectures_carry_streams() {
    for architecture in Architecture::ALL {
        println!("{architecture}");
        let stack = stack_with(config().architecture(architecture));
        let server = Server::start(&stack, at(HERE4, SERVICE));
        in_peer(|| {
            let stream = KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
            patient(&stream);
            for length in [1, 20_000, 300_000] {
                exchange(&stream, &pattern(length));
            }
        });
        let echo = kernel_echo(at(PEER4, SERVICE), 1);
        let stream = TcpStream::connect_timeout(&stack, &at(PEER4, SERVICE), TIMEOUT).unwrap();
        ask_for(&stream, &pattern(20_000));
        drop(stream);
        echo.join().unwrap();
        assert_eq!(server.finish(), 1, "{architecture}");
    }
}
