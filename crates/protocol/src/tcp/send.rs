//! What may be sent, and when (RFC 9293 §3.7, §3.8; RFC 5681; RFC 6675).

use core::time::Duration;

use super::connection::{Connection, Pending};
use super::half_open;
use super::recovery::Wait;
use super::tail_probe::TailProbe;
use super::timers::Timer;
use super::{Outgoing, State, Time, microseconds, timestamp};
use tidewall_wire::tcp::{Flags, Header, Options, Timestamps, before};

/// How long cork and silly-window avoidance may hold data back (Linux's limit of
/// `TCP_CORK`; RFC 9293 §3.8.6.2.1 asks for 0.1 to 1 second).
const HOLD: Duration = Duration::from_millis(200);

/// A segment, or a burst of them, that may be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// SYN or SYN-ACK.
    Synchronize,
    /// Lost bytes from a sequence number on; a length of zero is the FIN.
    Again { sequence: u32, length: u32 },
    /// Bytes that were never sent.
    New { length: u32 },
    /// The same, in one segment larger than others: a probe of the path's MTU.
    PathProbe { length: u32 },
    /// The FIN alone.
    Fin,
}

/// A time in milliseconds, for what is compared within a short while only.
#[inline]
pub(super) fn milliseconds(time: Time) -> u32 {
    time.as_millis() as u32
}

impl Connection {
    /// Before the handshake is complete.
    #[cold]
    fn plan_synchronizing(&self) -> Option<Plan> {
        if self.pending.has(Pending::SYNCHRONIZE) {
            return Some(Plan::Synchronize);
        }
        // What is lost before the peer knows of us is sent again later: there is
        // nothing but new data.
        let sends = self.is_fast_opening() && self.recovery.is_quiet();
        if sends { self.plan_again() } else { None }
    }

    /// The next segment, if one may be sent now. Acknowledgments, probes and
    /// resets are not planned but pending.
    #[inline]
    pub(super) fn plan(&self) -> Option<Plan> {
        match self.state {
            State::SynSent | State::SynReceived => self.plan_synchronizing(),
            State::Closed | State::TimeWait | State::FinWait2 => None,
            _ if self.recovery.is_quiet() => self.plan_new(),
            _ => self.plan_again(),
        }
    }

    /// What was lost comes before what is new.
    #[cold]
    fn plan_again(&self) -> Option<Plan> {
        if self.recovery.probe == TailProbe::Due
            && let Some(probe) = self.plan_probe()
        {
            return Some(probe);
        }
        if self.recovery.new_first {
            let plan = self.plan_new();
            if plan.is_some() || self.send.next != self.recovery.end {
                return plan;
            }
        }
        let mss = self.payload_max();
        let Some((sequence, end)) = self.recovery.board.next_waiting(mss) else {
            return self.plan_new();
        };
        let first = self.send.first;
        // The window may have shrunk; the first segment is always tried, for its
        // acknowledgment brings the window (as Linux).
        if sequence != first && !before(sequence, first.wrapping_add(self.send.window)) {
            return None;
        }
        let length = end.wrapping_sub(sequence);
        let pipe = self.pipe();
        if pipe > 0 && pipe.saturating_add(length) > self.congestion.window() {
            return None;
        }
        Some(self.plan_repeat(sequence, end))
    }

    /// The bytes between two marks once more; the last sequence number may be the
    /// FIN's.
    pub(super) fn plan_repeat(&self, sequence: u32, end: u32) -> Plan {
        let end = if before(self.send.written, end) {
            self.send.written
        } else {
            end
        };
        let end = self.send.marks.cut(sequence, end);
        Plan::Again {
            sequence,
            length: end.wrapping_sub(sequence),
        }
    }

    #[inline]
    fn plan_new(&self) -> Option<Plan> {
        let unsent = self.unsent();
        if unsent == 0 {
            let fin = self.send.closed && !self.fin_sent();
            return fin.then_some(Plan::Fin);
        }
        let window_end = self.send.first.wrapping_add(self.send.window);
        let next = self.send.next;
        if !before(next, window_end) || self.timers.is_running(Timer::Pace) {
            return None;
        }
        // Up to the end of a record; more may wait behind it.
        let record = self.send.marks.cut(next, self.send.written);
        let (unsent, ends) = (record.wrapping_sub(next), record != self.send.written);
        let usable = window_end.wrapping_sub(next);
        let pipe = self.pipe();
        let allowed = self.congestion.window().saturating_sub(pipe);
        let mss = self.payload_max();
        let length = unsent.min(usable).min(allowed);
        if length >= mss {
            let burst = self.burst(mss);
            if length > burst {
                return Some(Plan::New { length: burst });
            }
            let rest = length % mss;
            let tail = rest != 0 && length == unsent && (ends || self.may_send_small());
            return Some(Plan::New {
                length: if tail { length } else { length - rest },
            });
        }
        if length == 0 {
            return None;
        }
        let sends = if length == unsent {
            ends || self.may_send_small()
        } else if usable < mss {
            // Sender's silly-window avoidance (RFC 9293 §3.8.6.2.1).
            length >= self.send.window_max / 2
        } else {
            // The congestion window has less than a segment left.
            pipe == 0
        };
        (sends || self.pending.has(Pending::OVERRIDE)).then_some(Plan::New { length })
    }

