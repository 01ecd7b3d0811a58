//! One peer, a switch, members, and the links between them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_protocol::tcp::{FourTuple, Secrets, Segment, SegmentInPieces};
use tidewall_simulator::link::{Impairment, Link};
use tidewall_simulator::random::Random;
use tidewall_switch::modules::{Lost, Module, RoundRobin};
use tidewall_switch::{
    Config, Emission, Gather, Gathered, Member, MemberId, Payload, Switch, segments,
};
use tidewall_wire::acp;
use tidewall_wire::pieces::{Behind, Pieces};
use tidewall_wire::tcp::{Flags, Header};

use super::end::{End, Packet, State};
use super::model::Model;

pub const VIRTUAL: &str = "192.0.2.1:80";
pub const SWITCH: &str = "10.0.0.1";
pub const SEGMENT_SIZE: usize = 1000;

/// A member's machine.
pub struct Host {
    pub id: MemberId,
    pub address: SocketAddr,
    /// By the switch's port.
    pub connections: BTreeMap<u16, End>,
    pub alive: bool,
    /// Answers each frame with one of the same bytes.
    pub echoes: bool,
    /// Answers SYNs with RST.
    pub refuses: bool,
    links: [Link<Packet>; 2],
    pub buffer: u32,
    /// As [`End::sack`] and [`End::discards`].
    pub sack: bool,
    pub discards: Option<u32>,
}

pub struct Bed {
    pub now: Duration,
    pub switch: Switch,
    gather: Gather,
    pub peer: End,
    peer_links: [Link<Packet>; 2],
    pub hosts: Vec<Host>,
    pub model: Model,
    pub random: Random,
    impairment: Impairment,
    pub ring: u16,
    answered: HashMap<FourTuple, usize>,
    traces: bool,
}

pub fn config() -> Config {
    let mut config = Config::new(VIRTUAL.parse().expect("an address"));
    config.segment_size = SEGMENT_SIZE as u16;
    config
}

pub fn secrets() -> Secrets {
    Secrets {
        sequence: [7; 16],
        cookie: [9; 16],
    }
}

pub fn round_robin(lost: Lost) -> impl FnMut() -> Box<dyn Module> + Send {
    move || Box::new(RoundRobin::new(lost))
}

pub fn segment(packet: &Packet) -> Segment<'_> {
    Segment {
        flow: packet.flow,
        header: packet.header,
        payload: &packet.payload,
        traffic_class: 0,
    }
}

/// Bytes in pieces of this size.
struct Cut<'a>(&'a [u8], usize);

impl Behind for Cut<'_> {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        self.0.chunks(self.1).nth(number + 1)
    }
}

/// Passes the switch a packet: every other one in pieces.
fn input(switch: &mut Switch, now: Duration, packet: &Packet, emit: &mut dyn FnMut(Emission)) {
    let whole = segment(packet);
    let sequence = packet.header.sequence as usize;
    if sequence.is_multiple_of(2) || packet.payload.is_empty() {
        return switch.input(now, &whole, emit);
    }
    let cut = Cut(&packet.payload, 1 + sequence % 61);
    let first = cut.0.chunks(cut.1).next().unwrap_or_default();
    let mut segment = SegmentInPieces::from(whole);
    segment.payload = Pieces::new(first, &cut, cut.0.len()).unwrap();
    switch.input_in_pieces(now, &segment, emit);
}

pub fn bytes_of(emission: &Emission, received: &[u8]) -> Vec<u8> {
    match &emission.payload {
        Payload::None => Vec::new(),
        Payload::Received(range) => received[range.clone()].to_vec(),
        Payload::Null(size) => {
            let mut bytes = acp::Header::null(*size)
                .expect("a null frame")
                .bytes()
                .to_vec();
            bytes.resize(*size, 0);
            bytes
        }
    }
}

/// Segments that leave for the emissions while their batch continues; the rest waits.
pub fn put(gather: &mut Gather, emissions: &[Emission], received: &[u8]) -> Vec<Packet> {
    let mut sent = Vec::new();
    for (header, parts) in segments(emissions) {
        let (earlier, taken) = gather.put(&header, parts, received.into(), 0, 0);
        sent.extend(earlier.map(Packet::from));
        if !taken {
            sent.push(Packet::from(Gathered {
                flow: parts[0].flow,
                header,
                payload: parts.iter().flat_map(|it| bytes_of(it, received)).collect(),
                traffic_class: 0,
                queue: 0,
            }));
        }
    }
    sent
}

impl From<Gathered> for Packet {
    fn from(gathered: Gathered) -> Self {
        Packet {
            flow: FourTuple {
                local: gathered.flow.remote,
                remote: gathered.flow.local,
            },
            header: gathered.header,
            payload: gathered.payload,
        }
    }
}

/// A host's listening address, counted from 0.
pub fn host_address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, host as u8 + 1], 6379))
}

