//! An external model of what the switch may do, checked at each of its segments.

use std::collections::{BTreeMap, HashMap};

use tidewall_protocol::tcp::FourTuple;
use tidewall_switch::{Emission, Payload};
use tidewall_wire::acp::Frames;
use tidewall_wire::tcp::{Flags, Header};

use super::end::Packet;

/// A frame of the peer that a member was given.
#[derive(Debug)]
struct Given {
    member: FourTuple,
    lsn: u32,
    length: u32,
}

impl Given {
    fn is_acknowledged(&self, acked: &HashMap<FourTuple, u32>) -> bool {
        let acked = acked.get(&self.member).copied().unwrap_or(self.lsn);
        acked.wrapping_sub(self.lsn.wrapping_add(self.length)) < 1 << 31
    }
}

/// How often a frame was taken back from a member, to go to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Because the member died.
    pub dead: u32,
    /// From a living one: a null frame replaces it there.
    pub living: u32,
}

/// One direction of a connection from its SYN on: each byte that was ever sent in it.
#[derive(Default)]
struct Sent {
    initial: u32,
    /// The last acknowledgment.
    acked: u32,
    bytes: Vec<Option<u8>>,
}

impl Sent {
    fn forget(&mut self, sequence: u32, length: usize) {
        let at = sequence.wrapping_sub(self.initial) as usize;
        self.bytes[at..at + length].fill(None);
    }

    /// Checks that each byte is the same each time.
    fn check(&mut self, sequence: u32, payload: &[u8], flow: &FourTuple) {
        let at = sequence.wrapping_sub(self.initial) as usize;
        assert!(at < 1 << 28, "a sequence number from before the SYN");
        if self.bytes.len() < at + payload.len() {
            self.bytes.resize(at + payload.len(), None);
        }
        for (place, &byte) in self.bytes[at..].iter_mut().zip(payload) {
            assert!(
                place.is_none_or(|was| was == byte),
                "other bytes on {flow:?}"
            );
            *place = Some(byte);
        }
    }
}

/// The data that an end has reported as received: up to its acknowledgment, and in SACK
/// blocks.
#[derive(Default)]
struct Held {
    /// Its own initial sequence number.
    initial: u32,
    acked: u32,
    bytes: Vec<bool>,
}

impl Held {
    fn take(&mut self, header: &Header, initial: u32) {
        let acked = header.acknowledgment.wrapping_sub(initial);
        self.acked = self.acked.max(acked);
        for &(first, end) in header.options.sack.as_slice() {
            let place = first.wrapping_sub(initial) as usize..end.wrapping_sub(initial) as usize;
            if self.bytes.len() < place.end {
                self.bytes.resize(place.end, false);
            }
            self.bytes[place].fill(true);
        }
    }

    fn holds(&self, start: u32, end: u32) -> bool {
        (start..end).all(|at| at < self.acked || self.bytes.get(at as usize) == Some(&true))
    }
}

/// The model of one peer's connection.
#[derive(Default)]
pub struct Model {
    /// The data that the switch has sent, by connection.
    sent: HashMap<FourTuple, Sent>,
    /// The members' acknowledgments.
    acked: HashMap<FourTuple, u32>,
    /// Frames whose acknowledgment has not been sent to the peer.
    given: BTreeMap<u32, Given>,
    /// The data that each end has reported as received, by the start of its connection.
    held: HashMap<FourTuple, Held>,
    /// The peer's connection, seen from the switch.
    peer: Option<FourTuple>,
    /// Positions of members' frames in the merged sequence: by member and position there,
    /// the position here and length; both from the SYNs on.
    merged: HashMap<FourTuple, BTreeMap<u32, (u32, u32)>>,
    /// Places where null frames must follow instead.
    former: Vec<Given>,
    peer_initial: u32,
    /// The acknowledgment to the peer, and the position of its FIN; counted from its SYN.
    through: u32,
    peer_fin: Option<u32>,
    /// By the frame's start, counted from the peer's SYN.
    taken: HashMap<u32, Taken>,
    /// Frames that a member had acknowledged when it died: their starts and lengths.
    finished: BTreeMap<u32, u32>,
    pub null_frames: u64,
    /// The module permits sending frames again, to others.
    pub resends: bool,
}

