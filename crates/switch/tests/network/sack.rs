//! SACK across the switch: which ends agree to it, and what is reported to each.

use tidewall_switch::Emission;
use tidewall_switch::modules::Lost;
use tidewall_wire::tcp::{Flags, Options};

use super::bed::{SWITCH, config, round_robin};
use super::raw::{Raw, data, syn_options};

const ACK: Flags = Flags::ACK;

fn with_sack() -> Options {
    Options {
        sack_permitted: true,
        ..syn_options()
    }
}

fn offers(emissions: &[Emission]) -> Vec<bool> {
    let options = emissions.iter().map(|emission| &emission.header.options);
    options.map(|options| options.sack_permitted).collect()
}

/// An open connection whose ends all accept SACK.
fn open(members: usize) -> Raw {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), members);
    for syn in raw.syn(with_sack()) {
        raw.answer_one(&syn, with_sack());
    }
    raw.peer(1, 1, ACK, &[]);
    raw
}

/// A frame of 100 bytes.
fn frame() -> Vec<u8> {
    data(&[7; 96])
}

/// Start of the `number`th frame, from 0, after a SYN.
fn at(number: u32) -> u32 {
    1 + 100 * number
}

#[test]
fn the_peer_is_granted_sack_when_all_members_take_it() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 2);
    let syns = raw.syn(with_sack());
    assert_eq!(offers(&syns), [true, true]);
    raw.answer_one(&syns[0], with_sack());
    let answer = raw.answer_one(&syns[1], with_sack());
    assert_eq!(offers(&answer), [true]);
    // It is not offered if the peer does not.
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 2);
    assert_eq!(offers(&raw.syn(syn_options())), [false, false]);
}

#[test]
fn a_member_without_sack_is_known_after_the_first_connection() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 2);
    let syns = raw.syn(with_sack());
    raw.answer_one(&syns[0], with_sack());
    let answer = raw.answer_one(&syns[1], syn_options());
    assert_eq!(offers(&answer), [false]);
    raw.peer.remote.set_port(40_001);
    assert_eq!(offers(&raw.syn(with_sack())), [false, false]);
}

#[test]
fn a_member_that_is_added_has_to_take_what_the_peer_was_granted() {
    for takes in [true, false] {
        let mut raw = open(1);
        let mut syns = Vec::new();
        let member = tidewall_switch::Member {
            address: "10.0.1.9:6379".parse().expect("an address"),
            local: SWITCH.parse().expect("an address"),
        };
        let added = raw
            .switch
            .add_member(raw.now, member, &mut |emission| syns.push(emission));
        added.expect("a member");
        assert_eq!(offers(&syns), [true]);
        let options = if takes { with_sack() } else { syn_options() };
        let answered = raw.answer_one(&syns[0], options);
        assert_eq!(raw.resets(&answered), usize::from(!takes), "{answered:?}");
    }
}

#[test]
fn the_peer_hears_of_what_was_overtaken_and_not_of_who_is_slower() {
    let mut raw = open(2);
    for number in 0..6 {
        raw.peer(at(number), 1, ACK, &frame());
    }
    // The second member is faster: that proves nothing about the first.
    let ahead = raw.member(1, 1, at(2), ACK, &[]);
    assert_eq!(ahead, []);
    // The first member has its second frame and not its first. Nothing is known beyond
    // that, so the second member's second frame also waits.
    raw.sack = vec![(at(1), at(2))];
    let heard = raw.member(0, 1, at(0), ACK, &[]);
    assert_eq!(raw.acks(&heard), [at(0)]);
    assert_eq!(raw.blocks_to(raw.peer, &heard), [(at(1), at(4))]);
    raw.sack = vec![(at(1), at(3))];
    let heard = raw.member(0, 1, at(0), ACK, &[]);
    assert_eq!(raw.blocks_to(raw.peer, &heard), [(at(1), at(5))]);
    // The same again is no news.
    raw.sack = vec![(at(1), at(3))];
    assert_eq!(raw.member(0, 1, at(0), ACK, &[]), []);
    // The first frame arrives again.
    let again = raw.peer(at(0), 1, ACK, &frame());
    assert_eq!(raw.to_member(0, &again).len(), 1);
    assert_eq!(
        again.len(),
        1,
        "what carries a frame has no room for blocks"
    );
    assert!(again[0].header.options.is_empty());
    let filled = raw.member(0, 1, at(3), ACK, &[]);
    assert_eq!(raw.acks(&filled), [at(5)]);
    assert_eq!(raw.blocks_to(raw.peer, &filled), []);
}

#[test]
fn who_repeats_what_its_member_has_hears_all_that_is_known() {
    let mut raw = open(2);
    for number in 0..4 {
        raw.peer(at(number), 1, ACK, &frame());
    }
    raw.member(1, 1, at(2), ACK, &[]);
    let probe = raw.peer(at(3), 1, ACK, &frame());
    assert_eq!(raw.to_member(1, &probe), []);
    assert_eq!(raw.acks(&probe), [at(0)]);
    assert_eq!(
        raw.blocks_to(raw.peer, &probe),
        [(at(3), at(4)), (at(1), at(2))]
    );
}

