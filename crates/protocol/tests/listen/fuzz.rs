//! Fuzz targets: any segments at any times, as the input bytes determine.

use std::collections::HashSet;

use super::*;
use tidewall_protocol::tcp::{
    FastOpen, FastOpenKeys, FastOpenServer, TimeWaitEntry, TimeWaitReaction, TimeWaitTable,
};

/// Time for random inputs in an ordinary test run.
const TIME: Duration = Duration::from_millis(500);

/// One step of a script: eleven bytes.
struct Step {
    flow: FourTuple,
    flags: Flags,
    /// Usually a small distance from the right value, sometimes a large one.
    sequence: u32,
    acknowledgment: u32,
    options: Options,
    later: Duration,
    waiting: usize,
}

/// A cookie that the server has made, a wrong one, or a request for one.
fn cookie(source: u8, which: u8) -> FastOpen {
    let flow = client(u32::from(source) << 6, 1);
    match which % 4 {
        0 => FastOpen::REQUEST,
        1 => FastOpen::cookie_of(&[which; 8]).unwrap(),
        _ => KEYS.cookie(&flow, which % 4 == 2).unwrap(),
    }
}

const KEYS: FastOpenKeys = FastOpenKeys {
    primary: [7; 16],
    backup: None,
};

fn step(bytes: &[u8; 11], last_answer: u32) -> Step {
    let [
        source,
        port,
        flags,
        sequence,
        far,
        ack,
        kinds,
        mss,
        clock,
        time,
        waiting,
    ] = *bytes;
    let near = |base: u32, offset: u8| base.wrapping_add((offset as i8) as u32);
    let far = u32::from(far & 3) << 30;
    let options = Options {
        maximum_segment_size: (kinds & 1 != 0).then_some(u16::from(mss) * 16),
        window_scale: (kinds & 2 != 0).then_some(mss),
        sack_permitted: kinds & 4 != 0,
        timestamps: (kinds & 8 != 0).then_some(Timestamps {
            value: clock.into(),
            echo: far,
        }),
        ..Options::default()
    }
    .with_fast_open((kinds & 16 != 0).then(|| cookie(source, mss)));
    Step {
        flow: client(u32::from(source) << 6, u16::from(port & 7) + 1),
        flags: Flags(flags),
        sequence: near(1000, sequence).wrapping_add(far),
        acknowledgment: near(last_answer, ack).wrapping_add(1),
        options,
        later: Duration::from_millis(u64::from(time) * u64::from(time)),
        waiting: usize::from(waiting & 7),
    }
}

#[test]
fn fuzz_listener() {
    bolero::check!(name = "tcp_listener")
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| {
            let mut listener = listener(8);
            listener.set_fast_open(Some(FastOpenServer {
                queue: 4,
                keys: KEYS,
                without_cookie: false,
            }));
            // Connections opened by SYNs.
            let mut opening = 0;
            let mut now = START;
            // The flows that the caller has in the driver's table.
            let mut entered = HashSet::new();
            let mut last_answer = 0;
            for bytes in bytes.as_chunks::<11>().0 {
                let step = step(bytes, last_answer);
                now += step.later;
                listener.set_accept_queue(step.waiting + 4, 8);
                for flow in run_timers(&mut listener, now).1 {
                    assert!(entered.remove(&flow));
                }
                let segment = segment(
                    step.flow,
                    step.flags,
                    step.sequence,
                    step.acknowledgment,
                    step.options,
                );
                let (reaction, sent) = give(&mut listener, &segment, now);
                assert!(sent.len() <= 1, "no amplification");
                if let Some((_, answer)) = sent.first() {
                    last_answer = answer.sequence;
                    assert!(!step.flags.contains(Flags::RST) || answer.flags == Flags::ACK);
                }
                match reaction {
                    Reaction::HalfOpen(flow) => assert!(entered.insert(flow)),
                    Reaction::Forgotten(flow) => assert!(entered.remove(&flow)),
                    Reaction::Established(handshake) if handshake.fast_open.is_some() => {
                        assert!(!listener.is_full() && sent.is_empty());
                        assert!(!entered.contains(&handshake.flow));
                        opening += 1;
                    }
                    Reaction::Established(handshake) => {
                        assert!(!listener.is_full());
                        assert!(entered.remove(&handshake.flow) || listener.takes_cookies());
                        assert!(handshake.window_scale.is_none_or(|scale| scale <= 14));
                    }
                    _ => {}
                }
                if opening > 0 && step.waiting % 2 == 1 {
                    listener.fast_open_done(step.waiting == 7, now);
                    opening -= 1;
                }
                assert!(opening <= 4);
                assert_eq!(listener.half_open_len(), entered.len());
                assert!(entered.len() <= 16);
            }
            for flow in run_timers(&mut listener, now + 1000 * SECOND).1 {
                assert!(entered.remove(&flow));
            }
            assert!(entered.is_empty() && listener.next_timeout().is_none());
        });
}

#[test]
fn fuzz_time_wait() {
    bolero::check!(name = "tcp_time_wait")
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| {
            let mut table = TimeWaitTable::new(16, SECRETS.sequence);
            let mut now = START;
            let mut entered = HashSet::new();
            for bytes in bytes.as_chunks::<11>().0 {
                let step = step(bytes, 0);
                now += step.later;
                table.expire(now, &mut |flow| assert!(entered.remove(flow)));
                if step.waiting == 0 {
                    let entry = TimeWaitEntry {
                        flow: step.flow,
                        send_next: step.acknowledgment,
                        receive_next: step.sequence,
                        window: 1,
                        timestamp_recent: step.options.timestamps.map(|theirs| theirs.value),
                        timestamp_offset: 0,
                    };
                    if let Some(flow) = table.insert(&entry, now) {
                        assert!(entered.remove(&flow));
                    }
                    entered.insert(step.flow);
                } else {
                    let segment = segment(
                        step.flow,
                        step.flags,
                        step.sequence,
                        step.acknowledgment,
                        step.options,
                    );
                    let mut sent = 0;
                    match table.input(&segment, now, &mut |_, _| sent += 1) {
                        TimeWaitReaction::Handled => assert!(entered.contains(&step.flow)),
                        TimeWaitReaction::Reuse(_) => {
                            assert!(step.flags.contains(Flags::SYN));
                            assert!(entered.remove(&step.flow));
                        }
                        TimeWaitReaction::Unknown => assert!(!entered.contains(&step.flow)),
                    }
                    assert!(sent <= 1 && !(sent == 1 && step.flags.contains(Flags::RST)));
                }
                assert_eq!(table.len(), entered.len());
            }
            table.expire(now + 100 * SECOND, &mut |flow| {
                assert!(entered.remove(flow));
            });
            assert!(entered.is_empty());
        });
}
