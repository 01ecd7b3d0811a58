//! How a connection processes a segment (RFC 9293 §3.10.7).
//!
//! Nothing is sent from here: answers are marked as pending, so that a batch of segments
//! is answered once.

use core::time::Duration;

use super::connection::{Connection, MSS_DEFAULT, Pending, QUICK_ACKS, count};
use super::send::milliseconds;
use super::time_wait::TIME_WAIT;
use super::timers::Timer;
use super::{Errno, Segment, State, Time};
use crate::tcp::assembler::Inserted;
use crate::tcp::memory::Limits;
use tidewall_wire::tcp::{Flags, Header, before};

/// Minimum time between two answers to unacceptable segments that carry nothing, and
/// between two challenge ACKs (Linux `tcp_invalid_ratelimit`). It ends ACK storms between
/// two ends that disagree, and limits what a blind attacker can make us send (RFC 5961
/// §7, §10).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);

/// How long TS.Recent is valid (RFC 7323 §5.5): 24 days, in seconds.
const TIMESTAMP_LIFE: u32 = 24 * 24 * 3600;

impl Connection {
    /// Processes a segment of this connection's flow. Answers are marked for
    /// [`Connection::output`]; several segments may be passed before it is called.
    pub fn input(&mut self, segment: &Segment<'_>, now: Time) {
        count(&mut self.counters.segments_received);
        match self.state {
            State::Closed => {}
            State::SynSent => self.input_syn_sent(segment, now),
            State::SynReceived => {
                if !self.input_opening_syn(segment, now) {
                    self.input_synchronized(segment, now);
                }
            }
            _ if self.is_predicted(&segment.header) => self.input_predicted(segment, now),
            _ => self.input_synchronized(segment, now),
        }
    }

    /// As [`Connection::input`], for a segment that arrived at `arrived` and has waited.
    /// Measurements end at that time, or at the last sending if that was later.
    pub fn input_after_waiting(&mut self, segment: &Segment<'_>, arrived: Time) {
        self.input(segment, arrived.max(self.send.last_sent));
    }

    /// Whether a segment is the one expected in an established connection (Van Jacobson's
    /// header prediction). It is next in order and within the window. It has only ACK and
    /// PSH, and timestamps as agreed and not older.
    #[inline]
    fn is_predicted(&self, header: &Header) -> bool {
        let usual = Flags(header.flags.0 & !Flags::PSH.0) == Flags::ACK;
        let timestamps = match header.options.timestamps {
            Some(timestamps) => {
                self.timestamps && !before(timestamps.value, self.receive.ts_recent)
            }
            None => !self.timestamps,
        };
        usual
            && self.state == State::Established
            && header.sequence == self.next_expected()
            && timestamps
            && self.receive.fin.is_none()
            && !before(header.acknowledgment, self.send.una)
            && !before(self.send.nxt, header.acknowledgment)
    }

    #[inline]
    fn input_predicted(&mut self, segment: &Segment<'_>, now: Time) {
        let header = &segment.header;
        self.note_heard(now);
        // While an acknowledgment is due, its echo remains that of the first segment it
        // covers (RFC 7323 §4.3).
        if let Some(timestamps) = header.options.timestamps
            && header.sequence == self.receive.last_ack_sent
        {
            self.receive.store_ts_recent(timestamps.value, now);
        }
        self.acknowledge(header, segment.payload.is_empty(), now);
        if !segment.payload.is_empty() {
            if self.ecn.is_agreed() {
                self.receive_codepoint(segment.traffic_class);
            }
            self.take_payload(header.sequence, segment.payload, now);
        }
    }

    /// Records that the peer is alive.
    #[inline]
    fn note_heard(&mut self, now: Time) {
        self.receive.last_heard = now;
        self.keepalive_probes = 0;
    }

    /// Requests an answer to an unacceptable segment, unless one was sent a short while
    /// ago.
    pub(super) fn challenge(&mut self, now: Time) {
        count(&mut self.counters.segments_refused);
        if self.may_challenge(now) {
            self.pending.add(Pending::ACKNOWLEDGE);
        }
    }

