//! The work that a thread does for all sockets before it waits: timers that have expired,
//! and bursts of sending with receiving between them.

use std::io;
use std::time::Duration;

use tidewall_device::queue::BURST;

use crate::core::Core;
use crate::lock::lock;
use crate::protocol::Hold;
use crate::receiver::QueueHandle;

/// Most frames that a nonblocking call sends: frames received meanwhile let other sockets
/// send, and the caller should return.
const FLUSH_MAX: u32 = 2048;

impl Core {
    /// Sends a burst of what sockets have to send. Returns true when there is more, which is
    /// for after the next round of receiving.
    #[inline]
    pub fn send(&self, hold: Hold) -> bool {
        self.output.is_due() && self.send_burst(hold)
    }

    fn send_burst(&self, hold: Hold) -> bool {
        let mut more = false;
        for protocol in &self.workers {
            more |= protocol.send(self, hold);
        }
        let takes = self.ring_doorbells();
        takes && (more || self.output.is_held_up())
    }

    /// Makes devices send the frames in their rings, one burst each. Returns false when
    /// none of them accepts more now.
    fn ring_doorbells(&self) -> bool {
        let output = &self.output;
        if !output.is_held_up() {
            return true;
        }
        let queues = output.take_doorbells();
        let mut takes = false;
        for (number, queue) in self.receiver.queues.iter().enumerate() {
            if queues & (1 << (number % 32)) != 0 {
                // A device that is down keeps its frames; timers retransmit.
                let flushed = lock(&queue.transmitter).flush().unwrap_or_default();
                if flushed.left > 0 {
                    output.ring_doorbell(number);
                }
                takes |= !flushed.full;
            }
        }
        takes
    }

    /// Sends what sockets have to send, and receives between bursts. Beyond 2,048 frames
    /// the rest is left to a thread that sleeps, or to the helper.
    pub fn flush(&self) {
        self.flush_without(Hold::Nothing);
    }

    /// As [`Core::flush`], without what `hold` leaves out.
    pub fn flush_without(&self, hold: Hold) {
        for _ in 0..FLUSH_MAX / BURST {
            if !self.send(hold) || self.receiver.round(self, false).is_err() {
                return;
            }
        }
    }

    /// Runs everything that is due, before a thread sleeps: nothing waits for that thread
    /// then. Returns true when there is more to send after the next round of receiving.
    pub fn before_sleep(&self, now: Duration) -> bool {
        self.run_due(now);
        self.send(Hold::Nothing)
    }

    /// Runs what protocols have left for later, and timers that have expired by `now`.
    #[inline]
    pub fn run_due(&self, now: Duration) {
        for protocol in &self.workers {
            protocol.run(self, now);
        }
        if !self.is_late(now) {
            return;
        }
        // An acknowledgment that has waited may cancel a timer.
        self.take_waiting();
        let mut due = Vec::new();
        self.timers.expire(now, &mut due);
        for endpoint in due {
            endpoint.on_timer(self);
        }
    }

    /// Sorts what the device has, with frames that wait in its channels without waking
    /// their owners.
    pub fn take_waiting(&self) {
        if self.receiver.architecture.has_threads() {
            // Its threads receive them.
            return;
        }
        for queue in &self.receiver.queues {
            let mut ready = Vec::new();
            queue.poller.lock().collect(&mut ready);
            for channel in ready {
                self.channels.on_frames(self, channel);
            }
        }
    }

    /// Arms a timer, or moves it. A thread that sleeps in the stack is not notified.
    pub fn arm(&self, timer: u32, due: Duration) {
        if self.timers.arm(timer, due) {
            self.helper.wake();
        }
    }

    /// Returns the time until a timer expires.
    #[inline]
    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        self.timers.next(now)
    }

    /// Returns true when a timer has expired.
    #[inline]
    pub fn is_late(&self, now: Duration) -> bool {
        self.next_timer(now).is_some_and(|left| left.is_zero())
    }

    /// Sends the frames that were put into a queue's ring. Frames that the device drops
    /// are gone; frames that it does not accept go with a later flush.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn send_queue(&self, number: usize, queue: &QueueHandle) -> io::Result<()> {
        loop {
            let flushed = lock(&queue.transmitter).flush()?;
            if flushed.left == 0 {
                return Ok(());
            }
            if flushed.full && flushed.dropped == 0 {
                self.output.ring_doorbell(number);
                return Ok(());
            }
        }
    }
}
