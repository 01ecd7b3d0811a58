//! The results of an experiment, as written to its JSON file.
//!
//! Empty fields are left out of the file, except those of every experiment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::environment::Environment;

mod claim;

pub use claim::{Claim, Verdict};

/// The outcome of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// Its name, as on the command line.
    pub experiment: String,
    /// The paper and the figure or table.
    pub paper: String,
    /// True for a run with fewer points.
    pub quick: bool,
    /// Runs of each point, if requested (`--rounds`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// The machine and its settings.
    pub environment: Environment,
    /// The capacity of `bare` when the run began, if loads are shares of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bare: Option<Capacity>,
    /// The meaning of the numbers.
    pub axes: Axes,
    /// The curves.
    pub series: Vec<Series>,
    /// The paper's own points, if its text gives numbers, scaled to this machine as each
    /// states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference: Vec<Series>,
    /// The claims, and whether they hold.
    pub claims: Vec<Claim>,
    /// Further notes for the reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Names and units of the two axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axes {
    /// Horizontal.
    pub x: String,
    /// Vertical.
    pub y: String,
}

/// One curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its system, by the names of `system.rs`.
    pub system: String,
    /// The difference from the plain experiment, in words. Curves of one setting share a
    /// panel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// The vertical axis, if it is not the experiment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    /// Its points, in the order of the requested load.
    pub points: Vec<Point>,
    /// Figures of the whole curve: `peak`, `mlfrr`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub summary: BTreeMap<String, f64>,
}

/// One measured point: medians over `runs` runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Median of the offered load.
    pub x: f64,
    /// Median of the result.
    pub y: f64,
    /// Smallest result.
    pub low: f64,
    /// Largest result.
    pub high: f64,
    /// Runs that gave a result.
    pub runs: u32,
    /// The offered load as a share of `bare`'s capacity; none if it is not counted so,
    /// and for an unlimited load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The result over `bare`'s at the same load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_bare: Option<f64>,
    /// Packets/s dropped over the whole load, by place; medians.
    #[serde(default)]
    pub drops: BTreeMap<String, f64>,
    /// Further figures of the same runs, by name; medians.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
    /// The runs themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
    /// The variant of the system that gave this point, if the best of several was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// One run of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of its round, among all that were counted.
    pub round: u32,
    /// The offered load.
    pub x: f64,
    /// The result.
    pub y: f64,
    /// Packets/s dropped over the whole load, by place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, f64>,
    /// Further figures, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
}

impl Point {
    /// Returns a result without a range.
    pub fn exactly(x: f64, y: f64, runs: u32) -> Self {
        Point {
            x,
            y,
            low: y,
            high: y,
            runs,
            ..Point::default()
        }
    }
}

impl Sample {
    /// Returns the same run with another of its figures as the result, if it has it.
    fn redrawn(&self, figure: &str) -> Option<Self> {
        Some(Sample {
            y: *self.values.get(figure)?,
            ..self.clone()
        })
    }
}

impl Series {
    /// Creates a curve without points.
    pub fn named(system: &str, setting: &str) -> Self {
        Series {
            system: system.to_owned(),
            setting: Some(setting.to_owned()),
            ..Series::default()
        }
    }

    /// Returns the same curve with another figure of each point on the vertical axis, if
    /// there is one; `keep` names a value that stays.
    pub fn redrawn(&self, figure: &str, setting: &str, axis: &str, keep: &str) -> Self {
        let kept = |point: &Point| {
            point
                .values
                .get_key_value(keep)
                .map(|(k, v)| (k.clone(), *v))
        };
        let points = self.points.iter().filter_map(|point| {
            let y = *point.values.get(figure)?;
            Some(Point {
                variant: point.variant.clone(),
                share: point.share,
                values: kept(point).into_iter().collect(),
                samples: point
                    .samples
                    .iter()
                    .filter_map(|it| it.redrawn(figure))
                    .collect(),
                ..Point::exactly(point.x, y, point.runs)
            })
        });
        Series {
            y: Some(axis.to_owned()),
            points: points.collect(),
            ..Series::named(&self.system, setting)
        }
    }

