//! Runs experiments by name, and defines the command's exit status.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::experiments::{self, EXPERIMENTS, Experiment};
use crate::interrupt::{self, Interrupted};
use crate::plot;
use crate::progress::Progress;
use crate::result::ResultFile;
use crate::testbed::privilege::{self, Missing};

/// Options of a run, and the destination of its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Fewer points and runs, at most a minute for most experiments; the same claims.
    pub quick: bool,
    /// Runs of each point, whatever their time.
    pub rounds: Option<u32>,
    /// Background processes of lowest priority on both processors.
    pub spinners: bool,
    /// File for the result; for several experiments, for all as a JSON list.
    pub json: Option<PathBuf>,
    /// Directory for `NAME.json`, `NAME.svg` and `report.html`; created if necessary.
    pub out: Option<PathBuf>,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// One per name, in their order.
    pub results: Vec<ResultFile>,
}

impl Outcome {
    /// Returns the number of claims that do not hold, in all results.
    pub fn failed(&self) -> usize {
        self.results
            .iter()
            .map(|result| result.failed().count())
            .sum()
    }

    /// Returns the number of claims that more rounds would decide, in all results.
    pub fn undecided(&self) -> usize {
        self.results
            .iter()
            .map(|result| result.undecided().count())
            .sum()
    }
}

/// Lists the experiments, one per line: name, what it reproduces, what it measures.
pub fn list() -> String {
    EXPERIMENTS
        .iter()
        .map(|experiment| {
            format!(
                "{:<14} {:<20} {}\n",
                experiment.name, experiment.paper, experiment.about
            )
        })
        .collect()
}

/// Reports that no experiment has this name, and suggests the nearest one, or all.
pub fn no_experiment(name: &str) -> String {
    let likeness = |it: &&Experiment| strsim::jaro(name, it.name);
    let nearest = EXPERIMENTS
        .iter()
        .filter(|it| likeness(it) > LIKE)
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match nearest {
        Some(nearest) => format!(
            "there is no experiment {name:?}: is {} meant? All: tidewall lab list",
            nearest.name
        ),
        None => format!(
            "there is no experiment {name:?}; there are:\n{}",
            list().trim_end()
        ),
    }
}

/// Required similarity of a suggested name, of 1: that of clap for options.
const LIKE: f64 = 0.7;

