//! Receiving: the queues of the device, the rounds that poll them, and how a thread with
//! nothing to do waits.
//!
//! Lives here:
//! - `rounds` polls and sorts;
//! - `sleep` waits, and `several` waits for several devices;
//! - `classes` divides time between traffic classes;
//! - `deferral` decides when the device's interrupt is deferred;
//! - `steering` decides which flooded port has a queue of its own;
//! - `spin_trial` and `wake_up` measure what a sleep costs, and how long to poll before
//!   one.
//!
//! Does not live here: reading the rings and receive control (tidewall-receive), choosing
//! the thread that leads ([`crate::threads`]).
//!
//! Read first: `rounds`.

mod classes;
pub(crate) mod deferral;
mod rounds;
mod several;
mod sleep;
mod spin_trial;
pub mod steering;
mod wake_up;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::{Counter, QUEUES};
use tidewall_device::queue::{BURST, Interrupt, InterruptModeration, NapiState, POLL_MAX};
use tidewall_receive::architecture::{Architecture, HostCounters};
use tidewall_receive::control::{self, Activity, TIMER_BATCH, TIMER_BATCHES, Waiting};
use tidewall_receive::poller::{Poller, Shared};
use tidewall_receive::schedule::{DELIVER_FIRST, NEVER};

use crate::ip::transmit::Transmitter;
use crate::lock::{Mutex, SharedMutex, rank};
use crate::threads::{Leadership, thread_waker, woken_higher, yield_to_higher};
use classes::ClassShare;
pub use classes::TrafficClass;
use deferral::Deferral;
pub use several::{Wait, wait_for_frames};
use sleep::OthersFrames;
use spin_trial::SpinTrial;
use steering::Reserved;
pub use wake_up::WakeUp;

/// A sleeper looks again after this long while the driver may have lost frames
/// whose credit is still out.
const RECONCILE_AFTER: Duration = Duration::from_millis(1);
/// Others' frames must come more slowly for so many times the time of a wake-up before a
/// flood is taken to have ended: senders pause. Sleeping in each pause costs a wake-up
/// and falling asleep again. Not sleeping after a flood costs the time of so many
/// wake-ups, once.
const FLOOD_HYSTERESIS: u32 = 50;
/// Frames for others that make a flood, if they come while a thread falls asleep and is
/// woken. The thread should not sleep then.
const FLOOD: f64 = 4.0;
/// Looks in a row that find frames although no thread slept in between. After so many the
/// device is polled: it interrupts more often than we work.
const LOOKS_BEFORE_POLLING: u32 = 3;
/// Looks in a row that follow each other sooner than a sleeper would be woken. After so
/// many it is polled, too: a thread that looks so often does not mean to sleep.
const CLOSE_LOOKS: u32 = 64;
/// Most waits between two that begin with polling, if polling never pays: it costs next
/// to nothing then.
const SPIN_SKIP_MAX: u32 = 64;
/// Polls in a row that find frames, after which the load is taken to persist.
const LOADED_POLLS: u32 = 64;
/// Frames of such polls that have the same effect: eight times the smallest receive ring. A
/// burst of clients that connect at once is shorter.
const LOADED_FRAMES: u32 = 32 * BURST;
/// Frames in a round from which the receiver keeps the device to itself.
const MANY: usize = POLL_MAX as usize / 2;
/// [`QueueHandle::interrupt_interval`] of a queue whose poller may not sleep.
const DO_NOT_SLEEP: u64 = u64::MAX;
/// Datagrams that the application receives before the first check whether a poll is due,
/// if one will be.
pub const BETWEEN_LOOKS: usize = 4;
/// The wait of a poller that receive control forbids to take anything.
const STOPPED_SLEEP: Duration = Duration::from_micros(100);

/// One queue as the stack holds it.
pub struct QueueHandle {
    /// The receiving half.
    pub poller: SharedMutex<Poller, rank::Poller>,
    /// The queue's state that other threads read.
    pub shared: Arc<Shared>,
    /// The transmitting half.
    pub transmitter: Mutex<Transmitter, rank::Transmitter>,
    /// Frames the driver processed in the last poll, to choose how to leave
    /// the interrupt.
    last_round: AtomicU64,
    /// True while the device is polled: its interrupt is masked or deferred.
    masked: AtomicBool,
    /// The interrupt was enabled while the device's timer may have been the one of polling,
    /// which an interrupt then starts.
    armed_early: AtomicBool,
    load: Load,
    /// See [`tidewall_device::queue::Receive::delivers`].
    delivers: bool,
    /// True if another party polled the device in the last round. Nothing is masked then.
    /// A waiting thread sleeps, since waiting awake would keep the processor from that
    /// party.
    polled_by_others: AtomicBool,
    /// When the next poll is due, ns since the start, [`NEVER`] or [`DELIVER_FIRST`].
    due: AtomicU64,
    /// How receive control wants a poller to wait: T in ns, or [`DO_NOT_SLEEP`].
    interrupt_interval: AtomicU64,
    /// Datagrams sent, and how many of them receive control knows of.
    sent: Arc<AtomicU64>,
    sent_reported: AtomicU64,
    /// How many of them had been queued when the device was last polled.
    sent_at_poll: AtomicU64,
    class_share: ClassShare,
    /// Largest Bp of its traffic class, if the class sets one.
    pub class_budget: Option<u32>,
}

