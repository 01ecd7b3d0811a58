//! The two sides against each other, without sockets.

mod fuzz;

use std::collections::VecDeque;

use tidewall_wire::acp::{Frames, Kind};
use tidewall_wire::resp;

use super::client::{COMMAND_MAX, Client, PARTS_MAX};
use super::commands::{KEYS_MAX, array};
use super::member::Member;
use super::queue::{Messages, Queue};
use super::requests::Requests;

/// The smallest frame limit, so that commands are split.
const FRAME_MAX: usize = 100;
const MEMBERS: usize = 3;

/// A stateless server that replies to each command with what reached it.
#[derive(Default)]
struct Server {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Server {
    fn run(&mut self) {
        loop {
            let Ok((length, true)) = resp::Scanner::new().scan(&self.input) else {
                return;
            };
            let command: Vec<u8> = self.input.drain(..length).collect();
            let arguments: Vec<_> = resp::arguments(&command).unwrap().collect();
            let text = |bytes: &[u8]| format!("${}\r\n{}\r\n", bytes.len(), bytes.escape_ascii());
            let reply = match arguments[0] {
                b"MGET" => format!("*1\r\n{}", text(arguments[1])),
                b"DEL" => ":1\r\n".to_owned(),
                b"SET" | b"MSET" => "+OK\r\n".to_owned(),
                b"GET" => text(arguments[1]),
                other => panic!("{}", other.escape_ascii()),
            };
            self.output.extend(reply.bytes());
        }
    }
}

/// A client, a switch that keeps order only for each member, members and servers.
struct System {
    client: Client,
    requests: Requests,
    program: Queue,
    members: Vec<(Member, Server, VecDeque<Vec<u8>>)>,
    random: u64,
}

impl System {
    fn new(seed: u64) -> Self {
        let member = || {
            let member = Member::new(Messages::Resp, FRAME_MAX);
            (member, Server::default(), VecDeque::new())
        };
        Self {
            client: Client::new(Messages::Resp, 0),
            requests: Requests::new(FRAME_MAX),
            program: Queue::default(),
            members: (0..MEMBERS).map(|_| member()).collect(),
            random: seed | 1,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }

    /// Switches each frame to the member of its key.
    fn switch(&mut self) {
        let frames = std::mem::take(&mut self.requests.frames);
        for frame in Frames::new(frames.as_slice()) {
            let frame = frame.unwrap();
            assert!(frame.kind == Kind::Data && frame.payload.len() <= FRAME_MAX);
            let key = resp::key(&frame.payload[8..]).expect("every frame has a key");
            let sum: usize = key.iter().map(|&byte| usize::from(byte)).sum();
            let (member, server, _) = &mut self.members[sum % MEMBERS];
            let mut bytes = Queue::default();
            member.frame(frame.payload, &mut bytes).unwrap();
            server.input.extend(bytes.as_slice());
        }
    }

    /// Moves some of what waits anywhere; returns false when nothing does.
    fn step(&mut self) -> bool {
        self.switch();
        let first = self.below(MEMBERS);
        let piece = 1 + self.below(40);
        for at in (0..MEMBERS).map(|at| (first + at) % MEMBERS) {
            let (member, server, replies) = &mut self.members[at];
            server.run();
            if let Some(payload) = replies.pop_front() {
                let reply = self.requests.reply(&payload).unwrap();
                self.client.reply(&reply, &mut self.program).unwrap();
                self.client
                    .resume(&mut self.requests, &mut self.program)
                    .unwrap();
                return true;
            }
            let piece = piece.min(server.output.len());
            if piece > 0 {
                let bytes: Vec<u8> = server.output.drain(..piece).collect();
                let mut frames = Queue::default();
                member.bytes(&bytes, &mut frames).unwrap();
                for frame in Frames::new(frames.as_slice()) {
                    replies.push_back(frame.unwrap().payload.to_vec());
                }
                return true;
            }
        }
        !self.requests.frames.is_empty()
    }

    fn said(&mut self) -> Vec<u8> {
        while self.step() {}
        let said = self.program.as_slice().to_vec();
        self.program.consume(said.len());
        said
    }

    fn type_in(&mut self, bytes: &[u8]) {
        self.client
            .bytes(bytes, &mut self.requests, &mut self.program)
            .unwrap();
    }
}

#[test]
fn replies_come_in_the_order_asked_whatever_order_members_answer_in() {
    for seed in 1..200 {
        let mut system = System::new(seed * 0x9e37_79b9);
        let (mut asked, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            let keys: Vec<String> = (0..1 + system.below(5))
                .map(|_| format!("key{}", system.below(40)))
                .collect();
            let bulk = |key: &String| format!("${}\r\n{key}\r\n", key.len());
            let all: String = keys.iter().map(bulk).collect();
            let one = keys[0].as_bytes();
            match system.below(6) {
                0 => {
                    asked.extend(array(&[b"GET", one]));
                    expected.extend(bulk(&keys[0]).bytes());
                }
                1 => {
                    let length = system.below(500);
                    asked.extend(array(&[b"SET", one, &vec![b'v'; length]]));
                    expected.extend(b"+OK\r\n");
                }
                2 => {
                    asked.extend(format!("*{}\r\n$4\r\nMGET\r\n{all}", keys.len() + 1).bytes());
                    expected.extend(format!("*{}\r\n{all}", keys.len()).bytes());
                }
                3 => {
                    asked.extend(format!("*{}\r\n$3\r\nDEL\r\n{all}", keys.len() + 1).bytes());
                    expected.extend(format!(":{}\r\n", keys.len()).bytes());
                }
                4 => {
                    asked.extend(b"PING\r\n");
                    expected.extend(b"+PONG\r\n");
                }
                _ => {
                    let long = vec![b'x'; 300];
                    asked.extend(array(&[b"MSET", one, &long, b"other", &long]));
                    expected.extend(b"+OK\r\n");
                }
            }
        }
        let mut rest = &asked[..];
        let mut said = Vec::new();
        while !rest.is_empty() {
            let piece = (1 + system.below(200)).min(rest.len());
            let (now, later) = rest.split_at(piece);
            rest = later;
            system.type_in(now);
            for _ in 0..system.below(10) {
                system.step();
            }
        }
        said.extend(system.said());
        assert_eq!(
            said.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "seed {seed}"
        );
        assert!(!system.client.is_done());
        system.client.end();
        system.type_in(b"");
        assert!(system.client.is_done());
    }
}

#[test]
fn what_is_no_command_is_answered_in_turn_and_ends_the_connection() {
    for wrong in ["*1\r\n$x\r\n", "*x\r\n", "*1\r\n*1\r\n*1\r\n!"] {
        let mut system = System::new(7);
        system.type_in(&array(&[b"GET", b"a"]));
        system.type_in(wrong.as_bytes());
        system.type_in(b"PING\r\n");
        let said = String::from_utf8(system.said()).unwrap();
        assert!(
            said.starts_with("$1\r\na\r\n-ERR tidewall acp-bridge: Protocol error: "),
            "{said}"
        );
        assert!(!said.contains("PONG") && system.client.is_done());
    }
    // An array in an array is a value, but no command.
    let mut system = System::new(7);
    system.type_in(b"*1\r\n*1\r\n$1\r\nx\r\nPING\r\n");
    let said = String::from_utf8(system.said()).unwrap();
    assert!(
        said.starts_with("-ERR") && said.ends_with("+PONG\r\n"),
        "{said}"
    );
}

/// Members come and go between the frames of a command, which the switch steers one by one.
#[test]
fn no_member_makes_a_command_of_parts_that_do_not_follow() {
    let mut system = System::new(7);
    system.type_in(&array(&[b"SET", b"k", &[b'v'; 200]]));
    system.type_in(&array(&[b"GET", b"k"]));
    let frames = system.requests.frames.as_slice();
    let frames: Vec<_> = Frames::new(frames)
        .map(|frame| frame.unwrap().payload)
        .collect();
    assert!(frames.len() > 4);
    let last = frames.len() - 1;
    let takes = |places: &[usize]| {
        let (mut member, mut server) = (Member::new(Messages::Resp, FRAME_MAX), Queue::default());
        places.iter().all(|&place| {
            let before = server.len();
            let taken = member.frame(frames[place], &mut server).is_ok();
            assert!(
                taken || server.len() == before,
                "the server gets none of it"
            );
            taken
        })
    };
    assert!(takes(&(0..=last).collect::<Vec<_>>()));
    assert!(takes(&[last, last]));
    // Frames that begin elsewhere, leave something out, or arrive while a message is
    // unfinished.
    for places in [&[1][..], &[0, 2], &[0, 1, 3], &[0, 0], &[0, last]] {
        assert!(!takes(places), "{places:?}");
    }
}

#[test]
fn a_command_of_many_keys_is_sent_as_replies_come() {
    let mut system = System::new(7);
    let keys: Vec<_> = (0..3 * PARTS_MAX).map(|key| format!("k{key}")).collect();
    let mut command = vec![&b"MGET"[..]];
    command.extend(keys.iter().map(String::as_bytes));
    system.type_in(&array(&command));
    system.type_in(b"PING\r\n");
    let asked = Frames::new(system.requests.frames.as_slice()).count();
    assert_eq!(asked, PARTS_MAX);
    let said = String::from_utf8(system.said()).unwrap();
    let values = keys
        .iter()
        .map(|key| format!("${}\r\n{key}\r\n", key.len()));
    let values: String = values.collect();
    assert!(said == format!("*{}\r\n{values}+PONG\r\n", keys.len()));
    // More keys than a command may have.
    command.resize(KEYS_MAX + 2, b"k");
    system.type_in(&array(&command));
    let said = String::from_utf8(system.said()).unwrap();
    let refused = "-ERR tidewall acp-bridge: MGET of 16385 keys; a command may have 16384\r\n";
    assert_eq!(said, refused);
}

#[test]
fn a_key_that_fills_a_frame_is_refused() {
    let mut system = System::new(7);
    let key = [b'k'; FRAME_MAX];
    system.type_in(&array(&[b"GET", &key]));
    system.type_in(&array(&[b"MGET", b"a", &key]));
    assert!(system.requests.frames.is_empty());
    let said = String::from_utf8(system.said()).unwrap();
    assert_eq!(said.matches("longer than a frame").count(), 2, "{said}");
}

#[test]
fn what_is_kept_is_bounded() {
    // Commands that stay unanswered.
    let mut system = System::new(7);
    let command = array(&[b"GET", b"a"]);
    let mut typed = 0;
    while system.client.wants_bytes() {
        system.type_in(&command);
        typed += 1;
        assert!(typed <= 1024);
    }
    assert!(system.said().len() > 1000 * 7);
    assert!(system.client.wants_bytes());
    // A command without an end.
    let mut system = System::new(7);
    system.type_in(b"*2\r\n$3\r\nSET\r\n$500000000\r\n");
    let mut typed = 0;
    while system.client.wants_bytes() {
        system.type_in(&[b'x'; 1 << 16]);
        typed += 1 << 16;
        assert!(typed <= COMMAND_MAX + (1 << 16));
    }
    let said = String::from_utf8(system.said()).unwrap();
    assert!(said.contains("more than 4194304 bytes"), "{said}");
    // Small replies behind one that does not arrive.
    let mut system = System::new(7);
    system.type_in(&command);
    let long = array(&[b"ECHO", &[b'x'; 1 << 16]]);
    for _ in 0..17 {
        assert!(system.program.is_empty());
        if system.client.wants_bytes() {
            system.type_in(&long);
        }
    }
    assert!(!system.client.wants_bytes());
}

#[test]
fn frames_that_nobody_asked_for_are_an_error() {
    let (mut frames, mut program) = (Queue::default(), Queue::default());
    let mut member = Member::new(Messages::Resp, FRAME_MAX);
    // Frames of another version, without their route or offset, or with other flags.
    for frame in [
        &b"\0\0\0\0\x01\0\0\0"[..],
        b"\0\0\0\0\x02\x01\0\x09x",
        b"\0\0\0\0\x02\x02\0\0abc",
        b"\0\0\0\0\x02\x04\0\0",
    ] {
        assert!(member.frame(frame, &mut program).is_err());
    }
    assert!(member.bytes(b"+OK\r\n", &mut frames).is_err());
}

#[test]
fn messages_behind_their_length_go_as_they_are() {
    let mut client = Client::new(Messages::Length, 0);
    let mut member = Member::new(Messages::Length, FRAME_MAX);
    let (mut requests, mut program) = (Requests::new(FRAME_MAX), Queue::default());
    let asked = b"\0\0\0\x03one\0\0\0\0\0\0\0\x03two";
    for byte in asked {
        client.bytes(&[*byte], &mut requests, &mut program).unwrap();
    }
    let mut server = Queue::default();
    let sent: Vec<_> = Frames::new(requests.frames.as_slice())
        .map(Result::unwrap)
        .collect();
    assert_eq!(sent.len(), 3);
    for frame in sent {
        member.frame(frame.payload, &mut server).unwrap();
    }
    assert_eq!(server.as_slice(), asked);
    // The response may be longer than a frame.
    let mut answer = asked.to_vec();
    answer.splice(7..11, [&[0, 0, 1, 0][..], &[b'x'; 256]].concat());
    let mut replies = Queue::default();
    for bytes in answer.chunks(150) {
        member.bytes(bytes, &mut replies).unwrap();
    }
    assert!(member.is_idle());
    for frame in Frames::new(replies.as_slice()) {
        let reply = requests.reply(frame.unwrap().payload).unwrap();
        client.reply(&reply, &mut program).unwrap();
    }
    assert_eq!(program.as_slice(), answer);
    let long = [&[0, 0, 0, 200][..], &[b'x'; 200]].concat();
    assert!(client.bytes(&long, &mut requests, &mut program).is_err());
}
