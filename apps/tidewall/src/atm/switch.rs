//! `tidewall atm switch`: cells from circuits of one interface to circuits of another.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewall_atm::switch::{End, Route};
use tidewall_circuits::cell_switch::{CellPort, CellSwitch, Way, side_name};

use super::config::{self, Setup};
use crate::end::{Failure, Outcome, check_interface, say_line, stop_flag};

/// How often the switch checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Switch cells between the circuits of several interfaces, by a table in a file
///
/// Each port is an interface and the neighbour at the other end of its circuits. In frame
/// mode, each circuit's AAL5 PDUs have their own label, as `tidewall atm send` sends
/// them. In cell mode, the cells of all circuits share one label. RFC 4717 defines both.
/// Every port leads to every other. A port that signals (circuit 0.5, UNI 3.1) also has
/// circuits set up by calls, which are routed by the called number. The switch owns the
/// queues of all interfaces until Ctrl-C (SIGINT) or SIGTERM. SIGHUP rereads the circuits
/// and numbers in the file.
#[derive(clap::Args)]
#[command(after_help = "The file, in TOML:\n  \
    [[port]]                        # once for each interface\n  \
    interface = \"eth1\"\n  \
    next-hop = \"10.0.1.2\"           # where its circuits lead: a neighbour on the link\n  \
    mode = \"frame\"                  # or cell\n  \
    queue = 1024                    # cells that wait for each of its four priorities at most;\n  \
    \x20                               # a priority has a quarter as many circuits, calls included\n  \
    signalling = \"network\"          # circuits by calls: what hosts need; \"user\" towards another\n  \
    \x20                               # switch that is the network's side; by default none\n  \
    numbers = [\"47.0005.01\"]        # numbers that begin so are called by this port; the longest\n  \
    \x20                               # that fits counts, \"\" fits all\n  \
    calls = 256                     # at a time, of both directions; by default a quarter of queue\n  \
    [[port]]\n  \
    interface = \"eth2\"\n  \
    next-hop = \"10.0.2.2\"\n  \
    mode = \"cell\"\n  \
    label = 16                      # of all its cells\n  \
    [[circuit]]                     # once for each\n  \
    ends = [\"eth1/0.100\", \"eth2/0.200\"]\n  \
    priority = 1                    # 0 is served first, 3 last\n  \
    one-way = false                 # from the first end to the second alone\n  \
    aal5 = true                     # false: cells that are no PDUs, dropped one by one\n\n\
    Exit codes: 0 ended by a signal; 1 a device failed; 2 it could not begin.")]
pub struct Arguments {
    /// The configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print what would be done, and what is wrong with the file; touch nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let mut current = read(arguments)?;
    for port in &current.ports {
        check_interface(&port.interface)?;
    }
    if arguments.dry_run {
        return say_line(describe(&current).trim_end());
    }
    let stop = stop_flag()?;
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, reload.clone())
        .map_err(|error| Failure::io("catching signals", &error))?;
    let mut switch = open(&current)?;
    for warning in switch.forwarder().stacks().flat_map(|it| it.warnings()) {
        eprintln!("tidewall: {warning}");
    }
    say_line(&format!(
        "{} ports, {} directions of circuits{}; Ctrl-C ends",
        current.ports.len(),
        current.routes.len(),
        match signalling(&current).count() {
            0 => String::new(),
            ports => format!(", calls at {ports} ports"),
        }
    ))?;
    while !stop.load(Ordering::Relaxed) {
        match switch.turn(LOOK) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => other.map_err(|error| Failure::io("switching", &error))?,
        }
        let first = switch.stack().cloned();
        if let Some(stack) = first {
            stack.answer_operator(|request| operate(&mut switch, &mut current, request));
        }
        if reload.swap(false, Ordering::Relaxed) {
            match read(arguments) {
                Ok(new) => change(&mut switch, &mut current, new)?,
                // The switch goes on with its old configuration.
                Err(failure) => eprintln!("tidewall: {failure}"),
            }
        }
    }
    totals(&mut switch)
}

fn read(arguments: &Arguments) -> Result<Setup, Failure> {
    config::read(&arguments.file).map_err(|error| Failure::usage(error.to_string()))
}

fn signalling(setup: &Setup) -> impl Iterator<Item = &CellPort> {
    setup.ports.iter().filter(|port| port.signals.is_some())
}

fn open(setup: &Setup) -> Result<CellSwitch, Failure> {
    let names = setup.ports.iter().map(|port| port.interface.as_str());
    let what = format!("opening {}", names.collect::<Vec<_>>().join(", "));
    let opened = CellSwitch::open(setup.ports.clone(), setup.prefixes.clone());
    let mut switch = opened.map_err(|error| Failure::io(&what, &error))?;
    for route in &setup.routes {
        add(&mut switch, setup, *route)?;
    }
    Ok(switch)
}

fn add(switch: &mut CellSwitch, setup: &Setup, route: Route) -> Outcome {
    switch
        .add(route)
        .map_err(|error| Failure::answer(format!("{}: {error}", named(&setup.ports, route.from))))
}

