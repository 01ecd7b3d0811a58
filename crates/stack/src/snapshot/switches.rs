//! An operator's view of switches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One moment of a transport switch. Counters only grow; take two for rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SwitchSnapshot {
    /// The virtual address and port.
    pub address: String,
    /// Connections, those that linger after their end included.
    pub connections: u64,
    /// Those that the sums and maxima below cover: the switch examines no more than it
    /// can while segments wait.
    pub examined: u64,
    /// Frames that the ring of a connection and direction has room for.
    pub ring: u64,
    /// Frames in the fullest ring of what peers sent.
    pub ring_in: u64,
    /// Stretches in the fullest ring of what members sent.
    pub ring_out: u64,
    /// Holes in what peers sent that are open now.
    pub holes: u64,
    /// Bytes of peers that are not acknowledged to them.
    pub unacknowledged_in: u64,
    /// Bytes of members that peers have not acknowledged.
    pub unacknowledged_out: u64,
    /// Events, by name; only those that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// One entry per member.
    pub members: Vec<SwitchMember>,
}

/// A member of a switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SwitchMember {
    /// Its address and port.
    pub address: String,
    /// It takes part in new connections.
    pub up: bool,
    /// Connections on which frames flow to it, of those that were examined.
    pub open: u64,
    /// Frames sent to it there that it has not acknowledged.
    pub outstanding: u64,
    /// Events, by name.
    pub counters: BTreeMap<String, u64>,
}

/// One moment of a switch of cells. Counters only grow; take two for rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellSwitchSnapshot {
    /// One entry per port.
    pub ports: Vec<CellSwitchPort>,
    /// Entries of the table, one per direction.
    pub circuits: u64,
    /// The table: what is permanent, and what calls have entered.
    #[serde(default)]
    pub table: Vec<CellRoute>,
    /// Calls, those that are being released included.
    #[serde(default)]
    pub calls: Vec<SwitchedCall>,
    /// Events, by name; only those that are not zero.
    pub counters: BTreeMap<String, u64>,
}

/// A port of a switch of cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellSwitchPort {
    /// Its interface.
    pub interface: String,
    /// The kind of its packets: `frame` or `cell`.
    pub mode: String,
    /// Cells that wait for it, by priority.
    pub waiting: Vec<u64>,
    /// Cells that each of its queues holds.
    pub queue: u64,
    /// Its side of signalling, `network` or `user`; `None` if it does not signal.
    #[serde(default)]
    pub side: Option<String>,
    /// Its signalling link is up.
    #[serde(default)]
    pub link_up: bool,
}

/// A direction of a circuit of a switch of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CellRoute {
    /// The circuit that cells come from: interface, VPI and VCI, as `eth1/0.100`.
    pub from: String,
    /// The circuit that they go to.
    pub to: String,
    /// The queue, 0 to 3.
    pub priority: u64,
    /// Cells that went on.
    pub cells: u64,
    /// A call has entered it.
    pub call: bool,
}

/// A call over a switch of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SwitchedCall {
    /// The caller's number, if it leads to the caller.
    pub calling: Option<String>,
    /// The number that is called.
    pub called: String,
    /// The caller's end and the called one's.
    pub ends: Vec<SwitchedEnd>,
}

/// An end of a call over a switch of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SwitchedEnd {
    /// The port's interface.
    pub interface: String,
    /// VPI and VCI, once they are known.
    pub circuit: Option<String>,
    /// The state by Q.2931, as N10; N0 or U0 once it is released there.
    pub state: String,
}