impl QueueHandle {
    /// Frames that connections may still queue before the device is polled: what
    /// answers them must fit into its receive ring.
    pub fn room(&self) -> u32 {
        let sent = self.sent.load(Ordering::Relaxed);
        let since = sent.wrapping_sub(self.sent_at_poll.load(Ordering::Relaxed));
        BURST.saturating_sub(u32::try_from(since).unwrap_or(u32::MAX))
    }

    /// Creates the queue's state. `class_budget`: the largest Bp of its traffic class, if
    /// the class sets one.
    pub fn new(
        poller: Poller,
        shared: Arc<Shared>,
        transmitter: Transmitter,
        class_budget: Option<u32>,
    ) -> Self {
        QueueHandle {
            delivers: poller.delivers(),
            polled_by_others: AtomicBool::new(poller.napi().polled_by_others),
            poller: SharedMutex::new(poller),
            shared,
            sent: transmitter.sent(),
            transmitter: Mutex::new(transmitter),
            last_round: AtomicU64::new(0),
            masked: AtomicBool::new(false),
            armed_early: AtomicBool::new(false),
            load: Load::default(),
            due: AtomicU64::new(NEVER),
            interrupt_interval: AtomicU64::new(0),
            sent_reported: AtomicU64::new(0),
            sent_at_poll: AtomicU64::new(0),
            class_share: ClassShare::default(),
            class_budget,
        }
    }

    /// Notes which party polls the device.
    fn note_napi(&self, napi: NapiState) {
        if napi.polled_by_others != self.polled_by_others.load(Ordering::Relaxed) {
            self.polled_by_others
                .store(napi.polled_by_others, Ordering::Relaxed);
            self.masked.store(false, Ordering::Relaxed);
            self.due.store(NEVER, Ordering::Relaxed);
        }
    }

    /// Sets when the next poll is due, ns since the start.
    #[cfg(feature = "testutil")]
    pub fn set_due(&self, due: u64) {
        self.due.store(due, Ordering::Relaxed);
    }

    /// Datagrams sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn note_poll(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.sent_at_poll.store(sent, Ordering::Relaxed);
    }
}

/// All queues of a stack, and the threads that poll them or sleep on them.
pub struct Receiver {
    /// The queues, by number.
    pub queues: Vec<QueueHandle>,
    /// Queues that send: the first so many.
    transmit_queues: usize,
    /// How receiving is organized.
    pub architecture: Architecture,
    /// Per queue, for a host architecture with threads.
    pub host: OnceLock<Vec<Arc<HostCounters>>>,
    /// The sleepers, and the one of them that leads.
    pub leadership: Leadership,
    /// Whether the device's interrupt is deferred.
    pub deferral: Deferral,
    spin: Spin,
    /// Set if the configuration does not state how long a wait polls.
    spin_trial: Option<SpinTrial>,
    wake_up: WakeUp,
    others: Mutex<OthersFrames, rank::Leaf>,
    looks: Looks,
    /// Batches of frames in a row that the device's timer brought.
    timer_batches: AtomicU32,
    /// Rounds over all queues, and when the last one ended, ns since the start.
    rounds_made: AtomicU64,
    round_ended: AtomicU64,
    /// Queues are traffic classes, in order.
    classed: bool,
    /// The flooded port that has a queue of its own.
    pub reserved: Reserved,
}

/// Decides when a wait begins with polling: if something was sent since the last one, the
/// wait may be for an answer. The polling itself shows whether that pays. The length of
/// an earlier sleep does not show it. That includes falling asleep and being woken, which
/// may take longer than the answer.
pub struct Spin {
    /// How long it polls.
    pub most: Duration,
    /// Waits that still begin with sleeping.
    skip: AtomicU32,
    /// Their number after the next poll in vain.
    penalty: AtomicU32,
    /// Frames sent before the last wait.
    sent_before: AtomicU64,
}

