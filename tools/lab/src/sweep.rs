//! Many measurements, in rounds, made into curves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidewall_load::LoadSpec;
use tidewall_service::ServiceSpec;
use tidewall_service::linux::Receive;

use crate::bench::{Bench, Measured, Setup, Watching};
use crate::capacity::Capacity;
use crate::interrupt::{self, Interrupted};
use crate::progress::Progress;
use crate::result::{Point, Series};
use crate::system::{Control, System};
use crate::worker::{ClassSpec, TcpSpec};

/// One curve to be measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    pub(crate) system: System,
    pub(crate) setting: Option<&'static str>,
    /// The vertical axis where it is not the experiment's.
    pub(crate) y: Option<&'static str>,
    pub(crate) spin: Option<u32>,
    /// Receive control, whose policy then names the series.
    pub(crate) control: Option<Control>,
    /// Traffic classes, queue by queue.
    pub(crate) classes: Vec<ClassSpec>,
    /// How its loads are looked at.
    pub(crate) watching: Watching,
    pub(crate) services: Vec<ServiceSpec>,
    /// Served over TCP, in place of the services.
    pub(crate) tcp: Option<TcpSpec>,
    /// Bytes that a thread beside the services computes over.
    pub(crate) compute: Option<usize>,
    pub(crate) loads: Vec<LoadSpec>,
    /// Which of two results is the better.
    pub(crate) better: Better,
}

impl Curve {
    /// `loads` against a service over TCP.
    pub(crate) fn over_tcp(system: System, tcp: TcpSpec, loads: Vec<LoadSpec>) -> Self {
        Curve {
            system,
            tcp: Some(tcp),
            loads,
            ..Curve::default()
        }
    }

    /// What is served, receiving in one of its ways.
    pub(crate) fn setup(&self, receive: Option<Receive>) -> Setup {
        Setup {
            system: self.system,
            receive,
            spin: self.spin,
            control: self.control,
            classes: self.classes.clone(),
            services: self.services.clone(),
            tcp: self.tcp.clone(),
            compute: self.compute,
        }
    }

    /// The ways of receiving to try: datagrams have two under Linux.
    fn variants(&self) -> &'static [Option<Receive>] {
        match self.tcp {
            Some(_) => &[None],
            None => self.system.variants(),
        }
    }

    /// Its name in results: the policy's or the way of waiting's where that is
    /// what is compared.
    pub(crate) fn name(&self) -> &'static str {
        let waiting = self.tcp.as_ref();
        if let Some(name) = waiting.and_then(|tcp| tcp.name(self.system.is_linux())) {
            return name;
        }
        self.control
            .map_or(self.system.name(), |control| control.policy.name())
    }
}

/// Which of two results is the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Better {
    #[default]
    Higher,
    Lower,
}

impl Better {
    fn of(self, a: f64, b: f64) -> bool {
        match self {
            Better::Higher => a > b,
            Better::Lower => a < b,
        }
    }
}

/// One measurement made into numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) drops: BTreeMap<String, f64>,
    pub(crate) values: BTreeMap<String, f64>,
}

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Most rounds. A round measures every point once.
    pub(crate) rounds: u32,
    /// No round begins that would end later than this after the start; the
    /// first always begins.
    pub(crate) budget: Option<Duration>,
}

impl Plan {
    /// For one of `parts` sweeps that share the time.
    pub(crate) fn shared(self, parts: u32) -> Self {
        Plan {
            budget: self.budget.map(|budget| budget / parts.max(1)),
            ..self
        }
    }
}

/// Curves and what went wrong.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) series: Vec<Series>,
    pub(crate) notes: Vec<String>,
}

/// Measures all curves, round by round, every other round backwards so that
/// what changes with time changes all alike. `reduce` makes numbers of a
/// measurement, whose load is told as a share of the `capacity` where that is
/// known; `None` when nothing was measured, which is a failed set-up: it
/// is tried once more, then noted and left out.
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn sweep(
    bench: &mut Bench,
    name: &str,
    curves: &[Curve],
    plan: Plan,
    capacity: Option<&Capacity>,
    progress: &mut dyn Progress,
    reduce: impl Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>,
) -> anyhow::Result<Swept> {
    let mut jobs: Vec<(usize, Option<Receive>)> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        jobs.extend(curve.variants().iter().map(|&variant| (number, variant)));
    }
    let steps: u64 = jobs
        .iter()
        .filter_map(|(number, _)| curves.get(*number))
        .map(|curve| curve.loads.len() as u64)
        .sum();
    let mut tables: BTreeMap<Key, Vec<Sample>> = BTreeMap::new();
    let mut swept = Swept::default();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    for round in 0..plan.rounds {
        let begun = Instant::now();
        if round > 0
            && plan
                .budget
                .is_some_and(|budget| start.elapsed() + longest > budget)
        {
            break;
        }
        progress.begin(&format!("{name}, round {}", round + 1), steps);
        for &(number, variant) in &jobs {
            let Some(curve) = curves.get(number) else {
                continue;
            };
            let mut one = One {
                bench,
                curve,
                variant,
                reduce: &reduce,
                notes: &mut swept.notes,
            };
            for (place, sample) in one.measure(progress)? {
                tables
                    .entry((number, variant.map(|v| v as u8), place))
                    .or_default()
                    .push(sample);
            }
        }
        progress.end();
        jobs.reverse();
        longest = longest.max(begun.elapsed());
    }
    swept.series = curves
        .iter()
        .enumerate()
        .map(|(number, curve)| assemble(number, curve, &tables, capacity))
        .collect();
    Ok(swept)
}

