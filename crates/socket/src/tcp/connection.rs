//! One connection in the stack: the engine, its channel, and its waiters.

mod endpoint;
mod output;
mod state;
#[cfg(test)]
mod tests;
mod waiting;
mod waits;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidewall_device::demux::Waits;
use tidewall_device::demux::layout::Protocol;
use tidewall_protocol::DropReason;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{Connection, Errno, FourTuple, Segment, State as Phase};
use tidewall_readiness::Events;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_receive::poller::Done;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};
use tidewall_wire::ethernet::MacAddress;

use self::output::nanoseconds;
use super::Tcp;
use super::channels::{Part, SHARED_MOST};
use super::frames::{Content, Deferred};
use super::lending::{Usage, empty};
use super::listener::ListenerInner;
use super::memory::{Locked, Memory};

pub(crate) use waiting::Waiting;

/// Segments through the shared channel after which a connection is busy enough for a
/// channel of its own.
const BUSY: u8 = 16;
/// [`State::armed`] of a connection whose timer is not armed.
const NEVER: u64 = u64::MAX;

/// One connection.
pub(crate) struct ConnectionInner {
    /// The connection's flow, readable without its lock.
    flow: FourTuple,
    timer: u32,
    /// It carries frames, not a stream.
    framed: bool,
    state: Mutex<State, rank::Connection>,
    /// The stack's.
    memory: Arc<Memory>,
    pub(crate) wait_queue: WaitQueue,
    /// It is in the list of connections with frames that no selector watches.
    pending: AtomicBool,
    /// It is in the list of connections with output.
    dirty: AtomicBool,
    /// The application has closed it: as [`State::orphan`], readable without the lock.
    closed: AtomicBool,
}

/// The state that the lock guards.
pub(crate) struct State {
    pub(crate) connection: Connection,
    /// Bytes of memory charged to the stack for it.
    pub(super) charged: u32,
    /// Its own channel; without one its frames arrive through the shared one.
    channel: Option<ChannelSet>,
    /// The time at which its timer expires, ns.
    armed: u64,
    /// The timer was armed for data in flight.
    armed_in_flight: bool,
    pub(crate) path: Path,
    /// The segments that wake no thread, as the driver's table has it.
    waits: Waits,
    /// Segments that arrive after the application has closed it no longer wait.
    waited: bool,
    /// Its recent rate of frames.
    usage: Usage,
    /// The drop count of its channel when it took the channel over.
    dropped_before: u32,
    /// Segments through the shared channel since it last requested one of its own.
    through_shared: u8,
    /// The application has closed it.
    orphan: bool,
    /// No table of the stack points to it any more.
    detached: bool,
    /// Output was rejected, and waits for its timer.
    held_up: bool,
    /// Times in a row that the device had no room for its output.
    refusals: u8,
    /// A long segment has left since the last time nothing was in flight.
    follows_long: bool,
    /// The time since which its acknowledgment is delayed, in wrapping microseconds; 0 if
    /// it is not.
    delayed_since: u32,
    opening: Opening,
    /// A writer has found no space (Linux's SOCK_NOSPACE): it is notified once there is
    /// some.
    no_space: bool,
    /// The state that watchers were last notified of.
    reported: Reported,
}

/// The path of its segments.
pub(crate) struct Path {
    neighbour: Option<MacAddress>,
    /// The time at which to query the neighbour again, ns.
    neighbour_until: u64,
    /// Unanswered neighbour queries, up to the number that it waits for.
    questions: u8,
    /// The queue on which its frames arrive.
    queue: u8,
    pub(crate) hop_limit: u8,
}

/// The remaining state of a handshake with Fast Open.
struct Opening {
    /// Its SYN waits for the first write (`TCP_FASTOPEN_CONNECT`).
    awaits_syn_data: bool,
    /// Opened with Fast Open; its outcome is still to be recorded.
    fast: bool,
    /// The listener for which a SYN with data has opened it, until the handshake is
    /// complete.
    opened_at: Option<Weak<ListenerInner>>,
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        self.memory.forget(self.state.get_mut().charged);
    }
}

