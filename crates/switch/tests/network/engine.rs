//! The stack's own TCP engine at every end. Its features beyond the small end's (slow
//! start, delayed acknowledgments, SACK and RACK, probes of closed windows) also pass
//! through the switch.

use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Congestion, Connection, FourTuple, Framing, Listener, Outgoing, Reaction, Shutdown,
    State,
};
use tidewall_simulator::link::{Impairment, Link, Loss, Queue};
use tidewall_simulator::random::Random;
use tidewall_switch::modules::{Lost, Module, Modules, Speed};
use tidewall_switch::{Counters, Emission, Gather, Member, Switch};

use super::bed::{config, delayed, put, round_robin, secrets, segment};
use super::end::Packet;
use super::transfer::{each_seed, frame, lossy, number};

/// A machine with the engine.
struct Machine {
    listener: Option<Listener>,
    connections: Vec<Connection>,
    config: Config,
    got: Vec<Vec<u8>>,
    /// Data that waits for room in the send buffer.
    unsent: Vec<Vec<u8>>,
    echoes: bool,
    /// The application reads.
    reads: bool,
    /// Time that it takes per frame.
    slow: Option<Duration>,
    /// Time of its next read, if it is slow.
    next_read: Duration,
    links: [Link<Packet>; 2],
}

fn packet(flow: &FourTuple, outgoing: &Outgoing<'_>) -> Packet {
    Packet {
        flow: FourTuple {
            local: flow.remote,
            remote: flow.local,
        },
        header: outgoing.header,
        payload: outgoing.payload.concat(),
    }
}

impl Machine {
    fn new(impairment: &Impairment, random: &mut Random) -> Self {
        let config = Config {
            framing: Framing::Acp,
            mss: 1000,
            ..Config::default()
        };
        Self {
            listener: None,
            connections: Vec::new(),
            config,
            got: Vec::new(),
            unsent: Vec::new(),
            echoes: false,
            reads: true,
            slow: None,
            next_read: Duration::ZERO,
            links: [(); 2].map(|()| Link::new(impairment.clone(), random.bits())),
        }
    }

    fn input(&mut self, packet: &Packet, now: Duration) {
        let segment = segment(packet);
        let known = |end: &&mut Connection| *end.flow() == packet.flow;
        if let Some(end) = self.connections.iter_mut().find(known) {
            end.input(&segment, now);
            return;
        }
        let Some(listener) = &mut self.listener else {
            return;
        };
        let link = &mut self.links[1];
        let reaction = listener.input(&segment, now, &mut |flow, outgoing| {
            let answer = self::packet(flow, outgoing);
            link.send(now, 60, false, answer);
        });
        if let Reaction::Established(handshake) = reaction {
            let mut end = Connection::accept(&handshake, &self.config, now);
            end.input(&segment, now);
            self.connections.push(end);
        }
    }

    fn output(&mut self, now: Duration) {
        let link = &mut self.links[1];
        if let Some(listener) = &mut self.listener {
            listener.timeout(
                now,
                &mut |flow, outgoing, _| link.send(now, 60, false, packet(flow, outgoing)),
                &mut |_| {},
            );
        }
        for end in &mut self.connections {
            if end.next_timeout().is_some_and(|at| at <= now) {
                end.timeout(now);
            }
            let mut buffer = [0; 2000];
            while self.reads
                && self.next_read <= now
                && let Ok(Some(length)) = end.read_frame(&mut buffer)
            {
                self.next_read = self.slow.map_or(Duration::ZERO, |slow| now + slow);
                let frame = buffer[..length].to_vec();
                if self.echoes {
                    self.unsent.push(frame.clone());
                }
                self.got.push(frame);
            }
            let mut room = |frame: &Vec<u8>| end.write_frame(&[&frame[..]], false).is_ok();
            let written = self.unsent.iter().take_while(|frame| room(frame)).count();
            self.unsent.drain(..written);
            if end.receive_closed() && self.unsent.is_empty() && self.echoes {
                let _ = end.shutdown(Shutdown::Write, now);
            }
            let flow = *end.flow();
            end.output(now, &mut |outgoing| {
                let sent = packet(&flow, outgoing);
                link.send(now, 40 + sent.payload.len() as u32, false, sent);
                true
            });
        }
    }

