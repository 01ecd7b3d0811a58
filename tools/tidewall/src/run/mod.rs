//! `tidewall run`: the manager of one program, for as long as that runs.

mod executable;
mod library;
mod program;
mod report;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidewall_device::demux::layout::APPLICATIONS;
use tidewall_manager::XdpMode;
use tidewall_manager::connection::{Connection, Listener};
use tidewall_manager::daemon::direct::DirectDevice;
use tidewall_manager::daemon::log::{Level, Log};
use tidewall_manager::daemon::server::Server;
use tidewall_manager::daemon::{Limits, Trust};
use tidewall_manager::pinned::PinDirectory;
use tidewall_manager::places;
use tidewall_manager::view::View;
use tidewall_socket::control;
use tidewall_socket::tuning::PolicyKind;

use crate::end::{Failure, Outcome, check_interface};
use crate::serve::policy;
use program::Program;
use report::Report;

/// Variable by which the library learns of `--policy`.
const POLICY: &str = "TIDEWALL_POLICY";
/// What fails where signals cannot be caught.
const CATCHING: &str = "catching signals";

/// Run a program on Tidewall, unchanged, with a manager that lives as long as it does; nothing is installed.
///
/// A library (libtidewall.so, by LD_PRELOAD) takes the place of the C library's socket calls
/// in the program and what it starts; sockets that the interface does not reach stay with the
/// kernel. The manager (as tidewalld, docs/manager.md) is this process: it takes the interface,
/// starts the program, and lets it and whatever it starts join, also under another user id.
/// They find it by TIDEWALL_MANAGER. When the program ends, however it ends, the interface
/// is as before. Where a tidewalld has the interface, the program becomes that one's
/// application instead, if it trusts its user. Needs root: CAP_NET_ADMIN, CAP_NET_RAW,
/// CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    override_usage = "tidewall run [--interface IF] [--private] [--ports PORTS] [--policy NAME] [--xdp MODE] [--report] -- PROGRAM [ARGUMENT]...",
    after_help = "Examples:\n  tidewall run --interface eth1 -- redis-server --protected-mode no\n  \
    tidewall run --interface eth1 --report -- nginx -g 'daemon off; worker_processes 1;'\n  \
    tidewall run --interface eth1 -- setpriv --reuid 1000 --regid 1000 --clear-groups tidewall serve http /srv/www --port 8080\n  \
    tidewall run -- tidewall serve echo          as an application of the only tidewalld\n\n\
    Signals are passed on to the program. Killed itself by SIGKILL, it leaves the interface to the \
    program, which goes on; the next run on the interface, or tidewalld --interface IF --remove, gives \
    it back.\n\nWhat cannot work is said before the start, and all of the program then stays with the \
    kernel's sockets, behind the driver's limits for them: static programs, Go, musl, setuid and file \
    capabilities, 32 bits, an interface that is not there or has no address. \
    TIDEWALL_LIBRARY names another library; empty, it says that programs are written for Tidewall.\n\n\
    Exit codes: the program's; 128 and the signal's number if a signal ended it; 127 no such program; \
    126 it cannot be started; 1 what was changed could not be put back; 2 it could not begin."
)]
pub struct Arguments {
    /// Interface to take; may be left out where one tidewalld runs
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Let processes of the program join in private mode only: several at once, and only what is
    /// theirs to send leaves. Without it one of them at a time has the device's queues, by which it
    /// can send any frame
    #[arg(long)]
    private: bool,
    /// Ports that they may own, such as 7,8000-8100 [default: what bind(2) lets them have]
    #[arg(long, value_name = "PORTS", value_parser = ports)]
    ports: Option<Ports>,
    /// What decides how many frames a round takes and how often the device interrupts: interrupt,
    /// napi, on-off, aic, qapolling, rhip or adaptive (the default)
    #[arg(long, value_name = "NAME", value_parser = policy)]
    policy: Option<PolicyKind>,
    /// Where the driver program runs: native or generic [default: in the driver, or where that
    /// cannot, on hardware, generically]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
    /// At the end, say on standard error which sockets Tidewall had, and which stayed with the
    /// kernel and why
    #[arg(long)]
    report: bool,
    /// What to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<OsString>,
}

