//! Workers: the processes inside a test bed.
//!
//! The lab starts its own program again, in a namespace and on a processor, with the
//! hidden subcommand `lab-worker` and a [`Job`] as JSON.
//!
//! - A service worker prints `ready`, answers each line `account` or `cpu` on its
//!   standard input with a line of JSON, and ends when that input ends or on SIGTERM.
//! - A load worker runs its load, prints `measuring` when it begins to measure, and a
//!   [`LoadOutcome`] at the end.
//! - A worker that holds connections prints `ready`, then their number, and ends with its
//!   input.

mod bare;
mod benchmark;
mod bridging;
mod calls;
mod child;
mod cpu;
mod datagrams;
pub mod flows;
mod forwarding;
mod frames;
mod hold;
mod hostile;
mod load;
mod manager;
mod own;
mod program;
mod segments;
mod service;
mod settings;
mod setups;
mod splicing;
mod splitting;
mod start;
mod storage;
mod streams;
mod switching;
mod tcp;
mod usage;
mod waiting;
mod work;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal, setpriority_process, setsid};
use serde::{Deserialize, Serialize};
use tidewall_load::{IdleSpec, Latency, LoadReport, LoadSpec, PingCounts};
use tidewall_service::ServiceSpec;
use tidewall_service::http;
use tidewall_service::http::proxy;
use tidewall_service::linux;

use crate::bridge;
use crate::system::{Control, System};

pub use benchmark::BenchmarkJob;
pub(crate) use calls::{CALLED, CALLER, CallsReport, UNREAD};
pub use calls::{CallsJob, CallsOver, CallsRole, PAIR};
pub(crate) use child::{Child, Place, run_load, scratch, scratch_directory};
pub(crate) use cpu::{Cpu, Spent};
pub use datagrams::DatagramsJob;
pub use forwarding::{ForwardJob, ForwardReport, ForwardSide};
pub use frames::{FrameJob, FrameRole, FrameSegment};
pub use hostile::HostileJob;
pub(crate) use hostile::{Attacks, Seen};
pub(crate) use manager::{Kills, program as manager_program};
pub use manager::{Managed, ManagerAtm, ManagerJob};
pub use program::Program;
pub(crate) use program::{KEY, NAME, VALUE};
pub use segments::{SegmentCounts, SegmentJob};
pub(crate) use service::{Account, Drops};
pub use splicing::SpliceJob;
pub use splitting::{SplitJob, SplitWaiting};
pub use start::StartJob;
pub(crate) use start::Started;
pub(crate) use storage::BLOCK;
pub use storage::{Mix, Responses, StorageJob, StorageRole};
pub use switching::{SwitchJob, SwitchModule};
pub(crate) use usage::{Times, ran_by, waited};
pub use usage::{Usage, Watch};
pub use waiting::Waiting;

/// The job of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Serve.
    Service(Box<ServiceJob>),
    /// Run a load.
    Load(Box<LoadJob>),
    /// Open connections and keep them until the standard input ends.
    Hold(IdleSpec),
    /// Drop packets for [`NOWHERE`](crate::testbed::NOWHERE) at the client's interface,
    /// until the standard input ends.
    XdpSink,
    /// Limit the SYNs per second to each port at the server's interface, until the
    /// standard input ends.
    SynLimit(u32),
    /// Allow event loops to suspend the interrupts of the server's interface.
    Suspend,
    /// Forward between interfaces according to the specification, until asked for the
    /// report or the standard input ends.
    Bridge(bridge::Spec),
    /// Only forward between two interfaces, until asked for the report or the standard
    /// input ends.
    Forward(ForwardJob),
    /// Be an end of connections of frames.
    Frames(FrameJob),
    /// Be both ends of connections of small frames, each in its own segment.
    Segments(SegmentJob),
    /// Be an end of a storage service over frames.
    Storage(StorageJob),
    /// Be a proxy of connections of frames.
    Split(SplitJob),
    /// Be a proxy that examines no byte.
    Splice(SpliceJob),
    /// Run a third-party program at a port.
    Program(Program, u16),
    /// Be an ordinary program of datagram sockets.
    Datagrams(DatagramsJob),
    /// Start a program and wait for its output, and for its end.
    Start(StartJob),
    /// Call, or be called.
    Calls(CallsJob),
    /// Run a shell pipeline repeatedly, until the standard input ends.
    Pipeline,
    /// Run another command of this program.
    Own(Vec<String>),
    /// Run `redis-benchmark`.
    Benchmark(BenchmarkJob),
    /// Be a transport switch.
    Switch(SwitchJob),
    /// Serve or fetch bulk and objects; true: ahead of everything else on the machine.
    Flow(flows::FlowJob, bool),
    /// Run a manager of the server's interface, until the standard input ends.
    Manager(ManagerJob),
    /// Become that manager.
    Daemon(ManagerJob),
    /// Compute over this many bytes of memory, until the standard input ends.
    Compute(usize),
    /// Be an application of the manager that does its worst, until the standard input
    /// ends.
    Hostile(HostileJob),
    /// Examine the frames that arrive at the client, until the standard input ends.
    Watch,
    /// Use up idle CPU time (nice 19), until the standard input ends: LRP's background
    /// processes, which keep the processor out of its idle states.
    Spin,
}

