//! `tidewall atm switch` between namespaces: ends that send and receive PDUs on both sides.
//! Needs root; skipped without.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::star::{Star, shell};
use common::{Place, Service, fails, program, signal, text, tidewall};
use serde_json::Value;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);
/// Time until a link notices that its other end is gone, and its calls end.
const LONG: Duration = Duration::from_secs(60);

const FRAME: &str = "[[port]]
interface = 'tw-in0'
next-hop = '10.99.0.2'
[[port]]
interface = 'tw-in1'
next-hop = '10.99.1.2'
";

fn circuit(ends: [&str; 2]) -> String {
    format!("[[circuit]]\nends = {ends:?}\n")
}

/// Returns a command with an end's circuit on its interface `out`, and further arguments.
fn atm(namespace: &str, what: &str, hop: (&str, &str), circuit: &str, more: &[&str]) -> Command {
    let (interface, next_hop) = hop;
    let end = [
        "atm",
        what,
        "--interface",
        interface,
        "--next-hop",
        next_hop,
    ];
    Bed::command(
        namespace,
        &[&end[..], &["--circuit", circuit], more].concat(),
    )
}

fn switch(namespace: &str, file: &str) -> Service {
    let service = Service::start(Bed::command(namespace, &["atm", "switch", file]));
    assert!(service.first.contains("Ctrl-C ends"), "{}", service.first);
    service
}

