//! Virtual pairs of private domains, in their own network namespace.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, Map, MapData};
use aya::{Ebpf, EbpfLoader};
use tidewall_device::afxdp::open_transmitter;
use tidewall_device::demux::layout::{DEPARTURES, Protocol, Sent};
use tidewall_device::demux::{KernelMaps, TrustedTables, programs};
use tidewall_manager::domains::pair::Pairs;
use tidewall_manager::domains::programs::PairPrograms;
use tidewall_manager::domains::stock::Stock;
use tidewall_manager::domains::threaded;
use tidewall_manager::{Program, XdpMode};
use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;
use tidewall_wire::ethernet::MacAddress;

const INTERFACE: &str = "tw-here";
const PEER: &str = "tw-peer";
const MTU: u32 = 1500;

/// Runs a body of the same name in a namespace that ends with it.
fn run(name: &str) {
    let script = format!(
        "ip link add {INTERFACE} type veth peer name {PEER} || exit 3
         ip link set lo up; ip link set {INTERFACE} up; ip link set {PEER} up
         mount -t sysfs sysfs /sys || exit 3
         timeout -k 5 60 \"$SELF\" --exact inside::{name} --ignored --nocapture"
    );
    tidewall_skip::in_namespaces(name, &script, "veth, CAP_SYS_ADMIN");
}

#[test]
fn pairs_are_made_and_nothing_is_left_of_them() {
    run("pairs_are_made_and_nothing_is_left_of_them");
}

#[test]
fn a_forged_frame_never_leaves_a_pair() {
    run("a_forged_frame_never_leaves_a_pair");
}

#[test]
fn a_thread_polls_a_device_until_it_is_put_back() {
    run("a_thread_polls_a_device_until_it_is_put_back");
}

/// All programs of a device, loaded.
struct Loaded {
    maps: Ebpf,
    programs: Arc<PairPrograms>,
}

fn load() -> Loaded {
    let mut maps = EbpfLoader::new().btf(None).load(programs::DEMUX).unwrap();
    let programs = Arc::new(PairPrograms::load(&mut maps).unwrap());
    Loaded { maps, programs }
}

fn index() -> u32 {
    interface::index(INTERFACE).unwrap()
}

