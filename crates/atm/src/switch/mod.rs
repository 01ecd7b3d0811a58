//! A switch of cells: cells that arrive on a port's circuit leave by another port's
//! circuit, as a table specifies (the Fairisle switch's role in Black and Crosby's
//! paper).
//!
//! Packets go in ([`Switch::input`]) and come out ([`Switch::transmit`]); between them
//! each cell waits in a bounded queue of its output port. The port's [`Mode`] determines
//! what a packet is:
//!
//! - cells of any circuits (RFC 4717's N-to-one mode);
//! - whole AAL5 PDUs or parts of them (its AAL5 PDU frame mode);
//! - cells of 53 bytes, as between a user and the network.
//!
//! A PDU of the frame mode is its cells without their headers, so every mode can be
//! switched to every other. Between two ports of the frame mode a packet may be forwarded
//! where it lies, with another label ([`Switch::passage`]).
//!
//! **Queues.** A port has [`PRIORITIES`] queues, the first of which is served before the
//! next. Within a queue its circuits are served in turn. A full queue drops by PDUs
//! rather than by cells, since a PDU that lacks a cell is useless (Romanow and Floyd,
//! JSAC 1995):
//!
//! - *early packet discard*: a PDU is not begun in a queue that is three quarters full
//!   (half full for cells of low priority). Beyond half, it is also not begun by a
//!   circuit that has more than an equal share of the waiting cells. Shares are for it,
//!   for the others and for one that may arrive. None of the PDU's cells is forwarded;
//! - *partial packet discard*: the queue is full within a PDU. Its further cells are
//!   dropped except the last, which tells the receiver where the next PDU begins. A place
//!   is kept for it from the PDU's first cell on.
//!
//! User cells that arrive while a queue is half full are marked (EFCI). Cells of OAM and
//! resource management keep their order in their circuit.

mod queue;
mod transmit;

use std::collections::{BTreeSet, VecDeque};

use tidewall_wire::atm::pseudowire::{self, CircuitCell, HEADER_LEN, Label, Packet};
use tidewall_wire::atm::{CELL_LEN, CELL_PAYLOAD_LEN, Cell, CellError, Circuit, PayloadType};
use tidewall_wire::pieces::Pieces;

use queue::{PduState, Queue, Waiting};

/// Queues of a port; 0 is served first.
pub const PRIORITIES: usize = 4;

/// Fewest cells that a queue may hold.
pub const QUEUE_MIN: usize = 16;

/// Queue places for each circuit that leads to it, of which one is kept for a last cell.
pub const CELLS_OF_CIRCUIT: usize = 4;

/// The contents of a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Label, control word, and an AAL5 PDU, a part of one or a cell: one label per
    /// circuit ([`Label::of_circuit`]), VPIs of 0 to [`Label::VPI_MAX`].
    Frame,
    /// Label, control word, and cells of any circuits behind this label; VPIs of 0 to 4,095.
    Cells(Label),
    /// Consecutive cells of 53 bytes, header error control checked and generated; VPIs of
    /// 0 to 255.
    User,
}

impl Mode {
    /// True if a circuit can be named there.
    #[must_use]
    pub const fn has(self, circuit: Circuit) -> bool {
        let most = match self {
            Self::Frame => Label::VPI_MAX,
            Self::Cells(_) => 0xfff,
            Self::User => 0xff,
        };
        circuit.vpi <= most && (circuit.vpi != 0 || circuit.vci != 0)
    }
}

/// A port.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The contents of its packets.
    pub mode: Mode,
    /// Cells that each of its queues holds, at least [`QUEUE_MIN`].
    pub queue: usize,
}

/// An end of a circuit: its port, and its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Index of the port in the list that the switch was created with.
    pub port: usize,
    /// VPI and VCI there.
    pub circuit: Circuit,
}

/// An entry of the table: one direction of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The end at which cells arrive.
    pub from: End,
    /// The end by which they leave.
    pub to: End,
    /// The queue, 0 to [`PRIORITIES`] - 1.
    pub priority: usize,
    /// Its cells are PDUs of AAL5, which are dropped whole. Others are dropped one by one.
    pub aal5: bool,
}

