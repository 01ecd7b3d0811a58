//! Reassembly of fragments (RFC 791 §3.2, RFC 815, RFC 8200 §4.5), hardened as RFC 5722,
//! 6946 and 7112 require.
//!
//! No peer can make a reassembler hold more than [`Limits`] allows. Each datagram has a
//! limit of fragments. All datagrams together have a limit of bytes (book-keeping
//! counted) and of number; the oldest is evicted for a new one.
//!
//! An overlap condemns its datagram, over IPv4 as over IPv6 (Linux does the same). The
//! remaining fragments of that datagram are refused until it expires. So no order of
//! fragments allows a peer to choose which of two contents is seen (teardrop and its kin,
//! RFC 1858, RFC 3128).

mod datagram;
mod fragment;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::DropReason;
use datagram::Datagram;
use fragment::{Family, Fragment, Key, Parsed};

/// How much a [`Reassembler`] may hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Datagrams in progress, condemned ones included. At the limit the oldest is
    /// evicted. Default 1024.
    pub datagrams: usize,
    /// Bytes held, with [`DATAGRAM_COST`] and [`FRAGMENT_COST`] added for each. Below
    /// about 70,000 the longest datagrams cannot be reassembled. Default 4 MiB, as
    /// Linux's `ipfrag_high_thresh`.
    pub bytes: usize,
    /// Fragments per datagram. Default 128: 64 KiB need that many over a link with IPv4's
    /// smallest usual MTU, 576 bytes.
    pub fragments: usize,
    /// Time limit for an IPv4 datagram, from its first fragment. Default 30 s, as Linux's
    /// `ipfrag_time`. RFC 1122 §3.3.2 has 60 to 120 s; within that time a sender's 16-bit
    /// identification wraps (RFC 4963).
    pub timeout_v4: Duration,
    /// The same for IPv6. Default 60 s (RFC 8200 §4.5).
    pub timeout_v6: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            datagrams: 1024,
            bytes: 4 << 20,
            fragments: 128,
            timeout_v4: Duration::from_secs(30),
            timeout_v6: Duration::from_secs(60),
        }
    }
}

/// Bytes charged for a datagram in progress beside its fragments: more than it takes in
/// maps and allocator.
pub const DATAGRAM_COST: usize = 640;

/// Bytes charged for a fragment beside its payload.
pub const FRAGMENT_COST: usize = 64;

/// Counters of events. The caller also counts each refused fragment under its
/// [`DropReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of [`Reassembler::insert`].
    pub fragments: u64,
    /// Datagrams reassembled, without atomic fragments.
    pub reassembled: u64,
    /// Atomic fragments passed on (RFC 6946).
    pub atomic: u64,
    /// Fragments refused by themselves (truncated, damaged, empty, unaligned, beyond the
    /// longest datagram). Also counts complete datagrams that are too long with the first
    /// fragment's header.
    pub malformed: u64,
    /// Duplicate fragments.
    pub duplicates: u64,
    /// Datagrams condemned for an overlap.
    pub overlaps: u64,
    /// Datagrams condemned for contradicting ends.
    pub contradictions: u64,
    /// Datagrams condemned for too many fragments.
    pub too_many_fragments: u64,
    /// Complete datagrams dropped because their fragments' ECN marks contradict
    /// each other.
    pub ecn_mismatches: u64,
    /// Fragments of condemned datagrams.
    pub refused: u64,
    /// Fragments that did not fit the limits even after all else was evicted.
    pub no_memory: u64,
    /// Datagrams in progress that were evicted for newer ones.
    pub evicted: u64,
    /// Datagrams in progress that expired.
    pub timeouts: u64,
}

/// A reassembled datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassembled {
    /// A whole IP datagram: the first fragment's network header and the payload. Lengths
    /// (and IPv4's checksum) are corrected, and IPv6's fragment header is removed.
    pub bytes: Vec<u8>,
    /// Offset of the transport header in `bytes`.
    pub transport: usize,
    /// The tag passed with the first fragment, if there was one.
    pub tag: Option<u64>,
}

/// Reassembles fragments.
///
/// Keys are compared, not hashed, so an attacker has no hash to collide.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    datagrams: BTreeMap<Key, Datagram>,
    /// By order of arrival, one map per family: within a family, deadlines have the order
    /// of arrivals.
    arrivals: [BTreeMap<u64, (Duration, Key)>; 2],
    sequence: u64,
    bytes: usize,
    latest: Duration,
    counters: Counters,
}

