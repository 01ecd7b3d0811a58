//! Members that are added, removed and die while frames flow.

use std::cell::Cell;
use std::time::Duration;

use tidewall_simulator::random::Random;
use tidewall_switch::modules::{BlockStorage, HashOfKey, LeastOutstanding, Lost, Module, Speed};

use super::bed::{Bed, config, delayed, host_address, round_robin};
use super::end::State;
use super::transfer::{check_all, each_seed, frame, lossy, number};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_member_that_is_added_gets_frames() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        1,
        delayed(MILLISECOND),
        1,
    );
    let sent: Vec<_> = (0..60).map(|number| frame(number, 200)).collect();
    sent[..20].iter().for_each(|frame| bed.peer.write(frame));
    bed.run_until(Duration::from_secs(1), |bed| bed.got() == 20);
    let added = bed.add_member();
    bed.run_until(Duration::from_secs(1), |bed| {
        !bed.hosts[added].connections.is_empty()
    });
    let limit = bed.now + 10 * MILLISECOND;
    while bed.step(limit) {}
    sent[20..].iter().for_each(|frame| bed.peer.write(frame));
    bed.hosts[added].echoes = true;
    bed.run_until(Duration::from_secs(1), |bed| {
        bed.got() == 60 && bed.peer.got.len() == 20
    });
    check_all(&bed, &sent);
}

#[test]
fn a_member_that_is_removed_finishes_and_is_closed() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        3,
        delayed(MILLISECOND),
        1,
    );
    let sent: Vec<_> = (0..60).map(|number| frame(number, 200)).collect();
    bed.hosts.iter_mut().for_each(|host| host.echoes = true);
    sent[..30].iter().for_each(|frame| bed.peer.write(frame));
    bed.run_until(Duration::from_secs(1), |bed| bed.got() > 5);
    bed.remove_member(1);
    sent[30..].iter().for_each(|frame| bed.peer.write(frame));
    bed.run_until(Duration::from_secs(5), |bed| {
        bed.peer.got.len() == 60 && bed.switch.flows().all(|flow| flow.members.len() == 2)
    });
    check_all(&bed, &sent);
    let end = bed.hosts[1]
        .connections
        .values()
        .next()
        .expect("a connection");
    assert!(end.fin_received && end.is_done() && end.state == State::Open);
    assert_eq!(bed.switch.members().count(), 2);
}

#[test]
fn by_default_a_member_that_dies_with_frames_resets_the_connection() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        3,
        delayed(MILLISECOND),
        1,
    );
    (0..30).for_each(|number| bed.peer.write(&frame(number, 200)));
    bed.run_until(Duration::from_secs(1), |bed| bed.got() > 0);
    bed.kill(0);
    bed.run_until(Duration::from_secs(1), |bed| bed.peer.state == State::Reset);
    assert!(bed.switch.is_empty());
    assert_eq!(bed.switch.counters().reset_member, 1);
    for host in &bed.hosts[1..] {
        let end = host.connections.values().next().expect("a connection");
        assert_eq!(end.state, State::Reset);
    }
}

#[test]
fn a_member_that_dies_with_nothing_outstanding_is_not_missed() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        2,
        delayed(MILLISECOND),
        1,
    );
    let sent: Vec<_> = (0..20).map(|number| frame(number, 200)).collect();
    sent[..10].iter().for_each(|frame| bed.peer.write(frame));
    bed.run_until(Duration::from_secs(1), |bed| {
        bed.got() == 10 && bed.peer.is_done()
    });
    bed.kill(0);
    sent[10..].iter().for_each(|frame| bed.peer.write(frame));
    bed.run_until(Duration::from_secs(1), |bed| bed.got() == 20);
    check_all(&bed, &sent);
}

