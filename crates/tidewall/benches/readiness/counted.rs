//! Waiting and reading, with what of it is counted in instructions.

use std::time::Duration;

use tidewall::readiness::{EpollEvent, Events, Operation};
use tidewall_bench_instructions::{Counter, Scenario};

use crate::bed::Bed;

/// The scenarios that are counted.
pub const SCENARIOS: [Scenario; 5] = [
    ("epoll_wait and read, nothing idle", |counter| {
        serve(counter, 0, true);
    }),
    ("epoll_wait and read, 4000 idle", |counter| {
        serve(counter, 4000, true);
    }),
    ("epoll_wait and read, with the protocol", |counter| {
        serve(counter, 0, false);
    }),
    ("epoll_wait, nothing ready, 4000 idle", look),
    ("epoll_ctl, a change", change),
];

/// Connections that are written to.
const ACTIVE: usize = 16;

fn serve(counter: &mut Counter, idle: usize, process: bool) {
    let mut bed = Bed::new(ACTIVE, idle);
    while counter.next_round() {
        bed.send_all(process);
        counter.count(ACTIVE, || bed.serve_all());
    }
}

fn look(counter: &mut Counter) {
    let bed = Bed::new(ACTIVE, 4000);
    let mut events = [EpollEvent::default(); 4];
    while counter.next_round() {
        let now = Some(Duration::ZERO);
        let found = counter.count(1, || bed.near.epoll_wait(bed.set, &mut events, now));
        assert_eq!(found.ok(), Some(0));
    }
}

fn change(counter: &mut Counter) {
    let bed = Bed::new(ACTIVE, 0);
    let mut data = 0;
    while counter.next_round() {
        data += 1;
        let event = EpollEvent {
            events: Events::IN | Events::EDGE,
            data,
        };
        counter.count(ACTIVE, || {
            for &fd in &bed.fds {
                let changed = bed
                    .near
                    .epoll_ctl(bed.set, Operation::Modify, fd, Some(event));
                assert!(changed.is_ok());
            }
        });
    }
}
