//! A bridge between interfaces that acts on packets as a bad path does: delay, loss,
//! reordering, a bottleneck with its queue.
//!
//! It forwards whole frames between packet sockets and contains no kernel qdisc, so it
//! works without netem. A [`Link`](tidewall_simulator::link::Link) of the simulator
//! decides each direction in real time. A packet enters when the kernel received it from
//! the interface, and leaves at the first turn after it is due. ARP and neighbour
//! discovery pass at once. One thread does everything, because the measured processes
//! occupy both processors of a small machine. The [`Report`] states how far the bridge
//! lags behind and what it lost itself: a bridge that is the bottleneck would measure
//! itself.
//!
//! ```text
//!  left ──► packet socket ──► link ──► packet socket ──► right
//!       ◄────────────────── ◄ link ◄ ◄──────────────────
//! ```
//!
//! Segmentation and checksum offload must be off at the interfaces' other ends: a segment
//! of 64 KiB is not a packet on a wire. Such frames are rejected and counted, and so are
//! those with a VLAN tag.

mod frame;
mod paths;
pub(crate) mod port;
mod spec;

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::set_current_timer_slack;
use tidewall_sys::{set_fifo, thread_time};

use paths::Paths;
use port::{Arrival, BATCH, Port};
pub use spec::{DirectionReport, Impair, Report, Sharing, Side, Spec};

/// The longest sleep: how often the bridge checks whether to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Most frames delivered before the next check for arrivals.
const TURN: usize = 4 * BATCH;
/// Most hosts whose side is remembered; a switch forgets, this bridge floods.
const HOSTS_MAX: usize = 1024;
/// Most unused frames kept for reuse.
const FREE_MAX: usize = 4096;

/// How often, and at which interval, sending is retried when there is no room.
const TRIES: u32 = 20;
const NAP: Duration = Duration::from_micros(50);
/// The longest lag that is distinguished, ns.
const LAG_MAX: u64 = 10_000_000_000;

/// A frame on its way.
#[derive(Clone, Debug)]
struct Packet {
    frame: Vec<u8>,
    length: usize,
    /// The destination port; `None`: all of the other side.
    to: Option<usize>,
}

impl Packet {
    fn bytes(&self) -> &[u8] {
        self.frame.get(..self.length).unwrap_or_default()
    }
}

/// A bridge that is built and has not begun.
#[derive(Debug)]
pub struct Bridge {
    spec: Spec,
    ports: Vec<Port>,
    frame_max: usize,
    /// Nanoseconds by which deliveries are late.
    lag: Histogram<u64>,
}

impl Bridge {
    /// Opens the interfaces, which must be up. They are in promiscuous mode from then on,
    /// until this is dropped.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW and CAP_NET_ADMIN; ENODEV; InvalidInput for a
    /// side without an interface or an interface on both sides.
    pub fn open(spec: Spec) -> io::Result<Self> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if spec.right.is_empty() {
            return invalid("a bridge needs an interface on either side");
        }
        if spec.right.contains(&spec.left) {
            return invalid("an interface cannot be on both sides of a bridge");
        }
        let ports = std::iter::once(&spec.left)
            .chain(&spec.right)
            .map(|name| {
                Port::open(name)
                    .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
            })
            .collect::<io::Result<Vec<_>>>()?;
        let frame_max = ports.iter().map(Port::frame_max).max().unwrap_or(0);
        Ok(Bridge {
            spec,
            ports,
            frame_max,
            lag: Histogram::new_with_max(LAG_MAX, 3).map_err(io::Error::other)?,
        })
    }

    /// Forwards until `stop` is set or `time` is over.
    ///
    /// # Errors
    /// ENETDOWN and ENODEV if an interface disappears.
    pub fn run(self, time: Option<Duration>, stop: &AtomicBool) -> io::Result<Report> {
        // Ordinary threads may sleep 50 µs longer than requested.
        let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
        let real_time = set_fifo(1).is_ok();
        let begun = Instant::now();
        let used = thread_time();
        let mut forwarder = Forwarder::new(self);
        while !stop.load(Ordering::Relaxed) && time.is_none_or(|time| begun.elapsed() < time) {
            forwarder.turn()?;
        }
        let elapsed = begun.elapsed();
        let mut report = forwarder.report();
        report.real_time = real_time;
        report.seconds = elapsed.as_secs_f64();
        report.processor =
            thread_time().saturating_sub(used).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        Ok(report)
    }
}

