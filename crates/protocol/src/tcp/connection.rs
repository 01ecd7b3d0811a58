//! One connection, as its owner sees it.

use core::time::Duration;

use super::assembler::Assembler;
use super::byte_queue::ByteQueue;
use super::config::Settings;
use super::congestion::Controller;
use super::ecn::EcnState;
use super::fast_open::FastOpenState;
use super::marks::Marks;
use super::memory::MemoryPressure;
use super::notifications::Notices;
use super::path_mtu::PathMtu;
use super::recovery::Recovery;
use super::round_trip::RoundTrip;
use super::send::milliseconds;
use super::sending_times::{Holdup, Stopwatch};
use super::timers::{Timer, Timers};
use super::{Config, Errno, FourTuple, Handshake, Outgoing, State, Time, microseconds};

/// Segments at the start that are acknowledged at once, so that the peer's
/// congestion window opens fast (Linux `TCP_MAX_QUICKACKS`).
pub(super) const QUICK_ACKS: u8 = 16;

/// The least maximum segment size that is believed of a peer (Linux
/// `TCP_MIN_MSS`): below, headers would cost more than data, and a peer could
/// have us send a packet for every byte.
pub const MSS_MIN: u16 = 88;

/// The maximum segment size of a peer that names none (RFC 9293 §3.7.1).
pub(super) const MSS_DEFAULT: u16 = 536;

/// Bytes that the timestamps option takes of each segment.
pub(super) const TIMESTAMPS_LEN: u16 = 12;

/// The least receive or send buffer, whatever is asked for.
pub(super) const BUFFER_MIN: u32 = 2048;

/// The largest receive or send buffer, whatever is asked for (the largest window
/// of RFC 7323).
pub(super) const BUFFER_MAX: u32 = 1 << 30;

/// What [`Connection::output`] is to do besides sending data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending(pub(super) u8);

