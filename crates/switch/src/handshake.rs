//! Handshakes: the members answer before the peer is answered, and their handshakes are
//! completed when the peer's is.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewall_protocol::tcp::{MSS_MIN, Segment, SegmentInPieces, cookie, isn};
use tidewall_wire::acp;
use tidewall_wire::tcp::{Flags, Header, Options};

use crate::Switch;
use crate::emission::{Emission, Payload};
use crate::flow::{Context, Flow, Offer, Phase, Reset, Stage};
use crate::sequence::{FIRST, SYN};
use crate::switch::{Key, Place};
use tidewall_protocol::tcp::Time;

/// If a SYN goes to more members than this, fewer connections may be half open.
const MEMBER_SYNS: usize = 4;

impl Flow {
    /// Handles a segment of a peer whose handshake is not complete.
    pub(crate) fn peer_opening(
        &mut self,
        context: &mut Context<'_>,
        segment: &SegmentInPieces<'_>,
    ) -> Result<(), Reset> {
        let header = &segment.header;
        let start = self.inbound.numbers.position(FIRST, header.sequence);
        if header.flags.contains(Flags::RST) {
            // RFC 9293 §3.10.7.4: a connection that began here passively.
            return if start == FIRST {
                Err(Reset::ByPeer)
            } else {
                Ok(())
            };
        }
        if header.flags.contains(Flags::SYN) {
            if start == SYN && !header.flags.contains(Flags::ACK) {
                // Repeated: so are those that have not been answered.
                if self.phase == Phase::Answered {
                    self.answer_peer(context);
                }
                for slot in self.slots(|end| end.stage == Stage::Connecting) {
                    self.send_syn(context, slot);
                }
            }
            return Ok(());
        }
        let completes = self.phase == Phase::Answered
            && header.flags.contains(Flags::ACK)
            && header.acknowledgment == self.outbound.numbers.wire(FIRST);
        if !completes {
            context.counters.dropped_unacceptable += 1;
            return Ok(());
        }
        self.establish(context, header.window)?;
        self.peer_segment(context, header, segment.payload)
    }

    /// Continues when every member has answered or was given up.
    pub(crate) fn look_for_answers(&mut self, context: &mut Context<'_>) -> Result<(), Reset> {
        if self.phase != Phase::Opening || self.any(|end| end.stage == Stage::Connecting) {
            return Ok(());
        }
        if self.offer.by_cookie {
            self.establish(context, self.offer.window)?;
            self.flush(context);
        } else {
            self.phase = Phase::Answered;
            self.answer_peer(context);
        }
        Ok(())
    }

    /// Sends or repeats the SYN-ACK.
    fn answer_peer(&mut self, context: &mut Context<'_>) {
        let answered = self.ends.iter().filter(|end| end.stage == Stage::Answered);
        let room = answered.map(|end| end.sink.edge - FIRST).min();
        let room = room.unwrap_or(0).min(self.ring_room());
        let window = u16::try_from(room).unwrap_or(u16::MAX);
        self.inbound.offered = FIRST + u64::from(window);
        let scale = self.inbound.announced.scale;
        let options = Options {
            maximum_segment_size: Some(self.segment_size),
            window_scale: self.offer.window_scale.map(|_| scale),
            sack_permitted: self.sack,
            ..Options::default()
        };
        let header = Header {
            source_port: self.peer.local.port(),
            destination_port: self.peer.remote.port(),
            sequence: self.outbound.numbers.wire(SYN),
            acknowledgment: self.inbound.numbers.wire(FIRST),
            flags: Flags::SYN | Flags::ACK,
            window,
            options: options.with_acp(self.offer.acp.then_some(acp::VERSION)),
            ..Header::default()
        };
        (context.emit)(Emission {
            flow: self.peer,
            header,
            payload: Payload::None,
            room: 0,
        });
    }

    /// Establishes the peer's connection and the members', once the peer knows that it is
    /// answered.
    fn establish(&mut self, context: &mut Context<'_>, window: u16) -> Result<(), Reset> {
        self.phase = Phase::Open;
        self.active = context.now;
        context.rearm = true;
        context.counters.connections += 1;
        let modules = &mut *context.modules;
        let connect = AssertUnwindSafe(|| {
            let module = modules.connect();
            (module.windows(), module)
        });
        let (windows, module) = catch_unwind(connect).map_err(|_| Reset::Module)?;
        self.inbound.windows = windows;
        self.module = Some(module);
        let outbound = &mut self.outbound;
        outbound.edge = FIRST + (u64::from(window) << outbound.scale);
        for slot in self.slots(|end| end.stage == Stage::Answered) {
            self.open_end(context, slot)?;
        }
        self.grant();
        Ok(())
    }
}

