//! Stacks on a clock that is not the machine's.

use std::time::{Duration, Instant};

use super::StackHandle;
use crate::lock::lock;

impl StackHandle {
    /// Does once what the helper thread does when it wakes: receives, runs the protocol
    /// of sockets that no thread is using, and sends. Returns true if there was anything
    /// to do. Only stacks without that thread (in memory, on a clock) need it.
    pub fn attend(&self) -> bool {
        self.here().is_ok_and(|core| core.helper.attend_now(core))
    }

    /// The time, as [`StackHandle::next_timeout`] and the protocols count it.
    pub fn age(&self) -> Duration {
        self.core().now()
    }

    /// When the next timer of the stack expires, on its clock.
    pub fn next_timeout(&self) -> Option<Duration> {
        let core = self.here().ok()?;
        let now = core.now();
        let fragments = lock(&core.ip.fragments).next_expiry(now);
        let next = core.next_timer(now).into_iter().chain(fragments).min();
        next.map(|left| now + left)
    }

    /// Returns the time on the stack's clock for an [`Instant`] that the stack returned.
    pub fn age_at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.core().clock.origin())
    }

    /// The interface's index; 0 on a link that the kernel knows nothing of.
    pub fn interface_index(&self) -> u32 {
        lock(&self.core().ip.routes).interface()
    }

    /// Longest IP datagram that the interface sends, in bytes.
    pub fn mtu(&self) -> usize {
        let queue = self.core().receiver.queues.first();
        queue.map_or(0, |queue| lock(&queue.transmitter).mtu())
    }
}
