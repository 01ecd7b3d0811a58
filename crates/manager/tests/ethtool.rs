//! Requests to a card, tested against the kernel: a veth pair, which refuses coalescing
//! and rules, and a tap, which takes rx-frames. It runs in its own namespace; the parts
//! that run inside it are ignored unless named.

use std::fs;
use std::io::{ErrorKind, Read, stdin};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::Protocol;
use tidewall_manager::adaptor::{Adaptor, Card};
use tidewall_manager::ethtool::{
    Channels, Coalescing, Features, Filters, Moderation, Narrowed, NtupleRule, Steering, xps,
};
use tidewall_manager::restore::Restorer;

/// Makes a veth pair `twa`/`twb` of two queues and, where it can, a tap `twt`.
/// They end with the shell, as does its view of /sys.
const DEVICES: &str = r#"
mount -t sysfs tw-sys /sys || exit 1
ip link add twa numrxqueues 2 numtxqueues 2 type veth \
    peer name twb numrxqueues 2 numtxqueues 2 || exit 1
ip tuntap add dev twt mode tap 2> /dev/null && ethtool -C twt rx-frames 3 || echo NO-TAP
trap 'rm -f "$FIFO"' EXIT
part() { "$SELF" --exact --ignored --nocapture "$1"; }
"#;

/// Runs `script` after [`DEVICES`] and returns its output, or `None`, with a message,
/// where namespaces may not be created.
fn in_namespace(name: &str, script: &str) -> Option<String> {
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c"])
        .arg(format!("{DEVICES}{script}"))
        .env("SELF", std::env::current_exe().unwrap())
        .env(
            "FIFO",
            std::env::temp_dir().join(format!("tw-{name}-{}", std::process::id())),
        )
        .output()
        .expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    if all.contains("unshare failed: Operation not permitted") {
        tidewall_skip::missing(name, "CAP_SYS_ADMIN");
        return None;
    }
    if all.contains("NO-TAP") {
        tidewall_skip::missing(name, "for its tap: /dev/net/tun and ethtool(8)");
    }
    Some(all)
}

/// The ends of lines: on one CPU the test's own name stands before them.
fn assert_said(all: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            all.lines().any(|said| said.trim_end().ends_with(line)),
            "no {line} in:\n{all}"
        );
    }
}

#[test]
fn devices_that_cannot_say_so_and_what_to_do() {
    if let Some(all) = in_namespace("refusals", "part veth_refuses") {
        assert_said(&all, &["REFUSED"]);
    }
}

#[test]
#[ignore = "a part of devices_that_cannot_say_so_and_what_to_do"]
fn veth_refuses() {
    let restorer = Restorer::start().unwrap();
    for interface in ["twa", "lo"] {
        let error = Coalescing::take(&restorer, interface).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            format!(
                "{interface}: the device does not support rx-usecs (interrupt coalescing, \
                 ethtool -C); T of a virtual device is its gro_flush_timeout in /sys/class/net"
            )
        );
        let error = Moderation::read(interface).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);

        let flow = NtupleRule {
            protocol: Protocol::Udp,
            address: None,
            port: 53,
        };
        let error = Filters::enable(&restorer, interface).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
        assert!(
            text.contains("/sys/class/net/PEER/queues/tx-N/xps_cpus"),
            "{text}"
        );
        let error = Narrowed::without_last(&restorer, interface).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = Card::new(interface, &restorer).steer(flow, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = Steering::add(&restorer, interface, flow, 0).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
        assert!(
            text.starts_with(&format!(
                "{interface}: the device does not support steering flows to receive queues"
            )),
            "{text}"
        );
        assert!(
            text.contains("/sys/class/net/PEER/queues/tx-N/xps_cpus"),
            "{text}"
        );
        assert!(
            text.contains(&format!("ethtool -K {interface} ntuple on")),
            "{text}"
        );
    }

    let channels = Channels::read("twa").unwrap();
    assert_eq!((channels.receive(), channels.transmit()), (2, 2));
    let error = Channels::read("lo").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    // A caller's mistakes, reported before the device is asked.
    let flow = |port| NtupleRule {
        protocol: Protocol::Tcp,
        address: Some("192.0.2.1".parse().unwrap()),
        port,
    };
    let wrong = |error: std::io::Error, kind, part: &str| {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    let add = |interface, port, queue| {
        Steering::add(&restorer, interface, flow(port), queue).unwrap_err()
    };
    wrong(
        add("twa", 80, 2),
        ErrorKind::InvalidInput,
        "no receive queue 2, it has 2",
    );
    wrong(add("twa", 0, 0), ErrorKind::InvalidInput, "port 0");
    wrong(add("tw-absent", 80, 0), ErrorKind::NotFound, "tw-absent");
    wrong(
        add("a/b", 80, 0),
        ErrorKind::InvalidInput,
        "not an interface name",
    );
    let error = Coalescing::take(&restorer, "tw-absent").unwrap_err();
    wrong(error, ErrorKind::NotFound, "tw-absent: rx-usecs");
    println!("REFUSED");
}