impl Spin {
    /// Creates the state for polling of `most` at most.
    pub fn new(most: Duration) -> Self {
        Spin {
            most,
            skip: AtomicU32::new(0),
            penalty: AtomicU32::new(1),
            sent_before: AtomicU64::new(0),
        }
    }

    /// Returns true when a wait should begin with polling; `sent`: frames sent so far.
    pub fn begins(&self, sent: u64) -> bool {
        if self.most.is_zero() || self.sent_before.swap(sent, Ordering::Relaxed) == sent {
            return false;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip == 0
    }

    /// Forgets what was learnt about polling.
    fn forget(&self) {
        self.skip.store(0, Ordering::Relaxed);
        self.penalty.store(1, Ordering::Relaxed);
    }

    /// Notes that polling found what was waited for, or nothing.
    pub fn ended(&self, paid: bool) {
        let penalty = self.penalty.load(Ordering::Relaxed);
        // A poll in vain costs its whole time; one that pays saves a sleep and half of
        // that. So two must pay for each that does not, or polls become rare.
        let next = if paid {
            (penalty / 2).max(1)
        } else {
            self.skip.store(penalty, Ordering::Relaxed);
            penalty.saturating_mul(4).min(SPIN_SKIP_MAX)
        };
        self.penalty.store(next, Ordering::Relaxed);
    }
}

/// Looks of threads at frames that the device delivered by interrupt, since a thread last
/// slept.
#[derive(Default)]
struct Looks {
    /// Looks in a row that found frames.
    found: AtomicU32,
    /// Looks in a row that came sooner after the one before than a wake-up takes.
    close: AtomicU32,
    /// Time of the last one, ns since the start.
    last: AtomicU64,
}

impl Looks {
    /// A thread has slept, or the device interrupts from now on.
    fn begin(&self) {
        self.found.store(0, Ordering::Relaxed);
        self.close.store(0, Ordering::Relaxed);
    }

    /// Notes a look at `now`, in ns since the start, that found so many frames.
    fn note(&self, now: u64, frames: usize, wake_up: WakeUp) {
        let since = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
        let count = |counter: &AtomicU32, counts: bool| {
            let before = counter.load(Ordering::Relaxed);
            let after = if counts { before.saturating_add(1) } else { 0 };
            counter.store(after, Ordering::Relaxed);
        };
        count(&self.found, frames > 0);
        count(&self.close, Duration::from_nanos(since) < wake_up.time());
    }

    /// Returns true when looks come, or find frames, so often that polling the device is
    /// better.
    fn are_busy(&self) -> bool {
        self.found.load(Ordering::Relaxed) >= LOOKS_BEFORE_POLLING
            || self.close.load(Ordering::Relaxed) >= CLOSE_LOOKS
    }
}

/// Whether a queue's load persists, so that its device is to be masked between polls.
///
/// A masked device loses what its ring does not hold while the polling thread is preempted.
/// Until a load persists the device interrupts between two polls, and the kernel empties the
/// ring into the larger one of the stack. A load that persists would keep the thread from its
/// processor by such interrupts.
#[derive(Default)]
struct Load {
    /// Polls in a row that found frames, and how many.
    polls: AtomicU32,
    frames: AtomicU32,
}

impl Load {
    /// Returns true from the poll that shows it until [`Load::end`].
    fn persists(&self) -> bool {
        self.polls.load(Ordering::Relaxed) >= LOADED_POLLS
            || self.frames.load(Ordering::Relaxed) >= LOADED_FRAMES
    }

    /// Notes a poll that found so many frames, delivered before it or by it.
    fn note(&self, frames: u64) {
        if self.persists() {
            return;
        }
        if frames == 0 {
            return self.end();
        }
        let add = |counter: &AtomicU32, more: u32| {
            let before = counter.load(Ordering::Relaxed);
            counter.store(before.saturating_add(more), Ordering::Relaxed);
        };
        add(&self.polls, 1);
        add(&self.frames, u32::try_from(frames).unwrap_or(u32::MAX));
    }

