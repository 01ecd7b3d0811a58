//! tshark's decoding of signalling (SUNATM captures on VPI 0, VCI 5).
//!
//! tshark 4.0 reads one byte beyond the AAL parameters and beyond the traffic descriptor.
//! It then takes the next element's identifier for an unknown parameter. These two
//! complaints, about the elements that follow, are ignored.

use std::process::Command;

const FORGIVEN: [&str; 2] = [
    "Unknown AAL parameter",
    "Unknown ATM traffic descriptor element",
];

/// tshark's output for each packet: the fields, then its complaints; `None` if tshark is
/// not installed.
pub fn judged(test: &str, pdus: &[Vec<u8>], fields: &[&str]) -> Option<Vec<String>> {
    if !tidewall_skip::has_programs(test, &["tshark"]) {
        return None;
    }
    let mut capture = Vec::new();
    capture.extend(0xa1b2_c3d4_u32.to_be_bytes());
    capture.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    capture.extend(123_u32.to_be_bytes());
    for pdu in pdus {
        let length = (pdu.len() as u32 + 4).to_be_bytes();
        capture.extend([[0; 4], [0; 4], length, length].concat());
        // Signalling, VPI, VCI.
        capture.extend([6, 0, 0, 5]);
        capture.extend(pdu);
    }
    let path = std::env::temp_dir().join(format!("tw-{test}-{}.pcap", std::process::id()));
    std::fs::write(&path, capture).unwrap();
    let mut command = Command::new("tshark");
    command.args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "aggregator=;",
    ]);
    for field in fields
        .iter()
        .chain(&["_ws.malformed", "_ws.expert.message"])
    {
        command.args(["-e", field]);
    }
    let output = command.arg("-r").arg(&path).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let without = |line: &str| {
        let (words, complaints) = line.rsplit_once('|').unwrap();
        let rest = complaints
            .split(';')
            .filter(|complaint| !FORGIVEN.contains(complaint));
        format!("{words}|{}", rest.collect::<Vec<_>>().join(";"))
    };
    Some(text.lines().map(without).collect())
}
