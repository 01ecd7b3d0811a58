//! The frame ring of the inbound direction. It holds up to `w` frames between the oldest
//! that is not known to the peer as acknowledged and the newest. They are found by their
//! position in the peer's sequence, and linked into one chain per member (papers: frame
//! ring, frame chains).
//!
//! Frames lie in slots that do not move, and a list of slot numbers keeps their order. A
//! frame that fills a hole is inserted there, and chains stay as they are.

use std::collections::VecDeque;

/// No frame: the end of a chain.
pub(crate) const NIL: u16 = u16::MAX;

/// The state of a frame, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Its start on the peer's connection (CSN).
    pub(crate) csn: u64,
    /// Its start on its member's connection (LSN).
    pub(crate) lsn: u64,
    /// Bytes, including its header.
    pub(crate) length: u32,
    /// The module's word.
    pub(crate) state: u32,
    /// The next of the same member by LSN.
    next: u16,
    /// Its member's slot.
    pub(crate) member: u8,
    /// Its member has acknowledged it.
    pub(crate) acknowledged: bool,
    /// Its member has reported it in a SACK block, and may still discard it.
    pub(crate) sacked: bool,
}

impl Frame {
    pub(crate) const fn new(csn: u64, lsn: u64, length: u32, member: u8, state: u32) -> Self {
        Self {
            csn,
            lsn,
            length,
            state,
            next: NIL,
            member,
            acknowledged: false,
            sacked: false,
        }
    }

    /// Its member has it, according to its reports.
    pub(crate) const fn is_held(&self) -> bool {
        self.acknowledged || self.sacked
    }

    pub(crate) const fn csn_end(&self) -> u64 {
        self.csn + self.length as u64
    }

    pub(crate) const fn lsn_end(&self) -> u64 {
        self.lsn + self.length as u64
    }
}

/// The frames of one member that it has not acknowledged, by LSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    head: u16,
    tail: u16,
    /// The first frame behind the last that was SACKed.
    beyond: u16,
    length: u16,
    /// Bytes of the frames in it.
    bytes: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            beyond: NIL,
            length: 0,
            bytes: 0,
        }
    }
}

impl Chain {
    /// Frames in it.
    pub(crate) const fn len(&self) -> u16 {
        self.length
    }

    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// The ring.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    slots: Vec<Frame>,
    free: Vec<u16>,
    order: VecDeque<u16>,
    limit: u16,
    /// Frames in chains that were SACKed.
    sacked: u16,
}

impl Ring {
    /// A ring of at most `limit` frames, which allocates memory as they arrive.
    pub(crate) const fn new(limit: u16) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            order: VecDeque::new(),
            limit,
            sacked: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Maximum number of frames.
    pub(crate) const fn limit(&self) -> u16 {
        self.limit
    }

    /// Bytes of memory allocated for it.
    pub(crate) fn memory(&self) -> usize {
        let numbers = self.free.capacity() + self.order.capacity();
        self.slots.capacity() * size_of::<Frame>() + numbers * size_of::<u16>()
    }

    /// Number of frames that still fit.
    pub(crate) fn room(&self) -> u16 {
        self.limit - self.order.len() as u16
    }

    fn slot(&self, number: u16) -> Option<&Frame> {
        self.slots.get(usize::from(number))
    }

    /// The frame that begins at `csn`.
    pub(crate) fn find(&self, csn: u64) -> Option<Frame> {
        let place = self.place(csn);
        let frame = self.slot(*self.order.get(place)?)?;
        (frame.csn == csn).then_some(*frame)
    }

    fn place(&self, csn: u64) -> usize {
        self.order
            .partition_point(|&number| self.slot(number).is_some_and(|frame| frame.csn < csn))
    }

