//! What the switch may do, from the outside: checked at each of its segments.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidewall_protocol::tcp::FourTuple;
use tidewall_switch::{Emission, Payload};
use tidewall_wire::acp::Frames;
use tidewall_wire::tcp::Flags;

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
    /// From one that lives: a null frame takes its place there.
    pub living: u32,
}

/// One direction of a connection from its SYN on: each byte that was ever sent there.
#[derive(Default)]
struct Sent {
    initial: u32,
    bytes: Vec<Option<u8>>,
}

impl Sent {
    fn forget(&mut self, sequence: u32, length: usize) {
        let at = sequence.wrapping_sub(self.initial) as usize;
        self.bytes[at..at + length].fill(None);
    }

    /// The same byte each time.
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

/// The model of one peer's connection.
#[derive(Default)]
pub struct Model {
    /// What the switch has sent, by connection.
    sent: HashMap<FourTuple, Sent>,
    /// What members have acknowledged.
    acked: HashMap<FourTuple, u32>,
    /// Frames whose acknowledgment has not been sent to the peer.
    given: BTreeMap<u32, Given>,
    /// Places where null frames are to come instead.
    former: Vec<Given>,
    peer_initial: u32,
    /// Where frames begin that a dead member left.
    orphans: BTreeSet<u32>,
    /// By where the frame begins, counted from the peer's SYN.
    taken: HashMap<u32, Taken>,
    pub null_frames: u64,
    /// The module lets frames be sent again, to others.
    pub resends: bool,
}

impl Model {
    /// Connections to a member that died. What it has not acknowledged may go elsewhere, and
    /// is not acknowledged to the peer before it did.
    pub fn kill(&mut self, connections: &[FourTuple]) {
        let (acked, orphans) = (&self.acked, &mut self.orphans);
        self.given.retain(|&csn, given| {
            let dies = connections.contains(&given.member);
            if dies && !given.is_acknowledged(acked) {
                orphans.insert(csn);
                self.taken.entry(csn).or_default().dead += 1;
            }
            !dies
        });
        for flow in connections {
            self.sent.remove(flow);
            self.acked.remove(flow);
        }
    }

    /// How often the frame that begins here, counted from the peer's SYN, was taken back.
    pub fn taken(&self, csn: u32) -> Taken {
        self.taken.get(&csn).copied().unwrap_or_default()
    }

    /// A frame goes from a member that lives to another, or is about to.
    fn take_from_living(&mut self, csn: u32) {
        self.taken.entry(csn).or_default().living += 1;
    }

    /// A packet goes into the switch.
    pub fn input(&mut self, packet: &Packet, from_peer: bool) {
        if from_peer && packet.header.flags.contains(Flags::SYN) {
            self.peer_initial = packet.header.sequence;
        }
        if !from_peer && packet.header.flags.contains(Flags::ACK) {
            let ack = packet.header.acknowledgment;
            let known = self.acked.entry(packet.flow).or_insert(ack);
            if ack.wrapping_sub(*known) < 1 << 31 {
                *known = ack;
            }
        }
    }

    /// The switch sends something, in answer to a packet if there was one.
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
            // In place of a frame that the peer is to repeat, as a whole.
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

    /// Each frame is at exactly one member, at one place.
    fn given_to_member(&mut self, csn: u32, member: FourTuple, lsn: u32, length: u32) {
        let at = csn.wrapping_sub(self.peer_initial);
        self.orphans.remove(&at);
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

    /// No acknowledgment above what each frame's member has acknowledged.
    fn acknowledge_to_peer(&mut self, ack: u32) {
        let acknowledged = ack.wrapping_sub(self.peer_initial);
        while let Some(first) = self.given.first_entry()
            && *first.key() < acknowledged
        {
            let (csn, given) = first.remove_entry();
            assert!(
                given.is_acknowledged(&self.acked),
                "frame {csn} is acknowledged to the peer, and not by {:?}",
                given.member
            );
        }
        let orphan = self.orphans.first().filter(|&&csn| csn < acknowledged);
        assert_eq!(
            orphan, None,
            "acknowledged to the peer, and to nobody given"
        );
    }
}
