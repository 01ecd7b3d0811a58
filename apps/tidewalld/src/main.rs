//! `tidewalld`: the manager of a device, as a daemon (docs/manager.md).
//!
//! Lives here: arguments, signals, privileges and the systemd interface of the service.
//! Does not live here: the work of a manager (`tidewall_manager::daemon`).
//!
//! Exit codes:
//! - 0: a signal ended the daemon, or it gave everything back
//! - 1: it failed
//! - 2: it could not begin
#![deny(unsafe_code)]

mod privileges;
#[allow(unsafe_code)]
mod raw;
mod systemd;

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tidewall_manager::XdpMode;
use tidewall_manager::connection::Listener;
use tidewall_manager::daemon::circuits::{AtmConfig, Permanent, Side};
use tidewall_manager::daemon::direct::DirectDevice;
use tidewall_manager::daemon::log::{Level, Log};
use tidewall_manager::daemon::metrics::{Endpoint, Metrics};
use tidewall_manager::daemon::ports::PortRanges;
use tidewall_manager::daemon::server::Server;
use tidewall_manager::daemon::{Limits, Trust, Users, Whom};
use tidewall_manager::pinned::PinDirectory;
use tidewall_manager::places;
use tidewall_wire::atm::{Circuit, Nsap};

/// Owns a network interface for unprivileged applications.
///
/// The driver program and its tables are pinned: they outlive the daemon, however it
/// ends, and the next daemon takes them over. `--remove` gives everything back.
#[derive(Parser)]
#[command(name = "tidewalld", version, max_term_width = 100)]
struct Arguments {
    /// Interface whose frames are shared out
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Socket to which applications connect [default: /run/tidewall/IF.manager]; a socket
    /// that systemd passes takes precedence
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory in bpffs [default: /sys/fs/bpf/tidewall/IF]
    #[arg(long, value_name = "DIR")]
    pins: Option<PathBuf>,
    /// User id, or systemd unit such as nginx.service, whose processes may own queues of
    /// the device, beside user 0; they can send any frame; may be repeated
    #[arg(long, value_name = "UID|UNIT")]
    trust: Vec<Whom>,
    /// User id, unit or `any` user that may join in private mode: with virtual pairs of
    /// its own, limited to sending its own packets; may be repeated
    #[arg(long, value_name = "UID|UNIT|any", value_parser = private)]
    private: Vec<Option<Whom>>,
    /// Weight of a user or unit in private mode, 1 to 1000: its share of the device's
    /// polls when there are not enough for all; may be repeated [default: 1]
    #[arg(long, value_name = "UID|UNIT=N", value_parser = weight)]
    weight: Vec<(Whom, u32)>,
    /// Ports that applications in private mode may own, such as 80,443,8000-8100, beside
    /// the ephemeral ports of clients; required with `--private any`. Their frames bypass
    /// the host's firewall rules [default: the ports that bind(2) allows them]
    #[arg(long, value_name = "PORTS")]
    ports: Option<PortRanges>,
    /// XDP mode of the driver program: native or generic [default: native; generic on
    /// hardware whose driver lacks native XDP]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
    /// Endpoint for Prometheus metrics: a loopback address and port, or the absolute path
    /// of a Unix socket for user 0
    #[arg(long, value_name = "ENDPOINT")]
    metrics: Option<Endpoint>,
    /// Makes the interface an ATM interface, whose circuits lead to this neighbour on its
    /// link; applications place and accept calls through this daemon (docs/atm.md)
    #[arg(long, value_name = "ADDRESS", requires = "atm_number")]
    atm_next_hop: Option<IpAddr>,
    /// The interface's NSAP, forty hexadecimal digits; each listener chooses the last
    /// byte
    #[arg(long, value_name = "NSAP", requires = "atm_next_hop")]
    atm_number: Option<Nsap>,
    /// Side of the link that this end takes; of two hosts linked directly exactly one is
    /// the network side
    #[arg(long, value_name = "user|network", default_value = "user", value_parser = side)]
    atm_side: Side,
    /// Permanent circuits that applications of every user, or of one user, may open; may
    /// be repeated
    #[arg(long, value_name = "VPI.VCI[-VCI][=UID]", value_parser = permanent)]
    #[arg(requires = "atm_next_hop")]
    atm_permanent: Vec<Permanent>,
    /// Run one thread for each connection, for the signalling link and for each call:
    /// slower, for comparison only
    #[arg(long, requires = "atm_next_hop")]
    atm_threads: bool,
    /// Detach the program, remove the pins, and end
    #[arg(long)]
    remove: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let pins = arguments
        .pins
        .clone()
        .unwrap_or_else(|| places::pins(&arguments.interface));
    let mut log = Log::default();
    // systemd's descriptors are adopted before anything is opened here.
    let passed = systemd::listener();
    let ended =
        privileges::reduce(!arguments.private.is_empty()).and_then(|()| match arguments.remove {
            true => remove(&arguments, &pins).map(|()| ExitCode::SUCCESS),
            false => start(&arguments, &pins, passed?, &mut log)
                .and_then(|(server, socket)| serve(server, socket, &arguments, &pins)),
        });
    match ended {
        Ok(code) => code,
        Err(error) => {
            log.write(Level::Error, "cannot-begin", &[("error", &error)]);
            ExitCode::from(2)
        }
    }
}

