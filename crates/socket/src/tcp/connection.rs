//! One connection as the stack holds it: the engine, its channel, and who
//! waits for it.
//!
//! Order of locks: a listener's state, a connection's state, then everything
//! else, which nobody holds while taking one of these.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::Protocol;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{Connection, Errno, FourTuple, Segment, State as Phase};
use tidewall_receive::poller::Done;
use tidewall_wire::ethernet::MacAddress;

use super::Tcp;
use super::channels::Part;
use super::frames::{Content, Deferred};
use super::listener::ListenerInner;
use super::memory::{Locked, Memory};
use super::sending::{Again, Emitted, QUANTUM};
use crate::channels::{ChannelSet, Usage};
use crate::endpoint::Endpoint;
use crate::readiness::Events;
use crate::readiness::registration::Pollable;
use crate::stack::{Core, lock};
use crate::wait_queue::{WaitQueue, Waitable};

/// How long a neighbour's address is used without asking.
const NEIGHBOUR_LIFETIME: Duration = Duration::from_secs(1);
/// When to try again what the device had no room for.
const CONGESTED: Duration = Duration::from_millis(1);
/// When to ask again for a neighbour that the kernel is looking for.
const RESOLVING: Duration = Duration::from_millis(10);
/// Segments through the shared channel after which a connection is busy enough
/// for one of its own.
const BUSY: u8 = 16;
/// [`State::armed`] of a connection whose timer is not.
const NEVER: Duration = Duration::MAX;

/// One connection.
pub(crate) struct ConnectionInner {
    /// The connection's, to be read without its lock.
    flow: FourTuple,
    timer: u32,
    state: Mutex<State>,
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
    /// When its timer is to expire.
    armed: Duration,
    neighbour: Option<MacAddress>,
    /// When to ask for it again, ns.
    neighbour_until: u64,
    /// How much came lately.
    usage: Usage,
    /// Queue that its frames come on.
    queue: u8,
    pub(crate) hop_limit: u8,
    /// Segments that came through the shared channel since a channel was asked for.
    through_shared: u8,
    /// The application has closed it.
    orphan: bool,
    /// Nothing of the stack points to it any more.
    detached: bool,
    /// Output was refused, and waits for its timer.
    held_up: bool,
    /// Its SYN waits for what is written first (`TCP_FASTOPEN_CONNECT`).
    awaits_syn_data: bool,
    /// Opened with Fast Open, and something is to be learned from it.
    fast: bool,
    /// Whose SYN with data has opened it, until the handshake has ended.
    opened_at: Option<Weak<ListenerInner>>,
    /// Somebody has found no space to write (Linux's SOCK_NOSPACE): they are notified
    /// once there is some.
    no_space: bool,
    /// What watchers were notified of last.
    reported: Reported,
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        self.memory.forget(state.charged);
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
    /// [`Connection::notified`].
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

/// A time of the stack's, half as large: there are many connections.
fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The engine's errno as an error.
pub(crate) fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

impl ConnectionInner {
    pub(crate) fn flow(&self) -> &FourTuple {
        &self.flow
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(lock(&self.state), &self.memory)
    }

    /// Locks it for who changes nothing that takes memory.
    pub(crate) fn look(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks it unless somebody is busy with it.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked::new(state, &self.memory))
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
        let mut deferred = Deferred::default();
        {
            let state = self.look();
            if !state.has_frames() {
                return;
            }
            let mut state = Locked::new(state, &self.memory);
            if self.take_frames(core, &mut state, &mut deferred) > 0 {
                self.update(core, &mut state, &mut deferred);
                self.notify_changes(&mut state);
            }
        }
        core.tcp.run_deferred(core, deferred);
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
            queue,
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
        for (number, channel) in set.channels.iter_mut().enumerate() {
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let before = taken;
            // No more than the channel's credit, which comes back below.
            while let Some(frame) = channel.remove() {
                taken += 1;
                match core.tcp.parse(core, &shared, &frame, set.id, deferred) {
                    Content::Segment(segment) if segment.flow == *connection.flow() => {
                        connection.input(&segment, now);
                    }
                    Content::Error(error) if flow_of(&error) == *connection.flow() => {
                        connection.icmp_error(&error, now);
                    }
                    Content::Segment(_) | Content::Error(_) => deferred.keep(&shared, &frame),
                    Content::Nothing => {}
                }
                done.add(&shared, frame);
            }
            if taken > before {
                *queue = number as u8;
            }
            shared.give_back(set.id, done);
        }
        usage.add(taken, now);
        taken
    }

