//! Options that an application sets for its connections before they begin.

use core::time::Duration;

use super::{Config, Congestion, Errno, Framing, Keepalive};

/// Initial options of connections, both those of a listener and one that connects.
/// `None`, or false, keeps the stack's value ([`Sysctl`](super::Sysctl)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamOptions {
    /// TCP_NODELAY: small segments are sent at once.
    pub nodelay: bool,
    /// SO_KEEPALIVE and its times: a silent peer is probed.
    pub keepalive: Option<Keepalive>,
    /// SO_RCVBUF, in bytes that may wait to be read; with `None` it grows as needed.
    pub receive_buffer: Option<u32>,
    /// SO_SNDBUF, in bytes that may wait to be sent and acknowledged; with `None` it
    /// grows as needed.
    pub send_buffer: Option<u32>,
    /// TCP_MAXSEG, 88 to 32,767 bytes of payload and TCP options: announced to the
    /// peer and never exceeded.
    pub maximum_segment: Option<u16>,
    /// TCP_SYNCNT, 1 to 127: SYNs that are retransmitted before `connect` fails.
    pub syn_retries: Option<u8>,
    /// TCP_USER_TIMEOUT, in milliseconds: how long data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
    /// TCP_LINGER2, in seconds, at most two minutes: how long FIN-WAIT-2 lasts.
    pub fin_timeout: Option<Duration>,
    /// TCP_NOTSENT_LOWAT, in bytes, at least 1: more data is accepted only while less
    /// than that is unsent.
    pub not_sent_low_water: Option<u32>,
    /// TCP_CONGESTION: the congestion control algorithm.
    pub congestion: Option<Congestion>,
    /// The kind of data on the connections: a stream or frames.
    pub framing: Framing,
    /// IP_TOS, IPV6_TCLASS: the type of service; its two ECN bits are ignored.
    pub traffic_class: u8,
}

impl StreamOptions {
    /// The longest time of TCP_LINGER2 (Linux `TCP_FIN_TIMEOUT_MAX`).
    pub const FIN_TIMEOUT_MAX: Duration = Duration::from_secs(120);

    /// Checks that all options are within their bounds.
    ///
    /// # Errors
    /// EINVAL for one that is out of bounds.
    pub fn check(&self) -> Result<(), Errno> {
        let within = self
            .maximum_segment
            .is_none_or(|bytes| (88..=32_767).contains(&bytes))
            && self
                .syn_retries
                .is_none_or(|count| (1..=127).contains(&count));
        if within { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Applies these options to a configuration.
    pub fn apply(&self, config: Config) -> Config {
        let mut config = Config {
            nodelay: self.nodelay,
            keepalive: self.keepalive,
            user_timeout: self.user_timeout,
            traffic_class: self.traffic_class,
            framing: self.framing,
            syn_retries: self.syn_retries.unwrap_or(config.syn_retries),
            not_sent_low_water: self.not_sent_low_water.or(config.not_sent_low_water),
            congestion: self.congestion.unwrap_or(config.congestion),
            mss_max: self.maximum_segment.unwrap_or(config.mss_max),
            ..config
        };
        if let Some(time) = self.fin_timeout {
            config.fin_timeout = time.min(Self::FIN_TIMEOUT_MAX);
        }
        if let Some(bytes) = self.receive_buffer {
            config.receive_buffer = bytes;
            config.receive_buffer_max = bytes;
        }
        if let Some(bytes) = self.send_buffer {
            config.send_buffer = bytes;
            config.send_buffer_max = bytes;
        }
        config
    }
}
