//! Random histories against a simple model.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use tidewall::UdpSocket;
use tidewall_device::memory::{Impairments, LinkConfig, Rings, Side};

use super::support::*;

/// Sockets at the far end, on ports of their own.
const SOCKETS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Send so many datagrams to a socket.
    Send(usize, u8),
    /// Receive at most so many from it.
    Receive(usize, u8),
    Close(usize),
    Open(usize),
    Limit(usize, u8),
    /// The wire loses so many percent from now on.
    Lose(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let socket = 0..SOCKETS;
    prop_oneof![
        5 => (socket.clone(), 1..80u8).prop_map(|(n, count)| Step::Send(n, count)),
        4 => (socket.clone(), 1..60u8).prop_map(|(n, count)| Step::Receive(n, count)),
        1 => socket.clone().prop_map(Step::Close),
        2 => socket.clone().prop_map(Step::Open),
        1 => (socket, 1..100u8).prop_map(|(n, limit)| Step::Limit(n, limit)),
        1 => (0..60u8).prop_map(Step::Lose),
    ]
}

struct World {
    bed: Bed,
    client: UdpSocket,
    open: Vec<Option<UdpSocket>>,
    /// Numbers sent to the socket that is open now, oldest first.
    sent: Vec<VecDeque<u32>>,
    next: u32,
    delivered: HashMap<u32, usize>,
}

impl World {
    fn new(config: LinkConfig) -> World {
        let bed = Bed::with(config);
        let client = bed.near_socket();
        World {
            bed,
            client,
            open: (0..SOCKETS).map(|_| None).collect(),
            sent: vec![VecDeque::new(); SOCKETS],
            next: 0,
            delivered: HashMap::new(),
        }
    }

    fn take(&mut self, n: usize, limit: usize) -> usize {
        let Some(socket) = &self.open[n] else {
            return 0;
        };
        let mut got = Vec::new();
        let taken = socket
            .recv_batch(limit, |r| got.push(read_number(r.payload)))
            .unwrap_or(0);
        assert!(taken <= limit && taken == got.len());
        for number in got {
            *self.delivered.entry(number).or_default() += 1;
            // Whatever was sent before it and has not come is lost.
            loop {
                match self.sent[n].pop_front() {
                    Some(sent) if sent == number => break,
                    Some(_) => {}
                    None => panic!("{number} came to socket {n} again, late, or by mistake"),
                }
            }
        }
        taken
    }

    fn carry_out(&mut self, step: &Step) {
        match *step {
            Step::Send(n, count) => {
                for _ in 0..count {
                    let payload = number(self.next);
                    self.client
                        .send_to(&payload, at(FAR4, SERVICE + n as u16))
                        .unwrap();
                    if self.open[n].is_some() {
                        self.sent[n].push_back(self.next);
                    }
                    self.next += 1;
                }
            }
            Step::Receive(n, limit) => {
                self.take(n, limit.into());
            }
            Step::Close(n) => {
                self.open[n] = None;
                self.sent[n].clear();
            }
            Step::Open(n) if self.open[n].is_none() => {
                // Frames still in the device's ring have no owner; the new socket
                // may get them, as on any host.
                // Receive control may have cut a round to 64 frames.
                for _ in 0..64 {
                    let _ = self.bed.far.wait(&[], Some(std::time::Duration::ZERO));
                }
                self.open[n] = Some(nonblocking(&self.bed.far, any_port(n)));
            }
            Step::Limit(n, limit) => {
                if let Some(socket) = &self.open[n] {
                    socket.set_receive_limit(limit.into()).unwrap();
                }
            }
            Step::Lose(percent) => {
                let loss = f64::from(percent) / 100.0;
                let impairments = Impairments {
                    loss,
                    ..Impairments::default()
                };
                self.bed.link.set_impairments(Side::A, impairments).unwrap();
            }
            Step::Open(_) => {}
        }
    }

    /// Everything is read, everything comes back.
    fn finish(mut self) {
        for n in 0..SOCKETS {
            let mut quiet = 0;
            while quiet < 12 {
                quiet = if self.take(n, 64) > 0 { 0 } else { quiet + 1 };
            }
        }
        if self.open.iter().all(Option::is_none) {
            self.carry_out(&Step::Open(0));
            self.take(0, 1);
        }
        assert!(self.delivered.values().all(|&times| times == 1));
        assert_eq!(self.bed.outstanding(), 0);
        let snapshot = self.bed.far.snapshot();
        let queue = &snapshot.queues[0];
        let admitted = queue.driver.get("channel").copied().unwrap_or(0);
        assert_eq!(
            admitted,
            queue.delivered + queue.stale + queue.lost_in_ring,
            "a frame is neither delivered, stale nor lost: {queue:?}"
        );
        let end = self.bed.link.port_counters(Side::B);
        assert_eq!(queue.lost_in_ring, end.fill_empty + end.receive_full);
    }
}

fn any_port(n: usize) -> std::net::SocketAddr {
    anywhere(SERVICE + n as u16)
}

fn run(config: LinkConfig, steps: &[Step]) {
    let mut world = World::new(config);
    for step in steps {
        world.carry_out(step);
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_history_delivers_once_in_order_and_balances(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        run(LinkConfig { frames: 4096, ..LinkConfig::default() }, &steps);
    }

    #[test]
    fn so_it_does_with_rings_that_overflow(
        steps in prop::collection::vec(step(), 1..80),
        fill in 1usize..40,
        receive in 1usize..40,
    ) {
        let rings = Rings { fill, receive, device: 100, ..Rings::default() };
        run(LinkConfig { frames: 4096, rings, ..LinkConfig::default() }, &steps);
    }

    #[test]
    fn so_it_does_when_memory_is_short(
        steps in prop::collection::vec(step(), 1..80),
        frames in 64u32..300,
    ) {
        run(LinkConfig { frames, ..LinkConfig::default() }, &steps);
    }
}
