//! The blocks of SACK options (RFC 2018) that an end has sent or is to receive, in
//! positions: what was received beyond the acknowledgment.

use tidewall_wire::tcp::SackBlocks;

use crate::ranges::{Range, Ranges};
use crate::sequence::Numbers;

/// Repetitions of acknowledged bytes after which a withheld acknowledgment is sent
/// nonetheless: the first may be of a sender that took its repetition for lost.
const REPETITIONS: u8 = 2;

/// The blocks of the last SACK option that came from an end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    last: [Range; SackBlocks::MAX],
}

impl Seen {
    /// Returns those of these blocks that the last option did not have. Leaves out blocks
    /// at or below `acked` (D-SACK, RFC 2883: where those bytes were is not recorded) and
    /// beyond `next`.
    pub(crate) fn take(
        &mut self,
        sack: &SackBlocks,
        numbers: Numbers,
        acked: u64,
        next: u64,
    ) -> impl Iterator<Item = Range> + use<> {
        let mut blocks = [Range::default(); SackBlocks::MAX];
        for (block, &(first, end)) in blocks.iter_mut().zip(sack.as_slice()) {
            let (start, end) = (numbers.position(acked, first), numbers.position(acked, end));
            if acked < start && start < end && end <= next {
                *block = Range { start, end };
            }
        }
        let last = core::mem::replace(&mut self.last, blocks);
        let news = blocks.map(|mut block| {
            let holds = |known: &&Range| known.start <= block.start && block.start < known.end;
            if let Some(known) = last.iter().find(holds) {
                block.start = known.end;
            }
            block
        });
        news.into_iter().filter(|block| block.start < block.end)
    }

    /// Beyond the highest block.
    pub(crate) fn end(&self) -> u64 {
        self.last.iter().map(|block| block.end).max().unwrap_or(0)
    }
}

/// The blocks reported to an end. Without memory until there are any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    held: Ranges,
    /// A position in each block with an unreported part, newest last.
    news: Vec<u64>,
    /// Starts of the blocks of the last report, newest first.
    recent: [u64; SackBlocks::MAX],
    /// Beyond all that was reported.
    reported: u64,
    /// The acknowledgment that accompanies it, while there is something.
    acknowledged: u64,
    repetitions: u8,
}

