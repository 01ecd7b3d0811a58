//! The state of one connection: the peer's side in two directions, and each member's.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use tidewall_protocol::tcp::{FourTuple, Time};
use tidewall_wire::tcp::Header;

use crate::blocks::{Blocks, Seen};
use crate::config::Config;
use crate::counters::{Counters, MemberCounters};
use crate::emission::Emission;
use crate::gaps::Gaps;
use crate::modules::{MemberView, Module, Modules, Windows};
use crate::ranges::Ranges;
use crate::ring::{Chain, Ring};
use crate::sequence::{FIRST, Numbers};
use crate::split::Piece;
use crate::window::Mean;
use crate::{MemberId, config};

/// The first wait for an answer to what the switch itself sends (RFC 6298 §2.1).
pub(crate) const RETRY_FIRST: Duration = Duration::from_secs(1);

/// How many times [`Config::closing_timeout`] a closing connection may be silent while
/// data is outstanding. The default is as long as Linux repeats (`tcp_retries2`, a
/// quarter of an hour), at most two minutes apart (`TCP_RTO_MAX`).
const OUTSTANDING: u32 = 4;

/// The parts of the switch that a connection needs for an operation.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) members: &'a mut [MemberCounters; config::MEMBERS_MAX],
    pub(crate) emit: &'a mut dyn FnMut(Emission),
    /// Connections to members that have ended, to be forgotten.
    pub(crate) gone: &'a mut Vec<(u8, FourTuple)>,
    /// The pieces into which a segment is being split, except the last; empty between two
    /// segments.
    pub(crate) pieces: &'a mut Vec<Piece>,
    pub(crate) modules: &'a mut dyn Modules,
    /// The smallest segment size that a member has named so far.
    pub(crate) smallest: &'a mut u16,
    /// Members, by their slots, that do not accept SACK options.
    pub(crate) without_sack: &'a mut u64,
    /// The connection's deadline must be checked.
    pub(crate) rearm: bool,
}

/// The reason why a connection is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    Framing,
    Module,
    ModuleWork,
    Member,
    Timeout,
    Acknowledgment,
    ByPeer,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Members have not all answered.
    Opening,
    /// The peer was answered and has not acknowledged that.
    Answered,
    /// Frames flow.
    Open,
    /// Both sides have closed and know it.
    Closed,
}

/// One connection.
pub(crate) struct Flow {
    /// The peer's connection, seen from the switch.
    pub(crate) peer: FourTuple,
    pub(crate) phase: Phase,
    /// Distinguishes successive connections in one place of the table.
    pub(crate) generation: u64,
    /// Maximum payload of the peer's segments: what all members accept.
    pub(crate) segment_size: u16,
    /// Maximum payload of members' segments: what the peer accepts.
    pub(crate) peer_segment_size: u16,
    /// Options of the peer's SYN; determines the answer.
    pub(crate) offer: Offer,
    /// All ends accept SACK options; until the peer is answered, those that have
    /// answered.
    pub(crate) sack: bool,
    pub(crate) module: Option<Box<dyn Module>>,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    /// By the members' slots.
    pub(crate) ends: Vec<End>,
    /// When it began, or entered its closing phase.
    pub(crate) since: Time,
    /// Arrival of the last segment.
    pub(crate) active: Time,
    /// When to repeat the merged FIN, if no member does it, and how often it was
    /// repeated.
    pub(crate) retry: Option<(Time, u8)>,
}

/// The remembered parts of the peer's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) segment_size: u16,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) acp: bool,
    /// A cookie was acknowledged: the peer waits for no SYN-ACK.
    pub(crate) by_cookie: bool,
    /// The window of the cookie's acknowledgment.
    pub(crate) window: u16,
}

