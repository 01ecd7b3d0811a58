//! Connections in TIME-WAIT: an entry in one table, no channel, no buffers.

use tidewall_device::demux::layout::Protocol;
use tidewall_protocol::tcp::{FourTuple, Segment, TimeWaitEntry, TimeWaitReaction};
use tidewall_wire::ethernet::MacAddress;

use crate::stack::{Core, lock};

impl Core {
    /// Enters a connection, whose port keeps a user.
    pub(crate) fn tcp_enter_time_wait(&self, entry: TimeWaitEntry) {
        let now = self.now();
        let (forgotten, next) = {
            let mut table = lock(&self.tcp.time_wait);
            let forgotten = table.insert(&entry, now);
            (forgotten, table.next_timeout(now))
        };
        self.tcp_evicted(forgotten.as_slice());
        self.tcp_bound_time_wait();
        if let Some(next) = next {
            self.tcp.arm(self.tcp.time_wait_timer, next);
        }
    }

    /// Takes a segment of a flow in TIME-WAIT. One that begins a new connection
    /// (RFC 6191) is the listener's, and so is what
    /// [`TimeWaitReaction::Reuse`] says.
    pub(crate) fn tcp_take_time_wait(
        &self,
        segment: &Segment<'_>,
        neighbour: MacAddress,
        queue: usize,
    ) -> TimeWaitReaction {
        let now = self.now();
        let reaction = lock(&self.tcp.time_wait).input(segment, now, &mut |flow, outgoing| {
            self.tcp_send_one(flow, outgoing, neighbour, queue);
        });
        if matches!(reaction, TimeWaitReaction::Reuse(_)) {
            self.tcp_forget(&[segment.flow]);
        }
        reaction
    }

    pub(crate) fn tcp_expire_time_wait(&self) {
        let now = self.now();
        let mut forgotten = Vec::new();
        let next = {
            let mut table = lock(&self.tcp.time_wait);
            table.expire(now, &mut |flow: &FourTuple| forgotten.push(*flow));
            table.next_timeout(now)
        };
        self.tcp_forget(&forgotten);
        if let Some(next) = next {
            self.tcp.arm(self.tcp.time_wait_timer, next);
        }
    }

    /// Leaves no more connections in TIME-WAIT than the others leave room for in
    /// the driver's table: the oldest go.
    pub(super) fn tcp_bound_time_wait(&self) {
        while self.tcp_has_many_flows() {
            let Some(oldest) = lock(&self.tcp.time_wait).evict() else {
                return;
            };
            self.tcp_evicted(&[oldest]);
        }
    }

    /// Ends TIME-WAIT early: another flow needs the place of this one.
    pub(super) fn tcp_evict_time_wait(&self, flow: FourTuple) {
        if lock(&self.tcp.time_wait).remove(&flow) {
            self.tcp_evicted(&[flow]);
        }
    }

    fn tcp_evicted(&self, flows: &[FourTuple]) {
        self.tcp.counters.time_wait_evicted(flows.len());
        self.tcp_forget(flows);
    }

    fn tcp_forget(&self, flows: &[FourTuple]) {
        for flow in flows {
            self.tables
                .disconnect(Protocol::Tcp, flow.local, flow.remote);
            self.tcp.ports.leave(&self.trusted, flow.local.port());
        }
    }
}
