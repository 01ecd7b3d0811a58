//! A clean run of TCP, as an independent dissector sees it: nothing malformed,
//! and nothing sent twice that was not lost.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpStream as KernelStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidewall::{Stack, TcpListener, TcpStream};
use tidewall_wire::tcp::{Flags, Packet};

use super::capture::pcap;
use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;
use super::tap::{NAME, TAP4, TAP6, tap_stack};
use super::tcp_bulk::{receive_all, send_all};

const TIMEOUT: Duration = Duration::from_secs(10);
const TOTAL: usize = 400_000;
/// Runs that are made to get a clean one.
const RUNS: usize = 10;

/// Collects every frame of an interface until a connection on it is closed.
struct Capture(JoinHandle<Vec<Vec<u8>>>);

impl Capture {
    fn start(packets: Packets) -> Capture {
        let packets = packets.hold(64 << 20).unwrap();
        Capture(std::thread::spawn(move || {
            let mut frames = Vec::new();
            let mut ends = HashSet::new();
            let end = Instant::now() + TIMEOUT;
            loop {
                let Some(frame) = packets.receive() else {
                    assert!(Instant::now() < end, "the connection was not closed");
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                };
                let segment = segment(&frame);
                // The acknowledgment of the second FIN is the last.
                let closed = segment.is_some() && ends.len() == 2;
                if let Some((port, _)) = segment.filter(|(_, flags)| flags.contains(Flags::FIN)) {
                    ends.insert(port);
                }
                frames.push(frame);
                if closed {
                    return frames;
                }
            }
        }))
    }

    fn finish(self) -> Vec<Vec<u8>> {
        self.0.join().unwrap()
    }
}

/// Source port and flags of a TCP segment in a frame.
fn segment(frame: &[u8]) -> Option<(u16, Flags)> {
    let (protocol, at) = match frame.get(12..14)? {
        [0x86, 0xdd] => (frame.get(20)?, 54),
        _ => (frame.get(23)?, 34),
    };
    let header = Packet::new(frame.get(at..)?).ok()?.header();
    (*protocol == 6).then_some((header.source_port, header.flags))
}

/// Returns tshark's fields of each TCP segment.
fn dissect(frames: &[Vec<u8>], checksums: bool) -> Vec<Vec<String>> {
    let file: PathBuf = std::env::temp_dir().join(format!("tw-tcp-{}.pcap", std::process::id()));
    fs::write(&file, pcap(frames)).unwrap();
    let check = |protocol: &str| format!("{protocol}.check_checksum:{checksums}");
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .args(["-o", &check("tcp"), "-o", &check("ip")])
        // Other protocols known to use this port are not meant.
        .args(["-d", &format!("tcp.port=={SERVICE},data")])
        .args(["-Y", "tcp", "-T", "fields", "-E", "separator=;"])
        .args(FIELDS.iter().flat_map(|field| ["-e", field]))
        .output();
    fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| line.split(';').map(str::to_owned).collect())
        .collect()
}

/// Fields that are empty in a clean run, after the first three.
const FIELDS: [&str; 13] = [
    "tcp.srcport",
    "tcp.checksum.status",
    "tcp.flags.str",
    "_ws.malformed",
    "tcp.analysis.retransmission",
    "tcp.analysis.fast_retransmission",
    "tcp.analysis.spurious_retransmission",
    "tcp.analysis.out_of_order",
    "tcp.analysis.lost_segment",
    "tcp.analysis.ack_lost_segment",
    "tcp.analysis.duplicate_ack",
    "tcp.analysis.window_full",
    "tcp.checksum.ffff",
];
/// The peer's window may fill up: that is no fault.
const FAULTS: std::ops::Range<usize> = 3..11;
/// Effects of a timer that expires early.
const SENT_AGAIN: [&str; 5] = [
    "tcp.analysis.retransmission",
    "tcp.analysis.fast_retransmission",
    "tcp.analysis.spurious_retransmission",
    "tcp.analysis.out_of_order",
    "tcp.analysis.duplicate_ack",
];