impl Pending {
    /// An acknowledgment is due at once.
    pub(super) const ACKNOWLEDGE: u8 = 1;
    /// A SYN, or a SYN-ACK.
    pub(super) const SYNCHRONIZE: u8 = 2;
    /// An RST with our next sequence number.
    pub(super) const RESET: u8 = 4;
    /// An RST with the sequence number that the peer acknowledged wrongly.
    pub(super) const RESET_ANSWER: u8 = 8;
    /// A probe of a closed window or a silent peer.
    pub(super) const PROBE: u8 = 16;
    /// What Nagle, cork or silly-window avoidance hold back has waited long
    /// enough.
    pub(super) const OVERRIDE: u8 = 32;
    /// All of them.
    pub(super) const ALL: u8 = 63;

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

/// The send sequence space (RFC 9293 §3.3.1) and what belongs to it.
pub(super) struct Send {
    /// SND.UNA.
    pub(super) first: u32,
    /// SND.NXT; never goes back, since [`Recovery`] says what is sent again.
    pub(super) next: u32,
    /// The sequence number after the last byte written: that of the FIN, once
    /// there is one.
    pub(super) written: u32,
    /// SND.WND, scaled.
    pub(super) window: u32,
    /// The largest window seen (`MAX.SND.WND` of RFC 5961 §5.2).
    pub(super) window_max: u32,
    /// SND.WL1.
    pub(super) window_sequence: u32,
    /// SND.WL2.
    pub(super) window_acknowledgment: u32,
    /// The end of the last segment sent that was not full (Minshall's variant of
    /// Nagle, as Linux has it).
    pub(super) small: u32,
    /// Where the application has pushed, and where records end.
    pub(super) marks: Marks,
    /// The most that was in flight since `flight_end` was the next sequence
    /// number: how much of the congestion window is used. What is in flight when
    /// an acknowledgment comes would tell less, for several may come at once.
    pub(super) flight: u32,
    pub(super) flight_end: u32,
    /// When all of the congestion window was last in flight, in microseconds that
    /// wrap.
    pub(super) limited_at: u32,
    /// Payload of a full segment.
    pub(super) mss: u16,
    /// The peer's maximum segment size.
    pub(super) peer_mss: u16,
    /// The peer's window scale.
    pub(super) scale: u8,
    /// Of the window that `flight` belongs to, all was used.
    pub(super) limited: bool,
    /// A FIN follows what was written.
    pub(super) closed: bool,
    /// Times the same was sent without an answer.
    pub(super) retries: u8,
    /// Since when nothing moves.
    pub(super) stalled: Option<Time>,
    /// When data last left.
    pub(super) last: Time,
    /// When all that was sent has drained at the pacing rate, in microseconds
    /// that wrap; the past while pacing is off.
    pub(super) drained: u32,
    pub(super) buffer: ByteQueue,
    /// A fixed size of the buffer (`SO_SNDBUF`), or zero.
    pub(super) limit: u32,
    /// The sequence number of an RST that answers.
    pub(super) reset_sequence: u32,
}

/// The receive sequence space (RFC 9293 §3.3.1) and what belongs to it.
pub(super) struct Receive {
    /// Holds RCV.NXT, FIN aside.
    pub(super) assembler: Assembler,
    /// Where the peer's FIN is, once it has come.
    pub(super) fin: Option<u32>,
    /// The FIN is in order.
    pub(super) finished: bool,
    /// The right edge that was announced.
    pub(super) edge: u32,
    /// RCV.NXT as last sent (`Last.ACK.sent` of RFC 7323).
    pub(super) acknowledged: u32,
    /// The window field as last sent.
    pub(super) window_field: u16,
    /// TS.Recent.
    pub(super) timestamp: u32,
    /// When it was taken, in seconds.
    pub(super) timestamp_at: u32,
    /// Bytes of the receive buffer.
    pub(super) limit: u32,
    /// What the peer's full segments are taken to carry.
    pub(super) mss: u16,
    /// Ours of the window scale.
    pub(super) scale: u8,
    /// Acknowledgments that will not be delayed.
    pub(super) quick: u8,
    /// We answer what we receive: acknowledgments can travel with data (Linux
    /// "pingpong mode").
    pub(super) interactive: bool,
    /// Duplicate acknowledgments that a peer without SACK must get.
    pub(super) duplicates: u8,
    /// The application reads no more (`SHUT_RD`).
    pub(super) closed: bool,
    /// When the peer was last heard.
    pub(super) last: Time,
    /// When data last came, in milliseconds.
    pub(super) data_at: u32,
    /// When a challenge or the answer to an unacceptable segment was last sent.
    pub(super) challenged: Option<Time>,
    /// Bytes read since `tuned`.
    pub(super) consumed: u32,
    /// When the buffer's size was last looked at.
    pub(super) tuned: Time,
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
    pub(super) duplicates_told: u32,
    pub(super) spurious_timeouts: u32,
    pub(super) recoveries_undone: u32,
    pub(super) delivered: u32,
    pub(super) segments_received: u32,
    pub(super) segments_sent: u32,
    pub(super) segments_refused: u32,
    pub(super) out_of_order: u32,
}

/// One connection. Its owner gives it the flow's segments and the time, lets it
/// send when [`Connection::wants_output`], and wakes it at
/// [`Connection::next_timeout`].
pub struct Connection {
    pub(super) flow: FourTuple,
    pub(super) state: State,
    pub(super) pending: Pending,
    /// The application has closed: nobody reads or writes any more.
    pub(super) orphan: bool,
    /// Both take SACK options; before the handshake: we offer it.
    pub(super) sack: bool,
    /// Both use timestamps; before the handshake: we offer them.
    pub(super) timestamps: bool,
    /// Both have sent a window scale; before the handshake: we offer one.
    pub(super) scaling: bool,
    pub(super) cork: bool,
    /// The last write has said that more follows (`MSG_MORE`), and nothing was
    /// acknowledged since.
    pub(super) more: bool,
    /// The last write found no room.
    pub(super) starved: bool,
    /// What holds up sending.
    pub(super) holdup: Holdup,
    /// How the memory of all connections stands.
    pub(super) pressure: MemoryPressure,
    /// Probes of a silent peer without an answer.
    pub(super) keepalive_probes: u8,
    pub(super) timestamp_offset: u32,
    pub(super) error: Option<Errno>,
    /// What ICMP said; told if the connection times out.
    pub(super) soft_error: Option<Errno>,
    pub(super) send: Send,
    pub(super) receive: Receive,
    pub(super) timers: Timers,
    pub(super) round_trip: RoundTrip,
    pub(super) recovery: Recovery,
    pub(super) congestion: Controller,
    pub(super) ecn: EcnState,
    pub(super) path: PathMtu,
    /// Of Fast Open; where nobody uses it, it takes no memory.
    pub(super) fast_open: Option<Box<FastOpenState>>,
    /// What the application is told of its bytes; null unless it asks.
    pub(super) notices: Option<Box<Notices>>,
    pub(super) counters: Counters,
    pub(super) stopwatch: Stopwatch,
    pub(super) config: Settings,
}

impl Connection {
    /// Opens a connection actively: its SYN leaves by [`Connection::output`].
    ///
    /// `isn` is the initial sequence number and `timestamp_offset` what its
    /// timestamps are ahead of the clock in milliseconds; both unpredictable for
    /// others (RFC 6528, RFC 7323 §5.4).
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

