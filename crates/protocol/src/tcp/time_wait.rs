//! Connections in TIME-WAIT (RFC 9293 §3.3.2): the little state that must be kept for
//! each, for a minute.
//!
//! All connections wait equally long, so they leave in the order in which they came.
//! Entries are in one queue, and a hash table of positions finds them. Each entry takes
//! 60 bytes, IPv4 or IPv6, and at most 8 in the table.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tidewall_wire::tcp::{Flags, Header, Options, Timestamps, before};

use super::segment::{Outgoing, Segment};
use super::{FourTuple, Time, TimeWaitEntry, keyed, timestamp};

/// How long TIME-WAIT lasts (Linux's `TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// Minimum time between answers of one connection to segments other than a repeated FIN
/// (RFC 5961 §7; Linux's `tcp_invalid_ratelimit`). A budget shared by all connections
/// would reveal what others used of it (CVE-2016-5696).
const ANSWERS_APART: Duration = Duration::from_millis(500);

/// Milliseconds per tick of [`Compact::deadline`].
const TICK: u128 = 10;
/// Ticks are counted modulo 2^15: 327 s.
const TICKS: u16 = 0x7fff;
/// Bit of [`Compact::deadline`]: timestamps are in use.
const TIMESTAMPS: u16 = 0x8000;
/// Bit of [`Compact::answered`]: an answer was sent.
const ANSWERED: u16 = 0x8000;

/// Positions in the queue are counted modulo 2^31.
const POSITIONS: u32 = 0x7fff_ffff;
/// A free slot of the table; others hold a position plus one.
const FREE: u32 = 0;

/// A [`TimeWaitEntry`] in 60 bytes.
#[derive(Clone, Copy, Debug)]
struct Compact {
    local: [u8; 16],
    remote: [u8; 16],
    local_port: u16,
    /// 0: this entry is deleted; it leaves the queue in its turn.
    remote_port: u16,
    send_next: u32,
    receive_next: u32,
    timestamp_recent: u32,
    timestamp_offset: u32,
    window: u16,
    deadline: u16,
    /// Time of the last answer, in ticks.
    answered: u16,
}

const _: () = assert!(size_of::<Compact>() == 60);

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn socket(address: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from(address).to_canonical(), port)
}

fn ticks(now: Time) -> u16 {
    (now.as_millis() / TICK) as u16 & TICKS
}

impl Compact {
    fn flow(&self) -> FourTuple {
        FourTuple {
            local: socket(self.local, self.local_port),
            remote: socket(self.remote, self.remote_port),
        }
    }

    fn is(&self, flow: &FourTuple) -> bool {
        self.remote_port == flow.remote.port()
            && self.local_port == flow.local.port()
            && self.remote == octets(flow.remote.ip())
            && self.local == octets(flow.local.ip())
    }

    fn is_gone(&self) -> bool {
        self.remote_port == 0
    }

    /// How long until the deadline; zero when it is past. No deadline is further off than
    /// [`TIME_WAIT`], so a longer difference means a past one.
    fn left(&self, now: Time) -> Duration {
        let left = (self.deadline & TICKS).wrapping_sub(ticks(now)) & TICKS;
        let left = Duration::from_millis(u64::from(left) * TICK as u64);
        if left > TIME_WAIT + Duration::from_secs(1) {
            Duration::ZERO
        } else {
            left
        }
    }

    fn set_deadline(&mut self, now: Time) {
        let deadline = ticks(now + TIME_WAIT).wrapping_add(1) & TICKS;
        self.deadline = self.deadline & TIMESTAMPS | deadline;
    }

    /// Records an answer; returns false if the last one was too recent.
    fn may_answer(&mut self, now: Time) -> bool {
        let since = ticks(now).wrapping_sub(self.answered) & TICKS;
        let apart = Duration::from_millis(u64::from(since) * TICK as u64) >= ANSWERS_APART;
        let may = apart || self.answered & ANSWERED == 0;
        if may {
            self.answered = ticks(now) | ANSWERED;
        }
        may
    }

