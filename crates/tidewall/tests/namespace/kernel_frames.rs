//! A host that runs a stack is not worse off than one that does not. The tests compare the
//! frames that its kernel gets during a flood, and those that it forwards. Each test
//! prints its figures.
//!
//! During a flood the device's ring loses frames before the driver program, with a stack or
//! without. A tenth is allowed for that and for a busy machine.
//! `crates/device/tests/demux_kernel.rs` holds the driver program to 99 % and more.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::Stack;

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;

/// Before anything that was lost is sent again.
const ONCE: Duration = Duration::from_millis(900);
const CLOSED: u16 = 9_999;
const SSH: u16 = 22;
const RESOLVER: u16 = 53;

/// Sends these frames from the peer in turn, so many a second or as fast as
/// goes, and counts them.
fn blast(frames: Vec<Vec<u8>>, rate: Option<u64>) -> (Going<Packets>, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let index = peer_index();
    let begin = Instant::now();
    let step = move |packets: &mut Packets| {
        let due = rate.map_or(f64::INFINITY, |rate| {
            begin.elapsed().as_secs_f64() * rate as f64
        });
        if (count.load(Ordering::Relaxed) as f64) < due {
            count.fetch_add(packets.send_all(&frames) as u64, Ordering::Relaxed);
        }
    };
    let going = Going::in_peer(move || Packets::sender(index).unwrap(), step);
    (going, sent)
}

fn mac_of(script: &str) -> Vec<u8> {
    let text = shell(script);
    let bytes = text.trim().split(':');
    bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn here_mac() -> Vec<u8> {
    mac_of(&format!("cat /sys/class/net/{HERE}/address"))
}

/// A UDP datagram of 18 bytes from elsewhere.
fn datagram(port: u16) -> Vec<u8> {
    let mut frame = here_mac();
    frame.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    let at = frame.len();
    frame.extend([0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 79, 0, 9]);
    frame.extend(HERE4.octets());
    let sum = frame[at..]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = sum.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(4_000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 26, 0, 0]);
    frame.extend([0; 18]);
    frame
}

fn class(stack: &Stack, name: &str) -> (u64, u64) {
    stack.snapshot().queues[0].kernel[name]
}

/// Puts the interface's NAPI on the last CPU, ahead of all other work there, and this
/// process on the first. On a veth alone the peers would take turns with it, and the ring of
/// 256 frames would overflow meanwhile.
fn napi_on_its_own_cpu() {
    shell(&format!(
        "ethtool -K {HERE} gro on; echo 1 > /sys/class/net/{HERE}/threaded
         until pgrep -f 'napi/{HERE}-' > /dev/null; do sleep 0.01; done
         for thread in $(pgrep -f 'napi/{HERE}-'); do
             taskset -cp $(($(nproc --all) - 1)) $thread && chrt -fp 50 $thread || true
         done
         taskset -acp 0 {}",
        std::process::id()
    ));
}

