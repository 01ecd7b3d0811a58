//! Measures the cost of a frame, a switch and an interrupt here, for the model of RHIP's
//! section III ([`tidewall_receive::control::model`]). Compares the model's best Bp and T
//! with the measured ones.
//!
//! A service that discards runs on the softirq arrangement under the policy `napi`, whose
//! Bp and T stand still. From the kernel's account of the softirq thread and of the
//! serving thread, over several budgets and a flood:
//!
//! ```text
//!  softirq thread's time / rounds  =  Tc(k) + Tp · frames a round
//!  serving thread's time / rounds  =  Tc(a) + Ta · frames delivered a round
//! ```
//!
//! and from a load that leaves the ring empty after each round, the cost of an interrupt
//! beyond its frames. That load is two thirds of the maximum that the flood showed. An
//! interrupt that finds the processor idle wakes it from a halt, which takes several
//! times as long (13.8 µs for 3.9 µs in a virtual machine) and does not reduce goodput.
//! The numbers are CPU time, so a sender that shares nothing with the receiver but the
//! link does not disturb them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tidewall::tuning::PolicyKind;
use tidewall_load::{LoadSpec, PAYLOAD_MAX, SenderKind};
use tidewall_receive::control::model::{Load, Machine, Prediction, Room};
use tidewall_receive::control::{BUDGET_MAX, INTERVAL_MAX, Limits, Setting};
use tidewall_service::{Kind, ServiceSpec};

use crate::bench::{Bench, Setup, Watching, blast, load, server};
use crate::progress::Progress;
use crate::runner;
use crate::system::{Control, System};
use crate::testbed::{Config, privilege};
use crate::worker::Spent;

mod fit;

use fit::line;

/// Port of the service (RFC 863).
const PORT: u16 = 9;
/// Frames that the service's socket holds, the stack's default, and that a
/// veth's ring holds (the kernel's VETH_RING_SIZE).
const ROOM: Room = Room {
    buffer: 512,
    ring: 256,
};
/// Budgets of the flood from which the costs are derived.
const CALIBRATION: [u32; 6] = [2, 8, 32, 64, 128, 512];
/// Further settings for comparison: Bp and T in µs.
const COMPARED: [(u32, u64); 6] = [
    (16, 0),
    (256, 0),
    (1024, 0),
    (3000, 0),
    (256, 50),
    (256, 200),
];
/// Share of the flood's maximum at which an interrupt's cost is measured.
const INTERRUPTED: f64 = 2.0 / 3.0;
/// Interval at which counters are read while a load is measured, ms.
const EVERY: u32 = 25;
/// Load before measuring begins.
const WARM_UP: Duration = Duration::from_millis(100);
/// Time measured of each load: enough for costs within a few percent on a
/// machine at rest.
pub(crate) const WINDOW: Duration = Duration::from_millis(300);
/// Longest time measured at once: the kernel's safeguards for ordinary threads may not be
/// off for longer.
const WINDOW_MAX: Duration = Duration::from_millis(1500);
/// The kernel's default time slice, if it does not report its own.
const SLICE: Duration = Duration::from_millis(3);
/// Ranges of [`Options`].
const WORK_MAX: u32 = 1_000_000;
const RATE_MIN: u64 = 1_000;
const RATE_MAX: u64 = 10_000_000;
/// See [`Options::seconds`].
pub const SECONDS: std::ops::RangeInclusive<u32> = 3..=60;

/// The target of the tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Floating-point multiplications for each packet, at most a million.
    pub work: u32,
    /// Bytes of payload, at most 1472.
    pub payload: u16,
    /// Packets/s, 1,000 to 10,000,000; `None`: as many as the sender can.
    pub rate: Option<u64>,
    /// Seconds of load, 3 to 60, over all settings; starting a stack for each takes about
    /// as long again.
    pub seconds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            work: 200,
            payload: 14,
            rate: None,
            seconds: 10,
        }
    }
}

