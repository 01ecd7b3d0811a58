//! Linux's write queue, as far as it shows: which bytes share a packet, where PSH
//! is, how much memory is in use.
//!
//! The engine sends segment by segment and counts bytes. Linux keeps packets of
//! up to 64 KB, whose borders come from the calls that filled them and from
//! `tcp_tso_autosize` when they leave; it sets PSH by those borders (RFC 9293
//! §3.9.1.2 leaves the rest to the implementation) and counts memory by packets.
//! What an onlooker sees as a packet is what the device is given, so a host with
//! segmentation offload puts segments together in the same way.

use std::collections::VecDeque;

use tidewall_protocol::tcp::{Connection, Info, Outgoing};
use tidewall_wire::tcp::{Flags, Header};

use super::Host;
use super::limits::Limit;

/// The most bytes of one packet (`GSO_LEGACY_MAX_SIZE` less headers).
const PACKET_MAX: u32 = 65_536 - 320 - 1;

/// Memory that a packet takes beside its bytes (`SKB_TRUESIZE(MAX_TCP_HEADER)`).
const OVERHEAD: u64 = 1280;

/// A segment on its way out.
pub(super) struct Piece {
    header: Header,
    payload: Vec<u8>,
    segment_size: u16,
    traffic_class: u8,
}

impl Piece {
    pub(super) fn new(outgoing: &Outgoing<'_>) -> Self {
        Self {
            header: outgoing.header,
            payload: outgoing.payload.concat(),
            segment_size: outgoing.segment_size,
            traffic_class: outgoing.traffic_class,
        }
    }

    pub(super) fn outgoing(&self) -> Outgoing<'_> {
        Outgoing {
            header: self.header,
            payload: [&self.payload, &[]],
            segment_size: self.segment_size,
            traffic_class: self.traffic_class,
        }
    }

    pub(super) fn has_payload(&self) -> bool {
        !self.payload.is_empty()
    }

    /// Keeps the first bytes; the rest is another piece.
    fn split_off(&mut self, at: usize) -> Self {
        let payload = self.payload.split_off(at.min(self.payload.len()));
        let mut header = self.header;
        header.sequence = header.sequence.wrapping_add(self.payload.len() as u32);
        Self {
            header,
            payload,
            ..*self
        }
    }

    /// Cuts a packet into its segments.
    pub(super) fn cut(mut self) -> Vec<Self> {
        let size = usize::from(self.segment_size.max(1));
        let flags = self.header.flags;
        let mut pieces = Vec::new();
        while self.payload.len() > size {
            let rest = self.split_off(size);
            self.header.flags = Flags(flags.0 & !(Flags::PSH.0 | Flags::FIN.0));
            pieces.push(self);
            self = rest;
        }
        pieces.push(self);
        pieces
    }

    fn set_push(&mut self, on: bool) {
        let flags = &mut self.header.flags;
        flags.0 = flags.0 & !Flags::PSH.0 | if on { Flags::PSH.0 } else { 0 };
    }
}

/// What of the kernel parameters decides sizes.
pub(super) struct Rules {
    pub(super) min_segments: u32,
    /// The device cuts long packets.
    pub(super) offload: bool,
}

/// A packet of the queue.
#[derive(Clone, Copy)]
struct Packet {
    /// The offset after its last byte; the first byte written has offset 0.
    end: u64,
    push: bool,
    /// Nothing may be appended (MSG_EOR).
    closed: bool,
}

/// The queue of one connection.
#[derive(Default)]
pub(super) struct Queue {
    /// The sequence number of offset 0, once a byte was sent.
    base: Option<u32>,
    /// Bytes written.
    pub(super) written: u64,
    /// The offset after the last byte that was ever sent.
    pub(super) sent: u64,
    /// Acknowledged.
    pub(super) acknowledged: u64,
    in_flight: VecDeque<Packet>,
    unsent: VecDeque<Packet>,
    /// The offset where PSH was last set.
    pushed: u64,
    /// The largest window that the peer has announced.
    window_max: u32,
    /// What may not be given to the engine yet, so that it does not share a
    /// segment with what is before it.
    withheld: VecDeque<Vec<u8>>,
}

impl Queue {
    /// Memory in use (`sk_wmem_queued`).
    pub(super) fn memory(&self) -> u64 {
        let packets = self.in_flight.len() + self.unsent.len();
        self.written - self.acknowledged + packets as u64 * OVERHEAD
    }

    /// Written and never sent.
    pub(super) fn not_sent(&self) -> u64 {
        self.written - self.sent
    }

