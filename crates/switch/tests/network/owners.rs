//! Owners of keys, blocks and replies, while members die and return.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_switch::modules::{BlockStorage, HashOfKey, KeyValue, Lost, Module};

use super::bed::{Bed, Host, config, delayed, host_address};
use super::end::State;
use super::transfer::{frame, number};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn bed(module: impl FnMut() -> Box<dyn Module> + Send + 'static) -> Bed {
    Bed::new(config(), module, 3, delayed(MILLISECOND), 1)
}

/// Sends a frame, and waits until a member has it and the peer knows. False if the
/// connection ends first.
fn send(bed: &mut Bed, frame: &[u8]) -> bool {
    let before = bed.got();
    bed.peer.write(frame);
    let is_reset = |bed: &Bed| bed.peer.state == State::Reset;
    bed.run_until(10 * SECOND, |bed| {
        bed.got() == before + 1 && bed.peer.is_done() || is_reset(bed)
    });
    !is_reset(bed)
}

/// The member that received each frame whose number `which` selects, by its number.
fn owners(bed: &Bed, which: impl Fn(u32) -> bool) -> BTreeMap<u32, SocketAddr> {
    let of_host = |host: &Host| {
        let got = host.connections.values().flat_map(|end| &end.got);
        let numbers: Vec<_> = got.map(|frame| number(frame)).collect();
        let address = host.address;
        numbers.into_iter().map(move |number| (number, address))
    };
    let all = bed.hosts.iter().flat_map(of_host);
    all.filter(|&(number, _)| which(number)).collect()
}

/// Number of members that take frames of the connection.
fn open(bed: &Bed) -> usize {
    let members = bed.switch.flows().flat_map(|flow| flow.members);
    members.filter(|member| member.open).count()
}

/// Number of frames at each host.
fn got(bed: &Bed) -> Vec<usize> {
    let of_host = |host: &Host| host.connections.values().map(|end| end.got.len()).sum();
    bed.hosts.iter().map(of_host).collect()
}

/// A request to read a block.
fn read(block: u64) -> Vec<u8> {
    [&[1; 8][..], &block.to_be_bytes()].concat()
}

fn block_storage() -> Box<dyn Module> {
    let nodes = [1, 2].map(host_address);
    Box::new(BlockStorage::new(host_address(0), nodes.into()))
}

#[test]
fn a_member_that_comes_back_has_its_keys_again() {
    let mut bed = bed(|| Box::new(HashOfKey::new(0..3, Lost::Reset)));
    // The key is a number's first three bytes.
    let ask = |bed: &mut Bed, time: u32| {
        for key in 0..40 {
            assert!(send(bed, &frame(key << 8 | time, 50)));
        }
        let owners = owners(bed, |number| number & 0xff == time);
        let owners = owners
            .into_iter()
            .map(|(number, owner)| (number >> 8, owner));
        owners.collect::<BTreeMap<_, _>>()
    };
    let before = ask(&mut bed, 0);
    assert_eq!(before.values().collect::<BTreeSet<_>>().len(), 3);
    // Each takes the other's number.
    let ids = bed.hosts.iter().map(|host| host.id).collect::<Vec<_>>();
    bed.kill(1);
    bed.kill(2);
    bed.restart(2);
    bed.restart(1);
    assert_eq!((bed.hosts[1].id, bed.hosts[2].id), (ids[2], ids[1]));
    bed.run_until(SECOND, |bed| open(bed) == 3);
    assert_eq!(ask(&mut bed, 1), before);
}

#[test]
fn a_block_is_at_its_node_or_nowhere() {
    let mut bed = bed(block_storage);
    // A node without frames on this connection is not missed.
    assert!(send(&mut bed, &read(0)) && send(&mut bed, &[7; 20]));
    bed.kill(2);
    assert!(send(&mut bed, &read(2)) && send(&mut bed, &read(4)));
    assert_eq!(got(&bed), [1, 3, 0]);
    // No other has its blocks.
    assert!(!send(&mut bed, &read(1)));
    assert_eq!(bed.switch.counters().reset_module, 1);
}

#[test]
fn a_coordinator_that_comes_back_is_known_by_its_address() {
    let mut bed = bed(block_storage);
    bed.run_until(SECOND, |bed| open(bed) == 3);
    bed.kill(0);
    bed.kill(1);
    bed.restart(1);
    bed.restart(0);
    bed.run_until(SECOND, |bed| open(bed) == 3);
    assert!(send(&mut bed, &[7; 20]) && send(&mut bed, &read(0)));
    assert_eq!(got(&bed), [1, 1, 0]);
}

/// A member acknowledges a request and dies before a byte of its reply has left.
#[test]
fn a_reply_that_will_not_come_resets_the_connection() {
    let mut bed = bed(|| Box::new(KeyValue::new(0)));
    let command = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    assert!(send(&mut bed, command));
    let owner = got(&bed).iter().position(|&count| count > 0);
    let owner = owner.expect("a member");
    // Another one without requests is not missed.
    bed.kill((owner + 1) % 3);
    let limit = bed.now + SECOND;
    while bed.step(limit) {}
    assert_eq!((bed.peer.state, bed.switch.len()), (State::Open, 1));
    bed.kill(owner);
    bed.run_until(SECOND, |bed| bed.peer.state == State::Reset);
    assert_eq!(bed.switch.counters().reset_member, 1);
}
