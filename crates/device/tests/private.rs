//! Private mode in the kernel, by BPF_PROG_TEST_RUN: where the demultiplexer sends a
//! private application's frames, whatever its table contains. Also which of the frames
//! that it sends pass.

mod demux_support;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use aya::maps::{Array, DevMap, HashMap, Map, MapData};
use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, EbpfLoader};
use demux_support::{HASH_KEY, Random, af_xdp, circuits, corpus, mutate, set_up};
use tidewall_device::demux::layout::{
    APPLICATIONS, Application, Counter, DEPARTURES, METADATA_LENGTH, Metadata, PRIVATE_SOCKETS,
    Protocol, QUEUES, Sent, WAITING_SOCKETS,
};
use tidewall_device::demux::{ApplicationTables, KernelMaps, Tables, TrustedTables, programs};
use tidewall_manager::Program;
use tidewall_sys::bpf::{ArrayMap, create_array, set_object};
use tidewall_wire::atm::Circuit;
use tidewall_wire::atm::pseudowire::Label;
use tidewall_wire::ethernet::MacAddress;

/// `enum xdp_action`, and TC_ACT_SHOT and TC_ACT_REDIRECT.
const DROP: u32 = 1;
const REDIRECT: u32 = 4;
const SHOT: u32 = 2;
const REDIRECTED: u32 = 7;
/// The input interface of a test run: the loopback device.
const LOOPBACK: u32 = 1;
/// Application 0 has the corpus' tables; this one has tables of its own.
const OTHER: u16 = 3;

/// All programs and their maps.
struct Bed {
    loaded: Ebpf,
    tables: Tables,
    other: ApplicationTables,
    near_ends: HashMap<MapData, u32, u32>,
    departures: Array<MapData, [u64; DEPARTURES]>,
    _socket: OwnedFd,
}

fn map(loaded: &mut Ebpf, name: &str) -> Map {
    loaded.take_map(name).expect(name)
}

fn data(map: &Map) -> &MapData {
    match map {
        Map::Array(data) | Map::ArrayOfMaps(data) | Map::XskMap(data) => data,
        _ => panic!("another kind of map"),
    }
}

impl Bed {
    fn load() -> Result<Self, Box<dyn std::error::Error>> {
        let mut loaded = EbpfLoader::new().btf(None).load(programs::DEMUX)?;
        for name in ["demux", "to_xsk"] {
            let xdp: &mut Xdp = loaded.program_mut(name).unwrap().try_into()?;
            xdp.load()?;
        }
        let sent: &mut SchedClassifier = loaded.program_mut("sent").unwrap().try_into()?;
        sent.load()?;
        let socket = af_xdp()?;
        let [device, queues, embedded, applications, sockets] =
            ["device", "queues", "embedded", "applications", "sockets"]
                .map(|name| map(&mut loaded, name));
        let maps = KernelMaps {
            owners: HashMap::try_from(map(&mut loaded, "owners"))?,
            fragments: HashMap::try_from(map(&mut loaded, "fragments"))?,
        };
        let [device_data, counts] = [&device, &queues].map(|map| data(map).fd().as_fd());
        let trusted = TrustedTables::of_maps(device_data, counts, maps, HASH_KEY)?;
        let of_map = |map, number| ApplicationTables::of_map(map, number, HASH_KEY);
        let embedded = data(&embedded).fd().as_fd();
        let inner = create_array(&ArrayMap {
            name: "tw_application",
            value_bytes: size_of::<Application>() as u32,
            entries: 1,
            mapped: true,
        })?;
        let mut pairs = DevMap::try_from(map(&mut loaded, "pairs"))?;
        for (number, inner) in [(0, embedded), (OTHER, inner.as_fd())] {
            set_object(data(&applications).fd().as_fd(), number.into(), inner)?;
            let place = u32::from(number) * QUEUES as u32;
            pairs.set(place, LOOPBACK, None, 0)?;
            for place in [place, WAITING_SOCKETS as u32 + place] {
                let place = PRIVATE_SOCKETS as u32 + place;
                set_object(data(&sockets).fd().as_fd(), place, socket.as_fd())?;
            }
        }
        let tables = Tables {
            trusted: Arc::new(trusted),
            embedded: Arc::new(of_map(embedded, 0)?),
        };
        set_up(&tables);
        Ok(Bed {
            other: of_map(inner.as_fd(), OTHER)?,
            tables,
            near_ends: HashMap::try_from(map(&mut loaded, "near_ends"))?,
            departures: Array::try_from(map(&mut loaded, "departures"))?,
            loaded,
            _socket: socket,
        })
    }

