//! A small TCP end whose segments hold whole frames. It has cumulative acknowledgments,
//! three duplicates, NewReno's partial acknowledgments, or SACK, a retransmission timer,
//! windows, FIN. Repeated segments may hold more or fewer frames than the first time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tidewall_protocol::tcp::FourTuple;
use tidewall_wire::acp::{self, Frames, Kind};
use tidewall_wire::tcp::{Flags, Header, Options, SackBlocks, before};

pub const TIMEOUT: Duration = Duration::from_millis(200);

/// A segment on a link: the connection as its receiver sees it.
#[derive(Clone, Debug)]
pub struct Packet {
    pub flow: FourTuple,
    pub header: Header,
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    SynSent,
    SynReceived,
    Open,
    Reset,
}

pub struct End {
    pub flow: FourTuple,
    pub state: State,
    pub segment_size: usize,
    scale: u8,
    their_scale: u8,
    // Sending: positions count from the SYN, which is 0.
    iss: u32,
    frames: VecDeque<(u32, Vec<u8>)>,
    written: u32,
    una: u32,
    next: u32,
    /// Maximum number of segments in flight.
    pub congestion: usize,
    window: u32,
    window_field: u16,
    duplicates: u32,
    recover: u32,
    timer: Option<Duration>,
    backoff: u32,
    closed: bool,
    fin_sent: bool,
    // Receiving.
    irs: u32,
    received: u32,
    out_of_order: BTreeMap<u32, Vec<u8>>,
    pub got: Vec<Vec<u8>>,
    /// Bytes of the receive window.
    pub buffer: u32,
    their_fin: Option<u32>,
    pub fin_received: bool,
    ack_due: bool,
    pub repeated: u64,
    /// Offers SACK; after the handshake: both ends accept it.
    pub sack: bool,
    /// Discards out-of-order data every this many segments, as a receiver may that has
    /// SACKed it (RFC 2018 §8).
    pub discards: Option<u32>,
    /// Number of out-of-order segments received.
    disordered: u32,
    /// Starts of frames that the other end has SACKed, or that were repeated since.
    sacked: BTreeSet<u32>,
    again: BTreeSet<u32>,
    /// Starts of out-of-order segments, newest last.
    arrivals: Vec<u32>,
    /// A segment that arrived twice (RFC 2883).
    duplicate: Option<(u32, u32)>,
}

impl End {
    fn new(flow: FourTuple, iss: u32, segment_size: usize) -> Self {
        Self {
            flow,
            state: State::SynSent,
            segment_size,
            scale: 3,
            their_scale: 0,
            iss,
            frames: VecDeque::new(),
            written: 1,
            una: 0,
            next: 0,
            congestion: 20,
            window: 0,
            window_field: 0,
            duplicates: 0,
            recover: 0,
            timer: None,
            backoff: 0,
            closed: false,
            fin_sent: false,
            irs: 0,
            received: 0,
            out_of_order: BTreeMap::new(),
            got: Vec::new(),
            buffer: 100_000,
            their_fin: None,
            fin_received: false,
            ack_due: false,
            repeated: 0,
            sack: true,
            discards: None,
            disordered: 0,
            sacked: BTreeSet::new(),
            again: BTreeSet::new(),
            arrivals: Vec::new(),
            duplicate: None,
        }
    }

    pub fn connect(flow: FourTuple, iss: u32, segment_size: usize) -> Self {
        Self::new(flow, iss, segment_size)
    }

    pub fn accept(syn: &Packet, iss: u32, segment_size: usize) -> Self {
        let mut end = Self::new(syn.flow, iss, segment_size);
        end.state = State::SynReceived;
        end.take_syn(&syn.header);
        end
    }

    fn take_syn(&mut self, header: &Header) {
        self.irs = header.sequence;
        self.received = 1;
        let options = &header.options;
        assert_eq!(options.acp(), Some(acp::VERSION), "the switch asks for ACP");
        assert!(options.timestamps.is_none() && options.fast_open().is_none());
        self.sack &= options.sack_permitted;
        let size = options.maximum_segment_size.expect("a size");
        self.segment_size = self.segment_size.min(size.into());
        match options.window_scale {
            Some(scale) => self.their_scale = scale,
            None => self.scale = 0,
        }
        self.window = header.window.into();
    }

