//! `tidewall atm ip` between namespaces: the kernel's ping and TCP over circuits. Needs root;
//! skipped without.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::star::Star;
use common::{Service, content, fails, text, tidewall};

/// Bytes sent over a connection.
const BYTES: usize = 4 << 20;

/// The command in a namespace.
fn served(namespace: &str, interface: &str, next_hop: &str, more: &[&str]) -> Service {
    let end = [
        "atm",
        "ip",
        "--interface",
        interface,
        "--next-hop",
        next_hop,
    ];
    let command = Bed::command(namespace, &[&end[..], more].concat());
    let service = Service::start(command);
    assert!(service.first.starts_with("atm0: "), "{}", service.first);
    service
}

/// This program again, in a namespace, at a test that is one end of a connection.
fn end(namespace: &str, name: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", name, "--ignored", "--nocapture", "--quiet"];
    Bed::other(namespace, program.to_str().unwrap(), &arguments)
}

#[test]
#[ignore = "one end of a connection, run by the others"]
fn end_listener() {
    let listener = TcpListener::bind("10.9.0.2:5001").unwrap();
    println!("listens");
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), BYTES);
    assert!(bytes == content(BYTES));
    stream.write_all(b"whole").unwrap();
}

#[test]
#[ignore = "one end of a connection, run by the others"]
fn end_sender() {
    let mut stream = TcpStream::connect("10.9.0.2:5001").unwrap();
    stream.write_all(&content(BYTES)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "whole");
}

/// Sends a file's worth over TCP from one namespace to the other.
fn transfer(from: &str, to: &str) {
    let mut listener = Service::start(end(to, "end_listener"));
    listener.line_with("listens");
    let mut sender = Bed::other(from, "timeout", &["60"]);
    let program = end(from, "end_sender");
    // Behind `ip netns exec NAMESPACE`.
    sender.args(program.get_args().skip(3));
    let output = sender.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    listener.ended();
}

fn ping(namespace: &str, more: &[&str]) -> String {
    let arguments = [&["-c", "3", "-i", "0.2", "-W", "5"][..], more].concat();
    let output = Bed::output(namespace, "ping", &arguments);
    text(&output.unwrap_or_default())
}

