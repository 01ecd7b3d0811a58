//! When data is sent (RFC 9293 §3.7, §3.8): Nagle, cork, windows, silly-window
//! avoidance, persist, retransmission.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Connection, Errno, State};
use tidewall_wire::tcp::Flags;

use crate::peer::{ACK, MSS, OURS, Peer, both, ms, plain};

fn lengths(peer: &mut Peer) -> Vec<usize> {
    peer.brief().iter().map(|segment| segment.3).collect()
}

#[test]
fn nagle_holds_a_second_small_segment_until_the_first_is_acknowledged() {
    let mut peer = Peer::established(&plain());
    peer.write(10);
    assert_eq!(lengths(&mut peer), [10]);
    peer.write(10);
    peer.write(10);
    assert_eq!(lengths(&mut peer), [0; 0]);
    // Full segments leave.
    peer.write(MSS);
    assert_eq!(lengths(&mut peer), [MSS]);
    peer.give(ACK, 0, 10, b"");
    assert_eq!(lengths(&mut peer), [20]);

    let mut peer = Peer::established(&plain());
    peer.engine.set_nodelay(true);
    for _ in 0..3 {
        peer.write(10);
        assert_eq!(lengths(&mut peer), [10]);
    }
}

#[test]
fn cork_holds_what_is_not_full_for_a_while() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_cork(true);
    peer.write(2 * MSS + 100);
    assert_eq!(lengths(&mut peer), [MSS, MSS]);
    peer.give(ACK, 0, 2 * MSS as u32, b"");
    assert_eq!(lengths(&mut peer), [0; 0]);
    // wants_output() began the timer.
    assert_eq!(peer.wait_for_timer(), ms(200));
    assert_eq!(lengths(&mut peer), [100]);
    peer.write(100);
    assert_eq!(lengths(&mut peer), [0; 0]);
    peer.engine.set_cork(false);
    peer.engine.set_nodelay(true);
    assert_eq!(lengths(&mut peer), [100]);
}

#[test]
fn the_end_of_what_was_written_is_pushed_and_goes_with_the_fin() {
    let mut peer = Peer::established(&plain());
    peer.write(MSS + 10);
    let now = peer.now;
    peer.engine.close(None, now);
    assert_eq!(
        peer.brief(),
        [
            (ACK, 0, 0, MSS),
            (both(ACK, both(Flags::PSH, Flags::FIN)), MSS as u32, 0, 10)
        ]
    );
}

/// Length and flags of each burst that leaves now.
fn bursts(peer: &mut Peer) -> Vec<(usize, Flags)> {
    let now = peer.now;
    let mut bursts = Vec::new();
    peer.engine.output(now, &mut |outgoing| {
        assert_eq!(usize::from(outgoing.segment_size), MSS);
        bursts.push((outgoing.payload_len(), outgoing.header.flags));
        true
    });
    bursts
}

#[test]
fn offloading_leaves_full_segments_together_and_pushes_them() {
    let mut peer = Peer::established(&Config {
        offload: 5500,
        burst_min: 40,
        initial_window: 14,
        ..plain()
    });
    peer.write(16 * MSS);
    // The congestion window ends in the middle of what was written.
    let pushed = both(ACK, Flags::PSH);
    assert_eq!(
        bursts(&mut peer),
        [(5 * MSS, pushed), (5 * MSS, pushed), (4 * MSS, pushed)]
    );
}

#[test]
fn what_left_of_a_refused_burst_may_be_acknowledged_and_nothing_beyond() {
    let config = Config {
        offload: 60_000,
        burst_min: 40,
        initial_window: 14,
        ..plain()
    };
    let mut peer = Peer::established(&config);
    peer.write(40 * MSS);
    let now = peer.now;
    peer.engine.output(now, &mut |outgoing| {
        assert_eq!(outgoing.payload_len(), 7 * MSS);
        false
    });
    // Beyond the burst nothing can have left: the acknowledgment is challenged.
    peer.give(ACK, 0, 8 * MSS as u32, b"");
    let now = peer.now;
    let mut answers = Vec::new();
    peer.engine.output(now, &mut |outgoing| {
        answers.push((outgoing.header.sequence, outgoing.payload_len()));
        outgoing.payload_len() == 0
    });
    assert_eq!(answers[0].1, 7 * MSS);
    let first = answers[0].0;
    peer.give(ACK, 0, 3 * MSS as u32, b"");
    let now = peer.now;
    let mut next = None;
    peer.engine.output(now, &mut |outgoing| {
        next.get_or_insert(outgoing.header.sequence);
        true
    });
    assert_eq!(next, Some(first.wrapping_add(3 * MSS as u32)));
    // All offered data has left by now: an acknowledgment of more is refused again.
    peer.give(ACK, 0, 39 * MSS as u32, b"");
    assert!(peer.engine.awaits_acknowledgment());
}

