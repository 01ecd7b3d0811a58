//! The memory of all connections together (Linux `tcp_mem`, `tcp_max_orphans`). The tests
//! check which data is dropped, refused and reset when it runs out, and that promises are
//! kept.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use tidewall::TcpStream;
use tidewall_device::memory::Side;

use super::connections::Meeting;

/// Bytes that a connection may hold in either direction, however short memory is, twice
/// over: a ring is at most twice as large as its data.
const LEAST: u64 = 2 * 4096;

/// So many connections, both ends of each.
fn connect(meeting: &Meeting, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let mut pairs = Vec::new();
    for number in 0..count {
        let client = meeting.connect(number as u64);
        meeting.pump();
        pairs.push((client, meeting.accept(number as u64).unwrap()));
    }
    pairs
}

/// Writes as much as is taken, up to so many bytes. Returns how much.
fn fill(mut stream: &TcpStream, most: usize) -> usize {
    let mut written = 0;
    while written < most {
        match stream.write(&vec![7; (most - written).min(10_000)]) {
            Ok(length) => written += length,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                break;
            }
        }
    }
    written
}

/// Reads all that is there.
fn empty(mut stream: &TcpStream) -> usize {
    let mut read = 0;
    let mut buffer = [0; 20_000];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        read += length;
    }
    read
}

/// Lets both ends go on for so many seconds.
fn pass(meeting: &Meeting, seconds: u32) {
    for _ in 0..10 * seconds {
        meeting.bed.advance(Duration::from_millis(100));
        meeting.pump();
    }
}

/// The first long segment of each client is lost, however often it is sent.
fn lose_first_segments(meeting: &Meeting) {
    let mut lost = HashMap::new();
    let filter = move |_: u64, frame: &[u8]| {
        let (port, sequence) = (frame[34..36].to_vec(), frame[38..42].to_vec());
        frame.len() < 1000 || *lost.entry(port).or_insert(sequence.clone()) != sequence
    };
    meeting.bed.link.set_filter(Side::A, Some(Box::new(filter)));
}

#[test]
fn what_is_not_read_is_bounded_for_all_together() {
    const LIMIT: u64 = 512 << 10;
    const COUNT: usize = 40;
    const EACH: usize = 60_000;
    let meeting = Meeting::new();
    let pairs = connect(&meeting, COUNT);
    meeting.bed.far.set_tcp_memory(LIMIT);
    for (client, _) in &pairs {
        assert_eq!(fill(client, EACH), EACH);
        meeting.pump();
    }
    pass(&meeting, 3);
    let tcp = meeting.bed.far.snapshot().tcp;
    assert_eq!(tcp.memory_max, LIMIT);
    // One connection's window was open when the limit was reached.
    let most = LIMIT + COUNT as u64 * LEAST + (128 << 10);
    assert!((LIMIT..=most).contains(&tcp.memory), "{tcp:?}");
    // No new client gets in meanwhile; a client that tries goes on trying.
    let late = meeting.connect(1000);
    meeting.pump();
    assert!(meeting.accept(1000).is_none());
    assert!(meeting.bed.far.snapshot().tcp.counters["no-memory"] > 0);
    // All accepted data arrives, once the application reads.
    let mut read = vec![0; COUNT];
    for _ in 0..300 {
        for (read, (_, server)) in read.iter_mut().zip(&pairs) {
            *read += empty(server);
        }
        pass(&meeting, 1);
        if read.iter().all(|&read| read == EACH) {
            break;
        }
    }
    assert_eq!(read, [EACH; COUNT]);
    let server = meeting.accept(1000).expect("there is memory again");
    (&late).write_all(b"hello").unwrap();
    meeting.pump();
    assert_eq!(empty(&server), 5);
    pass(&meeting, 2);
    assert_eq!(meeting.bed.far.snapshot().tcp.memory, 0);
}

