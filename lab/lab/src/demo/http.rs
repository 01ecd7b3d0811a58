//! The second act: `wrk` queries a web server, the same code on Tidewall and on Linux
//! sockets, while a SYN flood begins and ends at a port without an accepting server.
//! Requests/s are shown as they change.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall_load::{LoadSpec, SenderKind};

use crate::bench::{Bench, Setup, flood, load, server};
use crate::experiments::lrp_http_blast::WORK;
use crate::experiments::tcp::{DOCUMENT, DUMMY_PORT, HTTP_PORT, Site};
use crate::experiments::{Experiment, Run, USUAL};
use crate::interrupt;
use crate::plot::Shaded;
use crate::progress::Progress;
use crate::result::{Point, Series};
use crate::sweep::median;
use crate::system::System;
use crate::worker::{LoadJob, Place, run_load};

/// Tidewall, and Linux by default, steered and as an expert configures it.
const SYSTEMS: [System; 3] = [System::Tidewall, System::LinuxRps, System::LinuxBusy];
/// SYN segments/s of the flood.
pub(super) const FLOOD: u64 = 400_000;
/// Connections of the client.
const CONNECTIONS: u32 = 32;
/// Interval between two looks at the counter.
const LOOK: Duration = Duration::from_millis(250);
/// Looks in each part: before, during and after the flood.
const LOOKS: u32 = 12;
/// Looks at the beginning of a part that do not count: flows adapt meanwhile.
const ADAPTING: usize = 3;
/// Requests/s of a full bar.
const FULL: f64 = 60_000.0;
/// Cells of a full bar.
const CELLS: usize = 30;

/// `wrk`; ends when dropped.
struct Wrk(Child);

impl Wrk {
    fn start(bench: &Bench) -> anyhow::Result<Self> {
        let config = bench.testbed.config();
        let seconds = (LOOK * LOOKS * 3).as_secs() + 2;
        let url = format!("http://{}{DOCUMENT}", server(HTTP_PORT));
        Command::new("ip")
            .args(["netns", "exec", bench.testbed.client(), "taskset", "-c"])
            .arg(config.client_cpu.to_string())
            .args(["wrk", "-t1", "--timeout", "3s"])
            .arg(format!("-c{CONNECTIONS}"))
            .arg(format!("-d{seconds}s"))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Wrk)
            .context("cannot start wrk; install it: apt-get install wrk")
    }

    /// Returns its one-line summary, or its error output.
    fn finish(mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            out.read_to_string(&mut text)?;
        }
        let status = self.0.wait()?;
        if !status.success() {
            if let Some(mut errors) = self.0.stderr.take() {
                errors.read_to_string(&mut text)?;
            }
            anyhow::bail!("wrk ended with {status}: {}", text.trim());
        }
        let lines = text.lines().map(str::trim);
        let wanted = |line: &&str| {
            ["Requests/sec", "Socket errors", "Non-2xx"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        Ok(lines.filter(wanted).collect::<Vec<_>>().join(", "))
    }
}