/// A running bridge.
struct Forwarder {
    ports: Vec<Port>,
    paths: Paths<Packet>,
    begun: Instant,
    /// The port behind which each host was seen, by its Ethernet address.
    hosts: HashMap<[u8; 6], usize>,
    buffers: Vec<Vec<u8>>,
    arrivals: Vec<Arrival>,
    free: Vec<Vec<u8>>,
    frame_max: usize,
    /// Time of each port's last frame: times of arrival do not go backwards.
    last: Vec<Duration>,
    /// Packets to send on each port.
    leaving: Vec<Vec<Packet>>,
    /// Nanoseconds by which deliveries were late.
    lag: Histogram<u64>,
    passed: u64,
    refused: u64,
    failed: u64,
}

impl Forwarder {
    fn new(bridge: Bridge) -> Self {
        let Bridge {
            spec,
            ports,
            frame_max,
            lag,
        } = bridge;
        let impairments = [spec.from_left.impairment(), spec.from_right.impairment()];
        let count = ports.len();
        Forwarder {
            ports,
            paths: Paths::new(impairments, spec.sharing, spec.seed),
            begun: Instant::now(),
            hosts: HashMap::new(),
            buffers: (0..BATCH).map(|_| vec![0; frame_max]).collect(),
            arrivals: Vec::with_capacity(BATCH),
            free: Vec::new(),
            frame_max,
            last: vec![Duration::ZERO; count],
            leaving: (0..count).map(|_| Vec::with_capacity(BATCH)).collect(),
            lag,
            passed: 0,
            refused: 0,
            failed: 0,
        }
    }

    /// Delivers due packets, receives waiting ones, and sleeps if there were neither.
    fn turn(&mut self) -> io::Result<()> {
        let delivered = self.deliver()?;
        let mut taken = 0;
        for number in 0..self.ports.len() {
            taken += self.take(number)?;
        }
        if delivered + taken > 0 {
            return Ok(());
        }
        let now = self.begun.elapsed();
        let wait = match self.paths.next_arrival() {
            Some(at) => at.saturating_sub(now).min(LOOK),
            None => LOOK,
        };
        if wait.is_zero() {
            return Ok(());
        }
        port::wait(&self.ports, wait)
    }

    fn deliver(&mut self) -> io::Result<usize> {
        let mut count = 0;
        while count < TURN {
            let now = self.begun.elapsed();
            let Some((due, side, mut packet, marked)) = self.paths.receive(now) else {
                break;
            };
            count += 1;
            let late = now.saturating_sub(due).as_nanos();
            self.lag
                .saturating_record(u64::try_from(late).unwrap_or(u64::MAX));
            if marked {
                frame::mark(packet.frame.get_mut(..packet.length).unwrap_or_default());
            }
            self.leave(side, packet)?;
        }
        for port in 0..self.ports.len() {
            self.flush(port)?;
        }
        Ok(count)
    }

    /// Receives the frames that wait at a port; returns how many.
    fn take(&mut self, number: usize) -> io::Result<usize> {
        let Some(port) = self.ports.get_mut(number) else {
            return Ok(0);
        };
        let mut arrivals = std::mem::take(&mut self.arrivals);
        port.receive(&mut self.buffers, &mut arrivals)?;
        let now = self.begun.elapsed();
        for (place, arrival) in arrivals.iter().enumerate() {
            let Some(buffer) = self.buffers.get_mut(place) else {
                break;
            };
            if arrival.offloaded {
                self.refused += 1;
                continue;
            }
            let next = self.free.pop().unwrap_or_else(|| vec![0; self.frame_max]);
            let packet = Packet {
                frame: std::mem::replace(buffer, next),
                length: arrival.length,
                to: None,
            };
            let at = now.saturating_sub(arrival.age);
            self.enter(number, at, packet)?;
        }
        let count = arrivals.len();
        self.arrivals = arrivals;
        Ok(count)
    }

