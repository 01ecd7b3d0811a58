//! How a connection ends: shutdown, close, reset, failure, and the effects of timers and
//! ICMP errors.

use core::time::Duration;

use super::connection::{Connection, MSS_MIN, Pending, count};
use super::push_marks::PushMarks;
use super::recovery::RtxTimer;
use super::timers::{Timer, Timers};
use super::{Errno, Shutdown, State, Time, TimeWaitEntry};
use crate::errno;
use crate::icmp::FlowError;
use tidewall_wire::tcp::before;

/// The lowest path MTU, less headers, that an ICMP error can set over IPv4 (RFC 9293
/// §3.7.1: every host accepts 576 bytes).
pub(super) const PATH_MSS_MIN_V4: u16 = 536;

/// The same over IPv6, whose links carry 1280 bytes.
pub(super) const PATH_MSS_MIN_V6: u16 = 1220;

impl Connection {
    /// Closes one half or both, as `shutdown(2)`. Unread data stays readable; written
    /// data is still sent.
    ///
    /// # Errors
    /// [`Errno::NOTCONN`] when there is no connection, or none yet.
    pub fn shutdown(&mut self, how: Shutdown, _now: Time) -> Result<(), Errno> {
        if matches!(self.state, State::Closed | State::SynSent) {
            return Err(Errno::NOTCONN);
        }
        if how != Shutdown::Write {
            self.receive.closed = true;
        }
        if how != Shutdown::Read {
            self.finish_writing();
        }
        Ok(())
    }

    fn finish_writing(&mut self) {
        if self.send.closed {
            return;
        }
        self.send.closed = true;
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }

    /// Closes the connection for its application. Written data is still sent. But the
    /// peer gets an RST if unread data shows that its data was lost (RFC 2525 §2.17), or
    /// if `linger` is zero. Any other `linger` concerns the caller: it is how long the
    /// caller waits for [`Connection::state`].
    ///
    /// The caller keeps the connection, without its application, until it is in
    /// [`State::Closed`] with nothing to send, or [`Connection::time_wait`].
    pub fn close(&mut self, linger: Option<Duration>, now: Time) {
        if self.orphan {
            return;
        }
        self.orphan = true;
        self.receive.closed = true;
        self.error = None;
        match self.state {
            State::Closed => return,
            State::SynSent => return self.finish(),
            State::TimeWait => {
                self.receive.assembler.clear();
                return;
            }
            _ => {}
        }
        if self.receive.assembler.unread() > 0 || linger.is_some_and(|linger| linger.is_zero()) {
            self.abort();
            return;
        }
        self.receive.assembler.clear();
        self.finish_writing();
        if self.state == State::FinWait2 {
            self.timers
                .set(Timer::TimeWait, now, self.config.fin_timeout.get());
        }
    }

    /// Ends the connection at once; the peer gets an RST.
    pub fn abort(&mut self) {
        let synchronized = !matches!(self.state, State::Closed | State::SynSent | State::TimeWait);
        self.finish();
        if synchronized {
            self.pending.add(Pending::RESET);
        }
    }

    /// Processes an acceptable RST from the peer (RFC 9293 §3.10.7.4, second).
    pub(super) fn reset_by_peer(&mut self) {
        let error = match self.state {
            State::SynReceived if !self.is_opened_by_syn() => Errno::CONNREFUSED,
            // As Linux: the peer had closed already.
            State::CloseWait => Errno::PIPE,
            // It must not end TIME-WAIT early (RFC 1337).
            State::TimeWait => return,
            _ => Errno::CONNRESET,
        };
        self.fail(error);
    }

    /// Ends the connection with an error for the application; the peer is not notified.
    pub fn fail(&mut self, error: Errno) {
        self.finish();
        self.set_error(error);
    }

    fn set_error(&mut self, error: Errno) {
        if !self.orphan {
            self.error = Some(error);
        }
    }

    /// Moves to CLOSED; received data stays readable.
    pub(super) fn finish(&mut self) {
        self.state = State::Closed;
        self.pending = Pending(0);
        self.receive.duplicate_acks = 0;
        self.send.buffer.clear();
        self.send.push_marks = PushMarks::new(self.send.nxt);
        self.send.write_seq = self.send.nxt;
        self.timers = Timers::new();
        if self.orphan || self.receive.assembler.unread() == 0 {
            self.receive.assembler.clear();
        }
    }

