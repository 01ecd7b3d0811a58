//! The loop of a cell switch: `tidewall_atm::switch` between interfaces.
//!
//! ```text
//!  frame of a circuit ─► passage? ─► another label, where it lies ─► device
//!            └─► Switch::input ─► queues ─► Switch::transmit ─► device
//!                                    └─► signalling (`calls`), which writes the table
//! ```
//!
//! Full packets leave as soon as there are cells for them, the others at the end of a
//! received batch. A packet that a device rejects waits, and holds up the whole port; the
//! queues behind it fill.

mod calls;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tidewall_atm::exchange::{self, NumberPrefix, Request};
use tidewall_atm::signalling::Side;
use tidewall_atm::sscop::State;
use tidewall_atm::switch::{Counters, End, Mode, Route, RouteError, Switch};
use tidewall_forward::{Arrived, Forwarder, Labelled, Output, OutputCounters};
use tidewall_stack::StackHandle;
use tidewall_stack::snapshot::{
    CellRoute, CellSwitchPort, CellSwitchSnapshot, SwitchedCall, SwitchedEnd,
};
use tidewall_stack::stack::EmbeddedConfig;
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::pseudowire::{CELL_LEN, HEADER_LEN, Label};

use calls::Calls;
use tidewall_forward::counter_names as status;

pub use calls::{Signals, ports_of, routes_of};

/// Delay before a waiting packet is retried.
const RETRY: Duration = Duration::from_millis(5);

/// A port of a cell switch: an interface, and the neighbour at the other end of its
/// circuits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellPort {
    /// The interface.
    pub interface: String,
    /// Address of the neighbour, which is resolved like any on the link.
    pub next_hop: IpAddr,
    /// The encoding of cells on it.
    pub way: Way,
    /// Cells that each of its queues holds.
    pub queue: usize,
    /// How it signals; `None`: circuit 0.5 is an ordinary one.
    pub signals: Option<Signals>,
}

/// Counter of invalid signalling PDUs.
const DROPPED: &str = "dropped-signalling";
/// The queue of circuits set up by calls.
const CALL_PRIORITY: usize = 1;

/// How cells are carried over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In AAL5 PDUs, with one label per circuit (RFC 4717's AAL5 PDU frame mode).
    Frame,
    /// Cells of all circuits behind one label (RFC 4717's N-to-one cell mode).
    Cells(Label),
}

impl Way {
    /// Returns its name for people and in files.
    pub fn name(self) -> &'static str {
        match self {
            Way::Frame => "frame",
            Way::Cells(_) => "cell",
        }
    }

    /// Returns the corresponding mode of the switch's port.
    pub fn mode(self) -> Mode {
        match self {
            Way::Frame => Mode::Frame,
            Way::Cells(label) => Mode::Cells(label),
        }
    }
}

/// A switch and its interfaces.
pub struct CellSwitch {
    entries: Entries,
    calls: Option<Calls>,
}

/// The table, and the interfaces whose labels follow it.
struct Entries {
    switch: Switch,
    forwarder: Forwarder,
    ports: Vec<PortState>,
}

struct PortState {
    port: CellPort,
    /// A packet that the device has not accepted; while it is not empty, nothing else
    /// leaves.
    unsent: Vec<u8>,
}

/// Why an entry is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table rejects it.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A call has the circuit, or had it and both ends have not released it yet.
    #[error("{0} of that port is a call's")]
    Call(Circuit),
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Entries {
    fn add(&mut self, route: Route) -> Result<(), Error> {
        self.switch.add(route)?;
        if let Some(label) = self.label(route.from)
            && let Err(error) = self.forwarder.claim_label(route.from.port, label)
        {
            self.switch.remove(route.from);
            return Err(error.into());
        }
        Ok(())
    }

    fn remove(&mut self, from: End) -> io::Result<()> {
        if self.switch.remove(from)
            && let Some(label) = self.label(from)
        {
            self.forwarder.release_label(from.port, label)?;
        }
        Ok(())
    }

    /// Returns the label of a circuit that has its own.
    fn label(&self, end: End) -> Option<Label> {
        let port = self.ports.get(end.port)?;
        match port.port.way {
            Way::Frame => Label::of_circuit(end.circuit),
            Way::Cells(_) => None,
        }
    }

    /// Carries out a call's request on the table.
    fn request(&mut self, request: Request) -> bool {
        match request {
            Request::IsFree(end) => !self.switch.is_used(end),
            Request::Enter([near, far]) => {
                let one_way = |from, to| Route {
                    from,
                    to,
                    priority: CALL_PRIORITY,
                    aal5: true,
                };
                let entered = self.add(one_way(near, far)).is_ok();
                let both = entered && self.add(one_way(far, near)).is_ok();
                if entered && !both {
                    let _ = self.remove(near);
                }
                both
            }
            Request::Remove(ends) => {
                for end in ends {
                    // If the label stays, its frames count as those of no circuit.
                    let _ = self.remove(end);
                }
                true
            }
        }
    }

    fn is_waiting(&self) -> bool {
        let ports = self.ports.iter().enumerate();
        let mut waiting =
            ports.map(|(number, port)| !port.unsent.is_empty() || self.switch.is_waiting(number));
        waiting.any(|waits| waits)
    }
}