/// The state that watchers are notified about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    /// [`Connection::rcv_nxt`].
    received_to: u32,
    phase: Phase,
    /// The peer's FIN has arrived, or reading was shut down.
    receive_closed: bool,
    send_closed: bool,
    /// [`Connection::notification_count`].
    notified: u32,
}

impl Reported {
    fn of(connection: &Connection) -> Self {
        Reported {
            received_to: connection.rcv_nxt(),
            phase: connection.state(),
            receive_closed: connection.receive_closed(),
            send_closed: connection.send_closed(),
            notified: connection.notification_count(),
        }
    }
}

/// Converts the engine's errno into an error.
pub(crate) fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

impl ConnectionInner {
    pub(crate) fn flow(&self) -> &FourTuple {
        &self.flow
    }

    pub(crate) fn is_framed(&self) -> bool {
        self.framed
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(lock(&self.state), &self.memory)
    }

    /// Locks it for a caller that changes nothing that takes memory.
    pub(crate) fn look(&self) -> MutexGuard<'_, State, rank::Connection> {
        lock(&self.state)
    }

    /// Locks it unless another thread holds the lock.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self.state.try_lock()?, &self.memory))
    }

    /// Returns true if the caller must enter it in a list of those with frames: it is in
    /// none.
    pub(super) fn becomes_pending(&self) -> bool {
        !self.pending.swap(true, Ordering::AcqRel)
    }

    /// Removes it from the list of those with frames; called by the thread that took it.
    pub(crate) fn clear_pending(&self) {
        self.pending.store(false, Ordering::Release);
    }

    /// Runs the protocol on the waiting frames.
    pub(crate) fn process(self: &Arc<Self>, core: &Core) {
        Deferred::collect(core, |deferred| {
            let state = self.look();
            if !state.has_frames() {
                return;
            }
            let mut state = Locked::new(state, &self.memory);
            if self.take_frames(core, &mut state, deferred) > 0 {
                self.update(core, &mut state, deferred);
                self.notify_changes(&mut state);
            }
        });
    }

    /// Runs `work` with the connection locked, and then the work that it deferred.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        core: &Core,
        work: impl FnOnce(&mut State, &mut Deferred) -> R,
    ) -> R {
        Deferred::collect(core, |deferred| work(&mut self.lock(), deferred))
    }

    /// Passes the channel's frames to the engine. Returns their number.
    pub(crate) fn take_frames(
        &self,
        core: &Core,
        state: &mut State,
        deferred: &mut Deferred,
    ) -> usize {
        let State {
            connection,
            channel: Some(set),
            path,
            usage,
            ..
        } = state
        else {
            return 0;
        };
        if set.looks_empty() {
            return 0;
        }
        let now = core.now();
        let mut taken = 0;
        let mut joined = Vec::new();
        for (number, channel) in set.channels.iter_mut().enumerate() {
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let before = taken;
            // No more than the channel's credit, which is returned below.
            while let Some(frame) = channel.remove() {
                taken += 1;
                let read = (&frame, &mut joined);
                match Tcp::of(core).parse(core, &shared, read, set.id, deferred) {
                    Content::Segment(segment, described) if segment.flow == *connection.flow() => {
                        match described.waited_since(now) {
                            None => connection.input(&segment, now),
                            Some(came) => connection.input_after_waiting(&segment, came),
                        }
                    }
                    Content::Error(error) if flow_of(&error) == *connection.flow() => {
                        connection.icmp_error(&error, now);
                    }
                    Content::Segment(..) | Content::Error(_) => deferred.keep(&shared, &frame),
                    Content::Nothing => {}
                }
                done.add(&shared, frame);
            }
            if taken > before {
                path.queue = number as u8;
            }
            shared.give_back(set.id, done);
        }
        usage.add(taken, now);
        connection.segments_taken(taken, now);
        taken
    }

    /// Processes a segment that did not arrive by its own channel.
    pub(crate) fn input(self: &Arc<Self>, core: &Core, segment: &Segment<'_>, queue: usize) {
        Deferred::collect(core, |deferred| {
            self.input_with(core, segment, queue, deferred);
        });
    }

    /// As [`ConnectionInner::input`], for a caller that holds a listener's lock.
    pub(crate) fn input_with(
        self: &Arc<Self>,
        core: &Core,
        segment: &Segment<'_>,
        queue: usize,
        deferred: &mut Deferred,
    ) {
        let mut state = self.lock();
        if state.detached {
            return;
        }
        // Earlier segments, in its own channel.
        self.take_frames(core, &mut state, deferred);
        let now = core.now();
        state.path.queue = queue as u8;
        state.connection.input(segment, now);
        state.usage.add(1, now);
        if state.channel.is_none() && !state.is_done() {
            state.through_shared = state.through_shared.saturating_add(1);
            if state.through_shared >= BUSY {
                state.through_shared = 0;
                self.take_channel(core, &mut state, false, deferred);
            }
        }
        self.update(core, &mut state, deferred);
        self.notify_changes(&mut state);
    }

    /// Processes an ICMP error that did not arrive by its own channel.
    pub(crate) fn icmp_error(self: &Arc<Self>, core: &Core, error: &FlowError) {
        self.with(core, |state, deferred| {
            state.connection.icmp_error(error, core.now());
            self.update(core, state, deferred);
            self.notify_changes(state);
        });
    }

    /// Ends it with an error.
    pub(crate) fn fail(self: &Arc<Self>, core: &Core, error: Errno) {
        self.with(core, |state, deferred| {
            state.connection.fail(error);
            self.update(core, state, deferred);
            self.notify_changes(state);
        });
    }

    /// Handles the consequences of any change: the end of the connection, its timer, and
    /// its place among those with output.
    pub(crate) fn update(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        deferred: &mut Deferred,
    ) {
        if state.detached {
            return;
        }
        state.update_fast_open(core);
        if state.opening.awaits_syn_data {
            return;
        }
        if state.connection.wants_output() {
            if !state.held_up {
                self.schedule_output(core);
            }
        } else if let Some(entry) = state.connection.take_time_wait() {
            // No watcher is notified of this: the peer's FIN was the event that they
            // waited for.
            state.reported = Reported::of(&state.connection);
            Tcp::of(core).enter_time_wait(core, entry);
            self.detach(core, state, true, deferred);
            return;
        } else if state.connection.state() == Phase::Closed {
            self.detach(core, state, false, deferred);
            return;
        }
        if state.is_done() && state.channel.is_some() {
            self.give_channel_back(core, state, deferred);
        }
        if !state.connection.wants_output() {
            self.update_waits(core, state, deferred);
        }
        self.update_timer(core, state);
    }

    /// Updates the timer. A timer that expires early costs one check; moving it back with
    /// each segment would cost more. The exception is a timer for data that is
    /// acknowledged by now, with nothing else in flight. It would wake a sleeping thread
    /// after each answer of a server.
    fn update_timer(&self, core: &Core, state: &mut State) {
        let due = state.connection.next_timeout();
        let in_flight = state.connection.awaits_acknowledgment();
        if state.armed_in_flight && !in_flight && !state.held_up && !state.orphan {
            state.armed_in_flight = false;
            if due.is_none_or(|due| nanoseconds(due) > state.armed) {
                state.armed = NEVER;
                if due.is_none() {
                    core.timers.disarm(self.timer);
                }
            }
        }
        if let Some(due) = due
            && nanoseconds(due) < state.armed
        {
            state.armed_in_flight = in_flight;
            self.arm(core, state, due);
        }
    }

    pub(super) fn arm(&self, core: &Core, state: &mut State, due: Duration) {
        if nanoseconds(due) < state.armed {
            // Keepalive probes of many connections leave together.
            let due = if state.connection.is_idle() {
                Duration::from_secs(due.as_secs() + 1)
            } else {
                due
            };
            // Not the exact time: other work that is due between the two is not armed
            // otherwise.
            state.armed = nanoseconds(due);
            core.arm(self.timer, due);
        }
    }

    /// Notifies watchers of the changes since their last notification, as Linux does, so
    /// that edge-triggered watchers (EPOLLET) receive the same edges.
    pub(crate) fn notify_changes(&self, state: &mut State) {
        let changed = state.changes();
        if !changed.is_empty() {
            self.wait_queue.notify(changed);
        }
    }

    /// As [`ConnectionInner::notify_changes`], if the engine has recorded a notification
    /// since `before` ([`Connection::notification_count`]).
    pub(crate) fn notify_notifications(&self, state: &mut State, before: u32) {
        if state.connection.notification_count() != before {
            self.notify_changes(state);
        }
    }

    /// As [`ConnectionInner::notify_changes`], by a thread that has read: no other thread
    /// need look for the data that it consumed.
    pub(crate) fn notify_read(&self, state: &mut State) {
        let changed = state.changes();
        if !changed.is_empty() {
            if changed != Events::DATA_CAME || state.connection.readable() {
                self.wait_queue.threads().wake_all();
            }
            self.wait_queue.notify_registrations(changed);
        }
    }

    /// Wakes the waiters, as the application has changed its state.
    pub(crate) fn notify_state(&self, state: &mut State) {
        state.changes();
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Assigns a channel of its own if one is free, else (`first`) the shared one.
    ///
    /// Returns false when the driver has no room for the flow.
    pub(crate) fn take_channel(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        first: bool,
        deferred: &mut Deferred,
    ) -> bool {
        let flow = *state.connection.flow();
        // A new connection may take the channel of a silent one.
        let wanted = state.usage.frames(core.now()).max(1);
        let Some(mut set) = Tcp::of(core).lend_channel(core, wanted, deferred) else {
            if first {
                state.connection.set_receive_room(SHARED_MOST);
            }
            return !first
                || Tcp::of(core).enter_flow(
                    core,
                    &flow,
                    Tcp::of(core).channels.shared.id,
                    Part::Shared,
                );
        };
        let id = set.id;
        core.channels.set_endpoint(id.index(), Some(self.clone()));
        empty(&mut set, deferred);
        if Tcp::of(core).enter_flow(core, &flow, id, Part::All) {
            state.waits = Waits::None;
            state.enter_channel(core, set);
            return true;
        }
        Tcp::of(core).take_channel_back(core, set, deferred);
        false
    }

    /// Releases its channel; its frames arrive through the shared one from now on.
    fn give_channel_back(&self, core: &Core, state: &mut State, deferred: &mut Deferred) {
        if let Some(set) = state.leave_channel() {
            (state.waits, state.waited) = (Waits::None, false);
            // It replaces an existing entry, so there is room.
            Tcp::of(core).enter_flow(
                core,
                &self.flow,
                Tcp::of(core).channels.shared.id,
                Part::Shared,
            );
            Tcp::of(core).take_channel_back(core, set, deferred);
        }
    }

    /// Removes it from all tables that point to it. `lingers`: the flow is in TIME-WAIT.
    fn detach(&self, core: &Core, state: &mut State, lingers: bool, deferred: &mut Deferred) {
        state.detached = true;
        if state.connection.take_framing_error() {
            core.causes.protocol(DropReason::AcpFraming);
        }
        let flow = *state.connection.flow();
        Tcp::of(core).flows.forget(&flow);
        if lingers {
            Tcp::of(core).enter_flow(
                core,
                &flow,
                Tcp::of(core).channels.time_wait.id,
                Part::TimeWait,
            );
        } else {
            core.tables
                .disconnect(Protocol::Tcp, flow.local, flow.remote);
        }
        if let Some(set) = state.channel.take() {
            Tcp::of(core).take_channel_back(core, set, deferred);
        }
        if !lingers {
            Tcp::of(core)
                .ports
                .leave(&core.netdev.owner, flow.local.port());
        }
        core.timers.remove(self.timer);
        Tcp::of(core).counters.closed(state.orphan);
    }

    /// Called when the application has closed it. Sends FIN, or RST when data was not
    /// read; the rest happens in the background.
    pub(crate) fn close(self: &Arc<Self>, core: &Core, linger: Option<Duration>) {
        // Segments that arrive after the frames below are not left to the application.
        self.closed.store(true, Ordering::Release);
        self.with(core, |state, deferred| {
            self.take_frames(core, state, deferred);
            state.orphan = true;
            state.opening.awaits_syn_data = false;
            state.connection.close(linger, core.now());
            if !state.detached {
                Tcp::of(core).limit_orphan(state);
                Tcp::of(core).counters.orphan_made();
                self.update(core, state, deferred);
            }
        });
    }

    /// Returns true for one that the application has closed and that has something to
    /// send, or waits for acknowledgments.
    pub(crate) fn has_more(&self) -> bool {
        let state = self.look();
        let connection = &state.connection;
        let waits = matches!(
            connection.state(),
            Phase::FinWait1 | Phase::Closing | Phase::LastAck
        );
        state.orphan && !state.detached && (waits || connection.wants_output())
    }

    /// Returns true once the stack has nothing left to do for it.
    pub(crate) fn is_over(&self) -> bool {
        self.look().detached
    }
}

