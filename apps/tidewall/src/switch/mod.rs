//! `tidewall switch`: one connection, many servers, and no endpoint in between.
//!
//! `config` reads the file. `tidewall_switch_driver` moves segments between the
//! interfaces and the machine (crates/switch). `health` finds out which members answer.

mod config;
mod health;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewall_switch::{Config, Member};
use tidewall_switch_driver::{Driver, InterfaceChange, OpenError, watched};

use crate::end::{Failure, Outcome, check_interface, say_line, stop_flag};
use config::{MemberSetup, Setup};
use health::Checks;

/// How often the command checks for signals and for results of the health checks.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of an IPv4 header and of an IPv6 header, each with the TCP header.
const HEADERS: [usize; 2] = [40, 60];

/// Split each connection to one address over many servers, and merge their answers, at
/// frame boundaries.
///
/// Peers and members speak ACP: TCP whose segments hold whole frames. The switch
/// terminates no connection: it acknowledges only what a member has acknowledged, and
/// stores no data. It owns the queues of all interfaces in the file, and adds the virtual
/// address to the peers' interface while it runs. It runs until Ctrl-C (SIGINT) or
/// SIGTERM; SIGHUP rereads the members in the file. Needs root: CAP_NET_ADMIN,
/// CAP_NET_RAW, CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(after_help = "The file, in TOML:\n  \
    address = \"10.0.0.99:6379\"      # what peers connect to: the virtual address\n  \
    interface = \"eth1\"              # where they come from\n  \
    module = \"round-robin\"          # or least-outstanding, hash, speed, key-value, block-storage\n  \
    lost = \"reset\"                  # what becomes of a connection whose member dies: reset if\n  \
    \x20                               # frames are not acknowledged; reset-if-used: if it ever got\n  \
    \x20                               # any, for requests with replies; resend: frames go to others;\n  \
    \x20                               # key-value and block-storage always do as reset-if-used\n  \
    key = [0, 8]                    # of hash: these bytes of a frame name its member;\n  \
    \x20                               # of key-value: commands begin at the first of them\n  \
    ports = \"61000-65535\"           # from which members are connected to, one per connection;\n  \
    \x20                               # an eighth stays free, so 3969 connections here\n  \
    kernel-ends = false             # take ends that do not say in their SYN that they speak ACP\n  \
    ring = 384                      # frames a connection and direction that are not acknowledged\n  \
    [[member]]                      # once for each\n  \
    address = \"10.0.1.2:6379\"\n  \
    interface = \"eth2\"\n  \
    local = \"10.0.1.1\"              # optional: the switch's address there\n  \
    [health]                        # optional: how members are connected to now and then\n  \
    interval = \"1s\"                 # 0s: they are not\n  \
    failures = 3                    # in a row before it counts as dead\n\n\
    Exit codes: 0 ended by a signal; 1 a device failed, or the module loops; 2 it could not begin.")]