/// From the peer to the members.
pub(crate) struct Inbound {
    /// The peer's numbers (CSN).
    pub(crate) numbers: Numbers,
    /// Beyond everything received.
    pub(crate) next: u64,
    /// The oldest position that is not acknowledged to the peer.
    pub(crate) left: u64,
    /// The right edge of the announced window; never decreases.
    pub(crate) offered: u64,
    pub(crate) ring: Ring,
    pub(crate) holes: Ranges,
    /// Starts of a dead member's frames, which the peer must repeat.
    pub(crate) abandoned: Vec<u64>,
    /// Beyond everything received when the peer was last asked to repeat one.
    pub(crate) asked: u64,
    /// The SACK blocks reported to the peer beyond `left`.
    pub(crate) blocks: Blocks,
    /// Frames beyond it are not reported: a member may merely be slower than others.
    pub(crate) horizon: u64,
    /// Position of the peer's FIN.
    pub(crate) fin: Option<u64>,
    /// The mean size of frames, which converts the ring's room to a window.
    pub(crate) mean: Mean,
    pub(crate) windows: Windows,
    /// The announcements to the peer.
    pub(crate) announced: Announced,
}

/// An acknowledgment and window that are due to an end, or were last sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Announced {
    /// Our window scale there.
    pub(crate) scale: u8,
    /// The window field last sent.
    pub(crate) window: u16,
    /// The largest one sent.
    pub(crate) most: u16,
    /// An acknowledgment is due.
    pub(crate) due: bool,
    /// Duplicates of it that are due afterwards.
    pub(crate) duplicates: u8,
}

/// From the members to the peer.
pub(crate) struct Outbound {
    /// The switch's numbers on the peer's connection (CSN).
    pub(crate) numbers: Numbers,
    /// Beyond everything that has a place.
    pub(crate) next: u64,
    /// The peer's acknowledgment.
    pub(crate) acked: u64,
    /// The right edge of the peer's window.
    pub(crate) edge: u64,
    /// The peer's window scale.
    pub(crate) scale: u8,
    pub(crate) runs: VecDeque<Run>,
    /// The peer's last SACK blocks beyond `acked`.
    pub(crate) seen: Seen,
    /// One more than the rounding of our window field to a member.
    pub(crate) unit: u64,
    /// Segments that each member is offered when the handshake is complete, if the peer's
    /// window permits: Linux never sends one over half of that offer.
    pub(crate) first: u64,
    /// The size of segments, of which each may be a run.
    pub(crate) mean: Mean,
    /// Maximum number of runs.
    pub(crate) limit: u16,
    /// Position of the merged FIN.
    pub(crate) fin: Option<u64>,
    pub(crate) fin_acked: bool,
    /// The member whose FIN it was: that member repeats it.
    pub(crate) fin_owner: Option<u8>,
    /// Consecutive acknowledgments that repeated the last.
    pub(crate) duplicates: u8,
}

/// A stretch of the merged sequence that belongs to one member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) csn: u64,
    pub(crate) lsn: u64,
    pub(crate) length: u64,
    pub(crate) member: u8,
}

/// The stage of the connection to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is none.
    #[default]
    Absent,
    /// A SYN was sent.
    Connecting,
    /// The member has answered; the peer's handshake is not complete.
    Answered,
    Open,
    /// The member is dead; its earlier bytes are not all acknowledged.
    Dead,
}

/// One member's side (endpoint table).
#[derive(Default)]
pub(crate) struct End {
    pub(crate) stage: Stage,
    /// The connection, seen from the switch.
    pub(crate) tuple: Option<FourTuple>,
    pub(crate) sink: Sink,
    pub(crate) source: Source,
    /// The member was removed: it receives no more frames.
    pub(crate) draining: bool,
    /// When the switch's own segment is repeated, and how often it was.
    pub(crate) retry: Option<(Time, u8)>,
    /// When waiting ends for a drained or dead member.
    pub(crate) until: Option<Time>,
}

