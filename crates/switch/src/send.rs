//! Segments to the ends, and the decision when an acknowledgment needs its own segment.

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::tcp::{Flags, Header};

use crate::emission::{Emission, Payload};
use crate::flow::{Context, End, Flow, Phase, Stage};
use crate::gaps::Gap;
use crate::sequence::FIRST;

/// Maximum number of null frames sent along with one repeated frame; the rest follows
/// when the member's acknowledgments reach it.
const VOIDS_MAX: usize = 16;

/// The segment size, if an end that waits with nothing in flight could send a part of a
/// frame: a kernel that probes fills the rest of a window with one.
#[inline]
fn whole_frames(context: &Context<'_>, nothing_in_flight: bool, segment_size: u16) -> Option<u16> {
    (context.config.kernel_ends && nothing_in_flight).then_some(segment_size)
}

impl End {
    #[inline(always)]
    pub(crate) fn header(&self, flow: &FourTuple, lsn: u64, flags: Flags, ack: u64) -> Header {
        Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            sequence: self.sink.numbers.wire(lsn),
            acknowledgment: self.source.numbers.wire(ack),
            flags: flags | Flags::ACK,
            window: self.source.announced.window,
            ..Header::default()
        }
    }
}

impl Flow {
    /// The acknowledgment to the peer.
    pub(crate) fn peer_ack(&self) -> u64 {
        let inbound = &self.inbound;
        inbound.blocks.acknowledged(inbound.left) + u64::from(self.fin_is_through())
    }

    /// All members have acknowledged the peer's FIN.
    pub(crate) fn fin_is_through(&self) -> bool {
        self.inbound.fin == Some(self.inbound.left)
            && !self.any(|end| {
                matches!(end.stage, Stage::Open) && !(end.sink.fin.is_some() && end.sink.fin_acked)
            })
    }

    /// The acknowledgment to a member: what the peer has, and the member's FIN unless
    /// that waits for the peer.
    pub(crate) fn member_ack(&self, slot: u8) -> u64 {
        let Some(end) = self.ends.get(usize::from(slot)) else {
            return FIRST;
        };
        let source = &end.source;
        let waits = self.outbound.fin_owner == Some(slot) && !self.outbound.fin_acked;
        let fin = source.fin == Some(source.acked) && !waits;
        source.blocks.acknowledged(source.acked) + u64::from(fin)
    }

    /// Sends a segment to the peer, from position `csn` on.
    pub(crate) fn send_to_peer(
        &mut self,
        context: &mut Context<'_>,
        csn: u64,
        flags: Flags,
        payload: Payload,
    ) {
        let ack = self.peer_ack();
        let edge = self.peer_edge();
        let inbound = &mut self.inbound;
        inbound.offered = inbound.offered.max(edge);
        let whole = whole_frames(context, inbound.left == inbound.next, self.segment_size);
        let room = inbound.offered.saturating_sub(ack);
        inbound.announced.set_window(room, whole);
        inbound.announced.due = false;
        self.emit_to_peer(context, csn, flags, ack, payload);
    }

    fn emit_to_peer(
        &mut self,
        context: &mut Context<'_>,
        csn: u64,
        flags: Flags,
        ack: u64,
        payload: Payload,
    ) {
        if !self.inbound.blocks.is_empty() {
            return self.emit_with_blocks(context, csn, flags, ack, payload);
        }
        (context.emit)(Emission {
            flow: self.peer,
            header: self.header_to_peer(csn, flags, ack),
            payload,
            room: self.peer_segment_size,
        });
    }

    #[inline(always)]
    pub(crate) fn header_to_peer(&self, csn: u64, flags: Flags, ack: u64) -> Header {
        Header {
            source_port: self.peer.local.port(),
            destination_port: self.peer.remote.port(),
            sequence: self.outbound.numbers.wire(csn),
            acknowledgment: self.inbound.numbers.wire(ack),
            flags: flags | Flags::ACK,
            window: self.inbound.announced.window,
            ..Header::default()
        }
    }

    /// Sends a segment to a member, from position `lsn` on.
    pub(crate) fn send_to_member(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        lsn: u64,
        flags: Flags,
        payload: Payload,
    ) {
        let ack = self.member_ack(slot);
        let segment_size = self.peer_segment_size;
        let Some(end) = self.end(slot) else {
            return;
        };
        let source = &mut end.source;
        let scale = source.announced.scale;
        let whole = whole_frames(context, source.acked == source.next, segment_size);
        let room = source.edge.saturating_sub(ack);
        source.announced.set_window(room, whole);
        source.announced_edge = ack + (u64::from(source.announced.window) << scale);
        source.announced.due = false;
        self.emit_to_member(context, slot, lsn, flags, ack, payload);
    }

    fn emit_to_member(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        lsn: u64,
        flags: Flags,
        ack: u64,
        payload: Payload,
    ) {
        let room = self.segment_size;
        let Some(end) = self.end(slot) else {
            return;
        };
        let Some(flow) = end.tuple else {
            return;
        };
        if !end.source.blocks.is_empty() {
            return self.emit_with_blocks_to_member(context, slot, lsn, flags, ack, payload);
        }
        (context.emit)(Emission {
            flow,
            header: end.header(&flow, lsn, flags, ack),
            payload,
            room,
        });
    }

