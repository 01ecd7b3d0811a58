use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidewall_wire::atm::arp::Packet;
use tidewall_wire::atm::llc;
use tidewall_wire::ethernet::EtherType;

use super::*;
use crate::ip::{Config, HEADER_LEN, Way};

const IDLE: Duration = Duration::from_secs(60);

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host as u8 + 1)
}

fn number(host: usize) -> Nsap {
    Nsap([host as u8 + 1; 20])
}

/// Host 0 is the server, the others are its clients; calls between them are set up at
/// once.
struct Net {
    hosts: Vec<Subnetwork>,
    /// The other end of a circuit's end.
    ends: BTreeMap<(usize, Circuit), (usize, Circuit)>,
    next: u16,
    /// Hosts that accept no calls.
    away: BTreeSet<usize>,
    now: Time,
}

impl Net {
    fn new(hosts: usize) -> Self {
        let host = |host| {
            Subnetwork::new(Config {
                address: address(host),
                prefix_len: 24,
                number: Number::Nsap(number(host)),
                server: host == 0,
                asks: (host != 0).then(|| number(0)),
                idle: IDLE,
            })
        };
        let mut net = Net {
            hosts: (0..hosts).map(host).collect(),
            ends: BTreeMap::new(),
            next: 32,
            away: BTreeSet::new(),
            now: Time::ZERO,
        };
        net.pass(Duration::ZERO);
        net
    }

    fn call(&mut self, from: usize, to: Nsap) {
        let found = (0..self.hosts.len()).find(|host| number(*host) == to);
        let Some(to) = found.filter(|to| !self.away.contains(to) && !self.away.contains(&from))
        else {
            let number = to;
            return self.hosts[from].failed(self.now, number);
        };
        let mut circuit = || {
            self.next += 1;
            Circuit {
                vpi: 0,
                vci: self.next,
            }
        };
        let (near, far) = (circuit(), circuit());
        self.ends.insert((from, near), (to, far));
        self.ends.insert((to, far), (from, near));
        self.hosts[to].called(self.now, far, Some(number(from)));
        self.hosts[from].connected(self.now, number(to), near);
    }

    /// Releases both ends of a circuit.
    fn release(&mut self, host: usize, circuit: Circuit) {
        let Some((other, far)) = self.ends.remove(&(host, circuit)) else {
            return;
        };
        self.ends.remove(&(other, far));
        assert!(self.hosts[host].ended(self.now, circuit));
        assert!(self.hosts[other].ended(self.now, far));
    }

