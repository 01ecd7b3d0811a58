//! The result of `getsockopt(TCP_INFO)`.

use core::time::Duration;

use super::send::milliseconds;
use super::{Congestion, Connection, FastOpenFailure, State, Time};
use tidewall_wire::tcp::before;

/// Statistics of a connection, named after Linux's `struct tcp_info` where it has them.
/// Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Info {
    /// `tcpi_state`, by RFC 9293's name.
    pub state: State,
    /// Timestamps are in use (`TCPI_OPT_TIMESTAMPS`).
    pub timestamps: bool,
    /// SACK is in use (`TCPI_OPT_SACK`).
    pub sack: bool,
    /// ECN is in use (`TCPI_OPT_ECN`).
    pub ecn: bool,
    /// Frames are carried (ACP).
    pub frames: bool,
    /// Data with an ECN codepoint has come (`TCPI_OPT_ECN_SEEN`).
    pub ecn_seen: bool,
    /// Data went with the SYN and was accepted (`TCPI_OPT_SYN_DATA`).
    pub syn_data: bool,
    /// `tcpi_fastopen_client_fail`: why it was not accepted.
    pub fast_open_failure: FastOpenFailure,
    /// `tcpi_snd_wscale`: the peer's shift count.
    pub send_window_scale: u8,
    /// `tcpi_rcv_wscale`: our shift count.
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
    /// `tcpi_pmtu`: the assumed path MTU, as far as ICMP or probing has shown; headers
    /// included.
    pub path_mtu: u32,
    /// `tcpi_rcv_mss`: the peer's segment size, as estimated from received data.
    pub receive_mss: u32,
    /// The algorithm of congestion control (`TCP_CONGESTION`).
    pub congestion: Congestion,
    /// `tcpi_snd_cwnd`, in bytes.
    pub congestion_window: u32,
    /// `tcpi_snd_ssthresh`, in bytes; `u32::MAX` before the first loss.
    pub slow_start_threshold: u32,
    /// `tcpi_pacing_rate`, in bytes per second, whether pacing is on or not; `u64::MAX`
    /// before the first measurement of the round trip.
    pub pacing_rate: u64,
    /// `tcpi_max_pacing_rate`, in bytes per second; `u64::MAX` is no limit.
    pub pacing_rate_max: u64,
    /// The peer's window beyond the data that it has acknowledged (`tcpi_snd_wnd`).
    pub send_window: u32,
    /// The window that we have announced (`tcpi_rcv_wnd`).
    pub receive_window: u32,
    /// `tcpi_rcv_space`: the receive buffer.
    pub receive_buffer: u32,
    /// The send buffer.
    pub send_buffer: u32,
    /// Bytes sent and not acknowledged.
    pub unacknowledged: u32,
    /// `tcpi_notsent_bytes`: bytes written and not sent.
    pub not_sent: u32,
    /// Bytes in order and not read.
    pub unread: u32,
    /// `tcpi_bytes_acked`.
    pub bytes_acknowledged: u64,
    /// `tcpi_bytes_received`: in order.
    pub bytes_received: u64,
    /// `tcpi_total_retrans`: segments retransmitted.
    pub retransmissions: u32,
    /// Retransmission timeouts since the connection began.
    pub timeouts: u32,
    /// Those that F-RTO has shown to be spurious (`LINUX_MIB_TCPSPURIOUSRTOS`).
    pub spurious_timeouts: u32,
    /// Times that fast recovery was entered.
    pub fast_recoveries: u32,
    /// Number of recoveries or timeouts that were spurious, so that the window was
    /// restored.
    pub recoveries_undone: u32,
    /// Tail-loss probes sent (`LINUX_MIB_TCPLOSSPROBES`).
    pub loss_probes: u32,
    /// `tcpi_ca_state`: 0 open, 1 disorder, 2 reduced window, 3 recovery, 4 loss.
    pub congestion_state: u8,
    /// `tcpi_sacked`, in bytes; without SACK, from duplicate acknowledgments.
    pub sacked: u32,
    /// `tcpi_lost`, in bytes.
    pub lost: u32,
    /// `tcpi_retrans`, in bytes: retransmitted and not acknowledged.
    pub retransmitted: u32,
    /// `tcpi_retransmits`: retransmission timeouts without an answer.
    pub retries: u8,
    /// `tcpi_backoff`: times that the timeout was doubled.
    pub backoff: u8,
    /// `tcpi_reordering`: the degree of reordering, in segments.
    pub reordering: u32,
    /// `tcpi_reord_seen`: times that reordering was seen.
    pub reordering_seen: u32,
    /// `tcpi_dsack_dups`: segments that D-SACKs have reported.
    pub duplicates: u32,
    /// `tcpi_delivered`: segments that have arrived, our SYN among them, even if their
    /// data was retransmitted. Computed in full segments from the bytes that each
    /// acknowledgment covers.
    pub delivered: u32,
    /// `tcpi_delivered_ce`: segments whose acknowledgments had ECE
    /// set; counted from the bytes they cover.
    pub delivered_ce: u32,
    /// `tcpi_segs_in`.
    pub segments_received: u32,
    /// `tcpi_segs_out`.
    pub segments_sent: u32,
    /// Segments that were refused: sequence numbers outside the window, old timestamps,
    /// acknowledgments of data never sent.
    pub segments_refused: u32,
    /// `tcpi_rcv_ooopack`: segments that arrived beyond a hole.
    pub out_of_order: u32,
}

