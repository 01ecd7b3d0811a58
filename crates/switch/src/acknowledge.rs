//! Acknowledgments: the peer receives the minimum over the members, and each member what
//! the peer has acknowledged of its own bytes.

use crate::flow::{Context, Flow, Reset, Stage};
use crate::gaps::Fate;
use crate::ring::NIL;
use crate::sequence::FIRST;

/// Number of duplicates that indicate a loss (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;

impl Flow {
    /// Handles a member's acknowledgment up to `ack`, which is no more than it was sent.
    /// `alone`: the segment carries nothing else.
    pub(crate) fn acknowledged_by_member(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        ack: u64,
        window: u16,
        alone: bool,
    ) -> Result<(), Reset> {
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        let sink = &mut end.sink;
        if ack < sink.acked {
            return Ok(());
        }
        let edge = ack + (u64::from(window) << sink.scale);
        let opened = edge > sink.edge;
        sink.edge = sink.edge.max(edge);
        if ack == sink.acked {
            let outstanding = sink.acked < sink.send_next();
            if alone && outstanding && !opened {
                self.duplicate_of_member(context, slot);
            } else if opened {
                let view = end.view(usize::from(slot));
                self.notify(|module| module.ack(view))?;
            }
            return Ok(());
        }
        sink.acked = ack;
        sink.duplicates = 0;
        sink.gaps.acknowledge(ack);
        if sink.fin.is_some_and(|fin| ack > fin) && !sink.fin_acked {
            sink.fin_acked = true;
            end.retry = None;
            context.rearm = true;
            self.inbound.announced.due |= self.fin_is_through();
        }
        while let Some(frame) = self
            .ends
            .get_mut(usize::from(slot))
            .and_then(|end| self.inbound.ring.acknowledge(&mut end.sink.chain, ack))
        {
            if frame.csn < self.inbound.horizon {
                self.acknowledged_below_horizon(&frame);
            }
            self.notify(|module| module.retire(crate::MemberId(slot), frame.state))?;
        }
        if let Some(end) = self.ends.get(usize::from(slot)) {
            let view = end.view(usize::from(slot));
            self.notify(|module| module.ack(view))?;
        }
        if !self.advance() {
            context.counters.acknowledgments_delayed += 1;
        }
        Ok(())
    }

    /// Moves the peer's acknowledgment to the oldest frame that its member has not
    /// acknowledged, or that is missing. True if it moved.
    pub(crate) fn advance(&mut self) -> bool {
        let before = self.inbound.left;
        while let Some(frame) = self.inbound.ring.pop_acknowledged(self.inbound.left) {
            self.inbound.left = frame.csn_end();
        }
        let left = self.inbound.left;
        if left == before {
            return false;
        }
        self.inbound.announced.due = true;
        self.inbound.blocks.acknowledge(left);
        if self.sack {
            self.ask_for_abandoned();
            return true;
        }
        // The peer must now receive what was withheld while another member was behind.
        let mut duplicates = 0;
        for slot in self.slots(|end| end.sink.duplicates > 0) {
            if self.position_of_member(slot) == Some(left)
                && let Some(end) = self.end(slot)
            {
                duplicates = duplicates.max(core::mem::take(&mut end.sink.duplicates));
            }
        }
        self.inbound.announced.duplicates = duplicates.min(DUPLICATES);
        self.ask_for_abandoned();
        true
    }

    /// Asks the peer to repeat a frame that a dead member left behind, if the peer waits
    /// for it: by duplicates, or by blocks of what lies beyond it. The peer learns what
    /// else to repeat from the acknowledgment of that frame (RFC 6582's partial ones). So
    /// it is not asked again before everything that it has sent so far is acknowledged.
    pub(crate) fn ask_for_abandoned(&mut self) {
        let inbound = &mut self.inbound;
        let left = inbound.left;
        if left >= inbound.asked && inbound.abandoned.contains(&left) {
            inbound.asked = inbound.next;
            inbound.announced.due = true;
            if self.sack {
                self.report_all();
            } else {
                inbound.announced.duplicates = DUPLICATES;
            }
        }
        self.inbound.abandoned.retain(|&start| start > left);
    }

    /// The position in the peer's sequence that a member waits for; `None` if it waits
    /// for a null frame, or nothing.
    fn position_of_member(&self, slot: u8) -> Option<u64> {
        let sink = &self.ends.get(usize::from(slot))?.sink;
        match sink.gaps.at(sink.acked) {
            Some(gap) if gap.fate == Fate::Pending => Some(gap.csn + (sink.acked - gap.lsn)),
            Some(_) => None,
            None => {
                let head = self.inbound.ring.head(&sink.chain)?;
                (head.lsn <= sink.acked).then_some(head.csn)
            }
        }
    }