/// A service on a system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// How datagrams are received from a socket under Linux.
    pub receive: Option<linux::Receive>,
    /// Busy waiting before sleeping, µs; `None`: the system's default.
    pub spin: Option<u32>,
    /// Receive control; `None`: the system's default. Linux has it in its interface.
    pub control: Option<Control>,
    /// Traffic classes of a stack, queue by queue; none: all queues are equal.
    pub classes: Vec<ClassSpec>,
    /// The services, highest priority first.
    pub services: Vec<ServiceSpec>,
    /// The services use circuits 0.PORT instead of UDP ports.
    #[serde(default)]
    pub circuits: bool,
    /// The TCP service, instead of the services.
    pub tcp: Option<TcpSpec>,
    /// Each service has its own thread, as if it were a process. One more thread only
    /// computes, over this many bytes of memory: LRP's worker.
    pub compute: Option<usize>,
    /// Further processes on the services' processor: applications of the same manager,
    /// each with its own user, or of the kernel's sockets.
    pub beside: Vec<Beside>,
    /// Interval at which the manager is killed and restarted, ms.
    pub kill_manager_ms: Option<u32>,
}

/// An application beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// It serves.
    Serves(ServiceSpec),
    /// It stands still (SIGSTOP) once it could serve: it neither polls nor receives.
    Stopped(ServiceSpec),
    /// It has no socket and computes over this many bytes of memory: LRP's worker.
    Computes(usize),
    /// It owns this port, and does its worst or, for comparison, nothing.
    Hostile {
        /// UDP.
        port: u16,
        /// Whether it attacks.
        attacks: bool,
    },
}

impl Beside {
    /// Returns its service, if it has one.
    pub fn service(&self) -> Option<ServiceSpec> {
        match self {
            Beside::Serves(service) | Beside::Stopped(service) => Some(*service),
            Beside::Computes(_) | Beside::Hostile { .. } => None,
        }
    }
}

/// A service to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceJob {
    /// The service, and its system.
    pub setup: Setup,
    /// Queues of the interface that a stack takes.
    pub queues: u32,
    /// Processor of the threads of host architectures.
    pub cpu: usize,
    /// Path of the services' counters.
    pub counters: PathBuf,
    /// Processor of the thread that answers the lab: not the services', which may be
    /// livelocked. `None`: the services'.
    pub watcher_cpu: Option<usize>,
    /// The manager, if it owns the device.
    #[serde(default)]
    pub managed: Option<Managed>,
    /// Namespace of the veth's other end, if that steers.
    #[serde(default)]
    pub steering: Option<String>,
}

/// The kind of a TCP service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpKind {
    /// Sends the received bytes back (RFC 862).
    Echo,
    /// Discards the received bytes (RFC 863).
    Discard,
    /// Serves the files of a directory by HTTP.
    Http {
        /// The directory.
        root: PathBuf,
        /// Floating-point multiplications for each request.
        work: u32,
        /// The limits of a client.
        #[serde(default)]
        limits: http::Limits,
    },
    /// A forwarding proxy.
    Proxy(proxy::Spec),
    /// A third-party program, on Linux or by `tidewall run` ([`System::Run`]).
    Program(Program),
}

/// A service over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSpec {
    /// Its kind.
    pub kind: TcpKind,
    /// Its port.
    pub port: u16,
    /// Ports of the same program that listen and never accept.
    #[serde(default)]
    pub dummies: Vec<u16>,
    /// UDP ports of the same program that it never receives from.
    #[serde(default)]
    pub unread: Vec<u16>,
    /// How it waits for its connections.
    #[serde(default)]
    pub waiting: Waiting,
    /// Count the CPU time of the calls that wait and of those that open connections, if
    /// sampling is impossible.
    #[serde(default)]
    pub timed: bool,
}