    fn next(&self) -> Option<Duration> {
        let listener = self.listener.as_ref().and_then(Listener::next_timeout);
        let ends = self.connections.iter().filter_map(Connection::next_timeout);
        let links = self.links.iter().filter_map(Link::next_arrival);
        let waits = self.connections.iter().any(|end| end.frame().is_some()) && self.reads;
        let read = (waits && self.slow.is_some()).then_some(self.next_read);
        ends.chain(links).chain(listener).chain(read).min()
    }
}

struct Bed {
    now: Duration,
    switch: Switch,
    gather: Gather,
    /// The peer, then the members.
    machines: Vec<Machine>,
}

impl Bed {
    fn new(switch: Switch, members: usize, impairment: &Impairment, random: &mut Random) -> Self {
        let now = Duration::from_secs(1);
        let mut bed = Self {
            now,
            switch,
            gather: Gather::default(),
            machines: Vec::new(),
        };
        let mut peer = Machine::new(impairment, random);
        let flow = FourTuple {
            local: "198.51.100.7:40000".parse().expect("an address"),
            remote: super::bed::VIRTUAL.parse().expect("an address"),
        };
        let isn = random.bits() as u32;
        peer.connections
            .push(Connection::connect(flow, isn, 0, &peer.config, now));
        bed.machines.push(peer);
        for number in 1..=members {
            let mut machine = Machine::new(impairment, random);
            machine.listener = Some(Listener::new(&machine.config, 10, secrets()));
            machine.echoes = true;
            bed.machines.push(machine);
            let member = Member {
                address: format!("10.0.1.{number}:6379").parse().expect("an address"),
                local: super::bed::SWITCH.parse().expect("an address"),
            };
            bed.switch
                .add_member(now, member, &mut |_| ())
                .expect("a member");
        }
        bed
    }

    fn deliver(&mut self, emissions: Vec<Emission>, received: &[u8]) {
        let sent = put(&mut self.gather, &emissions, received);
        self.send(sent);
    }

    /// Sends the waiting segments.
    fn end_batch(&mut self) {
        let mut sent = Vec::new();
        while let Some(gathered) = self.gather.pop() {
            sent.push(Packet::from(gathered));
        }
        self.send(sent);
    }

    fn send(&mut self, packets: Vec<Packet>) {
        for sent in packets {
            let FourTuple { local, .. } = sent.flow;
            let machine = if local.port() == 6379 {
                let std::net::IpAddr::V4(address) = local.ip() else {
                    panic!("{local}");
                };
                usize::from(address.octets()[3])
            } else {
                0
            };
            let bytes = 40 + sent.payload.len() as u32;
            self.machines[machine].links[0].send(self.now, bytes, false, sent);
        }
    }

    fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + limit;
        loop {
            for machine in &mut self.machines {
                machine.output(self.now);
            }
            if done(self) {
                return;
            }
            let next = self
                .machines
                .iter()
                .filter_map(Machine::next)
                .chain(self.switch.next_deadline())
                .min();
            let next = next.filter(|&next| next <= limit);
            let next = next.unwrap_or_else(|| {
                let peer = &self.machines[0].connections[0];
                panic!(
                    "not done at {:?}: {:?} {:?} {:?}: {:?} {:?}",
                    self.now,
                    peer.state(),
                    peer.next_timeout(),
                    peer.info(),
                    self.switch.flows().next(),
                    self.switch.counters()
                )
            });
            self.now = self.now.max(next);
            let mut emissions = Vec::new();
            self.switch
                .poll(self.now, &mut |emission| emissions.push(emission));
            self.deliver(emissions, &[]);
            for machine in 0..self.machines.len() {
                while let Some((packet, _)) = self.machines[machine].links[1].receive(self.now) {
                    let mut emissions = Vec::new();
                    self.switch
                        .input(self.now, &segment(&packet), &mut |emission| {
                            emissions.push(emission)
                        });
                    self.deliver(emissions, &packet.payload);
                }
            }
            self.end_batch();
            for machine in 0..self.machines.len() {
                while let Some((packet, _)) = self.machines[machine].links[0].receive(self.now) {
                    self.machines[machine].input(&packet, self.now);
                }
            }
        }
    }

    fn members_got(&self) -> usize {
        self.machines[1..]
            .iter()
            .map(|machine| machine.got.len())
            .sum()
    }
}