/// Returns the flow that an ICMP error is about.
pub(crate) fn flow_of(error: &FlowError) -> FourTuple {
    FourTuple {
        local: error.local,
        remote: error.remote,
    }
}

impl Tcp {
    /// Registers a connection: its flow, its timer, its port (which has a user already)
    /// and its channel. Returns `None` when the driver has no room for the flow or it is
    /// in use; nothing is left behind then.
    pub(crate) fn open(
        &self,
        core: &Core,
        connection: Connection,
        neighbour: Option<MacAddress>,
        queue: usize,
        hop_limit: u8,
        deferred: &mut Deferred,
    ) -> Option<Arc<ConnectionInner>> {
        let (flow, framed) = (*connection.flow(), connection.is_framed());
        let (fast, awaits_syn_data) = (
            connection.is_fast_open_client(),
            connection.awaits_syn_data(),
        );
        let inner = core.timers.add(|timer| {
            Arc::new(ConnectionInner {
                flow,
                timer,
                framed,
                memory: self.memory.clone(),
                state: Mutex::new(State {
                    charged: 0,
                    channel: None,
                    armed: NEVER,
                    armed_in_flight: false,
                    path: Path {
                        neighbour,
                        neighbour_until: 0,
                        questions: 0,
                        queue: queue as u8,
                        hop_limit,
                    },
                    waits: Waits::None,
                    waited: false,
                    usage: Usage::default(),
                    dropped_before: 0,
                    through_shared: 0,
                    orphan: false,
                    detached: false,
                    held_up: false,
                    refusals: 0,
                    follows_long: false,
                    delayed_since: 0,
                    opening: Opening {
                        awaits_syn_data,
                        fast,
                        opened_at: None,
                    },
                    no_space: false,
                    reported: Reported::of(&connection),
                    connection,
                }),
                wait_queue: WaitQueue::default(),
                pending: AtomicBool::new(false),
                dirty: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            })
        });
        if !self.flows.enter(&inner) {
            core.timers.remove(inner.timer);
            return None;
        }
        let entered = {
            let mut state = inner.lock();
            let entered = inner.take_channel(core, &mut state, true, deferred);
            if entered {
                // A SYN is to be sent.
                inner.update(core, &mut state, deferred);
            } else {
                state.detached = true;
            }
            entered
        };
        if !entered {
            self.flows.forget(&flow);
            core.timers.remove(inner.timer);
            return None;
        }
        self.bound_time_wait(core);
        self.ports.again(flow.local.port());
        self.counters.opened();
        Some(inner)
    }
}
