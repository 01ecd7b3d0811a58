//! A connection that is opened by a SYN with data, at either end.

use tidewall_wire::tcp::{FastOpen, Flags, Header, before};

use super::{FastOpenAnswer, FastOpenFailure, FastOpenForm, FastOpenOutcome, FastOpenPeer};
use crate::tcp::connection::{Connection, MSS_MIN, Pending};
use crate::tcp::timers::Timer;
use crate::tcp::{Config, Errno, FourTuple, Segment, State, Time, microseconds, timestamp};

/// Space left in a SYN with data for options that middleboxes add: as much as a header
/// can hold (as Linux).
const OPTIONS_MAX: u16 = 40;

/// The consecutive timeout, counted from zero, at which a client suspects a black hole
/// (as Linux).
const BLACK_HOLE_RETRIES: u8 = 2;

/// Fast Open state of a connection that uses it; others have none.
#[derive(Clone, Copy)]
pub(in crate::tcp) struct FastOpenState {
    pub(in crate::tcp) flags: u16,
    /// Bytes of data that the first SYN may carry.
    pub(in crate::tcp) room: u16,
    /// The option of the first SYN or SYN-ACK; then the cookie received.
    pub(in crate::tcp) option: Option<FastOpen>,
    /// For a connection opened by a SYN, that SYN's sequence number.
    pub(in crate::tcp) remote_isn: u32,
    /// When it was opened.
    pub(in crate::tcp) since: Time,
}

impl FastOpenState {
    /// The SYN has asked for a cookie or carried data.
    const ASKED: u16 = 1;
    /// The SYN has carried data.
    const DATA: u16 = 2;
    /// Data in the SYN was taken.
    const TAKEN: u16 = 4;
    /// A SYN with a cookie opened the connection, and our SYN-ACK is not acknowledged.
    const ANSWERING: u16 = 8;
    /// That SYN was not passed in yet.
    const FRESH: u16 = 16;
    /// The option was of the experimental form.
    const EXPERIMENTAL: u16 = 32;
    /// No cookie was known.
    const NO_COOKIE: u16 = 64;
    /// The SYN-ACK did not acknowledge the data.
    const NOT_TAKEN: u16 = 128;
    /// The SYN-ACK did not acknowledge the data, and the SYN was retransmitted.
    const SYN_RETRANSMITTED: u16 = 256;
    /// The owner has an outcome to learn.
    const OUTCOME: u16 = 512;
    /// See [`FastOpenOutcome::syn_lost`].
    const SYN_LOST: u16 = 1024;
    /// A cookie was requested and none was given.
    const REFUSED: u16 = 2048;
    /// The network may drop segments that use Fast Open.
    const BLACK_HOLE: u16 = 4096;
    /// The SYN with data was too large for the path: the next one is sent without.
    const TOO_LARGE: u16 = 8192;
    /// A writer waits with the rest of the data that the SYN began.
    const WRITER_WAITS: u16 = 16384;
    /// The owner has been notified that the handshake has ended.
    const REPORTED: u16 = 32768;

    pub(in crate::tcp) const fn new(now: Time) -> Self {
        Self {
            flags: 0,
            room: 0,
            option: None,
            remote_isn: 0,
            since: now,
        }
    }
    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
    const fn set(&mut self, flag: u16) {
        self.flags |= flag;
    }
    const fn take(&mut self, flag: u16) -> bool {
        let had = self.has(flag);
        self.flags &= !flag;
        had
    }
}

impl Connection {
    /// Opens a connection actively as [`Connection::connect`], with Fast Open. With a
    /// cookie, or with `without_cookie`, data written before the first
    /// [`Connection::output`] goes with the SYN: [`Connection::write`] accepts as much as
    /// fits there. `without_cookie` is for a network in which addresses cannot be forged
    /// (`tcp_fastopen` with 4). Otherwise the SYN requests a cookie. A connection of
    /// frames is opened without Fast Open.
    ///
    /// A SYN with data may reach the server's application twice (RFC 7413 §2.1); the data
    /// must be safe to repeat.
    #[must_use]
    pub fn connect_fast(
        flow: FourTuple,
        isn: u32,
        timestamp_offset: u32,
        config: &Config,
        peer: &FastOpenPeer,
        without_cookie: bool,
        now: Time,
    ) -> Self {
        let mut connection = Self::connect(flow, isn, timestamp_offset, config, now);
        if connection.is_framed() {
            return connection;
        }
        let mut state = FastOpenState::new(now);
        state.set(FastOpenState::ASKED);
        if without_cookie || peer.cookie.is_some() {
            let mss = peer.mss.map_or(u16::MAX, |mss| mss.max(MSS_MIN));
            state.room = connection.config.mss.min(mss) - OPTIONS_MAX;
        } else {
            state.set(FastOpenState::NO_COOKIE);
        }
        if !without_cookie {
            let option = peer.option();
            if option.is_experimental() {
                state.set(FastOpenState::EXPERIMENTAL);
            }
            state.option = Some(option);
        }
        connection.fast_open = Some(Box::new(state));
        connection
    }

