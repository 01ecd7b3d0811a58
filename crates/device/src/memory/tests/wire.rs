//! The wire: impairments, clock, taps, queues by flow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use crate::memory::*;
use crate::queue::Interrupt;

#[test]
fn perfect_wire_carries_everything_at_once_and_in_order() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    for sent in 0..100 {
        transmit(&mut a, &numbered(sent), None);
    }
    assert_eq!(link.now(), Duration::ZERO);
    assert_eq!(numbers(&link, &mut b), (0..100).collect::<Vec<_>>());
    assert_eq!(numbers(&link, &mut a), []);
    transmit(&mut b, &numbered(7), None);
    assert_eq!(numbers(&link, &mut a), [7]);
    assert_eq!(
        link.wire_counters(Side::A),
        WireCounters {
            sent: 100,
            ..Default::default()
        }
    );
}

#[test]
fn same_seed_same_run() {
    let all = Impairments {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        delay: ms(5),
    };
    let (first_link, first) = run(all, 42, 500);
    let (second_link, second) = run(all, 42, 500);
    assert_eq!(first, second);
    assert_eq!(
        first_link.wire_counters(Side::A),
        second_link.wire_counters(Side::A)
    );
    let (_, other) = run(all, 43, 500);
    assert_ne!(first, other);
}

#[test]
fn loss_takes_its_share_and_accounts_for_it() {
    let (link, frames) = run(
        Impairments {
            loss: 0.25,
            ..Default::default()
        },
        9,
        1000,
    );
    let counters = link.wire_counters(Side::A);
    assert_eq!(
        (counters.sent, counters.lost + frames.len() as u64),
        (1000, 1000)
    );
    assert!((200..300).contains(&counters.lost), "{counters:?}");
}

#[test]
fn certain_loss_and_no_loss_are_exact() {
    assert!(
        run(
            Impairments {
                loss: 1.0,
                ..Default::default()
            },
            1,
            200
        )
        .1
        .is_empty()
    );
    assert_eq!(run(Impairments::default(), 1, 200).1.len(), 200);
}

#[test]
fn one_probability_does_not_move_the_others() {
    let duplicates = |loss| {
        let (_, frames) = run(
            Impairments {
                loss,
                duplicate: 0.2,
                ..Default::default()
            },
            5,
            300,
        );
        frames
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| number(&pair[0]))
            .collect()
    };
    let without: Vec<u32> = duplicates(0.0);
    let with: Vec<u32> = duplicates(0.3);
    assert!(with.len() > 10 && with.len() < without.len());
    assert!(with.iter().all(|number| without.contains(number)));
}

#[test]
fn duplicates_arrive_twice() {
    let (link, frames) = run(
        Impairments {
            duplicate: 1.0,
            ..Default::default()
        },
        1,
        20,
    );
    let expected: Vec<u32> = (0..20).flat_map(|sent| [sent, sent]).collect();
    assert_eq!(
        frames.iter().map(|frame| number(frame)).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(link.wire_counters(Side::A).duplicated, 20);
}

#[test]
fn a_frame_that_takes_twice_as_long_is_overtaken() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    let reorder = |reorder| Impairments {
        reorder,
        delay: ms(5),
        ..Default::default()
    };
    link.set_impairments(Side::A, reorder(1.0)).unwrap();
    transmit(&mut a, &numbered(0), None);
    link.set_impairments(Side::A, reorder(0.0)).unwrap();
    for sent in 1..3 {
        transmit(&mut a, &numbered(sent), None);
    }
    assert_eq!(link.next_due(), Some(ms(5)));
    link.advance_to(ms(5));
    assert_eq!(link.next_due(), Some(ms(10)));
    link.advance_to(ms(10));
    assert_eq!(numbers(&link, &mut b), [1, 2, 0]);
    assert_eq!(link.wire_counters(Side::A).reordered, 1);
    assert_eq!(link.next_due(), None);
}

#[test]
fn delay_is_exact_and_for_one_direction() {
    let (link, mut a, mut b) = link(a_to_b(Impairments {
        delay: ms(20),
        ..Default::default()
    }));
    link.advance_to(ms(1));
    transmit(&mut a, &numbered(1), None);
    transmit(&mut b, &numbered(2), None);
    assert_eq!(numbers(&link, &mut a), [2]);
    link.advance_to(ms(21) - Duration::from_nanos(1));
    assert_eq!(numbers(&link, &mut b), []);
    link.advance_to(ms(21));
    assert_eq!(numbers(&link, &mut b), [1]);
    // Time does not run backwards.
    link.advance_to(ms(3));
    assert_eq!(link.now(), ms(21));
}

