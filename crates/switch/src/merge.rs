//! Members' segments: merges their frames into one sequence towards the peer.

use tidewall_wire::acp::FramesInPieces;
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::{Flags, Header};

use crate::emission::Payload;
use crate::flow::{Context, Flow, Outbound, Reset, Run};
use crate::split::may_be_frames;

impl Flow {
    /// Handles a segment of a member whose connection is open.
    pub(crate) fn member_segment(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        header: &Header,
        payload: Pieces<'_>,
    ) -> Result<(), Reset> {
        self.active = context.now;
        let longest = usize::from(self.peer_segment_size);
        let Some(end) = self.end(slot) else {
            return Ok(());
        };
        let start = end
            .source
            .numbers
            .position(end.source.acked, header.sequence);
        if header.flags.contains(Flags::RST) {
            return self.member_reset(context, slot, start);
        }
        let ack = end
            .sink
            .numbers
            .position(end.sink.acked, header.acknowledgment);
        if header.flags.contains(Flags::SYN) || ack > end.sink.send_next() {
            // A repeated SYN-ACK: our acknowledgment was lost. Otherwise a challenge.
            end.source.announced.due = true;
            self.flush(context);
            return Ok(());
        }
        if !header.flags.contains(Flags::ACK) {
            context.counters.dropped_unacceptable += 1;
            return Ok(());
        }
        if payload.len() > longest {
            context.counters.dropped_too_long += 1;
            return Ok(());
        }
        let fin = header.flags.contains(Flags::FIN);
        let alone = payload.is_empty() && !fin;
        self.acknowledged_by_member(context, slot, ack, header.window, alone)?;
        if self.sack {
            if !header.options.sack.is_empty() {
                self.sacked_by_member(slot, &header.options.sack);
            }
            self.report_held();
        }
        let end_of = start + payload.len() as u64;
        let Some(end) = self.end(slot) else {
            return Ok(());
        };
        if start < end.source.acked && end_of <= end.source.acked && !fin {
            end.source.announced.due = true;
            if payload.len() <= 1 {
                self.probe_peer(context);
            } else {
                let acked = end.source.acked;
                end.source.blocks.repeated(acked);
            }
        } else {
            let taken =
                payload.is_empty() || self.merge(context, slot, start, payload, header.flags)?;
            if fin && taken {
                self.member_fin(context, slot, end_of)?;
            }
        }
        self.finish_drained(context, slot);
        self.flush(context);
        self.look_for_end(context);
        Ok(())
    }

    /// Passes the contents of a member's segment to the peer. False if it was dropped.
    fn merge(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        start: u64,
        payload: Pieces<'_>,
        flags: Flags,
    ) -> Result<bool, Reset> {
        let outbound = &mut self.outbound;
        let limit = usize::from(outbound.limit);
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(false);
        };
        let source = &mut end.source;
        let mut finish = start + payload.len() as u64;
        // Whole frames, and none across the boundary of known and new bytes: another
        // member's may stand between the two.
        let mut frames = 0;
        let mut cut = source.acked <= start || finish <= source.acked;
        for frame in FramesInPieces::new(payload) {
            let frame = frame.map_err(|_| Reset::Framing)?;
            let first = start + frame.offset as u64;
            cut |= first == source.acked;
            if first < source.next && first >= source.acked {
                let fits = |(_, length)| frame.size() as u64 <= length;
                if !outbound.place(slot, first).is_some_and(fits) {
                    return Err(Reset::Framing);
                }
            }
            frames += 1;
        }
        let missing = start.saturating_sub(source.next);
        if !cut || !may_be_frames(missing) || source.fin.is_some_and(|fin| finish > fin) {
            return Err(Reset::Framing);
        }
        let mut beyond = finish.saturating_sub(source.next);
        let joins = outbound
            .runs
            .back()
            .is_some_and(|last| last.member == slot && last.lsn + last.length == source.next);
        let over_window = finish > source.limit
            || outbound.next + beyond > outbound.edge
            || outbound.fin.is_some();
        let full =
            !joins && outbound.runs.len() >= limit || missing > 0 && source.unseen.len() >= limit;
        let takes_new = beyond == 0 || !(over_window || full);
        if !takes_new {
            // Known bytes still have their place, and must get through.
            finish = source.next;
            beyond = 0;
            if over_window {
                // Perhaps it has lost the announcement of a larger window, or we have.
                context.counters.dropped_window += 1;
                source.announced.due = true;
            } else {
                context.counters.dropped_ring_full += 1;
            }
        }
        context.counters.frames_out += frames;
        if let Some(counters) = context.members.get_mut(usize::from(slot)) {
            counters.frames_out += frames;
            counters.bytes_out += payload.len() as u64;
        }
        let mut at = start.max(source.acked);
        source.unseen.remove(start, finish);
        let known = source.next;
        if beyond > 0 {
            // The missing bytes before it can only go to this peer, and keep their place.
            source.unseen.insert(source.next, source.next + missing);
            match outbound.runs.back_mut() {
                Some(last) if joins => last.length += beyond,
                _ => outbound.runs.push_back(Run {
                    csn: outbound.next,
                    lsn: source.next,
                    length: beyond,
                    member: slot,
                }),
            }
            outbound.next += beyond;
            outbound.mean.add(beyond as u32);
            source.next = finish;
        }
        if self.sack && start < known {
            self.doubt_member(slot, start, known.min(finish));
        }
        let push = Flags(flags.0 & Flags::PSH.0);
        // Repeated bytes keep their places; neighbours here need not be neighbours there.
        while at < finish {
            let Some((csn, length)) = self.outbound.place(slot, at) else {
                break;
            };
            let behind = (at + length).min(finish);
            let bytes = (at - start) as usize..(behind - start) as usize;
            let flags = if takes_new && behind == finish {
                push
            } else {
                Flags::NONE
            };
            self.send_to_peer(context, csn, flags, Payload::Received(bytes));
            at = behind;
        }
        if !takes_new && over_window {
            self.probe_peer(context);
        }
        Ok(takes_new)
    }
}

impl Outbound {
    /// The position of a member's byte in the merged sequence, and the number of its
    /// bytes that follow there.
    pub(crate) fn place(&self, slot: u8, lsn: u64) -> Option<(u64, u64)> {
        let holds = |run: &&Run| run.member == slot && run.lsn <= lsn && lsn < run.lsn + run.length;
        // New bytes are in the last.
        let run = self.runs.iter().rev().find(holds)?;
        let skip = lsn - run.lsn;
        Some((run.csn + skip, run.length - skip))
    }
}
