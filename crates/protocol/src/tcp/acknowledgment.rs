//! Processing of acknowledgments: send buffer, window, round-trip time, congestion
//! control and recovery. RFC 9293 §3.10.7.4, fifth; RFC 5961 §5; RFC 7323 §4. The steps
//! have the order of Linux's `tcp_ack()`.

use super::congestion::Acknowledged;
use super::connection::Connection;
use super::rack::DUPLICATES;
use super::recovery::{CaState, Recovery};
use super::ring::KEEP_ABOVE;
use super::scoreboard::{EVER_RETRANSMITTED, RETRANSMITTED, SACKED};
use super::tail_probe::TailProbe;
use super::{Time, microseconds, timestamp};
use tidewall_wire::tcp::{Flags, Header, before};

/// The oldest timestamp echo that is trusted, in milliseconds.
const ECHO_MAX: u32 = 120_000;

/// The information in an acknowledgment.
#[derive(Default)]
pub(super) struct Feedback {
    pub(super) prior_una: u32,
    /// It moved SND.UNA.
    pub(super) advanced: bool,
    /// It carried neither data nor a window update.
    pub(super) plain: bool,
    /// It is a duplicate acknowledgment (RFC 5681 §2).
    pub(super) duplicate: bool,
    /// It has the ECE flag, and ECN is in use.
    pub(super) ece: bool,
    /// Bytes newly acknowledged, selectively or not.
    pub(super) delivered: u32,
    /// Some of them were acknowledged selectively.
    pub(super) sacked: bool,
    /// It has a D-SACK (RFC 2883).
    pub(super) dsack: bool,
    /// The D-SACK covers the tail-loss probe.
    pub(super) probe_dsack: bool,
    /// It covers data in flight when recovery began that was never retransmitted
    /// (Linux `FLAG_ORIG_SACK_ACKED`).
    pub(super) orig_acked: bool,
    /// Some of what it acknowledges was retransmitted.
    pub(super) retrans_acked: bool,
    /// SND.UNA is now in a SACKed range: the receiver may have reneged.
    pub(super) reneged: bool,
    /// The echo of our timestamp.
    pub(super) echo: Option<u32>,
    /// Bytes found lost.
    pub(super) lost: u32,
    /// Some of them had been retransmitted.
    pub(super) lost_retrans: bool,
    /// The retransmission timer is to be restarted.
    pub(super) restarts_timer: bool,
    /// The first sequence number that arrived out of order.
    reordered: Option<u32>,
    /// When the first and the last of the acknowledged bytes that were sent once had
    /// left.
    acknowledged_times: Option<(u32, u32)>,
    /// The same for bytes that are selectively acknowledged.
    sacked_times: Option<(u32, u32)>,
}

impl Feedback {
    fn arrived_late(&mut self, sequence: u32) {
        if self.reordered.is_none_or(|other| before(sequence, other)) {
            self.reordered = Some(sequence);
        }
    }
}

/// Extends a pair of first and last moments by one.
fn extend(times: &mut Option<(u32, u32)>, sent: u32) {
    let (first, last) = times.unwrap_or((sent, sent));
    *times = Some((
        if before(sent, first) { sent } else { first },
        if before(last, sent) { sent } else { last },
    ));
}

