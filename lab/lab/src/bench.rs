//! One measurement: a service on a system, a load, and the result.

mod defence;
mod idle;
mod loads;
mod manager;
mod processes;
mod progress;
mod window;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_manager::restore::Knob;
use tidewall_service::counters::Times as LoopTimes;
use tidewall_service::{Kind, Reader, ServiceSpec};

use defence::Standing;
pub(crate) use defence::{Defence, SYN_LIMIT};
pub(crate) use idle::Held;
use idle::open;
pub(crate) use loads::{blast, flood, load, server, shorten};
pub(crate) use manager::Manager;
pub(crate) use processes::open_files;
use processes::{Companions, s_client_parts};
use progress::Progress;
pub(crate) use progress::Shares;
pub(crate) use window::Window;

use crate::environment::Environment;
use crate::governor::{self, Governor};
use crate::interrupt;
use crate::profile::{Profile, Recorder};
use crate::system::{BUSY_MICROSECONDS, System};
use crate::testbed::{Config, Mode, RealTime, Testbed};
pub(crate) use crate::worker::Setup;
use crate::worker::{
    Account, Attacks, Beside, Child, Cpu, Drops, Job, Kills, LoadJob, LoadOutcome, Place, Seen,
    ServiceJob, TcpKind, TcpSpec, Times, Usage, Watch, run_load, scratch, waited,
};

/// Time for packets in flight to arrive or be dropped after a load.
const DRAIN: Duration = Duration::from_millis(20);
/// Time in which a service must answer before the first load, and the timeout of each
/// request in that time.
const GREETING: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(20));
/// How often a rest checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// How a load is observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watching {
    /// Interval between samples, ms; 0: the default of 200.
    pub(crate) every_ms: u32,
    /// Keep every sample.
    pub(crate) trace: bool,
    /// Sample the activity of the receiver's processor with `perf`.
    pub(crate) profile: bool,
}

/// The result of one load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) outcome: LoadOutcome,
    /// Packets/s dropped over the whole load, by place.
    pub(crate) drops: BTreeMap<String, f64>,
    /// Share of the whole load's time in which the serving thread waited for its
    /// processor while another thread ran.
    pub(crate) waited: f64,
    /// The measured time only.
    pub(crate) window: Window,
    /// Steps/s of the computing thread or process in the measured time.
    pub(crate) steps: f64,
    /// How the processes shared the processor in that time.
    pub(crate) shares: Shares,
    /// Number of times the manager of the device has been killed so far.
    pub(crate) kills: Kills,
    /// Attacks of a hostile application beside it so far, and the frames of it that left
    /// the device.
    pub(crate) hostile: Option<(Attacks, Seen)>,
    /// Idle connections held meanwhile, and their memory.
    pub(crate) held: Option<Held>,
    /// The activity of the receiver's processor, if requested.
    pub(crate) profile: Option<Profile>,
    /// Seconds, and the CPU time of an event loop's calls in them, if counted.
    pub(crate) times: Option<(f64, LoopTimes)>,
}

/// A test bed with everything that measuring on it needs.
pub(crate) struct Bench {
    // Ended before the test bed is removed.
    _helpers: Vec<Child>,
    pub(crate) testbed: Testbed,
    shortcomings: Vec<String>,
}

