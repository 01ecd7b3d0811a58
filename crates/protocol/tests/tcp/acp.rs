//! Connections of frames (ACP): whole frames in every segment, whatever the link and the
//! windows do; and bytes that are not frames.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{
    Config, Connection, Cookies, Errno, FastOpen, FastOpenKeys, FastOpenPeer, FastOpenServer,
    Framing, State,
};
use tidewall_protocol::{DropReason, errno};
use tidewall_wire::acp::{self, Builder, HEADER_LEN, VERSION};
use tidewall_wire::tcp::{Flags, Options};

use crate::frames::Frames;
use crate::link::{FAIR, Host, Link, Weather, flow, pattern};
use crate::peer::{ACK, OURS, Peer, RST, SYN, THEIRS, both, ms, plain};

const HOUR: Duration = Duration::from_secs(3600);

fn framed(config: Config) -> Config {
    Config {
        framing: Framing::Acp,
        // As the handshake would set it.
        timestamps: false,
        ..config
    }
}

fn host(config: Config, to_send: Vec<Vec<u8>>) -> Host {
    let mut host = Host::new(framed(config), Vec::new());
    host.frames = Some(Frames {
        to_send,
        ..Frames::default()
    });
    host
}

fn frames(lengths: &[usize], salt: u8) -> Vec<Vec<u8>> {
    let frame = |(at, &length): (usize, &usize)| pattern(length, salt ^ at as u8);
    lengths.iter().enumerate().map(frame).collect()
}

/// Every segment that was sent holds whole frames.
fn assert_whole(link: &Link) {
    for (at, from, frame) in link.trace.iter().flatten() {
        let fault = acp::Frames::new(&frame.payload).find_map(Result::err);
        assert_eq!(fault, None, "host {from} at {at:?}: {:?}", frame.header);
        let options = &frame.header.options;
        assert!(options.timestamps.is_none());
        assert!(options.sack.is_empty() || frame.payload.is_empty());
    }
}

// ---- Handshake ----------------------------------------------------------------

#[test]
fn both_ends_agree_and_frames_come_as_they_were_sent() {
    // Also empty frames, and one that exactly fills a segment.
    let there = frames(&[0, 5, 1456, 1, 0, 700, 700, 700], 1);
    let back = frames(&[3, 0, 1456, 1456], 2);
    let hosts = [
        host(Config::default(), there),
        host(Config::default(), back),
    ];
    let mut link = Link::listening(hosts, FAIR, 1);
    link.trace = Some(Vec::new());
    link.run(HOUR);
    link.assert_delivered();
    assert_whole(&link);
    let trace = link.trace.as_deref().unwrap();
    for syn in trace.iter().filter(|it| it.2.header.flags.contains(SYN)) {
        assert_eq!(syn.2.header.options.acp(), Some(VERSION));
        assert!(syn.2.header.options.window_scale.is_some());
    }
    for host in &mut link.hosts {
        assert_eq!(host.error, None);
        let info = host.connection().info();
        assert!(info.frames && info.sack && !info.timestamps);
    }
}

#[test]
fn a_peer_that_does_not_agree_is_reset() {
    let mut peer = Peer::connecting(&framed(plain()));
    let syn = peer.sent();
    assert_eq!(syn[0].header.options.acp(), Some(VERSION));
    peer.give_raw(both(SYN, ACK), THEIRS, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::Closed);
    let reset = peer.sent();
    assert_eq!(reset[0].header.flags, RST);
    assert_eq!(reset[0].header.sequence, OURS.wrapping_add(1));
    assert_eq!(peer.engine.take_error(), Some(Errno::PROTONOSUPPORT));
    // Another version counts as none.
    let mut peer = Peer::connecting(&framed(plain()));
    peer.sent();
    let mut answer = peer.header(both(SYN, ACK));
    answer.sequence = THEIRS;
    answer.options = Options::default().with_acp(Some(VERSION + 1));
    peer.give_header(answer, b"");
    assert_eq!(peer.engine.take_error(), Some(Errno::PROTONOSUPPORT));
    // If the option is not required, a peer without it is accepted.
    let mut peer = Peer::connecting(&Config {
        framing: Framing::AcpUnconfirmed,
        ..plain()
    });
    peer.sent();
    peer.give_raw(both(SYN, ACK), THEIRS, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::Established);
    assert!(peer.engine.is_framed());
}

