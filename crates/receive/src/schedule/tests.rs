//! The schedule on virtual time: one thread that polls and runs an event loop, and a
//! neighbour of the flooded sockets whose client asks one question at a time.

use std::collections::VecDeque;

use super::*;

const RING: usize = 256;
const LIMIT: u32 = 512;
const BUDGET: usize = 128;
/// Datagrams that the application takes per call, and between two reads of the clock.
const BATCH: u32 = 64;
const STEP: u32 = 8;
/// Time until a client considers a question lost, and between two questions.
const TIMEOUT: f64 = 20e6;
const PAUSE: f64 = 8e3;

/// Costs, ns.
#[derive(Clone, Copy)]
struct Machine {
    poll: f64,
    admitted: f64,
    dropped: f64,
    datagram: f64,
    turn: f64,
}

/// Costs measured with frames from an AF_XDP sender on a veth.
const VETH: Machine = Machine {
    poll: 3_000.0,
    admitted: 600.0,
    dropped: 450.0,
    datagram: 350.0,
    turn: 800.0,
};

impl Machine {
    fn of_speed(speed: f64, work: f64) -> Machine {
        Machine {
            poll: 3_000.0 / speed,
            admitted: 600.0 / speed,
            dropped: 450.0 / speed,
            datagram: 1_000.0 * work / speed,
            turn: 800.0 / speed,
        }
    }
}

/// Results of a run: frames, of the flooded sockets, and answers to the neighbour.
#[derive(Debug, Default)]
struct Outcome {
    came: f64,
    ring: f64,
    dropped: f64,
    delivered: f64,
    answers: u32,
    lost: u32,
}

/// A client of the neighbour.
struct Client {
    /// Time of its next question.
    asks: f64,
    /// Time at which it considers its question lost, if one is in flight.
    gives_up: Option<f64>,
}

struct World<'a> {
    machine: Machine,
    /// Frames per ns that arrive for each flooded socket, and the fraction of the next
    /// that has arrived.
    floods: &'a [f64],
    parts: Vec<f64>,
    now: f64,
    /// Sockets of the frames that wait in the device; the neighbour is number
    /// `floods.len()`.
    ring: VecDeque<usize>,
    channels: Vec<u32>,
    /// Frames that each channel has dropped.
    full: Vec<u64>,
    client: Client,
    schedule: Schedule,
    due: u64,
    outcome: Outcome,
    /// The socket after the one that was served last.
    first: usize,
}

impl World<'_> {
    fn pass(&mut self, time: f64) {
        self.now += time;
        let neighbour = self.floods.len();
        if let Some(at) = self.client.gives_up
            && at <= self.now
        {
            self.outcome.lost += 1;
            self.client = Client {
                asks: at,
                gives_up: None,
            };
        }
        let asks = self.client.gives_up.is_none() && self.client.asks <= self.now;
        let mut left = true;
        let mut asked = !asks;
        for part in 0..self.floods.len() {
            self.parts[part] += time * self.floods[part];
        }
        // In turn, so that each loses its share where the ring is full.
        while left {
            left = false;
            for socket in 0..self.floods.len() {
                if self.parts[socket] >= 1.0 {
                    self.parts[socket] -= 1.0;
                    self.outcome.came += 1.0;
                    left |= self.parts[socket] >= 1.0;
                    if self.ring.len() < RING {
                        self.ring.push_back(socket);
                    } else {
                        self.outcome.ring += 1.0;
                    }
                }
            }
            if !asked {
                asked = true;
                self.client.gives_up = Some(self.client.asks + TIMEOUT);
                if self.ring.len() < RING {
                    self.ring.push_back(neighbour);
                }
            }
        }
    }

    fn poll(&mut self) {
        let began = self.now;
        let mut cost = self.machine.poll;
        let (mut driven, mut dropped) = (0, 0);
        let mut channels = Vec::new();
        for _ in 0..self.ring.len().min(BUDGET) {
            let Some(socket) = self.ring.pop_front() else {
                break;
            };
            driven += 1;
            if self.channels[socket] < LIMIT {
                self.channels[socket] += 1;
                channels.push(socket as u16);
                cost += self.machine.admitted;
            } else {
                dropped += 1;
                self.full[socket] += 1;
                cost += self.machine.dropped;
            }
        }
        self.outcome.dropped += dropped as f64;
        self.pass(cost);
        let full = &self.full;
        self.schedule.sorted(&channels, channels.len(), |channel| {
            full[usize::from(channel)]
        });
        self.due = self.schedule.polled(Poll {
            began: began as u64,
            ended: self.now as u64,
            driven,
            sorted: driven - dropped,
            dropped,
            more: driven as usize == BUDGET,
        });
    }

    fn is_due(&self) -> bool {
        self.now as u64 >= self.due
    }

    /// A turn of the event loop, from one wait to the next.
    fn turn(&mut self) {
        if self.is_due() || self.channels.iter().all(|&waiting| waiting == 0) {
            self.poll();
        }
        self.pass(self.machine.turn);
        let (sockets, first) = (self.channels.len(), self.first);
        for socket in (0..sockets).map(|socket| (socket + first) % sockets) {
            let mut left = self.channels[socket].min(BATCH);
            while left > 0 && !self.is_due() {
                let step = left.min(STEP);
                left -= step;
                self.first = socket + 1;
                self.channels[socket] -= step;
                self.pass(f64::from(step) * self.machine.datagram);
                if socket < self.floods.len() {
                    self.outcome.delivered += f64::from(step);
                } else if self.client.gives_up.take().is_some() {
                    self.outcome.answers += 1;
                    self.client.asks = self.now + PAUSE;
                }
            }
        }
    }
}