impl TcpSpec {
    /// Creates a service at `port` only, with the default way of waiting.
    pub fn new(kind: TcpKind, port: u16) -> Self {
        TcpSpec {
            kind,
            port,
            dummies: Vec::new(),
            unread: Vec::new(),
            waiting: Waiting::Usual,
            timed: false,
        }
    }

    /// Returns its name in results, if that is not the system's name.
    pub fn name(&self, on_linux: bool) -> Option<&'static str> {
        match &self.kind {
            TcpKind::Program(program) => (self.waiting == Waiting::Named).then(|| program.name()),
            _ => self.waiting.name(on_linux),
        }
    }
}

/// A traffic class of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSpec {
    /// Local ports whose datagrams belong to it.
    pub ports: Vec<u16>,
    /// Largest Bp of its queue, frames per round; `None`: the stack's.
    #[serde(default)]
    pub budget: Option<u32>,
}

/// A load to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadJob {
    /// The load.
    pub spec: LoadSpec,
    /// Counters of the service, sampled while the load is measured.
    pub counters: Option<PathBuf>,
    /// The service's process and processor, whose time is sampled then, too.
    #[serde(default)]
    pub watch: Option<Watch>,
    /// Interval between samples, ms; 0: the default of 200.
    #[serde(default)]
    pub every_ms: u32,
    /// Keep every sample.
    #[serde(default)]
    pub trace: bool,
}

impl LoadJob {
    /// Returns the job of an unobserved load.
    pub(crate) fn unwatched(spec: LoadSpec) -> Self {
        LoadJob {
            spec,
            counters: None,
            watch: None,
            every_ms: 0,
            trace: false,
        }
    }
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadOutcome {
    /// The generator's own report.
    pub report: LoadReport,
    /// Datagrams/s that each service received while the load was measured, in the order
    /// of the services.
    pub delivered: Vec<f64>,
    /// Usage of the watched process and processor in the same time.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Every sample, warm-up included, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<TracePoint>,
}

/// One sample of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracePoint {
    /// Seconds since the run began.
    pub at: f64,
    /// Datagrams that each service has received so far.
    pub received: Vec<u64>,
    /// Requests since the previous sample.
    pub ping: Option<PingCounts>,
    /// Their round trips.
    pub latency: Option<Latency>,
}

/// Priority of the workers' sessions (sched(7), autogrouping), as a nice value.
const SESSION_NICE: i32 = -20;

/// Returns true if a session's tasks share the weight of one.
fn sessions_are_grouped() -> bool {
    let enabled = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    enabled.is_ok_and(|enabled| enabled.trim() == "1")
}

/// Runs the hidden subcommand `lab-worker`.
///
/// # Errors
/// An unreadable job; the error of the stack or the load.
pub fn worker_main(json: &str) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(json).context("this is no job of the lab's")?;
    // A separate session: a Ctrl-C at the terminal reaches only the lab, which then ends
    // its workers in order. Fails only for a process group leader, which is separate
    // already.
    let _ = setsid();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // With automatic grouping, a session's share of the processor is that of one task;
    // the weights must be those of the tasks. Not every kernel has it.
    let _ = fs::write("/proc/self/autogroup", SESSION_NICE.to_string());
    match job {
        Job::Service(job) => service::serve(&job),
        Job::Load(job) => load::run(&job),
        Job::Hold(spec) => hold::run(&spec),
        Job::XdpSink => settings::xdp_sink(),
        Job::SynLimit(per_second) => settings::limit_syns(per_second),
        Job::Suspend => settings::suspend_interrupts(),
        Job::Bridge(spec) => bridging::run(spec),
        Job::Forward(job) => forwarding::run(&job),
        Job::Frames(job) => frames::run(&job),
        Job::Segments(job) => segments::run(&job),
        Job::Storage(job) => storage::run(&job),
        Job::Split(job) => splitting::run(&job),
        Job::Splice(job) => splicing::run(&job),
        Job::Program(program, port) => program::run(&program, port),
        Job::Datagrams(job) => job.run(),
        Job::Calls(job) => calls::run(&job),
        Job::Pipeline => pipeline(),
        Job::Own(arguments) => own::run(&arguments),
        Job::Start(job) => start::run(&job),
        Job::Benchmark(job) => benchmark::run(&job),
        Job::Switch(job) => switching::run(&job),
        Job::Flow(job, ahead) => flows::run(&job, ahead),
        Job::Manager(job) => manager::keep(&job),
        Job::Daemon(job) => manager::become_daemon(&job),
        Job::Compute(bytes) => work::compute(bytes),
        Job::Hostile(job) => hostile::attack(&job),
        Job::Watch => hostile::watch(),
        Job::Spin => spin(),
    }
}

