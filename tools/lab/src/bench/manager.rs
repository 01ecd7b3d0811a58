//! A manager of the server's interface, and the applications that it has beside the one
//! that is measured.

use std::path::PathBuf;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

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
        Ok(Manager { child, socket })
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
        let _: usize = self.child.question(&format!("pin {cpu}"))?;
        Ok(())
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

/// Applications beside the one that is measured; dropping this ends them.
pub(super) struct Companions {
    children: Vec<(Child, Beside)>,
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
            let manager = manager.context("applications side by side need a manager")?;
            let config = testbed.config();
            let place = Place {
                namespace: testbed.server(),
                cpu: config.server_cpu,
            };
            let managed = manager.of_application(number + 1);
            let job = match *beside {
                Beside::Hostile { port, attacks } => {
                    let place = Place {
                        namespace: testbed.client(),
                        cpu: config.client_cpu,
                    };
                    // Before anything that it is to see.
                    let what = "who looks at what leaves";
                    companions.watcher = Some(Child::start_ready(place, &Job::Watch, what)?);
                    Job::Hostile(HostileJob {
                        managed,
                        port,
                        attacks,
                    })
                }
                Beside::Serves(service) | Beside::Stopped(service) => {
                    Job::Service(Box::new(ServiceJob {
                        setup: Setup {
                            services: vec![service],
                            tcp: None,
                            beside: Vec::new(),
                            ..setup.clone()
                        },
                        queues: config.queues,
                        cpu: config.server_cpu,
                        counters: scratch("counters"),
                        watcher_cpu: Some(config.client_cpu),
                        managed: Some(managed),
                        steering: None,
                    }))
                }
            };
            let child = Child::start_ready(place, &job, "an application beside it")?;
            companions.children.push((child, beside.clone()));
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
        let hostile = children.find(|(_, beside)| matches!(beside, Beside::Hostile { .. }));
        match (hostile, &mut self.watcher) {
            (Some((child, _)), Some(watcher)) => {
                let attacks = child.question("attacks")?;
                Ok(Some((attacks, watcher.question("seen")?)))
            }
            _ => Ok(None),
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        for (child, beside) in &self.children {
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
        // Who stands still does not end in order.
        let _ = self.signal(Signal::CONT);
    }
}