    /// Returns the same curve as one round measured it. Points without known runs stay;
    /// those that the round lacks are left out.
    pub(crate) fn of_round(&self, round: u32) -> Self {
        let points = self.points.iter().filter_map(|point| {
            if point.samples.is_empty() {
                return Some(point.clone());
            }
            let sample = point.samples.iter().find(|sample| sample.round == round)?;
            Some(Point {
                drops: sample.drops.clone(),
                values: sample.values.clone(),
                share: point.share,
                variant: point.variant.clone(),
                ..Point::exactly(sample.x, sample.y, 1)
            })
        });
        Series {
            system: self.system.clone(),
            setting: self.setting.clone(),
            y: self.y.clone(),
            points: points.collect(),
            summary: BTreeMap::new(),
        }
    }

    /// Returns the point of the highest load: the last.
    pub fn last(&self) -> Option<&Point> {
        self.points.last()
    }

    /// Returns the highest result.
    pub fn peak(&self) -> Option<f64> {
        self.points
            .iter()
            .map(|point| point.y)
            .max_by(f64::total_cmp)
    }

    /// Returns the nearest point whose offered load is within a tenth of `x`.
    pub fn at(&self, x: f64) -> Option<&Point> {
        self.points
            .iter()
            .filter(|point| (point.x - x).abs() <= 0.1 * x.abs().max(1.0))
            .min_by(|a, b| (a.x - x).abs().total_cmp(&(b.x - x).abs()))
    }

    /// Returns the point that offered this share of `bare`'s capacity.
    pub fn offered(&self, share: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.share == Some(share))
    }

    /// Returns the maximum loss-free receive rate: the highest offered load up to which,
    /// at every point, no more than `loss` (a fraction) was lost.
    pub fn mlfrr(&self, loss: f64) -> Option<f64> {
        self.points
            .iter()
            .take_while(|point| point.y >= (1.0 - loss) * point.x)
            .map(|point| point.x)
            .max_by(f64::total_cmp)
    }
}

impl ResultFile {
    /// Returns the curve of `system` in `setting`.
    pub fn find(&self, system: &str, setting: Option<&str>) -> Option<&Series> {
        find(&self.series, system, setting)
    }

    /// Returns `bare`'s capacity, if the horizontal axis counts packets/s rather than
    /// bytes or frames.
    pub(crate) fn capacity_on_axis(&self) -> Option<Capacity> {
        self.bare.filter(|_| self.axes.x.contains("packets/s"))
    }

    /// Returns the claims that more rounds would decide.
    pub fn undecided(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.is_undecided())
    }

    /// Returns the claims that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Claim> {
        self.claims
            .iter()
            .filter(|claim| claim.holds == Some(false))
    }

    /// Writes the file, completely or not at all.
    ///
    /// # Errors
    /// The error of the file system, with the path.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        let beside = path.with_extension("json.new");
        fs::write(&beside, text + "\n")
            .and_then(|()| fs::rename(&beside, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The error of the file system, or the place where the text is invalid.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no result of an experiment", path.display()))
    }

    /// Returns the points as comma-separated values, one line each, with a heading.
    pub fn csv(&self) -> String {
        let mut text = String::from("system,setting,variant,x,y,low,high,runs,values,drops\n");
        let list = |map: &BTreeMap<String, f64>| {
            map.iter()
                .map(|(name, value)| format!("{name}={value:.1}"))
                .collect::<Vec<_>>()
                .join(";")
        };
        for series in &self.series {
            for point in &series.points {
                text += &format!(
                    "{},{},{},{:.1},{:.1},{:.1},{:.1},{},{},{}\n",
                    quote(&series.system),
                    quote(series.setting.as_deref().unwrap_or_default()),
                    quote(point.variant.as_deref().unwrap_or_default()),
                    point.x,
                    point.y,
                    point.low,
                    point.high,
                    point.runs,
                    quote(&list(&point.values)),
                    quote(&list(&point.drops)),
                );
            }
        }
        text
    }
}

