//! `bare`, the limit of the bed: the performance that this machine and this link allow a
//! pure receiver. The driver's poll, the driver program's limit, count or reply in place,
//! poll: over the device crate only, with the device's owner to load the program.
//!
//! One thread that never sleeps. It handles everything that a poll has brought before the
//! next one. So nothing is outstanding then, and the credit that the program has admitted
//! is returned at once: its limit bounds the frames of a port per poll. The reply to a
//! datagram is the received frame with its two ends exchanged. Both checksums stay valid,
//! since a sum does not depend on the order of its terms (RFC 1071 §2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, ensure};
use serde_json::json;
use tidewall_device::demux::layout::{Class, Counter, Kind as FrameKind, Metadata, Protocol};
use tidewall_device::demux::{ApplicationTables, ChannelId, EMBEDDED_APPLICATION, Tables};
use tidewall_device::frame::Frame;
use tidewall_device::queue::{Interrupt, InterruptModeration, POLL_MAX, Queue, Received};
use tidewall_manager::{AfXdp, Config};
use tidewall_service::{Counters, Kind, ServiceSpec, multiply};
use tidewall_sys::interface::index;
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::pseudowire::{self, Label};

use super::ServiceJob;
use super::service::{Account, drops_of_snapshot};
use crate::testbed::{SERVER, SERVER_INTERFACE, SERVER_MAC_ADDRESS};

/// Frames that the program admits to a port between two polls: those of two full polls,
/// since an interrupt may bring one of its own.
pub(super) const LIMIT: u32 = 2 * POLL_MAX;
/// Frames with which a queue receives and sends: the fewer, the more of them are in the
/// processor's caches. Room for those of two polls, and as many that are being sent.
const FRAMES: usize = 4 * POLL_MAX as usize;
/// MTU of the test bed, bytes.
const MTU: u32 = 1500;
/// Bytes of a UDP header.
const HEADER: u16 = 8;

/// The counts that the worker's other thread reports to the lab.
pub(super) struct Seen {
    tables: Tables,
    polls: AtomicU64,
    /// For each queue, frames that the program admitted and the receive ring lost.
    lost: Vec<AtomicU64>,
}

impl Seen {
    /// Returns the account of packets so far.
    pub(super) fn account(&self) -> Account {
        let trusted = &self.tables.trusted;
        let queues = self.lost.iter().zip(0..).map(|(lost, queue)| {
            let driver = Counter::ALL.map(|it| (it.name(), trusted.counter(queue, it)));
            let kernel = Class::ALL.map(|it| {
                let counts = trusted.class(queue, it);
                (it.name(), [counts.passed, counts.dropped])
            });
            json!({
                "driver": BTreeMap::from(driver),
                "kernel": BTreeMap::from(kernel),
                "lost_in_ring": lost.load(Ordering::Relaxed),
            })
        });
        Account {
            drops: drops_of_snapshot(&json!({ "queues": queues.collect::<Vec<_>>() })),
            rounds: self.polls.load(Ordering::Relaxed),
            ..Account::default()
        }
    }
}

/// The device, and its services.
pub(super) struct Bare<'a> {
    // Keeps the program attached.
    _device: AfXdp,
    queues: Vec<ServedQueue<'a>>,
    seen: Arc<Seen>,
}

/// A queue and its services.
struct ServedQueue<'a> {
    number: u32,
    queue: Queue,
    batch: Vec<Received>,
    services: Vec<Served<'a>>,
}

/// A service on one queue.
struct Served<'a> {
    spec: &'a ServiceSpec,
    channel: ChannelId,
    /// Frames that the program has admitted, and those that have arrived, modulo 2^32.
    admitted: u32,
    came: u32,
    turn: TurnCounts,
}

/// The counts of one turn of a service.
#[derive(Default)]
struct TurnCounts {
    datagrams: u64,
    payload_bytes: u64,
    replies: u64,
}

