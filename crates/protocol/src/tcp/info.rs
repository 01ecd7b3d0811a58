//! What `getsockopt(TCP_INFO)` tells.

use core::time::Duration;

use super::State;

/// Numbers of a connection, named after Linux's `struct tcp_info` where it has
/// them. Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Info {
    /// `tcpi_state`, by RFC 9293's name.
    pub state: State,
    /// Timestamps are in use (`TCPI_OPT_TIMESTAMPS`).
    pub timestamps: bool,
    /// SACK is in use (`TCPI_OPT_SACK`).
    pub sack: bool,
    /// `tcpi_snd_wscale`: the peer's shift count.
    pub send_window_scale: u8,
    /// `tcpi_rcv_wscale`: ours.
    pub receive_window_scale: u8,
    /// `tcpi_rto`: the retransmission timeout, backed off.
    pub retransmission_timeout: Duration,
    /// `tcpi_rtt`: smoothed; zero before the first measurement.
    pub round_trip: Duration,
    /// `tcpi_rttvar`: mean deviation.
    pub round_trip_variation: Duration,
    /// `tcpi_min_rtt`: the smallest measured; zero before the first.
    pub round_trip_min: Duration,
    /// `tcpi_snd_mss`: payload of a full segment.
    pub send_mss: u32,
    /// `tcpi_rcv_mss`: the peer's, as estimated from what came.
    pub receive_mss: u32,
    /// `tcpi_snd_cwnd`, in bytes.
    pub congestion_window: u32,
    /// `tcpi_snd_ssthresh`, in bytes; `u32::MAX` before the first loss.
    pub slow_start_threshold: u32,
    /// What the peer's window allows beyond what it has acknowledged
    /// (`tcpi_snd_wnd`).
    pub send_window: u32,
    /// What we have promised to take (`tcpi_rcv_wnd`).
    pub receive_window: u32,
    /// `tcpi_rcv_space`: the receive buffer.
    pub receive_buffer: u32,
    /// The send buffer.
    pub send_buffer: u32,
    /// Sent and not acknowledged.
    pub unacknowledged: u32,
    /// `tcpi_notsent_bytes`: written and not sent.
    pub not_sent: u32,
    /// In order and not read.
    pub unread: u32,
    /// `tcpi_bytes_acked`.
    pub bytes_acknowledged: u64,
    /// `tcpi_bytes_received`: in order.
    pub bytes_received: u64,
    /// `tcpi_total_retrans`: segments sent again.
    pub retransmissions: u32,
    /// Retransmission timeouts since the connection began.
    pub timeouts: u32,
    /// Times that fast recovery was entered.
    pub fast_recoveries: u32,
    /// `tcpi_segs_in`.
    pub segments_received: u32,
    /// `tcpi_segs_out`.
    pub segments_sent: u32,
    /// Segments that were refused: sequence numbers outside the window, old
    /// timestamps, acknowledgments of what was never sent.
    pub segments_refused: u32,
    /// `tcpi_rcv_ooopack`: segments that came beyond a hole.
    pub out_of_order: u32,
}