    /// `None`, with a message, without the privilege.
    fn new(test: &str) -> Option<Self> {
        match Program::load() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW ({error})");
                tidewall_skip::missing(test, what);
                None
            }
            _ => Some(Self::load().unwrap()),
        }
    }

    fn program<'a, T>(&'a self, name: &str) -> &'a T
    where
        &'a T: TryFrom<&'a aya::programs::Program, Error = ProgramError>,
    {
        self.loaded.program(name).unwrap().try_into().unwrap()
    }

    /// Runs an XDP program on a frame that has these bytes of metadata before it.
    fn run_xdp(&self, name: &str, bytes: &[u8], metadata: usize) -> (u32, Vec<u8>, Metadata) {
        let xdp: &Xdp = self.program(name);
        let context: [u32; 6] = [metadata as u32, bytes.len() as u32, 0, 0, 0, 0];
        let context: [u8; 24] = zerocopy::transmute!(context);
        let (mut context_out, mut out) = ([0; 24], vec![0; bytes.len() + 256]);
        let result = xdp
            .test_run(TestRunOptions {
                data_in: Some(bytes),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ctx_out: Some(&mut context_out),
                ..TestRunOptions::new()
            })
            .unwrap();
        out.truncate(result.data_size_out as usize);
        let context_out: [u32; 6] = zerocopy::transmute!(context_out);
        let metadata = out.get(..context_out[0] as usize).unwrap_or_default();
        let metadata = Metadata::from_bytes(metadata);
        (result.return_value, out, metadata)
    }

    /// The fate of a frame that an application sends, and the cause that was counted.
    fn send(&mut self, frame: &[u8]) -> (u32, Sent) {
        let application = self.near_ends.get(&LOOPBACK, 0);
        let place = application.unwrap_or(APPLICATIONS as u32);
        let before = self.departures.get(&place, 0).unwrap();
        let sent: &SchedClassifier = self.program("sent");
        let result: Result<TestRunResult, _> = sent.test_run(TestRunOptions {
            data_in: Some(frame),
            ..TestRunOptions::new()
        });
        let result = match result {
            // It accepts none that is shorter than an IP header.
            Err(_) if frame.len() < 14 + 40 => return (SHOT, Sent::Malformed),
            result => result.unwrap(),
        };
        let after = self.departures.get(&place, 0).unwrap();
        let counted: Vec<usize> = (0..DEPARTURES)
            .filter(|&at| after[at] != before[at])
            .collect();
        assert_eq!(counted.len(), 1, "{frame:02x?}");
        let cause = Sent::from_index(counted[0] as u32).unwrap();
        assert_eq!(cause == Sent::Passed, result.return_value == REDIRECTED);
        (result.return_value, cause)
    }
}

#[test]
fn a_private_application_gets_the_same_frames_by_its_pair() {
    let name = "a_private_application_gets_the_same_frames_by_its_pair";
    let Some(bed) = Bed::new(name) else {
        return;
    };
    let mut direct = Program::load_with_key(HASH_KEY).unwrap();
    let socket = af_xdp().unwrap();
    direct.set_socket(0, 0, socket.as_fd()).unwrap();
    set_up(&direct.tables());
    let mut redirected = 0;
    for sample in corpus().iter().filter(|sample| sample.bytes.len() >= 14) {
        let wanted = direct.test_run(&sample.bytes).unwrap();
        let (action, bytes, mut metadata) = bed.run_xdp("demux", &sample.bytes, 0);
        assert_eq!(action, wanted.action, "{}", sample.name);
        // The other kind of redirect is an answer, which has none.
        let Some(wanted) = wanted.metadata.filter(|_| action == REDIRECT) else {
            continue;
        };
        assert_eq!(metadata.network, 14, "of place 0: {}", sample.name);
        metadata.network = wanted.network;
        assert_eq!(metadata, wanted, "{}", sample.name);
        assert_eq!(bytes[METADATA_LENGTH..], sample.bytes);
        let (action, same, handed) = bed.run_xdp("to_xsk", &bytes, METADATA_LENGTH);
        assert_eq!((action, handed), (REDIRECT, wanted), "{}", sample.name);
        assert_eq!(same[METADATA_LENGTH..], sample.bytes);
        redirected += 1;
    }
    assert!(redirected > 50, "{redirected}");
    for counter in Counter::ALL {
        let counts = [&bed.tables, &direct.tables()].map(|of| of.trusted.counter(0, counter));
        assert_eq!(counts[0], counts[1], "{}", counter.name());
    }
}

