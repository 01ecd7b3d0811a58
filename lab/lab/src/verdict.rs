//! Verdicts on which two runs agree.
//!
//! Every round of an experiment measures each system once, one right after the other, in
//! alternating order. A claim's figure is computed round by round, so that a ratio
//! compares neighbours in time, and its median is judged with a 95 % interval. The claim
//! holds, or has failed, if the whole interval is on one side of the bound, and is
//! undecided otherwise. A claim of several points at once is judged by the intervals of
//! each ([`over_best`]).

use std::collections::BTreeSet;

use crate::result::{Claim, Series};
use crate::sweep::median;

/// Student's t for 95 %, two-sided, with 2, 3 and 4 degrees of freedom.
const STUDENT: [f64; 3] = [4.303, 3.182, 2.776];
/// From this many values on, order statistics reach 95 %.
const ORDERED: usize = 6;
/// The tail of a 95 % interval on either side.
const TAIL: f64 = 0.025;
/// A probe this many standard deviations below the others is an outlier (Iglewicz and
/// Hoaglin 1993). Median absolute deviations, each 0.6745 of a standard deviation, stand
/// for those.
const OUTLYING: f64 = 3.5 / 0.6745;
/// A probe above this share of the median is no outlier, nor one of which the median is
/// more than this share, however close together the others are. The probes of one session
/// are closer together than those of several.
const FAR: f64 = 0.9;
/// Probes to compare with before one can be an outlier.
const PROBES: usize = 5;

/// Returns a 95 % confidence interval of the median, lowest and highest value.
///
/// Six or more values: it lies between two of them. The binomial distribution gives how
/// many may lie on either side of the median, whatever the values' own distribution.
/// Fewer values have no such interval; theirs is Student's, of their logarithms if all
/// are above zero, as ratios are. `None` for fewer than three.
pub(crate) fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    if count >= ORDERED {
        return ordered(&sorted, outside(count, TAIL)?);
    }
    let student = *STUDENT.get(count.checked_sub(3)?)?;
    let logarithmic = sorted.iter().all(|value| *value > 0.0);
    let to = |value: f64| if logarithmic { value.ln() } else { value };
    let from = |value: f64| if logarithmic { value.exp() } else { value };
    let number = count as f64;
    let mean = sorted.iter().map(|value| to(*value)).sum::<f64>() / number;
    let squares = sorted.iter().map(|value| (to(*value) - mean).powi(2));
    let half = student * (squares.sum::<f64>() / (number - 1.0) / number).sqrt();
    // The same values each time are their own interval, to the last bit.
    if half < 1e-12 * mean.abs() {
        return Some((*sorted.first()?, *sorted.last()?));
    }
    Some((from(mean - half), from(mean + half)))
}

/// Acts as [`interval`], for one of `points` that are judged together: so wide that with
/// 95 % the intervals of all of them hold their medians (Bonferroni). It lies between two
/// of the values, and is `None` for too few: three points need seven, seven need nine.
pub(crate) fn interval_of_one_in(values: &[f64], points: usize) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    ordered(&sorted, outside(sorted.len(), TAIL / points.max(1) as f64)?)
}

/// Returns the values between which the median lies if `outside` are left out on either
/// side.
fn ordered(sorted: &[f64], outside: usize) -> Option<(f64, f64)> {
    let last = sorted.len().checked_sub(1 + outside)?;
    Some((*sorted.get(outside)?, *sorted.get(last)?))
}

/// Returns how many of `count` ordered values may be left out on either side: so few that
/// the median of the whole lies among those left out with a probability of at most `tail`
/// on each. `None` if even all of them are too few.
fn outside(count: usize, tail: f64) -> Option<usize> {
    let mut probability = 0.5f64.powi(count as i32);
    let mut sum = probability;
    let mut may = None;
    for left_out in 0..count {
        if sum > tail {
            break;
        }
        may = Some(left_out);
        probability *= (count - left_out) as f64 / (left_out + 1) as f64;
        sum += probability;
    }
    may
}

/// Divides one figure by another; two zeroes are equal.
pub(crate) fn over(own: f64, other: f64) -> f64 {
    match other <= 0.0 {
        true => 1.0 + own,
        false => own / other,
    }
}

