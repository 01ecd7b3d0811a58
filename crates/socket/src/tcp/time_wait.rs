//! Connections in TIME-WAIT: an entry in one table, no channel, no buffers.

use tidewall_device::demux::layout::Protocol;
use tidewall_protocol::tcp::{FourTuple, Segment, TimeWaitEntry, TimeWaitReaction, TimeWaitTable};
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_wire::ethernet::MacAddress;

use super::Tcp;

/// TIME-WAIT of one stack.
pub(crate) struct TimeWait {
    pub(crate) table: Mutex<TimeWaitTable, rank::TimeWait>,
    pub(super) timer: u32,
}

impl Tcp {
    /// Enters a connection, whose port keeps a user.
    pub(crate) fn enter_time_wait(&self, core: &Core, entry: TimeWaitEntry) {
        let now = core.now();
        let (forgotten, next) = {
            let mut table = lock(&self.time_wait.table);
            let forgotten = table.insert(&entry, now);
            (forgotten, table.next_timeout(now))
        };
        self.evicted(core, forgotten.as_slice());
        self.bound_time_wait(core);
        if let Some(next) = next {
            core.arm(self.time_wait.timer, next);
        }
    }

    /// Processes a segment of a flow in TIME-WAIT. A segment that begins a new connection
    /// (RFC 6191) is the listener's, as [`TimeWaitReaction::Reuse`] reports.
    pub(crate) fn time_wait_input(
        &self,
        core: &Core,
        segment: &Segment<'_>,
        neighbour: MacAddress,
        queue: usize,
    ) -> TimeWaitReaction {
        let now = core.now();
        let reaction = lock(&self.time_wait.table).input(segment, now, &mut |flow, outgoing| {
            self.send_segment(core, flow, outgoing, neighbour, queue);
        });
        if matches!(reaction, TimeWaitReaction::Reuse(_)) {
            self.forget_flows(core, &[segment.flow]);
        }
        reaction
    }

    pub(crate) fn expire_time_wait(&self, core: &Core) {
        let now = core.now();
        let mut forgotten = Vec::new();
        let next = {
            let mut table = lock(&self.time_wait.table);
            table.expire(now, &mut |flow: &FourTuple| forgotten.push(*flow));
            table.next_timeout(now)
        };
        self.forget_flows(core, &forgotten);
        if let Some(next) = next {
            core.arm(self.time_wait.timer, next);
        }
    }

    /// Limits the connections in TIME-WAIT to the room that the others leave in the
    /// driver's table; evicts the oldest.
    pub(super) fn bound_time_wait(&self, core: &Core) {
        while self.has_many_flows(core) {
            let Some(oldest) = lock(&self.time_wait.table).evict() else {
                return;
            };
            self.evicted(core, &[oldest]);
        }
    }

    /// Ends TIME-WAIT early: another flow needs its entry.
    pub(super) fn evict_time_wait(&self, core: &Core, flow: FourTuple) {
        if lock(&self.time_wait.table).remove(&flow) {
            self.evicted(core, &[flow]);
        }
    }

    fn evicted(&self, core: &Core, flows: &[FourTuple]) {
        self.counters.time_wait_evicted(flows.len());
        self.forget_flows(core, flows);
    }

    fn forget_flows(&self, core: &Core, flows: &[FourTuple]) {
        for flow in flows {
            core.tables
                .disconnect(Protocol::Tcp, flow.local, flow.remote);
            self.ports.leave(&core.netdev.owner, flow.local.port());
        }
    }
}
