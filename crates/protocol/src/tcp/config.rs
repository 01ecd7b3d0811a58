//! The configuration of a connection, and its compact form.

use core::time::Duration;

use super::connection::{BUFFER_MAX, BUFFER_MIN, MSS_MIN};
use super::{Congestion, Framing};

/// How a silent peer is probed (RFC 9293 §3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Time between probes (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is given up
    /// (`TCP_KEEPCNT`).
    pub count: u8,
}

impl Default for Keepalive {
    /// Linux's defaults: two hours, 75 seconds, nine probes.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            count: 9,
        }
    }
}

/// When a connection uses explicit congestion notification (RFC 3168); `tcp_ecn`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Never (`tcp_ecn` of 0).
    Off = 0,
    /// When the peer asks for it (2).
    #[default]
    Passive = 1,
    /// Also requested from the peer (1).
    Active = 2,
}

/// When the path's MTU is probed with larger segments (RFC 4821); `tcp_mtu_probing`. ICMP
/// errors are honoured in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MtuProbing {
    /// Never (0, Linux's default).
    Off = 0,
    /// Once segments seem to vanish because of their size, and when the MTU from an ICMP
    /// error is ten minutes old (1).
    #[default]
    BlackHole = 1,
    /// From the beginning: segments have 1024 bytes (IPv4) or 1220 (IPv6) until larger
    /// ones have got through (2).
    Always = 2,
}

/// The configuration of a connection. The default is Linux's; the maximum
/// segment size is that of Ethernet over IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The maximum segment size we announce and never exceed, in bytes of
    /// payload and TCP options: the link's MTU less 40 (IPv4) or 60 (IPv6).
    pub mss: u16,
    /// Limits the maximum segment size independently of link and family (`TCP_MAXSEG`);
    /// `u16::MAX` is no limit.
    pub mss_max: u16,
    /// Initial bytes of the receive buffer, and so the window.
    pub receive_buffer: u32,
    /// Maximum size of the receive buffer while the application keeps up; also decides
    /// the window scale. Not above 1 GiB.
    pub receive_buffer_max: u32,
    /// Initial bytes of the send buffer.
    pub send_buffer: u32,
    /// Maximum size of the send buffer as the congestion window grows.
    pub send_buffer_max: u32,
    /// The largest payload of one [`Outgoing`](super::Outgoing), which the device then
    /// cuts into segments. With 0 it is one segment, and bursts are cut here.
    ///
    /// A burst is no more than half of the congestion window. It is about the data that
    /// leaves in a millisecond. The rate for that is twice the window per round trip in
    /// slow start, 1.2 times it from then on. On a short path it is more, as Linux's
    /// (`tcp_tso_autosize`).
    pub offload: u32,
    /// Unsent bytes above which no more data is accepted (`TCP_NOTSENT_LOWAT`); see
    /// [`Connection::set_not_sent_low_water`](super::Connection::set_not_sent_low_water).
    pub not_sent_low_water: Option<u32>,
    /// The smallest size, in segments, to which a burst may be cut so that it takes no
    /// more than about a millisecond (`tcp_min_tso_segs`); see [`Config::offload`].
    pub burst_min: u8,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer SACK (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Send small segments at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Probe silent peers (`SO_KEEPALIVE`).
    pub keepalive: Option<Keepalive>,
    /// Give up when data is not acknowledged for this long (`TCP_USER_TIMEOUT`, RFC
    /// 5482). Without a user timeout, [`Config::retries`] decides.
    pub user_timeout: Option<Duration>,
    /// SYNs retransmitted before `connect` fails (`tcp_syn_retries`).
    pub syn_retries: u8,
    /// SYN-ACKs retransmitted before a half-open connection is dropped
    /// (`tcp_synack_retries`); one more if a SYN with data has opened it (RFC 7413).
    pub syn_ack_retries: u8,
    /// Retransmissions of the same data before giving up (`tcp_retries2`).
    pub retries: u8,
    /// The same for connections that the application has closed (`tcp_orphan_retries`;
    /// Linux uses 8 for its 0).
    pub orphan_retries: u8,
    /// The initial congestion window in segments (RFC 6928).
    pub initial_window: u8,
    /// A congestion window that was unused for a retransmission timeout falls back to the
    /// initial one, or nearly (RFC 2861; `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// How the congestion window moves (`TCP_CONGESTION`).
    pub congestion: Congestion,
    /// Send data in bursts of about a millisecond's worth if the round trip is a
    /// millisecond or more. The rate is twice the window per round trip in slow start,
    /// 1.2 times it from then on (as Linux with the `fq` packet scheduler).
    pub pacing: bool,
    /// Send no faster, in bytes per second (`SO_MAX_PACING_RATE`). Values are from 1 to
    /// 4,294,967,294; more is no limit. A rate at which a segment would take more than a
    /// minute counts as a segment per minute.
    pub pacing_rate_max: Option<u64>,
    /// How long an acknowledgment may wait (RFC 9293 §3.8.6.3; `TCP_DELACK_MIN`).
    /// Below a minute.
    pub delayed_ack: Duration,
    /// The shortest retransmission timeout (`TCP_RTO_MIN`).
    pub timeout_min: Duration,
    /// The longest (`TCP_RTO_MAX`).
    pub timeout_max: Duration,
    /// How long FIN-WAIT-2 lasts once the application has closed
    /// (`tcp_fin_timeout`).
    pub fin_timeout: Duration,
    /// The traffic class or type of service of every segment; its two ECN bits
    /// do not count.
    pub traffic_class: u8,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Probe the path's MTU.
    pub mtu_probing: MtuProbing,
    /// Carry frames. Then timestamps, Fast Open and path-MTU probing are off, and
    /// [`Config::nodelay`] is on.
    pub framing: Framing,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1460,
            mss_max: u16::MAX,
            receive_buffer: 131_072,
            receive_buffer_max: 6 << 20,
            send_buffer: 87_040,
            send_buffer_max: 4 << 20,
            offload: 0,
            not_sent_low_water: None,
            burst_min: 2,
            timestamps: true,
            sack: true,
            window_scaling: true,
            nodelay: false,
            keepalive: None,
            user_timeout: None,
            syn_retries: 6,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            initial_window: 10,
            slow_start_after_idle: true,
            congestion: Congestion::Cubic,
            pacing: false,
            pacing_rate_max: None,
            delayed_ack: Duration::from_millis(40),
            timeout_min: Duration::from_millis(200),
            timeout_max: Duration::from_secs(120),
            fin_timeout: Duration::from_secs(60),
            traffic_class: 0,
            ecn: Ecn::Passive,
            mtu_probing: MtuProbing::BlackHole,
            framing: Framing::Stream,
        }
    }
}

