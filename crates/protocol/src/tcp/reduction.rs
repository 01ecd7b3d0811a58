//! The window while it is reduced: proportional rate reduction (RFC 6937 as updated by
//! RFC 9937), with the bounds that Linux chooses. It paces both recovery and the response
//! to an echoed congestion mark.

use super::connection::Connection;
use super::recovery::{CaState, Recovery};
use super::tail_probe::TailProbe;

/// State of one reduction; in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Reduction {
    pub(super) prior_cwnd: u32,
    /// Bytes that have arrived since it began.
    pub(super) delivered: u32,
    /// Bytes sent since it began.
    pub(super) sent: u32,
}

impl Recovery {
    /// True while the window is being reduced: recovery, or the round trip after
    /// an echoed mark.
    #[inline]
    pub(super) fn is_reducing(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }
}

impl Connection {
    /// Begins a reduction: all data in flight now belongs to it.
    pub(super) fn begin_reduction(&mut self) {
        let mss = u32::from(self.send.mss);
        self.recovery.high_seq = self.send.nxt;
        self.recovery.probe = TailProbe::None;
        self.recovery.reduction = Reduction {
            prior_cwnd: self.congestion.window(),
            delivered: 0,
            sent: 0,
        };
        self.congestion.on_loss(mss);
        self.ecn.reduced();
        // The window falls as acknowledgments come, not at once.
        self.congestion
            .set_window(self.recovery.reduction.prior_cwnd);
    }

    /// Reduces the window once for the data in flight (RFC 3168 §6.1.2, Linux's state
    /// CWR). The network has marked a segment as having met congestion, and nothing is
    /// lost. The caller calls this at every echo.
    pub(super) fn enter_cwr(&mut self) {
        self.recovery.undo.forbid();
        if self.recovery.ca_state < CaState::Cwr {
            self.recovery.undo.marker = None;
            self.begin_reduction();
            self.recovery.ca_state = CaState::Cwr;
        }
    }

    /// Sets the window after one acknowledgment reported `delivered` bytes arrived and
    /// `lost` bytes lost; `advanced` when it moved SND.UNA.
    pub(super) fn reduce_window(&mut self, delivered: u32, lost: u32, advanced: bool) {
        if delivered == 0 {
            return;
        }
        let mss = u32::from(self.send.mss);
        let pipe = self.pipe();
        let threshold = self.congestion.threshold();
        let reduction = &mut self.recovery.reduction;
        reduction.delivered = reduction.delivered.saturating_add(delivered);
        let mut allowed = if pipe > threshold {
            let product = u64::from(threshold) * u64::from(reduction.delivered);
            let share = product / u64::from(reduction.prior_cwnd.max(1));
            // In whole segments, as Linux counts.
            let share = u32::try_from(share).unwrap_or(u32::MAX);
            share
                .div_ceil(mss)
                .saturating_mul(mss)
                .saturating_sub(reduction.sent)
        } else {
            let unused = reduction.delivered.saturating_sub(reduction.sent);
            let mut allowed = unused.max(delivered);
            if advanced && lost == 0 {
                allowed = allowed.saturating_add(mss);
            }
            allowed.min(threshold - pipe)
        };
        if reduction.sent == 0 {
            // The first retransmission leaves at once.
            allowed = allowed.max(mss);
        }
        self.congestion.set_window(pipe.saturating_add(allowed));
    }

    /// Ends the reduction; unless it was undone, the window is the threshold.
    pub(super) fn end_reduction(&mut self) {
        let threshold = self.congestion.threshold();
        if threshold != u32::MAX
            && (self.recovery.ca_state == CaState::Cwr || self.recovery.undo.marker.is_some())
        {
            self.congestion.set_window(threshold);
        }
    }
}