#[test]
fn what_the_peer_repeats_is_not_counted_on_any_more() {
    let mut raw = open(1);
    for number in 0..4 {
        raw.peer(at(number), 1, ACK, &frame());
    }
    raw.sack = vec![(at(1), at(4))];
    let heard = raw.member(0, 1, at(0), ACK, &[]);
    assert_eq!(raw.blocks_to(raw.peer, &heard), [(at(1), at(4))]);
    // The member has discarded it, and the peer has waited for its timer.
    let again = raw.peer(at(2), 1, ACK, &frame());
    assert_eq!(
        raw.to_member(0, &again).len(),
        1,
        "it is the member's to say"
    );
    raw.sack = vec![(at(2), at(3))];
    let heard = raw.member(0, 1, at(0), ACK, &[]);
    assert_eq!(raw.blocks_to(raw.peer, &heard), [(at(1), at(4))]);
}

#[test]
fn blocks_of_what_was_never_sent_or_is_acknowledged_say_nothing() {
    let mut raw = open(1);
    for number in 0..3 {
        raw.peer(at(number), 1, ACK, &frame());
    }
    raw.member(0, 1, at(1), ACK, &[]);
    for block in [
        (at(0), at(1)),
        (at(1), at(2)),
        (at(2), at(9)),
        (at(2), at(2)),
        (at(2), at(3) - 1),
    ] {
        raw.sack = vec![block];
        let heard = raw.member(0, 1, at(1), ACK, &[]);
        assert_eq!(heard, [], "{block:?}");
    }
    raw.member(0, 1, 1, ACK, &frame());
    raw.peer(at(3), 1, ACK, &[]);
    for block in [(1, 50), (50, 102), (60, 60)] {
        raw.sack = vec![block];
        let heard = raw.peer(at(3), 1, ACK, &[]);
        assert_eq!(raw.blocks_to(raw.members[0].0, &heard), [], "{block:?}");
    }
}

#[test]
fn members_hear_of_their_own_bytes_as_one_range() {
    let mut raw = open(2);
    // a0 b0 a1 b1 a2 b2
    for number in 0..3 {
        raw.member(0, at(number), 1, ACK, &frame());
        raw.member(1, at(number), 1, ACK, &frame());
    }
    let (first, second) = (raw.members[0].0, raw.members[1].0);
    // a0 is lost. The second member has lost nothing; it merely has no acknowledgment.
    raw.sack = vec![(at(1), at(3))];
    let heard = raw.peer(1, 1, ACK, &[]);
    assert_eq!(raw.blocks_to(first, &heard), [(at(1), at(2))]);
    assert_eq!(raw.blocks_to(second, &heard), []);
    raw.sack = vec![(at(1), at(5))];
    let heard = raw.peer(1, 1, ACK, &[]);
    assert_eq!(raw.blocks_to(first, &heard), [(at(1), at(3))]);
    assert_eq!(raw.blocks_to(second, &heard), []);
    // a0 arrives again; everything before b2 is acknowledged.
    raw.member(0, at(0), 1, ACK, &frame());
    let filled = raw.peer(1, at(5), ACK, &[]);
    assert_eq!(raw.blocks_to(first, &filled), []);
    assert_eq!(filled.len(), 2, "{filled:?}");
}

#[test]
fn losses_of_two_members_are_repaired_at_the_same_time() {
    let mut raw = open(2);
    for number in 0..4 {
        raw.member(0, at(number), 1, ACK, &frame());
        raw.member(1, at(number), 1, ACK, &frame());
    }
    // a0 and b2 are lost. The second member's loss is shown by b3. b0, at which its
    // acknowledgment stands, is left out: a block never begins there.
    raw.sack = vec![(at(6), at(8)), (at(1), at(5))];
    let heard = raw.peer(1, 1, ACK, &[]);
    assert_eq!(raw.blocks_to(raw.members[0].0, &heard), [(at(1), at(4))]);
    let mut second = raw.blocks_to(raw.members[1].0, &heard);
    second.sort_unstable();
    assert_eq!(second, [(at(1), at(2)), (at(3), at(4))]);
    // b2 alone arrives. The second member's acknowledgment does not lead into what was
    // reported to it, which would mean that the peer has discarded it.
    raw.member(0, at(0), 1, ACK, &frame());
    let acked = raw.peer(1, at(5), ACK, &[]);
    let to_second = acked
        .iter()
        .find(|emission| emission.flow == raw.members[1].0)
        .expect("an acknowledgment");
    let number = to_second
        .header
        .acknowledgment
        .wrapping_sub(super::raw::MEMBER_ISN);
    assert_eq!(number, at(2), "up to what it has lost");
}
