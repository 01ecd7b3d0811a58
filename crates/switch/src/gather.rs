//! Joins the output of several received segments for one connection into one segment.

use std::collections::VecDeque;

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::{Flags, Header};

use crate::emission::{Emission, Payload};

/// Maximum number of connections with waiting segments; segments for others leave at
/// once.
const WAITING_MAX: usize = 16;

/// A segment that has waited for others.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// From `local` to `remote`.
    pub flow: FourTuple,
    /// The whole TCP header.
    pub header: Header,
    /// Whole frames, or nothing.
    pub payload: Vec<u8>,
    /// Type of service or traffic class of the received segment.
    pub traffic_class: u8,
    /// For the driver: the queue on which the first part arrived.
    pub queue: usize,
}

impl Gathered {
    /// Joins a segment that follows directly, or acknowledges as much or more; false if
    /// it does neither.
    fn join(&mut self, next: &Header, parts: &[Emission], received: Pieces<'_>, class: u8) -> bool {
        let end = self.header.sequence.wrapping_add(self.payload.len() as u32);
        let length = length(parts);
        let room = parts.iter().map(|part| part.room.into()).min().unwrap_or(0);
        if next.sequence != end
            || !acknowledges(next, &self.header)
            || length > 0 && !self.payload.is_empty() && class != self.traffic_class
            || self.payload.len() + length > room
        {
            return false;
        }
        if length > 0 {
            self.traffic_class = class;
        }
        self.header.acknowledgment = next.acknowledgment;
        self.header.window = next.window;
        self.header.flags |= next.flags;
        append(&mut self.payload, parts, received);
        true
    }
}

/// Small segments of one batch. A segment to a member or the peer costs every host on its
/// way as much as a long one. So a small one waits, until the batch ends, for those that
/// follow it on the same connection, and shares their segment. If acknowledgments
/// advance, the last one is enough (RFC 5681 §4.2 also has receivers send fewer than one
/// per segment). The order of a connection's segments is kept.
///
/// The driver decides which segments are received in one batch; the machine does not
/// know.
#[derive(Debug, Default)]
pub struct Gather {
    waiting: VecDeque<Gathered>,
    /// Kept for reuse of their memory.
    buffers: Vec<Vec<u8>>,
}

impl Gather {
    /// Takes a segment, a header and the emissions whose payloads it carries
    /// ([`segments`](crate::segments)), if it may wait. An earlier segment of its
    /// connection that it does not join must leave first, and then the segment itself if
    /// it was not taken (`false`). `queue` is for the driver.
    pub fn put(
        &mut self,
        header: &Header,
        parts: &[Emission],
        received: Pieces<'_>,
        traffic_class: u8,
        queue: usize,
    ) -> (Option<Gathered>, bool) {
        let Some(flow) = parts.first().map(|first| first.flow) else {
            return (None, true);
        };
        let waits = may_wait(header, parts);
        let mut of_flow = self.waiting.iter_mut().filter(|it| is_of(it, &flow));
        if waits
            && let Some(earlier) = of_flow.next()
            && earlier.join(header, parts, received, traffic_class)
        {
            return (None, true);
        }
        let earlier = self.release(header, parts);
        if !waits || self.waiting.len() >= WAITING_MAX {
            return (earlier, false);
        }
        let mut payload = self.buffers.pop().unwrap_or_default();
        append(&mut payload, parts, received);
        self.waiting.push_back(Gathered {
            flow,
            header: *header,
            traffic_class: if payload.is_empty() { 0 } else { traffic_class },
            payload,
            queue,
        });
        (earlier, true)
    }

    /// The waiting segment of a connection that must leave before another that does not
    /// wait. `None` also for an acknowledgment that the other segment's data also
    /// carries.
    pub fn release(&mut self, header: &Header, parts: &[Emission]) -> Option<Gathered> {
        let flow = &parts.first()?.flow;
        let place = self.waiting.iter().position(|it| is_of(it, flow))?;
        let earlier = self.waiting.remove(place)?;
        let is_said = earlier.payload.is_empty()
            && earlier.header.sequence == header.sequence
            && is_plain(header)
            && length(parts) > 0
            && acknowledges(header, &earlier.header);
        if is_said {
            self.give_back(earlier);
            return None;
        }
        Some(earlier)
    }