    /// Sends a null frame in place of frames that went elsewhere.
    pub(crate) fn send_void(&mut self, context: &mut Context<'_>, slot: u8, gap: Gap) {
        context.counters.null_frames += 1;
        let payload = Payload::Null(gap.length as usize);
        self.send_to_member(context, slot, gap.lsn, Flags::NONE, payload);
    }

    /// Repeats unacknowledged null frames below `lsn`: the end that repeats the bytes
    /// above them does not know them.
    pub(crate) fn repeat_voids(&mut self, context: &mut Context<'_>, slot: u8, lsn: u64) {
        let mut voids = [None; VOIDS_MAX];
        let Some(end) = self.end(slot) else {
            return;
        };
        if end.sink.gaps.is_empty() {
            return;
        }
        for (place, gap) in voids.iter_mut().zip(end.sink.gaps.voids_below(lsn)) {
            *place = Some(gap);
        }
        for gap in voids.into_iter().flatten() {
            self.send_void(context, slot, gap);
        }
    }

    /// Sends null frames for what was voided while a segment was split.
    pub(crate) fn send_fresh_voids(&mut self, context: &mut Context<'_>) {
        for slot in self.slots(|end| !end.sink.gaps.is_empty()) {
            let Some(end) = self.end(slot) else {
                continue;
            };
            let mut fresh = Vec::new();
            end.sink.gaps.take_fresh(|gap| fresh.push(gap));
            for gap in fresh {
                self.send_void(context, slot, gap);
            }
        }
    }

    /// Start of the next segment to the peer without payload.
    pub(crate) fn peer_send_next(&self) -> u64 {
        self.outbound.next + u64::from(self.outbound.fin.is_some())
    }

    /// Sends the due acknowledgments that no other segment has carried.
    pub(crate) fn flush(&mut self, context: &mut Context<'_>) {
        if matches!(self.phase, Phase::Opening | Phase::Answered) {
            return;
        }
        let csn = self.peer_send_next();
        if self.inbound.announced.due || self.window_is_worth_telling() {
            self.send_to_peer(context, csn, Flags::NONE, Payload::None);
        }
        while self.inbound.blocks.may_have_news() && self.inbound.blocks.has_news(None) {
            self.send_to_peer(context, csn, Flags::NONE, Payload::None);
        }
        for _ in 0..core::mem::take(&mut self.inbound.announced.duplicates) {
            // The same window again; otherwise it would not be a duplicate (RFC 5681 §2).
            context.counters.duplicates_forwarded += 1;
            (context.emit)(Emission {
                flow: self.peer,
                header: self.header_to_peer(csn, Flags::NONE, self.peer_ack()),
                payload: Payload::None,
                room: 0,
            });
        }
        let owed = |end: &End| {
            end.stage == Stage::Open
                && (end.source.announced.due || end.source.announced.duplicates > 0)
        };
        for slot in self.slots(owed) {
            let Some(end) = self.end(slot) else {
                continue;
            };
            let lsn = end.sink.send_next();
            let announced = &mut end.source.announced;
            let (due, duplicates) = (announced.due, core::mem::take(&mut announced.duplicates));
            if due {
                self.send_to_member(context, slot, lsn, Flags::NONE, Payload::None);
            }
            while self.may_have_news_for(slot) && self.has_news_for(slot) {
                self.send_to_member(context, slot, lsn, Flags::NONE, Payload::None);
            }
            for _ in 0..duplicates {
                context.counters.duplicates_forwarded += 1;
                self.duplicate_to_member(context, slot, lsn);
            }
        }
    }

    /// Repeats the last acknowledgment to a member as a duplicate to be counted. None are
    /// sent where SACK is agreed on, so there are no blocks.
    fn duplicate_to_member(&self, context: &mut Context<'_>, slot: u8, lsn: u64) {
        let ack = self.member_ack(slot);
        let end = self.ends.get(usize::from(slot));
        if let Some((end, flow)) = end.and_then(|end| Some((end, end.tuple?))) {
            (context.emit)(Emission {
                flow,
                header: end.header(&flow, lsn, Flags::NONE, ack),
                payload: Payload::None,
                room: 0,
            });
        }
    }

    #[inline]
    fn may_have_news_for(&self, slot: u8) -> bool {
        let end = self.ends.get(usize::from(slot));
        end.is_some_and(|end| end.source.blocks.may_have_news())
    }

    /// Passes on to members a peer's probe of whether they are alive, or have opened
    /// their windows: a segment from before their acknowledgments.
    pub(crate) fn probe_members(&mut self, context: &mut Context<'_>) {
        for slot in self.slots(|end| end.stage == Stage::Open) {
            if let Some(end) = self.end(slot) {
                let lsn = end.sink.acked - 1;
                self.send_to_member(context, slot, lsn, Flags::NONE, Payload::None);
            }
        }
    }

    /// Does the same from a member to the peer.
    pub(crate) fn probe_peer(&mut self, context: &mut Context<'_>) {
        let csn = self.outbound.acked - 1;
        self.send_to_peer(context, csn, Flags::NONE, Payload::None);
    }

    /// Resets the member's end of the connection.
    pub(crate) fn reset_member(&mut self, context: &mut Context<'_>, slot: u8) {
        if let Some(end) = self.end(slot) {
            let lsn = end.sink.send_next();
            self.send_to_member(context, slot, lsn, Flags::RST, Payload::None);
        }
    }
}
