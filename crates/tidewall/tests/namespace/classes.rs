//! Traffic classes on two queues.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall::tuning::Architecture;
use tidewall::{EmbeddedConfig, Stack, TrafficClass, UdpSocket};

use super::support::*;

/// Port of the lower class.
const BELOW: u16 = 7001;
/// Datagrams a burst of the flood, and the time between two bursts: 20,000/s.
const BURST: u32 = 20;
const GAP: Duration = Duration::from_millis(1);
const FLOOD: Duration = Duration::from_millis(800);

fn class(port: u16) -> TrafficClass {
    TrafficClass {
        ports: vec![port],
        budget: None,
    }
}

fn classed(ports: &[u16]) -> EmbeddedConfig {
    let classes: Vec<_> = ports.iter().copied().map(class).collect();
    config().classes(classes)
}

fn refused(config: EmbeddedConfig) -> String {
    let error = Stack::embedded(config).expect_err("refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    error.to_string()
}

/// Binds the calling thread to a processor, and so to a transmit queue.
fn stay_on(cpu: usize) {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
    shell(&format!("taskset -cp {cpu} {thread}"));
}

pub fn more_classes_than_queues_are_refused() {
    let text = refused(classed(&[SERVICE, BELOW, 7002]));
    assert!(text.contains("3 traffic classes"), "{text}");
    assert!(text.contains("has 2"), "{text}");
    let text = refused(classed(&[SERVICE, BELOW]).architecture(Architecture::Softirq));
    assert!(
        text.contains("tidewall") && text.contains("softirq"),
        "{text}"
    );
    // Nothing was taken.
    drop(stack());
}

pub fn a_veth_says_that_it_cannot_steer() {
    let stack = Stack::embedded(classed(&[SERVICE, BELOW])).unwrap();
    let warnings = stack.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["does not support steering", "xps_cpus", HERE] {
        assert!(warnings[0].contains(part), "{part} is not in {warnings:?}");
    }
}

pub fn the_first_class_is_served_beside_a_flood_of_the_second() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        tidewall_skip::inapplicable(
            "the_first_class_is_served_beside_a_flood_of_the_second",
            "two transmit queues are chosen by two processors",
        );
        return;
    }
    let stack = Stack::embedded(classed(&[SERVICE, BELOW])).unwrap();
    // As the warning says: the peer's transmit queue, which its processor
    // chooses, is the receive queue here.
    let peer = peer_namespace();
    shell(&format!(
        "ip netns exec {peer} sh -ec 'cd /sys/class/net/{PEER}/queues; \
         echo 1 > tx-0/xps_cpus; echo 2 > tx-1/xps_cpus'"
    ));
    let below = UdpSocket::bind(&stack, at(Ipv4Addr::UNSPECIFIED, BELOW)).unwrap();
    below
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let drain = std::thread::spawn({
        let ended = ended.clone();
        move || {
            let mut received = 0;
            while !ended.load(Ordering::Acquire) {
                received += below.recv_batch(64, |_| {}).unwrap_or(0);
            }
            received
        }
    });
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    let flood = {
        let socket = peer_socket(PEER4);
        std::thread::spawn(move || {
            stay_on(1);
            let start = Instant::now();
            let mut due = start;
            let mut sent = 0u32;
            while start.elapsed() < FLOOD {
                for _ in 0..BURST {
                    sent += u32::from(socket.send_to(b"below", at(HERE4, BELOW)).is_ok());
                }
                due += GAP;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            sent
        })
    };
    // After the services' threads, which may run anywhere.
    stay_on(0);
    let mut asked = 0;
    while !flood.is_finished() {
        assert!(
            ask_once(&client, at(HERE4, SERVICE), b"a question"),
            "question {asked} was not answered: {:?}",
            stack.snapshot()
        );
        asked += 1;
    }
    assert!(flood.join().unwrap() > 0 && asked > 0);
    ended.store(true, Ordering::Release);
    assert!(drain.join().unwrap() > 0, "the class below got nothing");
    assert_eq!(echo.finish(), asked);
    let delivered: Vec<u64> = stack
        .snapshot()
        .queues
        .iter()
        .map(|q| q.delivered)
        .collect();
    // The first few of a stack may be NAPI probes, on a separate path. The flood's first
    // burst may leave before its thread is on its CPU.
    assert!(
        delivered[0].abs_diff(asked) <= 8 + asked / 100 && delivered[1] > 0,
        "{asked} asked on queue 0: {delivered:?}"
    );
}