impl<'a> Bare<'a> {
    /// Opens the server's interface for the job's services.
    pub(super) fn open(job: &'a ServiceJob) -> anyhow::Result<Self> {
        let setup = &job.setup;
        ensure!(
            setup.tcp.is_none()
                && setup.compute.is_none()
                && (setup.services.iter()).all(|service| service.kind != Kind::Acknowledge),
            "bare discards and echoes datagrams, nothing else"
        );
        let mut device = AfXdp::open(&Config {
            queues: job.queues,
            ..Config::new(SERVER_INTERFACE)
        })
        .with_context(|| format!("cannot open {SERVER_INTERFACE}"))?;
        device.warnings.iter().for_each(|it| eprintln!("{it}"));
        let tables = device.tables();
        let trusted = &tables.trusted;
        trusted.set_locals(&[SERVER.0.into(), SERVER.1.into()])?;
        trusted.set_device(index(SERVER_INTERFACE)?, SERVER_MAC_ADDRESS, MTU);
        trusted.limit_kernel_frames();
        let serve = |(spec, number): (&'a ServiceSpec, u16)| Served {
            spec,
            channel: ChannelId::new(number, 1),
            admitted: 0,
            came: 0,
            turn: TurnCounts::default(),
        };
        let mut queues = Vec::new();
        for (mut queue, number) in std::mem::take(&mut device.queues).into_iter().zip(0..) {
            queue.frames.truncate(FRAMES);
            let services: Vec<_> = setup.services.iter().zip(1..).map(serve).collect();
            for Served { spec, channel, .. } in &services {
                let embedded = &tables.embedded;
                embedded.set_limit(number, channel.index(), LIMIT);
                if setup.circuits {
                    let circuit = Circuit {
                        vpi: 0,
                        vci: spec.port,
                    };
                    let label = Label::of_circuit(circuit).context("no label")?;
                    embedded.open_circuit(label, *channel)?;
                    trusted.own_circuit(label, EMBEDDED_APPLICATION)?;
                }
                embedded.listen(Protocol::Udp, None, spec.port, *channel)?;
                trusted.own_port(Protocol::Udp, None, spec.port, EMBEDDED_APPLICATION)?;
            }
            queues.push(ServedQueue {
                number,
                queue,
                batch: Vec::new(),
                services,
            });
        }
        let seen = Seen {
            tables,
            polls: AtomicU64::new(0),
            lost: queues.iter().map(|_| AtomicU64::new(0)).collect(),
        };
        Ok(Bare {
            _device: device,
            queues,
            seen: Arc::new(seen),
        })
    }

