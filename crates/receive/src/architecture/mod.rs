//! LRP's architectures and RHIP's: the same stages, run by different threads.
//!
//! | | take from ring | demux | queue that can overflow | protocol |
//! |---|---|---|---|---|
//! | `bsd` | interrupt | softirq (PCB lookup) | shared IP queue, then socket queue | softirq |
//! | `early-demux` | interrupt | interrupt | socket queue, checked before posting | softirq |
//! | `softirq` | softirq, Bp frames per round | softirq | socket queue | softirq |
//! | `soft-lrp` | interrupt | interrupt | channel | receiver |
//! | `tidewall` | receiver | driver program | channel | receiver |
//!
//! *interrupt* and *softirq* are threads pinned to the receiver's CPU at SCHED_FIFO 2 and
//! 1, so they preempt the application as hardware does; see [`HostThreads`]. `tidewall`
//! needs none. (LRP §3.1–3.3 and §4, "Early-Demux".)
//!
//! In the paper's terms `tidewall` is SOFT-LRP in the receiver's context: the host's
//! processor demultiplexes, so a discarded frame still costs a poll. The paper's NI-LRP
//! demultiplexes in the adaptor; the host pays nothing for discarded frames.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tidewall_device::demux::layout::{CHANNELS, Metadata};
use tidewall_device::demux::{ChannelId, classify_host};
use tidewall_device::frame::Frame;
use tidewall_device::queue::KernelDelivered;
use tidewall_sys::{WakeFd, pin, set_fifo};

use crate::poller::{Poller, Shared};

mod handlers;
mod ip_queue;
mod softirq;

use handlers::{InterruptHandler, Softirq};
use ip_queue::IpQueue;
use softirq::{Behind, ReceiveSoftirq};

/// Capacity of `bsd`'s shared IP queue, in frames (4.4BSD: `ipintrq`, whose `ifq_maxlen`
/// is IFQ_MAXLEN, 50). Larger because one poll of the device delivers up to 128.
const IP_QUEUE: usize = 256;
/// Capacity of the queue of frames posted to the softirq of `early-demux`. The bound
/// there is each socket queue's, so this one is large enough never to fill first.
const POSTED: usize = 16_384;

/// SCHED_FIFO priorities of the two threads.
const INTERRUPT_PRIORITY: i32 = 2;
const SOFTIRQ_PRIORITY: i32 = 1;

/// The division of work between threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// 4.4BSD: everything up to the socket queue at interrupt priority.
    Bsd,
    /// Early demultiplexing and discard, eager protocol processing.
    EarlyDemux,
    /// Linux's arrangement since NAPI, on which RHIP's analysis rests. The interrupt only
    /// wakes a softirq. It takes at most Bp frames per round from the device through the
    /// protocol to the socket queue, ahead of the application. The rest is left to a
    /// thread behind the application (ksoftirqd).
    Softirq,
    /// Demultiplexing in the interrupt handler, lazy protocol processing.
    SoftLrp,
    /// Demultiplexing in the driver, everything else in the receiver.
    #[default]
    Tidewall,
}

impl Architecture {
    /// All five: LRP's four in the order of its tables, and RHIP's after the
    /// one it is closest to.
    pub const ALL: [Architecture; 5] = [
        Architecture::Bsd,
        Architecture::EarlyDemux,
        Architecture::Softirq,
        Architecture::SoftLrp,
        Architecture::Tidewall,
    ];

    /// The name used on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Bsd => "bsd",
            Architecture::EarlyDemux => "early-demux",
            Architecture::Softirq => "softirq",
            Architecture::SoftLrp => "soft-lrp",
            Architecture::Tidewall => "tidewall",
        }
    }

    /// True when frames in a channel have already passed the protocol's checks, in the
    /// softirq.
    pub fn verifies_eagerly(self) -> bool {
        matches!(
            self,
            Architecture::Bsd | Architecture::EarlyDemux | Architecture::Softirq
        )
    }

    /// True where receive control decides; LRP's other comparators take every frame
    /// available.
    pub fn is_controlled(self) -> bool {
        matches!(self, Architecture::Softirq | Architecture::Tidewall)
    }

    /// True when host threads take frames from the ring, so that the driver program must
    /// not demultiplex.
    pub fn has_threads(self) -> bool {
        self != Architecture::Tidewall
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not one of the five.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownArchitecture;

impl fmt::Display for UnknownArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("architecture must be one of bsd, early-demux, softirq, soft-lrp, tidewall")
    }
}