    pub fn write(&mut self, payload: &[u8]) {
        let header = acp::Header::data(payload.len()).expect("a frame");
        let bytes = [&header.bytes()[..], payload].concat();
        assert!(bytes.len() <= self.segment_size, "a frame fits a segment");
        let at = self.written;
        self.written += bytes.len() as u32;
        self.frames.push_back((at, bytes));
    }

    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Bytes that were written and are not acknowledged.
    pub fn outstanding(&self) -> u32 {
        self.written - self.una.min(self.written)
    }

    /// Everything was acknowledged, including the FIN.
    pub fn is_done(&self) -> bool {
        self.una == self.written + u32::from(self.closed) && self.fin_sent == self.closed
    }

    pub fn is_whole(&self) -> bool {
        self.out_of_order.is_empty()
    }

    /// Out-of-order data, newest first, after duplicate data (RFC 2018 §4).
    fn blocks(&mut self) -> SackBlocks {
        let mut chosen = SackBlocks::default();
        if !self.sack {
            return chosen;
        }
        let wire = |at: u32| self.irs.wrapping_add(at);
        if let Some((start, end)) = self.duplicate.take() {
            chosen.push(wire(start), wire(end));
        }
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (&at, bytes) in &self.out_of_order {
            let end = at + bytes.len() as u32;
            match ranges.last_mut() {
                Some(last) if at <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((at, end)),
            }
        }
        self.arrivals
            .retain(|at| self.out_of_order.contains_key(at));
        for at in self.arrivals.iter().rev() {
            let around = ranges
                .iter()
                .position(|&(start, end)| (start..end).contains(at));
            if let Some(around) = around {
                let (start, end) = ranges.remove(around);
                chosen.push(wire(start), wire(end));
            }
        }
        chosen
    }

    /// Records the other end's blocks.
    fn take_blocks(&mut self, header: &Header) {
        assert!(
            self.sack || header.options.sack.is_empty(),
            "blocks that were not agreed on"
        );
        for &(first, end) in header.options.sack.as_slice() {
            let (first, end) = (first.wrapping_sub(self.iss), end.wrapping_sub(self.iss));
            let acknowledged = header.acknowledgment.wrapping_sub(self.iss);
            assert!(
                acknowledged < first && first < end && end <= self.written + 1,
                "{acknowledged} {first} {end} {}",
                self.next
            );
            let frames = self
                .frames
                .iter()
                .map(|(at, bytes)| (*at, at + bytes.len() as u32));
            let held = frames.filter(|frame| first <= frame.0 && frame.1 <= end);
            self.sacked.extend(held.map(|frame| frame.0));
        }
    }

    /// The first lost frame from `from` on that was not repeated: three after it were
    /// received.
    fn lost(&self, from: u32) -> Option<u32> {
        let third = *self.sacked.iter().rev().nth(2)?;
        let frames = self.frames.iter().map(|frame| frame.0);
        let mut missing = frames.take_while(|&at| at < third);
        missing.find(|at| *at >= from && !self.sacked.contains(at) && !self.again.contains(at))
    }

    fn header(&self, at: u32, flags: Flags) -> Header {
        let room = self.buffer;
        Header {
            source_port: self.flow.local.port(),
            destination_port: self.flow.remote.port(),
            sequence: self.iss.wrapping_add(at),
            acknowledgment: self.irs.wrapping_add(self.received),
            flags: flags | Flags::ACK,
            window: u16::try_from(room >> self.scale).unwrap_or(u16::MAX),
            ..Header::default()
        }
    }

    fn syn(&self) -> Header {
        let flags = if self.state == State::SynSent {
            Flags::SYN
        } else {
            Flags::SYN | Flags::ACK
        };
        let options = Options {
            maximum_segment_size: Some(self.segment_size as u16),
            window_scale: (self.scale > 0).then_some(self.scale),
            sack_permitted: self.sack,
            ..Options::default()
        };
        Header {
            flags,
            acknowledgment: if self.received > 0 {
                self.irs.wrapping_add(1)
            } else {
                0
            },
            window: u16::try_from(self.buffer).unwrap_or(u16::MAX),
            options: options.with_acp(Some(acp::VERSION)),
            ..self.header(0, Flags::NONE)
        }
    }