    /// Whether no such answer was sent a short while ago. If so, the caller must send
    /// one.
    pub(super) fn may_challenge(&mut self, now: Time) -> bool {
        let last = self.receive.last_challenge;
        let may = last.is_none_or(|last| now.saturating_sub(last) >= CHALLENGE_INTERVAL);
        if may {
            self.receive.last_challenge = Some(now);
        }
        may
    }

    /// RFC 9293 §3.10.7.3.
    fn input_syn_sent(&mut self, segment: &Segment<'_>, now: Time) {
        let header = &segment.header;
        let flags = header.flags;
        let acknowledges = flags.contains(Flags::ACK);
        let acceptable = acknowledges && self.acknowledges_syn(header);
        if acknowledges && (!acceptable || self.is_stale_echo(header, now)) {
            if !flags.contains(Flags::RST) {
                self.send.reset_sequence = header.acknowledgment;
                self.pending.add(Pending::RESET_ANSWER);
            }
            return;
        }
        if flags.contains(Flags::RST) {
            if acceptable {
                self.fail(Errno::CONNREFUSED);
            }
            return;
        }
        if !flags.contains(Flags::SYN) || self.refuses_without_acp(header, acknowledges) {
            return;
        }
        let options = &header.options;
        let scale = options.window_scale.filter(|_| self.scaling);
        let timestamps = options.timestamps.filter(|_| self.timestamps);
        let announced = u32::from(self.config.syn_window());
        self.sack &= options.sack_permitted;
        self.ecn_answer(flags, acceptable);
        self.synchronized(
            header.sequence,
            options.maximum_segment_size.unwrap_or(MSS_DEFAULT),
            scale,
            timestamps.map(|timestamps| timestamps.value),
            now,
        );
        self.receive.rcv_adv = self.next_expected().wrapping_add(announced);
        let lost = self.send.retries > 0;
        if !acceptable {
            // Simultaneous open: both SYNs have crossed.
            self.state = State::SynReceived;
            self.send.retries = 0;
            self.pending.add(Pending::SYNCHRONIZE);
            return;
        }
        self.take_fast_open_option(header);
        self.acknowledge_syn(header.acknowledgment);
        if !lost {
            self.sample_handshake(now.saturating_sub(self.send.last_sent), now);
        }
        self.pending.clear(Pending::SYNCHRONIZE);
        self.pending.add(Pending::ACKNOWLEDGE_SOON);
        self.take_window(header.sequence, self.send.una, header.window.into());
        self.establish(now, lost);
        self.resend_syn_data(now);
        self.await_writer(now);
        if !segment.payload.is_empty() || flags.contains(Flags::FIN) {
            self.take_data(header.sequence.wrapping_add(1), segment, now);
        }
    }

