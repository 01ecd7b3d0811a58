//! The links of a bridge, and which of them delivers next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tidewall_simulator::link::{Counters, Impairment, Link};

use super::frame::{Flow, Seen};
use super::{Sharing, Side};

/// Most flows with their own links; later ones share the first.
const FLOWS_MAX: usize = 65_536;

/// The links of both directions.
#[derive(Debug)]
pub(super) struct Paths<P> {
    /// The impairments, by the side that sends the packets.
    impairments: [Impairment; 2],
    sharing: Sharing,
    seed: u64,
    /// Index in `links` of each flow, as the left side sends it.
    places: HashMap<Flow, usize>,
    links: Vec<[Scheduled<P>; 2]>,
    /// When something arrives, in which link, from which side. Outdated entries are
    /// skipped.
    arrivals: BinaryHeap<Reverse<(Duration, usize, Side)>>,
}

/// A link, and its entry in the heap.
#[derive(Debug)]
struct Scheduled<P> {
    link: Link<P>,
    at: Option<Duration>,
}

impl<P: Clone> Paths<P> {
    pub(super) fn new(impairments: [Impairment; 2], sharing: Sharing, seed: u64) -> Self {
        Paths {
            impairments,
            sharing,
            seed,
            places: HashMap::new(),
            links: Vec::new(),
            arrivals: BinaryHeap::new(),
        }
    }

    /// Sends a packet from `side`.
    pub(super) fn send(&mut self, now: Duration, side: Side, seen: &Seen, packet: P) {
        let place = self.place(side, seen.flow);
        let Some(scheduled) = self
            .links
            .get_mut(place)
            .map(|links| &mut links[side as usize])
        else {
            return;
        };
        let capable = seen.ecn.is_capable();
        scheduled.link.send(now, seen.bytes, capable, packet);
        self.arrivals.extend(scheduled.schedule(place, side));
    }

    /// Returns when the next packet is due.
    pub(super) fn next_arrival(&mut self) -> Option<Duration> {
        loop {
            let Reverse((at, place, side)) = *self.arrivals.peek()?;
            let links = self.links.get(place)?;
            if links[side as usize].at == Some(at) {
                return Some(at);
            }
            self.arrivals.pop();
        }
    }

    /// Returns the next packet due by `now`: its due time, the side that sent it, and
    /// whether to mark it.
    pub(super) fn receive(&mut self, now: Duration) -> Option<(Duration, Side, P, bool)> {
        loop {
            let at = self.next_arrival().filter(|&at| at <= now)?;
            let Reverse((_, place, side)) = self.arrivals.pop()?;
            let scheduled = &mut self.links.get_mut(place)?[side as usize];
            scheduled.at = None;
            let received = scheduled.link.receive(now);
            self.arrivals.extend(scheduled.schedule(place, side));
            if let Some((packet, marked)) = received {
                return Some((at, side, packet, marked));
            }
        }
    }

    /// Returns the counters of the packets that `side` has sent so far.
    pub(super) fn counters(&self, side: Side) -> Counters {
        let mut sum = Counters::default();
        for links in &self.links {
            let one = links[side as usize].link.counters();
            sum.sent += one.sent;
            sum.sent_bytes += one.sent_bytes;
            sum.delivered += one.delivered;
            sum.delivered_bytes += one.delivered_bytes;
            sum.lost += one.lost;
            sum.oversized += one.oversized;
            sum.dropped += one.dropped;
            sum.reordered += one.reordered;
            sum.duplicated += one.duplicated;
            sum.marked += one.marked;
        }
        sum
    }

    /// Returns the number of flows with their own links.
    pub(super) fn flows(&self) -> usize {
        self.links.len()
    }

    /// Returns the index of the links of a packet's flow.
    fn place(&mut self, side: Side, flow: Flow) -> usize {
        let flow = match side {
            Side::Left => flow,
            Side::Right => flow.reversed(),
        };
        let place = match self.sharing {
            Sharing::All => 0,
            Sharing::Flow => {
                let next = if self.places.len() < FLOWS_MAX {
                    self.places.len()
                } else {
                    0
                };
                *self.places.entry(flow).or_insert(next)
            }
        };
        if place == self.links.len() {
            // Depends on the left side's port only, so that a flow has the same random
            // numbers in every run, alone and among others.
            let luck = match self.sharing {
                Sharing::All => self.seed,
                Sharing::Flow => mixed(self.seed ^ u64::from(flow.source.1).rotate_right(16)),
            };
            let [left, right] = &self.impairments;
            let scheduled = |impairment: &Impairment, seed| Scheduled {
                link: Link::new(impairment.clone(), seed),
                at: None,
            };
            self.links.push([
                scheduled(left, mixed(luck)),
                scheduled(right, mixed(luck.wrapping_add(1))),
            ]);
        }
        place
    }
}

