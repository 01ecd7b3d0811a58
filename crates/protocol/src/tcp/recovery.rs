//! From a loss to its repair: the states that Linux names Open, Disorder, CWR,
//! Recovery and Loss, and what moves a connection between them.
//!
//! With SACK, losses are found by RACK (RFC 8985), which covers what RFC 6675
//! finds; without, by duplicates (RFC 6582). After a timeout F-RTO (RFC 5682)
//! finds out whether anything was lost at all.

use super::acknowledgment::Feedback;
use super::connection::Connection;
use super::rack::Rack;
use super::reduction::Reduction;
use super::scoreboard::{LOST, Losses, SACKED, Scoreboard, Verdict};
use super::tail_probe::TailProbe;
use super::timers::Timer;
use super::undo::Undo;
use super::{Time, microseconds};
use tidewall_wire::tcp::before;

/// Whether something is being recovered; in the order of how bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing is doubtful.
    #[default]
    Open = 0,
    /// Something has arrived out of order, or twice.
    Disorder = 1,
    /// The window is being reduced, and nothing is lost (Linux's CWR).
    Reduced = 2,
    /// Fast recovery (RFC 5681 §3.2).
    Fast = 3,
    /// After a retransmission timeout, or when all in flight was too large.
    Loss = 4,
}

impl Phase {
    /// Every phase, in the order of its number.
    pub(super) const ALL: [Self; 5] = [
        Self::Open,
        Self::Disorder,
        Self::Reduced,
        Self::Fast,
        Self::Loss,
    ];
}

/// What the retransmission timer is running for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(super) enum Wait {
    /// The retransmission timeout (RFC 6298), or the persist timer.
    #[default]
    Retransmission = 0,
    /// The tail-loss probe (RFC 8985 §7).
    Probe = 1,
    /// The reordering timer (RFC 8985 §6.3).
    Reordering = 2,
}

impl Wait {
    /// Every kind, in the order of its number.
    pub(super) const ALL: [Self; 3] = [Self::Retransmission, Self::Probe, Self::Reordering];
}

/// What was lost, and what is done about it.
pub(super) struct Recovery {
    pub(super) board: Scoreboard,
    pub(super) rack: Rack,
    pub(super) phase: Phase,
    pub(super) wait: Wait,
    /// Recovery or reduction end when this is acknowledged.
    pub(super) end: u32,
    /// Segments selectively acknowledged, at least; without SACK, duplicate
    /// acknowledgments.
    pub(super) sacked_segments: u32,
    pub(super) probe: TailProbe,
    pub(super) undo: Undo,
    pub(super) reduction: Reduction,
    /// F-RTO has not decided yet.
    pub(super) forward: bool,
    /// F-RTO wants new data sent before anything is sent again (RFC 5682 §2.1,
    /// step 2b).
    pub(super) new_first: bool,
    /// A segment in flight that finds out whether the path carries its size: if
    /// it alone is lost, that is no congestion. Where it begins and ends.
    pub(super) path_probe: Option<(u32, u32)>,
}

impl Recovery {
    /// For a connection of which all below `sequence` is acknowledged.
    pub(super) fn new(sequence: u32) -> Self {
        Self {
            board: Scoreboard::new(sequence),
            rack: Rack::new(),
            phase: Phase::Open,
            wait: Wait::Retransmission,
            end: sequence,
            sacked_segments: 0,
            probe: TailProbe::None,
            undo: Undo::default(),
            reduction: Reduction::default(),
            forward: false,
            new_first: false,
            path_probe: None,
        }
    }

    /// True while nothing is lost, doubtful or selectively acknowledged.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.probe == TailProbe::None
    }

    /// Bytes in flight (RFC 6675 §4, `SetPipe`).
    #[inline]
    pub(super) fn pipe(&self, outstanding: u32) -> u32 {
        let pipe = outstanding.wrapping_sub(self.board.gone());
        // What is presumed of a receiver may be too much.
        if pipe > u32::MAX / 2 { 0 } else { pipe }
    }
}