/// Says what was sent again, by which end ever.
fn judge(segments: &[Vec<String>], checksums: bool, least: usize) -> Result<(), String> {
    let mut again = Ok(());
    for segment in segments {
        for place in FAULTS {
            let field = FIELDS[place];
            if segment.get(place).map(String::as_str) != Some("") {
                assert!(SENT_AGAIN.contains(&field), "{field}: {segment:?}");
                again = Err(format!("{field}: {segment:?}"));
            }
        }
        if checksums && segment[0] == SERVICE.to_string() {
            // 1: good. A kernel that finishes a checksum writes 0xffff for 0 (CSUM_MANGLED_0 in
            // skb_checksum_help), which tshark has a complaint of its own for.
            let good = segment[1] == "1" || !segment[12].is_empty();
            assert!(good, "checksum: {segment:?}");
        }
    }
    again?;
    let ours = segments
        .iter()
        .filter(|segment| segment[0] == SERVICE.to_string())
        .count();
    assert!(
        ours >= least,
        "{ours} segments of ours among {}",
        segments.len()
    );
    Ok(())
}

/// Repeats a run until nothing is sent twice. While a busy machine runs other work, timers of
/// either end expire, and segments that are not lost are sent again. A fault of the stack
/// occurs each time.
fn until_clean(mut run: impl FnMut() -> Result<(), String>) {
    let mut again = Ok(());
    for _ in 0..RUNS {
        again = run();
        match &again {
            Ok(()) => return,
            Err(what) => println!("once more: {what}"),
        }
    }
    again.unwrap();
}

fn timeouts(stream: &TcpStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

/// A conversation: small questions and answers, then bulk both ways, then each
/// end closes its half. Says what was sent again.
fn converse(stack: &Stack, connect: impl FnOnce() -> KernelStream) -> Result<(), String> {
    let listener = TcpListener::bind(stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        timeouts(&stream);
        let mut small = [0; 100];
        for _ in 0..20 {
            (&stream).read_exact(&mut small).unwrap();
            (&stream).write_all(&small).unwrap();
        }
        receive_all(&stream, TOTAL);
        send_all(&stream, TOTAL);
        stream.shutdown(Shutdown::Write).unwrap();
        stream.info().unwrap()
    });
    let mut stream = connect();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    for n in 0..20 {
        let mut small = [n; 100];
        stream.write_all(&small).unwrap();
        stream.read_exact(&mut small).unwrap();
        assert_eq!(small, [n; 100]);
    }
    send_all(&stream, TOTAL);
    stream.shutdown(Shutdown::Write).unwrap();
    receive_all(&stream, TOTAL);
    let info = server.join().unwrap();
    match (repeated(&info), info.timeouts) {
        (0, 0) => Ok(()),
        _ => Err(format!("{info:?}")),
    }
}

pub fn a_clean_run_of_tcp_is_clean_to_tshark() {
    if !tidewall_skip::has_programs("a_clean_run_of_tcp_is_clean_to_tshark", &["tshark"]) {
        return;
    }
    // Every segment must carry its own checksum, and come as it was sent.
    shell(&format!("ethtool -K {HERE} tx off >/dev/null"));
    let peer = peer_namespace();
    shell(&format!(
        "ip netns exec {peer} ethtool -K {PEER} tx off gro off >/dev/null"
    ));
    let stack = stack();
    for to in [at(HERE4, SERVICE), at(HERE6, SERVICE)] {
        until_clean(|| {
            let index = peer_index();
            let capture = Capture::start(in_peer(move || Packets::open(index).unwrap()));
            let run = converse(&stack, || {
                in_peer(move || KernelStream::connect_timeout(&to, TIMEOUT).unwrap())
            });
            let segments = dissect(&capture.finish(), true);
            run.and(judge(&segments, true, 300))
        });
    }
}

pub fn a_clean_run_over_a_tap_is_clean_to_tshark() {
    if !tidewall_skip::has_programs("a_clean_run_over_a_tap_is_clean_to_tshark", &["tshark"]) {
        return;
    }
    let stack = tap_stack();
    let index = shell(&format!("cat /sys/class/net/{NAME}/ifindex"));
    let index: u32 = index.trim().parse().unwrap();
    for to in [at(TAP4, SERVICE), at(TAP6, SERVICE)] {
        until_clean(|| {
            let capture = Capture::start(Packets::open(index).unwrap());
            let run = converse(&stack, || {
                KernelStream::connect_timeout(&to, TIMEOUT).unwrap()
            });
            // Between two ends of one machine checksums stay unfinished.
            let segments = dissect(&capture.finish(), false);
            run.and(judge(&segments, false, 30))
        });
    }
    // A port without a listener: silence, which a client must bear.
    let nobody = at(TAP4, SERVICE + 1);
    let refused = KernelStream::connect_timeout(&nobody, Duration::from_millis(300));
    assert!(refused.is_err());
}