#[test]
fn a_listener_for_frames_refuses_what_does_not_ask_for_them() {
    let stream = || Host::new(Config::default(), Vec::new());
    let mut link = Link::listening([stream(), host(Config::default(), vec![])], FAIR, 1);
    link.run_for(ms(100));
    assert_eq!(link.hosts[0].error, Some(Errno::CONNREFUSED));
    // Unless the peer may be an end over a kernel TCP socket.
    let mut unconfirmed = host(Config::default(), vec![]);
    unconfirmed.config.framing = Framing::AcpUnconfirmed;
    let mut link = Link::listening([stream(), unconfirmed], FAIR, 1);
    link.trace = Some(Vec::new());
    link.run(HOUR);
    assert_eq!((link.hosts[0].error, link.hosts[1].error), (None, None));
    let trace = link.trace.as_deref().unwrap();
    assert!(trace.iter().all(|it| it.2.header.options.acp().is_none()));
    // An end for streams does not know the option.
    let mut link = Link::listening([host(Config::default(), vec![]), stream()], FAIR, 1);
    link.run_for(ms(100));
    assert_eq!(link.hosts[0].error, Some(Errno::PROTONOSUPPORT));
}

#[test]
fn frames_are_not_opened_fast() {
    let hosts = [
        host(Config::default(), frames(&[100], 1)),
        host(Config::default(), vec![]),
    ];
    let server = FastOpenServer {
        keys: FastOpenKeys {
            primary: [7; 16],
            backup: None,
        },
        queue: 10,
        without_cookie: true,
    };
    let peer = FastOpenPeer {
        cookie: FastOpen::cookie_of(&[7; 8]),
        ..FastOpenPeer::default()
    };
    let mut link = Link::fast(hosts, FAIR, 1, &peer, Some(server));
    link.trace = Some(Vec::new());
    link.run(HOUR);
    link.assert_delivered();
    let trace = link.trace.as_deref().unwrap();
    let mut syns = trace.iter().filter(|it| it.2.header.flags.contains(SYN));
    assert!(syns.all(|it| it.2.header.options.fast_open().is_none() && it.2.payload.is_empty()));
}

#[test]
fn a_cookie_agrees_too() {
    let cookies = Cookies::new(&framed(Config::default()), [9; 16]);
    let mut peer = Peer::connecting(&framed(Config::default()));
    let syn = peer.sent().remove(0);
    let segment = tidewall_protocol::tcp::Segment {
        flow: crate::link::reversed(flow(false)),
        header: syn.header,
        payload: b"",
        traffic_class: 0,
    };
    let answer = cookies.answer(&segment, Duration::from_secs(5)).unwrap();
    assert_eq!(answer.header.options.acp(), Some(VERSION));
    peer.give_header(answer.header, b"");
    assert_eq!(peer.state(), State::Established);
}

// ---- Sending ------------------------------------------------------------------

/// With a peer without SACK.
fn connected() -> Peer {
    Peer::established(&Config {
        sack: false,
        ..framed(plain())
    })
}

fn write(peer: &mut Peer, length: usize) {
    assert_eq!(peer.engine.write_frame(&[vec![7; length]], false), Ok(()));
}

/// Offset and length of each segment that leaves now.
fn sent(peer: &mut Peer) -> Vec<(u32, usize)> {
    let segments = peer.sent();
    for segment in &segments {
        let fault = acp::Frames::new(&segment.payload).find_map(Result::err);
        assert_eq!(fault, None);
    }
    let offset = |sequence: u32| sequence.wrapping_sub(OURS.wrapping_add(1));
    segments
        .iter()
        .filter(|segment| !segment.payload.is_empty())
        .map(|segment| (offset(segment.header.sequence), segment.payload.len()))
        .collect()
}

#[test]
fn small_frames_share_a_segment_and_none_is_cut() {
    let mut peer = connected();
    // Each leaves at once,
    write(&mut peer, 96);
    assert_eq!(sent(&mut peer), [(0, 100)]);
    write(&mut peer, 96);
    assert_eq!(sent(&mut peer), [(100, 100)]);
    // those that are written together leave together, up to a segment,
    for _ in 0..5 {
        write(&mut peer, 296);
    }
    assert_eq!(sent(&mut peer), [(200, 900), (1100, 600)]);
    // and a frame announced as followed by more waits.
    let more = peer.engine.write_frame(&[&b"first"[..]], true);
    assert_eq!((more, sent(&mut peer)), (Ok(()), vec![]));
    assert_eq!(
        peer.engine.write_frame(&[&b"sec"[..], b"ond"], false),
        Ok(())
    );
    assert_eq!(sent(&mut peer), [(1700, 19)]);
    // A segment is the limit.
    assert_eq!(peer.engine.frame_max(), 996);
    let long = vec![7; 997];
    assert_eq!(
        peer.engine.write_frame(&[long.as_slice()], false),
        Err(Errno::MSGSIZE)
    );
    write(&mut peer, 996);
    assert_eq!(sent(&mut peer), [(1719, 1000)]);
    // Bytes and frames are not mixed.
    let mut stream = Peer::established(&plain());
    assert_eq!(
        stream.engine.write_frame(&[&b""[..]], false),
        Err(Errno::INVAL)
    );
}

