//! `tidewall run`: the manager of one program, for the program's lifetime.

mod executable;
mod library;
mod program;
pub mod report;
pub mod unreached;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidewall::control;
use tidewall::tuning::PolicyKind;
use tidewall_device::capabilities::{self, BPF, NET_ADMIN, NET_RAW, PERFMON, Set};
use tidewall_device::demux::layout::APPLICATIONS;
use tidewall_manager::XdpMode;
use tidewall_manager::connection::{Connection, Listener};
use tidewall_manager::daemon::direct::DirectDevice;
use tidewall_manager::daemon::log::{Level, Log};
use tidewall_manager::daemon::ports::PortRanges;
use tidewall_manager::daemon::server::Server;
use tidewall_manager::daemon::{Limits, Trust, ancestors};
use tidewall_manager::pinned::{BPFFS, PinDirectory, PrivateBpffs, is_bpffs};
use tidewall_manager::places;
use tidewall_manager::view::View;
use tidewall_sys::interface::{self, down};
use tidewall_sys::netlink::Rtnetlink;

use crate::end::{Failure, Outcome, check_interface, warn};
use crate::serve::policy;
use library::Library;
use program::Program;
use report::Report;

/// Variable that passes `--policy` to the library.
const POLICY: &str = "TIDEWALL_POLICY";
/// The name of this program's processes, which a daemon's processes do not have.
const RUN: &str = "tidewall";
/// The failing operation if signals cannot be caught.
const CATCHING: &str = "catching signals";
/// Documentation addresses, which no network has (RFC 5737, RFC 3849).
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Run an unmodified program on Tidewall, with a manager that lives as long as it does;
/// nothing is installed.
///
/// A library (libtidewall.so, by LD_PRELOAD) replaces the C library's socket calls in the
/// program and its descendants. Sockets that the interface does not reach stay with the
/// kernel. This process is the manager (as tidewalld, docs/manager.md): it takes the
/// interface and starts the program. The program and its descendants may join it, also
/// under another user id; they find it by TIDEWALL_MANAGER. When the last process of the
/// program ends, however it ends, the interface is as before. A server that goes to the
/// background keeps this command running. If a tidewalld owns the interface, the program
/// becomes its application instead, provided that it trusts the program's user. Needs
/// root: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    override_usage = "tidewall run [--interface IF] [--private] [--ports PORTS] [--policy NAME] [--xdp MODE] [--or-kernel] [--report] [--] PROGRAM [ARGUMENT]...",
    after_help = "Examples:\n  tidewall run --interface eth1 -- redis-server --protected-mode no\n  \
    tidewall run --interface eth1 --report -- nginx\n  \
    tidewall run --interface eth1 --private -- memcached -d -u nobody\n  \
    tidewall run -- tidewall serve echo          as an application of the only tidewalld\n\n\
    Signals are passed on: to the program, or to what it has left running once it has ended. \
    Killed itself by SIGKILL, this command leaves the interface to the program, which goes on; the \
    next run on the interface, or tidewalld --interface IF --remove, gives it back.\n\n\
    Where all of the program would stay with the kernel's sockets it is not started (exit code 2), or \
    with --or-kernel is started there: static programs, Go, musl, setuid and file capabilities, 32 \
    bits, no library, an interface that is not there, has no address or cannot be taken. \
    Single sockets that stay with the kernel are named on standard error as they appear. \
    TIDEWALL_LIBRARY names another library; empty, it says that programs are written for Tidewall.\n\n\
    Exit codes: the program's, or of one that went to the background the last of its processes'; 128 \
    and the signal's number if a signal ended it; 127 no such program; 126 it cannot be started; 1 \
    what was changed could not be put back; 2 it could not begin."
)]
pub struct Arguments {
    /// Interface to take [default: that of the only tidewalld, else that of the default
    /// route]
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Let processes of the program join in private mode only: several at once, each
    /// limited to sending its own packets. Without it, one of them at a time owns the
    /// device's queues, and can send any frame
    #[arg(long)]
    private: bool,
    /// Ports that they may own, such as 7,8000-8100 [default: the ports that bind(2)
    /// allows them]
    #[arg(long, value_name = "PORTS")]
    ports: Option<PortRanges>,
    /// Policy for how many frames a round takes and how often the device interrupts:
    /// interrupt, napi, on-off, aic, qapolling, rhip or adaptive (the default)
    #[arg(long, value_name = "NAME", value_parser = policy)]
    policy: Option<PolicyKind>,
    /// XDP mode of the driver program: native or generic [default: native; generic on
    /// hardware whose driver lacks native XDP]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
    /// If Tidewall cannot own the program's sockets, start it on the kernel's,
    /// unprotected, instead of ending with exit code 2
    #[arg(long)]
    or_kernel: bool,
    /// At the end, list on standard error the sockets that Tidewall owned, and those that
    /// stayed with the kernel and why
    #[arg(long)]
    report: bool,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Library, interface and manager for a program, found before anything changes.
struct Plan {
    library: Library,
    interface: String,
    socket: PathBuf,
    /// Why all sockets stay with the kernel.
    obstacle: Option<String>,
}

impl Plan {
    fn of(program: &[OsString], interface: Option<&str>) -> Result<Self, Failure> {
        let library = library::find()?;
        let (socket, interface) = match interface {
            Some(interface) => (places::socket(interface), interface.to_owned()),
            None => default_interface()?,
        };
        let obstacle = match &library {
            Library::At(_) => elsewhere(&socket).or_else(|| library::obstacle(program, &interface)),
            // The program is written for Tidewall, so only the interface counts.
            Library::NotWanted => library::no_interface(&interface),
            Library::Missing(why) => Some(why.clone()),
        };
        Ok(Plan {
            library,
            interface,
            socket,
            obstacle,
        })
    }
}

/// Returns the interface on which Tidewall would own a program's sockets.
///
/// # Errors
/// Why it would own none, or why the program would not start.
pub fn foresee(program: &[OsString], interface: Option<&str>) -> Result<String, Failure> {
    if let Some(why) = executable::no_program(program) {
        return Err(Failure::usage(why));
    }
    let plan = Plan::of(program, interface)?;
    let refused = match plan.obstacle {
        Some(why) => Some(Failure::usage(why)),
        None => another_run(&plan.socket, &plan.interface),
    };
    let has_manager = || View::connect(&plan.socket).is_ok();
    let refused = refused.or_else(|| missing_privileges().filter(|_| !has_manager()));
    refused.map_or(Ok(plan.interface), Err)
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let Plan {
        library,
        interface,
        socket,
        obstacle,
    } = Plan::of(&arguments.program, arguments.interface.as_deref())?;
    let mut launch = Launch::new(arguments, &socket);
    match (library, obstacle) {
        (Library::At(library), None) => launch.library = Some(library),
        (_, None) => {}
        (_, Some(why)) => {
            arguments.refuse(&Failure::usage(why.as_str()))?;
            launch.obstacle = Some(why);
        }
    }
    launch_on(arguments, launch, &interface, &socket)
}

impl Arguments {
    /// Refuses to start the program, or with `--or-kernel` prints why Tidewall owns none
    /// of its sockets.
    fn refuse(&self, why: &Failure) -> Outcome {
        if self.or_kernel {
            warn(&format!(
                "{why}\n  the program runs on the kernel's sockets (--or-kernel)"
            ));
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{why}\n  the program was not started; with --or-kernel it runs on the kernel's sockets"
        )))
    }
}

