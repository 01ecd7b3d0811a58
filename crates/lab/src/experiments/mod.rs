//! The experiments, one file each.

pub mod http_base;
pub mod lrp_base;
pub mod lrp_http_blast;
pub mod lrp_latency;
pub mod lrp_overload;
pub mod lrp_rpc;
pub mod lrp_syn_flood;
mod rhip;
pub mod rhip_budget;
pub mod rhip_classes;
pub mod rhip_model;
pub mod rhip_ping;
pub mod rhip_size;
pub mod rhip_workload;
mod select;
pub mod select_cold;
pub mod select_cpu;
pub mod select_proxy;
pub mod select_static;
pub(crate) mod tcp;
pub mod tcp_bulk;
pub mod tcp_loss;
mod trips;

use std::time::Duration;

use crate::bench::Bench;
use crate::environment::Environment;
use crate::progress::Progress;
use crate::result::{Claim, ResultFile, Series};
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
    /// The test bed it needs.
    config: fn() -> Config,
    run: fn(&mut Bench, Options, &mut dyn Progress) -> anyhow::Result<ResultFile>,
}

impl Experiment {
    /// Runs it on a test bed of its own, which is taken down after.
    ///
    /// # Errors
    /// What building the test bed reports, and
    /// [`Interrupted`](crate::Interrupted).
    pub fn run(&self, options: Options, progress: &mut dyn Progress) -> anyhow::Result<ResultFile> {
        let mut bench = Bench::new((self.config)(), options.spinners)?;
        (self.run)(&mut bench, options, progress)
    }
}

/// All experiments, in the order of the papers.
pub static EXPERIMENTS: [Experiment; 19] = [
    Experiment {
        name: lrp_base::NAME,
        paper: lrp_base::PAPER,
        about: "idle round trip over UDP and TCP; throughput of both",
        config: Config::default,
        run: lrp_base::run,
    },
    Experiment {
        name: lrp_overload::NAME,
        paper: lrp_overload::PAPER,
        about: "delivered against offered, 14-byte UDP; maximum loss-free rate",
        config: Config::default,
        run: lrp_overload::run,
    },
    Experiment {
        name: lrp_latency::NAME,
        paper: lrp_latency::PAPER,
        about: "an echo service beside a blast at another socket, and at a port nobody owns",
        config: Config::default,
        run: lrp_latency::run,
    },
    Experiment {
        name: lrp_rpc::NAME,
        paper: lrp_rpc::PAPER,
        about: "a computation's share of the processor beside two busy RPC servers",
        config: Config::default,
        run: lrp_rpc::run,
    },
    Experiment {
        name: lrp_http_blast::NAME,
        paper: lrp_http_blast::PAPER,
        about: "a web server beside UDP packets to another port",
        config: tcp::config,
        run: lrp_http_blast::run,
    },
    Experiment {
        name: lrp_syn_flood::NAME,
        paper: lrp_syn_flood::PAPER,
        about: "a web server beside a SYN flood to another port, and to its own",
        config: tcp::config,
        run: lrp_syn_flood::run,
    },
    Experiment {
        name: http_base::NAME,
        paper: http_base::PAPER,
        about: "a web server unloaded: requests/s, response times, idle connections",
        config: tcp::config,
        run: http_base::run,
    },
    Experiment {
        name: rhip_budget::NAME,
        paper: rhip_budget::PAPER,
        about: "goodput against a fixed number of frames a round",
        config: Config::default,
        run: rhip_budget::run,
    },
    Experiment {
        name: rhip_size::NAME,
        paper: rhip_size::PAPER,
        about: "goodput and idle CPU against packet size under every policy; idle without traffic",
        config: Config::default,
        run: rhip_size::run,
    },
    Experiment {
        name: rhip_workload::NAME,
        paper: rhip_workload::PAPER,
        about: "goodput against the application's weight; time to settle after a step in load",
        config: Config::default,
        run: rhip_workload::run,
    },
    Experiment {
        name: rhip_ping::NAME,
        paper: rhip_ping::PAPER,
        about: "round trips over time beside a flood of full packets, and on an idle machine",
        config: Config::default,
        run: rhip_ping::run,
    },
    Experiment {
        name: rhip_model::NAME,
        paper: rhip_model::PAPER,
        about: "the goodput that the paper's model predicts against the measured, in its three modes",
        config: Config::default,
        run: rhip_model::run,
    },
    Experiment {
        name: rhip_classes::NAME,
        paper: rhip_classes::PAPER,
        about: "an echo service on one queue beside a blast on another, by traffic class",
        config: rhip_classes::config,
        run: rhip_classes::run,
    },
    Experiment {
        name: select_proxy::NAME,
        paper: select_proxy::PAPER,
        about: "a forwarding proxy: response time and idle processor against the rate, cold connections beside",
        config: Config::default,
        run: select_proxy::run,
    },
    Experiment {
        name: select_cpu::NAME,
        paper: select_cpu::PAPER,
        about: "where the proxy's processor goes: select, allocator, others, idle",
        config: Config::default,
        run: select_cpu::run,
    },
    Experiment {
        name: select_static::NAME,
        paper: select_static::PAPER,
        about: "a web server the same way; the rate that S-clients offer a throttled server",
        config: Config::default,
        run: select_static::run,
    },
    Experiment {
        name: select_cold::NAME,
        paper: select_cold::PAPER,
        about: "a busy web server beside 0 to 100,000 connections that ask for nothing",
        config: Config::default,
        run: select_cold::run,
    },
    Experiment {
        name: tcp_bulk::NAME,
        paper: tcp_bulk::PAPER,
        about: "one TCP connection as fast as it goes: 64 KiB segments over a tap, Linux over veth",
        config: Config::default,
        run: tcp_bulk::run,
    },
    Experiment {
        name: tcp_loss::NAME,
        paper: tcp_loss::PAPER,
        about: "TCP under loss, reordering and delay, and on a shared bottleneck, against CUBIC",
        config: tcp_loss::config,
        run: tcp_loss::run,
    },
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name)
}

