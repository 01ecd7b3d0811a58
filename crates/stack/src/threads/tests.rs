//! Tests which thread leads, in orders of events that threads would rarely produce.

use tidewall_sys::priority::Priority;

use super::*;

fn waker() -> Arc<Waker> {
    Arc::new(Waker::new().unwrap())
}

fn is_signalled(waker: &Waker) -> bool {
    waker.signalled.load(Ordering::Acquire)
}

#[test]
fn the_first_sleeper_leads_and_passes_it_on() {
    let leadership = Leadership::default();
    let (first, second) = (waker(), waker());
    assert!(leadership.enter(&first));
    assert!(!leadership.enter(&second));
    leadership.leave(&first);
    assert!(is_signalled(&second));
    assert!(leadership.lead(&second));
}

#[test]
fn a_lead_handed_to_one_that_is_leaving_goes_on_to_the_next() {
    let leadership = Leadership::default();
    let (leader, leaving, asleep) = (waker(), waker(), waker());
    assert!(leadership.enter(&leader));
    assert!(!leadership.enter(&leaving));
    assert!(!leadership.enter(&asleep));
    // Woken by its data, it has looked for the lead in vain already.
    assert!(!leadership.lead(&leaving));
    leadership.leave(&leader);
    leadership.leave(&leaving);
    assert!(is_signalled(&asleep), "no thread leads, and nobody knows");
    assert!(leadership.lead(&asleep));
}

#[test]
fn one_that_leaves_while_another_leads_wakes_nobody() {
    let leadership = Leadership::default();
    let (leader, leaving, asleep) = (waker(), waker(), waker());
    assert!(leadership.enter(&leader));
    assert!(!leadership.enter(&leaving));
    assert!(!leadership.enter(&asleep));
    leadership.leave(&leaving);
    assert!(!is_signalled(&leader) && !is_signalled(&asleep));
}

#[test]
fn one_that_has_resigned_is_not_woken_to_lead_until_it_sleeps_anew() {
    let leadership = Leadership::default();
    let (resigns, serves) = (waker(), waker());
    assert!(leadership.enter(&resigns));
    assert!(!leadership.enter(&serves));
    serves.wake();
    assert!(leadership.has_woken_another(&resigns));
    serves.clear();
    assert!(!leadership.has_woken_another(&resigns));
    // A sleeper is woken to lead.
    leadership.resign(&resigns);
    assert!(!leadership.is_taken() && is_signalled(&serves));
    assert!(leadership.lead(&serves));
    leadership.leave(&serves);
    assert!(!is_signalled(&resigns));
    // A newcomer finds that no thread leads.
    assert!(leadership.enter(&serves));
    leadership.leave(&resigns);
    assert!(!leadership.enter(&resigns));
    leadership.leave(&serves);
    assert!(is_signalled(&resigns));
}

fn waker_of(nice: i32) -> Arc<Waker> {
    let waker = waker();
    waker.set_priority(Priority::of_nice(nice));
    waker
}

#[test]
fn a_higher_thread_takes_the_lead_over_and_keeps_it() {
    let leadership = Leadership::default();
    let (low, high, equal) = (waker_of(10), waker_of(0), waker_of(0));
    assert!(leadership.enter(&low));
    assert!(leadership.enter(&high));
    assert!(is_signalled(&low) && !leadership.is_led_by(&low));
    low.clear();
    assert!(!leadership.lead(&low) && leadership.lead(&high));
    assert!(!leadership.enter(&equal) && leadership.is_led_by(&high));
    // One that has lost the lead leaves it alone.
    leadership.leave(&low);
    assert!(leadership.is_led_by(&high) && !is_signalled(&high) && !is_signalled(&equal));
    leadership.enter(&low);
    leadership.leave(&high);
    assert!(
        is_signalled(&equal) && !is_signalled(&low),
        "the highest is next"
    );
    // It has gone by then, and knows that no thread leads.
    leadership.leave(&equal);
    assert!(is_signalled(&low) && leadership.lead(&low));
}

#[test]
fn a_leader_gives_way_once_it_is_lower_than_a_sleeper() {
    let leadership = Leadership::default();
    let (falls, stays) = (waker_of(0), waker_of(0));
    assert!(leadership.enter(&falls) && !leadership.enter(&stays));
    assert!(!leadership.give_way(&falls) && leadership.is_led_by(&falls));
    falls.set_priority(Priority::IDLE);
    assert!(leadership.give_way(&falls) && is_signalled(&stays) && !leadership.is_taken());
    assert!(leadership.lead(&stays) && !leadership.lead(&falls));
}