/// Makes this process compete with that nice value, whether sessions are grouped or not.
fn become_nice(nice: i32) -> anyhow::Result<()> {
    setpriority_process(None, nice)?;
    // Not every kernel has it.
    let _ = fs::write("/proc/self/autogroup", nice.to_string());
    Ok(())
}

/// Acts as [`become_nice`]; under -20: SCHED_FIFO, with the lowest priority there.
fn compete_as(nice: i32) -> anyhow::Result<()> {
    match nice {
        nice @ -20.. => become_nice(nice),
        _ => Ok(tidewall_sys::set_fifo(1)?),
    }
}

/// Runs the competitor of a manager in Black and Crosby's Figure 2: processing by
/// programs and by the kernel.
fn pipeline() -> anyhow::Result<()> {
    const PIPELINE: &str =
        "while :; do cat /proc/kallsyms | tr a-z A-Z | sort | wc >/dev/null; done";
    become_nice(0)?;
    let mut shell = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "sh", "-c", PIPELINE])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot run a shell")?;
    println!("ready");
    let ended = service::until_input_ends(|_| Ok(()));
    shell.kill()?;
    shell.wait()?;
    ended
}

fn spin() -> anyhow::Result<()> {
    setpriority_process(None, 19)?;
    println!("ready");
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    service::until_input_ends(|_| Ok(()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewall::tuning::PolicyKind;
    use tidewall_load::PingSpec;
    use tidewall_service::Kind;

    use super::*;

    #[test]
    fn jobs_survive_the_command_line() {
        let service = |setup| {
            Job::Service(Box::new(ServiceJob {
                setup,
                queues: 1,
                cpu: 1,
                counters: "/dev/shm/x".into(),
                watcher_cpu: Some(0),
                managed: Some(Managed {
                    socket: "/dev/shm/y".into(),
                    user: 1,
                }),
                steering: None,
            }))
        };
        let over_tcp = |kind| {
            service(Setup {
                tcp: Some(TcpSpec::new(kind, 80)),
                ..Setup::default()
            })
        };
        let flow = |job| Job::Flow(job, true);
        let origin = "10.77.0.1:8080".parse().unwrap();
        let jobs = [
            Job::Pipeline,
            Job::Calls(CallsJob {
                role: CallsRole::Keeper(3),
                over: CallsOver::Managed(Managed {
                    socket: "/dev/shm/x".into(),
                    user: 1,
                }),
                time_ms: 10,
                pause_us: 5,
                nice: -6,
            }),
            service(Setup {
                circuits: true,
                system: System::Generic,
                receive: Some(linux::Receive::Recvmmsg),
                spin: Some(20),
                control: Some(Control {
                    policy: PolicyKind::QaPolling,
                    budget: Some(300),
                    interval_us: None,
                    receive_limit: Some(1024),
                }),
                classes: vec![ClassSpec {
                    ports: vec![7],
                    budget: Some(64),
                }],
                services: vec![ServiceSpec {
                    kind: Kind::Echo,
                    port: 7,
                    work: 200,
                }],
                tcp: Some(TcpSpec {
                    kind: TcpKind::Http {
                        root: "/tmp".into(),
                        work: 7,
                        limits: http::Limits::default(),
                    },
                    port: 80,
                    dummies: vec![81],
                    unread: vec![9],
                    waiting: Waiting::SelectLinear,
                    timed: true,
                }),
                compute: Some(4096),
                beside: vec![Beside::Stopped(ServiceSpec {
                    kind: Kind::Discard,
                    port: 10,
                    work: 0,
                })],
                kill_manager_ms: Some(1_000),
            }),
            service(Setup::default()),
            over_tcp(TcpKind::Proxy(proxy::Spec::new(80, Some(origin)))),
            over_tcp(TcpKind::Program(Program::Squid { origin })),
            Job::Load(Box::new(LoadJob {
                spec: LoadSpec {
                    ping: Some(PingSpec::new("10.77.0.2:7".parse().unwrap())),
                    warm_up: Duration::from_millis(100),
                    cpu: Some(0),
                    ..LoadSpec::new(Duration::from_millis(500))
                },
                counters: None,
                watch: Some(Watch { process: 1, cpu: 1 }),
                every_ms: 5,
                trace: true,
            })),
            Job::Hold(IdleSpec::new("10.77.0.2:80".parse().unwrap(), 100)),
            Job::XdpSink,
            Job::Compute(4096),
            Job::Suspend,
            Job::Manager(ManagerJob {
                program: "/usr/sbin/tidewalld".into(),
                socket: "/dev/shm/y".into(),
                trust: Some(1),
                kill_every_ms: Some(1_000),
                atm: Some(ManagerAtm {
                    interface: "tw-a".into(),
                    next_hop: [10, 77, 0, 2].into(),
                    number: "47.0005".into(),
                    network_side: true,
                    threads: true,
                    nice: -21,
                }),
            }),
            Job::SynLimit(10_000),
            Job::Flow(
                flows::FlowJob::Server(flows::FlowServer {
                    address: "10.78.0.2:1".parse().unwrap(),
                    host: flows::FlowHost::Tap {
                        interface: "tw-t".into(),
                    },
                    write: Some(1024),
                }),
                false,
            ),
            Job::Bridge(bridge::Spec {
                left: "tw-ma".into(),
                right: vec!["tw-mb".into()],
                from_left: bridge::Impair {
                    rate: Some(1_000_000),
                    loss: 0.01,
                    queue: Some(75_000),
                    ..bridge::Impair::default()
                },
                from_right: bridge::Impair::default(),
                sharing: bridge::Sharing::Flow,
                seed: u64::MAX,
            }),
            flow(flows::FlowJob::Flows(flows::FlowClient {
                flows: vec![flows::FlowSpec {
                    server: "10.77.0.3:5001".parse().unwrap(),
                    port: 10_000,
                    way: flows::Way::Give,
                    after_ms: 10,
                    duration_ms: 1_000,
                }],
                congestion: "cubic".into(),
            })),
            flow(flows::FlowJob::Objects(flows::ObjectClient {
                server: "10.77.0.3:5001".parse().unwrap(),
                first_port: 10_000,
                count: 600,
                at_once: 8,
                bytes: 100_000,
                congestion: "cubic".into(),
            })),
            Job::Frames(FrameJob {
                role: FrameRole::Members(vec![("10.79.1.2:6001".parse().unwrap(), 750)]),
                gives: Some(FrameSegment {
                    frames: 2,
                    size: 700,
                }),
            }),
            Job::Split(SplitJob {
                listen: "10.79.0.1:6000".parse().unwrap(),
                members: vec!["10.79.1.2:6001".parse().unwrap()],
                waiting: SplitWaiting::Select,
                by_block: true,
            }),
            Job::Splice(SpliceJob {
                listen: "10.79.0.1:6000".parse().unwrap(),
                members: vec!["10.79.1.2:6001".parse().unwrap()],
            }),
            Job::Switch(SwitchJob {
                interfaces: ["tw-i".into(), "tw-o".into()],
                address: "10.79.0.99:6000".parse().unwrap(),
                members: vec!["10.79.1.2:6001".parse().unwrap()],
                local: "10.79.1.1".parse().unwrap(),
                segment: 1460,
                module: SwitchModule::Speed,
                ring: Some(992),
                copies: 2,
                sleeps: true,
            }),
            Job::Storage(StorageJob {
                role: StorageRole::Client {
                    server: "10.79.0.99:6000".parse().unwrap(),
                    connections: 8,
                    outstanding: 16,
                    mix: Mix::Web,
                },
                piece: 2736,
            }),
            Job::Program(
                Program::Haproxy {
                    servers: vec!["10.79.1.2:6001".parse().unwrap()],
                },
                6000,
            ),
            Job::Start(StartJob {
                command: vec!["curl".to_owned()],
                by_run: true,
            }),
            Job::Spin,
        ];
        for job in jobs {
            let json = serde_json::to_string(&job).unwrap();
            assert_eq!(serde_json::from_str::<Job>(&json).unwrap(), job);
        }
    }

    #[test]
    fn what_is_no_job_is_refused() {
        let error = worker_main("{}").unwrap_err().to_string();
        assert!(error.contains("no job"), "{error}");
    }
}
