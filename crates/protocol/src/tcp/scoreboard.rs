//! What is in flight, and what became of each part of it: when it last left,
//! whether the receiver holds it, whether it is lost or was sent again.
//!
//! A list of runs without gaps from SND.UNA to SND.NXT. Bytes that left at the
//! same moment and fared alike share a run, so that a burst costs one; the last
//! run lies in place, so that what answers a request costs no allocation. Bytes
//! of each mark are counted as they change, so that the pipe of RFC 6675 costs
//! nothing. On the clean path runs are added at the end and taken off the front.
//!
//! A peer can cut runs by naming odd ranges. It is believed up to [`ISLANDS_MAX`]
//! ranges; what it says beyond is at worst sent twice.

use std::collections::VecDeque;

use tidewall_wire::tcp::before;

/// Ranges beyond a hole that are remembered: more than any peer that does not
/// split hairs tells of.
pub(super) const ISLANDS_MAX: u16 = 512;

/// Ranges from which on one that is not a segment long is not taken: the holes
/// between such crumbs would each be sent again in a segment of its own
/// (CVE-2019-11478).
const CRUMBS_MAX: u16 = 32;

/// Runs at which neighbours are put together, with the later time of both: a
/// loss is then found later, never earlier.
const RUNS_MAX: usize = 4096;

/// The receiver holds it (RFC 2018).
pub(super) const SACKED: u8 = 1;
/// It is lost.
pub(super) const LOST: u8 = 2;
/// It was sent again, and that is in flight.
pub(super) const AGAIN: u8 = 4;
/// It was sent again at any time: what acknowledges it measures nothing (Karn's
/// algorithm).
pub(super) const EVER: u8 = 8;
/// Every mark.
const MARKS: u8 = SACKED | LOST | AGAIN | EVER;

/// Bytes up to `end`, from where the run before ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    end: u32,
    sent: u32,
    marks: u8,
}

/// A part of what is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
    /// When it last left, in microseconds that wrap.
    pub(super) sent: u32,
    pub(super) marks: u8,
}

impl Piece {
    pub(super) fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }
    pub(super) fn has(&self, marks: u8) -> bool {
        self.marks & marks != 0
    }
    /// Lost and not sent again.
    pub(super) fn waits(&self) -> bool {
        waits(self.marks)
    }
}

fn waits(marks: u8) -> bool {
    marks & (LOST | AGAIN) == LOST
}

/// What is to become of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is lost.
    Lost,
    /// Nothing is known against it.
    Keep,
    /// Nor against any after it.
    Stop,
}

/// What [`Scoreboard::judge`] has found.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Losses {
    /// Bytes.
    pub(super) bytes: u32,
    /// Some of it had been sent again.
    pub(super) again: bool,
}

/// What is in flight.
#[derive(Default)]
pub(super) struct Scoreboard {
    /// SND.UNA.
    first: u32,
    /// All runs but the last one sent, which is here too once anything was marked.
    earlier: VecDeque<Run>,
    /// Without marks.
    last: Option<Run>,
    sacked: u32,
    lost: u32,
    again: u32,
    /// Bytes that are lost and were not sent again.
    waiting: u32,
    /// None of those lie below; counts while there are any.
    waiting_from: u32,
    /// The end of what was selectively acknowledged furthest; counts while
    /// anything is.
    sacked_to: u32,
    /// The end of what was sent again furthest, as long as it lies ahead.
    resent_to: u32,
    /// Runs that are selectively acknowledged.
    islands: u16,
}

impl Scoreboard {
    /// For a connection of which all below `first` is acknowledged.
    pub(super) fn new(first: u32) -> Self {
        Self {
            first,
            resent_to: first,
            ..Self::default()
        }
    }

    /// Bytes that have left the network, or were never counted: what is in
    /// flight is less by so much than what is not acknowledged (RFC 6675 §4,
    /// `SetPipe`). Below zero, wrapped, where what is not known to be lost was
    /// sent again.
    #[inline]
    pub(super) fn gone(&self) -> u32 {
        self.sacked.wrapping_add(self.lost).wrapping_sub(self.again)
    }

    /// So many bytes are taken to have arrived, of a receiver that does not tell
    /// which.
    pub(super) fn presume(&mut self, bytes: u32) {
        self.sacked = bytes;
    }

    /// The same, if any.
    pub(super) fn presumed(&self) -> Option<u32> {
        (self.islands == 0 && self.sacked > 0).then_some(self.sacked)
    }

    /// Bytes selectively acknowledged.
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes lost, sent again or not.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes that were sent again and are in flight.
    pub(super) fn again(&self) -> u32 {
        self.again
    }

