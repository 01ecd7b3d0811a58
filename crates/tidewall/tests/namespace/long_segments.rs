//! Long segments over a veth: who cuts them, their order, and what drops them.

use std::net::{IpAddr, Shutdown, TcpListener as KernelListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewall::snapshot::QueueSnapshot;
use tidewall::tcp::Info;
use tidewall::{Stack, TcpStream};

use super::support::*;
use super::tcp_bulk::{receive_all, send_all, send_all_from};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Ends those who watch a flag, also when what they stand beside fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A kernel receiver in the peer's namespace, which checks each byte.
fn receiver(address: IpAddr, total: usize) -> (u16, JoinHandle<()>) {
    let listener = in_peer(move || KernelListener::bind((address, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let thread = spawn_in_peer(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        receive_all(&stream, total);
    });
    (port, thread)
}

/// Sends so many bytes to the kernel of the peer, and says how that went.
fn send_to_peer(stack: &Stack, address: impl Into<IpAddr>, total: usize) -> Info {
    let address = address.into();
    let (port, thread) = receiver(address, total);
    let stream = TcpStream::connect(stack, at(address, port)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    send_all(&stream, total);
    stream.shutdown(Shutdown::Write).unwrap();
    thread.join().unwrap();
    stream.info().unwrap()
}

fn queue(stack: &Stack) -> QueueSnapshot {
    stack.snapshot().queues.remove(0)
}

fn features(settings: &str) {
    shell(&format!("ethtool -K {HERE} {settings}"));
}

pub fn long_segments_arrive_whole_whoever_cuts_them() {
    const TOTAL: usize = 16 << 20;
    let cases = [
        ("tso on", "by the device"),
        ("tso off", "by the kernel"),
        ("tso off gso off sg off", "by the kernel"),
        ("tso on gso on sg on tx off", "by the kernel"),
    ];
    for (settings, by) in cases {
        features(settings);
        let stack = stack();
        let device = stack.snapshot().device.unwrap();
        assert!(device.segmentation.starts_with(by), "{settings}: {device}");
        for address in [IpAddr::from(PEER4), IpAddr::from(PEER6)] {
            let before = queue(&stack);
            let info = send_to_peer(&stack, address, TOTAL);
            let now = queue(&stack);
            let bytes = now.long_bytes - before.long_bytes;
            let count = now.long_segments - before.long_segments;
            assert!(
                bytes > TOTAL as u64 * 9 / 10,
                "{settings}: {bytes} of {TOTAL}"
            );
            assert!(bytes / count > 8000, "{settings}: {bytes} in {count}");
            assert!(now.transmitted > before.transmitted + (TOTAL / 1460) as u64);
            assert_eq!(now.long_dropped, 0, "{settings}");
            assert_eq!(info.reordering_seen, 0, "{settings}: {info:?}");
        }
    }
}

pub fn features_may_change_while_long_segments_leave() {
    const TOTAL: usize = 192 << 20;
    let stack = stack();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for settings in ["tso off", "tx off", "tx on tso on gso on"].iter().cycle() {
                features(settings);
                std::thread::sleep(Duration::from_millis(20));
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _end = SetOnDrop(&done);
        send_to_peer(&stack, PEER4, TOTAL);
    });
    assert!(queue(&stack).long_bytes > TOTAL as u64 / 2);
}

/// Changes of a link while bytes leave, each with the command that undoes it.
fn troubles() -> Vec<(String, String)> {
    let namespace = peer_namespace();
    let mtu = |mtu: u32| {
        format!("ip link set {HERE} mtu {mtu}; ip -n {namespace} link set {PEER} mtu {mtu}")
    };
    let nothing = String::new();
    let mut troubles = vec![
        (format!("ethtool -K {HERE} tso off"), nothing.clone()),
        (format!("ethtool -K {HERE} gso off sg off"), nothing.clone()),
        (format!("ethtool -K {HERE} tx off"), nothing.clone()),
        (
            format!("ethtool -K {HERE} tx on sg on tso on gso on"),
            nothing,
        ),
        (mtu(1300), mtu(1500)),
        (
            format!("tc qdisc replace dev {HERE} root tbf rate 2gbit burst 500kb latency 5ms"),
            format!("tc qdisc del dev {HERE} root"),
        ),
    ];
    if tidewall_skip::has_programs("losses and drops of long segments", &["nft"]) {
        let undo = "nft delete table netdev tw";
        troubles.push((
            format!(
                "nft add table netdev tw
                 nft add chain netdev tw out '{{ type filter hook egress device {HERE} priority 0; }}'
                 nft add rule netdev tw out meta length '>' 4000 drop"
            ),
            undo.to_owned(),
        ));
        // At the other end, since an AF_XDP frame passes no hook at this one.
        troubles.push((
            format!(
                "ip netns exec {namespace} nft -f - <<'E'
                 table netdev tw {{ chain in {{
                     type filter hook ingress device {PEER} priority 0;
                     numgen random mod 100 == 0 drop
                 }}; }}
E"
            ),
            format!("ip netns exec {namespace} {undo}"),
        ));
    }
    troubles
}

/// `TIDEWALL_BULK_MIB` sets how much is sent; 100,000 takes minutes, for which
/// `TIDEWALL_TEST_SECONDS` has to make room.
pub fn every_byte_is_right_whatever_happens_to_the_link() {
    let asked = std::env::var("TIDEWALL_BULK_MIB");
    let total = asked.map_or(512, |mib| mib.parse::<usize>().unwrap()) << 20;
    let stack = stack();
    let done = AtomicBool::new(false);
    let (info, rounds) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let troubles = troubles();
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                for (trouble, undo) in &troubles {
                    shell(trouble);
                    std::thread::sleep(Duration::from_millis(30));
                    shell(undo);
                }
                rounds += 1;
            }
            rounds
        });
        let end = SetOnDrop(&done);
        let info = send_to_peer(&stack, PEER4, total);
        drop(end);
        (info, changing.join().unwrap())
    });
    let now = queue(&stack);
    println!(
        "{} MiB right beside {rounds} rounds of changes: {} in long segments, {} sent again, \
         {} refused, {} timeouts",
        total >> 20,
        now.long_bytes >> 20,
        info.retransmissions,
        now.long_dropped + now.long_no_room,
        info.timeouts,
    );
    assert!(rounds > 0 && info.retransmissions > 0, "{info:?}");
    assert!(now.long_bytes > total as u64 / 4, "{now:?}");
}