    /// Announces that a writer has more data than the SYN holds and will write it once
    /// the connection is established. The SYN-ACK is then acknowledged with that data
    /// (Linux looks at `sk_write_pending`). For [`Connection::connect_fast`].
    pub fn set_writer_waiting(&mut self) {
        if let Some(state) = &mut self.fast_open {
            state.set(FastOpenState::WRITER_WAITS);
        }
    }

    /// Makes the acknowledgment of the SYN-ACK wait for data, if any will come.
    pub(in crate::tcp) fn await_writer(&mut self, now: Time) {
        if self.fast_open_take(FastOpenState::WRITER_WAITS) && self.send.una == self.send.nxt {
            self.pending.clear(Pending::ANY_ACKNOWLEDGMENT);
            self.receive.pingpong = true;
            let delay = self.config.delayed_ack.get();
            self.timers.set(Timer::Acknowledge, now, delay);
        }
    }

    fn fast_open_has(&self, flag: u16) -> bool {
        self.fast_open.as_ref().is_some_and(|state| state.has(flag))
    }

    fn fast_open_take(&mut self, flag: u16) -> bool {
        self.fast_open
            .as_mut()
            .is_some_and(|state| state.take(flag))
    }

    /// The facts that the owner should remember of the server. Returned once, when they
    /// are known; see [`FastOpenPeer::learn`].
    pub fn take_fast_open_outcome(&mut self) -> Option<FastOpenOutcome> {
        let mss = self.send.peer_mss;
        let state = self.fast_open.as_mut()?;
        if !state.take(FastOpenState::OUTCOME) {
            return None;
        }
        let form = if !state.has(FastOpenState::REFUSED) {
            FastOpenForm::Standard
        } else if !state.has(FastOpenState::EXPERIMENTAL) {
            FastOpenForm::Experimental
        } else {
            FastOpenForm::Neither
        };
        Some(FastOpenOutcome {
            cookie: state.option.take(),
            mss,
            syn_lost: state.has(FastOpenState::SYN_LOST),
            form,
        })
    }

    /// True, once, when the network between here and the peer may be dropping segments
    /// that use Fast Open (RFC 7413 §7.3). The owner then disables it for a time (Linux:
    /// an hour, doubled each time).
    pub fn take_fast_open_black_hole(&mut self) -> bool {
        self.fast_open_take(FastOpenState::BLACK_HOLE)
    }

    /// True while a connection opened by a SYN waits for the acknowledgment of its
    /// SYN-ACK. When it turns false, the owner calls
    /// [`Listener::fast_open_done`](crate::tcp::Listener::fast_open_done).
    pub fn is_fast_opening(&self) -> bool {
        self.state == State::SynReceived && self.is_opened_by_syn()
    }

    /// Returns once, when a connection opened by a SYN is no longer fast opening, whether
    /// it was reset. [`Listener::fast_open_done`](crate::tcp::Listener::fast_open_done)
    /// takes that value.
    pub fn take_fast_open_done(&mut self) -> Option<bool> {
        if self.is_fast_opening() {
            return None;
        }
        // Still there if the handshake was not completed.
        let reset = self.is_opened_by_syn() && self.error == Some(Errno::CONNRESET);
        let state = self.fast_open.as_mut()?;
        if state.has(FastOpenState::ASKED | FastOpenState::REPORTED) {
            return None;
        }
        state.set(FastOpenState::REPORTED);
        Some(reset)
    }

    /// True for a connection made by [`Connection::connect_fast`]: its outcome is to be
    /// learned.
    pub fn is_fast_open_client(&self) -> bool {
        self.fast_open_has(FastOpenState::ASKED)
    }

    /// True while written data would go with the SYN, and none has been written.
    pub fn awaits_syn_data(&self) -> bool {
        self.send.buffer.len() == 0 && self.syn_room() > 0
    }

    /// Whether data travelled with the SYN and was accepted (`TCPI_OPT_SYN_DATA`).
    pub(in crate::tcp) fn took_syn_data(&self) -> bool {
        self.fast_open_has(FastOpenState::TAKEN)
    }