/// Figures of points divided by those of the best of others there, round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OverBest {
    /// Those of each point.
    pub(crate) points: Vec<Vec<f64>>,
    /// Those of all points: the geometric mean of each round.
    pub(crate) mean: Vec<f64>,
}

/// Compares a system with the best of others at each of several points. A point has one
/// row per round: the system's figure, and those of the others.
///
/// The largest of several figures exceeds the truth by their noise, so a system as good
/// as all of them would lose. So the other that is best in the median of *all other*
/// rounds stands for the best in a round: that choice is independent of the noise of the
/// round. `None` if a point has fewer than two rounds.
pub(crate) fn over_best(points: &[Vec<(f64, Vec<f64>)>]) -> Option<OverBest> {
    let ratios = |rounds: &Vec<(f64, Vec<f64>)>| {
        let of = |(round, (own, others)): (usize, &(f64, Vec<f64>))| {
            let elsewhere = |other: usize| {
                let rest = rounds.iter().enumerate().filter(|(it, _)| *it != round);
                let figures: Option<Vec<f64>> =
                    rest.map(|(_, (_, all))| all.get(other).copied()).collect();
                median(&figures?)
            };
            let known = (0..others.len()).map(|other| Some((other, elsewhere(other)?)));
            let known: Option<Vec<(usize, f64)>> = known.collect();
            let best = known?.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(over(*own, *others.get(best.0)?))
        };
        rounds
            .iter()
            .enumerate()
            .map(of)
            .collect::<Option<Vec<f64>>>()
    };
    let points: Vec<Vec<f64>> = points.iter().map(ratios).collect::<Option<_>>()?;
    let rounds = points.iter().map(Vec::len).min()?;
    let mean = (0..rounds).map(|round| {
        let logarithms = points.iter().filter_map(|it| Some(it.get(round)?.ln()));
        (logarithms.sum::<f64>() / points.len() as f64).exp()
    });
    let mean = mean.collect();
    Some(OverBest { points, mean })
}

/// Returns true for a probe of `bare` far from the `others`: the machine was so much
/// slower or faster that the round was not measured at its intended load.
pub(crate) fn is_disturbed(probe: f64, others: &[f64]) -> bool {
    let Some(usual) = median(others).filter(|_| others.len() >= PROBES) else {
        return false;
    };
    let deviations: Vec<f64> = others.iter().map(|other| (other - usual).abs()).collect();
    let deviation = median(&deviations).unwrap_or(0.0);
    let apart = OUTLYING * deviation;
    probe < (usual - apart).min(FAR * usual) || probe > (usual + apart).max(usual / FAR)
}

/// Judges the claims of an experiment, with intervals if rounds were kept apart. Without,
/// a claim is judged by its figure alone, as is one of points that were not measured in
/// rounds. With one or two rounds it stays undecided.
pub(crate) fn judge(claims: fn(&[Series]) -> Vec<Claim>, series: &[Series]) -> Vec<Claim> {
    let samples = series.iter().flat_map(|series| &series.points);
    let rounds: BTreeSet<u32> = samples
        .flat_map(|point| point.samples.iter().map(|sample| sample.round))
        .collect();
    let judged = claims(series);
    if rounds.is_empty() {
        return judged;
    }
    let of_round = |round| {
        let series: Vec<Series> = series.iter().map(|it| it.of_round(round)).collect();
        claims(&series)
    };
    // Figures that no round measured, which stay when all rounds are removed.
    let fixed = of_round(u32::MAX);
    let rounds: Vec<Vec<Claim>> = rounds.into_iter().map(of_round).collect();
    let of_rounds = |claim: Claim| {
        // It has been judged over the rounds already.
        if claim.low.is_some() {
            return claim;
        }
        let figure = |claims: &Vec<Claim>| {
            let same = claims.iter().find(|other| other.id == claim.id)?;
            same.measured
        };
        if figure(&fixed).is_some() {
            return claim;
        }
        let values: Vec<f64> = rounds.iter().filter_map(figure).collect();
        claim.with_rounds(&values)
    };
    judged.into_iter().map(of_rounds).collect()
}

