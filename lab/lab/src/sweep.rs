//! Many measurements, made in rounds and combined into curves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidewall_load::LoadSpec;
use tidewall_service::linux::Receive;

use crate::bench::{Bench, Measured, Setup};
use crate::capacity::{Capacity, Probed};
use crate::interrupt::{self, Interrupted};
use crate::progress::Progress;
pub(crate) use crate::result::Sample;
use crate::result::{Point, Series};

mod plan;

pub(crate) use plan::{Better, Curve, Plan};

/// Curves and errors.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) series: Vec<Series>,
    pub(crate) notes: Vec<String>,
}

/// The surroundings of a sweep.
pub(crate) struct Around<'a> {
    pub(crate) name: &'a str,
    /// The capacity of `bare`, if loads are shares of it; it is then probed with every
    /// round.
    pub(crate) capacity: Option<&'a mut Probed>,
    /// Returns true if these curves leave no claim open.
    pub(crate) decided: &'a dyn Fn(&[Series]) -> bool,
}

/// Measures all curves, round by round. Every other round runs backwards, so that changes
/// over time affect all alike. `reduce` converts a measurement to numbers. It returns
/// `None` if nothing was measured, which is a failed set-up: it is tried once more, then
/// noted and left out. A round in which `bare`'s result is far lower or higher than usual
/// is repeated. The loads follow if the machine has changed its speed, unless they are to
/// be [steady](Probed::steady).
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn sweep(
    bench: &mut Bench,
    around: Around<'_>,
    curves: &[Curve],
    plan: Plan,
    progress: &mut dyn Progress,
    reduce: impl Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>,
) -> anyhow::Result<Swept> {
    let Around {
        name,
        mut capacity,
        decided,
    } = around;
    let mut turns = turns_of(curves);
    let mut tables = Tables::default();
    let mut swept = Swept::default();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut done = 0;
    let mut disturbed = 0;
    loop {
        let begun = Instant::now();
        let steps = places(&turns);
        progress.begin(&format!("{name}, round {}", done + 1), steps);
        let curves_now = at_speed(curves, capacity.as_deref().map_or(1.0, Probed::loads));
        let mut samples = Vec::new();
        for turn in &mut turns {
            let begun = Instant::now();
            let mut one = One {
                bench,
                curves: &curves_now,
                turn,
                retry_within: if plan.brief {
                    RETRY_WITHIN
                } else {
                    Duration::MAX
                },
                reduce: &reduce,
                notes: &mut swept.notes,
            };
            samples.extend(one.measure(progress)?);
            turn.took = begun.elapsed();
        }
        progress.end();
        let usual = match capacity.as_deref_mut() {
            Some(capacity) => capacity.probe(bench)?,
            None => true,
        };
        turns.reverse();
        longest = longest.max(begun.elapsed());
        if !usual
            && disturbed < DISTURBED_MAX
            && plan.has_time_for_more(done, start.elapsed(), longest)
        {
            disturbed += 1;
            continue;
        }
        for (key, sample) in samples {
            let samples = tables.entry(key).or_default();
            samples.push(Sample {
                round: done,
                ..sample
            });
        }
        done += 1;
        swept.series = assemble(curves, &tables, capacity.as_deref().map(|it| it.capacity));
        if plan.brief && done == 1 {
            let before: Duration = turns.iter().map(|turn| turn.took).sum();
            keep_better(&mut turns, &mut tables, curves);
            let after: Duration = turns.iter().map(|turn| turn.took).sum();
            longest = longest.saturating_sub(before.saturating_sub(after));
        }
        if !plan.goes_on(done, start.elapsed() + longest, || decided(&swept.series)) {
            break;
        }
    }
    if disturbed > 0 {
        let text = "rounds were disturbed (bare took far less or more than usual) and made again";
        swept.notes.push(format!("{name}: {disturbed} {text}"));
    }
    if let Some(probed) = capacity.filter(|it| it.speed != 1.0) {
        let loads = if probed.steady { "stayed" } else { "followed" };
        swept.notes.push(format!(
            "{name}: the machine changed its speed; loads {loads}, and bare took {:.2} of its \
             capacity as measured at the start when this ended",
            probed.speed
        ));
    }
    Ok(swept)
}

