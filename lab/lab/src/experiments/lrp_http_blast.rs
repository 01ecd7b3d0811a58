//! LRP's remark on a web server beside a packet blast: HTTP while UDP packets arrive on
//! another port of the same program, which never reads them.

use tidewall_load::{LoadSpec, Reuse, SenderKind};

use super::tcp::{self, SYSTEMS, Site, UNREAD_PORT, client, http_load, kept, later, summarize};
use super::{Experiment, Run, USUAL, best_linux, ratio};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::Curve;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-http-blast",
    paper: "LRP, text (HTTP)",
    about: "a web server beside UDP packets to another port",
    x: "blast, packets/s offered",
    y: "requests/s",
    senders: &["skb", "HTTP client on kernel sockets"],
    measure,
    claims,
    ..USUAL
};

/// Multiplications per request: about 20 µs, which make the server heavier than client
/// and sender together.
pub(crate) const WORK: u32 = 20_000;
/// The blast at which the claims are judged, as a share of `bare`'s capacity.
const JUDGED: f64 = 0.3;

const FULL: [f64; 6] = [0.0, 0.05, 0.1, 0.2, 0.3, 0.5];
const QUICK: [f64; 3] = [0.0, 0.1, 0.3];

fn curves((config, capacity): Bed, site: &Site, quick: bool) -> Vec<Curve> {
    let shares: &[f64] = if quick { &QUICK } else { &FULL };
    let load = |&share: &f64| LoadSpec {
        blast: capacity
            .blast(SenderKind::Skb, UNREAD_PORT, Some(share))
            .map(|blast| later(blast, capacity.rate(Some(share)).unwrap_or(0))),
        ..http_load(config, client(Reuse::KeepAlive))
    };
    SYSTEMS
        .into_iter()
        .map(|system| {
            let loads = shares.iter().map(load).collect();
            Curve::over_tcp(system, site.server(WORK), loads)
        })
        .collect()
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let site = Site::new()?;
    let bed = run.bed()?;
    let curves = curves(bed, &site, run.options.quick);
    run.series = run.sweep(&curves, run.options.plan(5), tcp::reduce)?;
    summarize(&mut run.series, |series| series.offered(JUDGED));
    run.note(format!(
        "32 connections in a closed loop, kept, a document of 1,300 bytes, {WORK} multiplications \
         a request; the blast begins once they stand, from the same thread."
    ));
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let ours = find(series, "tidewall", None);
    let at = |series: &Series| series.offered(JUDGED).map(|point| point.y.max(1.0));
    vec![
        Claim::at_least(
            "kept",
            "tidewall's requests/s beside UDP packets at 0.3 of bare's capacity to another \
             port, over those beside none",
            ours.and_then(|series| kept(series, series.offered(JUDGED))),
            0.7,
        ),
        Claim::above(
            "vs-linux",
            "beside that blast: tidewall's requests/s over the best Linux mode's",
            ratio(ours.and_then(at), best_linux(series, None, at)),
            1.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    #[test]
    fn claims_follow_from_the_curves() {
        let mut series = vec![
            curve("tidewall", None, &[(0.0, 4e4), (4.1e5, 3e4)]),
            curve("linux-rps", None, &[(0.0, 4e4), (3.9e5, 5e3)]),
            curve("linux-busy", None, &[(0.0, 4e4), (4e5, 1e4)]),
        ];
        for series in &mut series {
            series.points[1].share = Some(JUDGED);
        }
        let found = claims(&series);
        assert_eq!(
            (found[0].measured, found[1].measured),
            (Some(0.75), Some(3.0))
        );
        assert!(found.iter().all(|claim| claim.holds == Some(true)));
        series[0].points[1].y = 9e3;
        assert!(
            claims(&series)
                .iter()
                .all(|claim| claim.holds == Some(false))
        );
    }

    #[test]
    fn a_sweep_begins_with_no_blast() {
        let site = Site::new().unwrap();
        for quick in [false, true] {
            for curve in curves((Config::default(), MILLION), &site, quick) {
                assert!(curve.loads[0].blast.is_none());
                assert!(curve.loads.iter().all(|load| load.check().is_ok()));
                let judged = |load: &LoadSpec| {
                    let blast = load.blast.as_ref()?;
                    Some(blast.steps.last()?.rate as f64)
                };
                assert!(
                    curve
                        .loads
                        .iter()
                        .any(|load| judged(load) == Some(JUDGED * 1e6))
                );
            }
        }
    }
}
