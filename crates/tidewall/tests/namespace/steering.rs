//! A flooded port on a veth whose other end steers, as a card would.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket as KernelSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::{EmbeddedConfig, Stack, UdpSocket};
use tidewall_device::demux::programs;

use super::raw_system;
use super::support::*;

/// Port of the flooded socket.
const FLOODED: u16 = 7001;
/// Bytes of a datagram of the flood, and datagrams of a call.
const SIZE: usize = 16;
const CALL: usize = 32;
/// The application takes so long for a datagram, which fewer come than.
const WORK: Duration = Duration::from_micros(40);

/// Attaches what stands for a card to the peer.
fn attach() {
    let object = std::env::temp_dir().join(format!("tw-adaptor-{}.o", std::process::id()));
    std::fs::write(&object, programs::ADAPTOR).unwrap();
    let (peer, path) = (peer_namespace(), object.display());
    shell(&format!(
        "ip netns exec {peer} sh -ec 'tc qdisc add dev {PEER} clsact; \
         tc filter add dev {PEER} egress bpf da obj {path} sec tc'; rm {path}"
    ));
}

/// The card's rule table; 0: it is empty.
fn rule() -> u32 {
    let peer = peer_namespace();
    let file = format!("/sys/class/net/{PEER}/netdev_group");
    let group = shell(&format!("ip netns exec {peer} cat {file}"));
    group.trim().parse().unwrap()
}

fn steered() -> EmbeddedConfig {
    config().steering_peer(&peer_namespace(), PEER)
}

