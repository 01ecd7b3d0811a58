//! The TCP fuzz targets, which `fuzz.rs` runs.

use std::time::Duration;

use tidewall_protocol::DropReason;
use tidewall_protocol::tcp::{self, Checksum};
use tidewall_wire::ethernet::{self, MacAddress};
use tidewall_wire::tcp::{Flags, Header, Options};

use crate::link::{self, Host, Link, Weather};
use crate::{OFFLOAD, WIRE, transport_offset};

pub fn tcp_input(bytes: &[u8]) {
    let transport = transport_offset(bytes);
    let strict = tcp::input(bytes, transport, &WIRE);
    let lenient = tcp::input(bytes, transport, &OFFLOAD);
    match (&strict, &lenient) {
        (Ok(segment), Ok(other)) => assert_eq!(segment.header, other.header),
        (Err(DropReason::TcpChecksum), Ok(_)) => {}
        (Err(cause), Err(other)) => assert_eq!(cause, other),
        _ => panic!("{strict:?} {lenient:?}"),
    }
    let Ok(segment) = lenient else {
        return;
    };
    assert!(transport + 20 + segment.payload.len() <= bytes.len());
    // The answer to a stranger can be written, and does not itself cause an answer.
    if let Some(reset) = tcp::reset_for(&segment) {
        let mut frame = [0; 100];
        let length = tcp::output(&mut frame, &LINK, &segment.flow, &reset).unwrap();
        let bytes = &frame[ethernet::HEADER_LEN..length];
        if let Ok(answer) = tcp::input(bytes, transport_offset(bytes), &WIRE) {
            assert!(tcp::reset_for(&answer).is_none());
        }
    }
}

const LINK: tcp::Link = tcp::Link {
    source_mac: MacAddress([2; 6]),
    destination_mac: MacAddress([4; 6]),
    hop_limit: 64,
    checksum: Checksum::Software,
};

