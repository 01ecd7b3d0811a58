//! The experiments, one file each.

mod http_base;
mod lrp_base;
pub(crate) mod lrp_http_blast;
mod lrp_latency;
pub(crate) mod lrp_overload;
mod lrp_rpc;
mod lrp_syn_flood;
mod rhip;
mod rhip_budget;
mod rhip_classes;
mod rhip_model;
mod rhip_ping;
mod rhip_size;
mod rhip_workload;
mod select;
mod select_cold;
mod select_cpu;
mod select_proxy;
mod select_static;
pub(crate) mod tcp;
mod tcp_bulk;
mod tcp_loss;
mod trips;

use std::time::Duration;

use crate::bench::Bench;
use crate::environment::Environment;
use crate::progress::Progress;
use crate::result::{Axes, Claim, ResultFile, Series};
use crate::sweep::Plan;
use crate::system::System;
use crate::testbed::Config;

/// What an experiment is told about how to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Fewer points and runs, at most a minute; the same claims.
    pub quick: bool,
    /// Runs of each point, whatever their time; `None`: 5 or more, or as many
    /// as fit when `quick`.
    pub rounds: Option<u32>,
    /// Background processes of lowest priority on both processors, as in LRP's
    /// Figure 4: no packet then finds its processor idle.
    pub spinners: bool,
}

impl Options {
    /// How often a point is measured: as asked for, as often as fits into a
    /// minute when quick, else `full` times.
    fn plan(&self, full: u32) -> Plan {
        let (rounds, budget) = match (self.rounds, self.quick) {
            (Some(rounds), _) => (rounds, None),
            (None, true) => (3, Some(Duration::from_secs(52))),
            (None, false) => (full, None),
        };
        Plan { rounds, budget }
    }

    /// Exactly so often, unless another number was asked for.
    fn rounds_of(&self, usual: u32) -> Plan {
        Plan {
            rounds: self.rounds.unwrap_or(usual),
            budget: None,
        }
    }
}

/// One experiment.
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The paper, and the figure or table that it reproduces.
    pub paper: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// The axes, with their units.
    x: &'static str,
    y: &'static str,
    /// The test bed it needs.
    config: fn() -> Config,
    run: fn(&mut Bench, Options, &mut dyn Progress) -> anyhow::Result<Findings>,
    /// Computes the claims from the series.
    claims: fn(&[Series]) -> Vec<Claim>,
}

/// What an experiment measured; the rest of its result is known beforehand.
pub(crate) struct Findings {
    environment: Environment,
    series: Vec<Series>,
    reference: Vec<Series>,
    notes: Vec<String>,
}

impl Findings {
    fn new(environment: Environment, series: Vec<Series>, notes: Vec<String>) -> Self {
        Findings {
            environment,
            series,
            reference: Vec::new(),
            notes,
        }
    }
}

impl Experiment {
    /// Runs it on a test bed of its own, which is taken down after.
    ///
    /// # Errors
    /// What building the test bed reports, and
    /// [`Interrupted`](crate::Interrupted).
    pub fn run(&self, options: Options, progress: &mut dyn Progress) -> anyhow::Result<ResultFile> {
        let mut bench = Bench::new((self.config)(), options.spinners)?;
        let findings = (self.run)(&mut bench, options, progress)?;
        Ok(self.result(findings, options.quick))
    }

    /// The result that these findings make.
    pub(crate) fn result(&self, findings: Findings, quick: bool) -> ResultFile {
        ResultFile {
            experiment: self.name.to_owned(),
            paper: self.paper.to_owned(),
            quick,
            environment: findings.environment,
            axes: Axes {
                x: self.x.to_owned(),
                y: self.y.to_owned(),
            },
            claims: (self.claims)(&findings.series),
            series: findings.series,
            reference: findings.reference,
            notes: findings.notes,
        }
    }
}

/// All experiments, in the order of the papers.
pub static EXPERIMENTS: [Experiment; 19] = [
    lrp_base::EXPERIMENT,
    lrp_overload::EXPERIMENT,
    lrp_latency::EXPERIMENT,
    lrp_rpc::EXPERIMENT,
    lrp_http_blast::EXPERIMENT,
    lrp_syn_flood::EXPERIMENT,
    http_base::EXPERIMENT,
    rhip_budget::EXPERIMENT,
    rhip_size::EXPERIMENT,
    rhip_workload::EXPERIMENT,
    rhip_ping::EXPERIMENT,
    rhip_model::EXPERIMENT,
    rhip_classes::EXPERIMENT,
    select_proxy::EXPERIMENT,
    select_cpu::EXPERIMENT,
    select_static::EXPERIMENT,
    select_cold::EXPERIMENT,
    tcp_bulk::EXPERIMENT,
    tcp_loss::EXPERIMENT,
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name)
}

/// The environment of a finished run.
fn environment(bench: &Bench, systems: &[System], senders: &[&str]) -> anyhow::Result<Environment> {
    let mut environment = Environment::of_machine();
    bench.describe(&mut environment, systems)?;
    environment.senders = senders.iter().map(|&sender| sender.to_owned()).collect();
    Ok(environment)
}

/// The claims of an experiment, anew from its series. `None` for an unknown
/// experiment.
pub fn claims(experiment: &str, series: &[Series]) -> Option<Vec<Claim>> {
    find(experiment).map(|experiment| (experiment.claims)(series))
}

/// Best of the kernel's modes by `figure`: the highest.
fn best_linux(series: &[Series], figure: impl Fn(&Series) -> Option<f64>) -> Option<f64> {
    series
        .iter()
        .filter(|series| series.system.starts_with("linux-"))
        .filter_map(figure)
        .max_by(f64::total_cmp)
}

/// A ratio, where both sides were measured.
fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_found_by_name() {
        for experiment in &EXPERIMENTS {
            assert_eq!(find(experiment.name).unwrap().paper, experiment.paper);
            let claims = claims(experiment.name, &[]).unwrap();
            assert!(!claims.is_empty());
            assert!(
                claims
                    .iter()
                    .all(|claim| claim.holds != Some(true) && claim.measured.is_none()),
                "without measurements nothing is shown"
            );
        }
        assert!(find("lrp-nothing").is_none());
        assert!(claims("lrp-nothing", &[]).is_none());
    }
}
