//! When data may be sent, and how much (RFC 9293 §3.7, §3.8; RFC 5681; RFC 6675).

use core::time::Duration;

use super::connection::{Connection, Pending};
use super::half_open;
use super::plan::Plan;
use super::recovery::RtxTimer;
use super::tail_probe::TailProbe;
use super::timers::Timer;
use super::{Outgoing, State, Time, microseconds, timestamp};
use tidewall_wire::tcp::{Flags, Header, Options, SackBlocks, Timestamps, before};

/// How long cork and silly-window avoidance may hold data back (Linux's limit of
/// `TCP_CORK`; RFC 9293 §3.8.6.2.1 requires 0.1 to 1 second).
const HOLD: Duration = Duration::from_millis(200);

/// A time in milliseconds, only for comparisons within a short while.
#[inline]
pub(super) fn milliseconds(time: Time) -> u32 {
    time.as_millis() as u32
}

impl Connection {
    pub(super) fn send_all(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        if self.pending.has(Pending::RESET | Pending::RESET_ANSWER) && !self.send_reset(now, send) {
            return;
        }
        let age = microseconds(now).wrapping_sub(self.send.cwnd_stamp);
        // No retransmission timeout is shorter than its slack: most of the time that test
        // suffices. Two cases are judged the next time: a window validated without
        // anything sent, and an idle time of exactly 71 minutes, at which microseconds
        // wrap.
        if self.send.una == self.send.nxt
            && self.unsent() > 0
            && age >= self.round_trip.rto_margin
            && self.config.slow_start_after_idle
        {
            let idle = now.saturating_sub(self.send.last_sent);
            let timeout = self.retransmission_micros();
            let micros = idle.as_secs().saturating_mul(1_000_000) + u64::from(idle.subsec_micros());
            if micros > timeout {
                self.restart_after_idle(idle, now);
            } else if !self.send.is_cwnd_limited && u64::from(age) >= timeout {
                self.validate_window(now);
            }
        }
        if self.config.paces() {
            self.pace(0, now);
        }
        let (nxt, probing) = (self.send.nxt, self.recovery.probe == TailProbe::Due);
        if self.path.limited && !self.send_path_probe(now, send) {
            return;
        }
        let sent_all = loop {
            match self.plan() {
                Some(plan) if self.send_plan(plan, now, send) => {}
                Some(_) => break false,
                None => break true,
            }
        };
        self.update_chrono(now);
        if self.send.nxt != nxt && !probing {
            self.start_timer_after_sending(self.send.una == nxt, now);
        }
        if !sent_all {
            return;
        }
        if self.recovery.probe == TailProbe::Due {
            // The window has closed meanwhile.
            self.recovery.probe = TailProbe::None;
        }
        self.pending.clear(Pending::OVERRIDE);
        if self.needs_persist() {
            let wait = if !self.is_window_closed() {
                // Held back by Nagle, cork or silly-window avoidance.
                HOLD
            } else {
                self.retransmission_timeout()
            };
            self.recovery.rtx_timer = RtxTimer::Retransmission;
            self.timers.set(Timer::Retransmit, now, wait);
        }
        if self.pending.has(Pending::PROBE) && !self.send_probe(now, send) {
            return;
        }
        self.send_acknowledgments(now, send);
    }

    /// A sequence number at which the peer accepts a segment without data. It is SND.NXT,
    /// unless the peer has taken back window that we had used. The peer then refuses
    /// segments beyond the edge, acknowledgments included, and both sides would send
    /// again for ever. Linux has `tcp_acceptable_seq`; a Linux receiver out of memory
    /// closes its window in this way.
    fn acceptable_sequence(&self) -> u32 {
        let edge = self.send.window_end();
        let beyond = self.send.nxt.wrapping_sub(edge);
        // The window is known only to the precision of its scale.
        if !before(edge, self.send.nxt) || self.scaling && beyond < 1 << self.send.wscale {
            self.send.nxt
        } else {
            edge
        }
    }

    fn send_acknowledgments(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        if matches!(self.state, State::Closed | State::SynSent) {
            self.pending.clear(Pending::ANY_ACKNOWLEDGMENT);
            self.receive.duplicate_acks = 0;
            return;
        }
        while self.pending.has(Pending::ANY_ACKNOWLEDGMENT) || self.receive.duplicate_acks > 0 {
            // The window must be the same in duplicates, or the peer does not recognize
            // them as duplicates (RFC 5681 §2).
            let duplicates = self.receive.duplicate_acks;
            let mut header =
                self.header(self.acceptable_sequence(), Flags::ACK, now, duplicates > 0);
            if self.is_framed() {
                // Only here: there is no room for SACK blocks beside a frame.
                header.options.sack = self.sack_blocks();
            }
            if !self.give(header, (0, 0), self.send.mss.into(), send) {
                return;
            }
            self.acknowledgment_sent(&header);
            self.receive.duplicate_acks = duplicates.saturating_sub(1);
        }
    }

