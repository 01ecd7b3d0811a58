//! Set-up times beside a blast of PDUs at the called end, and beside a flood of SETUPs.

use std::time::{Duration, Instant};

use tidewall_load::{BlastSpec, Content, LoadSpec, SenderKind};

use super::super::{Experiment, Run, USUAL, ratio};
use super::planes::{self, Parties, Plane, Way, client};
use super::{Case, IN_PROCESS, SETUP_P50, calls, value};
use crate::bench::{Bench, load};
use crate::capacity::Capacity;
use crate::result::{Claim, Series};
use crate::sweep::Sample;
use crate::testbed::{Config, SINK_INTERFACE};
use crate::worker::{CallsOver, CallsRole, Child, Job, LoadJob, UNREAD};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-flood",
    paper: "beyond the papers",
    about: "set-up time of calls beside a blast of PDUs, of a circuit that nobody reads and of \
            none; and beside a neighbour's flood of SETUPs",
    x: "blast, share of bare's capacity",
    y: "set-up time, median µs",
    config: || Config {
        sink: true,
        ..Config::default()
    },
    senders: &["XDP frames", "SETUPs of a stack"],
    measure,
    claims,
    ..USUAL
};

const UNREAD_CIRCUIT: &str = "PDUs of a circuit that nobody reads";
const NO_CIRCUIT: &str = "PDUs of no circuit";
/// For calls through a manager, between two of its applications.
const NO_SETUPS: &str = "no SETUPs of its neighbour";
const SETUPS: &str = "SETUPs of its neighbour";
const MANAGER: &str = Plane::Manager.name();
const RATE: &str = "SETUPs/s";
/// Costs the caller's processor the same, and the called end nothing.
const ELSEWHERE: &str = "elsewhere";
const SHARES: [f64; 4] = [0.0, 0.02, 0.05, 0.1];
/// The share in the claims.
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
        // Longer than the calls, with which it ends.
        duration: TIME + super::TIMEOUT,
        ..load(config)
    })
}

/// The load beside the calls.
enum Beside {
    Blast(Option<Box<LoadSpec>>),
    Setups(bool),
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
                    what: Beside::Blast(blast(config, capacity, setting, share).map(Box::new)),
                });
            }
        }
    }
    for (setting, flooded) in [(NO_SETUPS, false), (SETUPS, true)] {
        cases.push(Case {
            system: MANAGER,
            setting,
            x: 0.0,
            what: Beside::Setups(flooded),
        });
    }
    let plan = run.options.within(6, 50);
    super::rounds(run, &cases, plan, |bench, case| {
        let spec = match &case.what {
            Beside::Blast(spec) => spec,
            Beside::Setups(flooded) => return beside_setups(bench, *flooded),
        };
        let mut parties = Parties::start(bench, Plane::InProcess, Way::Link, 0)?;
        let job = parties.job(TIME);
        let mut blasting = None;
        let report = parties.call(bench, &job, |_| {
            if let Some(spec) = spec {
                let job = Job::Load(Box::new(LoadJob::unwatched(*spec.clone())));
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
         are compared with those beside the same blast into a veth whose ring nobody empties. \
         SETUPs go to where nobody listens, by a link that keeps to SSCOP, at the interface of the \
         manager between whose applications calls are made; all of these share a processor that \
         the flood's sender does not have.",
    );
    Ok(())
}

/// Measures calls between two applications of a manager.
fn beside_setups(bench: &mut Bench, flooded: bool) -> anyhow::Result<Sample> {
    let mut parties = Parties::start(bench, Plane::Manager, Way::Local, 0)?;
    let job = parties.job(TIME);
    let mut flooder = flooded
        .then(|| {
            let job = calls(CallsRole::Flooder, CallsOver::InProcess, Duration::ZERO);
            Child::start_ready(client(bench), &Job::Calls(job), "the flood of SETUPs")
        })
        .transpose()?;
    let mut sent = || -> anyhow::Result<u64> {
        let sent = flooder.as_mut().map(|it| it.question("setups"));
        sent.transpose().map(Option::unwrap_or_default)
    };
    let mut before = (0, Instant::now());
    let report = parties.call(bench, &job, |_| {
        before = (sent()?, Instant::now());
        Ok(())
    })?;
    let seconds = before.1.elapsed().as_secs_f64();
    let mut sample = super::sample(0.0, &report);
    sample.y = report.setup.p50;
    let rate = (sent()? - before.0) as f64 / seconds;
    sample.values.insert(RATE.to_owned(), rate);
    Ok(sample)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |setting, share| value(series, (IN_PROCESS, setting), share, SETUP_P50);
    let beside = |setting| ratio(at(setting, SHARE), at(ELSEWHERE, SHARE));
    vec![
        Claim::at_most(
            "unread",
            format!(
                "median set-up time beside {SHARE} of bare's capacity in PDUs of an unread \
                 circuit, over that beside as many elsewhere"
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
        Claim::at_most(
            "setups",
            "median set-up time of calls between a manager's applications beside a flood of SETUPs \
             from its neighbour, over that without",
            ratio(
                value(series, (MANAGER, SETUPS), 0.0, SETUP_P50),
                value(series, (MANAGER, NO_SETUPS), 0.0, SETUP_P50),
            ),
            2.0,
        ),
        Claim::new(
            "setup-rate",
            "SETUPs/s of that neighbour, of 100,000 offered",
            value(series, (MANAGER, SETUPS), 0.0, RATE),
        ),
        Claim::new(
            "processor",
            "median set-up time beside the blast elsewhere over that beside none: the cost of \
             sharing the caller's processor",
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
            let system = match setting {
                SETUPS | NO_SETUPS => MANAGER,
                _ => IN_PROCESS,
            };
            let mut curve = curve(system, Some(setting), points);
            for point in &mut curve.points {
                point.values.insert(SETUP_P50.to_owned(), point.y);
                point.values.insert(RATE.to_owned(), 9e4);
            }
            curve
        };
        let series = [
            of(ELSEWHERE, &[(0.0, 50.0), (SHARE, 60.0)]),
            of(UNREAD_CIRCUIT, &[(SHARE, 90.0)]),
            of(NO_CIRCUIT, &[(SHARE, 66.0)]),
            of(NO_SETUPS, &[(0.0, 80.0)]),
            of(SETUPS, &[(0.0, 120.0)]),
        ];
        let expected = [
            ("unread", 1.5),
            ("no-circuit", 1.1),
            ("setups", 1.5),
            ("setup-rate", 9e4),
            ("processor", 1.2),
        ];
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
