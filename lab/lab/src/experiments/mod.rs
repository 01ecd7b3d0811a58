//! The experiments, one file each.

mod anypoint;
mod atm;
mod cases;
mod http_base;
mod http_cost;
mod lrp_base;
pub(crate) mod lrp_http_blast;
mod lrp_latency;
pub(crate) mod lrp_overload;
mod lrp_rpc;
mod lrp_sockets;
mod lrp_syn_flood;
mod manager_domains;
mod manager_hostile;
mod manager_modes;
mod manager_restart;
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
mod unmodified;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tidewall_load::LoadSpec;

use crate::bench::{Bench, Measured};
use crate::capacity::{Bed, Capacity, Probed};
use crate::environment::Environment;
use crate::progress::Progress;
use crate::result::{self, Axes, Claim, Point, ResultFile, Series, set_beside_bare};
use crate::sweep::{self, Around, Curve, Plan, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config};
use crate::verdict::{is_decided, judge};

/// Options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Fewer points and runs, at most a minute for most experiments; the same claims.
    pub quick: bool,
    /// Runs of each point, whatever their time; `None`: until all claims are decided, or
    /// time is up.
    pub rounds: Option<u32>,
    /// Background processes of lowest priority on both processors, as in LRP's
    /// Figure 4: no packet then finds its processor idle.
    pub spinners: bool,
}

impl Options {
    /// Returns how often a point is measured: as requested; when quick, as often as fits
    /// into a minute; otherwise `full` times. If time remains, until all claims are
    /// decided.
    fn plan(&self, full: u32) -> Plan {
        match (self.rounds, self.quick) {
            (Some(rounds), _) => Plan::exactly(rounds),
            (None, true) => Plan {
                least: 1,
                rounds: 3,
                budget: Duration::from_secs(55),
                brief: true,
            },
            (None, false) => Plan {
                least: full,
                rounds: full.max(6),
                budget: Duration::from_secs(600),
                brief: false,
            },
        }
    }

    /// Returns exactly `usual` rounds, unless another number was requested.
    fn rounds_of(&self, usual: u32) -> Plan {
        Plan::exactly(self.rounds.unwrap_or(usual))
    }

    /// Returns the rounds of [`Options::plan`]; when quick, and without a requested
    /// number, within `seconds`.
    fn within(&self, full: u32, seconds: u64) -> Plan {
        let mut plan = self.plan(full);
        if self.quick && self.rounds.is_none() {
            plan.budget = Duration::from_secs(seconds);
        }
        plan
    }
}

/// One experiment: a row of the table of all.
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The paper, and the figure or table that it reproduces.
    pub paper: &'static str,
    /// Its subject, in one line.
    pub about: &'static str,
    /// The axes, with their units.
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    /// The test bed it needs.
    pub(crate) config: fn() -> Config,
    /// The busy-poll timeout at which Linux does best in it.
    pub(crate) busy: BusyTimeout,
    /// The senders of the loads, in words.
    pub(crate) senders: &'static [&'static str],
    pub(crate) measure: fn(&mut Run<'_>) -> anyhow::Result<()>,
    /// Computes the claims from the series.
    pub(crate) claims: fn(&[Series]) -> Vec<Claim>,
}

/// Defaults that most experiments share.
pub(crate) const USUAL: Experiment = Experiment {
    name: "",
    paper: "",
    about: "",
    x: "",
    y: "",
    config: Config::default,
    busy: BusyTimeout::Millisecond,
    senders: &["skb"],
    measure: |_| Ok(()),
    claims: |_| Vec::new(),
};

/// An experiment in progress: its bench, and its results.
pub(crate) struct Run<'a> {
    pub(crate) bench: &'a mut Bench,
    pub(crate) options: Options,
    pub(crate) progress: &'a mut dyn Progress,
    pub(crate) name: &'static str,
    pub(crate) senders: Vec<&'static str>,
    /// Time already spent on measuring.
    spent: Duration,
    /// The claims of the experiment.
    claims: fn(&[Series]) -> Vec<Claim>,
    /// The capacity of `bare`, once measured.
    capacity: Option<Probed>,
    /// The systems measured so far.
    pub(crate) systems: BTreeSet<System>,
    /// How each was run, by name, if the systems' own descriptions do not cover it.
    pub(crate) described: Option<BTreeMap<String, String>>,
    pub(crate) series: Vec<Series>,
    pub(crate) reference: Vec<Series>,
    pub(crate) notes: Vec<String>,
}

