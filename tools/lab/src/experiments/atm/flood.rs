//! Set-up times beside a blast of PDUs at the called end.

use std::time::Duration;

use tidewall_load::{BlastSpec, Content, LoadSpec, SenderKind};

use super::super::{Experiment, Run, USUAL, ratio};
use super::planes::{self, Parties, Plane, Way, client};
use super::{Case, IN_PROCESS, SETUP_P50, value};
use crate::bench::load;
use crate::capacity::Capacity;
use crate::result::{Claim, Series};
use crate::testbed::{Config, SINK_INTERFACE};
use crate::worker::{Child, Job, LoadJob, UNREAD};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-flood",
    paper: "beyond the papers",
    about: "set-up time of calls beside a blast of PDUs, of a circuit that nobody reads and of none",
    x: "blast, share of bare's capacity",
    y: "set-up time, median µs",
    config: || Config {
        sink: true,
        ..Config::default()
    },
    senders: &["XDP frames"],
    measure,
    claims,
    ..USUAL
};

const UNREAD_CIRCUIT: &str = "PDUs of a circuit that nobody reads";
const NO_CIRCUIT: &str = "PDUs of no circuit";
/// What costs the caller's processor the same, and the called end nothing.
const ELSEWHERE: &str = "elsewhere";
const SHARES: [f64; 4] = [0.0, 0.02, 0.05, 0.1];
/// What the claims are about.
const SHARE: f64 = 0.1;
const TIME: Duration = Duration::from_millis(400);

fn blast(config: Config, capacity: Capacity, setting: &str, share: f64) -> Option<LoadSpec> {
    let vci = match setting {
        NO_CIRCUIT => UNREAD.vci + 1,
        _ => UNREAD.vci,
    };
    let blast = capacity.blast(SenderKind::Frame, vci, Some(share))?;
    let blast = BlastSpec {
        content: Content::Pdus,
        payload: 40,
        interface: match setting {
            ELSEWHERE => Some(SINK_INTERFACE.to_owned()),
            _ => blast.interface.clone(),
        },
        source: Some(crate::testbed::CLIENT.0.into()),
        ..blast
    };
    Some(LoadSpec {
        blast: Some(blast),
        warm_up: Duration::ZERO,
        // Longer than the calls, which it ends with.
        duration: TIME + super::TIMEOUT,
        ..load(config)
    })
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (config, capacity) = run.bed()?;
    planes::interrupt_at_once(run.bench)?;
    let quick = run.options.quick;
    let mut cases = Vec::new();
    for setting in [ELSEWHERE, UNREAD_CIRCUIT, NO_CIRCUIT] {
        for share in SHARES {
            let kept = !quick || share == SHARE || (share == 0.0 && setting == ELSEWHERE);
            if kept {
                cases.push(Case {
                    system: IN_PROCESS,
                    setting,
                    x: share,
                    what: blast(config, capacity, setting, share),
                });
            }
        }
    }
    let plan = run.options.within(6, 50);
    super::rounds(run, &cases, plan, |bench, case| {
        let mut parties = Parties::start(bench, Plane::InProcess, Way::Link, 0)?;
        let job = parties.job(TIME);
        let mut blasting = None;
        let report = parties.call(bench, &job, |_| {
            if let Some(spec) = &case.what {
                let job = Job::Load(Box::new(LoadJob::unwatched(spec.clone())));
                blasting = Some(Child::start(client(bench), &job, "the blast")?);
            }
            Ok(())
        })?;
        let mut sample = super::sample(case.x, &report);
        sample.y = report.setup.p50;
        Ok(sample)
    })?;
    run.note(
        "Caller and blast share a processor, and the caller's stack an interface: so set-up times \
         are compared with those beside the same blast into a veth whose ring nobody empties.",
    );
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |setting, share| value(series, (IN_PROCESS, setting), share, SETUP_P50);
    let beside = |setting| ratio(at(setting, SHARE), at(ELSEWHERE, SHARE));
    vec![
        Claim::at_most(
            "unread",
            format!(
                "median set-up time beside {SHARE} of bare's capacity in PDUs of a circuit that \
                 nobody reads, over beside as many elsewhere"
            ),
            beside(UNREAD_CIRCUIT),
            2.0,
        ),
        Claim::at_most(
            "no-circuit",
            "the same: PDUs of no circuit",
            beside(NO_CIRCUIT),
            2.0,
        ),
        Claim::new(
            "processor",
            "median set-up time beside the blast elsewhere over beside none: what sharing the \
             caller's processor costs",
            ratio(at(ELSEWHERE, SHARE), at(ELSEWHERE, 0.0)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::{all_hold, curve};

    #[test]
    fn claims_compare_with_a_blast_elsewhere() {
        let of = |setting, points: &[(f64, f64)]| {
            let mut curve = curve(IN_PROCESS, Some(setting), points);
            for point in &mut curve.points {
                point.values.insert(SETUP_P50.to_owned(), point.y);
            }
            curve
        };
        let series = [
            of(ELSEWHERE, &[(0.0, 50.0), (SHARE, 60.0)]),
            of(UNREAD_CIRCUIT, &[(SHARE, 90.0)]),
            of(NO_CIRCUIT, &[(SHARE, 66.0)]),
        ];
        let expected = [("unread", 1.5), ("no-circuit", 1.1), ("processor", 1.2)];
        all_hold(&claims(&series), &expected);
    }

    #[test]
    fn blasts_can_be_run() {
        for setting in [ELSEWHERE, UNREAD_CIRCUIT, NO_CIRCUIT] {
            for share in SHARES {
                let load = blast(Config::default(), MILLION, setting, share);
                assert_eq!(load.is_none(), share == 0.0);
                assert!(load.is_none_or(|load| load.check().is_ok()));
            }
        }
    }
}
