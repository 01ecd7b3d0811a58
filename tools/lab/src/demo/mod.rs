//! The demonstration: one service, on Tidewall and on Linux sockets, from
//! 10,000 packets/s to all that the link carries; then a web server, asked by
//! `wrk`, through a SYN flood. In under four minutes.

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
use crate::plot;
use crate::progress::Progress;
use crate::report;
use crate::result::ResultFile;
use crate::runner::{self, Outcome};
use crate::sweep::{Curve, Plan};
use crate::system::System;
use crate::testbed::Config;
use crate::testbed::privilege;

/// The sweep, shares of what `bare` takes; `None`: as fast as it goes.
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
/// What a sweep without the other architectures can show.
const CLAIMS: [&str; 7] = [
    "flat",
    "peak-vs-linux",
    "vs-busy",
    "vs-rps",
    "vs-timer",
    "vs-bare",
    "ring-losses",
];

/// Runs the demonstration, prints table, plot and claims to standard output,
/// and writes `demo.html`, `demo.json`, `demo.svg` and the same of `demo-http`
/// into `directory`. Where
/// privileges or programs are missing it says which, and runs the service on
/// the in-memory device instead. Call it from the main thread.
///
/// # Errors
/// [`Interrupted`](crate::Interrupted), and whatever setting up or writing
/// reports.
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
    let stdout = std::io::stdout();
    let colour = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for result in &results {
        runner::write(result, directory, &result.experiment)?;
        print!("{}", runner::text(result));
        println!("\n{}", plot::terminal(result, colour));
    }
    let page = directory.join("demo.html");
    fs::write(
        &page,
        report::html("Tidewall: the demonstration", &results, &[])?,
    )
    .with_context(|| format!("cannot write {}", page.display()))?;
    println!(
        "Written: {}",
        directory.join("demo.{svg,html,json}").display()
    );
    Ok(Outcome { results })
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
        let curves: Vec<Curve> = [&[System::Bare, System::NiLrp][..], &System::LINUX]
            .concat()
            .into_iter()
            .map(|system| lrp_overload::curve(system, bed, &SHARES))
            .collect();
        lrp_overload::finish(run, &curves, plan)
    })?;
    result
        .claims
        .retain(|claim| CLAIMS.contains(&claim.id.as_str()));
    let web = http::ACT.run_on(&mut bench, options, progress, http::ACT.measure)?;
    Ok(vec![result, web])
}
