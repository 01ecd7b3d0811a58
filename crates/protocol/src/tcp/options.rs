//! The options that servers set, after the connection has begun.

use core::time::Duration;

use super::acp::buffer_min;
use super::config::Span;
use super::connection::{BUFFER_MAX, BUFFER_MIN, Connection, Pending};
use super::timers::Timer;
use super::{Congestion, Keepalive, State, StreamOptions, Time};

impl Connection {
    /// Sends small segments at once (`TCP_NODELAY`). What cork or
    /// [`SendFlags::more`](super::SendFlags::more) hold back is sent once when it is
    /// set, as on Linux.
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

    /// How the congestion window moves (`TCP_CONGESTION`); a connection in
    /// mid-transfer goes on from the window that it has.
    pub fn set_congestion(&mut self, congestion: Congestion) {
        self.config.congestion = congestion;
        self.congestion.set_congestion(congestion);
    }

    /// See [`Connection::set_congestion`].
    pub fn congestion(&self) -> Congestion {
        self.congestion.congestion()
    }

    /// Lets data leave in bursts, or does not (see
    /// [`Config::pacing`](super::Config::pacing)).
    pub fn set_pacing(&mut self, on: bool) {
        self.config.pacing = on;
    }

    /// See [`Connection::set_pacing`].
    pub fn pacing(&self) -> bool {
        self.config.pacing
    }

    /// Sends no faster than so many bytes a second (`SO_MAX_PACING_RATE`; see
    /// [`Config::pacing_rate_max`](super::Config::pacing_rate_max)).
    pub fn set_pacing_rate_max(&mut self, limit: Option<u64>) {
        self.config.set_pacing_rate_max(limit);
    }

    /// See [`Connection::set_pacing_rate_max`].
    pub fn pacing_rate_max(&self) -> Option<u64> {
        let limit = self.config.pacing_rate_max();
        (limit != u64::MAX).then_some(limit)
    }

    /// Sends full segments only, or after 200 ms (`TCP_CORK`). Ended, also what
    /// [`SendFlags::more`](super::SendFlags::more) holds back is sent.
    pub fn set_cork(&mut self, on: bool) {
        self.cork = on;
        self.more &= on;
    }

    /// See [`Connection::set_cork`].
    pub fn cork(&self) -> bool {
        self.cork
    }

    /// Probes a silent peer, or does not (`SO_KEEPALIVE`, `TCP_KEEPIDLE`,
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

    /// How long FIN-WAIT-2 lasts once the application has closed (`TCP_LINGER2`);
    /// [`StreamOptions::FIN_TIMEOUT_MAX`](super::StreamOptions::FIN_TIMEOUT_MAX) at
    /// most.
    pub fn set_fin_timeout(&mut self, time: Duration) {
        self.config.fin_timeout = Span::new(time.min(StreamOptions::FIN_TIMEOUT_MAX));
    }

    /// See [`Connection::set_fin_timeout`].
    pub fn fin_timeout(&self) -> Duration {
        self.config.fin_timeout.get()
    }

    /// Fixes the receive buffer's size (`SO_RCVBUF`); it grows no more. What was
    /// announced to the peer stays valid. Where frames are carried it is two segments
    /// at least.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        let bytes = self.clamp_buffer(bytes);
        self.receive.buffer_limit = bytes;
        self.config.receive_buffer_max = bytes;
        if self.state == State::SynSent {
            // The SYN names the first window; its scale stays.
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

    /// Fixes the send buffer's size (`SO_SNDBUF`); it grows no more. Where frames are
    /// carried it is two segments at least.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send.buffer_limit = self.clamp_buffer(bytes);
    }

    /// Bytes of the send buffer.
    pub fn send_buffer(&self) -> u32 {
        self.send_limit()
    }

    /// Takes more to be sent only while less than so many bytes wait that were not
    /// sent (`TCP_NOTSENT_LOWAT`; at least 1, no limit with `None`), so that what
    /// waits does not grow stale and the application still chooses what is next.
    ///
    /// Asked of writers at half of it: [`Connection::writable`] once less than that
    /// waits. As on Linux the mark says when more is taken, not how much: a write
    /// counts what the windows let leave at once as sent, and is taken up to the
    /// mark rounded up to whole bursts ([`Config::offload`](super::Config::offload),
    /// at most half of the peer's largest window; a segment where there is none).
    pub fn set_not_sent_low_water(&mut self, bytes: Option<u32>) {
        self.config.not_sent_low_water = bytes.unwrap_or(u32::MAX).max(1);
    }

    /// See [`Connection::set_not_sent_low_water`].
    pub fn not_sent_low_water(&self) -> Option<u32> {
        let mark = self.config.not_sent_low_water;
        (mark != u32::MAX).then_some(mark)
    }

    /// The traffic class or type of service of what is sent from now on
    /// (`IP_TOS`, `IPV6_TCLASS`). The two ECN bits are not the caller's.
    pub fn set_traffic_class(&mut self, class: u8) {
        self.config.traffic_class = class & !3;
    }

    /// See [`Connection::set_traffic_class`].
    pub fn traffic_class(&self) -> u8 {
        self.config.traffic_class
    }
}
