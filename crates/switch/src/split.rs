//! The peer's segments: splits them frame by frame to the members.

use core::cell::OnceCell;
use core::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewall_wire::acp::{self, FrameBounds, FramesInPieces, Kind};
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::{Flags, Header};

use crate::emission::Payload;
use crate::flow::{Context, End, Flow, Phase, Reset};
use crate::modules::{self, Members, TooMuch, Verdict, Work};
use crate::ring::Frame;

/// The contents of one segment to a member: frames that are neighbours in both sequences.
pub(crate) struct Piece {
    member: u8,
    lsn: u64,
    /// The first of them was sent before.
    repeated: bool,
    bytes: Range<usize>,
}

/// Whether this many bytes may be whole frames, or none.
pub(crate) const fn may_be_frames(bytes: u64) -> bool {
    bytes == 0 || bytes >= acp::HEADER_LEN as u64
}

impl Flow {
    /// Handles a segment of the peer on an open connection.
    pub(crate) fn peer_segment(
        &mut self,
        context: &mut Context<'_>,
        header: &Header,
        payload: Pieces<'_>,
    ) -> Result<(), Reset> {
        self.active = context.now;
        let start = self
            .inbound
            .numbers
            .position(self.inbound.left, header.sequence);
        if header.flags.contains(Flags::RST) {
            return self.peer_reset(context, start);
        }
        let ack = self
            .outbound
            .numbers
            .position(self.outbound.acked, header.acknowledgment);
        if header.flags.contains(Flags::SYN) || ack > self.peer_send_next() {
            // Challenge (RFC 5961 §4, §5).
            context.counters.dropped_unacceptable += 1;
            self.inbound.announced.due = true;
            self.flush(context);
            return Ok(());
        }
        if !header.flags.contains(Flags::ACK) {
            context.counters.dropped_unacceptable += 1;
            return Ok(());
        }
        if payload.len() > usize::from(self.segment_size) {
            context.counters.dropped_too_long += 1;
            return Ok(());
        }
        let fin = header.flags.contains(Flags::FIN);
        let alone = payload.is_empty() && !fin;
        let result = self
            .acknowledged_by_peer(context, ack, header.window, alone)
            .and_then(|()| {
                if self.sack && !header.options.sack.is_empty() {
                    self.sacked_by_peer(&header.options.sack);
                }
                let end = start + payload.len() as u64;
                if start < self.inbound.left && end <= self.inbound.left && !fin {
                    // Repeated, or a probe of a closed window, or a keepalive.
                    self.inbound.announced.due = true;
                    if payload.len() <= 1 {
                        self.probe_members(context);
                    } else if self.sack {
                        let left = self.inbound.left;
                        self.inbound.blocks.repeated(left);
                        self.peer_waits(context);
                    }
                    return Ok(());
                }
                if !payload.is_empty() {
                    self.split(context, start, payload, header.flags)?;
                }
                if fin {
                    self.peer_fin(context, end);
                }
                Ok(())
            });
        if result.is_ok() {
            self.flush(context);
            self.look_for_end(context);
        }
        result
    }

    fn split(
        &mut self,
        context: &mut Context<'_>,
        start: u64,
        payload: Pieces<'_>,
        flags: Flags,
    ) -> Result<(), Reset> {
        let mut last = None;
        let push = Flags(flags.0 & Flags::PSH.0);
        let result = self.split_frames(context, start, payload, &mut last);
        if let Some(last) = last {
            if context.pieces.is_empty() {
                self.send_piece(context, last, push);
            } else {
                self.send_pieces(context, last, push);
            }
        }
        if !self.inbound.holes.is_empty() || self.any(|end| !end.sink.gaps.is_empty()) {
            self.send_fresh_voids(context);
        }
        result
    }

    fn split_frames(
        &mut self,
        context: &mut Context<'_>,
        start: u64,
        payload: Pieces<'_>,
        piece: &mut Option<Piece>,
    ) -> Result<(), Reset> {
        for frame in FramesInPieces::new(payload) {
            let frame = frame.map_err(|_| Reset::Framing)?;
            let csn = start + frame.offset as u64;
            let end = csn + frame.size() as u64;
            let inbound = &self.inbound;
            if end <= inbound.left {
                self.inbound.announced.due = true;
                continue;
            }
            if csn < inbound.left || inbound.fin.is_some_and(|fin| end > fin) {
                return Err(Reset::Framing);
            }
            if end > inbound.offered {
                context.counters.dropped_window += 1;
                self.inbound.announced.due = true;
                self.probe_members(context);
                break;
            }
            let known = if csn < inbound.next {
                inbound.ring.find(csn)
            } else {
                None
            };
            let placed = match known {
                Some(known) => self.repeat(context, &known, &frame)?,
                None => match self.place(context, csn, &frame, payload)? {
                    Some(placed) => Some(placed),
                    None => break,
                },
            };
            let Some((member, lsn)) = placed else {
                continue;
            };
            let bytes = frame.offset..frame.offset + frame.size();
            match piece {
                Some(last)
                    if last.member == member
                        && last.bytes.end == bytes.start
                        && last.lsn + last.bytes.len() as u64 == lsn =>
                {
                    last.bytes.end = bytes.end;
                }
                _ => {
                    let next = Piece {
                        member,
                        lsn,
                        repeated: known.is_some(),
                        bytes,
                    };
                    context.pieces.extend(piece.replace(next));
                }
            }
        }
        Ok(())
    }

