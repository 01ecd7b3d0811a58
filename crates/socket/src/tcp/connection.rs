//! One connection as the stack holds it: the engine, its channel, and who
//! waits for it.

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
use tidewall_receive::poller::Done;
use tidewall_wire::ethernet::MacAddress;

use self::output::nanoseconds;
use super::Tcp;
use super::channels::{Part, SHARED_MOST};
use super::frames::{Content, Deferred};
use super::lending::{Usage, empty};
use super::listener::ListenerInner;
use super::memory::{Locked, Memory};
use tidewall_readiness::Events;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};
pub(crate) use waiting::Waiting;

/// Segments through the shared channel after which a connection is busy enough
/// for one of its own.
const BUSY: u8 = 16;
/// [`State::armed`] of a connection whose timer is not.
const NEVER: u64 = u64::MAX;

/// One connection.
pub(crate) struct ConnectionInner {
    /// The connection's, to be read without its lock.
    flow: FourTuple,
    timer: u32,
    /// It carries frames and no stream.
    framed: bool,
    state: Mutex<State, rank::Connection>,
    /// The stack's.
    memory: Arc<Memory>,
    pub(crate) wait_queue: WaitQueue,
    /// It is in the list of those with frames that no selector watches.
    pending: AtomicBool,
    /// It is in the list of those that want to send.
    dirty: AtomicBool,
    /// The application has closed it: as [`State::orphan`], to be read without the
    /// lock.
    closed: AtomicBool,
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) connection: Connection,
    /// Bytes of memory that it counts for in the stack's.
    pub(super) charged: u32,
    /// Its own channel; without one its frames come through the shared one.
    channel: Option<ChannelSet>,
    /// When its timer is to expire, ns.
    armed: u64,
    /// It was armed for something in flight.
    armed_in_flight: bool,
    pub(crate) path: Path,
    /// What of it wakes nobody, as the driver's table has it.
    waits: Waits,
    /// All that comes after the application has closed it has had its time to wait.
    waited: bool,
    /// How much came lately.
    usage: Usage,
    /// What its channel had dropped for others before.
    dropped_before: u32,
    /// Segments that came through the shared channel since a channel was asked for.
    through_shared: u8,
    /// The application has closed it.
    orphan: bool,
    /// Nothing of the stack points to it any more.
    detached: bool,
    /// Output was refused, and waits for its timer.
    held_up: bool,
    /// Times in a row that the device had no room for its output.
    refusals: u8,
    /// A long segment has left since nothing was in flight.
    follows_long: bool,
    /// Since when its acknowledgment is delayed, in microseconds that wrap; 0: it is not.
    delayed_since: u32,
    opening: Opening,
    /// Somebody has found no space to write (Linux's SOCK_NOSPACE): they are notified
    /// once there is some.
    no_space: bool,
    /// What watchers were notified of last.
    reported: Reported,
}

/// How its segments leave.
pub(crate) struct Path {
    neighbour: Option<MacAddress>,
    /// When to ask for it again, ns.
    neighbour_until: u64,
    /// Questions for it since there was an answer, as many as it waits for.
    questions: u8,
    /// Queue that its frames come on.
    queue: u8,
    pub(crate) hop_limit: u8,
}

/// What is left of the handshake with Fast Open.
struct Opening {
    /// Its SYN waits for what is written first (`TCP_FASTOPEN_CONNECT`).
    awaits_syn_data: bool,
    /// Opened with Fast Open, and something is to be learned from it.
    fast: bool,
    /// The listener for which a SYN with data has opened it, until the handshake has
    /// ended.
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
    /// The peer's FIN has come, or reading was shut down.
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

/// The engine's errno as an error.
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