/// Returns the same curves with their blasts scaled to a machine of this relative speed.
fn at_speed(curves: &[Curve], speed: f64) -> Vec<Curve> {
    let mut curves = curves.to_vec();
    let follow = |rate: &mut u64| *rate = (*rate as f64 * speed).round() as u64;
    let loads = curves.iter_mut().flat_map(|curve| &mut curve.loads);
    for blast in loads.filter_map(|load| load.blast.as_mut()) {
        blast.rate.as_mut().map(follow);
        blast
            .steps
            .iter_mut()
            .for_each(|step| follow(&mut step.rate));
    }
    curves
}

/// In a quick run, a failure that took longer than this is not retried.
const RETRY_WITHIN: Duration = Duration::from_secs(3);
/// Most rounds that are repeated, whatever the time: a machine that is always disturbed
/// stays that way.
const DISTURBED_MAX: u32 = 5;

/// Number of the curve, variant, number of the load.
type Key = (usize, Option<u8>, usize);
/// The samples of each point.
type Tables = BTreeMap<Key, Vec<Sample>>;

fn key(curve: usize, variant: Option<Receive>, place: usize) -> Key {
    (curve, variant.map(|variant| variant as u8), place)
}

/// A service's turn in a round, and its measurements: numbers of curves and of their
/// loads.
struct Turn {
    variant: Option<Receive>,
    setup: Setup,
    places: Vec<(usize, usize)>,
    /// Its duration when last measured, or an estimate of the part that is left.
    took: Duration,
}

/// Returns the number of points per round.
fn places(turns: &[Turn]) -> u64 {
    turns.iter().map(|it| it.places.len() as u64).sum()
}

/// Groups curves by service: one turn for all curves that need the same service.
fn turns_of(curves: &[Curve]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        for &variant in curve.variants() {
            let setup = curve.setup(variant);
            let places = (0..curve.loads.len()).map(|place| (number, place));
            match turns.iter_mut().find(|turn| turn.setup == setup) {
                Some(turn) => turn.places.extend(places),
                None => turns.push(Turn {
                    variant,
                    setup,
                    places: places.collect(),
                    took: Duration::ZERO,
                }),
            }
        }
    }
    turns
}

/// Keeps only the better variant of each point, and no point that could not be measured.
fn keep_better(turns: &mut Vec<Turn>, tables: &mut Tables, curves: &[Curve]) {
    for turn in turns.iter_mut() {
        let before = turn.places.len();
        turn.places.retain(|&(number, place)| {
            let curve = curves.get(number);
            let best = curve.and_then(|curve| better(number, curve, place, tables));
            best.is_some_and(|(variant, _)| variant == turn.variant)
        });
        let left = turn.places.len() as f64 / before.max(1) as f64;
        turn.took = turn.took.mul_f64(left);
    }
    turns.retain(|turn| !turn.places.is_empty());
    tables.retain(|&(number, variant, place), _| {
        let mut kept = turns.iter();
        kept.any(|turn| {
            turn.variant.map(|variant| variant as u8) == variant
                && turn.places.contains(&(number, place))
        })
    });
}

/// Returns the better variant at a point, and the point.
fn better(
    number: usize,
    curve: &Curve,
    place: usize,
    tables: &Tables,
) -> Option<(Option<Receive>, Point)> {
    let points = curve.variants().iter().filter_map(|&variant| {
        let samples = tables.get(&key(number, variant, place))?;
        Some((variant, point(samples)?))
    });
    points.reduce(|best, other| {
        if curve.better.of(other.1.y, best.1.y) {
            other
        } else {
            best
        }
    })
}

