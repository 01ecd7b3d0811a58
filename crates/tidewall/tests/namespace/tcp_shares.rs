//! The effect of a blast on one connection on the others. Downloads are still under way
//! when the server has closed them. They run beside a blast on a flow in
//! TIME-WAIT, and while other connections hold all channels.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall::tcp::{Event, Interest};
use tidewall::{Selector, Stack, TcpListener, TcpStream};
use tidewall_protocol::tcp::{self, Checksum, FourTuple, Link, Outgoing};
use tidewall_wire::tcp::{Flags, Header};

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;
use super::tcp_attacks::link_address;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a download: they fit into a send buffer, so that the server can close
/// at once.
const DOWNLOAD: usize = 64 << 10;
/// Threads that download one file each per period: 20 MB/s in all, which a CPU with other
/// work can serve. There are many, since a SYN that the device's ring of 256 frames loses
/// delays one of them for a second.
const CLIENTS: usize = 32;
const PERIOD: Duration = Duration::from_millis(96);
const ROUNDS: usize = 3;
/// Frames a second that are sent on the flow under attack, if the link takes them.
const BLAST: u64 = 500_000;
/// Connections that want a channel each: more than there are.
const HOLDERS: usize = 3_900;

/// Keeps the calling thread to one processor, where there are two: what the senders
/// cost is not taken from the server.
fn pin(processor: usize) {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    shell(&format!("taskset -pc {} {thread}", processor % count));
}

/// How long each measurement lasts: for the figure, longer than a lost SYN takes to
/// be sent again.
fn window() -> Duration {
    Duration::from_millis(if figures() { 2_500 } else { 800 })
}

/// Serves `G` with a file and the end; any other byte with nothing.
fn serve(stack: &Stack, listener: &TcpListener, over: &AtomicBool) {
    pin(1);
    let selector = Selector::new(stack).unwrap();
    listener.set_nonblocking(true).unwrap();
    selector.add(listener, 0, Interest::READABLE).unwrap();
    let file = vec![7; DOWNLOAD];
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    let mut next = 1;
    let mut events: Vec<Event> = Vec::new();
    while !over.load(Ordering::Acquire) {
        let timeout = Some(Duration::from_millis(20));
        selector.wait(&mut events, timeout).unwrap();
        for event in &events {
            if event.token == 0 {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    selector.add(&stream, next, Interest::READABLE).unwrap();
                    streams.insert(next, stream);
                    next += 1;
                }
                continue;
            }
            let mut buffer = [0; 64];
            let Some(mut stream) = streams.get(&event.token) else {
                continue;
            };
            match stream.read(&mut buffer) {
                Ok(length) if buffer[..length].contains(&b'G') => {
                    match stream.write(&file) {
                        Ok(written) => assert_eq!(written, DOWNLOAD),
                        // A client that has given up ([`TIMEOUT`]) resets it.
                        Err(error) => assert!(
                            [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe]
                                .contains(&error.kind()),
                            "{error}"
                        ),
                    }
                    streams.remove(&event.token);
                }
                Ok(length) if length > 0 => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => drop(streams.remove(&event.token)),
            }
        }
    }
}

/// One download: its client's address, once the server's end has come.
fn download(server: SocketAddr) -> Option<SocketAddr> {
    let mut stream = KernelStream::connect_timeout(&server, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"G").ok()?;
    let mut got = Vec::with_capacity(DOWNLOAD);
    stream.read_to_end(&mut got).ok()?;
    (got.len() == DOWNLOAD).then(|| stream.local_addr().unwrap())
}

