//! A switch whose ends are the test: it provides the input, and sees the output.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall_protocol::tcp::FourTuple;
use tidewall_switch::modules::{Lost, Module};
use tidewall_switch::{Config, Emission, Member, Payload, Switch};
use tidewall_wire::acp;
use tidewall_wire::tcp::{Flags, Header, Options, SackBlocks};

use super::bed::{SWITCH, VIRTUAL, config, round_robin, secrets, segment};
use super::end::Packet;

pub const PEER: &str = "198.51.100.7:40000";
/// Initial sequence numbers.
pub const PEER_ISN: u32 = 1000;
pub const MEMBER_ISN: u32 = 5000;
/// The window that ends announce; their scale is 0.
pub const WINDOW: u16 = 20_000;

pub struct Raw {
    pub now: Duration,
    pub switch: Switch,
    pub peer: FourTuple,
    /// Connections to members, as they arrive, and the switch's initial number there.
    pub members: Vec<(FourTuple, u32)>,
    /// The switch's initial number towards the peer.
    pub isn: u32,
    /// The window that ends now announce.
    pub window: u16,
    /// Blocks of the next segment, counted from its receiver's SYN.
    pub sack: Vec<(u32, u32)>,
}

pub fn syn_options() -> Options {
    let options = Options {
        maximum_segment_size: Some(900),
        ..Options::default()
    };
    options.with_acp(Some(acp::VERSION))
}

pub fn data(payload: &[u8]) -> Vec<u8> {
    let header = acp::Header::data(payload.len()).expect("a frame");
    [&header.bytes()[..], payload].concat()
}

impl Raw {
    pub fn new(
        config: Config,
        module: impl FnMut() -> Box<dyn Module> + Send + 'static,
        members: usize,
    ) -> Self {
        let mut raw = Self {
            now: Duration::from_secs(1),
            switch: Switch::new(config, secrets(), Box::new(module)).expect("a configuration"),
            peer: FourTuple {
                local: VIRTUAL.parse().expect("an address"),
                remote: PEER.parse().expect("an address"),
            },
            members: Vec::new(),
            isn: 0,
            window: WINDOW,
            sack: Vec::new(),
        };
        for number in 1..=members {
            assert_eq!(raw.add_member(number), [], "no connection yet");
        }
        raw
    }

    pub fn add_member(&mut self, number: usize) -> Vec<Emission> {
        let member = Member {
            address: format!("10.0.1.{number}:6379").parse().expect("an address"),
            local: SWITCH.parse().expect("an address"),
        };
        let mut emissions = Vec::new();
        self.switch
            .add_member(self.now, member, &mut |emission| emissions.push(emission))
            .expect("a member");
        emissions
    }

    /// Starts with an open connection.
    pub fn open(members: usize) -> Self {
        Self::open_with(config(), round_robin(Lost::Reset), members)
    }

    pub fn open_with(
        config: Config,
        module: impl FnMut() -> Box<dyn Module> + Send + 'static,
        members: usize,
    ) -> Self {
        let mut raw = Self::new(config, module, members);
        let syns = raw.syn(syn_options());
        raw.answer(&syns);
        let opened = raw.peer(1, 1, Flags::ACK, &[]);
        assert_eq!(opened.len(), members, "members hear of it");
        raw
    }

    pub fn put(&mut self, packet: &Packet) -> Vec<Emission> {
        let mut emissions = Vec::new();
        self.switch
            .input(self.now, &segment(packet), &mut |emission| {
                emissions.push(emission)
            });
        emissions
    }

    pub fn poll(&mut self, now: Duration) -> Vec<Emission> {
        self.now = now;
        let mut emissions = Vec::new();
        self.switch
            .poll(now, &mut |emission| emissions.push(emission));
        emissions
    }

    fn packet(
        &self,
        flow: FourTuple,
        sequence: u32,
        acknowledgment: u32,
        flags: Flags,
        payload: &[u8],
    ) -> Packet {
        Packet {
            flow,
            header: Header {
                source_port: flow.remote.port(),
                destination_port: flow.local.port(),
                sequence,
                acknowledgment,
                flags,
                window: self.window,
                ..Header::default()
            },
            payload: payload.to_vec(),
        }
    }