impl std::error::Error for UnknownArchitecture {}

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Architecture::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or(UnknownArchitecture)
    }
}

/// See [`Upcalls::input`].
pub type Input = dyn Fn(&Shared, &Frame, &Metadata) -> bool + Send + Sync;
/// See [`Upcalls::kernel_delivered`].
pub type KernelDeliveredUpcall = dyn Fn(KernelDelivered, &[u8]) + Send + Sync;

/// Callbacks into the layers above.
pub struct Upcalls {
    /// The protocol's checks on one datagram; false drops it (the callee
    /// counts why). Run by the softirq of `bsd` and `early-demux`.
    pub input: Box<Input>,
    /// Reports that a channel received frames: wakes the threads that wait on it.
    pub ready: Box<dyn Fn(u16) + Send + Sync>,
    /// Datagrams sent so far: shows whether an application waits for answers.
    pub sent: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Reports a datagram that arrived through the kernel during start-up.
    pub kernel_delivered: Box<KernelDeliveredUpcall>,
    /// See [`crate::poller::Poller::take_doubt`]. Called with the poller held.
    pub doubt: Box<dyn Fn() + Send + Sync>,
}

/// Counters of a host architecture.
#[derive(Debug, Default)]
pub struct HostCounters {
    /// Dropped: the shared IP queue was full (`bsd`, `early-demux`).
    pub ip_queue_full: AtomicU64,
    /// Dropped: the socket queue or channel was at its limit.
    pub channel_full: AtomicU64,
    /// Dropped: no socket wants the frame.
    pub no_channel: AtomicU64,
    /// As in [`Occupancy`].
    heads: Arc<[AtomicU32]>,
    /// The softirq waits behind the application.
    behind: Behind,
}

impl HostCounters {
    /// Reports that an application thread is about to sleep: the thread behind it runs.
    pub fn application_sleeps(&self) {
        self.behind.run();
    }

    /// Frames ever admitted to a channel, modulo 2^32: the equivalent of the tables' head
    /// where the driver counts.
    pub fn admitted(&self, channel: u16) -> u32 {
        self.heads
            .get(channel as usize)
            .map_or(0, |head| head.load(Ordering::Relaxed))
    }
}

/// The interrupt and softirq threads of one queue; dropping stops them.
pub struct HostThreads {
    stop: Arc<AtomicBool>,
    wake: Arc<WakeFd>,
    counters: Arc<HostCounters>,
    threads: Vec<JoinHandle<()>>,
}

/// A frame on its way from the interrupt to the softirq.
struct Posted {
    frame: Frame,
    metadata: Metadata,
    /// Already known in `early-demux`.
    channel: Option<ChannelId>,
}

/// Occupancy of channels whose frames the driver does not count.
struct Occupancy {
    heads: Arc<[AtomicU32]>,
}

impl Occupancy {
    fn full(&self, shared: &Shared, id: ChannelId) -> bool {
        let (waiting, limit) = self.waiting(shared, id);
        waiting >= limit
    }

    /// Frames in the channel, and its capacity.
    fn waiting(&self, shared: &Shared, id: ChannelId) -> (u32, u32) {
        let number = id.index();
        let head = self
            .heads
            .get(number as usize)
            .map_or(0, |h| h.load(Ordering::Relaxed));
        let tables = shared.tables();
        (
            head.wrapping_sub(tables.tail(shared.queue(), number)),
            tables.limit(shared.queue(), number),
        )
    }

