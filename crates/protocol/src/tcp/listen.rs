//! Listening: from a SYN to a completed handshake (RFC 9293 §3.10.7.2 to §3.10.7.4 for
//! LISTEN and SYN-RECEIVED), also under attack (RFC 4987).
//!
//! A listener keeps a bounded number of half-open connections, of which no /24 or /64
//! gets more than a share. The others are answered with cookies, which cost no memory.
//! When that happens often, [`Listener::sends_cookies`] asks the driver to answer by
//! itself.

use core::time::Duration;
use std::collections::VecDeque;

use tidewall_wire::acp::VERSION;
use tidewall_wire::tcp::{Flags, Options, Timestamps, before};

use super::acp;
use super::cookie::{self, Cookies, peer_mss, syn_ack};
use super::ecn;
use super::fast_open::FastOpenServer;
use super::half_open::{HalfOpen, Prefix, Store};
use super::segment::{Outgoing, Segment, reset_for};
use super::{Config, FastOpen, FourTuple, Framing, Handshake, Time, isn, timestamp};
use crate::DropReason;
use crate::errno;
use crate::icmp::FlowError;

mod fast_open;

use fast_open::Verdict;

/// The share of half-open connections that one prefix may have: an eighth.
const SHARE: usize = 8;
/// The smallest share.
const SHARE_MIN: usize = 4;
/// The smallest limit of half-open connections.
const LIMIT_MIN: usize = 16;
/// The largest limit (`tcp_max_syn_backlog` at its usual largest).
const LIMIT_MAX: usize = 65_536;
/// Minimum time between two answers to the same half-open connection
/// (`tcp_invalid_ratelimit`).
const ANSWER_INTERVAL: Duration = Duration::from_millis(500);
/// How long the driver continues to answer after the last sign of an attack.
const FLOOD_HYSTERESIS: Duration = Duration::from_secs(10);
/// SYNs over their share per second that count as an attack.
const EXCESS: u32 = 128;
/// Answers beyond the first while more than half of the entries are in use: genuine peers
/// answer within seconds.
const RETRIES_CROWDED: u8 = 2;

/// Secret keys, drawn at random by the caller once per stack.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// For initial sequence numbers (RFC 6528) and hash tables.
    pub sequence: [u8; 16],
    /// For SYN cookies and timestamp offsets; the driver has it too.
    pub cookie: [u8; 16],
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// The result of passing a segment to a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// Handled; the caller has nothing to do.
    Nothing,
    /// A half-open connection began: the caller enters its flow into the driver's table,
    /// pointing to the listener's channel.
    HalfOpen(FourTuple),
    /// A handshake is complete, or need not be ([`Handshake::fast_open`]). The caller
    /// creates a connection from it ([`Connection::accept`](super::Connection::accept)),
    /// enters or changes its flow in the driver's table, and passes the connection the
    /// same segment.
    Established(Handshake),
    /// A half-open connection ended: the caller removes its flow from the driver's table.
    Forgotten(FourTuple),
    /// The segment was dropped.
    Dropped(DropReason),
}

/// The half-open connections of one listening port.
#[derive(Debug)]
pub struct Listener {
    config: Config,
    secrets: Secrets,
    cookies: Cookies,
    half_open: Store,
    /// Limit of half-open connections.
    limit: usize,
    backlog: usize,
    /// Connections that wait to be accepted.
    waiting: usize,
    flooded_until: Option<Time>,
    cookies_until: Option<Time>,
    /// Origin of the segments that are passed in.
    origin: u64,
    fast_open: Option<FastOpenServer>,
    /// See [`Listener::set_defer_accept`].
    defer_accept: u8,
    /// Connections opened by a SYN whose handshake is not complete.
    opening: u32,
    /// For those that were reset meanwhile: until when each occupies its slot.
    reset_until: VecDeque<Time>,
    /// SYNs over their share in the second that began at `excess_since`.
    excess: u32,
    excess_since: Time,
}

