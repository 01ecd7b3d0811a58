//! The driver program, emulated and compiled for the processor, must agree, as
//! `demux_agreement` requires of the program in the kernel. Needs no privilege; the clock
//! is set by the test, and every access is checked.

mod demux_support;
mod emulator;

use std::net::IpAddr;
use std::time::Duration;

use demux_support::outcome::Outcome;
use demux_support::waits::{flow, segments};
use demux_support::{COOKIES, HASH_KEY, Random, corpus, mutate, set_up};
use emulator::Emulator;
use tidewall_device::demux::layout::Metadata;
use tidewall_device::demux::layout::Protocol::Udp;
use tidewall_device::demux::{ClassLimit, Tables, Waits, drive};

/// Runs both on every frame that `frames` makes, and compares.
fn agree(act: impl Fn(&Tables), frames: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let tables = || {
        let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
        set_up(&tables);
        act(&tables);
        tables
    };
    let (ours, theirs) = (tables(), tables());
    let mut driver = Emulator::driver(&theirs);
    for address in ["192.0.2.1", "2001:db8::1"] {
        // The table of owners by address is not in shared memory.
        let mut key = [0; 20];
        let address = match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        key[..16].copy_from_slice(&address.octets());
        key[16..18].copy_from_slice(&9u16.to_be_bytes());
        key[18] = Udp as u8;
        driver.insert("owners", &key, &0u32.to_ne_bytes());
    }
    driver.time = 1_000_000_000;
    for (name, bytes) in frames {
        driver.time += 1_000;
        let mut frame = bytes.clone();
        let verdict = drive(&ours, 0, &mut frame, driver.time);
        let expected = Outcome::of_verdict(&ours, verdict, frame);
        let run = driver.run(&bytes, 0);
        let run = run.unwrap_or_else(|fault| panic!("{name}: {fault}: {bytes:02x?}"));
        let metadata = (!run.metadata.is_empty()).then(|| Metadata::from_bytes(&run.metadata));
        let found = Outcome::new(&theirs, run.action, run.frame, metadata);
        assert_eq!(
            expected, found,
            "native (left) and the driver (right) on {name}: {bytes:02x?}"
        );
    }
}

fn frames() -> impl Iterator<Item = (String, Vec<u8>)> {
    corpus()
        .into_iter()
        .map(|sample| (sample.name, sample.bytes))
}

#[test]
fn agree_on_the_corpus() {
    agree(|_| (), frames());
}

#[test]
fn agree_on_every_prefix() {
    let prefixes = |(name, bytes): (String, Vec<u8>)| {
        let lengths = 0..bytes.len().min(160);
        lengths.map(move |length| (name.clone(), bytes[..length].to_vec()))
    };
    agree(|_| (), frames().flat_map(prefixes));
}

#[test]
fn agree_on_traced_raw_and_limited_frames() {
    agree(|tables| tables.trusted.start_trace(u32::MAX), frames());
    agree(|tables| tables.trusted.set_raw(true), frames());
    agree(
        |tables| tables.trusted.probe_napi(0, 40_000, 4_242),
        frames(),
    );
    let limited = |tables: &Tables| {
        for class in tidewall_device::demux::layout::Class::ALL {
            tables
                .trusted
                .set_class(0, class, ClassLimit::of(10_000, 3).and_each(1_000, 2));
        }
    };
    agree(limited, frames());
}

#[test]
fn agree_on_segments_that_may_wait() {
    let now = Duration::from_secs(1).saturating_sub(COOKIES.epoch);
    let (local, remote) = flow();
    for waits in [Waits::Acknowledgments, Waits::AllUntil(now)] {
        let act = |tables: &Tables| {
            tables.embedded.set_waiting_limit(0, 1 << 20);
            tables.embedded.note_round(0, now);
            tables.embedded.set_waits(local, remote, waits);
        };
        let whole = || segments().into_iter().map(|it| (it.0.to_owned(), it.1));
        agree(act, whole());
        let prefixes = |(name, bytes): (String, Vec<u8>)| {
            let lengths = 0..bytes.len().min(160);
            lengths.map(move |length| (name.clone(), bytes[..length].to_vec()))
        };
        agree(act, whole().flat_map(prefixes));
    }
}

#[test]
fn agree_on_mutations() {
    let corpus = corpus();
    let mut random = Random(0x7469_6465_7761_6c6c);
    let mutations = (0..200_000).map(|_| {
        let sample = &corpus[random.below(corpus.len())];
        let mut bytes = sample.bytes.clone();
        let other = &corpus[random.below(corpus.len())];
        mutate(&mut bytes, &other.bytes, &mut random);
        (sample.name.clone(), bytes)
    });
    agree(|_| (), mutations);
}

/// `code`, destination and source, offset, immediate.
fn word(code: u64, registers: u64, offset: i16, immediate: i32) -> u64 {
    let (offset, immediate) = (u64::from(offset as u16), u64::from(immediate as u32));
    immediate << 32 | offset << 16 | registers << 8 | code
}