#[test]
fn tap_sees_both_directions_the_lost_and_the_injected() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    let tap = link.tap();
    link.set_filter(Side::A, Some(Box::new(|number, _| number != 1)));
    for sent in 0..3 {
        transmit(&mut a, &numbered(sent), None);
    }
    link.advance_to(ms(2));
    transmit(&mut b, &numbered(9), None);
    link.inject(Side::B, &numbered(10));
    let seen: Vec<_> = tap
        .take()
        .iter()
        .map(|frame| (frame.time, frame.from, frame.lost, number(&frame.bytes)))
        .collect();
    let (zero, two) = (ms(0), ms(2));
    let expected = [
        (zero, Side::A, false, 0),
        (zero, Side::A, true, 1),
        (zero, Side::A, false, 2),
        (two, Side::B, false, 9),
        (two, Side::A, false, 10),
    ];
    assert_eq!(seen, expected);
    assert_eq!(numbers(&link, &mut b), [0, 2, 10]);
    assert_eq!(link.wire_counters(Side::A).filtered, 1);
    link.set_filter(Side::A, None);
    transmit(&mut a, &numbered(11), None);
    assert_eq!((tap.take().len(), tap.take().len()), (1, 0));
}

#[test]
fn frames_over_the_mtu_or_without_a_header_are_not_sent() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    transmit(&mut a, &vec![2; 1515], None);
    transmit(&mut a, &[2; 13], None);
    transmit(&mut a, &[2; 1514], None);
    let counters = link.wire_counters(Side::A);
    assert_eq!((counters.invalid, counters.sent), (2, 1));
    poll(&mut b);
    assert_eq!(link.port_counters(Side::B).arrived, 1);
}

#[test]
fn flows_spread_over_queues_and_stay_there() {
    let (link, mut a, mut b) = link(LinkConfig {
        queues: 4,
        ..LinkConfig::default()
    });
    let mut used = [0; 4];
    for port in 1000..1064 {
        let frame = datagram(port, b"");
        let queue = flow_queue(&frame, 4);
        assert_eq!(queue, flow_queue(&datagram(port, b"other bytes"), 4));
        // The reverse direction uses the queue of the same number.
        let mut back = frame.clone();
        back[26..30].copy_from_slice(&frame[30..34]);
        back[30..34].copy_from_slice(&frame[26..30]);
        back[34..36].copy_from_slice(&frame[36..38]);
        back[36..38].copy_from_slice(&frame[34..36]);
        assert_eq!(flow_queue(&back, 4), queue);
        transmit(&mut a, &frame, None);
        used[queue as usize] += 1;
    }
    assert!(used.iter().all(|&flows| flows > 4), "{used:?}");
    for (index, queue) in b.queues.iter_mut().enumerate() {
        queue.receive.poll(Interrupt::Masked).unwrap();
        let frames = link.take_kernel(Side::B);
        assert_eq!(frames.len(), used[index]);
        assert!(frames.iter().all(|frame| frame.queue == index as u32));
    }
    // Later fragments have no ports: all fragments of a datagram are steered by address.
    let fragment = |port| {
        let mut frame = datagram(port, b"");
        frame[20] = 0x20;
        flow_queue(&frame, 4)
    };
    assert!((1000..1064).all(|port| fragment(port) == fragment(1000)));
    assert_eq!(flow_queue(&numbered(1), 4), 0);
    assert_eq!(flow_queue(&[], 4), 0);
}

#[test]
fn configurations_out_of_range_are_refused() {
    let bad = [
        LinkConfig {
            queues: 0,
            ..LinkConfig::default()
        },
        LinkConfig {
            queues: MAXIMUM_QUEUES + 1,
            ..LinkConfig::default()
        },
        LinkConfig {
            frames: 0,
            ..LinkConfig::default()
        },
        a_to_b(Impairments {
            loss: 1.1,
            ..Default::default()
        }),
        a_to_b(Impairments {
            duplicate: f64::NAN,
            ..Default::default()
        }),
    ];
    for config in bad {
        assert_eq!(
            pair(config).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

#[test]
fn link_on_the_callers_clock_takes_no_time() {
    let clock = Arc::new(std::sync::atomic::AtomicU64::new(5));
    let reader = {
        let clock = Arc::clone(&clock);
        move || ms(clock.load(std::sync::atomic::Ordering::Relaxed))
    };
    let delayed = Impairments {
        delay: ms(1),
        ..Default::default()
    };
    assert!(pair_on_clock(a_to_b(delayed), || ms(0)).is_err());
    let (link, mut a, mut b) = pair_on_clock(LinkConfig::default(), reader).unwrap();
    assert!(link.set_impairments(Side::A, delayed).is_err());
    transmit(&mut a, &numbered(1), None);
    link.advance_to(ms(100));
    assert_eq!(link.now(), ms(5));
    clock.store(6, std::sync::atomic::Ordering::Relaxed);
    poll(&mut b);
    let frames = link.take_kernel(Side::B);
    assert_eq!((frames.len(), frames[0].time), (1, ms(6)));
}