    /// Adds a frame to the ring and its member's chain; false when there is no room.
    #[expect(
        clippy::indexing_slicing,
        reason = "a free number is the place of a slot that exists"
    )]
    pub(crate) fn insert(&mut self, mut frame: Frame, chain: &mut Chain) -> bool {
        if self.room() == 0 {
            return false;
        }
        // In the chain, by LSN: nearly always the last.
        let after = match self.slot(chain.tail) {
            Some(tail) if tail.lsn < frame.lsn => chain.tail,
            _ => {
                let mut after = NIL;
                let mut number = chain.head;
                while let Some(other) = self.slot(number)
                    && other.lsn < frame.lsn
                {
                    (after, number) = (number, other.next);
                }
                after
            }
        };
        frame.next = self.slot(after).map_or(chain.head, |before| before.next);
        let (csn, length, next) = (frame.csn, frame.length, frame.next);
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[usize::from(number)] = frame;
                number
            }
            None => {
                self.slots.push(frame);
                (self.slots.len() - 1) as u16
            }
        };
        match self.slots.get_mut(usize::from(after)) {
            Some(before) => before.next = number,
            None => chain.head = number,
        }
        if next == NIL {
            chain.tail = number;
        }
        if chain.beyond == next {
            chain.beyond = number;
        }
        chain.length += 1;
        chain.bytes += length;
        let newest = self.order.back().and_then(|&back| self.slot(back));
        if newest.is_none_or(|newest| newest.csn < csn) {
            self.order.push_back(number);
        } else {
            let place = self.place(csn);
            self.order.insert(place, number);
        }
        true
    }

    /// The first of a chain.
    pub(crate) fn head(&self, chain: &Chain) -> Option<Frame> {
        self.slot(chain.head).copied()
    }

    /// Removes the first frame of a chain, as acknowledged, if it ends at or before
    /// `lsn`.
    pub(crate) fn acknowledge(&mut self, chain: &mut Chain, lsn: u64) -> Option<Frame> {
        let frame = self.slots.get_mut(usize::from(chain.head))?;
        if frame.lsn_end() > lsn {
            return None;
        }
        frame.acknowledged = true;
        if frame.sacked {
            frame.sacked = false;
            self.sacked -= 1;
        }
        let frame = *frame;
        if chain.beyond == chain.head {
            chain.beyond = frame.next;
        }
        chain.head = frame.next;
        if chain.head == NIL {
            chain.tail = NIL;
        }
        chain.length -= 1;
        chain.bytes -= frame.length;
        Some(frame)
    }

    /// Records that a member holds `start..end` of its sequence beyond its
    /// acknowledgment. Passes each newly held frame to `each`.
    pub(crate) fn sack(
        &mut self,
        chain: &mut Chain,
        start: u64,
        end: u64,
        mut each: impl FnMut(Frame),
    ) {
        // Nearly always after what it has reported before.
        let mut number = match self.slot(chain.beyond) {
            Some(beyond) if beyond.lsn <= start => chain.beyond,
            _ => chain.head,
        };
        let mut behind = false;
        while let Some(frame) = self.slots.get_mut(usize::from(number))
            && frame.lsn_end() <= end
        {
            behind |= number == chain.beyond;
            number = frame.next;
            if frame.lsn < start {
                continue;
            }
            if behind {
                chain.beyond = number;
            }
            if !frame.sacked {
                frame.sacked = true;
                self.sacked += 1;
                each(*frame);
            }
        }
    }

    /// Records that the member of the frame at `csn` may have discarded it.
    pub(crate) fn doubt(&mut self, csn: u64) {
        let number = self.order.get(self.place(csn)).copied().unwrap_or(NIL);
        if let Some(frame) = self.slots.get_mut(usize::from(number))
            && frame.csn == csn
        {
            self.sacked -= u16::from(core::mem::take(&mut frame.sacked));
        }
    }

    /// Frames that members hold and have not acknowledged.
    pub(crate) const fn sacked(&self) -> u16 {
        self.sacked
    }

    /// The first frame of a chain after all that its member has SACKed.
    pub(crate) fn beyond(&self, chain: &Chain) -> Option<Frame> {
        self.slot(chain.beyond).copied()
    }

    /// Frames that begin in `start..end` of the peer's sequence, in order.
    pub(crate) fn between(&self, start: u64, end: u64) -> impl Iterator<Item = &Frame> {
        let frames = self.order.range(self.place(start)..);
        frames
            .filter_map(|&number| self.slot(number))
            .take_while(move |frame| frame.csn < end)
    }

    /// Removes the oldest frame from the ring if it begins at `csn` and was acknowledged.
    pub(crate) fn pop_acknowledged(&mut self, csn: u64) -> Option<Frame> {
        let number = *self.order.front()?;
        let frame = *self.slot(number)?;
        if frame.csn != csn || !frame.acknowledged {
            return None;
        }
        self.order.pop_front();
        self.free.push(number);
        Some(frame)
    }

    /// Removes frames of a chain below `lsn` that follow `csn` from it and from the ring,
    /// except those for which `stays` is true. Passes each removed frame to `each`.
    pub(crate) fn abandon(
        &mut self,
        chain: &mut Chain,
        lsn: u64,
        csn: u64,
        stays: impl Fn(&Frame) -> bool,
        mut each: impl FnMut(Frame),
    ) {
        let (mut before, mut number) = (NIL, chain.head);
        while let Some(&frame) = self.slot(number)
            && frame.lsn < lsn
        {
            if frame.csn <= csn || stays(&frame) {
                (before, number) = (number, frame.next);
                continue;
            }
            match self.slots.get_mut(usize::from(before)) {
                Some(before) => before.next = frame.next,
                None => chain.head = frame.next,
            }
            if frame.next == NIL {
                chain.tail = before;
            }
            if chain.beyond == number {
                chain.beyond = frame.next;
            }
            self.sacked -= u16::from(frame.sacked);
            chain.length -= 1;
            chain.bytes -= frame.length;
            let place = self.place(frame.csn);
            self.order.remove(place);
            self.free.push(number);
            each(frame);
            number = frame.next;
        }
    }

    /// Releases the memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Frames arrive in any order of CSN and are acknowledged by LSN; frames leave
        /// the ring in order of CSN.
        #[test]
        fn order_and_chains(order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut ring = Ring::new(40);
            let mut chains = [Chain::default(); 3];
            for &number in &order {
                let member = (number % 3) as u8;
                let frame = Frame::new(number * 10, number * 10, 10, member, number as u32);
                prop_assert!(ring.insert(frame, &mut chains[usize::from(member)]));
                prop_assert_eq!(ring.find(number * 10).map(|found| found.state), Some(number as u32));
            }
            let extra = Frame::new(9999, 9999, 1, 0, 0);
            prop_assert!(!ring.insert(extra, &mut chains[0]));
            let mut left = 0;
            for lsn in (0..=400).step_by(10) {
                for chain in &mut chains {
                    let mut last = None;
                    while let Some(frame) = ring.acknowledge(chain, lsn) {
                        prop_assert!(last < Some(frame.lsn));
                        last = Some(frame.lsn);
                    }
                }
                while let Some(frame) = ring.pop_acknowledged(left) {
                    left = frame.csn_end();
                }
                prop_assert_eq!(left, lsn);
            }
            prop_assert_eq!(ring.len(), 0);
            prop_assert!(chains.iter().all(|chain| chain.is_empty() && chain.bytes() == 0));
        }
    }
}
