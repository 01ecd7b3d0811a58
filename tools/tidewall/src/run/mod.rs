//! `tidewall run`: the manager of one program, for as long as that runs.

mod program;

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
use tidewall_manager::connection::Listener;
use tidewall_manager::daemon::direct::DirectDevice;
use tidewall_manager::daemon::log::{Level, Log};
use tidewall_manager::daemon::server::Server;
use tidewall_manager::daemon::{Limits, Trust};
use tidewall_manager::pinned::PinDirectory;
use tidewall_manager::places;
use tidewall_manager::view::View;

use crate::end::{Failure, Outcome, check_interface};
use program::Program;

/// Run a program as an application of a manager that lives as long as it does; nothing is installed.
///
/// The manager (as tidewalld, docs/manager.md) is this process: it takes the interface,
/// starts the program, and lets it and whatever it starts join, also under another user id.
/// They find it by TIDEWALL_MANAGER. When the program ends, however it ends, the interface
/// is as before. Where a tidewalld has the interface, the program becomes that one's
/// application instead, if it trusts its user. Needs root: CAP_NET_ADMIN, CAP_NET_RAW,
/// CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    override_usage = "tidewall run [--interface IF] [--private] [--ports PORTS] [--xdp MODE] -- PROGRAM [ARGUMENT]...",
    after_help = "Examples:\n  tidewall run --interface eth1 -- tidewall serve echo\n  \
    tidewall run --interface eth1 -- setpriv --reuid 1000 --regid 1000 --clear-groups tidewall serve http /srv/www --port 8080\n  \
    tidewall run -- tidewall serve echo          as an application of the only tidewalld\n\n\
    Signals are passed on to the program. Killed itself by SIGKILL, it leaves the interface to the \
    program, which goes on; the next run on the interface, or tidewalld --interface IF --remove, gives \
    it back. Programs that know nothing of Tidewall run as ever, on the kernel's sockets.\n\n\
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
    /// Where the driver program runs: native or generic [default: in the driver, or where that
    /// cannot, on hardware, generically]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
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
    let interface = match &arguments.interface {
        Some(interface) => interface,
        None => return join(arguments, &only_manager()?),
    };
    check_interface(interface)?;
    let pins = places::ephemeral_pins(interface);
    // What an earlier run left that was killed.
    remove_left(&pins, interface)?;
    let socket = places::socket(interface);
    if View::connect(&socket).is_ok() {
        return join(arguments, &socket);
    }
    let ended = manage(arguments, interface, &pins, &socket);
    let removed = remove_left(&pins, interface);
    let code = ended?;
    removed?;
    match code {
        0 => Ok(()),
        code => Err(Failure::with_code(code, "")),
    }
}

/// Of those that listen.
fn only_manager() -> Result<PathBuf, Failure> {
    let mut live: Vec<PathBuf> = (places::managers().into_iter())
        .map(|(path, _)| path)
        .filter(|path| View::connect(path).is_ok())
        .collect();
    match (live.pop(), live.is_empty()) {
        (Some(path), true) => Ok(path),
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

fn command(arguments: &Arguments, manager: &Path) -> Result<Command, Failure> {
    let mut words = arguments.program.iter();
    let program = words
        .next()
        .ok_or_else(|| Failure::usage("no program is named"))?;
    let mut command = Command::new(program);
    command.args(words).env(places::VARIABLE, manager);
    Ok(command)
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
fn join(arguments: &Arguments, manager: &Path) -> Outcome {
    if arguments.private || arguments.ports.is_some() || arguments.xdp.is_some() {
        return Err(Failure::usage(format!(
            "a tidewalld listens at {}, and decides on modes and ports: leave --private, --ports and \
             --xdp out",
            manager.display()
        )));
    }
    let mut command = command(arguments, manager)?;
    let error = command.exec();
    Err(not_started(&command, &error))
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
    interface: &str,
    pins: &Path,
    socket: &Path,
) -> Result<u8, Failure> {
    // From here on signals are for the program.
    let program = Program::new().map_err(|error| Failure::io("catching signals", &error))?;
    let mut command = command(arguments, socket)?;
    let mut server = server(arguments, interface, pins, socket)
        .map_err(|error| Failure::io(&format!("taking over {interface}"), &error))?;
    // Who has the pins has the socket.
    let result = match program.start(&mut command) {
        Ok(running) => {
            let ended = server.run(running.end().as_fd(), None, || ());
            if ended.is_err() {
                server.log_end(&ended);
            }
            Ok(running.wait())
        }
        Err(error) => Err(not_started(&command, &error)),
    };
    let _ = fs::remove_file(socket);
    result
}

fn server(
    arguments: &Arguments,
    interface: &str,
    pins: &Path,
    socket: &Path,
) -> io::Result<Server> {
    let directory = PinDirectory::take(pins)?;
    let mut device = DirectDevice::open(directory, interface, arguments.xdp)?;
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