/// One engine with an arbitrary peer and application. The first byte chooses the
/// configuration; steps of eight bytes each follow.
pub fn tcp_peer(bytes: &[u8]) {
    let Some((&setup, script)) = bytes.split_first() else {
        return;
    };
    let config = tcp::Config {
        timestamps: setup & 1 != 0,
        sack: setup & 2 != 0,
        ecn: if setup & 2 != 0 {
            tcp::Ecn::Active
        } else {
            tcp::Ecn::Passive
        },
        mtu_probing: if setup & 4 != 0 {
            tcp::MtuProbing::Always
        } else {
            tcp::MtuProbing::BlackHole
        },
        window_scaling: setup & 4 != 0,
        nodelay: setup & 8 != 0,
        mss: if setup & 16 != 0 { 1 } else { 1460 },
        receive_buffer: 5000,
        receive_buffer_max: 20_000,
        send_buffer: 5000,
        send_buffer_max: 20_000,
        offload: if setup & 32 != 0 { 60_000 } else { 0 },
        keepalive: Some(tcp::Keepalive::default()),
        ..tcp::Config::default()
    };
    let flow = link::flow(setup & 64 != 0);
    let mut now = Duration::from_secs(50);
    let ours = u32::MAX - 3000;
    let mut theirs = u32::MAX - 500;
    // The connection is opened by a SYN with data, from us or from the peer, or by an
    // ordinary one.
    let mut engine = match setup & (128 | 2) {
        128 => {
            let mut handshake = handshake(ours.wrapping_sub(1), theirs.wrapping_sub(1));
            handshake.flow = flow;
            handshake.fast_open = Some(tcp::FastOpenAnswer { cookie: cookie() });
            tcp::Connection::accept(&handshake, &config, now)
        }
        130 => {
            let known = tcp::FastOpenPeer {
                cookie: cookie(),
                ..tcp::FastOpenPeer::default()
            };
            tcp::Connection::connect_fast(flow, ours, 9, &config, &known, false, now)
        }
        _ => tcp::Connection::connect(flow, ours, 9, &config, now),
    };
    let zeros = [0; 4000];
    let mut next = ours;
    for step in script.as_chunks::<8>().0 {
        let [what, flags, a, b, c, d, e, f] = *step;
        let offset = u32::from(u16::from_be_bytes([a, b]));
        let number = u32::from(u16::from_be_bytes([c, d]));
        match what % 8 {
            0..4 => {
                // Near the expected number, behind it, or anywhere.
                let away = |base: u32, distance: u32, how: u8| match how & 3 {
                    0 => base,
                    1 => base.wrapping_add(distance % 3000),
                    2 => base.wrapping_sub(distance % 3000),
                    _ => base.wrapping_add(distance << 16),
                };
                let mut options = Options::default();
                if what & 8 != 0 {
                    options.timestamps = Some(tcp::Timestamps {
                        value: number,
                        echo: offset,
                    });
                }
                if what & 16 != 0 {
                    let start = away(next, offset, e);
                    options.sack.push(start, start.wrapping_add(number % 700));
                    options.sack.push(start.wrapping_sub(number), start);
                }
                if flags & 2 != 0 {
                    options.maximum_segment_size = Some(offset as u16);
                    options.window_scale = Some(e);
                    options.sack_permitted = true;
                    if what & 128 != 0 {
                        let length = zeros.get(..usize::from(e % 32)).unwrap_or_default();
                        let option = tcp::FastOpen::cookie_of(length);
                        options = options.with_fast_open(option);
                    }
                }
                let length = if what & 32 != 0 {
                    usize::from(f) * 10
                } else {
                    0
                };
                let segment = tcp::Segment {
                    flow,
                    header: Header {
                        source_port: flow.remote.port(),
                        destination_port: flow.local.port(),
                        sequence: away(theirs, offset, e >> 2),
                        acknowledgment: away(next, number, e >> 4),
                        flags: Flags(flags),
                        window: u16::from_be_bytes([d, f]),
                        urgent: 5,
                        options,
                    },
                    payload: &zeros[..length],
                    traffic_class: e,
                };
                engine.input(&segment, now);
            }
            4 => {
                now += Duration::from_millis(number.into());
                if engine.next_timeout().is_some_and(|at| at <= now) {
                    engine.timeout(now);
                }
            }
            5 => {
                // No later than the timer's time.
                now = now.max(engine.next_timeout().unwrap_or(now));
                engine.timeout(now);
            }
            6 => match flags % 8 {
                0 => engine.consume(number as usize),
                1 => engine.set_cork(a & 1 != 0),
                2 => drop(engine.shutdown(tcp::Shutdown::Write, now)),
                3 => engine.close((a & 1 != 0).then_some(Duration::ZERO), now),
                4 => engine.set_maximum_segment(offset as u16),
                5 => engine.set_receive_buffer(offset),
                6 if a & 2 == 0 => engine.set_quick_ack(a & 1 != 0),
                6 => {
                    use tcp::MemoryPressure::{Exhausted, None, Short};
                    engine.set_memory_pressure([None, Short, Exhausted][usize::from(b % 3)]);
                    if a & 1 != 0 {
                        engine.prune();
                    }
                }
                _ => {
                    let frozen = engine.freeze(now);
                    engine = tcp::Connection::thaw(&frozen, now).expect("just frozen");
                }
            },
            _ => {
                let flags = tcp::SendFlags {
                    more: flags & 1 != 0,
                    record: flags & 2 != 0,
                };
                let _ = engine.write_with(&zeros[..usize::from(f)], flags);
            }
        }
        if what & 64 != 0 {
            let mut segments = 0;
            engine.output(now, &mut |outgoing| {
                segments += 1;
                let end = outgoing.header.sequence;
                next = end.wrapping_add(outgoing.payload_len() as u32);
                if outgoing.header.flags.contains(Flags::ACK) {
                    theirs = outgoing.header.acknowledgment;
                }
                assert!(outgoing.payload_len() <= 65_535);
                assert!(segments < 2000, "it goes on for ever");
                true
            });
            assert!(!engine.wants_output());
        }
        let info = engine.info();
        assert!(info.unread <= 70_000, "{info:?}");
        // Each ring is at most twice as large as its content.
        assert!(engine.memory() <= 350_000, "{}", engine.memory());
        if let Some(outcome) = engine.take_fast_open_outcome() {
            tcp::FastOpenPeer::default().learn(&outcome);
            assert_eq!(engine.take_fast_open_outcome(), None);
        }
    }
}