fn any_engines(seed: u64) {
    let mut random = Random::new(seed);
    let mut impairment = lossy(&mut random);
    // A frame and its consequences cross four links. With more than this a sender without
    // SACK soon reaches its longest timeouts.
    impairment.loss = Loss::Random {
        probability: random.below(20) as f64 / 1000.0,
    };
    let members = 1 + random.below(4) as usize;
    let modules: Box<dyn Modules> = if random.chance(0.3) {
        Box::new(|| Box::new(Speed::new(Lost::Reset)) as Box<dyn Module>)
    } else {
        Box::new(round_robin(Lost::Reset))
    };
    let switch = Switch::new(config(), secrets(), modules).expect("a configuration");
    let mut bed = Bed::new(switch, members, &impairment, &mut random);
    let count = 50 + random.below(400) as u32;
    let sent: Vec<_> = (0..count)
        .map(|number| frame(number, 4 + random.below(990) as usize))
        .collect();
    bed.machines[0].unsent = sent.clone();
    bed.run_until(Duration::from_secs(900), |bed| {
        bed.machines[0].got.len() == sent.len()
    });
    for machine in &bed.machines[1..] {
        assert!(machine.got.is_sorted_by_key(|frame| number(frame)));
    }
    let mut all: Vec<_> = bed.machines[1..]
        .iter()
        .flat_map(|machine| machine.got.iter().cloned())
        .collect();
    all.sort_by_key(|frame| number(frame));
    assert!(all == sent);
    let mut replies = bed.machines[0].got.clone();
    replies.sort_by_key(|frame| number(frame));
    assert!(replies == sent);
    let now = bed.now;
    bed.machines[0].connections[0]
        .shutdown(Shutdown::Write, now)
        .expect("open");
    bed.run_until(Duration::from_secs(300), |bed| {
        let peer = bed.machines[0].connections[0].state();
        let closed = |end: &Connection| end.state() == State::Closed;
        matches!(peer, State::TimeWait | State::Closed)
            && bed.machines[1..]
                .iter()
                .all(|machine| machine.connections.iter().all(closed))
    });
}

#[test]
fn engines_exchange_frames_through_the_switch() {
    each_seed(800, any_engines);
}

#[test]
fn a_member_that_does_not_read_stops_the_peer_and_lets_it_go_on() {
    let mut random = Random::new(1);
    let switch = Switch::new(config(), secrets(), Box::new(round_robin(Lost::Reset)))
        .expect("a configuration");
    let mut bed = Bed::new(switch, 2, &delayed(Duration::from_millis(2)), &mut random);
    for machine in &mut bed.machines {
        machine.config.receive_buffer = 30_000;
        machine.config.receive_buffer_max = 30_000;
        if machine.listener.is_some() {
            machine.listener = Some(Listener::new(&machine.config, 10, secrets()));
        }
    }
    let sent: Vec<_> = (0..300).map(|number| frame(number, 900)).collect();
    bed.machines[0].unsent = sent.clone();
    bed.machines[1].reads = false;
    let paused = bed.now + Duration::from_secs(30);
    bed.run_until(Duration::from_secs(60), |bed| bed.now > paused);
    let before = bed.members_got();
    assert!(before < 100, "the smallest window is everybody's: {before}");
    bed.machines[1].reads = true;
    bed.run_until(Duration::from_secs(300), |bed| {
        bed.members_got() == sent.len()
    });
}

