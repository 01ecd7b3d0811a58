//! Members that are added, removed and die while frames flow.

use std::time::Duration;

use tidewall_switch::modules::Lost;

use super::bed::{Bed, config, delayed, round_robin};
use super::end::State;
use super::transfer::{check_all, frame};

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