/// Members join, leave and die all the while; modules permit sending frames again. Every
/// frame arrives, at living members at most once.
fn any_ensemble(seed: u64) {
    let mut random = Random::new(seed);
    let impairment = lossy(&mut random);
    let turns = random.chance(0.5);
    let module = move || -> Box<dyn Module> {
        if turns {
            round_robin(Lost::Resend)()
        } else {
            Box::new(LeastOutstanding::new(Lost::Resend))
        }
    };
    let members = 2 + random.below(3) as usize;
    let mut bed = Bed::new(config(), module, members, impairment, seed);
    let count = 100 + random.below(300) as u32;
    let sent: Vec<_> = (0..count)
        .map(|number| frame(number, 4 + random.below(500) as usize))
        .collect();
    let mut next = 0;
    let mut changes = 0;
    bed.model.resends = true;
    bed.peer.sack = random.chance(0.5);
    bed.run_until(Duration::from_secs(600), |bed| {
        while next < sent.len() && bed.got() + 40 > next {
            bed.peer.write(&sent[next]);
            next += 1;
        }
        for end in bed
            .hosts
            .iter_mut()
            .flat_map(|host| host.connections.values_mut())
        {
            if end.fin_received {
                end.close();
            }
        }
        // The last of them stay.
        if changes < 6 && next > changes * 15 + 10 && random.chance(0.02) {
            changes += 1;
            let up: Vec<_> = bed
                .switch
                .members()
                .filter(|member| member.2)
                .map(|member| member.0)
                .collect();
            let open = |id| {
                bed.switch
                    .flows()
                    .any(|flow| flow.members.iter().any(|end| end.id == id && end.open))
            };
            let open: Vec<_> = up.into_iter().filter(|&id| open(id)).collect();
            if open.len() < 2 || random.chance(0.4) {
                bed.add_member();
            } else {
                let id = open[random.below(open.len() as u64) as usize];
                let host = bed
                    .hosts
                    .iter()
                    .rposition(|host| host.id == id && host.alive)
                    .expect("a host");
                if random.chance(0.5) {
                    bed.kill(host);
                } else {
                    bed.remove_member(host);
                }
            }
        }
        next == sent.len() && bed.peer.is_done()
    });
    assert!(bed.peer.state == State::Open, "{:?}", bed.switch.counters());
    let mut seen = vec![0; sent.len()];
    for frame in bed
        .hosts
        .iter()
        .flat_map(|host| host.connections.values())
        .flat_map(|end| &end.got)
    {
        let number = number(frame) as usize;
        assert!(*frame == sent[number]);
        seen[number] += 1;
    }
    // More than once only where a member died, or frames were taken from one.
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
    let again: u64 = seen.iter().map(|&count| count - 1).sum();
    assert!(again <= bed.switch.counters().frames_reassigned);
}

#[test]
fn any_ensemble_gets_every_frame() {
    each_seed(1000, any_ensemble);
}

/// A module by which a dead member's frames go to no other. `4`: requests for blocks.
fn once(choice: u64) -> Box<dyn Module> {
    match choice {
        0 => Box::new(LeastOutstanding::new(Lost::Reset)),
        1 => Box::new(HashOfKey::new(0..4, Lost::Reset)),
        2 => Box::new(Speed::new(Lost::Reset)),
        3 => round_robin(Lost::Reset)(),
        _ => {
            let nodes = (1..4).map(host_address);
            Box::new(BlockStorage::new(host_address(0), nodes.collect()))
        }
    }
}

/// Members die all the while, and the module permits no frame to be sent again. Each
/// arrives at one member at most, in order there. All do, or the connection is reset.
/// True for a reset.
fn any_ensemble_of_frames_for_one(seed: u64) -> bool {
    let mut random = Random::new(seed);
    let impairment = lossy(&mut random);
    let choice = random.below(5);
    // The first byte of a request to read a block.
    let first = if choice == 4 { 1 << 24 } else { 0 };
    let members = 2 + random.below(3) as usize;
    let mut bed = Bed::new(config(), move || once(choice), members, impairment, seed);
    let count = 60 + random.below(100) as u32;
    let sent: Vec<_> = (first..first + count)
        .map(|number| frame(number, 16 + random.below(500) as usize))
        .collect();
    let (mut next, mut kills) = (0, 0);
    let is_reset = |bed: &Bed| {
        let counters = bed.switch.counters();
        counters.reset_member + counters.reset_module > 0
    };
    bed.run_until(Duration::from_secs(600), |bed| {
        // Everything is acknowledged now and then, so that some members are not missed.
        if bed.peer.is_done() {
            for frame in sent.iter().skip(next).take(20) {
                bed.peer.write(frame);
                next += 1;
            }
        }
        if kills < 2 && next > 20 * (kills + 1) && random.chance(0.01) {
            let alive = (0..bed.hosts.len()).filter(|&host| bed.hosts[host].alive);
            let alive: Vec<usize> = alive.collect();
            let host = alive[random.below(alive.len() as u64) as usize];
            bed.kill(host);
            kills += 1;
        }
        is_reset(bed) || next == sent.len() && bed.peer.is_done()
    });
    // Segments in flight to members arrive.
    let limit = bed.now + Duration::from_secs(5);
    while bed.step(limit) {}
    let mut seen = vec![0; sent.len()];
    for end in bed.hosts.iter().flat_map(|host| host.connections.values()) {
        assert!(end.got.is_sorted_by(|one, next| number(one) < number(next)));
        for frame in &end.got {
            let number = (number(frame) - first) as usize;
            assert!(*frame == sent[number], "every byte of {number}");
            seen[number] += 1;
        }
    }
    assert!(seen.iter().all(|&times| times <= 1), "{seen:?}");
    assert_eq!(bed.switch.counters().frames_reassigned, 0);
    let reset = is_reset(&bed);
    assert!(reset || seen.iter().all(|&times| times == 1), "{seen:?}");
    reset
}

