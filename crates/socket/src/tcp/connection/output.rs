//! Sending a connection's segments: in its turn, and to its neighbour.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidewall_protocol::tcp::{FourTuple, Outgoing, State as Phase};
use tidewall_stack::core::Core;
use tidewall_stack::ip::routes::LIFETIME;
use tidewall_stack::ip::transmit::long::packets;
use tidewall_stack::lock::lock;
use tidewall_wire::ethernet::MacAddress;

use super::{ConnectionInner, State};
use crate::tcp::Tcp;
use crate::tcp::frames::Deferred;
use crate::tcp::sending::{Again, Emitted, PIGGYBACK, QUANTUM};

/// Retry interval for output that the device had no room for.
const CONGESTED: Duration = Duration::from_millis(1);
/// How often that interval is doubled when a long segment is rejected again: up to 128
/// ms.
const MOST_DOUBLINGS: u8 = 7;
/// Retry interval for a neighbour that the kernel is resolving.
const RESOLVING: Duration = Duration::from_millis(10);
/// Neighbour queries, [`RESOLVING`] apart, that a retransmission waits for before it goes
/// to the previous neighbour.
const QUESTIONS: u8 = 5;
/// A time of the stack in half the size: there are many connections.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl ConnectionInner {
    /// Enters it among those with output.
    pub(super) fn schedule_output(self: &Arc<Self>, core: &Core) {
        if self.becomes_dirty() {
            Tcp::of(core).schedule_output(self.clone());
        }
    }

    /// Returns true if the caller must enter it among those with output: it is not there.
    pub(in crate::tcp) fn becomes_dirty(&self) -> bool {
        !self.dirty.swap(true, Ordering::AcqRel)
    }

    /// Sends the output of one turn into frames of its queue; the caller makes the device
    /// send them. `delays`: an acknowledgment that may be piggybacked is not sent yet.
    /// `full`: neither is a last segment that is not full.
    pub(in crate::tcp) fn emit(self: &Arc<Self>, core: &Core, delays: bool, full: bool) -> Emitted {
        self.dirty.store(false, Ordering::Release);
        self.with(core, |state, deferred| {
            if delays && state.delays_acknowledgment(core) {
                let again = self.again(Again::Delayed);
                return Emitted { queue: None, again };
            }
            self.emit_locked(core, state, full, deferred)
        })
    }

    fn emit_locked(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        full: bool,
        deferred: &mut Deferred,
    ) -> Emitted {
        let mut emitted = Emitted::default();
        state.delayed_since = 0;
        if state.detached || state.opening.awaits_syn_data || !state.connection.wants_output() {
            return emitted;
        }
        let now = core.now();
        let mut retry = None;
        match state.find_neighbour(core, now) {
            Some(neighbour) => {
                let Some((number, queue)) =
                    core.receiver.sending_queue(usize::from(state.path.queue))
                else {
                    return emitted;
                };
                emitted.queue = Some(number);
                let flow = *state.connection.flow();
                let hop_limit = state.path.hop_limit;
                let mut transmitter = lock(&queue.transmitter);
                let mut quantum = QUANTUM.min(transmitter.room());
                if !core.receiver.architecture.has_threads() {
                    quantum = quantum.min(queue.room());
                }
                if quantum == 0 {
                    emitted.again = self.again(Again::Full);
                    return emitted;
                }
                let notified = state.connection.notification_count();
                state.connection.set_offload(transmitter.segmentation());
                // Segments that follow a long one would overtake it on another path.
                let mut follows = state.follows_long && state.connection.awaits_acknowledgment();
                let (mut too_long, mtu) = (false, transmitter.packet_max() as u32);
                let mut send = |outgoing: &Outgoing<'_>| {
                    if quantum == 0 {
                        emitted.again = Again::Later;
                        return false;
                    }
                    let sent = if outgoing.is_long()
                        || follows && outgoing.has_sequence()
                        || transmitter.is_beyond_frame(outgoing)
                    {
                        follows = true;
                        quantum = quantum.saturating_sub(packets(outgoing));
                        transmitter.send_long(neighbour, hop_limit, &flow, outgoing)
                    } else {
                        quantum -= 1;
                        transmitter.queue_segment(neighbour, hop_limit, &flow, outgoing)
                    };
                    match sent {
                        Ok(()) => true,
                        // Packet by packet from now on.
                        Err(_) if outgoing.is_long() && transmitter.segmentation() == 0 => {
                            emitted.again = Again::Later;
                            false
                        }
                        Err(error) => {
                            too_long = error.raw_os_error() == Some(libc::EMSGSIZE);
                            let again = outgoing.is_long().then_some(state.refusals);
                            let doublings = again.unwrap_or(0).min(MOST_DOUBLINGS);
                            retry = Some(CONGESTED * (1 << doublings));
                            false
                        }
                    }
                };
                if full {
                    state.connection.output_full(now, &mut send);
                } else {
                    state.connection.output(now, &mut send);
                }
                state.follows_long = follows;
                if too_long && state.connection.limit_to_link(mtu, now) {
                    (retry, emitted.again) = (None, Again::Later);
                }
                state.refusals = match retry {
                    Some(_) => state.refusals.saturating_add(1),
                    None => 0,
                };
                drop(transmitter);
                self.notify_notifications(state, notified);
            }
            None => retry = Some(RESOLVING),
        }
        state.held_up = retry.is_some();
        if let Some(after_this) = retry {
            Tcp::of(core).counters.held_up();
            if state.connection.state() == Phase::Closed {
                // A reset is not worth a wait.
                self.detach(core, state, false, deferred);
                return emitted;
            }
            self.arm(core, state, now + after_this);
        }
        if full && emitted.again == Again::No && retry.is_none() && state.connection.wants_output()
        {
            emitted.again = Again::Delayed;
        }
        emitted.again = self.again(emitted.again);
        self.update(core, state, deferred);
        emitted
    }

    /// Reports whether the caller must enter it again: not if it is entered already.
    fn again(&self, again: Again) -> Again {
        if again != Again::No && self.becomes_dirty() {
            again
        } else {
            Again::No
        }
    }
}