/// Ranges of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ports(Vec<RangeInclusive<u16>>);

/// `7`, `7,53` or `7,8000-8100`.
fn ports(text: &str) -> Result<Ports, String> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse().ok().filter(|&port: &u16| port > 0);
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges
        .map(Ports)
        .ok_or_else(|| "ports are 1 to 65535, as 7, 7,53 or 7,8000-8100".to_owned())
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let library = library::find()?;
    let report = arguments.report.then(Report::new).transpose();
    let report = report.map_err(|error| Failure::io("making a file for the report", &error))?;
    let (socket, interface) = match &arguments.interface {
        Some(interface) => (places::socket(interface), interface.clone()),
        None => only_manager()?,
    };
    let mut launch = Launch::new(arguments, &socket);
    let obstacle = match &library {
        Some(_) => elsewhere(&socket).or_else(|| library::obstacle(&arguments.program, &interface)),
        None => Some("there was no library".to_owned()),
    };
    match (&library, &obstacle) {
        (Some(library), None) => launch.put_library(library, report.as_ref()),
        (Some(_), Some(why)) => {
            eprintln!("tidewall: {why}\n  the program runs on the kernel's sockets");
        }
        // Said already, or wished.
        (None, _) => {}
    }
    let outcome = launch_on(arguments, launch, &interface, &socket);
    if let Some(report) = report {
        report.print(obstacle.as_deref());
    }
    outcome
}

fn launch_on(arguments: &Arguments, launch: Launch, interface: &str, socket: &Path) -> Outcome {
    if arguments.interface.is_none() {
        return join(arguments, launch, socket);
    }
    if check_interface(interface).is_err() {
        return ended(launch.supervise()?);
    }
    let pins = places::ephemeral_pins(interface);
    // What an earlier run left that was killed.
    remove_left(&pins, interface)?;
    if View::connect(socket).is_ok() {
        return join(arguments, launch, socket);
    }
    let code = manage(arguments, launch, interface, &pins, socket);
    let removed = remove_left(&pins, interface);
    let code = code?;
    removed?;
    ended(code)
}

/// Why the manager that listens is none for this program: interfaces of several network
/// namespaces may have one name, where these have one `/run`.
fn elsewhere(socket: &Path) -> Option<String> {
    let peer = Connection::connect(socket).and_then(|it| it.peer()).ok()?;
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let theirs = network(&peer.pid.to_string())?;
    (Some(theirs) != network("self")).then(|| {
        format!(
            "the manager at {} is of another network namespace: this one needs a {} of its own",
            socket.display(),
            places::SOCKETS
        )
    })
}

fn ended(code: u8) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(Failure::with_code(code, "")),
    }
}

/// Of those that listen.
fn only_manager() -> Result<(PathBuf, String), Failure> {
    let mut live: Vec<(PathBuf, String)> = (places::managers().into_iter())
        .filter(|(path, _)| View::connect(path).is_ok())
        .collect();
    match (live.pop(), live.is_empty()) {
        (Some(manager), true) => Ok(manager),
        (None, _) => Err(Failure::usage(
            "no tidewalld runs here: name the interface to take with --interface IF",
        )),
        (Some(_), false) => Err(Failure::usage(format!(
            "several managers run here ({}/*.{}): name the interface with --interface IF",
            places::SOCKETS,
            places::MANAGER
        ))),
    }
}

/// The program, before its start.
struct Launch {
    command: Command,
    /// Its end is waited for, also where there is no manager of its own.
    supervised: bool,
}

impl Launch {
    fn new(arguments: &Arguments, manager: &Path) -> Self {
        // One is required.
        let (program, words) = arguments.program.split_first().unzip();
        let mut command = Command::new(program.unwrap_or(&OsString::new()));
        command.args(words.unwrap_or_default());
        command.env(places::VARIABLE, manager);
        if let Some(policy) = arguments.policy {
            command.env(POLICY, policy.name());
        }
        Launch {
            command,
            supervised: arguments.report,
        }
    }

