//! The CPU time of a request on the program's processor, at a quarter of what Linux
//! serves; counted as in `http-cost`.

use std::collections::BTreeMap;
use std::time::Instant;

use tidewall_load::LoadSpec;

use super::super::{Experiment, Run, USUAL, best_linux, quickest_linux, ratio};
use super::{
    Asked, LINUX, OURS, SYSTEMS, curves, installed, note_programs, origin, rate, reduce, site,
};
use crate::bench::Measured;
use crate::result::{Claim, Series, find};
use crate::sweep::{Better, Curve, Plan, Sample};
use crate::testbed::BusyTimeout;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-cost",
    paper: "beyond the papers",
    about: "the programs of `unmodified` below saturation: processor time a request",
    x: "% of what the best Linux mode serves",
    y: "µs of the server's processor a request",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["client on kernel sockets, epoll, an open loop"],
    measure,
    claims,
    ..USUAL
};

/// Offered rate, as a share of what the best Linux mode serves.
const SHARE: f64 = 0.25;
const WAKE_UPS: &str = "wake-ups a request";

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let site = site()?;
    let _origin = origin(run, &site)?;
    let asked = installed(run, &site);
    let begun = Instant::now();
    let rounds = if run.options.quick { 1 } else { 3 };
    let full = run.sweep_part(
        "unmodified-cost, saturation",
        &curves(&LINUX, &asked, &site, |asked| {
            Some(asked.load(config, None))
        }),
        Plan::exactly(rounds),
        reduce,
    )?;
    run.spent += begun.elapsed();
    let saturation: BTreeMap<&str, f64> = asked
        .iter()
        .filter_map(|asked| {
            let setting = asked.setting();
            Some((setting, best_linux(&full, Some(setting), Series::peak)?))
        })
        .collect();
    let below = |asked: Asked| {
        let rate = SHARE * saturation.get(asked.setting())?;
        Some(asked.load(config, Some((rate as u64).max(1))))
    };
    let mut cheap = curves(&SYSTEMS, &asked, &site, below);
    for curve in &mut cheap {
        curve.better = Better::Lower;
    }
    run.series = run.sweep(&cheap, run.options.within(5, 220), cost)?;
    note_programs(run);
    for (setting, rate) in &saturation {
        run.note(format!(
            "{setting}: the best Linux mode served {rate:.0} requests/s."
        ));
    }
    Ok(())
}

/// Reduces a load to CPU time per request.
fn cost(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let served = rate(report).filter(|served| *served > 0.0)?;
    let usage = measured.outcome.usage?;
    let mut values = super::super::tcp::values(report);
    values.insert("requests/s".to_owned(), served);
    values.insert(WAKE_UPS.to_owned(), usage.sleeps / served);
    Some(Sample {
        x: 100.0 * SHARE,
        y: 1e6 * (1.0 - usage.idle) / served,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let cost = |series: &Series| series.points.first().map(|point| point.y);
    let claim = |asked: Asked| {
        let setting = Some(asked.setting());
        Claim::at_most(
            format!("{}-cost", asked.id()),
            format!(
                "{}, at a quarter of the best Linux mode's rate: CPU time per request by \
                 `tidewall run` over the best Linux mode's",
                asked.setting()
            ),
            ratio(
                find(series, OURS, setting).and_then(cost),
                quickest_linux(series, setting, cost),
            ),
            1.0,
        )
    };
    Asked::ALL.map(claim).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    #[test]
    fn claims_compare_with_the_cheapest_of_linux() {
        let series: Vec<Series> = Asked::ALL
            .into_iter()
            .flat_map(|asked| {
                let of = |system, cost| curve(system, Some(asked.setting()), &[(25.0, cost)]);
                [
                    of(OURS, 9.0),
                    of("linux-rps", 10.0),
                    of("linux-timer", 12.0),
                ]
            })
            .collect();
        let ids = Asked::ALL.map(|asked| format!("{}-cost", asked.id()));
        let expected: Vec<(&str, f64)> = ids.iter().map(|id| (id.as_str(), 0.9)).collect();
        all_hold(&claims(&series), &expected);
    }
}
