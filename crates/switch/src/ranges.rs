//! Ranges of missing positions: holes in the peer's data, and reserved positions of a
//! member's data that have not arrived. Also ranges received beyond them.

/// Positions from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    pub(crate) const fn contains(self, start: u64, end: u64) -> bool {
        self.start <= start && end <= self.end
    }
}

/// Disjoint ranges in order. Inserted ranges stay separate from their neighbours, since
/// each begins and ends with whole frames; joined ranges do not. Allocates only once
/// something is missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    list: Vec<Range>,
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of memory allocated for it.
    pub(crate) fn memory(&self) -> usize {
        self.list.capacity() * size_of::<Range>()
    }

    pub(crate) fn first(&self) -> Option<Range> {
        self.list.first().copied()
    }

    pub(crate) fn last(&self) -> Option<Range> {
        self.list.last().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.list.iter().copied()
    }

    /// Adds a range that overlaps none.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            let place = self.list.partition_point(|range| range.start < start);
            self.list.insert(place, Range { start, end });
        }
    }

    /// Adds a range and joins it with all that it overlaps or touches. Returns the joined
    /// range. `None` if all of it was already present, or it would exceed `limit` ranges.
    pub(crate) fn join(&mut self, start: u64, end: u64, limit: usize) -> Option<Range> {
        if start >= end || self.around(start, end).is_some() {
            return None;
        }
        let first = self.list.partition_point(|range| range.end < start);
        let last = self.list.partition_point(|range| range.start <= end);
        if first == last && self.list.len() >= limit {
            return None;
        }
        let joined = self.list.drain(first..last);
        let joined = joined.fold(Range { start, end }, |joined, range| Range {
            start: joined.start.min(range.start),
            end: joined.end.max(range.end),
        });
        self.list.insert(first, joined);
        Some(joined)
    }

    /// The range that contains all of `start..end`.
    pub(crate) fn around(&self, start: u64, end: u64) -> Option<Range> {
        let after = self.list.partition_point(|range| range.start <= start);
        let range = *self.list.get(after.checked_sub(1)?)?;
        range.contains(start, end).then_some(range)
    }

    /// Removes `start..end` from all ranges that it overlaps.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start >= end || self.list.is_empty() {
            return;
        }
        let mut place = self.list.partition_point(|range| range.end <= start);
        while let Some(range) = self.list.get_mut(place)
            && range.start < end
        {
            let before = Range {
                end: start,
                ..*range
            };
            let after = Range {
                start: end,
                ..*range
            };
            match (before.start < before.end, after.start < after.end) {
                (false, false) => {
                    self.list.remove(place);
                }
                (true, false) => {
                    *range = before;
                    place += 1;
                }
                (false, true) => {
                    *range = after;
                    break;
                }
                (true, true) => {
                    *range = before;
                    self.list.insert(place + 1, after);
                    break;
                }
            }
        }
    }

    /// Bytes of the ranges within `start..end`.
    pub(crate) fn bytes_within(&self, start: u64, end: u64) -> u64 {
        self.iter()
            .map(|range| range.end.min(end).saturating_sub(range.start.max(start)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Ranges behave like a set of bytes.
        #[test]
        fn as_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..9), 1..40)) {
            let (mut ranges, mut joined) = (Ranges::default(), Ranges::default());
            let mut bytes = [false; 80];
            for (add, start, length) in steps {
                let end = start + length;
                let part = &mut bytes[start as usize..end as usize];
                if add && part.iter().all(|byte| !byte) {
                    part.fill(true);
                    ranges.insert(start, end);
                    let all = joined.join(start, end, usize::MAX);
                    prop_assert!(all.is_some_and(|all| all.contains(start, end)));
                    prop_assert_eq!(joined.join(start, end, usize::MAX), None);
                } else if !add {
                    part.fill(false);
                    ranges.remove(start, end);
                    joined.remove(start, end);
                }
                let of: Vec<u64> = ranges.iter().flat_map(|range| range.start..range.end).collect();
                let set: Vec<u64> = (0..80).filter(|&at| bytes[at as usize]).collect();
                prop_assert_eq!(&of, &set);
                prop_assert!(ranges.iter().all(|range| range.start < range.end));
                let of: Vec<u64> = joined.iter().flat_map(|range| range.start..range.end).collect();
                prop_assert_eq!(of, set);
                let mut pairs = joined.list.windows(2);
                prop_assert!(pairs.all(|pair| pair[0].end < pair[1].start));
                let within = (10..30).filter(|&at| bytes[at as usize]).count();
                prop_assert_eq!(ranges.bytes_within(10, 30), within as u64);
            }
        }
    }
}