impl Connection {
    /// Processes the ACK field (RFC 9293 §3.10.7.4, fifth). `plain` marks a segment
    /// without payload and FIN. Returns false when the segment is to be dropped.
    #[inline]
    pub(super) fn acknowledge(&mut self, header: &Header, plain: bool, now: Time) -> bool {
        let acknowledgment = header.acknowledgment;
        if before(self.send.nxt, acknowledgment) && !self.has_left(acknowledgment, now) {
            self.challenge(now);
            return false;
        }
        self.more = false;
        let una = self.send.una;
        let has_sack = self.sack && !header.options.sack.is_empty();
        let ece = self.ecn.is_agreed() && header.flags.contains(Flags::ECE);
        if before(acknowledgment, una) {
            // RFC 5961 §5.2: an acknowledgment that is older than any window is an
            // attack.
            if una.wrapping_sub(acknowledgment) > self.send.max_window {
                self.challenge(now);
                return false;
            }
            if has_sack && una != self.send.nxt {
                self.acknowledge_slow(header, false, now);
            }
            return true;
        }
        let window = self.scaled_window(header);
        let (old_window, updates) = (self.send.wnd, window != self.send.wnd);
        let advances = acknowledgment != una;
        // SND.WL1 and SND.WL2 keep old segments from updating the window. A segment that
        // acknowledges more is not old, even if it repeats old data (as Linux). The old
        // window, counted from the new SND.UNA, would end too far out.
        let newer = advances
            || before(self.send.wl1, header.sequence)
            || updates
                && self.send.wl1 == header.sequence
                && !before(acknowledgment, self.send.wl2);
        if newer {
            self.take_window(header.sequence, acknowledgment, window);
        }
        if has_sack || ece || !self.recovery.is_quiet() {
            self.acknowledge_slow(header, plain && !updates, now);
        } else if advances {
            self.acknowledge_fast(header, now);
        } else if plain && !updates && !self.sack {
            self.acknowledge_slow(header, true, now);
        }
        if self.error_queue.is_some() {
            self.timestamp_acknowledged(now);
        }
        if self.send.wnd > old_window {
            self.after_window_opened();
        }
        if self.send.wnd == 0 {
            // The peer is alive: data sent to a closed window is not lost.
            self.send.retries = 0;
        }
        true
    }

    /// Everything below `acknowledgment` has arrived: does the updates that do not depend
    /// on how.
    #[inline]
    fn advance(&mut self, acknowledgment: u32) -> u32 {
        let bytes = acknowledgment.wrapping_sub(self.send.una);
        self.send.una = acknowledgment;
        if self.path.probe != 0 {
            self.path_probe_acknowledged();
        }
        let data = self.send.buffer.consume(bytes);
        self.send.push_marks.acknowledge(acknowledgment);
        let acknowledged = self.counters.bytes_acknowledged;
        self.counters.bytes_acknowledged = acknowledged.wrapping_add(data.into());
        self.send.retries = 0;
        self.send.stalled_since = None;
        self.soft_error = None;
        bytes
    }

    /// The fast path: new data is acknowledged, and nothing is lost or reordered.
    #[inline]
    fn acknowledge_fast(&mut self, header: &Header, now: Time) {
        let acknowledgment = header.acknowledgment;
        let bytes = self.advance(acknowledgment);
        let micros = microseconds(now);
        let Recovery { board, rack, .. } = &mut self.recovery;
        let mut first = None;
        let (mut last, mut end, mut marks) = (micros, acknowledgment, 0);
        board.acknowledge(acknowledgment, |piece| {
            first.get_or_insert(piece.sent);
            (last, end) = (piece.sent, piece.end);
            marks |= piece.flags;
        });
        let mut round_trip = None;
        if marks == 0
            && let Some(first) = first
        {
            let latest = micros.wrapping_sub(last);
            let oldest = micros.wrapping_sub(first);
            self.round_trip.update_min(latest, now);
            let least = self.config.timeout_min.micros();
            let sequences = (acknowledgment, self.send.nxt);
            self.round_trip.sample(oldest, sequences, least);
            rack.update((end, last), false, micros, 0);
            round_trip = Some(latest);
        }
        self.count_delivered(bytes);
        self.congestion.on_acknowledged(&Acknowledged {
            first: acknowledgment,
            next: self.send.nxt,
            bytes,
            in_flight: self.send.max_in_flight,
            limited: self.send.is_cwnd_limited,
            round_trip,
            srtt: self.round_trip.srtt(),
            now,
            mss: self.send.mss.into(),
        });
        self.start_timer(now);
        self.release_when_empty(now);
    }

    #[inline]
    fn release_when_empty(&mut self, now: Time) {
        if self.send.una == self.send.nxt && self.send.buffer.len() == 0 {
            self.end_busy(now);
            if self.send.buffer.capacity() > KEEP_ABOVE {
                self.release_later(now);
            }
        }
    }

