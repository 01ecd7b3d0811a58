//! A member's gaps: stretches of its sequence reserved for frames that have not arrived,
//! and their fate. A frame that went elsewhere leaves a *void*, which a null frame fills.

use tidewall_wire::acp;

/// A stretch of a member's sequence without a frame of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Its start on the peer's connection.
    pub(crate) csn: u64,
    /// Its start on the member's.
    pub(crate) lsn: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Its fate.
    pub(crate) fate: Fate,
}

/// The fate of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The peer's frames may still go here.
    Pending,
    /// They went elsewhere; the null frame is not sent yet.
    Fresh,
    /// The null frame was sent. Its bounds are fixed from now on: a member that has
    /// received one of two must never see both as one.
    Void,
}

impl Gap {
    const fn csn_end(&self) -> u64 {
        self.csn + self.length
    }

    pub(crate) const fn lsn_end(&self) -> u64 {
        self.lsn + self.length
    }

    /// The part from `skip` bytes on, `length` bytes long.
    const fn part(&self, skip: u64, length: u64, fate: Fate) -> Self {
        Self {
            csn: self.csn + skip,
            lsn: self.lsn + skip,
            length,
            fate,
        }
    }
}

/// The size of the first of the null frames that fill `length` bytes: a segment, leaving
/// no rest too short for a header. It depends only on the bytes from there to the end.
/// The null frames after it are therefore the same once it was acknowledged.
pub(crate) fn null_size(length: u64, segment_size: u64) -> u64 {
    let least = acp::HEADER_LEN as u64;
    match length.checked_sub(segment_size) {
        None | Some(0) => length,
        Some(rest) if rest < least => segment_size - least,
        Some(_) => segment_size,
    }
}

