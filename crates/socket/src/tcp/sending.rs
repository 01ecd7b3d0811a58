//! The order in which connections send, and how much of it at a time.
//!
//! A device is given no more than a [burst](BURST) before it is received from
//! again: what answers a burst must not overflow its receive ring meanwhile.
//! Of that connections have their share in turn, as by Linux's fq: each a
//! [quantum](QUANTUM), and those that begin before those that go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tidewall_device::queue::BURST;

use super::Tcp;
use super::connection::ConnectionInner;
use crate::lock::{Mutex, lock, rank};
use crate::stack::Core;

/// Frames of one connection before it is another's turn: an initial window (RFC
/// 6928) leaves at once.
pub(super) const QUANTUM: u32 = 10;

/// Most frames that a call sends which is not about waiting: what is received
/// meanwhile lets others send, and the caller is to come back.
const FLUSH_MAX: u32 = 2048;

/// How long an acknowledgment is delayed, while the application does not sleep, to be sent
/// with data or a FIN: an event loop may wait several times between an event and its answer.
/// Linux's delayed acknowledgments wait 40 ms.
pub(super) const PIGGYBACK: Duration = Duration::from_millis(2);

/// Connections that want to send, and queues whose doorbells must be rung.
#[derive(Default)]
pub(crate) struct Sending {
    order: Mutex<Order, rank::Leaf>,
    count: AtomicUsize,
    /// Queues with frames that the device has not heard of, or did not take, as
    /// bits.
    pending_doorbells: AtomicU32,
}

/// Which connections that want to send a burst leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None: the thread may sleep.
    Nothing,
    /// Those that have only an acknowledgment to send which may be piggybacked
    /// ([`tidewall_protocol::tcp::Connection::may_piggyback`]), for [`PIGGYBACK`] at most,
    /// while they are few.
    Acknowledgments,
    /// Those, and those that were reported to the application, which will write to them.
    Reported,
    /// Those of [`Hold::Acknowledgments`], and of each the last segment that is not full: the
    /// application goes on writing.
    Partial,
}

#[derive(Default)]
struct Order {
    new: VecDeque<Arc<ConnectionInner>>,
    old: VecDeque<Arc<ConnectionInner>>,
}

impl Order {
    fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }
}

/// What a connection has done with its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Emitted {
    /// Queue that it has put frames into.
    pub(super) queue: Option<usize>,
    /// It is to be entered again.
    pub(super) again: Again,
}

/// Whether a connection has more to send after its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Again {
    /// No, or it is entered already.
    #[default]
    No,
    /// It has had its quantum.
    Later,
    /// Its queue had no room.
    Full,
    /// The rest of its output is delayed.
    Delayed,
}

impl Sending {
    /// Enters a connection that begins to send. The caller has set its flag.
    pub(super) fn enter(&self, connection: Arc<ConnectionInner>) {
        self.change(|order| order.new.push_back(connection));
    }

    /// Takes the next one out, and whether it begins.
    fn next(&self) -> Option<(Arc<ConnectionInner>, bool)> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.change(|order| match order.new.pop_front() {
            Some(connection) => Some((connection, true)),
            None => order.old.pop_front().map(|connection| (connection, false)),
        })
    }

    /// Puts connections back: those that begin, and those that go on.
    fn put_back(&self, new: Vec<Arc<ConnectionInner>>, old: Vec<Arc<ConnectionInner>>) {
        if new.is_empty() && old.is_empty() {
            return;
        }
        self.change(|order| {
            for connection in new.into_iter().rev() {
                order.new.push_front(connection);
            }
            for connection in old.into_iter().rev() {
                order.old.push_front(connection);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Order) -> T) -> T {
        let mut order = lock(&self.order);
        let result = change(&mut order);
        self.count.store(order.len(), Ordering::SeqCst);
        result
    }

    /// Connections that want to send.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// A queue has frames that its device does not know of.
    pub(crate) fn ring_doorbell(&self, queue: usize) {
        self.pending_doorbells
            .fetch_or(1 << (queue % 32), Ordering::Relaxed);
    }

    /// True when somebody must be here: connections want to send, or a device is to
    /// take what it did not.
    pub(crate) fn is_due(&self) -> bool {
        self.len() > 0 || self.is_held_up()
    }

    /// True while frames wait that a device did not take.
    pub(crate) fn is_held_up(&self) -> bool {
        self.pending_doorbells.load(Ordering::Relaxed) != 0
    }
}

impl Tcp {
    /// Sends what connections want to send, and receives between bursts. What is
    /// more than [`FLUSH_MAX`] is left to a thread that sleeps, or to the helper.
    pub(crate) fn flush(&self, core: &Core) {
        self.flush_but(core, Hold::Nothing);
    }

    /// As [`Tcp::flush`], but for what `hold` leaves out.
    pub(super) fn flush_but(&self, core: &Core, hold: Hold) {
        for _ in 0..FLUSH_MAX / BURST {
            if !self.send(core, hold) || core.receiver.round(core, false).is_err() {
                return;
            }
        }
    }

    /// Sends a burst of what connections want to send. True when there is more,
    /// which is for after the next round of receiving.
    #[inline]
    pub(crate) fn send(&self, core: &Core, hold: Hold) -> bool {
        self.sending.is_due() && self.send_burst(core, hold)
    }

    fn send_burst(&self, core: &Core, hold: Hold) -> bool {
        let sending = &self.sending;
        // Each turn looks at all that wait.
        let delays = hold != Hold::Nothing && sending.len() <= super::MANY_DIRTY;
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        let mut full = 0u32;
        while let Some((connection, begins)) = sending.next() {
            if hold == Hold::Reported && connection.wait_queue.is_ready() {
                kept.push(connection);
                continue;
            }
            let Emitted { queue, again } = connection.emit(core, delays, hold == Hold::Partial);
            if let Some(queue) = queue {
                sending.ring_doorbell(queue);
            }
            if again == Again::Delayed {
                kept.push(connection);
                continue;
            }
            let Some(queue) = queue else {
                continue;
            };
            match again {
                Again::Later => sending.change(|order| order.old.push_back(connection)),
                Again::Full => {
                    refused.push(connection);
                    full |= 1 << (queue % 32);
                    if full.count_ones() as usize >= core.receiver.transmit_queues() {
                        break;
                    }
                }
                // One that begins again and again may not keep others waiting.
                Again::No if begins => sending.change(|order| {
                    if !order.old.is_empty() && connection.becomes_dirty() {
                        order.old.push_back(connection);
                    }
                }),
                Again::No | Again::Delayed => {}
            }
        }
        let more = sending.len() > 0 || !refused.is_empty();
        sending.put_back(kept, refused);
        let takes = self.ring_doorbells(core);
        takes && (more || sending.is_held_up())
    }

    /// Makes devices send what was put into their rings, a burst of each. False
    /// when none of them takes more now.
    fn ring_doorbells(&self, core: &Core) -> bool {
        let sending = &self.sending;
        if !sending.is_held_up() {
            return true;
        }
        let queues = sending.pending_doorbells.swap(0, Ordering::Relaxed);
        let mut takes = false;
        for (number, queue) in core.receiver.queues.iter().enumerate() {
            if queues & (1 << (number % 32)) != 0 {
                // A device that is down keeps its frames; timers send again.
                let flushed = lock(&queue.transmitter).flush().unwrap_or_default();
                if flushed.left > 0 {
                    sending.ring_doorbell(number);
                }
                takes |= !flushed.full;
            }
        }
        takes
    }
}