#[test]
fn a_burst_is_at_most_half_of_the_congestion_window() {
    let mut peer = Peer::established(&Config {
        offload: 60_000,
        burst_min: 40,
        initial_window: 7,
        ..plain()
    });
    peer.write(20 * MSS);
    let pushed = both(ACK, Flags::PSH);
    // The remainder is less than a segment, so there is no burst.
    assert_eq!(
        bursts(&mut peer),
        [(3 * MSS, pushed), (3 * MSS, pushed), (MSS, ACK)]
    );
}

#[test]
fn a_burst_that_the_device_does_not_cut_leaves_as_segments_the_last_pushed() {
    let mut peer = Peer::established(&Config {
        burst_min: 40,
        initial_window: 7,
        ..plain()
    });
    peer.write(20 * MSS);
    let pushed = both(ACK, Flags::PSH);
    let flags: Vec<_> = bursts(&mut peer).iter().map(|burst| burst.1).collect();
    assert_eq!(flags, [ACK, ACK, pushed, ACK, ACK, pushed, ACK]);
    // The rest of a burst without room is a burst itself.
    peer.give(ACK, 0, 7 * MSS as u32, b"");
    let (now, mut room) = (peer.now, 3);
    peer.engine.output(now, &mut |_| {
        room -= 1;
        room >= 0
    });
    let flags: Vec<_> = bursts(&mut peer).iter().map(|burst| burst.1).collect();
    assert_eq!(flags.len(), 10, "{flags:?}");
    assert_eq!(peer.engine.info().retransmissions, 0);
    peer.give(ACK, 0, 20 * MSS as u32, b"");
    assert_eq!(peer.engine.info().unacknowledged, 0);
}

#[test]
fn what_the_caller_has_no_room_for_is_kept() {
    let mut peer = Peer::established(&plain());
    peer.write(3 * MSS);
    let now = peer.now;
    let mut room = 2;
    peer.engine.output(now, &mut |_| {
        room -= 1;
        room > 0
    });
    assert!(peer.engine.wants_output());
    assert_eq!(lengths(&mut peer), [MSS, MSS]);
    assert_eq!(peer.engine.info().retransmissions, 0);
}

#[test]
fn the_initial_window_is_ten_segments_and_doubles() {
    let mut peer = Peer::established(&plain());
    peer.write(60 * MSS);
    assert_eq!(lengths(&mut peer), [MSS; 10]);
    peer.now += ms(100);
    for count in 1..=10 {
        peer.give(ACK, 0, count * MSS as u32, b"");
    }
    assert_eq!(lengths(&mut peer), [MSS; 20]);
}

#[test]
fn the_sender_avoids_silly_windows() {
    let mut peer = Peer::established(&plain());
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    peer.write(5 * MSS);
    peer.sent();
    // Less than a segment and less than half of the largest window: not worth sending,
    peer.window = 500;
    peer.give(ACK, 0, 0, b"");
    assert_eq!(lengths(&mut peer), [0; 0]);
    // unless nothing better happens.
    assert_eq!(peer.wait_for_timer(), ms(200));
    assert_eq!(lengths(&mut peer), [500]);
    peer.window = 1500;
    peer.give(ACK, 0, 500, b"");
    assert_eq!(lengths(&mut peer), [MSS]);
}

#[test]
fn segments_are_at_most_half_of_the_largest_window() {
    // Two of them fill it, so that the peer does not delay its acknowledgment (as
    // Linux `tcp_bound_to_half_wnd`; RFC 9293 §3.8.6.2.1, §3.8.6.3).
    let mut peer = Peer::with_window(
        &Config {
            mss: 3466,
            ..plain()
        },
        2304,
    );
    peer.write(5000);
    assert_eq!(lengths(&mut peer), [1152, 1152]);
    peer.give(ACK, 0, 2304, b"");
    assert_eq!(lengths(&mut peer), [1152, 1152]);
    // The rest does not wait: the segments in flight were full.
    peer.give(ACK, 0, 2304 + 1152, b"");
    assert_eq!(lengths(&mut peer), [392]);
    // A larger window permits larger segments.
    peer.window = 5000;
    peer.give(ACK, 0, 5000, b"");
    peer.write(5000);
    assert_eq!(lengths(&mut peer), [2500, 2500]);
    peer.window = 60_000;
    peer.give(ACK, 0, 10_000, b"");
    peer.write(7000);
    assert_eq!(lengths(&mut peer), [3466, 3466, 68]);
    // Half of next to nothing would be silly.
    let mut peer = Peer::with_window(
        &Config {
            mss: 3466,
            ..plain()
        },
        500,
    );
    peer.write(1000);
    assert_eq!(lengths(&mut peer), [500]);
}