    /// A segment that came another way than by its own channel.
    pub(crate) fn input(self: &Arc<Self>, core: &Core, segment: &Segment<'_>, queue: usize) {
        let mut deferred = Deferred::default();
        self.input_with(core, segment, queue, &mut deferred);
        core.tcp.run_deferred(core, deferred);
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
        state.queue = queue as u8;
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
        let mut deferred = Deferred::default();
        {
            let mut state = self.lock();
            state.connection.icmp_error(error, core.now());
            self.update(core, &mut state, &mut deferred);
            self.notify_changes(&mut state);
        }
        core.tcp.run_deferred(core, deferred);
    }

    /// Ends it with an error.
    pub(crate) fn fail(self: &Arc<Self>, core: &Core, error: Errno) {
        let mut deferred = Deferred::default();
        {
            let mut state = self.lock();
            state.connection.fail(error);
            self.update(core, &mut state, &mut deferred);
            self.notify_changes(&mut state);
        }
        core.tcp.run_deferred(core, deferred);
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
        if state.awaits_syn_data {
            return;
        }
        if state.connection.wants_output() {
            if !state.held_up {
                self.schedule_output(core);
            }
        } else if let Some(entry) = state.connection.take_time_wait() {
            // Nobody is notified of this: the peer's FIN was what they waited for.
            state.reported = Reported::of(&state.connection);
            core.tcp.enter_time_wait(core, entry);
            self.detach(core, state, true, deferred);
            return;
        } else if state.connection.state() == Phase::Closed {
            self.detach(core, state, false, deferred);
            return;
        }
        if state.is_done() && state.channel.is_some() {
            self.give_channel_back(core, state, deferred);
        }
        if let Some(due) = state.connection.next_timeout() {
            self.arm(core, state, due);
        }
    }

    pub(super) fn arm(&self, core: &Core, state: &mut State, due: Duration) {
        // A timer that expires early costs one look; moving it back with each
        // segment would cost more.
        if due < state.armed {
            state.armed = due;
            // Keepalive probes of many connections go together.
            let due = if state.connection.is_idle() {
                Duration::from_secs(due.as_secs() + 1)
            } else {
                due
            };
            core.tcp.arm(self.timer, due);
        }
    }

    /// Puts it among those that want to send.
    fn schedule_output(self: &Arc<Self>, core: &Core) {
        if self.becomes_dirty() {
            core.tcp.schedule_output(self.clone());
        }
    }

