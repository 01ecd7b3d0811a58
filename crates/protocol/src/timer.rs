//! A hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical
//! Timing Wheels", SOSP 1987, scheme 7).
//!
//! The caller names timers by small dense numbers, such as the slots of a slab, so a
//! timer is sixteen bytes and needs no handle. The cost of arming and cancelling does not
//! depend on the number of timers. A timer moves at most once per level before it
//! expires.
//!
//! Level `n` has 64 slots of 64^n ticks. A timer lies at the level of the highest six-bit
//! digit in which its tick differs from the wheel's, in the slot of that digit. So the
//! slots behind the wheel's own digit are empty at every level, and none wraps. Eight
//! levels hold every tick of a deadline in 64 bits of nanoseconds.

use core::time::Duration;

/// Length of a tick: 2^18 ns, about a quarter of a millisecond.
pub const TICK: Duration = Duration::from_nanos(1 << TICK_BITS);

const TICK_BITS: u32 = 18;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 8;
const NIL: u32 = u32::MAX;
/// In `Entry::previous`: the remaining bits are the slot whose first entry this is.
const FIRST: u32 = 1 << 31;

/// The largest number of timers in a wheel.
pub const TIMERS_MAX: u32 = FIRST - 1;

/// One timer; sixteen bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    tick: u64,
    /// The previous entry in its slot, or [`FIRST`] and the slot; [`NIL`] when not armed.
    previous: u32,
    next: u32,
}

const IDLE: Entry = Entry {
    tick: 0,
    previous: NIL,
    next: NIL,
};

/// The wheel. Times are since any fixed moment, the same for all calls.
///
/// A timer never expires before its deadline. It expires no later than the first
/// [`Wheel::advance`] a [`TICK`] after it.
#[derive(Debug)]
pub struct Wheel {
    /// All ticks before this one have been processed.
    now: u64,
    /// For each level, which slots have entries.
    occupied: [u64; LEVELS],
    slots: Box<[u32]>,
    entries: Vec<Entry>,
    armed: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel {
            now: 0,
            occupied: [0; LEVELS],
            slots: vec![NIL; LEVELS * SLOTS].into(),
            entries: Vec::new(),
            armed: 0,
        }
    }
}

/// The first tick at or after a time, 584 years at most.
fn tick_after(time: Duration) -> u64 {
    let last = u64::MAX >> TICK_BITS;
    nanoseconds(time).div_ceil(1 << TICK_BITS).min(last)
}

/// The last tick at or before a time.
fn tick_before(time: Duration) -> u64 {
    nanoseconds(time) >> TICK_BITS
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn time_of(tick: u64) -> Duration {
    Duration::from_nanos(tick.saturating_mul(1 << TICK_BITS))
}

impl Wheel {
    /// Arms timer `timer`, or moves it. A deadline in the past expires with the next
    /// [`Wheel::advance`]. Does nothing for a number over [`TIMERS_MAX`].
    pub fn arm(&mut self, timer: u32, deadline: Duration) {
        if timer > TIMERS_MAX {
            return;
        }
        self.cancel(timer);
        if timer as usize >= self.entries.len() {
            self.entries.resize(timer as usize + 1, IDLE);
        }
        self.link(timer, tick_after(deadline).max(self.now));
        self.armed += 1;
    }

    /// Disarms timer `timer`; returns false when it was not armed.
    pub fn cancel(&mut self, timer: u32) -> bool {
        let Some(&entry) = self.entries.get(timer as usize) else {
            return false;
        };
        if entry.previous == NIL {
            return false;
        }
        self.unlink(timer, entry);
        self.armed -= 1;
        true
    }

    /// Number of armed timers.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// True when no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// The deadline of a timer, rounded up to a tick; `None` when it is not armed.
    pub fn deadline(&self, timer: u32) -> Option<Duration> {
        let entry = self.entries.get(timer as usize)?;
        (entry.previous != NIL).then(|| time_of(entry.tick))
    }

    /// When to call [`Wheel::advance`] next. It is not after the first deadline, but may
    /// be before it, when timers must move down a level.
    pub fn next(&self) -> Option<Duration> {
        self.first().map(|(tick, _)| time_of(tick))
    }

    /// Moves the wheel to `now`. Disarms every timer whose deadline is not after that,
    /// and passes it to `expired`, in order of their ticks. Time that runs backwards
    /// changes nothing.
    pub fn advance(&mut self, now: Duration, mut expired: impl FnMut(u32)) {
        let end = tick_before(now);
        while let Some((tick, slot)) = self.first() {
            if tick > end {
                break;
            }
            // The wheel moves first: entries are linked by their distance from it.
            self.now = self.now.max(tick);
            let level = slot / SLOTS;
            while let Some(&timer) = self.slots.get(slot).filter(|&&timer| timer != NIL) {
                let Some(&entry) = self.entries.get(timer as usize) else {
                    break;
                };
                self.unlink(timer, entry);
                if level == 0 || entry.tick <= tick {
                    self.armed -= 1;
                    expired(timer);
                } else {
                    self.link(timer, entry.tick);
                }
            }
        }
        // Every remaining slot begins after `end`, so each entry still differs from the
        // wheel first in the digit of its level.
        self.now = self.now.max(end);
    }

    /// The first occupied slot, with its first tick.
    fn first(&self) -> Option<(u64, usize)> {
        // A lower level's slots all come before a higher one's.
        self.occupied
            .iter()
            .zip(0..)
            .find(|(occupied, _)| **occupied != 0)
            .map(|(occupied, level)| {
                let digit = occupied.trailing_zeros() as usize;
                let shift = SLOT_BITS * level as u32;
                let above = shift + SLOT_BITS;
                let base = self.now >> above << above;
                (base | (digit as u64) << shift, level * SLOTS + digit)
            })
    }

    fn link(&mut self, timer: u32, tick: u64) {
        let level = ((self.now ^ tick).checked_ilog2().unwrap_or(0) / SLOT_BITS) as usize;
        let digit = digit(tick, level);
        let slot = level * SLOTS + digit;
        let (Some(head), Some(occupied)) = (self.slots.get_mut(slot), self.occupied.get_mut(level))
        else {
            return;
        };
        let next = core::mem::replace(head, timer);
        *occupied |= 1 << digit;
        if let Some(after) = self.entries.get_mut(next as usize) {
            after.previous = timer;
        }
        if let Some(entry) = self.entries.get_mut(timer as usize) {
            *entry = Entry {
                tick,
                previous: FIRST | slot as u32,
                next,
            };
        }
    }

    fn unlink(&mut self, timer: u32, entry: Entry) {
        if let Some(after) = self.entries.get_mut(entry.next as usize) {
            after.previous = entry.previous;
        }
        if entry.previous & FIRST == 0 {
            if let Some(before) = self.entries.get_mut(entry.previous as usize) {
                before.next = entry.next;
            }
        } else {
            let slot = (entry.previous & !FIRST) as usize;
            if let Some(head) = self.slots.get_mut(slot) {
                *head = entry.next;
            }
            if entry.next == NIL
                && let Some(occupied) = self.occupied.get_mut(slot / SLOTS)
            {
                *occupied &= !(1 << (slot % SLOTS));
            }
        }
        if let Some(place) = self.entries.get_mut(timer as usize) {
            *place = IDLE;
        }
    }
}

/// A tick's digit at a level.
fn digit(tick: u64, level: usize) -> usize {
    (tick >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1)
}

#[cfg(test)]
mod tests;