/// Two engines over a link that the bytes make hostile.
pub fn tcp_pair(bytes: &[u8]) {
    let Some((control, rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let [
        loss,
        duplication,
        reorder,
        delay,
        jitter,
        setup,
        sizes,
        seed,
    ] = *control;
    let weather = Weather {
        loss: loss % 30,
        duplication: duplication % 30,
        reorder: reorder % 60,
        delay: Duration::from_millis(delay.into()),
        jitter: Duration::from_millis(jitter.into()),
        payload_max: usize::MAX,
    };
    let config = |bits: u8| tcp::Config {
        timestamps: bits & 1 != 0,
        sack: bits & 2 != 0,
        ecn: if bits & 1 != 0 {
            tcp::Ecn::Active
        } else {
            tcp::Ecn::Passive
        },
        mtu_probing: if bits & 4 != 0 {
            tcp::MtuProbing::Always
        } else {
            tcp::MtuProbing::BlackHole
        },
        window_scaling: bits & 4 != 0,
        mss: if bits & 8 != 0 { 100 } else { 1460 },
        receive_buffer: 4000,
        receive_buffer_max: 20_000,
        ..tcp::Config::default()
    };
    let data = |bits: u8| rest.repeat(1 + usize::from(bits & 15) * 4);
    let hosts = [
        Host::new(config(setup), data(sizes)),
        Host::new(config(setup >> 4), data(sizes >> 4)),
    ];
    let number = u64::from(seed) << 8 | 1;
    let mut link = if seed & 2 == 0 {
        Link::new(hosts, weather, number)
    } else {
        let keys = tcp::FastOpenKeys {
            primary: [1; 16],
            backup: (seed & 4 != 0).then_some([2; 16]),
        };
        let theirs = tcp::FastOpenKeys {
            primary: [1 + (seed >> 3 & 1); 16],
            backup: None,
        };
        let peer = tcp::FastOpenPeer {
            cookie: theirs.cookie(&link::reversed(link::flow(false)), seed & 16 != 0),
            ..tcp::FastOpenPeer::default()
        };
        let server = tcp::FastOpenServer {
            queue: u32::from(seed >> 5),
            keys,
            without_cookie: false,
        };
        Link::fast(hosts, weather, number, &peer, Some(server))
    };
    link.freezes = seed & 1 != 0;
    if link.run_unless_cut_off(Duration::from_secs(36_000)) {
        link.assert_delivered();
    }
}

/// Modified frozen bytes are refused, or produce an engine that does not panic. The sum
/// at their end is corrected, so that more than the sum is tested.
pub fn tcp_thaw(bytes: &[u8]) {
    let now = Duration::from_secs(7);
    let mut frozen = frozen_connection(bytes.len() % 2 == 1);
    for change in bytes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % frozen.len();
        frozen[at] = change[2];
    }
    let body = frozen.len() - 8;
    let sum = frozen[..body]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    frozen[body..].copy_from_slice(&sum.to_le_bytes());
    let Ok(mut engine) = tcp::Connection::thaw(&frozen, now) else {
        return;
    };
    let flow = *engine.flow();
    for step in 0..20 {
        let now = now + Duration::from_secs(step);
        engine.timeout(now);
        let mut room = 500;
        engine.output(now, &mut |_| {
            room -= 1;
            room > 0
        });
        let segment = tcp::Segment {
            flow,
            header: Header {
                acknowledgment: 50_000 + step as u32,
                sequence: 60_000 + step as u32,
                flags: Flags::ACK,
                ..Header::default()
            },
            payload: b"x",
            traffic_class: 0,
        };
        engine.input(&segment, now);
        engine.consume(100);
        if engine.write(b"more") == Ok(4) {
            engine.end_write(4, true);
        }
        let _ = (engine.take_notification(), engine.read_timestamp());
    }
}

fn cookie() -> Option<tcp::FastOpen> {
    tcp::FastOpen::cookie_of(b"a cookie")
}

fn handshake(local_isn: u32, remote_isn: u32) -> tcp::Handshake {
    tcp::Handshake {
        flow: link::flow(false),
        local_isn,
        remote_isn,
        mss: 1460,
        window_scale: Some(7),
        local_window_scale: 7,
        sack: true,
        ecn: false,
        timestamps: None,
        timestamp_offset: 0,
        window: 1000,
        round_trip: None,
        fast_open: None,
    }
}

/// A connection with data in every buffer. With `fast`, a SYN has opened it, and our
/// SYN-ACK is not acknowledged.
fn frozen_connection(fast: bool) -> Vec<u8> {
    let now = Duration::from_secs(7);
    let mut handshake = handshake(49_999, 59_999);
    if fast {
        handshake.fast_open = Some(tcp::FastOpenAnswer { cookie: cookie() });
    }
    let mut engine = tcp::Connection::accept(&handshake, &tcp::Config::default(), now);
    engine.set_zero_copy(true);
    engine.set_timestamping(tcp::Timestamping {
        scheduled: true,
        sent: true,
        acknowledged: true,
        received: true,
        keys: tcp::TimestampKeys::FromWritten,
    });
    engine.write(&[1; 300]).unwrap();
    engine.end_write(300, true);
    engine.output(now, &mut |_| true);
    engine.write(&[2; 30]).unwrap();
    engine.end_write(30, false);
    if fast {
        return engine.freeze(now);
    }
    for offset in [0u32, 100, 200] {
        let segment = tcp::Segment {
            flow: handshake.flow,
            header: Header {
                acknowledgment: 50_000,
                sequence: 60_000 + offset,
                flags: Flags::ACK,
                ..Header::default()
            },
            payload: b"data",
            traffic_class: 0,
        };
        engine.input(&segment, now);
    }
    engine.freeze(now)
}

/// A TCP segment from its IP header on.
pub fn tcp_sent(v6: bool) -> Vec<u8> {
    let flow = link::flow(v6);
    let mut options = Options {
        maximum_segment_size: Some(1460),
        window_scale: Some(7),
        timestamps: Some(tcp::Timestamps { value: 1, echo: 2 }),
        ..Options::default()
    };
    options.sack.push(1, 2);
    let outgoing = tcp::Outgoing {
        header: Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            sequence: 1,
            acknowledgment: 2,
            flags: Flags::ACK,
            window: 3,
            urgent: 0,
            options,
        },
        payload: [b"he", b"llo"],
        segment_size: 1000,
        traffic_class: 0,
    };
    let mut frame = [0; 200];
    let length = tcp::output(&mut frame, &LINK, &flow, &outgoing).unwrap();
    frame[ethernet::HEADER_LEN..length].to_vec()
}
