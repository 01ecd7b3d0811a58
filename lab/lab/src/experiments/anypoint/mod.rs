//! The experiments of Anypoint: frames of peers through an intermediary to members.

pub(super) mod bandwidth;
mod between;
mod ends;
pub(super) mod frames;
pub(super) mod limit;
pub(super) mod memory;
pub(super) mod redis;
pub(super) mod split;
mod star;
pub(super) mod steer;
pub(super) mod storage;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Run;
use crate::interrupt;
use crate::result::Series;
use crate::sweep::{Plan, Sample, point};
use crate::verdict::{is_decided, judge};
use crate::worker::Mix;
use between::{Between, Installed, Manner};
use star::{Layout, Outcome, Star};

/// CPU time of the intermediary per byte.
const PROCESSOR: &str = "processor ns a byte";
/// The same, per request.
const PROCESSOR_REQUEST: &str = "processor ns a request";
/// The same, per frame.
const PROCESSOR_FRAME: &str = "processor ns a frame";
/// Share of the time in which ends that never sleep waited for the intermediary: if they
/// do not wait, the intermediary is not the limit.
const WAITED: &str = "ends waited";
/// Segments that such ends sent again.
const REPEATED: &str = "segments sent again/s";
/// Median time of a request.
const RESPONSE: &str = "median response, µs";
/// Share of its processor that the intermediary used.
const BUSY: &str = "processor busy";
/// Length of one measurement.
const WINDOW: Duration = Duration::from_millis(700);

/// One point: the traffic, and its senders.
#[derive(Clone, Debug, Default, PartialEq)]
struct Case {
    setting: String,
    /// Its position on the horizontal axis.
    x: f64,
    mtu: u16,
    load: Load,
    /// Bytes of a segment's frames.
    segment: u16,
    /// Frames in it.
    frames: u16,
    connections: u32,
    members: u8,
    /// Time that the first member takes for each frame, µs.
    slowed_us: u64,
    /// Members send.
    outbound: bool,
    /// The result is the intermediary's memory.
    is_of_memory: bool,
    /// Round-trip time of the path between peer and intermediary; `None`: they are joined
    /// by a plain link.
    round_trip_ms: Option<u64>,
    /// Frames of a switch's ring; `None`: the default.
    ring: Option<u16>,
}

/// The traffic of the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Load {
    /// One side sends frames without end.
    #[default]
    Frames,
    /// One process at both ends sends frames without end, each in its own segment; the
    /// result is their number.
    Segments,
    /// Each of a client's connections has this many requests outstanding, to a
    /// coordinator, which is the first member, and nodes.
    Requests(u16, Mix),
    /// One request about metadata after another: the result is the time of each.
    OneAtATime,
}

impl Case {
    /// Returns the counted figure of an outcome, and the name of the CPU time divided by
    /// it.
    fn figures(&self, outcome: Outcome) -> (f64, &'static str) {
        match self.load {
            Load::Frames if self.is_of_memory => {
                let connections = f64::from(self.connections.max(1));
                (outcome.memory / 1024.0 / connections, PROCESSOR)
            }
            Load::Frames => (outcome.rate / 1e6, PROCESSOR),
            Load::Segments => (outcome.rate, PROCESSOR_FRAME),
            Load::Requests(..) => (outcome.rate, PROCESSOR_REQUEST),
            Load::OneAtATime => (outcome.response_us, PROCESSOR_REQUEST),
        }
    }

    /// Returns the bytes of a frame, its header included.
    fn size(&self) -> u16 {
        self.segment / self.frames.max(1)
    }

    /// Returns true if the case is possible with it. Without an intermediary there is one
    /// member.
    fn is_for(&self, between: Between) -> bool {
        match between {
            Between::Nobody => self.outbound || self.load == Load::OneAtATime,
            Between::WakeUp => self.load == Load::OneAtATime,
            _ => true,
        }
    }
}

