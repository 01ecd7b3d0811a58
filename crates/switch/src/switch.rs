//! The table of connections and incoming segments.

use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use slab::Slab;
use tidewall_protocol::tcp::{
    self, Cookies, FourTuple, Keyed, Secrets, Segment, SegmentInPieces, Time, reset_to,
};
use tidewall_protocol::timer::Wheel;
use tidewall_wire::tcp::Flags;

use crate::config::{Config, ConfigError, MEMBERS_MAX, Member, MemberError, MemberId};
use crate::counters::{Counters, MemberCounters};
use crate::emission::{Emission, Payload};
use crate::flow::{Context, Flow, Phase, Reset, Stage};
use crate::info::FlowInfo;
use crate::modules::Modules;
use crate::split::Piece;

/// A transport switch: one virtual address, its members, and the connections through it.
///
/// It has no I/O, clock, threads or randomness. Its driver
///
/// - passes every segment to [`Config::address`] and to the switch's own addresses and
///   ports ([`Member::local`], [`Config::ports`]) to [`Switch::input`], after the checks
///   of [`tidewall_protocol::tcp::input`];
/// - sends what is emitted, with checksums and next hops (see [`Emission`]);
/// - calls [`Switch::poll`] when [`Switch::next_deadline`] has come;
/// - keeps hosts on the path from joining or splitting segments (no TSO, GSO or GRO
///   there), since a segment must hold whole frames.
///
/// All times are of one monotonic clock.
pub struct Switch {
    pub(crate) config: Config,
    pub(crate) secrets: Secrets,
    pub(crate) cookies: Cookies,
    /// Time until which a cookie may come back.
    pub(crate) cookies_until: Time,
    pub(crate) modules: Box<dyn Modules>,
    /// The smallest segment size that a member has named so far, which is announced to a
    /// peer before members are asked.
    pub(crate) smallest: u16,
    /// Members, by their slots, that were offered SACK and did not accept it.
    without_sack: u64,
    pub(crate) members: Vec<MemberSlot>,
    pub(crate) member_counters: Box<[MemberCounters; MEMBERS_MAX]>,
    pub(crate) flows: Slab<Flow>,
    pub(crate) index: HashMap<Key, Place, Keyed>,
    /// Connections that both sides have closed, by age; some may be gone.
    closed: VecDeque<(u32, u64)>,
    timers: Wheel,
    pub(crate) half_open: usize,
    pub(crate) generation: u64,
    pub(crate) counters: Counters,
    /// Both are kept for reuse of their memory.
    gone: Vec<(u8, FourTuple)>,
    pieces: Vec<Piece>,
}

/// A connection in the table. Its addresses are hashed as words: hashing a [`SocketAddr`]
/// field by field costs several times that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) FourTuple);

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let FourTuple { local, remote } = self.0;
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                hasher.write_u64(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
            }
            (local, remote) => {
                for end in [local, remote] {
                    let bits = match end {
                        IpAddr::V4(end) => end.to_ipv6_mapped().to_bits(),
                        IpAddr::V6(end) => end.to_bits(),
                    };
                    hasher.write_u128(bits);
                }
            }
        }
        hasher.write_u32(u32::from(local.port()) << 16 | u32::from(remote.port()));
    }
}

/// The connection and side that a segment belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    flow: u32,
    /// The member's slot; `None` for the peer.
    member: Option<u8>,
}

impl Place {
    pub(crate) const fn peer(flow: u32) -> Self {
        Self { flow, member: None }
    }
}

/// A member and its number of connections.
#[derive(Clone, Debug)]
pub(crate) struct MemberSlot {
    member: Member,
    /// It takes part in new connections.
    up: bool,
    connections: usize,
}