    pub fn input(&mut self, packet: &Packet) {
        let header = &packet.header;
        let flags = header.flags;
        if self.state == State::Reset {
            return;
        }
        if flags.contains(Flags::RST) {
            let expected = self.irs.wrapping_add(self.received);
            if self.state == State::SynSent || header.sequence == expected {
                self.state = State::Reset;
                self.timer = None;
            } else {
                self.ack_due = true;
            }
            return;
        }
        if flags.contains(Flags::SYN) {
            if self.state == State::SynSent && flags.contains(Flags::ACK) {
                self.take_syn(header);
                self.state = State::Open;
                self.una = 1;
                self.next = 1;
                self.timer = None;
                self.backoff = 0;
            } else if self.state == State::SynReceived {
                self.next = 0;
                return;
            }
            self.ack_due = true;
            return;
        }
        let ack = header.acknowledgment.wrapping_sub(self.iss);
        if self.state == State::SynReceived {
            if ack < 1 {
                return;
            }
            self.state = State::Open;
            self.una = 1;
            self.next = self.next.max(1);
            self.timer = None;
            self.backoff = 0;
        }
        if self.state != State::Open {
            return;
        }
        self.take_blocks(header);
        self.acknowledged(
            ack,
            header.window,
            packet.payload.is_empty() && !flags.contains(Flags::FIN),
        );
        self.take(packet);
    }

    fn acknowledged(&mut self, ack: u32, window: u16, alone: bool) {
        assert!(
            ack <= self.written + 1,
            "nothing is acknowledged that was not sent"
        );
        if ack > self.una {
            // The other end has discarded SACKed data (RFC 2018 §8).
            if self.sacked.contains(&ack) {
                self.sacked.clear();
                self.again.clear();
            }
            self.sacked = self.sacked.split_off(&ack);
            self.una = ack;
            self.next = self.next.max(ack);
            self.duplicates = 0;
            self.backoff = 0;
            self.timer = None;
            while self
                .frames
                .front()
                .is_some_and(|(at, bytes)| at + bytes.len() as u32 <= ack)
            {
                self.frames.pop_front();
            }
            if let Some((at, _)) = self.frames.front() {
                assert!(*at >= ack, "whole frames are acknowledged");
            }
            if ack >= self.recover {
                self.again.clear();
            } else if !self.again.contains(&ack) {
                self.repeated = u64::MAX; // marks: repeat one now
            }
        } else if ack == self.una && alone && window == self.window_field && self.next > self.una {
            self.duplicates += 1;
            if !self.sack && self.duplicates == 3 && self.una >= self.recover {
                self.recover = self.next;
                self.repeated = u64::MAX;
            }
        }
        if ack >= self.una {
            self.window_field = window;
            self.window = u32::from(window) << self.their_scale;
        }
    }

    fn take(&mut self, packet: &Packet) {
        let at = packet.header.sequence.wrapping_sub(self.irs);
        let end = at.wrapping_add(packet.payload.len() as u32);
        let fin = packet.header.flags.contains(Flags::FIN);
        if !packet.payload.is_empty() || fin || before(at, self.received) {
            self.ack_due = true;
        }
        if !packet.payload.is_empty() && !before(end, self.received) {
            let room = self.received + self.buffer;
            if end <= room {
                self.disordered += u32::from(at > self.received);
                let again = self.out_of_order.insert(at, packet.payload.clone());
                if again.is_some_and(|again| again.len() == packet.payload.len()) {
                    self.duplicate = Some((at, end));
                }
                self.arrivals.retain(|&other| other != at);
                self.arrivals.push(at);
            }
            let discards = |every| at > self.received && self.disordered.is_multiple_of(every);
            if self.discards.is_some_and(discards) {
                self.out_of_order.clear();
                self.duplicate = None;
            }
        } else if !packet.payload.is_empty() && !before(at, 1) {
            self.duplicate = Some((at, end));
        }
        if fin {
            self.their_fin = Some(end);
        }
        while let Some(entry) = self.out_of_order.first_entry() {
            let at = *entry.key();
            if at > self.received {
                break;
            }
            let bytes = entry.remove();
            let Some(rest) = bytes.get((self.received - at) as usize..) else {
                continue;
            };
            for frame in Frames::new(rest) {
                let frame = frame.expect("a segment holds whole frames");
                if frame.kind == Kind::Data {
                    self.got.push(frame.payload.to_vec());
                }
            }
            self.received += rest.len() as u32;
        }
        if self.their_fin == Some(self.received) {
            self.received += 1;
            self.fin_received = true;
        }
    }

