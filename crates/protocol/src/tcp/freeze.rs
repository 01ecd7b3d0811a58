//! Converts a connection to bytes and back, to hand it over to another process: in any
//! state, also in mid-transfer.
//!
//! Freezing and thawing are one description ([`Connection::with`]): each field passes
//! through a [`Codec`], which either writes it or replaces it with what was written. A
//! new field that is missing there does not compile. Times are relative to the moment of
//! freezing, since the other process may have another epoch.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::acp::AcpState;
use super::assembler::{Assembler, Inserted};
use super::byte_queue::ByteQueue;
use super::config::{Settings, Span};
use super::connection::{
    BUFFER_MAX, Connection, Counters, MSS_MIN, Pending, Receive, Send, TIMESTAMPS_LEN,
};
use super::ecn::EcnState;
use super::fast_open::FastOpenState;
use super::memory::MemoryPressure;
use super::notifications::ErrorQueue;
use super::out_of_order::QueueLimits;
use super::path_mtu::PathMtu;
use super::push_marks::{Mark, PushMarks};
use super::rack::Rack;
use super::receive_room::ReceiveRoom;
use super::recovery::{CaState, Recovery, RtxTimer};
use super::reduction::Reduction;
use super::round_trip::RoundTrip;
use super::scoreboard::Scoreboard;
use super::send::milliseconds;
use super::sending_times::{ChronoKind, ChronoStats};
use super::tail_probe::TailProbe;
use super::timers::{TIMERS, Timers};
use super::undo::Undo;
use super::{Config, Ecn, FastOpen, FourTuple, MtuProbing, State, Time, microseconds, timestamp};

mod codec;

pub(super) use codec::Codec;
use codec::{Reader, Writer, hash, one_of};

/// Version of this description; raised with every change of it.
const VERSION: u32 = 0x5457_000e;

/// Why bytes are not a frozen connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ThawError {
    /// The bytes are of another version of this engine.
    #[error("frozen by another version")]
    Version,
    /// The bytes end early, go on too long, were changed, or contradict
    /// themselves.
    #[error("the frozen connection is damaged")]
    Damaged,
}

impl Connection {
    /// The whole connection as bytes, its data included. It continues once
    /// [`Connection::thaw`]ed; the original must then be dropped without sending.
    pub fn freeze(&self, now: Time) -> Vec<u8> {
        let mut writer = Writer {
            bytes: Vec::new(),
            now,
        };
        writer.u32(VERSION);
        let _ = self.with(&mut writer);
        let sum = hash(&writer.bytes);
        writer.u64(sum);
        writer.bytes
    }

