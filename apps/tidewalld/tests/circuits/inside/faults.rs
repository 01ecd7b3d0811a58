//! Calls whose signalling is interrupted, crosses, is lost or late, or whose managers
//! die.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tidewall::{AtmListener, AtmSocket, CallOptions, Stack};
use tidewall_wire::atm::q2931::MessageType;

use crate::ends::*;
use crate::relay::{Relay, Way, message_of};
use crate::support::*;

/// Calls that both ends close at once.
const CROSSINGS: usize = 20;

fn begin_call(stack: &Stack, end: End) -> AtmSocket {
    let to = number(end.number(), SELECTOR);
    AtmSocket::connect_nonblocking(stack, to, &CallOptions::default()).unwrap()
}

fn is_idle() -> bool {
    End::Here.is_idle() && End::There.is_idle()
}

fn nothing_is_left() {
    wait_until("nothing is left", is_idle);
    for end in [End::Here, End::There] {
        assert_eq!(end.owned_circuits(), []);
    }
}

#[test]
#[ignore = "started by the test of this name"]
fn a_signal_ends_waiting() {
    handle_signals();
    let _daemons = [End::Here.daemon(), End::There.daemon()];
    let near = stack_of(4712);
    // Over the link, and through a single manager.
    for end in [End::There, End::Here] {
        let server = end.serve(4711);
        let to = number(end.number(), SELECTOR);
        drop(call(&near, to));
        wait_until("nothing is left", is_idle);
        let called = || end.counters().calls == 1;
        // The call waits for a process that does not accept.
        server.stop();
        let waited = interrupted(|| AtmSocket::connect(&near, to), called);
        assert_eq!(errno(waited), Some(Errno::INTR));
        nothing_is_left();
        // A process that only waits again still has the call.
        let socket = begin_call(&near, end);
        let waited = interrupted(|| socket.finish_connect(None), called);
        assert_eq!(errno(waited), Some(Errno::INTR));
        assert!(socket.is_connecting());
        server.proceed();
        socket.finish_connect(None).unwrap();
        let received = interrupted(|| socket.recv(&mut [0; 8]), || true);
        assert_eq!(errno(received), Some(Errno::INTR));
        echo(&socket, b"all the same").unwrap();
    }
    let own = number(HERE, 1);
    let listener = AtmListener::bind(&near, own, 1, Default::default()).unwrap();
    let accepted = interrupted(|| listener.accept(), || true);
    assert_eq!(errno(accepted), Some(Errno::INTR));
    nothing_is_left();
}

#[test]
#[ignore = "started by the test of this name"]
fn closes_cross() {
    let relay = Relay::start();
    let _daemons = [End::Here.daemon(), End::There.daemon()];
    let _server = End::There.serve(4711);
    let near = stack_of(TRUSTED);
    let to = number(THERE, SELECTOR);
    drop(call(&near, to));
    wait_until("nothing is left", is_idle);
    relay.heard();
    // The event that makes the other end close arrives before the release.
    relay.set(Way {
        late: [Duration::from_millis(20); 2],
        ..Way::default()
    });
    for _ in 0..CROSSINGS {
        let socket = AtmSocket::connect(&near, to).unwrap();
        // An echo proves that the call is acknowledged.
        echo(&socket, b"a payload").unwrap();
        socket.send(CLOSE).unwrap();
    }
    nothing_is_left();
    let heard = relay.heard();
    let said = |end, kind| {
        let of_end = heard.iter().filter(|(from, _)| *from == end);
        of_end
            .filter(|(_, pdu)| message_of(pdu) == Some(kind))
            .count()
    };
    let [here, there] = [End::Here, End::There].map(|end| {
        [MessageType::Release, MessageType::ReleaseComplete].map(|kind| said(end, kind))
    });
    println!("RELEASE, RELEASE COMPLETE: {here:?} here, {there:?} there");
    // A RELEASE that crosses is an answer (Q.2931, 5.4.5); a process that was late has answered.
    assert_eq!(here, [CROSSINGS, 0]);
    assert_eq!(there.iter().sum::<usize>(), CROSSINGS);
    assert!(there[0] > CROSSINGS / 2);
}

#[test]
#[ignore = "started by the test of this name"]
fn callers_give_up_while_they_are_answered() {
    let _daemons = [End::Here.daemon(), End::There.daemon()];
    let near = stack_of(4712);
    for end in [End::There, End::Here] {
        let _server = end.serve(4711);
        let to = number(end.number(), SELECTOR);
        drop(call(&near, to));
        let mut answered = 0;
        for round in 0..10 * CROSSINGS {
            let socket = begin_call(&near, end);
            let began = Instant::now();
            // Before, while and after it is answered.
            let until = Duration::from_micros((round as u64 * 37) % 4000);
            while began.elapsed() < until {}
            answered += usize::from(!socket.is_connecting());
        }
        println!("{answered} of {} were answered", 10 * CROSSINGS);
        assert!((CROSSINGS..10 * CROSSINGS).contains(&answered));
        nothing_is_left();
        echo(&call(&near, to), b"all the same").unwrap();
        nothing_is_left();
    }
}