    /// After the end of a batch: the segments, oldest first.
    pub fn pop(&mut self) -> Option<Gathered> {
        self.waiting.pop_front()
    }

    /// Returns one that has left.
    pub fn give_back(&mut self, gathered: Gathered) {
        let mut payload = gathered.payload;
        payload.clear();
        self.buffers.push(payload);
    }
}

/// Carries only data or an acknowledgment.
fn is_plain(header: &Header) -> bool {
    let others = Flags::FIN | Flags::SYN | Flags::RST | Flags::URG | Flags::ECE | Flags::CWR;
    header.flags.contains(Flags::ACK)
        && !header.flags.intersects(others)
        && header.options.is_empty()
}

/// A null frame keeps its bounds, and so its segment.
fn may_wait(header: &Header, parts: &[Emission]) -> bool {
    is_plain(header)
        && parts
            .iter()
            .all(|part| part.room > 0 && !matches!(part.payload, Payload::Null(_)))
}

/// Acknowledges what `earlier` does, or more.
fn acknowledges(header: &Header, earlier: &Header) -> bool {
    header.acknowledgment.wrapping_sub(earlier.acknowledgment) < 1 << 31
}

fn is_of(gathered: &Gathered, flow: &FourTuple) -> bool {
    // Ports differ most often.
    let ports = |it: &FourTuple| (it.local.port(), it.remote.port());
    ports(&gathered.flow) == ports(flow) && gathered.flow == *flow
}

fn length(parts: &[Emission]) -> usize {
    parts.iter().map(|part| part.payload.len()).sum()
}