    /// Creates a connection from the bytes of [`Connection::freeze`]. `now` may be of
    /// another clock; the time between freezing and thawing does not count.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub fn thaw(bytes: &[u8], now: Time) -> Result<Self, ThawError> {
        let mut reader = Reader {
            bytes,
            now,
            damaged: false,
        };
        if reader.u32(0) != VERSION {
            return Err(ThawError::Version);
        }
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(ThawError::Damaged)?;
        if u64::from_le_bytes(*sum) != hash(body) {
            return Err(ThawError::Damaged);
        }
        reader.bytes = body.get(4..).ok_or(ThawError::Damaged)?;
        let nowhere = SocketAddr::new(IpAddr::V4([0; 4].into()), 0);
        let flow = FourTuple {
            local: nowhere,
            remote: nowhere,
        };
        let mut connection = Self::connect(flow, 0, 0, &Config::default(), now).with(&mut reader);
        if reader.damaged || !reader.bytes.is_empty() || !connection.is_sound() {
            return Err(ThawError::Damaged);
        }
        connection.scan_frames();
        Ok(connection)
    }

    /// Passes every field through a codec.
    fn with<C: Codec>(&self, codec: &mut C) -> Self {
        let clock = timestamp(codec.now(), self.timestamp_offset);
        let clock = codec.u32(clock);
        let chrono = one_of(&ChronoKind::ALL, self.chrono as u8, codec);
        Self {
            timestamp_offset: clock.wrapping_sub(milliseconds(codec.now())),
            flow: FourTuple {
                local: codec.address(self.flow.local),
                remote: codec.address(self.flow.remote),
            },
            state: {
                let state = codec.u8(self.state as u8);
                State::ALL
                    .get(usize::from(state))
                    .copied()
                    .unwrap_or_else(|| {
                        codec.damaged();
                        State::Closed
                    })
            },
            pending: Pending(codec.u8(self.pending.0)),
            orphan: codec.flag(self.orphan),
            sack: codec.flag(self.sack),
            timestamps: codec.flag(self.timestamps),
            scaling: codec.flag(self.scaling),
            cork: codec.flag(self.cork),
            more: codec.flag(self.more),
            no_space: codec.flag(self.no_space),
            chrono,
            // Determined by the process in which it is thawed.
            pressure: MemoryPressure::None,
            keepalive_probes: codec.u8(self.keepalive_probes),
            error: codec.errno(self.error),
            soft_error: codec.errno(self.soft_error),
            send: send(&self.send, codec),
            receive: receive(&self.receive, codec),
            timers: {
                let mut timers = Timers::new();
                for timer in TIMERS {
                    let now = codec.now();
                    if let Some(at) = codec.maybe(self.timers.get(timer), now, C::time) {
                        timers.set(timer, at, Duration::ZERO);
                    }
                }
                timers
            },
            round_trip: RoundTrip {
                srtt_8: codec.u32(self.round_trip.srtt_8),
                rttvar_4: codec.u32(self.round_trip.rttvar_4),
                rttvar_max: codec.u32(self.round_trip.rttvar_max),
                rto_margin: codec.u32(self.round_trip.rto_margin),
                rtt_seq: codec.u32(self.round_trip.rtt_seq),
                min: codec.u32(self.round_trip.min),
                min_at: age(self.round_trip.min_at, codec.now().as_secs() as u32, codec),
                backoff: codec.u8(self.round_trip.backoff),
            },
            recovery: recovery(&self.recovery, codec),
            congestion: self.congestion.with(codec),
            ecn: EcnState {
                flags: codec.u8(self.ecn.flags),
                delivered: codec.u32(self.ecn.delivered),
            },
            path: PathMtu {
                limited: codec.flag(self.path.limited),
                searching: codec.flag(self.path.searching),
                largest_first: codec.flag(self.path.largest_first),
                low: codec.u16(self.path.low),
                high: codec.u16(self.path.high),
                icmp_limit: codec.u16(self.path.icmp_limit),
                probe: codec.u16(self.path.probe),
                since: age(self.path.since, codec.now().as_secs() as u32, codec),
                reductions: codec.u8(self.path.reductions),
                size_before: codec.u16(self.path.size_before),
                stalled_to: codec.u32(self.path.stalled_to),
                passed: codec.u16(self.path.passed),
            },
            acp: acp(self.acp.as_deref(), codec),
            fast_open: fast_open(self.fast_open.as_deref(), codec),
            error_queue: codec.flag(self.error_queue.is_some()).then(|| {
                let none = ErrorQueue::default();
                let error_queue = self.error_queue.as_deref().unwrap_or(&none);
                Box::new(error_queue.with(codec))
            }),
            counters: Counters {
                bytes_acknowledged: codec.u64(self.counters.bytes_acknowledged),
                bytes_received: codec.u64(self.counters.bytes_received),
                retransmissions: codec.u32(self.counters.retransmissions),
                timeouts: codec.u32(self.counters.timeouts),
                fast_recoveries: codec.u32(self.counters.fast_recoveries),
                loss_probes: codec.u32(self.counters.loss_probes),
                dsack_duplicates: codec.u32(self.counters.dsack_duplicates),
                spurious_timeouts: codec.u32(self.counters.spurious_timeouts),
                recoveries_undone: codec.u32(self.counters.recoveries_undone),
                delivered: codec.u32(self.counters.delivered),
                segments_received: codec.u32(self.counters.segments_received),
                segments_sent: codec.u32(self.counters.segments_sent),
                segments_refused: codec.u32(self.counters.segments_refused),
                out_of_order: codec.u32(self.counters.out_of_order),
            },
            chrono_stats: chrono_stats(self.chrono_stats, (self.chrono, chrono), codec),
            config: config(&self.config, codec),
        }
    }

    /// Whether the invariants of the engine hold.
    fn is_sound(&self) -> bool {
        let Send {
            una,
            nxt,
            write_seq,
            ..
        } = self.send;
        let synchronizing =
            matches!(self.state, State::SynSent | State::SynReceived) && !self.is_fast_opening();
        let held = self.send.buffer.len();
        let space = write_seq.wrapping_sub(una);
        // One more for a SYN or a FIN at either end.
        let sent = nxt.wrapping_sub(una);
        let send = match self.state {
            State::Closed | State::TimeWait => held == 0,
            _ if synchronizing => {
                // Little data goes with a SYN.
                held <= u16::MAX.into() && space == held + 1 && sent <= space
            }
            _ if space == u32::MAX => held == 0 && sent == 0 && self.send.closed,
            _ => held <= BUFFER_MAX && space == held && sent <= space + u32::from(self.send.closed),
        };
        // The scoreboard covers the data in flight, FIN included, or is empty.
        let mut pieces = self.recovery.board.pieces();
        let start = pieces.next().map(|piece| (piece.start, piece.end));
        let end = pieces.last().map(|piece| piece.end);
        let scoreboard = match (self.state, start) {
            (State::Closed, _) => true,
            _ if synchronizing => true,
            (_, Some((start, only))) => start == una && end.unwrap_or(only) == nxt,
            (_, None) => una == nxt,
        } && self.recovery.board.sacked() <= sent;
        let expected = self.next_expected();
        let window = self.receive.rcv_adv.wrapping_sub(expected);
        let receive = self.receive.assembler.unread() <= BUFFER_MAX * 2
            && (window <= BUFFER_MAX || window == u32::MAX)
            && self.receive.buffer_limit <= BUFFER_MAX
            && self.receive.mss > 0
            && expected.wrapping_sub(self.receive.last_ack_sent) <= BUFFER_MAX * 2;
        let pending = self.pending.0 <= Pending::ALL
            && (synchronizing || self.is_fast_opening() || !self.pending.has(Pending::SYNCHRONIZE));
        send && receive
            && pending
            && self.send.push_marks.is_sound(una, write_seq)
            && scoreboard
            && self.send.mss >= MSS_MIN - TIMESTAMPS_LEN
            && self.config.mss >= MSS_MIN
            && self.send.wscale <= 14
            && self.receive.wscale <= 14
            && self.congestion.is_sound()
            && self.ecn.flags <= EcnState::ALL
            && self.path.is_sound()
            && (self.path.probe != 0) == self.recovery.path_probe.is_some()
            && self.round_trip.srtt_8 <= 1 << 31
            && self.round_trip.rttvar_4 <= 1 << 30
            && self.round_trip.rttvar_max <= 1 << 30
            && self.round_trip.rto_margin <= 1 << 30
            && self.flow.local.is_ipv4() == self.flow.remote.is_ipv4()
    }
}

