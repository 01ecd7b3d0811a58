//! Squid as in `select-proxy`, a reverse proxy with two connections per request beside
//! cold ones, on Tidewall and on Linux.

use super::super::select::{Contestant, SMALL, Servers, reduce_by_cold};
use super::super::{Experiment, Run, USUAL, best_linux, ratio};
use super::{OURS, SYSTEMS};
use crate::result::{Claim, Series, find};
use crate::sweep::{Better, Curve};
use crate::testbed::BusyTimeout;
use crate::worker::Waiting;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-squid",
    paper: "select, after Figures 3–5",
    about: "Squid by `tidewall run` and on Linux: requests/s beside 750 cold connections",
    x: "cold connections",
    y: "requests/s",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["client on kernel sockets, epoll, a closed loop"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "squid, a connection a request";
const COLD: u32 = 750;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let servers = Servers::proxies(0)?;
    if !servers.has(Contestant::Program) {
        run.note("Nothing is measured: Squid is not installed (scripts/setup.sh).");
        return Ok(());
    }
    let config = run.config();
    let _origin = servers.origin(run.bench)?;
    let curves: Vec<Curve> = SYSTEMS
        .into_iter()
        .map(|system| {
            let loads = [0, COLD].map(|cold| servers.saturating(config, SMALL, cold));
            let mut curve = servers.curve(Contestant::Program, SETTING, loads.to_vec());
            // The systems are compared, and all of them are Squid.
            curve
                .tcp
                .iter_mut()
                .for_each(|tcp| tcp.waiting = Waiting::Usual);
            Curve {
                system,
                better: Better::Higher,
                ..curve
            }
        })
        .collect();
    run.series = run.sweep(&curves, run.options.within(5, 200), reduce_by_cold)?;
    run.note(
        "A closed loop; each request has a connection of its own, and Squid asks the origin on \
         another whether the document has changed. Client and origin share a processor and sleep.",
    );
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let cold = |series: &Series| series.at(COLD.into()).map(|point| point.y);
    let ours = find(series, OURS, Some(SETTING));
    vec![
        Claim::at_least(
            "squid",
            "750 cold connections: Squid's requests/s by `tidewall run` over the best Linux mode's",
            ratio(ours.and_then(cold), best_linux(series, Some(SETTING), cold)),
            1.3,
        ),
        Claim::new(
            "squid-kept",
            "Squid by `tidewall run`: requests/s beside 750 cold connections over those beside none",
            ratio(
                ours.and_then(cold),
                ours.and_then(|series| series.at(0.0)).map(|point| point.y),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_follow_from_the_curves() {
        let of = |system, cold| curve(system, Some(SETTING), &[(0.0, 3e3), (750.0, cold)]);
        let series = [of(OURS, 2.7e3), of("linux-rps", 2e3), of("linux-busy", 1e3)];
        let claims = claims(&series);
        assert_eq!(
            (claims[0].measured, claims[0].holds),
            (Some(1.35), Some(true))
        );
        assert_eq!((claims[1].measured, claims[1].holds), (Some(0.9), None));
    }
}