    /// Locks it for who changes nothing that takes memory.
    pub(crate) fn look(&self) -> MutexGuard<'_, State, rank::Connection> {
        lock(&self.state)
    }

    /// Locks it unless somebody is busy with it.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self.state.try_lock()?, &self.memory))
    }

    /// True for who must enter it in a list of those with frames: it is in none.
    pub(super) fn becomes_pending(&self) -> bool {
        !self.pending.swap(true, Ordering::AcqRel)
    }

    /// Takes it off the list of those with frames, by the thread that took it.
    pub(crate) fn clear_pending(&self) {
        self.pending.store(false, Ordering::Release);
    }

    /// Runs the protocol on the frames that wait.
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

    /// Has `work` done with the connection locked, and then what that put off.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        core: &Core,
        work: impl FnOnce(&mut State, &mut Deferred) -> R,
    ) -> R {
        Deferred::collect(core, |deferred| work(&mut self.lock(), deferred))
    }

    /// Gives the channel's frames to the engine. Returns how many.
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
            // No more than the channel's credit, which comes back below.
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

    /// A segment that came another way than by its own channel.
    pub(crate) fn input(self: &Arc<Self>, core: &Core, segment: &Segment<'_>, queue: usize) {
        Deferred::collect(core, |deferred| {
            self.input_with(core, segment, queue, deferred);
        });
    }

    /// As [`ConnectionInner::input`], by who has a listener locked.
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
        // Those that came before it, by its own channel.
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

    /// An ICMP error that came another way than by its own channel.
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

    /// What follows any change: the end of the connection, its timer, and its
    /// place among those that want to send.
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
            // Nobody is notified of this: the peer's FIN was what they waited for.
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

    /// A timer that expires early costs one look; moving it back with each segment would
    /// cost more. But one for what is acknowledged by now, with nothing else in flight,
    /// would wake a thread that sleeps, after each answer of a server.
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
            // Keepalive probes of many connections go together.
            let due = if state.connection.is_idle() {
                Duration::from_secs(due.as_secs() + 1)
            } else {
                due
            };
            // Not the exact time: what is due between the two is not armed otherwise.
            state.armed = nanoseconds(due);
            core.arm(self.timer, due);
        }
    }

    /// Notifies watchers of what has changed since they were last notified: as Linux
    /// does, so that edge-triggered watchers (EPOLLET) are notified of the
    /// same ones.
    pub(crate) fn notify_changes(&self, state: &mut State) {
        let changed = state.changes();
        if !changed.is_empty() {
            self.wait_queue.notify(changed);
        }
    }

    /// As [`ConnectionInner::notify_changes`], if it was notified of something since
    /// `before` ([`Connection::notification_count`]).
    pub(crate) fn notify_notifications(&self, state: &mut State, before: u32) {
        if state.connection.notification_count() != before {
            self.notify_changes(state);
        }
    }

    /// As [`ConnectionInner::notify_changes`], by a thread that has read: nobody else need
    /// look for what it took.
    pub(crate) fn notify_read(&self, state: &mut State) {
        let changed = state.changes();
        if !changed.is_empty() {
            if changed != Events::DATA_CAME || state.connection.readable() {
                self.wait_queue.threads().wake_all();
            }
            self.wait_queue.notify_registrations(changed);
        }
    }

    /// Wakes those who wait, as the application has changed its state.
    pub(crate) fn notify_state(&self, state: &mut State) {
        state.changes();
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Gives it a channel of its own if there is one, else (`first`) the shared
    /// one.
    ///
    /// False when the driver has no room for the flow.
    pub(crate) fn take_channel(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        first: bool,
        deferred: &mut Deferred,
    ) -> bool {
        let flow = *state.connection.flow();
        // A new one may have the channel of one that is silent.
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

    /// Gives its channel back; its frames come through the shared one from now on.
    fn give_channel_back(&self, core: &Core, state: &mut State, deferred: &mut Deferred) {
        if let Some(set) = state.leave_channel() {
            (state.waits, state.waited) = (Waits::None, false);
            // It replaces an entry, for which there is room.
            Tcp::of(core).enter_flow(
                core,
                &self.flow,
                Tcp::of(core).channels.shared.id,
                Part::Shared,
            );
            Tcp::of(core).take_channel_back(core, set, deferred);
        }
    }

    /// Takes it out of everything that points to it. `lingers`: the flow is in
    /// TIME-WAIT.
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

    /// The application is done with it: FIN, or RST when data was not read, and
    /// the rest in the background.
    pub(crate) fn close(self: &Arc<Self>, core: &Core, linger: Option<Duration>) {
        // What comes after the frames below is not left to the application.
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

    /// True for one that the application has closed and that has something to
    /// send, or waits to hear that it arrived.
    pub(crate) fn has_more(&self) -> bool {
        let state = self.look();
        let connection = &state.connection;
        let waits = matches!(
            connection.state(),
            Phase::FinWait1 | Phase::Closing | Phase::LastAck
        );
        state.orphan && !state.detached && (waits || connection.wants_output())
    }

    /// True once nothing is left for the stack to do.
    pub(crate) fn is_over(&self) -> bool {
        self.look().detached
    }
}

/// The flow that an ICMP error is about.
pub(crate) fn flow_of(error: &FlowError) -> FourTuple {
    FourTuple {
        local: error.local,
        remote: error.remote,
    }
}

impl Tcp {
    /// Makes a connection known: its flow, its timer, its port (which has a
    /// user already) and its channel. `None` when the driver has no room for it
    /// or the flow is taken; nothing is left behind then.
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
