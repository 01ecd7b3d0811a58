//! Connections by flow.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use tidewall_protocol::tcp::FourTuple;
use tidewall_stack::lock::{Mutex, lock, rank};

use super::connection::ConnectionInner;

/// A mostly empty table with at least this many entries shrinks: a hundred thousand
/// connections leave one that a single connection does not need.
const SHRINK_FROM: usize = 1024;

/// Connections by flow: a table of pointers. Flows are nine times as large. A
/// table of flows for a hundred thousand idle connections would not fit into a processor's
/// second-level cache. Each segment of a busy connection would then wait for memory. The
/// flow is in the connection, which its segment is about to read.
pub(crate) struct Flows {
    table: Mutex<HashTable<Arc<ConnectionInner>>, rank::Leaf>,
    /// Keyed at random: peers choose addresses and ports.
    hasher: RandomState,
}

impl Flows {
    pub(crate) fn new() -> Self {
        Flows {
            table: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn hash(&self, flow: &FourTuple) -> u64 {
        self.hasher.hash_one(flow)
    }

    /// Returns the connection of a flow.
    pub(crate) fn find(&self, flow: &FourTuple) -> Option<Arc<ConnectionInner>> {
        let hash = self.hash(flow);
        let table = lock(&self.table);
        table.find(hash, |other| other.flow() == flow).cloned()
    }

    /// Returns all connections.
    pub(crate) fn all(&self) -> Vec<Arc<ConnectionInner>> {
        lock(&self.table).iter().cloned().collect()
    }

    /// Enters a connection; returns false if its flow has one.
    pub(crate) fn enter(&self, connection: &Arc<ConnectionInner>) -> bool {
        let flow = connection.flow();
        let hash = self.hash(flow);
        let mut table = lock(&self.table);
        let same = |other: &Arc<ConnectionInner>| other.flow() == flow;
        match table.entry(hash, same, |other| self.hash(other.flow())) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(connection.clone());
                true
            }
        }
    }

    /// Removes a flow's connection.
    pub(crate) fn forget(&self, flow: &FourTuple) {
        let hash = self.hash(flow);
        let mut table = lock(&self.table);
        let found = table.find_entry(hash, |other| other.flow() == flow);
        let forgotten = found.ok().map(|entry| entry.remove().0);
        if table.capacity() > SHRINK_FROM && table.len() < table.capacity() / 8 {
            table.shrink_to_fit(|other| self.hash(other.flow()));
        }
        drop(table);
        // Outside the lock: this may be the last reference.
        drop(forgotten);
    }
}
