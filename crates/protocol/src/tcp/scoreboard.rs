//! The SACK scoreboard (RFC 6675). For each part of the data in flight it has the time of
//! last sending, and whether it is selectively acknowledged, lost or retransmitted.
//!
//! It is a list of contiguous runs from SND.UNA to SND.NXT. Bytes that left at the same
//! moment and have the same flags share a run, so a burst costs one. The last run is
//! stored inline, so the answer to a request costs no allocation. Bytes of each flag are
//! counted as they change, so the pipe of RFC 6675 costs nothing. Without losses, runs
//! are added at the end and removed from the front.

mod loss;
mod sack;

use std::collections::VecDeque;

use tidewall_wire::tcp::before;

pub(super) use loss::{Losses, Verdict};
use sack::SACK_RANGES_MAX;

/// Above this number of runs neighbours are merged, with the later time of both: a loss
/// is then found later, never earlier.
const RUNS_MAX: usize = 4096;

/// Selectively acknowledged (RFC 2018).
pub(super) const SACKED: u8 = 1;
pub(super) const LOST: u8 = 2;
/// Retransmitted, and that retransmission is in flight.
pub(super) const RETRANSMITTED: u8 = 4;
/// Retransmitted at some time: its acknowledgment is no round-trip sample (Karn's
/// algorithm).
pub(super) const EVER_RETRANSMITTED: u8 = 8;
const FLAGS: u8 = SACKED | LOST | RETRANSMITTED | EVER_RETRANSMITTED;

/// Bytes up to `end`, from where the previous run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    end: u32,
    sent: u32,
    flags: u8,
}

impl Run {
    fn starting_at(self, start: u32) -> Piece {
        let Self { end, sent, flags } = self;
        Piece {
            start,
            end,
            sent,
            flags,
        }
    }
}

/// A part of the data in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    /// When it last left, in microseconds that wrap.
    pub(super) sent: u32,
    pub(super) flags: u8,
}

impl Piece {
    pub(super) fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }
    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
    pub(super) fn needs_retransmit(&self) -> bool {
        needs_retransmit(self.flags)
    }
}

fn needs_retransmit(flags: u8) -> bool {
    flags & (LOST | RETRANSMITTED) == LOST
}

#[derive(Default)]
pub(super) struct Scoreboard {
    una: u32,
    /// All runs but the last one sent, which is moved here once any flag is set.
    earlier: VecDeque<Run>,
    /// The last run, without flags.
    last: Option<Run>,
    sacked: u32,
    lost: u32,
    retransmitted: u32,
    /// Bytes that are lost and not retransmitted.
    to_retransmit: u32,
    /// No byte to retransmit lies below this; meaningless if there is none.
    retransmit_hint: u32,
    /// The end of the highest SACKed range; meaningless if there is none.
    highest_sack: u32,
    /// HighRxt of RFC 6675: the end of the highest retransmission, while it lies
    /// ahead of SND.UNA.
    high_rxt: u32,
    /// Runs with [`SACKED`].
    sacked_ranges: u16,
}

impl Scoreboard {
    /// Scoreboard of a connection with everything below `first` acknowledged.
    pub(super) fn new(first: u32) -> Self {
        Self {
            una: first,
            high_rxt: first,
            ..Self::default()
        }
    }

    /// The bytes by which RFC 6675's pipe is smaller than SND.NXT - SND.UNA. Below zero,
    /// wrapped, if bytes were retransmitted that are not known to be lost.
    #[inline]
    pub(super) fn left_network(&self) -> u32 {
        self.sacked
            .wrapping_add(self.lost)
            .wrapping_sub(self.retransmitted)
    }

    pub(super) fn una(&self) -> u32 {
        self.una
    }

    /// SND.NXT.
    fn end(&self) -> u32 {
        match (self.last, self.earlier.back()) {
            (Some(run), _) | (None, Some(&run)) => run.end,
            (None, None) => self.una,
        }
    }