/// A socket that is received from slowly, until it is finished.
struct Slow {
    ended: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Slow {
    fn start(stack: &Stack) -> Slow {
        let socket = bind(stack, at(HERE4, FLOODED));
        let short = Some(Duration::from_millis(20));
        socket.set_read_timeout(short).unwrap();
        let (ended, received) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let thread = std::thread::spawn({
            let (ended, received) = (ended.clone(), received.clone());
            move || Self::receive(&socket, &ended, &received)
        });
        Slow {
            ended,
            received,
            thread,
        }
    }

    fn receive(socket: &UdpSocket, ended: &AtomicBool, received: &AtomicU64) {
        loop {
            let count = socket.recv_batch(16, |_| {}).unwrap_or(0);
            received.fetch_add(count as u64, Ordering::Relaxed);
            let until = Instant::now() + WORK * count as u32;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            // The datagrams that wait have been received by then.
            if count == 0 && ended.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn finish(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.received.load(Ordering::Relaxed)
    }
}

/// Sends datagrams to the flooded port as fast as it goes; returns how many.
fn flood() -> Going<(KernelSocket, u64)> {
    let start = || {
        let socket = KernelSocket::bind((PEER4, 0)).unwrap();
        raw_system::segment(&socket, SIZE as i32).unwrap();
        (socket, 0)
    };
    Going::in_peer(start, |(socket, sent)| {
        if socket
            .send_to(&[1; SIZE * CALL], at(HERE4, FLOODED))
            .is_ok()
        {
            *sent += CALL as u64;
        }
    })
}

/// Frames by cause: delivered, dropped by the full channel, lost in the device's ring.
fn causes(stack: &Stack) -> (u64, u64) {
    let snapshot = stack.snapshot();
    let full = |queue: &tidewall::snapshot::QueueSnapshot| {
        ["channel-full", "application-full"]
            .into_iter()
            .filter_map(|cause| queue.driver.get(cause))
            .sum::<u64>()
    };
    let full = snapshot.queues.iter().map(full).sum();
    (full, snapshot.losses.unwrap().receive_ring)
}

pub fn a_flooded_port_has_a_queue_of_its_own_while_the_flood_lasts() {
    attach();
    let stack = stack_with(steered());
    let echo = Echo::start(&stack, SERVICE);
    let slow = Slow::start(&stack);
    let client = peer_socket(PEER4);
    let mut asked = 0;
    let mut ask = || {
        ask(&client, at(HERE4, SERVICE), b"a question");
        asked += 1;
    };
    until_it_transmits(&stack, &mut ask);
    assert_eq!(rule(), 0);
    let flood = flood();
    let steered = wait_until(|| {
        ask();
        stack.snapshot().steered.is_some()
    });
    assert!(steered, "{:?}", stack.snapshot());
    assert_eq!(stack.snapshot().steered, Some((FLOODED, 1)));
    assert_eq!(rule(), 1 << 24 | 17 << 16 | u32::from(FLOODED));

    // Frames under way to the other queue have come.
    std::thread::sleep(Duration::from_millis(50));
    let (before, received) = (causes(&stack), slow.received.load(Ordering::Relaxed));
    let end = Instant::now() + Duration::from_secs(1);
    let mut lost = 0;
    while Instant::now() < end {
        lost += u32::from(!ask_once(&client, at(HERE4, SERVICE), b"beside the flood"));
    }
    let (after, delivered) = (causes(&stack), slow.received.load(Ordering::Relaxed));
    let (full, ring) = (after.0 - before.0, after.1 - before.1);
    assert_eq!(lost, 0, "questions beside the flood");
    // The polls that keep the device masked cost 32 frames in 4 ms, and its timer more
    // where the threads have no processor for longer.
    assert!(
        delivered > received && ring > 5 * full,
        "the ring lost {ring}, the channel {full}, {} were delivered",
        delivered - received
    );

    let (_, sent) = flood.finish();
    let end = Instant::now();
    assert!(wait_until(|| stack.snapshot().steered.is_none()));
    assert!(
        end.elapsed() >= Duration::from_millis(500),
        "put back at once"
    );
    assert!(wait_until(|| rule() == 0), "{}", rule());
    let received = slow.finish();
    let (full, ring) = causes(&stack);
    // The ring counts the kernel's own frames, too, of which few come.
    let counted = received + full + ring;
    assert!(
        (sent..sent + 16).contains(&counted),
        "{sent} sent, {received} + {full} + {ring} counted"
    );
    let again = || ask_once(&client, at(HERE4, SERVICE), b"after it");
    assert!((0..100).all(|_| again()));
    echo.finish();
}

pub fn a_veth_that_does_not_steer_says_so_once() {
    let stack = Stack::embedded(config()).unwrap();
    let echo = Echo::start(&stack, SERVICE);
    let slow = Slow::start(&stack);
    let flood = flood();
    let warned = || {
        let warnings = stack.warnings();
        let text = format!("UDP port {FLOODED} is flooded");
        warnings.iter().filter(|it| it.contains(&text)).count()
    };
    assert!(wait_until(|| warned() == 1), "{:?}", stack.warnings());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(warned(), 1);
    assert_eq!(stack.snapshot().steered, None);
    flood.finish();
    slow.finish();
    echo.finish();
}

pub fn a_stack_that_must_not_steer_leaves_the_card_alone() {
    attach();
    let stack = stack_with(steered().steer(false));
    let echo = Echo::start(&stack, SERVICE);
    let slow = Slow::start(&stack);
    let flood = flood();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert_eq!((stack.snapshot().steered, rule()), (None, 0));
    }
    flood.finish();
    slow.finish();
    echo.finish();
}

/// The process that the next test kills.
#[test]
#[ignore = "killed by a_killed_owner_leaves_no_rule"]
fn steering_owner() {
    let stack = stack_with(steered());
    let _echo = Echo::start(&stack, SERVICE);
    let _slow = Slow::start(&stack);
    println!("\nready");
    std::thread::sleep(Duration::from_secs(60));
}

pub fn a_killed_owner_leaves_no_rule() {
    attach();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "steering::steering_owner",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let flood = flood();
    assert!(wait_until(|| rule() != 0), "it was not steered");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(wait_until(|| rule() == 0), "the rule is still there");
    flood.finish();
}