    fn timestamps(&self) -> Option<u32> {
        (self.deadline & TIMESTAMPS != 0).then_some(self.timestamp_recent)
    }

    /// The acknowledgment that answers an unacceptable segment.
    fn acknowledgment(&self, now: Time) -> Outgoing<'static> {
        let timestamps = self.timestamps().map(|echo| Timestamps {
            value: timestamp(now, self.timestamp_offset),
            echo,
        });
        Outgoing {
            header: Header {
                source_port: self.local_port,
                destination_port: self.remote_port,
                sequence: self.send_next,
                acknowledgment: self.receive_next,
                flags: Flags::ACK,
                window: self.window,
                urgent: 0,
                options: Options {
                    timestamps,
                    ..Options::default()
                },
            },
            payload: [&[]; 2],
            segment_size: 0,
            traffic_class: 0,
        }
    }
}

/// The result for a segment that may belong to a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeWaitReaction {
    /// It belonged to one, and was handled.
    Handled,
    /// A SYN that begins a new connection of the flow; the old one is removed here (RFC
    /// 6191). The caller passes it to the listener with this initial sequence number
    /// ([`Listener::input_reusing`](super::Listener::input_reusing)), which is beyond all
    /// numbers of the earlier connection.
    Reuse(u32),
    /// No connection of the flow is in TIME-WAIT.
    Unknown,
}

/// Connections in TIME-WAIT, up to a limit.
#[derive(Debug)]
pub struct TimeWaitTable {
    key: [u8; 16],
    limit: usize,
    /// In order of deadlines.
    queue: VecDeque<Compact>,
    /// Position of the queue's first entry.
    first: u32,
    /// Entries that are not deleted.
    live: usize,
    /// Open addressing with linear probing: positions in the queue, plus one.
    places: Vec<u32>,
}

impl TimeWaitTable {
    /// Creates a table of at most `limit` connections (1 to 2^24), so of at most 68 times
    /// as many bytes. `key` is a secret, such as
    /// [`Secrets::sequence`](super::Secrets::sequence).
    #[must_use]
    pub fn new(limit: usize, key: [u8; 16]) -> Self {
        Self {
            key,
            limit: limit.clamp(1, 1 << 24),
            queue: VecDeque::new(),
            first: 0,
            live: 0,
            places: Vec::new(),
        }
    }

