//! The segments that the driver program puts aside for the next round, tested with the
//! program compiled for the processor (`demux_agreement` checks that the kernel's does
//! the same).

mod demux_support;

use std::time::Duration;

use demux_support::waits::{Wait, flow, segments};
use demux_support::{COOKIES, HASH_KEY, set_up};
use tidewall_device::demux::layout::Metadata;
use tidewall_device::demux::{Tables, Verdict, Waits, drive};

fn tables(limit: u32) -> Tables {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    set_up(&tables);
    tables.embedded.set_waiting_limit(0, limit);
    tables
}

/// Passes a segment at a time of the application's clock; returns the driver's metadata.
fn at(tables: &Tables, time: Duration, bytes: &[u8]) -> Metadata {
    let now = (COOKIES.epoch + time).as_nanos() as u64;
    match drive(tables, 0, &mut bytes.to_vec(), now) {
        Verdict::Channel(metadata) => metadata,
        other => panic!("{other:?}"),
    }
}

fn set(tables: &Tables, waits: Waits) {
    let (local, remote) = flow();
    tables.embedded.set_waits(local, remote, waits);
}

fn named(name: &str) -> Vec<u8> {
    let mut all = segments().into_iter();
    all.find(|segment| segment.0 == name).unwrap().1
}

#[test]
fn a_flow_says_which_segments_may_wait() {
    let now = Duration::from_secs(100);
    let end = now + Duration::from_millis(10);
    let tables = tables(1000);
    tables.embedded.note_round(0, now);
    for (waits, bare, others) in [
        (Waits::None, false, false),
        (Waits::Acknowledgments, true, false),
        (Waits::AllUntil(end), true, true),
    ] {
        set(&tables, waits);
        for (name, bytes, which) in segments() {
            let before = tables.embedded.waiting_head(0);
            let metadata = at(&tables, now, &bytes);
            let expected = match which {
                Wait::Bare => bare,
                Wait::All => others,
                Wait::Never => false,
            };
            assert_eq!(
                metadata.waited_since() != 0,
                expected,
                "{name} of a flow with {waits:?}"
            );
            let waited = tables.embedded.waiting_head(0) - before;
            assert_eq!(waited, u32::from(expected), "{name}");
            let later = now + Duration::from_millis(7);
            let arrived = metadata.arrived(later);
            let age = later - arrived;
            let real = Duration::from_millis(if expected { 7 } else { 0 });
            assert!(age.abs_diff(real) < Duration::from_micros(3), "{age:?}");
        }
    }
    // A re-entered flow permits nothing to wait.
    set(&tables, Waits::AllUntil(end));
    let (local, remote) = flow();
    let tcp = tidewall_device::demux::layout::Protocol::Tcp;
    let channel = tidewall_device::demux::ChannelId::new(15, 1015);
    tables
        .embedded
        .connect(tcp, local, remote, channel)
        .unwrap();
    assert_eq!(at(&tables, now, &named("bare")).waited_since(), 0);
}

#[test]
fn nothing_waits_for_long() {
    let now = Duration::from_secs(7_000);
    let tables = tables(1000);
    let bare = named("bare");
    let waits = |after: Duration, bytes: &[u8]| at(&tables, now + after, bytes).waited_since() != 0;
    let millis = Duration::from_millis;
    // An acknowledgment waits only if rounds are frequent.
    set(&tables, Waits::Acknowledgments);
    assert!(!waits(millis(0), &bare), "nobody has looked yet");
    tables.embedded.note_round(0, now);
    assert!(waits(millis(0), &bare));
    assert!(waits(millis(8), &bare));
    assert!(!waits(millis(13), &bare));
    assert!(
        !waits(Duration::from_secs(7_200), &bare),
        "a keepalive probe"
    );
    // All others wait until an end that does not recur.
    set(&tables, Waits::AllUntil(now + millis(10)));
    assert!(waits(millis(0), &bare) && waits(millis(10), &bare));
    for after in [15, 20, 1_000, 40_000, 65_000] {
        assert!(!waits(millis(after), &bare), "after {after} ms");
    }
}

#[test]
fn no_more_wait_than_there_is_room_for() {
    let now = Duration::from_secs(1);
    let tables = tables(2);
    tables.embedded.note_round(0, now);
    set(&tables, Waits::Acknowledgments);
    let bare = named("bare");
    let waits = || at(&tables, now, &bare).waited_since() != 0;
    assert_eq!([waits(), waits(), waits()], [true, true, false]);
    tables.embedded.waiting_taken(0, 1);
    assert_eq!([waits(), waits()], [true, false]);
    // Frames that never arrived.
    let head = tables.embedded.waiting_head(0);
    tables.embedded.waiting_caught_up(0, head);
    assert_eq!([waits(), waits(), waits()], [true, true, false]);
    tables.embedded.set_waiting_limit(0, 0);
    assert!(!waits());
}
