//! PSH and end-of-record marks: where the application has pushed (RFC 9293
//! §3.9.1.2), and where a record ends (`MSG_EOR`).
//!
//! A push asks that the data written up to it be delivered. The segment that contains it
//! carries PSH, also when it is retransmitted. Successive pushes collapse (RFC 9293
//! SHLD-27): a push that has not left when more is pushed no longer counts. So only the
//! last push in unsent data is kept. A record's end is a push that never collapses, and
//! no segment carries bytes from both sides of it.

use std::collections::VecDeque;

use tidewall_wire::tcp::before;

/// Limit of remembered pushes in flight besides the last one. Beyond it, a retransmission
/// may lack its PSH.
const PUSHES_MAX: usize = 1024;

/// Bytes of the send buffer's space that a record mark takes.
pub(super) const RECORD_SPACE: u32 = size_of::<Mark>() as u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// The sequence number after the last byte before the mark.
    pub(super) at: u32,
    pub(super) record: bool,
}

/// All marks between SND.UNA and the end of the written data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PushMarks {
    /// The last mark. It counts while it lies above SND.UNA.
    last: u32,
    /// A segment that leaves beyond it carries PSH (Linux `forced_push`): half of the
    /// largest window from the last segment that did.
    pub(super) forced_push: u32,
    /// Records, and pushes before the last one that were sent, in order. `None` if there
    /// are none.
    earlier: Option<Box<Earlier>>,
}

/// Marks before the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Earlier {
    marks: VecDeque<Mark>,
    records: u32,
}

impl PushMarks {
    /// No marks; everything below `sequence` is acknowledged.
    pub(super) const fn new(sequence: u32) -> Self {
        Self {
            last: sequence,
            forced_push: sequence,
            earlier: None,
        }
    }

    /// Pushes the data written up to `at`; `first` and `next` are SND.UNA and SND.NXT.
    #[inline]
    pub(super) fn push(&mut self, at: u32, first: u32, next: u32) {
        let last = core::mem::replace(&mut self.last, at);
        if lies_within(last, first, next.wrapping_sub(first)) {
            self.keep_push(last);
        }
    }

    #[cold]
    fn keep_push(&mut self, at: u32) {
        let marks = &mut self.earlier.get_or_insert_default().marks;
        if marks.len() < PUSHES_MAX && marks.back().is_none_or(|back| back.at != at) {
            marks.push_back(Mark { at, record: false });
        }
    }

    /// Ends a record at `at`, which is pushed already.
    #[cold]
    pub(super) fn end_record(&mut self, at: u32) {
        let Earlier { marks, records } = &mut **self.earlier.get_or_insert_default();
        match marks.back_mut() {
            Some(back) if back.at == at && back.record => return,
            Some(back) if back.at == at => back.record = true,
            _ => marks.push_back(Mark { at, record: true }),
        }
        *records += 1;
    }

    /// Removes marks in data below `first`, which is acknowledged.
    #[inline]
    pub(super) fn acknowledge(&mut self, first: u32) {
        if self.earlier.is_some() {
            self.forget(first);
        }
    }

    #[cold]
    fn forget(&mut self, first: u32) {
        let Some(earlier) = &mut self.earlier else {
            return;
        };
        let Earlier { marks, records } = &mut **earlier;
        while let Some(mark) = marks.pop_front_if(|mark| !before(first, mark.at)) {
            *records -= u32::from(mark.record);
        }
        if marks.is_empty() {
            self.earlier = None;
        }
    }

    /// Whether `length` bytes from `start` on, sent as one segment, carry PSH.
    #[inline]
    pub(super) fn pushes(&self, start: u32, length: u32) -> bool {
        let end = start.wrapping_add(length);
        lies_within(self.last, start, length)
            || before(self.forced_push, end)
            || self.earlier.is_some() && self.pushes_earlier(start, end)
    }

    #[cold]
    fn pushes_earlier(&self, start: u32, end: u32) -> bool {
        self.beyond(start).any(|mark| !before(end, mark.at))
    }

