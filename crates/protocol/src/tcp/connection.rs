//! One connection, from its owner's point of view.

use core::time::Duration;

use super::acp::AcpState;
use super::assembler::Assembler;
use super::byte_queue::ByteQueue;
use super::config::Settings;
use super::congestion::Controller;
use super::ecn::EcnState;
use super::fast_open::FastOpenState;
use super::memory::MemoryPressure;
use super::notifications::ErrorQueue;
use super::path_mtu::PathMtu;
use super::push_marks::PushMarks;
use super::receive_room::ReceiveRoom;
use super::recovery::Recovery;
use super::round_trip::RoundTrip;
use super::send::milliseconds;
use super::sending_times::{ChronoKind, ChronoStats};
use super::timers::{Timer, Timers};
use super::{Config, Errno, FourTuple, Handshake, Outgoing, State, Time, microseconds};

/// Initial segments that are acknowledged at once, so that the peer's congestion window
/// opens fast (Linux `TCP_MAX_QUICKACKS`).
pub(super) const QUICK_ACKS: u8 = 16;

/// The smallest maximum segment size accepted from a peer (Linux `TCP_MIN_MSS`). Below
/// it, headers would cost more than data, and a peer could make us send one packet per
/// byte.
pub const MSS_MIN: u16 = 88;

/// The maximum segment size of a peer that names none (RFC 9293 §3.7.1).
pub(super) const MSS_DEFAULT: u16 = 536;

/// Bytes that the timestamps option takes in each segment.
pub(super) const TIMESTAMPS_LEN: u16 = 12;

/// The smallest receive or send buffer, whatever the application asks for.
pub(super) const BUFFER_MIN: u32 = 2048;

/// The largest receive or send buffer, whatever the application asks for (the largest
/// window of RFC 7323).
pub(super) const BUFFER_MAX: u32 = 1 << 30;

/// Work of [`Connection::output`] besides sending data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending(pub(super) u8);

impl Pending {
    /// An acknowledgment is due at once.
    pub(super) const ACKNOWLEDGE: u8 = 1;
    /// A SYN, or a SYN-ACK.
    pub(super) const SYNCHRONIZE: u8 = 2;
    /// An RST with our next sequence number.
    pub(super) const RESET: u8 = 4;
    /// An RST with the sequence number that the peer wrongly acknowledged.
    pub(super) const RESET_ANSWER: u8 = 8;
    /// A probe of a closed window or a silent peer.
    pub(super) const PROBE: u8 = 16;
    /// Data held back by Nagle, cork or silly-window avoidance has waited long enough.
    pub(super) const OVERRIDE: u8 = 32;
    /// An acknowledgment is due that may be piggybacked
    /// ([`Connection::may_piggyback`]).
    pub(super) const ACKNOWLEDGE_SOON: u8 = 64;
    /// An acknowledgment is due.
    pub(super) const ANY_ACKNOWLEDGMENT: u8 = Self::ACKNOWLEDGE | Self::ACKNOWLEDGE_SOON;
    pub(super) const ALL: u8 = 127;

    pub(super) fn add(&mut self, what: u8) {
        self.0 |= what;
    }
    pub(super) fn clear(&mut self, what: u8) {
        self.0 &= !what;
    }
    pub(super) fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }
}

/// The send sequence space (RFC 9293 §3.3.1) and related state.
pub(super) struct Send {
    pub(super) una: u32,
    /// Never moves back: [`Recovery`] decides what is retransmitted.
    pub(super) nxt: u32,
    /// SND.NXT, or the end of a burst that the device has since refused: part of it may
    /// have left.
    pub(super) offered: u32,
    /// The sequence number after the last byte written, and after the FIN once there is
    /// one.
    pub(super) write_seq: u32,
    /// The peer's window, scaled.
    pub(super) wnd: u32,
    /// MAX.SND.WND of RFC 5961 §5.2.
    pub(super) max_window: u32,
    pub(super) wl1: u32,
    pub(super) wl2: u32,
    /// The end of the last segment sent that was not full, for Minshall's variant
    /// of Nagle.
    pub(super) snd_sml: u32,
    /// The application's pushes, and the ends of records.
    pub(super) push_marks: PushMarks,
    /// The most bytes in flight since `cwnd_usage_seq` was SND.NXT (RFC 7661). The bytes
    /// in flight when an acknowledgment comes would be fewer: several may come at once.
    pub(super) max_in_flight: u32,
    pub(super) cwnd_usage_seq: u32,
    /// When the congestion window was last used up, in microseconds that wrap.
    pub(super) cwnd_stamp: u32,
    pub(super) mss: u16,
    pub(super) peer_mss: u16,
    /// The peer's window scale.
    pub(super) wscale: u8,
    pub(super) is_cwnd_limited: bool,
    /// A FIN follows the written data.
    pub(super) closed: bool,
    /// How often the same data was sent without an answer.
    pub(super) retries: u8,
    /// Approximate time at which the data now retransmitted without an answer was first
    /// sent.
    pub(super) stalled_since: Option<Time>,
    pub(super) last_sent: Time,
    /// The earliest departure time of the next segment, in microseconds that wrap; in the
    /// past while pacing is off.
    pub(super) departure_time: u32,
    pub(super) buffer: ByteQueue,
    /// A fixed size of the buffer (`SO_SNDBUF`), or zero.
    pub(super) buffer_limit: u32,
    /// Free space that makes a write worth while.
    pub(super) least_room: u32,
    /// The sequence number of an RST that answers a segment.
    pub(super) reset_sequence: u32,
}