pub fn a_smaller_mtu_is_kept_to_at_once() {
    const TOTAL: usize = 48 << 20;
    let stack = stack();
    let namespace = peer_namespace();
    let set = |mtu: u32| {
        shell(&format!(
            "ip link set {HERE} mtu {mtu}; ip -n {namespace} link set {PEER} mtu {mtu}"
        ));
    };
    let (port, thread) = receiver(PEER4.into(), TOTAL);
    let stream = TcpStream::connect(&stack, at(PEER4, port)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    send_all(&stream, TOTAL / 2);
    set(1300);
    send_all_from(&stream, TOTAL / 2, TOTAL);
    stream.shutdown(Shutdown::Write).unwrap();
    thread.join().unwrap();
    let info = stream.info().unwrap();
    assert!(info.send_mss <= 1260, "{info:?}");
    assert_eq!(info.timeouts, 0, "{info:?}");
    // A connection that begins now.
    let info = send_to_peer(&stack, PEER6, TOTAL / 8);
    assert!(info.send_mss <= 1240, "{info:?}");
    set(1500);
    let info = send_to_peer(&stack, PEER4, TOTAL / 8);
    assert!(info.send_mss > 1400, "{info:?}");
}

pub fn segments_keep_their_order_behind_a_shaper() {
    const TOTAL: usize = 24 << 20;
    shell(&format!(
        "tc qdisc replace dev {HERE} root tbf rate 400mbit burst 200kb latency 20ms"
    ));
    let stack = stack();
    let info = send_to_peer(&stack, PEER4, TOTAL);
    let now = queue(&stack);
    assert!(now.long_bytes > TOTAL as u64 / 2, "{now:?}");
    assert_eq!(info.reordering_seen, 0, "{info:?}");
}

pub fn a_rule_that_drops_long_segments_is_counted_and_ends_with_it() {
    let name = "a_rule_that_drops_long_segments_is_counted_and_ends_with_it";
    if !tidewall_skip::has_programs(name, &["nft"]) {
        return;
    }
    const TOTAL: usize = 24 << 20;
    let stack = stack();
    let (port, thread) = receiver(PEER4.into(), TOTAL);
    let stream = TcpStream::connect(&stack, at(PEER4, port)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    shell(&format!(
        "nft add table netdev tw
         nft add chain netdev tw out '{{ type filter hook egress device {HERE} priority 0; }}'
         nft add rule netdev tw out meta length '>' 4000 drop"
    ));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&stream, TOTAL);
            stream.shutdown(Shutdown::Write).unwrap();
        });
        assert!(wait_until(|| queue(&stack).long_dropped > 3));
        // A rule that stays is asked less and less often.
        let before = queue(&stack).long_dropped;
        std::thread::sleep(Duration::from_secs(1));
        let asked = queue(&stack).long_dropped - before;
        assert!(asked < 100, "{asked} tries in a second");
        shell("nft delete table netdev tw");
    });
    thread.join().unwrap();
}