impl Drop for Wrk {
    fn drop(&mut self) {
        // Harmless if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The act, as an experiment.
pub(super) const ACT: Experiment = Experiment {
    name: "demo-http",
    paper: "LRP, Figure 5, live",
    about: "requests/s before, during and after a SYN flood",
    x: "seconds",
    y: "requests/s",
    senders: &[],
    measure,
    // Bounds are the laboratory's.
    claims: |_| Vec::new(),
    ..USUAL
};

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let site = Site::new()?;
    run.systems.extend(SYSTEMS);
    run.progress
        .begin("http", u64::from(LOOKS * 3) * SYSTEMS.len() as u64);
    run.note(format!(
        "wrk keeps {CONNECTIONS} connections busy with a document of 1,300 bytes and {WORK} \
         multiplications a request; from {:.0} s to {:.0} s a flood of {FLOOD} SYN/s from \
         scattered sources comes to another port of the server, where nobody accepts.",
        (LOOK * LOOKS).as_secs_f64(),
        (LOOK * LOOKS * 2).as_secs_f64()
    ));
    for system in SYSTEMS {
        let (points, said) = watch(run.bench, &site, system, run.progress)?;
        run.note(format!("wrk on {}: {said}", system.name()));
        run.series.push(Series {
            system: system.name().to_owned(),
            points,
            ..Series::default()
        });
    }
    run.progress.end();
    Ok(())
}

/// Measures one system: its rate at each look, and wrk's summary.
fn watch(
    bench: &mut Bench,
    site: &Site,
    system: System,
    progress: &mut dyn Progress,
) -> anyhow::Result<(Vec<Point>, String)> {
    let config = bench.testbed.config();
    let session = bench.serve(&Setup {
        system,
        tcp: Some(site.server(WORK)),
        ..Setup::default()
    })?;
    let wrk = Wrk::start(session.bench())?;
    let namespace = session.bench().testbed.client().to_owned();
    let attack = LoadSpec {
        blast: Some(flood(SenderKind::Skb, DUMMY_PORT, Some(FLOOD))),
        warm_up: Duration::ZERO,
        duration: LOOK * LOOKS,
        ..load(config)
    };
    let over = AtomicBool::new(false);
    let points = thread::scope(|scope| {
        let mut attacker = None;
        let mut points = Vec::new();
        let start = Instant::now();
        let mut last = session.received()?;
        let looks = || -> anyhow::Result<()> {
            for look in 0..LOOKS * 3 {
                if look == LOOKS {
                    let job = LoadJob::unwatched(attack.clone());
                    let place = Place {
                        namespace: &namespace,
                        cpu: config.client_cpu,
                    };
                    let over = &over;
                    attacker = Some(scope.spawn(move || {
                        run_load(place, job, || over.load(Ordering::Relaxed), || Ok(()))
                    }));
                }
                let due = start + LOOK * (look + 1);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                interrupt::check()?;
                let now = session.received()?;
                let rate = now.saturating_sub(last) as f64 / LOOK.as_secs_f64();
                last = now;
                let flooded = (LOOKS..LOOKS * 2).contains(&look);
                progress.step(&line(system.name(), rate, flooded));
                points.push(Point::exactly((LOOK * (look + 1)).as_secs_f64(), rate, 1));
            }
            Ok(())
        };
        let looked = { looks }();
        over.store(true, Ordering::Relaxed);
        if let Some(attacker) = attacker {
            match attacker.join() {
                Ok(outcome) => drop(outcome.context("the flood")?),
                Err(_) => anyhow::bail!("the flood's thread panicked"),
            }
        }
        looked.map(|()| points)
    })?;
    Ok((points, wrk.finish()?))
}

/// Formats a look.
fn line(system: &str, rate: f64, flooded: bool) -> String {
    let cells = ((rate / FULL * CELLS as f64).round() as usize).min(CELLS);
    let flood = if flooded { "SYN FLOOD" } else { "" };
    format!(
        "{system:<10} {rate:>7.0} requests/s {}{} {flood}",
        "█".repeat(cells),
        "·".repeat(CELLS - cells)
    )
}

/// Returns the median of a part, without its beginning.
fn part(series: &Series, number: u32) -> Option<f64> {
    let from = (number * LOOKS) as usize + ADAPTING;
    let rates: Vec<f64> = series
        .points
        .get(from..((number + 1) * LOOKS) as usize)?
        .iter()
        .map(|point| point.y)
        .collect();
    median(&rates)
}

/// Returns the flood's interval on the axis.
pub(super) fn flood_time() -> Shaded {
    Shaded {
        from: (LOOK * LOOKS).as_secs_f64(),
        to: (LOOK * LOOKS * 2).as_secs_f64(),
        what: "SYN flood",
    }
}

/// Returns requests/s during the flood over those before.
pub(super) fn kept(series: &Series) -> Option<f64> {
    let before = part(series, 0).filter(|rate| *rate > 0.0)?;
    Some(part(series, 1)? / before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn parts_are_compared_without_their_beginnings() {
        let points: Vec<(f64, f64)> = (0..LOOKS * 3)
            .map(|look| {
                let rate = match look / LOOKS {
                    _ if look % LOOKS < ADAPTING as u32 => 1.0,
                    0 => 40_000.0,
                    1 => 30_000.0,
                    _ => 38_000.0,
                };
                (f64::from(look), rate)
            })
            .collect();
        let series = curve("tidewall", None, &points);
        assert_eq!(kept(&series), Some(0.75));
        assert_eq!(part(&series, 2), Some(38_000.0));
        assert_eq!(kept(&Series::default()), None);
    }

    #[test]
    fn a_bar_is_as_long_as_its_rate() {
        assert!(line("tidewall", 30_000.0, true).contains(&"█".repeat(CELLS / 2)));
        assert!(line("tidewall", 30_000.0, true).ends_with("SYN FLOOD"));
        let most = line("tidewall", 1e9, false);
        assert_eq!(most.matches('█').count(), CELLS);
    }
}