/// One service's turn in a round.
struct One<'a, R> {
    bench: &'a mut Bench,
    curves: &'a [Curve],
    turn: &'a Turn,
    /// A set-up that failed within this time is tried once more.
    retry_within: Duration,
    reduce: &'a R,
    notes: &'a mut Vec<String>,
}

impl<R: Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>> One<'_, R> {
    fn measure(&mut self, progress: &mut dyn Progress) -> anyhow::Result<Vec<(Key, Sample)>> {
        let mut samples = Vec::new();
        let mut missing = self.turn.places.clone();
        let mut reasons = Vec::new();
        let begun = Instant::now();
        for attempt in 0..2 {
            let Some(&first) = missing.first() else {
                break;
            };
            if attempt > 0 {
                if begun.elapsed() > self.retry_within {
                    break;
                }
                let what = self.what(first);
                progress.line(&format!("{what}: once more: {}", reasons.join("; ")));
            }
            reasons.clear();
            match self.attempt(&missing, progress, &mut samples, &mut reasons) {
                Ok(()) => {}
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => reasons.push(format!("{error:#}")),
            }
            interrupt::check()?;
            missing.retain(|&of| !samples.iter().any(|(done, _)| *done == self.key(of)));
        }
        for of in missing {
            let reason = if reasons.is_empty() {
                String::new()
            } else {
                format!(": {}", reasons.join("; "))
            };
            let load = self.load(of).map(|(_, load)| describe(load));
            self.note(format!(
                "{}: set-up failed at {}; not measured{reason}",
                self.what(of),
                load.unwrap_or_default()
            ));
        }
        Ok(samples)
    }

    fn attempt(
        &mut self,
        places: &[(usize, usize)],
        progress: &mut dyn Progress,
        samples: &mut Vec<(Key, Sample)>,
        reasons: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let mut service = self.bench.serve(&self.turn.setup)?;
        for &of in places {
            let Some((curve, load)) = load_of(self.curves, of) else {
                continue;
            };
            let measured = service.measure(load, curve.watching)?;
            let what = what(curve, self.turn.variant);
            match (self.reduce)(curve, load, &measured) {
                Some(sample) => {
                    progress.step(&format!("{what}: {} → {:.0}", describe(load), sample.y));
                    samples.push((key(of.0, self.turn.variant, of.1), sample));
                }
                None => reasons.push(format!("no answer at {}", describe(load))),
            }
        }
        Ok(())
    }

    fn key(&self, (curve, place): (usize, usize)) -> Key {
        key(curve, self.turn.variant, place)
    }

    fn load(&self, of: (usize, usize)) -> Option<(&Curve, &LoadSpec)> {
        load_of(self.curves, of)
    }

    fn what(&self, of: (usize, usize)) -> String {
        let curve = self
            .load(of)
            .map(|(curve, _)| what(curve, self.turn.variant));
        curve.unwrap_or_default()
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}

fn load_of(curves: &[Curve], (curve, place): (usize, usize)) -> Option<(&Curve, &LoadSpec)> {
    let curve = curves.get(curve)?;
    Some((curve, curve.loads.get(place)?))
}

/// Describes a curve in a few words.
fn what(curve: &Curve, variant: Option<Receive>) -> String {
    let mut text = curve.name().to_owned();
    if let Some(variant) = variant {
        text += &format!(" ({variant})");
    }
    if let Some(setting) = curve.setting {
        text += &format!(", {setting}");
    }
    text
}

/// Describes a load in a few words.
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

/// Returns the better variant at every point, medians over the rounds.
fn assemble(curves: &[Curve], tables: &Tables, capacity: Option<Capacity>) -> Vec<Series> {
    let of = |(number, curve): (usize, &Curve)| Series {
        system: curve.name().to_owned(),
        setting: curve.setting.map(str::to_owned),
        y: curve.y.map(str::to_owned),
        points: (curve.loads.iter().enumerate())
            .filter_map(|(place, load)| {
                let (variant, point) = better(number, curve, place, tables)?;
                Some(Point {
                    share: capacity.and_then(|capacity| capacity.share(load)),
                    variant: variant.map(|variant| variant.to_string()),
                    ..point
                })
            })
            .collect(),
        summary: BTreeMap::new(),
    };
    curves.iter().enumerate().map(of).collect()
}