/// Encodes a time in wrapping units by its age; `now` is the current time.
fn age<C: Codec>(at: u32, now: u32, codec: &mut C) -> u32 {
    now.wrapping_sub(codec.u32(now.wrapping_sub(at)))
}

fn send<C: Codec>(send: &Send, codec: &mut C) -> Send {
    let (una, nxt) = (codec.u32(send.una), codec.u32(send.nxt));
    Send {
        una,
        nxt,
        // The new device is offered the refused burst again.
        offered: nxt,
        write_seq: codec.u32(send.write_seq),
        wnd: codec.u32(send.wnd),
        max_window: codec.u32(send.max_window),
        wl1: codec.u32(send.wl1),
        wl2: codec.u32(send.wl2),
        snd_sml: codec.u32(send.snd_sml),
        push_marks: marks(&send.push_marks, codec),
        max_in_flight: codec.u32(send.max_in_flight),
        cwnd_usage_seq: codec.u32(send.cwnd_usage_seq),
        cwnd_stamp: age(send.cwnd_stamp, microseconds(codec.now()), codec),
        is_cwnd_limited: codec.flag(send.is_cwnd_limited),
        mss: codec.u16(send.mss),
        peer_mss: codec.u16(send.peer_mss),
        wscale: codec.u8(send.wscale),
        closed: codec.flag(send.closed),
        retries: codec.u8(send.retries),
        stalled_since: {
            let now = codec.now();
            codec.maybe(send.stalled_since, now, C::time)
        },
        last_sent: codec.time(send.last_sent),
        departure_time: {
            let now = microseconds(codec.now());
            codec
                .u32(send.departure_time.wrapping_sub(now))
                .wrapping_add(now)
        },
        buffer: {
            let bytes = codec.data(send.buffer.slices(0, send.buffer.len()));
            let mut buffer = ByteQueue::default();
            if bytes.len() <= BUFFER_MAX as usize {
                buffer.push(&bytes);
            } else {
                codec.damaged();
            }
            buffer
        },
        buffer_limit: codec.u32(send.buffer_limit).min(BUFFER_MAX),
        least_room: codec.u32(send.least_room),
        reset_sequence: codec.u32(send.reset_sequence),
    }
}