/// The reason why there is no such entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such port.
    #[error("there is no port {0}")]
    NoPort(usize),
    /// The port cannot name the circuit.
    #[error("{0} is no circuit of that port's mode")]
    Circuit(Circuit),
    /// There is no such queue.
    #[error("priorities are 0 to 3")]
    Priority,
    /// Arriving cells already go elsewhere.
    #[error("{0} of that port leads somewhere already")]
    FromInUse(Circuit),
    /// Cells of another circuit leave there: two in one would mix their PDUs.
    #[error("another circuit leaves by {0} of that port")]
    ToInUse(Circuit),
    /// Each circuit of a queue may need a place for a last cell.
    #[error("a queue of {queue} cells has room for {} circuits", .queue / CELLS_OF_CIRCUIT)]
    TooMany {
        /// Cells that the queue holds.
        queue: usize,
    },
}

/// The reason why a packet or a cell was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// A packet that is invalid in its port's mode.
    Malformed,
    /// A cell's header is damaged.
    HeaderErrorControl,
    /// A cell of a circuit without a route.
    NoCircuit,
    /// The first cell of a PDU that was not begun, or a PDU of a single cell.
    EarlyDiscard,
    /// The cell within a PDU for which the queue had no room.
    QueueFull,
    /// A further cell of a PDU that was refused.
    Rest,
    /// A cell that waited when its circuit was removed from the table.
    Removed,
}

impl DropReason {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::HeaderErrorControl,
        Self::NoCircuit,
        Self::EarlyDiscard,
        Self::QueueFull,
        Self::Rest,
        Self::Removed,
    ];

    /// The cause's name in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "dropped-malformed",
            Self::HeaderErrorControl => "dropped-hec",
            Self::NoCircuit => "dropped-no-circuit",
            Self::EarlyDiscard => "dropped-early-discard",
            Self::QueueFull => "dropped-queue-full",
            Self::Rest => "dropped-rest",
            Self::Removed => "dropped-removed",
        }
    }
}

/// A switch's counters. All but [`DropReason::Malformed`] and `packets` are cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received packets, including malformed ones.
    pub packets: u64,
    /// Received cells.
    pub received: u64,
    /// Forwarded cells of OAM and resource management, among those.
    pub not_user: u64,
    /// Sent cells, including those forwarded where they lay.
    pub sent: u64,
    /// Cells forwarded where they lay, among those.
    pub passed: u64,
    /// User cells that were marked because they met a half-full queue.
    pub marked: u64,
    /// Drops, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Number of drops for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason as usize).copied().unwrap_or(0)
    }

    /// All counters with their names.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("packets", self.packets),
            ("cells-in", self.received),
            ("cells-out", self.sent),
            ("cells-in-place", self.passed),
            ("cells-not-user", self.not_user),
            ("cells-marked", self.marked),
        ];
        let dropped = DropReason::ALL.map(|reason| (reason.name(), self.dropped(reason)));
        own.into_iter().chain(dropped)
    }
}

/// A circuit while it is in the table.
#[derive(Debug)]
struct Entry {
    route: Route,
    pdu: PduState,
    cells: VecDeque<Waiting>,
    /// Cells that were accepted for forwarding.
    taken: u64,
}

#[derive(Debug)]
struct PortState {
    mode: Mode,
    queues: [Queue; PRIORITIES],
    /// Indices into `Switch::entries`, by circuit.
    table: Vec<(Circuit, usize)>,
    /// Circuits that leave by it.
    leaving: BTreeSet<Circuit>,
    /// The last one found: cells of one circuit arrive together.
    last: Option<(Circuit, usize)>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<PortState>,
    entries: Vec<Option<Entry>>,
    /// Free indices in it.
    free: Vec<usize>,
    counters: Counters,
}

/// A packet that may be forwarded where it lies. Invalid after any other operation on the
/// switch.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    entry: usize,
    /// Its output port.
    pub port: usize,
    /// Its label there.
    pub label: Label,
    cells: usize,
    user: bool,
    last: bool,
}

