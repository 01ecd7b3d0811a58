//! Receiving: the queues of the device, the rounds that poll them, and how a thread
//! with nothing to do waits.
//!
//! `rounds` polls and sorts, `sleep` waits, `several` waits for several devices, `classes` divides time between traffic
//! classes, `deferral` decides when the device's interrupt is deferred.

mod classes;
pub(crate) mod deferral;
mod rounds;
mod several;
mod sleep;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::{Counter, QUEUES};
use tidewall_device::queue::{BURST, Interrupt, InterruptModeration, POLL_MAX};
use tidewall_receive::architecture::{Architecture, HostCounters};
use tidewall_receive::control::{self, Activity, TIMER_BATCH, TIMER_BATCHES, Waiting};
use tidewall_receive::poller::{Poller, Shared};

use crate::ip::transmit::Transmitter;
use crate::lock::{Mutex, SharedMutex, lock, rank};
use crate::stack::Core;
use crate::wait_queue::{Leadership, thread_waker};
use classes::ClassShare;
pub use classes::TrafficClass;
use deferral::Deferral;
pub(crate) use several::{Wait, wait_for_frames};
use sleep::{LoadLevel, LoadSample};

/// A sleeper looks again after this long while the driver may have lost frames
/// whose credit is still out.
const RECONCILE_AFTER: Duration = Duration::from_millis(1);
/// Over how long the device's rate is measured, at least.
const LOAD_WINDOW: Duration = Duration::from_micros(20);
/// How long it must have been lower before that is believed: senders pause.
const LOAD_HYSTERESIS: Duration = Duration::from_millis(1);
/// This many rounds in [`STEADY_TIME`] are steady polling: 200 µs a round, the
/// length of the device's own timer.
const STEADY_ROUNDS: u32 = 64;
/// See [`STEADY_ROUNDS`].
const STEADY_TIME: Duration = Duration::from_micros(200 * STEADY_ROUNDS as u64);
/// Frames a second from which a sleeper polls by itself now and then, and from
/// which it does not sleep.
const BUSY_FROM: f64 = 20_000.0;
/// See [`BUSY_FROM`].
const FLOODED_FROM: f64 = 200_000.0;
/// How long a sleeper leaves a busy device alone.
const BUSY_SLEEP: Duration = Duration::from_micros(50);
/// Frames in a round that speak of a flood.
const FLOODED_ROUND: u64 = 32;
/// Frames in a round from which the receiver keeps the device to itself.
const MANY: usize = POLL_MAX as usize / 2;
/// [`QueueHandle::interrupt_interval`] of a queue whose poller may not sleep.
const DO_NOT_SLEEP: u64 = u64::MAX;
/// How long a poller waits that receive control forbids to take anything.
const STOPPED_SLEEP: Duration = Duration::from_micros(100);

/// One queue as the stack holds it.
pub(crate) struct QueueHandle {
    pub(crate) poller: SharedMutex<Poller, rank::Poller>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) transmitter: Mutex<Transmitter, rank::Transmitter>,
    /// Frames the driver processed in the last round, to choose how to leave
    /// the interrupt.
    last_round: AtomicU64,
    /// True when the last round left the interrupt masked or deferred.
    masked: AtomicBool,
    /// How receive control wants a poller to wait: T in ns, or [`DO_NOT_SLEEP`].
    interrupt_interval: AtomicU64,
    /// Datagrams sent, and how many of them receive control knows of.
    sent: Arc<AtomicU64>,
    sent_reported: AtomicU64,
    /// How many of them had been queued when the device was last polled.
    sent_at_poll: AtomicU64,
    class_share: ClassShare,
}

impl QueueHandle {
    /// Frames that connections may still queue before the device is polled: what
    /// answers them must fit into its receive ring.
    pub(crate) fn room(&self) -> u32 {
        let sent = self.sent.load(Ordering::Relaxed);
        let since = sent.wrapping_sub(self.sent_at_poll.load(Ordering::Relaxed));
        BURST.saturating_sub(u32::try_from(since).unwrap_or(u32::MAX))
    }