/// A value of [`Options`] is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange(String);

impl std::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OutOfRange {}

impl Options {
    /// Checks every range.
    ///
    /// # Errors
    /// The first value that is out of its range, and the range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let refuse = |text: String| Err(OutOfRange(text));
        if self.work > WORK_MAX {
            return refuse(format!(
                "{} multiplications a packet: at most {WORK_MAX}",
                self.work
            ));
        }
        if self.payload > PAYLOAD_MAX {
            return refuse(format!(
                "a payload of {} bytes: at most {PAYLOAD_MAX} fit a frame",
                self.payload
            ));
        }
        if let Some(rate) = self.rate
            && !(RATE_MIN..=RATE_MAX).contains(&rate)
        {
            return refuse(format!(
                "a rate of {rate} packets/s: it must be {RATE_MIN} to {RATE_MAX}"
            ));
        }
        if !SECONDS.contains(&self.seconds) {
            return refuse(format!(
                "{} seconds: it must be {} to {}",
                self.seconds,
                SECONDS.start(),
                SECONDS.end()
            ));
        }
        Ok(())
    }
}

/// One load under one setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Bp, frames.
    pub budget: u32,
    /// T, µs.
    pub interval_us: u32,
    /// Packets/s that were sent.
    pub offered: f64,
    /// Most packets sent back to back.
    pub burst: u32,
    /// Packets/s that the service processed.
    pub goodput: f64,
    /// Share of the receiver's processor that was idle; `None`: not reported.
    pub idle: Option<f64>,
    /// Frames that the driver delivered over the whole load.
    pub frames: f64,
    /// Frames that the service processed.
    pub delivered: f64,
    /// Frames that found the socket full.
    pub overflowed: f64,
    /// Rounds that found frames.
    pub rounds: f64,
    /// Times that the device woke the poller.
    pub interrupts: f64,
    /// Measured for the cost of an interrupt.
    pub for_interrupts: bool,
    /// Context switches of both threads.
    pub switches: f64,
    /// CPU time of the softirq thread, ns.
    pub poller_ns: f64,
    /// CPU time of the serving thread, ns.
    pub application_ns: f64,
}

impl Sample {
    /// Returns its Bp and T.
    pub fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interrupt_interval: Duration::from_micros(self.interval_us.into()),
        }
    }

    /// Returns the load, for the model.
    pub fn load(&self) -> Load {
        Load {
            rate: self.offered,
            burst: self.burst,
        }
    }
}

/// The results of measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The costs.
    pub machine: Machine,
    /// Every load, in the order of measuring. Those at the requested rate are comparable
    /// with each other.
    pub samples: Vec<Sample>,
}

/// The results of `tidewall tune`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// Costs, and samples at the requested rate.
    pub measured: Measured,
    /// The room in which frames can wait here.
    pub room: Room,
    /// Packets/s and burst that were really sent: the median.
    pub load: Load,
    /// The model's best setting of the softirq arrangement that leaves half of
    /// the room free.
    pub predicted: Setting,
    /// The same for a receiver that polls for itself.
    pub predicted_self_polling: Setting,
    /// The sample with the highest goodput; of nearly equal ones, the most idle.
    pub best: Option<Sample>,
    /// Conditions that were unavailable.
    pub shortcomings: Vec<String>,
}

impl Tuned {
    /// Returns the model's prediction for a sample.
    pub fn prediction(&self, sample: &Sample) -> Prediction {
        self.measured
            .machine
            .predict(sample.load(), sample.setting(), self.room)
    }
}

