//! Figure 5 with the intermediary as the limit: eight connections, each to one member,
//! whose ends cost less than the intermediary.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Installed, Load, Manner, PROCESSOR_FRAME, WAITED};
use crate::result::{Claim, Series, find};
use crate::worker::{SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-limit",
    paper: "Anypoint, Figure 5",
    about: "eight streams through a switch and through proxies, from ends that wait for these",
    x: "frames a segment",
    y: "frames/s",
    senders: &["segments over the device crate"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "MTU 9,000, segments of 8 KiB";
const SYSTEMS: [Between; 7] = [
    Between::Switch(SwitchModule::RoundRobin, Manner::Usual),
    Between::Switch(SwitchModule::RoundRobin, Manner::Sleeping),
    Between::Switch(SwitchModule::RoundRobin, Manner::Copying),
    Between::Proxy(SplitWaiting::Select),
    Between::Proxy(SplitWaiting::Epoll),
    Between::Splice,
    Between::Program(Installed::Haproxy),
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let frames: &[u16] = match run.options.quick {
        true => &[1, 4],
        false => &[1, 2, 4, 8],
    };
    let case = |&frames: &u16| Case {
        setting: SETTING.to_owned(),
        x: frames.into(),
        mtu: 9000,
        segment: 8192,
        frames,
        connections: 8,
        members: 1,
        load: Load::Segments,
        ..Case::default()
    };
    let cases: Vec<Case> = frames.iter().map(case).collect();
    run.note(
        "Peers and members are one process over the device crate, as in anypoint-frames: TCP \
         without timestamps, windows of 256 KiB, at most 192 segments under way. They do not look \
         at payloads. In anypoint-bandwidth both ends are kernel TCP on one processor and may be \
         busy first; here they wait for the intermediary for the share of the time that the \
         claims name. A switch that does not poll before it sleeps shows what its work costs.",
    );
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |system, frames| find(series, system, Some(SETTING))?.at(frames);
    let over = |system: &'static str, than: &'static str, frames: f64| {
        let rate = |system| at(system, frames).map(|point| point.y);
        ratio(rate(system), rate(than))
    };
    let copies = find(series, "switch-copies", Some(SETTING));
    let each: Option<Vec<f64>> = copies.and_then(|curve| {
        let sizes = curve.points.iter();
        sizes
            .map(|point| over("switch-copies", "select-proxy", point.x))
            .collect()
    });
    let each = each.filter(|each| !each.is_empty());
    let mean = each.map(|each| each.iter().sum::<f64>() / each.len() as f64);
    let waited = |system| at(system, 1.0)?.values.get(WAITED).copied();
    let cost = |system, frames| at(system, frames)?.values.get(PROCESSOR_FRAME).copied();
    // Frames that a processor forwards in the time in which it forwards one for the other
    // system.
    let capacity = |system, than, frames| ratio(cost(than, frames), cost(system, frames));
    let sizes = copies.map(|curve| curve.points.as_slice());
    let sizes = sizes.unwrap_or_default().iter().map(|point| point.x);
    let copied: Option<Vec<f64>> = sizes
        .map(|frames| capacity("switch-copies", "select-proxy", frames))
        .collect();
    let copied = copied.filter(|each| !each.is_empty());
    let copied = copied.map(|each| each.iter().sum::<f64>() / each.len() as f64);
    vec![
        Claim::at_least(
            "largest",
            "largest frames: switch over the select proxy",
            over("switch", "select-proxy", 1.0),
            1.68,
        )
        .paper(106.0 / 63.0),
        Claim::at_least(
            "copies",
            "switch with two more copies over the select proxy, mean over sizes",
            mean,
            1.29,
        )
        .paper(1.29),
        Claim::at_least(
            "haproxy",
            "largest frames: switch over HAProxy in TCP mode",
            over("switch", "haproxy", 1.0),
            1.5,
        ),
        Claim::at_least(
            "capacity",
            "largest frames: frames per second of the intermediary's processor, switch over the select \
             proxy",
            capacity("switch-sleeping", "select-proxy", 1.0),
            1.68,
        ),
        Claim::at_least(
            "capacity-copies",
            "the same of the switch with two more copies, mean over sizes",
            copied,
            1.29,
        ),
        Claim::at_least(
            "capacity-haproxy",
            "largest frames: frames per second of the intermediary's processor, switch over HAProxy",
            capacity("switch-sleeping", "haproxy", 1.0),
            1.0,
        ),
        Claim::new(
            "epoll",
            "largest frames: switch over the epoll proxy",
            over("switch", "epoll-proxy", 1.0),
        ),
        Claim::new(
            "splice",
            "largest frames: switch over the splice proxy, which looks at no frame",
            over("switch", "splice-proxy", 1.0),
        ),
        Claim::new(
            "waited",
            "share of the time that the ends waited for the switch, largest frames",
            waited("switch"),
        ),
        Claim::new(
            "waited-proxy",
            "the same for the select proxy",
            waited("select-proxy"),
        ),
        Claim::new("waited-haproxy", "the same for HAProxy", waited("haproxy")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_at_the_largest_frames_and_over_all() {
        let setting = Some(SETTING);
        let mut series = [
            curve("switch", setting, &[(1.0, 300.0), (4.0, 900.0)]),
            curve("switch-copies", setting, &[(1.0, 150.0), (4.0, 440.0)]),
            curve("select-proxy", setting, &[(1.0, 100.0), (4.0, 400.0)]),
        ];
        series[2].points[0].values.insert(WAITED.to_owned(), 0.5);
        let mut sleeping = curve("switch-sleeping", setting, &[(1.0, 280.0)]);
        (sleeping.points[0].values).insert(PROCESSOR_FRAME.to_owned(), 2.0);
        for (curve, costs) in [(1, [4.0, 1.0]), (2, [6.0, 1.3])] {
            for (point, cost) in series[curve].points.iter_mut().zip(costs) {
                point.values.insert(PROCESSOR_FRAME.to_owned(), cost);
            }
        }
        let series = [&series[..], &[sleeping]].concat();
        let claims = claims(&series);
        let by = |id: &str| claims.iter().find(|it| it.id == id).unwrap();
        assert_eq!(by("largest").measured, Some(3.0));
        let mean = by("copies").measured.unwrap();
        assert!((mean - 1.3).abs() < 1e-9, "{mean}");
        assert_eq!(
            (by("largest").holds, by("copies").holds),
            (Some(true), Some(true))
        );
        assert_eq!(by("capacity").measured, Some(3.0));
        let copied = by("capacity-copies").measured.unwrap();
        assert!((copied - 1.4).abs() < 1e-9, "{copied}");
        assert_eq!(by("haproxy").measured, None);
        assert_eq!(by("waited-proxy").measured, Some(0.5));
    }
}