    /// True for who must put it among those that want to send: it is not there.
    pub(super) fn becomes_dirty(&self) -> bool {
        !self.dirty.swap(true, Ordering::AcqRel)
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
    /// `before` ([`Connection::notified`]).
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
                self.wait_queue.wake_all();
            }
            self.wait_queue.notify_registrations(changed);
        }
    }

    /// Tells those who wait that the application has changed its state.
    pub(crate) fn notify_state(&self, state: &mut State) {
        state.changes();
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Sends what may be sent in one turn: into frames of its queue, which the
    /// caller makes the device send.
    pub(super) fn emit(self: &Arc<Self>, core: &Core) -> Emitted {
        self.dirty.store(false, Ordering::Release);
        let mut deferred = Deferred::default();
        let emitted = {
            let mut state = self.lock();
            self.emit_locked(core, &mut state, &mut deferred)
        };
        core.tcp.run_deferred(core, deferred);
        emitted
    }

    fn emit_locked(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        deferred: &mut Deferred,
    ) -> Emitted {
        let mut emitted = Emitted::default();
        if state.detached || state.awaits_syn_data || !state.connection.wants_output() {
            return emitted;
        }
        let now = core.now();
        let mut retry = None;
        match state.find_neighbour(core, now) {
            Some(neighbour) => {
                let Some((number, queue)) = core.receiver.sending_queue(usize::from(state.queue))
                else {
                    return emitted;
                };
                emitted.queue = Some(number);
                let flow = *state.connection.flow();
                let hop_limit = state.hop_limit;
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
                state.connection.output(now, &mut |outgoing| {
                    if quantum == 0 {
                        emitted.again = Again::Later;
                        return false;
                    }
                    quantum -= 1;
                    let sent = transmitter.queue_segment(neighbour, hop_limit, &flow, outgoing);
                    if sent.is_err() {
                        retry = Some(CONGESTED);
                    }
                    sent.is_ok()
                });
                drop(transmitter);
                self.notify_notifications(state, notified);
            }
            None => retry = Some(RESOLVING),
        }
        state.held_up = retry.is_some();
        if let Some(after_this) = retry {
            core.tcp.counters.held_up();
            if state.connection.state() == Phase::Closed {
                // A reset is not worth waiting for.
                self.detach(core, state, false, deferred);
                return emitted;
            }
            self.arm(core, state, now + after_this);
        }
        emitted.again = self.again(emitted.again);
        self.update(core, state, deferred);
        emitted
    }

    /// As it is for the caller to enter it: not if it is entered already.
    fn again(&self, again: Again) -> Again {
        if again != Again::No && self.becomes_dirty() {
            again
        } else {
            Again::No
        }
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
        let Some(mut set) = core.channels.lend(core, wanted, deferred) else {
            return !first
                || core
                    .tcp
                    .enter_flow(core, &flow, core.tcp.channels.shared.id, Part::Shared);
        };
        let id = set.id;
        core.channels.set_endpoint(id.index(), Some(self.clone()));
        set.empty(deferred);
        if core.tcp.enter_flow(core, &flow, id, Part::All) {
            state.channel = Some(set);
            return true;
        }
        core.channels.give_back(core, set, deferred);
        false
    }

    /// Gives its channel back; its frames come through the shared one from now on.
    fn give_channel_back(&self, core: &Core, state: &mut State, deferred: &mut Deferred) {
        if let Some(set) = state.channel.take() {
            // It replaces an entry, for which there is room.
            core.tcp
                .enter_flow(core, &self.flow, core.tcp.channels.shared.id, Part::Shared);
            core.channels.give_back(core, set, deferred);
        }
    }

    /// Takes it out of everything that points to it. `lingers`: the flow is in
    /// TIME-WAIT.
    fn detach(&self, core: &Core, state: &mut State, lingers: bool, deferred: &mut Deferred) {
        state.detached = true;
        let flow = *state.connection.flow();
        core.tcp.flows.forget(&flow);
        if lingers {
            core.tcp
                .enter_flow(core, &flow, core.tcp.channels.time_wait.id, Part::TimeWait);
        } else {
            core.tables
                .disconnect(Protocol::Tcp, flow.local, flow.remote);
        }
        if let Some(set) = state.channel.take() {
            core.channels.give_back(core, set, deferred);
        }
        if !lingers {
            core.tcp.ports.leave(&core.netdev.owner, flow.local.port());
        }
        core.tcp.timers.remove(self.timer);
        core.tcp.counters.closed(state.orphan);
    }

    /// The application is done with it: FIN, or RST when data was not read, and
    /// the rest in the background.
    pub(crate) fn close(self: &Arc<Self>, core: &Core, linger: Option<Duration>) {
        let mut deferred = Deferred::default();
        // What comes after the frames below is not left to the application.
        self.closed.store(true, Ordering::Release);
        {
            let mut state = self.lock();
            self.take_frames(core, &mut state, &mut deferred);
            state.orphan = true;
            state.awaits_syn_data = false;
            state.connection.close(linger, core.now());
            if !state.detached {
                core.tcp.limit_orphan(&mut state);
                core.tcp.counters.orphan_made();
                self.update(core, &mut state, &mut deferred);
            }
        }
        core.tcp.run_deferred(core, deferred);
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

impl Endpoint for ConnectionInner {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        let polled = self.wait_queue.frames_arrived();
        if self.closed.load(Ordering::Acquire) {
            // No application does.
            core.tcp.on_closing_frames(core, &self);
        } else if !polled && self.becomes_pending() {
            core.tcp.add_pending_connection(self);
        }
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        let mut deferred = Deferred::default();
        {
            let mut state = self.lock();
            if state.detached {
                return;
            }
            let now = core.now();
            state.armed = NEVER;
            // An acknowledgment that waits in the channel may make the timer
            // void.
            self.take_frames(core, &mut state, &mut deferred);
            if state
                .connection
                .next_timeout()
                .is_some_and(|due| due <= now)
            {
                state.connection.timeout(now);
            }
            state.held_up = false;
            self.update(core, &mut state, &mut deferred);
            self.notify_changes(&mut state);
        }
        core.tcp.run_deferred(core, deferred);
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        let mut deferred = Deferred::default();
        {
            let Some(mut state) = self.try_lock() else {
                return;
            };
            if self.take_frames(core, &mut state, &mut deferred) > 0 {
                self.update(core, &mut state, &mut deferred);
                self.notify_changes(&mut state);
            }
        }
        core.tcp.run_deferred(core, deferred);
    }

    fn channel_usage(&self, now: Duration) -> Option<u16> {
        let state = self.try_lock()?;
        let has_channel = state.channel.is_some();
        has_channel.then(|| state.usage.frames(now))
    }

    fn give_up_channel(&self, core: &Core, deferred: &mut Deferred) -> Option<ChannelSet> {
        // Locked until its flow is elsewhere: it may not end before.
        let mut state = self.try_lock()?;
        let mut set = state.channel.take()?;
        core.tcp
            .enter_flow(core, &self.flow, core.tcp.channels.shared.id, Part::Shared);
        core.channels.keep(&set);
        set.empty(deferred);
        Some(set)
    }

    fn reclaim(&self) -> Option<usize> {
        let mut state = self.try_lock()?;
        state.connection.prune();
        state.is_orphan().then(|| state.connection.memory())
    }

    fn reset(self: Arc<Self>, core: &Core) {
        let mut deferred = Deferred::default();
        {
            let mut state = self.lock();
            state.connection.abort();
            self.update(core, &mut state, &mut deferred);
        }
        core.tcp.run_deferred(core, deferred);
    }
}

impl State {
    /// What it is ready for now, as Linux's tcp_poll has it. A caller that finds no space
    /// is notified once there is some.
    pub(crate) fn events(&mut self) -> Events {
        if self.awaits_syn_data {
            return Events::WRITABLE;
        }
        let connection = &self.connection;
        let mut events = Events::NONE;
        let received = connection.receive_closed();
        if received {
            events |= Events::READABLE | Events::RDHUP;
        } else if connection.readable() {
            events |= Events::READABLE;
        }
        if received && connection.send_closed() {
            events |= Events::HUP;
        }
        if connection.writable() {
            events |= Events::WRITABLE;
        } else {
            self.no_space = true;
        }
        events.with_if(
            Events::ERR,
            connection.has_error() || connection.has_notifications(),
        )
    }

    /// Somebody has found no space to write.
    pub(crate) fn note_no_space(&mut self) {
        self.no_space = true;
    }

    /// What has changed since the last call.
    fn changes(&mut self) -> Events {
        let now = Reported::of(&self.connection);
        let mut changed = Events::NONE;
        if now != self.reported {
            let reported = self.reported;
            if now.received_to != reported.received_to {
                changed |= Events::DATA_CAME;
            }
            if now.notified != reported.notified {
                changed |= Events::ERR;
            }
            let same_state = Reported {
                received_to: now.received_to,
                notified: now.notified,
                ..reported
            };
            if now != same_state {
                changed = Events::STATE_CHANGED;
            }
            self.reported = now;
        }
        if self.no_space && self.connection.writable() {
            self.no_space = false;
            changed |= Events::SPACE_CAME;
        }
        changed
    }

    /// Lets a SYN go that waits for what is written first. True if it did.
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.awaits_syn_data)
    }

    /// True while the SYN waits for what is written first.
    pub(crate) fn awaits_syn_data(&self) -> bool {
        self.awaits_syn_data
    }

    /// Says which listener is to hear of the end of its handshake.
    pub(crate) fn opened_at(&mut self, listener: &Arc<ListenerInner>) {
        if self.detached {
            listener.fast_open_done(false);
        } else {
            self.opened_at = Some(Arc::downgrade(listener));
        }
    }

    /// Learns from a connection that was opened with Fast Open, and frees the place
    /// of one that a SYN has opened.
    fn update_fast_open(&mut self, core: &Core) {
        if self.fast {
            let (flow, now) = (*self.connection.flow(), core.now());
            if let Some(outcome) = self.connection.take_fast_open_outcome() {
                core.tcp.fast_open.learn(&flow, &outcome, now);
            }
            if self.connection.take_fast_open_black_hole() {
                core.tcp.fast_open.suspect(now);
            }
            self.fast = self.connection.state() != Phase::Closed;
        }
        if self.opened_at.is_some()
            && let Some(reset) = self.connection.take_fast_open_done()
            && let Some(listener) = self
                .opened_at
                .take()
                .and_then(|listener| listener.upgrade())
        {
            listener.fast_open_done(reset);
        }
    }

    /// True once the application has closed it.
    pub(super) fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// True when the application is gone and the peer has got everything: only its
    /// FIN is waited for.
    fn is_done(&self) -> bool {
        self.orphan && self.connection.state() == Phase::FinWait2
    }

    /// True when frames wait in its channel.
    pub(crate) fn has_frames(&self) -> bool {
        self.channel.as_ref().is_some_and(|set| !set.looks_empty())
    }

    /// True when it has a channel of its own.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    fn find_neighbour(&mut self, core: &Core, now: Duration) -> Option<MacAddress> {
        if nanoseconds(now) < self.neighbour_until && self.neighbour.is_some() {
            return self.neighbour;
        }
        let FourTuple { local, remote } = *self.connection.flow();
        // Somebody may be waiting for the kernel's answer with the routes locked;
        // nobody who has a connection locked waits for that.
        let routes = match core.ip.routes.try_lock() {
            Ok(routes) => Some(routes),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let known = routes.and_then(|mut it| it.known(remote.ip(), local.ip(), Instant::now()));
        let lifetime = if known.is_some() {
            self.neighbour = known;
            NEIGHBOUR_LIFETIME
        } else {
            // Where its frames came from last will do until the answer is there.
            core.tcp.ask_route(core, remote.ip(), local.ip());
            RESOLVING
        };
        self.neighbour_until = nanoseconds(now + lifetime);
        self.neighbour
    }
}

