//! A claim of an experiment, and whether it holds.

use serde::{Deserialize, Serialize};

use crate::bound::Bound;
use crate::plot::precise;
use crate::sweep::median;
use crate::verdict::{interval, interval_of_one_in};

/// A claim of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Short name, unique in the experiment.
    pub id: String,
    /// The claim in words.
    pub text: String,
    /// The paper's figure for it, if it gives one.
    pub paper: Option<f64>,
    /// The measured figure, computed from the series; `None` if they lack the data.
    pub measured: Option<f64>,
    /// The bound of the figure; `None` if the figure is only reported.
    pub bound: Option<Bound>,
    /// The 95 % interval of the figure, if it was measured in rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Its other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Whether it holds; `None` without a bound, and while the limit lies in the
    /// interval.
    pub holds: Option<bool>,
    /// The same as one word.
    #[serde(default)]
    pub verdict: Verdict,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It keeps its bound.
    #[serde(rename = "holds")]
    Holds,
    /// It does not keep its bound.
    #[serde(rename = "FAILED")]
    Failed,
    /// The bound lies in the figure's interval.
    #[serde(rename = "undecided")]
    Undecided,
    /// It has no bound.
    #[default]
    #[serde(rename = "measured")]
    Measured,
}

impl Verdict {
    /// Returns the word.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Failed => "FAILED",
            Verdict::Undecided => "undecided",
            Verdict::Measured => "measured",
        }
    }
}

impl Claim {
    /// Creates a figure without a bound, which neither holds nor fails.
    pub fn new(id: impl Into<String>, text: impl Into<String>, measured: Option<f64>) -> Self {
        Claim {
            id: id.into(),
            text: text.into(),
            paper: None,
            // NaN has no form in JSON either.
            measured: measured.filter(|measured| measured.is_finite()),
            bound: None,
            low: None,
            high: None,
            holds: None,
            verdict: Verdict::Measured,
        }
    }

    /// Adds the paper's figure.
    #[must_use]
    pub fn paper(self, figure: f64) -> Self {
        let paper = Some(figure);
        Claim { paper, ..self }
    }

    /// Judges it by a bound. A figure that could not be measured does not hold.
    fn judged(self, bound: Bound) -> Self {
        let holds = self.measured.is_some_and(|measured| bound.holds(measured));
        Claim {
            bound: Some(bound),
            ..self
        }
        .decided(Some(holds))
    }

    fn decided(self, holds: Option<bool>) -> Self {
        let verdict = match holds {
            _ if self.bound.is_none() => Verdict::Measured,
            Some(true) => Verdict::Holds,
            Some(false) => Verdict::Failed,
            None => Verdict::Undecided,
        };
        Claim {
            holds: holds.filter(|_| self.bound.is_some()),
            verdict,
            ..self
        }
    }

    /// Returns the same claim, judged by its figure in each round that gave one. Without
    /// any, nothing changes.
    pub(crate) fn with_rounds(self, values: &[f64]) -> Self {
        let Some(measured) = median(values) else {
            return self;
        };
        let interval = interval(values);
        let decided = interval
            .zip(self.bound)
            .and_then(|((low, high), bound)| bound.decides(low, high));
        Claim {
            measured: Some(measured),
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
            ..self
        }
        .decided(decided)
    }

    /// Returns the same claim, judged over several points at once: `points` are the
    /// figures of each in the rounds, `mean` those of all together.
    ///
    /// It holds if every point's interval is on the good side of the bound, or if that of
    /// the mean and every point's median are. It has failed if the mean's interval is on
    /// the other side, or one point's at the confidence that this many points require
    /// ([`interval_of_one_in`]). The figure and interval are the decisive ones, or those
    /// of the worst point while none are.
    pub(crate) fn with_points(self, points: &[Vec<f64>], mean: &[f64]) -> Self {
        let Some(bound) = self.bound else {
            return self.with_rounds(mean);
        };
        let of_mean = self.clone().with_rounds(mean);
        let each = points
            .iter()
            .map(|values| (values, self.clone().with_rounds(values)));
        let worse = |a: &(_, Claim), b: &(_, Claim)| {
            let figure = |claim: &Claim| claim.measured.unwrap_or(f64::NAN);
            bound.compare(figure(&a.1), figure(&b.1))
        };
        let mut each: Vec<(&Vec<f64>, Claim)> = each.collect();
        each.sort_by(worse);
        let certain = |values: &[f64]| {
            let (low, high) = interval_of_one_in(values, points.len())?;
            bound.decides(low, high)
        };
        if let Some((_, point)) = each.iter().find(|(it, _)| certain(it) == Some(false)) {
            return point.clone().decided(Some(false));
        }
        let Some((_, worst)) = each.first() else {
            return of_mean;
        };
        if each.iter().all(|(_, point)| point.holds == Some(true)) {
            return worst.clone();
        }
        let medians_hold = || {
            each.iter()
                .all(|(_, it)| it.measured.is_some_and(|y| bound.holds(y)))
        };
        match of_mean.holds {
            Some(false) => of_mean,
            Some(true) if medians_hold() => of_mean,
            _ => worst.clone().decided(None),
        }
    }

    /// Returns true while the bound lies in the interval, or there are too few rounds for
    /// an interval.
    pub fn is_undecided(&self) -> bool {
        self.verdict == Verdict::Undecided
    }

    /// Holds if the figure is at least `limit`.
    pub fn at_least(
        id: impl Into<String>,
        text: impl Into<String>,
        measured: Option<f64>,
        limit: f64,
    ) -> Self {
        Claim::new(id, text, measured).judged(Bound::at_least(limit))
    }

    /// Holds if the figure is above `limit`.
    pub fn above(
        id: impl Into<String>,
        text: impl Into<String>,
        measured: Option<f64>,
        limit: f64,
    ) -> Self {
        Claim::new(id, text, measured).judged(Bound::above(limit))
    }

    /// Holds if the figure is at most `limit`.
    pub fn at_most(
        id: impl Into<String>,
        text: impl Into<String>,
        measured: Option<f64>,
        limit: f64,
    ) -> Self {
        Claim::new(id, text, measured).judged(Bound::at_most(limit))
    }

    /// Formats the interval; empty without one.
    pub(crate) fn interval(&self) -> String {
        let ends = self.low.zip(self.high);
        ends.map_or_else(String::new, |(low, high)| {
            format!("{}–{}", precise(low), precise(high))
        })
    }
}