    /// The slow path: something is lost or reordered, or this shows that it is.
    #[cold]
    fn acknowledge_slow(&mut self, header: &Header, plain: bool, now: Time) {
        let acknowledgment = header.acknowledgment;
        let una = self.send.una;
        if una == self.send.nxt {
            self.acknowledge_idle(header, plain, now);
            return;
        }
        if self.recovery.probe == TailProbe::Due {
            self.recovery.probe = TailProbe::None;
        }
        let mut seen = self.feedback(header, plain);
        let furthest = self.recovery.board.highest_sack();
        if before(una, acknowledgment) {
            seen.advanced = true;
            self.advance(acknowledgment);
        }
        if self.sack && !header.options.sack.is_empty() {
            self.take_sack(header, &mut seen, now);
        }
        self.clear_acknowledged(&mut seen, furthest, now);
        let round_trip = self.measure(&mut seen, now);
        let sequences = (self.send.una, self.send.nxt);
        let counts = seen.dsack && !seen.probe_dsack && self.recovery.rack.reord_seen > 0;
        self.recovery
            .rack
            .update_reo_wnd(counts, sequences.0, sequences.1);
        self.judge_probe(acknowledgment, &seen);
        seen.duplicate = plain && !seen.advanced && !seen.dsack && !before(acknowledgment, una);
        let usual = (seen.advanced || !plain)
            && !seen.sacked
            && !seen.dsack
            && !seen.ece
            && self.recovery.ca_state == CaState::Open;
        if !usual {
            self.recover(&mut seen, now);
        }
        if seen.restarts_timer {
            self.start_timer(now);
        }
        self.control(&seen, round_trip, now);
        self.release_when_empty(now);
    }

    /// Nothing is in flight; yet a D-SACK may show that the last recovery, or probe, was
    /// spurious.
    fn acknowledge_idle(&mut self, header: &Header, plain: bool, now: Time) {
        let mut seen = self.feedback(header, plain);
        if self.is_framed() && self.is_window_closed() {
            // The peer is alive: its window is open, but too small for a frame.
            self.send.retries = 0;
        }
        if self.sack && !header.options.sack.is_empty() {
            self.take_sack(header, &mut seen, now);
        }
        if seen.dsack {
            self.recover(&mut seen, now);
        }
        self.judge_probe(header.acknowledgment, &seen);
    }

    fn feedback(&self, header: &Header, plain: bool) -> Feedback {
        Feedback {
            prior_una: self.send.una,
            plain,
            ece: self.ecn.is_agreed() && header.flags.contains(Flags::ECE),
            echo: header
                .options
                .timestamps
                .filter(|_| self.timestamps)
                .map(|timestamps| timestamps.echo),
            ..Feedback::default()
        }
    }

    /// Takes the blocks of a SACK option (RFC 2018, RFC 2883). Blocks outside the data in
    /// flight are forged or old, and are ignored.
    fn take_sack(&mut self, header: &Header, seen: &mut Feedback, now: Time) {
        let blocks = header.options.sack.as_slice();
        let (una, nxt, mss) = (self.send.una, self.send.nxt, u32::from(self.send.mss));
        let dsack = self.take_duplicate_block(header, seen);
        let now = microseconds(now);
        let min = self.round_trip.min;
        let Recovery {
            board,
            rack,
            high_seq,
            sacked_out,
            ..
        } = &mut self.recovery;
        let furthest = board.highest_sack();
        for (index, &(start, end)) in blocks.iter().enumerate() {
            if !before(start, end) || !before(una, start) || before(nxt, end) {
                continue;
            }
            if dsack && index == 0 {
                board.dsack(start, end);
            }
            board.sack((start, end), mss, |piece| {
                seen.sacked = true;
                seen.delivered = seen.delivered.saturating_add(piece.len());
                *sacked_out = sacked_out.saturating_add(piece.len().div_ceil(mss));
                let retransmitted = piece.has(RETRANSMITTED | EVER_RETRANSMITTED);
                rack.update((piece.end, piece.sent), retransmitted, now, min);
                if !retransmitted {
                    if before(piece.start, furthest) {
                        seen.arrived_late(piece.start);
                    }
                    seen.orig_acked |= before(piece.start, *high_seq);
                    extend(&mut seen.sacked_times, piece.sent);
                }
            });
        }
        if let Some(sequence) = seen.reordered
            && (self.recovery.ca_state != CaState::Loss || self.recovery.undo.marker.is_some())
        {
            self.note_reordering(sequence);
        }
        seen.reordered = None;
    }