pub struct Arguments {
    /// The configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print what would be done, and what is wrong with the file; touch nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let setup = read(arguments)?;
    let interfaces = interfaces(&setup);
    for interface in &interfaces {
        check_interface(interface)?;
    }
    let segment_size = segment_size(&setup, &interfaces)?;
    if arguments.dry_run {
        return describe(&setup, segment_size);
    }
    let stop = stop_flag()?;
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, reload.clone())
        .map_err(|error| Failure::io("catching signals", &error))?;
    let mut driver = start(&setup, &interfaces, segment_size)?;
    let members = || setup.members.iter().map(|member| member.address).collect();
    let checks = setup.health.map(|health| Checks::begin(health, members()));
    let checks = checks
        .transpose()
        .map_err(|error| Failure::io("checking members", &error))?;
    say_line(&format!(
        "{} on {}, {} for {} members; Ctrl-C ends",
        setup.address,
        setup.interface,
        setup.module,
        setup.members.len()
    ))?;
    let failed = |error: std::io::Error| Failure::io("switching", &error);
    let mut current = setup;
    // Members of the file that do not answer.
    let mut down: Vec<SocketAddr> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match driver.turn(LOOK) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => other.map_err(failed)?,
        }
        for change in driver.follow_interfaces().map_err(failed)? {
            let (side, state) = match change {
                InterfaceChange::Lost(side) => (side, "is no more: its members count as failed"),
                InterfaceChange::Back(side) => (side, "is there again"),
            };
            let name = interfaces.get(side).map_or("", String::as_str);
            say_line(&format!("{name} {state}"))?;
            if matches!(change, InterfaceChange::Back(_)) {
                add_all(&mut driver, &current.members, &down, &interfaces);
            }
        }
        if let Some(checks) = &checks {
            for change in checks.changes() {
                if !current.members.iter().any(|it| it.address == change.member) {
                    continue;
                }
                let state = if change.alive {
                    "answers"
                } else {
                    "does not answer"
                };
                say_line(&format!("{} {state}", change.member))?;
                down.retain(|it| *it != change.member);
                if change.alive {
                    add_all(&mut driver, &current.members, &down, &interfaces);
                } else {
                    down.push(change.member);
                    driver.remove_member(change.member, true);
                }
            }
        }
        if reload.swap(false, Ordering::Relaxed) {
            match read(arguments) {
                Ok(new) => {
                    down.retain(|it| new.members.iter().any(|member| member.address == *it));
                    change_members(&mut driver, &mut current, new, &down, &interfaces)?;
                    if let Some(checks) = &checks {
                        let addresses = current.members.iter().map(|it| it.address);
                        checks.set_members(addresses.collect());
                    }
                }
                // The switch goes on with its old configuration.
                Err(failure) => eprintln!("tidewall: {failure}"),
            }
        }
    }
    totals(&mut driver)
}

fn read(arguments: &Arguments) -> Result<Setup, Failure> {
    config::read(&arguments.file).map_err(|error| Failure::usage(error.to_string()))
}

/// Returns all interfaces of a setup, the peers' first.
fn interfaces(setup: &Setup) -> Vec<String> {
    let mut interfaces = vec![setup.interface.clone()];
    for member in &setup.members {
        if !interfaces.contains(&member.interface) {
            interfaces.push(member.interface.clone());
        }
    }
    interfaces
}

/// Returns the largest segment payload that every link can carry.
fn segment_size(setup: &Setup, interfaces: &[String]) -> Result<u16, Failure> {
    let mut least = usize::from(u16::MAX);
    for interface in interfaces {
        let mtu = tidewall_sys::interface::mtu(interface)
            .map_err(|error| Failure::io(&format!("the MTU of {interface}"), &error))?;
        least = least.min(mtu);
    }
    let members = setup.members.iter().map(|member| member.address.is_ipv6());
    let v6 = members.chain([setup.address.is_ipv6()]).any(|v6| v6);
    let headers = HEADERS[usize::from(v6)];
    Ok(least.saturating_sub(headers).try_into().unwrap_or(u16::MAX))
}

fn describe(setup: &Setup, segment_size: u16) -> Outcome {
    let Setup {
        address,
        interface,
        module,
        ports,
        kernel_ends,
        ring,
        members,
        health,
    } = setup;
    let (first, last) = (ports.start(), ports.end());
    let mut text = format!(
        "{} would become an address of {interface}, and TCP port {} there the switch's\n\
         segments of at most {segment_size} bytes, {ring} frames a connection and direction\n\
         module {module}; {} in their SYN that they speak ACP\n",
        address.ip(),
        address.port(),
        if *kernel_ends {
            "ends need not say"
        } else {
            "ends must say"
        },
    );
    for MemberSetup {
        address,
        interface,
        local,
    } in members
    {
        text +=
            &format!("member {address} by {interface}, from {local}, ports {first} to {last}\n");
    }
    if members.is_empty() {
        text += "no members: connections would be refused\n";
    }
    match health {
        Some(health) => {
            let interval = health.interval;
            text += &format!(
                "each member is connected to every {interval:?}; dead after {} failures",
                health.failures
            );
        }
        None => text += "members are not checked",
    }
    say_line(&text)
}

