//! The decisions on virtual time: one look every 25 ms.

use super::*;

const EVERY: u64 = 25_000_000;
const SECOND: u64 = 1_000_000_000;
const FLOODED: u16 = 9;
const NEIGHBOUR: u16 = 7;

/// A device, its incoming frames, and the orders so far.
#[derive(Default)]
struct Bed {
    steering: Steering,
    now: u64,
    orders: Vec<(u64, Order)>,
}

/// The load during a look.
#[derive(Clone, Copy)]
enum Load {
    /// A question now and then.
    Light,
    /// Frames beyond the channel's capacity; this share of the time goes into them.
    Flood(f64),
    /// More than can be polled: the channel drops no frame, the ring loses them.
    Overload,
    /// Many frames, all received.
    Busy,
}

impl Bed {
    fn look(&mut self, load: Load) {
        self.now += EVERY;
        let moved = self.steering.moved().is_some();
        let (frames, dropped, share, exhausted) = match load {
            Load::Light => (10, 0, 0.0, 0),
            Load::Flood(share) => (50_000, 20_000, share, 10),
            Load::Overload => (50_000, 0, 0.0, 900),
            Load::Busy => (50_000, 0, 0.0, 100),
        };
        let polls = Polls {
            polls: 1_000,
            exhausted,
        };
        // The ring of the reserved queue loses frames before its channel would.
        let lost = matches!(load, Load::Flood(_) | Load::Overload);
        let reserved = Polls {
            polls: 500,
            exhausted: if lost { 490 } else { 20 },
        };
        let ports = [
            PortLoad {
                port: NEIGHBOUR,
                frames: 100,
                dropped: 0,
            },
            PortLoad {
                port: FLOODED,
                frames,
                dropped: if moved { 0 } else { dropped },
            },
        ];
        let look = Look {
            now: self.now,
            wasted: if moved {
                0
            } else {
                (share * EVERY as f64) as u64
            },
            polls: if moved {
                Polls {
                    exhausted: 0,
                    ..polls
                }
            } else {
                polls
            },
            frames: if moved { 100 } else { frames + 100 },
            reserved: if moved { reserved } else { Polls::default() },
            ports: &ports,
            has_neighbours: true,
        };
        if let Some(order) = self.steering.look(&look) {
            self.orders.push((self.now, order));
        }
    }

    fn run(&mut self, load: Load, time: u64) {
        for _ in 0..time / EVERY {
            self.look(load);
        }
    }

    fn moves(&self) -> usize {
        let is_move = |(_, order): &&(u64, Order)| matches!(order, Order::Move(_));
        self.orders.iter().filter(is_move).count()
    }
}

#[test]
fn a_flood_moves_its_port_and_its_end_puts_it_back() {
    for flood in [Load::Flood(0.3), Load::Overload] {
        let mut bed = Bed::default();
        bed.run(Load::Light, SECOND);
        assert_eq!(bed.orders, []);
        let began = bed.now;
        bed.run(flood, 5 * SECOND);
        assert_eq!(bed.orders.len(), 1);
        let (at, order) = bed.orders[0];
        assert_eq!(order, Order::Move(FLOODED));
        assert!((PERSISTS..=PERSISTS + 2 * EVERY).contains(&(at - began)));
        let ended = bed.now;
        bed.run(Load::Light, 3 * SECOND);
        let (at, order) = bed.orders[1];
        assert_eq!((bed.orders.len(), order), (2, Order::PutBack(FLOODED)));
        assert!((STAY..=STAY + 2 * EVERY).contains(&(at - ended)));
        assert_eq!(bed.steering.moved(), None);
    }
}

#[test]
fn a_burst_and_a_load_that_is_received_move_nothing() {
    let mut bed = Bed::default();
    for _ in 0..20 {
        bed.run(Load::Overload, PERSISTS - EVERY);
        bed.run(Load::Light, EVERY);
    }
    bed.run(Load::Busy, 5 * SECOND);
    // Dropping them costs next to nothing.
    bed.run(Load::Flood(0.03), 5 * SECOND);
    assert_eq!(bed.orders, []);
}

#[test]
fn a_port_that_flaps_backs_off() {
    let mut bed = Bed::default();
    // Each pause is a little longer than the shortest stay.
    for _ in 0..100 {
        bed.run(Load::Flood(0.3), SECOND);
        bed.run(Load::Light, STAY + STAY / 5);
    }
    assert!((2..=4).contains(&bed.moves()), "{:?}", bed.orders);
    // After a long time without a flood it starts again.
    bed.run(Load::Light, 2 * SOON * STAY_MOST);
    let before = bed.orders.len();
    bed.run(Load::Flood(0.3), SECOND);
    bed.run(Load::Light, STAY + 2 * EVERY);
    assert_eq!(bed.orders.len(), before + 2);
}

#[test]
fn pauses_of_any_length_cost_few_moves() {
    for pause in [SECOND, 3 * SECOND, 7 * SECOND] {
        let mut bed = Bed::default();
        for _ in 0..200 {
            bed.run(Load::Overload, SECOND);
            bed.run(Load::Light, pause);
        }
        assert!(bed.moves() <= 6, "{pause}: {}", bed.moves());
    }
}

#[test]
fn a_device_that_refuses_is_left_alone() {
    for (how, moves) in [(Refusal::ForGood, 1), (Refusal::ForNow, 3)] {
        let mut bed = Bed::default();
        let end = 2 * RETRY + 2 * SECOND;
        while bed.now < end {
            let before = bed.orders.len();
            bed.look(Load::Flood(0.5));
            if bed.orders.len() > before {
                bed.steering.refused(how);
            }
        }
        assert_eq!(bed.orders.len(), moves, "{how:?}");
        assert_eq!(bed.steering.has_ended(), how == Refusal::ForGood);
    }
}

#[test]
fn a_socket_that_closes_or_has_no_neighbour_keeps_no_queue() {
    let mut bed = Bed::default();
    bed.run(Load::Overload, SECOND);
    assert_eq!(bed.steering.moved(), Some(FLOODED));
    bed.now += EVERY;
    let gone = Look {
        now: bed.now,
        has_neighbours: true,
        ..Look::default()
    };
    assert_eq!(bed.steering.look(&gone), Some(Order::PutBack(FLOODED)));
    let mut alone = Steering::default();
    for now in 1..100 {
        let ports = [PortLoad {
            port: FLOODED,
            frames: 50_000,
            dropped: 40_000,
        }];
        let look = Look {
            now: now * EVERY,
            wasted: EVERY / 2,
            polls: Polls {
                polls: 1_000,
                exhausted: 1_000,
            },
            frames: 50_000,
            ports: &ports,
            ..Look::default()
        };
        assert_eq!(alone.look(&look), None);
    }
}
