//! `tidewall switch` between kernels: a peer and members in separate namespaces, each
//! with a kernel's TCP and one frame per call. Needs root; skipped without.

#[path = "../common/mod.rs"]
mod common;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::star::{Star, shell};
use common::{Running, Service, fails, program, signal, text, tidewall};
use rustix::net::{SendFlags, send};
use tidewall_wire::acp::{HEADER_LEN, Header, Kind};

/// Default number of frames that the peer sends.
const FRAMES: u32 = 3000;
/// How long a peer waits for a frame.
const LIMIT: Duration = Duration::from_secs(20);
const VIRTUAL: &str = "10.99.0.99:6000";
const MEMBERS: [&str; 2] = ["10.99.1.2:6000", "10.99.2.2:6000"];

fn star(test: &str, name: &str) -> Option<Star> {
    Star::or_skip(test, name, 3)
}

/// Returns the configuration, with these changes.
fn file(star: &Star, members: usize, more: &str) -> String {
    star.file(6000, members, more)
}

/// Returns this program again, in an end's namespace, with a test that is an end.
fn end(star: &Star, end: usize, name: &str) -> Command {
    end_in(&star.ends[end], name)
}

fn end_in(namespace: &str, name: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let arguments = ["--exact", name, "--ignored", "--nocapture", "--quiet"];
    let mut command = Bed::other(namespace, program, &arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Starts a member; returns it once it listens.
fn member(star: &Star, number: usize) -> Service {
    member_in(&star.ends[number], number)
}

fn member_in(namespace: &str, number: usize) -> Service {
    let mut command = end_in(namespace, "end_member");
    command.env("TW_MEMBER", number.to_string());
    let mut service = Service::start(command);
    service.line_with("listens");
    service
}

/// A peer that executes one line at a time.
struct Peer {
    service: Service,
    lines: ChildStdin,
}

impl Peer {
    fn connected(star: &Star) -> Self {
        Self::connected_to(star, VIRTUAL)
    }

    fn connected_to(star: &Star, server: &str) -> Self {
        let mut command = end(star, 0, "end_peer_in_steps");
        command.env("TW_SERVER", server);
        let mut service = Service::start(command);
        service.line_with("connected");
        let lines = service.process.0.stdin.take().unwrap();
        Self { service, lines }
    }

    fn step(&mut self, what: &str) -> String {
        writeln!(self.lines, "{what}").unwrap();
        self.service.first.clear();
        self.service.line_with("step");
        self.service.first.trim_end().to_owned()
    }

    /// It closes its connection, and waits for the end of the other direction.
    fn end(self) {
        drop(self.lines);
        self.service.ended();
    }
}

fn members(star: &Star) -> Vec<Service> {
    (1..3).map(|number| member(star, number)).collect()
}

/// Sends a frame in one call, so that it is whole in its segment.
fn send_frame(stream: &TcpStream, payload: &[u8]) {
    let mut frame = Header::data(payload.len()).unwrap().bytes().to_vec();
    frame.extend(payload);
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let sent = send(stream, rest, SendFlags::EOR | SendFlags::NOSIGNAL).unwrap();
        rest = &rest[sent..];
    }
}

/// Returns the next frame of data; `None` at the end of the stream.
fn receive_frame(stream: &mut impl Read) -> Option<Vec<u8>> {
    loop {
        let mut header = [0; HEADER_LEN];
        stream.read_exact(&mut header).ok()?;
        let header = Header::parse(header).unwrap();
        let mut payload = vec![0; header.length.into()];
        stream.read_exact(&mut payload).unwrap();
        if header.kind == Kind::Data {
            return Some(payload);
        }
    }
}

/// Returns lengths from a few bytes to a whole kernel segment beside SACK blocks.
fn length(number: u32) -> usize {
    let longest = std::env::var("TW_LONGEST").map_or(1412, |longest| longest.parse().unwrap());
    8 + number as usize * 37 % longest
}

#[test]
#[ignore = "a member of the others, in its namespace"]
fn end_member() {
    let tag: u8 = std::env::var("TW_MEMBER").unwrap().parse().unwrap();
    let listener = TcpListener::bind(("0.0.0.0", 6000)).unwrap();
    println!("listens");
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::spawn(move || {
            stream.set_nodelay(true).unwrap();
            let mut input = BufReader::new(stream.try_clone().unwrap());
            while let Some(mut frame) = receive_frame(&mut input) {
                frame[4] = tag;
                send_frame(&stream, &frame);
            }
        });
    }
}