impl Default for Reassembler {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Reassembler {
    /// Returns an empty reassembler.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            datagrams: BTreeMap::new(),
            arrivals: [BTreeMap::new(), BTreeMap::new()],
            sequence: 0,
            bytes: 0,
            latest: Duration::ZERO,
            counters: Counters::default(),
        }
    }

    /// Takes a fragment. Returns the datagram once it is complete, or `None` while
    /// fragments are missing.
    ///
    /// `now` is the time since any fixed moment; if it goes backwards, time counts as
    /// standing still. `bytes` start at the IP header and hold at least the fragment.
    /// `tag` is the caller's label for the datagram, such as its owner. The first
    /// fragment's tag is returned with the datagram; later ones are ignored.
    pub fn insert(
        &mut self,
        now: Duration,
        bytes: &[u8],
        tag: Option<u64>,
    ) -> Result<Option<Reassembled>, DropReason> {
        self.expire(now);
        self.counters.fragments += 1;
        let outcome = match fragment::parse(bytes) {
            Ok(Parsed::Atomic(whole)) => {
                self.counters.atomic += 1;
                return Ok(Some(Reassembled { tag, ..whole }));
            }
            Ok(Parsed::Fragment(fragment)) => self.add(&fragment, tag),
            Err(cause) => Err(cause),
        };
        match outcome {
            Ok(Some(_)) => self.counters.reassembled += 1,
            Ok(None) => {}
            Err(cause) => *self.counter(cause) += 1,
        }
        outcome
    }

    fn counter(&mut self, cause: DropReason) -> &mut u64 {
        let counters = &mut self.counters;
        match cause {
            DropReason::FragmentDuplicate => &mut counters.duplicates,
            DropReason::FragmentOverlap => &mut counters.overlaps,
            DropReason::FragmentEnd => &mut counters.contradictions,
            DropReason::FragmentCount => &mut counters.too_many_fragments,
            DropReason::FragmentRefused => &mut counters.refused,
            DropReason::FragmentMemory => &mut counters.no_memory,
            DropReason::FragmentEcn => &mut counters.ecn_mismatches,
            _ => &mut counters.malformed,
        }
    }

    fn add(
        &mut self,
        fragment: &Fragment<'_>,
        tag: Option<u64>,
    ) -> Result<Option<Reassembled>, DropReason> {
        let key = fragment.key;
        let mut needed = FRAGMENT_COST + fragment.payload.len();
        if fragment.offset == 0 {
            needed += fragment.header.len();
        }
        let known = match self.datagrams.get_mut(&key) {
            Some(datagram) => {
                let before = datagram.cost();
                let verdict = datagram.judge(fragment, self.limits.fragments);
                // A condemned datagram has just freed its fragments.
                self.bytes -= before - datagram.cost();
                verdict?;
                Some(datagram.sequence)
            }
            None => {
                needed += DATAGRAM_COST;
                None
            }
        };
        if let Err(cause) = self.make_room(needed, known) {
            // It can never be completed now.
            self.remove(&key);
            return Err(cause);
        }
        if known.is_none() {
            self.begin(key);
        }
        let Some(datagram) = self.datagrams.get_mut(&key) else {
            return Ok(None);
        };
        let before = datagram.cost();
        datagram.add(fragment, tag);
        self.bytes += datagram.cost() - before;
        if !datagram.is_complete() {
            return Ok(None);
        }
        match self.remove(&key) {
            Some(datagram) => datagram.assemble(key.family()).map(Some),
            None => Ok(None),
        }
    }

    fn begin(&mut self, key: Key) {
        self.sequence += 1;
        let timeout = match key.family() {
            Family::V4 => self.limits.timeout_v4,
            Family::V6 => self.limits.timeout_v6,
        };
        let deadline = self.latest.saturating_add(timeout);
        let datagram = Datagram::new(self.sequence);
        self.bytes += datagram.cost();
        self.datagrams.insert(key, datagram);
        let sequence = self.sequence;
        self.arrivals_of(key.family())
            .insert(sequence, (deadline, key));
    }

    /// Evicts the oldest datagrams until `needed` more bytes, and one more datagram
    /// unless it exists already (`keep`), are within limits.
    fn make_room(&mut self, needed: usize, keep: Option<u64>) -> Result<(), DropReason> {
        loop {
            let count = self.datagrams.len() + usize::from(keep.is_none());
            if count <= self.limits.datagrams && self.bytes + needed <= self.limits.bytes {
                return Ok(());
            }
            let oldest = self
                .arrivals
                .iter()
                .filter_map(|arrivals| arrivals.iter().find(|(order, _)| Some(**order) != keep))
                .min_by_key(|(order, _)| **order)
                .map(|(_, (_, key))| *key);
            match oldest {
                Some(key) => {
                    self.remove(&key);
                    self.counters.evicted += 1;
                }
                None => return Err(DropReason::FragmentMemory),
            }
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Datagram> {
        let datagram = self.datagrams.remove(key)?;
        self.bytes -= datagram.cost();
        self.arrivals_of(key.family()).remove(&datagram.sequence);
        Some(datagram)
    }

    fn arrivals_of(&mut self, family: Family) -> &mut BTreeMap<u64, (Duration, Key)> {
        let [v4, v6] = &mut self.arrivals;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Drops every expired datagram and returns their number. [`Reassembler::insert`]
    /// also does this. Memory is freed sooner if the caller calls it at
    /// [`Reassembler::next_expiry`].
    ///
    /// No ICMP "time exceeded" is sent for them, unlike Linux.
    pub fn expire(&mut self, now: Duration) -> usize {
        self.latest = self.latest.max(now);
        let mut expired = 0;
        for family in [Family::V4, Family::V6] {
            while let Some((deadline, key)) = self.oldest_of(family)
                && deadline <= self.latest
            {
                self.remove(&key);
                expired += 1;
            }
        }
        self.counters.timeouts += expired as u64;
        expired
    }

    /// When the next datagram expires; `None` when none is in progress.
    pub fn next_expiry(&self) -> Option<Duration> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| self.oldest_of(family))
            .map(|(deadline, _)| deadline)
            .min()
    }

    fn oldest_of(&self, family: Family) -> Option<(Duration, Key)> {
        let [v4, v6] = &self.arrivals;
        let arrivals = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        arrivals.first_key_value().map(|(_, oldest)| *oldest)
    }

    /// Datagrams in progress, condemned ones included.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// Bytes held, counted as [`Limits::bytes`] are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