fn launch_on(arguments: &Arguments, launch: Launch, interface: &str, socket: &Path) -> Outcome {
    if check_interface(interface).is_err() {
        return launch.supervise();
    }
    if let Some(why) = down(interface) {
        warn(&why);
    }
    if let Some(why) = another_run(socket, interface) {
        if launch.obstacle.is_none() {
            arguments.refuse(&why)?;
        }
        return launch.on_kernel(&why).supervise();
    }
    let mounted = is_bpffs(Path::new(BPFFS));
    let pins = places::ephemeral_pins(interface);
    // Leftovers of a killed run; only its user may look.
    if mounted && missing_privileges().is_none() {
        remove_left(&pins, interface)?;
    }
    if View::connect(socket).is_ok() {
        return join(arguments, launch, socket);
    }
    if let Some(missing) = missing_privileges() {
        arguments.refuse(&missing)?;
        return launch.on_kernel(&missing).supervise();
    }
    // No pin has to outlive this process, except after SIGKILL.
    let own = (!mounted).then(PrivateBpffs::new).transpose();
    let (pins, _own) = match own {
        Ok(Some(own)) => (own.path().join(interface), Some(own)),
        Ok(None) => (pins, None),
        Err(error) => {
            let why = Failure::usage(format!(
                "bpffs is not mounted at {BPFFS}, or read-only, and this process cannot make one \
                 ({error}): mount -t bpf -o mode=0700 bpf {BPFFS}"
            ));
            arguments.refuse(&why)?;
            return launch.on_kernel(&why).supervise();
        }
    };
    let code = manage(arguments, launch, interface, &pins, socket);
    let removed = remove_left(&pins, interface);
    let code = code?;
    removed?;
    ended(code)
}