    /// Whether a segment that is not full may leave (Nagle, as Minshall modified
    /// it: one such segment in flight at a time).
    #[inline(always)]
    fn may_send_small(&self) -> bool {
        if self.send.closed || self.pending.has(Pending::OVERRIDE) {
            return true;
        }
        !(self.cork || self.more)
            && (self.config.nodelay || self.send.first == self.send.next || !self.small_in_flight())
    }

    /// A segment that was not full is not acknowledged. Asked of what is in flight
    /// only: after two gigabytes of full segments the mark compares as ahead.
    #[inline]
    fn small_in_flight(&self) -> bool {
        let ahead = self.send.small.wrapping_sub(self.send.first);
        ahead != 0 && ahead <= self.send.next.wrapping_sub(self.send.first)
    }

    /// Payload of a full segment now: SACK blocks take their part of it.
    #[inline]
    pub(super) fn payload_max(&self) -> u32 {
        let mss = u32::from(self.send.mss);
        if !self.receive.assembler.has_blocks() || !self.sack {
            return mss;
        }
        self.payload_beside_sack(mss)
    }

    #[cold]
    fn payload_beside_sack(&self, mss: u32) -> u32 {
        let with = self.options(0);
        let without = Options {
            sack: tidewall_wire::tcp::SackBlocks::default(),
            ..with
        };
        mss.saturating_sub((with.len() - without.len()) as u32)
            .max(1)
    }

    /// Bytes never sent that the windows let leave now.
    pub(super) fn may_leave(&self) -> u32 {
        if self.timers.is_running(Timer::Pace) {
            return 0;
        }
        let in_flight = self.send.next.wrapping_sub(self.send.first);
        let usable = self.send.window.saturating_sub(in_flight);
        let allowed = self.congestion.window().saturating_sub(self.pipe());
        usable.min(allowed)
    }

    /// True when data waits, nothing is in flight to bring an acknowledgment,
    /// and no timer runs: a persist timer must be started.
    #[inline]
    pub(super) fn needs_persist(&self) -> bool {
        self.send.first == self.send.next
            && self.unsent() > 0
            && matches!(
                self.state,
                State::Established
                    | State::CloseWait
                    | State::FinWait1
                    | State::Closing
                    | State::LastAck
            )
            && !self.timers.is_running(Timer::Retransmit)
            && !self.timers.is_running(Timer::Pace)
    }

    pub(super) fn send_all(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        if self.pending.has(Pending::RESET | Pending::RESET_ANSWER) && !self.send_reset(now, send) {
            return;
        }
        let age = microseconds(now).wrapping_sub(self.send.limited_at);
        // No retransmission timeout is shorter than its slack: most of the time that
        // says enough. A window validated without anything sent, and an idle time of
        // just 71 minutes, at which microseconds wrap, are judged the next time.
        if self.send.first == self.send.next
            && self.unsent() > 0
            && age >= self.round_trip.slack
            && self.config.slow_start_after_idle
        {
            let idle = now.saturating_sub(self.send.last);
            let timeout = self.retransmission_micros();
            let micros = idle.as_secs().saturating_mul(1_000_000) + u64::from(idle.subsec_micros());
            if micros > timeout {
                self.restart_after_idle(idle, now);
            } else if !self.send.limited && u64::from(age) >= timeout {
                self.validate_window(now);
            }
        }
        if self.config.paces() {
            self.pace(0, now);
        }
        let (next, probing) = (self.send.next, self.recovery.probe == TailProbe::Due);
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
        self.look_at_holdup(now);
        if self.send.next != next && !probing {
            self.start_timer_after_sending(self.send.first == next, now);
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
            let wait = if self.send.window > self.send.next.wrapping_sub(self.send.first) {
                // Held back by Nagle, cork or silly-window avoidance.
                HOLD
            } else {
                self.retransmission_timeout()
            };
            self.recovery.wait = Wait::Retransmission;
            self.timers.set(Timer::Retransmit, now, wait);
        }
        if self.pending.has(Pending::PROBE) && !self.send_probe(now, send) {
            return;
        }
        self.send_acknowledgments(now, send);
    }

