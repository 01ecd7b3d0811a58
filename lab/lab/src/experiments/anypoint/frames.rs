//! Frames that a processor forwards: each of 64 bytes and in its own segment, from ends
//! that cost less than the intermediary.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Load, Manner, PROCESSOR_FRAME, WAITED};
use crate::result::{Claim, Series, find};
use crate::worker::SwitchModule;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-frames",
    paper: "Anypoint, none",
    about: "frames of 64 bytes that one processor forwards: the switch beside bare forwarding",
    x: "connections",
    y: "frames/s",
    senders: &["segments over the device crate"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "64-byte frames, one a segment";
const CONNECTIONS: [u32; 3] = [1, 8, 64];
/// The number of connections in the claims.
const USUAL_CONNECTIONS: u32 = 8;
const SYSTEMS: [Between; 3] = [
    Between::Switch(SwitchModule::RoundRobin, Manner::Usual),
    Between::Switch(SwitchModule::RoundRobin, Manner::Sleeping),
    Between::Bare,
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let quick = run.options.quick;
    let all = CONNECTIONS.iter();
    let connections = all.filter(|&&count| !quick || count == USUAL_CONNECTIONS);
    let case = |&connections: &u32| Case {
        setting: SETTING.to_owned(),
        x: connections.into(),
        mtu: 1500,
        segment: 64,
        frames: 1,
        connections,
        members: 1,
        load: Load::Segments,
        ..Case::default()
    };
    let cases: Vec<Case> = connections.map(case).collect();
    run.note(
        "Peers and members are one process over the device crate, which sends 192 frames at most \
         before the first is acknowledged; every eighth frame of a connection is acknowledged, by \
         a segment that is forwarded, too, and not counted. Ends that did not wait were what limited \
         frames/s: bare forwarding costs less than they do, so the claim divides by the processor \
         time that it used, rounds in which nothing came left out.",
    );
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |system| find(series, system, Some(SETTING))?.at(USUAL_CONNECTIONS.into());
    let rate = |system| at(system).map(|point| point.y);
    let value = |system, name| at(system)?.values.get(name).copied();
    vec![
        Claim::at_least(
            "frames",
            "64-byte frames per second of the intermediary's processor, 8 connections: switch over bare \
             forwarding",
            ratio(
                value("bare", PROCESSOR_FRAME),
                value("switch", PROCESSOR_FRAME),
            ),
            0.7,
        ),
        Claim::new(
            "throughput",
            "frames/s: switch over bare forwarding",
            ratio(rate("switch"), rate("bare")),
        ),
        Claim::new(
            "sleeping",
            "as frames: the switch that does not poll before it sleeps",
            ratio(
                value("bare", PROCESSOR_FRAME),
                value("switch-sleeping", PROCESSOR_FRAME),
            ),
        ),
        Claim::new(
            "waited",
            "share of the time that the ends waited for the switch",
            value("switch", WAITED),
        ),
        Claim::new(
            "waited-bare",
            "share of the time that the ends waited for bare forwarding",
            value("bare", WAITED),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_bare_forwarding() {
        let mut series = [
            curve("switch", Some(SETTING), &[(8.0, 400e3)]),
            curve("switch-sleeping", Some(SETTING), &[(8.0, 390e3)]),
            curve("bare", Some(SETTING), &[(8.0, 500e3)]),
        ];
        for (curve, cost) in [(0, 2500.0), (1, 4000.0), (2, 2000.0)] {
            let values = &mut series[curve].points[0].values;
            values.insert(PROCESSOR_FRAME.to_owned(), cost);
            values.insert(WAITED.to_owned(), 0.25);
        }
        let claims = claims(&series);
        let measured: Vec<Option<f64>> = claims.iter().map(|it| it.measured).collect();
        let wanted = [0.8, 0.8, 0.5, 0.25, 0.25].map(Some);
        assert_eq!(measured, wanted);
        assert_eq!(claims[0].holds, Some(true));
    }
}