/// Runs a blast at a closed port beside SYNs to the kernel and `asked` answers to it. Returns
/// how many of both passed and were tried, and the rate of the blast once `blasted`.
fn through_a_blast(asked: u32, blasted: impl Fn() -> bool) -> ([(u32, u32); 2], f64) {
    let ask = || {
        let socket = KernelSocket::bind(at(HERE4, 0)).unwrap();
        socket.set_read_timeout(Some(ONCE)).unwrap();
        ask_once(&socket, at(PEER4, RESOLVER), b"who is it?")
    };
    assert!(wait_until(ask));
    let (blast, sent) = blast(vec![datagram(CLOSED); 64], Some(1_000_000));
    assert!(wait_until(blasted), "no blast");
    let (before, begin) = (sent.load(Ordering::Relaxed), Instant::now());
    let clients = Going::in_peer(
        || (0u32, 0u32),
        |counts| {
            let stream = TcpStream::connect_timeout(&at(HERE4, SSH), ONCE);
            counts.0 += u32::from(stream.is_ok());
            counts.1 += 1;
            std::thread::sleep(Duration::from_millis(10));
        },
    );
    let mut answers = (0u32, 0u32);
    while answers.1 < asked && begin.elapsed() < Duration::from_secs(20) {
        answers.0 += u32::from(ask());
        answers.1 += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let rate = (sent.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
    let connected = clients.finish();
    blast.finish();
    ([connected, answers], rate)
}

pub fn a_blast_at_a_closed_port_leaves_syns_and_answers() {
    napi_on_its_own_cpu();
    let listener = TcpListener::bind(at(HERE4, SSH)).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let resolver = peer_resolver();
    let print = |what: &str, ([connected, answers], rate): ([(u32, u32); 2], f64)| {
        println!(
            "{rate:.0} datagrams/s at a closed port {what}: {} of {} SYNs got through, {} of {} answers",
            connected.0, connected.1, answers.0, answers.1
        );
    };
    if figures() {
        print("without a stack", through_a_blast(200, || true));
    }
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let asked = if figures() { 1_000 } else { 50 };
    let through = through_a_blast(asked, || class(&stack, "udp").1 > 1_000);
    print("of a host with one", through);
    let losses = stack.snapshot().losses;
    println!("{:?} passed and dropped, {losses:?}", class(&stack, "udp"));
    drop(resolver);
    echo.finish();
    assert_eq!(class(&stack, "syn").1, 0, "SYNs that the driver dropped");
    for (passed, of) in through.0 {
        assert!(passed > 10, "{passed} of {of}");
        // On a machine that has nothing else to do.
        if figures() {
            assert!(passed * 100 >= of * 99, "{passed} of {of}");
        }
    }
}

/// Answers whatever it is asked, until the process ends.
fn peer_resolver() -> JoinHandle<()> {
    let socket = in_peer(|| KernelSocket::bind(at(std::net::Ipv6Addr::UNSPECIFIED, RESOLVER)));
    let socket = socket.unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            drop(socket.send_to(&buffer[..length], from));
        }
    })
}

