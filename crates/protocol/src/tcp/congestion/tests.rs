//! The window under either algorithm, and the first slow start on a link with a
//! queue.

use std::collections::VecDeque;

use super::*;

const MSS: u32 = 1000;

fn acknowledge(controller: &mut Controller, bytes: u32, in_flight: u32) {
    controller.on_acknowledged(&Acknowledged {
        first: 0,
        next: 0,
        bytes,
        in_flight,
        limited: in_flight + MSS > controller.window(),
        round_trip: None,
        srtt: 100_000,
        now: Duration::ZERO,
        mss: MSS,
    });
}

fn both() -> [Controller; 2] {
    Congestion::ALL.map(|congestion| Controller::new(10 * MSS, congestion))
}

#[test]
fn names_are_linuxs() {
    for congestion in Congestion::ALL {
        assert_eq!(Congestion::from_name(congestion.name()), Some(congestion));
    }
    assert_eq!(Congestion::default().name(), "cubic");
    assert_eq!(Congestion::from_name("reno"), Some(Congestion::NewReno));
    assert_eq!(Congestion::from_name("bbr"), None);
    // The part that an idle connection holds.
    assert!(size_of::<Controller>() <= 48, "{}", size_of::<Controller>());
}

#[test]
fn slow_start_doubles_the_window_however_acknowledgments_are_coalesced() {
    for each in [1, 2, 4, 10] {
        for mut controller in both() {
            for _ in 0..10 / each {
                acknowledge(&mut controller, each * MSS, 10 * MSS);
            }
            acknowledge(&mut controller, 10 % each * MSS, 10 * MSS);
            assert_eq!(controller.window(), 20 * MSS, "{each} at a time");
        }
    }
}

#[test]
fn newreno_grows_by_a_segment_a_round_trip() {
    let mut reno = Controller::new(20 * MSS, Congestion::NewReno);
    reno.on_loss(MSS);
    assert_eq!((reno.window(), reno.threshold()), (10 * MSS, 10 * MSS));
    for _ in 0..10 {
        acknowledge(&mut reno, MSS, 10 * MSS);
    }
    assert_eq!(reno.window(), 11 * MSS);
}

