//! One engine with a peer whose segments are written by hand: "the peer gives", "we must
//! send".

use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Connection, Ecn, Handshake, Segment, State, Time, Timestamps,
};
use tidewall_wire::tcp::{Flags, Header, Options, SackBlocks};

use crate::link::{Frame, cut, flow};

pub const ACK: Flags = Flags::ACK;
pub const SYN: Flags = Flags::SYN;
pub const RST: Flags = Flags::RST;

pub fn both(a: Flags, b: Flags) -> Flags {
    a | b
}

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Our initial sequence number, and the peer's: so that both wrap soon.
pub const OURS: u32 = u32::MAX - 1000;
pub const THEIRS: u32 = u32::MAX - 2000;
/// Payload of a segment, and the peer's window unless a test sets another.
pub const MSS: usize = 1000;
pub const WINDOW: u16 = 60_000;

/// No timestamps or window scale, so that numbers appear unchanged.
pub fn plain() -> Config {
    Config {
        mss: MSS as u16,
        timestamps: false,
        window_scaling: false,
        receive_buffer: 50_000,
        receive_buffer_max: 50_000,
        ..Config::default()
    }
}

pub struct Peer {
    pub engine: Connection,
    pub now: Time,
    /// The peer's next sequence number, and what it acknowledges, for
    /// [`Peer::header`].
    pub sequence: u32,
    pub acknowledgment: u32,
    pub window: u16,
    pub timestamps: Option<Timestamps>,
    pub sack: SackBlocks,
    /// The traffic class of the next segment given.
    pub class: u8,
}

impl Peer {
    pub fn connecting(config: &Config) -> Self {
        let now = Duration::from_secs(1000);
        Self {
            engine: Connection::connect(flow(false), OURS, 0, config, now),
            now,
            sequence: THEIRS.wrapping_add(1),
            acknowledgment: OURS.wrapping_add(1),
            window: WINDOW,
            timestamps: None,
            sack: SackBlocks::default(),
            class: 0,
        }
    }

    /// An established connection, accepted here.
    pub fn established(config: &Config) -> Self {
        Self::with_window(config, WINDOW)
    }

    /// The same, with a peer that has another window.
    pub fn with_window(config: &Config, window: u16) -> Self {
        let now = Duration::from_secs(1000);
        let handshake = Handshake {
            flow: flow(false),
            local_isn: OURS,
            remote_isn: THEIRS,
            mss: config.mss,
            window_scale: None,
            local_window_scale: 0,
            sack: config.sack,
            ecn: config.ecn == Ecn::Active,
            timestamps: config.timestamps.then_some(Timestamps {
                value: 500,
                echo: 0,
            }),
            timestamp_offset: 0,
            window,
            round_trip: Some(ms(100)),
            fast_open: None,
        };
        Self {
            engine: Connection::accept(&handshake, config, now),
            now,
            sequence: THEIRS.wrapping_add(1),
            acknowledgment: OURS.wrapping_add(1),
            window,
            timestamps: config.timestamps.then_some(Timestamps {
                value: 500,
                echo: 0,
            }),
            sack: SackBlocks::default(),
            class: 0,
        }
    }

    /// Established and past the initial quick acknowledgments.
    pub fn past_quickack(config: &Config) -> Self {
        let mut peer = Self::established(config);
        peer.engine.set_quick_ack(false);
        peer
    }

    /// Gives a segment; offsets count from the first byte of data of either side.
    pub fn give(&mut self, flags: Flags, offset: u32, acknowledged: u32, payload: &[u8]) {
        self.give_raw(
            flags,
            THEIRS.wrapping_add(1).wrapping_add(offset),
            OURS.wrapping_add(1).wrapping_add(acknowledged),
            payload,
        );
    }

    pub fn give_raw(&mut self, flags: Flags, sequence: u32, acknowledgment: u32, payload: &[u8]) {
        let header = Header {
            sequence,
            acknowledgment,
            ..self.header(flags)
        };
        self.give_header(header, payload);
        self.sack = SackBlocks::default();
        self.class = 0;
    }

    /// The header of the peer's next segment.
    pub fn header(&self, flags: Flags) -> Header {
        let flow = self.engine.flow();
        Header {
            source_port: flow.remote.port(),
            destination_port: flow.local.port(),
            sequence: self.sequence,
            acknowledgment: self.acknowledgment,
            flags,
            window: self.window,
            urgent: 0,
            options: Options {
                timestamps: self.timestamps,
                sack: self.sack,
                ..Options::default()
            },
        }
    }

    pub fn give_header(&mut self, header: Header, payload: &[u8]) {
        let segment = Segment {
            flow: *self.engine.flow(),
            header,
            payload,
            traffic_class: self.class,
        };
        self.engine.input(&segment, self.now);
    }

    /// A bare acknowledgment of [`Peer::acknowledgment`].
    pub fn acknowledge(&mut self) {
        self.data(&[]);
    }

    /// The peer's next data.
    pub fn data(&mut self, payload: &[u8]) {
        self.give_header(self.header(ACK), payload);
        self.sequence = self.sequence.wrapping_add(payload.len() as u32);
    }

    /// An acknowledgment with a SACK block, in bytes from our first.
    pub fn selectively(&mut self, from: u32, to: u32) {
        let first = OURS.wrapping_add(1);
        assert!(
            self.sack
                .push(first.wrapping_add(from), first.wrapping_add(to))
        );
        self.acknowledge();
        self.sack = SackBlocks::default();
    }

    /// All that the engine sends now.
    pub fn sent(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let wanted = self.engine.wants_output();
        self.engine.output(self.now, &mut |outgoing| {
            frames.extend(cut(outgoing));
            true
        });
        assert!(wanted || frames.is_empty(), "sent without wanting to");
        assert!(!self.engine.wants_output());
        frames
    }

    /// The same as (flags, offset, acknowledged offset, payload length).
    pub fn brief(&mut self) -> Vec<(Flags, u32, u32, usize)> {
        self.sent()
            .into_iter()
            .map(|frame| {
                (
                    frame.header.flags,
                    frame.header.sequence.wrapping_sub(OURS.wrapping_add(1)),
                    frame
                        .header
                        .acknowledgment
                        .wrapping_sub(THEIRS.wrapping_add(1)),
                    frame.payload.len(),
                )
            })
            .collect()
    }

    /// Lets time pass; expired timers are served at their moments.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.engine.next_timeout()
            && at <= end
        {
            self.now = self.now.max(at);
            self.engine.timeout(self.now);
            if self.engine.wants_output() {
                break;
            }
        }
        if !self.engine.wants_output() {
            self.now = end;
        }
    }

    /// Until the next timer, which is served.
    pub fn wait_for_timer(&mut self) -> Duration {
        let before = self.now;
        let at = self.engine.next_timeout().expect("a timer runs");
        self.now = self.now.max(at);
        self.engine.timeout(self.now);
        self.now - before
    }

    pub fn write(&mut self, length: usize) {
        assert_eq!(self.engine.write(&vec![7; length]), Ok(length));
    }

    pub fn state(&self) -> State {
        self.engine.state()
    }
}
