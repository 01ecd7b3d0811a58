//! Fuzz target for [`drive`]: any bytes, in any state that the corpus leads to.

mod demux_support;

use std::time::Duration;

use demux_support::{HASH_KEY, corpus, set_up};
use tidewall_device::demux::layout::{Counter, Kind, Metadata, PROTOCOL_CIRCUIT};
use tidewall_device::demux::{Tables, Verdict, classify_host, drive};

/// Counters of which every frame increments exactly one, except for ARP to this host.
const ENDS: [Counter; 16] = [
    Counter::Channel,
    Counter::Raw,
    Counter::Truncated,
    Counter::Malformed,
    Counter::ChannelFull,
    Counter::ChannelClosed,
    Counter::Tagged,
    Counter::Unknown,
    Counter::Multicast,
    Counter::NotLocal,
    Counter::Unowned,
    Counter::NapiProbe,
    Counter::NoSocket,
    Counter::CookieSent,
    Counter::NoConnection,
    Counter::NoCircuit,
];

fn counted(tables: &Tables) -> u64 {
    ENDS.into_iter()
        .map(|counter| tables.trusted.counter(0, counter))
        .sum()
}

fn check_metadata(metadata: &Metadata, length: usize) {
    let Metadata {
        network,
        transport,
        end,
        fragment,
        version,
        protocol,
        ..
    } = *metadata;
    assert!(network < transport && transport <= end && usize::from(end) <= length);
    let of_circuit = usize::from(protocol) == PROTOCOL_CIRCUIT;
    assert!(matches!(version, 4 | 6) || (version == 0 && of_circuit));
    assert!(fragment == 0 || (version == 6 && network < fragment && fragment < transport));
}

/// Checks what must hold for any bytes.
fn check(tables: &Tables, bytes: &[u8]) {
    let frames = tables.trusted.counter(0, Counter::Frames);
    let ends = counted(tables);
    let orphans = tables.trusted.counter(0, Counter::FragmentOrphan);
    let mut frame = bytes.to_vec();
    let verdict = drive(tables, 0, &mut frame, 1_000_000_000);
    assert_eq!(tables.trusted.counter(0, Counter::Frames), frames + 1);
    let orphan = tables.trusted.counter(0, Counter::FragmentOrphan) - orphans;
    let moved = counted(tables) - ends;
    let arp = bytes.get(12..14) == Some(&[8, 6]) && bytes[0] & 1 == 0;
    assert!(
        moved == u64::from(!arp) || (moved == 0 && orphan == 1),
        "{verdict:?} moved {moved}"
    );
    if verdict != Verdict::NapiProbe {
        assert_eq!(frame, bytes);
    }
    let Verdict::Channel(metadata) = verdict else {
        return;
    };
    check_metadata(&metadata, bytes.len());
    assert_eq!(
        metadata.credit,
        tables.embedded.head(0, metadata.channel_id().index())
    );
    // The host's lookup finds what the driver's found.
    tables.trusted.set_raw(true);
    let raw = drive(tables, 0, &mut frame, 1_000_000_000);
    tables.trusted.set_raw(false);
    let Verdict::Raw(raw) = raw else {
        panic!("{raw:?} after {verdict:?}")
    };
    check_metadata(&raw, bytes.len());
    assert_eq!(raw.kind(), Some(Kind::Raw));
    let (channel, found) = classify_host(&tables.embedded, &frame, &raw).expect("the same channel");
    assert_eq!(channel, metadata.channel_id());
    assert_eq!(
        found,
        Metadata {
            credit: 0,
            ..metadata
        }
    );
}

#[test]
fn the_corpus_and_all_its_prefixes_hold() {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    set_up(&tables);
    for sample in corpus() {
        check(&tables, &sample.bytes);
        for length in 0..sample.bytes.len().min(160) {
            check(&tables, &sample.bytes[..length]);
        }
    }
}

#[test]
fn any_change_to_the_corpus_holds() {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    set_up(&tables);
    let corpus = corpus();
    bolero::check!()
        .with_test_time(Duration::from_secs(3))
        .with_type::<(u16, Vec<(u8, u8)>, Option<u8>)>()
        .for_each(|(sample, changes, length)| {
            let mut bytes = corpus[usize::from(*sample) % corpus.len()].bytes.clone();
            for &(place, value) in changes {
                if let Some(byte) = bytes.get_mut(usize::from(place)) {
                    *byte = value;
                }
            }
            bytes.truncate(length.map_or(usize::MAX, usize::from));
            check(&tables, &bytes);
        });
}

#[test]
fn any_bytes_hold() {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    set_up(&tables);
    bolero::check!()
        .with_test_time(Duration::from_secs(1))
        .for_each(|bytes: &[u8]| check(&tables, bytes));
}