    /// Whether all unacknowledged data lies in one run.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        self.earlier.is_empty()
    }

    /// Records that data up to `end` was sent, the last of it now. `separate` begins a
    /// new run even if the last one left at the same moment.
    #[inline]
    pub(super) fn sent(&mut self, end: u32, now: u32, separate: bool) {
        if let Some(last) = &mut self.last {
            if last.sent == now && !separate {
                last.end = end;
                return;
            }
            let last = *last;
            self.add(last);
        }
        self.last = Some(Run {
            end,
            sent: now,
            flags: 0,
        });
    }

    fn add(&mut self, run: Run) {
        if self.earlier.len() >= RUNS_MAX {
            self.condense();
        }
        self.earlier.push_back(run);
    }

    /// Merges pairs of neighbours with equal flags.
    #[cold]
    fn condense(&mut self) {
        let mut condensed = VecDeque::with_capacity(self.earlier.capacity());
        let mut runs = self.earlier.iter().copied().peekable();
        while let Some(mut run) = runs.next() {
            if let Some(next) = runs.next_if(|next| next.flags == run.flags) {
                run = Run {
                    end: next.end,
                    sent: later(run.sent, next.sent),
                    flags: run.flags,
                };
                self.sacked_ranges -= u16::from(run.flags & SACKED != 0);
            }
            condensed.push_back(run);
        }
        self.earlier = condensed;
    }

    /// Acknowledges everything below `first`; `each` gets every newly acknowledged piece.
    #[inline]
    pub(super) fn acknowledge(&mut self, first: u32, mut each: impl FnMut(&Piece)) {
        while let Some(&run) = self.earlier.front() {
            if before(first, run.end) {
                self.shorten(run, first, &mut each);
                return;
            }
            self.shorten(run, run.end, &mut each);
            self.sacked_ranges -= u16::from(run.flags & SACKED != 0);
            self.earlier.pop_front();
        }
        if let Some(run) = self.last {
            if before(first, run.end) {
                self.shorten(run, first, &mut each);
                return;
            }
            self.shorten(run, run.end, &mut each);
            self.last = None;
        }
        // SYNs are never entered here.
        self.una = first;
        if self.earlier.capacity() != 0 {
            self.earlier = VecDeque::new();
        }
    }

    /// Shortens the first run to begin at `start`.
    #[inline]
    fn shorten(&mut self, run: Run, start: u32, each: &mut impl FnMut(&Piece)) {
        if start == self.una {
            return;
        }
        let piece = Piece {
            start: self.una,
            end: start,
            sent: run.sent,
            flags: run.flags,
        };
        each(&piece);
        if run.flags != 0 {
            self.count(run.flags, 0, piece.len());
        }
        self.una = start;
    }

    /// Updates the counters for `bytes` whose flags change.
    fn count(&mut self, from: u8, to: u8, bytes: u32) {
        let change = |had: bool, has: bool, counter: &mut u32| match (had, has) {
            (true, false) => *counter = counter.wrapping_sub(bytes),
            (false, true) => *counter = counter.wrapping_add(bytes),
            _ => {}
        };
        let has = |mark: u8| (from & mark != 0, to & mark != 0);
        let (had, has_now) = has(SACKED);
        change(had, has_now, &mut self.sacked);
        let (had, has_now) = has(LOST);
        change(had, has_now, &mut self.lost);
        let (had, has_now) = has(RETRANSMITTED);
        change(had, has_now, &mut self.retransmitted);
        change(
            needs_retransmit(from),
            needs_retransmit(to),
            &mut self.to_retransmit,
        );
    }

    /// Moves the last run to the others, for code that looks at all of them.
    fn gather(&mut self) {
        if let Some(run) = self.last.take() {
            self.add(run);
        }
    }

    fn distance(&self, sequence: u32) -> u32 {
        sequence.wrapping_sub(self.una)
    }

    /// The run that contains a sequence number; all runs are gathered.
    fn find(&self, sequence: u32) -> usize {
        let distance = self.distance(sequence);
        self.earlier
            .partition_point(|run| self.distance(run.end) <= distance)
    }

    /// The start of a run; all runs are gathered.
    fn start_of(&self, index: usize) -> u32 {
        index
            .checked_sub(1)
            .and_then(|before| self.earlier.get(before))
            .map_or(self.una, |run| run.end)
    }

    fn piece(&self, index: usize) -> Option<Piece> {
        let run = self.earlier.get(index)?;
        Some(run.starting_at(self.start_of(index)))
    }

    /// Makes a run begin at `at` and returns its index; all runs are gathered.
    fn split(&mut self, at: u32) -> usize {
        let index = self.find(at);
        if self.start_of(index) == at {
            return index;
        }
        let Some(&run) = self.earlier.get(index) else {
            return index;
        };
        self.sacked_ranges += u16::from(run.flags & SACKED != 0);
        self.earlier.insert(index, Run { end: at, ..run });
        index + 1
    }

    /// Changes the flags between two sequence numbers, and merges runs that become
    /// equal.
    fn mark(&mut self, start: u32, end: u32, sent: Option<u32>, change: impl Fn(u8) -> u8) {
        let from = self.split(start);
        let to = self.split(end);
        let mut begin = start;
        for index in from..to {
            let Some(run) = self.earlier.get_mut(index) else {
                break;
            };
            let (old, new) = (run.flags, change(run.flags));
            run.flags = new;
            run.sent = sent.unwrap_or(run.sent);
            let bytes = run.end.wrapping_sub(begin);
            begin = run.end;
            self.count(old, new, bytes);
            let sacked_ranges = u16::from(new & SACKED != 0);
            self.sacked_ranges = self.sacked_ranges + sacked_ranges - u16::from(old & SACKED != 0);
        }
        self.join(from, to);
    }

    /// Merges equal runs, from the one before `from` to the one at `to`.
    fn join(&mut self, from: usize, to: usize) {
        let first = from.saturating_sub(1);
        let count = self.earlier.len();
        let last = (to + 1).min(count);
        let mut kept = first;
        for index in first + 1..last {
            let (Some(&run), Some(&next)) = (self.earlier.get(kept), self.earlier.get(index))
            else {
                return;
            };
            let sacked = run.flags & next.flags & SACKED != 0;
            let place =
                if sacked || run.flags == next.flags && run.sent == next.sent && next.flags != 0 {
                    // It no longer matters when SACKed bytes left.
                    self.sacked_ranges -= u16::from(sacked);
                    Run {
                        end: next.end,
                        sent: next.sent,
                        flags: run.flags | next.flags,
                    }
                } else {
                    kept += 1;
                    next
                };
            if let Some(run) = self.earlier.get_mut(kept) {
                *run = place;
            }
        }
        if kept + 1 < last {
            self.earlier.drain(kept + 1..last);
        }
    }

    fn change_all(&mut self, change: impl Fn(u8) -> u8) {
        self.gather();
        let end = self.end();
        if end != self.una {
            self.mark(self.una, end, None, change);
        }
    }

    /// The last segment of up to `most` bytes; a FIN goes with the bytes that it left
    /// with.
    pub(super) fn last_segment(&self, most: u32, fin: bool) -> Option<(u32, u32)> {
        let (start, end) = match self.last {
            Some(run) => (self.earlier.back().map_or(self.una, |run| run.end), run.end),
            None => (
                self.start_of(self.earlier.len().checked_sub(1)?),
                self.end(),
            ),
        };
        let fin = u32::from(fin);
        let data = end.wrapping_sub(start).saturating_sub(fin);
        let rest = data.checked_rem(most)?;
        let data = if rest == 0 { data.min(most) } else { rest };
        Some((end.wrapping_sub(data + fin), end))
    }

    pub(super) fn head(&self) -> Option<Piece> {
        let run = self.earlier.front().or(self.last.as_ref())?;
        Some(run.starting_at(self.una))
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut start = self.una;
        self.earlier
            .iter()
            .chain(self.last.as_ref())
            .map(move |run| run.starting_at(std::mem::replace(&mut start, run.end)))
    }

    /// Adds a piece as it was in another scoreboard; returns false when it does not
    /// follow the last one.
    pub(super) fn restore(&mut self, end: u32, sent: u32, flags: u8) -> bool {
        let start = self.end();
        let sound = before(start, end)
            && flags & !FLAGS == 0
            && (flags & SACKED == 0 || flags & (LOST | RETRANSMITTED) == 0)
            && (flags & RETRANSMITTED == 0 || flags & EVER_RETRANSMITTED != 0)
            && self.earlier.len() <= RUNS_MAX + usize::from(SACK_RANGES_MAX);
        if sound {
            self.gather();
            self.earlier.push_back(Run { end, sent, flags });
            self.count(0, flags, end.wrapping_sub(start));
            self.retransmit_hint = self.una;
            if flags & SACKED != 0 {
                self.sacked_ranges = self.sacked_ranges.saturating_add(1);
                self.highest_sack = end;
            }
            if flags & EVER_RETRANSMITTED != 0 {
                self.high_rxt = end;
            }
        }
        sound
    }

    /// Runs held, for tests.
    #[cfg(test)]
    fn runs(&self) -> usize {
        self.earlier.len() + usize::from(self.last.is_some())
    }
}

/// The later of two moments within half an hour of each other.
fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

#[cfg(test)]
mod tests;