    /// Advances time and everything that follows from it.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
        loop {
            let mut quiet = true;
            for host in 0..self.hosts.len() {
                while let Some(action) = self.hosts[host].poll_action() {
                    quiet = false;
                    match action {
                        Action::Call(to) => self.call(host, to),
                        Action::Release(circuit) => self.release(host, circuit),
                    }
                }
                while let Some((circuit, bytes)) = self.hosts[host].poll_transmit() {
                    quiet = false;
                    if let Some(&(other, far)) = self.ends.get(&(host, circuit)) {
                        assert_eq!(self.hosts[other].received(self.now, far, &bytes), None);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Sends a packet; returns where it arrives.
    fn packet(&mut self, from: usize, to: usize) -> Option<usize> {
        let now = self.now;
        if self.hosts[from].way(now, address(to)) == Way::Soon {
            self.pass(Duration::ZERO);
        }
        match self.hosts[from].way(now, address(to)) {
            Way::By(circuit) => self.ends.get(&(from, circuit)).map(|end| end.0),
            _ => None,
        }
    }

    fn circuits(&self) -> usize {
        self.ends.len() / 2
    }
}

#[test]
fn clients_register_ask_and_call() {
    let mut net = Net::new(3);
    assert_eq!(net.circuits(), 2, "each client's to the server");
    assert_eq!(net.packet(1, 2), Some(2));
    // The called host knows the caller by the same circuit.
    assert_eq!(net.packet(2, 1), Some(1));
    assert_eq!(net.circuits(), 3);
    for (from, to) in [(1, 0), (0, 1), (2, 0), (0, 2)] {
        assert_eq!(net.packet(from, to), Some(to));
    }
    // A missing host is asked for, and the answer is no; then it is not asked for during
    // ten seconds.
    assert_eq!(net.packet(1, 7), None);
    assert_eq!(net.hosts[1].way(net.now, address(7)), Way::None);
    // Hosts beyond the subnetwork are not asked for.
    let beyond = Ipv4Addr::new(10, 8, 0, 1);
    assert_eq!(net.hosts[1].way(net.now, beyond), Way::None);
    // Circuits without packets are released, except those to the server.
    net.pass(IDLE);
    net.pass(Duration::ZERO);
    assert_eq!(net.circuits(), 2);
    assert_eq!(net.packet(1, 2), Some(2));
}

#[test]
fn what_fails_is_tried_again_later() {
    let mut net = Net::new(3);
    net.away.insert(2);
    assert_eq!(net.packet(1, 2), None);
    net.away.clear();
    assert_eq!(
        net.hosts[1].way(net.now, address(2)),
        Way::None,
        "not at once"
    );
    net.pass(FAILED);
    assert_eq!(net.packet(1, 2), Some(2));
    // The server is lost, and returns: the client calls and registers again.
    let to_server = |net: &Net| {
        let mut ends = net.ends.iter();
        ends.find(|(near, far)| near.0 == 1 && far.0 == 0)
            .map(|it| it.0.1)
    };
    let circuit = to_server(&net).unwrap();
    net.away.insert(0);
    net.release(1, circuit);
    net.pass(RETRY);
    assert_eq!(to_server(&net), None);
    assert_eq!(net.packet(1, 2), Some(2), "who is known stays");
    net.away.clear();
    net.pass(RETRY);
    assert!(to_server(&net).is_some());
    assert_eq!(net.packet(0, 1), Some(1));
}

/// Entries are asked for again after 15 minutes, and live as long as they are answered.
#[test]
fn entries_age() {
    let mut net = Net::new(3);
    assert_eq!(net.packet(1, 2), Some(2));
    for _ in 0..40 {
        net.pass(Duration::from_secs(30));
        assert_eq!(net.packet(1, 2), Some(2));
    }
    assert_eq!(net.circuits(), 3);
    assert_eq!(net.hosts[1].counters().conflicts, 0);
}

fn say(net: &mut Net, host: usize, circuit: Circuit, operation: Operation, source: Party) {
    let mut bytes = [0; 200];
    let packet = Packet {
        operation,
        source,
        target: source,
    };
    let rest = llc::emit_routed(EtherType::ARP, &mut bytes).unwrap();
    let length = HEADER_LEN + packet.emit(rest).unwrap();
    net.hosts[host].received(net.now, circuit, &bytes[..length]);
    net.pass(Duration::ZERO);
}

/// Host 3 calls, and claims to be another, with its own number and with that one's.
#[test]
fn who_calls_is_not_believed_to_be_another() {
    for claimed in [number(3), number(2)] {
        let source = Party {
            number: Number::Nsap(claimed),
            address: Some(address(2)),
        };
        for victim in [0, 1] {
            let mut net = Net::new(4);
            net.call(3, number(victim));
            let mut ends = net.ends.iter();
            let circuit = ends.rfind(|(near, far)| near.0 == victim && far.0 == 3);
            let circuit = circuit.unwrap().0.1;
            for operation in [
                Operation::InverseReply,
                Operation::InverseRequest,
                Operation::Request,
                Operation::Reply,
            ] {
                say(&mut net, victim, circuit, operation, source);
                assert_eq!(net.packet(victim, 2), Some(2), "{operation:?} of {claimed}");
            }
        }
    }
}

/// A scan of the subnetwork asks only for a bounded number at a time.
#[test]
fn who_is_asked_for_is_bounded() {
    let mut host = Subnetwork::new(Config {
        address: address(1),
        prefix_len: 8,
        number: Number::Nsap(number(1)),
        server: false,
        asks: Some(number(0)),
        idle: IDLE,
    });
    let soon = (0..10_000_u32).filter(|last| {
        let address = Ipv4Addr::from_bits(0x0a00_0100 + last);
        host.way(Time::ZERO, address) == Way::Soon
    });
    assert_eq!(soon.count(), WANTED_MAX);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Packet(usize, usize),
    Pass(u64),
    Away(usize),
    Back,
    Lose(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5_usize, 0..6_usize).prop_map(|(from, to)| Step::Packet(from, to)),
        3 => (1..400_u64).prop_map(Step::Pass),
        1 => (0..5_usize).prop_map(Step::Away),
        1 => Just(Step::Back),
        1 => (0..20_usize).prop_map(Step::Lose),
    ]
}

proptest! {
    /// A packet reaches its destination or no host, whatever has happened; once all are
    /// back, each reaches each.
    #[test]
    fn packets_come_where_they_are_to(steps in prop::collection::vec(step(), 0..60)) {
        let mut net = Net::new(5);
        for step in steps {
            match step {
                Step::Packet(from, to) if from != to => {
                    let came = net.packet(from, to);
                    prop_assert!(came.is_none_or(|host| host == to), "{came:?}");
                }
                Step::Packet(..) => {}
                Step::Pass(seconds) => net.pass(Duration::from_secs(seconds)),
                Step::Away(host) => drop(net.away.insert(host)),
                Step::Back => net.away.clear(),
                Step::Lose(place) => {
                    let end = net.ends.keys().nth(place).copied();
                    if let Some((host, circuit)) = end {
                        net.release(host, circuit);
                    }
                }
            }
        }
        net.away.clear();
        for _ in 0..3 {
            net.pass(FAILED);
        }
        for (from, to) in (1..5).flat_map(|from| (0..5).map(move |to| (from, to))) {
            if from != to {
                prop_assert_eq!(net.packet(from, to), Some(to), "{} to {}", from, to);
            }
        }
    }
}
