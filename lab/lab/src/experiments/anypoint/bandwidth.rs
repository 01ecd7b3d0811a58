//! Figure 5: eight connections, each to one member, frames of 8 KiB to 1 KiB: segments of one
//! large frame to many small ones.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Installed, Manner, PROCESSOR};
use crate::result::{Claim, Point, Series, find};
use crate::worker::{SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-bandwidth",
    paper: "Anypoint, Figure 5",
    about: "eight streams through a transport switch and through proxies, over the size of frames",
    x: "bytes of a frame",
    y: "MB/s of frames",
    senders: &["frames over kernel TCP"],
    measure,
    claims,
    ..USUAL
};

const CONNECTIONS: u32 = 8;
/// An MTU, and the segments sent at it: bytes of a segment's frames, and how many there
/// are.
type Sizes = (&'static str, u16, &'static [(u16, u16)]);
/// The paper's MTU and frames: as many as a segment of 8 KiB holds. And Ethernet's MTU,
/// with the frames that a segment then holds beside timestamps, and parts of it.
const SIZES: [Sizes; 2] = [
    (
        "MTU 9,000",
        9000,
        &[(8192, 8), (8192, 4), (8192, 2), (6144, 1), (8192, 1)],
    ),
    (
        "MTU 1,500",
        1500,
        &[(1440, 8), (1440, 4), (1440, 2), (1440, 1)],
    ),
];
/// Bytes of the largest frames.
const LARGEST: f64 = 8192.0;
const SYSTEMS: [Between; 7] = [
    Between::Switch(SwitchModule::RoundRobin, Manner::Usual),
    Between::Switch(SwitchModule::RoundRobin, Manner::Sleeping),
    Between::Switch(SwitchModule::RoundRobin, Manner::Copying),
    Between::Proxy(SplitWaiting::Select),
    Between::Proxy(SplitWaiting::Epoll),
    // A fair comparison here: a connection has one member.
    Between::Splice,
    Between::Program(Installed::Haproxy),
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let settings = if run.options.quick { 1 } else { SIZES.len() };
    let case = |setting: &str, mtu: u16, (segment, frames): (u16, u16)| Case {
        setting: setting.to_owned(),
        x: (segment / frames).into(),
        mtu,
        segment,
        frames,
        connections: CONNECTIONS,
        members: 1,
        ..Case::default()
    };
    let cases: Vec<Case> = SIZES
        .iter()
        .take(settings)
        .flat_map(|&(setting, mtu, sizes)| sizes.iter().map(move |&size| case(setting, mtu, size)))
        .collect();
    run.note(
        "The sizes of frames and the MTU of 9,000 are the paper's. A segment has 8 KiB of frames, \
         or one frame of 6 KiB. It lies in three frames of the switch's memory, in which it is \
         sent on; all systems have the same MTU.",
    );
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let curve = |system| find(series, system, Some(SIZES[0].0));
    let at = |system: &'static str, frames: f64| {
        curve(system).and_then(|curve: &Series| curve.at(frames))
    };
    let rate = |system: &'static str, frames: f64| at(system, frames).map(|point: &Point| point.y);
    let over = |system: &'static str, frames: f64| {
        ratio(rate(system, frames), rate("select-proxy", frames))
    };
    let cost = |system: &'static str, frames: f64| {
        at(system, frames).and_then(|it| it.values.get(PROCESSOR).copied())
    };
    // Bytes that a processor forwards in the time in which it forwards one byte for the
    // other system.
    let capacity = |system, than, frames| ratio(cost(than, frames), cost(system, frames));
    let sizes: Vec<f64> = curve("switch-copies")
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.x))
        .collect();
    let mean = |of: &dyn Fn(f64) -> Option<f64>| {
        let all: Option<Vec<f64>> = sizes.iter().map(|&x| of(x)).collect();
        let all = all.filter(|all| !all.is_empty())?;
        Some(all.iter().sum::<f64>() / all.len() as f64)
    };
    let haproxy = ratio(rate("switch", LARGEST), rate("haproxy", LARGEST));
    vec![
        Claim::at_least(
            "largest",
            "largest frames: switch over the select proxy",
            over("switch", LARGEST),
            1.68,
        )
        .paper(106.0 / 63.0),
        Claim::at_least(
            "copies",
            "switch with two more copies over the select proxy, mean over sizes",
            mean(&|x| over("switch-copies", x)),
            1.29,
        )
        .paper(1.29),
        Claim::at_least(
            "haproxy",
            "largest frames: switch over HAProxy in TCP mode",
            haproxy,
            1.5,
        ),
        Claim::new(
            "epoll",
            "largest frames: switch over the epoll proxy",
            ratio(rate("switch", LARGEST), rate("epoll-proxy", LARGEST)),
        ),
        Claim::new(
            "splice",
            "largest frames: switch over the splice proxy, which looks at no frame",
            ratio(rate("switch", LARGEST), rate("splice-proxy", LARGEST)),
        ),
        Claim::at_least(
            "capacity",
            "largest frames: bytes per second of the intermediary's processor, switch over the select \
             proxy",
            capacity("switch-sleeping", "select-proxy", LARGEST),
            1.68,
        ),
        Claim::at_least(
            "capacity-copies",
            "the same of the switch with two more copies, mean over sizes",
            mean(&|x| capacity("switch-copies", "select-proxy", x)),
            1.29,
        ),
        Claim::at_least(
            "capacity-haproxy",
            "largest frames: bytes per second of the intermediary's processor, switch over HAProxy",
            capacity("switch-sleeping", "haproxy", LARGEST),
            1.0,
        ),
        Claim::new(
            "capacity-splice",
            "largest frames: bytes per second of the intermediary's processor, switch over the splice \
             proxy",
            capacity("switch-sleeping", "splice-proxy", LARGEST),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_at_the_largest_frames_and_over_all() {
        let setting = Some(SIZES[0].0);
        let mut series = [
            curve("switch", setting, &[(1024.0, 200.0), (LARGEST, 300.0)]),
            curve("switch-sleeping", setting, &[(LARGEST, 300.0)]),
            curve(
                "switch-copies",
                setting,
                &[(1024.0, 110.0), (LARGEST, 150.0)],
            ),
            curve(
                "select-proxy",
                setting,
                &[(1024.0, 100.0), (LARGEST, 100.0)],
            ),
        ];
        for (curve, cost) in [(1, 0.8), (3, 2.0)] {
            let values = &mut series[curve].points.last_mut().unwrap().values;
            values.insert(PROCESSOR.to_owned(), cost);
        }
        let claims = claims(&series);
        assert_eq!(claims[0].measured, Some(3.0));
        assert!((claims[1].measured.unwrap() - 1.3).abs() < 1e-9);
        assert_eq!((claims[0].holds, claims[1].holds), (Some(true), Some(true)));
        assert_eq!(claims[2].measured, None);
        let capacity = claims.iter().find(|claim| claim.id == "capacity");
        assert_eq!(capacity.and_then(|claim| claim.measured), Some(2.5));
    }
}
