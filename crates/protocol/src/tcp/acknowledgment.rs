//! What an acknowledgment does: to the send buffer, the window, the round-trip
//! time, congestion control and recovery (RFC 9293 §3.10.7.4, fifth; RFC 5961
//! §5; RFC 7323 §4).

use core::time::Duration;

use super::congestion::Acknowledged;
use super::connection::Connection;
use super::recovery::Phase;
use super::ring::KEEP_ABOVE;
use super::timers::Timer;
use super::{Time, timestamp};
use tidewall_wire::tcp::{Flags, Header, before};

impl Connection {
    /// The ACK field (RFC 9293 §3.10.7.4, fifth). `plain` without payload and
    /// FIN. False when the segment is to be dropped.
    #[inline]
    pub(super) fn acknowledge(&mut self, header: &Header, plain: bool, now: Time) -> bool {
        let acknowledgment = header.acknowledgment;
        if before(self.send.next, acknowledgment) {
            // Of what was never sent.
            self.challenge(now);
            return false;
        }
        let first = self.send.first;
        if before(acknowledgment, first) {
            // RFC 5961 §5.2: one that is older than any window is an attack.
            if first.wrapping_sub(acknowledgment) > self.send.window_max {
                self.challenge(now);
                return false;
            }
            return true;
        }
        let scale = if header.flags.contains(Flags::SYN) {
            0
        } else {
            self.send.scale
        };
        let window = u32::from(header.window) << scale;
        let updates = window != self.send.window;
        let in_flight = self.send.next.wrapping_sub(first);
        if acknowledgment != first {
            self.acknowledge_new(header, now);
        }
        let news = self.sack
            && !header.options.sack.is_empty()
            && self.recovery.sack(
                header.options.sack.as_slice(),
                acknowledgment,
                self.send.next,
            );
        let duplicate = acknowledgment == first && plain && !updates && !self.sack;
        if in_flight > 0 && acknowledgment != self.send.next && (news || duplicate) {
            self.acknowledge_duplicate(now);
        }
        if updates || acknowledgment != first || before(self.send.window_sequence, header.sequence)
        {
            self.update_window(header, window);
        }
        if self.send.window == 0 {
            // The peer is there: what is sent to a closed window is no loss.
            self.send.retries = 0;
        }
        true
    }

    /// New data is acknowledged.
    #[inline]
    fn acknowledge_new(&mut self, header: &Header, now: Time) {
        let acknowledgment = header.acknowledgment;
        let bytes = acknowledgment.wrapping_sub(self.send.first);
        let mss = u32::from(self.send.mss);
        self.send.first = acknowledgment;
        if self.path.probe != 0 {
            self.path_probe_acknowledged();
        }
        let data = self.send.buffer.acknowledge(bytes);
        let acknowledged = self.counters.bytes_acknowledged;
        self.counters.bytes_acknowledged = acknowledged.wrapping_add(data.into());
        self.send.retries = 0;
        self.send.stalled = None;
        self.soft_error = None;
        self.round_trip.backoff = 0;
        let mut round_trip = self.round_trip.acknowledged(acknowledgment, now);
        if round_trip.is_none()
            && self.round_trip.timed.is_none()
            && let Some(timestamps) = header.options.timestamps
            && self.timestamps
        {
            // Nothing was timed since something was sent again; the echo tells
            // apart which of both was acknowledged (RFC 7323 §4).
            let clock = timestamp(now, self.timestamp_offset);
            let age = clock.wrapping_sub(timestamps.echo);
            if age < 120_000 {
                round_trip = Some(Duration::from_millis(age.max(1).into()));
            }
        }
        if let Some(sample) = round_trip {
            self.round_trip.sample(sample);
        }
        let was_quiet = self.recovery.is_quiet();
        let fast = self.recovery.phase == Phase::Fast;
        let over =
            self.recovery
                .acknowledged(acknowledgment, self.send.next, bytes, mss, self.sack);
        if was_quiet || !fast && !over {
            self.congestion.on_acknowledged(&Acknowledged {
                first: acknowledgment,
                next: self.send.next,
                bytes,
                in_flight: self.send.flight,
                round_trip,
                smoothed: self.round_trip.smoothed,
                now,
                mss,
            });
        }
        if acknowledgment == self.send.next {
            self.timers.stop(Timer::Retransmit);
            if self.send.buffer.len() == 0 && self.send.buffer.capacity() > KEEP_ABOVE {
                self.release_later(now);
            }
        } else {
            let timeout = self.retransmission_timeout();
            self.timers.set(Timer::Retransmit, now, timeout);
        }
    }

    fn acknowledge_duplicate(&mut self, now: Time) {
        let (first, next, mss) = (self.send.first, self.send.next, u32::from(self.send.mss));
        let in_flight = next.wrapping_sub(first);
        if self.recovery.duplicate(first, next, mss, self.sack) {
            if let Some((start, end)) = self.recovery.path_probe.take()
                && start == first
            {
                self.path.refused();
                self.recovery.lost_below = end;
                return;
            }
            self.congestion.on_loss(in_flight.max(mss), mss, now);
            self.ecn.reduced(next);
            self.counters.fast_recoveries = self.counters.fast_recoveries.wrapping_add(1);
            self.round_trip.timed = None;
            let timeout = self.retransmission_timeout();
            self.timers.set(Timer::Retransmit, now, timeout);
        }
    }

    /// SND.WL1 and SND.WL2 keep old segments from updating the window.
    #[inline]
    fn update_window(&mut self, header: &Header, window: u32) {
        let newer = before(self.send.window_sequence, header.sequence)
            || self.send.window_sequence == header.sequence
                && !before(header.acknowledgment, self.send.window_acknowledgment);
        if newer {
            let opened = window > self.send.window;
            self.take_window(header.sequence, header.acknowledgment, window);
            if opened && !self.orphan && self.send.first == self.send.next && self.unsent() > 0 {
                // The end of a persist state; output starts a new one if need be.
                self.timers.stop(Timer::Retransmit);
                self.round_trip.backoff = 0;
                self.send.stalled = None;
            }
        }
    }

    pub(super) fn take_window(&mut self, sequence: u32, acknowledgment: u32, window: u32) {
        self.send.window = window;
        self.send.window_max = self.send.window_max.max(window);
        self.send.window_sequence = sequence;
        self.send.window_acknowledgment = acknowledgment;
    }
}
