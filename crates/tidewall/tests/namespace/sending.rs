//! Much at once to many: what receivers answer must not be lost meanwhile, and
//! what devices lose is counted.

use std::io::{Read, Write};
use std::net::{TcpListener as KernelListener, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::tcp::{Event, Interest};
use tidewall::{Selector, Stack, TcpListener, TcpStream};

use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A server that answers each byte with a long reply, and closes.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(stack: &Stack, reply: usize) -> Server {
        let listener = TcpListener::bind(stack, at(HERE4, SERVICE)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stack, ended) = (stack.clone(), stop.clone());
        let thread = std::thread::spawn(move || serve(&stack, &listener, reply, &ended));
        Server { stop, thread }
    }

    /// The same on the kernel's sockets.
    fn start_on_linux(reply: usize) -> Server {
        let listener = KernelListener::bind(at(HERE4, SERVICE)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let reply = &vec![7; reply];
            std::thread::scope(|scope| {
                for stream in listener.incoming() {
                    if ended.load(Ordering::Acquire) {
                        break;
                    }
                    scope.spawn(move || {
                        let mut stream = stream.unwrap();
                        stream.read_exact(&mut [0]).unwrap();
                        stream.write_all(reply).unwrap();
                    });
                }
            });
        });
        Server { stop, thread }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Release);
        // The kernel's waits for a connection.
        let _wake = KernelStream::connect(at(HERE4, SERVICE));
        self.thread.join().unwrap();
    }
}

fn serve(stack: &Stack, listener: &TcpListener, reply: usize, stop: &AtomicBool) {
    let selector = Selector::new(stack).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let mut streams: Vec<Option<(TcpStream, usize)>> = vec![None];
    let mut events: Vec<Event> = Vec::new();
    let reply = vec![7; reply];
    while !stop.load(Ordering::Acquire) {
        let step = Some(Duration::from_millis(50));
        selector.wait(&mut events, step).unwrap();
        for event in &events {
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    let token = streams.len() as u64;
                    selector.add(&stream, token, Interest::READABLE).unwrap();
                    streams.push(Some((stream, 0)));
                }
                continue;
            }
            let Some((stream, sent)) = &mut streams[event.token as usize] else {
                continue;
            };
            if event.readable && !matches!(stream.read(&mut [0; 8]), Ok(1)) {
                continue;
            }
            while let Ok(length) = stream.write(&reply[*sent..]) {
                *sent += length;
                if *sent == reply.len() {
                    streams[event.token as usize] = None;
                    break;
                }
            }
            if let Some((stream, _)) = &streams[event.token as usize] {
                let both = Interest::READABLE | Interest::WRITABLE;
                selector.modify(stream, event.token, both).unwrap();
            }
        }
    }
}

/// So many clients at once ask so often each, a connection a time. The longest that
/// one of them took, and the time for all.
fn ask(clients: usize, each: usize, length: usize) -> (Duration, Duration) {
    let one = move || {
        let mut longest = Duration::ZERO;
        let mut reply = Vec::with_capacity(length);
        for _ in 0..each {
            let start = Instant::now();
            let mut stream = KernelStream::connect_timeout(&at(HERE4, SERVICE), TIMEOUT).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(b"?").unwrap();
            reply.clear();
            stream.read_to_end(&mut reply).unwrap();
            assert!(reply.len() == length && reply.iter().all(|&byte| byte == 7));
            longest = longest.max(start.elapsed());
        }
        longest
    };
    let start = Instant::now();
    let clients: Vec<_> = (0..clients).map(|_| spawn_in_peer(one)).collect();
    let longest = clients.into_iter().map(|client| client.join().unwrap());
    (longest.max().unwrap_or_default(), start.elapsed())
}

/// A counter of the kernel's TCP in the calling thread's network namespace.
fn tcp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_else(|| panic!("no {name}"))
}

/// Frames that the peer's interface has sent, and those that it lost thereby.
fn sent_and_lost() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find(|line| line.contains(PEER)).unwrap();
    let counts: Vec<u64> = line
        .split_once(':')
        .unwrap()
        .1
        .split_whitespace()
        .map(|count| count.parse().unwrap())
        .collect();
    (counts[9], counts[11])
}

pub fn long_replies_to_many_clients_lose_no_answer() {
    let stack = stack();
    let server = Server::start(&stack, 100_000);
    let (longest, _) = ask(50, 20, 100_000);
    let (repeated, (sent, lost)) = in_peer(|| (tcp_counter("TCPSynRetrans"), sent_and_lost()));
    println!("longest {longest:?}, {repeated} SYNs repeated, {lost} of {sent} frames lost");
    server.finish();
    // A thread that is not run for long may miss some. It was 6 % when no thread
    // received while sending, and each lost SYN costs a second.
    assert!(lost * 1000 <= sent, "{lost} of {sent} frames lost");
    assert_eq!(repeated, 0, "SYNs repeated");
    let losses = stack.snapshot().losses.unwrap();
    assert_eq!((losses.receive_ring, losses.sent), (lost, 0));
}

/// A receiver with a ring of 256 frames, which a timer empties. Linux sends frames,
/// too, as on a wire: a whole segment of 64 KiB would take one place of the ring.
pub fn a_megabyte_to_many_is_sent_beside_linux() {
    const LENGTH: usize = 1_000_000;
    let (namespace, knobs) = (peer_namespace(), format!("/sys/class/net/{PEER}"));
    shell(&format!(
        "ethtool -K {HERE} tso off gso off
         ip netns exec {namespace} ethtool -K {PEER} gro on
         ip netns exec {namespace} sh -c 'echo 1000 > {knobs}/napi_defer_hard_irqs; \
             echo 500000 > {knobs}/gro_flush_timeout'"
    ));
    for clients in [1, 10, 50, 200] {
        let each = (100 / clients).max(1);
        let rate = |server: Server| {
            let (longest, took) = ask(clients, each, LENGTH);
            server.finish();
            println!(
                "{clients} clients: {:.0} MB/s, longest {longest:?}",
                (clients * each * LENGTH) as f64 * 1e-6 / took.as_secs_f64()
            );
        };
        print!("Linux, ");
        rate(Server::start_on_linux(LENGTH));
        let stack = stack();
        print!("Tidewall, ");
        rate(Server::start(&stack, LENGTH));
        println!("lost: {:?}", stack.snapshot().losses);
    }
}

/// A veth takes no frame that is longer than the receiver's MTU allows: the one loss
/// on a link like this that needs no load.
pub fn what_devices_lose_is_in_the_snapshot() {
    let (longer, shorter) = (2000, 1000);
    in_peer(move || shell(&format!("ip link set {PEER} mtu {longer}")));
    let stack = stack();
    let service = bind(&stack, at(HERE4, SERVICE));
    let peer = peer_socket(PEER4);
    let losses = || stack.snapshot().losses.unwrap();
    let before = losses();
    peer.send_to(&[1; 100], at(HERE4, SERVICE)).unwrap();
    let (_, from) = service.recv_from(&mut [0; 128]).unwrap();
    for _ in 0..3 {
        peer.send_to(&[1; 1900], at(HERE4, SERVICE)).unwrap();
    }
    assert_eq!(losses().receive_ring, before.receive_ring + 3);
    assert_eq!(losses().sent, before.sent);
    in_peer(move || shell(&format!("ip link set {PEER} mtu {shorter}")));
    for _ in 0..5 {
        service.send_to(&[1; 1400], from).unwrap();
    }
    assert_eq!(losses().sent, before.sent + 5);
}
