//! The configuration of a connection, and how it is kept.

use core::time::Duration;

use super::connection::{BUFFER_MAX, BUFFER_MIN, MSS_MIN};
use super::{Congestion, Framing};

/// How silent peers are asked whether they are there (RFC 9293 §3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// From probe to probe (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Probes without an answer after which the connection is given up
    /// (`TCP_KEEPCNT`).
    pub count: u8,
}

impl Default for Keepalive {
    /// Linux's: two hours, 75 seconds, nine probes.
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
    /// It is asked for, too (1).
    Active = 2,
}

/// When the path's MTU is found out by sending larger segments (RFC 4821);
/// `tcp_mtu_probing`. ICMP errors are believed in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MtuProbing {
    /// Never (0, Linux's default).
    Off = 0,
    /// Once segments seem to vanish for their size, and when what an ICMP error
    /// has said is ten minutes old (1).
    #[default]
    BlackHole = 1,
    /// From the beginning: segments are of 1024 bytes (IPv4) or 1220 (IPv6) until
    /// larger ones have got through (2).
    Always = 2,
}

/// The configuration of a connection. The default is Linux's; the maximum
/// segment size is that of Ethernet over IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The maximum segment size we announce and never exceed, in bytes of
    /// payload and TCP options: the link's MTU less 40 (IPv4) or 60 (IPv6).
    pub mss: u16,
    /// The same whatever the link and the family (`TCP_MAXSEG`); `u16::MAX` is no
    /// limit.
    pub mss_max: u16,
    /// Bytes of the receive buffer at first, and so the window.
    pub receive_buffer: u32,
    /// What the receive buffer may grow to while the application keeps up; also
    /// decides the window scale. Not above 1 GiB.
    pub receive_buffer_max: u32,
    /// Bytes of the send buffer at first.
    pub send_buffer: u32,
    /// What the send buffer may grow to with the congestion window.
    pub send_buffer_max: u32,
    /// The most payload of one [`Outgoing`](super::Outgoing), which the device
    /// then cuts into segments; 0: one segment, for bursts are cut here. A burst is
    /// no more than half of the congestion window, and about what leaves in a
    /// millisecond at twice the window a round trip in slow start and 1.2 times it
    /// from then on, more where the path is short; as Linux's (`tcp_tso_autosize`).
    pub offload: u32,
    /// Bytes not sent above which no more is taken (`TCP_NOTSENT_LOWAT`); see
    /// [`Connection::set_not_sent_low_water`](super::Connection::set_not_sent_low_water).
    pub not_sent_low_water: Option<u32>,
    /// The least that a burst may be cut down to where it is to take no more than
    /// about a millisecond, in segments (`tcp_min_tso_segs`); see
    /// [`Config::offload`].
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
    /// Give up when data is not acknowledged for so long (`TCP_USER_TIMEOUT`,
    /// RFC 5482). Without one, [`Config::retries`] decides.
    pub user_timeout: Option<Duration>,
    /// SYNs retransmitted before `connect` fails (`tcp_syn_retries`).
    pub syn_retries: u8,
    /// SYN-ACKs retransmitted before a half-open connection is forgotten
    /// (`tcp_synack_retries`); one more where a SYN with data has opened it (RFC
    /// 7413).
    pub syn_ack_retries: u8,
    /// Retransmissions of the same data before giving up (`tcp_retries2`).
    pub retries: u8,
    /// The same for connections that the application has closed
    /// (`tcp_orphan_retries`; Linux takes 8 for its 0).
    pub orphan_retries: u8,
    /// The initial congestion window in segments (RFC 6928).
    pub initial_window: u8,
    /// A congestion window that was not used for a retransmission timeout is that
    /// of the beginning, or nearly (RFC 2861; `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// How the congestion window moves (`TCP_CONGESTION`).
    pub congestion: Congestion,
    /// Let data leave in bursts of about a millisecond's worth, at twice the
    /// window a round trip in slow start and 1.2 times it from then on (as Linux
    /// with the `fq` packet scheduler), where the round trip is a millisecond or
    /// more.
    pub pacing: bool,
    /// Send no faster, in bytes a second (`SO_MAX_PACING_RATE`); from 1 to
    /// 4,294,967,294, more is no limit. So little that a segment would take more
    /// than a minute counts as a segment a minute.
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
    /// Search for the path's MTU.
    pub mtu_probing: MtuProbing,
    /// Carry frames: then without timestamps, Fast Open and a search for the
    /// path's MTU, and with [`Config::nodelay`].
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
    /// The window scale that a SYN or SYN-ACK is to announce: the smallest with
    /// which the window field can say the largest receive buffer.
    pub fn window_scale(&self) -> u8 {
        let space = self.receive_buffer.max(self.receive_buffer_max);
        let bits = u32::BITS - space.leading_zeros();
        // 14 at most (RFC 7323 §2.3).
        bits.saturating_sub(16).min(14) as u8
    }

    /// The window field of a SYN or SYN-ACK, which is never scaled (RFC 7323
    /// §2.2). A connection from a passive handshake takes it for announced.
    pub fn syn_window(&self) -> u16 {
        u16::try_from(self.receive_buffer.max(BUFFER_MIN)).unwrap_or(u16::MAX)
    }
}

/// A length of time in milliseconds, as small as a hundred thousand connections
/// want it; 49 days at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span(pub(super) u32);

impl Span {
    /// Rounded up: a timer may be late, never early.
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

/// A [`Config`] as a connection keeps it: within bounds, and small.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) receive_buffer: u32,
    pub(super) receive_buffer_max: u32,
    pub(super) send_buffer: u32,
    pub(super) send_buffer_max: u32,
    pub(super) offload: u32,
    /// As [`Keepalive`]; a count of zero is none.
    pub(super) keepalive_idle: Span,
    pub(super) keepalive_interval: Span,
    /// Zero is none.
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
    /// `u32::MAX` is none.
    pub(super) pacing_rate_max: u32,
    /// `u32::MAX` is none.
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

    /// Whether the time that new data may leave has to be looked at.
    #[inline]
    pub(super) fn paces(&self) -> bool {
        self.pacing || self.pacing_rate_max != u32::MAX
    }

    /// Bytes a second; `u64::MAX` is no limit.
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
        // A probe a millisecond at the most.
        self.keepalive_interval = Span::new(keepalive.interval.max(Duration::from_millis(1)));
    }

    pub(super) fn user_timeout(&self) -> Option<Duration> {
        (self.user_timeout.0 > 0).then(|| self.user_timeout.get())
    }
}
