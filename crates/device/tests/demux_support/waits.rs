//! Segments of a flow, and which of them may wait for the next round.

use std::net::SocketAddr;

use super::corpus;

/// The segments that a flow must permit to wait for this one to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Acknowledgments that carry nothing else.
    Bare,
    /// All.
    All,
    /// It wakes a thread whatever the flow permits.
    Never,
}

/// Both ends of the strict flow over IPv4.
pub fn flow() -> (SocketAddr, SocketAddr) {
    let parse = |text: &str| text.parse().unwrap();
    (parse("192.0.2.1:90"), parse("198.51.100.1:1111"))
}

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const NOP_TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
const SACK: [u8; 12] = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];

/// Segments of that flow, with their names.
pub fn segments() -> Vec<(&'static str, Vec<u8>, Wait)> {
    let bare = corpus()
        .into_iter()
        .find(|sample| sample.name == "v4-strict-flow-ack")
        .unwrap()
        .bytes;
    let segment = |flags: u8, options: &[u8], payload: &[u8]| {
        let mut bytes = bare.clone();
        bytes.truncate(54);
        bytes.extend(options);
        bytes.extend(payload);
        bytes[46] = ((5 + options.len() / 4) << 4) as u8;
        bytes[47] = flags;
        let total = (bytes.len() - 14) as u16;
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        bytes
    };
    let mut reserved = segment(ACK, &[], &[]);
    reserved[46] |= 1;
    let mut padded = segment(ACK, &[], &[]);
    padded.extend([0; 6]);
    let mut fragment = segment(ACK, &[], &[]);
    fragment[20] |= 0x20;
    vec![
        ("bare", segment(ACK, &[], &[]), Wait::Bare),
        ("pushed", segment(ACK | PSH, &[], &[]), Wait::Bare),
        ("timestamps", segment(ACK, &NOP_TIMESTAMPS, &[]), Wait::Bare),
        ("link padding", padded, Wait::Bare),
        ("data", segment(ACK | PSH, &[], b"x"), Wait::All),
        (
            "data behind timestamps",
            segment(ACK, &NOP_TIMESTAMPS, b"x"),
            Wait::All,
        ),
        ("SACK", segment(ACK, &SACK, &[]), Wait::All),
        (
            "timestamps and SACK",
            segment(ACK, &[NOP_TIMESTAMPS, SACK].concat(), &[]),
            Wait::All,
        ),
        ("FIN", segment(ACK | 0x01, &[], &[]), Wait::All),
        ("RST", segment(0x04, &[], &[]), Wait::All),
        ("ECE", segment(ACK | 0x40, &[], &[]), Wait::All),
        ("AE", reserved, Wait::All),
        ("URG", segment(ACK | 0x20, &[], &[]), Wait::All),
        ("SYN", segment(0x02, &[], &[]), Wait::Never),
        ("SYN-ACK", segment(ACK | 0x02, &[], &[]), Wait::Never),
        ("first fragment", fragment, Wait::Never),
    ]
}
