//! Loss recovery: Linux's states Open, Disorder, CWR, Recovery and Loss, and the
//! transitions between them.
//!
//! With SACK, losses are found by RACK (RFC 8985), which covers what RFC 6675 finds;
//! without SACK, by duplicates (RFC 6582). After a timeout F-RTO (RFC 5682) determines
//! whether anything was lost at all.

use super::acknowledgment::Feedback;
use super::connection::{Connection, count};
use super::rack::Rack;
use super::reduction::Reduction;
use super::scoreboard::{LOST, Losses, SACKED, Scoreboard, Verdict};
use super::tail_probe::TailProbe;
use super::timers::Timer;
use super::undo::Undo;
use super::{Time, microseconds};
use tidewall_wire::tcp::before;

/// Linux's `tcp_ca_state`, in order of severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub(super) enum CaState {
    /// Nothing is lost or reordered.
    #[default]
    Open = 0,
    /// A segment has arrived out of order, or twice.
    Disorder = 1,
    /// The window is being reduced for a mark (ECE), and nothing is lost.
    Cwr = 2,
    /// Fast recovery (RFC 5681 §3.2).
    Recovery = 3,
    /// After a retransmission timeout, or when all data in flight was too large.
    Loss = 4,
}

impl CaState {
    pub(super) const ALL: [Self; 5] = [
        Self::Open,
        Self::Disorder,
        Self::Cwr,
        Self::Recovery,
        Self::Loss,
    ];
}

/// The purpose of the running retransmission timer (Linux `icsk_pending`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(super) enum RtxTimer {
    /// The retransmission timeout (RFC 6298), or the persist timer.
    #[default]
    Retransmission = 0,
    /// The tail-loss probe (RFC 8985 §7).
    Probe = 1,
    /// The reordering timer (RFC 8985 §6.3).
    Reordering = 2,
}

impl RtxTimer {
    pub(super) const ALL: [Self; 3] = [Self::Retransmission, Self::Probe, Self::Reordering];
}

/// The losses, and the state of their repair.
pub(super) struct Recovery {
    pub(super) board: Scoreboard,
    pub(super) rack: Rack,
    pub(super) ca_state: CaState,
    pub(super) rtx_timer: RtxTimer,
    /// Recovery or reduction end when this is acknowledged (RFC 6582's `recover`).
    pub(super) high_seq: u32,
    /// Number of selectively acknowledged segments, at least; without SACK, of duplicate
    /// acknowledgments.
    pub(super) sacked_out: u32,
    pub(super) probe: TailProbe,
    pub(super) undo: Undo,
    pub(super) reduction: Reduction,
    /// F-RTO has not decided yet.
    pub(super) frto: bool,
    /// F-RTO wants new data sent before anything is retransmitted (RFC 5682 §2.1,
    /// step 2b).
    pub(super) frto_new_data: bool,
    /// Start and end of a segment in flight that tests whether the path carries its size.
    /// If it alone is lost, that is not congestion.
    pub(super) path_probe: Option<(u32, u32)>,
}

impl Recovery {
    /// State of a connection with everything below `sequence` acknowledged.
    pub(super) fn new(sequence: u32) -> Self {
        Self {
            board: Scoreboard::new(sequence),
            rack: Rack::new(),
            ca_state: CaState::Open,
            rtx_timer: RtxTimer::Retransmission,
            high_seq: sequence,
            sacked_out: 0,
            probe: TailProbe::None,
            undo: Undo::default(),
            reduction: Reduction::default(),
            frto: false,
            frto_new_data: false,
            path_probe: None,
        }
    }

    /// True while nothing is lost, doubtful or selectively acknowledged.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.ca_state == CaState::Open && self.probe == TailProbe::None
    }

    /// Bytes in flight (RFC 6675 §4, `SetPipe`).
    #[inline]
    pub(super) fn pipe(&self, outstanding: u32) -> u32 {
        let pipe = outstanding.wrapping_sub(self.board.left_network());
        // Without SACK the estimate may be too high.
        if pipe > u32::MAX / 2 { 0 } else { pipe }
    }
}

