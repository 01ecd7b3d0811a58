use std::collections::{BTreeMap, VecDeque};

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

fn plan(rate: u64) -> Plan {
    Plan {
        rate,
        connect_timeout: 500 * MS,
        timeout: 2 * S,
        start: 0,
        end: 10 * S,
        open_max: 100_000,
    }
}

/// Checks that every connection has exactly one of these causes.
fn balance(accounts: &Accounts, open: usize) {
    let counts = accounts.counts();
    assert_eq!(
        counts.offered,
        counts.begun + counts.skipped + counts.no_room
    );
    let causes = counts.gave_up
        + counts.refused
        + counts.local_errors
        + counts.failed
        + counts.malformed
        + counts.timeouts
        + counts.responses
        + counts.other_status;
    assert_eq!(counts.begun, causes + accounts.unfinished(), "{counts:?}");
    assert_eq!(counts.ended(), causes);
    assert_eq!(accounts.unfinished(), open as u64, "{counts:?}");
}

/// A simulated server.
struct Server {
    /// Connections/s that it accepts; it never answers a connection that finds its queue
    /// full.
    accepts: u64,
    backlog: usize,
    round_trip: u64,
    service: u64,
}

/// Runs the accounts against a server on a virtual clock until `until`. The clock may
/// jump: `wake(now, wanted)` is when the generator wakes if it wants to at `wanted`.
fn simulate(
    accounts: &mut Accounts,
    server: &Server,
    until: u64,
    mut wake: impl FnMut(u64, u64) -> u64,
) {
    #[derive(Clone, Copy)]
    enum Event {
        Connected(Key),
        Answered(Key),
        Closed(Key),
    }
    let mut events: BTreeMap<(u64, u64), Event> = BTreeMap::new();
    let mut number = 0;
    let mut queue: VecDeque<u64> = VecDeque::new();
    let mut open = std::collections::HashSet::new();
    let mut accept_at = 0;
    let mut now = 0;
    while now < until {
        while let Some(entry) = events.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let event = entry.remove();
            number += 1;
            match event {
                Event::Connected(key) => {
                    if accounts.connected(key, now).is_some() {
                        // Accepted in its turn.
                        accept_at = u64::max(accept_at + S / server.accepts, now);
                        queue.push_back(accept_at);
                        let at = accept_at + server.service;
                        events.insert((at, number), Event::Answered(key));
                    }
                }
                Event::Answered(key) => {
                    if accounts.answered(key, 200, now).is_some() {
                        assert!(open.remove(&key.token()));
                        events.insert((now + server.round_trip, number), Event::Closed(key));
                    }
                }
                Event::Closed(key) => accounts.ended(key, End::Failed),
            }
        }
        let next = loop {
            match accounts.step(now) {
                Step::Begin(key) => {
                    assert_eq!(accounts.state(key), State::Trying);
                    assert!(open.insert(key.token()), "begun twice");
                    while queue.front().is_some_and(|at| *at <= now) {
                        queue.pop_front();
                    }
                    number += 1;
                    if queue.len() < server.backlog {
                        events.insert((now + server.round_trip, number), Event::Connected(key));
                    }
                }
                Step::GiveUp(key) => assert!(open.remove(&key.token())),
                Step::Reset(key) => {
                    open.remove(&key.token());
                }
                Step::Wait(at) => break at,
            }
        };
        assert!(next > now, "it would spin at {now}");
        let event = events.first_key_value().map_or(u64::MAX, |(key, _)| key.0);
        let woken = wake(now, next);
        now = event.max(now + 1).min(woken.max(now + 1)).min(until);
    }
    balance(accounts, open.len());
}

fn on_time(_: u64, wanted: u64) -> u64 {
    wanted
}

#[test]
fn the_rate_offered_is_d_over_t_whatever_the_server_can_do() {
    for (accepts, backlog) in [(1_000_000, 100_000), (500, 16), (1, 1)] {
        let mut accounts = Accounts::new(plan(5_000));
        let server = Server {
            accepts,
            backlog,
            round_trip: 100_000,
            service: MS,
        };
        simulate(&mut accounts, &server, 4 * S, on_time);
        let counts = accounts.counts();
        // One not yet due at the end, and one burst.
        assert!((19_999..=20_001).contains(&counts.begun), "{counts:?}");
        assert_eq!((counts.skipped, counts.no_room), (0, 0));
        assert_eq!(counts.gave_up > 10_000, accepts < 1_000, "{counts:?}");
    }
}

#[test]
fn no_more_than_d_are_with_the_establisher() {
    let mut accounts = Accounts::new(plan(2_000));
    let mut trying: i64 = 0;
    let mut most = 0;
    let mut now = 0;
    while now < 3 * S {
        now = match accounts.step(now) {
            Step::Begin(_) => {
                trying += 1;
                most = most.max(trying);
                continue;
            }
            Step::GiveUp(_) => {
                trying -= 1;
                continue;
            }
            Step::Reset(key) => panic!("{key:?} was never connected"),
            Step::Wait(at) => at,
        };
    }
    assert_eq!(most, 1_000, "D = 2,000/s × 0.5 s");
    assert_eq!(accounts.counts().begun, 6_000);
    assert_eq!(accounts.counts().gave_up, 5_000);
}

#[test]
fn connections_are_spaced_over_t() {
    let mut accounts = Accounts::new(plan(100));
    let mut begun = Vec::new();
    let mut now = 0;
    while now < S {
        match accounts.step(now) {
            Step::Begin(key) => {
                begun.push(now);
                accounts.ended(key, End::Refused);
            }
            Step::Wait(at) => now = at,
            step => panic!("{step:?}"),
        }
    }
    let expected: Vec<u64> = (0..100).map(|number| number * 10 * MS).collect();
    assert_eq!(begun, expected);
}

