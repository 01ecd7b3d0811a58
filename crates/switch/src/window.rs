//! Windows: what the peer may send, given the members' windows and the ring's room; and
//! what each member may send, given the peer's.

use crate::flow::{End, Flow, Inbound};
use crate::modules::Windows;
use crate::sequence::FIRST;

/// Frames over which sizes are averaged.
const MEAN_OF: u8 = 64;

/// How large frames are, by which a ring's room becomes bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    size: u32,
    count: u8,
}

impl Default for Mean {
    /// Small, until some have come: what was offered cannot be taken back, and is more
    /// than an initial window all the same.
    fn default() -> Self {
        Self { size: 64, count: 0 }
    }
}

impl Mean {
    /// A frame, or a run, of so many bytes came.
    pub(crate) fn add(&mut self, size: u32) {
        self.count = (self.count + 1).min(MEAN_OF);
        let count = u64::from(self.count);
        let sum = u64::from(self.size) * (count - 1) + u64::from(size);
        self.size = (sum / count).max(1) as u32;
    }

    /// Bytes of so many frames, less an eighth: the next ones may be smaller.
    fn bytes(self, frames: u64) -> u64 {
        frames * u64::from(self.size) * 7 / 8
    }

    /// How many frames so many bytes are.
    const fn frames(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.size as u64)
    }
}

impl Inbound {
    /// Places of the ring that stay free for what is missing before `end`: as many
    /// frames as that is if they are as large as others, half of the ring at most, and
    /// one at least. A ring without a place for the missing frame would never move on;
    /// with one, missing frames come through one after another.
    pub(crate) fn kept_free(&self, end: u64) -> u16 {
        let missing = self.holes.bytes_within(self.left, self.next) + (end - self.next);
        let most = (self.ring.limit() / 2).max(1);
        u16::try_from(self.mean.frames(missing)).map_or(most, |frames| frames.clamp(1, most))
    }
}

impl Flow {
    /// The right edge of what the peer may send: beyond what came, as much as the
    /// member with the least room takes, or all of them together, and no more than the
    /// ring has room for if frames stay as large as they are.
    ///
    /// The minimum never moves the edge back: a frame moves both it and its member's
    /// room by its length.
    pub(crate) fn peer_edge(&self) -> u64 {
        let inbound = &self.inbound;
        let holes = !inbound.holes.is_empty();
        let room = |end: &End| {
            let missing = if holes {
                inbound.holes.bytes_within(end.sink.covered, inbound.next)
            } else {
                0
            };
            end.sink.edge.saturating_sub(end.sink.next + missing)
        };
        let rooms = self.ends.iter().filter(|end| end.takes_frames()).map(room);
        let room = match inbound.windows {
            Windows::Minimum => rooms.min(),
            Windows::Sum => Some(rooms.sum()),
        };
        inbound.next + room.unwrap_or(0).min(self.ring_room())
    }

    /// Bytes that the inbound ring has room for, if frames stay as large as they are.
    pub(crate) fn ring_room(&self) -> u64 {
        let inbound = &self.inbound;
        let kept_free = match inbound.holes.is_empty() {
            true => 0,
            false => inbound.kept_free(inbound.next),
        };
        match u64::from(inbound.ring.room().saturating_sub(kept_free)) {
            0 => 0,
            // A window that no frame fits would stop the peer for good, also for what
            // the field rounds off.
            frames => {
                let unit = 1 << inbound.announced.scale;
                let least = u64::from(self.segment_size).next_multiple_of(unit);
                inbound.mean.bytes(frames).max(least)
            }
        }
    }

    /// The peer has little left of its window, and there is a segment more, or all that
    /// it can have: as a receiver avoids silly windows (RFC 9293 §3.8.6.2.2).
    pub(crate) fn window_is_worth_telling(&self) -> bool {
        let inbound = &self.inbound;
        let segment = u64::from(self.segment_size);
        let left = inbound.offered.saturating_sub(inbound.next);
        if left >= 2 * segment && left > inbound.offered.saturating_sub(inbound.left) / 2 {
            return false;
        }
        let edge = self.peer_edge();
        if inbound.announced.window == 0 && edge - inbound.next >= 2 * segment {
            return true;
        }
        let more = edge.saturating_sub(inbound.offered);
        let idle = inbound.left == inbound.next;
        more >= segment.max(left) || (left == 0 && idle && more > 0)
    }

