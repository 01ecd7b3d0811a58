//! Requests/s that the programs serve without other load.

use super::super::{Experiment, Run, USUAL, best_linux, ratio};
use super::{Asked, OURS, SYSTEMS, curves, installed, note_programs, origin, reduce, site};
use crate::result::{Claim, Series, find};
use crate::testbed::BusyTimeout;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified",
    paper: "beyond the papers",
    about: "redis, memcached, unbound, nginx, haproxy by `tidewall run` and on Linux: requests/s",
    x: "blast, packets/s offered",
    y: "requests/s",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["client on kernel sockets, epoll, a closed loop"],
    measure,
    claims,
    ..USUAL
};

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let site = site()?;
    let _origin = origin(run, &site)?;
    let asked = installed(run, &site);
    let curves = curves(&SYSTEMS, &asked, &site, |asked| {
        Some(asked.load(config, None))
    });
    run.series = run.sweep(&curves, run.options.within(5, 200), reduce)?;
    note_programs(run);
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let claim = |asked: Asked| {
        let setting = Some(asked.setting());
        Claim::at_least(
            asked.id(),
            format!(
                "{}: requests/s by `tidewall run` over the best Linux mode's",
                asked.setting()
            ),
            ratio(
                find(series, OURS, setting).and_then(Series::peak),
                best_linux(series, setting, Series::peak),
            ),
            1.3,
        )
    };
    Asked::ALL.map(claim).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    #[test]
    fn claims_compare_with_the_best_of_linux() {
        let series: Vec<Series> = Asked::ALL
            .into_iter()
            .flat_map(|asked| {
                let of = |system, rate| curve(system, Some(asked.setting()), &[(0.0, rate)]);
                [of(OURS, 1.6e5), of("linux-rps", 1e5), of("linux-busy", 8e4)]
            })
            .collect();
        let expected = Asked::ALL.map(|asked| (asked.id(), 1.6));
        all_hold(&claims(&series), &expected);
    }
}
