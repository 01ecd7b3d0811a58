//! A manager of the server's interface, and the processes beside the one that is measured.

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

/// User id of the application that is measured; those beside it have the next ones.
const USER: u32 = 12_345;

/// A running manager; dropping it gives everything back.
pub(crate) struct Manager {
    child: Child,
    socket: PathBuf,
    /// Threads of the kernel that poll the interface for several applications.
    pollers: Vec<u32>,
}

impl Manager {
    /// Starts one for what is to be served, if a manager is to have the device.
    pub(super) fn start(testbed: &Testbed, setup: &Setup) -> anyhow::Result<Option<Self>> {
        if !setup.system.is_managed() {
            return Ok(None);
        }
        // The namespace is the test bed's own, and its services have low ports.
        testbed.in_server_shell("echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start")?;
        let place = Place {
            namespace: testbed.server(),
            cpu: testbed.config().client_cpu,
        };
        let is_direct = setup.system == System::Direct;
        Self::keep(place, is_direct, setup.kill_manager_ms, None).map(Some)
    }

    /// Starts one of circuits; `is_direct`: of an application with the device's own queues.
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

    /// What its threads have cost so far.
    pub(crate) fn cpu(&mut self) -> anyhow::Result<Cpu> {
        self.child.cpu()
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> anyhow::Result<u32> {
        self.child.serving()
    }

    /// Where an application finds it, as a user of its own.
    pub(crate) fn of_application(&self, number: usize) -> Managed {
        Managed {
            socket: self.socket.clone(),
            user: USER + number as u32,
        }
    }

    /// Has what polls the device for all run where it is received for the services.
    pub(super) fn pin_pollers(&mut self, cpu: usize) -> anyhow::Result<()> {
        self.pollers = self.child.question(&format!("pin {cpu}"))?;
        Ok(())
    }

    /// The threads that were pinned so.
    pub(super) fn pollers(&self) -> &[u32] {
        &self.pollers
    }

    /// How often it was killed so far.
    pub(super) fn kills(&mut self) -> anyhow::Result<Kills> {
        self.child.question("kills")
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A process beside the one that is measured.
struct Companion {
    child: Child,
    beside: Beside,
    counters: PathBuf,
}

/// Processes beside the one that is measured; dropping this ends them.
pub(super) struct Companions {
    children: Vec<Companion>,
    /// Who looks at what leaves the device, where one of them is hostile.
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
                    // Before anything that it is to see.
                    let what = "who looks at what leaves";
                    companions.watcher = Some(Child::start_ready(place, &Job::Watch, what)?);
                    Job::Hostile(HostileJob {
                        managed: managed.context("what is hostile needs a manager")?,
                        port,
                        attacks,
                    })
                }
                Beside::Serves(service) | Beside::Stopped(service) => {
                    // One embedded stack has the whole interface.
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

    /// Those that are to be stopped stand still from now on.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// What a hostile one has done so far, and what of that left the device.
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

    /// Steps of the one that computes, so far; zero where there is none.
    pub(super) fn steps(&mut self) -> anyhow::Result<u64> {
        let mut children = self.children.iter_mut();
        let computing = children.find(|it| matches!(it.beside, Beside::Computes(_)));
        computing.map_or(Ok(0), |it| it.child.steps())
    }

    /// Datagrams that each has received so far; zero of one without a service.
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
            // The worker does it itself unless it had to be killed.
            let _ = std::fs::remove_file(counters);
        }
        // Who stands still does not end in order.
        let _ = self.signal(Signal::CONT);
    }
}
