//! Fuzz targets of everything that a bridge reads: the switch's frames, a program's
//! bytes, a server's bytes. `tidewall_fuzz` describes how they run;
//! `BOLERO_RANDOM_TEST_TIME_MS` sets for how long.

use std::time::Duration;

use bolero::check;
use tidewall_fuzz::{Seed, Target, check_corpus};
use tidewall_wire::acp::{self, Frames};
use tidewall_wire::resp;

use super::super::client::Client;
use super::super::member::Member;
use super::super::queue::{HEADER_LEN, Header, Messages, Queue, push_frames};
use super::super::requests::Requests;
use super::FRAME_MAX;

/// Time for random inputs to one target in an ordinary test run.
const TIME: Duration = Duration::from_millis(400);
/// Flag in the first byte of a client's or server's script: messages are RESP. The rest
/// of the byte is the number of bytes that arrive at once, less one.
const RESP: u8 = 128;
/// Requests that a server may answer.
const REQUESTS: u32 = 4;

#[test]
fn fuzz_bridge_frame() {
    fuzz("bridge_frame", frame);
}

#[test]
fn fuzz_bridge_client() {
    fuzz("bridge_client", client);
}

#[test]
fn fuzz_bridge_member() {
    fuzz("bridge_member", member);
}

#[test]
fn the_corpus_is_what_the_code_makes() {
    check_corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bridge"), &seeds());
}

fn fuzz(name: &'static str, test: fn(&[u8])) {
    let target = Target::new(name, &seeds(), test);
    let time = std::env::var("BOLERO_RANDOM_TEST_TIME_MS").ok();
    let time = time.and_then(|time| time.parse().ok());
    check!(name = name)
        .with_test_time(time.map_or(TIME, Duration::from_millis))
        .with_max_len(600)
        .for_each(|bytes: &[u8]| target.input(bytes));
    target.finish();
}

fn seeds() -> Vec<Seed> {
    let frame = |id, last, offset, route: &[u8], bytes: &[u8]| {
        let header = Header {
            id,
            last,
            route: route.len() as u16,
            offset,
        };
        payload(header, route, bytes)
    };
    let frames = [
        ("reply", frame(0, true, None, b"", b"\0\0\0\x03one")),
        (
            "part",
            frame(
                1,
                false,
                None,
                b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
                b"$5\r\nab",
            ),
        ),
        ("goes-on", frame(0, true, Some(6), b"", b"cde\r\n")),
        ("unasked", frame(9, true, None, b"", b"+OK\r\n")),
    ];
    let clients = [
        (
            "length",
            [&[2][..], b"\0\0\0\x03one\0\0\0\0\0\0\0\x02to"].concat(),
        ),
        ("length-too-long", [&[9][..], b"\x20\0\0\x01x"].concat()),
        (
            "length-beyond-frame",
            [&[60][..], &[0, 0, 0, 89], &[7; 89]].concat(),
        ),
        (
            "commands",
            [
                &[RESP | 7][..],
                b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n",
            ]
            .concat(),
        ),
        (
            "long-command",
            [
                &[RESP | 30][..],
                b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$150\r\n",
                &[b'x'; 150],
                b"\r\n",
            ]
            .concat(),
        ),
        (
            "inline",
            [&[RESP][..], b"PING\r\nGET k\r\nMULTI\r\nQUIT\r\n"].concat(),
        ),
    ];
    let members = [
        ("length", [&[3][..], b"\0\0\0\x03one\0\0\0\0"].concat()),
        (
            "long-length",
            [&[100][..], &[0, 0, 0, 250], &[7; 250]].concat(),
        ),
        (
            "replies",
            [&[RESP | 4][..], b"+OK\r\n$3\r\none\r\n*2\r\n:1\r\n$-1\r\n"].concat(),
        ),
        (
            "unasked",
            [&[RESP | 60][..], &b"+OK\r\n".repeat(6)].concat(),
        ),
    ];
    let of = |target, seeds: Vec<(&'static str, Vec<u8>)>| {
        let seeds = seeds.into_iter();
        seeds.map(move |(name, bytes)| Seed::from((target, name, bytes)))
    };
    of("bridge_frame", frames.to_vec())
        .chain(of("bridge_client", clients.to_vec()))
        .chain(of("bridge_member", members.to_vec()))
        .collect()
}

fn payload(header: Header, route: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut payload = Queue::default();
    header.push(route, bytes, &mut payload);
    payload.as_slice().to_vec()
}

/// Tests a frame's payload on both sides. Every header that parses is rebuilt from its
/// fields. Its bytes pass unchanged if they follow what came before: here, nothing.
fn frame(payload: &[u8]) {
    let parsed = Header::parse(payload);
    if let Some((header, bytes)) = parsed {
        let route = usize::from(header.route);
        let route = payload.get(HEADER_LEN..HEADER_LEN + route).unwrap();
        assert_eq!(self::payload(header, route, bytes), payload);
    }
    let parsed = parsed.filter(|(header, _)| header.offset.is_none());
    let mut server = Queue::default();
    let mut member = Member::new(Messages::Length, FRAME_MAX);
    let taken = member.frame(payload, &mut server);
    assert_eq!(taken.is_ok(), parsed.is_some());
    assert_eq!(
        server.as_slice(),
        parsed.map_or(&b""[..], |(_, bytes)| bytes)
    );
    let (mut requests, mut program) = (Requests::new(FRAME_MAX), Queue::default());
    let mut client = Client::new(Messages::Length, 0);
    client.bytes(&[0; 4], &mut requests, &mut program).unwrap();
    let taken = requests
        .reply(payload)
        .and_then(|reply| client.reply(&reply, &mut program));
    let reply = parsed.filter(|(header, _)| header.id == 0);
    assert_eq!(taken.is_ok(), reply.is_some());
    assert_eq!(
        program.as_slice(),
        reply.map_or(&b""[..], |(_, bytes)| bytes)
    );
    if reply.is_some_and(|(header, _)| header.last) {
        assert!(requests.reply(payload).is_err(), "nothing is owed");
    }
}