impl Bench {
    pub(crate) fn new(config: Config, spinners: bool) -> anyhow::Result<Self> {
        let testbed = Testbed::new(config)?;
        let mut children = Vec::new();
        // Before any traffic: see `XdpSink::attach`.
        if config.xdp_sink {
            let place = Place {
                namespace: testbed.client(),
                cpu: config.client_cpu,
            };
            let what = "the program that drops answers to nobody";
            children.push(Child::start_ready(place, &Job::XdpSink, what)?);
        }
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
            _helpers: children,
            testbed,
            shortcomings: Vec::new(),
        })
    }

    /// Starts a service beside the measured one: on Linux sockets, in the client's
    /// namespace and on its processor. It ends when dropped.
    pub(crate) fn serve_beside(&self, tcp: TcpSpec) -> anyhow::Result<Child> {
        let config = self.testbed.config();
        let setup = Setup {
            system: System::LinuxPlain,
            tcp: Some(tcp),
            ..Setup::default()
        };
        let job = ServiceJob {
            setup,
            queues: config.queues,
            cpu: config.client_cpu,
            counters: scratch("counters"),
            watcher_cpu: None,
            managed: None,
            steering: None,
        };
        let place = Place {
            namespace: self.testbed.client(),
            cpu: config.client_cpu,
        };
        Child::start_ready(place, &Job::Service(Box::new(job)), "the server beside it")
            .context("cannot start the server beside it")
    }

    /// Returns the `systems` that are available here, and notes what the others lack.
    pub(crate) fn possible(&mut self, systems: &[System]) -> Vec<System> {
        let mut possible = Vec::new();
        for &system in systems {
            let tried = match system.defence() {
                Some(defence) => defence.put(&self.testbed, &[1]).map(drop),
                None if system.mode() == Mode::Suspend => self.suspend_interrupts(),
                None => Ok(()),
            };
            match tried {
                Ok(()) => possible.push(system),
                Err(error) => {
                    let name = system.name();
                    self.shortcomings.push(format!("{name}: {error:#}"));
                }
            }
        }
        possible
    }

    /// Sets the server's interface up for event loops that suspend its interrupts.
    /// Without such a loop, the timeout that this leaves in the NAPI has no effect.
    fn suspend_interrupts(&mut self) -> anyhow::Result<()> {
        self.testbed.set_mode(Mode::Suspend)?;
        let place = Place {
            namespace: self.testbed.server(),
            cpu: self.testbed.config().client_cpu,
        };
        let what = "interrupt suspension (Linux 6.13)";
        Child::start_ready(place, &Job::Suspend, what).map(drop)
    }

    /// Starts a service and waits for its answer, if it answers datagrams: whatever it
    /// leaves unanswered from then on is a result.
    pub(crate) fn serve(&mut self, setup: &Setup) -> anyhow::Result<Session<'_>> {
        let defence = match (setup.system.defence(), &setup.tcp) {
            (Some(defence), Some(tcp)) => {
                // A program changes the device's poll, which is set up again.
                self.testbed.forget_mode();
                let ports = [&[tcp.port], tcp.dummies.as_slice()].concat();
                Some(defence.put(&self.testbed, &ports)?)
            }
            _ => None,
        };
        let steers = setup.system == System::NiLrp;
        self.testbed.set_steering(steers)?;
        match setup.system.mode() {
            Mode::Suspend => self.suspend_interrupts()?,
            mode => self.testbed.set_mode(mode)?,
        }
        let polling = poll_for_programs(&self.testbed, setup)?;
        let config = self.testbed.config();
        let mut manager = Manager::start(&self.testbed, setup)?;
        let counters = scratch("counters");
        let job = ServiceJob {
            setup: setup.clone(),
            queues: config.queues + u32::from(steers),
            cpu: config.server_cpu,
            counters: counters.clone(),
            watcher_cpu: Some(config.client_cpu),
            managed: manager.as_ref().map(|manager| manager.of_application(0)),
            steering: steers.then(|| self.testbed.client().to_owned()),
        };
        let place = Place {
            namespace: self.testbed.server(),
            cpu: config.server_cpu,
        };
        let child = Child::start_ready(place, &Job::Service(Box::new(job)), setup.system.name())
            .with_context(|| format!("cannot start the service on {}", setup.system.name()))?;
        for line in child.said().trim_start_matches(": ").lines() {
            let text = format!("{}: {line}", setup.system.name());
            if !self.shortcomings.contains(&text) {
                self.shortcomings.push(text);
            }
        }
        let governor = match setup.control.filter(|_| setup.system.is_linux()) {
            Some(control) => {
                // The service of the lowest priority is the flooded one.
                let port = setup.services.last().map_or(0, |service| service.port);
                let service = governor::Service {
                    process: child.process(),
                    cpu: config.server_cpu,
                    port,
                };
                Some(Governor::start(
                    self.testbed.restorer(),
                    service,
                    control,
                    &mut self.shortcomings,
                )?)
            }
            None => None,
        };
        let companions = manager::Companions::start(&self.testbed, setup, manager.as_ref())?;
        if let Some(manager) = &mut manager {
            manager.pin_pollers(config.server_cpu)?;
        }
        let mut child = child;
        let serving = child.serving()?;
        let session = Session {
            governor,
            child,
            companions,
            manager,
            defence,
            _polling: polling,
            serving,
            bench: self,
            counters,
            system: setup.system,
            computes: setup.compute.is_some(),
        };
        session.greet(&setup.services, setup.circuits)?;
        let beside: Vec<_> = setup.beside.iter().filter_map(Beside::service).collect();
        session.greet(&beside, false)?;
        session.companions.stop()?;
        Ok(session)
    }

    /// The environment's account of this bench and the systems run on it.
    pub(crate) fn describe<'a>(
        &self,
        environment: &mut Environment,
        systems: impl IntoIterator<Item = &'a System>,
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