#[test]
fn reductions_are_linuxs_in_whole_segments() {
    for (segments, cubic, reno) in [
        (2, 2, 2),
        (3, 2, 2),
        (4, 2, 2),
        (10, 7, 5),
        (13, 9, 6),
        (20, 14, 10),
    ] {
        for (congestion, expected) in [(Congestion::Cubic, cubic), (Congestion::NewReno, reno)] {
            let mut controller = Controller::new(segments * MSS, congestion);
            controller.on_loss(MSS);
            let after = (controller.window(), controller.threshold());
            assert_eq!(
                after,
                (expected * MSS, expected * MSS),
                "{congestion:?} of {segments}"
            );
        }
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for mut controller in both() {
        for _ in 0..100 {
            acknowledge(&mut controller, MSS, 5 * MSS);
        }
        assert_eq!(controller.window(), 10 * MSS, "slow start: not half used");
        for _ in 0..100 {
            acknowledge(&mut controller, MSS, 6 * MSS);
        }
        assert_eq!(controller.window(), 12 * MSS, "twice what is used");
        controller.on_loss(MSS);
        let window = controller.window();
        for _ in 0..100 {
            acknowledge(&mut controller, MSS, window - MSS);
        }
        assert_eq!(controller.window(), window, "avoidance: not full");
    }
}

#[test]
fn a_timeout_begins_with_one_segment_and_reduces_once() {
    for (mut controller, expected) in both().into_iter().zip([7, 5]) {
        controller.on_timeout(MSS, true);
        let state = |controller: &Controller| (controller.window(), controller.threshold());
        assert_eq!(state(&controller), (MSS, expected * MSS));
        controller.on_timeout(MSS, false);
        assert_eq!(state(&controller), (MSS, expected * MSS));
        // Slow start up to the threshold; congestion avoidance beyond it.
        for _ in 1..expected {
            let full = controller.window();
            acknowledge(&mut controller, MSS, full);
        }
        assert_eq!(controller.window(), expected * MSS);
        let full = controller.window();
        acknowledge(&mut controller, MSS, full);
        assert!(controller.window() < (expected + 1) * MSS);
    }
}

#[test]
fn undoing_brings_window_and_threshold_back() {
    for mut controller in both() {
        let (window, congestion) = (controller.window(), controller.congestion());
        controller.on_timeout(MSS, true);
        assert_ne!(controller.threshold(), u32::MAX);
        controller.undo();
        let state = (controller.window(), controller.threshold());
        assert_eq!(state, (window, u32::MAX));
        // CUBIC is in its first slow start again, with HyStart++.
        assert_eq!(controller.congestion(), congestion);
        assert!(controller.is_sound());
        controller.on_loss(MSS);
        let (first, threshold) = (controller.window(), controller.threshold());
        controller.on_loss(MSS);
        controller.undo();
        assert_eq!(
            (controller.window(), controller.threshold()),
            (first, threshold)
        );
    }
}

#[test]
fn idleness_halves_the_window_for_each_timeout() {
    let ms = Duration::from_millis;
    for mut controller in both() {
        for _ in 0..70 {
            let full = controller.window();
            acknowledge(&mut controller, MSS, full);
        }
        controller.on_loss(MSS);
        let (window, threshold) = (controller.window(), controller.threshold());
        let idle = |time| {
            let mut controller = controller;
            controller.on_idle(time, ms(300), 10 * MSS);
            assert_eq!(controller.threshold(), threshold);
            controller.window()
        };
        assert_eq!(idle(ms(300)), window);
        assert_eq!(idle(ms(301)), window / 2);
        assert_eq!(idle(ms(601)), (window / 4).max(10 * MSS));
        assert_eq!(idle(Duration::MAX), 10 * MSS);
        // Three quarters are remembered if the threshold is lower.
        controller.window = 1000 * MSS;
        controller.on_idle(ms(5000), ms(300), 10 * MSS);
        assert_eq!(controller.threshold(), 750 * MSS);
    }
}

#[test]
fn half_of_what_is_not_used_is_given_up() {
    for mut controller in both() {
        controller.threshold = 20 * MSS;
        controller.window = 40 * MSS;
        controller.on_application_limited(20 * MSS, 10 * MSS);
        assert_eq!(
            (controller.window(), controller.threshold()),
            (30 * MSS, 30 * MSS)
        );
        controller.on_application_limited(MSS, 10 * MSS);
        assert_eq!(
            controller.window(),
            20 * MSS,
            "the initial window is always granted"
        );
        controller.on_application_limited(50 * MSS, 10 * MSS);
        assert_eq!(controller.window(), 20 * MSS);
    }
}

#[test]
fn another_algorithm_goes_on_from_the_window() {
    let mut controller = Controller::new(10 * MSS, Congestion::Cubic);
    controller.set_congestion(Congestion::NewReno);
    assert_eq!(controller.congestion(), Congestion::NewReno);
    controller.on_loss(MSS);
    controller.set_congestion(Congestion::Cubic);
    assert_eq!(
        (controller.window(), controller.threshold()),
        (5 * MSS, 5 * MSS)
    );
    assert!(
        matches!(controller.algorithm, Algorithm::Cubic(_)),
        "no first slow start"
    );
    for _ in 0..10 {
        acknowledge(&mut controller, MSS, 10 * MSS);
    }
    assert!(controller.window() > 5 * MSS);
}

/// A sender that always has data, a link with a drop-tail queue, and a receiver
/// that acknowledges every second segment.
struct Path {
    /// Bytes per second.
    rate: u64,
    /// The round trip without queueing.
    round_trip: Duration,
    /// Size of the queue, in bytes.
    queue: u64,
}

/// The end of the first slow start.
#[derive(Debug)]
struct Ended {
    window: u32,
    at: Duration,
    lost: bool,
    /// Whether it ended in conservative slow start.
    conservative: bool,
}

impl Path {
    fn first_slow_start(&self, jitter: impl Fn(u32) -> Duration) -> Ended {
        let mut controller = Controller::new(10 * MSS, Congestion::Cubic);
        let (mut first, mut next) = (0u32, 0u32);
        let (mut now, mut free) = (Duration::ZERO, Duration::ZERO);
        let mut flying = VecDeque::new();
        let mut srtt = 0;
        let serialization = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        let ended = |controller: &Controller, at, lost| Ended {
            window: controller.window(),
            at,
            lost,
            conservative: match &controller.algorithm {
                Algorithm::HyStart(hystart) => hystart.rounds > 0,
                _ => false,
            },
        };
        while controller.window() < WINDOW_MAX {
            while next.wrapping_sub(first) + MSS <= controller.window() {
                free = free.max(now);
                if free - now > serialization(self.queue) {
                    return ended(&controller, now, true);
                }
                free += serialization(MSS.into());
                next = next.wrapping_add(MSS);
                flying.push_back((next, now, free + self.round_trip + jitter(next)));
            }
            let in_flight = next.wrapping_sub(first);
            let one = flying.pop_front().unwrap();
            let (sequence, sent, arrival) = flying.pop_front().unwrap_or(one);
            now = now.max(arrival);
            let round_trip = (now - sent).as_micros() as u32;
            srtt = srtt - srtt / 8 + round_trip / 8;
            controller.on_acknowledged(&Acknowledged {
                first: sequence,
                next,
                bytes: sequence.wrapping_sub(first),
                in_flight,
                limited: in_flight + MSS > controller.window(),
                round_trip: Some(round_trip),
                srtt,
                now,
                mss: MSS,
            });
            first = sequence;
            if controller.threshold() != u32::MAX {
                assert_eq!(controller.threshold() / MSS, controller.window() / MSS);
                return ended(&controller, now, false);
            }
        }
        ended(&controller, now, false)
    }
}

#[test]
fn a_rising_round_trip_ends_the_first_slow_start() {
    let ms = Duration::from_millis;
    let mut gentle = 0;
    for (rate, round_trip) in [
        (12_500_000, 20),
        (12_500_000, 100),
        (125_000_000, 50),
        (1_250_000, 40),
    ] {
        let product = rate * round_trip / 1000;
        let path = |queue| Path {
            rate,
            round_trip: ms(round_trip),
            queue: queue * product,
        };
        // The queue holds what five rounds of conservative slow start add.
        let ended = path(8).first_slow_start(|_| Duration::ZERO);
        assert!(!ended.lost, "{rate} B/s at {round_trip} ms: {ended:?}");
        assert!(ended.window > product as u32, "{ended:?}");
        // A smaller queue overflows gently: the window no longer doubles.
        let ended = path(3).first_slow_start(|_| Duration::ZERO);
        gentle += u32::from(!ended.lost || ended.conservative);
    }
    // A rise that disappears as the window passes the path's product may be mistaken for
    // jitter.
    assert!(gentle >= 3, "{gentle} of 4");
}

#[test]
fn jitter_that_passes_does_not_end_the_first_slow_start() {
    let ms = Duration::from_millis;
    // One round of eight takes 20 ms longer; the path itself is never full.
    let path = Path {
        rate: 1 << 34,
        round_trip: ms(50),
        queue: 1 << 34,
    };
    let jitter = |sequence: u32| {
        if sequence > 100_000 && sequence < 200_000 {
            ms(20)
        } else {
            ms(0)
        }
    };
    let ended = path.first_slow_start(jitter);
    assert_eq!(ended.window, WINDOW_MAX, "{ended:?}");
    assert!(ended.at < ms(1500), "{ended:?}");
}
