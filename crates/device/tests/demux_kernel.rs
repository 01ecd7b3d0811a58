//! Frames that the kernel receives from a queue while a sender exceeds its limit: a host
//! must not be worse off than without Tidewall. The driver program runs every scene,
//! emulated and compiled for the processor.

mod demux_support;
mod emulator;

use std::collections::BTreeMap;

use demux_support::{HASH_KEY, Random};
use emulator::Emulator;
use tidewall_device::demux::layout::{Class, Protocol};
use tidewall_device::demux::{ChannelId, CookieOffer, KernelUses, Tables, Verdict, drive};

const SECOND: u64 = 1_000_000_000;
/// `enum xdp_action`.
const PASS: u32 = 2;

const HERE: [u8; 4] = [192, 0, 2, 1];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const EVERYBODY: [u8; 6] = [0xff; 6];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 3];

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes()].concat()
}

fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(OUR_MAC, ROUTER, 0x0800);
    frame.extend([0x45, 0]);
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(payload);
    frame
}

fn ports(from: u16, to: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    [a, b, c, d]
}

fn udp(source: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    ipv4(
        17,
        source,
        HERE,
        &[&ports(from, to)[..], &[0, 8, 0, 0]].concat(),
    )
}

fn tcp(source: [u8; 4], from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut segment = [0; 20];
    segment[..4].copy_from_slice(&ports(from, to));
    segment[12] = 0x50;
    segment[13] = flags;
    ipv4(6, source, HERE, &segment)
}

fn arp(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    [&ethernet(to, from, 0x0806)[..], &[0; 28]].concat()
}

fn icmpv6(from: [u8; 6], message: u8, code: u8, hop_limit: u8) -> Vec<u8> {
    let mut frame = ethernet(OUR_MAC, from, 0x86dd);
    frame.extend([0x60, 0, 0, 0, 0, 24, 58, hop_limit]);
    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([message, code]);
    frame.extend([0; 22]);
    frame
}

fn tables() -> Tables {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    let locals = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    tables.trusted.set_locals(&locals).unwrap();
    tables.trusted.limit_kernel_frames();
    tables
}

/// A sender's frame by its index.
type Frames<'a> = Box<dyn Fn(u64, &mut Random) -> Vec<u8> + 'a>;

/// A sender, its frames per second, and each frame.
struct Sender<'a> {
    name: &'a str,
    rate: u64,
    frame: Frames<'a>,
}

fn sender<'a>(
    name: &'a str,
    rate: u64,
    frame: impl Fn(u64, &mut Random) -> Vec<u8> + 'a,
) -> Sender<'a> {
    let frame = Box::new(frame);
    Sender { name, rate, frame }
}

/// For each sender, how many frames passed, and how many there were.
type Passed<'a> = BTreeMap<&'a str, (u64, u64)>;

/// The driver, either one.
trait Driver {
    fn passes(&mut self, frame: &[u8], now: u64) -> bool;
}

impl Driver for &Tables {
    fn passes(&mut self, frame: &[u8], now: u64) -> bool {
        let verdict = drive(self, 0, &mut frame.to_vec(), now);
        matches!(verdict, Verdict::Kernel { .. })
    }
}

impl Driver for Emulator<'_> {
    fn passes(&mut self, frame: &[u8], now: u64) -> bool {
        self.time = now;
        self.run(frame, 0).unwrap().action == PASS
    }
}

/// Makes all send for this long, each evenly in time.
fn play<'a>(mut driver: impl Driver, senders: &[Sender<'a>], time: u64) -> Passed<'a> {
    let mut random = Random(0x7469_6465_7761_6c6c);
    let mut passed = Passed::new();
    // Not in step with the others, nor with an epoch of the driver.
    let start = 1_000 * SECOND + 123_456_789;
    let mut next: Vec<(u64, u64)> = (1..=senders.len() as u64)
        .map(|number| (start + number * 7_919, 0))
        .collect();
    loop {
        let Some((at, number)) = (next.iter().enumerate())
            .map(|(number, &(at, _))| (at, number))
            .min()
            .filter(|&(at, _)| at < start + time)
        else {
            return passed;
        };
        let Sender { name, rate, frame } = &senders[number];
        let bytes = frame(next[number].1, &mut random);
        next[number] = (at + SECOND / rate, next[number].1 + 1);
        let counts = passed.entry(*name).or_default();
        counts.0 += u64::from(driver.passes(&bytes, at));
        counts.1 += 1;
    }
}