impl<P: Clone> Scheduled<P> {
    /// Returns the entry that the heap lacks, if any.
    fn schedule(&mut self, place: usize, side: Side) -> Option<Reverse<(Duration, usize, Side)>> {
        let next = self.link.next_arrival()?;
        if self.at.is_some_and(|at| at <= next) {
            return None;
        }
        self.at = Some(next);
        Some(Reverse((next, place, side)))
    }
}

/// SplitMix64's output function: turns seeds that are close to each other into different
/// ones (Steele, Lea and Flood, OOPSLA 2014).
fn mixed(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewall_simulator::link::{Ecn, Loss};

    fn seen(port: u16) -> Seen {
        Seen {
            bytes: 1000,
            ecn: Ecn::NotCapable,
            flow: Flow {
                source: ([10, 0, 0, 1].into(), port),
                destination: ([10, 0, 0, 2].into(), 80),
            },
        }
    }

    fn reply(port: u16) -> Seen {
        Seen {
            flow: seen(port).flow.reversed(),
            ..seen(port)
        }
    }

    const MS: Duration = Duration::from_millis(1);

    fn delayed(left: u32, right: u32) -> [Impairment; 2] {
        [left, right].map(|ms| Impairment {
            delay: MS * ms,
            ..Impairment::default()
        })
    }

    #[test]
    fn what_is_due_first_comes_first_whatever_its_link() {
        let mut paths = Paths::new(delayed(10, 5), Sharing::Flow, 1);
        paths.send(MS, Side::Left, &seen(1), 'a');
        paths.send(2 * MS, Side::Right, &reply(1), 'b');
        paths.send(3 * MS, Side::Left, &seen(2), 'c');
        assert_eq!(paths.flows(), 2, "a flow is the same from both sides");
        assert_eq!(paths.next_arrival(), Some(7 * MS));
        assert_eq!(paths.receive(6 * MS), None);
        let mut all = Vec::new();
        while let Some((at, side, packet, marked)) = paths.receive(20 * MS) {
            assert!(!marked);
            all.push((at, side, packet));
        }
        let expected = [
            (7 * MS, Side::Right, 'b'),
            (11 * MS, Side::Left, 'a'),
            (13 * MS, Side::Left, 'c'),
        ];
        assert_eq!(all, expected);
        assert_eq!(paths.next_arrival(), None);
        assert_eq!(paths.counters(Side::Left).delivered, 2);
        assert_eq!(paths.counters(Side::Right).delivered_bytes, 1000);
    }

    #[test]
    fn one_rate_is_shared_by_all_or_each_has_its_own() {
        let impairment = Impairment {
            rate: Some(8_000_000),
            ..Impairment::default()
        };
        let last = |sharing| {
            let mut paths = Paths::new([impairment.clone(), impairment.clone()], sharing, 1);
            for port in 1..=5 {
                paths.send(Duration::ZERO, Side::Left, &seen(port), port);
            }
            let mut last = Duration::ZERO;
            while let Some((at, ..)) = paths.receive(Duration::from_secs(1)) {
                last = at;
            }
            last
        };
        assert_eq!(last(Sharing::All), 5 * MS);
        assert_eq!(last(Sharing::Flow), MS);
    }

    #[test]
    fn flows_have_the_luck_of_the_draw_from_their_first_packet_on() {
        let impairment = Impairment {
            loss: Loss::Random { probability: 0.01 },
            ..Impairment::default()
        };
        for seed in [1, 2, 1 << 32] {
            let both = [impairment.clone(), impairment.clone()];
            let mut paths = Paths::new(both, Sharing::Flow, seed);
            for port in 10_000..20_000 {
                paths.send(Duration::ZERO, Side::Left, &seen(port), 1);
                paths.send(Duration::ZERO, Side::Right, &reply(port), 2);
            }
            for side in [Side::Left, Side::Right] {
                let lost = paths.counters(side).lost;
                assert!((60..140).contains(&lost), "{lost} of 10,000 at seed {seed}");
            }
        }
    }

    #[test]
    fn a_flow_has_the_same_luck_alone_and_among_others() {
        let impairment = Impairment {
            loss: Loss::Random { probability: 0.5 },
            ..Impairment::default()
        };
        let survivors = |others: u16, seed| {
            let both = [impairment.clone(), impairment.clone()];
            let mut paths = Paths::new(both, Sharing::Flow, seed);
            let mut mine = Vec::new();
            for number in 0..50 {
                for other in 0..others {
                    paths.send(Duration::ZERO, Side::Left, &seen(100 + other), 1000);
                }
                paths.send(Duration::ZERO, Side::Left, &seen(7), number);
            }
            while let Some((_, _, packet, _)) = paths.receive(Duration::ZERO) {
                if packet < 1000 {
                    mine.push(packet);
                }
            }
            mine
        };
        let alone = survivors(0, 1);
        assert!((10..40).contains(&alone.len()), "{alone:?}");
        assert_eq!(alone, survivors(3, 1));
        assert_ne!(alone, survivors(0, 2), "another seed is another luck");
    }
}