/// Sets the two sysctls that enable busy polling for programs that do not request it, if
/// that is the mode.
fn poll_for_programs(testbed: &Testbed, setup: &Setup) -> anyhow::Result<Vec<Knob>> {
    let kind = setup.tcp.as_ref().map(|tcp| &tcp.kind);
    if setup.system != System::LinuxBusy || !matches!(kind, Some(TcpKind::Program(_))) {
        return Ok(Vec::new());
    }
    let set = |name: &str| {
        let path = format!("/proc/sys/net/core/{name}");
        let value = BUSY_MICROSECONDS.to_string();
        Knob::set(testbed.restorer(), &path, &value).with_context(|| format!("cannot set {path}"))
    };
    ["busy_poll", "busy_read"].into_iter().map(set).collect()
}

/// A running service.
pub(crate) struct Session<'a> {
    /// Receive control of the kernel's path.
    governor: Option<Governor>,
    // Before the bench: the service ends before anything else changes.
    child: Child,
    /// Other applications of the same manager.
    companions: manager::Companions,
    /// The owner of the device, if that is not the service.
    manager: Option<Manager>,
    /// The defence in front of the kernel's stack.
    defence: Option<Standing>,
    /// Settings that make the kernel poll for a program.
    _polling: Vec<Knob>,
    /// The process that serves: the child, or a program that it has started.
    serving: u32,
    bench: &'a mut Bench,
    counters: PathBuf,
    system: System,
    computes: bool,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.governor.take().is_some() || self.defence.is_some() {
            self.bench.testbed.forget_mode();
        }
        // The worker does it itself unless it was killed.
        let _ = std::fs::remove_file(&self.counters);
    }
}

