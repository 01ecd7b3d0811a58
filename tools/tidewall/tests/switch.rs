//! `tidewall switch` between kernels: a peer and members in namespaces of their own,
//! each with a kernel's TCP and a frame a call. Needs root; skipped without.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::{Running, Service, fails, signal, text, tidewall};
use rustix::net::{SendFlags, send};
use tidewall_wire::acp::{HEADER_LEN, Header, Kind};

/// Frames that the peer sends, where nothing else is said.
const FRAMES: u32 = 3000;
/// How long a peer waits for a frame.
const LIMIT: Duration = Duration::from_secs(20);
const VIRTUAL: &str = "10.99.0.99:6000";
const MEMBERS: [&str; 2] = ["10.99.1.2:6000", "10.99.2.2:6000"];

fn shell(script: &str) -> Result<(), String> {
    let output = Command::new("/bin/sh")
        .args(["-ec", script])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Namespaces of a switch and of three ends, which no host joins or cuts segments for.
struct Star {
    switch: String,
    ends: [String; 3],
    /// What is between each end and the switch, where paths are bad.
    paths: Vec<Path>,
    directory: PathBuf,
}

/// A namespace between an end and the switch, and what forwards there.
struct Path {
    namespace: String,
    _impair: Running,
}

impl Star {
    fn new(test: &str) -> Result<Self, String> {
        let id = format!("{}{test}", std::process::id());
        let directory = std::env::temp_dir().join(format!("tw-switch-{id}"));
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let star = Star {
            switch: format!("tw-sw-{id}-s"),
            ends: ["c", "a", "b"].map(|end| format!("tw-sw-{id}-{end}")),
            paths: Vec::new(),
            directory,
        };
        let switch = &star.switch;
        shell(&format!(
            "ip netns add {switch}; ip -n {switch} link set lo up"
        ))?;
        for (number, end) in star.ends.iter().enumerate() {
            shell(&format!(
                "ip netns add {end}; ip -n {end} link set lo up
                 ip -n {end} link add out type veth peer name tw-in{number} netns {switch}
                 ip -n {switch} addr add 10.99.{number}.1/24 dev tw-in{number}
                 ip -n {switch} link set tw-in{number} up
                 ip -n {end} addr add 10.99.{number}.2/24 dev out; ip -n {end} link set out up
                 ip netns exec {end} ethtool -K out tso off gso off gro off"
            ))?;
        }
        Ok(star)
    }

    /// Puts a bad path between each end and the switch.
    fn impair(&mut self, options: &[&str]) {
        let switch = &self.switch;
        for (number, end) in self.ends.iter().enumerate() {
            let namespace = format!("{end}-m");
            shell(&format!(
                "ip netns add {namespace}; ip -n {end} link del out
                 ip -n {end} link add out type veth peer name left netns {namespace}
                 ip -n {switch} link add tw-in{number} type veth peer name right netns {namespace}
                 ip -n {switch} addr add 10.99.{number}.1/24 dev tw-in{number}
                 ip -n {end} addr add 10.99.{number}.2/24 dev out
                 ip netns exec {end} ethtool -K out tx off tso off gso off gro off
                 ip netns exec {switch} ethtool -K tw-in{number} tx off
                 for link in left right; do ip -n {namespace} link set $link up; done
                 ip -n {switch} link set tw-in{number} up; ip -n {end} link set out up"
            ))
            .unwrap();
            let arguments = [&["impair", "left", "right"], options].concat();
            let impair = Bed::command(&namespace, &arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            self.paths.push(Path {
                namespace,
                _impair: Running(impair.unwrap()),
            });
        }
    }

    fn or_skip(test: &str, name: &str) -> Option<Self> {
        let star = Star::new(name).map_err(|error| tidewall_skip::missing(test, error));
        star.ok()
    }

    /// The configuration, with these changes.
    fn file(&self, members: usize, more: &str) -> String {
        let mut text =
            format!("address = '{VIRTUAL}'\ninterface = 'tw-in0'\nkernel-ends = true\n{more}\n");
        for (number, member) in MEMBERS.iter().enumerate().take(members) {
            let interface = number + 1;
            text += &format!("[[member]]\naddress = '{member}'\ninterface = 'tw-in{interface}'\n");
        }
        let path = self.directory.join("switch.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// This program again, in an end's namespace, at a test that is one.
    fn end(&self, end: usize, name: &str) -> Command {
        let program = std::env::current_exe().unwrap();
        let program = program.to_str().unwrap();
        let arguments = ["--exact", name, "--ignored", "--nocapture", "--quiet"];
        let mut command = Bed::other(&self.ends[end], program, &arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// A member that serves; it has said that it listens.
    fn member(&self, end: usize) -> Service {
        let mut command = self.end(end, "end_member");
        command.env("TW_MEMBER", end.to_string());
        let mut service = Service::start(command);
        service.line_with("listens");
        service
    }

    fn members(&self) -> Vec<Service> {
        (1..3).map(|end| self.member(end)).collect()
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        let paths = self.paths.iter().map(|path| &path.namespace);
        for namespace in self.ends.iter().chain([&self.switch]).chain(paths) {
            let _ = shell(&format!("ip netns del {namespace} 2>/dev/null || true"));
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A frame in one call, so that it is whole in its segment.
fn send_frame(stream: &TcpStream, payload: &[u8]) {
    let mut frame = Header::data(payload.len()).unwrap().bytes().to_vec();
    frame.extend(payload);
    let mut rest = &frame[..];
    while !rest.is_empty() {
        let sent = send(stream, rest, SendFlags::EOR | SendFlags::NOSIGNAL).unwrap();
        rest = &rest[sent..];
    }
}

/// The next frame of data; `None` at the end of the stream.
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

/// Lengths from a few bytes to what fills a segment.
fn length(number: u32) -> usize {
    8 + number as usize * 37 % 1448
}

#[test]
#[ignore = "a member of the others, in its namespace"]
fn end_member() {
    let tag: u8 = std::env::var("TW_MEMBER").unwrap().parse().unwrap();
    let listener = TcpListener::bind(("0.0.0.0", 6000)).unwrap();
    println!("listens");
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut input = BufReader::new(stream.try_clone().unwrap());
        while let Some(mut frame) = receive_frame(&mut input) {
            frame[4] = tag;
            send_frame(&stream, &frame);
        }
    }
}

#[test]
#[ignore = "the peer of the others, in its namespace"]
fn end_peer() {
    let frames = std::env::var("TW_FRAMES").map_or(FRAMES, |frames| frames.parse().unwrap());
    let stream = TcpStream::connect(VIRTUAL).unwrap();
    stream.set_nodelay(true).unwrap();
    // Whoever waits longer waits for ever.
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
        // Of one member they come in order.
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
    let stream = TcpStream::connect(VIRTUAL).unwrap();
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
                // The second comes when it has answered.
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
}

#[test]
fn a_connection_is_split_over_two_members_and_merged() {
    const TEST: &str = "a_connection_is_split_over_two_members_and_merged";
    let Some(star) = Star::or_skip(TEST, "m") else {
        return;
    };
    let _members = star.members();
    let file = star.file(2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &file]));
    assert!(
        switch.first.contains("round-robin for 2 members"),
        "{}",
        switch.first
    );
    for _ in 0..2 {
        let mut peer = star.end(0, "end_peer");
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

#[test]
fn paths_that_lose_and_reorder_lose_nothing() {
    const TEST: &str = "paths_that_lose_and_reorder_lose_nothing";
    let Some(mut star) = Star::or_skip(TEST, "l") else {
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
    let _members = star.members();
    let file = star.file(2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &file]));
    let mut peer = star.end(0, "end_peer");
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
    let Some(star) = Star::or_skip(TEST, "r") else {
        return;
    };
    let _members = star.members();
    let file = star.file(2, "");
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &file]));
    let mut peer = Service::start(star.end(0, "end_peer_in_steps"));
    peer.line_with("connected");
    let mut lines = peer.process.0.stdin.take().unwrap();
    let mut step = |what: &str, peer: &mut Service| {
        writeln!(lines, "{what}").unwrap();
        peer.first.clear();
        peer.line_with("step");
        peer.first.trim_end().to_owned()
    };
    assert_eq!(step("some", &mut peer), "step {1, 2}");
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
    star.file(1, "");
    signal("-HUP", &switch.process);
    switch.line_with("1 members");
    assert_eq!(step("some", &mut peer), "step {1}");
    star.file(2, "");
    signal("-HUP", &switch.process);
    switch.line_with("2 members");
    assert_eq!(step("both", &mut peer), "step {1, 2}");
    // A link that goes down for a while takes only time.
    let link = format!("ip -n {} link set tw-in2", star.switch);
    shell(&format!("{link} down; sleep 0.2; {link} up")).unwrap();
    assert_eq!(step("some", &mut peer), "step {1, 2}");
    // What is wrong changes nothing.
    fs::write(&file, "address = 5").unwrap();
    signal("-HUP", &switch.process);
    assert_eq!(step("some", &mut peer), "step {1, 2}");
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
}

#[test]
fn a_member_that_dies_costs_no_connection_where_frames_may_go_elsewhere() {
    const TEST: &str = "a_member_that_dies_costs_no_connection_where_frames_may_go_elsewhere";
    let Some(star) = Star::or_skip(TEST, "k") else {
        return;
    };
    let mut members = star.members();
    let health = "lost = 'resend'\nhealth = { interval = '100ms', failures = 1 }";
    let file = star.file(2, health);
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &file]));
    let mut peer = Service::start(star.end(0, "end_peer_in_steps"));
    peer.line_with("connected");
    let mut lines = peer.process.0.stdin.take().unwrap();
    let mut step = |what: &str, peer: &mut Service| {
        writeln!(lines, "{what}").unwrap();
        peer.first.clear();
        peer.line_with("step");
        peer.first.trim_end().to_owned()
    };
    assert_eq!(step("some", &mut peer), "step {1, 2}");
    drop(members.pop());
    switch.line_with("10.99.2.2:6000 does not answer");
    assert_eq!(step("some", &mut peer), "step {1}");
    members.push(star.member(2));
    switch.line_with("10.99.2.2:6000 answers");
    assert_eq!(step("both", &mut peer), "step {1, 2}");
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
}

#[test]
fn a_killed_switch_leaves_no_address_behind() {
    const TEST: &str = "a_killed_switch_leaves_no_address_behind";
    let Some(star) = Star::or_skip(TEST, "x") else {
        return;
    };
    let file = star.file(0, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &file]));
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
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    const TEST: &str = "a_dry_run_says_what_would_be_done";
    let Some(star) = Star::or_skip(TEST, "d") else {
        return;
    };
    let file = star.file(2, "");
    let output = Bed::output(
        &star.switch,
        common::PROGRAM,
        &["switch", &file, "--dry-run"],
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
