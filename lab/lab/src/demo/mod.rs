//! The demonstration, in under four minutes. First, one service on Tidewall and on Linux
//! sockets, from 10,000 packets/s to all that the link carries. Then a web server,
//! queried by `wrk` through a SYN flood.

mod http;
mod memory;

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::bench::Bench;
use crate::experiments::Options;
use crate::experiments::lrp_overload::{self, EXPERIMENT};
use crate::plot::{self, short};
use crate::progress::Progress;
use crate::report;
use crate::result::{ResultFile, Series};
use crate::runner::{self, Outcome};
use crate::sweep::{Curve, Plan};
use crate::system::System;
use crate::testbed::Config;
use crate::testbed::privilege;

/// The sweep, shares of `bare`'s capacity; `None`: as fast as possible.
const SHARES: [Option<f64>; 7] = [
    Some(0.01),
    Some(0.1),
    Some(0.3),
    Some(0.5),
    Some(0.7),
    Some(0.9),
    None,
];
/// Time for measuring: with the set-up, under three minutes.
const BUDGET: Duration = Duration::from_secs(130);
/// Names of systems on the page; the files have the numbers of the others.
const NAMES: [(System, &str); 3] = [
    (System::Tidewall, "Tidewall"),
    (System::LinuxRps, "Linux"),
    (System::LinuxBusy, "Linux, tuned"),
];

/// Runs the demonstration, writes a page and each act's result into `directory`, and
/// prints two plots, the result in sentences and the files. If privileges or programs are
/// missing, it names them and runs the service on the in-memory device instead. Call it
/// from the main thread.
///
/// # Errors
/// [`Interrupted`](crate::Interrupted), and errors of setting up or writing.
pub fn demo(directory: &Path, progress: &mut dyn Progress) -> anyhow::Result<Outcome> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let missing = privilege::check();
    runner::prepare()?;
    let results = match missing {
        Ok(()) => on_a_link(progress)?,
        Err(missing) => {
            progress.line(&format!("{missing}"));
            progress.line("running on the in-memory device instead");
            vec![memory::run(progress)?]
        }
    };
    let mut written = Vec::new();
    for result in &results {
        written.extend(runner::write(result, directory, &result.experiment)?);
    }
    let sentences = sentences(&results);
    let page = directory.join("demo.html");
    fs::write(&page, html(&results, sentences.clone())?)
        .with_context(|| format!("cannot write {}", page.display()))?;
    let stdout = std::io::stdout();
    let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut text = String::new();
    for result in &results {
        text += &format!("\n{}\n", plot::terminal(&plain(result), colour));
    }
    for sentence in &sentences {
        text += &format!("{sentence}\n");
    }
    let written: Vec<String> = written
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    text += &format!(
        "\nOpen {} (beside it: {}).\n",
        page.display(),
        written.join(", ")
    );
    runner::print(&mut stdout.lock(), &text)?;
    Ok(Outcome { results })
}

/// Returns the page: sentences, a chart of each act, and the rest folded.
fn html(results: &[ResultFile], sentences: Vec<String>) -> anyhow::Result<String> {
    let chart = |result: &ResultFile| {
        let flood = http::flood_time();
        let (title, shaded) = match result.experiment == http::ACT.name {
            true => (
                "A web server: requests/s while a SYN flood comes and goes",
                Some(&flood),
            ),
            false => (
                "A UDP service: packets/s delivered of packets/s offered",
                None,
            ),
        };
        plot::chart(&plain(result), title, shaded)
    };
    let charts = results.iter().map(chart).collect::<anyhow::Result<_>>()?;
    report::demo(sentences, charts, results)
}

/// Returns a result reduced to the systems of a first look, under names that need no
/// explanation.
fn plain(result: &ResultFile) -> ResultFile {
    let mut plain = result.clone();
    plain.bare = None;
    plain.reference.clear();
    plain.series.clear();
    for (system, name) in NAMES {
        if let Some(series) = of(result, system) {
            let mut series = series.clone();
            series.system = name.to_owned();
            // The offered rate is measured, so it need not rise with the requested one.
            series
                .points
                .sort_by(|one, other| one.x.total_cmp(&other.x));
            plain.series.push(series);
        }
    }
    plain
}

fn of(result: &ResultFile, system: System) -> Option<&Series> {
    let mut series = result.series.iter();
    series.find(|series| series.system == system.name())
}

/// Describes the result; one sentence for each act.
fn sentences(results: &[ResultFile]) -> Vec<String> {
    results
        .iter()
        .filter_map(|result| match result.experiment == http::ACT.name {
            true => about_requests(result),
            false => about_packets(result),
        })
        .collect()
}