pub fn delayed(delay: Duration) -> Impairment {
    Impairment {
        delay,
        ..Impairment::default()
    }
}

impl Bed {
    pub fn new(
        config: Config,
        module: impl FnMut() -> Box<dyn Module> + Send + 'static,
        members: usize,
        impairment: Impairment,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let ring = config.ring;
        let peer = FourTuple {
            local: "198.51.100.7:40000".parse().expect("an address"),
            remote: config.address,
        };
        let links = [(); 2].map(|()| Link::new(impairment.clone(), random.bits()));
        let iss = random.bits() as u32;
        let mut bed = Self {
            now: Duration::from_secs(1),
            switch: Switch::new(config, secrets(), Box::new(module)).expect("a configuration"),
            gather: Gather::default(),
            peer: End::connect(peer, iss, SEGMENT_SIZE),
            peer_links: links,
            hosts: Vec::new(),
            model: Model::default(),
            random,
            impairment,
            ring,
            answered: HashMap::new(),
            traces: std::env::var_os("TIDEWALL_TRACE").is_some(),
        };
        for _ in 0..members {
            bed.add_member();
        }
        bed
    }

    pub fn add_member(&mut self) -> usize {
        let number = self.hosts.len() + 1;
        let address = host_address(number - 1);
        let seeds = [self.random.bits(), self.random.bits()];
        self.hosts.push(Host {
            id: MemberId(0),
            address,
            connections: BTreeMap::new(),
            alive: true,
            echoes: false,
            refuses: false,
            links: seeds.map(|seed| Link::new(self.impairment.clone(), seed)),
            buffer: 100_000,
            sack: true,
            discards: None,
        });
        self.join(number - 1);
        number - 1
    }

    /// Adds a machine as a member.
    fn join(&mut self, host: usize) {
        let member = Member {
            address: self.hosts[host].address,
            local: SWITCH.parse().expect("an address"),
        };
        let mut emissions = Vec::new();
        let id = self
            .switch
            .add_member(self.now, member, &mut |emission| emissions.push(emission));
        self.hosts[host].id = id.expect("a member");
        self.deliver(emissions, None);
    }

    /// Restarts a machine that died, without its state.
    pub fn restart(&mut self, host: usize) {
        self.hosts[host].connections.clear();
        self.hosts[host].alive = true;
        self.join(host);
    }

    pub fn remove_member(&mut self, host: usize) {
        let mut emissions = Vec::new();
        let id = self.hosts[host].id;
        self.switch
            .remove_member(self.now, id, &mut |emission| emissions.push(emission));
        self.deliver(emissions, None);
    }

    /// Kills the machine; the switch learns of it by a health check.
    pub fn kill(&mut self, host: usize) {
        self.hosts[host].alive = false;
        let connections = self.hosts[host].connections.values();
        let dead = connections.map(|end| FourTuple {
            local: end.flow.remote,
            remote: end.flow.local,
        });
        self.model.kill(&dead.collect::<Vec<_>>());
        let mut emissions = Vec::new();
        let id = self.hosts[host].id;
        self.switch
            .fail_member(self.now, id, &mut |emission| emissions.push(emission));
        self.deliver(emissions, None);
    }

    fn deliver(&mut self, emissions: Vec<Emission>, answered: Option<&Packet>) {
        let received = answered.map_or(&[][..], |packet| &packet.payload);
        for part in &emissions {
            let to_peer = part.flow.local == self.peer.flow.remote;
            self.trace(" >", part.flow, &part.header, &part.payload);
            let bytes = bytes_of(part, received);
            self.model.output(part, &bytes, answered, to_peer);
        }
        for sent in put(&mut self.gather, &emissions, received) {
            self.send(sent);
        }
        if answered.is_none() {
            self.end_batch();
        }
        for flow in self.switch.flows() {
            assert!(flow.ring_in <= self.ring.into() && flow.ring_out <= self.ring.into());
        }
    }

    /// Sends the waiting segments.
    fn end_batch(&mut self) {
        while let Some(gathered) = self.gather.pop() {
            self.send(Packet::from(gathered));
        }
    }

    fn send(&mut self, packet: Packet) {
        assert!(packet.payload.len() <= SEGMENT_SIZE);
        let FourTuple { local, remote } = packet.flow;
        let link = if remote == self.peer.flow.remote {
            &mut self.peer_links[1]
        } else {
            let host = self.hosts.iter_mut().find(|host| host.address == local);
            &mut host.expect("a member").links[0]
        };
        let bytes = 40 + packet.payload.len() as u32;
        link.send(self.now, bytes, false, packet);
    }