#[test]
fn a_closed_window_is_probed_ever_more_seldom_and_for_ever() {
    let mut peer = Peer::established(&plain());
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    peer.write(100);
    assert_eq!(lengths(&mut peer), [0; 0]);
    let mut intervals = Vec::new();
    for _ in 0..40 {
        intervals.push(peer.wait_for_timer());
        let probes = peer.brief();
        // One below the acknowledged number, so that the peer answers.
        assert_eq!(probes, [(ACK, u32::MAX, 0, 0)]);
        peer.give(ACK, 0, 0, b"");
    }
    assert!(intervals.is_sorted() && intervals[0] < Duration::from_secs(1));
    assert_eq!(intervals[39], Duration::from_secs(120));
    assert_eq!(peer.state(), State::Established);
    peer.window = 1000;
    peer.give(ACK, 0, 0, b"");
    assert_eq!(lengths(&mut peer), [100]);
    assert!(peer.engine.info().retransmission_timeout < Duration::from_secs(1));
}

#[test]
fn probes_without_an_answer_end_the_connection() {
    let mut peer = Peer::established(&plain());
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    peer.write(100);
    peer.sent();
    let mut probes = 0;
    while peer.state() == State::Established {
        peer.wait_for_timer();
        probes += peer.sent().len();
    }
    assert_eq!(probes, 15);
    assert_eq!(peer.engine.take_error(), Some(Errno::TIMEDOUT));
}

#[test]
fn data_is_sent_again_until_the_user_timeout() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_user_timeout(Some(Duration::from_secs(5)));
    peer.write(100);
    peer.sent();
    let began = peer.now;
    let mut again = 0;
    while peer.state() == State::Established {
        peer.wait_for_timer();
        again += peer.sent().len();
    }
    let time = peer.now - began;
    assert!(time >= Duration::from_secs(5) && time < Duration::from_secs(12));
    assert!(again >= 3, "{again}");
    assert_eq!(peer.engine.write(b"x"), Err(Errno::TIMEDOUT));
    assert_eq!(peer.engine.write(b"x"), Err(Errno::PIPE));
}

#[test]
fn retransmission_gives_up_when_linux_does() {
    let mut peer = Peer::established(&plain());
    peer.write(100);
    peer.sent();
    let began = peer.now;
    while peer.state() == State::Established {
        peer.wait_for_timer();
        peer.sent();
    }
    // tcp_retries2 of 15: 924.6 s for a round trip near nothing.
    let time = (peer.now - began).as_secs();
    assert!((900..1200).contains(&time), "{time}");
    assert_eq!(peer.engine.take_error(), Some(Errno::TIMEDOUT));
}

#[test]
fn three_duplicates_send_the_first_segment_again() {
    let mut peer = Peer::established(&Config {
        sack: false,
        ..plain()
    });
    peer.write(20 * MSS);
    assert_eq!(peer.sent().len(), 10);
    peer.now += ms(100);
    // Limited transmit (RFC 3042) on the first two.
    peer.give(ACK, 0, 0, b"");
    peer.give(ACK, 0, 0, b"");
    assert_eq!(peer.brief().len(), 2);
    peer.give(ACK, 0, 0, b"");
    assert_eq!(peer.brief(), [(ACK, 0, 0, MSS)]);
    let info = peer.engine.info();
    assert_eq!((info.fast_recoveries, info.retransmissions), (1, 1));
    assert!(info.congestion_window < 10 * MSS as u32);
    // A partial acknowledgment names the next hole, which is retransmitted as soon as the
    // reduced window has room.
    peer.give(ACK, 0, 3 * MSS as u32, b"");
    assert_eq!(peer.brief(), []);
    peer.give(ACK, 0, 3 * MSS as u32, b"");
    assert_eq!(peer.brief(), [(ACK, 3 * MSS as u32, 0, MSS)]);
}