/// Returns the contents of a script: the kind of messages, and chunks as they arrive.
fn script(bytes: &[u8]) -> Option<(Messages, std::slice::Chunks<'_, u8>)> {
    let (&first, bytes) = bytes.split_first()?;
    let messages = match first & RESP {
        0 => Messages::Length,
        _ => Messages::Resp,
    };
    Some((messages, bytes.chunks(1 + usize::from(first & !RESP))))
}

/// Empties a queue; returns the header of each frame, and the bytes behind it.
fn sent(frames: &mut Queue) -> Vec<(Header, Vec<u8>)> {
    let length = frames.len();
    let sent = Frames::new(frames.as_slice()).map(|frame| {
        let frame = frame.expect("whole frames");
        assert!(frame.kind == acp::Kind::Data && frame.payload.len() <= FRAME_MAX);
        let (header, bytes) = Header::parse(frame.payload).expect("a bridge's header");
        (header, bytes.to_vec())
    });
    let sent = sent.collect();
    frames.consume(length);
    sent
}

/// Tests a program's bytes. Each resulting frame is answered at once.
fn client(bytes: &[u8]) {
    let Some((messages, chunks)) = script(bytes) else {
        return;
    };
    let (mut client, mut requests) = (Client::new(messages, 0), Requests::new(FRAME_MAX));
    let [mut program, mut fed, mut reached] = [(); 3].map(|()| Queue::default());
    for chunk in chunks {
        fed.push(chunk);
        let taken = client.bytes(chunk, &mut requests, &mut program);
        for (header, bytes) in sent(&mut requests.frames) {
            reached.push(&bytes);
            if !header.last {
                continue;
            }
            let reply = match messages {
                Messages::Length => bytes,
                Messages::Resp => b":1\r\n".to_vec(),
            };
            let mut back = Queue::default();
            assert!(push_frames(
                &mut back,
                FRAME_MAX,
                header.id,
                &mut None,
                true,
                &[],
                &reply
            ));
            let back = Frames::new(back.as_slice()).next().unwrap().unwrap();
            let back = requests.reply(back.payload).expect("it was asked");
            client.reply(&back, &mut program).expect("in its turn");
        }
        if messages == Messages::Length {
            // Messages pass unchanged, up to the first that cannot.
            let (whole, bad) = whole(fed.as_slice());
            assert_eq!((reached.as_slice(), taken.is_err()), (whole, bad));
            assert_eq!(program.as_slice(), whole);
        }
        if taken.is_err() {
            return;
        }
    }
    if messages == Messages::Resp {
        // Whatever the requests, the program receives only RESP values.
        values(program.as_slice());
    }
}

/// Returns the whole messages, with their lengths, that fit into a frame, and whether
/// they end at one that every bridge rejects.
fn whole(bytes: &[u8]) -> (&[u8], bool) {
    let mut at = 0;
    while let Some((length, rest)) = bytes.get(at..).and_then(<[u8]>::split_first_chunk::<4>) {
        let length = u32::from_be_bytes(*length) as usize;
        let size = 4 + length;
        let is_there = rest.len() >= length;
        if length as u64 > resp::BULK_MAX || is_there && size + HEADER_LEN > FRAME_MAX {
            return (&bytes[..at], true);
        }
        if !is_there {
            break;
        }
        at += size;
    }
    (&bytes[..at], false)
}

/// Checks that these bytes are values of RESP, each whole.
fn values(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (length, ended) = resp::Scanner::new().scan(bytes).expect("values");
        assert!(ended, "a value that has no end: {}", bytes.escape_ascii());
        bytes = &bytes[length..];
    }
}

/// Tests a server's bytes, in reply to this many requests.
fn member(bytes: &[u8]) {
    let Some((messages, chunks)) = script(bytes) else {
        return;
    };
    let mut member = Member::new(messages, FRAME_MAX);
    let mut server = Queue::default();
    for id in 0..REQUESTS {
        let header = Header {
            id,
            last: true,
            route: 0,
            offset: None,
        };
        let frame = payload(header, &[], &[]);
        member.frame(&frame, &mut server).unwrap();
    }
    let [mut frames, mut fed, mut reached] = [(); 3].map(|()| Queue::default());
    // The current reply, and how many have ended.
    let (mut ended, mut offset) = (0, None);
    for chunk in chunks {
        fed.push(chunk);
        let taken = member.bytes(chunk, &mut frames);
        for (header, bytes) in sent(&mut frames) {
            assert_eq!((header.id, header.route), (ended, 0), "in the order asked");
            assert_eq!(header.offset, offset, "whole");
            ended += u32::from(header.last);
            offset = header.next_offset(bytes.len());
            reached.push(&bytes);
        }
        assert!(fed.as_slice().starts_with(reached.as_slice()));
        match taken {
            Ok(()) => assert_eq!(reached.len(), fed.len()),
            Err(_) => return,
        }
        assert_eq!(member.is_idle(), ended == REQUESTS);
    }
}
