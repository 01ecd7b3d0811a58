//! What a sweep is to measure, and for how long.

use std::time::Duration;

use tidewall_load::LoadSpec;
use tidewall_service::ServiceSpec;
use tidewall_service::linux::Receive;

use crate::bench::{Setup, Watching, shorten};
use crate::system::{Control, System};
use crate::worker::{Beside, ClassSpec, TcpSpec};

/// One curve to be measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    pub(crate) system: System,
    pub(crate) setting: Option<&'static str>,
    /// The vertical axis where it is not the experiment's.
    pub(crate) y: Option<&'static str>,
    pub(crate) spin: Option<u32>,
    /// Receive control, whose policy then names the series.
    pub(crate) control: Option<Control>,
    /// Traffic classes, queue by queue.
    pub(crate) classes: Vec<ClassSpec>,
    /// How its loads are looked at.
    pub(crate) watching: Watching,
    pub(crate) services: Vec<ServiceSpec>,
    /// They are on circuits.
    pub(crate) circuits: bool,
    /// Served over TCP, in place of the services.
    pub(crate) tcp: Option<TcpSpec>,
    /// Bytes that a thread beside the services computes over.
    pub(crate) compute: Option<usize>,
    /// Under Linux it receives by recvmmsg alone: where the figure of a point is not the
    /// service's own, the better way of receiving would be chosen for another's sake.
    pub(crate) batches: bool,
    /// Further processes on the services' processor.
    pub(crate) beside: Vec<Beside>,
    /// The manager is killed and started again so often, ms.
    pub(crate) kill_manager_ms: Option<u32>,
    pub(crate) loads: Vec<LoadSpec>,
    /// Which of two results is the better.
    pub(crate) better: Better,
}

impl Curve {
    /// `loads` against a service over TCP.
    pub(crate) fn over_tcp(system: System, tcp: TcpSpec, loads: Vec<LoadSpec>) -> Self {
        Curve {
            system,
            tcp: Some(tcp),
            loads,
            ..Curve::default()
        }
    }

    /// Measures packets for as long as a quick run has time for. Clients of a web server
    /// keep theirs, as do loads of another length.
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

    /// What is served, receiving in one of its ways.
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

    /// The ways of receiving to try: datagrams have two under Linux.
    pub(super) fn variants(&self) -> &'static [Option<Receive>] {
        match self.tcp {
            Some(_) => &[None],
            None if self.batches && self.system.is_linux() => &[Some(Receive::Recvmmsg)],
            None => self.system.variants(),
        }
    }

    /// Its name in results: the policy's or the way of waiting's where that is
    /// what is compared.
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

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds that are made whatever their time. A round measures every point once.
    pub(crate) least: u32,
    /// Rounds that are made, if they end in time, though every claim is decided.
    pub(crate) rounds: u32,
    /// No further round begins that would end later than this after the start.
    pub(crate) budget: Duration,
    /// Of several ways to receive, those of the first round go on that were the better.
    pub(crate) brief: bool,
}

impl Plan {
    /// Exactly so many rounds.
    pub(crate) fn exactly(rounds: u32) -> Self {
        Plan {
            least: rounds,
            rounds,
            budget: Duration::ZERO,
            brief: false,
        }
    }

    /// For one of `parts` sweeps that share the time.
    pub(crate) fn shared(self, parts: u32) -> Self {
        Plan {
            budget: self.budget / parts.max(1),
            ..self
        }
    }

    /// True when time is left to make a round again and all that are wanted besides.
    pub(super) fn has_time_for_more(&self, done: u32, spent: Duration, longest: Duration) -> bool {
        let wanted = self.rounds.saturating_sub(done).max(1);
        self.least > 1 || self.budget.is_zero() || spent + longest * wanted <= self.budget
    }

    /// True when another round is to be made after `done`, which would end after
    /// `end`; whether all is `decided` is asked when that matters.
    pub(super) fn goes_on(&self, done: u32, end: Duration, decided: impl FnOnce() -> bool) -> bool {
        done < self.least || (end <= self.budget && (done < self.rounds || !decided()))
    }
}