/// Waits until there is no interface of this name.
fn gone(namespace: &str, name: &str) {
    let began = Instant::now();
    let there = || {
        let links = Bed::output(namespace, "ip", &["-o", "link"]).unwrap();
        text(&links).contains(name)
    };
    while there() {
        assert!(began.elapsed() < Duration::from_secs(10), "{name} is left");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Three hosts whose circuits are set up by calls. The first is the ATMARP server. The
/// others register there, find each other's numbers, and call. Idle circuits are
/// released.
#[test]
fn hosts_call_each_other_by_an_atmarp_server() {
    let test = "hosts_call_each_other_by_an_atmarp_server";
    let Some(star) = Star::or_skip(test, "ip-c", 3) else {
        return;
    };
    let number = |host: usize| format!("470005{host:02x}{:032x}", 0);
    let file = star.place.name("cells.toml");
    let ports: String = (0..3)
        .map(|host| {
            format!(
                "[[port]]
interface = 'tw-in{host}'
next-hop = '10.99.{host}.2'
signalling = 'network'
numbers = ['47.0005.{host:02x}']
"
            )
        })
        .collect();
    fs::write(&file, ports).unwrap();
    let switch = Service::start(Bed::command(&star.switch, &["atm", "switch", &file]));
    let start = |host: usize, more: &[&str]| {
        let (own, address) = (number(host), format!("10.9.0.{}/24", host + 1));
        let all = [&["--number", &own, "--address", &address][..], more].concat();
        served(&star.ends[host], "out", &format!("10.99.{host}.1"), &all)
    };
    let server = start(0, &["--server"]);
    let asks = number(0);
    let asks = ["--arp-server", &asks, "--idle", "4s"];
    let (second, third) = (start(1, &asks), start(2, &asks));
    let [_, near, far] = &star.ends[..] else {
        panic!("three ends");
    };
    // The first packets wait for the circuit.
    for (from, to) in [(far, "10.9.0.2"), (near, "10.9.0.1"), (near, "10.9.0.3")] {
        let said = ping(from, &[to]);
        assert!(said.contains("3 received"), "{said}");
    }
    transfer(far, near);
    let mut nobody = Bed::other(near, "ping", &["-c", "1", "-W", "1", "10.9.0.77"]);
    let nobody = text(&nobody.output().unwrap().stdout);
    assert!(nobody.contains(" 0 received"), "{nobody}");
    // One of the three circuits is idle, the one between the clients, and disappears.
    let began = Instant::now();
    loop {
        let shown = tidewall(&["atm", "show", &switch.id(), "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        if shown["switch"]["calls"].as_array().unwrap().len() == 2 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{shown}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = ping(near, &["10.9.0.3"]);
    assert!(said.contains("3 received"), "{said}");
    // A permanent circuit of an interface, by hand.
    let process = second.id();
    for (what, said) in [
        ("add", "circuit 0.20 added\n"),
        ("remove", "circuit 0.20 removed\n"),
    ] {
        let output = tidewall(&["atm", "pvc", what, &process, "0.20"]);
        assert_eq!(text(&output.stdout), said, "{output:?}");
    }
    let error = fails(&["atm", "pvc", "remove", &process, "0.20"], 1);
    assert!(error.contains("no permanent circuit"), "{error}");
    for (service, calls) in [(server, 2), (second, 2), (third, 3)] {
        let totals = service.end();
        for cause in ["arp-conflicts", "malformed", "refused"] {
            assert!(!totals.contains(cause), "{totals}");
        }
        let counted = totals.split("calls ").nth(1).unwrap_or_default();
        let counted: u32 = counted.split(',').next().unwrap().trim().parse().unwrap();
        assert!(counted >= calls, "{totals}");
    }
    switch.end();
}

/// Neighbours find each other by InATMARP, through a switch.
#[test]
fn ping_and_tcp_go_over_circuits_through_a_switch() {
    let test = "ping_and_tcp_go_over_circuits_through_a_switch";
    if let Some(star) = Star::or_skip(test, "ip", 2) {
        through_a_switch(&star, 1500, 1472);
    }
}

/// RFC 2225's packets, each in a frame of the link and in three of the switch's memory.
#[test]
fn packets_of_9180_bytes_go_in_one_frame_through_a_switch() {
    let test = "packets_of_9180_bytes_go_in_one_frame_through_a_switch";
    if let Some(star) = Star::or_skip(test, "ipl", 2) {
        through_a_switch(&star, 9224, 9180);
    }
}

/// Over links of one MTU, whose frames carry packets of another.
fn through_a_switch(star: &Star, link: u32, mtu: u32) {
    for (number, end) in star.ends.iter().enumerate() {
        let switch = &star.switch;
        let script = format!(
            "ip -n {switch} link set tw-in{number} mtu {link}; ip -n {end} link set out mtu {link}"
        );
        common::star::shell(&script).unwrap();
    }
    let file = star.place.name("cells.toml");
    let ports = "[[port]]
interface = 'tw-in0'
next-hop = '10.99.0.2'
[[port]]
interface = 'tw-in1'
next-hop = '10.99.1.2'
[[circuit]]
ends = ['tw-in0/0.100', 'tw-in1/0.200']
";
    fs::write(&file, ports).unwrap();
    let command = Bed::command(&star.switch, &["atm", "switch", &file]);
    let switch = Service::start(command);
    let [near, far] = &star.ends[..] else {
        panic!("two ends");
    };
    let left = ["--address", "10.9.0.1/24", "--circuit", "0.100"];
    let mut left = served(near, "out", "10.99.0.1", &left);
    let right = ["--address", "10.9.0.2/24", "--circuit", "0.200"];
    let right = served(far, "out", "10.99.1.1", &right);
    assert_eq!(
        left.first,
        format!("atm0: 10.9.0.1/24, MTU {mtu}, 1 circuits of out; Ctrl-C ends\n")
    );
    left.line_with("10.9.0.2 on 0.100");
    let said = ping(near, &["10.9.0.2"]);
    assert!(said.contains("3 received"), "{said}");
    let full = (mtu - 28).to_string();
    let said = ping(near, &["-M", "do", "-s", &full, "10.9.0.2"]);
    assert!(said.contains("3 received"), "{said}");
    // In fragments.
    let said = ping(far, &["-s", "12000", "10.9.0.1"]);
    assert!(said.contains("3 received"), "{said}");
    transfer(near, far);
    let totals = left.end();
    assert!(totals.contains("packets sent "), "{totals}");
    // The kernel looks for IPv6 routers, too; nothing else was wrong.
    for cause in ["no-circuit", "malformed", "refused"] {
        assert!(!totals.contains(&format!("dropped-{cause}")), "{totals}");
    }
    gone(near, "atm0");
    // However it ends.
    common::signal("-KILL", &right.process);
    drop(right);
    gone(far, "atm0");
    let totals = switch.end();
    assert!(totals.contains("cells-in-place "), "{totals}");
    assert!(!totals.contains("dropped-no-circuit"), "{totals}");
}

/// PDUs of seven frames, and configured neighbours.
#[test]
fn packets_of_9180_bytes_go_in_several_frames() {
    let test = "packets_of_9180_bytes_go_in_several_frames";
    let Some(bed) = Bed::or_skip(test, "atmip") else {
        return;
    };
    let near = bed.interface.replacen("twcs", "twcc", 1);
    let left = [
        "--address",
        "10.9.0.1/24",
        "--circuit",
        "0.100=10.9.0.2",
        "--mtu",
        "9180",
    ];
    let left = served(&bed.client, &near, "10.99.0.2", &left);
    let right = [
        "--address",
        "10.9.0.2/24",
        "--circuit",
        "0.100=10.9.0.1",
        "--mtu",
        "9180",
    ];
    let right = served(&bed.server, &bed.interface, "10.99.0.1", &right);
    let said = ping(&bed.client, &["-M", "do", "-s", "9152", "10.9.0.2"]);
    assert!(said.contains("3 received"), "{said}");
    transfer(&bed.client, &bed.server);
    // That address does not exist.
    let nobody = Bed::other(&bed.client, "ping", &["-c", "1", "-W", "1", "10.9.0.77"]);
    let mut nobody = nobody;
    assert!(!nobody.output().unwrap().status.success());
    let totals = left.end();
    assert!(totals.contains("dropped-no-circuit 1"), "{totals}");
    right.end();
}

/// A host that answers ARP late still receives the packets, as behind the kernel's own
/// IP.
#[test]
fn packets_wait_until_the_next_hop_answers() {
    let test = "packets_wait_until_the_next_hop_answers";
    let Some(bed) = Bed::or_skip(test, "atmipw") else {
        return;
    };
    // 8: not for any of its addresses.
    let ignore = |what: u8| {
        let setting = format!("net.ipv4.conf.{}.arp_ignore={what}", bed.interface);
        Bed::output(&bed.server, "sysctl", &["-w", &setting]).unwrap();
    };
    ignore(8);
    let near = bed.interface.replacen("twcs", "twcc", 1);
    let left = ["--address", "10.9.0.1/24", "--circuit", "0.100=10.9.0.2"];
    let left = served(&bed.client, &near, "10.99.0.2", &left);
    let right = ["--address", "10.9.0.2/24", "--circuit", "0.100=10.9.0.1"];
    let right = served(&bed.server, &bed.interface, "10.99.0.1", &right);
    let mut said = String::new();
    std::thread::scope(|scope| {
        scope.spawn(|| said = ping(&bed.client, &["10.9.0.2"]));
        std::thread::sleep(Duration::from_millis(700));
        ignore(0);
    });
    assert!(said.contains("3 received"), "{said}");
    let totals = left.end();
    assert!(!totals.contains("dropped-not-sent"), "{totals}");
    right.end();
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |more: &[&str]| {
        let end = ["atm", "ip", "--interface", "lo", "--next-hop", "127.0.0.1"];
        fails(&[&end[..], more].concat(), 2)
    };
    let error = wrong(&["--address", "10.9.0.1", "--circuit", "0.100"]);
    assert!(error.contains("--address"), "{error}");
    let error = wrong(&["--address", "10.9.0.1/24"]);
    assert!(error.contains("--circuit"), "{error}");
    let error = wrong(&["--address", "10.9.0.1/24", "--circuit", "0.100=x"]);
    assert!(error.contains("0.100=x"), "{error}");
}