impl Listener {
    /// Creates a listener whose caller keeps up to `backlog` connections for `accept`, at
    /// least one. It keeps as many half-open ones, at least 16.
    ///
    /// [`Config::mss`] must be the MTU less 40; 20 less is announced to IPv6 peers. The
    /// caller's times must be those of the clock whose zero the driver knows, since
    /// cookies carry the time.
    #[must_use]
    pub fn new(config: &Config, backlog: u32, secrets: Secrets) -> Self {
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX).max(1);
        Self {
            config: config.framed(),
            secrets,
            cookies: Cookies::new(config, secrets.cookie),
            half_open: Store::new(secrets.sequence),
            limit: backlog.clamp(LIMIT_MIN, LIMIT_MAX),
            backlog,
            waiting: 0,
            flooded_until: None,
            cookies_until: None,
            origin: 0,
            fast_open: None,
            defer_accept: 0,
            opening: 0,
            reset_until: VecDeque::new(),
            excess: 0,
            excess_since: Time::ZERO,
        }
    }

    /// Processes a segment of the listener's channel that belongs to no connection. The
    /// caller has checked this: segments of a connection that was just established may
    /// still be in this channel. `send` gets at most one answer, without data. The answer
    /// may leave only once the caller has done what the reaction requires: until then,
    /// nothing owns the peer's next segment.
    pub fn input(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        self.process(segment, None, now, send)
    }

    /// Processes a SYN for which
    /// [`TimeWaitReaction::Reuse`](super::TimeWaitReaction::Reuse) was returned: our
    /// initial sequence number will be at least `sequence`.
    pub fn input_reusing(
        &mut self,
        segment: &Segment<'_>,
        sequence: u32,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        self.process(segment, Some(sequence), now, send)
    }

    fn process(
        &mut self,
        segment: &Segment<'_>,
        reused: Option<u32>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        self.expire_defences(now);
        let flags = segment.header.flags;
        // A segment to itself: a LAND attack.
        if segment.flow.local == segment.flow.remote {
            return Reaction::Dropped(DropReason::MartianSource);
        }
        if let Some(key) = self.half_open.find(&segment.flow) {
            return self.half_open(key, segment, now, send);
        }
        if flags.contains(Flags::RST) {
            return Reaction::Dropped(DropReason::TcpNoConnection);
        }
        if flags.contains(Flags::ACK) {
            return self.acknowledged(segment, now, send);
        }
        if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
            return Reaction::Dropped(DropReason::TcpNoConnection);
        }
        self.begin(segment, reused, now, send)
    }

    /// Processes a SYN that matches no half-open connection.
    fn begin(
        &mut self,
        syn: &Segment<'_>,
        reused: Option<u32>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        if !self.config.framing.takes(&syn.header.options) {
            if let Some(reset) = reset_for(syn) {
                send(&syn.flow, &reset);
            }
            return Reaction::Dropped(DropReason::TcpNotAcp);
        }
        if self.is_full() {
            return Reaction::Dropped(DropReason::TcpListenOverflow);
        }
        let prefix = Prefix::of(syn.flow.remote.ip());
        let full = self.half_open.len() >= self.limit;
        let share = (self.limit / SHARE).max(SHARE_MIN);
        if full || self.half_open.of_prefix(prefix) >= share {
            self.count_excess_syn(full, now);
            let Some(answer) = self.cookies.answer(syn, now) else {
                return Reaction::Dropped(DropReason::TcpSynQueueFull);
            };
            self.cookies_until = Some(now + cookie::LIFETIME);
            send(&syn.flow, &answer);
            return Reaction::Nothing;
        }
        let (flow, config) = (syn.flow, &self.config);
        let mut local_isn = isn::initial(&self.secrets.sequence, &flow, now);
        if let Some(least) = reused
            && before(local_isn, least)
        {
            local_isn = least;
        }
        let offered = &syn.header.options;
        let scale = offered.window_scale.filter(|_| config.window_scaling);
        let timestamps = offered.timestamps.filter(|_| config.timestamps);
        let entry = HalfOpen {
            mss: peer_mss(&flow, offered),
            window_scale: scale.map(|scale| scale.min(14)),
            sack: offered.sack_permitted && config.sack,
            ecn: ecn::accepts(config, syn),
            acp: acp::answers(config, offered),
            timestamp: timestamps.map(|timestamps| timestamps.value),
            timestamp_offset: isn::timestamp_offset(&self.secrets.cookie, &flow),
            origin: self.origin,
            ..HalfOpen::new(flow, local_isn, syn.header.sequence, now)
        };
        let mut cookie = None;
        match self.fast_open(syn, now) {
            Verdict::Ordinary => {}
            Verdict::Give(option) => cookie = Some(option),
            Verdict::Open(answer) => {
                self.opening += 1;
                return Reaction::Established(Handshake {
                    fast_open: Some(answer),
                    ..handshake(&entry, &self.config, syn, None)
                });
            }
        }
        answer(&entry, &self.config, cookie, now, send);
        self.half_open.insert(entry);
        Reaction::HalfOpen(flow)
    }

    /// Counts a SYN that found no free entry.
    fn count_excess_syn(&mut self, full: bool, now: Time) {
        if now.saturating_sub(self.excess_since) >= Duration::from_secs(1) {
            self.excess = 0;
            self.excess_since = now;
        }
        self.excess = self.excess.saturating_add(1);
        if full || self.excess > EXCESS {
            self.flooded_until = Some(now + FLOOD_HYSTERESIS);
            self.cookies_until = Some(now + FLOOD_HYSTERESIS + cookie::LIFETIME);
        }
    }

    /// Processes an ACK that matches no half-open connection: it belongs to a cookie, or
    /// to nothing.
    fn acknowledged(
        &mut self,
        segment: &Segment<'_>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        if self.takes_cookies()
            && let Some(handshake) = self.cookies.check(segment, now)
        {
            if self.is_full() {
                // Its data will come again, with the cookie in it.
                return Reaction::Dropped(DropReason::TcpListenOverflow);
            }
            return Reaction::Established(handshake);
        }
        if let Some(reset) = reset_for(segment) {
            send(&segment.flow, &reset);
        }
        Reaction::Dropped(DropReason::TcpNoConnection)
    }

    /// Processes a segment of a half-open connection (RFC 9293 §3.10.7.4).
    fn half_open(
        &mut self,
        key: u32,
        segment: &Segment<'_>,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        let Some(entry) = self.half_open.get(key) else {
            return Reaction::Nothing;
        };
        let header = &segment.header;
        let has = |flags| header.flags.contains(flags);
        let expected = entry.remote_isn.wrapping_add(1);
        let offset = header.sequence.wrapping_sub(expected);
        let in_window = offset < u32::from(self.config.syn_window());
        if has(Flags::RST) {
            // RFC 5961 §3.2: an exact match ends the connection; a near one is
            // challenged.
            return if offset == 0 {
                self.forget(key)
            } else if in_window {
                self.challenge(key, now, send)
            } else {
                Reaction::Dropped(DropReason::TcpHalfOpen)
            };
        }
        if has(Flags::SYN) {
            let same = header.sequence == entry.remote_isn && !has(Flags::ACK);
            return if same {
                self.repeat(key, now, send)
            } else {
                self.challenge(key, now, send)
            };
        }
        if !has(Flags::ACK) {
            return Reaction::Dropped(DropReason::TcpHalfOpen);
        }
        if header.acknowledgment != entry.local_isn.wrapping_add(1) {
            if let Some(reset) = reset_for(segment) {
                send(&segment.flow, &reset);
            }
            return Reaction::Dropped(DropReason::TcpHalfOpen);
        }
        let theirs = header.options.timestamps.map(|timestamps| timestamps.value);
        // RFC 7323 §5.3: an old duplicate.
        let old = entry.timestamp.zip(theirs);
        if !in_window || old.is_some_and(|(recent, theirs)| before(theirs, recent)) {
            return self.challenge(key, now, send);
        }
        let is_bare = segment.payload.is_empty() && offset == 0 && !has(Flags::FIN);
        if is_bare && entry.retries < self.defer_accept {
            if let Some(entry) = self.half_open.get_mut(key) {
                entry.acknowledged = true;
            }
            return Reaction::Nothing;
        }
        if self.is_full() {
            // Our repeated answer will be acknowledged again.
            return Reaction::Dropped(DropReason::TcpListenOverflow);
        }
        let Some(entry) = self.half_open.remove(key) else {
            return Reaction::Nothing;
        };
        let once = entry.retries == 0 && entry.answered == entry.begun && !entry.acknowledged;
        let round_trip = once.then(|| now.saturating_sub(entry.begun));
        Reaction::Established(handshake(&entry, &self.config, segment, round_trip))
    }

    /// Repeats the answer to a repeated SYN, but not for each of many.
    fn repeat(
        &mut self,
        key: u32,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        if let Some(entry) = self.half_open.get_mut(key)
            && now.saturating_sub(entry.answered) >= ANSWER_INTERVAL
        {
            answer(entry, &self.config, None, now, send);
            entry.answered = now;
            // Its path may have changed.
            entry.origin = self.origin;
        }
        Reaction::Nothing
    }

    /// Sends a challenge ACK (RFC 5961 §4.2), rate-limited.
    fn challenge(
        &mut self,
        key: u32,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
    ) -> Reaction {
        if let Some(entry) = self.half_open.get_mut(key)
            && now.saturating_sub(entry.answered) >= ANSWER_INTERVAL
        {
            let mut challenge = segment_of(entry, &self.config, now);
            let header = &mut challenge.header;
            header.flags = Flags::ACK;
            header.sequence = entry.local_isn.wrapping_add(1);
            header.options = Options {
                timestamps: header.options.timestamps,
                ..Options::default()
            };
            send(&entry.flow, &challenge);
            entry.answered = now;
        }
        Reaction::Dropped(DropReason::TcpHalfOpen)
    }

    /// Processes an ICMP error about a flow that may be half open. An error that quotes
    /// our SYN-ACK ends it, as on Linux: its peer does not receive us. An error that only
    /// reports a packet as too large does not apply to a SYN-ACK.
    pub fn icmp_error(&mut self, error: &FlowError) -> Reaction {
        let flow = FourTuple {
            local: error.local,
            remote: error.remote,
        };
        let Some(key) = self.half_open.find(&flow) else {
            return Reaction::Nothing;
        };
        // Anyone can send one (RFC 5927): it must quote the sequence number.
        let ours = self
            .half_open
            .get(key)
            .is_some_and(|entry| error.sequence == Some(entry.local_isn));
        if ours && error.errno != errno::EMSGSIZE {
            self.forget(key)
        } else {
            Reaction::Nothing
        }
    }

    fn forget(&mut self, key: u32) -> Reaction {
        match self.half_open.remove(key) {
            Some(entry) => Reaction::Forgotten(entry.flow),
            None => Reaction::Nothing,
        }
    }

    /// When [`Listener::timeout`] must next be called.
    pub fn next_timeout(&self) -> Option<Time> {
        let next = self.half_open.next().map(|(deadline, _)| deadline);
        let ends = [next, self.flooded_until, self.cookies_until];
        ends.into_iter().flatten().min()
    }

    /// Retransmits SYN-ACKs, and drops half-open connections after the last one.
    /// `forgotten` gets each dropped flow, which the caller removes from the driver's
    /// table. `send` also gets the SYN's origin ([`Listener::set_origin`]).
    pub fn timeout(
        &mut self,
        now: Time,
        send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>, u64),
        forgotten: &mut dyn FnMut(&FourTuple),
    ) {
        self.expire_defences(now);
        while let Some((deadline, key)) = self.half_open.next() {
            if deadline > now {
                return;
            }
            let crowded = self.half_open.len() > self.limit / 2;
            let wanted = self.config.syn_ack_retries;
            let retries = if crowded {
                wanted.min(RETRIES_CROWDED)
            } else {
                wanted
            };
            match self.half_open.get(key) {
                Some(entry) if entry.retries < retries || self.defers(entry, crowded) => {
                    if entry.acknowledged && entry.retries + 1 < self.defer_accept {
                        self.half_open.retried(key, now);
                        continue;
                    }
                    let origin = entry.origin;
                    let mut send =
                        |flow: &FourTuple, out: &Outgoing<'static>| send(flow, out, origin);
                    answer(entry, &self.config, None, now, &mut send);
                    self.half_open.retried(key, now);
                }
                _ => {
                    if let Some(entry) = self.half_open.remove(key) {
                        forgotten(&entry.flow);
                    }
                }
            }
        }
    }

    /// True while a connection with a complete handshake waits for data.
    fn defers(&self, entry: &HalfOpen, crowded: bool) -> bool {
        entry.acknowledged && entry.retries < self.defer_accept && !crowded
    }

    fn expire_defences(&mut self, now: Time) {
        self.flooded_until = self.flooded_until.filter(|&until| now < until);
        self.cookies_until = self.cookies_until.filter(|&until| now < until);
    }

    /// Sets the configuration for answers from now on, for example after `TCP_MAXSEG` on
    /// a listening socket; see [`Listener::new`]. It also applies to half-open
    /// connections whose SYN comes again.
    pub fn set_config(&mut self, config: &Config) {
        self.config = config.framed();
        self.cookies = Cookies::new(config, self.secrets.cookie);
    }

    /// Establishes a connection only when data has arrived on it, or once its answer has
    /// timed out `timeouts` times (`TCP_DEFER_ACCEPT`); 0: at once. A connection from a
    /// cookie is established at once.
    pub fn set_defer_accept(&mut self, timeouts: u8) {
        self.defer_accept = timeouts;
    }

    /// Sets the origin of the segments passed in from now on, in a form that the caller
    /// chooses, such as the link's sender. A retransmitted answer goes there.
    pub fn set_origin(&mut self, origin: u64) {
        self.origin = origin;
    }

    /// Sets how many connections wait in the accept queue of the next one, and how many
    /// may, at least one. Each of several listeners at one address has a queue.
    pub fn set_accept_queue(&mut self, waiting: usize, backlog: usize) {
        self.waiting = waiting;
        self.backlog = backlog.max(1);
    }

    /// True when no more connections may wait to be accepted. The caller stops draining
    /// the listener's channel, and the driver drops SYNs.
    pub fn is_full(&self) -> bool {
        self.waiting >= self.backlog
    }

    /// True when the driver must answer SYNs with cookies. Never true where frames are
    /// carried, which the driver does not know about.
    pub fn sends_cookies(&self) -> bool {
        self.flooded_until.is_some() && self.config.framing == Framing::Stream
    }

    /// True when cookies may be in transit, so the driver must pass valid ones.
    pub fn takes_cookies(&self) -> bool {
        self.cookies_until.is_some()
    }

    /// Number of half-open connections.
    pub fn half_open_len(&self) -> usize {
        self.half_open.len()
    }

    /// Ends every half-open connection, because the listener closes; `forgotten` gets
    /// each flow. Their peers are reset when they next send.
    pub fn close(&mut self, forgotten: &mut dyn FnMut(&FourTuple)) {
        while let Some((_, key)) = self.half_open.next() {
            if let Some(entry) = self.half_open.remove(key) {
                forgotten(&entry.flow);
            }
        }
    }
}