    pub(in crate::tcp) fn fast_open_failure(&self) -> FastOpenFailure {
        if self.fast_open_has(FastOpenState::SYN_RETRANSMITTED) {
            FastOpenFailure::SynRetransmitted
        } else if self.fast_open_has(FastOpenState::NOT_TAKEN) {
            FastOpenFailure::DataNotAcknowledged
        } else if self.fast_open_has(FastOpenState::NO_COOKIE) {
            FastOpenFailure::CookieUnavailable
        } else {
            FastOpenFailure::None
        }
    }

    /// A SYN with a cookie opened the connection, and our SYN-ACK is not acknowledged. It
    /// may be used although it is in SYN-RECEIVED.
    pub(in crate::tcp) fn is_opened_by_syn(&self) -> bool {
        self.fast_open_has(FastOpenState::ANSWERING)
    }

    /// Bytes that a write may add to the SYN.
    pub(in crate::tcp) fn syn_room(&self) -> u32 {
        let unsent = self.state == State::SynSent && self.send.nxt == self.send.una;
        match &self.fast_open {
            Some(state) if unsent => u32::from(state.room).saturating_sub(self.send.buffer.len()),
            _ => 0,
        }
    }

    /// The option of the next SYN or SYN-ACK, and the bytes that go with it. Both go only
    /// with the first one, since a retransmission must get through.
    pub(in crate::tcp) fn syn_extras(&self) -> (Option<FastOpen>, u32) {
        let first = self.send.retries == 0 && !self.fast_open_has(FastOpenState::TOO_LARGE);
        let Some(state) = self.fast_open.as_ref().filter(|_| first) else {
            return (None, 0);
        };
        if self.state == State::SynSent {
            (state.option, self.send.buffer.len())
        } else {
            let answers = state.has(FastOpenState::ANSWERING);
            (state.option.filter(|_| answers), 0)
        }
    }

    /// Sends the SYN without data: the path does not carry it with the data.
    pub(in crate::tcp) fn send_plain_syn(&mut self) {
        if let Some(state) = &mut self.fast_open
            && state.has(FastOpenState::DATA)
            && !state.has(FastOpenState::TOO_LARGE)
        {
            state.set(FastOpenState::TOO_LARGE);
            self.pending.add(Pending::SYNCHRONIZE);
        }
    }

    /// Records that a SYN or SYN-ACK has left with `bytes` of data.
    pub(in crate::tcp) fn syn_sent(&mut self, bytes: u32) {
        if let Some(state) = &mut self.fast_open {
            if bytes > 0 {
                state.set(FastOpenState::DATA);
            }
            if state.has(FastOpenState::ANSWERING) {
                state.option = None;
            }
        }
    }

    /// Turns an established connection into one opened by a SYN: its SYN-ACK must be
    /// sent.
    pub(in crate::tcp) fn open_by_syn(
        &mut self,
        remote_isn: u32,
        answer: &FastOpenAnswer,
        now: Time,
    ) {
        let mut state = FastOpenState::new(now);
        state.set(FastOpenState::ANSWERING | FastOpenState::FRESH);
        state.option = answer.cookie;
        state.remote_isn = remote_isn;
        self.fast_open = Some(Box::new(state));
        self.state = State::SynReceived;
        self.pending.add(Pending::SYNCHRONIZE);
    }

    /// Processes the SYN that opened this connection: the first is accepted, later ones
    /// are copies. Returns false for any other segment.
    #[cold]
    pub(in crate::tcp) fn input_opening_syn(&mut self, segment: &Segment<'_>, now: Time) -> bool {
        let header = &segment.header;
        let Some(state) = &mut self.fast_open else {
            return false;
        };
        if !state.has(FastOpenState::ANSWERING)
            || !header.flags.contains(Flags::SYN)
            || header.flags.intersects(Flags::ACK | Flags::RST)
            || header.sequence != state.remote_isn
        {
            return false;
        }
        if !state.take(FastOpenState::FRESH) {
            if self.may_challenge(now) {
                self.pending.add(Pending::SYNCHRONIZE);
            }
        } else if !segment.payload.is_empty() {
            state.set(FastOpenState::TAKEN);
            self.take_data(header.sequence.wrapping_add(1), segment, now);
        }
        true
    }