/// Passes the statistics of a connection in state `chrono`; `thawed` is that state after
/// the codec.
fn chrono_stats<C: Codec>(
    mut stats: ChronoStats,
    (chrono, thawed): (ChronoKind, ChronoKind),
    codec: &mut C,
) -> ChronoStats {
    let now = milliseconds(codec.now());
    if chrono != ChronoKind::Idle {
        stats.end(chrono, now);
    }
    let mut stats = ChronoStats(stats.0.map(|total| codec.u32(total)));
    if thawed != ChronoKind::Idle {
        stats.begin(thawed, now);
    }
    stats
}

/// Which unread bytes are frames is determined again.
fn acp<C: Codec>(acp: Option<&AcpState>, codec: &mut C) -> Option<Box<AcpState>> {
    if !codec.flag(acp.is_some()) {
        return None;
    }
    let has = |which: fn(&AcpState) -> bool| acp.is_some_and(which);
    Some(Box::new(AcpState {
        unconfirmed: codec.flag(has(|acp| acp.unconfirmed)),
        largest: codec.u16(acp.map_or(0, |acp| acp.largest)),
        broken: codec.flag(has(|acp| acp.broken)),
        reports: codec.flag(has(|acp| acp.reports)),
        whole: 0,
        frames: 0,
    }))
}

fn fast_open<C: Codec>(
    fast_open: Option<&FastOpenState>,
    codec: &mut C,
) -> Option<Box<FastOpenState>> {
    if !codec.flag(fast_open.is_some()) {
        return None;
    }
    let none = FastOpenState::new(codec.now());
    let state = fast_open.unwrap_or(&none);
    let option = state.option.unwrap_or(FastOpen::REQUEST);
    Some(Box::new(FastOpenState {
        flags: codec.u16(state.flags),
        room: codec.u16(state.room),
        option: {
            let some = codec.flag(state.option.is_some());
            let experimental = codec.flag(option.is_experimental());
            let cookie = codec.data([option.cookie(), &[]]);
            let option = FastOpen::cookie_of(&cookie).unwrap_or(FastOpen::REQUEST);
            some.then_some(option.with_experimental(experimental))
        },
        remote_isn: codec.u32(state.remote_isn),
        since: codec.time(state.since),
    }))
}

fn marks<C: Codec>(marks: &PushMarks, codec: &mut C) -> PushMarks {
    let (last, forced_push) = (codec.u32(marks.last()), codec.u32(marks.forced_push));
    let mut earlier = marks.earlier();
    let count = codec.u32(marks.earlier().count() as u32);
    let mut thawed = VecDeque::new();
    for _ in 0..count {
        let mark = earlier.next().unwrap_or(Mark {
            at: 0,
            record: false,
        });
        let mark = Mark {
            at: codec.u32(mark.at),
            record: codec.flag(mark.record),
        };
        if codec.is_damaged() {
            break;
        }
        thawed.push_back(mark);
    }
    PushMarks::restore(last, forced_push, thawed)
}

