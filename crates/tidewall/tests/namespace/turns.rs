//! Turns of an event loop: when what they write leaves.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::tcp::Interest;
use tidewall::{Selector, Stack, TcpListener, TcpStream};

use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(30);
const CLIENTS: usize = 20;
/// The server's cost of each request.
const WORK: Duration = Duration::from_millis(5);
const ROUNDS: usize = 5;

/// A turn of the server: replies that it wrote, and how many of them their clients had
/// before the server waited again.
struct Turn {
    replies: usize,
    arrived: usize,
}

struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Turn>>,
}

impl Server {
    /// Answers each byte with a byte, after [`WORK`]. `arrived`: replies that clients have.
    fn start(stack: &Stack, arrived: Arc<AtomicUsize>) -> Server {
        let listener = TcpListener::bind(stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stack, stopped) = (stack.clone(), stop.clone());
        let thread = std::thread::spawn(move || serve(&stack, &listener, &stopped, &arrived));
        Server { stop, thread }
    }

    fn finish(self) -> Vec<Turn> {
        self.stop.store(true, Ordering::Release);
        let _wake = KernelStream::connect(at(Ipv4Addr::LOCALHOST, SERVICE));
        self.thread.join().unwrap()
    }
}

fn serve(
    stack: &Stack,
    listener: &TcpListener,
    stop: &AtomicBool,
    arrived: &AtomicUsize,
) -> Vec<Turn> {
    let selector = Selector::new(stack).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let mut streams: Vec<TcpStream> = Vec::new();
    let (mut events, mut turns) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Acquire) {
        selector.wait(&mut events, Some(TIMEOUT)).unwrap();
        let before = arrived.load(Ordering::SeqCst);
        let mut replies = 0;
        for event in &events {
            let Some(place) = event.token.checked_sub(1) else {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    let token = streams.len() as u64 + 1;
                    selector.add(&stream, token, Interest::READABLE).unwrap();
                    streams.push(stream);
                }
                continue;
            };
            let mut stream = &streams[place as usize];
            match stream.read(&mut [0]) {
                Ok(1) => {
                    let end = Instant::now() + WORK;
                    while Instant::now() < end {
                        std::hint::spin_loop();
                    }
                    stream.write_all(&[1]).unwrap();
                    replies += 1;
                }
                Ok(_) => selector.remove(&streams[place as usize]).unwrap(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        let arrived = arrived.load(Ordering::SeqCst) - before;
        turns.push(Turn { replies, arrived });
    }
    turns
}

/// All clients ask at once, several times. Returns their mean wait for a reply.
fn ask_together(streams: &[KernelStream], arrived: &AtomicUsize) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for mut stream in streams {
            stream.write_all(&[1]).unwrap();
        }
        let waits: Vec<Duration> = std::thread::scope(|scope| {
            let clients: Vec<_> = streams
                .iter()
                .map(|mut stream| {
                    scope.spawn(move || {
                        stream.read_exact(&mut [0]).unwrap();
                        arrived.fetch_add(1, Ordering::SeqCst);
                        began.elapsed()
                    })
                })
                .collect();
            let waits = clients.into_iter().map(|client| client.join().unwrap());
            waits.collect()
        });
        total += waits.into_iter().sum::<Duration>();
    }
    total / (ROUNDS * CLIENTS) as u32
}

pub fn what_a_slow_turn_writes_leaves_before_its_end() {
    let stack = stack();
    let arrived = Arc::new(AtomicUsize::new(0));
    let connect = |address: IpAddr| -> Vec<KernelStream> {
        let stream = |_| {
            let stream = KernelStream::connect_timeout(&at(address, SERVICE), TIMEOUT).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream
        };
        (0..CLIENTS).map(stream).collect()
    };

    // By loopback the same loop serves connections of the kernel.
    let server = Server::start(&stack, arrived.clone());
    let linux = ask_together(&connect(Ipv4Addr::LOCALHOST.into()), &arrived);
    server.finish();
    let server = Server::start(&stack, arrived.clone());
    let streams = in_peer(move || connect(HERE4.into()));
    let tidewall = ask_together(&streams, &arrived);
    let turns = server.finish();

    println!(
        "mean reply time, {CLIENTS} clients at once at {WORK:?} each: Linux {linux:.1?}, \
         Tidewall {tidewall:.1?}, ratio {:.3}",
        tidewall.as_secs_f64() / linux.as_secs_f64()
    );
    let long: Vec<&Turn> = turns.iter().filter(|turn| turn.replies >= 8).collect();
    assert!(!long.is_empty(), "requests came together");
    let replies: usize = long.iter().map(|turn| turn.replies).sum();
    let early: usize = long.iter().map(|turn| turn.arrived).sum();
    println!("{early} of {replies} replies had arrived before their turn was over");
    assert!(early * 2 > replies, "{early} of {replies} came in time");
}