/// Names the privileges that a manager needs and this process lacks, with the remedy.
fn missing_privileges() -> Option<Failure> {
    let needed = [NET_ADMIN, NET_RAW, BPF, PERFMON];
    let lacks = !Set::effective().missing(&needed).is_empty();
    if !lacks && !capabilities::are_confined() {
        return None;
    }
    let (cause, remedy) = capabilities::refusal(&needed);
    let remedy = if lacks { "run it as root" } else { &remedy };
    Some(Failure::usage(format!(
        "{cause}: {remedy}, or have a tidewalld let this user join (docs/manager.md)"
    )))
}

/// Explains why the listening manager is unusable for this program: interfaces of several
/// network namespaces may share one name, if the namespaces share one `/run`.
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

/// Reports that the listening manager is a `tidewall run`, unless this process belongs to
/// its program.
fn another_run(socket: &Path, interface: &str) -> Option<Failure> {
    let peer = Connection::connect(socket).and_then(|it| it.peer()).ok()?;
    let name = fs::read_to_string(format!("/proc/{}/comm", peer.pid)).ok()?;
    let is_other = name.trim() == RUN && !ancestors(std::process::id()).contains(&peer.pid);
    is_other.then(|| {
        Failure::usage(format!(
            "another `tidewall run` (process {}) has {interface} until its program ends",
            peer.pid
        ))
    })
}

fn ended(code: u8) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(Failure::with_code(code, "")),
    }
}

/// Returns the interface of the only listening manager, else that of the default route.
fn default_interface() -> Result<(PathBuf, String), Failure> {
    let mut live: Vec<(PathBuf, String)> = (places::managers().into_iter())
        .filter(|(path, _)| View::connect(path).is_ok())
        .collect();
    match (live.pop(), live.is_empty()) {
        (Some(manager), true) => Ok(manager),
        (None, _) => match of_default_route() {
            Some(interface) => Ok((places::socket(&interface), interface)),
            None => Err(Failure::usage(
                "no tidewalld runs here, and there is no default route: name the interface to take \
                 with --interface IF",
            )),
        },
        (Some(_), false) => Err(Failure::usage(format!(
            "several managers run here ({}/*.{}): name the interface with --interface IF",
            places::SOCKETS,
            places::MANAGER
        ))),
    }
}

/// Returns the interface of the route to outside addresses.
fn of_default_route() -> Option<String> {
    let [v4, v6] = [OUTSIDE_V4.into(), OUTSIDE_V6.into()];
    let mut routes = Rtnetlink::open().ok()?;
    let mut index = |to: IpAddr| {
        let route = routes.route(to, None, None).ok()?;
        route.unicast.then_some(route.interface)
    };
    let index = index(v4).or_else(|| index(v6))?;
    interface::name(index).ok()
}

/// The program, before its start.
struct Launch {
    command: Command,
    /// To be put in front of the C library.
    library: Option<PathBuf>,
    /// Why all sockets stay with the kernel.
    obstacle: Option<String>,
    /// The sockets are listed at the end.
    has_report: bool,
}