    /// All states but CLOSED and SYN-SENT (RFC 9293 §3.10.7.4).
    fn input_synchronized(&mut self, segment: &Segment<'_>, now: Time) {
        let header = &segment.header;
        let flags = header.flags;
        let reset = flags.contains(Flags::RST);
        let mut sequence = header.sequence;
        let mut syn = flags.contains(Flags::SYN);
        if self.state == State::SynReceived
            && syn
            && flags.contains(Flags::ACK)
            && !reset
            && sequence.wrapping_add(1) == self.next_expected()
            && self.acknowledges_syn(header)
        {
            // The peer's SYN-ACK of a simultaneous open: its SYN is known, and
            // the ACK completes the handshake (RFC 9293 §3.5, figure 8).
            sequence = sequence.wrapping_add(1);
            syn = false;
            // That SYN has come twice (as Linux).
            self.acknowledge_duplicate(header.sequence, sequence);
        }
        if !self.passes_paws(segment, now) {
            return;
        }
        let length =
            segment.payload.len() as u32 + u32::from(syn) + u32::from(flags.contains(Flags::FIN));
        if !self.is_acceptable(sequence, length) {
            if reset {
                count(&mut self.counters.segments_refused);
            } else if segment.payload.is_empty()
                || self.timestamps && header.options.timestamps.is_none()
            {
                // The agreed timestamps are missing: a blind attacker's segment is as
                // likely as a copy.
                self.challenge(now);
            } else {
                count(&mut self.counters.segments_refused);
                self.acknowledge_duplicate(sequence, sequence.wrapping_add(length));
            }
            return;
        }
        if reset {
            // RFC 5961 §3.2: only the exact sequence number resets; Linux also accepts
            // the one after the furthest data we hold.
            if sequence == self.next_expected()
                || self.receive.assembler.furthest() == Some(sequence)
            {
                self.reset_by_peer();
                self.end_busy(now);
            } else {
                self.challenge(now);
            }
            return;
        }
        if syn {
            // RFC 5961 §4.2.
            self.challenge(now);
            return;
        }
        if !flags.contains(Flags::ACK) {
            return;
        }
        if self.state == State::SynReceived {
            if !self.acknowledges_syn(header) {
                self.send.reset_sequence = header.acknowledgment;
                self.pending.add(Pending::RESET_ANSWER);
                return;
            }
            if self.is_opened_by_syn() {
                self.complete_fast_open(now);
            } else {
                self.complete_simultaneous_open(header, now);
            }
        }
        self.note_heard(now);
        if let Some(timestamps) = header.options.timestamps
            && self.timestamps
            && !before(self.receive.last_ack_sent, sequence)
            && !self.is_old_timestamp(timestamps.value, now)
        {
            self.receive.store_ts_recent(timestamps.value, now);
        }
        let plain = segment.payload.is_empty() && !flags.contains(Flags::FIN);
        let una = self.send.una;
        if !self.acknowledge(header, plain, now) {
            return;
        }
        if self.ecn.is_agreed() && flags.intersects(Flags::ECE | Flags::CWR) && !syn {
            self.receive_echo(flags, una, plain);
        }
        self.after_acknowledgment(now);
        if !plain {
            self.take_data(sequence, segment, now);
        }
    }

    fn complete_simultaneous_open(&mut self, header: &Header, now: Time) {
        let lost = self.send.retries > 0;
        self.acknowledge_syn(header.acknowledgment);
        self.pending.clear(Pending::SYNCHRONIZE);
        let window = self.scaled_window(header);
        self.take_window(header.sequence, header.acknowledgment, window);
        self.establish(now, lost);
        self.resend_syn_data(now);
        if self.send.closed {
            // The application closed before the handshake was complete.
            self.state = State::FinWait1;
        }
    }

    /// Whether a timestamp lies before TS.Recent, which is valid for only 24 days (RFC
    /// 7323 §5.5).
    fn is_old_timestamp(&self, value: u32, now: Time) -> bool {
        let age = (now.as_secs() as u32).wrapping_sub(self.receive.ts_recent_stamp);
        before(value, self.receive.ts_recent) && age <= TIMESTAMP_LIFE
    }

    /// Protection against wrapped sequence numbers (RFC 7323 §5.3).
    fn passes_paws(&mut self, segment: &Segment<'_>, now: Time) -> bool {
        let header = &segment.header;
        // RFC 7323 §3.2 requires a segment without timestamps to be dropped once they are
        // agreed on. It is accepted here, as by Linux: middleboxes remove options from
        // segments, and a connection that hears nothing any more helps no user.
        let Some(timestamps) = header.options.timestamps else {
            return true;
        };
        if !self.timestamps || header.flags.contains(Flags::RST) {
            return true;
        }
        if !self.is_old_timestamp(timestamps.value, now) {
            return true;
        }
        if segment.payload.is_empty() {
            self.challenge(now);
        } else {
            count(&mut self.counters.segments_refused);
            let end = header.sequence.wrapping_add(segment.sequence_len());
            self.acknowledge_duplicate(header.sequence, end);
        }
        false
    }