/// Adds to each result its ratio to that of `bare` at the same load, if there is one.
pub(crate) fn set_beside_bare(series: &mut [Series]) {
    let bare: Vec<Series> = series
        .iter()
        .filter(|it| it.system == BARE)
        .cloned()
        .collect();
    for series in series.iter_mut().filter(|series| series.system != BARE) {
        let Some(bare) = bare
            .iter()
            .find(|it| it.setting == series.setting && it.y == series.y)
        else {
            continue;
        };
        for point in &mut series.points {
            let same = bare.points.iter().find(|other| other.share == point.share);
            point.of_bare = same
                .map(|bare| point.y / bare.y)
                .filter(|ratio| ratio.is_finite());
        }
    }
}

/// Name of the series that shows the limit of the machine and the link.
const BARE: &str = "bare";

/// Quotes a field of comma-separated values (RFC 4180 §2).
fn quote(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Merges curves of the same system, setting and axis.
pub(crate) fn merge(series: Vec<Series>) -> Vec<Series> {
    let mut merged: Vec<Series> = Vec::new();
    for one in series {
        let same = merged.iter_mut().find(|other| {
            other.system == one.system && other.setting == one.setting && other.y == one.y
        });
        match same {
            Some(other) => other.points.extend(one.points),
            None => merged.push(one),
        }
    }
    merged
}

/// Returns the curve of `system` in `setting`.
pub fn find<'a>(series: &'a [Series], system: &str, setting: Option<&str>) -> Option<&'a Series> {
    series
        .iter()
        .find(|series| series.system == system && series.setting.as_deref() == setting)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a curve through `points`.
    pub(crate) fn curve(system: &str, setting: Option<&str>, points: &[(f64, f64)]) -> Series {
        Series {
            system: system.to_owned(),
            setting: setting.map(str::to_owned),
            points: points
                .iter()
                .map(|&(x, y)| Point {
                    x,
                    y,
                    low: y * 0.9,
                    high: y * 1.1,
                    runs: 5,
                    ..Point::default()
                })
                .collect(),
            ..Series::default()
        }
    }

    /// Asserts that these are the claims, with these figures, and that each one with a
    /// bound holds.
    pub(crate) fn all_hold(claims: &[Claim], expected: &[(&str, f64)]) {
        assert_eq!(claims.len(), expected.len());
        for (claim, (id, measured)) in claims.iter().zip(expected) {
            assert_eq!(claim.id, *id);
            let got = claim.measured.unwrap();
            assert!(
                (got / measured - 1.0).abs() < 1e-9,
                "{id}: {got}, not {measured}"
            );
            assert_eq!(claim.holds, claim.bound.map(|_| true), "{id}");
        }
    }

    pub(crate) fn sample() -> ResultFile {
        let mut series = vec![
            curve(
                "tidewall",
                None,
                &[(1e5, 1e5), (1e6, 9.9e5), (1.5e6, 1.2e6)],
            ),
            curve("linux-rps", None, &[(1e5, 1e5), (1e6, 1.7e5), (1.5e6, 5e3)]),
            curve("tidewall", Some("200 multiplications"), &[(1e6, 9e5)]),
        ];
        series[1].points[1]
            .drops
            .insert("socket buffer".into(), 8.3e5);
        series[1].points[1].variant = Some("recvmmsg".into());
        ResultFile {
            experiment: "lrp-overload".into(),
            paper: "LRP, Figure 3".into(),
            quick: true,
            rounds: None,
            environment: Environment::default(),
            bare: None,
            axes: Axes {
                x: "offered packets/s".into(),
                y: "delivered packets/s".into(),
            },
            series,
            reference: vec![curve("bsd", None, &[(7.4e3, 7.38e3)])],
            claims: vec![
                Claim::at_least("flat", "keeps its peak", Some(0.97), 0.95).paper(1.0),
                Claim::above("order", "a > b, & so on", None, 1.0),
                Claim::new("share", "of another", Some(2.5)),
            ],
            notes: vec!["a note with <angle> brackets".into()],
        }
    }

    #[test]
    fn a_result_survives_its_file() {
        let path = std::env::temp_dir().join(format!("tw-result-{}.json", std::process::id()));
        let result = sample();
        result.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(ResultFile::read(&path).unwrap(), result);
        fs::remove_file(&path).unwrap();
        for part in [
            r#""experiment": "lrp-overload""#,
            r#""bound": ">=0.95""#,
            r#""measured": null"#,
        ] {
            assert!(text.contains(part), "{part} is missing of {text}");
        }
    }

    #[test]
    fn the_documented_file_is_understood() {
        let text = r#"{"experiment":"lrp-overload","paper":"LRP, Figure 3","quick":true,
            "environment":{"kernel":"6.18","cpus":2,"receiver_cpu":1,"load_average":[0.1,0.2,0.3],
              "qdisc":"noqueue","offloads":{"tx":"off"},"commit":"abc"},
            "axes":{"x":"offered packets/s","y":"delivered packets/s"},
            "series":[{"system":"tidewall","points":[{"x":1.0e6,"y":9.9e5,"low":9.8e5,"high":1e6,
              "runs":5,"drops":{"channel":3,"device ring":4}}]}],
            "claims":[{"id":"flat","text":"Tidewall keeps its peak under overload","paper":1.0,
              "measured":0.97,"bound":">=0.95","holds":true}]}"#;
        let result: ResultFile = serde_json::from_str(text).unwrap();
        assert_eq!(result.series[0].points[0].drops["device ring"], 4.0);
        assert_eq!(result.failed().count(), 0);
        assert_eq!(result.environment.receiver_cpu, 1);
    }

    #[test]
    fn a_claim_is_judged_by_its_bound() {
        let judge = |measured| {
            let claim = Claim::at_least("x", "x", measured, 1.0);
            claim.holds.unwrap()
        };
        assert!(judge(Some(1.0)));
        assert!(!judge(Some(0.99)));
        assert!(!judge(None), "what was not measured does not hold");
        assert!(!judge(Some(f64::NAN)));
    }

    #[test]
    fn a_claim_without_a_bound_never_holds() {
        for figure in [Some(1.0), None] {
            let mut result = sample();
            result.claims = vec![Claim::new("reported", "a ratio", figure)];
            assert_eq!(result.claims[0].verdict, Verdict::Measured);
            assert_eq!(result.failed().count(), 0);
            let text = serde_json::to_string(&result).unwrap();
            assert!(text.contains(r#""bound":null,"holds":null"#), "{text}");
            assert_eq!(serde_json::from_str::<ResultFile>(&text).unwrap(), result);
        }
    }

    #[test]
    fn figures_of_a_curve() {
        let curve = curve(
            "x",
            None,
            &[
                (100.0, 100.0),
                (200.0, 199.5),
                (300.0, 150.0),
                (400.0, 398.0),
            ],
        );
        assert_eq!(curve.peak(), Some(398.0));
        assert_eq!(curve.last().unwrap().x, 400.0);
        // The point after the loss does not count, however good it is.
        assert_eq!(curve.mlfrr(0.01), Some(200.0));
        assert_eq!(curve.mlfrr(0.001), Some(100.0));
        assert_eq!(curve.at(305.0).unwrap().y, 150.0);
        assert!(curve.at(1000.0).is_none());
        assert_eq!(Series::default().peak(), None);
    }

    #[test]
    fn csv_has_a_line_a_point() {
        let csv = sample().csv();
        assert_eq!(csv.lines().count(), 1 + 7);
        assert!(
            csv.contains("linux-rps,,recvmmsg,1000000.0,170000.0,"),
            "{csv}"
        );
        assert_eq!(quote("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
