//! How the reserved queue and the others share the polls while a port is moved
//! ([`crate::steering`]).
//!
//! The reserved queue's ring is full while the flood lasts, so each of its polls takes
//! all that it may. The other queues are polled in between. Two goals conflict:
//!
//! - *A short wait*: a neighbour's frame waits for the poll of the reserved queue in
//!   progress, and until the other queues are due.
//! - *Cheap frames*: each poll has a fixed cost, and one that finds nothing delivers
//!   nothing.
//!
//! A neighbour that asks often needs the short wait, and a silent one needs none. The
//! rules:
//!
//! 1. A poll of the reserved queue takes 32 frames, and no more than half of its
//!    channel's capacity. The other queues are due after 16 times the duration of an
//!    empty poll of them.
//! 2. Both double after 16 consecutive checks of the other queues that found nothing, up
//!    to four times the first value.
//! 3. One frame on another queue returns both to rule 1.
//!
//! So a neighbour waits at most for a usual poll and 64 empty ones, which is four times
//! its wait by rule 1. It waits that long only after a silence of 32 checks, which is
//! many times as long.

use tidewall_device::queue::POLL_MAX;

use crate::schedule::DELIVERS;

/// Consecutive empty checks that double the share of the reserved queue.
const QUIET: u32 = 16;
/// Largest share of the reserved queue, over the smallest.
const MOST: u32 = 4;

/// The share of the reserved queue: the number of consecutive checks of the other queues
/// that found nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(pub u32);

impl Share {
    /// Notes a check of the other queues.
    #[must_use]
    pub fn looked(self, found: bool) -> Share {
        match found {
            true => Share(0),
            false => Share(self.0.saturating_add(1)),
        }
    }

    fn factor(self) -> u32 {
        1u32.checked_shl(self.0 / QUIET)
            .map_or(MOST, |factor| factor.min(MOST))
    }

    /// Maximum number of frames of a poll of the reserved queue, whose channel holds
    /// `holds`.
    pub fn budget(self, holds: u32) -> u32 {
        let budget = POLL_MAX / MOST * self.factor();
        budget.min(holds / 2).max(1)
    }

    /// When the other queues are due, whose last poll began and ended at these times, ns.
    pub fn due(self, began: u64, ended: u64) -> u64 {
        let took = ended.saturating_sub(began).max(1);
        let share = DELIVERS * u64::from(self.factor());
        ended.saturating_add(took.saturating_mul(share))
    }
}

#[cfg(test)]
mod tests;
