//! Half-open connections of a listener: a bounded store with one queue per number of
//! answers sent.
//!
//! All entries with the same number of answers wait equally long. So each queue is in
//! order of deadlines, and no heap is needed.

use core::time::Duration;
use std::collections::HashMap;
use std::net::IpAddr;

use slab::Slab;

use super::keyed::Keyed;
use super::{FourTuple, Time};

/// How long the first answer waits for its acknowledgment (RFC 6298 §2);
/// doubled each time.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait (Linux `TCP_RTO_MAX`).
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// After this many retries all wait equally long.
const DOUBLINGS: u8 = 7;
const QUEUES: usize = DOUBLINGS as usize + 1;

/// How long an answer waits for its acknowledgment, after `retries` others.
pub(super) fn timeout(retries: u8) -> Duration {
    (FIRST_TIMEOUT * (1 << retries.min(DOUBLINGS))).min(TIMEOUT_MAX)
}

/// A connection in SYN-RECEIVED.
#[derive(Clone, Debug)]
pub(super) struct HalfOpen {
    pub flow: FourTuple,
    pub local_isn: u32,
    pub remote_isn: u32,
    pub mss: u16,
    /// Options that the SYN offered and we accept.
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
    /// The SYN asked for frames, which we carry.
    pub acp: bool,
    /// The peer's timestamp as last seen.
    pub timestamp: Option<u32>,
    pub timestamp_offset: u32,
    /// The caller's label for the SYN's origin.
    pub origin: u64,
    /// When the first answer was sent, and the last.
    pub begun: Time,
    pub answered: Time,
    /// Answers beyond the first.
    pub retries: u8,
    /// The handshake is complete, and no data has arrived (`TCP_DEFER_ACCEPT`).
    pub acknowledged: bool,
    /// When it entered its queue.
    pub queued: Time,
    pub previous: Option<u32>,
    pub next: Option<u32>,
}

impl HalfOpen {
    pub(super) fn new(flow: FourTuple, local_isn: u32, remote_isn: u32, now: Time) -> Self {
        Self {
            flow,
            local_isn,
            remote_isn,
            mss: 0,
            window_scale: None,
            sack: false,
            ecn: false,
            acp: false,
            timestamp: None,
            timestamp_offset: 0,
            origin: 0,
            begun: now,
            answered: now,
            retries: 0,
            acknowledged: false,
            queued: now,
            previous: None,
            next: None,
        }
    }

    /// When it is answered again, or dropped.
    pub(super) fn deadline(&self) -> Time {
        self.queued + timeout(self.retries)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    first: Option<u32>,
    last: Option<u32>,
}

/// A prefix that shares part of the queue: a /24 or a /64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
            // Global and local prefixes all have one of the upper 40 bits set, so that
            // none is mistaken for an IPv4 one.
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }
}

#[derive(Debug)]
pub(super) struct Store {
    entries: Slab<HalfOpen>,
    by_flow: HashMap<FourTuple, u32, Keyed>,
    by_prefix: HashMap<Prefix, u32, Keyed>,
    /// Indexed by [`HalfOpen::retries`].
    queues: [Queue; QUEUES],
}

impl Store {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self {
            entries: Slab::new(),
            by_flow: HashMap::with_hasher(Keyed(key)),
            by_prefix: HashMap::with_hasher(Keyed(key)),
            queues: [Queue::default(); QUEUES],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries from a prefix.
    pub(super) fn of_prefix(&self, prefix: Prefix) -> usize {
        self.by_prefix
            .get(&prefix)
            .map_or(0, |count| *count as usize)
    }

    pub(super) fn find(&self, flow: &FourTuple) -> Option<u32> {
        self.by_flow.get(flow).copied()
    }

    pub(super) fn get(&self, key: u32) -> Option<&HalfOpen> {
        self.entries.get(key as usize)
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut HalfOpen> {
        self.entries.get_mut(key as usize)
    }

    /// Adds an entry; its flow must not be in the store yet.
    pub(super) fn insert(&mut self, entry: HalfOpen) {
        let flow = entry.flow;
        let key = self.entries.insert(entry) as u32;
        self.by_flow.insert(flow, key);
        *self
            .by_prefix
            .entry(Prefix::of(flow.remote.ip()))
            .or_default() += 1;
        self.append(key);
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: u32) -> Option<HalfOpen> {
        self.unlink(key);
        let entry = self.entries.try_remove(key as usize)?;
        self.by_flow.remove(&entry.flow);
        let prefix = Prefix::of(entry.flow.remote.ip());
        if let Some(count) = self.by_prefix.get_mut(&prefix) {
            *count -= 1;
            if *count == 0 {
                self.by_prefix.remove(&prefix);
            }
        }
        Some(entry)
    }

    /// Records that an entry expired and was answered once more.
    pub(super) fn retried(&mut self, key: u32, now: Time) {
        self.unlink(key);
        if let Some(entry) = self.get_mut(key) {
            entry.retries = entry.retries.saturating_add(1);
            entry.answered = now;
            entry.queued = now;
        }
        self.append(key);
    }

    /// The next deadline, and its entry.
    pub(super) fn next(&self) -> Option<(Time, u32)> {
        let firsts = self.queues.iter().filter_map(|queue| queue.first);
        firsts
            .filter_map(|key| Some((self.get(key)?.deadline(), key)))
            .min()
    }

    fn queue_mut(&mut self, key: u32) -> Option<&mut Queue> {
        let retries = self.get(key)?.retries.min(DOUBLINGS);
        self.queues.get_mut(usize::from(retries))
    }

    fn append(&mut self, key: u32) {
        let Some(queue) = self.queue_mut(key) else {
            return;
        };
        let last = queue.last.replace(key);
        if last.is_none() {
            queue.first = Some(key);
        }
        if let Some(last) = last.and_then(|last| self.get_mut(last)) {
            last.next = Some(key);
        }
        if let Some(entry) = self.get_mut(key) {
            entry.previous = last;
            entry.next = None;
        }
    }

    fn unlink(&mut self, key: u32) {
        let Some((previous, next)) = self.get(key).map(|entry| (entry.previous, entry.next)) else {
            return;
        };
        match previous {
            Some(previous) => {
                if let Some(previous) = self.get_mut(previous) {
                    previous.next = next;
                }
            }
            None => {
                if let Some(queue) = self.queue_mut(key) {
                    queue.first = next;
                }
            }
        }
        match next {
            Some(next) => {
                if let Some(next) = self.get_mut(next) {
                    next.previous = previous;
                }
            }
            None => {
                if let Some(queue) = self.queue_mut(key) {
                    queue.last = previous;
                }
            }
        }
    }
}