#[test]
fn the_send_buffer_takes_a_whole_frame_or_none() {
    let mut peer = connected();
    peer.engine.set_send_buffer(2048);
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    write(&mut peer, 996);
    assert!(peer.engine.writable());
    write(&mut peer, 900);
    assert!(!peer.engine.writable());
    let long = vec![7; 996];
    assert_eq!(
        peer.engine.write_frame(&[long.as_slice()], false),
        Err(Errno::AGAIN)
    );
    peer.window = 60_000;
    peer.give(ACK, 0, 0, b"");
    assert_eq!(sent(&mut peer), [(0, 1000), (1000, 904)]);
    peer.give(ACK, 0, 1904, b"");
    assert!(peer.engine.writable());
    write(&mut peer, 996);
}

#[test]
fn a_window_that_is_too_small_for_a_frame_is_closed() {
    let mut peer = connected();
    peer.window = 700;
    peer.give(ACK, 0, 0, b"");
    write(&mut peer, 296);
    write(&mut peer, 596);
    assert_eq!(sent(&mut peer), [(0, 300)]);
    peer.window = 500;
    peer.give(ACK, 0, 300, b"");
    assert_eq!(sent(&mut peer), []);
    // It is probed with an old number and without payload, as long as the probes are
    // answered.
    for _ in 0..40 {
        peer.wait_for_timer();
        let probe = peer.sent();
        let header = &probe[0].header;
        assert_eq!(header.sequence, OURS.wrapping_add(300));
        assert_eq!((probe.len(), probe[0].payload.len()), (1, 0));
        peer.give(ACK, 0, 300, b"");
    }
    assert_eq!(peer.state(), State::Established);
    peer.window = 600;
    peer.give(ACK, 0, 300, b"");
    assert_eq!(sent(&mut peer), [(300, 600)]);
}

#[test]
fn a_lost_frame_is_sent_again_whole() {
    // By duplicates, with frames that do not divide a segment evenly,
    let mut peer = connected();
    for _ in 0..8 {
        write(&mut peer, 396);
    }
    assert_eq!(
        sent(&mut peer),
        [(0, 800), (800, 800), (1600, 800), (2400, 800)]
    );
    for _ in 0..3 {
        peer.give(ACK, 0, 0, b"");
    }
    assert_eq!(sent(&mut peer), [(0, 800)]);
    // and all of them, by a timeout.
    let mut peer = connected();
    for _ in 0..3 {
        write(&mut peer, 396);
        sent(&mut peer);
    }
    peer.wait_for_timer();
    assert_eq!(sent(&mut peer), [(0, 800)]);
    peer.give(ACK, 0, 800, b"");
    assert_eq!(sent(&mut peer), [(800, 400)]);
}

#[test]
fn frames_between_sack_blocks_are_sent_again_whole() {
    let mut peer = Peer::established(&framed(plain()));
    for _ in 0..12 {
        write(&mut peer, 396);
    }
    let all = [0, 800, 1600, 2400, 3200, 4000].map(|offset| (offset, 800));
    assert_eq!(sent(&mut peer), all);
    // Two segments are lost, and the second frame of the fourth. A block that is not a
    // whole segment is ignored, as in Linux, so all of that is retransmitted.
    let wire = |offset: u32| OURS.wrapping_add(1 + offset);
    let mut again = Vec::new();
    for (acknowledged, end) in [
        (800, 3600),
        (800, 4000),
        (800, 4400),
        (1600, 4800),
        (2800, 4800),
    ] {
        peer.sack.push(wire(3200), wire(end));
        if acknowledged < 2400 {
            peer.sack.push(wire(2400), wire(2800));
        }
        peer.give(ACK, 0, acknowledged, b"");
        again.extend(sent(&mut peer));
    }
    assert_eq!(again, [(800, 800), (1600, 800), (2400, 800)]);
}

#[test]
fn blocks_take_no_room_from_frames() {
    let mut peer = Peer::established(&framed(plain()));
    peer.give(ACK, 400, 0, &built(&[Ok(b"beyond")]));
    let answer = peer.sent();
    assert_eq!(answer[0].header.options.sack.as_slice().len(), 1);
    write(&mut peer, 996);
    let frame = peer.sent();
    assert_eq!(frame[0].payload.len(), 1000);
    assert!(frame[0].header.options.sack.is_empty());
}