    /// Sends the pieces of a segment, member by member: neighbours of one member may then
    /// leave as one segment.
    fn send_pieces(&mut self, context: &mut Context<'_>, last: Piece, push: Flags) {
        let mut pieces = core::mem::take(context.pieces);
        pieces.push(last);
        pieces.sort_unstable_by_key(|piece| (piece.member, piece.bytes.start));
        let behind = pieces.len() - 1;
        for (number, piece) in pieces.drain(..).enumerate() {
            let flags = if number == behind { push } else { Flags::NONE };
            self.send_piece(context, piece, flags);
        }
        // Kept for its memory.
        *context.pieces = pieces;
    }

    fn send_piece(&mut self, context: &mut Context<'_>, piece: Piece, push: Flags) {
        if piece.repeated {
            self.repeat_voids(context, piece.member, piece.lsn);
        }
        let payload = Payload::Received(piece.bytes);
        self.send_to_member(context, piece.member, piece.lsn, push, payload);
    }

    /// Handles a repeated frame: it goes to the same member, at the same place.
    fn repeat(
        &mut self,
        context: &mut Context<'_>,
        known: &Frame,
        frame: &FrameBounds,
    ) -> Result<Option<(u8, u64)>, Reset> {
        if known.length as usize != frame.size() {
            return Err(Reset::Framing);
        }
        if known.acknowledged {
            context.counters.frames_known += 1;
            if self.sack {
                self.peer_waits(context);
            }
            return Ok(None);
        }
        context.counters.frames_in_repeated += 1;
        self.make_way(context, known);
        if known.sacked {
            self.doubt(known);
        }
        Ok(Some((known.member, known.lsn)))
    }

    /// Makes way for a frame that a dead member left behind. At the member that receives
    /// it, it follows later frames of the peer. If one of those is lost, the peer repeats
    /// it only after this frame, and this frame is not acknowledged before that. So
    /// frames that follow it in the peer's sequence and precede it here become null
    /// frames, and the peer must repeat them. Frames that the member has SACKed are
    /// included only if the peer repeats a SACKed frame, and so no longer counts on them.
    fn make_way(&mut self, context: &mut Context<'_>, known: &Frame) {
        let segment_size = self.segment_size.into();
        let Flow { inbound, ends, .. } = self;
        let Some(end) = ends.get_mut(usize::from(known.member)) else {
            return;
        };
        let sink = &mut end.sink;
        sink.gaps.void_pending(known.lsn, known.csn, segment_size);
        let stays = |frame: &Frame| frame.sacked && !known.sacked;
        inbound
            .ring
            .abandon(&mut sink.chain, known.lsn, known.csn, stays, |frame| {
                sink.gaps
                    .insert_void(frame.csn, frame.lsn, frame.length.into());
                inbound.holes.insert(frame.csn, frame.csn_end());
                inbound.blocks.remove(frame.csn, frame.csn_end());
                inbound.abandoned.push(frame.csn);
                context.counters.frames_reassigned += 1;
            });
    }