/// How long frames take from the peer to members, or from members to the peer, over links
/// of this delay and 100 Mbit/s.
struct Transfer {
    members: usize,
    delay: Duration,
    inbound: bool,
    ring: u16,
    /// Time that the first member takes per frame.
    slow: Option<Duration>,
    /// Packets of either direction that are lost at the peer, in their order.
    lost: &'static [u64],
    /// The ends accept SACK.
    sack: bool,
    /// The path's queue at the peer, in bytes.
    queue: Option<u32>,
    frames: usize,
    /// Connections that share them.
    connections: u16,
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            members: 4,
            delay: Duration::from_millis(25),
            inbound: true,
            ring: 384,
            slow: None,
            lost: &[],
            sack: true,
            queue: None,
            frames: 4000,
            connections: 1,
        }
    }
}

impl Transfer {
    fn run(&self, modules: Box<dyn Modules>) -> Duration {
        let (time, counters) = self.run_counted(modules);
        let dropped = counters.dropped_ring_full + counters.dropped_window;
        assert_eq!(dropped, 0, "windows keep within the ring: {counters:?}");
        time
    }

    fn run_counted(&self, modules: Box<dyn Modules>) -> (Duration, Counters) {
        let mut random = Random::new(7);
        let mut set = config();
        set.ring = self.ring;
        let switch = Switch::new(set, secrets(), modules).expect("a configuration");
        let path = Impairment {
            rate: Some(100_000_000),
            ..delayed(self.delay)
        };
        let behind = match self.queue {
            // Only the path at the peer is full.
            Some(_) => Impairment::default(),
            None => path.clone(),
        };
        let mut bed = Bed::new(switch, self.members, &behind, &mut random);
        let path = Impairment {
            loss: Loss::Script(self.lost.to_vec()),
            queue: Queue {
                limit: self.queue,
                ..Queue::default()
            },
            ..path
        };
        for machine in &mut bed.machines {
            machine.config.sack = self.sack;
            if self.queue.is_some() {
                machine.config.congestion = Congestion::NewReno;
                machine.config.receive_buffer = 4 << 20;
                machine.config.receive_buffer_max = 4 << 20;
                machine.config.send_buffer = 512 << 10;
                machine.config.send_buffer_max = 512 << 10;
            }
            if let Some(listener) = &mut machine.listener {
                *listener = Listener::new(&machine.config, 10, secrets());
                machine.echoes = false;
            }
        }
        bed.machines[1].slow = self.slow;
        let peer = &mut bed.machines[0];
        peer.links = [(); 2].map(|()| Link::new(path.clone(), random.bits()));
        let flow = *peer.connections[0].flow();
        peer.connections.clear();
        for number in 0..self.connections {
            let mut flow = flow;
            flow.local.set_port(flow.local.port() + number);
            let isn = random.bits() as u32;
            let connection = Connection::connect(flow, isn, 0, &peer.config, bed.now);
            peer.connections.push(connection);
        }
        let open = usize::from(self.connections);
        bed.run_until(Duration::from_secs(5), |bed| {
            let connected = |machine: &Machine| machine.connections.len() == open;
            bed.machines[1..].iter().all(connected)
        });
        let began = bed.now;
        let count = self.frames;
        let frames = |count| (0..count as u32).map(|number| frame(number, 990)).collect();
        if self.inbound {
            bed.machines[0].unsent = frames(count);
            bed.run_until(Duration::from_secs(1000), |bed| bed.members_got() == count);
        } else {
            for machine in &mut bed.machines[1..] {
                machine.unsent = frames(count / self.members);
            }
            bed.run_until(Duration::from_secs(1000), |bed| {
                bed.machines[0].got.len() == count
            });
        }
        (bed.now - began, *bed.switch.counters())
    }
}

#[test]
fn four_members_send_as_one_does_whatever_the_round_trip() {
    for milliseconds in [1, 5, 25] {
        let time = |members| {
            let transfer = Transfer {
                members,
                delay: Duration::from_millis(milliseconds),
                inbound: false,
                ring: 3000,
                ..Transfer::default()
            };
            transfer.run(Box::new(round_robin(Lost::Reset)))
        };
        let (one, four) = (time(1), time(4));
        assert!(
            four.as_secs_f64() * 0.95 <= one.as_secs_f64(),
            "{milliseconds} ms: {one:?} {four:?}"
        );
    }
}