fn too_large(peer: &Peer, mtu: u32) -> FlowError {
    let flow = peer.engine.flow();
    FlowError {
        local: flow.local,
        remote: flow.remote,
        errno: errno::EMSGSIZE,
        hard: true,
        mtu: Some(mtu),
        offender: "203.0.113.1".parse().unwrap(),
        kind: 3,
        code: 4,
        sequence: Some(OURS.wrapping_add(1)),
    }
}

#[test]
fn frames_that_the_path_no_longer_carries_end_the_connection() {
    let mut peer = connected();
    write(&mut peer, 596);
    write(&mut peer, 396);
    assert_eq!(sent(&mut peer), [(0, 1000)]);
    let error = too_large(&peer, 640);
    peer.engine.icmp_error(&error, peer.now);
    // Frames that fit are retransmitted separately; frames that do not are refused.
    assert_eq!(sent(&mut peer), [(0, 600), (600, 400)]);
    assert_eq!(peer.engine.frame_max(), 596);
    let long = vec![7; 597];
    assert_eq!(
        peer.engine.write_frame(&[long.as_slice()], false),
        Err(Errno::MSGSIZE)
    );
    // A frame that was accepted before and is now too long cannot be cut.
    let mut peer = connected();
    write(&mut peer, 996);
    sent(&mut peer);
    let error = too_large(&peer, 640);
    peer.engine.icmp_error(&error, peer.now);
    let reset = peer.sent();
    assert_eq!(reset[0].header.flags, both(RST, ACK));
    assert_eq!(peer.state(), State::Closed);
    assert_eq!(peer.engine.take_error(), Some(Errno::MSGSIZE));
}

#[test]
fn a_silent_path_is_no_reason_to_make_segments_smaller() {
    let mut peer = connected();
    write(&mut peer, 996);
    write(&mut peer, 996);
    sent(&mut peer);
    for _ in 0..8 {
        peer.wait_for_timer();
        assert_eq!(sent(&mut peer), [(0, 1000)]);
    }
}

// ---- Receiving ----------------------------------------------------------------

fn built(frames: &[Result<&[u8], u16>]) -> Vec<u8> {
    let mut buffer = vec![0; 5000];
    let mut builder = Builder::new(&mut buffer);
    for frame in frames {
        match frame {
            Ok(payload) => builder.data(payload).unwrap(),
            Err(length) => builder.null(*length).unwrap(),
        }
    }
    let length = builder.len();
    buffer.truncate(length);
    buffer
}

fn read(peer: &mut Peer) -> Result<Option<Vec<u8>>, Errno> {
    let mut buffer = [0; 2000];
    let length = peer.engine.read_frame(&mut buffer)?;
    Ok(length.map(|length| buffer[..length].to_vec()))
}

#[test]
fn a_frame_is_readable_once_it_is_whole() {
    let bytes = built(&[Ok(b"one"), Err(3), Err(0), Ok(b""), Ok(b"three"), Err(9)]);
    for at in 1..bytes.len() {
        let mut peer = connected();
        peer.data(&bytes[..at]);
        assert_eq!(peer.engine.readable(), at >= 7, "{at}");
        peer.data(&bytes[at..]);
        assert_eq!(read(&mut peer), Ok(Some(b"one".to_vec())));
        assert_eq!(read(&mut peer), Ok(Some(vec![])));
        assert_eq!(read(&mut peer), Ok(Some(b"three".to_vec())));
        assert_eq!(read(&mut peer), Err(Errno::AGAIN));
        assert!(!peer.engine.readable());
        // Null frames take no space even if nothing is read.
        assert_eq!(peer.engine.info().unread, 0);
        peer.give_header(peer.header(both(ACK, Flags::FIN)), b"");
        assert_eq!(read(&mut peer), Ok(None));
    }
}

#[test]
fn what_does_not_fit_the_buffer_of_a_read_is_lost() {
    let mut peer = connected();
    peer.data(&built(&[Ok(b"first one"), Ok(b"second")]));
    let mut buffer = [0; 5];
    assert_eq!(peer.engine.read_frame(&mut buffer), Ok(Some(9)));
    assert_eq!(&buffer, b"first");
    assert_eq!(peer.engine.frame(), Some([&b"second"[..], &[]]));
    assert_eq!(peer.engine.read_frame(&mut []), Ok(Some(6)));
}