#[test]
#[ignore = "the peer of the others, in its namespace"]
fn end_peer() {
    let frames = std::env::var("TW_FRAMES").map_or(FRAMES, |frames| frames.parse().unwrap());
    let stream = TcpStream::connect(VIRTUAL).unwrap();
    stream.set_nodelay(true).unwrap();
    // Without a timeout it could wait forever.
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let output = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for number in 0..frames {
            let mut payload = vec![number as u8; length(number)];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            send_frame(&output, &payload);
        }
        output.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut input = BufReader::new(&stream);
    let mut last = BTreeMap::new();
    let mut came = vec![false; frames as usize];
    while let Some(frame) = receive_frame(&mut input) {
        let number = u32::from_be_bytes(*frame.first_chunk().unwrap());
        assert_eq!(frame.len(), length(number));
        assert!(
            frame[5..].iter().all(|&byte| byte == number as u8),
            "{number}"
        );
        assert!(!came[number as usize], "{number} came twice");
        came[number as usize] = true;
        // Frames of one member arrive in order.
        let before = last.insert(frame[4], number);
        assert!(
            before.is_none_or(|before| before < number),
            "{before:?} {number}"
        );
    }
    sending.join().unwrap();
    let missing: Vec<_> = (0..frames).filter(|&n| !came[n as usize]).collect();
    assert!(missing.is_empty(), "{} missing: {missing:?}", missing.len());
    assert_eq!(last.len(), 2, "members that answered: {last:?}");
    println!("all came back");
}

#[test]
#[ignore = "a peer of the others, in its namespace, that does what a line on its input says"]
fn end_peer_in_steps() {
    let stream = TcpStream::connect(std::env::var("TW_SERVER").unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut input = BufReader::new(&stream);
    let mut members = |frames: u32| -> BTreeSet<u8> {
        let answer = |number: u32| {
            send_frame(&stream, &[number as u8; 64]);
            let frame = receive_frame(&mut input).expect("the connection lives");
            assert_eq!(frame[5..], [number as u8; 59]);
            frame[4]
        };
        (0..frames).map(answer).collect()
    };
    println!("connected");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "both" => {
                // The second is sent after its answer.
                let mut seen = BTreeSet::new();
                let end = Instant::now() + LIMIT;
                while seen.len() < 2 && Instant::now() < end {
                    seen.extend(members(10));
                }
                println!("step {seen:?}");
            }
            "some" => println!("step {:?}", members(100)),
            other => panic!("{other}"),
        }
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(receive_frame(&mut input), None);
}

#[test]
fn a_connection_is_split_over_two_members_and_merged() {
    const TEST: &str = "a_connection_is_split_over_two_members_and_merged";
    let Some(star) = star(TEST, "m") else {
        return;
    };
    let _members = members(&star);
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    assert!(
        switch.first.contains("round-robin for 2 members"),
        "{}",
        switch.first
    );
    for _ in 0..2 {
        let mut peer = end(&star, 0, "end_peer");
        let output = peer.output().unwrap();
        let said = text(&output.stdout);
        assert!(
            output.status.success() && said.contains("all came back"),
            "{said}"
        );
    }
    let totals = switch.end();
    assert!(totals.contains("connections 2\n"), "{totals}");
    assert!(
        totals.contains(&format!("frames_in {}\n", 2 * FRAMES)),
        "{totals}"
    );
    for member in MEMBERS {
        let half = format!("{member}: connections 2, failures 0, frames_in {FRAMES}");
        assert!(totals.contains(&half), "{totals}");
    }
    let left = Bed::output(&star.switch, "ip", &["address", "show", "dev", "tw-in0"]);
    assert!(!text(&left.unwrap()).contains("10.99.0.99"));
}