    /// Sends a probe of the path if one is due; returns false when there was no room.
    #[cold]
    fn send_path_probe(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        let Some(length) = self.path_probe_due(now) else {
            return true;
        };
        let start = self.send.nxt;
        let sent = self.send_plan(Plan::PathProbe { length }, now, send);
        if sent {
            self.path_probe_sent(start, length);
        }
        sent
    }

    /// Sends a planned segment; returns false when there was no room.
    #[inline(always)]
    fn send_plan(
        &mut self,
        plan: Plan,
        now: Time,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
    ) -> bool {
        let (sequence, length) = match plan {
            Plan::Synchronize => return self.send_synchronize(now, send),
            Plan::Retransmit { sequence, length } => (sequence, length),
            Plan::New { length } | Plan::PathProbe { length } => (self.send.nxt, length),
            Plan::Fin => (self.send.nxt, 0),
            Plan::TooLong => {
                self.end_for_frame_too_long();
                return self.send_reset(now, send);
            }
        };
        let end = sequence.wrapping_add(length);
        let is_retransmission = matches!(plan, Plan::Retransmit { .. });
        let mut flags = Flags::ACK;
        let pushes = self.pushes(sequence, length);
        if pushes {
            flags |= Flags::PSH;
        }
        let fin = self.send.closed && end == self.send.write_seq;
        if fin {
            flags = Flags(flags.0 | Flags::FIN.0);
        }
        let cwr = self.ecn.owes_cwr() && length > 0 && !is_retransmission;
        if cwr {
            flags |= Flags::CWR;
        }
        let header = self.header(sequence, flags, now, false);
        let held = self.send.write_seq.wrapping_sub(self.send.buffer.len());
        let size = match plan {
            Plan::PathProbe { length } => length,
            _ => self.payload_max(),
        };
        let payload = (sequence.wrapping_sub(held), length);
        let Some(left) = self.give_burst(header, payload, size, send) else {
            if length > size {
                self.send.offered = end;
            }
            return false;
        };
        if cwr {
            self.ecn.cwr_sent();
        }
        if length > 0 && self.answers_data(now) {
            // Data follows data: acknowledgments can travel with it.
            self.receive.pingpong = true;
        }
        self.acknowledgment_sent(&header);
        self.send.last_sent = now;
        if left < length {
            // The device has no room for the rest, which includes PSH and FIN.
            self.note_sent(left, sequence.wrapping_add(left), now);
            return false;
        }
        let end = end.wrapping_add(fin.into());
        if let Plan::Retransmit { .. } = plan {
            self.note_retransmission(sequence, end, now);
        } else {
            if pushes {
                self.send.push_marks.forced_push = end.wrapping_add(self.send.max_window / 2);
            }
            self.note_sent(length, end, now);
        }
        true
    }

    /// Whether a segment carries PSH: the application has pushed data in it, or half of
    /// the largest window has left without PSH (Linux `forced_push`). A burst does, so
    /// that a receiver's GRO delivers it with the last segment, as Linux.
    #[inline]
    fn pushes(&self, start: u32, length: u32) -> bool {
        self.send.push_marks.pushes(start, length) || length > self.send.mss.into()
    }

    /// True when the peer's data arrived so recently that its acknowledgment could have
    /// waited for the data now sent.
    #[inline]
    fn answers_data(&self, now: Time) -> bool {
        let age = milliseconds(now).wrapping_sub(self.receive.last_data);
        self.counters.bytes_received > 0 && age < self.config.delayed_ack.0
    }

