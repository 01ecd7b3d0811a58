//! A long transfer, during which members die and join all the while.

use std::time::{Duration, Instant};

use tidewall_simulator::link::{Impairment, Loss, Reorder};
use tidewall_switch::modules::Lost;
use tidewall_wire::acp::HEADER_LEN;

use super::bed::{Bed, config, round_robin};
use super::end::State;
use super::transfer::{frame, number};

/// Payload of each frame.
const LENGTH: usize = 990;
/// Bytes that the peer writes ahead.
const AHEAD: u32 = 64_000;
const SECOND: Duration = Duration::from_secs(1);

/// The data received by members so far.
struct Got {
    /// How often each frame arrived, and last at which machine, by its start.
    times: Vec<(u8, u32)>,
    /// For each machine: its start, counted over all, and its last frame.
    machines: Vec<(u32, Option<u32>)>,
    begun: u32,
    out_of_order: u64,
    /// Frames that arrived again while the machine that had received them before lived.
    doubled: Vec<u32>,
}

impl Got {
    /// Takes and checks what has arrived.
    fn take(&mut self, bed: &mut Bed) {
        let living: Vec<u32> = self.machines.iter().map(|machine| machine.0).collect();
        for (host, (began, last)) in bed.hosts.iter_mut().zip(&mut self.machines) {
            let ends = host.connections.values_mut();
            for bytes in ends.flat_map(|end| end.got.drain(..)) {
                let number = number(&bytes);
                assert!(bytes == frame(number, LENGTH), "every byte of {number}");
                let (times, at) = &mut self.times[number as usize];
                if *times > 0 && living.contains(at) {
                    self.doubled.push(number);
                }
                (*times, *at) = (*times + 1, *began);
                self.out_of_order += u64::from(last.is_some_and(|last| last > number));
                *last = Some(last.map_or(number, |last| last.max(number)));
            }
        }
    }

    /// Records that a machine starts, or has died.
    fn change(&mut self, machine: usize) {
        self.begun += 1;
        self.machines[machine] = (self.begun, None);
    }
}

/// Every second a member is killed and one joins, while links lose and reorder one packet
/// in a hundred. Every byte arrives, once and in order at each member. The exception is
/// frames that the switch took from a dead member and gave to another, which their module
/// permits. `TIDEWALL_SWITCH_BYTES` sets how much goes through, such as 1000000000.
#[test]
fn every_byte_arrives_while_members_die_and_come() {
    let bytes = std::env::var("TIDEWALL_SWITCH_BYTES").ok();
    let bytes: usize = bytes.map_or(100_000_000, |bytes| bytes.parse().expect("a number"));
    let count = bytes.div_ceil(LENGTH) as u32;
    let impairment = Impairment {
        delay: Duration::from_micros(100),
        loss: Loss::Random { probability: 0.01 },
        reorder: Reorder {
            probability: 0.01,
            delay: Duration::from_millis(1),
        },
        ..Impairment::default()
    };
    let began = Instant::now();
    let mut bed = Bed::new(config(), round_robin(Lost::Resend), 4, impairment, 5);
    bed.model.resends = true;
    let mut got = Got {
        times: vec![(0, 0); count as usize],
        machines: vec![(0, None); bed.hosts.len()],
        begun: 0,
        out_of_order: 0,
        doubled: Vec::new(),
    };
    (0..bed.hosts.len()).for_each(|machine| got.change(machine));
    let (mut next, mut kills, mut dead) = (0, 0, None);
    let begun = bed.now;
    let mut change = begun + SECOND;
    bed.run_until(Duration::from_secs(1_000_000), |bed| {
        while next < count && bed.peer.outstanding() < AHEAD {
            bed.peer.write(&frame(next, LENGTH));
            next += 1;
        }
        got.take(bed);
        if bed.now >= change {
            change += SECOND;
            let kill = kills % bed.hosts.len();
            bed.kill(kill);
            got.change(kill);
            kills += 1;
            if let Some(host) = dead.replace(kill) {
                got.change(host);
                bed.restart(host);
            }
        }
        next == count && bed.peer.is_done()
    });
    got.take(&mut bed);
    let counters = *bed.switch.counters();
    assert!(got.times.iter().all(|&(times, _)| times > 0), "every frame");
    let again: u64 = got
        .times
        .iter()
        .map(|&(times, _)| u64::from(times) - 1)
        .sum();
    println!(
        "{bytes} bytes, {count} frames in {:?} of the links' time, {:?} here: {kills} members \
         killed; {again} frames again, {} of them while who had them lived, {} out of order; \
         {counters:?}",
        bed.now - begun,
        began.elapsed(),
        got.doubled.len(),
        got.out_of_order
    );
    assert_eq!(bed.peer.state, State::Open);
    // Frames arrive twice only if the switch took them back from a member, and only as
    // often. From a living member it takes only frames that made way for one left by a
    // dead member.
    let taken = |number: u32| bed.model.taken(1 + number * (HEADER_LEN + LENGTH) as u32);
    for (number, &(times, _)) in (0..).zip(&got.times) {
        let taken = taken(number);
        assert!(
            u32::from(times) <= 1 + taken.dead + taken.living,
            "frame {number} {times} times: {taken:?}"
        );
    }
    for &number in &got.doubled {
        assert!(
            taken(number).living > 0,
            "frame {number}: {:?}",
            taken(number)
        );
    }
    assert!(again <= counters.frames_reassigned);
    assert!(got.out_of_order <= counters.frames_reassigned);
    assert!(kills > 0, "long enough for a member to die");
}