impl Connection {
    /// Applies an out-of-the-ordinary acknowledgment to recovery (Linux
    /// `tcp_fastretrans_alert`).
    pub(super) fn recover(&mut self, seen: &mut Feedback, now: Time) {
        if seen.ece {
            self.recovery.undo.forbid();
        }
        if seen.reneged && seen.advanced {
            self.delay_reneging_timeout(seen, now);
            return;
        }
        let passed = !before(self.send.una, self.recovery.high_seq);
        match self.recovery.ca_state {
            CaState::Open => self.recovery.undo.retrans_stamp = None,
            // The mark's answer must reach the receiver before the reduction ends.
            CaState::Cwr if passed && self.send.una != self.recovery.high_seq => {
                self.end_reduction();
                self.recovery.ca_state = CaState::Open;
            }
            CaState::Recovery if passed => {
                if !self.sack {
                    self.set_reno_sacks(0);
                }
                // The receiver has not heard yet that the window was reduced.
                seen.ece &= self.send.una != self.recovery.high_seq;
                if self.try_undo_recovery(seen.echo) {
                    return;
                }
                self.end_reduction();
            }
            _ => {}
        }
        match self.recovery.ca_state {
            CaState::Recovery => self.process_recovery(seen, now),
            CaState::Loss => {
                self.process_loss(seen);
                self.identify_losses(seen, now);
                if self.recovery.ca_state == CaState::Open || seen.lost_retrans {
                    self.maybe_enter_recovery(seen, now);
                }
            }
            _ => {
                if !self.sack {
                    if seen.advanced {
                        self.set_reno_sacks(0);
                    }
                    self.add_reno_sack(seen);
                }
                if self.recovery.ca_state <= CaState::Disorder {
                    self.try_undo_dsack();
                }
                self.identify_losses(seen, now);
                self.maybe_enter_recovery(seen, now);
            }
        }
    }

    fn process_recovery(&mut self, seen: &mut Feedback, now: Time) {
        if !seen.advanced {
            if !self.sack {
                self.add_reno_sack(seen);
            }
        } else if self.try_undo_partial(seen.prior_una, seen.echo) {
            return;
        }
        if self.try_undo_dsack() {
            self.try_to_open(seen.ece);
        }
        self.identify_losses(seen, now);
        if self.recovery.ca_state != CaState::Recovery && self.recovery.board.lost() > 0 {
            // Undone, and yet data is lost: another recovery.
            self.enter_recovery(seen.ece);
        }
    }

    fn maybe_enter_recovery(&mut self, seen: &Feedback, now: Time) {
        if self.recovery.board.lost() == 0 {
            self.try_to_open(seen.ece);
            return;
        }
        if self.recovery.ca_state < CaState::Cwr
            && let Some((start, end)) = self.recovery.path_probe
            && start == self.send.una
        {
            self.path_probe_lost(end, now);
            return;
        }
        self.enter_recovery(seen.ece);
    }

    /// Handles the loss of a path-MTU probe alone, which is no sign of congestion. Its
    /// bytes are retransmitted in ordinary segments.
    fn path_probe_lost(&mut self, end: u32, now: Time) {
        self.recovery.path_probe = None;
        self.path.refused();
        self.recovery.board.clear_lost();
        let losses = self.recovery.board.mark_lost(|piece| {
            if before(piece.start, end) {
                Verdict::Lost
            } else {
                Verdict::Stop
            }
        });
        if losses.bytes > 0 {
            self.repair_without_reduction(now);
        }
    }

    /// Retransmits what is marked lost, although nothing was lost to congestion: the
    /// window stays (Linux `tcp_simple_retransmit`).
    fn repair_without_reduction(&mut self, now: Time) {
        if self.recovery.ca_state != CaState::Loss {
            self.recovery.high_seq = self.send.nxt;
            self.recovery.undo = Undo::default();
            self.recovery.frto = false;
            self.recovery.ca_state = CaState::Loss;
        }
        self.recovery.rtx_timer = RtxTimer::Retransmission;
        self.restart_timer(now);
    }