    fn put_library(&mut self, library: &Path, report: Option<&Report>) {
        library::put(&mut self.command, library);
        if let Some(report) = report {
            self.command.env(report::VARIABLE, report.path());
        }
    }

    /// Runs it to its end without a manager of its own; its exit code.
    fn supervise(mut self) -> Result<u8, Failure> {
        let program = Program::new().map_err(|error| Failure::io(CATCHING, &error))?;
        let running = program.start(&mut self.command);
        let running = running.map_err(|error| not_started(&self.command, &error))?;
        Ok(running.wait())
    }
}

/// As shells and env(1) say it.
fn not_started(command: &Command, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = command.get_program().display();
    Failure::with_code(code, format!("starting {program}: {error}"))
}

/// Becomes the program, as an application of a manager that is there.
fn join(arguments: &Arguments, mut launch: Launch, manager: &Path) -> Outcome {
    if arguments.private || arguments.ports.is_some() || arguments.xdp.is_some() {
        return Err(Failure::usage(format!(
            "a tidewalld listens at {}, and decides on modes and ports: leave --private, --ports and \
             --xdp out",
            manager.display()
        )));
    }
    if launch.supervised {
        return ended(launch.supervise()?);
    }
    let error = launch.command.exec();
    Err(not_started(&launch.command, &error))
}

fn remove_left(pins: &Path, interface: &str) -> Outcome {
    DirectDevice::remove_left(pins, interface).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => Failure::usage(format!(
            "another `tidewall run` has {interface} until its program ends"
        )),
        _ => Failure::io(
            &format!("giving {interface} back, which `tidewalld --interface {interface} --remove` does, too"),
            &error,
        ),
    })
}

/// Runs the program with a manager; its exit code. What was changed is left to
/// [`remove_left`].
fn manage(
    arguments: &Arguments,
    mut launch: Launch,
    interface: &str,
    pins: &Path,
    socket: &Path,
) -> Result<u8, Failure> {
    // From here on signals are for the program.
    let program = Program::new().map_err(|error| Failure::io(CATCHING, &error))?;
    let mut server = server(arguments, interface, pins, socket)
        .map_err(|error| Failure::io(&format!("taking over {interface}"), &error))?;
    // Who has the pins has the socket.
    let result = match program.start(&mut launch.command) {
        Ok(running) => {
            let ended = server.run(running.end().as_fd(), None, || ());
            if ended.is_err() {
                server.log_end(&ended);
                // The program goes on, and waits for no answer of a manager that has ended.
                drop(server);
            }
            Ok(running.wait())
        }
        Err(error) => Err(not_started(&launch.command, &error)),
    };
    let _ = fs::remove_file(socket);
    // What `tidewall stat` asks of the program's processes is left by those that were killed.
    let _ = control::live();
    result
}

fn server(
    arguments: &Arguments,
    interface: &str,
    pins: &Path,
    socket: &Path,
) -> io::Result<Server> {
    let directory = PinDirectory::take(pins)?;
    let expects = !arguments.private;
    let mut device = DirectDevice::open(directory, interface, arguments.xdp, expects)?;
    if arguments.private {
        device.offer_private()?;
    }
    fs::create_dir_all(places::SOCKETS)?;
    let listener = Listener::bind(socket)?;
    let mut limits = Limits::default();
    limits.program = Some(match arguments.private {
        true => Trust::Private,
        false => Trust::Direct,
    });
    limits.ports = arguments.ports.clone().map(|ports| ports.0);
    // There is nobody to share with.
    limits.applications_of_domain = APPLICATIONS;
    limits.clients_of_user = limits.clients;
    let mut server = Server::new(limits, device, listener, Log::of(Level::Warning))
        .inspect_err(|_| drop(fs::remove_file(socket)))?;
    server.set_ancestor(std::process::id());
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_and_ranges() {
        assert_eq!(ports("7").unwrap().0, [7..=7]);
        assert_eq!(ports("7,8000-8100").unwrap().0, [7..=7, 8000..=8100]);
        for wrong in ["", "0", "7,", "9-7", "65536", "a", "1-2-3", "-7"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
