//! Which data is lost, and which of it was retransmitted.

use tidewall_wire::tcp::before;

use super::{
    EVER_RETRANSMITTED, LOST, Piece, RETRANSMITTED, RUNS_MAX, SACKED, Scoreboard, needs_retransmit,
};

/// Decision about a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Verdict {
    /// It is lost.
    Lost,
    /// It may still arrive.
    Keep,
    /// It and all after it may still arrive.
    Stop,
}

/// The result of [`Scoreboard::mark_lost`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::tcp) struct Losses {
    pub(in crate::tcp) bytes: u32,
    /// Some of it had been retransmitted.
    pub(in crate::tcp) retransmitted: bool,
}

impl Scoreboard {
    /// Bytes lost, retransmitted or not.
    pub(in crate::tcp) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes of retransmissions in flight.
    pub(in crate::tcp) fn retransmitted(&self) -> u32 {
        self.retransmitted
    }

    /// The end of the highest retransmission, or SND.UNA. Beyond it, later bytes have
    /// left later.
    pub(in crate::tcp) fn high_rxt(&self) -> u32 {
        if self.high_rxt.wrapping_sub(self.una) <= self.end().wrapping_sub(self.una) {
            self.high_rxt
        } else {
            self.una
        }
    }

    /// Clears the lost flags: the losses were spurious.
    pub(in crate::tcp) fn clear_lost(&mut self) {
        self.change_all(|flags| flags & !LOST);
    }

    /// Marks pieces as lost by `verdict`. It is asked about each piece that may be in
    /// flight: neither SACKed nor waiting for retransmission.
    pub(in crate::tcp) fn mark_lost(
        &mut self,
        mut verdict: impl FnMut(&Piece) -> Verdict,
    ) -> Losses {
        self.gather();
        let mut losses = Losses::default();
        let mut start = self.una;
        for index in 0..self.earlier.len() {
            let Some(&run) = self.earlier.get(index) else {
                break;
            };
            let flags = run.flags;
            let piece = run.starting_at(start);
            start = run.end;
            if piece.has(SACKED) || piece.needs_retransmit() {
                continue;
            }
            match verdict(&piece) {
                Verdict::Keep => continue,
                Verdict::Stop => break,
                Verdict::Lost => {}
            }
            if self.to_retransmit == 0 || before(piece.start, self.retransmit_hint) {
                self.retransmit_hint = piece.start;
            }
            let new = flags & EVER_RETRANSMITTED | LOST;
            if let Some(run) = self.earlier.get_mut(index) {
                run.flags = new;
            }
            self.count(flags, new, piece.len());
            losses.bytes = losses.bytes.saturating_add(piece.len());
            losses.retransmitted |= piece.has(RETRANSMITTED);
        }
        losses
    }

    /// Marks the first bytes as lost, at most `bytes`, unless they are SACKed or lost
    /// already.
    pub(in crate::tcp) fn mark_head_lost(&mut self, bytes: u32) -> Losses {
        self.gather();
        let Some(piece) = self.piece(0) else {
            return Losses::default();
        };
        if piece.has(SACKED) {
            return Losses::default();
        }
        if piece.len() > bytes {
            self.split(piece.start.wrapping_add(bytes));
        }
        let first = self.una;
        self.mark_lost(|piece| {
            if piece.start == first {
                Verdict::Lost
            } else {
                Verdict::Stop
            }
        })
    }

    /// The first bytes to be retransmitted, at most `most`.
    pub(in crate::tcp) fn next_to_retransmit(&self, most: u32) -> Option<(u32, u32)> {
        if self.to_retransmit == 0 {
            return None;
        }
        let from = if before(self.retransmit_hint, self.una) {
            self.una
        } else {
            self.retransmit_hint
        };
        let mut index = self.find(from);
        let mut found = None;
        loop {
            // Works without gathering: the last run comes after all others.
            let run = match self.earlier.get(index) {
                Some(&run) => run,
                None if index == self.earlier.len() => match self.last {
                    Some(run) => run,
                    None => return found,
                },
                None => return found,
            };
            if needs_retransmit(run.flags) {
                let (start, _) = found.unwrap_or((self.start_of(index), 0));
                if run.end.wrapping_sub(start) >= most {
                    return Some((start, start.wrapping_add(most)));
                }
                found = Some((start, run.end));
            } else if found.is_some() {
                return found;
            }
            index += 1;
        }
    }

    /// Records that lost bytes from `start` to `end` were retransmitted now. A FIN that
    /// went with the last of them may be SACKed already: then it is not in flight again.
    pub(in crate::tcp) fn mark_retransmitted(&mut self, start: u32, end: u32, now: u32) {
        self.gather();
        self.advance_high_rxt(end);
        self.retransmit_hint = end;
        self.mark(start, end, Some(now), |flags| match flags & SACKED {
            0 => flags | RETRANSMITTED | EVER_RETRANSMITTED,
            _ => flags,
        });
        if self.earlier.len() > RUNS_MAX {
            self.condense();
        }
    }

    /// Records that bytes from `start` to `end` were sent once more as a tail-loss probe:
    /// the pipe stays as it was.
    pub(in crate::tcp) fn mark_probed(&mut self, start: u32, end: u32, now: u32) {
        self.gather();
        self.advance_high_rxt(end);
        self.mark(start, end, Some(now), |flags| flags | EVER_RETRANSMITTED);
    }

    fn advance_high_rxt(&mut self, end: u32) {
        let to = self.high_rxt();
        self.high_rxt = if before(to, end) { end } else { to };
    }
}
