//! SACK (RFC 2018) across the switch: what members hold of the peer's frames, and the
//! peer of members' bytes, beyond their acknowledgments.
//!
//! Bytes are received out of order if their receiver waits for earlier ones. Frames that
//! one member has, while another is merely slower, are not out of order, though they lie
//! beyond the peer's acknowledgment. To a sender they would look like a loss. So a frame
//! is reported to the peer only when each member has one beyond it, or all that it was
//! sent (the *horizon*). Frames still missing below were then overtaken by frames that
//! took the same way. A member's own bytes stay in order when they are merged, and need
//! no such care.

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::tcp::{Flags, Header, SackBlocks};

use crate::emission::{Emission, Payload};
use crate::flow::{Context, End, Flow, Inbound, Run, Source, Stage};
use crate::gaps::Fate;
use crate::ring::Frame;

/// Blocks accompany only segments without payload. Frames may fill a segment, and are
/// forwarded in the device frame that they arrived in, where there is no room for
/// options.
fn takes_blocks(flags: Flags, payload: &Payload) -> bool {
    payload.is_empty() && !flags.contains(Flags::RST)
}

fn emit(context: &mut Context<'_>, flow: FourTuple, header: Header, payload: Payload) {
    context.counters.sack_blocks += header.options.sack.as_slice().len() as u64;
    (context.emit)(Emission {
        flow,
        header,
        payload,
        room: 0,
    });
}

impl Flow {
    /// Records a member's blocks beyond its acknowledgment.
    #[cold]
    pub(crate) fn sacked_by_member(&mut self, slot: u8, sack: &SackBlocks) {
        let Flow { inbound, ends, .. } = self;
        let Some(end) = ends.get_mut(usize::from(slot)) else {
            return;
        };
        let sink = &mut end.sink;
        let news = sink
            .seen
            .take(sack, sink.numbers, sink.acked, sink.send_next());
        let Inbound {
            ring,
            blocks,
            left,
            horizon,
            ..
        } = inbound;
        for range in news {
            let limit = ring.limit().into();
            ring.sack(&mut sink.chain, range.start, range.end, |frame| {
                if frame.csn < *horizon {
                    blocks.insert(*left, frame.csn, frame.csn_end(), limit);
                }
            });
        }
    }

    /// Records that a member has acknowledged a frame that may be reported to the peer.
    #[cold]
    pub(crate) fn acknowledged_below_horizon(&mut self, frame: &Frame) {
        let inbound = &mut self.inbound;
        if frame.csn > inbound.left {
            let limit = inbound.ring.limit().into();
            inbound
                .blocks
                .insert(inbound.left, frame.csn, frame.csn_end(), limit);
        }
    }

    /// Reports to the peer what members have below the horizon, if that has moved.
    #[inline]
    pub(crate) fn report_held(&mut self) {
        if self.inbound.ring.sacked() > 0 || !self.inbound.blocks.is_empty() {
            let behind = |end: &End| self.inbound.ring.beyond(&end.sink.chain);
            let behind = self.ends.iter().filter_map(behind);
            let horizon = behind.map(|frame| frame.csn).min();
            self.report_below(horizon.unwrap_or(self.inbound.next));
        }
    }

    fn report_below(&mut self, horizon: u64) {
        let inbound = &mut self.inbound;
        if horizon <= inbound.horizon {
            return;
        }
        let (left, limit) = (inbound.left, inbound.ring.limit().into());
        let frames = inbound.ring.between(inbound.horizon.max(left), horizon);
        for frame in frames.filter(|frame| frame.is_held()) {
            inbound
                .blocks
                .insert(left, frame.csn, frame.csn_end(), limit);
        }
        inbound.horizon = horizon;
    }

    /// Reports to the peer all that members have.
    pub(crate) fn report_all(&mut self) {
        self.report_below(self.inbound.next);
    }

    /// Handles the peer's repetition of bytes that their member has acknowledged. It has
    /// waited for longer than an answer takes, and receives all that is known. Null
    /// frames that members wait for can only be repeated by the switch.
    pub(crate) fn peer_waits(&mut self, context: &mut Context<'_>) {
        self.report_all();
        self.inbound.announced.due = true;
        let waits = |end: &End| {
            let gap = end.sink.gaps.at(end.sink.acked);
            gap.is_some_and(|gap| gap.fate == Fate::Void)
        };
        for slot in self.slots(waits) {
            self.repeat_lost_voids(context, slot);
        }
    }

