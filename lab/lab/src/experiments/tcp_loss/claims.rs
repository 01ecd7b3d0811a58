//! The claims on the curves.

use super::transfer::{LAG_P99, LATE, LOST_ITSELF, Peer, is_sound};
use super::{PERCENTILES, SHARE};
use crate::result::{Claim, Point, Series, find};
use crate::sweep::median;

/// Returns the ratios of Tidewall to Linux at every point of the settings that begin with
/// `work`.
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
            // Not `at`, which does not distinguish 0 from 0.1 %.
            let other = theirs.points.iter().find(|other| other.x == point.x);
            let both = other.filter(|other| is_sound(&other.values) && is_sound(&point.values));
            ratios.extend(both.map(|other| point.y / other.y));
        }
    }
    ratios
}

/// Returns a share, if there is a whole.
fn ratio(part: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
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
        claims.push(Claim::at_least(
            format!("{id}-median"),
            format!("goodput of {text} over Linux's own, same impairment: median of all points"),
            median(&ratios),
            0.9,
        ));
        claims.push(Claim::at_least(
            format!("{id}-worst"),
            format!("goodput of {text} over Linux's own, same impairment: worst point"),
            worst(&ratios),
            0.8,
        ));
    }
    let shares: Vec<f64> = find(series, Peer::Tidewall.name(), Some(SHARE))
        .map(|series| series.points.iter())
        .filter(|points| {
            points
                .clone()
                .filter(|point| is_sound(&point.values))
                .count()
                == 2
        })
        .map(|points| points.map(|point| point.y).collect())
        .unwrap_or_default();
    claims.push(Claim::at_least(
        "share-least",
        "share of a bottleneck against one Linux CUBIC flow, the smaller of both \
             orders of start",
        worst(&shares),
        0.4,
    ));
    claims.push(Claim::at_most(
        "share-most",
        "share of a bottleneck against one Linux CUBIC flow, the larger of both \
             orders of start",
        shares.iter().copied().max_by(f64::total_cmp),
        0.6,
    ));
    for (id, (_, percentile)) in [
        ("objects-p99", PERCENTILES[1]),
        ("objects-transfer-p99", PERCENTILES[2]),
    ] {
        let setting = format!("objects of 100 KB, round trip 10 ms: {percentile}");
        let at = |system| {
            let series = find(series, system, Some(&setting))?;
            let mut points = series.points.iter();
            points.find(|point| point.x == 1.0 && is_sound(&point.values))
        };
        let ratio = at(Peer::Tidewall.name())
            .zip(at(Peer::Linux.name()))
            .map(|(ours, theirs)| ours.y / theirs.y);
        claims.push(Claim::at_most(
            id,
            format!("completion of objects of 100 KB at 1 % loss over Linux's: {percentile}"),
            ratio,
            1.1,
        ));
    }
    let points: Vec<&Point> = series.iter().flat_map(|series| &series.points).collect();
    let of = |name: &str| {
        let values = points.iter().filter_map(|point| point.values.get(name));
        values.copied().collect::<Vec<_>>()
    };
    claims.push(Claim::at_most(
        "bridge-lost",
        "frames that the bridge lost itself, in the worst run",
        of(LOST_ITSELF).into_iter().max_by(f64::total_cmp),
        0.0,
    ));
    claims.push(Claim::at_most(
        "bridge-late",
        "how late the bridge was, µs, 99th percentile, median of all points",
        median(&of(LAG_P99)),
        LATE,
    ));
    let sound = points
        .iter()
        .filter(|point| is_sound(&point.values))
        .count();
    claims.push(Claim::at_least(
        "bridge-sound",
        "share of the points at which the bridge lost nothing itself and was no \
             later than a fifth of the shortest round trip (99th percentile): the \
             others are not judged",
        ratio(sound, points.len()),
        0.9,
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
        assert!(median.holds == Some(true));
        let worst = of(&claims, "goodput-worst");
        assert_eq!(worst.measured, Some(0.7));
        assert!(worst.holds == Some(false));
        assert_eq!(of(&claims, "receive-worst").measured, None);
    }

    #[test]
    fn a_share_needs_both_orders() {
        let both = curve("tidewall", Some(SHARE), &[(1.0, 0.38), (2.0, 0.55)]);
        let judged = claims(std::slice::from_ref(&both));
        assert!(of(&judged, "share-least").holds == Some(false));
        assert!(of(&judged, "share-most").holds == Some(true));
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
    fn points_at_which_the_bridge_was_late_are_not_judged() {
        let setting = Some("sends, round trip 1 ms");
        let mut ours = curve("tidewall", setting, &[(0.0, 90.0), (1.0, 10.0), (3.0, 8.0)]);
        let theirs = curve(
            "linux-cubic",
            setting,
            &[(0.0, 100.0), (1.0, 50.0), (3.0, 10.0)],
        );
        for (point, late) in ours.points.iter_mut().zip([20.0, 900.0, 30.0]) {
            point.values.insert(LAG_P99.to_owned(), late);
            point.values.insert(LOST_ITSELF.to_owned(), 0.0);
        }
        let judged = claims(&[ours.clone(), theirs.clone()]);
        assert_eq!(of(&judged, "goodput-worst").measured, Some(0.8));
        assert_eq!(of(&judged, "bridge-late").measured, Some(30.0));
        assert!(of(&judged, "bridge-lost").holds == Some(true));
        let sound = of(&judged, "bridge-sound");
        assert_eq!(sound.measured, Some(5.0 / 6.0));
        assert!(sound.holds == Some(false));
        ours.points[2].values.insert(LOST_ITSELF.to_owned(), 1.0);
        let judged = claims(&[ours, theirs]);
        assert_eq!(of(&judged, "goodput-worst").measured, Some(0.9));
        assert!(of(&judged, "bridge-lost").holds == Some(false));
    }
}