/// Segments of up to 8,900 bytes lie in three frames of memory.
#[test]
fn a_connection_of_long_frames_is_split_and_merged_in_place() {
    const TEST: &str = "a_connection_of_long_frames_is_split_and_merged_in_place";
    let Some(star) = star(TEST, "lf") else {
        return;
    };
    for (number, end) in star.ends.iter().enumerate() {
        let switch = &star.switch;
        shell(&format!(
            "ip -n {switch} link set tw-in{number} mtu 9000; ip -n {end} link set out mtu 9000"
        ))
        .unwrap();
    }
    let _members = members(&star);
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = end(&star, 0, "end_peer");
    let output = peer.env("TW_LONGEST", "8900").output().unwrap();
    let said = text(&output.stdout);
    assert!(
        output.status.success() && said.contains("all came back"),
        "{said}"
    );
    let totals = switch.end();
    assert!(
        totals.contains(&format!("frames_in {FRAMES}\n")),
        "{totals}"
    );
    let sent = |name: &str| -> u64 {
        let behind = totals.split_once(name).map(|(_, behind)| behind);
        let digits = behind.and_then(|it| it.split(|it: char| !it.is_ascii_digit()).next());
        let number = digits.and_then(|it| it.parse().ok());
        number.unwrap_or_else(|| panic!("{name}: {totals}"))
    };
    // Those of more than 512 bytes, there and back.
    let long = u64::from(FRAMES) * 2 * 9 / 10;
    assert!(sent("sent in place ") >= long, "{totals}");
    assert_eq!(sent("refused "), 0, "{totals}");
}

#[test]
fn paths_that_lose_and_reorder_lose_nothing() {
    const TEST: &str = "paths_that_lose_and_reorder_lose_nothing";
    let Some(mut star) = star(TEST, "l") else {
        return;
    };
    star.impair(&[
        "--delay",
        "1ms",
        "--loss",
        "1%",
        "--reorder",
        "2%",
        "--reorder-by",
        "1ms",
        "--duplicate",
        "1%",
        "--seed",
        "7",
    ]);
    let _members = members(&star);
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = end(&star, 0, "end_peer");
    let output = peer.env("TW_FRAMES", "1000").output().unwrap();
    let said = text(&output.stdout);
    let totals = switch.end();
    assert!(
        output.status.success() && said.contains("all came back"),
        "{said}{totals}"
    );
    assert!(totals.contains("frames_in 1000\n"), "{totals}");
}

#[test]
fn members_go_and_come_while_a_connection_lives() {
    const TEST: &str = "members_go_and_come_while_a_connection_lives";
    let Some(star) = star(TEST, "r") else {
        return;
    };
    let _members = members(&star);
    let path = file(&star, 2, "");
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    assert_eq!(peer.step("some"), "step {1, 2}");
    let shown = text(&tidewall(&["stat", &switch.id()]).stdout);
    // The columns are as wide as what is in them.
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "switch 10.99.0.99:6000: 1 connections, fullest ring in ",
        " frames-in 100 ",
        " sent-in-place ",
    ] {
        assert!(words.contains(part), "{part} is not in {shown}");
    }
    let json = text(&tidewall(&["stat", "--json", &switch.id()]).stdout);
    assert!(json.contains("\"frames-out\":50"), "{json}");
    file(&star, 1, "");
    signal("-HUP", &switch.process);
    switch.line_with("1 members");
    assert_eq!(peer.step("some"), "step {1}");
    file(&star, 2, "");
    signal("-HUP", &switch.process);
    switch.line_with("2 members");
    assert_eq!(peer.step("both"), "step {1, 2}");
    // A link that goes down for a while takes only time.
    let link = format!("ip -n {} link set tw-in2", star.switch);
    shell(&format!("{link} down; sleep 0.2; {link} up")).unwrap();
    assert_eq!(peer.step("some"), "step {1, 2}");
    // A mistake changes nothing.
    fs::write(&path, "address = 5").unwrap();
    signal("-HUP", &switch.process);
    assert_eq!(peer.step("some"), "step {1, 2}");
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
}

#[test]
fn trace_follows_frames_through_the_switch() {
    const TEST: &str = "trace_follows_frames_through_the_switch";
    let Some(star) = star(TEST, "t") else {
        return;
    };
    let _members = members(&star);
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    // The connection is admitted with its first frames.
    peer.step("some");
    let capture = star.place.name("trace.pcapng");
    let arguments = ["trace", &switch.id(), "-n", "8", "--write", &capture];
    let mut trace = program(&arguments);
    let mut trace = Running(trace.stdout(Stdio::piped()).spawn().unwrap());
    while trace.0.try_wait().unwrap().is_none() {
        peer.step("some");
    }
    let mut said = String::new();
    let mut output = trace.0.stdout.take().unwrap();
    output.read_to_string(&mut said).unwrap();
    for part in [
        "received   queue 0, channel of admitted connections\n",
        "flow       peer 10.99.0.2:",
        ", Open, ring in ",
        "counted    frames-in 1\n",
        "frames     bytes 0..68 of it, 68 to 10.99.1.2:6000\n",
        "frames     bytes 0..68 of it, 68 to 10.99.2.2:6000\n",
        "translated 10.99.1.1:",
        "sent       sent-in-place, tw-in1\n",
        "flow       member 10.99.1.2:6000 of peer 10.99.0.2:",
        "frames     bytes 0..68 of it, 68 to 10.99.0.2:",
        "sent       sent-in-place, tw-in0\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    if tidewall_skip::has_programs(TEST, &["tshark"]) {
        let fields = "-n -T fields -e frame.comment -r".split(' ');
        let arguments: Vec<&str> = fields.chain([&*capture]).collect();
        let comments = text(&Bed::output(&star.switch, "tshark", &arguments).unwrap());
        let part = "; sent: sent-in-place, tw-in1";
        assert!(comments.contains(part), "{comments}");
    }
    peer.end();
    switch.end();
}