    pub fn syn(&mut self, options: Options) -> Vec<Emission> {
        let mut packet = self.packet(self.peer, PEER_ISN, 0, Flags::SYN, &[]);
        packet.header.options = options;
        self.put(&packet)
    }

    pub fn syn_from(&mut self, remote: SocketAddr) -> Vec<Emission> {
        self.peer.remote = remote;
        self.syn(syn_options())
    }

    /// Makes members answer the SYNs among `emissions`; returns the emissions after the
    /// last answer.
    pub fn answer(&mut self, emissions: &[Emission]) -> Vec<Emission> {
        let mut last = Vec::new();
        for syn in emissions
            .iter()
            .filter(|emission| emission.header.flags == Flags::SYN)
        {
            last = self.answer_one(syn, syn_options());
        }
        last
    }

    pub fn answer_one(&mut self, syn: &Emission, options: Options) -> Vec<Emission> {
        self.members.push((syn.flow, syn.header.sequence));
        let ack = syn.header.sequence.wrapping_add(1);
        let mut packet = self.packet(syn.flow, MEMBER_ISN, ack, Flags::SYN | Flags::ACK, &[]);
        packet.header.options = options;
        let emissions = self.put(&packet);
        let to_peer = |emission: &&Emission| emission.header.flags == Flags::SYN | Flags::ACK;
        if let Some(answer) = emissions.iter().find(to_peer) {
            self.isn = answer.header.sequence;
        }
        emissions
    }

    fn blocks(&mut self, isn: u32) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        for (first, end) in self.sack.drain(..) {
            assert!(blocks.push(isn.wrapping_add(first), isn.wrapping_add(end)));
        }
        blocks
    }

    /// A segment of the peer; numbers from the SYNs on.
    pub fn peer(&mut self, sequence: u32, ack: u32, flags: Flags, payload: &[u8]) -> Vec<Emission> {
        let sequence = PEER_ISN.wrapping_add(sequence);
        let mut packet = self.packet(
            self.peer,
            sequence,
            self.isn.wrapping_add(ack),
            flags,
            payload,
        );
        packet.header.options.sack = self.blocks(self.isn);
        self.put(&packet)
    }

    /// A segment of a member; numbers from the SYNs on.
    pub fn member(
        &mut self,
        member: usize,
        sequence: u32,
        ack: u32,
        flags: Flags,
        payload: &[u8],
    ) -> Vec<Emission> {
        let (flow, isn) = self.members[member];
        let sequence = MEMBER_ISN.wrapping_add(sequence);
        let mut packet = self.packet(flow, sequence, isn.wrapping_add(ack), flags, payload);
        packet.header.options.sack = self.blocks(isn);
        self.put(&packet)
    }

    /// Segments to a member, counted from its SYN: sequence number, flags, bytes.
    pub fn to_member(&self, member: usize, emissions: &[Emission]) -> Vec<(u32, Flags, Payload)> {
        let (flow, isn) = self.members[member];
        let mine = emissions.iter().filter(|emission| emission.flow == flow);
        mine.map(|emission| {
            let sequence = emission.header.sequence.wrapping_sub(isn);
            (sequence, emission.header.flags, emission.payload.clone())
        })
        .collect()
    }

    /// Acknowledgments to the peer, counted from its SYN.
    pub fn acks(&self, emissions: &[Emission]) -> Vec<u32> {
        let mine = emissions
            .iter()
            .filter(|emission| emission.flow == self.peer);
        mine.map(|emission| emission.header.acknowledgment.wrapping_sub(PEER_ISN))
            .collect()
    }

    /// SACK blocks to an end, counted from its SYN.
    pub fn blocks_to(&self, flow: FourTuple, emissions: &[Emission]) -> Vec<(u32, u32)> {
        let isn = if flow == self.peer {
            PEER_ISN
        } else {
            MEMBER_ISN
        };
        let mine = emissions.iter().filter(|emission| emission.flow == flow);
        mine.flat_map(|emission| emission.header.options.sack.as_slice())
            .map(|&(first, end)| (first.wrapping_sub(isn), end.wrapping_sub(isn)))
            .collect()
    }

    pub fn resets(&self, emissions: &[Emission]) -> usize {
        let resets = |emission: &&Emission| emission.header.flags.contains(Flags::RST);
        emissions.iter().filter(resets).count()
    }
}