/// Interfaces other than the test's own three.
fn others() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/sys/net/ipv4/conf").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let ours = ["all", "default", "lo", INTERFACE, PEER];
    let mut others: Vec<_> = names
        .filter(|name| !ours.contains(&name.as_str()))
        .collect();
    others.sort();
    others
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn pairs_are_made_and_nothing_is_left_of_them() {
        let loaded = load();
        let device = index();
        let open = || Pairs::open(device, MTU, Arc::clone(&loaded.programs));
        let mut pairs = open().unwrap();
        let keeper = others();
        assert_eq!(keeper.len(), 2, "{keeper:?}");
        let made: Vec<_> = (0..3).map(|_| pairs.make().unwrap()).collect();
        assert_eq!(others().len(), 8);
        let mut netlink = Rtnetlink::open().unwrap();
        for pair in &made {
            for end in [pair.near, pair.far] {
                let link = netlink.link(end).unwrap();
                assert!(link.up, "{link:?}");
                assert_eq!(link.mtu, Some(MTU as usize));
                // The kernel does not use IPv6 there by itself.
                let addresses = netlink.addresses().unwrap();
                assert!(!addresses.iter().any(|(at, _)| *at == end));
            }
        }
        // One that cannot be finished leaves nothing.
        pairs.set_mtu(u32::from(u16::MAX) + 1);
        pairs.make().unwrap_err();
        assert_eq!(others().len(), 8);
        pairs.set_mtu(MTU);

        // A successor finds them, leaves those in use, and assigns no name twice.
        drop(pairs);
        let mut pairs = open().unwrap();
        let fourth = pairs.make().unwrap();
        pairs.delete_unused(&[made[1].near]).unwrap();
        assert_eq!(others().len(), 4);
        assert!(netlink.link(made[1].near).is_ok());
        assert!(netlink.link(fourth.near).is_err());
        // Pairs that are already gone are not an error.
        let near: Vec<u32> = made.iter().map(|pair| pair.near).collect();
        pairs.delete(&near).unwrap();
        assert_eq!(others(), keeper);

        let stock = Stock::start(2, pairs).unwrap();
        let mut taken = Vec::new();
        wait_until("five are made", || {
            taken.extend(stock.take());
            taken.len() == 5
        });
        taken.drain(..2).for_each(|pair| stock.end(pair));
        taken.drain(..).for_each(|pair| stock.give_back(pair));
        wait_until("the surplus is taken away", || others().len() == 6);
        drop(stock);
        assert_eq!(others(), keeper);
        Pairs::remove_all(device).unwrap();
        assert!(others().is_empty());
        // Nothing to remove is fine.
        Pairs::remove_all(device).unwrap();
    }

    fn frame(ethertype: u16, port: u16) -> Vec<u8> {
        let mut frame = [[2; 6], LINK].concat();
        frame.extend(ethertype.to_be_bytes());
        frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 9, 0, 8, 0, 0]);
        frame
    }

    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x17];
    const APPLICATION: u32 = 5;
    const PORT: u16 = 4000;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_forged_frame_never_leaves_a_pair() {
        let Loaded { mut maps, programs } = load();
        let mut take = |name: &str| maps.take_map(name).unwrap();
        let kernel = KernelMaps {
            owners: HashMap::try_from(take("owners")).unwrap(),
            fragments: HashMap::try_from(take("fragments")).unwrap(),
        };
        let mut near_ends: HashMap<MapData, u32, u32> = take("near_ends").try_into().unwrap();
        let departures: Array<MapData, [u64; DEPARTURES]> = take("departures").try_into().unwrap();
        let mut array = |name| match take(name) {
            Map::Array(map) => map,
            _ => panic!("another kind of map"),
        };
        let (device, queues) = (array("device"), array("queues"));
        let trusted =
            TrustedTables::of_maps(device.fd().as_fd(), queues.fd().as_fd(), kernel, [1, 2])
                .unwrap();
        let here: IpAddr = [192, 0, 2, 1].into();
        trusted.set_locals(&[here]).unwrap();
        trusted.set_device(index(), MacAddress(LINK), MTU);
        let own = trusted.own_port(Protocol::Udp, None, PORT, APPLICATION as u16);
        own.unwrap();

        let mut pairs = Pairs::open(index(), MTU, programs).unwrap();
        let pair = pairs.make().unwrap();
        near_ends.insert(pair.near, APPLICATION, 0).unwrap();
        let mut netlink = Rtnetlink::open().unwrap();
        let far = netlink.link(pair.far).unwrap().name;
        let (mut transmit, memory, mut frames) = open_transmitter(&far, 0, 64).unwrap();
        let mut send = |bytes: &[u8]| {
            let mut frame = frames.pop().unwrap();
            frame.set_extent(transmit.headroom(), bytes.len() as u16);
            memory.packet_mut(&mut frame).copy_from_slice(bytes);
            transmit.transmit(frame, None).unwrap();
            assert_eq!(transmit.flush().unwrap().left, 0);
        };
        let counted = || departures.get(&APPLICATION, 0).unwrap();
        let peer = interface::index(PEER).unwrap();
        let mut arrived = || netlink.link(peer).unwrap().counters.unwrap().rx_packets;

        let before = arrived();
        let mut wanted = [0; DEPARTURES];
        let mut tagged = frame(0x8100, 0);
        // A tag, which the kernel removes before it runs the program.
        tagged.truncate(14);
        tagged.extend([0, 7]);
        tagged.extend(&frame(0x0800, PORT)[12..]);
        let forged = [
            (tagged, Sent::Type),
            (frame(0x0806, PORT), Sent::Type),
            (frame(0x0800, PORT + 1), Sent::Port),
            (
                [[3; 12].to_vec(), frame(0x0800, PORT)[12..].to_vec()].concat(),
                Sent::Link,
            ),
        ];
        for (bytes, cause) in &forged {
            send(bytes);
            wanted[*cause as usize] += 1;
            wait_until("it is counted", || counted() == wanted);
        }
        // Sent after all of them, so that they would have arrived first.
        send(&frame(0x0800, PORT));
        wanted[Sent::Passed as usize] += 1;
        wait_until("it is counted", || counted() == wanted);
        wait_until("the good one arrives", || arrived() > before);
        assert_eq!(arrived(), before + 1);
        // Nothing leaves by a pair in stock.
        near_ends.remove(&pair.near).unwrap();
        send(&frame(0x0800, PORT));
        let nobody = tidewall_device::demux::layout::APPLICATIONS as u32;
        wait_until("it is counted", || {
            departures.get(&nobody, 0).unwrap()[Sent::Nobody as usize] == 1
        });
        assert_eq!(arrived(), before + 1);
        Pairs::remove_all(index()).unwrap();
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_thread_polls_a_device_until_it_is_put_back() {
        // A veth without a program has no NAPI.
        threaded::set(INTERFACE, index()).unwrap_err();
        let mut program = Program::load().unwrap();
        program.attach(INTERFACE, XdpMode::Native).unwrap();
        let before = threaded::read(INTERFACE, index()).unwrap();
        assert!(!before.threaded);
        let thread = || {
            let output = Command::new("ps")
                .args(["-eo", "ni,pid,comm"])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let name = format!("napi/{INTERFACE}-");
            let line = text.lines().find(|line| line.contains(&name))?;
            let mut words = line.split_whitespace();
            let nice: i32 = words.next()?.parse().ok()?;
            Some((nice, words.next()?.to_owned()))
        };
        for _ in 0..2 {
            threaded::set(INTERFACE, index()).unwrap();
            assert!(threaded::read(INTERFACE, index()).unwrap().threaded);
            assert_eq!(thread().unwrap().0, 5);
        }
        // A priority that an operator has set stays.
        let process = thread().unwrap().1;
        let mut renice = Command::new("renice");
        renice.args(["-n", "7", "-p", &process]);
        assert!(renice.status().unwrap().success());
        threaded::set(INTERFACE, index()).unwrap();
        assert_eq!(thread().unwrap().0, 7);
        threaded::put_back(INTERFACE, index(), before).unwrap();
        assert_eq!(threaded::read(INTERFACE, index()).unwrap(), before);
    }
}