    #[cold]
    fn send_synchronize(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        let answers = self.state == State::SynReceived;
        let mut flags = Flags::SYN;
        if !answers {
            flags |= self.ecn_request();
        } else if self.ecn.is_agreed() {
            flags |= Flags::ACK | Flags::ECE;
        } else {
            flags |= Flags::ACK;
        }
        let opens = self.is_fast_opening();
        let isn = self.send.una.wrapping_sub(opens.into());
        let (fast_open, length) = self.syn_extras();
        let header = Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            sequence: isn,
            acknowledgment: if answers { self.next_expected() } else { 0 },
            flags,
            window: self.config.syn_window(),
            urgent: 0,
            options: Options {
                maximum_segment_size: Some(self.config.mss.min(self.path.limit())),
                window_scale: self.scaling.then_some(self.receive.wscale),
                sack_permitted: self.sack,
                timestamps: self.timestamps.then(|| Timestamps {
                    value: timestamp(now, self.timestamp_offset),
                    echo: self.receive.ts_recent,
                }),
                ..Options::default()
                    .with_fast_open(fast_open)
                    .with_acp(self.acp_offer())
            },
        };
        if !self.give(header, (0, length), self.send.mss.into(), send) {
            return false;
        }
        self.pending
            .clear(Pending::SYNCHRONIZE | Pending::ANY_ACKNOWLEDGMENT);
        self.syn_sent(length);
        if self.error_queue.is_some() {
            self.timestamp_sent(isn.wrapping_add(1 + length), now);
        }
        if opens {
            self.acknowledgment_sent(&header);
            // Data in the SYN has used part of the window: it is given back.
            let edge = header.acknowledgment.wrapping_add(header.window.into());
            if before(self.receive.rcv_adv, edge) {
                self.receive.rcv_adv = edge;
            }
        } else if self.send.nxt == isn {
            self.send.nxt = isn.wrapping_add(1 + length);
        }
        self.send.last_sent = now;
        let timeout = if opens {
            // The answers of a listener leave at these times.
            half_open::timeout(self.send.retries)
        } else {
            self.retransmission_timeout()
        };
        self.timers.set(Timer::Retransmit, now, timeout);
        true
    }

    #[cold]
    fn send_reset(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        if self.state == State::Closed {
            self.end_busy(now);
        }
        if self.pending.has(Pending::RESET_ANSWER) {
            let header = Header {
                source_port: self.flow.local.port(),
                destination_port: self.flow.remote.port(),
                sequence: self.send.reset_sequence,
                flags: Flags::RST,
                ..Header::default()
            };
            if !self.give(header, (0, 0), self.send.mss.into(), send) {
                return false;
            }
            self.pending.clear(Pending::RESET_ANSWER);
        }
        if self.pending.has(Pending::RESET) {
            let header = self.header(self.send.nxt, Flags::RST | Flags::ACK, now, false);
            if !self.give(header, (0, 0), self.send.mss.into(), send) {
                return false;
            }
            self.pending.clear(Pending::RESET);
        }
        true
    }

    /// Sends a segment without payload whose sequence number is old: every receiver
    /// answers it with the number it expects and its window (as Linux). Receivers ignore
    /// the rest of such a segment, so it does not count as an acknowledgment.
    #[cold]
    fn send_probe(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        let header = self.header(self.send.una.wrapping_sub(1), Flags::ACK, now, true);
        if !self.give(header, (0, 0), self.send.mss.into(), send) {
            return false;
        }
        self.pending.clear(Pending::PROBE);
        true
    }

    /// The header of any segment except a SYN. `same_window` keeps the right edge where
    /// it is.
    #[inline]
    fn header(&mut self, sequence: u32, flags: Flags, now: Time, same_window: bool) -> Header {
        Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            sequence,
            acknowledgment: self.next_expected(),
            flags: self.ecn.echo(flags),
            window: self.announce_window(same_window),
            urgent: 0,
            options: self.options(timestamp(now, self.timestamp_offset)),
        }
    }

    #[inline]
    pub(super) fn options(&self, value: u32) -> Options {
        let mut options = Options::default();
        if self.timestamps {
            options.timestamps = Some(Timestamps {
                value,
                echo: self.receive.ts_recent,
            });
        }
        if self.sack && self.receive.assembler.has_sack_blocks() && !self.is_framed() {
            options.sack = self.receive.assembler.sack();
        }
        options
    }

    #[cold]
    fn sack_blocks(&self) -> SackBlocks {
        if self.sack && self.receive.assembler.has_sack_blocks() {
            self.receive.assembler.sack()
        } else {
            SackBlocks::default()
        }
    }

    /// The window field. The right edge never moves back (RFC 9293 §3.8.6), and moves
    /// forward only by a good step (receiver's silly-window avoidance, RFC 9293
    /// §3.8.6.2.2).
    #[inline]
    fn announce_window(&mut self, same_window: bool) -> u16 {
        let expected = self.next_expected();
        let scale = u32::from(self.receive.wscale);
        let held = self.receive.rcv_adv.wrapping_sub(expected);
        // A FIN may lie one beyond the announced window.
        let held = if held > u32::MAX / 2 { 0 } else { held };
        let unread = self.receive.assembler.unread();
        let room = self.receive.buffer_limit.saturating_sub(unread);
        let room = self.receive.room.bound(room);
        let step = u32::from(self.receive.mss).min(self.receive.buffer_limit / 2);
        let window = if !same_window && room >= held.saturating_add(step) {
            let room = if self.is_short_of_memory() {
                self.short_window(held, step)
            } else {
                room
            };
            (room >> scale).max(held.div_ceil(1 << scale))
        } else {
            // Rounded up: rounding down would take back part of the announced window (RFC
            // 7323 §2.4).
            held.div_ceil(1 << scale)
        };
        let window = window.min(u16::MAX.into());
        let edge = expected.wrapping_add(window << scale);
        if before(self.receive.rcv_adv, edge) {
            self.receive.rcv_adv = edge;
        }
        window as u16
    }

    /// Records that the segment just sent carried an acknowledgment.
    #[inline]
    fn acknowledgment_sent(&mut self, header: &Header) {
        if self.pending.has(Pending::ANY_ACKNOWLEDGMENT) && self.receive.quick_acks > 0 {
            self.receive.quick_acks -= 1;
        }
        self.pending.clear(Pending::ANY_ACKNOWLEDGMENT);
        self.receive.assembler.duplicate_reported();
        self.receive.last_ack_sent = header.acknowledgment;
        self.receive.window_field = header.window;
        self.timers.stop(Timer::Acknowledge);
    }
}
