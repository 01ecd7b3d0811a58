//! Runs one load on the calling thread: bursts when they are due, replies in between, and
//! sleep if there is time.

mod blast;
mod ping;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blast::Blast;
use ping::Ping;

use tidewall_sys::wait_readable;

use crate::http::Client;
use crate::idle::Idle;
use crate::pacer::{Step, nanoseconds};
use crate::report::{LoadReport, Phase, Progress};
use crate::s_clients::SClients;
use crate::spec::{LoadSpec, Wait};
use crate::stream::Stream;
use crate::thread::ThreadSettings;

/// Shortest gap worth a sleep, ns. A sleep costs a wake-up of some microseconds and two
/// context switches; in shorter gaps the thread spins.
const SLEEP_MIN: u64 = 60_000;
/// Default time between two calls of the progress function.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Time within which a stop request is noticed, ns.
const STOP_WITHIN: u64 = 200_000_000;
/// The histogram's longest round trip, ns: the longest timeout.
const LATENCY_MAX: u64 = 60_000_000_000;
/// Packets of a paced stream sent between two checks for replies: half of a veth's ring.
const CATCH_UP: u32 = 128;
/// Replies handled between two checks of the schedule.
const REPLIES_MAX: usize = 64;

/// Runs a load to its end on the calling thread, in its network namespace, and reports
/// the results. Calls `progress` about every 200 ms.
///
/// # Errors
/// - `InvalidInput` for a specification out of range
/// - `PermissionDenied` for an interface that may not be blasted through, or missing
///   privileges
/// - errors of the destination lookup and of sending, with the remedy in words
pub fn run(spec: &LoadSpec, progress: impl FnMut(Progress)) -> io::Result<LoadReport> {
    run_until(spec, &AtomicBool::new(false), progress)
}

/// Acts as [`run()`], but ends early when `stop` becomes true (noticed within 200 ms);
/// the report then covers the time until then.
///
/// # Errors
/// Those of [`run()`].
pub fn run_until(
    spec: &LoadSpec,
    stop: &AtomicBool,
    progress: impl FnMut(Progress),
) -> io::Result<LoadReport> {
    run_with_interval(spec, stop, PROGRESS_INTERVAL, progress)
}

/// Acts as [`run_until`], but calls `progress` every `interval` (at least a millisecond):
/// the call's time is taken from the load's.
///
/// # Errors
/// Those of [`run()`].
pub fn run_with_interval(
    spec: &LoadSpec,
    stop: &AtomicBool,
    interval: Duration,
    mut progress: impl FnMut(Progress),
) -> io::Result<LoadReport> {
    spec.check()?;
    let interval = nanoseconds(interval.max(Duration::from_millis(1)));
    let measure_at = nanoseconds(spec.warm_up);
    let end = measure_at.saturating_add(nanoseconds(spec.duration));
    let mut parts = Parts::open(spec, stop, &mut progress, interval, (measure_at, end))?;
    // After the opening, whose threads and programs need not be bound.
    let _settings = ThreadSettings::apply(spec.cpu)?;

    let clock = Instant::now();
    let now = || elapsed(&clock);
    if let Some(blast) = &mut parts.blast {
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
            parts.begin_measuring()?;
        }
        let mut next = progress_at.min(time.saturating_add(STOP_WITHIN));
        let mut busy = false;
        let mut blasting = false;
        if let Some(blast) = &mut parts.blast {
            match blast.step(time)? {
                Step::Send(mut sent) => {
                    (busy, blasting) = (true, true);
                    // Packets that became due during the check for replies.
                    while blast.is_paced()
                        && sent < CATCH_UP
                        && let Step::Send(more) = blast.step(now())?
                    {
                        sent += more;
                    }
                }
                Step::Wait(until) => (next, blasting) = (next.min(until), true),
                Step::Finished => {}
            }
        }
        let answering = time < end && (parts.is_answered() || parts.idle.is_some());
        if answering {
            busy |= parts.poll(now)?;
            next = next.min(parts.deadline()).min(end);
        }

        if time >= progress_at {
            let phase = match begun {
                Some(_) => Phase::Measuring,
                None => Phase::WarmUp,
            };
            progress(Progress {
                elapsed: Duration::from_nanos(time),
                interval: Duration::from_nanos(time - last_progress),
                ..parts.progress(phase)
            });
            last_progress = time;
            progress_at = now() + interval;
        }
        stopped |= stop.load(Ordering::Relaxed);
        if stopped || !(blasting || answering) {
            break;
        }
        if !busy {
            if begun.is_none() {
                next = next.min(measure_at);
            }
            let gap = next.saturating_sub(now());
            idle(
                gap,
                if answering {
                    parts.descriptors()
                } else {
                    Vec::new()
                },
            )?;
        }
    }

    // A run that ended in the warm-up has measured nothing.
    let time = now();
    let duration = Duration::from_nanos(begun.map_or(0, |begun| time - begun));
    parts.report(begun.is_some(), duration, stopped)
}

/// The parts of a load.
struct Parts {
    blast: Option<Blast>,
    /// The main ping first, if there is one, then those beside it.
    pings: Vec<Ping>,
    has_ping: bool,
    http: Option<Client>,
    s_clients: Option<SClients>,
    probe: Option<SClients>,
    idle: Option<Idle>,
    stream: Option<Stream>,
}