impl Session<'_> {
    /// Greets every service that answers datagrams, or PDUs, without load.
    fn greet(&self, services: &[ServiceSpec], circuits: bool) -> anyhow::Result<()> {
        let (time, timeout) = GREETING;
        for service in services {
            let config = self.bench.testbed.config();
            let place = Place {
                namespace: self.bench.testbed.client(),
                cpu: config.client_cpu,
            };
            if circuits {
                self.find_poll(place, service.port)?;
            }
            if service.kind == Kind::Discard {
                continue;
            }
            let ping = PingSpec {
                timeout,
                circuit: circuits,
                ..PingSpec::new(server(service.port))
            };
            let job = LoadJob::unwatched(LoadSpec {
                ping: Some(ping),
                cpu: Some(config.client_cpu),
                ..LoadSpec::new(time)
            });
            let outcome = run_load(place, job, || false, || Ok(()))?;
            let echoed = outcome.report.ping.map_or(0, |ping| ping.measured.echoed);
            anyhow::ensure!(
                echoed > 0,
                "the service at port {} answered nothing before any load",
                service.port
            );
        }
        Ok(())
    }

    /// Sends datagrams to the UDP port of a circuit's service, by which a stack finds the
    /// device's poll.
    fn find_poll(&self, place: Place<'_>, port: u16) -> anyhow::Result<()> {
        let job = LoadJob::unwatched(LoadSpec {
            blast: Some(blast(SenderKind::Socket, port, Some(200))),
            cpu: Some(place.cpu),
            ..LoadSpec::new(GREETING.0)
        });
        run_load(place, job, || false, || Ok(())).map(drop)
    }

    /// Runs one load against the service, observed according to `watching`.
    pub(crate) fn measure(
        &mut self,
        spec: &LoadSpec,
        watching: Watching,
    ) -> anyhow::Result<Measured> {
        let watch = self.watch();
        let mut spec = spec.clone();
        let mut holding = match spec.idle.take() {
            Some(idle) => Some(self.hold(&idle)?),
            None => None,
        };
        let mut parts = Vec::new();
        if let Some(s_clients) = spec.s_clients.take() {
            parts = s_client_parts(&s_clients, open_files());
            spec.s_clients = parts.pop();
        }
        let testbed = &self.bench.testbed;
        let config = testbed.config();
        let before = self.child.account()?;
        let waited_before = waited(watch.process);
        let place = Place {
            namespace: testbed.client(),
            cpu: config.client_cpu,
        };
        let job = LoadJob {
            spec: spec.clone(),
            counters: Some(self.counters.clone()),
            watch: Some(watch),
            every_ms: watching.every_ms,
            trace: watching.trace,
        };
        let child = &mut self.child;
        let (serving, computes, beside) = (self.serving, self.computes, &mut self.companions);
        let manager = self.manager.as_ref();
        let mut begun: Option<(Progress, Account)> = None;
        let mut recorder = None;
        let reader = Reader::open(&self.counters).context("cannot read the service's counters")?;
        let mut looped: Option<(Instant, LoopTimes)> = None;
        let measuring = || {
            if watching.profile {
                recorder = Some(Recorder::start(config.server_cpu, spec.duration)?);
            }
            looped = Some((Instant::now(), reader.times()));
            let progress = Progress::read(child, serving, computes, beside, manager)?;
            begun = Some((progress, child.account()?));
            Ok(())
        };
        let companions = Companions::start(place, &spec, parts)?;
        // The safeguards of ordinary tasks may be off for short loads only.
        let short = spec.warm_up + spec.duration <= RealTime::LOAD_MAX;
        let mut outcome = if self.system.needs_real_time() && short {
            let room = RealTime::take(
                testbed.restorer(),
                config.server_cpu,
                &mut self.bench.shortcomings,
            );
            run_load(place, job, || room.is_over(), measuring)?
        } else {
            run_load(place, job, || false, measuring)?
        };
        let ended = Instant::now();
        let progress = Progress::read(child, serving, computes, beside, manager)?;
        let waiting = waited(watch.process).saturating_sub(waited_before);
        companions.join(&mut outcome.report)?;
        let times = looped.and_then(|(at, first)| {
            let last = reader.times();
            let spent = LoopTimes {
                waiting: last.waiting.saturating_sub(first.waiting),
                opening: last.opening.saturating_sub(first.opening),
                total: last.total.saturating_sub(first.total),
            };
            (last.total > 0).then(|| (ended.duration_since(at).as_secs_f64(), spent))
        });
        let profile = match recorder {
            Some(recorder) => Some(recorder.finish(watch.process)?),
            None => None,
        };
        thread::sleep(DRAIN);
        let after = self.child.account()?;
        let seconds = (spec.warm_up + spec.duration).as_secs_f64();
        let mut drops = rates(&before.drops, &after.drops, seconds);
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
        let (begun, first) = begun.context("the load did not begin to measure")?;
        let window = Window::between(&first, &after, begun.until(&progress).as_secs_f64());
        if let Some((held, workers)) = &mut holding {
            held.open = open(workers)?;
        }
        Ok(Measured {
            outcome,
            drops,
            waited: waiting.as_secs_f64() / (spec.warm_up + spec.duration).as_secs_f64(),
            window,
            steps: begun.steps(&progress),
            shares: begun.shares(&progress),
            kills: match &mut self.manager {
                Some(manager) => manager.kills()?,
                None => Kills::default(),
            },
            hostile: self.companions.hostile()?,
            held: holding.map(|(held, _)| held),
            profile,
            times,
        })
    }

    /// Lets `time` pass without a load, and returns the usage meanwhile.
    pub(crate) fn rest(&mut self, time: Duration) -> anyhow::Result<Usage> {
        // The remains of the last load are not rest.
        thread::sleep(DRAIN);
        let first = Times::read_at_rest(self.watch());
        let end = Instant::now() + time;
        while Instant::now() < end {
            interrupt::check()?;
            thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        }
        let last = Times::read_at_rest(self.watch());
        Ok(Usage::between(&first, &last))
    }

    /// Returns the CPU cost of the service's threads so far.
    pub(crate) fn cpu(&mut self) -> anyhow::Result<Cpu> {
        self.child.cpu()
    }

    /// Returns the test bed it runs on.
    pub(crate) fn bench(&self) -> &Bench {
        self.bench
    }

    /// Returns the datagrams or requests that the services have processed so far.
    pub(crate) fn received(&self) -> anyhow::Result<u64> {
        let reader = Reader::open(&self.counters).context("cannot read the service's counters")?;
        Ok(reader.read().iter().map(|counts| counts.received).sum())
    }

    fn watch(&self) -> Watch {
        Watch {
            process: self.serving,
            cpu: self.bench.testbed.config().server_cpu,
        }
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