    /// Connections in the table.
    pub fn len(&self) -> usize {
        self.live
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Inserts a connection that has reached TIME-WAIT; it replaces one of the same flow.
    /// When the table is full the oldest is removed and returned, as
    /// [`TimeWaitTable::expire`] reports others. Up to a sixteenth of the table may be
    /// occupied by connections that were removed early.
    pub fn insert(&mut self, entry: &TimeWaitEntry, now: Time) -> Option<FourTuple> {
        // `input` refuses a zero port; here it would mean "deleted".
        if entry.flow.remote.port() == 0 {
            return Some(entry.flow);
        }
        self.remove(&entry.flow);
        let forgotten = self.make_room();
        let mut compact = Compact {
            local: octets(entry.flow.local.ip()),
            remote: octets(entry.flow.remote.ip()),
            local_port: entry.flow.local.port(),
            remote_port: entry.flow.remote.port(),
            send_next: entry.send_next,
            receive_next: entry.receive_next,
            timestamp_recent: entry.timestamp_recent.unwrap_or(0),
            timestamp_offset: entry.timestamp_offset,
            window: entry.window,
            deadline: match entry.timestamp_recent {
                Some(_) => TIMESTAMPS,
                None => 0,
            },
            answered: 0,
        };
        compact.set_deadline(now);
        self.push(compact);
        forgotten
    }

    /// Removes the connection that has waited longest, before its time, when its flow's
    /// space is needed for another.
    pub fn evict(&mut self) -> Option<FourTuple> {
        // Deleted entries leave the front at once.
        let oldest = self.queue.front()?.flow();
        self.remove(&oldest);
        Some(oldest)
    }

    /// Removes a connection; returns true if it was there. The caller owns its flow
    /// again.
    pub fn remove(&mut self, flow: &FourTuple) -> bool {
        let Some((place, position)) = self.find(flow) else {
            return false;
        };
        self.vacate(place);
        if let Some(entry) = self.entry_mut(position) {
            entry.remote_port = 0;
        }
        self.live -= 1;
        self.drop_gone();
        true
    }

    /// Looks up whether a segment belongs to a connection in TIME-WAIT (RFC 9293
    /// §3.10.7.4, RFC 6191) and answers it.
    ///
    /// An RST is ignored: it must not end TIME-WAIT early (RFC 1337).
    pub fn input(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'_>),
    ) -> TimeWaitReaction {
        let Some((_, position)) = self.find(&segment.flow) else {
            return TimeWaitReaction::Unknown;
        };
        let Some(entry) = self.entry_mut(position) else {
            return TimeWaitReaction::Unknown;
        };
        let header = &segment.header;
        if header.flags.contains(Flags::RST) {
            return TimeWaitReaction::Handled;
        }
        let newer = entry
            .timestamps()
            .zip(header.options.timestamps)
            .map(|(recent, theirs)| (before(recent, theirs.value), before(theirs.value, recent)));
        let old = newer.is_some_and(|(_, old)| old);
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) {
            let newer = newer.is_some_and(|(newer, _)| newer);
            if !old && (newer || before(entry.receive_next, header.sequence)) {
                // As Linux: beyond the largest unscaled window of the old one.
                let next = entry.send_next.wrapping_add(0xffff + 2);
                let flow = segment.flow;
                self.remove(&flow);
                return TimeWaitReaction::Reuse(next);
            }
        }
        let end = header.sequence.wrapping_add(segment.sequence_len());
        let expected = end == entry.receive_next;
        if !old && expected && header.flags.contains(Flags::FIN) {
            // Our last ACK was lost: send it again and restart the wait (RFC 9293
            // §3.10.7.4). By its timestamps this segment is not an old duplicate.
            if let Some(theirs) = header.options.timestamps {
                // Without timestamps in use nothing reads it.
                entry.timestamp_recent = theirs.value;
            }
            let mut entry = *entry;
            send(&segment.flow, &entry.acknowledgment(now));
            entry.set_deadline(now);
            self.requeue(&segment.flow, entry);
            return TimeWaitReaction::Handled;
        }
        if !old && expected && segment.sequence_len() == 0 {
            // An acknowledgment that was in transit.
            return TimeWaitReaction::Handled;
        }
        if entry.may_answer(now) {
            send(&segment.flow, &entry.acknowledgment(now));
        }
        TimeWaitReaction::Handled
    }

    /// When the next connection will have waited long enough.
    pub fn next_timeout(&self, now: Time) -> Option<Time> {
        self.queue.front().map(|entry| now + entry.left(now))
    }

    /// Removes the connections that have waited long enough. `forgotten` gets each flow,
    /// so that its entry in the driver's table can be removed.
    pub fn expire(&mut self, now: Time, forgotten: &mut dyn FnMut(&FourTuple)) {
        while let Some(entry) = self.queue.front().copied() {
            if !entry.is_gone() {
                if entry.left(now) > Duration::ZERO {
                    return;
                }
                let flow = entry.flow();
                self.remove(&flow);
                forgotten(&flow);
            } else {
                self.drop_gone();
            }
        }
    }

    // ---- The queue ---------------------------------------------------------

    fn entry(&self, position: u32) -> Option<&Compact> {
        let index = position.wrapping_sub(self.first) & POSITIONS;
        self.queue.get(index as usize)
    }

    fn entry_mut(&mut self, position: u32) -> Option<&mut Compact> {
        let index = position.wrapping_sub(self.first) & POSITIONS;
        self.queue.get_mut(index as usize)
    }

