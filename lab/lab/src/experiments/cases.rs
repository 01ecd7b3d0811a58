//! Experiments whose points are measured one by one, each in its own way.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Run;
use crate::bench::Bench;
use crate::interrupt::{self, Interrupted};
use crate::result::{Series, find};
use crate::sweep::{Plan, Sample, point};
use crate::verdict::{is_decided, judge};

/// A point to measure: its position, and how to measure it.
pub(super) struct Case<T> {
    pub(super) system: &'static str,
    pub(super) setting: &'static str,
    pub(super) x: f64,
    pub(super) what: T,
}

/// Measures every case round by round, in alternating order, until the plan is over or
/// all claims are decided. Adds the curves to the existing ones.
pub(super) fn rounds<T>(
    run: &mut Run<'_>,
    cases: &[Case<T>],
    plan: Plan,
    measure: impl Fn(&mut Bench, &Case<T>) -> anyhow::Result<Sample>,
) -> anyhow::Result<()> {
    let before = run.series.clone();
    let begun = Instant::now();
    let mut measured: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
    for round in 0..plan.rounds {
        let per_round = begun.elapsed() / round.max(1);
        let in_time = begun.elapsed() + per_round <= plan.budget;
        if round >= plan.least && (!in_time || is_decided(&judge(run.claims, &run.series))) {
            break;
        }
        let what = format!("{}, round {}", run.name, round + 1);
        run.progress.begin(&what, cases.len() as u64);
        let mut order: Vec<usize> = (0..cases.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            let Some(case) = cases.get(number) else {
                continue;
            };
            interrupt::check()?;
            let name = format!("{}, {}, {}", case.system, case.setting, case.x);
            match measure(run.bench, case) {
                Ok(sample) => {
                    run.progress.step(&format!("{name}: {:.1}", sample.y));
                    let sample = Sample { round, ..sample };
                    measured.entry(number).or_default().push(sample);
                }
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => run.note(format!("{name}: not measured: {error:#}")),
            }
        }
        run.progress.end();
        run.series = [before.clone(), curves(cases, &measured)].concat();
    }
    Ok(())
}

/// Returns one curve per system and setting.
fn curves<T>(cases: &[Case<T>], measured: &BTreeMap<usize, Vec<Sample>>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let Some(point) = measured.get(&number).and_then(|it| point(it)) else {
            continue;
        };
        let same = |it: &&mut Series| {
            it.system == case.system && it.setting.as_deref() == Some(case.setting)
        };
        match series.iter_mut().find(same) {
            Some(found) => found.points.push(point),
            None => series.push(Series {
                points: vec![point],
                ..Series::named(case.system, case.setting)
            }),
        }
    }
    series
}

/// Returns a value of the curve's point at `x`.
pub(super) fn value(
    series: &[Series],
    (system, setting): (&str, &str),
    x: f64,
    name: &str,
) -> Option<f64> {
    let curve = find(series, system, Some(setting))?;
    let point = curve.points.iter().find(|point| point.x == x)?;
    point.values.get(name).copied()
}
