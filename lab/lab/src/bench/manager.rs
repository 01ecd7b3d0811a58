//! A manager of the server's interface, and the processes beside the measured one.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tidewall_service::Reader;

use crate::system::System;
use crate::testbed::Testbed;
use crate::worker::{
    Attacks, Beside, Child, Cpu, HostileJob, Job, Kills, Managed, ManagerAtm, ManagerJob, Place,
    Seen, ServiceJob, Setup, manager_program, scratch,
};

/// User id of the measured application; those beside it have the next ones.
const USER: u32 = 12_345;

/// A running manager; dropping it gives everything back.
pub(crate) struct Manager {
    child: Child,
    socket: PathBuf,
    /// Kernel threads that poll the interface for several applications.
    pollers: Vec<u32>,
}

impl Manager {
    /// Starts a manager for the services, if the setup has one.
    pub(super) fn start(testbed: &Testbed, setup: &Setup) -> anyhow::Result<Option<Self>> {
        if !setup.system.is_managed() {
            return Ok(None);
        }
        // The namespace is the test bed's own, and its services use low ports.
        testbed.in_server_shell("echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start")?;
        let place = Place {
            namespace: testbed.server(),
            cpu: testbed.config().client_cpu,
        };
        let is_direct = setup.system == System::Direct;
        Self::keep(place, is_direct, setup.kill_manager_ms, None).map(Some)
    }

    /// Starts a manager of circuits; `is_direct`: for an application with the device's
    /// own queues.
    pub(crate) fn of_circuits(
        place: Place<'_>,
        is_direct: bool,
        atm: ManagerAtm,
    ) -> anyhow::Result<Self> {
        Self::keep(place, is_direct, None, Some(atm))
    }

    fn keep(
        place: Place<'_>,
        is_direct: bool,
        kill_every_ms: Option<u32>,
        atm: Option<ManagerAtm>,
    ) -> anyhow::Result<Self> {
        let socket = scratch("manager");
        let job = ManagerJob {
            program: manager_program()?,
            socket: socket.clone(),
            trust: is_direct.then_some(USER),
            kill_every_ms,
            atm,
        };
        let child = Child::start_ready(place, &Job::Manager(job), "the manager")?;
        Ok(Manager {
            child,
            socket,
            pollers: Vec::new(),
        })
    }

    /// Returns the CPU cost of its threads so far.
    pub(crate) fn cpu(&mut self) -> anyhow::Result<Cpu> {
        self.child.cpu()
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> anyhow::Result<u32> {
        self.child.serving()
    }

    /// Returns the address at which an application, with its own user id, finds it.
    pub(crate) fn of_application(&self, number: usize) -> Managed {
        Managed {
            socket: self.socket.clone(),
            user: USER + number as u32,
        }
    }

    /// Pins the threads that poll the device to the processor on which the services
    /// receive.
    pub(super) fn pin_pollers(&mut self, cpu: usize) -> anyhow::Result<()> {
        self.pollers = self.child.question(&format!("pin {cpu}"))?;
        Ok(())
    }

    /// Returns the pinned threads.
    pub(super) fn pollers(&self) -> &[u32] {
        &self.pollers
    }

    /// Returns how often it has been killed so far.
    pub(super) fn kills(&mut self) -> anyhow::Result<Kills> {
        self.child.question("kills")
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A process beside the measured one.
struct Companion {
    child: Child,
    beside: Beside,
    counters: PathBuf,
}

/// Processes beside the measured one; dropping this ends them.
pub(super) struct Companions {
    children: Vec<Companion>,
    /// The observer of frames that leave the device, if one process is hostile.
    watcher: Option<Child>,
}

impl Companions {
    /// Starts them, on the services' processor.
    pub(super) fn start(
        testbed: &Testbed,
        setup: &Setup,
        manager: Option<&Manager>,
    ) -> anyhow::Result<Self> {
        let mut companions = Companions {
            children: Vec::new(),
            watcher: None,
        };
        for (number, beside) in setup.beside.iter().enumerate() {
            let config = testbed.config();
            let place = Place {
                namespace: testbed.server(),
                cpu: config.server_cpu,
            };
            let managed = manager.map(|manager| manager.of_application(number + 1));
            let counters = scratch("counters");
            let job = match *beside {
                Beside::Computes(bytes) => Job::Compute(bytes),
                Beside::Hostile { port, attacks } => {
                    let place = Place {
                        namespace: testbed.client(),
                        cpu: config.client_cpu,
                    };
                    // Before any process that it is to observe.
                    let what = "who looks at what leaves";
                    companions.watcher = Some(Child::start_ready(place, &Job::Watch, what)?);
                    Job::Hostile(HostileJob {
                        managed: managed.context("what is hostile needs a manager")?,
                        port,
                        attacks,
                    })
                }
                Beside::Serves(service) | Beside::Stopped(service) => {
                    // One embedded stack owns the whole interface.
                    ensure!(
                        managed.is_some() || setup.system.is_linux(),
                        "applications side by side need a manager"
                    );
                    Job::Service(Box::new(ServiceJob {
                        setup: Setup {
                            services: vec![service],
                            tcp: None,
                            compute: None,
                            beside: Vec::new(),
                            ..setup.clone()
                        },
                        queues: config.queues,
                        cpu: config.server_cpu,
                        counters: counters.clone(),
                        watcher_cpu: Some(config.client_cpu),
                        managed,
                        steering: None,
                    }))
                }
            };
            companions.children.push(Companion {
                child: Child::start_ready(place, &job, "a process beside it")?,
                beside: beside.clone(),
                counters,
            });
        }
        Ok(companions)
    }

    /// Stops the processes that are to stand still.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Returns the attacks of a hostile process so far, and the frames of it that left
    /// the device.
    pub(super) fn hostile(&mut self) -> anyhow::Result<Option<(Attacks, Seen)>> {
        let mut children = self.children.iter_mut();
        let hostile = children.find(|it| matches!(it.beside, Beside::Hostile { .. }));
        match (hostile, &mut self.watcher) {
            (Some(hostile), Some(watcher)) => {
                let attacks = hostile.child.question("attacks")?;
                Ok(Some((attacks, watcher.question("seen")?)))
            }
            _ => Ok(None),
        }
    }

    /// Returns the steps of the computing process so far; zero without one.
    pub(super) fn steps(&mut self) -> anyhow::Result<u64> {
        let mut children = self.children.iter_mut();
        let computing = children.find(|it| matches!(it.beside, Beside::Computes(_)));
        computing.map_or(Ok(0), |it| it.child.steps())
    }

    /// Returns the datagrams that each has received so far; zero without a service.
    pub(super) fn received(&self) -> anyhow::Result<Vec<u64>> {
        let received = |it: &Companion| {
            if it.beside.service().is_none() {
                return Ok(0);
            }
            let reader = Reader::open(&it.counters).context("cannot read a process's counters")?;
            Ok(reader.read().iter().map(|counts| counts.received).sum())
        };
        self.children.iter().map(received).collect()
    }

    /// Their processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(|it| it.child.process())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        for Companion { child, beside, .. } in &self.children {
            if let (Beside::Stopped(_), Some(process)) =
                (beside, Pid::from_raw(child.process() as i32))
            {
                kill_process(process, signal).context("cannot stop an application")?;
            }
        }
        Ok(())
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        for Companion { counters, .. } in &self.children {
            // The worker does it itself unless it was killed.
            let _ = std::fs::remove_file(counters);
        }
        // A stopped process does not end in order.
        let _ = self.signal(Signal::CONT);
    }
}
