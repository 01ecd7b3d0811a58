//! What the curves have to show.

use super::transfer::{LAG_P99, LATE, LOST_ITSELF, Peer};
use super::{PERCENTILES, SHARE};
use crate::bound::Bound;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::median;

/// Tidewall over Linux at every point of the settings that begin with `work`.
fn ratios(series: &[Series], work: &str) -> Vec<f64> {
    let mut ratios = Vec::new();
    for ours in series {
        let setting = ours.setting.as_deref().unwrap_or_default();
        if ours.system != Peer::Tidewall.name() || !setting.starts_with(work) {
            continue;
        }
        let Some(theirs) = find(series, Peer::Linux.name(), Some(setting)) else {
            continue;
        };
        for point in &ours.points {
            // Not `at`, to which 0 and 0.1 % are the same.
            let other = theirs.points.iter().find(|other| other.x == point.x);
            ratios.extend(other.map(|other| point.y / other.y));
        }
    }
    ratios
}

/// Computes the claims.
pub fn claims(series: &[Series]) -> Vec<Claim> {
    let worst = |ratios: &[f64]| ratios.iter().copied().min_by(f64::total_cmp);
    let mut claims = Vec::new();
    for (id, work, text) in [
        ("goodput", "sends", "bulk that Tidewall sends to Linux"),
        (
            "receive",
            "receives",
            "bulk that Tidewall receives from Linux",
        ),
    ] {
        let ratios = ratios(series, work);
        claims.push(Claim::judge(
            &format!("{id}-median"),
            &format!("goodput of {text} over Linux's own, same impairment: median of all points"),
            None,
            median(&ratios),
            Bound::at_least(0.9),
        ));
        claims.push(Claim::judge(
            &format!("{id}-worst"),
            &format!("goodput of {text} over Linux's own, same impairment: worst point"),
            None,
            worst(&ratios),
            Bound::at_least(0.8),
        ));
    }
    let shares: Vec<f64> = find(series, Peer::Tidewall.name(), Some(SHARE))
        .filter(|series| series.points.len() == 2)
        .map(|series| series.points.iter().map(|point| point.y).collect())
        .unwrap_or_default();
    claims.push(Claim::judge(
        "share-least",
        "share of a bottleneck against one Linux CUBIC flow, the smaller of both orders of start",
        None,
        worst(&shares),
        Bound::at_least(0.4),
    ));
    claims.push(Claim::judge(
        "share-most",
        "share of a bottleneck against one Linux CUBIC flow, the larger of both orders of start",
        None,
        shares.iter().copied().max_by(f64::total_cmp),
        Bound::at_most(0.6),
    ));
    for (id, (_, percentile)) in [
        ("objects-p99", PERCENTILES[1]),
        ("objects-transfer-p99", PERCENTILES[2]),
    ] {
        let setting = format!("objects of 100 KB, round trip 10 ms: {percentile}");
        let at = |system| {
            let series = find(series, system, Some(&setting))?;
            series.points.iter().find(|point| point.x == 1.0)
        };
        let ratio = at(Peer::Tidewall.name())
            .zip(at(Peer::Linux.name()))
            .map(|(ours, theirs)| ours.y / theirs.y);
        claims.push(Claim::judge(
            id,
            &format!("completion of objects of 100 KB at 1 % loss over Linux's: {percentile}"),
            None,
            ratio,
            Bound::at_most(1.1),
        ));
    }
    let largest = |name: &str| {
        let of = |point: &Point| point.values.get(name).copied();
        let points = series.iter().flat_map(|series| &series.points);
        points.filter_map(of).max_by(f64::total_cmp)
    };
    claims.push(Claim::judge(
        "bridge-lost",
        "frames that the bridge lost itself, in the worst run",
        None,
        largest(LOST_ITSELF),
        Bound::at_most(0.0),
    ));
    claims.push(Claim::judge(
        "bridge-late",
        "how late the bridge was, µs, 99th percentile of the worst run: a fifth of the shortest \
         round trip at most",
        None,
        largest(LAG_P99),
        Bound::at_most(LATE),
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    fn of<'a>(claims: &'a [Claim], id: &str) -> &'a Claim {
        claims.iter().find(|claim| claim.id == id).unwrap()
    }

    #[test]
    fn goodput_is_judged_by_its_median_and_its_worst_point() {
        let ten = Some("sends, round trip 10 ms");
        let one = Some("sends, round trip 1 ms");
        let series = [
            curve("tidewall", ten, &[(0.0, 95.0), (0.1, 38.0), (1.0, 10.0)]),
            curve("linux-cubic", ten, &[(0.0, 95.0), (0.1, 40.0), (1.0, 10.0)]),
            curve("tidewall", one, &[(0.0, 70.0), (3.0, 9.0)]),
            curve("linux-cubic", one, &[(0.0, 100.0), (1.0, 9.0)]),
        ];
        let claims = claims(&series);
        let median = of(&claims, "goodput-median");
        assert_eq!(median.measured, Some(0.975));
        assert!(median.holds);
        let worst = of(&claims, "goodput-worst");
        assert_eq!(worst.measured, Some(0.7));
        assert!(!worst.holds);
        assert_eq!(of(&claims, "receive-worst").measured, None);
    }

    #[test]
    fn a_share_needs_both_orders() {
        let both = curve("tidewall", Some(SHARE), &[(1.0, 0.38), (2.0, 0.55)]);
        let judged = claims(std::slice::from_ref(&both));
        assert!(!of(&judged, "share-least").holds);
        assert!(of(&judged, "share-most").holds);
        let half = curve("tidewall", Some(SHARE), &[(1.0, 0.5)]);
        assert_eq!(of(&claims(&[half]), "share-least").measured, None);
    }

    #[test]
    fn objects_are_judged_at_one_per_cent() {
        let p99 = Some("objects of 100 KB, round trip 10 ms: p99");
        let series = [
            curve("tidewall", p99, &[(0.0, 500.0), (1.0, 105.0), (3.0, 900.0)]),
            curve(
                "linux-cubic",
                p99,
                &[(0.0, 50.0), (1.0, 100.0), (3.0, 100.0)],
            ),
        ];
        let claims = claims(&series);
        assert_eq!(of(&claims, "objects-p99").measured, Some(1.05));
        assert_eq!(of(&claims, "objects-transfer-p99").measured, None);
    }

    #[test]
    fn one_late_run_of_the_bridge_is_too_many() {
        let mut series = curve("linux-cubic", Some("sends"), &[(0.0, 1.0), (1.0, 1.0)]);
        for (point, late) in series.points.iter_mut().zip([20.0, 900.0]) {
            point.values.insert(LAG_P99.to_owned(), late);
            point.values.insert(LOST_ITSELF.to_owned(), 0.0);
        }
        let claims = claims(&[series]);
        assert!(of(&claims, "bridge-lost").holds);
        assert_eq!(of(&claims, "bridge-late").measured, Some(900.0));
        assert!(!of(&claims, "bridge-late").holds);
    }
}