fn receive<C: Codec>(receive: &Receive, codec: &mut C) -> Receive {
    let mut copy = Receive {
        assembler: assembler(&receive.assembler, codec),
        fin: codec.maybe(receive.fin, 0, C::u32),
        finished: codec.flag(receive.finished),
        rcv_adv: codec.u32(receive.rcv_adv),
        last_ack_sent: codec.u32(receive.last_ack_sent),
        window_field: codec.u16(receive.window_field),
        ts_recent: codec.u32(receive.ts_recent),
        ts_recent_stamp: age(receive.ts_recent_stamp, codec.now().as_secs() as u32, codec),
        buffer_limit: codec.u32(receive.buffer_limit),
        mss: codec.u16(receive.mss),
        wscale: codec.u8(receive.wscale),
        quick_acks: codec.u8(receive.quick_acks),
        pingpong: codec.flag(receive.pingpong),
        duplicate_acks: codec.u8(receive.duplicate_acks),
        closed: codec.flag(receive.closed),
        last_heard: codec.time(receive.last_heard),
        last_data: age(receive.last_data, milliseconds(codec.now()), codec),
        last_challenge: {
            let now = codec.now();
            codec.maybe(receive.last_challenge, now, C::time)
        },
        consumed: codec.u32(receive.consumed),
        // Approximate: the buffer is tuned once data has arrived.
        tuned_at: microseconds(codec.time(receive.last_heard)),
        // A property of the queue in which its segments wait, which is another one there.
        room: ReceiveRoom::default(),
    };
    if !copy.finished {
        copy.assembler.note_fin(copy.fin);
    }
    copy
}

fn assembler<C: Codec>(assembler: &Assembler, codec: &mut C) -> Assembler {
    let mut thawed = Assembler::new(codec.u32(assembler.next()));
    let unread = codec.data(assembler.unread_slices());
    if unread.len() > 2 * BUFFER_MAX as usize {
        codec.damaged();
        return thawed;
    }
    thawed.restore_unread(&unread);
    let duplicate = assembler.duplicate();
    thawed.restore_duplicate((codec.u32(duplicate.0), codec.u32(duplicate.1)));
    let mut ranges = assembler.beyond();
    let count = codec.u16(assembler.beyond().count() as u16);
    for _ in 0..count {
        let (first, pieces) = ranges.next().unwrap_or_default();
        let first = codec.u32(first);
        let bytes = codec.data(pieces);
        let distance = first.wrapping_sub(thawed.next()) as usize;
        if bytes.is_empty() {
            // Freezing: nothing must be built.
            continue;
        }
        if distance == 0
            || distance + bytes.len() > BUFFER_MAX as usize
            || thawed.insert(first, &bytes, &QueueLimits::MOST) != Inserted::Beyond
        {
            codec.damaged();
        }
    }
    thawed
}

