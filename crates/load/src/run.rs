//! One load on the calling thread: bursts when they are due, replies in
//! between, sleep when there is time for it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::exchange::Exchange;
use crate::neighbour::{self, counters};
use crate::pacer::{Pacer, Step, default_burst};
use crate::raw_socket::{prefer_busy_poll, wait_readable};
use crate::raw_thread::ThreadSettings;
use crate::report::{
    BlastCounts, BlastReport, InterfaceCounters, Latency, LoadReport, Phase, PingCounts,
    PingReport, Progress,
};
use crate::sender::{self, Sender};
use crate::spec::{BlastSpec, LoadSpec, PingSpec, RateStep, SenderKind, Wait};

/// Shortest gap that is slept through, ns. A sleep costs a wake-up of some
/// microseconds and two context switches; shorter gaps are spun through.
const SLEEP_MIN: u64 = 60_000;
/// Time between two calls of the progress function, unless asked for.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Longest round trip that the histogram tells apart, ns: the longest timeout.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Replies taken between two looks at the schedule.
const REPLIES_MAX: usize = 64;

/// Runs a load to its end on the calling thread, in its network namespace, and
/// reports what it did. `progress` is called about every 200 ms.
///
/// # Errors
/// `InvalidInput` for a specification out of range; `PermissionDenied` for an
/// interface that may not be blasted through, or missing privileges; what the
/// look-up of the destination and the sending report, in words that say what
/// to do.
pub fn run(spec: &LoadSpec, progress: impl FnMut(Progress)) -> io::Result<LoadReport> {
    run_until(spec, &AtomicBool::new(false), progress)
}

/// [`run()`], ended early when `stop` becomes true (seen within 200 ms); the
/// report then covers what was done until that time.
///
/// # Errors
/// As [`run()`].
pub fn run_until(
    spec: &LoadSpec,
    stop: &AtomicBool,
    progress: impl FnMut(Progress),
) -> io::Result<LoadReport> {
    run_with_interval(spec, stop, PROGRESS_INTERVAL, progress)
}

/// [`run_until`], with `progress` called every `interval` (at least a
/// millisecond): its time is taken from the load's.
///
/// # Errors
/// As [`run()`].
pub fn run_with_interval(
    spec: &LoadSpec,
    stop: &AtomicBool,
    interval: Duration,
    mut progress: impl FnMut(Progress),
) -> io::Result<LoadReport> {
    spec.check()?;
    let interval = nanoseconds(interval.max(Duration::from_millis(1)));
    let mut blast = spec
        .blast
        .as_ref()
        .map(|blast| Blast::open(blast, spec.ping.is_some()))
        .transpose()?;
    let mut ping = spec.ping.as_ref().map(Ping::open).transpose()?;
    // After all the opening, whose threads and programs need not be bound.
    let _settings = ThreadSettings::apply(spec.cpu)?;

    let clock = Instant::now();
    let now = || elapsed(&clock);
    let measure_at = nanoseconds(spec.warm_up);
    let end = measure_at.saturating_add(nanoseconds(spec.duration));
    if let Some(blast) = &mut blast {
        blast.schedule(end);
    }
    let mut progress_at = interval;
    let mut last_progress = 0;
    // Set when measuring begins.
    let mut begun = None;
    let mut stopped = false;

    loop {
        let time = now();
        if begun.is_none() && time >= measure_at {
            begun = Some(time);
            if let Some(blast) = &mut blast {
                blast.mark = blast.counts();
            }
            if let Some(ping) = &mut ping {
                ping.mark = ping.exchange.counts();
                ping.latency.reset();
            }
        }
        let mut next = progress_at;
        let mut busy = false;
        let mut blasting = false;
        if let Some(blast) = &mut blast {
            match blast.step(time)? {
                Step::Send(_) => (busy, blasting) = (true, true),
                Step::Wait(until) => (next, blasting) = (next.min(until), true),
                Step::Finished => {}
            }
        }
        if let Some(ping) = &mut ping
            && time < end
        {
            busy |= ping.poll(now)? | (ping.wait == Wait::Spin);
            next = next.min(ping.exchange.deadline()).min(end);
        }
        let pinging = ping.is_some() && time < end;

        if time >= progress_at {
            let blast_counts = blast.as_mut().map(Blast::since_progress);
            let ping_counts = ping.as_mut().map(Ping::since_progress);
            progress(Progress {
                elapsed: Duration::from_nanos(time),
                interval: Duration::from_nanos(time - last_progress),
                phase: if begun.is_some() {
                    Phase::Measuring
                } else {
                    Phase::WarmUp
                },
                blast: blast_counts,
                ping: ping_counts.map(|(counts, _)| counts),
                latency: ping_counts.and_then(|(_, latency)| latency),
            });
            last_progress = time;
            progress_at = now() + interval;
            stopped = stop.load(Ordering::Relaxed);
        }
        if stopped || !(blasting || pinging) {
            break;
        }
        if !busy {
            if begun.is_none() {
                next = next.min(measure_at);
            }
            idle(
                next.saturating_sub(now()),
                ping.as_ref().filter(|_| pinging),
            )?;
        }
    }

    // A run that ended in the warm-up has measured nothing.
    let time = now();
    let duration = Duration::from_nanos(begun.map_or(0, |begun| time - begun));
    Ok(LoadReport {
        blast: blast.map(|blast| blast.report(begun.is_some(), duration)),
        ping: ping.map(|ping| ping.report(begun.is_some(), duration)),
        stopped,
    })
}