/// The gaps of one member, by LSN. Empty and without memory until a frame of the peer is
/// missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    list: Vec<Gap>,
}

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes of memory allocated for it.
    pub(crate) fn memory(&self) -> usize {
        self.list.capacity() * size_of::<Gap>()
    }

    /// Adds a gap beyond all others.
    pub(crate) fn push(&mut self, csn: u64, lsn: u64, length: u64) {
        let fate = Fate::Pending;
        self.list.push(Gap {
            csn,
            lsn,
            length,
            fate,
        });
    }

    fn pending(&self, csn: u64, length: u64) -> Option<usize> {
        let holds = |gap: &Gap| {
            gap.fate == Fate::Pending && gap.csn <= csn && csn + length <= gap.csn_end()
        };
        self.list.iter().position(holds)
    }

    /// The place of a frame that is missing here.
    pub(crate) fn find(&self, csn: u64, length: u64) -> Option<u64> {
        let gap = self.list.get(self.pending(csn, length)?)?;
        Some(gap.lsn + (csn - gap.csn))
    }

    /// Records that a frame arrived and goes here: it is no longer a gap.
    pub(crate) fn fill(&mut self, csn: u64, length: u64) {
        if let Some(place) = self.pending(csn, length) {
            self.replace(place, csn, 0, length);
        }
    }

    /// Records that a frame arrived and goes elsewhere; does nothing if no gap here was
    /// reserved for it.
    pub(crate) fn void(&mut self, csn: u64, length: u64, segment_size: u64) {
        let Some(place) = self.pending(csn, length) else {
            return;
        };
        let place = self.replace(place, csn, length, length);
        // With its neighbour of the same segment it makes one null frame.
        if let Some(before) = place.checked_sub(1)
            && let Some(rest) = self.list.get_mut(before..)
            && let Some([first, second]) = rest.first_chunk_mut::<2>()
            && first.fate == Fate::Fresh
            && first.csn_end() == second.csn
            && first.lsn_end() == second.lsn
            && first.length + second.length <= segment_size
        {
            first.length += second.length;
            self.list.remove(place);
        }
    }

    /// Voids gaps below `lsn` that were reserved for frames after `csn`: none will
    /// arrive.
    pub(crate) fn void_pending(&mut self, lsn: u64, csn: u64, segment_size: u64) {
        let mut place = 0;
        while let Some(gap) = self.list.get(place)
            && gap.lsn < lsn
        {
            if gap.fate == Fate::Pending && gap.csn > csn {
                let size = null_size(gap.length, segment_size);
                self.replace(place, gap.csn, size, size);
            }
            place += 1;
        }
    }

    /// Records that a sent frame will not be repeated: a null frame with its bounds
    /// replaces it.
    pub(crate) fn insert_void(&mut self, csn: u64, lsn: u64, length: u64) {
        let place = self.list.partition_point(|gap| gap.lsn < lsn);
        let fate = Fate::Void;
        let gap = Gap {
            csn,
            lsn,
            length,
            fate,
        };
        self.list.insert(place, gap);
    }

    /// Removes `length` bytes from a pending gap; the first `void` of them stay, as a
    /// void. Returns the index of the void, or of what follows.
    #[expect(
        clippy::indexing_slicing,
        reason = "callers pass the place of a gap that they found"
    )]
    fn replace(&mut self, place: usize, csn: u64, void: u64, length: u64) -> usize {
        let gap = self.list[place];
        let skip = csn - gap.csn;
        let parts = [
            gap.part(0, skip, Fate::Pending),
            gap.part(skip, void, Fate::Fresh),
            gap.part(skip + length, gap.length - skip - length, Fate::Pending),
        ];
        let parts = parts.into_iter().filter(|part| part.length > 0);
        self.list.splice(place..=place, parts);
        place + usize::from(skip > 0)
    }

    /// Records that the member has acknowledged everything before `lsn`.
    pub(crate) fn acknowledge(&mut self, lsn: u64) {
        let known = self.list.partition_point(|gap| gap.lsn_end() <= lsn);
        self.list.drain(..known);
    }

    /// The gap that contains `lsn`.
    pub(crate) fn at(&self, lsn: u64) -> Option<Gap> {
        let place = self.list.partition_point(|gap| gap.lsn_end() <= lsn);
        self.list.get(place).copied().filter(|gap| gap.lsn <= lsn)
    }

    /// Passes on the gaps voided since the last call; their bounds are fixed from now on.
    pub(crate) fn take_fresh(&mut self, mut each: impl FnMut(Gap)) {
        for gap in &mut self.list {
            if gap.fate == Fate::Fresh {
                gap.fate = Fate::Void;
                each(*gap);
            }
        }
    }

    /// Voids below `lsn`, oldest first.
    pub(crate) fn voids_below(&self, lsn: u64) -> impl Iterator<Item = Gap> + '_ {
        self.list
            .iter()
            .take_while(move |gap| gap.lsn < lsn)
            .filter(|gap| gap.fate == Fate::Void)
            .copied()
    }

    /// True when a frame of the peer may still go into a gap.
    pub(crate) fn any_pending(&self) -> bool {
        self.list.iter().any(|gap| gap.fate == Fate::Pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps() -> Gaps {
        let mut gaps = Gaps::default();
        gaps.push(1000, 500, 100);
        gaps
    }

    #[test]
    fn a_missing_frame_goes_where_it_was_expected() {
        let mut gaps = gaps();
        assert_eq!(gaps.find(1040, 20), Some(540));
        gaps.fill(1040, 20);
        assert_eq!(gaps.find(1040, 20), None);
        assert_eq!(gaps.find(1030, 20), None, "beyond the rest of the gap");
        assert_eq!(gaps.find(1060, 40), Some(560));
        assert_eq!(gaps.len(), 2);
    }

    #[test]
    fn voids_of_one_segment_are_one_null_frame_and_keep_their_bounds() {
        let mut gaps = gaps();
        gaps.void(1000, 20, 1000);
        gaps.void(1020, 20, 1000);
        let mut sent = Vec::new();
        gaps.take_fresh(|gap| sent.push((gap.lsn, gap.length)));
        assert_eq!(sent, [(500, 40)]);
        gaps.void(1040, 30, 1000);
        gaps.take_fresh(|gap| sent.push((gap.lsn, gap.length)));
        assert_eq!(sent, [(500, 40), (540, 30)]);
        let below: Vec<u64> = gaps.voids_below(600).map(|gap| gap.lsn).collect();
        assert_eq!(below, [500, 540]);
        gaps.acknowledge(540);
        assert_eq!(gaps.at(541).map(|gap| gap.lsn), Some(540));
        assert_eq!(gaps.len(), 2);
        assert!(gaps.any_pending());
    }

    #[test]
    fn a_null_frame_is_no_longer_than_a_segment() {
        let mut gaps = gaps();
        gaps.void(1000, 40, 50);
        gaps.void(1040, 40, 50);
        let mut sent = 0;
        gaps.take_fresh(|_| sent += 1);
        assert_eq!(sent, 2);
    }

    #[test]
    fn all_of_a_gap_is_null_frames_of_a_header_at_least() {
        for segment in 90..110 {
            let mut gaps = gaps();
            gaps.push(2000, 600, 3 * segment + 2);
            gaps.void_pending(u64::MAX, 0, segment);
            let mut sent = Vec::new();
            gaps.take_fresh(|gap| sent.push(gap));
            assert!(sent.iter().all(|gap| (4..=segment).contains(&gap.length)));
            assert!(sent.windows(2).all(|pair| pair[0].lsn_end() == pair[1].lsn));
            assert_eq!(sent.last().map(Gap::lsn_end), Some(602 + 3 * segment));
            assert!(!gaps.any_pending());
        }
    }
}