    /// The end of what was selectively acknowledged furthest, or SND.UNA.
    pub(super) fn sacked_to(&self) -> u32 {
        if self.islands == 0 {
            self.first
        } else {
            self.sacked_to
        }
    }

    /// The end of what was sent again furthest, or SND.UNA. Beyond, later bytes
    /// have left later.
    pub(super) fn resent_to(&self) -> u32 {
        if self.resent_to.wrapping_sub(self.first) <= self.end().wrapping_sub(self.first) {
            self.resent_to
        } else {
            self.first
        }
    }

    /// SND.UNA.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// SND.NXT.
    fn end(&self) -> u32 {
        match (self.last, self.earlier.back()) {
            (Some(run), _) | (None, Some(&run)) => run.end,
            (None, None) => self.first,
        }
    }

    /// What is not acknowledged lies in one run.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        self.earlier.is_empty()
    }

    /// All up to `end` was sent, the last of it now. `separate` to keep it apart
    /// from what left at the same moment.
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
            marks: 0,
        });
    }

    fn add(&mut self, run: Run) {
        if self.earlier.len() >= RUNS_MAX {
            self.condense();
        }
        self.earlier.push_back(run);
    }

    /// Puts pairs of equally marked neighbours together.
    #[cold]
    fn condense(&mut self) {
        let mut condensed = VecDeque::with_capacity(self.earlier.capacity());
        let mut runs = self.earlier.iter().copied().peekable();
        while let Some(mut run) = runs.next() {
            if let Some(next) = runs.next_if(|next| next.marks == run.marks) {
                run = Run {
                    end: next.end,
                    sent: later(run.sent, next.sent),
                    marks: run.marks,
                };
                self.islands -= u16::from(run.marks & SACKED != 0);
            }
            condensed.push_back(run);
        }
        self.earlier = condensed;
    }

    /// All below `first` is acknowledged: tells of each piece that was not before.
    #[inline]
    pub(super) fn acknowledge(&mut self, first: u32, mut each: impl FnMut(&Piece)) {
        while let Some(&run) = self.earlier.front() {
            if before(first, run.end) {
                self.shorten(run, first, &mut each);
                return;
            }
            self.shorten(run, run.end, &mut each);
            self.islands -= u16::from(run.marks & SACKED != 0);
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
        // A SYN or the like that was never noted.
        self.first = first;
        if self.earlier.capacity() != 0 {
            self.earlier = VecDeque::new();
        }
    }

    /// The first run begins at `start` from now on.
    #[inline]
    fn shorten(&mut self, run: Run, start: u32, each: &mut impl FnMut(&Piece)) {
        if start == self.first {
            return;
        }
        let piece = Piece {
            start: self.first,
            end: start,
            sent: run.sent,
            marks: run.marks,
        };
        each(&piece);
        if run.marks != 0 {
            self.count(run.marks, 0, piece.len());
        }
        self.first = start;
    }

    /// So many bytes change their marks.
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
        let (had, has_now) = has(AGAIN);
        change(had, has_now, &mut self.again);
        change(waits(from), waits(to), &mut self.waiting);
    }

    /// Puts the last run with the others, for what looks at all of them.
    fn gather(&mut self) {
        if let Some(run) = self.last.take() {
            self.add(run);
        }
    }

    fn distance(&self, sequence: u32) -> u32 {
        sequence.wrapping_sub(self.first)
    }

    /// The run that a sequence number lies in; all are gathered.
    fn find(&self, sequence: u32) -> usize {
        let distance = self.distance(sequence);
        self.earlier
            .partition_point(|run| self.distance(run.end) <= distance)
    }

    /// Where a run begins; all are gathered.
    fn start_of(&self, index: usize) -> u32 {
        index
            .checked_sub(1)
            .and_then(|before| self.earlier.get(before))
            .map_or(self.first, |run| run.end)
    }

    fn piece(&self, index: usize) -> Option<Piece> {
        let &Run { end, sent, marks } = self.earlier.get(index)?;
        Some(Piece {
            start: self.start_of(index),
            end,
            sent,
            marks,
        })
    }

    /// Has a run begin at `at`, and tells which; all are gathered.
    fn split(&mut self, at: u32) -> usize {
        let index = self.find(at);
        if self.start_of(index) == at {
            return index;
        }
        let Some(&run) = self.earlier.get(index) else {
            return index;
        };
        self.islands += u16::from(run.marks & SACKED != 0);
        self.earlier.insert(index, Run { end: at, ..run });
        index + 1
    }

    /// Gives the pieces between two marks new ones, by what `change` makes of the
    /// old, and puts those together that become alike.
    fn mark(&mut self, start: u32, end: u32, sent: Option<u32>, change: impl Fn(u8) -> u8) {
        let from = self.split(start);
        let to = self.split(end);
        let mut begin = start;
        for index in from..to {
            let Some(run) = self.earlier.get_mut(index) else {
                break;
            };
            let (old, new) = (run.marks, change(run.marks));
            run.marks = new;
            run.sent = sent.unwrap_or(run.sent);
            let bytes = run.end.wrapping_sub(begin);
            begin = run.end;
            self.count(old, new, bytes);
            let islands = u16::from(new & SACKED != 0);
            self.islands = self.islands + islands - u16::from(old & SACKED != 0);
        }
        self.join(from, to);
    }

    /// Puts runs that are alike together: from the one before `from` to the one
    /// at `to`.
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
            let sacked = run.marks & next.marks & SACKED != 0;
            let place =
                if sacked || run.marks == next.marks && run.sent == next.sent && next.marks != 0 {
                    // When what the receiver holds has left matters no more.
                    self.islands -= u16::from(sacked);
                    Run {
                        end: next.end,
                        sent: next.sent,
                        marks: run.marks | next.marks,
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

    /// Whether what begins in a run and ends at `end` adds to an island, so that
    /// there is none more after.
    fn touches_island(&self, index: usize, start: u32, end: u32) -> bool {
        (index.saturating_sub(1)..self.earlier.len())
            .map_while(|index| self.piece(index))
            .take_while(|piece| !before(end, piece.start))
            .any(|piece| piece.has(SACKED) && !before(piece.end, start))
    }

    /// Whether what begins at `start` and ends at `end` are whole segments, as they
    /// left: full ones from where a run begins, and a smaller one at its end.
    fn is_whole(&self, start: u32, end: u32, segment: u32) -> bool {
        let offset = |index: usize, at: u32| {
            let from = at.wrapping_sub(self.start_of(index));
            from.checked_rem(segment).unwrap_or(0)
        };
        if offset(self.find(start), start) != 0 {
            return false;
        }
        let last = self.find(end.wrapping_sub(1));
        // Not every receiver counts the FIN, which goes with the last bytes.
        let ends = self
            .earlier
            .get(last)
            .is_some_and(|run| run.end.wrapping_sub(end) <= 1);
        ends || offset(last, end) == 0
    }

    /// The receiver holds the bytes from `start` to `end`, within what is in
    /// flight; tells of each piece of which that is news. `segment` is what a full
    /// segment carries. No notice is taken of less than a segment until it is one
    /// (as Linux), for nobody receives that: a peer that tells of it would have the
    /// scoreboard split hairs.
    pub(super) fn sack(
        &mut self,
        (start, end): (u32, u32),
        segment: u32,
        mut each: impl FnMut(&Piece),
    ) {
        self.gather();
        let mut index = self.find(start);
        let crumb = end.wrapping_sub(start) < segment;
        let refused = self.islands >= ISLANDS_MAX
            || crumb && (self.islands >= CRUMBS_MAX || !self.is_whole(start, end, segment));
        if refused && !self.touches_island(index, start, end) {
            return;
        }
        let mut new = false;
        while let Some(mut piece) = self.piece(index)
            && before(piece.start, end)
        {
            index += 1;
            if piece.has(SACKED) {
                continue;
            }
            new = true;
            if before(piece.start, start) {
                piece.start = start;
            }
            if before(end, piece.end) {
                piece.end = end;
            }
            each(&piece);
        }
        if !new {
            return;
        }
        if self.islands == 0 || before(self.sacked_to, end) {
            self.sacked_to = end;
        }
        self.mark(start, end, None, |marks| SACKED | marks & EVER);
    }

    /// Nothing that is not acknowledged is held by the receiver after all.
    pub(super) fn forget_sacked(&mut self) {
        self.change_all(|marks| marks & !SACKED);
    }

    /// Nothing is lost after all.
    pub(super) fn forget_lost(&mut self) {
        self.change_all(|marks| marks & !LOST);
    }

    fn change_all(&mut self, change: impl Fn(u8) -> u8) {
        self.gather();
        let end = self.end();
        if end != self.first {
            self.mark(self.first, end, None, change);
        }
    }

    /// Has each piece judged that may be in flight: neither held by the receiver
    /// nor waiting to be sent again.
    pub(super) fn judge(&mut self, mut verdict: impl FnMut(&Piece) -> Verdict) -> Losses {
        self.gather();
        let mut losses = Losses::default();
        let mut start = self.first;
        for index in 0..self.earlier.len() {
            let Some(&run) = self.earlier.get(index) else {
                break;
            };
            let Run { end, sent, marks } = run;
            let piece = Piece {
                start,
                end,
                sent,
                marks,
            };
            start = end;
            if piece.has(SACKED) || piece.waits() {
                continue;
            }
            match verdict(&piece) {
                Verdict::Keep => continue,
                Verdict::Stop => break,
                Verdict::Lost => {}
            }
            if self.waiting == 0 || before(piece.start, self.waiting_from) {
                self.waiting_from = piece.start;
            }
            let new = marks & EVER | LOST;
            if let Some(run) = self.earlier.get_mut(index) {
                run.marks = new;
            }
            self.count(marks, new, piece.len());
            losses.bytes = losses.bytes.saturating_add(piece.len());
            losses.again |= piece.has(AGAIN);
        }
        losses
    }

    /// The first bytes are lost, up to `bytes` of them, unless they are known to
    /// be or held by the receiver.
    pub(super) fn lose_first(&mut self, bytes: u32) -> Losses {
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
        let first = self.first;
        self.judge(|piece| {
            if piece.start == first {
                Verdict::Lost
            } else {
                Verdict::Stop
            }
        })
    }

    /// The first bytes, up to so many, that are lost and were not sent again.
    pub(super) fn next_waiting(&self, most: u32) -> Option<(u32, u32)> {
        if self.waiting == 0 {
            return None;
        }
        let from = if before(self.waiting_from, self.first) {
            self.first
        } else {
            self.waiting_from
        };
        let mut index = self.find(from);
        let mut found = None;
        loop {
            // Without being gathered: the last one comes after all others.
            let run = match self.earlier.get(index) {
                Some(&run) => run,
                None if index == self.earlier.len() => match self.last {
                    Some(run) => run,
                    None => return found,
                },
                None => return found,
            };
            if waits(run.marks) {
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

    /// What was lost from `start` to `end` was sent again now. A FIN that went with
    /// the last bytes may be held already: it is not missing, and not in flight again.
    pub(super) fn resent(&mut self, start: u32, end: u32, now: u32) {
        self.gather();
        self.note_resent(end);
        self.waiting_from = end;
        self.mark(start, end, Some(now), |marks| match marks & SACKED {
            0 => marks | AGAIN | EVER,
            _ => marks,
        });
        if self.earlier.len() > RUNS_MAX {
            self.condense();
        }
    }

    /// The bytes from `start` to `end` were sent once more now, not because they
    /// were lost but to learn whether anything is: what is in flight stays as it
    /// was.
    pub(super) fn probed(&mut self, start: u32, end: u32, now: u32) {
        self.gather();
        self.note_resent(end);
        self.mark(start, end, Some(now), |marks| marks | EVER);
    }

    fn note_resent(&mut self, end: u32) {
        let to = self.resent_to();
        self.resent_to = if before(to, end) { end } else { to };
    }

    /// Bytes from `start` to `end` that were sent again and are in flight have
    /// arrived twice.
    pub(super) fn arrived_twice(&mut self, start: u32, end: u32) {
        self.gather();
        if self.again > 0 {
            self.mark(start, end, None, |marks| {
                if marks & LOST == 0 {
                    marks & !AGAIN
                } else {
                    marks
                }
            });
        }
    }

    /// The last segment of up to so many bytes; a FIN goes with the bytes that it
    /// left with.
    pub(super) fn last_segment(&self, most: u32, fin: bool) -> Option<(u32, u32)> {
        let (start, end) = match self.last {
            Some(run) => (
                self.earlier.back().map_or(self.first, |run| run.end),
                run.end,
            ),
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

    /// The first piece.
    pub(super) fn head(&self) -> Option<Piece> {
        let &Run { end, sent, marks } = self.earlier.front().or(self.last.as_ref())?;
        Some(Piece {
            start: self.first,
            end,
            sent,
            marks,
        })
    }

    /// All pieces, in order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut start = self.first;
        self.earlier
            .iter()
            .chain(self.last.as_ref())
            .map(move |&Run { end, sent, marks }| {
                let piece = Piece {
                    start,
                    end,
                    sent,
                    marks,
                };
                start = end;
                piece
            })
    }

    /// Adds a piece as it was in another scoreboard; false when it cannot follow.
    pub(super) fn restore(&mut self, end: u32, sent: u32, marks: u8) -> bool {
        let start = self.end();
        let sound = before(start, end)
            && marks & !MARKS == 0
            && (marks & SACKED == 0 || marks & (LOST | AGAIN) == 0)
            && (marks & AGAIN == 0 || marks & EVER != 0)
            && self.earlier.len() <= RUNS_MAX + usize::from(ISLANDS_MAX);
        if sound {
            self.gather();
            self.earlier.push_back(Run { end, sent, marks });
            self.count(0, marks, end.wrapping_sub(start));
            self.waiting_from = self.first;
            if marks & SACKED != 0 {
                self.islands = self.islands.saturating_add(1);
                self.sacked_to = end;
            }
            if marks & EVER != 0 {
                self.resent_to = end;
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