    /// A sequence number that the peer takes a segment without data by. SND.NXT,
    /// unless the peer has taken back window that we had used: it then refuses
    /// what lies beyond the edge, acknowledgments included, and both sides would
    /// send again for ever (Linux `tcp_acceptable_seq`; a Linux receiver out of
    /// memory closes its window in this way).
    fn acceptable_sequence(&self) -> u32 {
        let edge = self.send.first.wrapping_add(self.send.window);
        let beyond = self.send.next.wrapping_sub(edge);
        // The window is only known to the precision of its scale.
        if !before(edge, self.send.next) || self.scaling && beyond < 1 << self.send.scale {
            self.send.next
        } else {
            edge
        }
    }

    fn send_acknowledgments(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        if matches!(self.state, State::Closed | State::SynSent) {
            self.pending.clear(Pending::ACKNOWLEDGE);
            self.receive.duplicates = 0;
            return;
        }
        while self.pending.has(Pending::ACKNOWLEDGE) || self.receive.duplicates > 0 {
            // The window must be the same in duplicates, or the peer does not
            // take them for such (RFC 5681 §2).
            let duplicates = self.receive.duplicates;
            let header = self.header(self.acceptable_sequence(), Flags::ACK, now, duplicates > 0);
            if !self.give(header, (0, 0), self.send.mss.into(), send) {
                return;
            }
            self.acknowledgment_sent(&header);
            self.receive.duplicates = duplicates.saturating_sub(1);
        }
    }

    /// Sends a probe of the path if there is to be one; false when there was no
    /// room.
    #[cold]
    fn send_path_probe(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        let Some(length) = self.path_probe_due(now) else {
            return true;
        };
        let start = self.send.next;
        let sent = self.send_plan(Plan::PathProbe { length }, now, send);
        if sent {
            self.path_probe_sent(start, length);
        }
        sent
    }

    /// Sends a planned segment; false when there was no room.
    #[inline(always)]
    fn send_plan(
        &mut self,
        plan: Plan,
        now: Time,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
    ) -> bool {
        let (sequence, length) = match plan {
            Plan::Synchronize => return self.send_synchronize(now, send),
            Plan::Again { sequence, length } => (sequence, length),
            Plan::New { length } | Plan::PathProbe { length } => (self.send.next, length),
            Plan::Fin => (self.send.next, 0),
        };
        let end = sequence.wrapping_add(length);
        let again = matches!(plan, Plan::Again { .. });
        let mut flags = Flags::ACK;
        let pushes = self.pushes(sequence, length);
        if pushes {
            flags |= Flags::PSH;
        }
        let fin = self.send.closed && end == self.send.written;
        if fin {
            flags = Flags(flags.0 | Flags::FIN.0);
        }
        let tells = self.ecn.has_to_tell() && length > 0 && !again;
        if tells {
            flags |= Flags::CWR;
        }
        let header = self.header(sequence, flags, now, false);
        let held = self.send.written.wrapping_sub(self.send.buffer.len());
        let size = match plan {
            Plan::PathProbe { length } => length,
            _ => self.payload_max(),
        };
        let payload = (sequence.wrapping_sub(held), length);
        let Some(left) = self.give_burst(header, payload, size, send) else {
            return false;
        };
        if tells {
            self.ecn.told();
        }
        if length > 0 && self.answers_data(now) {
            // Data follows data: acknowledgments will have company.
            self.receive.interactive = true;
        }
        self.acknowledgment_sent(&header);
        self.send.last = now;
        if left < length {
            // The device has no room for the rest, PSH and FIN among it.
            self.sent_new(left, sequence.wrapping_add(left), now);
            return false;
        }
        let end = end.wrapping_add(fin.into());
        if let Plan::Again { .. } = plan {
            self.sent_again(sequence, end, now);
        } else {
            if pushes {
                self.send.marks.due = end.wrapping_add(self.send.window_max / 2);
            }
            self.sent_new(length, end, now);
        }
        true
    }

    /// Whether a segment carries PSH: the application has pushed what lies in it, or
    /// half of the largest window has left without (Linux `forced_push`). A burst
    /// does, so that whoever puts its segments together again (GRO) delivers it with
    /// the last one, as Linux.
    #[inline]
    fn pushes(&self, start: u32, length: u32) -> bool {
        self.send.marks.pushes(start, length) || length > self.send.mss.into()
    }

