//! The memory for data of all connections, its limit, and what is dropped when there is
//! none left (Linux `tcp_mem` and `tcp_max_orphans`).
//!
//! Each connection counts its own memory; changes are added to the stack's sum when its
//! lock is released ([`Locked`]). The engine learns the state of the sum whenever the
//! lock is taken, and holds less accordingly. Memory in use is reclaimed from some
//! connections at a time ([`Tcp::reclaim`]). First goes data that the peers retransmit;
//! when nothing is left, the largest closed connections.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall_protocol::tcp::MemoryPressure;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{MutexGuard, rank};

use super::Tcp;
use super::connection::State;
use super::lending::as_connection;

/// Default for the closed connections that the stack drives at most: Linux's
/// `tcp_max_orphans` is as large on a machine of 16 GiB.
pub(crate) const ORPHANS_MAX: u64 = 65_536;
/// An orphan that holds no more than this is not worth a reset (Linux `SOCK_MIN_SNDBUF`).
const ORPHAN_SMALL: usize = 4608;
/// Connections that are reclaimed from at a time.
const ASKED: usize = 256;
/// Interval of reclaiming, in milliseconds.
const ASK_EVERY: u64 = 10;

/// Bytes that data of a stack's connections uses, and its limit.
pub(crate) struct Memory {
    used: AtomicU64,
    /// Bytes from which memory is short, and at which no more is allocated.
    short: AtomicU64,
    limit: AtomicU64,
    orphans_max: AtomicU64,
    /// Time of the last reclaim, in milliseconds.
    asked: AtomicU64,
}

impl Default for Memory {
    fn default() -> Self {
        let memory = Self {
            used: AtomicU64::new(0),
            short: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            orphans_max: AtomicU64::new(ORPHANS_MAX),
            asked: AtomicU64::new(0),
        };
        memory.set_limit(default_limit());
        memory
    }
}

impl Memory {
    /// Returns the bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes at which no more is allocated.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit; memory is short from two thirds of it on, as in Linux.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.short.store(bytes / 3 * 2, Ordering::Relaxed);
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns the most closed connections that are driven.
    pub(crate) fn orphans_max(&self) -> u64 {
        self.orphans_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_orphans_max(&self, connections: u64) {
        self.orphans_max.store(connections, Ordering::Relaxed);
    }

    /// Returns the memory state.
    #[inline]
    pub(crate) fn pressure(&self) -> MemoryPressure {
        let used = self.used();
        if used < self.short.load(Ordering::Relaxed) {
            MemoryPressure::None
        } else if used < self.limit() {
            MemoryPressure::Short
        } else {
            MemoryPressure::Exhausted
        }
    }

    /// Returns true when nothing is left for another connection.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pressure() == MemoryPressure::Exhausted
    }

    /// Updates the sum for a connection's change from `before` to `now`.
    fn change(&self, before: u32, now: u32) {
        if now > before {
            self.used
                .fetch_add(u64::from(now - before), Ordering::Relaxed);
        } else {
            self.used
                .fetch_sub(u64::from(before - now), Ordering::Relaxed);
        }
    }

    /// Subtracts the memory of a connection that has ended.
    pub(super) fn forget(&self, charged: u32) {
        self.change(charged, 0);
    }
}

/// A locked connection.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State, rank::Connection>,
    memory: &'a Memory,
}

impl<'a> Locked<'a> {
    pub(super) fn new(
        mut state: MutexGuard<'a, State, rank::Connection>,
        memory: &'a Memory,
    ) -> Self {
        state.connection.set_memory_pressure(memory.pressure());
        Self { state, memory }
    }
}

impl Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let (before, now) = (self.state.charged, self.state.connection.memory());
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        if now != before {
            self.state.charged = now;
            self.memory.change(before, now);
        }
    }
}

/// Returns the default limit, as Linux's third number of `tcp_mem`: 3/32 of the memory
/// available to this process; unlimited if that is unknown.
fn default_limit() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes << 10)
    });
    let memory = machine.into_iter().chain(group_limit()).min();
    memory.map_or(u64::MAX, |bytes| bytes / 32 * 3)
}

/// Returns the lowest limit of the control groups (version 2) of this process.
fn group_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| {
        let path = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Path::new(group).ancestors().filter_map(limit).min()
}

impl Tcp {
    /// Called when memory is short: some connections at a time free what they can. When
    /// nothing is left, the largest closed connection is reset.
    pub(crate) fn reclaim(&self, core: &Core, now: Duration) {
        let memory = &self.memory;
        if memory.pressure() == MemoryPressure::None {
            return;
        }
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let before = memory.asked.load(Ordering::Relaxed);
        if before > 0 && now < before.saturating_add(ASK_EVERY) {
            return;
        }
        memory.asked.store(now.max(1), Ordering::Relaxed);
        let mut orphans = Vec::new();
        let asked = core.timers.some(ASKED);
        for connection in asked.into_iter().filter_map(as_connection) {
            if let Some(held) = connection.reclaim() {
                orphans.push((held, connection));
            }
        }
        orphans.sort_unstable_by_key(|&(held, _)| held);
        while memory.is_exhausted()
            && let Some((held, orphan)) = orphans.pop()
            && held > ORPHAN_SMALL
        {
            self.counters.orphan_reset();
            orphan.reset(core);
        }
    }

    /// Resets a new orphan if there are too many, or if memory is exhausted and it holds
    /// some (Linux `tcp_check_oom`).
    pub(super) fn limit_orphan(&self, state: &mut State) {
        let memory = &self.memory;
        let too_many = self.orphans() >= memory.orphans_max();
        if too_many || memory.is_exhausted() && state.connection.memory() > ORPHAN_SMALL {
            self.counters.orphan_reset();
            state.connection.abort();
        }
    }
}