#[test]
fn a_ring_that_is_smaller_than_the_path_costs_no_losses() {
    for inbound in [true, false] {
        let transfer = Transfer {
            inbound,
            ..Transfer::default()
        };
        transfer.run(Box::new(round_robin(Lost::Reset)));
    }
}

/// Frames in flight behind a lost frame fill the offered window, which the ring has room
/// for. They are not dropped as well. Otherwise one loss would become hundreds, each of
/// which costs a sender without SACK a round trip.
#[test]
fn a_loss_within_a_full_window_costs_no_others() {
    let time = |lost| {
        let transfer = Transfer {
            lost,
            ..Transfer::default()
        };
        transfer.run(Box::new(round_robin(Lost::Reset)))
    };
    let (whole, lossy) = (time(&[]), time(&[2000, 3000]));
    println!("{whole:?} {lossy:?}");
    // A round trip of 100 ms to detect each and one to repair it, and the cost of halving
    // the congestion window twice.
    assert!(lossy < whole * 2, "{whole:?}, two frames lost {lossy:?}");
}

/// Eight connections whose windows are together more than a path and its queue hold.
#[test]
fn many_losses_at_once_do_not_cost_a_round_trip_each() {
    let rate = |sack, inbound| {
        let transfer = Transfer {
            members: 8,
            delay: Duration::from_millis(50),
            connections: 8,
            // In bytes 384 frames of 1,440.
            ring: 556,
            queue: Some(625_000),
            frames: 60_000,
            sack,
            inbound,
            ..Transfer::default()
        };
        let (time, counters) = transfer.run_counted(Box::new(round_robin(Lost::Reset)));
        println!(
            "sack {sack}, inbound {inbound}: {time:?}, {} holes, {} drops",
            counters.holes, counters.dropped_ring_full
        );
        60.0 * 0.994 / time.as_secs_f64()
    };
    for inbound in [true, false] {
        let (without, with) = (rate(false, inbound), rate(true, inbound));
        println!("{without:.1} MB/s, with SACK {with:.1} MB/s");
        // The path carries 11.9 MB/s of frames.
        assert!(
            with > 2.0 * without && with > 0.6 * 11.9,
            "{without} {with}"
        );
    }
}

/// The experiment `anypoint-split` at its longest round trip, in virtual time. Losses of
/// four members at once in the path's queue are repaired together. They are repaired
/// later than losses of one member, since a loss of any stops the acknowledgment to all.
#[test]
fn losses_of_four_members_are_repaired_together() {
    let rate = |members, sack| {
        let transfer = Transfer {
            members,
            delay: Duration::from_millis(50),
            inbound: false,
            ring: 3000,
            queue: Some(500_000),
            frames: 40_000,
            sack,
            ..Transfer::default()
        };
        let (time, _) = transfer.run_counted(Box::new(round_robin(Lost::Reset)));
        40.0 * 0.994 / time.as_secs_f64()
    };
    let (one, without, with) = (rate(1, true), rate(4, false), rate(4, true));
    println!("one member {one:.1} MB/s, four {without:.1} MB/s, with SACK {with:.1} MB/s");
    assert!(with > 2.0 * without, "{one} {without} {with}");
}

/// The paper's experiment of speed-sensitive steering, in virtual time.
#[test]
fn steering_to_open_windows_is_not_held_up_by_a_slow_member() {
    let time = |slow, modules: Box<dyn Modules>| {
        let transfer = Transfer {
            delay: Duration::from_millis(1),
            slow,
            ..Transfer::default()
        };
        transfer.run(modules).as_secs_f64()
    };
    let speed = || Box::new(|| Box::new(Speed::new(Lost::Reset)) as Box<dyn Module>);
    let slow = Some(Duration::from_micros(750));
    let (free, steered) = (time(None, speed()), time(slow, speed()));
    let held_up = time(slow, Box::new(round_robin(Lost::Reset)));
    println!("{free} {steered} {held_up}");
    assert!(free >= 0.7 * steered, "{free} s, one slowed {steered} s");
    assert!(held_up > steered);
}
