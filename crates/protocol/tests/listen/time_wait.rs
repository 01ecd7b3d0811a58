//! TIME-WAIT: waiting, reuse (RFC 6191), assassination (RFC 1337), bounds.

use super::*;
use tidewall_protocol::tcp::{TIME_WAIT, TimeWaitEntry, TimeWaitReaction, TimeWaitTable};

const SEND_NEXT: u32 = 0xffff_fff0;
const RECEIVE_NEXT: u32 = 0xffff_ff00;

fn entry(flow: FourTuple) -> TimeWaitEntry {
    TimeWaitEntry {
        flow,
        send_next: SEND_NEXT,
        receive_next: RECEIVE_NEXT,
        window: 777,
        timestamp_recent: Some(5_000),
        timestamp_offset: 33,
    }
}

fn give(
    table: &mut TimeWaitTable,
    segment: &Segment<'_>,
    now: Duration,
) -> (TimeWaitReaction, Vec<Header>) {
    let mut sent = Vec::new();
    let reaction = table.input(segment, now, &mut |flow: &FourTuple, out: &Outgoing<'_>| {
        assert_eq!(*flow, segment.flow);
        sent.push(out.header);
    });
    (reaction, sent)
}

fn with_timestamp(mut segment: Segment<'static>, value: u32) -> Segment<'static> {
    segment.header.options.timestamps = Some(Timestamps { value, echo: 1 });
    segment
}

fn expire(table: &mut TimeWaitTable, now: Duration) -> Vec<FourTuple> {
    let mut forgotten = Vec::new();
    table.expire(now, &mut |flow| forgotten.push(*flow));
    forgotten
}

fn table(limit: usize) -> TimeWaitTable {
    TimeWaitTable::new(limit, SECRETS.sequence)
}

#[test]
fn a_connection_waits_a_minute() {
    let mut table = table(100);
    let flows = [client(1, 1), flow("[2001:db8::7]:9".parse().unwrap())];
    for flow in flows {
        assert_eq!(table.insert(&entry(flow), START), None);
    }
    let early = START + TIME_WAIT - Duration::from_millis(20);
    assert_eq!(expire(&mut table, early), []);
    let due = table.next_timeout(early).unwrap();
    assert!(due >= START + TIME_WAIT && due <= START + TIME_WAIT + Duration::from_millis(20));
    assert_eq!(expire(&mut table, due), flows);
    assert!(table.is_empty() && table.next_timeout(due).is_none());
    let unexpected = segment(flows[0], Flags::ACK, 1, 1, Options::default());
    assert_eq!(
        give(&mut table, &unexpected, due).0,
        TimeWaitReaction::Unknown
    );
}

#[test]
fn a_repeated_fin_is_acknowledged_and_waited_for_anew() {
    let mut table = table(100);
    let (one, two) = (client(1, 1), client(2, 2));
    table.insert(&entry(one), START);
    table.insert(&entry(two), START);
    let fin = segment(
        one,
        Flags::FIN | Flags::ACK,
        RECEIVE_NEXT.wrapping_sub(1),
        SEND_NEXT,
        Options::default(),
    );
    let fin = with_timestamp(fin, 5_001);
    let later = START + 30 * SECOND;
    let (reaction, sent) = give(&mut table, &fin, later);
    assert_eq!(reaction, TimeWaitReaction::Handled);
    let answer = sent[0];
    assert_eq!(answer.flags, Flags::ACK);
    assert_eq!(
        (answer.sequence, answer.acknowledgment, answer.window),
        (SEND_NEXT, RECEIVE_NEXT, 777)
    );
    let timestamps = answer.options.timestamps.unwrap();
    assert_eq!(timestamps.echo, 5_001);
    assert_eq!(timestamps.value, later.as_millis() as u32 + 33);
    assert_eq!(expire(&mut table, START + 61 * SECOND), [two]);
    assert_eq!(expire(&mut table, later + 61 * SECOND), [one]);
}

#[test]
fn no_reset_ends_it_early() {
    let mut table = table(100);
    let flow = client(1, 1);
    table.insert(&entry(flow), START);
    for sequence in [RECEIVE_NEXT, RECEIVE_NEXT.wrapping_add(1), 0] {
        for flags in [Flags::RST, Flags::RST | Flags::ACK, Flags::RST | Flags::SYN] {
            let reset = segment(flow, flags, sequence, SEND_NEXT, Options::default());
            let (reaction, sent) = give(&mut table, &reset, START);
            assert_eq!(reaction, TimeWaitReaction::Handled);
            assert!(sent.is_empty());
        }
    }
    assert_eq!(table.len(), 1);
    // The attack of RFC 1337: an old segment provokes an ACK, the ACK an RST.
    let old = segment(flow, Flags::ACK, 12, 12, Options::default());
    let (_, sent) = give(&mut table, &old, START);
    let reset = segment(
        flow,
        Flags::RST,
        sent[0].acknowledgment,
        0,
        Options::default(),
    );
    assert_eq!(give(&mut table, &reset, START).0, TimeWaitReaction::Handled);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_new_connection_may_reuse_the_flow() {
    let flow = client(1, 1);
    let beyond = RECEIVE_NEXT.wrapping_add(1);
    let before = RECEIVE_NEXT.wrapping_sub(1000);
    for (sequence, stamp, reused) in [
        // RFC 6191: a later timestamp is enough.
        (before, Some(5_001), true),
        (beyond, Some(5_000), true),
        (before, Some(5_000), false),
        (beyond, Some(4_999), false),
        // Without timestamps the sequence number decides.
        (beyond, None, true),
        (RECEIVE_NEXT, None, false),
        (before, None, false),
    ] {
        let mut table = table(100);
        table.insert(&entry(flow), START);
        let syn = segment(flow, Flags::SYN, sequence, 0, Options::default());
        let syn = stamp.map_or(syn, |stamp| with_timestamp(syn, stamp));
        let (reaction, sent) = give(&mut table, &syn, START);
        if !reused {
            assert_eq!(reaction, TimeWaitReaction::Handled, "{sequence} {stamp:?}");
            assert_eq!(sent.len(), 1, "a challenge");
            continue;
        }
        let least = SEND_NEXT.wrapping_add(65_537);
        assert_eq!(reaction, TimeWaitReaction::Reuse(least));
        assert!(table.is_empty());
        // The listener begins beyond the old connection's numbers.
        let mut listener = listener(16);
        let mut isn = None;
        let reaction = listener.input_reusing(&syn, least, START, &mut |_, out| {
            isn = Some(out.header.sequence);
        });
        assert_eq!(reaction, Reaction::HalfOpen(flow));
        assert!(isn.unwrap().wrapping_sub(least) < 1 << 31);
    }
}

#[test]
fn answers_to_what_is_out_of_place_are_bounded() {
    let mut table = table(100);
    let (flow, other) = (client(1, 1), client(2, 2));
    table.insert(&entry(flow), START);
    table.insert(&entry(other), START);
    let mut answers = |flow, now| {
        (0..10_000)
            .map(|number| {
                let unexpected = segment(flow, Flags::ACK, number, number, Options::default());
                give(&mut table, &unexpected, now).1.len()
            })
            .sum::<usize>()
    };
    assert_eq!(answers(flow, START), 1);
    // Answers of one connection reveal nothing about another (CVE-2016-5696).
    assert_eq!(answers(other, START), 1);
    let half = Duration::from_millis(500);
    assert_eq!(answers(flow, START + half - Duration::from_millis(10)), 0);
    assert_eq!(answers(flow, START + half), 1);
    assert_eq!(answers(flow, START + SECOND), 1);
    // An acceptable acknowledgment needs no answer.
    let fine = segment(
        flow,
        Flags::ACK,
        RECEIVE_NEXT,
        SEND_NEXT,
        Options::default(),
    );
    assert_eq!(give(&mut table, &fine, START + SECOND).1.len(), 0);
}

#[test]
fn a_full_table_forgets_the_oldest() {
    let mut table = table(1000);
    let flows: Vec<_> = (0..3000).map(|number| client(number, 7)).collect();
    let mut forgotten = Vec::new();
    for (number, &flow) in flows.iter().enumerate() {
        let now = START + Duration::from_millis(number as u64);
        forgotten.extend(table.insert(&entry(flow), now));
        assert!(table.len() <= 1000);
    }
    assert_eq!(forgotten, flows[..2000]);
    // The gaps of entries removed early are reused.
    for &flow in &flows[2400..2500] {
        assert!(table.remove(&flow));
    }
    for number in 0..100 {
        let flow = client(number, 8);
        assert_eq!(table.insert(&entry(flow), START + 4 * SECOND), None);
    }
    assert_eq!(table.len(), 1000);
}

/// Compared with a plain model: any order of insertion, removal and repetition.
#[test]
fn the_table_finds_what_is_in_it_and_nothing_else() {
    use std::collections::HashMap;
    let mut table = table(64);
    let mut model: HashMap<FourTuple, Duration> = HashMap::new();
    let mut random = 1u64;
    let mut now = START;
    for _ in 0..200_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let flow = client((random >> 33) as u32 % 150, 7);
        now += Duration::from_millis((random >> 60) * 20);
        for flow in expire(&mut table, now) {
            let due = model.remove(&flow).expect("was there");
            assert!(due <= now);
        }
        assert!(
            model
                .values()
                .all(|&due| due + Duration::from_millis(20) > now)
        );
        match random >> 40 & 7 {
            0..4 => {
                if let Some(flow) = table.insert(&entry(flow), now) {
                    assert!(model.remove(&flow).is_some());
                }
                model.insert(flow, now + TIME_WAIT);
            }
            4 => assert_eq!(table.remove(&flow), model.remove(&flow).is_some()),
            _ => {
                let unexpected = segment(flow, Flags::RST, 1, 1, Options::default());
                let known = give(&mut table, &unexpected, now).0 != TimeWaitReaction::Unknown;
                assert_eq!(known, model.contains_key(&flow));
            }
        }
        assert_eq!(table.len(), model.len());
    }
}

#[test]
fn the_oldest_goes_where_room_is_needed() {
    let mut table = table(100);
    let flows = [1, 2, 3].map(|n| client(n, 1000));
    for flow in flows {
        assert_eq!(table.insert(&entry(flow), START), None);
    }
    assert!(table.remove(&flows[0]));
    assert_eq!(table.evict(), Some(flows[1]));
    assert_eq!(table.evict(), Some(flows[2]));
    assert_eq!(table.evict(), None);
    assert!(table.is_empty());
}
