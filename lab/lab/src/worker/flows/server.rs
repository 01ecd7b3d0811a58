//! The server of bulk and objects, on either stack.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::sockopt::set_tcp_congestion;
use tidewall::{EmbeddedConfig, Stack, TapConfig};
use tidewall_service::linux_stream::{self, LinuxStream, LinuxStreams};
use tidewall_service::tidewall_stream::{TidewallStream, TidewallStreams};
use tidewall_service::{Event, Interest, Stream, StreamHost};

use super::super::service::until_input_ends;
use super::{CHUNK, Figures, FlowHost, FlowServer, REQUEST, Request, Transfer};
use crate::tcp;

/// The listener's token.
const LISTENER: u64 = u64::MAX;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 256;
/// Bytes that a connection may move before others have their turn.
const TURN: usize = 4 * CHUNK;
/// The longest sleep.
const LOOK: Duration = Duration::from_millis(100);

/// A connection that reports its figures.
pub(super) trait Measured: Stream {
    fn figures(&self) -> Figures;
}

impl Measured for LinuxStream {
    fn figures(&self) -> Figures {
        tcp::info(self).unwrap_or_default()
    }
}

impl Measured for TidewallStream {
    fn figures(&self) -> Figures {
        let Some(info) = self.get_ref().info() else {
            return Figures::default();
        };
        let mss = f64::from(info.send_mss.max(1));
        let threshold = match info.slow_start_threshold {
            // Infinity, as the kernel represents it.
            u32::MAX => f64::from(i32::MAX),
            bytes => f64::from(bytes) / mss,
        };
        [
            ("segments sent", f64::from(info.segments_sent)),
            ("retransmitted", f64::from(info.retransmissions)),
            ("timeouts", f64::from(info.timeouts)),
            ("fast recoveries", f64::from(info.fast_recoveries)),
            ("tail probes", f64::from(info.loss_probes)),
            ("undone", f64::from(info.recoveries_undone)),
            ("timeouts for nothing", f64::from(info.spurious_timeouts)),
            ("duplicates reported", f64::from(info.duplicates)),
            ("reordering seen", f64::from(info.reordering_seen)),
            ("out of order", f64::from(info.out_of_order)),
            ("window, segments", f64::from(info.congestion_window) / mss),
            ("threshold, segments", threshold),
            ("peer's window, segments", f64::from(info.send_window) / mss),
            ("pacing, Mbit/s", info.pacing_rate as f64 * 8.0 / 1e6),
            ("round trip, ms", info.round_trip.as_secs_f64() * 1e3),
            (
                "least round trip, ms",
                info.round_trip_min.as_secs_f64() * 1e3,
            ),
            (
                "timeout, ms",
                info.retransmission_timeout.as_secs_f64() * 1e3,
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Records of connections that have not been asked for yet.
pub(super) type Ledger = Arc<Mutex<Vec<Transfer>>>;

/// Serves until the standard input ends.
pub(super) fn run(job: &FlowServer) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let ledger = Ledger::default();
    answer(ledger.clone(), stop.clone());
    let address = SocketAddr::from(job.address);
    let write = job.write.unwrap_or(CHUNK).clamp(1, CHUNK);
    let stack = match &job.host {
        FlowHost::Linux { congestion } => {
            let host = LinuxStreams::new(linux_stream::Options::default())?;
            let listener = host.listen(address, BACKLOG)?;
            set_tcp_congestion(&listener, congestion)?;
            return serve(&host, &listener, &ledger, &stop, write);
        }
        FlowHost::Tidewall { interface, cpu } => Stack::embedded(
            EmbeddedConfig::new(interface)
                .receiver_cpu(*cpu)
                .control(false),
        )
        .with_context(|| format!("cannot start the stack on {interface}"))?,
        FlowHost::Tap { interface } => Stack::tap(TapConfig {
            name: interface.clone(),
            addresses: vec![address.ip()],
            ..TapConfig::default()
        })
        .with_context(|| format!("cannot start the stack on {interface}"))?,
    };
    for warning in stack.warnings() {
        eprintln!("{warning}");
    }
    let host = TidewallStreams::new(&stack)?;
    let listener = host.listen(address, BACKLOG)?;
    serve(&host, &listener, &ledger, &stop, write)
}

/// Answers the lab from a separate thread.
fn answer(ledger: Ledger, stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let answered = until_input_ends(|line| {
            if line == "transfers" {
                let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                println!("{}", serde_json::to_string(&std::mem::take(&mut *ledger))?);
            }
            Ok(())
        });
        if let Err(error) = answered {
            eprintln!("{error:#}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The state of a connection's request.
#[derive(Debug)]
enum Work {
    /// Only this many bytes of the request have arrived.
    Asking([u8; REQUEST], usize),
    /// Sends until this time; `None`: this many bytes.
    Sending { until: Option<Instant>, left: u64 },
    /// Receives; counts from the first bytes on, for this long.
    Receiving {
        time: Duration,
        begun: Option<Instant>,
    },
    /// Nothing left to do until the client closes.
    Idle,
}

struct Client<S> {
    stream: S,
    port: u16,
    work: Work,
    bytes: u64,
    /// It is watched for room, too.
    stuck: bool,
    /// Its record is in the ledger.
    reported: bool,
}

/// Serves until `stop` is set, with writes of this many bytes.
pub(super) fn serve<H: StreamHost>(
    host: &H,
    listener: &H::Listener,
    ledger: &Ledger,
    stop: &AtomicBool,
    write: usize,
) -> anyhow::Result<()>
where
    H::Stream: Measured,
{
    host.watch_listener(listener, LISTENER)?;
    println!("ready");
    let mut clients: HashMap<u64, Client<H::Stream>> = HashMap::new();
    let mut events: Vec<Event> = Vec::new();
    // Connections that had their turn with more to do.
    let mut unfinished: Vec<u64> = Vec::new();
    let mut buffer = vec![0x5a; CHUNK];
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let wait = match clients.values().filter_map(Client::deadline).min() {
            _ if !unfinished.is_empty() => Duration::ZERO,
            Some(deadline) => deadline.saturating_duration_since(now).min(LOOK),
            None => LOOK,
        };
        host.wait(&mut events, wait)?;
        let mut turns = std::mem::take(&mut unfinished);
        for event in &events {
            if event.token != LISTENER {
                turns.push(event.token);
                continue;
            }
            while let Some((stream, peer)) = host.accept(listener)? {
                host.watch(&stream, next, interest(false))?;
                clients.insert(next, Client::new(stream, peer));
                turns.push(next);
                next += 1;
            }
        }
        for token in turns {
            let Some(client) = clients.get_mut(&token) else {
                continue;
            };
            let stuck = client.stuck;
            let turned = client.turn(&mut buffer, write).and_then(|more| {
                if more {
                    unfinished.push(token);
                }
                if client.stuck != stuck {
                    host.rewatch(&client.stream, token, interest(client.stuck))?;
                }
                Ok(())
            });
            if turned.is_err() {
                client.tell(ledger);
                host.unwatch(&client.stream);
                clients.remove(&token);
            }
        }
        let now = Instant::now();
        for client in clients.values_mut() {
            if client.deadline().is_some_and(|deadline| deadline <= now) {
                client.tell(ledger);
                if matches!(client.work, Work::Sending { .. }) {
                    client.work = Work::Idle;
                }
            }
        }
    }
    Ok(())
}

fn interest(stuck: bool) -> Interest {
    Interest {
        readable: true,
        writable: stuck,
    }
}

impl<S: Measured> Client<S> {
    fn new(stream: S, peer: SocketAddr) -> Self {
        Client {
            stream,
            port: peer.port(),
            work: Work::Asking([0; REQUEST], 0),
            bytes: 0,
            stuck: false,
            reported: false,
        }
    }

    /// Returns the end of its time, unless that has been reported.
    fn deadline(&self) -> Option<Instant> {
        match &self.work {
            _ if self.reported => None,
            Work::Sending { until, .. } => *until,
            Work::Receiving { time, begun } => begun.map(|begun| begun + *time),
            Work::Asking(..) | Work::Idle => None,
        }
    }

    /// Puts its record into the ledger, once.
    fn tell(&mut self, ledger: &Ledger) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let time = match &self.work {
            Work::Receiving { time, .. } => *time,
            _ => Duration::ZERO,
        };
        let transfer = Transfer {
            port: self.port,
            bytes: self.bytes,
            nanoseconds: time.as_nanos() as u64,
            figures: self.stream.figures(),
        };
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.push(transfer);
    }

    /// Reads and writes while there are bytes to read, and room. Returns true if it used
    /// up its turn. An error means the end of the connection.
    fn turn(&mut self, buffer: &mut [u8], write: usize) -> io::Result<bool> {
        let mut moved = 0;
        while moved < TURN {
            let count = match self.step(buffer, write) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            moved += count.max(1);
        }
        Ok(true)
    }

    /// Reads once, or writes at most this many bytes.
    fn step(&mut self, buffer: &mut [u8], write: usize) -> io::Result<usize> {
        let now = Instant::now();
        match &mut self.work {
            Work::Asking(request, have) => {
                let room = request.get_mut(*have..).unwrap_or_default();
                let count = ended(self.stream.read(room)?)?;
                *have += count;
                if *have == REQUEST {
                    self.work = match Request::of(request) {
                        Some(Request::Fetch(ms)) => Work::Sending {
                            until: Some(now + Duration::from_millis(ms)),
                            left: u64::MAX,
                        },
                        Some(Request::Object(bytes)) => Work::Sending {
                            until: None,
                            left: bytes,
                        },
                        Some(Request::Give(ms)) => Work::Receiving {
                            time: Duration::from_millis(ms),
                            begun: None,
                        },
                        None => return Err(io::ErrorKind::InvalidData.into()),
                    };
                }
                Ok(count)
            }
            Work::Sending { left: 0, .. } => {
                self.work = Work::Idle;
                self.stuck = false;
                Ok(0)
            }
            Work::Sending { left, .. } => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX);
                let bytes = buffer.get(..length.min(write)).unwrap_or_default();
                match self.stream.write(bytes, false) {
                    Ok(count) => {
                        *left -= (count as u64).min(*left);
                        self.stuck = false;
                        Ok(count)
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.stuck = true;
                        // Only the end can be read, and it is an event.
                        match self.stream.read(buffer) {
                            Ok(count) => ended(count),
                            Err(error) => Err(error),
                        }
                    }
                    Err(error) => Err(error),
                }
            }
            Work::Receiving { time, begun } => {
                let count = ended(self.stream.read(buffer)?)?;
                let begun = *begun.get_or_insert(now);
                if now - begun <= *time {
                    self.bytes += count as u64;
                }
                Ok(count)
            }
            Work::Idle => {
                self.stuck = false;
                ended(self.stream.read(buffer)?)
            }
        }
    }
}

/// Treats an empty read as the end.
fn ended(count: usize) -> io::Result<usize> {
    match count {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}