fn start(setup: &Setup, interfaces: &[String], segment_size: u16) -> Result<Driver, Failure> {
    let failure = |OpenError { what, error }| Failure::io(&what, &error);
    let module = setup.module.clone();
    let config = Config {
        segment_size,
        ring: setup.ring,
        ports: setup.ports.clone(),
        kernel_ends: setup.kernel_ends,
        ..Config::new(setup.address)
    };
    let named = module.to_string();
    let modules = watched(Box::new(move || module.make()), move |spent| {
        eprintln!(
            "tidewall: module {named} has not returned from one event in {} ms of processor time; \
             the switch ends, its connections with it, and its ports go back to the kernel",
            spent.as_millis()
        );
        std::process::exit(1);
    })
    .map_err(|error| Failure::io("watching the module", &error))?;
    let mut driver = Driver::open(interfaces, config, modules).map_err(failure)?;
    for warning in driver.forwarder().stacks().flat_map(|it| it.warnings()) {
        eprintln!("tidewall: {warning}");
    }
    for member in &setup.members {
        add(&mut driver, member, interfaces)
            .map_err(|error| Failure::io(&member.address.to_string(), &error))?;
    }
    Ok(driver)
}

/// Adds a member.
fn add(driver: &mut Driver, member: &MemberSetup, interfaces: &[String]) -> std::io::Result<()> {
    let side = interfaces.iter().position(|it| *it == member.interface);
    let side = side.ok_or(std::io::ErrorKind::InvalidInput)?;
    let MemberSetup { address, local, .. } = *member;
    driver.add_member(Member { address, local }, side).map(drop)
}

/// Adds the members that answer and are missing. A failure here costs no connection.
fn add_all(
    driver: &mut Driver,
    members: &[MemberSetup],
    down: &[SocketAddr],
    interfaces: &[String],
) {
    let is_lost = |member: &MemberSetup| {
        let side = interfaces.iter().position(|it| *it == member.interface);
        side.is_some_and(|side| driver.is_lost(side))
    };
    let here = |it: &&MemberSetup| !down.contains(&it.address) && !is_lost(it);
    let members: Vec<_> = members.iter().filter(here).collect();
    for member in members {
        match add(driver, member, interfaces) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => eprintln!(
                "tidewall: {} is not added: {error}; SIGHUP tries again",
                member.address
            ),
            _ => {}
        }
    }
}

/// Applies the members of a new setup, and rejects any other change.
fn change_members(
    driver: &mut Driver,
    current: &mut Setup,
    new: Setup,
    down: &[SocketAddr],
    interfaces: &[String],
) -> Outcome {
    let changed = current.changed(&new);
    if !changed.is_empty() {
        eprintln!(
            "tidewall: {}: as before; members alone can change, the rest needs a restart",
            changed.join(", ")
        );
    }
    let is_open = |member: &MemberSetup| interfaces.contains(&member.interface);
    let (members, others): (Vec<_>, Vec<_>) = new.members.into_iter().partition(is_open);
    for MemberSetup {
        address, interface, ..
    } in others
    {
        eprintln!("tidewall: {address} is not added: taking {interface} needs a restart");
    }
    for gone in current.members.iter().filter(|it| !members.contains(it)) {
        driver.remove_member(gone.address, false);
    }
    add_all(driver, &members, down, interfaces);
    say_line(&format!("{} members", members.len()))?;
    current.members = members;
    Ok(())
}

fn totals(driver: &mut Driver) -> Outcome {
    let mut lines = Vec::new();
    for (name, count) in driver.switch().counters().each().filter(|it| it.1 > 0) {
        lines.push(format!("{name} {count}"));
    }
    for (_, member, _, counters) in driver.switch().members() {
        let counts = counters
            .each()
            .map(|(name, count)| format!("{name} {count}"));
        let counts: Vec<_> = counts.collect();
        lines.push(format!("{}: {}", member.address, counts.join(", ")));
    }
    let output = driver.forwarder().output().counters();
    lines.push(format!(
        "sent in place {}, copied {}; not sent: unresolved {}, unasked {}, unreachable {}, full {}, refused {}; down {} times",
        output.in_place,
        output.copied,
        output.unresolved,
        output.unasked,
        output.unreachable,
        output.full,
        output.refused,
        output.down
    ));
    say_line(&lines.join("\n"))
}