impl Switch {
    /// Creates a switch without members. `modules` creates the module of each connection.
    ///
    /// # Errors
    /// The first value of the configuration that is out of range.
    pub fn new(
        config: Config,
        secrets: Secrets,
        modules: Box<dyn Modules>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        // The maximum segment size in a cookie is reduced by the additional length of
        // IPv6's header.
        let longer = if config.address.is_ipv4() { 0 } else { 20 };
        let cookies = tcp::Config {
            mss: config.segment_size.saturating_add(longer),
            timestamps: false,
            ecn: tcp::Ecn::Off,
            ..tcp::Config::default()
        };
        Ok(Self {
            cookies: Cookies::new(&cookies, secrets.cookie),
            index: HashMap::with_hasher(Keyed(secrets.sequence)),
            smallest: config.segment_size,
            without_sack: 0,
            config,
            secrets,
            cookies_until: Time::ZERO,
            modules,
            members: Vec::new(),
            member_counters: Box::new([MemberCounters::default(); MEMBERS_MAX]),
            flows: Slab::new(),
            closed: VecDeque::new(),
            timers: Wheel::default(),
            half_open: 0,
            generation: 0,
            counters: Counters::default(),
            gone: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// Processes a received segment. Passes what is to be sent to `emit`; see
    /// [`Emission`].
    pub fn input(&mut self, now: Time, segment: &Segment<'_>, emit: &mut dyn FnMut(Emission)) {
        self.input_in_pieces(now, &(*segment).into(), emit);
    }

    /// As [`Switch::input`], for a segment whose payload may lie in several pieces.
    pub fn input_in_pieces(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        emit: &mut dyn FnMut(Emission),
    ) {
        let place = match self.index.get(&Key(segment.flow)) {
            Some(&place) => place,
            None if segment.flow.local == self.config.address => {
                return self.stranger(now, segment, emit);
            }
            None => return self.refuse(segment, emit),
        };
        let (header, payload) = (&segment.header, segment.payload);
        let begins_anew = place.member.is_none()
            && header.flags.contains(Flags::SYN)
            && self.flow(place.flow).is_some_and(|flow| {
                flow.phase == Phase::Closed
                    && !tidewall_wire::tcp::before(
                        header.sequence,
                        flow.inbound.numbers.wire(flow.inbound.next),
                    )
            });
        if begins_anew {
            // The peer's TIME-WAIT is over, or it knows that we accept this (RFC 6191).
            self.remove(place.flow);
            return self.stranger(now, segment, emit);
        }
        self.with(now, place.flow, emit, |flow, context| match place.member {
            None => match flow.phase {
                Phase::Opening | Phase::Answered => flow.peer_opening(context, segment),
                Phase::Open | Phase::Closed => flow.peer_segment(context, header, payload),
            },
            Some(slot) => match flow.ends.get(usize::from(slot)).map(|end| end.stage) {
                Some(Stage::Connecting) => {
                    flow.answer_of_member(context, slot, header)?;
                    flow.look_for_answers(context)
                }
                Some(Stage::Open) => flow.member_segment(context, slot, header, payload),
                _ => Ok(()),
            },
        });
    }

    /// Does what is due at `now`.
    pub fn poll(&mut self, now: Time, emit: &mut dyn FnMut(Emission)) {
        let mut due = Vec::new();
        self.timers.advance(now, |timer| due.push(timer));
        for key in due {
            self.with(now, key, emit, |flow, context| {
                flow.expire(context)?;
                flow.look_for_answers(context)?;
                flow.flush(context);
                flow.look_for_end(context);
                Ok(())
            });
            let over = self
                .flow(key)
                .is_some_and(|flow| flow.is_over(&self.config, now));
            if over {
                self.remove(key);
            }
        }
    }

    /// The latest time at which to call [`Switch::poll`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Adds a member: it takes part in new connections, and receives frames of live ones
    /// once it has answered.
    ///
    /// # Errors
    /// [`MemberError`].
    #[expect(
        clippy::indexing_slicing,
        reason = "`place` was found among the members"
    )]
    pub fn add_member(
        &mut self,
        now: Time,
        member: Member,
        emit: &mut dyn FnMut(Emission),
    ) -> Result<MemberId, MemberError> {
        if member.address.is_ipv4() != member.local.is_ipv4() {
            return Err(MemberError::Family(member.address, member.local));
        }
        let up = |slot: &MemberSlot| slot.up && slot.member.address == member.address;
        if self.members.iter().any(up) {
            return Err(MemberError::Exists(member.address));
        }
        let fresh = MemberSlot {
            member,
            up: true,
            connections: 0,
        };
        let slot = match (0..self.members.len()).find(|&place| self.is_free(place)) {
            Some(place) => {
                self.members[place] = fresh;
                place
            }
            None if self.members.len() < MEMBERS_MAX => {
                self.members.push(fresh);
                self.members.len() - 1
            }
            None => return Err(MemberError::TooMany),
        };
        let slot = slot as u8;
        self.without_sack &= !(1 << slot);
        if let Some(counters) = self.member_counters.get_mut(usize::from(slot)) {
            *counters = MemberCounters::default();
        }
        for key in self.keys() {
            let takes = self.flow(key).is_some_and(|flow| {
                flow.phase != Phase::Closed
                    && flow.outbound.fin.is_none()
                    && flow.inbound.fin.is_none()
            });
            if takes {
                self.connect_member(now, key, slot, emit);
            }
        }
        Ok(MemberId(slot))
    }

    /// No member has the slot, and no connection has state of an earlier one. A dead
    /// member's bytes belong to its slot until the peer has them.
    fn is_free(&self, place: usize) -> bool {
        let unused = |member: &MemberSlot| !member.up && member.connections == 0;
        let keeps = |(_, flow): (usize, &Flow)| {
            let end = flow.ends.get(place);
            end.is_some_and(|end| end.stage != Stage::Absent)
        };
        self.members.get(place).is_some_and(unused) && !self.flows.iter().any(keeps)
    }

    /// Removes a member. It receives no more frames. Its connections are closed when it
    /// has acknowledged its frames and has also closed.
    pub fn remove_member(&mut self, now: Time, id: MemberId, emit: &mut dyn FnMut(Emission)) {
        self.depart(now, id, emit, |flow, context| {
            flow.drain(context, id.0)?;
            flow.look_for_answers(context)
        });
    }

    /// Marks a member as dead, after a health check: its connections are reset, and the
    /// modules decide about its frames ([`Module::member_down`](crate::modules::Module)).
    pub fn fail_member(&mut self, now: Time, id: MemberId, emit: &mut dyn FnMut(Emission)) {
        self.depart(now, id, emit, |flow, context| {
            let there = flow.ends.get(usize::from(id.0));
            if there.is_some_and(|end| !matches!(end.stage, Stage::Absent | Stage::Dead)) {
                flow.reset_member(context, id.0);
            }
            flow.lose(context, id.0)?;
            flow.look_for_answers(context)
        });
    }

    fn depart(
        &mut self,
        now: Time,
        id: MemberId,
        emit: &mut dyn FnMut(Emission),
        leave: impl Fn(&mut Flow, &mut Context<'_>) -> Result<(), Reset>,
    ) {
        let Some(slot) = self.members.get_mut(usize::from(id.0)) else {
            return;
        };
        slot.up = false;
        for key in self.keys() {
            self.with(now, key, emit, &leave);
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The members, whether each takes part in new connections, and its counters.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, Member, bool, &MemberCounters)> {
        let slots = self.members.iter().zip(self.member_counters.iter());
        slots.enumerate().filter_map(|(number, (slot, counters))| {
            let there = slot.up || slot.connections > 0;
            there.then_some((MemberId(number as u8), slot.member, slot.up, counters))
        })
    }

    /// A snapshot of each connection.
    pub fn flows(&self) -> impl Iterator<Item = FlowInfo> {
        self.flows.iter().map(|(_, flow)| FlowInfo::of(flow))
    }

    /// A snapshot of the connection that a segment with these addresses belongs to. With
    /// it the member whose side that is, unless it is the peer's.
    #[must_use]
    pub fn flow_of(&self, tuple: &FourTuple) -> Option<(FlowInfo, Option<MemberId>)> {
        let place = self.index.get(&Key(*tuple))?;
        let flow = self.flow(place.flow)?;
        Some((FlowInfo::of(flow), place.member.map(MemberId)))
    }

    /// True while segments with these addresses belong to a connection.
    #[must_use]
    pub fn contains(&self, tuple: &FourTuple) -> bool {
        self.index.contains_key(&Key(*tuple))
    }

    /// Number of connections, including lingering ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// True when there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    fn keys(&self) -> Vec<u32> {
        self.flows.iter().map(|(key, _)| key as u32).collect()
    }

    fn flow(&self, key: u32) -> Option<&Flow> {
        self.flows.get(key as usize)
    }

    pub(crate) fn slots_up(&self) -> impl Iterator<Item = u8> {
        let up = |(slot, member): (usize, &MemberSlot)| member.up.then_some(slot as u8);
        self.members.iter().enumerate().filter_map(up)
    }

    /// No member is known not to take SACK options.
    pub(crate) fn all_sack(&self) -> bool {
        self.slots_up()
            .all(|slot| self.without_sack & (1 << slot) == 0)
    }

    pub(crate) fn members_up(&self) -> usize {
        self.slots_up().count()
    }

    /// Runs an operation on a connection, and carries out its consequences here.
    pub(crate) fn with(
        &mut self,
        now: Time,
        key: u32,
        emit: &mut dyn FnMut(Emission),
        act: impl FnOnce(&mut Flow, &mut Context<'_>) -> Result<(), Reset>,
    ) {
        let Some(flow) = self.flows.get_mut(key as usize) else {
            return;
        };
        let (half_open, phase) = (flow.is_half_open(), flow.phase);
        let mut context = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
            members: &mut self.member_counters,
            emit,
            gone: &mut self.gone,
            pieces: &mut self.pieces,
            modules: self.modules.as_mut(),
            smallest: &mut self.smallest,
            without_sack: &mut self.without_sack,
            rearm: false,
        };
        let result = act(flow, &mut context);
        if let Err(reason) = result {
            flow.reset(&mut context, reason);
        }
        let rearm = context.rearm;
        self.half_open -= usize::from(half_open && !flow.is_half_open());
        if phase != Phase::Closed && flow.phase == Phase::Closed {
            self.closed.push_back((key, flow.generation));
        }
        if result.is_err() {
            self.remove(key);
        } else if rearm {
            self.timers.arm(key, flow.deadline(&self.config));
        }
        self.forget_gone();
    }

    fn forget_gone(&mut self) {
        while let Some((slot, tuple)) = self.gone.pop() {
            self.index.remove(&Key(tuple));
            if let Some(member) = self.members.get_mut(usize::from(slot)) {
                member.connections -= 1;
            }
        }
    }

    /// Forgets a connection silently.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(flow) = self.flows.try_remove(key as usize) else {
            return;
        };
        self.timers.cancel(key);
        self.half_open -= usize::from(flow.is_half_open());
        self.index.remove(&Key(flow.peer));
        for (slot, end) in flow.ends.iter().enumerate() {
            if let Some(tuple) = end.tuple {
                self.gone.push((slot as u8, tuple));
            }
        }
        self.forget_gone();
    }