/// Errors of calls whose signalling does not get through in time.
const LATE: [Errno; 2] = [Errno::TIMEDOUT, Errno::HOSTDOWN];

#[test]
#[ignore = "started by the test of this name"]
fn signalling_is_lost_and_late() {
    let relay = Relay::start();
    let _daemons = [End::Here.daemon(), End::There.daemon()];
    let _server = End::There.serve(4711);
    let near = stack_of(TRUSTED);
    let to = number(THERE, SELECTOR);
    let first = call(&near, to);
    relay.set(Way {
        lost: 100,
        late: [Duration::ZERO, Duration::from_millis(20)],
    });
    let refused = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for caller in 0..6 {
            let (near, refused) = (&near, &refused);
            scope.spawn(move || {
                for round in 0..4 {
                    match AtmSocket::connect(near, to) {
                        Ok(socket) => {
                            echo(&socket, format!("{caller} {round}").as_bytes()).unwrap()
                        }
                        Err(error) => {
                            let error = Errno::from_io_error(&error).unwrap();
                            assert!(LATE.contains(&error), "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(relay.lost() > 4, "{} lost", relay.lost());
    // The link repairs what is lost, within its timers.
    assert!(refused.into_inner() <= 3);
    wait_until("the first call is left", || {
        [End::Here, End::There].map(|end| end.counters().calls) == [1, 1]
    });
    echo(&first, b"as ever").unwrap();
    // Longer than a link may be silent (7 s), shorter than calls outlive it (T309, 10 s
    // more).
    relay.set(Way {
        lost: 1000,
        ..Way::default()
    });
    let began = Instant::now();
    let alone = errno(AtmSocket::connect(&near, to)).unwrap();
    assert!(LATE.contains(&alone), "{alone}");
    while began.elapsed() < Duration::from_secs(11) {
        echo(&first, b"without signalling").unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    relay.set(Way::default());
    let second = call(&near, to);
    assert_ne!(first.circuit(), second.circuit());
    for socket in [&first, &second] {
        echo(socket, b"with it again").unwrap();
    }
    assert_eq!(End::There.counters().calls, 2);
    // Too long.
    relay.set(Way {
        lost: 1000,
        ..Way::default()
    });
    for socket in [first, second] {
        assert_eq!(ending(&socket), Some(Errno::CONNRESET));
    }
    wait_until("nothing is left", is_idle);
    relay.set(Way::default());
    echo(&call(&near, to), b"anew").unwrap();
    nothing_is_left();
}

#[test]
#[ignore = "started by the test of this name"]
fn managers_die_amid_calls() {
    let mut daemons = [End::Here.daemon(), End::There.daemon()].map(Some);
    let _server = End::There.serve(4711);
    let to = number(THERE, SELECTOR);
    let over = AtomicBool::new(false);
    let [made, failed] = [const { AtomicU32::new(0) }; 2];
    // Any user's request to a restarted manager presents the application.
    as_user_beside(
        || {
            let near = stack(End::Here);
            let living: Vec<AtmSocket> = (0..4).map(|_| call(&near, to)).collect();
            std::thread::scope(|scope| {
                for (number, socket) in living.iter().enumerate() {
                    let over = &over;
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            echo(socket, format!("living {number}").as_bytes()).unwrap();
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    });
                }
                for caller in 0..4 {
                    let (near, over, made, failed) = (&near, &over, &made, &failed);
                    let living = &living;
                    scope.spawn(move || {
                        for round in 0.. {
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                            let Ok(socket) = AtmSocket::connect(near, to) else {
                                failed.fetch_add(1, Ordering::Relaxed);
                                std::thread::sleep(Duration::from_millis(5));
                                continue;
                            };
                            // No circuit of another application.
                            let circuit = socket.circuit();
                            assert!(living.iter().all(|it| it.circuit() != circuit));
                            // Its manager may have died before the other end noticed.
                            let text = format!("{caller} {round}");
                            match echo(&socket, text.as_bytes()) {
                                Ok(()) => made.fetch_add(1, Ordering::Relaxed),
                                Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                            };
                        }
                    });
                }
            });
            drop(living);
            near
        },
        || {
            wait_until("calls are made", || made.load(Ordering::Relaxed) > 20);
            for round in 0..6 {
                let before = made.load(Ordering::Relaxed);
                let end = [End::Here, End::There][round % 2];
                daemons[round % 2] = None;
                daemons[round % 2] = Some(end.daemon());
                wait_until("calls are made again", || {
                    made.load(Ordering::Relaxed) > before + 5
                });
            }
            over.store(true, Ordering::Relaxed);
        },
        nothing_is_left,
    );
    println!("{made:?} calls, {failed:?} failed");
}

/// Runs the first as a user, beside the second; then the third, before the first's result
/// is dropped.
fn as_user_beside<T: Send>(
    body: impl FnOnce() -> T + Send,
    beside: impl FnOnce(),
    then: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| as_user(TRUSTED, body));
        beside();
        let kept = thread.join().unwrap();
        then();
        drop(kept);
    });
}
