//! The plan of a sweep: what to measure, and for how long.

use std::time::Duration;

use tidewall_load::LoadSpec;
use tidewall_service::ServiceSpec;
use tidewall_service::linux::Receive;

use crate::bench::{Setup, Watching, shorten};
use crate::system::{Control, System};
use crate::worker::{Beside, ClassSpec, TcpSpec};

/// One curve to measure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    pub(crate) system: System,
    pub(crate) setting: Option<&'static str>,
    /// The vertical axis, if it is not the experiment's.
    pub(crate) y: Option<&'static str>,
    pub(crate) spin: Option<u32>,
    /// Receive control; its policy then names the series.
    pub(crate) control: Option<Control>,
    /// Traffic classes, queue by queue.
    pub(crate) classes: Vec<ClassSpec>,
    /// How its loads are observed.
    pub(crate) watching: Watching,
    pub(crate) services: Vec<ServiceSpec>,
    /// The services use circuits.
    pub(crate) circuits: bool,
    /// The TCP service, instead of the services.
    pub(crate) tcp: Option<TcpSpec>,
    /// Bytes over which a thread beside the services computes.
    pub(crate) compute: Option<usize>,
    /// Under Linux, receive only by recvmmsg. If the figure of a point is not the
    /// service's own, the better way of receiving would be chosen for the wrong reason.
    pub(crate) batches: bool,
    /// Further processes on the services' processor.
    pub(crate) beside: Vec<Beside>,
    /// Interval at which the manager is killed and restarted, ms.
    pub(crate) kill_manager_ms: Option<u32>,
    pub(crate) loads: Vec<LoadSpec>,
    /// Which of two results is the better.
    pub(crate) better: Better,
}

impl Curve {
    /// Returns `loads` against a service over TCP.
    pub(crate) fn over_tcp(system: System, tcp: TcpSpec, loads: Vec<LoadSpec>) -> Self {
        Curve {
            system,
            tcp: Some(tcp),
            loads,
            ..Curve::default()
        }
    }

    /// Shortens packet loads to the time of a quick run. Clients of a web server keep
    /// theirs, as do loads of another length.
    pub(crate) fn shorten(&mut self) {
        for load in &mut self.loads {
            if load.http.is_none() {
                shorten(load);
            }
        }
        if self.watching.every_ms == 0 {
            self.watching.every_ms = 50;
        }
    }

    /// Returns the setup, receiving in one of its ways.
    pub(crate) fn setup(&self, receive: Option<Receive>) -> Setup {
        Setup {
            system: self.system,
            receive,
            spin: self.spin,
            control: self.control,
            classes: self.classes.clone(),
            services: self.services.clone(),
            circuits: self.circuits,
            tcp: self.tcp.clone(),
            compute: self.compute,
            beside: self.beside.clone(),
            kill_manager_ms: self.kill_manager_ms,
        }
    }

    /// Returns the ways of receiving to try: datagrams have two under Linux.
    pub(super) fn variants(&self) -> &'static [Option<Receive>] {
        match self.tcp {
            Some(_) => &[None],
            None if self.batches && self.system.is_linux() => &[Some(Receive::Recvmmsg)],
            None => self.system.variants(),
        }
    }

    /// Returns its name in results: that of the policy or the way of waiting, if that is
    /// compared.
    pub(crate) fn name(&self) -> &'static str {
        let waiting = self.tcp.as_ref();
        if let Some(name) = waiting.and_then(|tcp| tcp.name(self.system.is_linux())) {
            return name;
        }
        self.control
            .map_or(self.system.name(), |control| control.policy.name())
    }
}

/// Which of two results is the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Better {
    #[default]
    Higher,
    Lower,
}

impl Better {
    pub(super) fn of(self, a: f64, b: f64) -> bool {
        match self {
            Better::Higher => a > b,
            Better::Lower => a < b,
        }
    }
}

/// The length of a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds that are made whatever their time. A round measures every point once.
    pub(crate) least: u32,
    /// Rounds that are made, if they end in time, even if every claim is decided.
    pub(crate) rounds: u32,
    /// No further round begins that would end later than this after the start.
    pub(crate) budget: Duration,
    /// After the first round, only the better of several ways to receive continues.
    pub(crate) brief: bool,
}

impl Plan {
    /// Returns exactly this many rounds.
    pub(crate) fn exactly(rounds: u32) -> Self {
        Plan {
            least: rounds,
            rounds,
            budget: Duration::ZERO,
            brief: false,
        }
    }

    /// Returns the plan for one of `parts` sweeps that share the time.
    pub(crate) fn shared(self, parts: u32) -> Self {
        Plan {
            budget: self.budget / parts.max(1),
            ..self
        }
    }

    /// Returns true if time is left to repeat a round and make all others that are
    /// wanted.
    pub(super) fn has_time_for_more(&self, done: u32, spent: Duration, longest: Duration) -> bool {
        let wanted = self.rounds.saturating_sub(done).max(1);
        self.least > 1 || self.budget.is_zero() || spent + longest * wanted <= self.budget
    }

    /// Returns true if another round is to follow `done`, and would end after `end`.
    /// Calls `decided` only if the answer depends on it.
    pub(super) fn goes_on(&self, done: u32, end: Duration, decided: impl FnOnce() -> bool) -> bool {
        done < self.least || (end <= self.budget && (done < self.rounds || !decided()))
    }
}
