//! The storage service: a coordinator and four nodes behind one connection, blocks of 8
//! KiB; and the time that an intermediary adds to one request.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Load, Manner, PROCESSOR_REQUEST};
use crate::result::{Claim, Point, Series, find};
use crate::worker::{BLOCK, Mix, SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-storage",
    paper: "Anypoint, storage service",
    about: "requests for blocks to a coordinator and four nodes; the time that a switch adds to one",
    x: "requests under way on each of eight connections",
    y: "requests/s",
    senders: &["frames over kernel TCP"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "seven reads, one write, two of metadata";
const LIGHT: &str = "one request at a time";
const OUTSTANDING: [u16; 3] = [1, 4, 16];
const SYSTEMS: [Between; 5] = [
    Between::Switch(SwitchModule::BlockStorage, Manner::Usual),
    Between::Switch(SwitchModule::BlockStorage, Manner::Sleeping),
    Between::Proxy(SplitWaiting::Select),
    Between::Nobody,
    Between::WakeUp,
];
/// Time that the switch itself may add per segment, beside the wake-up, µs.
const BESIDE_WAKE_UP_US: f64 = 5.0;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let usual = Case {
        mtu: 9000,
        // A block in a frame.
        segment: BLOCK as u16,
        frames: 1,
        ..Case::default()
    };
    let quick = run.options.quick;
    let all = OUTSTANDING.iter();
    let mut cases: Vec<Case> = all
        .filter(|&&outstanding| !quick || outstanding > 1)
        .map(|&outstanding| Case {
            setting: SETTING.to_owned(),
            x: outstanding.into(),
            connections: 8,
            members: 5,
            load: Load::Requests(outstanding, Mix::Web),
            ..usual.clone()
        })
        .collect();
    cases.push(Case {
        setting: LIGHT.to_owned(),
        x: 1.0,
        connections: 1,
        members: 1,
        load: Load::OneAtATime,
        ..usual
    });
    run.note(
        "A block of 8 KiB fits one frame, at the paper's MTU of 9,000. A node cuts it while its \
         share of the peer's window is less than two frames (docs/switch.md). The paper names its \
         workload (Fstress's web server, mostly reads) and not its shares: these are ours. Blocks \
         are stored nowhere.",
    );
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let points = |system| {
        let curve = find(series, system, Some(SETTING));
        curve
            .map(|curve| curve.points.as_slice())
            .unwrap_or_default()
    };
    let peak = |system| points(system).iter().map(|it| it.y).max_by(f64::total_cmp);
    let busiest = |system| points(system).iter().max_by(|a, b| a.x.total_cmp(&b.x));
    let cost = |system| busiest(system).and_then(|it: &Point| it.values.get(PROCESSOR_REQUEST));
    let time = |system| {
        let curve = find(series, system, Some(LIGHT))?;
        curve.last().map(|point| point.y)
    };
    let added = |system| Some((time(system)? - time("direct")?) / 2.0);
    vec![
        Claim::at_least(
            "saturation",
            "requests/s at saturation: switch over the select proxy",
            ratio(peak("switch"), peak("select-proxy")),
            1.29,
        )
        .paper(1.29),
        Claim::at_least(
            "capacity",
            "requests per second of the intermediary's processor: switch over the select proxy",
            ratio(
                cost("select-proxy").copied(),
                cost("switch-sleeping").copied(),
            ),
            1.29,
        ),
        Claim::at_most(
            "latency",
            "µs that the switch adds on the way, median, one request at a time, beyond a wake-up of \
             this machine",
            added("switch")
                .zip(time("wake-up"))
                .map(|(added, wake)| added - wake),
            BESIDE_WAKE_UP_US,
        ),
        Claim::new(
            "latency-proxy",
            "select proxy: the same",
            added("select-proxy")
                .zip(time("wake-up"))
                .map(|(added, wake)| added - wake),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_peaks_and_what_a_way_adds() {
        let light = |system, y| curve(system, Some(LIGHT), &[(1.0, y)]);
        let mut series = vec![
            curve("switch", Some(SETTING), &[(1.0, 10.0), (16.0, 30.0)]),
            curve("select-proxy", Some(SETTING), &[(1.0, 20.0), (16.0, 15.0)]),
            curve("switch-sleeping", Some(SETTING), &[(16.0, 30.0)]),
            light("switch", 120.0),
            light("direct", 90.0),
            light("wake-up", 8.0),
        ];
        for (curve, cost) in [(2, 5.0), (1, 10.0)] {
            let values = &mut series[curve].points.last_mut().unwrap().values;
            values.insert(PROCESSOR_REQUEST.to_owned(), cost);
        }
        let claims = claims(&series);
        let measured: Vec<Option<f64>> = claims.iter().map(|it| it.measured).collect();
        assert_eq!(measured, [Some(1.5), Some(2.0), Some(7.0), None]);
        assert_eq!(claims[2].holds, Some(false));
    }
}
