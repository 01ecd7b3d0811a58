//! Members of a live connection that join, are removed, or die; and timeouts.

use tidewall_protocol::tcp::{FourTuple, Time, isn};
use tidewall_wire::acp;
use tidewall_wire::tcp::{Flags, Header, Options};

use crate::config::{Config, MemberId, SEGMENT_MIN};
use crate::emission::{Emission, Payload};
use crate::flow::{
    Announced, Context, End, Flow, Phase, RETRY_FIRST, Reset, Sink, Source, Stage, backoff,
};
use crate::gaps::null_size;
use crate::modules::Lost;
use crate::sequence::{FIRST, Numbers, SYN};
use crate::split::may_be_frames;

impl Flow {
    /// Begins a connection to the member of a slot.
    pub(crate) fn connect(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        tuple: FourTuple,
        secret: &[u8; 16],
    ) {
        while self.ends.len() <= usize::from(slot) {
            self.ends.push(End::default());
        }
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return;
        };
        *end = End {
            stage: Stage::Connecting,
            tuple: Some(tuple),
            sink: Sink {
                numbers: Numbers::new(isn::initial(secret, &tuple, context.now)),
                next: FIRST,
                acked: FIRST,
                covered: self.inbound.left,
                ..Sink::default()
            },
            source: Source {
                next: FIRST,
                acked: FIRST,
                edge: FIRST,
                limit: FIRST,
                announced: Announced {
                    scale: context.config.window_scale,
                    ..Announced::default()
                },
                ..Source::default()
            },
            retry: Some((context.now + RETRY_FIRST, 0)),
            ..End::default()
        };
        context.rearm = true;
        self.send_syn(context, slot);
    }

    /// Sends or repeats the SYN to a member.
    pub(crate) fn send_syn(&mut self, context: &mut Context<'_>, slot: u8) {
        let (segment_size, sack) = (self.peer_segment_size, self.sack);
        let Some(end) = self.end(slot) else {
            return;
        };
        let Some(flow) = end.tuple else {
            return;
        };
        let options = Options {
            maximum_segment_size: Some(segment_size),
            window_scale: Some(context.config.window_scale),
            sack_permitted: sack,
            ..Options::default()
        };
        let header = Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            sequence: end.sink.numbers.wire(SYN),
            flags: Flags::SYN,
            window: u16::MAX,
            options: options.with_acp(Some(acp::VERSION)),
            ..Header::default()
        };
        (context.emit)(Emission {
            flow,
            header,
            payload: Payload::None,
            room: 0,
        });
    }

    /// Handles a segment of a member that was sent a SYN.
    pub(crate) fn answer_of_member(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        header: &Header,
    ) -> Result<(), Reset> {
        let kernel_ends = context.config.kernel_ends;
        let peer_knows_size = self.phase != Phase::Opening || self.offer.by_cookie;
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        let ours = header.acknowledgment == end.sink.numbers.wire(FIRST);
        if !header.flags.contains(Flags::ACK) || !ours {
            context.counters.dropped_unacceptable += 1;
            return Ok(());
        }
        if header.flags.contains(Flags::RST) {
            return self.lose(context, slot);
        }
        if !header.flags.contains(Flags::SYN) {
            context.counters.dropped_unacceptable += 1;
            return Ok(());
        }
        end.source.numbers = Numbers::new(header.sequence);
        let remote = end.tuple.unwrap_or(self.peer);
        let size = tidewall_protocol::tcp::cookie::peer_mss(&remote, &header.options);
        let too_small =
            size < tidewall_protocol::tcp::MSS_MIN || peer_knows_size && size < self.segment_size;
        *context.smallest = size.max(SEGMENT_MIN).min(*context.smallest);
        let speaks = header
            .options
            .acp()
            .is_some_and(|version| version == acp::VERSION);
        let without_sack = self.sack && !header.options.sack_permitted;
        if without_sack {
            *context.without_sack |= 1 << slot;
        }
        // An option granted to the peer cannot be withdrawn.
        let without_sack_late = without_sack && self.phase != Phase::Opening;
        if too_small || without_sack_late || !(speaks || kernel_ends) {
            self.reset_member(context, slot);
            return self.lose(context, slot);
        }
        match header.options.window_scale {
            Some(scale) => end.sink.scale = scale.min(14),
            None => end.source.announced.scale = 0,
        }
        end.sink.edge = FIRST + u64::from(header.window);
        self.sack &= !without_sack;
        end.retry = None;
        end.stage = Stage::Answered;
        context.rearm = true;
        self.segment_size = self.segment_size.min(size);
        if self.phase == Phase::Open {
            self.open_end(context, slot)?;
            self.regrant();
            self.flush(context);
        }
        Ok(())
    }

    /// Completes the handshake with a member.
    pub(crate) fn open_end(&mut self, context: &mut Context<'_>, slot: u8) -> Result<(), Reset> {
        let Some(end) = self.end(slot) else {
            return Ok(());
        };
        end.stage = Stage::Open;
        end.source.announced.due = true;
        if let Some(counters) = context.members.get_mut(usize::from(slot)) {
            counters.connections += 1;
        }
        self.notify(|module| module.member_up(MemberId(slot)))
    }

    /// Handles a member's reset of its connection, if `start` is where it may be.
    pub(crate) fn member_reset(
        &mut self,
        context: &mut Context<'_>,
        slot: u8,
        start: u64,
    ) -> Result<(), Reset> {
        let acknowledged = self.member_ack(slot);
        let Some(end) = self.end(slot) else {
            return Ok(());
        };
        let source = &end.source;
        let in_order = source.unseen.first().map_or(source.next, |hole| hole.start);
        let behind_fin = source.next + u64::from(source.fin.is_some());
        if [
            acknowledged,
            in_order,
            source.next,
            behind_fin,
            source.acked,
        ]
        .contains(&start)
        {
            return self.lose(context, slot);
        }
        context.counters.dropped_unacceptable += 1;
        if start > source.acked && start <= source.limit {
            end.source.announced.due = true;
            self.flush(context);
        }
        Ok(())
    }

    /// Handles the death of a member on this connection.
    ///
    /// Frames that it has not acknowledged are holes from now on, if its module permits
    /// sending them again. Bytes that it owes the peer become null frames if they never
    /// arrived. Arrived, unacknowledged bytes have until
    /// [`Config::drain_timeout`](crate::Config::drain_timeout).
    pub(crate) fn lose(&mut self, context: &mut Context<'_>, slot: u8) -> Result<(), Reset> {
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        let was = end.stage;
        if matches!(was, Stage::Absent | Stage::Dead) {
            return Ok(());
        }
        context.counters.members_lost += 1;
        if let Some(counters) = context.members.get_mut(usize::from(slot)) {
            counters.failures += 1;
        }
        if self.phase != Phase::Open || was != Stage::Open {
            self.forget_end(context, slot);
            return match self.phase {
                // The others' FINs may have waited for it.
                Phase::Open => self.after_departure(context),
                Phase::Closed => Ok(()),
                _ if self.any(|end| end.stage != Stage::Absent) => Ok(()),
                _ => Err(Reset::Member),
            };
        }
        let mut policy = Lost::Reset;
        self.notify(|module| policy = module.member_down(MemberId(slot)))?;
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        let owes_nothing = end.sink.chain.is_empty() && end.source.acked == end.source.next;
        let is_missed = match policy {
            Lost::Resend => false,
            Lost::Reset => !owes_nothing,
            Lost::ResetIfUsed => !owes_nothing || end.sink.next > FIRST,
        };
        if is_missed {
            return Err(Reset::Member);
        }
        let inbound = &mut self.inbound;
        let before = inbound.abandoned.len();
        inbound.ring.abandon(
            &mut end.sink.chain,
            u64::MAX,
            0,
            |_| false,
            |frame| {
                inbound.holes.insert(frame.csn, frame.csn_end());
                inbound.blocks.remove(frame.csn, frame.csn_end());
                inbound.abandoned.push(frame.csn);
            },
        );
        context.counters.frames_reassigned += (inbound.abandoned.len() - before) as u64;
        end.sink = Sink::default();
        end.retry = None;
        end.stage = Stage::Dead;
        end.until = Some(context.now + context.config.drain_timeout);
        let unseen = !end.source.unseen.is_empty();
        let fin_is_ours = self.outbound.fin_owner == Some(slot);
        if let Some(tuple) = end.tuple.take() {
            context.gone.push((slot, tuple));
        }
        if unseen {
            if let Some(end) = self.end(slot) {
                end.retry = Some((context.now + RETRY_FIRST, 0));
            }
            self.send_nulls_of_dead(context, slot);
        }
        if fin_is_ours {
            self.outbound.fin_owner = None;
            self.retry = Some((context.now + RETRY_FIRST, 0));
        }
        context.rearm = true;
        self.ask_for_abandoned();
        self.finish_dead(context);
        self.after_departure(context)
    }

    /// Carries out the consequences of a member's leaving the connection.
    fn after_departure(&mut self, context: &mut Context<'_>) -> Result<(), Reset> {
        let there = |end: &End| !matches!(end.stage, Stage::Absent | Stage::Dead);
        if !self.any(there) && self.outbound.fin.is_none() {
            return Err(Reset::Member);
        }
        self.merge_fins(context, None);
        self.grant();
        self.inbound.announced.due |= self.fin_is_through();
        self.flush(context);
        self.look_for_end(context);
        Ok(())
    }

    fn forget_end(&mut self, context: &mut Context<'_>, slot: u8) {
        if let Some(end) = self.end(slot) {
            let end = core::mem::take(end);
            if let Some(tuple) = end.tuple {
                context.gone.push((slot, tuple));
            }
            context.rearm = true;
        }
    }

    /// Forgets dead members whose bytes the peer has.
    pub(crate) fn finish_dead(&mut self, context: &mut Context<'_>) {
        let done = |end: &End| end.stage == Stage::Dead && end.source.acked == end.source.next;
        for slot in self.slots(done) {
            self.forget_end(context, slot);
        }
    }

    /// Sends null frames in place of what a dead member never sent. Their bounds depend
    /// only on where the missing stretch ends, so they are the same each time.
    pub(crate) fn send_nulls_of_dead(&mut self, context: &mut Context<'_>, slot: u8) {
        let segment = u64::from(self.peer_segment_size);
        let Some(end) = self.end(slot) else {
            return;
        };
        let unseen = end.source.unseen.clone();
        // Only a member that sent wrong bounds leaves fewer bytes than a header.
        for range in unseen
            .iter()
            .filter(|range| may_be_frames(range.end - range.start))
        {
            let mut at = range.start;
            while at < range.end {
                let Some((csn, _)) = self.outbound.place(slot, at) else {
                    break;
                };
                let size = null_size(range.end - at, segment);
                context.counters.null_frames += 1;
                let payload = Payload::Null(size as usize);
                self.send_to_peer(context, csn, Flags::NONE, payload);
                at += size;
            }
        }
    }

    /// Drains a removed member: it receives no more frames, and a FIN when it has
    /// acknowledged the earlier ones.
    pub(crate) fn drain(&mut self, context: &mut Context<'_>, slot: u8) -> Result<(), Reset> {
        let Some(end) = self.ends.get_mut(usize::from(slot)) else {
            return Ok(());
        };
        match end.stage {
            Stage::Open => {
                end.draining = true;
                end.until = Some(context.now + context.config.drain_timeout);
                context.rearm = true;
                self.finish_drained(context, slot);
                self.after_departure(context)
            }
            Stage::Connecting | Stage::Answered => {
                self.reset_member(context, slot);
                self.lose(context, slot)
            }
            Stage::Absent | Stage::Dead => Ok(()),
        }
    }

    /// Advances a removed member's closing, if possible.
    pub(crate) fn finish_drained(&mut self, context: &mut Context<'_>, slot: u8) {
        let now = context.now;
        let waits = self.outbound.fin_owner == Some(slot) && !self.outbound.fin_acked;
        let Some(end) = self.end(slot) else {
            return;
        };
        if !end.draining || end.stage != Stage::Open {
            return;
        }
        let sink = &end.sink;
        let all_acknowledged = sink.chain.is_empty() && !sink.gaps.any_pending();
        if sink.fin.is_none() && all_acknowledged {
            end.retry = Some((now + RETRY_FIRST, 0));
            context.rearm = true;
            self.send_fin(context, slot);
        } else if sink.fin_acked && end.source.fin == Some(end.source.acked) && !waits {
            let lsn = sink.send_next();
            self.send_to_member(context, slot, lsn, Flags::NONE, Payload::None);
            self.forget_end(context, slot);
        }
    }

    /// Does what is due at `context.now`. An error ends the connection, as does
    /// [`Flow::is_over`](Self::is_over).
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) -> Result<(), Reset> {
        let now = context.now;
        context.rearm = true;
        let due = |retry: Option<(Time, u8)>| retry.filter(|&(at, _)| at <= now);
        for slot in self.slots(|end| end.stage != Stage::Absent) {
            let Some(end) = self.end(slot) else {
                continue;
            };
            if end.until.is_some_and(|until| until <= now) {
                end.until = None;
                match end.stage {
                    // Its last bytes did not arrive, as far as we know.
                    Stage::Dead => return Err(Reset::Member),
                    _ => {
                        self.reset_member(context, slot);
                        self.lose(context, slot)?;
                        continue;
                    }
                }
            }
            let Some((_, count)) = due(end.retry) else {
                continue;
            };
            if count >= context.config.retries && end.stage != Stage::Dead {
                self.reset_member(context, slot);
                self.lose(context, slot)?;
                continue;
            }
            end.retry = Some((now + backoff(count + 1), count.saturating_add(1)));
            match end.stage {
                Stage::Connecting => self.send_syn(context, slot),
                Stage::Open => self.send_fin(context, slot),
                Stage::Dead => self.send_nulls_of_dead(context, slot),
                Stage::Answered | Stage::Absent => {}
            }
        }
        if let Some((_, count)) = due(self.retry) {
            if count >= context.config.retries {
                return Err(Reset::Timeout);
            }
            self.retry = Some((now + backoff(count + 1), count + 1));
            let fin = self.outbound.fin.unwrap_or(self.outbound.next);
            self.send_to_peer(context, fin, Flags::FIN, Payload::None);
        }
        if self.phase != Phase::Closed && self.deadline(context.config) <= now {
            return Err(Reset::Timeout);
        }
        Ok(())
    }

    /// Both sides have closed, and no late segment is expected.
    pub(crate) fn is_over(&self, config: &Config, now: Time) -> bool {
        self.phase == Phase::Closed && self.since + config.linger <= now
    }

    /// Resets all remaining ends.
    pub(crate) fn reset(&mut self, context: &mut Context<'_>, reason: Reset) {
        let counters = &mut *context.counters;
        *match reason {
            Reset::Framing => &mut counters.reset_framing,
            Reset::Module => &mut counters.reset_module,
            Reset::ModuleWork => &mut counters.reset_module_work,
            Reset::Member => &mut counters.reset_member,
            Reset::Timeout => &mut counters.reset_timeout,
            Reset::Acknowledgment => &mut counters.reset_acknowledgment,
            Reset::ByPeer => &mut counters.reset_by_end,
        } += 1;
        if reason != Reset::ByPeer {
            let csn = self.peer_send_next();
            self.send_to_peer(context, csn, Flags::RST, Payload::None);
        }
        for slot in self.slots(|end| !matches!(end.stage, Stage::Absent | Stage::Dead)) {
            self.reset_member(context, slot);
        }
    }
}