    /// True when the peer's data came so short a while ago that its
    /// acknowledgment could have waited for the data that is sent now.
    #[inline]
    fn answers_data(&self, now: Time) -> bool {
        let age = milliseconds(now).wrapping_sub(self.receive.data_at);
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
        let isn = self.send.first.wrapping_sub(opens.into());
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
                window_scale: self.scaling.then_some(self.receive.scale),
                sack_permitted: self.sack,
                timestamps: self.timestamps.then(|| Timestamps {
                    value: timestamp(now, self.timestamp_offset),
                    echo: self.receive.timestamp,
                }),
                ..Options::default().with_fast_open(fast_open)
            },
        };
        if !self.give(header, (0, length), self.send.mss.into(), send) {
            return false;
        }
        self.pending.clear(Pending::SYNCHRONIZE);
        self.pending.clear(Pending::ACKNOWLEDGE);
        self.syn_left(length);
        if self.notices.is_some() {
            self.tell_sent(isn.wrapping_add(1 + length), now);
        }
        if opens {
            self.acknowledgment_sent(&header);
            // What data in the SYN has taken of the window is given back.
            let edge = header.acknowledgment.wrapping_add(header.window.into());
            if before(self.receive.edge, edge) {
                self.receive.edge = edge;
            }
        } else if self.send.next == isn {
            self.send.next = isn.wrapping_add(1 + length);
        }
        self.send.last = now;
        let timeout = if opens {
            // A listener's answers come at these times.
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
            self.end_holdup(now);
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
            let header = self.header(self.send.next, Flags::RST | Flags::ACK, now, false);
            if !self.give(header, (0, 0), self.send.mss.into(), send) {
                return false;
            }
            self.pending.clear(Pending::RESET);
        }
        true
    }

    /// A segment without payload whose sequence number is old: every receiver
    /// answers it with what it expects and its window (as Linux). Nobody reads
    /// the rest of such a segment, so it does not count as an acknowledgment.
    #[cold]
    fn send_probe(&mut self, now: Time, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        let header = self.header(self.send.first.wrapping_sub(1), Flags::ACK, now, true);
        if !self.give(header, (0, 0), self.send.mss.into(), send) {
            return false;
        }
        self.pending.clear(Pending::PROBE);
        true
    }

    /// The header of any segment but a SYN. `same_window` keeps the right edge
    /// where it is.
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
    fn options(&self, value: u32) -> Options {
        let mut options = Options::default();
        if self.timestamps {
            options.timestamps = Some(Timestamps {
                value,
                echo: self.receive.timestamp,
            });
        }
        if self.sack && self.receive.assembler.has_blocks() {
            options.sack = self.receive.assembler.sack();
        }
        options
    }

    /// The window field. The right edge never moves back (RFC 9293 §3.8.6), and
    /// forward only by a good step (receiver's silly-window avoidance, RFC 9293
    /// §3.8.6.2.2).
    #[inline]
    fn announce_window(&mut self, same_window: bool) -> u16 {
        let expected = self.next_expected();
        let scale = u32::from(self.receive.scale);
        let held = self.receive.edge.wrapping_sub(expected);
        // A FIN may lie one beyond what was announced.
        let held = if held > u32::MAX / 2 { 0 } else { held };
        let unread = self.receive.assembler.unread();
        let room = self.receive.limit.saturating_sub(unread);
        let step = u32::from(self.receive.mss).min(self.receive.limit / 2);
        let window = if !same_window && room >= held.saturating_add(step) {
            let room = if self.is_short_of_memory() {
                self.short_window(held, step)
            } else {
                room
            };
            (room >> scale).max(held.div_ceil(1 << scale))
        } else {
            // Rounded up: rounding down would take back what was promised
            // (RFC 7323 §2.4).
            held.div_ceil(1 << scale)
        };
        let window = window.min(u16::MAX.into());
        let edge = expected.wrapping_add(window << scale);
        if before(self.receive.edge, edge) {
            self.receive.edge = edge;
        }
        window as u16
    }

    /// Whatever was just sent has carried an acknowledgment.
    #[inline]
    fn acknowledgment_sent(&mut self, header: &Header) {
        if self.pending.has(Pending::ACKNOWLEDGE) && self.receive.quick > 0 {
            self.receive.quick -= 1;
        }
        self.pending.clear(Pending::ACKNOWLEDGE);
        self.receive.assembler.told();
        self.receive.acknowledged = header.acknowledgment;
        self.receive.window_field = header.window;
        self.timers.stop(Timer::Acknowledge);
    }
}
