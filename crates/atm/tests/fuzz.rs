//! Fuzz targets: whatever comes, nothing panics, limits hold, and what came whole before is
//! taken again once it comes (`tidewall_fuzz` says how they are tried).

use std::time::Duration;

use bolero::check;
use tidewall_atm::reassembly::{self, Limits, Reassembly};
use tidewall_atm::sscop::{Config, Sscop, State};
use tidewall_fuzz::{Seed, Target};
use tidewall_wire::atm::{Circuit, PayloadType, aal5};

/// Time for random inputs to one target in an ordinary test run.
const TIME: Duration = Duration::from_millis(400);

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

#[test]
fn fuzz_reassembly() {
    fuzz("reassembly", cells);
}

#[test]
fn fuzz_sscop() {
    fuzz("sscop", link);
}

fn fuzz(name: &'static str, test: fn(&[u8])) {
    let target = Target::new(name, &seeds(), test);
    check!(name = name)
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| target.input(bytes));
    target.finish();
}

/// Each byte a cell: its circuit, its payload type, its payload, and time that passes.
fn cells(bytes: &[u8]) {
    let limits = Limits {
        memory: 48 * 16,
        circuits: 4,
        patience: Duration::from_millis(40),
    };
    let circuit = |number: u8| Circuit {
        vpi: 0,
        vci: 32 + u16::from(number),
    };
    let mut reassembly = Reassembly::new(limits);
    for number in 0..3 {
        reassembly.open(circuit(number), 300).unwrap();
    }
    let mut now = Duration::ZERO;
    for byte in bytes {
        now += Duration::from_millis((byte >> 6).into());
        let payload_type = PayloadType::from_bits(byte >> 2);
        let _ = reassembly.cell(now, circuit(byte & 3), payload_type, &[*byte; 48]);
        assert!(reassembly.held() <= limits.memory);
    }
    reassembly.expire(now + limits.patience);
    assert_eq!(reassembly.held(), 0);
    // At the latest behind the last cell of what is passed over.
    let mut pdu = [0; 96];
    aal5::emit(&[1; 60], 0, &mut pdu).unwrap();
    let mut came = 0;
    for _ in 0..2 {
        for (payload_type, cell) in reassembly::cells(&pdu) {
            if let Ok(Some(pdu)) = reassembly.cell(now, circuit(0), payload_type, cell) {
                came += usize::from(pdu.payload() == [1; 60]);
            }
        }
    }
    assert!(came > 0);
}

/// PDUs behind a byte of their length in words, to a link that is up; then its peer brings
/// it up anew.
fn link(bytes: &[u8]) {
    let mut now = Duration::ZERO;
    let mut link = Sscop::new(Config::default());
    let mut peer = Sscop::new(Config {
        first_sequence: 100,
        ..Config::default()
    });
    link.establish(now);
    let mut rest = bytes;
    while let Some((&first, behind)) = rest.split_first() {
        let (pdu, behind) = behind.split_at(behind.len().min(usize::from(first & 31) * 4));
        rest = behind;
        link.pdu_received(now, pdu);
        let _ = link.send(pdu);
        now += Duration::from_millis(u64::from(first >> 5) * 100);
        link.handle_timeout(now);
        while link.poll_transmit(now).is_some() {}
        if first & 32 == 0 {
            while link.poll_event().is_some() {}
        }
    }
    peer.establish(now);
    for _ in 0..60 {
        while let Some(pdu) = peer.poll_transmit(now) {
            link.pdu_received(now, &pdu);
        }
        while let Some(pdu) = link.poll_transmit(now) {
            peer.pdu_received(now, &pdu);
        }
        now += Duration::from_millis(500);
        link.handle_timeout(now);
        peer.handle_timeout(now);
        if peer.state() == State::Idle {
            peer.establish(now);
        }
    }
    assert_eq!((link.state(), peer.state()), (State::Ready, State::Ready));
}

fn seeds() -> Vec<Seed> {
    let seeds = [
        ("reassembly", "whole", vec![0, 0, 4, 1, 5]),
        ("reassembly", "never-ends", vec![0x40; 40]),
        (
            "sscop",
            "up-and-data",
            b"\x02\0\0\0\0\x02\0\0\x20\x02msg!\x08\0\0\0\x02msg!\x08\0\0\x02\x02\0\0\0\x01\x0a\0\0\x03"
                .to_vec(),
        ),
        (
            "sscop",
            "begin-and-lies",
            b"\x02\0\0\0\x05\x01\0\0\x08\x03\0\0\0\x09\0\0\0\x08\x0b\xff\xff\xff\x04\0\0\0\0\0\0\0\x01\0\0\0\x09\x0c\0\0\0"
                .to_vec(),
        ),
    ];
    seeds.map(Seed::from).to_vec()
}
