//! The process that controls circuits, the path of calls, and everything that must run
//! for a caller.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::{TIMEOUT, calls};
use crate::bench::{Bench, Manager};
use crate::testbed::{CLIENT, CLIENT_INTERFACE, SERVER, SERVER_INTERFACE};
use crate::worker::{
    CALLED, CALLER, CallsJob, CallsOver, CallsReport, CallsRole, Child, Cpu, Job, ManagerAtm, PAIR,
    Place, scratch,
};

/// The process that controls the circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    /// Each end's process.
    InProcess,
    /// A manager of one thread for each interface.
    Manager,
    /// A manager with one thread for each activity.
    Threads,
}

impl Plane {
    /// Returns its system's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Plane::InProcess => super::IN_PROCESS,
            Plane::Manager => "tidewalld",
            Plane::Threads => "tidewalld --atm-threads",
        }
    }
}

/// The path of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From one application of a manager to another.
    Local,
    /// A link.
    Link,
    /// A link, a cell switch and another link.
    Switch,
}

/// Everything that calls need beside the caller. The process that controls circuits ends
/// last.
pub(super) struct Parties {
    called: Child,
    _switch: Option<Child>,
    /// The managers, the caller's first.
    managers: Vec<Manager>,
    plane: Plane,
    way: Way,
}

impl Parties {
    /// Starts them. `nice`: the priority of the caller's manager. For a local call all
    /// run on one processor, as on the paper's hosts; otherwise each end has its own.
    pub(super) fn start(bench: &Bench, plane: Plane, way: Way, nice: i32) -> anyhow::Result<Self> {
        let place = server(bench);
        let switch = (way == Way::Switch).then(|| switch(bench)).transpose()?;
        let mut managers = Vec::new();
        if plane != Plane::InProcess {
            let [_, (far, [a, b, c])] = PAIR;
            let atm = |interface: &str, next_hop, number: &dyn ToString, nice| ManagerAtm {
                interface: interface.to_owned(),
                next_hop,
                number: number.to_string(),
                network_side: interface == SERVER_INTERFACE,
                threads: plane == Plane::Threads,
                nice,
            };
            if way != Way::Local {
                let atm = atm(CLIENT_INTERFACE, SERVER.0, &CALLER, nice);
                managers.push(Manager::of_circuits(client(bench), true, atm)?);
            }
            let (atm, is_direct) = match way {
                Way::Local => (atm(SERVER_INTERFACE, CLIENT.0, &CALLED, nice), false),
                Way::Link => (atm(SERVER_INTERFACE, CLIENT.0, &CALLED, 0), true),
                Way::Switch => (atm(far, Ipv4Addr::new(a, b, c, 2), &CALLED, 0), true),
            };
            managers.push(Manager::of_circuits(place, is_direct, atm)?);
        }
        let over = match (managers.last(), way) {
            (Some(manager), Way::Local) => CallsOver::Managed(manager.of_application(1)),
            (Some(manager), _) => CallsOver::Managed(manager.of_application(0)),
            (None, Way::Switch) => CallsOver::Switched,
            (None, _) => CallsOver::InProcess,
        };
        Ok(Parties {
            called: super::called(bench, over)?,
            _switch: switch,
            managers,
            plane,
            way,
        })
    }

    /// Returns a caller's job for this long, in a closed loop.
    pub(super) fn job(&self, time: Duration) -> CallsJob {
        let over = match (self.managers.first(), self.way) {
            (Some(manager), _) => CallsOver::Managed(manager.of_application(0)),
            (None, Way::Switch) => CallsOver::Switched,
            (None, _) => CallsOver::InProcess,
        };
        calls(CallsRole::Caller, over, time)
    }

    /// Returns the place where the caller runs.
    pub(super) fn place<'b>(&self, bench: &'b Bench) -> Place<'b> {
        match (self.way, self.plane) {
            (Way::Local, _) => server(bench),
            _ => client(bench),
        }
    }

    /// Calls; runs `measuring` when measuring begins.
    pub(super) fn call(
        &mut self,
        bench: &Bench,
        job: &CallsJob,
        measuring: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<CallsReport> {
        let place = self.place(bench);
        let job_time = Duration::from_millis(job.time_ms.into());
        let mut child = Child::start_ready(place, &Job::Calls(job.clone()), "the caller")?;
        measuring(self)?;
        Ok(serde_json::from_str(&child.line(job_time + TIMEOUT)?)?)
    }

    /// Returns the process that controls the called end's circuits.
    pub(super) fn controller(&mut self) -> anyhow::Result<u32> {
        match self.managers.last_mut() {
            Some(manager) => manager.process(),
            None => Ok(self.called.process()),
        }
    }

    /// Returns the CPU cost of its threads so far.
    pub(super) fn controller_cpu(&mut self) -> anyhow::Result<Cpu> {
        match self.managers.last_mut() {
            Some(manager) => manager.cpu(),
            None => self.called.cpu(),
        }
    }
}

/// Makes the client's interface deliver kernel-bound frames at once, including those of
/// its manager's signalling. The test bed delays them, so that a load's sender has its
/// processor to itself.
pub(super) fn interrupt_at_once(bench: &Bench) -> anyhow::Result<()> {
    let script = format!(
        "cd /sys/class/net/{CLIENT_INTERFACE}; echo 0 > napi_defer_hard_irqs; \
         echo 0 > gro_flush_timeout"
    );
    bench.testbed.in_client(&["sh", "-ec", &script]).map(drop)
}

/// Returns the server's namespace and processor.
pub(super) fn server(bench: &Bench) -> Place<'_> {
    Place {
        namespace: bench.testbed.server(),
        cpu: bench.testbed.config().server_cpu,
    }
}

/// Returns the client's.
pub(super) fn client(bench: &Bench) -> Place<'_> {
    Place {
        namespace: bench.testbed.client(),
        cpu: bench.testbed.config().client_cpu,
    }
}

/// Starts a cell switch between the server's interface and the first of the pair.
fn switch(bench: &Bench) -> anyhow::Result<Child> {
    let [(out, [a, b, c]), _] = PAIR;
    let file = scratch("cells");
    let port = |interface: &str, next_hop: &str, end| {
        format!(
            "[[port]]\ninterface = '{interface}'\nnext-hop = '{next_hop}'\n\
             signalling = 'network'\nnumbers = ['47.0005.0{end}']\n"
        )
    };
    let ports = [
        port(SERVER_INTERFACE, &CLIENT.0.to_string(), 1),
        port(out, &format!("{a}.{b}.{c}.2"), 2),
    ];
    fs::write(&file, ports.concat())?;
    let started = super::command(server(bench), &format!("atm switch {}", file.display()));
    let _ = fs::remove_file(&file);
    started
}