    /// Handles a member's duplicate acknowledgment. If the peer's acknowledgment also
    /// stands at those bytes, the peer receives the duplicate and can repeat them, unless
    /// blocks report more. If the member waits for a null frame, the switch repeats that.
    fn duplicate_of_member(&mut self, context: &mut Context<'_>, slot: u8) {
        let Some(end) = self.end(slot) else {
            return;
        };
        let sink = &mut end.sink;
        sink.duplicates = sink.duplicates.saturating_add(1);
        let duplicates = sink.duplicates;
        let void = sink
            .gaps
            .at(sink.acked)
            .filter(|gap| gap.fate == Fate::Void);
        if let Some(gap) = void {
            if duplicates.is_multiple_of(DUPLICATES) {
                if self.sack {
                    self.repeat_lost_voids(context, slot);
                } else {
                    self.send_void(context, slot, gap);
                }
            }
        } else if !self.sack && self.position_of_member(slot) == Some(self.inbound.left) {
            if let Some(end) = self.end(slot) {
                end.sink.duplicates = 0;
            }
            let announced = &mut self.inbound.announced;
            announced.duplicates = announced.duplicates.saturating_add(1);
        } else {
            context.counters.acknowledgments_delayed += 1;
        }
    }

    /// Handles the peer's acknowledgment up to `ack`, which is no more than it was sent.
    pub(crate) fn acknowledged_by_peer(
        &mut self,
        context: &mut Context<'_>,
        ack: u64,
        window: u16,
        alone: bool,
    ) -> Result<(), Reset> {
        let outbound = &mut self.outbound;
        if ack < outbound.acked {
            return Ok(());
        }
        let edge = ack + (u64::from(window) << outbound.scale);
        let opened = edge > outbound.edge;
        outbound.edge = outbound.edge.max(edge);
        if ack == outbound.acked {
            if alone && !opened && !outbound.runs.is_empty() {
                self.duplicate_of_peer(context)?;
            } else if opened {
                self.grant();
            }
            return Ok(());
        }
        outbound.duplicates = 0;
        let through = outbound.fin.is_some_and(|fin| ack > fin);
        let data = ack - u64::from(through);
        while let Some(run) = outbound.runs.front_mut()
            && run.csn < data
        {
            let length = run.length.min(data - run.csn);
            let slot = run.member;
            run.csn += length;
            run.lsn += length;
            run.length -= length;
            if run.length == 0 {
                outbound.runs.pop_front();
            }
            let Some(end) = self.ends.get_mut(usize::from(slot)) else {
                continue;
            };
            let source = &mut end.source;
            let first = source.unseen.first();
            source.acked += length;
            source.blocks.acknowledge(source.acked);
            source.announced.due = true;
            if first.is_some_and(|first| first.start < source.acked) {
                // Null frames replace what a dead member never sent.
                if end.stage != Stage::Dead {
                    return Err(Reset::Acknowledgment);
                }
                source.unseen.remove(FIRST, source.acked);
            }
        }
        outbound.acked = data;
        if through && !outbound.fin_acked {
            outbound.fin_acked = true;
            self.retry = None;
            context.rearm = true;
            if let Some(owner) = outbound.fin_owner
                && let Some(end) = self.ends.get_mut(usize::from(owner))
            {
                end.source.announced.due = true;
            }
        }
        self.grant();
        self.finish_dead(context);
        for slot in self.slots(|end| end.draining) {
            self.finish_drained(context, slot);
        }
        Ok(())
    }

    /// Handles the peer's duplicate acknowledgment: the member whose bytes these are
    /// receives it, unless blocks report more.
    fn duplicate_of_peer(&mut self, context: &mut Context<'_>) -> Result<(), Reset> {
        let sack = self.sack;
        let outbound = &mut self.outbound;
        outbound.duplicates = outbound.duplicates.saturating_add(1);
        let duplicates = outbound.duplicates;
        let Some(&run) = outbound.runs.front() else {
            return Ok(());
        };
        let Some(end) = self.end(run.member) else {
            return Ok(());
        };
        if end.stage != Stage::Dead {
            if !sack {
                let announced = &mut end.source.announced;
                announced.duplicates = announced.duplicates.saturating_add(1);
            }
            return Ok(());
        }
        let missing = end.source.unseen.first();
        if missing.is_some_and(|missing| missing.start == run.lsn) {
            if duplicates.is_multiple_of(DUPLICATES) {
                self.send_nulls_of_dead(context, run.member);
            }
            Ok(())
        } else if duplicates >= DUPLICATES {
            // It has lost bytes that no end can repeat.
            Err(Reset::Member)
        } else {
            Ok(())
        }
    }
}

const _: () = assert!(
    NIL > i16::MAX as u16,
    "a ring's slots are below the end of chains"
);