pub fn neighbours_are_found_beside_floods_of_their_questions() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let resolver = peer_resolver();
    // From beyond the link, and from one other neighbour.
    let mut solicitation = here_mac();
    solicitation.extend([2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 50]);
    solicitation.extend([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    solicitation.extend(HERE6.octets());
    solicitation.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    solicitation.extend(HERE6.octets());
    let mut request = vec![0xff; 6];
    request.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend([
        2, 0, 0, 0, 0, 9, 10, 77, 0, 9, 0, 0, 0, 0, 0, 0, 10, 77, 0, 77,
    ]);
    for (name, frame, address) in [
        (
            "neighbour solicitations from beyond the link",
            solicitation,
            PEER6.into(),
        ),
        (
            "ARP requests of one neighbour",
            request,
            std::net::IpAddr::from(PEER4),
        ),
    ] {
        let (blast, sent) = blast(vec![frame; 32], Some(100_000));
        let local: std::net::IpAddr = match address {
            std::net::IpAddr::V4(_) => HERE4.into(),
            std::net::IpAddr::V6(_) => HERE6.into(),
        };
        let socket = KernelSocket::bind(at(local, 0)).unwrap();
        // Less than the second after which the kernel asks again.
        socket.set_read_timeout(Some(ONCE)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let (before, begin) = (sent.load(Ordering::Relaxed), Instant::now());
        let count = 200;
        let found = (0..count).filter(|_| {
            shell(&format!(
                "ip neigh del {address} dev {HERE} 2>/dev/null || true"
            ));
            ask_once(&socket, at(address, RESOLVER), b"where are you?")
        });
        let found = found.count();
        let rate = (sent.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        blast.finish();
        println!(
            "{rate:.0} {name} a second: the neighbour was found {found} times of {count}; {:?}",
            stack.snapshot().queues[0].kernel
        );
        assert!(found * 2 >= count, "{found} of {count}");
        if figures() {
            assert!(found * 100 >= count * 99, "{found} of {count}");
        }
    }
    assert_eq!(class(&stack, "neighbour").1, 0);
    assert!(class(&stack, "icmp").1 > 10_000, "no flood");
    drop(resolver);
    echo.finish();
}

pub fn what_is_not_for_this_host_is_limited_while_it_has_no_use_for_it() {
    let stack = stack();
    let mut frame = here_mac();
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend([0; 46]);
    let (blast, _) = blast(vec![frame; 64], Some(300_000));
    // Frames that passed and were dropped, of so many that came.
    let share = || {
        let (passed, dropped) = class(&stack, "forwarded");
        let mut now = (0, 0);
        wait_until(|| {
            let (a, b) = class(&stack, "forwarded");
            now = (a - passed, b - dropped);
            now.0 + now.1 > 5_000
        });
        now
    };
    let becomes_limited = |why: &str| assert!(wait_until(|| share().1 > 1_000), "{why}");
    let becomes_open = |why: &str| assert!(wait_until(|| share().1 == 0), "{why}");
    becomes_limited("at first");
    let forwarding = "/proc/sys/net/ipv4/conf";
    for (begin, end) in [
        (
            "echo 1 > /proc/sys/net/ipv4/ip_forward".to_owned(),
            "echo 0 > /proc/sys/net/ipv4/ip_forward".to_owned(),
        ),
        (
            format!("echo 1 > {forwarding}/{HERE}/forwarding"),
            format!("echo 0 > {forwarding}/{HERE}/forwarding"),
        ),
        (
            "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
            "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
        ),
        (
            format!("ip link set {HERE} promisc on"),
            format!("ip link set {HERE} promisc off"),
        ),
        (
            "ip route add local 198.18.0.0/15 dev lo".to_owned(),
            "ip route del local 198.18.0.0/15 dev lo".to_owned(),
        ),
        (
            format!("ip link add link {HERE} name tw-mac type macvlan"),
            "ip link del tw-mac".to_owned(),
        ),
        (
            format!("ip link add tw-bridge type bridge; ip link set {HERE} master tw-bridge"),
            format!("ip link set {HERE} nomaster; ip link del tw-bridge"),
        ),
    ] {
        shell(&begin);
        becomes_open(&begin);
        shell(&end);
        becomes_limited(&end);
    }
    // The end of one that went away is not announced here.
    shell(&format!(
        "ip link add link {HERE} name tw-mac type macvlan; ip link set tw-mac netns {}",
        peer_namespace()
    ));
    becomes_open("a macvlan of another namespace");
    blast.finish();
}

/// A third namespace, which goes when this does.
struct Far(String);

impl Drop for Far {
    fn drop(&mut self) {
        drop(
            std::process::Command::new("ip")
                .args(["netns", "del", &self.0])
                .status(),
        );
    }
}

pub fn a_router_forwards_as_without_a_stack() {
    const FAR4: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);
    let far = Far(format!("tw-sock-{}-c", std::process::id()));
    let (name, peer) = (&far.0, peer_namespace());
    // Frames of one size, and GRO, with and without: what XDP asks of a veth.
    shell(&format!(
        "ip netns add {name}; ip -n {name} link set lo up
         ip link add tw-out type veth peer name tw-far netns {name}
         ip addr add 10.80.0.1/24 dev tw-out; ip -n {name} addr add {FAR4}/24 dev tw-far
         ip link set tw-out up; ip -n {name} link set tw-far up
         ip -n {name} route add default via 10.80.0.1
         ip -n {peer} route add 10.80.0.0/24 via {HERE4}
         echo 1 > /proc/sys/net/ipv4/ip_forward
         ip netns exec {peer} ethtool -K {PEER} tso off gso off
         ethtool -K {HERE} gro on; ethtool -K tw-out tso off gso off gro on"
    ));
    let namespace = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
    let in_far = |run: Box<dyn FnOnce() -> (KernelSocket, TcpListener) + Send>| {
        let namespace = namespace.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            super::raw_system::enter(&namespace).unwrap();
            run()
        });
        thread.join().unwrap()
    };
    let (sink, listener) = in_far(Box::new(|| {
        let sink = KernelSocket::bind(at(FAR4, 9)).unwrap();
        (sink, TcpListener::bind(at(FAR4, 9)).unwrap())
    }));
    sink.set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let time = Duration::from_millis(700);
    // Datagrams a second that arrive, and bytes a second.
    let measure = || {
        let sender = Going::in_peer(
            || KernelSocket::bind(at(PEER4, 0)).unwrap(),
            |socket| drop(socket.send_to(&[0; 1000], at(FAR4, 9))),
        );
        let mut buffer = vec![0; 65_536];
        sink.recv_from(&mut buffer).unwrap();
        let begin = Instant::now();
        let mut datagrams = 0u64;
        while begin.elapsed() < time {
            datagrams += u64::from(sink.recv_from(&mut buffer).is_ok());
        }
        let datagrams = datagrams as f64 / begin.elapsed().as_secs_f64();
        sender.finish();
        while sink.recv_from(&mut buffer).is_ok() {}
        let mut stream = in_peer(|| TcpStream::connect_timeout(&at(FAR4, 9), ONCE).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || {
            let (mut bytes, begin) = (0, Instant::now());
            loop {
                match server.read(&mut buffer).unwrap() {
                    0 => break bytes as f64 / begin.elapsed().as_secs_f64(),
                    got => bytes += got,
                }
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < time {
            stream.write_all(&[0; 65_536]).unwrap();
        }
        drop(stream);
        [datagrams, reader.join().unwrap()]
    };
    measure();
    // The cost of any native program on a veth: its peer then splits segments itself.
    let pass = format!("{}/pass.bpf.o", std::env::temp_dir().display());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/pass.bpf.c");
    shell(&format!(
        "clang -O2 -target bpf -I/usr/include/$(uname -m)-linux-gnu -c {source} -o {pass}"
    ));
    let measure_passing = || {
        shell(&format!("ip link set dev {HERE} xdpdrv obj {pass} sec xdp"));
        let passing = measure();
        shell(&format!("ip link set dev {HERE} xdpdrv off"));
        passing
    };
    let mut ratios = [const { Vec::new() }; 4];
    let rounds = if figures() { 8 } else { 2 };
    for round in 0..rounds {
        let without = measure();
        // In turns, so that neither is always the one after.
        let mut passing = (round % 2 == 0).then(measure_passing);
        let stack = stack();
        let with = measure();
        let frames = class(&stack, "forwarded");
        drop(stack);
        let passing = *passing.get_or_insert_with(measure_passing);
        println!(
            "UDP/s and TCP B/s without a program {without:.0?}, with one that passes {passing:.0?}, \
             with a stack {with:.0?}; {frames:?}"
        );
        assert!(frames.0 > 1_000 && frames.1 == 0, "{frames:?}");
        for (of, ratios) in ratios.iter_mut().enumerate() {
            ratios.push(with[of % 2] / [without, passing][of / 2][of % 2]);
        }
    }
    shell(&format!("rm {pass}"));
    for (of, mut ratios) in ratios.into_iter().enumerate() {
        ratios.sort_by(f64::total_cmp);
        let median = f64::midpoint(ratios[rounds / 2 - 1], ratios[rounds / 2]);
        println!(
            "{} forwarded with a stack / {}: {median:.3} {ratios:.3?}",
            ["UDP", "TCP"][of % 2],
            ["without", "with a program that passes"][of / 2]
        );
        if figures() && of >= 2 {
            assert!(median >= 0.97, "{median}");
        }
    }
}