/// Adds a circuit to the table by hand, or removes one.
fn operate(switch: &mut CellSwitch, current: &mut Setup, request: &str) -> Result<String, String> {
    let words: Vec<&str> = request.split_whitespace().collect();
    match words[..] {
        ["add", from, to, priority, ref rest @ ..] => {
            let priority = priority
                .parse()
                .map_err(|_| format!("{priority}: no priority"))?;
            let one_way = rest == ["one-way"];
            let routes = config::between([from, to], priority, one_way, &current.ports)?;
            for (number, route) in routes.iter().enumerate() {
                if let Err(error) = switch.add(*route) {
                    for added in routes.iter().take(number) {
                        // It was added just now, so this cannot fail.
                        let _ = switch.remove(added.from);
                    }
                    return Err(format!("{}: {error}", named(&current.ports, route.from)));
                }
            }
            current.routes.extend(&routes);
            Ok(format!(
                "{} directions from {from} to {to} added",
                routes.len()
            ))
        }
        ["add", _] => Err("a switch's circuit has two ends: add PID eth1/0.100 eth2/0.200".into()),
        ["remove", end] => {
            let end = config::end(end, &current.ports)?;
            let of = |route: &Route| route.from == end || route.to == end;
            let (gone, rest) = current.routes.iter().partition(|route| of(route));
            let (gone, rest): (Vec<Route>, Vec<Route>) = (gone, rest);
            if gone.is_empty() {
                let name = named(&current.ports, end);
                return Err(format!(
                    "no permanent circuit has the end {name}; see: tidewall atm pvc list"
                ));
            }
            for route in &gone {
                switch
                    .remove(route.from)
                    .map_err(|error| error.to_string())?;
            }
            current.routes = rest;
            Ok(format!("{} directions removed", gone.len()))
        }
        _ => Err(format!("{request}: not understood")),
    }
}

/// Applies the circuits of a new setup. Different ports need a new switch.
fn change(switch: &mut CellSwitch, current: &mut Setup, mut new: Setup) -> Outcome {
    if new.ports != current.ports {
        eprintln!("tidewall: circuits and numbers alone can change; ports need a restart");
        return Ok(());
    }
    switch.set_prefixes(new.prefixes.clone());
    // Removals come first: a new circuit may have the name of an old one.
    for gone in current.routes.iter().filter(|it| !new.routes.contains(it)) {
        switch
            .remove(gone.from)
            .map_err(|error| Failure::io("removing a circuit", &error))?;
    }
    // A circuit for which the driver's tables have no room is not fatal; the next SIGHUP
    // tries again.
    let there = |route: &Route| {
        current.routes.contains(route)
            || match add(switch, current, *route) {
                Ok(()) => true,
                Err(failure) => {
                    eprintln!("tidewall: {failure}");
                    false
                }
            }
    };
    new.routes.retain(there);
    *current = new;
    say_line(&format!("{} directions of circuits", current.routes.len()))
}

/// Returns an end's name as in the file.
fn named(ports: &[CellPort], end: End) -> String {
    let port = ports.get(end.port);
    let interface = port.map_or("", |port| port.interface.as_str());
    format!("{interface}/{}", end.circuit)
}

fn describe(setup: &Setup) -> String {
    let mut text = String::new();
    for (number, port) in setup.ports.iter().enumerate() {
        let how = match port.way {
            Way::Frame => "PDUs of AAL5, a label a circuit".to_owned(),
            Way::Cells(label) => format!("cells, all with label {}", label.value()),
        };
        let _ = writeln!(
            text,
            "port {} to {}: {how}; {} cells a queue",
            port.interface, port.next_hop, port.queue
        );
        if let Some(signals) = port.signals {
            let side = side_name(signals.side);
            let leads = setup.prefixes.iter().filter(|(_, port)| *port == number);
            let leads: Vec<_> = leads.map(|(prefix, _)| prefix.to_string()).collect();
            let numbers = match leads.is_empty() {
                true => "none: nobody there can be called".to_owned(),
                false => leads.join(", "),
            };
            let _ = writeln!(
                text,
                "  {side}'s side of signalling, {} calls, numbers {numbers}",
                signals.calls
            );
        }
    }
    for route in &setup.routes {
        let _ = writeln!(
            text,
            "{} to {}, priority {}{}",
            named(&setup.ports, route.from),
            named(&setup.ports, route.to),
            route.priority,
            if route.aal5 { "" } else { ", cell by cell" }
        );
    }
    if setup.routes.is_empty() && signalling(setup).next().is_none() {
        text += "no circuits: everything would be dropped\n";
    }
    text
}

fn totals(switch: &mut CellSwitch) -> Outcome {
    let counters = *switch.switch().counters();
    let all = counters.each().chain(switch.call_counters());
    let happened = all.filter(|(_, count)| *count > 0);
    let mut lines: Vec<String> = happened
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let output = switch.forwarder().output().counters();
    lines.push(format!(
        "frames sent in place {}, written {}; not sent: unreachable {}, refused {}; down {} times",
        output.in_place, output.copied, output.unreachable, output.refused, output.down
    ));
    say_line(&lines.join("\n"))
}