/// Appends the parts of the received payload to `payload`.
pub fn append(payload: &mut Vec<u8>, parts: &[Emission], received: Pieces<'_>) {
    for part in parts {
        if let Payload::Received(range) = &part.payload {
            let part = received.get(range.clone()).unwrap_or(Pieces::EMPTY);
            part.append_to(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment that carries the first received bytes.
    fn segment(sequence: u32, ack: u32, flags: Flags, length: usize) -> Emission {
        let flow = FourTuple {
            local: "10.0.0.1:61000".parse().unwrap(),
            remote: "10.0.0.2:6379".parse().unwrap(),
        };
        Emission {
            flow,
            header: Header {
                source_port: 61_000,
                destination_port: 6379,
                sequence,
                acknowledgment: ack,
                flags: flags | Flags::ACK,
                window: ack as u16,
                ..Header::default()
            },
            payload: match length {
                0 => Payload::None,
                _ => Payload::Received(0..length),
            },
            room: 10,
        }
    }

    const QUEUE: usize = 7;
    const CLASS: u8 = 3;

    /// Returns what left before a segment, and whether it was taken.
    fn put(gather: &mut Gather, emission: &Emission, received: &[u8]) -> (Option<Gathered>, bool) {
        let parts = std::slice::from_ref(emission);
        gather.put(&emission.header, parts, received.into(), CLASS, QUEUE)
    }

    fn joins(gather: &mut Gather, emission: &Emission, received: &[u8]) {
        let waiting = gather.waiting.len();
        assert!(matches!(put(gather, emission, received), (None, true)));
        assert_eq!(gather.waiting.len(), waiting);
    }

    /// A segment with two bytes waits, and leaves before this one.
    fn does_not_join(emission: &Emission, received: &[u8], is_taken: bool) {
        let mut gather = Gather::default();
        let first = segment(1, 9, Flags::NONE, 2);
        assert!(matches!(put(&mut gather, &first, b"ab"), (None, true)));
        let (earlier, taken) = put(&mut gather, emission, received);
        assert_eq!(earlier.map(|it| it.payload), Some(b"ab".to_vec()));
        assert_eq!(taken, is_taken);
        assert_eq!(gather.pop().is_some(), taken);
    }

    #[test]
    fn what_follows_shares_a_segment_as_long_as_its_receiver_takes() {
        let mut gather = Gather::default();
        // Across the end of the sequence numbers; an acknowledgment first.
        let first = segment(u32::MAX - 1, 7, Flags::NONE, 0);
        assert!(matches!(put(&mut gather, &first, b""), (None, true)));
        joins(
            &mut gather,
            &segment(u32::MAX - 1, 8, Flags::NONE, 3),
            b"one",
        );
        joins(&mut gather, &segment(1, 9, Flags::PSH, 3), b"two");
        joins(&mut gather, &segment(4, 10, Flags::NONE, 0), b"");
        joins(&mut gather, &segment(4, 10, Flags::NONE, 4), b"four");
        let Gathered {
            flow,
            header,
            payload,
            traffic_class,
            queue,
        } = gather.pop().unwrap();
        assert_eq!((flow, &payload[..]), (first.flow, &b"onetwofour"[..]));
        assert_eq!((traffic_class, queue), (CLASS, QUEUE));
        let expected = Header {
            flags: Flags::ACK | Flags::PSH,
            ..segment(u32::MAX - 1, 10, Flags::NONE, 0).header
        };
        assert_eq!(header, expected);
        assert!(gather.pop().is_none());
    }

    #[test]
    fn what_does_not_follow_leaves_behind_what_waits() {
        // Not adjacent, too long, older, or marked to be counted.
        does_not_join(&segment(4, 9, Flags::NONE, 1), b"x", true);
        does_not_join(&segment(3, 9, Flags::NONE, 9), b"too long", true);
        does_not_join(&segment(3, 8, Flags::NONE, 1), b"x", true);
        does_not_join(&segment(3, 9, Flags::FIN, 0), b"", false);
        let mut null = segment(3, 9, Flags::NONE, 0);
        null.payload = Payload::Null(4);
        does_not_join(&null, b"", false);
        let mut duplicate = segment(3, 9, Flags::NONE, 0);
        duplicate.room = 0;
        does_not_join(&duplicate, b"", false);
        let mut gather = Gather::default();
        let first = segment(1, 9, Flags::NONE, 2);
        assert!(matches!(put(&mut gather, &first, b"ab"), (None, true)));
        let next = segment(3, 9, Flags::NONE, 1);
        let parts = std::slice::from_ref(&next);
        let (earlier, _) = gather.put(&next.header, parts, b"c"[..].into(), CLASS + 1, QUEUE);
        assert!(earlier.is_some(), "another class");
        // A segment of another connection leaves the waiting one alone.
        let mut other = segment(4, 9, Flags::FIN, 0);
        other.flow.remote.set_port(1);
        assert!(matches!(put(&mut gather, &other, b""), (None, false)));
    }

    #[test]
    fn an_acknowledgment_that_the_next_segment_repeats_does_not_leave() {
        let ack = segment(1, 7, Flags::NONE, 0);
        let leaves = |next: &Emission| {
            let mut gather = Gather::default();
            assert!(matches!(put(&mut gather, &ack, b""), (None, true)));
            let parts = std::slice::from_ref(next);
            gather.release(&next.header, parts).is_some()
        };
        assert!(!leaves(&segment(1, 7, Flags::NONE, 11)));
        // A segment that is not adjacent, older or empty does not replace it.
        assert!(leaves(&segment(2, 7, Flags::NONE, 11)));
        assert!(leaves(&segment(1, 6, Flags::NONE, 11)));
        assert!(leaves(&ack));
    }

    #[test]
    fn so_many_connections_wait_and_no_more() {
        let mut gather = Gather::default();
        for port in 0..=WAITING_MAX as u16 {
            let mut one = segment(0, 0, Flags::NONE, 1);
            one.flow.remote.set_port(port);
            let (earlier, taken) = put(&mut gather, &one, b"x");
            assert!(earlier.is_none());
            assert_eq!(taken, port < WAITING_MAX as u16);
        }
        for port in 0..WAITING_MAX as u16 {
            let gathered = gather.pop().unwrap();
            assert_eq!(gathered.flow.remote.port(), port);
            gather.give_back(gathered);
        }
        assert!(gather.pop().is_none());
    }
}