    /// The first block is a D-SACK (RFC 2883 §4) if it lies below the acknowledgment,
    /// or within the second block.
    fn take_duplicate_block(&mut self, header: &Header, seen: &mut Feedback) -> bool {
        let blocks = header.options.sack.as_slice();
        let Some(&(start, end)) = blocks.first() else {
            return false;
        };
        let within = blocks
            .get(1)
            .is_some_and(|block| !before(block.1, end) && !before(start, block.0));
        if !before(start, header.acknowledgment) && !within {
            return false;
        }
        let length = end.wrapping_sub(start);
        let mss = u32::from(self.send.mss);
        if length == 0 || length > self.send.max_window {
            return false;
        }
        let segments = length.div_ceil(mss);
        if segments == 1
            && let TailProbe::Sent { end: probed, .. } = self.recovery.probe
        {
            seen.probe_dsack = probed == end;
        }
        self.counters.dsack_duplicates = self.counters.dsack_duplicates.wrapping_add(segments);
        if self.counters.dsack_duplicates > self.counters.retransmissions {
            // The network has duplicated the segment.
            return false;
        }
        seen.dsack = true;
        seen.delivered = seen.delivered.saturating_add(length);
        self.recovery.undo.count_dsack(segments, end);
        true
    }

    /// Removes acknowledged data from the scoreboard.
    fn clear_acknowledged(&mut self, seen: &mut Feedback, furthest: u32, now: Time) {
        if !seen.advanced {
            return;
        }
        seen.restarts_timer = true;
        let acknowledgment = self.send.una;
        let clock = timestamp(now, self.timestamp_offset);
        let micros = microseconds(now);
        let min = self.round_trip.min;
        let (sack, echo) = (self.sack, seen.echo);
        let sacked = self.recovery.board.sacked();
        let Recovery {
            board,
            rack,
            high_seq,
            ..
        } = &mut self.recovery;
        let mut bytes = 0u32;
        board.acknowledge(acknowledgment, |piece| {
            bytes = bytes.saturating_add(piece.len());
            let retransmitted = piece.has(RETRANSMITTED | EVER_RETRANSMITTED);
            if retransmitted {
                seen.retrans_acked = true;
            } else if !piece.has(SACKED) {
                extend(&mut seen.acknowledged_times, piece.sent);
                if before(piece.start, furthest) {
                    seen.arrived_late(piece.start);
                }
                seen.orig_acked |= before(piece.start, *high_seq);
            }
            if piece.has(SACKED) || !sack {
                return;
            }
            seen.delivered = seen.delivered.saturating_add(piece.len());
            // An echo from before the retransmission acknowledges the original.
            let age = micros.wrapping_sub(piece.sent) / 1000;
            let stale =
                retransmitted && echo.is_some_and(|echo| before(echo, clock.wrapping_sub(age)));
            if !stale {
                rack.update((piece.end, piece.sent), retransmitted, micros, min);
            }
        });
        seen.reneged = board.head().is_some_and(|head| head.has(SACKED));
        if !sack {
            self.remove_reno_sacks(bytes, seen);
            return;
        }
        let left = self.recovery.board.sacked();
        if left < sacked {
            let share = u64::from(self.recovery.sacked_out) * u64::from(left);
            self.recovery.sacked_out = share.div_ceil(sacked.into()) as u32;
        }
        if let Some(sequence) = seen.reordered
            && before(sequence, furthest)
        {
            // A hole was filled by an original.
            let mss = self.send.mss.into();
            let distance = furthest.wrapping_sub(sequence);
            self.recovery.rack.note_reordering_degree(distance, mss);
        }
    }

    /// Without SACK: one acknowledgment fills a hole, and covers what duplicate
    /// acknowledgments counted beyond it (Linux `tcp_remove_reno_sacks`).
    fn remove_reno_sacks(&mut self, bytes: u32, seen: &mut Feedback) {
        if seen.retrans_acked {
            // The progress may be due to the retransmission.
            seen.orig_acked = false;
        }
        let mss = u32::from(self.send.mss);
        let reno_sacked = self.recovery.board.sacked();
        let newly = bytes.saturating_sub(reno_sacked).max(mss).min(bytes);
        seen.delivered = seen.delivered.saturating_add(newly);
        let segments = bytes.div_ceil(mss).saturating_sub(1);
        let left = self.recovery.sacked_out.saturating_sub(segments);
        self.set_reno_sacks(left);
    }