    fn push(&mut self, entry: Compact) {
        if (self.live + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        let position = self.first.wrapping_add(self.queue.len() as u32) & POSITIONS;
        let place = self.first_place(&entry.flow());
        self.queue.push_back(entry);
        self.live += 1;
        self.occupy(place, position);
    }

    /// Puts an entry at the end of the queue, since its deadline is the latest. It stays
    /// where it is if the queue, deleted entries included, has no room. It has waited its
    /// minute, and making room for each would cost a pass over all.
    fn requeue(&mut self, flow: &FourTuple, entry: Compact) {
        if self.queue.len() < self.limit {
            self.remove(flow);
            self.push(entry);
        }
    }

    fn make_room(&mut self) -> Option<FourTuple> {
        if self.queue.len() < self.limit {
            return None;
        }
        // A pass over all entries for a sixteenth of them: 16 steps for each slot gained.
        if self.live <= self.queue.len() * 15 / 16 {
            self.compact();
            return None;
        }
        self.evict()
    }

    /// Removes deleted entries from the front.
    fn drop_gone(&mut self) {
        while self.queue.front().is_some_and(Compact::is_gone) {
            self.queue.pop_front();
            self.first = self.first.wrapping_add(1) & POSITIONS;
        }
    }

    /// Removes all deleted entries.
    fn compact(&mut self) {
        self.queue.retain(|entry| !entry.is_gone());
        self.rebuild();
    }

    // ---- The table of places -------------------------------------------------

    fn grow(&mut self) {
        let most = (self.limit * 4 / 3 + 2).next_power_of_two();
        let length = (self.places.len() * 2).clamp(16, most.max(16));
        self.places = vec![FREE; length];
        self.rebuild();
    }

    fn rebuild(&mut self) {
        self.places.fill(FREE);
        for index in 0..self.queue.len() {
            let position = self.first.wrapping_add(index as u32) & POSITIONS;
            let flow = match self.entry(position) {
                Some(entry) if !entry.is_gone() => entry.flow(),
                _ => continue,
            };
            let place = self.first_place(&flow);
            self.occupy(place, position);
        }
    }

    fn first_place(&self, flow: &FourTuple) -> usize {
        let mask = self.places.len().wrapping_sub(1);
        keyed::hash(&self.key, flow, Some(0)) as usize & mask
    }

    fn occupy(&mut self, from: usize, position: u32) {
        let length = self.places.len();
        let free = (0..length).map(|step| (from + step) & (length - 1));
        for place in free {
            if let Some(place) = self.places.get_mut(place)
                && *place == FREE
            {
                *place = position + 1;
                return;
            }
        }
    }

    /// Slot and position of a flow.
    fn find(&self, flow: &FourTuple) -> Option<(usize, u32)> {
        let length = self.places.len();
        let from = self.first_place(flow);
        for step in 0..length {
            let place = (from + step) & (length - 1);
            let position = match self.places.get(place).copied() {
                None | Some(FREE) => return None,
                Some(position) => position - 1,
            };
            if self.entry(position).is_some_and(|entry| entry.is(flow)) {
                return Some((place, position));
            }
        }
        None
    }

    /// Frees a slot; entries that were pushed beyond it move up (Knuth, vol. 3, §6.4,
    /// algorithm R), so that a search may stop at the first free slot.
    fn vacate(&mut self, mut free: usize) {
        let length = self.places.len();
        let mut place = free;
        for _ in 0..length {
            place = (place + 1) & (length - 1);
            let Some(&held) = self.places.get(place).filter(|&&held| held != FREE) else {
                break;
            };
            let Some(home) = self
                .entry(held - 1)
                .map(|entry| self.first_place(&entry.flow()))
            else {
                break;
            };
            // May it move to `free`? Only if that is not before its home.
            let from_home = place.wrapping_sub(home) & (length - 1);
            let from_free = place.wrapping_sub(free) & (length - 1);
            if from_home >= from_free {
                if let Some(to) = self.places.get_mut(free) {
                    *to = held;
                }
                free = place;
            }
        }
        if let Some(place) = self.places.get_mut(free) {
            *place = FREE;
        }
    }
}