#[test]
fn out_of_order_data_goes_first() {
    const COUNT: usize = 10;
    let meeting = Meeting::new();
    let pairs = connect(&meeting, COUNT);
    // The first segment of each is lost; nine lie beyond the hole.
    lose_first_segments(&meeting);
    for (client, _) in &pairs {
        assert_eq!(fill(client, 14_600), 14_600);
        meeting.pump();
    }
    meeting.bed.link.set_filter(Side::A, None);
    let held = meeting.bed.far.snapshot().tcp.memory;
    assert!(held > COUNT as u64 * 5000, "{held}");
    meeting.bed.far.set_tcp_memory(held);
    pass(&meeting, 1);
    for (_, server) in &pairs {
        let mut read = 0;
        while read < 14_600 {
            read += empty(server);
            pass(&meeting, 1);
        }
    }
    assert_eq!(meeting.bed.far.snapshot().tcp.memory, 0);
}

#[test]
fn pruning_gives_back_what_lies_beyond_holes() {
    let meeting = Meeting::new();
    let pairs = connect(&meeting, 10);
    // Only the data behind each first segment arrives, and no retransmission.
    lose_first_segments(&meeting);
    for (client, _) in &pairs {
        fill(client, 14_600);
        meeting.pump();
    }
    meeting
        .bed
        .link
        .set_filter(Side::A, Some(Box::new(|_, _| false)));
    let held = meeting.bed.far.snapshot().tcp.memory;
    assert!(held > 50_000, "{held}");
    meeting.bed.far.set_tcp_memory(held);
    meeting.bed.advance(Duration::from_millis(20));
    meeting.pump();
    let left = meeting.bed.far.snapshot().tcp.memory;
    assert!(left < held / 2, "{left} of {held}");
}

#[test]
fn the_largest_orphan_goes_when_there_is_no_memory() {
    let meeting = Meeting::new();
    let pairs = connect(&meeting, 3);
    // No more acknowledgments arrive.
    meeting
        .bed
        .link
        .set_filter(Side::A, Some(Box::new(|_, _| false)));
    let sizes = [60_000, 30_000, 4000];
    let mut clients = Vec::new();
    for ((client, server), size) in pairs.into_iter().zip(sizes) {
        assert_eq!(fill(&server, size), size);
        clients.push(client);
        drop(server);
    }
    meeting.pump();
    let before = meeting.bed.far.snapshot().tcp;
    assert_eq!((before.orphans, before.counters["orphans-reset"]), (3, 0));
    meeting.bed.far.set_tcp_memory(before.memory - 1);
    meeting.bed.advance(Duration::from_millis(20));
    meeting.pump();
    let after = meeting.bed.far.snapshot().tcp;
    assert_eq!((after.orphans, after.counters["orphans-reset"]), (2, 1));
    assert!(after.memory <= before.memory - 60_000, "{after:?}");
    // One that holds little stays whatever memory there is.
    meeting.bed.far.set_tcp_memory(1);
    meeting.bed.advance(Duration::from_millis(20));
    meeting.pump();
    let after = meeting.bed.far.snapshot().tcp;
    assert_eq!((after.orphans, after.counters["orphans-reset"]), (1, 2));
}

#[test]
fn orphans_beyond_their_number_are_reset() {
    let meeting = Meeting::new();
    let pairs = connect(&meeting, 5);
    meeting.bed.far.set_tcp_orphans(2);
    // Written data stays on the way.
    meeting
        .bed
        .link
        .set_filter(Side::A, Some(Box::new(|_, _| false)));
    let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    for server in servers {
        assert_eq!(fill(&server, 1000), 1000);
    }
    meeting.pump();
    let tcp = meeting.bed.far.snapshot().tcp;
    assert_eq!((tcp.orphans, tcp.orphans_max), (2, 2));
    assert_eq!(tcp.counters["orphans-reset"], 3);
    meeting.bed.link.set_filter(Side::A, None);
    pass(&meeting, 10);
    let lengths = clients
        .iter()
        .map(|mut client| match client.read(&mut [0; 2000]) {
            Ok(length) => length,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                0
            }
        });
    // A reset overtakes nothing: what had arrived before is lost with it.
    assert_eq!(lengths.collect::<Vec<_>>(), [1000, 1000, 0, 0, 0]);
}
