//! Figure 6: the intermediary's memory for eight connections, against the round-trip time
//! and the number of members.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Between, Case, Manner};
use crate::result::{Claim, Series};
use crate::worker::{SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-memory",
    paper: "Anypoint, Figure 6",
    about: "memory of the switch and of a proxy for eight connections, over round-trip times",
    x: "round trip, ms",
    y: "KiB a connection",
    senders: &["frames over kernel TCP"],
    measure,
    claims,
    ..USUAL
};

const CONNECTIONS: u32 = 8;
const ROUND_TRIPS_MS: [u64; 4] = [1, 10, 50, 100];
const SYSTEMS: [Between; 2] = [
    Between::Switch(SwitchModule::RoundRobin, Manner::Usual),
    Between::Proxy(SplitWaiting::Select),
];
/// 384 entries of 40 bytes per direction, and 8 KiB.
const LIMIT_KIB: f64 = 2.0 * 384.0 * 40.0 / 1024.0 + 8.0;
const SIDES: [(&str, bool); 2] = [("inbound", false), ("outbound", true)];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let quick = run.options.quick;
    let mut cases = Vec::new();
    for (members, (side, outbound)) in [1, 8]
        .into_iter()
        .flat_map(|it| SIDES.map(|side| (it, side)))
    {
        for round_trip in ROUND_TRIPS_MS {
            if quick && (outbound || ![1, 100].contains(&round_trip)) {
                continue;
            }
            cases.push(Case {
                setting: format!("{side}, members: {members}"),
                x: round_trip as f64,
                mtu: 1500,
                segment: 1440,
                frames: 1,
                connections: CONNECTIONS,
                members,
                outbound,
                is_of_memory: true,
                round_trip_ms: Some(round_trip),
                ..Case::default()
            });
        }
    }
    let plan = run.options.plan(3);
    run.note(
        "Of a switch: what its machine has for each connection, rings and chains of frames, holes \
         and gaps included. Frames on their way through it are in its frame memory, which is there \
         from the start. Of a proxy: anonymous memory of its process beyond what it had before the \
         connections, and what is in the buffers of the kernel's sockets.",
    );
    super::measure(run, &cases, &SYSTEMS, plan)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let most = |system: &str| {
        let points = series.iter().filter(|it| it.system == system);
        points
            .flat_map(|it| it.points.iter().map(|point| point.y))
            .max_by(f64::total_cmp)
    };
    let most_at = |system: &str, round_trip: f64| {
        let curves = series.iter().filter(|it| it.system == system);
        curves
            .filter_map(|it| it.at(round_trip).map(|point| point.y))
            .max_by(f64::total_cmp)
    };
    vec![
        Claim::at_most(
            "switch",
            "switch: the most KiB of a connection, of eight, over round trips of 1 to 100 ms and 1 \
             to 8 members",
            most("switch"),
            LIMIT_KIB,
        ),
        Claim::new(
            "flat",
            "switch: the most KiB of a connection at 100 ms over the most at 1 ms",
            ratio(most_at("switch", 100.0), most_at("switch", 1.0)),
        ),
        Claim::new("proxy", "select proxy: the same", most("select-proxy")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn the_most_memory_counts() {
        let series = [
            curve(
                "switch",
                Some("inbound, members: 1"),
                &[(1.0, 10.0), (100.0, 12.0)],
            ),
            curve("switch", Some("inbound, members: 8"), &[(1.0, 11.0)]),
        ];
        let claims = claims(&series);
        assert_eq!(
            (claims[0].measured, claims[0].holds),
            (Some(12.0), Some(true))
        );
        assert_eq!(
            (claims[1].measured, claims[2].measured),
            (Some(12.0 / 11.0), None)
        );
    }
}
