use proptest::prelude::*;

use super::*;

const NOW: Time = Time::ZERO;

/// Carries from `from` to `to` the PDUs that `keep` selects; returns how many there were.
fn carry(now: Time, from: &mut Sscop, to: &mut Sscop, mut keep: impl FnMut() -> bool) -> usize {
    let mut count = 0;
    while let Some(pdu) = from.poll_transmit(now) {
        count += 1;
        if keep() {
            to.pdu_received(now, &pdu);
        }
    }
    count
}

/// Exchanges both ends' PDUs until there are no more.
fn exchange(now: Time, a: &mut Sscop, b: &mut Sscop) {
    while carry(now, a, b, || true) + carry(now, b, a, || true) > 0 {}
}

fn events(link: &mut Sscop) -> Vec<Event> {
    std::iter::from_fn(|| link.poll_event()).collect()
}

fn pair() -> (Sscop, Sscop) {
    let (mut a, mut b) = (Sscop::new(Config::default()), Sscop::new(Config::default()));
    a.establish(NOW);
    exchange(NOW, &mut a, &mut b);
    assert_eq!(events(&mut a), [Event::Established]);
    assert_eq!(events(&mut b), [Event::Established]);
    (a, b)
}

/// A link in a state, with nothing to send.
fn in_state(state: State) -> Sscop {
    let (mut link, _) = pair();
    match state {
        State::Ready => {}
        State::Idle => link.down(),
        State::OutgoingConnection => {
            link.down();
            link.establish(NOW);
        }
        State::OutgoingDisconnection => link.release(NOW),
        State::OutgoingResynchronization => link.establish(NOW),
        State::OutgoingRecovery => link.start_recovery(NOW, b'Q'),
    }
    assert_eq!(link.state(), state);
    link.out.clear();
    link.events.clear();
    link
}

fn sent(link: &mut Sscop) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| link.poll_transmit(NOW)).collect()
}

fn data(text: &[u8]) -> Event {
    Event::Data(text.to_vec())
}

#[test]
fn messages_go_both_ways_and_the_link_goes_down() {
    let (mut a, mut b) = pair();
    a.send(b"to b").unwrap();
    b.send(b"to a").unwrap();
    exchange(NOW, &mut a, &mut b);
    assert_eq!(events(&mut a), [data(b"to a")]);
    assert_eq!(events(&mut b), [data(b"to b")]);
    a.release(NOW);
    exchange(NOW, &mut a, &mut b);
    assert_eq!((a.state(), b.state()), (State::Idle, State::Idle));
    assert_eq!(events(&mut a), [Event::Released]);
    assert_eq!(events(&mut b), [Event::Released]);
    assert_eq!(a.send(b"x"), Err(SendError::Down));
    assert_eq!(a.poll_timeout(), None);
}

#[test]
fn a_lost_message_is_asked_for_by_the_next_and_sent_once() {
    let (mut a, mut b) = pair();
    for message in [b"0", b"1", b"2"] {
        a.send(message).unwrap();
    }
    let mut number = 0;
    carry(NOW, &mut a, &mut b, || {
        number += 1;
        number != 1
    });
    assert_eq!(events(&mut b), []);
    exchange(NOW, &mut a, &mut b);
    assert_eq!(events(&mut b), [data(b"0"), data(b"1"), data(b"2")]);
    // The POLL's answer releases the sender's copies.
    let at = a.poll_timeout().unwrap();
    a.handle_timeout(at);
    exchange(at, &mut a, &mut b);
    assert_eq!(a.transmitter.len(), 0);
}

#[test]
fn a_lost_last_message_is_found_by_a_poll() {
    let (mut a, mut b) = pair();
    a.send(b"last").unwrap();
    carry(NOW, &mut a, &mut b, || false);
    let at = a.poll_timeout().unwrap();
    assert_eq!(at, Config::default().poll);
    a.handle_timeout(at);
    exchange(at, &mut a, &mut b);
    assert_eq!(events(&mut b), [data(b"last")]);
}

