//! Closing of a connection: the peer's FIN goes to every member, and the members' FINs
//! are merged into one towards the peer.

use tidewall_wire::tcp::Flags;

use crate::emission::Payload;
use crate::flow::{Context, Flow, Phase, RETRY_FIRST, Reset, Stage};
use crate::split::may_be_frames;

impl Flow {
    /// Records the peer's FIN at `at`.
    pub(crate) fn peer_fin(&mut self, context: &mut Context<'_>, at: u64) {
        let inbound = &mut self.inbound;
        match inbound.fin {
            Some(fin) if fin == at => {
                // Again, for those that have not acknowledged it.
                inbound.announced.due = true;
                let missing = |end: &crate::flow::End| {
                    end.stage == Stage::Open && end.sink.fin.is_some() && !end.sink.fin_acked
                };
                for slot in self.slots(missing) {
                    self.send_fin(context, slot);
                }
            }
            // It follows dropped frames, and will be repeated after them.
            None if at >= inbound.next
                && at <= inbound.offered
                && may_be_frames(at - inbound.next) =>
            {
                inbound.fin = Some(at);
                context.rearm = true;
                if at > inbound.next {
                    inbound.holes.insert(inbound.next, at);
                    inbound.next = at;
                }
            }
            _ => {
                context.counters.dropped_unacceptable += 1;
                inbound.announced.due = true;
            }
        }
    }

    /// Sends or repeats our FIN to a member.
    pub(crate) fn send_fin(&mut self, context: &mut Context<'_>, slot: u8) {
        if let Some(end) = self.end(slot) {
            let lsn = *end.sink.fin.get_or_insert(end.sink.next);
            self.repeat_voids(context, slot, lsn);
            self.send_to_member(context, slot, lsn, Flags::FIN, Payload::None);
        }
    }

    /// Records a member's FIN at `at`. It is acknowledged as soon as the peer has
    /// everything before it. Only the last member's FIN waits for the peer's
    /// acknowledgment of the FIN itself.
    pub(crate) fn member_fin(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        at: u64,
    ) -> Result<(), Reset> {
        let outbound = &mut self.outbound;
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        let source = &mut end.source;
        source.announced.due = true;
        match source.fin {
            Some(fin) if fin == at => {
                if outbound.fin_owner == Some(slot) && !outbound.fin_acked {
                    let fin = outbound.fin.unwrap_or(outbound.next);
                    self.send_to_peer(context, fin, Flags::FIN, Payload::None);
                }
                Ok(())
            }
            // After a gap it will be repeated, when its place is known.
            None if at == source.next => {
                source.fin = Some(at);
                context.rearm = true;
                self.merge_fins(context, Some(slot));
                self.grant();
                Ok(())
            }
            _ => {
                context.counters.dropped_unacceptable += 1;
                Ok(())
            }
        }
    }

    /// Sends the peer a FIN once every member has sent one; `last` is the member whose
    /// FIN arrived last.
    pub(crate) fn merge_fins(&mut self, context: &mut Context<'_>, last: Option<u8>) {
        let sending = |end: &crate::flow::End| match end.stage {
            Stage::Open => end.source.fin.is_none(),
            Stage::Connecting | Stage::Answered => true,
            Stage::Absent | Stage::Dead => false,
        };
        if self.phase != Phase::Open || self.outbound.fin.is_some() || self.any(sending) {
            return;
        }
        let fin = self.outbound.next;
        self.outbound.fin = Some(fin);
        self.outbound.fin_owner = last;
        if last.is_none() {
            self.retry = Some((context.now + RETRY_FIRST, 0));
        }
        context.rearm = true;
        self.send_to_peer(context, fin, Flags::FIN, Payload::None);
    }

    /// Passes the peer's FIN on when nothing is missing before it, and detects that both
    /// directions are closed.
    pub(crate) fn look_for_end(&mut self, context: &mut Context<'_>) {
        let Some(fin) = self.inbound.fin else {
            return;
        };
        if self.phase != Phase::Open {
            return;
        }
        if self.inbound.next == fin && self.inbound.holes.is_empty() {
            for slot in self.slots(|end| end.stage == Stage::Open && end.sink.fin.is_none()) {
                self.send_fin(context, slot);
            }
        }
        if self.outbound.fin_acked && self.fin_is_through() {
            self.phase = Phase::Closed;
            self.since = context.now;
            self.retry = None;
            self.module = None;
            self.inbound.ring.clear();
            for end in &mut self.ends {
                (end.retry, end.until) = (None, None);
            }
            context.rearm = true;
        }
    }
}
