//! The worker that runs a manager (`tidewalld`) of the server's interface, and the
//! parameters of the manager's applications.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::process::{
    Gid, Pid, Signal, Uid, getpriority_process, kill_process, set_parent_process_death_signal,
    setpriority_process,
};
use rustix::thread::{
    CpuSet, sched_setaffinity, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};
use tidewall_manager::connection::Connection;
use tidewall_sys::netlink::Netdev;

use super::service::until_input_ends;
use super::{Cpu, Job};
use crate::command;
use crate::testbed::SERVER_INTERFACE;

/// Longest time until a manager listens.
const START: Duration = Duration::from_secs(10);
/// How often that is checked.
const LOOK: Duration = Duration::from_millis(1);

/// The job of a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerJob {
    /// `tidewalld`.
    pub program: PathBuf,
    /// Socket on which it listens.
    pub socket: PathBuf,
    /// User that may own the device's queues; `None`: no user, and every application has
    /// a virtual pair.
    pub trust: Option<u32>,
    /// Interval at which it is killed and restarted, ms.
    pub kill_every_ms: Option<u32>,
    /// Its interface, if not the server's, and the settings for ATM.
    pub atm: Option<ManagerAtm>,
}

/// A manager of circuits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerAtm {
    /// The interface.
    pub interface: String,
    /// The neighbour at the other end of its circuits.
    pub next_hop: Ipv4Addr,
    /// The interface's NSAP.
    pub number: String,
    /// Whether it is the network side of the link.
    pub network_side: bool,
    /// Whether it has a thread for each activity.
    pub threads: bool,
    /// Its nice value; under -20: SCHED_FIFO, with the lowest priority there.
    pub nice: i32,
}

/// An application's manager and user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Managed {
    /// Socket on which the manager listens.
    pub socket: PathBuf,
    /// The application's user and group, without any privilege.
    pub user: u32,
}

impl Managed {
    /// Switches this thread, and those that it starts, to that user.
    pub(super) fn become_user(&self) -> anyhow::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.user));
        set_thread_groups(&[]).context("cannot leave my groups")?;
        set_thread_res_gid(group, group, group).context("cannot change my group")?;
        set_thread_res_uid(user, user, user).context("cannot change my user")?;
        // A change of user clears it.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        Ok(())
    }
}

/// Kills of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kills {
    /// Number of kills, each with a successor that listens.
    pub(crate) kills: u64,
    /// Longest time without a manager, ms.
    pub(crate) longest_ms: f64,
}

/// Runs a manager with its own bpffs, and removes everything at the end. Answers the
/// lines `kills`, `process` and `cpu` with the manager's values. The line `pin CPU` pins
/// the threads that poll the interface to that processor.
pub(super) fn keep(job: &ManagerJob) -> anyhow::Result<()> {
    // The worker ends with its input, but only after everything has been returned.
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, asked.clone())?;
    }
    // `ip netns exec` has created a mount namespace for this process: it disappears with
    // the process, and so do the pins.
    let at = "/sys/fs/bpf";
    command::run("mount", &["-t", "bpf", "tw-bpf", at]).context("a bpffs is needed")?;
    let kills = Arc::new(Mutex::new(Kills::default()));
    let process = Arc::new(AtomicU32::new(0));
    let (stop, stopped) = channel();
    let (say, ready) = channel();
    let keeper = {
        let (job, kills, process) = (job.clone(), kills.clone(), process.clone());
        // The daemon dies with the thread that starts it.
        thread::spawn(move || {
            look_after(&job, &kills, &stopped, |daemon| {
                process.store(daemon, Ordering::Relaxed);
                let _ = say.send(());
            })
        })
    };
    if ready.recv().is_ok() {
        println!("ready");
        until_input_ends(|line| {
            if line == "kills" {
                let kills = *kills.lock().unwrap_or_else(PoisonError::into_inner);
                println!("{}", serde_json::to_string(&kills)?);
            } else if line == "process" {
                println!("{}", process.load(Ordering::Relaxed));
            } else if line == "cpu" {
                let cpu = Cpu::of(process.load(Ordering::Relaxed), None);
                println!("{}", serde_json::to_string(&cpu)?);
            } else if let Some(cpu) = line.strip_prefix("pin ") {
                println!("{}", serde_json::to_string(&pin_pollers(cpu.parse()?)?)?);
            }
            Ok(())
        })?;
    }
    drop(stop);
    keeper
        .join()
        .map_err(|_| anyhow!("the keeper of the manager panicked"))??;
    let status = command(job).arg("--remove").status()?;
    if !status.success() {
        bail!("tidewalld --remove: {status}");
    }
    Ok(())
}