impl Launch {
    fn new(arguments: &Arguments, manager: &Path) -> Self {
        // clap requires a program.
        let (program, words) = arguments.program.split_first().unzip();
        let mut command = Command::new(program.unwrap_or(&OsString::new()));
        command.args(words.unwrap_or_default());
        command.env(places::VARIABLE, manager);
        if let Some(policy) = arguments.policy {
            command.env(POLICY, policy.name());
        }
        Launch {
            command,
            library: None,
            obstacle: None,
            has_report: arguments.report,
        }
    }

    /// Removes the library and the manager.
    fn on_kernel(mut self, why: &Failure) -> Self {
        self.library = None;
        self.obstacle = Some(why.to_string());
        self.command.env_remove(places::VARIABLE);
        self
    }

    /// Runs the program until its last process ends; returns the exit code. Meanwhile it
    /// calls `meanwhile` with the stream that becomes readable at that end.
    fn follow(
        mut self,
        program: Program,
        meanwhile: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<u8, Failure> {
        let mut report = None;
        if let Some(library) = &self.library {
            library::put(&mut self.command, library);
            let started = Report::start(library);
            let started = report.insert(
                started.map_err(|error| Failure::io("making a socket for the report", &error))?,
            );
            started.offer(&mut self.command);
        }
        let running = program.start(&mut self.command);
        let running = running.map_err(|error| not_started(&self.command, &error))?;
        meanwhile(running.end().as_fd());
        let code = running.wait();
        match (report, self.obstacle) {
            _ if !self.has_report => {}
            (Some(report), _) => eprint!("{}", report.end()),
            (None, Some(why)) => warn(&format!("all sockets stayed with the kernel: {why}")),
            (None, None) => {}
        }
        Ok(code)
    }

    /// Runs it without a manager of its own.
    fn supervise(self) -> Outcome {
        let program = Program::new().map_err(|error| Failure::io(CATCHING, &error))?;
        ended(self.follow(program, |_| ())?)
    }

    /// Replaces this process by the program; returns only on failure.
    fn exec(mut self) -> Failure {
        if let Some(library) = &self.library {
            library::put(&mut self.command, library);
        }
        let error = self.command.exec();
        not_started(&self.command, &error)
    }
}

/// Reports the error as shells and env(1) do.
fn not_started(command: &Command, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = command.get_program().display();
    Failure::with_code(code, format!("starting {program}: {error}"))
}

/// Replaces this process by the program, as an application of an existing manager.
fn join(arguments: &Arguments, launch: Launch, manager: &Path) -> Outcome {
    if arguments.private || arguments.ports.is_some() || arguments.xdp.is_some() {
        return Err(Failure::usage(format!(
            "a tidewalld listens at {}, and decides on modes and ports: leave --private, --ports and \
             --xdp out",
            manager.display()
        )));
    }
    match launch.has_report {
        true => launch.supervise(),
        false => Err(launch.exec()),
    }
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

/// Runs the program with a manager; returns its exit code. [`remove_left`] removes what
/// was changed.
fn manage(
    arguments: &Arguments,
    launch: Launch,
    interface: &str,
    pins: &Path,
    socket: &Path,
) -> Result<u8, Failure> {
    // From here on signals are for the program.
    let program = Program::new().map_err(|error| Failure::io(CATCHING, &error))?;
    let mut server = match server(arguments, interface, pins, socket) {
        Ok(server) => server,
        Err(error) => {
            let why = Failure::io(&format!("taking over {interface}"), &error);
            arguments.refuse(&why)?;
            return launch.on_kernel(&why).follow(program, |_| ());
        }
    };
    // The owner of the pins owns the socket.
    let result = launch.follow(program, |end| {
        let ended = server.run(end, None, || ());
        if ended.is_err() {
            server.log_end(&ended);
            // The program continues without waiting for answers of a manager that has
            // ended.
            drop(server);
        }
    });
    let _ = fs::remove_file(socket);
    // Removes the control sockets for `tidewall stat` that killed processes of the
    // program left.
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
    limits.ports = arguments.ports.clone();
    // There is no other user to share with.
    limits.applications_of_domain = APPLICATIONS;
    limits.clients_of_user = limits.clients;
    let mut server = Server::new(limits, device, listener, Log::of(Level::Warning))
        .inspect_err(|_| drop(fs::remove_file(socket)))?;
    server.set_ancestor(std::process::id());
    Ok(server)
}