#[test]
fn what_is_no_frame_ends_the_connection_behind_what_was() {
    let longer = [0xac, 0, 3, 229];
    for (broken, ends) in [
        (&b"GET / HTTP/1.1"[..], false),
        (&[0xac, 2, 0, 0], false),
        // Longer than our segments may be.
        (&longer, false),
        // The end within a frame, and within a header.
        (&[0xac, 0, 0, 5, 1], true),
        (&[0xac], true),
    ] {
        let mut peer = connected();
        peer.sent();
        peer.data(&built(&[Ok(b"good")]));
        assert!(!peer.engine.take_framing_error());
        peer.data(broken);
        if ends {
            assert_eq!(peer.state(), State::Established);
            peer.give_header(peer.header(both(ACK, Flags::FIN)), b"");
        }
        assert_eq!(peer.state(), State::Closed, "{broken:?}");
        assert_eq!(peer.sent()[0].header.flags, both(RST, ACK));
        assert!(peer.engine.take_framing_error() && !peer.engine.take_framing_error());
        let frozen = peer.engine.freeze(peer.now);
        peer.engine = Connection::thaw(&frozen, peer.now).unwrap();
        assert_eq!(read(&mut peer), Ok(Some(b"good".to_vec())));
        assert_eq!(read(&mut peer), Err(Errno::PROTO));
        assert_eq!(read(&mut peer), Ok(None));
    }
    assert_eq!(DropReason::AcpFraming.name(), "acp-framing");
}

// ---- Any link -----------------------------------------------------------------

fn configs() -> impl Strategy<Value = Config> {
    (
        any::<[bool; 3]>(),
        prop::sample::select(vec![88u16, 536, 1460, 8960]),
        prop::sample::select(vec![2048u32, 10_000, 131_072]),
        prop::sample::select(vec![0u32, 65_000]),
        prop::option::of(1u32..20_000),
    )
        .prop_map(
            |([window_scaling, nodelay, sack], mss, buffer, offload, mark)| Config {
                mss,
                window_scaling,
                nodelay,
                sack,
                receive_buffer: buffer,
                receive_buffer_max: if window_scaling { 1 << 20 } else { buffer },
                send_buffer: buffer,
                offload,
                not_sent_low_water: mark,
                ..Config::default()
            },
        )
}

fn weathers() -> impl Strategy<Value = Weather> {
    (0u8..20, 0u8..20, 0u8..40, 0u64..200, 0u64..300).prop_map(
        |(loss, duplication, reorder, delay, jitter)| Weather {
            loss,
            duplication,
            reorder,
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter),
            payload_max: usize::MAX,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn frames_stay_whole_on_a_hostile_link(
        configs in [configs(), configs()], weather in [weathers(), weathers()],
        sizes in [
            prop::collection::vec(0u32..1000, 0..120),
            prop::collection::vec(0u32..1000, 0..120),
        ],
        pauses in [0u64..50, 0u64..50], seed: u64, freezes in prop::bool::weighted(0.3),
    ) {
        // As long as both ends, and the smallest window, permit.
        let least = |config: &Config| u32::from(config.mss).min(config.receive_buffer);
        let most = configs.iter().map(least).min().unwrap_or(0) - HEADER_LEN as u32;
        let hosts = [0, 1].map(|at| {
            let lengths: Vec<_> = sizes[at]
                .iter()
                .map(|size| (size * (most + 1) / 1000) as usize)
                .collect();
            let mut host = host(configs[at], frames(&lengths, at as u8));
            host.read_pause = Duration::from_millis(pauses[at]);
            host
        });
        let mut link = Link::listening(hosts, weather[0], seed);
        link.weather = weather;
        link.freezes = freezes;
        link.trace = Some(Vec::new());
        if link.run_unless_cut_off(10 * HOUR) {
            link.assert_delivered();
        }
        assert_whole(&link);
    }

    /// A stream of arbitrary bytes ends the connection or is read as frames.
    #[test]
    fn any_bytes_are_frames_or_end_the_connection(
        pieces in prop::collection::vec(prop::collection::vec(
            prop_oneof![4 => Just(0xacu8), 4 => Just(0), 2 => 0u8..4, 1 => any::<u8>()], 1..40), 1..20),
    ) {
        let mut peer = connected();
        let mut frames = 0;
        for piece in &pieces {
            peer.data(piece);
            while let Ok(Some(_)) = read(&mut peer) {
                frames += 1;
            }
        }
        let all = pieces.concat();
        let valid = acp::Frames::new(&all).map_while(Result::ok);
        let expected = valid.filter(|frame| frame.kind == acp::Kind::Data).count();
        prop_assert_eq!(frames, expected);
        let broken = peer.engine.take_framing_error();
        prop_assert_eq!(broken, peer.state() == State::Closed);
    }
}