impl Connection {
    /// What an acknowledgment out of the ordinary does to recovery (Linux
    /// `tcp_fastretrans_alert`).
    pub(super) fn recover(&mut self, seen: &mut Feedback, now: Time) {
        if seen.congestion {
            self.recovery.undo.forbid();
        }
        if seen.reneged && seen.advanced {
            self.await_reneging(seen, now);
            return;
        }
        let passed = !before(self.send.first, self.recovery.end);
        match self.recovery.phase {
            Phase::Open => self.recovery.undo.stamp = None,
            // The mark's answer must reach the receiver beyond the end.
            Phase::Reduced if passed && self.send.first != self.recovery.end => {
                self.end_reduction();
                self.recovery.phase = Phase::Open;
            }
            Phase::Fast if passed => {
                if !self.sack {
                    self.presume_arrived(0);
                }
                // The receiver has not heard yet that the window was reduced.
                seen.congestion &= self.send.first != self.recovery.end;
                if self.try_undo_recovery(seen.echo) {
                    return;
                }
                self.end_reduction();
            }
            _ => {}
        }
        match self.recovery.phase {
            Phase::Fast => self.go_on_recovering(seen, now),
            Phase::Loss => {
                self.go_on_after_timeout(seen);
                self.identify_losses(seen, now);
                if self.recovery.phase == Phase::Open || seen.lost_again {
                    self.begin_recovering(seen, now);
                }
            }
            _ => {
                if !self.sack {
                    if seen.advanced {
                        self.presume_arrived(0);
                    }
                    self.take_duplicate(seen);
                }
                if self.recovery.phase <= Phase::Disorder {
                    self.try_undo_by_duplicates();
                }
                self.identify_losses(seen, now);
                self.begin_recovering(seen, now);
            }
        }
    }

    fn go_on_recovering(&mut self, seen: &mut Feedback, now: Time) {
        if !seen.advanced {
            if !self.sack {
                self.take_duplicate(seen);
            }
        } else if self.try_undo_partial(seen.first, seen.echo) {
            return;
        }
        if self.try_undo_by_duplicates() {
            self.try_to_open(seen.congestion);
        }
        self.identify_losses(seen, now);
        if self.recovery.phase != Phase::Fast && self.recovery.board.lost() > 0 {
            // Undone, and yet something is lost: another recovery.
            self.enter_recovery(seen.congestion);
        }
    }

    fn begin_recovering(&mut self, seen: &Feedback, now: Time) {
        if self.recovery.board.lost() == 0 {
            self.try_to_open(seen.congestion);
            return;
        }
        if self.recovery.phase < Phase::Reduced
            && let Some((start, end)) = self.recovery.path_probe
            && start == self.send.first
        {
            self.path_probe_lost(end, now);
            return;
        }
        self.enter_recovery(seen.congestion);
    }