    /// Reserves a place in the channel; false when none is left.
    fn reserve(&self, shared: &Shared, id: ChannelId, counters: &HostCounters) -> bool {
        if self.full(shared, id) {
            counters.channel_full.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if let Some(head) = self.heads.get(id.index() as usize) {
            head.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Appends to a place reserved before. Returns whether the channel was open.
    fn append(
        &self,
        shared: &Shared,
        id: ChannelId,
        frame: Frame,
        counters: &HostCounters,
    ) -> bool {
        match shared.append(id, frame) {
            Ok(()) => true,
            Err(frame) => {
                counters.no_channel.fetch_add(1, Ordering::Relaxed);
                self.release(shared, id);
                shared.free(frame);
                false
            }
        }
    }

    /// Releases a place reserved before.
    fn release(&self, shared: &Shared, id: ChannelId) {
        shared.give_credit(id, 1);
    }
}

impl HostThreads {
    /// Starts the threads of `architecture` on `cpu`.
    ///
    /// # Errors
    /// EPERM: SCHED_FIFO needs CAP_SYS_NICE. EINVAL for `Tidewall`, which has no threads,
    /// or for a CPU that does not exist.
    pub fn start(
        architecture: Architecture,
        poller: Arc<Mutex<Poller>>,
        upcalls: Arc<Upcalls>,
        cpu: Option<usize>,
    ) -> io::Result<Self> {
        if !architecture.has_threads() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let shared = poller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .shared()
            .clone();
        let stop = Arc::new(AtomicBool::new(false));
        let wake = Arc::new(WakeFd::new()?);
        let heads: Arc<[AtomicU32]> = (0..CHANNELS as u16)
            .map(|number| AtomicU32::new(shared.tables().tail(shared.queue(), number)))
            .collect();
        let counters = Arc::new(HostCounters {
            heads: heads.clone(),
            ..HostCounters::default()
        });
        let occupancy = Arc::new(Occupancy { heads });
        if architecture == Architecture::Softirq {
            counters.behind.prepare()?;
            let mut host = HostThreads {
                stop: stop.clone(),
                wake: wake.clone(),
                counters: counters.clone(),
                threads: Vec::new(),
            };
            let softirq = ReceiveSoftirq {
                poller,
                shared,
                upcalls,
                occupancy,
                counters,
                stop,
                wake,
            };
            host.spawn("tw-softirq", SOFTIRQ_PRIORITY, cpu, move || softirq.run())?;
            return Ok(host);
        }
        let room = if architecture == Architecture::EarlyDemux {
            POSTED
        } else {
            IP_QUEUE
        };
        let posted = Arc::new(IpQueue::new(room));
        let mut host = HostThreads {
            stop: stop.clone(),
            wake: wake.clone(),
            counters: counters.clone(),
            threads: Vec::new(),
        };
        if architecture.verifies_eagerly() {
            let softirq = Softirq {
                shared: shared.clone(),
                upcalls: upcalls.clone(),
                occupancy: occupancy.clone(),
                counters: counters.clone(),
            };
            let posted = posted.clone();
            host.spawn("tw-softirq", SOFTIRQ_PRIORITY, cpu, move || {
                softirq.run(&posted)
            })?;
        }
        let handler = InterruptHandler {
            architecture,
            poller,
            shared,
            upcalls,
            occupancy,
            counters,
            posted,
            stop,
            wake,
        };
        host.spawn("tw-interrupt", INTERRUPT_PRIORITY, cpu, move || {
            handler.run()
        })?;
        Ok(host)
    }

    /// Counters since the start.
    pub fn counters(&self) -> Arc<HostCounters> {
        self.counters.clone()
    }

    fn spawn(
        &mut self,
        name: &str,
        priority: i32,
        cpu: Option<usize>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let (report, started) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let ready = cpu.map_or(Ok(()), pin).and_then(|()| set_fifo(priority));
                let go = ready.is_ok();
                let _ = report.send(ready);
                if go {
                    run();
                }
            })?;
        self.threads.push(thread);
        started
            .recv()
            .map_err(|_| io::Error::other("thread died at start"))?
    }
}

impl Drop for HostThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wake.signal();
        for thread in self.threads.drain(..).rev() {
            // The interrupt thread ends first and closes the queue, which ends
            // the softirq. A thread that panicked has nothing
            // left to stop.
            let _ = thread.join();
        }
    }
}

/// The PCB lookup: finds the channel of a frame. Writes its findings below the packet,
/// where the receiver reads them.
fn find(
    shared: &Shared,
    mut frame: Frame,
    metadata: &Metadata,
    counters: &HostCounters,
) -> Option<(ChannelId, Frame, Metadata)> {
    let memory = shared.memory();
    let mut packet = memory.packet(&frame);
    let mut joined = Vec::new();
    if memory.has_pieces(&frame) {
        memory.append_whole(&frame, &mut joined);
        packet = &joined;
    }
    let found = classify_host(shared.tables(), packet, metadata);
    if let Some((id, metadata)) = found
        && shared
            .memory()
            .write_below(&mut frame, &metadata.to_bytes())
    {
        return Some((id, frame, metadata));
    }
    counters.no_channel.fetch_add(1, Ordering::Relaxed);
    shared.free(frame);
    None
}