    /// Divides the peer's window among the members that may send: each gets as much
    /// beyond what the peer has acknowledged of it, but all together no more than the
    /// peer has offered and nobody has been given. So edges do not go back when one
    /// member's bytes wait at the peer, and the peer is never sent more than it takes; but
    /// they do when one has used up less than its share, since others hold what they do not
    /// use.
    pub(crate) fn grant(&mut self) {
        if self.give() {
            self.regrant();
        }
    }

    /// Gives what is free. True if a member that has used its window up has less than its
    /// share, by a segment at least.
    fn give(&mut self) -> bool {
        let sources = || self.ends.iter().filter(|end| end.may_send());
        let count = sources().count() as u64;
        if count == 0 {
            return false;
        }
        let edge = self.members_edge(count);
        let outbound = &self.outbound;
        let share = edge.saturating_sub(outbound.acked) / count;
        let given: u64 = sources()
            .map(|end| end.source.edge.saturating_sub(end.source.next))
            .sum();
        let mut free = edge.saturating_sub(outbound.next + given);
        let segment = u64::from(self.peer_segment_size);
        let mut starves = false;
        for end in self.ends.iter_mut().filter(|end| end.may_send()) {
            let source = &mut end.source;
            let wanted = (source.acked + share).saturating_sub(source.edge).min(free);
            free -= wanted;
            source.edge += wanted;
            source.limit = source.limit.max(source.edge);
            let more = source.edge.saturating_sub(source.announced_edge);
            let left = source.announced_edge.saturating_sub(source.next);
            let unit = 1 << source.announced.scale;
            if left < segment {
                source.announced.due |= more >= unit;
                let waits = source.edge < source.next + segment;
                starves |= waits && source.edge + segment <= source.acked + share;
            } else if more >= segment {
                source.announced.due = true;
            }
        }
        starves
    }

    /// The right edge of what `count` members together may send: what the peer takes,
    /// and no more than there is room for runs if each segment of several members becomes
    /// one.
    fn members_edge(&self, count: u64) -> u64 {
        let outbound = &self.outbound;
        let runs = outbound.runs.len() as u64;
        let flight = outbound.next - outbound.acked;
        let segment = u64::from(self.peer_segment_size);
        let ring = match u64::from(outbound.limit).saturating_sub(runs) {
            0 => 0,
            // What one sends goes into one run.
            room if count == 1 => room * segment.max(flight),
            // A share that no frame fits would stop its member for good, also for what
            // the field rounds off.
            room => {
                let segments = if outbound.next == FIRST {
                    outbound.first
                } else {
                    1
                };
                let least = count * (segments * segment).next_multiple_of(outbound.unit);
                outbound.mean.bytes(room).max(least)
            }
        };
        outbound.edge.min(outbound.next + ring)
    }

    /// Takes back what members have been given over their share, so that one that came
    /// later, or waits for a window, gets its own. This moves edges back (RFC 9293 §3.8.6
    /// advises against it): what a member has sent meanwhile is taken if the peer's window
    /// has room for it.
    pub(crate) fn regrant(&mut self) {
        let count = self.ends.iter().filter(|end| end.may_send()).count() as u64;
        let whole = self.members_edge(count).saturating_sub(self.outbound.acked);
        if let Some(share) = whole.checked_div(count) {
            for end in self.ends.iter_mut().filter(|end| end.may_send()) {
                let source = &mut end.source;
                let edge = (source.acked + share).max(source.next);
                if edge < source.edge {
                    source.edge = edge;
                    source.announced.due = true;
                }
            }
        }
        self.give();
    }
}
