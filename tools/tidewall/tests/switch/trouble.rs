//! What is not the switch's fault and must not end its connections.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::common::bed::Bed;
use super::common::star::shell;
use super::common::{Running, Service, text};
use super::{Peer, end, file, member, members, star};

/// Segments that ask for a connection, per second, from addresses that nobody has: where
/// the machine has something else to do, and where it is to be judged.
const FLOOD: [&str; 2] = ["5k", "50k"];
/// How long the rate of an established connection is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// A SYN is repeated after a second.
const REPETITION_MS: u128 = 900;

/// Frames per second that come back to a peer, one after the other.
fn rate(peer: &mut Peer) -> f64 {
    let began = Instant::now();
    let mut frames = 0;
    while began.elapsed() < MEASURED {
        assert_eq!(peer.step("some"), "step {1, 2}");
        frames += 100;
    }
    f64::from(frames) / began.elapsed().as_secs_f64()
}

/// A router leads to every address that the flood claims to come from.
#[test]
fn a_flood_from_strangers_ends_no_connection() {
    const TEST: &str = "a_flood_from_strangers_ends_no_connection";
    let Some(star) = star(TEST, "f") else {
        return;
    };
    let _members = members(&star);
    shell(&format!(
        "ip -n {} route add default via 10.99.0.2",
        star.switch
    ))
    .unwrap();
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut old = Peer::connected(&star);
    let judged = std::env::var_os("TIDEWALL_FIGURES").is_some();
    let per_second = FLOOD[usize::from(judged)];
    let alone = rate(&mut old);
    let flood =
        "blast --interface out --to 10.99.0.99:6000 --syn --spoof 10.128.0.0/9 --for 1h --rate";
    let arguments: Vec<&str> = flood.split(' ').chain([per_second]).collect();
    let mut blast = Bed::command(&star.ends[0], &arguments);
    let blast = Running(blast.stderr(Stdio::null()).spawn().unwrap());
    let beside = rate(&mut old);
    let ratio = beside / alone;
    println!("{alone:.0} frames/s alone, {beside:.0} beside {per_second} SYN/s: {ratio:.2}");
    assert!(ratio >= 0.9 || !judged);
    drop(blast);
    assert_eq!(old.step("some"), "step {1, 2}");
    old.end();
    let totals = switch.end();
    assert!(totals.contains("unasked 0, unreachable 0,"), "{totals}");
}

/// One member's container is stopped and started again: its interface goes with it, and a
/// new one of the same name comes. Connections of the others go on.
#[test]
fn a_member_s_interface_goes_and_comes_and_the_switch_goes_on() {
    const TEST: &str = "a_member_s_interface_goes_and_comes_and_the_switch_goes_on";
    let Some(star) = star(TEST, "g") else {
        return;
    };
    let mut all = members(&star);
    let path = file(&star, 2, "lost = 'resend'");
    let mut switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let mut peer = Peer::connected(&star);
    assert_eq!(peer.step("some"), "step {1, 2}");
    for _ in 0..2 {
        shell(&format!("ip -n {} link del tw-in2", star.switch)).unwrap();
        switch.line_with("tw-in2 is no more");
        assert_eq!(peer.step("some"), "step {1}");
        drop(all.pop());
        let (here, there) = (&star.switch, &star.ends[2]);
        shell(&format!(
            "ip -n {there} link add out type veth peer name tw-in2 netns {here}
             ip -n {here} addr add 10.99.2.1/24 dev tw-in2; ip -n {here} link set tw-in2 up
             ip -n {there} addr add 10.99.2.2/24 dev out; ip -n {there} link set out up
             ip netns exec {there} ethtool -K out tso off gso off gro off"
        ))
        .unwrap();
        all.push(member(&star, 2));
        switch.line_with("tw-in2 is there again");
        assert_eq!(peer.step("both"), "step {1, 2}");
        assert_eq!(peer.step("some"), "step {1, 2}");
    }
    let totals = switch.end();
    assert!(totals.contains("connections 1\n"), "{totals}");
    // The peers' own interface ends it.
    let mut switch = Bed::command(&star.switch, &["switch", &path]);
    let mut switch = switch
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    std::io::Read::read_exact(switch.stdout.as_mut().unwrap(), &mut first).unwrap();
    shell(&format!("ip -n {} link del tw-in0", star.switch)).unwrap();
    let ended = switch.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = text(&ended.stderr);
    assert!(said.contains("tw-in0: No such device"), "{said}");
}

/// A member's segment causes the answer to a peer's SYN, and the kernel need not know the
/// peer yet.
#[test]
fn the_first_connection_of_a_peer_waits_for_no_neighbour() {
    const TEST: &str = "the_first_connection_of_a_peer_waits_for_no_neighbour";
    let Some(star) = star(TEST, "n") else {
        return;
    };
    let _members = members(&star);
    for last in 10..15 {
        shell(&format!(
            "ip -n {} addr add 10.99.0.{last}/24 dev out",
            star.ends[0]
        ))
        .unwrap();
    }
    let path = file(&star, 2, "");
    let switch = Service::start(Bed::command(&star.switch, &["switch", &path]));
    let output = end(&star, 0, "trouble::end_connects_from_new_addresses")
        .output()
        .unwrap();
    let said = text(&output.stdout);
    let totals = switch.end();
    assert!(output.status.success(), "{said}{totals}");
    assert!(totals.contains("not sent: unresolved 0,"), "{totals}");
}

#[test]
#[ignore = "the peer of the other, in its namespace"]
fn end_connects_from_new_addresses() {
    let server = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 99), 6000);
    let took = |last: u8| {
        let began = Instant::now();
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(
            &stream,
            &SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, last), 0),
        )
        .unwrap();
        connect(&stream, &server).unwrap();
        began.elapsed().as_millis()
    };
    let all: Vec<u128> = (10..15).map(took).collect();
    println!("{all:?} ms");
    assert!(all.iter().all(|&took| took < REPETITION_MS), "{all:?}");
}
