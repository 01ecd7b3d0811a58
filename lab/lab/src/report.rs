//! One HTML page with everything: plots, tables, claims, their changes since earlier
//! runs, and the numbers as downloadable files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use askama::Template;

use crate::plot::{self, panels, precise, short};
use crate::result::{ResultFile, Verdict};

mod against;

pub use against::{Comparison, against};

#[derive(Template)]
#[template(path = "report.html")]
struct Page {
    title: String,
    summary: String,
    changes: Vec<String>,
    results: Vec<Section>,
}

/// The demonstration's page: its result in sentences and charts, and everything else
/// folded.
#[derive(Template)]
#[template(path = "demo.html")]
struct DemoPage {
    title: &'static str,
    sentences: Vec<String>,
    charts: Vec<String>,
    results: Vec<Section>,
}

/// Renders the page of the demonstration.
///
/// # Errors
/// Those of [`html`].
pub(crate) fn demo(
    sentences: Vec<String>,
    charts: Vec<String>,
    results: &[ResultFile],
) -> anyhow::Result<String> {
    let sections = results.iter().map(|result| section(result, &[]));
    let page = DemoPage {
        title: "Tidewall beside Linux",
        sentences,
        charts,
        results: sections.collect::<anyhow::Result<_>>()?,
    };
    Ok(page.render()?)
}

struct Section {
    name: String,
    paper: String,
    quick: bool,
    svg: String,
    /// Start times of the runs with which this one is compared, newest first.
    earlier: Vec<String>,
    claims: Vec<ClaimRow>,
    panels: Vec<PanelTable>,
    notes: Vec<String>,
    environment: Vec<(String, String)>,
    csv: String,
    json: String,
}

struct ClaimRow {
    id: String,
    text: String,
    measured: String,
    interval: String,
    bound: String,
    paper: String,
    verdict: &'static str,
    /// The same claim in each earlier run.
    before: Vec<Before>,
}

#[derive(Clone)]
struct Before {
    figure: String,
    verdict: &'static str,
}

struct PanelTable {
    title: String,
    x: String,
    y: String,
    rows: Vec<Row>,
}

struct Row {
    system: String,
    x: String,
    y: String,
    low: String,
    high: String,
    share: String,
    of_bare: String,
    runs: u32,
    also: String,
    drops: String,
}

/// Renders the page for these results. Each is compared with those of `earlier` that are
/// of the same experiment, with the same options.
///
/// # Errors
/// The error of drawing or of the template.
pub fn html(title: &str, results: &[ResultFile], earlier: &[ResultFile]) -> anyhow::Result<String> {
    let count = |verdict| {
        let claims = results.iter().flat_map(|result| &result.claims);
        claims.filter(|claim| claim.verdict == verdict).count()
    };
    let [kept, failed, open, without_bound] = [
        Verdict::Holds,
        Verdict::Failed,
        Verdict::Undecided,
        Verdict::Measured,
    ]
    .map(count);
    let sections = results
        .iter()
        .map(|result| section(result, &of_the_same(result, earlier)))
        .collect::<anyhow::Result<Vec<Section>>>()?;
    let page = Page {
        title: title.to_owned(),
        summary: format!(
            "{} claims, {kept} hold, {failed} do not, {open} are undecided; {without_bound} figures beside \
             them.",
            kept + failed + open
        ),
        changes: sections.iter().flat_map(Section::changes).collect(),
        results: sections,
    };
    Ok(page.render()?)
}

/// Directory in which [`keep`] saves what a new run would overwrite.
const EARLIER: &str = "earlier";