impl<'a> World<'a> {
    fn new(machine: Machine, floods: &'a [f64]) -> Self {
        World {
            machine,
            floods,
            parts: (0..floods.len())
                .map(|it| it as f64 / floods.len() as f64)
                .collect(),
            now: 0.0,
            ring: VecDeque::new(),
            channels: vec![0; floods.len() + 1],
            full: vec![0; floods.len() + 1],
            client: Client {
                asks: 0.0,
                gives_up: None,
            },
            schedule: Schedule::default(),
            due: NEVER,
            outcome: Outcome::default(),
            first: 0,
        }
    }

    fn run(&mut self, until: f64) {
        while self.now < until {
            self.turn();
        }
    }
}

/// Floods at this many frames per ns for `span` ns.
fn run(machine: Machine, floods: &[f64], span: f64) -> Outcome {
    let mut world = World::new(machine, floods);
    world.run(span);
    world.outcome
}

/// `total` frames per ns over `sockets` sockets, evenly, or half of it at the first.
fn loads(total: f64, sockets: usize, even: bool) -> Vec<f64> {
    let each = |socket| match (even, socket, sockets) {
        (true, ..) | (_, _, 1) => total / sockets as f64,
        (false, 0, _) => total / 2.0,
        (false, ..) => total / 2.0 / (sockets - 1) as f64,
    };
    (0..sockets).map(each).collect()
}

const SPAN: f64 = 250e6;

/// While isolation costs little, no frame is lost in the ring, however fast the machine.
#[test]
fn the_ring_is_kept_empty_on_any_machine() {
    for speed in [0.25, 0.5, 1.0, 2.0, 4.0] {
        for work in [0.05, 0.2, 1.0] {
            let machine = Machine::of_speed(speed, work);
            let dropped = machine.dropped + machine.poll / BUDGET as f64;
            for share in [0.1, 0.2, 0.3] {
                let found = run(machine, &[share / dropped], 200e6 / speed);
                assert!(
                    found.ring <= found.came / 1000.0,
                    "{speed} {work} {share}: {found:?}"
                );
                assert_eq!(found.lost, 0, "{speed} {work} {share}: {found:?}");
            }
        }
    }
}

/// Isolation never costs more than its third, and nearly nothing where it is impossible.
#[test]
fn the_total_is_flat_for_any_number_of_sockets() {
    for machine in [VETH, Machine::of_speed(1.0, 1.0)] {
        for sockets in [1, 2, 8, 100] {
            for even in [true, false] {
                let delivered =
                    |total| run(machine, &loads(total, sockets, even), SPAN).delivered / SPAN;
                let peak = 1.0 / (machine.admitted + machine.datagram);
                let loads = [0.5, 0.9, 1.2, 1.5, 2.0, 6.0].map(|share| share * peak);
                let found = loads.map(delivered);
                let most = found.into_iter().fold(0.0, f64::max);
                let context = format!("{sockets} {even}: {found:?} of {loads:?}");
                assert!(most >= 0.85 * peak, "{context}");
                for (load, found) in loads.into_iter().zip(found) {
                    assert!(found >= load.min(most) * 0.62, "{context}");
                }
                assert!(found[5] >= 0.95 * most, "{context}");
            }
        }
    }
}