    /// Processes the acknowledgment of the SYN-ACK of a connection opened by a SYN.
    pub(in crate::tcp) fn complete_fast_open(&mut self, now: Time) {
        let Some(state) = &mut self.fast_open else {
            return;
        };
        state.take(FastOpenState::ANSWERING | FastOpenState::FRESH);
        let round_trip = now.saturating_sub(state.since);
        self.pending.clear(Pending::SYNCHRONIZE);
        self.state = if self.send.closed {
            State::FinWait1
        } else {
            State::Established
        };
        if self.send.retries == 0 {
            self.sample_handshake(round_trip, now);
        }
        self.send.retries = 0;
        self.send.stalled_since = None;
        self.round_trip.backoff = 0;
        if self.send.una == self.send.nxt {
            self.timers.stop(Timer::Retransmit);
        } else {
            self.restart_timer(now);
        }
    }

    /// Whether the timestamp that a SYN-ACK echoes belongs to none of our SYNs. The
    /// segment is then an old duplicate, whatever it acknowledges (as Linux).
    pub(in crate::tcp) fn is_stale_echo(&self, header: &Header, now: Time) -> bool {
        let Some(theirs) = header.options.timestamps.filter(|_| self.timestamps) else {
            return false;
        };
        let first = self.send.stalled_since.unwrap_or(self.send.last_sent);
        let [first, last] = [first, now].map(|time| timestamp(time, self.timestamp_offset));
        theirs.echo != 0 && (before(theirs.echo, first) || before(last, theirs.echo))
    }

    /// Takes the Fast Open outcome from the SYN-ACK.
    pub(in crate::tcp) fn take_fast_open_option(&mut self, header: &Header) {
        let all = header.acknowledgment == self.send.nxt;
        let again = self.send.retries > 0 || self.fast_open_has(FastOpenState::TOO_LARGE);
        let Some(state) = &mut self.fast_open else {
            return;
        };
        // Our SYN had no option, so no cookie was requested: one that arrives is ignored
        // (as Linux).
        let asked = state.option.is_some();
        let given = header
            .options
            .fast_open()
            .filter(|option| asked && !option.is_request());
        let sent = state.has(FastOpenState::DATA);
        state.option = given;
        state.set(FastOpenState::OUTCOME);
        if !asked {
            // Nothing to learn about cookies.
        } else if again {
            if given.is_none() && sent && !all {
                state.set(FastOpenState::SYN_LOST);
            }
        } else if given.is_none() && !sent {
            state.set(FastOpenState::REFUSED);
        }
        match (sent, all) {
            (true, true) => state.set(FastOpenState::TAKEN),
            (true, false) if again => state.set(FastOpenState::SYN_RETRANSMITTED),
            (true, false) => state.set(FastOpenState::NOT_TAKEN),
            _ => {}
        }
    }

    /// Removes from the buffer the data that an answer to our SYN acknowledges.
    pub(in crate::tcp) fn acknowledge_syn(&mut self, acknowledgment: u32) {
        let bytes = acknowledgment.wrapping_sub(self.send.una.wrapping_add(1));
        let bytes = self.send.buffer.consume(bytes);
        let total = &mut self.counters.bytes_acknowledged;
        *total = total.wrapping_add(bytes.into());
        self.send.una = acknowledgment;
        self.send.push_marks.acknowledge(acknowledgment);
    }

    /// Retransmits SYN data that was not accepted as soon as the connection is
    /// established: its loss is not a sign of congestion (as Linux).
    pub(in crate::tcp) fn resend_syn_data(&mut self, now: Time) {
        let (una, nxt) = (self.send.una, self.send.nxt);
        if self.error_queue.is_some() {
            self.timestamp_acknowledged(now);
        }
        if una != nxt {
            let micros = microseconds(now);
            self.recovery.rack.restart(una, micros);
            self.recovery.board.sent(nxt, micros, true);
            self.simple_retransmit(now);
        }
    }

    /// Checks after a timeout whether Fast Open may be its cause.
    pub(in crate::tcp) fn suspect_fast_open(&mut self, given_up: bool) {
        let retries = self.send.retries;
        if let Some(state) = &mut self.fast_open
            && state.has(FastOpenState::ASKED)
            && (retries == BLACK_HOLE_RETRIES || retries < BLACK_HOLE_RETRIES && given_up)
        {
            state.set(FastOpenState::BLACK_HOLE);
        }
    }

    /// Whether an acknowledgment covers our SYN and nothing beyond the data sent. Before
    /// the SYN has left, no acknowledgment can.
    pub(in crate::tcp) fn acknowledges_syn(&self, header: &Header) -> bool {
        let acknowledgment = header.acknowledgment;
        let una = self.send.una;
        let below = if self.is_opened_by_syn() {
            una.wrapping_sub(1)
        } else {
            una
        };
        before(below, acknowledgment) && !before(self.send.nxt, acknowledgment)
    }
}