impl Model {
    /// Records connections to a member that died. Unacknowledged frames may go elsewhere,
    /// and are not acknowledged to the peer before they did.
    pub fn kill(&mut self, connections: &[FourTuple]) {
        let acked = &self.acked;
        let finished = &mut self.finished;
        self.given.retain(|&csn, given| {
            let dies = connections.contains(&given.member);
            if dies && given.is_acknowledged(acked) {
                finished.insert(csn, given.length);
            } else if dies {
                self.taken.entry(csn).or_default().dead += 1;
            }
            !dies
        });
        for flow in connections {
            self.sent.remove(flow);
            self.acked.remove(flow);
            self.held.remove(flow);
            self.merged.remove(flow);
        }
    }

    /// How often the frame that starts here, counted from the peer's SYN, was taken back.
    pub fn taken(&self, csn: u32) -> Taken {
        self.taken.get(&csn).copied().unwrap_or_default()
    }

    /// Records that a frame goes from a living member to another, or is about to.
    fn take_from_living(&mut self, csn: u32) {
        self.taken.entry(csn).or_default().living += 1;
    }

    /// Records a packet passed to the switch.
    pub fn input(&mut self, packet: &Packet, from_peer: bool) {
        if from_peer && packet.header.flags.contains(Flags::SYN) {
            self.peer_initial = packet.header.sequence;
        }
        let held = self.held.entry(packet.flow).or_default();
        if packet.header.flags.contains(Flags::SYN) {
            held.initial = packet.header.sequence;
        }
        if packet.header.flags.contains(Flags::ACK)
            && let Some(sent) = self.sent.get(&packet.flow)
        {
            held.take(&packet.header, sent.initial);
        }
        if from_peer {
            self.peer = Some(packet.flow);
            if packet.header.flags.contains(Flags::FIN) {
                let end = packet
                    .header
                    .sequence
                    .wrapping_add(packet.payload.len() as u32);
                self.peer_fin = Some(end.wrapping_sub(self.peer_initial));
            }
        }
        if !from_peer && packet.header.flags.contains(Flags::ACK) {
            let ack = packet.header.acknowledgment;
            let known = self.acked.entry(packet.flow).or_insert(ack);
            if ack.wrapping_sub(*known) < 1 << 31 {
                *known = ack;
            }
        }
    }

    /// Checks an emission of the switch, in answer to a packet if there was one.
    pub fn output(
        &mut self,
        emission: &Emission,
        bytes: &[u8],
        answered: Option<&Packet>,
        to_peer: bool,
    ) {
        let (flow, header) = (&emission.flow, &emission.header);
        if header.flags.contains(Flags::RST) {
            return;
        }
        let sent = self.sent.entry(*flow).or_default();
        if header.flags.contains(Flags::SYN) {
            sent.initial = header.sequence;
        }
        for frame in Frames::new(bytes) {
            frame.expect("segments hold whole frames");
        }
        if self.resends && matches!(emission.payload, Payload::Null(_)) {
            // In place of a frame that the peer must repeat as a whole.
            let place = (*flow, header.sequence, bytes.len() as u32);
            let is = |given: &Given| (given.member, given.lsn, given.length) == place;
            let here = self.given.iter().find(|(_, given)| is(given));
            let here = here.map(|(&csn, _)| csn);
            if here.is_some() || self.former.iter().any(is) {
                sent.forget(header.sequence, bytes.len());
            }
            if let Some(csn) = here {
                self.given.remove(&csn);
                self.take_from_living(csn);
            }
        }
        let sent = self.sent.entry(*flow).or_default();
        sent.check(header.sequence, bytes, flow);
        self.null_frames += u64::from(matches!(emission.payload, Payload::Null(_)));
        assert!(
            bytes.is_empty() || header.options.sack.is_empty(),
            "no room for blocks"
        );
        if !header.flags.contains(Flags::SYN) {
            self.reported(emission, to_peer);
        }
        if to_peer && let (Payload::Received(range), Some(packet)) = (&emission.payload, answered) {
            let from = &self.held[&packet.flow];
            let lsn = packet.header.sequence.wrapping_sub(from.initial) + range.start as u32;
            let csn = header.sequence.wrapping_sub(self.sent[flow].initial);
            let merged = self.merged.entry(packet.flow).or_default();
            for frame in Frames::new(bytes) {
                let frame = frame.expect("whole");
                let at = frame.offset as u32;
                merged.insert(lsn + at, (csn + at, frame.size() as u32));
            }
        }
        if to_peer {
            self.acknowledge_to_peer(header.acknowledgment);
        } else if let (Payload::Received(range), Some(packet)) = (&emission.payload, answered) {
            for frame in Frames::new(bytes) {
                let frame = frame.expect("whole");
                let csn = packet
                    .header
                    .sequence
                    .wrapping_add((range.start + frame.offset) as u32);
                self.given_to_member(
                    csn,
                    *flow,
                    header.sequence.wrapping_add(frame.offset as u32),
                    frame.size() as u32,
                );
            }
        }
    }