/// Threads in the peer's namespace that run while something is switched on.
struct Switch {
    on: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Switch {
    fn new(over: &Arc<AtomicBool>) -> Switch {
        Switch {
            on: Arc::default(),
            over: over.clone(),
            done: Arc::default(),
        }
    }

    /// Starts a thread: `act` once in `period`, until the test is over. Turns that it
    /// did not reach in the time `missed` are made up for.
    fn repeat(
        &self,
        period: Duration,
        missed: Duration,
        mut act: impl FnMut() -> u64 + Send + 'static,
    ) {
        let (on, over, done) = (self.on.clone(), self.over.clone(), self.done.clone());
        drop(spawn_in_peer(move || {
            pin(0);
            let mut due = Instant::now();
            while !over.load(Ordering::Acquire) {
                let now = Instant::now();
                if !on.load(Ordering::Acquire) || now < due {
                    let pause = due.saturating_duration_since(now);
                    std::thread::sleep(pause.clamp(Duration::from_micros(50), PERIOD));
                    continue;
                }
                done.fetch_add(act(), Ordering::Relaxed);
                due = (due + period).max(Instant::now().checked_sub(missed).unwrap_or(due));
            }
        }));
    }

    fn set(&self, on: bool) {
        self.on.store(on, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// Sends segments that look established on one flow, a hundred at a time.
fn blast(switch: &Switch, client: SocketAddr, server: SocketAddr) {
    let link = Link {
        source_mac: link_address(PEER),
        destination_mac: link_address(HERE),
        hop_limit: 64,
        checksum: Checksum::Software,
    };
    let outgoing = Outgoing {
        header: Header {
            source_port: client.port(),
            destination_port: server.port(),
            sequence: 77,
            acknowledgment: 77,
            flags: Flags::ACK,
            window: 1000,
            ..Header::default()
        },
        payload: [&[]; 2],
        segment_size: 0,
        traffic_class: 0,
    };
    let flow = FourTuple {
        local: client,
        remote: server,
    };
    let mut frame = vec![0; 128];
    let length = tcp::output(&mut frame, &link, &flow, &outgoing).unwrap();
    frame.truncate(length);
    let index = peer_index();
    let packets = in_peer(move || Packets::open(index).unwrap());
    let batch = 100;
    let period = Duration::from_secs(1) * batch / BLAST as u32;
    switch.repeat(period, period, move || {
        (0..batch)
            .map(|_| u64::from(packets.send(&frame).is_ok()))
            .sum()
    });
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Downloads a second in turn without and with what `attacks` do; the median of
/// the ratios.
fn compare(name: &str, downloads: &Switch, attacks: &[&Switch], stack: &Stack) -> f64 {
    let measure = |attacked: bool| {
        attacks.iter().for_each(|attack| attack.set(attacked));
        // Earlier downloads are over, and new ones have begun.
        std::thread::sleep(window() / 4);
        let (start, before) = (Instant::now(), downloads.count());
        let sent = attacks[0].count();
        std::thread::sleep(window());
        let seconds = start.elapsed().as_secs_f64();
        let sent = (attacks[0].count() - sent) as f64 / seconds;
        ((downloads.count() - before) as f64 / seconds, sent)
    };
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let (quiet, _) = measure(false);
        let (attacked, sent) = measure(true);
        println!("{name}: {quiet:.0} downloads/s, {attacked:.0} beside {sent:.0} frames/s");
        ratios.push(attacked / quiet);
    }
    attacks.iter().for_each(|attack| attack.set(false));
    let snapshot = stack.snapshot();
    println!(
        "{name}: ratio {:.2}; {:?} {:?}",
        median(ratios.clone()),
        snapshot.tcp,
        snapshot.queues[0].driver
    );
    median(ratios)
}

pub fn closing_downloads_go_on_beside_a_blast_on_another_flow() {
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    let server = at(HERE4, SERVICE);
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&stack, &listener, &over));
        let ended = over.clone();
        // However this ends, the others end.
        let _end = End(ended);
        // Its flow is in TIME-WAIT at the server now.
        let client = in_peer(move || download(server)).expect("a download");
        let downloads = Switch::new(&over);
        for _ in 0..CLIENTS {
            downloads.repeat(PERIOD, Duration::from_secs(2), move || {
                u64::from(download(server).is_some())
            });
        }
        downloads.set(true);
        let flood = Switch::new(&over);
        blast(&flood, client, server);
        let one = compare("TIME-WAIT", &downloads, &[&flood], &stack);
        // As many connections as there are channels, each with a byte a second.
        let holders = Switch::new(&over);
        let connect = move || KernelStream::connect_timeout(&server, TIMEOUT).unwrap();
        let mut held = in_peer(move || (0..HOLDERS).map(|_| connect()).collect::<Vec<_>>());
        let mut place = 0;
        holders.repeat(Duration::from_millis(10), Duration::ZERO, move || {
            for _ in 0..HOLDERS / 100 {
                place = (place + 1) % held.len();
                held[place].write_all(b"k").unwrap();
            }
            1
        });
        let both = compare("channels held", &downloads, &[&flood, &holders], &stack);
        let driver = stack.snapshot().queues[0].driver.clone();
        assert!(
            driver.get("over-share").is_some_and(|&count| count > 1000),
            "{driver:?}"
        );
        if figures() {
            assert!(one >= 0.9, "{one} beside a flow in TIME-WAIT");
            assert!(both >= 0.9, "{both} while others hold the channels");
        }
    });
}

/// Ends the test's threads.
struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