    /// Sequence number acceptability (RFC 9293 §3.4), as lenient as Linux
    /// (`tcp_sequence`). A segment is acceptable if it ends at or after our last
    /// acknowledgment, so that acknowledgments overtaken by data still count. It must
    /// begin no later than the end of the window, so that a closed window keeps out only
    /// data.
    fn is_acceptable(&self, sequence: u32, length: u32) -> bool {
        let end = sequence.wrapping_add(length);
        !before(end, self.receive.last_ack_sent) && !before(self.receive.rcv_adv, sequence)
    }

    /// Changes the state once our FIN is acknowledged.
    fn after_acknowledgment(&mut self, now: Time) {
        if !self.fin_sent() || self.send.una != self.send.nxt {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.orphan {
                    self.timers
                        .set(Timer::TimeWait, now, self.config.fin_timeout.get());
                }
            }
            State::Closing => self.enter_time_wait(now),
            State::LastAck => self.finish(),
            _ => {}
        }
    }

    pub(super) fn enter_time_wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.timers.stop(Timer::Retransmit);
        self.timers.stop(Timer::Keepalive);
        self.timers.set(Timer::TimeWait, now, TIME_WAIT);
        self.send.buffer.clear();
    }

    /// Takes payload and FIN of an acceptable segment; cuts off the part outside the
    /// window.
    pub(super) fn take_data(&mut self, sequence: u32, segment: &Segment<'_>, now: Time) {
        if !matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        ) && !self.is_fast_opening()
        {
            // After the peer's FIN there is no more data: anything beyond is ignored (RFC
            // 9293 §3.10.7.4, seventh). A repeated segment, above all the FIN, must be
            // acknowledged again.
            let end = sequence.wrapping_add(segment.sequence_len());
            if before(sequence, self.next_expected()) {
                self.acknowledge_duplicate(sequence, end);
            }
            let fin = segment.header.flags.contains(Flags::FIN) && end == self.next_expected();
            if self.state == State::TimeWait && fin {
                self.timers.set(Timer::TimeWait, now, TIME_WAIT);
            }
            return;
        }
        let mut payload = segment.payload;
        let mut end = sequence.wrapping_add(payload.len() as u32);
        let mut fin = segment.header.flags.contains(Flags::FIN);
        let limit = self.receive.fin.unwrap_or(self.receive.rcv_adv);
        if before(limit, end) {
            // A frame is never accepted in part, or the part would be acknowledged.
            let length = if before(sequence, limit) && !self.is_framed() {
                limit.wrapping_sub(sequence) as usize
            } else {
                0
            };
            payload = payload.get(..length).unwrap_or_default();
            end = sequence.wrapping_add(length as u32);
            fin = false;
            self.pending.add(Pending::ACKNOWLEDGE);
        }
        let is_new = before(self.receive.assembler.next(), end) && !payload.is_empty();
        if is_new && (self.orphan || self.receive.closed && self.state != State::Established) {
            // Nothing will read it (RFC 2525 §2.17, as Linux). The RST has the number
            // that the peer expects, even when our FIN was lost: the peer would challenge
            // any other (RFC 5961 §3.2).
            count(&mut self.counters.segments_refused);
            self.fail(Errno::CONNRESET);
            self.send.reset_sequence = segment.header.acknowledgment;
            self.pending.add(Pending::RESET_ANSWER);
            return;
        }
        if fin
            && self.receive.fin.is_none()
            && !before(end, self.receive.assembler.next())
            && self
                .receive
                .assembler
                .furthest()
                .is_none_or(|furthest| !before(end, furthest))
        {
            self.receive.fin = Some(end);
        }
        if !payload.is_empty() {
            // A copy of data in order is ignored (as Linux).
            if self.ecn.is_agreed() && before(self.receive.assembler.next(), end) {
                self.receive_codepoint(segment.traffic_class);
            }
            self.take_payload(sequence, payload, now);
            if self.state == State::Closed {
                return;
            }
        }
        if self.receive.fin == Some(self.receive.assembler.next()) && !self.receive.finished {
            self.receive.assembler.note_fin(None);
            self.take_fin(now);
        } else if fin {
            self.receive.assembler.note_fin(self.receive.fin);
            self.pending.add(Pending::ACKNOWLEDGE);
        }
    }

    /// Inserts payload within the window at its position, and decides how it is
    /// acknowledged.
    #[inline]
    fn take_payload(&mut self, sequence: u32, mut payload: &[u8], now: Time) {
        let room = self.receive.rcv_adv.wrapping_sub(sequence) as usize;
        if payload.len() > room {
            let taken = if self.is_framed() { 0 } else { room };
            payload = payload.get(..taken).unwrap_or_default();
            self.pending.add(Pending::ACKNOWLEDGE);
        }
        let length = payload.len();
        let filled = !self.receive.assembler.is_contiguous();
        let limits = Limits {
            pressure: &self.pressure,
            buffer: &self.receive.buffer_limit,
            mss: &self.receive.mss,
        };
        match self.receive.assembler.insert(sequence, payload, &limits) {
            Inserted::InOrder(bytes) => {
                let received = self.counters.bytes_received;
                self.counters.bytes_received = received.wrapping_add(bytes.into());
                self.receive.last_data = milliseconds(now);
                if self.error_queue.is_some() | self.acp.is_some() {
                    self.look_at_arrival(now);
                    if self.state == State::Closed {
                        return;
                    }
                }
                let length = length.min(self.config.mss.into()) as u16;
                if length > self.receive.mss {
                    self.receive.mss = length;
                }
                let expected = self.receive.assembler.next();
                let unacknowledged = expected.wrapping_sub(self.receive.last_ack_sent);
                if filled || unacknowledged > u32::from(self.receive.mss) {
                    // A hole was filled (RFC 5681 §4.2), or every second full
                    // segment (RFC 9293 §3.8.6.3).
                    self.pending.add(Pending::ACKNOWLEDGE);
                } else if self.quick_ack() {
                    self.pending.add(Pending::ACKNOWLEDGE_SOON);
                } else if !self.timers.is_running(Timer::Acknowledge) {
                    let delay = self.config.delayed_ack.get();
                    self.timers.set(Timer::Acknowledge, now, delay);
                }
            }
            Inserted::Beyond | Inserted::Refused => {
                count(&mut self.counters.out_of_order);
                self.acknowledge_out_of_order();
            }
            Inserted::NoMemory => {
                count(&mut self.counters.segments_refused);
                self.pending.add(Pending::ACKNOWLEDGE);
            }
            // Our acknowledgment was lost, or the network has made a copy.
            Inserted::Duplicate => {
                self.pending.add(Pending::ACKNOWLEDGE);
                if !before(
                    self.receive.assembler.next(),
                    sequence.wrapping_add(length as u32),
                ) {
                    self.enter_quickack(QUICK_ACKS);
                }
            }
        }
    }

    /// Handles bytes that have arrived in order, other than in an ordinary stream.
    #[cold]
    fn look_at_arrival(&mut self, now: Time) {
        self.note_arrival(now);
        self.scan_frames();
    }

    /// Processes the peer's FIN, which is in order.
    fn take_fin(&mut self, now: Time) {
        if self.ends_within_frame() {
            self.end_for_broken_frame();
            return;
        }
        self.receive.finished = true;
        if self.state == State::Established {
            self.pending.add(Pending::ACKNOWLEDGE_SOON);
            self.state = State::CloseWait;
            return;
        }
        self.pending.add(Pending::ACKNOWLEDGE);
        match self.state {
            State::FinWait1 => {
                // Our FIN is not acknowledged, or this segment would have changed the
                // state.
                self.state = State::Closing;
                self.timers.stop(Timer::TimeWait);
            }
            State::FinWait2 => self.enter_time_wait(now),
            _ => {}
        }
    }
}