impl Parts {
    fn open(
        spec: &LoadSpec,
        stop: &AtomicBool,
        progress: &mut impl FnMut(Progress),
        interval: u64,
        (measure_at, end): (u64, u64),
    ) -> io::Result<Self> {
        // Loads that connect come before those that would be in their way.
        let opening = |elapsed, interval, counts| {
            progress(Progress {
                elapsed,
                interval,
                idle: Some(counts),
                ..Progress::nothing(Phase::Opening)
            });
        };
        let idle = match &spec.idle {
            Some(idle) => Some(Idle::open(
                idle,
                stop,
                Duration::from_nanos(interval),
                opening,
            )?),
            None => None,
        };
        let http = spec.http.as_ref().map(Client::open);
        let probe = spec.probe.as_ref();
        let probe = probe.map(|probe| SClients::probes(probe, measure_at, end));
        Ok(Parts {
            http: http.transpose()?,
            s_clients: spec
                .s_clients
                .as_ref()
                .map(|spec| SClients::open(spec, 0, end))
                .transpose()?,
            probe: probe.transpose()?,
            stream: spec.stream.as_ref().map(Stream::open).transpose()?,
            pings: spec
                .ping
                .iter()
                .chain(&spec.beside)
                .map(Ping::open)
                .collect::<io::Result<_>>()?,
            has_ping: spec.ping.is_some(),
            blast: spec
                .blast
                .as_ref()
                .map(|blast| Blast::open(blast, spec.is_answered()))
                .transpose()?,
            idle,
        })
    }

    fn is_answered(&self) -> bool {
        !self.pings.is_empty()
            || self.http.is_some()
            || self.s_clients.is_some()
            || self.probe.is_some()
            || self.stream.is_some()
    }

    fn begin_measuring(&mut self) -> io::Result<()> {
        if let Some(blast) = &mut self.blast {
            blast.mark = blast.counts();
        }
        for ping in &mut self.pings {
            ping.measures.begin(ping.exchange.counts());
        }
        if let Some(http) = &mut self.http {
            http.begin_measuring();
        }
        if let Some(s_clients) = &mut self.s_clients {
            s_clients.begin_measuring();
        }
        self.stream.as_mut().map_or(Ok(()), Stream::begin_measuring)
    }

    /// Handles events and sends what may be sent. Returns true if the thread must not
    /// sleep now.
    fn poll(&mut self, now: impl Fn() -> u64 + Copy) -> io::Result<bool> {
        let mut busy = false;
        for ping in &mut self.pings {
            busy |= ping.poll(now)? | (ping.wait == Wait::Spin);
        }
        if let Some(http) = &mut self.http {
            busy |= http.poll(now)? | http.spins();
        }
        for clients in [&mut self.s_clients, &mut self.probe].into_iter().flatten() {
            busy |= clients.poll(now)?;
        }
        if let Some(idle) = &mut self.idle {
            busy |= idle.poll(now())?;
        }
        if let Some(stream) = &mut self.stream {
            stream.poll(now)?;
            busy = true;
        }
        Ok(busy)
    }

    /// Returns when there is something to do again, unless an event comes first.
    fn deadline(&self) -> u64 {
        let pings = self.pings.iter().map(|ping| ping.exchange.deadline());
        let clients = [&self.s_clients, &self.probe].into_iter().flatten();
        pings
            .chain(clients.map(SClients::deadline))
            .chain(self.http.as_ref().map(Client::deadline))
            .chain(self.idle.as_ref().map(Idle::deadline))
            .min()
            .unwrap_or(u64::MAX)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let clients = [&self.s_clients, &self.probe].into_iter().flatten();
        let pings = self.pings.iter().filter_map(Ping::descriptor);
        pings
            .chain(clients.map(SClients::descriptor))
            .chain(self.http.as_ref().map(Client::descriptor))
            .collect()
    }

    fn progress(&mut self, phase: Phase) -> Progress {
        let ping = match (self.has_ping, self.pings.first_mut()) {
            (true, Some(ping)) => Some(ping.since_progress()),
            _ => None,
        };
        let http = self.http.as_mut().map(Client::since_progress);
        let s_clients = self.s_clients.as_mut().map(SClients::since_progress);
        let latency = ping
            .map(|(_, latency)| latency)
            .or(http.map(|(_, latency)| latency))
            .or(s_clients.map(|(_, latency)| latency))
            .flatten();
        Progress {
            blast: self.blast.as_mut().map(Blast::since_progress),
            ping: ping.map(|(counts, _)| counts),
            http: http.map(|(counts, _)| counts),
            s_clients: s_clients.map(|(counts, _)| counts),
            idle: self.idle.as_mut().map(Idle::since_progress),
            latency,
            ..Progress::nothing(phase)
        }
    }

    fn report(self, measured: bool, duration: Duration, stopped: bool) -> io::Result<LoadReport> {
        let mut pings = self
            .pings
            .into_iter()
            .map(|ping| ping.report(measured, duration));
        Ok(LoadReport {
            blast: self.blast.map(|blast| blast.report(measured, duration)),
            ping: if self.has_ping { pings.next() } else { None },
            beside: pings.collect(),
            http: self.http.map(|http| http.report(measured, duration)),
            s_clients: self
                .s_clients
                .map(|s_clients| s_clients.report(measured, duration)),
            probe: self.probe.map(SClients::probe_report),
            idle: self.idle.map(Idle::report),
            stream: self
                .stream
                .map(|stream| stream.report(measured, duration))
                .transpose()?,
            stopped,
        })
    }
}

/// Passes `gap` nanoseconds, or less: sleeps if that is long enough, and then only until
/// an event.
fn idle(gap: u64, descriptors: Vec<BorrowedFd<'_>>) -> io::Result<()> {
    let time = Duration::from_nanos(gap);
    if gap < SLEEP_MIN {
        std::hint::spin_loop();
    } else if descriptors.is_empty() {
        thread::sleep(time);
    } else {
        wait_readable(&descriptors, time)?;
    }
    Ok(())
}

fn elapsed(clock: &Instant) -> u64 {
    nanoseconds(clock.elapsed())
}