    pub(crate) fn new(poller: Poller, shared: Arc<Shared>, transmitter: Transmitter) -> Self {
        QueueHandle {
            poller: SharedMutex::new(poller),
            shared,
            sent: transmitter.sent(),
            transmitter: Mutex::new(transmitter),
            last_round: AtomicU64::new(0),
            masked: AtomicBool::new(false),
            interrupt_interval: AtomicU64::new(0),
            sent_reported: AtomicU64::new(0),
            sent_at_poll: AtomicU64::new(0),
            class_share: ClassShare::default(),
        }
    }

    /// Datagrams sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn note_poll(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.sent_at_poll.store(sent, Ordering::Relaxed);
    }
}

/// All queues of a stack, and the threads that poll them or sleep on them.
pub(crate) struct Receiver {
    pub(crate) queues: Vec<QueueHandle>,
    /// Queues that send: the first so many.
    transmit_queues: usize,
    pub(crate) architecture: Architecture,
    /// Of each queue, where a host architecture has threads.
    pub(crate) host: OnceLock<Vec<Arc<HostCounters>>>,
    pub(crate) leadership: Leadership,
    pub(crate) deferral: Deferral,
    spin: Spin,
    load: Mutex<LoadSample, rank::Leaf>,
    steady: SteadyPolling,
    /// Batches of frames in a row that the device's timer brought.
    timer_batches: AtomicU32,
    /// Queues are traffic classes, in order.
    classed: bool,
}

/// When a wait begins with polling.
struct Spin {
    /// How long it polls.
    most: Duration,
    /// The last wait was so short that the next one may poll.
    again: AtomicBool,
    /// Frames sent before the last sleep.
    sent_before_sleep: AtomicU64,
}

/// Whether rounds follow each other closely.
#[derive(Default)]
struct SteadyPolling {
    rounds_since_sleep: AtomicU32,
    /// When the present series of rounds began, ns since the start.
    since: AtomicU64,
}

impl Receiver {
    /// `spin`: how long a wait may poll before it sleeps. `classed`: queues are traffic
    /// classes.
    pub(crate) fn new(
        queues: Vec<QueueHandle>,
        transmit_queues: usize,
        architecture: Architecture,
        spin: Duration,
        classed: bool,
    ) -> Self {
        Receiver {
            queues,
            transmit_queues,
            architecture,
            host: OnceLock::new(),
            leadership: Leadership::default(),
            deferral: Deferral::new(),
            spin: Spin {
                most: spin,
                again: AtomicBool::new(false),
                sent_before_sleep: AtomicU64::new(0),
            },
            load: Mutex::new(LoadSample {
                at: Duration::ZERO,
                frames: 0,
                level: LoadLevel::Quiet,
            }),
            steady: SteadyPolling::default(),
            timer_batches: AtomicU32::new(0),
            classed,
        }
    }

    /// How long a wait may poll before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        self.spin.most
    }

    /// The queue that sends what belongs to queue `number`: itself, unless the
    /// device has fewer queues for transmitting than for receiving. Frames put
    /// into the ring of another would stay there.
    pub(crate) fn sending_queue(&self, number: usize) -> Option<(usize, &QueueHandle)> {
        let number = if number < self.queues.len() {
            number % self.transmit_queues
        } else {
            0
        };
        Some((number, self.queues.get(number)?))
    }

    /// Sends the datagrams that were put into a queue's ring: what the device drops
    /// is gone, what it does not take goes with a later flush.
    pub(crate) fn send_queue(
        &self,
        core: &Core,
        number: usize,
        queue: &QueueHandle,
    ) -> io::Result<()> {
        loop {
            let flushed = lock(&queue.transmitter).flush()?;
            if flushed.left == 0 {
                return Ok(());
            }
            if flushed.full && flushed.dropped == 0 {
                core.tcp.sending.ring_doorbell(number);
                return Ok(());
            }
        }
    }

    /// Number of queues that send.
    pub(crate) fn transmit_queues(&self) -> usize {
        self.transmit_queues
    }

    /// Number of queues.
    pub(crate) fn queue_count(&self) -> usize {
        self.queues.len().min(QUEUES)
    }
}
