//! The protocol of a listener: from frames to connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ChannelId, CookieMode};
use tidewall_protocol::DropReason;
use tidewall_protocol::tcp::{self, Connection, FourTuple, Handshake, Listener, Reaction, Segment};
use tidewall_receive::poller::Done;
use tidewall_stack::channel_frame::sender;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::Flags;

use super::{ListenerInner, Origin, State};
use crate::tcp::HOP_LIMIT;
use crate::tcp::Tcp;
use crate::tcp::channels::Part;
use crate::tcp::connection::{ConnectionInner, flow_of};
use crate::tcp::frames::{Content, Deferred};

impl ListenerInner {
    /// Runs the protocol on the waiting frames, as long as connections may be added.
    /// Returns the number of frames.
    pub(crate) fn process(self: &Arc<Self>, core: &Core) -> usize {
        self.process_as(core, 0)
    }

    /// As [`ListenerInner::process`], by a thread that accepts one of the connections at
    /// once: no other is woken for it.
    pub(super) fn process_and_take(self: &Arc<Self>, core: &Core) -> usize {
        self.process_as(core, 1)
    }

    fn process_as(self: &Arc<Self>, core: &Core, takes: usize) -> usize {
        Deferred::collect(core, |deferred| {
            let mut state = lock(&self.state);
            let before = state.established;
            let taken = self.take_frames(core, &mut state, deferred);
            if taken > 0 {
                self.update(core, &mut state, before, takes);
            }
            taken
        })
    }

    fn take_frames(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        deferred: &mut Deferred,
    ) -> usize {
        // Moved out of the state, which segments need too.
        let Some(mut set) = state.channel.take() else {
            return 0;
        };
        let mut total = 0;
        for (queue, channel) in set.channels.iter_mut().enumerate() {
            if channel.looks_empty() {
                continue;
            }
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let mut joined = Vec::new();
            while !self.is_held_back() {
                let Some(opened) = state.opened.get_mut(queue) else {
                    break;
                };
                let Some(frame) = channel.remove() else {
                    opened.clear();
                    break;
                };
                opened.take_one();
                total += 1;
                let read = (&frame, &mut joined);
                match Tcp::of(core).parse(core, &shared, read, set.id, deferred) {
                    Content::Segment(segment, _) => {
                        state.origin = Origin {
                            neighbour: sender(shared.memory().packet(&frame)),
                            queue,
                            silent: false,
                        };
                        self.segment(core, state, set.id, &segment, None, deferred);
                    }
                    Content::Error(error) => {
                        if Tcp::of(core).flows.find(&flow_of(&error)).is_some() {
                            deferred.keep(&shared, &frame);
                        } else if let Reaction::Forgotten(flow) = state.protocol.icmp_error(&error)
                        {
                            core.tables
                                .disconnect(Protocol::Tcp, flow.local, flow.remote);
                        }
                    }
                    Content::Nothing => {}
                }
                done.add(&shared, frame);
            }
            shared.give_back(set.id, done);
        }
        state.channel = Some(set);
        if total > 0 {
            Tcp::of(core).renew_half_open(core);
        }
        total
    }

    /// Processes a segment that did not arrive by its channel. `silent`: no reset answers
    /// it.
    pub(crate) fn take_segment(
        self: &Arc<Self>,
        core: &Core,
        segment: &Segment<'_>,
        reused: Option<u32>,
        neighbour: MacAddress,
        queue: usize,
        silent: bool,
    ) {
        if self.is_held_back() {
            return core.causes.protocol(DropReason::TcpListenOverflow);
        }
        Deferred::collect(core, |deferred| {
            let mut state = lock(&self.state);
            let Some(id) = state.channel.as_ref().map(|set| set.id) else {
                return core.causes.protocol(DropReason::TcpNoConnection);
            };
            let before = state.established;
            state.origin = Origin {
                neighbour,
                queue,
                silent,
            };
            self.segment(core, &mut state, id, segment, reused, deferred);
            self.update(core, &mut state, before, 0);
        });
    }

