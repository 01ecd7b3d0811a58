//! `TCP_INFO` in Linux's layout.

use tidewall::TcpStream;
use tidewall_protocol::tcp::{Info, State};

/// Defines the fields once: as a structure, by name, and in Linux's layout.
macro_rules! tcp_info {
    ($($(#[$documentation:meta])* $field:ident: $type:ty, $name:literal;)*) => {
        /// `struct tcp_info` of `linux/tcp.h`, in its units: windows in segments, times
        /// in microseconds (milliseconds if the name begins with `last`). A value that
        /// the engine does not count is zero.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct TcpInfo {
            $($(#[$documentation])* pub $field: $type,)*
        }

        impl TcpInfo {
            /// Returns a field by its name in `linux/tcp.h`, for example `tcpi_snd_cwnd`.
            pub fn field(&self, name: &str) -> Option<u64> {
                match name {
                    $($name => Some(u64::from(self.$field)),)*
                    _ => None,
                }
            }

            /// Returns the bytes as `getsockopt` returns them on this machine.
            pub fn to_bytes(&self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(256);
                $(bytes.extend_from_slice(&self.$field.to_ne_bytes());)*
                bytes
            }
        }
    };
}

tcp_info! {
    /// Linux's number of the state (1 is ESTABLISHED).
    state: u8, "tcpi_state";
    /// 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    ca_state: u8, "tcpi_ca_state";
    /// Timeouts in a row without progress.
    retransmits: u8, "tcpi_retransmits";
    /// Unanswered probes of a closed window.
    probes: u8, "tcpi_probes";
    /// Doublings of the timeout.
    backoff: u8, "tcpi_backoff";
    /// 1 timestamps, 2 SACK, 4 window scale, 8 ECN, 16 ECN seen, 32 data in SYN.
    options: u8, "tcpi_options";
    /// The peer's shift count in the low half, the local one in the high half.
    window_scales: u8, "tcpi_wscale";
    /// Bit 0: the rate sample was limited by the application; bits 1 and 2: why
    /// a fast open failed.
    limits: u8, "tcpi_delivery_rate_app_limited";
    /// Retransmission timeout.
    rto: u32, "tcpi_rto";
    /// Delayed acknowledgment timeout.
    ato: u32, "tcpi_ato";
    /// Bytes of a full segment sent.
    snd_mss: u32, "tcpi_snd_mss";
    /// Bytes of a full segment received.
    rcv_mss: u32, "tcpi_rcv_mss";
    /// Segments in flight; for a listener, connections that wait to be accepted.
    unacked: u32, "tcpi_unacked";
    /// Segments in flight that were selectively acknowledged.
    sacked: u32, "tcpi_sacked";
    /// Segments presumed lost.
    lost: u32, "tcpi_lost";
    /// Segments retransmitted and not acknowledged.
    retrans: u32, "tcpi_retrans";
    /// Unused; Linux no longer sets it.
    fackets: u32, "tcpi_fackets";
    /// Milliseconds since data was sent.
    last_data_sent: u32, "tcpi_last_data_sent";
    /// Zero; Linux does not record it either.
    last_ack_sent: u32, "tcpi_last_ack_sent";
    /// Milliseconds since data was received.
    last_data_recv: u32, "tcpi_last_data_recv";
    /// Milliseconds since an acknowledgment was received.
    last_ack_recv: u32, "tcpi_last_ack_recv";
    /// Path MTU.
    pmtu: u32, "tcpi_pmtu";
    /// Receive window's limit.
    rcv_ssthresh: u32, "tcpi_rcv_ssthresh";
    /// Smoothed round-trip time.
    rtt: u32, "tcpi_rtt";
    /// Its mean deviation.
    rttvar: u32, "tcpi_rttvar";
    /// Slow start threshold in segments.
    snd_ssthresh: u32, "tcpi_snd_ssthresh";
    /// Congestion window in segments.
    snd_cwnd: u32, "tcpi_snd_cwnd";
    /// Maximum segment size announced.
    advmss: u32, "tcpi_advmss";
    /// Reordering, in segments, that is tolerated before a loss is presumed.
    reordering: u32, "tcpi_reordering";
    /// Receiver's estimate of the round-trip time.
    rcv_rtt: u32, "tcpi_rcv_rtt";
    /// Receive buffer.
    rcv_space: u32, "tcpi_rcv_space";
    /// Segments retransmitted since the beginning.
    total_retrans: u32, "tcpi_total_retrans";
    /// Bytes per second.
    pacing_rate: u64, "tcpi_pacing_rate";
    /// The limit of the pacing rate.
    max_pacing_rate: u64, "tcpi_max_pacing_rate";
    /// Bytes acknowledged.
    bytes_acked: u64, "tcpi_bytes_acked";
    /// Bytes received in order.
    bytes_received: u64, "tcpi_bytes_received";
    /// Segments sent.
    segs_out: u32, "tcpi_segs_out";
    /// Segments received.
    segs_in: u32, "tcpi_segs_in";
    /// Bytes written but not sent.
    notsent_bytes: u32, "tcpi_notsent_bytes";
    /// Smallest round-trip time.
    min_rtt: u32, "tcpi_min_rtt";
    /// Segments with data received.
    data_segs_in: u32, "tcpi_data_segs_in";
    /// Segments with data sent.
    data_segs_out: u32, "tcpi_data_segs_out";
    /// Bytes per second that arrived.
    delivery_rate: u64, "tcpi_delivery_rate";
    /// Microseconds with data to send.
    busy_time: u64, "tcpi_busy_time";
    /// The part of that limited by the peer's window.
    rwnd_limited: u64, "tcpi_rwnd_limited";
    /// The part of that limited by the send buffer.
    sndbuf_limited: u64, "tcpi_sndbuf_limited";
    /// Segments delivered.
    delivered: u32, "tcpi_delivered";
    /// Segments of those that were marked for congestion.
    delivered_ce: u32, "tcpi_delivered_ce";
    /// Bytes sent.
    bytes_sent: u64, "tcpi_bytes_sent";
    /// Bytes of those that were retransmissions.
    bytes_retrans: u64, "tcpi_bytes_retrans";
    /// D-SACKs received.
    dsack_dups: u32, "tcpi_dsack_dups";
    /// Reorderings seen.
    reord_seen: u32, "tcpi_reord_seen";
    /// Segments received beyond a hole.
    rcv_ooopack: u32, "tcpi_rcv_ooopack";
    /// The peer's window.
    snd_wnd: u32, "tcpi_snd_wnd";
    /// The local window, as announced.
    rcv_wnd: u32, "tcpi_rcv_wnd";
    /// Changes of the flow's hash.
    rehash: u32, "tcpi_rehash";
    /// Retransmission timeouts.
    total_rto: u16, "tcpi_total_rto";
    /// Recoveries from retransmission timeouts.
    total_rto_recoveries: u16, "tcpi_total_rto_recoveries";
    /// Milliseconds spent in those recoveries.
    total_rto_time: u32, "tcpi_total_rto_time";
    /// Segments received that were marked for congestion.
    received_ce: u32, "tcpi_received_ce";
    /// Bytes delivered and received by ECN codepoint, for accurate ECN, which is not
    /// implemented.
    delivered_e1_bytes: u32, "tcpi_delivered_e1_bytes";
    /// As above.
    delivered_e0_bytes: u32, "tcpi_delivered_e0_bytes";
    /// As above.
    delivered_ce_bytes: u32, "tcpi_delivered_ce_bytes";
    /// As above.
    received_e1_bytes: u32, "tcpi_received_e1_bytes";
    /// As above.
    received_e0_bytes: u32, "tcpi_received_e0_bytes";
    /// As above.
    received_ce_bytes: u32, "tcpi_received_ce_bytes";
    /// The accurate ECN mode, and more options.
    options2: u32, "tcpi_options2";
}

/// Linux's number of a state (`include/net/tcp_states.h`).
fn linux_state(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

impl TcpInfo {
    /// Returns the values of a socket that is neither connected nor listening.
    pub(crate) fn unconnected() -> Self {
        Self {
            state: linux_state(State::Closed),
            ..Self::default()
        }
    }

    /// Returns a listener's values: connections that wait, and the backlog.
    pub(crate) fn of_listener(waiting: u32, backlog: u32) -> Self {
        Self {
            state: 10,
            unacked: waiting,
            sacked: backlog,
            ..Self::default()
        }
    }

    /// Returns a connection's values. `mtu` is its interface's; `announced` is the
    /// maximum segment size that it announced. `None` for a kernel connection.
    pub(crate) fn of(stream: &TcpStream, mtu: u32, announced: u32) -> Option<Self> {
        let info: Info = stream.info()?;
        let sending = stream.sending_times()?;
        let since_received = stream.since_received()?;
        let micros =
            |time: core::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let mss = info.send_mss.max(1);
        let synchronized = !matches!(info.state, State::SynSent | State::Closed);
        let scaling = synchronized && (info.send_window_scale > 0 || info.receive_window_scale > 0);
        Some(Self {
            state: linux_state(info.state),
            options: u8::from(info.timestamps)
                | u8::from(info.sack) << 1
                | u8::from(scaling) << 2
                | u8::from(info.ecn) << 3
                | u8::from(info.ecn_seen) << 4
                | u8::from(info.syn_data) << 5,
            limits: (info.fast_open_failure as u8) << 1,
            window_scales: info.send_window_scale | info.receive_window_scale << 4,
            rto: micros(info.retransmission_timeout),
            snd_mss: info.send_mss,
            rcv_mss: info.receive_mss,
            unacked: info.unacknowledged.div_ceil(mss),
            pmtu: mtu,
            rtt: micros(info.round_trip),
            rttvar: micros(info.round_trip_variation),
            snd_ssthresh: match info.slow_start_threshold {
                // `TCP_INFINITE_SSTHRESH`
                threshold if threshold >= 0x7fff_ffff => 0x7fff_ffff,
                threshold => threshold / mss,
            },
            snd_cwnd: info.congestion_window / mss,
            advmss: announced,
            ca_state: info.congestion_state,
            retransmits: info.retries,
            backoff: info.backoff,
            sacked: info.sacked.div_ceil(mss),
            lost: info.lost.div_ceil(mss),
            retrans: info.retransmitted.div_ceil(mss),
            reordering: info.reordering,
            reord_seen: info.reordering_seen,
            dsack_dups: info.duplicates,
            rcv_space: info.receive_buffer,
            total_retrans: info.retransmissions,
            bytes_acked: info.bytes_acknowledged,
            bytes_received: info.bytes_received,
            segs_out: info.segments_sent,
            segs_in: info.segments_received,
            notsent_bytes: info.not_sent,
            last_data_recv: u32::try_from(since_received.as_millis()).unwrap_or(u32::MAX),
            busy_time: sending.busy.as_micros() as u64,
            rwnd_limited: sending.window_limited.as_micros() as u64,
            sndbuf_limited: sending.buffer_limited.as_micros() as u64,
            min_rtt: if info.round_trip_min.is_zero() {
                u32::MAX
            } else {
                micros(info.round_trip_min)
            },
            delivered: info.delivered,
            delivered_ce: info.delivered_ce,
            rcv_ooopack: info.out_of_order,
            snd_wnd: info.send_window,
            rcv_wnd: info.receive_window,
            total_rto: u16::try_from(info.timeouts).unwrap_or(u16::MAX),
            ..Self::default()
        })
    }
}