/// Measures every case on every system, round by round, until the plan is over or all
/// claims are decided. Neighbours in time are compared: systems one right after the
/// other, in alternating order.
fn measure(
    run: &mut Run<'_>,
    cases: &[Case],
    systems: &[Between],
    plan: Plan,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let systems = run.installed(systems);
    let any = |which: fn(&Case) -> bool| cases.iter().any(which);
    let layout = if any(|case| case.round_trip_ms.is_some()) {
        Layout::Long
    } else if any(|case| case.load == Load::Segments) {
        Layout::Together
    } else {
        Layout::Apart
    };
    let star = Star::new(&run.bench.testbed, layout)?;
    let mut measured: BTreeMap<(usize, usize), Vec<Sample>> = BTreeMap::new();
    for round in 0..plan.rounds {
        let per_round = begun.elapsed() / round.max(1);
        let in_time = begun.elapsed() + per_round <= plan.budget;
        if round >= plan.least && (!in_time || is_decided(&judge(run.claims, &run.series))) {
            break;
        }
        let steps = (cases.len() * systems.len()) as u64;
        let what = format!("{}, round {}", run.name, round + 1);
        run.progress.begin(&what, steps);
        for (number, case) in cases.iter().enumerate() {
            let mut order: Vec<usize> = (0..systems.len()).collect();
            if (round as usize + number) % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let Some(&between) = systems.get(place) else {
                    continue;
                };
                interrupt::check()?;
                if !case.is_for(between) {
                    continue;
                }
                let outcome = star.measure(case, between, WINDOW)?;
                let (y, processor) = case.figures(outcome);
                let mut values = BTreeMap::from([(BUSY.to_owned(), outcome.busy)]);
                if outcome.rate > 0.0 {
                    values.insert(processor.to_owned(), outcome.busy * 1e9 / outcome.rate);
                }
                if case.load == Load::Segments {
                    values.insert(WAITED.to_owned(), outcome.waited);
                    values.insert(REPEATED.to_owned(), outcome.repeated);
                }
                if outcome.response_us > 0.0 {
                    values.insert(RESPONSE.to_owned(), outcome.response_us);
                }
                let (name, setting, x) = (between.name(), &case.setting, case.x);
                run.progress.step(&format!(
                    "{name} {setting}, {x}: {y:.1}, busy {:.2}",
                    outcome.busy
                ));
                measured.entry((place, number)).or_default().push(Sample {
                    round,
                    x,
                    y,
                    values,
                    ..Sample::default()
                });
            }
        }
        run.progress.end();
        run.series = curves(cases, &systems, &measured);
    }
    let described = systems.iter().map(|it| (it.name(), it.about()));
    run.described = Some(
        described
            .map(|(name, about)| (name.to_owned(), about.to_owned()))
            .collect(),
    );
    run.note(
        "The intermediary has one processor, for its own work and for what the kernel receives for \
         it; peer and members share the other one, and may be what is busy first. GSO, TSO and GRO \
         are off everywhere, as a switch of frames needs it.",
    );
    Ok(())
}

impl Run<'_> {
    /// Returns the systems that can be measured here, and notes the others.
    fn installed(&mut self, systems: &[Between]) -> Vec<Between> {
        let mut there = Vec::new();
        for &between in systems {
            match between.missing() {
                None => there.push(between),
                Some(package) => self.note(format!(
                    "{} is not measured: the Debian package {package} is not installed.",
                    between.name()
                )),
            }
        }
        there
    }
}

/// Returns one curve per system and setting.
fn curves(
    cases: &[Case],
    systems: &[Between],
    measured: &BTreeMap<(usize, usize), Vec<Sample>>,
) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for (&(system, case), samples) in measured {
        let (Some(system), Some(case)) = (systems.get(system), cases.get(case)) else {
            continue;
        };
        let responses = case.load == Load::OneAtATime;
        let (name, setting) = (system.name(), case.setting.as_str());
        let same = |it: &&mut Series| it.system == name && it.setting.as_deref() == Some(setting);
        match series.iter_mut().find(same) {
            Some(found) => found.points.extend(point(samples)),
            None => series.push(Series {
                y: responses.then(|| RESPONSE.to_owned()),
                points: point(samples).into_iter().collect(),
                ..Series::named(name, setting)
            }),
        }
    }
    series
}