/// Returns medians over the runs of one point.
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
        // A place at which a run dropped nothing counts as zero.
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
        samples: samples.to_vec(),
        ..Point::default()
    })
}

/// Returns the middle value; for an even number, the mean of the middle two.
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
    use crate::system::System;
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
            round: 0,
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
        let curves = [curve(Better::Higher), curve(Better::Higher)];
        let series = assemble(&curves, &tables, None);
        assert_eq!(series[0].points.len(), 2);
        assert_eq!(series[0].points[0].variant.as_deref(), Some("recvmmsg"));
        assert_eq!(series[0].points[1].variant.as_deref(), Some("recv"));
        assert!(series[1].points.is_empty());
        let series = assemble(&[curve(Better::Lower)], &tables, None);
        assert_eq!(series[0].points[0].variant.as_deref(), Some("recv"));
        // From then on, only the better variant of each point.
        let mut turns = turns_of(&curves[..1]);
        assert_eq!(turns.len(), 2);
        let mut tables = tables;
        keep_better(&mut turns, &mut tables, &curves[..1]);
        assert_eq!(turns[0].places, [(0, 1)]);
        assert_eq!(turns[1].places, [(0, 0)]);
        assert_eq!(tables.len(), 2);
    }

    #[test]
    fn loads_follow_the_machine() {
        let mut given = load(Config::default());
        given.blast = Some(crate::bench::blast(
            tidewall_load::SenderKind::Skb,
            9,
            Some(1_000_000),
        ));
        let curve = Curve {
            loads: vec![given, load(Config::default())],
            ..Curve::default()
        };
        let faster = at_speed(std::slice::from_ref(&curve), 1.7);
        let rates: Vec<_> = faster[0]
            .loads
            .iter()
            .map(|it| Some(it.blast.as_ref()?.rate))
            .collect();
        assert_eq!(rates, [Some(Some(1_700_000)), None]);
        assert_eq!(
            at_speed(std::slice::from_ref(&curve), 1.0)[0].loads,
            curve.loads
        );
    }

    #[test]
    fn curves_of_the_same_service_share_it() {
        let load = load(Config::default());
        let curve = |system, setting| Curve {
            system,
            setting,
            loads: vec![load.clone(); 2],
            ..Curve::default()
        };
        let turns = turns_of(&[
            curve(System::Bare, None),
            curve(System::Tidewall, None),
            curve(System::Bare, Some("a port nobody owns")),
        ]);
        assert_eq!(turns.len(), 2);
        assert_eq!(turns[0].places, [(0, 0), (0, 1), (2, 0), (2, 1)]);
    }

    #[test]
    fn rounds_go_on_until_all_is_decided_or_time_is_up() {
        let plan = Plan {
            least: 1,
            rounds: 3,
            budget: Duration::from_secs(50),
            brief: true,
        };
        let soon = Duration::from_secs(20);
        let late = Duration::from_secs(51);
        assert!(plan.goes_on(2, soon, || true), "too few for an interval");
        assert!(!plan.goes_on(2, late, || false));
        assert!(!plan.goes_on(3, soon, || true));
        assert!(plan.goes_on(30, soon, || false));
        let ten = Duration::from_secs(10);
        assert!(plan.has_time_for_more(0, soon, ten) && !plan.has_time_for_more(0, soon, 2 * ten));
        assert!(
            plan.has_time_for_more(2, soon, 2 * ten),
            "one more is wanted"
        );
        let exactly = Plan::exactly(4);
        assert!(exactly.has_time_for_more(0, late, ten));
        assert!(exactly.goes_on(3, late, || true));
        assert!(!exactly.goes_on(4, soon, || false));
    }
}