impl CellSwitch {
    /// Takes the queues of these ports' interfaces. Only circuits of signalling lead
    /// anywhere so far. Ports are named by their indices from here on; numbers that begin
    /// with a prefix lead to its port.
    ///
    /// # Errors
    /// Those of [`Forwarder::open`], also for two ports on one interface; EADDRINUSE for
    /// a label.
    pub fn open(ports: Vec<CellPort>, prefixes: Vec<(NumberPrefix, usize)>) -> io::Result<Self> {
        let configs = ports.iter().map(|it| EmbeddedConfig::new(&it.interface));
        let mut forwarder = Forwarder::open(configs.collect())?;
        for (number, port) in ports.iter().enumerate() {
            if let Way::Cells(label) = port.way {
                forwarder.claim_label(number, label)?;
            }
        }
        forwarder.begin_stat();
        let calls = Calls::new(&ports, prefixes);
        let signalling = routes_of(&ports);
        let mut entries = Entries {
            switch: Switch::new(&ports_of(&ports)),
            forwarder,
            ports: ports
                .into_iter()
                .map(|port| PortState {
                    port,
                    unsent: Vec::new(),
                })
                .collect(),
        };
        for route in signalling {
            entries.add(route).map_err(|error| match error {
                Error::System(error) => error,
                other => io::Error::other(other),
            })?;
        }
        Ok(CellSwitch { entries, calls })
    }

    /// Adds one direction of a permanent circuit.
    ///
    /// # Errors
    /// [`Error`]; nothing is changed.
    pub fn add(&mut self, route: Route) -> Result<(), Error> {
        let calls = self.calls.as_ref().map(Calls::exchange);
        let held = |end: &End| calls.is_some_and(|calls| calls.holds(*end));
        if let Some(end) = [route.from, route.to].into_iter().find(held) {
            return Err(Error::Call(end.circuit));
        }
        self.entries.add(route)
    }

    /// Removes an entry and drops its waiting cells.
    ///
    /// # Errors
    /// Those of [`Forwarder::release_label`].
    pub fn remove(&mut self, from: End) -> io::Result<()> {
        self.entries.remove(from)
    }

    /// Sets which numbers lead to which port from now on; existing calls stay.
    pub fn set_prefixes(&mut self, prefixes: Vec<(NumberPrefix, usize)>) {
        if let Some(calls) = &mut self.calls {
            calls.exchange_mut().set_prefixes(prefixes);
        }
    }

    /// Returns the table and the counters.
    pub fn switch(&self) -> &Switch {
        &self.entries.switch
    }

    /// Returns the counters of calls, by name; empty if no port signals.
    pub fn call_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.calls.iter().flat_map(of_calls)
    }

    /// Returns the stack of the first port, through which operators reach the switch.
    pub fn stack(&self) -> Option<&StackHandle> {
        self.entries.forwarder.stacks().next()
    }

    /// Returns the interfaces.
    pub fn forwarder(&mut self) -> &mut Forwarder {
        &mut self.entries.forwarder
    }

    /// Waits until something arrives, no longer than `most`, and switches it.
    ///
    /// # Errors
    /// The error of the interfaces; EINTR.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        let CellSwitch { entries, calls } = self;
        let retry = entries.is_waiting().then_some(RETRY);
        let due = calls.as_ref().and_then(|calls| calls.wait(&entries.switch));
        let most = [retry, due].into_iter().flatten().fold(most, Duration::min);
        entries.forwarder.wait(Some(most))?;
        let Entries {
            switch,
            forwarder,
            ports,
        } = entries;
        forwarder.receive_batch(|output, arrived| match arrived {
            Some(arrived) => {
                input(switch, ports, output, arrived);
                send(switch, ports, output, false);
            }
            None => send(switch, ports, output, true),
        });
        if let Some(calls) = calls {
            calls.serve(entries);
        }
        if entries.is_waiting() {
            let output = entries.forwarder.output();
            send(&mut entries.switch, &mut entries.ports, output, true);
            output.flush();
        }
        let output = entries.forwarder.output().counters();
        let Entries {
            switch,
            forwarder,
            ports,
        } = &*entries;
        forwarder.answer_stat_of_cells(|| snapshot(switch, ports, calls.as_ref(), output));
        Ok(())
    }
}