    /// A connection from a completed passive handshake, its segment's ACK
    /// validated by the listener. The caller gives that segment to
    /// [`Connection::input`] next, for it may carry data; so it does with the SYN
    /// of [`Handshake::fast_open`].
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
            connection.receive.scale = handshake.local_window_scale.min(14);
        }
        connection.send.first = handshake.local_isn.wrapping_add(1);
        connection.send.next = connection.send.first;
        connection.synchronized(
            handshake.remote_isn,
            handshake.mss,
            handshake.window_scale,
            handshake.timestamps.map(|timestamps| timestamps.value),
            now,
        );
        let announced = u32::from(connection.config.syn_window());
        connection.receive.edge = connection.next_expected().wrapping_add(announced);
        let scale = match handshake.fast_open {
            // That of a SYN is never scaled.
            Some(_) => 0,
            None => connection.send.scale,
        };
        let window = u32::from(handshake.window) << scale;
        connection.take_window(handshake.remote_isn, connection.send.first, window);
        if let Some(round_trip) = handshake.round_trip {
            connection.measured_handshake(round_trip, now);
        }
        connection.establish(now, false);
        if let Some(answer) = &handshake.fast_open {
            connection.open_by_syn(handshake.remote_isn, answer, now);
        }
        connection
    }

    fn new(flow: FourTuple, isn: u32, timestamp_offset: u32, config: &Config, now: Time) -> Self {
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
            starved: false,
            holdup: Holdup::Idle,
            pressure: MemoryPressure::None,
            keepalive_probes: 0,
            timestamp_offset,
            error: None,
            soft_error: None,
            send: Send {
                first: isn,
                next: isn,
                written: isn.wrapping_add(1),
                window: 0,
                window_max: 0,
                window_sequence: 0,
                window_acknowledgment: 0,
                small: isn,
                marks: Marks::new(isn),
                flight: 0,
                flight_end: isn,
                limited_at: microseconds(now),
                limited: false,
                mss,
                peer_mss: MSS_DEFAULT,
                scale: 0,
                closed: false,
                retries: 0,
                stalled: None,
                last: now,
                drained: microseconds(now),
                buffer: ByteQueue::default(),
                limit: 0,
                reset_sequence: 0,
            },
            receive: Receive {
                assembler: Assembler::new(0),
                fin: None,
                finished: false,
                edge: 0,
                acknowledged: 0,
                window_field: 0,
                timestamp: 0,
                timestamp_at: 0,
                limit,
                mss: MSS_DEFAULT.min(mss),
                scale: if config.window_scaling {
                    config.window_scale()
                } else {
                    0
                },
                quick: QUICK_ACKS,
                interactive: false,
                duplicates: 0,
                closed: false,
                last: now,
                data_at: 0,
                challenged: None,
                consumed: 0,
                tuned: now,
            },
            timers: Timers::new(),
            round_trip: RoundTrip::default(),
            recovery: Recovery::new(isn),
            congestion: Controller::new(mss.into(), settings.congestion),
            ecn: EcnState::default(),
            path: PathMtu::new(),
            fast_open: None,
            notices: None,
            counters: Counters::default(),
            stopwatch: Stopwatch::default(),
            config: settings,
        }
    }

    /// Takes what the peer's SYN says.
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
        self.receive.acknowledged = next;
        self.receive.edge = next;
        self.send.peer_mss = mss.max(MSS_MIN);
        // More than 14 is taken for 14 (RFC 7323 §2.3).
        self.send.scale = scale.unwrap_or(0).min(14);
        self.scaling = scale.is_some();
        if !self.scaling {
            self.receive.scale = 0;
        }
        self.timestamps = timestamp.is_some();
        if let Some(value) = timestamp {
            self.receive.timestamp = value;
            self.receive.timestamp_at = now.as_secs() as u32;
        }
        self.receive.last = now;
        self.update_mss();
    }

    /// The handshake is complete. `lost` when a SYN had to be sent again: the
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
        self.recovery = Recovery::new(self.send.first);
        self.send.small = self.send.first;
        self.send.marks.due = self.send.first.wrapping_add(self.send.window_max / 2);
        self.send.flight_end = self.send.first;
        self.send.retries = 0;
        self.send.stalled = None;
        self.round_trip.backoff = 0;
        self.round_trip.fall_back();
        self.timers.stop(Timer::Retransmit);
        self.receive.tuned = now;
        self.receive.data_at = milliseconds(now);
        if let Some(keepalive) = self.config.keepalive() {
            self.timers.set(Timer::Keepalive, now, keepalive.idle);
        }
    }

    /// The round trip of the handshake.
    pub(super) fn measured_handshake(&mut self, round_trip: Duration, now: Time) {
        let sample = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        let least = self.config.timeout_min.micros();
        let sequences = (self.send.first, self.send.next);
        self.round_trip.take_minimum(sample, now);
        self.round_trip.sample(sample, sequences, least);
    }

    /// The congestion window that a connection begins with (RFC 6928).
    pub(super) fn initial_window(&self) -> u32 {
        u32::from(self.config.initial_window.max(1)) * u32::from(self.send.mss)
    }

    /// Computes the payload of a full segment anew.
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
        // A segment that fills the window is acknowledged late, since receivers wait
        // for a second one (Linux `tcp_bound_to_half_wnd`).
        let most = match self.send.window_max {
            0 => u32::MAX,
            window if window <= MSS_DEFAULT.into() => window,
            window => window / 2,
        };
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        self.send.mss = full.min(most.max(MSS_MIN - TIMESTAMPS_LEN));
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
        self.recovery
            .pipe(self.send.next.wrapping_sub(self.send.first))
    }

    /// Bytes written that were never sent.
    #[inline]
    pub(super) fn unsent(&self) -> u32 {
        // One less than nothing once the FIN was sent.
        let unsent = self.send.written.wrapping_sub(self.send.next);
        if unsent == u32::MAX { 0 } else { unsent }
    }

    /// True once our FIN was sent.
    #[inline]
    pub(super) fn fin_sent(&self) -> bool {
        self.send.closed && self.send.next == self.send.written.wrapping_add(1)
    }

    /// Bytes the send buffer may hold: twice the congestion window, so that a
    /// round trip's worth waits behind the one in flight (Linux
    /// `tcp_sndbuf_expand`).
    #[inline]
    pub(super) fn send_limit(&self) -> u32 {
        let wanted = self.congestion.window().saturating_mul(2);
        let limit = if self.send.limit != 0 {
            self.send.limit
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

    /// When [`Connection::timeout`] must be called, at the latest.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// When buffers that are empty by now are given back; part of
    /// [`Connection::next_timeout`], for who has only read.
    #[inline]
    #[must_use]
    pub fn release_due(&self) -> Option<Time> {
        self.timers.get(Timer::Release)
    }

    /// The retransmission timeout as it is now.
    pub(super) fn retransmission_timeout(&self) -> Duration {
        Duration::from_micros(self.retransmission_micros())
    }

    /// The same in microseconds.
    #[inline]
    pub(super) fn retransmission_micros(&self) -> u64 {
        self.round_trip.timeout(self.config.timeout_max.micros())
    }

    /// True when [`Connection::output`] has something to do: an acknowledgment is
    /// due, data may be sent, or a timer is to be started.
    #[inline]
    #[must_use]
    pub fn wants_output(&self) -> bool {
        self.pending.0 & !Pending::OVERRIDE != 0
            || self.receive.duplicates > 0
            || self.plan().is_some()
            || self.needs_persist()
    }

    /// Sends all that may be sent now. `send` returns false when it has no room:
    /// what was not sent is kept for the next call.
    pub fn output(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        self.send_all(now, send);
    }
}