fn about_packets(result: &ResultFile) -> Option<String> {
    let most = |system| {
        let points = of(result, system)?.points.iter();
        points.max_by(|one, other| one.x.total_cmp(&other.x))
    };
    let ours = most(System::Tidewall)?;
    let offered = short(ours.x);
    let delivered = short(ours.y);
    let Some(linux) = most(System::LinuxRps) else {
        return Some(format!(
            "Offered {offered} packets/s on an in-memory device, Tidewall delivered {delivered}/s; \
             Linux can be measured beside it by root only."
        ));
    };
    let tuned = most(System::LinuxBusy).map_or(String::new(), |tuned| {
        format!(", and {}/s where an expert has tuned it", short(tuned.y))
    });
    Some(format!(
        "Offered all that the link carries, {offered} packets/s, Tidewall delivered {delivered}/s; \
         Linux delivered {}/s{tuned}.",
        short(linux.y)
    ))
}

fn about_requests(result: &ResultFile) -> Option<String> {
    let kept = |system| {
        let kept = http::kept(of(result, system)?)?;
        Some(format!("{:.0} %", 100.0 * kept))
    };
    Some(format!(
        "While a flood of {} SYN/s came to another port, the web server on Tidewall kept {} of its \
         requests/s; on Linux it kept {}, and {} where an expert has tuned it.",
        short(http::FLOOD as f64),
        kept(System::Tidewall)?,
        kept(System::LinuxRps)?,
        kept(System::LinuxBusy)?
    ))
}

fn on_a_link(progress: &mut dyn Progress) -> anyhow::Result<Vec<ResultFile>> {
    let config = Config::default();
    let mut bench = Bench::new(config, false)?;
    let plan = Plan {
        least: 1,
        rounds: 5,
        budget: BUDGET,
        brief: false,
    };
    let options = Options {
        quick: true,
        ..Options::default()
    };
    let mut result = EXPERIMENT.run_on(&mut bench, options, progress, |run| {
        let bed = run.bed()?;
        let curves: Vec<Curve> = [&[System::Bare, System::Tidewall][..], &System::LINUX]
            .concat()
            .into_iter()
            .map(|system| lrp_overload::curve(system, bed, &SHARES))
            .collect();
        lrp_overload::finish(run, &curves, plan)
    })?;
    // Bounds are the laboratory's.
    result.claims.clear();
    let web = http::ACT.run_on(&mut bench, options, progress, http::ACT.measure)?;
    Ok(vec![result, web])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{curve, sample};

    fn acts() -> [ResultFile; 2] {
        let mut packets = sample();
        packets.experiment = EXPERIMENT.name.to_owned();
        packets.claims.clear();
        packets.series = vec![
            curve("tidewall", None, &[(1e5, 1e5), (1.6e6, 1.25e6), (8e5, 8e5)]),
            curve("linux-rps", None, &[(1e5, 1e5), (8e5, 6e5), (1.6e6, 6e3)]),
            curve(
                "linux-busy",
                None,
                &[(1e5, 1e5), (8e5, 7e5), (1.6e6, 6.3e5)],
            ),
        ];
        let mut requests = sample();
        (requests.experiment, requests.axes.x) = (http::ACT.name.to_owned(), "seconds".to_owned());
        let looks = |during: f64| -> Vec<(f64, f64)> {
            let rate = |look: u32| {
                if (12..24).contains(&look) {
                    during
                } else {
                    40_000.0
                }
            };
            (0..36)
                .map(|look| (f64::from(look + 1) / 4.0, rate(look)))
                .collect()
        };
        requests.series = vec![
            curve("tidewall", None, &looks(32_000.0)),
            curve("linux-rps", None, &looks(400.0)),
            curve("linux-busy", None, &looks(20_000.0)),
        ];
        (requests.axes.y, requests.reference) = ("requests/s".to_owned(), Vec::new());
        requests.claims.clear();
        [packets, requests]
    }

    #[test]
    fn the_result_is_two_sentences() {
        assert_eq!(
            sentences(&acts()),
            [
                "Offered all that the link carries, 1.6M packets/s, Tidewall delivered 1.25M/s; Linux \
                 delivered 6k/s, and 630k/s where an expert has tuned it.",
                "While a flood of 400k SYN/s came to another port, the web server on Tidewall kept 80 % \
                 of its requests/s; on Linux it kept 1 %, and 50 % where an expert has tuned it.",
            ]
        );
    }

    #[test]
    fn the_page_opens_with_the_result_and_folds_the_rest() {
        let acts = acts();
        let page = html(&acts, sentences(&acts)).unwrap();
        let (_, body) = page.split_once("<body>").unwrap();
        let (open, folded) = body.split_once("<details>").unwrap();
        assert_eq!(open.matches("<svg").count(), 2);
        for word in ["Tidewall", "Linux, tuned", "SYN flood", "1.25M/s", "80 %"] {
            assert!(open.contains(word), "{word}");
        }
        for word in ["tidewall", "linux-rps", "<table", "FAILED", "undecided"] {
            assert!(!open.contains(word), "{word}");
        }
        assert!(folded.contains("tidewall") && folded.contains("<table"));
    }
}
