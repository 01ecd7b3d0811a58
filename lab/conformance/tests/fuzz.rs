//! Fuzz target of the script parser: seeds from `__fuzz__/script/corpus`, then random
//! bytes for a bounded time (`BOLERO_RANDOM_TEST_TIME_MS` extends it).
//!
//! Random bytes are hardly ever a script, so each input is tried as a text, and as a list
//! of changes to the longest seed.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bolero::check;
use tidewall_conformance::script::{Action, parse};

/// Time for random inputs in an ordinary test run.
const TIME: Duration = Duration::from_millis(500);

#[test]
fn fuzz_script() {
    let seeds = seeds();
    let longest = seeds.iter().max_by_key(|seed| seed.len()).unwrap();
    let seen = AtomicUsize::new(0);
    check!(name = "script")
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| {
            if seeds.iter().any(|seed| seed == bytes) {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            script(bytes);
            script(&changed(longest, bytes));
        });
    // A corpus in the wrong folder would be ignored silently.
    assert!(seen.into_inner() >= seeds.len(), "the corpus was not read");
}

#[test]
fn the_longest_seed_is_a_script() {
    let seeds = seeds();
    let longest = seeds.iter().max_by_key(|seed| seed.len()).unwrap();
    let script = parse(core::str::from_utf8(longest).unwrap()).unwrap();
    assert!(script.events.len() >= 20);
}

/// Parses the bytes; a parsed script is written and must parse the same again.
fn script(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let script = match parse(&text) {
        Ok(script) => script,
        Err(error) => {
            assert!(!error.message.is_empty());
            assert!(error.position.line >= 1 && error.position.column >= 1);
            return;
        }
    };
    assert!(!script.events.is_empty());
    for event in &script.events {
        let text = match &event.action {
            Action::Packet(packet) => packet.to_string(),
            Action::Call(call) => call.to_string(),
            Action::Command(_) | Action::Assertions(_) => continue,
        };
        let again = parse(&format!("0 {text}")).unwrap_or_else(|error| panic!("{text}: {error}"));
        match (&event.action, &again.events[0].action) {
            (Action::Call(call), Action::Call(again)) => {
                assert_eq!(call.to_string(), again.to_string());
            }
            (action, again) => assert_eq!(action, again, "{text}"),
        }
    }
}

/// The seed with bytes changed, removed, duplicated or inserted, as `changes` describes
/// in four bytes each: position (two), operation, and value.
fn changed(seed: &[u8], changes: &[u8]) -> Vec<u8> {
    const PIECES: [&str; 12] = [
        "+", "~", "*", "...", "<", ">", "(", "0x", "`", "%{", "ack 1", "[ce]",
    ];
    let mut bytes = seed.to_vec();
    for change in changes.chunks_exact(4).take(16) {
        let [high, low, how, what] = *change else {
            continue;
        };
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(u16::from_be_bytes([high, low])) % bytes.len();
        let length = usize::from(what) % 40;
        let end = (at + length).min(bytes.len());
        match how % 4 {
            0 => bytes[at] = what,
            1 => drop(bytes.drain(at..end)),
            2 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let piece = PIECES[usize::from(what) % PIECES.len()];
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__/script/corpus");
    let mut paths: Vec<_> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| fs::read(path).unwrap())
        .collect()
}