/// Every end has its own connection, in which sequence numbers are consecutive and
/// checksums are right, whatever the others send.
#[test]
fn translated_connections_are_sound_to_tshark() {
    const TEST: &str = "translated_connections_are_sound_to_tshark";
    if !tidewall_skip::has_programs(TEST, &["tshark", "dumpcap"]) {
        return;
    }
    let Some(star) = star(TEST, "j") else {
        return;
    };
    // Checksums are in the frames, and not left to a device.
    for number in 0..3 {
        shell(&format!(
            "ip netns exec {} ethtool -K tw-in{number} tx off",
            star.switch
        ))
        .unwrap();
    }
    let captures: Vec<_> = (0..3)
        .map(|number| {
            let path = star.place.name(&format!("end{number}.pcapng"));
            // It ends by itself: when a capture is stopped, its buffers are lost.
            let options = "-q -i out -f tcp -c 300 -a duration:60 -w".split(' ');
            let arguments: Vec<&str> = options.chain([&*path]).collect();
            let mut dumpcap = Bed::other(&star.ends[number], "dumpcap", &arguments);
            let mut dumpcap = Running(dumpcap.stderr(Stdio::piped()).spawn().unwrap());
            let lines = BufReader::new(dumpcap.0.stderr.take().unwrap()).lines();
            let mut lines = lines.map(Result::unwrap);
            assert!(lines.any(|line| line.starts_with("File: ")), "no capture");
            (dumpcap, lines, path)
        })
        .collect();
    let _members = members(&star);
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    for _ in 0..3 {
        assert_eq!(peer.step("some"), "step {1, 2}");
    }
    peer.end();
    switch.end();
    for (number, (mut dumpcap, lines, path)) in captures.into_iter().enumerate() {
        let said: Vec<String> = lines.collect();
        dumpcap.0.wait().unwrap();
        let judged = |filter: &str| {
            let options = "-n -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -Y";
            let arguments: Vec<&str> = options.split(' ').chain([filter, "-r", &path]).collect();
            text(&Bed::output(&star.ends[number], "tshark", &arguments).unwrap())
        };
        let from_switch = match number {
            0 => "ip.src == 10.99.0.99".to_owned(),
            _ => format!("ip.src == 10.99.{number}.1"),
        };
        let all = judged(&from_switch);
        assert!(all.lines().count() >= 100, "{said:?}: {all}");
        // Retransmissions do not count, since a busy machine may be the cause. A kernel
        // that finishes a checksum writes 0xffff for 0, for TCP as well (CSUM_MANGLED_0
        // in skb_checksum_help); receivers accept both.
        let wrong = judged(&format!(
            "{from_switch} && ((tcp.checksum.status != Good && !tcp.checksum.ffff) || \
             ip.checksum.status != Good || _ws.malformed || tcp.analysis.lost_segment || \
             tcp.analysis.ack_lost_segment || tcp.analysis.window_full || tcp.flags.reset == 1)"
        ));
        assert!(wrong.is_empty(), "at end {number}: {wrong}");
    }
}

#[test]
fn a_member_that_dies_costs_no_connection_where_frames_may_go_elsewhere() {
    const TEST: &str = "a_member_that_dies_costs_no_connection_where_frames_may_go_elsewhere";
    let Some(star) = star(TEST, "k") else {
        return;
    };
    let mut members = members(&star);
    let health = "lost = 'resend'\nhealth = { interval = '100ms', failures = 1 }";
    let path = file(&star, 2, health);
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    assert_eq!(peer.step("some"), "step {1, 2}");
    drop(members.pop());
    switch.line_with("10.99.2.2:6000 does not answer");
    assert_eq!(peer.step("some"), "step {1}");
    members.push(member(&star, 2));
    switch.line_with("10.99.2.2:6000 answers");
    assert_eq!(peer.step("both"), "step {1, 2}");
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
}

