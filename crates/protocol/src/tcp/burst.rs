//! Bursts: how much is sent together, and what cuts it into segments. Linux cuts in
//! software what the device does not (GSO). So here, too, bursts are the same whether the
//! device cuts them or not; only the last segment of a burst carries PSH.

use super::connection::{Connection, count};
use super::ecn::ECT_0;
use super::{Outgoing, Time};
use tidewall_wire::tcp::{Flags, Header, before};

/// The longest payload of one IP datagram beside the longest headers. It bounds a burst,
/// whether the device cuts it or not.
const BURST_MAX: u32 = 65_535 - 60 - 60;

impl Connection {
    /// Sets [`Config::offload`](super::Config::offload) to the limit of the device that sends the
    /// next segments.
    #[inline]
    pub fn set_offload(&mut self, bytes: u32) {
        self.config.offload = bytes;
    }

    /// The largest payload that leaves as one burst: full segments only.
    #[inline]
    pub(super) fn burst(&self, mss: u32) -> u32 {
        // CWR and SACK blocks are sent once: with one segment, not with each of many.
        let most = self.burst_max();
        if most <= mss || self.ecn.owes_cwr() || self.receive.assembler.has_sack_blocks() {
            return mss;
        }
        let most = self.burst_worth(most).min(self.congestion.window() / 2);
        (most - most % mss).max(mss)
    }

    /// The size that the device cuts or, if it cuts nothing, the most it could cut.
    #[inline]
    fn burst_max(&self) -> u32 {
        match self.config.offload {
            0 => BURST_MAX,
            device => device.min(BURST_MAX),
        }
    }

    /// The largest payload of a burst, whatever the congestion window: at most half of
    /// the largest window (Linux `tcp_xmit_size_goal`). At least a segment.
    pub(super) fn largest_burst(&self) -> u32 {
        let mss = u32::from(self.send.mss).max(1);
        let most = self.burst_max().min(self.send.max_window / 2);
        (most - most % mss).max(mss)
    }

    /// Passes a burst to the caller, cut into segments if the device cuts none. Returns
    /// how much of the payload has left; `None` if nothing has.
    #[inline(always)]
    pub(super) fn give_burst(
        &mut self,
        header: Header,
        payload: (u32, u32),
        size: u32,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
    ) -> Option<u32> {
        let (_, length) = payload;
        if length > size && self.config.offload == 0 {
            return self.give_segments(header, payload, size, send);
        }
        self.give(header, payload, size, send).then_some(length)
    }

    #[inline(never)]
    fn give_segments(
        &mut self,
        mut header: Header,
        (offset, length): (u32, u32),
        size: u32,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
    ) -> Option<u32> {
        let flags = header.flags;
        let mut left = 0;
        while left < length {
            let segment = size.min(length - left);
            let last = left + segment == length;
            let ends = if last { 0 } else { Flags::PSH.0 | Flags::FIN.0 };
            header.flags = Flags(flags.0 & !ends);
            if !self.give(header, (offset + left, segment), size, send) {
                break;
            }
            header.sequence = header.sequence.wrapping_add(segment);
            left += segment;
        }
        (left > 0).then_some(left)
    }

    /// Whether data acknowledged beyond SND.NXT was sent after all: the first segments of
    /// a burst that the device dropped midway. They count as sent from now on.
    #[cold]
    pub(super) fn has_left(&mut self, acknowledgment: u32, now: Time) -> bool {
        let length = acknowledgment.wrapping_sub(self.send.nxt);
        // A handshake leaves SND.NXT one beyond `offered`.
        let offered = self.send.offered.wrapping_sub(self.send.nxt) as i32;
        if length > offered.max(0) as u32 {
            return false;
        }
        self.note_sent(length, acknowledgment, now);
        true
    }

    /// Passes a segment to the caller. The payload is an offset into the send buffer and
    /// a length; `size` is that of a full segment.
    #[inline(always)]
    pub(super) fn give(
        &mut self,
        header: Header,
        (offset, length): (u32, u32),
        size: u32,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
    ) -> bool {
        let mut traffic_class = self.config.traffic_class;
        // Retransmissions are not marked (RFC 3168 §6.1.5).
        let new = !before(header.sequence, self.send.nxt);
        if self.ecn.is_agreed() && length > 0 && new {
            traffic_class |= ECT_0;
        }
        let sent = send(&Outgoing {
            header,
            payload: self.send.buffer.slices(offset, length),
            segment_size: size as u16,
            traffic_class,
        });
        if sent {
            count(&mut self.counters.segments_sent);
        }
        sent
    }
}
