//! Text: one of four members takes longer over each frame, up to 0.75 ms.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Manner};
use crate::result::{Claim, Series, find};
use crate::worker::{SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-steer",
    paper: "Anypoint, text",
    about: "one of four members slowed: a switch that steers to open windows, and a proxy in turn",
    x: "ms that one member takes over a frame",
    y: "MB/s of frames",
    senders: &["frames over kernel TCP"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "one connection, four members";
const SLOWED_US: [u64; 4] = [0, 250, 500, 750];
const SYSTEMS: [Between; 2] = [
    Between::Switch(SwitchModule::Speed, Manner::Usual),
    Between::Proxy(SplitWaiting::Select),
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let all = SLOWED_US.iter();
    let quick = run.options.quick;
    let slowed = all.filter(|&&slowed| !quick || [0, 750].contains(&slowed));
    let case = |&slowed_us: &u64| Case {
        setting: SETTING.to_owned(),
        x: slowed_us as f64 / 1e3,
        mtu: 1500,
        segment: 1440,
        frames: 1,
        connections: 1,
        members: 4,
        slowed_us,
        ..Case::default()
    };
    let cases: Vec<Case> = slowed.map(case).collect();
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let kept = |system| {
        let curve = find(series, system, Some(SETTING))?;
        let at = |us: u64| curve.at(us as f64 / 1e3).map(|point| point.y);
        ratio(at(750), at(0))
    };
    vec![
        Claim::at_least(
            "switch",
            "switch: throughput with one member slowed by 0.75 ms per frame over none slowed",
            kept("switch"),
            0.7,
        ),
        Claim::new("proxy", "select proxy: the same", kept("select-proxy")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_none_slowed() {
        let series = [
            curve("switch", Some(SETTING), &[(0.0, 100.0), (0.75, 80.0)]),
            curve("select-proxy", Some(SETTING), &[(0.0, 100.0), (0.75, 5.0)]),
        ];
        let claims = claims(&series);
        assert_eq!(claims[0].measured, Some(0.8));
        assert_eq!(
            (claims[0].holds, claims[1].measured),
            (Some(true), Some(0.05))
        );
    }
}
