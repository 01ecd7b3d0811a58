//! The socket sender and the ping without any privilege, over loopback.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidewall_load::{
    BlastSpec, LoadSpec, Phase, PingSpec, RateStep, SenderKind, Wait, run, run_until,
    run_with_interval,
};

fn load(blast: Option<BlastSpec>, ping: Option<PingSpec>, milliseconds: u64) -> LoadSpec {
    LoadSpec {
        blast,
        ping,
        ..LoadSpec::new(Duration::from_millis(milliseconds))
    }
}

#[test]
fn sockets_blast_over_loopback() {
    if !tidewall_skip::has_programs("sockets_blast_over_loopback", &["ip"]) {
        return;
    }
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(socket) = UdpSocket::bind(address) else {
            tidewall_skip::inapplicable(address, "no such address here");
            continue;
        };
        let mut blast = BlastSpec::new(SenderKind::Socket, socket.local_addr().unwrap());
        blast.packets = Some(100);
        blast.flows = 4;
        let report = run(&load(Some(blast), None, 500), |_| ()).unwrap();
        let blast = report.blast.unwrap();
        assert_eq!((blast.whole.sent, blast.whole.offered), (100, 100));
        assert_eq!(blast.interface, "lo");
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 64];
        let received = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
        assert_eq!(received, 100);
    }
}

#[test]
fn a_port_that_nobody_owns_is_blasted_all_the_same() {
    if !tidewall_skip::has_programs("a_port_that_nobody_owns_is_blasted_all_the_same", &["ip"]) {
        return;
    }
    // Bound and closed again: the port has no listener.
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut blast = BlastSpec::new(SenderKind::Socket, closed);
    blast.rate = Some(10_000);
    let report = run(&load(Some(blast), None, 50), |_| ()).unwrap();
    let counts = report.blast.unwrap().whole;
    assert_eq!(counts.offered, 500);
    assert_eq!(counts.sent + counts.skipped, 500, "{counts:?}");
}

#[test]
fn a_rate_steps_when_asked_to() {
    if !tidewall_skip::has_programs("a_rate_steps_when_asked_to", &["ip"]) {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut blast = BlastSpec::new(SenderKind::Socket, socket.local_addr().unwrap());
    blast.rate = Some(500);
    blast.steps = vec![
        RateStep {
            after: Duration::from_millis(100),
            rate: 5_000,
        },
        RateStep {
            after: Duration::from_millis(200),
            rate: 100,
        },
    ];
    let mut looks = 0;
    let never = AtomicBool::new(false);
    let every = Duration::from_millis(10);
    let report = run_with_interval(&load(Some(blast), None, 300), &never, every, |_| {
        looks += 1;
    });
    let whole = report.unwrap().blast.unwrap().whole;
    // 50, then 500, then 10, however late this thread runs.
    assert_eq!(whole.offered, 560, "{whole:?}");
    assert_eq!(whole.sent + whole.ring_full + whole.skipped, whole.offered);
    assert!((1..=30).contains(&looks), "{looks}");
}

#[test]
fn a_silent_server_loses_every_request() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut ping = PingSpec::new(server.local_addr().unwrap());
    ping.timeout = Duration::from_millis(10);
    ping.wait = Wait::Block;
    let report = run(&load(None, Some(ping), 100), |_| ()).unwrap();
    let ping = report.ping.unwrap();
    assert_eq!((ping.measured.echoed, ping.latency), (0, None));
    assert!((1..=10).contains(&ping.measured.lost), "{ping:?}");
    assert!(ping.measured.sent <= ping.measured.lost + 1, "{ping:?}");
}

#[test]
fn progress_is_reported_and_a_run_can_be_stopped() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let over = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            server
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            while !over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = server.recv_from(&mut buffer) {
                    let _ = server.send_to(&buffer[..length], from);
                }
            }
        });
        let mut ping = PingSpec::new(address);
        ping.wait = Wait::Block;
        ping.interval = Duration::from_millis(1);
        let mut spec = load(None, Some(ping), 60_000);
        spec.warm_up = Duration::from_millis(250);
        let mut reported = Vec::new();
        let report = run_until(&spec, &stop, |progress| {
            stop.store(progress.phase == Phase::Measuring, Ordering::Relaxed);
            reported.push(progress);
        });
        over.store(true, Ordering::Relaxed);
        let report = report.unwrap();
        assert!(report.stopped);
        assert_eq!(reported.first().unwrap().phase, Phase::WarmUp);
        assert_eq!(reported.last().unwrap().phase, Phase::Measuring);
        let ping = report.ping.as_ref().unwrap();
        let echoed: u64 = reported
            .iter()
            .map(|progress| progress.ping.unwrap().echoed)
            .sum();
        assert_eq!(echoed, ping.whole.echoed);
        assert!(ping.latency.unwrap().samples < ping.whole.echoed);
        // Numbers with a fraction may differ in their last digit.
        let json = serde_json::to_string(&report).unwrap();
        let read: tidewall_load::LoadReport = serde_json::from_str(&json).unwrap();
        let read = read.ping.unwrap();
        assert_eq!((read.measured, read.whole), (ping.measured, ping.whole));
    });
}