/// A member as the receiver of the peer's frames.
#[derive(Default)]
pub(crate) struct Sink {
    /// The switch's numbers (LSN).
    pub(crate) numbers: Numbers,
    /// Beyond everything that has a place.
    pub(crate) next: u64,
    /// The member's acknowledgment (una).
    pub(crate) acked: u64,
    /// Up to this point of the peer's sequence it has a place for each missing frame
    /// (hole, lastgap).
    pub(crate) covered: u64,
    /// The right edge of the member's window.
    pub(crate) edge: u64,
    /// The member's window scale.
    pub(crate) scale: u8,
    pub(crate) chain: Chain,
    pub(crate) gaps: Gaps,
    /// The member's last SACK blocks beyond `acked`.
    pub(crate) seen: Seen,
    /// Position of our FIN.
    pub(crate) fin: Option<u64>,
    pub(crate) fin_acked: bool,
    /// Consecutive acknowledgments that repeated the last.
    pub(crate) duplicates: u8,
}

impl Sink {
    /// The next number to send.
    pub(crate) fn send_next(&self) -> u64 {
        self.next + u64::from(self.fin.is_some())
    }
}

/// A member as a sender of frames.
#[derive(Default)]
pub(crate) struct Source {
    /// The member's numbers (LSN).
    pub(crate) numbers: Numbers,
    /// Beyond everything that arrived or has a place.
    pub(crate) next: u64,
    /// The peer's acknowledgment.
    pub(crate) acked: u64,
    /// The right edge that it may send to.
    pub(crate) edge: u64,
    /// The furthest value that the edge ever had.
    pub(crate) limit: u64,
    /// The edge that the member knows.
    pub(crate) announced_edge: u64,
    /// Ranges that have a place and have not arrived.
    pub(crate) unseen: Ranges,
    /// The SACK blocks reported to it beyond `acked`.
    pub(crate) blocks: Blocks,
    /// Position of its FIN.
    pub(crate) fin: Option<u64>,
    pub(crate) announced: Announced,
}

impl Announced {
    /// Sets the window field for `room` bytes. `whole`: a window that is open for less
    /// than a segment of this size is announced as closed, once there was a larger one.
    #[inline]
    pub(crate) fn set_window(&mut self, room: u64, whole: Option<u16>) {
        let field = u16::try_from(room >> self.scale).unwrap_or(u16::MAX);
        let holds = |field: u16, size: u16| u64::from(field) << self.scale >= size.into();
        self.window = match whole {
            Some(size) if !holds(field, size) && holds(self.most, size) => 0,
            _ => field,
        };
        self.most = self.most.max(field);
    }
}

impl End {
    pub(crate) fn takes_frames(&self) -> bool {
        self.stage == Stage::Open
            && !self.draining
            && self.source.fin.is_none()
            && self.sink.fin.is_none()
    }

    /// It may send more.
    pub(crate) fn may_send(&self) -> bool {
        self.stage == Stage::Open && self.source.fin.is_none()
    }

    pub(crate) fn view(&self, slot: usize) -> MemberView {
        MemberView {
            id: MemberId(slot as u8),
            address: self
                .tuple
                .map_or(SocketAddr::from(([0; 4], 0)), |tuple| tuple.remote),
            room: self.sink.edge.saturating_sub(self.sink.next),
            outstanding: self.sink.chain.len(),
            outstanding_bytes: self.sink.chain.bytes(),
        }
    }
}

impl Flow {
    pub(crate) fn new(
        peer: FourTuple,
        header: &Header,
        offer: Offer,
        initial: u32,
        config: &Config,
        smallest: u16,
        now: Time,
    ) -> Self {
        let both_scale = offer.window_scale.is_some();
        let peer_segment_size = offer.segment_size.min(config.segment_size);
        let segment_size = if offer.by_cookie {
            // As announced to the peer.
            smallest
        } else {
            peer_segment_size
        };
        Self {
            peer,
            phase: Phase::Opening,
            generation: 0,
            segment_size,
            peer_segment_size,
            offer,
            sack: offer.sack,
            module: None,
            inbound: Inbound {
                numbers: Numbers::new(header.sequence),
                next: FIRST,
                left: FIRST,
                offered: FIRST,
                ring: Ring::new(config.ring),
                holes: Ranges::default(),
                abandoned: Vec::new(),
                asked: FIRST,
                blocks: Blocks::default(),
                horizon: FIRST,
                fin: None,
                mean: Mean::default(),
                windows: Windows::Minimum,
                announced: Announced {
                    scale: if both_scale { config.window_scale } else { 0 },
                    ..Announced::default()
                },
            },
            outbound: Outbound {
                numbers: Numbers::new(initial),
                next: FIRST,
                acked: FIRST,
                edge: FIRST,
                scale: offer.window_scale.unwrap_or(0).min(14),
                runs: VecDeque::new(),
                seen: Seen::default(),
                mean: Mean::default(),
                limit: config.ring,
                unit: 1 << config.window_scale,
                first: if config.kernel_ends { 2 } else { 1 },
                fin: None,
                fin_acked: false,
                fin_owner: None,
                duplicates: 0,
            },
            ends: Vec::new(),
            since: now,
            active: now,
            retry: None,
        }
    }