    /// Repeats the null frame that a member waits for, and others that it may have lost
    /// with it.
    pub(crate) fn repeat_lost_voids(&mut self, context: &mut Context<'_>, slot: u8) {
        if let Some(end) = self.end(slot) {
            let beyond = end.sink.seen.end().max(end.sink.acked + 1);
            self.repeat_voids(context, slot, beyond);
        }
    }

    /// Handles the peer's repetition of a frame that its member has SACKed. Either it was
    /// not reported, or the peer does not count on it any more, and neither do we (RFC
    /// 2018 §8).
    pub(crate) fn doubt(&mut self, known: &Frame) {
        if known.csn >= self.inbound.horizon {
            self.report_all();
            return;
        }
        self.inbound.ring.doubt(known.csn);
        self.inbound.blocks.remove(known.csn, known.csn_end());
        if let Some(end) = self.end(known.member) {
            end.sink.seen = Default::default();
        }
    }

    /// Records the peer's blocks beyond its acknowledgment.
    #[cold]
    pub(crate) fn sacked_by_peer(&mut self, sack: &SackBlocks) {
        let Flow { outbound, ends, .. } = self;
        let limit = outbound.limit.into();
        let (acked, next) = (outbound.acked, outbound.next);
        for range in outbound.seen.take(sack, outbound.numbers, acked, next) {
            let passed = |run: &Run| run.csn + run.length <= range.start;
            let first = outbound.runs.partition_point(passed);
            let runs = outbound.runs.range(first..);
            for run in runs.take_while(|run| run.csn < range.end) {
                let start = run.lsn + range.start.saturating_sub(run.csn);
                let end = run.lsn + run.length.min(range.end - run.csn);
                let Some(member) = ends.get_mut(usize::from(run.member)) else {
                    continue;
                };
                let source = &mut member.source;
                // A peer cannot have bytes that never arrived.
                if member.stage == Stage::Open && source.unseen.bytes_within(start, end) == 0 {
                    source.blocks.insert(source.acked, start, end, limit);
                }
            }
        }
        for slot in self.slots(|end| end.source.blocks.may_have_news()) {
            let news = self.has_news_for(slot);
            if let Some(end) = self.end(slot) {
                end.source.announced.due |= news;
            }
        }
    }

    /// The end of a member's first unacknowledged stretch of the merged sequence.
    fn first_run_end(&self, slot: u8) -> Option<u64> {
        let mut runs = self.outbound.runs.iter();
        let run = runs.find(|run| run.member == slot)?;
        Some(run.lsn + run.length)
    }

    /// The peer has bytes of a member beyond the acknowledgment that were not reported to
    /// the member.
    #[cold]
    pub(crate) fn has_news_for(&self, slot: u8) -> bool {
        let first = self.first_run_end(slot);
        let end = self.ends.get(usize::from(slot));
        end.is_some_and(|end| end.source.blocks.has_news(first))
    }

    /// Sends a segment to the peer while there is something to report.
    #[cold]
    pub(crate) fn emit_with_blocks(
        &mut self,
        context: &mut Context<'_>,
        csn: u64,
        flags: Flags,
        ack: u64,
        payload: Payload,
    ) {
        let mut header = self.header_to_peer(csn, flags, ack);
        if takes_blocks(flags, &payload) {
            let Inbound {
                blocks, numbers, ..
            } = &mut self.inbound;
            header.options.sack = blocks.report(*numbers, None);
        }
        emit(context, self.peer, header, payload);
    }

    /// Sends a segment to a member while there is something to report.
    #[cold]
    pub(crate) fn emit_with_blocks_to_member(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        lsn: u64,
        flags: Flags,
        ack: u64,
        payload: Payload,
    ) {
        let first = self.first_run_end(slot);
        let Some(end) = self.end(slot) else {
            return;
        };
        let Some(flow) = end.tuple else {
            return;
        };
        let mut header = end.header(&flow, lsn, flags, ack);
        if takes_blocks(flags, &payload) {
            let Source {
                blocks, numbers, ..
            } = &mut end.source;
            header.options.sack = blocks.report(*numbers, first);
        }
        emit(context, flow, header, payload);
    }

    /// Handles a member's repetition of `start..end`: the switch no longer counts on what
    /// the peer has of it.
    pub(crate) fn doubt_member(&mut self, slot: u8, start: u64, end: u64) {
        let Some(member) = self.ends.get_mut(usize::from(slot)) else {
            return;
        };
        if !member.source.blocks.is_empty() && member.source.blocks.remove(start, end) {
            self.outbound.seen = Default::default();
        }
    }
}
