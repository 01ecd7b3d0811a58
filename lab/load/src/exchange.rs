//! The closed loop without its socket: which request goes next, which reply answers which
//! request, and which are lost. Times are nanoseconds, passed in.

use std::collections::VecDeque;

use crate::report::PingCounts;
use crate::spec::PingSpec;

/// How far an open loop may fall behind before requests are skipped, ns.
const BEHIND_MAX: u64 = 1_000_000_000;
/// Pause after a request that could not be sent, ns.
const RETRY_AFTER: u64 = 1_000_000;

/// A slot for a request in flight.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Number of its request; modulo the number of slots it is the slot's own index.
    number: u64,
    /// When the request was sent; `None` without a request.
    sent_at: Option<u64>,
    /// When it was due: when it was sent, unless there is a rate.
    due: u64,
    /// When the next request may be sent.
    ready_at: u64,
}

/// The time until a reply, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    /// Since its request was due.
    pub(crate) corrected: u64,
    /// Since it was sent.
    pub(crate) raw: u64,
}

/// The requests in flight.
#[derive(Debug)]
pub(crate) struct Exchange {
    slots: Vec<Slot>,
    /// Slots without a request.
    idle: VecDeque<usize>,
    timeout: u64,
    interval: u64,
    /// Requests/s of an open loop.
    rate: Option<u64>,
    /// Number of the open loop's next due request.
    next: u64,
    /// The bits of a number that fit into the payload.
    mask: u64,
    /// No request in flight expires before this time.
    expiry: u64,
    counts: PingCounts,
}