/// Returns true if more rounds could change no verdict: none is open.
pub(crate) fn is_decided(claims: &[Claim]) -> bool {
    claims.iter().all(|claim| !claim.is_undecided())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Sample;
    use crate::sweep::point;

    /// xorshift64*: the same numbers each time.
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
            (number as f64 + 0.5) / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), self.uniform());
            radius * (std::f64::consts::TAU * angle).cos()
        }
    }

    /// Returns the share of intervals of `count` values that hold the median of `draw`'s
    /// distribution.
    fn coverage(count: usize, median: f64, draw: impl Fn(&mut Random) -> f64) -> f64 {
        let mut random = Random(0x7469_6465_7761_6c6c ^ count as u64);
        let runs = 4000;
        let held = (0..runs).filter(|_| {
            let values: Vec<f64> = (0..count).map(|_| draw(&mut random)).collect();
            let (low, high) = interval(&values).unwrap();
            low <= median && median <= high
        });
        held.count() as f64 / f64::from(runs)
    }

    #[test]
    fn an_interval_holds_the_median_in_95_of_100_runs() {
        // Three standard errors of 4,000 runs.
        let least = 0.95 - 3.0 * (0.95f64 * 0.05 / 4000.0).sqrt();
        for count in [3, 4, 5, 6, 7, 10, 20, 50] {
            let ratios = coverage(count, 0.9, |random| 0.9 * (0.2 * random.normal()).exp());
            assert!(ratios >= least, "{count} ratios: {ratios}");
        }
        // Order statistics need no shape: long tails to one side, and values of two
        // kinds.
        for count in [6, 9, 14, 31] {
            let skewed = coverage(count, 2f64.ln(), |random| -random.uniform().ln());
            assert!(skewed >= least, "{count} skewed: {skewed}");
            let tails = coverage(count, 0.0, |random| {
                random.normal() / random.normal().abs().max(1e-9)
            });
            assert!(tails >= least, "{count} of Cauchy's: {tails}");
        }
    }

    #[test]
    fn a_ratio_is_one_of_neighbours() {
        fn claims(series: &[Series]) -> Vec<Claim> {
            let [ours, theirs] = series else {
                return Vec::new();
            };
            let ratio = |at: usize| Some(ours.points.get(at)?.y / theirs.points.get(at)?.y);
            vec![
                Claim::at_least("pair", "", ratio(0), 0.85),
                Claim::at_least("far", "", ratio(0), 1.5),
                Claim::at_least("close", "", ratio(0), 0.9),
                Claim::at_least("missing", "", ratio(1), 0.85),
                Claim::new("without a bound", "", ratio(0)),
            ]
        }
        // The machine becomes three times as fast meanwhile, with a little noise.
        let series = |noise: [f64; 7]| {
            let samples: Vec<Sample> = (0..7u32)
                .zip(noise)
                .map(|(round, noise)| Sample {
                    round,
                    x: 1.0,
                    y: noise * f64::from(3 + round),
                    ..Sample::default()
                })
                .collect();
            Series {
                points: point(&samples).into_iter().collect(),
                ..Series::default()
            }
        };
        let both = [
            series([0.9, 0.92, 0.89, 0.91, 0.9, 0.88, 0.93]),
            series([1.0; 7]),
        ];
        let judged = judge(claims, &both);
        let verdicts: Vec<_> = judged.iter().map(|claim| claim.verdict.name()).collect();
        assert_eq!(
            verdicts,
            ["holds", "FAILED", "undecided", "FAILED", "measured"]
        );
        let pair = &judged[0];
        assert!((pair.measured.unwrap() - 0.9).abs() < 1e-9, "{pair:?}");
        assert!(
            pair.low.unwrap() > 0.87 && pair.high.unwrap() < 0.94,
            "{pair:?}"
        );
        assert_eq!(judged[4].low, pair.low);
        assert!(!is_decided(&judged) && is_decided(&judged[..2]));
        // Two rounds decide nothing; without rounds the figure alone is judged.
        let few: Vec<Series> = both.iter().map(|series| few_rounds(series, 2)).collect();
        assert_eq!(judge(claims, &few)[1].verdict.name(), "undecided");
        let none: Vec<Series> = both.iter().map(|series| few_rounds(series, 0)).collect();
        assert_eq!(judge(claims, &none)[0].verdict.name(), "holds");
    }

    #[test]
    fn what_no_round_measured_is_judged_by_its_figure() {
        fn claims(series: &[Series]) -> Vec<Claim> {
            let y = |at: usize| Some(series.first()?.points.get(at)?.y);
            let last = |series: &Series| Some(series.last()?.y);
            let last = series.get(1).and_then(last);
            vec![
                Claim::at_least("once", "", last, 1.0),
                Claim::at_least("rounds", "", y(0), 1.0),
            ]
        }
        let sample = |round| Sample {
            round,
            y: 2.0 + f64::from(round) / 100.0,
            ..Sample::default()
        };
        let rounds = Series {
            points: point(&[0, 1, 2].map(sample)).into_iter().collect(),
            ..Series::default()
        };
        let once = Series {
            points: vec![crate::result::Point::exactly(0.0, 3.0, 1)],
            ..Series::default()
        };
        let judged = judge(claims, &[rounds, once]);
        assert_eq!((judged[0].measured, judged[0].low), (Some(3.0), None));
        assert_eq!(judged[0].verdict.name(), "holds");
        assert!(judged[1].low.is_some_and(|low| low > 1.0));
    }

    /// Returns figures of three points over this many rounds, of a system that is
    /// `quality` of five others. Those are alike, all with 3 % of noise, on a machine
    /// whose speed changes from round to round. The quality applies at the point `only`,
    /// or at all; elsewhere the system is like the others.
    fn compared(
        random: &mut Random,
        rounds: usize,
        quality: f64,
        only: Option<usize>,
    ) -> Vec<Vec<(f64, Vec<f64>)>> {
        let mut points = vec![Vec::new(); 3];
        for _ in 0..rounds {
            let speed = 1e6 * (1.0 + random.uniform());
            for (place, point) in points.iter_mut().enumerate() {
                let mut noisy = |quality: f64| speed * quality * (0.03 * random.normal()).exp();
                let own = noisy(if only.is_none_or(|only| only == place) {
                    quality
                } else {
                    1.0
                });
                point.push((own, (0..5).map(|_| noisy(1.0)).collect()));
            }
        }
        points
    }

    /// Counts how 100 runs end: holds, FAILED, undecided.
    fn verdicts(rounds: usize, quality: f64, only: Option<usize>) -> [usize; 3] {
        let mut random = Random(0x6164_6170_7469_7665 ^ rounds as u64);
        let mut counts = [0; 3];
        for _ in 0..100 {
            let points = compared(&mut random, rounds, quality, only);
            let ratios = over_best(&points).unwrap();
            let claim = Claim::at_least("x", "", None, 0.98);
            let claim = claim.with_points(&ratios.points, &ratios.mean);
            assert!(claim.low.unwrap() <= claim.high.unwrap());
            counts[match claim.holds {
                Some(true) => 0,
                Some(false) => 1,
                None => 2,
            }] += 1;
        }
        counts
    }

    #[test]
    fn a_system_that_is_as_good_as_the_best_of_five_does_not_lose_to_their_noise() {
        for rounds in [3, 5, 9, 20] {
            let [_, failed, _] = verdicts(rounds, 1.0, None);
            assert!(failed <= 2, "{rounds} rounds: {failed} of 100 failed");
        }
        let [holds, ..] = verdicts(40, 1.0, None);
        assert!(holds >= 85, "{holds} of 100 hold");
        // The least of three ratios to the largest of five would be far below.
        let mut random = Random(1);
        let naive: Vec<f64> = (0..60)
            .map(|_| {
                let points = compared(&mut random, 1, 1.0, None);
                let best = |others: &[f64]| others.iter().copied().fold(0.0, f64::max);
                let ratios = points.iter().map(|it| it[0].0 / best(&it[0].1));
                ratios.fold(f64::INFINITY, f64::min)
            })
            .collect();
        assert!(interval(&naive).unwrap().1 < 0.97);
    }

    #[test]
    fn a_system_that_is_5_percent_worse_fails_everywhere_or_at_one_point() {
        for rounds in [3, 5, 9, 20] {
            let [holds, ..] = verdicts(rounds, 0.95, None);
            assert!(holds <= 2, "{rounds} rounds: {holds} of 100 hold");
        }
        let [_, failed, _] = verdicts(20, 0.95, None);
        assert!(failed >= 90, "{failed} of 100 failed");
        for only in 0..3 {
            let [holds, failed, _] = verdicts(40, 0.95, Some(only));
            assert!(holds <= 3 && failed >= 75, "{holds} hold, {failed} failed");
        }
    }

    #[test]
    fn a_choice_of_the_best_knows_nothing_of_its_own_round() {
        // The first is the best but for the last round, the second but for the first.
        let rounds = [
            [8.0, 1.0],
            [8.0, 10.0],
            [8.0, 10.0],
            [8.0, 10.0],
            [30.0, 10.0],
        ];
        let point: Vec<(f64, Vec<f64>)> = rounds.map(|it| (8.0, it.to_vec())).to_vec();
        let ratios = over_best(&[point]).unwrap();
        assert_eq!(ratios.points, [[8.0, 0.8, 0.8, 0.8, 0.8]]);
        for (mean, only) in ratios.mean.iter().zip(&ratios.points[0]) {
            assert!((mean / only - 1.0).abs() < 1e-12);
        }
        // Nothing to choose by.
        assert_eq!(over_best(&[vec![(1.0, vec![1.0])]]), None);
        assert_eq!(over_best(&[]), None);
        // Two zeroes are equal.
        let zeroes = vec![(0.0, vec![0.0]); 3];
        assert_eq!(over_best(&[zeroes]).unwrap().points, [[1.0; 3]]);
    }

    #[test]
    fn one_of_several_points_needs_more_rounds() {
        let values = |count: usize| vec![0.9; count];
        for (points, least) in [(1, 6), (3, 7), (7, 9)] {
            assert_eq!(interval_of_one_in(&values(least - 1), points), None);
            assert_eq!(interval_of_one_in(&values(least), points), Some((0.9, 0.9)));
        }
    }

    fn few_rounds(series: &Series, rounds: usize) -> Series {
        let mut series = series.clone();
        series.points[0].samples.truncate(rounds);
        series
    }

    #[test]
    fn order_statistics_are_those_of_the_tables() {
        let known = [
            (6, 0),
            (8, 0),
            (9, 1),
            (11, 1),
            (12, 2),
            (15, 3),
            (20, 5),
            (50, 17),
        ];
        for (count, left_out) in known {
            assert_eq!(outside(count, TAIL), Some(left_out), "{count}");
        }
        let values = [9.0, 1.0, 5.0, 7.0, 3.0, 2.0];
        assert_eq!(interval(&values), Some((1.0, 9.0)));
        assert_eq!(interval(&values[..2]), None);
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[2.0; 4]), Some((2.0, 2.0)));
        assert_eq!(interval(&[0.0; 3]), Some((0.0, 0.0)));
        let (low, high) = interval(&[-1.0, 0.0, 1.0]).unwrap();
        assert!(low < -2.0 && high > 2.0, "{low} {high}");
    }

    #[test]
    fn a_round_far_from_the_others_is_disturbed() {
        let others = [1.0e6, 1.02e6, 0.98e6, 1.01e6, 0.99e6];
        assert!(is_disturbed(0.89e6, &others));
        assert!(!is_disturbed(0.91e6, &others), "not far below");
        assert!(is_disturbed(1.12e6, &others) && !is_disturbed(1.1e6, &others));
        assert!(!is_disturbed(0.1e6, &others[..4]), "too few to say");
        // A variation within the usual range is no outlier; the same in other units.
        let others = [1.0, 1.7, 0.9, 1.6, 1.2];
        assert!(!is_disturbed(0.8, &others) && !is_disturbed(2.0, &others));
        for scale in [1e-3, 1e9] {
            let scaled = others.map(|other| other * scale);
            assert!(!is_disturbed(0.8 * scale, &scaled));
        }
    }
}