    /// Removes the connection that was closed longest ago from `closed`.
    fn pop_closed(&mut self) -> Option<u32> {
        while let Some((key, generation)) = self.closed.pop_front() {
            let flow = self.flow(key);
            if flow.is_some_and(|flow| flow.generation == generation) {
                return Some(key);
            }
        }
        None
    }

    /// Makes room by forgetting the connection that was closed longest ago.
    pub(crate) fn evict_closed(&mut self) -> bool {
        let oldest = self.pop_closed();
        oldest.inspect(|&key| self.remove(key)).is_some()
    }

    /// The four-tuple to a member of the connection that was closed longest ago and has
    /// one. That connection, and those closed before it, are forgotten.
    fn tuple_of_closed(&mut self, slot: u8) -> Option<FourTuple> {
        let member = self.members.get(usize::from(slot))?.member;
        while let Some(key) = self.pop_closed() {
            let end = self.flow(key)?.ends.get(usize::from(slot));
            let tuple = end.and_then(|end| end.tuple);
            self.remove(key);
            if let Some(tuple) = tuple
                && (tuple.local.ip(), tuple.remote) == (member.local, member.address)
            {
                return Some(tuple);
            }
        }
        None
    }

    /// Begins a connection to a member; false if there is no port for it.
    pub(crate) fn connect_member(
        &mut self,
        now: Time,
        key: u32,
        slot: u8,
        emit: &mut dyn FnMut(Emission),
    ) -> bool {
        let free = self.free_tuple(key, slot);
        let Some(tuple) = free.or_else(|| self.tuple_of_closed(slot)) else {
            self.counters.dropped_table_full += 1;
            return false;
        };
        let place = Place {
            flow: key,
            member: Some(slot),
        };
        self.index.insert(Key(tuple), place);
        if let Some(member) = self.members.get_mut(usize::from(slot)) {
            member.connections += 1;
        }
        let secret = self.secrets.sequence;
        self.with(now, key, emit, |flow, context| {
            flow.connect(context, slot, tuple, &secret);
            Ok(())
        });
        true
    }

