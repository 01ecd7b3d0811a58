//! Windows: what the peer may send, given the members' windows and the ring's room; and
//! what each member may send, given the peer's window.

use crate::flow::{End, Flow, Inbound};
use crate::modules::Windows;
use crate::sequence::FIRST;

/// Frames over which sizes are averaged.
const MEAN_OF: u8 = 64;

/// The mean size of frames, which converts a ring's room to bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    size: u32,
    count: u8,
}

impl Default for Mean {
    /// Small, until some have arrived: an offer cannot be withdrawn, and is still more
    /// than an initial window.
    fn default() -> Self {
        Self { size: 64, count: 0 }
    }
}

impl Mean {
    /// Records a frame, or a run, of this many bytes.
    pub(crate) fn add(&mut self, size: u32) {
        self.count = (self.count + 1).min(MEAN_OF);
        let count = u64::from(self.count);
        let sum = u64::from(self.size) * (count - 1) + u64::from(size);
        self.size = (sum / count).max(1) as u32;
    }

    /// Bytes of this many frames, less an eighth: the next ones may be smaller.
    fn bytes(self, frames: u64) -> u64 {
        frames * u64::from(self.size) * 7 / 8
    }

    /// The number of frames that this many bytes make.
    const fn frames(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.size as u64)
    }
}

impl Inbound {
    /// Places of the ring reserved for what is missing before `end`: as many frames as
    /// the missing bytes make at the mean size, at most half of the ring, and at least
    /// one. A ring without a place for the missing frame would never advance; with one,
    /// missing frames get through one after another.
    pub(crate) fn kept_free(&self, end: u64) -> u16 {
        let missing = self.holes.bytes_within(self.left, self.next) + (end - self.next);
        let most = (self.ring.limit() / 2).max(1);
        u16::try_from(self.mean.frames(missing)).map_or(most, |frames| frames.clamp(1, most))
    }
}

impl Flow {
    /// The right edge of what the peer may send. Beyond what arrived, it is as much as
    /// the member with the least room accepts, or all of them together. It is no more
    /// than the ring has room for at the present frame size.
    ///
    /// The minimum never moves the edge back: a frame moves both it and its member's room
    /// by its length.
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

    /// Bytes that the inbound ring has room for at the present frame size.
    pub(crate) fn ring_room(&self) -> u64 {
        let inbound = &self.inbound;
        let kept_free = match inbound.holes.is_empty() {
            true => 0,
            false => inbound.kept_free(inbound.next),
        };
        match u64::from(inbound.ring.room().saturating_sub(kept_free)) {
            0 => 0,
            // A window too small for a frame would stop the peer for good, also because
            // of the field's rounding.
            frames => {
                let unit = 1 << inbound.announced.scale;
                let least = u64::from(self.segment_size).next_multiple_of(unit);
                inbound.mean.bytes(frames).max(least)
            }
        }
    }

    /// The peer has little left of its window, and there is a segment more, or all that
    /// it can have. This is how a receiver avoids silly windows (RFC 9293 §3.8.6.2.2).
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

    /// Divides the peer's window among the members that may send. Each gets as much
    /// beyond what the peer has acknowledged of it. Together they get no more than the
    /// part of the peer's offer that is not granted yet. A member's right edge never
    /// retreats while its bytes are queued at the peer, and the peer is never sent more
    /// than it accepts. It does retreat when a member has used up less than its share,
    /// since others hold what they do not use.
    pub(crate) fn grant(&mut self) {
        if self.give() {
            self.regrant();
        }
    }

    /// Grants what is free. True if a member that has used up its window has less than
    /// its share, by at least a segment.
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

    /// The right edge of what `count` members together may send. It is what the peer
    /// accepts, and no more than there is room for runs if each segment of several
    /// members becomes one.
    fn members_edge(&self, count: u64) -> u64 {
        let outbound = &self.outbound;
        let runs = outbound.runs.len() as u64;
        let flight = outbound.next - outbound.acked;
        let segment = u64::from(self.peer_segment_size);
        let ring = match u64::from(outbound.limit).saturating_sub(runs) {
            0 => 0,
            // A single member's bytes go into one run.
            room if count == 1 => room * segment.max(flight),
            // A share too small for a frame would stop its member for good, also because
            // of the field's rounding.
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

    /// Takes back what members were granted over their share, so that one that joined
    /// later, or waits for a window, gets its own. This moves edges back (RFC 9293 §3.8.6
    /// advises against it). Bytes that a member has sent meanwhile are accepted if the
    /// peer's window has room for them.
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