fn input(switch: &mut Switch, ports: &[PortState], output: &mut Output, arrived: &mut Arrived<'_>) {
    let from = arrived.interface();
    let passage = arrived
        .labelled()
        .and_then(|packet| switch.passage(from, packet));
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
    let Some(packet) = arrived.labelled() else {
        return;
    };
    let before = arrived.is_followed().then(|| *switch.counters());
    match packet.as_slice() {
        Some(bytes) => switch.input(from, bytes),
        None => {
            let mut joined = Vec::with_capacity(packet.len());
            packet.append_to(&mut joined);
            switch.input(from, &joined);
        }
    }
    if let Some(before) = before {
        arrived.trace("switched", || changes(&before, switch.counters()));
    }
}

/// Describes the effect of a packet on the counters.
fn changes(before: &Counters, after: &Counters) -> String {
    let pairs = before.each().zip(after.each());
    let changed = pairs.filter(|((_, before), (_, after))| after > before);
    let changed = changed.map(|((name, before), (_, after))| format!("{name} {}", after - before));
    changed.collect::<Vec<_>>().join(", ")
}

/// Sends the waiting packets: all, or only full ones.
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

fn snapshot(
    switch: &Switch,
    ports: &[PortState],
    calls: Option<&Calls>,
    output: OutputCounters,
) -> CellSwitchSnapshot {
    let mut snapshot = CellSwitchSnapshot::default();
    for (number, PortState { port, .. }) in ports.iter().enumerate() {
        let mut entry = CellSwitchPort::default();
        entry.interface = port.interface.clone();
        entry.mode = port.way.name().to_owned();
        entry.waiting = switch.waiting(number).map(|cells| cells as u64).to_vec();
        entry.queue = port.queue as u64;
        entry.side = port.signals.map(|it| side_name(it.side).to_owned());
        snapshot.ports.push(entry);
    }
    let exchange = calls.map(Calls::exchange);
    let name = |end: End| {
        let port = ports.get(end.port);
        let interface = port.map_or("", |it| it.port.interface.as_str());
        format!("{interface}/{}", end.circuit)
    };
    for (number, entry) in snapshot.ports.iter_mut().enumerate() {
        let link = exchange.and_then(|it| it.link(number));
        entry.link_up = link.is_some_and(|link| link.link().state() == State::Ready);
    }
    let outside = |(route, _): &(&Route, u64)| route.from.port.max(route.to.port) < ports.len();
    for (route, cells) in switch.loads().filter(outside) {
        let mut entry = CellRoute::default();
        (entry.from, entry.to) = (name(route.from), name(route.to));
        (entry.priority, entry.cells) = (route.priority as u64, cells);
        entry.call = exchange.is_some_and(|it| it.holds(route.from));
        snapshot.table.push(entry);
    }
    snapshot.circuits = snapshot.table.len() as u64;
    let calls_of = exchange
        .into_iter()
        .flat_map(|it| it.calls().map(move |call| (it, call)));
    for (exchange, call) in calls_of {
        let mut entry = SwitchedCall::default();
        entry.calling = call.calling.map(|it| it.to_string());
        entry.called = call.called.to_string();
        for leg in &call.legs {
            let mut end = SwitchedEnd::default();
            let port = ports.get(leg.port).map(|it| &it.port);
            end.interface = port.map_or(String::new(), |it| it.interface.clone());
            end.circuit = leg.circuit.map(|it| it.to_string());
            let letter = match port.and_then(|it| it.signals).map(|it| it.side) {
                Some(Side::User) => 'U',
                _ => 'N',
            };
            end.state = format!("{letter}{}", exchange.state(leg));
            entry.ends.push(end);
        }
        snapshot.calls.push(entry);
    }
    let counters = switch.counters().each().chain(status::sent(output));
    snapshot.counters = status::named(counters.chain(calls.into_iter().flat_map(of_calls)));
    snapshot
}

/// Returns a side's name for people and in files.
pub fn side_name(side: Side) -> &'static str {
    match side {
        Side::Network => "network",
        Side::User => "user",
    }
}

/// Returns the counters of calls.
fn of_calls(calls: &Calls) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let dropped = (DROPPED, calls.dropped());
    let counters = calls.exchange().counters().each();
    counters.into_iter().chain([dropped])
}

/// Returns the names of all counters of a cell switch, in the form of `tidewall stat`.
pub fn counter_names() -> impl Iterator<Item = String> {
    let all = Counters::default();
    let calls = exchange::Counters::default().each().into_iter();
    let calls = calls.chain([(DROPPED, 0)]);
    let names = all.each().chain(status::sent(OutputCounters::default()));
    let names: Vec<String> = names
        .chain(calls)
        .map(|(name, _)| status::shown(name))
        .collect();
    names.into_iter()
}
