//! Figure 7: one connection, split over four members and merged from them, against the
//! round-trip time.

use super::super::{Experiment, Run, USUAL, ratio};
use super::star::RATE;
use super::{Between, Case, Manner};
use crate::result::{Claim, Series, find};
use crate::worker::{SplitWaiting, SwitchModule};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-split",
    paper: "Anypoint, Figure 7",
    about: "one connection split over four members and merged, over round-trip times",
    x: "round trip, ms",
    y: "MB/s of frames",
    senders: &["frames over kernel TCP"],
    measure,
    claims,
    ..USUAL
};

const IN: &str = "inbound, four members";
const OUT: &str = "outbound, four members";
const WIDE: &str = "outbound, four members, a ring for the path";
/// The paper's proxy wins at 2 ms.
const ROUND_TRIPS_MS: [u64; 4] = [2, 20, 50, 100];
/// The largest of a quick run.
const LARGE_MS: u64 = 20;
/// At this round-trip time the path holds more than the default ring does, 384 frames.
const BEYOND_RING_MS: u64 = 100;
/// Bytes of a segment's frame.
const SEGMENT: u16 = 1440;
const SYSTEMS: [Between; 3] = [
    Between::Switch(SwitchModule::RoundRobin, Manner::Usual),
    Between::Proxy(SplitWaiting::Select),
    Between::Nobody,
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let quick = run.options.quick;
    let mut cases = Vec::new();
    for (setting, outbound) in [(OUT, true), (IN, false), (WIDE, true)] {
        let is_wide = setting == WIDE;
        for round_trip in ROUND_TRIPS_MS {
            if quick && !is_wide && ![2, LARGE_MS].contains(&round_trip)
                || is_wide && round_trip != BEYOND_RING_MS
            {
                continue;
            }
            cases.push(Case {
                setting: setting.to_owned(),
                x: round_trip as f64,
                mtu: 1500,
                segment: SEGMENT,
                frames: 1,
                connections: 1,
                members: 4,
                outbound,
                round_trip_ms: Some(round_trip),
                ring: is_wide.then(|| ring(round_trip)),
                ..Case::default()
            });
        }
    }
    run.note(format!(
        "The path between peer and intermediary carries {} Mbit/s each way, which is what the bridge \
         that delays forwards without being noticed; direct is one connection of one member. A ring for the path has {} frames at \
         {BEYOND_RING_MS} ms, by the formula of docs/switch.md.",
        RATE / 1_000_000,
        ring(BEYOND_RING_MS)
    ));
    let plan = run.options.plan(6);
    super::measure(run, &cases, &SYSTEMS, plan)
}

/// Returns the frames that the path holds at a round-trip time, and those beyond that are
/// never offered to the peer.
fn ring(round_trip_ms: u64) -> u16 {
    let bytes = RATE / 8 * round_trip_ms / 1000 * 8 / 7;
    u16::try_from(bytes / u64::from(SEGMENT)).unwrap_or(u16::MAX)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let rate = |system, setting, round_trip: u64| {
        let curve = find(series, system, Some(setting))?;
        curve.at(round_trip as f64).map(|point| point.y)
    };
    let over = |other, setting, round_trip| {
        ratio(
            rate("switch", setting, round_trip),
            rate(other, setting, round_trip),
        )
    };
    vec![
        Claim::at_least(
            "outbound",
            "round trip 20 ms: from four members through the switch over one direct connection",
            over("direct", OUT, LARGE_MS),
            0.95,
        ),
        Claim::at_least(
            "outbound-wide",
            "the same at 100 ms, with a ring of as many frames as the path holds",
            over("direct", WIDE, BEYOND_RING_MS),
            0.95,
        ),
        Claim::new(
            "outbound-100ms",
            "the same at 100 ms, where the path holds more than the usual ring of 384 frames",
            over("direct", OUT, BEYOND_RING_MS),
        ),
        Claim::new(
            "outbound-2ms",
            "round trip 2 ms, outbound: switch over the select proxy, which wins in the paper",
            over("select-proxy", OUT, 2),
        ),
        Claim::new(
            "inbound-2ms",
            "round trip 2 ms, inbound: switch over the select proxy, which wins in the paper",
            over("select-proxy", IN, 2),
        ),
        Claim::new(
            "inbound",
            "round trip 20 ms, inbound: switch over the select proxy",
            over("select-proxy", IN, LARGE_MS),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_one_connection_and_the_proxy() {
        let series = [
            curve("switch", Some(OUT), &[(2.0, 11.0), (20.0, 10.0)]),
            curve("select-proxy", Some(OUT), &[(2.0, 22.0)]),
            curve("direct", Some(OUT), &[(2.0, 11.0), (20.0, 10.0)]),
            curve("switch", Some(WIDE), &[(100.0, 9.6)]),
            curve("direct", Some(WIDE), &[(100.0, 10.0)]),
        ];
        let claims = claims(&series);
        assert_eq!(
            (claims[0].measured, claims[0].holds),
            (Some(1.0), Some(true))
        );
        let by = |id: &str| claims.iter().find(|it| it.id == id).unwrap().measured;
        assert_eq!(by("outbound-wide"), Some(0.96));
        assert_eq!(by("outbound-2ms"), Some(0.5));
        assert_eq!(by("inbound-2ms"), None);
        assert_eq!(ring(BEYOND_RING_MS), 992);
    }
}