impl Switch {
    /// Handles a segment to the virtual address from a peer without a connection.
    pub(crate) fn stranger(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        emit: &mut dyn FnMut(Emission),
    ) {
        let flags = segment.header.flags;
        if flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK | Flags::RST | Flags::FIN) {
            self.peer_syn(now, segment, emit);
        } else if !self.peer_cookie(now, segment, emit) {
            self.refuse(segment, emit);
        }
    }

    /// Maximum number of half-open connections now. Each costs a SYN to every member.
    fn half_open_most(&self) -> usize {
        let most = self.config.half_open_max;
        most.min(MEMBER_SYNS * most / self.members_up().max(1))
    }

    fn peer_syn(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        emit: &mut dyn FnMut(Emission),
    ) {
        let options = &segment.header.options;
        let acp = options.acp() == Some(acp::VERSION);
        let segment_size = cookie::peer_mss(&segment.flow, options);
        let refused =
            !(acp || self.config.kernel_ends) || segment_size < MSS_MIN || self.members_up() == 0;
        if refused {
            self.counters.dropped_refused += 1;
            self.reset_stranger(segment, emit);
            return;
        }
        if self.half_open >= self.half_open_most() {
            self.send_cookie(now, segment, acp, emit);
            return;
        }
        let offer = Offer {
            segment_size,
            window_scale: options.window_scale,
            sack: options.sack_permitted && self.all_sack(),
            acp,
            by_cookie: false,
            window: 0,
        };
        let initial = isn::initial(&self.secrets.sequence, &segment.flow, now);
        self.begin(now, segment, offer, initial, emit);
    }

    /// Answers without keeping state. Members are asked when the cookie comes back.
    fn send_cookie(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        acp: bool,
        emit: &mut dyn FnMut(Emission),
    ) {
        let Some(mut answer) = self.cookies.answer(&segment.bare(), now) else {
            self.counters.dropped_table_full += 1;
            return;
        };
        self.counters.cookies_sent += 1;
        self.cookies_until = now + cookie::LIFETIME;
        let header = &mut answer.header;
        header.options = header.options.with_acp(acp.then_some(acp::VERSION));
        let named = header.options.maximum_segment_size;
        header.options.maximum_segment_size = named.map(|size| size.min(self.smallest));
        // No member has room for the peer's frames yet.
        header.window = 0;
        emit(Emission {
            flow: segment.flow,
            header: answer.header,
            payload: Payload::None,
            room: 0,
        });
    }

    /// True if the segment has returned a cookie.
    fn peer_cookie(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        emit: &mut dyn FnMut(Emission),
    ) -> bool {
        if now > self.cookies_until || self.members_up() == 0 {
            return false;
        }
        let bare = segment.bare();
        let check = |segment: &Segment<'_>| self.cookies.check(segment, now);
        // A lost acknowledgment is followed by a probe of the closed window: its sequence
        // number is one lower.
        let is_probe = segment.payload.is_empty();
        let found = check(&bare).or_else(|| {
            let sequence = segment.header.sequence.wrapping_add(1);
            let header = Header {
                sequence,
                ..segment.header
            };
            is_probe.then(|| check(&Segment { header, ..bare }))?
        });
        let Some(handshake) = found else {
            return false;
        };
        self.counters.cookies_taken += 1;
        let offer = Offer {
            segment_size: handshake.mss,
            window_scale: None,
            sack: false,
            acp: true,
            by_cookie: true,
            window: handshake.window,
        };
        let header = Header {
            sequence: handshake.remote_isn,
            ..segment.header
        };
        let segment = SegmentInPieces { header, ..*segment };
        self.begin(now, &segment, offer, handshake.local_isn, emit);
        true
    }

    /// Begins a connection: SYNs to all members.
    fn begin(
        &mut self,
        now: Time,
        segment: &SegmentInPieces<'_>,
        offer: Offer,
        initial: u32,
        emit: &mut dyn FnMut(Emission),
    ) {
        if self.flows.len() >= self.config.connections() && !self.evict_closed() {
            self.counters.dropped_table_full += 1;
            return;
        }
        let mut flow = Flow::new(
            segment.flow,
            &segment.header,
            offer,
            initial,
            &self.config,
            self.smallest,
            now,
        );
        self.generation += 1;
        flow.generation = self.generation;
        self.half_open += usize::from(flow.is_half_open());
        let key = self.flows.insert(flow) as u32;
        self.index.insert(Key(segment.flow), Place::peer(key));
        let slots: Vec<u8> = self.slots_up().collect();
        let mut begun = 0;
        for slot in slots {
            begun += usize::from(self.connect_member(now, key, slot, emit));
        }
        if begun == 0 {
            self.counters.dropped_table_full += 1;
            self.remove(key);
        }
    }
}