    /// Marks all data in flight as lost for a reason other than congestion: it was too
    /// large for the path.
    pub(super) fn simple_retransmit(&mut self, now: Time) {
        self.recovery.probe = TailProbe::None;
        if self.recovery.path_probe.is_some() {
            self.path_probe_void();
        }
        let losses = self.recovery.board.mark_lost(|_| Verdict::Lost);
        if losses.bytes > 0 {
            self.repair_without_reduction(now);
        }
    }

    /// Begins fast recovery; `marked` when it was signalled by ECE.
    pub(super) fn enter_recovery(&mut self, marked: bool) {
        self.recovery.clear_retrans_stamp();
        let mss = self.send.mss.into();
        self.recovery.undo.restores_window = false;
        let una = self.send.una;
        self.recovery.begin_undo(una, mss);
        if !self.recovery.is_reducing() {
            self.recovery.undo.restores_window = !marked;
            self.begin_reduction();
        }
        self.recovery.ca_state = CaState::Recovery;
        self.recovery.frto_new_data = false;
        count(&mut self.counters.fast_recoveries);
    }

    /// Marks what this acknowledgment shows to be lost.
    fn identify_losses(&mut self, seen: &mut Feedback, now: Time) {
        let losses = if self.sack {
            let (losses, timed) = self.find_rack_losses(now);
            seen.restarts_timer &= !timed;
            losses
        } else {
            self.find_reno_loss(seen.advanced)
        };
        seen.lost = seen.lost.saturating_add(losses.bytes);
        seen.lost_retrans |= losses.retransmitted;
    }

    /// NewReno: the first segment counts as lost after enough duplicates, and after each
    /// partial acknowledgment (RFC 6582 §3.2).
    fn find_reno_loss(&mut self, advanced: bool) -> Losses {
        let head = self.head_segment();
        let recovery = &mut self.recovery;
        let enough = recovery.ca_state < CaState::Recovery
            && recovery.sacked_out >= recovery.rack.reordering.into();
        if !(enough || recovery.ca_state == CaState::Recovery && advanced) {
            return Losses::default();
        }
        if recovery.board.head().is_some_and(|head| head.has(LOST)) {
            return Losses::default();
        }
        recovery.board.mark_head_lost(head)
    }

    /// Without SACK: sets how many segments are assumed to have arrived beyond a hole.
    pub(super) fn set_reno_sacks(&mut self, segments: u32) {
        let mss = u32::from(self.send.mss);
        let outstanding = self.send.outstanding();
        let hole = self.recovery.board.lost().max(mss).min(outstanding);
        let most = outstanding - hole;
        self.recovery.sacked_out = segments.min(most.div_ceil(mss));
        let bytes = self.recovery.sacked_out.saturating_mul(mss).min(most);
        self.recovery.board.set_reno_sacked(bytes);
    }

    /// Counts a duplicate acknowledgment without SACK.
    fn add_reno_sack(&mut self, seen: &mut Feedback) {
        if !seen.duplicate {
            return;
        }
        let before = self.recovery.board.sacked();
        self.set_reno_sacks(self.recovery.sacked_out.saturating_add(1));
        let arrived = self.recovery.board.sacked().saturating_sub(before);
        seen.delivered = seen.delivered.saturating_add(arrived);
    }

    /// Sets the state when nothing is known to be lost.
    pub(super) fn try_to_open(&mut self, marked: bool) {
        self.recovery.clear_retrans_stamp();
        if marked {
            self.enter_cwr();
        }
        if self.recovery.ca_state != CaState::Cwr {
            self.keep_open();
        }
    }