/// Lets `gap` nanoseconds pass, or less: sleeping if that is long enough, and
/// then only until a reply comes.
fn idle(gap: u64, ping: Option<&Ping>) -> io::Result<()> {
    let time = Duration::from_nanos(gap);
    match ping {
        Some(ping) if gap >= SLEEP_MIN => return wait_readable(ping.socket.as_fd(), time),
        None if gap >= SLEEP_MIN => thread::sleep(time),
        _ => std::hint::spin_loop(),
    }
    Ok(())
}

fn elapsed(clock: &Instant) -> u64 {
    nanoseconds(clock.elapsed())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn per_second(count: u64, duration: Duration) -> f64 {
    match duration.is_zero() {
        true => 0.0,
        false => count as f64 / duration.as_secs_f64(),
    }
}

/// The running blast.
struct Blast {
    kind: SenderKind,
    interface: String,
    rate: Option<u64>,
    packets: Option<u64>,
    burst: u32,
    /// Bursts follow the rate unless one was asked for.
    burst_most: Option<u32>,
    /// Changes of the rate still to come, the next one last.
    steps: Vec<RateStep>,
    /// End of the stream, ns.
    end: u64,
    /// Packets offered and given up at earlier rates.
    earlier: (u64, u64),
    pacer: Pacer,
    sender: Box<dyn Sender>,
    sent: u64,
    ring_full: u64,
    counters: Option<InterfaceCounters>,
    /// Counts when measuring began.
    mark: BlastCounts,
    /// Counts at the last progress.
    told: BlastCounts,
}

impl Blast {
    fn open(spec: &BlastSpec, beside_ping: bool) -> io::Result<Self> {
        let path = neighbour::find(spec)?;
        let most = sender::burst_most(spec.kind, beside_ping);
        let burst = spec
            .burst
            .map_or_else(|| default_burst(spec.rate, most), u32::from);
        let sender = sender::open(spec, &path)?;
        let mut steps = spec.steps.clone();
        steps.reverse();
        Ok(Blast {
            kind: spec.kind,
            rate: spec.rate,
            packets: spec.packets,
            burst,
            burst_most: spec.burst.is_none().then_some(most),
            steps,
            end: 0,
            earlier: (0, 0),
            pacer: Pacer::new(spec.rate, burst, 0, 0, spec.packets),
            sender,
            sent: 0,
            ring_full: 0,
            counters: counters(&path.link.name),
            interface: path.link.name,
            mark: BlastCounts::default(),
            told: BlastCounts::default(),
        })
    }

    fn schedule(&mut self, end: u64) {
        self.end = end;
        self.pacer = Pacer::new(self.rate, self.burst, 0, end, self.packets);
    }

    /// Goes over to the next rate when its time has come.
    fn change_rate(&mut self, now: u64) {
        let Some(next) = self.steps.last().copied() else {
            return;
        };
        let after = nanoseconds(next.after);
        if now < after {
            return;
        }
        self.steps.pop();
        self.earlier.0 += self.pacer.offered();
        self.earlier.1 += self.pacer.skipped();
        if let Some(most) = self.burst_most {
            self.burst = default_burst(Some(next.rate), most);
        }
        self.pacer = Pacer::new(Some(next.rate), self.burst, after, self.end, None);
    }

    fn step(&mut self, now: u64) -> io::Result<Step> {
        self.change_rate(now);
        let step = match (self.pacer.step(now), self.steps.last()) {
            // A slow stream must not sleep past its next rate.
            (Step::Wait(until), Some(next)) => Step::Wait(until.min(nanoseconds(next.after))),
            (step, _) => step,
        };
        if let Step::Send(count) = step {
            let sent = self.sender.send(count)?;
            self.sent += sent.sent;
            self.ring_full += sent.ring_full;
        }
        Ok(step)
    }

    fn counts(&self) -> BlastCounts {
        BlastCounts {
            offered: self.earlier.0 + self.pacer.offered(),
            sent: self.sent,
            ring_full: self.ring_full,
            skipped: self.earlier.1 + self.pacer.skipped(),
        }
    }

    fn since_progress(&mut self) -> BlastCounts {
        let counts = self.counts();
        counts - std::mem::replace(&mut self.told, counts)
    }

    fn report(self, measured: bool, duration: Duration) -> BlastReport {
        let whole = self.counts();
        let measured = if measured {
            whole - self.mark
        } else {
            BlastCounts::default()
        };
        let counters = match (self.counters, counters(&self.interface)) {
            (Some(before), Some(after)) => Some(InterfaceCounters {
                packets: after.packets.saturating_sub(before.packets),
                dropped: after.dropped.saturating_sub(before.dropped),
            }),
            _ => None,
        };
        BlastReport {
            kind: self.kind,
            interface: self.interface,
            burst: self.burst,
            measured,
            whole,
            duration,
            rate: per_second(measured.sent, duration),
            counters,
        }
    }
}

/// The running closed loop.
struct Ping {
    socket: UdpSocket,
    wait: Wait,
    exchange: Exchange,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// Round trips of the measured time.
    latency: Histogram<u64>,
    /// Round trips since the last progress.
    recent: Histogram<u64>,
    mark: PingCounts,
    told: PingCounts,
}

impl Ping {
    fn open(spec: &PingSpec) -> io::Result<Self> {
        let any = match spec.destination {
            SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let local = spec.source.unwrap_or(any);
        let open = || {
            let socket = UdpSocket::bind(local)?;
            socket.connect(spec.destination)?;
            socket.set_nonblocking(true)?;
            if spec.wait == Wait::Spin {
                // Without CAP_NET_ADMIN, replies come by interrupt as ever.
                let _ = prefer_busy_poll(socket.as_fd());
            }
            Ok(socket)
        };
        let socket = open().map_err(|error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot ping {} from {local}: {error}", spec.destination),
            )
        })?;
        let histogram = Histogram::new_with_max(LATENCY_MAX, 3)
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Ping {
            socket,
            wait: spec.wait,
            exchange: Exchange::new(spec),
            request: vec![0; spec.payload.into()],
            // A reply of any length is looked at; the rest is cut off.
            reply: vec![0; 2048],
            latency: histogram.clone(),
            recent: histogram,
            mark: PingCounts::default(),
            told: PingCounts::default(),
        })
    }

    /// Takes the replies that are there and sends what may be sent. True when
    /// there were any.
    fn poll(&mut self, now: impl Fn() -> u64) -> io::Result<bool> {
        let mut busy = false;
        for _ in 0..REPLIES_MAX {
            match self.socket.recv(&mut self.reply) {
                Ok(length) => {
                    busy = true;
                    let payload = self.reply.get(..length).unwrap_or_default();
                    if let Some(time) = self.exchange.reply(payload, now()) {
                        self.latency.saturating_record(time);
                        self.recent.saturating_record(time);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.live_with(error)?,
            }
        }
        self.exchange.expire(now());
        while let Some(number) = self.exchange.next_request(now()) {
            for (to, from) in self.request.iter_mut().zip(number.to_le_bytes()) {
                *to = from;
            }
            // Before the call: building and sending the packet is part of the
            // round trip.
            let time = now();
            match self.socket.send(&self.request) {
                Ok(_) => {
                    busy = true;
                    self.exchange.sent(time);
                }
                Err(error) => {
                    self.live_with(error)?;
                    self.exchange.not_sent(time);
                }
            }
        }
        Ok(busy)
    }

    /// Counts an error that will pass; gives back any other.
    fn live_with(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(
                libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EAGAIN
                | libc::ENOBUFS
                | libc::EINTR,
            ) => {
                self.exchange.error();
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn since_progress(&mut self) -> (PingCounts, Option<Latency>) {
        let counts = self.exchange.counts();
        let latency = Latency::of(&self.recent);
        self.recent.reset();
        (counts - std::mem::replace(&mut self.told, counts), latency)
    }

    fn report(self, measured: bool, duration: Duration) -> PingReport {
        let whole = self.exchange.counts();
        let counts = if measured {
            whole - self.mark
        } else {
            PingCounts::default()
        };
        PingReport {
            measured: counts,
            whole,
            duration,
            rate: per_second(counts.echoed, duration),
            latency: Latency::of(&self.latency).filter(|_| measured),
        }
    }
}
