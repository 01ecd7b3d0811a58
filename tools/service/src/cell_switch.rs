//! The loop of a switch of cells: `tidewall_atm::switch` between interfaces.
//!
//! ```text
//!  frame of a circuit ─► passage? ─► another label, where it lies ─► device
//!            └─► Switch::input ─► queues ─► Switch::transmit ─► device
//! ```
//!
//! Full packets leave as soon as there are cells for them, the others when a batch of what
//! came has ended. What a device does not take waits, for the whole port, and the queues
//! behind it fill.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tidewall_atm::switch::{Counters, End, Mode, Port, Route, RouteError, Switch};
use tidewall_socket::EmbeddedConfig;
use tidewall_socket::forward::{Arrived, Forwarder, Labelled, Output, OutputCounters};
use tidewall_socket::snapshot::{CellSwitchPort, CellSwitchSnapshot};
use tidewall_wire::atm::pseudowire::{CELL_LEN, HEADER_LEN, Label};

use crate::switch::status;

/// How soon what waits is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// A port of a switch of cells: an interface, and the neighbour that its circuits lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellPort {
    /// The interface.
    pub interface: String,
    /// Address of the neighbour, which is found as any on the link.
    pub next_hop: IpAddr,
    /// What goes there.
    pub way: Way,
    /// Cells that each of its queues holds.
    pub queue: usize,
}

/// How cells go over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In PDUs of AAL5, a label a circuit (RFC 4717's AAL5 PDU frame mode).
    Frame,
    /// Cells of all circuits behind one label (its N-to-one cell mode).
    Cells(Label),
}

impl Way {
    /// Its name for people and in files.
    pub fn name(self) -> &'static str {
        match self {
            Way::Frame => "frame",
            Way::Cells(_) => "cell",
        }
    }

    /// What a port of the switch is then.
    pub fn mode(self) -> Mode {
        match self {
            Way::Frame => Mode::Frame,
            Way::Cells(label) => Mode::Cells(label),
        }
    }
}

/// A switch and its interfaces.
pub struct CellSwitch {
    switch: Switch,
    forwarder: Forwarder,
    ports: Vec<PortState>,
}

struct PortState {
    port: CellPort,
    /// A packet that the device has not taken; with bytes, nothing else leaves.
    unsent: Vec<u8>,
}

/// Why something is not switched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table does not take it.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The system refuses it.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl CellSwitch {
    /// Takes the queues of these ports' interfaces; no circuit leads anywhere yet. Ports are
    /// named by their places from here on.
    ///
    /// # Errors
    /// As [`Forwarder::open`], for two ports on one interface, too; EADDRINUSE for a label.
    pub fn open(ports: Vec<CellPort>) -> io::Result<Self> {
        let configs = ports.iter().map(|it| EmbeddedConfig::new(&it.interface));
        let mut forwarder = Forwarder::open(configs.collect())?;
        for (number, port) in ports.iter().enumerate() {
            if let Way::Cells(label) = port.way {
                forwarder.claim_label(number, label)?;
            }
        }
        forwarder.begin_stat();
        let modes = ports.iter().map(|port| Port {
            mode: port.way.mode(),
            queue: port.queue,
        });
        Ok(CellSwitch {
            switch: Switch::new(&modes.collect::<Vec<_>>()),
            forwarder,
            ports: ports
                .into_iter()
                .map(|port| PortState {
                    port,
                    unsent: Vec::new(),
                })
                .collect(),
        })
    }

    /// Enters one direction of a circuit.
    ///
    /// # Errors
    /// [`Error`]; nothing is changed.
    pub fn add(&mut self, route: Route) -> Result<(), Error> {
        self.switch.add(route)?;
        if let Some(label) = self.label(route.from)
            && let Err(error) = self.forwarder.claim_label(route.from.port, label)
        {
            self.switch.remove(route.from);
            return Err(error.into());
        }
        Ok(())
    }

    /// Takes an entry out; its cells that wait are dropped.
    ///
    /// # Errors
    /// As [`Forwarder::release_label`].
    pub fn remove(&mut self, from: End) -> io::Result<()> {
        if self.switch.remove(from)
            && let Some(label) = self.label(from)
        {
            self.forwarder.release_label(from.port, label)?;
        }
        Ok(())
    }

    /// The label of a circuit that has one of its own.
    fn label(&self, end: End) -> Option<Label> {
        let port = self.ports.get(end.port)?;
        match port.port.way {
            Way::Frame => Label::of_circuit(end.circuit),
            Way::Cells(_) => None,
        }
    }

    /// The table and the counters.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The interfaces.
    pub fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.forwarder
    }

    /// Waits until something comes, no longer than `most`, and switches it.
    ///
    /// # Errors
    /// What the interfaces report; EINTR.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        let most = if self.is_waiting() {
            RETRY.min(most)
        } else {
            most
        };
        self.forwarder.wait(Some(most))?;
        let CellSwitch {
            switch,
            forwarder,
            ports,
        } = self;
        forwarder.receive_batch(|output, arrived| match arrived {
            Some(arrived) => {
                input(switch, ports, output, arrived);
                send(switch, ports, output, false);
            }
            None => send(switch, ports, output, true),
        });
        if self.is_waiting() {
            let output = self.forwarder.output();
            send(&mut self.switch, &mut self.ports, output, true);
            output.flush();
        }
        let output = self.forwarder.output().counters();
        let (switch, ports) = (&self.switch, &self.ports);
        self.forwarder
            .answer_stat_of_cells(|| snapshot(switch, ports, output));
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        let ports = self.ports.iter().enumerate();
        let mut waiting =
            ports.map(|(number, port)| !port.unsent.is_empty() || self.switch.is_waiting(number));
        waiting.any(|waits| waits)
    }
}