    /// The end of a segment that begins at `start` and would end at `end`: that, or the
    /// end of the record if it comes earlier.
    #[inline]
    pub(super) fn cut(&self, start: u32, end: u32) -> u32 {
        if self.earlier.is_none() {
            return end;
        }
        self.cut_records(start, end)
    }

    #[cold]
    fn cut_records(&self, start: u32, end: u32) -> u32 {
        if !self.has_records() {
            return end;
        }
        let record = self.first_record(start);
        record.filter(|at| before(*at, end)).unwrap_or(end)
    }

    /// The beginning of a segment that ends at `end` and would begin at `start`: that, or
    /// the end of the last record between the two.
    pub(super) fn cut_from(&self, mut start: u32, end: u32) -> u32 {
        loop {
            let cut = self.cut(start, end);
            if cut == end {
                return start;
            }
            start = cut;
        }
    }

    /// The earlier marks beyond `start`.
    fn beyond(&self, start: u32) -> impl Iterator<Item = &Mark> {
        let marks = self.earlier.as_deref().map(|earlier| &earlier.marks);
        let from = marks.map_or(0, |marks| {
            marks.partition_point(|mark| !before(start, mark.at))
        });
        marks.into_iter().flat_map(move |marks| marks.range(from..))
    }

    /// The end of the first record that extends beyond `start`.
    pub(super) fn first_record(&self, start: u32) -> Option<u32> {
        let record = self.beyond(start).find(|mark| mark.record);
        record.map(|mark| mark.at)
    }

    /// The end of the last record that extends beyond `start` but not beyond `limit`.
    pub(super) fn last_record(&self, start: u32, limit: u32) -> Option<u32> {
        let marks = &self.earlier.as_deref()?.marks;
        let within = marks.partition_point(|mark| !before(limit, mark.at));
        let record = marks.range(..within).rfind(|mark| mark.record);
        record.map(|mark| mark.at).filter(|at| before(start, *at))
    }

    /// Whether only the last push is remembered.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.earlier.is_none()
    }

    /// Whether a record ends anywhere.
    pub(super) fn has_records(&self) -> bool {
        self.earlier
            .as_ref()
            .is_some_and(|earlier| earlier.records > 0)
    }

    /// Bytes of the send buffer's space that all record marks take.
    #[inline]
    pub(super) fn space(&self) -> u32 {
        match &self.earlier {
            None => 0,
            Some(earlier) => earlier.records.saturating_mul(RECORD_SPACE),
        }
    }

    /// The last mark, acknowledged or not.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// All marks but the last one, in order; for freezing.
    pub(super) fn earlier(&self) -> impl Iterator<Item = Mark> {
        let earlier = self.earlier.iter();
        earlier.flat_map(|earlier| earlier.marks.iter().copied())
    }

    /// Restores marks from [`PushMarks::last`], `forced_push` and [`PushMarks::earlier`].
    pub(super) fn restore(last: u32, forced_push: u32, marks: VecDeque<Mark>) -> Self {
        let records = marks.iter().filter(|mark| mark.record).count() as u32;
        Self {
            last,
            forced_push,
            earlier: (!marks.is_empty()).then(|| Box::new(Earlier { marks, records })),
        }
    }

    /// Whether all marks lie where they can, between SND.UNA and the end of the written
    /// data.
    pub(super) fn is_sound(&self, first: u32, written: u32) -> bool {
        let space = written.wrapping_sub(first);
        let mut below = 0;
        self.earlier().all(|mark| {
            let ahead = mark.at.wrapping_sub(first);
            let sound = below < ahead && ahead <= space;
            below = ahead;
            sound
        })
    }
}

/// Whether a mark lies within the `length` bytes from `start` on, or at their end.
#[inline]
fn lies_within(mark: u32, start: u32, length: u32) -> bool {
    mark.wrapping_sub(start).wrapping_sub(1) < length
}

#[cfg(test)]
mod tests;