    /// Handles a frame that arrived on port `number`.
    fn enter(&mut self, number: usize, at: Duration, mut packet: Packet) -> io::Result<()> {
        let side = if number == 0 { Side::Left } else { Side::Right };
        let Some((destination, source)) = frame::addresses(packet.bytes()) else {
            self.refused += 1;
            return Ok(());
        };
        if self.hosts.len() < HOSTS_MAX {
            self.hosts.insert(source, number);
        }
        packet.to = match side {
            Side::Right => Some(0),
            Side::Left => self
                .hosts
                .get(&destination)
                .copied()
                .filter(|&port| port > 0),
        };
        let Some(last) = self.last.get_mut(number) else {
            return Ok(());
        };
        *last = at.max(*last);
        let at = *last;
        match frame::see(packet.bytes()) {
            Some(seen) => {
                self.paths.send(at, side, &seen, packet);
                Ok(())
            }
            None => {
                self.passed += 1;
                self.leave(side, packet)
            }
        }
    }

    /// Queues a packet from `side` for sending.
    fn leave(&mut self, side: Side, mut packet: Packet) -> io::Result<()> {
        match (packet.to, side) {
            (Some(port), _) => self.put(port, packet),
            (None, Side::Right) => self.put(0, packet),
            (None, Side::Left) => {
                for port in 1..self.ports.len() {
                    packet.to = Some(port);
                    self.put(port, packet.clone())?;
                }
                Ok(())
            }
        }
    }

    fn put(&mut self, port: usize, packet: Packet) -> io::Result<()> {
        let Some(leaving) = self.leaving.get_mut(port) else {
            return Ok(());
        };
        leaving.push(packet);
        if leaving.len() >= BATCH {
            self.flush(port)?;
        }
        Ok(())
    }

    /// Sends the queued packets of a port.
    fn flush(&mut self, number: usize) -> io::Result<()> {
        let (Some(port), Some(leaving)) =
            (self.ports.get_mut(number), self.leaving.get_mut(number))
        else {
            return Ok(());
        };
        let mut done = 0;
        let mut tries = 0;
        while let Some(rest) = leaving.get(done..).filter(|rest| !rest.is_empty()) {
            match port.send(rest.iter().map(Packet::bytes)) {
                Ok(sent) if sent > 0 => {
                    done += sent;
                    tries = 0;
                }
                Err(error) if !is_for_want_of_room(&error) => return Err(error),
                // The receiver may make room meanwhile.
                _ if tries < TRIES => {
                    tries += 1;
                    port::wait(&[], NAP)?;
                }
                _ => {
                    self.failed += 1;
                    done += 1;
                    tries = 0;
                }
            }
        }
        for packet in leaving.drain(..) {
            if self.free.len() < FREE_MAX {
                self.free.push(packet.frame);
            }
        }
        Ok(())
    }

    fn report(mut self) -> Report {
        let dropped = self.ports.iter_mut().map(Port::dropped).sum();
        let direction = |side| DirectionReport::of(&self.paths.counters(side));
        Report {
            from_left: direction(Side::Left),
            from_right: direction(Side::Right),
            flows: self.paths.flows() as u64,
            passed: self.passed,
            refused: self.refused,
            not_taken: dropped,
            not_sent: self.failed,
            lag_p50_ns: self.lag.value_at_quantile(0.5),
            lag_p99_ns: self.lag.value_at_quantile(0.99),
            lag_max_ns: self.lag.max(),
            ..Report::default()
        }
    }
}

/// Returns whether only this frame could not be sent; others may.
fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::EAGAIN | libc::EMSGSIZE | libc::EINTR)
    )
}
