//! Who leads, in orders of events that threads would rarely produce.

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
    leadership.leave(&first, true);
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
    leadership.leave(&leader, true);
    leadership.leave(&leaving, false);
    assert!(is_signalled(&asleep), "nobody leads, and nobody knows");
    assert!(leadership.lead(&asleep));
}

#[test]
fn one_that_leaves_while_another_leads_wakes_nobody() {
    let leadership = Leadership::default();
    let (leader, leaving, asleep) = (waker(), waker(), waker());
    assert!(leadership.enter(&leader));
    assert!(!leadership.enter(&leaving));
    assert!(!leadership.enter(&asleep));
    leadership.leave(&leaving, false);
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
    // Who sleeps is woken to lead.
    leadership.resign(&resigns);
    assert!(!leadership.is_taken() && is_signalled(&serves));
    assert!(leadership.lead(&serves));
    leadership.leave(&serves, true);
    assert!(!is_signalled(&resigns));
    // A newcomer finds that nobody leads.
    assert!(leadership.enter(&serves));
    leadership.leave(&resigns, false);
    assert!(!leadership.enter(&resigns));
    leadership.leave(&serves, true);
    assert!(is_signalled(&resigns));
}

#[test]
fn waking_reaches_everyone_who_waits_for_the_thing() {
    let queue = WaitQueue::default();
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
