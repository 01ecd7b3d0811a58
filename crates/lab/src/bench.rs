//! One measurement: a service on a system, a load, and what came of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tidewall_load::{BlastSpec, LoadSpec, SenderKind};
use tidewall_service::ServiceSpec;
use tidewall_service::linux::Receive;

use crate::environment::Environment;
use crate::system::System;
use crate::testbed::{CLIENT_INTERFACE, Config, RealTime, SERVER, SERVER_MAC_ADDRESS, Testbed};
use crate::worker::{
    Child, Drops, Job, LoadJob, LoadOutcome, Place, ServiceJob, run_load, scratch,
};

/// Load before measuring begins.
pub(crate) const WARM_UP: Duration = Duration::from_millis(150);
/// Time measured. Counters are sampled every 200 ms.
pub(crate) const WINDOW: Duration = Duration::from_millis(500);
/// Time for what is in flight to arrive or be dropped after a load.
const SETTLE: Duration = Duration::from_millis(20);

/// A service on a system.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) system: System,
    pub(crate) receive: Option<Receive>,
    /// Busy waiting before sleeping, µs; `None`: the system's usual.
    pub(crate) spin: Option<u32>,
    pub(crate) services: Vec<ServiceSpec>,
}

/// What came of one load.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) outcome: LoadOutcome,
    /// Packets/s dropped over the whole load, by place.
    pub(crate) drops: BTreeMap<String, f64>,
}

/// A test bed with everything that measuring on it needs.
pub(crate) struct Bench {
    // Ended before the test bed is taken down.
    _spinners: Vec<Child>,
    pub(crate) testbed: Testbed,
    shortcomings: Vec<String>,
}

impl Bench {
    pub(crate) fn new(config: Config, spinners: bool) -> anyhow::Result<Self> {
        let testbed = Testbed::new(config)?;
        let mut children = Vec::new();
        if spinners {
            for (namespace, cpu) in [
                (testbed.client(), config.client_cpu),
                (testbed.server(), config.server_cpu),
            ] {
                let place = Place { namespace, cpu };
                children.push(Child::start_ready(
                    place,
                    &Job::Spin,
                    "a background process",
                )?);
            }
        }
        Ok(Bench {
            _spinners: children,
            testbed,
            shortcomings: Vec::new(),
        })
    }

    /// Starts a service.
    pub(crate) fn serve(&mut self, setup: &Setup) -> anyhow::Result<Session<'_>> {
        self.testbed.set_mode(setup.system.mode())?;
        let config = self.testbed.config();
        let counters = scratch("counters");
        let job = ServiceJob {
            host: setup
                .system
                .host(setup.receive, setup.spin, config.queues, config.server_cpu),
            services: setup.services.clone(),
            counters: counters.clone(),
        };
        let place = Place {
            namespace: self.testbed.server(),
            cpu: config.server_cpu,
        };
        let child = Child::start_ready(place, &Job::Service(job), setup.system.name())
            .with_context(|| format!("cannot start the service on {}", setup.system.name()))?;
        for line in child.said().trim_start_matches(": ").lines() {
            let text = format!("{}: {line}", setup.system.name());
            if !self.shortcomings.contains(&text) {
                self.shortcomings.push(text);
            }
        }
        Ok(Session {
            bench: self,
            child,
            counters,
            system: setup.system,
        })
    }

    /// The environment's account of this bench and the systems run on it.
    pub(crate) fn describe(
        &self,
        environment: &mut Environment,
        systems: &[System],
    ) -> anyhow::Result<()> {
        self.testbed.describe(environment)?;
        environment.shortcomings = self.shortcomings.clone();
        for system in systems {
            environment
                .systems
                .insert(system.name().to_owned(), system.describe());
        }
        Ok(())
    }
}

/// A running service.
pub(crate) struct Session<'a> {
    // The first field: the service ends before anything else changes.
    child: Child,
    bench: &'a mut Bench,
    counters: PathBuf,
    system: System,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // The worker does it itself unless it had to be killed.
        let _ = std::fs::remove_file(&self.counters);
    }
}

impl Session<'_> {
    /// Runs one load against the service.
    pub(crate) fn measure(&mut self, spec: &LoadSpec) -> anyhow::Result<Measured> {
        let testbed = &self.bench.testbed;
        let config = testbed.config();
        let before = self.child.drops()?;
        let place = Place {
            namespace: testbed.client(),
            cpu: config.client_cpu,
        };
        let job = LoadJob {
            spec: spec.clone(),
            counters: Some(self.counters.clone()),
        };
        let outcome = if self.system.needs_real_time() {
            let room = RealTime::take(
                testbed.guardian(),
                config.server_cpu,
                &mut self.bench.shortcomings,
            );
            run_load(place, job, || room.is_over())?
        } else {
            run_load(place, job, || false)?
        };
        thread::sleep(SETTLE);
        let after = self.child.drops()?;
        let seconds = (spec.warm_up + spec.duration).as_secs_f64();
        let mut drops = rates(&before, &after, seconds);
        let ring = outcome
            .report
            .blast
            .as_ref()
            .and_then(|blast| blast.counters);
        if let Some(counters) = ring
            && counters.dropped > 0
        {
            drops.insert("device ring".to_owned(), counters.dropped as f64 / seconds);
        }
        Ok(Measured { outcome, drops })
    }
}

fn rates(before: &Drops, after: &Drops, seconds: f64) -> BTreeMap<String, f64> {
    after
        .iter()
        .map(|(place, count)| {
            let earlier = before.get(place).copied().unwrap_or(0);
            (
                place.clone(),
                count.saturating_sub(earlier) as f64 / seconds,
            )
        })
        .filter(|(_, rate)| *rate > 0.0)
        .collect()
}

/// The server's address with this port.
pub(crate) fn server(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(SERVER.0), port)
}

/// A blast of LRP's 14-byte packets at `port`.
pub(crate) fn blast(kind: SenderKind, port: u16, rate: Option<u64>) -> BlastSpec {
    BlastSpec {
        interface: Some(CLIENT_INTERFACE.to_owned()),
        destination_mac: Some(SERVER_MAC_ADDRESS),
        rate,
        ..BlastSpec::new(kind, server(port))
    }
}

/// A load of the usual length.
pub(crate) fn load(config: Config) -> LoadSpec {
    LoadSpec {
        blast: None,
        ping: None,
        warm_up: WARM_UP,
        duration: WINDOW,
        cpu: Some(config.client_cpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_become_rates_and_zeroes_go() {
        let before = Drops::from([("channel".to_owned(), 10), ("backlog".to_owned(), 5)]);
        let after = Drops::from([
            ("channel".to_owned(), 110),
            ("backlog".to_owned(), 5),
            ("device ring".to_owned(), 7),
        ]);
        let rates = rates(&before, &after, 0.5);
        assert_eq!(rates.len(), 2);
        assert_eq!(rates["channel"], 200.0);
        assert_eq!(rates["device ring"], 14.0);
    }
}