    /// Bytes that a packet is filled with (`tcp_xmit_size_goal`).
    fn goal(&self, mss: u32, offload: bool) -> u64 {
        let mss = mss.max(1);
        if !offload {
            return mss.into();
        }
        // Half a window, so that the peer can acknowledge the other half.
        let half = match self.window_max {
            0 => PACKET_MAX,
            small @ ..=536 => small,
            window => window / 2,
        };
        (PACKET_MAX.min(half) / mss)
            .max(1)
            .saturating_mul(mss)
            .into()
    }

    /// Bytes that may be appended to the last packet, which needs no memory.
    pub(super) fn tail_room(&self, mss: u32, offload: bool) -> u64 {
        match self.unsent.back() {
            Some(tail) if !tail.closed => {
                let others = self.unsent.len().checked_sub(2);
                let before = others.and_then(|index| self.unsent.get(index));
                let start = before.map_or(self.sent, |before| before.end);
                self.goal(mss, offload).saturating_sub(tail.end - start)
            }
            _ => 0,
        }
    }

    /// A new packet.
    pub(super) fn begin(&mut self) {
        self.unsent.push_back(Packet {
            end: self.written,
            push: false,
            closed: false,
        });
    }

    /// Bytes that a new packet takes.
    pub(super) fn packet_room(&self, mss: u32, offload: bool) -> u64 {
        self.goal(mss, offload)
    }

    /// Appends to the last packet. What the engine may not have yet is kept.
    pub(super) fn append<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let starts = self
            .unsent
            .back()
            .is_none_or(|tail| tail.end == self.written);
        let behind_border = self
            .unsent
            .len()
            .checked_sub(2)
            .and_then(|index| self.unsent.get(index))
            .is_some_and(|before| before.closed);
        self.written += bytes.len() as u64;
        if let Some(tail) = self.unsent.back_mut() {
            tail.end = self.written;
            // Another call goes on where one ended (`tcp_sendmsg_locked`).
            tail.push = false;
        }
        if starts && (behind_border || !self.withheld.is_empty()) {
            self.withheld.push_back(bytes.to_vec());
            return None;
        }
        match self.withheld.back_mut() {
            Some(last) => {
                last.extend_from_slice(bytes);
                None
            }
            None => Some(bytes),
        }
    }

    /// The last packet is full. So that a long call does not wait for its end, PSH
    /// is set every half of the largest window (`forced_push`).
    pub(super) fn filled(&mut self) {
        if self.written > self.pushed + u64::from(self.window_max / 2) {
            self.finish(true, false);
        }
    }

    /// The last packet ends a call.
    pub(super) fn finish(&mut self, push: bool, closed: bool) {
        if push {
            self.pushed = self.written;
        }
        if let Some(tail) = self.unsent.back_mut() {
            tail.push |= push;
            tail.closed |= closed;
        }
    }

    /// True while something is kept from the engine.
    pub(super) fn withholds(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// What the engine may have now: it has sent all it had.
    pub(super) fn release(&mut self) -> Option<Vec<u8>> {
        self.withheld.pop_front()
    }

    /// What holds the sender up; `waits`: a writer found no memory.
    pub(super) fn limit(&self, info: &Info, waits: bool) -> Limit {
        let next = self.not_sent().min(info.send_mss.into());
        let window = info.send_window.saturating_sub(info.unacknowledged);
        if self.written == self.acknowledged {
            Limit::Idle
        } else if next > u64::from(window) {
            Limit::Window
        } else if next == 0 && waits {
            Limit::Buffer
        } else {
            Limit::Busy
        }
    }

    /// Takes what the engine says.
    pub(super) fn update(&mut self, info: &Info) {
        self.window_max = self.window_max.max(info.send_window);
        let acknowledged = info.bytes_acknowledged.min(self.sent);
        self.acknowledged = self.acknowledged.max(acknowledged);
        while let Some(first) = self.in_flight.front()
            && first.end <= self.acknowledged
        {
            self.in_flight.pop_front();
        }
    }

    /// What is sent again shares a packet with what it left with, and no segment
    /// with what it may not (MSG_EOR); PSH is where a call ended.
    fn leave_again(&self, mut piece: Piece, start: u64, most: u32, packets: &mut Vec<Piece>) {
        let end = start + piece.payload.len() as u64;
        let border = self
            .in_flight
            .iter()
            .find(|packet| packet.closed && packet.end > start && packet.end < end);
        if let Some(border) = border.map(|border| border.end) {
            let rest = piece.split_off((border - start) as usize);
            self.leave_again(piece, start, most, packets);
            return self.leave_again(rest, border, most, packets);
        }
        let whole = self.in_flight.iter().find(|packet| packet.end >= end);
        let push = whole.is_some_and(|packet| packet.end == end && packet.push);
        piece.set_push(push);
        let border = |packet: &Packet| packet.end == start;
        match packets.last_mut() {
            Some(last) if !self.in_flight.iter().any(border) && joins(last, &piece, most) => {
                last.payload.extend_from_slice(&piece.payload);
                last.header.flags |= piece.header.flags | Flags::PSH;
            }
            _ => packets.push(piece),
        }
    }

    /// Puts together what one call of output has sent; a timer's is pushed.
    pub(super) fn leave(
        &mut self,
        pieces: Vec<Piece>,
        rules: &Rules,
        connection: &Connection,
        timer: bool,
    ) -> Vec<Piece> {
        let limit = packet_limit(rules, &connection.info());
        // Without a device that cuts packets each is a segment, again too.
        let again = if rules.offload { PACKET_MAX } else { 0 };
        let mut packets: Vec<Piece> = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            if piece.payload.is_empty() {
                packets.push(piece);
                continue;
            }
            let base = *self.base.get_or_insert(piece.header.sequence);
            let near = base.wrapping_add(self.acknowledged as u32);
            let ahead = piece.header.sequence.wrapping_sub(near) as i32;
            let start = self.acknowledged.saturating_add_signed(ahead.into());
            let end = start + piece.payload.len() as u64;
            if end <= self.sent {
                self.leave_again(piece, start, again, &mut packets);
                continue;
            }
            let border = self.unsent.front().is_some_and(|first| first.end <= start);
            if border {
                self.unsent.pop_front();
            }
            self.sent = end;
            let ends = self.unsent.front().filter(|first| first.end == end);
            let push = ends.is_some_and(|first| first.push);
            let closed = ends.is_some_and(|first| first.closed);
            if ends.is_some() {
                self.unsent.pop_front();
            }
            if !timer {
                piece.set_push(push);
            }
            let packet = Packet { end, push, closed };
            match (packets.last_mut(), self.in_flight.back_mut()) {
                (Some(last), Some(whole)) if whole.end == start && joins(last, &piece, limit) => {
                    last.payload.extend_from_slice(&piece.payload);
                    // As Linux: whoever puts segments together again is to
                    // deliver them at once.
                    last.header.flags |= piece.header.flags | Flags::PSH;
                    *whole = packet;
                }
                _ => {
                    packets.push(piece);
                    self.in_flight.push_back(packet);
                }
            }
        }
        packets
    }
}

