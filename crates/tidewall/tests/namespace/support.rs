//! Namespaces, veth pairs, peers.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as KernelSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::{EmbeddedConfig, Received, Stack, UdpSocket};
use tidewall_manager::restore::Restorer;

use super::raw_system;

/// The stack's end of the pair and the kernel peer's.
pub const HERE: &str = "tw-here";
pub const PEER: &str = "tw-peer";
pub const HERE4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const PEER4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const HERE6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Port of the service.
pub const SERVICE: u16 = 7000;
/// Ends the echo thread.
const QUIT: &[u8] = b"that is all, thank you";

/// A test that takes longer has hung: several times what the longest takes on a
/// machine that others load. `TIDEWALL_TEST_SECONDS` sets another limit.
const LIMIT: u64 = 180;
const PEER_VARIABLE: &str = "TW_SOCKET_TEST_PEER";

pub fn shell(script: &str) -> String {
    let output = Command::new("/bin/sh")
        .args(["-ec", script])
        .output()
        .expect("/bin/sh is there");
    assert!(
        output.status.success(),
        "{script}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One test at a time: they share two processors, and some measure time.
static TURN: Mutex<()> = Mutex::new(());

/// Makes two namespaces, joined by a veth pair of so many queues, and runs the
/// body of the same name in the first.
pub fn run_in_namespaces(name: &str, queues: u32) {
    if !tidewall_skip::is_root(name) {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let restorer = Restorer::start().unwrap();
    let id = std::process::id();
    let (here, peer) = (format!("tw-sock-{id}-a"), format!("tw-sock-{id}-b"));
    let undo: Vec<_> = [&here, &peer, &third(&peer)]
        .map(|namespace| {
            let remove = format!("ip netns del {namespace} 2>/dev/null || true");
            restorer.on_exit_run(&["/bin/sh", "-c", &remove]).unwrap()
        })
        .into();
    shell(&format!(
        "ip netns add {here}; ip netns add {peer}
         ip -n {here} link set lo up; ip -n {peer} link set lo up
         ip -n {here} link add {HERE} numrxqueues {queues} numtxqueues {queues} type veth \
            peer name {PEER} netns {peer} numrxqueues {queues} numtxqueues {queues}
         ip -n {here} addr add {HERE4}/24 dev {HERE}; ip -n {peer} addr add {PEER4}/24 dev {PEER}
         ip -n {here} addr add {HERE6}/64 dev {HERE} nodad
         ip -n {peer} addr add {PEER6}/64 dev {PEER} nodad
         ip -n {here} link set {HERE} up; ip -n {peer} link set {PEER} up"
    ));
    let mut child = Command::new("ip")
        .args(["netns", "exec", &here])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("inside::{name}"),
            "--ignored",
            "--nocapture",
        ])
        .env(PEER_VARIABLE, &peer)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let limit = std::env::var("TIDEWALL_TEST_SECONDS").map_or(LIMIT, |it| it.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(limit);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    for step in undo {
        step.now().unwrap();
    }
    match status {
        Some(status) => assert!(
            status.success(),
            "{name} failed inside its namespace: {status}"
        ),
        None => panic!("{name} hung"),
    }
}

/// Repeats what the stack sends something for until that leaves by its own queue:
/// until the neighbour is known, the kernel sends.
pub fn until_it_transmits(stack: &Stack, mut exchange: impl FnMut()) {
    let transmitted = || -> u64 {
        let queues = stack.snapshot().queues;
        queues.iter().map(|queue| queue.transmitted).sum()
    };
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let before = transmitted();
        exchange();
        if transmitted() > before {
            return;
        }
        assert!(Instant::now() < end, "the kernel still sends for the stack");
    }
}

/// Name of the peer's namespace.
pub fn peer_namespace() -> String {
    std::env::var(PEER_VARIABLE).expect("started by another test")
}

/// Name of a third namespace, which a test that needs it makes; it vanishes like
/// the others.
pub fn third_namespace() -> String {
    third(&peer_namespace())
}

fn third(peer: &str) -> String {
    format!("{}-c", peer.trim_end_matches("-b"))
}

/// Starts a thread in the peer's namespace.
pub fn spawn_in_peer<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let namespace = File::open(format!("/run/netns/{}", peer_namespace())).unwrap();
    std::thread::spawn(move || {
        raw_system::enter(&namespace).unwrap();
        run()
    })
}