/// Returns what the handshake agreed on, completed by `segment`.
fn handshake(
    entry: &HalfOpen,
    config: &Config,
    segment: &Segment<'_>,
    round_trip: Option<Duration>,
) -> Handshake {
    let theirs = segment.header.options.timestamps;
    Handshake {
        flow: entry.flow,
        local_isn: entry.local_isn,
        remote_isn: entry.remote_isn,
        mss: entry.mss,
        window_scale: entry.window_scale,
        local_window_scale: config.window_scale(),
        sack: entry.sack,
        ecn: entry.ecn,
        timestamps: entry.timestamp.map(|recent| Timestamps {
            value: theirs.map_or(recent, |theirs| theirs.value),
            echo: theirs.map_or(0, |theirs| theirs.echo),
        }),
        timestamp_offset: entry.timestamp_offset,
        window: segment.header.window,
        round_trip,
        fast_open: None,
    }
}

/// The SYN-ACK of a half-open connection.
fn segment_of(entry: &HalfOpen, config: &Config, now: Time) -> Outgoing<'static> {
    let options = Options {
        window_scale: entry.window_scale.map(|_| config.window_scale()),
        sack_permitted: entry.sack,
        timestamps: entry.timestamp.map(|echo| Timestamps {
            value: timestamp(now, entry.timestamp_offset),
            echo,
        }),
        ..Options::default().with_acp(entry.acp.then_some(VERSION))
    };
    syn_ack(
        &entry.flow,
        config,
        entry.local_isn,
        entry.remote_isn,
        options,
        entry.ecn,
    )
}

fn answer(
    entry: &HalfOpen,
    config: &Config,
    fast_open: Option<FastOpen>,
    now: Time,
    send: &mut dyn FnMut(&FourTuple, &Outgoing<'static>),
) {
    let mut answer = segment_of(entry, config, now);
    answer.header.options = answer.header.options.with_fast_open(fast_open);
    send(&entry.flow, &answer);
}
