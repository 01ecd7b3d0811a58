//! Receiving: from the frames of a circuit's channel to the application's closure.

use std::sync::atomic::Ordering;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::Kind;
use tidewall_device::frame::Frame;
use tidewall_receive::poller::{Done, Shared};
use tidewall_stack::channel_frame::ChannelFrame;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_stack::receiver::BETWEEN_LOOKS;
use tidewall_wire::atm::aal5::Pdu;
use tidewall_wire::atm::oam::Loopback;
use tidewall_wire::atm::pseudowire::{self, FrameHeader, Packet};
use tidewall_wire::atm::{Circuit, PayloadType};

use super::Atm;
use super::circuit::{CircuitInner, Waiting};

/// Answers to loopback cells that are kept for their senders.
const ANSWERS_MAX: usize = 16;

/// The circuit that no socket binds.
const NEVER_OPEN: Circuit = Circuit { vpi: 0, vci: 0 };

/// Most frames that are processed under one hold of the circuit's lock.
const RUN: usize = 16;

/// Frames that a call takes although they yield nothing, at least.
const FRAMES_MAX: usize = 128;

/// A received payload.
#[derive(Clone, Copy, Debug)]
pub struct AtmReceived<'a> {
    /// 1 to 65,535 bytes.
    pub payload: &'a [u8],
    /// The sender's user-to-user byte of AAL5 (I.363.5 §9.2.1.1).
    pub user_to_user: u8,
    /// Some cell of it met congestion (explicit forward congestion indication).
    pub congested: bool,
    /// Some cell of it is dropped first (cell loss priority).
    pub low_priority: bool,
}

impl<'a> AtmReceived<'a> {
    fn new(pdu: &Pdu<'a>, header: &FrameHeader) -> Self {
        AtmReceived {
            payload: pdu.payload(),
            user_to_user: pdu.user_to_user(),
            congested: header.congested,
            low_priority: header.low_priority,
        }
    }
}

/// A payload in a buffer of its size.
pub(super) struct Owned {
    payload: Box<[u8]>,
    user_to_user: u8,
    congested: bool,
    low_priority: bool,
    /// The queue whose frame credit it still holds.
    credit: Option<usize>,
}

impl Owned {
    fn copy(received: &AtmReceived<'_>) -> Self {
        Owned {
            payload: received.payload.into(),
            user_to_user: received.user_to_user,
            congested: received.congested,
            low_priority: received.low_priority,
            credit: None,
        }
    }

    /// A payload that arrived by the circuit of a local call.
    pub(super) fn of_local(payload: &[u8]) -> Self {
        Owned {
            payload: payload.into(),
            user_to_user: 0,
            congested: false,
            low_priority: false,
            credit: None,
        }
    }

    fn borrow(&self) -> AtmReceived<'_> {
        AtmReceived {
            payload: &self.payload,
            user_to_user: self.user_to_user,
            congested: self.congested,
            low_priority: self.low_priority,
        }
    }

    pub(super) fn give_credit(&self, core: &Core, id: ChannelId) {
        if let Some(queue) = self.credit.and_then(|it| core.receiver.queues.get(it)) {
            queue.shared.give_credit(id, 1);
        }
    }
}

/// The result of a frame while the circuit was locked.
enum Taken {
    /// A whole PDU, which is read in its frame.
    Whole,
    /// The last part of a PDU.
    Reassembled(Owned),
    /// A loopback cell to be answered.
    Answer(PayloadType, Loopback),
    /// Nothing more to be done: kept, or dropped and counted.
    Nothing,
}

