//! One HTML page with everything in it: plots, tables, claims, and the numbers
//! as files to take away.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use askama::Template;

use crate::plot::{self, panels, precise, short};
use crate::result::ResultFile;

#[derive(Template)]
#[template(path = "report.html")]
struct Page {
    title: String,
    summary: String,
    results: Vec<Section>,
}

struct Section {
    name: String,
    paper: String,
    quick: bool,
    svg: String,
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
    bound: String,
    paper: String,
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
    runs: u32,
    also: String,
    drops: String,
}

/// The page for these results.
///
/// # Errors
/// What drawing or the template reports.
pub fn html(title: &str, results: &[ResultFile]) -> anyhow::Result<String> {
    let count = |holds| {
        let claims = results.iter().flat_map(|result| &result.claims);
        claims.filter(|claim| claim.holds == holds).count()
    };
    let (kept, failed, told) = (count(Some(true)), count(Some(false)), count(None));
    let page = Page {
        title: title.to_owned(),
        summary: format!(
            "{} claims, {kept} hold, {failed} do not; {told} figures beside them.",
            kept + failed
        ),
        results: results.iter().map(section).collect::<anyhow::Result<_>>()?,
    };
    Ok(page.render()?)
}

fn read(directory: &Path) -> anyhow::Result<Vec<ResultFile>> {
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
    if files.is_empty() {
        bail!(
            "{} holds no results: run `tidewall lab run NAME --out {}` first",
            directory.display(),
            directory.display()
        );
    }
    files.iter().map(|path| ResultFile::read(path)).collect()
}

/// Reads every result in `directory` and writes `report.html` beside them;
/// returns its path.
///
/// # Errors
/// No result there, one that cannot be read, or what writing reports.
pub fn report(directory: &Path) -> anyhow::Result<PathBuf> {
    let results = read(directory)?;
    let path = directory.join("report.html");
    fs::write(&path, html("Tidewall: results of the lab", &results)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Every claim of the results in `directory` on one page of Markdown: what was
/// measured, its bound, where and by which command.
///
/// # Errors
/// As of [`report`].
pub fn markdown(directory: &Path) -> anyhow::Result<String> {
    let mut text = String::from(
        "# Results\n\nWritten by `tidewall lab report DIR --markdown docs/results.md` from what \
         `tidewall lab run` left in DIR; the curves are in docs/figures. docs/decisions.md says \
         what falls short and why.\n",
    );
    for result in read(directory)? {
        let environment = &result.environment;
        let quick = if result.quick { " --quick" } else { "" };
        let load: Vec<String> = environment
            .load_average
            .iter()
            .map(f64::to_string)
            .collect();
        text += &format!(
            "\n## {name} ({paper})\n`tidewall lab run {name}{quick}`, {date}, Linux {kernel}, \
             {cpus} CPUs, load average {load}, commit {commit}.\n\n\
             | claim | measured | bound | verdict |\n|---|---|---|---|\n",
            name = result.experiment,
            paper = result.paper,
            date = environment.date,
            kernel = environment.kernel,
            cpus = environment.cpus,
            load = load.join(" "),
            commit = environment.commit,
        );
        for claim in section(&result)?.claims {
            let (id, what, measured) = (claim.id, claim.text.replace('|', "\\|"), claim.measured);
            text += &format!(
                "| {id}: {what} | {measured} | {} | {} |\n",
                claim.bound, claim.verdict
            );
        }
    }
    Ok(text)
}

fn section(result: &ResultFile) -> anyhow::Result<Section> {
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), precise);
    let claims = result.claims.iter().map(|claim| ClaimRow {
        id: claim.id.clone(),
        text: claim.text.clone(),
        measured: optional(claim.measured),
        bound: claim
            .bound
            .map_or_else(|| "–".to_owned(), |bound| bound.to_string()),
        paper: optional(claim.paper),
        verdict: claim.verdict(),
    });
    Ok(Section {
        name: result.experiment.clone(),
        paper: result.paper.clone(),
        quick: result.quick,
        svg: plot::svg(result)?,
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
    ];
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

/// Text as it may stand in a data: address (RFC 3986 §2.1).
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
        let page = html("A title", &[sample()]).unwrap();
        assert!(page.contains("<svg") && page.contains("</svg>"));
        assert!(page.contains("2 claims, 1 hold, 1 do not; 1 figures beside them."));
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