    /// Acknowledgments do not decrease, and blocks contain only data that ends have
    /// reported, beyond the acknowledgment.
    fn reported(&mut self, emission: &Emission, to_peer: bool) {
        let header = &emission.header;
        let end_initial = self.held[&emission.flow].initial;
        let acked = header.acknowledgment.wrapping_sub(end_initial);
        let sent = self.sent.entry(emission.flow).or_default();
        assert!(
            acked >= sent.acked,
            "{acked} acknowledged after {}",
            sent.acked
        );
        sent.acked = acked;
        for &(first, end) in header.options.sack.as_slice() {
            let (first, end) = (
                first.wrapping_sub(end_initial),
                end.wrapping_sub(end_initial),
            );
            assert!(acked < first && first < end, "{acked}: {first} to {end}");
            let mut at = first;
            while at < end {
                at = if to_peer && let Some(length) = self.finished.get(&at) {
                    at + length
                } else if to_peer {
                    let given = self.given.get(&at).expect("a frame that was given away");
                    let lsn = given.lsn.wrapping_sub(self.sent[&given.member].initial);
                    let held = &self.held[&given.member];
                    assert!(held.holds(lsn, lsn + given.length), "{given:?} is not held");
                    at + given.length
                } else {
                    let peer = self.peer.expect("a peer");
                    let frames = &self.merged[&emission.flow];
                    let &(csn, length) = frames.get(&at).expect("a frame that went to the peer");
                    assert!(
                        self.held[&peer].holds(csn, csn + length),
                        "{csn} is not held"
                    );
                    at + length
                };
            }
            assert_eq!(at, end, "blocks are of whole frames");
        }
    }

    /// Each frame is at exactly one member, at one place.
    fn given_to_member(&mut self, csn: u32, member: FourTuple, lsn: u32, length: u32) {
        let at = csn.wrapping_sub(self.peer_initial);
        if let Some(before) = self.given.remove(&at) {
            if self.resends && (before.member, before.lsn) != (member, lsn) {
                self.take_from_living(at);
                self.former.push(before);
            } else {
                assert_eq!(
                    (before.member, before.lsn, before.length),
                    (member, lsn, length),
                    "a frame at two places"
                );
            }
        }
        self.given.insert(
            at,
            Given {
                member,
                lsn,
                length,
            },
        );
    }

    /// No acknowledgment covers more than each frame's member has acknowledged, or frames
    /// that no member was given.
    fn acknowledge_to_peer(&mut self, ack: u32) {
        let acknowledged = ack.wrapping_sub(self.peer_initial);
        while self.through < acknowledged {
            let at = self.through;
            self.through += if let Some(given) = self.given.remove(&at) {
                assert!(
                    given.is_acknowledged(&self.acked),
                    "frame {at} is acknowledged to the peer, and not by {:?}",
                    given.member
                );
                given.length
            } else if let Some(&length) = self.finished.get(&at) {
                length
            } else {
                assert!(
                    at == 0 || self.peer_fin == Some(at),
                    "{at} is acknowledged to the peer, and no member was given it"
                );
                1
            };
        }
    }
}