fn recovery<C: Codec>(recovery: &Recovery, codec: &mut C) -> Recovery {
    let first = codec.u32(recovery.board.una());
    let now = microseconds(codec.now());
    let rack = recovery.rack;
    Recovery {
        board: {
            let mut board = Scoreboard::new(first);
            let mut pieces = recovery.board.pieces();
            let count = codec.u32(recovery.board.pieces().count() as u32);
            for _ in 0..count {
                let piece = pieces.next();
                let end = codec.u32(piece.map_or(0, |piece| piece.end));
                let sent = age(piece.map_or(now, |piece| piece.sent), now, codec);
                let marks = codec.u8(piece.map_or(0, |piece| piece.flags));
                if !board.restore(end, sent, marks) {
                    codec.damaged();
                    break;
                }
            }
            let reno_sacked = codec.maybe(recovery.board.reno_sacked(), 0, C::u32);
            if let Some(bytes) = reno_sacked {
                board.set_reno_sacked(bytes);
            }
            board
        },
        rack: Rack {
            xmit_ts: age(rack.xmit_ts, now, codec),
            end_seq: codec.u32(rack.end_seq),
            rtt: codec.u32(rack.rtt),
            advanced: codec.flag(rack.advanced),
            reo_wnd_steps: codec.u8(rack.reo_wnd_steps),
            reo_wnd_persist: codec.u8(rack.reo_wnd_persist),
            dsack_round: codec.maybe(rack.dsack_round, 0, C::u32),
            reordering: codec.u16(rack.reordering),
            reord_seen: codec.u32(rack.reord_seen),
        },
        ca_state: one_of(&CaState::ALL, recovery.ca_state as u8, codec),
        rtx_timer: one_of(&RtxTimer::ALL, recovery.rtx_timer as u8, codec),
        high_seq: codec.u32(recovery.high_seq),
        sacked_out: codec.u32(recovery.sacked_out),
        probe: {
            let (kind, end) = match recovery.probe {
                TailProbe::None => (0, 0),
                TailProbe::Due => (1, 0),
                TailProbe::Sent { end, again } => (2 + u8::from(again), end),
            };
            let (kind, end) = (codec.u8(kind), codec.u32(end));
            match kind {
                0 => TailProbe::None,
                1 => TailProbe::Due,
                _ => TailProbe::Sent {
                    end,
                    again: kind > 2,
                },
            }
        },
        undo: Undo {
            marker: codec.maybe(recovery.undo.marker, 0, C::u32),
            undo_retrans: codec.maybe(recovery.undo.undo_retrans, 0, C::u16),
            retrans_stamp: codec.maybe(recovery.undo.retrans_stamp, 0, C::u32),
            restores_window: codec.flag(recovery.undo.restores_window),
        },
        reduction: Reduction {
            prior_cwnd: codec.u32(recovery.reduction.prior_cwnd),
            delivered: codec.u32(recovery.reduction.delivered),
            sent: codec.u32(recovery.reduction.sent),
        },
        frto: codec.flag(recovery.frto),
        frto_new_data: codec.flag(recovery.frto_new_data),
        path_probe: codec.maybe(recovery.path_probe, (0, 0), |codec, (start, end)| {
            (codec.u32(start), codec.u32(end))
        }),
    }
}

fn config<C: Codec>(config: &Settings, codec: &mut C) -> Settings {
    Settings {
        receive_buffer: codec.u32(config.receive_buffer),
        receive_buffer_max: codec.u32(config.receive_buffer_max),
        send_buffer: codec.u32(config.send_buffer),
        send_buffer_max: codec.u32(config.send_buffer_max),
        offload: codec.u32(config.offload),
        keepalive_idle: Span(codec.u32(config.keepalive_idle.0)),
        keepalive_interval: Span(codec.u32(config.keepalive_interval.0)),
        user_timeout: Span(codec.u32(config.user_timeout.0)),
        delayed_ack: Span(codec.u32(config.delayed_ack.0)),
        timeout_min: Span(codec.u32(config.timeout_min.0)),
        timeout_max: Span(codec.u32(config.timeout_max.0)),
        fin_timeout: Span(codec.u32(config.fin_timeout.0)),
        mss: codec.u16(config.mss),
        keepalive_count: codec.u8(config.keepalive_count),
        syn_retries: codec.u8(config.syn_retries),
        syn_ack_retries: codec.u8(config.syn_ack_retries),
        retries: codec.u8(config.retries),
        orphan_retries: codec.u8(config.orphan_retries),
        initial_window: codec.u8(config.initial_window),
        traffic_class: codec.u8(config.traffic_class),
        mtu_probing: match codec.u8(config.mtu_probing as u8) {
            0 => MtuProbing::Off,
            1 => MtuProbing::BlackHole,
            _ => MtuProbing::Always,
        },
        ecn: match codec.u8(config.ecn as u8) {
            0 => Ecn::Off,
            1 => Ecn::Passive,
            _ => Ecn::Active,
        },
        burst_min: codec.u8(config.burst_min).max(1),
        slow_start_after_idle: codec.flag(config.slow_start_after_idle),
        nodelay: codec.flag(config.nodelay),
        pacing: codec.flag(config.pacing),
        pacing_rate_max: codec.u32(config.pacing_rate_max).max(1),
        not_sent_low_water: codec.u32(config.not_sent_low_water).max(1),
        congestion: config.congestion.with(codec),
    }
}
