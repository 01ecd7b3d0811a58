//! The configuration file of a cell switch.

use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use tidewall_atm::exchange::NumberPrefix;
use tidewall_atm::signalling::Side;
use tidewall_atm::switch::{CELLS_OF_CIRCUIT, End, PRIORITIES, QUEUE_MIN, Route, Switch};
use tidewall_circuits::cell_switch::{CellPort, Signals, Way, ports_of, routes_of};
use tidewall_wire::atm::pseudowire::Label;
use toml::Spanned;

use super::circuit;
use crate::toml_file::{self, Error, Wrong};

/// Default capacity of a queue in cells: five PDUs of 9,180 bytes.
const QUEUE: usize = 1024;
/// Largest capacity of a queue in cells: 6.8 MB for all priorities of a port.
const QUEUE_MAX: usize = 32_768;
/// Default label of cells: the first that is not reserved. No circuit has so low a label.
const LABEL: u32 = Label::FIRST;

/// Most calls of a port that a file may set: there are no more VCIs.
const CALLS_MAX: usize = 65_000;

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub ports: Vec<CellPort>,
    /// Prefixes of called numbers, with the port to which they lead.
    pub prefixes: Vec<(NumberPrefix, usize)>,
    /// One entry per direction.
    pub routes: Vec<Route>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    port: Vec<Spanned<PortTable>>,
    #[serde(default)]
    circuit: Vec<Spanned<CircuitTable>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PortTable {
    interface: Spanned<String>,
    next_hop: IpAddr,
    #[serde(default)]
    mode: ModeName,
    label: Option<Spanned<u32>>,
    queue: Option<Spanned<usize>>,
    signalling: Option<SideName>,
    #[serde(default)]
    numbers: Vec<Spanned<String>>,
    calls: Option<Spanned<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SideName {
    Network,
    User,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeName {
    #[default]
    Frame,
    Cell,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CircuitTable {
    ends: Spanned<[String; 2]>,
    #[serde(default)]
    one_way: bool,
    priority: Option<Spanned<usize>>,
    aal5: Option<bool>,
}

/// Reads a file without touching the system.
pub fn read(path: &Path) -> Result<Setup, Error> {
    toml_file::read(path, parse)
}

/// Parses the setup; an error names the place in the text.
fn parse(text: &str) -> Result<Setup, Wrong> {
    let file: File = toml_file::from_str(text)?;
    let mut ports: Vec<CellPort> = Vec::new();
    let mut prefixes: Vec<(NumberPrefix, usize)> = Vec::new();
    for table in &file.port {
        let port = port(table.get_ref())?;
        if ports.iter().any(|it| it.interface == port.interface) {
            let place = table.get_ref().interface.span().start;
            return Err((place, format!("{} is a port already", port.interface)));
        }
        for number in &table.get_ref().numbers {
            let wrong = |what: String| (number.span().start, what);
            let prefix: NumberPrefix = (number.get_ref().parse())
                .map_err(|error| wrong(format!("{}: {error}", number.get_ref())))?;
            if port.signals.is_none() {
                let what = "numbers lead to ports with signalling = \"network\" or \"user\"";
                return Err(wrong(what.to_owned()));
            }
            if prefixes.iter().any(|(other, _)| *other == prefix) {
                return Err(wrong(format!("{prefix} leads to a port already")));
            }
            prefixes.push((prefix, ports.len()));
        }
        ports.push(port);
    }
    if ports.is_empty() {
        return Err((0, "no ports: a switch needs a [[port]]".to_owned()));
    }
    // Errors that the switch would report are found here.
    let mut switch = Switch::new(&ports_of(&ports));
    for route in routes_of(&ports) {
        let added = switch.add(route);
        added.map_err(|error| (0, error.to_string()))?;
    }
    let mut routes = Vec::new();
    for table in &file.circuit {
        for route in both(table.get_ref(), &ports)? {
            let added = switch.add(route);
            added.map_err(|error| (table.get_ref().ends.span().start, error.to_string()))?;
            routes.push(route);
        }
    }
    Ok(Setup {
        ports,
        prefixes,
        routes,
    })
}

fn port(table: &PortTable) -> Result<CellPort, Wrong> {
    let queue = table.queue.as_ref().map_or(QUEUE, |it| *it.get_ref());
    if let Some(place) = &table.queue
        && !(QUEUE_MIN..=QUEUE_MAX).contains(&queue)
    {
        let what = format!("{queue}: a queue has {QUEUE_MIN} to {QUEUE_MAX} cells");
        return Err((place.span().start, what));
    }
    let number = table.label.as_ref().map_or(LABEL, |it| *it.get_ref());
    let label = Label::new(number).filter(|label| label.value() >= Label::FIRST);
    let way = match (table.mode, &table.label, label) {
        (ModeName::Frame, None, _) => Way::Frame,
        (ModeName::Frame, Some(place), _) => {
            let what = "a port of mode frame has a label a circuit".to_owned();
            return Err((place.span().start, what));
        }
        (ModeName::Cell, _, Some(label)) => Way::Cells(label),
        (ModeName::Cell, place, None) => {
            let place = place.as_ref().map_or(0, |it| it.span().start);
            return Err((place, format!("{number}: a label is 16 to 1048575")));
        }
    };
    Ok(CellPort {
        interface: table.interface.get_ref().clone(),
        next_hop: table.next_hop,
        way,
        queue,
        signals: signals(table, queue)?,
    })
}

fn signals(table: &PortTable, queue: usize) -> Result<Option<Signals>, Wrong> {
    // Each circuit has an entry in the queue of its priority.
    let most = queue / CELLS_OF_CIRCUIT;
    let calls = table.calls.as_ref().map_or(most, |it| *it.get_ref());
    if let Some(place) = &table.calls {
        let place = place.span().start;
        if table.signalling.is_none() {
            return Err((place, "a port without signalling has no calls".to_owned()));
        }
        if !(1..=CALLS_MAX).contains(&calls) {
            return Err((place, format!("{calls}: a port has 1 to {CALLS_MAX} calls")));
        }
    }
    Ok(table.signalling.map(|side| Signals {
        side: match side {
            SideName::Network => Side::Network,
            SideName::User => Side::User,
        },
        calls,
    }))
}

/// Returns both directions of a circuit, or one.
fn both(table: &CircuitTable, ports: &[CellPort]) -> Result<Vec<Route>, Wrong> {
    let place = table.ends.span().start;
    let [from, to] = table.ends.get_ref();
    let priority = table.priority.as_ref().map_or(1, |it| *it.get_ref());
    if let Some(place) = table.priority.as_ref().filter(|_| priority >= PRIORITIES) {
        let what = format!("{priority}: priorities are 0 (first) to {}", PRIORITIES - 1);
        return Err((place.span().start, what));
    }
    let routes = between([from, to], priority, table.one_way, ports);
    let mut routes = routes.map_err(|what| (place, what))?;
    for route in &mut routes {
        route.aal5 = table.aal5.unwrap_or(true);
    }
    Ok(routes)
}

/// Returns the directions of a PDU circuit between ends named as in the file.
///
/// # Errors
/// A description of the end that is invalid.
pub fn between(
    [from, to]: [&str; 2],
    priority: usize,
    one_way: bool,
    ports: &[CellPort],
) -> Result<Vec<Route>, String> {
    let (from, to) = (end(from, ports)?, end(to, ports)?);
    let route = Route {
        from,
        to,
        priority,
        aal5: true,
    };
    let back = Route {
        from: to,
        to: from,
        ..route
    };
    Ok(match one_way {
        true => vec![route],
        false => vec![route, back],
    })
}

/// Parses `INTERFACE/VPI.VCI`.
///
/// # Errors
/// A description of what is wrong with it.
pub fn end(text: &str, ports: &[CellPort]) -> Result<End, String> {
    let parts = text.split_once('/');
    let (interface, name) =
        parts.ok_or_else(|| format!("{text}: not INTERFACE/VPI.VCI such as eth1/0.100"))?;
    let port = ports.iter().position(|port| port.interface == interface);
    Ok(End {
        port: port.ok_or_else(|| format!("{interface} is no port of this file"))?,
        circuit: circuit(name).map_err(|error| format!("{text}: {error}"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"[[port]]
interface = "eth1"
next-hop = "10.0.1.2"

[[port]]
interface = "eth2"
next-hop = "fe80::2"
mode = "cell"
label = 99
queue = 64
signalling = "network"
numbers = ["47.0005", "39"]
calls = 100

[[circuit]]
ends = ["eth1/0.100", "eth2/3.200"]
priority = 0

[[circuit]]
ends = ["eth2/3.201", "eth2/3.202"]
one-way = true
aal5 = false
"#;

    #[test]
    fn everything_that_may_be_said_is_understood() {
        let setup = parse(WHOLE).unwrap();
        let [first, second] = &setup.ports[..] else {
            panic!("{setup:?}");
        };
        assert_eq!((first.way, first.queue), (Way::Frame, QUEUE));
        let label = Label::new(99).unwrap();
        assert_eq!((second.way, second.queue), (Way::Cells(label), 64));
        let signals = second.signals.unwrap();
        assert_eq!((signals.side, signals.calls), (Side::Network, 100));
        assert_eq!(first.signals, None);
        let leads = setup.prefixes.iter().map(|it| (it.0.to_string(), it.1));
        let expected = [("470005", 1), ("39", 1)].map(|(it, port)| (it.to_owned(), port));
        assert_eq!(leads.collect::<Vec<_>>(), expected);
        assert_eq!(second.next_hop, "fe80::2".parse::<IpAddr>().unwrap());
        let [there, back, one] = &setup.routes[..] else {
            panic!("{setup:?}");
        };
        assert_eq!((there.from, there.to), (back.to, back.from));
        assert_eq!(there.from.port, 0);
        assert_eq!(there.to.circuit.to_string(), "3.200");
        assert_eq!((there.priority, there.aal5), (0, true));
        assert_eq!((one.priority, one.aal5, one.to.port), (1, false, 1));
    }

    #[test]
    fn the_example_is_understood() {
        let setup = parse(include_str!("../../../../packaging/cells.toml")).unwrap();
        assert_eq!((setup.prefixes.len(), setup.routes.len()), (2, 2));
    }

    #[test]
    fn errors_name_their_line_and_cause() {
        for (from, to, line, part) in [
            ("\"eth1\"", "1", 2, "string"),
            ("10.0.1.2", "10.0.1", 3, ""),
            ("\"eth2\"\n", "\"eth1\"\n", 6, "a port already"),
            ("\"cell\"", "\"cells\"", 8, "cells"),
            ("mode = \"cell\"", "", 9, "a label a circuit"),
            ("label = 99", "label = 15", 9, "16 to 1048575"),
            ("queue = 64", "queue = 1", 10, "16 to 32768"),
            ("queue = 64", "limit = 1", 10, "limit"),
            ("\"network\"", "\"other\"", 11, "other"),
            ("signalling = \"network\"\n", "", 12, "without signalling"),
            ("\"39\"", "\"3g\"", 12, "3g: not the beginning"),
            ("\"39\"", "\"470005\"", 12, "leads to a port already"),
            ("calls = 100", "calls = 0", 13, "1 to 65000"),
            ("eth2/3.201", "eth2/0.5", 20, "somewhere already"),
            ("eth1/0.100", "eth3/0.100", 16, "no port"),
            ("eth1/0.100", "eth1/15.100", 16, "no circuit"),
            ("eth1/0.100", "eth1:0.100", 16, "INTERFACE/VPI.VCI"),
            ("priority = 0", "priority = 4", 17, "0 (first) to 3"),
            ("eth2/3.201", "eth2/3.200", 20, "somewhere already"),
            ("eth2/3.202", "eth2/3.200", 20, "another circuit leaves"),
        ] {
            let text = WHOLE.replacen(from, to, 1);
            assert_ne!(text, WHOLE);
            let (place, what) = parse(&text).unwrap_err();
            let at = text[..place].matches('\n').count() + 1;
            assert!(at == line && what.contains(part), "{to}: line {at}: {what}");
        }
        assert!(parse("").unwrap_err().1.contains("[[port]]"));
    }
}