#[test]
fn transmit_queues_come_back() {
    let script = r#"
part xps_is_set_and_restored
mask() { cat /sys/class/net/twa/queues/tx-1/xps_cpus; }
before=$(mask)
mkfifo "$FIFO" || exit 1
"$SELF" --exact --ignored --nocapture xps_until_killed < "$FIFO" & child=$!
exec 3> "$FIFO"
for i in $(seq 200); do [ "$(mask)" = "$before" ] || break; sleep 0.02; done
[ "$(mask)" = "$before" ] || echo CHANGED
kill -9 $child
wait $child 2> /dev/null
for i in $(seq 200); do [ "$(mask)" = "$before" ] && break; sleep 0.02; done
[ "$(mask)" = "$before" ] && echo BACK
"#;
    if let Some(all) = in_namespace("xps", script) {
        assert_said(&all, &["RESTORED", "CHANGED", "BACK"]);
    }
}

/// The mask of `twa`'s second transmit queue without leading zeros and words.
fn mask() -> String {
    let text = fs::read_to_string("/sys/class/net/twa/queues/tx-1/xps_cpus").unwrap();
    text.trim().trim_start_matches(['0', ',']).to_owned()
}

#[test]
#[ignore = "a part of transmit_queues_come_back"]
fn xps_is_set_and_restored() {
    let restorer = Restorer::start().unwrap();
    assert_eq!(mask(), "");
    let knob = xps::set(&restorer, "twa", 1, &[0]).unwrap();
    assert_eq!(mask(), "1");
    drop(knob);
    assert_eq!(mask(), "");

    let error = xps::set(&restorer, "twa", 2, &[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(
        text.starts_with("/sys/class/net/twa/queues/tx-2/xps_cpus: "),
        "{text}"
    );
    // More than this kernel was built for, or this machine can have.
    let error = xps::set(&restorer, "twa", 1, &[8191]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("/sys/class/net/twa/queues/tx-1/xps_cpus: "),
        "{text}"
    );
    assert_eq!(mask(), "");
    println!("RESTORED");
}

#[test]
#[ignore = "a part of transmit_queues_come_back"]
fn xps_until_killed() {
    let restorer = Restorer::start().unwrap();
    let _knob = xps::set(&restorer, "twa", 1, &[0]).unwrap();
    wait_to_be_killed();
}

/// The other end of this pipe stays open.
fn wait_to_be_killed() {
    let mut end = Vec::new();
    assert_eq!(stdin().read_to_end(&mut end).unwrap(), 0);
}

#[test]
fn the_peers_transmit_queue_decides_on_veth() {
    let name = "the_peers_transmit_queue_decides_on_veth";
    if std::thread::available_parallelism().unwrap().get() < 2 {
        tidewall_skip::inapplicable(name, "two CPUs");
        return;
    }
    // Counted by the poll, which veth uses for frames of a sender without TSO.
    let script = r#"
ip addr add 192.0.2.1/24 dev twb && ip link set twa up && ip link set twb up || exit 1
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev twb || exit 1
ethtool -K twa gro on && ethtool -K twb tso off || echo NO-ETHTOOL
taskset -c 0 "$SELF" --exact --ignored --nocapture xps_steers_veth
"#;
    if let Some(all) = in_namespace("steer", script) {
        if all.contains("NO-ETHTOOL") {
            tidewall_skip::missing(name, "ethtool(8)");
        } else {
            assert_said(&all, &["STEERED"]);
        }
    }
}

#[test]
#[ignore = "a part of the_peers_transmit_queue_decides_on_veth"]
fn xps_steers_veth() {
    const FRAMES: u64 = 200;
    let received = || {
        let output = Command::new("ethtool")
            .args(["-S", "twa"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        [0, 1].map(|queue| {
            let name = format!("rx_queue_{queue}_xdp_packets: ");
            let mut counts = text.lines().map(str::trim);
            let count = counts.find_map(|line| line.strip_prefix(&name)).unwrap();
            count.parse::<u64>().unwrap()
        })
    };
    let restorer = Restorer::start().unwrap();
    // We run on CPU 0: first it owns transmit queue 1, then 0.
    for (ours, other) in [(1, 0), (0, 1)] {
        let _ours = xps::set(&restorer, "twb", ours, &[0]).unwrap();
        let _other = xps::set(&restorer, "twb", other, &[1]).unwrap();
        let before = received();
        // A socket remembers its queue, so a new one each time.
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        for _ in 0..FRAMES {
            socket.send_to(b"tidewall", "192.0.2.2:53").unwrap();
        }
        let count = |queue: u32| {
            let queue = queue as usize;
            received()[queue] - before[queue]
        };
        let end = Instant::now() + Duration::from_secs(5);
        while count(ours) < FRAMES && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(count(ours) >= FRAMES, "{before:?} {:?}", received());
        // The kernel's own few, such as neighbour solicitations.
        assert!(count(other) < FRAMES / 2, "{before:?} {:?}", received());
    }
    println!("STEERED");
}

#[test]
fn coalescing_comes_back() {
    let script = r#"
part coalescing_is_set_and_restored
frames() { ethtool -c twt | sed -n 's/^rx-frames:[[:space:]]*//p'; }
[ "$(frames)" = 3 ] && echo DROPPED
mkfifo "$FIFO" || exit 1
"$SELF" --exact --ignored --nocapture coalescing_until_killed < "$FIFO" & child=$!
exec 3> "$FIFO"
for i in $(seq 200); do [ "$(frames)" = 8 ] && break; sleep 0.02; done
[ "$(frames)" = 8 ] && echo CHANGED
kill -9 $child
wait $child 2> /dev/null
for i in $(seq 200); do [ "$(frames)" = 3 ] && break; sleep 0.02; done
[ "$(frames)" = 3 ] && echo BACK
"#;
    if let Some(all) = in_namespace("coalescing", script)
        && !all.contains("NO-TAP")
    {
        assert_said(&all, &["RESTORED", "DROPPED", "CHANGED", "BACK"]);
    }
}

#[test]
#[ignore = "a part of coalescing_comes_back"]
fn coalescing_is_set_and_restored() {
    let restorer = Restorer::start().unwrap();
    let frames = || Moderation::read("twt").unwrap().frames;
    let coalescing = Coalescing::take(&restorer, "twt").unwrap();
    let old = coalescing.old();
    assert_eq!(
        (old.time, old.frames, old.adaptive),
        (Duration::ZERO, 3, false)
    );
    coalescing.set_frames(16).unwrap();
    assert_eq!(frames(), 16);
    // The tap has no time; only zero can be set.
    assert_eq!(coalescing.set(Duration::ZERO).unwrap(), Duration::ZERO);
    let error = coalescing.set(Duration::from_micros(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.starts_with("twt: the device does not support rx-usecs"),
        "{text}"
    );
    // One knob refused leaves the other under control.
    assert_eq!(frames(), 16);
    coalescing.set_frames(5).unwrap();
    assert_eq!(frames(), 5);
    drop(coalescing);
    assert_eq!(frames(), 3);

    // If left unchanged, it overwrites nothing that others set.
    let coalescing = Coalescing::take(&restorer, "twt").unwrap();
    let set = |count: &str| {
        let status = Command::new("ethtool")
            .args(["-C", "twt", "rx-frames", count])
            .status()
            .unwrap();
        assert!(status.success());
    };
    set("9");
    drop(coalescing);
    assert_eq!(frames(), 9);
    set("3");
    println!("RESTORED");
}

#[test]
#[ignore = "a part of coalescing_comes_back"]
fn coalescing_until_killed() {
    let restorer = Restorer::start().unwrap();
    let coalescing = Coalescing::take(&restorer, "twt").unwrap();
    coalescing.set_frames(8).unwrap();
    wait_to_be_killed();
}

#[test]
fn features_that_went_off_come_back() {
    let name = "features_that_went_off_come_back";
    let script = r#"
gro() { ethtool -k twa | sed -n 's/^generic-receive-offload: //p'; }
ethtool -K twa gro on || echo NO-ETHTOOL
part features_are_put_back
[ "$(gro)" = on ] && echo DROPPED
mkfifo "$FIFO" || exit 1
"$SELF" --exact --ignored --nocapture features_until_killed < "$FIFO" & child=$!
exec 3> "$FIFO"
for i in $(seq 200); do [ "$(gro)" = off ] && break; sleep 0.02; done
[ "$(gro)" = off ] && echo CHANGED
for i in $(seq 200); do [ -e "$FIFO.set" ] && break; sleep 0.02; done
rm -f "$FIFO.set"
kill -9 $child
wait $child 2> /dev/null
for i in $(seq 200); do [ "$(gro)" = on ] && break; sleep 0.02; done
[ "$(gro)" = on ] && echo BACK
"#;
    if let Some(all) = in_namespace("features", script) {
        if all.contains("NO-ETHTOOL") {
            tidewall_skip::missing(name, "ethtool(8)");
        } else {
            assert_said(&all, &["RESTORED", "DROPPED", "CHANGED", "BACK"]);
        }
    }
}

/// Switches GRO of `twa` off, as attaching a program may, and records that.
fn lose_gro(restorer: &Restorer) -> Features {
    let mut features = Features::remember("twa").unwrap();
    let status = Command::new("ethtool")
        .args(["-K", "twa", "gro", "off"])
        .status()
        .unwrap();
    assert!(status.success());
    features.changed(Some(restorer)).unwrap();
    features
}

#[test]
#[ignore = "a part of features_that_went_off_come_back"]
fn features_are_put_back() {
    let restorer = Restorer::start().unwrap();
    let gro = || {
        let output = Command::new("ethtool").args(["-k", "twa"]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.contains("generic-receive-offload: on")
    };
    let features = lose_gro(&restorer);
    assert!(!gro());
    drop(features);
    assert!(gro());
    // An unchanged feature is left alone, whatever happens to it.
    let mut features = Features::remember("twa").unwrap();
    features.changed(Some(&restorer)).unwrap();
    let _other = lose_gro(&restorer);
    drop(features);
    assert!(!gro());
    println!("RESTORED");
}

#[test]
#[ignore = "a part of features_that_went_off_come_back"]
fn features_until_killed() {
    let restorer = Restorer::start().unwrap();
    let _features = lose_gro(&restorer);
    fs::write(format!("{}.set", std::env::var("FIFO").unwrap()), "").unwrap();
    wait_to_be_killed();
}