/// Moves the result of an earlier run of this name in `directory` aside, where [`report`]
/// finds it.
///
/// # Errors
/// The error of the file system.
pub(crate) fn keep(directory: &Path, name: &str) -> anyhow::Result<()> {
    let path = directory.join(format!("{name}.json"));
    let Ok(result) = ResultFile::read(&path) else {
        // There is none, or it is not an experiment's result.
        return Ok(());
    };
    let aside = directory.join(EARLIER);
    let seconds = began(&result).duration_since(UNIX_EPOCH);
    let seconds = seconds.map_or(0, |time| time.as_secs());
    fs::create_dir_all(&aside)
        .and_then(|()| fs::rename(&path, aside.join(format!("{name}-{seconds}.json"))))
        .with_context(|| format!("cannot move {} to {}", path.display(), aside.display()))
}

/// Returns when a run began; the beginning of time if its file does not state it.
fn began(result: &ResultFile) -> SystemTime {
    httpdate::parse_http_date(&result.environment.date).unwrap_or(UNIX_EPOCH)
}

/// Returns the runs of the same experiment, quick or not as `result`, newest first.
fn of_the_same<'a>(result: &ResultFile, earlier: &'a [ResultFile]) -> Vec<&'a ResultFile> {
    let alike = |other: &&ResultFile| {
        (&other.experiment, other.quick) == (&result.experiment, result.quick)
    };
    let mut same: Vec<&ResultFile> = earlier.iter().filter(alike).collect();
    same.sort_by_key(|other| std::cmp::Reverse(began(other)));
    same
}

fn read(directory: &Path) -> anyhow::Result<Vec<ResultFile>> {
    let files = files(directory)?;
    if files.is_empty() {
        bail!(
            "{} holds no results: run `tidewall lab run NAME --out {}` first",
            directory.display(),
            directory.display()
        );
    }
    files.iter().map(|path| ResultFile::read(path)).collect()
}

/// Returns the JSON files of a directory, sorted by name.
fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    Ok(files)
}

/// Reads every result in `directory`, and those of earlier runs in its directory
/// `earlier`, and writes `report.html` beside them; returns its path.
///
/// # Errors
/// No result there, an unreadable one, or the error of writing.
pub fn report(directory: &Path) -> anyhow::Result<PathBuf> {
    let results = read(directory)?;
    let aside = directory.join(EARLIER);
    let earlier = match aside.is_dir() {
        true => read(&aside)?,
        false => Vec::new(),
    };
    let path = directory.join("report.html");
    fs::write(
        &path,
        html("Tidewall: results of the lab", &results, &earlier)?,
    )
    .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Lists every claim of the results in `directory` on one page of Markdown: its figure,
/// its bound, the machine and the command.
///
/// # Errors
/// Those of [`report`].
pub fn markdown(directory: &Path) -> anyhow::Result<String> {
    let mut text = String::from(
        "# Results\n\nEach table has the claims of one experiment, as measured, with bound and \
         verdict. `tidewall lab report DIR --markdown docs/results.md` writes this page from the \
         results that `tidewall lab run` left in DIR. The curves are in docs/figures. \
         docs/decisions/index.md explains what falls short and why.\n",
    );
    for result in read(directory)? {
        let environment = &result.environment;
        let mut options = String::new();
        if result.quick {
            options += " --quick";
        }
        if let Some(rounds) = result.rounds {
            options += &format!(" --rounds {rounds}");
        }
        let load: Vec<String> = environment
            .load_average
            .iter()
            .map(f64::to_string)
            .collect();
        text += &format!(
            "\n## {name} ({paper})\n`tidewall lab run {name}{options}`, {date}, Linux {kernel}, \
             {cpus} CPUs, load average {load}, commit {commit}.\n\n\
             | claim | measured | 95 % interval | bound | verdict |\n|---|---|---|---|---|\n",
            name = result.experiment,
            paper = result.paper,
            date = environment.date,
            kernel = environment.kernel,
            cpus = environment.cpus,
            load = load.join(" "),
            commit = environment.commit,
        );
        for claim in section(&result, &[])?.claims {
            let (id, what, measured) = (claim.id, claim.text.replace('|', "\\|"), claim.measured);
            text += &format!(
                "| {id}: {what} | {measured} | {} | {} | {} |\n",
                claim.interval, claim.bound, claim.verdict
            );
        }
    }
    Ok(text)
}

impl Section {
    /// Returns the claims whose verdict differs from that of the previous run.
    fn changes(&self) -> impl Iterator<Item = String> {
        let changed = |claim: &&ClaimRow| {
            let before = claim.before.first();
            before.is_some_and(|before| before.verdict != claim.verdict)
        };
        self.claims.iter().filter(changed).map(|claim| {
            let before = claim.before.first().map_or("", |before| before.verdict);
            let (name, id, now) = (&self.name, &claim.id, claim.verdict);
            format!("{name} {id}: {before}, now {now}")
        })
    }
}

/// Finds the same claim in another run.
fn before(result: &ResultFile, id: &str) -> Before {
    let claim = result.claims.iter().find(|claim| claim.id == id);
    claim.map_or(
        Before {
            figure: "–".to_owned(),
            verdict: "",
        },
        |claim| Before {
            figure: claim.measured.map_or_else(|| "–".to_owned(), precise),
            verdict: claim.verdict.name(),
        },
    )
}

fn section(result: &ResultFile, earlier: &[&ResultFile]) -> anyhow::Result<Section> {
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), precise);
    let claims = result.claims.iter().map(|claim| ClaimRow {
        id: claim.id.clone(),
        text: claim.text.clone(),
        measured: optional(claim.measured),
        interval: claim.interval(),
        bound: claim
            .bound
            .map_or_else(|| "–".to_owned(), |bound| bound.to_string()),
        paper: optional(claim.paper),
        verdict: claim.verdict.name(),
        before: earlier
            .iter()
            .map(|other| before(other, &claim.id))
            .collect(),
    });
    Ok(Section {
        name: result.experiment.clone(),
        paper: result.paper.clone(),
        quick: result.quick,
        svg: plot::svg(result)?,
        earlier: earlier
            .iter()
            .map(|other| format!("{} ({})", other.environment.date, other.environment.commit))
            .collect(),
        claims: claims.collect(),
        panels: tables(result),
        notes: result.notes.clone(),
        environment: environment(result),
        csv: percent(&result.csv()),
        json: percent(&serde_json::to_string(result)?),
    })
}