/// The environment of a run that is over.
fn environment(bench: &Bench, systems: &[System], senders: &[&str]) -> anyhow::Result<Environment> {
    let mut environment = Environment::of_machine();
    bench.describe(&mut environment, systems)?;
    environment.senders = senders.iter().map(|&sender| sender.to_owned()).collect();
    Ok(environment)
}

/// The claims of an experiment, anew from its series. `None` for an unknown
/// experiment.
pub fn claims(experiment: &str, series: &[Series]) -> Option<Vec<Claim>> {
    match experiment {
        lrp_base::NAME => Some(lrp_base::claims(series)),
        lrp_overload::NAME => Some(lrp_overload::claims(series)),
        lrp_latency::NAME => Some(lrp_latency::claims(series)),
        lrp_rpc::NAME => Some(lrp_rpc::claims(series)),
        lrp_http_blast::NAME => Some(lrp_http_blast::claims(series)),
        lrp_syn_flood::NAME => Some(lrp_syn_flood::claims(series)),
        http_base::NAME => Some(http_base::claims(series)),
        rhip_budget::NAME => Some(rhip_budget::claims(series)),
        rhip_size::NAME => Some(rhip_size::claims(series)),
        rhip_workload::NAME => Some(rhip_workload::claims(series)),
        rhip_ping::NAME => Some(rhip_ping::claims(series)),
        rhip_model::NAME => Some(rhip_model::claims(series)),
        rhip_classes::NAME => Some(rhip_classes::claims(series)),
        select_proxy::NAME => Some(select_proxy::claims(series)),
        select_cpu::NAME => Some(select_cpu::claims(series)),
        select_static::NAME => Some(select_static::claims(series)),
        select_cold::NAME => Some(select_cold::claims(series)),
        tcp_bulk::NAME => Some(tcp_bulk::claims(series)),
        tcp_loss::NAME => Some(tcp_loss::claims(series)),
        _ => None,
    }
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