#[test]
fn many_gaps_take_several_stats() {
    let (mut a, mut b) = pair();
    for number in 0..100_u8 {
        a.send(&[number]).unwrap();
    }
    let mut number = 0;
    // Every second is lost, and no USTAT comes back.
    carry(NOW, &mut a, &mut b, || {
        number += 1;
        number % 2 == 0
    });
    b.out.clear();
    let at = a.poll_timeout().unwrap();
    a.handle_timeout(at);
    carry(at, &mut a, &mut b, || true);
    assert_eq!(b.out.len(), 2);
    exchange(at, &mut a, &mut b);
    let came: Vec<Event> = (0..100_u8).map(|number| data(&[number])).collect();
    assert_eq!(events(&mut b), came);
}

#[test]
fn the_window_holds_a_sender_whose_messages_are_not_taken() {
    let (mut a, mut b) = pair();
    for _ in 0..300 {
        a.send(b"m").unwrap();
    }
    let mut now = NOW;
    for _ in 0..10 {
        exchange(now, &mut a, &mut b);
        now += Config::default().poll;
        a.handle_timeout(now);
        b.handle_timeout(now);
    }
    let (expected, credit) = b.receiver.expected();
    assert_eq!(expected, credit);
    let mut came = 0;
    while came < 300 {
        let taken = events(&mut b).len();
        came += taken;
        now += Config::default().poll;
        a.handle_timeout(now);
        b.handle_timeout(now);
        exchange(now, &mut a, &mut b);
        assert!(taken > 0 || came < 300);
    }
    assert_eq!((a.state(), b.state()), (State::Ready, State::Ready));
}

#[test]
fn what_is_not_taken_counts_in_the_next_link() {
    let window = Config::default().window;
    let mut link = in_state(State::Ready);
    for sequence in 100..110 {
        let begin = Pdu::Begin {
            sequence,
            credit: Sequence::new(window),
            data: &[],
        };
        link.pdu_received(NOW, &emitted(&begin));
        for number in 0..window {
            let number = Sequence::new(number);
            link.pdu_received(NOW, &emitted(&Pdu::Data { number, data: b"x" }));
        }
    }
    let kept = events(&mut link);
    let messages = kept.iter().filter(|it| matches!(it, Event::Data(_)));
    assert_eq!(messages.count(), window as usize);
}

#[test]
fn limits_of_what_waits() {
    let (mut a, _) = pair();
    assert_eq!(a.send(&[0; DATA_MAX + 1]), Err(SendError::TooLong));
    for _ in 0..Config::default().queue {
        a.send(&[0; 4]).unwrap();
    }
    assert_eq!(a.send(b"one more"), Err(SendError::Full));
    // Answers that are not taken are limited, too.
    for _ in 0..1000 {
        let end = emitted(&Pdu::Poll {
            poll: Sequence::new(1),
            next: Sequence::new(0),
        });
        a.pdu_received(NOW, &end);
    }
    assert_eq!(a.out.len(), OUT_MAX);
}

/// An idle link: POLLs at the idle timer, and the link goes down if there is no answer.
#[test]
fn silence_takes_the_link_down() {
    let (mut a, mut b) = pair();
    let mut now = NOW;
    while now < Duration::from_secs(100) {
        let next = [a.poll_timeout(), b.poll_timeout()];
        now = next.into_iter().flatten().min().unwrap();
        a.handle_timeout(now);
        b.handle_timeout(now);
        exchange(now, &mut a, &mut b);
    }
    assert_eq!((a.state(), b.state()), (State::Ready, State::Ready));
    let cut = now;
    while a.state() == State::Ready {
        now = a.poll_timeout().unwrap();
        a.handle_timeout(now);
        a.out.clear();
    }
    let config = Config::default();
    assert!(
        now - cut <= config.idle + config.no_response,
        "{:?}",
        now - cut
    );
    assert_eq!(events(&mut a), [Event::Released]);
    assert_eq!(a.errors(b'P'), 1);
}