/// Cells of a packet with the same header.
struct Run<'a> {
    circuit: Circuit,
    payload_type: PayloadType,
    low_priority: bool,
    payload: &'a [u8; CELL_PAYLOAD_LEN],
}

impl Switch {
    /// Starts without an entry. Queues smaller than [`QUEUE_MIN`] get that many places.
    #[must_use]
    pub fn new(ports: &[Port]) -> Self {
        let port = |port: &Port| PortState {
            mode: port.mode,
            queues: std::array::from_fn(|_| Queue::new(port.queue.max(QUEUE_MIN))),
            table: Vec::new(),
            leaving: BTreeSet::new(),
            last: None,
        };
        Self {
            ports: ports.iter().map(port).collect(),
            entries: Vec::new(),
            free: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Enters one direction of a circuit.
    ///
    /// # Errors
    /// [`RouteError`]; nothing is changed.
    pub fn add(&mut self, route: Route) -> Result<(), RouteError> {
        for end in [route.from, route.to] {
            let port = self.ports.get(end.port);
            let port = port.ok_or(RouteError::NoPort(end.port))?;
            if !port.mode.has(end.circuit) {
                return Err(RouteError::Circuit(end.circuit));
            }
        }
        if route.priority >= PRIORITIES {
            return Err(RouteError::Priority);
        }
        if self.find(route.from).is_some() {
            return Err(RouteError::FromInUse(route.from.circuit));
        }
        let Some(to) = self.ports.get_mut(route.to.port) else {
            return Err(RouteError::NoPort(route.to.port));
        };
        if to.leaving.contains(&route.to.circuit) {
            return Err(RouteError::ToInUse(route.to.circuit));
        }
        if let Some(queue) = to.queues.get_mut(route.priority) {
            queue.open()?;
        }
        to.leaving.insert(route.to.circuit);
        let entry = Some(Entry {
            route,
            pdu: PduState::None,
            cells: VecDeque::new(),
            taken: 0,
        });
        let place = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(place) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        if let Some(port) = self.ports.get_mut(route.from.port) {
            let circuit = route.from.circuit;
            let at = port.table.partition_point(|it| it.0 < circuit);
            port.table.insert(at, (circuit, place));
        }
        Ok(())
    }

    /// Removes the route of arriving cells; waiting cells are dropped. False if there is
    /// none.
    pub fn remove(&mut self, from: End) -> bool {
        let Some(place) = self.find(from) else {
            return false;
        };
        if let Some(port) = self.ports.get_mut(from.port) {
            port.table.retain(|it| it.1 != place);
            port.last = None;
        }
        let Some(entry) = self.entries.get_mut(place).and_then(Option::take) else {
            return false;
        };
        self.free.push(place);
        let route = entry.route;
        if let Some(port) = self.ports.get_mut(route.to.port) {
            port.leaving.remove(&route.to.circuit);
            if let Some(queue) = port.queues.get_mut(route.priority) {
                queue.remove(place, entry.cells.len(), entry.pdu);
            }
        }
        self.count(DropReason::Removed, entry.cells.len());
        true
    }

    /// True if a circuit's cells arrive at this end, or leave by it.
    #[must_use]
    pub fn is_used(&self, end: End) -> bool {
        let port = self.ports.get(end.port);
        port.is_some_and(|port| port.leaving.contains(&end.circuit)) || self.find(end).is_some()
    }

    /// The entries of the table.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.entries.iter().flatten().map(|entry| &entry.route)
    }

    /// As [`Switch::routes`], each with its forwarded cells.
    pub fn loads(&self) -> impl Iterator<Item = (&Route, u64)> {
        let entries = self.entries.iter().flatten();
        entries.map(|entry| (&entry.route, entry.taken))
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Cells that wait for a port, by priority.
    #[must_use]
    pub fn waiting(&self, port: usize) -> [usize; PRIORITIES] {
        let port = self.ports.get(port);
        port.map_or([0; PRIORITIES], |port| {
            port.queues.each_ref().map(Queue::len)
        })
    }

    /// True if cells wait for a port.
    #[must_use]
    pub fn is_waiting(&self, port: usize) -> bool {
        self.waiting(port).iter().any(|&cells| cells > 0)
    }

    /// Processes a packet received on a port: what follows the Ethernet header, or, for
    /// [`Mode::User`], cells. Its cells are queued, or dropped and counted.
    pub fn input(&mut self, port: usize, bytes: &[u8]) {
        self.counters.packets += 1;
        let Some(mode) = self.ports.get(port).map(|port| port.mode) else {
            self.count(DropReason::Malformed, 1);
            return;
        };
        let taken = match mode {
            Mode::User => self.input_user(port, bytes),
            Mode::Cells(label) => self.input_cells(port, label, bytes),
            Mode::Frame => self.input_frame(port, bytes),
        };
        if taken.is_none() {
            self.count(DropReason::Malformed, 1);
        }
    }

    fn input_user(&mut self, port: usize, bytes: &[u8]) -> Option<()> {
        let (cells, rest) = bytes.as_chunks::<CELL_LEN>();
        if cells.is_empty() || !rest.is_empty() {
            return None;
        }
        for bytes in cells {
            match Cell::new(bytes) {
                Ok(cell) => self.cell(
                    port,
                    &Run {
                        circuit: cell.header().circuit(),
                        payload_type: cell.header().payload_type,
                        low_priority: cell.header().low_priority,
                        payload: cell.payload(),
                    },
                ),
                Err(CellError::HeaderErrorControl { .. }) => {
                    self.counters.received += 1;
                    self.count(DropReason::HeaderErrorControl, 1);
                }
                Err(CellError::Length(_)) => return None,
            }
        }
        Some(())
    }

    fn input_cells(&mut self, port: usize, label: Label, bytes: &[u8]) -> Option<()> {
        let packet = Packet::new(bytes).ok().filter(|it| it.label() == label)?;
        for cell in packet.cells().ok()? {
            let pseudowire::Cell {
                circuit,
                payload_type,
                low_priority,
                payload,
            } = cell;
            self.cell(
                port,
                &Run {
                    circuit,
                    payload_type,
                    low_priority,
                    payload,
                },
            );
        }
        Some(())
    }

    fn input_frame(&mut self, port: usize, bytes: &[u8]) -> Option<()> {
        let packet = Packet::new(bytes).ok()?;
        let circuit = packet.label().circuit()?;
        match packet.frame() {
            Ok(frame) => {
                let (cells, _) = frame.bytes.as_chunks::<CELL_PAYLOAD_LEN>();
                let congested = u8::from(frame.header.congested) << 1;
                for (number, payload) in cells.iter().enumerate() {
                    let last = frame.header.last && number + 1 == cells.len();
                    self.cell(
                        port,
                        &Run {
                            circuit,
                            payload_type: PayloadType::from_bits(congested | u8::from(last)),
                            low_priority: frame.header.low_priority,
                            payload,
                        },
                    );
                }
                Some(())
            }
            Err(pseudowire::Error::NotFrame) => {
                let CircuitCell {
                    payload_type,
                    low_priority,
                    payload,
                    ..
                } = packet.cell().ok()?;
                self.cell(
                    port,
                    &Run {
                        circuit,
                        payload_type,
                        low_priority,
                        payload,
                    },
                );
                Some(())
            }
            Err(_) => None,
        }
    }

    fn cell(&mut self, port: usize, run: &Run<'_>) {
        self.counters.received += 1;
        let from = End {
            port,
            circuit: run.circuit,
        };
        let place = self.find_again(from);
        let Some(place) = place else {
            self.count(DropReason::NoCircuit, 1);
            return;
        };
        let (Some(Some(entry)), ports) = (self.entries.get_mut(place), &mut self.ports) else {
            return;
        };
        let Entry {
            route,
            pdu,
            cells,
            taken,
        } = entry;
        let queue = ports.get_mut(route.to.port);
        let Some(queue) = queue.and_then(|port| port.queues.get_mut(route.priority)) else {
            return;
        };
        let mut payload_type = run.payload_type;
        let admitted = if route.aal5 && payload_type.is_user() {
            queue.admit(pdu, cells.len(), payload_type.is_last(), run.low_priority)
        } else {
            queue.admit_one(run.low_priority)
        };
        if let Err(reason) = admitted {
            self.count(reason, 1);
            return;
        }
        if !payload_type.is_user() {
            self.counters.not_user += 1;
        } else if queue.is_half_full() && !payload_type.is_congested() {
            payload_type = PayloadType::from_bits(payload_type.bits() | 2);
            self.counters.marked += 1;
        }
        *taken += 1;
        if cells.is_empty() {
            queue.begin(place);
        }
        cells.push_back(Waiting {
            payload_type,
            low_priority: run.low_priority,
            payload: *run.payload,
        });
    }

    /// Whether a packet received on a port may be forwarded where it lies, with another
    /// label. Both ports must be of the frame mode, and nothing may wait for the second,
    /// so that it overtakes nothing. If it was sent, call [`Switch::passed`]; otherwise,
    /// and for everything else, call [`Switch::input`].
    #[must_use]
    pub fn passage(&mut self, port: usize, bytes: Pieces<'_>) -> Option<Passage> {
        if self.ports.get(port)?.mode != Mode::Frame {
            return None;
        }
        let packet = Packet::new(bytes.first()).ok()?;
        let circuit = packet.label().circuit()?;
        let place = self.find_again(End { port, circuit })?;
        let Entry { route, pdu, .. } = self.entries.get(place)?.as_ref()?;
        let to = self.ports.get(route.to.port)?;
        if to.mode != Mode::Frame || to.queues.iter().any(|queue| queue.len() > 0) {
            return None;
        }
        let length = bytes.len().saturating_sub(HEADER_LEN);
        let (cells, user, last) = match packet.frame_header(length) {
            Ok(header) => (length / CELL_PAYLOAD_LEN, true, header.last),
            Err(_) => {
                let payload_type = packet.cell().ok()?.payload_type;
                let user = payload_type.is_user();
                (1, user, !user || payload_type.is_last())
            }
        };
        // A PDU of which something was refused ends as it began.
        let whole = matches!(pdu, PduState::None | PduState::Passing);
        let queue = to.queues.get(route.priority)?;
        // Its further cells may have to be queued.
        let has_place = last || *pdu == PduState::Passing || queue.has_room(2);
        if !route.aal5 || !whole || !has_place {
            return None;
        }
        Some(Passage {
            entry: place,
            port: route.to.port,
            label: Label::of_circuit(route.to.circuit)?,
            cells,
            user,
            last,
        })
    }

    /// Records that a packet was forwarded where it lay.
    pub fn passed(&mut self, passage: Passage) {
        let cells = passage.cells as u64;
        self.counters.packets += 1;
        self.counters.received += cells;
        self.counters.sent += cells;
        self.counters.passed += cells;
        let (Some(Some(entry)), ports) = (self.entries.get_mut(passage.entry), &mut self.ports)
        else {
            return;
        };
        entry.taken += cells;
        if !passage.user {
            self.counters.not_user += cells;
            return;
        }
        let port = ports.get_mut(entry.route.to.port);
        let priority = entry.route.priority;
        if let Some(queue) = port.and_then(|port| port.queues.get_mut(priority)) {
            queue.passed(&mut entry.pdu, passage.last);
        }
    }

    fn find(&self, from: End) -> Option<usize> {
        let table = &self.ports.get(from.port)?.table;
        let at = table.binary_search_by_key(&from.circuit, |it| it.0).ok()?;
        table.get(at).map(|it| it.1)
    }

    /// As [`Switch::find`], and caches the result.
    fn find_again(&mut self, from: End) -> Option<usize> {
        let last = self.ports.get(from.port)?.last;
        if let Some((_, place)) = last.filter(|it| it.0 == from.circuit) {
            return Some(place);
        }
        let place = self.find(from)?;
        self.ports.get_mut(from.port)?.last = Some((from.circuit, place));
        Some(place)
    }

    fn count(&mut self, reason: DropReason, cells: usize) {
        if let Some(count) = self.counters.dropped.get_mut(reason as usize) {
            *count += cells as u64;
        }
    }
}

#[cfg(test)]
mod tests;
