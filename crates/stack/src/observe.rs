//! Gathers what an operator sees of a live stack.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewall_device::demux::layout::{Class, Counter};
use tidewall_sys::netlink::Rtnetlink;

use crate::core::Core;
use crate::lock::lock;
use crate::snapshot::{ControlSnapshot, DeviceLosses, QueueSnapshot, StackCounters, StackSnapshot};

impl Core {
    /// Counters of everything, by cause and place.
    pub fn snapshot(&self) -> StackSnapshot {
        let mut snapshot = StackSnapshot::default();
        // Before the clock is read: an answer may take long.
        for protocol in self.protocols.iter().rev() {
            protocol.describe(self, &mut snapshot);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queues = self.receiver.queues.iter().map(|queue| {
            let number = queue.shared.queue();
            let counters = queue.shared.counters();
            let sent = lock(&queue.transmitter).counts();
            QueueSnapshot {
                driver: Counter::ALL
                    .iter()
                    .map(|counter| {
                        (
                            counter.name().to_owned(),
                            queue.shared.driver().counter(*counter),
                        )
                    })
                    .filter(|(_, count)| *count > 0)
                    .collect(),
                kernel: Class::ALL
                    .iter()
                    .map(|class| {
                        let counts = queue.shared.driver().class(*class);
                        (class.name().to_owned(), (counts.passed, counts.dropped))
                    })
                    .collect(),
                delivered: read(&counters.delivered),
                stale: read(&counters.stale),
                lost_in_ring: read(&counters.lost_in_ring),
                napi: queue.poller.lock().napi().ids,
                rounds: read(&counters.rounds),
                driven: read(&counters.driven),
                empty_rounds: read(&counters.empty_rounds),
                transmitted: sent.sent,
                checksums_by_device: sent.offloaded,
                no_transmit_frame: sent.no_frame,
                long_segments: sent.long.sent,
                long_bytes: sent.long.bytes,
                long_dropped: sent.long.dropped,
                long_no_room: sent.long.no_room,
                host: host_drops(self, number),
                control: ControlSnapshot::of(&queue.shared),
            }
        });
        let before = self.netdev.losses_before.get().copied();
        StackSnapshot {
            process: std::process::id(),
            interface: self.netdev.name.clone(),
            architecture: self.receiver.architecture.name().to_owned(),
            device: self.netdev.snapshot.clone(),
            deferred: self.receiver.deferral.is_on(),
            steered: self.receiver.reserved.port(),
            microseconds: self.now().as_micros() as u64,
            received: (self.netdev.owner.has_driver())
                .then(|| received(&self.netdev.name))
                .flatten(),
            losses: self.losses().map(|it| it.since(before.unwrap_or_default())),
            queues: queues.collect(),
            counters: StackCounters {
                fragments: self.fragment_counters(),
                circuits: std::mem::take(&mut snapshot.counters.circuits),
                ..self.causes.counters()
            },
            warnings: self.netdev.warnings(&self.receiver.queues),
            unprotected: self.unprotected.get().map_or_else(Vec::new, |list| list()),
            ..snapshot
        }
    }

    /// Counters of reassembly that are not zero.
    fn fragment_counters(&self) -> BTreeMap<String, u64> {
        let fragments = lock(&self.ip.fragments).counters();
        let named = [
            ("fragments", fragments.fragments),
            ("reassembled", fragments.reassembled),
            ("atomic", fragments.atomic),
            ("malformed", fragments.malformed),
            ("duplicates", fragments.duplicates),
            ("overlaps", fragments.overlaps),
            ("contradictions", fragments.contradictions),
            ("too-many-fragments", fragments.too_many_fragments),
            ("ecn-mismatches", fragments.ecn_mismatches),
            ("refused", fragments.refused),
            ("no-memory", fragments.no_memory),
            ("evicted", fragments.evicted),
            ("timeouts", fragments.timeouts),
        ];
        named
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    /// Frames that wait in a channel on all queues, and those that the driver dropped
    /// because it was full.
    pub fn channel_counts(&self, number: u16) -> (u32, u64) {
        let (mut occupancy, mut dropped_full) = (0, 0);
        for queue in &self.receiver.queues {
            let queue = queue.shared.queue();
            let host = self
                .receiver
                .host
                .get()
                .and_then(|host| host.get(queue as usize));
            let head = host.map_or_else(
                || self.tables.head(queue, number),
                |host| host.admitted(number),
            );
            // Read after the head, the tail may be ahead of it.
            let waiting = head.wrapping_sub(self.tables.tail(queue, number)) as i32;
            occupancy += waiting.max(0) as u32;
            dropped_full += self.tables.dropped(queue, number);
        }
        (occupancy, dropped_full)
    }

    /// Returns the losses of a stack's interface since it was made; `None` without an
    /// interface that was taken over.
    pub fn losses(&self) -> Option<DeviceLosses> {
        let device = self.netdev.snapshot.as_ref()?;
        let interface = lock(&self.ip.routes).interface();
        let veth = device.driver == "veth";
        let mut netlink = Rtnetlink::open().ok()?;
        let link = netlink.link(interface).ok()?;
        let of_link = link.counters.unwrap_or_default();
        let mut losses = DeviceLosses {
            receive_ring: of_link.rx_missed_errors + of_link.rx_fifo_errors,
            sent: of_link.tx_dropped,
        };
        // The peer fills a veth's receive ring, and counts what did not fit. A process
        // that may not read its namespace knows only its own side.
        if veth && let Ok(peer) = netlink.peer(&link) {
            losses.receive_ring += peer.counters.unwrap_or_default().tx_dropped;
        }
        Some(losses)
    }
}

fn host_drops(core: &Core, queue: u32) -> BTreeMap<String, u64> {
    let counters = core
        .receiver
        .host
        .get()
        .and_then(|host| host.get(queue as usize));
    counters
        .into_iter()
        .flat_map(|counters| {
            [
                ("ip_queue_full", &counters.ip_queue_full),
                ("channel_full", &counters.channel_full),
                ("no_channel", &counters.no_channel),
            ]
        })
        .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Packets that an interface of this thread's network namespace has received.
fn received(interface: &str) -> Option<u64> {
    let list = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let mut lines = list.lines().filter_map(|line| line.split_once(':'));
    let (_, counts) = lines.find(|(name, _)| name.trim() == interface)?;
    // Bytes, packets, …
    counts.split_whitespace().nth(1)?.parse().ok()
}