/// Whether a segment goes on where a packet ends, and fits into it.
fn joins(packet: &Piece, next: &Piece, limit: u32) -> bool {
    let plain = |flags: Flags| flags.0 & !(Flags::PSH.0 | Flags::FIN.0) == Flags::ACK.0;
    let size = u32::from(packet.segment_size).max(1);
    let length = packet.payload.len() as u32;
    plain(packet.header.flags)
        && plain(next.header.flags)
        && !packet.header.flags.intersects(Flags::FIN)
        && length > 0
        && length.is_multiple_of(size)
        && next.header.sequence == packet.header.sequence.wrapping_add(length)
        && next.header.acknowledgment == packet.header.acknowledgment
        && next.segment_size == packet.segment_size
        && length + next.payload.len() as u32 <= limit.max(size)
}

/// Bytes of a packet at most: what the pacing rate lets pass in about a
/// millisecond, more over short paths, two segments at least
/// (`tcp_tso_autosize`).
fn packet_limit(rules: &Rules, info: &Info) -> u32 {
    if !rules.offload {
        return 0;
    }
    let mss = info.send_mss.max(1);
    let smoothed = info.round_trip.as_micros().max(1) as u64;
    let window = u64::from(info.congestion_window.max(info.unacknowledged));
    // `tcp_update_pacing_rate`: twice the window a round trip in slow start, 1.2
    // times after it.
    let percent = if info.congestion_window < info.slow_start_threshold / 2 {
        200
    } else {
        120
    };
    let rate = if info.round_trip.is_zero() {
        u64::MAX >> 10
    } else {
        window * percent / 100 * 1_000_000 / smoothed
    };
    let mut bytes = rate >> 10;
    let shift = info.round_trip_min.as_micros() >> 9;
    if shift < 32 {
        bytes += u64::from(PACKET_MAX) >> shift;
    }
    let bytes = bytes.min(PACKET_MAX.into()) as u32;
    // At least two packets in flight (`tcp_cwnd_test`).
    let half = (info.congestion_window / mss / 2).max(1);
    (bytes / mss)
        .max(rules.min_segments)
        .min(half)
        .saturating_mul(mss)
}

impl Host {
    pub(super) fn packet_rules(&self) -> Rules {
        Rules {
            min_segments: self.config.sysctl.min_tso_segments,
            offload: self.config.segmentation_offload,
        }
    }
}
