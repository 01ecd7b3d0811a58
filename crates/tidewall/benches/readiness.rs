//! `epoll_wait` and `read` of a ready socket, beside Linux's in the same run, with
//! no idle descriptors in the set and with 100,000.
//!
//! `cargo bench -p tidewall --bench readiness`. Each figure is the median of five
//! runs. Each run serves every active connection a number of times, with one event per call
//! and one read per event. Timing begins with data that the protocol has processed, on both
//! sides: Linux has processed it in softirq, while the peer sent. Tidewall's protocol runs
//! when the application waits, so a second figure of Tidewall includes it. Linux has no
//! equivalent of that figure.
//!
//! `-- --instructions` counts Tidewall's instructions instead, under valgrind, and
//! judges them against `benches/readiness_instructions.txt`; with `--keep` it writes
//! that.

#[path = "readiness/bed.rs"]
mod bed;
#[path = "readiness/counted.rs"]
mod counted;
#[path = "readiness/raw_linux.rs"]
mod raw_linux;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::epoll::{Event, EventData, EventFlags};

use bed::{Bed, NUMBERS_EACH};

/// Connections that are written to.
const ACTIVE: usize = 64;
/// Times that each is served in a run.
const ROUNDS: u32 = 200;
/// The bound.
const BOUND: f64 = 0.7;

/// Linux's side: loopback connections in one set.
struct Linux {
    set: OwnedFd,
    near: Vec<TcpStream>,
    peers: Vec<TcpStream>,
    _idle: Vec<(TcpStream, TcpStream, Vec<TcpStream>)>,
}

impl Linux {
    fn new(idle: usize) -> std::io::Result<Self> {
        let set = raw_linux::epoll_create()?;
        let pair = |listener: &TcpListener| {
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (peer, _) = listener.accept()?;
            near.set_nonblocking(true)?;
            peer.set_nodelay(true)?;
            raw_linux::watch(&set, near.as_raw_fd())?;
            Ok::<_, std::io::Error>((near, peer))
        };
        let mut listener = TcpListener::bind("127.0.0.1:0")?;
        let (mut near, mut peers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ACTIVE {
            let (one, other) = pair(&listener)?;
            near.push(one);
            peers.push(other);
        }
        for n in 0..idle / NUMBERS_EACH {
            // Ports of a pair of addresses and a service are not enough.
            if n % 10_000 == 9_999 {
                listener = TcpListener::bind("127.0.0.1:0")?;
            }
            let (one, other) = pair(&listener)?;
            let mut numbers = Vec::new();
            for _ in 1..NUMBERS_EACH {
                let number = one.try_clone()?;
                raw_linux::watch(&set, number.as_raw_fd())?;
                numbers.push(number);
            }
            others.push((one, other, numbers));
        }
        Ok(Linux {
            set,
            near,
            peers,
            _idle: others,
        })
    }

    fn send_all(&mut self) {
        for peer in &mut self.peers {
            peer.write_all(&[1; 64]).expect("room");
        }
    }

    fn serve_all(&self) {
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }];
        let mut buffer = [0; 256];
        for _ in 0..self.near.len() {
            let count = raw_linux::wait(&self.set, &mut events);
            assert_eq!(count.ok(), Some(1));
            let [event] = events;
            let read = raw_linux::read(event.data.u64() as i32, &mut buffer);
            assert_eq!(read.ok(), Some(64));
        }
    }
}

/// Nanoseconds for one wait and read, in each of five runs; their median.
fn median(mut run: impl FnMut() -> Duration) -> f64 {
    run();
    let mut each: Vec<f64> = (0..5)
        .map(|_| run().as_nanos() as f64 / f64::from(ROUNDS) / ACTIVE as f64)
        .collect();
    each.sort_by(f64::total_cmp);
    each[2]
}

fn timed(mut prepare: impl FnMut(), mut serve: impl FnMut()) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..ROUNDS {
        prepare();
        let begin = Instant::now();
        serve();
        time += begin.elapsed();
    }
    time
}

fn main() -> ExitCode {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/readiness_instructions.txt"
    );
    if let Some(code) = tidewall_bench_instructions::main(file, &counted::SCENARIOS) {
        return code;
    }
    match times() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn times() -> std::io::Result<()> {
    let limit = tidewall_sys::raise_open_files(300_000)? as usize;
    for idle in [0, 100_000] {
        // Fewer, where Linux allows no more: that is no disadvantage to it.
        let connections = limit.saturating_sub(1000) / (NUMBERS_EACH + 1);
        let linux_idle = idle.min(connections * NUMBERS_EACH);
        let linux = std::cell::RefCell::new(Linux::new(linux_idle)?);
        let theirs = median(|| {
            timed(
                || linux.borrow_mut().send_all(),
                || linux.borrow().serve_all(),
            )
        });
        drop(linux);
        let bed = std::cell::RefCell::new(Bed::new(ACTIVE, idle));
        let mut ours = [true, false].into_iter().map(|process| {
            median(|| {
                timed(
                    || bed.borrow_mut().send_all(process),
                    || bed.borrow().serve_all(),
                )
            })
        });
        let (ready, with_protocol) = (
            ours.next().unwrap_or(f64::NAN),
            ours.next().unwrap_or(f64::NAN),
        );
        let ratio = ready / theirs;
        let verdict = if ratio <= BOUND {
            ""
        } else {
            ", ABOVE THE BOUND"
        };
        println!(
            "epoll_wait + read: Linux, {linux_idle} idle, {theirs:.0} ns; Tidewall, {idle} idle, \
             {ready:.0} ns: {ratio:.3} (at most {BOUND}{verdict}); with the protocol \
             {with_protocol:.0} ns"
        );
    }
    Ok(())
}