impl Run<'_> {
    fn config(&self) -> Config {
        self.bench.testbed.config()
    }

    /// Returns the capacity of `bare`, measured on the first call.
    ///
    /// # Errors
    /// An error of measuring it.
    fn capacity(&mut self) -> anyhow::Result<Capacity> {
        if let Some(probed) = &self.capacity {
            return Ok(probed.capacity);
        }
        let begun = Instant::now();
        let probed = Probed::measure(self.bench, self.progress)?;
        self.spent += begun.elapsed();
        self.systems.insert(System::Bare);
        Ok(self.capacity.insert(probed).capacity)
    }

    /// Returns the test bed's configuration, and `bare`'s capacity there.
    ///
    /// # Errors
    /// Those of [`Run::capacity`].
    pub(crate) fn bed(&mut self) -> anyhow::Result<Bed> {
        Ok((self.config(), self.capacity()?))
    }

    /// Returns the same, for loads that do not change with the machine's speed.
    ///
    /// # Errors
    /// Those of [`Run::capacity`].
    fn steady_bed(&mut self) -> anyhow::Result<Bed> {
        let bed = self.bed()?;
        if let Some(probed) = &mut self.capacity {
            probed.steady = true;
        }
        Ok(bed)
    }

    /// Measures all curves; `point` reduces each measurement to numbers; see
    /// [`sweep::sweep`]. Notes what went wrong.
    ///
    /// # Errors
    /// [`Interrupted`](crate::Interrupted).
    pub(crate) fn sweep(
        &mut self,
        curves: &[Curve],
        plan: Plan,
        point: impl Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>,
    ) -> anyhow::Result<Vec<Series>> {
        self.sweep_part(self.name, curves, plan, point)
    }

    /// Does the same, under the name that progress shows.
    fn sweep_part(
        &mut self,
        name: &str,
        curves: &[Curve],
        plan: Plan,
        point: impl Fn(&Curve, &LoadSpec, &Measured) -> Option<Sample>,
    ) -> anyhow::Result<Vec<Series>> {
        self.systems.extend(curves.iter().map(|curve| curve.system));
        let claims = self.claims;
        let decided = |measured: &[Series]| {
            let mut series = measured.to_vec();
            set_beside_bare(&mut series);
            is_decided(&judge(claims, &series))
        };
        let mut curves = curves.to_vec();
        if self.options.quick {
            curves.iter_mut().for_each(Curve::shorten);
        }
        let budget = plan.budget.saturating_sub(std::mem::take(&mut self.spent));
        let plan = Plan { budget, ..plan };
        let swept = sweep::sweep(
            self.bench,
            Around {
                name,
                capacity: self.capacity.as_mut(),
                decided: &decided,
            },
            &curves,
            plan,
            self.progress,
            point,
        )?;
        self.notes.extend(swept.notes);
        Ok(swept.series)
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

impl Experiment {
    /// Runs it on its own test bed, which is removed afterwards.
    ///
    /// # Errors
    /// An error of building the test bed, and [`Interrupted`](crate::Interrupted).
    pub fn run(&self, options: Options, progress: &mut dyn Progress) -> anyhow::Result<ResultFile> {
        let mut bench = Bench::new((self.config)(), options.spinners)?;
        bench.testbed.set_busy_timeout(self.busy);
        self.run_on(&mut bench, options, progress, self.measure)
    }

    /// Runs `measure` instead, on an existing test bed, and judges the result by its
    /// claims.
    ///
    /// # Errors
    /// An error of `measure` or of describing the test bed.
    pub(crate) fn run_on(
        &self,
        bench: &mut Bench,
        options: Options,
        progress: &mut dyn Progress,
        measure: impl FnOnce(&mut Run<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<ResultFile> {
        let mut environment = Environment::of_machine();
        let mut run = Run {
            bench,
            options,
            progress,
            name: self.name,
            senders: self.senders.to_vec(),
            spent: Duration::ZERO,
            claims: self.claims,
            capacity: None,
            systems: BTreeSet::new(),
            described: None,
            series: Vec::new(),
            reference: Vec::new(),
            notes: Vec::new(),
        };
        measure(&mut run)?;
        set_beside_bare(&mut run.series);
        run.bench.describe(&mut environment, &run.systems)?;
        if let Some(described) = run.described {
            environment.systems = described;
        }
        environment.senders = run.senders.into_iter().map(str::to_owned).collect();
        Ok(ResultFile {
            experiment: self.name.to_owned(),
            paper: self.paper.to_owned(),
            quick: options.quick,
            rounds: options.rounds,
            environment,
            bare: run.capacity.map(|probed| probed.capacity),
            axes: Axes {
                x: self.x.to_owned(),
                y: self.y.to_owned(),
            },
            claims: judge(self.claims, &run.series),
            series: run.series,
            reference: run.reference,
            notes: run.notes,
        })
    }
}

/// All experiments, in the order of the papers.
pub static EXPERIMENTS: [Experiment; 45] = [
    lrp_base::EXPERIMENT,
    lrp_overload::EXPERIMENT,
    lrp_latency::EXPERIMENT,
    lrp_sockets::EXPERIMENT,
    lrp_rpc::EXPERIMENT,
    lrp_http_blast::EXPERIMENT,
    lrp_syn_flood::EXPERIMENT,
    http_base::EXPERIMENT,
    http_cost::EXPERIMENT,
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
    anypoint::bandwidth::EXPERIMENT,
    anypoint::limit::EXPERIMENT,
    anypoint::split::EXPERIMENT,
    anypoint::steer::EXPERIMENT,
    anypoint::storage::EXPERIMENT,
    anypoint::memory::EXPERIMENT,
    anypoint::redis::EXPERIMENT,
    anypoint::frames::EXPERIMENT,
    atm::data::EXPERIMENT,
    atm::setup::EXPERIMENT,
    atm::profile::EXPERIMENT,
    atm::load::EXPERIMENT,
    atm::size::EXPERIMENT,
    atm::flood::EXPERIMENT,
    manager_modes::EXPERIMENT,
    manager_domains::EXPERIMENT,
    manager_restart::EXPERIMENT,
    manager_hostile::EXPERIMENT,
    unmodified::requests::EXPERIMENT,
    unmodified::bulk::EXPERIMENT,
    unmodified::floods::EXPERIMENT,
    unmodified::cost::EXPERIMENT,
    unmodified::squid::EXPERIMENT,
    unmodified::start::EXPERIMENT,
    tcp_bulk::EXPERIMENT,
    tcp_loss::EXPERIMENT,
];

/// Finds the experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name)
}

/// Recomputes the claims of an experiment from its series. `None` for an unknown
/// experiment.
pub fn claims(experiment: &str, series: &[Series]) -> Option<Vec<Claim>> {
    find(experiment).map(|experiment| (experiment.claims)(series))
}

/// Returns a figure of each of the kernel's modes in a setting.
fn linux<'a>(
    series: &'a [Series],
    setting: Option<&'a str>,
    figure: impl Fn(&Series) -> Option<f64> + 'a,
) -> impl Iterator<Item = f64> + 'a {
    let is_linux = move |series: &&Series| {
        series.system.starts_with("linux-") && series.setting.as_deref() == setting
    };
    series.iter().filter(is_linux).filter_map(figure)
}

