//! Output, as an independent dissector sees it.

use std::process::Command;

use super::kernel::peer_index;
use super::raw_system::Packets;
use super::support::*;

/// A capture file (libpcap's format, Ethernet).
pub fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_ne_bytes());
    }
    for (second, frame) in frames.iter().enumerate() {
        for word in [second as u32, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    file
}

pub fn what_leaves_is_well_formed_to_tshark() {
    if !tidewall_skip::has_programs("what_leaves_is_well_formed_to_tshark", &["tshark"]) {
        return;
    }
    // A virtual device may leave checksums to the other end; here it may not,
    // so that every frame must carry its own.
    shell(&format!("ethtool -K {HERE} tx off >/dev/null"));
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
    until_it_transmits(&stack, || ask(&four, at(HERE4, SERVICE), &[4; 8]));
    until_it_transmits(&stack, || ask(&six, at(HERE6, SERVICE), &[6; 8]));
    let sent_before = stack.snapshot().queues[0].transmitted;
    let index = peer_index();
    let packets = in_peer(move || Packets::open(index).unwrap());
    let sizes = [0, 1, 7, 100, 255, 256, 257, 258, 1000, 1451, 1452, 1472];
    for size in sizes {
        let payload: Vec<u8> = (0..size).map(|n| (n * 13) as u8).collect();
        ask(&four, at(HERE4, SERVICE), &payload);
        if size <= 1452 {
            ask(&six, at(HERE6, SERVICE), &payload);
        }
    }
    let ours = stack.snapshot().queues[0].transmitted - sent_before;
    echo.finish();
    assert!(ours >= 20, "only {ours} answers left as frames of ours");
    let mut frames = Vec::new();
    while let Some(frame) = packets.receive() {
        frames.push(frame);
    }
    let file = std::env::temp_dir().join(format!("tw-sock-{}.pcap", std::process::id()));
    std::fs::write(&file, pcap(&frames)).unwrap();
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .args([
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ])
        .args([
            "-Y",
            &format!("udp.srcport == {SERVICE}"),
            "-T",
            "fields",
            "-E",
            "separator=;",
        ])
        .args([
            "-e",
            "udp.length",
            "-e",
            "udp.checksum.status",
            "-e",
            "ip.checksum.status",
        ])
        .args([
            "-e",
            "_ws.malformed",
            "-e",
            "_ws.expert.severity",
            "-e",
            "_ws.expert.message",
        ])
        .output();
    std::fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = String::from_utf8(output.stdout).unwrap();
    let mut seen = 0;
    for line in report.lines() {
        let fields: Vec<&str> = line.split(';').collect();
        // 1: good.
        assert_eq!(fields[1], "1", "UDP checksum: {line}");
        assert!(matches!(fields[2], "1" | ""), "IP header checksum: {line}");
        assert_eq!(fields[3], "", "malformed: {line}");
        // 0x600000 and up: warnings and errors.
        let severity = fields[4]
            .split(',')
            .filter_map(|field| field.parse::<u32>().ok())
            .max();
        assert!(severity.unwrap_or(0) < 0x60_0000, "{line}");
        seen += 1;
    }
    assert!(
        seen >= 2 * sizes.len() - 1,
        "{seen} datagrams in {} frames",
        frames.len()
    );
}
