//! What a connection waits for while it has something to send, and since when it
//! heard and sent last: times of `TCP_INFO` (`tcp_chrono_start`).

use core::time::Duration;

/// What holds the sender up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Limit {
    /// There is nothing to send.
    #[default]
    Idle,
    /// The network.
    Busy,
    /// The peer's window.
    Window,
    /// Memory: a writer waits for it.
    Buffer,
}

/// Times of one connection.
#[derive(Default)]
pub(super) struct Limits {
    now: Limit,
    since: Duration,
    busy: Duration,
    window: Duration,
    buffer: Duration,
    /// When data was last received, or the connection began.
    pub(super) data_received: Duration,
    /// When an acknowledgment was last received.
    pub(super) acknowledged: Duration,
    /// When data was last sent.
    pub(super) data_sent: Duration,
}

impl Limits {
    /// Of a connection that begins now.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            data_received: now,
            acknowledged: now,
            data_sent: now,
            ..Self::default()
        }
    }

    /// From now on, another limit.
    pub(super) fn set(&mut self, limit: Limit, now: Duration) {
        if limit != self.now {
            let passed = now.saturating_sub(self.since);
            match self.now {
                Limit::Idle => {}
                Limit::Busy => self.busy += passed,
                Limit::Window => self.window += passed,
                Limit::Buffer => self.buffer += passed,
            }
            (self.now, self.since) = (limit, now);
        }
    }

    /// Microseconds busy altogether, held up by the window, by memory.
    pub(super) fn times(&self, now: Duration) -> [u64; 3] {
        let passed = |limit| {
            let counts = self.now == limit;
            now.saturating_sub(self.since) * u32::from(counts)
        };
        let window = self.window + passed(Limit::Window);
        let buffer = self.buffer + passed(Limit::Buffer);
        let busy = self.busy + passed(Limit::Busy) + window + buffer;
        [busy, window, buffer].map(|time| time.as_micros() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_counts_nowhere() {
        let at = Duration::from_millis;
        let mut limits = Limits::new(at(5));
        limits.set(Limit::Busy, at(100));
        limits.set(Limit::Window, at(110));
        limits.set(Limit::Idle, at(130));
        limits.set(Limit::Buffer, at(200));
        assert_eq!(limits.times(at(203)), [33_000, 20_000, 3_000]);
    }
}