/// Plays a scene for two seconds compiled for the processor, and its beginning with both.
/// All but the "blast" must get 99 % through, and the blast at most `most` per second.
fn hold(senders: &[Sender<'_>], most: u64) {
    const EMULATED: u64 = SECOND / 20;
    let ours = tables();
    let theirs = tables();
    let driver = Emulator::driver(&theirs);
    assert_eq!(
        play(&ours, senders, EMULATED),
        play(driver, senders, EMULATED),
        "native (left) and the driver (right)"
    );
    let seconds = 2;
    for (name, (passed, sent)) in play(&tables(), senders, seconds * SECOND) {
        println!("{name}: {passed} of {sent} passed in {seconds} s");
        if name == "blast" {
            // Plus the initial content of the shares.
            let most = most * seconds + 20_000;
            assert!(passed <= most, "{passed} of the blast passed");
        } else {
            assert!(passed * 100 >= sent * 99, "{name}: {passed} of {sent}");
        }
    }
}

/// SYNs for ssh, from forty networks.
fn ssh<'a>(rate: u64) -> Sender<'a> {
    sender("ssh", rate, |number, _| {
        tcp(
            [10, 1, (number % 40) as u8, 7],
            1024 + number as u16,
            22,
            SYN,
        )
    })
}

/// A resolver's answers, each to a port of its own.
fn resolver<'a>(rate: u64) -> Sender<'a> {
    sender("resolver", rate, |number, random| {
        let port = 32_768 + random.below(28_000) as u16;
        udp([198, 51, 100, 53 + (number % 2) as u8], 53, port)
    })
}

#[test]
fn a_blast_at_a_closed_port_leaves_others_their_syns_and_answers() {
    let blast = |rate| sender("blast", rate, |_, _| udp([203, 0, 113, 7], 4_000, 9_999));
    hold(&[blast(1_000_000), ssh(100), resolver(400)], 16_000);
}

#[test]
fn a_blast_at_all_ports_leaves_others_theirs() {
    let any = |_: u64, random: &mut Random| udp([203, 0, 113, 7], 4_000, random.next() as u16);
    hold(
        &[sender("blast", 1_000_000, any), ssh(100), resolver(45)],
        45_000,
    );
}

#[test]
fn a_blast_from_anywhere_leaves_other_ports_theirs() {
    let source = |random: &mut Random| (random.next() as u32 | 0x1000_0000).to_be_bytes();
    let from_anywhere = |_: u64, random: &mut Random| udp(source(random), 4_000, 9_999);
    hold(
        &[sender("blast", 1_000_000, from_anywhere), resolver(400)],
        45_000,
    );
    let syns = |_: u64, random: &mut Random| tcp(source(random), 4_000, 80, SYN);
    hold(&[sender("blast", 1_000_000, syns), ssh(45)], 45_000);
}

#[test]
fn a_syn_flood_from_one_network_leaves_others_the_same_port() {
    let flood = |number: u64, _: &mut Random| tcp([203, 0, 113, number as u8], 4_000, 22, SYN);
    hold(
        &[sender("blast", 1_000_000, flood), ssh(100), resolver(400)],
        16_000,
    );
}

#[test]
fn a_flood_of_one_flow_leaves_sessions_theirs() {
    let flood = |_: u64, _: &mut Random| tcp([203, 0, 113, 7], 4_000, 22, ACK);
    let session = |number: u64, _: &mut Random| {
        let client = (number % 20) as u8;
        tcp([10, 1, client, 7], 1024, 22, ACK)
    };
    let session = sender("session", 1_000, session);
    hold(
        &[sender("blast", 1_000_000, flood), session, ssh(100)],
        310_000,
    );
}

/// When the shares are all used up, the kernel is asked.
#[test]
fn what_the_kernel_has_a_socket_for_passes_beyond_all_shares() {
    let tuple = |from: [u8; 4], source, port| [&from[..], &HERE, &ports(source, port)].concat();
    let (client, resolver) = ([10, 1, 2, 3], [198, 51, 100, 53]);
    const ESTABLISHED: u32 = 1;
    const LISTEN: u32 = 10;
    let tables = tables();
    let mut driver = Emulator::driver(&tables);
    driver.sockets.extend([
        (("sk_lookup_udp", tuple(resolver, 53, 40_000)), 7),
        (("skc_lookup_tcp", tuple(client, 1024, 22)), ESTABLISHED),
        (("skc_lookup_tcp", tuple(client, 1025, 22)), LISTEN),
    ]);
    let anybody = |random: &mut Random| (random.next() as u32 | 0x1000_0000).to_be_bytes();
    let blast = move |number: u64, random: &mut Random| match number % 3 {
        0 => tcp(anybody(random), 4_000, random.next() as u16, SYN),
        1 => tcp(anybody(random), 4_000, 22, ACK),
        _ => udp(anybody(random), 53, random.next() as u16),
    };
    let senders = [
        sender("blast", 1_000_000, blast),
        sender("session", 500, move |_, _| tcp(client, 1024, 22, ACK)),
        sender("listener", 500, move |_, _| tcp(client, 1025, 22, SYN)),
        sender("resolver", 500, move |_, _| udp(resolver, 53, 40_000)),
        sender("none", 500, move |_, _| tcp(client, 1025, 22, ACK)),
    ];
    let passed = play(driver, &senders, SECOND / 4);
    println!("{passed:?}");
    for name in ["session", "listener", "resolver"] {
        assert_eq!(passed[name].0, passed[name].1, "{name}");
    }
    assert!(passed["blast"].0 < passed["blast"].1 / 2);
    assert!(passed["none"].0 < passed["none"].1 * 9 / 10);
    assert!(tables.trusted.class(0, Class::Open).passed > 100);
}

#[test]
fn neighbour_discovery_from_beyond_the_link_costs_neighbours_nothing() {
    let beyond = |number: u64, _: &mut Random| icmpv6(ROUTER, 133 + (number % 5) as u8, 0, 50);
    let answers = |_: u64, _: &mut Random| icmpv6(ROUTER, 136, 0, 255);
    let senders = [
        sender("blast", 100_000, beyond),
        sender("router", 50, answers),
    ];
    hold(&senders, 4_000);
    let tables = tables();
    play(&tables, &senders, SECOND);
    assert_eq!(tables.trusted.class(0, Class::Neighbour).passed, 50);
    assert_eq!(tables.trusted.class(0, Class::Neighbour).dropped, 0);
    for (code, hop_limit) in [(1, 255), (0, 254), (0, 0)] {
        let verdict = drive(&tables, 0, &mut icmpv6(ROUTER, 135, code, hop_limit), 0);
        let Verdict::Kernel { class } = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(class, Class::Icmp, "code {code}, hop limit {hop_limit}");
    }
}

#[test]
fn one_neighbour_does_not_take_the_others_arp() {
    let requests = |_: u64, _: &mut Random| arp(EVERYBODY, ATTACKER);
    let answers = |_: u64, _: &mut Random| arp(OUR_MAC, ATTACKER);
    let router = || sender("router", 50, |_, _| arp(OUR_MAC, ROUTER));
    let asks = || sender("router asks", 20, |_, _| arp(EVERYBODY, ROUTER));
    hold(
        &[sender("blast", 100_000, requests), router(), asks()],
        4_000,
    );
    hold(
        &[sender("blast", 100_000, answers), router(), asks()],
        4_000,
    );
    // From any source: answers to us take precedence over the common rate.
    let anybody = |_: u64, random: &mut Random| {
        let [_, _, a, b, c, d, ..] = random.next().to_be_bytes();
        arp(EVERYBODY, [2, 9, a, b, c, d])
    };
    hold(&[sender("blast", 100_000, anybody), router()], 32_000);
}

#[test]
fn one_neighbour_does_not_take_the_others_neighbour_discovery() {
    let flood = |_: u64, _: &mut Random| icmpv6(ATTACKER, 135, 0, 255);
    let router = sender("router", 50, |_, _| icmpv6(ROUTER, 136, 0, 255));
    hold(&[sender("blast", 100_000, flood), router], 4_000);
}

/// Frames that are not for this host: forwarded, tagged, of unknown type.
fn not_for_this_host() -> [Sender<'static>; 4] {
    let forwarded = |number: u64, _: &mut Random| match number % 2 {
        0 => ipv4(17, [203, 0, 113, 7], [203, 0, 113, 8], &[0; 8]),
        _ => ipv4(6, [203, 0, 113, 7], [203, 0, 113, 8], &[0; 20]),
    };
    let of_type = |ethertype: u16, to: [u8; 6]| {
        move |_: u64, _: &mut Random| [&ethernet(to, ROUTER, ethertype)[..], &[0; 46]].concat()
    };
    [
        sender("forwarded", 1_000_000, forwarded),
        sender("tagged", 200_000, of_type(0x8100, OUR_MAC)),
        sender("tagged to all", 200_000, of_type(0x8100, EVERYBODY)),
        sender("of unknown type", 200_000, of_type(0x88b5, OUR_MAC)),
    ]
}

const FORWARDING: KernelUses = KernelUses {
    is_forwarding: true,
    is_open: false,
};
const OPEN: KernelUses = KernelUses {
    is_forwarding: false,
    is_open: true,
};

#[test]
fn what_is_forwarded_or_tagged_or_unknown_is_not_limited_where_the_kernel_has_a_use_for_it() {
    for uses in [FORWARDING, OPEN] {
        for time in [SECOND / 100, SECOND] {
            let (ours, theirs) = (tables(), tables());
            for tables in [&ours, &theirs] {
                tables.trusted.set_kernel_uses(uses);
            }
            let passed = play(&ours, &not_for_this_host(), time);
            if time < SECOND {
                let driver = Emulator::driver(&theirs);
                assert_eq!(play(driver, &not_for_this_host(), time), passed);
            }
            for (name, (passed, sent)) in passed {
                assert_eq!(passed, sent, "{name}");
            }
        }
    }
}

#[test]
fn what_is_not_for_this_host_has_a_rate_and_leaves_protocols_of_the_link_theirs() {
    for flood in not_for_this_host() {
        let blast = Sender {
            name: "blast",
            ..flood
        };
        // LLDP, and a clock's PTP.
        let to = |group: u8, ethertype: u16, from: [u8; 6]| {
            let group = [0x01, 0x80, 0xc2, 0, 0, group];
            move |_: u64, _: &mut Random| [&ethernet(group, from, ethertype)[..], &[0; 46]].concat()
        };
        let [bridge, clock] = [[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]];
        let lldp = sender("lldp", 10, to(0x0e, 0x88cc, bridge));
        let ptp = sender("ptp", 128, to(0x0e, 0x88f7, clock));
        hold(&[blast, lldp, ptp], 55_000);
    }
}

#[test]
fn a_forwarding_host_gets_what_may_go_on_to_a_container() {
    let offered = [sender("udp", 100_000, |_, _| {
        udp([10, 1, 2, 3], 4_000, 8_443)
    })];
    let passed = |uses| {
        let tables = tables();
        tables.trusted.set_kernel_uses(uses);
        play(&tables, &offered, SECOND)["udp"]
    };
    assert!(passed(KernelUses::default()).0 < 20_000);
    assert!(passed(OPEN).0 < 20_000);
    assert_eq!(passed(FORWARDING), (100_000, 100_000));
}

/// Number of frames that pass of this many at once.
fn passed_at_once(tables: &Tables, frame: &[u8], count: u64, now: u64) -> u64 {
    let mut driver = tables;
    (0..count)
        .map(|_| u64::from(driver.passes(frame, now)))
        .sum()
}

/// CVE-2016-5696, and the side channel of SADDNS (CVE-2020-25705).
#[test]
fn what_is_left_of_a_budget_does_not_tell_what_others_had() {
    let tables = tables();
    let frame = udp([203, 0, 113, 7], 4_000, 9_999);
    let epochs = 64u64;
    let bursts: Vec<u64> = (1..=epochs)
        .map(|epoch| passed_at_once(&tables, &frame, 2_000, epoch << 30))
        .collect();
    let distinct: std::collections::BTreeSet<_> = bursts.iter().collect();
    // 512 per burst, and two shares of 32.
    let (least, most) = (bursts.iter().min().unwrap(), bursts.iter().max().unwrap());
    assert!((256 + 64..400).contains(least), "{least}");
    assert!((700..=768 + 64).contains(most), "{most}");
    assert!(distinct.len() > 30, "{bursts:?}");
    let mean = bursts.iter().sum::<u64>() / epochs;
    assert!((530..620).contains(&mean), "{mean} of 576");
}

#[test]
fn resets_of_one_network_say_nothing_of_anothers() {
    let offer = CookieOffer {
        window: 65_535,
        window_scale: None,
        timestamps: false,
        sack: false,
        ecn: false,
    };
    let with_listener = || {
        let tables = tables();
        tables.trusted.own_port(Protocol::Tcp, None, 80, 0).unwrap();
        let channel = ChannelId::new(1, 1);
        tables
            .embedded
            .listen_tcp(None, 80, channel, &offer)
            .unwrap();
        tables
    };
    let (quiet, busy) = (with_listener(), with_listener());
    let (mut same, epochs) = (0, 200u64);
    for epoch in 1..=epochs {
        let now = epoch << 30;
        // In the name of a client whose connection the attacker searches for.
        let in_its_name = tcp([10, 1, 2, 3], 4_000, 80, ACK);
        passed_at_once(&busy, &in_its_name, 2_000, now);
        let own = tcp([203, 0, 113, 7], 4_000, 80, ACK);
        let [left, right] = [&quiet, &busy].map(|tables| passed_at_once(tables, &own, 2_000, now));
        assert_eq!(left, 50);
        same += u64::from(left == right);
    }
    // One in 512 shares a place.
    assert!(same + 3 >= epochs, "{same} of {epochs}");
}

#[test]
fn a_clock_that_steps_back_earns_nothing_and_extremes_do_not_overflow() {
    use tidewall_device::demux::ClassLimit;
    let tables = tables();
    let frame = udp([203, 0, 113, 7], 4_000, 9_999);
    tables
        .trusted
        .set_class(0, Class::Udp, ClassLimit::of(10, 3));
    let at = |now| passed_at_once(&tables, &frame, 100, now);
    assert!((2..=5).contains(&at(1_000 * SECOND)));
    assert_eq!(at(1_000 * SECOND), 0);
    assert_eq!(at(999 * SECOND), 0);
    assert!((2..=5).contains(&at(2_000 * SECOND)));
    let most = ClassLimit::of(u64::MAX, u64::MAX).and_each(u64::MAX, u64::MAX);
    tables.trusted.set_class(0, Class::Udp, most);
    assert_eq!(at(u64::MAX), 100);
    tables
        .trusted
        .set_class(0, Class::Udp, ClassLimit::of(1, 0).and_each(1, u64::MAX));
    assert_eq!(at(u64::MAX), 100);
}