/// Somebody who waits until a connection is ready for something.
pub(crate) struct Waiting<'a> {
    pub(crate) connection: &'a ConnectionInner,
    pub(crate) want: Events,
}

impl Pollable for ConnectionInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    // A caller that finds no space is notified once there is some.
    fn events(&self) -> Events {
        self.look().events()
    }

    fn has_unprocessed_frames(&self) -> bool {
        self.lock().has_frames()
    }

    fn process_frames(self: Arc<Self>, core: &Core) {
        self.process(core);
    }
}

impl Waitable for Waiting<'_> {
    fn wait_queue(&self) -> &WaitQueue {
        &self.connection.wait_queue
    }

    fn has_input(&self) -> bool {
        let mut state = self.connection.lock();
        state.has_frames() || state.detached || state.events().intersects(self.want)
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
        let flow = *connection.flow();
        let (fast, awaits_syn_data) = (
            connection.is_fast_open_client(),
            connection.awaits_syn_data(),
        );
        let inner = self.timers.add(|timer| {
            Arc::new(ConnectionInner {
                flow,
                timer,
                memory: self.memory.clone(),
                state: Mutex::new(State {
                    charged: 0,
                    channel: None,
                    armed: NEVER,
                    neighbour,
                    neighbour_until: 0,
                    usage: Usage::default(),
                    queue: queue as u8,
                    hop_limit,
                    through_shared: 0,
                    orphan: false,
                    detached: false,
                    held_up: false,
                    awaits_syn_data,
                    fast,
                    opened_at: None,
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
            self.timers.remove(inner.timer);
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
            self.timers.remove(inner.timer);
            return None;
        }
        self.bound_time_wait(core);
        self.ports.again(flow.local.port());
        self.counters.opened();
        Some(inner)
    }
}