#[test]
fn none_resigns_for_lower_threads_nor_takes_over_once_it_has() {
    let leadership = Leadership::default();
    let (high, low) = (waker_of(-5), waker_of(0));
    assert!(leadership.enter(&high) && !leadership.enter(&low));
    low.wake();
    assert!(!leadership.has_woken_another(&high));
    assert!(!leadership.give_way(&high));
    let equal = waker_of(-5);
    assert!(!leadership.enter(&equal));
    equal.wake();
    assert!(leadership.has_woken_another(&high));
    leadership.resign(&high);
    leadership.leave(&equal);
    assert!(leadership.lead(&low) && !leadership.lead(&high));
    leadership.leave(&low);
    assert!(!is_signalled(&high) && leadership.lead(&high));
}

/// Threads of all priorities sleep, wake and change. A thread leads whenever all that
/// were woken have looked, and it is a sleeper that has not resigned, if there is one.
#[test]
fn a_thread_leads_in_any_order_of_events() {
    let leadership = Leadership::default();
    let wakers: Vec<_> = (0..5).map(|_| waker()).collect();
    let mut asleep = [false; 5];
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    // Does what a sleeper does that was woken without data.
    let looks = |waker: &Arc<Waker>| {
        waker.clear();
        leadership.lead(waker)
    };
    for _ in 0..20_000 {
        let which = random(5) as usize;
        let waker = &wakers[which];
        match (asleep[which], random(5)) {
            (false, _) => {
                waker.clear_if_signalled();
                waker.set_priority(Priority::of_nice(random(3) as i32));
                leadership.enter(waker);
                asleep[which] = true;
            }
            (true, 0 | 1) => {
                leadership.leave(waker);
                asleep[which] = false;
            }
            (true, 2) => leadership.resign(waker),
            (true, 3) => {
                waker.clear();
                let changed = waker.set_priority(Priority::of_nice(random(3) as i32));
                let gives_way =
                    changed && leadership.is_led_by(waker) && leadership.give_way(waker);
                if !gives_way {
                    leadership.lead(waker);
                }
            }
            _ => {
                looks(waker);
            }
        }
        // Sometimes the woken look at once.
        if random(3) > 0 {
            continue;
        }
        while let Some(woken) = (0..5).find(|&it| asleep[it] && is_signalled(&wakers[it])) {
            looks(&wakers[woken]);
        }
        let may_lead = |&it: &usize| asleep[it] && !wakers[it].has_resigned.load(Ordering::Relaxed);
        if (0..5).any(|it| may_lead(&it)) {
            let leader = (0..5).find(|&it| leadership.is_led_by(&wakers[it]));
            assert!(leader.is_some_and(|it| asleep[it]), "no thread leads");
        } else if let Some(leader) = (0..5).find(|&it| leadership.is_led_by(&wakers[it])) {
            assert!(asleep[leader]);
        }
    }
}

#[test]
fn a_thread_knows_that_it_has_woken_a_higher_one() {
    let lower = std::thread::spawn(|| {
        let lower = rustix::thread::gettid();
        rustix::process::setpriority_process(Some(lower), 10).unwrap();
        let before = woken_higher();
        for nice in [10, 11] {
            waker_of(nice).wake();
            assert!(!yield_to_higher(before), "nice {nice}");
        }
        let higher = waker_of(9);
        higher.wake();
        assert!(yield_to_higher(before));
        // It is not woken twice.
        let before = woken_higher();
        higher.wake();
        assert!(!yield_to_higher(before));
    });
    lower.join().unwrap();
}

#[test]
fn waking_reaches_everyone_who_waits_for_the_thing() {
    let (count, threads) = Default::default();
    let queue = Sleepers {
        count: &count,
        threads: &threads,
    };
    let (one, two, gone) = (waker(), waker(), waker());
    for each in [&one, &two, &gone] {
        queue.enter(each, false);
    }
    queue.leave(&gone);
    queue.wake_all();
    assert!(is_signalled(&one) && is_signalled(&two) && !is_signalled(&gone));
    one.clear();
    assert!(!is_signalled(&one));
}

#[test]
fn waking_the_leader_reaches_the_leader_only() {
    let leadership = Leadership::default();
    let (leader, other) = (waker(), waker());
    leadership.wake_leader();
    assert!(!leadership.is_taken());
    assert!(leadership.enter(&leader));
    assert!(!leadership.enter(&other));
    assert!(leadership.is_taken());
    leadership.wake_leader();
    assert!(is_signalled(&leader) && !is_signalled(&other));
}

/// A signal given while its waker clears an earlier one may leave the
/// descriptor readable; that must not make every later poll return at once.
#[test]
fn a_signal_that_crossed_a_clear_wakes_once() {
    let waker = waker();
    waker.event.signal();
    let readable = || {
        let mut fired = Vec::new();
        let now = Some(std::time::Duration::ZERO);
        tidewall_sys::poll_readable(&[waker.descriptor()], now, None, &mut fired).unwrap();
        !fired.is_empty()
    };
    assert!(readable());
    waker.clear();
    assert!(!readable());
    waker.wake();
    assert!(readable());
}