/// Number of the curve, variant, number of the load.
type Key = (usize, Option<u8>, usize);

/// One curve's turn in a round.
struct One<'a, R> {
    bench: &'a mut Bench,
    curve: &'a Curve,
    variant: Option<Receive>,
    reduce: &'a R,
    notes: &'a mut Vec<String>,
}

impl<R: Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>> One<'_, R> {
    fn measure(&mut self, progress: &mut dyn Progress) -> anyhow::Result<Vec<(usize, Sample)>> {
        let mut samples = Vec::new();
        let mut missing: Vec<usize> = (0..self.curve.loads.len()).collect();
        let mut reasons = Vec::new();
        for attempt in 0..2 {
            if missing.is_empty() {
                break;
            }
            if attempt > 0 {
                progress.line(&format!(
                    "{}: once more: {}",
                    self.what(),
                    reasons.join("; ")
                ));
            }
            reasons.clear();
            match self.attempt(&missing, progress, &mut samples, &mut reasons) {
                Ok(()) => {}
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => reasons.push(format!("{error:#}")),
            }
            interrupt::check()?;
            missing.retain(|place| !samples.iter().any(|(done, _)| done == place));
        }
        for place in missing {
            let reason = if reasons.is_empty() {
                String::new()
            } else {
                format!(": {}", reasons.join("; "))
            };
            self.note(format!(
                "{}: set-up failed twice at {}; not measured{reason}",
                self.what(),
                self.curve
                    .loads
                    .get(place)
                    .map(describe)
                    .unwrap_or_default()
            ));
        }
        Ok(samples)
    }

    fn attempt(
        &mut self,
        places: &[usize],
        progress: &mut dyn Progress,
        samples: &mut Vec<(usize, Sample)>,
        reasons: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let what = self.what();
        let setup = self.curve.setup(self.variant);
        let mut session = self.bench.serve(&setup)?;
        for &place in places {
            let Some(load) = self.curve.loads.get(place) else {
                continue;
            };
            let measured = session.measure(load, self.curve.watching)?;
            match (self.reduce)(self.curve, load, &measured) {
                Some(sample) => {
                    progress.step(&format!("{what}: {} → {:.0}", describe(load), sample.y));
                    samples.push((place, sample));
                }
                None => reasons.push(format!("no answer at {}", describe(load))),
            }
        }
        Ok(())
    }

    fn what(&self) -> String {
        let mut text = self.curve.name().to_owned();
        if let Some(variant) = self.variant {
            text += &format!(" ({variant})");
        }
        if let Some(setting) = self.curve.setting {
            text += &format!(", {setting}");
        }
        text
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}

/// A load in a few words.
fn describe(load: &LoadSpec) -> String {
    let mut parts = Vec::new();
    if let Some(blast) = &load.blast {
        let last = blast.steps.last().map(|step| step.rate);
        parts.push(match last.or(blast.rate) {
            Some(rate) => format!("{rate}/s"),
            None => format!("full speed ({})", blast.kind),
        });
        if load.ping.is_some() || load.http.is_some() {
            parts.push(format!("at port {}", blast.destination.port()));
        }
    }
    if let Some(ping) = &load.ping {
        parts.push(format!("{} × {} bytes", ping.outstanding, ping.payload));
    }
    for ping in &load.beside {
        parts.push(format!("{} × {} bytes", ping.outstanding, ping.payload));
    }
    if let Some(idle) = &load.idle {
        parts.push(format!("{} idle connections", idle.connections));
    }
    if let Some(http) = &load.http {
        parts.push(match http.rate {
            Some(rate) => format!("{rate} requests/s"),
            None => format!("{} connections", http.connections),
        });
    }
    if let Some(s_clients) = &load.s_clients {
        parts.push(format!("{} connections/s", s_clients.rate));
    }
    if let Some(probe) = &load.probe {
        parts.push(format!("{} new clients/s", probe.rate));
    }
    if let Some(stream) = &load.stream {
        parts.push(format!("{} bytes at a time", stream.size));
    }
    parts.join(", ")
}