/// With every socket dropping there is no neighbour to isolate. Looking for one costs a
/// thirty-second.
#[test]
fn the_total_is_whole_where_every_socket_is_flooded() {
    let peak = 1.0 / (VETH.admitted + VETH.datagram);
    for sockets in [1, 2, 8, 100] {
        for share in [1.2, 1.5, 2.0] {
            let loads = loads(share * peak, sockets, true);
            let mut world = World::new(VETH, &loads);
            world.client.asks = f64::INFINITY;
            world.run(500e6);
            let before = world.outcome.delivered;
            world.run(1_500e6);
            let found = (world.outcome.delivered - before) / 1_000e6;
            assert!(found >= 0.9 * peak, "{sockets} {share}: {found} of {peak}");
        }
    }
}

/// A channel that has dropped nothing ends the flat total with its first frame, and so does
/// one that another socket opens under a flooded one's number.
#[test]
fn a_neighbour_of_flooded_sockets_is_isolated_at_once() {
    for (opened, channel) in [(None, 2), (Some(0), 0)] {
        let loads = loads(1.5e-3, 2, true);
        let mut world = World::new(VETH, &loads);
        world.client.asks = f64::INFINITY;
        world.run(1_500e6);
        let (full, schedule) = (&world.full, &mut world.schedule);
        let mut polled = |channels: &[u16]| {
            schedule.sorted(channels, 128, |channel| full[usize::from(channel)]);
            schedule.polled(Poll {
                began: world.now as u64,
                ended: world.now as u64 + 3_000,
                driven: 128,
                sorted: 128,
                more: true,
                ..Poll::default()
            })
        };
        assert_eq!(polled(&[0, 1]), DELIVER_FIRST);
        if let Some(opened) = opened {
            world.schedule.opened(opened);
        }
        let mut polled = |channels: &[u16]| {
            world.schedule.sorted(channels, 128, |_| 0);
            world.schedule.polled(Poll {
                began: world.now as u64 + 3_000,
                ended: world.now as u64 + 6_000,
                driven: 128,
                sorted: 128,
                more: true,
                ..Poll::default()
            })
        };
        assert_ne!(polled(&[channel]), DELIVER_FIRST, "{channel}");
    }
}

/// Between these loads, a neighbour gets whole periods.
#[test]
fn a_neighbour_makes_round_trips_while_isolation_can_be_had() {
    let alone = run(VETH, &[0.0], SPAN).answers;
    let answers = |total| run(VETH, &loads(total, 1, true), SPAN).answers;
    let beside = [0.5e-3, 0.8e-3, 1.1e-3, 1.5e-3, 1.7e-3].map(answers);
    assert!(beside[0] > alone / 2, "{beside:?} of {alone}");
    // A client that loses one in five questions gets sixty answers in that time.
    assert!(beside[4] > 500, "{beside:?} of {alone}");
}

#[test]
fn nothing_is_due_on_a_queue_that_is_empty() {
    let mut schedule = Schedule::default();
    let poll = |began, ended, driven| Poll {
        began,
        ended,
        driven,
        ..Poll::default()
    };
    assert_eq!(schedule.polled(poll(0, 3_000, 0)), NEVER);
    let due = schedule.polled(poll(6_000, 9_000, 6));
    assert!(due > 9_000 && due < DELIVER_FIRST, "{due}");
}

#[test]
fn what_waits_comes_first_while_all_frames_are_for_one_socket() {
    let mut schedule = Schedule::default();
    let mut polled = |channels: &[u16]| {
        schedule.sorted(channels, 128, |_| 0);
        schedule.polled(Poll {
            ended: 3_000,
            driven: 128,
            more: true,
            ..Poll::default()
        })
    };
    assert_ne!(polled(&[7]), DELIVER_FIRST);
    while polled(&[7, 7]) != DELIVER_FIRST {}
    assert_eq!(polled(&[7 | WAITED, 7]), DELIVER_FIRST);
    assert_ne!(
        polled(&[7, 9, 7]),
        DELIVER_FIRST,
        "another socket's frames may be lost"
    );
}