#[test]
fn the_far_end_takes_nothing_from_the_kernel_and_no_place_out_of_range() {
    let name = "the_far_end_takes_nothing_from_the_kernel_and_no_place_out_of_range";
    let Some(bed) = Bed::new(name) else {
        return;
    };
    let frame = &corpus()[0].bytes;
    assert_eq!(bed.run_xdp("to_xsk", frame, 0).0, DROP);
    let mut metadata = Metadata::default();
    for network in 0..=u16::MAX {
        metadata.network = network;
        let bytes = [&metadata.to_bytes()[..], frame].concat();
        let (action, _, handed) = bed.run_xdp("to_xsk", &bytes, METADATA_LENGTH);
        let place = usize::from(network >> 4);
        let there = [0, usize::from(OTHER) * QUEUES].contains(&place);
        assert_eq!(action == REDIRECT, there, "{network}");
        assert_eq!(handed.network, 14);
    }
}

/// Fills a table with numbers, some of them near what the driver compares with.
fn scribble(table: &Application, random: &mut Random) {
    const EDGES: [u32; 8] = [0, 1, 0xfff, 0x1000, 0x7fff, 0x8000, 0xffff, u32::MAX];
    let mut number = || match random.below(4) {
        0 => EDGES[random.below(EDGES.len())],
        1 => random.below(0x1000) as u32,
        _ => random.next() as u32,
    };
    for listener in &table.listeners {
        listener.channel[0].store(number(), Relaxed);
        listener.channel[1].store(number(), Relaxed);
        listener.flags.store(number(), Relaxed);
    }
    for tag in table.tags.iter().flatten() {
        tag.store(number() as u8, Relaxed);
    }
    for flow in table.flows.iter().flatten() {
        flow.waits.store(number() as u16, Relaxed);
        flow.channel.store(number(), Relaxed);
        flow.epoch.store(number() as u16, Relaxed);
        flow.came.store(number() as u16, Relaxed);
    }
    for bounds in table.channels.iter().flatten() {
        bounds.tail.store(number(), Relaxed);
        bounds.limit.store(number(), Relaxed);
    }
    for head in table.heads.iter().flatten() {
        head.head.store(number(), Relaxed);
    }
    for share in &table.shares {
        share.epoch.store(number() as u16, Relaxed);
        share.most.store(number() as u16, Relaxed);
    }
    for waiting in &table.waiting {
        for word in [
            &waiting.head,
            &waiting.tail,
            &waiting.limit,
            &waiting.looked,
        ] {
            word.store(number(), Relaxed);
        }
    }
    table.fragment_channel.store(number(), Relaxed);
    table.cookies.epoch.store(number().into(), Relaxed);
    table.cookies.redirect.store(number() as u8 & 1, Relaxed);
}

/// Whatever an application writes in its table, its frames go to its own pair or nowhere,
/// and no other table changes.
#[test]
fn a_table_full_of_anything_gets_an_application_no_other_place() {
    let name = "a_table_full_of_anything_gets_an_application_no_other_place";
    let Some(bed) = Bed::new(name) else {
        return;
    };
    let mut random = Random(0x5eed_0017);
    // The ports and circuits of the corpus are now the other's.
    let trusted = &bed.tables.trusted;
    for (label, _) in circuits() {
        trusted.disown_circuit(label);
        trusted.own_circuit(label, OTHER).unwrap();
    }
    for (protocol, address, port, _) in trusted.owned_ports().unwrap() {
        trusted
            .own_port(protocol, Some(address), port, OTHER)
            .unwrap();
    }
    let samples = corpus();
    let innocent = || {
        let table = bed.tables.embedded.map();
        let heads = table.heads.iter().flatten();
        heads
            .map(|head| u64::from(head.head.load(Relaxed)))
            .sum::<u64>()
    };
    let (before, mut redirected) = (innocent(), 0);
    for _ in 0..4 {
        scribble(bed.other.map(), &mut random);
        for _ in 0..2_000 {
            let mut bytes = samples[random.below(samples.len())].bytes.clone();
            if random.below(2) == 0 {
                let other = &samples[random.below(samples.len())].bytes;
                mutate(&mut bytes, other, &mut random);
            }
            if bytes.len() < 14 {
                continue;
            }
            let (action, _, metadata) = bed.run_xdp("demux", &bytes, 0);
            assert!((1..=4).contains(&action), "{action}: {bytes:02x?}");
            if action == REDIRECT && metadata != Metadata::default() {
                let place = metadata.network >> 4;
                assert_eq!(place, OTHER * QUEUES as u16, "{bytes:02x?}");
                redirected += 1;
            }
        }
    }
    assert!(redirected > 10, "{redirected}");
    assert_eq!(innocent(), before);
}

const LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x17];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const HERE: [u8; 4] = [192, 0, 2, 1];
const HERE6: &str = "2001:db8::1";

fn ethernet(from: [u8; 6], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    [&PEER[..], &from, &ethertype.to_be_bytes(), rest].concat()
}

fn ipv4(source: [u8; 4], protocol: u8, fragment: u16, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + content.len() as u16).to_be_bytes());
    header.extend([0, 7]);
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0]);
    header.extend(source);
    header.extend([198, 51, 100, 1]);
    ethernet(LINK, 0x0800, &[&header, content].concat())
}

fn ipv6(source: &str, next: u8, content: &[u8]) -> Vec<u8> {
    let octets = |address: &str| match address.parse().unwrap() {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(_) => unreachable!("an address of IPv6"),
    };
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((content.len() as u16).to_be_bytes());
    header.extend([next, 64]);
    header.extend(octets(source));
    header.extend(octets("2001:db8:1::9"));
    ethernet(LINK, 0x86dd, &[&header, content].concat())
}

/// A UDP datagram or TCP segment from a port.
fn from_port(port: u16, length: usize) -> Vec<u8> {
    let mut content = vec![0; length];
    content[..2].copy_from_slice(&port.to_be_bytes());
    content[3] = 9;
    content
}

#[test]
fn only_what_an_application_may_send_leaves() {
    let Some(mut bed) = Bed::new("only_what_an_application_may_send_leaves") else {
        return;
    };
    let good = ipv4(HERE, 17, 0x4000, &from_port(4000, 8));
    // A pair in stock.
    assert_eq!(bed.send(&good), (SHOT, Sent::Nobody));
    let trusted = Arc::clone(&bed.tables.trusted);
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    bed.near_ends.insert(LOOPBACK, u32::from(OTHER), 0).unwrap();
    let own = |protocol, at: Option<&str>, port, application| {
        let at = at.map(address);
        trusted.own_port(protocol, at, port, application).unwrap();
    };
    own(Protocol::Udp, None, 4000, OTHER);
    own(Protocol::Tcp, None, 4001, OTHER);
    own(Protocol::Udp, None, 4002, 0);
    // A port of all addresses but one, which a neighbour owns; and a port of one alone.
    own(Protocol::Udp, None, 4003, OTHER);
    own(Protocol::Udp, Some("192.0.2.2"), 4003, 0);
    own(Protocol::Udp, Some(HERE6), 4004, OTHER);
    // Before the device is declared.
    assert_eq!(bed.send(&good).0, SHOT);
    trusted.set_device(LOOPBACK, MacAddress(LINK), 1500);

    let allowed = [
        good.clone(),
        [&good[..], &[0; 18]].concat(),
        ipv4(HERE, 6, 0, &from_port(4001, 20)),
        ipv4(HERE, 17, 0, &from_port(4003, 1480)),
        ipv6(HERE6, 17, &from_port(4000, 8)),
        ipv6(HERE6, 17, &from_port(4004, 30)),
        ipv6("fe80::1", 6, &from_port(4001, 40)),
    ];
    for frame in &allowed {
        assert_eq!(bed.send(frame), (REDIRECTED, Sent::Passed), "{frame:02x?}");
    }

    let mut forged = Vec::new();
    for byte in 6..12 {
        let mut frame = good.clone();
        frame[byte] ^= 1;
        forged.push((frame, Sent::Link));
    }
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &LINK, &HERE, &PEER, &[0; 4]].concat();
    forged.push((ethernet(LINK, 0x0806, &arp), Sent::Type));
    for ethertype in [0x8100, 0x88a8, 0x8847, 0x86dc, 0x0000, 0x0805] {
        let frame = ethernet(LINK, ethertype, &good[14..]);
        forged.push((frame, Sent::Type));
    }
    let solicitation = [&[135, 0, 0, 0][..], &[0; 28]].concat();
    forged.extend([
        (ipv6(HERE6, 58, &solicitation), Sent::Protocol),
        (ipv4(HERE, 1, 0, &[8; 16]), Sent::Protocol),
        (ipv4(HERE, 2, 0, &[0x16; 16]), Sent::Protocol),
        (ipv4(HERE, 47, 0, &[0; 40]), Sent::Protocol),
        // After extension headers.
        (ipv6(HERE6, 0, &[17, 0, 0, 0, 0, 0, 0, 0]), Sent::Protocol),
        (ipv6(HERE6, 60, &[58, 0, 0, 0, 0, 0, 0, 0]), Sent::Protocol),
        // First, later, and both.
        (ipv4(HERE, 17, 0x2000, &from_port(4000, 32)), Sent::Fragment),
        (ipv4(HERE, 17, 3, &from_port(4000, 32)), Sent::Fragment),
        (ipv4(HERE, 1, 0x2001, &from_port(4000, 32)), Sent::Fragment),
        (ipv6(HERE6, 44, &[17, 0, 0, 0, 0, 0, 0, 0]), Sent::Fragment),
        (
            ipv4([192, 0, 2, 9], 17, 0, &from_port(4000, 8)),
            Sent::Address,
        ),
        (ipv4([0; 4], 17, 0, &from_port(4000, 8)), Sent::Address),
        (
            ipv4([127, 0, 0, 1], 17, 0, &from_port(4000, 8)),
            Sent::Address,
        ),
        (ipv6("2001:db8::2", 17, &from_port(4000, 8)), Sent::Address),
        (ipv6("::", 17, &from_port(4000, 8)), Sent::Address),
        (
            ipv6("::ffff:192.0.2.1", 17, &from_port(4000, 8)),
            Sent::Address,
        ),
        // Unowned, a neighbour's, the other protocol's, and a neighbour's at one address.
        (ipv4(HERE, 17, 0, &from_port(4009, 8)), Sent::Port),
        (ipv4(HERE, 17, 0, &from_port(4002, 8)), Sent::Port),
        (ipv4(HERE, 6, 0, &from_port(4000, 20)), Sent::Port),
        (ipv4(HERE, 17, 0, &from_port(4001, 8)), Sent::Port),
        (ipv4([192, 0, 2, 2], 17, 0, &from_port(4003, 8)), Sent::Port),
        (ipv6("fe80::1", 17, &from_port(4004, 8)), Sent::Port),
        (ipv4(HERE, 17, 0, &from_port(0, 8)), Sent::Port),
        (ipv4(HERE, 17, 0, &from_port(4000, 1481)), Sent::Long),
    ]);
    // Options, a wrong version, wrong lengths.
    for (at, value) in [
        (14, 0x46),
        (14, 0x44),
        (14, 0x65),
        (16, 1),
        (17, 27),
        (17, 29),
    ] {
        let mut frame = good.clone();
        frame[at] = value;
        forged.push((frame, Sent::Malformed));
    }
    let mut short = ipv4(HERE, 6, 0, &from_port(4001, 20));
    short[17] -= 1;
    forged.push((short, Sent::Malformed));
    let mut version = ipv6(HERE6, 17, &from_port(4000, 8));
    version[14] = 0x40;
    forged.push((version, Sent::Malformed));
    for (frame, cause) in &forged {
        assert_eq!(bed.send(frame), (SHOT, *cause), "{frame:02x?}");
    }
    // Truncated anywhere, nothing of it leaves.
    for frame in &allowed[2..] {
        let headers = if frame[12] == 8 { 14 + 20 } else { 14 + 40 };
        for length in 14..headers + 8 {
            let action = bed.send(&frame[..length.min(frame.len() - 1)]).0;
            assert_eq!(action, SHOT, "{length} of {frame:02x?}");
        }
    }
    // Its port is returned.
    trusted.disown_port(Protocol::Udp, None, 4000).unwrap();
    assert_eq!(bed.send(&good), (SHOT, Sent::Port));
    // Circuits: its own, an unowned one, a neighbour's; a label that is not the only one,
    // half a label.
    let [own, nobodys, neighbours] = [60_100, 60_101, 60_102].map(|vci| {
        let label = Label::of_circuit(Circuit { vpi: 0, vci }).unwrap();
        let mut frame = good[..12].to_vec();
        frame.extend([0x88, 0x47]);
        frame.extend(label.entry());
        frame.extend([0; 52]);
        (label, frame)
    });
    trusted.own_circuit(own.0, OTHER).unwrap();
    trusted.own_circuit(neighbours.0, OTHER + 1).unwrap();
    assert_eq!(bed.send(&own.1), (REDIRECTED, Sent::Passed));
    assert_eq!(bed.send(&nobodys.1), (SHOT, Sent::Port));
    assert_eq!(bed.send(&neighbours.1), (SHOT, Sent::Port));
    let mut two = own.1.clone();
    two[16] &= !1;
    assert_eq!(bed.send(&two), (SHOT, Sent::Type));
    assert_eq!(bed.send(&own.1[..17]), (SHOT, Sent::Malformed));
    trusted.disown_circuit(own.0);
    assert_eq!(bed.send(&own.1), (SHOT, Sent::Port));
}