    /// The state to keep once the connection is in TIME-WAIT and its last acknowledgment
    /// was sent. The caller may move it into a table and drop the connection, or end the
    /// connection with [`Connection::take_time_wait`]. A connection that is kept does the
    /// same work itself.
    pub fn time_wait(&self) -> Option<TimeWaitEntry> {
        let over = self.state == State::TimeWait && self.pending == Pending(0);
        over.then(|| TimeWaitEntry {
            flow: self.flow,
            send_next: self.send.nxt,
            receive_next: self.next_expected(),
            window: self.receive.window_field,
            timestamp_recent: self.timestamps.then_some(self.receive.ts_recent),
            timestamp_offset: self.timestamp_offset,
        })
    }

    /// As [`Connection::time_wait`]. The connection is then in CLOSED, like a Linux
    /// socket whose TIME-WAIT is kept apart from it. Received data stays readable.
    pub fn take_time_wait(&mut self) -> Option<TimeWaitEntry> {
        let entry = self.time_wait()?;
        self.finish();
        Some(entry)
    }

    /// Does the work that is due at `now`; the caller then calls [`Connection::output`].
    pub fn timeout(&mut self, now: Time) {
        if self.timers.expired(Timer::TimeWait, now) {
            // FIN-WAIT-2 or TIME-WAIT have lasted long enough.
            self.finish();
            return;
        }
        // Expired: pacing lets data leave again.
        self.timers.expired(Timer::Pace, now);
        if self.timers.expired(Timer::Acknowledge, now) {
            self.pending.add(Pending::ACKNOWLEDGE);
            // The data for which the acknowledgment waited has not come.
            self.receive.pingpong = false;
        }
        if self.timers.expired(Timer::Retransmit, now) {
            self.retransmission_timer(now);
        }
        if self.state != State::Closed && self.timers.expired(Timer::Keepalive, now) {
            self.keepalive_timer(now);
        }
        if self.timers.expired(Timer::Release, now) {
            self.release_timer(now);
        }
        if self.state == State::Closed {
            self.end_busy(now);
        }
    }

    fn retransmission_timer(&mut self, now: Time) {
        match self.state {
            State::SynSent | State::SynReceived => {
                let most = if self.is_opened_by_syn() {
                    // One more than for other connections (as Linux).
                    self.config.syn_ack_retries.saturating_add(1)
                } else {
                    self.config.syn_retries
                };
                let given_up = self.send.retries >= most || self.user_timed_out(now);
                self.suspect_fast_open(given_up);
                if given_up {
                    self.time_out();
                    return;
                }
                if self.is_opened_by_syn() && self.send.retries == 0 {
                    self.enter_loss(now);
                }
                self.back_off(now);
                self.pending.add(Pending::SYNCHRONIZE);
            }
            State::Closed | State::TimeWait | State::FinWait2 => {}
            _ if self.send.una == self.send.nxt => self.persist(now),
            _ => match self.recovery.rtx_timer {
                RtxTimer::Retransmission => self.retransmit(now),
                RtxTimer::Probe => self.probe_timer(now),
                RtxTimer::Reordering => self.reordering_timer(now),
            },
        }
    }

    /// Counts a retransmission without an answer, and backs off.
    fn back_off(&mut self, now: Time) {
        if self.send.stalled_since.is_none() {
            self.send.stalled_since = Some(now.saturating_sub(self.retransmission_timeout()));
        }
        self.send.retries = self.send.retries.saturating_add(1);
        self.round_trip.backoff = self.round_trip.backoff.saturating_add(1);
    }

    /// How long to wait for an answer: the retransmission timeout, but no longer than the
    /// rest of the user timeout.
    fn retry_interval(&self, now: Time) -> Duration {
        let timeout = self.retransmission_timeout();
        match (self.config.user_timeout(), self.send.stalled_since) {
            (Some(limit), Some(since)) => {
                timeout.min(since.saturating_add(limit).saturating_sub(now))
            }
            _ => timeout,
        }
    }

    fn user_timed_out(&self, now: Time) -> bool {
        match (self.config.user_timeout(), self.send.stalled_since) {
            (Some(limit), Some(since)) => now.saturating_sub(since) >= limit,
            _ => false,
        }
    }

    /// Whether the same data was tried often enough. A closed window is no reason to give
    /// up (RFC 9293 §3.8.6.1) unless probes of it stay without answer or the application
    /// has closed. After that only progress counts, not answers: otherwise a peer could
    /// hold our memory for ever ("sockstress", RFC 6429).
    fn given_up(&self, now: Time) -> bool {
        let (count, limit) = if self.orphan {
            (self.round_trip.backoff, self.config.orphan_retries)
        } else {
            (self.send.retries, self.config.retries)
        };
        count >= limit || self.user_timed_out(now)
    }