impl State {
    /// Returns true while its only output is a delayed acknowledgment.
    fn delays_acknowledgment(&mut self, core: &Core) -> bool {
        if !self.connection.may_piggyback() {
            return false;
        }
        let now = core.now().as_micros() as u32;
        if self.delayed_since == 0 {
            self.delayed_since = now.max(1);
        }
        let waited = now.wrapping_sub(self.delayed_since) as i32;
        waited < PIGGYBACK.as_micros() as i32
    }

    fn find_neighbour(&mut self, core: &Core, now: Duration) -> Option<MacAddress> {
        if nanoseconds(now) < self.path.neighbour_until && self.path.neighbour.is_some() {
            return self.path.neighbour;
        }
        let FourTuple { local, remote } = *self.connection.flow();
        // The answer to the last query counts whatever its age. Retransmissions are
        // further and further apart, and none would find a fresh one.
        let asked = match self.path.questions {
            0 => Duration::ZERO,
            _ => (now + RESOLVING).saturating_sub(Duration::from_nanos(self.path.neighbour_until)),
        };
        // Another thread may wait for the kernel's answer with the routes locked; a
        // thread that holds a connection's lock must not wait for that.
        let routes = core.ip.routes.try_lock();
        let known =
            routes.and_then(|mut it| it.known(remote.ip(), local.ip(), asked, Instant::now()));
        if known.is_some() {
            self.path.neighbour = known;
            self.path.neighbour_until = nanoseconds(now + LIFETIME);
            self.path.questions = 0;
            return known;
        }
        Tcp::of(core).ask_route(core, remote.ip(), local.ip());
        self.path.neighbour_until = nanoseconds(now + RESOLVING);
        self.path.questions += 1;
        // The neighbour that sent the last frame serves until the answer arrives, unless
        // data sent there stays unacknowledged.
        if self.connection.timeouts() > 0 && self.path.questions < QUESTIONS {
            return None;
        }
        self.path.questions = 1;
        self.path.neighbour
    }
}