impl Send {
    /// Sequence numbers sent and not acknowledged (Linux `packets_out`).
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u32 {
        self.nxt.wrapping_sub(self.una)
    }

    /// The end of the peer's window (Linux `tcp_wnd_end`).
    #[inline(always)]
    pub(super) fn window_end(&self) -> u32 {
        self.una.wrapping_add(self.wnd)
    }
}

/// The receive sequence space (RFC 9293 §3.3.1) and related state.
pub(super) struct Receive {
    /// Holds RCV.NXT, without the FIN.
    pub(super) assembler: Assembler,
    /// Position of the peer's FIN, once it has come.
    pub(super) fin: Option<u32>,
    /// The FIN is in order.
    pub(super) finished: bool,
    /// The right edge of the announced window.
    pub(super) rcv_adv: u32,
    pub(super) last_ack_sent: u32,
    /// The window field as last sent.
    pub(super) window_field: u16,
    pub(super) ts_recent: u32,
    /// When `ts_recent` was set, in seconds.
    pub(super) ts_recent_stamp: u32,
    /// Limit of the receive buffer, in bytes.
    pub(super) buffer_limit: u32,
    /// The peer's segment size, as estimated from received data.
    pub(super) mss: u16,
    /// Our window scale.
    pub(super) wscale: u8,
    pub(super) quick_acks: u8,
    /// We answer received data: acknowledgments can travel with data.
    pub(super) pingpong: bool,
    /// Duplicate acknowledgments to be sent to a peer without SACK.
    pub(super) duplicate_acks: u8,
    /// The application reads no more (`SHUT_RD`).
    pub(super) closed: bool,
    pub(super) last_heard: Time,
    /// When data last arrived, in milliseconds that wrap.
    pub(super) last_data: u32,
    /// When a challenge ACK, or the answer to an unacceptable segment, was last sent.
    pub(super) last_challenge: Option<Time>,
    /// Bytes read since `tuned_at`.
    pub(super) consumed: u32,
    /// When the buffer was last tuned, in microseconds that wrap.
    pub(super) tuned_at: u32,
    pub(super) room: ReceiveRoom,
}

impl Receive {
    /// Linux `tcp_store_ts_recent`.
    #[inline(always)]
    pub(super) fn store_ts_recent(&mut self, value: u32, now: Time) {
        self.ts_recent = value;
        self.ts_recent_stamp = now.as_secs() as u32;
    }
}

/// Counters of [`Info`](super::Info).
#[derive(Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) bytes_acknowledged: u64,
    pub(super) bytes_received: u64,
    pub(super) retransmissions: u32,
    pub(super) timeouts: u32,
    pub(super) fast_recoveries: u32,
    pub(super) loss_probes: u32,
    pub(super) dsack_duplicates: u32,
    pub(super) spurious_timeouts: u32,
    pub(super) recoveries_undone: u32,
    pub(super) delivered: u32,
    pub(super) segments_received: u32,
    pub(super) segments_sent: u32,
    pub(super) segments_refused: u32,
    pub(super) out_of_order: u32,
}