    /// Returns the counts, for the thread that answers the lab.
    pub(super) fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    /// Serves until `stop` is set.
    pub(super) fn serve(mut self, counters: &Counters, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut datagram = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            for (served, lost) in self.queues.iter_mut().zip(&self.seen.lost) {
                poll(&mut served.queue, &mut datagram)?;
                served.take(&self.seen.tables.embedded, counters, lost);
                served.queue.transmit.flush()?;
                served.queue.transmit.reclaim(&mut served.queue.frames);
            }
            self.seen.polls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Fills a queue and polls its driver. `datagram` is scratch space for frames that the
/// kernel delivers, which are lost.
pub(super) fn poll(queue: &mut Queue, datagram: &mut Vec<u8>) -> std::io::Result<()> {
    let receive = &mut queue.receive;
    receive.fill(&mut queue.frames);
    let ids = receive.napi().ids;
    if ids.contains(&0) {
        // Finds the device's poll: a request that the kernel delivered gets no answer.
        while receive.take_kernel_delivered(datagram).is_some() {}
    }
    // The first id is that of polls that leave the device masked.
    if ids[0] != 0 {
        receive.set_moderation(InterruptModeration::BusyPoll);
    }
    receive.poll(Interrupt::Masked)
}

impl ServedQueue<'_> {
    /// Handles everything that a poll has brought.
    fn take(&mut self, tables: &ApplicationTables, counters: &Counters, lost: &AtomicU64) {
        // Read before the ring: every frame admitted up to here is in it, or lost.
        for served in &mut self.services {
            served.admitted = tables.head(self.number, served.channel.index());
        }
        self.queue.receive.receive(&mut self.batch, usize::MAX);
        for Received { frame, metadata } in self.batch.drain(..) {
            let number = usize::from(metadata.channel_id().index()).wrapping_sub(1);
            let unsent = match self.services.get_mut(number) {
                Some(served) => served.take(frame, &metadata, &mut self.queue),
                None => Some(frame),
            };
            self.queue.frames.extend(unsent);
        }
        let mut missing = 0;
        for (number, served) in self.services.iter_mut().enumerate() {
            let turn = std::mem::take(&mut served.turn);
            // Before the replies leave, so that a client with a reply finds the count
            // updated.
            if turn.datagrams > 0 {
                counters.batch(number, turn.datagrams, turn.payload_bytes, turn.replies);
            }
            let behind = served.admitted.wrapping_sub(served.came).cast_signed();
            missing += u64::from(behind.max(0).cast_unsigned());
            let channel = served.channel.index();
            let outstanding = served
                .admitted
                .wrapping_sub(tables.tail(self.number, channel));
            tables.tail_add(self.number, channel, outstanding);
        }
        lost.store(missing, Ordering::Relaxed);
    }
}

impl Served<'_> {
    /// Counts a frame and processes it. Returns the frame unless it is on its way back.
    fn take(&mut self, mut frame: Frame, metadata: &Metadata, queue: &mut Queue) -> Option<Frame> {
        self.came = self.came.wrapping_add(1);
        let before = match metadata.kind() {
            Some(FrameKind::Datagram) => metadata.transport + HEADER,
            Some(FrameKind::Circuit) => metadata.network + pseudowire::HEADER_LEN as u16,
            _ => return Some(frame),
        };
        let payload = metadata.end.saturating_sub(before);
        self.turn.datagrams += 1;
        self.turn.payload_bytes += u64::from(payload);
        if self.spec.work > 0 {
            multiply(self.spec.work, 1.0);
        }
        if self.spec.kind == Kind::Discard {
            return Some(frame);
        }
        exchange(queue.memory.packet_mut(&mut frame), metadata);
        let full = queue.transmit.transmit(frame, None).err();
        self.turn.replies += u64::from(full.is_none());
        full
    }
}

/// Turns a datagram around, from its receiver to its sender, and likewise a PDU.
fn exchange(frame: &mut [u8], metadata: &Metadata) {
    if metadata.kind() == Some(FrameKind::Circuit) {
        if let Some(both) = frame.get_mut(..12) {
            both.rotate_left(6);
        }
        return;
    }
    let network = usize::from(metadata.network);
    let (addresses, length) = match metadata.version {
        4 => (network + 12, 4),
        _ => (network + 8, 16),
    };
    let places = [(0, 6), (addresses, length), (metadata.transport.into(), 2)];
    for (place, length) in places {
        if let Some(both) = frame.get_mut(place..place + 2 * length) {
            both.rotate_left(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tidewall_wire::{ethernet, ipv4, udp};

    use super::*;

    #[test]
    fn a_reply_goes_back_with_right_checksums() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let (from, to) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
        frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0x66, 0x31]);
        frame.extend([from.octets(), to.octets()].concat());
        frame.extend([0x30, 0x39, 0, 7, 0, 12, 0xe2, 0x2a, b't', b'i', b'd', b'e']);
        let check = |frame: &[u8], from, to, ports| {
            let ethernet = ethernet::Frame::new(frame).unwrap();
            let ip = ipv4::Packet::new(ethernet.payload()).unwrap();
            let udp = udp::Packet::new(ip.payload()).unwrap();
            assert!(ip.has_valid_checksum());
            assert_eq!((ip.source(), ip.destination()), (from, to));
            assert_eq!((udp.source_port(), udp.destination_port()), ports);
            assert_eq!(
                format!("{:?}", udp.checksum_state(udp::Addresses::V4(from, to))),
                "Valid"
            );
            assert_eq!(udp.payload(), b"tide");
            ethernet.source()
        };
        let first = check(&frame, from, to, (12345, 7));
        let metadata = Metadata {
            version: 4,
            network: 14,
            transport: 34,
            end: 46,
            ..Metadata::default()
        };
        exchange(&mut frame, &metadata);
        let second = check(&frame, to, from, (7, 12345));
        assert_ne!(first, second);
    }
}