fn side(text: &str) -> Result<Side, String> {
    match text {
        "user" => Ok(Side::User),
        "network" => Ok(Side::Network),
        _ => Err("user or network".to_owned()),
    }
}

/// Parses `0.100`, `0.100-199` and `0.100=1000`.
fn permanent(text: &str) -> Result<Permanent, String> {
    let wrong = || "as 0.100, 0.100-199 or 0.100=1000 (a user id)".to_owned();
    let (circuits, user) = match text.split_once('=') {
        Some((circuits, user)) => (circuits, Some(user.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let (first, last) = circuits.split_once('-').unwrap_or((circuits, ""));
    let Circuit { vpi, vci } = first.parse().map_err(|_| wrong())?;
    let last = match last {
        "" => vci,
        last => last.parse().map_err(|_| wrong())?,
    };
    let vcis = vci..=last;
    Some(Permanent { vpi, vcis, user })
        .filter(|it| !it.vcis.is_empty())
        .ok_or_else(wrong)
}

/// Parses a user or unit; `None` is any user.
fn private(text: &str) -> Result<Option<Whom>, String> {
    match text {
        "any" => Ok(None),
        text => text.parse().map(Some),
    }
}

/// Parses `1000=4` and `nginx.service=4`.
fn weight(text: &str) -> Result<(Whom, u32), String> {
    let wrong = || "as 1000=4 or nginx.service=4, with a weight of 1 to 1000".to_owned();
    let (whom, weight) = text.rsplit_once('=').ok_or_else(wrong)?;
    let weight = weight
        .parse()
        .ok()
        .filter(|weight| (1..=1000).contains(weight));
    Ok((whom.parse()?, weight.ok_or_else(wrong)?))
}

/// Collects the users, units and ports of the command line.
///
/// # Errors
/// InvalidInput if any user may join and no ports are named.
fn limits(arguments: &Arguments) -> io::Result<Limits> {
    let mut limits = Limits::default();
    let direct = arguments
        .trust
        .iter()
        .map(|whom| (Some(whom), Trust::Direct));
    let private = (arguments.private.iter()).map(|whom| (whom.as_ref(), Trust::Private));
    let mut listed = Vec::new();
    let mut any = false;
    // A trusted unit is listed ahead of its private entry, so that trust wins.
    for (whom, trust) in direct.chain(private) {
        match (whom, trust) {
            (Some(Whom::Unit(name)), trust) => limits.units.push((name.clone(), trust)),
            (Some(Whom::User(user)), Trust::Direct) => limits.trusted.push(*user),
            (Some(Whom::User(user)), Trust::Private) => listed.push(*user),
            (None, _) => any = true,
        }
    }
    limits.private = match any {
        true if arguments.ports.is_none() => {
            let text = "--private any needs --ports, such as --ports 8000-8999: the ports that \
                        any user may own, past the firewall rules of the host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        true => Users::Any,
        false => Users::Listed(listed),
    };
    for (whom, weight) in &arguments.weight {
        let is_granted = match whom {
            Whom::User(user) => limits.private.contains(*user),
            Whom::Unit(name) => limits.units.iter().any(|(unit, _)| unit == name),
        };
        if !is_granted {
            let name = match whom {
                Whom::User(user) => user.to_string(),
                Whom::Unit(name) => name.to_string(),
            };
            let text =
                format!("--weight {name}={weight} is of none that may join: add --private {name}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    }
    limits.weights = arguments.weight.clone();
    limits.ports = arguments.ports.clone();
    Ok(limits)
}

fn remove(arguments: &Arguments, pins: &Path) -> io::Result<()> {
    DirectDevice::remove_left(pins, &arguments.interface)?;
    let socket = socket_path(arguments)?;
    if places::is_dead(&socket) {
        std::fs::remove_file(socket)?;
    }
    remove_ephemeral(&arguments.interface)
}

/// The path of a socket that this process created; removed on drop. A socket that systemd
/// keeps for the next run stays.
struct OwnSocket(PathBuf);

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // `--remove` removes what cannot be removed here.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes what a killed `tidewall run` left behind.
fn remove_ephemeral(interface: &str) -> io::Result<()> {
    let pins = places::ephemeral_pins(interface);
    DirectDevice::remove_left(&pins, interface).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let text = format!("{interface} is a `tidewall run`'s until its program ends");
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        }
        _ => error,
    })
}

fn start(
    arguments: &Arguments,
    pins: &Path,
    passed: Option<systemd::Passed>,
    log: &mut Log,
) -> io::Result<(Server, Option<OwnSocket>)> {
    let limits = limits(arguments)?;
    remove_ephemeral(&arguments.interface)?;
    // Before the socket: the owner of the directory owns the socket, too. The socket
    // comes before the device: if it cannot be created, nothing is attached.
    let directory = PinDirectory::take(pins)?;
    let (listener, socket) = listener(&socket_path(arguments)?, passed)?;
    let mut device = DirectDevice::open(directory, &arguments.interface, arguments.xdp, false)?;
    if !arguments.private.is_empty() {
        device.offer_private()?;
    }
    let how = if device.adopted() {
        "taken over"
    } else {
        "attached"
    };
    let values: [(&str, &dyn Display); 3] = [
        ("interface", &arguments.interface),
        ("program", &how),
        ("mode", &device.mode().name()),
    ];
    log.write(Level::Info, "began", &values);
    let mut server = Server::new(limits, device, listener, std::mem::take(log))?;
    if let (Some(next_hop), Some(number)) = (arguments.atm_next_hop, arguments.atm_number) {
        server.set_atm(AtmConfig {
            next_hop,
            number,
            side: arguments.atm_side,
            permanent: arguments.atm_permanent.clone(),
        })?;
    }
    if let Some(endpoint) = &arguments.metrics {
        server.set_metrics(Metrics::open(endpoint)?)?;
    }
    Ok((server, socket))
}

/// Returns the listening socket. One from a socket unit takes precedence over the path. A
/// stored one has the path of an earlier run, which is mostly the path wanted now.
fn listener(
    path: &Path,
    passed: Option<systemd::Passed>,
) -> io::Result<(Listener, Option<OwnSocket>)> {
    if let Some(passed) = passed {
        let listener = Listener::adopt(passed.socket)?;
        if !passed.stored || listener.path().as_deref() == Some(path) {
            return Ok((listener, None));
        }
        systemd::forget();
    }
    let listener = Listener::bind(path)?;
    // Clients that connect while no daemon runs then wait for the next one.
    let is_kept = systemd::store(&listener);
    let own = (!is_kept).then(|| OwnSocket(path.to_owned()));
    Ok((listener, own))
}

fn socket_path(arguments: &Arguments) -> io::Result<PathBuf> {
    if let Some(path) = &arguments.socket {
        // Socket paths are compared as absolute paths, whatever the daemon's working
        // directory.
        return std::path::absolute(path);
    }
    std::fs::create_dir_all(places::SOCKETS)?;
    Ok(places::socket(&arguments.interface))
}

fn serve(
    mut server: Server,
    socket: Option<OwnSocket>,
    arguments: &Arguments,
    pins: &Path,
) -> io::Result<ExitCode> {
    let ended = stop_signals().and_then(|stop| {
        systemd::notify("READY=1");
        match arguments.atm_threads {
            true => server.run_by_threads(stop.as_fd()),
            false => server.run(stop.as_fd(), systemd::watchdog(), || {
                systemd::notify("WATCHDOG=1")
            }),
        }
    });
    systemd::notify("STOPPING=1");
    server.log_end(&ended);
    // While the pins are locked: no other daemon can have created its socket yet.
    drop(socket);
    let Err(error) = ended else {
        return Ok(ExitCode::SUCCESS);
    };
    if error.kind() == io::ErrorKind::NotFound {
        // The interface is gone, and the pins are of no use to a successor. If it moved
        // to another network namespace, the program would go on there.
        drop(server);
        remove(arguments, pins)?;
    }
    Ok(ExitCode::FAILURE)
}

/// Returns a stream that becomes readable after SIGTERM or SIGINT.
fn stop_signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}