/// Runs instructions, then an exit; returns r0.
fn execute(words: &[u64]) -> Result<u32, String> {
    let words = [words, &[word(0x95, 0, 0, 0)]].concat();
    let run = Emulator::assembled(&words).run(&[0; 60], 0);
    run.map(|run| run.action).map_err(|fault| fault.to_string())
}

#[test]
fn instructions_do_what_the_standard_says() {
    // r0 = -7 and r1 = 3 in 64 bits, then one instruction on both.
    let on_both = |code, immediate| {
        let set = [word(0xb7, 0, 0, -7), word(0xb7, 1, 0, 3)];
        let high = word(0x77, 0, 0, 32);
        let low = execute(&[&set[..], &[word(code, 0x10, 0, immediate)]].concat()).unwrap();
        let all = [&set[..], &[word(code, 0x10, 0, immediate), high]].concat();
        u64::from(execute(&all).unwrap()) << 32 | u64::from(low)
    };
    let (wide, narrow) = (-7i64 as u64, -7i32 as u32);
    for (code, expected) in [
        (0x0f, wide + 3),
        (0x0c, u64::from(narrow + 3)),
        (0x2f, -21i64 as u64),
        (0x3f, wide / 3),
        (0x3c, (narrow / 3).into()),
        (0x9f, wide % 3),
        (0x6f, wide << 3),
        (0x6c, (narrow << 3).into()),
        (0x7c, (narrow >> 3).into()),
        (0xcf, -1i64 as u64),
        (0xcc, u32::MAX.into()),
        (0xaf, wide ^ 3),
        (0x87, 7),
        (0x84, 7),
    ] {
        assert_eq!(on_both(code, 0), expected, "opcode {code:#x}");
    }
    // Division by zero: 0; modulo zero: the old value.
    let by_zero = |code| execute(&[word(0xb7, 0, 0, 9), word(code, 0, 0, 0)]);
    assert_eq!((by_zero(0x37), by_zero(0x97)), (Ok(0), Ok(9)));
    assert_eq!(on_both(0xdc, 16), 0xf9ff);
    assert_eq!(on_both(0xdc, 32), 0xf9ff_ffff);
    assert_eq!(on_both(0xd4, 16), 0xfff9);
    // Jumps over r0 = 1 if r0 (-1) fulfils the comparison with 1.
    let taken = |code| {
        let set = [
            word(0xb7, 0, 0, -1),
            word(code, 0, 1, 1),
            word(0xb7, 0, 0, 1),
        ];
        execute(&set) == Ok(u32::MAX)
    };
    for (code, expected) in [
        (0x15, false),
        (0x25, true),
        (0x65, false),
        (0x66, false),
        (0xa6, false),
        (0xc5, true),
        (0xc6, true),
        (0x45, true),
        (0x56, true),
    ] {
        assert_eq!(taken(code), expected, "opcode {code:#x}");
    }
}

#[test]
fn atomics_return_what_was_there() {
    // 5 on the stack, r0 = 5, r1 = 9, then one atomic; r0 is `r0 * 100 + r1 * 10`
    // and the stack.
    let after = |kind| {
        execute(&[
            word(0x7a, 10, -8, 5),
            word(0xb7, 0, 0, 5),
            word(0xb7, 1, 0, 9),
            word(0xdb, 0x1a, -8, kind),
            word(0x27, 0, 0, 10_000),
            word(0x27, 1, 0, 100),
            word(0x0f, 0x10, 0, 0),
            word(0x79, 0xa1, -8, 0),
            word(0x0f, 0x10, 0, 0),
        ])
    };
    assert_eq!(after(0), Ok(50_914), "add");
    assert_eq!(after(1), Ok(50_514), "fetch and add");
    assert_eq!(after(0x51), Ok(50_501), "fetch and and");
    assert_eq!(after(0xe1), Ok(50_509), "exchange");
    assert_eq!(after(0xf1), Ok(50_909), "compare and exchange");
}

#[test]
fn a_wild_access_is_a_fault() {
    let reads_at = |register: u64, offset| execute(&[word(0x61, register << 4, offset, 0)]);
    assert_eq!(reads_at(10, -4), Ok(0xa5a5_a5a5));
    assert!(reads_at(10, 0).unwrap_err().contains("reads 4 bytes at"));
    assert!(reads_at(10, -514).is_err());
    assert!(reads_at(9, 0).is_err(), "no pointer");
    assert!(
        execute(&[word(0x62, 1, 0, 0)]).is_err(),
        "writes the context"
    );
    // The frame has 60 bytes, whatever follows them.
    let frame = |code, offset| execute(&[word(0x61, 0x12, 0, 0), word(code, 0x20, offset, 0)]);
    assert_eq!((frame(0x69, 58), frame(0x79, 52)), (Ok(0), Ok(0)));
    assert!(frame(0x69, 59).is_err());
    assert!(frame(0x69, -1).is_err());
    let end = execute(&[word(0x05, 0, -1, 0)]).unwrap_err();
    assert_eq!(end, "instruction 0 (?, line 0): does not end");
    assert!(execute(&[word(0x85, 0, 0, 999)]).is_err(), "no such helper");
    assert!(
        execute(&[word(0x8d, 0, 0, 0)]).is_err(),
        "no such instruction"
    );
}