    /// Prints what goes in and out if `TIDEWALL_TRACE` is set.
    fn trace(&self, way: &str, flow: FourTuple, header: &Header, payload: &dyn std::fmt::Debug) {
        if self.traces {
            let Header {
                sequence,
                acknowledgment,
                flags,
                window,
                ..
            } = header;
            let ends = (flow.local, flow.remote);
            println!(
                "{:?} {way} {ends:?} {flags:?} {sequence} ack {acknowledgment} win {window} {payload:?}",
                self.now
            );
        }
    }

    /// Passes the switch a packet.
    pub fn input(&mut self, packet: &Packet) {
        self.trace("<", packet.flow, &packet.header, &packet.payload.len());
        let mut emissions = Vec::new();
        input(&mut self.switch, self.now, packet, &mut |emission| {
            emissions.push(emission)
        });
        self.deliver(emissions, Some(packet));
    }

    fn output(&mut self) {
        let now = self.now;
        let link = &mut self.peer_links[0];
        self.peer.output(now, &mut |packet| {
            link.send(now, 40 + packet.payload.len() as u32, false, packet);
        });
        for host in self.hosts.iter_mut().filter(|host| host.alive) {
            for end in host.connections.values_mut() {
                if host.echoes {
                    let done = self.answered.entry(end.flow).or_default();
                    for number in *done..end.got.len() {
                        let frame = end.got[number].clone();
                        end.write(&frame);
                    }
                    *done = end.got.len();
                    if end.fin_received {
                        end.close();
                    }
                }
                let link = &mut host.links[1];
                end.output(now, &mut |packet| {
                    link.send(now, 40 + packet.payload.len() as u32, false, packet);
                });
            }
        }
    }

    /// Advances to the next event; false if there is none by `limit`.
    pub fn step(&mut self, limit: Duration) -> bool {
        self.output();
        let links = self
            .hosts
            .iter()
            .flat_map(|host| &host.links)
            .chain(&self.peer_links);
        let ends = self
            .hosts
            .iter()
            .filter(|host| host.alive)
            .flat_map(|host| host.connections.values());
        let next = links
            .filter_map(Link::next_arrival)
            .chain(ends.chain([&self.peer]).filter_map(End::deadline))
            .chain(self.switch.next_deadline())
            .min();
        let Some(next) = next.filter(|&next| next <= limit) else {
            self.now = limit;
            return false;
        };
        self.now = self.now.max(next);
        if self.switch.next_deadline().is_some_and(|at| at <= self.now) {
            let mut emissions = Vec::new();
            self.switch
                .poll(self.now, &mut |emission| emissions.push(emission));
            self.deliver(emissions, None);
        }
        // Packets that arrive at one time are one batch.
        while let Some((packet, _)) = self.peer_links[0].receive(self.now) {
            self.model.input(&packet, true);
            self.input(&packet);
        }
        for number in 0..self.hosts.len() {
            while let Some((packet, _)) = self.hosts[number].links[1].receive(self.now) {
                self.model.input(&packet, false);
                self.input(&packet);
            }
        }
        self.end_batch();
        while let Some((packet, _)) = self.peer_links[1].receive(self.now) {
            self.peer.input(&packet);
        }
        for host in &mut self.hosts {
            while let Some((packet, _)) = host.links[0].receive(self.now) {
                let iss = self.random.bits() as u32;
                host.input(&packet, iss);
            }
        }
        true
    }

    /// Runs until `done`, which must be within `limit`.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + limit;
        loop {
            self.output();
            if done(self) {
                return;
            }
            assert!(
                self.step(limit),
                "not done in time: {:?} {:?}",
                self.switch.flows().next(),
                self.switch.counters()
            );
        }
    }

    pub fn got(&self) -> usize {
        let ends = self.hosts.iter().flat_map(|host| host.connections.values());
        ends.map(|end| end.got.len()).sum()
    }
}

impl Host {
    fn input(&mut self, packet: &Packet, iss: u32) {
        if !self.alive {
            return;
        }
        let flags = packet.header.flags;
        if let Some(end) = self.connections.get_mut(&packet.flow.remote.port()) {
            end.input(packet);
            return;
        }
        if !flags.contains(Flags::SYN) {
            return;
        }
        let mut end = End::accept(packet, iss, SEGMENT_SIZE);
        end.buffer = self.buffer;
        end.sack &= self.sack;
        end.discards = self.discards;
        if self.refuses {
            let mut header = packet.header;
            header.flags = Flags::RST | Flags::ACK;
            header.acknowledgment = packet.header.sequence.wrapping_add(1);
            header.sequence = 0;
            let flow = FourTuple {
                local: packet.flow.remote,
                remote: packet.flow.local,
            };
            let reset = Packet {
                flow,
                header,
                payload: Vec::new(),
            };
            self.links[1].send(Duration::ZERO, 40, false, reset);
            return;
        }
        assert_eq!(end.state, State::SynReceived);
        self.connections.insert(packet.flow.remote.port(), end);
    }
}
