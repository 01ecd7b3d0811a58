//! `bare` between two interfaces, the limit of the bed for forwarding: the performance
//! that this machine and these links allow a pure forwarder. The driver's poll, the
//! driver program's limit, two link addresses exchanged in place, the other interface's
//! transmit ring: over the device crate only, with the devices' owner to load the
//! programs.
//!
//! One thread that never sleeps. All queues have parts of one frame memory; a sent frame
//! returns to the queue that owns its part. As in `bare`, everything that a poll has
//! brought is handled before the next one.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tidewall_device::afxdp::SharedUmem;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ChannelId, EMBEDDED_APPLICATION, Tables};
use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::{Queue, Received, Transmit};
use tidewall_manager::{AfXdp, Config};
use tidewall_wire::ethernet::MacAddress;

use super::bare::{LIMIT, poll};
use super::service::run_until_report;

/// Frames of each queue.
const FRAMES: u32 = 4096;
/// Longest run, so that a forgotten forwarder ends.
const TIME_MAX: Duration = Duration::from_secs(600);

/// The forwarding job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardJob {
    /// Frames that arrive on either side leave by the other.
    pub sides: [ForwardSide; 2],
}

/// One of two interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardSide {
    /// Its name.
    pub interface: String,
    /// Frames that arrive on it are accepted if they are for one of these addresses,
    pub addresses: Vec<IpAddr>,
    /// and one of these ports, of UDP or of TCP. All others go to the kernel.
    pub ports: Vec<u16>,
    /// Link address of the receiver of its outgoing frames.
    pub next_hop: [u8; 6],
}

/// The results of forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardReport {
    /// Frames that arrived on each side and were put into the other's transmit ring.
    pub forwarded: [u64; 2],
    /// Frames that found that ring full.
    pub not_sent: [u64; 2],
    /// Duration of the run, in seconds,
    pub seconds: f64,
    /// and how much of it was spent on rounds with frames: since the forwarder never
    /// sleeps, idle polling would count as work otherwise.
    pub working: f64,
}

/// Forwards until the line `report`, which it answers with a [`ForwardReport`], or the
/// end of the input.
pub(super) fn run(job: &ForwardJob) -> anyhow::Result<()> {
    let mut forwarder = Forwarder::open(job)?;
    run_until_report(move |stop| forwarder.run(stop))
}

struct Forwarder {
    sides: [Side; 2],
    report: ForwardReport,
}

/// An interface whose queues are taken over, with the frames of its ports in one channel.
pub(super) struct Side {
    // Keeps the program attached.
    _device: AfXdp,
    tables: Tables,
    pub(super) queues: Vec<Queue>,
    /// Number of its first queue's part of the frames.
    first_part: usize,
    /// Link addresses of its outgoing frames: the receiver's, then its own.
    pub(super) link: [MacAddress; 2],
}

/// Returns the only channel of each side.
fn channel() -> ChannelId {
    ChannelId::new(1, 1)
}

impl Forwarder {
    fn open(job: &ForwardJob) -> anyhow::Result<Self> {
        let names = job.sides.each_ref().map(|side| &*side.interface);
        let mut umem = SharedUmem::new(&names, FRAMES)?;
        let mut first_part = 0;
        let mut open = |side: &ForwardSide| {
            let opened = Side::open(side, Some(&mut umem), first_part)?;
            first_part += opened.queues.len();
            anyhow::Ok(opened)
        };
        let [one, other] = &job.sides;
        Ok(Forwarder {
            sides: [open(one)?, open(other)?],
            report: ForwardReport::default(),
        })
    }

    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<ForwardReport> {
        let begun = Instant::now();
        let mut batch = Vec::new();
        let mut sent = Vec::new();
        let mut datagram = Vec::new();
        let mut round = begun;
        while !stop.load(Ordering::Relaxed) && round.duration_since(begun) < TIME_MAX {
            let before = self.report.forwarded;
            for number in 0..2 {
                let [one, other] = &mut self.sides;
                let (from, to) = match number {
                    0 => (one, other),
                    _ => (other, one),
                };
                for place in 0..from.queues.len() {
                    let counts = from.forward(place, to, &mut batch, &mut datagram)?;
                    self.report.forwarded[number] += counts[0];
                    self.report.not_sent[number] += counts[1];
                }
                for queue in &mut to.queues {
                    flush(queue.transmit.as_mut())?;
                    queue.transmit.reclaim(&mut sent);
                }
                for frame in sent.drain(..) {
                    let part = frame.index() as usize / FRAMES as usize;
                    // The only frame of its own is the one that tested whether the device
                    // computes checksums.
                    let origin = match from.queues.get_mut(part.wrapping_sub(from.first_part)) {
                        None => to.queues.get_mut(part.wrapping_sub(to.first_part)),
                        other => other,
                    };
                    if let Some(queue) = origin {
                        queue.frames.push(frame);
                    }
                }
            }
            let began = std::mem::replace(&mut round, Instant::now());
            if self.report.forwarded != before {
                self.report.working += round.duration_since(began).as_secs_f64();
            }
        }
        self.report.seconds = begun.elapsed().as_secs_f64();
        Ok(self.report)
    }
}