/// Returns the lines that a command prints.
fn said(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Returns a counter of the switch, from `tidewall stat`.
fn counter(process: &str, name: &str) -> u64 {
    let output = tidewall(&["stat", process, "--json"]);
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stacks = look["stacks"].as_array().unwrap().iter();
    let of = |stack: &Value| stack["now"]["cell_switch"]["counters"][name].as_u64();
    stacks.filter_map(of).sum()
}

#[test]
fn pdus_go_through_the_switch_with_another_label() {
    let test = "pdus_go_through_the_switch_with_another_label";
    let Some(star) = Star::or_skip(test, "cs-f", 2) else {
        return;
    };
    let file = star.place.name("cells.toml");
    let two =
        circuit(["tw-in0/0.100", "tw-in1/3.200"]) + &circuit(["tw-in0/0.101", "tw-in1/3.201"]);
    fs::write(&file, format!("{FRAME}{two}")).unwrap();
    let mut service = switch(&star.switch, &file);
    let (near, far) = (("out", "10.99.0.1"), ("out", "10.99.1.1"));
    let receive = Service::start(atm(&star.ends[1], "receive", far, "3.200", &[]));
    said(atm(
        &star.ends[0],
        "send",
        near,
        "0.100",
        &["--text", "hello"],
    ));
    // In seven frames.
    let long = ["--size", "9180", "--count", "10"];
    said(atm(&star.ends[0], "send", near, "0.100", &long));
    // Loopback cells go through, and back.
    let ping = ["--count", "2", "--interval", "0.1s", "--timeout", "10s"];
    let pinged = said(atm(&star.ends[0], "ping", near, "0.100", &ping));
    assert!(pinged.ends_with("2 cells sent, 2 answered\n"), "{pinged}");
    // The kernel gets circuits that lead nowhere, which the driver program counts.
    said(atm(&star.ends[0], "send", near, "0.102", &["--count", "3"]));
    let unknown = tidewall(&["stat", &service.id(), "--json"]);
    assert!(text(&unknown.stdout).contains("no-circuit"), "{unknown:?}");
    // Another circuit is added, and an unused one is removed.
    let other =
        circuit(["tw-in0/0.100", "tw-in1/3.200"]) + &circuit(["tw-in0/0.102", "tw-in1/3.101"]);
    fs::write(&file, format!("{FRAME}{other}")).unwrap();
    signal("-HUP", &service.process);
    service.line_with("4 directions of circuits");
    let second = receive.end();
    let receive = Service::start(atm(&star.ends[1], "receive", far, "3.101", &[]));
    said(atm(
        &star.ends[0],
        "send",
        near,
        "0.102",
        &["--text", "late"],
    ));
    let late = receive.end();
    assert_eq!(late, "4 bytes: 6c617465\n");
    let mut lines = second.lines();
    assert_eq!(lines.next(), Some("5 bytes: 68656c6c6f"));
    assert!(
        lines.all(|line| line.starts_with("9180 bytes: ")),
        "{second}"
    );
    assert_eq!(second.lines().count(), 11, "{second}");
    let totals = service.end();
    assert!(totals.contains("cells-in-place "), "{totals}");
    assert!(totals.contains("cells-not-user 4\n"), "{totals}");
    assert!(!totals.contains("dropped"), "{totals}");
    // Everything is restored: the program is gone from the interface.
    let links = Bed::output(&star.switch, "ip", &["-d", "link", "show", "tw-in0"]).unwrap();
    assert!(!text(&links).contains("xdp"), "{}", text(&links));
}

/// A host's number; the last byte is the program's.
fn nsap(host: usize, selector: u8) -> String {
    format!("47000500{host:02x}{:028x}{selector:02x}", 0)
}

/// Returns the file of a switch whose ports signal, and lead by [`nsap`].
fn signalling(ports: usize) -> String {
    let port = |port| {
        format!(
            "[[port]]
interface = 'tw-in{port}'
next-hop = '10.99.{port}.2'
signalling = 'network'
numbers = ['47.0005.00.{port:02x}']
"
        )
    };
    (0..ports).map(port).collect()
}

/// Returns a host's command with calls: its index in the star, its selector, more.
fn call(star: &Star, what: &str, host: usize, more: &[&str]) -> Command {
    let (hop, number) = (format!("10.99.{host}.1"), nsap(host, 0));
    let end = [
        "atm",
        what,
        "--interface",
        "out",
        "--next-hop",
        &hop,
        "--number",
        &number,
    ];
    Bed::command(&star.ends[host], &[&end[..], more].concat())
}

/// Returns the output of an operator's command.
fn operator(what: &[&str]) -> String {
    said(program(&[&["atm"], what].concat()))
}

/// Waits until there is a result.
fn wait_for<V>(what: &str, mut look: impl FnMut() -> Option<V>) -> V {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < LONG, "no {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Calls through the switch: payloads, the caller's number, refusals, and a permanent circuit
/// beside them.
#[test]
fn calls_are_led_by_their_numbers() {
    let test = "calls_are_led_by_their_numbers";
    let Some(star) = Star::or_skip(test, "cs-n", 3) else {
        return;
    };
    let file = star.place.name("cells.toml");
    let permanent = circuit(["tw-in0/0.40", "tw-in1/0.40"]);
    fs::write(&file, signalling(3) + &permanent).unwrap();
    let service = switch(&star.switch, &file);
    assert!(
        service.first.contains("calls at 3 ports"),
        "{}",
        service.first
    );
    let mut receive = Service::start(call(&star, "receive", 1, &[]));
    let to = nsap(1, 0);
    let to = ["--to", &to];
    let send = |host, more: &[&str]| said(call(&star, "send", host, &[&to[..], more].concat()));
    send(0, &["--text", "hello"]);
    receive.line_with(&format!("call from {} on circuit 0.", nsap(0, 0)));
    receive.line_with("5 bytes: 68656c6c6f");
    // In seven frames, from two hosts at once.
    let mut other = call(&star, "send", 2, &[&to[..], &["--size", "9180"]].concat());
    let mut other = other.stdout(Stdio::null()).spawn().unwrap();
    send(0, &["--size", "9180", "--count", "5"]);
    assert!(other.wait().unwrap().success());
    let pinged = said(call(
        &star,
        "ping",
        2,
        &[
            &to[..],
            &["--count", "2", "--interval", "0.1s", "--timeout", "10s"],
        ]
        .concat(),
    ));
    assert!(pinged.ends_with("2 cells sent, 2 answered\n"), "{pinged}");
    // The first number does not exist, the second leads nowhere, and the third has no
    // listener.
    for (number, why) in [
        (nsap(9, 0), "causes 3, 45, 47"),
        (nsap(1, 9), "nobody there takes the call"),
    ] {
        let output = call(&star, "send", 0, &["--to", &number]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
    // The operator's view of it, and additions.
    let slow = ["--count", "100", "--interval", "0.2s"];
    let mut held = call(&star, "send", 0, &[&to[..], &slow].concat());
    let mut held = held.stdout(Stdio::null()).spawn().unwrap();
    let process = service.id();
    let look = || -> Value {
        let shown = operator(&["show", &process, "--json"]);
        serde_json::from_str(&shown).unwrap()
    };
    let shown = wait_for("a call of the switch", || {
        let shown = look();
        (shown["switch"]["calls"][0]["ends"][0]["state"] == "N10").then_some(shown)
    });
    let call = &shown["switch"]["calls"][0];
    assert_eq!(call["calling"], nsap(0, 0), "{shown}");
    assert_eq!(call["called"], nsap(1, 0), "{shown}");
    assert_eq!(shown["switch"]["ports"][0]["link_up"], true, "{shown}");
    let said = operator(&["show", &process]);
    let call_line = said.lines().find(|line| line.contains(&nsap(1, 0)));
    assert!(call_line.unwrap().contains("N10"), "{said}");
    assert_eq!(
        operator(&["pvc", "add", &process, "tw-in0/0.50", "tw-in2/0.50"]),
        "2 directions from tw-in0/0.50 to tw-in2/0.50 added\n"
    );
    let taken = call["ends"][0]["circuit"].as_str().unwrap();
    for (end, why) in [
        ("tw-in0/0.50", "0.50 of that port leads somewhere"),
        (&format!("tw-in0/{taken}"), "is a call's"),
        ("tw-in9/0.50", "tw-in9 is no port"),
    ] {
        let error = fails(&["atm", "pvc", "add", &process, end, "tw-in2/0.51"], 1);
        assert!(error.contains(why), "{error}");
    }
    let listed = operator(&["pvc", "list", &process]);
    assert_eq!(listed.matches("permanent").count(), 4, "{listed}");
    let removed = operator(&["pvc", "remove", &process, "tw-in2/0.50"]);
    assert_eq!(removed, "2 directions removed\n");
    // A killed end is silent; the switch notices that, and nothing is left.
    held.kill().unwrap();
    held.wait().unwrap();
    wait_for("the end of the call", || {
        let shown = look();
        let none = shown["switch"]["calls"].as_array().unwrap().is_empty();
        let table = shown["switch"]["table"].as_array().unwrap().len();
        (none && table == 2).then_some(())
    });
    let heard = receive.end();
    let long = heard
        .lines()
        .filter(|line| line.starts_with("9180 bytes: "));
    assert_eq!(long.count(), 6, "{heard}");
    let totals = service.end();
    for part in ["calls 7\n", "calls-connected 5\n", "calls-no-route 1\n"] {
        assert!(totals.contains(part), "{part:?} is not in {totals}");
    }
    for cause in ["dropped-signalling", "dropped-malformed", "calls-no-res"] {
        assert!(!totals.contains(cause), "{totals}");
    }
}

/// Follows frames of a process into a file.
fn follow(process: &str, file: &str) -> Child {
    let arguments = ["trace", process, "-n", "6", "--for", "4s", "--write", file];
    let mut command = program(&arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Returns tshark's decoding of a capture.
fn tshark(file: &str, decode: &str) -> String {
    let mut command = Command::new("tshark");
    command.args(["-n", "-V", "-d", decode, "-r", file]);
    said(command)
}

/// A link between two ends: 10.99.9.1 on `beyond`, 10.99.9.2 on `tw-far`.
fn join(second: &str, receiver: &str) {
    shell(&format!(
        "ip -n {second} link add beyond type veth peer name tw-far netns {receiver}
         ip -n {second} addr add 10.99.9.1/24 dev beyond; ip -n {second} link set beyond up
         ip -n {receiver} addr add 10.99.9.2/24 dev tw-far; ip -n {receiver} link set tw-far up"
    ))
    .unwrap();
}

/// Over two switches, with cells between them; one is on the user side of the other.
#[test]
fn calls_go_over_two_switches() {
    let test = "calls_go_over_two_switches";
    let Some(star) = Star::or_skip(test, "cs-2", 3) else {
        return;
    };
    join(&star.ends[1], &star.ends[2]);
    let file = |name: &str, text: String| {
        let file = star.place.name(name);
        fs::write(&file, text).unwrap();
        file
    };
    let near = signalling(1)
        + "[[port]]
interface = 'tw-in1'
next-hop = '10.99.1.2'
mode = 'cell'
signalling = 'user'
numbers = ['']
";
    let far = "[[port]]
interface = 'out'
next-hop = '10.99.1.1'
mode = 'cell'
signalling = 'network'
numbers = ['47.0005.00.00']
[[port]]
interface = 'beyond'
next-hop = '10.99.9.2'
signalling = 'network'
numbers = ['47.0005.00.09']
";
    let first = switch(&star.switch, &file("near.toml", near));
    let other = switch(&star.ends[1], &file("far.toml", far.to_owned()));
    let number = nsap(9, 1);
    let there = ["--interface", "tw-far", "--next-hop", "10.99.9.1"];
    let there = [&["atm", "receive", "--number", &number][..], &there].concat();
    let receive = Service::start(Bed::command(&star.ends[2], &there));
    for size in ["40", "9180"] {
        let more = ["--to", &number, "--size", size, "--count", "3"];
        said(call(&star, "send", 0, &more));
    }
    // A number that the second switch leads nowhere.
    let output = call(&star, "send", 0, &["--to", &nsap(8, 0)]).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
    let heard = receive.end();
    for size in [40, 9180] {
        let came = heard
            .lines()
            .filter(|it| it.starts_with(&format!("{size} bytes")));
        assert_eq!(came.count(), 3, "{heard}");
    }
    for totals in [first.end(), other.end()] {
        assert!(totals.contains("calls-connected 2\n"), "{totals}");
        assert!(!totals.contains("dropped-signalling"), "{totals}");
    }
}

/// From frames to cells, through a second switch, and to frames again.
#[test]
fn cells_of_circuits_share_frames_between_two_switches() {
    let test = "cells_of_circuits_share_frames_between_two_switches";
    let Some(star) = Star::or_skip(test, "cs-c", 3) else {
        return;
    };
    let [sender, second, receiver] = &star.ends[..] else {
        panic!("three ends");
    };
    join(second, receiver);
    let file = |name: &str, text: String| {
        let file = star.place.name(name);
        fs::write(&file, text).unwrap();
        file
    };
    let near = FRAME.to_owned()
        + "mode = 'cell'\nlabel = 77\n"
        + &circuit(["tw-in0/0.100", "tw-in1/300.7"]);
    let far = "[[port]]
interface = 'out'
next-hop = '10.99.1.1'
mode = 'cell'
label = 77
[[port]]
interface = 'beyond'
next-hop = '10.99.9.2'
"
    .to_owned()
        + &circuit(["out/300.7", "beyond/1.200"]);
    let first = switch(&star.switch, &file("near.toml", near));
    let other = switch(second, &file("far.toml", far));
    let there = ("tw-far", "10.99.9.1");
    let receive = Service::start(atm(receiver, "receive", there, "1.200", &[]));
    let here = ("out", "10.99.0.1");
    let captures = ["first", "other", "end"].map(|name| star.place.name(name));
    let processes = [first.id(), other.id(), receive.id()];
    let following: Vec<_> = processes
        .iter()
        .zip(&captures)
        .map(|(process, file)| follow(process, file))
        .collect();
    // As long as they are observed.
    let slow = ["--size", "100", "--count", "60", "--interval", "0.1s"];
    said(atm(sender, "send", here, "0.100", &slow));
    for mut child in following {
        assert!(child.wait().unwrap().success());
    }
    let long = ["--size", "9180", "--count", "10"];
    said(atm(sender, "send", here, "0.100", &long));
    let ping = ["--count", "2", "--interval", "0.1s", "--timeout", "10s"];
    let pinged = said(atm(sender, "ping", here, "0.100", &ping));
    assert!(pinged.ends_with("2 cells sent, 2 answered\n"), "{pinged}");
    let totals = receive.end();
    let (short, rest): (Vec<_>, Vec<_>) = totals
        .lines()
        .partition(|line| line.starts_with("100 bytes: "));
    assert_eq!((short.len(), rest.len()), (60, 10), "{totals}");
    assert!(
        rest.iter().all(|line| line.starts_with("9180 bytes: ")),
        "{totals}"
    );
    // A circuit of the first switch only: its cells lead nowhere at the second.
    let more = FRAME.to_owned()
        + "mode = 'cell'\nlabel = 77\n"
        + &circuit(["tw-in0/0.100", "tw-in1/300.7"])
        + &circuit(["tw-in0/0.101", "tw-in1/300.8"]);
    let mut first = first;
    fs::write(star.place.name("near.toml"), more).unwrap();
    signal("-HUP", &first.process);
    first.line_with("4 directions of circuits");
    said(atm(sender, "send", here, "0.101", &["--size", "100"]));
    let began = Instant::now();
    while counter(&other.id(), "dropped-no-circuit") != 3 {
        assert!(began.elapsed() < LIMIT, "three cells led nowhere");
        thread::sleep(Duration::from_millis(100));
    }
    let shown = tidewall(&["stat", &other.id()]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("switch of cells: 2 directions"), "{shown}");
    let totals = first.end();
    assert!(totals.contains("sent in place 0"), "{totals}");
    let totals = other.end();
    assert!(totals.contains("dropped-no-circuit 3\n"), "{totals}");
    if !tidewall_skip::has_programs(test, &["tshark"]) {
        return;
    }
    let [frames, cells, end] = &captures;
    for (capture, label) in [(frames, "65636"), (end, "131272")] {
        let read = tshark(
            capture,
            &format!("mpls.label=={label},mplspwatm11_or_aal5pdu"),
        );
        assert!(read.contains("AAL5 len: 100\n"), "{read}");
        assert!(
            !read.contains("Malformed") && !read.contains("(incorrect)"),
            "{read}"
        );
    }
    let read = tshark(cells, "mpls.label==77,mplspwatmn1cw");
    // The three cells of each PDU.
    let cells = read.matches("VPI: 300").count();
    assert!(cells > 0 && cells.is_multiple_of(3), "{cells}: {read}");
    assert!(!read.contains("Malformed"), "{read}");
}

#[test]
fn a_dry_run_says_what_it_would_do_and_errors_where_they_are() {
    let place = Place::new("cells").with(
        "cells.toml",
        "[[port]]
interface = 'lo'
next-hop = '127.0.0.1'
mode = 'cell'
[[circuit]]
ends = ['lo/0.100', 'lo/0.200']
aal5 = false
",
    );
    let file = place.name("cells.toml");
    let output = tidewall(&["atm", "switch", "--dry-run", &file]);
    assert_eq!(
        text(&output.stdout),
        "port lo to 127.0.0.1: cells, all with label 16; 1024 cells a queue\n\
         lo/0.100 to lo/0.200, priority 1, cell by cell\n\
         lo/0.200 to lo/0.100, priority 1, cell by cell\n"
    );
    let changed = fs::read_to_string(&file).unwrap().replace("0.200", "200");
    fs::write(&file, changed).unwrap();
    let error = fails(&["atm", "switch", "--dry-run", &file], 2);
    let expected = format!("{file}:6: lo/200: not a circuit such as 0.100");
    assert!(error.contains(&expected), "{error}");
    let none = Path::new(&file).with_file_name("none.toml");
    let error = fails(&["atm", "switch", none.to_str().unwrap()], 2);
    assert!(error.contains("none.toml: No such file"), "{error}");
}