    /// The whole frames from `at` on that fit a segment.
    fn segment(&self, at: u32) -> Vec<u8> {
        let first = self.frames.partition_point(|(start, _)| *start < at);
        let mut payload = Vec::new();
        for (_, bytes) in self.frames.iter().skip(first) {
            if payload.len() + bytes.len() > self.segment_size {
                break;
            }
            payload.extend_from_slice(bytes);
        }
        payload
    }

    pub fn output(&mut self, now: Duration, send: &mut impl FnMut(Packet)) {
        let out = |header: Header, payload: Vec<u8>, flow: FourTuple| Packet {
            flow: FourTuple {
                local: flow.remote,
                remote: flow.local,
            },
            header,
            payload,
        };
        let expired = self.timer.is_some_and(|at| at <= now);
        match self.state {
            State::Reset => return,
            State::SynSent | State::SynReceived => {
                if self.next == 0 || expired {
                    self.next = 1;
                    self.backoff += 1;
                    self.timer = Some(now + TIMEOUT * self.backoff * 2);
                    send(out(self.syn(), Vec::new(), self.flow));
                }
                return;
            }
            State::Open => {}
        }
        let mut again = std::mem::take(&mut self.repeated) == u64::MAX;
        if expired {
            self.timer = None;
            self.backoff += 1;
            self.recover = self.next;
            self.duplicates = 0;
            self.sacked.clear();
            self.again.clear();
            again = true;
            assert!(
                self.backoff < 40,
                "{:?} repeats in vain: {}",
                self.flow,
                self.una
            );
        }
        if again && self.next > self.una {
            let payload = self.segment(self.una);
            let fin = payload.is_empty() && self.fin_sent;
            if !payload.is_empty() || fin {
                let flags = if fin { Flags::FIN } else { Flags::PSH };
                send(out(self.header(self.una, flags), payload, self.flow));
                self.ack_due = false;
            }
        } else if again && self.next == self.una {
            // Probes whether the window is still closed.
            send(out(
                self.header(self.una - 1, Flags::NONE),
                Vec::new(),
                self.flow,
            ));
        }
        let mut from = 0;
        while let Some(at) = self.lost(from) {
            if self.again.is_empty() {
                self.recover = self.next;
            }
            let payload = self.segment(at);
            from = at + payload.len() as u32;
            self.again.extend(
                self.frames
                    .iter()
                    .map(|frame| frame.0)
                    .filter(|frame| (at..from).contains(frame)),
            );
            send(out(self.header(at, Flags::PSH), payload, self.flow));
        }
        let mut flight = (self.next - self.una) as usize;
        while self.next < self.written && flight < self.congestion * self.segment_size {
            let payload = self.segment(self.next);
            let end = self.next + payload.len() as u32;
            if payload.is_empty() || end > self.una + self.window {
                break;
            }
            send(out(self.header(self.next, Flags::PSH), payload, self.flow));
            flight += (end - self.next) as usize;
            self.next = end;
            self.ack_due = false;
        }
        if self.closed && !self.fin_sent && self.next == self.written {
            self.fin_sent = true;
            send(out(
                self.header(self.next, Flags::FIN),
                Vec::new(),
                self.flow,
            ));
            self.next += 1;
            self.ack_due = false;
        }
        if self.ack_due {
            self.ack_due = false;
            let mut header = self.header(self.next, Flags::NONE);
            header.options.sack = self.blocks();
            send(out(header, Vec::new(), self.flow));
        }
        let waits = self.una < self.written + u32::from(self.closed);
        if !waits {
            self.timer = None;
        } else if self.timer.is_none() {
            self.timer = Some(now + TIMEOUT * (1 << self.backoff.min(3)));
        }
    }

    pub fn deadline(&self) -> Option<Duration> {
        self.timer
    }
}
