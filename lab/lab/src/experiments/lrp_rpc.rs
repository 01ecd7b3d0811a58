//! LRP, Table 2: a worker that computes beside two servers of remote procedure calls whose
//! clients always have requests waiting.
//!
//! Worker and servers are three processes on one processor: applications of one manager
//! (`private`), or programs on the kernel's sockets. An embedded stack belongs to one
//! program, so there (`tidewall`, `soft-lrp`, `bsd`) all three are threads.
//!
//! Each is due a third of the processor. A process's share is its progress over its
//! progress when alone. It excludes time that others spend on its account, and the lines
//! of the worker's working set that others evict from the cache. The working set is 35 %
//! of the second level cache, as in the paper. The paper's load is even; two further
//! loads are not. In those, the second server's client is paced far below its third,
//! while the first has requests waiting, or is blasted.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, best_linux, ratio};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::worker::Beside;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-rpc",
    paper: "LRP, Table 2",
    about: "a computation and two RPC servers, three processes: each one's share of the processor",
    x: "calls/s",
    y: "the worker's steps/s",
    senders: &["two closed loops over kernel UDP sockets", "skb"],
    measure,
    claims,
    ..USUAL
};

const PORTS: [u16; 2] = [7, 8];
/// Requests that wait at a server.
const OUTSTANDING: u16 = 64;
/// The worker's share of the second level cache.
const CACHE_SHARE: f64 = 0.35;
/// Assumed size if the kernel does not report it.
const CACHE_BYTES: usize = 1 << 20;
/// Long compared with the scheduler's slices.
const WINDOW: Duration = Duration::from_millis(1_200);
/// The due share of each of three.
const IDEAL: f64 = 1.0 / 3.0;
/// The paper's fixed piece of work: seconds that it takes the worker alone.
const WORK_SECONDS: f64 = 11.5;
/// Requests/s of a quiet server's client, and the blast at the other server, as shares of
/// `bare`'s capacity.
const PACE: f64 = 0.003;
const BLAST: f64 = 0.5;

/// One of the paper's kinds of call.
struct Calls {
    name: &'static str,
    /// The settings of both servers, and of one only.
    both: &'static str,
    alone: &'static str,
    /// Multiplications per call: about 2.5, 10 and 40 µs.
    work: u32,
    /// The paper's NI-LRP over its 4.4BSD: completion time of the worker, calls/s.
    paper: Option<(f64, f64)>,
}

const CALLS: [Calls; 3] = [
    Calls {
        name: "fast",
        both: "fast calls",
        alone: "fast calls, one server alone",
        work: 2_500,
        paper: Some((0.70, 1.10)),
    },
    MEDIUM,
    Calls {
        name: "slow",
        both: "slow calls",
        alone: "slow calls, one server alone",
        work: 40_000,
        paper: None,
    },
];
/// The kind of the uneven loads.
const MEDIUM: Calls = Calls {
    name: "medium",
    both: "medium calls",
    alone: "medium calls, one server alone",
    work: 10_000,
    paper: Some((0.72, 1.0)),
};
const WORKER_ALONE: &str = "the worker alone";
const QUIET: &str = "medium calls, the second server quiet";
const BLASTED: &str = "medium datagrams, the first server blasted, the second quiet";
const BLASTED_ALONE: &str = "medium datagrams, one server blasted alone";

const FIRST: &str = "first server's calls/s";
const SECOND: &str = "second server's calls/s";
const ASKED: &str = "asked of the second server/s";
/// Shares of the processor, as the kernel accounts for it.
const RAN: [&str; 4] = [
    "first server's processor %",
    "second server's processor %",
    "worker's processor %",
    "kernel's polling threads' processor %",
];
const BUSY: &str = "processor busy %";

/// Systems with one process for each.
const PROCESSES: [System; 4] = [
    System::Private,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
];
/// Embedded stacks, of one program.
const THREADS: [System; 3] = [System::Tidewall, System::SoftLrp, System::Bsd];