#[test]
fn what_may_not_be_sent_again_reaches_one_member_once() {
    let resets = Cell::new(0);
    each_seed(500, |seed| {
        resets.set(resets.get() + u32::from(any_ensemble_of_frames_for_one(seed)));
    });
    if std::env::var_os("TIDEWALL_SEED").is_none() {
        assert!((50..450).contains(&resets.get()), "{} resets", resets.get());
    }
}

/// As `any_ensemble`, and members answer. A dead member's debt to the peer is made up
/// for, or the connection is reset. The peer never stalls, and never receives anything
/// but replies, or a reply twice unless its frame was sent twice. Members that join
/// meanwhile are not affected by the debt.
fn any_ensemble_that_answers(seed: u64) {
    let mut random = Random::new(seed);
    let impairment = lossy(&mut random);
    let mut config = config();
    config.drain_timeout = Duration::from_secs(20);
    let mut bed = Bed::new(config, round_robin(Lost::Resend), 3, impairment, seed);
    bed.model.resends = true;
    bed.peer.sack = random.chance(0.5);
    bed.hosts.iter_mut().for_each(|host| host.echoes = true);
    let sent: Vec<_> = (0..120)
        .map(|number| frame(number, 4 + random.below(500) as usize))
        .collect();
    let mut next = 0;
    let kills = 1 + random.below(2) as usize;
    let (mut killed, mut come) = (0, random.below(3));
    bed.run_until(Duration::from_secs(900), |bed| {
        while next < sent.len() && bed.got() + 40 > next {
            bed.peer.write(&sent[next]);
            next += 1;
        }
        if killed < kills && next > 60 && random.chance(0.05) {
            killed += 1;
            bed.kill(killed);
        }
        if killed > 0 && come > 0 && random.chance(0.2) {
            come -= 1;
            let added = bed.add_member();
            bed.hosts[added].echoes = true;
        }
        let owed = killed > 0
            && (bed.switch.flows()).any(|flow| flow.members.iter().any(|member| !member.open));
        let done = next == sent.len() && bed.peer.is_done() && !owed;
        let answered = |host: &super::bed::Host| {
            !host.alive || host.connections.values().all(super::end::End::is_done)
        };
        // The peer may not learn of it: an RST is not repeated.
        bed.switch.counters().reset_member > 0 || done && bed.hosts.iter().all(answered)
    });
    let mut seen = vec![0; sent.len()];
    for frame in &bed.peer.got {
        assert!(*frame == sent[number(frame) as usize]);
        seen[number(frame) as usize] += 1;
    }
    let again: u64 = seen
        .iter()
        .map(|&count: &u64| count.saturating_sub(1))
        .sum();
    assert!(again <= bed.switch.counters().frames_reassigned);
    if bed.switch.counters().reset_member > 0 {
        return;
    }
    assert_eq!(bed.peer.state, State::Open);
    // A reply is missing only where its frame reached a dead member.
    let dead: Vec<_> = (bed.hosts.iter().filter(|host| !host.alive))
        .flat_map(|host| host.connections.values())
        .flat_map(|end| &end.got)
        .collect();
    for (frame, _) in sent.iter().zip(&seen).filter(|(_, count)| **count == 0) {
        assert!(dead.contains(&frame), "{}", number(frame));
    }
}

#[test]
fn any_ensemble_that_answers_is_whole_or_reset() {
    each_seed(500, any_ensemble_that_answers);
}