/// Random frames, most of them near a good one: only frames leave that a slow reading of
/// the rule permits.
#[test]
fn what_leaves_was_sent_by_the_rule() {
    let Some(mut bed) = Bed::new("what_leaves_was_sent_by_the_rule") else {
        return;
    };
    let trusted = Arc::clone(&bed.tables.trusted);
    bed.near_ends.insert(LOOPBACK, u32::from(OTHER), 0).unwrap();
    trusted.own_port(Protocol::Udp, None, 4000, OTHER).unwrap();
    trusted.own_port(Protocol::Tcp, None, 4000, OTHER).unwrap();
    trusted.set_device(LOOPBACK, MacAddress(LINK), 1500);
    let seeds = [
        ipv4(HERE, 17, 0, &from_port(4000, 40)),
        ipv4(HERE, 6, 0, &from_port(4000, 40)),
        ipv6(HERE6, 17, &from_port(4000, 40)),
        ipv6(HERE6, 6, &from_port(4000, 40)),
    ];
    let locals = [&[192, 0, 2, 1][..], &[192, 0, 2, 2]];
    let locals6 = [HERE6, "fe80::1"].map(|text| match text.parse().unwrap() {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(_) => unreachable!("addresses of IPv6"),
    });
    let may_leave = |frame: &[u8]| {
        let at = |from: usize, length: usize| frame.get(from..from + length).unwrap_or_default();
        let number = |from| {
            at(from, 2)
                .iter()
                .fold(0, |word, &byte| word << 8 | usize::from(byte))
        };
        let (header, end, protocol) = match (at(12, 2), frame.get(14)) {
            (&[8, 0], Some(0x45)) => {
                let whole = number(20) & 0x3fff == 0 && locals.contains(&at(26, 4));
                (20, if whole { 14 + number(16) } else { 0 }, at(23, 1))
            }
            (&[0x86, 0xdd], Some(version)) if version >> 4 == 6 => {
                let whole = locals6.iter().any(|local| local == at(22, 16));
                (40, if whole { 54 + number(18) } else { 0 }, at(20, 1))
            }
            _ => return false,
        };
        let least = match protocol {
            [17] => 8,
            [6] => 20,
            _ => return false,
        };
        at(6, 6) == LINK
            && (14 + header + least..=frame.len()).contains(&end)
            && frame.len() <= 1514
            && number(14 + header) == 4000
    };
    let mut random = Random(0x5eed_1117);
    let mut passed = 0;
    for _ in 0..20_000 {
        let mut frame = seeds[random.below(seeds.len())].clone();
        if random.below(8) > 0 {
            let other = seeds[random.below(seeds.len())].clone();
            mutate(&mut frame, &other, &mut random);
        }
        if frame.len() < 14 {
            continue;
        }
        let leaves = bed.send(&frame).0 == REDIRECTED;
        assert_eq!(leaves, may_leave(&frame), "{frame:02x?}");
        passed += u32::from(leaves);
    }
    assert!(passed > 1_000, "{passed}");
}