fn curves((config, capacity): Bed, quick: bool, compute: usize) -> Vec<Curve> {
    let service = |kind, number: usize, work| ServiceSpec {
        kind,
        port: PORTS[number],
        work,
    };
    let ping = |number: usize, rate| PingSpec {
        outstanding: OUTSTANDING,
        rate,
        ..PingSpec::new(server(PORTS[number]))
    };
    let long = LoadSpec {
        duration: WINDOW,
        ..load(config)
    };
    let one = LoadSpec {
        ping: Some(ping(0, None)),
        ..long.clone()
    };
    let beside = |load: &LoadSpec, rate| LoadSpec {
        beside: vec![ping(1, rate)],
        ..load.clone()
    };
    let blasted = LoadSpec {
        blast: capacity.blast(SenderKind::Skb, PORTS[0], Some(BLAST)),
        ..long.clone()
    };
    let even = beside(&one, None);
    let pace = capacity.rate(Some(PACE));
    let curve = |system, setting, first, load: &LoadSpec| Curve {
        system,
        setting: Some(setting),
        y: Some(FIRST),
        services: vec![first],
        batches: true,
        loads: vec![load.clone()],
        ..Curve::default()
    };
    let echo = |calls: &Calls| service(Kind::Echo, 0, calls.work);
    let mut curves = vec![Curve {
        y: None,
        beside: vec![Beside::Computes(compute)],
        ..curve(
            System::LinuxRps,
            WORKER_ALONE,
            service(Kind::Echo, 0, 0),
            &LoadSpec {
                ping: Some(ping(0, Some(10))),
                ..long.clone()
            },
        )
    }];
    for system in PROCESSES {
        let three = |alone: Curve, setting, load: LoadSpec, work| Curve {
            setting: Some(setting),
            y: None,
            beside: vec![
                Beside::Serves(service(Kind::Echo, 1, work)),
                Beside::Computes(compute),
            ],
            loads: vec![load],
            ..alone
        };
        for calls in &CALLS {
            // The claims use one kind of call on Linux.
            if quick && system.is_linux() && calls.name != MEDIUM.name {
                continue;
            }
            let alone = curve(system, calls.alone, echo(calls), &one);
            curves.push(three(alone.clone(), calls.both, even.clone(), calls.work));
            curves.push(alone);
        }
        let alone = curve(system, MEDIUM.alone, echo(&MEDIUM), &one);
        curves.push(three(alone, QUIET, beside(&one, pace), MEDIUM.work));
        let discard = service(Kind::Discard, 0, MEDIUM.work);
        let alone = curve(system, BLASTED_ALONE, discard, &blasted);
        let load = beside(&blasted, pace);
        curves.push(three(alone.clone(), BLASTED, load, MEDIUM.work));
        curves.push(alone);
    }
    for system in THREADS {
        for calls in &CALLS {
            curves.push(Curve {
                services: vec![echo(calls), service(Kind::Echo, 1, calls.work)],
                y: None,
                compute: Some(compute),
                ..curve(system, calls.both, echo(calls), &even)
            });
        }
    }
    curves
}

/// Returns the bytes of a processor's second level cache.
fn second_level_cache(cpu: usize) -> Option<usize> {
    let text = |index: u32, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}");
        std::fs::read_to_string(path).ok()
    };
    (0..8)
        .find(|&index| text(index, "level").is_some_and(|level| level.trim() == "2"))
        .and_then(|index| size(text(index, "size")?.trim()))
}