/// Runs experiments one after the other, prints tables and claims to standard output and
/// writes what `options` requests. Ctrl-C ends it in order. Calls of this and of
/// [`demo`](fn@crate::demo) must come from the main thread.
///
/// # Errors
/// [`Missing`] privileges or programs, [`Interrupted`], an unknown name, and errors of
/// setting up. Claims that fail are no error here: see [`exit_code`].
pub fn run(
    names: &[String],
    options: &Options,
    progress: &mut dyn Progress,
) -> anyhow::Result<Outcome> {
    let chosen = choose(names)?;
    privilege::check()?;
    prepare()?;
    if let Some(directory) = &options.out {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let how = experiments::Options {
        quick: options.quick,
        rounds: options.rounds,
        spinners: options.spinners,
    };
    let mut outcome = Outcome::default();
    for experiment in chosen {
        interrupt::check()?;
        let result = experiment.run(how, progress)?;
        finish(&result, options.out.as_deref(), &mut io::stdout().lock())?;
        outcome.results.push(result);
    }
    if let Some(path) = &options.json {
        match outcome.results.as_slice() {
            [only] => only.write(path)?,
            several => {
                fs::write(path, serde_json::to_string_pretty(several)? + "\n")
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    if let Some(directory) = &options.out {
        crate::report::report(directory)?;
    }
    Ok(outcome)
}

fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Experiment>> {
    if names.is_empty() {
        bail!("name an experiment:\n{}", list());
    }
    names
        .iter()
        .map(|name| experiments::find(name).with_context(|| no_experiment(name)))
        .collect()
}

/// Installs signal handlers, and moves the lab itself off the receiver's processor.
pub(crate) fn prepare() -> anyhow::Result<()> {
    interrupt::install().context("cannot handle Ctrl-C")?;
    // On the receiver's processor the lab would wait behind what it measures. If pinning
    // fails, it still works.
    let _ = tidewall_sys::pin(crate::testbed::Config::default().client_cpu);
    Ok(())
}

/// Returns the printed form of a result.
pub(crate) fn text(result: &ResultFile) -> String {
    let mut text = format!("\n{} — {}\n", result.experiment, result.paper);
    text += &plot::table(result);
    text.push('\n');
    text += &plot::claims_table(result);
    for note in &result.notes {
        text += &format!("note: {note}\n");
    }
    for shortcoming in &result.environment.shortcomings {
        text += &format!("could not be had: {shortcoming}\n");
    }
    text
}

/// Writes `NAME.json` and `NAME.svg`; returns their paths.
pub(crate) fn write(
    result: &ResultFile,
    directory: &Path,
    name: &str,
) -> anyhow::Result<[PathBuf; 2]> {
    let [json, svg] = ["json", "svg"].map(|kind| directory.join(format!("{name}.{kind}")));
    result.write(&json)?;
    fs::write(&svg, plot::svg(result)?)
        .with_context(|| format!("cannot write {}", svg.display()))?;
    Ok([json, svg])
}

/// Saves the results before anything else can fail, then prints them.
fn finish(
    result: &ResultFile,
    directory: Option<&Path>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if let Some(directory) = directory {
        crate::report::keep(directory, &result.experiment)?;
        write(result, directory, &result.experiment)?;
    }
    print(out, &text(result))
}

/// Prints text. A reader that has gone away (`| head`) is no error: later measurements
/// are still written to files.
///
/// # Errors
/// Any other error of writing.
pub(crate) fn print(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

/// Returns the exit status of a run:
/// - 0 if every claim holds
/// - 1 if one failed or the run did
/// - 2 if the machine or the user lacks what the run needs
/// - 3 if none failed and one is undecided
/// - 130 after Ctrl-C
pub fn exit_code(result: &anyhow::Result<Outcome>) -> u8 {
    match result {
        Ok(outcome) if outcome.failed() > 0 => 1,
        Ok(outcome) if outcome.undecided() > 0 => 3,
        Ok(_) => 0,
        Err(error) if error.is::<Missing>() => 2,
        Err(error) if error.is::<Interrupted>() => 130,
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    /// Standard output whose reader has gone away, or a full disk.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_goes_away_loses_nothing() {
        let name = format!("tw-runner-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let result = sample();
        let mut gone = Failing(io::ErrorKind::BrokenPipe);
        finish(&result, Some(&directory), &mut gone).unwrap();
        for kind in ["json", "svg"] {
            let path = directory.join(format!("{}.{kind}", result.experiment));
            assert!(fs::remove_file(path).is_ok(), "{kind}");
        }
        // Any other failure is an error, but only after the files are written.
        let mut full = Failing(io::ErrorKind::StorageFull);
        assert!(finish(&result, Some(&directory), &mut full).is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_exit_status_tells_what_happened() {
        let failed = Outcome {
            results: vec![sample()],
        };
        let mut good = failed.clone();
        good.results[0]
            .claims
            .retain(|claim| claim.holds != Some(false));
        assert_eq!(exit_code(&Ok(good.clone())), 0);
        let open = good.results[0]
            .claims
            .remove(0)
            .with_rounds(&[0.9, 1.0, 0.9]);
        good.results[0].claims.push(open);
        assert_eq!(exit_code(&Ok(good)), 3);
        assert_eq!(exit_code(&Ok(failed)), 1);
        assert_eq!(
            exit_code(&Err(Missing {
                what: vec!["root".into()]
            }
            .into())),
            2
        );
        assert_eq!(exit_code(&Err(Interrupted.into())), 130);
        let wrapped = anyhow::Error::from(Interrupted).context("while measuring");
        assert_eq!(exit_code(&Err(wrapped)), 130);
        assert_eq!(exit_code(&Err(anyhow::anyhow!("disk full"))), 1);
    }

    #[test]
    fn the_list_names_every_experiment() {
        let list = list();
        assert_eq!(list.lines().count(), EXPERIMENTS.len());
        for name in [
            "lrp-base",
            "lrp-overload",
            "lrp-latency",
            "rhip-budget",
            "rhip-size",
            "rhip-workload",
            "rhip-ping",
            "rhip-model",
            "rhip-classes",
            "tcp-loss",
        ] {
            assert!(list.contains(name));
        }
    }

    #[test]
    fn names_are_checked_before_anything_is_touched() {
        assert!(choose(&["lrp-base".to_owned()]).is_ok());
        let error = choose(&["nothing".to_owned()]).err().unwrap().to_string();
        assert!(
            error.contains("nothing") && error.contains("lrp-overload"),
            "{error}"
        );
        assert!(choose(&[]).is_err());
    }

    #[test]
    fn results_are_written_side_by_side() {
        let directory = std::env::temp_dir().join(format!("tw-write-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        write(&sample(), &directory, "x").unwrap();
        assert_eq!(
            ResultFile::read(&directory.join("x.json")).unwrap(),
            sample()
        );
        assert!(
            fs::read_to_string(directory.join("x.svg"))
                .unwrap()
                .starts_with("<svg")
        );
        fs::remove_dir_all(&directory).unwrap();
        let text = text(&sample());
        assert!(text.contains("FAILED") && text.contains("note: "), "{text}");
    }
}