#[test]
fn sack_sends_only_the_holes_again() {
    let mut peer = Peer::established(&plain());
    peer.write(10 * MSS);
    assert_eq!(peer.sent().len(), 10);
    peer.now += ms(100);
    let at = |segments: u32| OURS.wrapping_add(1 + segments * MSS as u32);
    // The first and the fifth are lost.
    peer.sack.push(at(5), at(10));
    peer.sack.push(at(1), at(4));
    peer.give(ACK, 0, 0, b"");
    assert_eq!(
        peer.brief(),
        [(ACK, 0, 0, MSS), (ACK, 4 * MSS as u32, 0, MSS)]
    );
    peer.give(ACK, 0, 10 * MSS as u32, b"");
    assert_eq!(peer.brief(), []);
    assert_eq!(peer.engine.info().unacknowledged, 0);
    assert_eq!(peer.engine.next_timeout(), None);
}

#[test]
fn writable_means_a_third_is_free() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_send_buffer(9000);
    assert!(peer.engine.writable());
    peer.write(6000);
    assert!(peer.engine.writable());
    peer.write(100);
    assert!(!peer.engine.writable());
    assert_eq!(peer.engine.write(&[0; 9000]), Ok(2900));
    assert_eq!(peer.engine.write(&[0; 1]), Err(Errno::AGAIN));
    peer.sent();
    peer.give(ACK, 0, 3000, b"");
    assert!(peer.engine.writable());
}

#[test]
fn after_a_pause_the_window_begins_anew() {
    let mut peer = Peer::established(&plain());
    let mut offset = 0;
    for _ in 0..5 {
        peer.write(30 * MSS);
        while peer.engine.info().not_sent + peer.engine.info().unacknowledged > 0 {
            for segment in peer.sent() {
                offset += segment.payload.len() as u32;
            }
            peer.now += ms(1);
            peer.give(ACK, 0, offset, b"");
        }
    }
    assert!(peer.engine.info().congestion_window > 20 * MSS as u32);
    peer.now += Duration::from_secs(10);
    peer.write(30 * MSS);
    assert_eq!(lengths(&mut peer), [MSS; 10]);
}

/// Grows the window to twenty segments and more, and returns its size.
fn grown(peer: &mut Peer) -> u32 {
    let mut offset = 0;
    for _ in 0..2 {
        peer.write(20 * MSS);
        while peer.engine.info().not_sent + peer.engine.info().unacknowledged > 0 {
            for segment in peer.sent() {
                offset += segment.payload.len() as u32;
            }
            peer.now += ms(10);
            peer.give(ACK, 0, offset, b"");
        }
    }
    offset
}

#[test]
fn a_window_that_is_not_used_is_halved_once_a_timeout() {
    let mut peer = Peer::established(&plain());
    let mut offset = grown(&mut peer);
    let window = peer.engine.info().congestion_window;
    assert!(window >= 20 * MSS as u32, "{window}");
    let mut windows = Vec::new();
    // A segment per 100 ms, well within a retransmission timeout.
    for _ in 0..40 {
        peer.now += ms(100);
        peer.write(MSS);
        assert_eq!(lengths(&mut peer), [MSS]);
        offset += MSS as u32;
        peer.now += ms(10);
        peer.give(ACK, 0, offset, b"");
        windows.push(peer.engine.info().congestion_window);
    }
    assert!(windows.is_sorted_by(|a, b| a >= b), "{windows:?}");
    windows.dedup();
    assert!(windows.len() > 3, "a step at a time: {windows:?}");
    let least = 10 * MSS as u32;
    assert!(
        windows.last().unwrap().abs_diff(least) < 100,
        "the initial window is kept: {windows:?}"
    );
}

#[test]
fn acknowledgments_that_come_together_all_count_for_the_window() {
    let mut peer = Peer::established(&plain());
    peer.write(10 * MSS);
    peer.sent();
    peer.now += ms(100);
    // The data in flight was the whole window; that the window grows meanwhile does not
    // change that.
    for segment in 1..=10 {
        peer.give(ACK, 0, segment * MSS as u32, b"");
    }
    assert_eq!(peer.engine.info().congestion_window, 20 * MSS as u32);
}