impl Side {
    /// Takes an interface over; its queues have parts of a memory from `first_part` on,
    /// or separate memories.
    pub(super) fn open(
        side: &ForwardSide,
        umem: Option<&mut SharedUmem>,
        first_part: usize,
    ) -> anyhow::Result<Self> {
        let mut device = AfXdp::open_on(&Config::new(&side.interface), umem)
            .with_context(|| format!("cannot open {}", side.interface))?;
        device.warnings.iter().for_each(|it| eprintln!("{it}"));
        let tables = device.tables();
        tables.trusted.set_locals(&side.addresses)?;
        tables.trusted.limit_kernel_frames();
        let queues = std::mem::take(&mut device.queues);
        for number in 0..queues.len() as u32 {
            tables.embedded.set_limit(number, channel().index(), LIMIT);
        }
        for &port in &side.ports {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                tables.embedded.listen(protocol, None, port, channel())?;
                (tables.trusted).own_port(protocol, None, port, EMBEDDED_APPLICATION)?;
            }
        }
        let path = format!("/sys/class/net/{}/address", side.interface);
        let own = std::fs::read_to_string(path)?;
        let own: MacAddress = own.trim().parse().map_err(|_| anyhow!("no Ethernet"))?;
        Ok(Side {
            _device: device,
            tables,
            queues,
            first_part,
            link: [MacAddress(side.next_hop), own],
        })
    }

    /// Polls a queue and takes its frames; the program may admit as many again.
    pub(super) fn take(
        &mut self,
        place: usize,
        batch: &mut Vec<Received>,
        datagram: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let Some(queue) = self.queues.get_mut(place) else {
            return Ok(());
        };
        poll(queue, datagram)?;
        let (embedded, number) = (&self.tables.embedded, place as u32);
        // Read before the ring: every frame admitted up to here is in it, or lost.
        let admitted = embedded.head(number, channel().index());
        queue.receive.receive(batch, usize::MAX);
        let tail = embedded.tail(number, channel().index());
        embedded.tail_add(number, channel().index(), admitted.wrapping_sub(tail));
        Ok(())
    }

    /// Polls a queue and hands its frames to the other side. Returns how many frames were
    /// sent, and how many found the ring full.
    fn forward(
        &mut self,
        place: usize,
        to: &mut Side,
        batch: &mut Vec<Received>,
        datagram: &mut Vec<u8>,
    ) -> anyhow::Result<[u64; 2]> {
        self.take(place, batch, datagram)?;
        let outgoing = place % to.queues.len().max(1);
        let (Some(queue), Some(out)) = (self.queues.get_mut(place), to.queues.get_mut(outgoing))
        else {
            return Ok([0; 2]);
        };
        let mut counts = [0; 2];
        for Received { mut frame, .. } in batch.drain(..) {
            readdress(&queue.memory, &mut frame, &to.link);
            match out.transmit.transmit(frame, None) {
                Ok(()) => counts[0] += 1,
                Err(frame) => {
                    counts[1] += 1;
                    queue.frames.push(frame);
                }
            }
        }
        Ok(counts)
    }
}

/// Sends everything queued; frames that a full device leaves go with the next flush.
pub(super) fn flush(transmit: &mut dyn Transmit) -> std::io::Result<()> {
    // A flush sends a burst.
    loop {
        let flushed = transmit.flush()?;
        if flushed.left == 0 || flushed.full {
            return Ok(());
        }
    }
}

fn readdress(memory: &FrameMemory, frame: &mut Frame, [receiver, own]: &[MacAddress; 2]) {
    if let Some(place) = memory.packet_mut(frame).first_chunk_mut::<12>() {
        place[..6].copy_from_slice(&receiver.0);
        place[6..].copy_from_slice(&own.0);
    }
}