impl Connection {
    /// How long ago data last arrived or, if none has, the handshake was complete
    /// (`tcpi_last_data_recv`). To the millisecond, within 49 days.
    pub fn since_received(&self, now: Time) -> Duration {
        let age = milliseconds(now).wrapping_sub(self.receive.last_data);
        Duration::from_millis(age.into())
    }

    /// Returns the statistics of this connection.
    pub fn info(&self) -> Info {
        let microseconds = |value: u32| Duration::from_micros(value.into());
        let counters = &self.counters;
        let expected = self.next_expected();
        Info {
            state: if self.send.closed && self.is_fast_opening() {
                // A FIN does not wait for the handshake.
                State::FinWait1
            } else {
                self.state
            },
            timestamps: self.timestamps,
            sack: self.sack,
            ecn: self.ecn.is_agreed(),
            frames: self.is_framed(),
            ecn_seen: self.ecn.has_seen(),
            syn_data: self.took_syn_data(),
            fast_open_failure: self.fast_open_failure(),
            send_window_scale: self.send.wscale,
            receive_window_scale: self.receive.wscale,
            retransmission_timeout: self.retransmission_timeout(),
            round_trip: microseconds(self.round_trip.srtt()),
            round_trip_variation: microseconds(self.round_trip.rttvar()),
            round_trip_min: microseconds(self.round_trip.min),
            send_mss: self.send.mss.into(),
            path_mtu: u32::from(self.path.limit().min(self.config.mss)) + self.headers_len(),
            receive_mss: self.receive.mss.into(),
            congestion: self.congestion.congestion(),
            congestion_window: self.congestion.window(),
            slow_start_threshold: self.congestion.threshold(),
            pacing_rate: self.pacing_rate(),
            pacing_rate_max: self.config.pacing_rate_max(),
            send_window: self.send.wnd,
            receive_window: if before(expected, self.receive.rcv_adv) {
                self.receive.rcv_adv.wrapping_sub(expected)
            } else {
                0
            },
            receive_buffer: self.receive.buffer_limit,
            send_buffer: self.send_limit(),
            unacknowledged: self.send.outstanding(),
            not_sent: self.unsent(),
            unread: self.receive.assembler.unread(),
            bytes_acknowledged: counters.bytes_acknowledged,
            bytes_received: counters.bytes_received,
            retransmissions: counters.retransmissions,
            timeouts: counters.timeouts,
            spurious_timeouts: counters.spurious_timeouts,
            fast_recoveries: counters.fast_recoveries,
            recoveries_undone: counters.recoveries_undone,
            loss_probes: counters.loss_probes,
            congestion_state: self.recovery.ca_state as u8,
            sacked: self.recovery.board.sacked(),
            lost: self.recovery.board.lost(),
            retransmitted: self.recovery.board.retransmitted(),
            retries: self.send.retries,
            backoff: self.round_trip.backoff,
            reordering: self.recovery.rack.reordering.into(),
            reordering_seen: self.recovery.rack.reord_seen,
            duplicates: counters.dsack_duplicates,
            delivered: {
                let synchronizing = matches!(self.state, State::SynSent | State::SynReceived);
                counters.delivered.wrapping_add((!synchronizing).into())
            },
            delivered_ce: self.ecn.delivered,
            segments_received: counters.segments_received,
            segments_sent: counters.segments_sent,
            segments_refused: counters.segments_refused,
            out_of_order: counters.out_of_order,
        }
    }
}
