//! `tidewalld`: the manager of a device, as a daemon (docs/manager.md).
//!
//! Lives here: arguments, signals, privileges and what systemd wants of a service. Does not live here:
//! what a manager does (`tidewall_manager::daemon`).
//!
//! Exit codes: 0 a signal ended it, or it gave everything back; 1 it failed; 2 it could not
//! begin.
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

/// Owns a network interface for applications without privileges.
///
/// The driver program and its tables are pinned: they go on when the daemon ends, however
/// it ends, and the next one takes them over. `--remove` gives everything back.
#[derive(Parser)]
#[command(name = "tidewalld", version, max_term_width = 100)]
struct Arguments {
    /// Interface whose frames are divided
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Where applications connect [default: /run/tidewall/IF.manager]; a socket that
    /// systemd has opened comes before it
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory in bpffs [default: /sys/fs/bpf/tidewall/IF]
    #[arg(long, value_name = "DIR")]
    pins: Option<PathBuf>,
    /// User id that may have the device's queues, beside 0, or unit of systemd's, such as
    /// nginx.service, whose processes may: they can send any frame; may be repeated
    #[arg(long, value_name = "UID|UNIT")]
    trust: Vec<Whom>,
    /// User id that may join in private mode, unit, or `any` user: virtual pairs of its own,
    /// and only what is its to send leaves; may be repeated
    #[arg(long, value_name = "UID|UNIT|any", value_parser = private)]
    private: Vec<Option<Whom>>,
    /// Weight of a user or unit in private mode, 1 to 1000: its part of the polls of the device
    /// when all of it cannot be had; may be repeated [default: 1]
    #[arg(long, value_name = "UID|UNIT=N", value_parser = weight)]
    weight: Vec<(Whom, u32)>,
    /// Ports that applications in private mode may own, such as 80,443,8000-8100, beside those
    /// that clients go out by; required with `--private any`. Their frames pass no firewall
    /// rules of the host [default: what bind(2) lets them have]
    #[arg(long, value_name = "PORTS")]
    ports: Option<PortRanges>,
    /// Where the driver program runs: native or generic [default: in the driver, or where
    /// that cannot, on hardware, generically]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
    /// Where Prometheus may read metrics: a loopback address and port, or the absolute path
    /// of a Unix socket for user 0
    #[arg(long, value_name = "ENDPOINT")]
    metrics: Option<Endpoint>,
    /// Makes the interface one of ATM, whose circuits lead to this neighbour on its link;
    /// applications call and are called through this daemon (docs/atm.md)
    #[arg(long, value_name = "ADDRESS", requires = "atm_number")]
    atm_next_hop: Option<IpAddr>,
    /// The interface's NSAP, forty hexadecimal digits; of the last byte each listener's is its
    /// own to choose
    #[arg(long, value_name = "NSAP", requires = "atm_next_hop")]
    atm_number: Option<Nsap>,
    /// Which end of the link this is; of two that are linked directly exactly one is the
    /// network's
    #[arg(long, value_name = "user|network", default_value = "user", value_parser = side)]
    atm_side: Side,
    /// Permanent circuits that applications may open, of every user or of one; may be repeated
    #[arg(long, value_name = "VPI.VCI[-VCI][=UID]", value_parser = permanent)]
    #[arg(requires = "atm_next_hop")]
    atm_permanent: Vec<Permanent>,
    /// Have a thread for each connection, for the signalling link and for each call: slower,
    /// to be compared with
    #[arg(long, requires = "atm_next_hop")]
    atm_threads: bool,
    /// Detach the program, remove what is pinned, and end
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
    // What systemd has passed comes before anything that is opened here.
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

/// As `0.100`, `0.100-199` and `0.100=1000`.
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

/// Somebody, or `None` for any user.
fn private(text: &str) -> Result<Option<Whom>, String> {
    match text {
        "any" => Ok(None),
        text => text.parse().map(Some),
    }
}

/// As `1000=4` and `nginx.service=4`.
fn weight(text: &str) -> Result<(Whom, u32), String> {
    let wrong = || "as 1000=4 or nginx.service=4, with a weight of 1 to 1000".to_owned();
    let (whom, weight) = text.rsplit_once('=').ok_or_else(wrong)?;
    let weight = weight
        .parse()
        .ok()
        .filter(|weight| (1..=1000).contains(weight));
    Ok((whom.parse()?, weight.ok_or_else(wrong)?))
}

/// Users, units and ports of the command line.
///
/// # Errors
/// InvalidInput where any user may join, and no ports are named.
fn limits(arguments: &Arguments) -> io::Result<Limits> {
    let mut limits = Limits::default();
    let direct = arguments
        .trust
        .iter()
        .map(|whom| (Some(whom), Trust::Direct));
    let private = (arguments.private.iter()).map(|whom| (whom.as_ref(), Trust::Private));
    let mut listed = Vec::new();
    let mut any = false;
    // A unit that is trusted is found before it is found to be private.
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

/// The name of a socket that this process has made, and that ends with it. One that systemd
/// keeps for the next run stays.
struct OwnSocket(PathBuf);

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // What cannot be removed here, --remove removes.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a `tidewall run` left that was killed.
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
    // Before the socket: who has the directory has that, too. And the socket before the device:
    // where it cannot be made, nothing is attached.
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

/// A socket of a unit's comes before the path. One that an earlier run has stored is of
/// that run's path, and the same is wanted mostly.
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
    // So that who connects while no daemon runs waits for the next one.
    let is_kept = systemd::store(&listener);
    let own = (!is_kept).then(|| OwnSocket(path.to_owned()));
    Ok((listener, own))
}

fn socket_path(arguments: &Arguments) -> io::Result<PathBuf> {
    if let Some(path) = &arguments.socket {
        // As a socket's name is compared, whatever directory a daemon begins in.
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
    // While the pins are locked, so that no other daemon's is there by then.
    drop(socket);
    let Err(error) = ended else {
        return Ok(ExitCode::SUCCESS);
    };
    if error.kind() == io::ErrorKind::NotFound {
        // The interface is gone: what is pinned is of no use to a successor, and on one that
        // is in another network namespace the program would go on.
        drop(server);
        remove(arguments, pins)?;
    }
    Ok(ExitCode::FAILURE)
}

/// Readable after SIGTERM or SIGINT.
fn stop_signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}