impl Exchange {
    pub(crate) fn new(spec: &PingSpec) -> Self {
        let count = spec.outstanding.max(1);
        let bytes = u32::from(spec.payload.min(8));
        Exchange {
            slots: (0..u64::from(count))
                .map(|number| Slot {
                    number,
                    sent_at: None,
                    due: 0,
                    ready_at: 0,
                })
                .collect(),
            idle: (0..usize::from(count)).collect(),
            timeout: u64::try_from(spec.timeout.as_nanos()).unwrap_or(u64::MAX),
            interval: u64::try_from(spec.interval.as_nanos()).unwrap_or(u64::MAX),
            rate: spec.rate,
            next: 0,
            mask: u64::MAX.checked_shr(64 - 8 * bytes).unwrap_or(0),
            expiry: u64::MAX,
            counts: PingCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> PingCounts {
        self.counts
    }

    /// Counts a socket error.
    pub(crate) fn error(&mut self) {
        self.counts.errors += 1;
    }

    /// Records that the request from [`Exchange::next_request`] could not be sent. It is
    /// retried after a pause, so that an unreachable destination does not keep the
    /// processor busy.
    pub(crate) fn not_sent(&mut self, now: u64) {
        if let Some(slot) = self
            .idle
            .front()
            .and_then(|&index| self.slots.get_mut(index))
        {
            slot.ready_at = now.saturating_add(RETRY_AFTER);
        }
    }

    /// Returns the number of a request that may be sent now, for the first bytes of its
    /// payload. Call [`Exchange::sent`] once it is sent.
    pub(crate) fn next_request(&mut self, now: u64) -> Option<u64> {
        if self.due().is_some_and(|due| due > now) {
            return None;
        }
        let ready = self.idle.iter().position(|&slot| {
            self.slots
                .get(slot)
                .is_some_and(|slot| slot.ready_at <= now)
        })?;
        // At the front, where `sent` takes it from.
        self.idle.swap(0, ready);
        self.slots.get(*self.idle.front()?).map(|slot| slot.number)
    }

    /// Records that the request from [`Exchange::next_request`] was sent at `now`.
    pub(crate) fn sent(&mut self, now: u64) {
        let due = self.due();
        let Some(index) = self.idle.pop_front() else {
            return;
        };
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.sent_at = Some(now);
        slot.due = due.unwrap_or(now).min(now);
        self.next += 1;
        slot.ready_at = now.saturating_add(self.interval);
        self.expiry = self.expiry.min(now.saturating_add(self.timeout));
        self.counts.sent += 1;
    }

    /// Returns when the open loop's next request is due.
    fn due(&self) -> Option<u64> {
        let after = u128::from(self.next) * 1_000_000_000 / u128::from(self.rate?.max(1));
        Some(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// Skips the requests that an open loop can no longer catch up on.
    fn skip(&mut self, now: u64) {
        let (Some(due), Some(rate)) = (self.due(), self.rate) else {
            return;
        };
        let behind = now.saturating_sub(due);
        if behind > BEHIND_MAX {
            let over = u128::from(behind - BEHIND_MAX) * u128::from(rate) / 1_000_000_000;
            let over = u64::try_from(over).unwrap_or(u64::MAX);
            self.next = self.next.saturating_add(over);
            self.counts.skipped += over;
        }
    }

    /// Accepts a reply at time `now`; returns its round-trip time if it answers a request
    /// in flight.
    pub(crate) fn reply(&mut self, payload: &[u8], now: u64) -> Option<RoundTrip> {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(payload) {
            *to = *from;
        }
        let number = u64::from_le_bytes(bytes) & self.mask;
        let count = self.slots.len() as u64;
        let index = if self.mask == u64::MAX {
            usize::try_from(number % count).ok()
        } else {
            self.slots
                .iter()
                .position(|slot| slot.sent_at.is_some() && slot.number & self.mask == number)
        };
        let slot = index.and_then(|index| Some((index, self.slots.get_mut(index)?)));
        let Some((index, slot)) = slot.filter(|(_, slot)| slot.number & self.mask == number) else {
            self.counts.unexpected += 1;
            return None;
        };
        let Some(sent_at) = slot.sent_at.take() else {
            self.counts.unexpected += 1;
            return None;
        };
        slot.number = slot.number.wrapping_add(count);
        let took = RoundTrip {
            corrected: now.saturating_sub(slot.due),
            raw: now.saturating_sub(sent_at),
        };
        self.idle.push_back(index);
        self.counts.echoed += 1;
        Some(took)
    }

    /// Expires the requests that have timed out.
    pub(crate) fn expire(&mut self, now: u64) {
        self.skip(now);
        if now < self.expiry {
            return;
        }
        let count = self.slots.len() as u64;
        self.expiry = u64::MAX;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(sent_at) = slot.sent_at else {
                continue;
            };
            let expiry = sent_at.saturating_add(self.timeout);
            if now < expiry {
                self.expiry = self.expiry.min(expiry);
                continue;
            }
            slot.sent_at = None;
            slot.number = slot.number.wrapping_add(count);
            self.idle.push_back(index);
            self.counts.lost += 1;
        }
    }

    /// Returns when there is something to do again, unless a reply arrives first.
    pub(crate) fn deadline(&self) -> u64 {
        let due = self.due().unwrap_or(0);
        self.idle
            .iter()
            .filter_map(|&slot| self.slots.get(slot))
            .map(|slot| slot.ready_at.max(due))
            .fold(self.expiry, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn exchange(change: impl FnOnce(&mut PingSpec)) -> Exchange {
        let mut spec = PingSpec::new("10.0.0.2:7".parse().unwrap());
        spec.timeout = Duration::from_micros(100);
        change(&mut spec);
        assert!(spec.check().is_ok());
        Exchange::new(&spec)
    }

    fn raw(took: Option<RoundTrip>) -> Option<u64> {
        took.map(|took| took.raw)
    }

    /// Sends everything that may be sent at `now`.
    fn send(exchange: &mut Exchange, now: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(number) = exchange.next_request(now) {
            exchange.sent(now);
            numbers.push(number);
        }
        numbers
    }

    #[test]
    fn one_request_at_a_time() {
        let mut exchange = exchange(|_| ());
        assert_eq!(send(&mut exchange, 1000), [0]);
        assert_eq!(exchange.deadline(), 101_000);
        assert_eq!(raw(exchange.reply(&0u64.to_le_bytes(), 9500)), Some(8500));
        assert_eq!(send(&mut exchange, 9600), [1]);
        let counts = exchange.counts();
        assert_eq!((counts.sent, counts.echoed, counts.lost), (2, 1, 0));
    }

    #[test]
    fn a_lost_request_is_replaced_and_its_late_reply_not_counted() {
        let mut exchange = exchange(|_| ());
        assert_eq!(send(&mut exchange, 0), [0]);
        exchange.expire(99_999);
        assert_eq!(exchange.next_request(99_999), None);
        exchange.expire(100_000);
        assert_eq!(send(&mut exchange, 100_000), [1]);
        assert_eq!(exchange.reply(&0u64.to_le_bytes(), 100_001), None);
        assert_eq!(raw(exchange.reply(&1u64.to_le_bytes(), 100_002)), Some(2));
        assert_eq!(
            exchange.reply(&1u64.to_le_bytes(), 100_003),
            None,
            "repeated"
        );
        let counts = exchange.counts();
        assert_eq!(
            (counts.sent, counts.echoed, counts.lost, counts.unexpected),
            (2, 1, 1, 2)
        );
    }

    #[test]
    fn replies_may_come_in_any_order() {
        for payload in [1, 2, 8, 1400] {
            let mut exchange = exchange(|spec| (spec.outstanding, spec.payload) = (3, payload));
            let mut now = 0;
            for round in 0..300 {
                let mut numbers = send(&mut exchange, now);
                assert_eq!(numbers.len(), 3, "round {round}");
                numbers.rotate_left(round % 3);
                for number in numbers {
                    now += 10;
                    let mut reply = number.to_le_bytes().to_vec();
                    reply.resize(payload.into(), 0);
                    assert!(exchange.reply(&reply, now).is_some(), "round {round}");
                }
            }
            assert_eq!(exchange.counts().echoed, 900);
            assert_eq!(exchange.counts().unexpected, 0);
        }
    }

    #[test]
    fn requests_expire_each_in_its_time() {
        let mut exchange = exchange(|spec| spec.outstanding = 2);
        assert_eq!(exchange.next_request(0), Some(0));
        exchange.sent(0);
        assert_eq!(exchange.next_request(60_000), Some(1));
        exchange.sent(60_000);
        exchange.expire(100_000);
        assert_eq!(exchange.counts().lost, 1);
        assert_eq!(send(&mut exchange, 120_000), [2]);
        assert_eq!(exchange.deadline(), 160_000);
        exchange.expire(160_000);
        assert_eq!(exchange.counts().lost, 2);
    }

    #[test]
    fn an_interval_holds_the_next_request_back() {
        let mut exchange = exchange(|spec| spec.interval = Duration::from_micros(50));
        assert_eq!(send(&mut exchange, 0), [0]);
        assert!(exchange.reply(&0u64.to_le_bytes(), 10).is_some());
        assert_eq!(exchange.next_request(49_999), None);
        assert_eq!(exchange.deadline(), 50_000);
        assert_eq!(send(&mut exchange, 50_000), [1]);
    }

    #[test]
    fn a_request_that_could_not_be_sent_waits_for_a_millisecond() {
        let mut exchange = exchange(|_| ());
        assert_eq!(exchange.next_request(5), Some(0));
        exchange.error();
        exchange.not_sent(5);
        assert_eq!(exchange.next_request(1_000_004), None);
        assert_eq!(exchange.deadline(), 1_000_005);
        assert_eq!(send(&mut exchange, 1_000_005), [0]);
        assert_eq!((exchange.counts().errors, exchange.counts().sent), (1, 1));
    }

    #[test]
    fn an_empty_payload_is_answered_by_any_reply() {
        let mut exchange = exchange(|spec| spec.payload = 0);
        for now in 0..5 {
            assert_eq!(send(&mut exchange, now), [now]);
            assert_eq!(raw(exchange.reply(&[], now)), Some(0));
        }
    }

    #[test]
    fn with_a_rate_requests_are_due_whatever_is_in_flight() {
        // 10,000/s, two in flight.
        let mut exchange = exchange(|spec| {
            (spec.rate, spec.outstanding) = (Some(10_000), 2);
            spec.timeout = Duration::from_secs(10);
        });
        assert_eq!(send(&mut exchange, 0), [0]);
        assert_eq!(exchange.deadline(), 100_000);
        assert_eq!(send(&mut exchange, 99_999), [0; 0]);
        assert_eq!(send(&mut exchange, 100_000), [1]);
        // Two more are due at 200 and 300 µs, and no slot is free.
        assert_eq!(send(&mut exchange, 350_000), [0; 0]);
        assert_eq!(
            raw(exchange.reply(&0u64.to_le_bytes(), 350_000)),
            Some(350_000)
        );
        assert_eq!(send(&mut exchange, 350_000), [2]);
        let took = exchange.reply(&2u64.to_le_bytes(), 360_000).unwrap();
        assert_eq!((took.corrected, took.raw), (160_000, 10_000));
        assert_eq!(send(&mut exchange, 360_000), [4], "of the same place");
        assert_eq!(exchange.counts().skipped, 0);
        // Nothing happens for 3 s: all but the last are skipped.
        exchange.expire(3_000_000_000);
        let skipped = exchange.counts().skipped;
        assert!((19_990..=20_000).contains(&skipped), "{skipped}");
    }
}