/// Measures this machine on its own test bed, which is removed afterwards; must be called
/// from the main thread.
///
/// # Errors
/// [`OutOfRange`] and [`Missing`](crate::Missing) before anything is touched;
/// [`Interrupted`](crate::Interrupted); an error of building the test bed, and a
/// measurement that gave no number.
pub fn tune(options: Options, progress: &mut dyn Progress) -> anyhow::Result<Tuned> {
    options.check()?;
    privilege::check()?;
    runner::prepare()?;
    let mut bench = Bench::new(Config::default(), false)?;
    let effort = Effort::of(options.seconds, options.rate.is_some());
    let Measured {
        machine,
        mut samples,
    } = measure_with(
        &mut bench,
        options.work,
        options.payload,
        options.rate,
        effort,
        progress,
    )?;
    let wanted = |sample: &Sample| is_wanted(sample, options.rate);
    samples.retain(wanted);
    let load = median_load(&samples);
    let room = ROOM;
    let limits = Limits {
        budget: BUDGET_MAX,
        interrupt_interval: INTERVAL_MAX,
        ring: room.ring,
        preempts: true,
        ..Limits::default()
    };
    let safe = half(room);
    let predicted = machine.best(&[load], limits, safe);
    let predicted_self_polling = machine.best(
        &[load],
        Limits {
            preempts: false,
            ..limits
        },
        safe,
    );
    if !samples.iter().any(|sample| sample.setting() == predicted) {
        let point = Point {
            setting: predicted,
            rate: options.rate,
            for_interrupts: false,
        };
        samples.push(point.measure(&mut bench, options.work, options.payload, effort)?);
    }
    let mut environment = crate::environment::Environment::default();
    bench.describe(&mut environment, &[System::Softirq])?;
    Ok(Tuned {
        best: best(&samples),
        measured: Measured { machine, samples },
        room,
        load,
        predicted,
        predicted_self_polling,
        shortcomings: environment.shortcomings,
    })
}

/// Measures the costs on an existing test bed: a flood under several budgets, and a load
/// that leaves the ring empty. With a `rate`, some settings are measured at it as well.
/// Each of about a dozen loads is measured once, for `window`; see [`WINDOW`].
///
/// # Errors
/// [`Interrupted`](crate::Interrupted); a service or load that does not start;
/// a measurement that gave no number.
pub(crate) fn measure(
    bench: &mut Bench,
    work: u32,
    payload: u16,
    rate: Option<u64>,
    window: Duration,
    progress: &mut dyn Progress,
) -> anyhow::Result<Measured> {
    let effort = Effort { window, runs: 1 };
    measure_with(bench, work, payload, rate, effort, progress)
}

fn measure_with(
    bench: &mut Bench,
    work: u32,
    payload: u16,
    rate: Option<u64>,
    effort: Effort,
    progress: &mut dyn Progress,
) -> anyhow::Result<Measured> {
    let mut points = points(rate);
    progress.begin("tune", points.len() as u64);
    let mut samples: Vec<Sample> = Vec::new();
    for point in &mut points {
        if point.for_interrupts {
            let [(_, protocol), (_, application)] = flood(&samples)?;
            let possible = 1e9 / (protocol + application).max(1.0);
            point.rate = Some((possible * INTERRUPTED) as u64);
        }
        let sample = point.measure(bench, work, payload, effort)?;
        progress.step(&format!(
            "Bp {}, T {} µs at {}: {:.0}/s",
            sample.budget,
            sample.interval_us,
            point
                .rate
                .map_or("full speed".to_owned(), |rate| format!("{rate}/s")),
            sample.goodput
        ));
        samples.push(sample);
    }
    progress.end();
    Ok(Measured {
        machine: costs(&samples, slice())?,
        samples,
    })
}

/// One load to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    setting: Setting,
    /// `None`: full speed.
    rate: Option<u64>,
    /// For the cost of an interrupt, at a rate that the flood determines.
    for_interrupts: bool,
}