#[test]
fn what_sending_waits_for_is_timed() {
    let mut peer = Peer::established(&plain());
    let times = |peer: &Peer| {
        let times = peer.engine.sending_times(peer.now);
        [times.busy, times.window_limited, times.buffer_limited]
    };
    peer.now += ms(500);
    assert_eq!(times(&peer), [ms(0); 3], "nothing to send");
    // Limited by the network.
    peer.write(2 * MSS);
    assert_eq!(lengths(&mut peer), [MSS; 2]);
    peer.now += ms(30);
    assert_eq!(times(&peer), [ms(30), ms(0), ms(0)]);
    // The peer's window has room for one more, then for none.
    peer.window = 2 * MSS as u16;
    peer.give(ACK, 0, MSS as u32, b"");
    peer.write(3 * MSS);
    assert_eq!(lengths(&mut peer), [MSS]);
    peer.now += ms(20);
    assert_eq!(times(&peer), [ms(50), ms(20), ms(0)]);
    let mut thawed = peer.engine.freeze(peer.now);
    thawed = Connection::thaw(&thawed, ms(7)).unwrap().freeze(ms(7));
    let thawed = Connection::thaw(&thawed, peer.now).unwrap();
    assert_eq!(
        thawed.sending_times(peer.now),
        peer.engine.sending_times(peer.now)
    );
    peer.window = 60_000;
    peer.give(ACK, 0, 3 * MSS as u32, b"");
    assert_eq!(lengths(&mut peer), [MSS; 2]);
    peer.now += ms(10);
    assert_eq!(times(&peer), [ms(60), ms(20), ms(0)]);
    // Limited by our own buffer: all of it has left, and a writer has more.
    peer.engine.set_send_buffer(5 * MSS as u32);
    assert_eq!(peer.engine.write(&[0; 9000]), Ok(3 * MSS));
    assert_eq!(lengths(&mut peer), [MSS; 3]);
    peer.now += ms(5);
    assert_eq!(times(&peer), [ms(65), ms(20), ms(5)]);
    peer.give(ACK, 0, 5 * MSS as u32, b"");
    peer.write(MSS);
    assert_eq!(lengths(&mut peer), [MSS]);
    peer.now += ms(1);
    assert_eq!(times(&peer), [ms(66), ms(20), ms(5)]);
    // Idle again.
    peer.give(ACK, 0, 9 * MSS as u32, b"");
    peer.now += Duration::from_secs(9);
    assert_eq!(times(&peer), [ms(66), ms(20), ms(5)]);
}

#[test]
fn not_much_more_than_the_low_water_mark_waits_to_be_sent() {
    // No burst is longer than a segment.
    let mut peer = Peer::established(&Config {
        offload: MSS as u32,
        ..plain()
    });
    assert_eq!(peer.engine.not_sent_low_water(), None);
    peer.engine.set_not_sent_low_water(Some(4000));
    assert_eq!(peer.engine.not_sent_low_water(), Some(4000));
    // Ten segments may leave; four wait.
    assert_eq!(peer.engine.write(&[0; 50_000]), Ok(14_000));
    assert_eq!(peer.engine.write(b"more"), Err(Errno::AGAIN));
    assert!(!peer.engine.writable());
    assert_eq!(lengths(&mut peer).len(), 10);
    assert_eq!(peer.engine.write(b"more"), Err(Errno::AGAIN));
    peer.give(ACK, 0, 1000, b"");
    assert_eq!(lengths(&mut peer), [MSS; 2]);
    assert!(!peer.engine.writable(), "half of it waits");
    assert_eq!(peer.engine.write(&[0; 500]), Ok(500), "who asks may write");
    peer.give(ACK, 0, 2000, b"");
    assert_eq!(lengths(&mut peer), [MSS; 2]);
    assert_eq!(peer.engine.info().not_sent, 500);
    assert!(peer.engine.writable());
    // A closed window stops all data: only the mark counts.
    peer.window = 0;
    peer.give(ACK, 0, 14_000, b"");
    assert_eq!(lengths(&mut peer), [0; 0]);
    assert_eq!(peer.engine.write(&[0; 50_000]), Ok(3500));
    peer.engine.set_not_sent_low_water(None);
    assert_eq!(peer.engine.write(&[0; 5000]), Ok(5000));
}

#[test]
fn the_low_water_mark_is_rounded_up_to_whole_bursts() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_not_sent_low_water(Some(0));
    assert_eq!(peer.engine.not_sent_low_water(), Some(1));
    // Ten segments leave, and half of the peer's window waits.
    assert_eq!(peer.engine.write(&[0; 50_000]), Ok(40_000));
    assert_eq!(lengths(&mut peer).iter().sum::<usize>(), 10_000);
    assert_eq!(peer.engine.write(b"more"), Err(Errno::AGAIN));
    assert!(!peer.engine.writable());
}

#[test]
fn a_window_goes_with_the_acknowledgment_that_it_came_with() {
    let mut peer = Peer::established(&plain());
    peer.window = 3000;
    peer.give(ACK, 100, 0, b"");
    peer.write(10 * MSS);
    assert_eq!(peer.brief().len(), 3);
    // The peer's first data again, which arrived late the first time. With it come an
    // acknowledgment, and a window that ends where the last one did.
    peer.window = 1000;
    peer.give(ACK, 0, 2000, &[7; 100]);
    let sent = peer.brief();
    assert!(sent.iter().all(|segment| segment.3 == 0), "{sent:?}");
}
