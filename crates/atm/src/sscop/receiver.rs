//! Received messages and the gaps before them (Q.2110 §7.2 b): the variables VR, and the
//! other end's credit.

use std::collections::VecDeque;

use tidewall_wire::atm::sscop::{Pdu, Sequence};

use super::{Event, HALF};

#[derive(Debug)]
pub(super) struct Receiver {
    vr_r: Sequence,
    vr_h: Sequence,
    vr_mr: Sequence,
    /// From VR(R) on; the first is missing.
    received: VecDeque<Option<Vec<u8>>>,
    /// Messages that were offered to the user and not taken.
    untaken: u32,
    window: u32,
}

impl Receiver {
    /// `window`: messages ahead of those that the user has taken, below [`HALF`].
    pub(super) fn new(window: u32) -> Self {
        let zero = Sequence::default();
        Self {
            vr_r: zero,
            vr_h: zero,
            vr_mr: zero,
            received: VecDeque::new(),
            untaken: 0,
            window,
        }
    }

    /// Restarts the numbers at 0.
    pub(super) fn begin(&mut self) {
        let zero = Sequence::default();
        (self.vr_r, self.vr_h, self.vr_mr) = (zero, zero, self.first_credit());
        self.received.clear();
    }

    /// Discards messages received ahead of a gap.
    pub(super) fn clear(&mut self) {
        self.received.clear();
    }

    /// N(MR) of a starting connection. Messages of the earlier connection that the user
    /// has not taken count. Otherwise a peer that restarts again and again could make
    /// this end keep any number.
    pub(super) const fn first_credit(&self) -> Sequence {
        Sequence::new(self.window.saturating_sub(self.untaken))
    }

    /// N(R) and N(MR), for STAT and USTAT.
    pub(super) const fn expected(&self) -> (Sequence, Sequence) {
        (self.vr_r, self.vr_mr)
    }

    /// Records that the user has taken a message.
    pub(super) fn taken(&mut self) {
        self.untaken -= 1;
        self.extend_credit();
    }

    /// VR(MR) follows the messages that the user has taken, and never decreases.
    fn extend_credit(&mut self) {
        let room = self.window.saturating_sub(self.untaken);
        if room > self.vr_mr.since(self.vr_r) || self.vr_mr.since(self.vr_r) >= HALF {
            self.vr_mr = self.vr_r.plus(room);
        }
    }

    /// Processes an SD: messages now in order go to `events`. Returns the USTAT to be
    /// sent, if a gap appears. The error is its letter.
    pub(super) fn data(
        &mut self,
        number: Sequence,
        data: &[u8],
        events: &mut VecDeque<Event>,
    ) -> Result<Option<Pdu<'static>>, u8> {
        let offset = number.since(self.vr_r);
        let high = self.vr_h.since(self.vr_r);
        let window = self.vr_mr.since(self.vr_r);
        if offset >= HALF {
            // It was already delivered.
            return Ok(None);
        }
        if offset >= window {
            // Beyond the credit; the gap below it is requested.
            let missing = (high < window).then(|| self.missing_before(self.vr_mr));
            if missing.is_some() {
                self.vr_h = self.vr_mr;
            }
            return Ok(missing);
        }
        if offset == 0 {
            self.received.pop_front();
            self.deliver(data.to_vec(), events);
            while let Some(Some(next)) = self.received.front_mut().map(Option::take) {
                self.received.pop_front();
                self.deliver(next, events);
            }
            if high == 0 {
                self.vr_h = self.vr_r;
            }
            self.extend_credit();
            return Ok(None);
        }
        let index = offset as usize;
        if self.received.get(index).is_some_and(Option::is_some) {
            return Err(b'Q');
        }
        let missing = (offset > high).then(|| self.missing_before(number));
        if offset >= high {
            self.vr_h = number.plus(1);
        }
        if self.received.len() <= index {
            self.received.resize_with(index + 1, || None);
        }
        if let Some(place) = self.received.get_mut(index) {
            *place = Some(data.to_vec());
        }
        Ok(missing)
    }

    fn deliver(&mut self, data: Vec<u8>, events: &mut VecDeque<Event>) {
        self.vr_r = self.vr_r.plus(1);
        self.untaken += 1;
        events.push_back(Event::Data(data));
    }

    /// USTAT: from VR(H) on.
    const fn missing_before(&self, end: Sequence) -> Pdu<'static> {
        Pdu::UnsolicitedStatus {
            first: self.vr_h,
            end,
            credit: self.vr_mr,
            expected: self.vr_r,
        }
    }

    /// Processes a POLL, which reports that everything before `next` was sent. Returns
    /// the list of a STAT, the points at which missing and present change. The error is
    /// its letter.
    pub(super) fn polled(&mut self, next: Sequence) -> Result<Vec<[u8; 4]>, u8> {
        let offset = next.since(self.vr_r);
        if offset < self.vr_h.since(self.vr_r) || offset >= HALF {
            return Err(b'Q');
        }
        let high = offset.min(self.vr_mr.since(self.vr_r));
        self.vr_h = self.vr_r.plus(high);
        if high == 0 {
            return Ok(vec![]);
        }
        let here = |index: u32| {
            let entry = self.received.get(index as usize);
            entry.is_some_and(Option::is_some)
        };
        let changes = (1..high).filter(|index| here(*index) != here(index - 1));
        let list = [0].into_iter().chain(changes).chain([high]);
        Ok(list
            .map(|index| self.vr_r.plus(index).value().to_be_bytes())
            .collect())
    }
}