impl CircuitInner {
    /// Gives up to `limit` payloads that wait to `each`. Returns how many: none, too, after so
    /// many frames without one that the caller is to look at the time.
    pub(super) fn drain(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(AtmReceived<'_>),
    ) -> usize {
        let mut given = self.drain_outside(core, limit, each);
        let (mut frames, enough) = (0, limit.max(FRAMES_MAX));
        let mut step = BETWEEN_LOOKS;
        for (number, queue) in core.receiver.queues.iter().enumerate() {
            while given < limit {
                let mut most = limit - given;
                if core.receiver.will_be_due() {
                    most = most.min(step);
                }
                let batch = Batch::new(self, core, number, &queue.shared);
                let (taken, delivered) = batch.deliver(most, each);
                given += delivered;
                frames += taken;
                if taken == 0 {
                    break;
                }
                if frames >= enough {
                    return given;
                }
                if given < limit {
                    match core.receiver.poll_between(core, step) {
                        Ok(next) => step = next,
                        // The next call reports it.
                        Err(_) => return given,
                    }
                }
            }
        }
        given
    }

    /// As [`CircuitInner::drain`], without a round between: what waits and no more.
    pub(super) fn drain_waiting(&self, core: &Core, each: &mut dyn FnMut(AtmReceived<'_>)) {
        self.drain_outside(core, usize::MAX, each);
        for (number, queue) in core.receiver.queues.iter().enumerate() {
            Batch::new(self, core, number, &queue.shared).deliver(usize::MAX, each);
        }
    }

    fn drain_outside(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(AtmReceived<'_>),
    ) -> usize {
        let count = lock(&self.waiting).outside.len().min(limit);
        for given in 0..count {
            // One at a time: `each` may call this socket again, or panic.
            let Some(owned) = lock(&self.waiting).outside.pop_front() else {
                return given;
            };
            owned.give_credit(core, self.id());
            self.received.fetch_add(1, Ordering::Relaxed);
            each(owned.borrow());
        }
        count
    }

    /// Moves everything that waits in frames into buffers of its size.
    pub(super) fn keep_waiting(&self, core: &Core) {
        let mut replies = Vec::new();
        let mut kept = 0;
        for (number, queue) in core.receiver.queues.iter().enumerate() {
            let shared = &queue.shared;
            let mut done = Done::default();
            let mut of_queue = 0;
            let mut waiting = lock(&self.waiting);
            while let Some((frame, taken)) = self.next(core, number, shared, &mut waiting) {
                let owned = match taken {
                    Taken::Whole => self.copied(core, shared, &frame),
                    Taken::Reassembled(owned) => Some(owned),
                    Taken::Answer(of, loopback) => {
                        replies.push((of, loopback));
                        None
                    }
                    Taken::Nothing => None,
                };
                done.add(shared, frame);
                if let Some(owned) = owned {
                    let credit = Some(number);
                    waiting.outside.push_back(Owned { credit, ..owned });
                    of_queue += 1;
                }
            }
            // With the circuit locked: who takes one of these payloads gives its credit back,
            // which must not be before it was taken here.
            shared.give_back(self.id(), done);
            shared.give_credit(self.id(), 0u32.wrapping_sub(of_queue));
            drop(waiting);
            kept += of_queue;
        }
        core.causes.copied_out(kept.into());
        for (of, loopback) in replies {
            self.answer(core, of, &loopback);
        }
    }

    /// The next frame of a queue, and what it is. Parts of PDUs and cells are dealt with in
    /// the order in which they came: with the circuit locked.
    fn next(
        &self,
        core: &Core,
        queue: usize,
        shared: &Shared,
        waiting: &mut Waiting,
    ) -> Option<(Frame, Taken)> {
        let frame = waiting.channels.get_mut(queue)?.remove()?;
        self.last_queue.store(queue, Ordering::Relaxed);
        let mut joined = Vec::new();
        let described = ChannelFrame::whole(shared, &frame, &mut joined);
        let taken = match packet(&described).and_then(|it| it.frame().map(|part| (it, part))) {
            Ok((_, part)) if self.is_whole(&part, waiting) => Taken::Whole,
            Ok((_, part)) => {
                waiting.in_parts = !part.header.last;
                let (now, last) = (core.now(), part.header.last);
                // Copied while the lock is held: nothing else is locked with it, and a trace
                // locks.
                let mut reassembly = lock(&Atm::of(core).reassembly);
                // A part that was not taken before its place was closed belongs to no circuit:
                // the place may be another's. Circuit 0.0, which is never open, stands for none.
                let circuit = self.open_place_now().map_or(NEVER_OPEN, |it| it.circuit);
                let came = reassembly
                    .part(now, circuit, part.bytes, last)
                    .map(|pdu| pdu.map(|it| Owned::copy(&AtmReceived::new(&it, &part.header))));
                drop(reassembly);
                match came {
                    Ok(Some(owned)) => {
                        described.trace(core, "delivered", || delivered(&owned.borrow()));
                        Taken::Reassembled(owned)
                    }
                    Ok(None) => Taken::Nothing,
                    Err(reason) => {
                        described.trace(core, "dropped", || reason.name().to_owned());
                        Taken::Nothing
                    }
                }
            }
            Err(pseudowire::Error::NotFrame) => self.cell(core, &described, waiting),
            Err(error) => {
                described.trace(core, "dropped", || error.to_string());
                Atm::of(core)
                    .causes
                    .malformed
                    .fetch_add(1, Ordering::Relaxed);
                Taken::Nothing
            }
        };
        Some((frame, taken))
    }

    fn is_whole(&self, part: &pseudowire::Frame<'_>, waiting: &Waiting) -> bool {
        part.header.last && !waiting.in_parts && part.bytes.len() <= self.pdu_max
    }

    /// A cell that came beside PDUs.
    fn cell(&self, core: &Core, described: &ChannelFrame<'_>, waiting: &mut Waiting) -> Taken {
        let causes = &Atm::of(core).causes;
        let oam = [PayloadType::OAM_SEGMENT, PayloadType::OAM_END_TO_END];
        let cell = packet(described).and_then(|packet| packet.cell());
        let cell = cell.ok().filter(|cell| oam.contains(&cell.payload_type));
        let read = cell.and_then(|cell| {
            let loopback = Loopback::parse(cell.payload).ok()?;
            Some((cell.payload_type, loopback))
        });
        match read {
            Some((of, loopback)) if let Some(reply) = loopback.reply() => {
                causes.oam_answered.fetch_add(1, Ordering::Relaxed);
                Taken::Answer(of, reply)
            }
            Some((_, answer)) if !answer.to_be_returned => {
                let answers = &mut waiting.answers;
                if answers.len() >= ANSWERS_MAX {
                    answers.pop_front();
                }
                answers.push_back(answer.tag);
                self.wait_queue.threads().wake_all();
                Taken::Nothing
            }
            _ => {
                described.trace(core, "dropped", || "oam-ignored".to_owned());
                causes.oam_ignored.fetch_add(1, Ordering::Relaxed);
                Taken::Nothing
            }
        }
    }

    /// The PDU of a frame that has all of it; counted when it is refused. `joined`: room for a
    /// frame in several pieces.
    fn read<'a>(
        &self,
        core: &Core,
        shared: &'a Shared,
        frame: &'a Frame,
        joined: &'a mut Vec<u8>,
    ) -> Option<AtmReceived<'a>> {
        let described = ChannelFrame::whole(shared, frame, joined);
        let part = packet(&described).ok()?.frame().ok()?;
        match Pdu::new(part.bytes) {
            Ok(pdu) => {
                let received = AtmReceived::new(&pdu, &part.header);
                described.trace(core, "delivered", || delivered(&received));
                Some(received)
            }
            Err(error) => {
                let reason = lock(&Atm::of(core).reassembly).refused(error);
                described.trace(core, "dropped", || reason.name().to_owned());
                None
            }
        }
    }

    /// As [`CircuitInner::read`], in a buffer of its own.
    fn copied(&self, core: &Core, shared: &Shared, frame: &Frame) -> Option<Owned> {
        let mut joined = Vec::new();
        let received = self.read(core, shared, frame, &mut joined)?;
        Some(Owned::copy(&received))
    }

    /// Sends a loopback cell back. One that cannot go is as good as lost on the way.
    fn answer(&self, core: &Core, of: PayloadType, loopback: &Loopback) {
        drop(self.send_oam(core, of, loopback));
    }
}

/// Returns the bytes after the Ethernet header.
fn packet<'a>(described: &ChannelFrame<'a>) -> Result<Packet<'a>, pseudowire::Error> {
    match described.packet() {
        Some(bytes) if described.kind() == Some(Kind::Circuit) => Packet::new(bytes),
        _ => Err(pseudowire::Error::Truncated),
    }
}