impl Blocks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// There may be something to report.
    #[inline]
    pub(crate) fn may_have_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Bytes of memory allocated for it.
    pub(crate) fn memory(&self) -> usize {
        self.held.memory() + self.news.capacity() * size_of::<u64>()
    }

    /// Records that `start..end` was received, while everything before `acked` is
    /// acknowledged. Dropped if it would make more than `limit` blocks.
    pub(crate) fn insert(&mut self, acked: u64, start: u64, end: u64, limit: usize) {
        if self.held.is_empty() {
            (self.acknowledged, self.reported, self.repetitions) = (acked, acked, 0);
            self.news.clear();
        }
        let Some(block) = self.held.join(start, end, limit) else {
            return;
        };
        let there = |&position: &u64| block.contains(position, position);
        if !self.news.iter().any(there) {
            self.news.push(start);
        }
    }

    /// Records that it is no longer certain that `start..end` was received. True if it
    /// was.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> bool {
        let before = self.held.bytes_within(start, end);
        self.held.remove(start, end);
        before > 0
    }

    /// Records that everything before `at` may be acknowledged.
    ///
    /// The acknowledgment is withheld while `at` lies in what was reported. An
    /// acknowledgment that leads there means that the receiver has discarded it (RFC 2018
    /// §8), and makes senders start over.
    #[inline]
    pub(crate) fn acknowledge(&mut self, at: u64) {
        if !self.held.is_empty() {
            self.acknowledge_some(at);
        }
    }

    #[cold]
    fn acknowledge_some(&mut self, at: u64) {
        let reported = at < self.reported && self.held.around(at, at + 1).is_some();
        if !reported && at > self.acknowledged {
            self.acknowledged = at;
            self.repetitions = 0;
        }
        self.held.remove(0, at);
    }

    /// Records that the end has repeated acknowledged bytes.
    pub(crate) fn repeated(&mut self, acked: u64) {
        self.repetitions = self.repetitions.saturating_add(1);
        if self.repetitions >= REPETITIONS {
            self.acknowledged = acked;
        }
    }

    /// The actual acknowledgment if `acked` is permitted.
    #[inline]
    pub(crate) fn acknowledged(&self, acked: u64) -> u64 {
        if self.held.is_empty() {
            acked
        } else {
            self.acknowledged
        }
    }

    /// The block around a position, if it may be reported. One that begins at the
    /// acknowledgment is reported only from `first` on, and only if another lies beyond,
    /// which shows that something between the two is lost.
    fn reportable(&self, position: u64, first: Option<u64>) -> Option<Range> {
        let mut block = self.held.around(position, position + 1)?;
        if block.start <= self.acknowledged {
            let beyond = self.held.last().is_some_and(|last| last.end > block.end);
            block.start = first.filter(|_| beyond)?;
        }
        (block.start < block.end).then_some(block)
    }

    /// Something reportable was not reported yet.
    pub(crate) fn has_news(&self, first: Option<u64>) -> bool {
        let reportable = |&position: &u64| self.reportable(position, first).is_some();
        self.news.iter().any(reportable)
    }

    /// The blocks of an acknowledgment, newest first, then those of the last one (RFC
    /// 2018 §4).
    #[expect(
        clippy::indexing_slicing,
        reason = "`push` refuses a block before `count` passes the arrays' length"
    )]
    pub(crate) fn report(&mut self, numbers: Numbers, first: Option<u64>) -> SackBlocks {
        let mut chosen = SackBlocks::default();
        if self.held.is_empty() {
            return chosen;
        }
        let mut news = core::mem::take(&mut self.news);
        let mut recent = [0; SackBlocks::MAX];
        let mut ends = [0; SackBlocks::MAX];
        let mut count = 0;
        // Unreported blocks, as far as there is room, then reported ones.
        let mut choose = |position| {
            let Some(block) = self.reportable(position, first) else {
                return false;
            };
            if ends
                .get(..count)
                .is_some_and(|ends| ends.contains(&block.end))
            {
                return true;
            }
            let wire = (numbers.wire(block.start), numbers.wire(block.end));
            let there_is_room = chosen.push(wire.0, wire.1);
            if there_is_room {
                (recent[count], ends[count]) = (block.start, block.end);
                count += 1;
            }
            there_is_room
        };
        let mut place = news.len();
        while let Some(&position) = place.checked_sub(1).and_then(|last| news.get(last)) {
            place -= 1;
            if choose(position) {
                news.remove(place);
            }
        }
        for position in self.recent {
            choose(position);
        }
        news.retain(|&position| self.held.around(position, position + 1).is_some());
        self.news = news;
        self.recent = recent;
        self.reported = ends.into_iter().fold(self.reported, u64::max);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers on the wire are positions.
    fn numbers() -> Numbers {
        Numbers::new(0)
    }

    fn blocks(ranges: &[(u64, u64)]) -> Blocks {
        let mut blocks = Blocks::default();
        for &(start, end) in ranges {
            blocks.insert(100, start, end, 100);
        }
        blocks
    }

    fn report(blocks: &mut Blocks, first: Option<u64>) -> Vec<(u32, u32)> {
        blocks.report(numbers(), first).as_slice().to_vec()
    }

    #[test]
    fn the_newest_is_reported_first_and_then_what_was() {
        let mut blocks = blocks(&[(200, 210), (220, 230)]);
        assert_eq!(report(&mut blocks, None), [(220, 230), (200, 210)]);
        blocks.insert(100, 240, 250, 100);
        assert!(blocks.has_news(None));
        assert_eq!(
            report(&mut blocks, None),
            [(240, 250), (220, 230), (200, 210)]
        );
        blocks.insert(100, 210, 215, 100);
        assert_eq!(
            report(&mut blocks, None),
            [(200, 215), (240, 250), (220, 230)]
        );
        assert!(!blocks.has_news(None));
    }

    #[test]
    fn all_is_reported_at_least_once() {
        let mut blocks = Blocks::default();
        for start in (200..400).step_by(20) {
            blocks.insert(100, start, start + 10, 100);
        }
        let mut reported = Vec::new();
        for _ in 0..3 {
            assert!(blocks.has_news(None));
            reported.extend(report(&mut blocks, None));
        }
        assert!(!blocks.has_news(None));
        reported.sort_unstable();
        reported.dedup();
        assert_eq!(reported.len(), 10);
    }

    #[test]
    fn what_begins_at_the_acknowledgment_waits_for_a_loss_beyond_it() {
        let mut blocks = blocks(&[(100, 120)]);
        assert!(!blocks.has_news(Some(110)));
        assert_eq!(report(&mut blocks, Some(110)), []);
        blocks.insert(100, 140, 150, 100);
        assert!(blocks.has_news(Some(110)));
        assert_eq!(report(&mut blocks, Some(110)), [(140, 150), (110, 120)]);
        assert_eq!(report(&mut blocks, None), [(140, 150)]);
    }

    #[test]
    fn an_acknowledgment_never_leads_into_what_was_reported() {
        let mut blocks = blocks(&[(120, 140)]);
        assert_eq!(report(&mut blocks, None), [(120, 140)]);
        blocks.acknowledge(120);
        assert_eq!(blocks.acknowledged(120), 100);
        assert_eq!(report(&mut blocks, None), [(120, 140)]);
        // An end that repeats acknowledged bytes no longer believes the acknowledgment.
        blocks.repeated(130);
        assert_eq!(blocks.acknowledged(130), 100);
        blocks.repeated(130);
        assert_eq!(blocks.acknowledged(130), 130);
        blocks.acknowledge(140);
        assert_eq!(blocks.acknowledged(140), 140);
        assert!(blocks.is_empty());
    }

    #[test]
    fn blocks_out_of_place_are_left_out_and_known_parts_too() {
        let mut seen = Seen::default();
        let mut take = |wire: &[(u32, u32)]| -> Vec<(u64, u64)> {
            let mut sack = SackBlocks::default();
            for &(first, end) in wire {
                sack.push(first, end);
            }
            seen.take(&sack, numbers(), 1000, 2000)
                .map(|range| (range.start, range.end))
                .collect()
        };
        assert_eq!(
            take(&[(900, 950), (1000, 1100), (1900, 2001), (1300, 1200)]),
            []
        );
        assert_eq!(take(&[(1200, 1300)]), [(1200, 1300)]);
        assert_eq!(
            take(&[(1200, 1400), (1500, 1600)]),
            [(1300, 1400), (1500, 1600)]
        );
        assert_eq!(take(&[(1100, 1400)]), [(1100, 1400)]);
        assert_eq!(seen.end(), 1400);
    }

    proptest! {
        /// Reported bytes were received and lie beyond the acknowledgment, which never
        /// decreases and never leads into what was reported.
        #[test]
        fn reports_are_true(steps in prop::collection::vec((0u8..4, 0u64..60, 1u64..9), 1..80)) {
            let mut blocks = Blocks::default();
            let (mut received, mut reported) = ([false; 80], [false; 80]);
            let (mut acked, mut confirmed) = (1, 1);
            for (act, start, length) in steps {
                let end = start + length;
                match act {
                    0 | 1 if start >= acked => {
                        received[start as usize..end as usize].fill(true);
                        blocks.insert(acked, start, end, 100);
                    }
                    2 => {
                        received[start as usize..end as usize].fill(false);
                        reported[start as usize..end as usize].fill(false);
                        blocks.remove(start, end);
                    }
                    3 if start > acked && start < acked + 10 => {
                        received[..start as usize].fill(false);
                        acked = start;
                        blocks.acknowledge(acked);
                    }
                    _ => {}
                }
                let acknowledged = blocks.acknowledged(acked);
                prop_assert!((confirmed..=acked).contains(&acknowledged), "{} {} {}", confirmed, acknowledged, acked);
                if acknowledged > confirmed {
                    prop_assert!(!reported[acknowledged as usize]);
                }
                confirmed = acknowledged;
                for &(start, end) in blocks.report(numbers(), Some(acked + 3)).as_slice() {
                    prop_assert!(u64::from(start) > confirmed && start < end);
                    for place in start as usize..end as usize {
                        prop_assert!(received[place] || (place as u64) < acked);
                        reported[place] = true;
                    }
                }
            }
        }
    }
}