    /// The retransmission timer has expired with data in flight (RFC 6298 §5.4).
    fn retransmit(&mut self, now: Time) {
        let given_up = self.given_up(now);
        self.suspect_fast_open(given_up);
        if given_up {
            self.time_out();
            return;
        }
        self.suspect_black_hole(now);
        self.enter_loss(now);
        self.back_off(now);
        count(&mut self.counters.timeouts);
        self.timers
            .set(Timer::Retransmit, now, self.retry_interval(now));
    }

    /// Nothing is in flight but data waits: the window is closed, or the data was held
    /// back to make a larger segment.
    fn persist(&mut self, now: Time) {
        if self.unsent() == 0 {
            return;
        }
        if !self.is_window_closed() {
            self.pending.add(Pending::OVERRIDE);
            self.push();
            return;
        }
        if self.given_up(now) {
            let orphan = self.orphan;
            self.time_out();
            if orphan {
                self.pending.add(Pending::RESET);
            }
            return;
        }
        self.back_off(now);
        self.pending.add(Pending::PROBE);
        self.timers
            .set(Timer::Retransmit, now, self.retry_interval(now));
    }

    fn time_out(&mut self) {
        let error = self.soft_error.take().unwrap_or(Errno::TIMEDOUT);
        self.fail(error);
    }

    fn keepalive_timer(&mut self, now: Time) {
        let Some(keepalive) = self.config.keepalive() else {
            return;
        };
        let silence = now.saturating_sub(self.receive.last_heard);
        if self.send.una != self.send.nxt || self.unsent() > 0 {
            // Retransmission finds out whether the peer is alive.
            self.timers.set(Timer::Keepalive, now, keepalive.idle);
            return;
        }
        if silence < keepalive.idle {
            self.timers
                .set(Timer::Keepalive, self.receive.last_heard, keepalive.idle);
            return;
        }
        let given_up = match self.config.user_timeout() {
            Some(limit) => self.keepalive_probes > 0 && silence >= limit,
            None => self.keepalive_probes >= keepalive.count,
        };
        if given_up {
            self.time_out();
            self.pending.add(Pending::RESET);
            return;
        }
        self.keepalive_probes = self.keepalive_probes.saturating_add(1);
        self.pending.add(Pending::PROBE);
        self.timers.set(Timer::Keepalive, now, keepalive.interval);
    }

    /// Processes an ICMP error about this flow. Anyone can send one (RFC 5927), so it
    /// counts only if it quotes data in flight. It lowers the path MTU only to what every
    /// path carries, and ends only an attempt to connect.
    pub fn icmp_error(&mut self, error: &FlowError, now: Time) {
        let Some(sequence) = error.sequence else {
            return;
        };
        // The sequence number of a SYN-ACK is not in the send space of a connection in
        // use.
        let synchronize = u32::from(self.is_fast_opening());
        let first = self.send.una.wrapping_sub(synchronize);
        if before(sequence, first) || !before(sequence, self.send.nxt) {
            return;
        }
        if error.errno == errno::EMSGSIZE {
            if let Some(mtu) = error.mtu {
                self.icmp_path_mtu(mtu, now);
            }
            return;
        }
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent | State::SynReceived => self.fail(Errno(error.errno)),
            _ => self.soft_error = Some(Errno(error.errno)),
        }
    }

    /// Shortens segments to a link's MTU, in bytes of an IP packet, after the link
    /// refused a segment. Returns true when the segment size has changed.
    pub fn limit_to_link(&mut self, mtu: u32, now: Time) -> bool {
        self.icmp_path_mtu(mtu, now)
    }

    fn icmp_path_mtu(&mut self, mtu: u32, now: Time) -> bool {
        let mss = u16::try_from(mtu.saturating_sub(self.headers_len())).unwrap_or(u16::MAX);
        if !self.take_path_mtu(mss, now) {
            return false;
        }
        match self.state {
            State::SynSent => self.send_plain_syn(),
            State::SynReceived => {}
            // The data that was too large is lost, but not to congestion (RFC 1191 §6.2).
            _ => self.simple_retransmit(now),
        }
        true
    }

    /// Limits the maximum segment size (`TCP_MAXSEG`). Before the handshake this also
    /// limits the announced size.
    pub fn set_maximum_segment(&mut self, bytes: u16) {
        self.config.mss = bytes.clamp(MSS_MIN, self.config.mss.max(MSS_MIN));
        self.update_mss();
    }

    /// Payload of a full segment, as limited by [`Connection::set_maximum_segment`] and
    /// the peer.
    pub fn maximum_segment(&self) -> u16 {
        self.send.mss
    }
}
