//! Sent and unacknowledged messages (Q.2110 §7.2 a): the variables VT, the messages that
//! wait to be sent, and those that may have to be repeated.

use std::collections::VecDeque;

use tidewall_wire::atm::sscop::{List, Pdu, Sequence};

use super::{HALF, emitted};

#[derive(Debug)]
struct Sent {
    data: Vec<u8>,
    /// VT(PS) when it was last sent.
    poll: Sequence,
    /// It waits to be repeated.
    again: bool,
}

/// The next thing to send.
pub(super) enum Next {
    /// An SD, as it goes out.
    Data(Vec<u8>),
    /// Messages wait, and the other end has granted no credit.
    NoCredit,
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Transmitter {
    vt_s: Sequence,
    vt_a: Sequence,
    vt_ms: Sequence,
    vt_ps: Sequence,
    vt_pa: Sequence,
    vt_pd: u32,
    /// From VT(A) on.
    sent: VecDeque<Sent>,
    again: VecDeque<Sequence>,
    queue: VecDeque<Vec<u8>>,
}

impl Transmitter {
    /// Restarts the numbers at 0; the other end permits those below `credit`. Waiting
    /// messages stay.
    pub(super) fn begin(&mut self, credit: Sequence) {
        *self = Self {
            vt_ms: credit,
            queue: std::mem::take(&mut self.queue),
            ..Self::default()
        };
    }

    /// Discards data in transit and waiting.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
        self.again.clear();
        self.queue.clear();
    }

    /// Messages that wait to be sent or acknowledged.
    pub(super) fn len(&self) -> usize {
        self.sent.len() + self.queue.len()
    }

    pub(super) fn push(&mut self, message: &[u8]) {
        self.queue.push_back(message.to_vec());
    }

    /// SD since the last POLL.
    pub(super) const fn since_poll(&self) -> u32 {
        self.vt_pd
    }

    /// The next SD: repetitions first.
    pub(super) fn next(&mut self) -> Next {
        while let Some(number) = self.again.pop_front() {
            let index = number.since(self.vt_a) as usize;
            if let Some(sent) = self.sent.get_mut(index)
                && sent.again
            {
                sent.again = false;
                sent.poll = self.vt_ps;
                self.vt_pd += 1;
                let data = &sent.data;
                return Next::Data(emitted(&Pdu::Data { number, data }));
            }
        }
        let credit = self.vt_ms.since(self.vt_a);
        let allowed = credit < HALF && self.vt_s.since(self.vt_a) < credit;
        if !allowed && !self.queue.is_empty() {
            return Next::NoCredit;
        }
        let Some(data) = self.queue.pop_front() else {
            return Next::Nothing;
        };
        let pdu = emitted(&Pdu::Data {
            number: self.vt_s,
            data: &data,
        });
        self.sent.push_back(Sent {
            data,
            poll: self.vt_ps,
            again: false,
        });
        self.vt_s = self.vt_s.plus(1);
        self.vt_pd += 1;
        Next::Data(pdu)
    }

    /// The next POLL.
    pub(super) fn poll(&mut self) -> Pdu<'static> {
        self.vt_ps = self.vt_ps.plus(1);
        self.vt_pd = 0;
        Pdu::Poll {
            poll: self.vt_ps,
            next: self.vt_s,
        }
    }

    /// Processes a STAT: repeats missing messages that were sent before its POLL. The
    /// error is its letter.
    pub(super) fn status(
        &mut self,
        missing: List<'_>,
        poll: Sequence,
        credit: Sequence,
        expected: Sequence,
    ) -> Result<(), u8> {
        if poll.since(self.vt_pa) > self.vt_ps.since(self.vt_pa) {
            return Err(b'R');
        }
        let under_way = self.vt_s.since(expected);
        let rising = missing
            .iter()
            .map(|element| i64::from(element.since(expected)))
            .try_fold(-1, |before, element| (element > before).then_some(element))
            .is_some_and(|last| last <= i64::from(under_way));
        if !rising || !self.acknowledged(expected, credit) {
            return Err(b'S');
        }
        self.vt_pa = poll;
        let ends = missing.iter().skip(1);
        for (index, (first, end)) in missing.iter().zip(ends).enumerate() {
            if index % 2 == 0 {
                // Messages sent after the POLL may still be on their way.
                self.repeat(first, end, |sent| {
                    let since = poll.since(sent);
                    since > 0 && since < HALF
                });
            }
        }
        Ok(())
    }

    /// Processes a USTAT: repeats the messages from `first` to before `end`. The error is
    /// its letter.
    pub(super) fn unsolicited(
        &mut self,
        first: Sequence,
        end: Sequence,
        credit: Sequence,
        expected: Sequence,
    ) -> Result<(), u8> {
        let under_way = self.vt_s.since(expected);
        let fits = first.since(expected) < end.since(expected) && end.since(expected) <= under_way;
        if !fits || !self.acknowledged(expected, credit) {
            return Err(b'T');
        }
        self.repeat(first, end, |_| true);
        Ok(())
    }

    /// Processes the acknowledgment N(R) and the credit N(MR); false if they are
    /// impossible.
    fn acknowledged(&mut self, expected: Sequence, credit: Sequence) -> bool {
        let count = expected.since(self.vt_a);
        if count > self.vt_s.since(self.vt_a) || credit.since(expected) >= HALF {
            return false;
        }
        self.sent.drain(..self.sent.len().min(count as usize));
        self.vt_a = expected;
        self.vt_ms = credit;
        true
    }

    /// Repeats the messages from `first` to before `end` for which `due` holds, given the
    /// POLL before each.
    fn repeat(&mut self, first: Sequence, end: Sequence, due: impl Fn(Sequence) -> bool) {
        let from = first.since(self.vt_a) as usize;
        let to = end.since(self.vt_a) as usize;
        let to = to.min(self.sent.len());
        for (index, sent) in self.sent.range_mut(from.min(to)..to).enumerate() {
            if !sent.again && due(sent.poll) {
                sent.again = true;
                self.again.push_back(first.plus(index as u32));
            }
        }
    }
}