    /// A probe of the path's MTU was lost and what followed it was not: that says
    /// nothing of congestion. Its bytes are sent again in ordinary segments,
    /// whose size whoever sent the probe has seen to.
    fn path_probe_lost(&mut self, end: u32, now: Time) {
        self.recovery.path_probe = None;
        self.path.refused();
        self.recovery.board.forget_lost();
        let losses = self.recovery.board.judge(|piece| {
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

    /// What is marked lost is sent again, although nothing was lost to
    /// congestion: the window stays (Linux `tcp_simple_retransmit`).
    fn repair_without_reduction(&mut self, now: Time) {
        if self.recovery.phase != Phase::Loss {
            self.recovery.end = self.send.next;
            self.recovery.undo = Undo::default();
            self.recovery.forward = false;
            self.recovery.phase = Phase::Loss;
        }
        self.recovery.wait = Wait::Retransmission;
        self.restart_timer(now);
    }

    /// All in flight is lost for another reason than congestion: it was too
    /// large for the path.
    pub(super) fn lose_all(&mut self, now: Time) {
        self.recovery.probe = TailProbe::None;
        if self.recovery.path_probe.is_some() {
            self.path_probe_void();
        }
        let losses = self.recovery.board.judge(|_| Verdict::Lost);
        if losses.bytes > 0 {
            self.repair_without_reduction(now);
        }
    }

    /// Fast recovery begins; `marked` when the network has told of congestion.
    pub(super) fn enter_recovery(&mut self, marked: bool) {
        self.recovery.forget_stamp();
        let mss = self.send.mss.into();
        self.recovery.undo.restores = false;
        let first = self.send.first;
        self.recovery.begin_undo(first, mss);
        if !self.recovery.is_reducing() {
            self.recovery.undo.restores = !marked;
            self.begin_reduction();
        }
        self.recovery.phase = Phase::Fast;
        self.recovery.new_first = false;
        self.counters.fast_recoveries = self.counters.fast_recoveries.wrapping_add(1);
    }

    /// Marks what this acknowledgment shows to be lost.
    fn identify_losses(&mut self, seen: &mut Feedback, now: Time) {
        let losses = if self.sack {
            let (losses, timed) = self.find_losses_by_time(now);
            seen.restarts_timer &= !timed;
            losses
        } else {
            self.find_loss_by_duplicates(seen.advanced)
        };
        seen.lost = seen.lost.saturating_add(losses.bytes);
        seen.lost_again |= losses.again;
    }

    /// NewReno: the first segment is lost after enough duplicates, and after each
    /// partial acknowledgment (RFC 6582 §3.2).
    fn find_loss_by_duplicates(&mut self, advanced: bool) -> Losses {
        let recovery = &mut self.recovery;
        let enough = recovery.phase < Phase::Fast
            && recovery.sacked_segments >= recovery.rack.reordering.into();
        if !(enough || recovery.phase == Phase::Fast && advanced) {
            return Losses::default();
        }
        if recovery.board.head().is_some_and(|head| head.has(LOST)) {
            return Losses::default();
        }
        recovery.board.lose_first(self.send.mss.into())
    }

    /// Without SACK: so many segments are taken to have arrived beyond a hole.
    pub(super) fn presume_arrived(&mut self, segments: u32) {
        let mss = u32::from(self.send.mss);
        let outstanding = self.send.next.wrapping_sub(self.send.first);
        let hole = self.recovery.board.lost().max(mss).min(outstanding);
        let most = outstanding - hole;
        self.recovery.sacked_segments = segments.min(most.div_ceil(mss));
        let bytes = self.recovery.sacked_segments.saturating_mul(mss).min(most);
        self.recovery.board.presume(bytes);
    }

    /// A duplicate acknowledgment without SACK.
    fn take_duplicate(&mut self, seen: &mut Feedback) {
        if !seen.duplicate {
            return;
        }
        let before = self.recovery.board.sacked();
        self.presume_arrived(self.recovery.sacked_segments.saturating_add(1));
        let arrived = self.recovery.board.sacked().saturating_sub(before);
        seen.delivered = seen.delivered.saturating_add(arrived);
    }

    /// The state when nothing is known to be lost.
    pub(super) fn try_to_open(&mut self, marked: bool) {
        self.recovery.forget_stamp();
        if marked {
            self.enter_reduction();
        }
        if self.recovery.phase != Phase::Reduced {
            self.keep_open();
        }
    }

    /// Open, or in disorder.
    pub(super) fn keep_open(&mut self) {
        let board = &self.recovery.board;
        let doubtful = board.sacked() > 0 || board.lost() > 0 || self.recovery.any_sent_again();
        let phase = if doubtful {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if phase != self.recovery.phase {
            self.recovery.phase = phase;
            self.recovery.end = self.send.next;
        }
    }

    /// After a timeout (Linux `tcp_process_loss`; F-RTO, RFC 5682).
    fn go_on_after_timeout(&mut self, seen: &mut Feedback) {
        self.recovery.new_first = false;
        if seen.advanced && self.try_undo_loss(false, seen.echo) {
            return;
        }
        let passed = !before(self.send.first, self.recovery.end);
        let beyond = before(self.recovery.end, self.send.next);
        if self.recovery.forward {
            // Step 3b: what was sent once only has arrived: not all was lost.
            if seen.original && self.try_undo_loss(true, seen.echo) {
                return;
            }
            if beyond {
                if seen.sacked || seen.duplicate {
                    // Step 3a: the loss was real.
                    self.recovery.forward = false;
                }
            } else if seen.advanced && !passed {
                // Step 2b: new data will tell.
                self.recovery.end = self.send.next;
                let window_end = self.send.first.wrapping_add(self.send.window);
                if self.unsent() > 0 && before(self.send.next, window_end) {
                    self.recovery.new_first = true;
                    self.pending.add(super::connection::Pending::OVERRIDE);
                    return;
                }
                self.recovery.forward = false;
            }
        }
        if passed {
            self.try_undo_recovery(seen.echo);
            return;
        }
        if !self.sack {
            if beyond && seen.duplicate {
                self.take_duplicate(seen);
            } else if seen.advanced {
                self.presume_arrived(0);
            }
        }
    }

    /// The first that is not acknowledged was selectively: the receiver may have
    /// dropped it (RFC 2018 §8). It gets a little time to mend that.
    fn await_reneging(&mut self, seen: &mut Feedback, now: Time) {
        let wait = (self.round_trip.smoothed() / 2).max(10_000);
        self.recovery.wait = Wait::Retransmission;
        self.timers.set_micros(Timer::Retransmit, now, wait.into());
        seen.restarts_timer = false;
    }

    /// The retransmission timeout: marks what is lost by it, and reduces the
    /// window if that was not done for the same data (Linux `tcp_enter_loss`).
    pub(super) fn enter_loss(&mut self, now: Time) {
        let mss = u32::from(self.send.mss);
        let before_this = self.recovery.phase;
        self.lose_by_timeout(now);
        let retried = self.send.retries > 0;
        let first = before_this <= Phase::Disorder
            || !before(self.send.first, self.recovery.end)
            || before_this == Phase::Loss && !retried;
        if first {
            let first = self.send.first;
            self.recovery.begin_undo(first, mss);
            self.recovery.undo.restores = self.send.window > 0;
        }
        // What is sent to a closed window is no loss.
        if self.send.window > 0 {
            self.congestion.on_timeout(mss, first);
            self.ecn.reduced();
            let window = self.pipe().saturating_add(mss);
            self.congestion.set_window(window);
        }
        let rack = &mut self.recovery.rack;
        if before_this <= Phase::Disorder
            && self.recovery.sacked_segments >= super::rack::DUPLICATES.into()
        {
            rack.reordering = rack.reordering.min(super::rack::DUPLICATES);
        }
        self.recovery.phase = Phase::Loss;
        self.recovery.end = self.send.next;
        self.recovery.probe = TailProbe::None;
        self.recovery.new_first = false;
        self.recovery.forward =
            (before_this < Phase::Fast || retried) && self.recovery.path_probe.is_none();
    }

    /// Marks as lost what a timeout says to be: all, but for what left so short a
    /// while ago that its acknowledgment may still come.
    fn lose_by_timeout(&mut self, now: Time) {
        let now = microseconds(now);
        let reneged = self
            .recovery
            .board
            .head()
            .is_some_and(|head| head.has(SACKED));
        if reneged {
            self.recovery.board.forget_sacked();
            self.recovery.sacked_segments = 0;
        } else if !self.sack {
            self.presume_arrived(0);
        }
        let first = self.send.first;
        let rack = self.recovery.rack;
        self.recovery.board.judge(|piece| {
            let young = !reneged && piece.start != first && rack.rest(piece, 0, now) > 0;
            if young { Verdict::Keep } else { Verdict::Lost }
        });
    }
}