/// Runs something in the peer's namespace.
pub fn in_peer<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_in_peer(run).join().unwrap()
}

/// A kernel socket of the peer, which gives up after two seconds.
pub fn peer_socket(address: impl Into<IpAddr>) -> KernelSocket {
    let address = SocketAddr::new(address.into(), 0);
    let socket = in_peer(move || KernelSocket::bind(address).unwrap());
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

pub fn config() -> EmbeddedConfig {
    EmbeddedConfig::new(HERE).control(false)
}

pub fn stack() -> Stack {
    stack_with(config())
}

pub fn stack_with(config: EmbeddedConfig) -> Stack {
    let stack = Stack::embedded(config).unwrap();
    assert_eq!(stack.warnings(), [] as [String; 0]);
    stack
}

pub fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// A socket that waits at most two seconds.
pub fn bind(stack: &Stack, address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(stack, address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

/// A blocking echo service in a thread of its own.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
    port: u16,
}

impl Echo {
    pub fn start(stack: &Stack, port: u16) -> Echo {
        Echo::start_at(stack, at(Ipv6Addr::UNSPECIFIED, port))
    }

    pub fn start_at(stack: &Stack, address: SocketAddr) -> Echo {
        let socket = UdpSocket::bind(stack, address).unwrap();
        let port = address.port();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut answered = 0;
            while !ended.load(Ordering::Acquire) {
                socket
                    .recv_batch(64, |received| {
                        if received.payload != QUIT {
                            let Received { local, source, .. } = received;
                            socket.queue_from(received.payload, local, source).unwrap();
                            answered += 1;
                        }
                    })
                    .unwrap();
                socket.flush().unwrap();
            }
            answered
        });
        Echo {
            stop,
            thread: Some(thread),
            port,
        }
    }

    /// Ends the service; how many datagrams it answered.
    pub fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Release);
        // By localhost, which needs no device.
        let socket = KernelSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket
            .send_to(QUIT, (Ipv4Addr::LOCALHOST, self.port))
            .unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

/// One question and its answer; sent again, up to three times, if it is lost.
pub fn ask(socket: &KernelSocket, to: SocketAddr, payload: &[u8]) {
    let mut buffer = vec![0; 66_000];
    for _ in 0..3 {
        socket.send_to(payload, to).unwrap();
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            assert_eq!(from, to);
            assert!(
                buffer[..length] == *payload,
                "{} bytes came back changed",
                payload.len()
            );
            return;
        }
    }
    panic!("no answer to {} bytes from {to}", payload.len());
}

/// One question that is not repeated.
pub fn ask_once(socket: &KernelSocket, to: SocketAddr, payload: &[u8]) -> bool {
    let mut buffer = vec![0; 66_000];
    socket.send_to(payload, to).unwrap();
    matches!(socket.recv_from(&mut buffer), Ok((length, _)) if buffer[..length] == *payload)
}

/// Returns the number of retransmitted segments, except tail loss probes. Such a probe
/// leaves when an acknowledgment is late (RFC 8985 §7), as on a busy machine.
pub fn repeated(info: &tidewall::tcp::Info) -> u32 {
    info.retransmissions.saturating_sub(info.loss_probes)
}

/// Waits, not for ever, for `done`: as long as a busy machine may need.
pub fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    done()
}

/// True where the environment has `TIDEWALL_FIGURES`: the machine has nothing else
/// to do, and rates are judged, not only printed.
pub fn figures() -> bool {
    std::env::var_os("TIDEWALL_FIGURES").is_some()
}

/// Something that goes on in the peer's namespace until it is finished.
pub struct Going<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Going<T> {
    /// Calls `step` again and again with what `start` made.
    pub fn in_peer(
        start: impl FnOnce() -> T + Send + 'static,
        step: impl Fn(&mut T) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn_in_peer(move || {
            let mut state = start();
            while !stopped.load(Ordering::Relaxed) {
                step(&mut state);
            }
            state
        });
        Going { stop, thread }
    }

    pub fn finish(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