#[test]
fn requests_are_repeated_and_given_up() {
    for (state, kind) in [
        (State::OutgoingConnection, 1),
        (State::OutgoingDisconnection, 3),
        (State::OutgoingResynchronization, 5),
        (State::OutgoingRecovery, 9),
    ] {
        let mut link = in_state(state);
        let mut repeated = 0;
        while link.state() == state {
            let at = link.poll_timeout().unwrap();
            link.handle_timeout(at);
            repeated += sent(&mut link)
                .iter()
                .filter(|pdu| pdu[pdu.len() - 4] & 15 == kind)
                .count();
        }
        // Three repetitions; for a disconnection one END more gives it up.
        let last = usize::from(state == State::OutgoingDisconnection);
        assert_eq!(
            (link.state(), repeated),
            (State::Idle, 3 + last),
            "{state:?}"
        );
        assert_eq!(link.errors(b'O'), 1);
        assert_eq!(events(&mut link), [Event::Released]);
    }
}

/// One of each PDU, as sent to an end that has received N(SQ) 1.
fn every_pdu() -> Vec<(&'static str, Pdu<'static>)> {
    let (zero, one) = (Sequence::new(0), Sequence::new(1));
    let credit = Sequence::new(128);
    let data = &[][..];
    vec![
        (
            "BGN again",
            Pdu::Begin {
                sequence: 0,
                credit,
                data,
            },
        ),
        (
            "BGN",
            Pdu::Begin {
                sequence: 9,
                credit,
                data,
            },
        ),
        ("BGAK", Pdu::BeginAcknowledge { credit, data }),
        ("BGREJ", Pdu::BeginReject { data }),
        (
            "END",
            Pdu::End {
                by_protocol: false,
                data,
            },
        ),
        ("ENDAK", Pdu::EndAcknowledge),
        (
            "RS again",
            Pdu::Resynchronize {
                sequence: 0,
                credit,
                data,
            },
        ),
        (
            "RS",
            Pdu::Resynchronize {
                sequence: 9,
                credit,
                data,
            },
        ),
        ("RSAK", Pdu::ResynchronizeAcknowledge { credit }),
        (
            "ER again",
            Pdu::Recover {
                sequence: 0,
                credit,
            },
        ),
        (
            "ER",
            Pdu::Recover {
                sequence: 9,
                credit,
            },
        ),
        ("ERAK", Pdu::RecoverAcknowledge { credit }),
        (
            "SD",
            Pdu::Data {
                number: zero,
                data: b"m",
            },
        ),
        (
            "POLL",
            Pdu::Poll {
                poll: one,
                next: zero,
            },
        ),
        (
            "STAT",
            Pdu::Status {
                missing: List::new(&[]),
                poll: zero,
                credit,
                expected: zero,
            },
        ),
        (
            "STAT wrong",
            Pdu::Status {
                missing: List::new(&[]),
                poll: zero,
                credit,
                expected: one,
            },
        ),
        (
            "USTAT wrong",
            Pdu::UnsolicitedStatus {
                first: zero,
                end: one,
                credit,
                expected: zero,
            },
        ),
        ("UD", Pdu::UnnumberedData { data }),
        ("MD", Pdu::ManagementData { data }),
    ]
}