    /// Chooses the member and the place of a frame that is new, or was missing. `None`
    /// drops it and what follows in its segment.
    fn place(
        &mut self,
        context: &mut Context<'_>,
        csn: u64,
        frame: &FrameBounds,
        payload: Pieces<'_>,
    ) -> Result<Option<(u8, u64)>, Reset> {
        let length = frame.size() as u64;
        let inbound = &self.inbound;
        let was_missing = csn < inbound.next;
        // The missing parts before and after it must also be whole frames.
        let rests = if was_missing {
            let hole = inbound.holes.around(csn, csn + length);
            hole.map(|hole| [csn - hole.start, hole.end - csn - length])
        } else {
            Some([csn - inbound.next, 0])
        };
        if !rests.is_some_and(|rests| rests.into_iter().all(may_be_frames)) {
            return Err(Reset::Framing);
        }
        let limit = usize::from(context.config.ring);
        let first_missing = inbound
            .holes
            .first()
            .map_or(inbound.next, |hole| hole.start);
        let kept_free = if csn == first_missing {
            0
        } else {
            inbound.kept_free(csn.max(inbound.next))
        };
        let full = inbound.ring.room() <= kept_free;
        let crowded = csn > inbound.next && inbound.holes.len() >= limit
            || was_missing && self.any(|end| end.sink.gaps.len() >= 4 * limit);
        if full || crowded {
            context.counters.dropped_ring_full += 1;
            return Ok(None);
        }
        let Some((member, state)) = self.choose(context, frame, payload)? else {
            context.counters.dropped_member_window += 1;
            return Ok(None);
        };
        let inbound = &mut self.inbound;
        let Some(end) = self.ends.get_mut(usize::from(member)) else {
            return Err(Reset::Module);
        };
        let sink = &mut end.sink;
        let in_gap = sink.gaps.find(csn, length);
        if in_gap.is_none() {
            let missing =
                inbound.holes.bytes_within(sink.covered, csn) + csn.saturating_sub(inbound.next);
            if sink.next + missing + length > sink.edge {
                context.counters.dropped_member_window += 1;
                return Ok(None);
            }
        }
        if csn > inbound.next {
            inbound.holes.insert(inbound.next, csn);
            context.counters.holes += 1;
        }
        let lsn = match in_gap {
            Some(lsn) => {
                sink.gaps.fill(csn, length);
                lsn
            }
            None => {
                // Missing frames may also go here, and then before this one.
                if csn >= sink.covered {
                    for hole in inbound.holes.iter() {
                        let start = hole.start.max(sink.covered);
                        let end = hole.end.min(csn);
                        if start < end {
                            sink.gaps.push(start, sink.next, end - start);
                            sink.next += end - start;
                        }
                    }
                    sink.covered = csn + length;
                }
                let lsn = sink.next;
                sink.next += length;
                lsn
            }
        };
        let kept = Frame::new(csn, lsn, length as u32, member, state);
        inbound.ring.insert(kept, &mut sink.chain);
        inbound.next = inbound.next.max(csn + length);
        if was_missing {
            inbound.holes.remove(csn, csn + length);
            let segment_size = self.segment_size.into();
            for (slot, other) in self.ends.iter_mut().enumerate() {
                if slot != usize::from(member) {
                    other.sink.gaps.void(csn, length, segment_size);
                }
            }
        }
        self.inbound.mean.add(length as u32);
        context.counters.frames_in += 1;
        if let Some(counters) = context.members.get_mut(usize::from(member)) {
            counters.frames_in += 1;
            counters.bytes_in += length;
        }
        Ok(Some((member, lsn)))
    }

    /// Asks the module. `None` while no member takes frames but one is being added.
    fn choose(
        &mut self,
        context: &mut Context<'_>,
        frame: &FrameBounds,
        payload: Pieces<'_>,
    ) -> Result<Option<(u8, u32)>, Reset> {
        let Some(first) = self.ends.iter().position(End::takes_frames) else {
            let connecting = self.any(|end| end.stage == crate::flow::Stage::Connecting);
            return if connecting {
                Ok(None)
            } else {
                Err(Reset::Member)
            };
        };
        if frame.header.kind == Kind::Null {
            // It takes room in the peer's sequence and means nothing to any end.
            return Ok(Some((first as u8, 0)));
        }
        let payload = payload.get(frame.payload()).unwrap_or(Pieces::EMPTY);
        let work = Work::new(payload.len(), self.ends.len());
        let joined = OnceCell::new();
        let frame = modules::Frame::new(payload, &joined, &work, context.now);
        let members = Members::new(&self.ends, &work);
        let Some(module) = &mut self.module else {
            return Err(Reset::Module);
        };
        let verdict = catch_unwind(AssertUnwindSafe(|| module.frame(frame, members)));
        match verdict {
            Ok(Verdict::Send(member, state)) => {
                let end = self.ends.get(usize::from(member.0));
                match end.is_some_and(End::takes_frames) {
                    true => Ok(Some((member.0, state))),
                    false => Err(Reset::Module),
                }
            }
            Ok(Verdict::Reset) => Err(Reset::Module),
            Err(cause) => {
                self.module = None;
                match cause.is::<TooMuch>() {
                    true => Err(Reset::ModuleWork),
                    false => Err(Reset::Module),
                }
            }
        }
    }

    /// Notifies the module of something; its panic resets the connection.
    pub(crate) fn notify(
        &mut self,
        event: impl FnOnce(&mut dyn modules::Module),
    ) -> Result<(), Reset> {
        let Some(module) = &mut self.module else {
            return Ok(());
        };
        let heard = catch_unwind(AssertUnwindSafe(|| event(module.as_mut())));
        heard.map_err(|_| {
            self.module = None;
            Reset::Module
        })
    }

    fn peer_reset(&mut self, context: &mut Context<'_>, start: u64) -> Result<(), Reset> {
        let inbound = &self.inbound;
        // The position of the peer's next number, as far as the peer and the switch can
        // know (RFC 5961 §3). A peer that has lost its state repeats what was last
        // acknowledged to it.
        let in_order = inbound
            .holes
            .first()
            .map_or(inbound.next, |hole| hole.start);
        let acknowledged = self.peer_ack();
        if [in_order, inbound.next, inbound.left, acknowledged].contains(&start) {
            return Err(Reset::ByPeer);
        }
        context.counters.dropped_unacceptable += 1;
        if start > inbound.left && start <= inbound.offered && self.phase == Phase::Open {
            self.inbound.announced.due = true;
            self.flush(context);
        }
        Ok(())
    }
}