/// Adds one.
#[inline(always)]
pub(super) fn count(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

/// One connection. Its owner passes it the flow's segments and the time, calls its output
/// when [`Connection::wants_output`], and wakes it at [`Connection::next_timeout`].
pub struct Connection {
    pub(super) flow: FourTuple,
    pub(super) state: State,
    pub(super) pending: Pending,
    /// The application has closed: nothing reads or writes any more.
    pub(super) orphan: bool,
    /// Both ends accept SACK options; before the handshake: we offer SACK.
    pub(super) sack: bool,
    /// Both ends use timestamps; before the handshake: we offer them.
    pub(super) timestamps: bool,
    /// Both ends have sent a window scale; before the handshake: we offer one.
    pub(super) scaling: bool,
    pub(super) cork: bool,
    /// The last write announced that more follows (`MSG_MORE`), and nothing was
    /// acknowledged since.
    pub(super) more: bool,
    /// The last write found no room (Linux `SOCK_NOSPACE`).
    pub(super) no_space: bool,
    pub(super) chrono: ChronoKind,
    /// Pressure on the memory of all connections.
    pub(super) pressure: MemoryPressure,
    /// Unanswered probes of a silent peer.
    pub(super) keepalive_probes: u8,
    pub(super) timestamp_offset: u32,
    pub(super) error: Option<Errno>,
    /// An error from ICMP; reported if the connection times out.
    pub(super) soft_error: Option<Errno>,
    pub(super) send: Send,
    pub(super) receive: Receive,
    pub(super) timers: Timers,
    pub(super) round_trip: RoundTrip,
    pub(super) recovery: Recovery,
    pub(super) congestion: Controller,
    pub(super) ecn: EcnState,
    pub(super) path: PathMtu,
    /// `None` if a stream is carried, not frames.
    pub(super) acp: Option<Box<AcpState>>,
    /// `None` if Fast Open is not used.
    pub(super) fast_open: Option<Box<FastOpenState>>,
    /// `None` unless timestamps or zero-copy completions were asked for.
    pub(super) error_queue: Option<Box<ErrorQueue>>,
    pub(super) counters: Counters,
    pub(super) chrono_stats: ChronoStats,
    pub(super) config: Settings,
}

impl Connection {
    /// Opens a connection actively; its SYN leaves by [`Connection::output`].
    ///
    /// `isn` is the initial sequence number. `timestamp_offset` is how far its timestamps
    /// are ahead of the clock, in milliseconds. Both must be unpredictable to others (RFC
    /// 6528, RFC 7323 §5.4).
    #[must_use]
    pub fn connect(
        flow: FourTuple,
        isn: u32,
        timestamp_offset: u32,
        config: &Config,
        now: Time,
    ) -> Self {
        let mut connection = Self::new(flow, isn, timestamp_offset, config, now);
        connection.pending.add(Pending::SYNCHRONIZE);
        connection
    }

    /// Creates a connection from a completed passive handshake whose ACK the listener has
    /// validated. The caller then passes the segment of that ACK to
    /// [`Connection::input`], since it may carry data. It does the same with the SYN of
    /// [`Handshake::fast_open`].
    #[must_use]
    pub fn accept(handshake: &Handshake, config: &Config, now: Time) -> Self {
        let mut connection = Self::new(
            handshake.flow,
            handshake.local_isn,
            handshake.timestamp_offset,
            config,
            now,
        );
        connection.sack = handshake.sack;
        connection.ecn.agree(handshake.ecn);
        connection.timestamps = handshake.timestamps.is_some();
        connection.scaling = handshake.window_scale.is_some();
        if connection.scaling {
            connection.receive.wscale = handshake.local_window_scale.min(14);
        }
        connection.send.una = handshake.local_isn.wrapping_add(1);
        connection.send.nxt = connection.send.una;
        connection.synchronized(
            handshake.remote_isn,
            handshake.mss,
            handshake.window_scale,
            handshake.timestamps.map(|timestamps| timestamps.value),
            now,
        );
        let announced = u32::from(connection.config.syn_window());
        connection.receive.rcv_adv = connection.next_expected().wrapping_add(announced);
        let scale = match handshake.fast_open {
            // The window of a SYN is never scaled.
            Some(_) => 0,
            None => connection.send.wscale,
        };
        let window = u32::from(handshake.window) << scale;
        connection.take_window(handshake.remote_isn, connection.send.una, window);
        if let Some(round_trip) = handshake.round_trip {
            connection.sample_handshake(round_trip, now);
        }
        connection.establish(now, false);
        if let Some(answer) = &handshake.fast_open {
            connection.open_by_syn(handshake.remote_isn, answer, now);
        }
        connection
    }

    fn new(flow: FourTuple, isn: u32, timestamp_offset: u32, config: &Config, now: Time) -> Self {
        let config = &config.framed();
        let settings = Settings::new(config);
        let (mss, limit) = (settings.mss, settings.receive_buffer);
        Self {
            flow,
            state: State::SynSent,
            pending: Pending(0),
            orphan: false,
            sack: config.sack,
            timestamps: config.timestamps,
            scaling: config.window_scaling,
            cork: false,
            more: false,
            no_space: false,
            chrono: ChronoKind::Idle,
            pressure: MemoryPressure::None,
            keepalive_probes: 0,
            timestamp_offset,
            error: None,
            soft_error: None,
            send: Send {
                una: isn,
                nxt: isn,
                offered: isn,
                write_seq: isn.wrapping_add(1),
                wnd: 0,
                max_window: 0,
                wl1: 0,
                wl2: 0,
                snd_sml: isn,
                push_marks: PushMarks::new(isn),
                max_in_flight: 0,
                cwnd_usage_seq: isn,
                cwnd_stamp: microseconds(now),
                is_cwnd_limited: false,
                mss,
                peer_mss: MSS_DEFAULT,
                wscale: 0,
                closed: false,
                retries: 0,
                stalled_since: None,
                last_sent: now,
                departure_time: microseconds(now),
                buffer: ByteQueue::default(),
                buffer_limit: 0,
                least_room: 1,
                reset_sequence: 0,
            },
            receive: Receive {
                assembler: Assembler::new(0),
                fin: None,
                finished: false,
                rcv_adv: 0,
                last_ack_sent: 0,
                window_field: 0,
                ts_recent: 0,
                ts_recent_stamp: 0,
                buffer_limit: limit,
                mss: MSS_DEFAULT.min(mss),
                wscale: if config.window_scaling {
                    config.window_scale()
                } else {
                    0
                },
                quick_acks: QUICK_ACKS,
                pingpong: false,
                duplicate_acks: 0,
                closed: false,
                last_heard: now,
                last_data: 0,
                last_challenge: None,
                consumed: 0,
                tuned_at: microseconds(now),
                room: ReceiveRoom::default(),
            },
            timers: Timers::new(),
            round_trip: RoundTrip::default(),
            recovery: Recovery::new(isn),
            congestion: Controller::new(mss.into(), settings.congestion),
            ecn: EcnState::default(),
            path: PathMtu::new(),
            acp: AcpState::new(config, mss),
            fast_open: None,
            error_queue: None,
            counters: Counters::default(),
            chrono_stats: ChronoStats::default(),
            config: settings,
        }
    }

    /// Records the peer's SYN.
    pub(super) fn synchronized(
        &mut self,
        remote_isn: u32,
        mss: u16,
        scale: Option<u8>,
        timestamp: Option<u32>,
        now: Time,
    ) {
        let next = remote_isn.wrapping_add(1);
        self.receive.assembler = Assembler::new(next);
        self.receive.last_ack_sent = next;
        self.receive.rcv_adv = next;
        self.send.peer_mss = mss.max(MSS_MIN);
        // More than 14 counts as 14 (RFC 7323 §2.3).
        self.send.wscale = scale.unwrap_or(0).min(14);
        self.scaling = scale.is_some();
        if !self.scaling {
            self.receive.wscale = 0;
        }
        self.timestamps = timestamp.is_some();
        if let Some(value) = timestamp {
            self.receive.store_ts_recent(value, now);
        }
        self.receive.last_heard = now;
        self.update_mss();
    }

    /// Completes the handshake. `lost` is set when a SYN had to be retransmitted: the
    /// initial window is then one segment (RFC 5681 §3.1).
    pub(super) fn establish(&mut self, now: Time, lost: bool) {
        self.state = State::Established;
        self.begin_path(now);
        let window = if lost {
            self.send.mss.into()
        } else {
            self.initial_window()
        };
        self.congestion = Controller::new(window, self.config.congestion);
        self.recovery = Recovery::new(self.send.una);
        self.send.snd_sml = self.send.una;
        self.send.push_marks.forced_push = self.send.una.wrapping_add(self.send.max_window / 2);
        self.send.cwnd_usage_seq = self.send.una;
        self.send.retries = 0;
        self.send.stalled_since = None;
        self.round_trip.backoff = 0;
        self.round_trip.use_syn_fallback();
        self.timers.stop(Timer::Retransmit);
        self.receive.tuned_at = microseconds(now);
        self.receive.last_data = milliseconds(now);
        if let Some(keepalive) = self.config.keepalive() {
            self.timers.set(Timer::Keepalive, now, keepalive.idle);
        }
    }

    /// Takes the round trip of the handshake.
    pub(super) fn sample_handshake(&mut self, round_trip: Duration, now: Time) {
        let sample = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        let least = self.config.timeout_min.micros();
        let sequences = (self.send.una, self.send.nxt);
        self.round_trip.update_min(sample, now);
        self.round_trip.sample(sample, sequences, least);
    }

    /// The initial congestion window (RFC 6928).
    pub(super) fn initial_window(&self) -> u32 {
        u32::from(self.config.initial_window.max(1)) * u32::from(self.send.mss)
    }

    /// Recomputes the payload of a full segment.
    pub(super) fn update_mss(&mut self) {
        let limit = self
            .config
            .mss
            .min(self.send.peer_mss)
            .min(self.path.limit())
            .max(MSS_MIN);
        let full = if self.timestamps {
            limit - TIMESTAMPS_LEN
        } else {
            limit
        };
        // A segment that fills the window is acknowledged late, since receivers wait for
        // a second one (Linux `tcp_bound_to_half_wnd`). Frames may fill it: halving the
        // longest frame costs more.
        let most = match self.send.max_window {
            0 => u32::MAX,
            window if window <= MSS_DEFAULT.into() || self.is_framed() => window,
            window => window / 2,
        };
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        self.send.mss = full.min(most.max(MSS_MIN - TIMESTAMPS_LEN));
        self.send.least_room = self.least_room();
    }

    /// RCV.NXT.
    #[inline]
    pub(super) fn next_expected(&self) -> u32 {
        let fin = u32::from(self.receive.finished);
        self.receive.assembler.next().wrapping_add(fin)
    }

    /// Bytes in flight.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        self.recovery.pipe(self.send.outstanding())
    }

    /// Bytes written that were never sent.
    #[inline]
    pub(super) fn unsent(&self) -> u32 {
        // Minus one once the FIN was sent.
        let unsent = self.send.write_seq.wrapping_sub(self.send.nxt);
        if unsent == u32::MAX { 0 } else { unsent }
    }

    #[inline]
    pub(super) fn fin_sent(&self) -> bool {
        self.send.closed && self.send.nxt == self.send.write_seq.wrapping_add(1)
    }

    /// Bytes that the send buffer may hold: twice the congestion window, so that a round
    /// trip's worth waits behind the data in flight (Linux `tcp_sndbuf_expand`).
    #[inline]
    pub(super) fn send_limit(&self) -> u32 {
        let wanted = self.congestion.window().saturating_mul(2);
        let limit = if self.send.buffer_limit != 0 {
            self.send.buffer_limit
        } else {
            wanted
                .max(self.config.send_buffer)
                .min(self.config.send_buffer_max)
        };
        if self.is_short_of_memory() {
            self.short_send_limit(limit)
        } else {
            limit
        }
    }

    /// The latest time at which [`Connection::timeout`] must be called.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// True while anything that was sent is not acknowledged.
    #[inline]
    pub fn awaits_acknowledgment(&self) -> bool {
        self.send.una != self.send.nxt
    }

    /// How often the same data was sent without an answer.
    pub fn timeouts(&self) -> u8 {
        self.send.retries
    }

    /// When buffers that are now empty are freed. It is part of
    /// [`Connection::next_timeout`], for a caller that has only read.
    #[inline]
    pub fn release_due(&self) -> Option<Time> {
        self.timers.get(Timer::Release)
    }

    /// The current retransmission timeout.
    pub(super) fn retransmission_timeout(&self) -> Duration {
        Duration::from_micros(self.retransmission_micros())
    }

    #[inline]
    pub(super) fn retransmission_micros(&self) -> u64 {
        self.round_trip.timeout(self.config.timeout_max.micros())
    }

    /// True when [`Connection::output`] has work: an acknowledgment is due, data may be
    /// sent, or a timer must be started.
    #[inline]
    pub fn wants_output(&self) -> bool {
        self.pending.0 & !Pending::OVERRIDE != 0
            || self.receive.duplicate_acks > 0
            || self.plan().is_some()
            || self.needs_persist()
    }

    /// True when [`Connection::output`] would only acknowledge data in order that the
    /// peer does not need acknowledged at once. An application that is about to write, or
    /// to close, may piggyback it (RFC 1122 §4.2.3.2).
    #[inline]
    pub fn may_piggyback(&self) -> bool {
        self.pending.0 == Pending::ACKNOWLEDGE_SOON
            && self.receive.duplicate_acks == 0
            && self.plan().is_none()
            && !self.needs_persist()
    }

    /// Sends all that may be sent now. `send` returns false when it has no room; unsent
    /// segments are kept for the next call.
    pub fn output(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        self.send_all(now, send);
    }

    /// As [`Connection::output`], but without a last segment that is not full, since more
    /// will be written soon. [`Connection::wants_output`] remains true for that segment.
    pub fn output_full(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        let cork = std::mem::replace(&mut self.cork, true);
        self.send_all(now, send);
        self.cork = cork;
    }

    /// True when as much waits as a burst may hold, so that more would not make it
    /// larger.
    #[inline]
    pub fn has_full_burst(&self) -> bool {
        self.unsent() >= self.largest_burst()
    }
}