/// The state that a PDU leads to from 1, 2, 4, 5, 7 and 10, and the answer. From the
/// tables of Q.2110 (figure 20), once SSCF has answered each indication.
#[test]
fn every_pdu_in_every_state() {
    let table = "
        BGN again    1 BGREJ   2 -      4 BGAK,END  5 BGAK,RS  7 BGAK,ER  10 BGAK
        BGN          10 BGAK   10 BGAK  10 BGAK     10 BGAK    10 BGAK    10 BGAK
        BGAK         1 END     10 -     4 -         5 -        7 -        10 -
        BGREJ        1 -       1 -      1 -         1 -        1 -        1 -
        END          1 ENDAK   2 -      1 ENDAK     1 ENDAK    1 ENDAK    1 ENDAK
        ENDAK        1 -       2 -      1 -         1 -        1 -        1 -
        RS again     1 END     2 -      4 -         5 -        7 -        10 RSAK
        RS           1 END     2 -      4 -         10 RSAK    10 RSAK    10 RSAK
        RSAK         1 END     2 -      4 -         10 -       7 -        10 -
        ER again     1 END     2 -      4 -         5 -        7 -        10 ERAK
        ER           1 END     2 -      4 -         5 -        10 ERAK    10 ERAK
        ERAK         1 END     2 -      4 -         5 -        10 -       10 -
        SD           1 END     2 -      4 -         5 -        7 -        10 -
        POLL         1 END     2 -      4 -         5 -        7 -        10 STAT
        STAT         1 END     2 -      4 -         5 -        7 -        10 -
        STAT wrong   1 END     2 -      4 -         5 -        7 -        7 ER
        USTAT wrong  1 END     2 -      4 -         5 -        7 -        7 ER
        UD           1 -       2 -      4 -         5 -        7 -        10 -
        MD           1 -       2 -      4 -         5 -        7 -        10 -";
    let numbers = [1, 2, 4, 5, 7, 10];
    let names = [
        "?", "BGN", "BGAK", "END", "ENDAK", "RS", "RSAK", "BGREJ", "SD", "ER", "POLL", "STAT",
        "USTAT", "UD", "MD", "ERAK",
    ];
    for ((name, pdu), row) in every_pdu().into_iter().zip(table.trim().lines()) {
        let row = row.trim();
        assert!(row.starts_with(name), "{name}: {row}");
        let cells: Vec<&str> = row[name.len()..].split_whitespace().collect();
        for (index, state) in State::ALL.into_iter().enumerate() {
            let mut link = in_state(state);
            // The peer's last request had N(SQ) 0.
            link.vr_sq = 0;
            link.pdu_received(NOW, &emitted(&pdu));
            let answers: Vec<&str> = sent(&mut link)
                .iter()
                .map(|pdu| names[usize::from(pdu[pdu.len() - 4] & 15)])
                .collect();
            let answers = if answers.is_empty() {
                "-".into()
            } else {
                answers.join(",")
            };
            let next = State::ALL
                .iter()
                .position(|known| *known == link.state())
                .unwrap();
            let got = (numbers[next].to_string(), answers);
            let wanted = (cells[2 * index].into(), cells[2 * index + 1].into());
            assert_eq!(got, wanted, "{name} in {state:?}");
        }
    }
}

proptest! {
    /// PDUs are lost in both directions. Every delivered message was sent, in order, and
    /// between two reports that the link is up none is left out or delivered twice. Once
    /// nothing is lost any more, all arrive.
    #[test]
    fn any_loss(seed in prop::collection::vec(any::<u8>(), 8..64), share in 0_u8..120) {
        let (mut a, mut b) = pair();
        let mut fate = seed.iter().cycle();
        let mut lost = || *fate.next().unwrap() < share;
        let mut now = NOW;
        let mut next = 0_u32;
        let mut expected = 0_u32;
        let mut anew = false;
        for round in 0..200 {
            let lossy = round < 100;
            if lossy && a.state() == State::Ready {
                a.send(&next.to_be_bytes()).unwrap();
                next += 1;
            }
            if a.state() == State::Idle {
                a.establish(now);
            }
            carry(now, &mut a, &mut b, || !(lossy && lost()));
            carry(now, &mut b, &mut a, || !(lossy && lost()));
            for event in events(&mut b) {
                match event {
                    Event::Established | Event::Released => anew = true,
                    Event::Data(bytes) => {
                        let number = u32::from_be_bytes(bytes.try_into().unwrap());
                        prop_assert!(number == expected || (anew && number > expected));
                        anew = false;
                        expected = number + 1;
                    }
                }
            }
            events(&mut a);
            now += Duration::from_millis(300);
            a.handle_timeout(now);
            b.handle_timeout(now);
        }
        prop_assert_eq!((a.state(), b.state()), (State::Ready, State::Ready));
        prop_assert!(expected == next || anew, "{expected} of {next}");
        prop_assert!(a.transmitter.len() == 0);
    }
}
