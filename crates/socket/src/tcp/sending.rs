//! The order in which connections send, and how much at a time.
//!
//! A device is given no more than a [burst](tidewall_device::queue::BURST) before it is
//! polled for input again. The answers to a burst must not overflow its receive ring
//! meanwhile. Connections share the burst in turn, as by Linux's fq. Each has a
//! [quantum](QUANTUM), and new connections precede those that continue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::output::Output;
use tidewall_stack::protocol::Hold;

use super::Tcp;
use super::connection::ConnectionInner;

/// Frames of one connection before the next one's turn: an initial window (RFC 6928)
/// leaves at once.
pub(super) const QUANTUM: u32 = 10;

/// How long an acknowledgment is delayed, while the application does not sleep, to be sent
/// with data or a FIN. An event loop may wait several times between an event and its answer.
/// Linux's delayed acknowledgments wait 40 ms.
pub(super) const PIGGYBACK: Duration = Duration::from_millis(2);

/// Returns the number of connections with output.
pub(crate) struct Sending {
    order: Mutex<Order, rank::Leaf>,
    /// Knows how many there are.
    output: Arc<Output>,
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

/// The result of a connection's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Emitted {
    /// The queue into which it has put frames.
    pub(super) queue: Option<usize>,
    /// Whether it is to be entered again.
    pub(super) again: Again,
}

/// Whether a connection has more output after its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Again {
    /// No, or it is entered already.
    #[default]
    No,
    /// It has used its quantum.
    Later,
    /// Its queue had no room.
    Full,
    /// The rest of its output is delayed.
    Delayed,
}

impl Sending {
    pub(super) fn new(output: Arc<Output>) -> Self {
        Sending {
            order: Mutex::default(),
            output,
        }
    }

    /// Enters a connection that begins to send. The caller has set its flag.
    pub(super) fn enter(&self, connection: Arc<ConnectionInner>) {
        self.change(|order| order.new.push_back(connection));
    }

    /// Removes the next one, and reports whether it begins.
    fn next(&self) -> Option<(Arc<ConnectionInner>, bool)> {
        if self.len() == 0 {
            return None;
        }
        self.change(|order| match order.new.pop_front() {
            Some(connection) => Some((connection, true)),
            None => order.old.pop_front().map(|connection| (connection, false)),
        })
    }

    /// Puts connections back: those that begin, and those that continue.
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
        self.output.set_sockets(order.len());
        result
    }

    /// Connections that want to send.
    pub(crate) fn len(&self) -> usize {
        self.output.sockets()
    }
}

impl Tcp {
    /// Sends a burst of output. Returns true when there is more, to be sent after the
    /// next round of receiving.
    pub(super) fn send_burst(&self, core: &Core, hold: Hold) -> bool {
        let sending = &self.sending;
        // Each turn examines all that wait.
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
                core.output.ring_doorbell(queue);
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
                // A connection that begins again and again must not keep others waiting.
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
        more
    }
}