    /// Sets the state to Open or Disorder.
    pub(super) fn keep_open(&mut self) {
        let board = &self.recovery.board;
        let doubtful = board.sacked() > 0 || board.lost() > 0 || self.recovery.any_retransmitted();
        let ca_state = if doubtful {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if ca_state != self.recovery.ca_state {
            self.recovery.ca_state = ca_state;
            self.recovery.high_seq = self.send.nxt;
        }
    }

    /// Processes an acknowledgment after a timeout (Linux `tcp_process_loss`; F-RTO, RFC
    /// 5682).
    fn process_loss(&mut self, seen: &mut Feedback) {
        self.recovery.frto_new_data = false;
        if seen.advanced && self.try_undo_loss(false, seen.echo) {
            return;
        }
        let passed = !before(self.send.una, self.recovery.high_seq);
        let beyond = before(self.recovery.high_seq, self.send.nxt);
        if self.recovery.frto {
            // Step 3b: data that was sent only once has arrived: not all was lost.
            if seen.orig_acked && self.try_undo_loss(true, seen.echo) {
                return;
            }
            if beyond {
                if seen.sacked || seen.duplicate {
                    // Step 3a: the loss was real.
                    self.recovery.frto = false;
                }
            } else if seen.advanced && !passed {
                // Step 2b: new data decides.
                self.recovery.high_seq = self.send.nxt;
                let window_end = self.send.window_end();
                if self.unsent() > 0 && before(self.send.nxt, window_end) {
                    self.recovery.frto_new_data = true;
                    self.pending.add(super::connection::Pending::OVERRIDE);
                    return;
                }
                self.recovery.frto = false;
            }
        }
        if passed {
            self.try_undo_recovery(seen.echo);
            return;
        }
        if !self.sack {
            if beyond && seen.duplicate {
                self.add_reno_sack(seen);
            } else if seen.advanced {
                self.set_reno_sacks(0);
            }
        }
    }

    /// The first unacknowledged segment was selectively acknowledged: the receiver may
    /// have dropped it (RFC 2018 §8). The receiver gets a little time to acknowledge it
    /// after all.
    fn delay_reneging_timeout(&mut self, seen: &mut Feedback, now: Time) {
        let wait = (self.round_trip.srtt() / 2).max(10_000);
        self.recovery.rtx_timer = RtxTimer::Retransmission;
        self.timers.set_micros(Timer::Retransmit, now, wait.into());
        seen.restarts_timer = false;
    }

    /// Handles the retransmission timeout: marks the losses, and reduces the window if
    /// that was not done for the same data (Linux `tcp_enter_loss`).
    pub(super) fn enter_loss(&mut self, now: Time) {
        let mss = u32::from(self.send.mss);
        let before_this = self.recovery.ca_state;
        self.mark_lost_by_timeout(now);
        let retried = self.send.retries > 0;
        let first = before_this <= CaState::Disorder
            || !before(self.send.una, self.recovery.high_seq)
            || before_this == CaState::Loss && !retried;
        if first {
            let una = self.send.una;
            self.recovery.begin_undo(una, mss);
            self.recovery.undo.restores_window = self.send.wnd > 0;
        }
        // Data sent to a closed window is not lost.
        if self.send.wnd > 0 {
            self.congestion.on_timeout(mss, first);
            self.ecn.reduced();
            let window = self.pipe().saturating_add(mss);
            self.congestion.set_window(window);
        }
        let rack = &mut self.recovery.rack;
        if before_this <= CaState::Disorder
            && self.recovery.sacked_out >= super::rack::DUPLICATES.into()
        {
            rack.reordering = rack.reordering.min(super::rack::DUPLICATES);
        }
        self.recovery.ca_state = CaState::Loss;
        self.recovery.high_seq = self.send.nxt;
        self.recovery.probe = TailProbe::None;
        self.recovery.frto_new_data = false;
        self.recovery.frto =
            (before_this < CaState::Recovery || retried) && self.recovery.path_probe.is_none();
    }

    /// Marks as lost what a timeout implies: everything, except data that left so
    /// recently that its acknowledgment may still come.
    fn mark_lost_by_timeout(&mut self, now: Time) {
        let now = microseconds(now);
        let reneged = self
            .recovery
            .board
            .head()
            .is_some_and(|head| head.has(SACKED));
        if reneged {
            self.recovery.board.clear_sacked();
            self.recovery.sacked_out = 0;
        } else if !self.sack {
            self.set_reno_sacks(0);
        }
        let una = self.send.una;
        let rack = self.recovery.rack;
        self.recovery.board.mark_lost(|piece| {
            let young = !reneged && piece.start != una && rack.remaining(piece, 0, now) > 0;
            if young { Verdict::Keep } else { Verdict::Lost }
        });
    }
}
