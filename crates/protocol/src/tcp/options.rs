//! The options that servers set after a connection has begun.

use core::time::Duration;

use super::acp::buffer_min;
use super::config::Span;
use super::connection::{BUFFER_MAX, BUFFER_MIN, Connection, Pending};
use super::timers::Timer;
use super::{Congestion, Keepalive, State, StreamOptions, Time};

impl Connection {
    /// Sends small segments at once (`TCP_NODELAY`). Data held back by cork or
    /// [`SendFlags::more`](super::SendFlags::more) is sent once when it is set, as on
    /// Linux.
    pub fn set_nodelay(&mut self, on: bool) {
        self.config.nodelay = on;
        if on {
            self.more = false;
            if self.cork {
                self.pending.add(Pending::OVERRIDE);
            }
        }
    }

    /// See [`Connection::set_nodelay`].
    pub fn nodelay(&self) -> bool {
        self.config.nodelay
    }

    /// Selects the congestion control algorithm (`TCP_CONGESTION`); a connection in
    /// mid-transfer keeps its current window.
    pub fn set_congestion(&mut self, congestion: Congestion) {
        self.config.congestion = congestion;
        self.congestion.set_congestion(congestion);
    }

    /// See [`Connection::set_congestion`].
    pub fn congestion(&self) -> Congestion {
        self.congestion.congestion()
    }

    /// Turns pacing in bursts on or off (see [`Config::pacing`](super::Config::pacing)).
    pub fn set_pacing(&mut self, on: bool) {
        self.config.pacing = on;
    }

    /// See [`Connection::set_pacing`].
    pub fn pacing(&self) -> bool {
        self.config.pacing
    }

    /// Limits the sending rate, in bytes per second (`SO_MAX_PACING_RATE`; see
    /// [`Config::pacing_rate_max`](super::Config::pacing_rate_max)).
    pub fn set_pacing_rate_max(&mut self, limit: Option<u64>) {
        self.config.set_pacing_rate_max(limit);
    }

    /// See [`Connection::set_pacing_rate_max`].
    pub fn pacing_rate_max(&self) -> Option<u64> {
        let limit = self.config.pacing_rate_max();
        (limit != u64::MAX).then_some(limit)
    }

    /// Sends only full segments, or after 200 ms (`TCP_CORK`). Turning it off also sends
    /// the data that [`SendFlags::more`](super::SendFlags::more) holds back.
    pub fn set_cork(&mut self, on: bool) {
        self.cork = on;
        self.more &= on;
    }

    /// See [`Connection::set_cork`].
    pub fn cork(&self) -> bool {
        self.cork
    }

    /// Turns probing of a silent peer on or off (`SO_KEEPALIVE`, `TCP_KEEPIDLE`,
    /// `TCP_KEEPINTVL`, `TCP_KEEPCNT`).
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Time) {
        self.config.set_keepalive(keepalive);
        self.keepalive_probes = 0;
        let open = !matches!(
            self.state,
            State::Closed | State::SynSent | State::SynReceived | State::TimeWait
        );
        match keepalive {
            Some(keepalive) if open => self.timers.set(
                Timer::Keepalive,
                self.receive
                    .last_heard
                    .max(now.saturating_sub(keepalive.idle)),
                keepalive.idle,
            ),
            _ => self.timers.stop(Timer::Keepalive),
        }
    }

    /// See [`Connection::set_keepalive`].
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.config.keepalive()
    }

    /// How long data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.config.user_timeout = Span::new(timeout.unwrap_or_default());
    }

    /// See [`Connection::set_user_timeout`].
    pub fn user_timeout(&self) -> Option<Duration> {
        self.config.user_timeout()
    }

    /// SYNs retransmitted before the attempt to connect fails (`TCP_SYNCNT`).
    pub fn set_syn_retries(&mut self, count: u8) {
        self.config.syn_retries = count;
    }

    /// See [`Connection::set_syn_retries`].
    pub fn syn_retries(&self) -> u8 {
        self.config.syn_retries
    }

    /// How long FIN-WAIT-2 lasts once the application has closed (`TCP_LINGER2`); at most
    /// [`StreamOptions::FIN_TIMEOUT_MAX`](super::StreamOptions::FIN_TIMEOUT_MAX).
    pub fn set_fin_timeout(&mut self, time: Duration) {
        self.config.fin_timeout = Span::new(time.min(StreamOptions::FIN_TIMEOUT_MAX));
    }

    /// See [`Connection::set_fin_timeout`].
    pub fn fin_timeout(&self) -> Duration {
        self.config.fin_timeout.get()
    }

    /// Fixes the receive buffer's size (`SO_RCVBUF`); it no longer grows. The window
    /// announced to the peer stays valid. On a connection of frames the size is at least
    /// two segments.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        let bytes = self.clamp_buffer(bytes);
        self.receive.buffer_limit = bytes;
        self.config.receive_buffer_max = bytes;
        if self.state == State::SynSent {
            // The SYN announces the first window; its scale stays.
            self.config.receive_buffer = bytes;
        }
    }

    fn clamp_buffer(&self, bytes: u32) -> u32 {
        let least = self.acp.as_ref().map_or(0, |acp| buffer_min(acp.largest));
        bytes.max(least).clamp(BUFFER_MIN, BUFFER_MAX)
    }

    /// Bytes of the receive buffer.
    pub fn receive_buffer(&self) -> u32 {
        self.receive.buffer_limit
    }

    /// Fixes the send buffer's size (`SO_SNDBUF`); it no longer grows. On a connection of
    /// frames the size is at least two segments.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send.buffer_limit = self.clamp_buffer(bytes);
    }

    /// Bytes of the send buffer.
    pub fn send_buffer(&self) -> u32 {
        self.send_limit()
    }

    /// Accepts more data only while fewer than `bytes` are unsent (`TCP_NOTSENT_LOWAT`;
    /// at least 1, no limit with `None`). So waiting data does not grow stale, and the
    /// application chooses late what to send next.
    ///
    /// Writers are asked for more at half of it: [`Connection::writable`] is true once
    /// less than that is unsent. As on Linux the mark limits when more is accepted, not
    /// how much. A write counts data that the windows release at once as sent. It is
    /// accepted up to the mark, rounded up to whole bursts. A burst is
    /// [`Config::offload`](super::Config::offload), at most half of the peer's largest
    /// window; without offload it is a segment.
    pub fn set_not_sent_low_water(&mut self, bytes: Option<u32>) {
        self.config.not_sent_low_water = bytes.unwrap_or(u32::MAX).max(1);
    }

    /// See [`Connection::set_not_sent_low_water`].
    pub fn not_sent_low_water(&self) -> Option<u32> {
        let mark = self.config.not_sent_low_water;
        (mark != u32::MAX).then_some(mark)
    }

    /// Sets the traffic class or type of service of segments sent from now on (`IP_TOS`,
    /// `IPV6_TCLASS`). The caller does not control the two ECN bits.
    pub fn set_traffic_class(&mut self, class: u8) {
        self.config.traffic_class = class & !3;
    }

    /// See [`Connection::set_traffic_class`].
    pub fn traffic_class(&self) -> u8 {
        self.config.traffic_class
    }
}