fn tables(result: &ResultFile) -> Vec<PanelTable> {
    let list = |map: &BTreeMap<String, f64>| {
        map.iter()
            .map(|(name, value)| format!("{name} {}", short(*value)))
            .collect::<Vec<_>>()
    };
    panels(result)
        .into_iter()
        .map(|panel| PanelTable {
            title: panel.setting.unwrap_or("Measurements").to_owned(),
            x: result.axes.x.clone(),
            y: panel.y.to_owned(),
            rows: panel
                .series
                .iter()
                .flat_map(|series| series.points.iter().map(move |point| (series, point)))
                .map(|(series, point)| {
                    let mut also = list(&point.values);
                    also.extend(point.variant.clone());
                    Row {
                        system: series.system.clone(),
                        x: short(point.x),
                        y: short(point.y),
                        low: short(point.low),
                        high: short(point.high),
                        share: point.share.map_or_else(String::new, short),
                        of_bare: point.of_bare.map_or_else(String::new, precise),
                        runs: point.runs,
                        also: also.join(", "),
                        drops: list(&point.drops).join(", "),
                    }
                })
                .collect(),
        })
        .collect()
}

fn environment(result: &ResultFile) -> Vec<(String, String)> {
    let environment = &result.environment;
    let mut rows = vec![
        ("kernel".to_owned(), environment.kernel.clone()),
        (
            "processors".to_owned(),
            format!("{} × {}", environment.cpus, environment.processor),
        ),
        (
            "placement".to_owned(),
            format!(
                "sender on CPU {}, receiver on CPU {}",
                environment.sender_cpu, environment.receiver_cpu
            ),
        ),
        (
            "load average".to_owned(),
            environment
                .load_average
                .iter()
                .map(f64::to_string)
                .collect::<Vec<_>>()
                .join(" "),
        ),
        ("qdisc".to_owned(), environment.qdisc.clone()),
        ("senders".to_owned(), environment.senders.join("; ")),
        ("commit".to_owned(), environment.commit.clone()),
        ("began".to_owned(), environment.date.clone()),
    ];
    if let Some(bare) = &result.bare {
        let (low, high) = (short(bare.low), short(bare.high));
        let text = format!(
            "{} packets/s ({low}–{high}, {} runs)",
            short(bare.packets),
            bare.runs
        );
        rows.push(("bare takes".to_owned(), text));
    }
    rows.extend(
        environment
            .offloads
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    rows.extend(
        environment
            .systems
            .iter()
            .map(|(name, how)| (name.clone(), how.clone())),
    );
    rows.extend(
        environment
            .shortcomings
            .iter()
            .map(|text| ("could not be had".to_owned(), text.clone())),
    );
    rows
}

/// Encodes text for a data: address (RFC 3986 §2.1).
fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn the_page_holds_everything() {
        let page = html("A title", &[sample()], &[]).unwrap();
        assert!(page.contains("<svg") && page.contains("</svg>"));
        let summary = "2 claims, 1 hold, 1 do not, 0 are undecided; 1 figures beside them.";
        assert!(page.contains(summary));
        assert!(
            page.contains("a note with") && !page.contains("<angle>"),
            "text is escaped"
        );
        assert!(page.contains("data:text/csv;charset=utf-8,system%2Csetting"));
        for outside in ["src=", "http://", "https://", "@import"] {
            let found = page.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !found.contains(outside),
                "{outside} reaches outside the page"
            );
        }
    }

    #[test]
    fn a_run_is_set_against_earlier_ones() {
        let run = |day: u32, measured: [f64; 3]| {
            let mut result = sample();
            result.environment.date = format!("Sun, {day:02} Nov 2026 10:00:00 GMT");
            let flat = result.claims.remove(0);
            result.claims.insert(0, flat.with_rounds(&measured));
            result
        };
        let (first, second) = (run(1, [0.98, 0.981, 0.982]), run(8, [0.9, 0.95, 1.0]));
        let other = ResultFile {
            quick: false,
            ..run(9, [0.1; 3])
        };
        let third = run(15, [0.9, 0.901, 0.902]);
        let earlier = [first.clone(), other, second];
        let page = html("", std::slice::from_ref(&third), &earlier).unwrap();
        assert!(
            page.contains("lrp-overload flat: undecided, now FAILED"),
            "{page}"
        );
        let at = |text: &str| page.find(text).unwrap();
        assert!(at("08 Nov 2026") < at("01 Nov 2026"), "the newest first");
        assert!(!page.contains("09 Nov 2026"), "another kind of run");
        assert!(page.contains("0.899–0.903"), "{page}");
        // A directory keeps them from run to run.
        let directory = std::env::temp_dir().join(format!("tw-keep-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for run in [first, third] {
            keep(&directory, "lrp-overload").unwrap();
            run.write(&directory.join("lrp-overload.json")).unwrap();
        }
        let path = report(&directory).unwrap();
        let page = fs::read_to_string(path).unwrap();
        assert!(page.contains("lrp-overload flat: holds, now FAILED"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_directory_of_results_becomes_a_report() {
        let directory = std::env::temp_dir().join(format!("tw-report-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert!(
            report(&directory)
                .unwrap_err()
                .to_string()
                .contains("no results")
        );
        sample()
            .write(&directory.join("lrp-overload.json"))
            .unwrap();
        let path = report(&directory).unwrap();
        assert!(fs::read_to_string(path).unwrap().contains("lrp-overload"));
        fs::write(directory.join("broken.json"), "{}").unwrap();
        assert!(
            report(&directory)
                .unwrap_err()
                .to_string()
                .contains("broken.json")
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn data_addresses_are_encoded() {
        assert_eq!(percent("a,b\n\"µ\""), "a%2Cb%0A%22%C2%B5%22");
    }
}