impl Config {
    /// The window scale that a SYN or SYN-ACK announces: the smallest with which the
    /// window field can express the largest receive buffer.
    pub fn window_scale(&self) -> u8 {
        let space = self.receive_buffer.max(self.receive_buffer_max);
        let bits = u32::BITS - space.leading_zeros();
        // 14 at most (RFC 7323 §2.3).
        bits.saturating_sub(16).min(14) as u8
    }

    /// The window field of a SYN or SYN-ACK, which is never scaled (RFC 7323 §2.2). A
    /// connection from a passive handshake takes it as announced.
    pub fn syn_window(&self) -> u16 {
        u16::try_from(self.receive_buffer.max(BUFFER_MIN)).unwrap_or(u16::MAX)
    }
}

/// A length of time in milliseconds, compact since there may be a hundred thousand
/// connections; 49 days at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span(pub(super) u32);

impl Span {
    /// Rounds up: a timer may be late, never early.
    pub(super) fn new(time: Duration) -> Self {
        let milliseconds = time.as_nanos().div_ceil(1_000_000);
        Self(u32::try_from(milliseconds).unwrap_or(u32::MAX))
    }

    pub(super) fn get(self) -> Duration {
        Duration::from_millis(self.0.into())
    }

    /// In microseconds; an hour at most.
    #[inline]
    pub(super) fn micros(self) -> u32 {
        self.0.saturating_mul(1000)
    }
}