/// The better variant at every point, medians over the rounds.
fn assemble(
    number: usize,
    curve: &Curve,
    tables: &BTreeMap<Key, Vec<Sample>>,
    capacity: Option<&Capacity>,
) -> Series {
    let points = (0..curve.loads.len())
        .filter_map(|place| {
            let mut best: Option<Point> = None;
            for variant in curve.variants() {
                let key = (number, variant.map(|v| v as u8), place);
                let point = tables
                    .get(&key)
                    .and_then(|samples| point(samples))
                    .map(|point| Point {
                        share: capacity
                            .zip(curve.loads.get(place))
                            .and_then(|(capacity, load)| capacity.share(load, point.x)),
                        variant: variant.map(|variant| variant.to_string()),
                        ..point
                    });
                if let Some(point) = point
                    && best
                        .as_ref()
                        .is_none_or(|best| curve.better.of(point.y, best.y))
                {
                    best = Some(point);
                }
            }
            best
        })
        .collect();
    Series {
        system: curve.name().to_owned(),
        setting: curve.setting.map(str::to_owned),
        y: curve.y.map(str::to_owned),
        points,
        summary: BTreeMap::new(),
    }
}

/// Medians over the runs of one point.
pub(crate) fn point(samples: &[Sample]) -> Option<Point> {
    let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    let ys = all(|sample| sample.y);
    let medians = |of: fn(&Sample) -> &BTreeMap<String, f64>| {
        let mut table: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, value) in samples.iter().flat_map(of) {
            table.entry(name).or_default().push(*value);
        }
        table
    };
    Some(Point {
        x: median(&all(|sample| sample.x))?,
        y: median(&ys)?,
        low: ys.iter().copied().min_by(f64::total_cmp)?,
        high: ys.iter().copied().max_by(f64::total_cmp)?,
        runs: samples.len() as u32,
        // Where a run dropped nothing at a place, that counts as zero.
        drops: medians(|sample| &sample.drops)
            .into_iter()
            .filter_map(|(place, mut rates)| {
                rates.resize(samples.len(), 0.0);
                Some((place.to_owned(), median(&rates)?))
            })
            .filter(|(_, rate)| *rate > 0.0)
            .collect(),
        values: medians(|sample| &sample.values)
            .into_iter()
            .filter_map(|(name, values)| Some((name.to_owned(), median(&values)?)))
            .collect(),
        ..Point::default()
    })
}

/// The middle value; of an even number the mean of the middle two.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted.get(middle.checked_sub(1)?)? + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load;
    use crate::testbed::Config;

    fn sample(x: f64, y: f64, drops: &[(&str, f64)]) -> Sample {
        Sample {
            x,
            y,
            drops: drops
                .iter()
                .map(|(place, rate)| ((*place).to_owned(), *rate))
                .collect(),
            values: BTreeMap::from([("p99".to_owned(), y * 2.0)]),
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn a_point_is_the_median_of_its_runs() {
        let samples = [
            sample(10.0, 5.0, &[("ring", 3.0)]),
            sample(12.0, 9.0, &[("ring", 1.0), ("channel", 8.0)]),
            sample(11.0, 7.0, &[]),
        ];
        let point = point(&samples).unwrap();
        assert_eq!(
            (point.x, point.y, point.low, point.high, point.runs),
            (11.0, 7.0, 5.0, 9.0, 3)
        );
        assert_eq!(point.drops, BTreeMap::from([("ring".to_owned(), 1.0)]));
        assert_eq!(point.values["p99"], 14.0);
    }

    #[test]
    fn the_better_variant_counts_at_each_point() {
        let curve = |better| Curve {
            system: System::LinuxRps,
            loads: vec![load(Config::default()); 2],
            better,
            ..Curve::default()
        };
        let (recv, batch) = (Some(Receive::Recv as u8), Some(Receive::Recvmmsg as u8));
        let tables = BTreeMap::from([
            ((0, recv, 0), vec![sample(1.0, 5.0, &[])]),
            ((0, batch, 0), vec![sample(1.0, 6.0, &[])]),
            ((0, recv, 1), vec![sample(2.0, 5.0, &[])]),
        ]);
        let series = assemble(0, &curve(Better::Higher), &tables, None);
        assert_eq!(series.points.len(), 2);
        assert_eq!(series.points[0].variant.as_deref(), Some("recvmmsg"));
        assert_eq!(series.points[1].variant.as_deref(), Some("recv"));
        let series = assemble(0, &curve(Better::Lower), &tables, None);
        assert_eq!(series.points[0].variant.as_deref(), Some("recv"));
        assert!(
            assemble(1, &curve(Better::Higher), &tables, None)
                .points
                .is_empty()
        );
    }
}