    /// Takes a round-trip sample, in microseconds (RFC 6298 §3, RFC 7323 §4). It comes
    /// from data that was sent once and is acknowledged, selectively or not; otherwise
    /// from the echo.
    fn measure(&mut self, seen: &mut Feedback, now: Time) -> Option<u32> {
        let micros = microseconds(now);
        let mut latest = None;
        let mut oldest = None;
        if let Some((first, last)) = seen.acknowledged_times
            && !seen.retrans_acked
        {
            oldest = Some(micros.wrapping_sub(first));
            latest = Some(micros.wrapping_sub(last));
        }
        if let Some((first, last)) = seen.sacked_times {
            let sample = micros.wrapping_sub(first);
            latest = Some(micros.wrapping_sub(last));
            if oldest.is_none() {
                oldest = Some(sample);
            }
            // Data that left after the first segment was last sent must not postpone that
            // segment's timeout again and again.
            if let Some(head) = self.recovery.board.head()
                && !seen.advanced
                && sample > 0
                && before(first, head.sent)
            {
                seen.restarts_timer = true;
            }
        }
        if oldest.is_none()
            && seen.advanced
            && let Some(echo) = seen.echo
        {
            let age = timestamp(now, self.timestamp_offset).wrapping_sub(echo);
            if age < ECHO_MAX {
                oldest = Some(age.max(1) * 1000);
                latest = oldest;
            }
        }
        let (oldest, latest) = (oldest?, latest?);
        self.round_trip.update_min(latest, now);
        let least = self.config.timeout_min.micros();
        let sequences = (self.send.una, self.send.nxt);
        self.round_trip.sample(oldest, sequences, least);
        Some(latest)
    }

    #[inline]
    fn count_delivered(&mut self, bytes: u32) {
        let segments = bytes.div_ceil(self.send.mss.into());
        self.counters.delivered = self.counters.delivered.wrapping_add(segments);
    }

    /// Reports delivered bytes to congestion control, or to the reduction.
    fn control(&mut self, seen: &Feedback, round_trip: Option<u32>, now: Time) {
        self.count_delivered(seen.delivered);
        if self.recovery.is_reducing() {
            self.reduce_window(seen.delivered, seen.lost, seen.advanced);
            return;
        }
        // If reordering is usual, data that arrives out of order counts as well.
        let reorders = self.recovery.rack.reordering > DUPLICATES;
        if !(seen.advanced || reorders && seen.sacked) || seen.delivered == 0 {
            return;
        }
        self.congestion.on_acknowledged(&Acknowledged {
            first: self.send.una,
            next: self.send.nxt,
            bytes: seen.delivered,
            in_flight: self.send.max_in_flight,
            limited: self.send.is_cwnd_limited,
            round_trip,
            srtt: self.round_trip.srtt(),
            now,
            mss: self.send.mss.into(),
        });
    }

    /// The window of a segment; the window of a SYN is never scaled (RFC 7323 §2.2).
    #[inline(always)]
    pub(super) fn scaled_window(&self, header: &Header) -> u32 {
        let scale = if header.flags.contains(Flags::SYN) {
            0
        } else {
            self.send.wscale
        };
        u32::from(header.window) << scale
    }

    /// The peer's window has grown.
    fn after_window_opened(&mut self) {
        if !self.orphan && self.send.una == self.send.nxt && self.unsent() > 0 {
            // The persist state ends; output starts a new one if necessary.
            self.timers.stop(super::timers::Timer::Retransmit);
            self.round_trip.backoff = 0;
            self.send.stalled_since = None;
        }
    }

    /// The largest window seen also bounds the segments to a peer with a small window.
    #[cold]
    fn grow_window_max(&mut self, window: u32) {
        let before = std::mem::replace(&mut self.send.max_window, window);
        if before / 2 < self.config.mss.into() {
            self.update_mss();
        }
    }

    pub(super) fn take_window(&mut self, sequence: u32, acknowledgment: u32, window: u32) {
        self.send.wnd = window;
        if window > self.send.max_window {
            self.grow_window_max(window);
        }
        self.send.wl1 = sequence;
        self.send.wl2 = acknowledgment;
    }
}
