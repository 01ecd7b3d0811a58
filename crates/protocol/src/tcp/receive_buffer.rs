//! The receive buffer after the application has read: when its window is announced, how
//! it grows, and when its memory is freed.

use core::time::Duration;

use super::connection::{Connection, Pending};
use super::ring::KEEP_ABOVE;
use super::timers::Timer;
use super::{State, Time, microseconds};

/// How long empty buffers are kept.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

/// Segments added to twice the bytes read per round trip: Linux counts segments, too.
const TUNING_SLACK: u32 = 16;

impl Connection {
    /// After the application has read, announces a window that has grown much (RFC 9293
    /// §3.8.6.2.2). Also grows the buffer with the speed at which it is read (dynamic
    /// right-sizing, as Linux).
    pub(super) fn after_read(&mut self, bytes: u32) {
        self.tune_receive_buffer(bytes);
        if self.receive.assembler.capacity() > KEEP_ABOVE && self.receive.assembler.unread() == 0 {
            let last = self.receive.last_heard;
            self.release_later(last);
        }
        if self.receive.finished || self.state == State::Closed {
            return;
        }
        let expected = self.next_expected();
        let window = self.receive.rcv_adv.wrapping_sub(expected);
        let room = self
            .receive
            .buffer_limit
            .saturating_sub(self.receive.assembler.unread());
        // Without a scale the field ends at 65535: there may be nothing to announce.
        let most = self.receive.buffer_limit.min(0xffff << self.receive.wscale);
        let most = most.min(self.receive.room.most());
        let room = room.min(most);
        let step = u32::from(self.receive.mss).min(self.receive.buffer_limit / 2);
        if window.saturating_mul(2) <= most
            && room >= window.saturating_mul(2)
            && room - window >= step
            && (!self.is_short_of_memory() || self.short_receive_room() > window)
        {
            self.pending.add(Pending::ACKNOWLEDGE);
        }
    }

    fn tune_receive_buffer(&mut self, bytes: u32) {
        let most = self.config.receive_buffer_max;
        if self.receive.buffer_limit >= most {
            return;
        }
        self.receive.consumed = self.receive.consumed.saturating_add(bytes);
        // A round trip of the LAN is too short to measure.
        let trip = self.round_trip.srtt().max(1000);
        // The read call passes no time; that of the last segment is close enough.
        let now = microseconds(self.receive.last_heard);
        if now.wrapping_sub(self.receive.tuned_at) < trip {
            return;
        }
        let wanted = self
            .receive
            .consumed
            .saturating_mul(2)
            .saturating_add(TUNING_SLACK * u32::from(self.receive.mss));
        if !self.is_short_of_memory() {
            self.receive.buffer_limit = self.receive.buffer_limit.max(wanted.min(most));
        }
        self.receive.consumed = 0;
        self.receive.tuned_at = now;
    }

    /// Schedules freeing the buffers if they are still empty after a while; frees them at
    /// once if memory is short.
    pub(super) fn release_later(&mut self, now: Time) {
        if self.timers.is_running(Timer::Release) {
            return;
        }
        if self.is_short_of_memory() {
            self.receive.assembler.release_if_empty();
            self.send.buffer.release_if_empty();
        } else {
            self.timers.set(Timer::Release, now, RELEASE_AFTER);
        }
    }

    pub(super) fn release_timer(&mut self, now: Time) {
        let last = self.receive.last_heard.max(self.send.last_sent);
        if now.saturating_sub(last) < RELEASE_AFTER {
            self.timers.set(Timer::Release, last, RELEASE_AFTER);
            return;
        }
        self.receive.assembler.release_if_empty();
        self.send.buffer.release_if_empty();
    }
}