    fn segment(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        id: ChannelId,
        segment: &Segment<'_>,
        reused: Option<u32>,
        deferred: &mut Deferred,
    ) {
        // Data right behind the handshake's last segment arrived before the driver knew its
        // owner. A copy of a SYN that has opened a connection did so, too.
        let begins =
            segment.header.flags.contains(Flags::SYN) && !segment.header.flags.contains(Flags::ACK);
        if (!begins || state.options.fast_open > 0)
            && let Some(connection) = Tcp::of(core).flows.find(&segment.flow)
            && (!begins || connection.lock().connection.is_fast_opening())
        {
            connection.input_with(core, segment, state.origin.queue, deferred);
            return;
        }
        if begins && self.is_shut() {
            // Its peer retransmits it, to the next listener.
            return;
        }
        if Tcp::of(core).memory.is_exhausted() {
            // The peer retransmits its SYN, or the end of its handshake.
            Tcp::of(core).counters.no_memory();
            return;
        }
        let now = core.now();
        if state.options.fast_open > 0 {
            self.tell_fast_open(&mut state.protocol, now);
        }
        let State {
            protocol, origin, ..
        } = state;
        let sharer = Tcp::of(core).sharer(self, &segment.flow);
        let accepting = sharer.as_ref().unwrap_or(self);
        protocol.set_accept_queue(accepting.waiting.load(Ordering::SeqCst), accepting.backlog);
        protocol.set_origin(origin.to_bits());
        let origin = *origin;
        let may_come_again = !begins && protocol.takes_cookies();
        // Kept until the driver knows the flow that it answers. Another thread may make
        // the device send at any time, and a reply that arrives before goes to the
        // kernel, which resets it.
        let mut answer = None;
        let mut send = |flow: &FourTuple, outgoing: &tcp::Outgoing<'static>| {
            if !(origin.silent && outgoing.header.flags.contains(Flags::RST)) {
                answer = Some((*flow, *outgoing));
            }
        };
        let reaction = match reused {
            Some(sequence) => protocol.input_reusing(segment, sequence, now, &mut send),
            None => protocol.input(segment, now, &mut send),
        };
        match reaction {
            Reaction::Nothing => {}
            Reaction::HalfOpen(flow) => {
                // Without room for it, there is none for the connection.
                Tcp::of(core).enter_flow(core, &flow, id, Part::HalfOpen);
            }
            Reaction::Established(handshake)
                if may_come_again && state.has_opened(&handshake.flow) =>
            {
                core.causes.protocol(DropReason::TcpNoConnection);
            }
            Reaction::Established(handshake) => {
                // The SYN-ACK of a SYN that opens it leaves before the connection's
                // output.
                let answer = answer.take();
                let opened = self.open(core, state, &handshake, segment, answer, deferred);
                let another = sharer.filter(|it| !Arc::ptr_eq(it, self));
                if may_come_again
                    && opened.is_some()
                    && let Some(opened) = state.opened.get_mut(origin.queue)
                {
                    opened.enter(handshake.flow);
                }
                if let Some(connection) = opened
                    && !another.is_some_and(|it| it.take_over(&connection))
                {
                    self.push(connection);
                    state.established = state.established.wrapping_add(1);
                }
            }
            Reaction::Forgotten(flow) => {
                core.tables
                    .disconnect(Protocol::Tcp, flow.local, flow.remote);
            }
            Reaction::Dropped(cause) => core.causes.protocol(cause),
        }
        if let Some((flow, outgoing)) = answer {
            self.tell_cookies(core, state);
            Tcp::of(core).send_segment(core, &flow, &outgoing, origin.neighbour, origin.queue);
        }
    }

    fn open(
        self: &Arc<Self>,
        core: &Core,
        state: &mut State,
        handshake: &Handshake,
        segment: &Segment<'_>,
        answer: Option<(FourTuple, tcp::Outgoing<'static>)>,
        deferred: &mut Deferred,
    ) -> Option<Arc<ConnectionInner>> {
        let v4 = handshake.flow.remote.is_ipv4();
        let config = state.options.stream.apply(Tcp::of(core).config(v4));
        let connection = Connection::accept(handshake, &config, core.now());
        let Origin {
            neighbour, queue, ..
        } = state.origin;
        let opened = Tcp::of(core).open(
            core,
            connection,
            Some(neighbour),
            queue,
            HOP_LIMIT,
            deferred,
        );
        let Some(connection) = opened else {
            Tcp::of(core).counters.refused();
            if handshake.fast_open.is_some() {
                self.fast_open_done(false);
            }
            if let Some(reset) = tcp::reset_for(segment) {
                Tcp::of(core).send_segment(core, &segment.flow, &reset, neighbour, queue);
            }
            return None;
        };
        if handshake.fast_open.is_some() {
            connection.lock().opened_at(self);
        }
        if let Some((flow, outgoing)) = answer {
            Tcp::of(core).send_segment(core, &flow, &outgoing, neighbour, queue);
        }
        connection.input_with(core, segment, queue, deferred);
        Some(connection)
    }

    /// Called when a connection that a SYN has opened has completed its handshake.
    pub(crate) fn fast_open_done(&self, reset: bool) {
        let count = if reset { &self.reset } else { &self.opened };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports finished Fast Open handshakes. The connections hold no lock that this
    /// needs.
    fn tell_fast_open(&self, protocol: &mut Listener, now: Duration) {
        for (count, reset) in [(&self.opened, false), (&self.reset, true)] {
            for _ in 0..count.swap(0, Ordering::Relaxed) {
                protocol.fast_open_done(reset, now);
            }
        }
    }

    /// Called when its options, the kernel's parameters or the keys of the stack's
    /// cookies have changed.
    pub(crate) fn refresh(&self, core: &Core) {
        let mut state = lock(&self.state);
        let State {
            protocol, options, ..
        } = &mut *state;
        protocol.set_config(&options.stream.apply(Tcp::of(core).config(true)));
        protocol.set_fast_open(Tcp::of(core).fast_open.serving(options));
        protocol.set_defer_accept(options.defer_accept);
    }

    /// Handles the consequences of a change: wake-ups, the timer, the driver's cookies.
    ///
    /// `before`: connections established before it. `takes`: connections that the caller
    /// accepts.
    fn update(&self, core: &Core, state: &mut State, before: u32, takes: usize) {
        if state.established != before {
            self.announce(self.waiting.load(Ordering::SeqCst) > takes);
        }
        self.tell_cookies(core, state);
        if let Some(due) = state.protocol.next_timeout()
            && due < state.armed
        {
            state.armed = due;
            core.arm(self.timer, due);
        }
    }

    /// Updates the driver's cookie mode, if it has changed.
    fn tell_cookies(&self, core: &Core, state: &State) {
        if !self.is_served() {
            return;
        }
        let attacked = state.protocol.sends_cookies();
        let cookies = if attacked && Tcp::of(core).driver_answers && self.has_acceptor(core) {
            CookieMode::Answer
        } else if attacked || state.protocol.takes_cookies() {
            CookieMode::Take
        } else {
            CookieMode::Off
        };
        if cookies != std::mem::replace(&mut *lock(&self.cookies), cookies) {
            // It cannot fail: the port is listening, and there is a key.
            let _ = core.tables.set_cookies(self.local.port(), cookies);
        }
    }

    /// Retransmits SYN-ACKs and expires half-open connections that are due.
    pub(super) fn run_timer(self: &Arc<Self>, core: &Core) {
        Deferred::collect(core, |deferred| {
            let mut state = lock(&self.state);
            if state.channel.is_none() {
                return;
            }
            let before = state.established;
            // Answers to the SYN-ACKs may have arrived already.
            self.take_frames(core, &mut state, deferred);
            let now = core.now();
            state.armed = Duration::MAX;
            let protocol = &mut state.protocol;
            if protocol.next_timeout().is_some_and(|due| due <= now) {
                protocol.timeout(
                    now,
                    &mut |flow, outgoing, origin| {
                        let Origin {
                            neighbour, queue, ..
                        } = Origin::from_bits(origin);
                        Tcp::of(core).send_segment(core, flow, outgoing, neighbour, queue);
                    },
                    &mut |flow: &FourTuple| {
                        core.tables
                            .disconnect(Protocol::Tcp, flow.local, flow.remote);
                    },
                );
            }
            self.update(core, &mut state, before, 0);
        });
    }

    /// Closes it; returns its channel, and the flows that were half open.
    pub(super) fn close(&self) -> (Option<ChannelSet>, Vec<FourTuple>) {
        let mut state = lock(&self.state);
        let mut half_open = Vec::new();
        state
            .protocol
            .close(&mut |flow: &FourTuple| half_open.push(*flow));
        (state.channel.take(), half_open)
    }
}

impl State {
    /// Returns true for a flow whose connection a copy of the current segment has opened.
    fn has_opened(&self, flow: &FourTuple) -> bool {
        let of_queue = self.opened.get(self.origin.queue);
        of_queue.is_some_and(|opened| opened.contains(flow))
    }
}