fn delivered(received: &AtmReceived<'_>) -> String {
    format!("{} bytes", received.payload.len())
}

/// Frames taken out of a channel for the application's closure, some at a time. Whatever that
/// does, they go back, and their credit, and what it was not given waits for the next call.
struct Batch<'a> {
    circuit: &'a CircuitInner,
    core: &'a Core,
    queue: usize,
    shared: &'a Shared,
    /// Whole PDUs, the first ones first.
    run: [Option<Frame>; RUN],
    /// How many of the run the closure was given.
    given: usize,
    /// A PDU that ended after the run.
    reassembled: Option<Owned>,
    done: Done,
    delivered: usize,
}

impl<'a> Batch<'a> {
    fn new(circuit: &'a CircuitInner, core: &'a Core, queue: usize, shared: &'a Shared) -> Self {
        Batch {
            circuit,
            core,
            queue,
            shared,
            run: [const { None }; RUN],
            given: 0,
            reassembled: None,
            done: Done::default(),
            delivered: 0,
        }
    }

    /// Returns frames taken and payloads delivered.
    fn deliver(mut self, most: usize, each: &mut dyn FnMut(AtmReceived<'_>)) -> (usize, usize) {
        let (circuit, core, shared) = (self.circuit, self.core, self.shared);
        let (mut taken, mut joined) = (0, Vec::new());
        while taken < most {
            self.given = 0;
            let mut last = {
                let mut waiting = lock(&circuit.waiting);
                // Copied payloads arrived before those in the channel.
                let mut next = || match waiting.outside.is_empty() {
                    true => circuit.next(core, self.queue, shared, &mut waiting),
                    false => None,
                };
                let mut run = self.run.iter_mut().take(most - taken);
                // Whole ones come many in a row, and are read with the circuit unlocked.
                loop {
                    let Some(place) = run.next() else {
                        break Some(Taken::Nothing);
                    };
                    match next() {
                        Some((frame, Taken::Whole)) => *place = Some(frame),
                        Some((frame, other)) => {
                            taken += 1;
                            self.done.add(shared, frame);
                            break Some(other);
                        }
                        None => break None,
                    }
                }
            };
            if let Some(Taken::Reassembled(owned)) = last {
                self.reassembled = Some(owned);
                last = Some(Taken::Nothing);
            }
            for place in 0..RUN {
                let Some(frame) = self.run.get(place).and_then(Option::as_ref) else {
                    break;
                };
                taken += 1;
                self.given += 1;
                if let Some(received) = circuit.read(core, shared, frame, &mut joined) {
                    self.delivered += 1;
                    each(received);
                }
                self.end_frame(place);
            }
            if let Some(owned) = self.reassembled.take() {
                self.delivered += 1;
                each(owned.borrow());
            }
            match last {
                None => break,
                Some(Taken::Answer(of, loopback)) => circuit.answer(core, of, &loopback),
                Some(Taken::Whole | Taken::Reassembled(_) | Taken::Nothing) => {}
            }
        }
        (taken, self.delivered)
    }

    fn end_frame(&mut self, place: usize) {
        if let Some(frame) = self.run.get_mut(place).and_then(Option::take) {
            self.done.add(self.shared, frame);
        }
    }

    /// Returns the PDUs that the closure did not receive because it panicked, each in a
    /// buffer of its size.
    fn rest(&mut self) -> Vec<Owned> {
        let (circuit, core, shared) = (self.circuit, self.core, self.shared);
        let frames = self.run.iter().skip(self.given).flatten();
        let read = frames.filter_map(|frame| circuit.copied(core, shared, frame));
        let mut rest: Vec<_> = read.collect();
        rest.extend(self.reassembled.take());
        rest
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let rest = self.rest();
        (0..RUN).for_each(|place| self.end_frame(place));
        let done = std::mem::take(&mut self.done);
        // As in keep_waiting: the credit of a waiting PDU is not returned before it is taken.
        let mut waiting = (!rest.is_empty()).then(|| lock(&self.circuit.waiting));
        self.shared.give_back(self.circuit.id(), done);
        if let Some(waiting) = &mut waiting {
            let kept = rest.len() as u32;
            self.shared
                .give_credit(self.circuit.id(), 0u32.wrapping_sub(kept));
            for owned in rest.into_iter().rev() {
                let credit = Some(self.queue);
                waiting.outside.push_front(Owned { credit, ..owned });
            }
        }
        drop(waiting);
        let delivered = self.delivered as u64;
        self.circuit
            .received
            .fetch_add(delivered, Ordering::Relaxed);
    }
}