fn input(switch: &mut Switch, ports: &[PortState], output: &mut Output, arrived: &mut Arrived<'_>) {
    let from = arrived.interface();
    let passage = arrived
        .labelled()
        .and_then(|bytes| switch.passage(from, bytes));
    let to = passage.and_then(|it| ports.get(it.port).filter(|port| port.unsent.is_empty()));
    if let (Some(passage), Some(to)) = (passage, to) {
        let CellPort {
            next_hop,
            interface,
            ..
        } = &to.port;
        let sent = output.relabel(passage.port, *next_hop, passage.label, arrived);
        if sent == Labelled::Sent {
            switch.passed(passage);
            arrived.trace("relabelled", || {
                format!("{} by {interface}, in place", passage.label.value())
            });
            return;
        }
    }
    let Some(bytes) = arrived.labelled() else {
        return;
    };
    let before = arrived.is_followed().then(|| *switch.counters());
    switch.input(from, bytes);
    if let Some(before) = before {
        arrived.trace("switched", || changes(&before, switch.counters()));
    }
}

/// What a packet came to.
fn changes(before: &Counters, after: &Counters) -> String {
    let pairs = before.each().zip(after.each());
    let changed = pairs.filter(|((_, before), (_, after))| after > before);
    let changed = changed.map(|((name, before), (_, after))| format!("{name} {}", after - before));
    changed.collect::<Vec<_>>().join(", ")
}

/// Sends what waits, all of it or full packets alone.
fn send(switch: &mut Switch, ports: &mut [PortState], output: &mut Output, all: bool) {
    for (number, PortState { port, unsent }) in ports.iter_mut().enumerate() {
        loop {
            if unsent.is_empty() {
                let waiting: usize = switch.waiting(number).iter().sum();
                if waiting == 0 {
                    break;
                }
                let room = output.mtu(number);
                if !all && waiting < room.saturating_sub(HEADER_LEN) / CELL_LEN {
                    break;
                }
                unsent.resize(room, 0);
                let length = switch.transmit(number, unsent).unwrap_or(0);
                unsent.truncate(length);
                if length == 0 {
                    break;
                }
            }
            match output.send_labelled(number, port.next_hop, unsent) {
                Labelled::Sent | Labelled::Never => unsent.clear(),
                Labelled::Later => break,
            }
        }
    }
}

fn snapshot(switch: &Switch, ports: &[PortState], output: OutputCounters) -> CellSwitchSnapshot {
    let mut snapshot = CellSwitchSnapshot::default();
    for (number, PortState { port, .. }) in ports.iter().enumerate() {
        let mut entry = CellSwitchPort::default();
        entry.interface = port.interface.clone();
        entry.mode = port.way.name().to_owned();
        entry.waiting = switch.waiting(number).map(|cells| cells as u64).to_vec();
        entry.queue = port.queue as u64;
        snapshot.ports.push(entry);
    }
    snapshot.circuits = switch.routes().count() as u64;
    snapshot.counters = status::named(switch.counters().each().chain(status::sent(output)));
    snapshot
}

/// The names of all that is counted of a switch of cells, as `tidewall stat` has them.
pub fn counter_names() -> impl Iterator<Item = String> {
    let all = Counters::default();
    let names = all.each().chain(status::sent(OutputCounters::default()));
    let names: Vec<String> = names.map(|(name, _)| status::shown(name)).collect();
    names.into_iter()
}