fn points(rate: Option<u64>) -> Vec<Point> {
    let point = |budget: u32, interval: u64, rate| Point {
        setting: Setting {
            budget,
            interrupt_interval: Duration::from_micros(interval),
        },
        rate,
        for_interrupts: false,
    };
    let mut points: Vec<Point> = CALIBRATION
        .iter()
        .map(|&budget| point(budget, 0, None))
        .collect();
    points.push(Point {
        for_interrupts: true,
        ..point(BUDGET_MAX, 0, None)
    });
    if rate.is_some() {
        points.push(point(64, 0, rate));
    }
    points.extend(
        COMPARED
            .iter()
            .map(|&(budget, interval)| point(budget, interval, rate)),
    );
    points
}

/// How long each of about a dozen points is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Effort {
    /// Time per measurement.
    window: Duration,
    /// Number of runs, at least one; the run of median goodput counts.
    runs: u32,
}

impl Effort {
    /// Returns the effort with which all points together are under load for `seconds`.
    fn of(seconds: u32, with_rate: bool) -> Self {
        let points = points(with_rate.then_some(RATE_MIN)).len() as u32 + 1;
        let each = Duration::from_secs(seconds.into()) / points;
        // Odd, so that there is a median.
        let runs = if each > WINDOW * 5 { 3 } else { 1 };
        Effort {
            window: (each / runs)
                .saturating_sub(WARM_UP)
                .clamp(WINDOW / 3, WINDOW_MAX),
            runs,
        }
    }
}

impl Point {
    fn measure(
        &self,
        bench: &mut Bench,
        work: u32,
        payload: u16,
        effort: Effort,
    ) -> anyhow::Result<Sample> {
        let mut runs = Vec::new();
        for _ in 0..effort.runs.max(1) {
            runs.push(self.run(bench, work, payload, effort.window)?);
        }
        runs.sort_by(|a, b| a.goodput.total_cmp(&b.goodput));
        runs.get(runs.len() / 2)
            .copied()
            .context("nothing was measured")
    }

    fn run(
        &self,
        bench: &mut Bench,
        work: u32,
        payload: u16,
        window: Duration,
    ) -> anyhow::Result<Sample> {
        let Setting {
            budget,
            interrupt_interval: interval,
        } = self.setting;
        let interval_us = u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
        let config = bench.testbed.config();
        let mut session = bench.serve(&Setup {
            system: System::Softirq,
            control: Some(Control {
                policy: PolicyKind::Napi,
                budget: Some(budget),
                interval_us: Some(interval_us),
                receive_limit: Some(ROOM.buffer),
            }),
            services: vec![ServiceSpec {
                kind: Kind::Discard,
                port: PORT,
                work,
            }],
            ..Setup::default()
        })?;
        let mut blast = blast(SenderKind::Skb, PORT, self.rate);
        blast.payload = payload;
        let spec = LoadSpec {
            blast: Some(blast),
            warm_up: WARM_UP,
            duration: window,
            ..load(config)
        };
        let received = session.received()?;
        let before = session.cpu()?;
        if !before.has_softirq() {
            bail!("the service has no softirq thread, whose time was to be measured");
        }
        let watching = Watching {
            every_ms: EVERY,
            trace: false,
            profile: false,
        };
        let measured = session.measure(&spec, watching)?;
        let spent = Spent::between(&before, &session.cpu()?);
        let received = session.received()?.saturating_sub(received);
        let (Some(sent), Some(&goodput)) = (
            measured.outcome.report.blast.as_ref(),
            measured.outcome.delivered.first(),
        ) else {
            bail!("the load to {} reported no packets", server(PORT));
        };
        Ok(Sample {
            budget,
            interval_us,
            offered: sent.rate,
            burst: sent.burst,
            goodput,
            idle: measured.outcome.usage.map(|usage| usage.idle),
            frames: spent.frames,
            delivered: received as f64,
            overflowed: spent.overflowed,
            rounds: spent.rounds,
            interrupts: spent.interrupts,
            for_interrupts: self.for_interrupts,
            switches: spent.switches,
            poller_ns: spent.poller,
            application_ns: spent.application,
        })
    }
}