#[test]
fn a_late_generator_catches_up_and_a_very_late_one_says_so() {
    let server = Server {
        accepts: 1_000_000,
        backlog: 100_000,
        round_trip: 50_000,
        service: 50_000,
    };
    // Each wake-up is up to 30 ms late: nothing is lost of the rate.
    let mut accounts = Accounts::new(plan(3_000));
    let mut turn = 0;
    simulate(&mut accounts, &server, 2 * S, |_, wanted| {
        turn += 1;
        wanted + turn % 4 * 10 * MS
    });
    let counts = accounts.counts();
    assert_eq!(counts.skipped, 0);
    assert!((5_900..=6_000).contains(&counts.begun), "{counts:?}");
    // 300 ms stolen at once: a fifth of T is caught up, the rest skipped.
    let mut accounts = Accounts::new(plan(3_000));
    while let Step::Begin(_) = accounts.step(0) {}
    while let Step::Begin(_) = accounts.step(300 * MS) {}
    let counts = accounts.counts();
    assert!((590..=610).contains(&counts.skipped), "{counts:?}");
    assert!((299..=302).contains(&counts.begun), "{counts:?}");
    balance(&accounts, counts.begun as usize);
}

#[test]
fn times_count_from_when_a_connection_was_due() {
    let mut accounts = Accounts::new(plan(10));
    // Due at 0 and 100 ms, begun at 60 and 160 ms.
    let Step::Begin(first) = accounts.step(60 * MS) else {
        panic!("the first is due");
    };
    assert_eq!(accounts.step(60 * MS), Step::Wait(100 * MS));
    assert_eq!(accounts.connected(first, 61 * MS), Some(MS));
    let took = accounts.answered(first, 200, 65 * MS).unwrap();
    assert_eq!((took.corrected, took.raw), (65 * MS, 5 * MS));
    let Step::Begin(second) = accounts.step(160 * MS) else {
        panic!("the second is due");
    };
    assert_eq!(accounts.connected(second, 160 * MS), Some(0));
    let took = accounts.answered(second, 404, 161 * MS).unwrap();
    assert_eq!((took.corrected, took.raw), (61 * MS, MS));
    assert_eq!(accounts.counts().other_status, 1);
    // Both wait for the server to close; the first does not wait forever.
    accounts.ended(second, End::Failed);
    assert_eq!(accounts.counts().failed, 0);
    let mut reset = false;
    while let step @ (Step::Begin(_) | Step::Reset(_) | Step::GiveUp(_)) = accounts.step(1065 * MS)
    {
        reset |= step == Step::Reset(first);
    }
    assert!(reset);
    assert_eq!(accounts.counts().timeouts, 0);
}

#[test]
fn a_connection_has_one_end() {
    let mut accounts = Accounts::new(plan(1_000));
    let mut keys = Vec::new();
    let mut now = 0;
    while keys.len() < 8 {
        match accounts.step(now) {
            Step::Begin(key) => keys.push(key),
            Step::Wait(at) => now = at,
            step => panic!("{step:?}"),
        }
    }
    let [
        local,
        refused,
        failed,
        malformed,
        timeout,
        gave_up,
        answered,
        open,
    ] = keys[..]
    else {
        panic!("eight were begun");
    };
    accounts.ended(local, End::Local);
    accounts.ended(refused, End::Refused);
    for key in [failed, malformed, timeout, answered] {
        assert!(accounts.connected(key, now).is_some());
        assert!(accounts.connected(key, now).is_none(), "twice");
    }
    accounts.ended(failed, End::Failed);
    accounts.ended(malformed, End::Malformed);
    assert!(accounts.answered(answered, 200, now).is_some());
    assert!(accounts.answered(answered, 200, now).is_none(), "twice");
    assert!(accounts.answered(open, 200, now).is_none(), "not asked");
    // Late events for a reused slot count for no connection.
    for key in [local, refused, failed, malformed] {
        for end in [End::Local, End::Refused, End::Failed, End::Malformed] {
            accounts.ended(key, end);
        }
        assert_eq!(accounts.state(key), State::Free);
    }
    assert!(accounts.connected(open, now).is_some());
    balance(&accounts, 3);
    let mut closed = Vec::new();
    now = 3 * S;
    loop {
        match accounts.step(now) {
            Step::Begin(key) => accounts.ended(key, End::Local),
            Step::GiveUp(key) | Step::Reset(key) => closed.push(key),
            Step::Wait(_) => break,
        }
    }
    closed.sort_by_key(|key| key.token());
    assert_eq!(closed, [timeout, gave_up, answered, open]);
    let counts = accounts.counts();
    assert_eq!((counts.gave_up, counts.timeouts), (1, 2));
    balance(&accounts, 0);
}

#[test]
fn at_the_limit_nothing_is_begun_and_all_is_counted() {
    let mut plan = plan(1_000_000);
    (plan.open_max, plan.connect_timeout) = (1_000_000, 60 * S);
    let mut accounts = Accounts::new(plan);
    let mut now = 0;
    while now < 1_200 * MS {
        match accounts.step(now) {
            Step::Begin(_) => {}
            Step::Wait(at) => now = at,
            step => panic!("{step:?}"),
        }
    }
    let counts = accounts.counts();
    assert_eq!(counts.begun, 1_000_000);
    assert!(counts.no_room >= 199_000, "{counts:?}");
    assert_eq!(accounts.places.len(), 1_000_000);
    balance(&accounts, 1_000_000);
}

#[test]
fn keys_survive_epoll() {
    let key = Key {
        index: 7,
        generation: u32::MAX,
    };
    assert_eq!(Key::of_token(key.token()), key);
}