/// Returns the best of the kernel's modes, by the highest figure.
fn best_linux<'a>(
    series: &'a [Series],
    setting: Option<&'a str>,
    figure: impl Fn(&Series) -> Option<f64> + 'a,
) -> Option<f64> {
    linux(series, setting, figure).max_by(f64::total_cmp)
}

/// Returns the best of the kernel's modes, by the lowest figure.
fn quickest_linux<'a>(
    series: &'a [Series],
    setting: Option<&'a str>,
    figure: impl Fn(&Series) -> Option<f64> + 'a,
) -> Option<f64> {
    linux(series, setting, figure).min_by(f64::total_cmp)
}

/// Share of a load's time in which the receiver's thread waited for its processor.
const WAITED: &str = "waited for its processor %";

/// Returns the receiver's waiting share in a run of a point.
fn waited(measured: &Measured) -> (String, f64) {
    (WAITED.to_owned(), 100.0 * measured.waited)
}

/// Returns the largest share of the offered packets that died in Tidewall's device rings,
/// those of all ports, under loads of up to `share` of `bare`'s capacity. Loads under
/// which `bare` itself lost packets there are left out: the bed could not carry them by
/// then.
fn ring_losses(series: &[Series], settings: &[Option<&str>], share: f64) -> Option<f64> {
    let lost = |point: &Point| {
        let rings = ["device ring", "receive ring"].map(|ring| point.drops.get(ring));
        rings.into_iter().flatten().sum::<f64>() / point.x
    };
    let of = |&setting: &Option<&str>| {
        let bare = result::find(series, "bare", setting);
        let ours = result::find(series, "tidewall", setting)?;
        let points = ours.points.iter();
        let counts = points.filter(|point| {
            let takes = |share| Some(lost(bare?.offered(share)?) <= RING_LOSS);
            let within = point.share.filter(|&offered| offered <= share);
            point.x > 0.0 && within.is_some_and(|share| takes(share).unwrap_or(true))
        });
        counts.map(lost).max_by(f64::total_cmp)
    };
    settings.iter().filter_map(of).max_by(f64::total_cmp)
}

/// Share of the offered packets that may be lost in a ring that is emptied in time.
const RING_LOSS: f64 = 0.001;

/// Returns the paper's points of each system, multiplied by `scale` on each axis.
fn scaled(setting: &str, given: &[(&str, [(f64, f64); 2])], scale: (f64, f64)) -> Vec<Series> {
    given
        .iter()
        .map(|(system, points)| Series {
            points: points
                .iter()
                .map(|&(x, y)| Point::exactly(x * scale.0, y * scale.1, 0))
                .collect(),
            ..Series::named(system, setting)
        })
        .collect()
}

/// Returns a ratio, if both sides were measured.
fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_rounds_is_exact_however_much_time_there_is() {
        let quick = |rounds| Options {
            quick: true,
            rounds,
            spinners: false,
        };
        let plan = quick(Some(2)).within(5, 300);
        assert_eq!((plan.least, plan.budget), (2, Duration::ZERO));
        assert_eq!(quick(None).within(5, 300).budget, Duration::from_secs(300));
    }

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