/// Parses a size as in sysfs, such as `2048K`.
fn size(text: &str) -> Option<usize> {
    let (number, shift) = match text.strip_suffix('K') {
        Some(number) => (number, 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 20),
            None => (text, 0),
        },
    };
    Some(number.parse::<usize>().ok()? << shift)
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let cache = second_level_cache(bed.0.server_cpu);
    let compute = (CACHE_SHARE * cache.unwrap_or(CACHE_BYTES) as f64) as usize;
    let curves = curves(bed, run.options.quick, compute);
    run.series = run.sweep(&curves, run.options.within(5, 300), reduce)?;
    run.note(format!(
        "The worker goes through {} KiB of memory ({}). Two servers echo, with {OUTSTANDING} \
         requests waiting at each. A quiet server is asked {PACE} of bare's capacity in \
         requests/s, of which up to {OUTSTANDING} may be under way; a blast is {BLAST} of that \
         capacity. private and linux-*: three processes; tidewall, soft-lrp and bsd: three \
         threads of one program.",
        compute >> 10,
        match cache {
            Some(_) => "35 % of the second level cache",
            None => "the kernel does not show the cache's size",
        }
    ));
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let first = match &report.ping {
        Some(ping) => ping.rate,
        None => measured.outcome.delivered.first().copied()?,
    };
    let second = report.beside.first().map(|ping| ping.rate);
    let usage = measured.outcome.usage.as_ref()?;
    let shares = &measured.shares;
    let mut values = BTreeMap::from([
        (FIRST.to_owned(), first),
        (BUSY.to_owned(), 100.0 * (1.0 - usage.left())),
    ]);
    if let Some(second) = second {
        values.insert(SECOND.to_owned(), second);
    }
    if let Some(rate) = load.beside.first().and_then(|ping| ping.rate) {
        values.insert(ASKED.to_owned(), rate as f64);
    }
    if let [second, worker] = *shares.beside {
        let ran = [shares.service, second, worker, shares.pollers];
        values.extend(
            RAN.into_iter()
                .map(str::to_owned)
                .zip(ran.map(|it| 100.0 * it)),
        );
    }
    let computes = curve.compute.is_some()
        || curve
            .beside
            .iter()
            .any(|it| matches!(it, Beside::Computes(_)));
    Some(Sample {
        x: first + second.unwrap_or(0.0),
        y: if computes { measured.steps } else { first },
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

/// The progress of three processes in a setting, to be divided by their progress alone.
struct Done<'a> {
    point: &'a Point,
    /// The first server alone.
    alone: &'a Point,
    worker: f64,
}

impl<'a> Done<'a> {
    fn of(series: &'a [Series], system: &str, setting: &str, alone: &str) -> Option<Self> {
        let last = |system: &str, setting| find(series, system, Some(setting))?.last();
        let point = last(system, setting)?;
        Some(Done {
            point,
            alone: last(system, alone)?,
            worker: share(series, point)?,
        })
    }

    /// Returns a server's share of the processor: its calls times the duration of one
    /// call when alone.
    fn server(&self, calls: &str) -> Option<f64> {
        let value = |point: &Point, name: &str| point.values.get(name).copied();
        let busy = value(self.alone, BUSY)? / 100.0;
        Some(value(self.point, calls)? / value(self.alone, FIRST)? * busy)
    }

    /// Returns each share over its due, of the worker and the servers with requests waiting.
    fn over_due(&self) -> Option<Vec<f64>> {
        if !self.point.values.contains_key(ASKED) {
            let all = [Some(self.worker), self.server(FIRST), self.server(SECOND)];
            return all.into_iter().map(|it| Some(it? / IDEAL)).collect();
        }
        let quiet = self.point.values.get(RAN[1])? / 100.0;
        let due = (1.0 - quiet) / 2.0;
        let both = [Some(self.worker), self.server(FIRST)];
        both.into_iter().map(|it| Some(it? / due)).collect()
    }

    fn extreme(&self, of: fn(f64, f64) -> f64) -> Option<f64> {
        self.over_due()?.into_iter().reduce(of)
    }

    /// Returns the quiet server's answers over its requests.
    fn answered(&self) -> Option<f64> {
        let values = &self.point.values;
        Some(values.get(SECOND)? / values.get(ASKED)?)
    }
}

/// Returns the worker's share: its progress over its progress alone.
fn share(series: &[Series], point: &Point) -> Option<f64> {
    let alone = find(series, System::LinuxRps.name(), Some(WORKER_ALONE))?.last()?;
    (alone.y > 0.0).then(|| point.y / alone.y)
}

/// Returns the loads of three processes: name, settings of the load and of the first
/// server when alone, in words, and each one's due.
fn loads() -> impl Iterator<Item = (String, &'static str, &'static str, String)> {
    const DUE: &str = "(each is due half of the time that the quiet server leaves)";
    let even = CALLS.iter().map(|calls| {
        let text = format!("{} (each is due a third)", calls.both);
        (calls.name.to_owned(), calls.both, calls.alone, text)
    });
    let uneven = [
        ("quiet", QUIET, MEDIUM.alone),
        ("blasted", BLASTED, BLASTED_ALONE),
    ];
    even.chain(uneven.map(|(name, setting, alone)| {
        (name.to_owned(), setting, alone, format!("{setting} {DUE}"))
    }))
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = of_processes(series);
    claims.extend(of_threads(series));
    claims
}

/// Returns the claims of Table 2 with one process for each.
fn of_processes(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (name, setting, alone, text) in loads() {
        let private = Done::of(series, "private", setting, alone);
        let extreme = |of| private.as_ref().and_then(|done| done.extreme(of));
        claims.push(Claim::at_least(
            format!("{name}-least"),
            format!("three processes, private, {text}: the smallest share over its due"),
            extreme(f64::min),
            0.9,
        ));
        claims.push(Claim::at_most(
            format!("{name}-most"),
            format!("three processes, private, {text}: the largest share over its due"),
            extreme(f64::max),
            1.1,
        ));
        let is_quiet = [QUIET, BLASTED].contains(&setting);
        if is_quiet {
            claims.push(Claim::at_least(
                format!("{name}-answered"),
                format!("{setting}, private: the quiet server's answers over its requests"),
                private.as_ref().and_then(Done::answered),
                0.9,
            ));
        }
        let elapsed = private.map(|done| WORK_SECONDS / done.worker);
        claims.push(
            Claim::new(
                format!("{name}-elapsed"),
                format!("{setting}, private: the worker's time for {WORK_SECONDS} s of work, s"),
                elapsed,
            )
            // Text: shares of 29 to 33 %.
            .paper(WORK_SECONDS / 0.33),
        );
        // A quick run measures Linux with one kind of call.
        if [CALLS[0].both, CALLS[2].both].contains(&setting) {
            continue;
        }
        for system in System::LINUX {
            let system = system.name();
            let done = Done::of(series, system, setting, alone);
            let answered = done.as_ref().and_then(Done::answered);
            claims.push(Claim::new(
                format!("{name}-{system}-least"),
                format!("{setting}, {system}: the smallest share over its due"),
                done.and_then(|done| done.extreme(f64::min)),
            ));
            if is_quiet {
                claims.push(Claim::new(
                    format!("{name}-{system}-answered"),
                    "the same: the quiet server's answers over its requests",
                    answered,
                ));
            }
        }
    }
    let medium = |of: fn(&Point) -> f64| {
        let figure = move |series: &Series| series.last().map(of).filter(|it| *it > 0.0);
        let ours = find(series, "private", Some(MEDIUM.both)).and_then(figure);
        (ours, best_linux(series, Some(MEDIUM.both), figure))
    };
    let (calls, steps) = (medium(|point| point.x), medium(|point| point.y));
    claims.push(Claim::new(
        "calls-vs-linux",
        "medium calls, private: calls/s over the best Linux mode's",
        ratio(calls.0, calls.1),
    ));
    claims.push(Claim::new(
        "elapsed-vs-linux",
        "the same: the worker's completion time over that of the quickest Linux mode",
        ratio(steps.1, steps.0),
    ));
    claims
}

/// Returns the claims of Table 2 with threads of one program over an embedded stack, and
/// the paper's comparators.
fn of_threads(series: &[Series]) -> Vec<Claim> {
    let last = |system: &str, setting| find(series, system, Some(setting))?.last();
    let point = |calls: &Calls| last("tidewall", calls.both);
    let shares: Option<Vec<f64>> = CALLS
        .iter()
        .map(|calls| share(series, point(calls)?))
        .collect();
    let extreme = |of: fn(f64, f64) -> f64| shares.iter().flatten().copied().reduce(of);
    let mut claims = vec![
        Claim::at_least(
            "share-low",
            "the worker's share of the processor beside two servers, threads, tidewall: the \
             smallest of fast, medium and slow calls",
            extreme(f64::min),
            0.31,
        )
        .paper(0.29),
        Claim::at_most(
            "share-high",
            "the same: the largest (a third is its due)",
            extreme(f64::max),
            0.35,
        )
        .paper(IDEAL),
    ];
    for calls in &CALLS {
        let over = |above: Option<&Point>, below: Option<&Point>, of: fn(&Point) -> f64| {
            ratio(above.map(of), below.map(of).filter(|it| *it > 0.0))
        };
        let (ours, bsd) = (point(calls), last("bsd", calls.both));
        let name = calls.name;
        let pairs = [
            (
                format!("{name}-elapsed-vs-bsd"),
                "the worker's completion time",
                over(bsd, ours, |point| point.y),
                calls.paper.map(|paper| paper.0),
            ),
            (
                format!("{name}-calls-vs-bsd"),
                "calls/s",
                over(ours, bsd, |point| point.x),
                calls.paper.map(|paper| paper.1),
            ),
        ];
        claims.extend(pairs.map(|(id, what, measured, paper)| Claim {
            paper,
            ..Claim::new(
                id,
                format!("{}, threads: {what}, tidewall over bsd", calls.both),
                measured,
            )
        }));
    }
    claims
}

#[cfg(test)]
mod tests;