/// Runs the process that becomes the daemon, and so ends with its parent.
pub(super) fn become_daemon(job: &ManagerJob) -> anyhow::Result<()> {
    if let Some(atm) = &job.atm {
        super::compete_as(atm.nice)?;
    }
    Err(command(job).exec()).with_context(|| format!("cannot run {}", job.program.display()))
}

fn command(job: &ManagerJob) -> Command {
    let mut command = Command::new(&job.program);
    let interface = job
        .atm
        .as_ref()
        .map_or(SERVER_INTERFACE, |atm| &atm.interface);
    command
        .args(["--interface", interface, "--socket"])
        .arg(&job.socket);
    if let Some(atm) = &job.atm {
        let side = if atm.network_side { "network" } else { "user" };
        command
            .args(["--atm-next-hop", &atm.next_hop.to_string()])
            .args(["--atm-number", &atm.number, "--atm-side", side])
            .args(atm.threads.then_some("--atm-threads"));
    }
    match job.trust {
        Some(user) => command.args(["--trust", &user.to_string()]),
        None => command.args(["--private", "any", "--ports", "1-65535"]),
    };
    command
}

fn look_after(
    job: &ManagerJob,
    kills: &Mutex<Kills>,
    stopped: &Receiver<()>,
    ready: impl FnOnce(u32),
) -> anyhow::Result<()> {
    let mut daemon = start(job)?;
    ready(daemon.id());
    loop {
        let over = match job.kill_every_ms {
            None => stopped.recv().is_err(),
            Some(every) => {
                let wait = stopped.recv_timeout(Duration::from_millis(every.into()));
                wait == Err(RecvTimeoutError::Disconnected)
            }
        };
        if over {
            break;
        }
        let begun = Instant::now();
        daemon.kill()?;
        daemon.wait()?;
        daemon = start(job)?;
        let mut kills = kills.lock().unwrap_or_else(PoisonError::into_inner);
        kills.kills += 1;
        kills.longest_ms = kills.longest_ms.max(begun.elapsed().as_secs_f64() * 1e3);
    }
    kill_process(Pid::from_child(&daemon), Signal::TERM)?;
    daemon.wait()?;
    Ok(())
}

/// Starts it, and waits until it listens.
fn start(job: &ManagerJob) -> anyhow::Result<Child> {
    let own = std::env::current_exe().context("cannot find my own program")?;
    let mut daemon = Command::new(own)
        .args([
            "lab-worker",
            &serde_json::to_string(&Job::Daemon(job.clone()))?,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + START;
    while Connection::connect(&job.socket).is_err() {
        if let Some(status) = daemon.try_wait()? {
            bail!("tidewalld ended ({status})");
        }
        if Instant::now() > deadline {
            daemon.kill()?;
            bail!("tidewalld does not listen after {START:?}");
        }
        thread::sleep(LOOK);
    }
    Ok(daemon)
}

/// Pins the kernel threads that poll the interface to a processor; returns their process
/// ids.
fn pin_pollers(cpu: usize) -> anyhow::Result<Vec<u32>> {
    let index = tidewall_sys::interface::index(SERVER_INTERFACE)?;
    let mut set = CpuSet::new();
    set.set(cpu);
    let napis = Netdev::open()?.napi_states(index)?;
    let threads: Vec<u32> = napis.iter().filter_map(|napi| napi.thread).collect();
    for thread in threads.iter().filter_map(|&id| Pid::from_raw(id as i32)) {
        sched_setaffinity(Some(thread), &set).context("cannot pin the polling thread")?;
        // The workers' sessions are above all others. A kernel thread belongs to no
        // session, so it would be below them by more than its own priority implies.
        if super::sessions_are_grouped() {
            let nice = getpriority_process(Some(thread))? + super::SESSION_NICE;
            setpriority_process(Some(thread), nice.max(super::SESSION_NICE))
                .context("cannot change the polling thread's priority")?;
        }
    }
    Ok(threads)
}

/// Returns `tidewalld` beside this program, or from the search path.
///
/// # Errors
/// The remedy if there is none.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name("tidewalld"))
        .filter(|path: &PathBuf| Path::exists(path));
    match beside {
        Some(path) => Ok(path),
        None => command::absolute("tidewalld").map(PathBuf::from).context(
            "there is no tidewalld beside this program: cargo build --release -p tidewalld",
        ),
    }
}