/// A member is added on the peers' interface, which had none; it dies, is assigned
/// another address of the switch meanwhile, and returns.
#[test]
fn a_new_file_adds_what_can_be_added_and_ends_nothing() {
    const TEST: &str = "a_new_file_adds_what_can_be_added_and_ends_nothing";
    let Some(star) = star(TEST, "a") else {
        return;
    };
    let _first = member(&star, 1);
    let second = member_in(&star.ends[0], 2);
    let file = |second: &str| {
        let health = "lost = 'resend'\nhealth = { interval = '100ms', failures = 1 }";
        let path = file(&star, 1, health);
        let text = fs::read_to_string(&path).unwrap() + second;
        fs::write(&path, text).unwrap();
        path
    };
    let path = file("");
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    assert_eq!(peer.step("some"), "step {1}");
    let table = "[[member]]\naddress = '10.99.0.2:6000'\ninterface = 'tw-in0'\n";
    file(table);
    signal("-HUP", &switch.process);
    switch.line_with("2 members");
    assert_eq!(peer.step("both"), "step {1, 2}");
    drop(second);
    switch.line_with("10.99.0.2:6000 does not answer");
    let switch_has = format!("ip -n {} addr add 10.99.0.7/24 dev tw-in0", star.switch);
    shell(&switch_has).unwrap();
    file(&format!("{table}local = '10.99.0.7'\n"));
    signal("-HUP", &switch.process);
    switch.line_with("2 members");
    assert_eq!(peer.step("some"), "step {1}");
    let _second = member_in(&star.ends[0], 2);
    switch.line_with("10.99.0.2:6000 answers");
    assert_eq!(peer.step("both"), "step {1, 2}");
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
}

#[test]
fn a_killed_switch_leaves_no_address_and_no_port_behind() {
    const TEST: &str = "a_killed_switch_leaves_no_address_and_no_port_behind";
    let Some(star) = star(TEST, "x") else {
        return;
    };
    let path = file(&star, 0, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    assert!(switch.first.contains("0 members"), "{}", switch.first);
    let has_address = || {
        let shown = Bed::output(&star.switch, "ip", &["address", "show", "dev", "tw-in0"]);
        text(&shown.unwrap()).contains("10.99.0.99/32")
    };
    assert!(has_address());
    signal("-KILL", &switch.process);
    let end = Instant::now() + LIMIT;
    while has_address() {
        assert!(Instant::now() < end, "the address is still there");
    }
    // The server there is reached, at the port that was the virtual address's.
    let _server = member_in(&star.switch, 7);
    let mut peer = Peer::connected_to(&star, "10.99.0.1:6000");
    assert_eq!(peer.step("some"), "step {7}");
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    const TEST: &str = "a_dry_run_says_what_would_be_done";
    let Some(star) = star(TEST, "d") else {
        return;
    };
    let path = file(&star, 2, "");
    let output = Bed::output(
        &star.switch,
        common::PROGRAM,
        &["switch", &path, "--dry-run"],
    );
    let said = text(&output.unwrap());
    for part in [
        "10.99.0.99 would become an address of tw-in0",
        "1460 bytes",
        "member 10.99.2.2:6000 by tw-in2, from 10.99.2.1",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let directory = std::env::temp_dir().join(format!("tw-switch-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("wrong.toml");
    let name = path.to_str().unwrap();
    fs::write(
        &path,
        "address = '10.0.0.9:80'\ninterface = 'lo'\nmodule = 'no such'\n",
    )
    .unwrap();
    let error = fails(&["switch", name, "--dry-run"], 2);
    assert!(
        error.contains("wrong.toml:3: ") && error.contains("no such"),
        "{error}"
    );
    let error = fails(&["switch", "/none/such.toml"], 2);
    assert!(error.contains("/none/such.toml"), "{error}");
    fs::write(&path, "address = '10.0.0.9:80'\ninterface = 'tw-none'\n").unwrap();
    let error = fails(&["switch", name], 2);
    assert!(error.contains("no interface tw-none"), "{error}");
    fs::remove_dir_all(&directory).unwrap();
}