    /// A free four-tuple to a member, starting from a port that only the holder of the
    /// secret can compute (RFC 6056 §3.3.3).
    fn free_tuple(&self, key: u32, slot: u8) -> Option<FourTuple> {
        let member = &self.members.get(usize::from(slot))?.member;
        let flow = self.flow(key)?;
        let (first, last) = (*self.config.ports.start(), *self.config.ports.end());
        let count = u32::from(last - first) + 1;
        let offset = self
            .index
            .hasher()
            .hash_one((Key(flow.peer), slot, flow.generation));
        let start = (offset % u64::from(count)) as u32;
        (0..count.min(PORTS_TRIED))
            .map(|step| FourTuple {
                local: SocketAddr::new(member.local, first + ((start + step) % count) as u16),
                remote: member.address,
            })
            .find(|tuple| !self.index.contains_key(&Key(*tuple)))
    }

    /// Handles a segment of no connection.
    pub(crate) fn refuse(&mut self, segment: &SegmentInPieces<'_>, emit: &mut dyn FnMut(Emission)) {
        self.counters.dropped_no_connection += 1;
        self.reset_stranger(segment, emit);
    }

    pub(crate) fn reset_stranger(
        &self,
        segment: &SegmentInPieces<'_>,
        emit: &mut dyn FnMut(Emission),
    ) {
        if let Some(answer) = reset_to(&segment.header, segment.sequence_len()) {
            emit(Emission {
                flow: segment.flow,
                header: answer.header,
                payload: Payload::None,
                room: 0,
            });
        }
    }
}

/// Ports tried for one connection: in a nearly full range, searching all of it would
/// itself be a load.
const PORTS_TRIED: u32 = 1024;
