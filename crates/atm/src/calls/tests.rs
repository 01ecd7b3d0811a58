//! Two ends of a link, each with its calls.

use std::time::Duration;

use super::*;
use crate::signalling::Config;

const NOW: Time = Duration::from_secs(1);

fn number(system: u8, selector: u8) -> Nsap {
    let mut number = [0x47; 20];
    (number[18], number[19]) = (system, selector);
    Nsap(number)
}

/// The user's end, and the network's.
fn ends() -> [Calls; 2] {
    [(Side::User, 1), (Side::Network, 2)].map(|(side, system)| {
        let mut config = Config::new(side);
        config.link.first_sequence = system;
        Calls::new(number(system, 0), config)
    })
}

fn nothing_is_open(_: Circuit) -> bool {
    false
}

/// Carries PDUs until there are none. Returns each end's notices.
fn settle(ends: &mut [Calls; 2], now: Time) -> [Vec<Notice>; 2] {
    let mut learned = [Vec::new(), Vec::new()];
    loop {
        let mut went = false;
        for (from, learned) in learned.iter_mut().enumerate() {
            let [sends, receives] = match ends {
                [one, other] if from == 0 => [one, other],
                [one, other] => [other, one],
            };
            while let Some(notice) = sends.poll_notice(now, &nothing_is_open) {
                if let Notice::Connected(id, _) = notice {
                    sends.acknowledge(now, id);
                }
                learned.push(notice);
            }
            while let Some(pdu) = sends.signalling().poll_transmit(now) {
                receives.signalling().pdu_received(now, &pdu);
                went = true;
            }
        }
        if !went {
            return learned;
        }
    }
}

fn call(ends: &mut [Calls; 2]) -> CallId {
    let options = CircuitOptions::default();
    let (to, from) = (number(2, 7).into(), number(1, 0));
    let called = ends[0].call(NOW, &to, from, &options, &nothing_is_open);
    called.unwrap()
}

#[test]
fn a_call_has_its_circuit_at_both_ends_until_both_have_released_it() {
    let mut ends = ends();
    let options = CircuitOptions::default();
    ends[1].listen(5, number(2, 7).into(), options, 1).unwrap();
    let id = call(&mut ends);
    let [caller, called] = settle(&mut ends, NOW);
    let called_id = CallId { ours: false, ..id };
    assert_eq!(
        (&caller[..], &called[..]),
        (&[][..], &[Notice::Incoming(5, called_id)][..])
    );
    // A second call has no place in the backlog.
    let second = call(&mut ends);
    let [caller, _] = settle(&mut ends, NOW);
    let busy = Cause::new(Cause::USER_BUSY);
    assert_eq!(caller, [Notice::Ended(second, busy)]);
    let taken = ends[1].take_next(5).unwrap();
    let circuit = taken.circuit;
    assert_eq!(taken.peer, Some(number(1, 0)));
    assert!(ends[1].answer(NOW, &taken));
    let [caller, called] = settle(&mut ends, NOW);
    let opens = Notice::Circuit(id, circuit);
    assert_eq!(caller, [opens, Notice::Connected(id, 9180)]);
    assert!(matches!(called[..], [Notice::Connected(..)]));
    ends[0].release(NOW, id, Cause::NORMAL);
    assert!(ends[0].is_held(circuit));
    let [_, called] = settle(&mut ends, NOW);
    assert_eq!(called, [Notice::Ended(taken.id, Cause::new(Cause::NORMAL))]);
    assert!(
        ends.iter()
            .all(|end| end.circuits() == 0 && end.views().count() == 0)
    );
}

#[test]
fn a_call_that_one_end_has_taken_over_alone_is_released() {
    let mut ends = ends();
    let circuit = Circuit { vpi: 0, vci: 40 };
    let (ours, value) = (true, 9);
    let both = CallId { ours, value };
    assert!(ends[0].restore(both, Some(circuit)));
    assert!(ends[1].restore(
        CallId {
            ours: false,
            ..both
        },
        Some(circuit)
    ));
    let alone = CallId { ours, value: 10 };
    assert!(!ends[0].restore(alone, Some(circuit)));
    assert!(ends[0].restore(alone, Some(Circuit { vci: 41, ..circuit })));
    ends[0].signalling().establish(NOW);
    let mut learned = settle(&mut ends, NOW);
    let mut now = NOW;
    while let Some(at) = ends.iter().filter_map(Calls::poll_timeout).min()
        && at < NOW + Duration::from_secs(10)
    {
        now = now.max(at);
        ends.iter_mut()
            .for_each(|end| end.signalling().handle_timeout(now));
        let more = settle(&mut ends, now);
        learned
            .iter_mut()
            .zip(more)
            .for_each(|(of, more)| of.extend(more));
    }
    assert!(matches!(learned[0][..], [Notice::Ended(id, _)] if id == alone));
    assert_eq!((learned[1].len(), ends[0].circuits()), (0, 1));
}

#[test]
fn listeners_are_of_the_system_and_of_different_calls() {
    let [mut user, _] = ends();
    let options = CircuitOptions::default();
    let other = user.listen(1, number(2, 0).into(), options, 1);
    assert_eq!(other, Err(ListenError::NotOwn));
    user.listen(1, number(1, 0).into(), options, 1).unwrap();
    let same = user.listen(2, number(1, 0).into(), options, 1);
    assert_eq!(same, Err(ListenError::InUse));
    user.unlisten(NOW, 1);
    user.listen(2, number(1, 0).into(), options, 1).unwrap();
}