    /// A thread is about to sleep on the device.
    fn end(&self) {
        self.polls.store(0, Ordering::Relaxed);
        self.frames.store(0, Ordering::Relaxed);
    }
}

impl Receiver {
    /// Creates the receiver. `spin` is the longest time that a wait polls before it
    /// sleeps. `classed`: queues are traffic classes.
    ///
    /// For a `spin` of `None` a wait polls for the processor time of a sleep. Polling in
    /// vain then costs no more than it could have saved. It polls for up to two late
    /// wake-ups if a frame costs no more for that (`SpinTrial`).
    pub fn new(
        queues: Vec<QueueHandle>,
        transmit_queues: usize,
        architecture: Architecture,
        spin: Option<Duration>,
        wake_up: WakeUp,
        classed: bool,
    ) -> Self {
        Receiver {
            queues,
            transmit_queues,
            architecture,
            host: OnceLock::new(),
            leadership: Leadership::default(),
            deferral: Deferral::new(),
            spin: Spin::new(spin.unwrap_or(wake_up.work())),
            spin_trial: spin.is_none().then(|| SpinTrial::new(wake_up)),
            wake_up,
            others: Mutex::default(),
            looks: Looks::default(),
            timer_batches: AtomicU32::new(0),
            rounds_made: AtomicU64::new(0),
            round_ended: AtomicU64::new(0),
            classed,
            reserved: Reserved::default(),
        }
    }

    /// Returns the time that it takes to fall asleep and be woken.
    pub fn wake_up_time(&self) -> Duration {
        self.wake_up.time()
    }

    /// Returns how long a wait may poll before it sleeps, at least.
    pub fn spin_time(&self) -> Duration {
        self.spin.most
    }

    /// Returns the queue that sends the frames of queue `number`: itself, unless the
    /// device has fewer queues for transmitting than for receiving. Frames put into the
    /// ring of another would stay there.
    pub fn sending_queue(&self, number: usize) -> Option<(usize, &QueueHandle)> {
        let number = if number < self.queues.len() {
            number % self.transmit_queues
        } else {
            0
        };
        Some((number, self.queues.get(number)?))
    }

    /// Number of queues that send.
    pub fn transmit_queues(&self) -> usize {
        self.transmit_queues
    }

    /// Number of queues.
    pub fn queue_count(&self) -> usize {
        self.queues.len().min(QUEUES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits that polled, of `waits` after each of which something is sent.
    fn polled(spin: &Spin, waits: u64, from: u64, pays: bool) -> usize {
        let mut polled = 0;
        for sent in from..from + waits {
            if spin.begins(sent) {
                polled += 1;
                spin.ended(pays);
            }
        }
        polled
    }

    #[test]
    fn a_wait_polls_as_often_as_that_pays() {
        let spin = Spin::new(Duration::from_micros(20));
        assert_eq!(polled(&spin, 1_000, 1, true), 1_000);
        let vain = polled(&spin, 10_000, 2_000, false);
        assert!((10_000 / 65..200).contains(&vain), "{vain}");
        // One that pays after all makes the next ones poll, too.
        assert!(polled(&spin, 200, 20_000, true) >= 200 - SPIN_SKIP_MAX as usize);
    }

    /// The part of waits that polls where each third of them, or two of three, would pay.
    #[test]
    fn polling_that_pays_seldom_becomes_rare() {
        let part = |pays: &dyn Fn(u64) -> bool| {
            let spin = Spin::new(Duration::from_micros(20));
            let polled = (1..30_000).filter(|&sent| {
                let begins = spin.begins(sent);
                if begins {
                    spin.ended(pays(sent));
                }
                begins
            });
            polled.count() as f64 / 30_000.0
        };
        // Not in step with the waits that are left out.
        let third = |sent: u64| (sent.wrapping_mul(0x9e37_79b9) >> 7) % 3;
        assert!(part(&|sent| third(sent) == 0) < 0.1);
        assert!(part(&|sent| third(sent) != 0 || sent % 8 != 0) > 0.8);
    }

    #[test]
    fn a_burst_of_clients_is_no_load_that_persists() {
        let load = Load::default();
        // 300 clients at once: SYNs and acknowledgments, a full poll at a time.
        for driven in [128, 128, 44, 128, 128, 44, 0] {
            load.note(driven);
            assert!(!load.persists());
        }
        // A client that waits for its answers.
        for _ in 0..1_000 {
            load.note(1);
            load.note(0);
            assert!(!load.persists());
        }
    }

    #[test]
    fn a_load_persists_until_a_thread_sleeps() {
        for driven in [1, POLL_MAX.into()] {
            let load = Load::default();
            let mut polls = 0;
            while !load.persists() {
                load.note(driven);
                polls += 1;
            }
            assert!(polls <= LOADED_POLLS && polls * POLL_MAX >= LOADED_FRAMES);
            load.note(0);
            assert!(load.persists());
            load.end();
            assert!(!load.persists());
        }
    }

    #[test]
    fn a_wait_for_no_answer_sleeps() {
        let spin = Spin::new(Duration::from_micros(20));
        assert!(spin.begins(1));
        spin.ended(true);
        assert!(!spin.begins(1));
        assert!(spin.begins(2));
    }
}