/// Returns whether a sample was taken at the requested rate: the one for interrupts was
/// not, and neither was the flood if there is a rate.
fn is_wanted(sample: &Sample, rate: Option<u64>) -> bool {
    !sample.for_interrupts
        && rate.is_none_or(|rate| (sample.offered / rate as f64 - 1.0).abs() < 0.1)
}

/// Returns the room on which a setting may rely. Packets do not arrive as evenly as in
/// the model, nor does the receiver always run, so half must stay free.
fn half(room: Room) -> Room {
    Room {
        buffer: room.buffer / 2,
        ring: room.ring / 2,
    }
}

fn median_load(samples: &[Sample]) -> Load {
    let rates: Vec<f64> = samples.iter().map(|sample| sample.offered).collect();
    Load {
        rate: crate::sweep::median(&rates).unwrap_or(0.0),
        burst: samples.first().map_or(1, |sample| sample.burst),
    }
}

fn best(samples: &[Sample]) -> Option<Sample> {
    let most = samples
        .iter()
        .map(|sample| sample.goodput)
        .fold(0.0, f64::max);
    samples
        .iter()
        .filter(|sample| sample.goodput >= most * 0.99)
        .max_by(|a, b| {
            let idle = |sample: &Sample| sample.idle.unwrap_or(0.0);
            idle(a)
                .total_cmp(&idle(b))
                .then(a.goodput.total_cmp(&b.goodput))
        })
        .copied()
}

/// Returns, from the flood's samples, the costs of a round beyond its frames and of a
/// frame, ns, for the poller and for the application.
///
/// # Errors
/// Too few samples with frames in them.
fn flood(samples: &[Sample]) -> anyhow::Result<[(f64, f64); 2]> {
    let each = |of: fn(&Sample) -> (f64, f64)| {
        let rounds: Vec<(f64, f64)> = samples
            .iter()
            .filter(|sample| {
                !sample.for_interrupts && sample.interval_us == 0 && sample.rounds > 0.0
            })
            .map(|sample| {
                let (frames, time) = of(sample);
                (frames / sample.rounds, time / sample.rounds)
            })
            .filter(|(frames, _)| *frames >= 0.5)
            .collect();
        line(&rounds)
    };
    let polled = each(|sample| (sample.frames, sample.poller_ns));
    let consumed = each(|sample| (sample.delivered, sample.application_ns));
    match (polled, consumed) {
        (Some(polled), Some(consumed)) => Ok([polled, consumed]),
        _ => {
            bail!("too few packets arrived for costs to be drawn from them; is the machine busy?")
        }
    }
}

/// Returns the costs that explain the samples.
///
/// # Errors
/// Too few samples with frames in them.
fn costs(samples: &[Sample], quantum: Duration) -> anyhow::Result<Machine> {
    let [(switch_poller, protocol), (switch_application, application)] = flood(samples)?;
    let interrupted = samples
        .iter()
        .find(|sample| sample.for_interrupts && sample.rounds > 0.0 && sample.interrupts > 0.0);
    let Some(interrupted) = interrupted else {
        bail!("the device never interrupted, so an interrupt's cost is not known");
    };
    // Per round: the next burst often arrives while the last round ends, and then the
    // device need not interrupt for it.
    let interrupt = (interrupted.poller_ns - interrupted.frames * protocol) / interrupted.rounds;
    let nanoseconds = |time: f64| Duration::from_nanos(time.max(0.0).round() as u64);
    Ok(Machine {
        protocol: nanoseconds(protocol),
        application: nanoseconds(application),
        switch_application: nanoseconds(switch_application),
        switch_poller: nanoseconds(switch_poller),
        interrupt: nanoseconds(interrupt),
        application_quantum: quantum,
    })
}

/// Returns how long the scheduler lets a thread run while another waits.
fn slice() -> Duration {
    fs::read_to_string("/sys/kernel/debug/sched/base_slice_ns")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .map_or(SLICE, Duration::from_nanos)
}

#[cfg(test)]
mod tests;