    /// Bytes of memory allocated for it, used or not.
    pub(crate) fn memory(&self) -> usize {
        let Inbound {
            ring,
            holes,
            abandoned,
            blocks,
            ..
        } = &self.inbound;
        let of_end = |end: &End| {
            let source = &end.source;
            end.sink.gaps.memory() + source.unseen.memory() + source.blocks.memory()
        };
        size_of::<Self>()
            + ring.memory()
            + holes.memory()
            + blocks.memory()
            + abandoned.capacity() * size_of::<u64>()
            + self.outbound.runs.capacity() * size_of::<Run>()
            + self.ends.capacity() * size_of::<End>()
            + self.ends.iter().map(of_end).sum::<usize>()
    }

    /// Half-open: its peer may not exist.
    pub(crate) fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Answered) && !self.offer.by_cookie
    }

    pub(crate) fn end(&mut self, slot: u8) -> Option<&mut End> {
        self.ends.get_mut(usize::from(slot))
    }

    /// Slots of the members for which `which` is true.
    pub(crate) fn slots(&self, which: impl Fn(&End) -> bool) -> Slots {
        let mut set = 0;
        for (slot, end) in self.ends.iter().enumerate() {
            set |= u64::from(which(end)) << slot;
        }
        Slots(set)
    }

    pub(crate) fn any(&self, which: impl Fn(&End) -> bool) -> bool {
        self.ends.iter().any(which)
    }

    /// Data was passed on and is not acknowledged: its sender repeats it.
    fn is_outstanding(&self) -> bool {
        let (inbound, outbound) = (&self.inbound, &self.outbound);
        inbound.left < inbound.next
            || outbound.acked < outbound.next
            || inbound.fin.is_some() && !self.fin_is_through()
            || outbound.fin.is_some() && !outbound.fin_acked
    }

    /// The latest time at which [`Flow::expire`](Self::expire) has something to do.
    pub(crate) fn deadline(&self, config: &Config) -> Time {
        let whole = match self.phase {
            Phase::Opening | Phase::Answered => self.since + config.handshake_timeout,
            Phase::Open if self.inbound.fin.is_some() || self.outbound.fin.is_some() => {
                // An end that repeats outstanding data may wait minutes between two
                // attempts.
                let times = if self.is_outstanding() {
                    OUTSTANDING
                } else {
                    1
                };
                self.active + config.closing_timeout * times
            }
            Phase::Open => self.active + config.idle_timeout,
            Phase::Closed => self.since + config.linger,
        };
        let of_end = |end: &End| {
            let retry = end.retry.map(|(at, _)| at);
            retry.into_iter().chain(end.until).min()
        };
        let ends = self.ends.iter().filter_map(of_end);
        let retry = self.retry.map(|(at, _)| at);
        ends.chain(retry).fold(whole, Time::min)
    }
}

/// Some members' slots.
pub(crate) struct Slots(u64);

impl Iterator for Slots {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let slot = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (slot < u64::BITS).then_some(slot as u8)
    }
}

/// How long to wait after the `count`th repetition.
pub(crate) fn backoff(count: u8) -> Duration {
    RETRY_FIRST * (1 << count.min(6))
}