/// A [`Config`] as a connection keeps it: range-checked and compact.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) receive_buffer: u32,
    pub(super) receive_buffer_max: u32,
    pub(super) send_buffer: u32,
    pub(super) send_buffer_max: u32,
    pub(super) offload: u32,
    /// As [`Keepalive`]; a count of zero means no probes.
    pub(super) keepalive_idle: Span,
    pub(super) keepalive_interval: Span,
    /// Zero means no timeout.
    pub(super) user_timeout: Span,
    pub(super) delayed_ack: Span,
    pub(super) timeout_min: Span,
    pub(super) timeout_max: Span,
    pub(super) fin_timeout: Span,
    pub(super) mss: u16,
    pub(super) keepalive_count: u8,
    pub(super) syn_retries: u8,
    pub(super) syn_ack_retries: u8,
    pub(super) retries: u8,
    pub(super) orphan_retries: u8,
    pub(super) initial_window: u8,
    pub(super) traffic_class: u8,
    pub(super) ecn: Ecn,
    pub(super) mtu_probing: MtuProbing,
    pub(super) burst_min: u8,
    pub(super) slow_start_after_idle: bool,
    pub(super) nodelay: bool,
    pub(super) pacing: bool,
    /// `u32::MAX` means no limit.
    pub(super) pacing_rate_max: u32,
    /// `u32::MAX` means no limit.
    pub(super) not_sent_low_water: u32,
    pub(super) congestion: Congestion,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        let mut settings = Self {
            receive_buffer: config.receive_buffer.clamp(BUFFER_MIN, BUFFER_MAX),
            receive_buffer_max: config.receive_buffer_max.min(BUFFER_MAX),
            send_buffer: config.send_buffer.clamp(BUFFER_MIN, BUFFER_MAX),
            send_buffer_max: config.send_buffer_max.clamp(BUFFER_MIN, BUFFER_MAX),
            offload: config.offload,
            keepalive_idle: Span(0),
            keepalive_interval: Span(0),
            user_timeout: Span::new(config.user_timeout.unwrap_or_default()),
            delayed_ack: Span::new(config.delayed_ack),
            timeout_min: Span::new(config.timeout_min),
            timeout_max: Span::new(config.timeout_max),
            fin_timeout: Span::new(config.fin_timeout),
            mss: config.mss.min(config.mss_max).max(MSS_MIN),
            keepalive_count: 0,
            syn_retries: config.syn_retries,
            syn_ack_retries: config.syn_ack_retries,
            retries: config.retries,
            orphan_retries: config.orphan_retries,
            initial_window: config.initial_window,
            traffic_class: config.traffic_class & !3,
            ecn: config.ecn,
            mtu_probing: config.mtu_probing,
            burst_min: config.burst_min.max(1),
            slow_start_after_idle: config.slow_start_after_idle,
            nodelay: config.nodelay,
            pacing: config.pacing,
            pacing_rate_max: u32::MAX,
            not_sent_low_water: config.not_sent_low_water.unwrap_or(u32::MAX).max(1),
            congestion: config.congestion,
        };
        settings.set_keepalive(config.keepalive);
        settings.set_pacing_rate_max(config.pacing_rate_max);
        settings
    }

    pub(super) fn syn_window(&self) -> u16 {
        u16::try_from(self.receive_buffer).unwrap_or(u16::MAX)
    }

    /// Whether the departure time of new data must be checked.
    #[inline]
    pub(super) fn paces(&self) -> bool {
        self.pacing || self.pacing_rate_max != u32::MAX
    }

    /// Bytes per second; `u64::MAX` is no limit.
    pub(super) fn pacing_rate_max(&self) -> u64 {
        if self.pacing_rate_max == u32::MAX {
            u64::MAX
        } else {
            self.pacing_rate_max.into()
        }
    }

    pub(super) fn set_pacing_rate_max(&mut self, limit: Option<u64>) {
        let limit = limit.and_then(|limit| u32::try_from(limit).ok());
        self.pacing_rate_max = limit.map_or(u32::MAX, |limit| limit.max(1));
    }

    pub(super) fn keepalive(&self) -> Option<Keepalive> {
        (self.keepalive_count > 0).then(|| Keepalive {
            idle: self.keepalive_idle.get(),
            interval: self.keepalive_interval.get(),
            count: self.keepalive_count,
        })
    }

    pub(super) fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        let Some(keepalive) = keepalive else {
            self.keepalive_count = 0;
            return;
        };
        self.keepalive_count = keepalive.count.max(1);
        self.keepalive_idle = Span::new(keepalive.idle);
        // At most one probe per millisecond.
        self.keepalive_interval = Span::new(keepalive.interval.max(Duration::from_millis(1)));
    }

    pub(super) fn user_timeout(&self) -> Option<Duration> {
        (self.user_timeout.0 > 0).then(|| self.user_timeout.get())
    }
}
